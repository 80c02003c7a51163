"""Read consumer groups from ZooKeeper and from their coordinators, many groups in few round trips.

`groups_in` reads ZooKeeper, `describe_groups` asks the coordinators for members and committed offsets, `seen` joins both as
`core.coordination.group_seen` has them. Reads only.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import Any, Final, NamedTuple, TypeVar

from confluent_kafka.admin import ConfigResource, ResourceType

from airflow_provider_kmigrate.clients import znodes
from airflow_provider_kmigrate.clients.admin import REQUEST_TIMEOUT, asked, connect
from airflow_provider_kmigrate.clients.wire import LATEST, Wire
from airflow_provider_kmigrate.clients.wire_groups import Address, Brokers, Offsets, committed, described
from airflow_provider_kmigrate.clients.znodes import CONSUMERS, batches
from airflow_provider_kmigrate.clients.zookeeper import Znode, ZooKeeper
from airflow_provider_kmigrate.core.coordination.assignors import KafkaMember, topics_of
from airflow_provider_kmigrate.core.coordination.group_seen import (
    GroupPosition,
    GroupSeen,
    GroupSweep,
    KafkaGroup,
    Lag,
    StoredOffset,
    ZkGroup,
)
from airflow_provider_kmigrate.core.coordination.registration import (
    OFFSETS_TOPIC,
    GroupPaths,
    Registration,
    Unreadable,
    is_number,
    read_hold,
    read_offset,
    read_progress,
    read_registration,
)
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.text import printable
from airflow_provider_kmigrate.exceptions import KMigrateError, Unavailable

_TOPICS: Final = "/brokers/topics"
Parsed = TypeVar("Parsed")


def groups_in(zk: ZooKeeper, names: Collection[str] | None = None) -> dict[str, ZkGroup]:
    """The named groups, or all below `/consumers`, by name; a group that does not exist is empty.

    Not one instant: migration/ids is read before ids, and both before the mode. A member that joins meanwhile therefore looks
    like one that cannot migrate, never the other way round. Raises as the client; `Failed` if a topic's znode cannot be read.
    """
    there = zk.children(CONSUMERS)  # syncs a server that lags behind
    paths = {name: GroupPaths(name) for name in sorted(there if names is None else names)}
    progress, _ = _children(zk, {name: path.migration_ids for name, path in paths.items()}, read_progress)
    registrations, joined = _children(zk, {name: path.ids for name, path in paths.items()}, read_registration)
    modes = dict(zk.nodes(path.mode for path in paths.values()))
    owned = {name: f"{path.root}/owners" for name, path in paths.items()}
    owners = _places(zk, owned, lambda znode: printable(znode.data.decode(errors="replace")))
    stored = {name: f"{path.root}/offsets" for name, path in paths.items()}
    offsets = _places(zk, stored, lambda znode: StoredOffset(read_offset(znode.data), znode.changed_at))
    resets = _places(zk, {name: path.resets for name, path in paths.items()}, lambda znode: read_offset(znode.data))
    holds = dict(zk.nodes(path.hold for path in paths.values()))
    selected = _selected(zk, registrations)
    found = {}
    for name, path in paths.items():
        mode = modes.get(path.mode, Znode(b"", -1, 0, 0.0))
        found[name] = ZkGroup(
            registrations[name],
            progress[name],
            mode.data if path.mode in modes else None,
            mode.version,
            mode.zxid,
            owners[name],
            offsets[name],
            selected[name],
            read_hold(holds[path.hold].data) if path.hold in holds else None,
            resets[name],
            name in joined,
        )
    return found


def _children(
    zk: ZooKeeper, folders: Mapping[str, str], parse: Callable[[bytes], Parsed]
) -> tuple[dict[str, dict[str, Parsed]], frozenset[str]]:
    """The children of each group's folder, without those deleted meanwhile; and the groups that have the folder."""
    families = dict(zk.families(folders.values()))
    where = {f"{folder}/{child}": (name, child) for name, folder in folders.items() for child in families.get(folder, ())}
    found: dict[str, dict[str, Parsed]] = {name: {} for name in folders}
    for path, znode in zk.nodes(where):
        name, child = where[path]
        found[name][child] = parse(znode.data)
    return found, frozenset(name for name, folder in folders.items() if folder in families)


def _places(
    zk: ZooKeeper, folders: Mapping[str, str], parse: Callable[[Znode], Parsed]
) -> dict[str, dict[TopicPartition, Parsed]]:
    """For each group, the parsed znodes at `<folder>/<topic>/<partition>`."""
    families = dict(zk.families(folders.values()))
    topics = {f"{folder}/{topic}": (name, topic) for name, folder in folders.items() for topic in families.get(folder, ())}
    where = {
        f"{path}/{child}": (topics[path][0], TopicPartition(topics[path][1], int(child)))
        for path, children in zk.families(topics)
        for child in children
        if is_number(child)
    }
    found: dict[str, dict[TopicPartition, Parsed]] = {name: {} for name in folders}
    for path, znode in zk.nodes(where):
        name, place = where[path]
        found[name][place] = parse(znode)
    return found


