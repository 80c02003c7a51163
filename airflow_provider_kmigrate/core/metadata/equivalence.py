"""Does ZooKeeper hold what KRaft holds? A dual-write lag of 0 does not prove it: lost writes are never repeated (measured).

The two sides are read one after the other from a living cluster, so a single comparison also shows what changed between the reads.
`lasting_differences` keeps what two comparisons agree on; only that is a finding. Differences with an explanation are shown and do not count.

Kinds other than topics (quotas, SCRAM credentials, ACLs, broker settings) are entities with settings as well: `compare_settings` serves
them, and `kinds` has all kinds together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from airflow_provider_kmigrate.core.listing import summarize
from airflow_provider_kmigrate.core.model import Cause, PartitionMetadata, Reason, TopicMetadata

__all__ = ["Difference", "Kind", "PartitionMetadata", "TopicMetadata", "compare", "compare_settings", "lasting_differences", "reasons"]

ABSENT = "absent"
PENDING = "its deletion was pending; KRaft does not take such topics over and the first sync removes them from ZooKeeper"


class Kind(Enum):
    """What differs."""

    MISSING_TOPIC = auto()
    EXTRA_TOPIC = auto()
    TOPIC_ID = auto()
    PARTITIONS = auto()
    REPLICAS = auto()
    LEADER = auto()
    TOPIC_CONFIG = auto()
    BROKER_SETTING = auto()
    QUOTA = auto()
    CREDENTIAL = auto()
    ACL = auto()
    DELEGATION = auto()
    PRODUCER_IDS = auto()


_SUMMARIES = {
    Kind.MISSING_TOPIC: "topics are in ZooKeeper but not in KRaft",
    Kind.EXTRA_TOPIC: "topics are in KRaft but not in ZooKeeper",
    Kind.TOPIC_ID: "topics have two ids, or one that is unknown",
    Kind.PARTITIONS: "topics differ in their partitions",
    Kind.REPLICAS: "partitions differ in their replicas",
    Kind.LEADER: "partitions differ in their leader",
    Kind.TOPIC_CONFIG: "topic settings differ",
    Kind.BROKER_SETTING: "brokers' settings differ",
    Kind.QUOTA: "quotas differ",
    Kind.CREDENTIAL: "SCRAM credentials differ",
    Kind.ACL: "access rules differ",
    Kind.DELEGATION: "delegation tokens differ",
    Kind.PRODUCER_IDS: "blocks of producer ids end before ids that are in use",
}
_CODES = {Kind.MISSING_TOPIC: "E01", Kind.BROKER_SETTING: "E08", Kind.QUOTA: "E08", Kind.ACL: "E08", Kind.DELEGATION: "E12"}
_MISSED = frozenset({Kind.EXTRA_TOPIC, Kind.LEADER})
"""A new leader's first sync writes these; nobody can have meant what ZooKeeper has instead."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that the two sides say differently; with an `explanation` it is expected."""

    kind: Kind
    entity: str
    zookeeper: str
    kraft: str
    explanation: str = ""

    @property
    def counts(self) -> bool:
        return not self.explanation

    def __str__(self) -> str:
        because = f" ({self.explanation})" if self.explanation else ""
        return f"{self.entity}: {self.zookeeper} in ZooKeeper, {self.kraft} in KRaft{because}"


def compare(
    zookeeper: Mapping[str, TopicMetadata],
    kraft: Mapping[str, TopicMetadata],
    pending_deletions: Collection[str] = (),
) -> tuple[Difference, ...]:
    """All differences between the topics of both sides, ordered by topic. The ISR is not compared: it moves all the time."""
    return tuple(
        difference
        for name in sorted(zookeeper.keys() | kraft.keys())
        for difference in _compare_topic(name, zookeeper.get(name), kraft.get(name), pending_deletions)
    )


