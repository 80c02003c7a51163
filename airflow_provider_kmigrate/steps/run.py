"""The loop behind every step: observe, decide, act at most once per observation, until nothing is left to do.

Killed anywhere and run again, a step observes what is already done, and does what is left. What no observation can show (how long
all was healthy, why a canary must be rolled back) is its `StepProgress`, kept in Airflow's task state store. Before
every act `pass_gate` asks once more (`core.migration.gates`), and the act is in the journal with what allowed it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, cast

from airflow_provider_kmigrate.clients.holding import Holding
from airflow_provider_kmigrate.clients.tools import Tools
from airflow_provider_kmigrate.core.cluster_state.decision import Act, Decision, Done, NextAction, Reading, Refuse, Verb, Wait
from airflow_provider_kmigrate.core.cluster_state.model import (
    BackupFacts,
    Broker,
    Cause,
    ClusterEnvironment,
    ClusterView,
    Controller,
    Fields,
    NoProbe,
    ProbeFigures,
    Reason,
    could_not_read,
    headlines,
)
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, NodeRole, NodeSpec
from airflow_provider_kmigrate.core.migration.gates import (
    MAX_VIEW_AGE,
    Barrier,
    Gate,
    GateState,
    Standing,
    find_barrier,
    is_identified,
    map_files,
    unidentified_reasons,
    wait_after_outage,
    without_left_brokers,
    wrong_cluster_reasons,
)
from airflow_provider_kmigrate.core.migration.group_progress import GroupsKept
from airflow_provider_kmigrate.core.migration.phase import position_of
from airflow_provider_kmigrate.core.migration.plan import Estimate
from airflow_provider_kmigrate.core.migration.progress import StepProgress
from airflow_provider_kmigrate.core.migration.roll import takes_part
from airflow_provider_kmigrate.core.migration.waits import find_urgent_alarms, wait_for_window
from airflow_provider_kmigrate.core.monitoring.causes import errors_behind
from airflow_provider_kmigrate.core.monitoring.gauges import Gauge, GaugeHistory, estimate_seconds_left
from airflow_provider_kmigrate.exceptions import (
    Failed,
    Fenced,
    KMigrateError,
    Refused,
    TimedOut,
    Unavailable,
    Unreachable,
    WrongCluster,
)
from airflow_provider_kmigrate.steps.backup import BackupStore, compare_files, read_backup_facts
from airflow_provider_kmigrate.steps.journal import (
    EXPECTED_FOR,
    StepJournal,
    collect_evidence,
    format_expected_wait,
    format_reason_lines,
    format_reasons,
    read_journal_lines,
)

if TYPE_CHECKING:  # a third of the steps need neither
    from airflow_provider_kmigrate.core.migration.durations import Work
    from airflow_provider_kmigrate.core.monitoring.journal_lines import JournalLine

_NARROW = 2.0  # seconds in which only what a starting node still misses is read
_SHOWS_ADVANCE = 1.0  # seconds between two observations that show whether the dual-write advances
_MOST_READINGS = 5  # observations for one decision: each step of it may need more than the one before
_REPEAT = 10.0  # seconds after which an unchanged reason is logged again
_CLOSED = 15.0  # seconds between observations outside the maintenance windows: each reads all that a restart needs, megabytes


class StepClock(Protocol):
    """Time as an argument, so that tests need not wait."""

    def monotonic(self) -> float:
        """Seconds of a clock that never runs backwards."""

    def now(self) -> float:
        """Seconds since the epoch."""

    def sleep(self, seconds: float) -> None:
        """Wait for so many seconds."""

    async def pause(self, seconds: float) -> None:
        """Sleep in a coroutine."""


class SystemClock:
    """The machine's clock."""

    monotonic = staticmethod(time.monotonic)
    now = staticmethod(time.time)
    sleep = staticmethod(time.sleep)
    pause = staticmethod(asyncio.sleep)


class Observing(Protocol):
    """`observe.Observer`, or a test's stand-in."""

    def observe(self, what: Fields, nodes: Sequence[NodeSpec] = (), groups: Sequence[str] = ()) -> ClusterView:
        """One frozen view of the fields in `what`; `nodes` limits whose hosts are asked, `groups` names the consumer groups."""

    def environment(self, view: ClusterView) -> ClusterEnvironment:
        """Read what preflight needs beside a view."""


