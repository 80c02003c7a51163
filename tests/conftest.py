"""What all tests share: fixed seeds, the longest test first, no test hangs for ever, and a second try prints why the first one failed."""

import faulthandler
import gc
import json
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import Phase, settings
from xdist.scheduler import LoadScopeScheduling

from tests.kit.localcluster import reaper

# A test command gives the same answer each time: examples follow from the test's own source, and a failure is reported at once, as it
# was found. `make explore` searches with new seeds, and lets Hypothesis reduce what it finds.
_FOUND = (Phase.explicit, Phase.generate)
settings.register_profile("fixed", derandomize=True, deadline=None, phases=_FOUND)
settings.register_profile("explore", deadline=None, database=None, phases=_FOUND, print_blob=False)
settings.register_profile("reduce", deadline=None, database=None, phases=(*_FOUND, Phase.shrink), print_blob=False)
settings.load_profile("fixed")

_SHOWN = 12  # lines of an internal error
_GRACE = 60.0  # seconds beyond the test's own timeout
_PATIENCE = float(os.environ.get("KMIGRATE_TEST_PATIENCE", "1"))  # times a test's own timeout (tests/lanes.py)
_COUNTS = pytest.StashKey[str]()  # the file to which this session adds its counts; empty: none (tests/lanes.py)
_STDERR = pytest.StashKey[int]()  # the real one: while a test runs, what is written to it is kept back


def _end_on_sigterm() -> None:
    """`timeout` and a lane that is ended send SIGTERM: as Ctrl-C, so that folders, mounts and processes of tests go with the session.

    A child that a test forks is not the session, and ends at once.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))


def pytest_configure(config: pytest.Config) -> None:
    _end_on_sigterm()
    config.pluginmanager.register(_InternalErrors(config))
    reaper.ties_all = True
    config.stash[_STDERR] = os.dup(2)
    config.stash[_COUNTS] = os.environ.pop(
        "KMIGRATE_LANE_COUNTS", ""
    )  # not passed on: a session counts its workers' tests itself


class FewAirflows(LoadScopeScheduling):
    """The tests of a file stay together, and two workers have all files of tests/provider.

    Airflow's database and API server cost five seconds of a processor in each worker that starts them. The marker `xdist_group` groups
    nothing with pytest 9.2 and pytest-xdist 3.8.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return f"airflow {crc32(file.encode()) // 2 % 2}" if file.startswith("tests/provider/") else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    return FewAirflows(config, log) if config.getvalue("dist") == "loadgroup" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is imported and collected lives to the end: no search for garbage walks over its million objects, neither now nor later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first, so that no worker is left alone with one at the end.

    A test whose fixture does not exist is told here, whatever `-m` then leaves out: a lane of real clusters is too late.
    """
    if lost := [f"{item.nodeid}: {names}" for item in items if (names := missing_fixtures(item))]:
        raise pytest.UsageError(f"fixtures that do not exist: {lost[:5]}")
    items.sort(key=_seconds, reverse=True)
    for item in items:
        item.add_marker(pytest.mark.timeout(time_limit(item)), append=False)


def time_limit(item: pytest.Item) -> float:
    """The seconds after which a test is ended; 0: never, as `--timeout 0` asks for in a debugger.

    The limit is the test's own, and more in a lane: it ends a test that hangs, and no test that a busy machine runs slowly.
    """
    marker = item.get_closest_marker("timeout")
    given = item.config.getoption("timeout", None)
    if given == 0:
        return 0.0
    return float((marker.args[0] if marker else item.config.getini("timeout") if given is None else given) or 0) * _PATIENCE


def missing_fixtures(item: pytest.Item) -> list[str]:
    """The arguments of a test that no fixture and no parameter provides."""
    if not isinstance(item, pytest.Function):
        return []
    info = item._fixtureinfo  # pytest tells it nowhere else before the test begins
    return [name for name in info.names_closure if name != "request" and name not in info.name2fixturedefs]


def _seconds(item: pytest.Item) -> float:
    marker = item.get_closest_marker("slow")
    return 0.0 if marker is None else marker.kwargs.get("seconds", 5.0)


@pytest.fixture(autouse=True, scope="session")
def _no_fsync() -> Iterator[None]:
    """Nothing waits for the disk: no test in this process cuts the power (tests/machines does), and ten thousand waits are minutes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _handle: None)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Iterator[None]:
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    _end_a_hang(item)


def _end_a_hang(item: pytest.Item) -> None:
    """The process ends, with all its threads' stacks, where pytest-timeout's own signal has done nothing.

    A call into C does not see that signal; Airflow's timeouts, as it reads DAG files, take it away; and any failure does, before the
    teardown and a second try. pytest-xdist goes on with another worker.
    """
    marker = item.get_closest_marker("timeout")
    limit = float(marker.args[0]) if marker else 0.0
    if limit:
        faulthandler.dump_traceback_later(limit + _GRACE, exit=True, file=item.config.stash[_STDERR])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Function) -> None:
    """A second try has a cluster of its own: on the first one's it would meet the topics that the first one made, and fail of that."""
    _end_a_hang(item)
    if getattr(item, "execution_count", 1) == 1:
        return
    for definitions in item._fixtureinfo.name2fixturedefs.values():
        for definition in definitions:
            if definition.scope == "module":
                definition.finish(item._request)


@pytest.fixture
def monkeypatch(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A test that has patched something walks into a phase by itself (`tests.steps.walked`)."""
    walked = sys.modules.get("tests.steps.walked")
    patches: list[pytest.MonkeyPatch] = walked.patches if walked else []
    patches.append(monkeypatch)
    yield monkeypatch
    patches.remove(monkeypatch)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A second try that passes must not hide what the first one met."""
    tried = terminalreporter.stats.get("rerun", [])
    if tried:
        terminalreporter.section("first tries that failed")
    for report in tried:
        terminalreporter.section(f"{report.nodeid}, {report.when}", sep="_")
        terminalreporter.line(report.longreprtext[-6_000:])
    if counts := terminalreporter.config.stash[_COUNTS]:
        _add_counts(Path(counts), terminalreporter.stats)


class _InternalErrors:
    """An error of pytest itself ends the session without a summary: its last lines stand in the lane's counts."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_internalerror(self, excrepr: object) -> None:
        if counts := self._config.stash[_COUNTS]:
            _add_counts(Path(counts), {}, str(excrepr).splitlines()[-_SHOWN:])


def _add_counts(file: Path, stats: dict[str, list[Any]], internal_error: Sequence[str] = ()) -> None:
    """One line of JSON for this session (`tests.lanes.merged`)."""
    outcomes = {"passed", "failed", "error", "skipped", "rerun", "xfailed", "xpassed"}
    reasons = Counter(str(report.longrepr[-1]) for report in stats.get("skipped", []))
    session = {
        "counts": {outcome: len(stats[outcome]) for outcome in sorted(outcomes & stats.keys())},
        "skipped": reasons,
        "repeated": sorted({report.nodeid for report in stats.get("rerun", [])}),
        "failed": sorted({report.nodeid for outcome in ("failed", "error") for report in stats.get(outcome, [])}),
        "internal_error": list(internal_error),
    }
    with file.open("a") as lines:
        lines.write(json.dumps(session) + "\n")
