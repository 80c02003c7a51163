"""Arguments of operators and sensors: each class takes its own by name; what it does not know, or what contradicts, is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from airflow.sdk import BaseOperator

from airflow_provider_kmigrate.core.migration.plan import FINALIZE, ROLL_BACK, Access, rows_by_kind
from airflow_provider_kmigrate.operators.approval import ApproveExpansionOperator, ApproveRollbackOperator
from airflow_provider_kmigrate.operators.groups import CheckGroupOperator, GroupStepOperator, SwitchInstanceOperator
from airflow_provider_kmigrate.operators.migration import (
    FinalizeControllerOperator,
    MigrationStepOperator,
    PreflightOperator,
    ProvisionControllersOperator,
    RollbackPlanOperator,
    RollBrokerOperator,
    SoakOperator,
)
from airflow_provider_kmigrate.operators.step import ClusterOperator
from airflow_provider_kmigrate.sensors.step import StepSensor, VerifyDualWriteLagSensor, WaitAllBrokersRegisteredSensor

CHECK = {"group": "billing"}
NAMED: list[tuple[type[BaseOperator], dict[str, Any]]] = [
    (SoakOperator, {}),
    (ProvisionControllersOperator, {"controller": 3000}),
    (RollBrokerOperator, {"target": "kraft"}),
    (FinalizeControllerOperator, {}),
    (WaitAllBrokersRegisteredSensor, {}),
    (VerifyDualWriteLagSensor, {}),
    (CheckGroupOperator, CHECK),
    (SwitchInstanceOperator, {**CHECK, "instance": "app0", "target": "kafka"}),
]


def made(operator: type[BaseOperator], **arguments: Any) -> Any:
    return operator(task_id="x", cluster_file="c.yaml", **arguments)


@pytest.mark.parametrize(("operator", "needed"), NAMED, ids=lambda value: getattr(value, "__name__", ""))
def test_no_operator_of_one_step_can_be_made_to_run_another(operator: type[BaseOperator], needed: Mapping[str, Any]) -> None:
    made(operator, **needed)
    with pytest.raises(TypeError, match="step"):
        made(operator, **needed, step="finalize")


@pytest.mark.parametrize("name", ["approved_by", "answer"])
@pytest.mark.parametrize("operator", [SoakOperator, PreflightOperator, RollbackPlanOperator])
def test_only_an_operator_behind_an_approval_takes_an_approval_argument(operator: type[BaseOperator], name: str) -> None:
    with pytest.raises(TypeError, match=name):
        made(operator, **{name: "approve"})


def test_no_argument_turns_the_finalization_over_to_another_answer() -> None:
    assert made(FinalizeControllerOperator, approved_by="approve").answer == FINALIZE
    with pytest.raises(TypeError, match="answer"):
        made(FinalizeControllerOperator, approved_by="approve", answer=ROLL_BACK)


@pytest.mark.parametrize("operator", [PreflightOperator, RollbackPlanOperator, CheckGroupOperator])
def test_an_operator_that_never_waits_takes_no_argument_about_waits(operator: type[BaseOperator]) -> None:
    with pytest.raises(TypeError, match="deferrable"):
        made(operator, **(CHECK if operator is CheckGroupOperator else {}), deferrable=True)


@pytest.mark.parametrize(
    ("operator", "arguments", "said"),
    [
        (MigrationStepOperator, {"step": "soack"}, "There is no step 'soack'"),
        (MigrationStepOperator, {"step": "preflight"}, "There is no step 'preflight'"),
        (StepSensor, {"step": "registred"}, "There is no step 'registred'"),
        (StepSensor, {"step": "finalize"}, "A sensor runs one of .*, not 'finalize'"),
        (GroupStepOperator, {"step": "soak", **CHECK}, "Step 'soak' is not of one group"),
        (MigrationStepOperator, {"step": "expand", "answer": "Yes"}, "answer='Yes' has no effect without approved_by"),
        (MigrationStepOperator, {"step": "copied", "approved_by": "approve"}, "'copied' is behind no approval .* 'approve'"),
        (MigrationStepOperator, {"step": "soak", "step_kwargs": {"node": 1}}, "'soak' is of the whole cluster, .* node 1"),
    ],
)
def test_an_unknown_step_and_contradicting_arguments_are_refused_by_name(
    operator: type[BaseOperator], arguments: Mapping[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        made(operator, **arguments)


@pytest.mark.parametrize(("step", "answer"), [("finalized", FINALIZE), ("handover", ROLL_BACK), ("expand", "Run this plan")])
def test_the_answer_that_a_step_needs_is_that_of_the_plan_that_has_it_behind_its_approval(step: str, answer: str) -> None:
    assert made(MigrationStepOperator, step=step, approved_by="approve").answer == answer


@pytest.mark.parametrize(
    "row", [row for row in rows_by_kind().values() if row.step and row.access is not Access.WATCH], ids=lambda row: row.kind
)
def test_an_operator_has_the_access_of_its_row_and_is_deferred_only_if_the_row_says_so(row: Any) -> None:
    task = made(MigrationStepOperator, step=row.kind, deferrable=True)
    assert (task.access, task.deferrable) == (row.access, row.deferrable)


def test_only_a_rollback_counts_a_run_that_waits_as_over() -> None:
    over = {row.kind for row in rows_by_kind().values() if row.access.is_over_waiting}
    assert over == {
        *("plan", "restore flag", "controller failover", "equivalent after failover", "roll back broker"),
        *("handover", "zookeeper leads", "wipe", "rolled back"),
    }
    assert made(RollbackPlanOperator).access is Access.ASK_OVER_WAITING
    assert made(RollbackPlanOperator, in_migration=True).access is Access.ASK
    assert ApproveRollbackOperator.access is Access.ASK_OVER_WAITING
    assert ApproveExpansionOperator.access is Access.ASK
    assert ClusterOperator.access is Access.ACT
