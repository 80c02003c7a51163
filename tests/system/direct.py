"""The tool without Airflow: a world from a local cluster's own files, the DAG's steps in its order, and what a refusal must leave alone."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_provider_kmigrate.clients.connections import lookup_in, read_connections, settings_for
from airflow_provider_kmigrate.clients.fence import Fence
from airflow_provider_kmigrate.clients.hosts.process import NodeProcess
from airflow_provider_kmigrate.clients.settings import ZooKeeperSettings
from airflow_provider_kmigrate.clients.tools import opened
from airflow_provider_kmigrate.clients.zookeeper import ROOT, ZooKeeper
from airflow_provider_kmigrate.core.cluster import ClusterSpec, NodeSpec
from airflow_provider_kmigrate.core.model import BrokerMode, ClusterView, Done, Look, Wait
from airflow_provider_kmigrate.core.provision import postponed_controller
from airflow_provider_kmigrate.core.roll import next_to_roll
from airflow_provider_kmigrate.localcluster.cluster import LocalCluster
from airflow_provider_kmigrate.observe import Observer
from airflow_provider_kmigrate.spec import load
from airflow_provider_kmigrate.steps.backup import BackupStore
from airflow_provider_kmigrate.steps.brokers import ROLL_LOOKS
from airflow_provider_kmigrate.steps.catalog import build
from airflow_provider_kmigrate.steps.journal import FileJournal
from airflow_provider_kmigrate.steps.prepare import run_backup, run_preflight
from airflow_provider_kmigrate.steps.run import World, run_step

EVERYTHING = Look.PROCESSES | Look.FILES | Look.BROKERS | Look.CONTROLLERS | Look.QUORUM | Look.ZOOKEEPER | Look.PARTITIONS
_NOT_A_FILE_OF_NOTE = {"node.log", "lock"}


@contextmanager
def world(
    cluster: LocalCluster,
    run: str = "run",
    *,
    spec: ClusterSpec | None = None,
    connections: Mapping[str, Mapping[str, Any]] | None = None,
    acting: bool = True,
) -> Iterator[World]:
    """What a task of the DAG run `run` has in its hands; journal and backups lie beside the cluster's folder.

    Without `acting`, what preflight and sensors have: they hold nothing.
    """
    chosen = spec or load(cluster.spec_path)
    known = connections or read_connections(cluster.plan.connections_path)
    folder = cluster.folder.parent / "kmigrate"
    with (
        opened(settings_for(chosen, lookup_in(known, chosen))) as tools,
        Observer(chosen, tools) as observer,
        Fence(tools.zk, chosen.cluster_id, run) if acting else nullcontext(_Nothing()) as fence,
    ):
        journal = FileJournal(folder / "journal" / f"{run}.jsonl", run, time.time)
        backup = BackupStore(folder / "backup", chosen.name, chosen.cluster_id)
        yield World(chosen, observer, tools, fence, journal, backup, print)


class _Nothing:
    """The fence of those who only look."""

    @property
    def token(self) -> int:
        raise AssertionError("only looking")

    def check(self) -> None:
        raise AssertionError("only looking")


def step(here: World, kind: str, **arguments: Any) -> Done | Wait:
    """One step to its end, as a task runs it."""
    return run_step(build(here.spec, kind, arguments), here)


def prepare(here: World) -> None:
    run_preflight(here)
    run_backup(here)


def provision(here: World) -> None:
    for node in here.spec.controllers:
        step(here, "provision", node=node.id)
    step(here, "controllers ready")


def roll(here: World, target: BrokerMode) -> None:
    """Every broker that is not there yet, the ZooKeeper controller last."""
    while (node := to_roll(here, target)) is not None:
        step(here, "roll", node=node, target=target)
    step(here, "leaders")
    step(here, "registered")


def to_roll(here: World, target: BrokerMode) -> int | None:
    return next_to_roll(here.observer.look(ROLL_LOOKS), [node.id for node in here.spec.brokers], target)


def copy(here: World) -> None:
    for kind in ("copied", "lag", "equivalent"):
        step(here, kind)


def finalize(here: World) -> None:
    view = here.observer.look(Look.CONTROLLERS | Look.QUORUM)
    for node in sorted(here.spec.controllers, key=lambda node: postponed_controller(view, node.id)):
        step(here, "finalize", node=node.id)
    step(here, "finalized")


def forward(here: World) -> None:
    """The whole DAG."""
    prepare(here)
    provision(here)
    roll(here, BrokerMode.MIGRATION)
    copy(here)
    roll(here, BrokerMode.KRAFT)
    for kind in ("soak", "lag", "equivalent"):
        step(here, kind)
    finalize(here)


def starts(node: NodeSpec) -> int:
    """How often this node's Kafka was started, by its log: each start registers one log4j bean."""
    return NodeProcess(Path(node.hosts.state)).log.read_text(errors="replace").count("kafka.Log4jController MBean")


def wait_until(look: Callable[[], ClusterView], holds: Callable[[ClusterView], bool], what: str, timeout: float = 90.0) -> None:
    end = time.monotonic() + timeout
    while not holds(view := look()):
        assert time.monotonic() < end, f"in vain: {what}; {view.unknowns}"


def footprint(cluster: LocalCluster, *, fence: bool = False) -> dict[str, object]:
    """All that a refusal must leave as it is: ZooKeeper's tree (with our own `fence`?), the nodes' files and their processes."""
    with ZooKeeper(ZooKeeperSettings(cluster.plan.zookeeper)) as root:
        tree = [(path, data) for path, data in root.tree() if not path.startswith("/zookeeper")]
    found: dict[str, object] = {f"zookeeper:{path}": data for path, data in tree if fence or ROOT not in path}
    for node in (*cluster.plan.brokers, *cluster.plan.controllers):
        folder = Path(node.hosts.state)
        files = [path for path in folder.iterdir() if path.is_file() and path.name not in _NOT_A_FILE_OF_NOTE]
        files += [path for path in folder.glob("data/**/*") if path.name in {"meta.properties", "quorum-state"}]
        found |= {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
        found[f"process of {node.name}"] = NodeProcess(folder).find()
    return found


def with_broker(spec: ClusterSpec, broker: int, **hosts: Any) -> ClusterSpec:
    """The same cluster file with other `hosts` keys of one broker."""
    brokers = tuple(replace(node, hosts=replace(node.hosts, **hosts)) if node.id == broker else node for node in spec.brokers)
    return replace(spec, brokers=brokers)
