"""Consumer groups as the brokers and as ZooKeeper tell of them: members and committed offsets. Reads only."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final, NamedTuple

from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, ConsumerGroupType
from confluent_kafka.admin import AdminClient

from airflow_provider_kmigrate.clients.admin import asked, connect, error_of
from airflow_provider_kmigrate.clients.batches import batches
from airflow_provider_kmigrate.clients.group_znodes import Tree, groups_in
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.group_seen import ZkGroup
from airflow_provider_kmigrate.core.inventory import GroupFound
from airflow_provider_kmigrate.core.readiness import GroupProtocol
from airflow_provider_kmigrate.exceptions import KMigrateError

_BATCH: Final = 100  # groups asked at a time; each is a request for its offsets
_REBALANCING: Final = {ConsumerGroupState.PREPARING_REBALANCING, ConsumerGroupState.COMPLETING_REBALANCING}


class Told(NamedTuple):
    """What a group's coordinator tells: confluent-kafka's description, and what is committed. None: it did not tell."""

    group: str
    description: Any
    committed: dict[TopicPartition, int] | None


def told(admin: AdminClient, timeout: float, only: Collection[str] | None = None) -> Iterator[Told]:
    """Every group that the brokers know, of `only` where that is given, by name. Raises ours where a broker does not answer.

    Groups are listed first, and no other is asked for: a question about one without a coordinator has ended the whole process in
    librdkafka (confluent-kafka 2.16.1).
    """
    listed = asked("ListGroups", admin.list_consumer_groups(request_timeout=timeout), timeout)
    if listed.errors:  # a broker that does not answer hides its groups, and a part of them would pass for all
        raise error_of(listed.errors[0], "ListGroups")
    known = {group.group_id for group in listed.valid}
    for names in batches(sorted(known if only is None else known.intersection(only)), _BATCH):
        described = admin.describe_consumer_groups(list(names), request_timeout=timeout)
        requests = {name: [ConsumerGroupTopicPartitions(name)] for name in names}
        offsets = {
            name: admin.list_consumer_group_offsets(request, request_timeout=timeout)[name] for name, request in requests.items()
        }
        for name in names:
            description = _or_none("DescribeGroups", described[name], timeout)
            yield Told(name, description, _committed(_or_none("OffsetFetch", offsets[name], timeout)))


def of_brokers(properties: Mapping[str, Any], timeout: float = 30.0) -> list[GroupFound]:
    """Every group that the brokers coordinate. A group that does not tell has None in it; raises ours where no broker answers."""
    return [_found(one) for one in told(connect(properties), timeout)]


def _found(one: Told) -> GroupFound:
    group = one.description
    if group is None:
        return GroupFound(one.group, GroupProtocol.UNKNOWN, None, one.committed)
    protocol = GroupProtocol.CONSUMER if group.type == ConsumerGroupType.CONSUMER else GroupProtocol.CLASSIC
    return GroupFound(one.group, protocol, len(group.members), one.committed, group.state in _REBALANCING)


def _committed(offsets: Any) -> dict[TopicPartition, int] | None:
    if offsets is None:
        return None
    return {TopicPartition(each.topic, each.partition): each.offset for each in offsets.topic_partitions if each.offset >= 0}


def _or_none(what: str, future: Future[Any], timeout: float) -> Any:
    with suppress(KMigrateError):
        return asked(what, future, timeout)
    return None


def of_zookeeper(zk: Tree) -> list[GroupFound]:
    """Every group that has members or offsets in ZooKeeper (the old consumer's tree). Raises as the client."""
    return [found for name, group in groups_in(zk).items() if (found := _in_tree(name, group))]


def _in_tree(name: str, group: ZkGroup) -> GroupFound | None:
    """What is no number is nothing that a consumer could go on from."""
    stored = {where: found.offset for where, found in group.offsets.items()}
    offsets = {where: offset for where, offset in stored.items() if isinstance(offset, int) and offset >= 0}
    members = len(group.registrations)
    return GroupFound(name, GroupProtocol.ZOOKEEPER, members, offsets) if members or offsets else None
