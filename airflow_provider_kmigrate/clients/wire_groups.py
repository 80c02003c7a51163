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
from airflow_provider_kmigrate.clients.holding import FenceCheck, Holding
from airflow_provider_kmigrate.clients.identity import security_from_kafka
from airflow_provider_kmigrate.clients.messages import ConsumerGroupDescribeRequest
from airflow_provider_kmigrate.clients.settings import KafkaSettings
from airflow_provider_kmigrate.clients.wire import Wire, map_malformed_answers
from airflow_provider_kmigrate.clients.znodes import batches
from airflow_provider_kmigrate.core.cluster_state.model import FetchedOffset, HostedGroup
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.member.assignors import KafkaMember
from airflow_provider_kmigrate.core.member.group_seen import KafkaGroup
from airflow_provider_kmigrate.core.shared.text import printable
from airflow_provider_kmigrate.exceptions import Failed, KMigrateError, Unavailable, Unreachable

Offsets = dict[TopicPartition, int]
Address = tuple[str, int]
Answer = TypeVar("Answer")

_CONSUMERS: Final = "consumer"  # the protocol type whose assignments can be read
_DEAD: Final = "Dead"
_NO_SUCH_GROUP: Final = {35, GROUP_ID_NOT_FOUND}  # UNSUPPORTED_VERSION: the broker has the request, and KIP-848 is off
_BATCH: Final = 100  # groups a request


def describe_group(properties: Mapping[str, str], group: str, timeout: float) -> KafkaGroup:
    """The group now. `timeout`: seconds for each broker asked. Raises as `Wire` does."""
    with Brokers(properties, timeout) as brokers:
        (group_or_error,) = describe_groups_at(brokers.wire_to(*brokers.find_coordinator(group)), [group]).values()
    return _or_raise(group_or_error)


def commit(
    properties: Mapping[str, str], group: str, offsets: Mapping[TopicPartition, int], timeout: float, holding: FenceCheck
) -> None:
    """Commit for a group without members; its coordinator refuses any other group. Raises as `Wire` does."""
    with Brokers(properties, timeout) as brokers:
        wire = brokers.wire_to(*brokers.find_coordinator(group))
        GroupsAt(wire).commit(
            group, {topic_partition: FetchedOffset(offset) for topic_partition, offset in offsets.items()}, holding
        )


