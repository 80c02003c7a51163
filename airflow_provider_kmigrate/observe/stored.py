"""Read the metadata beside topics from ZooKeeper and KRaft, and what preflight needs beside a view.

Brokers in KRaft mode report all of it. Brokers in migration mode answer with ZooKeeper's own data, which would always look equal,
so they are not asked. Controllers report ACLs and the brokers' default settings, so that these are compared before the first
broker runs in KRaft mode. What is not reported stays None, with its reason in `ClusterEnvironment.unread`.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeVar

from airflow_provider_kmigrate.clients import stored_metadata, wire_environment
from airflow_provider_kmigrate.clients.stored_metadata import NotTold
from airflow_provider_kmigrate.clients.tools import Tools
from airflow_provider_kmigrate.clients.wire import Wire
from airflow_provider_kmigrate.core.cluster import ClusterSpec, NodeSpec
from airflow_provider_kmigrate.core.metadata import equivalence
from airflow_provider_kmigrate.core.model import BrokerMode, ClusterView, Entities, Reason, Stored, StoredKind
from airflow_provider_kmigrate.core.preflight.environment import ClusterEnvironment, Taken, ZooKeeperServer
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, KMigrateError, Unavailable, WrongCluster
from airflow_provider_kmigrate.observe import assemble
from airflow_provider_kmigrate.observe.reads import Question, Questions, Reads

Value = TypeVar("Value")

_NO_KRAFT: Final = "no broker that answers runs in KRaft mode yet"
_NO_REQUEST: Final = "KRaft reports none; no transaction has an id beyond those of ZooKeeper"
_STRANGER: Final = "not a broker of the cluster file"
_SILENT: Final = "it does not answer, and only it could report this"
_ON_ZOOKEEPER: Final = "not in KRaft mode; such a broker reports what ZooKeeper has"


class Found(NamedTuple):
    """The kinds of which both sides were read, and why the others were not."""

    stored: Mapping[StoredKind, Stored]
    unread: tuple[Reason, ...]


class StoredReads:
    """Both sides of one cluster's metadata beside topics."""

    def __init__(self, brokers: Sequence[NodeSpec], controllers: Sequence[NodeSpec], tools: Tools) -> None:
        self._brokers, self._controllers, self._tools = brokers, controllers, tools

    def everything(self) -> Found:
        """Read all kinds, one after the other; a kind that fails does not stop the others."""
        modes = self._modes()
        found: dict[StoredKind, Stored] = {}
        unread = []
        for kind in StoredKind:
            try:
                found[kind] = self._both(kind, modes)
            except (AuthenticationFailed, WrongCluster):
                raise
            except KMigrateError as error:
                unread.append(replace(assemble.STORED, text=f"{assemble.STORED.text}: {kind}: {error}"))
        return Found(found, tuple(unread))

    def _both(self, kind: StoredKind, modes: Mapping[NodeSpec, BrokerMode]) -> Stored:
        """ZooKeeper first: what is written meanwhile shows as a difference that the next observation does not have."""
        zookeeper = stored_metadata.read(self._tools.zk, kind)
        if kind is StoredKind.BROKER_SETTINGS:
            return self._broker_settings(zookeeper, modes)
        if kind is StoredKind.PRODUCER_IDS:
            return Stored(zookeeper, self._producer_ids(modes), {Stored.EVERY: _NO_REQUEST})
        try:
            return Stored(zookeeper, self._kraft(kind, _in_kraft_mode(modes)))
        except NotTold as error:
            return Stored(zookeeper, untold={Stored.EVERY: str(error)})

    def _kraft(self, kind: StoredKind, reporters: Sequence[NodeSpec]) -> Entities:
        if kind is StoredKind.ACLS:
            return self._first((*reporters, *self._controllers), stored_metadata.acls)
        if not reporters:
            raise NotTold(_NO_KRAFT)
        if kind is StoredKind.TOKENS:
            return self._first_broker(reporters, stored_metadata.tokens)
        return self._first(reporters, stored_metadata.quotas if kind is StoredKind.QUOTAS else stored_metadata.credentials)

    def _broker_settings(self, zookeeper: Entities, modes: Mapping[NodeSpec, BrokerMode]) -> Stored:
        """Each broker in KRaft mode reports its own settings, any KRaft node the default of all brokers."""
        reporters = _in_kraft_mode(modes)
        kraft = {
            equivalence.broker(node.id): stored_metadata.broker_settings(self._tools.wire(node), node.id) for node in reporters
        }
        default = self._first((*reporters, *self._controllers), lambda wire: stored_metadata.broker_settings(wire, None))
        others = {equivalence.broker(node.id): _ON_ZOOKEEPER if node in modes else _SILENT for node in self._brokers}
        known = {**kraft, equivalence.ALL_BROKERS: default}
        entities = sorted({*zookeeper, *others} - known.keys())
        return Stored(zookeeper, known, {entity: others.get(entity, _STRANGER) for entity in entities})

    def _producer_ids(self, modes: Mapping[NodeSpec, BrokerMode]) -> Entities:
        """The highest producer id that a broker coordinates. It is a lower bound, but brokers report it in every mode."""
        seen = (stored_metadata.highest_producer_id(self._tools.wire(node)) for node in modes)
        highest = max((found for found in seen if found is not None), default=None)
        return {} if highest is None else {equivalence.PRODUCER_IDS: {equivalence.HIGHEST: str(highest)}}

    def _modes(self) -> dict[NodeSpec, BrokerMode]:
        """The modes of the brokers that answer. Raises `Unavailable` if none does."""
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
        """The answer of the first node that responds; `NotTold` counts as an answer."""
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


