"""The writes that are allowed in ZooKeeper: operations, our own znodes, and the list of Kafka's that a run may change."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from airflow_provider_kmigrate.core.model import Reason
from airflow_provider_kmigrate.exceptions import Forbidden


def outdated(seen: str) -> Reason:
    """The reason of a `Fenced`, the same for transactions, the fence and the nodes' tokens; `seen` says which token is older."""
    return Reason("H03", f"{seen}.")


ROOT: Final = "/_kmigrate"
#: Our own note of brokers that were rolled back alone. Their registration with the controllers stays (measured), and no node
#: reports it.
ROLLED_BACK: Final = f"{ROOT}/rolled-back"
#: Our own note of brokers that a roll moved into migration mode; their registration stays, too, even if they return to ZooKeeper
#: mode.
REGISTERED: Final = f"{ROOT}/registered"
#: Our own note of controllers whose flag a finalization removes: a flag that is missing on any other was lost.
UNFLAGGED: Final = f"{ROOT}/unflagged"
NOTES: Final = (ROLLED_BACK, REGISTERED, UNFLAGGED)
#: The znodes of Kafka that a rollback writes or deletes. It also rewrites the partitions' states unchanged and creates those that
#: Kafka has left out (`half_made`); everything else of Kafka's tree is only read.
WRITABLE: Final = frozenset({"/controller", "/controller_epoch", "/migration"})

_OWN = re.compile(rf"{ROOT}(/[A-Za-z0-9_-]+)*")
_ANY_VERSION = -1
CONSUMERS: Final = "/consumers"
_NAME: Final = r"(?!\.{1,2}(?:/|\Z))[A-Za-z0-9._-]{1,255}"  # of a group or a topic, as Kafka allows them
_GROUP: Final = rf"{CONSUMERS}/{_NAME}"
_STATE: Final = rf"/brokers/topics/{_NAME}/partitions/[0-9]{{1,10}}/state"


@dataclass(frozen=True, slots=True)
class Set:
    """Replace a znode's data if its version is still `version`."""

    path: str
    data: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a znode if its version is still `version`."""

    path: str
    version: int


@dataclass(frozen=True, slots=True)
class Create:
    """Create a znode that must not exist; an ephemeral one ends with this client's session. It gets the ACL of `like`, if given."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    like: str = ""


Operation = Set | Delete | Create

#: What may be done to a consumer group: its mode, our hold, an operator's resets, its offsets with their persistent parents, and
#: the folders that it leaves empty (ZooKeeper deletes no other). Never a member's registration or an owner: only its own session
#: may write those.
OF_GROUPS: Final[Mapping[type[Operation], re.Pattern[str]]] = {
    Create: re.compile(
        rf"{CONSUMERS}|{_GROUP}(?:/migration(?:/mode|/hold)?|/(?:offsets|migration/reset)(?:/{_NAME}(?:/[0-9]{{1,10}})?)?)?"
    ),
    Set: re.compile(rf"{_GROUP}/(?:migration/(?:mode|hold)|(?:offsets|migration/reset)/{_NAME}/[0-9]{{1,10}})"),
    Delete: re.compile(
        rf"{_GROUP}/(?:migration(?:/mode|/hold|/ids|/reset(?:/{_NAME}(?:/[0-9]{{1,10}})?)?)?|ids|owners(?:/{_NAME})?)"
    ),
}
_OF_PARTITIONS: Final[Mapping[type[Operation], re.Pattern[str]]] = {
    Create: re.compile(rf"{_STATE}|/brokers/topics/{_NAME}/partitions(?:/[0-9]{{1,10}})?"),
    Set: re.compile(_STATE),
}


def check_allowed(operation: Operation, *, held: bool) -> None:
    """Raise `Forbidden` (Z04) for a write that is on no list; `held`: whether it is fenced."""
    if _OWN.fullmatch(operation.path):
        return
    of_group = OF_GROUPS[type(operation)].fullmatch(operation.path) is not None
    of_partition = type(operation) in _OF_PARTITIONS and _OF_PARTITIONS[type(operation)].fullmatch(operation.path) is not None
    if not of_group and not of_partition and operation.path not in WRITABLE:
        raise _forbidden(f"{operation.path} is not on the list of writable znodes")
    if not held:
        raise _forbidden(f"{operation.path} may only be written by the run that holds the fence")
    if isinstance(operation, Create):
        if operation.ephemeral or not (of_group or (of_partition and operation.like)):
            raise _forbidden(f"{operation.path} may not be created" + (" for a session" if operation.ephemeral else ""))
    elif operation.version == _ANY_VERSION:
        raise _forbidden(f"{operation.path} may only be changed from a version that was read")


def _forbidden(text: str) -> Forbidden:
    return Forbidden.because(Reason("Z04", f"{text}."))
