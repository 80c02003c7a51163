"""A ZooKeeper of three servers: one may die at any time, and without a majority the tool holds, says so, and changes nothing."""

from __future__ import annotations

import re
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode
from airflow_provider_kmigrate.steps.run import StepContext
from benchmarks import direct
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster.cluster import LocalCluster, lent
from tests.kit.localcluster.plan import HOST, Shape
from tests.kit.processes import NodeProcess
from tests.system.journey import Journey, Trouble
from tests.system.linked import links_of
from tests.system.troubles import NO_ZOOKEEPER, stopped

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture
def journey(tmp_path: Path) -> Iterator[Journey]:
    shape = Shape("ensemble", brokers=1, controllers=1, racks=0, zookeepers=3)
    with lent(tmp_path / "cluster", shape) as cluster, links_of(cluster.plan) as links:  # no cell breaks a link
        create_topics({"bootstrap.servers": cluster.bootstrap}, [TopicPlan("orders", 4)])
        yield Journey(cluster, links)


def leader(cluster: LocalCluster) -> Path:
    """The folder of the server that leads."""
    return next(folder for folder in cluster.plan.zookeeper_folders if mode(cluster.plan.ports[folder.name]) == "leader")


def mode(port: int) -> str:
    with socket.create_connection((HOST, port), timeout=5.0) as connection:
        connection.sendall(b"srvr")
        found = re.search(r"Mode: (\w+)", connection.makefile().read())
    return found.group(1) if found else "none"


@contextmanager
def dead(cluster: LocalCluster, count: int) -> Iterator[None]:
    """The leader first."""
    first = leader(cluster)
    others = [folder for folder in cluster.plan.zookeeper_folders if folder != first]
    for folder in (first, *others)[:count]:
        process = NodeProcess(folder)
        process.wait_gone(process.signal(signal.SIGKILL), 30.0)
    try:
        yield
    finally:
        cluster.up()


def without_a_leader(journey: Journey, steps: Callable[[StepContext], None]) -> None:
    def made() -> str:
        with dead(journey.cluster, 1):
            journey.steps(steps)
        return "done"

    journey.cell("ZooKeeper's leader of three servers SIGKILLed", "goes on", made)


def without_a_majority(journey: Journey, target: BrokerMode) -> None:
    """It begins while the step waits for something else, so that the step is in the middle of its looks."""
    (controller,) = journey.cluster.plan.controllers
    lost = Trouble("two of three ZooKeeper servers SIGKILLed", NO_ZOOKEEPER, partial(dead, journey.cluster, 2))
    journey.series("roll", [stopped(journey, controller), lost], node=0, target=target)


def copied(context: StepContext) -> None:
    direct.roll(context, BrokerMode.MIGRATION)  # no broker is left to be rolled; what comes after a pass
    direct.copy(context)


def test_a_migration_whose_zookeeper_loses_servers(journey: Journey) -> None:
    journey.steps(direct.prepare)
    journey.enter("controllers")
    without_a_leader(journey, direct.provision)
    journey.enter("first roll")
    without_a_majority(journey, BrokerMode.MIGRATION)
    journey.enter("copy")
    without_a_leader(journey, copied)
    journey.enter("second roll")
    without_a_majority(journey, BrokerMode.KRAFT)
    failed = [cell for cell in journey.cells if not cell.passed]
    assert not failed, failed
    assert len(journey.cells) == 6  # in each roll the controller's own, too
    assert journey.observe().brokers[0].mode is BrokerMode.KRAFT
