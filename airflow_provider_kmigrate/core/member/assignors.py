"""Assigns partitions as the ZooKeeper consumer's two assignors do, and splits a Kafka member's over its streams (KIP-125).

Everything is a pure function of sorted input, and the order is Java's: strings by UTF-16 units, hashes signed and of 32 bits.
Every member computes the whole group's assignment from the same znodes and takes its own part. A member that computes anything
else waits for the ZooKeeper consumers' partitions forever, and they for its.

What the real 1.1.1 does with odd groups (`tests/old_consumer` asks its own classes):

* a topic that is registered and does not exist has no partitions, and hinders no member;
* one unreadable registration leaves the whole group without an assignment.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.member.registration import (
    Flaw,
    Registration,
    Unreadable,
    compile_wildcard,
    java_hash,
    select_topics,
    thread_id,
)

Owners = Mapping[TopicPartition, str]  # partition -> thread id


class Strategy(StrEnum):
    """partition.assignment.strategy. Round-robin sorts by a text that Kafka 1.0 changed (KAFKA-5822): do not mix versions."""

    RANGE = "range"
    ROUND_ROBIN = "roundrobin"  # from 1.0.0
    ROUND_ROBIN_0_10 = "roundrobin of Kafka 0.10.2 and 0.11"


@dataclass(frozen=True, slots=True)
class Assigned:
    """One assignment.

    `ties`: partitions of different topics with one hash, whose order only a Scala hash map knows; the assignment may then be wrong.
    """

    owners: Owners
    ties: tuple[tuple[TopicPartition, TopicPartition], ...] = ()


@dataclass(frozen=True, slots=True)
class Frozen:
    """No assignment can be computed: these members' registrations are unreadable, and every ZooKeeper consumer fails on them."""

    flaws: Mapping[str, Unreadable] = field(default_factory=dict)


def java_order(text: str) -> bytes:
    """A key that sorts strings as Java does."""
    return text.encode("utf-16-be", "surrogatepass")


def topics_of(registration: Registration, existing: Iterable[str], *, internal: bool = False) -> Mapping[str, int] | Unreadable:
    """Topic -> streams of a registration: its own topics, or those that its wildcard selects among the existing ones."""
    wildcard = registration.wildcard
    if wildcard is None:
        return registration.subscription
    expression = compile_wildcard(wildcard)
    if expression is None:
        return Unreadable(Flaw.BAD_WILDCARD, wildcard)
    streams = registration.subscription[wildcard]
    return dict.fromkeys(select_topics(registration.pattern, expression, existing, internal=internal), streams)


def assign(
    strategy: Strategy,
    registrations: Mapping[str, Registration | Unreadable],
    topics: Mapping[str, Collection[int]],
    *,
    internal: bool = False,
) -> Assigned | Frozen:
    """The whole group's assignment, as each of its ZooKeeper consumers computes it; `topics`: partitions of the existing ones.

    `internal`: Kafka's own topics too (exclude.internal.topics=false).
    """
    topics_by_member = {
        name: entry if isinstance(entry, Unreadable) else topics_of(entry, topics, internal=internal)
        for name, entry in registrations.items()
    }
    if flaws := {
        name: member_topics for name, member_topics in topics_by_member.items() if isinstance(member_topics, Unreadable)
    }:
        return Frozen(flaws)
    threads = _threads_by_topic(
        {name: member_topics for name, member_topics in topics_by_member.items() if not isinstance(member_topics, Unreadable)}
    )
    if strategy is Strategy.RANGE:
        return _assign_ranges(threads, topics)
    return _assign_round_robin(threads, topics, "[{},{}]" if strategy is Strategy.ROUND_ROBIN_0_10 else "{}-{}")


def _threads_by_topic(topics_by_member: Mapping[str, Mapping[str, int]]) -> dict[str, list[str]]:
    """Topic -> the threads of all members that subscribe to it, in order; `-10` comes before `-2`."""
    threads: dict[str, list[str]] = defaultdict(list)
    for consumer, topics in topics_by_member.items():
        for topic, streams in topics.items():
            threads[topic] += (thread_id(consumer, stream) for stream in range(streams))
    return {topic: sorted(names, key=java_order) for topic, names in threads.items()}


