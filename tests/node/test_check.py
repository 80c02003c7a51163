"""`node check` over a real agent: each verb tried, nothing changed, and every difference named."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kmigrate.clients.hosts import host_for
from airflow_provider_kmigrate.clients.hosts.agent import Agents
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, HostSpec, NodeRole, NodeSpec
from airflow_provider_kmigrate.core.preflight import agent as decisions
from airflow_provider_kmigrate.node.check import NodeCheck, check_machine
from airflow_provider_kmigrate.node.command import Reach, check_nodes
from airflow_provider_kmigrate.node.script import AGENT, read_agent_version
from tests.node.machine import CLUSTER, META, OLD, Node

VERSION = read_agent_version(AGENT.read_text())


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path, stop_timeout=330)
    made.properties.write_text(OLD + f"log.dirs={made.data}\n")
    (made.data / "meta.properties").write_text(META)
    yield made
    made.close()


def spec(machine: Node, role: NodeRole = NodeRole.BROKER, **fields: Any) -> NodeSpec:
    argv = (sys.executable, "-I", str(AGENT), "serve", "--config", str(machine.config))
    hosts = HostSpec("agent", properties=str(machine.properties), connect=argv)
    return replace(NodeSpec(1, role, "kafka0", 9092, hosts), **fields)


def cluster(*nodes: NodeSpec) -> ClusterSpec:
    """The cluster of these nodes, and of a controller elsewhere."""
    brokers = tuple(node for node in nodes if node.role is NodeRole.BROKER)
    more = NodeSpec(3009, NodeRole.CONTROLLER, "ctl9", 9093, HostSpec("agent", properties="/p"), log_dir="/l")
    return ClusterSpec("prod", CLUSTER, "zk", "kf", brokers, (*(node for node in nodes if node not in brokers), more))


def checked(*nodes: NodeSpec, version: str = VERSION, ahead: float = 0.0) -> list[NodeCheck]:
    agents = Agents()
    try:
        return list(check_machine(agents(nodes[0], None), nodes, version, cluster(*nodes), lambda: time.time() - ahead))
    finally:
        agents.close()


def test_a_node_that_runs_is_tried_and_not_changed(machine: Node) -> None:
    host_for(spec(machine), None, Agents(), CLUSTER).start(spec(machine), 0)
    text, pid = machine.properties.read_text(), machine.pid()
    [found] = checked(spec(machine))
    for tried in ("hello", "facts", "read_log", "install_file (the same bytes)", "start (it runs)"):
        assert tried in found.seen
    assert (machine.properties.read_text(), machine.pid()) == (text, pid)
    assert not (machine.state / "broker" / "tokens.json").exists(), "no run may be refused because of a check"


def test_a_node_that_is_down_stays_down(machine: Node) -> None:
    [found] = checked(spec(machine))
    assert "stopped" in found.seen
    assert "start (it runs)" not in found.seen
    assert machine.ok("facts")["process"]["state"] == "stopped"


def identity(machine: Node) -> tuple[int, int]:
    found = machine.properties.stat()
    return found.st_ino, found.st_mtime_ns


def test_where_a_run_has_acted_nothing_is_written(machine: Node) -> None:
    host_for(spec(machine), None, Agents(), CLUSTER).put_properties(spec(machine), machine.properties.read_text() + "a=1\n", 7)
    before = identity(machine)
    [found] = checked(spec(machine))
    assert "no write, because a run of kmigrate has acted here" in found.seen
    assert "install_file" not in found.seen
    assert identity(machine) == before


def test_a_directory_of_another_cluster_fails(machine: Node) -> None:
    (machine.data / "meta.properties").write_text(META.replace(CLUSTER, "A1Sh-9_ISia_zwGINzRvyQ"))
    [found] = checked(spec(machine))
    assert str(found).startswith("FAIL  broker 1 on kafka0: tried hello, facts, read_log\n      [M01]")


def test_a_directory_that_node_json_lacks_fails(machine: Node) -> None:
    machine.properties.write_text(OLD + f"log.dirs={machine.data},/other\n")
    [found] = checked(spec(machine))
    assert "[M03] broker 1: its properties name the directory /other" in str(found)


def test_an_agent_that_does_not_answer_is_one_line_for_its_machine(machine: Node) -> None:
    machine.config.chmod(0o666)
    [found] = checked(spec(machine), spec(machine, NodeRole.CONTROLLER, id=3000, log_dir="/l"))
    assert str(found).startswith("FAIL  broker 1, controller 3000 on kafka0\n      [M03]")


def test_a_role_that_only_one_side_has_is_named(machine: Node) -> None:
    [found] = checked(spec(machine, NodeRole.CONTROLLER, id=3000, log_dir="/l"))
    assert "has the role broker, the cluster file has no broker there" in str(found)
    assert "has a controller on" in str(found)


@pytest.mark.parametrize(
    ("line", "code"),
    [("", ""), ("inter.broker.protocol.version=3.3\n", "C04"), ("listeners=CONTROLLER://:9092\n", "C04"), ("a=${env:B}\n", "")],
    ids=["as it is", "an old protocol", "the controllers' listener", "a reference"],
)
def test_the_files_of_later_stages_are_made_and_not_written(machine: Node, line: str, code: str) -> None:
    text = machine.properties.read_text() + line
    machine.properties.write_text(text)
    controller = spec(machine, NodeRole.CONTROLLER, id=3000, host="ctl", log_dir="/l")
    whole = cluster(spec(machine), controller)
    assert [reason.code for reason in decisions.find_render_problems(whole, spec(machine), text)] == [code] * bool(code)
    [found] = checked(spec(machine))
    assert "the files of later stages" in found.seen
    assert ("[C04] " in str(found)) == bool(code), found
    assert machine.properties.read_text() == text
    assert decisions.find_original(spec(machine), {"file": {"text": f"{text}zookeeper.metadata.migration.enable=true\n"}}) is None
    assert decisions.find_original(controller, {"file": {"text": text}}) is None


@pytest.mark.parametrize(
    ("said", "is_problem"),
    [
        ("kafka.service: Command /opt/kafka/bin/start.sh is not executable: No such file or directory", True),
        ("kafka.service: Failed to create kafka.service/start: Unit zookeeper.service not found.", True),
        ("kafka.service: Service has no ExecStart=, ExecStop=, or SuccessAction=. Refusing.", True),
        ("kafka.service: Unit configuration has fatal error, bad unit file setting", True),
        ("kafka.service: Special user nobody configured, this is not safe!", False),
    ],
    ids=["no program", "no unit that it needs", "no start", "a bad setting", "a warning"],
)
def test_a_unit_that_systemd_would_not_start_is_named(said: str, is_problem: bool) -> None:
    found = [str(reason) for reason in decisions.find_unit_problems(NODE, [said])]
    assert [text.startswith("[M03] broker 1: its unit would not start. systemd says: kafka.service: ") for text in found] == [
        True
    ] * is_problem


@pytest.mark.parametrize("java", [True, False])
def test_a_controllers_storage_tool_is_proven_by_running_it(machine: Node, java: bool) -> None:
    tool = machine.root / "storage"
    tool.write_text(f"#!/bin/sh\n[ $1 = random-uuid ] || exit 1\n{'true' if java else 'exec java-that-is-not-there'}\n")
    tool.chmod(0o755)
    machine.properties.unlink()
    machine.entry |= {"storage_tool": [str(tool)], "log_dirs": [str(machine.root / "var" / "kraft")]}
    machine.is_controller()
    [found] = checked(spec(machine, NodeRole.CONTROLLER, id=3000, log_dir=str(machine.root / "var" / "kraft")))
    assert ("the storage tool" in found.seen) == java
    assert ("random-uuid ended with exit code 127" in str(found)) != java


def test_a_clock_that_differs_is_named(machine: Node) -> None:
    [found] = checked(spec(machine), ahead=600.0)
    assert "[W8] the clock of kafka0 differs by +600." in str(found)
    [found] = checked(spec(machine), ahead=-600.0)
    assert "[W8] the clock of kafka0 differs by -" in str(found)


HELLO = {"agent": "1.0", "host": "kafka0", "root": True, "roles": {"broker": {}}}
NODE = NodeSpec(1, NodeRole.BROKER, "kafka0", 9092, HostSpec("agent", properties="/p"))
CONTROLLER = NodeSpec(3000, NodeRole.CONTROLLER, "kafka0", 9093, HostSpec("agent", properties="/p"), log_dir="/l")
ROLE = {
    "service": "kafka.service",
    "backend": "systemd",
    "properties": "/p",
    "log_dirs": ["/l"],
    "stop_timeout": 330.0,
    "has_storage_tool": True,
}
UNIT = {"TimeoutStopUSec": "10min", "Restart": "on-failure"}
ROOM = 1 << 30
FACTS = {
    "unit": UNIT,
    "process": {"state": "running"},
    "boot_enabled": True,
    "file": {"free": ROOM},
    "log_dirs": {"/l": {"free": ROOM, "meta": META}},
}


@pytest.mark.parametrize(("enabled", "meta", "verb"), [(True, None, "disable"), (False, META, "enable")])
def test_the_start_at_boot_is_corrected_in_the_direction_that_helps(*, enabled: bool, meta: str | None, verb: str) -> None:
    """A rebuilt cluster's controllers are enabled before they are formatted: to enable them once more would help nobody."""
    facts = FACTS | {"boot_enabled": enabled, "log_dirs": {"/l": {"free": ROOM, "meta": meta}}}
    [found] = decisions.find_node_problems(CONTROLLER, ROLE, facts, 0.0)
    assert found.text.endswith("The unit: kafka.service, on kafka0.")
    assert found.next_step.startswith(f"On that machine: `systemctl {verb}")


