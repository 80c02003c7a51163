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

from airflow_provider_kmigrate.core.cluster import GroupSpec
from airflow_provider_kmigrate.core.coordination.assignors import Assigned, Frozen, Strategy, assign, topics_of
from airflow_provider_kmigrate.core.coordination.group_seen import GroupSeen, MemberKind, Store, ZkGroup
from airflow_provider_kmigrate.core.coordination.registration import Flaw, Mode, Registration, Unreadable, consumer_of
from airflow_provider_kmigrate.core.decision import Decision, Done, Refuse, Wait
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.groups.members import places, unowned, unread, unread_parts
from airflow_provider_kmigrate.core.groups.offsets import beyond_logs, larger, pending, unreadable
from airflow_provider_kmigrate.core.model import Reason
from airflow_provider_kmigrate.core.preflight.findings import PreflightFinding, Severity, blocks, unknown, warns
from airflow_provider_kmigrate.core.text import join_ids, summarize


def other_wave(asked: object, wave: int) -> bool:
    """True if a run for one wave (None: for all) leaves out an item of `wave`; wave 0 belongs to every wave."""
    return asked is not None and bool(wave) and str(asked) != str(wave)


def not_in_file(groups: Iterable[GroupSpec], wave: object, names: Iterable[str]) -> tuple[Reason, ...]:
    """F09 for groups and waves that a run names and the cluster file does not have: such a run would do nothing and succeed."""
    groups = tuple(groups)
    waves, known = sorted({group.wave for group in groups}), sorted(group.name for group in groups)
    unknown = [f"group {name}" for name in sorted(set(names) - set(known))]
    unknown += [f"wave {wave}"] if wave is not None and str(wave) not in map(str, waves) else []
    if not unknown:
        return ()
    text = (
        f"The cluster file has no {', no '.join(unknown)}; it has the groups {', '.join(known)} and the waves {join_ids(waves)}."
    )
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
    that the group reads; None: not asked for.
    """

    now: GroupSeen
    before: GroupSeen | None = None
    gap: float = 0.0
    settings: Mapping[str, Mapping[str, str]] | None = None
    starts: Mapping[TopicPartition, int] | None = None


@dataclass(frozen=True, slots=True)
class GroupScan:
    """The report on one group. `lag`: records behind, over partitions whose position and end are known; None if there are none.

    `advanced`: how many partitions' offsets moved between the two observations, by store; empty if there was only one.
    """

    seen: GroupSeen
    situation: GroupSituation
    lag: int | None = None
    advanced: Mapping[str, int] = field(default_factory=dict)
    findings: tuple[PreflightFinding, ...] = ()

    @property
    def blocked(self) -> bool:
        """Whether a finding blocks the group's move."""
        return any(finding.severity is Severity.BLOCK for finding in self.findings)


def scan(observations: TwoObservations) -> GroupScan:
    """Every finding at once, the most severe first."""
    found = sorted(
        (finding for check in _CHECKS for finding in check(observations)), key=lambda one: list(Severity).index(one.severity)
    )
    behind = lags(observations.now)
    return GroupScan(
        observations.now,
        situation_of(observations.now),
        sum(behind.values()) if behind else None,
        {str(store): len(moved) for store, moved in _moved(observations).items()} if observations.before is not None else {},
        tuple(found),
    )


def situation_of(seen: GroupSeen) -> GroupSituation:
    """The group's state in one word."""
    if seen.zk is not None and any(isinstance(entry, Unreadable) for entry in seen.zk.registrations.values()):
        return GroupSituation.FROZEN
    if seen.members is None or seen.zk is None:
        return GroupSituation.UNKNOWN
    kinds = {member.kind for member in seen.members}
    if MemberKind.KAFKA in kinds:
        return GroupSituation.KAFKA if len(kinds) == 1 else GroupSituation.MIXED_WITH_KAFKA
    if kinds == {MemberKind.MIGRATING}:
        return GroupSituation.IN_KAFKA_MODE if seen.zk.mode is Mode.KAFKA else GroupSituation.MIGRATING
    return GroupSituation.EMPTY if not kinds else GroupSituation.MIXED if len(kinds) > 1 else GroupSituation.ZOOKEEPER


