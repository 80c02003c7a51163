"""What a local cluster consists of: its shape, its ports, its folders and the nodes as the migration sees them."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import json
import os
import random
import re
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from string import ascii_lowercase

import airflow_provider_kmigrate
from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.core.cluster_state.spec import HostSpec, NodeRole, NodeSpec
from airflow_provider_kmigrate.exceptions import Failed, Refused

AGENT = Path(airflow_provider_kmigrate.__file__).parent / "node" / "kmigrate-node"
HOST = "127.0.0.1"
FIRST_CONTROLLER = 3000
_FORMAT_VERSION = 1
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_PORTS = range(15_000, 32_000)  # below Linux's ephemeral range, where a client's socket may take a stopped node's port
_STOP_TIMEOUT = 330.0
_ENSEMBLES = (1, 3)
ENSEMBLE_PORTS = ("quorum", "election")  # what the servers of an ensemble tell each other over


@dataclass(frozen=True, slots=True)
class Shape:
    """What the user asked for; `chroot` is empty or starts with a slash. `zookeepers`: servers of the ensemble. `jmx`: nodes offer it.
    A release is one as Maven names it. `log_dirs`: of each broker. `zookeeper_login`: ZooKeeper lets clients in by SASL DIGEST-MD5 only.
    """

    name: str = "demo"
    brokers: int = 3
    controllers: int = 3
    racks: int = 3
    chroot: str = ""
    zookeepers: int = 1
    jmx: bool = False
    kafka_release: str = ""  # empty: the kit's own
    zookeeper_release: str = ""
    log_dirs: int = 1
    zookeeper_login: bool = False

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise Refused(f"a cluster's name has letters, digits, dashes and underscores only: {self.name!r}")
        if self.brokers < 1 or self.controllers < 1 or not 0 <= self.racks <= len(ascii_lowercase):
            raise Refused(f"a cluster has at least one broker, one controller and 0 to {len(ascii_lowercase)} racks: {self}")
        if self.zookeepers not in _ENSEMBLES:
            raise Refused(f"a cluster has one ZooKeeper server or an ensemble of three: {self}")
        if self.log_dirs < 1:
            raise Refused(f"a broker has at least one log directory: {self}")
        if self.chroot and (not self.chroot.startswith("/") or self.chroot.endswith("/")):
            raise Refused(f"a chroot starts with a slash and does not end with one: {self.chroot!r}")

    def zookeeper_names(self) -> tuple[str, ...]:
        """The folders of the ZooKeeper servers, in the order of their ids, which begin with 1."""
        return ("zookeeper", *(f"zookeeper-{number}" for number in range(2, self.zookeepers + 1)))

    def ports(self) -> Iterator[str]:
        """Whatever needs a port: each member one for its clients, a server of an ensemble two more for the others."""
        yield from self.members()
        if self.jmx:
            yield from (f"{name} jmx" for name in self.members())
        if self.zookeepers > 1:
            yield from (f"{name} {use}" for name in self.zookeeper_names() for use in ENSEMBLE_PORTS)

    def members(self) -> Iterator[str]:
        """The names of all folders of processes; each process has one port."""
        yield from self.zookeeper_names()
        yield from (f"broker-{number}" for number in range(self.brokers))
        yield from (f"controller-{FIRST_CONTROLLER + number}" for number in range(self.controllers))


@dataclass(frozen=True, slots=True)
class Plan:
    """A cluster in `folder`, written there as cluster.json; `cluster_id` is empty until the cluster has served once."""

    folder: Path
    shape: Shape
    ports: Mapping[str, int]
    cluster_id: str = ""

    @property
    def zookeeper_folder(self) -> Path:
        """Of the only server, or of an ensemble's first."""
        return self.folder / "zookeeper"

    @property
    def zookeeper_folders(self) -> tuple[Path, ...]:
        """Of every server, in the order of their ids, which begin with 1."""
        return tuple(self.folder / name for name in self.shape.zookeeper_names())

    @property
    def zookeeper(self) -> str:
        """ZooKeeper's addresses as a connect string has them, without chroot."""
        return ",".join(f"{HOST}:{self.ports[name]}" for name in self.shape.zookeeper_names())

    @property
    def brokers(self) -> tuple[NodeSpec, ...]:
        """The brokers, as the cluster file has them."""
        return tuple(self._node(NodeRole.BROKER, number) for number in range(self.shape.brokers))

    @property
    def controllers(self) -> tuple[NodeSpec, ...]:
        """The controllers, as the cluster file has them."""
        return tuple(self._node(NodeRole.CONTROLLER, FIRST_CONTROLLER + number) for number in range(self.shape.controllers))

    @property
    def bootstrap(self) -> str:
        """All brokers' addresses, as librdkafka and Java clients take them."""
        return ",".join(node.endpoint for node in self.brokers)

    @property
    def spec_path(self) -> Path:
        """The cluster file that `up` writes."""
        return self.folder / "clusters" / f"{self.shape.name}.yaml"

    @property
    def connections_path(self) -> Path:
        """Airflow's connections to this cluster, as its local secrets backend and `airflow connections import` read them."""
        return self.folder / "connections.json"

    @property
    def connect(self) -> tuple[str, ...]:
        """The agent of a node: as on a machine of its own, with a configuration of its own."""
        return (sys.executable, "-I", str(AGENT), "serve", "--config", self.agent_config("{id}"))

    def agent_config(self, node: object) -> str:
        """The path of a node's node.json."""
        return f"{agents_of(self.folder)}/{node}.json"

    def _node(self, role: NodeRole, number: int) -> NodeSpec:
        name = f"{role}-{number}"
        state = self.folder / name
        hosts = HostSpec("agent", f"{state}/server.properties", connect=self.connect, stop_timeout=_STOP_TIMEOUT)
        is_broker = role is NodeRole.BROKER
        rack = ascii_lowercase[number % self.shape.racks] if is_broker and self.shape.racks else None
        return NodeSpec(number, role, HOST, self.ports[name], hosts, rack, None if is_broker else f"{state}/data")

    def identified(self, cluster_id: str) -> Plan:
        """The same cluster, once it has started and its id is known."""
        return replace(self, cluster_id=cluster_id)

    def save(self) -> None:
        """Write cluster.json atomically."""
        state = {
            "version": _FORMAT_VERSION,
            "shape": asdict(self.shape),
            "ports": dict(self.ports),
            "cluster_id": self.cluster_id,
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        atomic.replace(self.folder / "cluster.json", json.dumps(state, indent=1).encode())


def agents_of(folder: Path) -> Path:
    """The folder of the agents' configurations. An agent takes none that others may write, and a checkout is often open to a group."""
    return Path(tempfile.gettempdir()) / f"kmigrate-agents-{os.geteuid()}" / hashlib.sha256(str(folder).encode()).hexdigest()[:12]


def folder_of(node: NodeSpec) -> Path:
    """The folder with all that belongs to a node: its file, its data, its log, its process and what the agent keeps of it."""
    return Path(node.hosts.properties).parent


def log_dirs_of(plan: Plan, node: NodeSpec) -> tuple[Path, ...]:
    """Where the node keeps its logs; of a broker, each of its directories."""
    data = folder_of(node) / "data"
    count = plan.shape.log_dirs if node.role is NodeRole.BROKER else 1
    return (data, *(data.with_name(f"{data.name}-{number}") for number in range(2, count + 1)))


def exists(folder: Path) -> bool:
    """Whether an `up` has begun in this folder."""
    return (folder / "cluster.json").exists()


def load(folder: Path) -> Plan | None:
    """The cluster that `folder` holds, `None` where it holds none. Raises `Failed` where cluster.json is damaged."""
    path = folder / "cluster.json"
    try:
        state = json.loads(path.read_text())
        if state["version"] != _FORMAT_VERSION:
            raise Failed(f"{path} was written by another version of kmigrate: bring it down with that one, then remove {folder}")
        return Plan(folder, Shape(**state["shape"]), state["ports"], state["cluster_id"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise Failed(f"{path} is damaged: {error!r}") from error


def make(folder: Path, shape: Shape) -> Plan:
    """A new cluster on ports that are free now; whether they still are when the nodes start is for the start to see."""
    names = list(shape.ports())
    return Plan(folder, shape, dict(zip(names, free_ports(len(names)), strict=True)))


def free_ports(count: int) -> list[int]:
    """Ports on which nothing listens now, and which no other process of this machine has planned to use."""
    found: list[int] = []
    for port in random.sample(_PORTS, k=len(_PORTS)):
        if _is_free(port) and reserved(port):
            found.append(port)
        if len(found) == count:
            return found
    raise Failed(f"fewer than {count} ports between {_PORTS.start} and {_PORTS.stop} are free")


_RESERVED: list[int] = []  # open files, locked until this process ends


def reserved(port: int) -> bool:
    """Whether this process now has the port: a node that is planned and not started yet binds nothing, and its port looks free to others."""
    path = Path(tempfile.gettempdir()) / "kmigrate-ports" / str(port)
    try:
        path.parent.mkdir(exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:  # the last process that had one has removed the folder meanwhile
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(handle).st_ino == path.stat().st_ino:  # not one that its process has removed meanwhile
            _RESERVED.append(handle)
            atexit.register(_release, os.getpid(), path, handle)
            return True
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(handle)
    return False


def _release(process: int, path: Path, handle: int) -> None:
    """Remove a port's file while it is still locked, and the folder with the last one; not in a fork, whose parent still has the port."""
    if process != os.getpid():
        return
    with contextlib.suppress(OSError):
        path.unlink()
        os.close(handle)
        path.parent.rmdir()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Java binds: a port in TIME_WAIT is free
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True
