"""Clusters as people run them: nothing of preflight's rules about files refuses one that can be migrated."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, NodeFiles, Taken
from airflow_provider_kmigrate.core.cluster_state.spec import HostSpec
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage
from airflow_provider_kmigrate.core.node_files.properties import RenderFacts, parse_properties, render_broker_file
from airflow_provider_kmigrate.core.preflight.checks import run_checks
from airflow_provider_kmigrate.core.preflight.findings import Severity
from tests.core.preflight_views import FORMATTED, Case, config, healthy

ACLS = """authorizer.class.name=kafka.security.authorizer.AclAuthorizer
super.users=User:broker;User:CN=kafka
"""
PLAIN_LOGIN = 'PlainLoginModule required username="broker" password="hunter2" user_broker="hunter2";'

PLAINTEXT = """listeners=PLAINTEXT://node{id}:9092
log.dirs=/data
"""
CONTAINER = """listeners=INTERNAL://0.0.0.0:29092,EXTERNAL://0.0.0.0:9092
advertised.listeners=INTERNAL://kafka{id}:29092,EXTERNAL://localhost:1909{id}
listener.security.protocol.map=INTERNAL:PLAINTEXT,EXTERNAL:PLAINTEXT
inter.broker.listener.name=INTERNAL
log.dirs=/var/lib/kafka/data
broker.rack=${{env:RACK}}
config.providers=env
config.providers.env.class=org.apache.kafka.common.config.provider.EnvVarConfigProvider
"""
TLS = """listeners=SSL://node{id}:9093
security.inter.broker.protocol=SSL
ssl.client.auth=required
ssl.keystore.location=/etc/kafka/node{id}.jks
ssl.keystore.password=hunter2
ssl.endpoint.identification.algorithm=
"""
SASL = f"""listeners=INT://node{{id}}:9092,EXT://node{{id}}:9094
listener.security.protocol.map=INT:SASL_PLAINTEXT,EXT:SASL_SSL
inter.broker.listener.name=INT
sasl.mechanism.inter.broker.protocol=PLAIN
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256
listener.name.int.plain.sasl.jaas.config={PLAIN_LOGIN}
listener.name.ext.scram-sha-256.sasl.jaas.config=ScramLoginModule required;
"""
SCRAM = f"""listeners=INT://node{{id}}:9092
listener.security.protocol.map=INT:SASL_SSL
inter.broker.listener.name=INT
sasl.mechanism.inter.broker.protocol=SCRAM-SHA-512
sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.int.scram-sha-512.sasl.jaas.config=ScramLoginModule required username="broker" password="hunter2";
sasl.mechanism.controller.protocol=PLAIN
listener.name.controller.plain.sasl.jaas.config={PLAIN_LOGIN}
"""
KERBEROS = """listeners=SASL_PLAINTEXT://node{id}:9092
security.inter.broker.protocol=SASL_PLAINTEXT
sasl.kerberos.service.name=kafka
"""
KERBEROS_AND_SCRAM = """listeners=INT://node{id}:9092,EXT://node{id}:9094
listener.security.protocol.map=INT:SASL_PLAINTEXT,EXT:SASL_SSL
inter.broker.listener.name=INT
sasl.kerberos.service.name=kafka
sasl.enabled.mechanisms=GSSAPI,SCRAM-SHA-512
listener.name.ext.scram-sha-512.sasl.jaas.config=ScramLoginModule required;
"""
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "plaintext": (PLAINTEXT, {}),
    "containers": (CONTAINER, {}),
    "control plane": (PLAINTEXT.replace("listeners=", "listeners=CP://node{id}:9090,") + "control.plane.listener.name=CP\n", {}),
    "TLS": (TLS, {"controller_security": "SSL"}),
    "TLS and rules": (TLS + ACLS, {"controller_security": "SSL"}),
    "SASL": (SASL, {"controller_security": "SASL_PLAINTEXT"}),
    "SASL and rules": (SASL + ACLS, {"controller_security": "SASL_PLAINTEXT"}),
    "SASL between brokers, controllers in a closed network": (SASL, {}),
    "SCRAM and rules": (SCRAM + ACLS, {"controller_security": "SASL_SSL"}),
    "Kerberos and rules": (KERBEROS + ACLS, {"controller_security": "SASL_PLAINTEXT"}),
    "Kerberos between brokers, clients with SCRAM by key": (KERBEROS_AND_SCRAM, {"controller_security": "SASL_PLAINTEXT"}),
    "rules, every broker is anonymous": (PLAINTEXT + ACLS.replace("CN=kafka", "ANONYMOUS"), {}),
}


_ALL = "broker 0, broker 1, broker 2"
_ANY_NAME = (f": {_ALL}", f"by the controllers, {_ALL}")
_READABLE = (": INT of broker 0, INT of broker 1, INT of broker 2", "between brokers it is SASL_PLAINTEXT")
#: Shape -> how the warnings end that name what its brokers have already.
WEAK = {
    "TLS": _ANY_NAME,
    "TLS and rules": _ANY_NAME,
    "SASL": _READABLE,
    "SASL and rules": _READABLE,
    "SASL between brokers, controllers in a closed network": _READABLE[:1],
}


def edited(case: Case, added: Mapping[str, str], unread: Collection[str] = ()) -> Case:
    """Keys written into every file, and no broker restarted; keys that they did not read when they started."""
    view, facts = case
    brokers = {
        i: replace(b, files=NodeFiles({**(b.files.properties or {}), **added}, FORMATTED)) for i, b in view.brokers.items()
    }
    reported = {
        i: {key: value for key, value in taken.values.items() if key not in unread}
        for i, taken in facts.environment.taken.items()
        if taken
    }
    environment = replace(facts.environment, taken={i: Taken(values) for i, values in reported.items()})
    return replace(view, brokers=brokers), replace(facts, environment=environment)


def running(text: str, cluster: dict[str, Any], stage: FileStage = FileStage.ZOOKEEPER) -> Case:
    """Every broker runs with this file, rendered for a stage; brokers report what Kafka lets them report."""
    view, facts = healthy()
    hosts = HostSpec("agent", "/etc/kafka/server.properties")
    spec = replace(facts.spec, **cluster)
    spec = replace(spec, brokers=tuple(replace(node, hosts=hosts) for node in spec.brokers))
    files = {}
    for broker in view.brokers:
        original = "\n".join(map("=".join, config(broker).items())) + "\n" + text.format(id=broker)
        files[broker] = parse_properties(render_broker_file(original, stage, RenderFacts.of(spec, "3.9-IV0")))
    hidden = ("password", "jaas.config", "super.users", "config.providers", "config.providers.env.class", "allow.everyone")
    reported = {
        i: {k: None if k.endswith(hidden) else v.replace("${env:RACK}", "a") for k, v in f.items()} for i, f in files.items()
    }
    configs = {i: {key: value for key, value in keys.items() if value is not None} for i, keys in reported.items()}
    taken = {i: Taken({**keys, "node.id": str(i)}) for i, keys in reported.items()}
    mode = BrokerMode.MIGRATION if stage is FileStage.MIGRATION else BrokerMode.ZOOKEEPER
    brokers = {
        i: replace(b, mode=mode, files=NodeFiles(files[i], FORMATTED), process=replace(b.process, killed_after=600.0))
        for i, b in view.brokers.items()
    }
    environment = replace(facts.environment, taken=taken)
    return replace(view, brokers=brokers), replace(facts, spec=spec, configs=configs, environment=environment)


@pytest.mark.parametrize("stage", [FileStage.ZOOKEEPER, FileStage.MIGRATION])
@pytest.mark.parametrize("shape", SHAPES)
def test_an_ordinary_cluster_is_not_refused(shape: str, stage: FileStage) -> None:
    found = run_checks(*running(*SHAPES[shape], stage))
    named = [each.reason.text for each in found if each.severity is not Severity.UNKNOWN]
    assert [text for text in named if not text.endswith(WEAK.get(shape, ()))] == []
    assert len(named) == len(WEAK.get(shape, ()))
    assert {each.code for each in found} <= {"B9d", "B9f", "B13b", "C11"}
    assert {each.severity for each in found} <= {Severity.UNKNOWN, Severity.WARN}
    assert "hunter2" not in "".join(map(str, found))


PASSWORDS = {"1": ("listener.name.ssl.ssl.keystore.password",)}
TLS_OF_LISTENER = TLS + "listener.name.ssl.ssl.keystore.password=hunter2\n"


def blocked(case: Case) -> list[str]:
    return [each.code for each in run_checks(*case) if each.severity is Severity.BLOCK]


def test_a_login_for_controllers_is_written_without_a_restart() -> None:
    scram = "".join(line for line in SCRAM.splitlines(keepends=True) if "controller" not in line)
    case = running(scram, {"controller_security": "SASL_SSL"})
    assert blocked(case) == ["B9d"]
    case = edited(case, {"sasl.mechanism.controller.protocol": "PLAIN"})
    assert blocked(case) == ["B9d"]
    assert run_checks(*edited(case, {"listener.name.controller.plain.sasl.jaas.config": PLAIN_LOGIN})) == ()


def test_a_secret_for_dynamic_passwords_is_written_without_a_restart() -> None:
    view, facts = running(TLS_OF_LISTENER, {"controller_security": "SSL"})
    assert facts.environment.tree is not None
    tree = replace(facts.environment.tree, broker_settings=PASSWORDS)
    case = view, replace(facts, environment=replace(facts.environment, tree=tree))
    assert blocked(case) == ["B11"]
    assert blocked(edited(case, {"password.encoder.secret": "hunter2"})) == []


def test_an_id_that_was_generated_is_written_without_a_restart() -> None:
    view, facts = running(PLAINTEXT, {})
    facts = replace(facts, configs={i: {**(keys or {}), "broker.id": "-1"} for i, keys in facts.configs.items()})
    assert run_checks(*edited((view, facts), {}, unread=("broker.id", "node.id"))) == ()