def lags(seen: GroupSeen) -> dict[TopicPartition, int]:
    """Records behind, of every wanted partition whose position and end are known."""
    at, ends = seen.positions, seen.ends or {}
    return {where: max(0, ends[where] - at[where]) for where in wanted(seen) if where in at and where in ends}


def strategies(zk: ZkGroup) -> frozenset[Strategy] | None:
    """The strategies that would give its ZooKeeper consumers just what they own; None if no assignment can be computed."""
    computed = {strategy: _assigned(zk, strategy) for strategy in Strategy}
    known = {strategy: found for strategy, found in computed.items() if isinstance(found, Assigned)}
    if len(known) < len(computed):
        return None
    return frozenset(strategy for strategy, found in known.items() if dict(found.owners) == dict(zk.owners))


def _assigned(zk: ZkGroup, strategy: Strategy) -> Assigned | Frozen:
    topics: dict[str, list[int]] = {}
    for where in zk.partitions:
        topics.setdefault(where.topic, []).append(where.partition)
    return assign(strategy, zk.registrations, topics)


def wanted(seen: GroupSeen) -> frozenset[TopicPartition]:
    """Partitions that a member of either side subscribes to or holds."""
    held = (member.partitions for member in seen.kafka.members) if seen.kafka else ()
    return (seen.zk.partitions if seen.zk else frozenset()).union(*held)


def _moved(observations: TwoObservations) -> dict[Store, frozenset[TopicPartition]]:
    """Partitions whose offset moved between the observations; without an earlier one none."""
    now, before = observations.now, observations.before or GroupSeen(observations.now.name)
    zookeeper, kafka = larger(now.in_zookeeper, before.in_zookeeper), larger(now.committed or {}, before.committed or {})
    return {Store.ZOOKEEPER: zookeeper, Store.KAFKA: kafka}


def _registered(seen: GroupSeen) -> Iterator[tuple[str, Registration]]:
    entries = seen.zk.registrations if seen.zk else {}
    return ((name, entry) for name, entry in sorted(entries.items()) if isinstance(entry, Registration))


def _read(observations: TwoObservations) -> Iterator[PreflightFinding]:
    if missing := unread_parts(observations.now):
        yield blocks("K30", f"not read: {', '.join(missing)}")


def _flaws(observations: TwoObservations) -> Iterator[PreflightFinding]:
    for name, entry in sorted((observations.now.zk.registrations if observations.now.zk else {}).items()):
        if isinstance(entry, Unreadable):
            path = f"/consumers/{observations.now.name}/ids/{name}"
            pykafka = entry.flaw is Flaw.NOT_JSON and _TOPIC.fullmatch(entry.content)
            yield blocks("K31", f"{path}: {entry}{', as pykafka registers' if pykafka else ''}")


def _subscriptions(observations: TwoObservations) -> Iterator[PreflightFinding]:
    topics = sorted({where.topic for where in observations.now.zk.partitions}) if observations.now.zk else []
    for name, entry in _registered(observations.now):
        selected = topics_of(entry, topics)
        if isinstance(selected, Unreadable):
            yield blocks("K33", f"{name} has an unreadable subscription: {selected.content!r}")
        elif not set(topics).intersection(selected):
            twice = ", escaped twice" if "\\\\" in (entry.wildcard or "") else ""
            yield warns("K33", f"{name} selects no topic that exists: {summarize(map(repr, entry.subscription))}{twice}")


def _mode(observations: TwoObservations) -> Iterator[PreflightFinding]:
    zk = observations.now.zk
    if zk is None:
        return
    data = zk.mode_data
    if data not in _MODES:
        meant = (data or b"").strip().lower() == b"kafka"
        yield (blocks if meant else warns)("K35", f"migration/mode holds {(data or b'')[:40]!r}")
    if zk.requested_mode is Mode.KAFKA and (stuck := observations.now.of_kind(MemberKind.ZOOKEEPER)):
        yield warns("K45", f"the mode is kafka, but these members cannot follow it: {summarize(member.name for member in stuck)}")


