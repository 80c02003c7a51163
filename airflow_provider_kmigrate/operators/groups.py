"""Operators of consumer groups (KIP-125): migrate and roll back an instance, a cutover, the mode of groups, a watch, a clean-up."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from airflow.sdk import Context

from airflow_provider_kmigrate.airflow_releases import AirflowSkipException
from airflow_provider_kmigrate.core.audit.verdict import AuditOutcome, outcome_of
from airflow_provider_kmigrate.core.cluster_state.decision import Done
from airflow_provider_kmigrate.core.cluster_state.model import Fields
from airflow_provider_kmigrate.core.groups.members import must_roll_back
from airflow_provider_kmigrate.core.groups.move import Goal, has_left_zookeeper, hold_reasons, list_unmoved_groups
from airflow_provider_kmigrate.core.groups.scan import is_other_wave, not_in_file_reasons
from airflow_provider_kmigrate.core.member.group_seen import MemberKind
from airflow_provider_kmigrate.core.member.registration import Mode
from airflow_provider_kmigrate.core.migration.plan import ROLL_BACK, Access, row_of
from airflow_provider_kmigrate.core.shared.text import summarize
from airflow_provider_kmigrate.exceptions import KMigrateError, Refused, Unavailable
from airflow_provider_kmigrate.operators.step import ClusterOperator, PlannedOperator, PlanOperator, StepOperator
from airflow_provider_kmigrate.steps.catalog import build, find_group, parse_choice
from airflow_provider_kmigrate.steps.groups import CheckGroup, ReleaseGroup, plan_from_here
from airflow_provider_kmigrate.steps.run import StepContext, run_step
from airflow_provider_kmigrate.utils.spark_jobs import read_verdict

_EVERY_WAVE = 0
_RELEASE = "release_groups"  # of a run's conf: groups that the operator lets migrate again
_CAUSES = "causes"  # the XCom with what a step was refused for
_NOT_WORSE = (
    "No earlier step found the group worse, and no audit said FAIL: there is no reason to roll the group back. "
    "If a step failed, it could not observe or act, or an operator ended it. If an audit failed, it did not run or stayed "
    "INCONCLUSIVE. Clear it, or roll the group back with the DAG kmigrate_consumers_rollback."
)


class _GroupMigrationOperator(PlannedOperator):
    """An act that migrates groups off ZooKeeper.

    A run whose conf names another `wave` skips it, and so do groups that have left ZooKeeper.

    A group that another run rolled back is refused (K69) until a run's conf names it in `release_groups`, or the command `groups release`
    does.

    :param wave: the wave of the groups; a run for another wave skips the task.
    """

    ui_color = "#e3f0d8"
    _released: frozenset[str] = frozenset()

    def __init__(self, *, wave: int = _EVERY_WAVE, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.wave = wave

    @abstractmethod
    def group_names(self) -> tuple[str, ...]:
        """The groups."""

    @property
    def migrates(self) -> bool:
        """False for the mode of a rollback, which a group that was rolled back may need."""
        return True

    def execute(self, context: Context) -> Any:
        """Skip the task if the run's conf names another wave."""
        if is_other_wave(context["params"].get("wave"), self.wave):
            raise AirflowSkipException(f"This run does not move wave {self.wave}, the wave of {', '.join(self.group_names())}.")
        return super().execute(context)

    def open_step_context(self, context: Context) -> AbstractContextManager[StepContext]:
        """The context of the act; which groups the run releases is known from here on, in a resumed task too."""
        self._released = frozenset(context["params"].get(_RELEASE) or ())
        return super().open_step_context(context)

    def handle_refusal(self, context: Context, error: KMigrateError) -> None:
        """Store the reasons for the task that may roll the group back."""
        context["ti"].xcom_push(_CAUSES, [str(reason.cause) for reason in error.reasons if reason.cause])

    def run_in(self, step_context: StepContext, arguments: dict[str, Any]) -> object:
        """Skip if every group has left ZooKeeper; else release what the run releases, and do the step."""
        groups = [find_group(step_context.spec, name) for name in self.group_names()]
        observed_groups = (
            step_context.observer.observe(Fields.ZOOKEEPER | Fields.GROUP_MEMBERS, groups=self.group_names()).groups or {}
        )
        if all(has_left_zookeeper(observed_groups.get(group.name), group) for group in groups):
            raise AirflowSkipException(f"{', '.join(self.group_names())} has left ZooKeeper already.")
        self.compare_with_plan(step_context)
        for group in groups:
            zk = observed.zk if (observed := observed_groups.get(group.name)) is not None else None
            # once a cutover has begun, one machine that is away must not keep the others from their old version
            must_answer = self.migrates and zk is not None and zk.cutover is None
            step_context.tools.instances.require(group, must_answer=must_answer)
        for group in groups if self.migrates else ():
            if reasons := hold_reasons(observed_groups.get(group.name), step_context.run):
                if group.name not in self._released:
                    raise Refused.because(*reasons)
                run_step(ReleaseGroup(group), step_context)
        return self.run_group_step(step_context, arguments)

    def run_group_step(self, step_context: StepContext, arguments: dict[str, Any]) -> object:
        """The step itself."""
        return super().run_in(step_context, arguments)


