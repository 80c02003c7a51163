"""Consumer groups as the brokers and as ZooKeeper tell of them: members and committed offsets. Reads only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final, Protocol

from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, ConsumerGroupType, KafkaException
from confluent_kafka.admin import AdminClient

from airflow_provider_kmigrate.clients.admin import asked, error_of
from airflow_provider_kmigrate.clients.batches import batches
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.inventory import GroupFound
from airflow_provider_kmigrate.core.readiness import GroupProtocol
from airflow_provider_kmigrate.exceptions import KMigrateError

_BATCH: Final = 100  # groups asked at a time; each is a request for its offsets
_REBALANCING: Final = {ConsumerGroupState.PREPARING_REBALANCING, ConsumerGroupState.COMPLETING_REBALANCING}
_CONSUMERS: Final = "/consumers"


class Tree(Protocol):
    """What is used of `clients.zookeeper.ZooKeeper`."""

    def children(self, path: str) -> list[str]: ...
    def tree(self, path: str = "/") -> Iterator[tuple[str, bytes | None]]: ...


def of_brokers(properties: Mapping[str, Any], timeout: float = 30.0) -> list[GroupFound]:
    """Every group that the brokers coordinate. A group that does not tell has None in it; raises ours where no broker answers."""
    try:
        admin = AdminClient(dict(properties))
    except KafkaException as error:
        raise error_of(error.args[0], "the properties of a Kafka connection") from error
    listed = asked("ListGroups", admin.list_consumer_groups(request_timeout=timeout), timeout)
    if listed.errors:  # a broker that does not answer hides its groups, and a part of them would pass for all
        raise error_of(listed.errors[0].args[0], "ListGroups")
    found: list[GroupFound] = []
    for names in batches(sorted(group.group_id for group in listed.valid), _BATCH):
        described = admin.describe_consumer_groups(list(names), request_timeout=timeout)
        requests = {name: [ConsumerGroupTopicPartitions(name)] for name in names}
        offsets = {
            name: admin.list_consumer_group_offsets(asked, request_timeout=timeout)[name] for name, asked in requests.items()
        }
        found += [_found(name, described[name], offsets[name], timeout) for name in names]
    return found


def _found(name: str, described: Future[Any], offsets: Future[Any], timeout: float) -> GroupFound:
    group, committed = _or_none("DescribeGroups", described, timeout), _or_none("OffsetFetch", offsets, timeout)
    places = (
        None
        if committed is None
        else {TopicPartition(each.topic, each.partition): each.offset for each in committed.topic_partitions if each.offset >= 0}
    )
    if group is None:
        return GroupFound(name, GroupProtocol.UNKNOWN, None, places)
    protocol = GroupProtocol.CONSUMER if group.type == ConsumerGroupType.CONSUMER else GroupProtocol.CLASSIC
    return GroupFound(name, protocol, len(group.members), places, group.state in _REBALANCING)


def _or_none(what: str, future: Future[Any], timeout: float) -> Any:
    with suppress(KMigrateError):
        return asked(what, future, timeout)
    return None


def of_zookeeper(zk: Tree) -> list[GroupFound]:
    """Every group that has members or offsets in ZooKeeper (the old consumer's tree). Raises as the client."""
    return [found for name in zk.children(_CONSUMERS) if (found := _in_tree(name, zk.tree(f"{_CONSUMERS}/{name}")))]


def _in_tree(name: str, nodes: Iterable[tuple[str, bytes | None]]) -> GroupFound | None:
    parts: dict[str, list[tuple[list[str], bytes | None]]] = defaultdict(list)
    for path, data in nodes:
        head, *rest = path.removeprefix(f"{_CONSUMERS}/{name}").strip("/").split("/")
        if rest:
            parts[head].append((rest, data))
    members = len(parts["ids"])
    offsets = dict(_committed(parts["offsets"]))
    return GroupFound(name, GroupProtocol.ZOOKEEPER, members, offsets) if members or offsets else None


def _committed(nodes: Iterable[tuple[list[str], bytes | None]]) -> Iterator[tuple[TopicPartition, int]]:
    """`offsets/<topic>/<partition>`; what is no number is nothing that a consumer could go on from."""
    for path, data in nodes:
        text = (data or b"").decode("ascii", "replace")
        if len(path) == 2 and path[1].isdigit() and text.isdigit():
            yield TopicPartition(path[0], int(path[1])), int(text)
