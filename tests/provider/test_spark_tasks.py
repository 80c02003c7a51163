"""Tasks around users' Spark jobs and the audit, in Airflow's own machinery; Spark itself is a script that leaves what it was given."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml
from airflow.sdk import DAG, BaseOperator, Variable
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskDeferred

from airflow_provider_kmigrate.clients.fence import Fence
from airflow_provider_kmigrate.clients.group_reads import GroupAnswer
from airflow_provider_kmigrate.core.audit.verdict import AuditOutcome, AuditVerdict, Level, as_dict, combine
from airflow_provider_kmigrate.core.cluster_state.spec import SparkJobSpec
from airflow_provider_kmigrate.core.migration.phase import ClusterPosition, Phase
from airflow_provider_kmigrate.core.spark import hold as spark_hold
from airflow_provider_kmigrate.core.spark.hold import JobReport, JobState, SparkHold
from airflow_provider_kmigrate.exceptions import Failed, KMigrateError, Refused, TimedOut, Unavailable
from airflow_provider_kmigrate.operators import spark_audit as module
from airflow_provider_kmigrate.operators import spark_jobs as operators
from airflow_provider_kmigrate.operators.spark_audit import SparkAuditOperator
from airflow_provider_kmigrate.operators.spark_jobs import (
    HoldSparkJobOperator,
    ResumeSparkJobOperator,
    SparkJobProgressOperator,
    SparkJobRisksOperator,
)
from airflow_provider_kmigrate.sensors.waits import AuditVerdictSensor, ClusterQuietSensor
from airflow_provider_kmigrate.spec import load
from airflow_provider_kmigrate.utils import object_store, spark_jobs
from airflow_provider_kmigrate.utils.spark_jobs import ObjectFiles, make_job_control, read_verdict, select_file_system
from tests.audit import reports
from tests.provider.simulated import Rehearsal, document
from tests.steps.sim import SimCluster
from tests.steps.sim_nodes import CLUSTER_ID

RUN = "test/manual__1"


def context_of(dag: DAG) -> Any:
    return {"dag": dag, "run_id": "manual__1", "ti": Mock(), "task_state_store": {}}


def executed(operator: type[BaseOperator], **arguments: Any) -> Any:
    with DAG(dag_id="test", schedule=None) as dag:
        task = operator(task_id="task", **arguments)
    return task.execute(context_of(dag))


def resumed(sim: Rehearsal) -> Any:
    with DAG(dag_id="test", schedule=None) as dag:
        task = HoldSparkJobOperator(task_id="task", cluster_file=str(sim.path), job="orders", risky=True)
    return task.resume(context_of(dag), {})


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    """A cluster file with a job that has ended, one that is never held, and one that does not run."""
    jobs = [
        {"name": "orders", "checkpoint": str(tmp_path / "orders")},
        {"name": "watched", "hold": "never"},
        {"name": "gone", "checkpoint": str(tmp_path / "gone"), "hold_timeout": 0.1},
    ]
    path = tmp_path / "sim.yaml"
    path.write_text(yaml.safe_dump({**document(SimCluster()), "spark_jobs": jobs}))
    for log in ("offsets", "commits"):
        (tmp_path / "orders" / log).mkdir(parents=True)
        (tmp_path / "orders" / log / "0").write_text('v1\n{}\n{"t":{"0":5}}')
    return path


def says(folder: Path, report: JobReport, name: str = "state.json") -> None:
    (folder / "_kmigrate").mkdir(exist_ok=True)
    (folder / "_kmigrate" / name).write_text(spark_hold.report_text(report))


@pytest.mark.usefixtures("no_variables")
class TestHolding:
    def test_no_job_is_held_while_the_kill_switch_is_on_or_unread(
        self, job_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AIRFLOW_VAR_KMIGRATE_STOP__SIM", "Ann: disk full")
        with pytest.raises(AirflowFailException, match=r"H05.*Ann: disk full"):
            executed(HoldSparkJobOperator, cluster_file=str(job_file), job="orders", risky=True)
        monkeypatch.delenv("AIRFLOW_VAR_KMIGRATE_STOP__SIM")
        monkeypatch.setattr(Variable, "keys", lambda prefix: [f"{prefix}__sim"])
        with pytest.raises(Unavailable, match="H07"):
            executed(HoldSparkJobOperator, cluster_file=str(job_file), job="orders", risky=True)
        assert not (tmp_path / "orders" / "_kmigrate").exists()

    def test_a_job_that_says_it_is_held(self, job_file: Path, tmp_path: Path) -> None:
        now = round(1000 * time.time())
        (tmp_path / "orders" / "_kmigrate").mkdir()
        (tmp_path / "orders" / "_kmigrate" / "hold.json").write_text(spark_hold.hold_text(SparkHold("h", RUN, "", now)))
        says(tmp_path / "orders", JobReport(JobState.HELD, now, "h", "q", 0, 0))
        assert "batch 0" in executed(HoldSparkJobOperator, cluster_file=str(job_file), job="orders", risky=True)
        assert (tmp_path / "orders" / "_kmigrate" / "held.json").exists()

    def test_the_policy_decides(self, job_file: Path) -> None:
        for job, risky in (("orders", False), ("watched", True)):
            with pytest.raises(AirflowSkipException):
                executed(HoldSparkJobOperator, cluster_file=str(job_file), job=job, risky=risky)

    def test_whether_a_roll_is_risky_is_seen_from_the_topics(self, rehearse: Callable[..., Rehearsal]) -> None:
        sim = rehearse()
        known = {"name": "known", "checkpoint": "/c", "topics": ["t"]}
        unknown = {"name": "unknown", "checkpoint": "/d", "hold_timeout": 0.1}
        sim.path.write_text(yaml.safe_dump({**document(sim.cluster), "spark_jobs": [known, unknown]}))
        with pytest.raises(AirflowSkipException):
            executed(HoldSparkJobOperator, cluster_file=str(sim.path), job="known")
        with pytest.raises(KMigrateError):  # it is to be held, and does not run
            executed(HoldSparkJobOperator, cluster_file=str(sim.path), job="unknown")

    @pytest.mark.parametrize(("urgent", "arguments"), [(False, {}), (True, {}), (False, {"approved_by": "approve"})])
    def test_a_job_runs_until_the_roll_may_begin(
        self, rehearse: Callable[..., Rehearsal], monkeypatch: pytest.MonkeyPatch, urgent: bool, arguments: dict[str, str]
    ) -> None:
        """A rollback, and the roll of a broker that is cut off, wait for no window."""
        sim, now = rehearse(), datetime.now(UTC)
        window = f"{now + timedelta(hours=2):%H:%M}-{now + timedelta(hours=3):%H:%M}"
        jobs = [{"name": "orders", "checkpoint": "/d", "hold_timeout": 0.1}]
        sim.path.write_text(yaml.safe_dump({**document(sim.cluster), "spark_jobs": jobs, "windows": [window]}))
        monkeypatch.setattr(operators, "demand_answer", Mock())
        monkeypatch.setattr(operators, "position_of", lambda _: ClusterPosition(Phase.SPLIT if urgent else Phase.HYBRID))
        waits = not urgent and not arguments
        with pytest.raises(TaskDeferred if waits else KMigrateError) as raised:  # the job does not run
            executed(HoldSparkJobOperator, cluster_file=str(sim.path), job="orders", risky=True, **arguments)
        if isinstance(raised.value, TaskDeferred):
            assert raised.value.trigger.serialize()[1]["moment"].strftime("%H:%M") == window[:5]
            with pytest.raises(TaskDeferred):
                resumed(sim)

    @pytest.mark.parametrize("options", [{}, {"zookeeper.connect": "zk:2181"}])
    def test_risks_warn_or_fail(self, rehearse: Callable[..., Rehearsal], options: dict[str, str]) -> None:
        sim = rehearse()
        jobs = [{"name": "job", "checkpoint": "/c", "options": options}]
        sim.path.write_text(yaml.safe_dump({**document(sim.cluster), "spark_jobs": jobs}))
        if options:
            with pytest.raises(AirflowFailException, match="J22"):
                executed(SparkJobRisksOperator, cluster_file=str(sim.path))
        else:
            assert executed(SparkJobRisksOperator, cluster_file=str(sim.path)) == "1 Spark job, 1 warning."

    def test_a_job_without_progress_is_reported(self, job_file: Path) -> None:
        with pytest.raises(TimedOut, match="J11"):
            executed(SparkJobProgressOperator, cluster_file=str(job_file), job="gone")

    def test_a_job_that_does_not_run_is_named_and_the_request_withdrawn(self, job_file: Path, tmp_path: Path) -> None:
        with pytest.raises(TimedOut, match="J05"):
            executed(HoldSparkJobOperator, cluster_file=str(job_file), job="gone", risky=True)
        assert list((tmp_path / "gone" / "_kmigrate").iterdir()) == []

    def test_a_job_that_the_file_does_not_name(self, job_file: Path) -> None:
        with pytest.raises(AirflowFailException, match="orders, watched, gone"):
            executed(ResumeSparkJobOperator, cluster_file=str(job_file), job="other")

    @pytest.mark.parametrize("says", [0, 3])
    def test_a_job_of_another_kind_is_held_by_its_command_with_a_secret_by_reference(
        self, tmp_path: Path, connection: Callable[..., str], monkeypatch: pytest.MonkeyPatch, says: int
    ) -> None:
        connection("sim_kafka", "kafka", extra={"bootstrap.servers": "127.0.0.1:1"})
        connection("sim_zookeeper", "kmigrate_zookeeper", host="127.0.0.1:1")
        connection("jobs", "kmigrate_host", extra={"secret_environment": {"JOB_TOKEN": "CANARY-7f31"}})
        monkeypatch.setattr(spark_jobs, "read_marks", lambda *_: {})
        for log in ("offsets", "commits"):
            (tmp_path / "flink" / log).mkdir(parents=True)
            (tmp_path / "flink" / log / "0").write_text('v1\n{}\n{"t":{"0":5}}')
        script = tmp_path / "jobctl"
        script.write_text(f'#!/bin/sh\ntest -n "$JOB_TOKEN" && echo "$@" >> {tmp_path}/calls\nexit {says}\n')
        script.chmod(0o755)
        words = {"hold_command": f"{script} pause {{job}}", "release_command": f"{script} resume {{job}}"}
        job = {"name": "flink", "checkpoint": str(tmp_path / "flink"), **words, "command_conn_id": "jobs", "quiet": "1s"}
        path = tmp_path / "sim.yaml"
        path.write_text(yaml.safe_dump({**document(SimCluster()), "spark_jobs": [job]}))
        if says:
            with pytest.raises(Failed, match="exit code 3") as raised:
                executed(HoldSparkJobOperator, cluster_file=str(path), job="flink", risky=True)
            assert "CANARY" not in str(raised.value)
            assert (tmp_path / "calls").read_text() == "pause flink\nresume flink\n"
        else:
            assert "rests on its command" in executed(HoldSparkJobOperator, cluster_file=str(path), job="flink", risky=True)
            assert (tmp_path / "calls").read_text() == "pause flink\n"

    def test_offsets_that_a_coordinator_does_not_give_are_not_none(
        self, job_file: Path, connection: Callable[..., str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        connection("sim_kafka", "kafka", extra={"bootstrap.servers": "127.0.0.1:1"})
        words = {"hold_command": "true", "release_command": "true", "group": "g", "hold_folder": str(job_file.parent / "hold")}
        data = yaml.safe_load(job_file.read_text())
        job_file.write_text(yaml.safe_dump(data | {"spark_jobs": [{"name": "sink", **words}]}))
        monkeypatch.setattr(spark_jobs, "describe_groups", lambda *_: iter([GroupAnswer("g", None, None)]))
        with pytest.raises(Unavailable, match="offsets of group g could not be read"):
            executed(HoldSparkJobOperator, cluster_file=str(job_file), job="sink", risky=True)
        monkeypatch.setattr(spark_jobs, "describe_groups", lambda *_: iter(()))
        with pytest.raises(AirflowFailException, match="J05"):
            executed(HoldSparkJobOperator, cluster_file=str(job_file), job="sink", risky=True)

    def test_a_job_that_was_not_held_is_left_alone(self, job_file: Path) -> None:
        assert executed(ResumeSparkJobOperator, cluster_file=str(job_file), job="gone")

    def test_a_job_that_ran_meanwhile_stays_held(self, job_file: Path, tmp_path: Path, connection: Callable[..., str]) -> None:
        self.test_a_job_that_says_it_is_held(job_file, tmp_path)
        for log in ("offsets", "commits"):
            (tmp_path / "orders" / log / "1").write_text("v1\n{}\n-")
        connection("sim_kafka", "kafka", extra={"bootstrap.servers": "127.0.0.1:1"})
        connection("sim_zookeeper", "kmigrate_zookeeper", host="127.0.0.1:1")
        with pytest.raises(AirflowFailException, match="J09"):
            executed(ResumeSparkJobOperator, cluster_file=str(job_file), job="orders")
        assert (tmp_path / "orders" / "_kmigrate" / "hold.json").exists()


class TestFiles:
    def test_each_scheme_has_its_file_system(self, job_file: Path) -> None:
        spec = load(str(job_file))
        assert type(make_job_control(spec, "orders", print).files).__name__ == "LocalFiles"
        assert isinstance(select_file_system(SparkJobSpec("x", "s3a://bucket/key")), ObjectFiles)

    def test_object_storage_reads_and_writes_like_any_other(self, tmp_path: Path) -> None:
        files, path = ObjectFiles(None), f"file://{tmp_path}/hold.json"
        assert files.read(path) is None
        files.write(path, "é")
        assert (files.read(path), files.names(f"file://{tmp_path}")) == ("é", ["hold.json"])
        files.delete(path)
        files.delete(path)
        assert files.names(f"file://{tmp_path}/none") == []

    def test_a_file_system_that_is_not_installed_or_does_not_answer(self, tmp_path: Path) -> None:
        with pytest.raises((Refused, Unavailable), match="nosuch"):
            ObjectFiles(None).read("nosuch://bucket/key")
        (tmp_path / "file").write_text("")
        with pytest.raises(Unavailable):
            ObjectFiles(None).write(f"file://{tmp_path}/file/below", "x")


class TestSilence:
    """A store behind a dead connection, whose library waits for as long as it likes: here a pipe into which nothing is written."""

    @pytest.fixture
    def unresponsive(self, tmp_path: Path) -> Iterator[str]:
        os.mkfifo(tmp_path / "pipe")
        yield f"file://{tmp_path}/pipe"
        os.close(os.open(tmp_path / "pipe", os.O_RDWR))

    @pytest.mark.parametrize("read", [read_verdict, ObjectFiles(None).read])
    def test_verdicts_and_hold_folders_are_read_with_a_limit(
        self, unresponsive: str, read: Callable[[str], object], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(object_store, "LIMIT", 0.1)
        with pytest.raises(Unavailable, match=r"pipe: no answer within 0\.1 s"):
            read(unresponsive)

    def test_a_gate_reads_again(self, tmp_path: Path) -> None:
        with pytest.raises(Unavailable, match="IsADirectory"):
            read_verdict(f"file://{tmp_path}")
        assert not AuditVerdictSensor(task_id="verdict", path=f"file://{tmp_path}").poke({"ti": Mock()})


class TestVerdictSensor:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "verdict.json"

    def poke(self, path: Path, **arguments: Any) -> Any:
        return AuditVerdictSensor(task_id="verdict", path=f"file://{path}", **arguments).poke({"ti": Mock()})

    def test_the_verdict_sensor_waits_for_the_file_and_for_more_evidence(self, path: Path) -> None:
        assert not self.poke(path)
        path.write_text('{"version": 1, "outc')
        assert not self.poke(path)
        path.write_text(json.dumps(as_dict(combine([], []))))
        assert not self.poke(path)
        path.write_text(json.dumps(as_dict(AuditVerdict(AuditOutcome.PASS, {Level.LOG: AuditOutcome.PASS}))))
        assert self.poke(path).is_done
        assert self.poke(path).xcom_value.startswith("PASS")

    @pytest.mark.parametrize("text", ["[]", "{}", '{"version": 99, "outcome": "PASS"}', '{"verdict": 5}'])
    def test_what_is_no_verdict_of_this_version_fails(self, path: Path, text: str) -> None:
        path.write_text(text)
        with pytest.raises(AirflowFailException, match="X04"):
            self.poke(path)

    def test_a_fail_fails_and_so_does_doubt_where_that_is_asked_for(self, path: Path) -> None:
        reports.write_page(reports.broken(), path.parent)
        with pytest.raises(AirflowFailException, match="FAIL"):
            self.poke(path.with_name("report.json"))
        path.write_text(json.dumps(as_dict(combine([], []))))
        with pytest.raises(AirflowFailException, match="INCONCLUSIVE"):
            self.poke(path, inconclusive="fail")
        with pytest.raises(ValueError, match="wait"):
            self.poke(path, inconclusive="pass")

    def test_the_verdict_sensor_holds_no_worker(self) -> None:
        assert (
            AuditVerdictSensor(task_id="v", path="x").mode
            == ClusterQuietSensor(task_id="q", cluster_file="x").mode
            == "reschedule"
        )


class TestQuietSensor:
    def poke(self, sim: Rehearsal) -> bool:
        return bool(ClusterQuietSensor(task_id="quiet", cluster_file=str(sim.path), quiet_for=5.0).poke({}))

    def journal(self, sim: Rehearsal, *lines: dict[str, Any]) -> None:
        folder = sim.path.parent.parent / "kmigrate" / "journal" / "sim"
        folder.mkdir(parents=True, exist_ok=True)
        rows = [{"run": "dag/run", "step": "broker 0 to kraft", "text": "restart: x", **line} for line in lines]
        (folder / "run.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def test_without_a_run_it_costs_one_observation(self, rehearse: Callable[..., Rehearsal]) -> None:
        sim = rehearse()
        assert self.poke(sim)
        assert sim.opened == 1

    def test_a_run_that_holds_the_cluster_is_waited_for_only_while_it_changes_something(
        self, rehearse: Callable[..., Rehearsal]
    ) -> None:
        sim = rehearse()
        with sim.open(load(str(sim.path))) as access, Fence(access.tools.zk, CLUSTER_ID, "dag/run"):
            now = sim.cluster.clock.now()
            assert not self.poke(sim), "no line of it: its journal may be on another machine"
            self.journal(sim, {"at": now - 60, "kind": "began", "step": "run"})
            assert self.poke(sim), "it holds the cluster and has done nothing yet"
            self.journal(sim, {"at": now - 60, "kind": "act"})
            assert not self.poke(sim), "under way"
            self.journal(sim, {"at": now - 60, "kind": "act"}, {"at": now - 1, "kind": "done"})
            assert not self.poke(sim), "the next one may follow"
            self.journal(sim, {"at": now - 60, "kind": "act"}, {"at": now - 9, "kind": "done"})
            assert self.poke(sim)


@pytest.fixture
def spark_environment(tmp_path: Path) -> Path:
    """An environment whose spark-submit notes its arguments and leaves a verdict, as the audit's job does."""
    home = tmp_path / "spark"
    (home / "bin").mkdir(parents=True)
    verdict = json.dumps(as_dict(AuditVerdict(AuditOutcome.PASS, {Level.LOG: AuditOutcome.PASS})))
    script = home / "bin" / "spark-submit"
    script.write_text(
        f"#!{sys.executable}\nimport json, os, sys\nplace = sys.argv[-1]\n"
        f"request = json.load(open(sys.argv[-2]))\n"
        f"json.dump([sys.argv, os.environ.get('PYSPARK_PYTHON')], open(place + '/seen.json', 'w'))\n"
        f"request.get('fail') and sys.exit(2)\n"
        f"request.get('silent') or open(place + '/verdict.json', 'w').write(request.get('verdict', {verdict!r}))\n"
        "'ledgers' in request and json.dump(request['ledgers'], open(place + '/report.json', 'w'))\n"
    )
    script.chmod(0o755)
    return home


