"""A migrating member in the Kafka group: commits that no caller waits for, the other members, metrics."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from airflow_provider_kmigrate.applications.migrating.kafka import EmbeddedConsumer, FencedConsumer
from airflow_provider_kmigrate.applications.migrating.runner import GroupPoller, format_prometheus, metrics_of
from airflow_provider_kmigrate.applications.migrating.settings import parse_settings
from airflow_provider_kmigrate.clients.identity import supports_identity
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.member.assignors import KafkaMember
from airflow_provider_kmigrate.core.member.group_seen import KafkaGroup
from airflow_provider_kmigrate.core.member.messages import KafkaAssigned, KafkaLost
from airflow_provider_kmigrate.core.member.registration import Mode
from airflow_provider_kmigrate.exceptions import Failed, KMigrateError, TimedOut, Unreachable
from tests.core.member_talk import KAFKA, Talk

ALONE = parse_settings({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "zookeeper.connect": "127.0.0.1:1", "log_level": 0})
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def messages(state: str, *partitions: int) -> KafkaGroup:
    """A group that rebalances tells of members without partitions."""
    return KafkaGroup(
        state, (KafkaMember("m-1", "plain", frozenset(TopicPartition("t", number) for number in partitions), "/h"),)
    )


def test_the_last_answer_stays_until_a_settled_group_gives_another() -> None:
    answers: list[KafkaGroup | TimedOut] = [
        TimedOut("no answer"),
        messages("Stable", 1),
        messages("PreparingRebalance"),
        TimedOut("no answer"),
        messages("Stable", 1),
        messages("Stable"),
    ]
    news: list[tuple[KafkaMember, ...]] = []

    poller = GroupPoller(Mock(side_effect=answers), lambda: True, lambda: news.append(poller.members), bool, float("inf"))
    assert poller.age == float("inf")
    assert [poller.poll() for _ in range(6)] == [False, True, False, False, True, True]
    assert poller.age < float("inf")
    holds = KafkaMember("m-1", "plain", frozenset({TopicPartition("t", 1)}), "/h")
    assert news == [(holds,), (holds._replace(partitions=frozenset()),)]


def test_only_a_settled_group_that_answers_has_members_now() -> None:
    answers = Mock(side_effect=[TimedOut("no answer"), messages("PreparingRebalance", 1), messages("Stable", 1)])
    poller = GroupPoller(answers, lambda: True, lambda: None, bool, float("inf"))
    assert [poller.ask_stable_members() for _ in range(3)] == [None, None, messages("Stable", 1).members]
    assert poller.members == (), "the poller's own answers stay"


def test_an_error_that_no_one_expects_does_not_end_the_poller() -> None:
    answers, found = Mock(side_effect=[RuntimeError("unexpected"), messages("Stable", 1)]), threading.Event()
    poller = GroupPoller(answers, lambda: True, found.set, bool, float("inf"))
    poller.start()
    try:
        assert found.wait(10.0)
    finally:
        poller.request_end()
        poller.join()


def asked(answers: list[KafkaGroup | KMigrateError], session: float) -> list[tuple[KafkaMember, ...] | None]:
    """The calls of `away` by so many answers."""
    away: list[tuple[KafkaMember, ...] | None] = []
    poller = GroupPoller(Mock(side_effect=answers), lambda: True, lambda: None, away.append, session)
    for _ in answers:
        poller.poll()
    return away


def test_an_unreachable_coordinator_is_reported_after_a_session_and_its_members_on_return() -> None:
    """A broker that answers with an error is reachable, and reports no member."""
    cut = [Unreachable("cut"), TimedOut("cut"), Failed("no"), TimedOut("cut"), messages("Empty"), messages("PreparingRebalance")]
    answers = [messages("Stable", 1), *cut, messages("Stable", 2)]
    there, later = messages("Stable", 1).members, messages("Stable", 2).members
    assert asked(answers, 0.0) == [there, None, None, None, later]
    assert asked(answers, 60.0) == [there, later]


def test_a_member_that_was_never_answered_reports_no_unreachable_coordinator() -> None:
    """As by TLS that librdkafka speaks and this thread's client does not."""
    error = Unreachable("TLS")
    error.__cause__ = ssl.SSLError("DH_KEY_TOO_SMALL")
    assert asked([error, TimedOut("no answer")], 0.0) == []


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ((), []),
        ((KafkaMember("m-2", "plain", frozenset({T0, T1}), "/h"),), []),
        (
            (KafkaMember("m-1", "mine", frozenset({T0}), "/h"), KafkaMember("m-2", "plain", frozenset({T1}), "/h")),
            [KafkaAssigned({T0})],
        ),
    ],
)
def test_back_in_reach_a_member_has_what_the_group_says_and_no_more(
    members: tuple[KafkaMember, ...], expected: list[object]
) -> None:
    """The embedded consumer still believes that both are its own."""
    said: list[object] = []
    fenced = FencedConsumer(ALONE, "mine", said.append, bool)
    try:
        fenced.start()
        for consumer in fenced._consumers.values():
            consumer.assigned = frozenset({T0, T1})
        fenced.handle_group_answer(None)
        fenced.handle_group_answer(members)
        assert said == [KafkaLost(), *expected]
    finally:
        fenced.close()


