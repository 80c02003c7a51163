"""Whether consumer groups continue after a broker's restart: those that made progress before it must do so again before the next one.

A client may hang while its broker restarts, and every gate of the cluster stays open: in one run a client got "unknown topic" from
a broker that had just restarted, and consumed nothing for 65 s.

1. Before a restart: the groups that make progress are those whose committed offsets changed between two sweeps over all groups
   with members, at least `WINDOW` seconds apart. With lag it must also have moved in the last `STOPPED` seconds, by this step's own
   sweeps if the first one is older than `RECENT`, as it is at the first restart of a roll. Partitions with lag that do not move even then (an abandoned
   topic) expect nothing.
2. Once the broker is back, one sweep shows where the groups are. It is kept (`GroupsKept`), and is also the first sweep of the next
   restart's baseline: a roll measures while time passes anyway.
3. Before the next restart, and at the end of a roll, each partition of such a group that has lag must have been committed since, or
   its lag must be gone. Until then the step waits. After `SAMPLES` sweeps and `commit_within` seconds the groups are named.

Never waited for: groups without members before the restart; groups without progress; groups without lag; groups of the cluster
file's `group_progress.exclude`; and groups that continued, and whose members left later. A client that hangs loses its membership
after its session timeout, and then looks like one that was stopped. So a group that had members before the restart, has none now and
has not continued in between holds the next restart while it has lag, until it is back or the operator excludes it by name. Without lag it
is kept in mind (`_Awaited.rests`), from one step to the next. So are its last members, to be named.

What was not read is never progress. Before a restart, groups that some of `MOST_SAMPLES` sweeps do not show are named and not
waited for; without any answer there is no restart. After it, a group that is not read is waited for. Every such wait counts against
the step's timeout.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider_kmigrate.core.cluster_state.decision import Act, Decision, Done, Verb, Wait
from airflow_provider_kmigrate.core.cluster_state.model import Cause, ClusterView, Reason, could_not_read
from airflow_provider_kmigrate.core.cluster_state.spec import GroupProgressSpec
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.member.assignors import KafkaMember
from airflow_provider_kmigrate.core.member.group_seen import GroupPosition, GroupSweep, Lag
from airflow_provider_kmigrate.core.shared.text import count_of, printable, summarize

WINDOW = 6.0  # seconds; clients commit every 5 s by default
OLDEST = 900.0  # seconds; older sweeps show nothing about the minutes before a restart
RECENT = 60.0  # seconds; a group may have stopped since an older sweep, long before the restart
STOPPED = 30.0  # seconds without a commit after which a group that moved since such a sweep makes no progress any more
SAMPLE_OFTEN = 0.25  # seconds, while groups have just begun to be waited for: each second costs a roll as many as it has restarts
OFTEN_FOR = 10.0  # seconds since the broker was back; clients commit every 5 s by default
SAMPLE_EVERY = 1.0  # seconds, for the first `SAMPLES`; then `SAMPLE_LATER`. Sweeps that follow faster are no samples of their own
SAMPLE_LATER = 3.0
SAMPLES = 3
MOST_SAMPLES = 10  # before a restart, if groups stay unread
BASELINE_FRESH = 30.0  # seconds; gates may close again between the last sample and the restart
MARKERS = 10
"""Records at the end of a log that does not grow, which may be markers of transactions: some clients never commit behind them."""
SHOWN = 5  # groups, and partitions and members of each, that a reason names
MOST_NAMED = 2_000  # groups whose members are read before a restart
MOST_KEPT = 100_000  # partitions of groups that are kept between two steps
VERSION = 2


OldLag = Mapping[str, frozenset[str]]  # group -> its partitions, by name, that expect nothing
Clients = Mapping[str, tuple[str, ...]]  # group -> its members, by client id and host, at most `SHOWN` of them


@dataclass(frozen=True, slots=True)
class GroupsKept:
    """What one step leaves to the next one: the groups that must continue (`awaited`), and the sweep once the broker was back.

    `base` None: it was not back yet. `at`: when the sweep was made, in seconds since the epoch. `clients`: the last members of
    `awaited` before the restart.
    """

    awaited: OldLag = field(default_factory=dict)
    base: Mapping[str, GroupPosition] | None = None
    at: float = 0.0
    clients: Clients = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """JSON values. At most `MOST_KEPT` partitions: groups with few come first, and the others are swept again before they are judged."""
        rows_by_group, rows_left = dict[str, Any](), MOST_KEPT
        for name, position in sorted((self.base or {}).items(), key=lambda row: len(row[1].places)):
            rows_left -= len(position.places)
            if rows_left >= 0:
                rows_by_group[name] = [[*topic_partition, *lag] for topic_partition, lag in position.places.items()]
        awaited = {name: sorted(old) for name, old in self.awaited.items()}
        clients = {name: list(group_clients) for name, group_clients in self.clients.items()}
        base = None if self.base is None else rows_by_group
        return {"version": VERSION, "at": self.at, "awaited": awaited, "base": base, "clients": clients}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> GroupsKept:
        """Read the output of `to_json`. Raises KeyError, TypeError or ValueError for anything else."""
        if value["version"] not in {1, VERSION}:
            raise ValueError(f"version {value['version']}")
        base, clients = value["base"], value["clients"] if value["version"] == VERSION else {}
        return cls(
            {str(name): frozenset(map(str, old)) for name, old in value["awaited"].items()},
            None if base is None else {str(name): _parse_position(rows) for name, rows in base.items()},
            float(value["at"]),
            {str(name): tuple(map(str, group_clients)) for name, group_clients in clients.items()},
        )


def _parse_position(rows: Iterable[tuple[str, int, int, int]]) -> GroupPosition:
    return GroupPosition({TopicPartition(topic, index): Lag(committed, end) for topic, index, committed, end in rows})


@dataclass(frozen=True, slots=True)
class _Awaited:
    """One group since a restart. `base`: where it was when it was seen first; `pending`: partitions that have lag and not moved since.

    `moved`: something was committed since. `absent`: sweeps in a row that show no members, the first one at `absent_since`; `located`:
    some of them show where it stands. `unstable_since`: when it was first seen in the state `state`, in which no member owns anything.
    """

    old_lag: frozenset[str] = frozenset()
    base: GroupPosition | None = None
    samples: int = 0
    pending: Mapping[TopicPartition, Lag] = field(default_factory=dict)
    moved: bool = False
    absent: int = 0
    absent_since: float | None = None
    located: bool = False
    state: str = ""
    unstable_since: float | None = None

    def add_sweep(self, position: GroupPosition, max_lag: int, *, is_sample: bool = True) -> _Awaited:
        """Add one sweep in which the group has members; `is_sample`: as a sample, since it is long enough after the last one.

        Partitions that get their first lag after the first samples do not count: a busy group always has some records under way.
        """
        base = self.base or position
        pending = {
            partition: lag
            for partition, lag in self._find_unmoved_partitions(base, position, max_lag).items()
            if partition in base.places and (partition in self.pending or self.samples < SAMPLES)
        }
        present = replace(self, absent=0, absent_since=None)
        return replace(
            present,
            base=base,
            samples=self.samples + is_sample,
            pending=pending,
            moved=self.moved or position.has_committed_since(base),
        )

    def add_sweep_without_members(
        self, at: float, position: GroupPosition | None, max_lag: int, *, is_sample: bool = True
    ) -> _Awaited:
        """Add one sweep in which the group has no members; `position`: where it stands, if that was read; `is_sample`: as in `seen`."""
        since = at if self.absent_since is None else self.absent_since
        gone = replace(self, absent=self.absent + is_sample, absent_since=since, state="", unstable_since=None)
        if position is None:
            return gone
        base = self.base or position
        unmoved = self._find_unmoved_partitions(base, position, max_lag)
        pending = {partition: lag for partition, lag in unmoved.items() if not self.moved or partition in self.pending}
        return replace(gone, base=base, pending=pending, located=True)

    def with_state(self, state: str, at: float) -> _Awaited:
        """Add the state of the group; empty: it is stable."""
        since = at if self.unstable_since is None else self.unstable_since
        return replace(self, state=state, unstable_since=since if state else None)

    def _find_unmoved_partitions(self, base: GroupPosition, position: GroupPosition, max_lag: int) -> dict[TopicPartition, Lag]:
        then = base.places
        return {
            partition: lag
            for partition, lag in position.partitions_with_lag()
            if lag.records > max_lag
            and partition.name not in self.old_lag
            and (partition not in then or then[partition].committed == lag.committed)
        }

    def find_stuck_partitions(self) -> dict[TopicPartition, Lag]:
        """The partitions that must still move; of a group that lost its members and has not continued, all with lag."""
        if self.absent_since is not None and not self.moved:
            return dict(self.pending)
        base = {} if self.base is None else self.base.places
        return {
            partition: lag
            for partition, lag in self.pending.items()
            if partition not in base or lag.end > base[partition].end or lag.records > MARKERS
        }

    @property
    def wait_is_over(self) -> bool:
        """Whether it need not be waited for any more: everything moved, or its members left after it had continued."""
        if self.absent_since is not None:
            return self.absent > 1 and self.moved and not self.find_stuck_partitions()
        return self.samples > 1 and not self.find_stuck_partitions()

    @property
    def has_no_members_or_lag(self) -> bool:
        """Whether it has lost its members, and nothing waits for them: it holds a restart once it has lag."""
        return self.absent > 1 and self.located and not self.find_stuck_partitions()


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """What one process knows of the groups around the restart of one broker; `observe` adds a view.

    `awaited`: groups that must continue after an earlier restart; each leaves it once it has, and is then `continued`. `base`: the
    sweep since which progress is measured, made at `base_at`; `wanted`: it must be made once the broker is back. `ready`: the groups
    that make progress, found before a restart. `moved_at`: when this process last observed a commit of a group, since its first sweep at
    `first_at`. `clients`: who was in the groups before the last restart; `described`: who is in them now, as far as read. `sampled`: when this
    process last swept; `samples`: how many sweeps were `SAMPLE_EVERY` apart, the last one at `counted`. `newest`: the last sweep, which took
    `took` seconds; `unanswered`: it got no answer. Times: of the views' clock.
    """

    spec: GroupProgressSpec = field(default_factory=GroupProgressSpec)
    awaited: Mapping[str, _Awaited] = field(default_factory=dict)
    continued: OldLag = field(default_factory=dict)
    base: Mapping[str, GroupPosition] | None = None
    base_at: float = 0.0
    wanted: bool = False
    ready: OldLag | None = None
    moved_at: Mapping[str, float] = field(default_factory=dict)
    first_at: float | None = None
    clients: Clients = field(default_factory=dict)
    described: Clients = field(default_factory=dict)
    sampled: float | None = None
    samples: int = 0
    counted: float = float("-inf")
    took: float = 0.0
    newest: GroupSweep = field(default_factory=GroupSweep)
    unanswered: bool = False
    note: str = ""

    @classmethod
    def of(
        cls, spec: GroupProgressSpec, kept_groups: GroupsKept | None = None, age: float = 0.0, now: float = 0.0
    ) -> GroupProgress:
        """Begin, or continue with what an earlier step kept `age` seconds ago; `now`: of the views' clock."""
        if kept_groups is None:
            return cls(spec)
        base = kept_groups.base or {}
        awaited = {
            name: _Awaited(old).add_sweep(base[name], spec.max_lag.get(name, 0)) if name in base else _Awaited(old)
            for name, old in kept_groups.awaited.items()
            if name not in spec.exclude
        }
        return cls(
            spec, awaited, base=kept_groups.base, base_at=now - age, wanted=kept_groups.base is None, clients=kept_groups.clients
        )

    def groups_to_keep(self, now: float, epoch_now: float) -> GroupsKept:
        """What the next step must know. `now`: of the views' clock, when the epoch's is `epoch_now`."""
        base, at = None if self.wanted else self.base, epoch_now - (now - self.base_at)
        return GroupsKept(self._groups_to_continue, base, at, self._last_clients)

    @property
    def _groups_to_continue(self) -> OldLag:
        return {**{name: group.old_lag for name, group in self.awaited.items()}, **(self.ready or {})}

    @property
    def _last_clients(self) -> Clients:
        """The members of the groups that must continue; of those that have not yet, as they were before the last restart."""
        present_clients = {name: group_clients for name, group_clients in self.described.items() if name not in self.awaited}
        return {
            name: group_clients
            for name, group_clients in {**self.clients, **present_clients}.items()
            if name in self._groups_to_continue
        }

    @property
    def groups_to_read(self) -> tuple[str, ...]:
        """The groups of which the next sweep must read the members, to name them, or the offsets, if they have no members."""
        lags = {name: sum(lag.records for lag in group.find_stuck_partitions().values()) for name, group in self.awaited.items()}
        late = (name for name, lag in lags.items() if lag and self.awaited[name].samples >= SAMPLES - 1)
        gone = (name for name in self.awaited if name not in self.newest.groups)
        swept_groups = self.newest.groups or (not self.wanted and self.base) or {}
        unread = sorted(swept_groups.keys() - self.described.keys() - set(self.spec.exclude))
        late_to_describe = sorted(late, key=lambda name: (-lags[name], name))[:SHOWN]
        return tuple(dict.fromkeys((*late_to_describe, *gone, *unread)))[:MOST_NAMED]

    def list_group_names(self, view: ClusterView) -> frozenset[str]:
        """The groups that are waited for, or that a view shows."""
        return frozenset((*self.awaited, *(view.group_progress.groups if view.group_progress else ())))

    def exclude_groups(self, names: Collection[str]) -> GroupProgress:
        """The same, waiting for none of these groups."""
        if not names:
            return self
        awaited = {name: group for name, group in self.awaited.items() if name not in names}
        return replace(self, spec=replace(self.spec, exclude=(*{*self.spec.exclude, *names},)), awaited=awaited)

    def needs_sweep(self, view: ClusterView, decision: Decision, *, end: bool = False) -> bool:
        """Whether the next decision needs a new sweep."""
        if not self._concerns_groups(view, decision, end):
            return False
        every = SAMPLE_EVERY if self.samples < SAMPLES else SAMPLE_LATER
        if self.awaited and not self.wanted and view.taken_at - self.base_at < OFTEN_FOR:
            every = max(SAMPLE_OFTEN, min(self.took, every))  # of many groups a sweep takes seconds
        return self.sampled is None or view.taken_at - self.sampled >= every

    def with_restart_begun(self) -> GroupProgress:
        """The restart begins now: from here on the groups that made progress must continue."""
        awaited = {name: _Awaited(old) for name, old in self._groups_to_continue.items()}
        return GroupProgress(self.spec, awaited, wanted=True, clients=self._last_clients)

    def without_baseline(self) -> GroupProgress:
        """The restart was decided here, but another process performs it."""
        return replace(self, ready=None)

    def add_view(self, view: ClusterView, decision: Decision, *, end: bool = False) -> tuple[GroupProgress, Decision]:
        """Add one observation; return the decision, or a wait for the groups in its place.

        `decision`: what is left of the step, without the groups. A restart is held, and Done only at the `end` of a roll.
        """
        restart = isinstance(decision, Act)
        if not self._concerns_groups(view, decision, end):
            return self, _with_note(decision, self.note) if restart or end else decision
        progress = _add_sweep(self, view, restart=restart)
        if not restart and not end:
            return progress, decision
        if reasons := _wait_reasons(progress, view.taken_at, restart=restart):
            return progress, Wait(reasons, healthy=not _groups_holding_restart(progress) and not progress.unanswered)
        return progress, _with_note(decision, progress.note)

    def may_stop_waiting(self, group_wait: Wait) -> bool:
        """Whether a rollback, which no consumer may hold up, has waited long enough: they hang, or no broker reports them."""
        return self.unanswered or any(reason.cause is Cause.GROUPS_STUCK for reason in group_wait.reasons)

    def is_baseline_fresh(self, at: float) -> bool:
        """Whether the groups that make progress were just found."""
        return self.ready is not None and self.sampled is not None and at - self.sampled < BASELINE_FRESH

    def _concerns_groups(self, view: ClusterView, decision: Decision, end: bool) -> bool:
        if isinstance(decision, Done):
            return self.wanted or (end and bool(self.awaited))
        restart = isinstance(decision, Act) and decision.verb is Verb.RESTART
        return restart and (bool(self.awaited) or not self.is_baseline_fresh(view.taken_at))


