"""The operators of a migration, its rollback and `__consumer_offsets`: one for any step of a plan, and named ones for DAGs of your own."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, DownstreamTasksSkipped

from airflow_provider_kmigrate.core import readiness
from airflow_provider_kmigrate.core.cluster import ClusterSpec
from airflow_provider_kmigrate.core.decision import Done
from airflow_provider_kmigrate.core.gates import MET
from airflow_provider_kmigrate.core.migration.controllers import may_begin, too_old
from airflow_provider_kmigrate.core.migration.waits import nothing_left, overdue, stage_of, what_is_left
from airflow_provider_kmigrate.core.model import BrokerMode, Fields, Reason
from airflow_provider_kmigrate.core.phase import where
from airflow_provider_kmigrate.core.plan import EXPANSION, MIGRATION, ROLLBACK, after_approval
from airflow_provider_kmigrate.core.readiness import Readiness
from airflow_provider_kmigrate.core.rollback import NOTHING
from airflow_provider_kmigrate.exceptions import KMigrateError, Refused
from airflow_provider_kmigrate.hooks.step_context import JUDGED_AT, RESTS_ON, folder, require_rollback_possible
from airflow_provider_kmigrate.operators.step import FINALIZE, REMOVE, ROLL_BACK, StepOperator
from airflow_provider_kmigrate.spec import load
from airflow_provider_kmigrate.steps.catalog import STEPS, postponed, postponing, run_plan, run_rest, run_rollback, terms_of
from airflow_provider_kmigrate.steps.run import StepContext, require_gate

if TYPE_CHECKING:
    from airflow_provider_kmigrate.core.watch import Alarms

IN_ONE_PROCESS = frozenset(
    {
        "finalize",
        "restore flag",
        "controller failover",
        "equivalent after failover",
        "handover",
        "zookeeper leads",
        "wipe",
        "export offsets",
        "delete groups",
        "import offsets",
        "verify offsets",
    }
)
"""Steps that are never deferred: `controller failover` remembers the epoch before it, no time must pass while no controller is active,
and the triggerer's machine need not have the backup with exported offsets.
"""

_ENDS = {MIGRATION[-1].kind, ROLLBACK[-1].kind, EXPANSION[-1].kind}
_FINALIZES = {step.kind for step in after_approval(MIGRATION)}
_ROLLS_BACK = {step.kind for step in ROLLBACK} - {step.kind for step in MIGRATION}
_TERMS = (
    "skip_failover",
    "accept_loss",
    "accept_split_groups",
    "leave_broker",
    "partitions",
    "undo",
)  # of the conf of a run: a rollback's, an expansion's
_OPEN = "The rollback is possible: every original that it needs is in the backup, with its hash. It would now:"
_SHOWN = 1_000  # characters of an error in a message
_OBSERVING = "#e6e6fa"
_RESTARTING = "#fdf0cd"
_FINAL = "#f4d7d7"


class MigrationStepOperator(StepOperator):
    """Run one step of the migration or of the rollback, by its name in `core.plan`.

    A node that the plan postpones (the ZooKeeper controller, the active KRaft controller) is skipped, and run by the task of the same step
    without a node. The last step of a plan releases the cluster for other runs. The params `skip_failover`,
    `accept_loss`, `accept_split_groups` and `leave_broker` of the run are a rollback's terms, `partitions` and `undo` an expansion's.

    :param step: name of the step: a key of `steps.catalog.STEPS`.
    :param step_kwargs: arguments of the step, such as `{"node": 1, "target": "kraft"}`; without `node` it is run on whatever is left.
        (templated)
    :param skip_if: name of a param of the run that skips this task.
    """

    template_fields: Sequence[str] = (*StepOperator.template_fields, "step_kwargs")

    def __init__(self, *, step: str, step_kwargs: Mapping[str, Any] | None = None, skip_if: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if step not in STEPS:
            raise ValueError(f"There is no step {step!r}; there are {', '.join(sorted(STEPS))}.")
        self.kind, self.step_kwargs, self.skip_if = step, _plain(step_kwargs or {}), skip_if
        self.over_waiting = step in _ROLLS_BACK
        self.deferrable = self.deferrable and step not in IN_ONE_PROCESS
        if "answer" not in kwargs:
            self.answer = FINALIZE if step in _FINALIZES else ROLL_BACK

    def execute(self, context: Context) -> str:
        """Skip the task if the run's conf sets the param `skip_if`."""
        if self.skip_if and context["params"].get(self.skip_if):
            raise AirflowSkipException(f"The run's conf sets {self.skip_if}.")
        return super().execute(context)

    def arguments(self, context: Context) -> dict[str, Any]:
        """The step's arguments, and the run's terms."""
        return {**_terms(context), **self.step_kwargs}

    def run_in(self, step_context: StepContext, arguments: dict[str, Any]) -> object:
        """Run the step, skip a postponed node, or without `node` run it on whatever is left."""
        if arguments.get("node") is None and postponing(self.kind, arguments):
            return run_rest(step_context, self.kind, arguments)
        if why := postponed(step_context, self.kind, arguments):
            raise AirflowSkipException(why)
        decision = super().run_in(step_context, arguments)
        if isinstance(decision, Done) and self.kind in _ENDS:
            step_context.fence.release()
        return decision


