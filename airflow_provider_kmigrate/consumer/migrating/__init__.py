"""A consumer that moves off ZooKeeper's coordination (KIP-125) live: what `core.member` decides, carried out."""

from airflow_provider_kmigrate.consumer.migrating.consumer import MigratingConsumer

__all__ = ["MigratingConsumer"]
