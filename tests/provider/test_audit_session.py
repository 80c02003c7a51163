"""The audit session as a task beside the steps, and gates that ask it; spark-submit is a program that answers with what it was given."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_kmigrate.clients.audit_session import SessionFolder, SessionLimits
from airflow_provider_kmigrate.core.audit.session_messages import SessionLease, SessionPulse
from airflow_provider_kmigrate.core.audit.spark_words import SESSION_JAVA
from airflow_provider_kmigrate.core.audit.verdict import AuditOutcome, AuditVerdict, Level, as_dict
from airflow_provider_kmigrate.dag_builders import rollback, zk_to_kraft
from airflow_provider_kmigrate.operators import audit_session as module
from airflow_provider_kmigrate.operators.audit_session import AuditSessionOperator
from airflow_provider_kmigrate.operators.spark_audit import SparkAuditOperator, SparkFingerprintOperator
from airflow_provider_kmigrate.spec import load
from tests.provider.simulated import Rehearsal, document
from tests.waiting import wait_until

pytest.importorskip("airflow.providers.apache.spark", reason="the extra `spark` is not installed")

_OPTIONS = "spark.driver.extraJavaOptions"
_ROOT = Path(__file__).resolve().parents[2]
_VERDICTS = {str(outcome): json.dumps(as_dict(AuditVerdict(outcome, {Level.LOG: outcome}))) for outcome in AuditOutcome}
#: As `audit.run_session`, without Spark; and as the programs that a gate submits itself, which leave FAIL, so that it shows who judged.
_PROGRAM = """#!PYTHON
import json, os, pathlib, sys, time
sys.path.insert(0, ROOT)
mode = open(MODE).read()
with open(LOG, "a") as log: log.write(next(word for word in sys.argv if word.endswith(".py") and "audit" in word) + chr(10))
if not any(word.endswith("run_session.py") for word in sys.argv):
    if sys.argv[-2].endswith("fingerprint.py"):
        open(json.load(open(sys.argv[-1]))["logs"]["before"], "w").write("submitted")
    else:
        open(sys.argv[-1] + "/verdict.json", "w").write(FAIL)
    sys.exit(0)
if mode == "broken": sys.exit("no Spark")
from airflow_provider_kmigrate.clients.audit_session import *
from airflow_provider_kmigrate.core.audit.session_messages import *
folder = SessionFolder(pathlib.Path(sys.argv[-1]))
key = SessionKey(**json.load(open(sys.argv[-1] + "/session.json"))["key"])
beat = 0
while True:
    beat += 1
    lease = folder.read_or_none("lease.json", SessionLease)
    if lease.ended: sys.exit(0)
    folder.write("pulse.json", SessionPulse(key, beat))
    for request_id in folder.list_requests():
        asked = folder.read_or_none(f"requests/{request_id}.json", SessionRequest)
        if mode == "dies": os._exit(9)
        if mode == "silent" or asked is None: continue
        code, name, text = 0, "verdict.json", PASS
        if asked.program == "fingerprint": name, text = "fingerprint.json", "observed"
        if mode == "cannot": code = 2
        if mode == "refuses": code = 3
        answer_folder(asked).mkdir(parents=True, exist_ok=True)
        (answer_folder(asked) / name).write_text(text)
        digest = "0" * 64 if mode == "tampered" else hash_content(text.encode())
        folder.write(f"answers/{request_id}.json", SessionAnswer(key, request_id, code, "said", {name: digest} if code == 0 else {}))
    time.sleep(0.05)
