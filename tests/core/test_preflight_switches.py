"""Java's switches that brokers have from their command lines, and what preflight says of controllers that would lack them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import (
    Broker,
    BrokerMode,
    ClusterView,
    ConnectionFacts,
    Process,
    ProcessState,
    Software,
)
from airflow_provider_kmigrate.core.preflight.checks import run_checks
from airflow_provider_kmigrate.core.preflight.findings import PreflightFacts, PreflightFinding, Severity
from tests.core.preflight_around import everywhere, large_topic, tree
from tests.core.preflight_views import Case, Change, both, healthy, known, spec

TLS = {"zookeeper.client.secure": "true", "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty"}
STORE = {"zookeeper.ssl.keyStore.location": "/etc/kafka/ks.p12", "zookeeper.ssl.keyStore.password": "..."}
JAAS = {"java.security.auth.login.config": "/etc/kafka/jaas.conf"}
IN_FILE = {"zookeeper.ssl.client.enable": "true", "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty"}
BLOCK, UNKNOWN, WARN = Severity.BLOCK, Severity.UNKNOWN, Severity.WARN
Switches = Mapping[str, str] | None


def process(switches: Switches, state: ProcessState) -> Process:
    return Process(state, 1, 1.0, killed_after=inf, software=Software("3.9.2", "/java", "3.9.2", "/java", "17", switches))


def switches(brokers: Switches, controllers: Switches, *, runs: bool = False, broker_1: Switches | str = "") -> Change:
    """All brokers run with these switches (broker 1 perhaps with others), and all controllers' services have those."""

    def change(view: ClusterView, facts: PreflightFacts) -> Case:
        state = ProcessState.RUNNING if runs else ProcessState.STOPPED
        seen = {number: broker_1 if number == 1 and not isinstance(broker_1, str) else brokers for number in view.brokers}
        found = {
            number: replace(each, process=process(seen[number], ProcessState.RUNNING)) for number, each in view.brokers.items()
        }  # type: ignore[arg-type]
        quorum = {number: replace(each, process=process(controllers, state)) for number, each in view.controllers.items()}
        return replace(view, brokers=found, controllers=quorum), facts

    return change


def find(change: Change) -> list[PreflightFinding]:
    return [finding for finding in run_checks(*change(*healthy())) if finding.code == "B10c"]


ROWS: list[tuple[str, Change, list[Severity]]] = [
    ("an older agent", switches(None, None), []),
    ("an older agent of the controllers alone", switches(TLS, None), [UNKNOWN]),
    ("no switch", switches({}, {}), []),
    ("the same switches", switches(TLS | STORE | JAAS, TLS | STORE | JAAS), []),
    ("a controller's store at another path", switches(STORE, STORE | {"zookeeper.ssl.keyStore.location": "/ctl.p12"}), []),
    ("a service that sets none", switches(TLS | STORE, {}), [UNKNOWN]),
    ("a controller that runs without", switches(TLS, {}, runs=True), [BLOCK]),
    ("a controller that runs with TLS off", switches(TLS, TLS | {"zookeeper.client.secure": "false"}, runs=True), [BLOCK]),
    ("another spelling of true", switches(TLS, TLS | {"zookeeper.client.secure": "TRUE"}, runs=True), []),
    ("a lower limit of answers", switches({"jute.maxbuffer": "8388608"}, {"jute.maxbuffer": "1048575"}, runs=True), [BLOCK]),
    ("a JAAS file that ZooKeeper asks for", both(switches(JAAS, {}, runs=True), tree(guarded=("sasl",))), [BLOCK]),
    ("a JAAS file, and a ZooKeeper that takes kmigrate by SASL", both(switches(JAAS, {}, runs=True), known(connections=ConnectionFacts(zookeeper=("SASL",)))), [BLOCK]),
    ("a JAAS file of the brokers' listeners alone", switches(JAAS, {}, runs=True), []),
    ("a JAAS file, and a service that sets none", switches(JAAS, {}), [UNKNOWN]),
    ("Kerberos", switches({"java.security.krb5.conf": "/etc/krb5.conf"}, {}), [UNKNOWN]),
    ("addresses of tokens", switches({"org.apache.kafka.sasl.oauthbearer.allowed.urls": "https://id/token"}, {}), [UNKNOWN]),
    ("the cluster file has it for controllers", both(switches(TLS, {}), spec(controller_properties=IN_FILE)), []),
    ("the brokers' files, which controllers inherit, have it", both(everywhere(**{key.replace(".", "_"): value for key, value in IN_FILE.items()}), switches(TLS, {})), []),
    ("the cluster file has a half of it", both(switches(TLS, {}), spec(controller_properties={"zookeeper.ssl.client.enable": "true"})), [UNKNOWN]),
    ("brokers differ", switches(TLS, TLS, broker_1={}), [WARN]),
    ("a broker with an older agent", switches(TLS, TLS, broker_1=None), []),
]  # fmt: skip