def _add_sweep(progress: GroupProgress, view: ClusterView, *, restart: bool) -> GroupProgress:
    sweep, at = view.group_progress, view.taken_at
    if sweep is None:
        unread = any(reason.cause is Cause.UNREAD_GROUPS for reason in view.unknowns)
        return replace(progress, sampled=at, unanswered=True) if unread else progress
    described = {**progress.described, **{name: _describe_members(members) for name, members in sweep.members.items()}}
    earlier_positions = progress.newest.groups
    if progress.first_at is None:
        earlier_positions = (progress.base if at - progress.base_at <= RECENT else None) or {}
    moved = {
        name: at
        for name, position in sweep.groups.items()
        if name in earlier_positions and position.has_committed_since(earlier_positions[name])
    }
    progress = replace(
        progress, moved_at={**progress.moved_at, **moved}, first_at=at if progress.first_at is None else progress.first_at
    )
    is_sample = at - progress.counted >= SAMPLE_EVERY
    progress = replace(progress, sampled=at, took=view.took, newest=sweep, unanswered=False, described=described)
    progress = replace(progress, samples=progress.samples + 1, counted=at) if is_sample else progress
    progress = _update_awaited(progress, sweep, at, is_sample=is_sample)
    if progress.wanted:
        progress = replace(progress, base=sweep.groups, base_at=at, wanted=False)
    return _find_progressing_groups(progress, sweep, at) if restart else progress


