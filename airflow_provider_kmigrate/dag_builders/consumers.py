"""The DAGs that migrate consumer groups off ZooKeeper's coordination (KIP-125), and roll them back.

One group after another, by waves; in a group one instance after another, the first of each kind as a canary. After a failed task
none of the later ones starts. A verdict of FAIL, a failed mode switch, and a group that starves after it, roll the group back to
its last sound state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from airflow.sdk import DAG, BaseOperator, Param, TaskGroup, TriggerRule, chain

from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, GroupSpec, GroupWay
from airflow_provider_kmigrate.core.groups.move import Goal
from airflow_provider_kmigrate.core.member.group_seen import MemberKind
from airflow_provider_kmigrate.core.member.registration import Mode
from airflow_provider_kmigrate.core.migration.plan_document import PlanOf
from airflow_provider_kmigrate.dag_builders import audit
from airflow_provider_kmigrate.dag_builders.chaining import (
    AFTER_SKIPS,
    ASKED_WITH_PLAN,
    GROUPS_MOVED,
    RETRIED,
    UNPAUSED,
    approval_param,
    approved_task_arguments,
    cluster_asset,
    cluster_dag,
    plan_param,
)
from airflow_provider_kmigrate.dag_builders.task_docs import render_group_task_page
from airflow_provider_kmigrate.operators.approval import ApproveCutoverOperator, ApproveGroupsRollbackOperator, approval_arguments
from airflow_provider_kmigrate.operators.groups import (
    CheckGroupOperator,
    CutOverGroupOperator,
    GroupPlanOperator,
    GroupsDoneOperator,
    GroupsMovedOperator,
    GroupStepOperator,
    RollbackGroupsOperator,
    SetModeOperator,
    SwitchInstanceOperator,
)
from airflow_provider_kmigrate.sensors.waits import WindowSensor

_DOC = """\
### {name}: consumer groups off ZooKeeper

Moves the consumer groups of the cluster file from ZooKeeper's coordination to Kafka's (KIP-125), live, instance by instance, before the
brokers of cluster `{cluster_id}` leave ZooKeeper. Groups: {groups}.

| task | what happens | done when |
| --- | --- | --- |
| check | the group is scanned, twice | nothing blocks it |
| to_migrating | each instance restarts as a migrating consumer; the first one bakes | the group is stable |
| mode_kafka | `migration/mode` says `kafka` | every member reports it and is settled |
| to_kafka | each instance restarts as a Kafka consumer; the first one bakes | the group is stable |
| approve | of a group that people cut over `by_hand`: an operator confirms that they are ready | answered |
| cutover | of a group of `way: cutover`, instead of the three above: all instances stop, offsets are copied, the new version starts | every partition makes progress |
| clean_up | the mode and empty folders in ZooKeeper are deleted | gone; the last offsets stay |
| groups_moved | updates the asset `kmigrate://{name}/groups-moved`; `kmigrate_zk_to_kraft__{name}` comes after it | no group uses ZooKeeper, but for `later_groups`; else it is skipped |

A canary that makes its group worse is rolled back alone. `rollback_*` rolls the group back after a verdict of FAIL, or if the group does not
settle in the new mode, or stops committing. `kmigrate_consumers_rollback__{name}` rolls groups back by hand, from any state. To stop everything: Variable `kmigrate_stop__{name}`.
A run with conf `{{"wave": 1}}` moves that wave only. Groups that were moved are skipped, so a schedule continues where it stopped.
A group that was rolled back stops the later groups (K69) until the operator starts a run with `{{"release_groups": ["<group>"]}}`.
"""

_PLANNED = {"plan_task": "plan", "plan_of": PlanOf.GROUPS}
_REVIEWED = "{{ params.plan or '' }}"
_ROLLBACK_DOC = """\
### {name}: roll consumer groups back

Rolls consumer groups back from any state, instance by instance; a group of `way: cutover` at once, to `zookeeper_consumers` only. Kafka consumers become migrating consumers again, the mode becomes
`zookeeper`, offsets that only Kafka has are copied, and migrating consumers become ZooKeeper consumers.

