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
has not continued in between holds the next restart while it has lag, until it is back or a person excludes it by name. Without lag it
is kept in mind (`_Awaited.rests`), from one step to the next. So are its last members, to be named.

What was not read is never progress. Before a restart, groups that some of `MOST_SAMPLES` sweeps do not show are named and not
waited for; without any answer there is no restart. After it, a group that is not read is waited for. Every such wait counts against
the step's timeout.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider_kmigrate.core.cluster import GroupProgressSpec
from airflow_provider_kmigrate.core.coordination.assignors import KafkaMember
from airflow_provider_kmigrate.core.coordination.group_seen import GroupPosition, GroupSweep, Lag
from airflow_provider_kmigrate.core.decision import Act, Decision, Done, Refuse, Verb, Wait
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.model import Cause, ClusterView, Reason, could_not_read
from airflow_provider_kmigrate.core.text import printable, summarize

WINDOW = 6.0  # seconds; clients commit every 5 s by default
OLDEST = 900.0  # seconds; older sweeps show nothing about the minutes before a restart
RECENT = 60.0  # seconds; a group may have stopped since an older sweep, long before the restart
STOPPED = 30.0  # seconds without a commit after which a group that moved since such a sweep makes no progress any more
SAMPLE_EVERY = 1.0  # seconds, for the first `SAMPLES`; then `SAMPLE_LATER`
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
        kept, left = dict[str, Any](), MOST_KEPT
        for name, position in sorted((self.base or {}).items(), key=lambda row: len(row[1].places)):
            left -= len(position.places)
            if left >= 0:
                kept[name] = [[*where, *lag] for where, lag in position.places.items()]
        awaited = {name: sorted(old) for name, old in self.awaited.items()}
        clients = {name: list(those) for name, those in self.clients.items()}
        base = None if self.base is None else kept
        return {"version": VERSION, "at": self.at, "awaited": awaited, "base": base, "clients": clients}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> GroupsKept:
        """Read the output of `to_json`. Raises KeyError, TypeError or ValueError for anything else."""
        if value["version"] not in {1, VERSION}:
            raise ValueError(f"version {value['version']}")
        base, clients = value["base"], value["clients"] if value["version"] == VERSION else {}
        return cls(
            {str(name): frozenset(map(str, old)) for name, old in value["awaited"].items()},
            None if base is None else {str(name): _position(rows) for name, rows in base.items()},
            float(value["at"]),
            {str(name): tuple(map(str, those)) for name, those in clients.items()},
        )


