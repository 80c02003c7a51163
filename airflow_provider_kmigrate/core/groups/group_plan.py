"""What a migration of consumer groups, a cutover or their rollback would do, in the one form of every plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, GroupSpec, GroupWay
from airflow_provider_kmigrate.core.groups.move import Goal
from airflow_provider_kmigrate.core.migration.plan_document import (
    CHOSEN_GROUPS,
    PlannedStage,
    PlannedTask,
    PlanOf,
    PlanParts,
    Seconds,
)
from airflow_provider_kmigrate.core.migration.plan_facts import PlanFacts, build_plan, describe_approval, hash_own_inputs

_SWITCHES: Final = 2  # of each instance: to a migrating consumer, and to a Kafka consumer


def plan_groups(facts: PlanFacts, texts: Mapping[str, str], goal: Goal | None) -> dict[str, Any]:
    """The plan as JSON values. `texts`: what `cutover.describe_plan` says of each group, in order; `goal` None: migration."""
    groups = {name: next(group for group in facts.spec.groups if group.name == name) for name in texts}
    parts = PlanParts(
        PlanOf.GROUPS,
        tuple(_plan_stage(groups[name], text, goal) for name, text in texts.items()),
        {**hash_own_inputs(facts.spec, facts.made_by), CHOSEN_GROUPS: ", ".join((*texts, str(goal or "migration")))},
        describe_approval(facts.spec, 0 if goal is None and not any(group.by_hand for group in groups.values()) else 1),
        _describe_rollback(facts.spec, goal),
        steps=tuple(f"{name}: {text}" for name, text in texts.items()),
        consequences=() if texts else ("The cluster file names no consumer group.",),
        uncounted=tuple(_list_uncounted(groups, goal)),
        stalls=tuple(_list_stalls(groups, goal)),
        not_compared=tuple(_list_not_compared(facts.spec, texts)),
    )
    return build_plan(facts, parts)


def _plan_stage(group: GroupSpec, text: str, goal: Goal | None) -> PlannedStage:
    safe_name = group.name.replace(".", "_")
    task_id = f"{safe_name}.check" if goal is None else f"rollback_{safe_name}"
    return PlannedStage(group.name, (PlannedTask(task_id, text, seconds=_limit_seconds(group, goal)),))


def _limit_seconds(group: GroupSpec, goal: Goal | None) -> Seconds:
    """Of a group: the time that its canaries bake, and at most as long as its steps wait."""
    if group.way is GroupWay.CUTOVER:
        bake, canaries = (group.bake, 2) if group.side_by_side and goal is None else (0.0, 0)
        shortest = group.quiet + bake
        return Seconds(shortest, shortest, shortest + (2 + canaries) * group.switch_timeout)
    bakes = group.bake * _SWITCHES if goal is None else 0.0
    return Seconds(bakes, bakes, bakes + _SWITCHES * len(group.instances) * group.switch_timeout)


def _describe_rollback(spec: ClusterSpec, goal: Goal | None) -> str:
    if goal is not None:
        return "A rollback of groups can be ended at any time; the groups may migrate again once a run releases them (`release_groups`)."
    return (
        f"Groups can be rolled back from any state, to ZooKeeper consumers until the last broker leaves ZooKeeper mode: start"
        f" kmigrate_consumers_rollback__{spec.name}."
    )


def _list_uncounted(groups: Mapping[str, GroupSpec], goal: Goal | None) -> Iterator[str]:
    """What the durations leave out."""
    yield "not known: how long each instance takes to stop and to start; a step waits for at most `switch_timeout`"
    if windows := sorted({group.window for group in groups.values() if group.window and goal is None}):
        yield f"the time until a window opens ({', '.join(windows)} UTC)"
    if any(group.by_hand for group in groups.values()):
        yield "the people who stop and start the instances of groups that are cut over by hand"


def _list_stalls(groups: Mapping[str, GroupSpec], goal: Goal | None) -> Iterator[str]:
    """What applications notice."""
    moved = [name for name, group in groups.items() if group.way is not GroupWay.CUTOVER]
    at_once = [name for name, group in groups.items() if group.way is GroupWay.CUTOVER]
    if moved:
        yield f"{', '.join(moved)}: one instance restarts at a time, and each restart rebalances the group twice"
    if beside := [name for name in at_once if groups[name].side_by_side and goal is None]:
        yield f"{', '.join(beside)}: records are processed twice while the canary runs beside the old version"
    if at_once:
        yield f"{', '.join(at_once)}: no instance runs between the stop of all and their start"
    if goal is not Goal.KAFKA_MODE and moved:
        yield "at the change of the mode each partition pauses until its new owner has it"


def _list_not_compared(spec: ClusterSpec, names: Mapping[str, str]) -> Iterator[str]:
    """What is not compared, not proven or not planned."""
    if spec.audit is None:
        yield "records: nothing but commits shows whether one was skipped or read twice: the cluster file has no section `audit`"
    if others := [group.name for group in spec.groups if group.name not in names]:
        yield f"groups of the cluster file that this run leaves out: {', '.join(others)}"
    yield "groups that the cluster file does not name, and clients that commit to ZooKeeper without being registered"
