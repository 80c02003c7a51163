"""Describe consumer groups and read and write their commits with the wire client.

librdkafka's own requests abort the process if the connection to a coordinator breaks at the wrong moment (an assertion, seen with
2.16.0; its issues 3663 and 4605). A broker's restart must not kill a user's application or Airflow's triggerer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from kafka.protocol.admin import DeleteGroupsRequest, DescribeGroupsRequest
from kafka.protocol.consumer.group import OffsetCommitRequest, OffsetFetchRequest
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment

from airflow_provider_kmigrate.clients.admin import (
    GROUP_ID_NOT_FOUND,
    NOT_COORDINATOR,
    UNSTABLE_OFFSET_COMMIT,
    check,
    error_for,
)
from airflow_provider_kmigrate.clients.holding import Holding
from airflow_provider_kmigrate.clients.messages import ConsumerGroupDescribeRequest
from airflow_provider_kmigrate.clients.settings import KafkaSettings
from airflow_provider_kmigrate.clients.wire import MECHANISMS, Wire, from_kafka, understood
from airflow_provider_kmigrate.clients.znodes import batches
from airflow_provider_kmigrate.core.coordination.assignors import KafkaMember
from airflow_provider_kmigrate.core.coordination.group_seen import KafkaGroup
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.model import FetchedOffset, HostedGroup
from airflow_provider_kmigrate.core.text import printable
from airflow_provider_kmigrate.exceptions import Failed, KMigrateError, Unavailable, Unreachable

Offsets = dict[TopicPartition, int]
Address = tuple[str, int]
Answer = TypeVar("Answer")

_CONSUMERS: Final = "consumer"  # the protocol type whose assignments can be read
_DEAD: Final = "Dead"
_NO_SUCH_GROUP: Final = {35, GROUP_ID_NOT_FOUND}  # UNSUPPORTED_VERSION: the broker has the request, and KIP-848 is off
_BATCH: Final = 100  # groups a request


def speaks(properties: Mapping[str, str]) -> bool:
    """True if the wire client supports the identity of these librdkafka properties."""
    security = from_kafka(KafkaSettings(properties))
    in_files = not any(name.startswith("ssl.") and name.endswith((".pem", "keystore.location")) for name in properties)
    return in_files and (not security.protocol.startswith("SASL_") or security.sasl_mechanism in MECHANISMS)


def describe(properties: Mapping[str, str], group: str, timeout: float) -> KafkaGroup:
    """The group now. `timeout`: seconds for each broker asked. Raises as `Wire` does."""
    with Brokers(properties, timeout) as brokers:
        (found,) = described(brokers.at(*brokers.coordinator(group)), [group]).values()
    return _or_raise(found)


def commit(
    properties: Mapping[str, str], group: str, offsets: Mapping[TopicPartition, int], timeout: float, holding: Holding
) -> None:
    """Commit for a group without members; its coordinator refuses any other group. Raises as `Wire` does."""
    with Brokers(properties, timeout) as brokers:
        wire = brokers.at(*brokers.coordinator(group))
        GroupsAt(wire).commit(group, {where: FetchedOffset(offset) for where, offset in offsets.items()}, holding)


class GroupsAt:
    """The consumer groups at one broker, whatever other brokers say of them. Raises as `Wire` does."""

    def __init__(self, wire: Wire) -> None:
        self._wire, self.endpoint = wire, wire.endpoint

    @understood
    def hosted(self, groups: Collection[str]) -> dict[str, HostedGroup]:
        """Those of these groups that the broker takes itself for the coordinator of, unknown ones too.

        Raises `Unavailable` while it loads one of them.
        """
        found: dict[str, HostedGroup] = {}
        for some in batches(sorted(groups), _BATCH):
            accepted = self._accepted(some)
            found |= self._with_offsets(accepted) if accepted else {}
        return found

    def _accepted(self, groups: Sequence[str]) -> dict[str, HostedGroup]:
        where, answer = f"{self._wire.endpoint} DescribeGroups", self._wire.ask(DescribeGroupsRequest, 0, 4, groups=list(groups))
        found = {}
        for one in answer.groups:
            if one.error_code != NOT_COORDINATOR:
                check(one.error_code, f"{where} of {one.group_id}")
                found[one.group_id] = HostedGroup(one.group_state, len(one.members))
        newer = _of_new_protocol(self._wire, [name for name, one in found.items() if one.state == _DEAD])
        return found | {
            name: HostedGroup(one.state, len(one.members)) for name, each in newer.items() if (one := _or_raise(each))
        }

    def _with_offsets(self, groups: Mapping[str, HostedGroup]) -> dict[str, HostedGroup]:
        wanted = [OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=None) for group in groups]
        answer = self._wire.ask(OffsetFetchRequest, 8, 8, groups=wanted, require_stable=True)
        where = f"{self._wire.endpoint} OffsetFetch"
        return {one.group_id: _filled(groups[one.group_id], one, f"{where} of {one.group_id}") for one in answer.groups}

    @understood
    def delete(self, groups: Collection[str], holding: Holding) -> None:
        """Delete groups without members, with their offsets; one that does not exist is none. Others are refused by the broker."""
        for some in batches(sorted(groups), _BATCH):
            holding.check()
            for one in self._wire.ask(DeleteGroupsRequest, 1, 2, groups_names=list(some)).results:
                if one.error_code != GROUP_ID_NOT_FOUND:
                    check(one.error_code, f"{self._wire.endpoint} DeleteGroups of {one.group_id}")

    @understood
    def commit(self, group: str, offsets: Mapping[TopicPartition, FetchedOffset], holding: Holding) -> None:
        """Commit for a group without members; the broker refuses any other group, and one that it does not coordinate."""
        holding.check()
        answer = self._wire.ask(OffsetCommitRequest, 2, 8, group_id=group, member_id="", topics=_commits(offsets))
        for topic in answer.topics:
            for one in topic.partitions:
                check(one.error_code, f"OffsetCommit of {group} for {topic.name}-{one.partition_index}")


class Brokers:
    """Connections to a cluster's brokers, each made on first use. `timeout`: seconds for each request. Close it."""

    def __init__(self, properties: Mapping[str, str], timeout: float) -> None:
        self._settings, self._timeout = KafkaSettings(properties), timeout
        self._wires: dict[Address, Wire] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for wire in self._wires.values():
            wire.close()

    def at(self, host: str, port: int) -> Wire:
        """The client of one broker, made once per address."""
        if (host, port) not in self._wires:
            self._wires[host, port] = Wire(host, port, from_kafka(self._settings), self._timeout)
        return self._wires[host, port]

    def first(self, ask: Callable[[Wire], Answer]) -> Answer:
        """The answer of the first bootstrap server that gives one; raises the last one's error if none does."""
        last: Unavailable | None = None
        for host, port in self._settings.servers:
            try:
                return ask(self.at(host, port))
            except Unavailable as error:
                last = error
        raise last or Unreachable(f"{self._settings.bootstrap}: no address of a broker")

    def coordinator(self, group: str) -> Address:
        """The address of the group's coordinator, from the first broker that answers."""
        return self.first(lambda wire: _or_raise(_coordinators(wire, [group])[group]))

    def coordinators(self, groups: Sequence[str]) -> dict[str, Address | KMigrateError]:
        """For each group its coordinator, or why it has none. Creates `__consumer_offsets` if it does not exist yet."""
        return self.first(lambda wire: _coordinators(wire, groups))


