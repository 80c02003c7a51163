"""Read consumer groups from ZooKeeper and from their coordinators, many groups in few round trips.

`read_groups` reads ZooKeeper, `describe_groups` asks the coordinators for members and committed offsets, `seen` joins both as
`core.member.group_seen` has them. Reads only.
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
from airflow_provider_kmigrate.clients.admin import REQUEST_TIMEOUT, connect, wait_for_answer
from airflow_provider_kmigrate.clients.offset_writers import find_unregistered_commits
from airflow_provider_kmigrate.clients.wire import LATEST, Wire
from airflow_provider_kmigrate.clients.wire_groups import Address, Brokers, Offsets, describe_groups_at, fetch_offsets
from airflow_provider_kmigrate.clients.znodes import CONSUMERS, Znode, batches
from airflow_provider_kmigrate.clients.zookeeper import ZooKeeper
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.member.assignors import KafkaMember, topics_of
from airflow_provider_kmigrate.core.member.cutover_note import CutoverNote, UnreadableNote, read_cutover
from airflow_provider_kmigrate.core.member.group_seen import (
    GroupPosition,
    GroupSeen,
    GroupSweep,
    KafkaGroup,
    Lag,
    StoredOffset,
    ZkGroup,
)
from airflow_provider_kmigrate.core.member.registration import (
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
from airflow_provider_kmigrate.core.shared.text import printable
from airflow_provider_kmigrate.exceptions import KMigrateError, Unavailable

_TOPICS: Final = "/brokers/topics"
Parsed = TypeVar("Parsed")


def read_groups(zk: ZooKeeper, names: Collection[str] | None = None) -> dict[str, ZkGroup]:
    """The named groups, or all below `/consumers`, by name; a group that does not exist is empty.

    Not one instant: migration/ids is read before ids, and both before the mode. A member that joins meanwhile therefore looks
    like one that cannot migrate, never the other way round. Raises as the client; `Failed` if a topic's znode cannot be read.
    """
    existing_names = zk.children(CONSUMERS)  # syncs a server that lags behind
    paths = {name: GroupPaths(name) for name in sorted(existing_names if names is None else names)}
    progress, _ = _read_children(zk, {name: path.migration_ids for name, path in paths.items()}, read_progress)
    registrations, joined = _read_children(zk, {name: path.ids for name, path in paths.items()}, read_registration)
    modes = dict(zk.read_znodes(path.mode for path in paths.values()))
    owned = {name: f"{path.root}/owners" for name, path in paths.items()}
    owners = _read_partition_znodes(zk, owned, lambda znode: printable(znode.data.decode(errors="replace")))
    stored = {name: f"{path.root}/offsets" for name, path in paths.items()}
    offsets = _read_partition_znodes(zk, stored, lambda znode: StoredOffset(read_offset(znode.data), znode.changed_at))
    resets = _read_partition_znodes(
        zk, {name: path.resets for name, path in paths.items()}, lambda znode: read_offset(znode.data)
    )
    holds = dict(zk.read_znodes(path.hold for path in paths.values()))
    cutovers = dict(zk.read_znodes(path.cutover for path in paths.values()))
    notes = {
        name: read_cutover(note.data, note.changed_at) for name, path in paths.items() if (note := cutovers.get(path.cutover))
    }
    selected, noted = _selected_partitions(zk, registrations), _noted_partitions(zk, notes)
    without_members = [name for name in paths if not registrations[name] and not progress[name] and offsets[name]]
    unregistered = find_unregistered_commits(zk, without_members, time.time()) if without_members else {}
    groups = {}
    for name, path in paths.items():
        mode = modes.get(path.mode, Znode(b"", -1, 0, 0.0))
        groups[name] = ZkGroup(
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
            notes.get(name),
            unregistered.get(name),
            noted.get(name, frozenset()),
        )
    return groups


def _read_children(
    zk: ZooKeeper, folders: Mapping[str, str], parse: Callable[[bytes], Parsed]
) -> tuple[dict[str, dict[str, Parsed]], frozenset[str]]:
    """The children of each group's folder, without those deleted meanwhile; and the groups that have the folder."""
    families = dict(zk.children_by_path(folders.values()))
    group_and_child = {
        f"{folder}/{child}": (name, child) for name, folder in folders.items() for child in families.get(folder, ())
    }
    parsed_children: dict[str, dict[str, Parsed]] = {name: {} for name in folders}
    for path, znode in zk.read_znodes(group_and_child):
        name, child = group_and_child[path]
        parsed_children[name][child] = parse(znode.data)
    return parsed_children, frozenset(name for name, folder in folders.items() if folder in families)


