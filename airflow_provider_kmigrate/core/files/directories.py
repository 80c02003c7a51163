"""Whose directories those of a controller are: what its meta.properties gives to another node is never formatted, nor moved away."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_kmigrate.core.model import Controller, Reason

Metas = Mapping[str, Mapping[str, str]]  # directory -> the keys of its meta.properties, none where it is not formatted


def owner(meta: Mapping[str, str]) -> tuple[str | None, str | None]:
    """Cluster and node that a meta.properties names; a broker's of version 0 has `broker.id`."""
    return meta.get("cluster.id"), meta.get("node.id", meta.get("broker.id"))


def of_others(node_id: int, metas: Metas | None) -> dict[str, str]:
    """The directories that another node owns, each with that node's id."""
    owners = {path: owner(meta)[1] for path, meta in (metas or {}).items()}
    return {path: found for path, found in owners.items() if found not in {None, str(node_id)}}


def in_use(controller: Controller) -> tuple[str, ...]:
    """The directories of its own that hold a format or, as far as can be told, a metadata log."""
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
    """Directories of others for a message."""
    return "; ".join(f"{path} is the directory of node {node}" for path, node in theirs.items())