| goal | the groups end with |
| --- | --- |
| zookeeper_consumers | ZooKeeper consumers, as before the migration |
| zookeeper_mode | migrating consumers, coordinated through ZooKeeper |
| kafka_mode | migrating consumers, coordinated through Kafka |
"""


def build(spec: ClusterSpec) -> DAG | None:
    """The DAG `kmigrate_consumers__<cluster>`, on the file's `groups_schedule`; None for a file without groups."""
    if not spec.groups:
        return None
    groups = sorted(spec.groups, key=lambda group: group.wave)
    names = [group.name for group in groups]
    with cluster_dag(
        spec,
        "kmigrate_consumers",
        _DOC.format(name=spec.name, cluster_id=spec.cluster_id, groups=", ".join(names)),
        render_group_task_page,
        tags=["consumers"],
        schedule=spec.groups_schedule or None,
        params={
            "plan": plan_param("groups"),
            "wave": _wave_param(groups),
            "release_groups": _release_groups_param(names),
            **(
                {"approve_cutover": approval_param(spec, "Confirm cutovers by hand beforehand", ASKED_WITH_PLAN)}
                if any(group.by_hand for group in groups)
                else {}
            ),
        },
        default_args=RETRIED,
    ) as dag:
        before: BaseOperator = GroupPlanOperator(cluster_file=spec.path, task_id="plan", groups=names, retries=0, plan=_REVIEWED)
        for group in groups:
            first, last = _build_group(spec, group)
            before.set_downstream(first)
            before = last
        moved = GroupsMovedOperator(
            cluster_file=spec.path, task_id="groups_moved", outlets=[cluster_asset(spec, GROUPS_MOVED)], retries=4
        )
        chain(before, GroupsDoneOperator(cluster_file=spec.path, task_id="done", **AFTER_SKIPS), moved)
    return dag


def _build_group(spec: ClusterSpec, group: GroupSpec) -> tuple[BaseOperator, BaseOperator]:
    """One group's tasks; returns the first and the last of its chain."""
    with TaskGroup(group.name.replace(".", "_")):
        # the group before may have been skipped; a window skipped with it would not hold this group back
        window_sensors = (
            [WindowSensor(task_id="window", window=group.window, **_group_arguments(spec, group))] if group.window else []
        )
        group_tasks = [
            *window_sensors,
            CheckGroupOperator(task_id="check", **_group_arguments(spec, group)),
            *(_cut_over(spec, group) if group.way is GroupWay.CUTOVER else _move_instances(spec, group)),
            GroupStepOperator(task_id="clean_up", step="clean up", deferrable=True, **_PLANNED, **_group_arguments(spec, group)),
        ]
        chain(*group_tasks)
    return group_tasks[0], group_tasks[-1]


def _move_instances(spec: ClusterSpec, group: GroupSpec) -> Iterator[BaseOperator]:
    """One instance after another, as migrating consumers between."""
    mode = SetModeOperator(
        cluster_file=spec.path,
        task_id="mode_kafka",
        groups=[group.name],
        mode=Mode.KAFKA,
        wave=group.wave,
        **_PLANNED,
        **AFTER_SKIPS,
        **audit.start_time_arguments(spec),
    )
    yield from _switch_all_instances(spec, group, MemberKind.MIGRATING, Goal.ZOOKEEPER_CONSUMERS)
    yield from _watch_and_audit(spec, group, "mode_kafka", Goal.ZOOKEEPER_MODE, mode)
    yield from _switch_all_instances(spec, group, MemberKind.KAFKA, Goal.KAFKA_MODE)
    yield from _watch_and_audit(spec, group, "to_kafka", Goal.KAFKA_MODE)


def _cut_over(spec: ClusterSpec, group: GroupSpec) -> list[BaseOperator]:
    """All instances at once; the step rolls itself back, the task beside it what the watch or the audit finds later."""
    arguments = {**_group_arguments(spec, group), **audit.start_time_arguments(spec), "deferrable": group.side_by_side}
    tasks = _watch_and_audit(
        spec, group, "cutover", Goal.ZOOKEEPER_CONSUMERS, CutOverGroupOperator(task_id="cutover", **_PLANNED, **arguments)
    )
    if not group.by_hand:
        return tasks
    asked = ApproveCutoverOperator(
        task_id="approve", group=group.name, seconds=group.switch_timeout, **approval_arguments(spec, "plan")
    )
    return [asked, *tasks]  # skipped where `check` is: the group has moved, or is of another wave


def _group_arguments(spec: ClusterSpec, group: GroupSpec) -> dict[str, Any]:
    """Arguments of each task of a group."""
    return {"cluster_file": spec.path, "group": group.name, "wave": group.wave, **AFTER_SKIPS}


def _switch_all_instances(spec: ClusterSpec, group: GroupSpec, target: MemberKind, goal: Goal) -> list[BaseOperator]:
    """The switch of every instance, the first as a canary with an audit after it."""
    canary, *rest = group.instances
    canary_switch = _switch_instance(spec, group, canary.name, target, bake=True)
    name = f"canary_{target}"
    compared, mixed = audit.canary_comparison(spec, group), target is MemberKind.MIGRATING  # ZooKeeper consumers write no events
    gate = audit.group_gate(spec, group.name, name, after=canary_switch.task_id, canary=compared, mixed=mixed)
    if gate:
        _add_group_rollback(spec, group, name, goal, [], gate=gate)
        chain(*gate)
    return [canary_switch, *gate, *(_switch_instance(spec, group, instance.name, target) for instance in rest)]


