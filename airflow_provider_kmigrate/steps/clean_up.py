"""List what a migration or a rollback has left behind, and remove what the operator approved; nothing else ever removes it."""

from __future__ import annotations

from typing import Any

from airflow_provider_kmigrate.clients.znodes import ROOT
from airflow_provider_kmigrate.core.cluster_state.decision import Done
from airflow_provider_kmigrate.core.cluster_state.model import ClusterView, Fields, Reason
from airflow_provider_kmigrate.core.migration.leftovers import (
    Leftover,
    LeftoverKind,
    removable_leftovers,
    render_document,
    to_document,
)
from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.steps.run import StepContext, pass_gate_again


def list_leftovers(context: StepContext) -> dict[str, Any]:
    """What is left, as JSON values; changes nothing. Raises as the hosts do: a machine that does not answer is not "nothing left"."""
    document = to_document(*_find_leftovers(context))
    context.say(render_document(document))
    return document


def run_clean_up(context: StepContext, approved: object) -> Done:
    """Remove what may be removed, if that is still exactly what was `approved`; otherwise refuses (H06).

    `approved`: what `list_leftovers` returned, or its Markdown: a run that an older kmigrate began has that. Killed and run again, the list is another one: it must be approved again.
    """
    leftovers, view = _find_leftovers(context)
    document = to_document(leftovers, view)
    if approved not in (document, render_document(document)):
        raise Refused.because(Reason("H06", "What is left is not what was shown with the request."))
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
