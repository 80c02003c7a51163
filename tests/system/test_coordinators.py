"""An expansion of `__consumer_offsets` on real brokers (KIP-895): asleep, and once one broker has restarted; in ZooKeeper mode and in KRaft mode.

One cluster on its way: the tests are the stations, in their order. What groups experience is asked of each broker with DescribeGroups,
which nothing of kmigrate's fingerprint uses.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import NewPartitions

from airflow_provider_kmigrate.clients.admin import connect
from airflow_provider_kmigrate.core.cluster_state.decision import Done
from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, ClusterView
from airflow_provider_kmigrate.core.migration import coordinator
from airflow_provider_kmigrate.core.migration.coordinator import OFFSETS, TRANSACTIONS, Coordinators, GroupClass
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage
from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.steps.prepare import run_preflight
from airflow_provider_kmigrate.steps.run import StepContext
from airflow_provider_kmigrate.steps.waits import require_rollback_assured, run_watch
from benchmarks import direct
from tests.kit.live_groups import commit
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster.cluster import LocalCluster, lent
from tests.kit.localcluster.plan import Shape
from tests.system.by_hand import ByHand
from tests.system.coordinating import GROUPS, acceptors, settled
from tests.system.evidence import starts
from tests.system.road import asked, codes, done
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with lent(tmp_path_factory.mktemp("coordinators") / "cluster", Shape(name="coordinators", controllers=1)) as there:
        create_topics({"bootstrap.servers": there.bootstrap}, [TopicPlan("orders", 3, 3)])
        yield there


@pytest.fixture(scope="module")
def hands(cluster: LocalCluster) -> ByHand:
    return ByHand(cluster)


@pytest.fixture
def here(cluster: LocalCluster) -> Iterator[StepContext]:
    with direct.context(cluster, "coordinators") as context:
        yield context


def expand(cluster: LocalCluster, here: StepContext, partitions: int) -> None:
    admin = connect({"bootstrap.servers": cluster.bootstrap})
    (made,) = admin.create_partitions([NewPartitions(OFFSETS.name, partitions)]).values()
    made.result(60)
    settled(here, partitions)


def check_disagreement(here: StepContext, view: ClusterView, counts: dict[int, int]) -> None:
    """Every broker has its count, every group its class, by what the brokers themselves accept; and the sensor names them."""
    assert view.coordinators is not None
    new, seen = max(counts.values()), view.coordinators.counts[OFFSETS.name]
    assert seen.keys() == counts.keys()
    for broker, count in counts.items():  # 15 partitions led in turn by three brokers look like 3, 6, 9 and 12, too
        assert count in seen[broker]
        assert (new in seen[broker]) is (count == new)
    leaders = {each.index: each.leader for each in view.partitions or () if each.topic == OFFSETS.name}
    classes = Coordinators(counts, leaders, len(leaders)).classify_groups(GROUPS)
    accepted = wait_for(
        lambda: acceptors(here), lambda found: found == acceptors(here), "the brokers are of one mind about themselves"
    )
    for kind, names in classes.items():
        expected = {GroupClass.SPLIT: 2, GroupClass.BLACKOUT: 0}.get(kind, 1)
        assert {group: accepted[group] for group in names} == dict.fromkeys(names, expected), kind
    assert classes[GroupClass.SPLIT]
    assert classes[GroupClass.BLACKOUT]
    with pytest.raises(Refused) as refused:
        direct.step(here, "coordinators")
    for kind in (GroupClass.SPLIT, GroupClass.BLACKOUT):  # brokers list a group once they have loaded it
        named = re.search(rf"{re.escape(kind)}: ([^;]*?)(?: and \d+ more)?;", str(refused.value))
        assert named is not None
        assert set(named[1].split(", ")) <= set(classes[kind])


def test_a_topic_that_does_not_exist_is_not_made_by_asking(cluster: LocalCluster, hands: ByHand, here: StepContext) -> None:
    assert done(here, "coordinators").text == "No coordinator exists yet."
    direct.prepare(here)
    direct.provision(here)
    with hands.zookeeper() as zookeeper:
        assert not {OFFSETS.name, TRANSACTIONS.name} & set(zookeeper.get_children("/brokers/topics"))
    commit(cluster.bootstrap, GROUPS, "orders", 111)
    settled(here, 10)
    assert done(here, "coordinators").text == "Every broker computes coordinators with the 10 partitions of __consumer_offsets."
    assert set(acceptors(here).values()) == {1}


def test_a_sleeping_expansion_is_refused_before_it_wakes(cluster: LocalCluster, here: StepContext) -> None:
    expand(cluster, here, 15)
    assert set(acceptors(here).values()) == {1}, "nothing has changed for anybody"
    for run in (run_preflight, run_watch):
        with pytest.raises(Refused) as refused:
            run(here)
        assert "Brokers that compute with 10 partitions of __consumer_offsets, which has 15: 0, 1, 2." in str(refused.value)
        assert re.search(r"Of \d+ consumer groups: ", str(refused.value))
    before = [starts(node) for node in here.spec.brokers]
    assert codes(asked(here, "roll", node=1, target=BrokerMode.MIGRATION)) == {"G37", "K01"}
    assert [starts(node) for node in here.spec.brokers] == before


def test_brokers_that_disagree_in_zookeeper_mode_are_seen_and_no_other_is_restarted(here: StepContext, hands: ByHand) -> None:
    hands.restart(hands.brokers[0], FileStage.ZOOKEEPER)
    check_disagreement(here, settled(here, 15), {0: 15, 1: 10, 2: 10})
    before = [starts(node) for node in here.spec.brokers]
    assert codes(asked(here, "roll", node=1, target=BrokerMode.MIGRATION)) == {"G37", "K01"}
    assert [starts(node) for node in here.spec.brokers] == before
    for node in hands.brokers[1:]:
        hands.restart(node, FileStage.ZOOKEEPER)
        settled(here, 15)
    assert done(here, "coordinators").text.startswith(
        "Every broker computes coordinators with the 15 partitions of __consumer_offsets."
    )


def test_brokers_that_disagree_in_kraft_mode_are_seen_and_the_soak_reports_it_within_a_minute(
    cluster: LocalCluster, here: StepContext, hands: ByHand
) -> None:
    direct.roll(here, BrokerMode.MIGRATION)
    direct.copy(here)
    direct.roll(here, BrokerMode.KRAFT)
    settled(here, 15)
    expand(cluster, here, 20)
    began = time.monotonic()
    with pytest.raises(Refused, match="K01"):
        direct.step(here, "soak", seconds=300.0)
    assert time.monotonic() - began < 60.0
    hands.restart(hands.brokers[0], FileStage.KRAFT)
    check_disagreement(here, settled(here, 20), {0: 20, 1: 15, 2: 15})
    before = [starts(node) for node in here.spec.brokers]
    assert codes(asked(here, "roll back broker", seconds=8.0, node=1, target=BrokerMode.MIGRATION)) == {"K01"}
    assert [starts(node) for node in here.spec.brokers] == before
    for node in hands.brokers[1:]:
        hands.restart(node, FileStage.KRAFT)
        view = settled(here, 20)
    assert coordinator.brokers_agree(view).met
    assert isinstance(direct.step(here, "soak", seconds=5.0), Done)


@pytest.mark.parametrize("restarted", [True, False])
def test_a_sleeping_expansion_that_no_answer_shows_is_refused(tmp_path: Path, *, restarted: bool) -> None:
    """Kafka leads new partitions in turn: with 2 brokers and 10 partitions each name often has the same coordinator by 10 and by 20."""
    with (
        lent(tmp_path / "cluster", Shape(name="hidden", brokers=2, controllers=1)) as there,
        direct.context(there, "hidden") as here,
    ):
        create_topics({"bootstrap.servers": there.bootstrap}, [TopicPlan("orders", 3, 2)])
        commit(there.bootstrap, GROUPS, "orders", 111)
        hands = ByHand(there)
        for node in hands.brokers if restarted else ():  # else each has the count of its own file, since there was no topic yet
            hands.restart(node, FileStage.ZOOKEEPER)
        done(here, "coordinators")
        rows = {row.index: list(row.replicas) for row in settled(here, 10).partitions or () if row.topic == OFFSETS.name}
        alike = NewPartitions(OFFSETS.name, 20, [rows[place % 10] for place in range(10, 20)])
        admin = connect({"bootstrap.servers": there.bootstrap})
        admin.create_partitions([alike])[OFFSETS.name].result(60)
        settled(here, 20)
        with pytest.raises(Refused, match="Brokers that compute with 10 partitions of __consumer_offsets, which has 20: 0, 1"):
            run_preflight(here)


def test_a_sleeping_expansion_in_kraft_mode_that_no_answer_shows_is_refused_by_everything_that_comes_next(tmp_path: Path) -> None:
    """What the run noted before each restart contradicts the topic: the watch, the soak, the verdict on a rollback and its restarts say so."""
    with (
        lent(tmp_path / "cluster", Shape(name="hidden", brokers=2, controllers=1)) as there,
        direct.context(there, "hidden") as here,
    ):
        create_topics({"bootstrap.servers": there.bootstrap}, [TopicPlan("orders", 3, 2)])
        direct.prepare(here)
        direct.provision(here)
        commit(there.bootstrap, GROUPS, "orders", 111)
        settled(here, 10)
        direct.roll(here, BrokerMode.MIGRATION)
        direct.copy(here)
        direct.roll(here, BrokerMode.KRAFT)
        rows = {row.index: list(row.replicas) for row in settled(here, 10).partitions or () if row.topic == OFFSETS.name}
        alike = NewPartitions(OFFSETS.name, 20, [rows[place % 10] for place in range(10, 20)])
        admin = connect({"bootstrap.servers": there.bootstrap})
        admin.create_partitions([alike])[OFFSETS.name].result(60)
        seen = settled(here, 20).coordinators
        assert seen is not None
        assert all({10, 20} <= set(counts) for counts in seen.counts[OFFSETS.name].values()), "the brokers' answers show nothing"
        hidden = "__consumer_offsets had 10 partitions when kmigrate last verified it, and has 20 now"
        with pytest.raises(Refused, match=hidden):
            run_watch(here)
        with pytest.raises(Refused, match="K01"):
            direct.step(here, "soak", seconds=300.0)
        with pytest.raises(Refused, match=hidden):
            require_rollback_assured(here)
        before = [starts(node) for node in here.spec.brokers]
        assert codes(asked(here, "roll back broker", seconds=8.0, node=1, target=BrokerMode.MIGRATION)) == {"K01"}
        assert [starts(node) for node in here.spec.brokers] == before
