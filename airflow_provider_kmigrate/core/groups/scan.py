"""Scans and checks a consumer group from two observations: its state, and what speaks against moving it.

Health means that offsets advance. Owner znodes prove nothing: starving consumers keep theirs (measured). Only the second
observation, some seconds after the first, shows whether a group really works. The check before a move takes both observations as
far apart as the group's consumers take between two commits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from airflow_provider_kmigrate.core.cluster_state.decision import Decision, Done, Refuse, Wait
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.cluster_state.spec import GroupSpec
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.groups.expiry import describe_expiry
from airflow_provider_kmigrate.core.groups.members import format_partitions, unowned_partitions, unread_parts, unread_reasons
from airflow_provider_kmigrate.core.groups.offsets import (
    describe_offsets_beyond_logs,
    describe_pending_resets,
    partitions_with_larger_offset,
    unreadable_offsets,
)
from airflow_provider_kmigrate.core.member.assignors import Assigned, Frozen, Strategy, assign, topics_of
from airflow_provider_kmigrate.core.member.group_seen import GroupSeen, MemberKind, Store, ZkGroup
from airflow_provider_kmigrate.core.member.registration import Flaw, Mode, Registration, Unreadable, consumer_of
from airflow_provider_kmigrate.core.preflight.findings import PreflightFinding, Severity, blocks, unknown, warns
from airflow_provider_kmigrate.core.shared.text import count_of, join_ids, summarize


def is_other_wave(requested_wave: object, wave: int) -> bool:
    """True if a run for one wave (None: for all) leaves out an item of `wave`; wave 0 belongs to every wave."""
    return requested_wave is not None and bool(wave) and str(requested_wave) != str(wave)


def not_in_file_reasons(groups: Iterable[GroupSpec], wave: object, names: Iterable[str]) -> tuple[Reason, ...]:
    """F09 for groups and waves that a run names and the cluster file does not have: such a run would do nothing and succeed."""
    groups = tuple(groups)
    waves, group_names = sorted({group.wave for group in groups}), sorted(group.name for group in groups)
    unknown_names = [f"group {name}" for name in sorted(set(names) - set(group_names))]
    unknown_names += [f"wave {wave}"] if wave is not None and str(wave) not in map(str, waves) else []
    if not unknown_names:
        return ()
    text = f"The cluster file has no {', no '.join(unknown_names)}; it has the groups {', '.join(group_names)} and the waves {join_ids(waves)}."
    return (Reason("F09", text),)


#: Seconds between two commits of a ZooKeeper consumer (auto.commit.interval.ms); observations closer together cannot prove that a group has stopped.
COMMIT_INTERVAL: Final = 60.0
#: Seconds after which a ZooKeeper consumer has rebalanced or given up (it tries for some 8 s): unowned partitions then stay so.
REBALANCE: Final = 15.0
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]+")
_MODES: Final = {None, b"", b"kafka", b"zookeeper"}
_MINIMAL: Final = 2  # threads from which strategies differ


class GroupSituation(StrEnum):
    """A group's state between ZooKeeper's coordination and Kafka's."""

    ZOOKEEPER = "zookeeper"
    MIXED = "mixed"  # ZooKeeper consumers and migrating members
    MIGRATING = "migrating"  # all of them migrate, and ZooKeeper coordinates
    IN_KAFKA_MODE = "in kafka mode"  # all of them migrate, and Kafka coordinates
    MIXED_WITH_KAFKA = "mixed with kafka"  # Kafka consumers beside others
    KAFKA = "kafka"
    EMPTY = "empty"
    FROZEN = "frozen"  # an unreadable registration stops every ZooKeeper consumer
    UNKNOWN = "unknown"  # a side did not answer


