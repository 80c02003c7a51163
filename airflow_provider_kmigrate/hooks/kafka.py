"""Connection type `kafka`, which Airflow's Kafka provider registers: the same connections serve both packages."""

from __future__ import annotations

from airflow.sdk import BaseHook

from airflow_provider_kmigrate.clients.admin import Admin
from airflow_provider_kmigrate.clients.connections import KAFKA, kafka_settings
from airflow_provider_kmigrate.clients.settings import KafkaSettings
from airflow_provider_kmigrate.clients.wire import NodeMetadata, Wire
from airflow_provider_kmigrate.clients.wire_connection import from_kafka
from airflow_provider_kmigrate.exceptions import Unavailable
from airflow_provider_kmigrate.hooks import connection


class KafkaAdminHook(BaseHook):
    """The brokers, through librdkafka.

    Not a subclass of the provider's `KafkaAdminClientHook`: that one resolves callbacks and managed clouds' tokens, which the wire
    client could not share, hides `get_conn` behind a property, and reports a missing server as a ValueError.
    """

    conn_name_attr = "kafka_config_id"
    default_conn_name = "kafka_default"
    conn_type = KAFKA
    hook_name = "Apache Kafka"

    def __init__(self, kafka_config_id: str = default_conn_name) -> None:
        super().__init__()
        self.kafka_config_id = kafka_config_id

    def settings(self) -> KafkaSettings:
        """Kafka's settings; raises `Refused` for a missing or wrong connection."""
        return kafka_settings(self.kafka_config_id, connection.get(self.kafka_config_id, self.conn_type))

    def get_conn(self) -> Admin:
        """A client that connects at its first call; close it."""
        return Admin(self.settings())

    def test_connection(self) -> tuple[bool, str]:
        """Ask a bootstrap server through both of our clients: the wire's, which knows at once, and librdkafka."""
        return connection.tested(self._look)

    def _look(self) -> str:
        settings = self.settings()
        metadata = first_answer(settings)
        with Admin(settings) as client:
            partitions = client.partitions()
        leaderless = sum(partition.leader < 0 for partition in partitions)
        short = sum(partition.under_replicated for partition in partitions)
        brokers = ", ".join(map(str, sorted(metadata.broker_ids)))
        health = f"{len(partitions)} partitions, {leaderless} without leader, {short} under-replicated"
        return f"{settings.bootstrap} answers: cluster {metadata.cluster_id}, brokers {brokers}, {health}."


def first_answer(settings: KafkaSettings) -> NodeMetadata:
    """Node metadata of the first bootstrap server that answers; raises the last one's error if none does."""
    security, servers = from_kafka(settings), settings.servers
    for position, (host, port) in enumerate(servers, 1):
        try:
            with Wire(host, port, security) as wire:
                return wire.metadata()
        except Unavailable:
            if position == len(servers):
                raise
    raise AssertionError("kafka_settings refuses an empty list of servers")
