"""Who else is in the Kafka group, from answers that a test gives."""

from __future__ import annotations

import pytest

from airflow_provider_kmigrate.clients import wire_groups
from airflow_provider_kmigrate.consumer.migrating_neighbours import Neighbours
from airflow_provider_kmigrate.core.assignors import KafkaMember
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.group_seen import KafkaGroup
from airflow_provider_kmigrate.exceptions import Failed, TimedOut, Unreachable


def told(state: str, *partitions: int) -> KafkaGroup:
    """A group that rebalances tells of members without partitions."""
    return KafkaGroup(
        state, (KafkaMember("m-1", "plain", frozenset(TopicPartition("t", number) for number in partitions), "/h"),)
    )


def test_the_last_answer_stays_until_a_settled_group_gives_another() -> None:
    answers: list[KafkaGroup | TimedOut] = [
        TimedOut("no answer"),
        told("Stable", 1),
        told("PreparingRebalance"),
        TimedOut("no answer"),
        told("Stable", 1),
        told("Stable"),
    ]
    news: list[tuple[KafkaMember, ...]] = []

    def ask() -> KafkaGroup:
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


def test_a_coordinator_out_of_reach_is_told_after_a_session_and_when_it_is_back() -> None:
    """A broker that answers with an error is in reach."""
    answers = [told("Stable"), Unreachable("cut"), TimedOut("cut"), Failed("no"), TimedOut("cut"), told("Empty")]
    for session, expected in ((0.0, [False, True, True, False, True, False]), (60.0, [False, False, False])):
        left, away = list(answers), list[bool]()

        def ask(left: list[object] = left) -> KafkaGroup:
            answer = left.pop(0)
            if isinstance(answer, Exception):
                raise answer
            assert isinstance(answer, KafkaGroup)
            return answer

        neighbours = Neighbours(ask, lambda: True, lambda: None, away.append, session)
        for _ in answers:
            neighbours.look()
        assert away == expected


@pytest.mark.parametrize(
    ("properties", "spoken"),
    [
        ({}, True),
        ({"security.protocol": "SSL", "ssl.ca.location": "/ca.pem"}, True),
        ({"security.protocol": "sasl_ssl", "sasl.mechanism": "SCRAM-SHA-512"}, True),
        ({"security.protocol": "SASL_SSL", "sasl.mechanisms": "GSSAPI"}, False),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}, False),
        ({"security.protocol": "SSL", "ssl.key.pem": "-----"}, False),
        ({"security.protocol": "SSL", "ssl.keystore.location": "/k.p12"}, False),
    ],
)
def test_whose_security_the_wire_client_speaks(properties: dict[str, str], spoken: bool) -> None:
    assert wire_groups.speaks(properties) is spoken
