"""Public units of Kafka on a real systemd: what their stop ends, before and after the drop-in that `node install` writes."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from airflow_provider_kmigrate.clients.hosts.agent import AgentHost, Agents, Restart
from airflow_provider_kmigrate.core.cluster_state.model import Process, ProcessState
from airflow_provider_kmigrate.core.cluster_state.spec import HostSpec, NodeRole, NodeSpec
from airflow_provider_kmigrate.core.node_files.service_unit import (
    ASKED,
    find_dependents,
    find_reaching_commands,
    find_settings,
    find_zookeeper_needs,
    join_repeated,
    render_drop_in,
)
from tests.kit.machines import (
    CLUSTER,
    NODE,
    Machine,
    Template,
    booted,
    missing,
    node_config,
    pid_inside,
    properties,
    properties_path,
    stand_in_files,
)
from tests.kit.units import STOP_SCRIPT, UNITS, UnitRow, shown
from tests.machines.agent_install import Command, allow_more
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.machines,
    pytest.mark.long,
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.skipif(bool(missing()), reason=missing() or "-"),
]

# A process that looks like Kafka's JVM to `ps`, and ends as one does: 143, some time after SIGTERM.
_JAVA = """\
#!/usr/bin/python3 -I
import os, signal, sys, time
if sys.argv[1] != "kafka.Kafka":
    words = ["java", "-I", __file__, "kafka.Kafka", sys.argv[-1]]
    if "-daemon" in sys.argv and os.fork():
        sys.exit()
    os.execv("/usr/bin/python3", words)
with open(sys.argv[-1]) as file:
    keys = dict(line.strip().split("=", 1) for line in file if "=" in line)
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(float(keys.get("stop.seconds", "0.2"))), os._exit(143)))
open("/tmp/ready-%d" % os.getpid(), "w")
while True:
    signal.pause()
"""
_STOP = """\
#!/bin/sh
pids=$(ps axw | grep ' kafka[.]Kafka ' | grep java | grep -v grep | awk '{print $1}')
[ -n "$pids" ] || exit 1
kill -s TERM $pids
"""
_TOOL = '#!/bin/sh\n"$JAVA_HOME/bin/java" || exit 127\nexec /opt/kafka/bin/storage "$@"\n'
_ZOOKEEPER = "[Service]\nExecStart=/bin/sleep 600\n"
FILES = {"broker": "kafka", "controller": "kafka-controller"}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    files = stand_in_files()
    config: Any = node_config()
    for role in config["roles"].values():
        del role["start_timeout"]  # a key that was written by hand, which `install` would not remove
    files |= {
        "etc/kmigrate/node.json": json.dumps(config),
        "opt/kafka/bin/storage": files["opt/kafka/bin/kafka-storage.sh"],
        "opt/kafka/bin/kafka-storage.sh": _TOOL,
        "opt/kafka/bin/kafka-server-start.sh": _JAVA,
        STOP_SCRIPT[1:]: _STOP,
        "opt/jdk-17/bin/java": "#!/bin/sh\n",
        "etc/systemd/system/zookeeper.service": _ZOOKEEPER,
    }
    return Template(tmp_path_factory.mktemp("template"), files, enabled=())


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory, template: Template) -> Iterator[Machine]:
    """One machine for all tests: each begins with units of its own (`Units.have`)."""
    with booted(tmp_path_factory.mktemp("machine"), template) as made:
        allow_more(made)
        yield made


class Units:
    """The broker and the controller of a machine, both by a unit of one row, and the agent that stops and starts them."""

    def __init__(self, machine: Machine, agents: Agents) -> None:
        self.machine, self.text = machine, properties()
        hosts = {
            role: HostSpec("agent", properties=properties_path(role), connect=machine.ssh(), stop_timeout=60.0) for role in FILES
        }
        self.broker = NodeSpec(NODE, NodeRole.BROKER, machine.address, 9092, hosts["broker"])
        self.controller = NodeSpec(
            3000, NodeRole.CONTROLLER, machine.address, 9093, hosts["controller"], log_dir="/var/lib/kafka/c"
        )
        self.host = AgentHost(agents(self.broker, None), CLUSTER)

    def have(self, row: UnitRow, extra: str = "") -> None:
        """Both units are of this row, without a drop-in, and run; FILE in `extra` is each one's own."""
        self.machine.run("systemctl", "stop", "kafka", "kafka-controller", fails=True)
        self.machine.run("sh", "-c", "rm -rf /etc/systemd/system/kafka*.service.d; systemctl reset-failed", fails=True)
        self.machine.path(properties_path("broker")).write_text(self.text)
        units = {
            f"etc/systemd/system/{unit}.service": row.text(properties_path(role), extra.replace("FILE", properties_path(role)))
            for role, unit in FILES.items()
        }
        self.machine.write(units)
        self.start()

    def start(self) -> None:
        """Both run, and would end as a JVM does, which is not so from their first moment."""
        self.machine.run("systemctl", "start", "kafka", "kafka-controller")
        wait_until(lambda: self.is_ready(self.broker) and self.is_ready(self.controller), "both are ready", 30)

    def is_ready(self, node: NodeSpec) -> bool:
        """Whether the node's Kafka has begun, as the main process or a child of it."""
        pids = map(pid_inside, self.machine.processes(self.command(node)))
        return any(self.machine.path(f"/tmp/ready-{pid}").exists() for pid in pids)

    def command(self, node: NodeSpec) -> str:
        return f"java -I /opt/kafka/bin/kafka-server-start.sh kafka.Kafka {node.hosts.properties}"

    def process(self, node: NodeSpec) -> Process:
        return self.host.observe(node).process()

    def is_ended_with_the_broker(self) -> bool:
        """Stop the broker by the agent; whether the controller's process ended, too."""
        self.start()
        before = self.process(self.controller).pid
        self.host.stop(self.broker, 7)
        assert self.process(self.broker).state is ProcessState.STOPPED
        return self.process(self.controller).pid != before or self.process(self.controller).state is not ProcessState.RUNNING