class GroupsAt:
    """The consumer groups at one broker, whatever other brokers say of them. Raises as `Wire` does."""

    def __init__(self, wire: Wire) -> None:
        self._wire, self.endpoint = wire, wire.endpoint

    @map_malformed_answers
    def describe_hosted(self, groups: Collection[str]) -> dict[str, HostedGroup]:
        """Those of these groups that the broker takes itself for the coordinator of, unknown ones too.

        Raises `Unavailable` while it loads one of them.
        """
        hosted_groups: dict[str, HostedGroup] = {}
        for batch in batches(sorted(groups), _BATCH):
            accepted = self._describe_accepted(batch)
            hosted_groups |= self._with_offsets(accepted) if accepted else {}
        return hosted_groups

    def _describe_accepted(self, groups: Sequence[str]) -> dict[str, HostedGroup]:
        request_label, answer = (
            f"{self._wire.endpoint} DescribeGroups",
            self._wire.ask(DescribeGroupsRequest, 0, 4, groups=list(groups)),
        )
        hosted_groups = {}
        for group in answer.groups:
            if group.error_code != NOT_COORDINATOR:
                check(group.error_code, f"{request_label} of {group.group_id}")
                hosted_groups[group.group_id] = HostedGroup(group.group_state, len(group.members))
        newer = _describe_kip848_groups(
            self._wire, [name for name, hosted_group in hosted_groups.items() if hosted_group.state == _DEAD]
        )
        return hosted_groups | {
            name: HostedGroup(group.state, len(group.members))
            for name, group_or_error in newer.items()
            if (group := _or_raise(group_or_error))
        }

    def _with_offsets(self, groups: Mapping[str, HostedGroup]) -> dict[str, HostedGroup]:
        requests = [OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=None) for group in groups]
        answer = self._wire.ask(OffsetFetchRequest, 8, 8, groups=requests, require_stable=True)
        request_label = f"{self._wire.endpoint} OffsetFetch"
        return {
            answered_group.group_id: _with_fetched_offsets(
                groups[answered_group.group_id], answered_group, f"{request_label} of {answered_group.group_id}"
            )
            for answered_group in answer.groups
        }

    @map_malformed_answers
    def delete(self, groups: Collection[str], holding: Holding) -> None:
        """Delete groups without members, with their offsets; one that does not exist is none. Others are refused by the broker."""
        for batch in batches(sorted(groups), _BATCH):
            holding.check()
            for outcome in self._wire.ask(DeleteGroupsRequest, 1, 2, groups_names=list(batch)).results:
                if outcome.error_code != GROUP_ID_NOT_FOUND:
                    check(outcome.error_code, f"{self._wire.endpoint} DeleteGroups of {outcome.group_id}")

    @map_malformed_answers
    def commit(self, group: str, offsets: Mapping[TopicPartition, FetchedOffset], holding: FenceCheck) -> None:
        """Commit for a group without members; the broker refuses any other group, and one that it does not coordinate."""
        holding.check()
        answer = self._wire.ask(OffsetCommitRequest, 2, 8, group_id=group, member_id="", topics=_commits(offsets))
        for topic in answer.topics:
            for partition in topic.partitions:
                check(partition.error_code, f"OffsetCommit of {group} for {topic.name}-{partition.partition_index}")


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

    def wire_to(self, host: str, port: int) -> Wire:
        """The client of one broker, made once per address."""
        if (host, port) not in self._wires:
            self._wires[host, port] = Wire(host, port, security_from_kafka(self._settings), self._timeout)
        return self._wires[host, port]

    def ask_first_broker(self, ask: Callable[[Wire], Answer]) -> Answer:
        """The answer of the first bootstrap server that gives one; raises the last one's error if none does."""
        last_error: Unavailable | None = None
        for host, port in self._settings.servers:
            try:
                return ask(self.wire_to(host, port))
            except Unavailable as error:
                last_error = error
        raise last_error or Unreachable(f"{self._settings.bootstrap}: no address of a broker")

    def find_coordinator(self, group: str) -> Address:
        """The address of the group's coordinator, from the first broker that answers."""
        return self.ask_first_broker(lambda wire: _or_raise(_find_coordinators(wire, [group])[group]))

    def find_coordinators(self, groups: Sequence[str]) -> dict[str, Address | KMigrateError]:
        """For each group its coordinator, or why it has none. Creates `__consumer_offsets` if it does not exist yet."""
        return self.ask_first_broker(lambda wire: _find_coordinators(wire, groups))


@map_malformed_answers
def describe_groups_at(wire: Wire, groups: Sequence[str]) -> dict[str, KafkaGroup | KMigrateError]:
    """The groups that this broker coordinates, each with its state or the error. An unknown group is Dead."""
    answer = wire.ask(DescribeGroupsRequest, 0, 4, groups=list(groups))
    groups_by_id = {
        group.group_id: _error_of_answer(group, f"{wire.endpoint} DescribeGroups") or _parse_classic_group(group)
        for group in answer.groups
    }
    dead = [name for name, group in groups_by_id.items() if isinstance(group, KafkaGroup) and group.state == _DEAD]
    return groups_by_id | _describe_kip848_groups(wire, dead)


def _describe_kip848_groups(wire: Wire, groups: Sequence[str]) -> dict[str, KafkaGroup | KMigrateError]:
    """The groups of KIP-848, which DescribeGroups calls Dead."""
    if not groups or not wire.serves(ConsumerGroupDescribeRequest):
        return {}
    answer = wire.ask(ConsumerGroupDescribeRequest, 0, 0, group_ids=list(groups))
    known_groups = [group for group in answer.groups if group.error_code not in _NO_SUCH_GROUP]
    return {
        group.group_id: _error_of_answer(group, f"{wire.endpoint} ConsumerGroupDescribe") or _parse_kip848_group(group)
        for group in known_groups
    }


@map_malformed_answers
def fetch_offsets(wire: Wire, groups: Sequence[str]) -> dict[str, Offsets | KMigrateError]:
    """Each group's committed offsets or the error; an error of one partition makes its group's offsets unknown."""
    if wire.negotiate_version(OffsetFetchRequest, 2, 8) < 8:  # before Kafka 3.0
        answers = {group: wire.ask(OffsetFetchRequest, 2, 7, group_id=group, topics=None) for group in groups}
    else:
        requests = [OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=None) for group in groups]
        answers = {
            answered_group.group_id: answered_group
            for answered_group in wire.ask(OffsetFetchRequest, 8, 8, groups=requests).groups
        }
    return {
        group: _parse_offsets(answered_group, f"{wire.endpoint} OffsetFetch of {printable(group)}")
        for group, answered_group in answers.items()
    }


