"""What it costs to know who coordinates each group: 10,000 groups and 100 brokers in memory, 200 groups on three real brokers.

`classify_s`: the class of each group while half of the brokers use another count, with the hash of every name; the median of the runs.
`forecast_s`: which groups a whole roll moves, in the calmest order, and what each restart does. `check_s`: one run of the step of
`CoordinatorConsistencySensor` on real brokers, connections included.

`repair_100m_mb`: what a repair takes in memory where the topic holds 100 million records of `repair_offsets` committed partitions, each in two
partitions of the topic (`benchmarks.repair_memory`).

Then `__consumer_offsets` of the real cluster goes from 10 to 20 partitions, while 60 of the groups are live; those that move are stopped.
`split`, `blackout`: groups that two brokers accept afterwards, or none. `revived`: groups with a commit in another partition of the raw log than
their own. `wrong_offsets`: groups that moved whose offsets are not what they were before, groups at rest whose twelve offsets are not those that were
planted, other ones for each, and groups that lost a record or got one again although its commit had succeeded. `expansion_s`: the whole of it; `stall_s`: the longest time that a live group which stays was without a commit.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from zlib import crc32

from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from airflow_provider_kmigrate.clients import wire_groups
from airflow_provider_kmigrate.core.cluster_state.model import Expansion
from airflow_provider_kmigrate.core.migration.coordinator import Coordinators, find_calmest_order, forecast_roll, hash_group
from airflow_provider_kmigrate.core.migration.plan import EXPANSION
from airflow_provider_kmigrate.core.offsets_topic.expansion import is_moved_by
from airflow_provider_kmigrate.exceptions import KMigrateError
from airflow_provider_kmigrate.steps.catalog import run_plan
from airflow_provider_kmigrate.steps.run import StepContext
from benchmarks import direct, repair_memory
from tests.kit.live_groups import Committed, LiveGroups, committed, raw_commits
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster.cluster import LocalCluster
from tests.kit.localcluster.plan import Shape

MUST_BE_ZERO = ("split", "blackout", "revived", "wrong_offsets")
_LIVE, _TARGET = 60, 20
_TOPIC, _PARTITIONS, _RECORDS = "orders", 12, 200  # records in each partition


def main(arguments: Sequence[str], build: Path) -> dict[str, object]:
    """The flat figures of `coordinator.json`."""
    parser = argparse.ArgumentParser(prog="coordinator")
    parser.add_argument("--groups", type=int, default=10_000)
    parser.add_argument("--brokers", type=int, default=100)
    parser.add_argument("--real", type=int, default=200, help="groups on real brokers; 0: no real brokers")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--repair", type=int, default=200_000, help="committed partitions that a repair reads; 0: none")
    chosen = parser.parse_args(arguments)
    names = [f"team-{number % 37:02}.application-{number:05}" for number in range(chosen.groups)]
    known = _half_restarted(chosen.brokers)
    figures: dict[str, object] = {
        "classify_s": _median(chosen.runs, lambda: known.classify_groups(names)),
        "forecast_s": _median(chosen.runs, lambda: _forecast(known, names)),
        "groups": chosen.groups,
        "brokers": chosen.brokers,
        "runs": chosen.runs,
    }
    if chosen.repair:
        figures |= {"repair_offsets": chosen.repair, "repair_100m_mb": repair_memory.megabytes_of(100_000_000, chosen.repair)}
    return figures | (_real(build / "coordinator" / "cluster", chosen.real, chosen.runs) if chosen.real else {})


def _half_restarted(brokers: int) -> Coordinators:
    leaders = {partition: partition * partition % brokers for partition in range(100)}
    return Coordinators({broker: 100 if broker % 2 else 50 for broker in range(brokers)}, leaders, len(leaders))


def _forecast(known: Coordinators, names: Sequence[str]) -> None:
    moving, done = known.count_moving_groups(names), known.list_restarted_brokers()
    forecast_roll(moving, done, find_calmest_order(moving, done, known.counts.keys() - done))


def _median(runs: int, work: Callable[[], object]) -> float:
    return round(statistics.median(_seconds(work) for _ in range(runs)), 3)


def _seconds(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def _real(folder: Path, groups: int, runs: int) -> dict[str, object]:
    cluster = LocalCluster(folder)
    cluster.clean()
    try:
        cluster.up(Shape(name="coordinator", brokers=3, controllers=1))
        names = [f"real-{number:03}" for number in range(groups)]
        _commit(cluster, names)

        def checked() -> None:
            with direct.context(cluster, acting=False) as here:
                print(direct.step(here, "coordinators"), flush=True)

        figures: dict[str, object] = {"check_s": _median(runs, checked), "real_groups": groups}
        return figures | _expanded(cluster, names)
    finally:
        cluster.clean()


def _expanded(cluster: LocalCluster, names: Sequence[str]) -> dict[str, object]:
    moving = [name for name in names if is_moved_by(name, Expansion((10,), _TARGET))]
    with LiveGroups(cluster.bootstrap, _TOPIC) as live, direct.context(cluster, "expansion") as here:
        live.start(names[:_LIVE])
        while not all(live.groups[name].safe for name in names[:_LIVE]):
            time.sleep(0.2)
        live.stop([name for name in names[:_LIVE] if name in moving])
        before, staying = committed(cluster.bootstrap, moving), [name for name in names[:_LIVE] if name not in moving]
        live.stalled(staying)
        began = time.monotonic()
        run_plan(here, EXPANSION[:-1], {"partitions": _TARGET})
        took, stall = time.monotonic() - began, live.stalled(staying)
        after, accepted = committed(cluster.bootstrap, moving), _accepted(here, names)
        resting = names[_LIVE:]
        wrong = {name for name, found in committed(cluster.bootstrap, resting).items() if _differ(name, found)}
        live.start([name for name in names[:_LIVE] if name in moving])
        run_plan(here, EXPANSION[-1:], {"partitions": _TARGET})
        wrong |= {name for name in moving if before[name] != after[name]} | {n for n, group in live.groups.items() if group.wrong}
    raw = raw_commits(cluster.bootstrap)
    living = {(key[0], row.partition) for key, rows in raw.items() for row in rows if row.offset is not None}
    return {
        "expansion_s": round(took, 1),
        "stall_s": stall,
        "live_groups": _LIVE,
        "moved_groups": len(moving),
        "split": sum(one > 1 for one in accepted),
        "blackout": accepted.count(0),
        "revived": sum(partition != hash_group(group) % _TARGET for group, partition in living),
        "wrong_offsets": len(wrong),
    }


def _commit(cluster: LocalCluster, names: Sequence[str]) -> None:
    properties = {"bootstrap.servers": cluster.bootstrap}
    create_topics(properties, [TopicPlan(_TOPIC, _PARTITIONS, 3)])
    producer = Producer(properties)
    for number in range(_PARTITIONS * _RECORDS):
        producer.produce(_TOPIC, b"a record", partition=number % _PARTITIONS)
    if producer.flush(60):
        raise SystemExit("The brokers do not take the records.")
    admin = AdminClient(properties)
    planted = {name: _planted(name) for name in names}
    commits = [
        ConsumerGroupTopicPartitions(name, [TopicPartition(_TOPIC, partition, offset) for partition, offset in offsets.items()])
        for name, offsets in planted.items()
    ]
    for one in [admin.alter_consumer_group_offsets([commit])[commit.group_id] for commit in commits]:
        one.result(60)


def _planted(name: str) -> dict[int, int]:
    """A group's offsets: other ones than another group's, and none of them 0."""
    return {partition: 1 + crc32(f"{name} {partition}".encode()) % _RECORDS for partition in range(_PARTITIONS)}


def _differ(name: str, found: Mapping[tuple[str, int], Committed]) -> bool:
    return {where[1]: one.offset for where, one in found.items()} != _planted(name)


def _accepted(here: StepContext, names: Sequence[str]) -> list[int]:
    """How many brokers take themselves for the coordinator of each group."""
    described = [wire_groups.describe_groups_at(here.tools.wire(node), names) for node in here.spec.brokers]
    return [sum(not isinstance(one[name], KMigrateError) for one in described) for name in names]
