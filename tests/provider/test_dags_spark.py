"""The migration's DAG around Spark jobs: which tasks a cluster file gives, and whole runs beside jobs that live."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from airflow.sdk import DAG, TriggerRule
from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_kmigrate.applications.spark_hold import BatchGate, LocalFiles, keep_running
from airflow_provider_kmigrate.clients.fence import Fence
from airflow_provider_kmigrate.core.events.model import LogMark, TopicPartition
from airflow_provider_kmigrate.dag_builders import rollback, zk_to_kraft
from airflow_provider_kmigrate.spec import load
from airflow_provider_kmigrate.utils import spark_jobs
from tests.provider.dag_tasks import tasks
from tests.provider.simulated import Rehearsal, document
from tests.sparkjobs.fakes import FakeStream
from tests.steps.sim_nodes import CLUSTER_ID

APPROVED = {"approve_finalization": CLUSTER_ID}


def listed(sim: Rehearsal, *jobs: dict[str, Any]) -> DAG:
    sim.path.write_text(yaml.safe_dump({**document(sim.cluster), "spark_jobs": list(jobs)}))
    return zk_to_kraft.build(load(str(sim.path)))


def chained(dag: DAG) -> list[str]:
    return [task.task_id for task in dag.topological_sort()]


class TestShape:
    def test_each_job_has_the_tasks_that_its_policy_asks_for(self, rehearse: Callable[..., Rehearsal]) -> None:
        sim = rehearse()
        plain = set(listed(sim).task_dict)
        dag = listed(
            sim,
            {"name": "a.b", "checkpoint": "/a"},
            {"name": "seen", "checkpoint": "/b", "hold": "never"},
            {"name": "unseen", "hold": "never"},
        )
        dag.check_cycle()
        assert set(dag.task_dict) - plain == {
            "spark_job_risks",
            *(f"{group}.a.b" for group in ("hold_for_first_roll", "resume_after_copy")),
            *(f"{group}.a.b" for group in ("hold_for_second_roll", "resume_after_second_roll")),
            *(f"progress_after_{roll}.{job}" for roll in ("first_roll", "second_roll") for job in ("a.b", "seen")),
        }
        assert [task.task_id for task in dag.tasks if not task.doc_md] == []

    def test_the_tasks_of_spark_jobs_stand_around_the_rolls(self, rehearse: Callable[..., Rehearsal]) -> None:
        order = chained(listed(rehearse(), {"name": "job", "checkpoint": "/a"}))
        expected = [
            "preflight",
            "spark_job_risks",
            "backup",
            "controllers.ready",
            "hold_for_first_roll.job",
            "first_roll.broker_0",
            "first_roll.registered",
            "progress_after_first_roll.job",
            "copy.copied",
            "copy.equivalence",
            "resume_after_copy.job",
            "hold_for_second_roll.job",
            "second_roll.broker_0",
            "second_roll.registered",
            "progress_after_second_roll.job",
            "resume_after_second_roll.job",
            "soak",
        ]
        assert [task for task in order if task in expected] == expected

    def test_a_roll_waits_for_every_hold_and_begins_after_skipped_ones(self, rehearse: Callable[..., Rehearsal]) -> None:
        dag = listed(rehearse(), {"name": "one", "checkpoint": "/a"}, {"name": "two", "checkpoint": "/b"})
        first = dag.task_dict["first_roll.broker_0"]
        assert first.upstream_task_ids == {"hold_for_first_roll.one", "hold_for_first_roll.two"}
        assert first.trigger_rule == TriggerRule.NONE_FAILED

    def test_a_rollback_owns_the_cluster_before_it_holds_jobs_and_proves_itself_beside_them(
        self, rehearse: Callable[..., Rehearsal]
    ) -> None:
        sim = rehearse()
        listed(sim, {"name": "job", "checkpoint": "/a"})
        dag = rollback.build(load(str(sim.path)))
        hold, proof = dag.task_dict["hold_for_to_migration.job"], dag.task_dict["rolled_back"]
        assert hold.upstream_task_ids == {"controller_failover.equivalence"}
        assert (hold.required, hold.approved_by, hold.trigger_rule) == (False, "approve", TriggerRule.NONE_FAILED)
        assert dag.task_dict["to_migration.broker_0"].upstream_task_ids == {hold.task_id}
        assert proof.upstream_task_ids == dag.task_dict["resume_after_to_zookeeper.job"].upstream_task_ids

    @pytest.mark.slow
    @pytest.mark.parametrize("conf", [{"approve_rollback": CLUSTER_ID}, {}], ids=["another run owns it", "not approved"])
    def test_a_rollback_that_may_not_act_holds_no_job(
        self, rehearse: Callable[..., Rehearsal], run_dag: Callable[..., Any], tmp_path: Path, conf: dict[str, str]
    ) -> None:
        sim = rehearse()
        listed(sim, {"name": "job", "checkpoint": str(tmp_path / "job"), "hold": "always", "hold_timeout": 0.1})
        dag = rollback.build(load(str(sim.path)))
        for task in dag.tasks:
            task.retries = 0
        if not conf:
            dag.task_dict["plan"].pre_execute = _skip
        with sim.open(load(str(sim.path))) as access, Fence(access.tools.zk, CLUSTER_ID, "dag/run" if conf else "-"):
            run = run_dag(dag, run_conf=conf)
        states = tasks(run)
        assert states["plan" if conf else "controller_failover.restore_flag_3000"] == "failed"
        assert states["hold_for_to_migration.job"] == "upstream_failed"
        assert not (tmp_path / "job" / "_kmigrate").exists()

    def test_without_jobs_there_is_nothing_of_it(self, rehearse: Callable[..., Rehearsal]) -> None:
        assert not [task for task in chained(listed(rehearse())) if "hold" in task or "spark" in task or "progress" in task]

    def test_without_jobs_the_pages_have_no_empty_rows_of_it(self, rehearse: Callable[..., Rehearsal]) -> None:
        """A group without tasks is a row of the grid all the same, above the first task and without a state for ever."""
        unseen = {"name": "unseen", "hold": "never"}
        sim = rehearse()
        for dag in (listed(sim), listed(sim, unseen), rollback.build(load(str(sim.path)))):
            groups = dag.task_group.get_task_group_dict()
            assert [name for name, group in groups.items() if not group.children] == []


def _skip(_: object) -> None:
    raise AirflowSkipException("an operator set it to skipped")


class Ticking:
    """Real time; the stream moves while the job waits."""

    now = staticmethod(time.time)

    def __init__(self, stream: FakeStream) -> None:
        self._stream, self._wait = stream, threading.Event().wait

    def sleep(self, seconds: float) -> None:
        self._stream.end += 1
        self._stream.tick()
        self._wait(min(seconds, 0.02))


@contextmanager
def living(folder: Path) -> Iterator[FakeStream]:
    """A job under `keep_running` in a thread; its query and its checkpoint are stand-ins."""
    stream, gate, over = FakeStream(folder), BatchGate(), threading.Event()
    stream.write = gate(stream.append)
    arguments = {"gate": gate, "files": LocalFiles(), "stop": over.is_set, "poll": 0.02, "clock": Ticking(stream)}
    thread = threading.Thread(target=keep_running, args=(stream.start, str(folder)), kwargs=arguments, daemon=True)
    thread.start()
    try:
        yield stream
    finally:
        over.set()
        thread.join(10)


@pytest.fixture
def kafka(connection: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> dict[TopicPartition, LogMark]:
    """The ends of logs, as Kafka reports them; connections without a server."""
    connection("sim_kafka", "kafka", extra={"bootstrap.servers": "127.0.0.1:1"})
    connection("sim_zookeeper", "kmigrate_zookeeper", host="127.0.0.1:1")
    ends = {TopicPartition("t", 0): LogMark(0, 10**9, 0, "id")}
    read = lambda _, topics: {where: mark for where, mark in ends.items() if where.topic in set(topics)}  # noqa: E731
    monkeypatch.setattr(spark_jobs, "read_marks", read)
    return ends


class TestRuns:
    @pytest.mark.slow
    def test_a_job_at_risk_is_held_around_both_rolls_and_one_that_is_not_shows_that_it_lives(
        self, rehearse: Callable[..., Rehearsal], run_dag: Callable[..., Any], kafka: object, tmp_path: Path
    ) -> None:
        del kafka
        sim = rehearse()
        at_risk = {"name": "at-risk", "checkpoint": str(tmp_path / "risk"), "topics": ["single"], "hold_timeout": 20}
        safe = {"name": "safe", "checkpoint": str(tmp_path / "safe"), "topics": ["t"], "hold_timeout": 20}
        dag = listed(sim, at_risk, safe)
        with living(tmp_path / "risk") as held, living(tmp_path / "safe") as free:
            run = run_dag(dag, run_conf=APPROVED)
            assert (held.started, free.started) == (3, 1), "at risk: held twice; safe: never"
        states = tasks(run)
        assert str(run.state) == "success"
        skipped = {task for task, state in states.items() if state == "skipped" and "hold_for" in task}
        assert skipped == {"hold_for_first_roll.safe", "hold_for_second_roll.safe"}
        for stream in (held, free):
            assert stream.sink == list(range(len(stream.sink))), "nothing repeated, nothing left out"
        assert held.sink

    @pytest.mark.slow
    def test_a_job_that_dies_in_a_roll_stops_the_run_before_the_next_step(
        self, rehearse: Callable[..., Rehearsal], run_dag: Callable[..., Any], tmp_path: Path
    ) -> None:
        sim = rehearse()
        FakeStream(tmp_path / "dead")  # a checkpoint, and no query
        job = {"name": "dead", "checkpoint": str(tmp_path / "dead"), "topics": ["t"], "hold_timeout": 0.1}
        dag = listed(sim, job)
        dag.task_dict["progress_after_first_roll.dead"].retries = 0
        run = run_dag(dag, run_conf=APPROVED)
        states = tasks(run)
        assert states["progress_after_first_roll.dead"] == "failed"
        assert states["first_roll.registered"] == "success"
        assert states["copy.copied"] == "upstream_failed"

    @pytest.mark.slow
    def test_a_truncated_log_keeps_the_job_held_and_fails_the_run(
        self,
        rehearse: Callable[..., Rehearsal],
        run_dag: Callable[..., Any],
        kafka: dict[TopicPartition, LogMark],
        tmp_path: Path,
    ) -> None:
        sim = rehearse()
        kafka[TopicPartition("t", 0)] = LogMark(0, 0, 0, "id")
        dag = listed(sim, {"name": "job", "checkpoint": str(tmp_path / "job"), "hold": "always", "hold_timeout": 20})
        with living(tmp_path / "job") as stream:
            stream.end = 1
            run = run_dag(dag, run_conf=APPROVED)
        states = tasks(run)
        assert states["resume_after_copy.job"] == "failed"
        assert states["second_roll.broker_0"] == "upstream_failed"
        assert (tmp_path / "job" / "_kmigrate" / "hold.json").exists()