class _OneGroupOperator(_GroupMigrationOperator):
    """As `_GroupMigrationOperator`, of one group.

    :param group: name of the group. (templated)
    """

    template_fields: Sequence[str] = (*ClusterOperator.template_fields, "group")

    def __init__(self, *, group: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.group = group

    def group_names(self) -> tuple[str, ...]:
        """The one group."""
        return (self.group,)

    def build_arguments(self, _context: Context) -> dict[str, Any]:
        """The group's name."""
        return {"group": self.group}


class GroupStepOperator(_OneGroupOperator, StepOperator):
    """Run one step of one group of the cluster file, by its name: `watch group` or `clean up`; fail if it finds the group worse.

    :param group: name of the group. (templated)
    :param step: name of the step: a `kind` of `core.migration.plan` with a `step`.
    :param wave: the group's wave; a run for another wave skips the task.
    """

    def __init__(self, *, step: str, **kwargs: Any) -> None:
        if "group" not in row_of(step).takes:
            raise ValueError(f"Step {step!r} is not of one group.")
        self.kind = step
        super().__init__(**kwargs)


class CheckGroupOperator(_OneGroupOperator):
    """Scan a group before anything of it is moved: fail on what blocks it (K30 to K46), and report what else must be known.

    :param group: name of the group. (templated)
    """

    ui_color = "#e6e6fa"

    def run_group_step(self, step_context: StepContext, arguments: dict[str, Any]) -> object:
        """Compare two observations of the group."""
        return run_step(
            CheckGroup(find_group(step_context.spec, arguments["group"]), step_context.tools.topic_settings), step_context
        )


class SwitchInstanceOperator(_OneGroupOperator, StepOperator):
    """Restart one instance of a group as another kind of member, once its group is stable, and wait until it is stable again.

    The rollback is `RollbackGroupsOperator`'s.

    :param instance: name of the instance in the cluster file. (templated)
    :param target: `migrating` or `kafka`. (templated)
    :param bake: watch the group for the file's `bake` afterwards; a canary that makes it worse is rolled back alone, and the task fails.
    """

    template_fields: Sequence[str] = (*_OneGroupOperator.template_fields, "instance", "target")
    kind = "switch"
    ui_color = "#fdf0cd"

    # a worker is held until the instance is back, or the next worker would run its command again
    def __init__(
        self, *, instance: str, target: MemberKind | str, bake: bool = False, sync_for: float = 600.0, **kwargs: Any
    ) -> None:
        super().__init__(sync_for=sync_for, **kwargs)
        self.instance, self.target, self.bake = instance, str(target), bake

    def build_arguments(self, context: Context) -> dict[str, Any]:
        """The group, the instance, its new kind, and whether it bakes."""
        return {**super().build_arguments(context), "instance": self.instance, "target": self.target, "bake": self.bake}


class CutOverGroupOperator(_OneGroupOperator, StepOperator):
    """Cut a group of `way: cutover` over: stop all instances, copy the offsets to Kafka, start the new version.

    With `side_by_side` in the group's entry, one instance runs the new version beside the others first, for the group's `bake`. The task is
    deferred then only, never once all instances stop.
    If anything fails it rolls the group back to its old version, and the task fails with K69. Killed and run again, it goes on from
    where the group is.

    :param group: name of the group. (templated)
    """

    kind = "cutover"
    ui_color = "#fdf0cd"


class SetModeOperator(_GroupMigrationOperator):
    """Set KIP-125's mode of several groups, one after another: exact bytes, version-checked, read back.

    Each is done when every member has reported that mode's epoch and is stable in it. The first that is refused ends the task; the log
    says what is not done then. Never deferred.

    :param cluster_file: path of the cluster file, which lists the groups. (templated)
    :param groups: names of the groups. (templated)
    :param mode: `kafka` or `zookeeper`. (templated)
    :param wave: the groups' wave; a run for another wave skips the task.
    """

    template_fields: Sequence[str] = (*ClusterOperator.template_fields, "groups", "mode")
    ui_color = "#f4d7d7"

    def __init__(self, *, groups: Sequence[str] | str, mode: Mode | str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.groups, self.mode = _as_group_names(groups), str(mode)

    def group_names(self) -> tuple[str, ...]:
        """The groups."""
        return tuple(self.groups)

    @property
    def migrates(self) -> bool:
        """True for the mode `kafka`."""
        return self.mode == Mode.KAFKA

    def run_group_step(self, step_context: StepContext, _arguments: dict[str, Any]) -> object:
        """Set the mode of one group after another; the first failure stops it, and the log says which groups are done."""
        parse_choice(Mode, "mode", self.mode)
        for number, group in enumerate(self.groups):
            try:
                run_step(build(step_context.spec, "mode", {"group": group, "mode": self.mode}), step_context)
            except KMigrateError:
                done, remaining = (", ".join(names) or "none" for names in (self.groups[:number], self.groups[number + 1 :]))
                step_context.say(f"Stopped at group {group}. In {self.mode} mode already: {done}; not changed: {remaining}.")
                raise
        return f"In {self.mode} mode, and settled: {', '.join(self.groups)}."


class RollbackGroupsOperator(PlannedOperator):
    """Roll groups back to a goal from whatever state each is in. Killed and run again, it observes them and does the rest. Never deferred.

    With `only_after` or `verdict` it acts only if one of these tasks of its run has found the group worse (V30), or if the
    audit's verdict in that file is FAIL. Otherwise it is skipped: unknown is no reason to roll a group back, and an administrator decides.
    The run's conf `groups` (a list of names) limits it.

    :param groups: names of the groups. (templated)
    :param goal: `zookeeper_consumers`, `zookeeper_mode` or `kafka_mode` (see `core.groups.move.Goal`); empty: the run's conf `goal`, or
        `zookeeper_consumers`. (templated)
    :param only_after: ids of tasks of the run.
    :param verdict: path of an audit's `verdict.json`. (templated)
    :param approved_by: id of the `ApproveGroupsRollbackOperator` of the same run; its answer must be `Roll back`.
    """

    ui_color = "#fdf0cd"
    answer = ROLL_BACK
    rolls_back = True
    template_fields: Sequence[str] = (*ClusterOperator.template_fields, "groups", "goal", "verdict")

    def __init__(
        self,
        *,
        groups: Sequence[str] | str,
        goal: Goal | str = "",
        only_after: Sequence[str] = (),
        verdict: str = "",
        approved_by: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.groups, self.goal, self.only_after, self.verdict = _as_group_names(groups), str(goal), tuple(only_after), verdict
        self.approved_by = approved_by

    def execute(self, context: Context) -> Any:
        """Skip unless the run names one of these groups and, if `only_after` or `verdict` is set, a fault was found."""
        if (self.only_after or self.verdict) and not (
            _any_found_group_worse(context, self.only_after) or _is_fail_verdict(self.verdict)
        ):
            raise AirflowSkipException(_NOT_WORSE)
        selected_groups = context["params"].get("groups") or self.groups
        if not set(self.groups) & set(selected_groups):
            raise AirflowSkipException(f"This run is for {', '.join(selected_groups)}.")
        return super().execute(context)

    def build_arguments(self, context: Context) -> dict[str, Any]:
        """The goal: this operator's, or the run's."""
        return {"goal": self.goal or context["params"].get("goal") or str(Goal.ZOOKEEPER_CONSUMERS)}

    def run_in(self, step_context: StepContext, arguments: dict[str, Any]) -> object:
        """Roll back one group after another; the first failure leaves the rest as they are."""
        self.compare_with_plan(step_context)
        steps = [
            build(step_context.spec, "roll back group", {"group": group, "goal": arguments["goal"]}) for group in self.groups
        ]
        for step in steps:
            run_step(step, step_context)
        return f"Rolled back to {arguments['goal']}: {', '.join(self.groups)}."


def _as_group_names(groups: Sequence[str] | str) -> tuple[str, ...]:
    return (groups,) if isinstance(groups, str) else tuple(groups)


def _is_fail_verdict(verdict: str) -> bool:
    """True if an audit has left a FAIL there. An absent or unreadable verdict is none."""
    document = read_verdict(verdict) if verdict else None
    with contextlib.suppress(Refused):
        return document is not None and outcome_of(document) is AuditOutcome.FAIL
    return False


def _any_found_group_worse(context: Context, tasks: Sequence[str]) -> bool:
    """True if one of these tasks has failed because of the observed group."""
    if not tasks:
        return False
    ti: Any = context["ti"]
    states = ti.get_task_states(dag_id=context["dag"].dag_id, task_ids=list(tasks), run_ids=[context["run_id"]])
    failed = {task for of_run in states.values() for task, state in of_run.items() if state == "failed"}
    return any(must_roll_back(ti.xcom_pull(task_ids=task, key=_CAUSES) or ()) for task in sorted(failed))


class GroupPlanOperator(PlanOperator):
    """Report where each group stands and what would be done; changes nothing. Returns the plan (`core.groups.group_plan`).

    Fails if the run's conf names groups, or a wave, that the cluster file does not have.

    :param groups: names of the groups. (templated)
    :param rollback: plan the rollback to the run's conf `goal`, not the migration.
    """

    access = Access.WATCH
    template_fields: Sequence[str] = (*PlanOperator.template_fields, "groups")

    def __init__(self, *, groups: Sequence[str] | str, rollback: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.groups, self.rollback = _as_group_names(groups), rollback

    def build_arguments(self, context: Context) -> dict[str, Any]:
        """What the run's conf asks for: goal, groups, wave, released groups."""
        params = context["params"]
        goal = (params.get("goal") or str(Goal.ZOOKEEPER_CONSUMERS)) if self.rollback else None
        groups, released = params.get("groups") or None, params.get(_RELEASE) or ()
        return {"goal": goal, "groups": groups, "wave": params.get("wave"), _RELEASE: list(released)}

    def run_in(self, step_context: StepContext, arguments: dict[str, Any]) -> object:
        """List what the run would do. Refuses names that the file does not have; raises `Unreachable` for an unread group."""
        unknown = not_in_file_reasons(
            step_context.spec.groups, arguments["wave"], [*(arguments["groups"] or ()), *arguments[_RELEASE]]
        )
        if unknown:
            raise Refused.because(*unknown)
        groups = [find_group(step_context.spec, name) for name in self.groups]
        chosen = [group for group in groups if group.name in (arguments["groups"] or self.groups)]
        goal = parse_choice(Goal, "goal", arguments["goal"]) if arguments["goal"] else None
        return self.keep_plan(step_context, plan_from_here(step_context, chosen, goal))


class GroupsDoneOperator(ClusterOperator):
    """Release the cluster for other runs, at the end of a run that moves groups.

    :param cluster_file: path of the cluster file. (templated)
    """

    def run_in(self, step_context: StepContext, _arguments: dict[str, Any]) -> object:
        """Release the cluster."""
        step_context.fence.release()
        return Done("All groups of this run are done; the run releases the cluster.")


class GroupsMovedOperator(ClusterOperator):
    """Succeed once no consumer group keeps the cluster's migration from its first roll; else the task is skipped, and updates no asset.

    :param cluster_file: path of the cluster file. (templated)
    """

    access = Access.WATCH

    def run_in(self, step_context: StepContext, _arguments: dict[str, Any]) -> object:
        """Observe every group once. Raises `Unavailable` if ZooKeeper was not read."""
        spec = step_context.spec
        names = [group.name for group in spec.groups]
        view = step_context.observer.observe(Fields.ZOOKEEPER | Fields.GROUPS | Fields.GROUP_MEMBERS, groups=names)
        if view.zk is None:
            raise Unavailable("ZooKeeper could not be read: whether every group has moved is not known.")
        if unmoved := list_unmoved_groups(view, spec):
            raise AirflowSkipException(
                f"{summarize(unmoved)} must move before cluster {spec.name} does (G21); a later run goes on."
            )
        return f"No consumer group keeps cluster {spec.name} from its migration: run kmigrate_preflight__{spec.name}."
