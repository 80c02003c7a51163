"""The rollback on real brokers under load: from a half done second roll by the DAG, and forward again; and the epoch bomb."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from confluent_kafka import Producer
from kazoo.client import KazooClient

from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, ClusterView, Fields
from airflow_provider_kmigrate.core.cluster_state.spec import NodeSpec
from airflow_provider_kmigrate.core.migration.phase import Phase, position_of
from airflow_provider_kmigrate.core.node_files.properties import parse_properties
from airflow_provider_kmigrate.exceptions import Refused, TimedOut
from airflow_provider_kmigrate.steps.catalog import run_rollback
from airflow_provider_kmigrate.steps.prepare import run_preflight
from airflow_provider_kmigrate.steps.rollback import Handover
from airflow_provider_kmigrate.steps.run import StepContext
from benchmarks import direct
from benchmarks.rehearsal import Rehearsal
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster.cluster import SHORT_SESSION, LocalCluster, lent
from tests.kit.localcluster.plan import Shape, folder_of
from tests.kit.processes import NodeProcess
from tests.kit.workload import GroupPlan
from tests.system import evidence
from tests.waiting import wait_for

PARTITIONS = 6
DURABLE = TopicPlan("t", PARTITIONS, config={"min.insync.replicas": "2"})

pytestmark = [pytest.mark.cluster, pytest.mark.slow(seconds=35), pytest.mark.timeout(540)]


def version_1(folder: Path) -> None:
    """meta.properties as kafka-storage writes it for a broker that was formatted again; plain ZooKeeper brokers exit on it (measured)."""
    path = folder / "data" / "meta.properties"
    keys = parse_properties(path.read_text())
    rest = {key: value for key, value in keys.items() if key not in {"version", "broker.id"}}
    path.write_text("".join(f"{key}={value}\n" for key, value in {**rest, "version": "1", "node.id": keys["broker.id"]}.items()))


@pytest.mark.long
@pytest.mark.proof
def test_back_by_the_dag_and_forward_again(tmp_path: Path) -> None:
    topics, groups = (TopicPlan("orders", 12), TopicPlan("pair", 4, 2)), (GroupPlan("billing", 2),)
    policy = {"min_soak": "0s", "canary_bake": "0s"}
    with closing(Rehearsal(tmp_path, topics=topics, groups=groups, policy=policy)) as rehearsal:
        rehearsal.up()
        rehearsal.load()
        rehearsal.forward(direct.to_hybrid)
        version_1(folder_of(rehearsal.cluster.plan.brokers[1]))
        run = rehearsal.roll_back()
        assert run["state"] == "success", run["tasks"]
        check_back(rehearsal.cluster)
        create_topics({"bootstrap.servers": rehearsal.cluster.bootstrap}, [TopicPlan("since", 3)])
        rehearsal.forward(direct.to_hybrid)
        assert rehearsal.account().failures == ()
        producer = Producer({"bootstrap.servers": rehearsal.cluster.bootstrap})
        assert "since" in producer.list_topics(timeout=20).topics, "the topic made between the two migrations"


@pytest.mark.long
def test_a_dual_write_that_died_after_the_controller_failover_keeps_the_controllers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KRaft takes a topic that neither ZooKeeper nor a broker in migration mode ever hears of; the next run of the rollback brings it back."""
    monkeypatch.setattr(Handover, "patience", 15.0)
    with lent(tmp_path / "cluster", Shape(brokers=3, controllers=3)) as cluster, direct.context(cluster, "pause") as here:
        create_topics({"bootstrap.servers": cluster.bootstrap}, [DURABLE])
        direct.to_copied(here)
        keeper = KazooClient(cluster.zookeeper)
        keeper.start(timeout=20)
        keeper.set("/migration", keeper.get("/migration")[0])  # another version: this leader never writes again
        time.sleep(3.0)
        with suppress(TimedOut):  # it is taken, and gets no leader
            create_topics({"bootstrap.servers": cluster.bootstrap}, [TopicPlan("since", 3)])
        assert keeper.exists("/brokers/topics/since") is None
        with pytest.raises(TimedOut, match="G33"):
            direct.step(here, "handover")
        run_rollback(here)
        assert keeper.exists("/brokers/topics/since") is not None
        keeper.stop()
        keeper.close()
        check_back(cluster)
        check_no_bomb(cluster, here)


def check_no_bomb(cluster: LocalCluster, here: StepContext) -> None:
    """Leaders and ISRs look healthy too where no leader can move any more (G02): a broker dies, and its partitions take records all the same."""
    until_gone(here, kill_one(cluster).id)
    check_all_take(cluster.bootstrap)


