"""A sweep over 10,000 consumer groups with a member and committed offsets, on 600 partitions of 50 topics and three real brokers.

`sweep_10k_groups_s`: what a roll reads of all groups before and after each restart, connections included; the median of the runs.
`decide_s`: what is decided on two of them. Each group has one member, whose JoinGroup, SyncGroup and OffsetCommit the wire client
sends; no process stands behind it. Each has committed other offsets in the twelve partitions of its topic.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from zlib import crc32

from confluent_kafka import Producer
from kafka.protocol.consumer.group import JoinGroupRequest, OffsetCommitRequest, SyncGroupRequest
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from airflow_provider_kmigrate.clients.admin import check
from airflow_provider_kmigrate.clients.group_reads import sweep
from airflow_provider_kmigrate.clients.wire import Wire
from airflow_provider_kmigrate.clients.wire_groups import Brokers
from airflow_provider_kmigrate.clients.znodes import batches
from airflow_provider_kmigrate.core.cluster_state.decision import Act, Verb
from airflow_provider_kmigrate.core.cluster_state.model import ClusterView
from airflow_provider_kmigrate.core.cluster_state.spec import GroupProgressSpec
from airflow_provider_kmigrate.core.member.group_seen import GroupSweep
from airflow_provider_kmigrate.core.migration.group_progress import WINDOW, GroupProgress, GroupsKept
from airflow_provider_kmigrate.exceptions import KMigrateError
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster.cluster import LocalCluster
from tests.kit.localcluster.plan import Shape

_TOPICS, _PARTITIONS, _RECORDS = 50, 12, 100  # each group reads one topic
_SESSION_MS = 1_800_000  # Kafka's longest: no member needs a heartbeat
_BATCH, _THREADS = 100, 64  # groups of one connection; each JoinGroup waits for 200 ms (group.initial.rebalance.delay.ms)


def main(arguments: Sequence[str], build: Path) -> dict[str, object]:
    """The flat figures of `readiness.json`."""
    parser = argparse.ArgumentParser(prog="readiness")
    parser.add_argument("--groups", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=5)
    chosen = parser.parse_args(arguments)
    cluster = LocalCluster(build / "readiness" / "cluster")
    cluster.clean()
    try:
        cluster.up(Shape(name="readiness", controllers=1))
        names = [f"team-{number % 37:02}.application-{number:05}" for number in range(chosen.groups)]
        planted = _plant(cluster, names)
        print(f"planted in {planted:.1f} s", flush=True)
        runs = [_swept(cluster, names) for _ in range(chosen.runs)]
    finally:
        cluster.clean()
    took = [seconds for seconds, _ in runs]
    return {
        "sweep_10k_groups_s": round(statistics.median(took), 3),
        "sweep_worst_s": round(max(took), 3),
        "decide_s": round(_decided(runs[0][1], runs[-1][1]), 3),
        "groups": chosen.groups,
        "topics": _TOPICS,
        "partitions_each": _PARTITIONS,
        "planting_s": round(planted, 3),
        "runs": chosen.runs,
    }


def _swept(cluster: LocalCluster, names: Sequence[str]) -> tuple[float, GroupSweep]:
    began = time.monotonic()
    found = sweep({"bootstrap.servers": cluster.bootstrap}, 5.0, [0, 1, 2])
    took = time.monotonic() - began
    lag = sum(place.records for group in found.groups.values() for place in group.places.values())
    planted = sum(_RECORDS - offset for name in names for offset in _planted(name))
    print(f"{len(found.groups)} groups, {lag} records behind, in {took:.2f} s", flush=True)
    if not found.whole or len(found.groups) != len(names) or lag != planted:
        raise AssertionError(
            f"{len(found.groups)} of {len(names)} groups, {lag} of {planted} records behind; unread {len(found.unread)}"
        )
    return took, found


def _decided(first: GroupSweep, last: GroupSweep) -> float:
    """Who makes progress, and whether all continue: with all groups waited for."""
    kept = GroupsKept(dict.fromkeys(first.groups, frozenset[str]()), first.groups)
    began = time.monotonic()
    progress = GroupProgress.of(GroupProgressSpec(), kept, WINDOW, 100.0)
    progress.add_view(ClusterView(100.0, group_progress=last), Act(Verb.RESTART, ""))
    return time.monotonic() - began


def _plant(cluster: LocalCluster, names: Sequence[str]) -> float:
    began = time.monotonic()
    properties = {"bootstrap.servers": cluster.bootstrap}
    create_topics(properties, [TopicPlan(f"topic-{number}", _PARTITIONS) for number in range(_TOPICS)])
    producer = Producer({**properties, "queue.buffering.max.messages": _TOPICS * _PARTITIONS * _RECORDS})
    for number in range(_TOPICS * _PARTITIONS * _RECORDS):
        topic, partition = divmod(number % (_TOPICS * _PARTITIONS), _PARTITIONS)
        producer.produce(f"topic-{topic}", b"x", partition=partition)
    if producer.flush(120):
        raise SystemExit("The brokers do not take the records.")
    with Brokers(properties, 60.0) as brokers:
        at: dict[tuple[str, int], list[str]] = {}
        for some in batches(names, 1_000):
            for name, address in _coordinators(brokers, some):
                at.setdefault(address, []).append(name)
    parts = [(address, part) for address, those in at.items() for part in batches(those, _BATCH)]
    with ThreadPoolExecutor(_THREADS) as threads:
        list(threads.map(lambda given: _join(*given), parts))
    return time.monotonic() - began


def _coordinators(brokers: Brokers, names: Sequence[str]) -> Iterator[tuple[str, tuple[str, int]]]:
    deadline = time.monotonic() + 60
    left = list(names)
    while left and time.monotonic() < deadline:
        found = brokers.find_coordinators(left)
        yield from ((name, each) for name, each in found.items() if not isinstance(each, KMigrateError))
        left = [name for name, each in found.items() if isinstance(each, KMigrateError)]
    if left:
        raise AssertionError(f"{len(left)} groups have no coordinator")


def _join(address: tuple[str, int], names: Sequence[str]) -> None:
    with Wire(*address, timeout=60.0) as wire:
        for name in names:
            _member(wire, name)


def _planted(name: str) -> list[int]:
    """What a group has committed in each partition: other offsets than another group, and nowhere everything."""
    return [crc32(f"{name} {partition}".encode()) % _RECORDS for partition in range(_PARTITIONS)]


def _topic_of(name: str) -> str:
    return f"topic-{crc32(name.encode()) % _TOPICS}"


def _member(wire: Wire, name: str) -> None:
    """One member of the group, which owns every partition of its topic and has committed in each."""
    topic_name = _topic_of(name)
    wants = bytes(ConsumerProtocolSubscription(version=0, topics=[topic_name], user_data=b"").encode())
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=wants)
    timeouts = {"session_timeout_ms": _SESSION_MS, "rebalance_timeout_ms": _SESSION_MS}
    joined = wire.ask(
        JoinGroupRequest, 3, 3, group_id=name, **timeouts, member_id="", protocol_type="consumer", protocols=[protocol]
    )
    check(joined.error_code, f"JoinGroup of {name}")
    who: dict[str, Any] = {"group_id": name, "member_id": joined.member_id}
    owns = ConsumerProtocolAssignment.TopicPartition(topic=topic_name, partitions=list(range(_PARTITIONS)))
    assigned = bytes(ConsumerProtocolAssignment(version=0, assigned_partitions=[owns], user_data=b"").encode())
    share = SyncGroupRequest.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=assigned)
    synced = wire.ask(SyncGroupRequest, 2, 2, **who, generation_id=joined.generation_id, assignments=[share])
    check(synced.error_code, f"SyncGroup of {name}")
    of_topic = OffsetCommitRequest.OffsetCommitRequestTopic
    places = [
        of_topic.OffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata="")
        for index, offset in enumerate(_planted(name))
    ]
    answer = wire.ask(
        OffsetCommitRequest,
        *(5, 5),
        **who,
        generation_id_or_member_epoch=joined.generation_id,
        topics=[of_topic(name=topic_name, partitions=places)],
    )
    for topic in answer.topics:
        for one in topic.partitions:
            check(one.error_code, f"OffsetCommit of {name}")