def _position(rows: Iterable[tuple[str, int, int, int]]) -> GroupPosition:
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

    def seen(self, now: GroupPosition, max_lag: int) -> _Awaited:
        """Add one sample in which the group has members.

        Partitions that get their first lag after the first samples do not count: a busy group always has some records under way.
        """
        base = self.base or now
        pending = {
            where: lag
            for where, lag in self._unmoved(base, now, max_lag).items()
            if where in base.places and (where in self.pending or self.samples < SAMPLES)
        }
        back = replace(self, absent=0, absent_since=None)
        return replace(back, base=base, samples=self.samples + 1, pending=pending, moved=self.moved or now.moved(base))

    def left(self, at: float, now: GroupPosition | None, max_lag: int) -> _Awaited:
        """Add one sample in which the group has no members; `now`: where it stands, if that was read."""
        since = at if self.absent_since is None else self.absent_since
        gone = replace(self, absent=self.absent + 1, absent_since=since, state="", unstable_since=None)
        if now is None:
            return gone
        base = self.base or now
        unmoved = self._unmoved(base, now, max_lag)
        pending = {where: lag for where, lag in unmoved.items() if not self.moved or where in self.pending}
        return replace(gone, base=base, pending=pending, located=True)

    def in_state(self, state: str, at: float) -> _Awaited:
        """Add the state of the group; empty: it is stable."""
        since = at if self.unstable_since is None else self.unstable_since
        return replace(self, state=state, unstable_since=since if state else None)

    def _unmoved(self, base: GroupPosition, now: GroupPosition, max_lag: int) -> dict[TopicPartition, Lag]:
        then = base.places
        return {
            where: lag
            for where, lag in now.behind()
            if lag.records > max_lag
            and where.name not in self.old_lag
            and (where not in then or then[where].committed == lag.committed)
        }

    def stuck(self) -> dict[TopicPartition, Lag]:
        """The partitions that must still move; of a group that lost its members and has not continued, all with lag."""
        if self.absent_since is not None and not self.moved:
            return dict(self.pending)
        base = {} if self.base is None else self.base.places
        return {
            where: lag
            for where, lag in self.pending.items()
            if where not in base or lag.end > base[where].end or lag.records > MARKERS
        }

    @property
    def over(self) -> bool:
        """Whether it need not be waited for any more: everything moved, or its members left after it had continued."""
        if self.absent_since is not None:
            return self.absent > 1 and self.moved and not self.stuck()
        return self.samples > 1 and not self.stuck()

    @property
    def rests(self) -> bool:
        """Whether it has lost its members, and nothing waits for them: it holds a restart once it has lag."""
        return self.absent > 1 and self.located and not self.stuck()


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """What one process knows of the groups around the restart of one broker; `observe` adds a view.

    `awaited`: groups that must continue after an earlier restart; each leaves it once it has, and is then `continued`. `base`: the
    sweep since which progress is measured, made at `base_at`; `wanted`: it must be made once the broker is back. `ready`: the groups
    that make progress, found before a restart. `moved_at`: when this process last saw a commit of a group, since its first sweep at
    `first_at`. `clients`: who was in the groups before the last restart; `described`: who is in them now, as far as read. `sampled`: when this
    process last swept, `samples` times; `newest`: that sweep; `unanswered`: it got no answer. Times: of the views' clock.
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
    newest: GroupSweep = field(default_factory=GroupSweep)
    unanswered: bool = False
    note: str = ""

    @classmethod
    def of(cls, spec: GroupProgressSpec, kept: GroupsKept | None = None, age: float = 0.0, now: float = 0.0) -> GroupProgress:
        """Begin, or continue with what an earlier step kept `age` seconds ago; `now`: of the views' clock."""
        if kept is None:
            return cls(spec)
        base = kept.base or {}
        awaited = {
            name: _Awaited(old).seen(base[name], spec.max_lag.get(name, 0)) if name in base else _Awaited(old)
            for name, old in kept.awaited.items()
            if name not in spec.exclude
        }
        return cls(spec, awaited, base=kept.base, base_at=now - age, wanted=kept.base is None, clients=kept.clients)

    def kept(self, now: float, clock: float) -> GroupsKept:
        """What the next step must know. `now`: of the views' clock, when the epoch's is `clock`."""
        base, at = None if self.wanted else self.base, clock - (now - self.base_at)
        return GroupsKept(self._must_continue, base, at, self._last_clients)

    @property
    def _must_continue(self) -> OldLag:
        return {**{name: each.old_lag for name, each in self.awaited.items()}, **(self.ready or {})}

    @property
    def _last_clients(self) -> Clients:
        """The members of the groups that must continue; of those that have not yet, as they were before the last restart."""
        now = {name: those for name, those in self.described.items() if name not in self.awaited}
        return {name: those for name, those in {**self.clients, **now}.items() if name in self._must_continue}

    @property
    def named(self) -> tuple[str, ...]:
        """The groups of which the next sweep must read the members, to name them, or the offsets, if they have no members."""
        lags = {name: sum(lag.records for lag in each.stuck().values()) for name, each in self.awaited.items()}
        late = (name for name, lag in lags.items() if lag and self.awaited[name].samples >= SAMPLES - 1)
        gone = (name for name in self.awaited if name not in self.newest.groups)
        known = self.newest.groups or (not self.wanted and self.base) or {}
        unread = sorted(known.keys() - self.described.keys() - set(self.spec.exclude))
        shown = sorted(late, key=lambda name: (-lags[name], name))[:SHOWN]
        return tuple(dict.fromkeys((*shown, *gone, *unread)))[:MOST_NAMED]

    def names(self, view: ClusterView) -> frozenset[str]:
        """The groups that are waited for, or that a view shows."""
        return frozenset((*self.awaited, *(view.group_progress.groups if view.group_progress else ())))

    def without(self, names: Collection[str]) -> GroupProgress:
        """The same, waiting for none of these groups."""
        awaited = {name: each for name, each in self.awaited.items() if name not in names}
        return replace(self, spec=replace(self.spec, exclude=(*{*self.spec.exclude, *names},)), awaited=awaited)

    def due(self, view: ClusterView, decision: Decision, *, end: bool = False) -> bool:
        """Whether the next decision needs a new sweep."""
        if not self._asks(view, decision, end):
            return False
        every = SAMPLE_EVERY if self.samples < SAMPLES else SAMPLE_LATER
        return self.sampled is None or view.taken_at - self.sampled >= every

    def restarted(self) -> GroupProgress:
        """The restart begins now: from here on the groups that made progress must continue."""
        awaited = {name: _Awaited(old) for name, old in self._must_continue.items()}
        return GroupProgress(self.spec, awaited, wanted=True, clients=self._last_clients)

    def forgotten(self) -> GroupProgress:
        """The restart was decided here, but another process performs it."""
        return replace(self, ready=None)

    def observe(self, view: ClusterView, decision: Decision, *, end: bool = False) -> tuple[GroupProgress, Decision]:
        """Add one observation; return the decision, or a wait for the groups in its place.

        `decision`: what is left of the step, without the groups. A restart is held, and Done only at the `end` of a roll.
        """
        restart = isinstance(decision, Act)
        if not self._asks(view, decision, end):
            return self, _with(decision, self.note) if restart or end else decision
        progress = _sampled(self, view, restart=restart)
        if not restart and not end:
            return progress, decision
        if reasons := _why_not(progress, view.taken_at, restart=restart):
            return progress, Wait(reasons, healthy=not _holding(progress) and not progress.unanswered)
        return progress, _with(decision, progress.note)

    def fresh(self, at: float) -> bool:
        """Whether the groups that make progress were just found."""
        return self.ready is not None and self.sampled is not None and at - self.sampled < BASELINE_FRESH

    def _asks(self, view: ClusterView, decision: Decision, end: bool) -> bool:
        if isinstance(decision, Done):
            return self.wanted or (end and bool(self.awaited))
        restart = isinstance(decision, Act) and decision.verb is Verb.RESTART
        return restart and (bool(self.awaited) or not self.fresh(view.taken_at))


