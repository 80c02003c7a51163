"""Whether a node that runs as it should would do so again: the file for its next start is of the same stage.

A run that died may have left the file of another one, for whoever restarts the node next. A broker would be stranded, a controller with
final properties could be elected and finalize, and one with those of the migration needs a ZooKeeper that may be gone.
"""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_kmigrate.core.decision import Act, Decision, Verb, Wait
from airflow_provider_kmigrate.core.files.config_matrix import FileStage, node_id, stage_of
from airflow_provider_kmigrate.core.model import NodeFiles
from airflow_provider_kmigrate.core.unread import could_not_read

__all__ = ["misfiled", "whose_else"]


def misfiled(name: str, files: NodeFiles, stage: FileStage) -> Decision | None:
    """What is left to do about the file of the node `name`, such as "broker 3"; None where it is of `stage`.

    A file that was not read is waited for.
    """
    if files.properties is None:
        return Wait((could_not_read(f"the properties of {name}"),))
    found = stage_of(files.properties)
    if found is stage:
        return None
    return Act(Verb.REWRITE, f"{name.capitalize()} runs as it should, but its file is of stage {found}: it gets its own again.")


def whose_else(controller_id: int, properties: Mapping[str, str] | None) -> str | None:
    """What the file at a controller's place is, such as "the file of broker 1"; None where it is its own, or there is none."""
    if properties is None:
        return None
    stage, found = stage_of(properties), node_id(properties)
    if stage is not None and stage.of_controller and found == controller_id:
        return None
    kind = "controller" if stage is not None and stage.of_controller else "broker"
    return "no controller's file" if found is None else f"the file of {kind} {found}"