def _assign_ranges(threads: Mapping[str, Sequence[str]], topics: Mapping[str, Collection[int]]) -> Assigned:
    owners = {
        TopicPartition(topic, partition): name
        for topic, names in threads.items()
        if topic in topics
        for partition, name in _slice_evenly(sorted(topics[topic]), names)
    }
    return Assigned(owners)


def _slice_evenly(partitions: Sequence[int], names: Sequence[str]) -> Iterable[tuple[int, str]]:
    """Consecutive shares; the first ones get one more if the division has a remainder."""
    share, extra = divmod(len(partitions), len(names))
    for i, name in enumerate(names):
        start = share * i + min(i, extra)
        yield from ((partition, name) for partition in partitions[start : start + share + (i < extra)])


def _assign_round_robin(threads: Mapping[str, Sequence[str]], topics: Mapping[str, Collection[int]], key: str) -> Assigned:
    existing_topics = [topic for topic in threads if topic in topics]
    partitions = [
        TopicPartition(topic, partition)
        for topic in sorted(existing_topics, key=java_order)
        for partition in sorted(topics[topic])
    ]
    hashes = {topic_partition: java_hash(key.format(*topic_partition)) for topic_partition in partitions}
    ordered = sorted(partitions, key=hashes.__getitem__)
    ties = tuple((a, b) for a, b in itertools.pairwise(ordered) if hashes[a] == hashes[b] and a.topic != b.topic)
    all_threads = sorted(set().union(*threads.values()), key=java_order)
    return Assigned(
        _deal_round_robin(ordered, {topic: frozenset(names) for topic, names in threads.items()}, all_threads), ties=ties
    )


def _deal_round_robin(
    partitions: Iterable[TopicPartition], subscribers: Mapping[str, frozenset[str]], threads: Sequence[str]
) -> Owners:
    """Deals each place to the next thread, in a circle, that wants its topic."""
    turn, owners = 0, {}
    for topic_partition in partitions:
        while threads[turn % len(threads)] not in subscribers[topic_partition.topic]:
            turn += 1
        owners[topic_partition] = threads[turn % len(threads)]
        turn += 1
    return owners


class KafkaMember(NamedTuple):
    """A member of the Kafka group as DescribeGroups reports it."""

    member_id: str
    client_id: str
    partitions: frozenset[TopicPartition]
    host: str = ""


def assign_streams(consumer: str, topics: Mapping[str, int], partitions: Collection[TopicPartition]) -> Owners:
    """A migrating member's partitions over its streams, by Kafka's own round-robin over its topics.

    A partition of an unwanted topic (Kafka's view of the topics may be older) goes to its first stream.
    """
    subscribers = {topic: frozenset(thread_id(consumer, i) for i in range(streams)) for topic, streams in topics.items()}
    threads = sorted(set().union(*subscribers.values()), key=java_order)
    ordered = sorted(partitions, key=lambda topic_partition: (java_order(topic_partition.topic), topic_partition.partition))
    subscribed = [topic_partition for topic_partition in ordered if topic_partition.topic in subscribers]
    unsubscribed = {
        topic_partition: thread_id(consumer, 0) for topic_partition in ordered if topic_partition.topic not in subscribers
    }
    return {**_deal_round_robin(subscribed, subscribers, threads), **unsubscribed}


def non_migrating_members(members: Iterable[KafkaMember], migrating: Collection[str]) -> tuple[KafkaMember, ...]:
    """Members that are not migrating: their client.id is no consumer id in `migrating`, or others carry it, too (R26).

    Two on one host are one member that changes its list of assignors: it joins again before it leaves.
    """
    members = list(members)
    hosts: dict[str, list[str]] = defaultdict(list)
    for member in members:
        hosts[member.client_id].append(member.host)
    return tuple(m for m in members if m.client_id not in migrating or not _is_one_member(hosts[m.client_id]))


def _is_one_member(hosts: Sequence[str]) -> bool:
    return len(hosts) == 1 or (len(hosts) == 2 and hosts[0] == hosts[1] != "")  # the old one and the new one


def foreign_partitions(members: Iterable[KafkaMember], migrating: Collection[str]) -> frozenset[TopicPartition]:
    """Partitions that Kafka has given to members that are not migrating: they know no owner znode."""
    return frozenset().union(*(member.partitions for member in non_migrating_members(members, migrating)))
