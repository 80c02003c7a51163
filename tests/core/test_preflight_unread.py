"""Hosts that do not report their nodes: one cause is one finding with all its nodes, and nothing repeats what it says."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_kmigrate.core.cluster_state.model import Cause, ClusterView, NodeFiles, Process, Reason
from airflow_provider_kmigrate.core.cluster_state.spec import NodeSpec
from airflow_provider_kmigrate.core.preflight.checks import run_checks
from airflow_provider_kmigrate.core.preflight.findings import PreflightFacts, Severity
from airflow_provider_kmigrate.observe import reads
from tests.core.preflight_around import remote
from tests.core.preflight_views import FORMATTED, Case, Change, both, broker_1, codes, healthy

PROCESS, FILES = Cause.UNREAD_PROCESS, Cause.UNREAD_FILES
BOTH = (PROCESS, FILES)
EVERY = ("broker 0", "broker 1", "broker 2", "controller 3000", "controller 3001", "controller 3002")
DENIED = "{name}: the connection to kmigrate-node ended: kafka@{host}: Permission denied (publickey)."
WEDGED = "{name}: kmigrate-node did not answer in time"


def unread(errors: Mapping[str, str], causes: Collection[Cause] = BOTH) -> Change:
    """The hosts of these nodes fail with these errors, as an observer sees it; every node has an agent."""

    def blind(node: NodeSpec, view: ClusterView) -> ClusterView:
        empty: Mapping[Cause, Mapping[str, object]] = {PROCESS: {"process": Process()}, FILES: {"files": NodeFiles()}}
        changes = {name: value for cause in causes for name, value in empty[cause].items()}
        if node.id in view.brokers:
            return replace(view, brokers={**view.brokers, node.id: replace(view.brokers[node.id], **changes)})  # type: ignore[arg-type]
        return replace(view, controllers={**view.controllers, node.id: replace(view.controllers[node.id], **changes)})  # type: ignore[arg-type]

    def change(view: ClusterView, facts: PreflightFacts) -> Case:
        nodes = [node for node in facts.spec.nodes() if node.name in errors]
        unknowns: list[Reason] = []
        for cause in causes:
            for node in nodes:
                reason = reads.host_reason(cause, node)
                said = errors[node.name].format(name=node.name, host=node.host, id=node.id, octet=node.id % 250)
                unknowns.append(replace(reason, text=f"{reason.text}: {said}"))
        for node in nodes:
            view = blind(node, view)
        return replace(view, unknowns=(*view.unknowns, *unknowns)), facts

    return both(remote(600.0), change)


@pytest.mark.parametrize(
    "error",
    [
        DENIED,
        WEDGED,
        "no answer within 15 s",
        "{name}: the connection to kmigrate-node ended: Connection closed by 10.0.12.{octet} port 22",
        "[M03] {name}: `ssh {host} sudo -n kmigrate-node serve` ended with exit code 1: sudo: a password is required",
        "Broker 1: the connection to kmigrate-node ended: the other node of this machine has made it",
    ],
)
def test_one_cause_is_one_finding_with_every_node(error: str) -> None:
    (found,) = run_checks(*unread(dict.fromkeys(EVERY, error))(*healthy()))
    assert (found.code, found.severity) == ("U04", Severity.BLOCK)
    assert f"the process and the files of {', '.join(EVERY)}" in found.reason.text
    assert found.reason.next_step


def test_two_causes_are_two_findings_with_their_own_nodes() -> None:
    denied, wedged = EVERY[:2], EVERY[2:]
    errors = dict.fromkeys(denied, DENIED) | dict.fromkeys(wedged, WEDGED)
    texts = [found.reason.text for found in run_checks(*unread(errors)(*healthy()))]
    assert [", ".join(nodes) in text for nodes, text in zip((denied, wedged), texts, strict=True)] == [True, True]


def test_the_word_of_connect_with_a_nodes_id_is_its_name() -> None:
    view, facts = unread(dict.fromkeys(EVERY, 'pods "kafka-{id}" not found'))(*healthy())
    assert codes((view, facts)) == ["U04"] * len(EVERY)
    connect = ("kubectl", "exec", "-i", "kafka-{id}", "--", "kmigrate-node", "serve")
    brokers, controllers = (
        tuple(replace(node, hosts=replace(node.hosts, connect=connect)) for node in nodes)
        for nodes in (facts.spec.brokers, facts.spec.controllers)
    )
    assert codes((view, replace(facts, spec=replace(facts.spec, brokers=brokers, controllers=controllers)))) == ["U04"]


@pytest.mark.parametrize("cause", BOTH)
def test_a_part_that_was_not_read_blocks_alone(cause: Cause) -> None:
    (found,) = run_checks(*unread(dict.fromkeys(EVERY, DENIED), [cause])(*healthy()))
    assert (found.code, found.severity) == ("U04", Severity.BLOCK)
    assert ("the process" in found.reason.text, "the files" in found.reason.text) == (cause is PROCESS, cause is FILES)


def test_what_is_unknown_for_another_cause_stays() -> None:
    """Broker 1's process was not read, but its files were: there is no properties file."""
    no_file = broker_1(files=NodeFiles(None, FORMATTED))
    assert codes(both(unread({"broker 1": DENIED}, [PROCESS]), no_file)(*healthy())) == ["U04", "U05"]
    assert codes(both(unread({"broker 0": DENIED}), no_file)(*healthy())) == ["U04", "U05"]


