"""How long everything has stayed green, as far as somebody looked.

How often a soak compares ZooKeeper with KRaft, and when a difference counts.

How long a cluster has been half-way: the longer two stores of metadata live side by side, the likelier something splits them.

What each mere wait of the migration waits for, as decisions over a view and the first view of the same wait.

What a look is for while no step makes one: a run that is red, or waits for a person, watches nothing, and time goes on all the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from airflow_provider_kmigrate.core import gates
from airflow_provider_kmigrate.core.cluster import ClusterSpec
from airflow_provider_kmigrate.core.decision import Act, Decision, Done, Refuse, Verb, Wait
from airflow_provider_kmigrate.core.gates import MET, Gate, GateState, as_decision, not_yet, strangers, together, unmet
from airflow_provider_kmigrate.core.metadata import equivalence as equivalence_kinds
from airflow_provider_kmigrate.core.migration import roll
from airflow_provider_kmigrate.core.model import BrokerMode, Cause, ClusterView, Migration, Reason, could_not_read
from airflow_provider_kmigrate.core.phase import (
    Intent,
    Phase,
    PhasePermit,
    alarms,
    ended,
    flags_taken_by_us,
    kraft_owns,
    permit,
    refusal,
    silence,
    where,
)
from airflow_provider_kmigrate.core.text import join_ids

_SETTLING = 10.0  # seconds from the first look in which red may only mean that a movement has not been seen yet
_ROUNDS, _SLACK = 3, 5.0  # a look may be late by that many intervals and seconds; in a longer gap nobody has looked


def watched_seconds(last: float | None, at: float, interval: float) -> float:
    """Seconds since the `last` look that count as watched: all, but for a gap in which nobody looked. None: this is the first look."""
    return 0.0 if last is None else min(at - last, _ROUNDS * interval + _SLACK)


@dataclass(frozen=True, slots=True)
class HealthyTimer:
    """The time between green looks, added up; a red one sets it back to nothing.

    `held`: seconds so far, of earlier lives of the same step too. `interval`: seconds between looks. `first`: when the first look of this life
    was taken; `last`: when the last green one was.
    """

    held: float
    interval: float
    first: float | None = None
    last: float | None = None

    def forgotten(self) -> HealthyTimer:
        """What ends a watch for good ends what was watched."""
        return replace(self, held=0.0, last=None)

    def saw(self, at: float, *, green: bool) -> HealthyTimer:
        """With one look more, taken at `at`."""
        began = at if self.first is None else self.first
        known = replace(self, first=began)
        if green:
            return replace(known, held=self.held + watched_seconds(self.last, at, self.interval), last=at)
        red = self.last is not None or at - began > _SETTLING
        return known.forgotten() if red else known


_EVERY = 300.0  # seconds between comparisons: of a large cluster each reads megabytes
_AGAIN = 15.0  # seconds after which what differed, or was not read, must have arrived


@dataclass(frozen=True, slots=True)
class SoakComparison:
    """Two comparisons in a row tell what lasts. Only green looks are compared: while the dual-write lags, the sides must differ.

    `due`: whether the next look is to read all kinds; not the first, in which mostly nothing was seen to move yet. `after`: from when one is due again.
    `before`: the comparison before.
    """

    due: bool = False
    after: float = float("-inf")
    before: ClusterView | None = None

    def saw(self, view: ClusterView) -> tuple[SoakComparison, Gate]:
        """With one green look more; met unless it shows what the comparison before showed too."""
        if not self.due:
            return replace(self, due=view.taken_at >= self.after), MET
        equal = not equivalence_kinds.unread_kinds(view) and not equivalence_kinds.found(view)
        gate = equivalence_kinds.lost(self.before, view) if self.before is not None else MET
        return SoakComparison(after=view.taken_at + (_EVERY if equal else _AGAIN), before=view), gate

    def forgotten(self, view: ClusterView) -> SoakComparison:
        """After a red look: it begins anew a little later."""
        return SoakComparison(after=view.taken_at + _AGAIN)


__all__ = ["hybrid_overdue"]


def hybrid_overdue(view: ClusterView, max_hybrid: float, now: float) -> Reason | None:
    """The alarm (T06) of a cluster that KRaft owns, whose controllers came more than `max_hybrid` seconds ago, while brokers are left in migration mode.

    Counted from the birth of /migration, because that outlives every run of ours, and every election: when KRaft took over is written nowhere.
    `now` in seconds since the epoch. Neither the soak, with all brokers on KRaft, nor a view without ZooKeeper gives one.
    """
    left = sorted(broker.id for broker in view.brokers.values() if broker.mode is BrokerMode.MIGRATION)
    if not left or view.zk is None or not kraft_owns(view) or not isinstance(view.zk.migration, Migration):
        return None
    began = view.zk.migration.created_at
    if not began or now - began <= max_hybrid:
        return None
    since = datetime.fromtimestamp(began, UTC).isoformat(timespec="minutes")
    text = f"The controllers came {since}, longer ago than policy.max_hybrid ({max_hybrid / 3600:g} h), and brokers are left in migration mode: {left}."
    return Reason("T06", text)


COPIED = (
    Phase.DUAL_WRITE_ZOOKEEPER,
    Phase.HYBRID,
    Phase.DUAL_WRITE,
    Phase.FINALIZING,
    Phase.FINALIZED,
    Phase.STRANDED,
)
"""The phases of which one shows that the copy is over."""


def controllers_ready(view: ClusterView) -> Decision:
    """Every controller answers with the flag, a leader is there, /migration shows a fresh migration (or one under way)."""
    if ended(view) or where(view).phase is Phase.FINALIZING:
        return Done("The finalization has begun.")
    gate = together((gates.all_flagged(view), gates.quorum_healthy(view), _begun(view)))
    return as_decision(gate, "All controllers answer with the migration flag and follow one leader.")


def _begun(view: ClusterView) -> Gate:
    if view.zk is None:
        return not_yet(could_not_read("ZooKeeper"))
    if where(view).phase is Phase.STALE:
        return gates.fresh_migration(view)
    if isinstance(view.zk.migration, Migration):
        return MET
    return not_yet(Reason("P11", "/migration does not exist."))


def brokers_registered(view: ClusterView, expected: frozenset[int]) -> Decision:
    """Every expected broker is registered, unfenced and known to all others, whatever its mode."""
    if view.zk is None:
        return Wait((could_not_read("ZooKeeper"),))
    absent = sorted(node for node in expected if node not in view.brokers or view.brokers[node].mode is None)
    everyone = {broker.id for broker in view.running_brokers()}
    unknown = sorted(b.id for b in view.running_brokers() if b.id in expected and everyone - (b.listed_by or frozenset()))
    if absent or unknown:
        text = f"Brokers that do not answer: {absent or 'none'}; not yet known as alive to every other: {unknown or 'none'}."
        return Wait((Reason("R03", text),))
    return Done(f"All {len(expected)} brokers are registered and known to each other.")


def not_there_yet(text: str) -> Reason:
    """P11: another phase than the one that is waited for."""
    return Reason("P11", text)


def copied_since(so_far: ClusterView | None, view: ClusterView) -> ClusterView:
    """The first look that shows that the copy is over; this one as long as none does."""
    over = gates.migration_of(so_far)
    return so_far if so_far is not None and over is not None and over.metadata_offset > 0 else view


def copied(view: ClusterView, since: ClusterView) -> Decision:
    """G7 and G13: the copy is over, the dual-write has moved `since`, and no partition was left without a leader by the takeover."""
    position = where(view)
    allowed = permit(position, Intent.COPY)
    if allowed is PhasePermit.REFUSE:
        return Refuse(refusal(position, Intent.COPY))
    if allowed is PhasePermit.WAIT:
        return Wait((not_there_yet("Metadata is being copied from ZooKeeper to KRaft."), *position.reasons))
    if (over := _over(view)) is not None:
        return over
    gate = gates.dual_write_moves(view, since)
    if not gate.met:
        return unmet(gate)
    return _led(view)


def _over(view: ClusterView) -> Decision | None:
    """No dual-write comes any more, and brokers that were left behind are named; None while there is one."""
    if not ended(view):
        return None
    behind = [reason.text for reason in where(view).reasons if reason.cause is Cause.LEFT_BEHIND]
    left = "".join(f" {text} The second roll takes them along." for text in behind)
    return Done(f"The migration is finalized; nothing is written to ZooKeeper any more.{left}")


def _led(view: ClusterView) -> Decision:
    gate = gates.no_leaderless(view)
    if gate.met:
        return Done("Metadata is copied, the dual-write to ZooKeeper moves, every partition has a leader.")
    if view.partitions is None:
        return Wait(gate.reasons)
    return Act(Verb.ELECT, f"The takeover left {len(gates.leaderless(view))} partitions without a leader.")


def lag_small(view: ClusterView, first: ClusterView, limit: int) -> Decision:
    """The dual-write moves and is at most `limit` records behind."""
    if (over := _over(view)) is not None:
        return over
    gate = together((gates.dual_write_alive(view, first), gates.lag_below(view, limit)))
    return as_decision(gate, f"The dual-write lag is {gates.dual_write_lag(view)} records and /migration moves.")


def equivalent(view: ClusterView) -> Decision:
    """G6: ZooKeeper and KRaft store the same metadata of every kind; lag 0 is no proof."""
    if (over := _over(view)) is not None:
        return over
    if view.zk is not None and not kraft_owns(view):
        return Done("ZooKeeper owns the cluster; there is nothing to compare it with.")
    reasons = (*equivalence_kinds.unread_kinds(view), *equivalence_kinds.found(view))
    return Wait(reasons) if reasons else Done(equivalence_kinds.same(view))


def past_soak(view: ClusterView) -> Decision | None:
    """Where there is nothing left to soak for: it is finalized, or kmigrate has begun to (our note). None: there is.

    Refused where somebody else took a flag (G05): that makes up for no soak, whether it is seen in the middle of one or before it.
    """
    if ended(view):
        return Done("The migration is finalized already: there is nothing left to soak for.")
    position = where(view)
    if position.phase is not Phase.FINALIZING:
        return None
    if flags_taken_by_us(view):
        bare = [controller.id for controller in view.controllers.values() if controller.migration_flag is False]
        return Done(f"The finalization was begun: controllers {join_ids(sorted(bare))} are without the flag already.")
    return Refuse(alarms(view) or refusal(position, Intent.SOAK))


def soaking(view: ClusterView, first: ClusterView, lag_limit: int) -> Gate:
    """Everything that must stay true while the cluster soaks in dual-write."""
    position = where(view)
    if permit(position, Intent.SOAK) is not PhasePermit.ACT:
        refused = permit(position, Intent.SOAK) is PhasePermit.REFUSE
        return Gate(GateState.NEVER if refused else GateState.NOT_YET, refusal(position, Intent.SOAK))
    danger = alarms(view)
    if danger:
        return Gate(GateState.NEVER, danger)
    return together(
        (
            gates.all_kraft(view),
            gates.all_flagged(view),
            gates.quorum_healthy(view),
            gates.dual_write_alive(view, first),
            gates.lag_below(view, lag_limit),
            gates.epochs_known(view, states=False),
            gates.no_client_metrics(view),
            gates.no_leaderless(view),
            gates.nobody_starves(view),
            roll.in_sync(view),
            roll.nobody_fenced(view),
        )
    )


def soaked(view: ClusterView, seconds: float) -> str:
    """What was so all through a soak of so many seconds, for a person who decides on it; `view`: its last look, which was green too."""
    brokers, controllers = (join_ids(sorted(nodes)) for nodes in (view.brokers, view.controllers))
    return (
        f"Every gate stayed green for {seconds:.0f} s: brokers {brokers} in KRaft mode and none fenced, every replica in its ISR, "
        f"controllers {controllers} with the migration flag, no consumer group on ZooKeeper."
    )


def as_approved(view: ClusterView, before: ClusterView, *, compared: bool) -> Gate:
    """G34: what the approval of the finalization was given on is still so: the dual-write moves, both sides store the same, all is in sync.
    And nobody moves partitions, and no consumer group lives on ZooKeeper.

    Not `compared`: something else stands against it, so that both sides were not read whole; that is no reason to give.
    """
    differing = (*equivalence_kinds.unread_kinds(view), *equivalence_kinds.found(view)) if compared else ()
    gate = together(
        (
            gates.dual_write_alive(view, before),
            gates.lag_below(view, gates.MOST_LAG),
            gates.epochs_known(view, states=compared),
            roll.in_sync(view),
            roll.nobody_fenced(view),
            gates.nobody_starves(view),
            roll.nobody_reassigns(view),
            not_yet(*differing) if differing else MET,
        )
    )
    if gate.met:
        return gate
    text = "What the finalization was approved on is not so any more, or could not be seen again."
    if not any(controller.migration_flag is False for controller in view.controllers.values()):
        return Gate(gate.standing, (Reason("G34", text), *gate.reasons))
    text += " Restart no controller for it: one without the flag may be elected, which ends the migration."
    return Gate(gate.standing, (Reason("G34", text), *(replace(reason, remedy="") for reason in gate.reasons)))


def changed_since(view: ClusterView, approved: str) -> str:
    """What both sides store now beside what they did at the approval, in words; empty where that is the same, or nobody said it then."""
    now = equivalence_kinds.same(view)
    return f" Since the approval: it said {approved!r}, and now: {now}" if approved and approved != now else ""


def still_since(so_far: ClusterView | None, view: ClusterView) -> ClusterView:
    """Since which look /migration has not moved, as far as `so_far` and this look tell; this one where either did not read ZooKeeper."""
    if so_far is None or so_far.zk is None or view.zk is None or so_far.zk.migration != view.zk.migration:
        return view
    return so_far


def finalized(view: ClusterView, first: ClusterView) -> Decision:
    """Every controller answers without the flag, one leads, and /migration does not move any more."""
    position = where(view)
    if position.phase is not Phase.FINALIZED:
        refused = position.phase is Phase.STRANDED
        return Refuse(position.reasons) if refused else Wait(refusal(position, Intent.SOAK)[:1] + position.reasons)
    gate = together((gates.quorum_leads(view), gates.no_leaderless(view), _frozen(view, first)))
    return as_decision(gate, "Every controller runs without ZooKeeper, every partition has a leader, /migration stands still.")


def nothing_left(view: ClusterView, spec: ClusterSpec) -> str:
    """What is so where a migration of this very cluster is finalized and every node seen to be where it belongs; empty anywhere else."""
    if where(view).phase is not Phase.FINALIZED or strangers(view, spec):
        return ""
    numbers = f"{len(view.brokers)} brokers and {len(view.controllers)} controllers"
    return f"Cluster {spec.name} is finalized already: {numbers} run without ZooKeeper. There is nothing to do."


def watching() -> Reason:
    """T01: one look did not tell, and so far there is no second one, or it came too soon to say anything."""
    return Reason("T01", "Watching /migration for a moment: whether it moves shows by looking twice.")


def _frozen(view: ClusterView, first: ClusterView) -> Gate:
    if view.zk is None or first.zk is None:  # ZooKeeper may be switched off now
        return MET
    if (migration := gates.migration_of(view)) and migration.age and migration.age.least >= gates.STILL:
        return MET
    if view.taken_at - first.taken_at < gates.STILL:
        return not_yet(watching())
    if view.zk.migration == first.zk.migration:
        return MET
    text = "/migration still moves: a controller with the flag writes to ZooKeeper."
    return not_yet(Reason("T03", text))


_QUIET = frozenset({Phase.ZOOKEEPER, Phase.PRE_MIGRATION, Phase.FINALIZED})


def alarming(view: ClusterView, max_hybrid: float, now: float) -> tuple[Reason, ...]:
    """What a person must hear at once, whatever is under way: states that must never be, and a hybrid that lasts for too long (seconds)."""
    late = hybrid_overdue(view, max_hybrid, now)
    return (*alarms(view), *([late] if late else []))


def at_once(view: ClusterView, max_hybrid: float, now: float) -> tuple[Reason, ...]:
    """`alarming` for whoever does not know which step is under way: without the flags that kmigrate's own finalization takes."""
    own = flags_taken_by_us(view)
    return tuple(reason for reason in alarming(view, max_hybrid, now) if not (own and reason.cause is Cause.UNFLAGGED_CONTROLLER))


