"""A scan of many consumer groups that live on ZooKeeper: 1,000 groups of 3 old members on one topic of 6 partitions.

Real: one broker in ZooKeeper mode, its ZooKeeper with every znode of every group, the groups' commits in Kafka (the same offsets in both
stores, so that the brokers answer for 1,000 groups, too), and every request of `groups scan`. Not real: the members are znodes of one
session, no process stands behind them. `groups_scanned_seconds` is one look at all groups from both sides; a scan makes two of them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient
from kazoo.client import KazooClient

from airflow_provider_kmigrate.clients.group_reads import seen
from airflow_provider_kmigrate.clients.settings import ZooKeeperSettings
from airflow_provider_kmigrate.clients.zookeeper import ZooKeeper
from airflow_provider_kmigrate.core.coordination.group_seen import GroupSeen
from airflow_provider_kmigrate.core.coordination.registration import Registration, thread_id, write_registration
from airflow_provider_kmigrate.core.groups.scan import GroupSituation, TwoObservations, scan
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster.cluster import LocalCluster
from tests.kit.localcluster.plan import Shape

_TOPIC, _PARTITIONS, _MEMBERS = "orders", 6, 3
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
        planted = _plant(cluster, client, names)
        print(f"planted in {planted:.1f} s", flush=True)
        runs = [_run(cluster, chosen.groups) for _ in range(chosen.runs)]
    finally:
        if client is not None:
            client.stop()
            client.close()
        cluster.clean()
    return {
        "groups_scanned_seconds": round(statistics.median(run["look"] for run in runs), 3),
        "groups_scanned_worst_seconds": round(max(run["look"] for run in runs), 3),
        "decide_seconds": round(statistics.median(run["decide"] for run in runs), 3),
        "groups": chosen.groups,
        "members_each": _MEMBERS,
        "offsets_each": _PARTITIONS,
        "stores": 2,
        "planting_seconds": round(planted, 3),
        "runs": chosen.runs,
    }


def _plant(cluster: LocalCluster, client: KazooClient, names: Sequence[str]) -> float:
    began = time.monotonic()
    properties = {"bootstrap.servers": cluster.bootstrap}
    create_topics(properties, [TopicPlan(_TOPIC, _PARTITIONS, 1)])
    client.ensure_path("/consumers")
    _finished(_group(client, name) for name in names)
    admin = AdminClient(properties)
    for start in range(0, len(names), _COMMITS):
        commits = [ConsumerGroupTopicPartitions(name, _offsets()) for name in names[start : start + _COMMITS]]
        for one in [admin.alter_consumer_group_offsets([commit])[commit.group_id] for commit in commits]:
            one.result(60)
    return time.monotonic() - began


def _offsets() -> list[KafkaPartition]:
    return [KafkaPartition(_TOPIC, index, 0) for index in range(_PARTITIONS)]


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
    root = f"/consumers/{name}"
    consumers = [f"{name}_host{number}-1795226356133-c69eb14b" for number in range(_MEMBERS)]
    folders = ("", "/ids", "/owners", f"/owners/{_TOPIC}", "/offsets", f"/offsets/{_TOPIC}")
    yield from ((f"{root}{folder}", b"", False) for folder in folders)
    wants = write_registration(Registration("static", {_TOPIC: 1}, "1795226356203"))
    yield from ((f"{root}/ids/{consumer}", wants, True) for consumer in consumers)
    for index in range(_PARTITIONS):
        owner = thread_id(consumers[index * _MEMBERS // _PARTITIONS], 0)
        yield f"{root}/owners/{_TOPIC}/{index}", owner.encode(), True
        yield f"{root}/offsets/{_TOPIC}/{index}", b"0", False


def _run(cluster: LocalCluster, expected: int) -> dict[str, float]:
    """One look with clients that are not connected yet, as the command has them."""
    with ZooKeeper(ZooKeeperSettings(cluster.zookeeper)) as zk:
        began = time.monotonic()
        found = seen(zk, {"bootstrap.servers": cluster.bootstrap})
        looked = time.monotonic()
    scans = [scan(TwoObservations(observed, settings={_TOPIC: {}})) for observed in found.values()]
    decided = time.monotonic()
    _check(found, Counter(one.situation for one in scans), expected)
    figures = {"look": looked - began, "decide": decided - looked}
    print(figures, flush=True)
    return figures


def _check(found: dict[str, GroupSeen], standings: Counter[GroupSituation], expected: int) -> None:
    """A figure counts only if everything was there to be read."""
    whole = [
        observed
        for observed in found.values()
        if observed.zk is not None
        and len(observed.zk.offsets)
        == len(observed.zk.owners)
        == len(observed.committed or ())
        == len(observed.ends or ())
        == _PARTITIONS
    ]
    if standings != {GroupSituation.ZOOKEEPER: expected} or len(whole) != expected:
        raise SystemExit(f"Not every group was read whole: {len(whole)} of {expected}, {dict(standings)}")
