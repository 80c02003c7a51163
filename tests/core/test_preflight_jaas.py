"""JAAS files and keytabs, and what preflight says of nodes whose files lack a login."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import ClusterView, NodeFiles, Process, ProcessState, Software
from airflow_provider_kmigrate.core.node_files.jaas import find_login_section, may_serve, read_login_modules
from airflow_provider_kmigrate.core.preflight.checks import run_checks
from airflow_provider_kmigrate.core.preflight.findings import PreflightFacts, PreflightFinding, Severity
from tests.core.preflight_around import everywhere, tree
from tests.core.preflight_views import Case, Change, both, healthy, spec

KERBEROS = 'com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true keyTab="/k" principal="kafka/h@R";'
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required username=... password=...;"
SERVER, CLIENT = f"KafkaServer {{ {KERBEROS} }};", f"Client {{ {KERBEROS} }};"
BLOCK, UNKNOWN = Severity.BLOCK, Severity.UNKNOWN
ASKS = tree(guarded=("sasl",))
PLAIN_LISTENER = {"sasl.mechanism.controller.protocol": "PLAIN", "sasl.enabled.mechanisms": "PLAIN"}
SASL = both(
    everywhere(security_inter_broker_protocol="SASL_SSL", listeners="SASL_SSL://b:9092"), spec(controller_security="SASL_SSL")
)


def jaas(brokers: str | None, controllers: str | None, **switches: str) -> Change:
    """All nodes of a role have a JAAS file with this text; None: it is not known. `switches`: of all, with `_` for a dot."""

    def change(view: ClusterView, facts: PreflightFacts) -> Case:
        given = {name.replace("_", "."): value for name, value in switches.items()}
        given["java.security.auth.login.config"] = "/etc/kafka/jaas.conf"

        def process(text: str | None) -> Process:
            software = Software("3.9.2", "/java", "3.9.2", "/java", "17", given, text)
            return Process(ProcessState.RUNNING, 1, 1.0, killed_after=inf, software=software)

        found = {number: replace(broker, process=process(brokers)) for number, broker in view.brokers.items()}
        quorum = {number: replace(each, process=process(controllers)) for number, each in view.controllers.items()}
        return replace(view, brokers=found, controllers=quorum), facts

    return change


def find(change: Change, code: str) -> list[PreflightFinding]:
    return [finding for finding in run_checks(*change(*healthy())) if finding.code == code]


SECTIONS: list[tuple[str, Change, list[Severity]]] = [
    ("ZooKeeper asks for no login", both(tree(guarded=("ip",)), jaas(SERVER, SERVER)), []),
    ("nothing is known of the files", both(ASKS, jaas(None, None)), []),
    ("all have the section", both(ASKS, jaas(SERVER + CLIENT, SERVER + CLIENT)), []),
    ("controllers lack it", both(ASKS, jaas(SERVER + CLIENT, SERVER)), [BLOCK]),
    ("nobody has it", both(ASKS, jaas(SERVER, SERVER)), [BLOCK]),
    ("a switch names another one, which is there", both(ASKS, jaas(f"Zk {{ {PLAIN} }};", f"Zk {{ {PLAIN} }};", zookeeper_sasl_clientconfig="Zk")), []),
    ("a switch names another one, which is not there", both(ASKS, jaas(CLIENT, CLIENT, zookeeper_sasl_clientconfig="Zk")), [BLOCK]),
    ("a switch turns the login off", both(ASKS, jaas(CLIENT, CLIENT, zookeeper_sasl_client="false")), [BLOCK]),
    ("another spelling of the section", both(ASKS, jaas(CLIENT, f"client {{ {PLAIN} }};")), [BLOCK]),
]  # fmt: skip


@pytest.mark.parametrize(("change", "severities"), [row[1:] for row in SECTIONS], ids=[row[0] for row in SECTIONS])
def test_nodes_log_in_to_zookeeper_by_a_section(change: Change, severities: list[Severity]) -> None:
    assert [finding.severity for finding in find(change, "B10d")] == severities


def test_the_finding_names_nodes_section_and_file() -> None:
    (found,) = find(both(ASKS, jaas(SERVER + CLIENT, SERVER)), "B10d")
    assert found.reason.text == (
        "nodes 3000, 3001, 3002 have no section Client in /etc/kafka/jaas.conf, and ZooKeeper's znodes belong to SASL identities"
    )


LOGINS: list[tuple[str, Change, list[Severity]]] = [
    ("nothing is known of the files", jaas(None, None), [UNKNOWN]),
    ("all have the login", jaas(SERVER, SERVER), []),
    ("a section of the listener", jaas(SERVER, f"controller.KafkaServer {{ {KERBEROS} }};"), []),
    ("the controllers' is not known", jaas(SERVER, None), [UNKNOWN]),
    ("controllers have the section Client only", jaas(SERVER, CLIENT), [BLOCK]),
    ("a section of the listener without the mechanism", jaas(SERVER, f"{SERVER} controller.KafkaServer {{ {PLAIN} }};"), [BLOCK]),
    ("a module of others", jaas(SERVER, "KafkaServer { com.example.Login required; };"), []),
    ("a section of another listener", jaas(SERVER, f"internal.KafkaServer {{ {KERBEROS} }};"), [BLOCK]),
    ("the other mechanism", both(spec(controller_security="SASL_SSL", controller_properties=PLAIN_LISTENER), jaas(SERVER, SERVER)), [BLOCK]),
    ("two mechanisms", both(spec(controller_security="SASL_SSL", controller_properties=PLAIN_LISTENER), jaas(f"KafkaServer {{ {KERBEROS} {PLAIN} }};", f"KafkaServer {{ {KERBEROS} {PLAIN} }};")), []),
]  # fmt: skip


@pytest.mark.parametrize(("change", "severities"), [row[1:] for row in LOGINS], ids=[row[0] for row in LOGINS])
def test_the_login_of_the_controllers_listener_may_be_in_jaas_files(change: Change, severities: list[Severity]) -> None:
    assert [finding.severity for finding in find(both(SASL, change), "B9d")] == severities


def test_keytabs_that_every_user_may_read_are_named() -> None:
    def exposed(view: ClusterView, facts: PreflightFacts) -> Case:
        files = replace(view.brokers[1].files or NodeFiles(), exposed=("/etc/kafka/kafka.keytab",))
        return replace(view, brokers=dict(view.brokers) | {1: replace(view.brokers[1], files=files)}), facts

    (found,) = find(exposed, "W30")
    assert found.reason.text == "keytabs that every user of the machine may read: /etc/kafka/kafka.keytab of broker 1"


@pytest.mark.parametrize(
    "part",
    [
        " ",
        "a",
        "a{",
        "a{ b c ",
        "A{a.B required " + "k" * 999 + "=b;};",
        "A{a.B required k='};';};",
        "A{}\n",
        'a{"',
        "'a{'",
        "a{'",
    ],
    ids=range(10),
)
def test_a_file_of_the_longest_that_an_agent_sends_is_read_in_linear_time(part: str) -> None:
    """A mebibyte, for which a quadratic pattern needs hours of the worker's processor."""
    assert set(read_login_modules(part * ((1 << 20) // len(part)))) <= {"A"}


def test_sections_and_modules_of_a_file() -> None:
    text = f'{SERVER}\n"internal.KafkaServer" {{ {PLAIN} a.B optional x="}};"; }};'
    sections = read_login_modules(text)
    assert sections == {
        "KafkaServer": ("com.sun.security.auth.module.Krb5LoginModule",),
        "internal.KafkaServer": ("org.apache.kafka.common.security.plain.PlainLoginModule", "a.B"),
    }
    assert [find_login_section(sections, name) for name in ("INTERNAL", "CONTROLLER")] == ["internal.KafkaServer", "KafkaServer"]
    assert [may_serve(sections["KafkaServer"], name) for name in ("gssapi", "PLAIN", "X")] == [True, False, True]
