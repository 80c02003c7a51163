"""The probe's tasks: when the one that keeps it ends and how, what the check waits for, what the stop leaves. The real one: test_probe.py."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from confluent_kafka import Producer

from airflow_provider_kmigrate.applications.event_log import EventLog, FileSink
from airflow_provider_kmigrate.core.audit.verdict import AuditOutcome
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.events.model import Start, WriterRole
from airflow_provider_kmigrate.exceptions import Refused, TimedOut
from airflow_provider_kmigrate.operators import probe as module
from airflow_provider_kmigrate.operators.audit_session import DAG_TEST
from airflow_provider_kmigrate.operators.probe import CheckProbeSensor, ProbeOperator, StopProbeOperator
from airflow_provider_kmigrate.probe.probe import DRAIN_S, TOPIC, Probe, has_ended
from tests.verdicts import verdict_of
from tests.waiting import wait_until


class Clientless(Probe):
    """A probe without brokers: it takes its run, and its start may fail; `drains` of its ends, None of none."""

    def __init__(self, folder: Path, fails: Exception | None = None) -> None:
        super().__init__(folder, {})
        self.fails, self.drains = fails, list[float]()

    def start(self, timeout: float = 90.0) -> None:
        """Take the run."""
        if self.fails is not None:
            raise self.fails
        self._take_over()

    def stop(self, drain: float = DRAIN_S) -> None:
        """Remember how."""
        self.drains.append(drain)


class Run:
    """A run `roll >> stop_probe`, with `probe` beside it; `states`: of its tasks, None where Airflow does not answer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.states: dict[str, str | None] | None = {
            "roll": "running",
            "stop_probe": None,
            "audit_after": None,
            "audit_session": "running",
        }
        self.ended: list[Any] = []
        with DAG(dag_id="test", schedule=None) as self.dag:
            from airflow.providers.standard.operators.empty import EmptyOperator  # noqa: PLC0415

            self.stop = StopProbeOperator(task_id="stop_probe", folder=str(folder))
            EmptyOperator(task_id="roll") >> self.stop >> EmptyOperator(task_id="audit_after")
            self.task = ProbeOperator(task_id="probe", cluster_file="", folder=str(folder), run="run", needed_until="stop_probe")
            self.check = CheckProbeSensor(task_id="check_probe", folder=str(folder), run="run")
        self.probe = Clientless(folder / "run")
        self.task.make_probe = lambda: self.probe  # type: ignore[method-assign]
        self._thread = threading.Thread(target=self._execute, daemon=True)

    def context(self, user: str = "ann", waited: float | None = None) -> Any:
        def states(dag_id: str, run_ids: list[str]) -> Any:
            if self.states is None:
                raise ConnectionError(dag_id)
            return {run_ids[0]: {**self.states, "probe": self.states.get("probe", "running")}}

        began = None if waited is None else datetime.now(UTC) - timedelta(seconds=waited)
        ti = SimpleNamespace(dag_id="test", run_id="run", get_task_states=states, get_first_reschedule_date=lambda _: began)
        return {"ti": ti, "dag": self.dag, "dag_run": SimpleNamespace(triggering_user_name=user)}

    def _execute(self) -> None:
        try:
            self.ended.append(self.task.execute(self.context()))
        except Exception as error:  # noqa: BLE001  # looked at by the test
            self.ended.append(error)

    def begin(self) -> None:
        self._thread.start()
        wait_until(lambda: self.ended or (self.folder / "run" / "owner.json").exists(), "the probe has its run")

    def finish(self) -> Any:
        self._thread.join(20.0)
        return self.ended[0]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    for name, seconds in (("_BEAT_S", 0.05), ("_STATES_S", 0.1), ("_WITHOUT_WORKER_S", 0.4), ("_FLOW_S", 0.1)):
        monkeypatch.setattr(module, name, seconds)
    return Run(tmp_path / "probe")


def goes_on(run: Run) -> bool:
    """Whether it still runs after some more observations."""
    run._thread.join(0.5)
    return run._thread.is_alive()


