"""Whether consumer groups continue after a broker's restart: those that made progress before it must make progress again.

A client may hang while its broker restarts, and every gate of the cluster stays open: in one run a client got "unknown topic" from
a broker that had just restarted, and consumed nothing for 65 s. So the restart of a broker is over only once its groups continue.

1. Before the restart, at least `SAMPLES` sweeps over all groups with members show which groups make progress: those whose committed
   offsets change. Partitions with lag that do not move even then (an abandoned topic) are noted, and expect nothing.
2. After it, at least `SAMPLES` sweeps: each partition of such a group that has lag must be committed again, or its lag must go.
3. Until then the step waits, and so does the next restart. After `commit_within` seconds the groups are named, with their members.

Never waited for: groups without members before the restart; groups without progress; groups without lag; groups of the cluster
file's `group_progress.exclude`; and groups whose members have left. A client that hangs loses its membership after its session
timeout, and then looks like one that was stopped. So a group that had members and unmoved lag after the restart is waited for until
it has had no members for `commit_within` seconds, too.

What was not read is never progress. Before the restart, groups that some of `MOST_SAMPLES` sweeps do not show are named and not
waited for; without any answer there is no restart. After it, a group that is not read is waited for. Every wait counts against the
step's timeout.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from airflow_provider_kmigrate.core.cluster import GroupProgressSpec
from airflow_provider_kmigrate.core.coordination.assignors import KafkaMember
from airflow_provider_kmigrate.core.decision import Act, Decision, Done, Refuse, Verb, Wait
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.model import Cause, ClusterView, Reason, could_not_read
from airflow_provider_kmigrate.core.text import summarize

SAMPLE_EVERY = 3.0  # seconds; three samples span more than the 5 s in which clients commit by default
SAMPLES = 3
MOST_SAMPLES = 10  # before a restart, if groups stay unread
BASELINE_FRESH = 30.0  # seconds; gates may close again between the last sample and the restart
MARKERS = 10
"""Records at the end of a log that does not grow, which may be markers of transactions: some clients never commit behind them."""
SHOWN = 5  # groups, and partitions and members of each, that a reason names
MOST_STORED = 1000  # groups that a task's stored progress holds
_MOST_OLD_LAG = 50  # partitions of each that expect nothing; a group with more is not stored


class Lag(NamedTuple):
    """A partition's committed offset and its log's end; `records`: what is between them."""

    committed: int
    end: int

    @property
    def records(self) -> int:
        return self.end - self.committed


@dataclass(frozen=True, slots=True)
class GroupPosition:
    """Where a group with members stands: the sum of its committed offsets, and its partitions with lag."""

    committed: int
    behind: Mapping[TopicPartition, Lag] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupSweep:
    """One sweep over the consumer groups that have members.

    `unread`: groups whose offsets or log ends were not reported; `silent`: brokers that did not answer, whose groups are missing.
    `members`: of the groups that the observation named.
    """

    groups: Mapping[str, GroupPosition] = field(default_factory=dict)
    unread: frozenset[str] = frozenset()
    silent: tuple[int, ...] = ()
    members: Mapping[str, tuple[KafkaMember, ...]] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether every broker answered for every group."""
        return not self.unread and not self.silent

    def gone(self, group: str) -> bool:
        """Whether a group certainly has no members."""
        return group not in self.groups and group not in self.unread and not self.silent


class AwaitedGroup(NamedTuple):
    """A group that made progress before a restart, as it is stored; `old_lag`: partitions that did not move even then, by name."""

    name: str
    old_lag: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Baseline:
    """Sweeps before a restart: the first one, the newest one, and how many."""

    first: GroupSweep
    last: GroupSweep
    samples: int

    @property
    def complete(self) -> bool:
        if self.samples >= MOST_SAMPLES:
            return True
        return self.last.whole and (self.samples >= SAMPLES or not self.last.groups)

    def awaited(self) -> tuple[AwaitedGroup, ...]:
        """The groups that make progress."""
        pairs = ((name, self.first.groups[name], now) for name, now in _in_both(self.first, self.last))
        return tuple(AwaitedGroup(name, _unmoved(then, now)) for name, then, now in pairs if then.committed != now.committed)


