"""Units of systemd in preflight: whom a stop ends, what hangs on ZooKeeper, which file a start names; each is said only if it is true."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import ServiceUnit
from airflow_provider_kmigrate.core.cluster_state.spec import HostSpec, NodeRole, NodeSpec
from airflow_provider_kmigrate.core.node_files.service_unit import find_closed, find_settings, render_drop_in
from airflow_provider_kmigrate.core.preflight.agent import find_node_problems
from airflow_provider_kmigrate.core.preflight.checks import run_checks
from airflow_provider_kmigrate.core.preflight.findings import Severity
from tests.core.preflight_units_passing import CODES, after_drop_in, found, passes, said, units_of
from tests.core.preflight_units_rows import STOPS_ALL, with_units
from tests.kit.units import STOP_SCRIPT, UNITS, WHOLE_UNITS, WholeUnit, shown

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


CONTROLLER_UNIT = {"Id": "c.service"}


@pytest.mark.parametrize(
    ("broker", "controller", "beside", "expected"),
    [
        ({"ConflictedBy": "c.service"}, {"Conflicts": "kafka.service"}, True, [(BLOCK, "B19")]),
        ({}, {"Conflicts": "kafka.service"}, False, []),
        ({}, {"Conflicts": "zookeeper.service"}, False, [(BLOCK, "B19")]),
        ({}, {"Conflicts": "shutdown.target"}, True, []),
        ({"Ports": "9999"}, {"Ports": "7071 9999"}, True, [(BLOCK, "M01")]),
        ({"Ports": "9093"}, {}, True, [(BLOCK, "M01")]),
        ({"Ports": "9999"}, {"Ports": "9999"}, False, []),
        ({"Ports": "9999"}, {"Ports": "9998"}, True, []),
        ({"Overrides": "broker.id num.io.threads"}, {}, False, []),
        ({"Overrides": "listener.security.protocol.map"}, {}, False, [(BLOCK, "R13")]),
        ({}, {"Overrides": "log.dirs"}, False, [(BLOCK, "R13")]),
        ({}, {"ProtectSystem": "strict", "ReadWritePaths": "/var/lib/kafka"}, False, [(BLOCK, "M03")]),
        ({}, {"ProtectSystem": "strict", "ReadWritePaths": "-/kraft/"}, False, []),
        ({}, {"ProtectSystem": "full"}, False, []),
        ({"ProtectSystem": "strict"}, {}, False, []),
    ],
)
def test_a_controllers_unit_that_was_copied_from_the_brokers(
    broker: dict[str, str], controller: dict[str, str], beside: bool, expected: list[tuple[str, str]]
) -> None:
    units = {"broker 0": {"Id": "kafka.service"} | broker, "controller 3000": CONTROLLER_UNIT | controller}
    view, facts = with_units({name: ServiceUnit(shown) for name, shown in units.items()}, beside=beside)
    nodes = tuple(replace(node, log_dir="/kraft") for node in facts.spec.controllers)
    made = run_checks(view, replace(facts, spec=replace(facts.spec, controllers=nodes)))
    assert [(str(finding.severity), finding.code) for finding in made if finding.code in (*CODES, "M01", "M03")] == expected


@pytest.mark.parametrize(
    ("setting", "folder", "closed"),
    [
        ({"ProtectSystem": "strict"}, "/var/lib/kraft", "ProtectSystem=strict"),
        ({"ProtectSystem": "strict", "ReadWritePaths": "/var/lib/kafka /var/lib/kraft"}, "/var/lib/kraft/", ""),
        ({"ProtectSystem": "strict", "ReadWritePaths": "/var/lib/kra"}, "/var/lib/kraft", "ProtectSystem=strict"),
        ({"ProtectSystem": "strict", "ReadWritePaths": "/"}, "/data", ""),
        ({"ProtectSystem": "strict", "StateDirectory": "kafka kraft:link"}, "/var/lib/kraft/log", ""),
        ({"ProtectSystem": "yes"}, "/var/lib/kraft", ""),
        ({"PrivateTmp": "yes"}, "/tmp/kraft", "PrivateTmp=yes"),
        ({"PrivateTmp": "yes"}, "/var/tmp/kraft", "PrivateTmp=yes"),
        ({"PrivateTmp": "yes"}, "/tmpx", ""),
        ({"PrivateTmp": "no"}, "/tmp/kraft", ""),
    ],
)
def test_a_folder_in_which_a_units_process_cannot_write(setting: dict[str, str], folder: str, closed: str) -> None:
    assert find_closed(setting, folder) == closed


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


@pytest.mark.parametrize("unit", WHOLE_UNITS, ids=range(len(WHOLE_UNITS)))
def test_public_units_of_other_kinds_before_and_after_their_drop_in(unit: WholeUnit) -> None:
    def said_of(*drop_ins: str, beside: bool) -> list[tuple[str, str]]:
        units = {"broker 0": ServiceUnit(shown("kafka.service", unit.lines, *drop_ins), behind=unit.is_behind)}
        return said(with_units(units, beside=beside))

    needs = [(WARN, "W23")] if unit.needs_zookeeper else []
    stays = [(UNKNOWN, "B19")] if unit.unclear else []
    apart = ([] if unit.in_time else [(WARN, "W7")]) + needs
    assert said_of(beside=False) == apart
    assert said_of(beside=True) == stays + ([(BLOCK, "B19")] if unit.blocked else []) + apart
    drop_in = render_drop_in(find_settings(shown("kafka.service", unit.lines), 330))
    assert said_of(drop_in, beside=False) == needs
    assert said_of(drop_in, beside=True) == stays + needs


BROKER = NodeSpec(1, NodeRole.BROKER, "kafka0", 9092, HostSpec("agent", properties="/p"))
CONTROLLER = NodeSpec(3000, NodeRole.CONTROLLER, "kafka0", 9093, HostSpec("agent", properties="/c"), log_dir="/l")


@pytest.mark.parametrize(
    ("facts", "neighbours", "codes"),
    [
        ({"unit": STOPS_ALL}, [], []),
        ({"unit": STOPS_ALL}, [CONTROLLER], ["B19"]),
        ({"unit": STOPS_ALL, "beside": 2}, [], ["B19"]),
        ({"unit": {}, "starts": ["/other.properties"]}, [], ["R13"]),
        ({"unit": {"Overrides": "authorizer.class.name"}}, [], ["R13"]),
        ({"unit": {"Conflicts": "kafka-controller.service"}}, [CONTROLLER], ["B19"]),
        ({"unit": {"Conflicts": "kafka-controller.service"}}, [], []),
        ({"unit": {"ConflictedBy": "zookeeper.service"}}, [], ["B19"]),
        ({"unit": {"PrivateTmp": "yes", "ProtectSystem": "strict"}}, [], []),  # a broker runs: it can write
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


def test_a_controllers_folder_is_judged_by_its_unit() -> None:
    role = {"service": "c.service", "properties": "/c", "log_dirs": ["/l"], "stop_timeout": 60.0, "has_storage_tool": True}
    seen = {"process": {"state": "stopped"}, "boot_enabled": False, "file": None, "log_dirs": {}}
    unit = {"ProtectSystem": "strict", "ReadWritePaths": "/var/lib/kafka"}
    [reason] = find_node_problems(CONTROLLER, role, seen | {"unit": unit}, 0.0)
    assert reason.code == "M03"
    assert "Add `ReadWritePaths=/l` to its unit on kafka0" in reason.text
