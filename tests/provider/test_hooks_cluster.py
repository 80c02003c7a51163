"""Hooks against a real cluster, through the cluster file and the connections that `localcluster up` writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from airflow_provider_kmigrate import spec
from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, Fields, ProcessState
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec
from airflow_provider_kmigrate.hooks.connections import ClusterHooks, ZooKeeperHook
from airflow_provider_kmigrate.observe import Observer
from tests.kit.localcluster.cluster import LocalCluster, lent
from tests.kit.localcluster.plan import Shape

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One broker below a chroot."""
    with lent(
        tmp_path_factory.mktemp("cluster"), Shape(name="hooks", brokers=1, controllers=1, racks=0, chroot="/kafka/main")
    ) as there:
        yield there


@pytest.fixture
def cluster(local: LocalCluster, connection: Callable[..., str]) -> ClusterSpec:
    """Its cluster file, with its connections in Airflow."""
    for conn_id, fields in json.loads(local.plan.connections_path.read_text(encoding="utf-8")).items():
        connection(conn_id, **fields)
    return spec.load(local.spec_path)


def test_the_test_button_says_which_cluster_answers(cluster: ClusterSpec) -> None:
    ok, text = ZooKeeperHook(cluster.zookeeper_conn_id).test_connection()
    assert ok, text
    assert f"/kafka/main holds Kafka cluster {cluster.cluster_id}: brokers 0, controller 0 (ZooKeeper mode)" in text


@pytest.mark.parametrize("chroot", ["/wrong", "/kafka"])
def test_a_wrong_chroot_is_named_and_not_created(local: LocalCluster, connection: Callable[..., str], chroot: str) -> None:
    connection("wrong", "kmigrate_zookeeper", host=f"{local.plan.zookeeper}{chroot}")
    answers = [ZooKeeperHook("wrong").test_connection() for _ in range(2)]
    assert [ok for ok, _ in answers] == [False, False]
    assert all(chroot in text for _, text in answers)
    assert answers[0] == answers[1], "the first test must not have created what it did not find"


def test_the_tools_of_a_cluster_file_see_the_cluster(cluster: ClusterSpec) -> None:
    with ClusterHooks(cluster).open_tools() as tools, Observer(cluster, tools) as observer:
        view = observer.observe(Fields.PROCESSES | Fields.BROKERS | Fields.ZOOKEEPER | Fields.PARTITIONS)
    assert view.unknowns == ()
    assert tools.chroot == "/kafka/main"
    assert view.brokers[0].mode is BrokerMode.ZOOKEEPER
    assert view.brokers[0].process.state is ProcessState.RUNNING
    assert view.zk is not None
    assert view.zk.cluster_id == cluster.cluster_id