def test_it_ends_when_no_task_before_the_stop_is_left_to_do(run: Run) -> None:
    run.begin()
    assert run.states is not None
    run.states["roll"] = "success"
    assert "no task before `stop_probe` is left to do" in run.finish()
    assert run.probe.drains == [DRAIN_S], "all is read before the last gate"


def test_it_ends_with_a_run_that_fails(run: Run) -> None:
    run.begin()
    run.states = {"roll": "failed", "stop_probe": "upstream_failed", "audit_after": "upstream_failed"}
    assert "no task before" in run.finish()


def test_what_airflow_does_not_say_ends_no_probe(run: Run) -> None:
    run.states = None
    run.begin()
    assert goes_on(run)
    run.states = {"roll": "skipped", "stop_probe": "running"}
    assert "no task before" in run.finish()


def test_a_later_try_does_not_begin_what_is_over(run: Run) -> None:
    run.states = {"roll": "success", "stop_probe": "running"}
    run.begin()
    assert "no record was sent" in run.finish()
    assert not run.folder.exists()


@pytest.mark.parametrize(("owner", "text", "drain"), [("", "it was stopped", DRAIN_S), ("other", "another attempt", 0.0)])
def test_it_ends_when_it_is_stopped_or_another_attempt_has_its_run(run: Run, owner: str, text: str, drain: float) -> None:
    """As a success: a retry would take the run back."""
    run.begin()
    (run.folder / "run" / "owner.json").write_text(json.dumps({"attempt": owner}))
    assert text in run.finish()
    assert run.probe.drains == [drain]


def test_a_killed_task_ends_its_probe_and_is_tried_again(run: Run) -> None:
    run.begin()
    run.task.on_kill()
    error = run.finish()
    assert isinstance(error, AirflowException)
    assert not isinstance(error, AirflowFailException)
    assert run.probe.drains == [0.0], "the next try reads the rest"


def test_a_kill_before_the_start_is_no_error(run: Run) -> None:
    run.task.on_kill()
    run.begin()
    assert goes_on(run)
    run.task.on_kill()
    run.finish()


def test_the_only_slot_is_given_up_by_name_and_for_good(run: Run) -> None:
    assert run.states is not None
    run.states["roll"] = "queued"
    run.begin()
    error = run.finish()
    assert isinstance(error, AirflowFailException), "a retry would take it again"
    assert "Y09" in str(error)
    assert "at least two slots" in str(error)
    assert run.probe.drains == [0.0]


def test_a_refusal_is_not_tried_again_and_what_passes_is(run: Run) -> None:
    run.probe.fails = Refused.because(Reason("Y09", "an earlier release"))
    run.begin()
    assert isinstance(run.finish(), AirflowFailException)
    again = Run(run.folder)
    again.probe.fails = TimedOut("no broker answers")
    again.begin()
    assert again.finish() is again.probe.fails


def test_dag_test_goes_on_beside_it_until_it_is_stopped(run: Run) -> None:
    assert "until it is stopped" in run.task.execute(run.context(DAG_TEST))
    assert run.probe.find_end() is None
    assert run.stop.execute({}) == "No probe of this cluster runs."
    (run.folder / "run" / "owner.json").write_text(json.dumps({"attempt": ""}))
    wait_until(lambda: run.probe.drains == [DRAIN_S], "it has ended by itself")


def write_events(folder: Path) -> EventLog:
    log = EventLog(FileSink(folder / "events"), "producer0-r")
    log.write(Start(log.stamp(), WriterRole.PRODUCER))
    log.flush()
    return log


@pytest.mark.parametrize(
    ("state", "waited", "text"),
    [("queued", 901.0, "no worker has a free slot"), ("failed", None, "is failed"), ("running", 901.0, "show nothing new")],
)
def test_the_check_fails_by_name_where_no_record_can_arrive(run: Run, state: str, waited: float | None, text: str) -> None:
    assert run.states is not None
    run.states["probe"] = state
    with pytest.raises(AirflowFailException, match=text):
        run.check.poke(run.context(waited=waited))