def _resets(observations: TwoObservations) -> Iterator[PreflightFinding]:
    """K46 for recorded resets. They block without a migrating member: only such a member applies them, and may join weeks later."""
    if waiting := pending(observations.now):
        level = warns if observations.now.of_kind(MemberKind.MIGRATING) else blocks
        yield level("K46", f"recorded offset resets that no member has applied: {waiting}")


def _assignment(observations: TwoObservations) -> Iterator[PreflightFinding]:
    """A stable assignment under ZooKeeper shows its strategy; with one thread all strategies agree."""
    zk = observations.now.zk
    streams = sum(max(entry.subscription.values(), default=0) for _, entry in _registered(observations.now))
    if zk is None or zk.mode is Mode.KAFKA or streams < _MINIMAL or zk.unowned:
        return
    fitting = strategies(zk)
    if fitting is None or Strategy.RANGE in fitting:
        return
    if not fitting:
        yield unknown("K36", "its owners match no assignment strategy that kmigrate knows")
        return
    yield warns("K36", f"its members assign partitions by {' or '.join(sorted(fitting))}")
    found = _assigned(zk, Strategy.ROUND_ROBIN)
    if isinstance(found, Assigned) and found.ties:
        yield warns("K36", f"partitions with one hash: {summarize(f'{a.name} and {b.name}' for a, b in found.ties)}")


def _stores(observations: TwoObservations) -> Iterator[PreflightFinding]:
    """Kafka's offset of a partition that a ZooKeeper consumer owns can move by that member only: it is the only reader."""
    before, held = observations.before, observations.now.held_by(MemberKind.ZOOKEEPER)
    if before and (committing := held & before.held_by(MemberKind.ZOOKEEPER) & _moved(observations)[Store.KAFKA]):
        text = f"ZooKeeper consumers commit to Kafka: {places(committing)} moved there within {observations.gap:.0f} s"
        yield warns("K37", text)


def _twice(observations: TwoObservations) -> Iterator[PreflightFinding]:
    seen = observations.now
    consumers = seen.of_kind(MemberKind.KAFKA)
    if consumers and seen.zk is not None and seen.zk.registrations and seen.zk.mode is Mode.ZOOKEEPER:
        names = summarize(sorted(f"{member.name} on {member.host}" for member in consumers))
        yield blocks("K38", f"Kafka consumers while ZooKeeper coordinates {len(seen.zk.registrations)} members: {names}")


def _topics(observations: TwoObservations) -> Iterator[PreflightFinding]:
    if observations.now.zk is None or not observations.now.of_kind(MemberKind.ZOOKEEPER):
        return
    topics = sorted({where.topic for where in observations.now.zk.partitions})
    settings = observations.settings or {}
    if unread := [topic for topic in topics if topic not in settings]:
        yield unknown("K40", f"compression and down-conversion are unknown for {summarize(unread)}")
    unsupported = {topic: why for topic in topics if topic in settings and (why := _unsupported(settings[topic]))}
    if unsupported:
        yield warns("K40", summarize(f"{topic} has {why}" for topic, why in unsupported.items()))


def _unsupported(settings: Mapping[str, str]) -> str:
    bad = (("compression.type", "zstd"), ("message.downconversion.enable", "false"))
    return " and ".join(f"{name}={value}" for name, value in bad if settings.get(name) == value)


def _unowned(observations: TwoObservations) -> Iterator[PreflightFinding]:
    now, then = _ownerless(observations.now), _ownerless(observations.before) if observations.before else frozenset()
    if stayed := now & then:
        level = blocks if observations.gap >= REBALANCE else warns
        yield level("K44", f"no member owned {places(stayed)} in two observations, {observations.gap:.0f} s apart")
    elif now:
        yield warns("K44", f"no member owns {places(now)} now")


def _ownerless(seen: GroupSeen) -> frozenset[TopicPartition]:
    """Partitions without an owner; a group without members misses none."""
    return unowned(seen) if seen.members else frozenset()


