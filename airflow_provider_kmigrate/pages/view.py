"""What the page of a cluster shows beside its documents: the ten stations of a migration, and the answer to "can we go back?"."""

from __future__ import annotations

from typing import Final, NamedTuple

from airflow_provider_kmigrate.core.migration.plan import APPROVE, MIGRATION, split_into_stages
from airflow_provider_kmigrate.pages.stored import ClusterStatus, describe_rollback_cell

_STAGES: Final = tuple(name for name, _ in split_into_stages(MIGRATION))
POINT_OF_NO_RETURN: Final = _STAGES[_STAGES.index(APPROVE) + 1]
_MIGRATION_DAG: Final = "kmigrate_zk_to_kraft__"
_ROLLBACK_DAG: Final = "kmigrate_rollback__"


class Station(NamedTuple):
    """A stage of the migration. `state`: `done`, `now` or `later`, and `not known`."""

    name: str
    state: str
    is_point_of_no_return: bool


def list_stations(status: ClusterStatus) -> list[Station]:
    """The stages in their order, by the newest task of a migration's run, by a request that waits, else by the cluster's phase."""
    current = _find_current(status)
    return [
        Station(
            name.replace("_", " "),
            "not known" if current is None else "done" if index < current else "now" if index == current else "later",
            name == POINT_OF_NO_RETURN,
        )
        for index, name in enumerate(_STAGES)
    ]


def _find_current(status: ClusterStatus) -> int | None:
    """The place of the stage under way; one behind the last if the migration is finalized; None: not known."""
    seen = status.seen.document if status.seen else None
    if seen is None or seen.progress is None:
        return None
    if seen.phase == "finalized":
        return len(_STAGES)
    tasks = [request.task_id for request in status.requests if request.dag_id.startswith(_MIGRATION_DAG)]
    if status.step and status.step.stored.dag_id.startswith(_MIGRATION_DAG):
        tasks.append(status.step.stored.task_id)
    for task in tasks:
        if (group := task.partition(".")[0]) in _STAGES:
            return _STAGES.index(group)
    if seen.phase == "zookeeper":
        return 0
    if seen.progress.stage == POINT_OF_NO_RETURN and not (seen.phase or "").startswith("finaliz"):
        return _STAGES.index("soak")
    return _STAGES.index(seen.progress.stage) if seen.progress.stage in _STAGES else None


def is_rolling_back(status: ClusterStatus) -> bool:
    """Whether the newest task belongs to a rollback that is under way."""
    step = status.step.document.step if status.step and status.step.document else None
    is_rollback = status.step is not None and status.step.stored.dag_id.startswith(_ROLLBACK_DAG)
    return step is not None and is_rollback and step.doing != "done"


def describe_return(status: ClusterStatus) -> str:
    """The answer to "can we go back?" in one line."""
    judged = status.judged.document if status.judged else None
    if judged is None or judged.rollback is None:
        return "not known: no task has judged it"
    answer = describe_rollback_cell(judged)
    return f"{answer}, as of then" if status.is_old(status.judged) else answer