STOPS_ALL = {"ExecStop": "/opt/kafka/bin/kafka-server-stop.sh"}


@pytest.mark.parametrize(
    ("facts", "neighbours", "said"),
    [
        (
            {"unit": UNIT | STOPS_ALL},
            [CONTROLLER],
            "[B19] broker 1: kafka.service would end controller 3000 on kafka0, too: ExecStop=",
        ),
        (
            {"unit": UNIT | STOPS_ALL, "beside": 2},
            [],
            "[B19] broker 1: kafka.service would end 2 other Kafka processes on kafka0",
        ),
        ({"unit": UNIT | STOPS_ALL}, [], ""),
        ({"starts": ["/other"]}, [], "[R13] broker 1: kafka.service starts Kafka with /other, not with /p."),
        (
            {"unit": UNIT | {"KillSignal": "9"}},
            [],
            "[W7] broker 1: kafka.service kills Kafka instead of stopping it: KillSignal=9.",
        ),
    ],
    ids=["a neighbour", "others beside it", "alone", "another file", "killed"],
)
def test_what_a_unit_would_do_to_others_and_to_its_node(facts: dict[str, Any], neighbours: list[NodeSpec], said: str) -> None:
    found = [str(reason) for reason in decisions.find_node_problems(NODE, ROLE, FACTS | facts, 0.0, neighbours)]
    assert [text.startswith(said) for text in found] == [True] * bool(said), found


