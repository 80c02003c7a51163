"""librdkafka's own mock brokers: real protocol, real clients, no JVM; errors and coordinators as a test says.

Only what its shared library exports is used (`rd_kafka_mock_*` of rdkafka_mock.h). Groups join after a tenth of a second.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import confluent_kafka
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from tests.consumer.migrating_group import delivered
from tests.consumer.wire_log import Api, WireLog, WireRequest
from tests.waiting import wait_until

OFFSET_FETCH = 9
NOT_COORDINATOR = 16
BROKERS = 3


def _library() -> ctypes.CDLL:
    folder = Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs"
    library = ctypes.CDLL(str(next(folder.glob("librdkafka-*.so*"))))
    for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_mock_cluster_new"):
        getattr(library, name).restype = ctypes.c_void_p
    library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    return library


class MockKafka:
    """Three brokers."""

    def __init__(self) -> None:
        self._library = _library()
        error = ctypes.create_string_buffer(512)
        self._client = ctypes.c_void_p(self._library.rd_kafka_new(0, ctypes.c_void_p(_conf(self._library)), error, 512))
        self._cluster = ctypes.c_void_p(self._library.rd_kafka_mock_cluster_new(self._client, BROKERS))
        self.bootstrap = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()
        self._library.rd_kafka_mock_group_initial_rebalance_delay_ms(self._cluster, 100)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._client)

    def topic(self, name: str, partitions: int) -> None:
        self._library.rd_kafka_mock_topic_create(self._cluster, name.encode(), partitions, 3)

    def fail(self, api: int, *codes: int) -> None:
        """Answer the next requests of this kind with these errors."""
        self._library.rd_kafka_mock_push_request_errors_array(
            self._cluster, ctypes.c_int16(api), ctypes.c_size_t(len(codes)), (ctypes.c_int * len(codes))(*codes)
        )

    def forgive(self, api: int) -> None:
        """Answer requests of this kind again as they deserve."""
        self._library.rd_kafka_mock_clear_request_errors(self._cluster, ctypes.c_int16(api))

    def coordinate(self, group: str, broker: int) -> None:
        """From now on this broker coordinates the group, and others say that they do not."""
        self._library.rd_kafka_mock_coordinator_set(self._cluster, b"group", group.encode(), ctypes.c_int32(broker))

    def down(self, broker: int) -> None:
        """Its connections break, and it takes none. It goes on leading its partitions."""
        self._library.rd_kafka_mock_broker_set_down(self._cluster, ctypes.c_int32(broker))

    def up(self, broker: int) -> None:
        self._library.rd_kafka_mock_broker_set_up(self._cluster, ctypes.c_int32(broker))

    def fill(self, topic: str, counts: Mapping[int, int]) -> None:
        """Put this many records into these partitions."""
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for partition, count in counts.items():
            for number in range(count):
                producer.produce(topic, str(number), partition=partition)
        assert producer.flush(10) == 0


class WatchedKafka(MockKafka):
    """The same behind proxies that write down what group members ask, in the order in which the brokers get it."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[WireRequest] = []
        self.proxies = [WireLog(_address(one), self.requests) for one in self.bootstrap.split(",")]
        for broker, proxy in enumerate(self.proxies, 1):
            self._library.rd_kafka_mock_broker_set_host_port(self._cluster, ctypes.c_int32(broker), b"127.0.0.1", proxy.port)
        self.bootstrap = ",".join(f"127.0.0.1:{proxy.port}" for proxy in self.proxies)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for proxy in self.proxies:
            proxy.__exit__()
        super().__exit__(kind, error, trace)

    def sent(self, *apis: Api, client: str = "", since: float = 0.0) -> list[WireRequest]:
        """Requests of these kinds of clients whose id begins so, in order."""
        return [one for one in list(self.requests) if one.api in apis and one.client.startswith(client) and one.at >= since]


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def _conf(library: ctypes.CDLL) -> int:
    conf = library.rd_kafka_conf_new()
    library.rd_kafka_conf_set(ctypes.c_void_p(conf), b"log_level", b"0", None, ctypes.c_size_t(0))
    return int(conf)


COORDINATOR = 1
MODE = "/consumers/g/migration/mode"
GROUP = (Api.OFFSET_COMMIT, Api.JOIN_GROUP, Api.SYNC_GROUP, Api.HEARTBEAT, Api.LEAVE_GROUP)


def goes_on(kafka: WatchedKafka, folder: Path, count: int = 5) -> None:
    """Records that come from here on are all delivered."""
    before = delivered(folder)
    kafka.fill("t", dict.fromkeys(range(4), count))
    wait_until(lambda: delivered(folder) == before + 4 * count, "all that came since")


def after(kafka: WatchedKafka, *apis: Api, since: int) -> list[WireRequest]:
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
