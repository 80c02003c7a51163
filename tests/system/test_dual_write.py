"""The dual-write made to fail on real brokers that are all in KRaft mode, and kmigrate before it."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from airflow_provider_kmigrate.clients.hosts.agent import MetaTexts
from airflow_provider_kmigrate.core.cluster_state.decision import Done
from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, ClusterView, Fields, ZkController
from airflow_provider_kmigrate.core.cluster_state.spec import NodeSpec
from airflow_provider_kmigrate.core.migration.gates import JUST_NOW, dual_write_lag
from airflow_provider_kmigrate.steps import brokers, nodes
from airflow_provider_kmigrate.steps.catalog import build
from airflow_provider_kmigrate.steps.run import StepContext, run_step
from benchmarks import direct
from tests.system.by_hand import ByHand
from tests.system.metrics_subscription import subscribe
from tests.system.road import (
    SESSION_S,
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
)

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(600)]


class TestDualWrite:
    """All brokers in KRaft mode; what is changed now has to be in ZooKeeper, too."""

    def test_a_change_in_flight_when_zookeeper_freezes_is_lost_while_the_lag_reads_0(self, road: Road) -> None:
        hands = road.at(Point.DUAL_WRITE)
        lost: set[str] = set()
        for attempt in range(8):
            made = made_while_frozen(road, hands, attempt)
            with direct.context(road.cluster, "road") as here:
                if not moves(here):  # the next test's disaster, met on the way
                    done(here, "soak", seconds=1)
                elif lost := made - road.topics_in_zookeeper():
                    break
        assert lost, "no freeze lost a change"
        with direct.context(road.cluster, "road") as here:
            said = " ".join(map(str, asked(here, "equivalent", 8.0)))
            assert all(topic in said for topic in lost), said
            lag = dual_write_lag(here.observer.observe(Fields.POSITION))
            assert lag is not None
            assert lag <= 10
            done(here, "controller failover")
            done(here, "equivalent")
        assert lost <= road.topics_in_zookeeper()

    @pytest.mark.proof
    def test_a_subscription_to_client_metrics_wedges_the_next_controller(self, road: Road) -> None:
        hands = road.at(Point.DUAL_WRITE)
        subscribe(hands.brokers[0], "3000")
        with direct.context(road.cluster, "road") as here:
            assert "G09" in codes(asked(here, "soak", seconds=60))
            hands.kill(controller(hands, leader(here.observer.observe(Fields.POSITION))))
            road.wait(claimed, "another leader, which ZooKeeper knows: what it has to write comes next", Fields.POSITION)
            before = here.observer.observe(Fields.POSITION)
            assert "G07" in codes(asked(here, "lag", 8.0))
            after = here.observer.observe(Fields.POSITION)
            assert migration(after).metadata_offset == migration(before).metadata_offset, "wedged"
            assert after.quorum is not None
            assert before.quorum is not None
            assert after.quorum.high_watermark > before.quorum.high_watermark
            subscribe(hands.brokers[0], None)
            done(here, "lag")


def claimed(view: ClusterView) -> bool:
    """Whether /controller names the quorum's leader, under its own epoch."""
    owner = view.zk.controller if view.zk else None
    return view.quorum is not None and isinstance(owner, ZkController) and owner.kraft_epoch == view.quorum.leader_epoch


