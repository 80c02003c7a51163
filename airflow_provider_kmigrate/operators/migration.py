"""The operators of a migration, its rollback and `__consumer_offsets`: one for any step of a plan, and named ones for DAGs of your own."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import Context

from airflow_provider_kmigrate.airflow_releases import AirflowFailException, AirflowSkipException, DownstreamTasksSkipped
from airflow_provider_kmigrate.core.cluster_state.decision import Done
from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, Fields, Reason
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec
from airflow_provider_kmigrate.core.migration import readiness
from airflow_provider_kmigrate.core.migration.controllers import expired_audit_reason, may_begin_finalization
from airflow_provider_kmigrate.core.migration.gates import MET
from airflow_provider_kmigrate.core.migration.phase import position_of
from airflow_provider_kmigrate.core.migration.plan import (
    EXPANSION,
    FINALIZE,
    REMOVE,
    Access,
    is_last_of_plan,
    required_answer_before,
    row_of,
)
from airflow_provider_kmigrate.core.migration.readiness import Readiness
from airflow_provider_kmigrate.core.migration.waits import (
    deadline_key,
    describe_leftover_work,
    describe_nothing_left,
    overdue_reasons,
)
from airflow_provider_kmigrate.exceptions import KMigrateError, Refused
from airflow_provider_kmigrate.links.pages import PreflightPageLink
from airflow_provider_kmigrate.operators.step import ClusterOperator, PlannedOperator, PlanOperator, StepOperator
from airflow_provider_kmigrate.spec import load
from airflow_provider_kmigrate.steps.catalog import (
    find_node,
    find_postponing_row,
    parse_expansion_terms,
    parse_rollback_terms,
    reason_to_postpone,
    run_plan,
    run_remaining_nodes,
    run_rollback,
)
from airflow_provider_kmigrate.steps.run import StepContext, require_gate
from airflow_provider_kmigrate.utils.step_context import (
    JUDGED_AT,
    PLAN,
    RESTS_ON,
    open_state,
    require_rollback_possible,
    state_folder,
)

if TYPE_CHECKING:
    from airflow_provider_kmigrate.core.monitoring.watch import Alarms
    from airflow_provider_kmigrate.steps.prepare import Preflight

_TERMS = (
    "skip_failover",
    "accept_loss",
    "accept_split_groups",
    "leave_broker",
    "partitions",
    "undo",
)  # of the conf of a run: a rollback's, an expansion's
_SHOWN = 1_000  # characters of an error in a message
_OBSERVING = "#e6e6fa"
_RESTARTING = "#fdf0cd"
_FINAL = "#f4d7d7"


class _PlanStepOperator(PlannedOperator, StepOperator):
    """One step of a plan: on one node, or without `node` on whatever is left. The last step of a plan releases the cluster."""

    def build_arguments(self, context: Context) -> dict[str, Any]:
        """The run's terms."""
        return _read_terms(context)

    def run_in(self, step_context: StepContext, arguments: dict[str, Any]) -> object:
        """Run the step, skip a postponed node, or without `node` run it on whatever is left."""
        role, number = row_of(self.kind).each, arguments.get("node")
        self.compare_with_plan(
            step_context, None if role is None or number is None else find_node(step_context.spec, role, number)
        )
        if arguments.get("node") is None and find_postponing_row(self.kind, arguments):
            return run_remaining_nodes(step_context, self.kind, arguments)
        if why := reason_to_postpone(step_context, self.kind, arguments):
            raise AirflowSkipException(why)
        decision = super().run_in(step_context, arguments)
        if isinstance(decision, Done) and is_last_of_plan(self.kind):
            step_context.fence.release()
        return decision


