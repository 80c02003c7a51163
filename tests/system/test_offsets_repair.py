"""The repair of `__consumer_offsets` on real brokers that disagreed: what is in doubt is refused, and every later leader serves the rest."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka.admin import NewPartitions

from airflow_provider_kmigrate.clients.admin import connect
from airflow_provider_kmigrate.clients.wire_groups import GroupsAt
from airflow_provider_kmigrate.core.cluster_state.decision import Done
from airflow_provider_kmigrate.core.cluster_state.model import FetchedOffset, HostedGroup
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.ledger.book import GroupPartition
from airflow_provider_kmigrate.core.migration.coordinator import OFFSETS
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage
from airflow_provider_kmigrate.exceptions import Refused, Unavailable
from airflow_provider_kmigrate.steps.run import StepContext
from benchmarks import direct
from tests.kit.live_groups import commit, committed
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster.cluster import LocalCluster, lent
from tests.kit.localcluster.plan import Shape
from tests.kit.offsets_placed import misplaced
from tests.system.by_hand import ByHand
from tests.system.coordinating import GROUPS, settled
from tests.waiting import wait_until

OLD, NEW = 10, 15
WHERE = TopicPartition("orders", 0)

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(400)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with lent(tmp_path / "cluster", Shape(name="repair", controllers=1)) as there:
        create_topics({"bootstrap.servers": there.bootstrap}, [TopicPlan("orders", 1, 3)])
        yield there


def wait_until_loaded(broker: GroupsAt) -> Mapping[str, HostedGroup]:
    found: list[Mapping[str, HostedGroup]] = []
    wait_until(lambda: found.append(broker.describe_hosted(GROUPS)) or found, "it has loaded its groups", despite=(Unavailable,))
    return found[0]


def commit_at_each(here: StepContext, first: int) -> dict[str, list[int]]:
    """Every broker gets a commit of each group that it takes itself for the coordinator of; the offsets, in their order."""
    found: dict[str, list[int]] = {group: [] for group in GROUPS}
    for offset, node in enumerate(here.spec.brokers, first):
        time.sleep(0.002)  # commit times are milliseconds
        broker = here.tools.groups_at(node)
        for group in wait_until_loaded(broker):
            broker.commit(group, {WHERE: FetchedOffset(offset, 0, f"at {node.id}")}, here.fence)
            found[group].append(offset)
    return found


def test_groups_that_two_brokers_served_get_one_offset_back(cluster: LocalCluster) -> None:
    hands = ByHand(cluster)
    with direct.context(cluster, "repair") as here:
        commit(cluster.bootstrap, GROUPS, "orders", 111)
        settled(here, OLD)
        admin = connect({"bootstrap.servers": cluster.bootstrap})
        admin.create_partitions([NewPartitions(OFFSETS.name, NEW)])[OFFSETS.name].result(60)
        settled(here, NEW)
        with pytest.raises(Refused, match="K01"):
            direct.step(here, "repair offsets")
        hands.restart(hands.brokers[0], FileStage.ZOOKEEPER)
        settled(here, NEW)
        served = [commit_at_each(here, first) for first in (200, 300)]
        for node in hands.brokers[1:]:
            hands.restart(node, FileStage.ZOOKEEPER)
        settled(here, NEW)

        split = {group for group, offsets in served[0].items() if len(offsets) == 2}
        right = {group: (served[1][group] or [111])[-1] for group in GROUPS}
        with pytest.raises(Refused) as refused:
            direct.step(here, "repair offsets")
        assert {reason.code for reason in refused.value.reasons} == {"K90"}
        assert split
        assert {reason.text.split(" ")[0] for reason in refused.value.reasons} == split
        decisions = {group: {WHERE.name: right[group]} for group in split}
        done = direct.step(here, "repair offsets", decisions=decisions)
        assert isinstance(done, Done)
        assert "Restart every broker once" in done.text
        log = here.tools.offsets_log()
        expected = {GroupPartition(group, *WHERE): offset for group, offset in right.items()}
        assert misplaced(log.read(), NEW, expected) == ()
        assert log.read(GROUPS) == log.read()

        for node in (*hands.brokers, hands.brokers[0]):
            hands.restart(node, FileStage.ZOOKEEPER)
        settled(here, NEW)
        found = {group: places[WHERE] for group, places in committed(cluster.bootstrap, GROUPS).items()}
        assert {group: one.offset for group, one in found.items()} == right
        assert all(found[group].metadata.startswith("at ") for group in split), "the metadata went with the offset"
