"""The librdkafka client: what its errors mean, and whole-cluster reads and elections on real brokers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import nullcontext
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType
from tenacity import retry, stop_after_delay, wait_fixed, wait_none

from airflow_provider_kmigrate.clients.admin import Admin, _topic, cluster_id, error_of, known_id
from airflow_provider_kmigrate.clients.settings import KafkaSettings
from airflow_provider_kmigrate.core.model import Partition
from airflow_provider_kmigrate.exceptions import (
    AuthenticationFailed,
    Failed,
    Fenced,
    KMigrateError,
    TimedOut,
    Unavailable,
    Unreachable,
)
from tests.kit.held import Held
from tests.kit.localcluster.cluster import LocalCluster
from tests.waiting import refusing_port


class TestControllerThatMoved:
    """librdkafka asks the controller that it knew first, and nothing but a new client learns of another one (measured)."""

    class Client:
        def __init__(self, code: int | None) -> None:
            self.code = code

        def elect_leaders(
            self, _kind: object, wanted: list[TopicPartition]
        ) -> Future[dict[TopicPartition, KafkaException | None]]:
            found: Future[dict[TopicPartition, KafkaException | None]] = Future()
            error = None if self.code is None else KafkaException(KafkaError(self.code))
            found.set_result(dict.fromkeys(wanted, error))
            return found

    @pytest.mark.parametrize(
        ("codes", "used", "error"),
        [
            ([None], 1, None),
            ([41, 41, None], 3, None),
            ([41, 80, None], 2, Unavailable),
            ([80, None], 1, Unavailable),
            ([41] * 9, 6, Unavailable),
        ],
        ids=["nothing", "twice", "then no preferred leader", "no preferred leader", "for ever"],
    )
    def test_a_new_client_is_asked_and_nothing_else_is_tried_again(
        self, codes: list[int | None], used: int, error: type[Exception] | None
    ) -> None:
        made: list[TestControllerThatMoved.Client] = []

        def client(_: object) -> Any:
            made.append(self.Client(codes[len(made)]))
            return made[-1]

        admin, wanted = Admin(KafkaSettings({}), connect=client), [Partition("t", 0, 1, (0, 1), (0, 1))]
        elect = Admin.elect_preferred.retry_with(wait=wait_none())  # type: ignore[attr-defined]
        with nullcontext() if error is None else pytest.raises(error):
            elect(admin, wanted, Held())
        assert len(made) == used


class TestOfANewerRun:
    """Kafka's requests carry no token: the fence is read again right before each."""

    class Client:
        def __init__(self) -> None:
            self.sent: list[str] = []

        def elect_leaders(self, _kind: object, wanted: list[Any]) -> Future[Any]:
            self.sent.append("elect")
            done: Future[Any] = Future()
            done.set_result(dict.fromkeys(wanted))
            return done

        def create_partitions(self, _wanted: object, **_: object) -> dict[str, Future[Any]]:
            self.sent.append("create")
            return {}

    def test_nothing_is_sent(self) -> None:
        client = self.Client()
        admin = Admin(KafkaSettings({}), connect=lambda _: client)  # type: ignore[arg-type,return-value]
        with pytest.raises(Fenced):
            admin.elect_preferred([Partition("t", 0, 1, (0, 1), (0, 1))], Held(checks=0))
        with pytest.raises(Fenced):
            admin.add_partitions("t", [(0, 1)], 1, Held(checks=0))
        assert client.sent == []

    def test_it_is_read_before_each_batch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("airflow_provider_kmigrate.clients.admin._ELECTIONS", 1)
        client, rows = self.Client(), [Partition("t", place, 1, (0, 1), (0, 1)) for place in range(3)]
        with pytest.raises(Fenced):
            Admin(KafkaSettings({}), connect=lambda _: client).elect_preferred(rows, Held(checks=2))  # type: ignore[arg-type,return-value]
        assert client.sent == ["elect", "elect"]


class TestTopicIds:
    def test_are_written_as_kafka_writes_them(self) -> None:
        class Described:
            name, topic_id, partitions = "t", "tcAZIQy2/cmHdv0I+67XWA", ()

        assert _topic(Described, {}).topic_id == "tcAZIQy2_cmHdv0I-67XWA"

    @pytest.mark.parametrize("message", ["", "None", "AAAAAAAAAAAAAAAAAAAAAA"])
    def test_a_topic_that_has_no_id_yet_is_not_another_topic(self, message: str) -> None:
        assert known_id(message) is None

    def test_an_id_is_one(self) -> None:
        assert known_id("Z7GS0b0QTJ2J4tLkGGVZ8w") == "Z7GS0b0QTJ2J4tLkGGVZ8w"