@dataclass(frozen=True, slots=True)
class TwoObservations:
    """An observation, and one `gap` seconds before it.

    `settings`: of topics, as from `clients.group_reads.topic_settings`; None: unread. `starts`: the first offsets of the logs
    that the group reads; None: not asked for. `taken_at`: of `now`, in seconds since the epoch; `retention`: seconds for which brokers keep
    offsets of groups without members; None: unread.
    """

    now: GroupSeen
    before: GroupSeen | None = None
    gap: float = 0.0
    settings: Mapping[str, Mapping[str, str]] | None = None
    starts: Mapping[TopicPartition, int] | None = None
    taken_at: float = 0.0
    retention: float | None = None


@dataclass(frozen=True, slots=True)
class GroupScan:
    """The report on one group. `lag`: records behind, over partitions whose position and end are known; None if there are none.

    `advanced`: how many partitions' offsets moved between the two observations, by store; empty if there was only one.
    `last_commit`: in ZooKeeper, in seconds since the epoch; None: there is none, or it was not read. `breaks`: at which step of the cluster's
    migration it stops to work as it is; empty: at none, or that is not known.
    """

    seen: GroupSeen
    situation: GroupSituation
    lag: int | None = None
    advanced: Mapping[str, int] = field(default_factory=dict)
    findings: tuple[PreflightFinding, ...] = ()
    last_commit: float | None = None
    breaks: str = ""

    @property
    def blocked(self) -> bool:
        """Whether a finding blocks the group's move."""
        return any(finding.severity is Severity.BLOCK for finding in self.findings)


def scan_group(observations: TwoObservations) -> GroupScan:
    """Every finding at once, the most severe first."""
    ordered_findings = sorted(
        (finding for check in _CHECKS for finding in check(observations)),
        key=lambda scan_finding: list(Severity).index(scan_finding.severity),
    )
    behind = lag_by_partition(observations.now)
    return GroupScan(
        observations.now,
        situation_of(observations.now),
        sum(behind.values()) if behind else None,
        {str(store): len(moved) for store, moved in _advanced_partitions(observations).items()}
        if observations.before is not None
        else {},
        tuple(ordered_findings),
        find_last_commit(observations.now),
        describe_break(observations),
    )


def find_last_commit(observed: GroupSeen) -> float | None:
    """When an offset was last written in ZooKeeper, in seconds since the epoch by its clock; None: never, or it was not read."""
    return max((stored.changed_at for stored in observed.zk.offsets.values()), default=None) if observed.zk else None


def describe_break(observations: TwoObservations) -> str:
    """At which step of the cluster's migration a group stops to work as it is; empty: at none, or ZooKeeper was not read.

    Kafka 3.9: a broker in KRaft mode refuses OffsetCommit version 0 (`KafkaApis.commitOffsetsToZookeeper`); ZooKeeper consumers starve once no
    broker is registered in ZooKeeper (measured).
    """
    zk = observations.now.zk
    if zk is None:
        return ""
    if zk.registrations or zk.progress:
        return "last broker into KRaft mode"
    return "first broker into KRaft mode" if _describe_unregistered_commits(observations) else ""


def _describe_unregistered_commits(observations: TwoObservations) -> str:
    """When a client that is not registered committed in ZooKeeper; empty if none did.

    Between two observations without a member that is certain, whatever our clock says of the commit's age.
    """
    now, before = observations.now, observations.before
    if now.zk is None or now.zk.registrations or now.zk.progress:
        return ""
    if now.zk.unregistered_s is not None:
        return f"{now.zk.unregistered_s:.0f} s ago"
    if before is None or before.zk is None or before.zk.registrations or before.zk.progress:
        return ""
    commits = find_last_commit(now), find_last_commit(before)
    return f"within {observations.gap:.0f} s" if (commits[0] or 0.0) > (commits[1] or 0.0) else ""


