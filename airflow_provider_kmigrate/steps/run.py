"""The one loop behind every step: look, decide, act at most once a look, until there is nothing left to do.

A step keeps nothing: killed anywhere and run again, it looks, finds what is already so, and does the rest. Every act is
preceded by the same five checks: the view is young, the cluster is the named one, the run still holds the fence, nobody has set the
kill switch, and the act is in the journal with what allowed it.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from airflow_provider_kmigrate.core.cluster import ClusterSpec, NodeSpec, Role
from airflow_provider_kmigrate.core.decision import Act, Decision, Done, Refuse, Verb, Wait
from airflow_provider_kmigrate.core.forward.roll import takes_part
from airflow_provider_kmigrate.core.forward.watch import alarming
from airflow_provider_kmigrate.core.gates import Gate, Standing
from airflow_provider_kmigrate.core.identity import strangers, unidentified
from airflow_provider_kmigrate.core.model import Broker, Cause, ClusterView, Controller, Look, Reason, headlines
from airflow_provider_kmigrate.core.preflight.surroundings import Surroundings
from airflow_provider_kmigrate.exceptions import Failed, KMigrateError, Refused, TimedOut, Unavailable, WrongCluster
from airflow_provider_kmigrate.observe import Tools
from airflow_provider_kmigrate.observe.unknowns import OF_THE_CLUSTER
from airflow_provider_kmigrate.steps.backup import BackupStore
from airflow_provider_kmigrate.steps.journal import Journal, evidence, told

MAX_VIEW_AGE = 5.0  # seconds; older views allow no act
SETTLING = 5.0  # seconds after a look without ZooKeeper
_NARROW = 2.0  # seconds in which no more than what a node that starts lacks is asked
_ANSWERS = Look.PROCESSES | Look.BROKERS | Look.CONTROLLERS
_REPEAT = 10.0  # seconds after which an unchanged reason is said again


class Clock(Protocol):
    """Time as an argument, so that tests need not wait."""

    def monotonic(self) -> float: ...

    def now(self) -> float:
        """Seconds since the epoch."""

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's clocks."""

    monotonic = staticmethod(time.monotonic)
    now = staticmethod(time.time)
    sleep = staticmethod(time.sleep)


class Observing(Protocol):
    """`observe.Observer`, or a test's stand-in."""

    def look(self, what: Look, nodes: Sequence[NodeSpec] = (), groups: Sequence[str] = ()) -> ClusterView:
        """One frozen view of what was asked for; `nodes` limits whose hosts are asked, `groups` names the consumer groups."""

    def surroundings(self, view: ClusterView) -> Surroundings:
        """What preflight asks beside a view."""


class Fencing(Protocol):
    """`clients.fence.Fence`, or a test's stand-in."""

    @property
    def path(self) -> str:
        """The znode whose version is the token; a transaction checks it."""

    @property
    def token(self) -> int: ...

    def check(self) -> None:
        """Raises `Fenced` when a newer run holds the cluster."""

    def release(self) -> None:
        """The run is over: free the cluster for others."""


@dataclass(frozen=True)
class World:
    """Everything a step may touch."""

    spec: ClusterSpec
    observer: Observing
    tools: Tools
    fence: Fencing
    journal: Journal
    backup: BackupStore
    say: Callable[[str], None]
    clock: Clock = field(default_factory=SystemClock)
    stopped: Callable[[], str] = lambda: ""  # the kill switch: who or what says that nothing may be done now; empty: nobody
    run: str = ""  # as the fence and the journal name it