def _offsets(observations: TwoObservations) -> Iterator[PreflightFinding]:
    seen, ends = observations.now, observations.now.ends or {}
    if broken := unreadable(seen):
        yield blocks("K42", summarize(f"offsets/{where.topic}/{where.partition} in ZooKeeper: {flaw}" for where, flaw in broken))
    stores = {"ZooKeeper": seen.in_zookeeper, "Kafka": seen.committed or {}}
    for store, found in stores.items():
        if past := beyond_logs(found, ends):
            yield blocks("K42", f"committed in {store} beyond the log's end: {past}")

    at, starts = seen.positions, observations.starts or {}
    if gone := sorted(where for where in wanted(seen) if where in at and at[where] < starts.get(where, 0)):
        deleted = summarize(f"{where.name} at {at[where]}, the log begins at {starts[where]}" for where in gone)
        yield blocks("K42", f"its records are no longer in the log: {deleted}")


def _rebalancing(observations: TwoObservations) -> Iterator[PreflightFinding]:
    """A rebalance ends by itself; one that both observations show does not."""
    now, before = observations.now.kafka, observations.before.kafka if observations.before else None
    if now is not None and not now.stable:
        lasting = before is not None and not before.stable
        level, how = (blocks, " in both observations") if lasting else (warns, "")
        yield level("K52", f"its group in Kafka is in state {now.state}{how}")


def _orphans(observations: TwoObservations) -> Iterator[PreflightFinding]:
    zk = observations.now.zk
    if zk is None or (zk.mode is Mode.KAFKA and zk.registrations):
        return
    members = zk.registrations.keys() | zk.progress.keys()
    if lost := [where for where, thread in zk.owners.items() if consumer_of(thread) not in members]:
        yield warns("K52", f"{len(lost)} partitions have an owner that is not a member: {places(lost)}")


def _starved(observations: TwoObservations) -> Iterator[PreflightFinding]:
    """Partitions with records waiting at both observations, whose offset moved in neither store between them."""
    if observations.before is None or not observations.now.members:
        return
    moved = {where for store in _moved(observations).values() for where in store}
    then, now = lags(observations.before), lags(observations.now)
    still = sorted(where for where, lag in now.items() if lag and then.get(where) and where not in moved)
    before, ends = observations.before.ends or {}, observations.now.ends or {}
    idle = [where for where in still if ends.get(where) == before.get(where)]
    grown = [where for where in still if where not in idle]
    for wheres, level in ((grown, blocks if observations.gap >= COMMIT_INTERVAL else unknown), (idle, unknown)):
        if wheres:
            behind = summarize(f"{where.name} {now[where]} behind" for where in wheres)
            why = "records wait" if wheres is grown else "records or transaction markers wait at the end of idle logs"
            yield level("K44", f"{why} and no offset moved in {observations.gap:.0f} s: {behind}")


_CHECKS: Final[Iterable[Callable[[TwoObservations], Iterator[PreflightFinding]]]] = (
    *(_read, _flaws, _subscriptions, _mode, _resets, _assignment, _stores, _twice),
    *(_topics, _unowned, _offsets, _rebalancing, _orphans, _starved),
)


Observed = tuple[GroupSeen, float]  # the group, and when it was observed, in seconds


def whole(seen: GroupSeen | None, at: float, group: GroupSpec) -> Observed | None:
    """The observation, if nothing in it was unknown."""
    return None if seen is None or unread(seen, group.name, ends=True) else (seen, at)


def waits(seen: GroupSeen | None, at: float, before: Observed | None, group: GroupSpec) -> Wait | None:
    """What to wait for before two observations can be judged; None if they can. `before`: the first complete one."""
    missing = unread(seen, group.name, ends=True)
    if missing or before is None:
        return Wait(missing)
    gap = at - before[1]
    if gap >= group.commit_within:
        return None
    text = f"Group {group.name} is observed again in {group.commit_within - gap:.0f} s."
    return Wait((Reason("T01", text),), healthy=True)


def topics(seen: GroupSeen) -> set[str]:
    """The topics whose settings the judgement needs."""
    return {where.topic for where in seen.zk.partitions} if seen.zk else set()


def judged(observations: TwoObservations, group: GroupSpec) -> Decision:
    """Refused if a finding blocks; every other finding is reported."""
    found = scan(observations)
    blocking = tuple(finding.reason for finding in found.findings if finding.severity is Severity.BLOCK)
    if blocking:
        return Refuse(blocking)
    notes = " ".join(map(str, found.findings))
    return Done(f"Group {group.name} ({found.situation}) may be moved. {notes or 'No objection was found.'}")
