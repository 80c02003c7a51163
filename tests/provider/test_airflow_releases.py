"""What kmigrate does where Airflow has less than 3.3: a task's progress in files, the kill switch and the metrics by other calls."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import airflow
import pytest
from airflow.sdk import Variable
from airflow.sdk.exceptions import AirflowFailException, AirflowRuntimeError, ErrorType, TaskDeferred
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import ErrorResponse, OKResponse, VariableResult

from airflow_provider_kmigrate.airflow_releases import TaskState, find_stored_variables, open_task_state, send_gauge
from airflow_provider_kmigrate.core.migration.progress import StepProgress
from airflow_provider_kmigrate.exceptions import Unavailable
from airflow_provider_kmigrate.operators.migration import SoakOperator
from airflow_provider_kmigrate.utils.dag_runs import why_no_run_begins, why_queued, why_run_stalled
from airflow_provider_kmigrate.utils.step_context import open_state as open_folder
from airflow_provider_kmigrate.utils.step_context import read_kill_switch, state_folder
from tests.provider.lone_tasks import alone, context, kept
from tests.provider.simulated import Rehearsal, in_dual_write

pytestmark = pytest.mark.usefixtures("no_variables")
CREATED = datetime(2026, 12, 1, tzinfo=UTC)


def old_context(dag: Any, try_number: int = 1, created: datetime = CREATED) -> Any:
    """A task's context in Airflow 3.1."""
    there = context(dag)
    del there["task_state_store"]
    ti = {"dag_id": dag.dag_id, "run_id": "manual__1", "task_id": "task", "map_index": -1, "try_number": try_number}
    return there | {"ti": SimpleNamespace(xcom_push=lambda **_: None, **ti), "dag_run": SimpleNamespace(run_after=created)}


def open_state(there: Any) -> TaskState:
    return open_task_state(there, state_folder() / "progress", open_folder())


def store(dag: Any, **progress: Any) -> None:
    state = open_state(old_context(dag))
    assert state.read() is None
    state.write(StepProgress(**progress).to_json())


@pytest.fixture
def sim(rehearse: Callable[..., Rehearsal], tmp_path: Path) -> Rehearsal:
    sim = rehearse(min_soak=500.0)
    in_dual_write(sim, tmp_path / "kmigrate" / "backup")
    return sim


def stored_files(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "kmigrate" / "progress").rglob("*.json"))


def test_a_second_try_continues_the_soak_from_its_file_and_a_cleared_task_soaks_again(sim: Rehearsal, tmp_path: Path) -> None:
    dag = alone(SoakOperator, sim.path, deferrable=False)
    store(dag, healthy_seconds=480.0)
    began = sim.cluster.clock.time
    dag.get_task("task").execute(old_context(dag, 2))
    assert 20.0 <= sim.cluster.clock.time - began < 30.0
    assert open_state(old_context(dag, 3)).read() == StepProgress().to_json()
    assert len(stored_files(tmp_path)) == 1


def test_a_later_run_with_the_same_id_soaks_from_its_begin(sim: Rehearsal) -> None:
    dag = alone(SoakOperator, sim.path, deferrable=False)
    store(dag, healthy_seconds=480.0)
    began = sim.cluster.clock.time
    dag.get_task("task").execute(old_context(dag, created=datetime(2026, 12, 2, tzinfo=UTC)))
    assert sim.cluster.clock.time - began >= 500.0


def test_a_deferred_task_stores_what_the_trigger_has_watched(sim: Rehearsal) -> None:
    task = (dag := alone(SoakOperator, sim.path)).get_task("task")
    store(dag, healthy_seconds=100.0)
    event = {"outcome": "waiting", "text": "", "progress": StepProgress(healthy_seconds=400.0).to_json()}
    with pytest.raises(TaskDeferred):
        task.resume(old_context(dag), event)
    state: Any = open_state(old_context(dag, 2)).read()
    assert state["healthy_seconds"] == 400.0


def test_a_try_that_is_older_than_the_one_under_way_does_nothing(sim: Rehearsal) -> None:
    task = (dag := alone(SoakOperator, sim.path)).get_task("task")
    store(dag, healthy_seconds=100.0)
    open_state(old_context(dag, 2)).read()
    before = sim.observations
    with pytest.raises(AirflowFailException, match=r"H03.*Try 1 of task task stores nothing more"):
        task.execute(old_context(dag))
    assert sim.observations == before


def test_a_process_that_another_one_has_replaced_fails_at_its_next_write(sim: Rehearsal) -> None:
    dag = alone(SoakOperator, sim.path)
    older = open_state(old_context(dag))
    older.read()
    open_state(old_context(dag, 2)).read()
    with pytest.raises(AirflowFailException, match="H03"):
        older.write({})


def test_a_damaged_file_is_refused_before_anything_is_observed(sim: Rehearsal, tmp_path: Path) -> None:
    task = (dag := alone(SoakOperator, sim.path)).get_task("task")
    store(dag, healthy_seconds=100.0)
    [path] = stored_files(tmp_path)
    path.write_bytes(path.read_bytes()[:20])
    before = sim.observations
    with pytest.raises(AirflowFailException, match=rf"H09.*{path} cannot be used as this task's progress"):
        task.execute(old_context(dag, 2))
    assert sim.observations == before


def test_a_worker_without_the_shared_folder_does_nothing_until_a_retry(sim: Rehearsal) -> None:
    task = (dag := alone(SoakOperator, sim.path)).get_task("task")
    event = {"outcome": "waiting", "text": "", "progress": StepProgress(healthy_seconds=400.0).to_json()}
    for begin in (lambda: task.execute(old_context(dag, 2)), lambda: task.resume(old_context(dag), event)):
        with pytest.raises(Unavailable, match=r"O05.*this machine does not have it"):
            begin()


