"""A real cluster under load on its way, and the cells of the fault matrix that it goes through.

Each cell is a phase and a fault, with what the tool is required to do: *goes on* (as if nothing had happened), *holds* (restarts nothing
while the fault lasts, says what cannot be reached where that is known, and goes on afterwards), *refuses* (naming it), or *resumes*
(killed and run again, it ends where it would have ended).
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from typing import TypeVar

from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, ClusterView, Fields, ProcessState
from benchmarks import direct
from tests.kit.localcluster.cluster import LocalCluster
from tests.kit.localcluster.plan import folder_of
from tests.kit.processes import NodeProcess
from tests.system import evidence, linked
from tests.system.cells import Cell, Diary, wall
from tests.system.oracle import Oracle
from tests.system.proxy import Fault, Links
from tests.system.watched import ACTS, KILLED, SEES_TO_IT, Watched, is_curing

Value = TypeVar("Value")

HEALTHY = "every partition led and wholly in sync, every node that runs answers"
ONCE = "I7 no node started twice"
EXACTLY = "I7 started as without the kills"
HOLDS = "holds, and says what cannot be reached"
HELD = "I10 no act under the fault"
_HOLD_S = 6.0
_SERIES_HOLD_S = 2.0  # after it has said what it waits for
_OVERLAP_S = 3.0  # both at once: longer than a look may wait for a node, so that no look sees one healed and the other not begun
_WHOLE_S, _STEP_S = 120.0, 300.0
_RUNS = 4  # of a step that Airflow would try again


@dataclass(frozen=True)
class Trouble:
    """A fault while a step waits; `named`: what the step must say then, as a regular expression."""

    fault: str
    named: str
    made: Callable[[], AbstractContextManager[object]]
    overlap: float = _OVERLAP_S  # seconds in which the trouble before it lasts on


@dataclass
class Journey:
    """The cluster, its links, and the cells so far; `skipped`: what could not be made here, and why.

    `only`: of the cells, those whose phase and fault match; the journey itself is made all the same. `seed` chooses whom faults hit.
    """

    cluster: LocalCluster
    links: Links
    groups: tuple[str, ...] = ()
    seed: int = 0
    only: str = ""
    phase: str = "ZooKeeper"
    first_time: bool = True  # until it has been back
    cells: list[Cell] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    diary: Diary = field(default_factory=Diary)
    ending: ExitStack = field(default_factory=ExitStack)  # what is undone when every node is down
    own: Mapping[str, Callable[[Journey], None]] = field(
        default_factory=dict
    )  # cells of this shape of cluster alone, by their place

    def __post_init__(self) -> None:
        self.oracle = Oracle(self.cluster, self.groups)
        self._phases = 0

    def enter(self, phase: str) -> None:
        self.phase = phase
        self._phases += 1

    def shuffled(self, values: Sequence[Value]) -> list[Value]:
        """The same ones at the same place of a journey with the same seed."""
        return random.Random(f"{self.seed} {self._phases} {self.phase}").sample(values, len(values))  # noqa: S311  # no secret

    def make_own(self, place: str) -> bool:
        """Make the cells that this shape of cluster has here; whether it has any."""
        made = self.own.get(place)
        if made is not None:
            made(self)
        return made is not None

    def wanted(self, fault: str) -> bool:
        return re.search(self.only, f"{self.phase}: {fault}") is not None

    def cell(
        self,
        fault: str,
        required: str,
        made: Callable[[], str],
        *,
        controllers: bool = True,
        most: int = 1,
        proven: Sequence[str] = (),
    ) -> None:
        """Make the fault, and note what the tool did; a cell that fails is noted, and the journey goes on.

        Without `controllers` the journey does not start what is down: in the middle of a rollback they must stay down. `most`: how often a node may be
        started in it; `proven`: the invariants that `made` raises AssertionError for.
        """
        if not self.wanted(fault):
            return
        began, at, before = time.monotonic(), time.time(), self.starts()
        try:
            seen, passed = made(), True
        except Exception as error:  # noqa: BLE001  # whatever it is, it is what was seen
            seen, passed = f"{type(error).__name__}: {str(error)[-400:]}", False
        seconds = round(time.monotonic() - began, 1)
        names, violated = self.invariants(before, most, start=controllers)
        cell = Cell(self.phase, fault, required, seen, seconds, passed, (*proven, *names), violated)
        self.note(cell, at, time.time())

    def invariants(self, before: Mapping[str, int], most: int, *, start: bool) -> tuple[tuple[str, ...], str]:
        """Those that are checked after every cell, and which of them are violated; the cluster is made whole first."""
        sickness = self.whole(start)
        names, violated = ((), "") if sickness else self.oracle.check()
        again = sorted(name for name, count in self.started_since(before).items() if count > most)
        found = [sickness, f"{ONCE}: {again}" if again else "", violated]
        return (HEALTHY, ONCE if most == 1 else f"I7 no node started more than {most} times", *names), "; ".join(
            filter(None, found)
        )

    def note(self, cell: Cell, began: float, ended: float) -> None:
        """A cell with its time; it has passed only without a violation."""
        timeline = self.diary.between(began, ended)
        passed = cell.passed and not cell.violated
        cell = replace(cell, passed=passed, began=wall(began), ended=wall(ended), timeline=timeline)
        self.cells.append(cell)
        seen = f"{cell.seen} ({cell.seconds} s) {cell.violated}"
        print(f"{'ok  ' if cell.passed else 'FAIL'} {cell.phase}: {cell.fault}: {seen}", flush=True)

    def series(
        self, kind: str, troubles: Sequence[Trouble], *, controllers: bool = True, left: bool = False, **arguments: object
    ) -> None:
        """One cell for each trouble, all in one life of a step: the next begins before the last is over, so that it waits throughout.

        In each it must say what it waits for and restart nothing; when all are over, it must come to its end. One that ends with an error
        that names it is run again, as Airflow would. What must hold of the cluster is asked once, after the last. `left`: it is killed
        under the last trouble instead of coming to its end.
        """
        troubles = [trouble for trouble in troubles if self.wanted(trouble.fault)]
        if not troubles:
            return
        held, before = Held(self, kind, dict(arguments)), self.starts()
        try:
            for trouble in troubles:
                held.meets(trouble)
            ended = held.is_left() if left else held.comes_to_its_end()
        except Exception as error:  # noqa: BLE001  # whatever it is, it is what was seen
            ended = f"{type(error).__name__}: {str(error)[-400:]}"
        finally:
            held.close()
        names, violated = self.invariants(before, 1, start=controllers)
        violated = ", ".join(filter(None, (ended, violated)))
        for met in held.met:
            self.note(replace(met.cell, invariants=(HELD, *names), violated=violated), met.began, met.ended)
        for trouble in troubles[len(held.met) :]:
            cell = Cell(
                self.phase, trouble.fault, HOLDS, "not made: what was before it failed", 0.0, passed=False, violated=violated
            )
            self.note(cell, time.time(), time.time())

    def whole(self, start: bool) -> str:
        """What is wrong with the cluster after `_WHOLE_S` seconds at most; empty where nothing is."""
        if start:
            self.cluster.up()  # whatever the fault took
        deadline, problem = time.monotonic() + _WHOLE_S, "?"
        while problem and time.monotonic() < deadline:
            problem = sick(self.observe())
            time.sleep(0.5)
        return problem

    def observe(self, what: Fields = evidence.EVERYTHING) -> ClusterView:
        with linked.context(self.cluster, "looking", acting=False) as context:
            return context.observer.observe(what)

    def watched(self, kind: str, arguments: Mapping[str, object], *trap: str) -> Watched:
        return Watched(self.cluster, kind, arguments, self.diary.print, *trap)

    def run(self, kind: str, arguments: Mapping[str, object], *trap: str) -> tuple[int, str]:
        """A step in a process of its own, to its end or to the trap."""
        with self.watched(kind, arguments, *trap) as tool:
            return tool.ends(_STEP_S)

    def through(self, kind: str, points: Sequence[str], *, starts: Mapping[str, int] | int, **arguments: object) -> str:
        """Run a step in processes that are killed at each of these points in turn, and once more to its end.

        `starts`: of which nodes, and how often, or how many in all, as many as without the kills. Raises AssertionError where a point was
        not reached, or others were started.
        """
        before, kills = self.starts(), list[str]()
        for point in points:
            code, output = self.run(kind, arguments, "--at", point)
            if code != KILLED:
                raise AssertionError(f"killed at {kills}, not at {point!r}: exit code {code}: {output}")
            kills.append(point)
            self.diary.print(f"fault: tool killed at {point!r}")
        code, output = self.run(kind, arguments)
        if code != 0:
            raise AssertionError(f"killed at {kills}, then: {output}")
        found = self.started_since(before)
        if starts not in (found, sum(found.values())):
            raise AssertionError(f"killed at {kills}; started {found}, and not {starts}")
        message = ", ".join(f"{name} {count}x" for name, count in sorted(found.items()))
        return f"resumed after {len(kills)} kills ({', '.join(kills)}); started: {message or 'none'}"

    def resumes(
        self,
        fault: str,
        kind: str,
        points: Sequence[str],
        *,
        starts: Mapping[str, int] | int,
        controllers: bool = True,
        **arguments: object,
    ) -> None:
        """The cell of a tool that is killed at these points."""

        def made() -> str:
            return self.through(kind, points, starts=starts, **arguments)

        self.cell(fault, "resumes", made, controllers=controllers, proven=(EXACTLY,))

    def holds(self, kind: str, name: str, fault: AbstractContextManager[None], after: float = 0.0, **arguments: object) -> str:
        """From `after` seconds on, while the fault lasts, the step restarts nothing, and afterwards it comes to its end. The fault
        itself starts what it stopped: no other code starts nodes, since the step may be restarting one by then.
        """
        before = self.starts()
        with self.watched(kind, arguments) as tool:
            time.sleep(after)
            with self.diary.lasting(name, fault):
                time.sleep(_HOLD_S)
                meanwhile = self.started_since(before)
            code, output = tool.ends(_STEP_S)
        if meanwhile or code != 0:
            raise AssertionError(f"restarted under the fault: {sorted(meanwhile)}; exit code {code}: {output}")
        return f"held for {_HOLD_S:g} s, then done"

    def starts(self) -> dict[str, int]:
        plan = self.cluster.plan
        begun = [node for node in (*plan.brokers, *plan.controllers) if NodeProcess(folder_of(node)).log.exists()]
        return {node.name: evidence.starts(node) for node in begun}

    def started_since(self, before: Mapping[str, int]) -> dict[str, int]:
        """How often, of the nodes that were."""
        return {name: count - before.get(name, 0) for name, count in self.starts().items() if count != before.get(name, 0)}

    def under(self, kind: str, name: str, fault: AbstractContextManager[object], **arguments: object) -> str:
        """The step comes to its end while the fault lasts."""
        with self.diary.lasting(name, fault):
            code, output = self.run(kind, arguments)
        if code != 0:
            raise AssertionError(f"exit code {code}: {output}")
        return "done under the fault"

    def meanwhile(
        self, kind: str, said: str, name: str, fault: AbstractContextManager[object], seconds: float, **arguments: object
    ) -> str:
        """The fault begins when the step says this, and lasts for `seconds`; the step comes to its end afterwards.

        Where it ends with an error, it is run again, as Airflow would.
        """
        with self.watched(kind, arguments) as tool:
            tool.says(said, 0)
            with self.diary.lasting(name, fault):
                time.sleep(seconds)
            code, output = tool.ends(_STEP_S)
        runs = 1
        while code != 0 and runs < _RUNS:
            runs += 1
            code, output = self.run(kind, arguments)
        if code != 0:
            raise AssertionError(f"exit code {code}: {output}")
        again = f", in {runs} runs" if runs > 1 else ""
        return f"done, after {seconds:g} s of it{again}"

    def refuses(self, kind: str, named: str, name: str, fault: AbstractContextManager[object], **arguments: object) -> str:
        """Under the fault the step ends with an error that says this, and has changed nothing."""
        before = evidence.footprint(self.cluster)
        with self.diary.lasting(name, fault):
            code, words = self.run(kind, arguments)
        after, said = evidence.footprint(self.cluster), re.search(named, words)
        changed = sorted(what for what in before.keys() | after.keys() if before.get(what) != after.get(what))
        if code == 0 or said is None or ACTS in words or changed:
            raise AssertionError(f"exit code {code}, changed {changed}: {words[-600:]}")
        return f"refused: {said.group().strip()}"

    def broken(self, fault: Fault, *names: str) -> AbstractContextManager[None]:
        return self.links.broken(fault, *names)

    def to_roll(self, target: BrokerMode) -> int:
        with linked.context(self.cluster, "looking", acting=False) as context:
            found = direct.to_roll(context, target)
        if found is None:
            raise AssertionError(f"every broker is in mode {target} already")
        return found

    def steps(self, made: Callable[..., object], *arguments: object) -> None:
        with linked.context(self.cluster) as context:
            made(context, *arguments)


@dataclass
class Met:
    """A trouble that a step has met, with its wall times."""

    cell: Cell
    began: float
    ended: float = float("inf")


class Held:
    """A step that meets one trouble after the other."""

    def __init__(self, journey: Journey, kind: str, arguments: dict[str, object]) -> None:
        self._journey, self._kind, self._arguments = journey, kind, arguments
        self._tool: Watched | None = None
        self._trouble = ExitStack()
        self.met: list[Met] = []

    def meets(self, trouble: Trouble) -> None:
        began, at, before = time.monotonic(), time.time(), self._journey.starts()
        with ExitStack() as entering:
            entering.enter_context(self._journey.diary.lasting(trouble.fault, trouble.made()))
            tool, since = self._runs()
            time.sleep(trouble.overlap if self.met else 0.0)
            early = set(self._journey.started_since(before))
            self._over()  # which starts what it took
            self._trouble = entering.pop_all()
        try:
            seen, passed = self._held(tool, trouble, since, early), True
        except AssertionError as error:
            seen, passed = str(error)[-700:], False
        seconds = round(time.monotonic() - began, 1)
        self.met.append(Met(Cell(self._journey.phase, trouble.fault, HOLDS, seen, seconds, passed), at))

    def _over(self) -> None:
        self._trouble.close()
        if self.met:
            self.met[-1].ended = min(self.met[-1].ended, time.time())

    def _runs(self) -> tuple[Watched, int]:
        """The step, and how much it has said; started again if it has ended with an error."""
        if self._tool is None or self._tool.exit_code() is not None:
            self._tool = self._journey.watched(self._kind, self._arguments)
            return self._tool, 0
        return self._tool, len(self._tool.words)

    def _held(self, tool: Watched, trouble: Trouble, since: int, early: set[str]) -> str:
        """What it said; raises AssertionError where it did not, went on, or had started something `early`."""
        before = self._journey.starts()
        said = tool.says(trouble.named, since)
        time.sleep(_SERIES_HOLD_S)
        meanwhile, code = early | set(self._journey.started_since(before)), tool.exit_code()
        words = tool.words[since:]
        # Where an earlier trouble has ended the dual-write, its cure, which restarts a controller, is no act on this one; it may be under way.
        if SEES_TO_IT in words or is_curing(tool.words[:since]):
            meanwhile = {name for name in meanwhile if name.startswith("broker")}
            words = words.replace(SEES_TO_IT, "", 1)
        if meanwhile or code == 0 or ACTS in words:
            raise AssertionError(
                f"under the fault it went on: started {sorted(meanwhile)}, exit code {code}; {tool.words[since:]}"
            )
        return f"held: {said}" if code is None else f"refused: {said}; its end: {tool.words.strip().splitlines()[-1][-200:]}"

    def comes_to_its_end(self) -> str:
        """What went wrong then; empty if nothing did. No other code starts nodes meanwhile: the step may be restarting one."""
        self._over()
        tool, _ = self._runs()
        code, output = tool.ends(_STEP_S)
        return "" if code == 0 else f"afterwards, exit code {code}: {output[-600:]}"

    def is_left(self) -> str:
        """Kill the step while the last trouble still holds, so that it has done nothing."""
        if self._tool is not None:
            self._tool.__exit__()
            self._tool = None
        self._over()
        return ""

    def close(self) -> None:
        self._over()
        if self._tool is not None:
            self._tool.__exit__()


def sick(view: ClusterView) -> str:
    """What a cluster between two cells must not be."""
    partitions = view.partitions or ()
    leaderless = sum(partition.leader < 0 for partition in partitions)
    short = sum(partition.is_under_replicated for partition in partitions)
    unresponsive = [broker.id for broker in view.brokers.values() if broker.mode is None]
    unresponsive += [c.id for c in view.controllers.values() if c.process.state is ProcessState.RUNNING and not c.answers]
    found = {
        "no partitions were read": not partitions,
        f"{leaderless} leaderless": leaderless,
        f"{short} with a short ISR": short,
    }
    return ", ".join([text for text, wrong in found.items() if wrong] + [f"{unresponsive} unresponsive"] * bool(unresponsive))
