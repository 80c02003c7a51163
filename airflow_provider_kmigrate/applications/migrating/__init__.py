"""A consumer that moves off ZooKeeper's coordination (KIP-125) live: it carries out what `core.member` decides."""

from airflow_provider_kmigrate.applications.migrating.consumer import MigratingConsumer, audited_of, consumer_of

__all__ = ["MigratingConsumer", "audited_of", "consumer_of"]
