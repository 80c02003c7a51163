"""The waits of a migration, the elections that two of them need, and read-only checks of its state.

`decide_whether_jobs_may_begin` reads the partitions, the fence's owner and the journals of its runs. `run_watch` checks a migration
while its run has failed, waits for approval, or was left.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Self

from airflow_provider_kmigrate.clients.fence import Fence
from airflow_provider_kmigrate.clients.metrics import gauges_of
from airflow_provider_kmigrate.core import coordinator, gates, group_progress, journal_lines, readiness, watch, witness
from airflow_provider_kmigrate.core.causes import one_for_each, why_unread
from airflow_provider_kmigrate.core.cluster import GroupProgressSpec
from airflow_provider_kmigrate.core.decision import Act, Decision, Done, Refuse, Verb, Wait
from airflow_provider_kmigrate.core.gates import Gate, leaderless, unmet
from airflow_provider_kmigrate.core.gauges import position_gauges, readiness_gauges
from airflow_provider_kmigrate.core.migration import roll, waits
from airflow_provider_kmigrate.core.migration.roll import MovedSince, moved_since
from airflow_provider_kmigrate.core.migration.waits import HealthyTimer, SoakComparison
from airflow_provider_kmigrate.core.model import Cause, ClusterView, Fields, Reason
from airflow_provider_kmigrate.core.phase import COPIED, Phase, ended, flags_taken_by_us, kraft_owns, where
from airflow_provider_kmigrate.core.progress import StepProgress
from airflow_provider_kmigrate.core.readiness import Readiness, ReadinessAsk
from airflow_provider_kmigrate.core.spark import job_risks
from airflow_provider_kmigrate.core.watch import ClusterOwner, KnownActs
from airflow_provider_kmigrate.exceptions import Refused, Unavailable
from airflow_provider_kmigrate.steps.dual_write import DualWriteRepair
from airflow_provider_kmigrate.steps.group_watch import GroupWatch
from airflow_provider_kmigrate.steps.journal import format_reasons, lines_of, reason_lines
from airflow_provider_kmigrate.steps.run import Step, StepContext, require_gate, with_backup

_CHECKED = Fields.COORDINATORS | Fields.ENSEMBLE
_CHECKED_EVERY = 30.0  # seconds of a soak; an expansion of a topic is reported within a minute
_SOAKING = Fields.POSITION | Fields.PARTITIONS | Fields.CLIENT_METRICS | Fields.GROUPS


class WaitStep(Step):
    """A step that observes until `decided`, of an observation and the first one, is Done; it remembers nothing and never acts."""

    def __init__(
        self,
        name: str,
        decided: Callable[[ClusterView, ClusterView], Decision],
        *,
        fields: Fields = Fields.POSITION,
        samples: int = 1,
        interval: float = Step.interval,
        patience: float = Step.patience,
    ) -> None:
        self.name, self._decided, self.fields = name, decided, fields
        self.samples, self.interval, self.patience = samples, interval, patience

    def decide(self, view: ClusterView, first: ClusterView) -> Decision:
        """Decide by the wait's own function."""
        return self._decided(view, first)


def controllers_ready() -> Step:
    """Wait until all controllers are up, flagged and follow one leader."""
    return WaitStep("controllers ready", lambda view, _: waits.controllers_ready(view), samples=2, patience=180.0)


class EndOfRoll(Step):
    """Wait until `decided` of an observation is Done, and the consumer groups continue: a roll is over."""

    samples = 2

    def __init__(
        self,
        name: str,
        groups: GroupProgressSpec,
        decided: Callable[[ClusterView], Decision],
        *,
        fields: Fields = Fields.POSITION,
        interval: float = Step.interval,
    ) -> None:
        self.name, self._decided, self._groups = name, decided, GroupWatch(groups, end=True)
        self.fields, self.interval = fields, interval

    def begin(self, context: StepContext) -> None:
        """Read what the previous restart left of the consumer groups."""
        self._groups.begin(context)
        self.groups = self._groups.progress.named

    def end(self, context: StepContext) -> None:
        """Leave the sweep of the consumer groups to the next restart."""
        self._groups.save(context)

    def expensive_fields(self, view: ClusterView) -> Fields:
        """The consumer groups, once nothing else is waited for."""
        return self._groups.fields(view, self._decided(view))

    def decide(self, view: ClusterView, _first: ClusterView) -> Decision:
        """Wait for the brokers, then for the consumer groups."""
        alone = self._decided(view)
        decision = self._groups.decide(view, alone, alone)
        self.groups = self._groups.progress.named
        return decision


