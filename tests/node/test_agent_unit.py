"""What the agent reads of a systemd unit: what it starts, what it stops beside its own process, and its environment without secrets."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.node.agent_parts import agent_module
from tests.node.machine import Node
from tests.waiting import wait_until

ARGV = "{{ path=/x ; argv[]={} ; ignore_errors=no ; start_time=[n/a] ; stop_time=[n/a] ; pid=0 ; code=(null) ; status=0/0 }}"
CANARY = "canary-secret"


class Unit:
    """A role whose systemd shows these properties; a list is shown as one line each."""

    def __init__(self, node: Node, **shown: str | list[str]) -> None:
        self.module = agent_module()
        entry = {name: value for name, value in node.entry.items() if name != "process"} | {"systemd": "kafka.service"}
        self.role = self.module.Role("broker", entry, "/etc/kmigrate/node.json")
        lines = {"Id": "kafka.service", "LoadState": "loaded", "ActiveState": "inactive", "MainPID": "0"} | shown
        self.shown = "".join(
            f"{name}={line}\n" for name, value in lines.items() for line in ([value] if isinstance(value, str) else value)
        )
        self.asked: list[list[str]] = []
        self.environment: dict[str, str] = {}
        self.module.run = self.run

    def run(self, argv: list[str], _timeout: float = 0.0, _drop: object = None, most: int = 4000, env: Any = None) -> Any:
        self.asked.append(argv)
        self.environment = env or {}
        return 0, self.shown[-most:]

    def facts(self) -> dict[str, Any]:
        return self.role.facts({})  # type: ignore[no-any-return]


def test_one_call_reads_a_unit_and_no_secret_of_it_leaves_the_machine(node: Node, tmp_path: Path) -> None:
    file = tmp_path / "etc" / "default"
    file.write_text(f"# {CANARY}\nJAVA_HOME=/opt/jdk-17\nPASSWORD='{CANARY} {CANARY}'\n")
    unit = Unit(
        node,
        Environment=f'JAVA_HOME=/opt/jdk-11 "KAFKA_OPTS=-Dpassword={CANARY} -Da=b"',
        EnvironmentFiles=[f"{file} (ignore_errors=yes)", "/none/there (ignore_errors=yes)"],
        ExecStart=ARGV.format(f"/bin/sh -c PW={CANARY} start.sh"),
        ExecStop=[ARGV.format(f"/bin/sh -c PW={CANARY} stop.sh --node-id=7"), ARGV.format("/bin/second")],
    )
    seen = unit.facts()
    assert CANARY not in json.dumps(seen)
    assert [argv[0] for argv in unit.asked].count("systemctl") == 1
    assert seen["unit"]["Environment"] == "JAVA_HOME=/opt/jdk-17 KAFKA_OPTS PASSWORD", "a file wins over the unit's own lines"
    assert seen["unit"]["ExecStop"] == "/bin/sh -c PW=... stop.sh --node-id=7\n/bin/second"


def test_what_kafka_starts_with_has_a_hash_that_changes_with_it_alone(node: Node, tmp_path: Path) -> None:
    """A drop-in that was edited in place keeps its path, and a value may be secret; systemd shows the last start beside the command."""
    file = tmp_path / "env"
    file.write_text("HEAP=-Xmx6g\n")

    def starts(command: str, environment: str, **runtime: str) -> str:
        files = [f"{file} (ignore_errors=yes)"]
        seen = Unit(node, ExecStart=ARGV.format(command), Environment=environment, EnvironmentFiles=files, **runtime).facts()
        return str(seen["unit"]["Starts"])

    before = starts("/opt/start.sh a", "OPTS=-Da=1", MainPID="7")
    assert re.fullmatch("[0-9a-f]{16}", before)
    assert starts("/opt/start.sh a", "OPTS=-Da=1", MainPID="8", ActiveState="inactive") == before
    assert before not in {starts("/opt/start.sh b", "OPTS=-Da=1"), starts("/opt/start.sh a", "OPTS=-Da=2")}
    file.write_text("HEAP=-Xmx64m\n")
    assert starts("/opt/start.sh a", "OPTS=-Da=1") != before


def test_ports_of_gauges_and_overridden_keys_leave_the_machine_without_their_values(node: Node) -> None:
    unit = Unit(
        node,
        Environment=f'JMX_PORT=9999 "KAFKA_OPTS=-javaagent:/opt/jmx.jar=0.0.0.0:7071:/etc/{CANARY}.yml -Dcom.sun.management.jmxremote.rmi.port=9998"',
        ExecStart=ARGV.format(f"start.sh {node.properties} --override log.dirs=/{CANARY} --override a.b={CANARY}"),
    )
    seen = unit.facts()
    assert CANARY not in json.dumps(seen["unit"])
    assert sorted(seen["unit"]["Ports"].split()) == ["7071", "9998", "9999"]
    assert seen["unit"]["Overrides"] == "log.dirs a.b"
    assert (Unit(node).facts()["unit"]["Ports"], Unit(node).facts()["unit"]["Overrides"]) == ("", "")


def test_a_unit_with_a_long_environment_is_read_to_its_end(node: Node) -> None:
    seen = Unit(
        node, Environment="A=" + "x" * 100_000, Result="success", ExecStop=ARGV.format("/bin/stop " + "y" * 9_000)
    ).facts()
    assert (seen["unit"]["LoadState"], seen["unit"]["Environment"], len(seen["unit"]["ExecStop"])) == ("loaded", "A", 4_000)


def test_an_environment_that_would_take_minutes_to_split_is_left_out(node: Node, tmp_path: Path) -> None:
    """shlex takes 19 s for a word of a mebibyte."""
    file = tmp_path / "etc" / "default"
    file.write_text("A=" + "x" * 900_000)
    assert Unit(node, EnvironmentFiles=[f"{file} (ignore_errors=yes)"]).facts()["unit"]["Environment"] == ""


def test_an_environment_whose_quotes_do_not_match_is_left_out(node: Node) -> None:
    assert Unit(node, Environment='A="b').facts()["unit"]["Environment"] == ""


@pytest.mark.parametrize(
    ("command", "more", "starts"),
    [
        ("/opt/kafka/bin/kafka-server-start.sh {own}", {}, []),
        ("/opt/kafka/bin/kafka-server-start.sh /etc/other.properties", {}, ["/etc/other.properties"]),
        ("/bin/sh -c exec start.sh '/etc/other.properties' >> /var/log/kafka.log", {}, ["/etc/other.properties"]),
        ("/bin/sh -c start.sh /etc/other.properties;", {}, ["/etc/other.properties"]),
        ("start.sh -daemon -Dlog4j.configuration=file:/etc/log4j.properties {own}", {}, []),
        ("start.sh -Dlog4j.configuration=file:/etc/log4j.properties LOG=/etc/b.properties", {}, []),
        ("start.sh {own} --override log.dirs=/a.properties", {}, []),
        ("start.sh config/server.properties", {"WorkingDirectory": "/opt/kafka"}, ["/opt/kafka/config/server.properties"]),
        ("start.sh config/server.properties", {}, ["/config/server.properties"]),
        ("start.sh config/server.properties", {"WorkingDirectory": "!/opt/kafka"}, ["/opt/kafka/config/server.properties"]),
        ("/bin/sh -c cd /opt/kafka && bin/start.sh config/server.properties", {}, []),
        ("start.sh ${{CONF}}/server.properties", {"Environment": "CONF=/srv"}, ["/srv/server.properties"]),
        ("start.sh $CONF", {"Environment": "CONF=/srv/a.properties"}, []),
        ("start.sh ${{NONE}}/server.properties", {}, []),
        ("start.sh {link}", {}, []),
        ("/opt/kafka/start", {}, []),
        ("start.sh /etc/server.properties.bak", {}, []),
    ],
)
def test_the_file_that_a_unit_starts_is_named_if_it_is_not_the_nodes_own(
    node: Node, tmp_path: Path, command: str, more: dict[str, str], starts: list[str]
) -> None:
    link = tmp_path / "link.properties"
    link.symlink_to(node.properties)
    unit = Unit(node, ExecStart=ARGV.format(command.format(own=node.properties, link=link)), **more)
    assert unit.facts()["starts"] == starts


def test_the_other_kafkas_of_a_machine_are_counted_if_the_unit_runs_a_command_beside_its_own(node: Node) -> None:
    before = Unit(node, ExecStop=ARGV.format("/bin/stop")).facts()["beside"]
    sleeper = ["java", "-ISc", "import time; print('up', flush=True); time.sleep(60)", "-cp", "x", "kafka.Kafka", "/a"]
    kafka = subprocess.Popen(sleeper, executable=sys.executable, stdout=subprocess.PIPE)
    try:
        assert kafka.stdout is not None
        kafka.stdout.readline()
        assert Unit(node, ExecStop=ARGV.format("/bin/stop")).facts()["beside"] == before + 1
        assert Unit(node).facts()["beside"] == 0
        own = Path(f"/proc/{kafka.pid}/cgroup").read_text().splitlines()[0].strip().rpartition(":")[2]
        inside = own if own != "/" else ""
        seen = Unit(node, ExecStop=ARGV.format("/bin/stop"), ControlGroup=inside).facts()
        assert (seen["beside"], seen["behind"]) == ((before, True) if inside else (before + 1, False))
        seen = Unit(node, KillMode="mixed", ControlGroup=inside, MainPID=str(kafka.pid)).facts()
        assert not seen["behind"], "it is the main process itself"
    finally:
        kafka.kill()
        kafka.communicate()


@pytest.mark.parametrize(
    ("environment", "given"),
    [("JAVA_HOME=/opt/jdk-17 SECRET=x", {"JAVA_HOME": "/opt/jdk-17"}), ("SECRET=x", {})],
)
def test_the_format_runs_with_the_java_of_the_unit(node: Node, environment: str, given: dict[str, str]) -> None:
    """Kafka's tools look for java in JAVA_HOME: of a machine that has none elsewhere, the format would end with exit code 127."""
    unit = Unit(node, Environment=environment)
    role = unit.role
    role.name, role.tool, role.log_dirs = "controller", ["/opt/kafka/bin/kafka-storage.sh"], [str(node.data / "new")]
    (node.state / "broker").mkdir(parents=True)
    role.format({"release": "3.9", "node": 3000, "cluster": "c", "token": 5})
    assert (unit.asked[-1][1], unit.environment) == ("format", given)


