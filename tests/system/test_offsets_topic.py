"""`__consumer_offsets` gets more partitions on real brokers under 60 live groups: whole with us, in ZooKeeper mode and in KRaft mode.

The same by hand is broken (`test_coordinators.py`). What became of the offsets is read by librdkafka, which asks each group's coordinator,
and from the raw log of the topic; neither uses anything of kmigrate's. Records show whether a group lost any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka.admin import NewPartitions

from airflow_provider_kmigrate.clients.admin import connect
from airflow_provider_kmigrate.core.cluster_state.decision import Done
from airflow_provider_kmigrate.core.migration.coordinator import OFFSETS, hash_group
from airflow_provider_kmigrate.core.migration.plan import EXPANSION, Plan, StepRow, find_step
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage
from airflow_provider_kmigrate.exceptions import Unavailable
from airflow_provider_kmigrate.steps.catalog import run_plan
from airflow_provider_kmigrate.steps.run import StepContext
from benchmarks import direct
from tests.kit.live_groups import Committed, LiveGroups, committed, raw_commits
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster.cluster import LocalCluster, lent
from tests.kit.localcluster.plan import Shape
from tests.system.by_hand import ByHand
from tests.system.coordinating import GROUPS, acceptors, settled
from tests.system.evidence import starts
from tests.system.road import asked, codes
from tests.waiting import wait_for, wait_until

MARGIN_S = 15.0  # two rolls of a busy machine differ

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(400)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with lent(tmp_path / "cluster", Shape(name="expansion", controllers=1)) as there:
        create_topics({"bootstrap.servers": there.bootstrap}, [TopicPlan("orders", 1, 3)])
        yield there


def by_hand(cluster: LocalCluster, here: StepContext, partitions: int) -> None:
    admin = connect({"bootstrap.servers": cluster.bootstrap})
    (made,) = admin.create_partitions([NewPartitions(OFFSETS.name, partitions)]).values()
    made.result(60)
    settled(here, partitions)


def until_and_from(kind: str) -> tuple[Plan, Plan]:
    place = EXPANSION.index(find_step(EXPANSION, kind))
    return EXPANSION[:place], EXPANSION[place:]


@pytest.mark.parametrize(
    ("stage", "asleep", "target"),
    [
        (FileStage.ZOOKEEPER, 0, 20),
        (FileStage.ZOOKEEPER, 15, 15),
        (FileStage.KRAFT, 0, 20),
        (FileStage.KRAFT, 15, 15),
    ],
)
def test_no_group_is_split_stops_or_loses_an_offset(cluster: LocalCluster, stage: FileStage, asleep: int, target: int) -> None:
    hands = ByHand(cluster)
    moving = [group for group in GROUPS if hash_group(group) % 10 != hash_group(group) % target]
    staying = sorted(set(GROUPS) - set(moving))
    assert moving
    assert staying
    with direct.context(cluster, "expansion") as here, LiveGroups(cluster.bootstrap, "orders") as live:
        if stage is FileStage.KRAFT:
            direct.to_dual_write(here)
        live.start(GROUPS)
        wait_until(lambda: all(live.positions()[group] for group in GROUPS), "every group has processed a record", 120.0)
        if asleep:
            by_hand(cluster, here, asleep)
        arguments = {"partitions": target}
        before, after = until_and_from("groups stopped")
        run_plan(here, before, arguments)
        assert codes(asked(here, "groups stopped", seconds=8.0, partitions=target)) == {"K79"}
        processed = {group: position for group, position in live.positions().items() if group in moving}
        live.stop(moving)
        exported = committed(cluster.bootstrap, moving)
        assert all(exported[group]["orders", 0].offset >= processed[group][0] for group in moving)
        restarts = {node.id: starts(node) for node in here.spec.brokers}
        live.stalled(staying)

        *way, progress = after
        for step in way:
            go(here, step, arguments)

        assert {node.id: starts(node) - restarts[node.id] for node in here.spec.brokers} == dict.fromkeys(restarts, 1)
        expansion_s = live.stalled(staying)
        assert set(acceptors(here).values()) == {1}, "neither split nor in blackout"
        assert committed(cluster.bootstrap, moving) == exported, "with metadata"
        check_raw(cluster, target, exported)
        for node in hands.brokers:  # leaders move: an old copy would come back now
            hands.restart(node, stage)
            again(lambda: settled(here, target))
            assert committed(cluster.bootstrap, moving) == exported
        plain_roll_s = live.stalled(staying)
        assert expansion_s < plain_roll_s + MARGIN_S, (
            "a group that stays is not without a coordinator for longer than in any roll"
        )
        live.start(moving)
        assert run_plan(here, (progress,), arguments) == Done(f"{len(moving)} groups that had members before consume again.")
        wait_for(
            lambda: committed(cluster.bootstrap, GROUPS),
            lambda now: all(now[group]["orders", 0].offset > exported[group]["orders", 0].offset for group in moving),
            "every moved group commits further",
        )
        assert {name: group.wrong for name, group in live.groups.items() if group.wrong} == {}
        check_raw(cluster, target, {})


def go(here: StepContext, step: StepRow, arguments: Mapping[str, object]) -> None:
    """One step of the plan."""
    again(lambda: run_plan(here, (step,), arguments))


def again(do: Callable[[], object]) -> None:
    """Try it three times, as Airflow does: a request may meet a broker that is no longer the controller, or not yet."""
    for _ in range(2):
        with suppress(Unavailable):
            do()
            return
    do()


def check_raw(cluster: LocalCluster, count: int, exported: Mapping[str, Mapping[tuple[str, int], Committed]]) -> None:
    """In the log each group has commits in the partition of the new count alone; what is elsewhere is a tombstone."""
    for (group, topic, partition), rows in raw_commits(cluster.bootstrap).items():
        if group in GROUPS:
            living = {row.partition: row.offset for row in rows if row.offset is not None}
            assert living.keys() == {hash_group(group) % count}, f"{group} would revive"
            if group in exported:
                assert list(living.values()) == [exported[group][topic, partition].offset]