def _describe_members(members: Collection[KafkaMember]) -> tuple[str, ...]:
    """Members by client id and host."""
    described_members = [
        f"{member.client_id} on {member.host.lstrip('/')}" for member in sorted(members, key=lambda member: member[:2])
    ]
    return (*described_members[:SHOWN], *([f"{len(described_members) - SHOWN} more"] if len(described_members) > SHOWN else []))


def _groups_holding_restart(progress: GroupProgress) -> Mapping[str, _Awaited]:
    """The groups that hold the next restart."""
    return {name: group for name, group in progress.awaited.items() if not group.has_no_members_or_lag}


def _update_awaited(progress: GroupProgress, sweep: GroupSweep, at: float, *, is_sample: bool) -> GroupProgress:
    """Add a sweep to the groups that are waited for; those that have moved, or whose members left after that, leave."""
    spec, still_awaited, without_members, continued = progress.spec, dict[str, _Awaited](), list[str](), dict(progress.continued)
    for name, earlier in progress.awaited.items():
        group, max_lag = earlier, spec.max_lag.get(name, 0)
        if name in sweep.groups:
            group = earlier.add_sweep(sweep.groups[name], max_lag, is_sample=is_sample).with_state(
                sweep.rebalancing.get(name, ""), at
            )
        elif sweep.has_no_members(name):
            group = earlier.add_sweep_without_members(at, sweep.left.get(name), max_lag, is_sample=is_sample)
        if not group.wait_is_over:
            still_awaited[name] = group
        elif group.absent_since is None:
            continued[name] = group.old_lag
        else:
            without_members.append(name)
    without_members += [name for name, group in still_awaited.items() if group.has_no_members_or_lag]
    note = (
        f"Groups without members since the restart, not waited for: {summarize(sorted(without_members))}."
        if without_members
        else ""
    )
    return replace(progress, awaited=still_awaited, continued=continued, note=_add_note(progress, note))