@pytest.mark.parametrize(
    ("hello", "said"),
    [
        ({}, []),
        ({"agent": "0.9"}, ["has kmigrate-node 0.9, this kmigrate brings 1.0"]),
        ({"root": False}, ["does not run as root"]),
    ],
)
def test_what_is_wrong_with_an_agent(hello: dict[str, Any], said: list[str]) -> None:
    found = [reason.text for reason in decisions.find_machine_problems(HELLO | hello, "1.0", [NODE])]
    assert len(found) == len(said)
    assert all(text in one for text, one in zip(said, found, strict=True))


@pytest.mark.parametrize(
    ("node", "role", "facts", "skew", "codes"),
    [
        (NODE, {}, {}, 5.0, []),
        (CONTROLLER, {}, {}, -5.0, []),
        (NODE, {"log_dirs": ["/a"], "has_storage_tool": False}, {}, 0.0, []),
        (NODE, {}, {"unit": {}}, 0.0, []),
        (NODE, {}, {"unit": UNIT | {"TimeoutStopUSec": "infinity"}}, 0.0, []),
        (NODE, {}, {"unit": UNIT | {"TimeoutStopUSec": "5min 30s"}}, 0.0, ["W7"]),
        (NODE, {}, {"unit": UNIT | {"TimeoutStopUSec": "5min 31s"}}, 0.0, []),
        (CONTROLLER, {}, {"unit": UNIT | {"TimeoutStopUSec": "5min"}}, 0.0, ["W7"]),
        (NODE, {"stop_timeout": 300.0}, {}, 0.0, ["W7"]),
        (NODE, {}, {"boot_enabled": False}, 0.0, ["O07"]),
        (NODE, {}, {"boot_enabled": None}, 0.0, []),
        (CONTROLLER, {}, {"boot_enabled": True, "log_dirs": {"/l": {"free": ROOM, "meta": None}}}, 0.0, ["O11"]),
        (CONTROLLER, {}, {"boot_enabled": False, "log_dirs": {"/l": {"free": ROOM, "meta": None}}}, 0.0, []),
        (CONTROLLER, {}, {"boot_enabled": None, "log_dirs": {"/l": {"free": ROOM, "meta": None}}}, 0.0, []),
        (CONTROLLER, {}, {"boot_enabled": False}, 0.0, ["O07"]),
        (CONTROLLER, {"stop_timeout": 60.0}, {}, 0.0, []),
        (NODE, {}, {}, 5.1, ["W8"]),
        (NODE, {}, {}, -5.1, ["W8"]),
        (NODE, {"properties": "/other"}, {}, 0.0, ["M03"]),
        (CONTROLLER, {"log_dirs": ["/l", "/m"]}, {}, 0.0, ["M03"]),
        (CONTROLLER, {"has_storage_tool": False}, {}, 0.0, ["M03"]),
        (NODE, {}, {"file": {"free": decisions.LEAST_FREE - 1}}, 0.0, ["M03"]),
        (NODE, {}, {"file": None, "log_dirs": {"/l": {"free": None}}}, 0.0, []),
        (NODE, {}, {"log_dirs": {"/l": {"free": 0}}}, 0.0, ["M03"]),
    ],
)
def test_what_is_wrong_with_a_node(
    node: NodeSpec, role: dict[str, Any], facts: dict[str, Any], skew: float, codes: list[str]
) -> None:
    found = [*decisions.find_node_problems(node, ROLE | role, FACTS | facts, skew)]
    assert [reason.code for reason in found] == codes
    assert all(reason.next_step for reason in found)


