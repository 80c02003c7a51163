"""The known disasters of a migration on real brokers: each is made by hand, and kmigrate's gate is seen to keep it away.

What is shown here was measured before (Kafka 3.9.2). A test that no longer sees its disaster says that Kafka has changed, and that a gate
may have become needless.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from airflow_provider_kmigrate.clients.admin import connect
from airflow_provider_kmigrate.clients.wire import Wire
from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, ClusterView, Fields, ZkController
from airflow_provider_kmigrate.core.cluster_state.spec import NodeSpec
from airflow_provider_kmigrate.core.migration.phase import Phase, kraft_owns, migration_has_ended, position_of
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage
from airflow_provider_kmigrate.core.node_files.properties import parse_properties
from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.steps.catalog import run_rollback
from airflow_provider_kmigrate.steps.prepare import run_preflight
from airflow_provider_kmigrate.steps.waits import run_watch
from benchmarks import direct
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster.cluster import lent
from tests.kit.localcluster.plan import Shape, folder_of
from tests.system.by_hand import ByHand, process_of
from tests.system.road import (
    PARTITIONS,
    TOPIC,
    Point,
    Road,
    alive,
    asked,
    codes,
    controller,
    create,
    done,
    everybody_in_sync,
    leader,
    migration,
    readable,
    until_asked,
    written,
)
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(600)]

MANY = 10_000


class TestACarelessWayBack:
    """/controller deleted, /migration and the controllers' directories left; a topic is made since."""

    @pytest.mark.proof
    def test_old_controllers_delete_what_was_made_since(self, road: Road) -> None:
        hands = road.at(Point.COPIED)
        back_without_care(road, hands)
        create(road.cluster.bootstrap, "since")
        with direct.context(road.cluster, "road") as here:
            with pytest.raises(Refused) as refused:
                run_preflight(here)
            assert "P06" in codes(refused.value.reasons)
            assert "P06" in codes(asked(here, "provision", node=3000))
            with hands.zookeeper() as zookeeper:
                kept = zookeeper.get("/migration")[0]
                zookeeper.delete("/migration")
            assert "G04" in codes(asked(here, "provision", node=3000)), "nor with the old directories alone"
        with hands.zookeeper() as zookeeper:
            zookeeper.create("/migration", kept)
        assert "since" in road.topics_in_zookeeper()
        for node in hands.controllers:
            hands.start(node)
        wait_until(lambda: "since" not in road.topics_in_zookeeper(), "the old controllers delete the topic from ZooKeeper")

    def test_a_reformatted_broker_does_not_start_again(self, road: Road) -> None:
        """kmigrate writes the file again: test_rollback.py rolls back by the DAG with such a broker."""
        hands = road.at(Point.COPIED)
        version_1(hands.brokers[1])
        back_without_care(road, hands, but=1)
        hands.restart(hands.brokers[1], FileStage.ZOOKEEPER)
        wait_until(lambda: not hands.runs(hands.brokers[1]), "the broker exits")
        assert "ZK-based brokers that are not migrating only support version 0" in process_of(hands.brokers[1]).log_tail(60)

    def test_brokers_skip_what_the_zookeeper_controller_says_where_partition_epochs_are_ahead(self, road: Road) -> None:
        hands = road.at(Point.COPIED)
        handed_over(road, hands, ahead=5, gone=("/migration", "/controller"))
        first = hands.brokers[0]
        hands.restart(first, FileStage.ZOOKEEPER)
        road.wait(lambda view: view.modes()[0] is BrokerMode.ZOOKEEPER, "plain")
        refusal = "the leader is already at a newer partition epoch"
        logs = [process_of(node).log for node in hands.brokers[1:]]
        wait_until(lambda: any(refusal in log.read_text(errors="replace") for log in logs), "leaders refuse what they are told")
        assert not everybody_in_sync(road.observe()), "leaders do not take the broker back"
        with direct.context(road.cluster, "road") as here:
            before = len(journal(road))
            done(here, "roll back broker", node=0, target=BrokerMode.ZOOKEEPER)
        assert "raising partition states" in journal(road)[before:]
        assert "alone keeps broker" not in journal(road)[before:]

    def test_the_rollback_raises_the_states_above_them(self, road: Road) -> None:
        hands = road.at(Point.COPIED)
        with direct.context(road.cluster, "road") as here:
            run_rollback(here, {"skip_failover": True})
        logs = [process_of(node).log.read_text(errors="replace") for node in hands.brokers]
        assert not [log for log in logs if "already at a newer partition epoch" in log]


