"""What a migration or a rollback leaves behind on the machines and in ZooKeeper, and what of it may be removed now.

Nothing of it is needed for the cluster to run, and nothing is removed by itself: files hold copies of settings, and directories that were
set aside are the only copy of what KRaft knew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from airflow_provider_kmigrate.core.cluster_state.model import ClusterView
from airflow_provider_kmigrate.core.migration.phase import ClusterPosition, Phase, position_of
from airflow_provider_kmigrate.core.shared.text import code_span, table_cell


class LeftoverKind(StrEnum):
    """What is left; the values are those of the agent on the machine."""

    KEPT_FILE = "kept file"  # a properties file that was replaced, with its settings and perhaps secrets
    SET_ASIDE = "set aside"  # a controller's directory under another name
    METADATA_LOG = "metadata log"  # a broker's copy of the controllers' log
    CONTROLLER_FILE = "controller file"  # of a controller that is stopped, with the migration flag
    FENCE = "fence"  # /_kmigrate in ZooKeeper
    BACKUP = "backup"  # the originals, on Airflow's machines


@dataclass(frozen=True, slots=True)
class Leftover:
    """One thing that is left, at a path; `where`: the node, or what else holds it."""

    where: str
    kind: LeftoverKind
    path: str


#: Kind -> the phases in which it may be removed; in every other it may be needed.
_REMOVABLE = {
    LeftoverKind.KEPT_FILE: {Phase.ZOOKEEPER, Phase.FINALIZED},
    LeftoverKind.SET_ASIDE: {Phase.ZOOKEEPER, Phase.FINALIZED},
    LeftoverKind.METADATA_LOG: {Phase.ZOOKEEPER},  # in KRaft mode it is the broker's metadata
    LeftoverKind.CONTROLLER_FILE: {Phase.ZOOKEEPER},
}
_STAYS = {
    LeftoverKind.FENCE: "it holds the number by which machines refuse an older run",
    LeftoverKind.BACKUP: "it may hold secrets, and no rollback is possible without it: remove it yourself once you are sure",
}


def why_kept(leftover: Leftover, position: ClusterPosition) -> str:
    """Why this must not be removed now, in words; empty if it may be.

    A phase with reasons is not certain: brokers or controllers that do not answer may be in the middle of a migration.
    """
    if leftover.kind in _STAYS:
        return _STAYS[leftover.kind]
    if position.phase not in _REMOVABLE[leftover.kind]:
        return f"it may be needed in phase '{position.phase}'"
    return f"it may be needed. {position.reasons[0].text}" if position.reasons else ""


def removable_leftovers(leftovers: Iterable[Leftover], view: ClusterView) -> tuple[Leftover, ...]:
    """What may be removed now."""
    return tuple(leftover for leftover in leftovers if not why_kept(leftover, position_of(view)))


DOCUMENT_KIND = "leftovers"


def to_document(leftovers: Iterable[Leftover], view: ClusterView) -> dict[str, Any]:
    """Everything that is left as JSON values; `stays`: why it is not removed now, empty if it would be."""
    position = position_of(view)
    rows = [
        {"where": leftover.where, "what": str(leftover.kind), "path": leftover.path, "stays": why_kept(leftover, position)}
        for leftover in leftovers
    ]
    return {"kind": DOCUMENT_KIND, "version": 1, "leftovers": rows}


def render_document(document: Mapping[str, Any]) -> str:
    """A list of `to_document` as Markdown, for the operator who decides: what would be removed, and what stays and why."""
    fates = (f"stays: {table_cell(row['stays'])}" if row["stays"] else "removed" for row in document["leftovers"])
    rows = [
        f"| {row['where']} | {row['what']} | {code_span(table_cell(row['path']))} | {fate} |"
        for row, fate in zip(document["leftovers"], fates, strict=True)
    ]
    return "\n".join(["| where | what | path | |", "| --- | --- | --- | --- |", *rows]) if rows else "Nothing is left."