@map_malformed_answers
def _find_coordinators(wire: Wire, groups: Sequence[str]) -> dict[str, Address | KMigrateError]:
    request_label, coordinators = f"{wire.endpoint} FindCoordinator", wire.coordinator_answers(groups)
    return {
        group: _error_of_answer(coordinator, f"{request_label} of {printable(group)}") or (coordinator.host, coordinator.port)
        for group, coordinator in coordinators.items()
    }


def _or_raise(answer: Answer | KMigrateError) -> Answer:
    if isinstance(answer, KMigrateError):
        raise answer
    return answer


def _error_of_answer(answer: Any, request_label: str) -> KMigrateError | None:
    detail = getattr(answer, "error_message", None)
    return error_for(answer.error_code, request_label, detail) if answer.error_code else None


def _parse_classic_group(answer: Any) -> KafkaGroup | KMigrateError:
    readable = answer.protocol_type == _CONSUMERS
    try:
        members = [_make_member(member, _decode_assignment(member) if readable else frozenset()) for member in answer.members]
    except Exception as error:  # noqa: BLE001 - a member's own bytes, and the decoder raises whatever a wrong one leads it to
        return Failed(f"{answer.group_id}: what a member is assigned is not Kafka's protocol ({type(error).__name__})")
    return KafkaGroup(answer.group_state, tuple(members))


def _make_member(member: Any, assigned: frozenset[TopicPartition]) -> KafkaMember:
    """A client id is any text that its client likes; its member id begins with it."""
    return KafkaMember(printable(member.member_id), printable(member.client_id), assigned, printable(member.client_host))


def _decode_assignment(member: Any) -> frozenset[TopicPartition]:
    data = bytes(member.member_assignment or b"")
    topics = ConsumerProtocolAssignment.decode(data).assigned_partitions if data else ()
    return frozenset(TopicPartition(topic.topic, index) for topic in topics for index in topic.partitions)


def _parse_kip848_group(answer: Any) -> KafkaGroup:
    members = (_make_member(member, _current_assignment(member)) for member in answer.members)
    return KafkaGroup(answer.group_state, tuple(members))


def _current_assignment(member: Any) -> frozenset[TopicPartition]:
    topics = member.assignment.topic_partitions
    return frozenset(TopicPartition(topic.topic_name, index) for topic in topics for index in topic.partitions)


def _parse_offsets(answer: Any, request_label: str) -> Offsets | KMigrateError:
    parts = [(topic.name, partition) for topic in answer.topics for partition in topic.partitions]
    for answer_part in (answer, *(partition for _, partition in parts)):
        if refused := _error_of_answer(answer_part, request_label):
            return refused
    return {
        TopicPartition(name, partition.partition_index): partition.committed_offset
        for name, partition in parts
        if partition.committed_offset >= 0
    }


def _with_fetched_offsets(group: HostedGroup, answer: Any, request_label: str) -> HostedGroup:
    """The group with the offsets that its coordinator answers."""
    if answer.error_code == GROUP_ID_NOT_FOUND:
        return group
    check(answer.error_code, request_label)
    parts = [
        (TopicPartition(topic.name, partition.partition_index), partition)
        for topic in answer.topics
        for partition in topic.partitions
    ]
    for topic_partition, partition in parts:
        if partition.error_code != UNSTABLE_OFFSET_COMMIT:
            check(partition.error_code, f"{request_label} for {topic_partition.name}")
    offsets = {
        topic_partition: FetchedOffset(partition.committed_offset, partition.committed_leader_epoch, partition.metadata or "")
        for topic_partition, partition in parts
        if partition.committed_offset >= 0
    }
    return replace(group, offsets=offsets, unstable=any(partition.error_code == UNSTABLE_OFFSET_COMMIT for _, partition in parts))


def _commits(offsets: Mapping[TopicPartition, FetchedOffset]) -> list[Any]:
    of_topic = OffsetCommitRequest.OffsetCommitRequestTopic
    partitions_by_topic: dict[str, list[Any]] = defaultdict(list)
    for topic_partition, fetched_offset in sorted(offsets.items(), key=lambda row: row[0]):
        partition = of_topic.OffsetCommitRequestPartition(
            partition_index=topic_partition.partition,
            committed_offset=fetched_offset.offset,
            committed_leader_epoch=fetched_offset.leader_epoch,
            committed_metadata=fetched_offset.metadata,
        )
        partitions_by_topic[topic_partition.topic].append(partition)
    return [of_topic(name=topic, partitions=partitions) for topic, partitions in partitions_by_topic.items()]
