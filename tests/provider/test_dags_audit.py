"""Audits in the DAGs: only where the cluster file asks for them; what each verdict does to a run. Spark is a script with a given conclusion."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException
from airflow.serialization.serialized_objects import DagSerialization
from jinja2 import Environment

from airflow_provider_kmigrate.audit.request import parse
from airflow_provider_kmigrate.core.audit.verdict import AuditOutcome, AuditVerdict, Level, as_dict
from airflow_provider_kmigrate.core.cluster_state.model import NoProbe, ProbeFigures, ProduceLatency
from airflow_provider_kmigrate.core.ledger import Demand
from airflow_provider_kmigrate.core.migration.beside import BESIDE
from airflow_provider_kmigrate.core.migration.phase import Phase, position_of
from airflow_provider_kmigrate.dag_builders import audit, folder, rollback, zk_to_kraft
from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.probe.latency import FILE
from airflow_provider_kmigrate.spec import load
from airflow_provider_kmigrate.utils.step_context import read_only_context
from tests.provider.dag_tasks import tasks
from tests.provider.simulated import Rehearsal, document
from tests.steps.phases import check_back, some_kraft
from tests.steps.sim_nodes import CLUSTER_ID

APPROVED = {"approve_finalization": CLUSTER_ID}
OTHERS = {
    "kmigrate_preflight__sim",
    "kmigrate_zk_to_kraft__sim",
    "kmigrate_rollback__sim",
    "kmigrate_watch__sim",
    "kmigrate_offsets_topic__sim",
    "kmigrate_clean_up__sim",
    "kmigrate_offsets_repair__sim",
}
GATES = ("after_first_roll", "after_second_roll", "before_approval", "after_finalization")


class Spark:
    """An environment whose spark-submit leaves the next verdict; the last one again and again."""

    def __init__(self, where: Path) -> None:
        self.home, self._todo = where / "spark", where / "outcomes"
        self.requests, self.broken = where / "requests.jsonl", where / "broken"
        (self.home / "bin").mkdir(parents=True)
        script = self.home / "bin" / "spark-submit"
        texts = {str(outcome): json.dumps(as_dict(AuditVerdict(outcome, {Level.CONSUMER: outcome}))) for outcome in AuditOutcome}
        script.write_text(
            f"#!{sys.executable}\nimport json, os, sys\nobserves = sys.argv[-2].endswith('fingerprint.py')\n"
            f"request, place = (sys.argv[-1], None) if observes else sys.argv[-2:]\ntexts = {texts!r}\n"
            f"logs = json.load(open(request)).get('logs')\n"
            f"if logs: assert os.stat(logs['properties']).st_mode & 0o777 == 0o600 and json.load(open(logs['properties']))\n"
            f"if os.path.exists({str(self.broken)!r}): sys.exit('Spark is down')\n"
            f"if observes: sys.exit(open(logs['before'], 'w').write('{{}}') and 0)\n"
            f"assert not logs or os.path.exists(logs['before'])\n"
            f"todo = open({str(self._todo)!r}).read().split()\n"
            f"open({str(self._todo)!r}, 'w').write(' '.join(todo[1:] or todo))\n"
            f"open({str(self.requests)!r}, 'a').write(open(request).read() + chr(10))\n"
            f"open(place + '/verdict.json', 'w').write(texts[todo[0]])\n"
        )
        script.chmod(0o755)

    def concludes(self, *outcomes: AuditOutcome) -> None:
        self._todo.write_text(" ".join(map(str, outcomes)))

    def runs(self) -> int:
        return len(self.requests.read_text().splitlines()) if self.requests.exists() else 0


@pytest.fixture
def spark(tmp_path: Path, connection: Callable[..., str]) -> Spark:
    pytest.importorskip("airflow.providers.apache.spark", reason="the extra `spark` is not installed")
    connection("spark_here", "spark", host="local[2]")
    return Spark(tmp_path)


def audited(sim: Rehearsal, spark: Spark | dict[str, Any] | None = None, **keys: Any) -> None:
    """Give the simulated cluster's file a section `audit`, without a probe or a fingerprint of logs: there are no brokers that could be asked."""
    # A verdict's time is of this machine's clock, and the gates compare it with the cluster's.
    sim.cluster.clock.time = time.time()
    where = sim.path.parent.parent
    environment = {"environment": str(spark.home)} if isinstance(spark, Spark) else {"spark": spark} if spark else {}
    section = {"conn_id": "spark_here", "result": str(where / "result"), "events": [str(where / "events")]}
    section |= {"probe": False, "topics": [], **environment, **keys}
    sim.path.write_text(yaml.safe_dump({**document(sim.cluster), "audit": section}))