def situation_of(observed: GroupSeen) -> GroupSituation:
    """The group's state in one word."""
    if observed.zk is not None and any(isinstance(entry, Unreadable) for entry in observed.zk.registrations.values()):
        return GroupSituation.FROZEN
    if observed.members is None or observed.zk is None:
        return GroupSituation.UNKNOWN
    kinds = {member.kind for member in observed.members}
    if MemberKind.KAFKA in kinds:
        return GroupSituation.KAFKA if len(kinds) == 1 else GroupSituation.MIXED_WITH_KAFKA
    if kinds == {MemberKind.MIGRATING}:
        return GroupSituation.IN_KAFKA_MODE if observed.zk.mode is Mode.KAFKA else GroupSituation.MIGRATING
    return GroupSituation.EMPTY if not kinds else GroupSituation.MIXED if len(kinds) > 1 else GroupSituation.ZOOKEEPER


def lag_by_partition(observed: GroupSeen) -> dict[TopicPartition, int]:
    """Records behind, of every wanted partition whose position and end are known."""
    at, ends = observed.positions, observed.ends or {}
    return {
        partition: max(0, ends[partition] - at[partition])
        for partition in wanted_partitions(observed)
        if partition in at and partition in ends
    }


def matching_strategies(zk: ZkGroup) -> frozenset[Strategy] | None:
    """The strategies that would give its ZooKeeper consumers just what they own; None if no assignment can be computed."""
    computed = {strategy: _compute_assignment(zk, strategy) for strategy in Strategy}
    assignments = {strategy: assignment for strategy, assignment in computed.items() if isinstance(assignment, Assigned)}
    if len(assignments) < len(computed):
        return None
    return frozenset(strategy for strategy, assignment in assignments.items() if dict(assignment.owners) == dict(zk.owners))


def _compute_assignment(zk: ZkGroup, strategy: Strategy) -> Assigned | Frozen:
    topics: dict[str, list[int]] = {}
    for topic_partition in zk.partitions:
        topics.setdefault(topic_partition.topic, []).append(topic_partition.partition)
    return assign(strategy, zk.registrations, topics)


def wanted_partitions(observed: GroupSeen) -> frozenset[TopicPartition]:
    """Partitions that a member of either side subscribes to or holds."""
    held_by_members = (member.partitions for member in observed.kafka.members) if observed.kafka else ()
    return (observed.zk.partitions if observed.zk else frozenset()).union(*held_by_members)


def _advanced_partitions(observations: TwoObservations) -> dict[Store, frozenset[TopicPartition]]:
    """Partitions whose offset moved between the observations; without an earlier one none."""
    now, before = observations.now, observations.before or GroupSeen(observations.now.name)
    zookeeper, kafka = (
        partitions_with_larger_offset(now.zookeeper_offsets, before.zookeeper_offsets),
        partitions_with_larger_offset(now.committed or {}, before.committed or {}),
    )
    return {Store.ZOOKEEPER: zookeeper, Store.KAFKA: kafka}


def _readable_registrations(observed: GroupSeen) -> Iterator[tuple[str, Registration]]:
    entries = observed.zk.registrations if observed.zk else {}
    return ((name, entry) for name, entry in sorted(entries.items()) if isinstance(entry, Registration))


def _check_all_read(observations: TwoObservations) -> Iterator[PreflightFinding]:
    """K30 for what was not read. Without an earlier observation, or a log's end, nothing shows whether a group works."""
    now, before = observations.now, observations.before
    if missing := unread_parts(now):
        yield blocks("K30", f"not read: {', '.join(missing)}")
    elif without_end := wanted_partitions(now) - (now.ends or {}).keys():
        yield unknown("K30", f"not read: the end of {format_partitions(without_end)}, so whether records wait there")
    if before is not None and (missing_before := unread_parts(before)):
        yield unknown("K30", f"not read at the first observation: {', '.join(missing_before)}, so whether its offsets advance")


def _check_registrations(observations: TwoObservations) -> Iterator[PreflightFinding]:
    for name, entry in sorted((observations.now.zk.registrations if observations.now.zk else {}).items()):
        if isinstance(entry, Unreadable):
            path = f"/consumers/{observations.now.name}/ids/{name}"
            pykafka = entry.flaw is Flaw.NOT_JSON and _TOPIC.fullmatch(entry.content)
            yield blocks("K31", f"{path}: {entry}{', as pykafka registers' if pykafka else ''}")


