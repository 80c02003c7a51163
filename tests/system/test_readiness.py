"""Whether a rollback is assured, on real brokers: one hybrid cluster, one trouble after another, and the next restart refused in each.

The trouble goes, and the next restart is allowed again: so each refusal is that trouble's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from airflow_provider_kmigrate.core.cluster_state.decision import Act, Done, Wait
from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, Fields
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, NodeRole
from airflow_provider_kmigrate.core.migration import readiness, roll
from airflow_provider_kmigrate.exceptions import Unavailable
from airflow_provider_kmigrate.steps.run import StepContext, with_backup
from airflow_provider_kmigrate.steps.waits import assess_readiness, run_watch
from benchmarks import direct
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster.cluster import LocalCluster, lent
from tests.kit.localcluster.plan import Shape
from tests.kit.processes import NodeProcess
from tests.system.edited_file import file_of
from tests.system.metrics_subscription import subscribe
from tests.system.nodes import down, of, paused
from tests.system.quotas import alter_quota
from tests.system.road import asked, codes
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.slow(seconds=210), pytest.mark.timeout(540)]

SHAPE = Shape("ready", brokers=3, controllers=3, racks=0, zookeepers=3)
NEXT = 1
MOVED = frozenset({0})  # as `direct.to_hybrid` leaves it


@contextmanager
def hybrid(folder: Path) -> Iterator[LocalCluster]:
    """Broker 0 in KRaft mode, the others in migration mode."""
    with lent(folder / "cluster", SHAPE) as cluster:
        create_topics({"bootstrap.servers": cluster.bootstrap}, [TopicPlan("orders", 3, 3)])
        alter_quota(cluster.plan.brokers[0], {"user": "alice"}, "producer_byte_rate", 1_000_000)
        with direct.context(cluster) as here:
            direct.to_hybrid(here)
        yield cluster


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """For two tests in their order: the first one leaves it as it was."""
    with hybrid(tmp_path_factory.mktemp("ready")) as cluster:
        yield cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with hybrid(tmp_path) as cluster:
        yield cluster


def znode(cluster: LocalCluster, path: str, change: Callable[[dict[str, object]], object]) -> None:
    """As a tool that writes ZooKeeper does: KRaft is not informed."""
    client = KazooClient(cluster.zookeeper)
    client.start()
    try:
        held = json.loads(client.get(path)[0])
        change(held)
        client.set(path, json.dumps(held).encode())
    finally:
        client.stop()
        client.close()


@contextmanager
def garbled(cluster: LocalCluster, path: str) -> Iterator[None]:
    """Another tool writes what Kafka cannot read; KRaft's next write then fails, until another controller leads."""
    client = KazooClient(cluster.zookeeper)
    client.start()
    try:
        held = client.get(path)[0]
        client.set(path, b"not for Kafka")
        yield
        client.set(path, held)
    finally:
        client.stop()
        client.close()


def original(here: StepContext, broker: int) -> Path:
    return here.backup.original_path(here.spec.brokers[broker])


@contextmanager
def unnamed(here: StepContext) -> Iterator[ClusterSpec]:
    """An autoscaler has started broker 2: the cluster file does not name it."""
    yield replace(here.spec, brokers=here.spec.brokers[:2])


@contextmanager
def subscribed(here: StepContext) -> Iterator[ClusterSpec]:
    subscribe(here.spec.brokers[0], "3000")
    yield here.spec
    subscribe(here.spec.brokers[0], None)


@contextmanager
def changed_in_zookeeper(cluster: LocalCluster, here: StepContext) -> Iterator[ClusterSpec]:
    """What KRaft holds is not what a rollback would restore."""

    def rate(value: str, held: dict[str, object]) -> None:
        held["config"] = {"producer_byte_rate": value}

    znode(cluster, "/config/users/alice", partial(rate, "4711"))
    yield here.spec
    znode(cluster, "/config/users/alice", partial(rate, "1000000.0"))


@contextmanager
def set_back(here: StepContext) -> Iterator[ClusterSpec]:
    """Configuration management put the original file of broker 0 back, which runs in KRaft mode."""
    with file_of(here.spec.brokers[0], lambda _: original(here, 0).read_text()):
        yield here.spec


@contextmanager
def original_gone(here: StepContext) -> Iterator[ClusterSpec]:
    path = original(here, 2)
    kept = path.rename(path.with_suffix(".away"))
    yield here.spec
    kept.rename(path)


@contextmanager
def of_a_later_release(here: StepContext) -> Iterator[ClusterSpec]:
    """meta.properties of a version that no rollback knows."""
    found = here.observer.observe(Fields.FILES).brokers[2].files.meta or {}
    path = Path(next(iter(found))) / "meta.properties"
    text = path.read_text()
    path.write_text(text.replace("version=0", "version=7").replace("version=1", "version=7"))
    yield here.spec
    path.write_text(text)


@contextmanager
def one_zookeeper_down(cluster: LocalCluster, here: StepContext) -> Iterator[ClusterSpec]:
    with down(NodeProcess(cluster.plan.zookeeper_folders[2]), cluster):
        yield here.spec
    wait_until(lambda: readiness.ensemble_spares_one(here.tools.zk.servers()).met, "three servers that serve")


