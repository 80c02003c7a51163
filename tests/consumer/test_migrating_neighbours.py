"""Who else is in the Kafka group, from answers that a test gives."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from confluent_kafka import ConsumerGroupState
from confluent_kafka import TopicPartition as KafkaPartition

from airflow_provider_kmigrate.consumer.migrating_neighbours import Neighbours
from airflow_provider_kmigrate.core.assignors import KafkaMember
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.exceptions import TimedOut

STABLE = ConsumerGroupState.STABLE


def told(state: ConsumerGroupState, *partitions: int) -> SimpleNamespace:
    """As confluent-kafka has it; a group that rebalances tells of members without partitions."""
    places = [KafkaPartition("t", number) for number in partitions]
    member = SimpleNamespace(
        member_id="m-1", client_id="plain", host="/h", assignment=SimpleNamespace(topic_partitions=places) if places else None
    )
    return SimpleNamespace(state=state, members=[member])


def test_the_last_answer_stays_until_a_settled_group_gives_another() -> None:
    answers: list[Any] = [
        TimedOut("no answer"),
        told(STABLE, 1),
        told(ConsumerGroupState.PREPARING_REBALANCING),
        TimedOut("no answer"),
        told(STABLE, 1),
        told(STABLE),
    ]
    news: list[tuple[KafkaMember, ...]] = []

    def ask() -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    neighbours = Neighbours(ask, lambda: True, lambda: news.append(neighbours.members))
    assert neighbours.age == float("inf")
    assert [neighbours.look() for _ in range(6)] == [False, True, False, False, True, True]
    assert neighbours.age < float("inf")
    holds = KafkaMember("m-1", "plain", frozenset({TopicPartition("t", 1)}), "/h")
    assert news == [(holds,), (holds._replace(partitions=frozenset()),)]