def _find_progressing_groups(progress: GroupProgress, sweep: GroupSweep, at: float) -> GroupProgress:
    """Find the groups that make progress, once two sweeps are far enough apart; `ready` None: not yet."""
    age = at - progress.base_at
    if progress.base is None or age > OLDEST:
        progress, age = replace(progress, base=sweep.groups, base_at=at, samples=1), 0.0
    base, exclude = progress.base or {}, set(progress.spec.exclude)
    moved = {
        name
        for name, position in sweep.groups.items()
        if name in progress.moved_at or (name in base and position.has_committed_since(base[name]))
    }
    old_lag = {name: sweep.groups[name].stalled_since(base.get(name, GroupPosition())) for name in moved - exclude}
    stopped = {name for name in old_lag.keys() - progress.continued if _has_stopped_moving(progress, name, at)}
    must_wait = bool(stopped - progress.moved_at.keys()) and at - (progress.first_at or at) < STOPPED
    enough = age >= WINDOW or progress.continued or not (sweep.groups or base)
    if progress.samples < MOST_SAMPLES and not (sweep.whole and enough and not must_wait):
        return replace(progress, ready=None)
    expected_again = {
        name: old & _lagging_partitions(sweep.groups[name]) for name, old in progress.continued.items() if name in sweep.groups
    }
    unread = [*sorted(sweep.unread - exclude), *(f"those of broker {broker}" for broker in sweep.unresponsive)]
    note = f"Groups that were not read before the restart, so not waited for after it: {summarize(unread)}." if unread else ""
    ceased = f"Groups that have lag and have committed nothing for {STOPPED:.0f} s, so not waited for after the restart"
    ceased = f"{ceased}: {summarize(sorted(stopped))}." if stopped else ""
    ready = {name: old for name, old in old_lag.items() if name not in stopped} | expected_again
    progress = replace(progress, ready=ready, note=_add_note(progress, note))
    return replace(progress, note=_add_note(progress, ceased))


