"""What a rollback of one cluster would do now: each task of its DAG, each line of each file, how long, what is kept and lost.

Its inputs are those of the migration's plan and the terms: a rollback can be reviewed before the migration begins, and has the same
fingerprint on the day that it is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, Controller
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole
from airflow_provider_kmigrate.core.migration import equivalence, readiness, rollback
from airflow_provider_kmigrate.core.migration.gates import leaders_can_move
from airflow_provider_kmigrate.core.migration.phase import kraft_owns
from airflow_provider_kmigrate.core.migration.plan import ROLLBACK, StepRow
from airflow_provider_kmigrate.core.migration.plan_document import (
    ACCEPTS,
    PlannedTask,
    PlanOf,
    PlanParts,
    Seconds,
    SpaceNeed,
)
from airflow_provider_kmigrate.core.migration.plan_facts import (
    QUICK_ACT,
    PlanFacts,
    add_file,
    add_restart,
    build_plan,
    describe_approval,
    hash_inputs,
    list_restart_stalls,
    plan_stages,
)
from airflow_provider_kmigrate.core.migration.roll import why_postponed
from airflow_provider_kmigrate.core.migration.rollback import SAFE, RollbackTerms
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage, stage_on_disk

_LAST: Final = "handover.transaction"
_GIVES_UP: Final = 600.0  # seconds of the failover and of the handover, as their steps have them
_FAILOVER: Final = Seconds(QUICK_ACT, readiness.FAILOVER, _GIVES_UP)


def plan_rollback(
    facts: PlanFacts, steps: Sequence[str], consequences: Sequence[str], terms: RollbackTerms = SAFE
) -> dict[str, Any]:
    """The plan as JSON values. `steps` and `consequences`: as `steps.rollback.planned` reports them."""
    spec, view = facts.spec, facts.view
    way_back = (
        f"Until then the migration may continue instead: start kmigrate_zk_to_kraft__{spec.name}. From then on this rollback can only be "
        "completed; a new migration may begin after it."
    )
    parts = PlanParts(
        PlanOf.ROLLBACK,
        plan_stages(facts, ROLLBACK, partial(_plan_task, facts, terms)),
        {**hash_inputs(facts), ACCEPTS: _describe_terms(terms)},
        describe_approval(spec),
        way_back,
        _LAST,
        steps=tuple(steps),
        consequences=tuple(consequences),
        uncounted=tuple(_list_uncounted(facts)),
        stalls=tuple(_list_stalls(facts)),
        space=tuple(
            SpaceNeed(
                node.name, "the original file, a copy of the present one, meta.properties", readiness.SPACE_NEEDED, files.free
            )
            for node in spec.brokers
            for files in (view.broker(node.id).files,)
        ),
        not_compared=tuple(_list_not_compared(facts)),
    )
    return build_plan(facts, parts)


def _describe_terms(terms: RollbackTerms) -> str:
    accepted = {
        "no failover": not terms.failover,
        "a loss": terms.accepts_loss,
        "split groups": terms.splits,
        **{f"broker {broker} stays": True for broker in sorted(terms.left)},
    }
    return ", ".join(text for text, is_accepted in accepted.items() if is_accepted) or "nothing"


def _plan_task(facts: PlanFacts, terms: RollbackTerms, task: PlannedTask, row: StepRow, node: int | None) -> PlannedTask:
    view = facts.view
    match row.kind:
        case "roll back broker" if node is not None and row.target:
            return _plan_broker(facts, task, node, row.target)
        case "restore flag" if node is not None:
            return _plan_flag(facts, task, view.controller(node), is_skipped=not terms.failover)
        case "wipe" if node is not None:
            does = f"{task.does} It is controller {node}."
            return replace(task, does=does, is_done=rollback.has_empty_directories(view.controller(node)))
        case "controller failover":
            is_needed = kraft_owns(view) and terms.failover
            return replace(task, is_done=not is_needed, seconds=_FAILOVER if is_needed else Seconds())
        case "handover":
            return _plan_handover(facts, task)
        case _:
            return task


def _plan_handover(facts: PlanFacts, task: PlannedTask) -> PlannedTask:
    view, owned = facts.view, kraft_owns(facts.view)
    stops = sum(not controller.is_down for controller in view.controllers.values())
    if not owned and not stops and view.zk is not None and view.zk.migration is None and leaders_can_move(view).met:
        return replace(task, is_done=True)
    expected = readiness.CONTROLLER_STOP * stops + readiness.HANDOVER * owned
    return replace(task, seconds=Seconds(QUICK_ACT, max(QUICK_ACT, expected), _GIVES_UP))


def _plan_broker(facts: PlanFacts, task: PlannedTask, number: int, target: BrokerMode) -> PlannedTask:
    view, spec, owned = facts.view, facts.spec, kraft_owns(facts.view)
    broker, order = view.broker(number), [node.id for node in spec.brokers]
    node = spec.node(NodeRole.BROKER, number)
    is_to_migration = target is BrokerMode.MIGRATION
    passes_migration = (owned and broker.mode is not BrokerMode.MIGRATION) or broker.mode is BrokerMode.KRAFT
    is_needed = passes_migration if is_to_migration else owned or broker.mode is not BrokerMode.ZOOKEEPER
    task = replace(task, node=node.name)
    if not is_needed:
        return replace(task, is_done=True)
    present = broker.files.properties or stage_on_disk(broker.files) or FileStage.KRAFT
    before = present if is_to_migration or not passes_migration else FileStage.MIGRATION
    stage = FileStage.MIGRATION if is_to_migration else FileStage.ZOOKEEPER
    last_because = "" if is_to_migration else why_postponed(view, number, order, target)
    return add_restart(facts, add_file(facts, task, node, stage, before), number, last_because)


def _plan_flag(facts: PlanFacts, task: PlannedTask, controller: Controller, *, is_skipped: bool) -> PlannedTask:
    node = facts.spec.node(NodeRole.CONTROLLER, controller.id)
    is_needed = kraft_owns(facts.view) and (controller.is_down or controller.migration_flag is False)
    if is_skipped or not is_needed:
        return replace(task, node=node.name, is_done=True)
    seconds = Seconds(QUICK_ACT, readiness.CONTROLLER_STOP, facts.spec.policy.start_timeout)
    before = controller.files.properties or FileStage.CONTROLLER_FINAL
    return replace(add_file(facts, replace(task, node=node.name), node, FileStage.CONTROLLER_MIGRATION, before), seconds=seconds)


def _list_uncounted(facts: PlanFacts) -> Iterator[str]:
    """What the durations leave out."""
    yield "the answer to the request, unless the run's conf or the request of the migration has approved it"
    if facts.spec.audit:
        yield "the fingerprint before it and the audit after it by Spark (`skip_audit`)"
    if facts.spec.spark_jobs:
        yield "the Spark jobs that are held"
    yield "whatever a step waits for: a partition without a spare replica, a group that makes no progress, a broker that does not answer"


def _list_stalls(facts: PlanFacts) -> Iterator[str]:
    """What clients may notice."""
    yield from list_restart_stalls(facts)
    if kraft_owns(facts.view):
        yield f"no controller runs for about {rollback.WITHOUT_CONTROLLER:.0f} s in the handover: no leader moves and no topic is made; clients continue"


def _list_not_compared(facts: PlanFacts) -> Iterator[str]:
    """What is neither compared nor proven, or not known."""
    if readiness.kraft_may_hold_more(facts.view):
        yield from equivalence.list_unknown_changes(facts.view)
    if facts.spec.audit is None:
        yield "records: nothing shows whether one is lost or repeated: the cluster file has no section `audit`"
    yield "the comments and the order of lines in files: the original is restored byte for byte, and shown here by its keys"
