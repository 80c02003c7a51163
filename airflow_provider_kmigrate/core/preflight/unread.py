"""Preflight's findings of what could not be read: each cause is one finding, which names every node that it concerns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from airflow_provider_kmigrate.core.cluster import NodeSpec
from airflow_provider_kmigrate.core.model import Cause, ClusterView, Reason
from airflow_provider_kmigrate.core.preflight.findings import Check, PreflightFacts, PreflightFinding, blocks, refused
from airflow_provider_kmigrate.core.text import join_ids

_OF_HOSTS = {Cause.UNREAD_PROCESS: "the process", Cause.UNREAD_FILES: "the files"}
_REPORTED_APART = frozenset({*_OF_HOSTS, Cause.UNREAD_CONTROLLER})
_ADDRESS = r"\d{1,3}(?:\.\d{1,3}){3}"


def unread_hosts(view: ClusterView, cause: Cause) -> frozenset[str]:
    """The nodes whose host did not report this (`UNREAD_PROCESS` or `UNREAD_FILES`): U04 blocks and names them, so no check repeats it."""
    return frozenset(reason.node for reason in view.unknowns if reason.cause is cause)


def _unknowns(view: ClusterView, _: PreflightFacts) -> Iterator[PreflightFinding]:
    # Before a migration no controller answers; during one, the gates of each step check them.
    yield from refused((reason for reason in view.unknowns if reason.cause not in _REPORTED_APART), "observation")


def _hosts(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Errors that differ only in the nodes that they name have one cause, such as a key that no machine accepts."""
    names, causes = _names(facts.spec.nodes()), dict[str, list[Reason]]()
    for reason in (reason for reason in view.unknowns if reason.cause in _OF_HOSTS):
        causes.setdefault(names.sub("a node", reason.text), []).append(reason)
    yield from refused(map(_together, causes.values()), "observation")


def _names(nodes: Iterable[NodeSpec]) -> re.Pattern[str]:
    """What an error may call a node: its name, host, address, or a word of `connect` that holds its id, such as `kafka-1`."""
    words = {word for node in nodes for word in (node.name, node.host, *_words_with_id(node))}
    longest_first = sorted(map(re.escape, words - {""}), key=len, reverse=True)
    return re.compile(rf"(?<!\w)(?:{'|'.join((_ADDRESS, *longest_first))})(?!\w)", re.IGNORECASE)


def _words_with_id(node: NodeSpec) -> list[str]:
    words = [word for word in node.hosts.connect if "{id}" in word and word != "{id}"]
    return [word.replace("{id}", str(node.id)).replace("{host}", node.host) for word in words]


def _together(reasons: list[Reason]) -> Reason:
    nodes = dict.fromkeys(reason.node for reason in reasons)
    what = " and ".join(text for cause, text in _OF_HOSTS.items() if any(reason.cause is cause for reason in reasons))
    return replace(reasons[0], text=f"could not read {what} of {join_ids(nodes)}: {reasons[0].text}")


def _parts(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    parts = {
        "ZooKeeper": view.zk,
        "the partitions": view.partitions,
        "min.insync.replicas of the topics": view.min_insync,
        "the topics' metadata": view.topics,
    }
    for what in (name for name, part in parts.items() if part is None):
        yield blocks("U05", f"could not read {what}")
    hosts = unread_hosts(view, Cause.UNREAD_FILES)
    for node in facts.spec.brokers:
        broker = view.brokers.get(node.id)
        if broker is not None and broker.files.properties is None and node.name not in hosts:
            yield blocks("U05", f"could not read the properties file of broker {node.id}")
        if facts.configs.get(node.id) is None:
            yield blocks("U05", f"could not read the running configuration of broker {node.id}")


CHECKS: tuple[Check, ...] = (_unknowns, _hosts, _parts)
