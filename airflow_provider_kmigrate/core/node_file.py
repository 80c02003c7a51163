"""Whether a node that runs as it should would do so again: the file for its next start is of the same stage.

A run that died may have left the file of another one, for whoever restarts the node next. A broker would be stranded, a controller with
final properties could be elected and finalize, and one with those of the migration needs a ZooKeeper that may be gone.
"""

from __future__ import annotations

from airflow_provider_kmigrate.core.config_matrix import Stage, stage_of
from airflow_provider_kmigrate.core.model import Act, Decision, NodeFiles, Reason, Wait

__all__ = ["misfiled"]


def misfiled(name: str, files: NodeFiles, stage: Stage) -> Decision | None:
    """What is left to do about the file of the node `name`, such as "broker 3"; None where it is of `stage`.

    A file that was not read is waited for.
    """
    if files.properties is None:
        return Wait((Reason("G00", f"Could not read the properties of {name}.", "Unknown is not healthy."),))
    found = stage_of(files.properties)
    if found is stage:
        return None
    return Act("rewrite", f"{name.capitalize()} runs as it should, but its file is of stage {found}: it gets its own again.")
