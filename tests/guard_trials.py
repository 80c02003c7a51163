"""The plugin of pytest that conducts the trials of `tests.guards`; it runs in the switched copy.

Each trial is a fork of a process that has collected all tests and run none: it costs what the test costs.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from _pytest.runner import runtestprotocol

STATE = Path(os.environ["KMIGRATE_GUARDS"])
ORDER: dict[str, Any] = json.loads((STATE / "order.json").read_text())
ENOUGH_TESTS, ENOUGH_S = 60, 60.0  # of one guard
OTHERS = 4  # guards that may stop the same thing, tried for each test
PATIENCE_S, SLOWER = 60.0, 10.0  # a trial that takes longer than that, and so many times as long as the test did, does not end


class Trial(NamedTuple):
    """How a test ended; `by_time`: not by itself. `fired`: the guards that had something to say."""

    failed: bool
    by_time: bool
    fired: frozenset[str]


class Candidate(NamedTuple):
    item: pytest.Item
    seconds: float
    fired: frozenset[str]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Recording goes on where it was interrupted."""
    if ORDER["mode"] == "record" and (to := Path(ORDER["to"])).exists():
        done = {json.loads(line)["test"] for line in to.read_text().splitlines()}
        items[:] = [item for item in items if item.nodeid not in done]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Recording: what each test that passes reaches, and how long it takes."""
    if ORDER["mode"] != "record":
        return (yield)
    _removal().fired.clear()
    (STATE / "fired").write_text("")
    item.stash[_PASSED] = True
    began = time.monotonic()
    try:
        return (yield)
    finally:
        seen = {"test": item.nodeid, "seconds": round(time.monotonic() - began, 3), "fired": sorted(_fired())}
        if item.stash[_PASSED]:
            _say(seen)


_PASSED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[Any]:
    report = yield
    if report.outcome != "passed":
        item.stash[_PASSED] = False
    return report


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    if ORDER["mode"] == "record":
        return None
    if session.testsfailed:
        raise session.Interrupted(f"{session.testsfailed} files cannot be collected")
    items = {item.nodeid: item for item in session.items}
    if ORDER["mode"] == "find":
        _find_all(items)
    else:
        _check_all(items)
    return True


def _removal() -> Any:
    return importlib.import_module("airflow_provider_kmigrate._removal_")


def _fired() -> frozenset[str]:
    return frozenset((STATE / "fired").read_text().splitlines())


def _say(line: Mapping[str, Any]) -> None:
    with Path(ORDER["to"]).open("a") as file:
        file.write(f"{json.dumps(line)}\n")


def _find_all(items: Mapping[str, pytest.Item]) -> None:
    seen = [json.loads(line) for line in Path(ORDER["seen"]).read_text().splitlines()]
    tests = [
        Candidate(
            items[line["test"]], line["seconds"] + 8.0 * line["test"].startswith("tests/provider/"), frozenset(line["fired"])
        )
        for line in seen
        if line["test"] in items
    ]
    tests.sort(key=lambda each: each.seconds + 0.02 * len(each.fired))  # one in which few guards speak is about them
    for number, key in enumerate(ORDER["guards"], 1):
        candidates = _mixed([each for each in tests if key in each.fired])
        if not candidates:
            continue
        row = _find(key, candidates)
        print(f"{number} of {len(ORDER['guards'])}: {key}: {row}", flush=True)
        _say({key: row})


def _find(key: str, candidates: list[Candidate]) -> dict[str, str]:
    """The row of a guard."""
    until, late, passed = time.monotonic() + ENOUGH_S, "", list[tuple[Candidate, Trial]]()
    for each in candidates[:ENOUGH_TESTS]:
        trial = _try(each.item, {key}, each.seconds)
        if trial.failed and not trial.by_time and not _try(each.item, (), each.seconds).failed:
            return {"test": each.item.nodeid}
        late = late or (each.item.nodeid if trial.by_time else "")
        if not trial.failed:
            passed.append((each, trial))
        if time.monotonic() > until:
            break
    if late:
        return {"test": late}
    reason = f"of {len(candidates)} recorded tests that reach it {len(passed)} were tried, and none notices"
    return _find_twice(key, passed) or {"none": reason}


def _mixed(candidates: Iterable[Candidate]) -> list[Candidate]:
    """One case of each test first, then another one of each: cases of one test notice the same."""
    turn = Counter[str]()
    turns = list[tuple[int, Candidate]]()
    for each in candidates:
        function = each.item.nodeid.partition("[")[0]
        turns.append((turn[function], each))
        turn[function] += 1
    return [each for _, each in sorted(turns, key=lambda pair: pair[0])]


def _find_twice(key: str, passed: Iterable[tuple[Candidate, Trial]]) -> dict[str, str]:
    """Another guard without which, and without this one, a test fails that passes without either; empty if none was found."""
    until = time.monotonic() + ENOUGH_S / 2
    for candidate, trial in passed:
        new = sorted(trial.fired - {key}, key=lambda other: (other in candidate.fired, other))
        for other in new[:OTHERS]:
            if time.monotonic() > until:
                return {}
            both = _try(candidate.item, {key, other}, candidate.seconds)
            if both.failed and not both.by_time and not _try(candidate.item, {other}, candidate.seconds).failed:
                return {"test": candidate.item.nodeid, "twice": other}
    return {}


def _check_all(items: Mapping[str, pytest.Item]) -> None:
    for number, (key, row) in enumerate(ORDER["guards"].items(), 1):
        out = {key, row["twice"]} if "twice" in row else {key}
        item = items.get(row["test"])
        fails = item is not None and not _try(item, (), PATIENCE_S).failed and _try(item, out, PATIENCE_S / SLOWER).failed
        print(f"{number} of {len(ORDER['guards'])}: {'noticed' if fails else 'UNNOTICED'}: {key}", flush=True)
        _say({key: {"fails": fails, "row": row}})


def _try(item: pytest.Item, out: Iterable[str], seconds: float) -> Trial:
    """Run one test without these guards."""
    (STATE / "out").write_text("\n".join(out))
    (STATE / "fired").write_text("")
    child = os.fork()
    if child == 0:
        _run(item, frozenset(out))
    until = time.monotonic() + PATIENCE_S + SLOWER * seconds
    wait_status = None
    while wait_status is None and time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        wait_status = status if ended else None
        time.sleep(0.005)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if wait_status is None:
        os.waitpid(child, 0)
        end_processes(STATE.parent)
    return Trial(wait_status != 0, wait_status is None, _fired())


def end_processes(folder: Path) -> None:
    """End what a test that was cut short has left running: the processes that work in this folder, or name it."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and str(folder) in " ".join((process.cwd(), *process.cmdline())):
                process.kill()


def _run(item: pytest.Item, out: frozenset[str]) -> None:
    code = 1
    try:
        os.setpgid(0, 0)
        nothing = os.open(os.devnull, os.O_RDWR)
        for handle in (0, 1, 2):
            os.dup2(nothing, handle)
        removal = _removal()
        removal.OUT = out
        removal.fired.clear()
        reports = runtestprotocol(item, nextitem=None, log=False)
        code = int(any(report.outcome == "failed" for report in reports))
    finally:
        os._exit(code)
