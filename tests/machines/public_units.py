"""A cluster on fresh machines whose units, scripts and directories are those of public roles, and which kmigrate has never seen.

| node | who starts it | its directory |
| --- | --- | --- |
| broker 0 | a unit whose `ExecStop` ends every Kafka of the machine; Java by the unit's `JAVA_HOME` alone | `/data` |
| controller 3000, beside it | the same; nothing but its unit knows Java | `/kraft/metadata` |
| broker 1 | a unit that requires the ZooKeeper of its machine, and ends every Kafka of it | `/data/kafka/` |
| controller 3001, beside it | a forking script, whose `ExecStop` ends every Kafka | `/kraft/metadata` |
| broker 2 | supervisord, as the guide has it | `/kafka-logs` |
| controller 3002 | a forking script without `ExecStop` | `/kraft/metadata` |
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole, NodeSpec
from tests.kit.environments import find_supervisord
from tests.kit.fleet import FILES, LOGGING, UNITS, Fleet, FleetPlan
from tests.kit.localcluster import config
from tests.kit.localcluster.runtime import Runtime
from tests.kit.units import STOP_SCRIPT
from tests.kit.units import UNITS as ROWS
from tests.waiting import wait_until

GUIDE = (Path(__file__).parents[2] / "docs" / "operators-guide.md").read_text(encoding="utf-8")
SUPERVISED = "broker 2"
REQUIRING = "broker 1"
METADATA = "/kraft/metadata"
LOGS = {0: "/data", 1: "/data/kafka/", 2: "/kafka-logs"}
_ROWS = {"broker 0": 1, "controller 3000": 1, "broker 1": 24, "controller 3001": 11, "controller 3002": 5}
_START = """\
#!/bin/sh
# As kafka-server-start.sh: [-daemon] FILE
export CLASSPATH={class_path}
daemon=
[ "$1" != -daemon ] || {{ daemon=1; shift; }}
case $1 in *controller*) set -- {controller} "$1" ;; *) set -- {broker} "$1" ;; esac
{java}
if [ -n "$daemon" ]; then
    nohup "$JAVA" "$@" >/tmp/kafka-daemon.out 2>&1 </dev/null &
else
    exec "$JAVA" "$@"
