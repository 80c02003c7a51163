"""Whom to ask for KRaft's side of each kind of metadata, and what follows from nobody being able to tell.

Brokers in KRaft mode tell all of it. Those in migration mode answer with ZooKeeper's own, which would always look equal: they are
not asked. Controllers tell ACLs and the default settings of brokers, so that these are compared before the first broker runs in
KRaft mode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, TypeVar

from airflow_provider_kmigrate.clients import stored_kraft, stored_zookeeper
from airflow_provider_kmigrate.clients.stored_kraft import NotTold
from airflow_provider_kmigrate.clients.tools import Tools
from airflow_provider_kmigrate.clients.wire import Wire
from airflow_provider_kmigrate.core.cluster import NodeSpec
from airflow_provider_kmigrate.core.metadata import stored
from airflow_provider_kmigrate.core.model import BrokerMode, Entities, Reason, Stored, StoredKind
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, KMigrateError, Unavailable, WrongCluster
from airflow_provider_kmigrate.observe import unknowns

Value = TypeVar("Value")

_NO_KRAFT: Final = "no broker that answers runs in KRaft mode yet"
_NO_REQUEST: Final = "KRaft tells none; no transaction has an id beyond those of ZooKeeper"
_STRANGER: Final = "not a broker of the cluster file"
_SILENT: Final = "it does not answer, and only it could tell"
_ON_ZOOKEEPER: Final = "not in KRaft mode, where a broker tells what ZooKeeper has"


class Found(NamedTuple):
    """The kinds of which both sides were read, and why the others were not."""

    stored: Mapping[StoredKind, Stored]
    unread: tuple[Reason, ...]


class StoredReads:
    """Both sides of one cluster's metadata beside topics."""

    def __init__(self, brokers: Sequence[NodeSpec], controllers: Sequence[NodeSpec], tools: Tools) -> None:
        self._brokers, self._controllers, self._tools = brokers, controllers, tools

    def everything(self) -> Found:
        """All kinds, one after the other; one that fails does not keep the others from being read."""
        modes = self._modes()
        found: dict[StoredKind, Stored] = {}
        unread = []
        for kind in StoredKind:
            try:
                found[kind] = self._both(kind, modes)
            except (AuthenticationFailed, WrongCluster):
                raise
            except KMigrateError as error:
                unread.append(replace(unknowns.STORED, text=f"{unknowns.STORED.text}: {kind}: {error}"))
        return Found(found, tuple(unread))

    def _both(self, kind: StoredKind, modes: Mapping[NodeSpec, BrokerMode]) -> Stored:
        """ZooKeeper first: what is written meanwhile shows as a difference that the next look does not have."""
        zookeeper = stored_zookeeper.read(self._tools.zk, kind)
        if kind is StoredKind.BROKER_SETTINGS:
            return self._broker_settings(zookeeper, modes)
        if kind is StoredKind.PRODUCER_IDS:
            return Stored(zookeeper, self._producer_ids(modes), {Stored.EVERY: _NO_REQUEST})
        try:
            return Stored(zookeeper, self._kraft(kind, _in_kraft_mode(modes)))
        except NotTold as error:
            return Stored(zookeeper, untold={Stored.EVERY: str(error)})

    def _kraft(self, kind: StoredKind, told_by: Sequence[NodeSpec]) -> Entities:
        if kind is StoredKind.ACLS:
            return self._first((*told_by, *self._controllers), stored_kraft.acls)
        if not told_by:
            raise NotTold(_NO_KRAFT)
        if kind is StoredKind.TOKENS:
            return self._first_broker(told_by, stored_kraft.tokens)
        return self._first(told_by, stored_kraft.quotas if kind is StoredKind.QUOTAS else stored_kraft.credentials)

    def _broker_settings(self, zookeeper: Entities, modes: Mapping[NodeSpec, BrokerMode]) -> Stored:
        """Each broker in KRaft mode tells its own, and any KRaft node the default of all."""
        told_by = _in_kraft_mode(modes)
        kraft = {stored.broker(node.id): stored_kraft.broker_settings(self._tools.wire(node), node.id) for node in told_by}
        default = self._first((*told_by, *self._controllers), lambda wire: stored_kraft.broker_settings(wire, None))
        others = {stored.broker(node.id): _ON_ZOOKEEPER if node in modes else _SILENT for node in self._brokers}
        known = {**kraft, stored.ALL_BROKERS: default}
        entities = sorted({*zookeeper, *others} - known.keys())
        return Stored(zookeeper, known, {entity: others.get(entity, _STRANGER) for entity in entities})

    def _producer_ids(self, modes: Mapping[NodeSpec, BrokerMode]) -> Entities:
        """The highest producer id that a broker coordinates: less than all there are, but brokers tell it in every mode."""
        seen = (stored_kraft.highest_producer_id(self._tools.wire(node)) for node in modes)
        highest = max((found for found in seen if found is not None), default=None)
        return {} if highest is None else {stored.PRODUCER_IDS: {stored.HIGHEST: str(highest)}}

    def _modes(self) -> dict[NodeSpec, BrokerMode]:
        """Of the brokers that answer. Raises `Unavailable` where none does."""
        found = {}
        for node in self._brokers:
            try:
                found[node] = self._tools.wire(node).api_versions().mode
            except AuthenticationFailed:
                raise
            except KMigrateError:
                continue
        if not found:
            raise Unavailable("no broker answers")
        return found

    def _first(self, nodes: Iterable[NodeSpec], read: Callable[[Wire], Value]) -> Value:
        return self._first_broker(nodes, lambda wire, _: read(wire))

    def _first_broker(self, nodes: Iterable[NodeSpec], read: Callable[[Wire, int], Value]) -> Value:
        """What the first node that answers says; `NotTold` is an answer."""
        last: KMigrateError = Unavailable("there is no node to ask")
        for node in nodes:
            try:
                return read(self._tools.wire(node), node.id)
            except AuthenticationFailed:
                raise
            except KMigrateError as error:
                last = error
        raise last


def _in_kraft_mode(modes: Mapping[NodeSpec, BrokerMode]) -> list[NodeSpec]:
    return [node for node, mode in modes.items() if mode is BrokerMode.KRAFT]
