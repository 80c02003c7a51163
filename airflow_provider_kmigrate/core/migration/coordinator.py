"""Which broker coordinates a group, whether all brokers agree on that, and what a roll does to the groups if they do not.

The offsets of a group are in partition `hash(group) mod n` of `__consumer_offsets`; its coordinator is that partition's leader. Every broker
reads n once, when it starts (KIP-895, not adopted). An expansion of the topic therefore sleeps until a broker restarts. Then old
and restarted brokers disagree, broker by broker: groups split, stop or lose their offsets. `__transaction_state` works alike.

No broker reports its n, but few n explain its FindCoordinator answers to made-up names: its fingerprint. A fingerprint does not distinguish
two counts that have the same leader for every name, such as 24 and 48 partitions that three brokers lead alternately, or Kafka's 50
and 100 by five. In ZooKeeper the order in which brokers and partitions were registered shows an expansion that sleeps then.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from math import lcm

from airflow_provider_kmigrate.core.cluster_state.decision import Decision, Done
from airflow_provider_kmigrate.core.cluster_state.model import Cause, ClusterView, HostedGroup, Partition, Reason, could_not_read
from airflow_provider_kmigrate.core.member.registration import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, java_hash
from airflow_provider_kmigrate.core.migration.gates import MET, Gate, combine_gates, never, not_yet, not_yet_if, refuse_or_wait
from airflow_provider_kmigrate.core.shared.text import count_of, join_ids, summarize


def hash_group(group: str) -> int:
    """A group's partition is this modulo their count; Kafka's `Utils.abs` maps -2**31, which has no absolute value, to 0."""
    return abs(java_hash(group)) % 2**31


_LIMIT = 1000  # counts up to this are tried, or up to the topic's own, if that is higher
_POOL = tuple((name, hash_group(name)) for name in (f"__coord_probe_{number}" for number in range(128)))


@lru_cache(maxsize=32)
def probe_groups(leaders: tuple[int, ...]) -> tuple[str, ...]:
    """The few made-up names whose coordinators distinguish each count up to the topic's own from every other one.

    `leaders`: by partition, -1 for none. If they are so regular that no name does, all names that distinguish any two counts, and
    at least one: an answer shows that the broker finds its coordinators at all.
    Asking for them creates nothing if the topic exists; otherwise the broker creates it.
    """
    led, names = dict(enumerate(leaders)), []
    unclear = [list(range(1, max(_LIMIT, len(leaders)) + 1))]  # counts that are answered alike so far
    for name, number in _POOL:
        split = [part for alike in unclear for part in _group_by_answer(alike, number, led)]
        if len(split) > len(unclear):
            names.append(name)
            unclear = [part for part in split if len(part) > 1 and min(part) <= len(leaders)]
    return tuple(names) or (_POOL[0][0],)


def _group_by_answer(counts: list[int], number: int, leaders: Mapping[int, int]) -> list[list[int]]:
    counts_by_answer: dict[int, list[int]] = defaultdict(list)
    for count in counts:
        counts_by_answer[leaders.get(number % count, -1)].append(count)
    return list(counts_by_answer.values())


def possible_counts(answers: Mapping[str, int | None], leaders: Mapping[int, int]) -> frozenset[int]:
    """The counts that explain what one broker answered: group -> coordinator, None if it named none.

    `leaders` is partition -> leader (-1: none) at the time of the answers. A broker names none for a partition without a leader,
    and for one that does not exist. Empty: nothing explains the answers, or they name no broker at all.
    """
    evidence = {hash_group(group): -1 if broker is None else broker for group, broker in answers.items()}
    if set(evidence.values()) <= {-1}:
        return frozenset()
    candidates = range(1, max(_LIMIT, len(leaders)) + 1)
    return frozenset(n for n in candidates if all(leaders.get(h % n, -1) == broker for h, broker in evidence.items()))


def narrow_counts(possible: frozenset[int], present: int, registered: int | None) -> frozenset[int]:
    """The possible counts of a broker, narrowed by the number of partitions that the topic had when it registered in ZooKeeper.

    Without a topic then, the broker took the number in its own file. `present`: how many the topic has now. A broker reads the count just after it registers. If the topic has grown since, it has the smaller
    number for certain. A registration may be renewed without a restart, so one with all partitions proves nothing.
    """
    return frozenset({registered}) if registered in possible and registered != present else possible


def assign_new_replicas(
    rows: Sequence[Partition], racks: Mapping[int, str | None], count: int, old_counts: Collection[int]
) -> list[list[int]]:
    """Replicas of each partition that the topic must get to have `count`, the preferred leader first.

    Leaders and replicas are spread over the brokers, the replicas of one partition over racks. The leaders are such that a broker's
    answers show whether it uses `count` or one of `old_counts`, if any assignment of this kind shows that: otherwise no one could prove
    that all brokers have restarted.
    """
    choices = [_spread_replicas(rows, racks, count, start) for start in range(len(racks))]
    leaders = [row.replicas[0] for row in sorted(rows)]
    clear = (
        rows
        for rows in choices
        if all(_coordinators_differ([*leaders, *(row[0] for row in rows)], old_count, count) for old_count in old_counts)
    )
    return next(clear, choices[0])


def _spread_replicas(rows: Sequence[Partition], racks: Mapping[int, str | None], count: int, start: int) -> list[list[int]]:
    factor = min(max(len(row.replicas) for row in rows), len(racks))
    ids = sorted(racks)
    order = {broker: (index - start) % len(ids) for index, broker in enumerate(ids)}
    leads, holds = Counter(row.replicas[0] for row in rows), Counter(replica for row in rows for replica in row.replicas)
    assignments = []
    for _ in range(count - len(rows)):
        chosen = [min(ids, key=lambda broker: (leads[broker], holds[broker], order[broker]))]
        while len(chosen) < factor:
            used = {racks[broker] for broker in chosen} - {None}
            candidates = [broker for broker in ids if broker not in chosen]
            chosen.append(min(candidates, key=lambda broker: (racks[broker] in used, holds[broker], order[broker])))
        leads[chosen[0]] += 1
        holds.update(chosen)
        assignments.append(chosen)
    return assignments


def _coordinators_differ(leaders: Sequence[int], old: int, new: int) -> bool:
    return any(leaders[number % old] != leaders[number % new] for number in range(lcm(old, new)))


class Agreement(StrEnum):
    """What the fingerprints of all brokers show."""

    PROVEN = "proven"  # every broker uses the topic's count and no other explains its answers
    DEGENERATE = "degenerate"  # the topic's count explains every answer, but so do others
    UNKNOWN = "unknown"  # something was not read, or leaders moved meanwhile: observe again
    BROKEN = "broken"  # some broker certainly uses another count


@dataclass(frozen=True, slots=True)
class CountVerdict:
    """`reasons` is empty exactly when agreement is proven."""

    agreement: Agreement
    reasons: tuple[Reason, ...] = ()


@dataclass(frozen=True, slots=True)
class CoordinatorTopic:
    """A topic whose partitions have coordinators. `code`: of the entry for a broker that uses another count than the topic has.

    `setting`: the broker setting with which the topic is created; `key_type`: FindCoordinator's.
    """

    name: str
    code: str
    setting: str
    key_type: int


OFFSETS = CoordinatorTopic(OFFSETS_TOPIC, "K01", "offsets.topic.num.partitions", 0)
TRANSACTIONS = CoordinatorTopic(TRANSACTIONS_TOPIC, "K77", "transaction.state.log.num.partitions", 1)
TOPICS = (OFFSETS, TRANSACTIONS)

Counts = Mapping[int, frozenset[int]]  # broker -> its possible counts; empty: none explains its answers


def judge_counts(
    counts: Counts | None,
    topic_count: int,
    brokers: Collection[int],
    configured: Mapping[int, int] | None = None,
    topic: CoordinatorTopic = OFFSETS,
) -> CountVerdict:
    """Whether all `brokers` use the topic's own count, from each one's possible counts.

    A broker missing in `counts`, or with none, leaves it unknown; one whose counts miss the topic's breaks it, whatever the others use.
    Leaders of a topic made in one go are so regular that many counts explain all answers if the number of brokers divides the topic's.
    `configured`, each broker's setting for new topics, settles that; give it only if the topic's znode has never changed since it
    was created (data version 0): then a broker has read either the topic's count or, started before it, its own configuration.
    """
    counts_by_broker = {broker: (counts or {}).get(broker, frozenset()) for broker in sorted(brokers)}
    of_topic = f"partitions of {topic.name}"
    wrong: dict[str, list[int]] = defaultdict(list)
    for broker, possible in counts_by_broker.items():
        if possible and topic_count not in possible:
            wrong[_format_counts(possible)].append(broker)
    if wrong:
        texts = (
            f"Brokers that compute with {some} {of_topic}, which has {topic_count}: {join_ids(broker_ids)}."
            for some, broker_ids in wrong.items()
        )
        return CountVerdict(Agreement.BROKEN, tuple(Reason(topic.code, text) for text in texts))
    unread = [broker for broker, possible in counts_by_broker.items() if not possible]
    if unread or not counts_by_broker:
        text = f"No count of {topic.name} explains the answers of brokers {join_ids(unread) or 'all'}, or they did not answer."
        return CountVerdict(Agreement.UNKNOWN, (Reason("K02", text, cause=Cause.COORDINATORS_UNKNOWN),))
    settled = {broker for broker, count in (configured or {}).items() if count == topic_count}
    ambiguous = [broker for broker, possible in counts_by_broker.items() if len(possible) > 1 and broker not in settled]
    if ambiguous:
        others = _format_counts(counts_by_broker[ambiguous[0]] - {topic_count})
        text = f"Brokers {join_ids(ambiguous)} use {topic_count} {of_topic} or, by the same answers, {others}."
        return CountVerdict(Agreement.DEGENERATE, (Reason("K02", text),))
    return CountVerdict(Agreement.PROVEN)


def _format_counts(counts: frozenset[int]) -> str:
    some = " or ".join(map(str, sorted(counts)[:_SHOWN]))
    return f"{some} or more" if len(counts) > _SHOWN else some


_SHOWN = 6


class GroupClass(StrEnum):
    """What a group experiences while brokers use different counts."""

    SPLIT = "accepted by more than one broker (split brain)"  # consumed twice, commits in two places
    BLACKOUT = "accepted by no broker (blackout)"  # members lose their partitions and get none
    MOVED = "served from the new partition, without the offsets of the old one"
    REDIRECT = "served from the old partition"  # brokers with another count may name another coordinator
    INVARIANT = "in the same partition by every count"


@dataclass(frozen=True)
class Coordinators:
    """Who coordinates what, at one moment: each broker's count, each partition's leader, and how many partitions there are."""

    counts: Mapping[int, int]
    leaders: Mapping[int, int]
    partitions: int

    def classify_groups(self, groups: Collection[str]) -> dict[GroupClass, list[str]]:
        """The groups of each class, by name; every group is in one."""
        brokers = defaultdict(set)
        for broker, count in self.counts.items():
            brokers[count].add(broker)
        used = tuple(brokers.items())
        groups_by_class: dict[GroupClass, list[str]] = {group_class: [] for group_class in GroupClass}
        for group in sorted(groups):
            number = hash_group(group)
            home = number % self.partitions
            homes = {count: number % count for count, _ in used}
            accepted = [homes[count] for count, broker_ids in used if self.leaders.get(homes[count], -1) in broker_ids]
            stays = all(partition == home for partition in homes.values())
            groups_by_class[_classify_group(accepted, home, stays=stays)].append(group)
        return groups_by_class

    def count_moving_groups(self, groups: Collection[str]) -> Counter[tuple[int, int]]:
        """How many groups of each (old, new) leader a roll moves; old: by the one other count that brokers still use."""
        old = {*self.counts.values()} - {self.partitions}
        numbers = [hash_group(group) for group in groups] if len(old) == 1 else []
        moves = ((number % next(iter(old)), number % self.partitions) for number in numbers)
        return Counter(
            (self.leaders.get(old_partition, -1), self.leaders.get(new_partition, -1))
            for old_partition, new_partition in moves
            if old_partition != new_partition
        )

    def list_restarted_brokers(self) -> frozenset[int]:
        """Brokers that use the topic's own count already."""
        return frozenset(broker for broker, count in self.counts.items() if count == self.partitions)