class PreflightOperator(StepOperator):
    """Read everything that decides whether this cluster may be migrated; fail with all blocking findings at once. Changes nothing.

    Returns the findings as JSON: `[{"code", "severity", "seen", "why", "remedy", "source"}, ...]`. The same as a page and as JSON
    (`preflight.page.as_document`) is in `<folder>/preflight/<cluster>/`, of the newest run. If the cluster is finalized already, everything
    behind this task is skipped, whatever its trigger rule, and the run ends well. If it is, but left a broker behind, a flag or an older file,
    nothing is judged: the tasks behind this one do what is left.

    :param cluster_file: path of the cluster file. (templated)
    """

    read_only = True
    ui_color = _OBSERVING

    def run_in(self, step_context: StepContext, _arguments: dict[str, Any]) -> object:
        """Run the preflight and write its page; skip everything behind it on a finalized cluster."""
        from airflow_provider_kmigrate.preflight.page import write
        from airflow_provider_kmigrate.steps.prepare import as_json, run_preflight
        from airflow_provider_kmigrate.steps.run import observe_files

        view = observe_files(step_context, Fields.POSITION)
        if done := nothing_left(view, step_context.spec):
            step_context.say(done)
            behind = sorted(self.get_flat_relative_ids(upstream=False))
            raise DownstreamTasksSkipped(tasks=behind)  # type: ignore[no-untyped-call]
        if left := what_is_left(view, step_context.spec):
            step_context.say(left)
            return "[]"
        place = folder() / "preflight" / step_context.spec.name
        found = run_preflight(step_context, lambda result: self.log.info("The page with all findings: %s", write(result, place)))
        return json.dumps([as_json(finding) for finding in found])


class BackupOperator(StepOperator):
    """Save every broker's original properties file and ZooKeeper's tree, each verified by its hash.

    :param cluster_file: path of the cluster file. (templated)
    """

    ui_color = _OBSERVING

    def run_in(self, step_context: StepContext, _arguments: dict[str, Any]) -> object:
        """Save the originals and ZooKeeper's tree."""
        from airflow_provider_kmigrate.steps.prepare import run_backup

        return run_backup(step_context)


class ProvisionControllersOperator(MigrationStepOperator):
    """Write one controller's file, format its directory with the pinned cluster id, start it with the migration flag.

    :param controller: id of the controller. (templated)
    """

    template_fields: Sequence[str] = (*MigrationStepOperator.template_fields, "controller")

    def __init__(self, *, controller: int | str, **kwargs: Any) -> None:
        super().__init__(**{"step": "provision", **kwargs})
        self.controller = controller

    def arguments(self, context: Context) -> dict[str, Any]:
        """The step's arguments, with the controller."""
        return {**super().arguments(context), "node": self.controller}


