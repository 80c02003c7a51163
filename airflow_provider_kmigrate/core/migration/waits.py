"""The migration's waits: decisions over a view and the first view of the same wait.

Beside them: how long everything has been healthy, when a soak compares both sides, when a restart may begin (`wait_for_window`), how long a
phase may last, and what must be watched while no step runs, because a failed or waiting run observes nothing (`find_urgent_alarms`, `at_once`,
`find_debounced_alarms`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time, timedelta

from airflow_provider_kmigrate.core.cluster_state.decision import Act, Decision, Done, Refuse, Verb, Wait
from airflow_provider_kmigrate.core.cluster_state.model import (
    Broker,
    BrokerMode,
    Cause,
    ClusterView,
    Controller,
    Reason,
    could_not_read,
)
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec
from airflow_provider_kmigrate.core.migration import coordinator, gates, readiness, roll
from airflow_provider_kmigrate.core.migration import equivalence as equivalence_kinds
from airflow_provider_kmigrate.core.migration.gates import (
    MET,
    Gate,
    GateState,
    as_decision,
    combine_gates,
    never,
    not_yet,
    not_yet_if,
    refuse_or_wait,
    wrong_cluster_reasons,
)
from airflow_provider_kmigrate.core.migration.phase import (
    ASIDE,
    Intent,
    Phase,
    PhasePermit,
    finalization_has_begun,
    find_alarms,
    flags_taken_by_us,
    kraft_owns,
    migration_has_ended,
    permit,
    position_of,
    refusal_reasons,
    unresponsive_broker_reasons,
)
from airflow_provider_kmigrate.core.migration.readiness import ReadinessAsk, RollbackPart, find_shortcomings
from airflow_provider_kmigrate.core.node_files.service_unit import find_zookeeper_needs
from airflow_provider_kmigrate.core.shared.text import count_of, join_ids, summarize

_SETTLING = 10.0  # seconds from the first observation in which unhealthy may only mean that no movement was seen yet
_ROUNDS, _SLACK = 3, 5.0  # an observation may be late by that many intervals and seconds; a longer gap is not watched


#: Phases in which a restart is urgent: a broker is isolated, or some controllers run without the flag already.
_URGENT = frozenset({Phase.SPLIT, Phase.LEFT_BEHIND, Phase.FINALIZING, Phase.ENDED, Phase.FINALIZED})
#: Phase -> its key in `deadlines` of the cluster file.
_KEYS = {
    Phase.PRE_MIGRATION: "pre_migration",
    Phase.FIRST_ROLL: "first_roll",
    Phase.COPY: "copy",
    Phase.DUAL_WRITE_ZOOKEEPER: "second_roll",
    Phase.HYBRID: "second_roll",
    Phase.DUAL_WRITE: "dual_write",
    Phase.FINALIZING: "finalize",
    Phase.ENDED: "finalize",
}


def watched_seconds(last: float | None, at: float, interval: float) -> float:
    """Seconds since the `last` observation that count as watched; a longer gap counts up to a limit; None: there was none."""
    return 0.0 if last is None else min(at - last, _ROUNDS * interval + _SLACK)


@dataclass(frozen=True, slots=True)
class HealthyTimer:
    """The time between healthy observations, added up; an unhealthy one sets it back to zero.

    `held`: seconds so far, with earlier processes of the same step. `interval`: seconds between observations. `first`: time of
    this process's first observation; `last`: of the last healthy one.
    """

    held: float
    interval: float
    first: float | None = None
    last: float | None = None

    def reset(self) -> HealthyTimer:
        """Start again from zero, for what ends a watch for good."""
        return replace(self, held=0.0, last=None)

    def add_sample(self, at: float, *, healthy: bool) -> HealthyTimer:
        """Add one observation, taken at `at`."""
        began = at if self.first is None else self.first
        timer = replace(self, first=began)
        if healthy:
            return replace(timer, held=self.held + watched_seconds(self.last, at, self.interval), last=at)
        lapsed = self.last is not None or at - began > _SETTLING
        return timer.reset() if lapsed else timer


_EVERY = 300.0  # seconds between comparisons; of a large cluster each reads megabytes
_AGAIN = 15.0  # seconds after which what differed, or was not read, must have arrived


@dataclass(frozen=True, slots=True)
class SoakComparison:
    """Two comparisons in a row show which differences last.

    Only healthy observations count: while the dual-write lags, the sides must differ. `due`: whether the next observation must
    read all kinds; not the first one, in which usually no movement was observed yet. `after`: when the next one is due. `before`: the
    previous comparison.
    """

    due: bool = False
    after: float = float("-inf")
    before: ClusterView | None = None

    def add_view(self, view: ClusterView) -> tuple[SoakComparison, Gate]:
        """Add one healthy observation; met unless it shows a difference that the previous comparison showed too."""
        if not self.due:
            return replace(self, due=view.taken_at >= self.after), MET
        equal = not equivalence_kinds.unread_kind_reasons(view) and not equivalence_kinds.difference_reasons(view)
        gate = equivalence_kinds.nothing_lost(self.before, view) if self.before is not None else MET
        return SoakComparison(after=view.taken_at + (_EVERY if equal else _AGAIN), before=view), gate

    def reset(self, view: ClusterView) -> SoakComparison:
        """Start again a little later, after an unhealthy observation."""
        return SoakComparison(after=view.taken_at + _AGAIN)


def hybrid_overdue_reason(view: ClusterView, max_hybrid: float, now: float) -> Reason | None:
    """The alarm (T06) if brokers are still in migration mode more than `max_hybrid` seconds after the controllers came; else None.

    Counted from the creation of /migration, which outlives every run and election; the time of KRaft's takeover is stored
    nowhere. `now` in seconds since the epoch. None during the soak, with all brokers on KRaft, after the end, and without ZooKeeper.
    """
    still_migrating, began = view.in_mode(BrokerMode.MIGRATION), view.migration.created_at if view.migration else 0.0
    if not still_migrating or not kraft_owns(view) or not began or now - began <= max_hybrid or migration_has_ended(view):
        return None
    since = datetime.fromtimestamp(began, UTC).isoformat(timespec="minutes")
    text = f"The controllers started at {since}, more than policy.max_hybrid ({max_hybrid / 3600:g} h) ago, but brokers are still in migration mode: {still_migrating}."
    return Reason("T06", text)


def is_window_open(window: str, now: datetime) -> bool:
    """True if `now`, in UTC, is in the window; its end does not. An empty window is always open, one of equal times, too."""
    if not window:
        return True
    begin, end = (time.fromisoformat(text) for text in window.split("-"))
    at = now.time()
    return begin <= at < end if begin < end else at >= begin or at < end


def next_window_opening(windows: Sequence[str], now: datetime) -> datetime | None:
    """When the next of these windows opens, in UTC; None if one is open now, or if there are none."""
    if any(is_window_open(window, now) for window in windows):
        return None
    begins = (datetime.combine(now, time.fromisoformat(window.partition("-")[0]), UTC) for window in windows)
    return min((begin if begin > now else begin + timedelta(days=1) for begin in begins), default=None)


def wait_for_window(decision: Decision, phase: Phase, windows: Sequence[str], now: datetime) -> Decision:
    """The decision, or a wait (T07) if it begins a restart that can wait while no window is open. No windows: any time."""
    begins = isinstance(decision, Act) and decision.verb is Verb.RESTART and phase not in _URGENT
    if not begins or not windows or any(is_window_open(window, now) for window in windows):
        return decision
    text = f"It is {now:%H:%M} UTC; restarts begin in the windows {', '.join(windows)}. Every gate is open."
    return Wait((Reason("T07", text),), healthy=True)


def deadline_key(phase: Phase, before: str = "") -> str:
    """The key under which the cluster file limits a phase; empty: it has none.

    `before`: the key of the observation before, which stays while the phase is unknown or must never be.
    """
    return before if phase in ASIDE else _KEYS.get(phase, "")


def overdue_reasons(stage: str, since: float, deadlines: Mapping[str, float], now: float) -> tuple[Reason, ...]:
    """T08 if the cluster has been in a stage for longer than the cluster file says; times in seconds since the epoch."""
    limit = deadlines.get(stage)
    if limit is None or now - since <= limit:
        return ()
    text = f"The cluster has been in `{stage}` for {(now - since) / 3600:.1f} h; deadlines.{stage} is {limit / 3600:g} h."
    return (Reason("T08", text),)


def decide_controllers_ready(view: ClusterView) -> Decision:
    """Every controller answers with the flag, the quorum has a leader, /migration shows a fresh migration or one under way."""
    if finalization_has_begun(view):
        return Done("The finalization has begun.")
    gate = combine_gates((gates.all_controllers_flagged(view), gates.quorum_healthy(view), _migration_begun(view)))
    return as_decision(gate, "All controllers answer with the migration flag and follow one leader.")


def _migration_begun(view: ClusterView) -> Gate:
    if view.zk is None:
        return not_yet(could_not_read("ZooKeeper"))
    if position_of(view).phase is Phase.STALE:
        return gates.fresh_migration(view)
    return not_yet_if(view.migration is None, Reason("P11", "/migration does not exist."))


def decide_brokers_registered(view: ClusterView, expected: frozenset[int]) -> Decision:
    """Every expected broker is registered, unfenced and known to all others, whatever its mode.

    Once the migration is finalized a roll waits in each broker's own task alone: a broker that was left behind does not answer.
    """
    if (done := _done_if_finalized(view)) is not None:
        return done
    if view.zk is None:
        return Wait((could_not_read("ZooKeeper"),))
    if (position := position_of(view)).phase is Phase.SPLIT:
        return Refuse(position.reasons)
    absent = sorted(node for node in expected if not view.has_answered(node))
    everyone = {broker.id for broker in view.running_brokers()}
    unknown = sorted(b.id for b in view.running_brokers() if b.id in expected and everyone - (b.listed_by or frozenset()))
    if absent or unknown:
        text = f"Brokers that do not answer: {absent or 'none'}; not yet known as alive to every other: {unknown or 'none'}."
        return Wait((Reason("R03", text),))
    return Done(f"All {count_of(len(expected), 'broker is', 'brokers are')} registered and known to each other.")


def first_view_after_copy(so_far: ClusterView | None, view: ClusterView) -> ClusterView:
    """The first observation that shows that the copy is over; the current one as long as none does."""
    return so_far if so_far and so_far.migration and so_far.migration.metadata_offset > 0 else view


def decide_copied(view: ClusterView, since: ClusterView) -> Decision:
    """G07 and G13: the copy is over, the dual-write has moved `since`, and the takeover left no partition without a leader."""
    if (done := _done_if_finalized(view)) is not None:
        return done
    position = position_of(view)
    allowed = permit(position, Intent.COPY)
    if allowed is PhasePermit.REFUSE:
        return Refuse(refusal_reasons(position, Intent.COPY))
    if allowed is PhasePermit.WAIT:
        # A leader without the flag never ends the copy: the flag is named first.
        unflagged = gates.all_controllers_flagged(view).reasons
        return Wait((*unflagged, Reason("P11", "Metadata is being copied from ZooKeeper to KRaft."), *position.reasons))
    gate = gates.dual_write_moves(view, since)
    return _decide_leaders_after_copy(view) if gate.met else refuse_or_wait(gate)


def _done_if_finalized(view: ClusterView) -> Decision | None:
    """Done once the dual-write has ended, naming brokers that were left behind; None while it runs."""
    if not migration_has_ended(view):
        return None
    behind = [reason.text for reason in position_of(view).reasons if reason.cause is Cause.LEFT_BEHIND]
    left_behind_text = "".join(f" {text} The second roll includes them." for text in behind)
    return Done(f"The migration is finalized; nothing is written to ZooKeeper any more.{left_behind_text}")


def _decide_leaders_after_copy(view: ClusterView) -> Decision:
    gate = gates.no_leaderless_partition(view)
    if gate.met:
        return Done("Metadata is copied, the dual-write to ZooKeeper makes progress, every partition has a leader.")
    if view.partitions is None:
        return Wait(gate.reasons)
    return Act(
        Verb.ELECT,
        f"The takeover left {count_of(len(gates.leaderless_partitions(view)), 'partition')} leaderless: electing leaders.",
    )


def decide_lag_small(view: ClusterView, first: ClusterView, limit: int) -> Decision:
    """The dual-write moves and is at most `limit` records behind."""
    if (done := _done_if_finalized(view)) is not None:
        return done
    gate = combine_gates((gates.dual_write_alive(view, first), gates.lag_below(view, limit)))
    return as_decision(
        gate, f"The dual-write lag is {count_of(gates.dual_write_lag(view) or 0, 'record')} and /migration advances."
    )


def decide_equivalence(view: ClusterView) -> Decision:
    """ZooKeeper and KRaft store the same metadata of every kind; lag 0 is no proof."""
    if (done := _done_if_finalized(view)) is not None:
        return done
    if view.zk is not None and not kraft_owns(view):
        return Done("ZooKeeper owns the cluster; there is nothing to compare it with.")
    reasons = (*equivalence_kinds.unread_kind_reasons(view), *equivalence_kinds.difference_reasons(view))
    return Wait(reasons) if reasons else Done(equivalence_kinds.describe_equality(view))


def decide_past_soak(view: ClusterView) -> Decision | None:
    """The decision if no soak is needed: finalized, or kmigrate has begun to finalize (our note). None: the soak continues.

    Refused if a flag was removed by anything else (G05): that replaces no soak, during it or before it.
    """
    if migration_has_ended(view):
        return Done("The migration is finalized already: there is nothing left to soak for.")
    position = position_of(view)
    if position.phase is not Phase.FINALIZING:
        return None
    if flags_taken_by_us(view):
        bare = sorted(controller.id for controller in view.controllers.values() if controller.migration_flag is False)
        return Done(f"The finalization has begun: controllers {join_ids(bare)} run without the flag already.")
    return Refuse(find_alarms(view) or refusal_reasons(position, Intent.SOAK))


SOAK_WATCHES = frozenset(
    {
        RollbackPart.CONTROLLERS,
        RollbackPart.DUAL_WRITE,
        RollbackPart.BROKERS,
        RollbackPart.EPOCHS,
        RollbackPart.CLIENT_METRICS,
    }
)
"""What a rollback depends on that each observation of a soak reads."""
SOAK_CHECKS = frozenset(
    {
        RollbackPart.FILES,
        RollbackPart.DIRECTORIES,
        RollbackPart.SPACE,
        RollbackPart.ENSEMBLE,
        RollbackPart.COORDINATORS,
    }
)
"""The same, from time to time and once more at the end: a host that does not answer, or a leader that moves, is no fault.

