"""List what a migration or a rollback has left behind, and remove what the operator approved; nothing else ever removes it."""

from __future__ import annotations

from airflow_provider_kmigrate.clients.znodes import ROOT
from airflow_provider_kmigrate.core.decision import Done
from airflow_provider_kmigrate.core.leftovers import Leftover, LeftoverKind, listed, removable
from airflow_provider_kmigrate.core.model import ClusterView, Fields, Reason
from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.steps.run import StepContext, pass_gate_again


def run_list(context: StepContext) -> str:
    """What is left, as Markdown; changes nothing. Raises as the hosts do: a machine that does not answer is not "nothing left"."""
    left, view = _left(context)
    text = listed(left, view)
    context.say(text)
    return text


def run_clean_up(context: StepContext, approved: str) -> Done:
    """Remove what may be removed, if that is still exactly what was `approved`; otherwise refuses (H06).

    Killed and run again, the list is another one: it must be approved again.
    """
    left, view = _left(context)
    if listed(left, view) != approved:
        raise Refused.because(Reason("H06", "What is left is not what was shown with the request."))
    removed = removable(left, view)
    for node in context.spec.nodes():
        chosen = [each for each in removed if each.where == node.name]
        if not chosen:
            continue
        pass_gate_again("clean up", context)
        paths = [each.path for each in chosen]
        context.journal.write("act", "clean up", f"remove from {node.name}", paths=paths)
        there = [(str(each.kind), each.path) for each in left if each.where == node.name]
        context.tools.host(node).remove(node, there, sorted({str(each.kind) for each in chosen}), context.fence.token)
        context.say(f"{node.name}: removed {', '.join(paths)}.")
    context.journal.write("done", "clean up", f"{len(removed)} removed")
    context.fence.release()
    return Done(f"{len(removed)} removed, {len(left) - len(removed)} left.")


def _left(context: StepContext) -> tuple[tuple[Leftover, ...], ClusterView]:
    view = context.observer.observe(Fields.POSITION)
    found = [
        Leftover(node.name, LeftoverKind(kind), path)
        for node in context.spec.nodes()
        for kind, path in context.tools.host(node).leftovers(node)
    ]
    fence = Leftover("ZooKeeper", LeftoverKind.FENCE, f"{ROOT}/{context.spec.cluster_id}")  # the clean-up itself takes it
    kept = Leftover("Airflow", LeftoverKind.BACKUP, str(context.backup.folder))
    return (*found, fence, *((kept,) if context.backup.folder.is_dir() else ())), view