def brokers_registered(expected: Collection[int], groups: GroupProgressSpec) -> Step:
    """Wait until every broker of the cluster file is registered and known to all others, and consumer groups continue."""
    ids = frozenset(expected)
    return EndOfRoll("all brokers registered", groups, lambda view: waits.brokers_registered(view, ids))


def phase_reached(patience: float) -> Step:
    """Wait until the cluster shows the phase after the copy, or a later one, twice in a row."""

    def decided(view: ClusterView, _first: ClusterView) -> Decision:
        position = where(view)
        text = f"The cluster is in phase '{position.phase}'."
        return Done(text) if position.phase in COPIED or ended(view) else Wait((Reason("P11", text), *position.reasons))

    return WaitStep("migration phase", decided, samples=2, patience=patience)


def lag_small(limit: int, patience: float) -> Step:
    """Wait until the dual-write lag is small while /migration moves."""
    return WaitStep("dual-write lag", lambda view, first: waits.lag_small(view, first, limit), patience=patience)


def coordinators_agree(patience: float) -> Step:
    """Wait until every broker computes coordinators with the topics' own partition counts."""
    fields = Fields.BROKERS | Fields.ZOOKEEPER | Fields.PARTITIONS | Fields.COORDINATORS
    decided = coordinator.decide_agreement
    return WaitStep("coordinators", lambda view, _: decided(view), fields=fields, interval=1.0, patience=patience)


def equivalent(patience: float, decided: Callable[[ClusterView], Decision] = waits.equivalent) -> Step:
    """Wait until ZooKeeper and KRaft store the same metadata of every kind, or until `decided` accepts the difference."""
    fields = Fields.POSITION | Fields.METADATA
    return WaitStep("metadata equivalence", lambda view, _: decided(view), fields=fields, interval=1.0, patience=patience)


class _DualWriting(Step):
    """A step that needs a moving dual-write."""

    always: Fields  # what it observes while all is healthy

    def __init__(self) -> None:
        self._recovery = DualWriteRepair()
        self.fields = self.always

    def resume(self, progress: StepProgress) -> Self:
        """Continue the count of recoveries."""
        self._recovery = DualWriteRepair(progress.recoveries)
        return super().resume(progress)

    @property
    def progress(self) -> StepProgress:
        """The count of recoveries."""
        return replace(super().progress, recoveries=self._recovery.stalled.times)

    def or_recovery(self, view: ClusterView, decision: Decision) -> Decision:
        """The decision, or the recovery of the dual-write that replaces it."""
        decision = self._recovery.decide(view, decision)
        self.fields = self.always | self._recovery.more_fields
        self.must_stay = self._recovery.stalled.pending
        return decision

    def act(self, context: StepContext, act: Act) -> None:
        """Recover the dual-write."""
        if not self._recovery.act(context, self.name, act):
            super().act(context, act)

    def forget_decision(self) -> None:
        """Forget the recovery that was decided."""
        self._recovery.forget_decision()


