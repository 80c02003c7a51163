"""What a node's files say: whose its directories are (meta.properties), and whether its properties fit its stage.

Directories that meta.properties gives to another node are never formatted or moved. Source: MetaProperties, Kafka 3.9.

A run that died may have left another stage's file for the node's next restart (`misfiled`). A broker would be left behind, a
controller with final properties could be elected and finalize, and one with the migration's needs a ZooKeeper that may be gone.
"""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_kmigrate.core.decision import Act, Decision, Verb, Wait
from airflow_provider_kmigrate.core.files.config_matrix import FileStage, node_id, stage_of
from airflow_provider_kmigrate.core.model import Controller, NodeFiles, Reason, could_not_read

Metas = Mapping[str, Mapping[str, str]]  # directory -> the keys of its meta.properties, none if it is not formatted


def owner(meta: Mapping[str, str]) -> tuple[str | None, str | None]:
    """Cluster and node that a meta.properties names; a broker's of version 0 has `broker.id`."""
    return meta.get("cluster.id"), meta.get("node.id", meta.get("broker.id"))


def of_others(node_id: int, metas: Metas | None) -> dict[str, str]:
    """The directories that another node owns, each with that node's id."""
    owners = {path: owner(meta)[1] for path, meta in (metas or {}).items()}
    return {path: found for path, found in owners.items() if found not in {None, str(node_id)}}


def in_use(controller: Controller) -> tuple[str, ...]:
    """The directories of its own that hold a format or, as far as known, a metadata log."""
    metas, theirs = controller.files.meta or {}, of_others(controller.id, controller.files.meta)
    return tuple(path for path, meta in metas.items() if path not in theirs and (meta or controller.files.has_metadata_log))


def not_its_own(controller: Controller) -> Reason | None:
    """M01: a directory that the cluster file gives to this controller is another node's."""
    theirs = of_others(controller.id, controller.files.meta)
    if not theirs:
        return None
    text = f"{told(theirs)}, not of controller {controller.id}."
    return Reason("M01", text)


def told(theirs: Mapping[str, str]) -> str:
    """Other nodes' directories, for a message."""
    return "; ".join(f"{path} is the directory of node {node}" for path, node in theirs.items())


def needs_version_0(files: NodeFiles) -> tuple[str, ...]:
    """The log directories whose file has version 1, with which a ZooKeeper broker exits (G10, measured)."""
    return tuple(folder for folder, keys in (files.meta or {}).items() if keys.get("version") == "1")


def version_0(keys: Mapping[str, str]) -> str:
    """The same identity as ZooKeeper brokers write it: `broker.id` for `node.id`; the directory id stays (harmless, measured)."""
    broker = keys.get("broker.id") or keys.get("node.id", "")
    rest = {key: value for key, value in keys.items() if key not in {"version", "broker.id", "node.id"}}
    lines = {"version": "0", "broker.id": broker, **rest}
    return "".join(f"{key}={value}\n" for key, value in lines.items())


__all__ = ["misfiled", "whose_else"]


def misfiled(name: str, files: NodeFiles, stage: FileStage) -> Decision | None:
    """What is left to do about the file of the node `name`, such as "broker 3"; None if it is of `stage`.

    Waits for a file that was not read.
    """
    if files.properties is None:
        return Wait((could_not_read(f"the properties of {name}"),))
    found = stage_of(files.properties)
    if found is stage:
        return None
    return Act(
        Verb.REWRITE,
        f"{name.capitalize()} runs in the right mode, but its file is of stage {found}: writing the right file again.",
    )


def whose_else(controller_id: int, properties: Mapping[str, str] | None) -> str | None:
    """What the file at a controller's place is, such as "the file of broker 1"; None if it is its own, or there is none."""
    if properties is None:
        return None
    stage, found = stage_of(properties), node_id(properties)
    if stage is not None and stage.of_controller and found == controller_id:
        return None
    kind = "controller" if stage is not None and stage.of_controller else "broker"
    return "not a controller's file" if found is None else f"the file of {kind} {found}"