def _switch_instance(
    spec: ClusterSpec, group: GroupSpec, instance: str, target: MemberKind, *, bake: bool = False
) -> BaseOperator:
    return SwitchInstanceOperator(
        task_id=f"to_{target}_{instance}".replace(".", "_"),
        instance=instance,
        target=target,
        bake=bake,
        sync_for=group.switch_timeout + 1,
        deferrable=True,
        **_PLANNED,
        **_group_arguments(spec, group),
        **(audit.start_time_arguments(spec) if bake else {}),
    )


def _watch_and_audit(spec: ClusterSpec, group: GroupSpec, name: str, goal: Goal, *change: BaseOperator) -> list[BaseOperator]:
    """A `change` of the whole group, the watch and the audit after it, and the rollback from any of them.

    A watch that found something is not retried anyway; one whose worker died is, or its group would be rolled back for nothing.
    """
    watch_arguments = {**_group_arguments(spec, group), **audit.start_time_arguments(spec)}
    watch = GroupStepOperator(task_id=f"watch_{name}", step="watch group", deferrable=True, **watch_arguments)
    first_task = [*change, watch][0]
    gate = audit.group_gate(spec, group.name, name, after=first_task.task_id)
    _add_group_rollback(spec, group, name, goal, [*change, watch], gate=gate)
    return [*change, watch, *gate]


def _add_group_rollback(
    spec: ClusterSpec, group: GroupSpec, name: str, goal: Goal, steps: Sequence[BaseOperator], *, gate: Sequence[BaseOperator]
) -> None:
    """A task outside the chain: it rolls back if one of `steps` found the group worse, or the audit in `gate` says FAIL.

    An audit that failed because Spark was unavailable, or stayed INCONCLUSIVE, stops the chain and rolls nothing back, as in a
    migration.
    """
    rollback = RollbackGroupsOperator(
        cluster_file=spec.path,
        task_id=f"rollback_{name}",
        groups=[group.name],
        goal=goal,
        only_after=[task.task_id for task in steps],
        verdict=audit.verdict_path(spec, f"{group.name}/{name}") if gate else "",
        trigger_rule=TriggerRule.ONE_FAILED,
    )
    for task in (*steps, *gate):
        task.set_downstream(rollback)


def build_rollback(spec: ClusterSpec) -> DAG | None:
    """The DAG `kmigrate_consumers_rollback__<cluster>`, by hand; None for a file without groups."""
    if not spec.groups:
        return None
    groups = [group.name for group in sorted(spec.groups, key=lambda group: -group.wave)]
    with cluster_dag(
        spec,
        "kmigrate_consumers_rollback",
        _ROLLBACK_DOC.format(name=spec.name),
        render_group_task_page,
        tags=["consumers"],
        max_active_tasks=1,
        params=_rollback_params(spec, groups),
        default_args=RETRIED,
        **UNPAUSED,
    ) as dag:
        plan = GroupPlanOperator(cluster_file=spec.path, task_id="plan", groups=groups, rollback=True, retries=0, plan=_REVIEWED)
        approve = ApproveGroupsRollbackOperator(task_id="approve", **approval_arguments(spec, "plan"))
        rollbacks = [
            RollbackGroupsOperator(
                cluster_file=spec.path,
                task_id=f"rollback_{name}".replace(".", "_"),
                groups=[name],
                priority_weight=weight,
                **_PLANNED,
                **approved_task_arguments(),
            )
            for weight, name in enumerate(reversed(groups), 1)
        ]
        # no group waits for another one's failed rollback; but one acts at a time, since each task that acts fences the one before
        chain(plan, approve, rollbacks, GroupsDoneOperator(cluster_file=spec.path, task_id="done", **AFTER_SKIPS))
    return dag


def _wave_param(groups: Sequence[GroupSpec]) -> Param:
    waves = sorted({group.wave for group in groups})
    return Param(
        None,
        type=["null", "integer"],
        title="Only this wave",
        description=f"Empty: all of them, one after another. Waves of the file: {', '.join(map(str, waves))}.",
    )


def _group_names_param(groups: Sequence[str], title: str, description: str) -> Param:
    items = {"type": "string"}
    return Param(None, type=["null", "array"], items=items, examples=list(groups), title=title, description=description)


def _release_groups_param(groups: Sequence[str]) -> Param:
    text = "Groups that were rolled back and may migrate again. Any other group that was rolled back is refused (K69)."
    return _group_names_param(groups, "Release groups", text)


def _rollback_params(spec: ClusterSpec, groups: Sequence[str]) -> dict[str, Param]:
    return {
        "plan": plan_param("groups"),
        "goal": Param(str(Goal.ZOOKEEPER_CONSUMERS), enum=[str(goal) for goal in Goal], title="Roll back to"),
        "groups": _group_names_param(groups, "Only these groups", "Empty: all groups of the file."),
        "approve_rollback": approval_param(spec, "Approve it beforehand", ASKED_WITH_PLAN),
    }
