"""The loop behind every step: observe, decide, act at most once per observation, until nothing is left to do.

Killed anywhere and run again, a step observes what is already done, and does what is left. What no observation can show (how long
all was healthy, why a canary must be rolled back) is its `StepProgress`, kept in Airflow's task state store. Before
every act `pass_gate` asks once more (`core.gates`), and the act is in the journal with what allowed it.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, Self, cast

from airflow_provider_kmigrate.clients.holding import Holding
from airflow_provider_kmigrate.clients.tools import Tools
from airflow_provider_kmigrate.core.causes import why_unread
from airflow_provider_kmigrate.core.cluster import ClusterSpec, NodeRole, NodeSpec
from airflow_provider_kmigrate.core.decision import Act, Decision, Done, Refuse, Verb, Wait
from airflow_provider_kmigrate.core.gates import (
    MAX_VIEW_AGE,
    Barrier,
    Gate,
    GateState,
    Standing,
    barrier,
    is_identified,
    settled,
    unidentified,
    without_left,
    wrong_cluster,
)
from airflow_provider_kmigrate.core.gauges import ESTIMATED, Gauge, GaugeHistory, seconds_left
from airflow_provider_kmigrate.core.group_progress import GroupsKept
from airflow_provider_kmigrate.core.migration.roll import takes_part
from airflow_provider_kmigrate.core.migration.waits import alarming, in_window
from airflow_provider_kmigrate.core.model import (
    BackupFacts,
    Broker,
    Cause,
    ClusterEnvironment,
    ClusterView,
    Controller,
    Fields,
    ProbeFigures,
    Reason,
    headlines,
)
from airflow_provider_kmigrate.core.phase import where
from airflow_provider_kmigrate.core.progress import StepProgress
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
from airflow_provider_kmigrate.steps.backup import BackupStore, backup_facts, compare_files
from airflow_provider_kmigrate.steps.journal import StepJournal, evidence, format_reasons, lines_of, reason_lines

_NARROW = 2.0  # seconds in which only what a starting node still misses is read
_ANSWERS = Fields.PROCESSES | Fields.BROKERS | Fields.CONTROLLERS
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
        return [_error_of(running) for running in [threads.submit(act) for act in acts]]


def _error_of(running: Future[object]) -> KMigrateError | None:
    try:
        running.result()
    except KMigrateError as error:
        return error
    return None


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
    probe: Callable[[], ProbeFigures | None] = lambda: None  # what the probe has measured; None: the cluster file has none
    export: Callable[[Iterable[Gauge]], None] = lambda _: None  # sends each observation's figures to where dashboards read them
    at_once: Callable[[Sequence[Callable[[], object]]], list[KMigrateError | None]] = run_at_once
    judges_backup: bool = True  # false in the triggerer, whose machine need not have it: the task judges it before it acts


class Step(ABC):
    """One thing to bring about. A step observes `fields`, of `nodes` and `groups`, and decides; the rest says how often and how long."""

    name: str
    fields: Fields
    nodes: tuple[NodeSpec, ...] = ()  # whose hosts are asked for processes and files; none: every node's
    expensive_nodes: tuple[NodeSpec, ...] | None = None  # the same, of an observation with expensive fields; None: as `nodes`
    groups: tuple[str, ...] = ()  # consumer groups that are observed
    interval: float = 0.2  # seconds between observations; half of it before one that confirms Done
    samples: int = 1  # how many observations in a row must say Done
    patience: float = 600.0  # seconds without an act or a healthy observation, after which it gives up
    waited: float = 0.0  # seconds that count against the patience, with earlier runs of the same wait
    max_acts: int = 5  # more of the same act would not help
    expected_alarms: frozenset[Cause] = frozenset()  # alarms that this step itself brings about
    min_watch: float = 0.0  # seconds of observations by one process that a judgement needs: the triggerer watches that long
    kind: str = ""  # its name in `core.plan`; empty: it was not built by it
    acts_again: tuple[type[KMigrateError], ...] = ()  # errors of an act after which it decides again, from a new observation
    left: frozenset[int] = frozenset()  # brokers that a rollback leaves as they are: observed as if they had gone
    in_windows: bool = False  # its restarts begin in the maintenance windows of the cluster file only
    must_stay: bool = False  # read at each observation: it must not defer, since only this process knows of the act that follows

    def begin(self, context: StepContext) -> None:  # noqa: B027 - most steps need nothing but observations
        """Read what no observation shows, such as what an earlier step left; called once, before the first observation of this process.

        Raises `Refused` if it is missing.
        """

    @property
    def more_arguments(self) -> Mapping[str, Any]:
        """Arguments that `begin` found, for the triggerer's process, which cannot."""
        return {}

    @abstractmethod
    def decide(self, view: ClusterView, first: ClusterView) -> Decision:
        """Decide what is left to do; `first` is this run's first observation, for conditions on change."""

    def expensive_fields(self, _view: ClusterView) -> Fields:
        """The slow fields that `decide` needs too; none if the rest of the view already decides."""
        return Fields(0)

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

    def end(self, context: StepContext) -> None:  # noqa: B027 - most leave nothing
        """Leave something to the next step; called once the step is done."""

    def forget_decision(self) -> None:  # noqa: B027 - most steps remember nothing of what they decided
        """Forget the act that was decided last: another process performs it."""


