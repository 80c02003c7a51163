"""A controller's file and directory belong to no other node: otherwise a rollback would move that node's data away."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_kmigrate.core.cluster_state.decision import Act, Done, Refuse, Wait
from airflow_provider_kmigrate.core.cluster_state.model import Controller, NodeFiles, Process, ProcessState
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole
from airflow_provider_kmigrate.core.migration import controllers, rollback
from airflow_provider_kmigrate.core.migration import rollback as back_gates
from airflow_provider_kmigrate.core.preflight.checks import run_checks
from airflow_provider_kmigrate.core.preflight.findings import Severity
from tests.core.back_views import handover_decision
from tests.core.preflight_places_rows import PODS, beside, beside_broker_0
from tests.core.preflight_views import CLUSTER_ID, LOOP, Case, config, healthy

OF_BROKER_1 = {"/data": {"version": "0", "broker.id": "1", "cluster.id": CLUSTER_ID}}
OWN = {"/kraft": {"version": "1", "node.id": "3001", "cluster.id": CLUSTER_ID}}
OWN_FILE = {"process.roles": "controller", "node.id": "3001"}
STOPPED = Process(ProcessState.STOPPED)


def with_files(properties: Mapping[str, str] | None = None, meta: Mapping[str, Mapping[str, str]] | None = None) -> Case:
    view, facts = healthy()
    files = NodeFiles(properties, meta or {}, has_metadata_log=False)
    return replace(view, controllers={**view.controllers, 3001: Controller(3001, STOPPED, files=files)}), facts


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (with_files(meta=OF_BROKER_1), "/data of controller 3001 is the directory of node 1"),
        (with_files(meta={"/kraft": {"node.id": "3002"}}), "/kraft of controller 3001 is the directory of node 3002"),
        (with_files(config(1)), "/etc/kafka/server.properties of controller 3001 on node3001 is the file of broker 1"),
        (with_files({**OWN_FILE, "node.id": "3002"}), "is the file of controller 3002"),
        (with_files({"process.roles": "broker,controller", "node.id": "3001"}), "is the file of broker 3001"),
        (with_files({"a": "1"}), "is not a controller's file"),
        (beside_broker_0("/data"), "one place on node0 for controller 3001 and another: /data and /data of broker 0"),
        (beside_broker_0("/data/kraft"), "/data/kraft and /data of broker 0"),
        (beside_broker_0("/data/"), "one place"),
        (beside_broker_0("/"), "one place"),
        (beside_broker_0("/kraft", metadata_log_dir="/data/kraft"), "/data/kraft and /data of broker 0"),
        (beside_broker_0("/kraft", log_dirs="/kraft,/data"), ": /data and /data of broker 0"),
    ],
)  # fmt: skip
def test_the_place_of_another_node_blocks(case: Case, said: str) -> None:
    (found,) = [finding for finding in run_checks(*case) if finding.code == "M01"]
    assert said in found.reason.text


@pytest.mark.parametrize(
    "case",
    [with_files(OWN_FILE, OWN), with_files(None, {"/kraft": {}}), beside_broker_0("/kraft"), beside_broker_0("/data2")],
)
def test_a_place_of_its_own_does_not(case: Case) -> None:
    assert [finding.code for finding in run_checks(*case) if finding.code == "M01"] == []


def test_containers_of_one_host_may_have_one_path_and_two_places() -> None:
    view, facts = beside_broker_0("/data")
    empty = NodeFiles(None, {"/data": {}}, has_metadata_log=False)
    view = replace(view, controllers={**view.controllers, 3001: Controller(3001, STOPPED, files=empty)})
    assert [finding.code for finding in run_checks(view, facts) if finding.code == "M01"] == []


@pytest.mark.parametrize(
    ("case", "severities"),
    [
        (beside("PLAINTEXT://:9092,SSL://node0:9093"), [Severity.BLOCK]),
        (beside("PLAINTEXT://:9092, ssl://[::]:9093 "), [Severity.BLOCK]),
        (beside("SSL://:9093", host="NODE0."), [Severity.BLOCK]),
        (beside("SSL://:9093", connect=PODS), [Severity.UNKNOWN]),
        (beside("SSL://:9094", listeners="CONTROLLER://:9094"), [Severity.BLOCK]),
        (beside("SSL://:9093", listeners="CONTROLLER://:9094"), []),
        (beside("SSL://:9094"), []),
        (beside("SSL://:9093", host="node00"), []),
        (beside("A://:${env:PORT}"), []),
        (beside("PLAINTEXT://:0", port=9092), []),
    ],
)  # fmt: skip
def test_a_controllers_port_is_no_listeners_of_a_broker_on_its_machine(case: Case, severities: list[Severity]) -> None:
    assert [finding.severity for finding in run_checks(*case) if finding.code == "M01"] == severities


def test_two_ssh_connections_to_one_name_may_lead_to_two_machines() -> None:
    view, facts = beside("SSL://:9093", connect=())
    ways = {NodeRole.BROKER: "brokers_ssh", NodeRole.CONTROLLER: "controllers_ssh"}
    brokers, controllers = (
        tuple(replace(node, hosts=replace(node.hosts, ssh_conn_id=ways[node.role])) for node in nodes)
        for nodes in (facts.spec.brokers, facts.spec.controllers)
    )
    other = replace(facts, spec=replace(facts.spec, brokers=brokers, controllers=controllers))
    said = ([each.severity for each in run_checks(view, case) if each.code == "M01"] for case in (facts, other))
    assert list(said) == [[Severity.BLOCK], [Severity.UNKNOWN]]


def test_a_file_that_was_not_read_shows_no_port() -> None:
    view, facts = beside("SSL://:9093", port=9092)
    unread = replace(view.brokers[0], files=NodeFiles(None, view.brokers[0].files.meta))
    assert "M01" not in {each.code for each in run_checks(replace(view, brokers={**view.brokers, 0: unread}), facts)}


@pytest.mark.parametrize(("host", "same"), [("node0", True), ("NODE0", True), ("node0.", True), ("node0.example.org", False)])
def test_one_machine_by_two_spellings_has_one_data_directory(host: str, same: bool) -> None:
    view, facts = beside_broker_0("/data")
    moved = tuple(replace(node, host=host) if node.host == "node0" else node for node in facts.spec.controllers)
    found = run_checks(view, replace(facts, spec=replace(facts.spec, controllers=moved)))
    assert ("M01" in {each.code for each in found}) is same


def test_two_controllers_on_one_host_need_two_directories() -> None:
    view, facts = healthy()
    alike = tuple(replace(node, host="one", port=node.id) for node in facts.spec.controllers)
    found = run_checks(view, replace(facts, spec=replace(facts.spec, controllers=alike)))
    assert [finding.code for finding in found] == ["M01"] * 2


STRANGE = Controller(3001, Process(ProcessState.RUNNING), files=NodeFiles(None, {"/kraft": {}}, has_metadata_log=False))


@pytest.mark.parametrize(
    ("changes", "strange"),
    [
        ({}, True),
        ({"process": STOPPED}, False),
        ({"answers": True}, False),
        ({"files": NodeFiles(None, OWN, has_metadata_log=False)}, False),
        ({"files": NodeFiles(None, {"/kraft": {}}, has_metadata_log=True)}, False),
        ({"files": NodeFiles()}, False),
    ],
)
def test_a_process_that_is_no_controllers_blocks_and_is_never_stopped(changes: dict[str, Any], strange: bool) -> None:
    view, facts = healthy()
    view = replace(view, controllers={**view.controllers, 3001: replace(STRANGE, **changes)})
    assert ("M01" in {each.code for each in run_checks(view, facts)}) is strange
    decision = handover_decision(view, view)
    assert (isinstance(decision, Refuse) and decision.reasons[0].code == "M01") is strange


FLAGGED = {**OWN_FILE, "zookeeper.connect": "zk:2181", "zookeeper.metadata.migration.enable": "true"}


@pytest.mark.parametrize("files", [STRANGE.files, NodeFiles(FLAGGED, OWN, has_metadata_log=True)])
def test_a_unit_that_starts_again_and_again_is_no_process_of_another_node(files: NodeFiles) -> None:
    view, facts = healthy()
    loop = replace(STRANGE, process=LOOP, files=files)
    view = replace(view, controllers={**view.controllers, 3001: loop})
    named = [each for each in run_checks(view, facts) if each.code in {"M01", "M08"}]
    assert [each.code for each in named] == ["M08"]
    assert "unit of controller 3001" in named[0].reason.text
    assert "the end of its log: ERROR Exiting Kafka" in named[0].reason.text
    waits = controllers.decide_provision(view, 3001, CLUSTER_ID)
    assert isinstance(waits, Wait)
    assert [reason.code for reason in waits.reasons] == ["M08"]


def test_a_rollback_does_not_stop_a_unit_that_never_was_a_controller() -> None:
    view, _ = healthy()
    view = replace(view, controllers={**view.controllers, 3001: replace(STRANGE, process=LOOP)})
    decision = handover_decision(view, view)
    assert isinstance(decision, Refuse)
    assert decision.reasons[0].code == "M08"


def test_a_controller_is_not_provisioned_in_a_directory_of_another_node() -> None:
    view, _ = with_files(meta=OF_BROKER_1)
    decision = controllers.decide_provision(view, 3001, CLUSTER_ID)
    assert isinstance(decision, Refuse)
    assert [reason.code for reason in decision.reasons] == ["M01"]
    assert "node 1" in decision.reasons[0].text


def test_a_rollback_leaves_the_directory_of_another_node_alone() -> None:
    view, _ = with_files(meta=OF_BROKER_1)
    assert back_gates.has_empty_directories(view.controllers[3001])
    decision = rollback.decide_wipe(view, 3001)
    assert isinstance(decision, Done)
    assert "/data is the directory of node 1, and stays" in decision.text


def test_a_wipe_of_two_directories_removes_only_the_controllers_own() -> None:
    view, _ = with_files(meta=OF_BROKER_1 | OWN)
    decision = rollback.decide_wipe(view, 3001)
    assert isinstance(decision, Act)
    assert decision.text.startswith("/kraft of controller 3001")