class TestAudit:
    @pytest.fixture
    def run(
        self, tmp_path: Path, spark_environment: Path, connection: Callable[..., str], monkeypatch: pytest.MonkeyPatch
    ) -> Callable[..., Any]:
        pytest.importorskip("airflow.providers.apache.spark", reason="the extra `spark` is not installed")
        monkeypatch.setenv("AIRFLOW__KMIGRATE__FOLDER", str(tmp_path / "kmigrate"))
        connection("spark_here", "spark", host="local[2]")

        def run(conn_id: str = "spark_here", **request: Any) -> Any:
            arguments = {"conn_id": conn_id, "environment": str(spark_environment), "result": str(tmp_path / "result")}
            return executed(SparkAuditOperator, request=request, **arguments)

        return run

    def test_logs_without_an_earlier_fingerprint_fail_at_once(self, run: Callable[..., Any], tmp_path: Path) -> None:
        logs = {"before": str(tmp_path / "gone.json"), "refreshed": [str(tmp_path / "gone too.json")]}
        with pytest.raises(AirflowFailException, match=r"no file .*gone\.json.*`fingerprint_logs`"):
            run(sources=[], logs=logs)
        assert not (tmp_path / "result").exists(), "Spark was not started"

    def test_the_job_gets_its_request_the_package_and_sparks_own_python(
        self, run: Callable[..., Any], tmp_path: Path, spark_environment: Path
    ) -> None:
        assert run(sources=[]).startswith("PASS")
        (script, *arguments), python = json.loads((tmp_path / "result" / "seen.json").read_text())
        assert Path(script) == spark_environment / "bin" / "spark-submit"
        assert python == str(spark_environment / "bin" / "python")
        assert arguments[arguments.index("--master") + 1] == "local[2]"
        assert arguments[-3].endswith("audit/job.py")
        assert json.loads(Path(arguments[-2]).read_text()) == {"sources": []}
        with zipfile.ZipFile(arguments[arguments.index("--py-files") + 1]) as archive:
            names = archive.namelist()
        assert "airflow_provider_kmigrate/__init__.py" in names
        assert "airflow_provider_kmigrate/audit/report/page.html" in names
        assert not [name for name in names if name.endswith(".pyc") or "/hooks/" in name]

    def test_the_page_gets_the_journal_of_its_run_alone(self, run: Callable[..., Any], tmp_path: Path) -> None:
        """The driver may be on a machine that sees the results only. A run that has done nothing has no journal."""
        kept = tmp_path / "kmigrate" / "journal" / "prod"
        kept.mkdir(parents=True)
        run(sources=[], report={"cluster": "prod"})
        assert json.loads((tmp_path / "result" / "request.json").read_text())["report"] == {"cluster": "prod"}
        for name in ("test_manual__1", "test_manual__2"):
            (kept / f"{name}.jsonl").write_text(f"{name}\n")
        run(sources=[], report={"cluster": "prod"})
        copied = tmp_path / "result" / "journal.jsonl"
        assert json.loads((tmp_path / "result" / "request.json").read_text())["report"]["journals"] == [str(copied)]
        assert copied.read_text() == "test_manual__1\n"

    def test_an_earlier_verdict_is_never_taken_for_this_ones(self, run: Callable[..., Any]) -> None:
        run(sources=[])
        with pytest.raises(AirflowFailException, match="without a verdict"):
            run(silent=True)

    @pytest.mark.parametrize("verdict", ["null", "[]", "5", "{", '"PASS"', "[[1]]"])
    def test_what_is_no_verdict_is_none(self, run: Callable[..., Any], verdict: str) -> None:
        with pytest.raises(AirflowFailException, match="without a verdict"):
            run(verdict=verdict)

    @pytest.mark.parametrize("ledgers", [None, 5, {}, {"ledgers": None}, {"ledgers": [None, "x"]}])
    def test_a_report_that_is_none_leaves_the_verdict(self, run: Callable[..., Any], ledgers: Any) -> None:
        assert run(report={"cluster": "prod"}, ledgers=ledgers).startswith("PASS")

    def test_without_its_connection_nothing_is_submitted_elsewhere(self, run: Callable[..., Any], tmp_path: Path) -> None:
        """Airflow's Spark provider submits to YARN if its connection does not exist."""
        with pytest.raises(AirflowFailException, match=r"N03.*no connection spark_there.*airflow connections add spark_there"):
            run(conn_id="spark_there")
        assert not (tmp_path / "result" / "seen.json").exists()

    def test_a_job_that_fails_is_not_repeated(self, run: Callable[..., Any]) -> None:
        with pytest.raises(AirflowFailException, match=r"spark-submit.*no verdict"):
            run(fail=True)

    def test_without_the_provider_there_are_dags_and_the_task_says_what_is_missing(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setitem(sys.modules, "airflow.providers.apache.spark.operators.spark_submit", None)
        monkeypatch.setenv("AIRFLOW__KMIGRATE__FOLDER", str(tmp_path / "kmigrate"))
        try:
            operator = importlib.reload(module).SparkAuditOperator
            with pytest.raises(AirflowFailException, match=r"\[spark\]"):
                executed(operator, request={}, result=str(tmp_path), conn_id="spark_here", retries=6)
        finally:
            monkeypatch.undo()
            importlib.reload(module)

    def test_two_workers_whose_processes_have_one_id_make_the_archive_at_the_same_time(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Containers number their processes alike, and all workers may share the folder."""
        write, others = zipfile.ZipFile.write, [module.build_package_archive]

        def interrupted(archive: zipfile.ZipFile, *file: Any) -> None:
            while others:
                others.pop()(tmp_path)
            write(archive, *file)

        monkeypatch.setattr(zipfile.ZipFile, "write", interrupted)
        with zipfile.ZipFile(made := module.build_package_archive(tmp_path)) as archive:
            assert archive.testzip() is None
            assert "airflow_provider_kmigrate/__init__.py" in archive.namelist()
        assert list(tmp_path.iterdir()) == [made]

    def test_what_is_shipped_imports_without_the_rest(self, tmp_path: Path) -> None:
        """The archive alone is enough for what the job imports, as far as it needs no engine."""
        archive = module.build_package_archive(tmp_path)
        code = (
            "import airflow_provider_kmigrate.audit.report, airflow_provider_kmigrate.core.audit.verdict as v; print(v.__file__)"
        )
        command, environment = [sys.executable, "-S", "-c", code], {"PYTHONPATH": str(archive)}
        done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, timeout=60, check=True)
        assert str(archive) in done.stdout
