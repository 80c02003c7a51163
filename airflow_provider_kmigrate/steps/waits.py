"""The waits of a migration, the elections that two of them need, and read-only checks of its state.

`decide_whether_jobs_may_begin` reads the partitions, the fence's owner and the journals of its runs. `run_watch` checks a migration
while its run has failed, waits for approval, or was left.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Self

from airflow_provider_kmigrate import __version__
from airflow_provider_kmigrate.clients.fence import Fence
from airflow_provider_kmigrate.clients.metrics import fetch_gauges
from airflow_provider_kmigrate.core.cluster_state.decision import Act, Decision, Done, NextAction, Reading, Verb, Wait
from airflow_provider_kmigrate.core.cluster_state.model import Cause, ClusterView, Fields, Reason
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, GroupProgressSpec
from airflow_provider_kmigrate.core.migration import coordinator, gates, group_progress, readiness, roll, soak, waits
from airflow_provider_kmigrate.core.migration.broker_restart import with_dual_write_recovery
from airflow_provider_kmigrate.core.migration.gates import leaderless_partitions
from airflow_provider_kmigrate.core.migration.group_progress import GroupProgress
from airflow_provider_kmigrate.core.migration.phase import (
    COPIED,
    Phase,
    flags_taken_by_us,
    kraft_owns,
    migration_has_ended,
    position_of,
)
from airflow_provider_kmigrate.core.migration.progress import StepProgress
from airflow_provider_kmigrate.core.migration.readiness import Readiness, ReadinessAsk
from airflow_provider_kmigrate.core.migration.recovery import StalledDualWrite
from airflow_provider_kmigrate.core.migration.soak import SoakState
from airflow_provider_kmigrate.core.migration.waits import HealthyTimer
from airflow_provider_kmigrate.core.monitoring import journal_lines, watch, witness
from airflow_provider_kmigrate.core.monitoring.causes import Grouped, errors_behind, reduce_to_causes
from airflow_provider_kmigrate.core.monitoring.gauges import build_gauges, group_gauges, position_gauges, readiness_gauges
from airflow_provider_kmigrate.core.monitoring.watch import ClusterOwner, KnownActs
from airflow_provider_kmigrate.core.spark import job_risks
from airflow_provider_kmigrate.exceptions import Refused, Unavailable
from airflow_provider_kmigrate.steps.dual_write import repair_dual_write
from airflow_provider_kmigrate.steps.group_watch import load_progress, save_progress
from airflow_provider_kmigrate.steps.journal import format_reason_lines, format_reasons, read_journal_lines
from airflow_provider_kmigrate.steps.run import Step, StepContext, require_gate, with_backup


class WaitStep(Step):
    """A step that observes until `decided`, of an observation and the first one, is Done; it remembers nothing and never acts."""

    def __init__(
        self,
        name: str,
        decide: Callable[[ClusterView, ClusterView], Decision],
        *,
        fields: Fields = Fields.POSITION,
        samples: int = 1,
        interval: float = Step.interval,
        patience: float = Step.patience,
    ) -> None:
        self.name, self._decided, self.fields = name, decide, fields
        self.samples, self.interval, self.patience = samples, interval, patience

    def decide(self, view: ClusterView, first: ClusterView) -> Decision:
        """Decide by the wait's own function."""
        return self._decided(view, first)


def controllers_ready() -> Step:
    """Wait until all controllers are up, flagged and follow one leader."""
    return WaitStep("controllers ready", lambda view, _: waits.decide_controllers_ready(view), samples=2, patience=180.0)


class EndOfRoll(Step):
    """Wait until `decided` of an observation is Done, and the consumer groups continue: a roll is over."""

    samples = 2

    def __init__(
        self,
        name: str,
        groups: GroupProgressSpec,
        decide: Callable[[ClusterView], Decision],
        *,
        fields: Fields = Fields.POSITION,
        interval: float = Step.interval,
    ) -> None:
        self.name, self._decided, self._progress = name, decide, GroupProgress(groups)
        self.fields, self.interval = fields, interval

    def begin(self, context: StepContext) -> None:
        """Read what the previous restart left of the consumer groups."""
        self._progress = load_progress(context, self._progress.spec)

    def end(self, context: StepContext) -> None:
        """Leave the sweep of the consumer groups to the next restart."""
        save_progress(context, self._progress)

    def next_action(self, view: ClusterView, _first: ClusterView, read: Reading) -> NextAction[GroupProgress]:
        """Wait for the brokers, then for the consumer groups."""
        decision, isolated = self._decided(view), roll.has_isolated_brokers(view)
        due = not isolated and not read.fields & Fields.GROUP_PROGRESS and self._progress.needs_sweep(view, decision, end=True)
        if due:
            needs = Reading(Fields.GROUP_PROGRESS, groups=self._progress.groups_to_read)
            return NextAction(Wait(()), self._progress, self.reading, needs=needs)
        if isinstance(decision, Done) and not isolated:
            self._progress, decision = self._progress.add_view(view, decision, end=True)
        return NextAction(decision, self._progress, self.reading)


