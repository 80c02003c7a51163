"""Rules, principals, secrets and the way to ZooKeeper; each defect gives exactly its code, and no finding shows a secret."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import ServiceUnit
from airflow_provider_kmigrate.core.preflight.checks import run_checks
from airflow_provider_kmigrate.core.preflight.controllers import principal
from airflow_provider_kmigrate.core.preflight.findings import Severity
from tests.core.preflight_around import ACL_CLASS, everywhere, remote
from tests.core.preflight_security_rows import FILES_OF_SECRETS, FOLDERS_OF_SECRETS, ROWS, VARIABLES
from tests.core.preflight_views import Change, both, codes, healthy, spec


@pytest.mark.parametrize(("change", "expected"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_one_defect_gives_its_code(change: Change, expected: list[str]) -> None:
    assert codes(change(*healthy())) == expected


def test_one_finding_lists_each_class_with_the_nodes_that_need_its_jar() -> None:
    stages = {
        "broker_kraft": {"replica.selector.class": "com.example.Selector"},
        "controller_final": {"metric.reporters": "com.example.Final"},
    }
    case = both(everywhere(security_providers="com.example.Fips"), spec(stage_properties=stages))(*healthy())
    (found,) = run_checks(*case)
    assert found.reason.text == (
        "whether these machines have the jars of metric.reporters com.example.Final (on controllers 3000, 3001, 3002); "
        "replica.selector.class com.example.Selector (on broker 0, broker 1, broker 2); "
        "security.providers com.example.Fips (on controllers 3000, 3001, 3002)"
    )


@pytest.mark.parametrize(
    ("login", "name"),
    [
        ('username="a" password="x";', "User:a"),
        ("username='a b' password=x;", "User:a b"),
        ("password=x username=a-1.b$c;", "User:a-1.b$c"),
        ('username="a"\n username="b";', "User:b"),
        ('/* username="b" */ username="a" password="// /*"; // username="b"', "User:a"),
        ('username="";', "User:"),
        ('username="a\\"b";', None),
        ('username="${env:NAME}";', None),
        ("", None),
    ],
)
def test_a_login_names_its_user_as_kafka_reads_it(login: str, name: str | None) -> None:
    """The first five by Kafka 3.9.2's JaasContext."""
    keys = {
        "listener.security.protocol.map": "I:SASL_SSL",
        "listener.name.i.plain.sasl.jaas.config": f"PlainLoginModule required {login}",
    }
    assert principal(keys, keys, "I", "PLAIN") == name


def test_controllers_need_every_file_that_theirs_names() -> None:
    providers = {**FILES_OF_SECRETS, **VARIABLES, "config_providers": "files,folders,env"}
    providers["config_providers_folders_class"] = FOLDERS_OF_SECRETS["config_providers_files_class"]
    logins = {
        "listener_name_plaintext_gssapi_sasl_jaas_config": 'Krb5LoginModule required keyTab="/a b.keytab" principal="k";',
        "listener_name_plaintext_plain_sasl_jaas_config": 'PlainLoginModule required password="${files:/etc/a:b}";',
    }
    secrets = {
        "ssl_key_password": "${folders:/run/secrets:key}",
        "ssl_keystore_location": "/k",
        "ssl_keystore_password": "${env:KEY}",
    }
    (files, variables) = run_checks(*everywhere(**providers, **logins, **secrets)(*healthy()))
    nodes = "controller 3000, controller 3001, controller 3002"
    assert files.reason.text == (
        f"whether Kafka's user can read /a b.keytab, /etc/a, /k, /run/secrets/key on the machines of {nodes}"
    )
    assert variables.reason.text.endswith("KEY for controller 3000, KEY for controller 3001, KEY for controller 3002")


