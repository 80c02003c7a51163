"""List what a migration or a rollback has left behind, and remove what the operator approved; nothing else ever removes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_provider_kmigrate import __version__
from airflow_provider_kmigrate.clients.znodes import ROOT
from airflow_provider_kmigrate.core.cluster_state.decision import Done
from airflow_provider_kmigrate.core.cluster_state.model import ClusterView, Fields, Reason
from airflow_provider_kmigrate.core.migration.leftovers import (
    Leftover,
    LeftoverKind,
    plan_clean_up,
    removable_leftovers,
)
from airflow_provider_kmigrate.core.migration.plan_document import describe_drift
from airflow_provider_kmigrate.core.migration.plan_facts import PlanFacts
from airflow_provider_kmigrate.core.shared.text import summarize
from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.steps.run import StepContext, pass_gate_again


def plan_from_here(context: StepContext) -> dict[str, Any]:
    """The plan of a clean-up; changes nothing. Raises as the hosts do: a machine that does not answer is not "nothing left"."""
    return _plan(context, *_find_leftovers(context))


def _plan(context: StepContext, leftovers: Sequence[Leftover], view: ClusterView) -> dict[str, Any]:
    return plan_clean_up(
        PlanFacts(context.spec, view, {}, None, made_by=__version__, made_ms=round(1000 * context.clock.now())), leftovers
    )


def run_clean_up(context: StepContext, approved: Any) -> Done:
    """Remove what may be removed, if that is still exactly what was `approved`; otherwise refuses (H06) with what differs.

    `approved`: what `plan_from_here` returned. Killed and run again, the list is another one: it must be approved again.
    """
    leftovers, view = _find_leftovers(context)
    try:
        drift = describe_drift(approved, _plan(context, leftovers, view))
    except ValueError as error:
        drift = (str(error),)
    if drift:
        raise Refused.because(Reason("H06", f"What is left is not what was shown with the request: {summarize(drift)}"))
    removed = removable_leftovers(leftovers, view)
    for node in context.spec.nodes():
        chosen = [leftover for leftover in removed if leftover.where == node.name]
        if not chosen:
            continue
        pass_gate_again("clean up", context)
        paths = [leftover.path for leftover in chosen]
        context.journal.write("act", "clean up", f"remove from {node.name}", paths=paths)
        there = [(str(leftover.kind), leftover.path) for leftover in leftovers if leftover.where == node.name]
        context.tools.host(node).remove(node, there, sorted({str(leftover.kind) for leftover in chosen}), context.fence.token)
        context.say(f"{node.name}: removed {', '.join(paths)}.")
    context.journal.write("done", "clean up", f"{len(removed)} removed")
    context.fence.release()
    return Done(f"{len(removed)} removed, {len(leftovers) - len(removed)} left.")


def _find_leftovers(context: StepContext) -> tuple[tuple[Leftover, ...], ClusterView]:
    view = context.observer.observe(Fields.POSITION)
    on_machines = [
        Leftover(node.name, LeftoverKind(kind), path)
        for node in context.spec.nodes()
        for kind, path in context.tools.host(node).leftovers(node)
    ]
    fence = Leftover("ZooKeeper", LeftoverKind.FENCE, f"{ROOT}/{context.spec.cluster_id}")  # the clean-up itself takes it
    backup = Leftover("Airflow", LeftoverKind.BACKUP, str(context.backup.folder))
    return (*on_machines, fence, *((backup,) if context.backup.folder.is_dir() else ())), view