def _check_subscriptions(observations: TwoObservations) -> Iterator[PreflightFinding]:
    topics = sorted({partition.topic for partition in observations.now.zk.partitions}) if observations.now.zk else []
    for name, entry in _readable_registrations(observations.now):
        selected = topics_of(entry, topics)
        if isinstance(selected, Unreadable):
            yield blocks("K33", f"{name} has an unreadable subscription: {selected.content!r}")
        elif not set(topics).intersection(selected):
            twice = ", escaped twice" if "\\\\" in (entry.wildcard or "") else ""
            yield warns("K33", f"{name} selects no topic that exists: {summarize(map(repr, entry.subscription))}{twice}")


def _check_mode(observations: TwoObservations) -> Iterator[PreflightFinding]:
    zk = observations.now.zk
    if zk is None:
        return
    data = zk.mode_data
    if data not in _MODES:
        meant = (data or b"").strip().lower() == b"kafka"
        yield (blocks if meant else warns)("K35", f"migration/mode holds {(data or b'')[:40]!r}")
    if zk.requested_mode is Mode.KAFKA and (unable_members := observations.now.members_of_kind(MemberKind.ZOOKEEPER)):
        yield warns(
            "K45", f"the mode is kafka, but these members cannot follow it: {summarize(member.name for member in unable_members)}"
        )


def _check_pending_resets(observations: TwoObservations) -> Iterator[PreflightFinding]:
    """K46 for recorded resets. They block without a migrating member: only such a member applies them, and may join weeks later."""
    if waiting := describe_pending_resets(observations.now):
        level = warns if observations.now.members_of_kind(MemberKind.MIGRATING) else blocks
        yield level("K46", f"recorded offset resets that no member has applied: {waiting}")


def _check_assignment(observations: TwoObservations) -> Iterator[PreflightFinding]:
    """A stable assignment under ZooKeeper shows its strategy; with one thread all strategies agree."""
    zk = observations.now.zk
    streams = sum(max(entry.subscription.values(), default=0) for _, entry in _readable_registrations(observations.now))
    if zk is None or zk.mode is Mode.KAFKA or streams < _MINIMAL or zk.unowned:
        return
    by_range = _compute_assignment(zk, Strategy.RANGE)
    if isinstance(by_range, Assigned) and dict(by_range.owners) == dict(zk.owners):
        return  # as most groups: the other strategies need not be computed
    fitting = matching_strategies(zk)
    if fitting is None:
        return
    if not fitting:
        yield unknown("K36", "its owners match no assignment strategy that kmigrate knows")
        return
    yield warns("K36", f"its members assign partitions by {' or '.join(sorted(fitting))}")
    assignment = _compute_assignment(zk, Strategy.ROUND_ROBIN)
    if isinstance(assignment, Assigned) and assignment.ties:
        yield warns("K36", f"partitions with one hash: {summarize(f'{a.name} and {b.name}' for a, b in assignment.ties)}")


def _check_kafka_commits(observations: TwoObservations) -> Iterator[PreflightFinding]:
    """Kafka's offset of a partition that a ZooKeeper consumer owns can move by that member only: it is the only reader."""
    before, held_by_zookeeper = observations.before, observations.now.partitions_held_by(MemberKind.ZOOKEEPER)
    if before is None or before.committed is None:
        return
    first_commits = (observations.now.committed or {}).keys() - before.committed.keys()
    moved = _advanced_partitions(observations)[Store.KAFKA] | first_commits
    if committing := held_by_zookeeper & before.partitions_held_by(MemberKind.ZOOKEEPER) & moved:
        text = f"ZooKeeper consumers commit to Kafka: {format_partitions(committing)} moved there within {observations.gap:.0f} s"
        yield blocks("K37", text)


