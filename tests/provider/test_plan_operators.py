"""The tasks that plan a run: the plan is what they return, its page is kept, and a plan that was not reviewed is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_kmigrate.operators.migration import RollbackPlanOperator
from tests.provider.lone_tasks import alone, context
from tests.provider.simulated import Rehearsal
from tests.steps.phases import some_in_migration


def make_plan(sim: Rehearsal, operator: Any, **arguments: Any) -> tuple[dict[str, Any], str]:
    """What the task returns, and its page."""
    dag = alone(operator, sim.path, **arguments)
    task = dag.get_task("task")
    return task.execute({**context(dag), "params": {}}), task.page


@pytest.fixture
def rolling(begun: Callable[..., Any], no_variables: None) -> Rehearsal:
    """A cluster in the middle of a migration."""
    sim, _ = begun(some_in_migration)
    return sim


def test_the_plan_of_a_rollback_is_returned_and_its_page_is_kept(rolling: Rehearsal) -> None:
    plan, page = make_plan(rolling, RollbackPlanOperator)
    assert plan["of"] == "rollback"
    assert "back to ZooKeeper" in Path(page).read_text()
    assert json.loads(Path(page).with_suffix(".json").read_text()) == plan


def test_a_run_that_is_bound_to_another_plan_is_refused_before_an_administrator_is_asked(rolling: Rehearsal) -> None:
    plan, _ = make_plan(rolling, RollbackPlanOperator)
    assert make_plan(rolling, RollbackPlanOperator, plan=plan["fingerprint"])[0]["fingerprint"] == plan["fingerprint"]
    with pytest.raises(AirflowFailException, match="H16"):
        make_plan(rolling, RollbackPlanOperator, plan="0123456789abcdef")


def test_a_folder_that_cannot_be_written_holds_no_rollback(rolling: Rehearsal) -> None:
    from airflow_provider_kmigrate.utils.step_context import state_folder  # noqa: PLC0415  # the rehearsal sets it

    (state_folder() / "plan").write_text("no folder")
    plan, page = make_plan(rolling, RollbackPlanOperator)
    assert (plan["of"], page) == ("rollback", "")


def test_a_journal_that_cannot_be_read_holds_no_rollback(rolling: Rehearsal) -> None:
    from airflow_provider_kmigrate.utils.step_context import state_folder  # noqa: PLC0415  # the rehearsal sets it

    (state_folder() / "journal" / "sim" / "other.jsonl").mkdir(parents=True)
    assert make_plan(rolling, RollbackPlanOperator)[0]["restart_seconds"]["measured"] == 0
