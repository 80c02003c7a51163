"""There, back, there again and finalized on clusters that speak OAUTHBEARER or Kerberos alone, and with a ZooKeeper by SASL alone or TLS."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka.admin import AdminClient, NewTopic

from airflow_provider_kmigrate.clients.identity import security_from_kafka
from airflow_provider_kmigrate.clients.settings import KafkaSettings
from airflow_provider_kmigrate.clients.wire import Wire
from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec
from airflow_provider_kmigrate.core.migration.phase import Phase, position_of
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, Unavailable
from airflow_provider_kmigrate.spec import load
from airflow_provider_kmigrate.steps.catalog import run_rollback
from airflow_provider_kmigrate.steps.prepare import run_preflight
from benchmarks import direct
from tests.clients.authority import Authority
from tests.kit import kdc, token_server
from tests.kit.localcluster.cluster import LocalCluster, lent
from tests.kit.localcluster.jaas import digest_login
from tests.kit.localcluster.plan import Shape, free_ports
from tests.kit.logins import (
    NAME,
    SECRETS,
    bootstrap_of,
    kerberos_client,
    kerberos_keys,
    kerberos_login,
    oauth_client,
    oauth_keys,
    restart_with_sole_listener,
    restart_with_sole_zookeeper_login,
    restart_with_zookeeper_tls,
    write_store,
)
from tests.system import evidence
from tests.waiting import wait_until

_TOKEN_S = 15.0

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.proof, pytest.mark.timeout(900)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with lent(tmp_path / "cluster", Shape(name="logins", brokers=3, controllers=1)) as there:
        admin = AdminClient({"bootstrap.servers": there.bootstrap})
        admin.create_topics([NewTopic("orders", 6, 3)])["orders"].result(30)
        yield there


def test_oauth_alone(cluster: LocalCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with token_server.running(tmp_path, SECRETS) as server:
        restart_with_sole_listener(cluster.plan, "OAUTHBEARER", oauth_keys(server), 1)
        migrate_there_and_back_and_there(cluster, *named_nodes(cluster, oauth_client(bootstrap_of(cluster.plan), server)))
    reported = capsys.readouterr()
    journals = "".join(path.read_text() for path in (tmp_path / "kmigrate" / "journal").glob("*.jsonl"))
    assert journals
    assert not [secret for secret in SECRETS.values() if secret in f"{reported.out}{reported.err}{journals}"]


@kdc.needs_kerberos
def test_kerberos_alone(cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with kdc.running(tmp_path) as realm:
        for name in ("KRB5_CONFIG", "KRB5CCNAME"):
            monkeypatch.setenv(name, realm.environment[name])
        switch = f"-Djava.security.krb5.conf={realm.configuration}"
        restart_with_sole_listener(cluster.plan, "GSSAPI", kerberos_keys(realm), 1, [switch])
        keytab = realm.add("kmigrate")
        migrate_there_and_back_and_there(cluster, *named_nodes(cluster, kerberos_client(bootstrap_of(cluster.plan), keytab)))


@kdc.needs_pure_sasl
def test_a_zookeeper_that_takes_digest_alone(cluster: LocalCluster) -> None:
    server, client = digest_login("kafka", SECRETS["broker"])
    restart_with_sole_zookeeper_login(cluster.plan, server, client, 1)
    known = {"sasl_mechanism": "DIGEST-MD5"}
    wrong = {"password": ({**known}, "canary-wrong", "ZooKeeper does not accept the user or password")}
    go_with_zookeeper_login(cluster, known, ("kafka", SECRETS["broker"]), wrong)


@kdc.needs_kerberos
def test_a_zookeeper_that_takes_kerberos_alone(cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers, controllers and kmigrate log in there by the brokers' principal; what brokers create is closed to all others."""
    with kdc.running(tmp_path) as realm:
        for name in ("KRB5_CONFIG", "KRB5CCNAME"):
            monkeypatch.setenv(name, realm.environment[name])
        service, ours = f"zookeeper/{NAME}", f"kafka/{NAME}"
        server, keytab = kerberos_login(realm.add(service), service), realm.add(ours)
        switch = f"-Djava.security.krb5.conf={realm.configuration}"
        restart_with_sole_zookeeper_login(cluster.plan, server, kerberos_login(keytab, ours), 1, [switch])
        known = {"sasl_mechanism": "GSSAPI", "keytab": str(keytab), "principal": ours}
        wrong = {
            "no ticket": ({"sasl_mechanism": "GSSAPI"}, "", "there is no ticket"),
            "keytab": ({**known, "keytab": str(tmp_path / "gone")}, "", "cannot be read"),
            "realm": ({**known, "principal": f"{ours}@WRONG.REALM"}, "", "no key of kmigrate's principal"),
            "no login": ({}, "", "SASL only"),
        }
        go_with_zookeeper_login(cluster, known, ("", ""), wrong)