fi
"""
_STORAGE = '#!/bin/sh\nexport CLASSPATH={class_path}\n{java}\nexec "$JAVA" {storage} "$@"\n'
_STOP = """\
#!/bin/sh
pids=$(ps ax | grep ' kafka\\.Kafka ' | grep java | grep -v grep | awk '{print $1}')
[ -n "$pids" ] || { echo "No kafka server to stop"; exit 1; }
kill -s TERM $pids
"""
_SUPERVISORD = """\
[supervisord]
logfile=/var/log/supervisord.log
pidfile=/run/supervisord.pid
[unix_http_server]
file=/run/supervisor.sock
[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface
[supervisorctl]
serverurl=unix:///run/supervisor.sock
"""
_SUPERVISOR_UNIT = """\
[Service]
ExecStart={program} -n -c /etc/supervisor/supervisord.conf
KillMode=mixed
TimeoutStopSec=60
[Install]
WantedBy=multi-user.target
"""
# Directories of Kafka's user, and a program of root, as a package would leave them.
_TMPFILES = """\
d {parent} 0750 kafka kafka
d {folder} 0750 kafka kafka
z /usr/bin/supervisorctl 0755 root root
"""


def guide_block(language: str, holds: str) -> str:
    """The example of the guide in this language that holds a text."""
    [text] = [
        str(found) for found in re.findall(rf"^```{language}\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL) if holds in found
    ]
    return text


@dataclass(frozen=True)
class PublicPlan(FleetPlan):
    """One of the ZooKeepers stands beside a broker; the controllers' directory is elsewhere."""

    def zookeeper_addresses(self) -> tuple[str, ...]:
        """The addresses of the ZooKeeper servers."""
        return (f"127.0.{self.network}.10", f"127.0.{self.network}.21", f"127.0.{self.network}.12")

    def _node(self, role: NodeRole, number: int) -> NodeSpec:
        node = FleetPlan._node(self, role, number)
        return node if role is NodeRole.BROKER else replace(node, log_dir=METADATA)


class PublicFleet(Fleet):
    """As `Fleet`, without anything of kmigrate on the machines."""

    plan_type: ClassVar[type[FleetPlan]] = PublicPlan
    has_agent: ClassVar[bool] = False

    @property
    def environment(self) -> Path:
        """Where supervisord is."""
        return Path(find_supervisord()).absolute().parents[1]

    def more_shown(self) -> tuple[Path, ...]:
        """The environment of supervisord, and its Python."""
        base = Path(sys.base_prefix).resolve()
        return (self.environment, *([] if base == Path("/usr") else [base]))

    def enabled_units(self, address: str, roles: list[NodeRole]) -> list[str]:
        """Those of `Fleet`, with supervisord's in the place of the broker's that it starts."""
        units = super().enabled_units(address, roles)
        is_supervised = self.node(SUPERVISED).host == address
        return [unit for unit in units if unit != UNITS[NodeRole.BROKER]] + ["supervisor.service"] if is_supervised else units

    def data_of(self, node: NodeSpec) -> Path:
        """Where the node keeps its logs."""
        return self.machine(node).path(LOGS[node.id].rstrip("/") if node.role is NodeRole.BROKER else METADATA)

    def node_files(self, java: Runtime, node: NodeSpec) -> dict[str, str]:
        """The files of a machine of this node; a machine with two has those of both."""
        directory = LOGS[node.id].rstrip("/") if node.role is NodeRole.BROKER else "/kraft"
        needs_home = node.name in {"broker 0", "controller 3000"}
        folder = Path("/etc/kafka")
        program, *broker = java.command("kafka.Kafka", [], kind="broker", heap="256m", folder=folder)
        controller = java.command("kafka.Kafka", [], kind="controller", heap="192m", folder=folder)[1:]
        storage = java.command("kafka.tools.StorageTool", [], kind="storage", heap="64m", folder=folder)[1:]
        home = str(Path(program).parents[1])
        words = {
            "class_path": java.class_path,
            "java": "JAVA=${JAVA_HOME:?there is no Java}/bin/java" if needs_home else f"JAVA={program}",
            "broker": " ".join(broker),
            "controller": " ".join(controller),
            "storage": " ".join(storage),
        }
        files = {
            "etc/kafka/log4j.properties": LOGGING,
            f"etc/tmpfiles.d/{node.role}.conf": _TMPFILES.format(
                folder=directory, parent=str(Path(directory).parent).rstrip("/") or directory
            ),
            "opt/kafka/bin/kafka-server-start.sh": _START.format(**words),
            "opt/kafka/bin/kafka-storage.sh": _STORAGE.format(**words),
            STOP_SCRIPT[1:]: _STOP,
        }
        if node.name == SUPERVISED:
            files |= {
                "etc/supervisor/supervisord.conf": _SUPERVISORD + guide_block("ini", "program:kafka-broker"),
                "etc/systemd/system/supervisor.service": _SUPERVISOR_UNIT.format(
                    program=self.environment / "bin" / "supervisord"
                ),
                "usr/bin/supervisorctl": f'#!/bin/sh\nexec {self.environment}/bin/supervisorctl "$@"\n',
            }
        else:
            unit = ROWS[_ROWS[node.name]].text(FILES[node.role], f"Environment=JAVA_HOME={home}\n" if needs_home else "")
            files[f"etc/systemd/system/{UNITS[node.role]}"] = unit
        if node.role is NodeRole.BROKER:
            text = config.render(config.broker_properties(self.plan, node) | {"log.dirs": LOGS[node.id]})
            files[FILES[node.role][1:]] = text
        return files

    def unit_of(self, node: NodeSpec) -> str:
        """The unit of systemd that ends with the node."""
        return "supervisor.service" if node.name == SUPERVISED else UNITS[node.role]

    def pid_of(self, node: NodeSpec) -> int:
        """Its Kafka's process, seen from here; 0 for none."""
        found = [pid for pid in self.machine(node).processes("") if is_kafka(pid, FILES[node.role])]
        return found[0] if len(found) == 1 else 0

    def wait_running(self, nodes: tuple[NodeSpec, ...]) -> None:
        """Until each of these has one process."""
        wait_until(lambda: all(self.pid_of(node) for node in nodes), "every node runs", 90)


def is_kafka(pid: int, file: str) -> bool:
    """Whether this process is a Kafka that was started with this file."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"kafka.Kafka" in words and file.encode() in words