@pytest.mark.parametrize(
    ("shown", "nodes"),
    [("JAVA_HOME=/usr KEY", "3001, KEY for controller 3002"), ("KEYS", "3000, KEY for controller 3001, KEY for controller 3002")],
)
def test_a_variable_that_a_service_shows_is_there(shown: str, nodes: str) -> None:
    view, facts = everywhere(**VARIABLES, ssl_key_password="${env:KEY}")(*healthy())
    first = view.controllers[3000]
    unit = ServiceUnit({"Environment": shown})
    controllers = {**view.controllers, 3000: replace(first, process=replace(first.process, unit=unit))}
    (found,) = run_checks(replace(view, controllers=controllers), facts)
    assert found.reason.text.endswith(f": KEY for controller {nodes}")


@pytest.mark.parametrize(
    ("connect", "severity"),
    [
        ("localhost:2181/kafka", Severity.BLOCK),
        ("localhost:2181,[::1]:2182/kafka", Severity.BLOCK),
        ("localhost:2181,zk2:2181/kafka", Severity.WARN),
        ("zk1:2181,zk2:2181,127.0.0.1/kafka", Severity.WARN),
        ("localhost6:2181,ip6-localhost:2182/kafka", Severity.BLOCK),
        ("0.0.0.0:2181,zk2:2181/kafka", Severity.WARN),
    ],
)
def test_controllers_go_on_to_the_next_server_of_zookeeper(connect: str, severity: Severity) -> None:
    (found,) = run_checks(*both(remote(600.0), everywhere(zookeeper_connect=connect))(*healthy()))
    assert (found.code, found.severity) == ("B17", severity)


@pytest.mark.parametrize(
    ("resolved", "severity"),
    [
        ("zk1:2181/kafka", None),
        ("localhost:2181/kafka", Severity.BLOCK),
        ("localhost:2181,zk2:2181/kafka", Severity.WARN),
        ("", Severity.UNKNOWN),
    ],
)
def test_a_reference_to_zookeeper_is_judged_by_what_it_is_on_the_running_broker(resolved: str, severity: Severity | None) -> None:
    """Controllers get it as it is, so that `localhost` in it is their own machine."""
    view, facts = both(remote(600.0), everywhere(zookeeper_connect="${file:/etc/zk:connect}"))(*healthy())
    facts = replace(
        facts, configs={broker: {**(keys or {}), "zookeeper.connect": resolved} for broker, keys in facts.configs.items()}
    )
    found = [each.severity for each in run_checks(view, facts) if each.code == "B17"]
    assert found == ([severity] if severity else [])


@pytest.mark.parametrize(
    ("url", "severity"),
    [
        ("acls:2181", Severity.BLOCK),
        ("zk:2181/acls", Severity.BLOCK),
        ("10.0.0.1:2181/kafka", Severity.UNKNOWN),
        ("zk:2182/kafka", Severity.UNKNOWN),
        ("${env:ACLS}", Severity.UNKNOWN),
    ],
)
def test_rules_elsewhere_block_where_the_chroot_tells(url: str, severity: Severity) -> None:
    keys = {"authorizer_class_name": ACL_CLASS, "super_users": "User:ANONYMOUS", "authorizer_zookeeper_url": url}
    found = run_checks(*everywhere(**keys)(*healthy()))
    assert [(each.code, each.severity) for each in found] == [("B8d", severity)] * 3


SECRETS = {"password_encoder_secret": "hunter2", "sasl_jaas_config": 'username="broker" password="hunter2";'}


@pytest.mark.parametrize("change", [row[1] for row in ROWS], ids=[row[0] for row in ROWS])
def test_no_finding_holds_a_secret(change: Change) -> None:
    def keep(properties: Mapping[str, str]) -> dict[str, str]:
        return {**properties, **{key.replace("_", "."): value for key, value in SECRETS.items()}}

    view, facts = change(*healthy())
    brokers = {i: replace(b, files=replace(b.files, properties=keep(b.files.properties or {}))) for i, b in view.brokers.items()}
    assert "hunter2" not in "".join(map(str, run_checks(replace(view, brokers=brokers), facts)))