def _check_unregistered_commits(observations: TwoObservations) -> Iterator[PreflightFinding]:
    """K95 for commits in ZooKeeper of clients that are not registered: they break when the last broker leaves ZooKeeper mode."""
    if when := _describe_unregistered_commits(observations):
        yield blocks("K95", f"no member is registered, and an offset in ZooKeeper was committed {when}")


def _check_double_reading(observations: TwoObservations) -> Iterator[PreflightFinding]:
    observed = observations.now
    consumers = observed.members_of_kind(MemberKind.KAFKA)
    if consumers and observed.zk is not None and observed.zk.registrations and observed.zk.mode is Mode.ZOOKEEPER:
        names = summarize(sorted(f"{member.name} on {member.host}" for member in consumers))
        yield blocks(
            "K38", f"Kafka consumers while ZooKeeper coordinates {count_of(len(observed.zk.registrations), 'member')}: {names}"
        )


def _check_topic_settings(observations: TwoObservations) -> Iterator[PreflightFinding]:
    if observations.now.zk is None or not observations.now.members_of_kind(MemberKind.ZOOKEEPER):
        return
    topics = sorted({partition.topic for partition in observations.now.zk.partitions})
    settings = observations.settings or {}
    if unread := [topic for topic in topics if topic not in settings]:
        yield unknown("K40", f"compression and down-conversion are unknown for {summarize(unread)}")
    unsupported = {topic: why for topic in topics if topic in settings and (why := _describe_unsupported(settings[topic]))}
    if unsupported:
        yield warns("K40", summarize(f"{topic} has {why}" for topic, why in unsupported.items()))


def _describe_unsupported(settings: Mapping[str, str]) -> str:
    bad = (("compression.type", "zstd"), ("message.downconversion.enable", "false"))
    return " and ".join(f"{name}={value}" for name, value in bad if settings.get(name) == value)


def _check_unowned(observations: TwoObservations) -> Iterator[PreflightFinding]:
    now, then = (
        _ownerless_partitions(observations.now),
        _ownerless_partitions(observations.before) if observations.before else frozenset(),
    )
    if stayed := now & then:
        level = blocks if observations.gap >= REBALANCE else warns
        yield level("K44", f"no member owned {format_partitions(stayed)} in two observations, {observations.gap:.0f} s apart")
    elif now:
        yield warns("K44", f"no member owns {format_partitions(now)} now")


def _ownerless_partitions(observed: GroupSeen) -> frozenset[TopicPartition]:
    """Partitions without an owner; a group without members misses none."""
    return unowned_partitions(observed) if observed.members else frozenset()


def _check_offsets(observations: TwoObservations) -> Iterator[PreflightFinding]:
    observed, ends = observations.now, observations.now.ends or {}
    if broken := unreadable_offsets(observed):
        yield blocks(
            "K42",
            summarize(
                f"offsets/{topic_partition.topic}/{topic_partition.partition} in ZooKeeper: {flaw}"
                for topic_partition, flaw in broken
            ),
        )
    stores = {"ZooKeeper": observed.zookeeper_offsets, "Kafka": observed.committed or {}}
    for store, store_offsets in stores.items():
        if past := describe_offsets_beyond_logs(store_offsets, ends):
            yield blocks("K42", f"committed in {store} beyond the log's end: {past}")

    at, starts = observed.positions, observations.starts or {}
    if past_retention := sorted(
        partition for partition in wanted_partitions(observed) if partition in at and at[partition] < starts.get(partition, 0)
    ):
        deleted = summarize(
            f"{partition.name} at {at[partition]}, the log begins at {starts[partition]}" for partition in past_retention
        )
        yield blocks("K42", f"its records are no longer in the log: {deleted}")


def _check_expiry(observations: TwoObservations) -> Iterator[PreflightFinding]:
    """K96 for offsets that ZooKeeper keeps, and that Kafka would remove before the application runs again, if it is as idle as until now."""
    if text := describe_expiry(observations.now, observations.taken_at, observations.retention):
        yield unknown("K96", text) if observations.retention is None else warns("K96", text)