def migration(sim: Rehearsal) -> DAG:
    return zk_to_kraft.build(load(str(sim.path)))


def rendered(request: dict[str, Any]) -> dict[str, Any]:
    """As Airflow hands it over when the step began at 1795000000000."""
    demand = request["policy"]["required_evidence"]
    assert "xcom_pull" in demand["since"]
    return request | {"policy": request["policy"] | {"required_evidence": demand | {"since": "1795000000000"}}}


class TestShape:
    def test_a_file_without_the_section_has_neither_dag_nor_tasks(self, rehearse: Callable[..., Rehearsal]) -> None:
        sim = rehearse()
        assert set(folder.dags_of(sim.path.parent)) == OTHERS
        assert not [task for task in migration(sim).task_dict if "audit" in task]

    def test_the_audit_has_a_dag_of_its_own(self, rehearse: Callable[..., Rehearsal]) -> None:
        sim = rehearse()
        audited(sim, schedule="0 * * * *")
        dag = folder.dags_of(sim.path.parent)["kmigrate_audit__sim"]
        assert (dag.schedule, dag.catchup, dag.max_active_runs) == ("0 * * * *", False, 1)
        assert [task.task_id for task in dag.topological_sort()] == ["audit", "verdict"]
        assert [task.task_id for task in dag.tasks if not task.doc_md] == []
        assert set(DagSerialization.from_dict(DagSerialization.to_dict(dag)).task_dict) == {"audit", "verdict"}

    def test_a_pass_and_the_tables_are_assets(self, rehearse: Callable[..., Rehearsal]) -> None:
        sim = rehearse()
        audited(sim)
        tasks = migration(sim).task_dict
        passed, tables = (tasks[f"audit_before_approval.{name}"].outlets for name in ("verdict", "audit"))
        assert [asset.uri for asset in passed] == ["kmigrate://sim/audit-pass"]
        folder_of_tables = parse(rendered(tasks["audit_before_approval.audit"].request)).report.tables
        assert [(asset.uri, asset.extra) for asset in tables] == [("kmigrate://sim/audit-tables", {"folder": folder_of_tables})]

    def test_scheduled_audits_judge_from_a_time_on(self, rehearse: Callable[..., Rehearsal]) -> None:
        sim = rehearse()
        for given, since in (({}, None), ({"baseline_time": "2026-01-31T12:00Z"}, 1_769_860_800_000)):
            audited(sim, **given)
            made = audit.build(load(str(sim.path)))
            assert made is not None
            assert parse(made.task_dict["audit"].request).policy.required_evidence.since == since

    def test_topics_alone_are_for_migrations(self, rehearse: Callable[..., Rehearsal]) -> None:
        sim = rehearse()
        audited(sim, events=[], topics=["t"])
        assert set(folder.dags_of(sim.path.parent)) == OTHERS
        request = parse(rendered(migration(sim).task_dict["audit_before_approval.audit"].request | {"logs": None}))
        assert request.sources == ()

    def test_all_commits_are_read_by_the_scheduled_audit_alone_and_need_no_events(
        self, rehearse: Callable[..., Rehearsal]
    ) -> None:
        sim = rehearse()
        audited(sim, events=[], topics=["t"], offsets_history=True)
        request = folder.dags_of(sim.path.parent)["kmigrate_audit__sim"].task_dict["audit"].request
        (place,) = request["offsets"].values()
        assert place == str(sim.path.parent.parent / "result" / "sim" / "commits")
        wanted = parse({**request, "offsets": {**request["offsets"], "properties": "/f"}})
        assert wanted.offsets is not None
        assert wanted.sources == ()
        assert "offsets" not in migration(sim).task_dict["audit_before_approval.audit"].request
        assert "offsets" not in migration(sim).task_dict["fingerprint_logs"].request

    @pytest.mark.parametrize(
        ("keys", "topics", "hashed"),
        [
            ({"topics": None, "exclude_topics": ["scratch"]}, None, (0.0, 1_000, 1_000)),
            ({"topics": None, "sample_fraction": 0.2}, None, (0.2, 100_000, 10_000)),
            ({"topics": ["t"]}, ("t",), (1.0, 100_000, 10_000)),
            ({"topics": ["t"], "sample_fraction": 0.2}, ("t",), (0.2, 100_000, 10_000)),
        ],
    )
    def test_the_logs_of_all_topics_are_compared_unless_the_file_names_some(
        self,
        rehearse: Callable[..., Rehearsal],
        keys: dict[str, Any],
        topics: tuple[str, ...] | None,
        hashed: tuple[float, int, int],
    ) -> None:
        """Of named ones everything, of all of a cluster what was written last."""
        sim = rehearse()
        audited(sim, **keys)
        asked = migration(sim).task_dict["fingerprint_logs"].request
        logs = parse({**asked, "logs": {**asked["logs"], "properties": "/f"}, "policy": {}}).logs
        assert logs is not None
        assert (logs.topics, logs.exclude_topics) == (topics, tuple(keys.get("exclude_topics", ())))
        assert (logs.sample.share, logs.sample.tail, logs.block) == hashed

    def test_an_empty_list_of_topics_takes_no_fingerprint(self, rehearse: Callable[..., Rehearsal]) -> None:
        sim = rehearse()
        audited(sim, topics=[])
        tasks = migration(sim).task_dict
        assert "fingerprint_logs" not in tasks
        assert "logs" not in tasks["audit_before_approval.audit"].request

    def test_a_topic_of_events_is_taken_in_by_each_audit(self, rehearse: Callable[..., Rehearsal]) -> None:
        """All gates of runs go on from each other; the scheduled audit, which may be made meanwhile, has a checkpoint of its own."""
        sim = rehearse()
        audited(sim, events=[], events_topic="kmigrate-events", schedule="0 * * * *")
        made = audit.build(load(str(sim.path)))
        assert made is not None
        dag, places = migration(sim), []
        for task in (made.task_dict["audit"], *(dag.task_dict[f"audit_{gate}.audit"] for gate in GATES)):
            request = task.request
            assert request["stream"]["topic"] == "kmigrate-events"
            assert request["sources"][0]["ledgers"] == [request["stream"]["folder"]]
            assert parse({**request, "policy": {}, "stream": {**request["stream"], "properties": "/f"}}).stream is not None
            places.append((request["stream"]["folder"], request["stream"]["checkpoint"]))
        assert len(set(places[1:])) == 1
        assert len({path for place in (places[0], places[1]) for path in place}) == 4

    def test_the_probe_runs_from_before_the_first_roll_to_the_last_gate(self, rehearse: Callable[..., Rehearsal]) -> None:
        sim = rehearse()
        audited(sim, events=[], probe=True, topics=["t"], max_lag="30s")
        dag = migration(sim)
        dag.check_cycle()
        order = [task.task_id for task in dag.topological_sort()]
        tasks = [
            "controllers.ready",
            "check_probe",
            "fingerprint_logs",
            "first_roll.broker_0",
            "finalize.finalized",
        ]
        tasks += ["stop_probe", "audit_after_finalization.audit"]
        assert [task for task in order if task in tasks] == tasks
        requests = [dag.task_dict[f"audit_{gate}.audit"].request for gate in GATES]
        (source,) = requests[0]["sources"]
        assert all(request["sources"] == [source] for request in requests)
        assert source["level"] == "L1"
        start = dag.task_dict["probe"]
        assert start.upstream_task_ids == {"controllers.ready"} == dag.task_dict["check_probe"].upstream_task_ids
        assert dag.task_dict["stop_probe"].get_flat_relative_ids(upstream=True) >= set(tasks[:4])
        assert source["lines"] == [f"{start.folder}/{start.run}/events"]
        assert source["store"].endswith(f"/sim/events/runs/probe-{start.run}"), "what was read stays read from gate to gate"
        assert {request["policy"]["max_lag_ms"] for request in requests} == {30_000}
        rollback_dag = rollback.build(load(str(sim.path)))
        order = [task.task_id for task in rollback_dag.topological_sort() if task.task_id not in BESIDE]
        evidence = ["evidence.check_probe", "evidence.fingerprint_logs"]
        assert sorted(order[2:4]) == evidence
        assert order[:2] + order[4:6] == ["plan", "approve", "evidence.taken", "controller_failover.restore_flag_3000"]
        assert order[-4:] == ["rolled_back", "stop_probe", "audit_after_rollback.audit", "audit_after_rollback.verdict"]
        assert rollback_dag.task_dict["probe"].upstream_task_ids == {"approve"}
        assert rollback_dag.task_dict["probe"].execution_timeout is None, (
            "it is none of the evidence that is given up after minutes"
        )
        for made in (dag, rollback_dag):
            assert [task.task_id for task in made.tasks if "probe" in task.upstream_task_ids] == ["probe_ended"], (
                "no step waits for it"
            )
            ended = made.task_dict["probe_ended"]
            assert (ended.trigger_rule, ended.downstream_task_ids) == ("all_done", set()), "a probe that fails fails no run"
        lines = rollback_dag.task_dict["audit_after_rollback.audit"].request["sources"][0]["lines"]
        assert lines == [f"{rollback_dag.task_dict['probe'].folder}/{start.run}/events"]
        assert {task.doc_md is None for task in (*dag.tasks, *rollback_dag.tasks)} == {False}
        assert "kmigrate_audit__sim" not in folder.dags_of(sim.path.parent), "the probe runs in migrations only"

    def test_a_roll_reads_what_the_probe_of_the_run_measures(self, rehearse: Callable[..., Rehearsal]) -> None:
        sim = rehearse()
        with read_only_context(str(sim.path)) as context:
            assert context.probe() == NoProbe(), "no section `audit`"
        audited(sim, events=[], probe=True, topics=["t"])
        start = migration(sim).task_dict["probe"]
        with read_only_context(str(sim.path)) as context:
            assert context.probe() == ProbeFigures(math.inf)
            run = Path(start.folder) / "manual__1"
            run.mkdir(parents=True)
            stored = {"at": context.clock.now() - 2.0, "before": None, "now": {"kmigrate-probe-0": [5.0, 0.01]}}
            (run / FILE).write_text(json.dumps(stored))
            found = context.probe()
        assert found is not None
        assert (round(found.age), found.now) == (2, {"kmigrate-probe-0": ProduceLatency(5.0, 0.01)})

    def test_every_job_is_submitted_as_the_file_says(self, rehearse: Callable[..., Rehearsal]) -> None:
        sim = rehearse()
        told = {
            "driver_memory": "4g",
            "executor_memory": "2g",
            "deploy_mode": "cluster",
            "image": "i:1",
            "archives": ["/a.tgz#a", "/b.tgz"],
        }
        told |= {"properties": {"spark.x": "1"}, "kafka_options": {"kafka.sasl.mechanism": "GSSAPI"}}  # type: ignore[dict-item]
        audited(sim, topics=["t"], spark=told)
        jobs = [
            task for task in migration(sim).tasks if hasattr(task, "retry_inconclusive") or task.task_id == "fingerprint_logs"
        ]
        assert len(jobs) == len(GATES) + 1
        for job in jobs:
            assert (job._driver_memory, job._executor_memory, job._deploy_mode, job._archives) == (
                "4g",
                "2g",
                "cluster",
                "/a.tgz#a,/b.tgz",
            )
            assert job.conf == {
                "spark.log.level": "WARN",
                "spark.x": "1",
                "spark.kubernetes.container.image": "i:1",
                "spark.kmigrate.kafka.sasl.mechanism": "GSSAPI",
            }

    def test_the_log_of_spark_is_as_long_as_the_file_wants_it(self, rehearse: Callable[..., Rehearsal]) -> None:
        """INFO is 36,000 lines an audit, in which nobody finds the one that counts."""
        sim = rehearse()
        audited(sim, topics=["t"], spark={"properties": {"spark.log.level": "INFO"}})
        assert migration(sim).task_dict["fingerprint_logs"].conf == {"spark.log.level": "INFO"}

    def test_without_a_schedule_it_is_started_by_hand(self, rehearse: Callable[..., Rehearsal]) -> None:
        sim = rehearse()
        audited(sim)
        assert folder.dags_of(sim.path.parent)["kmigrate_audit__sim"].schedule is None

    def test_the_migration_is_audited_after_each_phase(self, rehearse: Callable[..., Rehearsal]) -> None:
        sim = rehearse()
        audited(sim, retries=3, retry_delay="5m")
        dag = migration(sim)
        dag.check_cycle()
        order = [task.task_id for task in dag.topological_sort()]
        around = ["first_roll.registered", "copy.copied", "second_roll.registered", "soak"]
        around += ["before_approval.rollback_plan", "approve", "finalize.finalized"]
        wanted = [task for task in order if task in around or (task.startswith("audit_") and "session" not in task)]
        one, two, three, four = ([f"audit_{gate}.audit", f"audit_{gate}.verdict"] for gate in GATES)
        assert wanted == [around[0], *one, *around[1:3], *two, *around[3:5], *three, *around[5:], *four]
        assert {dag.task_dict[f"audit_{gate}.audit"].retries for gate in GATES} == {3}
        assert [task.task_id for task in dag.tasks if not task.doc_md] == []

    def test_each_gate_asks_for_evidence_since_its_step_began(self, rehearse: Callable[..., Rehearsal]) -> None:
        sim = rehearse()
        audited(sim)
        dag = migration(sim)
        steps = ["first_roll.broker_0", "second_roll.broker_0", "soak", "finalize.controller_3000"]
        for gate, step in zip(GATES, steps, strict=True):
            request = dag.task_dict[f"audit_{gate}.audit"].request
            assert f"task_ids='{step}'" in request["policy"]["required_evidence"]["since"]
            assert dag.task_dict[step]._pre_execute_hook is not None
            assert parse(rendered(request)).policy.required_evidence == Demand(1_795_000_000_000)

    @pytest.mark.parametrize(("left", "since"), [(1_795_000_000_000, 1_795_000_000_000), (None, 1_794_000_000_500)])
    def test_a_step_that_was_marked_as_success_began_with_its_run(
        self, rehearse: Callable[..., Rehearsal], left: int | None, since: int
    ) -> None:
        sim = rehearse()
        audited(sim)
        message = migration(sim).task_dict["audit_before_approval.audit"].request["policy"]["required_evidence"]["since"]
        ti, run = (
            SimpleNamespace(xcom_pull=lambda **_: left),
            SimpleNamespace(start_date=datetime.fromtimestamp(1_794_000_000.5, UTC)),
        )
        assert Environment(autoescape=True).from_string(message).render(ti=ti, dag_run=run) == str(since)

    def test_a_step_that_left_no_time_is_no_time(self, rehearse: Callable[..., Rehearsal]) -> None:
        sim = rehearse()
        audited(sim)
        request = rendered(migration(sim).task_dict["audit_before_approval.audit"].request)
        request["policy"]["required_evidence"]["since"] = "None"
        with pytest.raises(Refused, match="X08"):
            parse(request)

    def test_by_default_producers_and_consumers_are_asked(self, rehearse: Callable[..., Rehearsal]) -> None:
        """Consumers alone could never pass: nothing says what they should have been delivered."""
        sim = rehearse()
        audited(sim)
        made = audit.build(load(str(sim.path)))
        assert made is not None
        assert [source.level for source in parse(made.task_dict["audit"].request).sources] == [Level.PRODUCER]

    @pytest.mark.parametrize(("level", "label"), [("probe", "L1"), ("consumers", "L2"), ("producers", "L3")])
    def test_the_request_is_one_that_the_job_takes(self, rehearse: Callable[..., Rehearsal], level: str, label: str) -> None:
        sim = rehearse()
        audited(sim, level=level, ledgers=["s3a://lake/x"], allow=["redelivered"])
        made = audit.build(load(str(sim.path)))
        assert made is not None
        request = parse(made.task_dict["audit"].request)
        [source] = request.sources
        assert (source.level.label, source.lines, source.ledgers) == (
            label,
            (str(sim.path.parent.parent / "events"),),
            ("s3a://lake/x",),
        )
        assert request.policy.allow == {"redelivered"}