class Fencing(Holding, Protocol):
    """`clients.fence.Fence`, or a test's stand-in."""

    def release(self) -> None:
        """End the run and free the cluster for others."""


class GroupStore(Protocol):
    """Keeps what one step knows of the consumer groups for the next one (`steps.group_watch`)."""

    def load(self) -> GroupsKept | None:
        """What was kept last; None: nothing, or it cannot be read."""

    def save(self, kept: GroupsKept) -> None:
        """Keep it in place of the earlier one. Raises `Failed`."""


def run_at_once(acts: Sequence[Callable[[], object]]) -> list[KMigrateError | None]:
    """Run these acts in threads of their own; returns the error of each, None for one that succeeded. Raises any other error."""
    with ThreadPoolExecutor(max(1, len(acts))) as threads:
        return [_wait_for_error(future) for future in [threads.submit(act) for act in acts]]


def _wait_for_error(future: Future[object]) -> KMigrateError | None:
    try:
        future.result()
    except KMigrateError as error:
        return error
    return None


OfferStatus = Callable[[object, Callable[[], Mapping[str, Any]]], None]
"""Takes a status document for operators if one is due: the headline says what is new, the function makes it. It never raises."""


class NothingKept:
    """Keeps nothing: each restart measures again."""

    def load(self) -> GroupsKept | None:
        """None."""

    def save(self, kept: GroupsKept) -> None:
        """Drop it."""


@dataclass(frozen=True)
class StepContext:
    """Everything a step may touch."""

    spec: ClusterSpec
    observer: Observing
    tools: Tools
    fence: Fencing
    journal: StepJournal
    backup: BackupStore
    say: Callable[[str], None]
    clock: StepClock = field(default_factory=SystemClock)
    stopped: Callable[[], str] = lambda: ""  # the kill switch: why nothing may be done now; empty: it is off
    run: str = ""  # as the fence and the journal name it
    journals: Path | None = None  # the folder of the journals of all runs on this cluster; None: not known here
    groups: GroupStore = field(default_factory=NothingKept)
    probe: Callable[[], ProbeFigures | NoProbe] = NoProbe  # what the probe has measured
    export: Callable[[Iterable[Gauge]], None] = lambda _: None  # sends each observation's figures to where dashboards read them
    offer_status: OfferStatus = lambda _headline, _make: None
    at_once: Callable[[Sequence[Callable[[], object]]], list[KMigrateError | None]] = run_at_once
    judges_backup: bool = True  # false in the triggerer, whose machine need not have it: the task judges it before it acts
    opening: float = (
        0.0  # seconds from the start of this task until the cluster was open, as each task of a run needs them; 0: not known
    )