class EnvironmentReader:
    """Reads one cluster's environment; `patience`: seconds for each node, `long`: seconds for reads of many znodes."""

    def __init__(self, spec: ClusterSpec, tools: Tools, patience: float, long: float) -> None:
        self._spec, self._tools = spec, tools
        self._patience, self._long = patience, long

    def look(self, view: ClusterView, questions: Questions) -> ClusterEnvironment:
        """Start all reads at once; brokers missing from the view are not asked again."""
        alive = [node for node in self._spec.brokers if view.answered(node.id)]
        ask = questions.ask
        releases = {
            node.id: ask(_unreported(node.name, "release"), self._patience, _granted(self._release), node) for node in alive
        }
        dirs = {
            node.id: ask(_unreported(node.name, "log directories"), self._patience, _granted(self._dirs), node) for node in alive
        }
        taken = {
            node.id: ask(_unreported(node.name, "configuration"), self._patience, _granted(self._taken), node) for node in alive
        }
        moving = ask(_unreported("the controller", "reassignments"), self._long, _granted(Reads(alive, self._tools).moving))
        tree = ask(_unreported("ZooKeeper", "settings, users and rules"), self._long, _granted(self._tools.zk.surroundings))
        servers = ask(_unreported("ZooKeeper", "versions"), self._long, _granted(self._tools.zk.servers))
        ensemble = questions.answer(servers) or ()
        return ClusterEnvironment(
            releases=_each(questions, releases, self._spec),
            log_dirs=_each(questions, dirs, self._spec),
            taken=_each(questions, taken, self._spec),
            moving=questions.answer(moving),
            tree=questions.answer(tree),
            servers=ensemble,
            one_machine=one_machine(self._spec, ensemble),
            unread=tuple(reason.text for reason in questions.unknowns),
            now=time.time(),
        )

    def _release(self, node: NodeSpec) -> str:
        return wire_environment.release(self._tools.wire(node), node.id)

    def _taken(self, node: NodeSpec) -> Taken:
        return wire_environment.taken(self._tools.wire(node), node.id)

    def _dirs(self, node: NodeSpec) -> Any:
        return wire_environment.log_dirs(self._tools.wire(node))


def one_machine(spec: ClusterSpec, servers: Iterable[ZooKeeperServer]) -> bool:
    """True if all nodes are processes of this machine and ZooKeeper runs on it too."""
    addresses = [server.address.rpartition(":")[0].strip("[]") for server in servers]
    return bool(addresses) and all(map(_is_here, addresses)) and all(node.hosts.driver == "local" for node in spec.nodes())


def _is_here(address: str) -> bool:
    try:
        return address == "localhost" or ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _each(questions: Questions, asked: Mapping[int, Question[Value]], spec: ClusterSpec) -> dict[int, Value | None]:
    answers = {broker: questions.answer(question) for broker, question in asked.items()}
    return {node.id: answers.get(node.id) for node in spec.brokers}


def _granted(read: Callable[..., Value]) -> Callable[..., Value]:
    """Count a missing right, or another cluster's answer, as not reported: the view has identified the cluster."""

    def wrapped(*arguments: Any) -> Value:
        try:
            return read(*arguments)
        except (AuthenticationFailed, WrongCluster) as error:
            raise Unavailable(str(error)) from error

    return wrapped


def _unreported(who: str, what: str) -> Reason:
    return Reason("", f"{who} did not report its {what}")