class RollBrokerOperator(MigrationStepOperator):
    """Restart one broker into a mode as soon as every partition can spare it, and wait until it is back in every ISR.

    The ZooKeeper controller is skipped while other brokers are left, since each of its restarts costs an election.

    :param target: `migration` or `kraft`. (templated)
    :param broker: id of the broker; None: every broker that is left, the ZooKeeper controller last. (templated)
    """

    template_fields: Sequence[str] = (*MigrationStepOperator.template_fields, "target", "broker")
    ui_color = _RESTARTING

    def __init__(self, *, target: BrokerMode | str, broker: int | str | None = None, **kwargs: Any) -> None:
        super().__init__(**{"step": "roll", **kwargs})
        self.target, self.broker = str(target), broker

    def arguments(self, context: Context) -> dict[str, Any]:
        """The step's arguments, with the broker and its mode."""
        return {**super().arguments(context), "node": self.broker, "target": self.target}


class SoakOperator(MigrationStepOperator):
    """Keep the cluster in dual-write for `policy.min_soak` with every gate healthy; one unhealthy observation and the time begins again.

    From time to time the originals are read again: without them there is no rollback, and the soak fails. The healthy time is kept in the
    task's state store (`StepProgress`): a worker or triggerer that is restarted loses five minutes at most.

    :param cluster_file: path of the cluster file. (templated)
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"step": "soak", **kwargs})

    def execute(self, context: Context) -> str:
        """Check the backup first, then soak."""
        self.meanwhile(context)
        return super().execute(context)

    def meanwhile(self, context: Context) -> None:
        """Fail if this machine's backup allows no rollback any more; the triggerer's machine need not have the backup."""
        try:
            require_rollback_possible("soak in dual-write", self.cluster_file, context)
        except Refused as lost:
            raise AirflowFailException(str(lost)) from None


class FinalizeControllerOperator(MigrationStepOperator):
    """Restart one controller without the migration flag; the active one is skipped while others are left. **No rollback is possible afterwards.**

    The approval may be days old: what it was given on is observed again before each restart.

    :param controller: id of the controller; None: every controller that is left, the active one last. (templated)
    :param evidence: id of the task that returned what both sides store, which must still be so.
    :param readiness: id of the `ReadinessOperator` whose verdict was approved. What it rests on must be the same until kmigrate has taken
        the first flag.
    :param verdict: id of the task that judged the audit. An audit cannot be repeated here, and must not be too old while every controller
        still has its flag.
    """

    template_fields: Sequence[str] = (*MigrationStepOperator.template_fields, "controller")
    ui_color = _FINAL

    def __init__(
        self, *, controller: int | str | None = None, evidence: str = "", readiness: str = "", verdict: str = "", **kwargs: Any
    ) -> None:
        super().__init__(**{"step": "finalize", **kwargs})
        self.controller, self.evidence, self.readiness, self.verdict = controller, evidence, readiness, verdict

    def arguments(self, context: Context) -> dict[str, Any]:
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
        from airflow_provider_kmigrate.core.approval import fingerprint, still_holds

        approved, spec, judged_at = self.approval, step_context.spec, arguments["judged_at"]
        cluster = fingerprint(step_context.observer.observe(Fields.POSITION), spec.cluster_id)
        shown = approved and replace(approved.shown, cluster=cluster)

        def or_refuse() -> str:
            now = step_context.clock.now()
            at = datetime.now(UTC)
            held = still_holds(approved, shown, spec.approvers, at, rehearsal=spec.rehearsal) if shown else MET
            if not held.met or too_old(judged_at, now):
                require_gate(may_begin(step_context.observer.observe(Fields.POSITION), judged_at, now, *held.reasons))
            return ""

        or_refuse()
        return super().run_in(replace(step_context, stopped=lambda: or_refuse() or step_context.stopped()), arguments)


class RollbackPlanOperator(StepOperator):
    """List what a rollback would do now, and check that it could; changes nothing. Returns the steps as Markdown, and what is kept and lost.

    Refused if there is nothing to roll back, or if another run owns the cluster.

    :param in_migration: asked during the migration: a finalization that has happened already is no refusal then.
    """

    ui_color = _OBSERVING
    asks = True

    def __init__(self, *, in_migration: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.in_migration, self.over_waiting = in_migration, not in_migration

    def arguments(self, context: Context) -> dict[str, Any]:
        """The terms of the rollback; none during a migration."""
        return {} if self.in_migration else _terms(context)

    def run_in(self, step_context: StepContext, arguments: dict[str, Any]) -> object:
        """List a rollback's steps. Refuses (G35) terms without effect; outside a migration also if no step is left."""
        from airflow_provider_kmigrate.steps.rollback import planned, planned_in_migration

        terms = terms_of(step_context.spec, arguments)  # refuses what would not be followed
        found = planned_in_migration(step_context) if self.in_migration else planned(step_context, terms)
        if found is None:
            return "The finalization has happened already: no rollback is possible any more. Only its remaining steps are done."
        steps, kept = found
        if not steps and not self.in_migration:
            raise Refused.because(NOTHING)
        listed = "\n".join(f"{number}. {text}" for number, text in enumerate(steps, 1))
        opened = (_OPEN,) if self.in_migration else ()
        return "\n\n".join((*opened, listed, *kept))