def _read_partition_znodes(
    zk: ZooKeeper, folders: Mapping[str, str], parse: Callable[[Znode], Parsed]
) -> dict[str, dict[TopicPartition, Parsed]]:
    """For each group, the parsed znodes at `<folder>/<topic>/<partition>`."""
    families = dict(zk.children_by_path(folders.values()))
    topics = {f"{folder}/{topic}": (name, topic) for name, folder in folders.items() for topic in families.get(folder, ())}
    group_and_partition = {
        f"{path}/{child}": (topics[path][0], TopicPartition(topics[path][1], int(child)))
        for path, children in zk.children_by_path(topics)
        for child in children
        if is_number(child)
    }
    parsed: dict[str, dict[TopicPartition, Parsed]] = {name: {} for name in folders}
    for path, znode in zk.read_znodes(group_and_partition):
        name, topic_partition = group_and_partition[path]
        parsed[name][topic_partition] = parse(znode)
    return parsed


def _selected_partitions(
    zk: ZooKeeper, registrations: Mapping[str, Mapping[str, Registration | Unreadable]]
) -> dict[str, frozenset[TopicPartition]]:
    """For each group, every existing partition that one of its readable registrations selects."""
    existing = cache(lambda: tuple(zk.children(_TOPICS)))
    amounts = cache(lambda pattern, wildcard: topics_of(Registration(pattern, {wildcard: 1}), existing()))
    selected_topics = {}
    for name, entries in registrations.items():
        registered = (entry for entry in entries.values() if isinstance(entry, Registration))
        selected = [
            entry.subscription if entry.wildcard is None else amounts(entry.pattern, entry.wildcard) for entry in registered
        ]
        selected_topics[name] = frozenset(topic for topics in selected if not isinstance(topics, Unreadable) for topic in topics)
    partitions = _read_partitions(zk, frozenset().union(*selected_topics.values()))
    return {
        name: frozenset(topic_partition for topic in topics for topic_partition in partitions.get(topic, ()))
        for name, topics in selected_topics.items()
    }


def _noted_partitions(zk: ZooKeeper, notes: Mapping[str, CutoverNote | UnreadableNote]) -> dict[str, frozenset[TopicPartition]]:
    """For each group with a cutover, every existing partition of the topics that its note names."""
    topics = {
        name: {partition.topic for partition in note.partitions} for name, note in notes.items() if isinstance(note, CutoverNote)
    }
    partitions = _read_partitions(zk, frozenset().union(*topics.values()))
    return {name: frozenset(chain.from_iterable(partitions.get(topic, ()) for topic in names)) for name, names in topics.items()}


def _read_partitions(zk: ZooKeeper, topics: Iterable[str]) -> dict[str, list[TopicPartition]]:
    partitions = {}
    for path, znode in zk.read_znodes(f"{_TOPICS}/{topic}" for topic in sorted(topics)):
        topic = znodes.raise_if_malformed(znodes.parse_topic(path.removeprefix(f"{_TOPICS}/"), znode.data))
        partitions[topic.name] = [TopicPartition(topic.name, index) for index in topic.partitions]
    return partitions


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
        if brokers.ask_first_broker(lambda wire: wire.leaders(OFFSETS_TOPIC)) is None:
            return
        unresponsive = Unresponsive()
        for batch in batches(sorted(names), _BATCH):
            yield from _describe_batch(brokers, batch, unresponsive, again)


def _describe_batch(brokers: Brokers, groups: Sequence[str], unresponsive: Unresponsive, pause: float) -> Iterator[GroupAnswer]:
    groups_read, offsets = _ask_coordinators(brokers, groups, unresponsive)
    unavailable_groups = [
        name for name in groups if isinstance(groups_read[name], Unavailable) or isinstance(offsets[name], Unavailable)
    ]
    if unavailable_groups:
        time.sleep(pause)
        second_answers = _ask_coordinators(brokers, unavailable_groups, unresponsive)
        groups_read, offsets = groups_read | second_answers[0], offsets | second_answers[1]
    for name in groups:
        yield GroupAnswer(name, _none_if_error(groups_read[name]), _none_if_error(offsets[name]))