class Copied(_DualWriting):
    """Wait until the copy is over and the dual-write moves; elect leaders that the takeover left out."""

    name = "metadata copy"
    max_acts = 60
    always = Fields.POSITION | Fields.PARTITIONS

    def __init__(self, patience: float = 600.0) -> None:
        super().__init__()
        self.patience = patience
        self._since: ClusterView | None = None  # the first observation after the copy

    def decide(self, view: ClusterView, _first: ClusterView) -> Decision:
        """Wait until everything is copied, or recover a stalled dual-write."""
        self._since = waits.copied_since(self._since, view)
        return self.or_recovery(view, waits.copied(view, self._since))

    def act(self, context: StepContext, act: Act) -> None:
        """Elect leaders of leaderless partitions, or recover the dual-write."""
        if act.verb is Verb.ELECT:
            context.tools.admin.elect_preferred(leaderless(context.observer.observe(Fields.PARTITIONS)), context.fence)
        else:
            super().act(context, act)


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
        self._total = len(roll.not_preferred(first))
        return roll.decide_leaders(view)

    def act(self, context: StepContext, _act: Act) -> None:
        """Elect one batch, then wait for one interval."""
        batch = roll.batch(context.observer.observe(Fields.PARTITIONS), self._batch, self._total)
        context.tools.admin.elect_preferred(batch, context.fence)
        context.clock.sleep(self.interval)


class Soak(_DualWriting):
    """Every gate stays healthy for `seconds`; one unhealthy observation restarts the time.

    All metadata is compared, and every node's file read, from time to time. If something stays missing in ZooKeeper, a new
    leader writes it. Any other lasting difference refuses, since a rollback would not restore the metadata in use.
    """

    name = "soak in dual-write"
    patience = 3600.0  # an unhealthy hour is no passing disturbance
    always = _SOAKING

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds, self.interval = seconds, min(2.0, max(0.2, seconds / 10))
        self._healthy_timer = HealthyTimer(0.0, self.interval)
        self._compared = SoakComparison()
        self._agreed_at = float("-inf")  # when the brokers' coordinators last agreed
        self._moved: MovedSince | None = None

    def resume(self, progress: StepProgress) -> Self:
        """Continue the healthy time."""
        self._healthy_timer = replace(self._healthy_timer, held=progress.healthy_seconds)
        return super().resume(progress)

    @property
    def progress(self) -> StepProgress:
        """The healthy time and the count of recoveries."""
        return replace(super().progress, healthy_seconds=self._healthy_timer.held)

    @property
    def seconds_left(self) -> float:
        """Seconds of healthy time that the soak still needs."""
        return max(0.0, self.seconds - self._healthy_timer.held)

    def decide(self, view: ClusterView, first: ClusterView) -> Decision:
        """Wait until the cluster was healthy for long enough; refuse what does not pass by itself."""
        if (past := waits.past_soak(view)) is not None:
            return past
        self._moved = moved_since(self._moved, view, first)
        gate = self._gate(view, self._moved.old)
        self._healthy_timer = self._healthy_timer.observe(view.taken_at, healthy=gate.met)
        decision = self._judged(view, gate)
        if isinstance(decision, Refuse):
            self._healthy_timer = self._healthy_timer.forgotten()
            return self._recovery.repair_difference(view, decision)
        return self.or_recovery(view, decision)

    def _judged(self, view: ClusterView, gate: Gate) -> Decision:
        if not gate.met:
            return unmet(gate)
        held = self._healthy_timer.held
        if held >= self.seconds:
            end = waits.may_end_soak(view, self._moved.old if self._moved else view)
            self.always |= Fields.NODES | _CHECKED
            return Done(waits.soaked(view, held)) if end.met else Wait(end.reasons, healthy=True)
        return Wait((Reason("T01", f"Soaking: healthy for {held:.0f} of {self.seconds:.0f} s."),), healthy=True)

    def _gate(self, view: ClusterView, before: ClusterView) -> Gate:
        gate = waits.soaking(view, before)
        if gate.met:
            self._compared, gate = self._compared.observe(view)
        else:
            self._compared = self._compared.forgotten(view)
        if view.coordinators is not None and coordinator.agreed(view).met:
            self._agreed_at = view.taken_at
        seldom = _CHECKED if view.taken_at - self._agreed_at >= _CHECKED_EVERY else Fields(0)
        self.always = _SOAKING | seldom | (Fields.METADATA | Fields.NODES if self._compared.due else Fields(0))
        return gate


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
        self._still = waits.still_since(self._still, view)
        return waits.finalized(view, self._still)


