"""The node's own fence: a lower token is turned away, whoever holds it."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from airflow_provider_kmigrate.clients.atomic import locked
from airflow_provider_kmigrate.clients.hosts.files import admitted, highest
from airflow_provider_kmigrate.exceptions import Failed, Fenced, TimedOut


def test_the_highest_token_is_remembered(tmp_path: Path) -> None:
    for token in (1, 1, 7):
        with admitted(tmp_path, token):
            assert highest(tmp_path) == token


def test_a_lower_token_is_fenced_and_changes_nothing(tmp_path: Path) -> None:
    with admitted(tmp_path, 7):
        pass
    with pytest.raises(Fenced, match="H03"), admitted(tmp_path, 6):
        pytest.fail("a fenced run acted")
    assert highest(tmp_path) == 7


def test_the_first_token_needs_no_folder(tmp_path: Path) -> None:
    with admitted(tmp_path / "new", 3):
        assert highest(tmp_path / "new") == 3


def test_a_damaged_token_fences_everybody(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("")
    with pytest.raises(Failed, match="token"), admitted(tmp_path, 9):
        pytest.fail("acted without knowing the highest token")


def test_a_newer_run_cannot_act_in_the_middle_of_an_older_ones_act(tmp_path: Path) -> None:
    entered, leave, order = threading.Event(), threading.Event(), []

    def older() -> None:
        with admitted(tmp_path, 1):
            entered.set()
            leave.wait(10)
            order.append("older")

    thread = threading.Thread(target=older)
    thread.start()
    assert entered.wait(10)
    threading.Timer(0.05, leave.set).start()
    with admitted(tmp_path, 2):
        order.append("newer")
    thread.join(10)
    assert order == ["older", "newer"]


def test_waiting_for_the_lock_ends(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(TimedOut), locked(tmp_path, timeout=0.05):
        pytest.fail("two in one folder")


def test_a_killed_holder_lets_go(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib, signal; from airflow_provider_kmigrate.clients.atomic import locked\n"
        "with locked(pathlib.Path(sys.argv[1])): print('held', flush=True); signal.pause()"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout
    with holder, holder.stdout:
        assert holder.stdout.readline() == "held\n"
        holder.kill()
        holder.wait(10)
    with locked(tmp_path, timeout=10.0):
        pass
