"""One real cluster, and copies of it at points of its migration, so that a test of a disaster need not walk the road to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

from airflow_provider_kmigrate.core.cluster_state.decision import Done, Wait
from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, ClusterView, Fields, Migration, Reason
from airflow_provider_kmigrate.core.cluster_state.spec import NodeSpec
from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.steps.catalog import build
from airflow_provider_kmigrate.steps.run import StepContext, run_step
from benchmarks import direct
from tests.kit.account import judge_equal, kafka_of
from tests.kit.judge import Judgement
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster.cluster import SHORT_SESSION, LocalCluster
from tests.kit.localcluster.plan import Shape
from tests.system import evidence
from tests.system.by_hand import ByHand
from tests.waiting import wait_for, wait_until

TOPIC, PARTITIONS = "orders", 12
SESSION_S = 6.0  # of brokers and controllers in ZooKeeper (SHORT_SESSION)


class Point(StrEnum):
    """Where a copy was taken."""

    ALL_BUT_ONE = "first-roll"  # every broker but one in migration mode
    COPIED = "copied"  # every broker in migration mode, dual-write
    HYBRID = "hybrid"  # every broker but one in KRaft mode
    DUAL_WRITE = "dual-write"  # every broker in KRaft mode


@dataclass(frozen=True)
class Road:
    """Three brokers and controllers; `last` is the broker that ends each roll."""

    cluster: LocalCluster
    hands: ByHand
    last: dict[Point, int]

    def at(self, point: Point) -> ByHand:
        """The cluster as it was there, serving; with the hands that break it."""
        self.cluster.restore(point)
        self.cluster.up()
        self.wait(everybody_in_sync, "all replicas in sync")
        return self.hands

    def observe(self, what: Fields = evidence.EVERYTHING) -> ClusterView:
        with direct.context(self.cluster, "looking", acting=False) as here:
            return here.observer.observe(what)

    def wait(
        self, holds: Callable[[ClusterView], bool], what: str, fields: Fields = evidence.EVERYTHING, timeout: float = 90.0
    ) -> None:
        with direct.context(self.cluster, "looking", acting=False) as here:
            wait_for(lambda: here.observer.observe(fields), holds, what, timeout)

    def judged(self, seconds: float = 60.0) -> Judgement:
        """Whether both sides are equal, by what shares no line with kmigrate."""
        return judge_equal(self.cluster, kafka_of(self.cluster, self.cluster.folder.parent / "judge"), seconds)

    def topics_in_zookeeper(self) -> set[str]:
        with self.hands.zookeeper() as zookeeper:
            return set(zookeeper.get_children("/brokers/topics"))


def walk(folder: Path) -> Road:
    """Forward with kmigrate's own steps, and a copy at each point."""
    cluster = LocalCluster(folder / "cluster")
    cluster.plan_with(Shape(name="disasters", brokers=3, controllers=3), SHORT_SESSION)
    cluster.up()
    road = Road(cluster, ByHand(cluster), {})
    create_topics({"bootstrap.servers": cluster.bootstrap}, [TopicPlan(TOPIC, PARTITIONS, 3, {"min.insync.replicas": "2"})])
    with direct.context(cluster, "road") as here:
        direct.prepare(here)
        direct.provision(here)
        road.last[Point.ALL_BUT_ONE] = _all_but_one(here, BrokerMode.MIGRATION)
    _keep(road, Point.ALL_BUT_ONE)
    with direct.context(cluster, "road") as here:
        direct.roll(here, BrokerMode.MIGRATION)
        direct.copy(here)
    _keep(road, Point.COPIED)
    with direct.context(cluster, "road") as here:
        road.last[Point.HYBRID] = _all_but_one(here, BrokerMode.KRAFT)
    _keep(road, Point.HYBRID)
    with direct.context(cluster, "road") as here:
        direct.roll(here, BrokerMode.KRAFT)
    _keep(road, Point.DUAL_WRITE)
    return road


def _all_but_one(here: StepContext, target: BrokerMode) -> int:
    for _ in here.spec.brokers[1:]:
        direct.step(here, "roll", node=direct.to_roll(here, target), target=target)
    last = direct.to_roll(here, target)
    assert last is not None
    return last


def _keep(road: Road, point: Point) -> None:
    road.cluster.snapshot(point)
    road.cluster.up()
    road.wait(everybody_in_sync, "all replicas in sync")


def everybody_in_sync(view: ClusterView) -> bool:
    return bool(view.partitions) and not [p for p in view.partitions or () if p.is_under_replicated or p.leader < 0]


def asked(here: StepContext, kind: str, seconds: float = 4.0, **arguments: object) -> tuple[Reason, ...]:
    """Why a step of kmigrate does not act, asked for so long; it fails the test where the step ends or acts."""
    try:
        answer = run_step(build(here.spec, kind, arguments), here, sync_for=seconds)
    except Refused as refused:
        return refused.reasons
    assert isinstance(answer, Wait), answer
    return answer.reasons


def codes(reasons: tuple[Reason, ...]) -> set[str]:
    return {reason.code for reason in reasons}


def until_asked(here: StepContext, one_of: set[str], kind: str, **arguments: Any) -> None:
    """Until a step of kmigrate does not act for one of these reasons: on a busy machine a first look may be without a broker's answer."""
    wait_until(lambda: bool(one_of & codes(asked(here, kind, **arguments))), f"one of {one_of} of {kind}")


def done(here: StepContext, kind: str, **arguments: object) -> Done:
    """A step to its end."""
    answer = direct.step(here, kind, **arguments)
    assert isinstance(answer, Done), answer
    return answer


def create(bootstrap: str, topic: str) -> None:
    create_topics({"bootstrap.servers": bootstrap}, [TopicPlan(topic, 3, 3)])


def written(bootstrap: str, seconds: float = 20.0) -> set[int]:
    """The partitions that take a record with acks=all in that time."""
    acked: set[int] = set()
    producer = Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "message.timeout.ms": int(seconds * 1000), "log_level": 0}
    )
    for partition in range(PARTITIONS):
        producer.produce(TOPIC, b"x", partition=partition, on_delivery=lambda error, m: error or acked.add(m.partition()))  # type: ignore[arg-type]
    producer.flush(seconds + 5)
    return acked


def readable(bootstrap: str, prefix: bytes) -> set[bytes]:
    """All records of the topic that begin so, read to the ends that partitions have now."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.partition.eof": True, "log_level": 0})
    consumer.assign([TopicPartition(TOPIC, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
    found: set[bytes] = set()
    ended: set[int] = set()

    def read() -> bool:
        for message in consumer.consume(500, 1.0):
            if (error := message.error()) is None:
                found.add(message.value() or b"")
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())  # type: ignore[arg-type]
        return len(ended) == PARTITIONS

    try:
        wait_until(read, "the ends of all partitions")
    finally:
        consumer.close()
    return {value for value in found if value.startswith(prefix)}


def leader(view: ClusterView) -> int:
    assert view.quorum is not None
    return view.quorum.leader_id


def migration(view: ClusterView) -> Migration:
    assert view.zk is not None
    assert isinstance(view.zk.migration, Migration), view.zk.migration
    return view.zk.migration


def controller(hands: ByHand, number: int) -> NodeSpec:
    return next(node for node in hands.controllers if node.id == number)


def alive(view: ClusterView) -> set[int]:
    return {number for number, found in view.controllers.items() if found.answers}
