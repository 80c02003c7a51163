"""Whom the observer asks for KRaft's side, and what each silence means."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol.admin import DescribeAclsRequest, DescribeClientQuotasRequest, DescribeConfigsRequest

from airflow_provider_kmigrate.clients.wire import ApiVersions
from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, Stored, StoredKind
from airflow_provider_kmigrate.core.cluster_state.spec import HostSpec, NodeRole, NodeSpec
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, KMigrateError, TimedOut, Unavailable, Unreachable
from airflow_provider_kmigrate.observe.stored import StoredReads, read_credentials
from tests.clients.no_znodes import NoZnodes

KRAFT, MIGRATION = BrokerMode.KRAFT, BrokerMode.MIGRATION
VERSIONS = {KRAFT: ApiVersions({55: (0, 2)}, migration_ready=True), MIGRATION: ApiVersions({}, migration_ready=True)}
REPORTED = (StoredKind.QUOTAS, StoredKind.CREDENTIALS, StoredKind.ACLS, StoredKind.TOKENS)


def node(number: int, role: NodeRole) -> NodeSpec:
    return NodeSpec(number, role, "h", number, HostSpec("agent", "p"))


class Node:
    """A wire that answers every request with its own number in it, or with the error or the error code that it was given."""

    def __init__(self, number: int, answer: BrokerMode | KMigrateError | None) -> None:
        self.number, self._answer = number, answer
        self.endpoint = str(number)
        self.asked: list[str] = []
        self.refuses: dict[Any, KMigrateError | int] = {}

    def api_versions(self) -> ApiVersions:
        if isinstance(self._answer, KMigrateError):
            raise self._answer
        return VERSIONS[self._answer or KRAFT]

    def ask(self, request: Any, lowest: int, highest: int, **fields: Any) -> SimpleNamespace:
        self.asked.append(request.__name__)
        refused = self.refuses.get(request, 0)
        if isinstance(refused, KMigrateError):
            raise refused
        return SimpleNamespace(error_code=refused, error_message=None, **self._content(fields))

    def _content(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Every field that any of the answers has."""
        name, new = str(self.number), SimpleNamespace
        default = not fields.get("resources") or not fields["resources"][0].resource_name
        setting = new(name="num.io.threads", value=name, source=3 if default else 2)
        rule = new(principal="User:a", host="*", operation=3, permission_type=3)
        token = {"principal_type": "User", "principal_name": "a", "issue_timestamp": 1, "expiry_timestamp": 2, "max_timestamp": 3}
        fine = {"error_code": 0, "error_message": None}
        return {
            "entries": [new(entity=[new(entity_type="user", entity_name=name)], values=[new(key="q", value=1.0)])],
            "results": [
                new(**fine, user=name, credential_infos=[new(mechanism=1, iterations=1)], configs=[new(synonyms=[setting])])
            ],
            "resources": [new(resource_type=2, resource_name=name, pattern_type=3, acls=[rule])],
            "tokens": [new(**token, token_id=name, renewers=[])],
            "transaction_states": [new(producer_id=self.number)],
        }


class Cluster:
    """Brokers 0.. in these modes (an error: it does not answer), and controller 3000."""

    def __init__(self, *modes: BrokerMode | KMigrateError, zk: NoZnodes | None = None) -> None:
        self.wires = {number: Node(number, mode) for number, mode in enumerate(modes)} | {3000: Node(3000, None)}
        self.zk = zk or NoZnodes()
        brokers = [node(number, NodeRole.BROKER) for number in range(len(modes))]
        self.reads = StoredReads(brokers, [node(3000, NodeRole.CONTROLLER)], self)  # type: ignore[arg-type]

    def wire(self, spec: NodeSpec) -> Node:
        return self.wires[spec.id]

    def stored(self, kind: StoredKind) -> Stored:
        return self.reads.read_everything().stored[kind]


def test_a_broker_in_kraft_mode_tells_everything() -> None:
    cluster = Cluster(MIGRATION, KRAFT, KRAFT)
    found = cluster.reads.read_everything()
    assert found.unread == ()
    assert set(found.stored) == set(StoredKind)
    assert {kind: set(found.stored[kind].kraft) for kind in REPORTED} == {
        StoredKind.QUOTAS: {"user 1"},
        StoredKind.CREDENTIALS: {"user 1"},
        StoredKind.ACLS: {"topic 1"},
        StoredKind.TOKENS: {"token 1"},
    }
    assert set(cluster.wires[0].asked) == {"ListTransactionsRequest"}, "it would tell what ZooKeeper has"


