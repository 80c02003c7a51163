"""A real cluster under load on its way, and the cells of the fault matrix that it goes through.

Each cell is a phase and a fault, with what the tool is required to do: *goes on* (as if nothing had happened), *holds* (restarts nothing
while the fault lasts, says what cannot be reached where that is known, and goes on afterwards), *refuses* (naming it), or *resumes*
(killed and run again, it ends where it would have ended).
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from airflow_provider_kmigrate.clients.hosts.process import NodeProcess
from airflow_provider_kmigrate.core.cluster import NodeSpec
from airflow_provider_kmigrate.core.model import BrokerMode, ClusterView, Look, ProcessState
from airflow_provider_kmigrate.localcluster.cluster import LocalCluster
from benchmarks import direct
from tests.system import evidence, linked
from tests.system.proxy import Fault, Links
from tests.system.test_killed_tool import ROOT, Tool, run

KILLED = -signal.SIGKILL
_HOLD_S = 6.0
_SERIES_HOLD_S = 2.0  # after it has said what it waits for
_OVERLAP_S = 3.0  # both at once: longer than a look may wait for a node, so that no look sees one healed and the other not begun
_NAMED_S = 45.0  # until it does; a wait that has not changed is said again after 10 s
_WHOLE_S, _STEP_S = 120.0, 300.0
_ACTS = "Decided to"  # what a step says before each act of its own
_SECONDS = re.compile(r" \([\d.]+ s\)\s*$")  # how long the step has run, at the end of each of its lines


@dataclass(frozen=True)
class Cell:
    """One cell as it went. `passed`: what was required was seen, and the cluster was whole afterwards."""

    phase: str
    fault: str
    required: str
    seen: str
    seconds: float
    passed: bool
    invariants: str


@dataclass(frozen=True)
class Trouble:
    """A fault while a step waits; `named`: what the step must say then, as a regular expression."""

    fault: str
    named: str
    made: Callable[[], AbstractContextManager[object]]
    overlap: float = _OVERLAP_S  # seconds in which the trouble before it lasts on


@dataclass
class Journey:
    """The cluster, its links, and the cells so far; `skipped`: what could not be made here, and why."""

    cluster: LocalCluster
    links: Links
    phase: str = "ZooKeeper"
    cells: list[Cell] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def cell(self, fault: str, required: str, made: Callable[[], str], *, controllers: bool = True) -> None:
        """Make the fault, and note what the tool did; a cell that fails is noted, and the journey goes on.

        Without `controllers` nobody starts what is down: in the middle of a way back they must stay down.
        """
        began = time.monotonic()
        try:
            seen, passed = made(), True
        except Exception as error:  # noqa: BLE001  # whatever it is, it is what was seen
            seen, passed = f"{type(error).__name__}: {str(error)[-400:]}", False
        invariants = self.whole(controllers)
        self.note(Cell(self.phase, fault, required, seen, round(time.monotonic() - began, 1), passed, ""), invariants)

    def note(self, cell: Cell, invariants: str) -> None:
        """A cell with what `whole` said after it."""
        cell = replace(cell, passed=cell.passed and not invariants, invariants=invariants or "held")
        self.cells.append(cell)
        seen = f"{cell.seen} ({cell.seconds} s) {invariants}"
        print(f"{'ok  ' if cell.passed else 'FAIL'} {cell.phase}: {cell.fault}: {seen}", flush=True)

    def series(self, kind: str, troubles: Sequence[Trouble], *, controllers: bool = True, **arguments: object) -> None:
        """One cell for each trouble, all in one life of a step: the next begins before the last is over, so that it waits throughout.

        In each it must say what it waits for and restart nothing; when all are over, it must come to its end. One that ends with an error
        that names it is run again, as Airflow would.
        """
        held = Held(self, kind, dict(arguments))
        try:
            for trouble in troubles:
                held.meets(trouble)
            ended = held.comes_to_its_end()
        except Exception as error:  # noqa: BLE001  # whatever it is, it is what was seen
            ended = f"{type(error).__name__}: {str(error)[-400:]}"
        finally:
            held.close()
        invariants = ", ".join(filter(None, (ended, self.whole(controllers))))
        for cell in held.cells:
            self.note(cell, invariants)

    def whole(self, start: bool) -> str:
        """What is wrong with the cluster after `_WHOLE_S` seconds at most; empty where nothing is."""
        if start:
            self.cluster.up()  # whatever the fault took
        deadline, problem = time.monotonic() + _WHOLE_S, "?"
        while problem and time.monotonic() < deadline:
            problem = sick(self.look())
            time.sleep(0.5)
        return problem

    def look(self, what: Look = evidence.EVERYTHING) -> ClusterView:
        with linked.world(self.cluster, "looking", acting=False) as world:
            return world.observer.look(what)

    def through(self, kind: str, points: Sequence[str], **arguments: object) -> str:
        """Run a step in processes that are killed at these points in turn, and once more to its end."""
        kills: list[str] = []
        for point in points:
            code, output = run(self.cluster, kind, arguments, "--at", point, timeout=_STEP_S)
            if code == 0:
                return told(kills)
            if code != KILLED:
                raise AssertionError(f"killed at {kills}, then: {output}")
            kills.append(point)
        code, output = run(self.cluster, kind, arguments, timeout=_STEP_S)
        if code != 0:
            raise AssertionError(f"killed at {kills}, then: {output}")
        return told(kills)

    def holds(self, kind: str, fault: AbstractContextManager[None], after: float = 0.0, **arguments: object) -> str:
        """From `after` seconds on, while the fault lasts, the step restarts nothing, and afterwards it comes to its end."""
        before = self.starts()
        with Tool(self.cluster, kind, dict(arguments)) as tool:
            time.sleep(after)
            with fault:
                time.sleep(_HOLD_S)
                meanwhile = self.started_since(before)
            self.cluster.up()
            code, output = tool.ends(_STEP_S)
        if meanwhile or code != 0:
            raise AssertionError(f"restarted under the fault: {sorted(meanwhile)}; exit code {code}: {output}")
        return f"held for {_HOLD_S:g} s, then done"

    def starts(self) -> dict[str, int]:
        plan = self.cluster.plan
        begun = [node for node in (*plan.brokers, *plan.controllers) if NodeProcess(Path(node.hosts.state)).log.exists()]
        return {node.name: evidence.starts(node) for node in begun}

    def started_since(self, before: dict[str, int]) -> set[str]:
        return {name for name, count in self.starts().items() if count != before.get(name, 0)}

    def under(self, kind: str, fault: AbstractContextManager[object], **arguments: object) -> str:
        """The step comes to its end while the fault lasts."""
        with fault:
            code, output = run(self.cluster, kind, arguments, timeout=_STEP_S)
        if code != 0:
            raise AssertionError(f"exit code {code}: {output}")
        return "done under the fault"

    def meanwhile(self, kind: str, said: str, fault: AbstractContextManager[object], seconds: float, **arguments: object) -> str:
        """The fault begins when the step says this, and lasts for `seconds`; the step comes to its end afterwards."""
        with Watched(self.cluster, kind, dict(arguments)) as tool:
            tool.says(said, 0)
            with fault:
                time.sleep(seconds)
            code, output = tool.ends(_STEP_S)
        if code != 0:
            raise AssertionError(f"exit code {code}: {output}")
        return f"done, after {seconds:g} s of it"

    def broken(self, fault: Fault, *names: str) -> AbstractContextManager[None]:
        return self.links.broken(fault, *names)

    def to_roll(self, target: BrokerMode) -> int:
        with linked.world(self.cluster, "looking", acting=False) as world:
            found = direct.to_roll(world, target)
        if found is None:
            raise AssertionError(f"every broker is in mode {target} already")
        return found

    def steps(self, made: Callable[..., object], *arguments: object) -> None:
        with linked.world(self.cluster) as world:
            made(world, *arguments)


class Watched(Tool):
    """A tool whose words are read while it runs."""

    def __init__(self, cluster: LocalCluster, kind: str, arguments: dict[str, Any]) -> None:
        self._log = cluster.folder.parent / "tool.log"
        argv = [sys.executable, "-u", "-m", "tests.system.tool", str(cluster.folder), kind, json.dumps(arguments)]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(argv, cwd=ROOT, stdout=log, stderr=log)  # type: ignore[assignment]

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def ends(self, timeout: float = 120.0) -> tuple[int, str]:
        return self.process.wait(timeout), self.words

    @property
    def words(self) -> str:
        return self._log.read_text(errors="replace")

    def says(self, named: str, since: int) -> str:
        """What matched in the words after the first `since` characters."""
        deadline = time.monotonic() + _NAMED_S
        while time.monotonic() < deadline:
            ended = self.process.poll() is not None
            found = re.search(named, self.words[since:])
            if found:
                return _SECONDS.sub("", found.group()).strip()
            if ended:
                break
            time.sleep(0.1)
        raise AssertionError(f"it never said {named!r}; exit code {self.process.poll()}: {self.words[since:][-600:]}")


class Held:
    """A step that meets one trouble after the other."""

    def __init__(self, journey: Journey, kind: str, arguments: dict[str, Any]) -> None:
        self._journey, self._kind, self._arguments = journey, kind, arguments
        self._tool: Watched | None = None
        self._trouble = ExitStack()
        self.cells: list[Cell] = []

    def meets(self, trouble: Trouble) -> None:
        began, before = time.monotonic(), self._journey.starts()
        with ExitStack() as entering:
            entering.enter_context(trouble.made())
            tool, since = self._runs()
            time.sleep(trouble.overlap if self.cells else 0.0)
            early = self._journey.started_since(before)
            self._trouble.close()  # which starts what it took
            self._trouble = entering.pop_all()
        try:
            seen, passed = self._held(tool, trouble, since, early), True
        except AssertionError as error:
            seen, passed = str(error)[-700:], False
        required = "holds, and says what cannot be reached"
        self.cells.append(
            Cell(self._journey.phase, trouble.fault, required, seen, round(time.monotonic() - began, 1), passed, "")
        )

    def _runs(self) -> tuple[Watched, int]:
        """The step, and how much it has said; begun anew where it has ended by an error."""
        if self._tool is None or self._tool.process.poll() is not None:
            self._tool = Watched(self._journey.cluster, self._kind, self._arguments)
            return self._tool, 0
        return self._tool, len(self._tool.words)

    def _held(self, tool: Watched, trouble: Trouble, since: int, early: set[str]) -> str:
        """What it said; raises AssertionError where it did not, went on, or had started something `early`."""
        before = self._journey.starts()
        said = tool.says(trouble.named, since)
        time.sleep(_SERIES_HOLD_S)
        meanwhile, code = early | self._journey.started_since(before), tool.process.poll()
        if meanwhile or code == 0 or _ACTS in tool.words[since:]:
            raise AssertionError(
                f"under the fault it went on: started {sorted(meanwhile)}, exit code {code}; {tool.words[since:]}"
            )
        return f"held: {said}" if code is None else f"refused: {said}; its end: {tool.words.strip().splitlines()[-1][-200:]}"

    def comes_to_its_end(self) -> str:
        """What went wrong then; empty where nothing did. Nobody else starts nodes meanwhile: the step may be restarting one."""
        self._trouble.close()
        tool, _ = self._runs()
        code, output = tool.ends(_STEP_S)
        return "" if code == 0 else f"afterwards, exit code {code}: {output[-600:]}"

    def close(self) -> None:
        self._trouble.close()
        if self._tool is not None:
            self._tool.__exit__()


def told(kills: Sequence[str]) -> str:
    if not kills:
        raise AssertionError("it was done before, there was no point to be killed at")
    return f"resumed after {len(kills)} kills ({', '.join(kills)})"


def sick(view: ClusterView) -> str:
    """What a cluster between two cells must not be."""
    partitions = view.partitions or ()
    leaderless = sum(partition.leader < 0 for partition in partitions)
    short = sum(partition.under_replicated for partition in partitions)
    silent = [broker.id for broker in view.brokers.values() if broker.mode is None]
    silent += [c.id for c in view.controllers.values() if c.process.state is ProcessState.RUNNING and not c.answers]
    found = {
        "no partitions were read": not partitions,
        f"{leaderless} leaderless": leaderless,
        f"{short} with a short ISR": short,
    }
    return ", ".join([text for text, wrong in found.items() if wrong] + [f"{silent} silent"] * bool(silent))


@contextmanager
def paused(process: NodeProcess) -> Iterator[None]:
    process.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.signal(signal.SIGCONT)


@contextmanager
def down(process: NodeProcess, cluster: LocalCluster) -> Iterator[None]:
    """Dead while it lasts; whatever is down is started afterwards."""
    process.wait_gone(process.signal(signal.SIGKILL), 30.0)
    try:
        yield
    finally:
        cluster.up()


@contextmanager
def killed(*nodes: NodeSpec) -> Iterator[None]:
    """Dead while it lasts; whoever comes afterwards starts them."""
    for node in nodes:
        process = of(node)
        process.wait_gone(process.signal(signal.SIGKILL), 30.0)
    yield


def of(node: NodeSpec) -> NodeProcess:
    return NodeProcess(Path(node.hosts.state))
