"""Whether a node's directories may be formatted: once for this cluster and node, never over something else."""

from __future__ import annotations

from pathlib import Path

from airflow_provider_kmigrate.core.cluster import NodeSpec, Role
from airflow_provider_kmigrate.core.files.directories import in_use, owner
from airflow_provider_kmigrate.core.listing import summarize
from airflow_provider_kmigrate.core.model import Controller, NodeFiles, Process, ProcessState, Reason
from airflow_provider_kmigrate.exceptions import Failed, Refused


def must_format(node: NodeSpec, seen: NodeFiles, cluster_id: str) -> bool:
    """False where every directory is already formatted for this cluster and node.

    Raises `Refused` for directories of another cluster or node and for ones with a metadata log but no meta.properties, and
    `Failed` where they cannot be read.
    """
    if seen.properties is None or not seen.meta:
        raise Failed(f"{node.name}: cannot tell what its directories hold; is {node.hosts.properties} there and readable?")
    for path, meta in seen.meta.items():
        if meta and owner(meta) != (cluster_id, str(node.id)):
            text = f"{path} is formatted for cluster and node {owner(meta)}, not for {(cluster_id, str(node.id))}"
            raise _refused(node, text)
    if seen.has_metadata_log and not all(seen.meta.values()):
        text = "a directory has a metadata log but no meta.properties"
        raise _refused(node, text)
    return not all(seen.meta.values())


def refuse_data(node: NodeSpec, seen: NodeFiles) -> None:
    """For directories of this machine: raises `Refused` where one is not formatted but holds something."""
    for path, meta in (seen.meta or {}).items():
        held = [] if meta or not Path(path).is_dir() else sorted({found.name for found in Path(path).iterdir()} - {"lost+found"})
        if held:
            raise _refused(node, f"{path} is not formatted but holds {summarize(held)}")


def must_wipe(node: NodeSpec, seen: NodeFiles, process: Process, cluster_id: str) -> tuple[str, ...]:
    """The directories of a stopped controller that hold its quorum's data; never another node's, never while its process may run.

    Raises `Refused` for a directory of another cluster, or of nobody that can be told.
    """
    if node.role is not Role.CONTROLLER or process.state is not ProcessState.STOPPED:
        text = f"its directories were to be wiped, but its process is {process.state}"
        reason = Reason(
            "G26",
            f"{node.name}: {text}.",
        )
        raise Refused.because(reason)
    if seen.meta is None:
        raise Failed(f"{node.name}: cannot tell what its directories hold; is {node.hosts.properties} there and readable?")
    ours = in_use(Controller(node.id, files=seen))
    for folder in ours:
        if seen.meta[folder] and owner(seen.meta[folder]) != (cluster_id, str(node.id)):
            text = f"{folder} was to be moved away, but belongs to cluster and node {owner(seen.meta[folder])}"
            raise _refused(node, text)
    return ours


def set_aside(node: NodeSpec, folder: str) -> None:
    """Rename a directory of this machine; nothing in it is deleted. Raises `Failed`."""
    number, path = 1, Path(folder)
    while (aside := path.with_name(f"{path.name}.rolled-back-{number}")).exists():
        number += 1
    try:
        path.rename(aside)
    except FileNotFoundError:
        return
    except OSError as error:
        raise Failed(f"{node.name}: cannot move {folder} out of the way: {error}") from error


def _refused(node: NodeSpec, text: str) -> Refused:
    return Refused.because(Reason("M01", f"{node.name}: {text}."))
