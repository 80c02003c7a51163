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
from confluent_kafka import Producer

OFFSET_FETCH = 9
NOT_COORDINATOR = 16


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
        self._cluster = ctypes.c_void_p(self._library.rd_kafka_mock_cluster_new(self._client, 3))
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

    def fill(self, topic: str, counts: Mapping[int, int]) -> None:
        """Put this many records into these partitions."""
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for partition, count in counts.items():
            for number in range(count):
                producer.produce(topic, str(number), partition=partition)
        assert producer.flush(10) == 0


def _conf(library: ctypes.CDLL) -> int:
    conf = library.rd_kafka_conf_new()
    library.rd_kafka_conf_set(ctypes.c_void_p(conf), b"log_level", b"0", None, ctypes.c_size_t(0))
    return int(conf)