def brokers_registered(expected: Collection[int], groups: GroupProgressSpec) -> Step:
    """Wait until every broker of the cluster file is registered and known to all others, and consumer groups continue."""
    ids = frozenset(expected)
    return EndOfRoll("all brokers registered", groups, lambda view: waits.decide_brokers_registered(view, ids))


def phase_reached(patience: float) -> Step:
    """Wait until the cluster shows the phase after the copy, or a later one, twice in a row."""

    def decide(view: ClusterView, _first: ClusterView) -> Decision:
        position = position_of(view)
        text = f"The cluster is in phase '{position.phase}'."
        return (
            Done(text)
            if position.phase in COPIED or migration_has_ended(view)
            else Wait((Reason("P11", text), *position.reasons))
        )

    return WaitStep("migration phase", decide, samples=2, patience=patience)


def lag_small(limit: int, patience: float) -> Step:
    """Wait until the dual-write lag is small while /migration moves."""
    return WaitStep("dual-write lag", lambda view, first: waits.decide_lag_small(view, first, limit), patience=patience)


def coordinators_agree(patience: float) -> Step:
    """Wait until every broker computes coordinators with the topics' own partition counts."""
    fields = Fields.BROKERS | Fields.ZOOKEEPER | Fields.PARTITIONS | Fields.COORDINATORS
    decide = coordinator.decide_agreement
    return WaitStep("coordinators", lambda view, _: decide(view), fields=fields, interval=1.0, patience=patience)


def equivalent(patience: float, decide: Callable[[ClusterView], Decision] = waits.decide_equivalence) -> Step:
    """Wait until ZooKeeper and KRaft store the same metadata of every kind, or until `decide` accepts the difference."""
    fields = Fields.POSITION | Fields.METADATA
    return WaitStep("metadata equivalence", lambda view, _: decide(view), fields=fields, interval=1.0, patience=patience)


class Copied(Step):
    """Wait until the copy is over and the dual-write moves; elect leaders that the takeover left out, recover a stalled dual-write."""

    name = "metadata copy"
    max_acts = 60
    fields = Fields.POSITION | Fields.PARTITIONS

    def __init__(self, patience: float = 600.0) -> None:
        self.patience = patience
        self._stalled = StalledDualWrite()
        self._since: ClusterView | None = None  # the first observation after the copy

    def resume(self, progress: StepProgress) -> Self:
        """Continue the count of recoveries."""
        self._stalled = StalledDualWrite(progress.recoveries)
        return super().resume(progress)

    @property
    def progress(self) -> StepProgress:
        """The count of recoveries."""
        return replace(super().progress, recoveries=self._stalled.times)

    def next_action(self, view: ClusterView, _first: ClusterView, _read: Reading) -> NextAction[StalledDualWrite]:
        """Wait until everything is copied, or recover a stalled dual-write."""
        self._since = waits.first_view_after_copy(self._since, view)
        decision, self._stalled, more = with_dual_write_recovery(self._stalled, view, waits.decide_copied(view, self._since))
        return NextAction(decision, self._stalled, Reading(self.fields | more), not self._stalled.pending)

    def act(self, context: StepContext, act: Act) -> None:
        """Elect leaders of leaderless partitions, or recover the dual-write."""
        if act.verb is Verb.ELECT:
            context.tools.admin.elect_preferred(leaderless_partitions(context.observer.observe(Fields.PARTITIONS)), context.fence)
        elif not repair_dual_write(context, self.name, act):
            super().act(context, act)

    def forget_decision(self) -> None:
        """Forget the recovery that was decided: another process performs it."""
        self._stalled = self._stalled.withdraw_decision()