class Step:
    """One thing to bring about: `next_action` decides from one observation, `act` does it; the rest says how often and how long.

    A step that remembers nothing and reads the same each time implements `decide` alone.
    """

    name: str
    fields: Fields
    nodes: tuple[NodeSpec, ...] = ()  # whose hosts are asked for processes and files; none: every node's
    groups: tuple[str, ...] = ()  # consumer groups that are observed
    interval: float = 0.2  # seconds between observations; half of it before one that confirms Done
    samples: int = 1  # how many observations in a row must say Done
    patience: float = 600.0  # seconds without an act or a healthy observation, after which it gives up
    waited: float = 0.0  # seconds that count against the patience, with earlier runs of the same wait
    max_acts: int = 5  # more of the same act would not help
    expected_alarms: frozenset[Cause] = frozenset()  # alarms that this step itself brings about
    min_watch: float = 0.0  # seconds of observations by one process that a judgement needs: the triggerer watches that long
    estimate: Estimate | None = (
        None  # of its row in `core.migration.plan`; None: it was not built by one, or its end is not known
    )
    acts_again: tuple[type[KMigrateError], ...] = ()  # errors of an act after which it decides again, from a new observation
    left: frozenset[int] = frozenset()  # brokers that a rollback leaves as they are: observed as if they had gone
    in_windows: bool = False  # its restarts begin in the maintenance windows of the cluster file only
    stores_status: bool = True  # false where producers wait for the step: Airflow, which stores it, may take minutes to answer
    may_defer: bool = True  # another process may continue; false if only this one knows of the act that follows

    def begin(self, context: StepContext) -> None:
        """Read what no observation shows, such as what an earlier step left; called once, before the first observation of this process.

        Raises `Refused` if it is missing.
        """

    @property
    def more_arguments(self) -> Mapping[str, Any]:
        """Arguments that `begin` found, for the triggerer's process, which cannot."""
        return {}

    @property
    def reading(self) -> Reading:
        """What the next observation reads."""
        return Reading(self.fields, groups=self.groups)

    def next_action(self, view: ClusterView, first: ClusterView, read: Reading) -> NextAction[Any]:  # noqa: ARG002
        """Decide what is done now; `first` is this run's first observation, for conditions on change; `read`: what was read for `view`."""
        decision = self.decide(view, first)  # first: it may change what is read next
        return NextAction(decision, None, self.reading, self.may_defer)

    def read_fields_first(self, fields: Fields) -> NextAction[Any]:
        """Decide nothing before these were read, too."""
        return NextAction(Wait(()), None, self.reading, needs=Reading(fields))

    def decide(self, view: ClusterView, first: ClusterView) -> Decision:
        """Decide what is left to do, of a step without a `next_action` of its own."""
        raise NotImplementedError(f"{self.name} decides in next_action: {view.name}, {first.name}")

    def act(self, context: StepContext, act: Act) -> None:
        """Do what `decide` asked for; idempotent, and safe if killed."""
        raise AssertionError(f"{self.name} was asked to {act.verb} in {context.spec.name}, but it has no such act")

    def resume(self, progress: StepProgress) -> Self:
        """Continue from the progress of earlier processes of this step; called before the first observation."""
        self.waited = progress.waited_seconds
        return self

    @property
    def progress(self) -> StepProgress:
        """The progress that the next process of this step needs."""
        return StepProgress(waited_seconds=self.waited)

    @property
    def seconds_left(self) -> float:
        """Seconds that it still waits on purpose while all is healthy, such as the rest of a soak."""
        return 0.0

    def end(self, context: StepContext) -> None:
        """Leave something to the next step; called once the step is done."""

    def forget_decision(self) -> None:
        """Forget the act that was decided last: another process performs it."""


class NodeStep(Step):
    """A step that changes one node. It never acts before verifying that the node's data directories belong to this cluster.

    `acts_elsewhere`: verbs that do not change this node; such an act checks the node it changes itself (`nodes.directories_are_ours`).
    """

    doing: str  # begins the step's name
    acts_elsewhere: frozenset[Verb] = frozenset()
    acts_again = (Unreachable,)

    def __init__(self, node: NodeSpec) -> None:
        self.node, self.nodes = node, (node,)
        self.name = f"{self.doing} {node.name}"

    def unidentified_reasons(self, view: ClusterView, act: Act) -> tuple[Reason, ...]:
        """Why an act on this node must wait: its directories were not read. Empty if they were, or it acts elsewhere."""
        observed_node = None if act.verb in self.acts_elsewhere else self._find_node(view)
        return unidentified_reasons(observed_node) if observed_node else ()

    def missing_fields(self, view: ClusterView) -> Fields:
        """The few fields that show whether the node, just started, has progressed; none if a whole observation is due.

        First its answer, which only its own start can bring; then a broker's place in its ISRs, which its leaders give it.
        """
        observed_node = self._find_node(view)
        if observed_node is None:
            return Fields(0)
        if observed_node.is_starting:
            return Fields.ANSWERS
        out_of_isr = (
            isinstance(observed_node, Broker)
            and observed_node.mode is not None
            and (view.partitions is None or view.missing_isr(observed_node.id))
        )
        return Fields.ANSWERS | Fields.PARTITIONS if out_of_isr else Fields(0)

    def confirms_done(self, narrow_view: ClusterView) -> bool:
        """True if this partial observation counts towards the consecutive Done ones, if the next whole one says Done."""
        return self.node.role is NodeRole.BROKER and takes_part(narrow_view, self.node.id)

    def _find_node(self, view: ClusterView) -> Broker | Controller | None:
        nodes: Mapping[int, Broker | Controller] = view.brokers if self.node.role is NodeRole.BROKER else view.controllers
        return nodes.get(self.node.id)

    def read_diagnostics(self, context: StepContext) -> str:
        """The evidence of why acts failed: the end of the node's log."""
        return context.tools.host(self.node).log_tail(self.node)


