"""Whether ZooKeeper holds what KRaft holds: every kind of metadata, in one spelling, compared.

A dual-write lag of 0 does not prove it: lost writes are never repeated (measured). A difference that persists means that a
rollback would restore something other than what is in force.

* Secrets end here. A broker's setting has its value only if it is on the list of those that may be shown; of a SCRAM credential
  there are mechanism and iterations; of a delegation token there is no HMAC. Hidden values are compared by presence only.
* The two sides are read one after the other from a running cluster. Only what two comparisons agree on (`persisting_differences`) is a
  finding. Differences with an explanation are shown and do not count.
* If one side of a kind was not read, it is unknown, and unknown is not equal. What no node can report of KRaft's side is *not
  compared*: the reason is shown, and it does not count.
* What was changed since the takeover (`changes`) follows from an inventory of before it, compared in the same way: whether
  ZooKeeper has a change is whether both sides agree on it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from itertools import chain
from typing import Final, NamedTuple

from airflow_provider_kmigrate.core.cluster_state.model import (
    Cause,
    ClusterView,
    Entities,
    Inventory,
    PartitionMetadata,
    Reason,
    Stored,
    StoredKind,
    TopicMetadata,
    could_not_read,
)
from airflow_provider_kmigrate.core.migration.gates import Gate, never, not_yet_if
from airflow_provider_kmigrate.core.node_files.kafka_keys import is_secret
from airflow_provider_kmigrate.core.shared.text import Count, count_of, summarize

HIDDEN: Final = "(hidden)"
PRESENT: Final = "present"
ALL_BROKERS: Final = "all brokers"
PRODUCER_IDS: Final = "producer ids"
HIGHEST: Final = "highest"  # in ZooKeeper the last id of the newest block, of the brokers the highest that they know

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")


class ComparedAcl(NamedTuple):
    """One rule, with both sides' names spelled by `words`."""

    pattern: str
    resource: str
    name: str
    permission: str
    operation: str
    principal: str
    host: str


def broker_entity(number: str | int | None) -> str:
    """The entity of one broker's settings; None: the default of all."""
    return ALL_BROKERS if number in {None, "", "<default>"} else f"broker {number}"


def visible_broker_setting(key: str, value: str | None) -> str:
    """What may be shown of a setting. None: the broker itself hides it."""
    return HIDDEN if value is None or is_secret(key) else value


def quota_entity(parts: Mapping[str, str | None]) -> str:
    """Such as `user alice, client-id <default>`; None is the default entity."""
    names = {kind: "<default>" if name is None else name for kind, name in parts.items()}
    return ", ".join(f"{kind} {names[kind]}" for kind in ("user", "client-id", "ip") if kind in names)


def format_quota(value: str | float) -> str:
    """One text for a number, however it was written; `HIDDEN` for anything else, which Kafka does not write."""
    try:
        number = float(value)
    except ValueError:
        return HIDDEN
    return str(int(number)) if number.is_integer() else repr(number)


def format_credential(iterations: int) -> str:
    """How a SCRAM credential is compared: by its iterations, without its salt and keys."""
    return count_of(iterations, "iteration")


def normalize_name(name: str) -> str:
    """One spelling: `TransactionalId`, `TRANSACTIONAL_ID` and `transactional id` are equal."""
    return " ".join(_WORD.findall(name)).lower()


def group_acls(rules: Iterable[ComparedAcl]) -> dict[str, dict[str, str]]:
    """Rules by resource."""
    rules_by_resource: dict[str, dict[str, str]] = {}
    for rule in rules:
        prefixed = " (prefixed)" if rule.pattern == "prefixed" else ""
        text = f"{rule.permission} {rule.operation} to {rule.principal} from {rule.host}"
        rules_by_resource.setdefault(f"{rule.resource} {rule.name}{prefixed}", {})[text] = PRESENT
    return rules_by_resource


def token_settings(owner: str, renewers: Iterable[str], issued: int, expires: int, latest: int) -> dict[str, str]:
    """A delegation token's settings; times in milliseconds since the epoch."""
    times = {"issued": issued, "expires": expires, "latest": latest}
    return {"owner": owner, "renewers": ", ".join(sorted(renewers)), **{name: str(time) for name, time in times.items()}}


