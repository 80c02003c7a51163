"""Consumer groups from both sides at once, as `core.coordination.group_seen` has them. Reads only."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from confluent_kafka.admin import ConfigResource, ResourceType

from airflow_provider_kmigrate.clients.admin import asked, connect
from airflow_provider_kmigrate.clients.batches import batches
from airflow_provider_kmigrate.clients.group_znodes import Tree, groups_in
from airflow_provider_kmigrate.clients.groups import Told, told
from airflow_provider_kmigrate.clients.log_marks import log_ends
from airflow_provider_kmigrate.core.coordination.group_seen import GroupSeen, KafkaGroup, ZkGroup
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.exceptions import KMigrateError, Unavailable

#: Of a topic, what an old consumer cannot read it for.
TOPIC_SETTINGS: Final = ("compression.type", "message.downconversion.enable")
_TOPICS: Final = 200  # a request
_DEAD: Final = KafkaGroup("Dead")


def seen(
    zk: Tree, properties: Mapping[str, Any], names: Collection[str] | None = None, timeout: float = 30.0
) -> dict[str, GroupSeen]:
    """The named groups, or all below `/consumers`, by name. `properties`: librdkafka's; `timeout`: seconds for each request.

    A group that Kafka does not know is Dead there, without commits. A side that does not answer is None in every group, and where
    it answers for some groups, in the others. Raises where ZooKeeper does not answer and no names are given; what another look cannot
    mend (`AuthenticationFailed`, `Failed`) it raises for either side.
    """
    in_zookeeper = _tree(zk, names)
    wanted = sorted(in_zookeeper or () if names is None else names)
    kafka = _coordinators(properties, wanted, timeout) if wanted else None
    looks = {name: _together(name, in_zookeeper, kafka) for name in wanted}
    ends = (
        _ends(properties, (place for look in looks.values() for place in _places(look)), timeout) if kafka is not None else None
    )
    return {name: _with_ends(look, ends) for name, look in looks.items()}


def topic_settings(properties: Mapping[str, Any], topics: Iterable[str], timeout: float = 30.0) -> dict[str, dict[str, str]]:
    """`TOPIC_SETTINGS` in force of each of these topics, the brokers' defaults where it has none; a topic that does not tell is left out.

    Raises ours where no broker answers.
    """
    admin, found = connect(properties), dict[str, dict[str, str]]()
    for some in batches(sorted(set(topics)), _TOPICS):
        futures = admin.describe_configs([ConfigResource(ResourceType.TOPIC, name) for name in some], request_timeout=timeout)
        for resource, future in futures.items():
            with suppress(KMigrateError):
                entries = asked(f"DescribeConfigs of {resource.name}", future, timeout)
                found[resource.name] = {name: str(entries[name].value) for name in TOPIC_SETTINGS if name in entries}
    return found


def _tree(zk: Tree, names: Collection[str] | None) -> dict[str, ZkGroup] | None:
    try:
        return groups_in(zk, names)
    except Unavailable:
        if names is None:
            raise
        return None


def _coordinators(properties: Mapping[str, Any], names: Collection[str], timeout: float) -> dict[str, Told] | None:
    try:
        return {one.group: one for one in told(properties, timeout, names)}
    except Unavailable:
        return None


def _together(name: str, in_zookeeper: Mapping[str, ZkGroup] | None, kafka: Mapping[str, Told] | None) -> GroupSeen:
    zk = None if in_zookeeper is None else in_zookeeper[name]
    if kafka is None:
        return GroupSeen(name, zk)
    if name not in kafka:
        return GroupSeen(name, zk, _DEAD, {})
    described, committed = kafka[name].described, kafka[name].committed
    return GroupSeen(name, zk, described, committed)


def _places(look: GroupSeen) -> Iterable[TopicPartition]:
    if look.zk is not None:
        yield from look.zk.partitions
        yield from look.zk.offsets
    yield from look.committed or ()
    for member in look.kafka.members if look.kafka else ():
        yield from member.partitions


def _ends(properties: Mapping[str, Any], places: Iterable[TopicPartition], timeout: float) -> dict[TopicPartition, int] | None:
    try:
        return log_ends(connect(properties), places, timeout)
    except Unavailable:
        return None


def _with_ends(look: GroupSeen, ends: Mapping[TopicPartition, int] | None) -> GroupSeen:
    mine = None if ends is None else {place: ends[place] for place in set(_places(look)) if place in ends}
    return GroupSeen(look.name, look.zk, look.kafka, look.committed, mine)