class NodeStep(Step):
    """A step that changes one node. It never acts before verifying that the node's data directories belong to this cluster.

    `acts_elsewhere`: verbs that do not change this node; such an act checks the node it changes itself (`nodes.ours`).
    """

    doing: str  # begins the step's name
    acts_elsewhere: frozenset[Verb] = frozenset()
    acts_again = (Unreachable,)

    def __init__(self, node: NodeSpec) -> None:
        self.node, self.nodes = node, (node,)
        self.name = f"{self.doing} {node.name}"

    def of_ours(self, view: ClusterView, decision: Decision) -> Decision:
        """The decision, or a wait if it acts on this node before its directories were read."""
        if not isinstance(decision, Act) or decision.verb in self.acts_elsewhere:
            return decision
        seen = self._seen(view)
        unknown = unidentified(seen) if seen else ()
        return Wait(unknown) if unknown else decision

    def missing_fields(self, view: ClusterView) -> Fields:
        """The few fields that show whether the node, just started, has progressed; none if a whole observation is due.

        First its answer, which only its own start can bring; then a broker's place in its ISRs, which its leaders give it.
        """
        seen = self._seen(view)
        if seen is None:
            return Fields(0)
        if seen.starts:
            return _ANSWERS
        left_out = isinstance(seen, Broker) and seen.mode is not None and (view.partitions is None or view.missing_isr(seen.id))
        return _ANSWERS | Fields.PARTITIONS if left_out else Fields(0)

    def confirms(self, narrow: ClusterView) -> bool:
        """True if this partial observation counts towards the consecutive Done ones, if the next whole one says Done."""
        return self.node.role is NodeRole.BROKER and takes_part(narrow, self.node.id)

    def _seen(self, view: ClusterView) -> Broker | Controller | None:
        nodes: Mapping[int, Broker | Controller] = view.brokers if self.node.role is NodeRole.BROKER else view.controllers
        return nodes.get(self.node.id)

    def diagnostics(self, context: StepContext) -> str:
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
    while isinstance(found := runner.tick(), StepPause):
        context.clock.sleep(found.seconds)
    return found


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
        self._window_closed = False  # nothing but the maintenance window keeps the last decision from a restart

    def tick(self) -> Done | Wait | StepPause:
        """`Done`, `Wait` and an error end this run.

        Raises `Refused` with reasons, `TimedOut` when `step.patience` is over, `Failed` when acting does not help, and what the clients
        raise.
        """
        found: Done | Wait | StepPause | None = None
        try:
            found = self._tick()
            return found
        finally:
            if not isinstance(found, StepPause):
                self._diary.ended()

    def _tick(self) -> Done | Wait | StepPause:
        if not self._begun:
            self._step.begin(self._context)
            self._begun = True
        if self._narrow is not None and (pause := self._observe_narrowly(self._narrow)) is not None:
            return pause
        view = self._observe()
        decision = self._decide(view)
        self._observed()
        self._diary.note_observation(view, decision)
        if isinstance(decision, Refuse):
            raise Refused(f"{self._step.name}: {format_reasons(decision.reasons)}", decision.reasons)
        self._done_in_a_row = self._done_in_a_row + 1 if isinstance(decision, Done) else 0
        if isinstance(decision, Done) and self._done_in_a_row >= self._step.samples:
            self._step.end(self._context)
            return self._diary.done(decision)
        if isinstance(decision, Act):
            _act(self._step, self._context, view, decision, self._diary)
            self._acted = True
            return StepPause(0.0)
        if isinstance(decision, Wait) and self._has_waited(view, decision):
            return decision
        return self._until_next(view, decision)

    def _observe(self) -> ClusterView:
        step = self._step
        view = self._observed_fields(step.fields, step.nodes)
        if more := step.expensive_fields(view):
            view = self._observed_fields(step.fields | more, step.nodes if step.expensive_nodes is None else step.expensive_nodes)
        return replace(view, probe=self._context.probe()) if step.fields & Fields.PROBE else view

    def _observed_fields(self, fields: Fields, nodes: Sequence[NodeSpec]) -> ClusterView:
        view = self._context.observer.observe(fields, nodes, self._step.groups)
        return with_backup(self._context, fields, without_left(view, self._step.left))

    def _decide(self, view: ClusterView) -> Decision:
        self._first = self._first or view
        decision = self._step.decide(view, self._first)
        decision = self._step.of_ours(view, decision) if isinstance(self._step, NodeStep) else decision
        if self._step.in_windows:
            now = datetime.fromtimestamp(self._context.clock.now(), UTC)
            held = in_window(decision, where(view).phase, self._context.spec.windows, now)
            self._window_closed, decision = held is not decision, held
        return self._diary.settled(view, decision)

    def _has_waited(self, view: ClusterView, wait: Wait) -> bool:
        """True if this process has waited long enough; raises `TimedOut` if all processes of the step together have."""
        step = self._step
        step.waited = self._diary.waited()
        if step.waited >= step.patience:
            said = format_reasons((*wait.reasons, *_unread(view, wait)))
            raise TimedOut(f"{step.name}: gave up after {step.patience:.0f} s without progress. {said}")
        return not step.must_stay and self._diary.idle() >= self._sync_for

    def _until_next(self, view: ClusterView, decision: Done | Wait) -> StepPause:
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
        self._done_in_a_row += narrow.newest is not whole and whole.zk is not None and step.confirms(narrow.newest)
        return None


