"""A new step touches three places: itself, its row, the reasons for its place. Everything else is a view of the row."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import BaseOperator

import airflow_provider_kmigrate
from airflow_provider_kmigrate.core.migration.plan import PLANS, SINGLE, Access, rows_by_kind
from airflow_provider_kmigrate.steps import catalog

PACKAGE = Path(airflow_provider_kmigrate.__file__).parent
REPOSITORY = PACKAGE.parent
ROWS = [row for plan in (*PLANS, SINGLE) for row in plan]

STEP = '''
"""A step that counts brokers."""
from airflow_provider_kmigrate.core.cluster_state.decision import Done
from airflow_provider_kmigrate.steps.waits import WaitStep

def brokers_counted(expected):
    return WaitStep("brokers counted", lambda view, _first: Done(f"{len(view.brokers)} of {len(expected)}."))
'''
ROW = """\
    StepRow("counting", "count", "count brokers", step="counting.brokers_counted", takes=("broker_ids",), access=Access.WATCH,
        estimate=Estimate.MIGRATION, doc="Counts the brokers.", stops=("G05",)),
"""
REASONS = """\
            ("controllers.ready", "counting.count", "controllers are counted first"),
            ("counting.count", "first_roll.broker", "what is counted must not restart"),
"""
LOOK = """
import json, sys
from pathlib import Path
from airflow_provider_kmigrate.core.migration.plan import MIGRATION, row_of
from airflow_provider_kmigrate.dag_builders import zk_to_kraft
from airflow_provider_kmigrate.spec import load
from airflow_provider_kmigrate.steps.catalog import build
from airflow_provider_kmigrate.steps.run import run_step
from tests.provider.simulated import rehearsal
from tests.steps.sim import SimCluster
from dataclasses import replace
sys.path.insert(0, sys.argv[1])
import edited_plan_test

folder, cluster, sent = Path(sys.argv[1]), SimCluster(), []
task = zk_to_kraft.build(load(rehearsal(folder, cluster).path)).get_task("counting.count")
done = run_step(build(cluster.spec, "count brokers", {}), replace(cluster.context(folder), export=sent.extend))
print(json.dumps({
    "plan": [row.full_id() for row in MIGRATION if row.kind == "count brokers"],
    "broken": edited_plan_test.broken("migration", MIGRATION),
    "needed": bool(edited_plan_test.broken("migration", [row for row in MIGRATION if row.kind != "count brokers"])),
    "after": sorted(task.upstream_task_ids), "before": sorted(task.downstream_task_ids),
    "operator": type(task).__name__, "page": task.doc_md, "done": done.text,
    "gauges": sorted({gauge.name for gauge in sent}),
}))
"""


def insert(path: Path, before: str, text: str) -> None:
    whole = path.read_text()
    assert whole.count(before) == 1
    path.write_text(whole.replace(before, text + before))


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a process finds in which three edits have added a step."""
    folder = tmp_path_factory.mktemp("edited")
    package = folder / PACKAGE.name
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    reasons = folder / "edited_plan_test.py"
    shutil.copy(REPOSITORY / "tests" / "core" / "test_plan.py", reasons)
    (package / "steps" / "counting.py").write_text(STEP)
    insert(package / "core" / "migration" / "plan.py", "    _ROLL,\n", ROW)
    insert(reasons, '            ("first_roll.broker", "first_roll.leaders"', REASONS)
    path = os.pathsep.join((str(folder), str(REPOSITORY)))
    run = [sys.executable, "-c", LOOK, str(folder)]
    env = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(run, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
def test_three_edits_put_a_step_into_the_plan_and_its_place_has_reasons(seen: dict[str, Any]) -> None:
    assert seen["plan"] == ["counting.count"]
    assert seen["broken"] == []
    assert seen["needed"] is True


def test_three_edits_put_a_step_into_the_dag_with_its_operator(seen: dict[str, Any]) -> None:
    assert (seen["after"], seen["before"], seen["operator"]) == (["controllers.ready"], ["first_roll.broker_0"], "StepSensor")


def test_three_edits_give_a_step_its_page_and_its_gauge(seen: dict[str, Any]) -> None:
    assert seen["page"].startswith("Counts the brokers.")
    assert "**G05**" in seen["page"]
    assert "remaining_seconds" in seen["gauges"]
    assert seen["done"] == "3 of 3."


def test_the_rows_of_one_kind_differ_by_their_place_only() -> None:
    """Whoever builds a step by its kind gets what each place of a plan says of it."""
    facts = {(row.kind, row.step, row.takes, row.run, row.operator, row.each, row.deferrable, row.estimate) for row in ROWS}
    kinds = [kind for kind, *_ in facts if kind != "approve"]
    assert len(kinds) == len(set(kinds)) == len(rows_by_kind()) - 1
    access = {(row.kind, row.access) for row in ROWS if row.kind != "approve"}
    assert len(access) == len(kinds)


@pytest.mark.parametrize("row", rows_by_kind().values(), ids=lambda row: row.kind)
def test_what_a_row_names_is_there(row: Any) -> None:
    assert bool(row.step) + bool(row.run) + bool(row.answer) == 1
    assert set(row.takes) <= catalog._READERS.keys()
    if row.operator:
        module, _, name = row.operator.rpartition(".")
        assert issubclass(getattr(import_module(f"airflow_provider_kmigrate.{module}"), name), BaseOperator)
    assert not (row.access is Access.WATCH and row.skip_if), "a sensor is never left out"
    assert not row.last or row.each