class MigrationStepOperator(_PlanStepOperator):
    """Run one step of the migration or of the rollback, by its name in `core.migration.plan`.

    A node that the plan postpones (the ZooKeeper controller, the active KRaft controller) is skipped, and run by the task of the same step
    without a node. The last step of a plan releases the cluster for other runs. The params `skip_failover`,
    `accept_loss`, `accept_split_groups` and `leave_broker` of the run are a rollback's terms, `partitions` and `undo` an expansion's.

    :param step: name of the step: a `kind` of `core.migration.plan` with a `step`.
    :param step_kwargs: arguments of the step, such as `{"node": 1, "target": "kraft"}`; without `node` it is run on whatever is left.
        (templated)
    :param skip_if: name of a param of the run that skips this task.
    :param approved_by: id of an approval task of the same run, whose answer must be `answer`.
    :param answer: that answer; by default the one of the plan that has the step behind its approval.
    """

    template_fields: Sequence[str] = (*StepOperator.template_fields, "step_kwargs")

    def __init__(
        self,
        *,
        step: str,
        step_kwargs: Mapping[str, Any] | None = None,
        skip_if: str = "",
        approved_by: str | None = None,
        answer: str | None = None,
        **kwargs: Any,
    ) -> None:
        row = row_of(step)
        self.kind = step
        super().__init__(**kwargs)
        self.step_kwargs, self.skip_if, self.approved_by = _as_json_values(step_kwargs or {}), skip_if, approved_by
        self.answer = answer or required_answer_before(step)
        if answer and not approved_by:
            raise ValueError(f"answer={answer!r} has no effect without approved_by.")
        if approved_by and not self.answer:
            raise ValueError(
                f"Step {step!r} is behind no approval of a plan: answer must say which one {approved_by!r} must have got."
            )
        if row.each is None and "node" in self.step_kwargs:
            raise ValueError(f"Step {step!r} is of the whole cluster, and step_kwargs names node {self.step_kwargs['node']!r}.")

    def execute(self, context: Context) -> Any:
        """Skip the task if the run's conf sets the param `skip_if`."""
        if self.skip_if and context["params"].get(self.skip_if):
            raise AirflowSkipException(f"The run's conf sets {self.skip_if}.")
        return super().execute(context)

    def build_arguments(self, context: Context) -> dict[str, Any]:
        """The step's arguments, and the run's terms."""
        return {**super().build_arguments(context), **self.step_kwargs}


