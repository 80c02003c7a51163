"""Questions to mock brokers behind proxies, of a group that Kafka coordinates."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaPartition

from tests.consumer.migrating_group import delivered
from tests.consumer.mock_kafka import WatchedKafka
from tests.consumer.wire_log import Api, Request
from tests.waiting import wait_until

COORDINATOR = 1
MODE = "/consumers/g/migration/mode"
GROUP = (Api.OFFSET_COMMIT, Api.JOIN_GROUP, Api.SYNC_GROUP, Api.HEARTBEAT, Api.LEAVE_GROUP)


def goes_on(kafka: WatchedKafka, folder: Path, count: int = 5) -> None:
    """Records that come from here on are all delivered."""
    before = delivered(folder)
    kafka.fill("t", dict.fromkeys(range(4), count))
    wait_until(lambda: delivered(folder) == before + 4 * count, "all that came since")


def after(kafka: WatchedKafka, *apis: Api, since: int) -> list[Request]:
    """Requests behind the first `since` of all."""
    return [one for one in kafka.requests[since:] if one.api in apis]


def offsets(kafka: WatchedKafka) -> dict[int, int]:
    """What Kafka has of the group."""
    asking = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "g", "log_level": 0})
    try:
        found = asking.committed([KafkaPartition("t", n) for n in range(4)], timeout=10)
        return {one.partition: one.offset for one in found}
    finally:
        asking.close()