def run_context(dag: Any, run_id: str, states: dict[str, str]) -> Any:
    """The context of another run; `states`: what Airflow says of each run that it knows."""
    there = old_context(dag)
    there["ti"].run_id = run_id
    there["ti"].get_dagrun_state = lambda dag_id, run_id: states[run_id]
    return there


def test_a_run_removes_the_progress_of_those_that_have_succeeded(sim: Rehearsal, tmp_path: Path) -> None:
    dag = alone(SoakOperator, sim.path)
    states = {"good": "success", "bad": "failed", "under_way": "running"}
    for run_id in (*states, "forgotten"):
        open_state(run_context(dag, run_id, {})).read()
    assert len(stored_files(tmp_path)) == 4
    open_state(run_context(dag, "next", states)).read()
    assert {json.loads(path.read_bytes())["run_id"] for path in stored_files(tmp_path)} == {
        "bad",
        "under_way",
        "forgotten",
        "next",
    }
    cleared = run_context(dag, "good", states)
    cleared["ti"].try_number = 2
    assert open_state(cleared).read() is None, "its task begins again, and does not take this machine for another one"


@pytest.mark.parametrize("content", [b"", b"[]", b'{"dag_id": 7}'])
def test_what_is_no_progress_of_that_run_stays(sim: Rehearsal, tmp_path: Path, content: bytes) -> None:
    dag = alone(SoakOperator, sim.path)
    open_state(run_context(dag, "good", {})).read()
    [path] = stored_files(tmp_path)
    path.write_bytes(content)
    open_state(run_context(dag, "next", {"good": "success"})).read()
    assert path.read_bytes() == content


def test_the_log_names_the_folder_that_has_the_progress(sim: Rehearsal, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    with caplog.at_level("INFO"):
        open_state(old_context(alone(SoakOperator, sim.path))).read()
    assert (
        f"This Airflow has no store of a task's state: the progress of this task is in {tmp_path}/kmigrate/progress/"
        in caplog.text
    )


def test_where_airflow_has_a_store_no_file_is_written(sim: Rehearsal, tmp_path: Path) -> None:
    dag = alone(SoakOperator, sim.path, deferrable=False)
    dag.get_task("task").execute(context(dag) | {"task_state_store": kept(healthy_seconds=480.0)})
    assert not (tmp_path / "kmigrate" / "progress").exists()


ABSENT = ErrorResponse(error=ErrorType.VARIABLE_NOT_FOUND)
ANSWERS = {
    "absent": (ABSENT, []),
    "there": (VariableResult(key="x", value="on"), ["kmigrate_stop__sim", "kmigrate_stop"]),
    "without a value": (VariableResult(key="x", value=None), ["kmigrate_stop__sim", "kmigrate_stop"]),
    "a failed server": (ErrorResponse(error=ErrorType.API_SERVER_ERROR), AirflowRuntimeError),
    "no answer": (None, TypeError),
    "another answer": (OKResponse(ok=True), TypeError),
}


@pytest.mark.parametrize(("answer", "expected"), ANSWERS.values(), ids=ANSWERS.keys())
def test_a_variable_is_absent_only_if_the_server_says_so(monkeypatch: pytest.MonkeyPatch, answer: Any, expected: Any) -> None:
    monkeypatch.delattr(Variable, "keys")
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", SimpleNamespace(send=lambda _: answer), raising=False)
    names = ["kmigrate_stop__sim", "kmigrate_stop"]
    if isinstance(expected, list):
        assert find_stored_variables(names, "kmigrate_stop") == expected
    else:
        with pytest.raises(expected):
            find_stored_variables(names, "kmigrate_stop")


def test_without_an_answer_the_kill_switch_is_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Variable, "keys")
    monkeypatch.delattr(task_runner, "SUPERVISOR_COMMS", raising=False)
    with pytest.raises(Unavailable, match="H07"):
        read_kill_switch("sim")


@pytest.mark.parametrize("release", ["3.1", "3.2"])
def test_gauges_are_sent_by_the_class_that_an_older_airflow_has(monkeypatch: pytest.MonkeyPatch, release: str) -> None:
    sent = list[Any]()
    stats = SimpleNamespace(Stats=SimpleNamespace(gauge=lambda name, value, tags=None: sent.append((name, value, tags))))
    if release == "3.1":
        monkeypatch.setitem(sys.modules, "airflow.sdk.observability", None)
        monkeypatch.setattr(airflow, "stats", stats, raising=False)
    else:
        monkeypatch.setitem(sys.modules, "airflow.sdk.observability", SimpleNamespace(stats=stats))
    send_gauge("kmigrate.lag", 7, {"cluster": "sim"}, plain_name="kmigrate.lag.sim")
    assert sent == [("kmigrate.lag.sim", 7, None), ("kmigrate.lag", 7, {"cluster": "sim"})]


def test_an_airflow_that_does_not_say_whether_a_dag_is_paused_is_no_reason_until_a_run_stays_queued() -> None:
    ti = SimpleNamespace(get_dagrun_state=lambda **_: "queued", get_dr_count=lambda **_: 0)
    assert why_no_run_begins(ti, "kmigrate_rollback__sim") == ""
    text = "Run r is queued. Airflow 3.1 does not say whether d is paused: unpause it if so. The scheduler has not begun it: check the scheduler."
    assert why_queued(ti, "d/r") == text
    ti.get_dagrun_state = lambda **_: "running"
    assert why_run_stalled(ti, "d/r") == ("", False)