def _unmoved(then: GroupPosition, now: GroupPosition) -> tuple[str, ...]:
    behind = (
        where for where, lag in now.behind.items() if where in then.behind and then.behind[where].committed == lag.committed
    )
    return tuple(sorted(where.name for where in behind))


@dataclass(frozen=True, slots=True)
class _Awaited:
    """One group since the broker is back. `pending`: partition -> its lag when it was first seen with one, and its newest lag."""

    old_lag: frozenset[str]
    samples: int = 0
    pending: Mapping[TopicPartition, tuple[Lag, Lag]] = field(default_factory=dict)
    moved: frozenset[TopicPartition] = frozenset()
    absent: int = 0  # sweeps in a row that show no members
    absent_since: float | None = None

    def seen(self, position: GroupPosition, max_lag: int) -> _Awaited:
        """Add one sample in which the group has members."""
        known, open_ = {where: was for where, (was, _) in self.pending.items()}, self.samples < SAMPLES
        behind = {
            where: lag for where, lag in position.behind.items() if where.name not in self.old_lag and lag.records > max_lag
        }
        moved = {where for where, lag in behind.items() if where in known and known[where].committed != lag.committed}
        pending = {
            where: (known.get(where, lag), lag)
            for where, lag in behind.items()
            if where not in moved | self.moved and (where in known or open_)
        }
        return _Awaited(self.old_lag, self.samples + 1, pending, self.moved | moved)

    def left(self, at: float) -> _Awaited:
        """Add one sample in which the group has no members."""
        since = at if self.absent_since is None else self.absent_since
        return replace(self, absent=self.absent + 1, absent_since=since)

    def stuck(self) -> dict[TopicPartition, Lag]:
        """The partitions that must still move, with their newest lag."""
        return {
            where: lag for where, (was, lag) in self.pending.items() if lag.end > was.end or lag.records > MARKERS
        }  # fmt: skip

    def over(self, at: float, commit_within: float) -> bool:
        """Whether it need not be waited for any more: everything moved, or its members have left."""
        if self.absent_since is not None:
            return self.absent > 1 and (not self.stuck() or at - self.absent_since >= commit_within)
        return self.samples >= SAMPLES and not self.stuck()


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """What one process knows of the groups around the restart of one broker; `observe` adds a view.

    `awaited`: groups that must continue after an earlier restart; each leaves it once it has. `baseline`: the sweeps before the next
    restart, and `ready` the groups that it found to make progress. `since`: when this process saw first that the broker is back or
    the restart due; `sampled`: when it last swept; `newest`: the last sweep; `unanswered`: none came. Times: of the views' clock.
    """

    spec: GroupProgressSpec = field(default_factory=GroupProgressSpec)
    awaited: Mapping[str, _Awaited] = field(default_factory=dict)
    ready: tuple[AwaitedGroup, ...] | None = None
    baseline: _Baseline | None = None
    since: float | None = None
    sampled: float | None = None
    newest: GroupSweep = field(default_factory=GroupSweep)
    unanswered: bool = False
    note: str = ""

    @classmethod
    def of(cls, spec: GroupProgressSpec, stored: Iterable[AwaitedGroup] = ()) -> GroupProgress:
        """Begin, or continue with what an earlier process stored."""
        return cls(spec, {each.name: _Awaited(frozenset(each.old_lag)) for each in stored if each.name not in spec.exclude})

    @property
    def stored(self) -> tuple[AwaitedGroup, ...]:
        """What the next process must know: at most `MOST_STORED` groups, those with the least old lag first."""
        few = sorted(
            (each for each in self._must_continue() if len(each.old_lag) <= _MOST_OLD_LAG), key=lambda each: len(each.old_lag)
        )
        return tuple(sorted(few[:MOST_STORED]))

    @property
    def named(self) -> tuple[str, ...]:
        """The groups whose members the next sweep must read, to name them."""
        lags = {name: sum(lag.records for lag in each.stuck().values()) for name, each in self.awaited.items()}
        late = (name for name, lag in lags.items() if lag and self.awaited[name].samples >= SAMPLES - 1)
        return tuple(sorted(late, key=lambda name: (-lags[name], name))[:SHOWN])

    def due(self, view: ClusterView, decision: Decision) -> bool:
        """Whether the next decision needs a new sweep."""
        if not self._asks(view, decision):
            return False
        return self.sampled is None or view.taken_at - self.sampled >= SAMPLE_EVERY

    def restarted(self) -> GroupProgress:
        """The restart begins now: from here on the groups of the baseline must continue."""
        return GroupProgress.of(self.spec, self._must_continue())

    def _must_continue(self) -> Iterable[AwaitedGroup]:
        yield from self.ready or ()
        yield from (AwaitedGroup(name, tuple(sorted(each.old_lag))) for name, each in self.awaited.items())

    def forgotten(self) -> GroupProgress:
        """The restart was decided here, but another process performs it."""
        return replace(self, ready=None, baseline=None)

    def observe(self, view: ClusterView, decision: Decision) -> tuple[GroupProgress, Decision]:
        """Add one observation; return the decision, or a wait for the groups in its place.

        `decision`: what is left of the broker's restart, without the groups; only Done and a restart are held.
        """
        if not self._asks(view, decision):
            return self, decision
        restart = isinstance(decision, Act)
        progress = _sampled(self, view, restart=restart)
        if reasons := _why_not(progress, view.taken_at, restart=restart):
            return progress, Wait(reasons, healthy=not progress.awaited and not progress.unanswered)
        return progress, _with(decision, progress.note)

    def fresh(self, at: float) -> bool:
        """Whether a whole baseline was just measured."""
        return self.ready is not None and self.sampled is not None and at - self.sampled < BASELINE_FRESH

    def _asks(self, view: ClusterView, decision: Decision) -> bool:
        if isinstance(decision, Done):
            return bool(self.awaited)
        restart = isinstance(decision, Act) and decision.verb is Verb.RESTART
        return restart and (bool(self.awaited) or not self.fresh(view.taken_at))