def _sampled(progress: GroupProgress, view: ClusterView, *, restart: bool) -> GroupProgress:
    sweep, at = view.group_progress, view.taken_at
    if sweep is None:
        unread = any(reason.cause is Cause.UNREAD_GROUPS for reason in view.unknowns)
        return replace(progress, sampled=at, unanswered=True) if unread else progress
    described = {**progress.described, **{name: _shown(those) for name, those in sweep.members.items()}}
    before = progress.newest.groups
    if progress.first_at is None:
        before = (progress.base if at - progress.base_at <= RECENT else None) or {}
    moved = {name: at for name, now in sweep.groups.items() if name in before and now.moved(before[name])}
    progress = replace(
        progress, moved_at={**progress.moved_at, **moved}, first_at=at if progress.first_at is None else progress.first_at
    )
    progress = replace(progress, sampled=at, samples=progress.samples + 1, newest=sweep, unanswered=False, described=described)
    progress = _continued(progress, sweep, at)
    if progress.wanted:
        progress = replace(progress, base=sweep.groups, base_at=at, wanted=False)
    return _measured(progress, sweep, at) if restart else progress


def _shown(members: Collection[KafkaMember]) -> tuple[str, ...]:
    """Members by client id and host."""
    named = [f"{member.client_id} on {member.host.lstrip('/')}" for member in sorted(members, key=lambda one: one[:2])]
    return (*named[:SHOWN], *([f"{len(named) - SHOWN} more"] if len(named) > SHOWN else []))


def _holding(progress: GroupProgress) -> Mapping[str, _Awaited]:
    """The groups that hold the next restart."""
    return {name: each for name, each in progress.awaited.items() if not each.rests}


def _continued(progress: GroupProgress, sweep: GroupSweep, at: float) -> GroupProgress:
    """Add a sweep to the groups that are waited for; those that have moved, or whose members left after that, leave."""
    spec, now, gone, continued = progress.spec, dict[str, _Awaited](), list[str](), dict(progress.continued)
    for name, before in progress.awaited.items():
        each, max_lag = before, spec.max_lag.get(name, 0)
        if name in sweep.groups:
            each = before.seen(sweep.groups[name], max_lag).in_state(sweep.rebalancing.get(name, ""), at)
        elif sweep.gone(name):
            each = before.left(at, sweep.left.get(name), max_lag)
        if not each.over:
            now[name] = each
        elif each.absent_since is None:
            continued[name] = each.old_lag
        else:
            gone.append(name)
    gone += [name for name, each in now.items() if each.rests]
    note = f"Groups without members since the restart, not waited for: {summarize(sorted(gone))}." if gone else ""
    return replace(progress, awaited=now, continued=continued, note=_noted(progress, note))