class ReadinessOperator(StepOperator):
    """Judge from one observation whether a rollback is assured; changes nothing and takes no lock. Returns the verdict as Markdown.

    Leaves the verdict's hash as XCom `fingerprint`, and what it rests on as `rests_on`. Refused if an operator must act first; what may pass by itself is tried again as
    often as the task's `retries` say. A finalization that has happened already is no refusal.

    :param cluster_file: path of the cluster file. (templated)
    """

    ui_color = _OBSERVING
    read_only = in_one_process = True
    _ti: Any

    def execute(self, context: Context) -> str:
        """Keep the task for its XComs."""
        self._ti = context["ti"]
        return super().execute(context)

    def run_in(self, step_context: StepContext, _arguments: dict[str, Any]) -> object:
        """Judge once; returns the verdict as Markdown."""
        from airflow_provider_kmigrate.steps.waits import require_rollback_assured

        verdict, now = require_rollback_assured(step_context), step_context.clock.now()
        _show(self._ti, verdict, now)
        return readiness.as_markdown(verdict, now)


def _show(ti: Any, verdict: Readiness, now: float) -> None:
    """Leave a verdict as XComs of a task: `readiness` as Markdown, its `fingerprint`, and what it rests on."""
    ti.xcom_push(key="readiness", value=readiness.as_markdown(verdict, now))
    ti.xcom_push(key="fingerprint", value=readiness.fingerprint(verdict))
    ti.xcom_push(key=RESTS_ON, value=dict(verdict.evidence))