def _selected(
    zk: ZooKeeper, registrations: Mapping[str, Mapping[str, Registration | Unreadable]]
) -> dict[str, frozenset[TopicPartition]]:
    """For each group, every existing partition that one of its readable registrations selects."""
    existing = cache(lambda: tuple(zk.children(_TOPICS)))
    amounts = cache(lambda pattern, wildcard: topics_of(Registration(pattern, {wildcard: 1}), existing()))
    wanted = {}
    for name, entries in registrations.items():
        asked = (entry for entry in entries.values() if isinstance(entry, Registration))
        selected = [entry.subscription if entry.wildcard is None else amounts(entry.pattern, entry.wildcard) for entry in asked]
        wanted[name] = frozenset(topic for topics in selected if not isinstance(topics, Unreadable) for topic in topics)
    partitions = _partitions(zk, frozenset().union(*wanted.values()))
    return {name: frozenset(place for topic in topics for place in partitions.get(topic, ())) for name, topics in wanted.items()}


def _partitions(zk: ZooKeeper, topics: Iterable[str]) -> dict[str, list[TopicPartition]]:
    found = {}
    for path, znode in zk.nodes(f"{_TOPICS}/{topic}" for topic in sorted(topics)):
        topic = znodes.or_failed(znodes.topic(path.removeprefix(f"{_TOPICS}/"), znode.data))
        found[topic.name] = [TopicPartition(topic.name, index) for index in topic.partitions]
    return found


_BATCH: Final = 100  # groups a request
_AGAIN_S: Final = 0.5  # until one more try after a transient error, such as a coordinator that moves

Value = TypeVar("Value")
Answers = dict[str, Value | KMigrateError]
Unresponsive = dict[Address, Unavailable]  # coordinators that did not answer: they are not waited for again


class GroupAnswer(NamedTuple):
    """What a group's coordinator reports; None: it did not."""

    group: str
    described: KafkaGroup | None
    committed: Offsets | None


def describe_groups(
    properties: Mapping[str, str], timeout: float, names: Collection[str], again: float = _AGAIN_S
) -> Iterator[GroupAnswer]:
    """Each of these groups, known or not, by name.

    `timeout`: seconds for each request, `again`: seconds until the second request to a coordinator that did not answer. A group
    that does not answer, or has no coordinator, has None in it. Nothing if no group ever committed: asking for a coordinator
    would make the brokers create `__consumer_offsets`. Raises ours if no broker answers.
    """
    with Brokers(properties, timeout) as brokers:
        if brokers.first(lambda wire: wire.leaders(OFFSETS_TOPIC)) is None:
            return
        unresponsive = Unresponsive()
        for some in batches(sorted(names), _BATCH):
            yield from _batch(brokers, some, unresponsive, again)


def _batch(brokers: Brokers, groups: Sequence[str], unresponsive: Unresponsive, pause: float) -> Iterator[GroupAnswer]:
    groups_read, offsets = _asked(brokers, groups, unresponsive)
    again = [name for name in groups if isinstance(groups_read[name], Unavailable) or isinstance(offsets[name], Unavailable)]
    if again:
        time.sleep(pause)
        more = _asked(brokers, again, unresponsive)
        groups_read, offsets = groups_read | more[0], offsets | more[1]
    for name in groups:
        yield GroupAnswer(name, _or_none(groups_read[name]), _or_none(offsets[name]))


def _asked(brokers: Brokers, groups: Sequence[str], unresponsive: Unresponsive) -> tuple[Answers[KafkaGroup], Answers[Offsets]]:
    groups_read, offsets = Answers[KafkaGroup](), Answers[Offsets]()
    by_coordinator: dict[Address, list[str]] = defaultdict(list)
    for name, address in _coordinators(brokers, groups).items():
        if isinstance(address, KMigrateError):
            groups_read[name] = offsets[name] = address
        else:
            by_coordinator[address].append(name)
    for address, names in by_coordinator.items():
        groups_read |= _answers(brokers, address, described, names, unresponsive)
        offsets |= _answers(brokers, address, committed, names, unresponsive)
    return groups_read, offsets


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
    unresponsive: Unresponsive,
) -> Answers[Value]:
    if address in unresponsive:
        return dict.fromkeys(groups, unresponsive[address])
    try:
        return ask(brokers.at(*address), groups)
    except KMigrateError as error:
        if isinstance(error, Unavailable):
            unresponsive[address] = error
        return dict.fromkeys(groups, error)


