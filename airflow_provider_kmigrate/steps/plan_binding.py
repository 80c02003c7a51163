"""Before each act of a run: compare what decides it with the plan that the run began with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from airflow_provider_kmigrate import __version__
from airflow_provider_kmigrate.core.cluster_state.decision import Wait
from airflow_provider_kmigrate.core.cluster_state.model import ClusterView, Fields, ProcessState
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole, NodeSpec
from airflow_provider_kmigrate.core.migration.durations import Work
from airflow_provider_kmigrate.core.migration.plan_binding import BoundPlan, describe_drift_since, judge_drift
from airflow_provider_kmigrate.core.migration.plan_document import OF_THE_CONF, PlanOf
from airflow_provider_kmigrate.core.migration.plan_facts import PlanFacts, hash_inputs, hash_own_inputs
from airflow_provider_kmigrate.core.monitoring import journal_lines
from airflow_provider_kmigrate.core.monitoring.task_times import list_task_seconds
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage, stage_of, stage_on_disk
from airflow_provider_kmigrate.core.node_files.properties import parse_properties
from airflow_provider_kmigrate.core.offsets_topic.expansion_plan import hash_expansion_inputs
from airflow_provider_kmigrate.exceptions import KMigrateError, Refused, Unavailable
from airflow_provider_kmigrate.steps.journal import format_reasons, read_journal_lines
from airflow_provider_kmigrate.steps.run import StepContext

_FIELDS: Final = Fields.PROCESSES | Fields.FILES


def require_same_plan(
    context: StepContext, step: str, bound: BoundPlan, of: PlanOf, node: NodeSpec | None = None, *, is_rollback: bool = False
) -> None:
    """Say and journal what has changed since the run's plan. `step`: which is about to act; `node`: on which node, if on one.

    Raises `Refused` (H16) if the run was bound to a plan, and `Unavailable` if what that plan rests on cannot be read now. A rollback is never
    held: also what cannot be compared is only said.
    """
    if not is_rollback:
        _require_same_plan(context, step, bound, of, node)
        return
    try:
        _require_same_plan(context, step, bound, of, node, is_rollback=True)
    except (KMigrateError, OSError) as error:
        context.say(f"The plan of this run was not compared: {error}. The rollback goes on.")


def _require_same_plan(
    context: StepContext, step: str, bound: BoundPlan, of: PlanOf, node: NodeSpec | None, *, is_rollback: bool = False
) -> None:
    view = context.observer.observe(_FIELDS) if of is not PlanOf.GROUPS else None
    inputs = hash_own_inputs(context.spec, __version__) if view is None else read_inputs(context, view, of)
    inputs |= {name: text for name, text in bound.inputs.items() if name in OF_THE_CONF}
    drift = describe_drift_since(bound, inputs)
    if not drift:
        return
    text = f"Since the plan of this run was made: {' '.join(drift)}{' The rollback goes on.' * is_rollback}"
    context.say(text)
    context.journal.write("drift", step, text)
    is_stopped = node is not None and view is not None and _is_stopped(view, node)
    decision = judge_drift(bound, inputs, is_node_stopped=is_stopped, is_rollback=is_rollback)
    if decision is None:
        return
    if isinstance(decision, Wait):
        unknowns = view.unknowns if view else ()
        raise Unavailable(f"{step}: nothing was changed. {format_reasons((*decision.reasons, *unknowns))}")
    raise Refused(f"{step}: nothing was changed. {format_reasons(decision.reasons)}", decision.reasons)


def read_inputs(context: StepContext, view: ClusterView, of: PlanOf = PlanOf.MIGRATION) -> dict[str, str]:
    """The inputs of the plan as they are now, without those of the run's conf (`plan_facts.hash_inputs`).

    The brokers' `inter.broker.protocol.version` is the one that the backup has: the run's own backup reads it of running brokers, and later
    only their files, which are inputs, can change it.
    """
    facts = _make_facts(context, view, None)
    return hash_expansion_inputs(facts) if of is PlanOf.EXPANSION else hash_inputs(facts)


def _make_facts(context: StepContext, view: ClusterView, version: str | None, **more: Any) -> PlanFacts:
    """`version`: that of the brokers; None: the backup's, if there is one here."""
    with suppress(Refused):  # no backup here
        version = version or context.backup.version()
    spec = context.spec
    originals = {node.id: keys for node in spec.brokers if (keys := read_original_keys(context, view, node)) is not None}
    return PlanFacts(spec, view, originals, version, made_by=__version__, **more)


def read_plan_facts(context: StepContext, view: ClusterView, version: str | None = None, **more: Any) -> PlanFacts:
    """What a plan of an observed cluster is made of; reads the backup and the journals. `version`: that of the brokers; None: the backup's.

    A broker that runs with a later file is planned from its original in the backup.
    """
    seconds: Mapping[Work, Sequence[float]] = {}
    with suppress(OSError):  # measured tasks make a forecast better; without them it is assumed, and says so
        seconds = read_task_seconds(context.journals, context.spec.policy.canary_bake)
    return _make_facts(
        context,
        view,
        version,
        task_seconds=seconds,
        tasks_elsewhere={} if seconds.get(Work.RESTART) else _read_tasks_elsewhere(context.journals),
        opening=context.opening,
        made_ms=round(1000 * context.clock.now()),
        **more,
    )


def _read_tasks_elsewhere(journals: Path | None) -> dict[Work, list[float]]:
    """Seconds of the tasks that the journals of other clusters on this worker record; those that cannot be read count for none."""
    seconds: dict[Work, list[float]] = {work: [] for work in Work}
    if journals is None or not journals.parent.is_dir():
        return seconds
    for folder in sorted(journals.parent.iterdir()):
        with suppress(OSError):
            for work, measured in read_task_seconds(folder if folder != journals else None, 0.0).items():
                seconds[work] += measured
    return seconds


def read_task_seconds(journals: Path | None, bake: float) -> dict[Work, list[float]]:
    """What tasks took, as the journals of a folder record it (`list_task_seconds`). Raises OSError."""
    return list_task_seconds(journal_lines.parse_lines(read_journal_lines(journals)).lines, bake)


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
