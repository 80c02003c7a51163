"""The real thing: ZooKeeper, brokers and a controller as processes of this machine."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import cast

import psutil
import pytest
from kazoo.client import KazooClient

from airflow_provider_kmigrate.clients.hosts.agent import AgentHost
from airflow_provider_kmigrate.clients.wire import Wire
from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, Migration, ProcessState
from airflow_provider_kmigrate.core.cluster_state.spec import NodeSpec
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage
from airflow_provider_kmigrate.core.node_files.properties import RenderFacts, render_broker_file, render_controller_file
from airflow_provider_kmigrate.exceptions import Failed, KMigrateError, Refused
from tests.kit.localcluster import config, plan, ready, runtime
from tests.kit.localcluster.agents import agent_of
from tests.kit.localcluster.cluster import SHORT_SESSION, LocalCluster, lent
from tests.kit.localcluster.plan import Shape
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.long,
    pytest.mark.slow(seconds=130),
]  # of the kit itself, which every cluster test uses


def serves(cluster: LocalCluster, node: NodeSpec) -> bool:
    return ready.knows_all(cluster.plan, node)


def pids(cluster: LocalCluster) -> dict[str, int | None]:
    return {member.name: member.process.pid for member in cluster.status()}


def running(cluster: LocalCluster) -> set[str]:
    return {member.name for member in cluster.status() if member.runs}


def processes_in(folder: Path) -> list[int]:
    """Every process that works in this folder, whatever the cluster itself believes."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and Path(process.cwd()).is_relative_to(folder):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with lent(tmp_path_factory.mktemp("three"), Shape(controllers=1), SHORT_SESSION) as cluster:
        yield cluster


@pytest.fixture
def small(tmp_path: Path) -> Iterator[LocalCluster]:
    """Not up yet: one broker below a chroot."""
    cluster = LocalCluster(tmp_path / "small")
    try:
        yield cluster
    finally:
        cluster.clean()
        assert processes_in(tmp_path) == []


SMALL = Shape(name="small", brokers=1, controllers=1, racks=0, chroot="/kafka/one")


def test_up_is_up(three: LocalCluster) -> None:
    assert running(three) == {"zookeeper", "broker-0", "broker-1", "broker-2"}
    for node in three.plan.brokers:
        with Wire(node.host, node.port) as wire:
            assert wire.metadata().cluster_id == three.plan.cluster_id
            assert wire.api_versions().mode is BrokerMode.ZOOKEEPER


def test_up_twice_is_harmless(three: LocalCluster) -> None:
    before = pids(three)
    three.up()
    assert pids(three) == before


def test_a_broker_is_restarted_through_its_host(three: LocalCluster) -> None:
    node, first = three.plan.brokers[1], pids(three)["broker-1"]
    with agent_of(node, three.plan.cluster_id) as host:
        assert (host.observe(node).process().state, host.observe(node).process().pid) == (ProcessState.RUNNING, first), (
            "the agent finds what `up` started"
        )
        assert host.stop(node, 1) < 60
        assert host.observe(node).process().state is ProcessState.STOPPED
        assert not serves(three, node)
        host.start(node, 1)
        wait_until(lambda: serves(three, node), "the broker serves again")
        assert host.observe(node).process().pid not in (None, first)
    assert os.getsid(pids(three)["broker-1"] or 0) == pids(three)["broker-1"], "it has a session of its own"
    assert "broker-1" in running(three)


def test_a_restart_under_way_does_not_start_its_node_again_after_down(three: LocalCluster) -> None:
    node = three.plan.brokers[1]
    with agent_of(node, three.plan.cluster_id) as host:
        host.observe(node)
        connection = cast(AgentHost, host)._connection
        connection.ask("restart", role="broker", cluster=three.plan.cluster_id, token=1, job="r1", pause=3.0)
        wait_until(lambda: host.observe(node).process().state is ProcessState.STOPPED, "the node is stopped")
    three.down()
    assert processes_in(three.folder) == []
    time.sleep(4)
    assert running(three) == set(), "the job started it again"
    three.up()
    assert running(three) == {"zookeeper", "broker-0", "broker-1", "broker-2"}


def test_a_killed_broker_is_seen_and_brought_back(three: LocalCluster) -> None:
    """Its ZooKeeper session outlives it; a start before that expires would end at once."""
    pid = pids(three)["broker-2"]
    assert pid
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: "broker-2" not in running(three), "the kill is seen")
    three.up()
    assert running(three) == {"zookeeper", "broker-0", "broker-1", "broker-2"}


def migration_properties(cluster: LocalCluster) -> str:
    (node,) = cluster.plan.controllers
    return (
        f"process.roles=controller\nnode.id={node.id}\ncontroller.quorum.voters={node.id}@{node.endpoint}\n"
        f"listeners=CONTROLLER://{node.endpoint}\ncontroller.listener.names=CONTROLLER\n"
        "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT\ninter.broker.listener.name=PLAINTEXT\n"
        f"zookeeper.connect={cluster.zookeeper}\nzookeeper.metadata.migration.enable=true\nlog.dirs={node.log_dir}\n"
    )


