"""The observer on three real brokers: healthy, one killed, one suspended, and the wrong cluster."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError
from confluent_kafka.admin import AdminClient, NewTopic

from airflow_provider_kmigrate.clients.settings import ClusterSettings, KafkaSettings, WireSecurity, ZooKeeperSettings
from airflow_provider_kmigrate.clients.tools import WIRE_TIMEOUT, open_tools
from airflow_provider_kmigrate.clients.wire import Wire
from airflow_provider_kmigrate.clients.zookeeper import ZooKeeper
from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, ClusterView, Fields, ProcessState, ZkController
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, NodeSpec
from airflow_provider_kmigrate.core.migration import coordinator, equivalence
from airflow_provider_kmigrate.exceptions import WrongCluster
from airflow_provider_kmigrate.observe import Observer
from tests.kit.localcluster.agents import agent_of
from tests.kit.localcluster.cluster import LocalCluster
from tests.kit.localcluster.plan import folder_of
from tests.kit.processes import NodeProcess
from tests.waiting import wait_for, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.slow(seconds=30)]

ALL = Fields.BROKERS | Fields.ZOOKEEPER | Fields.GROUPS | Fields.PARTITIONS | Fields.MIN_INSYNC


def settings_of(cluster: LocalCluster, chroot: str) -> ClusterSettings:
    zookeeper = ZooKeeperSettings(cluster.plan.zookeeper, chroot)
    return ClusterSettings(zookeeper, KafkaSettings({"bootstrap.servers": cluster.bootstrap}), WireSecurity(), WireSecurity())


@pytest.fixture(scope="module")
def spec(cluster: LocalCluster) -> ClusterSpec:
    return ClusterSpec("real", cluster.plan.cluster_id, "zk", "kafka", cluster.plan.brokers, cluster.plan.controllers)


@pytest.fixture
def observer(cluster: LocalCluster, spec: ClusterSpec) -> Iterator[Observer]:
    with open_tools(settings_of(cluster, cluster.plan.shape.chroot)) as tools, Observer(spec, tools) as there:
        yield there


@pytest.fixture(scope="module")
def topic(cluster: LocalCluster) -> str:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    new = NewTopic("observed", 6, 3, config={"min.insync.replicas": "2"})
    for created in admin.create_topics([new]).values():
        error = created.exception(timeout=30)  # a second try is on the cluster of the first one
        assert error is None or error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    return "observed"


def whole(view: ClusterView) -> bool:
    everyone = frozenset(view.brokers)
    at_home = all(broker.in_zookeeper and broker.listed_by == everyone for broker in view.brokers.values())
    return at_home and bool(view.partitions) and not any(partition.is_under_replicated for partition in view.partitions or ())


def partitions_of(topic: str, view: ClusterView) -> int:
    return sum(partition.topic == topic for partition in view.partitions or ())


def pid_of(node: NodeSpec) -> int:
    pid = NodeProcess(folder_of(node)).find().pid
    assert pid is not None
    return pid


def suspend(pid: int) -> None:
    """On a crowded machine its threads run on, and answer, until the one that has to take the signal gets a core."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: states_of(pid) == {"T"}, "all its threads stopped", despite=(OSError,))


def states_of(pid: int) -> set[str]:
    """Of its threads, as proc(5) has them."""
    return {stat.read_text().rpartition(")")[2].split()[0] for stat in Path(f"/proc/{pid}/task").glob("*/stat")}


class TestHealthy:
    def test_a_whole_look(self, observer: Observer, spec: ClusterSpec, topic: str) -> None:
        view = wait_for(
            lambda: observer.observe(ALL), lambda seen: whole(seen) and partitions_of(topic, seen) == 6, "a whole cluster"
        )
        assert view.unknowns == ()
        assert view.kafka_cluster_id == spec.cluster_id
        assert view.modes() == dict.fromkeys((0, 1, 2), BrokerMode.ZOOKEEPER)
        assert view.zk is not None
        assert isinstance(view.zk.controller, ZkController)
        assert view.zk.controller.ephemeral
        assert {broker.controller_id for broker in view.brokers.values()} == {view.zk.controller.broker_id}
        assert view.zk.migration is None
        wait_for(lambda: observer.observe(ALL), lambda seen: (seen.min_insync or {}).get(topic) == 2, "the topic's limit")

    def test_observations_are_quick_over_kept_connections(self, observer: Observer, topic: str) -> None:
        observer.observe(ALL)
        assert min(observer.observe(ALL).took for _ in range(10)) < 0.2

    def test_processes_and_files(self, observer: Observer) -> None:
        view = observer.observe(Fields.PROCESSES | Fields.FILES)
        assert all(broker.process.state is ProcessState.RUNNING for broker in view.brokers.values())
        assert (view.brokers[2].files.properties or {})["broker.id"] == "2"
        assert all(controller.process.state is ProcessState.STOPPED for controller in view.controllers.values())
        assert view.unknowns == ()

    def test_controllers_that_do_not_exist_yet(self, observer: Observer, spec: ClusterSpec) -> None:
        view = observer.observe(Fields.CONTROLLERS | Fields.QUORUM)
        assert {reason.code for reason in view.unknowns} == {"G23", "G20"}
        assert not any(controller.answers for controller in view.controllers.values())

    def test_both_sides_hold_the_same_topics(self, observer: Observer, topic: str) -> None:
        view = observer.observe(Fields.TOPICS)
        assert view.topics is not None
        assert topic in view.topics[0]
        assert equivalence.compare_topics(*view.topics) == ()

    def test_the_count_of_the_offsets_topic(self, observer: Observer, cluster: LocalCluster) -> None:
        consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g"})
        consumer.subscribe(["observed"])
        consumer.poll(1.0)  # makes the brokers create the topic
        consumer.close()

        def counted(view: ClusterView) -> bool:
            return bool(list(coordinator.list_coordinator_topics(view))) and coordinator.brokers_agree(view).met

        what = Fields.COORDINATORS | Fields.PARTITIONS
        view = wait_for(lambda: observer.observe(what), counted, "a fingerprint of every broker")
        ((topic, counts, count),) = coordinator.list_coordinator_topics(view)
        assert (topic, count > 1, len(counts or {})) == (coordinator.OFFSETS, True, 3)
        assert all(count in possible for possible in (counts or {}).values())
        assert view.coordinators is not None
        assert set(view.coordinators.counts[coordinator.TRANSACTIONS.name].values()) == {frozenset()}, "not made by asking"

    def test_no_client_metrics_in_zookeeper_mode(self, observer: Observer) -> None:
        assert observer.observe(Fields.CLIENT_METRICS).client_metrics == ()