ABSENT = "absent"
PENDING = "its deletion was pending; KRaft does not take such topics over and the first sync removes them from ZooKeeper"


class DifferenceKind(Enum):
    """What differs; the value is what a reason says of so many such differences (`core.shared.text.Count`)."""

    MISSING_TOPIC = "{:topic is|topics are} in ZooKeeper but not in KRaft"
    EXTRA_TOPIC = "{:topic is|topics are} in KRaft but not in ZooKeeper"
    TOPIC_ID = "{:topic has|topics have} two ids, or one that is unknown"
    PARTITIONS = "{:topic differs in its|topics differ in their} partitions"
    REPLICAS = "{:partition differs in its|partitions differ in their} replicas"
    LEADER = "{:partition differs in its|partitions differ in their} leader"
    TOPIC_CONFIG = "{:topic setting differs|topic settings differ}"
    BROKER_SETTING = "{:broker's setting differs|brokers' settings differ}"
    QUOTA = "{:quota differs|quotas differ}"
    CREDENTIAL = "{:SCRAM credential differs|SCRAM credentials differ}"
    ACL = "{:access rule differs|access rules differ}"
    DELEGATION = "{:delegation token differs|delegation tokens differ}"
    PRODUCER_IDS = "{:block of producer ids ends|blocks of producer ids end} before ids that are in use"


_KINDS = {
    StoredKind.BROKER_SETTINGS: DifferenceKind.BROKER_SETTING,
    StoredKind.QUOTAS: DifferenceKind.QUOTA,
    StoredKind.CREDENTIALS: DifferenceKind.CREDENTIAL,
    StoredKind.ACLS: DifferenceKind.ACL,
    StoredKind.TOKENS: DifferenceKind.DELEGATION,
}
_SETTINGS = frozenset(_KINDS.values()) - {DifferenceKind.CREDENTIAL}  # under E08
_MISSED = frozenset({DifferenceKind.EXTRA_TOPIC, DifferenceKind.LEADER})
"""A new leader's first sync writes these; what ZooKeeper has instead cannot be intended."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing on which the two sides differ; with an `explanation` it is expected."""

    kind: DifferenceKind
    entity: str
    zookeeper: str
    kraft: str
    explanation: str = ""

    @property
    def is_unexplained(self) -> bool:
        """Whether it counts as a difference: an explained one does not."""
        return not self.explanation

    def __str__(self) -> str:
        because = f" ({self.explanation})" if self.explanation else ""
        return f"{self.entity}: {self.zookeeper} in ZooKeeper, {self.kraft} in KRaft{because}"


