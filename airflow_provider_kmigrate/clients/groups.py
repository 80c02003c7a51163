"""Consumer groups as the brokers and as ZooKeeper tell of them: members and committed offsets. Reads only."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from airflow_provider_kmigrate.clients.batches import batches
from airflow_provider_kmigrate.clients.group_znodes import Tree, groups_in
from airflow_provider_kmigrate.clients.wire import Wire
from airflow_provider_kmigrate.clients.wire_groups import Address, Brokers, Described, Offsets, committed, described
from airflow_provider_kmigrate.core.coordination.group_seen import ZkGroup
from airflow_provider_kmigrate.core.groups.inventory import GroupFound
from airflow_provider_kmigrate.core.groups.readiness import GroupProtocol
from airflow_provider_kmigrate.core.internal_topics import OFFSETS_TOPIC
from airflow_provider_kmigrate.exceptions import KMigrateError, Unavailable

_BATCH: Final = 100  # groups a request
_AGAIN_S: Final = 0.5  # until what passes by itself, such as a coordinator that moves, is asked about once more
_CONSUMERS: Final = {"consumer", ""}  # nobody ever joined: offsets alone

Value = TypeVar("Value")
Answers = dict[str, Value | KMigrateError]
Silent = dict[Address, Unavailable]  # coordinators that did not answer: they are not waited for again


class Told(NamedTuple):
    """What a group's coordinator tells. None: it did not."""

    group: str
    described: Described | None
    committed: Offsets | None


def told(
    properties: Mapping[str, str], timeout: float, only: Collection[str] | None = None, again: float = _AGAIN_S
) -> Iterator[Told]:
    """Every consumer group that the brokers know, or each of `only`, known or not, by name. `timeout`: seconds for each request,
    `again`: until what is not told is asked for once more.

    A group that does not tell, or has no coordinator, has None in it. Nothing where no group ever committed anything: to ask for a
    coordinator would make the brokers create `__consumer_offsets`. Raises ours where nobody answers, and without `only` where a
    single broker does not list its groups.
    """
    with Brokers(properties, timeout) as brokers:
        if brokers.first(lambda wire: wire.leaders(OFFSETS_TOPIC)) is None:
            return
        wanted, silent = _consumers(brokers.listed()) if only is None else only, Silent()
        for names in batches(sorted(wanted), _BATCH):
            yield from _batch(brokers, names, silent, again)


def _consumers(listed: Mapping[str, str]) -> list[str]:
    return [name for name, protocol in listed.items() if protocol in _CONSUMERS]


def _batch(brokers: Brokers, groups: Sequence[str], silent: Silent, pause: float) -> Iterator[Told]:
    groups_told, offsets = _asked(brokers, groups, silent)
    again = [name for name in groups if isinstance(groups_told[name], Unavailable) or isinstance(offsets[name], Unavailable)]
    if again:
        time.sleep(pause)
        more = _asked(brokers, again, silent)
        groups_told, offsets = groups_told | more[0], offsets | more[1]
    for name in groups:
        yield Told(name, _or_none(groups_told[name]), _or_none(offsets[name]))


def _asked(brokers: Brokers, groups: Sequence[str], silent: Silent) -> tuple[Answers[Described], Answers[Offsets]]:
    groups_told, offsets = Answers[Described](), Answers[Offsets]()
    by_coordinator: dict[Address, list[str]] = defaultdict(list)
    for name, address in _coordinators(brokers, groups).items():
        if isinstance(address, KMigrateError):
            groups_told[name] = offsets[name] = address
        else:
            by_coordinator[address].append(name)
    for address, names in by_coordinator.items():
        groups_told |= _answers(brokers, address, described, names, silent)
        offsets |= _answers(brokers, address, committed, names, silent)
    return groups_told, offsets


def _coordinators(brokers: Brokers, groups: Sequence[str]) -> Answers[Address]:
    try:
        return brokers.coordinators(groups)
    except KMigrateError as error:
        return dict.fromkeys(groups, error)


def _answers(
    brokers: Brokers,
    address: Address,
    ask: Callable[[Wire, Sequence[str]], Answers[Value]],
    groups: Sequence[str],
    silent: Silent,
) -> Answers[Value]:
    if address in silent:
        return dict.fromkeys(groups, silent[address])
    try:
        return ask(brokers.at(*address), groups)
    except Unavailable as error:
        silent[address] = error
        return dict.fromkeys(groups, error)
    except KMigrateError as error:
        return dict.fromkeys(groups, error)


def _or_none(found: Value | KMigrateError) -> Value | None:
    return None if isinstance(found, KMigrateError) else found


def of_brokers(properties: Mapping[str, str], timeout: float = 30.0) -> list[GroupFound]:
    """Every group that the brokers coordinate. A group that does not tell has None in it; raises ours where a broker does not answer."""
    return [_found(one) for one in told(properties, timeout)]


def _found(one: Told) -> GroupFound:
    if one.described is None:
        return GroupFound(one.group, GroupProtocol.UNKNOWN, None, one.committed)
    group, protocol = one.described
    return GroupFound(one.group, protocol, len(group.members), one.committed, not group.stable)


def of_zookeeper(zk: Tree) -> list[GroupFound]:
    """Every group that has members or offsets in ZooKeeper (the old consumer's tree). Raises as the client."""
    return [found for name, group in groups_in(zk).items() if (found := _in_tree(name, group))]


def _in_tree(name: str, group: ZkGroup) -> GroupFound | None:
    members, offsets = len(group.registrations), group.committed
    return GroupFound(name, GroupProtocol.ZOOKEEPER, members, offsets) if members or offsets else None