def _has_stopped_moving(progress: GroupProgress, name: str, at: float) -> bool:
    """Whether a group that moved since the baseline has lag, and was not seen to move lately."""
    moved_at = progress.moved_at.get(name)
    return bool(_lagging_partitions(progress.newest.groups[name])) and (moved_at is None or at - moved_at > STOPPED)


def _add_note(progress: GroupProgress, note: str) -> str:
    """The note with one more; groups that are measured again, because the gates closed meanwhile, are named once."""
    return progress.note if note in progress.note else f"{progress.note} {note}".strip()


def _lagging_partitions(position: GroupPosition) -> frozenset[str]:
    return frozenset(partition.name for partition, _ in position.partitions_with_lag())


def _wait_reasons(progress: GroupProgress, at: float, *, restart: bool) -> tuple[Reason, ...]:
    """Why neither the end of the roll nor a restart may follow yet."""
    unread = (could_not_read("the progress of the consumer groups"),) if progress.unanswered else ()
    if holding := _groups_holding_restart(progress):
        return (_late_groups_reason(progress, holding, at), *unread)
    if not restart or progress.is_baseline_fresh(at):
        return ()
    return unread or (Reason("T01", "Measuring which consumer groups make progress, before the restart."),)


def _late_groups_reason(progress: GroupProgress, holding: Mapping[str, _Awaited], at: float) -> Reason:
    waited = 0.0 if progress.wanted or progress.base is None else at - progress.base_at
    order = sorted(holding, key=lambda name: (-len(holding[name].find_stuck_partitions()), name))
    more = f" and {len(order) - SHOWN} more" if len(order) > SHOWN else ""
    described_groups = "; ".join(_describe_group(progress, name, at) for name in order[:SHOWN]) + more
    text = f"made progress before the last restart, without progress in the {waited:.0f} s since: {described_groups}."
    if waited < progress.spec.commit_within or progress.samples < SAMPLES:
        return Reason("T01", f"{count_of(len(order), 'consumer group')} {text}")
    return Reason("G38", f"{count_of(len(order), 'consumer group')} {text}", cause=Cause.GROUPS_STUCK)


