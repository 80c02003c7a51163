"""A real cluster as careful teams run it: brokers and controllers talk SASL_SSL, clients need a password, and an authorizer says who may what.

Each broker keeps a PLAINTEXT listener, by which the local cluster sees that it serves; a client on it is anonymous and may do nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from kafka.net.sasl.scram import ScramClient
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from airflow_provider_kmigrate.clients.deadline import Deadline
from airflow_provider_kmigrate.clients.settings import WireSecurity
from airflow_provider_kmigrate.clients.tls import tls_context
from airflow_provider_kmigrate.clients.wire import WireConnection
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, NodeSpec
from airflow_provider_kmigrate.spec import load
from tests.clients.authority import Authority
from tests.kit.judge import Kafka
from tests.kit.localcluster import config, plan
from tests.kit.localcluster.cluster import LocalCluster
from tests.kit.localcluster.plan import Plan, Shape, free_ports

TOOL, BROKER = "kmigrate", "broker"
TOKEN_KEY = "canary-t-0e94"
PASSWORDS = {BROKER: "canary-b-71c2", TOOL: "canary-k-93aa", "alice": "canary-a-55d0"}
_SHAPE = Shape(name="secured", brokers=3, controllers=3)
_SCRAM, _TOKEN_S = "SCRAM-SHA-256", 10.0
_JAAS = "org.apache.kafka.common.security"


@dataclass(frozen=True)
class Secured:
    """The cluster, what kmigrate knows of it, and what its clients know."""

    cluster: LocalCluster
    spec: ClusterSpec
    connections: Mapping[str, Mapping[str, Any]]
    bootstrap: str
    authority: Authority

    def client(self, user: str, mechanism: str = "SCRAM-SHA-256", password: str | None = None) -> dict[str, str]:
        """A user's properties for librdkafka."""
        return _client(self.bootstrap, self.authority, user, mechanism, password)

    def java_client(self) -> dict[str, str]:
        """A super user's properties for Kafka's own tools."""
        login = f'{_JAAS}.plain.PlainLoginModule required username="{TOOL}" password="{PASSWORDS[TOOL]}";'
        trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": self.authority.ca}
        return {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": login, **trust}

    def create_token(self, kafka: Kafka, user: str) -> tuple[str, str]:
        """A delegation token of the user: its id and its HMAC."""
        login = f'{_JAAS}.scram.ScramLoginModule required username="{user}" password="{PASSWORDS[user]}";'
        more = {"sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": login}
        asked = ("--bootstrap-server", self.bootstrap, "--command-config", kafka.config("token", more), "--create")
        printed = kafka.run("org.apache.kafka.tools.DelegationTokenCommand", *asked, "--max-life-time-period", "-1")
        identity, code = printed.strip().splitlines()[-1].split()[:2]
        return identity, code

    def is_token_accepted(self, node: NodeSpec, identity: str, code: str) -> bool:
        """Whether this broker lets a client in by the token."""
        security, deadline = WireSecurity("SSL", ca_file=self.authority.ca), Deadline(_TOKEN_S)
        connection = WireConnection(node.host, node.port, security, tls_context(security), deadline)
        try:
            connection.call(SaslHandshakeRequest(mechanism=_SCRAM, version=1), deadline)
            login = _TokenLogin(identity, code, _SCRAM)
            answer = connection.call(SaslAuthenticateRequest(auth_bytes=login.first_message(), version=1), deadline)
            if answer.error_code == 0:
                login.process_server_first_message(bytes(answer.auth_bytes))
                answer = connection.call(SaslAuthenticateRequest(auth_bytes=login.final_message(), version=1), deadline)
            return bool(answer.error_code == 0)
        finally:
            connection.close()

    def allow(self, user: str, topic: str) -> None:
        """A user with a password (SCRAM) that may use one topic, and the groups that are named after it."""
        admin = AdminClient(self.client(TOOL, "PLAIN"))  # type: ignore[arg-type]
        credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        wanted = UserScramCredentialUpsertion(user, credential, PASSWORDS[user].encode())
        for future in admin.alter_user_scram_credentials([wanted]).values():
            future.result(30)
        rules = [_rule(ResourceType.TOPIC, topic, user), _rule(ResourceType.GROUP, topic, user)]
        for created in admin.create_acls(rules).values():
            created.result(30)


class _TokenLogin(ScramClient):  # type: ignore[misc]  # kafka-python has no types
    """SCRAM with the extension by which Kafka knows a token's id and HMAC (KIP-48)."""

    def first_message(self) -> bytes:
        bare = b"n=" + self.user + b",r=" + self.nonce + b",tokenauth=true"
        self.auth_message += bare
        return bytes(b"n,," + bare)


def up(folder: Path, shape: Shape = _SHAPE) -> Secured:
    """Brokers in ZooKeeper mode; the cluster file and the connections name the secure listeners only."""
    cluster, authority = LocalCluster(folder / "cluster"), Authority(folder)
    planned = plan.make(cluster.folder, shape)
    planned.save()
    ports = dict(zip((node.id for node in planned.brokers), free_ports(len(planned.brokers)), strict=True))
    for node in planned.brokers:
        path = Path(node.hosts.properties)
        path.parent.mkdir(parents=True)
        path.write_text(config.render(_broker(planned, node, ports[node.id], authority)))
    cluster.up()
    bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports.values())
    _edit_file(cluster, ports)
    return Secured(cluster, load(cluster.spec_path), _connections(cluster, bootstrap, authority), bootstrap, authority)