class PreferredLeaders(Step):
    """Move leadership to the preferred replicas."""

    name = "preferred leaders"
    max_acts = 3 * roll.MOST_ROUNDS
    fields = Fields.ZOOKEEPER | Fields.PARTITIONS
    patience = 300.0
    acts_again = (Unavailable,)

    def __init__(self, batch: int) -> None:
        self._batch, self._total = batch, 0

    def decide(self, view: ClusterView, first: ClusterView) -> Decision:
        """Wait until preferred replicas lead, or elect them."""
        self._total = len(roll.without_preferred_leader(first))
        return roll.decide_preferred_leaders(view)

    def act(self, context: StepContext, _act: Act) -> None:
        """Elect one batch, then wait for one interval."""
        batch = roll.next_election_batch(context.observer.observe(Fields.PARTITIONS), self._batch, self._total)
        context.tools.admin.elect_preferred(batch, context.fence)
        context.clock.sleep(self.interval)


class Soak(Step):
    """Every gate stays healthy for `seconds`; one unhealthy observation restarts the time.

    All metadata is compared, and every node's file read, from time to time. If something stays missing in ZooKeeper, a new
    leader writes it. Any other lasting difference refuses, since a rollback would not restore the metadata in use.
    """

    name = "soak in dual-write"
    patience = 3600.0  # an unhealthy hour is no passing disturbance
    fields = soak.ALWAYS

    def __init__(self, seconds: float) -> None:
        self.seconds, self.interval = seconds, min(2.0, max(0.2, seconds / 10))
        self.state = SoakState(HealthyTimer(0.0, self.interval))

    def resume(self, progress: StepProgress) -> Self:
        """Continue the healthy time and the count of recoveries."""
        self.state = self.state.resume_from(progress)
        return super().resume(progress)

    @property
    def progress(self) -> StepProgress:
        """The healthy time and the count of recoveries."""
        return self.state.to_progress(self.waited)

    @property
    def seconds_left(self) -> float:
        """Seconds of healthy time that the soak still needs."""
        return max(0.0, self.seconds - self.state.healthy.held)

    def next_action(self, view: ClusterView, _first: ClusterView, read: Reading) -> NextAction[SoakState]:
        """Decide, and remember."""
        action = soak.next_action(self.seconds, self.state, view, read.fields)
        self.state = action.state
        return action

    def act(self, context: StepContext, act: Act) -> None:
        """Recover the dual-write."""
        if not repair_dual_write(context, self.name, act):
            super().act(context, act)

    def forget_decision(self) -> None:
        """Forget the recovery that was decided: another process performs it."""
        self.state = self.state.withdraw_decision()


class Finalized(Step):
    """Wait until no controller carries the flag and nothing is written to ZooKeeper; every node's file is compared, by content."""

    name = "finalized"
    fields = Fields.POSITION | Fields.NODES | Fields.PARTITIONS
    patience = 180.0
    expected_alarms = frozenset({Cause.UNFLAGGED_CONTROLLER})

    def __init__(self) -> None:
        self._still: ClusterView | None = None  # since when /migration has not moved

    def decide(self, view: ClusterView, _first: ClusterView) -> Decision:
        """Wait until `/migration` stands still and every controller runs without its flag."""
        self._still = waits.unmoved_since(self._still, view)
        return waits.decide_finalized(view, self._still)


def decide_whether_jobs_may_begin(context: StepContext, quiet_for: float) -> Decision:
    """Decide once whether jobs may begin; changes nothing. `quiet_for`: seconds."""
    lines = journal_lines.parse_lines(read_journal_lines(context.journals)).lines
    view, holder = context.observer.observe(Fields.PARTITIONS), _read_holder(context)
    return job_risks.decide_quiet(view, lines, holder, round(1000 * context.clock.now()), round(1000 * quiet_for))


def _read_holder(context: StepContext) -> job_risks.Holder:
    try:
        owner = Fence(context.tools.zk, context.spec.cluster_id, "watching").holder()
    except Unavailable:
        return job_risks.Holder(known=False)
    return job_risks.Holder(owner.owner if owner else None)