Both sides are compared beside it (`SoakComparison`), and the originals are read by the workers alone.
"""


def may_soak(view: ClusterView, first: ClusterView) -> Gate:
    """Everything that must stay true while the cluster soaks in dual-write."""
    phase = gates.phase_permits(view, Intent.SOAK)
    if not phase.met:
        return phase
    if danger := find_alarms(view):
        return never(*danger)
    seldom = [
        shortcoming
        for shortcoming in find_shortcomings(view, ReadinessAsk(SOAK_CHECKS))
        if shortcoming.state is gates.GateState.NEVER
    ]
    return combine_gates(
        (
            gates.all_brokers_in_kraft(view),
            readiness.rollback_assured(view, ReadinessAsk(SOAK_WATCHES, first)),
            gates.no_leaderless_partition(view),
            gates.no_group_without_coordinator(view),
            roll.replicas_in_sync(view),
            roll.no_broker_fenced(view),
            coordinator.counts_noted(view),
            readiness.combine_into_gate(seldom),
        )
    )


def may_end_soak(view: ClusterView, first: ClusterView) -> Gate:
    """What must hold at the end of a soak beside its health: a rollback is assured, and no controller stays down after a reboot."""
    rollback = readiness.rollback_assured(view, ReadinessAsk(SOAK_WATCHES | SOAK_CHECKS, first))
    return combine_gates((rollback, gates.controllers_start_at_boot(view)))


def describe_soak(view: ClusterView, seconds: float) -> str:
    """The evidence of a soak of `seconds`, for the administrator who decides; `view`: its last observation, healthy too."""
    brokers, controllers = (join_ids(sorted(nodes)) for nodes in (view.brokers, view.controllers))
    return (
        f"Every gate stayed healthy for {seconds:.0f} s: brokers {brokers} in KRaft mode and none fenced, every replica in its ISR, "
        f"controllers {controllers} with the migration flag, no consumer group on ZooKeeper."
    )


FINALIZE_WATCHES = frozenset({RollbackPart.DUAL_WRITE, RollbackPart.BROKERS, RollbackPart.EPOCHS})
FINALIZE_CHECKS = FINALIZE_WATCHES | {
    RollbackPart.EQUALITY,
    RollbackPart.CLIENT_METRICS,
    RollbackPart.COORDINATORS,
    RollbackPart.ENSEMBLE,
    RollbackPart.DIRECTORIES,
    RollbackPart.SPACE,
}
"""What a rollback depends on that is read before a controller loses its flag: always, and once nothing else forbids it."""


def approved_state_holds(view: ClusterView, before: ClusterView, *, compared: bool) -> Gate:
    """G34: what the finalization was approved on still holds: the dual-write moves, both sides are equal, all is in sync.

    Also: no partition is being moved, and no consumer group lives on ZooKeeper. `compared` false: another gate is closed already,
    so what a rollback depends on was not read whole; that is not reported as a reason. Flags and files are judged beside this, and
    the originals at the act itself.
    """
    parts = FINALIZE_CHECKS if compared else FINALIZE_WATCHES
    gate = combine_gates(
        (
            readiness.rollback_assured(view, ReadinessAsk(parts, before)),
            roll.replicas_in_sync(view),
            roll.no_broker_fenced(view),
            gates.no_group_without_coordinator(view),
            roll.no_reassignment(view),
        )
    )
    if gate.met:
        return gate
    text, reasons = "The state that was approved for finalization no longer holds, or could not be read again.", gate.reasons
    if any(controller.migration_flag is False for controller in view.controllers.values()):
        text += " Do not restart a controller because of it: one without the flag may be elected, which finalizes."
        reasons = tuple(replace(reason, remedy="") for reason in reasons)
    return Gate(gate.state, (Reason("G34", text), *reasons))


def describe_change_since(view: ClusterView, approved: str) -> str:
    """How both sides changed since the approval, in words; empty if they are the same, or the approval did not say."""
    now = equivalence_kinds.describe_equality(view)
    return f" Changed since the approval: {approved!r} then, {now} now." if approved and approved != now else ""


def unmoved_since(so_far: ClusterView | None, view: ClusterView) -> ClusterView:
    """The observation since which /migration has not moved; this one if either did not read ZooKeeper."""
    if so_far is None or so_far.zk is None or view.zk is None or so_far.zk.migration != view.zk.migration:
        return view
    return so_far


def decide_finalized(view: ClusterView, first: ClusterView) -> Decision:
    """Every controller answers without the flag, one leads, /migration does not move, and each node comes back so after a reboot."""
    position = position_of(view)
    if position.phase is not Phase.FINALIZED:
        refused = position.phase is Phase.LEFT_BEHIND
        return Refuse(position.reasons) if refused else Wait(refusal_reasons(position, Intent.SOAK)[:1] + position.reasons)
    gate = combine_gates(
        (
            gates.quorum_has_leader(view),
            gates.no_leaderless_partition(view),
            _migration_znode_unchanged(view, first),
            nodes_survive_reboots(view),
        )
    )
    text = "Every controller runs without ZooKeeper, every partition has a leader, /migration no longer changes, every file is as installed."
    return as_decision(gate, f"{text}{_describe_down_after_reboot(view)}{_describe_zookeeper_needs(view)}")


def nodes_survive_reboots(view: ClusterView) -> Gate:
    """Whether every node would start again as it runs now: its file, by content, its process, and a controller's unit."""
    nodes: tuple[Broker | Controller, ...] = (*view.brokers.values(), *view.controllers.values())
    return combine_gates((gates.files_in_stage(view), gates.controllers_start_at_boot(view), *map(gates.process_known, nodes)))