@understood
def described(wire: Wire, groups: Sequence[str]) -> dict[str, KafkaGroup | KMigrateError]:
    """The groups that this broker coordinates, each with its state or the error. An unknown group is Dead."""
    answer = wire.ask(DescribeGroupsRequest, 0, 4, groups=list(groups))
    found = {one.group_id: _error(one, f"{wire.endpoint} DescribeGroups") or _classic(one) for one in answer.groups}
    dead = [name for name, one in found.items() if isinstance(one, KafkaGroup) and one.state == _DEAD]
    return found | _of_new_protocol(wire, dead)


def _of_new_protocol(wire: Wire, groups: Sequence[str]) -> dict[str, KafkaGroup | KMigrateError]:
    """The groups of KIP-848, which DescribeGroups calls Dead."""
    if not groups or not wire.serves(ConsumerGroupDescribeRequest):
        return {}
    answer = wire.ask(ConsumerGroupDescribeRequest, 0, 0, group_ids=list(groups))
    known = [one for one in answer.groups if one.error_code not in _NO_SUCH_GROUP]
    return {one.group_id: _error(one, f"{wire.endpoint} ConsumerGroupDescribe") or _new(one) for one in known}


@understood
def committed(wire: Wire, groups: Sequence[str]) -> dict[str, Offsets | KMigrateError]:
    """Each group's committed offsets or the error; an error of one partition makes its group's offsets unknown."""
    if wire.version_of(OffsetFetchRequest, 2, 8) < 8:  # before Kafka 3.0
        each = {group: wire.ask(OffsetFetchRequest, 2, 7, group_id=group, topics=None) for group in groups}
    else:
        wanted = [OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=None) for group in groups]
        each = {one.group_id: one for one in wire.ask(OffsetFetchRequest, 8, 8, groups=wanted).groups}
    return {group: _offsets(one, f"{wire.endpoint} OffsetFetch of {printable(group)}") for group, one in each.items()}