def with_backup(context: StepContext, fields: Fields, view: ClusterView) -> ClusterView:
    """The view with what this process finds in the backup: how files differ from it, and if `fields` ask for it, what it holds.

    For a process that does not judge the backup nothing is lost, and no file was edited.
    """
    if fields & Fields.FILES:
        view = compare_files(context.spec, context.backup, view) if context.judges_backup else _unedited(view)
    if not fields & Fields.BACKUP:
        return view
    return replace(view, backup=backup_facts(context.spec, context.backup) if context.judges_backup else BackupFacts())


def observe_files(context: StepContext, fields: Fields, nodes: Sequence[NodeSpec] = ()) -> ClusterView:
    """One observation of these fields and of the files of `nodes`, all without it, compared with what kmigrate installed."""
    fields |= Fields.FILES
    return with_backup(context, fields, context.observer.observe(fields, nodes))


def _unedited(view: ClusterView) -> ClusterView:
    brokers = {node: replace(seen, files=replace(seen.files, edited=())) for node, seen in view.brokers.items()}
    controllers = {node: replace(seen, files=replace(seen.files, edited=())) for node, seen in view.controllers.items()}
    return replace(view, brokers=brokers, controllers=controllers)


@dataclass(slots=True)
class _Narrow:
    """Observations between two whole ones while a node starts; `until`: on the clock, when the next whole one is due."""

    step: NodeStep
    whole: ClusterView
    newest: ClusterView
    until: float | None = None