@pytest.fixture
def fenced() -> Iterator[FencedConsumer]:
    made = FencedConsumer(ALONE, "mine", lambda _: None, bool)
    made.start()
    yield made
    made.close()


def beside(act: Callable[[], object]) -> threading.Thread:
    """Begin it in another thread, and give it time to end unless it waits for this one."""
    other = threading.Thread(target=act)
    other.start()
    other.join(0.2)
    return other


def test_a_consumer_that_is_made_while_the_group_is_left_leaves_too(
    fenced: FencedConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, closes = fenced._make, list[threading.Thread]()

    def make_slowly(mode: Mode) -> EmbeddedConsumer:
        closes.append(beside(fenced.close))
        return make(mode)

    monkeypatch.setattr(fenced, "_make", make_slowly)
    fenced.follow_mode(Mode.KAFKA, frozenset())
    for close in closes:
        close.join()
    assert [consumer.is_leaving for consumer in fenced._consumers.values()] == [True, True]


def test_the_group_answers_while_the_mode_changes(fenced: FencedConsumer, monkeypatch: pytest.MonkeyPatch) -> None:
    follows: list[threading.Thread] = []

    def assigned(_: EmbeddedConsumer) -> frozenset[TopicPartition]:
        if not follows:
            follows.append(beside(lambda: fenced.follow_mode(Mode.KAFKA, frozenset())))
        return frozenset({T0})

    monkeypatch.setattr(EmbeddedConsumer, "assigned", property(assigned, lambda *_: None), raising=False)
    fenced.handle_group_answer(None)
    fenced.handle_group_answer(())
    for follow in follows:
        follow.join()
    assert fenced._consumers.keys() == set(Mode)


@pytest.mark.parametrize(
    ("properties", "spoken"),
    [
        ({}, True),
        ({"security.protocol": "SSL", "ssl.ca.location": "/ca.pem"}, True),
        ({"security.protocol": "sasl_ssl", "sasl.mechanism": "SCRAM-SHA-512"}, True),
        ({"security.protocol": "SASL_SSL", "sasl.mechanisms": "GSSAPI"}, False),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}, False),
        ({"security.protocol": "SSL", "ssl.key.pem": "-----"}, False),
        ({"security.protocol": "SSL", "ssl.keystore.location": "/k.p12"}, True),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token": "t"}, True),
    ],
)
def test_whose_security_the_wire_client_speaks(properties: dict[str, str], spoken: bool) -> None:
    assert supports_identity(properties) is spoken


def test_a_commit_that_was_given_up_is_not_sent() -> None:
    """Its partition may be released by then, and another member may have committed further."""
    sent: list[KafkaPartition] = []
    consumer = EmbeddedConsumer(ALONE, "g_a", "roundrobin", bool, bool)
    consumer.joined = True  # as in a group
    consumer._consumer = SimpleNamespace(commit=lambda offsets, **_: sent.extend(offsets) or offsets)
    given_up, waited_for = consumer.commit(T0, 120), consumer.commit(T1, 7)
    assert given_up.cancel()
    consumer._serve_calls(0.0)
    assert [(one.partition, one.offset) for one in sent] == [(1, 7)]
    assert waited_for.result(0) is True
    assert not waited_for.cancel()


def test_kip_125s_figures() -> None:
    assert metrics_of(None) == {"ActiveKafkaCoordinationCount": 0, "KafkaOwnedPartitionsCount": 0}
    talk = Talk().delivering(KAFKA, frozenset({T0}))
    assert metrics_of(talk.member) == {"ActiveKafkaCoordinationCount": 1, "KafkaOwnedPartitionsCount": 1}


def test_prometheus_reads_them_whatever_the_names_hold() -> None:
    """The text as prometheus-client 0.26's own parser took it."""
    metrics = {"ActiveKafkaCoordinationCount": 1, "KafkaOwnedPartitionsCount": 3}
    text = format_prometheus(metrics, 'a "group"\\', "two\nlines", 1.5)
    labels = r'{group="a \"group\"\\",client="two\nlines"}'
    assert [line for line in text.splitlines() if not line.startswith("#")] == [
        f"kmigrate_consumer_kafka_coordination_active{labels} 1",
        f"kmigrate_consumer_kafka_owned_partitions{labels} 3",
        f"kmigrate_consumer_kafka_members_age_seconds{labels} 1.500",
    ]
    assert text.endswith("\n")
    assert "age" not in format_prometheus(metrics, "g", "c", float("inf"))


@pytest.mark.parametrize("late", [False, True])
def test_a_call_of_a_consumer_that_has_left_is_refused_and_not_left_without_an_answer(late: bool) -> None:
    """Asked while it leaves, or afterwards: whoever waits for the answer asks again elsewhere."""
    consumer = EmbeddedConsumer(ALONE, "g_a", "range", bool, lambda _: True)
    before = None if late else (consumer.commit(TopicPartition("t", 0), 7), consumer.read_committed(TopicPartition("t", 0)))
    consumer.leave()
    consumer.start()
    consumer.close()
    committed, read = before or (consumer.commit(TopicPartition("t", 0), 7), consumer.read_committed(TopicPartition("t", 0)))
    assert committed.result(0.0) is False
    with pytest.raises(KafkaException, match="_DESTROY"):
        read.result(0.0)
