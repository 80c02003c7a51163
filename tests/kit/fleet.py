"""A cluster on machines of their own: each has a systemd, an sshd, a sudo, a disk and an address (`tests.kit.machines`).

Three ZooKeepers, the brokers, and as many controllers: all but the last one stand beside a broker, the last one has a machine to itself.
kmigrate reaches them over ssh only. Airflow, Spark and the load run on this machine.
"""

from __future__ import annotations

import json
import shutil
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import yaml

from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.core.cluster_state.spec import HostSpec, NodeRole, NodeSpec
from airflow_provider_kmigrate.exceptions import Failed, Refused, TimedOut
from tests.kit.localcluster import config, export, jars, plan, ready, runtime, snapshots
from tests.kit.localcluster.cluster import LocalCluster
from tests.kit.localcluster.plan import FIRST_CONTROLLER, Plan, Shape
from tests.kit.localcluster.runtime import Runtime
from tests.kit.machines import PORT, USER, Machine, Template, clock_files, missing, new_key

ZOOKEEPER_PORT, BROKER_PORT, CONTROLLER_PORT = 2181, 9092, 9093
UNITS = {NodeRole.BROKER: "kafka.service", NodeRole.CONTROLLER: "kafka-controller.service"}
FILES = {NodeRole.BROKER: "/etc/kafka/server.properties", NodeRole.CONTROLLER: "/etc/kafka/controller.properties"}
DIRECTORIES = {NodeRole.BROKER: "/var/lib/kafka/data", NodeRole.CONTROLLER: "/var/lib/kafka/controller"}
AHEAD_S = 600
_NETWORKS = range(2, 250)
_POLL = 0.2
_MEGABYTES = 2048  # of a disk; only what is written takes room
_UNIT = """\
[Unit]
Description=Apache Kafka ({name})
After=network.target
[Service]
User=kafka
ExecStart=/opt/kafka/bin/start-{name}.sh {file}
SuccessExitStatus=143
Restart=on-failure
RestartSec=5
TimeoutStopSec=600
LimitNOFILE=65536
[Install]
WantedBy=multi-user.target
"""
LOGGING = """\
log4j.rootLogger=INFO, stdout
log4j.appender.stdout=org.apache.log4j.ConsoleAppender
log4j.appender.stdout.layout=org.apache.log4j.PatternLayout
log4j.appender.stdout.layout.ConversionPattern=[%d] %p %m (%c)%n
log4j.logger.org.apache.zookeeper=WARN
"""


@dataclass(frozen=True, slots=True)
class FleetPlan(Plan):
    """A plan whose nodes have machines: `network` is the third number of their addresses."""

    network: int = 0

    def zookeeper_addresses(self) -> tuple[str, ...]:
        """The addresses of the ZooKeeper servers."""
        return tuple(f"127.0.{self.network}.{10 + number}" for number in range(self.shape.zookeepers))

    @property
    def zookeeper(self) -> str:
        """The connect string of the ensemble."""
        return ",".join(f"{address}:{ZOOKEEPER_PORT}" for address in self.zookeeper_addresses())

    def _node(self, role: NodeRole, number: int) -> NodeSpec:
        is_broker = role is NodeRole.BROKER
        place = number if is_broker else number - FIRST_CONTROLLER
        alone = not is_broker and place == self.shape.controllers - 1
        address = f"127.0.{self.network}.{30 if alone else 20 + place}"
        hosts = HostSpec("agent", FILES[role])
        rack = "abc"[place % self.shape.racks] if is_broker and self.shape.racks else None
        port = BROKER_PORT if is_broker else CONTROLLER_PORT
        return NodeSpec(number, role, address, port, hosts, rack, None if is_broker else DIRECTORIES[role])