def test_a_time_that_another_machine_does_not_report_stays_unknown() -> None:
    view, facts = unread({"broker 1": DENIED})(*healthy())
    view = replace(
        view, brokers={**view.brokers, 2: replace(view.brokers[2], process=replace(view.brokers[2].process, killed_after=None))}
    )
    blocked, time = run_checks(view, facts)
    assert (blocked.code, time.code, time.severity) == ("U04", "W7", Severity.UNKNOWN)
    assert "broker 2" in time.reason.text
    assert "broker 1" not in time.reason.text


@given(st.dictionaries(st.sampled_from(EVERY), st.sampled_from([DENIED, WEDGED])), st.sets(st.sampled_from(BOTH), min_size=1))
def test_no_unread_node_passes(errors: dict[str, str], causes: set[Cause]) -> None:
    found = run_checks(*unread(errors, sorted(causes))(*healthy()))
    assert [(each.code, each.severity) for each in found] == [("U04", Severity.BLOCK)] * len(set(errors.values()))
    text = " ".join(each.reason.text for each in found)
    assert all(name in text for name in errors)


UNKNOWN_NAME = "{host}:9092 connect: [Errno -2] Name or service not known"


def no_answers(brokers: Collection[int], *, zookeeper: bool, error: str = UNKNOWN_NAME) -> Case:
    """These brokers do not answer, and ZooKeeper neither if `zookeeper`: what an observer then notes, and what it could not read."""
    view, facts = healthy()
    dead = [node for node in facts.spec.brokers if node.id in brokers]
    unknowns = []
    for node in dead:
        said = error.format(host=node.host)
        asked = (reads.broker_reason(node), reads.coordinators_reason("coordinators by __consumer_offsets", node))
        unknowns += [replace(reason, text=f"{reason.text}: {said}") for reason in asked]
    changes: dict[str, object] = {"brokers": {i: replace(b, mode=None) if i in brokers else b for i, b in view.brokers.items()}}
    environment = facts.environment
    if len(dead) == len(facts.spec.brokers):
        changes |= {"partitions": None, "min_insync": None, "topics": None, "kafka_cluster_id": None}
        unknowns += [reads.PARTITIONS, reads.TOPICS]
        environment = replace(environment, moving=None)
    if zookeeper:
        changes |= {"zk": None, "topics": None}
        unknowns += [reads.ZOOKEEPER, reads.TOPICS]
        environment = replace(
            environment, tree=None, servers=tuple(replace(server, version=None) for server in environment.servers)
        )
    configs = {i: None if i in brokers else config for i, config in facts.configs.items()}
    return replace(view, unknowns=tuple(unknowns), **changes), replace(facts, configs=configs, environment=environment)  # type: ignore[arg-type]


def blocking_texts(case: Case) -> list[str]:
    return [found.reason.text for found in run_checks(*case) if found.severity is Severity.BLOCK]


def test_zookeeper_and_every_broker_away_are_two_findings() -> None:
    brokers, zookeeper = sorted(blocking_texts(no_answers((0, 1, 2), zookeeper=True)))
    assert zookeeper == "ZooKeeper was not read (servers: zk:2181)"
    assert brokers.startswith("Broker 0 at node0:9092 did not answer: node0:9092 connect: [Errno -2]")
    assert brokers.endswith("The same holds for broker 1, broker 2.")


def test_zookeeper_alone_away_is_one_finding() -> None:
    assert blocking_texts(no_answers((), zookeeper=True)) == ["ZooKeeper was not read (servers: zk:2181)"]


def test_one_broker_that_does_not_answer_is_one_finding() -> None:
    (text,) = blocking_texts(no_answers((1,), zookeeper=False))
    assert text.startswith("Broker 1 at node1:9092 did not answer")


def test_brokers_with_different_errors_are_two_findings() -> None:
    view, facts = no_answers((0, 1), zookeeper=False)
    other = tuple(
        replace(reason, text=f"{reason.text} for good") if reason.node == "broker 1" else reason for reason in view.unknowns
    )
    assert len(blocking_texts((replace(view, unknowns=other), facts))) == 2


def test_what_nothing_explains_is_reported() -> None:
    view, facts = healthy()
    unread = replace(view, partitions=None, topics=None, unknowns=(reads.PARTITIONS, reads.TOPICS))
    texts = blocking_texts((unread, replace(facts, environment=replace(facts.environment, tree=None))))
    assert "could not read settings, users and rules in ZooKeeper" in texts
    assert "could not read the partitions" in texts
    assert "No broker reported the partitions" in texts