def test_a_follower_shows_the_ends_of_its_own_logs(observer: Observer, spec: ClusterSpec, topic: str) -> None:
    """As Kafka's debugging consumer asks; an ordinary consumer is sent to the leader."""
    wait_for(lambda: observer.observe(ALL), whole, "a whole cluster")
    (partition,) = [p for p in observer.observe(ALL).partitions or () if (p.topic, p.index) == (topic, 0)]
    follower = next(node for node in spec.brokers if node.id in partition.replicas and node.id != partition.leader)
    leader = next(node for node in spec.brokers if node.id == partition.leader)
    with Wire(follower.host, follower.port) as wire, Wire(leader.host, leader.port) as leading:
        assert wire.log_offsets([(topic, 0)], of_replicas=True) == leading.log_offsets([(topic, 0)])
        assert wire.log_offsets([(topic, 0)]) == {}


class TestTrouble:
    def test_a_suspended_broker_is_unknown_and_delays_no_other(self, observer: Observer, spec: ClusterSpec, topic: str) -> None:
        wait_for(lambda: observer.observe(ALL), whole, "a whole cluster")
        suspended = spec.brokers[0]
        pid = pid_of(suspended)
        try:
            suspend(pid)
            for _ in range(3):
                view = observer.observe(ALL)
                assert view.took < WIRE_TIMEOUT + 5.0
                assert view.brokers[0].mode is None
                assert view.partitions is not None, "the others reported"
                assert [reason.code for reason in view.unknowns] == ["R01"]
        finally:
            os.kill(pid, signal.SIGCONT)
        wait_for(lambda: observer.observe(ALL), whole, "the broker is back", timeout=120)

    def test_a_killed_broker_is_unknown_and_seen_again_after_its_start(
        self, observer: Observer, spec: ClusterSpec, topic: str
    ) -> None:
        wait_for(lambda: observer.observe(ALL), whole, "a whole cluster")
        killed = spec.brokers[1]
        os.kill(pid_of(killed), signal.SIGKILL)
        try:
            view = wait_for(lambda: observer.observe(ALL), lambda seen: seen.brokers[1].mode is None, "its silence")
            assert view.took < WIRE_TIMEOUT + 5.0
            assert [reason.code for reason in view.unknowns] == ["R01"]
        finally:
            # A ZooKeeper-mode broker ends at once if the registration of its former life is still there.
            wait_for(
                lambda: observer.observe(Fields.ZOOKEEPER), lambda seen: not seen.brokers[1].in_zookeeper, "the session's end"
            )
            with agent_of(killed, spec.cluster_id) as host:
                host.start(killed, token=0)
        wait_for(lambda: observer.observe(ALL), whole, "the broker is back", timeout=120)

    def test_another_cluster_id_ends_the_look(self, cluster: LocalCluster, spec: ClusterSpec) -> None:
        other = replace(spec, cluster_id="another")
        with (
            open_tools(settings_of(cluster, cluster.plan.shape.chroot)) as tools,
            Observer(other, tools) as observer,
        ):
            for what in (Fields.ZOOKEEPER, Fields.BROKERS):
                with pytest.raises(WrongCluster):
                    observer.observe(what)

    def test_a_wrong_chroot_ends_the_look_and_is_not_made(self, cluster: LocalCluster, spec: ClusterSpec) -> None:
        with open_tools(settings_of(cluster, "/wrong")) as tools, Observer(spec, tools) as observer, pytest.raises(WrongCluster):
            observer.observe(Fields.ZOOKEEPER)
        with ZooKeeper(ZooKeeperSettings(cluster.plan.zookeeper)) as root:
            assert "wrong" not in root.children("/")
