"""The waits of a migration, the elections that two of them need, and read-only checks of its state.

`look` decides whether Spark jobs may begin: from the partitions, the fence's owner and the journals of its runs. `run_watch`
checks a migration while its run has failed, waits for approval, or was left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Self

from airflow_provider_kmigrate.clients.fence import Fence
from airflow_provider_kmigrate.core import gates, journal_lines
from airflow_provider_kmigrate.core.decision import Act, Decision, Done, Refuse, Verb, Wait
from airflow_provider_kmigrate.core.gates import Gate, leaderless, unmet
from airflow_provider_kmigrate.core.migration import roll, waits
from airflow_provider_kmigrate.core.migration.roll import MovedSince, moved_since
from airflow_provider_kmigrate.core.migration.waits import HealthyTimer, SoakComparison
from airflow_provider_kmigrate.core.model import Cause, ClusterView, Fields, Reason
from airflow_provider_kmigrate.core.phase import Phase, where
from airflow_provider_kmigrate.core.progress import StepProgress
from airflow_provider_kmigrate.core.spark import job_risks
from airflow_provider_kmigrate.exceptions import Refused, Unavailable
from airflow_provider_kmigrate.steps.dual_write import Reviving
from airflow_provider_kmigrate.steps.files import rollback_prerequisites
from airflow_provider_kmigrate.steps.journal import format_reasons
from airflow_provider_kmigrate.steps.run import Step, StepContext

_SOAKING = Fields.POSITION | Fields.PARTITIONS | Fields.CLIENT_METRICS | Fields.GROUPS


class ControllersReady(Step):
    """Wait until all controllers are up, flagged and follow one leader."""

    name = "controllers ready"
    looks = Fields.POSITION
    samples = 2
    patience = 180.0

    def decide(self, view: ClusterView, first: ClusterView) -> Decision:
        del first
        return waits.controllers_ready(view)


class BrokersRegistered(Step):
    """Wait until every broker of the cluster file is registered and known to all others."""

    name = "all brokers registered"
    looks = Fields.POSITION
    samples = 2

    def __init__(self, expected: Collection[int]) -> None:
        self._expected = frozenset(expected)

    def decide(self, view: ClusterView, first: ClusterView) -> Decision:
        del first
        return waits.brokers_registered(view, self._expected)


class PhaseReached(Step):
    """Wait until the cluster shows one of these phases, `samples` times in a row."""

    name = "migration phase"
    looks = Fields.POSITION
    samples = 2

    def __init__(self, phases: Collection[Phase], patience: float = 600.0) -> None:
        self._phases, self.patience = frozenset(phases), patience

    def decide(self, view: ClusterView, first: ClusterView) -> Decision:
        del first
        position = where(view)
        if position.phase in self._phases:
            return Done(f"The cluster is in phase '{position.phase}'.")
        return Wait((waits.not_there_yet(f"The cluster is in phase '{position.phase}'."), *position.reasons))


class _DualWriting(Step):
    """A step that needs a moving dual-write."""

    always: Fields  # what it observes while all is healthy

    def __init__(self) -> None:
        self._reviving = Reviving()
        self.looks = self.always

    def resume(self, progress: StepProgress) -> Self:
        self._reviving = Reviving(progress.recoveries)
        return super().resume(progress)

    @property
    def progress(self) -> StepProgress:
        return replace(super().progress, recoveries=self._reviving.renewed)

    def cured(self, view: ClusterView, decision: Decision) -> Decision:
        decision = self._reviving.cured(view, decision)
        self.looks = self.always | self._reviving.wants
        self.acts_after = float("inf") if self._reviving.sees_to_the_end else 0.0
        return decision

    def act(self, world: StepContext, act: Act) -> None:
        if not self._reviving.acted(world, self.name, act):
            super().act(world, act)

    def undo(self) -> None:
        self._reviving.undo()


class Copied(_DualWriting):
    """Wait until the copy is over and the dual-write moves; elect leaders that the takeover left out."""

    name = "metadata copy"
    most_acts = 60
    always = Fields.POSITION | Fields.PARTITIONS

    def __init__(self, patience: float = 600.0) -> None:
        super().__init__()
        self.patience = patience
        self._since: ClusterView | None = None  # the first observation after the copy

    def decide(self, view: ClusterView, first: ClusterView) -> Decision:
        del first
        self._since = waits.copied_since(self._since, view)
        return self.cured(view, waits.copied(view, self._since))

    def act(self, world: StepContext, act: Act) -> None:
        if act.verb is Verb.ELECT:
            world.tools.admin.elect_preferred(leaderless(world.observer.look(Fields.PARTITIONS)))
        else:
            super().act(world, act)


class LagSmall(Step):
    """Wait until the dual-write lag is small while /migration moves."""

    name = "dual-write lag"
    looks = Fields.POSITION

    def __init__(self, limit: int = 10, patience: float = 600.0) -> None:
        self._limit, self.patience = limit, patience

    def decide(self, view: ClusterView, first: ClusterView) -> Decision:
        return waits.lag_small(view, first, self._limit)


class Equivalent(Step):
    """Wait until ZooKeeper and KRaft store the same metadata of every kind."""

    name = "metadata equivalence"
    looks = Fields.POSITION | Fields.METADATA
    interval = 1.0

    def __init__(self, patience: float = 600.0) -> None:
        self.patience = patience

    def decide(self, view: ClusterView, first: ClusterView) -> Decision:
        del first
        return waits.equivalent(view)


class PreferredLeaders(Step):
    """Move leadership to the preferred replicas."""

    name = "preferred leaders"
    most_acts = 3 * roll.MOST_ROUNDS
    looks = Fields.ZOOKEEPER | Fields.PARTITIONS

    def __init__(self, batch: int, patience: float = 300.0) -> None:
        self._batch, self._total, self.patience = batch, 0, patience

    def decide(self, view: ClusterView, first: ClusterView) -> Decision:
        self._total = len(roll.not_preferred(first))
        return roll.decide_leaders(view)

    def act(self, world: StepContext, act: Act) -> None:
        del act
        batch = roll.batch(world.observer.look(Fields.PARTITIONS), self._batch, self._total)
        world.tools.admin.elect_preferred(batch)
        world.clock.sleep(self.interval)


class Soak(_DualWriting):
    """Every gate stays healthy for `seconds`; one unhealthy observation restarts the time.

    All metadata is compared from time to time. If ZooKeeper keeps missing something, a new leader writes it. Another lasting
    difference refuses, since a rollback would not restore what is in force.
    """

    name = "soak in dual-write"
    patience = 3600.0  # an unhealthy hour is more than a hiccup
    always = _SOAKING

    def __init__(self, seconds: float, interval: float | None = None, lag_limit: int = gates.MOST_LAG) -> None:
        super().__init__()
        self.seconds, self._lag_limit = seconds, lag_limit
        self.interval = min(2.0, max(0.2, seconds / 10)) if interval is None else interval
        self._green = HealthyTimer(0.0, self.interval)
        self._compared = SoakComparison()
        self._moved: MovedSince | None = None

    def resume(self, progress: StepProgress) -> Self:
        self._green = replace(self._green, held=progress.healthy_seconds)
        return super().resume(progress)

    @property
    def progress(self) -> StepProgress:
        return replace(super().progress, healthy_seconds=self._green.held)

    def decide(self, view: ClusterView, first: ClusterView) -> Decision:
        if (past := waits.past_soak(view)) is not None:
            return past
        self._moved = moved_since(self._moved, view, first)
        gate = self._gate(view, self._moved.old)
        self._green = self._green.saw(view.taken_at, green=gate.met)
        decision = self._judged(view, gate)
        if isinstance(decision, Refuse):
            self._green = self._green.forgotten()
        return self._reviving.found(view, decision) if isinstance(decision, Refuse) else self.cured(view, decision)

    def _judged(self, view: ClusterView, gate: Gate) -> Decision:
        if not gate.met:
            return unmet(gate)
        held = self._green.held
        if held >= self.seconds:
            return Done(waits.soaked(view, held))
        return Wait((Reason("T01", f"Soaking: healthy for {held:.0f} of {self.seconds:.0f} s."),), healthy=True)

    def _gate(self, view: ClusterView, before: ClusterView) -> Gate:
        gate = waits.soaking(view, before, self._lag_limit)
        if gate.met:
            self._compared, gate = self._compared.saw(view)
        else:
            self._compared = self._compared.forgotten(view)
        self.always = _SOAKING | Fields.METADATA if self._compared.due else _SOAKING
        return gate


class Finalized(Step):
    """Wait until no controller carries the flag and nothing is written to ZooKeeper."""

    name = "finalized"
    looks = Fields.POSITION | Fields.PARTITIONS
    patience = 180.0
    expected = frozenset({Cause.UNFLAGGED_CONTROLLER})

    def __init__(self) -> None:
        self._still: ClusterView | None = None  # since when /migration has not moved

    def decide(self, view: ClusterView, first: ClusterView) -> Decision:
        del first
        self._still = waits.still_since(self._still, view)
        return waits.finalized(view, self._still)


def look(world: StepContext, journals: Path, calm: float) -> Decision:
    """Decide once whether jobs may begin; changes nothing. `journals`: the folder of the cluster's journals; `quiet_for`: seconds."""
    lines = journal_lines.read(_lines(journals)).lines
    view, holder = world.observer.look(Fields.PARTITIONS), _holder(world)
    return job_risks.decide(view, lines, holder, round(1000 * world.clock.now()), round(1000 * calm))