class Step(ABC):
    """One thing to bring about. `patience`: seconds of waiting, none of it healthy, after which it gives up."""

    name: str
    looks: Look
    patience: float = 600.0
    memory: float = 0.0  # seconds of looks that a judgement needs in one life, which no shorter watch may cut off
    acts_after: float = 0.0  # seconds of looks that an act needs in one life, which ends with the wait: read anew at each look
    waited: float = 0.0  # seconds that count against the patience, of earlier runs of the same wait too
    most_acts: int = 5  # more of the same act would not help
    samples: int = 1  # how many looks in a row must say Done
    interval: float = 0.2  # seconds between looks; one that confirms what the last one said is over half of it later
    nodes: tuple[NodeSpec, ...] = ()  # whose hosts are asked for processes and files; none: every node's
    groups: tuple[str, ...] = ()  # consumer groups that are looked at
    expected: frozenset[Cause] = frozenset()  # alarms that this step itself brings about

    @abstractmethod
    def decide(self, view: ClusterView, first: ClusterView) -> Decision:
        """What is left to do; `first` is this run's first look, for conditions on change."""

    def dear(self, view: ClusterView) -> Look:
        """What must be looked at besides before `decide`, and takes long to read: only where the rest of the view does not decide already."""
        del view
        return Look(0)

    def act(self, world: World, act: Act) -> None:
        """Do what `decide` asked for; idempotent, and safe to be killed in."""
        raise AssertionError(f"{self.name} was asked to {act.verb} in {world.spec.name}, which is none of its acts")

    def undo(self) -> None:  # noqa: B027 - most steps remember nothing of what they decided
        """The act that was decided on last is left to another process: forget that it was decided on."""

    def lacks(self, view: ClusterView) -> Look:
        """What alone tells whether a node that an act of this step has started has gone on; none where the whole look is due."""
        del view
        return Look(0)

    def agrees(self, narrow: ClusterView) -> bool:
        """Whether a look at what `lacks` asked for is one of the looks in a row that must say Done, if a whole one says so next."""
        del narrow
        return False

    def traces(self, world: World) -> str:
        """What says why acting was in vain, such as the end of a node's log."""
        del world
        return ""


class OfNode(Step):
    """A step of one node, whose files and process its acts change: none comes before a look that shows whose directories its machine holds.

    `elsewhere`: verbs that leave this node alone; which other node such an act changes it finds out itself (`restarts.ours`).
    """

    node: NodeSpec
    elsewhere: frozenset[Verb] = frozenset()

    def of_ours(self, view: ClusterView, decision: Decision) -> Decision:
        """The decision, or a wait where it is an act on a node of which that was not read."""
        if not isinstance(decision, Act) or decision.verb in self.elsewhere:
            return decision
        seen = self._seen(view)
        unknown = unidentified(seen) if seen else ()
        return Wait(unknown) if unknown else decision

    def lacks(self, view: ClusterView) -> Look:
        """Its answer, which only its own start can bring; then a broker's place in its ISRs, which its leaders give it."""
        seen = self._seen(view)
        if seen is None:
            return Look(0)
        if seen.starts:
            return _ANSWERS
        left_out = isinstance(seen, Broker) and seen.mode is not None and (view.partitions is None or view.lacking(seen.id))
        return _ANSWERS | Look.PARTITIONS if left_out else Look(0)

    def agrees(self, narrow: ClusterView) -> bool:
        return self.node.role is Role.BROKER and takes_part(narrow, self.node.id)

    def _seen(self, view: ClusterView) -> Broker | Controller | None:
        nodes: Mapping[int, Broker | Controller] = view.brokers if self.node.role is Role.BROKER else view.controllers
        return nodes.get(self.node.id)

    def traces(self, world: World) -> str:
        return world.tools.host(self.node).log_tail(self.node)


