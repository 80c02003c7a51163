"""What the way back needs beside the cluster: on this machine, and in the cluster file. Lost, it is found out while it can still be mended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from airflow_provider_kmigrate.core.cluster import ClusterSpec, NodeSpec
from airflow_provider_kmigrate.core.files.config_matrix import FileStage
from airflow_provider_kmigrate.core.model import Reason
from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.spec import without_wipe
from airflow_provider_kmigrate.steps.backup import BackupStore
from airflow_provider_kmigrate.steps.files import text_of
from airflow_provider_kmigrate.steps.journal import Journal, format_reasons


def rollback_prerequisites(spec: ClusterSpec, backup: BackupStore, brokers: Iterable[NodeSpec]) -> tuple[Reason, ...]:
    """Why these brokers, or the controllers, could not be taken back: an original that is missing or altered (its hash tells) or of which
    nothing can be rendered, a command that the cluster file lacks. What a machine's meta.properties lacks the way back writes itself.
    """
    return tuple(_reasons(spec, backup, brokers))


def refuse_if_rollback_lost(name: str, spec: ClusterSpec, backup: BackupStore, journal: Journal) -> None:
    """Raises `Refused` where something is lacking; the journal has it. `name`: the step that must not go forward then."""
    reasons = rollback_prerequisites(spec, backup, spec.brokers)
    if reasons:
        journal.write("lost", name, f"The way back is not open any more. {format_reasons(reasons)}")
        raise Refused(f"{name}: the way back is not open any more. {format_reasons(reasons)}", reasons)


def _reasons(spec: ClusterSpec, backup: BackupStore, brokers: Iterable[NodeSpec]) -> Iterator[Reason]:
    for node in brokers:
        yield from _refusals(lambda node=node: text_of(spec, backup, node, FileStage.ZOOKEEPER))  # type: ignore[misc]
    yield from without_wipe(spec)


def _refusals(attempt: Callable[[], object]) -> tuple[Reason, ...]:
    try:
        attempt()
    except Refused as refused:
        return refused.reasons
    return ()
