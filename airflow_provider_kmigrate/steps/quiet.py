"""Looks whether users' own work may begin: the partitions, who holds the cluster, and the journals of its runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from airflow_provider_kmigrate.clients.fence import Fence
from airflow_provider_kmigrate.core import journal_lines
from airflow_provider_kmigrate.core.decision import Decision
from airflow_provider_kmigrate.core.model import Fields
from airflow_provider_kmigrate.core.spark import quiet
from airflow_provider_kmigrate.exceptions import Unavailable
from airflow_provider_kmigrate.steps.run import StepContext


def look(world: StepContext, journals: Path, calm: float) -> Decision:
    """One look; changes nothing. `journals` is the folder of the cluster's journals, `calm` in seconds."""
    lines = journal_lines.read(_lines(journals)).lines
    view, holder = world.observer.look(Fields.PARTITIONS), _holder(world)
    return quiet.decide(view, lines, holder, round(1000 * world.clock.now()), round(1000 * calm))


def _lines(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("*.jsonl")) if folder.is_dir() else ():
        yield from path.read_text(encoding="utf-8", errors="replace").splitlines()


def _holder(world: StepContext) -> quiet.Holder:
    try:
        owner = Fence(world.tools.zk, world.spec.cluster_id, "watching").holder()
    except Unavailable:
        return quiet.Holder(known=False)
    return quiet.Holder(owner.owner if owner else None)