def decide_whether_jobs_may_begin(context: StepContext, quiet_for: float) -> Decision:
    """Decide once whether jobs may begin; changes nothing. `quiet_for`: seconds."""
    lines = journal_lines.read(lines_of(context.journals)).lines
    view, holder = context.observer.observe(Fields.PARTITIONS), _holder(context)
    return job_risks.decide(view, lines, holder, round(1000 * context.clock.now()), round(1000 * quiet_for))


def _holder(context: StepContext) -> job_risks.Holder:
    try:
        owner = Fence(context.tools.zk, context.spec.cluster_id, "watching").holder()
    except Unavailable:
        return job_risks.Holder(known=False)
    return job_risks.Holder(owner.owner if owner else None)


def _progress_of_groups(context: StepContext, view: ClusterView) -> tuple[str, tuple[Reason, ...]]:
    """Which consumer groups have lag and do not move while the watch observes, as a sentence: no alarm, they may never have moved.

    And the groups that have lost their members since a restart, by what the last step left.
    """
    kept, first = context.groups.load(), view.group_progress
    awaited = tuple(kept.awaited)[: group_progress.MOST_NAMED] if kept else ()
    last = first
    if first is not None and (first.groups or awaited):
        context.clock.sleep(group_progress.WINDOW)
        last = context.observer.observe(Fields.GROUP_PROGRESS, (), awaited).group_progress
    spec = context.spec.group_progress
    return group_progress.describe(first, last, spec), group_progress.lost(kept, last, spec)


def _second_witness(context: StepContext, view: ClusterView) -> tuple[str, tuple[Reason, ...]]:
    """What Kafka's own gauges say, as a sentence, and where they contradict the view; nothing without an address or controllers."""
    if not context.spec.controller_metrics or where(view).phase is Phase.ZOOKEEPER:
        return "", ()
    gauges = gauges_of(context.spec.controller_metrics, context.spec.controllers)
    return f" {witness.describe(view, gauges)}", witness.contradictions(view, gauges)


_WATCHED = Fields.POSITION | Fields.NODES | Fields.PARTITIONS | Fields.COORDINATORS | Fields.GROUP_PROGRESS
_DEPENDS = readiness.fields_of(readiness.EVERY_PART)


@dataclass(frozen=True, slots=True)
class Assessment:
    """One observation of everything, and whether a rollback is assured by it; `acts`: kmigrate's own, from its journals."""

    view: ClusterView
    readiness: Readiness
    acts: KnownActs
    changed: bool  # since the verdict that the journals have last


def assess(context: StepContext) -> Assessment:
    """Observe everything once and judge whether a rollback is assured; changes nothing.

    The dual-write is proven by movement: /migration is read a moment earlier. What costs megabytes is read only while there is
    something to roll back.
    """
    before, now = context.observer.observe(Fields.POSITION), context.clock.now()
    depends = where(before).phase is not Phase.ZOOKEEPER and not ended(before)
    if depends and kraft_owns(before):
        context.clock.sleep(gates.STILL)
    fields = _WATCHED | (_DEPENDS if depends else Fields(0))
    view = with_backup(context, fields, context.observer.observe(fields))
    lines = journal_lines.read(lines_of(context.journals)).lines
    spans, last = journal_lines.acts(lines), journal_lines.last_readiness(lines)
    since = last[1] if last and last[0] != "ready" else None
    took = journal_lines.restart_seconds(spans)
    verdict = readiness.judge(view, ReadinessAsk(before=before), now, unready_since=since, restart_seconds=took)
    context.export((*position_gauges(view), *readiness_gauges(verdict, now)))
    acts = KnownActs(journal_lines.last_acts(spans), now, context.spec.policy.start_timeout)
    return Assessment(view, verdict, acts, changed=depends and (last is None or last[0] != verdict.level))