def _sampled(progress: GroupProgress, view: ClusterView, *, restart: bool) -> GroupProgress:
    sweep, at = view.group_progress, view.taken_at
    progress = replace(progress, since=at if progress.since is None else progress.since)
    if sweep is None:
        unread = any(reason.cause is Cause.UNREAD_GROUPS for reason in view.unknowns)
        return replace(progress, sampled=at, unanswered=True) if unread else progress
    progress = _continued(replace(progress, sampled=at, newest=sweep, unanswered=False), sweep, at)
    return _measured(progress, sweep) if restart else progress


def _continued(progress: GroupProgress, sweep: GroupSweep, at: float) -> GroupProgress:
    """Add a sweep to the groups that are waited for; those that have moved, or whose members have left, leave."""
    spec, now, gone = progress.spec, dict[str, _Awaited](), list[str]()
    for name, before in progress.awaited.items():
        each = before
        if name in sweep.groups:
            each = before.seen(sweep.groups[name], spec.max_lag.get(name, 0))
        elif sweep.gone(name):
            each = before.left(at)
        if not each.over(at, spec.commit_within):
            now[name] = each
        elif each.absent_since is not None:
            gone.append(name)
    note = f"Groups without members since the restart, not waited for: {summarize(sorted(gone))}." if gone else ""
    return replace(progress, awaited=now, note=" ".join(filter(None, (progress.note, note))))


def _measured(progress: GroupProgress, sweep: GroupSweep) -> GroupProgress:
    """Add a sweep to the baseline; an old one that was complete is begun again."""
    old, exclude = progress.baseline if progress.ready is None else None, set(progress.spec.exclude)
    base = _Baseline(sweep if old is None else old.first, sweep, 1 if old is None else old.samples + 1)
    if not base.complete:
        return replace(progress, baseline=base, ready=None)
    ready = tuple(each for each in base.awaited() if each.name not in exclude and each.name not in progress.awaited)
    unread = [*sorted(sweep.unread - exclude), *(f"those of broker {one}" for one in sweep.silent)]
    note = f"Groups that were not read before the restart, so not waited for after it: {summarize(unread)}." if unread else ""
    return replace(progress, baseline=base, ready=ready, note=" ".join(filter(None, (progress.note, note))))