@pytest.fixture
def units(machine: Machine) -> Iterator[Units]:
    agents = Agents()
    made = Units(machine, agents)
    made.have(UNITS[0])
    yield made
    agents.close()


def seen(machine: Machine, unit: str) -> Mapping[str, str]:
    return join_repeated(machine.run("systemctl", "show", f"--property={ASKED},Requires,RequiredBy", unit).splitlines())


def test_systemd_reads_thirty_public_units_as_the_table_of_preflight_does(machine: Machine) -> None:
    names = [f"public-{number}.service" for number in range(len(UNITS))]
    machine.write({f"etc/systemd/system/{name}": row.text() for name, row in zip(names, UNITS, strict=True)})
    wanted: dict[str, dict[str, str]] = {}
    for name, row in zip(names, UNITS, strict=True):
        real, model = seen(machine, name), shown(name, row.text())
        wanted[name] = find_settings(real, 330)
        assert wanted[name] == find_settings(model, 330), row
        assert bool(find_reaching_commands(real)) == row.ends_all, real
        assert find_zookeeper_needs(real) == find_zookeeper_needs(model), real
    assert all(wanted.values()), "the one that has the time has a stop that ends its neighbours"
    machine.write({f"etc/systemd/system/{name}.d/kmigrate.conf": render_drop_in(settings) for name, settings in wanted.items()})
    for name, row in zip(names, UNITS, strict=True):
        real = seen(machine, name)
        assert (find_settings(real, 330), find_reaching_commands(real)) == ({}, []), row
        assert bool(find_zookeeper_needs(real)) == row.needs_zookeeper, "no drop-in takes a dependency back"


# The first unit of each kind that the thirty have: what differs beside that are paths.
KINDS = list(
    {(row.ends_all, row.needs_zookeeper, row.timeout, row.is_forking): UNITS.index(row) for row in reversed(UNITS)}.values()
)


@pytest.mark.parametrize("number", sorted(KINDS))
def test_the_neighbour_of_a_broker_lives_on_with_the_drop_in(units: Units, command: Command, number: int) -> None:
    row, machine = UNITS[number], units.machine
    units.have(row)
    assert units.is_ended_with_the_broker() == row.ends_all
    code, said = command("check")
    assert (code, "[B19]" in said) == (1, row.ends_all), said
    assert "[W7]" in said or row.timeout >= 330, said  # 0: systemd's 90 s; the agent's own limit may be long since an earlier row

    units.start()
    first = units.process(units.broker).pid
    code, said = command("install", "--drop-in", "write", "--dry-run")
    assert (code, said.count("would write /etc/systemd/system/kafka")) == (0, 2), said
    assert machine.run("sh", "-c", "ls /etc/systemd/system/kafka*.d", fails=True) == ""
    code, said = command("install", "--drop-in", "write", "--yes")
    assert (code, said.count("    +ExecStop=\n") in {0, 2}) == (0, True), said
    assert units.process(units.broker).pid == first, "no node is restarted for it"
    assert machine.run("systemctl", "show", "-p", "NeedDaemonReload", "kafka") == "NeedDaemonReload=no\n"
    code, said = command("install", "--drop-in", "write", "--yes")
    assert (code, said.endswith("Nothing to do.\n")) == (0, True), said
    code, said = command("check")
    assert ("[B19]" in said, "[W7]" in said) == (False, False), said

    assert not units.is_ended_with_the_broker()
    units.start()
    assert 0.2 <= units.host.restart(units.broker, Restart(), 7) < 10
    code, said = command("install", "--drop-in", "remove", "--yes")
    assert (code, said.count("would remove /etc/systemd/system/kafka")) == (0, 2), said
    assert bool(find_reaching_commands(seen(machine, "kafka"))) == row.ends_all, "the unit is as it was"


