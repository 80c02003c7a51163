"""What a migration or a rollback leaves behind on the machines and in ZooKeeper, and what of it may be removed now.

Nothing of it is needed for the cluster to run, and nothing is removed by itself: files hold copies of settings, and directories that were
set aside are the only copy of what KRaft knew.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from airflow_provider_kmigrate.core.model import ClusterView
from airflow_provider_kmigrate.core.phase import ClusterPosition, Phase, where
from airflow_provider_kmigrate.core.text import cell, code_span


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


def kept_because(left: Leftover, position: ClusterPosition) -> str:
    """Why this must not be removed now, in words; empty if it may be.

    A phase with reasons is not certain: brokers or controllers that do not answer may be in the middle of a migration.
    """
    if left.kind in _STAYS:
        return _STAYS[left.kind]
    if position.phase not in _REMOVABLE[left.kind]:
        return f"it may be needed in phase '{position.phase}'"
    return f"it may be needed. {position.reasons[0].text}" if position.reasons else ""


def removable(left: Iterable[Leftover], view: ClusterView) -> tuple[Leftover, ...]:
    """What may be removed now."""
    return tuple(each for each in left if not kept_because(each, where(view)))


def listed(left: Iterable[Leftover], view: ClusterView) -> str:
    """Everything that is left as Markdown, for the operator who decides: what would be removed, and what stays and why."""
    fates = ((each, kept_because(each, where(view))) for each in left)
    rows = [
        f"| {each.where} | {each.kind} | {code_span(cell(each.path))} | {f'stays: {cell(why)}' if why else 'removed'} |"
        for each, why in fates
    ]
    return "\n".join(["| where | what | path | |", "| --- | --- | --- | --- |", *rows]) if rows else "Nothing is left."
