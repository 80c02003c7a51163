"""What can break while a step waits, one trouble each: links through the proxy, nodes, ZooKeeper, disks; and what the step must say then."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from airflow_provider_kmigrate.clients.wire import Wire, describe_log_dirs
from airflow_provider_kmigrate.core.cluster_state.model import Fields
from airflow_provider_kmigrate.core.cluster_state.spec import NodeSpec
from airflow_provider_kmigrate.core.migration import roll
from airflow_provider_kmigrate.exceptions import KMigrateError
from tests.kit.localcluster.jaas import kazoo_options
from tests.kit.localcluster.plan import Plan, folder_of
from tests.kit.processes import NodeProcess
from tests.system import disks, proxy
from tests.system.journey import Journey, Trouble
from tests.system.linked import OF_CONTROLLERS, ZOOKEEPER, between, to
from tests.system.nodes import down, of, paused
from tests.system.proxy import Fault
from tests.waiting import wait_until

NO_ZOOKEEPER = r"ZooKeeper (could not be|was not) read|Could not read ZooKeeper|ZooKeeper 127[^\n]*(no session|Loss|Timeout)"
NOT_WRITTEN = r"/migration has not advanced|has not written to ZooKeeper|dual-write lag"
_JUNK = "/junk"
_FENCED_S = 20.0
_ENDS_S = 20.0
_FAILS_S = 60.0


def no_broker(node: NodeSpec) -> str:
    return rf"(answer[^:|]*: [\d, ]*\b{node.id}\b|Broker {node.id}\b|Brokers that do not answer in KRaft mode: [\d, ]*\b{node.id}\b)[^|]*"


def no_controller(node: NodeSpec) -> str:
    return rf"(Controller {node.id} does not answer|Controllers that do not answer: [\d, ]*{node.id}|no leader|KRaft quorum)[^|]*"


def cut(journey: Journey, fault: Fault, node: NodeSpec) -> Trouble:
    """The tool's link to one node."""
    named = no_controller(node) if node in journey.cluster.plan.controllers else no_broker(node)
    return Trouble(f"tool cut off from {node.name}: {fault.name}", named, partial(journey.broken, fault, to(node)))


def cut_from_zookeeper(journey: Journey, fault: Fault) -> Trouble:
    return Trouble(f"tool cut off from ZooKeeper: {fault.name}", NO_ZOOKEEPER, partial(journey.broken, fault, ZOOKEEPER))


def controllers_cut_off(journey: Journey, fault: Fault) -> Trouble:
    made = partial(journey.broken, fault, OF_CONTROLLERS)
    return Trouble(f"controllers cut off from ZooKeeper: {fault.name}", NOT_WRITTEN, made)


def controllers_cut_off_midway(journey: Journey) -> Trouble:
    """After /migration has moved in the same life of the step; another trouble holds it until that can be seen to be over."""
    made = partial(journey.broken, proxy.REFUSED, OF_CONTROLLERS)
    return Trouble("controllers cut off from ZooKeeper midway: refused", NOT_WRITTEN, made, overlap=2 * roll.WINDOW + 5.0)


def cut_from_controllers(journey: Journey, node: NodeSpec, fault: Fault) -> Trouble:
    """A broker that no other node misses at first: the controllers fence it when they have not heard of it for 9 s."""
    named = rf"(under-replicated|Broker {node.id} is not yet known as alive)[^|]*"
    links = [between(node, one) for one in journey.cluster.plan.controllers]
    return Trouble(
        f"{node.name} cut off from every controller: {fault.name}", named, partial(journey.broken, fault, *links), _FENCED_S
    )


def stopped(journey: Journey, node: NodeSpec) -> Trouble:
    named = no_controller(node) if node in journey.cluster.plan.controllers else no_broker(node)
    return Trouble(f"{node.name} SIGSTOPped", named, partial(paused, of(node)))


def zookeeper_stopped(journey: Journey) -> Trouble:
    return Trouble("ZooKeeper SIGSTOPped", NO_ZOOKEEPER, partial(paused, NodeProcess(journey.cluster.plan.zookeeper_folder)))


def zookeeper_killed(journey: Journey) -> Trouble:
    process = NodeProcess(journey.cluster.plan.zookeeper_folder)
    return Trouble("ZooKeeper SIGKILLed", NO_ZOOKEEPER, partial(down, process, journey.cluster))


