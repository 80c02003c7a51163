"""Real small processes: started, found again, stopped, and never mistaken for another."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from airflow_provider_kmigrate.clients.atomic import locked
from airflow_provider_kmigrate.core.cluster_state.model import Process, ProcessState
from airflow_provider_kmigrate.exceptions import Failed
from tests.kit import processes as module
from tests.kit.processes import Launch, NodeProcess
from tests.waiting import wait_until

_OBEDIENT = "import signal; print('up', flush=True); signal.pause()"
_DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True)\nwhile True: signal.pause()"


def _end(node: NodeProcess) -> None:
    try:
        pid = node.signal(signal.SIGKILL)
    except Failed:
        return  # a test damaged process.json, and started nothing
    assert node.wait_gone(pid, 10.0), "the test's own process survives it"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    found = NodeProcess(tmp_path / "node")
    yield found
    _end(found)


def living_in(folder: Path) -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # a zombie has no folder
            found += [child] if Path(child.cwd()) == folder else []
    return found


def python(node: NodeProcess, code: str, *arguments: str, env: dict[str, str] | None = None) -> None:
    node.define(Launch((sys.executable, "-c", code, *arguments), env=env or {}))


def started(node: NodeProcess, code: str = _OBEDIENT) -> Process:
    python(node, code)
    process = node.start()
    wait_until(lambda: "up" in node.log.read_text(), "the node came up")
    return process


def test_a_node_process_is_stopped_before_its_first_start(node: NodeProcess) -> None:
    python(node, _OBEDIENT)
    assert node.find() == Process(ProcessState.STOPPED)
    assert node.log_tail(5) == ""


def test_a_node_process_is_found_again_by_another_object(node: NodeProcess) -> None:
    process = started(node)
    assert NodeProcess(node.folder).find() == process
    assert process.state is ProcessState.RUNNING
    assert process.started_at == pytest.approx(psutil.Process(process.pid).create_time(), abs=1)


def test_a_second_start_changes_nothing(node: NodeProcess) -> None:
    assert started(node) == node.start()


def test_a_node_process_has_its_own_session_so_that_its_starter_cannot_take_it_along(node: NodeProcess) -> None:
    pid = started(node).pid
    assert os.getsid(pid or 0) == pid


def test_a_node_process_outlives_its_starter(node: NodeProcess) -> None:
    python(node, _OBEDIENT)
    code = "import sys, pathlib; from tests.kit.processes import NodeProcess as N; N(pathlib.Path(sys.argv[1])).start()"
    subprocess.run([sys.executable, "-c", code, str(node.folder)], check=True, timeout=30)
    wait_until(lambda: "up" in node.log.read_text(), "the node came up")
    assert node.find().state is ProcessState.RUNNING


def test_a_start_that_dies_before_its_word_leaves_no_process(tmp_path: Path) -> None:
    """The launcher without its starter's word, which is what a kill between fork and process.json leaves."""
    trace = tmp_path / "ran"
    launcher = subprocess.Popen([sys.executable, "-ISc", module._LAUNCHER, "touch", str(trace)], stdin=subprocess.PIPE)
    assert launcher.stdin
    launcher.stdin.close()
    assert launcher.wait(10) == 1
    assert not trace.exists()


def test_a_start_that_cannot_be_written_down_leaves_no_process(node: NodeProcess) -> None:
    python(node, "print('ran')")
    (node.folder / "process.json").mkdir()
    with pytest.raises(Failed, match=r"process\.json"):
        node._spawn((sys.executable, "-c", "print('ran')"), {})
    wait_until(lambda: not living_in(node.folder), "the launcher ended")
    assert "ran" not in node.log.read_text()


def test_sigterm_ends_it_and_reaps_it(node: NodeProcess) -> None:
    pid = started(node).pid
    assert node.signal(signal.SIGTERM) == pid
    assert node.wait_gone(pid, 10.0)
    assert not psutil.pid_exists(pid or 0), "it is a zombie still"


def test_a_starter_that_ignores_sigterm_does_not_hand_that_down(node: NodeProcess) -> None:
    python(node, _OBEDIENT)
    code = (
        "import signal, sys, pathlib; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pthread_sigmask(0, {signal.SIGTERM});"
        "from tests.kit.processes import NodeProcess as N; N(pathlib.Path(sys.argv[1])).start()"
    )
    subprocess.run([sys.executable, "-c", code, str(node.folder)], check=True, timeout=30)
    wait_until(lambda: "up" in node.log.read_text(), "the node came up")
    assert node.wait_gone(node.signal(signal.SIGTERM), 10.0)


