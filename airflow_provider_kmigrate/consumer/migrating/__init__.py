"""A consumer that moves off ZooKeeper's coordination (KIP-125) live: it carries out what `core.member` decides."""

from airflow_provider_kmigrate.consumer.migrating.consumer import MigratingConsumer

__all__ = ["MigratingConsumer"]
