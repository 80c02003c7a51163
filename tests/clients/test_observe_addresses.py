"""The addresses of controllers' hosts on their own machines, as a preflight reads them; an older agent is said."""

from __future__ import annotations

from airflow_provider_kmigrate.core.cluster_state.model import ClusterEnvironment, Fields, Reason
from airflow_provider_kmigrate.core.cluster_state.spec import NodeSpec
from airflow_provider_kmigrate.exceptions import Refused
from tests.clients.fake_cluster import SPEC, Cluster


def read_environment(older: int | None = None) -> ClusterEnvironment:
    cluster = Cluster()

    def find(node: NodeSpec) -> tuple[str, ...]:
        if node.id == older:
            raise Refused.because(Reason("M03", f"{node.name}: unknown verb 'addresses'"))
        return ("127.0.1.1", node.host)

    cluster.host.find_addresses = find  # type: ignore[attr-defined]
    cluster.zk.read_tree = lambda: None  # type: ignore[attr-defined]
    return cluster.observer.environment(cluster.observe(Fields.BROKERS))


def test_each_controllers_machine_is_asked_for_its_own_host() -> None:
    assert read_environment().addresses == {node.id: ("127.0.1.1", node.host) for node in SPEC.controllers}


def test_an_older_agent_is_not_known_and_says_why() -> None:
    first, *others = (node.id for node in SPEC.controllers)
    environment = read_environment(first)
    assert environment.addresses[first] is None
    assert all(environment.addresses[controller] for controller in others)
    assert any("address on its own machine" in text and "unknown verb" in text for text in environment.unread)
