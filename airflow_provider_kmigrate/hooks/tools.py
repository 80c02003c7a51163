"""From a cluster file to the addresses and identities of its cluster, through Airflow's connections."""

from __future__ import annotations

from airflow_provider_kmigrate.clients.connection_fields import Connection
from airflow_provider_kmigrate.clients.connections import named_connections, settings_for
from airflow_provider_kmigrate.clients.settings import ClusterSettings
from airflow_provider_kmigrate.core.cluster import ClusterSpec
from airflow_provider_kmigrate.hooks import connection


def settings_of(spec: ClusterSpec) -> ClusterSettings:
    """Addresses and identities of everything of a cluster.

    Raises `Refused` for a missing connection, saying where the cluster file names it, and for a wrong one, saying how.
    """
    named = named_connections(spec)

    def lookup(conn_id: str) -> Connection:
        return connection.get(conn_id, *named[conn_id])

    return settings_for(spec, lookup)
