"""How a migrating consumer reaches ZooKeeper: properties, identity, TLS, and that no secret comes out anywhere."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kmigrate.applications.migrating import MigratingConsumer
from airflow_provider_kmigrate.applications.migrating.settings import parse_settings, read_zookeeper_settings
from airflow_provider_kmigrate.applications.migrating.zookeeper import GroupSession
from airflow_provider_kmigrate.clients.settings import KerberosLogin, ZooKeeperSettings
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, Refused
from tests.clients.authority import Authority
from tests.consumer.wire_zookeeper import AUTH, READ, WireZooKeeper
from tests.waiting import wait_until

CANARY = "c4nary-1n-4-m1ne"
CONNECT = {"zookeeper.connect": "zk1:2181,zk2:2181/kafka"}
DIGEST = {"zookeeper.digest": f"app:{CANARY}"}
SASL = {"zookeeper.sasl.mechanism": "digest-md5", "zookeeper.sasl.username": "app", "zookeeper.sasl.password": CANARY}
TLS = {
    "zookeeper.ssl.client.enable": "true",
    "zookeeper.ssl.truststore.location": "/ca.pem",
    "zookeeper.ssl.keystore.location": "/me.pem",
    "zookeeper.ssl.keystore.password": CANARY,
    "zookeeper.ssl.keystore.type": "PEM",
}


def test_kafkas_names_say_how_to_reach_it_and_who_we_are() -> None:
    plain = read_zookeeper_settings(CONNECT)
    assert plain == ZooKeeperSettings("zk1:2181,zk2:2181", "/kafka", session_timeout=6.0)
    found = read_zookeeper_settings({**CONNECT, **TLS, **SASL, "zookeeper.set.acl": "true"})
    assert (found.use_tls, found.ca_file, found.cert_file, found.key_file) == (True, "/ca.pem", "/me.pem", "/me.pem")
    assert (found.key_password, found.sasl_mechanism, found.sasl_user) == (CANARY, "DIGEST-MD5", "app")
    assert found.verify_hostname
    assert found.set_acl
    assert not read_zookeeper_settings({**CONNECT, **TLS, "zookeeper.ssl.endpoint.identification.algorithm": ""}).verify_hostname
    assert read_zookeeper_settings({**CONNECT, **DIGEST}).digest == f"app:{CANARY}"
    kerberos = {"zookeeper.sasl.mechanism": "gssapi", "zookeeper.sasl.principal": "app", "zookeeper.sasl.keytab": "/k"}
    by_ticket = read_zookeeper_settings({**CONNECT, **kerberos})
    assert (by_ticket.sasl_mechanism, by_ticket.kerberos) == ("GSSAPI", KerberosLogin("zookeeper", "app", "/k"))


@pytest.mark.parametrize(
    "wrong",
    [
        {**TLS, "zookeeper.ssl.crl.enable": "true"},
        {**TLS, "zookeeper.ssl.keystore.type": "JKS"},
        {**TLS, "zookeeper.ssl.truststore.location": "/trust.p12"},
        {**TLS, "zookeeper.ssl.client.enable": "false"},
        {**SASL, "zookeeper.sasl.mechanism": "PLAIN"},
        {**SASL, "zookeeper.sasl.username": ""},
        {**SASL, "zookeeper.sasl.keytab": "/k"},
        {**SASL, "zookeeper.sasl.mechanism": "GSSAPI"},
        {"zookeeper.sasl.principal": "app"},
        {"zookeeper.digest": CANARY},
        {"zookeeper.set.acl": "true"},
    ],
)
def test_settings_without_effect_are_refused_without_their_secrets(wrong: dict[str, str]) -> None:
    with pytest.raises(Refused) as refused:
        read_zookeeper_settings({**CONNECT, **wrong})
    assert CANARY not in f"{refused.value} {refused.value!r}"


def session(settings: dict[str, Any]) -> GroupSession:
    return GroupSession(read_zookeeper_settings(settings), lambda _: None, lambda _: None)


def test_a_digest_goes_to_the_server_and_nowhere_else(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with WireZooKeeper() as server:
        one = session({"zookeeper.connect": server.address, **DIGEST})
        one.start()
        wait_until(lambda: AUTH in server.asked and one.connected, "it logs in")
        one.close()
    assert CANARY.encode() in server.credentials[0]
    assert CANARY not in f"{caplog.text} {one!r} {one.where} {vars(one)}"


def test_a_refused_identity_is_reported_and_not_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    with WireZooKeeper(knows=False) as server:
        one = session({"zookeeper.connect": server.address, **DIGEST})
        one.start()
        wait_until(lambda: "refuses this consumer's identity" in caplog.text, "the refusal is logged")
        with pytest.raises(AuthenticationFailed) as failed:
            one.get("/")
        one.close()
    assert CANARY not in f"{caplog.text} {failed.value}"


def test_tls_with_a_certificate_of_ours(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("me")
    both = tmp_path / "both.pem"
    both.write_text(Path(key).read_text() + Path(certificate).read_text())
    given = {"zookeeper.ssl.truststore.location": authority.ca, "zookeeper.ssl.keystore.location": str(both)}
    with WireZooKeeper(authority.server(wants_client=True)) as server:
        one = session({"zookeeper.connect": server.address, **TLS, **given})
        one.start()
        wait_until(lambda: one.connected, "a session")
        assert one.get("/") is None
        one.close()
    assert READ in server.asked


def test_a_consumer_tells_no_secret() -> None:
    given = {"group.id": "g", "bootstrap.servers": "127.0.0.1:1", **CONNECT, **TLS, **SASL, "log_level": 2}
    assert CANARY not in repr(parse_settings(given))
    with MigratingConsumer(given) as consumer:
        assert CANARY not in f"{consumer!r} {consumer.settings} {consumer.metrics()} {consumer.metrics_text()}"