def _or_none(found: Value | KMigrateError) -> Value | None:
    return None if isinstance(found, KMigrateError) else found


_SWEPT: Final = 500  # groups a request: a broker answers in some 20 ms


def sweep(properties: Mapping[str, str], timeout: float, brokers: Collection[int], named: Collection[str] = ()) -> GroupSweep:
    """Committed offsets and lag of every consumer group with members, in few requests to each broker.

    `timeout`: seconds for each request; `brokers`: all of the cluster; `named`: groups whose members are read, too, and whose offsets,
    if they have none. Each broker is asked for the groups that it has loaded, so nothing creates `__consumer_offsets`. Lag is against
    the last stable offset. Raises ours if no broker answers.
    """
    with Brokers(properties, timeout) as connections:
        addresses = connections.first(lambda wire: wire.locations(())).brokers
        swept, silent = _Swept(frozenset(named)), set(brokers) - addresses.keys()
        for broker, address in addresses.items():
            try:
                swept.add(connections.at(*address))
            except Unavailable:
                silent.add(broker)
        read = {name: found for name, found in swept.offsets.items() if not isinstance(found, KMigrateError)}
        left = {name: found for name, found in swept.left.items() if name not in swept.offsets}
        places = frozenset(chain.from_iterable((*read.values(), *left.values())))
        leaders, deleted = _leaders(connections, addresses.values(), {place.topic for place in places})
        ends = _log_offsets(connections, addresses, leaders, places, committed=True)
    groups, gone = (_positions(offsets, ends, deleted) for offsets in (read, left))
    unread = frozenset(swept.offsets.keys() - groups.keys())
    rebalancing = {name: state for name, state in swept.states.items() if name in groups and state not in _SETTLED}
    return GroupSweep(groups, unread, tuple(sorted(silent)), swept.members, gone, rebalancing)


_SETTLED: Final = frozenset({"Stable", "Empty", "Dead", "Unknown", ""})
_NO_MEMBERS: Final = frozenset({"Empty", "Dead"})


class _Swept:
    """What brokers have of their groups, one after the other. `left`: offsets of named groups without members."""

    def __init__(self, named: frozenset[str]) -> None:
        self._named = named
        self.offsets, self.left = Answers[Offsets](), dict[str, Offsets]()
        self.members, self.states = dict[str, tuple[KafkaMember, ...]](), dict[str, str]()

    def add(self, wire: Wire) -> None:
        """Add one broker's. An answer of another broker's stays if this one only kept an old copy."""
        listed = wire.group_states()
        live = [name for name, state in listed.items() if state not in _NO_MEMBERS]
        for some in batches(live, _SWEPT):
            for name, found in committed(wire, some).items():
                if name not in self.offsets or not isinstance(found, KMigrateError):
                    self.offsets[name], self.states[name] = found, listed[name]
        for some in batches(sorted(self._named.intersection(live)), _SWEPT):
            answers = described(wire, some)
            self.members.update((name, one.members) for name, one in answers.items() if isinstance(one, KafkaGroup))
        for some in batches(sorted(self._named.intersection(listed.keys() - set(live))), _SWEPT):
            answered = committed(wire, some).items()
            self.left.update((name, found) for name, found in answered if not isinstance(found, KMigrateError))


def _leaders(
    connections: Brokers, addresses: Iterable[Address], topics: Collection[str]
) -> tuple[dict[tuple[str, int], int], Collection[str]]:
    """The leader of each partition, and the topics that no broker knows: a broker that has just started may know none."""
    found, missing, whole = dict[tuple[str, int], int](), set(topics), True
    for address in addresses:
        if not missing:
            break
        try:
            answer = connections.at(*address).locations(sorted(missing))
        except Unavailable:
            whole = False
            continue
        found |= answer.leaders
        missing &= answer.unknown
    return found, missing if whole else ()


def _log_offsets(
    connections: Brokers,
    addresses: Mapping[int, Address],
    leaders: Mapping[tuple[str, int], int],
    places: Iterable[TopicPartition],
    which: int = LATEST,
    *,
    committed: bool = False,
) -> dict[tuple[str, int], int]:
    """As `Wire.log_offsets`, from the leaders; partitions without a leader, or whose leader does not answer, are left out."""
    led, found = defaultdict[int, list[TopicPartition]](list), dict[tuple[str, int], int]()
    for place in places:
        led[leaders.get(place, -1)].append(place)
    for broker in led.keys() & addresses.keys():
        with suppress(Unavailable):
            found |= connections.at(*addresses[broker]).log_offsets(led[broker], which, committed=committed)
    return found