def check_all_take(bootstrap: str) -> None:
    wait_for(lambda: written(bootstrap, 10), lambda good: good == set(range(PARTITIONS)), "every partition takes records")


def check_back(cluster: LocalCluster) -> None:
    with direct.context(cluster, "looking", acting=False) as here:
        view = here.observer.observe(evidence.EVERYTHING | Fields.STATE_EPOCH)
    assert position_of(view).phase is Phase.ZOOKEEPER
    assert view.modes() == dict.fromkeys(range(3), BrokerMode.ZOOKEEPER)
    assert view.zk is not None
    assert view.zk.migration is None
    assert view.state_epoch is not None
    assert view.zk.controller_epoch is not None
    assert view.state_epoch <= view.zk.controller_epoch
    for node in cluster.plan.controllers:
        data = Path(node.log_dir or "")
        assert not data.exists() or not any(data.iterdir())
        assert any(data.parent.glob(f"{data.name}.rolled-back-*")), "kept, not deleted"


@pytest.fixture(scope="module")
def bomb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster in ZooKeeper mode whose partition states hold an epoch that its controller has not, as a careless rollback leaves it."""
    with lent(tmp_path_factory.mktemp("bomb") / "cluster", Shape(brokers=3, controllers=1), SHORT_SESSION) as cluster:
        create_topics({"bootstrap.servers": cluster.bootstrap}, [DURABLE])
        with_states_of_epoch(cluster, 50)
        yield cluster


def with_states_of_epoch(cluster: LocalCluster, epoch: int) -> None:
    """As the controllers of a migration leave the states, where /controller_epoch is not raised beyond theirs."""
    keeper = KazooClient(cluster.zookeeper)
    keeper.start(timeout=20)
    try:
        for partition in range(PARTITIONS):
            path = f"/brokers/topics/t/partitions/{partition}/state"
            state = json.loads(keeper.get(path)[0])
            keeper.set(path, json.dumps({**state, "controller_epoch": epoch}).encode())
    finally:
        keeper.stop()
        keeper.close()


def written(bootstrap: str, seconds: float) -> set[int]:
    """The partitions of t that take a record with acks=all in that time."""
    acked: set[int] = set()
    properties = {"bootstrap.servers": bootstrap, "acks": "all", "message.timeout.ms": int(seconds * 1000)}
    producer = Producer(properties)
    for partition in range(PARTITIONS):
        producer.produce("t", b"x", partition=partition, on_delivery=lambda error, m: error or acked.add(m.partition()))  # type: ignore[arg-type]
    producer.flush(seconds + 5)
    return acked


def test_a_cluster_that_was_rolled_back_without_raising_the_epoch_is_found_and_repaired(bomb: LocalCluster) -> None:
    with direct.context(bomb, "looking", acting=False) as here:
        with pytest.raises(Refused) as refused:
            run_preflight(here)
        assert "G02" in {reason.code for reason in refused.value.reasons}
    assert written(bomb.bootstrap, 20) == set(range(PARTITIONS)), "it looks healthy"
    victim = kill_one(bomb)
    with direct.context(bomb, "repair") as here:
        gone = until_gone(here, victim.id)
        assert written(bomb.bootstrap, 12) != set(range(PARTITIONS)), f"the bomb: {gone}"
        direct.step(here, "handover")
        check_all_take(bomb.bootstrap)
        run_rollback(here)
        with_all = here.observer.observe(evidence.EVERYTHING)
    assert not [p for p in with_all.partitions or () if p.is_under_replicated]


def kill_one(cluster: LocalCluster) -> NodeSpec:
    """SIGKILL for a broker that is not the controller."""
    with direct.context(cluster, "looking", acting=False) as here:
        zk = here.observer.observe(Fields.ZOOKEEPER).zk
    controller = getattr(zk.controller if zk else None, "broker_id", 0)
    victim = next(node for node in cluster.plan.brokers if node.id != controller)
    os.kill(NodeProcess(folder_of(victim)).find().pid or 0, signal.SIGKILL)
    return victim


def until_gone(here: StepContext, broker: int) -> ClusterView:
    """ZooKeeper has let go of the broker's session."""
    wait_for(
        lambda: here.observer.observe(Fields.ZOOKEEPER),
        lambda view: view.zk is not None and broker not in view.zk.broker_ids,
        "gone",
        90,
    )
    return here.observer.observe(Fields.ZOOKEEPER | Fields.PARTITIONS)