def test_a_zookeeper_by_tls(cluster: LocalCluster, tmp_path: Path) -> None:
    """With host names, a certificate of each side, and znodes that are closed to all but the brokers' certificate."""
    (tmp_path / "stranger").mkdir()
    authority, stranger = Authority(tmp_path), Authority(tmp_path / "stranger")
    certificate, key = authority.issue("kafka")
    (port,) = free_ports(1)
    restart_with_zookeeper_tls(cluster.plan, port, write_store(tmp_path / "store.pem", certificate, key), authority.ca, 1)
    known = {"use_tls": True, "ca_file": authority.ca, "cert_file": certificate, "key_file": key}
    other = dict(zip(("cert_file", "key_file"), stranger.issue("other"), strict=True))
    wrong = {
        "authority": ({**known, "ca_file": stranger.ca}, "", "TLS: the other side's certificate is not accepted here"),
        "certificate": ({**known, **other}, "", "TLS: the other side refuses this connection's certificate"),
        "no certificate": ({"use_tls": True, "ca_file": authority.ca}, "", "or demands one and there is none"),
        "file": ({**known, "key_file": str(tmp_path / "gone")}, "", "TLS: the files cannot be used"),
    }
    go_with_zookeeper_login(cluster, known, ("", ""), wrong, f"127.0.0.1:{port}")


def go_with_zookeeper_login(
    cluster: LocalCluster,
    known: Mapping[str, Any],
    login: tuple[str, str],
    wrong: Mapping[str, tuple[Mapping[str, Any], str, str]],
    address: str = "",
) -> None:
    """Each `wrong` login (extras, password, what it is called) ends preflight by U09 before anything is restarted; then both ways."""
    spec, connections = named_nodes(cluster, {"bootstrap.servers": bootstrap_of(cluster.plan)}, "PLAINTEXT")
    zookeeper = {"conn_type": "kmigrate_zookeeper", "host": address or f"{NAME}:{cluster.plan.ports['zookeeper']}"}

    def connections_with(extra: Mapping[str, Any], user: str, password: str) -> dict[str, dict[str, Any]]:
        return {**connections, "logins_zookeeper": {**zookeeper, "login": user, "password": password, "extra": dict(extra)}}

    for what, (extra, password, text) in wrong.items():
        with (
            direct.context(
                cluster, "looking", spec=spec, connections=connections_with(extra, login[0], password), acting=False
            ) as here,
            pytest.raises(AuthenticationFailed, match=re.escape(text)) as error,
        ):
            run_preflight(here)
        assert [reason.code for reason in error.value.reasons] == ["U09"], what
    migrate_there_and_back_and_there(cluster, spec, connections_with(known, *login))