def _broker(planned: Plan, node: NodeSpec, port: int, authority: Authority) -> dict[str, str]:
    keys = config.broker_properties(planned, node)
    certificate, key = authority.issue(node.name)
    store = authority.folder / f"{node.name}-store.pem"
    store.write_bytes(Path(key).read_bytes() + Path(certificate).read_bytes())
    users = " ".join(f'user_{name}="{PASSWORDS[name]}"' for name in (BROKER, TOOL))
    login = f'username="{BROKER}" password="{PASSWORDS[BROKER]}"'
    return {
        **keys,
        "listeners": f"{keys['listeners']},SECURE://127.0.0.1:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SECURE:SASL_SSL",
        "inter.broker.listener.name": "SECURE",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "listener.name.secure.plain.sasl.jaas.config": f"{_JAAS}.plain.PlainLoginModule required {login} {users};",
        "listener.name.secure.scram-sha-256.sasl.jaas.config": f"{_JAAS}.scram.ScramLoginModule required;",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(store),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": authority.ca,
        "delegation.token.secret.key": TOKEN_KEY,
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": f"User:{BROKER};User:{TOOL}",
    }


def _edit_file(cluster: LocalCluster, ports: Mapping[int, int]) -> None:
    document = yaml.safe_load(cluster.spec_path.read_text())
    for broker in document["brokers"]:
        broker["port"] = ports[broker["id"]]
    document["quorum"] = {"security_protocol": "SASL_SSL"}
    cluster.spec_path.write_text(yaml.safe_dump(document, sort_keys=False))


def _connections(cluster: LocalCluster, bootstrap: str, authority: Authority) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(cluster.plan.connections_path.read_text())
    found["secured_kafka"]["extra"] = _client(bootstrap, authority, TOOL, "PLAIN", None)
    return found


def _client(bootstrap: str, authority: Authority, user: str, mechanism: str, password: str | None) -> dict[str, str]:
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password or PASSWORDS[user],
        "ssl.ca.location": authority.ca,
    }


def _rule(kind: ResourceType, name: str, user: str) -> AclBinding:
    return AclBinding(kind, name, ResourcePatternType.LITERAL, f"User:{user}", "*", AclOperation.ALL, AclPermissionType.ALLOW)