def _check_rebalancing(observations: TwoObservations) -> Iterator[PreflightFinding]:
    """A rebalance ends by itself; one that both observations show does not."""
    now, before = observations.now.kafka, observations.before.kafka if observations.before else None
    if now is not None and not now.stable:
        is_in_both = before is not None and not before.stable
        level, when_text = (blocks, " in both observations") if is_in_both else (warns, "")
        yield level("K52", f"its group in Kafka is in state {now.state}{when_text}")


def _check_orphaned_owners(observations: TwoObservations) -> Iterator[PreflightFinding]:
    zk = observations.now.zk
    if zk is None or (zk.mode is Mode.KAFKA and zk.registrations):
        return
    members = zk.registrations.keys() | zk.progress.keys()
    if orphaned := [partition for partition, thread in zk.owners.items() if consumer_of(thread) not in members]:
        yield warns(
            "K52",
            f"{count_of(len(orphaned), 'partition has', 'partitions have')} an owner that is not a member: {format_partitions(orphaned)}",
        )


def _check_starvation(observations: TwoObservations) -> Iterator[PreflightFinding]:
    """Partitions with records waiting at both observations, whose offset moved in neither store between them."""
    if observations.before is None or not observations.now.members:
        return
    moved = {partition for store in _advanced_partitions(observations).values() for partition in store}
    then, now = lag_by_partition(observations.before), lag_by_partition(observations.now)
    still = sorted(partition for partition, lag in now.items() if lag and then.get(partition) and partition not in moved)
    before, ends = observations.before.ends or {}, observations.now.ends or {}
    idle = [partition for partition in still if ends.get(partition) == before.get(partition)]
    grown = [partition for partition in still if partition not in idle]
    for partitions, level in ((grown, blocks if observations.gap >= COMMIT_INTERVAL else unknown), (idle, unknown)):
        if partitions:
            behind = summarize(f"{partition.name} {now[partition]} behind" for partition in partitions)
            why = "records wait" if partitions is grown else "records or transaction markers wait at the end of idle logs"
            yield level("K44", f"{why} and no offset moved in {observations.gap:.0f} s: {behind}")


_CHECKS: Final[Iterable[Callable[[TwoObservations], Iterator[PreflightFinding]]]] = (
    *(
        _check_all_read,
        _check_registrations,
        _check_subscriptions,
        _check_mode,
        _check_pending_resets,
        _check_assignment,
        _check_kafka_commits,
        _check_unregistered_commits,
        _check_double_reading,
    ),
    *(_check_topic_settings, _check_unowned, _check_offsets, _check_expiry),
    *(_check_rebalancing, _check_orphaned_owners, _check_starvation),
)


Observed = tuple[GroupSeen, float]  # the group, and when it was observed, in seconds


def complete_observation(observed: GroupSeen | None, at: float, group: GroupSpec) -> Observed | None:
    """The observation, if nothing in it was unknown."""
    return None if observed is None or unread_reasons(observed, group.name, ends=True) else (observed, at)


def wait_before_judging(gap: float, group: GroupSpec) -> Wait | None:
    """What to wait for before two complete observations can be judged; None if they can. `gap`: seconds between them."""
    if gap >= group.commit_within:
        return None
    text = f"Group {group.name} is observed again in {group.commit_within - gap:.0f} s."
    return Wait((Reason("T01", text),), healthy=True)


def subscribed_topics(observed: GroupSeen) -> set[str]:
    """The topics whose settings the judgement needs."""
    return {partition.topic for partition in observed.zk.partitions} if observed.zk else set()


def judge_group(observations: TwoObservations, group: GroupSpec) -> Decision:
    """Refused if a finding blocks; every other finding is reported."""
    group_scan = scan_group(observations)
    blocking = tuple(finding.reason for finding in group_scan.findings if finding.severity is Severity.BLOCK)
    if blocking:
        return Refuse(blocking)
    notes = " ".join(map(str, group_scan.findings))
    return Done(f"Group {group.name} ({group_scan.situation}) may be moved. {notes or 'No objection was found.'}")
