"""Brokers whose only listener is OAUTHBEARER or Kerberos, and a ZooKeeper that lets clients in by SASL or TLS: their keys, and the restarts for these."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from airflow_provider_kmigrate.core.cluster_state.spec import NodeSpec
from airflow_provider_kmigrate.exceptions import Failed
from tests.kit import kdc, token_server
from tests.kit.kdc import Kdc
from tests.kit.localcluster import ready
from tests.kit.localcluster.agents import agent_of
from tests.kit.localcluster.config import render
from tests.kit.localcluster.jaas import SASL_ONLY, write_jaas
from tests.kit.localcluster.plan import Plan
from tests.kit.processes import NodeProcess
from tests.kit.token_server import TokenServer

NAME = "localhost"  # by which Java's Kerberos knows the loopback address
SECRETS = {"broker": "canary-b0bb1e", "kmigrate": "canary-c0ffee"}
_JAAS = "org.apache.kafka.common.security"
_STOP_S, _START_S = 30.0, 60.0
_REPLACED = {"listeners", "advertised.listeners", "inter.broker.listener.name"}


def oauth_keys(server: TokenServer) -> dict[str, str]:
    """Of brokers that get tokens from this server, and take those that it has signed."""
    prefix = "listener.name.only.oauthbearer"
    login = f'clientId="broker" clientSecret="{SECRETS["broker"]}" scope="kafka"'
    return {
        f"{prefix}.sasl.jaas.config": f"{_JAAS}.oauthbearer.OAuthBearerLoginModule required {login};",
        f"{prefix}.sasl.login.callback.handler.class": f"{_JAAS}.oauthbearer.OAuthBearerLoginCallbackHandler",
        f"{prefix}.sasl.server.callback.handler.class": f"{_JAAS}.oauthbearer.OAuthBearerValidatorCallbackHandler",
        "sasl.oauthbearer.token.endpoint.url": server.url,
        "sasl.oauthbearer.jwks.endpoint.url": server.jwks.as_uri(),
        "sasl.oauthbearer.expected.issuer": token_server.ISSUER,
        "sasl.oauthbearer.expected.audience": token_server.AUDIENCE,
    }


def oauth_client(bootstrap: str, server: TokenServer, secret: str = SECRETS["kmigrate"]) -> dict[str, str]:
    """kmigrate's properties: client credentials."""
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": server.url,
        "sasl.oauthbearer.client.id": "kmigrate",
        "sasl.oauthbearer.client.secret": secret,
        "sasl.oauthbearer.scope": "kafka",
    }


def kerberos_keys(realm: Kdc) -> dict[str, str]:
    """Of nodes that all have the one principal of their address."""
    login = kerberos_login(realm.add(f"kafka/{NAME}"), f"kafka/{NAME}")
    return {"listener.name.only.gssapi.sasl.jaas.config": login, "sasl.kerberos.service.name": "kafka"}


def kerberos_login(keytab: Path, principal: str) -> str:
    """As a JAAS section has it."""
    options = f'useKeyTab=true storeKey=true keyTab="{keytab}" principal="{principal}@{kdc.REALM}"'
    return f"com.sun.security.auth.module.Krb5LoginModule required {options};"


def demand_sasl(plan: Plan, login: str, switches: Sequence[str] = ()) -> None:
    """Have ZooKeeper's next start let clients in by SASL only; `login`: of its JAAS section."""
    for folder in plan.zookeeper_folders:
        with (folder / "zoo.cfg").open("a") as file:
            file.write(render(SASL_ONLY))
        process = NodeProcess(folder)
        launch = process.read_launch()
        program, *words = launch.start
        process.define(replace(launch, start=(program, write_jaas(folder / "jaas.conf", Server=login), *switches, *words)))


def offer_tls(plan: Plan, port: int, store: Path, authority: str) -> None:
    """Have ZooKeeper's next start let clients in at this port, too, by TLS with a certificate of their own; it is the client's identity."""
    keys = {
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "secureClientPort": port,
        "secureClientPortAddress": "127.0.0.1",
        "ssl.keyStore.location": store,
        "ssl.keyStore.type": "PEM",
        "ssl.trustStore.location": authority,
        "ssl.trustStore.type": "PEM",
        "ssl.clientAuth": "need",
        "authProvider.x509": "org.apache.zookeeper.server.auth.X509AuthenticationProvider",
    }
    for folder in plan.zookeeper_folders:
        with (folder / "zoo.cfg").open("a") as file:
            file.write("".join(f"{key}={value}\n" for key, value in keys.items()))


def write_store(path: Path, certificate: str, key: str) -> Path:
    """A store as Java's PEM form has it: a key, then its certificate."""
    path.write_bytes(Path(key).read_bytes() + Path(certificate).read_bytes())
    return path


