"""Asks what preflight wants to know beside a view. Whatever is not told stays None, with its reason in `Surroundings.unread`."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from airflow_provider_kmigrate.clients import wire_surroundings
from airflow_provider_kmigrate.clients.tools import Tools
from airflow_provider_kmigrate.core.cluster import ClusterSpec, NodeSpec
from airflow_provider_kmigrate.core.model import ClusterView, Reason
from airflow_provider_kmigrate.core.preflight.surroundings import ClusterEnvironment, Taken, ZooKeeperServer
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, Unavailable, WrongCluster
from airflow_provider_kmigrate.observe.questions import Question, Questions
from airflow_provider_kmigrate.observe.reads import Reads

Value = TypeVar("Value")


class EnvironmentReader:
    """The reads of one cluster; `patience` in seconds for each node, `long` for what reads many znodes."""

    def __init__(self, spec: ClusterSpec, tools: Tools, patience: float, long: float) -> None:
        self._spec, self._tools = spec, tools
        self._patience, self._long = patience, long

    def look(self, view: ClusterView, questions: Questions) -> ClusterEnvironment:
        """All questions at once; brokers that did not answer the look are not asked again."""
        alive = [node for node in self._spec.brokers if view.answered(node.id)]
        ask = questions.ask
        releases = {
            node.id: ask(_not_told(node.name, "release"), self._patience, _granted(self._release), node) for node in alive
        }
        dirs = {
            node.id: ask(_not_told(node.name, "log directories"), self._patience, _granted(self._dirs), node) for node in alive
        }
        taken = {
            node.id: ask(_not_told(node.name, "configuration"), self._patience, _granted(self._taken), node) for node in alive
        }
        moving = ask(_not_told("the controller", "reassignments"), self._long, _granted(Reads(alive, self._tools).moving))
        tree = ask(_not_told("ZooKeeper", "settings, users and rules"), self._long, _granted(self._tools.zk.surroundings))
        servers = ask(_not_told("ZooKeeper", "versions"), self._long, _granted(self._tools.zk.servers))
        told = questions.answer(servers) or ()
        return ClusterEnvironment(
            releases=_each(questions, releases, self._spec),
            log_dirs=_each(questions, dirs, self._spec),
            taken=_each(questions, taken, self._spec),
            moving=questions.answer(moving),
            tree=questions.answer(tree),
            servers=told,
            one_machine=one_machine(self._spec, told),
            unread=tuple(reason.text for reason in questions.unknowns),
            now=time.time(),
        )

    def _release(self, node: NodeSpec) -> str:
        return wire_surroundings.release(self._tools.wire(node), node.id)

    def _taken(self, node: NodeSpec) -> Taken:
        return wire_surroundings.taken(self._tools.wire(node), node.id)

    def _dirs(self, node: NodeSpec) -> Any:
        return wire_surroundings.log_dirs(self._tools.wire(node))


def one_machine(spec: ClusterSpec, servers: Iterable[ZooKeeperServer]) -> bool:
    """Whether all nodes are this machine's processes and ZooKeeper is on it too."""
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
    """A right that we lack, or another cluster's answer, is one more thing that is not told: the view has identified the cluster."""

    def wrapped(*arguments: Any) -> Value:
        try:
            return read(*arguments)
        except (AuthenticationFailed, WrongCluster) as error:
            raise Unavailable(str(error)) from error

    return wrapped


def _not_told(who: str, what: str) -> Reason:
    return Reason("", f"{who} did not tell its {what}")