def active_stopped(journey: Journey) -> Trouble:
    """The controller that leads by then. When it resumes, another has been elected, and it may write nothing any more."""

    @contextmanager
    def made() -> Iterator[None]:
        with paused(of(active(journey))):
            yield

    named = "|".join(no_controller(node) for node in journey.cluster.plan.controllers)
    return Trouble("active controller SIGSTOPped", named, made)


def disk_full(journey: Journey, node: NodeSpec, directory: int = 0) -> Trouble:
    """Of a broker with several log directories: the one of this index, which alone the broker then gives up, or ends over."""
    named = no_controller(node) if node in journey.cluster.plan.controllers else f"{no_broker(node)}|under-replicated[^|]*"
    folders = journey.cluster.log_dirs_of(node)
    what = f"log directory {directory + 1} of {node.name}" if len(folders) > 1 else f"disk of {node.name}"
    return Trouble(f"{what} full", named, partial(_disk_full, journey, node, folders[directory]))


@contextmanager
def _disk_full(journey: Journey, node: NodeSpec, folder: Path) -> Iterator[None]:
    """A node that met it is killed and started again, with room."""
    try:
        with disks.full(folder):
            if node in journey.cluster.plan.controllers:
                _change_until_it_ends(journey.cluster.bootstrap, of(node))
            elif len(journey.cluster.log_dirs_of(node)) > 1:
                wait_until(partial(_has_failed, node), f"{folder} fails", _FAILS_S, (KMigrateError,))
            yield
    finally:
        journey.diary.print(f"over: {node.name} {'has ended' if of(node).find().pid is None else 'still runs'}")
        of(node).wait_gone(of(node).signal(signal.SIGKILL), 30.0)
        journey.cluster.up()


def _has_failed(node: NodeSpec) -> bool:
    """Whether the broker has given up a directory, or has ended over it, as in migration mode (3.9.2)."""
    if of(node).find().pid is None:
        return True
    with Wire(node.host, node.port, timeout=5.0) as wire:
        return any(directory.error for directory in describe_log_dirs(wire))


def _change_until_it_ends(bootstrap: str, process: NodeProcess) -> None:
    """The last page of its log takes what a quiet quorum writes in half a minute; a setting that changes nothing of note is more."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = min(name for name in admin.list_topics(timeout=20.0).topics if not name.startswith("_"))

    def change(operation: AlterConfigOpType, value: str) -> None:
        entry = ConfigEntry("segment.ms", value, incremental_operation=operation)
        [done] = admin.incremental_alter_configs([ConfigResource("topic", topic, incremental_configs=[entry])]).values()
        with contextlib.suppress(KafkaException, TimeoutError):  # where the one that ends is the active one
            done.result(20.0)

    deadline, number = time.monotonic() + _ENDS_S, 600_000_000
    while process.find().pid is not None and time.monotonic() < deadline:
        change(AlterConfigOpType.SET, str(number := number + 1))
    change(AlterConfigOpType.DELETE, "")


@contextmanager
def zookeeper_disk_full(journey: Journey) -> Iterator[None]:
    """Written to until it ends, started again with room afterwards."""
    plan = journey.cluster.plan
    process = NodeProcess(plan.zookeeper_folder)
    try:
        with disks.full(plan.zookeeper_folder / "transactions"):
            _write_until_it_ends(plan, process)
            yield
    finally:
        process.wait_gone(process.signal(signal.SIGKILL), 30.0)
        journey.cluster.up()
        with _session(plan) as keeper:
            keeper.delete(_JUNK)


def _write_until_it_ends(plan: Plan, process: NodeProcess) -> None:
    """Its log grows by what is written, and it does not survive that it cannot."""
    with _session(plan) as keeper, contextlib.suppress(KazooException, KazooTimeoutError):
        keeper.ensure_path(_JUNK)
        while process.find().pid is not None:
            keeper.set_async(_JUNK, b"x" * 500_000).get(timeout=5.0)


@contextmanager
def _session(plan: Plan) -> Iterator[KazooClient]:
    keeper = KazooClient(plan.zookeeper, **kazoo_options(plan))
    keeper.start(timeout=20.0)
    try:
        yield keeper
    finally:
        keeper.stop()
        keeper.close()


def data(node: NodeSpec) -> Path:
    return folder_of(node) / "data"


def active(journey: Journey) -> NodeSpec:
    quorum = journey.observe(Fields.QUORUM | Fields.CONTROLLERS).quorum
    if quorum is None:
        raise AssertionError("no controller leads")
    return next(node for node in journey.cluster.plan.controllers if node.id == quorum.leader_id)