def run_step(
    step: Step, world: World, sync_for: float = float("inf"), looked: Callable[[], object] = lambda: None
) -> Done | Wait:
    """Run until done; `Wait` when `sync_for` seconds of mere waiting have passed (then defer, and run again later). `looked` is called
    after each decision, before anything comes of it.

    Raises `Refused` with reasons, `TimedOut` when `step.patience` is over, `Failed` when acting does not help, and what the clients
    raise.
    """
    diary = _Diary(step, world)
    first: ClusterView | None = None
    good, starting = 0, False
    while True:
        view = world.observer.look(step.looks, step.nodes, step.groups)
        if dear := step.dear(view):
            view = world.observer.look(step.looks | dear, step.nodes, step.groups)
        first = first or view
        decision = step.decide(view, first)
        decision = step.of_ours(view, decision) if isinstance(step, OfNode) else decision
        decision = diary.settled(view, decision)
        looked()
        diary.saw(view, decision)
        if isinstance(decision, Refuse):
            raise Refused(f"{step.name}: {told(decision.reasons)}", decision.reasons)
        good = good + 1 if isinstance(decision, Done) else 0
        if isinstance(decision, Done) and good >= step.samples:
            return diary.done(decision)
        if isinstance(decision, Act):
            _act(step, world, view, decision, diary)
            starting = True
            continue
        if isinstance(decision, Wait):
            step.waited = diary.waited()
            if step.waited >= step.patience:
                said = told((*decision.reasons, *_unread(view, decision)))
                raise TimedOut(f"{step.name}: gave up after {step.patience:.0f} s without progress. {said}")
            if diary.idle() >= max(sync_for, step.acts_after):
                return decision
        world.clock.sleep(max(0.0, step.interval / 2 - view.took) if good else step.interval)
        if starting:
            narrow = _comes_up(step, world, view)
            starting = bool(step.lacks(narrow))
            good += narrow is not view and view.zk is not None and step.agrees(narrow)


def _comes_up(step: Step, world: World, view: ClusterView) -> ClusterView:
    """The last look of those that ask for a while only for what a node that was just started lacks: looks at everything, four a second,
    cost a machine with two cores so much that a broker took a third longer to start (measured). On a large cluster they are as far apart
    as they take.
    """
    until = world.clock.monotonic() + _NARROW
    while (what := step.lacks(view)) and world.clock.monotonic() < until:
        view = world.observer.look(what, step.nodes)
        pause = max(step.interval / 2, view.took if step.lacks(view) else 0.0)
        world.clock.sleep(min(pause, max(0.0, until - world.clock.monotonic())))
    return view


def _act(step: Step, world: World, view: ClusterView, decision: Act, diary: _Diary) -> None:
    age = world.clock.monotonic() - view.taken_at
    if age > MAX_VIEW_AGE:
        world.say(f"The last look is {age:.1f} s old; looking again before acting.")
        if diary.waited() >= step.patience:
            text = f"every look was more than {MAX_VIEW_AGE:.0f} s old when it could be acted on: this machine is too slow, or stops at times"
            raise TimedOut(f"{step.name}: gave up after {step.patience:.0f} s without progress; {text}.")
        return
    refuse_strangers(step.name, world, view)
    world.fence.check()
    refuse_if_stopped(step.name, world)
    if diary.times(decision) >= step.most_acts:
        told_again = f"{step.name}: did '{decision.named}' {step.most_acts} times in vain. {decision.text}"
        raise Failed(f"{told_again} {step.traces(world)}".strip())
    world.journal.write("act", step.name, f"{decision.named}: {decision.text}", **evidence(view))
    started = world.clock.monotonic()
    try:
        step.act(world, decision)
    except KMigrateError as error:
        world.journal.write("failed", step.name, f"{decision.named}: {error}")
        raise
    diary.acted(decision, world.clock.monotonic() - started)


def demand(gate: Gate) -> None:
    """Raises `Refused` where a gate is not met and never will be by itself, `Unavailable` where it may be at another try."""
    if gate.met:
        return
    if gate.standing is Standing.NEVER:
        raise Refused.because(*gate.reasons)
    raise Unavailable(told(gate.reasons))


def refuse_strangers(name: str, world: World, view: ClusterView) -> None:
    """Raises `WrongCluster` where the view names another cluster than the cluster file does, or none. `name`: the step's."""
    reasons = strangers(view, world.spec)
    if reasons:
        raise WrongCluster(f"{name}: {told(reasons)}", reasons)


def refuse_if_stopped(name: str, world: World) -> None:
    """The kill switch: raises `Refused` where it is on. `name`: the step's."""
    said = world.stopped()
    if said:
        world.journal.write("stopped", name, said)
    refuse_if_on(world.spec.name, said)


def refuse_if_on(cluster: str, said: str) -> None:
    """Raises `Refused` where the kill switch said something."""
    if said:
        text = f"The kill switch of {cluster} is on: {said}"
        raise Refused.because(Reason("H05", text))