def test_a_slow_stop_is_killed_before_the_drop_in_and_ends_after_it(units: Units, command: Command) -> None:
    units.text = properties(stop_seconds=4)
    units.have(UNITS[0]._replace(timeout=2))
    units.host.stop(units.broker, 7)
    assert seen_result(units) == "timeout"
    assert command("install", "--drop-in", "write", "--yes")[0] == 0
    units.start()
    assert 4 <= units.host.stop(units.broker, 7) < 12
    assert seen_result(units) == "success"


def seen_result(units: Units) -> str:
    return units.machine.run("systemctl", "show", "-p", "Result", "--value", "kafka").strip()


@pytest.mark.parametrize(("mode", "code", "is_left"), [("mixed", "[W7]", False), ("process", "[B19]", True)])
def test_a_kafka_behind_a_shell_is_stopped_in_order_with_the_drop_in(
    units: Units, command: Command, mode: str, code: str, is_left: bool
) -> None:
    start = "ExecStart=\nExecStart=/bin/sh -c '/opt/kafka/bin/kafka-server-start.sh FILE; true'\n"
    units.text = properties(stop_seconds=1)
    units.have(UNITS[0]._replace(timeout=600), f"{start}KillMode={mode}\n")
    kafkas = units.command(units.broker)
    assert units.host.observe(units.broker).facts["behind"]
    assert code in command("check")[1]
    pids = units.machine.processes(kafkas)
    assert units.host.stop(units.broker, 7) < 1, "it did not wait for Kafka"
    assert units.machine.processes(kafkas) == (pids if is_left else [])
    units.machine.signal(kafkas, signal.SIGKILL)
    assert command("install", "--drop-in", "write", "--yes")[0] == 0
    units.start()
    assert units.host.stop(units.broker, 7) >= 1
    assert units.machine.processes(kafkas) == []


def test_a_unit_that_requires_zookeeper_stops_with_it_until_its_own_file_is_edited(units: Units, command: Command) -> None:
    row, machine = UNITS[24], units.machine
    units.have(row)
    assert command("install", "--drop-in", "write", "--yes")[0] == 0
    machine.write({"etc/systemd/system/kafka.service.d/no-zookeeper.conf": "[Unit]\nRequires=\n"})
    assert find_zookeeper_needs(seen(machine, "kafka")) == ["Requires=zookeeper.service"]
    machine.run("systemctl", "stop", "zookeeper")
    assert units.process(units.broker).state is ProcessState.STOPPED
    units.have(row._replace(needs_zookeeper=False))
    first = units.process(units.broker).pid
    machine.run("systemctl", "start", "zookeeper")
    machine.run("systemctl", "stop", "zookeeper")
    assert (units.process(units.broker).pid, find_zookeeper_needs(seen(machine, "kafka"))) == (first, [])


def test_what_requires_a_broker_stops_with_it_and_stays_down(units: Units) -> None:
    units.machine.write(
        {"etc/systemd/system/registry.service": "[Unit]\nRequires=kafka.service\n[Service]\nExecStart=/bin/sleep 600\n"}
    )
    units.machine.run("systemctl", "start", "registry")
    assert find_dependents(seen(units.machine, "kafka")) == ["registry.service"]
    units.host.restart(units.broker, Restart(), 7)
    assert units.machine.run("systemctl", "is-active", "registry", "kafka", fails=True) == "inactive\nactive\n"


def test_a_controller_is_formatted_with_the_java_of_its_unit(units: Units) -> None:
    units.host.stop(units.controller, 7)
    units.machine.path(properties_path("controller")).write_text("node.id=3000\nlog.dirs=/var/lib/kafka/controller\n")
    with pytest.raises(Exception, match="exit code 127"):
        units.host.format_storage(units.controller, CLUSTER, "3.9", 7)
    java = "Environment=JAVA_HOME=/opt/jdk-17\n"
    units.machine.write({"etc/systemd/system/kafka-controller.service": UNITS[0].text(properties_path("controller"), java)})
    units.host.format_storage(units.controller, CLUSTER, "3.9", 7)


def test_a_drop_in_of_others_that_wins_is_named_and_nothing_is_written(units: Units, command: Command) -> None:
    units.have(UNITS[1])
    units.machine.write({"etc/systemd/system/kafka.service.d/override.conf": "[Service]\nTimeoutStopSec=20\n"})
    code, said = command("install", "--drop-in", "write", "--yes")
    assert (code, "/etc/systemd/system/kafka.service.d/override.conf: TimeoutStopSec=20" in said) == (1, True), said
    assert not units.machine.path("/etc/systemd/system/kafka.service.d/kmigrate.conf").exists()