def _describe_group_progress(context: StepContext, view: ClusterView) -> tuple[str, tuple[Reason, ...]]:
    """Which consumer groups have lag and do not move while the watch observes, as a sentence: no alarm, they may never have moved.

    And the groups that have lost their members since a restart, by what the last step left.
    """
    stored_groups, first = context.groups.load(), view.group_progress
    awaited = tuple(stored_groups.awaited)[: group_progress.MOST_NAMED] if stored_groups else ()
    last = first
    if first is not None and (first.groups or awaited):
        context.clock.sleep(group_progress.WINDOW)
        last = context.observer.observe(Fields.GROUP_PROGRESS, (), awaited).group_progress
    spec = context.spec.group_progress
    return group_progress.describe_progress(first, last, spec), group_progress.lost_members_reasons(stored_groups, last, spec)


def _compare_gauges(context: StepContext, view: ClusterView) -> tuple[str, tuple[Reason, ...]]:
    """What Kafka's own gauges say, as a sentence, and where they contradict the view; nothing without an address or controllers."""
    if not context.spec.controller_metrics or position_of(view).phase is Phase.ZOOKEEPER:
        return "", ()
    gauges = fetch_gauges(context.spec.controller_metrics, context.spec.controllers)
    return f" {witness.describe_witness(view, gauges)}", witness.find_contradictions(view, gauges)


_WATCHED = Fields.POSITION | Fields.NODES | Fields.PARTITIONS | Fields.COORDINATORS | Fields.GROUP_PROGRESS
_DEPENDS = readiness.fields_of(readiness.EVERY_PART)


@dataclass(frozen=True, slots=True)
class Assessment:
    """One observation of everything, and whether a rollback is assured by it; `acts`: kmigrate's own, from its journals."""

    view: ClusterView
    readiness: Readiness
    acts: KnownActs
    changed: bool  # since the verdict that the journals have last


def assess_readiness(context: StepContext) -> Assessment:
    """Observe everything once and judge whether a rollback is assured; changes nothing.

    The dual-write is proven by movement: /migration is read a moment earlier. What costs megabytes is read only while there is
    something to roll back.
    """
    before, now = context.observer.observe(Fields.POSITION), context.clock.now()
    depends = position_of(before).phase is not Phase.ZOOKEEPER and not migration_has_ended(before)
    if depends and kraft_owns(before):
        context.clock.sleep(gates.STILL)
    fields = _WATCHED | (_DEPENDS if depends else Fields(0))
    view = with_backup(context, fields, context.observer.observe(fields))
    lines = journal_lines.parse_lines(read_journal_lines(context.journals)).lines
    spans, last_verdict = journal_lines.list_acts(lines), journal_lines.last_readiness(lines)
    since = last_verdict[1] if last_verdict and last_verdict[0] != "ready" else None
    restart_seconds = journal_lines.median_restart_seconds(spans, context.spec.policy.canary_bake)
    verdict = readiness.judge_rollback(
        view, ReadinessAsk(before=before), now, unready_since=since, restart_seconds=restart_seconds
    )
    figures = (*position_gauges(replace(view, probe=context.probe())), *group_gauges(view.group_progress))
    context.export((*build_gauges(__version__), *figures, *readiness_gauges(verdict, now)))
    acts = KnownActs(journal_lines.last_act_by_node(spans), now, context.spec.policy.start_timeout)
    return Assessment(view, verdict, acts, changed=depends and (last_verdict is None or last_verdict[0] != verdict.level))


def note_readiness(context: StepContext, assessment: Assessment, step: str) -> None:
    """Put a verdict that has changed into the journal, from which the next one takes since when it holds."""
    if assessment.changed:
        text = readiness.describe_readiness(assessment.readiness, assessment.acts.now)
        fingerprint = readiness.fingerprint(assessment.readiness)
        context.journal.write(journal_lines.readiness_kind(assessment.readiness.level), step, text, fingerprint=fingerprint)


def require_rollback_assured(
    context: StepContext, show_assessment: Callable[[Assessment, Sequence[Reason]], object] = lambda _assessment, _causes: None
) -> Readiness:
    """The verdict, if it is ready. Raises `Refused` if an operator must act first, `Unavailable` if waiting may help.

    `show_assessment` is called with what was observed, and one reason for each cause that an operator must know.

    A finalization that kmigrate itself has begun is shown as it is: nothing is refused because of the flags that it took.
    """
    assessment = assess_readiness(context)
    note_readiness(context, assessment, "readiness")
    show_assessment(assessment, find_causes(context.spec, assessment).roots)
    if migration_has_ended(assessment.view) or (
        position_of(assessment.view).phase is Phase.FINALIZING and flags_taken_by_us(assessment.view)
    ):
        return assessment.readiness
    gate = readiness.combine_into_gate(assessment.readiness.reasons)
    require_gate(replace(gate, reasons=(*gate.reasons, *errors_behind(assessment.view, gate.reasons))))
    return assessment.readiness