def test_a_roll_holds_while_a_token_endpoint_is_away_and_names_it(
    cluster: LocalCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Away for longer than a token lives: a broker that restarts meanwhile gets none and ends; the roll says so, and goes on by itself."""
    with token_server.running(tmp_path, SECRETS, lifetime=_TOKEN_S) as server:
        restart_with_sole_listener(cluster.plan, "OAUTHBEARER", oauth_keys(server), 1)
        properties = oauth_client(bootstrap_of(cluster.plan), server)
        spec, connections = named_nodes(cluster, properties)
        said = list[str]()
        with direct.context(cluster, "there", spec=spec, connections=connections) as opened, ThreadPoolExecutor(1) as pool:
            here = replace(opened, say=said.append)
            direct.until(here, "first_roll")
            direct.step(here, "roll", node=direct.to_roll(here, BrokerMode.MIGRATION), target=BrokerMode.MIGRATION)
            absence = pool.submit(be_away, server, said)
            direct.roll(here, BrokerMode.MIGRATION)
            assert absence.result() == 1, "no other broker was stopped while one could not start"
            direct.copy(here)
        with Wire(NAME, spec.brokers[0].port, security_from_kafka(KafkaSettings(properties)), timeout=10.0) as wire:
            assert len(wire.topics()["orders"].partitions) == 6
            assert has_all_replicas(wire)
    reported = capsys.readouterr()
    assert not [secret for secret in SECRETS.values() if secret in f"{reported.out}{reported.err}{said}"]


def be_away(server: token_server.TokenServer, said: Sequence[str]) -> int:
    """Until the roll has said what the broker that it started is missing; returns how many brokers were stopped meanwhile."""
    before = len(said)
    with server.away():
        wait_until(
            lambda: any("retrieving token" in text and "ended again" in text for text in said[before:]),
            "it is named",
            timeout=400.0,
        )
        return sum(text.startswith(("Did 'stop", "Did 'restart")) for text in said[before:])


def has_all_replicas(wire: Wire) -> bool:
    rows = [row.partition for row in wire.partitions()]
    return bool(rows) and all(set(row.isr) == set(row.replicas) for row in rows)


def named_nodes(
    cluster: LocalCluster, properties: Mapping[str, str], quorum: str = "SASL_PLAINTEXT"
) -> tuple[ClusterSpec, dict[str, dict[str, Any]]]:
    """The cluster file with each node by the name in its principal, and the connections; once all replicas are in sync."""
    document = yaml.safe_load(cluster.spec_path.read_text())
    document["quorum"] = {"security_protocol": quorum}
    for node in (*document["brokers"], *document["controllers"]):
        node["host"] = NAME
    cluster.spec_path.write_text(yaml.safe_dump(document, sort_keys=False))
    spec = load(cluster.spec_path)
    connections: dict[str, dict[str, Any]] = {
        "logins_zookeeper": {"conn_type": "kmigrate_zookeeper", "host": cluster.plan.zookeeper},
        "logins_kafka": {"conn_type": "kafka", "extra": dict(properties)},
    }
    security = security_from_kafka(KafkaSettings(properties))
    for broker in spec.brokers:
        with Wire(broker.host, broker.port, security, timeout=10.0) as wire:
            wait_until(partial(has_all_replicas, wire), "all replicas are in sync", despite=(Unavailable,))
    return spec, connections


def migrate_there_and_back_and_there(
    cluster: LocalCluster, spec: ClusterSpec, connections: Mapping[str, Mapping[str, Any]]
) -> None:
    """With a broker in each of the three modes on the way."""
    security = security_from_kafka(KafkaSettings(connections["logins_kafka"]["extra"]))
    with direct.context(cluster, "there", spec=spec, connections=connections) as here:
        direct.to_copied(here)
        direct.step(here, "roll", node=0, target=BrokerMode.KRAFT)
        direct.step(here, "equivalent")
        run_rollback(here)
        assert position_of(here.observer.observe(evidence.EVERYTHING)).phase is Phase.ZOOKEEPER
    with direct.context(cluster, "again", spec=spec, connections=connections) as here:
        direct.forward(here)
        assert position_of(here.observer.observe(evidence.EVERYTHING)).phase is Phase.FINALIZED
    with Wire(NAME, spec.brokers[0].port, security, timeout=10.0) as wire:
        assert len(wire.topics()["orders"].partitions) == 6
        assert wire.api_versions().mode is BrokerMode.KRAFT
