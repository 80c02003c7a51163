"""Preflight's findings of what could not be read: each cause is one finding, which names every node that it concerns.

ZooKeeper that was not read, and a broker that did not answer, explain what only they could have reported: that is no finding of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from airflow_provider_kmigrate.core.cluster_state.model import Cause, ClusterView, Reason
from airflow_provider_kmigrate.core.cluster_state.spec import NodeSpec
from airflow_provider_kmigrate.core.preflight.findings import (
    Check,
    PreflightFacts,
    PreflightFinding,
    blockers_from_reasons,
    blocks,
)
from airflow_provider_kmigrate.core.shared.text import join_ids

_OF_HOSTS = {Cause.UNREAD_PROCESS: "the process", Cause.UNREAD_FILES: "the files"}
_REPORTED_APART = frozenset({*_OF_HOSTS, Cause.UNREAD_CONTROLLER})
_ADDRESS = r"\d{1,3}(?:\.\d{1,3}){3}"


def unread_hosts(view: ClusterView, cause: Cause) -> frozenset[str]:
    """The nodes whose host did not report this (`UNREAD_PROCESS` or `UNREAD_FILES`): U04 blocks and names them, so no check repeats it."""
    return frozenset(reason.node for reason in view.unknowns if reason.cause is cause)


_ONLY_BY_BROKERS = frozenset(
    {Cause.UNREAD_SLOW, Cause.UNREAD_STORED, Cause.UNREAD_GROUPS, Cause.UNREAD_COORDINATORS, Cause.UNREAD}
)
"""What is read from brokers or from ZooKeeper once they answer."""


def is_zookeeper_reported_unread(view: ClusterView) -> bool:
    """Whether a finding says that ZooKeeper was not read."""
    return view.zk is None and any(reason.cause is Cause.UNREAD_ZOOKEEPER for reason in view.unknowns)


def brokers_reported_unread(view: ClusterView) -> frozenset[str]:
    """The brokers of which a finding says that they did not answer."""
    return frozenset(reason.node for reason in view.unknowns if reason.cause is Cause.UNREAD_BROKER)


def are_all_brokers_reported_unread(view: ClusterView, facts: PreflightFacts) -> bool:
    """Whether no broker answered, and findings say so."""
    return {node.name for node in facts.spec.brokers} <= brokers_reported_unread(view)


def _check_unknowns(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    # Before a migration no controller answers; during one, the gates of each step check them.
    reasons = [reason for reason in view.unknowns if reason.cause not in _REPORTED_APART]
    causes = {reason for reason in reasons if reason.cause in {Cause.UNREAD_BROKER, Cause.UNREAD_ZOOKEEPER}}
    others = [reason for reason in reasons if reason not in causes and not _is_explained(reason, view, facts)]
    yield from blockers_from_reasons(
        (*_merge_alike((reason for reason in reasons if reason in causes), facts), *others), "observation"
    )


def _is_explained(reason: Reason, view: ClusterView, facts: PreflightFacts) -> bool:
    """Whether a broker that did not answer, or ZooKeeper, is the reason why this was not read."""
    if reason.cause not in _ONLY_BY_BROKERS:
        return False
    if reason.node:
        return reason.node in brokers_reported_unread(view)
    return are_all_brokers_reported_unread(view, facts) or (
        is_zookeeper_reported_unread(view) and reason.cause is not Cause.UNREAD
    )


def _merge_alike(reasons: Iterable[Reason], facts: PreflightFacts) -> Iterator[Reason]:
    """One reason for brokers with the same error but for their names; the text names all of them."""
    names, groups = _node_name_pattern(facts.spec.nodes()), dict[tuple[str, str], list[Reason]]()
    for reason in reasons:
        groups.setdefault((reason.code, names.sub("a node", re.sub(r":\d+\b", "", reason.text))), []).append(reason)
    for first, *others in groups.values():
        more = f". The same holds for {join_ids(dict.fromkeys(reason.node for reason in others))}." if others else ""
        if first.cause is Cause.UNREAD_ZOOKEEPER and facts.environment.servers:
            more = f" (servers: {join_ids(server.address for server in facts.environment.servers)})"
        yield replace(first, text=f"{first.text.rstrip('.')}{more}" if more else first.text)


def _check_unread_hosts(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Errors that differ only in the nodes that they name have one cause, such as a key that no machine accepts."""
    names, causes = _node_name_pattern(facts.spec.nodes()), dict[str, list[Reason]]()
    for reason in (reason for reason in view.unknowns if reason.cause in _OF_HOSTS):
        causes.setdefault(names.sub("a node", reason.text), []).append(reason)
    yield from blockers_from_reasons(map(_merge_reasons, causes.values()), "observation")


def _node_name_pattern(nodes: Iterable[NodeSpec]) -> re.Pattern[str]:
    """What an error may call a node: its name, host, address, or a word of `connect` that holds its id, such as `kafka-1`."""
    words = {word for node in nodes for word in (node.name, node.host, *_words_with_id(node))}
    longest_first = sorted(map(re.escape, words - {""}), key=len, reverse=True)
    return re.compile(rf"(?<!\w)(?:{'|'.join((_ADDRESS, *longest_first))})(?!\w)", re.IGNORECASE)


def _words_with_id(node: NodeSpec) -> list[str]:
    words = [word for word in node.hosts.connect if "{id}" in word and word != "{id}"]
    return [word.replace("{id}", str(node.id)).replace("{host}", node.host) for word in words]


def _merge_reasons(reasons: list[Reason]) -> Reason:
    nodes = dict.fromkeys(reason.node for reason in reasons)
    unread_text = " and ".join(text for cause, text in _OF_HOSTS.items() if any(reason.cause is cause for reason in reasons))
    return replace(reasons[0], text=f"could not read {unread_text} of {join_ids(nodes)}: {reasons[0].text}")


def _check_unread_parts(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    parts = {
        "ZooKeeper": view.zk,
        "the partitions": view.partitions,
        "min.insync.replicas of the topics": view.min_insync,
        "the topics' metadata": view.topics,
    }
    no_broker, no_zookeeper = are_all_brokers_reported_unread(view, facts), is_zookeeper_reported_unread(view)
    explained = {
        "ZooKeeper": no_zookeeper,
        "the partitions": no_broker,
        "min.insync.replicas of the topics": no_broker,
        "the topics' metadata": no_broker or no_zookeeper,
    }
    for part_name in (name for name, part in parts.items() if part is None and not explained[name]):
        yield blocks("U05", f"could not read {part_name}")
    hosts = unread_hosts(view, Cause.UNREAD_FILES)
    for node in facts.spec.brokers:
        broker = view.brokers.get(node.id)
        if broker is not None and broker.files.properties is None and node.name not in hosts:
            yield blocks("U05", f"could not read the properties file of broker {node.id}")
        if facts.configs.get(node.id) is None and node.name not in brokers_reported_unread(view):
            yield blocks("U05", f"could not read the running configuration of broker {node.id}")


CHECKS: tuple[Check, ...] = (_check_unknowns, _check_unread_hosts, _check_unread_parts)
