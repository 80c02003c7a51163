"""Before each act of a run: compare what decides it with the plan that the run began with."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from airflow_provider_kmigrate import __version__
from airflow_provider_kmigrate.core.cluster_state.decision import Wait
from airflow_provider_kmigrate.core.cluster_state.model import ClusterView, Fields, ProcessState
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole, NodeSpec
from airflow_provider_kmigrate.core.migration.migration_plan import PlanFacts, hash_inputs
from airflow_provider_kmigrate.core.migration.plan_binding import BoundPlan, describe_drift_since, judge_drift
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage, stage_of, stage_on_disk
from airflow_provider_kmigrate.core.node_files.properties import parse_properties
from airflow_provider_kmigrate.exceptions import Refused, Unavailable
from airflow_provider_kmigrate.steps.journal import format_reasons
from airflow_provider_kmigrate.steps.run import StepContext

_FIELDS: Final = Fields.PROCESSES | Fields.FILES


def require_same_plan(context: StepContext, step: str, bound: BoundPlan, node: NodeSpec | None) -> None:
    """Say and journal what has changed since the run's preflight. `step`: which is about to act; `node`: on which node, if on one.

    Raises `Refused` (H16) if the run was bound to a plan, and `Unavailable` if what that plan rests on cannot be read now.
    """
    view = context.observer.observe(_FIELDS)
    inputs = read_inputs(context, view)
    drift = describe_drift_since(bound, inputs)
    if not drift:
        return
    text = f"Since the preflight of this run: {' '.join(drift)}"
    context.say(text)
    context.journal.write("drift", step, text)
    decision = judge_drift(bound, inputs, is_node_stopped=node is not None and _is_stopped(view, node))
    if decision is None:
        return
    if isinstance(decision, Wait):
        raise Unavailable(f"{step}: nothing was changed. {format_reasons((*decision.reasons, *view.unknowns))}")
    raise Refused(f"{step}: nothing was changed. {format_reasons(decision.reasons)}", decision.reasons)


def read_inputs(context: StepContext, view: ClusterView) -> dict[str, str]:
    """The inputs of the plan as they are now (`migration_plan.hash_inputs`).

    The brokers' `inter.broker.protocol.version` is the one that the backup has: the run's own backup reads it of running brokers, and later
    only their files, which are inputs, can change it.
    """
    version = None
    with suppress(Refused):  # no backup here
        version = context.backup.version()
    spec = context.spec
    originals = {node.id: keys for node in spec.brokers if (keys := read_original_keys(context, view, node)) is not None}
    return hash_inputs(PlanFacts(spec, view, originals, version, made_by=__version__))


def read_original_keys(context: StepContext, view: ClusterView, broker: NodeSpec) -> Mapping[str, str] | None:
    """The keys of a broker's file of before the migration; None if they are not known here."""
    keys = view.broker(broker.id).files.properties
    if keys is not None and stage_of(keys) is FileStage.ZOOKEEPER:
        return keys
    with suppress(Refused):
        return parse_properties(context.backup.read_original(broker))
    return None


def _is_stopped(view: ClusterView, node: NodeSpec) -> bool:
    """Whether a node is down that was up before: a broker, or a controller that has a file of kmigrate already."""
    if node.role is NodeRole.BROKER:
        return view.broker(node.id).process.state is ProcessState.STOPPED
    controller = view.controller(node.id)
    return controller.process.state is ProcessState.STOPPED and stage_on_disk(controller.files) is not None