def _measured(progress: GroupProgress, sweep: GroupSweep, at: float) -> GroupProgress:
    """Find the groups that make progress, once two sweeps are far enough apart; `ready` None: not yet."""
    age = at - progress.base_at
    if progress.base is None or age > OLDEST:
        progress, age = replace(progress, base=sweep.groups, base_at=at, samples=1), 0.0
    base, exclude = progress.base or {}, set(progress.spec.exclude)
    moved = {name for name, now in sweep.groups.items() if name in progress.moved_at or (name in base and now.moved(base[name]))}
    found = {name: sweep.groups[name].unmoved(base.get(name, GroupPosition())) for name in moved - exclude}
    stopped = {name for name in found.keys() - progress.continued if _has_stopped(progress, name, at)}
    waits = bool(stopped - progress.moved_at.keys()) and at - (progress.first_at or at) < STOPPED
    enough = age >= WINDOW or progress.continued or not (sweep.groups or base)
    if progress.samples < MOST_SAMPLES and not (sweep.whole and enough and not waits):
        return replace(progress, ready=None)
    again = {name: old & _lagging(sweep.groups[name]) for name, old in progress.continued.items() if name in sweep.groups}
    unread = [*sorted(sweep.unread - exclude), *(f"those of broker {one}" for one in sweep.unresponsive)]
    note = f"Groups that were not read before the restart, so not waited for after it: {summarize(unread)}." if unread else ""
    ceased = f"Groups that have lag and have committed nothing for {STOPPED:.0f} s, so not waited for after the restart"
    ceased = f"{ceased}: {summarize(sorted(stopped))}." if stopped else ""
    ready = {name: old for name, old in found.items() if name not in stopped} | again
    progress = replace(progress, ready=ready, note=_noted(progress, note))
    return replace(progress, note=_noted(progress, ceased))


def _has_stopped(progress: GroupProgress, name: str, at: float) -> bool:
    """Whether a group that moved since the baseline has lag, and was not seen to move lately."""
    moved_at = progress.moved_at.get(name)
    return bool(_lagging(progress.newest.groups[name])) and (moved_at is None or at - moved_at > STOPPED)


def _noted(progress: GroupProgress, note: str) -> str:
    """The note with one more; groups that are measured again, because the gates closed meanwhile, are named once."""
    return progress.note if note in progress.note else f"{progress.note} {note}".strip()


def _lagging(position: GroupPosition) -> frozenset[str]:
    return frozenset(where.name for where, _ in position.behind())


def _why_not(progress: GroupProgress, at: float, *, restart: bool) -> tuple[Reason, ...]:
    """Why neither the end of the roll nor a restart may follow yet."""
    unread = (could_not_read("the progress of the consumer groups"),) if progress.unanswered else ()
    if holding := _holding(progress):
        return (_late(progress, holding, at), *unread)
    if not restart or progress.fresh(at):
        return ()
    return unread or (Reason("T01", "Measuring which consumer groups make progress, before the restart."),)


def _late(progress: GroupProgress, holding: Mapping[str, _Awaited], at: float) -> Reason:
    waited = 0.0 if progress.wanted or progress.base is None else at - progress.base_at
    order = sorted(holding, key=lambda name: (-len(holding[name].stuck()), name))
    more = f" and {len(order) - SHOWN} more" if len(order) > SHOWN else ""
    named = "; ".join(_named(progress, name, at) for name in order[:SHOWN]) + more
    text = f"consumer groups made progress before the last restart, and have not continued in {waited:.0f} s since: {named}."
    if waited < progress.spec.commit_within or progress.samples < SAMPLES:
        return Reason("T01", f"{len(order)} {text}")
    return Reason("G38", f"{len(order)} {text}", cause=Cause.GROUPS_STUCK)