"""


class Spark:
    """An environment with such a spark-submit. `mode`: how the session behaves."""

    def __init__(self, where: Path) -> None:
        self.home, self._mode, self._log = where / "spark", where / "mode", where / "submitted"
        (self.home / "bin").mkdir(parents=True)
        script = self.home / "bin" / "spark-submit"
        values = {"PYTHON": sys.executable, "ROOT": repr(str(_ROOT)), "MODE": repr(str(self._mode)), "LOG": repr(str(self._log))}
        values |= {outcome: repr(_VERDICTS[outcome]) for outcome in ("PASS", "FAIL")}
        text = _PROGRAM
        for name, value in values.items():
            text = text.replace(name, value)
        script.write_text(text)
        script.chmod(0o755)
        self.behaves("")

    def behaves(self, mode: str) -> None:
        self._mode.write_text(mode)

    def submitted(self) -> list[str]:
        return [Path(line).stem for line in self._log.read_text().splitlines()] if self._log.exists() else []


@pytest.fixture
def spark(tmp_path: Path, connection: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> Spark:
    monkeypatch.setenv("AIRFLOW__KMIGRATE__FOLDER", str(tmp_path / "kmigrate"))
    connection("spark_here", "spark", host="local[2]")
    for name, seconds in (("_BEAT_S", 0.1), ("_STATES_S", 0.2), ("_WITHOUT_WORKER_S", 0.6), ("_END_S", 5.0)):
        monkeypatch.setattr(module, name, seconds)
    return Spark(tmp_path)


class Run:
    """A run with a session's task and gates; `states`: of its other tasks."""

    def __init__(self, spark: Spark, root: Path) -> None:
        self.spark, self.root, self.states = spark, root, dict[str, str | None](audit=None)
        self.folder = SessionFolder(root / "session")
        self._common = {
            "conn_id": "spark_here",
            "environment": str(spark.home),
            "session": {"folder": str(root / "session"), "cluster_id": "cluster", "run": "run"},
        }
        self.ended: list[Any] = []
        self._thread: threading.Thread | None = None
        self._task: AuditSessionOperator | None = None

    def _context(self, task: Any, user: str = "ann") -> Any:
        ti = SimpleNamespace(
            try_number=1,
            max_tries=0,
            xcom_push=lambda *_, **__: None,
            dag_id="test",
            run_id="run",
            task_id="task",
            get_task_states=lambda dag_id, run_ids: {"run": {**self.states, task.task_id: "running"}},
        )
        return {
            "dag": task.dag,
            "run_id": "run",
            "ti": ti,
            "task_state_store": {},
            "dag_run": SimpleNamespace(triggering_user_name=user),
        }

    def start(self, *, user: str = "ann", wait: bool = True) -> None:
        with DAG(dag_id="test", schedule=None):
            arguments = {"request": {"sources": []}, "result": str(self.root / "session"), "results": str(self.root)}
            self._task = task = AuditSessionOperator(task_id="audit_session", idle_limit=600, **arguments, **self._common)

        def execute() -> None:
            try:
                self.ended.append(task.execute(self._context(task, user)))
            except AirflowException as error:
                self.ended.append(error)

        self._thread = threading.Thread(target=execute, daemon=True)
        self._thread.start()
        if wait:
            wait_until(lambda: self.folder.read_or_none("pulse.json", SessionPulse), "the session serves", 30.0)

    def finish(self, seconds: float = 20.0) -> Any:
        assert self._thread is not None
        self._thread.join(seconds)
        return self.ended[0]

    def kill(self) -> None:
        assert self._task is not None
        self._task.on_kill()

    def gate(self, *, limits: SessionLimits | None = None, **arguments: Any) -> Any:
        with DAG(dag_id="test", schedule=None):
            task = SparkAuditOperator(
                task_id="audit", request={"sources": []}, result=str(self.root / "gate"), **self._common, **arguments
            )
        task.session_limits = limits or SessionLimits(start=5.0, beat=2.0, answer=3.0, poll=0.02)
        return task.execute(self._context(task))

    def fingerprint(self) -> str:
        before = self.root / "before" / "fingerprint.json"
        before.unlink(missing_ok=True)
        before.parent.mkdir(exist_ok=True)
        with DAG(dag_id="test", schedule=None):
            # without a connection to Kafka, as a request without logs; what the program would read is not looked at
            task = SparkFingerprintOperator(
                task_id="f", request={"logs": {"before": str(before)}}, result=str(self.root / "f"), **self._common
            )
        task.session_limits = SessionLimits(start=5.0, beat=2.0, answer=3.0, poll=0.02)
        task._complete_request = lambda secret: task.request  # type: ignore[method-assign]
        task.execute(self._context(task))
        return before.read_text()


@pytest.fixture
def run(spark: Spark, tmp_path: Path) -> Iterator[Run]:
    made = Run(spark, tmp_path / "result")
    made.root.mkdir()
    yield made
    if made._task is not None:
        made.kill()


def test_gates_and_fingerprints_ask_the_session_and_submit_nothing(run: Run) -> None:
    run.start()
    assert run.gate().startswith("PASS")
    assert run.fingerprint() == "observed"
    assert run.spark.submitted() == ["run_session"]
    assert sorted(path.name for path in (run.root / "gate").iterdir()) == ["verdict.json"]
    run.states["audit"] = "success"
    assert "no other task" in run.finish()
    lease = run.folder.read("lease.json", SessionLease)
    assert lease is not None
    assert lease.ended
    assert run.gate().startswith("FAIL"), "after its end a gate submits its own job"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["dies", "refuses", "tampered", "broken"])
def test_a_gate_does_the_work_itself_where_the_session_does_not(run: Run, mode: str) -> None:
    """The job says FAIL, the session would have said PASS."""
    run.spark.behaves(mode)
    run.start(wait=mode != "broken")
    assert run.gate().startswith("FAIL")
    assert "job" in run.spark.submitted()
    assert run.fingerprint() == "submitted"


def test_what_the_session_cannot_do_fails_as_a_jobs_failure(run: Run) -> None:
    run.spark.behaves("cannot")
    run.start()
    with pytest.raises(AirflowFailException, match="no verdict: said"):
        run.gate()
    assert not (run.root / "gate" / "verdict.json").exists()