def _ask_coordinators(
    brokers: Brokers, groups: Sequence[str], unresponsive: Unresponsive
) -> tuple[Answers[KafkaGroup], Answers[Offsets]]:
    groups_read, offsets = Answers[KafkaGroup](), Answers[Offsets]()
    by_coordinator: dict[Address, list[str]] = defaultdict(list)
    for name, address in _find_coordinators(brokers, groups).items():
        if isinstance(address, KMigrateError):
            groups_read[name] = offsets[name] = address
        else:
            by_coordinator[address].append(name)
    for address, names in by_coordinator.items():
        groups_read |= _ask_coordinator(brokers, address, describe_groups_at, names, unresponsive)
        offsets |= _ask_coordinator(brokers, address, fetch_offsets, names, unresponsive)
    return groups_read, offsets


def _find_coordinators(brokers: Brokers, groups: Sequence[str]) -> Answers[Address]:
    try:
        return brokers.find_coordinators(groups)
    except KMigrateError as error:
        return dict.fromkeys(groups, error)


def _ask_coordinator(
    brokers: Brokers,
    address: Address,
    ask: Callable[[Wire, Sequence[str]], Answers[Value]],
    groups: Sequence[str],
    unresponsive: Unresponsive,
) -> Answers[Value]:
    if address in unresponsive:
        return dict.fromkeys(groups, unresponsive[address])
    try:
        return ask(brokers.wire_to(*address), groups)
    except KMigrateError as error:
        if isinstance(error, Unavailable):
            unresponsive[address] = error
        return dict.fromkeys(groups, error)


def _none_if_error(answer: Value | KMigrateError) -> Value | None:
    return None if isinstance(answer, KMigrateError) else answer


_SWEPT: Final = 500  # groups a request: a broker answers in some 20 ms


def sweep(
    properties: Mapping[str, str], timeout: float, brokers: Collection[int], named_groups: Collection[str] = ()
) -> GroupSweep:
    """Committed offsets and lag of every consumer group with members, in few requests to each broker.

    `timeout`: seconds for each request; `brokers`: all of the cluster; `named_groups`: groups whose members are read, too, and whose offsets,
    if they have none. Each broker is asked for the groups that it has loaded, so nothing creates `__consumer_offsets`. Lag is against
    the last stable offset. Raises ours if no broker answers.
    """
    with Brokers(properties, timeout) as connections:
        addresses = connections.ask_first_broker(lambda wire: wire.locations(())).brokers
        swept, unresponsive = _Swept(frozenset(named_groups)), set(brokers) - addresses.keys()
        for broker, address in addresses.items():
            try:
                swept.add(connections.wire_to(*address))
            except Unavailable:
                unresponsive.add(broker)
        read = {name: answer for name, answer in swept.offsets.items() if not isinstance(answer, KMigrateError)}
        left_offsets = {name: answer for name, answer in swept.left.items() if name not in swept.offsets}
        topic_partitions = frozenset(chain.from_iterable((*read.values(), *left_offsets.values())))
        leaders, deleted = _find_leaders(
            connections, addresses.values(), {topic_partition.topic for topic_partition in topic_partitions}
        )
        ends = _read_log_offsets(connections, addresses, leaders, topic_partitions, committed=True)
    groups, gone = (_compute_positions(offsets, ends, deleted) for offsets in (read, left_offsets))
    unread = frozenset(swept.offsets.keys() - groups.keys())
    rebalancing = {name: state for name, state in swept.states.items() if name in groups and state not in _SETTLED}
    return GroupSweep(groups, unread, tuple(sorted(unresponsive)), swept.members, gone, rebalancing)


_SETTLED: Final = frozenset({"Stable", "Empty", "Dead", "Unknown", ""})
_NO_MEMBERS: Final = frozenset({"Empty", "Dead"})


