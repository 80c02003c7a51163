"""A migration whose gates are Spark's verdicts over clients that run on: logs, kmigrate's own probe, and the load's own words.

Beside it a user's streaming job reads the same topic, and is held and resumed around both rolls.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kmigrate.core.audit.verdict import AuditOutcome, Level
from airflow_provider_kmigrate.probe.probe import Probe, has_ended, list_runs, stop_runs
from benchmarks.rehearsal import Rehearsal
from benchmarks.spark_side import SparkSide
from tests.kit.account import Account
from tests.kit.load import TopicPlan
from tests.kit.localcluster.plan import Shape
from tests.kit.workload import GroupPlan
from tests.verdicts import verdict_of

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.proof, pytest.mark.timeout(1500)]
GATES = ("after_first_roll", "after_second_roll", "before_approval", "after_finalization")
SECRET = "canary-audited-5up3r"


@dataclass(frozen=True)
class Outcome:
    """`sink` is what the streaming job counted at its end."""

    rehearsal: Rehearsal
    dag: dict[str, Any]
    account: Account
    sink: dict[str, int]


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    """The migration's DAG with an `audit` and a job, run to its end; then everybody else ends too."""
    shape, topics, policy = (
        Shape(name="audited", controllers=1),
        [TopicPlan("orders", 6)],
        {"min_soak": "3s", "canary_bake": "0s"},
    )
    folder, groups = tmp_path_factory.mktemp("audited"), [GroupPlan("billing", 1)]
    rehearsal = Rehearsal(folder, shape, topics, groups, rate=200.0, producers=1, policy=policy)
    with closing(rehearsal), closing(SparkSide(rehearsal.folder / "spark", ["orders"])) as spark:
        rehearsal.up()
        workload = rehearsal.load()
        spark.ask(rehearsal.cluster.plan, workload.events, ["orders"])
        spark.connect(rehearsal.cluster.plan)
        plant(rehearsal)
        spark.bootstrap = rehearsal.cluster.bootstrap
        spark.start_stream()
        spark.wait_streaming()
        try:
            dag = rehearsal.migrate()
        finally:  # of a run that broke off
            stop_runs(list_runs(probes_of(rehearsal)))
        yield Outcome(rehearsal, dag, rehearsal.account(), spark.end_stream())


def plant(rehearsal: Rehearsal) -> None:
    """A secret in the connection, which is not needed to get in."""
    path = rehearsal.cluster.plan.connections_path
    known = json.loads(path.read_text())
    known["audited_kafka"]["extra"] |= {"sasl.password": SECRET}
    path.write_text(json.dumps(known))


def result_of(rehearsal: Rehearsal) -> Path:
    return rehearsal.folder / "spark" / "audit"


def probes_of(rehearsal: Rehearsal) -> Path:
    return result_of(rehearsal) / "audited" / "probe"


def test_every_gate_passes_at_every_level(audited: Outcome) -> None:
    rehearsal, dag = audited.rehearsal, audited.dag
    failed = {task: state for task, state in dag["tasks"].items() if state not in {"success", "skipped"}}
    assert (dag["state"], failed) == ("success", {}), f"the log: {rehearsal.dag_log}"
    for gate in GATES:
        (path,) = (result_of(rehearsal) / "audited" / gate).glob("*/verdict.json")
        verdict = json.loads(path.read_text())
        assert verdict["outcome"] == "PASS", verdict
        levels = (Level.LOG, Level.PROBE, Level.CONSUMER, Level.PRODUCER)
        assert verdict["levels"] == {level.label: "PASS" for level in levels}, verdict
        page = json.loads((path.parent / "report.json").read_text())
        assert page["verdict"]["outcome"] == "PASS"
        assert page["phases"], "of the run's journal"
        assert 0 < (path.parent / "report.html").stat().st_size < 2_000_000


def test_the_job_was_held_for_both_rolls_and_its_sink_is_exact(audited: Outcome) -> None:
    rolls = ("hold_for_first_roll", "resume_after_copy", "hold_for_second_roll", "resume_after_second_roll")
    assert {audited.dag["tasks"][f"{roll}.sink"] for roll in rolls} == {"success"}, audited.dag["tasks"]
    assert audited.account.failures == ()
    assert audited.sink == dict.fromkeys(("records", "distinct"), audited.account.ledger["acked"])


def test_the_probe_has_ended_whole(audited: Outcome) -> None:
    rehearsal = audited.rehearsal
    (folder,) = probes_of(rehearsal).iterdir()
    probe = Probe(folder, {"bootstrap.servers": rehearsal.cluster.bootstrap})
    assert has_ended(folder)
    facts = probe.facts()
    assert (facts.complete, verdict_of(facts), facts.violations) == (True, AuditOutcome.PASS, {}), facts.reasons
    assert facts.delivered == {"kmigrate-probe": facts.acked}
    assert facts.acked > 100


def test_no_secret_lies_with_the_results(audited: Outcome) -> None:
    rehearsal = audited.rehearsal
    written = [path for folder in (result_of(rehearsal), rehearsal.home) for path in folder.rglob("*") if path.is_file()]
    assert {path.name for path in written} >= {"verdict.json", "owner.json", "session.json", "airflow.db"}
    assert [str(path) for path in (*written, rehearsal.dag_log) if SECRET.encode() in path.read_bytes()] == []
