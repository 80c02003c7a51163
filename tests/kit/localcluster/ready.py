"""Ready means serving: ZooKeeper answers a read; every broker is registered and its metadata name all brokers."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from airflow_provider_kmigrate.clients.hosts import files
from airflow_provider_kmigrate.clients.wire import Wire
from airflow_provider_kmigrate.clients.zookeeper import ZooKeeper
from airflow_provider_kmigrate.core.cluster_state.model import ProcessState
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole, NodeSpec
from airflow_provider_kmigrate.core.node_files import properties
from airflow_provider_kmigrate.exceptions import Failed, KMigrateError, TimedOut
from tests.kit.localcluster import jaas, members
from tests.kit.localcluster.plan import HOST, Plan, folder_of
from tests.kit.processes import NodeProcess

_CALL_TIMEOUT = 3.0
_POLL = 0.05
_LINES, _WHOLE_LOG = 25, 1_000_000
_PORT_TAKEN = "Address already in use"


class PortTaken(Failed):
    """A node could not listen: another process took its port since it was chosen."""


def wait_for(folder: Path, condition: Callable[[], bool], deadline: float, what: str) -> None:
    """Until `condition`, as long as the process of `folder` lives. Raises `PortTaken`, `Failed` or, after `deadline`, `TimedOut`."""
    process = NodeProcess(folder)
    while not condition():
        if process.find().state is ProcessState.STOPPED:
            taken = _PORT_TAKEN in process.log_tail(_WHOLE_LOG)
            raise (PortTaken if taken else Failed)(f"{folder.name} ended before it served; {process.log_tail(_LINES)}")
        if time.monotonic() > deadline:
            raise TimedOut(f"{folder.name}: {what} did not come in time; {process.log_tail(_LINES)}")
        time.sleep(_POLL)


def wait_expired(node: NodeSpec, registry: ZooKeeper, deadline: float) -> None:
    """Until ZooKeeper has forgotten an earlier life of this broker, if it does not run.

    A broker that was killed stays registered until its session expires (18 s by default), and its next start ends at once with
    `NodeExistsException` as long as that lasts.
    """
    if node.role is NodeRole.CONTROLLER or NodeProcess(folder_of(node)).find().state is ProcessState.RUNNING:
        return
    while str(node.id) in registry.children("/brokers/ids"):
        if time.monotonic() > deadline:
            raise TimedOut(f"{node.name} does not run, but ZooKeeper still has an earlier session of it")
        time.sleep(_POLL)


def wait_registered(plan: Plan, registry: ZooKeeper, deadline: float) -> None:
    """Until every broker of ZooKeeper mode is under /brokers/ids."""

    def registered(node: NodeSpec) -> bool:
        return not in_zookeeper_mode(node) or str(node.id) in registry.children("/brokers/ids")

    for node in plan.brokers:
        wait_for(folder_of(node), partial(registered, node), deadline, "its registration in ZooKeeper")


def wait_serving(plan: Plan, deadline: float) -> None:
    """Until every broker answers and knows all others."""
    for node in plan.brokers:
        wait_for(folder_of(node), partial(knows_all, plan, node), deadline, "its knowledge of all brokers")


def zookeeper_answers(plan: Plan, folder: Path) -> bool:
    """`srvr` is answered with a version only by a server that serves reads: of an ensemble, by one with a majority."""
    try:
        with socket.create_connection((HOST, plan.ports[folder.name]), timeout=_CALL_TIMEOUT) as connection:
            connection.sendall(b"srvr")
            return connection.makefile("rb").read().startswith(b"Zookeeper version")
    except OSError:
        return False


def zookeeper_serves(plan: Plan, deadline: float) -> None:
    """Start every ZooKeeper server that does not run and wait until each serves; as `wait_for`."""
    for folder in plan.zookeeper_folders:
        members.start(folder)
    for folder in plan.zookeeper_folders:
        wait_for(folder, partial(zookeeper_answers, plan, folder), deadline, "an answer to a read")


def in_zookeeper_mode(node: NodeSpec) -> bool:
    """Whether the broker's properties make it register under /brokers/ids."""
    return "process.roles" not in properties.parse_properties(files.read(node.hosts.properties) or "")


def knows_all(plan: Plan, node: NodeSpec) -> bool:
    """Whether the broker answers Metadata and names every broker of the cluster."""
    try:
        with Wire(node.host, node.port, timeout=_CALL_TIMEOUT) as wire:
            return wire.metadata().broker_ids == {broker.id for broker in plan.brokers}
    except KMigrateError:
        return False


def registry(plan: Plan) -> ZooKeeper:
    """The cluster's part of ZooKeeper, over one session."""
    return ZooKeeper(jaas.settings(plan, plan.shape.chroot))
