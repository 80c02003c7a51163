"""Edits of a node's properties file by others, and which of them count."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from airflow_provider_kmigrate.core.migration import readiness
from airflow_provider_kmigrate.core.migration.readiness import ReadinessAsk, RollbackPart
from airflow_provider_kmigrate.core.node_files.properties import edit_properties
from airflow_provider_kmigrate.steps.run import StepContext, observe_files
from tests.steps.sim import SimCluster

SECRET = "hunter2"
VOTERS = "3000@old:1,3001@old:2,3002@old:3"


def _set(**keys: str) -> Callable[[str], str]:
    return lambda text: edit_properties(text, {key.replace("_", "."): value for key, value in keys.items()})


EDITS: dict[str, tuple[str, Callable[[str], str]]] = {
    "voters": ("controller.quorum.voters", _set(controller_quorum_voters=VOTERS)),
    "directories": ("log.dirs", _set(log_dirs="/elsewhere")),
    "listeners": ("listeners", _set(listeners="PLAINTEXT://127.0.0.9:1")),
    "advertised listeners": ("advertised.listeners", _set(advertised_listeners="PLAINTEXT://127.0.0.9:1")),
    "protocol version": ("inter.broker.protocol.version", _set(inter_broker_protocol_version="3.4")),
    "ZooKeeper": ("zookeeper.connect", _set(zookeeper_connect="elsewhere:2181")),
    "node id": ("node.id", _set(node_id="9")),
    "a password": ("ssl.keystore.password", _set(ssl_keystore_password=SECRET)),
    "a key removed": ("listeners", lambda text: edit_properties(text, {}, ["listeners"])),
    "a key twice": ("log.dirs", lambda text: text + "log.dirs=/second\n"),
    "an include": ("include", lambda text: text + "include=/etc/other.properties\n"),
}


def at(phase: Callable[[SimCluster, StepContext], object], folder: Path) -> tuple[SimCluster, StepContext]:
    cluster = SimCluster()
    context = cluster.context(folder)
    phase(cluster, context)
    return cluster, context


def of_files(context: StepContext) -> list[str]:
    """The reasons of the part that judges files, by one observation."""
    view = observe_files(context, readiness.fields_of({RollbackPart.FILES}))
    return [str(each.reason) for each in readiness.find_shortcomings(view, ReadinessAsk(frozenset({RollbackPart.FILES})))]