@dataclass(frozen=True, slots=True)
class StepPause:
    """The step continues: its next tick is due in `seconds`. `reasons`: what it waits for."""

    seconds: float
    reasons: tuple[Reason, ...] = ()


def run_step(
    step: Step, context: StepContext, sync_for: float = float("inf"), observed: Callable[[], object] = lambda: None
) -> Done | Wait:
    """Run until done, blocking; returns `Wait` after `sync_for` seconds of mere waiting (then defer, and run again later).

    Arguments and errors are `StepRunner`'s.
    """
    runner = StepRunner(step, context, sync_for, observed)
    while isinstance(outcome := runner.tick(), StepPause):
        context.clock.sleep(outcome.seconds)
    return outcome


class StepRunner:
    """One process's run of a step. Each `tick` observes once, decides once and acts at most once; the caller sleeps between ticks.

    A task sleeps blocking (`run_step`), a trigger with asyncio. For one thread at a time. `sync_for`: seconds of mere waiting
    after which a tick returns `Wait`, to be deferred. `observed` is called after each decision, before it takes effect. `repeat`:
    seconds after which an unchanged reason is logged again.
    """

    def __init__(
        self,
        step: Step,
        context: StepContext,
        sync_for: float = float("inf"),
        observed: Callable[[], object] = lambda: None,
        repeat: float = _REPEAT,
    ) -> None:
        self._step, self._context, self._sync_for, self._observed = step, context, sync_for, observed
        self._diary = _Diary(step, context, repeat)
        self._first: ClusterView | None = None
        self._done_in_a_row = 0
        self._acted = False
        self._narrow: _Narrow | None = None
        self._begun = False
        self._reading = step.reading
        self._may_defer = True
        self._window_closed = False  # nothing but the maintenance window keeps the last decision from a restart

    def tick(self) -> Done | Wait | StepPause:
        """`Done`, `Wait` and an error end this run.

        Raises `Refused` with reasons, `TimedOut` when `step.patience` is over, `Failed` when acting does not help, and what the clients
        raise.
        """
        outcome: Done | Wait | StepPause | None = None
        try:
            outcome = self._tick()
            return outcome
        finally:
            if not isinstance(outcome, StepPause):
                self._diary.export_last_gauges()

    def _tick(self) -> Done | Wait | StepPause:
        if not self._begun:
            self._step.begin(self._context)
            self._begun, self._reading = True, self._step.reading
        if self._narrow is not None and (pause := self._observe_narrowly(self._narrow)) is not None:
            return pause
        view, decision = self._observe_and_decide()
        self._observed()
        self._diary.note_observation(view, decision)
        if isinstance(decision, Refuse):
            raise Refused(f"{self._step.name}: {format_reasons(decision.reasons)}", decision.reasons)
        self._done_in_a_row = self._done_in_a_row + 1 if isinstance(decision, Done) else 0
        if isinstance(decision, Done) and self._done_in_a_row >= self._step.samples:
            self._step.end(self._context)
            return self._diary.note_done(decision)
        if isinstance(decision, Act):
            _pass_gate_and_act(self._step, self._context, view, decision, self._diary)
            self._acted = True
            return StepPause(0.0)
        if isinstance(decision, Wait) and self._has_waited(view, decision):
            return decision
        return self._pause_until_next(view, decision)

    def decide_without_acting(self) -> Decision:
        """What the step would decide now; nothing is done or journaled. Raises what the clients raise.

        A wait is observed twice more: only a second observation shows whether something advances, and a step may read more in the next one.
        """
        self._step.begin(self._context)
        self._reading = self._step.reading
        decision = self._observe_and_decide()[1]
        for _ in range(2):
            if isinstance(decision, Wait):
                self._context.clock.sleep(max(_SHOWS_ADVANCE, self._step.interval))
                decision = self._observe_and_decide()[1]
        return decision

    def _observe_and_decide(self) -> tuple[ClusterView, Decision]:
        """One observation and its decision; once more each time that the decision needs more."""
        read = self._reading
        for _ in range(_MOST_READINGS):
            view = self._observe(read)
            self._first = self._first or view
            action = self._step.next_action(view, self._first, read)
            if action.needs is None:
                break
            read = action.reads.plus(action.needs)
        else:
            action = action._replace(decision=Wait((could_not_read("all that this decision needs"),)))
        self._reading, self._may_defer, self._window_closed = action.reads, action.may_defer, False
        self._diary.note_outage(view, read)
        return view, self._act_or_wait(view, action.decision) if isinstance(action.decision, Act) else action.decision

    def _observe(self, read: Reading) -> ClusterView:
        nodes = () if read.every_node else self._step.nodes
        view = without_left_brokers(self._context.observer.observe(read.fields, nodes, read.groups), self._step.left)
        view = with_backup(self._context, read.fields, view)
        return replace(view, probe=self._context.probe()) if read.fields & Fields.PROBE else view

    def _act_or_wait(self, view: ClusterView, act: Act) -> Decision:
        """The act, or a wait for what holds any step's act although all its gates are open."""
        if isinstance(self._step, NodeStep) and (unknown := self._step.unidentified_reasons(view, act)):
            return Wait(unknown)
        decision: Decision = act
        if self._step.in_windows:
            now = datetime.fromtimestamp(self._context.clock.now(), UTC)
            decision = wait_for_window(act, position_of(view).phase, self._context.spec.windows, now)
        self._window_closed = decision is not act
        return self._diary.wait_after_outage(view, decision)

    def _has_waited(self, view: ClusterView, wait: Wait) -> bool:
        """True if this process has waited long enough; raises `TimedOut` if all processes of the step together have."""
        step = self._step
        step.waited = self._diary.waited_seconds()
        if step.waited >= step.patience:
            reasons_text = format_reasons((*wait.reasons, *_unread_reasons(view, wait)))
            raise TimedOut(f"{step.name}: gave up after {step.patience:.0f} s without progress. {reasons_text}")
        return self._may_defer and self._diary.idle_seconds() >= self._sync_for

    def _pause_until_next(self, view: ClusterView, decision: Done | Wait) -> StepPause:
        step = self._step
        self._narrow = _Narrow(step, view, view) if self._acted and isinstance(step, NodeStep) else None
        if isinstance(decision, Done):
            return StepPause(max(0.0, step.interval / 2 - view.took))
        return StepPause(max(step.interval, _CLOSED if self._window_closed else 0.0), decision.reasons)

    def _observe_narrowly(self, narrow: _Narrow) -> StepPause | None:
        """Observe only what a node that was just started is missing; None if a whole observation is due.

        Whole observations, four a second, load a machine with two cores so much that a broker took a third longer to start
        (measured). On a large cluster the intervals between whole observations are as long as one takes.
        """
        step, clock = narrow.step, self._context.clock
        narrow.until = clock.monotonic() + _NARROW if narrow.until is None else narrow.until
        missing = step.missing_fields(narrow.newest)
        if missing and clock.monotonic() < narrow.until:
            narrow.newest = view = self._context.observer.observe(missing, step.nodes)
            pause = max(step.interval / 2, view.took if step.missing_fields(view) else 0.0)
            return StepPause(min(pause, max(0.0, narrow.until - clock.monotonic())))
        self._narrow, self._acted = None, bool(missing)
        whole = narrow.whole
        self._done_in_a_row += narrow.newest is not whole and whole.zk is not None and step.confirms_done(narrow.newest)
        return None


