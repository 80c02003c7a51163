"""Three migrating members on three brokers with three replicas, while leaders, coordinators and brokers move: no record is lost.

Kafka's own description of rebalances asks for this: a coordinator that moves or restarts must not take members' partitions or their commits with it.
In either mode a member delivers only what it owns in ZooKeeper; what comes again after a disturbance was not committed before it.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from airflow_provider_kmigrate.applications.event_log import read_events
from airflow_provider_kmigrate.core.cluster_state.spec import NodeSpec
from airflow_provider_kmigrate.core.migration.coordinator import OFFSETS
from tests.consumer.migrating_group import Load, Member, again_after_commit, facts
from tests.consumer.real_group import PARTITIONS, goes_on, metric
from tests.kit.account import kafka_of, told_in
from tests.kit.judge import Kafka, judge_told
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster.cluster import LocalCluster, lent
from tests.kit.localcluster.plan import Shape
from tests.system import nodes
from tests.system.by_hand import ByHand
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(600)]
BROKERS = (0, 1, 2)
_REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
_ELECT = "org.apache.kafka.tools.LeaderElectionCommand"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with lent(tmp_path_factory.mktemp("disturbed") / "cluster", Shape(name="disturbed", controllers=1)) as there:
        yield there


@pytest.fixture
def group(cluster: LocalCluster, mode: str) -> str:
    """A group with a topic of its own, both of the same name, in that mode."""
    name = f"disturbed-{mode}"
    create_topics({"bootstrap.servers": cluster.bootstrap}, [TopicPlan(name, PARTITIONS, 3)])
    return name


class Disturbances:
    """What happens to the brokers; each returns when all replicas are in sync again."""

    def __init__(self, cluster: LocalCluster, kafka: Kafka, group: str) -> None:
        self.cluster, self.kafka, self.group = cluster, kafka, group

    def coordinator(self) -> NodeSpec:
        """The broker that coordinates the group now."""
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap})
        found = admin.describe_consumer_groups([self.group], request_timeout=20)[self.group].result(30).coordinator
        return next(node for node in self.cluster.plan.brokers if node.id == found.id)

    def move_leaders(self) -> None:
        """Every partition of the topic gets another leader."""
        leaders = self._leaders(self.group)
        self._reassign(self.group, lambda partition: [(leaders[partition] + 1 + n) % 3 for n in range(3)])

    def move_coordinators(self) -> None:
        """Every partition of `__consumer_offsets` leaves its leader, which deletes its replica, and is led by another one."""
        leaders = self._leaders(OFFSETS.name)
        self._reassign(OFFSETS.name, lambda partition: [other for other in BROKERS if other != leaders[partition]])
        self._reassign(OFFSETS.name, lambda partition: [(leaders[partition] + 1 + n) % 3 for n in range(3)])

    def restart_each(self) -> None:
        """One broker after another, the coordinator last."""
        last = self.coordinator()
        for node in sorted(self.cluster.plan.brokers, key=lambda node: node.id == last.id):
            process = nodes.of(node)
            assert process.wait_gone(process.signal(signal.SIGTERM), 60.0)
            self.cluster.up()
            self.await_in_sync()

    def cut_off_coordinator(self) -> None:
        """Longer than its session in ZooKeeper and the members' in its group, with its connections left open."""
        with nodes.paused(nodes.of(self.coordinator())):
            time.sleep(20.0)  # what is waited for is that nothing of it is said
        self.await_in_sync()

    def kill_coordinator(self) -> None:
        with nodes.dead(self.cluster.plan, self.coordinator()):
            pass
        self.await_in_sync()

    def await_in_sync(self) -> None:
        wait_until(self._is_in_sync, "all replicas are in sync", 120.0)

    def _is_in_sync(self) -> bool:
        topics = AdminClient({"bootstrap.servers": self.cluster.bootstrap}).list_topics(timeout=20).topics
        return all(
            len(partition.isrs) == 3 for name in (self.group, OFFSETS.name) for partition in topics[name].partitions.values()
        )

    def _leaders(self, topic: str) -> dict[int, int]:
        found = AdminClient({"bootstrap.servers": self.cluster.bootstrap}).list_topics(topic, timeout=20).topics[topic]
        return {number: partition.leader for number, partition in found.partitions.items()}

    def _reassign(self, topic: str, replicas: Callable[[int], list[int]]) -> None:
        before = self._leaders(topic)
        rows = [{"topic": topic, "partition": number, "replicas": replicas(number)} for number in sorted(before)]
        path = self.kafka.folder / "reassign.json"
        path.write_text(json.dumps({"version": 1, "partitions": rows}))
        servers = ("--bootstrap-server", self.kafka.bootstrap)
        self.kafka.run(_REASSIGN, *servers, "--reassignment-json-file", str(path), "--execute", seconds=60.0)
        wanted = {row["partition"]: set(row["replicas"]) for row in rows}  # type: ignore[call-overload]
        wait_until(lambda: self._replicas_in_sync(topic) == wanted, f"the replicas of {topic} have moved", 120.0)
        self.kafka.run(_ELECT, *servers, "--election-type", "preferred", "--all-topic-partitions", seconds=60.0)
        first = {number: replicas(number)[0] for number in before}
        wait_until(lambda: self._leaders(topic) == first, f"{topic} has other leaders", 60.0)

    def _replicas_in_sync(self, topic: str) -> dict[int, set[int]]:
        found = AdminClient({"bootstrap.servers": self.cluster.bootstrap}).list_topics(topic, timeout=20).topics[topic]
        return {
            number: set(partition.isrs) if set(partition.isrs) == set(partition.replicas) else set()
            for number, partition in found.partitions.items()
        }