class RollbackOperator(StepOperator):
    """Roll a cluster back to ZooKeeper from any phase before finalization, in one task and without asking.

    Both sides are compared before any controller is stopped and again before the handover. Killed and run again, it observes the
    cluster and does the rest. Never deferred.

    :param failover: false leaves out the controller failover that repairs lost dual-writes: only if no controller can be started any more.
    :param accept_loss: the cluster id: continue without what is missing in ZooKeeper. Only together with `failover=False`. (templated)
    """

    template_fields: Sequence[str] = (*StepOperator.template_fields, "accept_loss")
    ui_color = _RESTARTING
    over_waiting = in_one_process = True

    def __init__(self, *, failover: bool = True, accept_loss: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.failover, self.accept_loss = failover, accept_loss

    def run_in(self, step_context: StepContext, _arguments: dict[str, Any]) -> object:
        """Run the whole rollback."""
        return run_rollback(step_context, {"skip_failover": not self.failover, "accept_loss": self.accept_loss})


class ExpansionPlanOperator(StepOperator):
    """Check whether `__consumer_offsets` may be expanded, and list what would be done; changes nothing. Returns Markdown.

    Refused with names and the way on if not; also if another run owns the cluster. The run's params are those of `ExpandOffsetsTopicOperator`.

    :param cluster_file: path of the cluster file. (templated)
    """

    kind = "expansion plan"
    ui_color = _OBSERVING
    asks = in_one_process = True

    def arguments(self, context: Context) -> dict[str, Any]:
        """The run's terms."""
        return _terms(context)


class ExpandOffsetsTopicOperator(StepOperator):
    """Expand `__consumer_offsets` in one task and without asking, so that no group is split or loses offsets (KIP-895).

    It waits until the groups that move are stopped, saves and deletes their offsets, expands the topic, restarts every broker, imports the
    offsets, and waits until the groups that had members consume again. Killed and run again, it observes the cluster and does the rest.
    Never deferred.

    :param partitions: how many the topic will have: a multiple of what brokers use; or, if partitions were added by hand and no broker has restarted, what it has. (templated)
    :param undo: import the offsets under the old count instead; only before the first broker has restarted.
    """

    template_fields: Sequence[str] = (*StepOperator.template_fields, "partitions")
    ui_color = _RESTARTING
    in_one_process = True

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
    in_one_process = True  # only this process knows the log that it read

    def __init__(self, *, decisions: Mapping[str, Mapping[str, int | None]] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.decisions = dict(decisions or {})

    def run_in(self, step_context: StepContext, arguments: dict[str, Any]) -> object:
        """Repair, then release the cluster."""
        done = super().run_in(step_context, arguments)
        step_context.fence.release()
        return done

    def arguments(self, context: Context) -> dict[str, Any]:
        """The decisions: this operator's, or the run's."""
        return {"decisions": self.decisions or context["params"].get("decisions") or {}}


class WatchOperator(StepOperator):
    """Report where the cluster stands and whether a rollback is assured; fail on alarms, and on what does not pass by itself.

    Changes nothing and takes no lock. Nodes that do not respond or are out of ISRs, a rollback that is not assured and a
    finalization that is incomplete are tried again as often as the task's `retries` say; everything else fails it at once. Leaves
    the verdict as XComs, as `ReadinessOperator` does, also if it fails.

    :param cluster_file: path of the cluster file. (templated)
    """

    ui_color = _OBSERVING
    read_only = in_one_process = True
    _ti: Any
    _alarms: Alarms
    _spec: ClusterSpec
    _whole = False  # everything that alarms depend on was read
    _hidden: Sequence[Reason] = ()  # what follows from a cause that is reported

    def execute(self, context: Context) -> str:
        """Watch once, and report each alarm that has begun or ended since the last watch."""
        from airflow_provider_kmigrate.hooks.notify import kept_alarms

        self._ti = context["ti"]
        self._spec = load(self.cluster_file)
        self._alarms = kept_alarms(self._spec.name)
        try:
            text = super().execute(context)
        except AirflowFailException:  # `refused` has reported it
            raise
        except Exception as error:
            if self._ti.try_number > (self.retries or 0):  # until then it may be a node that restarts
                self._fail(context, error)
            raise
        self._report(context, ())
        return text

    def refused(self, context: Context, error: KMigrateError) -> None:
        """Report what the watch fails with."""
        self._fail(context, error)

    def _fail(self, context: Context, error: Exception) -> None:
        """Report the reasons of an error. Without reasons it is the watch itself that fails (T09), and no alarm ends."""
        reasons = getattr(error, "reasons", ())
        self._whole = self._whole and bool(reasons)
        what = str(error)[:_SHOWN] if isinstance(error, KMigrateError) else f"{type(error).__name__}; its log has the error."
        self._report(context, reasons or (Reason("T09", f"The watch failed before it could judge the cluster: {what}"),))

    def run_in(self, step_context: StepContext, _arguments: dict[str, Any]) -> object:
        """Observe once, and judge alarms and deadlines."""
        from airflow_provider_kmigrate.core.watch import has_no_controller, shows_alarms, standing_owner, without_controller
        from airflow_provider_kmigrate.hooks.dag_runs import why_stands
        from airflow_provider_kmigrate.hooks.notify import keep_alarms
        from airflow_provider_kmigrate.steps.waits import Assessment, owner_of, run_watch

        def more(found: Assessment) -> tuple[Reason, ...]:
            view, now = found.view, found.acts.now
            self._whole = shows_alarms(view)
            alarms = self._alarms.at_stage(stage_of(where(view).phase, self._alarms.stage), now)
            self._alarms = alarms.with_controller(now, missing=has_no_controller(view))
            keep_alarms(self._spec.name, self._alarms)  # a retry of this task must know since when
            since = self._alarms.no_controller_since
            stage = overdue(self._alarms.stage, self._alarms.stage_since, step_context.spec.deadlines, now)
            stage = tuple(replace(reason, certain=True) for reason in stage)
            owner = owner_of(step_context)
            if owner is not None:
                why, certain = why_stands(self._ti, owner.run)
                owner = replace(owner, why=why, certain=certain)
            stands = standing_owner(owner, found.acts) if owner else ()
            return (*stage, *stands, *without_controller(view, found.acts, now if since is None else since))

        def hides(reasons: Sequence[Reason]) -> None:
            self._hidden = tuple(reasons)

        return run_watch(step_context, partial(_show, self._ti), more, hides)

    def _report(self, context: Context, seen: Sequence[Reason]) -> None:
        """Report what has begun and ended. A watch that could not read everything ends no alarm."""
        from airflow_provider_kmigrate.hooks.notify import report_alarms

        report_alarms(context, self._spec, self._alarms.observe(seen, complete=self._whole, hidden=self._hidden), time.time())


class LeftoversOperator(StepOperator):
    """List what migrations and rollbacks have left behind, as Markdown; changes nothing and takes no lock.

    :param cluster_file: path of the cluster file. (templated)
    """

    ui_color = _OBSERVING
    read_only = in_one_process = True

    def run_in(self, step_context: StepContext, _arguments: dict[str, Any]) -> object:
        """List what is left."""
        from airflow_provider_kmigrate.steps.clean_up import run_list

        return run_list(step_context)


class CleanUpOperator(StepOperator):
    """Remove what migrations and rollbacks have left behind, if it is exactly what `listed_by` returned; nothing else ever removes it.

    :param listed_by: id of the `LeftoversOperator` whose list was approved.
    """

    ui_color = _RESTARTING
    in_one_process = True
    answer = REMOVE

    def __init__(self, *, listed_by: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.listed_by = listed_by

    def arguments(self, context: Context) -> dict[str, Any]:
        """The approved list."""
        return {"listed": context["ti"].xcom_pull(task_ids=self.listed_by)}

    def run_in(self, step_context: StepContext, arguments: dict[str, Any]) -> object:
        """Remove what the list names."""
        from airflow_provider_kmigrate.steps.clean_up import run_clean_up

        return run_clean_up(step_context, str(arguments["listed"]))


def _terms(context: Context) -> dict[str, Any]:
    params: Any = context.get("params") or {}
    return {name: params[name] for name in _TERMS if name in params}


def _plain(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON values: a trigger gets them, too."""
    return {name: str(value) if isinstance(value, BrokerMode) else value for name, value in arguments.items()}
