"""What a migration or a rollback leaves behind on the machines and in ZooKeeper, and what of it may be removed now.

Nothing of it is needed for the cluster to run, and nothing is removed by itself: files hold copies of settings, and directories that were
set aside are the only copy of what KRaft knew.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from airflow_provider_kmigrate.core.cluster_state.model import ClusterView
from airflow_provider_kmigrate.core.migration.phase import ClusterPosition, Phase, position_of
from airflow_provider_kmigrate.core.migration.plan_document import PlannedStage, PlannedTask, PlanOf, PlanParts, hash_values
from airflow_provider_kmigrate.core.migration.plan_facts import PlanFacts, build_plan, describe_approval, hash_own_inputs


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


def plan_clean_up(facts: PlanFacts, leftovers: Sequence[Leftover]) -> dict[str, Any]:
    """The plan of a clean-up as JSON values: what would be removed from where, and what stays and why. Its fingerprint is of all of it."""
    position = position_of(facts.view)
    kept = {leftover: why_kept(leftover, position) for leftover in leftovers}
    rows = {f"{left.where}: {left.kind} {left.path}": f"stays: {why}" if why else "removed" for left, why in kept.items()}
    parts = PlanParts(
        PlanOf.CLEAN_UP,
        (PlannedStage("clean_up", (PlannedTask("clean_up", "Removes what is left, if it is exactly what was shown."),)),),
        {
            **hash_own_inputs(facts.spec, facts.made_by),
            **{f"what is left, {name}": hash_values({"fate": fate}) for name, fate in rows.items()},
        },
        describe_approval(facts.spec),
        "What is removed cannot be brought back. A clean-up that is interrupted lists what is left and asks again.",
        "clean_up",
        steps=tuple(f"remove from {left.where}: {left.kind} {left.path}" for left, why in kept.items() if not why),
        consequences=tuple(f"{left.where}: {left.kind} {left.path} stays: {why}." for left, why in kept.items() if why)
        or ("Nothing is left.",) * (not kept),
        stalls=("nothing: no node is restarted and no client is touched",),
        not_compared=("the content of what is removed: it is not read",),
    )
    return build_plan(facts, parts)
