"""Hooks: what they build from a connection, what *Test* answers, and that no secret leaves them."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Connection, dag, task
from airflow.sdk._shared.secrets_masker import redact
from confluent_kafka import KafkaException
from kafka.protocol.admin import DescribeClusterResponse
from kafka.protocol.sasl import SaslAuthenticateResponse, SaslHandshakeResponse

from airflow_provider_kmigrate.clients.admin import connect
from airflow_provider_kmigrate.clients.brokers_admin import Admin
from airflow_provider_kmigrate.clients.connections import KAFKA
from airflow_provider_kmigrate.clients.settings import HostSettings, KafkaSettings, WireSecurity, ZooKeeperSettings
from airflow_provider_kmigrate.core.cluster_state.model import ConnectionFacts, Partition
from airflow_provider_kmigrate.exceptions import KMigrateError, Refused
from airflow_provider_kmigrate.hooks import connections
from airflow_provider_kmigrate.hooks.connections import (
    BrokerHostHook,
    ClusterHooks,
    KafkaAdminHook,
    KRaftControllerHook,
    ZooKeeperHook,
)
from airflow_provider_kmigrate.spec import loads
from airflow_provider_kmigrate.utils.step_context import open_cluster
from tests.clients.fake_node import KRAFT, FakeNode, api_versions
from tests.kit.held import Held
from tests.kit.ports import closed_port

Define = Callable[..., str]
HOOKS = (ZooKeeperHook, KRaftControllerHook, BrokerHostHook)
API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE, CLUSTER = 18, 17, 36, 60
CANARY = f"canary-{uuid.uuid4().hex[:8]}"  # not literally here: Airflow stores the source of a DAG
PEM = f"-----BEGIN PRIVATE KEY-----\n{CANARY}-line-1\n{CANARY}-line-2\n-----END PRIVATE KEY-----\n"


class KafkaConnection:
    """A connection of the type `kafka`, as the settings of a cluster file read it."""

    conn_type = KAFKA

    def __init__(self, conn_id: str) -> None:
        self._conn_id = conn_id

    def settings(self) -> KafkaSettings:
        return KafkaAdminHook(self._conn_id).settings

    def get_conn(self) -> Admin:
        return Admin(self.settings(), timeout=0.2)

    def test_connection(self) -> tuple[bool, str]:
        try:
            self.get_conn().elect_preferred([Partition("t", 0, 0, (0,), (0,))], Held())
        except KMigrateError as error:
            return False, str(error)
        return True, ""


def controller_node(**fields: Any) -> FakeNode:
    """A controller that serves ApiVersions, DescribeCluster and any SASL PLAIN user."""
    cluster = DescribeClusterResponse(error_code=0, endpoint_type=2, cluster_id="c1", controller_id=3000, brokers=[])
    return FakeNode(
        {
            API_VERSIONS: api_versions(KRAFT, **fields),
            CLUSTER: cluster,
            SASL_HANDSHAKE: SaslHandshakeResponse(error_code=0, mechanisms=["PLAIN"]),
            SASL_AUTHENTICATE: SaslAuthenticateResponse(error_code=0, error_message=None, auth_bytes=b""),
        }
    )


class TestBuilding:
    def test_zookeeper(self, connection: Define) -> None:
        hook = ZooKeeperHook(connection("zk", "kmigrate_zookeeper", host="zk1,zk2/kafka", extra={"session_timeout": 5}))
        assert hook.settings == ZooKeeperSettings("zk1:2181,zk2:2181", "/kafka", session_timeout=5)

    def test_kafka(self, connection: Define) -> None:
        found = KafkaConnection(connection("kf", "kafka", extra={"bootstrap.servers": "k:9092", "socket.timeout.ms": 5}))
        assert found.settings().properties == {"bootstrap.servers": "k:9092", "socket.timeout.ms": "5"}

    def test_controllers(self, connection: Define) -> None:
        hook = KRaftControllerHook(connection("ctl", "kmigrate_controller", extra={"protocol": "SSL", "ca_file": "/ca"}))
        assert hook.security == WireSecurity("SSL", ca_file="/ca")
        with pytest.raises(Refused, match="has no host"):
            hook.get_conn()

    def test_brokers(self, connection: Define) -> None:
        hook = KafkaAdminHook(connection("kf", "kafka", extra={"bootstrap.servers": "k:9092", "socket.timeout.ms": 5}))
        assert hook.settings.properties == {"bootstrap.servers": "k:9092", "socket.timeout.ms": "5"}
        assert isinstance(hook.get_admin(), Admin)

    def test_hosts(self, connection: Define) -> None:
        hook = BrokerHostHook(connection("hosts", "kmigrate_host", extra={"environment": {"A": "x"}}))
        assert hook.get_conn() == HostSettings({"A": "x"})

    @pytest.mark.parametrize("hook", HOOKS)
    def test_a_hook_is_what_airflow_asks_of_one(self, hook: Any) -> None:
        assert all(
            isinstance(getattr(hook, name), str) for name in ("conn_name_attr", "default_conn_name", "conn_type", "hook_name")
        )
        assert getattr(hook(), hook.conn_name_attr) == hook.default_conn_name
        assert getattr(hook(**{hook.conn_name_attr: "other"}), hook.conn_name_attr) == "other"

    @pytest.mark.parametrize("hook", [*HOOKS, KafkaConnection])
    def test_a_missing_connection_says_how_to_create_it(self, hook: Any, airflow_db: None) -> None:
        with pytest.raises(Refused) as caught:
            hook("nowhere").get_conn()
        [reason] = caught.value.reasons
        assert reason.code == "N03"
        assert f"airflow connections add nowhere --conn-type {hook.conn_type}" in reason.text

    @pytest.mark.parametrize("hook", [*HOOKS, KafkaConnection])
    def test_a_connection_of_another_type_is_refused(self, hook: Any, connection: Define) -> None:
        with pytest.raises(Refused) as caught:
            hook(connection("web", "http", host="h:1", extra={"bootstrap.servers": "h:1"})).get_conn()
        assert [reason.code for reason in caught.value.reasons] == ["N03"]


CLUSTER_FILE = """\
name: prod
cluster_id: q1Sh-9_ISia_zwGINzRvyQ
zookeeper: {conn_id: zk}
kafka: {conn_id: kf}
hosts: {driver: agent, properties: /p, connect: node, conn_id: hosts}
brokers: [{id: 0, host: k}]
controllers: [{id: 3000, host: c, log_dir: /l}]
"""


class TestTools:
    def test_the_connections_of_a_cluster_file_become_its_clients(self, connection: Define) -> None:
        connection("zk", "kmigrate_zookeeper", host="zk1/kafka")
        any_name = {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "none"}
        connection("kf", "kafka", extra={"bootstrap.servers": "k:9092", **any_name})
        connection("hosts", "kmigrate_host", extra={"environment": {"A": "x"}})
        cluster = loads(CLUSTER_FILE)
        with ClusterHooks(cluster).open_tools() as tools:
            assert tools.chroot == "/kafka"
            assert [tools.wire(node).endpoint for node in cluster.nodes()] == ["k:9092", "c:9093"]
            assert tools.connections == ConnectionFacts(unverified=frozenset({"kafka"}), anonymous=True)

    def test_a_task_gets_the_clients_of_the_hooks_and_reads_each_connection_once(
        self, connection: Define, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        connection("zk", "kmigrate_zookeeper", host="zk1/kafka")
        connection("kf", "kafka", extra={"bootstrap.servers": "k:9092"})
        connection("ctl", "kmigrate_controller", extra={"protocol": "SSL", "ca_file": "/ca"})
        connection("hosts", "kmigrate_host")
        made: list[object] = []
        read: list[str] = []

        def noted(function: Callable[..., Any], notes: list[Any], of: Callable[[Any, Any], object]) -> Callable[..., Any]:
            def call(first: Any, *rest: Any) -> Any:
                answer = function(first, *rest)
                notes.append(of(first, answer))
                return answer

            return call

        for hook, name in ((ZooKeeperHook, "get_conn"), (KafkaAdminHook, "get_admin"), (KRaftControllerHook, "_connection")):
            monkeypatch.setattr(hook, name, noted(getattr(hook, name), made, lambda _, answer: answer))
        monkeypatch.setattr(connections, "get_connection", noted(connections.get_connection, read, lambda conn_id, _: conn_id))
        with open_cluster(loads(CLUSTER_FILE + "quorum: {conn_id: ctl, security_protocol: SSL}\n")) as access:
            clients = {id(client) for client in made}
            assert {id(access.tools.zk), id(access.tools.admin)} < clients
        assert len(made) == 3
        assert sorted(read) == ["ctl", "hosts", "kf", "zk"]

    @pytest.mark.parametrize("absent", ["zk", "kf", "hosts"])
    def test_a_missing_connection_is_refused_with_the_key_that_names_it(
        self, absent: str, connection: Define, airflow_db: None
    ) -> None:
        fields: dict[str, dict[str, Any]] = {
            "zk": {"conn_type": "kmigrate_zookeeper", "host": "zk1"},
            "kf": {"conn_type": "kafka", "extra": {"bootstrap.servers": "k:9092"}},
            "hosts": {"conn_type": "kmigrate_host"},
        }
        for conn_id in fields.keys() - {absent}:
            connection(conn_id, **fields[conn_id])
        with pytest.raises(Refused) as caught:
            ClusterHooks(loads(CLUSTER_FILE, "prod.yaml")).settings()
        [reason] = caught.value.reasons
        assert reason.code == "N03"
        assert f"{absent}," in reason.text
        assert ".conn_id in prod.yaml" in reason.text


class TestTestButton:
    """Through Airflow's own `Connection.test_connection`, as the API server and the worker call it."""

    def test_a_controller_that_answers(self) -> None:
        with controller_node(zk_migration_ready=True) as node:
            ok, text = Connection(conn_id="ctl", conn_type="kmigrate_controller", host=f"127.0.0.1:{node.port}").test_connection()
        assert ok, text
        assert f"127.0.0.1:{node.port}" in text
        assert "c1" in text
        assert "3000" in text

    def test_a_controller_that_refuses_the_password(self) -> None:
        extra = '{"protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}'
        with controller_node() as node:
            node.handlers[SASL_AUTHENTICATE] = SaslAuthenticateResponse(error_code=58, error_message="no", auth_bytes=b"")
            found = Connection(
                conn_id="ctl",
                conn_type="kmigrate_controller",
                host="127.0.0.1",
                port=node.port,
                login="u",
                password=CANARY,
                extra=extra,
            )
            ok, text = found.test_connection()
        assert not ok
        assert "Next: check this connection's user" in text
        assert CANARY not in text

    def test_without_a_controller_only_the_fields_are_checked(self) -> None:
        ok, text = Connection(conn_id="ctl", conn_type="kmigrate_controller").test_connection()
        assert ok, text
        assert "no controller was contacted" in text

    @pytest.mark.parametrize(
        ("conn_type", "fields"),
        [
            ("kmigrate_zookeeper", {"host": "127.0.0.1:{port}", "extra": '{{"connect_timeout": 2.0}}'}),
            ("kmigrate_controller", {"host": "127.0.0.1:{port}"}),
        ],
    )
    def test_an_address_without_a_server(self, conn_type: str, fields: dict[str, str]) -> None:
        port = closed_port()
        found = Connection(conn_id="c", conn_type=conn_type, **{name: text.format(port=port) for name, text in fields.items()})
        ok, text = found.test_connection()
        assert not ok
        assert str(port) in text
        assert "Next: check the address" in text

    def test_hosts_are_not_run(self) -> None:
        extra = f'{{"secret_environment": {{"TOKEN": "{CANARY}"}}}}'
        ok, text = Connection(conn_id="hosts", conn_type="kmigrate_host", extra=extra).test_connection()
        assert ok, text
        assert "TOKEN" in text
        assert CANARY not in text

    @pytest.mark.parametrize("conn_type", ["kmigrate_zookeeper", "kmigrate_controller", "kmigrate_host"])
    def test_every_wrong_field_is_named(self, conn_type: str) -> None:
        ok, text = Connection(conn_id="c", conn_type=conn_type, host="h", extra='{"typo": 1, "use-tls": true}').test_connection()
        assert not ok
        assert "typo" in text
        assert "use-tls" in text


