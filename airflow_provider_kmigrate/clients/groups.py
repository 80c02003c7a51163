"""Consumer groups as their coordinators describe them: members and committed offsets. Reads only."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from airflow_provider_kmigrate.clients.batches import batches
from airflow_provider_kmigrate.clients.wire import Wire
from airflow_provider_kmigrate.clients.wire_groups import Address, Brokers, Offsets, committed, described
from airflow_provider_kmigrate.core.coordination.group_seen import KafkaGroup
from airflow_provider_kmigrate.core.internal_topics import OFFSETS_TOPIC
from airflow_provider_kmigrate.exceptions import KMigrateError, Unavailable

_BATCH: Final = 100  # groups a request
_AGAIN_S: Final = 0.5  # until what passes by itself, such as a coordinator that moves, is asked about once more

Value = TypeVar("Value")
Answers = dict[str, Value | KMigrateError]
Silent = dict[Address, Unavailable]  # coordinators that did not answer: they are not waited for again


class Told(NamedTuple):
    """What a group's coordinator tells. None: it did not."""

    group: str
    described: KafkaGroup | None
    committed: Offsets | None


def told(properties: Mapping[str, str], timeout: float, names: Collection[str], again: float = _AGAIN_S) -> Iterator[Told]:
    """Each of these groups, known or not, by name. `timeout`: seconds for each request, `again`: until a second question to a
    coordinator that did not answer.

    A group that does not answer, or has no coordinator, has None in it. Nothing if no group ever committed anything: to ask for a
    coordinator would make the brokers create `__consumer_offsets`. Raises ours if no broker answers.
    """
    with Brokers(properties, timeout) as brokers:
        if brokers.first(lambda wire: wire.leaders(OFFSETS_TOPIC)) is None:
            return
        silent = Silent()
        for some in batches(sorted(names), _BATCH):
            yield from _batch(brokers, some, silent, again)


def _batch(brokers: Brokers, groups: Sequence[str], silent: Silent, pause: float) -> Iterator[Told]:
    groups_told, offsets = _asked(brokers, groups, silent)
    again = [name for name in groups if isinstance(groups_told[name], Unavailable) or isinstance(offsets[name], Unavailable)]
    if again:
        time.sleep(pause)
        more = _asked(brokers, again, silent)
        groups_told, offsets = groups_told | more[0], offsets | more[1]
    for name in groups:
        yield Told(name, _or_none(groups_told[name]), _or_none(offsets[name]))


def _asked(brokers: Brokers, groups: Sequence[str], silent: Silent) -> tuple[Answers[KafkaGroup], Answers[Offsets]]:
    groups_told, offsets = Answers[KafkaGroup](), Answers[Offsets]()
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
