"""The observer with hand-written sources: what each answer, and each missing one, becomes in the view."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.admin import ListPartitionReassignmentsResponse

from airflow_provider_kmigrate.clients.tools import Tools
from airflow_provider_kmigrate.clients.wire import ApiVersions, NodeMetadata, PartitionLeader
from airflow_provider_kmigrate.core.cluster_state.model import (
    BrokerMode,
    Cause,
    ClusterView,
    Fields,
    Partition,
    PartitionMetadata,
    Process,
    ProcessState,
    Quorum,
    TopicMetadata,
    ZkView,
    ZooKeeperServer,
)
from airflow_provider_kmigrate.core.migration.coordinator import OFFSETS
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, Failed, TimedOut, Unavailable, Unreachable, WrongCluster
from airflow_provider_kmigrate.observe import Observer, reads
from airflow_provider_kmigrate.observe.reads import merge_partitions
from tests.clients.fake_cluster import BROKERS, CLUSTER, EVERYTHING, QUICK, SPEC, Cluster, codes


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    there = Cluster()
    yield there
    there.released.set()
    there.observer.close()


class TestAge:
    """What moves must not be as old as the slowest answer: an act would be decided on an ISR of a minute ago."""

    @pytest.fixture
    def slow(self, cluster: Cluster) -> Cluster:
        cluster.observer.close()
        tools: Any = Tools(cluster.zk, cluster.admin, lambda each: cluster.wires[each.id], lambda _: cluster.host)  # type: ignore[arg-type]
        cluster.observer = Observer(SPEC, tools, replace(QUICK, topics=3.0, fresh=0.2))
        leds = [PartitionLeader(4, Partition("a", 0, 1, (1, 2), (1, 2)))]
        for wire in cluster.wires.values():
            wire.leds = lambda: tuple(leds)

        def topics() -> dict[str, TopicMetadata]:
            time.sleep(0.6)
            leds[:] = [PartitionLeader(4, Partition("a", 0, 1, (1, 2), (1,)))]
            cluster.wires[2].versions = Unreachable("died meanwhile")
            return {}

        cluster.admin.topics_answer = topics
        return cluster

    def test_what_moves_is_read_again_behind_a_slow_answer(self, slow: Cluster) -> None:
        view = slow.observe(Fields.BROKERS | Fields.ZOOKEEPER | Fields.PARTITIONS | Fields.MIN_INSYNC | Fields.TOPICS)
        assert view.partitions == (Partition("a", 0, 1, (1, 2), (1,)),)
        assert view.modes()[2] is None
        assert codes(view) == ["R01"]
        assert (view.topics, view.min_insync) == (({}, {}), {"a": 2}), "what was slow stays"

    def test_what_zookeeper_stores_is_not_waited_for_if_it_does_not_report_its_state(self, slow: Cluster) -> None:
        """A ZooKeeper behind a dead link: a minute without an answer would hide from the operator what is wrong."""
        slow.admin.topics_answer = {}
        slow.zk.answer = slow.zk.topics_answer = lambda: slow.released.wait(20) or {}
        began = time.monotonic()
        view = slow.observe(Fields.BROKERS | Fields.ZOOKEEPER | Fields.TOPICS)
        assert time.monotonic() - began < 2.5, "topics have three seconds, and all that moves would be read again"
        assert (view.zk, view.topics) == (None, None)
        assert codes(view)[0] == "U01"
        assert "not waited for" in str(view.unknowns[-1])
        assert slow.wires[1].asked.count("api_versions") == 1

    def test_a_slow_host_alone_has_nothing_read_again(self, slow: Cluster) -> None:
        slow.admin.topics_answer = {}
        process, released = slow.host.process, slow.released
        slow.host.process = lambda: released.wait(0.6) or process
        slow.observe(Fields.BROKERS | Fields.PROCESSES | Fields.TOPICS)
        assert slow.wires[1].asked.count("api_versions") == 1

    def test_nothing_is_read_again_if_no_answer_was_slow(self, slow: Cluster) -> None:
        slow.observe(Fields.BROKERS | Fields.PARTITIONS)
        assert slow.wires[1].asked.count("api_versions") == 1

    def test_what_was_not_read_slowly_stays_unknown(self, slow: Cluster) -> None:
        fails = slow.admin.topics_answer
        slow.admin.topics_answer = lambda: fails() or Unreachable("in the end")
        view = slow.observe(Fields.BROKERS | Fields.TOPICS)
        assert view.topics is None
        assert sorted(codes(view)) == ["R01", "U05"]


class TestNodes:
    def test_a_healthy_observation(self, cluster: Cluster) -> None:
        view = cluster.observe(Fields.BROKERS | Fields.ZOOKEEPER)
        assert view.unknowns == ()
        assert view.kafka_cluster_id == CLUSTER
        assert view.modes() == dict.fromkeys((1, 2, 3), BrokerMode.ZOOKEEPER)
        assert {broker.listed_by for broker in view.brokers.values()} == {frozenset({1, 2, 3})}
        assert all(broker.in_zookeeper and broker.controller_id == 1 for broker in view.brokers.values())
        assert view.took >= 0

    def test_how_long_each_broker_took_to_answer(self, cluster: Cluster) -> None:
        waited = threading.Event()

        def slowly() -> ApiVersions:
            waited.wait(0.3)
            return versions

        versions, cluster.wires[2].versions = cluster.wires[2].versions, slowly
        cluster.wires[3].versions = Unreachable("gone")
        took = {number: broker.answered_in for number, broker in cluster.observe(Fields.BROKERS).brokers.items()}
        assert took[3] is None
        assert took[1] is not None
        assert took[2] is not None
        assert took[2] >= 0.3

    def test_nothing_is_asked_that_is_not_wanted(self, cluster: Cluster) -> None:
        view = cluster.observe(Fields.CONTROLLERS)
        assert [wire.asked for wire in cluster.wires.values()] == [[], [], [], ["api_versions"], ["api_versions"]]
        assert (view.zk, view.partitions, view.quorum, view.topics, view.client_metrics) == (None, None, None, None, None)
        assert cluster.host.asked == []
        broker = view.brokers[1]
        assert (broker.mode, broker.in_zookeeper, broker.listed_by) == (None, None, None)

    def test_a_broker_that_is_gone_is_unknown(self, cluster: Cluster) -> None:
        cluster.wires[2].versions = Unreachable("refused")
        cluster.wires[1].peers = cluster.wires[3].peers = NodeMetadata(CLUSTER, 1, frozenset({1, 3}))
        view = cluster.observe(Fields.BROKERS)
        assert codes(view) == ["R01"]
        assert view.brokers[2].mode is None
        assert view.brokers[2].listed_by == frozenset()
        assert view.brokers[1].listed_by == frozenset({1, 3})

    def test_a_broker_that_hangs_costs_its_patience_and_spoils_nothing(self, cluster: Cluster) -> None:
        cluster.wires[2].versions = cluster.hang
        began = time.monotonic()
        view = cluster.observe(Fields.BROKERS | Fields.ZOOKEEPER)
        assert time.monotonic() - began < 10 * QUICK.nodes
        assert codes(view) == ["R01"]
        assert view.modes() == {1: BrokerMode.ZOOKEEPER, 2: None, 3: BrokerMode.ZOOKEEPER}

    def test_a_broker_that_the_spec_does_not_name_is_seen(self, cluster: Cluster) -> None:
        cluster.zk.answer = ZkView(cluster_id=CLUSTER, broker_ids=(1, 2, 3, 8))
        cluster.wires[1].peers = NodeMetadata(CLUSTER, 1, frozenset({1, 9}))
        view = cluster.observe(Fields.BROKERS | Fields.ZOOKEEPER)
        assert sorted(view.brokers) == [1, 2, 3, 8, 9]
        assert (view.brokers[8].in_zookeeper, view.brokers[8].mode) == (True, None)
        assert view.brokers[9].listed_by == frozenset({1})

    def test_controllers_show_their_flag(self, cluster: Cluster) -> None:
        cluster.wires[3001].versions = ApiVersions({55: (0, 2)}, migration_ready=True, metadata_version=21)
        cluster.wires[3002].versions = TimedOut("late")
        view = cluster.observe(Fields.CONTROLLERS)
        assert (view.controllers[3001].answers, view.controllers[3001].migration_flag) == (True, True)
        assert (view.controllers[3002].answers, view.controllers[3002].migration_flag) == (False, None)
        assert view.metadata_version == "3.9-IV0"
        assert codes(view) == ["G23"]

    def test_hosts_are_asked_for_the_given_nodes_only(self, cluster: Cluster) -> None:
        view = cluster.observer.observe(Fields.PROCESSES | Fields.FILES, BROKERS[:1])
        assert cluster.host.asked == ["broker 1"], "one request for both"
        assert view.brokers[1].process.pid == 7
        assert view.brokers[1].files.properties == {"a": "b"}
        assert view.brokers[2].process.state is ProcessState.UNKNOWN
        cluster.observer.observe(Fields.PROCESSES | Fields.FILES, BROKERS[:2])
        assert sorted(cluster.host.asked) == ["broker 1", "broker 1", "broker 2"]

    def test_a_process_is_known_even_if_its_files_are_not(self, cluster: Cluster) -> None:
        cluster.host.on_disk = Failed("no file")
        view = cluster.observer.observe(Fields.PROCESSES | Fields.FILES, BROKERS[:1])
        assert [(each.code, each.cause, each.node) for each in view.unknowns] == [("U04", Cause.UNREAD_FILES, "broker 1")]
        assert view.brokers[1].process.state is ProcessState.RUNNING

    def test_a_host_without_a_state_is_a_host_that_does_not_answer(self, cluster: Cluster) -> None:
        cluster.host.process = Process(ProcessState.UNKNOWN)
        view = cluster.observer.observe(Fields.PROCESSES, BROKERS[:1])
        assert [(each.code, each.cause, each.node) for each in view.unknowns] == [("U04", Cause.UNREAD_PROCESS, "broker 1")]
        assert view.brokers[1].process.state is ProcessState.UNKNOWN


class TestZooKeeper:
    @pytest.mark.parametrize("what", [Fields.ZOOKEEPER, Fields.GROUPS, Fields.ZOOKEEPER | Fields.GROUPS])
    def test_groups_only_if_wanted(self, cluster: Cluster, what: Fields) -> None:
        assert cluster.observe(what).zk is not None
        assert cluster.zk.asked_groups is (Fields.GROUPS in what)

    @pytest.mark.parametrize("error", [Unreachable("lost"), None])
    def test_without_its_answer_registrations_are_unknown(self, cluster: Cluster, error: Exception | None) -> None:
        cluster.zk.answer = error or cluster.hang
        view = cluster.observe(Fields.ZOOKEEPER | Fields.BROKERS)
        assert codes(view) == ["U01"]
        assert view.zk is None
        assert view.brokers[1].in_zookeeper is None
        assert view.brokers[1].mode is BrokerMode.ZOOKEEPER


class TestQuorum:
    def test_the_leader_answers_for_all(self, cluster: Cluster) -> None:
        cluster.wires[3002].quorum = led = Quorum(3002, 5, 9, {3001: 9, 3002: 9}, {})
        view = cluster.observe(Fields.QUORUM)
        assert view.quorum == led
        assert view.unknowns == ()

    def test_of_two_that_believe_to_lead_the_newer_is_right(self, cluster: Cluster) -> None:
        cluster.wires[3001].quorum = Quorum(3001, 4, 9, {}, {})
        cluster.wires[3002].quorum = newer = Quorum(3002, 5, 9, {}, {})
        assert cluster.observe(Fields.QUORUM).quorum == newer

    def test_without_a_leader_that_is_one_unknown(self, cluster: Cluster) -> None:
        cluster.wires[3001].quorum = cluster.hang
        view = cluster.observe(Fields.QUORUM)
        assert view.quorum is None
        assert codes(view) == ["G20"]


def led(epoch: int, leader: int, *isr: int, topic: str = "t") -> PartitionLeader:
    return PartitionLeader(epoch, Partition(topic, 0, leader, (1, 2, 3), isr))


class TestPartitions:
    def test_two_witnesses_are_asked(self, cluster: Cluster) -> None:
        for number in (1, 2, 3):
            cluster.wires[number].leds = (led(1, 1, 1, 2, 3),)
        assert cluster.observe(Fields.PARTITIONS).partitions == (Partition("t", 0, 1, (1, 2, 3), (1, 2, 3)),)
        assert [len(cluster.wires[number].asked) for number in (1, 2, 3)] == [1, 1, 0]

    def test_a_witness_that_is_gone_is_replaced_and_asked_last_from_then_on(self, cluster: Cluster) -> None:
        cluster.wires[1].leds = Unreachable("down")
        cluster.wires[2].leds = cluster.wires[3].leds = (led(1, 2, 2, 3),)
        for _ in range(2):
            view = cluster.observe(Fields.PARTITIONS)
            assert view.partitions is not None
            assert view.unknowns == ()
        assert [len(cluster.wires[number].asked) for number in (1, 2, 3)] == [1, 2, 2]

    def test_one_witness_is_enough(self, cluster: Cluster) -> None:
        cluster.wires[1].leds = cluster.wires[3].leds = Unreachable("down")
        cluster.wires[2].leds = (led(1, 2, 2),)
        view = cluster.observe(Fields.PARTITIONS)
        assert view.partitions is not None
        assert view.unknowns == ()

    def test_no_broker_answers(self, cluster: Cluster) -> None:
        for number in (1, 2, 3):
            cluster.wires[number].leds = Unreachable("down")
        view = cluster.observe(Fields.PARTITIONS | Fields.MIN_INSYNC)
        assert (view.partitions, view.min_insync) == (None, None)
        assert codes(view) == ["U05"]

    def test_min_insync_of_every_topic(self, cluster: Cluster) -> None:
        for number in (1, 2, 3):
            cluster.wires[number].leds = (led(1, 1, 1, topic="a"), led(1, 1, 1, topic="b"))
        assert cluster.observe(Fields.MIN_INSYNC).min_insync == {"a": 2, "b": 2}


class TestNewest:
    def test_the_higher_epoch_wins(self) -> None:
        assert merge_partitions([(led(2, 2, 2, 3),), (led(1, 1, 1, 2, 3),)]) == (Partition("t", 0, 2, (1, 2, 3), (2, 3)),)

    def test_within_an_epoch_only_what_both_count_is_in_sync(self) -> None:
        assert merge_partitions([(led(1, 1, 1, 2),), (led(1, 1, 1, 3),)]) == (Partition("t", 0, 1, (1, 2, 3), (1,)),)

    def test_a_partition_that_one_has_not_heard_of(self) -> None:
        assert [partition.topic for partition in merge_partitions([(led(1, 1, 1, topic="b"),), (led(1, 1, 1, topic="a"),)])] == [
            "a",
            "b",
        ]

    @given(st.lists(st.builds(led, st.integers(0, 3), st.integers(-1, 3), st.integers(1, 3)), min_size=1, max_size=6))
    def test_the_order_of_witnesses_is_no_matter_for_what_is_in_sync(self, leds: list[PartitionLeader]) -> None:
        top = max(one.leader_epoch for one in leds)
        for order in (leds, leds[::-1]):
            (partition,) = merge_partitions([(one,) for one in order])
            candidates = [one.partition for one in leds if one.leader_epoch == top]
            assert set(partition.isr) == set.intersection(*(set(one.isr) for one in candidates))


LEADERS = {partition: 1 + partition * partition % 3 for partition in range(10)}


class TestCoordinators:
    @pytest.fixture(autouse=True)
    def at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reads, "_BETWEEN", 0.01)

    def known(self, cluster: Cluster, **counts: int) -> None:
        for number in (1, 2, 3):
            cluster.wires[number].offsets_leaders = LEADERS
            cluster.wires[number].offsets_count = counts.get(f"of_{number}", 10)

    def offsets(self, view: ClusterView) -> Mapping[int, frozenset[int]]:
        assert view.coordinators is not None
        return view.coordinators.counts[OFFSETS.name]

    def test_each_broker_has_its_count(self, cluster: Cluster) -> None:
        self.known(cluster, of_3=7)
        counts = self.offsets(cluster.observe(Fields.COORDINATORS))
        assert counts == {1: frozenset({10}), 2: frozenset({10}), 3: frozenset({7})}

    def test_a_link_on_which_each_answer_takes_long_is_waited_for(self) -> None:
        """Each node answers within its limit; who coordinates groups, what is reassigned and whose metrics are subscribed takes several answers."""
        slow = Cluster(replace(QUICK, nodes=0.4, partitions=20.0))
        self.known(slow)

        def late(value: Any) -> Callable[[], Any]:
            return lambda: (time.sleep(0.3), value)[1]

        for wire in slow.wires.values():
            wire.offsets_leaders, wire.peers, wire.moving, wire.metrics = map(
                late, (LEADERS, wire.peers, wire.moving, wire.metrics)
            )
        moving, metrics, coordinators = map(slow.observe, (Fields.REASSIGNMENTS, Fields.CLIENT_METRICS, Fields.COORDINATORS))
        slow.observer.close()
        assert (moving.moving, metrics.client_metrics) == ((), ())
        assert self.offsets(coordinators) == dict.fromkeys((1, 2, 3), frozenset({10}))

    def test_another_count_is_believed_after_three_samples(self, cluster: Cluster) -> None:
        self.known(cluster, of_3=7)
        cluster.observe(Fields.COORDINATORS)
        samples = {number: cluster.wires[number].asked.count("find_coordinators") for number in (1, 2, 3)}
        assert samples == {1: 1, 2: 1, 3: 3}

    def test_another_count_in_one_sample_proves_nothing(self, cluster: Cluster) -> None:
        self.known(cluster)
        later = iter([7, 10])

        def count() -> dict[int, int]:
            cluster.wires[3].offsets_count = next(later, 10) if "find_coordinators" in cluster.wires[3].asked else 7
            return LEADERS

        cluster.wires[3].offsets_leaders = count
        view = cluster.observe(Fields.COORDINATORS)
        assert (sorted(self.offsets(view)), codes(view)) == ([1, 2], ["U05"])

    @pytest.mark.parametrize(
        ("registered", "expected"),
        [
            (6, {6}),
            (12, {3, 6, 9, 12}),
            (7, {3, 6, 9, 12}),
            (None, {3, 6, 9, 12}),
            (TimedOut("no answer"), {3, 6, 9, 12}),
        ],
    )
    def test_an_expansion_that_regular_leaders_hide_shows_in_the_order_of_zookeepers_changes(
        self, cluster: Cluster, registered: object, expected: set[int]
    ) -> None:
        for number in (1, 2, 3):
            cluster.wires[number].offsets_leaders = {partition: 1 + partition % 3 for partition in range(12)}
            cluster.wires[number].offsets_count = 6
        cluster.zk.registrations = registered
        view = cluster.observe(Fields.COORDINATORS)
        assert self.offsets(view)[1] == expected
        assert view.unknowns == ()

    @pytest.mark.parametrize(
        ("config", "expected"),
        [
            ("6", {6}),
            ("12", {3, 6, 9, 12}),
            (None, {3, 6, 9, 12}),
            ("many", {3, 6, 9, 12}),
            (TimedOut("no answer"), {3, 6, 9, 12}),
        ],
    )
    def test_a_broker_that_registered_before_the_topic_was_created_has_the_count_of_its_own_file(
        self, cluster: Cluster, config: object, expected: set[int]
    ) -> None:
        for wire in cluster.wires.values():
            wire.offsets_leaders = {partition: 1 + partition % 3 for partition in range(12)}
            wire.offsets_count = 6
            wire.settings = config if isinstance(config, Exception) else [SimpleNamespace(value=config)]
        cluster.zk.registrations = 0
        assert self.offsets(cluster.observe(Fields.COORDINATORS))[1] == expected

    def test_an_absent_topic_is_not_created_by_asking(self, cluster: Cluster) -> None:
        view = cluster.observe(Fields.COORDINATORS)
        asked = {verb for wire in cluster.wires.values() for verb in wire.asked}
        assert asked == {"leaders", "groups"}
        assert self.offsets(view) == dict.fromkeys((1, 2, 3), frozenset())
        assert view.unknowns == ()

    @pytest.mark.parametrize("later", [{**LEADERS, 0: (3, 5)}, {**LEADERS, 0: (1, 6)}], ids=["another leader", "another epoch"])
    def test_leaders_that_move_meanwhile_prove_nothing(self, cluster: Cluster, later: dict[int, Any]) -> None:
        self.known(cluster)
        answers = iter([LEADERS, later])
        cluster.wires[2].leaders = lambda topic: (  # type: ignore[method-assign]
            None
            if topic != OFFSETS.name
            else {p: one if isinstance(one, tuple) else (one, 5) for p, one in next(answers).items()}
        )
        view = cluster.observe(Fields.COORDINATORS)
        assert codes(view) == ["U05"]
        assert sorted(self.offsets(view)) == [1, 3]

    def test_groups_of_all_brokers_are_listed_once(self, cluster: Cluster) -> None:
        cluster.wires[1].listed, cluster.wires[3].listed = ("b", "a"), ("a", "c")
        cluster.wires[2].listed = Unreachable("down")
        view = cluster.observe(Fields.COORDINATORS)
        assert view.coordinators is not None
        assert (view.coordinators.groups, codes(view)) == (("a", "b", "c"), ["U05"])


_TOPIC = ListPartitionReassignmentsResponse.OngoingTopicReassignment
MOVING = _TOPIC(
    name="orders",
    partitions=[
        _TOPIC.OngoingPartitionReassignment(partition_index=3, replicas=[1, 2], adding_replicas=[2], removing_replicas=[])
    ],
)


class TestReassignments:
    def test_none(self, cluster: Cluster) -> None:
        assert cluster.observe(Fields.REASSIGNMENTS).moving == ()

    def test_in_zookeeper_mode_only_the_controller_knows_the_reassignments(self, cluster: Cluster) -> None:
        for wire in cluster.wires.values():
            wire.peers = NodeMetadata(CLUSTER, 2, frozenset({1, 2, 3}))
            wire.moving = Unavailable("not me")
        cluster.wires[2].moving = ListPartitionReassignmentsResponse(0, 0, None, [MOVING])
        assert cluster.observe(Fields.REASSIGNMENTS).moving == ("orders-3",)
        assert cluster.wires[3].asked == []

    def test_no_broker_knows_while_the_controller_moves(self, cluster: Cluster) -> None:
        for wire in cluster.wires.values():
            wire.moving = Unavailable("not me")
        view = cluster.observe(Fields.REASSIGNMENTS)
        assert (view.moving, codes(view)) == (None, ["U05"])


class TestRest:
    def test_client_metrics_from_the_first_that_lists_them(self, cluster: Cluster) -> None:
        cluster.wires[2].metrics = ("m",)
        assert cluster.observe(Fields.CLIENT_METRICS).client_metrics == ("m",)

    def test_zookeeper_brokers_have_no_client_metrics(self, cluster: Cluster) -> None:
        assert cluster.observe(Fields.CLIENT_METRICS).client_metrics == ()

    def test_an_unresponsive_broker_might_know_some(self, cluster: Cluster) -> None:
        cluster.wires[3].metrics = Unreachable("down")
        view = cluster.observe(Fields.CLIENT_METRICS)
        assert view.client_metrics is None
        assert codes(view) == ["U05"]

    @pytest.mark.parametrize(("epochs", "expected"), [((9, -1, 4), 9), ((-1,), -1), ((), -1), ((9, None), None)])
    def test_the_epoch_of_the_states_comes_with_the_topics(
        self, cluster: Cluster, epochs: tuple[int | None, ...], expected: int | None
    ) -> None:
        """Reading every state a second time would take a large cluster's preflight twice as long."""
        rows = {n: PartitionMetadata((1,), 1, controller_epoch=epoch) for n, epoch in enumerate(epochs)}
        cluster.zk.topics_answer = {"t": TopicMetadata("t", "id", rows)}
        cluster.zk.epoch_answer = AssertionError("asked for itself")
        assert cluster.observe(Fields.TOPICS | Fields.STATE_EPOCH).state_epoch == expected

    def test_the_servers_of_the_ensemble(self, cluster: Cluster) -> None:
        cluster.zk.servers_answer = (ZooKeeperServer("z:2181", "3.8.4", "leader"),)
        assert cluster.observe(Fields.ENSEMBLE).ensemble == cluster.zk.servers_answer
        assert cluster.observe(Fields.ZOOKEEPER).ensemble is None
        cluster.zk.servers_answer = TimedOut("late")
        view = cluster.observe(Fields.ENSEMBLE)
        assert (view.ensemble, codes(view)) == (None, ["U01"])

    def test_a_broker_that_the_cluster_file_does_not_name(self, cluster: Cluster) -> None:
        cluster.zk.answer = ZkView(cluster_id=CLUSTER, broker_ids=(1, 2, 3, 9))
        view = cluster.observe(Fields.BROKERS | Fields.ZOOKEEPER)
        assert (view.unnamed_brokers(), view.brokers[9].mode) == ([9], None)

    def test_topics_of_both_sides(self, cluster: Cluster) -> None:
        cluster.zk.topics_answer = {"t": TopicMetadata("t", "id", {})}
        assert cluster.observe(Fields.TOPICS).topics == ({"t": TopicMetadata("t", "id", {})}, {})

    def test_topics_of_a_broker_that_answers(self, cluster: Cluster) -> None:
        """Beside a dead one, without waiting for it."""
        cluster.wires[1].versions = Unreachable("its machine is dead")
        assert cluster.observe(Fields.TOPICS).topics == ({}, {})
        assert [cluster.wires[number].asked.count("topics") for number in (1, 2, 3)] == [1, 1, 0]
        cluster.wires[2].versions = cluster.wires[3].versions = Unreachable("its machine is dead")
        assert cluster.observe(Fields.TOPICS).topics is None

    def test_one_side_alone_cannot_be_compared(self, cluster: Cluster) -> None:
        cluster.admin.topics_answer = TimedOut("late")
        view = cluster.observe(Fields.TOPICS)
        assert view.topics is None
        assert codes(view) == ["U05"]