def back_without_care(road: Road, hands: ByHand, but: int | None = None) -> None:
    """As a script would go back that knows of epochs, and of nothing else."""
    handed_over(road, hands, ahead=-20)
    for node in hands.brokers:
        if node.id != but:
            hands.restart(node, FileStage.ZOOKEEPER)
            road.wait(lambda view, node=node: view.modes()[node.id] is BrokerMode.ZOOKEEPER and everybody_in_sync(view), "plain")  # type: ignore[misc]


def handed_over(road: Road, hands: ByHand, ahead: int, *, gone: tuple[str, ...] = ("/controller",)) -> None:
    """To ZooKeeper; KRaft's partition epochs are ahead of the versions of the partitions' states by about so many."""
    for node in hands.controllers:
        hands.stop(node)
    with hands.zookeeper() as zookeeper:
        for index in range(PARTITIONS):
            path = f"/brokers/topics/{TOPIC}/partitions/{index}/state"
            data, stat = zookeeper.get(path)
            if ahead > 0:
                zookeeper.delete(path)
                zookeeper.create(path, data)
            for _ in range(stat.version - ahead if ahead > 0 else -ahead):
                zookeeper.set(path, data)
        change = zookeeper.transaction()
        change.set_data("/controller_epoch", b"1000")
        for path in gone:
            change.delete(path)
        assert change.commit()[1] is True
    road.wait(zookeeper_leads, "a ZooKeeper controller that every broker names")


def journal(road: Road) -> str:
    return (road.cluster.folder.parent / "kmigrate" / "journal" / "road.jsonl").read_text()


def zookeeper_leads(view: ClusterView) -> bool:
    owner = view.zk.controller if view.zk else None
    named = {broker.controller_id for broker in view.brokers.values()}
    return isinstance(owner, ZkController) and not owner.is_kraft and named == {owner.broker_id}


def version_1(node: NodeSpec) -> None:
    """meta.properties as kafka-storage writes it."""
    path = folder_of(node) / "data" / "meta.properties"
    keys = parse_properties(path.read_text())
    rest = {key: value for key, value in keys.items() if key not in {"version", "broker.id"}}
    path.write_text("".join(f"{key}={value}\n" for key, value in {**rest, "version": "1", "node.id": keys["broker.id"]}.items()))


class TestFinalizedByAccident:
    """A controller without the flag is elected while one broker is still in migration mode."""

    @pytest.mark.proof
    def test_a_standby_without_the_flag_stops_everything_and_is_mended(self, road: Road) -> None:
        hands = road.at(Point.HYBRID)
        standby = unflagged_standby(road, hands)
        with direct.context(road.cluster, "road") as here:
            until_asked(here, {"G05"}, "roll", node=road.last[Point.HYBRID], target=BrokerMode.KRAFT)
            done(here, "restore flag", node=standby.id)
            hands.kill(controller(hands, leader(road.observe(Fields.POSITION))))
            road.wait(lambda view: view.quorum is not None and leader(view) in alive(view), "another leader", Fields.POSITION)
            assert position_of(road.observe()).phase is Phase.HYBRID
            road.cluster.up()
            done(here, "roll", node=road.last[Point.HYBRID], target=BrokerMode.KRAFT)

    def test_a_finalization_by_accident_allows_no_rollback_and_leaves_one_way_out(self, road: Road) -> None:
        hands = road.at(Point.HYBRID)
        standby, last = unflagged_standby(road, hands), road.last[Point.HYBRID]
        until_elected(road, hands, standby)
        before = migration(road.observe(Fields.POSITION))
        left = next(node for node in hands.brokers if node.id == last)
        create_elsewhere(next(node for node in hands.brokers if node.id != last), "since")
        time.sleep(3.0)
        assert migration(road.observe(Fields.POSITION)) == before, "nothing is written to ZooKeeper any more"
        assert leaders(left, "since") is None, "the broker left behind hears nothing"
        with direct.context(road.cluster, "road") as here:
            with pytest.raises(Refused) as refused:
                run_rollback(here)
            assert "P12" in codes(refused.value.reasons)
            direct.forward(here)
            assert position_of(here.observer.observe(Fields.POSITION)).phase is Phase.FINALIZED
        road.wait(everybody_in_sync, "all replicas in sync")
        assert written(road.cluster.bootstrap) == set(range(PARTITIONS))