def with_backup(context: StepContext, fields: Fields, view: ClusterView) -> ClusterView:
    """The view with what this process finds in the backup: how files differ from it, and if `fields` ask for it, what it holds.

    For a process that does not judge the backup nothing is lost, and no file was edited.
    """
    if fields & Fields.FILES:
        view = (
            compare_files(context.spec, context.backup, view)
            if context.judges_backup
            else map_files(view, lambda files: replace(files, edited=()))
        )
    if not fields & Fields.BACKUP:
        return view
    return replace(view, backup=read_backup_facts(context.spec, context.backup) if context.judges_backup else BackupFacts())


def observe_files(context: StepContext, fields: Fields, nodes: Sequence[NodeSpec] = ()) -> ClusterView:
    """One observation of these fields and of the files of `nodes`, all without it, compared with what kmigrate installed."""
    fields |= Fields.FILES
    return with_backup(context, fields, context.observer.observe(fields, nodes))


@dataclass(slots=True)
class _Narrow:
    """Observations between two whole ones while a node starts; `until`: on the clock, when the next whole one is due."""

    step: NodeStep
    whole: ClusterView
    newest: ClusterView
    until: float | None = None


def _pass_gate_and_act(step: Step, context: StepContext, view: ClusterView, decision: Act, diary: _Diary) -> None:
    if why := pass_gate(step.name, context, view):
        context.say(f"{why} Observing again before acting.")
        if diary.waited_seconds() >= step.patience:
            raise TimedOut(
                f"{step.name}: gave up after {step.patience:.0f} s without progress; no observation could be used. {why}"
            )
        return
    if diary.count_acts(decision) >= step.max_acts:
        repeated = f"{step.name}: did '{decision.label}' {step.max_acts} times without effect. {decision.text}"
        diagnostics = step.read_diagnostics(context) if isinstance(step, NodeStep) else ""
        raise Failed(f"{repeated} {diagnostics}".strip())
    if decision.verb is Verb.START and diary.has_just_started_node() and isinstance(step, NodeStep):
        context.say(f"{step.node.name.capitalize()} has ended again after its start. {_read_why(step, context)}")
    context.journal.write("act", step.name, f"{decision.label}: {decision.text}", **collect_evidence(view))
    started = context.clock.monotonic()
    try:
        step.act(context, decision)
    except KMigrateError as error:
        context.journal.write("failed", step.name, f"{decision.label}: {error}")
        tries = 1 + diary.count_acts(decision)
        if not isinstance(error, step.acts_again) or tries >= step.max_acts or diary.waited_seconds() >= step.patience:
            raise
        diary.note_attempt(decision)
        context.say(f"{error} Whether it was done is not known: observing again.")
        return
    diary.note_act(decision, context.clock.monotonic() - started)