class TestRuns:
    @pytest.mark.slow
    def test_a_migration_that_passes_every_audit(
        self, rehearse: Callable[..., Rehearsal], run_dag: Callable[..., Any], spark: Spark
    ) -> None:
        sim = rehearse()
        audited(sim, spark)
        spark.concludes(AuditOutcome.PASS)
        run = run_dag(migration(sim), run_conf=APPROVED)
        assert str(run.state) == "success"
        assert spark.runs() == len(GATES)
        results = sorted(path.parent.parent.name for path in (sim.path.parent.parent / "result" / "sim").glob("*/*/verdict.json"))
        assert results == sorted(GATES), "each audit keeps its own"
        times = [parse(json.loads(line)).policy.required_evidence.since for line in spark.requests.read_text().splitlines()]
        assert None not in times
        assert times == sorted(times)
        assert len(set(times)) == len(GATES)

    @pytest.mark.slow
    def test_logs_are_fingerprinted_once_before_the_first_roll_and_compared_in_every_gate(
        self, rehearse: Callable[..., Rehearsal], run_dag: Callable[..., Any], spark: Spark, connection: Callable[..., str]
    ) -> None:
        connection("sim_kafka", "kafka", extra={"bootstrap.servers": "127.0.0.1:1", "sasl.password": "s3cr3t"})
        connection("sim_zookeeper", "kmigrate_zookeeper", host="127.0.0.1:1")
        sim = rehearse()
        audited(sim, spark, topics=["t"], sample_fraction=0.5, resetting_groups=["loader"], jars=["/jars/a.jar", "/jars/b.jar"])
        spark.concludes(AuditOutcome.PASS)
        dag = migration(sim)
        assert dag.task_dict["fingerprint_logs"].downstream_task_ids == {"first_roll.broker_0"}
        assert str(run_dag(dag, run_conf=APPROVED).state) == "success"
        asked = [parse(json.loads(line)).logs for line in spark.requests.read_text().splitlines()]
        assert len(asked) == len(GATES)
        assert len({logs.before for logs in asked if logs}) == 1
        assert [[Path(left).parts[-3] for left in logs.refreshed] for logs in asked if logs] == [
            list(GATES[:n]) for n in range(4)
        ]
        assert {(logs.topics, logs.sample.share, logs.resetting_groups) for logs in asked if logs} == {(("t",), 0.5, ("loader",))}
        kept = [path for path in (sim.path.parent.parent / "result").rglob("*") if path.is_file()]
        assert not [path for path in kept if "s3cr3t" in path.read_text() or path.name.startswith("kafka-")]

    @pytest.mark.slow
    def test_a_fail_stops_the_run_before_the_next_phase_and_offers_the_rollback(
        self, rehearse: Callable[..., Rehearsal], run_dag: Callable[..., Any], spark: Spark
    ) -> None:
        sim = rehearse()
        audited(sim, spark)
        spark.concludes(AuditOutcome.PASS, AuditOutcome.FAIL)
        dag = migration(sim)
        found = tasks(run_dag(dag, run_conf=APPROVED))
        assert found["audit_after_first_roll.verdict"] == "success"
        assert (found["audit_after_second_roll.audit"], found["audit_after_second_roll.verdict"]) == ("success", "failed")
        assert found["soak"] == "upstream_failed"
        assert not sim.cluster.finalized
        [left] = (sim.path.parent.parent / "result" / "sim" / "after_second_roll").glob("*/verdict.json")
        verdict = dag.task_dict["audit_after_second_roll.verdict"]
        verdict.path = str(left)
        with pytest.raises(AirflowFailException, match=r"FAIL.* rollback"):
            verdict.poke({})

    @pytest.mark.slow
    def test_an_inconclusive_audit_is_made_again_until_it_is_sure(
        self, rehearse: Callable[..., Rehearsal], run_dag: Callable[..., Any], spark: Spark
    ) -> None:
        sim = rehearse()
        audited(sim, spark, retries=3, retry_delay=0.1)
        spark.concludes(AuditOutcome.INCONCLUSIVE, AuditOutcome.INCONCLUSIVE, AuditOutcome.PASS)
        dag = folder.dags_of(sim.path.parent)["kmigrate_audit__sim"]
        assert str(run_dag(dag).state) == "success"
        assert spark.runs() == 3

    @pytest.mark.slow
    def test_one_that_stays_inconclusive_is_no_pass(
        self, rehearse: Callable[..., Rehearsal], run_dag: Callable[..., Any], spark: Spark
    ) -> None:
        sim = rehearse()
        audited(sim, spark, retries=1, retry_delay=0.1)
        spark.concludes(AuditOutcome.INCONCLUSIVE)
        found = tasks(run_dag(folder.dags_of(sim.path.parent)["kmigrate_audit__sim"]))
        assert found == {"audit": "success", "verdict": "failed"}
        assert spark.runs() == 2