def unflagged_standby(road: Road, hands: ByHand) -> NodeSpec:
    """One that does not lead is restarted with its final file, as by an administrator too early."""
    active = leader(road.observe(Fields.POSITION))
    node = next(node for node in hands.controllers if node.id != active)
    hands.restart(node, FileStage.CONTROLLER_FINAL)
    road.wait(lambda view: view.controllers[node.id].migration_flag is False, "it answers without the flag", Fields.POSITION)
    return node


def elected(view: ClusterView) -> int:
    """The epoch of the quorum's leader; -1 where there is none."""
    return view.quorum.leader_epoch if view.quorum else -1


def until_elected(road: Road, hands: ByHand, wanted: NodeSpec) -> None:
    """Any other leader is killed and started again, until `wanted` leads."""
    beaten = -1
    for _ in range(12):

        def led(view: ClusterView, beaten: int = beaten) -> bool:
            return elected(view) > beaten and leader(view) in alive(view) and len(alive(view)) == 3

        road.wait(led, "a leader that was elected since", Fields.POSITION)
        view = road.observe(Fields.POSITION)
        active, beaten = leader(view), elected(view)
        if active == wanted.id:
            return
        hands.kill(controller(hands, active))
        hands.start(controller(hands, active))
    raise AssertionError(f"controller {wanted.id} was never elected")


def create_elsewhere(node: NodeSpec, topic: str) -> None:
    """Seen by this broker alone: a client may ask the one that was left behind, which never hears of the topic."""
    admin = connect({"bootstrap.servers": f"{node.host}:{node.port}"})
    admin.create_topics([NewTopic(topic, 3, 3)])[topic].result(30)
    wait_until(lambda: (found := leaders(node, topic)) and min(found.values()) >= 0, "its partitions are led")


def leaders(node: NodeSpec, topic: str) -> dict[int, int] | None:
    """Each partition's leader as this node itself says it; None for a topic that it does not know."""
    with Wire(node.host, node.port, timeout=20.0) as wire:
        found = wire.leaders(topic)
    return None if found is None else {partition: leader for partition, (leader, _) in found.items()}


class TestFirstRoll:
    @pytest.mark.proof
    def test_a_broker_taken_back_before_the_last_one_comes_loses_what_it_acknowledges(self, road: Road) -> None:
        hands = road.at(Point.ALL_BUT_ONE)
        last = hands.brokers[road.last[Point.ALL_BUT_ONE]]
        stray, other = (node for node in hands.brokers if node.id != last.id)
        hands.restart(stray, FileStage.ZOOKEEPER)
        road.wait(everybody_in_sync, "all replicas in sync")
        with direct.context(road.cluster, "road") as here:
            until_asked(here, {"G22"}, "roll", node=last.id, target=BrokerMode.MIGRATION)
            hands.restart(last, FileStage.MIGRATION)
            road.wait(kraft_owns, "the controllers take the cluster over", Fields.POSITION)
            wait_until(lambda: disputed(stray, other) != set(), "the stray broker leads what others lead too")
            acked = sent_through(stray, disputed(stray, other))
            assert acked
            assert position_of(here.observer.observe(Fields.POSITION)).phase is Phase.SPLIT
            done(here, "roll", node=stray.id, target=BrokerMode.MIGRATION)
        road.wait(everybody_in_sync, "all replicas in sync")
        lost = acked - readable(road.cluster.bootstrap, b"stray-")
        assert lost, "what the stray broker acknowledged is gone"

    def test_a_broker_that_is_stopped_without_any_controller_does_not_end(self, road: Road) -> None:
        hands = road.at(Point.COPIED)
        for node in hands.controllers:
            hands.kill(node)
        with direct.context(road.cluster, "road") as here:
            until_asked(here, {"G20", "G23"}, "roll", node=0, target=BrokerMode.KRAFT)
            until_asked(here, {"G30"}, "roll back broker", node=0, target=BrokerMode.ZOOKEEPER)
        process = process_of(hands.brokers[0])
        pid = process.signal(signal.SIGTERM)
        assert not process.wait_gone(pid, 25.0), "a healthy one is gone within two seconds"
        for node in hands.controllers:
            hands.start(node)
        assert process.wait_gone(pid, 60.0), "with controllers back it ends"

    @pytest.mark.proof
    def test_a_leader_without_the_flag_before_the_end_of_the_copy_leaves_the_rollback_possible(self, road: Road) -> None:
        """The copy fails after the claim of /controller, and the controller that lost its flag is elected. Kafka finalizes nothing then."""
        hands = road.at(Point.ALL_BUT_ONE)
        standby, active = unflagged_standby(road, hands), controller(hands, leader(road.observe(Fields.POSITION)))
        create(road.cluster.bootstrap, "kept")
        with hands.zookeeper() as zookeeper:  # the copy reads a client's setting as a quota, and a broker ignores what is none
            zookeeper.create("/config/clients/odd", b'{"version":1,"config":{"note":"no number"}}', makepath=True)
        hands.restart(hands.brokers[road.last[Point.ALL_BUT_ONE]], FileStage.MIGRATION)
        wait_until(lambda: not hands.runs(active), "the controller that copies ends itself", 90.0)
        hands.start(active)
        until_elected(road, hands, standby)
        view = road.observe(Fields.POSITION)
        assert (kraft_owns(view), migration(view).metadata_offset, migration_has_ended(view)) == (True, -1, False)
        with direct.context(road.cluster, "road") as here:
            with pytest.raises(Refused) as refused:
                run_watch(here)
            assert "G05" in codes(refused.value.reasons)
            assert "P12" not in codes(refused.value.reasons)
            assert "No rollback is possible" not in str(refused.value)
            with hands.zookeeper() as zookeeper:
                zookeeper.delete("/config/clients/odd")
            run_rollback(here)
            assert position_of(here.observer.observe(Fields.POSITION)).phase is Phase.ZOOKEEPER
        assert {TOPIC, "kept"} <= road.topics_in_zookeeper()
        assert written(road.cluster.bootstrap) == set(range(PARTITIONS))