class _Swept:
    """What brokers have of their groups, one after the other. `left`: offsets of named groups without members."""

    def __init__(self, named_groups: frozenset[str]) -> None:
        self._named = named_groups
        self.offsets, self.left = Answers[Offsets](), dict[str, Offsets]()
        self.members, self.states = dict[str, tuple[KafkaMember, ...]](), dict[str, str]()

    def add(self, wire: Wire) -> None:
        """Add one broker's. An answer of another broker's stays if this one only kept an old copy."""
        listed = wire.group_states()
        live = [name for name, state in listed.items() if state not in _NO_MEMBERS]
        for batch in batches(live, _SWEPT):
            for name, group_offsets in fetch_offsets(wire, batch).items():
                if name not in self.offsets or not isinstance(group_offsets, KMigrateError):
                    self.offsets[name], self.states[name] = group_offsets, listed[name]
        for batch in batches(sorted(self._named.intersection(live)), _SWEPT):
            answers = describe_groups_at(wire, batch)
            self.members.update((name, group.members) for name, group in answers.items() if isinstance(group, KafkaGroup))
        for batch in batches(sorted(self._named.intersection(listed.keys() - set(live))), _SWEPT):
            answered = fetch_offsets(wire, batch).items()
            self.left.update(
                (name, group_offsets) for name, group_offsets in answered if not isinstance(group_offsets, KMigrateError)
            )


def _find_leaders(
    connections: Brokers, addresses: Iterable[Address], topics: Collection[str]
) -> tuple[dict[tuple[str, int], int], Collection[str]]:
    """The leader of each partition, and the topics that no broker knows: a broker that has just started may know none."""
    leaders, missing, whole = dict[tuple[str, int], int](), set(topics), True
    for address in addresses:
        if not missing:
            break
        try:
            answer = connections.wire_to(*address).locations(sorted(missing))
        except Unavailable:
            whole = False
            continue
        leaders |= answer.leaders
        missing &= answer.unknown
    return leaders, missing if whole else ()


def _read_log_offsets(
    connections: Brokers,
    addresses: Mapping[int, Address],
    leaders: Mapping[tuple[str, int], int],
    topic_partitions: Iterable[TopicPartition],
    which: int = LATEST,
    *,
    committed: bool = False,
) -> dict[tuple[str, int], int]:
    """As `Wire.log_offsets`, from the leaders; partitions without a leader, or whose leader does not answer, are left out."""
    led, offsets = defaultdict[int, list[TopicPartition]](list), dict[tuple[str, int], int]()
    for topic_partition in topic_partitions:
        led[leaders.get(topic_partition, -1)].append(topic_partition)
    for broker in led.keys() & addresses.keys():
        with suppress(Unavailable):
            offsets |= connections.wire_to(*addresses[broker]).log_offsets(led[broker], which, committed=committed)
    return offsets


def _compute_positions(
    groups: Mapping[str, Offsets], ends: Mapping[tuple[str, int], int], deleted: Collection[str]
) -> dict[str, GroupPosition]:
    """The groups whose log ends were all read."""
    positions = {name: _compute_position(offsets, ends, deleted) for name, offsets in groups.items()}
    return {name: position for name, position in positions.items() if position is not None}


def _compute_position(offsets: Offsets, ends: Mapping[tuple[str, int], int], deleted: Collection[str]) -> GroupPosition | None:
    """None if a log's end was not read. What is left over of a deleted topic does not count."""
    counted_offsets = {
        topic_partition: offset for topic_partition, offset in offsets.items() if topic_partition.topic not in deleted
    }
    if counted_offsets.keys() - ends.keys():
        return None
    return GroupPosition(
        {topic_partition: Lag(offset, max(offset, ends[topic_partition])) for topic_partition, offset in counted_offsets.items()}
    )


#: Topic settings that can make a topic unreadable for a ZooKeeper consumer (legacy).
TOPIC_SETTINGS: Final = ("compression.type", "message.downconversion.enable")
_RETENTION: Final = "offsets.retention.minutes"
_GROUP_READS_TOPICS: Final = 200  # a request
_DEAD: Final = KafkaGroup("Dead")