def _describe_down_after_reboot(view: ClusterView) -> str:
    """The sentence that brokers stay down after a reboot, as their administrators set them up; empty if none does."""
    off = sorted(broker.id for broker in view.brokers.values() if broker.process.at_boot is False)
    return (
        f" The units of brokers {join_ids(off)} are not enabled at boot: after a reboot an administrator must start them."
        if off
        else ""
    )


def _describe_zookeeper_needs(view: ClusterView) -> str:
    """The sentence that systemd would stop nodes with ZooKeeper, which they do not use any more; empty if it would not."""
    processes = {f"broker {broker.id}": broker.process for broker in view.brokers.values()}
    processes |= {f"controller {controller.id}": controller.process for controller in view.controllers.values()}
    units = {name: process.unit.shown for name, process in processes.items() if process.unit}
    needs = [f"{name} ({', '.join(settings)})" for name, shown in units.items() if (settings := find_zookeeper_needs(shown))]
    return f" Before ZooKeeper is switched off: systemd would stop {summarize(needs)} with it: [W23]." if needs else ""


def is_migration_finalized(view: ClusterView, spec: ClusterSpec) -> bool:
    """Whether this cluster's migration is finalized, so that no step of it but what the finalization left is of use."""
    return migration_has_ended(view) and not wrong_cluster_reasons(view, spec)