def _classify_group(accepted: Sequence[int], home: int, *, stays: bool) -> GroupClass:
    if stays and accepted:
        return GroupClass.INVARIANT
    if len(accepted) != 1:
        return GroupClass.SPLIT if accepted else GroupClass.BLACKOUT
    return GroupClass.MOVED if accepted[0] == home else GroupClass.REDIRECT


def forecast_roll(
    moving: Mapping[tuple[int, int], int], restarted: Collection[int], order: Sequence[int]
) -> list[tuple[int, int]]:
    """After each restart of a roll: how many groups two brokers accept, and how many none does.

    If every partition's leader leads it again afterwards. `moving`: as `Coordinators.moving`; `restarted`: brokers with the
    topic's count already.
    """
    done, states = set(restarted), list[tuple[int, int]]()
    for broker in order:
        done.add(broker)
        split = sum(groups for (old, new), groups in moving.items() if new in done and old not in done)
        blackout = sum(groups for (old, new), groups in moving.items() if old in done and new not in done)
        states.append((split, blackout))
    return states


def find_calmest_order(
    moving: Mapping[tuple[int, int], int], restarted: Collection[int], remaining: Collection[int]
) -> tuple[int, ...]:
    """An order of restarts with few groups between two coordinators; each next broker adds the fewest. Not proven to be the best."""
    between: dict[int, Counter[int]] = defaultdict(Counter)
    for (old, new), groups in moving.items():
        if old != new:
            between[old][new] += groups
            between[new][old] += groups
    done, order = set(restarted), list[int]()
    while rest := sorted(set(remaining) - set(order)):
        added = {broker: sum(-many if other in done else many for other, many in between[broker].items()) for broker in rest}
        order.append(min(rest, key=lambda broker: (added[broker], broker)))
        done.add(order[-1])
    return tuple(order)