def compare_topics(
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


def compare_settings(kind: DifferenceKind, zookeeper: Entities, kraft: Entities) -> tuple[Difference, ...]:
    """Differences between entity -> settings; an entity without settings is the same as none (KRaft's sync leaves empty znodes)."""
    return tuple(
        difference
        for entity in sorted(zookeeper.keys() | kraft.keys())
        for difference in _compare_entity(kind, entity, zookeeper.get(entity, {}), kraft.get(entity, {}))
    )


def persisting_differences(earlier: Iterable[Difference], later: Iterable[Difference]) -> tuple[Difference, ...]:
    """What both of two comparisons show, unchanged; other differences were in transit."""
    before = set(earlier)
    return tuple(difference for difference in later if difference in before)


_EXAMPLES = 5  # of each kind, in a text


def summarize_differences(differences: Iterable[Difference]) -> tuple[Reason, ...]:
    """One reason for each kind of difference that counts, with its number and some examples."""
    counted = [difference for difference in differences if difference.is_unexplained]
    groups = {kind: [difference for difference in counted if difference.kind is kind] for kind in DifferenceKind}
    return tuple(_summarize_kind(kind, alike) for kind, alike in groups.items() if alike)


def _summarize_kind(kind: DifferenceKind, alike: list[Difference]) -> Reason:
    code = "E01" if kind is DifferenceKind.MISSING_TOPIC else "E08" if kind in _SETTINGS else "E02"
    text = f"{kind.value.format(Count(len(alike)))}: {summarize(alike, _EXAMPLES, '; ')}."
    return Reason(code, text, cause=Cause.ZOOKEEPER_MISSES if kind in _MISSED else Cause.SIDES_DIFFER)


def _compare_topic(
    name: str, zookeeper: TopicMetadata | None, kraft: TopicMetadata | None, pending: Collection[str]
) -> Iterator[Difference]:
    if zookeeper is None:
        yield Difference(DifferenceKind.EXTRA_TOPIC, name, ABSENT, "present")
    elif kraft is None:
        yield Difference(DifferenceKind.MISSING_TOPIC, name, "present", ABSENT, PENDING if name in pending else "")
    else:
        if zookeeper.topic_id is None or zookeeper.topic_id != kraft.topic_id:
            yield Difference(DifferenceKind.TOPIC_ID, name, zookeeper.topic_id or ABSENT, kraft.topic_id or ABSENT)
        yield from _compare_partitions(zookeeper, kraft)
        yield from _compare_entity(DifferenceKind.TOPIC_CONFIG, name, zookeeper.configs, kraft.configs)


def _compare_partitions(zookeeper: TopicMetadata, kraft: TopicMetadata) -> Iterator[Difference]:
    before, after = zookeeper.partitions, kraft.partitions
    if before.keys() != after.keys():
        yield Difference(DifferenceKind.PARTITIONS, zookeeper.name, _describe_indexes(before), _describe_indexes(after))
    for index in sorted(before.keys() & after.keys()):
        yield from _compare_partition(f"{zookeeper.name}-{index}", before[index], after[index])


def _compare_partition(name: str, zookeeper: PartitionMetadata, kraft: PartitionMetadata) -> Iterator[Difference]:
    if zookeeper.replicas != kraft.replicas:  # in order: the first is the preferred leader
        yield Difference(DifferenceKind.REPLICAS, name, str(list(zookeeper.replicas)), str(list(kraft.replicas)))
    if zookeeper.leader != kraft.leader:
        yield Difference(DifferenceKind.LEADER, name, str(zookeeper.leader), str(kraft.leader))


def _compare_entity(
    kind: DifferenceKind, entity: str, zookeeper: Mapping[str, str], kraft: Mapping[str, str]
) -> Iterator[Difference]:
    for key in sorted(zookeeper.keys() | kraft.keys()):
        values = zookeeper.get(key), kraft.get(key)
        if values[0] != values[1]:
            yield Difference(kind, f"{entity} {key}", *(ABSENT if value is None else value for value in values))


def _describe_indexes(partitions: Mapping[int, PartitionMetadata]) -> str:
    """`12 partitions`, or which ones if they are not 0 to n-1."""
    indexes = sorted(partitions)
    return count_of(len(indexes), "partition") if indexes == list(range(len(indexes))) else f"partitions {indexes}"


def find_differences(view: ClusterView) -> tuple[Difference, ...]:
    """All differences of all kinds that were read, explained ones too."""
    return (
        *topic_differences(view),
        *(difference for kind, stored in _stored_by_kind(view) for difference in compare_kind(kind, stored)),
    )


def topic_differences(view: ClusterView) -> tuple[Difference, ...]:
    """All differences of topics, explained ones too; none if the topics were not read."""
    return compare_topics(*view.topics, view.zk.pending_deletions if view.zk else ()) if view.topics else ()


def compare_kind(kind: StoredKind, stored: Stored) -> tuple[Difference, ...]:
    """The differences of one kind, without what KRaft does not report."""
    if kind is StoredKind.PRODUCER_IDS:
        return _find_ids_beyond_block(stored)
    if Stored.EVERY in stored.unreported:
        return ()
    reported = {entity: settings for entity, settings in stored.zookeeper.items() if entity not in stored.unreported}
    return compare_settings(_KINDS[kind], reported, stored.kraft)


def _find_ids_beyond_block(stored: Stored) -> tuple[Difference, ...]:
    """The only check possible for producer ids: none in use may lie beyond the newest block that ZooKeeper knows."""
    last, used = (int(side.get(PRODUCER_IDS, {}).get(HIGHEST, -1)) for side in (stored.zookeeper, stored.kraft))
    if used <= last:
        return ()
    known_block = f"none after {last}" if last >= 0 else "none given out"
    return (Difference(DifferenceKind.PRODUCER_IDS, PRODUCER_IDS, known_block, f"{used} in use"),)


def unread_kind_reasons(view: ClusterView) -> tuple[Reason, ...]:
    """What cannot be compared because a side was not read; the view's unknowns say why."""
    topics = () if view.topics is not None else (could_not_read("the topics of both sides"),)
    missing = [kind for kind in StoredKind if kind not in (view.stored or {})]
    if not missing:
        return topics
    why = [reason.text for reason in view.unknowns if reason.cause is Cause.UNREAD_STORED]
    because = f" {'; '.join(why)}." if why else ""
    return (*topics, replace(could_not_read("both sides"), text=f"Could not read both sides of: {', '.join(missing)}.{because}"))


def difference_reasons(view: ClusterView) -> tuple[Reason, ...]:
    """One reason for each kind that differs."""
    return summarize_differences(find_differences(view))


def nothing_lost(earlier: ClusterView, later: ClusterView) -> Gate:
    """Never while two observations show the same difference: the dual-write does not repeat what it lost, so waiting does not help.

    Not yet if neither observation could compare everything; met for what only one of them showed.
    """
    if lasting_reasons := summarize_differences(persisting_differences(find_differences(earlier), find_differences(later))):
        return never(*lasting_reasons)
    gaps = unread_kind_reasons(later) if unread_kind_reasons(earlier) else ()
    return not_yet_if(gaps, *gaps)


def describe_equality(view: ClusterView) -> str:
    """What is equal, counted, and what was not compared, with its reason; for a view without differences."""
    counted = [count_of(len(view.topics[0]), "topic")] if view.topics else []
    counted += [
        count_of(_count_settings(kind, stored), kind.removesuffix("s"), kind)
        for kind, stored in _stored_by_kind(view)
        if Stored.EVERY not in stored.unreported
    ]
    text = f"ZooKeeper and KRaft store the same {_join_with_and(counted)}."
    reasons = list(_describe_unreported(view))
    return f"{text} Not compared: {'; '.join(reasons)}." if reasons else text


def _stored_by_kind(view: ClusterView) -> Iterator[tuple[StoredKind, Stored]]:
    stored = view.stored or {}
    return ((kind, stored[kind]) for kind in StoredKind if kind in stored)


def _describe_unreported(view: ClusterView) -> Iterator[str]:
    """Why something was not compared, each reason once, with its entities."""
    for kind, stored in _stored_by_kind(view):
        by_reason: dict[str, list[str]] = {}
        for entity, why in sorted(stored.unreported.items()):
            by_reason.setdefault(why, []).append(entity)
        for why, entities in by_reason.items():
            of_entities = f" of {', '.join(entities)}" if Stored.EVERY not in entities else ""
            yield f"{kind}{of_entities} ({why})"


def _count_settings(kind: StoredKind, stored: Stored) -> int:
    """Counts tokens, and of everything else the settings: a user with two quotas has two."""
    sizes = [len(settings) for entity, settings in stored.zookeeper.items() if entity not in stored.unreported]
    return sum(map(bool, sizes)) if kind is StoredKind.TOKENS else sum(sizes)


def _join_with_and(parts: list[str]) -> str:
    return f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else "".join(parts)


_CHANGED: Final[Mapping[DifferenceKind, str]] = {
    DifferenceKind.EXTRA_TOPIC: "topics created",
    DifferenceKind.MISSING_TOPIC: "topics deleted",
    DifferenceKind.TOPIC_ID: "topics deleted and created again",
    DifferenceKind.PARTITIONS: "topics with more partitions",
    DifferenceKind.REPLICAS: "partitions with other replicas",
    DifferenceKind.TOPIC_CONFIG: "topic settings",
    DifferenceKind.BROKER_SETTING: "brokers' settings",
    DifferenceKind.QUOTA: "quotas",
    DifferenceKind.CREDENTIAL: "SCRAM credentials",
    DifferenceKind.ACL: "access rules",
    DifferenceKind.DELEGATION: "delegation tokens",
}
"""What counts as changed, in a text. Leaders and producer ids, which change by themselves all the time, do not."""
_WHOLE = frozenset({DifferenceKind.EXTRA_TOPIC, DifferenceKind.MISSING_TOPIC, DifferenceKind.TOPIC_ID})


@dataclass(frozen=True, slots=True)
class MetadataChange:
    """What differs from an inventory: a setting's or a topic's state before and now. `held`: ZooKeeper has it as KRaft does."""

    kind: DifferenceKind
    entity: str
    before: str
    now: str
    held: bool

    @property
    def what(self) -> str:
        """What changed, of its kind: such as `topics created`."""
        return _CHANGED[self.kind]

    def __str__(self) -> str:
        created = self.kind in {DifferenceKind.EXTRA_TOPIC, DifferenceKind.MISSING_TOPIC}
        return self.entity if created else f"{self.entity} ({self.before} before, {self.now} now)"


def find_changes(view: ClusterView, inventory: Inventory) -> tuple[MetadataChange, ...]:
    """What has changed since the inventory, of all that was read. Of what KRaft does not report, ZooKeeper's side is taken for both."""
    topics = _find_topic_changes(inventory.topics, *view.topics) if view.topics else ()
    compared = ((kind, stored) for kind, stored in _stored_by_kind(view) if kind in _KINDS)
    others = (_find_setting_changes(kind, inventory.stored.get(kind, {}), stored) for kind, stored in compared)
    return (*topics, *chain.from_iterable(others))


def _find_topic_changes(
    before: Mapping[str, TopicMetadata], zookeeper: Mapping[str, TopicMetadata], kraft: Mapping[str, TopicMetadata]
) -> Iterator[MetadataChange]:
    for name in sorted(before.keys() | kraft.keys()):
        first, stored, now = ({name: side[name]} if name in side else {} for side in (before, zookeeper, kraft))
        missed = [difference for difference in compare_topics(stored, now) if difference.kind in _CHANGED]
        yield from (_build_change(difference, missed) for difference in compare_topics(first, now) if difference.kind in _CHANGED)


def _find_setting_changes(kind: StoredKind, before: Entities, stored: Stored) -> Iterator[MetadataChange]:
    hidden = stored.zookeeper if Stored.EVERY in stored.unreported else stored.unreported
    now = {**stored.kraft, **{entity: settings for entity, settings in stored.zookeeper.items() if entity in hidden}}
    missed = compare_kind(kind, stored)
    return (_build_change(difference, missed) for difference in compare_settings(_KINDS[kind], before, now))


def _build_change(difference: Difference, missed: Iterable[Difference]) -> MetadataChange:
    """`missed`: where both sides differ now, about the same topic or kind; a topic that one side does not have has no settings there."""
    is_missed = any(difference.kind in _WHOLE or other.kind in _WHOLE or difference.entity == other.entity for other in missed)
    return MetadataChange(difference.kind, difference.entity, difference.zookeeper, difference.kraft, held=not is_missed)


def describe_changes(metadata_changes: Iterable[MetadataChange]) -> str:
    """The changes counted by kind, each with some examples, such as `topics created (2): a, b; quotas (1): ...`; empty without any."""
    groups: dict[str, list[MetadataChange]] = {}
    for change in metadata_changes:
        groups.setdefault(change.what, []).append(change)
    return "; ".join(f"{what} ({len(alike)}): {summarize(alike, _EXAMPLES)}" for what, alike in groups.items())


def list_unknown_changes(view: ClusterView) -> tuple[str, ...]:
    """What may have changed without being among the `changes`, each with its reason."""
    hidden = any(
        value == HIDDEN or kind is StoredKind.CREDENTIALS
        for kind, stored in _stored_by_kind(view)
        for settings in stored.zookeeper.values()
        for value in settings.values()
    )
    secrets = ("new values of hidden settings, and new passwords of SCRAM users with as many iterations",) if hidden else ()
    return (*(reason.text.removesuffix(".") for reason in unread_kind_reasons(view)), *_describe_unreported(view), *secrets)