def read_owner(context: StepContext) -> ClusterOwner | None:
    """The run that owns the cluster, and whether a process of it shows life; None if none does, or it could not be read."""
    try:
        fence = Fence(context.tools.zk, context.spec.cluster_id, "watching")
        owner = fence.holder()
        return ClusterOwner(owner.owner, alive=fence.alive()) if owner else None
    except Unavailable:
        return None


def find_causes(
    spec: ClusterSpec, assessment: Assessment, certain: Sequence[Reason] = (), passing: Sequence[Reason] = ()
) -> Grouped:
    """What an operator must know now, one reason for each cause, and what follows from them; beside what else is `certain`, or may pass."""
    view, acts, verdict = assessment.view, assessment.acts, assessment.readiness
    urgent = (*watch.find_immediate_alarms(view, spec.policy.max_hybrid, acts.now), *watch.lost_rollback_reasons(verdict))
    staying = watch.find_debounced_alarms(view, acts)
    staying = (*staying, *watch.find_rollback_alarms(view, staying, verdict, acts), *passing)
    reported = tuple(dict.fromkeys((*(replace(reason, certain=True) for reason in urgent), *certain, *staying)))
    machines = {node.name: node.host for node in spec.nodes()}
    return reduce_to_causes(reported, watch.unread_reasons(view), machines, watch.expected_reasons(view, acts))


def run_watch(
    context: StepContext,
    show_verdict: Callable[[Readiness, float], object] = lambda _verdict, _now: None,
    find_more_alarms: Callable[[Assessment], tuple[Reason, ...]] = lambda _found: (),
    show_hidden: Callable[[Sequence[Reason]], object] = lambda _reasons: None,
    show_assessment: Callable[[Assessment, Sequence[Reason]], object] = lambda _assessment, _causes: None,
) -> Done:
    """Report the state of the cluster and whether a rollback is assured; changes nothing.

    `show_verdict` is called with the verdict and the time. `find_more_alarms`: what is an alarm beside, such as a phase that lasts too long.
    `show_hidden` is called with what follows from another cause and is not reported, `show_assessment` as in `require_rollback_assured`. One cause is one reason (`causes.reduce_to_causes`); what
    kmigrate itself brought about is none.

    Raises `Refused` if the operator must act at once: an alarm, a hybrid or a phase that lasts too long, a broker that computes
    coordinators with another count, a rollback that is not possible any more, whatever no later observation would show gone. Raises
    `Unavailable` if something is not as it should be that may pass by itself: a node that does not answer or is out of ISRs, a rollback that is
    not assured, a finalization that has only begun, Kafka's own gauges that contradict the observation, consumer groups that have lost their
    members since a restart: retry.
    """
    assessment = assess_readiness(context)
    view, now, verdict = assessment.view, assessment.acts.now, assessment.readiness
    gauges, contradictions = _compare_gauges(context, view)
    groups, lost_groups = _describe_group_progress(context, view)
    phase, rollback = waits.describe_phase(view, now), readiness.describe_readiness(verdict, now)
    controller_text = watch.describe_missing_controller(view, assessment.acts, now)
    state = " ".join(filter(None, (phase, controller_text, rollback, groups))) + gauges
    context.say(state)
    show_verdict(verdict, now)
    note_readiness(context, assessment, "watch")
    grouped = find_causes(context.spec, assessment, find_more_alarms(assessment), (*contradictions, *lost_groups))
    show_hidden(grouped.follows)
    show_assessment(assessment, grouped.roots)
    if grouped.follows:
        context.say(f"Not reported, since it follows from other causes: {format_reason_lines(grouped.follows)}")
    text = f"watch: {state} {format_reasons(grouped.roots)}"
    if any(reason.certain for reason in grouped.roots):
        context.journal.write("alarm", "watch", format_reasons(reason for reason in grouped.roots if reason.certain))
        raise Refused(text, grouped.roots)
    if grouped.roots:
        raise Unavailable(text, grouped.roots)
    return Done(state)