def test_a_controller_is_provisioned_through_its_host_and_lives_as_long_as_the_cluster(three: LocalCluster) -> None:
    (node,) = three.plan.controllers
    cluster_id = three.plan.cluster_id
    with agent_of(node, cluster_id) as host:
        host.put_properties(node, migration_properties(three), 1)
        for _ in range(2):
            host.format_storage(node, cluster_id, "3.9-IV0", 1)
        assert (host.files(node).meta or {})[str(node.log_dir)]["cluster.id"] == cluster_id
        with pytest.raises(Refused):
            host.format_storage(node, "-AAAAAAAAAAAAAAAAAAAAA", "3.9-IV0", 1)
        host.start(node, 1)

    def leads() -> bool:
        with Wire(node.host, node.port) as wire:
            try:
                return wire.describe_quorum().leader_id == node.id and wire.api_versions().migration_ready
            except KMigrateError:
                return False

    wait_until(leads, "the controller leads and has the migration flag")
    three.down()
    assert running(three) == set()
    assert processes_in(three.folder) == []
    assert three.up().cluster_id == cluster_id
    assert "controller-3000" in running(three)
    wait_until(leads, "the controller leads again")


def test_format_takes_an_id_that_begins_with_a_dash(small: LocalCluster) -> None:
    found, cluster_id = plan.make(small.folder, SMALL), "-AAAAAAAAAAAAAAAAAAAAA"
    found.save()
    config.write(found, runtime.find())
    (node,) = found.controllers
    with agent_of(node, cluster_id) as host:
        host.put_properties(node, migration_properties(small), 1)
        host.format_storage(node, cluster_id, "3.9", 1)
        assert (host.files(node).meta or {})[str(node.log_dir)]["cluster.id"] == cluster_id


def test_one_broker_below_a_chroot(small: LocalCluster) -> None:
    small.up(SMALL)
    client = KazooClient(small.plan.zookeeper)
    client.start(10)
    try:
        assert client.get_children("/kafka/one/brokers/ids") == ["0"]
        assert set(client.get_children("/")) == {"kafka", "zookeeper"}
    finally:
        client.stop()
        client.close()


def test_a_port_that_was_taken_meanwhile_is_given_up(small: LocalCluster) -> None:
    first = plan.make(small.folder, SMALL)
    first.save()
    with socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        thief.bind((plan.HOST, first.ports["broker-0"]))
        thief.listen()
        found = small.up()
    assert found.ports["broker-0"] != first.ports["broker-0"]
    assert running(small) == {"zookeeper", "broker-0"}


def test_down_works_after_an_up_that_was_killed_and_up_goes_on(small: LocalCluster) -> None:
    argv = [sys.executable, "-m", "tests.kit.localcluster", "up", "--dir", str(small.folder)]
    shape = ["--name", "small", "--brokers", "1", "--controllers", "1"]
    with subprocess.Popen([*argv, *shape], stdout=subprocess.DEVNULL) as killed:
        wait_until((small.folder / "zookeeper" / "process.json").exists, "ZooKeeper was started")
        killed.kill()
    assert "zookeeper" in running(small)
    small.down()
    assert processes_in(small.folder) == []
    small.up()
    assert running(small) == {"zookeeper", "broker-0"}


def test_a_node_that_does_not_start_shows_its_log(small: LocalCluster) -> None:
    found = small.up(SMALL)
    small.down()
    path = Path(found.brokers[0].hosts.properties)
    path.write_text(path.read_text() + "num.io.threads=none\n")
    with pytest.raises(Failed, match=r"num\.io\.threads") as error:
        small.up()
    assert f"{small.folder}/broker-0/node.log" in str(error.value)


def test_a_migrated_cluster_comes_up_again_as_it_was_left(small: LocalCluster) -> None:
    """In dual-write: controllers start before brokers, and no broker is waited for in ZooKeeper. Then as it was before all that."""
    small.up(SMALL)
    small.snapshot("plain")
    assert processes_in(small.folder) == []
    found = small.up()
    (broker,), (controller,) = found.brokers, found.controllers
    original = Path(broker.hosts.properties).read_text()
    facts = RenderFacts(f"{controller.id}@{controller.endpoint}", "3.9-IV0")
    with agent_of(controller, found.cluster_id) as host:
        host.put_properties(controller, render_controller_file(original, controller, FileStage.CONTROLLER_MIGRATION, facts), 1)
        host.format_storage(controller, found.cluster_id, "3.9-IV0", 1)
        host.start(controller, 1)
    for stage, mode in ((FileStage.MIGRATION, BrokerMode.MIGRATION), (FileStage.KRAFT, BrokerMode.KRAFT)):
        with agent_of(broker, found.cluster_id) as host:
            host.stop(broker, 1)
            host.put_properties(broker, render_broker_file(original, stage, facts), 1)
            host.start(broker, 1)
        wait_until(partial(in_mode, broker, mode), f"the broker is in mode {mode}")
        wait_until(partial(kraft_owns, small), "the controllers took the cluster over")
    small.down()
    assert processes_in(small.folder) == []
    small.up()
    assert running(small) == {"zookeeper", "controller-3000", "broker-0"}
    assert in_mode(broker, BrokerMode.KRAFT)
    small.restore("plain")
    assert processes_in(small.folder) == []
    assert small.up() == found
    assert running(small) == {"zookeeper", "broker-0"}
    assert in_mode(broker, BrokerMode.ZOOKEEPER)
    with ready.registry(small.plan) as zookeeper:
        assert zookeeper.view().migration is None


def in_mode(node: NodeSpec, mode: BrokerMode) -> bool:
    try:
        with Wire(node.host, node.port) as wire:
            return wire.api_versions().mode is mode
    except KMigrateError:
        return False


def kraft_owns(cluster: LocalCluster) -> bool:
    with ready.registry(cluster.plan) as zookeeper:
        migration = zookeeper.view().migration
    return isinstance(migration, Migration) and migration.metadata_offset > 0