def properties_of(cluster: LocalCluster, group: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": group,
        "zookeeper.connect": cluster.zookeeper,
        "zookeeper.session.timeout.ms": 6000,
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": 500,
        "coordination.migration.enabled": True,
        "session.timeout.ms": 10000,
        "log_level": 2,
    }


@pytest.mark.parametrize("mode", ["zookeeper", "kafka"])
def test_nothing_is_lost_while_leaders_coordinators_and_brokers_move(
    cluster: LocalCluster, group: str, mode: str, tmp_path: Path
) -> None:
    kafka = kafka_of(cluster, tmp_path / "kafka")
    kafka.folder.mkdir()
    folder, disturbances = tmp_path / "events", Disturbances(cluster, kafka, group)
    with ByHand(cluster).zookeeper() as zookeeper, ExitStack() as ends:
        zookeeper.create(f"/consumers/{group}/migration/mode", mode.encode(), makepath=True)
        members = tuple(ends.enter_context(Member(properties_of(cluster, group), folder, [group])) for _ in range(3))
        load = ends.enter_context(Load(cluster.bootstrap, folder, group, PARTITIONS))
        wait_until(lambda: all(metric(members, "KafkaOwnedPartitionsCount")), "Kafka has shared out, too", 90.0)
        following = [int(mode == "kafka")] * len(members)
        wait_until(lambda: metric(members, "ActiveKafkaCoordinationCount") == following, "all follow", 60.0)
        for disturb in (
            disturbances.move_leaders,
            disturbances.move_coordinators,
            disturbances.cut_off_coordinator,
            disturbances.kill_coordinator,
            disturbances.restart_each,
        ):
            disturb()
            wait_until(lambda: sum(len(member.owned) for member in members) == PARTITIONS, "all is owned", 90.0)
            goes_on(folder)
        load.end()
        wait_until(lambda: judge_told(told_in(folder), [group]).problems == (), "the rest comes", 120.0)
        for member in members:
            member.end()
    found = facts(folder)
    assert found.complete, found.reasons
    assert (found.lost.count, found.double_owned.count, found.reordered.count) == (0, 0, 0), found
    assert again_after_commit(read_events(folder).events) == [], "only what was not committed comes again"
    judgement = judge_told(told_in(folder), [group])
    assert (judgement.problems, judgement.doubts) == ((), ())
    assert judgement.acknowledged == found.acked
    assert [member.late for member in members] == [[], [], []]