class _Diary:
    """What a good operator would write down: each change of what is seen, and from time to time that nothing changes."""

    def __init__(self, step: Step, world: World) -> None:
        self._step, self._world = step, world
        self._begun = self._idle_since = self._said = world.clock.monotonic()
        self._well = self._begun - step.waited  # when there last was an act or a healthy look
        self._last: object = None
        self._lost = float("-inf")  # when a look was last without ZooKeeper
        self._acts: list[str] = []
        self._alarms: tuple[Reason, ...] = ()

    def settled(self, view: ClusterView, decision: Decision) -> Decision:
        """The decision, or a wait where ZooKeeper has only just come back: what its absence has changed shows a moment later.

        Sessions that ended meanwhile take brokers out of their ISRs within a second of its return, and brokers still tell the ISRs of before
        (a broker was stopped in that second, and its partitions were left with one replica; met in the fault matrix).
        """
        now = self._world.clock.monotonic()
        if view.zk is None and self._step.looks & Look.ZOOKEEPER:
            self._lost = now
        if view.zk is None or not isinstance(decision, Act) or decision.verb.brings_up or now - self._lost >= SETTLING:
            return decision
        text = f"ZooKeeper did not answer a look {now - self._lost:.0f} s ago: {SETTLING:.0f} s are waited for what that has changed."
        return Wait((Reason("T01", text),))

    def saw(self, view: ClusterView, decision: Decision) -> None:
        now = self._world.clock.monotonic()
        self._well = now if isinstance(decision, Wait) and decision.healthy else self._well
        seen = alarming(view, self._world.spec.policy.max_hybrid, self._world.clock.now())
        self._alarm(tuple(reason for reason in seen if reason.cause not in self._step.expected))
        unread = _unread(view, decision)
        key = (_key(decision), headlines(unread))
        if isinstance(decision, Done) or (key == self._last and now - self._said < _REPEAT):
            return
        self._last, self._said = key, now
        self._world.say(f"{' | '.join((_words(decision), *map(str, unread)))} ({now - self._begun:.1f} s)")

    def _alarm(self, seen: tuple[Reason, ...]) -> None:
        if seen and seen != self._alarms:
            self._world.say(f"ALARM: {told(seen)}")
            self._world.journal.write("alarm", self._step.name, told(seen))
        self._alarms = seen

    def acted(self, decision: Act, seconds: float) -> None:
        self._idle_since = self._well = self._world.clock.monotonic()
        self._acts.append(decision.named)
        self._world.journal.write("acted", self._step.name, decision.named, seconds=round(seconds, 3))
        self._world.say(f"Did '{decision.named}' in {seconds:.1f} s.")

    def times(self, decision: Act) -> int:
        """How often this run has done it."""
        return self._acts.count(decision.named)

    def waited(self) -> float:
        """Seconds without an act or a healthy look, over all runs of this wait."""
        return self._world.clock.monotonic() - self._well

    def idle(self) -> float:
        """Seconds without an act in this run."""
        return self._world.clock.monotonic() - self._idle_since

    def done(self, decision: Done) -> Done:
        seconds = self._world.clock.monotonic() - self._begun
        self._world.journal.write("done", self._step.name, decision.text, seconds=round(seconds, 3))
        self._world.say(f"Done: {decision.text} ({seconds:.1f} s)")
        return decision


def _unread(view: ClusterView, decision: Decision) -> tuple[Reason, ...]:
    """Why something was not read that a wait may be for; nodes that do not answer are named by the wait's own reasons."""
    said = decision.reasons if isinstance(decision, Wait) else ()
    return tuple(reason for reason in view.unknowns if said and reason.cause in OF_THE_CLUSTER and reason not in said)


def _key(decision: Decision) -> object:
    return headlines(decision.reasons) if isinstance(decision, Wait | Refuse) else decision


def _words(decision: Decision) -> str:
    if isinstance(decision, Act):
        return f"Decided to {decision.named}: {decision.text}"
    if isinstance(decision, Done):
        return decision.text
    return f"{'Waiting' if isinstance(decision, Wait) else 'Refused'}: {told(decision.reasons)}"
