"""The assignment of the whole group, partition -> thread, which the legacy consumer's rebalance listener gets (KIP-125).

In ZooKeeper mode every member computes it. In Kafka mode it is what the coordinator reports of each member, split over that member's threads
by its registration in ZooKeeper. If it can't be known for certain it is unknown, with the reason: a wrong one would be worse than none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from enum import StrEnum

from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.member.assignors import (
    Frozen,
    KafkaMember,
    Owners,
    assign,
    assign_streams,
    non_migrating_members,
    topics_of,
)
from airflow_provider_kmigrate.core.member.messages import GroupView
from airflow_provider_kmigrate.core.member.registration import Mode, Unreadable
from airflow_provider_kmigrate.core.member.state import Settings


class UnknownAssignment(StrEnum):
    """Why the assignment of the whole group is not known."""

    NOT_OBSERVED = "this member has not observed its group yet"
    FROZEN = "a registration in ZooKeeper cannot be read"
    TIES = "partitions of different topics have one hash, and their order is known to Scala's hash map alone"
    FOREIGN = "Kafka consumers hold partitions although ZooKeeper coordinates"
    NO_ANSWER = "the coordinator did not report the members of a stable group"
    OLDER = "the coordinator reports another share of this member than it was assigned: a rebalance is under way"
    MEMBER_MISSING = "a migrating consumer is registered in ZooKeeper and is no member in Kafka, or the other way round"


def compute_global_assignment(
    settings: Settings, view: GroupView | None, kafka: Collection[TopicPartition], members: Collection[KafkaMember] | None
) -> Owners | UnknownAssignment:
    """Partition -> thread of every member, by this member's last observation.

    `kafka`: what this member's embedded consumer was assigned; `members`: of the stable Kafka group, None if it did not answer. A Kafka
    consumer has no threads: its partitions go to its client.id.
    """
    if view is None or settings.consumer not in view.registrations:
        return UnknownAssignment.NOT_OBSERVED
    if view.mode is Mode.KAFKA:
        return _split_kafka_assignment(settings, view, kafka, members)
    if view.foreign:
        return UnknownAssignment.FOREIGN
    assigned = assign(settings.strategy, view.registrations, view.topics, internal=settings.internal_too)
    if isinstance(assigned, Frozen):
        return UnknownAssignment.FROZEN
    return UnknownAssignment.TIES if assigned.ties else assigned.owners


def _split_kafka_assignment(
    settings: Settings, view: GroupView, kafka: Collection[TopicPartition], members: Collection[KafkaMember] | None
) -> Owners | UnknownAssignment:
    if members is None:
        return UnknownAssignment.NO_ANSWER
    consumers = non_migrating_members(members, view.migrating)
    shares: dict[str, set[TopicPartition]] = defaultdict(set)  # a member that changes its assignors is in the group twice
    for member in members:
        if member not in consumers:
            shares[member.client_id] |= member.partitions
    if shares.keys() != view.registrations.keys():
        return UnknownAssignment.MEMBER_MISSING
    if shares[settings.consumer] != set(kafka):
        return UnknownAssignment.OLDER
    owners = {partition: member.client_id for member in consumers for partition in member.partitions}
    for name, share in shares.items():
        registration = view.registrations[name]
        topics = (
            registration
            if isinstance(registration, Unreadable)
            else topics_of(registration, view.topics, internal=settings.internal_too)
        )
        if isinstance(topics, Unreadable):
            return UnknownAssignment.FROZEN
        owners |= assign_streams(name, topics, share)
    return owners
