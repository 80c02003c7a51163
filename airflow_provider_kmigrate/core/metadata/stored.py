"""One spelling for what ZooKeeper and KRaft tell in two: entities, settings and values that are equal text where they are equal.

Secrets end here. A broker's setting has its value only if it is on the list of those that may be shown; of a SCRAM credential there
are mechanism and iterations; of a delegation token there is no HMAC. What is hidden is compared by being there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

HIDDEN: Final = "(hidden)"
PRESENT: Final = "present"
ALL_BROKERS: Final = "all brokers"
PRODUCER_IDS: Final = "producer ids"
HIGHEST: Final = "highest"  # in ZooKeeper the last id of the newest block, of the brokers the highest that they know

_USER, _CLIENT, _IP = "user", "client-id", "ip"
_QUOTA_ORDER = (_USER, _CLIENT, _IP)
_LISTENER = re.compile(r"listener\.name\.[^.]+\.(?:[a-z0-9-]+\.(?=sasl\.))?")
#: Dynamic settings of brokers that hold no secret (Kafka 3.9: DynamicBrokerConfig). Passwords, JAAS and whatever a plugin reads do not.
_SHOWN = re.compile(
    r"(?!.*(password|secret|jaas|credential|token))(?:"  # whatever the list below says
    r"log\.[a-z.]+|num\.[a-z.]+|max\.connection[a-z.]*|(leader|follower)\.replication\.throttled\.rate"
    r"|replica\.alter\.log\.dirs\.io\.max\.bytes\.per\.second|background\.threads|compression\.[a-z.]+|message\.max\.bytes"
    r"|min\.insync\.replicas|unclean\.leader\.election\.enable|listeners|advertised\.listeners|listener\.security\.protocol\.map"
    r"|metric\.reporters|principal\.builder\.class|producer\.id\.expiration\.ms|transaction\.partition\.verification\.enable"
    r"|sasl\.(enabled\.mechanisms|mechanism\.inter\.broker\.protocol|kerberos\.[a-z.]+)|connections\.max\.reauth\.ms"
    r"|ssl\.(keystore|truststore)\.(type|location)|ssl\.(client\.auth|protocol|enabled\.protocols|cipher\.suites|provider)"
    r"|ssl\.(endpoint\.identification\.algorithm|(key|trust)manager\.algorithm|principal\.mapping\.rules)"
    r"|remote\.(log|fetch|list)\.[a-z.]*(bytes\.per\.second|threads|size|ms|cache\.size\.bytes))"
)
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")


class Acl(NamedTuple):
    """One rule, in the words that both sides' names become with `words`."""

    pattern: str
    resource: str
    name: str
    permission: str
    operation: str
    principal: str
    host: str


def broker(number: str | int | None) -> str:
    """The entity of one broker's settings; None: the default of all."""
    return ALL_BROKERS if number in {None, "", "<default>"} else f"broker {number}"


def broker_setting(key: str, value: str | None) -> str:
    """What may be shown of a setting. None: the broker itself keeps it back."""
    return value if value is not None and _SHOWN.fullmatch(_LISTENER.sub("", key, count=1)) else HIDDEN


def quota_entity(parts: Mapping[str, str | None]) -> str:
    """Such as `user alice, client-id <default>`; None is the default entity."""
    return ", ".join(f"{kind} {_or_default(parts[kind])}" for kind in _QUOTA_ORDER if kind in parts)


def quota_value(value: str | float) -> str:
    """One text for a number, however it was written; `HIDDEN` for what is no number, which Kafka does not write."""
    try:
        number = float(value)
    except ValueError:
        return HIDDEN
    return str(int(number)) if number.is_integer() else repr(number)


def credential(iterations: int) -> str:
    """How a SCRAM credential is compared: by its iterations, without its salt and keys."""
    return f"{iterations} iterations"


def words(name: str) -> str:
    """`TransactionalId`, `TRANSACTIONAL_ID` and `transactional id` are one."""
    return " ".join(_WORD.findall(name)).lower()


def acls(rules: Iterable[Acl]) -> dict[str, dict[str, str]]:
    """Rules by resource."""
    found: dict[str, dict[str, str]] = {}
    for rule in rules:
        prefixed = " (prefixed)" if rule.pattern == "prefixed" else ""
        text = f"{rule.permission} {rule.operation} to {rule.principal} from {rule.host}"
        found.setdefault(f"{rule.resource} {rule.name}{prefixed}", {})[text] = PRESENT
    return found


def token(owner: str, renewers: Iterable[str], issued: int, expires: int, latest: int) -> dict[str, str]:
    """Times in milliseconds since the epoch."""
    times = {"issued": issued, "expires": expires, "latest": latest}
    return {"owner": owner, "renewers": ", ".join(sorted(renewers)), **{name: str(time) for name, time in times.items()}}


def _or_default(name: str | None) -> str:
    return "<default>" if name is None else name