def _describe_group(progress: GroupProgress, group: str, at: float) -> str:
    """A group with what does not move in it, its state, and whose clients it is, or was."""
    awaited, sweep = progress.awaited[group], progress.newest
    stuck = awaited.find_stuck_partitions()
    lag = sum(partition_lag.records for partition_lag in stuck.values())
    described_partitions = summarize(
        (
            f"{partition.name} at {partition_lag.committed} of {partition_lag.end}"
            for partition, partition_lag in sorted(stuck.items())
        ),
        SHOWN,
    )
    text = (
        f"{count_of(len(stuck), 'partition')}, {count_of(lag, 'record')} behind: {described_partitions}"
        if stuck
        else "not measured yet"
    )
    earlier_clients = progress.clients.get(group, ())
    if awaited.absent_since is not None:
        text += f"; no members any more for {at - awaited.absent_since:.0f} s{_describe_earlier_clients(earlier_clients)}"
    elif group not in sweep.groups:
        text += f"; not read{_describe_earlier_clients(earlier_clients)}"
    else:
        text += _describe_state(awaited, at) + _describe_clients(sweep.members.get(group, ()), stuck, earlier_clients)
    return f"{printable(group)} ({text})"


def _describe_state(awaited: _Awaited, at: float) -> str:
    if awaited.unstable_since is None:
        return ""
    return f"; {awaited.state} for {at - awaited.unstable_since:.0f} s: the coordinator waits for a member, and Kafka does not report for which"