def _why_not(progress: GroupProgress, at: float, *, restart: bool) -> tuple[Reason, ...]:
    """Why neither Done nor a restart may follow yet."""
    unread = (could_not_read("the progress of the consumer groups"),) if progress.unanswered else ()
    if progress.awaited:
        return (_late(progress, at), *unread)
    if not restart or progress.fresh(at):
        return ()
    taken = progress.baseline.samples if progress.baseline else 0
    text = f"Measuring which consumer groups make progress, before the restart: sample {taken} of {SAMPLES}."
    return unread or (Reason("T01", text),)


def _late(progress: GroupProgress, at: float) -> Reason:
    waited = at - (at if progress.since is None else progress.since)
    awaited = progress.awaited
    order = sorted(awaited, key=lambda name: (-len(awaited[name].stuck()), name))
    more = f" and {len(order) - SHOWN} more" if len(order) > SHOWN else ""
    named = "; ".join(_named(name, awaited[name], progress.newest) for name in order[:SHOWN]) + more
    text = f"consumer groups made progress before the restart, and have not all continued in {waited:.0f} s since: {named}."
    if waited < progress.spec.commit_within:
        return Reason("T01", f"{len(order)} {text}")
    return Reason("G38", f"{len(order)} {text}", cause=Cause.GROUPS_STUCK)


def _named(group: str, each: _Awaited, sweep: GroupSweep) -> str:
    """A group with what does not move in it, and whose clients it is."""
    stuck = each.stuck()
    lag = sum(one.records for one in stuck.values())
    places = summarize((f"{where.name} at {one.committed} of {one.end}" for where, one in sorted(stuck.items())), SHOWN)
    behind = f"{len(stuck)} partitions, {lag} records behind: {places}" if stuck else f"sample {each.samples} of {SAMPLES}"
    if each.absent_since is not None:
        return f"{group} ({behind}; no members any more)"
    if group not in sweep.groups:
        return f"{group} ({behind}; not read)"
    return f"{group} ({behind}{_clients(sweep.members.get(group, ()), stuck)})"


def _clients(members: Collection[KafkaMember], stuck: Collection[TopicPartition]) -> str:
    """The members that own these partitions; all, if none does."""
    owners = [member for member in members if member.partitions & set(stuck)] or list(members)
    named = summarize((f"{member.client_id} on {member.host.lstrip('/')}" for member in sorted(owners)), SHOWN)
    return f"; members {named}" if owners else ""


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


def describe(first: GroupSweep | None, last: GroupSweep | None, spec: GroupProgressSpec) -> str:
    """Which groups with members have lag and committed nothing between two sweeps, as a sentence for `kmigrate_watch`."""
    if first is None or last is None:
        return "The progress of the consumer groups was not read."
    lags = {name: _still(first.groups[name], now, spec.max_lag.get(name, 0)) for name, now in _in_both(first, last)}
    late = sorted(((lag, name) for name, lag in lags.items() if lag and name not in spec.exclude), reverse=True)
    unread = "" if last.whole else " Not every group was read."
    if not late:
        return f"Of {len(last.groups)} consumer groups with members, all with lag make progress.{unread}"
    named = summarize((f"{name} ({lag} records behind)" for lag, name in late), SHOWN)
    return f"{len(late)} of {len(last.groups)} consumer groups with members have lag and committed nothing just now: {named}.{unread}"


def _in_both(first: GroupSweep, last: GroupSweep) -> Iterable[tuple[str, GroupPosition]]:
    return ((name, now) for name, now in last.groups.items() if name in first.groups)


def _still(then: GroupPosition, now: GroupPosition, max_lag: int) -> int:
    """The lag of a group that committed nothing; 0 if it did, or if no partition is too far behind."""
    if then.committed != now.committed or all(lag.records <= max(max_lag, MARKERS) for lag in now.behind.values()):
        return 0
    return sum(lag.records for lag in now.behind.values())
