"""The librdkafka client: what its errors mean."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from airflow_provider_kmigrate.clients.admin import connect, error_of, read_cluster_id, topic_id_or_none
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, Failed, KMigrateError, TimedOut, Unavailable, Unreachable
from tests.kit.localcluster.cluster import LocalCluster


class TestTopicIds:
    @pytest.mark.parametrize("message", ["", "None", "AAAAAAAAAAAAAAAAAAAAAA"])
    def test_a_topic_that_has_no_id_yet_is_not_another_topic(self, message: str) -> None:
        assert topic_id_or_none(message) is None

    def test_an_id_is_one(self) -> None:
        assert topic_id_or_none("Z7GS0b0QTJ2J4tLkGGVZ8w") == "Z7GS0b0QTJ2J4tLkGGVZ8w"


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
        with pytest.raises(Failed) as failed:
            connect({"no.such.property": "s3cr3t"})
        assert "s3cr3t" not in str(failed.value)


@pytest.mark.cluster
def test_the_cluster_names_itself(cluster: LocalCluster) -> None:
    assert read_cluster_id({"bootstrap.servers": cluster.bootstrap}) == cluster.plan.cluster_id
