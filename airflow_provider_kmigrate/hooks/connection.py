"""Airflow's connections, with every secret masked: one connection, its *Test*, and all settings of a cluster file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow.sdk import BaseHook
from airflow.sdk import Connection as AirflowConnection
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.sdk.log import mask_secret

from airflow_provider_kmigrate.clients.connections import Connection, missing, named_connections, secrets_of, settings_for
from airflow_provider_kmigrate.clients.settings import ClusterSettings
from airflow_provider_kmigrate.core.cluster import ClusterSpec
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, KMigrateError, Unavailable

_FIELDS = ("conn_type", "host", "port", "login", "password", "schema", "extra")
_NEXT = {
    AuthenticationFailed: "Next: check this connection's user, password and TLS files, and what that user may do.",
    Unavailable: "Next: check the address and the port, and that this machine may reach them.",
}


def get(conn_id: str, conn_type: str, named_in: str = "") -> Connection:
    """The connection, its secrets masked in every log from now on; in a triggerer too, on its loop or in a thread (Airflow 3.3).

    Raises `Refused` if there is none; `named_in` says what needs it.
    """
    try:
        found = _fields(BaseHook.get_connection(conn_id))
    except AirflowNotFoundException as error:
        raise missing(conn_id, conn_type, named_in) from error
    for secret in secrets_of(found):
        mask_secret(secret)
    return found


def tested(look: Callable[[], str]) -> tuple[bool, str]:
    """Airflow's answer to *Test*: what `look` observed, or what failed and what to do next."""
    try:
        return True, look()
    except KMigrateError as error:
        advice = next((text for kind, text in _NEXT.items() if isinstance(error, kind)), "")
        return False, f"{error} {advice}".strip()


def _fields(connection: AirflowConnection) -> dict[str, Any]:
    """The connection's fields. Not `extra_dejson`: it reads broken JSON as an empty mapping, and its masks come after the fact."""
    return {name: getattr(connection, name) for name in _FIELDS}


def settings_of(spec: ClusterSpec) -> ClusterSettings:
    """Addresses and identities of a whole cluster, from its file.

    Raises `Refused` for a missing connection, saying where the cluster file names it, and for a wrong one, saying how.
    """
    named = named_connections(spec)

    def lookup(conn_id: str) -> Connection:
        return get(conn_id, *named[conn_id])

    return settings_for(spec, lookup)