def compare_settings(
    kind: Kind, zookeeper: Mapping[str, Mapping[str, str]], kraft: Mapping[str, Mapping[str, str]]
) -> tuple[Difference, ...]:
    """Differences between entity -> settings; an entity without settings is the same as none (KRaft's sync leaves empty znodes)."""
    entities = sorted(zookeeper.keys() | kraft.keys())
    return tuple(
        difference
        for entity in entities
        for difference in _compare_entity(kind, entity, zookeeper.get(entity, {}), kraft.get(entity, {}))
    )


def lasting_differences(earlier: Iterable[Difference], later: Iterable[Difference]) -> tuple[Difference, ...]:
    """What both of two comparisons show, unchanged; the rest was on its way while they were made."""
    seen = set(earlier)
    return tuple(difference for difference in later if difference in seen)


def reasons(differences: Iterable[Difference], shown: int = 5) -> tuple[Reason, ...]:
    """One reason for each kind of difference that counts, with its number and some examples."""
    counted = [difference for difference in differences if difference.counts]
    groups = {kind: [difference for difference in counted if difference.kind is kind] for kind in Kind}
    return tuple(_summary(kind, found, shown) for kind, found in groups.items() if found)


def _summary(kind: Kind, found: list[Difference], shown: int) -> Reason:
    text = f"{len(found)} {_SUMMARIES[kind]}: {summarize(found, shown, '; ')}."
    return Reason(_CODES.get(kind, "E02"), text, cause=Cause.ZOOKEEPER_MISSES if kind in _MISSED else None)


def _compare_topic(
    name: str, zookeeper: TopicMetadata | None, kraft: TopicMetadata | None, pending: Collection[str]
) -> Iterator[Difference]:
    if zookeeper is None:
        yield Difference(Kind.EXTRA_TOPIC, name, ABSENT, "present")
    elif kraft is None:
        yield Difference(Kind.MISSING_TOPIC, name, "present", ABSENT, PENDING if name in pending else "")
    else:
        yield from _compare_ids(zookeeper, kraft)
        yield from _compare_partitions(zookeeper, kraft)
        yield from _compare_entity(Kind.TOPIC_CONFIG, name, zookeeper.configs, kraft.configs)


def _compare_ids(zookeeper: TopicMetadata, kraft: TopicMetadata) -> Iterator[Difference]:
    if zookeeper.topic_id is None or zookeeper.topic_id != kraft.topic_id:
        yield Difference(Kind.TOPIC_ID, zookeeper.name, zookeeper.topic_id or ABSENT, kraft.topic_id or ABSENT)


def _compare_partitions(zookeeper: TopicMetadata, kraft: TopicMetadata) -> Iterator[Difference]:
    theirs, ours = zookeeper.partitions, kraft.partitions
    if theirs.keys() != ours.keys():
        yield Difference(Kind.PARTITIONS, zookeeper.name, _indexes(theirs), _indexes(ours))
    for index in sorted(theirs.keys() & ours.keys()):
        yield from _compare_partition(f"{zookeeper.name}-{index}", theirs[index], ours[index])


def _compare_partition(name: str, zookeeper: PartitionMetadata, kraft: PartitionMetadata) -> Iterator[Difference]:
    if zookeeper.replicas != kraft.replicas:  # in order: the first is the preferred leader
        yield Difference(Kind.REPLICAS, name, str(list(zookeeper.replicas)), str(list(kraft.replicas)))
    if zookeeper.leader != kraft.leader:
        yield Difference(Kind.LEADER, name, str(zookeeper.leader), str(kraft.leader))


def _compare_entity(kind: Kind, entity: str, zookeeper: Mapping[str, str], kraft: Mapping[str, str]) -> Iterator[Difference]:
    for key in sorted(zookeeper.keys() | kraft.keys()):
        theirs, ours = zookeeper.get(key), kraft.get(key)
        if theirs != ours:
            shown = (ABSENT if value is None else value for value in (theirs, ours))
            yield Difference(kind, f"{entity} {key}", *shown)


def _indexes(partitions: Mapping[int, PartitionMetadata]) -> str:
    """`12 partitions`, or which ones if they are not 0 to n-1."""
    indexes = sorted(partitions)
    return f"{len(indexes)} partitions" if indexes == list(range(len(indexes))) else f"partitions {indexes}"
