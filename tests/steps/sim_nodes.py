"""The pieces of a cluster in memory (`sim`): nodes with their files, a clock that is a number, and the death of the tool."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cache, partial
from math import inf
from typing import Any

from airflow_provider_kmigrate.clients.hosts.files import sha256
from airflow_provider_kmigrate.core.cluster_state.model import (
    Broker,
    BrokerMode,
    ClusterView,
    Controller,
    Fields,
    NodeFiles,
    Process,
    ProcessState,
    Software,
)
from airflow_provider_kmigrate.core.cluster_state.spec import HostSpec, NodeRole, NodeSpec
from airflow_provider_kmigrate.core.node_files import properties
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage, stage_of

UP, DOWN = Process(ProcessState.RUNNING, 1, 1.0, killed_after=inf), Process(ProcessState.STOPPED, killed_after=inf)
CLUSTER_ID = "-1Sh-9_ISia_zwGINzRvyQ"
parse = cache(properties.parse_properties)
MODES = {FileStage.ZOOKEEPER: BrokerMode.ZOOKEEPER, FileStage.MIGRATION: BrokerMode.MIGRATION, FileStage.KRAFT: BrokerMode.KRAFT}


_sha256 = cache(sha256)


@cache
def _stage(text: str) -> FileStage | None:
    return stage_of(parse(text))


class Killed(BaseException):
    """The tool died here."""


@dataclass(frozen=True)
class Health:
    """How a running broker is: seconds that it takes to answer (None: it does not), and whether it is in its ISRs."""

    seconds: float | None = 0.005
    in_sync: bool = True


def well(broker: int, mode: BrokerMode, observation: int) -> Health:
    """Of every broker in every mode at every observation."""
    del broker, mode, observation
    return Health()


@dataclass
class SimNode:
    spec: NodeSpec
    text: str = ""
    running: str | None = None  # the file it runs with
    formatted: str | None = None
    log: bool = False
    copied: bool = False  # a controller's log holds a cluster's metadata
    cluster_id: str | None = CLUSTER_ID  # in its meta.properties; None: that cannot be read
    free: int | None = 1 << 30  # bytes, where a rollback writes
    release: str = ""  # of Kafka, that it runs and has on its disk; empty: not known
    starts: int = 0
    stops: int = 0

    @property
    def stage(self) -> FileStage | None:
        return _stage(self.running) if self.running is not None else None


@dataclass
class Mortal:
    """Counts every side effect and observation; dies before number `at`."""

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

    async def pause(self, seconds: float) -> None:
        self.sleep(seconds)


def node_of(role: NodeRole, node: int) -> NodeSpec:
    host = HostSpec("agent", f"properties-{node}")
    return NodeSpec(node, role, "127.0.0.1", 10000 + node, host, log_dir=f"/kraft/{node}")


def process_of(node: SimNode) -> Process:
    process = UP if node.running is not None else DOWN
    return replace(process, software=Software(node.release, "", node.release)) if node.release else process


def files_of(node: SimNode) -> NodeFiles:
    keys = {
        "broker.id" if node.spec.role is NodeRole.BROKER else "node.id": str(node.spec.id),
        "cluster.id": node.cluster_id or "",
    }
    folder = "/data" if node.spec.role is NodeRole.BROKER else node.spec.log_dir or ""
    written = node.spec.role is NodeRole.BROKER or node.formatted is not None
    meta = {folder: keys if written else {}} if node.cluster_id is not None else None
    properties, digest = (parse(node.text), _sha256(node.text)) if node.text else (None, None)
    return NodeFiles(properties, meta, node.log, free=node.free, sha256=digest)


def as_asked(view: ClusterView, what: Fields, nodes: Collection[NodeSpec]) -> ClusterView:
    """An observation of these fields, of these nodes' hosts: no more than a real one shows. No field, and no node: everything."""
    if not what:
        return view
    asked = what.value  # numbers: a search makes a million observations
    changed: dict[str, Any] = {name: None for name, by in _REPORTED_BY.items() if not asked & by}
    if asked & _GROUPS == 0 and view.zk is not None and view.zk.live_groups:
        changed.setdefault("zk", replace(view.zk, live_groups=(), live_members={}))
    hosts = {(node.role, node.id) for node in nodes}
    reported = partial(_of_host, asked)
    changed["brokers"] = {
        n: _broker(b, asked, *reported(b, not hosts or (NodeRole.BROKER, n) in hosts), known=bool(asked & _ZOOKEEPER))
        for n, b in view.brokers.items()
    }
    changed["controllers"] = {
        n: _controller(c, asked, *reported(c, not hosts or (NodeRole.CONTROLLER, n) in hosts))
        for n, c in view.controllers.items()
    }
    return replace(view, **changed)


_GROUPS, _PROCESSES, _FILES = (each.value for each in (Fields.GROUPS, Fields.PROCESSES, Fields.FILES))
_BROKERS, _CONTROLLERS, _ZOOKEEPER = (
    each.value for each in (Fields.BROKERS, Fields.CONTROLLERS, Fields.ZOOKEEPER | Fields.GROUPS)
)
_REPORTED_BY = {
    "zk": _ZOOKEEPER,
    "kafka_cluster_id": _BROKERS,
    "quorum": Fields.QUORUM.value,
    "partitions": (Fields.PARTITIONS | Fields.MIN_INSYNC).value,
    "min_insync": Fields.MIN_INSYNC.value,
    "client_metrics": Fields.CLIENT_METRICS.value,
    "topics": Fields.TOPICS.value,
    "stored": Fields.STORED.value,
    "state_epoch": (Fields.STATE_EPOCH | Fields.TOPICS).value,
    "moving": Fields.REASSIGNMENTS.value,
    "coordinators": Fields.COORDINATORS.value,
    "ensemble": Fields.ENSEMBLE.value,
    "group_progress": Fields.GROUP_PROGRESS.value,
    "hosted": Fields.HOSTED_GROUPS.value,
}
_NO_PROCESS, _NO_FILES = Process(), NodeFiles()


def _of_host(asked: int, node: Broker | Controller, host: bool) -> tuple[Process, NodeFiles]:
    process = node.process if host and asked & _PROCESSES else _NO_PROCESS
    return process, node.files if host and asked & _FILES else _NO_FILES


def _broker(broker: Broker, asked: int, process: Process, files: NodeFiles, *, known: bool) -> Broker:
    registered = broker.in_zookeeper if known else None
    if not asked & _BROKERS:
        return Broker(broker.id, process, in_zookeeper=registered, files=files)
    return Broker(broker.id, process, broker.mode, registered, broker.listed_by, broker.controller_id, files, broker.answered_in)


def _controller(controller: Controller, asked: int, process: Process, files: NodeFiles) -> Controller:
    if not asked & _CONTROLLERS:
        return Controller(controller.id, process, files=files)
    return Controller(controller.id, process, controller.answers, controller.migration_flag, files)


def original_of(node: int) -> str:
    return (
        f"broker.id={node}\nlisteners=PLAINTEXT://127.0.0.1:{10000 + node}\nlog.dirs=/data\n"
        "zookeeper.connect=127.0.0.1:2181/kafka\ninter.broker.protocol.version=3.9\n"
    )