def test_a_controllers_unit_that_starts_the_brokers_file_is_found_before_its_first_start(units: Units, command: Command) -> None:
    units.machine.write({"etc/systemd/system/kafka-controller.service": UNITS[0].text(properties_path("broker"))})
    facts = json.loads(json.dumps(units.host.observe(units.controller).facts))
    assert facts["starts"] == [properties_path("broker")]
    code, said = command("check")
    assert (code, said.count("[R13]"), f"starts Kafka with {properties_path('broker')}" in said) == (1, 1, True), said


def test_what_a_controllers_unit_has_from_the_brokers_is_found_before_its_first_start(units: Units, command: Command) -> None:
    file = properties_path("controller")
    text = UNITS[0].text(file, "Environment=JMX_PORT=9999\nProtectSystem=strict\nReadWritePaths=/var/lib/kafka/b\n")
    text = text.replace(file, f"{file} --override log.dirs=/canary-secret").replace(
        "[Service]", "Conflicts=kafka.service\n[Service]"
    )
    units.machine.write({"etc/systemd/system/kafka-controller.service": text})
    shown_units = [units.host.observe(node).facts["unit"] for node in (units.broker, units.controller)]
    assert [unit["ConflictedBy"] for unit in shown_units] == ["kafka-controller.service", ""], "systemd shows it of both"
    assert [unit["Ports"] for unit in shown_units] == ["", "9999"]
    code, said = command("check")
    assert (code, "canary-secret" in said) == (1, False), said
    for reason in (
        "[B19] controller 3000: kafka-controller.service and kafka.service exclude each other",
        "[M03] controller 3000: the process of kafka-controller.service could not write to /var/lib/kafka/controller (ProtectSystem=strict)",
        "[R13] controller 3000: kafka-controller.service starts Kafka with --override of keys that kmigrate must write: log.dirs",
    ):
        assert said.count(reason) == 1, said


def test_a_unit_that_systemd_would_not_start_is_named_before_anything_stops(units: Units, command: Command) -> None:
    text = UNITS[0].text(properties_path("controller"), "Environment=JAVA_HOME=/opt/jdk-17\nEnvironment=PW canary-secret\n")
    missing_program = text.replace("kafka-server-start.sh", "gone.sh")
    units.machine.write({"etc/systemd/system/kafka-controller.service": missing_program})
    before = units.process(units.broker).pid
    code, said = command("check")
    assert (code, said.count("its unit would not start"), "canary-secret" in said) == (1, 1, False), said
    assert "[M03] controller 3000: its unit would not start. systemd says: kafka-controller.service: Command /" in said
    assert "gone.sh is not executable" in said
    assert units.process(units.broker).pid == before


# What a JVM shows of itself: the name java, its class path, and its main class's jar, which it has open.
_JVM = "/opt/jdk-17/bin/jvm/java -c 'exec 9<$$(ls /opt/kafka/libs/kafka_2*.jar); while :; do sleep 1; done' x -cp /opt/kafka/bin/../libs/* kafka.Kafka"


def test_a_release_that_a_package_manager_replaced_is_named_until_the_node_was_restarted(units: Units, command: Command) -> None:
    machine, unit = units.machine, "/etc/systemd/system/kafka.service"
    machine.run(
        "sh",
        "-c",
        "mkdir -p /opt/kafka/libs /opt/jdk-17/bin/jvm; cp /bin/dash /opt/jdk-17/bin/jvm/java; touch /opt/kafka/libs/kafka_2.13-3.9.1.jar",
    )
    text = machine.path(unit).read_text()
    machine.write({unit[1:]: re.sub(r"ExecStart=\S+", lambda _: f"ExecStart={_JVM}", text)})
    machine.run("systemctl", "restart", "kafka")
    wait_until(lambda: units.process(units.broker).software.release == "3.9.1", "it has its jar open", 20)  # type: ignore[union-attr]
    assert "[R15]" not in command("check")[1]
    machine.run("sh", "-c", "cd /opt/kafka/libs; rm kafka_2.13-3.9.1.jar; touch kafka_2.13-4.0.0.jar")
    machine.run("sh", "-c", "cd /opt/jdk-17/bin/jvm && cp java new && mv new java")
    code, said = command("check")
    assert code == 1
    assert "would start Kafka 4.0.0, not 3.9.1, which runs and Java from /opt/jdk-17/bin/jvm/java" in said, said
    machine.run("systemctl", "restart", "kafka")
    wait_until(lambda: units.process(units.broker).software.release == "4.0.0", "it has its jar open", 20)  # type: ignore[union-attr]
    assert "[R15]" not in command("check")[1]