def list_coordinator_topics(view: ClusterView) -> Iterator[tuple[CoordinatorTopic, Counts | None, int]]:
    """The topics that exist, with each broker's possible counts and the topic's own. Nothing if the partitions were not read."""
    partitions = Counter(partition.topic for partition in view.partitions or ())
    for topic in TOPICS:
        if count := partitions[topic.name]:
            yield topic, None if view.coordinators is None else view.coordinators.counts.get(topic.name, {}), count


def judge_topic(
    view: ClusterView,
    topic: CoordinatorTopic,
    counts: Counts | None,
    count: int,
    brokers: Collection[int],
    *,
    configured: Mapping[int, int] | None = None,
) -> CountVerdict:
    """As `judge_counts`, of one of the `topics`. If a broker uses another count, it says what that does to the groups, as far as known."""
    verdict = judge_counts(counts, count, brokers, configured, topic)
    if verdict.agreement is not Agreement.BROKEN or topic is not OFFSETS:
        return verdict
    *others, last = verdict.reasons
    more = filter(None, (last.text, _describe_effect(view, counts or {}, count), _describe_offer(view, counts or {}, count)))
    return replace(verdict, reasons=(*others, replace(last, text=" ".join(more))))


def _describe_offer(view: ClusterView, counts: Counts, count: int) -> str:
    """The DAG that completes an expansion which no broker has noticed; empty if brokers differ already."""
    distinct_counts = {counts.get(broker, frozenset()) for broker in view.brokers}
    if len(distinct_counts) != 1 or count in next(iter(distinct_counts)):
        return ""
    return f"No broker has restarted since: {_describe_completion(view, count)}"