def describe_leftover_work(view: ClusterView, spec: ClusterSpec) -> str:
    """What a new run does on a finalized cluster, in words; empty if it is none, or a broker does not answer for another cause."""
    position = position_of(view)
    if not is_migration_finalized(view, spec) or (position.phase is not Phase.LEFT_BEHIND and unresponsive_broker_reasons(view)):
        return ""
    texts = (reason.text for reason in (*position.reasons, *gates.files_in_stage(view).reasons))
    return " ".join(("The migration is finalized, and this run does what is left of it.", *texts))


def describe_nothing_left(view: ClusterView, spec: ClusterSpec) -> str:
    """The sentence that this cluster is finalized, with every node in its final mode and with its file; empty if it is not."""
    if (
        position_of(view).phase is not Phase.FINALIZED
        or not is_migration_finalized(view, spec)
        or gates.files_in_stage(view).state is GateState.NEVER
    ):
        return ""
    numbers = f"{count_of(len(view.brokers), 'broker')} and {count_of(len(view.controllers), 'controller')}"
    return f"Cluster {spec.name} is finalized already: {numbers} run without ZooKeeper. There is nothing to do."


def second_reading_reason() -> Reason:
    """T01: one observation was not enough, and a second is missing or came too soon to prove anything."""
    return Reason("T01", "Reading /migration again in a moment, to see whether it changes.")