@contextmanager
def controller_frozen(cluster: LocalCluster, here: StepContext) -> Iterator[ClusterSpec]:
    """The active one: another is elected, which writes ZooKeeper again; the frozen one does not answer."""
    quorum = here.observer.observe(Fields.POSITION).quorum
    assert quorum is not None
    with paused(of(here.spec.node(NodeRole.CONTROLLER, quorum.leader_id))):
        yield here.spec


Troubles = Mapping[str, tuple[AbstractContextManager[ClusterSpec], str]]


def troubles(cluster: LocalCluster, here: StepContext) -> Troubles:
    return {
        "a broker that the cluster file does not name": (unnamed(here), "G39"),
        "a client-metrics subscription": (subscribed(here), "G09"),
        "a setting that only ZooKeeper has": (changed_in_zookeeper(cluster, here), "E08"),
        "a file that was set back": (set_back(here), "O06"),
        "an original that is gone": (original_gone(here), "O01"),
        "a directory of a later release": (of_a_later_release(here), "O08"),
        "one of three ZooKeeper servers down": (one_zookeeper_down(cluster, here), "Z05"),
        "a controller that is frozen": (controller_frozen(cluster, here), "G23"),
    }


def decision(here: StepContext) -> object:
    """What one look at everything makes of the next restart; movement is proven by a look before it."""
    before = here.observer.observe(Fields.POSITION)
    fields = roll.MIN_OBSERVATIONS | readiness.fields_of(readiness.EVERY_PART)
    view = with_backup(here, fields, here.observer.observe(fields))
    return roll.decide_restart(view, NEXT, BrokerMode.KRAFT, before)


def seen(here: StepContext) -> set[str]:
    """The codes of what a rollback misses now."""
    return {each.reason.code for each in assess_readiness(here).readiness.reasons}


def allowed(here: StepContext) -> bool:
    return isinstance(decision(here), Act)


def test_the_next_restart_is_refused_for_each_reason_and_allowed_once_it_is_gone(shared: LocalCluster) -> None:
    with direct.context(shared) as here:
        started = here.observer.observe(Fields.PROCESSES).brokers[NEXT].process.pid
        assert assess_readiness(here).readiness.level == "ready", assess_readiness(here).readiness
        for name, (trouble, code) in troubles(shared, here).items():
            wait_until(lambda: allowed(here), f"all well before {name}", timeout=60.0)
            with trouble as spec, direct.context(shared, spec=spec) as now:
                wait_until(lambda: code in seen(now), f"{name} is seen")  # noqa: B023 - it is over before the next
                assert assess_readiness(now).readiness.level == ("lost" if code == "O01" else "degraded")
                # a broker that answers late holds the roll, too, and hides the rest for that look
                wait_until(lambda: code in codes(asked(now, "roll", 8.0, node=NEXT, target=BrokerMode.KRAFT)), name)  # noqa: B023
        assert here.observer.observe(Fields.PROCESSES).brokers[NEXT].process.pid == started, "it was never stopped"
        wait_until(lambda: allowed(here), "all well again", timeout=60.0)
        said = r"Broker 2 does not answer. Its unit is stopped.*Its file is of stage 'migration'"
        with down(of(here.spec.brokers[2]), shared), pytest.raises(Unavailable, match=said):
            run_watch(here)
        wait_until(lambda: allowed(here), "broker 2 is back", timeout=90.0)
        assert "A rollback is possible now" in run_watch(here).text


def test_a_dual_write_that_stalls_is_repaired_before_the_next_restart(shared: LocalCluster) -> None:
    """The version of /migration changes as by a write whose answer was lost: the active controller never writes again."""
    with direct.context(shared) as here:
        before = here.observer.observe(Fields.POSITION)
        client = KazooClient(shared.zookeeper)
        client.start()
        client.set("/migration", client.get("/migration")[0])
        client.stop()
        client.close()
        wait_until(lambda: isinstance(decision(here), Wait), "it is seen to have stalled")
        assert isinstance(direct.step(here, "roll", node=NEXT, target=BrokerMode.KRAFT), Done)
        after = here.observer.observe(Fields.POSITION)
        assert after.quorum is not None
        assert before.quorum is not None
        assert after.quorum.leader_epoch > before.quorum.leader_epoch, "another controller was made to lead first"


@pytest.mark.long
@pytest.mark.parametrize(("path", "code"), [("/migration", "P04"), ("/controller_epoch", "G00")])
def test_the_next_restart_is_refused_while_a_znode_of_the_owner_cannot_be_read(
    cluster: LocalCluster, path: str, code: str
) -> None:
    with direct.context(cluster) as here:
        started = here.observer.observe(Fields.PROCESSES).brokers[NEXT].process.pid
        with garbled(cluster, path):
            wait_until(lambda: code in seen(here), f"{path} is seen to be unreadable")
            assert code in codes(asked(here, "roll", 8.0, node=NEXT, target=BrokerMode.KRAFT))
            assert here.observer.observe(Fields.PROCESSES).brokers[NEXT].process.pid == started, "it was never stopped"
        assert isinstance(direct.step(here, "roll", node=NEXT, target=BrokerMode.KRAFT), Done)
