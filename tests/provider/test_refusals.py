"""What tasks refuse, skip or ask for before they act: their own code, called as Airflow calls it, with as little around it as it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.exceptions import AirflowException
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, DownstreamTasksSkipped

from airflow_provider_kmigrate.core.audit.verdict import as_dict, combine
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.cluster_state.spec import NotifierSpec
from airflow_provider_kmigrate.core.migration.gates import never
from airflow_provider_kmigrate.core.migration.plan import FINALIZE, ROLL_BACK
from airflow_provider_kmigrate.dag_builders import audit
from airflow_provider_kmigrate.exceptions import Refused, Unreachable
from airflow_provider_kmigrate.notifications.messages import load_notifier_class
from airflow_provider_kmigrate.operators import approval, migration, spark_jobs
from airflow_provider_kmigrate.operators.approval import (
    ApproveFinalizationOperator,
    RollbackStartedOperator,
    StartRollbackOperator,
)
from airflow_provider_kmigrate.operators.groups import GroupPlanOperator, RollbackGroupsOperator, SwitchInstanceOperator
from airflow_provider_kmigrate.operators.migration import FinalizeControllerOperator, MigrationStepOperator, PreflightOperator
from airflow_provider_kmigrate.operators.spark_audit import SparkAuditOperator, SparkFingerprintOperator
from airflow_provider_kmigrate.operators.spark_jobs import HoldSparkJobOperator
from airflow_provider_kmigrate.operators.step import StepOperator
from airflow_provider_kmigrate.sensors.waits import WindowSensor
from tests.steps.phases import all_kraft
from tests.steps.sim import SimCluster
from tests.steps.sim_group import GROUP, SimGroup

FILE: Any = {"task_id": "task", "cluster_file": "/sim.yaml"}
ANSWER = {"options": [FINALIZE], "user": "ann", "name": "Ann", "at": "2026-01-01T00:00:00+00:00", "reason": ""}


def params(**values: Any) -> Any:
    """As much of a task's context as these read."""
    return {
        "params": values,
        "ti": SimpleNamespace(try_number=1, max_tries=2, xcom_push=lambda *_, **__: None),
        "dag": None,
        "run_id": "r",
    }


@pytest.mark.parametrize(
    ("skips", "context"),
    [
        (MigrationStepOperator(step="copied", skip_if="fast", **FILE).execute, params(fast=True)),
        (RollbackGroupsOperator(groups=["billing"], **FILE).execute, params(groups=["orders"])),
        (WindowSensor(group="billing", window="00:00-23:59", wave=1, **FILE).poke, params(wave=2)),
        (audit._skip_if_unwanted, params(skip_audit=True)),
    ],
    ids=["a step that the conf leaves out", "another group", "another wave", "a rollback without an audit"],
)
def test_a_task_that_the_runs_conf_leaves_out_is_skipped(skips: Callable[[Any], Any], context: Any) -> None:
    with pytest.raises(AirflowSkipException):
        skips(context)