def _act(step: Step, context: StepContext, view: ClusterView, decision: Act, diary: _Diary) -> None:
    if why := pass_gate(step.name, context, view):
        context.say(f"{why} Observing again before acting.")
        if diary.waited() >= step.patience:
            raise TimedOut(
                f"{step.name}: gave up after {step.patience:.0f} s without progress; no observation could be used. {why}"
            )
        return
    if diary.times(decision) >= step.max_acts:
        repeated = f"{step.name}: did '{decision.named}' {step.max_acts} times without effect. {decision.text}"
        diagnostics = step.diagnostics(context) if isinstance(step, NodeStep) else ""
        raise Failed(f"{repeated} {diagnostics}".strip())
    context.journal.write("act", step.name, f"{decision.named}: {decision.text}", **evidence(view))
    started = context.clock.monotonic()
    try:
        step.act(context, decision)
    except KMigrateError as error:
        context.journal.write("failed", step.name, f"{decision.named}: {error}")
        tried = 1 + diary.times(decision)
        if not isinstance(error, step.acts_again) or tried >= step.max_acts or diary.waited() >= step.patience:
            raise
        diary.tried(decision)
        context.say(f"{error} Whether it was done is not known: observing again.")
        return
    diary.acted(decision, context.clock.monotonic() - started)


def pass_gate(name: str, context: StepContext, view: ClusterView) -> str:
    """Ask right before an act whether this process may do it: by the view it is decided on, the fence and the kill switch, both read now.

    Returns why another observation must come first, empty to act. `name`: the step's. Raises `WrongCluster`, `Fenced` and `Refused`
    for what no observation changes, and what the fence and the switch raise if they cannot be read.
    """
    standing = Standing(context.clock.monotonic() - view.taken_at, is_identified(view), wrong_cluster(view, context.spec))
    fenced: Fenced | None = None
    if barrier(standing) is None:
        try:
            context.fence.check()
        except Fenced as error:
            fenced = error
        standing = replace(standing, fenced=fenced is not None, switch="" if fenced else context.stopped())
    match barrier(standing):
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
            refuse_if_on(context.spec.name, standing.switch)
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


def refuse_if_on(cluster: str, said: str) -> None:
    """Raise `Refused` if `said`, the kill switch's reason, is not empty."""
    if said:
        raise Refused.because(Reason("H05", f"The kill switch of {cluster} is on: {said}"))


