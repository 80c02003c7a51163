"""A real cluster for the clients' tests, and corners of its ZooKeeper that look like a cluster and may be broken."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient

from airflow_provider_kmigrate.clients.settings import ZooKeeperSettings
from tests.kit.localcluster.cluster import LocalCluster, lent
from tests.kit.localcluster.plan import Shape

CHROOT = "/kafka/main"
_numbers = itertools.count()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three brokers in ZooKeeper mode below a chroot."""
    with lent(tmp_path_factory.mktemp("cluster"), Shape(name="clients", brokers=3, controllers=1, chroot=CHROOT)) as there:
        yield there


@pytest.fixture(scope="session")
def servers(cluster: LocalCluster) -> str:
    """Its ZooKeeper; a module whose tests need no broker has one of its own by this name."""
    return cluster.plan.zookeeper


@pytest.fixture
def own_chroot(servers: str) -> Iterator[ZooKeeperSettings]:
    """A chroot of the test's own, with the least that makes it a cluster: `cluster-1`, led by broker 0 for the third time."""
    hosts, chroot = servers, f"/test-{next(_numbers)}"
    root = KazooClient(hosts)
    root.start()
    try:
        root.create(f"{chroot}/cluster/id", b'{"version":"1","id":"cluster-1"}', makepath=True)
        root.create(f"{chroot}/controller", b'{"version":2,"brokerid":0,"timestamp":"1","kraftControllerEpoch":-1}')
        root.create(f"{chroot}/controller_epoch", b"3")
        yield ZooKeeperSettings(hosts, chroot)
        root.delete(chroot, recursive=True)
    finally:
        root.stop()
        root.close()


@pytest.fixture
def kazoo_client(own_chroot: ZooKeeperSettings) -> Iterator[KazooClient]:
    """A plain client in the test's own chroot, to put things there."""
    client = KazooClient(f"{own_chroot.hosts}{own_chroot.chroot}")
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()
