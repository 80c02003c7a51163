"""What Kafka's error codes mean to us: one table for every client that speaks to brokers or controllers.

Retriable codes become `Unavailable`, refused identities and rights `AuthenticationFailed`, the rest `Failed`; the text always has
Kafka's name of the error, because that is what its logs and documentation are searched for.
"""

from __future__ import annotations

from typing import Final

from kafka.errors import AuthorizationError, NoError, RetriableError, for_code

from airflow_provider_kmigrate.core.model import Reason
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, Failed, KMigrateError, TimedOut, Unavailable, WrongCluster

NOT_LEADER_OR_FOLLOWER: Final = 6
UNSUPPORTED_VERSION: Final = 35
UNKNOWN_TOPIC_OR_PARTITION: Final = 3
COORDINATOR_LOAD_IN_PROGRESS: Final = 14
COORDINATOR_NOT_AVAILABLE: Final = 15
ELECTION_NOT_NEEDED: Final = 84

_REQUEST_TIMED_OUT = 7
_INCONSISTENT_CLUSTER_ID = 104
#: Transient although kafka-python does not class them so: BROKER_NOT_AVAILABLE, STALE_CONTROLLER_EPOCH, STALE_BROKER_EPOCH.
_TRANSIENT = frozenset({8, 11, 77})
#: Identity and rights beyond the *_AUTHORIZATION_FAILED family: SASL mechanism, SASL state, security off, SASL failure, tokens.
_IDENTITY = frozenset({33, 34, 54, 58, 61, 62, 63, 64, 66, 67, 97})


def name_of(code: int) -> str:
    """Kafka's name of an error code; `ERROR_<code>` where this version of the library does not know it."""
    message: str | None = for_code(code).message
    return message if message and (code == -1 or message != "UNKNOWN") else f"ERROR_{code}"


def error_for(code: int, where: str, detail: str | None = None) -> KMigrateError:
    """The exception for a non-zero code; `where` names the node and the request, `detail` is the broker's own sentence."""
    text = f"{where}: {name_of(code)}" + (f" ({detail})" if detail else "")
    if code == _INCONSISTENT_CLUSTER_ID:
        return WrongCluster.because(Reason("I01", f"{text}."))
    return _class_of(code)(text)


def check(code: int, where: str, detail: str | None = None) -> None:
    """Raise what `error_for` gives, unless the code says that all is well."""
    if code != NoError.errno:
        raise error_for(code, where, detail)


def _class_of(code: int) -> type[KMigrateError]:
    if code == _REQUEST_TIMED_OUT:
        return TimedOut
    kind = for_code(code)
    if code in _IDENTITY or issubclass(kind, AuthorizationError):
        return AuthenticationFailed
    if code in _TRANSIENT or issubclass(kind, RetriableError):
        return Unavailable
    return Failed