SECRETIVE = {
    "zk": {"conn_type": "kmigrate_zookeeper", "host": "127.0.0.1:1", "login": "u", "password": f"{CANARY}-zk", "extra": {"connect_timeout": 0.3}},
    "zk_tls": {"conn_type": "kmigrate_zookeeper", "host": "127.0.0.1:1", "extra": {"use_tls": True, "cert_file": "/none", "key_password": f"{CANARY}-kp", "connect_timeout": 0.3}},
    "zk_wrong": {"conn_type": "kmigrate_zookeeper", "host": "h", "extra": {"digest": f"u:{CANARY}-dg", "auth_data": [["digest", f"{CANARY}-ad"]]}},
    "kf": {
        "conn_type": "kafka",
        "extra": {
            "bootstrap.servers": "127.0.0.1:1",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "u",
            "sasl.password": f"{CANARY}-sp",
            "socket.timeout.ms": 300,
            "debug": "all",
        },
    },
    "kf_wrong": {"conn_type": "kafka", "extra": {"bootstrap.servers": "h:1", "ssl.key.pem": PEM, "ssl.key.password": f"{CANARY}-kk"}},
    "kf_jaas": {"conn_type": "kafka", "extra": {"bootstrap.servers": "127.0.0.1:1", "sasl.jaas.config": f'X required password="{CANARY}-jaas";'}},
    "ctl": {"conn_type": "kmigrate_controller", "host": "127.0.0.1:1", "login": "u", "password": f"{CANARY}-ct", "extra": {"protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}},
    "hosts": {"conn_type": "kmigrate_host", "extra": {"secret_environment": {"TOKEN": f"{CANARY}-se"}, "environment": {"DB_PASSWORD": f"{CANARY}-ep"}}},
}  # fmt: skip
BY_TYPE: dict[str, Any] = {hook.conn_type: hook for hook in (*HOOKS, KafkaConnection)}


class TestCanaries:
    """Secrets planted in every place of every connection; nothing that users can read may have them."""

    @pytest.mark.parametrize("conn_id", SECRETIVE)
    def test_no_secret_in_answers_reprs_logs_or_output(
        self, conn_id: str, connection: Define, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
    ) -> None:
        caplog.set_level(logging.DEBUG)
        hook = BY_TYPE[SECRETIVE[conn_id]["conn_type"]](connection(conn_id, **SECRETIVE[conn_id]))
        seen = [repr(hook), repr(vars(hook)), repr(hook.test_connection())]
        try:
            client = hook.get_conn()
            seen += [repr(client), str(client)]
        except Refused as refused:
            seen += [str(refused), repr(refused), repr(refused.reasons)]
        captured = capfd.readouterr()
        seen += [caplog.text, captured.out, captured.err]
        assert [text for text in seen if CANARY in text] == []

    def test_librdkafka_logs_no_secret(
        self, connection: Define, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """It logs by itself, and at `debug` it logs much."""
        caplog.set_level(logging.DEBUG)
        client = connect(KafkaConnection(connection("kf", **SECRETIVE["kf"])).settings().properties)
        with pytest.raises(KafkaException) as caught:
            client.list_topics(timeout=0.2)
        captured = capfd.readouterr()
        assert CANARY not in f"{caught.value}{caplog.text}{captured.out}{captured.err}"

    @pytest.mark.parametrize("conn_id", SECRETIVE)
    def test_airflows_masker_knows_every_secret_once_a_hook_has_read_it(self, conn_id: str, connection: Define) -> None:
        found = SECRETIVE[conn_id]
        BY_TYPE[found["conn_type"]](connection(conn_id, **found)).test_connection()
        careless = [f"password is {found.get('password')}", *(f"{key}={value}" for key, value in found.get("extra", {}).items())]
        careless += PEM.splitlines() if conn_id == "kf_wrong" else []
        assert [line for line in careless if CANARY in str(redact(line))] == []

    @pytest.mark.slow
    def test_a_run_leaves_no_secret_in_logs_or_database(
        self, run_dag: Callable[..., Any], connection: Define, airflow_home: Path
    ) -> None:
        for conn_id, fields in SECRETIVE.items():
            connection(conn_id, **fields)

        @dag(dag_id="canaries", schedule=None)
        def canaries() -> None:
            @task
            def press() -> list[str]:
                hooks = [BY_TYPE[fields["conn_type"]](conn_id) for conn_id, fields in SECRETIVE.items()]
                answers = [str(hook.test_connection()) for hook in hooks]
                hooks[0].log.info("The answers: %s", answers)
                return answers

            press()

        run = run_dag(canaries())
        assert run.state == "success"
        files = [path for path in airflow_home.rglob("*") if path.is_file()]
        assert any(path.name == "unit.db" for path in files)
        assert [str(path) for path in files if CANARY.encode() in path.read_bytes()] == []
