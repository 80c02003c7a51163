"""Connections as settings: what each field means, what is refused by name, and what must never be shown."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_kmigrate.clients import connections
from airflow_provider_kmigrate.clients.connections import secrets_of
from airflow_provider_kmigrate.clients.identity import ENDPOINT, TOKEN, has_kerberos_provider, security_from_kafka
from airflow_provider_kmigrate.clients.settings import (
    ClusterSettings,
    HostSettings,
    KafkaSettings,
    KerberosLogin,
    OAuthLogin,
    WireSecurity,
    ZooKeeperSettings,
)
from airflow_provider_kmigrate.clients.tools import connection_facts
from airflow_provider_kmigrate.core.cluster_state.model import ConnectionFacts
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, HostSpec, NodeRole, NodeSpec
from airflow_provider_kmigrate.exceptions import Refused
from tests.clients.authority import VALID_DAYS, Authority

CANARY = "canary-5e1f0c"
SASL = {
    "bootstrap.servers": "k:9092",
    "security.protocol": "sasl_ssl",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "u",
    "sasl.password": CANARY,
}


def zookeeper(**fields: Any) -> dict[str, Any]:
    return {"conn_type": "kmigrate_zookeeper", "host": "zk1:2181"} | fields


OIDC = {
    "sasl.oauthbearer.method": "oidc",
    ENDPOINT: "https://id.example.org/token",
    "sasl.oauthbearer.client.id": "kmigrate",
    "sasl.oauthbearer.client.secret": CANARY,
}


def kafka(**properties: Any) -> dict[str, Any]:
    return {"conn_type": "kafka", "extra": {"bootstrap.servers": "k:9092"} | properties}


def controller(login: str = "", password: str = "", **extra: Any) -> dict[str, Any]:
    return {"conn_type": "kmigrate_controller", "login": login, "password": password, "extra": extra}


def codes(read: Callable[..., object], connection: Mapping[str, Any]) -> list[str]:
    with pytest.raises(Refused) as caught:
        read("c", connection)
    assert CANARY not in f"{caught.value}{caught.value!r}{caught.value.reasons}"
    assert all(reason.next_step for reason in caught.value.reasons)
    return [reason.code for reason in caught.value.reasons]


class TestZooKeeper:
    @pytest.mark.parametrize(
        ("fields", "hosts", "chroot"),
        [
            ({"host": "zk1:2181"}, "zk1:2181", ""),
            ({"host": "zk1"}, "zk1:2181", ""),
            ({"host": "zk1", "port": 2182}, "zk1:2182", ""),
            ({"host": "zk1:1, zk2:2,zk3/kafka"}, "zk1:1,zk2:2,zk3:2181", "/kafka"),
            ({"host": "zk1:1,zk2:2/a/b/"}, "zk1:1,zk2:2", "/a/b"),
            ({"host": "zk1:1/"}, "zk1:1", ""),
            ({"host": "[::1]:2181/k"}, "[::1]:2181", "/k"),
            ({"host": "zk1:1", "extra": {"chroot": "/kafka"}}, "zk1:1", "/kafka"),
            ({"host": "zk1:1", "extra": {"chroot": "kafka"}}, "zk1:1", "/kafka"),
            ({"host": "zk1:1", "extra": {"chroot": ""}}, "zk1:1", ""),
            ({"host": "zk1:1/kafka", "extra": {"chroot": "/kafka"}}, "zk1:1", "/kafka"),
            ({"host": "zk1", "port": "1", "schema": "kafka"}, "zk1:1", "/kafka"),
        ],
    )
    def test_where(self, fields: dict[str, Any], hosts: str, chroot: str) -> None:
        settings = connections.zookeeper_settings("c", zookeeper(**fields))
        assert (settings.hosts, settings.chroot) == (hosts, chroot)

    @pytest.mark.parametrize(
        "fields", [{"host": "zk1", "port": CANARY}, {"host": "zk1", "port": 10**30}, {"host": "zk1:99999"}, {"host": "zk1:0"}]
    )
    def test_a_port_that_is_none_is_refused(self, fields: dict[str, Any]) -> None:
        with pytest.raises(Refused, match="N03") as refused:
            connections.zookeeper_settings("c", zookeeper(**fields))
        assert CANARY not in str(refused.value)

    def test_unset_values_have_defaults(self) -> None:
        assert connections.zookeeper_settings("c", zookeeper()) == ZooKeeperSettings(hosts="zk1:2181")

    def test_a_login_is_a_digest(self) -> None:
        settings = connections.zookeeper_settings("c", zookeeper(login="u", password=CANARY))
        assert (settings.digest, settings.sasl_user) == (f"u:{CANARY}", None)
        assert CANARY not in repr(settings)

    def test_a_login_with_a_mechanism_is_sasl(self) -> None:
        settings = connections.zookeeper_settings(
            "c", zookeeper(login="u", password=CANARY, extra={"sasl_mechanism": "digest-md5"})
        )
        assert (settings.digest, settings.sasl_mechanism, settings.sasl_user, settings.sasl_password) == (
            None,
            "DIGEST-MD5",
            "u",
            CANARY,
        )
        assert CANARY not in repr(settings)

    def test_kerberos_has_a_keytab_or_the_ticket_cache(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(connections, "is_kerberos_installed", lambda: True)
        plain = connections.zookeeper_settings("c", zookeeper(extra={"sasl_mechanism": "GSSAPI"}))
        assert (plain.sasl_mechanism, plain.kerberos) == ("GSSAPI", KerberosLogin("zookeeper"))
        extra = {"sasl_mechanism": "GSSAPI", "keytab": "/k", "principal": "kafka/w1", "kerberos_service": "zk"}
        assert connections.zookeeper_settings("c", zookeeper(extra=extra)).kerberos == KerberosLogin("zk", "kafka/w1", "/k")

    @pytest.mark.parametrize("field", ["login", "password"])
    def test_kerberos_takes_no_login(self, field: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(connections, "is_kerberos_installed", lambda: True)
        connection = zookeeper(**{field: CANARY}, extra={"sasl_mechanism": "GSSAPI"})
        with pytest.raises(Refused, match=r"login or password is set.*keytab") as refused:
            connections.zookeeper_settings("c", connection)
        assert CANARY not in str(refused.value)

    def test_a_chroot_after_every_server_may_be_written_as_what_it_is(self) -> None:
        settings = connections.zookeeper_settings("c", zookeeper(extra={"chroot": "/kafka,zk2:2181/kafka"}))
        assert (settings.hosts, settings.chroot) == ("zk1:2181", "/kafka,zk2:2181/kafka")

    def test_tls_as_the_form_and_as_a_uri_carry_it(self) -> None:
        extra = {
            "use_tls": "True",
            "ca_file": "/ca",
            "cert_file": "/c",
            "key_file": "/k",
            "key_password": CANARY,
            "verify_hostname": False,
        }
        settings = connections.zookeeper_settings("c", zookeeper(extra=json.dumps(extra | {"session_timeout": "4.5"})))
        assert (settings.use_tls, settings.verify_hostname, settings.session_timeout) == (True, False, 4.5)
        assert (settings.ca_file, settings.cert_file, settings.key_file, settings.key_password) == ("/ca", "/c", "/k", CANARY)
        assert CANARY not in repr(settings)

    @pytest.mark.parametrize(
        ("fields", "expected"),
        [
            ({"conn_type": "http"}, ["N03"]),
            ({"conn_type": None}, ["N03"]),
            ({"host": ""}, ["N03"]),
            ({"host": "zk://zk1"}, ["N03"]),
            ({"host": f"u:{CANARY}@zk1"}, ["N03"]),
            ({"host": "zk1:99999999"}, ["N03"]),
            ({"host": "zk1/kafka,zk2/kafka"}, ["N03"]),
            ({"host": "zk1/kafka,zk2", "extra": {"chroot": "/kafka,zk2"}}, ["N03"]),
            ({"host": "zk1/../x"}, ["N03"]),
            ({"host": "zk1/a//b"}, ["N03"]),
            ({"host": "zk1/a", "extra": {"chroot": "/b"}}, ["N03"]),
            ({"extra": "not json"}, ["N03"]),
            ({"extra": [1]}, ["N03"]),
            ({"extra": {"chrot": "/a"}}, ["N03"]),
            ({"extra": {"digest": CANARY, "auth_data": CANARY}}, ["N03", "N03"]),
            ({"extra": {"use_tls": "perhaps"}}, ["N03"]),
            ({"extra": {"session_timeout": 0}}, ["N03"]),
            ({"extra": {"session_timeout": True}}, ["N03"]),
            ({"extra": {"session_timeout": CANARY}}, ["N03"]),
            ({"extra": {"session_timeout": "inf"}}, ["N03"]),
            ({"extra": {"chroot": ["/a"]}}, ["N03"]),
            ({"extra": {"sasl_mechanism": "PLAIN"}}, ["N03"]),
            ({"extra": {"sasl_mechanism": "DIGEST-MD5"}}, ["N03"]),
            ({"login": "u"}, ["N03"]),
            ({"password": CANARY}, ["N03"]),
            ({"login": "u:v", "password": CANARY}, ["N03"]),
            ({"extra": {"ca_file": "/ca"}}, ["N03"]),
            ({"extra": {"use_tls": True, "key_file": "/k"}}, ["N03"]),
            ({"host": "", "login": "u", "extra": {"x": 1}}, ["N03", "N03", "N03"]),
        ],
    )
    def test_refused(self, fields: dict[str, Any], expected: list[str]) -> None:
        assert codes(connections.zookeeper_settings, zookeeper(**fields)) == expected

    @given(
        st.text(max_size=30),
        st.dictionaries(
            st.sampled_from(connections.ZOOKEEPER_EXTRAS),
            st.none() | st.booleans() | st.integers() | st.text(max_size=9),
            max_size=4,
        ),
    )
    def test_anything_is_settings_or_a_refusal(self, host: str, extra: dict[str, Any]) -> None:
        try:
            settings = connections.zookeeper_settings("c", zookeeper(host=host, extra=extra))
        except Refused:
            return
        assert settings.chroot == "" or settings.chroot.startswith("/")
        assert all(server.rpartition(":")[2].isdigit() for server in settings.hosts.split(","))


class TestKafka:
    def test_values_become_text_as_librdkafka_wants_it(self) -> None:
        settings = connections.kafka_settings(
            "c", kafka(**{"socket.timeout.ms": 5, "log.connection.close": False, "retry.x": 0.5})
        )
        assert settings.properties == {
            "bootstrap.servers": "k:9092",
            "socket.timeout.ms": "5",
            "log.connection.close": "false",
            "retry.x": "0.5",
        }
        assert settings.bootstrap == "k:9092"

    @pytest.mark.parametrize(
        ("bootstrap", "servers"),
        [
            ("k:9092", (("k", 9092),)),
            ("k, SASL_SSL://l:9093", (("k", 9092), ("l", 9093))),
            ("[::1]:9093,[fe80::1]", (("::1", 9093), ("fe80::1", 9092))),
        ],
    )
    def test_bootstrap_servers_as_librdkafka_takes_them(self, bootstrap: str, servers: tuple[tuple[str, int], ...]) -> None:
        assert connections.kafka_settings("c", kafka(**{"bootstrap.servers": bootstrap})).servers == servers

    def test_debug_output_is_never_switched_on(self) -> None:
        assert "debug" not in connections.kafka_settings("c", kafka(debug="security")).properties

    def test_secrets_stay_out_of_repr(self) -> None:
        settings = connections.kafka_settings("c", kafka(**SASL))
        assert settings.properties["sasl.password"] == CANARY
        assert CANARY not in repr(settings)

    @pytest.mark.parametrize(
        ("connection", "expected"),
        [
            ({"conn_type": "kafka"}, ["N03"]),
            ({"conn_type": "kafka", "extra": {"bootstrap.servers": ""}}, ["N03"]),
            ({"conn_type": "kafka", "extra": {"bootstrap.servers": "k:9092,,l:9092"}}, ["N03"]),
            ({"conn_type": "kafka", "extra": {"bootstrap.servers": f"u:{CANARY}@k:9092"}}, ["N03"]),
            (kafka() | {"conn_type": "kmigrate_zookeeper"}, ["N03"]),
            (kafka(**{"ssl.key.pem": CANARY}), ["N03"]),
            (kafka(**{"ssl.ca.pem": "x", "ssl_engine": "x"}), ["N03", "N03"]),
            (kafka(oauth_cb="os.system"), ["N03"]),
            *[
                (kafka(**{"enable.ssl.certificate.verification": off}), ["N03"])
                for off in (False, "False", "0", 0, "f", "no", "")
            ],
            (kafka(**{"ssl.endpoint.identification.algorithm": "None"}), ["N03"]),
            (kafka(**{"plugin.library.paths": "/tmp/evil"}), ["N03"]),
            (kafka(**{"security.protocol": "TLS"}), ["N03"]),
            (kafka(**SASL | {"sasl.mechanism": "OAUTHBEARER"}), ["N03"]),
            *[(kafka(**SASL | {"sasl.mechanism": unknown}), ["N03"]) for unknown in ("SCRAM-SHA-1", "plain", "AWS_MSK_IAM", "")],
            (kafka(**SASL | {"sasl.password": ""}), ["N03"]),
            (kafka(**{"client.id": None}), ["N03"]),
            (kafka(**{"client.id": {"x": CANARY}}), ["N03"]),
        ],
    )
    def test_refused(self, connection: dict[str, Any], expected: list[str]) -> None:
        assert codes(connections.kafka_settings, connection) == expected

    @pytest.mark.parametrize(
        ("change", "expected"),
        [
            ({}, ["N03"]),
            ({TOKEN: CANARY}, []),
            ({TOKEN: CANARY, "sasl.oauthbearer.method": "oidc"}, ["N03"]),
            ({"sasl.oauthbearer.method": "oidc"}, ["N03"]),
            (OIDC, []),
            (OIDC | {"sasl.oauthbearer.client.secret": ""}, ["N03"]),
            (OIDC | {"sasl.oauthbearer.grant.type": "urn:ietf:params:oauth:grant-type:jwt-bearer"}, ["N03"]),
            (OIDC | {"enable.sasl.oauthbearer.unsecure.jwt": "true"}, ["N03"]),
            (OIDC | {ENDPOINT: "http://id.example.org/token"}, ["N03"]),
            (OIDC | {ENDPOINT: "http://localhost:8080/token"}, []),
            *[
                (OIDC | {ENDPOINT: wrong}, ["N03"])
                for wrong in (
                    f"https://u:{CANARY}@id/token",
                    "id/token",
                    "https://",
                    "https://[id",
                    "https://id:x/",
                    "https://id\n/",
                )
            ],
        ],
    )
    def test_oauth_needs_one_source_of_tokens(self, change: dict[str, str], expected: list[str]) -> None:
        connection = kafka(**{"security.protocol": "sasl_ssl", "sasl.mechanism": "OAUTHBEARER"} | change)
        if expected:
            assert codes(connections.kafka_settings, connection) == expected
        else:
            settings = connections.kafka_settings("c", connection)
            assert CANARY not in repr(security_from_kafka(settings))

    def test_the_secrets_of_oauth_are_hidden_and_its_endpoint_is_not(self) -> None:
        hidden = connections.secrets_of(kafka(**OIDC | {TOKEN: "t0ken-canary"}))
        assert CANARY in hidden
        assert "t0ken-canary" in hidden
        assert OIDC[ENDPOINT] not in hidden

    @pytest.mark.parametrize(
        "read", [connections.kafka_settings, connections.controller_security, connections.zookeeper_settings]
    )
    def test_kerberos_needs_its_package(self, read: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> None:
        connection = kafka(**{"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"})
        if read is connections.controller_security:
            connection = controller(protocol="SASL_SSL", sasl_mechanism="GSSAPI", keytab="/k")
        elif read is connections.zookeeper_settings:
            connection = zookeeper(extra={"sasl_mechanism": "GSSAPI"})
        monkeypatch.setattr(connections, "is_kerberos_installed", lambda: False)
        with pytest.raises(Refused, match=r"gssapi.*airflow-provider-kmigrate\[kerberos\]"):
            read("c", connection)
        monkeypatch.setattr(connections, "is_kerberos_installed", lambda: True)
        read("c", connection)


class TestControllers:
    def test_oauth_has_a_client_or_a_token(self) -> None:
        fixed = controller("", CANARY, protocol="SASL_SSL", sasl_mechanism="OAUTHBEARER")
        assert connections.controller_security("c", fixed).oauth == OAuthLogin(token=CANARY)
        client = controller(
            "u", CANARY, protocol="SASL_SSL", sasl_mechanism="OAUTHBEARER", token_endpoint="https://id/t", scope="s"
        )
        assert connections.controller_security("c", client).oauth == OAuthLogin("https://id/t", "u", CANARY, "s")

    def test_plaintext_is_the_default(self) -> None:
        assert connections.controller_security("c", controller()) == WireSecurity()

    def test_tls_and_sasl(self) -> None:
        security = connections.controller_security(
            "c", controller("u", CANARY, protocol="sasl_ssl", sasl_mechanism="SCRAM-SHA-512", ca_file="/ca")
        )
        assert security == WireSecurity(
            "SASL_SSL", ca_file="/ca", sasl_mechanism="SCRAM-SHA-512", sasl_user="u", sasl_password=CANARY
        )
        assert CANARY not in repr(security)

    @pytest.mark.parametrize(
        ("connection", "expected"),
        [
            (controller(protocol="TLS"), ["N03"]),
            (controller(protocol="SASL_SSL"), ["N03"]),
            (controller("u", CANARY, protocol="SASL_SSL"), ["N03"]),
            (controller("u", CANARY, sasl_mechanism="PLAIN"), ["N03"]),
            (
                controller(
                    "u", CANARY, protocol="SASL_SSL", sasl_mechanism="OAUTHBEARER", token_endpoint="http://id.example.org"
                ),
                ["N03"],
            ),
            (controller(protocol="SASL_SSL", sasl_mechanism="OAUTHBEARER"), ["N03"]),
            (controller("u", protocol="SASL_SSL", sasl_mechanism="PLAIN"), ["N03"]),
            (controller("", CANARY, protocol="SASL_SSL", sasl_mechanism="PLAIN"), ["N03"]),
            (controller(ca_file="/ca"), ["N03"]),
            (controller(**{"ssl.key.pem": CANARY}), ["N03"]),
        ],
    )
    def test_refused(self, connection: dict[str, Any], expected: list[str]) -> None:
        assert sorted(set(codes(connections.controller_security, connection))) == expected

    @pytest.mark.parametrize(("host", "port"), [("ctl0", None), ("ctl0", "x"), ("http://ctl0:9093", None), (f"u:{CANARY}@c", 1)])
    def test_an_address_of_a_controller_that_cannot_be_asked_is_refused(self, host: str, port: object) -> None:
        assert codes(connections.controller_address, controller() | {"host": host, "port": port}) == ["N03"]

    @pytest.mark.parametrize(
        ("fields", "address"), [({}, None), ({"host": "c:9093"}, ("c", 9093)), ({"host": "c", "port": 9093}, ("c", 9093))]
    )
    def test_the_address_of_a_controller(self, fields: dict[str, Any], address: tuple[str, int] | None) -> None:
        assert connections.controller_address("c", controller() | fields) == address


class TestHosts:
    def test_the_environment_of_commands(self) -> None:
        extra = {"environment": {"SSH_AUTH_SOCK": "/s"}, "secret_environment": json.dumps({"TOKEN": CANARY})}
        settings = connections.host_settings("c", {"conn_type": "kmigrate_host", "extra": extra})
        assert settings == HostSettings({"SSH_AUTH_SOCK": "/s", "TOKEN": CANARY})
        assert CANARY not in repr(settings)

    @pytest.mark.parametrize(
        ("extra", "expected"),
        [
            ({"environment": {"A B": "x"}}, ["N03"]),
            ({"environment": {"A": 1}}, ["N03"]),
            ({"secret_environment": CANARY}, ["N03"]),
            ({"environment": {"A": "x"}, "secret_environment": {"A": CANARY}}, ["N03"]),
            ({"env": {}}, ["N03"]),
        ],
    )
    def test_refused(self, extra: dict[str, Any], expected: list[str]) -> None:
        assert codes(connections.host_settings, {"conn_type": "kmigrate_host", "extra": extra}) == expected


SPEC = ClusterSpec(
    name="prod",
    cluster_id="q1Sh-9_ISia_zwGINzRvyQ",
    zookeeper_conn_id="zk",
    kafka_conn_id="kf",
    brokers=(NodeSpec(0, NodeRole.BROKER, "k", 9092, HostSpec("agent", "/p", conn_id="hosts")),),
    controllers=(NodeSpec(3000, NodeRole.CONTROLLER, "c", 9093, HostSpec("agent", "/p")),),
    path="prod.yaml",
)
KNOWN: dict[str, dict[str, Any]] = {
    "zk": zookeeper(),
    "kf": kafka(),
    "sasl": kafka(**SASL),
    "ctl": controller("u", "secret", protocol="SASL_SSL", sasl_mechanism="PLAIN"),
    "hosts": {"conn_type": "kmigrate_host", "extra": {"environment": {"A": "x"}}},
}


class TestSsh:
    def ssh(self, **extra: Any) -> dict[str, Any]:
        return {"conn_type": "ssh", "login": "kmigrate", "extra": {"private_key": CANARY} | extra}

    def test_an_ssh_connection_is_kept_as_it_is_for_the_hook_and_never_shown(self) -> None:
        found = self.ssh(host_key="ssh-ed25519 AAAA", conn_timeout="5", no_host_key_check="false", of_the_users=1)
        settings = connections.ssh_settings("c", found)
        assert settings.fields == found
        assert CANARY not in repr(settings)

    @pytest.mark.parametrize("name", ["no_host_key_check", "allow_host_key_change", "ignore_hostkey_verification"])
    @pytest.mark.parametrize("value", [True, "true", "True"])
    def test_a_connection_that_does_not_verify_host_keys_is_refused(self, name: str, value: object) -> None:
        assert codes(connections.ssh_settings, self.ssh(**{name: value})) == ["N03"]

    def test_an_extra_that_says_neither_true_nor_false_is_refused(self) -> None:
        assert codes(connections.ssh_settings, self.ssh(no_host_key_check="1")) == ["N03"]

    def test_another_type_is_refused(self) -> None:
        assert codes(connections.ssh_settings, self.ssh() | {"conn_type": "sftp"}) == ["N03"]


class TestSigning:
    @pytest.mark.parametrize("password", [None, "", CANARY, "x" * 31])
    def test_a_key_that_can_be_guessed_signs_nothing(self, password: str | None) -> None:
        connection = {"conn_type": connections.SIGNING, "password": password}
        assert codes(connections.signing_key, connection) == ["N03"]
        assert connections.signing_key("c", connection | {"password": "x" * 32}) == "x" * 32


class TestCluster:
    def settings(self, spec: ClusterSpec) -> connections.ClusterSettings:
        return connections.settings_for(spec, connections.lookup_in(KNOWN, spec))

    def test_everything_of_a_cluster(self) -> None:
        settings = self.settings(SPEC)
        assert settings.zookeeper == ZooKeeperSettings("zk1:2181")
        assert (settings.brokers, settings.controllers) == (WireSecurity(), WireSecurity())
        assert settings.hosts == {"hosts": HostSettings({"A": "x"})}

    def test_the_ssh_connection_that_nodes_name(self) -> None:
        hosts = HostSpec("agent", "/p", ssh_conn_id="ssh")
        spec = replace(SPEC, brokers=tuple(replace(node, hosts=hosts) for node in SPEC.brokers))
        lookup = connections.lookup_in(KNOWN | {"ssh": {"conn_type": "ssh"}}, spec)
        assert connections.settings_for(spec, lookup).ssh["ssh"].fields == {"conn_type": "ssh"}
        with pytest.raises(Refused, match=r"N03.*ssh, which hosts.ssh_conn_id in prod.yaml names.*--conn-type ssh"):
            self.settings(spec)

    def test_controllers_take_the_brokers_identity_unless_they_have_their_own(self) -> None:
        spec = replace(SPEC, kafka_conn_id="sasl", controller_security="SASL_PLAINTEXT")
        settings = self.settings(spec)
        assert settings.brokers.protocol == "SASL_SSL"
        assert settings.controllers == replace(settings.brokers, protocol="SASL_PLAINTEXT")
        own = self.settings(replace(spec, controller_conn_id="ctl", controller_security="SASL_SSL"))
        assert own.controllers.sasl_user == "u"

    @pytest.mark.parametrize(
        "spec",
        [
            replace(SPEC, controller_security="SASL_SSL"),
            replace(SPEC, controller_security="SSL", controller_conn_id="ctl"),
        ],
    )
    def test_contradictions_about_the_controllers_are_refused(self, spec: ClusterSpec) -> None:
        with pytest.raises(Refused) as caught:
            self.settings(spec)
        assert [reason.code for reason in caught.value.reasons] == ["N03"]

    @pytest.mark.parametrize(
        ("spec", "key", "conn_type"),
        [
            (replace(SPEC, zookeeper_conn_id="none"), "zookeeper.conn_id", "kmigrate_zookeeper"),
            (replace(SPEC, kafka_conn_id="none"), "kafka.conn_id", "kafka"),
            (replace(SPEC, controller_conn_id="none"), "quorum.conn_id", "kmigrate_controller"),
            (
                replace(SPEC, brokers=(replace(SPEC.brokers[0], hosts=HostSpec("agent", "/p", conn_id="none")),)),
                "hosts.conn_id",
                "kmigrate_host",
            ),
        ],
    )
    def test_a_missing_connection_says_where_it_is_named_and_how_to_create_it(
        self, spec: ClusterSpec, key: str, conn_type: str
    ) -> None:
        with pytest.raises(Refused) as caught:
            self.settings(spec)
        [reason] = caught.value.reasons
        assert reason.code == "N03"
        assert key in reason.text
        assert "prod.yaml" in reason.text
        assert f"airflow connections add none --conn-type {conn_type} " in reason.text

    def test_connections_from_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "connections.json").write_text(json.dumps(KNOWN), encoding="utf-8")
        assert connections.read_connections(tmp_path / "connections.json") == KNOWN

    @pytest.mark.parametrize(
        "text", [None, "{", "[]", '{"a": 1}', "[" * 100_000, "<html>"], ids=["absent", "cut", "list", "number", "deep", "page"]
    )
    def test_a_file_that_holds_none(self, tmp_path: Path, text: str | None) -> None:
        if text is not None:
            (tmp_path / "connections.json").write_text(text, encoding="utf-8")
        with pytest.raises(Refused, match="N03"):
            connections.read_connections(tmp_path / "connections.json")

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            (
                b'\n\n{\n  "prod_zk": {"password": "s3cret"\n  "host": "zk1"}\n}',
                "Expecting ',' delimiter, in line 5 at character 3.",
            ),
            (b'{"prod_zk": {"password": "s3cret\n"}}', "Invalid control character at, in line 1 at character 33."),
            (b'{"prod_zk": {"password": "s3\\cret"}}', "Invalid \\escape, in line 1 at character 29."),
            (b'{"prod_zk": {"password": \'s3cret\'}}', "Expecting value, in line 1 at character 26."),
            (
                b'{"prod_zk": {"password": "s3cret",}}',
                "Expecting property name enclosed in double quotes, in line 1 at character 35.",
            ),
            (b'{"prod_zk": {}} "s3cret"', "more text follows the first value, which ends at character 15."),
            (b'{"prod_zk": {"port": NaN, "password": "s3cret"}}', "NaN is no number of JSON."),
            (b'{"prod_zk": {"password": "s3cret\xfc"}}', "it is not UTF-8."),
            (b'{"prod_zk": {"password": "s3cret\\ud800"}}', "it is not UTF-8."),
            (b"\xef\xbb\xbf{}", "Expecting value, in line 1 at character 1."),
            (b"", "Expecting value, in line 1 at character 1."),
            (None, "No such file or directory."),
        ],
    )
    def test_a_mistake_is_named_by_its_line_and_no_value_is_shown(self, tmp_path: Path, text: bytes | None, said: str) -> None:
        path = tmp_path / "connections.json"
        if text is not None:
            path.write_bytes(text)
        with pytest.raises(Refused) as refused:
            connections.read_connections(path)
        assert f"{path} cannot be read as JSON: {said}" in str(refused.value)
        assert "s3" not in str(refused.value).replace(str(path), "")


PEM = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0B\nAQEFAASCBKcwggSjAgEAAoIB\n-----END PRIVATE KEY-----\n"


class TestSecrets:
    @pytest.mark.parametrize(
        ("connection", "expected"),
        [
            ({"login": "u", "password": CANARY}, [f"u:{CANARY}", CANARY]),
            ({"extra": {"ssl.key.password": CANARY}}, [CANARY]),
            ({"extra": {"key_password": CANARY}}, [CANARY]),
            ({"extra": {"digest": f"u:{CANARY}"}}, [f"u:{CANARY}"]),
            ({"extra": {"auth_data": [["digest", CANARY]]}}, [CANARY]),
            ({"extra": {"sasl.jaas.config": f'X required username="user1" password="{CANARY}";'}}, [CANARY]),
            ({"extra": {"ssl.key.pem": PEM}}, ["MIIEvQIBADANBgkqhkiG9w0B", json.dumps(PEM)[1:-1], PEM]),
            ({"extra": {"secret_environment": {"A": CANARY, "B": {"C": CANARY + "2"}}}}, [CANARY, CANARY + "2"]),
            ({"extra": {"secret_environment": json.dumps({"A": CANARY})}}, [CANARY]),
            ({"extra": {"environment": {"DB_PASSWORD": CANARY}}}, [CANARY]),
            ({"extra": json.dumps({"sasl.password": CANARY})}, [CANARY]),
        ],
    )
    def test_every_form_is_known(self, connection: dict[str, Any], expected: list[str]) -> None:
        assert set(expected) <= set(secrets_of(connection))

    def test_what_is_no_secret_stays_readable(self) -> None:
        extra = {"ca_file": "/ca", "key_file": "/k", "chroot": "/kafka", "environment": {"A": "x"}, "ssl.key.location": "/k"}
        assert secrets_of(zookeeper(extra=extra)) == ()
        assert not [
            secret
            for secret in secrets_of({"extra": {"ssl.key.pem": PEM}})
            if secret.startswith("-----") and "\n" not in secret and "\\n" not in secret
        ]


def protected(**changes: Any) -> ClusterSettings:
    plain = ClusterSettings(ZooKeeperSettings("zk:2181"), KafkaSettings({}), WireSecurity(), WireSecurity())
    return replace(plain, **changes)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (protected(), ConnectionFacts()),
        (protected(brokers=WireSecurity("SSL", verify_hostname=False)), ConnectionFacts(unverified=frozenset({"kafka"}))),
        (protected(brokers=WireSecurity("PLAINTEXT", verify_hostname=False)), ConnectionFacts()),
        (protected(controllers=WireSecurity("SASL_SSL", verify_hostname=False)), ConnectionFacts(unverified=frozenset({"quorum"}))),
        (protected(controllers=WireSecurity("SASL_PLAINTEXT", sasl_mechanism="PLAIN")), ConnectionFacts(readable=frozenset({"quorum"}), quorum_mechanism="PLAIN")),
        (protected(brokers=WireSecurity("SASL_PLAINTEXT", sasl_mechanism="OAUTHBEARER")), ConnectionFacts(readable=frozenset({"kafka"}))),
        (protected(brokers=WireSecurity("SASL_SSL", sasl_mechanism="GSSAPI")), ConnectionFacts(librdkafka_without_kerberos=not has_kerberos_provider())),
        (protected(brokers=WireSecurity("SASL_PLAINTEXT", sasl_mechanism="SCRAM-SHA-256")), ConnectionFacts()),
        (protected(brokers=WireSecurity("SASL_SSL", sasl_mechanism="PLAIN")), ConnectionFacts()),
        (protected(zookeeper=ZooKeeperSettings("zk", use_tls=True, verify_hostname=False)), ConnectionFacts(unverified=frozenset({"zookeeper"}), zookeeper=("TLS",))),
        (protected(zookeeper=ZooKeeperSettings("zk", digest="u:p")), ConnectionFacts(readable=frozenset({"zookeeper"}))),
        (protected(zookeeper=ZooKeeperSettings("zk", sasl_mechanism="DIGEST-MD5")), ConnectionFacts(zookeeper=("SASL",))),
    ],
)  # fmt: skip
def test_connections_say_how_they_are_protected(settings: ClusterSettings, expected: ConnectionFacts) -> None:
    assert replace(connection_facts(settings), anonymous=False) == expected


def test_connections_say_when_what_they_log_in_with_ends(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue_by_intermediate("client", 20)
    private = serialization.load_pem_private_key(Path(key).read_bytes(), None)
    public = x509.load_pem_x509_certificate(Path(certificate).read_bytes())
    store = tmp_path / "k.p12"
    form = serialization.BestAvailableEncryption(b"opens it")
    store.write_bytes(pkcs12.serialize_key_and_certificates(b"c", private, public, None, form))  # type: ignore[arg-type]
    token = "h." + base64.urlsafe_b64encode(b'{"exp": 1800000000}').decode().rstrip("=") + ".s"
    settings = protected(
        brokers=WireSecurity("SSL", key_store=str(store), key_password="opens it"),
        controllers=WireSecurity("SASL_SSL", cert_file="/gone", sasl_mechanism="OAUTHBEARER", oauth=OAuthLogin(token=token)),
        zookeeper=ZooKeeperSettings("zk", use_tls=True, cert_file=certificate, key_file=key),
    )
    ends = connection_facts(settings).ends
    assert ends.keys() == {"certificate of kafka", "token of quorum", "certificate of zookeeper"}
    assert ends["token of quorum"] == 1_800_000_000
    assert ends["certificate of kafka"] == ends["certificate of zookeeper"]
    assert abs(ends["certificate of kafka"] - time.time() - 86_400 * VALID_DAYS) < 600
    closed = protected(brokers=WireSecurity("SSL", key_store=str(store), key_password="wrong"))
    assert connection_facts(closed).ends == {}


@pytest.mark.parametrize(
    ("zookeeper", "anonymous"),
    [
        (ZooKeeperSettings("zk"), True),
        (ZooKeeperSettings("zk", use_tls=True), True),
        (ZooKeeperSettings("zk", use_tls=True, cert_file="/c"), False),
        (ZooKeeperSettings("zk", digest="u:p"), False),
        (ZooKeeperSettings("zk", sasl_mechanism="DIGEST-MD5"), False),
    ],
)
def test_a_connection_says_whether_zookeeper_knows_who_connects(zookeeper: ZooKeeperSettings, anonymous: bool) -> None:
    assert connection_facts(protected(zookeeper=zookeeper)).anonymous is anonymous