def test_the_format_of_a_plain_process_runs_with_its_own_java(node: Node) -> None:
    tool = node.root / "storage"
    tool.write_text(f"#!/bin/sh\necho $JAVA_HOME > {node.root}/java\n")
    tool.chmod(0o755)
    node.entry |= {"storage_tool": [str(tool)], "log_dirs": [str(node.data / "new")]}
    node.entry["process"] = {"start": ["/bin/sleep", "600"], "env": {"JAVA_HOME": "/opt/jdk-17"}}
    node.is_controller()
    node.ok("format", release="3.9", node=3000)
    wait_until((node.root / "java").exists, "the tool has run", 10)
    assert (node.root / "java").read_text() == "/opt/jdk-17\n"


def test_systemd_loads_the_unit_and_only_its_own_lines_are_answered(node: Node) -> None:
    """A line about a setting shows its value, which may be a password."""
    own = "kafka.service: Command /opt/start.sh is not executable: No such file or directory"
    others = f"/etc/systemd/system/kafka.service:3: Invalid environment assignment, ignoring: PW {CANARY}\nother.service: Failed to load\n"
    unit = Unit(node, FragmentPath="/etc/systemd/system/kafka.service")
    shown, answers = unit.module.run, {"systemctl": (), "systemd-analyze": (1, f"{others}{own}\n")}
    unit.module.run = lambda argv, *more, **named: answers[argv[0]] or shown(argv, *more, **named)
    assert unit.role.try_tool({}) == {"verified": [own]}
    unit = Unit(node)
    assert unit.role.try_tool({}) == {"verified": []}, "a unit without a file is not asked for"