class TestApproval:
    @pytest.fixture
    def asks(self) -> ApproveFinalizationOperator:
        return ApproveFinalizationOperator(cluster="sim", cluster_id="c", evidence="", **FILE)

    def test_an_answer_to_a_request_that_was_not_recorded_approves_nothing(
        self, asks: ApproveFinalizationOperator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(asks, "_load_approval", lambda _: None)
        with pytest.raises(AirflowFailException, match=r"H06.*What the request showed was not recorded"):
            asks.judge(params(), ANSWER)

    @pytest.mark.parametrize(
        "event",
        [{"error": "no row"}, ANSWER | {"options": []}, ANSWER | {"options": [FINALIZE] * 2}, ANSWER | {"options": ["Yes"]}],
    )
    def test_what_is_no_single_answer_to_the_request_approves_nothing(
        self, asks: ApproveFinalizationOperator, monkeypatch: pytest.MonkeyPatch, event: dict[str, Any]
    ) -> None:
        monkeypatch.setattr(asks, "_load_approval", lambda _: None)
        with pytest.raises(AirflowFailException, match=r"H06.*Airflow did not say what was answered"):
            asks.judge(params(), event)

    @pytest.fixture
    def handed_over(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
        """To whom; the answer was to roll back, and no run of the rollback is there."""
        given, to = SimpleNamespace(answers=[SimpleNamespace(option=ROLL_BACK, at="now")]), list[object]()
        monkeypatch.setattr(approval, "_require_rollback_answer", lambda *_: given)
        monkeypatch.setattr(approval, "state_of", lambda *_: None)
        monkeypatch.setattr(approval, "hand_over", lambda *to_whom: to.append(to_whom))
        return to

    def test_the_lock_is_handed_to_no_run_that_would_not_begin(
        self, handed_over: list[object], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(approval, "why_no_run_begins", lambda *_: "The DAG is paused.")
        with pytest.raises(AirflowFailException, match=r"H11.*The DAG is paused"):
            StartRollbackOperator(cluster="sim", answered_by="approve", **FILE).execute(params())
        assert handed_over == []

    @pytest.mark.usefixtures("handed_over")
    def test_a_run_that_stays_queued_is_not_waited_for_without_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        why, waits = iter(["The DAG is paused."] * 9), RollbackStartedOperator(cluster="sim", answered_by="approve", **FILE)
        monkeypatch.setattr(approval, "why_queued", lambda *_: next(why, ""))
        monkeypatch.setattr(waits, "WITHIN", -1.0)
        monkeypatch.setattr(approval.time, "sleep", lambda _: None)
        with pytest.raises(AirflowFailException, match=r"H11.*It owns the cluster, and begins by itself then"):
            waits.execute(params())

    def test_a_job_is_not_held_for_a_rollback_that_nobody_approved(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object) -> None:
            raise AirflowFailException("H06")

        monkeypatch.setattr(spark_jobs, "demand_answer", refuse)
        monkeypatch.setattr(spark_jobs, "load", lambda _: pytest.fail("it was asked for the job"))
        with pytest.raises(AirflowFailException, match="H06"):
            HoldSparkJobOperator(job="orders", approved_by="approve", **FILE).execute(params())


class TestMigration:
    def test_nothing_behind_the_preflight_of_a_finalized_cluster_is_run(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(migration, "describe_nothing_left", lambda *_: "Finalized.")
        preflight = PreflightOperator(**FILE)
        monkeypatch.setattr(PreflightOperator, "get_flat_relative_ids", lambda *_, **__: {"backup", "approve"})
        with pytest.raises(DownstreamTasksSkipped) as skipped:
            preflight.run_in(SimCluster().context(tmp_path), {})
        assert skipped.value.tasks == ["approve", "backup"]

    def test_a_finalization_on_an_outdated_audit_waits_for_no_window_before_it_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cluster = SimCluster()
        all_kraft(cluster, cluster.context(tmp_path))
        monkeypatch.setattr(migration, "expired_audit_reason", lambda *_: Reason("H06", "The audit is 99 h old."))
        monkeypatch.setattr(migration, "may_begin_finalization", lambda *_: never(Reason("H06", "The audit is 99 h old.")))
        monkeypatch.setattr(StepOperator, "run_in", lambda *_: pytest.fail("the step began"))
        with pytest.raises(Refused, match="H06"):
            FinalizeControllerOperator(**FILE).run_in(
                cluster.context(tmp_path), {"node": 3000, "approved": "", "rests_on": None, "judged_at": 1.0}
            )


class TestGroups:
    def test_an_instance_that_kmigrate_cannot_restart_ends_the_move_before_its_act(self, monkeypatch: pytest.MonkeyPatch) -> None:
        group = SimGroup()
        context = group.context()

        def require(_: object, **_named: object) -> None:
            raise Refused("no webhook")

        monkeypatch.setattr(context.tools.instances, "require", require, raising=False)
        operator = SwitchInstanceOperator(group=GROUP, instance="app0", target="migrating", **FILE)
        monkeypatch.setattr(operator, "run_group_step", lambda *_: pytest.fail("it began"))
        with pytest.raises(Refused, match="no webhook"):
            operator.run_in(context, {"group": GROUP})

    def test_no_plan_is_made_of_a_group_that_could_not_be_read(self) -> None:
        group = SimGroup()
        group.blind = True
        arguments = {"goal": None, "groups": None, "wave": None, "release_groups": []}
        with pytest.raises(Unreachable, match="could not be read"):
            GroupPlanOperator(groups=[GROUP], **FILE).run_in(group.context(), arguments)


class TestAudit:
    def test_an_inconclusive_audit_is_repeated_as_long_as_the_task_has_tries(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        audits = SparkAuditOperator(task_id="task", request={"sources": []}, result=str(tmp_path), retry_inconclusive=True)
        monkeypatch.setattr(audits, "submit", lambda *_: None)
        monkeypatch.setattr(audits, "_read_verdict", lambda _: as_dict(combine([], [])))
        context = params()
        with pytest.raises(AirflowException, match="The audit runs again, with more evidence") as raised:
            audits.execute(context)
        assert not isinstance(raised.value, AirflowFailException), "that would be no retry"
        context["ti"].try_number = 3
        assert audits.execute(context).startswith("INCONCLUSIVE")

    def test_a_job_that_left_no_fingerprint_took_none(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        before = tmp_path / "before.json"
        reads = SparkFingerprintOperator(task_id="task", request={"logs": {"before": str(before)}}, result=str(tmp_path))
        monkeypatch.setattr(reads, "submit", lambda *_: None)
        with pytest.raises(AirflowFailException, match="ended without a fingerprint"):
            reads.execute(params())
        monkeypatch.setattr(reads, "submit", lambda *_: before.write_text("{}"))
        assert reads.execute(params()).startswith("The logs were read;")


def test_a_class_that_is_no_notifier_is_none() -> None:
    with pytest.raises(TypeError, match=r"json.JSONDecoder is no notifier of Airflow"):
        load_notifier_class(NotifierSpec("json.JSONDecoder"))