def note_readiness(context: StepContext, found: Assessment, step: str) -> None:
    """Put a verdict that has changed into the journal, from which the next one takes since when it holds."""
    if found.changed:
        text = readiness.describe(found.readiness, found.acts.now)
        hashed = readiness.fingerprint(found.readiness)
        context.journal.write(journal_lines.readiness_kind(found.readiness.level), step, text, fingerprint=hashed)


def require_rollback_assured(context: StepContext) -> Readiness:
    """The verdict, if it is ready. Raises `Refused` if an operator must act first, `Unavailable` if waiting may help.

    A finalization that kmigrate itself has begun is shown as it is: nothing is refused because of the flags that it took.
    """
    found = assess(context)
    note_readiness(context, found, "readiness")
    if ended(found.view) or (where(found.view).phase is Phase.FINALIZING and flags_taken_by_us(found.view)):
        return found.readiness
    gate = readiness.as_gate(found.readiness.reasons)
    require_gate(replace(gate, reasons=(*gate.reasons, *why_unread(found.view, gate.reasons))))
    return found.readiness


def owner_of(context: StepContext) -> ClusterOwner | None:
    """The run that owns the cluster, and whether a process of it shows life; None if none does, or it could not be read."""
    try:
        fence = Fence(context.tools.zk, context.spec.cluster_id, "watching")
        owner = fence.holder()
        return ClusterOwner(owner.owner, alive=fence.alive()) if owner else None
    except Unavailable:
        return None


def run_watch(
    context: StepContext,
    shows: Callable[[Readiness, float], object] = lambda _verdict, _now: None,
    more: Callable[[Assessment], tuple[Reason, ...]] = lambda _found: (),
    hides: Callable[[Sequence[Reason]], object] = lambda _reasons: None,
) -> Done:
    """Report the state of the cluster and whether a rollback is assured; changes nothing.

    `shows` is called with the verdict and the time. `more`: what is an alarm beside, such as a phase that lasts too long.
    `hides` is called with what follows from another cause and is not reported. One cause is one reason (`causes.one_for_each`); what
    kmigrate itself brought about is none.

    Raises `Refused` if the operator must act at once: an alarm, a hybrid or a phase that lasts too long, a broker that computes
    coordinators with another count, a rollback that is not possible any more, whatever no later look would show gone. Raises
    `Unavailable` if something is not as it should be that may pass by itself: a node that does not answer or is out of ISRs, a rollback that is
    not assured, a finalization that has only begun, Kafka's own gauges that contradict the observation, consumer groups that have lost their
    members since a restart: retry.
    """
    found = assess(context)
    view, now, verdict = found.view, found.acts.now, found.readiness
    at_once = (*watch.at_once(view, context.spec.policy.max_hybrid, now), *watch.lost(verdict))
    gauges, contradictions = _second_witness(context, view)
    groups, lost_groups = _progress_of_groups(context, view)
    phase, rollback = waits.describe_phase(view, now), readiness.describe(verdict, now)
    led = watch.describe_controller(view, found.acts, now)
    state = " ".join(filter(None, (phase, led, rollback, groups))) + gauges
    context.say(state)
    shows(verdict, now)
    note_readiness(context, found, "watch")
    staying = watch.if_it_stays(view, found.acts)
    staying = (*staying, *watch.beside(view, staying, verdict, found.acts), *contradictions, *lost_groups)
    certain = (replace(reason, certain=True) for reason in at_once)
    reported = tuple(dict.fromkeys((*certain, *more(found), *staying)))
    machines = {node.name: node.host for node in context.spec.nodes()}
    grouped = one_for_each(reported, watch.unread(view), machines, watch.brought_about(view, found.acts))
    hides(grouped.follows)
    if grouped.follows:
        context.say(f"Not reported, since it follows from other causes: {reason_lines(grouped.follows)}")
    text = f"watch: {state} {format_reasons(grouped.roots)}"
    if any(reason.certain for reason in grouped.roots):
        context.journal.write("alarm", "watch", format_reasons(reason for reason in grouped.roots if reason.certain))
        raise Refused(text, grouped.roots)
    if grouped.roots:
        raise Unavailable(text, grouped.roots)
    return Done(state)