def _read_why(step: NodeStep, context: StepContext) -> str:
    """What a node that ends has written last; where that cannot be read, why not: the next start does not depend on it."""
    try:
        return step.read_diagnostics(context)
    except KMigrateError as error:
        return f"Its log was not read: {error}"


def pass_gate(name: str, context: StepContext, view: ClusterView) -> str:
    """Ask right before an act whether this process may do it: by the view it is decided on, the fence and the kill switch, both read now.

    Returns why another observation must come first, empty to act. `name`: the step's. Raises `WrongCluster`, `Fenced` and `Refused`
    for what no observation changes, and what the fence and the switch raise if they cannot be read.
    """
    standing = Standing(context.clock.monotonic() - view.taken_at, is_identified(view), wrong_cluster_reasons(view, context.spec))
    fenced: Fenced | None = None
    if find_barrier(standing) is None:
        try:
            context.fence.check()
        except Fenced as error:
            fenced = error
        standing = replace(standing, fenced=fenced is not None, switch="" if fenced else context.stopped())
    match find_barrier(standing):
        case Barrier.AGE:
            text = f"at most {MAX_VIEW_AGE:.0f} s are allowed: this machine is too slow, or pauses."
            return f"The last observation is {standing.age:.1f} s old, and {text}"
        case Barrier.UNIDENTIFIED:
            return "No source reported the cluster id."
        case Barrier.STRANGER:
            raise WrongCluster(f"{name}: {format_reasons(standing.strangers)}", tuple(standing.strangers))
        case Barrier.FENCED:
            raise cast(Fenced, fenced)
        case Barrier.STOPPED:
            context.journal.write("stopped", name, standing.switch)
            refuse_if_kill_switch_on(context.spec.name, standing.switch)
    return ""


def pass_gate_again(name: str, context: StepContext, view: ClusterView | None = None) -> None:
    """The gate within an act, by a view that the act took, or a new one. Raises `Unavailable` too, if that cannot be used: another try may."""
    if why := pass_gate(name, context, view or context.observer.observe(Fields.POSITION)):
        raise Unavailable(f"{name}: {why}")


def require_gate(gate: Gate) -> None:
    """Raise `Refused` if a gate can never be met by itself, `Unavailable` if another try may succeed."""
    if gate.met:
        return
    if gate.state is GateState.NEVER:
        raise Refused.because(*gate.reasons)
    raise Unavailable(format_reasons(gate.reasons))