def if_it_stays(view: ClusterView) -> tuple[Reason, ...]:
    """What is a restart for a minute, and for longer is not: who does not answer in the middle of a migration, a finalization left half-way."""
    if where(view).phase in _QUIET:
        return ()
    flags = tuple(reason for reason in alarms(view) if reason.cause is Cause.UNFLAGGED_CONTROLLER and flags_taken_by_us(view))
    controllers = tuple(reason for reason in gates.all_flagged(view).reasons if reason.cause is Cause.CONTROLLER_UNRESPONSIVE)
    unknown = (*where(view).reasons, *view.unknowns) if where(view).phase is Phase.UNKNOWN else ()
    return (*silence(view), *controllers, *flags) or unknown


def needs_way_back(view: ClusterView) -> bool:
    """Whether brokers have moved and may still be taken back: then what the way back needs must be there."""
    return where(view).phase not in _QUIET and not ended(view)


def stands(view: ClusterView, now: float) -> str:
    """Where the cluster is, since when, and how far ZooKeeper is behind, in one sentence; `now` in seconds since the epoch."""
    modes = {mode: sum(broker.mode is mode for broker in view.brokers.values()) for mode in BrokerMode}
    counted = ", ".join(f"{count} in {mode} mode" for mode, count in modes.items() if count)
    migration = view.zk.migration if view.zk else None
    since = ""
    if needs_way_back(view) and isinstance(migration, Migration) and migration.created_at:
        lag = gates.dual_write_lag(view)
        behind = f"; ZooKeeper is {lag} records behind" if lag is not None else ""
        since = f", {(now - migration.created_at) / 3600:.1f} h after the controllers came{behind}"
    if ended(view) and where(view).phase is Phase.FINALIZING:
        since = ": a controller without the flag leads, so it is finalized and there is no way back (P12); finalize takes the flags that are left"
    return f"The cluster is in phase '{where(view).phase}'{since}. Brokers: {counted or 'none answers'}."
