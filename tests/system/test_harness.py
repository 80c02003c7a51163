"""The fault matrix itself: what makes a cell red, what a summary holds, and that a seed makes the same journey."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import ClusterView, Controller, Fields, Migration, ZkController, ZkView
from airflow_provider_kmigrate.steps.run import Observing
from tests.kit.localcluster.cluster import LocalCluster
from tests.system import oracle
from tests.system.cell_table import table
from tests.system.cells import Cell, Diary, save
from tests.system.journey import Journey
from tests.system.oracle import went_back
from tests.system.proxy import Links
from tests.system.tool import Trap, TrappedObserver
from tests.system.watched import KILLED, Watched


class Scripted(Journey):
    """Each run of the tool comes to one of `ends`, in turn: an exit code, and what it starts."""

    ends: list[tuple[int, str]]
    counts: dict[str, int]

    def starts(self) -> dict[str, int]:
        return dict(self.counts)

    def run(self, kind: str, arguments: Mapping[str, object], *trap: str) -> tuple[int, str]:
        del kind, arguments, trap
        code, node = self.ends.pop(0)
        if node:
            self.counts[node] = self.counts.get(node, 0) + 1
        return code, "its words"

    def invariants(self, before: Mapping[str, int], most: int, *, start: bool) -> tuple[tuple[str, ...], str]:
        del before, most, start
        return ("asked",), ""


def journey(*ends: tuple[int, str], seed: int = 0, only: str = "") -> Scripted:
    found = Scripted(LocalCluster("nowhere"), cast(Links, None), seed=seed, only=only)
    found.ends, found.counts = list(ends), {"broker 1": 4}
    return found


def test_every_point_is_reached_and_only_the_named_nodes_are_started() -> None:
    made = journey((KILLED, ""), (KILLED, "broker 1"), (0, ""))
    assert "2 kills" in made.through("roll", ("file put", "started"), starts={"broker 1": 1})


@pytest.mark.parametrize(
    ("ends", "seen"),
    [
        ([(KILLED, "broker 1"), (0, "")], "not at 'started'"),  # it came to its end with fewer kills than were asked for
        ([(KILLED, ""), (3, "")], "exit code 3"),
        ([(KILLED, ""), (KILLED, "broker 1"), (1, "")], "killed at"),
        ([(KILLED, "broker 1"), (KILLED, "broker 1"), (0, "")], "started {'broker 1': 2}"),
        ([(KILLED, "broker 1"), (KILLED, ""), (0, "broker 2")], "'broker 2': 1"),
    ],
)
def test_fewer_kills_or_more_starts_make_a_cell_red(ends: list[tuple[int, str]], seen: str) -> None:
    with pytest.raises(AssertionError, match=seen):
        journey(*ends).through("roll", ("file put", "started"), starts={"broker 1": 1})


def test_a_red_cell_is_noted_and_the_journey_goes_on() -> None:
    made = journey((0, ""))
    made.resumes("tool killed", "roll", ("file put",), starts=0)
    [cell] = made.cells
    assert not cell.passed
    assert "not at 'file put'" in cell.seen
    assert cell.began <= cell.ended


def test_only_the_cell_that_was_asked_for_is_made() -> None:
    made = journey(only="copy: tool")
    made.enter("copy")
    for fault in ("tool killed", "clock jumps"):
        made.cell(fault, "goes on", lambda: "done")
    assert [cell.fault for cell in made.cells] == ["tool killed"]


def test_a_seed_chooses_the_same_ones_again_and_another_seed_others() -> None:
    def chosen(seed: int) -> list[list[int]]:
        made, found = journey(seed=seed), []
        for phase in ("copy", "second roll", "copy"):
            made.enter(phase)
            found.append(made.shuffled(range(20)))
        return found

    assert chosen(1) == chosen(1)
    assert chosen(1) != chosen(2)
    first, _, again = chosen(1)
    assert first != again, "the same phase, met again"


@pytest.mark.parametrize(
    ("now", "gone", "message"),
    [
        ({"a": 5, "b": 7, "c": 1}, True, ""),
        ({"a": 4, "b": 7}, True, "a from 5 to 4"),
        ({"a": 5}, True, "b is gone, was at 7"),
        ({"a": 5}, False, ""),
    ],
)
def test_what_went_back_is_named(now: dict[str, int], gone: bool, message: str) -> None:
    assert went_back({"a": 5, "b": 7}, dict(now.items()), gone=gone) == message


@pytest.mark.parametrize(
    ("kraft_epoch", "epoch", "states", "problem"),
    [(-1, 7, 7, False), (-1, 7, 8, True), (9, 7, 8, False), (-1, 7, None, False)],
)
def test_a_state_above_a_zookeeper_controller_is_a_violation(
    kraft_epoch: int, epoch: int, states: int | None, problem: bool
) -> None:
    zk = ZkView(controller=ZkController(1, kraft_epoch, ephemeral=kraft_epoch < 0), controller_epoch=epoch)
    assert bool(oracle._out_of_reach(ClusterView(0.0, zk=zk, state_epoch=states))) == problem


@pytest.mark.parametrize(
    ("offset", "flags", "kraft_epoch", "expected"),
    [(7, (True, True), 3, True), (0, (True, True), 3, False), (7, (True, None), 3, False), (7, (True, True), -1, False)],
)
def test_both_sides_are_compared_in_dual_write_only(
    offset: int, flags: tuple[bool | None, ...], kraft_epoch: int, expected: bool
) -> None:
    controllers = {node: Controller(node, answers=True, migration_flag=flag) for node, flag in enumerate(flags, 3000)}
    zk = ZkView(controller=ZkController(3000, kraft_epoch, ephemeral=kraft_epoch < 0), migration=Migration(3000, 3, offset, 3))
    assert oracle.dual_writing(ClusterView(0.0, controllers=controllers, zk=zk)) is expected


def test_a_timeline_has_what_was_printed_meanwhile() -> None:
    diary = Diary()
    diary.print("before")
    began = time.time()
    with diary.lasting("link cut", nullcontext()):
        diary.print("tool: Waiting:\n ZooKeeper")
    lines = diary.between(began, time.time())
    assert [line.partition(" s ")[2] for line in lines] == ["fault: link cut", "tool: Waiting: ZooKeeper", "over: link cut"]
    assert diary.between(began + 60, began + 61) == ()


def test_a_long_timeline_keeps_its_begin_and_its_end() -> None:
    diary, began = Diary(), time.time()
    for number in range(100):
        diary.print(f"line {number}")
    lines = diary.between(began, time.time())
    assert len(lines) == 61
    assert lines[0].endswith("line 0")
    assert lines[-1].endswith("line 99")


def test_a_summary_is_a_list_of_cells(tmp_path: Path) -> None:
    cell = Cell("copy", "link cut", "holds", "held", 2.5, passed=True, invariants=("I4",))
    save(tmp_path, [cell], {"seed": 7, "lost": 0})
    [kept] = json.loads((tmp_path / "summary.json").read_text())
    assert {key: kept[key] for key in ("phase", "fault", "required", "seen", "seconds", "invariants")} == {
        "phase": "copy",
        "fault": "link cut",
        "required": "holds",
        "seen": "held",
        "seconds": 2.5,
        "invariants": ["I4"],
    }
    assert json.loads((tmp_path / "run.json").read_text()) == {"seed": 7, "lost": 0}
    assert table([kept]).splitlines()[-1] == "| copy | link cut | holds | held | 2.5 | yes |"
    assert "**no**: not as required" in table([kept | {"passed": False}])
    assert "**no**: I4: back" in table([kept | {"passed": False, "violated": "I4: back"}])


class Unchanged:
    """A cluster in which nothing changes, or one thing by each look at it."""

    def __init__(self, *, changes: bool) -> None:
        self.changes, self.looks = changes, 0

    def footprint(self, _: LocalCluster) -> dict[str, object]:
        self.looks += 1
        return {"process of broker 1": self.looks if self.changes else 0}


@pytest.mark.parametrize(
    ("code", "named", "changes", "refused"),
    [(4, "words", False, True), (0, "words", False, False), (4, "U09", False, False), (4, "words", True, False)],
)
def test_a_refusal_names_the_cause_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, code: int, named: str, *, changes: bool, refused: bool
) -> None:
    monkeypatch.setattr("tests.system.journey.evidence.footprint", Unchanged(changes=changes).footprint)
    there = journey((code, ""))
    there.cell("a wrong password", "refuses", lambda: there.refuses("roll", named, "a wrong password", nullcontext()))
    assert there.cells[-1].passed is refused, there.cells[-1].seen


def test_a_run_that_only_observes_can_be_killed() -> None:
    """The machine has restarted the node for a run that was killed, and the next run has nothing to start."""
    reached: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda *_: reached.append(1))
    try:
        observer = TrappedObserver(cast(Observing, SimpleNamespace(observe=lambda *_: None)), Trap("observed", signal.SIGUSR1, 2))
        observer.observe(Fields.ZOOKEEPER)
        assert not reached
        observer.observe(Fields.ZOOKEEPER)
        assert reached
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(("printed", "code"), [("Traceback (most recent call last):", 1), ("Waiting", None)])
def test_a_run_that_has_printed_its_error_has_ended(printed: str, code: int | None) -> None:
    """Its threads keep the process for a moment, in which it passed for one that waits."""
    watched = Watched.__new__(Watched)
    watched.process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1); raise SystemExit(1)"], text=True)
    watched.words = printed
    try:
        assert watched.exit_code() == code
    finally:
        watched.process.kill()
        watched.process.wait()