def _migration_znode_unchanged(view: ClusterView, first: ClusterView) -> Gate:
    if view.zk is None or first.zk is None:  # ZooKeeper may be switched off now
        return MET
    if view.migration and view.migration.age and view.migration.age.least >= gates.STILL:
        return MET
    if view.taken_at - first.taken_at < gates.STILL:
        return not_yet(second_reading_reason())
    text = "/migration still changes: a controller with the flag writes to ZooKeeper."
    return not_yet_if(view.zk.migration != first.zk.migration, Reason("T03", text))


_QUIET = frozenset({Phase.ZOOKEEPER, Phase.PRE_MIGRATION, Phase.FINALIZED})


def find_urgent_alarms(view: ClusterView, max_hybrid: float, now: float) -> tuple[Reason, ...]:
    """Alarms that the operator must get at once in any step: forbidden states, and a hybrid longer than `max_hybrid` (seconds)."""
    late = hybrid_overdue_reason(view, max_hybrid, now)
    return (*find_alarms(view), *([late] if late else []))


def needs_rollback_prerequisites(view: ClusterView) -> bool:
    """Whether brokers have moved and a rollback is still possible: then its prerequisites must be there."""
    return position_of(view).phase not in _QUIET and not migration_has_ended(view)


def describe_phase(view: ClusterView, now: float) -> str:
    """The cluster's phase, since when, and ZooKeeper's lag, in one sentence; `now` in seconds since the epoch."""
    counted = ", ".join(f"{len(broker_ids)} in {mode} mode" for mode in BrokerMode if (broker_ids := view.in_mode(mode)))
    phase, since = position_of(view).phase, ""
    if needs_rollback_prerequisites(view) and view.migration and view.migration.created_at:
        lag = gates.dual_write_lag(view)
        behind = f"; ZooKeeper is {count_of(lag, 'record')} behind" if lag is not None else ""
        since = f", {(now - view.migration.created_at) / 3600:.1f} h after the controllers started{behind}"
    if phase is Phase.ENDED:
        since = ": a controller without the flag leads, so a rollback is not possible (P12); `finalize` does what is left"
    return f"The cluster is in phase '{phase}'{since}. Brokers: {counted or 'none answers'}."