def disputed(stray: NodeSpec, other: NodeSpec) -> set[int]:
    """Partitions that the stray broker says it leads, and the other broker that another one does."""
    mine, theirs = leaders(stray, TOPIC) or {}, leaders(other, TOPIC) or {}
    return {number for number, led in mine.items() if led == stray.id and theirs.get(number) not in {stray.id, None}}


def sent_through(broker: NodeSpec, partitions: set[int]) -> set[bytes]:
    """Records that this broker acknowledges by itself (acks=1); the client knows the cluster from no other broker."""
    acked: set[bytes] = set()
    properties = {"bootstrap.servers": f"{broker.host}:{broker.port}", "acks": "1", "topic.metadata.refresh.interval.ms": -1}
    producer = Producer({**properties, "message.timeout.ms": 10_000, "log_level": 0})
    for number in range(50):
        for partition in partitions:
            value = f"stray-{partition}-{number}".encode()
            producer.produce(TOPIC, value, partition=partition, on_delivery=lambda error, m: error or acked.add(m.value()))  # type: ignore[arg-type]
    producer.flush(15)
    return acked


class TestTakeover:
    def test_partitions_that_it_leaves_without_a_leader_get_one(self, tmp_path: Path) -> None:
        """Thousands of partitions with one replica: those of the last broker are copied before anybody has elected their leaders."""
        with lent(tmp_path / "cluster", Shape(name="many", brokers=3, controllers=1)) as cluster:
            topics = [TopicPlan(f"many-{number}", MANY // 10, 1) for number in range(10)]
            create_topics({"bootstrap.servers": cluster.bootstrap}, topics, timeout=240.0)
            with direct.context(cluster) as here:
                direct.prepare(here)
                direct.provision(here)
                for _ in here.spec.brokers[1:]:
                    direct.step(here, "roll", node=direct.to_roll(here, BrokerMode.MIGRATION), target=BrokerMode.MIGRATION)
                last = direct.to_roll(here, BrokerMode.MIGRATION)
                done(here, "roll", node=last, target=BrokerMode.MIGRATION)
                view = here.observer.observe(Fields.POSITION | Fields.PARTITIONS)
            said = (tmp_path / "kmigrate" / "journal" / "run.jsonl").read_text()
            assert kraft_owns(view)
            assert "the takeover skipped them" in said, "the disaster was not there"
            assert not [p for p in view.partitions or () if p.leader < 0]
