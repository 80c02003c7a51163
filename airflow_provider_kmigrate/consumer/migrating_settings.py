"""A migrating consumer's settings: librdkafka's properties beside the old consumer's names and KIP-125's own, taken apart.

Pure. Times in the properties are milliseconds, as everywhere in Kafka; in here they are seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from airflow_provider_kmigrate.clients.settings import ZooKeeperSettings
from airflow_provider_kmigrate.core.assignors import Strategy
from airflow_provider_kmigrate.core.model import Reason
from airflow_provider_kmigrate.core.registration import STATIC, WHITE_LIST, Registration
from airflow_provider_kmigrate.core.wildcard import compiled
from airflow_provider_kmigrate.exceptions import Refused

MIGRATION: Final = "coordination.migration."
_POLL_MARGIN: Final = 0.8  # of max.poll.interval.ms: delivery stops before Kafka gives the partitions to others

_STRATEGIES: Final = {
    "range": Strategy.RANGE,
    "roundrobin": Strategy.ROUND_ROBIN,
    "roundrobin-0.10": Strategy.ROUND_ROBIN_0_10,  # a group with members of Kafka 0.10.2 or 0.11
}
_OLD_NAMES: Final = {
    "auto.commit.enable": "enable.auto.commit",
    "zookeeper.session.timeout.ms": "zookeeper.session.timeout.ms",
}
_FALSE: Final = frozenset({"false", "0", "f"})
_REFUSED: Final = {
    "group.instance.id": "a dead static member keeps its partitions for its whole session",
    "on_commit": "give it to MigratingConsumer, not to the embedded consumer",
}


@dataclass(frozen=True, slots=True)
class MigratingSettings:
    """`migrates`: registers as migration-aware and has an embedded Kafka consumer; else ZooKeeper alone coordinates and keeps offsets."""

    group: str
    consumer: str | None  # consumer.id; None: a new name
    zookeeper: ZooKeeperSettings = field(repr=False)
    strategy: Strategy
    internal_too: bool
    migrates: bool
    auto_commit: bool
    commit_every: float
    poll_every: float  # the embedded consumer, at least
    poll_limit: float
    data: Mapping[str, Any] = field(repr=False)  # properties of the consumer that fetches
    embedded: Mapping[str, Any] = field(repr=False)  # and of the one that is a member

    @property
    def reset(self) -> str:
        return str(self.data.get("auto.offset.reset", "latest"))


def parse(properties: Mapping[str, Any]) -> MigratingSettings:
    """Raises `Refused` for what a migrating consumer cannot do; an unknown property is librdkafka's to refuse."""
    given = {_OLD_NAMES.get(name, name): value for name, value in properties.items()}
    own = {name: given.pop(name) for name in list(given) if _is_ours(name)}
    migration = {name.removeprefix(MIGRATION): value for name, value in own.items() if name.startswith(MIGRATION)}
    migrates = _flag(migration.pop("enabled", False))
    poll_ms = migration.pop("poll.interval.ms", 1000)
    _check(given, own)
    embedded = _embedded(given, migration)
    return MigratingSettings(
        group=str(given["group.id"]),
        consumer=str(own["consumer.id"]) if own.get("consumer.id") else None,
        zookeeper=_zookeeper(str(own["zookeeper.connect"]), own.get("zookeeper.session.timeout.ms", 6000)),
        strategy=_strategy(str(own.get("partition.assignment.strategy", "range"))),
        internal_too=not _flag(own.get("exclude.internal.topics", True)),
        migrates=migrates,
        auto_commit=_flag(given.get("enable.auto.commit", True)),
        commit_every=_seconds(given.get("auto.commit.interval.ms", 5000)),
        poll_every=_seconds(poll_ms),
        poll_limit=_POLL_MARGIN * _seconds(embedded.get("max.poll.interval.ms", 300_000)),
        data={**given, "enable.auto.commit": False, "enable.auto.offset.store": False},
        embedded=embedded,
    )


def _is_ours(name: str) -> bool:
    ours = {"consumer.id", "exclude.internal.topics", "partition.assignment.strategy"}
    return name.startswith((MIGRATION, "zookeeper.")) or name in ours


def _check(given: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    for name, source in (("group.id", given), ("zookeeper.connect", own)):
        if not source.get(name):
            raise _cannot(f"{name} is missing.", "Without it a migrating consumer belongs to no group.", f"Set {name}.")
    for name in _REFUSED.keys() & given.keys():
        raise _cannot(f"{name} is set.", f"A migrating consumer cannot do that: {_REFUSED[name]}.", f"Leave {name} out.")
    if str(given.get("group.protocol", "classic")).lower() != "classic":
        raise _cannot("group.protocol is not classic.", "Brokers in ZooKeeper mode know no other.", "Leave group.protocol out.")


def _cannot(text: str, why: str, remedy: str) -> Refused:
    return Refused.because(Reason("Y06", text, why, remedy))


def _unclear(text: str, remedy: str) -> Refused:
    why = "Members that select different topics share none of them out alike."
    return Refused.because(Reason("Y07", text, why, remedy))


def _embedded(given: Mapping[str, Any], migration: Mapping[str, Any]) -> dict[str, Any]:
    """As the application's own, but for what the KIP's prefix says. Its assignor is not what plain consumers offer first."""
    return {"partition.assignment.strategy": "roundrobin", **given, **migration, "enable.auto.commit": False}


def _zookeeper(connect: str, session_ms: object) -> ZooKeeperSettings:
    hosts, slash, chroot = connect.partition("/")
    return ZooKeeperSettings(hosts, f"{slash}{chroot}".rstrip("/"), session_timeout=_seconds(session_ms))


def _strategy(name: str) -> Strategy:
    if name not in _STRATEGIES:
        why = "A member that shares out otherwise than the others waits for them for ever."
        raise _cannot(f"partition.assignment.strategy is {name}.", why, f"One of {', '.join(_STRATEGIES)}, as the group has it.")
    return _STRATEGIES[name]


def _flag(value: object) -> bool:
    return str(value).lower() not in _FALSE


def _seconds(milliseconds: object) -> float:
    return float(str(milliseconds)) / 1000.0


def registration_of(topics: Sequence[str], now_ms: int) -> Registration:
    """What `subscribe` registers: topics with one stream each, or, for one entry that begins with `^`, a white list.

    A white list has to match a topic's whole name, as the old consumer has it. Raises `Refused` for one that Java may read otherwise.
    """
    wildcards = [topic for topic in topics if topic.startswith("^")]
    if not wildcards:
        return Registration(STATIC, dict.fromkeys(topics, 1), str(now_ms))
    if len(topics) != 1:
        raise _unclear(f"{len(topics)} entries, one a wildcard.", "Join them with a bar into one expression.")
    expression = wildcards[0].removeprefix("^").removesuffix("$")
    if compiled(expression) is None:
        raise _unclear(f"Python and Java may read {expression} differently.", "Write it without what only one of them has.")
    return Registration(WHITE_LIST, {expression: 1}, str(now_ms))