class Fleet(LocalCluster):
    """The machines of `folder`; they end with this process. A rehearsal uses it as it uses a local cluster."""

    plan_type: ClassVar[type[FleetPlan]] = FleetPlan
    has_agent: ClassVar[bool] = True  # kmigrate's agent is on the machines from the beginning

    def __init__(self, folder: Path | str, ahead: str = "") -> None:
        """`ahead`: the name of a node on whose machine Kafka and the agent see a clock that is ten minutes ahead."""
        super().__init__(folder)
        self._ahead = ahead
        self.machines: dict[str, Machine] = {}  # by address
        self._plan: FleetPlan | None = None
        self.key = Path()

    @property
    def plan(self) -> FleetPlan:
        """The plan of the fleet. Raises `Failed` before it is up."""
        if self._plan is None:
            raise Failed("the fleet was not brought up")
        return self._plan

    def machine(self, node: NodeSpec) -> Machine:
        """The one that the node runs on."""
        return self.machines[node.host]

    def data_of(self, node: NodeSpec) -> Path:
        """Where the node keeps its logs, as root of this machine reads them while the other one is on."""
        return self.machine(node).path(DIRECTORIES[node.role])

    def node(self, name: str) -> NodeSpec:
        """By its name, such as `broker 1`."""
        return next(node for node in (*self.plan.brokers, *self.plan.controllers) if node.name == name)

    def up(self, shape: Shape | None = None, timeout: float = 180.0) -> FleetPlan:
        """Make the machines, boot them, and wait until ZooKeeper and the brokers serve."""
        if lacking := missing():
            raise Refused(lacking)
        shape = replace(shape or Shape(), zookeepers=3)
        network = next(number for number in _NETWORKS if plan.reserved(number))
        self._plan = self.plan_type(self.folder, shape, {}, network=network)
        self.folder.mkdir(parents=True)
        self.key = new_key(self.folder)
        self._make(runtime.find())
        deadline = time.monotonic() + timeout
        self._boot()
        self.wait_serving(deadline)
        with ready.registry(self.plan) as registry:
            self._plan = replace(self.plan, cluster_id=registry.cluster_id())
        self._write_files()
        return self.plan

    def _make(self, java: Runtime) -> None:
        machines = {
            address: self._zookeeper_files(java, number) for number, address in enumerate(self.plan.zookeeper_addresses(), 1)
        }
        for node in (*self.plan.brokers, *self.plan.controllers):
            machines.setdefault(node.host, {}).update(self.node_files(java, node))
        roles = {
            address: [node.role for node in (*self.plan.brokers, *self.plan.controllers) if node.host == address]
            for address in machines
        }
        if self._ahead:
            machines[self.node(self._ahead).host] |= clock_files(AHEAD_S)
        shown = sorted({java.archives.parent, *(path.parent for path in jars.jars()), *self.more_shown()})
        for address, files in machines.items():
            if roles[address] and self.has_agent:
                files["etc/kmigrate/node.json"] = json.dumps(
                    {"version": 1, "roles": {role: _role(role) for role in roles[address]}}
                )
            folder = self.folder / address
            template = Template(
                folder / "template",
                files,
                name=_name(address),
                address=address,
                key=self.key,
                enabled=self.enabled_units(address, roles[address]),
                shown=shown,
                megabytes=_MEGABYTES,
                has_agent=self.has_agent,
            )
            self.machines[address] = Machine(folder, template)
            template.disk.unlink()  # its machine has a copy

    def enabled_units(self, address: str, roles: list[NodeRole]) -> list[str]:
        """The units that start when this machine boots."""
        zookeeper = ["zookeeper.service"] * (address in self.plan.zookeeper_addresses())
        return zookeeper + ["kafka.service"] * (NodeRole.BROKER in roles)

    def more_shown(self) -> tuple[Path, ...]:
        """Further folders of this machine that all others see."""
        return ()

    def _zookeeper_files(self, java: Runtime, number: int) -> dict[str, str]:
        addresses = self.plan.zookeeper_addresses()
        keys = {
            "tickTime": "2000", "initLimit": "10", "syncLimit": "5", "dataDir": "/var/lib/kafka/data", "clientPort": str(ZOOKEEPER_PORT),
            "clientPortAddress": addresses[number - 1], "maxClientCnxns": "0", "admin.enableServer": "false", "preAllocSize": "1024",
            "4lw.commands.whitelist": "*", **{f"server.{each}": f"{address}:2888:3888" for each, address in enumerate(addresses, 1)},
        }  # fmt: skip
        start = java.command(config.ZOOKEEPER_MAIN, [], kind="zookeeper", heap="128m", folder=Path("/etc/kafka"))
        return {
            "etc/kafka/zoo.cfg": config.render(keys),
            "etc/kafka/log4j.properties": LOGGING,
            "var/lib/kafka/data/myid": f"{number}\n",
            "opt/kafka/bin/start-zookeeper.sh": _script(java, start),
            "usr/local/lib/systemd/system/zookeeper.service": _UNIT.format(name="zookeeper", file="/etc/kafka/zoo.cfg"),
        }

    def node_files(self, java: Runtime, node: NodeSpec) -> dict[str, str]:
        heap = "256m" if node.role is NodeRole.BROKER else "192m"
        start = java.command("kafka.Kafka", [], kind=node.role, heap=heap, folder=Path("/etc/kafka"))
        storage = java.command("kafka.tools.StorageTool", [], kind="storage", heap="64m", folder=Path("/etc/kafka"))
        files = {
            "etc/kafka/log4j.properties": LOGGING,
            f"opt/kafka/bin/start-{node.role}.sh": _script(java, start),
            "opt/kafka/bin/kafka-storage.sh": _script(java, storage),
            f"usr/local/lib/systemd/system/{UNITS[node.role]}": _UNIT.format(name=node.role, file=FILES[node.role]),
        }
        if node.role is NodeRole.BROKER:
            files[FILES[node.role][1:]] = config.render(
                config.broker_properties(self.plan, node) | {"log.dirs": DIRECTORIES[node.role]}
            )
        return files

    def _boot(self) -> None:
        self._with_each(Machine.boot)

    def snapshot(self, name: str, grace: float = 90.0) -> None:
        """Stop everything in order, within `grace` seconds a role, and keep a copy of every disk by this name; `go_on` boots."""
        snapshots.check_name(name)
        for nodes in (self.plan.brokers, self.plan.controllers):
            with ThreadPoolExecutor(len(nodes)) as pool:
                list(pool.map(partial(self._stop_unit, grace), nodes))
        self._with_each(Machine.power_off)
        self._with_each(lambda machine: machine.keep_disk(name))

    def _stop_unit(self, grace: float, node: NodeSpec) -> None:
        self.machine(node).run("systemctl", "stop", UNITS[node.role], seconds=grace)

    def restore(self, name: str) -> None:
        """End every machine at once, with the disks that the snapshot kept; `go_on` boots."""
        self._with_each(lambda machine: machine.cut_power() if machine.is_on else None)
        self._with_each(lambda machine: machine.put_disk_back(name))

    def go_on(self, timeout: float = 180.0) -> None:
        """Boot every machine, and wait until ZooKeeper and the brokers serve."""
        deadline = time.monotonic() + timeout
        self._boot()
        self.wait_serving(deadline)

    def _with_each(self, call: Callable[[Machine], object]) -> None:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(call, self.machines.values()))

    def wait_serving(self, deadline: float) -> None:
        """Until ZooKeeper answers and each broker knows all others."""
        for address in self.plan.zookeeper_addresses():
            self._wait(address, partial(_answers, address), deadline)
        self.wait_brokers(deadline)

    def wait_brokers(self, deadline: float) -> None:
        """Until each broker knows all others."""
        for node in self.plan.brokers:
            self._wait(node.host, partial(ready.knows_all, self.plan, node), deadline)

    def _wait(self, address: str, condition: Any, deadline: float) -> None:
        while not condition():
            if time.monotonic() > deadline:
                raise TimedOut(f"{_name(address)} does not serve: {self.log(address)[-3000:]}")
            time.sleep(_POLL)

    def log(self, address: str) -> str:
        """What the units of a machine printed since its boot."""
        return self.machines[address].run(
            "journalctl", "--no-pager", "--output=cat", "--unit=zookeeper", "--unit=kafka", "--unit=kafka-controller"
        )

    def starts(self) -> dict[str, int]:
        """How often each broker was started since its machine booted, by its log: each start registers one log4j bean."""
        return {
            node.name: self.machine(node)
            .run("journalctl", "--no-pager", "--output=cat", "--unit=kafka")
            .count("kafka.Log4jController MBean")
            for node in self.plan.brokers
        }

    def _write_files(self) -> None:
        for path in (self._known_hosts, self.spec_path):
            path.parent.mkdir(parents=True, exist_ok=True)
        keys = "".join(machine.known_host for machine in self.machines.values())
        atomic.replace(self._known_hosts, keys.encode())
        self._write_spec(self.cluster_file())
        extra = {"key_file": str(self.key), "look_for_keys": False, "conn_timeout": 10}
        ssh = {self._ssh_conn_id: {"conn_type": "ssh", "login": USER, "port": PORT, "extra": extra}}
        atomic.replace(self.plan.connections_path, json.dumps(export.connections(self.plan) | ssh, indent=1).encode())

    def _write_spec(self, document: dict[str, Any]) -> None:
        atomic.replace(self.spec_path, yaml.safe_dump(document, sort_keys=False, width=1000).encode())

    @property
    def home(self) -> Path:
        """The home of Airflow's user, with the host keys of all machines."""
        return self.folder / "home"

    @property
    def _known_hosts(self) -> Path:
        return self.home / ".ssh" / "known_hosts"

    @property
    def _ssh_conn_id(self) -> str:
        return f"{self.plan.shape.name}_ssh"

    def rewrite(self, **sections: Any) -> None:
        """Replace sections of the cluster file."""
        self._write_spec(yaml.safe_load(self.spec_path.read_text()) | sections)

    def through(self, **way: Any) -> None:
        """From now on the cluster file reaches the nodes this way: `ssh_conn_id` or `connect` of its section `hosts`."""
        self.rewrite(hosts={"driver": "agent", "properties": FILES[NodeRole.BROKER]} | way)

    def through_connection(self) -> None:
        """Reach the nodes by Airflow's SSH connection, which finds the host keys in `home`."""
        self.through(ssh_conn_id=self._ssh_conn_id)

    def cluster_file(self) -> dict[str, Any]:
        """What a user would write about this cluster."""
        document = export.cluster_file(self.plan)
        nodes = {"brokers": self.plan.brokers, "controllers": self.plan.controllers}
        hosts = {"driver": "agent", "connect": self.ssh_command(), "properties": FILES[NodeRole.BROKER]}
        return document | {"hosts": hosts} | {key: [_entry(node) for node in found] for key, found in nodes.items()}

    def ssh_command(self) -> list[str]:
        """The agent of a node over ssh, with no configuration of this machine."""
        options = ("BatchMode=yes", f"UserKnownHostsFile={self._known_hosts}", "GlobalKnownHostsFile=/dev/null", "IdentitiesOnly=yes",
                   "ConnectTimeout=10", "ServerAliveInterval=15", "ServerAliveCountMax=3")  # fmt: skip
        argv = [
            "ssh",
            "-T",
            "-F",
            "/dev/null",
            *(word for option in options for word in ("-o", option)),
            "-i",
            str(self.key),
            "-p",
            str(PORT),
        ]
        return [*argv, f"{USER}@{{host}}", "sudo", "-n", "/usr/local/sbin/kmigrate-node", "serve"]

    def down(self, grace: float = 20.0) -> None:
        """End every machine at once."""
        del grace
        for machine in self.machines.values():
            machine.close()

    def clean(self) -> None:
        """Stop the fleet and delete its folder."""
        self.down()
        shutil.rmtree(self.folder, ignore_errors=True)


def _name(address: str) -> str:
    number = int(address.rpartition(".")[2])
    return f"{('zk', 'kafka', 'ctl')[number // 10 - 1]}{number % 10}"


def _role(role: NodeRole) -> dict[str, Any]:
    shared = {"user": "kafka", "storage_tool": ["/opt/kafka/bin/kafka-storage.sh"], "stop_timeout": 330}
    return {"systemd": UNITS[role], "properties": FILES[role], "log_dirs": [DIRECTORIES[role]], **shared}


def _entry(node: NodeSpec) -> dict[str, Any]:
    optional = {"rack": node.rack, "log_dir": node.log_dir}
    found = {"id": node.id, "host": node.host, "port": node.port, "properties": node.hosts.properties}
    return found | {key: value for key, value in optional.items() if value is not None}


def _script(java: Runtime, command: tuple[str, ...]) -> str:
    return f'#!/bin/sh\nexport CLASSPATH={java.class_path}\nexec {" ".join(command)} "$@"\n'


def _answers(address: str) -> bool:
    try:
        with socket.create_connection((address, ZOOKEEPER_PORT), timeout=3) as connection:
            connection.sendall(b"srvr")
            return connection.makefile("rb").read().startswith(b"Zookeeper version")
    except OSError:
        return False
