"""The brokers' admin API of an Airflow connection, for DAGs of your own. kmigrate's tasks use the same client without this module's imports."""

from __future__ import annotations

from airflow.providers.apache.kafka.hooks.client import KafkaAdminClientHook

from airflow_provider_kmigrate.clients.admin import Admin
from airflow_provider_kmigrate.clients.connections import KAFKA, kafka_settings
from airflow_provider_kmigrate.clients.settings import KafkaSettings
from airflow_provider_kmigrate.hooks.connections import get


class KafkaAdminHook(KafkaAdminClientHook):
    """The brokers' admin API, on top of the Kafka provider's hook: `get_conn` and `create_topic` are its own.

    `get_admin` returns the client of kmigrate's tasks: each read is tried four times, and errors are kmigrate's.
    """

    def settings(self) -> KafkaSettings:
        """Properties of librdkafka; raises `Refused` for a missing or wrong connection."""
        return kafka_settings(self.kafka_config_id, get(self.kafka_config_id, KAFKA))

    def get_admin(self) -> Admin:
        """A client that connects at its first call; close it."""
        return Admin(self.settings())