class TestItEnds:
    """ZooKeeper answers, everybody runs, and nothing is written any more. Kafka says "Will retry"."""

    @pytest.mark.proof
    def test_a_lost_answer_ends_it_until_another_controller_leads(self, road: Road) -> None:
        hands = road.at(Point.DUAL_WRITE)
        before = leader(road.observe(Fields.POSITION))
        with hands.zookeeper() as zookeeper:  # as by a write whose answer did not arrive
            zookeeper.set("/migration", zookeeper.get("/migration")[0])
        time.sleep(JUST_NOW)  # what ended less long ago looks alive to everybody
        with direct.context(road.cluster, "road") as here:
            assert "G07" in codes(asked(here, "lag", 15.0))
            create(road.cluster.bootstrap, "unwritten")
            time.sleep(5.0)
            assert "unwritten" not in road.topics_in_zookeeper()
            assert any("unwritten" in text for text in road.judged(0.0).problems), "the judge finds a loss that is real"
            done(here, "soak", seconds=2)
            assert leader(here.observer.observe(Fields.POSITION)) != before
            done(here, "equivalent")
            assert road.judged().is_good
        assert "unwritten" in road.topics_in_zookeeper()

    def test_a_rollback_continues_after_its_dual_write_ended(self, road: Road) -> None:
        """Met in the fault matrix: links to ZooKeeper broke while a broker was rolled back, and every later broker waited."""
        hands = road.at(Point.DUAL_WRITE)
        with direct.context(road.cluster, "road") as here:
            done(here, "controller failover")
            with hands.zookeeper() as zookeeper:
                zookeeper.set("/migration", zookeeper.get("/migration")[0])
            before = leader(here.observer.observe(Fields.POSITION))
            done(here, "roll back broker", node=0, target=BrokerMode.MIGRATION)
            assert leader(here.observer.observe(Fields.POSITION)) != before
            done(here, "roll back broker", node=1, target=BrokerMode.MIGRATION)
            modes = here.observer.observe(Fields.POSITION).modes()
        assert [modes[number] for number in (0, 1)] == [BrokerMode.MIGRATION] * 2

    @pytest.mark.parametrize(
        ("point", "kind", "target"),
        [(Point.DUAL_WRITE, "roll back broker", BrokerMode.MIGRATION), (Point.COPIED, "roll", BrokerMode.KRAFT)],
    )
    def test_a_broker_that_starts_after_it_ended_hears_of_its_topics_in_the_end(
        self, road: Road, monkeypatch: pytest.MonkeyPatch, point: Point, kind: str, target: BrokerMode
    ) -> None:
        """Met in the fault matrix: a broker was down in its rollback when it ended, and was waited for in vain."""
        hands = road.at(point)

        def ended_while_down(
            context: StepContext, node: NodeSpec, metas: MetaTexts, while_down: Callable[[float], object]
        ) -> None:
            def stopped(seconds: float) -> None:
                with hands.zookeeper() as zookeeper:
                    zookeeper.set("/migration", zookeeper.get("/migration")[0])
                while_down(seconds)

            nodes.restart(context, node, metas, stopped)

        with direct.context(road.cluster, "road") as here:
            if kind == "roll back broker":
                done(here, "controller failover")
            monkeypatch.setattr(brokers, "restart", ended_while_down)
            done(here, kind, node=0, target=target)
            monkeypatch.undo()
            done(here, "lag")
            assert everybody_in_sync(here.observer.observe(Fields.PARTITIONS))

    def test_a_topic_that_zookeeper_holds_in_part_ends_it_under_any_leader(self, road: Road) -> None:
        hands = road.at(Point.DUAL_WRITE)
        create(road.cluster.bootstrap, "half")
        with direct.context(road.cluster, "road") as here:
            done(here, "equivalent")
            with hands.zookeeper() as zookeeper:  # as by a freeze while it was made
                zookeeper.delete("/brokers/topics/half/partitions/1", recursive=True)
            assert moves(here), "as long as the same controller leads, nothing shows it"
            for _ in range(2):
                another_leads(road, hands)
                assert "G07" in codes(asked(here, "lag", 20.0)), "a failover is no cure"
            done(here, "soak", seconds=2)
            done(here, "equivalent")

    def test_a_rollback_completes_it_before_its_failover(self, road: Road) -> None:
        hands = road.at(Point.DUAL_WRITE)
        create(road.cluster.bootstrap, "half")
        with direct.context(road.cluster, "road") as here:
            done(here, "equivalent")
            with hands.zookeeper() as zookeeper:
                zookeeper.delete("/brokers/topics/half/partitions", recursive=True)
            done(here, "controller failover")
            done(here, "equivalent")
            led = {index: one.leader for index, one in here.tools.zk.topics()["half"].partitions.items()}
        assert len(led) == 3
        assert min(led.values()) >= 0, led


def moves(here: StepContext) -> bool:
    """Whether the dual-write does, within 15 s."""
    return isinstance(run_step(build(here.spec, "lag", {}), here, sync_for=15.0), Done)


def another_leads(road: Road, hands: ByHand) -> None:
    """The active controller is killed and comes back."""
    active = leader(road.observe(Fields.POSITION))
    hands.kill(controller(hands, active))
    hands.start(controller(hands, active))
    road.wait(
        lambda view: len(alive(view)) == 3 and view.quorum is not None and leader(view) != active, "another", Fields.POSITION
    )


def made_while_frozen(road: Road, hands: ByHand, attempt: int) -> set[str]:
    """Topics that are created one by one while ZooKeeper is stopped for longer than sessions last; those that KRaft made."""
    names = [f"frozen-{attempt}-{number}" for number in range(6)]
    admin = AdminClient({"bootstrap.servers": road.cluster.bootstrap, "log_level": 0})
    admin.list_topics(timeout=20)
    with hands.zookeeper_frozen():
        for name in names:
            (future,) = admin.create_topics([NewTopic(name, 1, 3)]).values()
            future.result(20)
        time.sleep(SESSION_S * 1.5)
    return set(names)