def test_waiting_for_a_deaf_process_ends(node: NodeProcess) -> None:
    started(node, _DEAF)
    assert not node.wait_gone(node.signal(signal.SIGTERM), 0.1)
    assert node.find().state is ProcessState.RUNNING


def test_kill_9_is_seen(node: NodeProcess) -> None:
    pid = started(node).pid
    os.kill(pid or 0, signal.SIGKILL)
    assert node.wait_gone(pid, 10.0)
    assert node.find().state is ProcessState.STOPPED
    assert node.signal(signal.SIGTERM) is None


def test_a_successor_does_not_count_as_the_one_that_was_stopped(node: NodeProcess) -> None:
    first = started(node).pid
    assert node.wait_gone(node.signal(signal.SIGTERM), 10.0)
    assert node.start().pid != first
    assert node.wait_gone(first, 0.0)


def test_a_reused_pid_is_not_our_process(node: NodeProcess) -> None:
    """Pid of a living stranger (this very test), born at another time."""
    python(node, _OBEDIENT)
    (node.folder / "process.json").write_text(json.dumps({"pid": os.getpid(), "birth": "an earlier boot:1"}))
    assert node.find().state is ProcessState.STOPPED
    assert node.signal(signal.SIGTERM) is None


def test_a_zombie_of_another_parent_counts_as_stopped(node: NodeProcess) -> None:
    python(node, _OBEDIENT)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    wait_until(lambda: psutil.Process(dead.pid).status() == psutil.STATUS_ZOMBIE, "the child became a zombie")
    birth = module._read_birth(dead.pid)
    (node.folder / "process.json").write_text(json.dumps({"pid": dead.pid, "birth": birth}))
    assert node.find().state is ProcessState.STOPPED
    dead.wait(10)


def test_many_starters_make_one_process(node: NodeProcess, tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    traces.mkdir()
    python(node, "import os, sys, signal; open(f'{sys.argv[1]}/{os.getpid()}', 'w').close(); signal.pause()", str(traces))

    def start(_: int) -> int | None:
        with locked(node.folder):
            return node.start().pid

    with ThreadPoolExecutor(8) as pool:
        pids = set(pool.map(start, range(16)))
    wait_until(lambda: any(traces.iterdir()), "the node ran")
    assert {str(pid) for pid in pids} == {path.name for path in traces.iterdir()}


def test_the_environment_of_a_node_process_has_nothing_of_airflow(node: NodeProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_PROD_KAFKA", "secret")
    python(node, "import os; print(sorted(os.environ), os.environ['OWN'], 'up')", env={"OWN": "mine"})
    node.start()
    wait_until(lambda: "up" in node.log.read_text(), "the node printed its environment")
    assert "AIRFLOW" not in node.log.read_text()
    assert "mine" in node.log.read_text()


def test_the_log_of_a_node_process_goes_on_over_restarts(node: NodeProcess) -> None:
    for _ in range(2):
        python(node, "print('lived')")
        node.wait_gone(node.start().pid, 10.0)
    assert node.log_tail(1) == f"the end of {node.log}:\nlived"
    assert node.log.read_text() == "lived\nlived\n"


def test_the_tail_of_a_long_log_is_its_end(node: NodeProcess) -> None:
    python(node, "")
    node.log.write_bytes(b"".join(b"line %d\n" % number for number in range(50_000)) + b"\xff last\n")
    assert node.log_tail(2).splitlines() == [f"the end of {node.log}:", "line 49999", "\ufffd last"]


def test_a_missing_program_is_said_at_once(node: NodeProcess) -> None:
    node.define(Launch(("/no/such/java",)))
    with pytest.raises(Failed, match="/no/such/java"):
        node.start()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 1}'])
def test_a_damaged_process_file_is_not_a_stopped_process(node: NodeProcess, content: str) -> None:
    python(node, _OBEDIENT)
    (node.folder / "process.json").write_text(content)
    with pytest.raises(Failed, match=r"process\.json"):
        node.find()


def test_a_folder_that_describes_no_process_starts_none(node: NodeProcess) -> None:
    with pytest.raises(Failed, match=r"describes no process: launch.json is missing"):
        node.read_launch()
