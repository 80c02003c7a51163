"""A scan of many consumer groups that live on ZooKeeper: 1,000 groups of 3 old members on 20 topics of 12 partitions.

Real: one broker in ZooKeeper mode, its ZooKeeper with every znode of every group, the groups' commits in Kafka (the same offsets in both
stores, other ones for each group, so that the brokers answer for 1,000 groups, too), and every request of `groups scan`. Not real: the members are znodes of one
session, no process stands behind them. `groups_scanned_seconds` is one look at all groups from both sides; a scan makes two of them. `cpu_seconds`: processor time of
a look and its decisions, which other work on the machine does not lengthen.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient
from kazoo.client import KazooClient

from airflow_provider_kmigrate.clients.group_reads import seen
from airflow_provider_kmigrate.clients.settings import ZooKeeperSettings
from airflow_provider_kmigrate.clients.zookeeper import ZooKeeper
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.groups.scan import GroupSituation, TwoObservations, scan_group
from airflow_provider_kmigrate.core.member.group_seen import GroupSeen
from airflow_provider_kmigrate.core.member.registration import Registration, thread_id, write_registration
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster.cluster import LocalCluster
from tests.kit.localcluster.plan import Shape

_TOPICS, _PARTITIONS, _MEMBERS, _RECORDS = 20, 12, 3, 100  # each group reads one topic
_IN_FLIGHT = 8
_COMMITS = 100  # groups at a time


def main(arguments: Sequence[str], build: Path) -> dict[str, object]:
    """The flat figures of `groups_scan.json`."""
    parser = argparse.ArgumentParser(prog="groups_scan")
    parser.add_argument("--groups", type=int, default=1_000)
    parser.add_argument("--runs", type=int, default=3)
    chosen = parser.parse_args(arguments)
    cluster = LocalCluster(build / "groups_scan" / "cluster")
    cluster.clean()
    client = None
    try:
        cluster.up(Shape(name="scan", brokers=1, controllers=1))
        client = KazooClient(cluster.zookeeper, timeout=60)
        client.start(timeout=60)
        names = [f"team-{number % 37:02}-application-{number:04}" for number in range(chosen.groups)]
        planted = plant_groups(cluster, client, names)
        print(f"planted in {planted:.1f} s", flush=True)
        runs = [scan_once(cluster, chosen.groups) for _ in range(chosen.runs)]
    finally:
        if client is not None:
            client.stop()
            client.close()
        cluster.clean()
    return {
        "groups_scanned_seconds": round(statistics.median(run["look"] for run in runs), 3),
        "groups_scanned_worst_seconds": round(max(run["look"] for run in runs), 3),
        "decide_seconds": round(statistics.median(run["decide"] for run in runs), 3),
        "cpu_seconds": round(statistics.median(run["cpu"] for run in runs), 3),
        "groups": chosen.groups,
        "members_each": _MEMBERS,
        "topics": _TOPICS,
        "offsets_each": _PARTITIONS,
        "stores": 2,
        "planting_seconds": round(planted, 3),
        "runs": chosen.runs,
    }


def plant_groups(cluster: LocalCluster, client: KazooClient, names: Sequence[str]) -> float:
    """Write every znode and commit of these groups; the members live as long as the client. Returns the seconds that it took."""
    began = time.monotonic()
    properties = {"bootstrap.servers": cluster.bootstrap}
    create_topics(properties, [TopicPlan(f"topic-{number}", _PARTITIONS, 1) for number in range(_TOPICS)])
    producer = Producer(properties)
    for number in range(_TOPICS * _PARTITIONS * _RECORDS):
        topic, partition = divmod(number % (_TOPICS * _PARTITIONS), _PARTITIONS)
        producer.produce(f"topic-{topic}", b"x", partition=partition)
    if producer.flush(120):
        raise SystemExit("The broker does not take the records.")
    client.ensure_path("/consumers")
    _finished(_group(client, name) for name in names)
    admin = AdminClient(properties)
    for start in range(0, len(names), _COMMITS):
        commits = [ConsumerGroupTopicPartitions(name, _offsets(name)) for name in names[start : start + _COMMITS]]
        for one in [admin.alter_consumer_group_offsets([commit])[commit.group_id] for commit in commits]:
            one.result(60)
    return time.monotonic() - began


def _topic_of(name: str) -> str:
    return f"topic-{crc32(name.encode()) % _TOPICS}"


def _planted(name: str) -> list[int]:
    """A group's offset in each partition: other ones than another group's."""
    return [1 + crc32(f"{name} {partition}".encode()) % _RECORDS for partition in range(_PARTITIONS)]


def _offsets(name: str) -> list[KafkaPartition]:
    return [KafkaPartition(_topic_of(name), index, offset) for index, offset in enumerate(_planted(name))]


def _finished(requests: Iterable[Any]) -> None:
    waiting: deque[Any] = deque()
    for request in requests:
        waiting.append(request)
        if len(waiting) == _IN_FLIGHT:
            _committed(waiting.popleft())
    for request in waiting:
        _committed(request)


def _committed(request: Any) -> None:
    for result in request.get(60):
        if isinstance(result, Exception):
            raise result


def _group(client: KazooClient, name: str) -> Any:
    """One transaction with all that three old consumers at rest have there."""
    transaction = client.transaction()
    for path, data, ephemeral in _znodes(name):
        transaction.create(path, data, ephemeral=ephemeral)
    return transaction.commit_async()


def _znodes(name: str) -> Iterator[tuple[str, bytes, bool]]:
    root, topic = f"/consumers/{name}", _topic_of(name)
    consumers = [f"{name}_host{number}-1795226356133-c69eb14b" for number in range(_MEMBERS)]
    folders = ("", "/ids", "/owners", f"/owners/{topic}", "/offsets", f"/offsets/{topic}")
    yield from ((f"{root}{folder}", b"", False) for folder in folders)
    wants = write_registration(Registration("static", {topic: 1}, "1795226356203"))
    yield from ((f"{root}/ids/{consumer}", wants, True) for consumer in consumers)
    for index, offset in enumerate(_planted(name)):
        owner = thread_id(consumers[index * _MEMBERS // _PARTITIONS], 0)
        yield f"{root}/owners/{topic}/{index}", owner.encode(), True
        yield f"{root}/offsets/{topic}/{index}", f"{offset}".encode(), False


def scan_once(cluster: LocalCluster, expected: int) -> dict[str, float]:
    """One look with clients that are not connected yet, as the command has them."""
    with ZooKeeper(ZooKeeperSettings(cluster.zookeeper)) as zk:
        began, worked = time.monotonic(), time.process_time()
        found = seen(zk, {"bootstrap.servers": cluster.bootstrap})
        looked = time.monotonic()
    scans = [scan_group(TwoObservations(observed, settings={_topic_of(name): {}})) for name, observed in found.items()]
    decided, cpu = time.monotonic(), time.process_time() - worked
    _check(found, Counter(one.situation for one in scans), expected)
    figures = {"look": looked - began, "decide": decided - looked, "cpu": cpu}
    print(figures, flush=True)
    return figures


def _check(found: dict[str, GroupSeen], standings: Counter[GroupSituation], expected: int) -> None:
    """A figure counts only if everything was there to be read, and is what was planted."""
    whole = [name for name, observed in found.items() if _is_whole(name, observed)]
    if standings != {GroupSituation.ZOOKEEPER: expected} or len(whole) != expected:
        raise SystemExit(f"Not every group was read whole: {len(whole)} of {expected}, {dict(standings)}")


def _is_whole(name: str, observed: GroupSeen) -> bool:
    planted = {TopicPartition(_topic_of(name), index): offset for index, offset in enumerate(_planted(name))}
    zk = observed.zk
    if zk is None or zk.committed != planted or observed.committed != planted:
        return False
    return len(zk.owners) == _PARTITIONS and observed.ends == dict.fromkeys(planted, _RECORDS)
