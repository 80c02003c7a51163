"""What an expansion of `__consumer_offsets`, or its undo, would do, in the one form of every plan."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from airflow_provider_kmigrate.core.cluster_state.model import Expansion, PropertyChange
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole
from airflow_provider_kmigrate.core.migration import readiness
from airflow_provider_kmigrate.core.migration.coordinator import OFFSETS
from airflow_provider_kmigrate.core.migration.plan import EXPANSION, StepRow
from airflow_provider_kmigrate.core.migration.plan_document import (
    PARTITIONS,
    PlannedTask,
    PlanOf,
    PlanParts,
    SpaceNeed,
)
from airflow_provider_kmigrate.core.migration.plan_facts import (
    BROKERS_VERSION,
    PlanFacts,
    add_restart,
    build_plan,
    describe_approval,
    hash_inputs,
    plan_stages,
)
from airflow_provider_kmigrate.core.migration.roll import why_broker_restarts_last
from airflow_provider_kmigrate.core.offsets_topic.expansion import describe_expansion


def plan_expansion(facts: PlanFacts, expansion: Expansion, *, undo: bool) -> dict[str, Any]:
    """The plan as JSON values."""
    steps, consequences = describe_expansion(facts.view, expansion, undo=undo)
    files = {node.name: facts.view.broker(node.id).files for node in facts.spec.brokers}
    parts = PlanParts(
        PlanOf.EXPANSION,
        plan_stages(facts, EXPANSION, partial(_plan_task, facts, expansion, undo)),
        {**hash_expansion_inputs(facts), PARTITIONS: f"{expansion.new}{', undone' * undo}"},
        describe_approval(facts.spec),
        "Until the first broker restarts it can be undone (`undo`). From the first restart on it can only be completed.",
        "" if undo else f"restart.broker_{facts.spec.brokers[0].id}",
        steps=steps,
        consequences=consequences,
        uncounted=("the time until people have stopped the groups that move, and have started them again",),
        stalls=("the groups that move consume nothing from `moving_groups` until `progress`",),
        space=()
        if undo
        else tuple(
            SpaceNeed(
                name,
                "the properties file and a copy of the former one; new partitions are empty",
                readiness.SPACE_NEEDED,
                of.free,
            )
            for name, of in files.items()
        ),
        not_compared=(
            "records: an expansion touches committed offsets only, and they are compared with brokers and with the log of the topic",
        ),
    )
    return build_plan(facts, parts)


def hash_expansion_inputs(facts: PlanFacts) -> dict[str, str]:
    """What decides what an expansion does -> its hash.

    Its own setting in the originals is no change: it writes it there. It writes no version of the brokers, and its first task saves the backup
    that has that.
    """
    originals = {
        broker: {key: value for key, value in keys.items() if key != OFFSETS.setting} for broker, keys in facts.originals.items()
    }
    inputs = hash_inputs(replace(facts, originals=originals))
    del inputs[BROKERS_VERSION]
    return inputs


def _plan_task(  # noqa: PLR0917 - what a plan binds, then what `plan_stages` gives
    facts: PlanFacts, expansion: Expansion, undo: bool, task: PlannedTask, row: StepRow, node: int | None
) -> PlannedTask:
    task = replace(task, is_done=undo and row.skip_if == "undo")
    if node is None:
        return task
    task = replace(task, node=facts.spec.node(NodeRole.BROKER, node).name)
    keys = facts.view.broker(node).files.properties
    before, after = None if keys is None else keys.get(OFFSETS.setting), str(expansion.new)
    if task.is_done or (keys is not None and before == after):
        return task
    task = replace(task, file=(PropertyChange(OFFSETS.setting, before, after),))
    return add_restart(facts, task, node, why_broker_restarts_last(facts.view, node))