@pytest.mark.parametrize(("change", "severities"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_controllers_need_what_brokers_have_from_their_command_lines(change: Change, severities: list[Severity]) -> None:
    assert [finding.severity for finding in find(change)] == severities


def test_the_finding_has_the_line_to_add() -> None:
    (found,) = find(switches(TLS | STORE, {"zookeeper.client.secure": "true"}))
    line = "-Dzookeeper.clientCnxnSocket=org.apache.zookeeper.ClientCnxnSocketNetty -Dzookeeper.ssl.keyStore.location=/etc/kafka/ks.p12 -Dzookeeper.ssl.keyStore.password=..."
    assert f'Environment="KAFKA_OPTS={line}"' in found.reason.text
    assert "the services of controllers 3000, 3001, 3002 do not show them" in found.reason.text


def test_a_value_with_braces_is_shown_as_it_is() -> None:
    (found,) = find(switches({"zookeeper.x": "{0.__class__}"}, {}))
    assert "-Dzookeeper.x={0.__class__}," in found.reason.text


def test_controllers_of_a_migration_under_way_reach_zookeeper_as_they_run() -> None:
    view, facts = switches(TLS, {}, runs=True)(*healthy())
    moved: Broker = replace(view.brokers[0], mode=BrokerMode.MIGRATION)
    found = run_checks(replace(view, brokers={**view.brokers, 0: moved}), facts)
    assert "B10c" not in {finding.code for finding in found}


LIMIT = "jute.maxbuffer"
OF_ANSWERS: list[tuple[str, Change, list[Severity]]] = [
    ("an older agent", switches(None, None), [UNKNOWN]),
    ("a service that may get it from a script", switches({}, {}), [UNKNOWN]),
    ("a controller that runs with Java's own", switches({}, {}, runs=True), [BLOCK]),
    ("a service with a lower one", switches({}, {LIMIT: "1000000"}), [BLOCK]),
    ("a service with enough", switches({}, {LIMIT: "4194304"}), []),
    ("enough, as ZooKeeper reads hexadecimal numbers", switches({}, {LIMIT: "0x400000"}), []),
    ("no number", switches({}, {LIMIT: "4M"}, runs=True), [UNKNOWN]),
    ("no value", switches({}, {LIMIT: ""}, runs=True), [UNKNOWN]),
]


@pytest.mark.parametrize(("change", "severities"), [row[1:] for row in OF_ANSWERS], ids=[row[0] for row in OF_ANSWERS])
def test_the_limit_of_zookeepers_answers(change: Change, severities: list[Severity]) -> None:
    found = run_checks(*both(change, large_topic)(*healthy()))
    assert [finding.severity for finding in found if finding.code == "B10b"] == severities
    assert not [finding for finding in run_checks(*change(*healthy())) if finding.code == "B10b"], "small answers ask for nothing"


def test_files_of_arguments_that_were_not_read_are_named() -> None:
    def unread(view: ClusterView, facts: PreflightFacts) -> Case:
        changed = replace(process({}, ProcessState.RUNNING).software or Software(), unread=("/etc/kafka/jvm.args",))
        brokers = dict(view.brokers) | {1: replace(view.brokers[1], process=replace(view.brokers[1].process, software=changed))}
        return replace(view, brokers=brokers), facts

    (found,) = find(unread)
    assert (found.severity, found.reason.text) == (
        UNKNOWN,
        "files of Java's arguments or logins that were not read: /etc/kafka/jvm.args of broker 1",
    )
