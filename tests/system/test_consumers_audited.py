"""A group is moved by its DAG, and Spark judges behind each canary and each whole step; a canary that is slow is taken back for it.

Its instances are wrapped before the move, in the first stage of the migrating consumer, so that each is compared with itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from airflow_provider_kmigrate.core.member.group_seen import MemberKind
from benchmarks.old_application import OldApplication
from benchmarks.rehearsal import ROOT, Rehearsal
from tests.consumer.migrating_group import delivered
from tests.old_consumer.instance import restart, slow_down
from tests.system.group_under_load import GROUP, RATE, TOPIC, drained, events_of, judged, kinds, messages, under_load
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(900)]
OLD, MIGRATING, PLAIN = MemberKind.ZOOKEEPER, MemberKind.MIGRATING, MemberKind.KAFKA
APPLICATION = OldApplication(GROUP, TOPIC, instances=4, kind="python")
CANARY = APPLICATION.names[0]
STEPS = ("canary_migrating", "mode_kafka", "canary_kafka", "to_kafka")
FAULTS = ("lost", "redelivered", "reordered", "double_owned", "commit_gap")


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rehearsal]:
    with under_load(tmp_path_factory.mktemp("audited"), "audited", APPLICATION) as there:
        ask(there)
        wait_for_history(there)
        yield there


def wait_for_history(rehearsal: Rehearsal) -> None:
    """A time before to compare with, without a restart."""
    enough = delivered(events_of(rehearsal)) + RATE * 90
    wait_until(lambda: delivered(events_of(rehearsal)) > enough, "time passes", timeout=150)


def ask(rehearsal: Rehearsal) -> None:
    """In the cluster file. The canary is compared over 80 s."""
    plan = rehearsal.cluster.plan
    document = yaml.safe_load(plan.spec_path.read_text())
    document["audit"] = {
        "conn_id": "spark_here",
        "environment": str(ROOT / ".venv-spark"),
        "result": str(rehearsal.folder / "result"),
        "events": [str(rehearsal.folder / "load" / "events")],
        "level": "producers",
        "retry_delay": "15s",
        "retries": 12,
        "canary": {"interval": "2s", "window": 40, "settle": "6s", "margin": 2},
    }
    plan.spec_path.write_text(yaml.safe_dump(document, sort_keys=False))
    known = json.loads(plan.connections_path.read_text())
    known["spark_here"] = {"conn_type": "spark", "host": "local[2]"}
    plan.connections_path.write_text(json.dumps(known))


def verdict(rehearsal: Rehearsal, step: str) -> dict[str, Any]:
    """Of the newest run."""
    found = (rehearsal.folder / "result" / "audited" / GROUP / step).glob("*/verdict.json")
    return dict(json.loads(max(found, key=lambda path: path.stat().st_mtime).read_text()))


def log(rehearsal: Rehearsal) -> str:
    return rehearsal.dag_log.read_text()[-8000:]


def test_a_slow_canary_is_taken_back_alone(rehearsal: Rehearsal) -> None:
    """It keeps up in a way: it commits, owns and starves no member. Only its records come late, and only Spark sees that."""
    folder = rehearsal.folder / "applications" / GROUP
    slow_down(folder, CANARY, 0.025)
    run = rehearsal.run_dag("kmigrate_consumers", {})
    assert run["state"] == "failed", log(rehearsal)
    assert kinds(rehearsal) == [OLD] * APPLICATION.instances, "it went back, and no other was switched"
    found = verdict(rehearsal, "canary_migrating")
    assert found["outcome"] == found["canary"]["outcome"] == "FAIL", found
    assert [finding["reason"]["cause"] for finding in found["findings"] if finding["outcome"] == "FAIL"] == ["canary_worse"], (
        found
    )
    assert run["tasks"][f"{GROUP}.rollback_canary_migrating"] == "success", run
    slow_down(folder, CANARY, 0.0)
    restart(folder, CANARY, "python")
    wait_for_history(rehearsal)


def test_every_verdict_lets_a_sound_group_go_on(rehearsal: Rehearsal) -> None:
    run = rehearsal.run_dag("kmigrate_consumers", {})
    assert run["state"] == "success", f"{json.dumps(run, indent=1)}\n{log(rehearsal)}"
    assert kinds(rehearsal) == [PLAIN] * APPLICATION.instances
    for step in STEPS:
        found = verdict(rehearsal, step)
        assert found["outcome"] == "PASS", found
        assert found["levels"] == {"L2": "PASS", "L3": "PASS"}
        assert (found["canary"] is not None) == step.startswith("canary"), found
    for step in ("canary_migrating", "canary_kafka"):
        canary = verdict(rehearsal, step)["canary"]
        assert (canary["baseline"], canary["measured"], canary["outcome"]) == (3, 40, "PASS")


def test_the_ledger_of_all_of_it(rehearsal: Rehearsal) -> None:
    drained(rehearsal)
    rehearsal.stop_applications()
    facts = judged(rehearsal)
    assert facts.acked > 1000
    assert not facts.violations, messages(facts, FAULTS)
    assert facts.complete, facts.reasons
