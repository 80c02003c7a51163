"""Preflight's check of limits of connections: controllers have those of the brokers, and each of them every node as a client.

Kafka counts addresses, and refuses by `max.connections.per.ip` before anybody logs in. A name in the overrides may be another name of a
node's machine: no name is resolved here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from airflow_provider_kmigrate.core.cluster_state.model import DEFAULT, ClusterView
from airflow_provider_kmigrate.core.cluster_state.spec import normalize_host
from airflow_provider_kmigrate.core.node_files.config_matrix import find_references, listener_key_prefix
from airflow_provider_kmigrate.core.preflight.controllers import Rendered, render_future_keys
from airflow_provider_kmigrate.core.preflight.findings import (
    Check,
    PreflightFacts,
    PreflightFinding,
    blocks,
    unknown,
    warns,
    zookeeper_configs,
)
from airflow_provider_kmigrate.core.shared.text import count_of, summarize

_TOTAL, _PER_IP, _OVERRIDES, _RATE = (
    "max.connections",
    "max.connections.per.ip",
    "max.connections.per.ip.overrides",
    "max.connection.creation.rate",
)
#: Connections that the active controller had of each node at most, and of kmigrate (measured in migration mode); any controller may become the active one.
_OF_BROKER, _OF_CONTROLLER, _OF_KMIGRATE = 5, 3, 3
_SESSION_S = 9.0  # broker.session.timeout.ms: in this time all must have found a new active controller


@dataclass(frozen=True, slots=True)
class _Limits:
    """What will hold at the controllers' listener, as far as it can be read; `whence`: the word for where a key comes from."""

    values: Mapping[str, str]
    whence: Mapping[str, str]
    unread: tuple[str, ...]

    def number(self, key: str) -> int | None:
        """The number of a key; None if there is none."""
        text = self.values.get(key, "").strip()
        return int(text) if text.isdecimal() else None

    def name(self, key: str) -> str:
        """The key with its value and where it comes from."""
        return f"{key}={self.values[key]} ({self.whence[key]})"


def _check_connection_limits(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    future = render_future_keys(view, facts)
    if future is None:
        return
    limits = _read_limits(future, facts)
    if limits.unread:
        yield unknown("B26", f"the value at the controllers of {summarize(limits.unread)}")
    brokers, controllers = len(facts.spec.brokers), len(facts.spec.controllers)
    needed = brokers * _OF_BROKER + controllers * _OF_CONTROLLER + _OF_KMIGRATE
    for key in limits.values:
        number = limits.number(key)
        if key.endswith(_TOTAL) and number is not None and number < needed:
            nodes = f"{count_of(brokers, 'broker')}, {count_of(controllers, 'controller')} and kmigrate"
            yield blocks("B26", f"{limits.name(key)}, and a controller may have {count_of(needed, 'connection')} of {nodes}")
        if key.endswith(_RATE) and number is not None and number * _SESSION_S < needed:
            seconds = f"more than {_SESSION_S:.0f} s"
            yield warns("B26", f"{limits.name(key)}: {count_of(needed, 'connection')} to a new active controller take {seconds}")
    if _OVERRIDES not in limits.unread:
        yield from _check_addresses(limits, facts)


def _read_limits(future: Rendered, facts: PreflightFacts) -> _Limits:
    """Of the controllers' future file, and above it of dynamic settings of all brokers: a controller reads these from the log, too."""
    values, whence, unread = dict[str, str](), dict[str, str](), list[str]()
    of_listener = listener_key_prefix(future.listener)
    for key in (_TOTAL, of_listener + _TOTAL, _RATE, of_listener + _RATE, _PER_IP, _OVERRIDES):
        if (written := future.controllers.get(key)) is not None:
            values[key], whence[key] = written, "the controllers' file"
        if key in facts.broker_settings.get(DEFAULT, ()):
            found = [
                config[key]
                for broker, config in zookeeper_configs(facts).items()
                if key in config and key not in facts.broker_settings.get(str(broker), ())
            ]
            values[key], whence[key] = (found or [""])[0], "a dynamic setting of all brokers"
            unread += [] if found else [key]
        if find_references(values.get(key, "")):
            unread.append(key)
    return _Limits(values, whence, tuple(unread))


def _check_addresses(limits: _Limits, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    general, overrides = limits.number(_PER_IP), _parse_overrides(limits.values.get(_OVERRIDES, ""))
    machines = _list_machines(facts)
    own = [name for machine in machines for name in machine.names]
    largest_of_others = max((limit for name, limit in overrides.items() if name not in own), default=0)
    refused, unclear = list[str](), list[str]()
    for machine in machines:
        named = [overrides[name] for name in machine.names if name in overrides]
        limit = min(named) if named else general
        if limit is not None and limit < machine.needed:
            is_unclear = not named and largest_of_others >= machine.needed
            (unclear if is_unclear else refused).append(f"{machine.names[0]} (up to {count_of(machine.needed, 'connection')})")
    keys = " and ".join(limits.name(key) for key in (_PER_IP, _OVERRIDES) if limits.values.get(key))
    if refused:
        yield blocks("B26", f"{keys} would refuse nodes at the controllers' listener: {summarize(refused)}")
    if unclear:
        yield unknown("B26", f"whether overrides apply to these machines by other names: {summarize(unclear)}; {keys}")


@dataclass(frozen=True, slots=True)
class _Machine:
    """A machine of nodes: its names, that of the cluster file first; how many connections the active controller may have of it."""

    names: tuple[str, ...]
    needed: int


def _list_machines(facts: PreflightFacts) -> list[_Machine]:
    needed, addresses = dict[str, int](), dict[str, list[str]]()
    for nodes, each in ((facts.spec.brokers, _OF_BROKER), (facts.spec.controllers, _OF_CONTROLLER)):
        for node in nodes:
            host = normalize_host(node.host)
            needed[host] = needed.get(host, 0) + each
    for node in facts.spec.controllers:
        found = facts.environment.addresses.get(node.id) or ()
        addresses.setdefault(normalize_host(node.host), []).extend(map(normalize_host, found))
    return [_Machine((host, *addresses.get(host, ())), count) for host, count in needed.items()]


def _parse_overrides(text: str) -> dict[str, int]:
    """Machine -> its own limit; what Kafka does not take is left out: no broker would have started with it."""
    entries = (entry.strip().rpartition(":") for entry in text.split(","))
    return {normalize_host(host): int(limit) for host, _, limit in entries if host and limit.strip().isdecimal()}


CHECKS: tuple[Check, ...] = (_check_connection_limits,)
