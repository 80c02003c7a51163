"""The wire client on a real controller, and on a real broker behind TLS and SASL."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from authority import VALID_DAYS, Authority
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from airflow_provider_kmigrate.clients.settings import ClusterSettings, KafkaSettings, WireSecurity, ZooKeeperSettings
from airflow_provider_kmigrate.clients.tools import open_tools
from airflow_provider_kmigrate.clients.wire import NotLeader, Wire
from airflow_provider_kmigrate.core.cluster_state.model import Fields, Migration
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage
from airflow_provider_kmigrate.core.node_files.properties import RenderFacts, render_controller_file
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, Failed, KMigrateError, Unavailable
from airflow_provider_kmigrate.observe import Observer
from tests.kit.localcluster.agents import agent_of
from tests.kit.localcluster.cluster import LocalCluster, lent
from tests.kit.localcluster.plan import Shape, free_ports
from tests.waiting import wait_until

pytestmark = pytest.mark.cluster

VERSION = "3.9-IV0"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with lent(tmp_path_factory.mktemp("small"), Shape(name="small", brokers=1, controllers=2, racks=0, chroot="/small")) as there:
        yield there


class TestControllers:
    """Two controllers beside one broker: they wait in pre-migration."""

    @pytest.fixture(scope="class")
    def spec(self, small: LocalCluster) -> ClusterSpec:
        spec = ClusterSpec("small", small.plan.cluster_id, "zk", "kafka", small.plan.brokers, small.plan.controllers)
        broker = spec.brokers[0]
        original = Path(broker.hosts.properties).read_text()
        for node in spec.controllers:
            text = render_controller_file(original, node, FileStage.CONTROLLER_MIGRATION, RenderFacts.of(spec, VERSION))
            with agent_of(node, spec.cluster_id) as host:
                host.put_properties(node, text, 1)
                host.format_storage(node, spec.cluster_id, VERSION, 1)
                host.start(node, 1)
        return spec

    def test_one_of_them_leads_and_describes_the_quorum(self, spec: ClusterSpec) -> None:
        wires = {node.id: Wire(node.host, node.port) for node in spec.controllers}
        leaders: list[int] = []

        def elected() -> bool:
            leaders[:] = [number for number, wire in wires.items() if leads(wire)]
            return len(leaders) == 1

        wait_until(elected, "a leader", despite=(Unavailable,))
        quorum = wires[leaders[0]].describe_quorum()
        assert quorum.leader_id == leaders[0]
        assert set(quorum.voters) == set(wires)
        assert quorum.high_watermark > 0
        follower = next(wire for number, wire in wires.items() if number != leaders[0])
        with pytest.raises(NotLeader):
            follower.describe_quorum()
        wait_until(lambda: knows_controllers(follower, 2), "its metadata", despite=(Unavailable,))
        cluster_id, leader, endpoints = follower.describe_cluster()
        assert (cluster_id, leader) == (spec.cluster_id, leaders[0])
        assert endpoints == {node.id: (node.host, node.port) for node in spec.controllers}
        with pytest.raises(Failed):
            follower.metadata()

    def test_the_observer_sees_them_ready(self, spec: ClusterSpec, small: LocalCluster) -> None:
        zookeeper = ZooKeeperSettings(small.plan.zookeeper, small.plan.shape.chroot)
        settings = ClusterSettings(
            zookeeper, KafkaSettings({"bootstrap.servers": small.bootstrap}), WireSecurity(), WireSecurity()
        )
        with open_tools(settings) as tools, Observer(spec, tools) as observer:
            what = Fields.CONTROLLERS | Fields.QUORUM | Fields.ZOOKEEPER | Fields.BROKERS

            def settled() -> bool:
                seen = observer.observe(what)
                return seen.quorum is not None and seen.metadata_version is not None

            wait_until(settled, "a quorum that has loaded its metadata", despite=(Unavailable,))
            view = observer.observe(what)
            assert all(controller.migration_flag for controller in view.controllers.values())
            assert view.metadata_version == VERSION
            assert view.zk is not None
            assert isinstance(view.zk.migration, Migration)
            assert view.zk.migration.metadata_offset == -1, "nothing was copied"


def knows_controllers(wire: Wire, number: int) -> bool:
    try:
        _, leader, endpoints = wire.describe_cluster()
    except Failed:  # it has not loaded its metadata version yet
        return False
    return leader >= 0 and len(endpoints) == number


def leads(wire: Wire) -> bool:
    try:
        wire.describe_quorum()
    except NotLeader:
        return False
    return True


class TestSecureListener:
    """A listener with TLS, our certificate asked for, and PLAIN or SCRAM inside."""

    PASSWORDS = (("PLAIN", "plain-password"), ("SCRAM-SHA-256", "scram-password"), ("SCRAM-SHA-512", "scram-password"))

    @pytest.fixture(scope="class")
    def authority(self, tmp_path_factory: pytest.TempPathFactory) -> Authority:
        return Authority(tmp_path_factory.mktemp("tls"))

    @pytest.fixture(scope="class")
    def port(self, small: LocalCluster, authority: Authority) -> int:
        """The broker is restarted with one more listener."""
        (port,) = free_ports(1)
        node = small.plan.brokers[0]
        admin = AdminClient({"bootstrap.servers": small.bootstrap})
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            upsert = UserScramCredentialUpsertion("observer", ScramCredentialInfo(mechanism, 4096), b"scram-password")
            for done in admin.alter_user_scram_credentials([upsert]).values():
                done.result(timeout=30)
        with agent_of(node, small.plan.cluster_id) as host:
            host.put_properties(node, with_secure_listener(host.read_properties(node), port, authority), 2)
            host.stop(node, 2)
            host.start(node, 2)
        with Wire(node.host, node.port) as wire:
            wait_until(lambda: wire.metadata().broker_ids == {0}, "the broker serves again", despite=(Unavailable,))
        return port

    @staticmethod
    def security(authority: Authority, mechanism: str, password: str, name: str = "observer") -> WireSecurity:
        certificate, key = authority.issue("client")
        return WireSecurity(
            "SASL_SSL",
            ca_file=authority.ca,
            cert_file=certificate,
            key_file=key,
            sasl_mechanism=mechanism,
            sasl_user=name,
            sasl_password=password,
        )

    @pytest.mark.parametrize(("mechanism", "password"), PASSWORDS)
    def test_the_right_identity(
        self, port: int, small: LocalCluster, authority: Authority, mechanism: str, password: str
    ) -> None:
        with Wire("127.0.0.1", port, self.security(authority, mechanism, password)) as wire:
            assert wire.metadata().cluster_id == small.plan.cluster_id
            assert wire.api_versions().keys
            assert abs(wire.certificate().end - time.time() - 86_400 * VALID_DAYS) < 600

    @pytest.mark.parametrize("mechanism", [mechanism for mechanism, _ in PASSWORDS])
    def test_a_wrong_password(self, port: int, authority: Authority, mechanism: str) -> None:
        with Wire("127.0.0.1", port, self.security(authority, mechanism, "wrong")) as wire, pytest.raises(AuthenticationFailed):
            wire.metadata()

    def test_no_certificate(self, port: int, authority: Authority) -> None:
        bare = WireSecurity(
            "SASL_SSL", ca_file=authority.ca, sasl_mechanism="PLAIN", sasl_user="observer", sasl_password="plain-password"
        )
        with Wire("127.0.0.1", port, bare) as wire, pytest.raises(AuthenticationFailed):
            wire.metadata()

    def test_without_tls(self, port: int) -> None:
        with Wire("127.0.0.1", port, timeout=3.0) as wire, pytest.raises(KMigrateError):
            wire.metadata()


def with_secure_listener(properties: str, port: int, authority: Authority) -> str:
    certificate, key = authority.issue("broker")
    store = Path(authority.folder) / "broker-store.pem"
    store.write_bytes(Path(key).read_bytes() + Path(certificate).read_bytes())
    lines = []
    for line in properties.splitlines():
        key_of, _, value = line.partition("=")
        added = {"listeners": f",SECURE://127.0.0.1:{port}", "advertised.listeners": f",SECURE://127.0.0.1:{port}"}
        lines.append(f"{key_of}={value}{added[key_of]}" if key_of in added else line)
    prefix = "listener.name.secure"
    login = "org.apache.kafka.common.security"
    lines += [
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SECURE:SASL_SSL",
        f"{prefix}.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        f'{prefix}.plain.sasl.jaas.config={login}.plain.PlainLoginModule required user_observer="plain-password";',
        f"{prefix}.scram-sha-256.sasl.jaas.config={login}.scram.ScramLoginModule required;",
        f"{prefix}.scram-sha-512.sasl.jaas.config={login}.scram.ScramLoginModule required;",
        f"{prefix}.ssl.keystore.type=PEM",
        f"{prefix}.ssl.keystore.location={store}",
        f"{prefix}.ssl.truststore.type=PEM",
        f"{prefix}.ssl.truststore.location={authority.ca}",
        f"{prefix}.ssl.client.auth=required",
    ]
    return "\n".join(lines) + "\n"
