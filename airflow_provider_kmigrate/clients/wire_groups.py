"""One consumer group as its coordinator describes it, asked by the wire client.

librdkafka's own question ends the process where the connection to a coordinator breaks at the wrong moment (an assertion, seen with
2.16.0; its issues 3663 and 4605): no question to ask from inside somebody's application, which a broker's restart would kill.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kafka.protocol.admin import DescribeGroupsRequest
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment
from kafka.protocol.metadata import FindCoordinatorRequest

from airflow_provider_kmigrate.clients.kafka_errors import check
from airflow_provider_kmigrate.clients.settings import KafkaSettings
from airflow_provider_kmigrate.clients.wire import Wire
from airflow_provider_kmigrate.clients.wire_security import MECHANISMS, from_kafka
from airflow_provider_kmigrate.core.assignors import KafkaMember
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.group_seen import KafkaGroup
from airflow_provider_kmigrate.exceptions import Unavailable, Unreachable

_CONSUMERS: Final = "consumer"  # the protocol type whose assignments can be read


def speaks(properties: Mapping[str, str]) -> bool:
    """Whether the wire client can be who these librdkafka properties say."""
    security = from_kafka(KafkaSettings(properties))
    in_files = not any(name.startswith("ssl.") and name.endswith((".pem", "keystore.location")) for name in properties)
    return in_files and (not security.protocol.startswith("SASL_") or security.sasl_mechanism in MECHANISMS)


def describe(properties: Mapping[str, str], group: str, timeout: float) -> KafkaGroup:
    """The group now. `timeout`: seconds for each of the brokers that have to be asked. Raises as `Wire` does."""
    settings = KafkaSettings(properties)
    coordinator = _coordinator(settings, group, timeout)
    with Wire(*coordinator, from_kafka(settings), timeout) as wire:
        (answer,) = wire.ask(DescribeGroupsRequest, 0, 4, groups=[group]).groups
        check(answer.error_code, f"{wire.endpoint} DescribeGroups of {group}")
    ours = answer.protocol_type == _CONSUMERS
    return KafkaGroup(
        answer.group_state, tuple(_member(one, readable=ours) for one in answer.members), answer.protocol_data or ""
    )


def _coordinator(settings: KafkaSettings, group: str, timeout: float) -> tuple[str, int]:
    """Host and port, from the first of the given brokers that tells."""
    last: Unavailable | None = None
    for host, port in settings.servers:
        try:
            with Wire(host, port, from_kafka(settings), timeout) as wire:
                answer = wire.ask(FindCoordinatorRequest, 1, 3, key=group)
                check(answer.error_code, f"{wire.endpoint} FindCoordinator of {group}", answer.error_message)
                return answer.host, answer.port
        except Unavailable as error:
            last = error
    raise last or Unreachable(f"{settings.bootstrap}: no address of a broker")


def _member(found: Any, *, readable: bool) -> KafkaMember:
    data = bytes(found.member_assignment or b"")
    assigned = ConsumerProtocolAssignment.decode(data).assigned_partitions if data and readable else ()
    where = frozenset(TopicPartition(topic.topic, partition) for topic in assigned for partition in topic.partitions)
    return KafkaMember(found.member_id, found.client_id, where, found.client_host)