def seen(zk: ZooKeeper, properties: Mapping[str, Any], names: Collection[str] | None = None) -> dict[str, GroupSeen]:
    """The named groups, or all below `/consumers`, by name, from both sides.

    `properties`: librdkafka's. A group that Kafka does not know is Dead there, without
    commits. A side that does not answer is None in every group it did not answer for. Raises if ZooKeeper does not answer and no
    names are given; errors that a retry cannot fix (`AuthenticationFailed`, `Failed`) are raised for either side.
    """
    in_zookeeper = read_groups(zk) if names is None else _none_if_unavailable(lambda: read_groups(zk, names))
    group_names = sorted(in_zookeeper or () if names is None else names)
    kafka = (
        _none_if_unavailable(
            lambda: {
                group_answer.group: group_answer for group_answer in describe_groups(properties, REQUEST_TIMEOUT, group_names)
            }
        )
        if group_names
        else None
    )
    observed_groups = {name: _join_sides(name, in_zookeeper, kafka) for name in group_names}
    if kafka is None:
        return observed_groups
    partitions_by_group = {name: set(_partitions_of(observed)) for name, observed in observed_groups.items()}
    ends = _none_if_unavailable(lambda: log_offsets(properties, chain.from_iterable(partitions_by_group.values()), LATEST))
    if ends is None:
        return observed_groups
    return {
        name: replace(
            group, ends={topic_partition: ends[topic_partition] for topic_partition in partitions_by_group[name] & ends.keys()}
        )
        for name, group in observed_groups.items()
    }


def log_offsets(
    properties: Mapping[str, Any], topic_partitions: Iterable[TopicPartition], which: int
) -> dict[TopicPartition, int]:
    """As `Wire.log_offsets`, of the whole cluster; what does not exist or is not reported is left out. Raises ours if no broker answers."""
    requested = set(topic_partitions)
    with Brokers(properties, REQUEST_TIMEOUT) as brokers:
        locations = brokers.ask_first_broker(
            lambda wire: wire.locations({topic_partition.topic for topic_partition in requested})
        )
        offsets = _read_log_offsets(brokers, locations.brokers, locations.leaders, requested, which)
    return {topic_partition: offsets[topic_partition] for topic_partition in requested if topic_partition in offsets}


def topic_settings(properties: Mapping[str, Any], topics: Iterable[str]) -> dict[str, dict[str, str]]:
    """`TOPIC_SETTINGS` in force for each of these topics, defaults included; a topic that is not reported is left out."""
    admin, settings = connect(properties), dict[str, dict[str, str]]()
    for batch in batches(sorted(set(topics)), _GROUP_READS_TOPICS):
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in batch]
        futures = admin.describe_configs(resources, request_timeout=REQUEST_TIMEOUT)
        for resource, future in futures.items():
            with suppress(KMigrateError):
                entries = wait_for_answer(f"DescribeConfigs of {resource.name}", future, REQUEST_TIMEOUT)
                settings[resource.name] = {name: str(entries[name].value) for name in TOPIC_SETTINGS if name in entries}
    return settings


def read_retention(properties: Mapping[str, Any]) -> float | None:
    """The shortest `offsets.retention.minutes` of the brokers that answer, in seconds; None if none does."""
    with suppress(KMigrateError), Brokers(properties, REQUEST_TIMEOUT) as brokers:
        ids = brokers.ask_first_broker(lambda wire: wire.locations(())).brokers
        resources = [ConfigResource(ResourceType.BROKER, str(broker)) for broker in sorted(ids)]
        admin = connect(properties)  # kept by its name: librdkafka answers nothing for a client that is gone
        futures = admin.describe_configs(resources, request_timeout=REQUEST_TIMEOUT)
        minutes = []
        for resource, future in futures.items():
            with suppress(KMigrateError):
                entries = wait_for_answer(f"DescribeConfigs of broker {resource.name}", future, REQUEST_TIMEOUT)
                value = entries[_RETENTION].value if _RETENTION in entries else None
                minutes += [int(value)] if value and is_number(value) else []
        return 60.0 * min(minutes) if minutes else None
    return None


def _none_if_unavailable(read: Callable[[], Value]) -> Value | None:
    """What `read` returns; None if the other side gives no usable answer."""
    try:
        return read()
    except Unavailable:
        return None


def _join_sides(name: str, in_zookeeper: Mapping[str, ZkGroup] | None, kafka: Mapping[str, GroupAnswer] | None) -> GroupSeen:
    zk = None if in_zookeeper is None else in_zookeeper[name]
    if kafka is None:
        return GroupSeen(name, zk)
    if name not in kafka:
        return GroupSeen(name, zk, _DEAD, {})
    return GroupSeen(name, zk, kafka[name].described, kafka[name].committed)


def _partitions_of(observed: GroupSeen) -> Iterable[TopicPartition]:
    if observed.zk is not None:
        yield from observed.zk.partitions
        yield from observed.zk.offsets
        yield from observed.zk.cutover_partitions
    yield from observed.committed or ()
    for member in observed.kafka.members if observed.kafka else ():
        yield from member.partitions