def brokers_agree(view: ClusterView, excused_brokers: Collection[int] = (), only_topic: CoordinatorTopic | None = None) -> Gate:
    """K01, K77: every broker uses the topics' own counts, so that no restart moves a coordinator; K02 if that is not known.

    Counts that answers do not distinguish are no reason to wait, if the topic has as many partitions as our note says: leaders may
    be too regular, or too few, in the middle of a roll. Preflight names them. `excused_brokers` need not answer. `only_topic`: ask
    about this topic alone.
    """
    return combine_gates(
        (answers_agree(view, excused_brokers, only_topic), topics_not_expanded(view, excused_brokers, only_topic))
    )


def answers_agree(view: ClusterView, excused_brokers: Collection[int] = (), only_topic: CoordinatorTopic | None = None) -> Gate:
    """`brokers_agree` by the brokers' answers alone: regular leaders may hide that a topic has more partitions than brokers use."""
    if view.partitions is None:
        return not_yet(could_not_read("the partitions"))
    return combine_gates(
        _brokers_agree_on(view, topic, counts, count, excused_brokers)
        for topic, counts, count in list_coordinator_topics(view)
        if only_topic in {None, topic}
    )


def topics_not_expanded(
    view: ClusterView, excused_brokers: Collection[int] = (), only_topic: CoordinatorTopic | None = None
) -> Gate:
    """K01, K77: no topic has another count than our note, unless the answers prove that brokers use it.

    Not judged while the answers alone say enough, or are not known: `answers_agree` reports that.
    """
    before = _noted_counts(view)
    return combine_gates(
        _refuse_expanded_topic(view, topic, before[topic.name], count)
        for topic, counts, count in list_coordinator_topics(view)
        if only_topic in {None, topic}
        and before.get(topic.name, count) != count
        and judge_counts(counts, count, _brokers_to_judge(view, counts or {}, excused_brokers), topic=topic).agreement
        is Agreement.DEGENERATE
    )


