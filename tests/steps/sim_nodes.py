"""The pieces of a cluster in memory (`sim`): nodes with their files, a clock that is a number, and the death of the tool."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from airflow_provider_kmigrate.core.cluster import HostSpec, NodeSpec, Role
from airflow_provider_kmigrate.core.files import properties
from airflow_provider_kmigrate.core.files.config_matrix import Stage, stage_of
from airflow_provider_kmigrate.core.model import BrokerMode, NodeFiles, Process, ProcessState

CLUSTER_ID = "-1Sh-9_ISia_zwGINzRvyQ"
parse = cache(properties.parse)
MODES = {Stage.ZOOKEEPER: BrokerMode.ZOOKEEPER, Stage.MIGRATION: BrokerMode.MIGRATION, Stage.KRAFT: BrokerMode.KRAFT}


class Killed(BaseException):
    """The tool died here."""


@dataclass(frozen=True)
class Health:
    """How a running broker is: seconds that it takes to answer (None: it does not), and whether it is in its ISRs."""

    seconds: float | None = 0.005
    in_sync: bool = True


def well(broker: int, mode: BrokerMode, look: int) -> Health:
    """Of every broker in every mode at every look."""
    del broker, mode, look
    return Health()


@dataclass
class SimNode:
    spec: NodeSpec
    text: str = ""
    running: str | None = None  # the file it runs with
    formatted: str | None = None
    log: bool = False
    copied: bool = False  # a controller's log holds a cluster's metadata
    starts: int = 0
    stops: int = 0

    @property
    def stage(self) -> Stage | None:
        return stage_of(parse(self.running)) if self.running is not None else None


@dataclass
class Mortal:
    """Counts every side effect and look; dies before number `at`."""

    at: int = -1
    count: int = 0

    def step(self) -> None:
        self.count += 1
        if self.count == self.at:
            raise Killed


@dataclass
class SimClock:
    time: float = 1000.0

    def monotonic(self) -> float:
        return self.time

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


def node_of(role: Role, node: int) -> NodeSpec:
    host = HostSpec("local", f"properties-{node}")
    return NodeSpec(node, role, "127.0.0.1", 10000 + node, host, log_dir=f"/kraft/{node}")


def process_of(node: SimNode) -> Process:
    return Process(ProcessState.RUNNING, 1, 1.0) if node.running is not None else Process(ProcessState.STOPPED)


def files_of(node: SimNode) -> NodeFiles:
    if node.spec.role is Role.BROKER:
        meta = {"/data": {"cluster.id": CLUSTER_ID, "broker.id": str(node.spec.id)}}
    else:
        meta = {node.spec.log_dir or "": {"cluster.id": CLUSTER_ID, "node.id": str(node.spec.id)} if node.formatted else {}}
    return NodeFiles(parse(node.text) if node.text else None, "", meta, node.log)


def original_of(node: int) -> str:
    return (
        f"broker.id={node}\nlisteners=PLAINTEXT://127.0.0.1:{10000 + node}\nlog.dirs=/data\n"
        "zookeeper.connect=127.0.0.1:2181/kafka\ninter.broker.protocol.version=3.9\n"
    )