class PreflightOperator(ClusterOperator):
    """Read everything that decides whether this cluster may be migrated; fail with all blocking findings at once. Changes nothing.

    Returns the findings: `[{"code", "severity", "seen", "why", "remedy", "source"}, ...]`. The same as a page and as JSON
    (`preflight.page.as_document`) is in `<folder>/preflight/<cluster>/`, of the newest run, and beside it the plan of the migration
    (`core.migration.migration_plan`). If the cluster is finalized already, everything behind this task is skipped, whatever its trigger rule,
    and the run ends well. If it is, but left a broker behind, a flag or an older file, nothing is judged: the tasks behind this one do what
    is left.

    :param cluster_file: path of the cluster file. (templated)
    :param plan: fingerprint of the plan that was reviewed; another plan is refused (H16). Empty: any. (templated)
    """

    access = Access.WATCH
    ui_color = _OBSERVING
    template_fields: Sequence[str] = (*ClusterOperator.template_fields, "plan")
    operator_extra_links = (*ClusterOperator.operator_extra_links, PreflightPageLink())
    page = ""  # that the last try has written
    _ti: Any

    def __init__(self, *, plan: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.plan = plan

    def execute(self, context: Context) -> Any:
        """Keep the task for its XCom."""
        self._ti = context["ti"]
        return super().execute(context)

    def run_in(self, step_context: StepContext, _arguments: dict[str, Any]) -> object:
        """Run the preflight and write its page; skip everything behind it on a finalized cluster."""
        from airflow_provider_kmigrate.core.migration.plan_document import require_reviewed_plan
        from airflow_provider_kmigrate.preflight.page import write_report
        from airflow_provider_kmigrate.preflight.plan_page import read_plan, write_plan
        from airflow_provider_kmigrate.steps.prepare import finding_to_json, plan_from_here, run_preflight
        from airflow_provider_kmigrate.steps.run import observe_files

        view = observe_files(step_context, Fields.POSITION)
        if done := describe_nothing_left(view, step_context.spec):
            step_context.say(done)
            downstream_ids = sorted(self.get_flat_relative_ids(upstream=False))
            raise DownstreamTasksSkipped(tasks=downstream_ids)  # type: ignore[no-untyped-call]
        if remaining_work := describe_leftover_work(view, step_context.spec):
            step_context.say(remaining_work)
            return []
        page_folder = state_folder() / "preflight" / step_context.spec.name

        plan: dict[str, Any] = {}
        plan_pages: list[Path] = []

        def write_pages(result: Preflight) -> None:
            self.page = str(write_report(result, page_folder, open_state()))
            self.log.info("The page with all findings: %s", self.page)
            plan.update(plan_from_here(step_context, result))
            self.status.store_plan(plan)
            plan_pages.append(write_plan(plan, page_folder, open_state()))
            self.log.info("The plan, fingerprint %s: %s", plan["fingerprint"], plan_pages[-1])

        findings = run_preflight(step_context, write_pages)
        require_reviewed_plan(plan, self.plan, read_plan(page_folder, self.plan))
        self._ti.xcom_push(
            key=PLAN, value={"fingerprint": plan["fingerprint"], "page": str(plan_pages[-1]), "inputs": plan["inputs"]}
        )
        return [finding_to_json(finding) for finding in findings]


class BackupOperator(ClusterOperator):
    """Save every broker's original properties file and ZooKeeper's tree, each verified by its hash.

    :param cluster_file: path of the cluster file. (templated)
    """

    ui_color = _OBSERVING

    def run_in(self, step_context: StepContext, _arguments: dict[str, Any]) -> object:
        """Save the originals and ZooKeeper's tree."""
        from airflow_provider_kmigrate.steps.prepare import run_backup

        return run_backup(step_context)


class ProvisionControllersOperator(_PlanStepOperator):
    """Write one controller's file, format its directory with the pinned cluster id, start it with the migration flag.

    :param controller: id of the controller. (templated)
    """

    template_fields: Sequence[str] = (*StepOperator.template_fields, "controller")
    kind = "provision"

    def __init__(self, *, controller: int | str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.controller = controller

    def build_arguments(self, context: Context) -> dict[str, Any]:
        """The step's arguments, with the controller."""
        return {**super().build_arguments(context), "node": self.controller}


class RollBrokerOperator(_PlanStepOperator):
    """Restart one broker into a mode as soon as every partition can spare it, and wait until it is back in every ISR.

    The ZooKeeper controller is skipped while other brokers are left, since each of its restarts costs an election.

    :param target: `migration` or `kraft`. (templated)
    :param broker: id of the broker; None: every broker that is left, the ZooKeeper controller last. (templated)
    """

    template_fields: Sequence[str] = (*StepOperator.template_fields, "target", "broker")
    kind = "roll"
    ui_color = _RESTARTING

    def __init__(self, *, target: BrokerMode | str, broker: int | str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.target, self.broker = str(target), broker

    def build_arguments(self, context: Context) -> dict[str, Any]:
        """The step's arguments, with the broker and its mode."""
        return {**super().build_arguments(context), "node": self.broker, "target": self.target}


class SoakOperator(_PlanStepOperator):
    """Keep the cluster in dual-write for `policy.min_soak` with every gate healthy; one unhealthy observation and the time begins again.

    From time to time the originals are read again: without them there is no rollback, and the soak fails. The healthy time is kept in the
    task's state store (`StepProgress`): a worker or triggerer that is restarted loses five minutes at most.

    :param cluster_file: path of the cluster file. (templated)
    """

    kind = "soak"

    def execute(self, context: Context) -> Any:
        """Check the backup first, then soak."""
        self.check_on_worker(context)
        return super().execute(context)

    def check_on_worker(self, context: Context) -> None:
        """Fail if this machine's backup allows no rollback any more; the triggerer's machine need not have the backup."""
        try:
            require_rollback_possible("soak in dual-write", self.cluster_file, context)
        except Refused as lost:
            raise AirflowFailException(str(lost)) from None


class FinalizeControllerOperator(_PlanStepOperator):
    """Restart one controller without the migration flag; the active one is skipped while others are left. **No rollback is possible afterwards.**

    The approval may be days old: what it was given on is observed again before each restart.

    :param controller: id of the controller; None: every controller that is left, the active one last. (templated)
    :param evidence: id of the task that returned what both sides store, which must still be so.
    :param readiness: id of the `ReadinessOperator` whose verdict was approved. What it rests on must be the same until kmigrate has taken
        the first flag.
    :param verdict: id of the task that judged the audit. An audit cannot be repeated here, and must not be too old while every controller
        still has its flag.
    :param approved_by: id of the `ApproveFinalizationOperator` of the same run; its answer must be `Finalize`.
    """

    template_fields: Sequence[str] = (*StepOperator.template_fields, "controller")
    kind, answer = "finalize", FINALIZE
    ui_color = _FINAL

    def __init__(
        self,
        *,
        controller: int | str | None = None,
        evidence: str = "",
        readiness: str = "",
        verdict: str = "",
        approved_by: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.controller, self.evidence, self.readiness, self.verdict = controller, evidence, readiness, verdict
        self.approved_by = approved_by

    def build_arguments(self, context: Context) -> dict[str, Any]:
        """The controller, and what the earlier tasks returned: evidence and verdict."""
        ti: Any = context["ti"]
        return {
            "node": self.controller,
            "approved": ti.xcom_pull(task_ids=self.evidence) if self.evidence else "",
            "rests_on": ti.xcom_pull(task_ids=self.readiness, key=RESTS_ON) if self.readiness else None,
            "judged_at": ti.xcom_pull(task_ids=self.verdict, key=JUDGED_AT) if self.verdict else None,
        }

    def run_in(self, step_context: StepContext, arguments: dict[str, Any]) -> object:
        """Finalize. Refuses (H06) if the audit or the approval does not hold any more and the finalization has not begun.

        Asked again before each act, which a maintenance window may delay for hours.
        """
        from airflow_provider_kmigrate.core.migration.approval import approval_valid, fingerprint

        approved, spec, judged_at = self.approval, step_context.spec, arguments["judged_at"]
        cluster = fingerprint(step_context.observer.observe(Fields.POSITION), spec.cluster_id)
        shown = approved and replace(approved.shown, cluster=cluster)

        def refuse_if_outdated() -> str:
            now = step_context.clock.now()
            at = datetime.now(UTC)
            validity = approval_valid(approved, shown, spec.approvers, at, rehearsal=spec.rehearsal) if shown else MET
            if not validity.met or expired_audit_reason(judged_at, now):
                require_gate(
                    may_begin_finalization(step_context.observer.observe(Fields.POSITION), judged_at, now, *validity.reasons)
                )
            return ""

        refuse_if_outdated()
        return super().run_in(replace(step_context, stopped=lambda: refuse_if_outdated() or step_context.stopped()), arguments)


class RollbackPlanOperator(PlanOperator):
    """Plan what a rollback would do now, and check that it could; changes nothing. Returns the plan (`core.migration.rollback_plan`).

    The log names its page. Refused if there is nothing to roll back, or if another run owns the cluster.

    :param in_migration: asked during the migration: a finalization that has happened already is no refusal then.
    """

    def __init__(self, *, in_migration: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.in_migration = in_migration
        self.access = Access.ASK if in_migration else Access.ASK_OVER_WAITING

    def build_arguments(self, context: Context) -> dict[str, Any]:
        """The terms of the rollback; none during a migration."""
        return {} if self.in_migration else _read_terms(context)

    def run_in(self, step_context: StepContext, arguments: dict[str, Any]) -> object:
        """Plan the rollback. Refuses (G35) terms without effect; outside a migration also if no step is left."""
        from airflow_provider_kmigrate.steps.rollback import plan_from_here, planned_in_migration

        terms = parse_rollback_terms(step_context.spec, arguments)  # refuses what would not be followed
        plan = planned_in_migration(step_context) if self.in_migration else plan_from_here(step_context, terms)
        return plan if isinstance(plan, str) else self.keep_plan(step_context, plan)


class ReadinessOperator(ClusterOperator):
    """Judge from one observation whether a rollback is assured; changes nothing and takes no lock. Returns the verdict as a document.

    Leaves the verdict's hash as XCom `fingerprint`, and what it rests on as `rests_on`. Refused if an operator must act first; what may pass by itself is tried again as
    often as the task's `retries` say. A finalization that has happened already is no refusal.

    :param cluster_file: path of the cluster file. (templated)
    """

    ui_color = _OBSERVING
    access = Access.WATCH
    _ti: Any

    def execute(self, context: Context) -> Any:
        """Keep the task for its XComs."""
        self._ti = context["ti"]
        return super().execute(context)

    def run_in(self, step_context: StepContext, _arguments: dict[str, Any]) -> object:
        """Judge once; returns the verdict as a document (`core.migration.readiness.to_document`)."""
        from airflow_provider_kmigrate.steps.waits import require_rollback_assured

        verdict = require_rollback_assured(step_context, partial(self.status.offer_assessment, step_context))
        now = step_context.clock.now()
        return _push_readiness(self._ti, verdict, now)


def _push_readiness(ti: Any, verdict: Readiness, now: float) -> dict[str, Any]:
    """Leave a verdict as XComs of a task: `readiness` as a document, its `fingerprint`, and what it rests on. Returns the document."""
    document = readiness.to_document(verdict, now)
    ti.xcom_push(key="readiness", value=document)
    ti.xcom_push(key="fingerprint", value=document["fingerprint"])
    ti.xcom_push(key=RESTS_ON, value=dict(verdict.evidence))
    return document


class RollbackOperator(ClusterOperator):
    """Roll a cluster back to ZooKeeper from any phase before finalization, in one task and without asking.

    Both sides are compared before any controller is stopped and again before the handover. Killed and run again, it observes the
    cluster and does the rest. Never deferred.

    :param failover: false leaves out the controller failover that repairs lost dual-writes: only if no controller can be started any more.
    :param accept_loss: the cluster id: continue without what is missing in ZooKeeper. Only together with `failover=False`. (templated)
    """

    template_fields: Sequence[str] = (*StepOperator.template_fields, "accept_loss")
    ui_color = _RESTARTING
    access = Access.ACT_OVER_WAITING

    def __init__(self, *, failover: bool = True, accept_loss: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.failover, self.accept_loss = failover, accept_loss

    def run_in(self, step_context: StepContext, _arguments: dict[str, Any]) -> object:
        """Run the whole rollback."""
        return run_rollback(step_context, {"skip_failover": not self.failover, "accept_loss": self.accept_loss})


class ExpansionPlanOperator(PlanOperator):
    """Check whether `__consumer_offsets` may be expanded, and plan what would be done; changes nothing. Returns the plan (`core.offsets_topic.expansion_plan`).

    Refused with names and the way on if not; also if another run owns the cluster. The run's params are those of `ExpandOffsetsTopicOperator`.

    :param cluster_file: path of the cluster file. (templated)
    :param plan: fingerprint of the plan that was reviewed; another plan is refused (H16). Empty: any. (templated)
    """

    access = Access.ASK

    def build_arguments(self, context: Context) -> dict[str, Any]:
        """The run's terms."""
        return _read_terms(context)

    def run_in(self, step_context: StepContext, arguments: dict[str, Any]) -> object:
        """Plan the expansion, or its undo."""
        from airflow_provider_kmigrate.steps.expansion import plan_from_here

        target, undo = parse_expansion_terms(arguments)
        return self.keep_plan(step_context, plan_from_here(step_context, target, undo=undo))


class ExpandOffsetsTopicOperator(ClusterOperator):
    """Expand `__consumer_offsets` in one task and without asking, so that no group is split or loses offsets (KIP-895).

    It waits until the groups that move are stopped, saves and deletes their offsets, expands the topic, restarts every broker, imports the
    offsets, and waits until the groups that had members consume again. Killed and run again, it observes the cluster and does the rest.
    Never deferred.

    :param partitions: how many the topic will have: a multiple of what brokers use; or, if partitions were added by hand and no broker has restarted, what it has. (templated)
    :param undo: import the offsets under the old count instead; only before the first broker has restarted.
    """

    template_fields: Sequence[str] = (*StepOperator.template_fields, "partitions")
    ui_color = _RESTARTING

    def __init__(self, *, partitions: int | str, undo: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.partitions, self.undo = partitions, undo

    def run_in(self, step_context: StepContext, _arguments: dict[str, Any]) -> object:
        """Run the whole expansion, then release the cluster."""
        done = run_plan(step_context, EXPANSION, {"partitions": self.partitions, "undo": self.undo})
        step_context.fence.release()
        return done


class RepairOffsetsOperator(StepOperator):
    """Leave one copy of each commit in `__consumer_offsets`: the newest by commit time, in its group's partition.

    For a topic whose brokers have used different counts of its partitions (KIP-895). All brokers must use its count by now (K01). Groups
    that have copies must be stopped: it waits for that (K79). What time does not settle is refused with all values (K90); `decisions`,
    also those of a run's conf, settle it. Afterwards every broker must restart.

    :param decisions: group -> `topic-partition` -> the offset that is right; None: it stays removed. (templated)
    """

    template_fields: Sequence[str] = (*StepOperator.template_fields, "decisions")
    kind = "repair offsets"

    def __init__(self, *, decisions: Mapping[str, Mapping[str, int | None]] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.decisions = dict(decisions or {})

    def run_in(self, step_context: StepContext, arguments: dict[str, Any]) -> object:
        """Repair, then release the cluster."""
        done = super().run_in(step_context, arguments)
        step_context.fence.release()
        return done

    def build_arguments(self, context: Context) -> dict[str, Any]:
        """The decisions: this operator's, or the run's."""
        return {"decisions": self.decisions or context["params"].get("decisions") or {}}


class WatchOperator(ClusterOperator):
    """Report where the cluster stands and whether a rollback is assured; fail on alarms, and on what does not pass by itself.

    Changes nothing and takes no lock. Nodes that do not respond or are out of ISRs, a rollback that is not assured and a
    finalization that is incomplete are tried again as often as the task's `retries` say; everything else fails it at once. Leaves
    the verdict as XComs, as `ReadinessOperator` does, also if it fails.

    :param cluster_file: path of the cluster file. (templated)
    """

    ui_color = _OBSERVING
    access = Access.WATCH
    _ti: Any
    _alarms: Alarms
    _spec: ClusterSpec
    _whole = False  # everything that alarms depend on was read
    _hidden: Sequence[Reason] = ()  # what follows from a cause that is reported

    def execute(self, context: Context) -> Any:
        """Watch once, and report each alarm that has begun or ended since the last watch."""
        from airflow_provider_kmigrate.notifications.messages import load_alarms

        self._ti = context["ti"]
        self._spec = load(self.cluster_file)
        self._alarms = load_alarms(self._spec.name)
        try:
            text = super().execute(context)
        except AirflowFailException:  # `refused` has reported it
            raise
        except Exception as error:  # of whatever kind, and raised again: a watch that fails must be heard of
            if self._ti.try_number > (self.retries or 0):  # until then it may be a node that restarts
                self._report_failure(context, error)
            raise
        self._report_alarms(context, ())
        return text

    def handle_refusal(self, context: Context, error: KMigrateError) -> None:
        """Report what the watch fails with."""
        self._report_failure(context, error)

    def _report_failure(self, context: Context, error: Exception) -> None:
        """Report the reasons of an error. Without reasons it is the watch itself that fails (T09), and no alarm ends."""
        reasons = getattr(error, "reasons", ())
        self._whole = self._whole and bool(reasons)
        what = str(error)[:_SHOWN] if isinstance(error, KMigrateError) else f"{type(error).__name__}; its log has the error."
        self._report_alarms(context, reasons or (Reason("T09", f"The watch failed before it could judge the cluster: {what}"),))

    def run_in(self, step_context: StepContext, _arguments: dict[str, Any]) -> object:
        """Observe once, and judge alarms and deadlines."""
        from airflow_provider_kmigrate.core.monitoring.watch import (
            can_show_all_alarms,
            has_no_controller,
            no_controller_reasons,
            stalled_owner_reasons,
        )
        from airflow_provider_kmigrate.notifications.messages import save_alarms
        from airflow_provider_kmigrate.steps.waits import Assessment, read_owner, run_watch
        from airflow_provider_kmigrate.utils.dag_runs import why_run_stalled

        def find_alarm_reasons(assessment: Assessment) -> tuple[Reason, ...]:
            view, now = assessment.view, assessment.acts.now
            self._whole = can_show_all_alarms(view)
            alarms = self._alarms.with_stage(deadline_key(position_of(view).phase, self._alarms.stage), now)
            self._alarms = alarms.with_controller(now, missing=has_no_controller(view))
            save_alarms(self._spec.name, self._alarms)  # a retry of this task must know since when
            since = self._alarms.no_controller_since
            stage = overdue_reasons(self._alarms.stage, self._alarms.stage_since, step_context.spec.deadlines, now)
            stage = tuple(replace(reason, certain=True) for reason in stage)
            owner = read_owner(step_context)
            if owner is not None:
                why, certain = why_run_stalled(self._ti, owner.run)
                owner = replace(owner, why=why, certain=certain)
            stands = stalled_owner_reasons(owner, assessment.acts) if owner else ()
            return (*stage, *stands, *no_controller_reasons(view, assessment.acts, now if since is None else since))

        def set_hidden_reasons(reasons: Sequence[Reason]) -> None:
            self._hidden = tuple(reasons)

        self._export_requests(step_context)
        return run_watch(
            step_context,
            partial(_push_readiness, self._ti),
            find_alarm_reasons,
            set_hidden_reasons,
            partial(self.status.offer_assessment, step_context),
        )

    def _export_requests(self, step_context: StepContext) -> None:
        """Send whether a request for an approval waits for an approver; nothing if Airflow does not say."""
        from airflow_provider_kmigrate.core.monitoring.gauges import request_gauges
        from airflow_provider_kmigrate.core.monitoring.journal_lines import list_open_requests, parse_lines
        from airflow_provider_kmigrate.steps.journal import read_journal_lines
        from airflow_provider_kmigrate.utils.dag_runs import is_asking

        requests = list_open_requests(parse_lines(read_journal_lines(step_context.journals)).lines)
        asking = [is_asking(self._ti, request.run, request.task) for request in requests]
        if None not in asking:
            asked_at = [request.asked_ms / 1000 for request, waits in zip(requests, asking, strict=True) if waits]
            step_context.export(request_gauges(asked_at, step_context.clock.now()))

    def _report_alarms(self, context: Context, reasons: Sequence[Reason]) -> None:
        """Report what has begun and ended. A watch that could not read everything ends no alarm."""
        from airflow_provider_kmigrate.notifications.messages import report_alarms

        report_alarms(context, self._spec, self._alarms.compare(reasons, complete=self._whole, hidden=self._hidden), time.time())


class LeftoversOperator(PlanOperator):
    """Plan a clean-up: list what migrations and rollbacks have left behind, and what may be removed. Changes nothing and takes no lock.

    Returns the plan (`core.migration.leftovers.plan_clean_up`).

    :param plan: fingerprint of the plan that was reviewed; another plan is refused (H16). Empty: any. (templated)
    """

    access = Access.WATCH

    def run_in(self, step_context: StepContext, _arguments: dict[str, Any]) -> object:
        """Plan the clean-up."""
        from airflow_provider_kmigrate.steps.clean_up import plan_from_here

        return self.keep_plan(step_context, plan_from_here(step_context))


class CleanUpOperator(ClusterOperator):
    """Remove what migrations and rollbacks have left behind, if it is exactly what `listed_by` returned; nothing else ever removes it.

    :param listed_by: id of the `LeftoversOperator` whose list was approved.
    :param approved_by: id of the `ApproveCleanUpOperator` of the same run; its answer must be `Remove`.
    """

    ui_color = _RESTARTING
    answer = REMOVE

    def __init__(self, *, listed_by: str, approved_by: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.listed_by, self.approved_by = listed_by, approved_by

    def build_arguments(self, context: Context) -> dict[str, Any]:
        """The approved list."""
        return {"listed": context["ti"].xcom_pull(task_ids=self.listed_by)}

    def run_in(self, step_context: StepContext, arguments: dict[str, Any]) -> object:
        """Remove what the list names."""
        from airflow_provider_kmigrate.steps.clean_up import run_clean_up

        return run_clean_up(step_context, arguments["listed"])


def _read_terms(context: Context) -> dict[str, Any]:
    params: Any = context.get("params") or {}
    return {name: params[name] for name in _TERMS if name in params}


def _as_json_values(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON values: a trigger gets them, too."""
    return {name: str(value) if isinstance(value, BrokerMode) else value for name, value in arguments.items()}
