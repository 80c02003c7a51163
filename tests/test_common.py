"""What tests/conftest.py does for all tests: a second try of its own, as continuous integration makes them, and no test hangs for ever."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trees import ROOT
from tests.waiting import wait_for

pytest_plugins = ["pytester"]

MODULE = """
import itertools, pytest
made, ended = itertools.count(), []

@pytest.fixture(scope="module")
def cluster():
    number = next(made)
    yield number
    ended.append(number)

@pytest.fixture(scope="module")
def admin(cluster):
    return f"of {cluster}"

def test_before(cluster):
    assert cluster == 0

def test_crowded(cluster, admin):
    assert (cluster, admin, ended) == (1, "of 1", [0])

def test_after(cluster, admin):
    assert (cluster, admin, ended) == (1, "of 1", [0])
"""


def test_a_test_that_is_tried_again_has_a_cluster_of_its_own(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(Path(__file__).with_name("conftest.py").read_text())
    pytester.makepyfile(MODULE)
    result = pytester.runpytest_inprocess("--reruns", "1")
    assert result.parseoutcomes() == {"passed": 3, "rerun": 1}
    result.stdout.fnmatch_lines(["*first tries that failed*", "*test_crowded, call*"])


HANGS = """
import threading
import pytest

def test_fails_and_hangs_in_its_teardown(request):
    request.addfinalizer(hang)
    assert not "what takes the signal of pytest-timeout away"

def hang():
    while True:
        try:
            threading.Event().wait()
        except BaseException:
            pass

def test_after():
    pass
"""


@pytest.mark.slow
def test_a_worker_that_hangs_is_ended_and_says_where(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))  # the hooks import the kit
    common = Path(__file__).with_name("conftest.py").read_text()
    pytester.makeconftest(common.replace("_GRACE = 60.0", "_GRACE = 1.0"))
    pytester.makepyfile(HANGS)
    result = pytester.runpytest_subprocess("-n1", "--timeout=2", "--reruns=0", timeout=300)
    assert result.parseoutcomes() == {"failed": 1, "passed": 1}, "the next test runs in a new worker"
    result.stdout.fnmatch_lines(["*crashed while running*test_fails_and_hangs_in_its_teardown*"])
    result.stderr.fnmatch_lines(["*in hang"])


WAITS = """
import tempfile, time
from pathlib import Path

home = tempfile.TemporaryDirectory(dir=".", prefix="home-")

def test_waits():
    Path("begun").touch()
    time.sleep(300)
"""


def test_a_session_that_is_terminated_removes_its_folders(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeconftest(Path(__file__).with_name("conftest.py").read_text())
    pytester.makepyfile(WAITS)
    argv = [sys.executable, "-X", "faulthandler", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    output = pytester.path / "output"
    with output.open("w") as file:
        session = pytester.popen(argv, stdout=file, stderr=file)
    try:
        wait_for((pytester.path / "begun").exists, bool, "the test begins", 120.0)
        session.send_signal(signal.SIGTERM)
        session.wait(60)
    except subprocess.TimeoutExpired:
        session.send_signal(signal.SIGABRT)  # it writes where each of its threads is
        session.wait(60)
        pytest.fail(f"it did not end: {output.read_text()[-6_000:]}")
    finally:
        session.kill()
    assert list(pytester.path.glob("home-*")) == []