def _describe_clients(
    members: Collection[KafkaMember], stuck: Collection[TopicPartition], earlier_clients: Collection[str]
) -> str:
    """The members that own these partitions; all, if none does; and those of before the restart that are missing."""
    owners = [member for member in members if member.partitions & set(stuck)]
    described_owners = f"; members {', '.join(_describe_members(owners or members))}" if members else ""
    present_clients = {f"{member.client_id} on {member.host.lstrip('/')}" for member in members}
    missing = [client for client in earlier_clients if client not in present_clients]
    return f"{described_owners}; missing since the restart: {', '.join(missing)}" if missing and not owners else described_owners


def _describe_earlier_clients(clients: Collection[str]) -> str:
    return f"; before the restart: {', '.join(clients)}" if clients else ""


def _with_note(decision: Decision, note: str) -> Decision:
    if note and isinstance(decision, Done | Act):
        return replace(decision, text=f"{decision.text} {note}")
    return decision


def lost_members_reasons(kept_groups: GroupsKept | None, sweep: GroupSweep | None, spec: GroupProgressSpec) -> tuple[Reason, ...]:
    """G38 if groups that made progress before a restart have no members now, and lag; from what the last step left."""
    if kept_groups is None or sweep is None:
        return ()
    positions_without_members = {
        name: sweep.left.get(name)
        for name in sorted(kept_groups.awaited)
        if name not in spec.exclude and sweep.has_no_members(name)
    }
    lag_by_group = {
        name: sum(lag.records for _, lag in position.partitions_with_lag())
        for name, position in positions_without_members.items()
        if position is not None
    }
    described_groups = [
        f"{printable(name)} ({count_of(lag, 'record')} behind{_describe_earlier_clients(kept_groups.clients.get(name, ()))})"
        for name, lag in lag_by_group.items()
        if lag
    ]
    text = f"{count_of(len(described_groups), 'consumer group has', 'consumer groups have')} lost their members since a broker's restart: {summarize(described_groups, SHOWN, '; ')}."
    return (Reason("G38", text, cause=Cause.GROUPS_STUCK),) if described_groups else ()


def describe_progress(first: GroupSweep | None, last: GroupSweep | None, spec: GroupProgressSpec) -> str:
    """Which groups with members have lag and committed nothing between two sweeps, as a sentence for `kmigrate_watch`."""
    if first is None or last is None:
        return "The progress of the consumer groups was not read."
    pairs = ((name, first.groups[name], now) for name, now in last.groups.items() if name in first.groups)
    lags = {
        name: _lag_without_commit(then, now, spec.max_lag.get(name, 0)) for name, then, now in pairs if name not in spec.exclude
    }
    late = sorted(((lag, name) for name, lag in lags.items() if lag), reverse=True)
    unread = "" if last.whole else " Not every group was read."
    if not late:
        return f"Of {count_of(len(last.groups), 'consumer group')} with members, all with lag make progress.{unread}"
    described_groups = summarize((f"{name} ({count_of(lag, 'record')} behind)" for lag, name in late), SHOWN)
    return f"{len(late)} of {count_of(len(last.groups), 'consumer group')} with members have lag and committed nothing just now: {described_groups}.{unread}"


def _lag_without_commit(earlier: GroupPosition, later: GroupPosition, max_lag: int) -> int:
    """The lag of a group that committed nothing; 0 if it did, or if no partition is too far behind."""
    lags = [lag.records for _, lag in later.partitions_with_lag()]
    return 0 if later.has_committed_since(earlier) or max(lags, default=0) <= max(max_lag, MARKERS) else sum(lags)