@pytest.mark.slow
@pytest.mark.parametrize(("state", "waited"), [("queued", None), ("queued", 10.0), ("success", 10.0), ("up_for_retry", 10.0)])
def test_the_check_waits_without_a_worker_while_records_may_arrive(run: Run, state: str, waited: float | None) -> None:
    assert run.check.reschedule
    assert run.states is not None
    run.states["probe"] = state
    assert not run.check.poke(run.context(waited=waited)).is_done
    run.states = None
    assert not run.check.poke(run.context(waited=waited)).is_done


def test_the_check_succeeds_once_records_are_acknowledged_and_read(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_flow", lambda events, _: (30, 25) if events == run.folder / "run" / "events" else None)
    found = run.check.poke(run.context())
    assert (found.is_done, found.xcom_value) == (True, "The probe's records arrive: 30 were acknowledged, 25 offsets committed.")


def test_the_stop_waits_for_the_last_record_and_never_fails_because_of_a_probe(
    run: Run, tmp_path: Path, stop_without_patience: Callable[[], str]
) -> None:
    log = write_events(run.folder / "run")
    (run.folder / "run" / "owner.json").write_text(json.dumps({"attempt": "a"}))
    assert stop_without_patience() == f"The probe in {run.folder / 'run'} does not end."
    log.close(clean=True)
    assert stop_without_patience() == "No probe of this cluster runs."
    write_events(run.folder / "former")
    (run.folder / "former" / "machine").write_text("worker-7")
    assert "worker-7" in stop_without_patience()


@pytest.fixture
def stop_without_patience(run: Run, monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    monkeypatch.setattr("airflow_provider_kmigrate.probe.probe._TAKE_OVER_S", 0.0)
    return lambda: run.stop.execute({})


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """librdkafka's own mock brokers; they create topics when asked for, and do not say where their logs go."""
    home = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 3, "log_level": 0})
    found = home.list_topics(timeout=10.0)
    wait_until(lambda: len(home.list_topics(TOPIC, timeout=10.0).topics[TOPIC].partitions) == 4, TOPIC)
    monkeypatch.setattr("airflow_provider_kmigrate.probe.probe.ensure_topic", lambda *_: 4)
    monkeypatch.setattr("airflow_provider_kmigrate.probe.probe.write_extents", lambda *_: None)
    yield ",".join(f"{broker.host}:{broker.port}" for broker in found.brokers.values())
    home.flush(0)


@pytest.mark.slow(seconds=25)
def test_in_dag_test_a_roll_waits_for_records_and_the_stop_for_the_last_one(
    brokers: str, tmp_path: Path, run_dag: Callable[..., Any]
) -> None:
    """Airflow runs one task at a time there, in any order."""
    from airflow.providers.standard.operators.empty import EmptyOperator  # noqa: PLC0415

    place, seen = tmp_path / "probe", list[bool]()
    with DAG(dag_id="probed", schedule=None) as dag:
        begin = EmptyOperator(task_id="begin")
        probe = ProbeOperator(task_id="probe", cluster_file="", folder=str(place), run="run", needed_until="stop_probe")
        check = CheckProbeSensor(task_id="check_probe", folder=str(place), run="run", patience=60.0)
        roll = EmptyOperator(task_id="roll", post_execute=lambda *_: seen.append(has_ended(place / "run")))
        stop = StopProbeOperator(task_id="stop_probe", folder=str(place))
        begin >> probe >> EmptyOperator(task_id="probe_ended", trigger_rule="all_done")
        begin >> check >> roll >> stop
    probe.make_probe = lambda: Probe(place / "run", {"bootstrap.servers": brokers})  # type: ignore[method-assign]
    result = run_dag(dag)
    assert {ti.task_id: str(ti.state) for ti in result.get_task_instances()} == dict.fromkeys(dag.task_ids, "success")
    assert (seen, has_ended(place / "run")) == ([False], True)
    facts = Probe(place / "run", {}).facts()
    assert (verdict_of(facts), facts.reasons) == (AuditOutcome.PASS, ())
    assert facts.delivered == {TOPIC: facts.acked}
