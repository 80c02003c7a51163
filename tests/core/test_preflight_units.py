"""Units of systemd in preflight: whom a stop ends, what hangs on ZooKeeper, which file a start names; each is said only if it is true."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import ServiceUnit
from airflow_provider_kmigrate.core.cluster_state.spec import HostSpec, NodeRole, NodeSpec
from airflow_provider_kmigrate.core.preflight.agent import find_node_problems
from airflow_provider_kmigrate.core.preflight.findings import Severity
from tests.core.preflight_units_passing import after_drop_in, found, passes, said, units_of
from tests.core.preflight_units_rows import STOPS_ALL, with_units
from tests.kit.units import STOP_SCRIPT, UNITS

BLOCK, UNKNOWN, WARN = map(str, (Severity.BLOCK, Severity.UNKNOWN, Severity.WARN))


@pytest.mark.parametrize(
    ("unit", "beside", "expected"),
    [
        (ServiceUnit(STOPS_ALL), False, []),
        (ServiceUnit(STOPS_ALL), True, [(BLOCK, "B19")]),
        (ServiceUnit(STOPS_ALL, beside=1), False, [(BLOCK, "B19")]),  # a node of another cluster file
        (ServiceUnit({"Id": "kafka.service", "ExecStop": "/opt/kafka/stop"}), True, [(UNKNOWN, "B19")]),
        (ServiceUnit({"Id": "kafka.service", "ExecStop": "/opt/kafka/stop"}), False, []),
        (ServiceUnit({"Id": "kafka.service", "ExecStop": "/bin/kill $MAINPID"}, beside=1), True, []),
        (ServiceUnit({"Id": "kafka.service"}), True, []),
        (ServiceUnit({"Id": "kafka.service", "RequiredBy": "kafka-controller.service"}), False, [(BLOCK, "B19")]),
        (ServiceUnit({"Id": "kafka.service", "ConsistsOf": "zookeeper.service"}), False, [(BLOCK, "B19")]),
        (ServiceUnit({"Id": "kafka.service", "BoundBy": "schema-registry.service"}), False, [(WARN, "B19")]),
        (ServiceUnit({"Id": "kafka.service", "RequiredBy": "multi-user.target"}), False, []),
        (ServiceUnit({"Id": "kafka.service", "Requires": "zookeeper.service"}), False, [(WARN, "W23")]),
        (ServiceUnit({"Id": "kafka.service", "Wants": "zookeeper.service"}), False, []),
        (ServiceUnit({"Id": "kafka.service", "KillSignal": "9"}), False, [(WARN, "W7")]),
        (ServiceUnit({"Id": "kafka.service", "KillMode": "mixed"}, behind=True), False, [(WARN, "W7")]),
        (ServiceUnit({"Id": "kafka.service", "KillMode": "mixed"}), False, []),
        (ServiceUnit({"Id": "kafka.service", "KillMode": "process"}, behind=True), False, [(BLOCK, "B19")]),
        (ServiceUnit({"Id": "kafka.service", "KillMode": "none"}), False, [(BLOCK, "B19")]),
        (ServiceUnit({"Id": "kafka.service"}, starts=("/other.properties",)), False, [(BLOCK, "R13")]),
    ],
)
def test_a_unit_gives_its_findings(unit: ServiceUnit, beside: bool, expected: list[tuple[str, str]]) -> None:
    case = with_units({"broker 0": unit}, beside=beside)
    assert said(case) == expected
    assert all("kafka.service of broker 0" in finding.reason.text or finding.code == "W7" for finding in found(case))
    assert all(finding.reason.next_step for finding in found(case))


def test_the_unit_of_a_controller_is_judged_before_its_first_start() -> None:
    units = {
        "controller 3000": ServiceUnit({"Id": "c.service", "ExecStop": STOP_SCRIPT}, starts=("/etc/kafka/server.properties",))
    }
    texts = {finding.code: finding.reason.text for finding in found(with_units(units, beside=True))}
    assert f"c.service of controller 3000 beside broker 0 (ExecStop={STOP_SCRIPT})" in texts["B19"]
    assert "c.service of controller 3000 with /etc/kafka/server.properties, not /etc/kafka/controller.properties" in texts["R13"]


def test_a_process_that_reads_the_right_file_proves_its_unit_right() -> None:
    view, facts = with_units({"broker 0": ServiceUnit({"Id": "kafka.service"}, starts=("/other.properties",))})
    named = replace(view.brokers[0], process=replace(view.brokers[0].process, named=("/etc/kafka/server.properties",)))
    assert said((replace(view, brokers={**view.brokers, 0: named}), facts)) == []


def test_nodes_in_containers_of_one_host_have_no_neighbour() -> None:
    view, facts = with_units({"broker 0": ServiceUnit(STOPS_ALL)}, beside=True)
    inside = HostSpec("agent", "/etc/kafka/server.properties", connect=("docker", "exec", "{id}"))
    brokers = tuple(replace(node, hosts=inside) for node in facts.spec.brokers)
    assert said((view, replace(facts, spec=replace(facts.spec, brokers=brokers)))) == []


def test_thirty_public_units_before_and_after_their_drop_in() -> None:
    assert len(UNITS) == 30
    assert sum(passes(with_units(units_of(row))) for row in UNITS) == 1, "W7 is true for all but one"
    blocked = [row for row in UNITS if (BLOCK, "B19") in said(with_units(units_of(row), beside=True))]
    assert blocked == [row for row in UNITS if row.ends_all]
    assert len(blocked) == 17
    for row in UNITS:
        for beside in (False, True):
            assert passes(with_units(after_drop_in(row), beside=beside)), row
    needing = [row for row in UNITS if (WARN, "W23") in said(with_units(after_drop_in(row)))]
    assert needing == [row for row in UNITS if row.needs_zookeeper], "no drop-in takes a dependency back"


BROKER = NodeSpec(1, NodeRole.BROKER, "kafka0", 9092, HostSpec("agent", properties="/p"))
CONTROLLER = NodeSpec(3000, NodeRole.CONTROLLER, "kafka0", 9093, HostSpec("agent", properties="/c"), log_dir="/l")


@pytest.mark.parametrize(
    ("facts", "neighbours", "codes"),
    [
        ({"unit": STOPS_ALL}, [], []),
        ({"unit": STOPS_ALL}, [CONTROLLER], ["B19"]),
        ({"unit": STOPS_ALL, "beside": 2}, [], ["B19"]),
        ({"unit": {}, "starts": ["/other.properties"]}, [], ["R13"]),
        ({"unit": {"KillSignal": "9"}}, [], ["W7"]),
        ({"unit": {"KillMode": "mixed"}, "behind": True}, [], ["W7"]),
        ({"unit": {"KillMode": "process"}, "behind": True}, [], ["B19"]),
        ({"unit": {}, "software": {"release": "3.9.1", "disk_release": "3.9.1", "java": "", "disk_java": "/java"}}, [], []),
        ({"unit": {}, "software": {"release": "3.9.1", "disk_release": "4.0.0"}}, [], ["R15"]),
        ({"unit": {}, "software": {"java": "/java (deleted)", "disk_java": "/java"}}, [], ["R15"]),
    ],
)
def test_a_check_of_a_node_says_the_same(facts: dict[str, object], neighbours: list[NodeSpec], codes: list[str]) -> None:
    role = {"service": "kafka.service", "properties": "/p", "log_dirs": ["/l"], "stop_timeout": 330.0, "has_storage_tool": True}
    seen = {"process": {"state": "running"}, "boot_enabled": True, "file": None, "log_dirs": {}} | facts
    assert [reason.code for reason in find_node_problems(BROKER, role, seen, 0.0, neighbours)] == codes