class TestWhatEndsALook:
    @pytest.mark.parametrize(
        "spoil",
        [
            lambda cluster: setattr(cluster.wires[2], "peers", NodeMetadata("other", 1, frozenset({1}))),
            lambda cluster: setattr(cluster.zk, "answer", ZkView(cluster_id="other")),
            lambda cluster: setattr(cluster.zk, "answer", WrongCluster("the chroot does not exist")),
        ],
        ids=["broker", "ZooKeeper", "chroot"],
    )
    def test_another_cluster(self, cluster: Cluster, spoil: Callable[[Cluster], None]) -> None:
        spoil(cluster)
        with pytest.raises(WrongCluster):
            cluster.observe(Fields.BROKERS | Fields.ZOOKEEPER)

    def test_a_refused_identity(self, cluster: Cluster) -> None:
        cluster.wires[2].peers = AuthenticationFailed("no")
        with pytest.raises(AuthenticationFailed):
            cluster.observe(Fields.BROKERS)

    def test_a_witness_that_refuses_our_identity(self, cluster: Cluster) -> None:
        cluster.wires[1].leds = AuthenticationFailed("no")
        with pytest.raises(AuthenticationFailed):
            cluster.observe(Fields.PARTITIONS)

    def test_everything_at_once_when_nothing_answers(self, cluster: Cluster) -> None:
        silence = Unreachable("no answer")
        for wire in cluster.wires.values():
            wire.versions = wire.peers = wire.quorum = wire.leds = wire.metrics = wire.offsets_leaders = silence
        cluster.zk.answer = cluster.zk.topics_answer = cluster.zk.epoch_answer = cluster.admin.topics_answer = silence
        cluster.host.process = cluster.host.on_disk = silence
        view = cluster.observe(EVERYTHING)
        assert set(codes(view)) == {"U01", "R01", "G23", "U04", "U05", "G20"}
        assert codes(cluster.observe(Fields.STATE_EPOCH)) == ["U05"]
        assert view.kafka_cluster_id is None