def test_a_node_in_one_line() -> None:
    said = decisions.summary(ROLE, FACTS, 0.04)
    assert said == "kafka.service running, TimeoutStopSec=10min, Restart=on-failure, starts at boot, clock +0.0 s"
    assert "does not start at boot" in decisions.summary(ROLE, FACTS | {"boot_enabled": False}, 0.0)


def test_the_command_prints_a_line_a_node_and_ends_with_1_if_one_fails(machine: Node) -> None:
    said: list[str] = []
    good, bad = (
        spec(machine),
        spec(machine, id=2, host="kafka1", hosts=HostSpec("agent", "/p", connect=("sh", "-c", "echo no >&2; exit 3"))),
    )
    assert check_nodes(Reach({}, {}), {"kafka1": (bad,)}, {"kafka1": cluster(bad)}, lambda line: said.append(str(line))) == 1
    assert said[0].startswith(
        "FAIL  broker 2 on kafka1\n      [M03] kafka1: `sh -c echo no >&2; exit 3` ended with exit code 3: no "
    )
    said.clear()
    code = check_nodes(Reach({}, {}), {"kafka0": (good,)}, {"kafka0": cluster(good)}, lambda line: said.append(str(line)))
    root = json.loads(json.dumps(machine.ok("hello")))["root"]
    assert (code, said[0].startswith("ok    broker 1 on kafka0: ")) == (int(not root), root)