def restart_with_zookeeper_tls(plan: Plan, port: int, store: Path, authority: str, token: int) -> None:
    """Brokers reach ZooKeeper by TLS and verify its name; what they create is closed to all but this certificate."""
    keys = {
        "zookeeper.ssl.client.enable": "true",
        "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty",
        "zookeeper.ssl.keystore.location": store,
        "zookeeper.ssl.keystore.type": "PEM",
        "zookeeper.ssl.truststore.location": authority,
        "zookeeper.ssl.truststore.type": "PEM",
        "zookeeper.set.acl": "true",
    }
    more = "".join(f"{key}={value}\n" for key, value in keys.items())
    _restart_with_zookeeper(plan, f"127.0.0.1:{port}", more, lambda: offer_tls(plan, port, store, authority), token)


def restart_with_sole_zookeeper_login(plan: Plan, server: str, client: str, token: int, switches: Sequence[str] = ()) -> None:
    """ZooKeeper lets clients in by SASL only, and brokers and controllers log in there; what brokers create is closed to all but them."""
    jaas = write_jaas(plan.folder / "client-jaas.conf", Client=client)
    for node in (*plan.brokers, *plan.controllers):
        _set_switches(Path(plan.agent_config(node.id)), [jaas, *switches])
    address = f"{NAME}:{plan.ports['zookeeper']}"
    _restart_with_zookeeper(plan, address, "zookeeper.set.acl=true\n", lambda: demand_sasl(plan, server, switches), token)


def _restart_with_zookeeper(plan: Plan, address: str, more: str, change: Callable[[], None], token: int) -> None:
    """All brokers, with this address of ZooKeeper and these lines more in their files, and ZooKeeper itself after the `change`."""
    for node in plan.brokers:
        with agent_of(node, plan.cluster_id) as host:
            text = host.read_properties(node).replace(f"127.0.0.1:{plan.ports['zookeeper']}", address)
            host.put_properties(node, f"{text}{more}", token)
            host.stop(node, token)
    change()
    for process in map(NodeProcess, plan.zookeeper_folders):
        if not process.wait_gone(process.signal(signal.SIGTERM), _STOP_S):
            raise Failed(f"{process.folder.name} does not end")
    ready.zookeeper_serves(plan, time.monotonic() + _START_S)
    for node in plan.brokers:
        with agent_of(node, plan.cluster_id) as host:
            host.start(node, token)


def kerberos_client(bootstrap: str, keytab: Path | None) -> dict[str, str]:
    """kmigrate's properties; without a keytab the ticket cache counts."""
    properties = {"bootstrap.servers": bootstrap, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI"}
    return {**properties, **({"sasl.kerberos.keytab": str(keytab)} if keytab else {})}


def bootstrap_of(plan: Plan) -> str:
    """The brokers' addresses, by the name in their principals."""
    return ",".join(f"{NAME}:{node.port}" for node in plan.brokers)


def restart_with_sole_listener(
    plan: Plan, mechanism: str, keys: Mapping[str, str], token: int, switches: Sequence[str] = ()
) -> None:
    """Every broker's only listener gets SASL, and no other is left; `switches`: for every node's JVM, controllers too."""
    for node in (*plan.brokers, *plan.controllers):
        _set_switches(Path(plan.agent_config(node.id)), switches)
    for node in plan.brokers:
        with agent_of(node, plan.cluster_id) as host:
            host.put_properties(node, _with_sole_listener(host.read_properties(node), node, mechanism, keys), token)
            host.stop(node, token)
    for node in plan.brokers:
        with agent_of(node, plan.cluster_id) as host:
            host.start(node, token)


def _set_switches(definition: Path, switches: Sequence[str]) -> None:
    document = json.loads(definition.read_text())
    for role in document["roles"].values():
        program, *words = role["process"]["start"]
        role["process"]["start"] = [program, *switches, *(word for word in words if not word.startswith("-Djava.security."))]
    definition.write_text(json.dumps(document))


def _with_sole_listener(text: str, node: NodeSpec, mechanism: str, keys: Mapping[str, str]) -> str:
    lines = [line for line in text.splitlines() if not _is_replaced(line.partition("=")[0])]
    lines += [
        f"listeners=ONLY://{node.endpoint}",
        f"advertised.listeners=ONLY://{NAME}:{node.port}",
        "inter.broker.listener.name=ONLY",
        "listener.security.protocol.map=ONLY:SASL_PLAINTEXT",
        f"sasl.enabled.mechanisms={mechanism}",
        f"sasl.mechanism.inter.broker.protocol={mechanism}",
        *(f"{key}={value}" for key, value in keys.items()),
    ]
    return "\n".join(lines) + "\n"


def _is_replaced(key: str) -> bool:
    return key in _REPLACED or key.startswith(("listener.", "sasl."))
