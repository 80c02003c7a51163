"""Preflight's check of the places that the cluster file gives to controllers: a file and a directory that are nobody else's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from airflow_provider_kmigrate.core.cluster import NodeSpec, Role
from airflow_provider_kmigrate.core.files import directories
from airflow_provider_kmigrate.core.files.config_matrix import setting
from airflow_provider_kmigrate.core.files.node_file import whose_else
from airflow_provider_kmigrate.core.findings.finding import PreflightFinding, blocks
from airflow_provider_kmigrate.core.listing import summarize
from airflow_provider_kmigrate.core.model import ClusterView, NodeFiles
from airflow_provider_kmigrate.core.preflight.facts import Check, PreflightFacts

_DIRECTORIES = ("log.dirs", "metadata.log.dir")


def _places(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    for node in facts.spec.controllers:
        files = _files(view, node)
        for path, other in directories.of_others(node.id, files.meta).items():
            yield blocks("B2d", f"{path} of controller {node.id} is the directory of node {other}")
        if (whose := whose_else(node.id, files.properties)) is not None:
            yield blocks("B2d", f"{node.hosts.properties} of controller {node.id} on {node.host} is {whose}")
        if shared := list(_shared(view, facts, node)):
            yield blocks("B2d", f"one place on {node.host} for controller {node.id} and another: {summarize(shared)}")


def _shared(view: ClusterView, facts: PreflightFacts, node: NodeSpec) -> Iterator[str]:
    """Directories of nodes on one host of which one is the other or lies in it, as far as paths tell.

    What was read of the very path tells better: nodes in containers of one host may have one path and two places.
    """
    seen = _files(view, node).meta or {}
    later = (other for other in facts.spec.controllers if other.id > node.id)
    for other in (each for each in (*facts.spec.brokers, *later) if each.host == node.host):
        for mine in _dirs(view, facts, node):
            for path in _dirs(view, facts, other):
                theirs = (_files(view, other).meta or {}).get(path)
                if _overlap(mine, path) and not _two_places(seen.get(mine), theirs, mine == path):
                    yield f"{mine} and {path} of {other.name}"


def _two_places(mine: Mapping[str, str] | None, theirs: Mapping[str, str] | None, same_path: bool) -> bool:
    """Whether one path led to two directories: the other node's says whose it is, and ours, read, says nothing."""
    return same_path and mine is not None and not mine and bool(theirs)


def _dirs(view: ClusterView, facts: PreflightFacts, node: NodeSpec) -> tuple[str, ...]:
    """A broker's as its file has them, a controller's as it will have them."""
    if node.role is Role.BROKER:
        return tuple(_files(view, node).meta or ())
    extra = [setting(facts.spec.controller_properties, key) or "" for key in _DIRECTORIES]
    listed = [part.strip() for value in (node.log_dir or "", *extra) for part in value.split(",")]
    return tuple(dict.fromkeys(path for path in listed if path))


def _overlap(one: str, other: str) -> bool:
    first, second = PurePosixPath(one), PurePosixPath(other)
    return first == second or first in second.parents or second in first.parents


def _files(view: ClusterView, node: NodeSpec) -> NodeFiles:
    seen = (view.brokers if node.role is Role.BROKER else view.controllers).get(node.id)
    return seen.files if seen else NodeFiles()


PLACE_CHECKS: tuple[Check, ...] = (_places,)