@pytest.mark.slow
def test_no_answer_in_time_is_inconclusive_and_never_an_earlier_pass(run: Run) -> None:
    run.start()
    run.gate()
    run.spark.behaves("silent")
    run.kill()
    run.finish()
    run.start()
    wait_until(lambda: run.spark.submitted().count("run_session") == 2, "it was started again", 20.0)
    headline = run.gate(limits=SessionLimits(start=20.0, beat=5.0, answer=0.5, poll=0.02))
    assert headline.startswith("INCONCLUSIVE: [L14] Nothing is known: the audit session did not answer within 0.5 s")
    assert json.loads((run.root / "gate" / "verdict.json").read_text())["outcome"] == "INCONCLUSIVE"
    with pytest.raises(AirflowException, match="did not answer"):
        run.fingerprint()
    assert run.spark.submitted() == ["run_session"] * 2


def test_a_session_whose_spark_fails_fails_its_task_for_a_retry(run: Run) -> None:
    run.spark.behaves("broken")
    run.start(wait=False)
    assert "submit jobs of their own" in str(run.finish())
    lease = run.folder.read("lease.json", SessionLease)
    assert lease is not None
    assert lease.ended


def test_without_its_connection_nothing_is_submitted_elsewhere(run: Run) -> None:
    run._common["conn_id"] = "spark_there"
    run.start(wait=False)
    assert "N03" in str(run.finish())
    assert run.spark.submitted() == []


def test_a_session_gives_up_the_only_slot(run: Run) -> None:
    run.start()
    run.states["first_roll"] = "queued"
    assert "the slot that it takes" in run.finish()


def test_the_sessions_java_stays_small_unless_the_file_says_otherwise(rehearse: Callable[..., Rehearsal], tmp_path: Path) -> None:
    """It waits for hours beside the migration; the gates' own jobs have the site's options."""
    import yaml  # noqa: PLC0415

    sim = rehearse()
    section = {"conn_id": "spark_here", "result": str(tmp_path / "result"), "events": [str(tmp_path / "events")], "topics": ["t"]}
    for properties, expected in (({}, SESSION_JAVA), ({_OPTIONS: "-Xss4m"}, "-Xss4m")):
        sim.path.write_text(yaml.safe_dump({**document(sim.cluster), "audit": section | {"spark": {"properties": properties}}}))
        tasks = zk_to_kraft.build(load(str(sim.path))).task_dict
        assert tasks["audit_session"].conf[_OPTIONS] == expected
        assert tasks["fingerprint_logs"].conf.get(_OPTIONS) == properties.get(_OPTIONS)


def test_a_killed_task_leaves_no_process(run: Run) -> None:
    run.start()
    mine = [
        process
        for process in psutil.Process(os.getpid()).children(recursive=True)
        if str(run.root) in " ".join(process.cmdline())
    ]
    assert mine
    run.kill()
    run.finish()
    assert psutil.wait_procs(mine, timeout=10)[1] == []


def test_dag_test_goes_on_beside_it(run: Run) -> None:
    run.start(user="dag_test")
    assert "as long as this process" in run.finish(5.0)
    began = time.monotonic()
    assert run.gate().startswith("PASS")
    assert time.monotonic() - began < 10


def test_a_run_does_not_depend_on_its_session(rehearse: Callable[..., Rehearsal], tmp_path: Path) -> None:
    import yaml  # noqa: PLC0415

    sim = rehearse()
    section = {"conn_id": "spark_here", "result": str(tmp_path / "result"), "events": [str(tmp_path / "events")], "topics": ["t"]}
    for session in (True, False):
        sim.path.write_text(yaml.safe_dump({**document(sim.cluster), "audit": section | {"session": session}}))
        spec = load(str(sim.path))
        dag = zk_to_kraft.build(spec)
        assert ("audit_session" in dag.task_dict) == session
        asking = [task for task in dag.tasks if getattr(task, "session", None)]
        assert len(asking) == (6 if session else 0)
        assert "audit_session" not in rollback.build(spec).task_dict, "it has one gate"
        if not session:
            continue
        assert "audit_session" not in {leaf.task_id for leaf in dag.leaves}
        assert dag.task_dict["audit_session_ended"].trigger_rule == "all_done"
        steps = [task for task in dag.tasks if task.task_id != "audit_session_ended"]
        assert not [task for task in steps if "audit_session" in task.upstream_task_ids], "no step waits for it"
        assert len({json.dumps(task.session) for task in asking}) == 1
        lines = [source["lines"] for source in dag.task_dict["audit_session"].request["sources"]]
        assert lines == [source["lines"] for source in dag.task_dict["audit_before_approval.audit"].request["sources"]]