def _noted_counts(view: ClusterView) -> Mapping[str, int]:
    return (view.zk.partition_counts if view.zk else None) or {}


def _refuse_expanded_topic(view: ClusterView, topic: CoordinatorTopic, noted: int, count: int) -> Gate:
    text = (
        f"{topic.name} had {count_of(noted, 'partition')} when kmigrate last verified it, and has {count} now. The brokers' answers fit both numbers:"
        " a broker that restarts may compute other coordinators than the rest."
    )
    offer = f" If none has restarted since, {_describe_completion(view, count)}" if topic is OFFSETS else ""
    return never(Reason(topic.code, text + offer))


def _describe_completion(view: ClusterView, count: int) -> str:
    return f"the DAG kmigrate_offsets_topic__{view.name} completes this without loss (`partitions`: {count})."


def counts_noted(view: ClusterView) -> Gate:
    """K02: kmigrate has noted the topics' counts, without which a hidden expansion cannot be seen.

    A migration that an older release began has no note. It goes on if the answers prove what all brokers use: nothing is hidden then, and
    the next restart notes it.
    """
    if view.zk is None:
        return not_yet(could_not_read("ZooKeeper"))
    missing = view.zk.partition_counts is None
    if missing and view.coordinators is None:
        return not_yet(NOT_ASKED)
    missing = missing and not _all_proven(view)
    text = "kmigrate has not noted how many partitions the topics of coordinators had when this migration began."
    return not_yet_if(missing, Reason("K02", text))


def _all_proven(view: ClusterView) -> bool:
    """Whether every broker certainly uses the count that each topic of coordinators has."""
    verdicts = (judge_counts(counts, count, view.brokers, topic=topic) for topic, counts, count in list_coordinator_topics(view))
    return view.partitions is not None and all(verdict.agreement is Agreement.PROVEN for verdict in verdicts)


def counts_to_note(view: ClusterView) -> dict[str, int]:
    """The topics' counts that belong into our note: of topics that are not in it yet, and where all brokers certainly use another."""
    before = _noted_counts(view)
    return {
        topic.name: count
        for topic, counts, count in list_coordinator_topics(view)
        if topic.name not in before
        or (before[topic.name] != count and judge_counts(counts, count, view.brokers, topic=topic).agreement is Agreement.PROVEN)
    }


def groups_known(view: ClusterView) -> Gate:
    """K02: every broker has listed its groups, and has reported which of all groups it coordinates."""
    if view.coordinators is None or view.hosted is None:
        return not_yet(NOT_ASKED)
    unread = [reason for reason in view.unknowns if reason.cause is Cause.UNREAD_COORDINATORS]
    missing = sorted(view.brokers.keys() - view.hosted.keys())
    text = f"Brokers {join_ids(missing)} did not report the groups that they coordinate."
    return not_yet_if(missing or unread, *((Reason("K02", text),) if missing else ()), *unread)


NOT_ASKED = Reason("K02", "The brokers' groups and coordinators were not read.", cause=Cause.COORDINATORS_NOT_ASKED)


def find_hosts(view: ClusterView, group: str) -> dict[int, HostedGroup]:
    """The brokers that report to be the group's coordinator, ascending, with what each has of it."""
    return {broker: groups[group] for broker, groups in sorted((view.hosted or {}).items()) if group in groups}