class TestWithoutTheProvider:
    def test_the_dags_stay_and_an_import_error_says_what_is_missing(
        self, rehearse: Callable[..., Rehearsal], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sim = rehearse()
        audited(sim)
        folder.check(sim.path.parent)
        monkeypatch.setattr(folder, "find_spec", lambda _: None)
        assert set(folder.dags_of(sim.path.parent)) == {*OTHERS, "kmigrate_audit__sim"}
        with pytest.raises(Exception, match="F08"):
            folder.check(sim.path.parent)


@pytest.mark.slow
class TestRollback:
    """Audited as a migration is, but it never waits for Spark."""

    @pytest.fixture
    def rollback_sim(
        self, begun: Callable[..., tuple[Rehearsal, DAG]], spark: Spark, connection: Callable[..., str]
    ) -> tuple[Rehearsal, DAG]:
        connection("sim_kafka", "kafka", extra={"bootstrap.servers": "127.0.0.1:1"})
        connection("sim_zookeeper", "kmigrate_zookeeper", host="127.0.0.1:1")
        sim, _ = begun(some_kraft)
        audited(sim, spark, topics=["t"], retries=0)
        return sim, rollback.build(load(str(sim.path)))

    @pytest.mark.parametrize("outcome", AuditOutcome)
    def test_the_verdict_ends_the_run(
        self, rollback_sim: tuple[Rehearsal, DAG], run_dag: Callable[..., Any], spark: Spark, outcome: AuditOutcome
    ) -> None:
        sim, dag = rollback_sim
        spark.concludes(outcome)
        run = run_dag(dag, run_conf={"approve_rollback": CLUSTER_ID})
        check_back(sim.cluster)
        assert (str(run.state), tasks(run)["audit_after_rollback.verdict"]) == (
            ("success", "success") if outcome is AuditOutcome.PASS else ("failed", "failed")
        )
        if outcome is AuditOutcome.PASS:
            request = parse(json.loads(spark.requests.read_text()))
            assert request.logs is not None
            assert "fingerprint_logs" in request.logs.before
            assert request.policy.required_evidence.since is not None

    def test_an_audited_rollback_continues_if_spark_is_down_and_ends_unproven(
        self, rollback_sim: tuple[Rehearsal, DAG], run_dag: Callable[..., Any], spark: Spark
    ) -> None:
        sim, dag = rollback_sim
        spark.broken.touch()
        found = tasks(run_dag(dag, run_conf={"approve_rollback": CLUSTER_ID}))
        check_back(sim.cluster)
        assert (found["evidence.fingerprint_logs"], found["evidence.taken"], found["rolled_back"]) == (
            "failed",
            "success",
            "success",
        )
        assert found["audit_after_rollback.audit"] == "failed"

    def test_an_operator_may_leave_it_out(
        self, rollback_sim: tuple[Rehearsal, DAG], run_dag: Callable[..., Any], spark: Spark
    ) -> None:
        sim, dag = rollback_sim
        run = run_dag(dag, run_conf={"approve_rollback": CLUSTER_ID, "skip_audit": True})
        check_back(sim.cluster)
        found = tasks(run)
        skipped = [task for task, state in found.items() if state == "skipped" and ("evidence" in task or "audit" in task)]
        assert (str(run.state), len(skipped), spark.runs()) == ("success", 4, 0)

    def test_an_answer_that_is_no_approval_changes_nothing(
        self, rollback_sim: tuple[Rehearsal, DAG], run_dag: Callable[..., Any], spark: Spark
    ) -> None:
        sim, dag = rollback_sim
        dag.task_dict["approve"].execute = refuse  # type: ignore[method-assign]
        found = tasks(run_dag(dag))
        assert {state for task, state in found.items() if task.startswith(("controller_failover", "to_", "rolled"))} == {
            "upstream_failed"
        }
        assert spark.runs() == 0
        assert position_of(sim.cluster.observe(None)).phase is not Phase.ZOOKEEPER


def refuse(_: object) -> None:
    raise AirflowFailException("Left as it is")