def test_a_node_that_never_answers_is_reported_with_librdkafkas_reason() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        admin = Admin(KafkaSettings({"bootstrap.servers": f"127.0.0.1:{silent.getsockname()[1]}"}), timeout=1.0)
        with pytest.raises(TimedOut, match="Local: Timed out"):
            admin._ask_each("DescribeConfigs", AdminClient.describe_configs, [ConfigResource(ResourceType.BROKER, "0")])


def test_the_wait_is_longer_than_librdkafkas_own_limit() -> None:
    """Else which of both ends first is chance, and ours gives no reason."""
    limits: list[float | None] = []

    class Answer(Future[Any]):
        def result(self, timeout: float | None = None) -> Any:
            limits.append(timeout)

    def ask(_client: AdminClient, _wanted: Any, request_timeout: float) -> dict[Any, Future[Any]]:
        limits.append(request_timeout)
        return {"t": Answer()}

    Admin(KafkaSettings({"bootstrap.servers": f"127.0.0.1:{refusing_port()}"}), timeout=1.0)._ask_each("X", ask, [])
    assert limits == [1.0, 2.0]


class TestErrors:
    CODES = tuple(getattr(KafkaError, name) for name in dir(KafkaError) if name.strip("_").isupper())

    def test_every_code_is_ours(self) -> None:
        assert len(self.CODES) > 150
        for code in self.CODES:
            assert isinstance(error_of(KafkaError(code), "x"), KMigrateError)

    @pytest.mark.parametrize(
        ("code", "ours"),
        [
            (KafkaError._TRANSPORT, Unreachable),
            (KafkaError._ALL_BROKERS_DOWN, Unreachable),
            (KafkaError._TIMED_OUT, TimedOut),
            (KafkaError._PARTIAL, Unavailable),
            (KafkaError._AUTHENTICATION, AuthenticationFailed),
            (KafkaError.CLUSTER_AUTHORIZATION_FAILED, AuthenticationFailed),
            (KafkaError.NOT_CONTROLLER, Unavailable),
            (KafkaError._INVALID_ARG, Failed),
        ],
    )
    def test_what_the_caller_may_do(self, code: int, ours: type[KMigrateError]) -> None:
        assert type(error_of(KafkaError(code), "x")) is ours

    def test_a_property_that_librdkafka_does_not_know(self) -> None:
        with Admin(KafkaSettings({"no.such.property": "s3cr3t"})) as client, pytest.raises(Failed) as failed:
            client.topics()
        assert "s3cr3t" not in str(failed.value)

    def test_no_listener(self) -> None:
        with (
            refusing_port() as port,
            Admin(KafkaSettings({"bootstrap.servers": f"127.0.0.1:{port}"}), timeout=0.3) as client,
            pytest.raises((Unreachable, TimedOut)),
        ):
            client.topics()


@pytest.fixture(scope="module")
def settings(cluster: LocalCluster) -> KafkaSettings:
    return KafkaSettings({"bootstrap.servers": cluster.bootstrap})


@pytest.fixture(scope="module")
def topic(settings: KafkaSettings) -> str:
    """Two partitions on three brokers, with an override."""
    admin = AdminClient(dict(settings.properties))
    new = NewTopic("admin-test", 2, 3, config={"min.insync.replicas": "2", "retention.ms": "7"})
    for created in admin.create_topics([new]).values():
        created.result(timeout=30)
    with Admin(settings) as look:
        _until_known(look, "admin-test")
    return "admin-test"


@retry(stop=stop_after_delay(30), wait=wait_fixed(0.1))
def _until_known(look: Admin, topic: str) -> None:
    """The controller answers a creation before every broker knows the topic."""
    for _ in range(10):  # whichever broker answers
        assert len(look.topics()[topic].partitions) == 2


@pytest.fixture
def admin(settings: KafkaSettings) -> Iterator[Admin]:
    with Admin(settings) as client:
        yield client


@pytest.mark.cluster
class TestRealBrokers:
    def test_the_cluster_names_itself(self, settings: KafkaSettings, cluster: LocalCluster) -> None:
        assert cluster_id(settings.properties) == cluster.plan.cluster_id

    def test_topics_have_ids_and_overrides_only(self, admin: Admin, topic: str) -> None:
        found = admin.topics()[topic]
        assert found.configs == {"min.insync.replicas": "2", "retention.ms": "7"}
        assert set(found.partitions[1].replicas) == {0, 1, 2}

    def test_electing_those_that_lead_already_is_fine(self, admin: Admin, topic: str) -> None:
        known = admin.topics()[topic].partitions
        wanted = [Partition(topic, index, each.leader, each.replicas, each.isr) for index, each in known.items()]
        admin.elect_preferred(wanted, Held())
        admin.elect_preferred([], Held())
        admin.elect_preferred([Partition("deleted-meanwhile", 0, -1, (0,), (0,))], Held())
        assert all(each.leader == each.replicas[0] for each in admin.topics()[topic].partitions.values())