def refuse_if_kill_switch_on(cluster: str, switch_reason: str) -> None:
    """Raise `Refused` if `switch_reason`, the kill switch's reason, is not empty."""
    if switch_reason:
        raise Refused.because(Reason("H05", f"The kill switch of {cluster} is on: {switch_reason}"))


class _Diary:
    """The log and journal of one life: each change of what is observed, and from time to time that nothing changes."""

    def __init__(self, step: Step, context: StepContext, repeat: float) -> None:
        self._step, self._context, self._repeat = step, context, repeat
        self._begun = self._idle_since = self._said = context.clock.monotonic()
        self._well = self._begun - step.waited  # time of the last act or healthy observation
        self._last: object = None
        self._lost = float("-inf")  # time of the last observation without ZooKeeper
        self._acts: list[str] = []
        self._acted_at = float("-inf")
        self._alarms: tuple[Reason, ...] = ()
        self._gauges = GaugeHistory()

    def note_outage(self, view: ClusterView, read: Reading) -> None:
        """Note that ZooKeeper was asked and did not answer."""
        if view.zk is None and read.fields & Fields.ZOOKEEPER:
            self._lost = self._context.clock.monotonic()

    def wait_after_outage(self, view: ClusterView, decision: Decision) -> Decision:
        """The decision, or a wait for the effects of a moment without ZooKeeper (`core.migration.gates.wait_after_outage`)."""
        return decision if view.zk is None else wait_after_outage(decision, self._context.clock.monotonic() - self._lost)

    def note_observation(self, view: ClusterView, decision: Decision) -> None:
        """Export the figures of an observation, journal its alarms, and log a decision that is new."""
        now = self._context.clock.monotonic()
        self._well = now if isinstance(decision, Wait) and decision.healthy else self._well
        step, policy = self._step, self._context.spec.policy
        restart_seconds = self._restart_seconds if step.estimate else None
        remaining_seconds = estimate_seconds_left(view, step.estimate, step.seconds_left, policy, restart_seconds)
        self._gauges, measured = self._gauges.add_view(view, decision, now, remaining_seconds)
        self._context.export(measured)
        if step.stores_status:
            self._context.offer_status(
                (type(decision), headlines(getattr(decision, "reasons", ()))),
                partial(self._describe_status, view, decision, remaining_seconds),
            )
        alarms = find_urgent_alarms(view, self._context.spec.policy.max_hybrid, self._context.clock.now())
        self._note_alarms(tuple(reason for reason in alarms if reason.cause not in self._step.expected_alarms))
        unread = _unread_reasons(view, decision)
        is_expected = isinstance(decision, Wait) and now - self._acted_at < EXPECTED_FOR
        headline = headlines(decision.reasons) if isinstance(decision, Wait | Refuse) else decision
        key = (headline, headlines(unread), is_expected)
        if isinstance(decision, Done) or (key == self._last and now - self._said < self._repeat):
            return
        self._last, self._said = key, now
        took = f"({now - self._begun:.1f} s)"
        if isinstance(decision, Wait) and is_expected:
            usual = self._restart_seconds if step.estimate else None
            self._context.say(f"Waiting {took}, {format_expected_wait((*decision.reasons, *unread), self._acts[-1], usual)}")
        else:
            self._context.say(_describe_decision(decision, unread, took))

    def _describe_status(self, view: ClusterView, decision: Decision, remaining_seconds: float | None) -> dict[str, Any]:
        """What this step does or waits for, with this cluster's usual time of a restart after an act, and when it gives up."""
        from airflow_provider_kmigrate.core.monitoring.status import (  # noqa: PLC0415  # a task's process pays for it only if a status is due
            Doing,
            StepFacts,
            describe_step_status,
        )

        step, clock = self._step, self._context.clock
        reasons = (*decision.reasons, *_unread_reasons(view, decision)) if isinstance(decision, Wait | Refuse) else ()
        doing = {Act: Doing.ACTS, Wait: Doing.WAITS, Done: Doing.DONE, Refuse: Doing.FAILED}[type(decision)]
        facts = StepFacts(
            step.name,
            doing,
            str(getattr(decision, "text", "")),
            reasons,
            self.waited_seconds() if doing is Doing.WAITS else 0.0,
            self._restart_seconds if self._acts and step.estimate else None,
            step.patience if doing is Doing.WAITS else None,
            remaining_seconds,
            step.fields,
            self._task_seconds if step.fields & Fields.POSITION == Fields.POSITION else {},
        )
        return describe_step_status(self._context.spec, view, clock.now(), facts)

    def _note_alarms(self, alarms: tuple[Reason, ...]) -> None:
        if alarms and alarms != self._alarms:
            self._context.say(f"ALARM: {format_reasons(alarms)}")
            self._context.journal.write("alarm", self._step.name, format_reasons(alarms))
        if self._alarms and not alarms:
            self._context.say(f"Alarm ended: {format_reasons(self._alarms)}")
            self._context.journal.write("alarm ended", self._step.name, format_reasons(self._alarms))
        self._alarms = alarms

    def export_last_gauges(self) -> None:
        """Send the last gauges of this process."""
        self._context.export(self._gauges.final_gauges())

    def note_act(self, decision: Act, seconds: float) -> None:
        """Journal and log an act that took so many seconds."""
        self._idle_since = self._well = self._acted_at = self._context.clock.monotonic()
        self._acts.append(decision.label)
        self._context.journal.write("acted", self._step.name, decision.label, seconds=round(seconds, 3))
        self._context.say(f"Did '{decision.label}' in {seconds:.1f} s.")

    @cached_property
    def _restart_seconds(self) -> float | None:
        """As this cluster's journals have it."""
        from airflow_provider_kmigrate.core.monitoring.journal_lines import (  # noqa: PLC0415  # a third of the steps have no estimate
            list_acts,
            median_restart_seconds,
        )

        return median_restart_seconds(list_acts(self._journal_lines), self._context.spec.policy.canary_bake)

    @cached_property
    def _task_seconds(self) -> Mapping[Work, Sequence[float]]:
        """As this cluster's journals have them."""
        from airflow_provider_kmigrate.core.monitoring.task_times import list_task_seconds  # noqa: PLC0415  # only if a status is due

        return list_task_seconds(self._journal_lines, self._context.spec.policy.canary_bake)

    @cached_property
    def _journal_lines(self) -> Sequence[JournalLine]:
        """Of this cluster, as they were at the first use; no step fails because they cannot be read."""
        from airflow_provider_kmigrate.core.monitoring.journal_lines import parse_lines  # noqa: PLC0415  # a third of the steps have no estimate

        try:
            return parse_lines(read_journal_lines(self._context.journals)).lines
        except OSError:
            return ()

    def note_attempt(self, decision: Act) -> None:
        """Count an act of which it is not known whether it was done."""
        self._acts.append(decision.label)

    def count_acts(self, decision: Act) -> int:
        """How often this run did or tried this act."""
        return self._acts.count(decision.label)

    def has_just_started_node(self) -> bool:
        """Whether this run's last act was a start: a node that is down again has ended by itself."""
        return bool(self._acts) and self._acts[-1] in {Verb.START, Verb.RESTART}

    def waited_seconds(self) -> float:
        """Seconds without an act or a healthy observation, over all runs of this wait."""
        return self._context.clock.monotonic() - self._well

    def idle_seconds(self) -> float:
        """Seconds without an act in this run."""
        return self._context.clock.monotonic() - self._idle_since

    def note_done(self, decision: Done) -> Done:
        """Journal and log the end; returns the decision."""
        seconds = self._context.clock.monotonic() - self._begun
        self._context.journal.write("done", self._step.name, decision.text, seconds=round(seconds, 3))
        self._context.say(f"Done: {decision.text} ({seconds:.1f} s)")
        return decision


def _unread_reasons(view: ClusterView, decision: Decision) -> tuple[Reason, ...]:
    """What was not read that a wait may be caused by, with the errors of machines and nodes."""
    return errors_behind(view, decision.reasons if isinstance(decision, Wait) else ())


def _describe_decision(decision: Decision, unread: Sequence[Reason], took: str) -> str:
    if isinstance(decision, Act):
        return f"Decided to {decision.label}: {decision.text} {took}"
    if isinstance(decision, Done):
        return f"{decision.text} {took}"
    return f"{'Waiting' if isinstance(decision, Wait) else 'Refused'} {took}: {format_reason_lines((*decision.reasons, *unread))}"
