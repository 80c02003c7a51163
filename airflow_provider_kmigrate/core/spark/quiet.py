"""Is a step of kmigrate under way that others should not start beside? For users' own DAGs, decided from the cluster and the journals.

It is quiet when no run owns the cluster, or when the run that does has changed nothing for a while, everything it changed was
seen well again, and every partition has its replicas in sync. Soaking and waiting for a person are quiet, the pause between two
restarts of a roll is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from airflow_provider_kmigrate.core import journal_lines
from airflow_provider_kmigrate.core.decision import Decision, Done, Wait
from airflow_provider_kmigrate.core.journal_lines import ActSpan, Line, unsettled
from airflow_provider_kmigrate.core.model import ClusterView, Partition, Reason

RECENT_MS: Final = 3_600_000  # how old an act may be to count when ZooKeeper cannot say who owns the cluster


@dataclass(frozen=True, slots=True)
class Holder:
    """The run that owns the cluster; None: nobody. Not `known`: ZooKeeper could not be asked, or is gone after a migration."""

    run: str | None = None
    known: bool = True


def decide(view: ClusterView, lines: Sequence[Line], holder: Holder, now_ms: int, calm_ms: int) -> Decision:
    """`Done` when it is quiet. `lines` are those of all journals of the cluster, `calm_ms` is how long nothing may have been changed.

    A run that owns the cluster and has written no line is one whose journal is not seen from here: every step writes some.
    """
    if holder.known and holder.run is None:
        return Done("No run of kmigrate owns the cluster.")
    if holder.run is not None and all(line.run != holder.run for line in lines):
        return Wait((_unseen(holder.run),))
    own = [act for act in journal_lines.acts(lines) if _counts(act, holder, now_ms)]
    reasons = [*_under_way(own), *_just_done(own, now_ms, calm_ms)]
    reasons += _unwell(view.partitions) if holder.known else []
    return Wait(tuple(reasons)) if reasons else Done("Nothing has been changed lately, and all is well.")


def _unseen(run: str) -> Reason:
    text = f"Run {run} owns the cluster, and its journal is not in this worker's folder."
    return Reason("Q05", text)


def _counts(act: ActSpan, holder: Holder, now_ms: int) -> bool:
    return act.run == holder.run if holder.known else now_ms - act.from_ms < RECENT_MS


def _under_way(acts: Sequence[ActSpan]) -> list[Reason]:
    return [Reason("Q01", f"Run {act.run}: {act.step} is under way ({act.verb}).") for act in unsettled(acts)]


def _just_done(acts: Sequence[ActSpan], now_ms: int, calm_ms: int) -> list[Reason]:
    latest = max((act.settled_ms or act.to_ms or act.from_ms for act in acts), default=0)
    if now_ms - latest >= calm_ms:
        return []
    text = f"The last change was {max(0, now_ms - latest) / 1000:.0f} s ago; {calm_ms / 1000:.0f} s without one are waited for."
    return [Reason("Q01", text)]


def _unwell(partitions: Sequence[Partition] | None) -> list[Reason]:
    if partitions is None:
        return [Reason("Q01", "The partitions could not be read.")]
    leaderless = sum(partition.leader < 0 for partition in partitions)
    behind = sum(partition.under_replicated for partition in partitions)
    if not leaderless and not behind:
        return []
    text = f"{leaderless} partitions have no leader, {behind} have replicas out of sync."
    return [Reason("Q01", text)]
