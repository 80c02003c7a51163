"""Hosts that do not report their nodes: one cause is one finding with all its nodes, and nothing repeats what it says."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_kmigrate.core.cluster import NodeSpec
from airflow_provider_kmigrate.core.model import Cause, NodeFiles, Process, Reason
from airflow_provider_kmigrate.core.preflight.checks import findings
from airflow_provider_kmigrate.core.preflight.findings import Severity
from airflow_provider_kmigrate.observe import reads
from tests.core.preflight_around import codes, remote
from tests.core.test_preflight import FORMATTED, Case, Change, ClusterView, PreflightFacts, both, broker_1, healthy

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
                reason = reads.host(cause, node)
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
    (found,) = findings(*unread(dict.fromkeys(EVERY, error))(*healthy()))
    assert (found.code, found.severity) == ("U04", Severity.BLOCK)
    assert f"the process and the files of {', '.join(EVERY)}" in found.reason.text
    assert found.reason.next_step


def test_two_causes_are_two_findings_with_their_own_nodes() -> None:
    denied, wedged = EVERY[:2], EVERY[2:]
    errors = dict.fromkeys(denied, DENIED) | dict.fromkeys(wedged, WEDGED)
    texts = [found.reason.text for found in findings(*unread(errors)(*healthy()))]
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
    (found,) = findings(*unread(dict.fromkeys(EVERY, DENIED), [cause])(*healthy()))
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
    blocked, time = findings(view, facts)
    assert (blocked.code, time.code, time.severity) == ("U04", "W7", Severity.UNKNOWN)
    assert "broker 2" in time.reason.text
    assert "broker 1" not in time.reason.text


@given(st.dictionaries(st.sampled_from(EVERY), st.sampled_from([DENIED, WEDGED])), st.sets(st.sampled_from(BOTH), min_size=1))
def test_no_unread_node_passes(errors: dict[str, str], causes: set[Cause]) -> None:
    found = findings(*unread(errors, sorted(causes))(*healthy()))
    assert [(each.code, each.severity) for each in found] == [("U04", Severity.BLOCK)] * len(set(errors.values()))
    text = " ".join(each.reason.text for each in found)
    assert all(name in text for name in errors)