def count_members(view: ClusterView, groups: Iterable[str]) -> dict[str, int]:
    """Those of these groups that have members, with the number of members at all their coordinators."""
    members_by_group = {group: sum(copy.members for copy in find_hosts(view, group).values()) for group in groups}
    return {group: members for group, members in members_by_group.items() if members}


def group_by_coordinator(view: ClusterView, groups: Iterable[str]) -> dict[int, list[str]]:
    """Broker -> those of these groups that it alone coordinates."""
    groups_by_broker: dict[int, list[str]] = {}
    for group in sorted(groups):
        match list(find_hosts(view, group)):
            case [broker]:
                groups_by_broker.setdefault(broker, []).append(group)
    return groups_by_broker


def _brokers_agree_on(
    view: ClusterView, topic: CoordinatorTopic, counts: Counts | None, count: int, excused_brokers: Collection[int]
) -> Gate:
    if counts is None:
        return not_yet(
            Reason("K02", f"Which count of {topic.name} each broker uses was not read.", cause=Cause.COORDINATORS_NOT_ASKED)
        )
    brokers = _brokers_to_judge(view, counts, excused_brokers)
    verdict = judge_topic(view, topic, counts, count, brokers)
    if verdict.agreement is Agreement.BROKEN:
        return never(*verdict.reasons)
    return not_yet(*verdict.reasons) if verdict.agreement is Agreement.UNKNOWN and brokers else MET


def _brokers_to_judge(view: ClusterView, counts: Counts, excused_brokers: Collection[int]) -> set[int]:
    return {n for n, broker in view.brokers.items() if broker.named and (n not in excused_brokers or counts.get(n))}


def decide_agreement(view: ClusterView) -> Decision:
    """Done once every broker uses the topics' own counts; refused if one certainly does not, naming the groups that suffer."""
    gate = brokers_agree(view)
    if not gate.met:
        return refuse_or_wait(gate)
    existing = list(list_coordinator_topics(view))
    if not existing:
        return Done("No coordinator exists yet.")
    described_counts = " and the ".join(f"{count_of(count, 'partition')} of {topic.name}" for topic, _, count in existing)
    unsure = (reason.text for row in existing for reason in judge_topic(view, *row, view.brokers.keys()).reasons)
    return Done(" ".join((f"Every broker computes coordinators with the {described_counts}.", *unsure)))


def _describe_effect(view: ClusterView, counts: Counts, count: int) -> str:
    """The groups of each class now, and a roll as it would go from here; empty if that is not known."""
    coordinators, groups = _likely_coordinators(view, counts, count), view.coordinators.groups if view.coordinators else ()
    if coordinators is None or not groups:
        return ""
    classes = coordinators.classify_groups(groups)
    untouched = classes.pop(GroupClass.INVARIANT)
    described_classes = [f"{len(names)} {kind}: {summarize(names)}" for kind, names in classes.items() if names]
    counted = "; ".join([*described_classes, f"{len(untouched)} {GroupClass.INVARIANT}"])
    return f"Of {count_of(len(groups), 'consumer group')}: {counted}.{_describe_roll_ahead(coordinators, groups)}"


def _likely_coordinators(view: ClusterView, counts: Counts, count: int) -> Coordinators | None:
    """Each broker's count: the topic's own, or the highest that explains its answers; None if one did not answer.

    Counts that explain the same answers name the same coordinators, so which broker accepts a group does not depend on the choice.
    """
    if not all(counts.get(broker) for broker in view.brokers):
        return None
    leaders = {partition.index: partition.leader for partition in view.partitions or () if partition.topic == OFFSETS.name}
    return Coordinators(
        {broker: count if count in possible else max(possible) for broker, possible in counts.items()}, leaders, count
    )


def _describe_roll_ahead(coordinators: Coordinators, groups: Collection[str]) -> str:
    moving, done = coordinators.count_moving_groups(groups), coordinators.list_restarted_brokers()
    order = find_calmest_order(moving, done, coordinators.counts.keys() - done)
    if not moving:
        return ""
    split, blackout = map(max, zip(*forecast_roll(moving, done, order), strict=True))
    return (
        f" Once all have restarted, {count_of(moving.total(), 'group is', 'groups are')} in partitions without their offsets. On the way up to {split} are accepted "
        f"twice and up to {blackout} by no broker, if brokers restart in the order {join_ids(order)}."
    )