class _Diary:
    """The log and journal of one life: each change of what is observed, and from time to time that nothing changes."""

    def __init__(self, step: Step, context: StepContext, repeat: float) -> None:
        self._step, self._context, self._repeat = step, context, repeat
        self._begun = self._idle_since = self._said = context.clock.monotonic()
        self._well = self._begun - step.waited  # time of the last act or healthy observation
        self._last: object = None
        self._lost = float("-inf")  # time of the last observation without ZooKeeper
        self._acts: list[str] = []
        self._alarms: tuple[Reason, ...] = ()
        self._gauges = GaugeHistory()

    def settled(self, view: ClusterView, decision: Decision) -> Decision:
        """The decision, or a wait for the effects of a moment without ZooKeeper (`core.gates.settled`)."""
        now = self._context.clock.monotonic()
        if view.zk is None and self._step.fields & Fields.ZOOKEEPER:
            self._lost = now
        return decision if view.zk is None else settled(decision, now - self._lost)

    def note_observation(self, view: ClusterView, decision: Decision) -> None:
        """Export the figures of an observation, journal its alarms, and log a decision that is new."""
        now = self._context.clock.monotonic()
        self._well = now if isinstance(decision, Wait) and decision.healthy else self._well
        step, policy = self._step, self._context.spec.policy
        estimated = step.kind in ESTIMATED
        left = seconds_left(view, step.kind, step.seconds_left, policy, self._restart_seconds) if estimated else None
        self._gauges, measured = self._gauges.observe(view, decision, now, left)
        self._context.export(measured)
        seen = alarming(view, self._context.spec.policy.max_hybrid, self._context.clock.now())
        self._alarm(tuple(reason for reason in seen if reason.cause not in self._step.expected_alarms))
        unread = _unread(view, decision)
        key = (_key(decision), headlines(unread))
        if isinstance(decision, Done) or (key == self._last and now - self._said < self._repeat):
            return
        self._last, self._said = key, now
        self._context.say(_words(decision, unread, f"({now - self._begun:.1f} s)"))

    def _alarm(self, seen: tuple[Reason, ...]) -> None:
        if seen and seen != self._alarms:
            self._context.say(f"ALARM: {format_reasons(seen)}")
            self._context.journal.write("alarm", self._step.name, format_reasons(seen))
        if self._alarms and not seen:
            self._context.say(f"Alarm ended: {format_reasons(self._alarms)}")
            self._context.journal.write("alarm ended", self._step.name, format_reasons(self._alarms))
        self._alarms = seen

    def ended(self) -> None:
        """Send the last gauges of this process."""
        self._context.export(self._gauges.ended())

    def acted(self, decision: Act, seconds: float) -> None:
        """Journal and log an act that took so many seconds."""
        self._idle_since = self._well = self._context.clock.monotonic()
        self._acts.append(decision.named)
        self._context.journal.write("acted", self._step.name, decision.named, seconds=round(seconds, 3))
        self._context.say(f"Did '{decision.named}' in {seconds:.1f} s.")

    @cached_property
    def _restart_seconds(self) -> float | None:
        """As this cluster's journals have it; no step fails because they cannot be read."""
        from airflow_provider_kmigrate.core import journal_lines  # noqa: PLC0415  # a third of the steps have no estimate

        try:
            return journal_lines.restart_seconds(journal_lines.acts(journal_lines.read(lines_of(self._context.journals)).lines))
        except OSError:
            return None

    def tried(self, decision: Act) -> None:
        """Count an act of which it is not known whether it was done."""
        self._acts.append(decision.named)

    def times(self, decision: Act) -> int:
        """How often this run did or tried this act."""
        return self._acts.count(decision.named)

    def waited(self) -> float:
        """Seconds without an act or a healthy observation, over all runs of this wait."""
        return self._context.clock.monotonic() - self._well

    def idle(self) -> float:
        """Seconds without an act in this run."""
        return self._context.clock.monotonic() - self._idle_since

    def done(self, decision: Done) -> Done:
        """Journal and log the end; returns the decision."""
        seconds = self._context.clock.monotonic() - self._begun
        self._context.journal.write("done", self._step.name, decision.text, seconds=round(seconds, 3))
        self._context.say(f"Done: {decision.text} ({seconds:.1f} s)")
        return decision


def _unread(view: ClusterView, decision: Decision) -> tuple[Reason, ...]:
    """What was not read that a wait may be caused by, with the errors of machines and nodes."""
    return why_unread(view, decision.reasons if isinstance(decision, Wait) else ())


def _key(decision: Decision) -> object:
    return headlines(decision.reasons) if isinstance(decision, Wait | Refuse) else decision


def _words(decision: Decision, unread: Sequence[Reason], took: str) -> str:
    if isinstance(decision, Act):
        return f"Decided to {decision.named}: {decision.text} {took}"
    if isinstance(decision, Done):
        return f"{decision.text} {took}"
    return f"{'Waiting' if isinstance(decision, Wait) else 'Refused'} {took}: {reason_lines((*decision.reasons, *unread))}"