def _named(progress: GroupProgress, group: str, at: float) -> str:
    """A group with what does not move in it, its state, and whose clients it is, or was."""
    each, sweep = progress.awaited[group], progress.newest
    stuck = each.stuck()
    lag = sum(one.records for one in stuck.values())
    places = summarize((f"{where.name} at {one.committed} of {one.end}" for where, one in sorted(stuck.items())), SHOWN)
    known = f"{len(stuck)} partitions, {lag} records behind: {places}" if stuck else "not measured yet"
    before = progress.clients.get(group, ())
    if each.absent_since is not None:
        known += f"; no members any more for {at - each.absent_since:.0f} s{_before(before)}"
    elif group not in sweep.groups:
        known += f"; not read{_before(before)}"
    else:
        known += _state(each, at) + _clients(sweep.members.get(group, ()), stuck, before)
    return f"{printable(group)} ({known})"


def _state(each: _Awaited, at: float) -> str:
    if each.unstable_since is None:
        return ""
    return f"; {each.state} for {at - each.unstable_since:.0f} s: the coordinator waits for a member, and Kafka does not report for which"


def _clients(members: Collection[KafkaMember], stuck: Collection[TopicPartition], before: Collection[str]) -> str:
    """The members that own these partitions; all, if none does; and those of before the restart that are missing."""
    owners = [member for member in members if member.partitions & set(stuck)]
    named = f"; members {', '.join(_shown(owners or members))}" if members else ""
    there = {f"{member.client_id} on {member.host.lstrip('/')}" for member in members}
    missing = [one for one in before if one not in there]
    return f"{named}; missing since the restart: {', '.join(missing)}" if missing and not owners else named


def _before(clients: Collection[str]) -> str:
    return f"; before the restart: {', '.join(clients)}" if clients else ""


def _with(decision: Decision, note: str) -> Decision:
    if note and isinstance(decision, Done | Act):
        return replace(decision, text=f"{decision.text} {note}")
    return decision


def both(decision: Decision, held: Decision) -> Decision:
    """The decision with what holds it: `held` replaces Done and a restart, and is added to a wait; anything else stays."""
    if isinstance(decision, Wait) and isinstance(held, Wait):
        return Wait((*decision.reasons, *held.reasons), healthy=decision.healthy and held.healthy)
    if isinstance(decision, Wait | Refuse) or (isinstance(decision, Act) and decision.verb is not Verb.RESTART):
        return decision
    return held


def lost(kept: GroupsKept | None, sweep: GroupSweep | None, spec: GroupProgressSpec) -> tuple[Reason, ...]:
    """G38 if groups that made progress before a restart have no members now, and lag; from what the last step left."""
    if kept is None or sweep is None:
        return ()
    gone = {name: sweep.left.get(name) for name in sorted(kept.awaited) if name not in spec.exclude and sweep.gone(name)}
    behind = {name: sum(lag.records for _, lag in position.behind()) for name, position in gone.items() if position is not None}
    named = [
        f"{printable(name)} ({lag} records behind{_before(kept.clients.get(name, ()))})" for name, lag in behind.items() if lag
    ]
    text = f"{len(named)} consumer groups have lost their members since a broker's restart: {summarize(named, SHOWN, '; ')}."
    return (Reason("G38", text, cause=Cause.GROUPS_STUCK),) if named else ()


def describe(first: GroupSweep | None, last: GroupSweep | None, spec: GroupProgressSpec) -> str:
    """Which groups with members have lag and committed nothing between two sweeps, as a sentence for `kmigrate_watch`."""
    if first is None or last is None:
        return "The progress of the consumer groups was not read."
    pairs = ((name, first.groups[name], now) for name, now in last.groups.items() if name in first.groups)
    lags = {name: _still(then, now, spec.max_lag.get(name, 0)) for name, then, now in pairs if name not in spec.exclude}
    late = sorted(((lag, name) for name, lag in lags.items() if lag), reverse=True)
    unread = "" if last.whole else " Not every group was read."
    if not late:
        return f"Of {len(last.groups)} consumer groups with members, all with lag make progress.{unread}"
    named = summarize((f"{name} ({lag} records behind)" for lag, name in late), SHOWN)
    return f"{len(late)} of {len(last.groups)} consumer groups with members have lag and committed nothing just now: {named}.{unread}"


def _still(then: GroupPosition, now: GroupPosition, max_lag: int) -> int:
    """The lag of a group that committed nothing; 0 if it did, or if no partition is too far behind."""
    lags = [lag.records for _, lag in now.behind()]
    return 0 if now.moved(then) or max(lags, default=0) <= max(max_lag, MARKERS) else sum(lags)
