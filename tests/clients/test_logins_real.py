"""A real broker whose only listener is OAUTHBEARER, then Kerberos alone: kmigrate reads it, and its controller acts, without another listener."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from airflow_provider_kmigrate.clients import oauth
from airflow_provider_kmigrate.clients.admin import read_cluster_id, read_marks
from airflow_provider_kmigrate.clients.brokers_admin import Admin
from airflow_provider_kmigrate.clients.group_reads import sweep
from airflow_provider_kmigrate.clients.identity import security_from_kafka
from airflow_provider_kmigrate.clients.settings import KafkaSettings
from airflow_provider_kmigrate.clients.wire import Wire, describe_log_dirs, list_reassignments, read_startup_config
from airflow_provider_kmigrate.core.cluster_state.model import Partition
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, KMigrateError, Unavailable
from tests.kit import kdc, token_server
from tests.kit.held import Held
from tests.kit.kdc import Kdc
from tests.kit.localcluster.cluster import LocalCluster, lent
from tests.kit.localcluster.plan import Shape
from tests.kit.logins import (
    SECRETS,
    bootstrap_of,
    kerberos_client,
    kerberos_keys,
    oauth_client,
    oauth_keys,
    restart_with_sole_listener,
)
from tests.kit.token_server import TokenServer
from tests.waiting import refusing_port, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.long]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with lent(tmp_path_factory.mktemp("small"), Shape(name="small", brokers=1, controllers=1, racks=0)) as there:
        admin = AdminClient({"bootstrap.servers": there.bootstrap})
        admin.create_topics([NewTopic("logins", 1, 1)])["logins"].result(30)
        yield there


def read_and_act(small: LocalCluster, properties: Mapping[str, str]) -> None:
    """What a migration asks of brokers, and the acts of its controller."""
    (node,) = small.plan.brokers
    settings = KafkaSettings(properties)
    with Wire("localhost", node.port, security_from_kafka(settings), timeout=10.0) as wire:
        wait_until(lambda: wire.metadata().broker_ids == {0}, "the broker serves", despite=(Unavailable,), timeout=60.0)
        assert wire.metadata().cluster_id == small.plan.cluster_id
        assert read_startup_config(wire, 0).values["inter.broker.listener.name"] == "ONLY"
        (log_dir,) = describe_log_dirs(wire)
        assert log_dir.error == ""
        assert (log_dir.usable_bytes or 0) > 1 << 20, "of the disk"
        assert list_reassignments(wire) == ()
        wait_until(lambda: "logins" in wire.topics(), "its controller has told it of its topics", despite=(Unavailable,))
        count = len(wire.topics()["logins"].partitions)
        Admin(settings).add_partitions("logins", [(0,)], count, Held())
        wait_until(lambda: len(wire.topics()["logins"].partitions) == count + 1, "the new partition")
        Admin(settings).elect_preferred([Partition("logins", 0, 0, (0,), (0,)), Partition("no-such", 0, -1, (0,), (0,))], Held())
        assert wire.log_offsets([("logins", count)]) == {("logins", count): 0}
    assert sweep(properties, 10.0, [0]).unresponsive == ()


class TestOAuth:
    @pytest.fixture(scope="class")
    @classmethod
    def server(cls, small: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenServer]:
        with token_server.running(tmp_path_factory.mktemp("tokens"), SECRETS) as server:
            restart_with_sole_listener(small.plan, "OAUTHBEARER", oauth_keys(server), 2)
            yield server

    def test_client_credentials(self, small: LocalCluster, server: TokenServer) -> None:
        read_and_act(small, oauth_client(bootstrap_of(small.plan), server))

    def test_librdkafka_has_the_same_identity(self, small: LocalCluster, server: TokenServer) -> None:
        properties = oauth_client(bootstrap_of(small.plan), server)
        assert read_cluster_id(properties) == small.plan.cluster_id
        assert read_marks(properties, ["logins"])[TopicPartition("logins", 0)].end == 0

    def test_a_fixed_token_for_both_clients(self, small: LocalCluster, server: TokenServer) -> None:
        login = security_from_kafka(KafkaSettings(oauth_client(bootstrap_of(small.plan), server))).oauth
        assert login is not None
        token = oauth.token_for(login, "test", oauth.Deadline(10.0))
        fixed = {
            name: value for name, value in oauth_client(bootstrap_of(small.plan), server).items() if "oauthbearer" not in name
        }
        fixed["sasl.oauthbearer.token"] = token
        read_and_act(small, fixed)
        assert read_cluster_id(fixed) == small.plan.cluster_id

    def test_a_token_that_the_broker_does_not_trust(self, small: LocalCluster, server: TokenServer) -> None:
        (node,) = small.plan.brokers
        forged = {**oauth_client(bootstrap_of(small.plan), server), "sasl.oauthbearer.token": "e30.e30.canary"}
        with Wire("localhost", node.port, security_from_kafka(KafkaSettings(forged)), timeout=10.0) as wire:
            with pytest.raises(AuthenticationFailed, match="SASL OAUTHBEARER") as error:
                wire.metadata()
            assert "canary" not in str(error.value)

    def test_a_refused_client(self, small: LocalCluster, server: TokenServer) -> None:
        (node,) = small.plan.brokers
        wrong = KafkaSettings(oauth_client(bootstrap_of(small.plan), server, "wrong"))
        with (
            Wire("localhost", node.port, security_from_kafka(wrong)) as wire,
            pytest.raises(AuthenticationFailed, match="invalid_client"),
        ):
            wire.metadata()


@kdc.needs_kerberos
class TestKerberos:
    @pytest.fixture(scope="class")
    @classmethod
    def realm(cls, small: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kdc]:
        with kdc.running(tmp_path_factory.mktemp("kdc")) as realm, pytest.MonkeyPatch.context() as patch:
            for name in ("KRB5_CONFIG", "KRB5CCNAME"):
                patch.setenv(name, realm.environment[name])
            switch = f"-Djava.security.krb5.conf={realm.configuration}"
            restart_with_sole_listener(small.plan, "GSSAPI", kerberos_keys(realm), 3, [switch])
            yield realm

    def refusal(self, small: LocalCluster, keytab: Path | None, **more: str) -> str:
        """Why the login fails; empty if it does not."""
        (node,) = small.plan.brokers
        security = security_from_kafka(KafkaSettings({**kerberos_client(bootstrap_of(small.plan), keytab), **more}))
        with Wire("localhost", node.port, security, timeout=10.0) as wire:
            try:
                wire.metadata()
            except KMigrateError as error:
                return str(error) if "SASL GSSAPI" in str(error) else ""
        return ""

    def test_a_keytab(self, small: LocalCluster, realm: Kdc) -> None:
        read_and_act(small, kerberos_client(bootstrap_of(small.plan), realm.add("kmigrate")))

    def test_what_is_missing_is_named(self, small: LocalCluster, realm: Kdc) -> None:
        assert "there is no ticket" in self.refusal(small, None)
        keytab = realm.add("other")
        assert "no key of kmigrate's principal" in self.refusal(small, keytab, **{"sasl.kerberos.principal": "stranger"})
        assert "no key of kmigrate's principal" in self.refusal(small, keytab, **{"sasl.kerberos.principal": "other@WRONG.REALM"})
        assert "does not know the broker" in self.refusal(small, keytab, **{"sasl.kerberos.service.name": "kafca"})
        keytab.chmod(0o644)
        assert "readable by others (mode 0644)" in self.refusal(small, keytab)
        assert "cannot be read" in self.refusal(small, keytab.with_suffix(".gone"))

    def test_an_old_key_and_a_principal_that_was_removed(self, small: LocalCluster, realm: Kdc) -> None:
        keytab = realm.add("changed")
        realm.run("kadmin.local", "-r", kdc.REALM, "cpw", "-randkey", "changed")
        assert "an old key" in self.refusal(small, keytab)
        keytab = realm.add("removed")
        realm.run("kadmin.local", "-r", kdc.REALM, "delprinc", "-force", "removed")
        assert "does not know kmigrate's principal" in self.refusal(small, keytab)

    def test_a_realm_without_a_kdc(
        self, small: LocalCluster, realm: Kdc, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        keytab, configuration = realm.add("elsewhere"), tmp_path / "krb5.conf"
        text = realm.configuration.read_text()
        monkeypatch.setenv("KRB5_CONFIG", str(configuration))
        configuration.write_text(text.partition("[realms]")[0])
        assert "no KDC is known for the realm" in self.refusal(small, keytab)
        with refusing_port() as port:
            configuration.write_text(text.replace(f":{realm.port}", f":{port}"))
            assert "no KDC of the realm answers" in self.refusal(small, keytab)

    def test_an_expired_ticket(self, small: LocalCluster, realm: Kdc, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        keytab, cache = realm.add("brief"), tmp_path / "tickets"
        monkeypatch.setenv("KRB5CCNAME", f"FILE:{cache}")
        realm.run("kinit", "-c", str(cache), "-l", "2s", "-k", "-t", str(keytab), "brief")
        wait_until(lambda: "expired" in self.refusal(small, None), "the ticket's end", timeout=30.0)