@understood
def _coordinators(wire: Wire, groups: Sequence[str]) -> dict[str, Address | KMigrateError]:
    where, found = f"{wire.endpoint} FindCoordinator", wire.coordinators(groups)
    return {group: _error(one, f"{where} of {printable(group)}") or (one.host, one.port) for group, one in found.items()}


def _or_raise(found: Answer | KMigrateError) -> Answer:
    if isinstance(found, KMigrateError):
        raise found
    return found


def _error(answer: Any, where: str) -> KMigrateError | None:
    detail = getattr(answer, "error_message", None)
    return error_for(answer.error_code, where, detail) if answer.error_code else None


def _classic(answer: Any) -> KafkaGroup | KMigrateError:
    readable = answer.protocol_type == _CONSUMERS
    try:
        members = [_member(one, _assigned(one) if readable else frozenset()) for one in answer.members]
    except Exception as error:  # noqa: BLE001 - a member's own bytes, and the decoder raises whatever a wrong one leads it to
        return Failed(f"{answer.group_id}: what a member is assigned is not Kafka's protocol ({type(error).__name__})")
    return KafkaGroup(answer.group_state, tuple(members))


def _member(one: Any, assigned: frozenset[TopicPartition]) -> KafkaMember:
    """A client id is any text that its client likes; its member id begins with it."""
    return KafkaMember(printable(one.member_id), printable(one.client_id), assigned, printable(one.client_host))


def _assigned(member: Any) -> frozenset[TopicPartition]:
    data = bytes(member.member_assignment or b"")
    topics = ConsumerProtocolAssignment.decode(data).assigned_partitions if data else ()
    return frozenset(TopicPartition(topic.topic, index) for topic in topics for index in topic.partitions)


def _new(answer: Any) -> KafkaGroup:
    members = (_member(one, _assigned_now(one)) for one in answer.members)
    return KafkaGroup(answer.group_state, tuple(members))


def _assigned_now(member: Any) -> frozenset[TopicPartition]:
    topics = member.assignment.topic_partitions
    return frozenset(TopicPartition(topic.topic_name, index) for topic in topics for index in topic.partitions)


def _offsets(answer: Any, where: str) -> Offsets | KMigrateError:
    parts = [(topic.name, one) for topic in answer.topics for one in topic.partitions]
    for wrong in (answer, *(one for _, one in parts)):
        if refused := _error(wrong, where):
            return refused
    return {TopicPartition(name, one.partition_index): one.committed_offset for name, one in parts if one.committed_offset >= 0}


def _filled(group: HostedGroup, answer: Any, where: str) -> HostedGroup:
    """The group with the offsets that its coordinator answers."""
    if answer.error_code == GROUP_ID_NOT_FOUND:
        return group
    check(answer.error_code, where)
    parts = [(TopicPartition(topic.name, one.partition_index), one) for topic in answer.topics for one in topic.partitions]
    for place, one in parts:
        if one.error_code != UNSTABLE_OFFSET_COMMIT:
            check(one.error_code, f"{where} for {place.name}")
    offsets = {
        place: FetchedOffset(one.committed_offset, one.committed_leader_epoch, one.metadata or "")
        for place, one in parts
        if one.committed_offset >= 0
    }
    return replace(group, offsets=offsets, unstable=any(one.error_code == UNSTABLE_OFFSET_COMMIT for _, one in parts))


def _commits(offsets: Mapping[TopicPartition, FetchedOffset]) -> list[Any]:
    of_topic = OffsetCommitRequest.OffsetCommitRequestTopic
    found: dict[str, list[Any]] = defaultdict(list)
    for where, one in sorted(offsets.items(), key=lambda row: row[0]):
        partition = of_topic.OffsetCommitRequestPartition(
            partition_index=where.partition,
            committed_offset=one.offset,
            committed_leader_epoch=one.leader_epoch,
            committed_metadata=one.metadata,
        )
        found[where.topic].append(partition)
    return [of_topic(name=topic, partitions=partitions) for topic, partitions in found.items()]
