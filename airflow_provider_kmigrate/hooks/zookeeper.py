"""Connection type `kmigrate_zookeeper`."""

from __future__ import annotations

from airflow.sdk import BaseHook

from airflow_provider_kmigrate.clients.connections import ZOOKEEPER, zookeeper_settings
from airflow_provider_kmigrate.clients.settings import ZooKeeperSettings
from airflow_provider_kmigrate.clients.zookeeper import ZooKeeper
from airflow_provider_kmigrate.core.model import Malformed, ZkView
from airflow_provider_kmigrate.hooks import connection


class ZooKeeperHook(BaseHook):
    """The brokers' ZooKeeper: host is their `zookeeper.connect`, chroot included."""

    conn_name_attr = "zookeeper_conn_id"
    default_conn_name = "kmigrate_zookeeper_default"
    conn_type = ZOOKEEPER
    hook_name = "ZooKeeper (kmigrate)"

    def __init__(self, zookeeper_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.zookeeper_conn_id = zookeeper_conn_id

    def settings(self) -> ZooKeeperSettings:
        """ZooKeeper's settings; raises `Refused` for a missing or wrong connection."""
        return zookeeper_settings(self.zookeeper_conn_id, connection.get(self.zookeeper_conn_id, self.conn_type))

    def get_conn(self) -> ZooKeeper:
        """A client that connects at its first call; close it."""
        return ZooKeeper(self.settings())

    def test_connection(self) -> tuple[bool, str]:
        """One read of the cluster's znodes."""
        return connection.tested(self._look)

    def _look(self) -> str:
        settings = self.settings()
        with ZooKeeper(settings) as client:
            return f"{settings.hosts}{settings.chroot} holds {_summary(client.view())}."


def _summary(view: ZkView) -> str:
    brokers = f"brokers {', '.join(map(str, view.broker_ids))}" if view.broker_ids else "no registered broker"
    controller = view.controller
    if controller is None:
        who = "no controller at the moment"
    elif isinstance(controller, Malformed):
        who = f"{controller.path} with a content that is not Kafka's"
    else:
        who = f"controller {controller.broker_id} ({'KRaft' if controller.is_kraft else 'ZooKeeper mode'})"
    return f"Kafka cluster {view.cluster_id}: {brokers}, {who}"