def test_before_that_controllers_report_acls_and_no_node_the_rest() -> None:
    stored = Cluster(MIGRATION, MIGRATION).reads.read_everything().stored
    assert set(stored[StoredKind.ACLS].kraft) == {"topic 3000"}
    assert {kind for kind in REPORTED if Stored.EVERY in stored[kind].unreported} == set(REPORTED) - {StoredKind.ACLS}


def test_each_broker_tells_its_own_settings() -> None:
    cluster = Cluster(KRAFT, MIGRATION, TimedOut("slow"), zk=NoZnodes(("0", "1", "7", "<default>")))
    settings = cluster.stored(StoredKind.BROKER_SETTINGS)
    assert settings.kraft == {"broker 0": {"num.io.threads": "0"}, "all brokers": {"num.io.threads": "0"}}
    assert set(settings.unreported) == {"broker 1", "broker 2", "broker 7"}
    assert len(set(settings.unreported.values())) == 3, "each for a reason of its own"


def test_a_controller_reports_the_default_while_no_broker_can() -> None:
    assert Cluster(MIGRATION).stored(StoredKind.BROKER_SETTINGS).kraft == {"all brokers": {"num.io.threads": "3000"}}


def test_the_highest_producer_id_of_all_brokers() -> None:
    ids = Cluster(MIGRATION, KRAFT, MIGRATION).stored(StoredKind.PRODUCER_IDS)
    assert ids.kraft == {"producer ids": {"highest": "2"}}


def test_another_node_is_asked_where_one_fails() -> None:
    cluster = Cluster(KRAFT, KRAFT)
    cluster.wires[0].refuses = {DescribeClientQuotasRequest: TimedOut("slow")}
    assert set(cluster.stored(StoredKind.QUOTAS).kraft) == {"user 1"}


def test_a_kind_that_no_broker_reported_is_unread_and_the_others_are_not() -> None:
    cluster = Cluster(KRAFT, KRAFT)
    for each in (0, 1):
        cluster.wires[each].refuses = {DescribeClientQuotasRequest: TimedOut("slow")}
    found = cluster.reads.read_everything()
    assert set(found.stored) == set(StoredKind) - {StoredKind.QUOTAS}
    assert [(reason.code, "quotas: slow" in reason.text) for reason in found.unread] == [("U05", True)]


def test_a_broker_that_fails_to_tell_its_settings_leaves_them_unread() -> None:
    cluster = Cluster(KRAFT, KRAFT)
    cluster.wires[1].refuses = {DescribeConfigsRequest: TimedOut("slow")}
    assert StoredKind.BROKER_SETTINGS not in cluster.reads.read_everything().stored


def test_no_authorizer_is_an_answer_and_no_other_broker_is_asked() -> None:
    cluster = Cluster(KRAFT, KRAFT)
    cluster.wires[0].refuses = {DescribeAclsRequest: 54}
    assert Stored.EVERY in cluster.stored(StoredKind.ACLS).unreported
    assert "DescribeAclsRequest" not in cluster.wires[1].asked


def test_without_zookeeper_nothing_is_known() -> None:
    found = Cluster(KRAFT, zk=NoZnodes(refuses=Unreachable("gone"))).reads.read_everything()
    assert found.stored == {}
    assert len(found.unread) == len(StoredKind)


def test_where_no_broker_answers_nothing_is_compared() -> None:
    cluster = Cluster(TimedOut("a"), TimedOut("b"))
    with pytest.raises(Unavailable):
        cluster.reads.read_everything()


def test_a_refused_right_ends_the_look() -> None:
    cluster = Cluster(KRAFT, KRAFT)
    cluster.wires[0].refuses = {DescribeAclsRequest: 31}
    with pytest.raises(AuthenticationFailed):
        cluster.reads.read_everything()


def test_a_credential_that_a_broker_does_not_report_is_not_taken_for_absent() -> None:
    refused = SimpleNamespace(error_code=31, error_message="no permission", user="a", credential_infos=[])
    wire: Any = SimpleNamespace(
        endpoint="0", ask=lambda *_, **__: SimpleNamespace(error_code=0, error_message=None, results=[refused])
    )
    with pytest.raises(AuthenticationFailed, match="DescribeUserScramCredentials"):
        read_credentials(wire)