def _positions(
    groups: Mapping[str, Offsets], ends: Mapping[tuple[str, int], int], deleted: Collection[str]
) -> dict[str, GroupPosition]:
    """The groups whose log ends were all read."""
    found = {name: _position(offsets, ends, deleted) for name, offsets in groups.items()}
    return {name: position for name, position in found.items() if position is not None}


def _position(offsets: Offsets, ends: Mapping[tuple[str, int], int], deleted: Collection[str]) -> GroupPosition | None:
    """None if a log's end was not read. What is left over of a deleted topic does not count."""
    kept = {place: offset for place, offset in offsets.items() if place.topic not in deleted}
    if kept.keys() - ends.keys():
        return None
    return GroupPosition({place: Lag(offset, max(offset, ends[place])) for place, offset in kept.items()})


#: Topic settings that can make a topic unreadable for a ZooKeeper consumer (legacy).
TOPIC_SETTINGS: Final = ("compression.type", "message.downconversion.enable")
_GROUP_READS_TOPICS: Final = 200  # a request
_DEAD: Final = KafkaGroup("Dead")


def seen(zk: ZooKeeper, properties: Mapping[str, Any], names: Collection[str] | None = None) -> dict[str, GroupSeen]:
    """The named groups, or all below `/consumers`, by name, from both sides.

    `properties`: librdkafka's. A group that Kafka does not know is Dead there, without
    commits. A side that does not answer is None in every group it did not answer for. Raises if ZooKeeper does not answer and no
    names are given; errors that a retry cannot fix (`AuthenticationFailed`, `Failed`) are raised for either side.
    """
    in_zookeeper = groups_in(zk) if names is None else _if_available(lambda: groups_in(zk, names))
    wanted = sorted(in_zookeeper or () if names is None else names)
    kafka = (
        _if_available(lambda: {one.group: one for one in describe_groups(properties, REQUEST_TIMEOUT, wanted)})
        if wanted
        else None
    )
    found = {name: _together(name, in_zookeeper, kafka) for name in wanted}
    if kafka is None:
        return found
    places = {name: set(_places_of(observed)) for name, observed in found.items()}
    ends = _if_available(lambda: log_offsets(properties, chain.from_iterable(places.values()), LATEST))
    if ends is None:
        return found
    return {name: replace(one, ends={where: ends[where] for where in places[name] & ends.keys()}) for name, one in found.items()}


def log_offsets(properties: Mapping[str, Any], places: Iterable[TopicPartition], which: int) -> dict[TopicPartition, int]:
    """As `Wire.log_offsets`, of the whole cluster; what does not exist or is not reported is left out. Raises ours if no broker answers."""
    wanted = set(places)
    with Brokers(properties, REQUEST_TIMEOUT) as brokers:
        there = brokers.first(lambda wire: wire.locations({place.topic for place in wanted}))
        found = _log_offsets(brokers, there.brokers, there.leaders, wanted, which)
    return {place: found[place] for place in wanted if place in found}


def topic_settings(properties: Mapping[str, Any], topics: Iterable[str]) -> dict[str, dict[str, str]]:
    """`TOPIC_SETTINGS` in force for each of these topics, defaults included; a topic that is not reported is left out."""
    admin, found = connect(properties), dict[str, dict[str, str]]()
    for some in batches(sorted(set(topics)), _GROUP_READS_TOPICS):
        wanted = [ConfigResource(ResourceType.TOPIC, name) for name in some]
        futures = admin.describe_configs(wanted, request_timeout=REQUEST_TIMEOUT)
        for resource, future in futures.items():
            with suppress(KMigrateError):
                entries = asked(f"DescribeConfigs of {resource.name}", future, REQUEST_TIMEOUT)
                found[resource.name] = {name: str(entries[name].value) for name in TOPIC_SETTINGS if name in entries}
    return found


def _if_available(read: Callable[[], Value]) -> Value | None:
    """What `read` returns; None if the other side gives no usable answer."""
    try:
        return read()
    except Unavailable:
        return None


def _together(name: str, in_zookeeper: Mapping[str, ZkGroup] | None, kafka: Mapping[str, GroupAnswer] | None) -> GroupSeen:
    zk = None if in_zookeeper is None else in_zookeeper[name]
    if kafka is None:
        return GroupSeen(name, zk)
    if name not in kafka:
        return GroupSeen(name, zk, _DEAD, {})
    return GroupSeen(name, zk, kafka[name].described, kafka[name].committed)


def _places_of(observed: GroupSeen) -> Iterable[TopicPartition]:
    if observed.zk is not None:
        yield from observed.zk.partitions
        yield from observed.zk.offsets
    yield from observed.committed or ()
    for member in observed.kafka.members if observed.kafka else ():
        yield from member.partitions
