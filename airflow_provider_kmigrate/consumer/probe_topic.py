"""The probe's topic: one partition that each broker leads, replicas on other brokers and, as far as there are some, in other racks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from airflow_provider_kmigrate.consumer.kafka_calls import kafka_calls, quiet_admin, wait_for_leaders

_REPLICAS: Final = 3
_CONFIG: Final = {
    "cleanup.policy": "delete",
    "retention.ms": "3600000",  # what is older than an hour has been judged
    "segment.ms": "600000",  # only whole segments are removed
    "unclean.leader.election.enable": "false",  # a record that is lost shall be a record that was lost
}


def layout(racks: Mapping[int, str | None], leaders: Iterable[int], replicas: int = _REPLICAS) -> list[list[int]]:
    """For each leader the replicas of a partition: itself, then the next brokers, other racks first. `racks`: of all brokers."""
    ring = sorted(racks)
    found = []
    for leader in leaders:
        at = ring.index(leader)
        found.append([leader, *_spread([*ring[at + 1 :], *ring[:at]], racks, {racks[leader]})][:replicas])
    return found


def _spread(brokers: Sequence[int], racks: Mapping[int, str | None], used: set[str | None]) -> list[int]:
    """First one broker of each rack that is not used, then the rest."""
    first, rest, seen = list[int](), list[int](), set(used)
    for broker in brokers:
        (rest if racks[broker] in seen else first).append(broker)
        seen.add(racks[broker])
    return [*first, *rest]


def ensure_topic(properties: Mapping[str, str], name: str, timeout: float = 60.0) -> int:
    """The probe's topic has a partition that each broker leads by preference; how many it has. Raises ours.

    Brokers that came since get partitions; those of brokers that are gone stay, other brokers lead them.
    """
    with kafka_calls(f"making the topic {name}"):
        admin = quiet_admin(properties)
        nodes = admin.describe_cluster(request_timeout=timeout).result(timeout).nodes
        racks = {node.id: node.rack for node in nodes}
        led = _preferred(admin, name, timeout)
        if led is None:
            _create(admin, name, layout(racks, sorted(racks)), timeout)
            led = sorted(racks)
        missing = sorted(racks.keys() - set(led))
        if missing:
            more = NewPartitions(name, len(led) + len(missing), replica_assignment=layout(racks, missing))
            admin.create_partitions([more], request_timeout=timeout)[name].result(timeout)
        count = len(led) + len(missing)
        wait_for_leaders(admin, {name: count}, timeout)
        return count


def _preferred(admin: AdminClient, name: str, timeout: float) -> list[int] | None:
    """The preferred leader of each partition; None: there is no such topic."""
    try:
        found = admin.describe_topics(TopicCollection([name]), request_timeout=timeout)[name].result(timeout)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return None
        raise
    return [partition.replicas[0].id for partition in found.partitions]


def _create(admin: AdminClient, name: str, replicas: list[list[int]], timeout: float) -> None:
    config = {**_CONFIG, "min.insync.replicas": str(max(1, len(replicas[0]) - 1))}
    topic = NewTopic(name, len(replicas), replica_assignment=replicas, config=config)
    try:
        admin.create_topics([topic], request_timeout=timeout)[name].result(timeout)
    except KafkaException as error:  # another task of the same run was faster
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