def _lines(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("*.jsonl")) if folder.is_dir() else ():
        yield from path.read_text(encoding="utf-8", errors="replace").splitlines()


def _holder(world: StepContext) -> job_risks.Holder:
    try:
        owner = Fence(world.tools.zk, world.spec.cluster_id, "watching").holder()
    except Unavailable:
        return job_risks.Holder(known=False)
    return job_risks.Holder(owner.owner if owner else None)


def run_watch(world: StepContext) -> Done:
    """Report the state of the cluster; changes nothing.

    Raises `Refused` if the operator must act at once: an alarm, a hybrid that lasts too long, a lost rollback prerequisite
    (backup, commands). Raises `Unavailable` if nodes of a migration under way do not answer, or kmigrate's own finalization has
    only begun: retry.
    """
    view, now = world.observer.look(Fields.POSITION), world.clock.now()
    lost = rollback_prerequisites(world.spec, world.backup, world.spec.brokers) if waits.needs_way_back(view) else ()
    reasons = (*waits.at_once(view, world.spec.policy.max_hybrid, now), *lost)
    stands = waits.stands(view, now)
    world.say(stands)
    if reasons:
        world.journal.write("alarm", "watch", format_reasons(reasons))
        raise Refused(f"watch: {stands} {format_reasons(reasons)}", reasons)
    if silent := waits.if_it_stays(view):
        raise Unavailable(f"watch: {stands} {format_reasons(silent)}")
    return Done(stands)
