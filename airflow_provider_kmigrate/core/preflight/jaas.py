"""Preflight's checks of JAAS files and keytabs, which only a node's machine shows: sections that logins need, and who may read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from airflow_provider_kmigrate.core.cluster_state.model import ClusterView
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, NodeSpec
from airflow_provider_kmigrate.core.node_files.jaas import find_login_section, may_serve, read_login_modules
from airflow_provider_kmigrate.core.preflight.actors import find_process
from airflow_provider_kmigrate.core.preflight.findings import Check, PreflightFacts, PreflightFinding, blocks, warns
from airflow_provider_kmigrate.core.shared.text import join_ids, summarize

JAAS_SWITCH = "java.security.auth.login.config"
_CLIENT_SECTION, _CLIENT_OFF = "zookeeper.sasl.clientconfig", "zookeeper.sasl.client"


def read_sections(view: ClusterView, node: NodeSpec) -> Mapping[str, tuple[str, ...]] | None:
    """Section -> login modules of the JAAS file that a node has, or will have by its service; None if it is not known."""
    software = find_process(view, node).software
    return None if software is None or software.jaas is None else read_login_modules(software.jaas)


def describe_missing_login(view: ClusterView, spec: ClusterSpec, node_name: str, mechanism: str) -> str | None:
    """Why a JAAS file has no login for the controllers' listener, empty if it has one; None if it is not known of one of these nodes.

    `node_name`: `broker 0`, or `the controllers` for all of them.
    """
    nodes = [node for node in spec.nodes() if node.name == node_name] or list(spec.controllers)
    sections = {node.name: read_sections(view, node) for node in nodes}
    if any(found is None for found in sections.values()):
        return None
    listener = spec.controller_listener
    missing = [_describe_login(name, found or {}, listener, mechanism) for name, found in sections.items()]
    return summarize(filter(None, missing))


def _describe_login(node_name: str, sections: Mapping[str, tuple[str, ...]], listener: str, mechanism: str) -> str:
    section = find_login_section(sections, listener)
    if section is None:
        return f"the JAAS file of {node_name} has neither {listener.lower()}.KafkaServer nor KafkaServer"
    return "" if may_serve(sections[section], mechanism) else f"{section} of {node_name} has no login module of {mechanism}"


def _check_zookeeper_section(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """ZooKeeper knows a node by the section `Client`, or by the one that a switch names; znodes of SASL identities are closed to others."""
    tree = facts.environment.tree
    if tree is None or "sasl" not in tree.guarded:
        return
    missing: dict[str, list[int]] = {}
    for node in facts.spec.nodes():
        software = find_process(view, node).software
        sections, switches = read_sections(view, node), (software.switches if software else None) or {}
        section = switches.get(_CLIENT_SECTION) or "Client"
        path = switches.get(JAAS_SWITCH, "").lstrip("=")
        if switches.get(_CLIENT_OFF, "true").lower() == "false":
            missing.setdefault(f"log in to no ZooKeeper (-D{_CLIENT_OFF}=false)", []).append(node.id)
        elif sections is not None and section not in sections:
            missing.setdefault(f"have no section {section} in {path}", []).append(node.id)
    for what, nodes in missing.items():
        yield blocks("B10d", f"nodes {join_ids(nodes)} {what}, and ZooKeeper's znodes belong to SASL identities")


def _check_keytabs(view: ClusterView, _: PreflightFacts) -> Iterator[PreflightFinding]:
    files = {f"broker {broker.id}": broker.files for broker in view.brokers.values()}
    files |= {f"controller {controller.id}": controller.files for controller in view.controllers.values()}
    if exposed := [f"{path} of {name}" for name, node_files in files.items() for path in node_files.exposed]:
        yield warns("W30", f"keytabs that every user of the machine may read: {summarize(exposed)}")


CHECKS: tuple[Check, ...] = (_check_zookeeper_section, _check_keytabs)
