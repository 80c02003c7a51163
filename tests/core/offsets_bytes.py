"""Records of `__consumer_offsets` as brokers write them; `test_offsets_records` compares them with golden bytes of Kafka."""

from __future__ import annotations

from struct import pack

from airflow_provider_kmigrate.core.ledger.book import GroupPartition
from airflow_provider_kmigrate.core.offsets_topic.offsets_records import RawRecord


def text(value: str) -> bytes:
    data = value.encode()
    return pack(">h", len(data)) + data


def commit_key(key: GroupPartition) -> bytes:
    return pack(">h", 1) + text(key.group) + text(key.topic) + pack(">i", key.partition)


def commit_value(offset: int, commit_ms: int, leader_epoch: int = -1, metadata: str = "") -> bytes:
    return pack(">hqi", 3, offset, leader_epoch) + text(metadata) + pack(">q", commit_ms)


def group_key(group: str) -> bytes:
    return pack(">h", 2) + text(group)


EMPTY_GROUP = bytes.fromhex("00030008636f6e73756d65720000002bffffffffffffffffffffffff00000000")  # of golden_offsets.txt


class Log:
    """A raw log of `__consumer_offsets` that grows; times are milliseconds."""

    def __init__(self) -> None:
        self.records: list[RawRecord] = []
        self._ends: dict[int, int] = {}

    def put(self, place: int, t_ms: int, key: bytes, value: bytes | None) -> None:
        at = self._ends.get(place, 0)
        self._ends[place] = at + 1
        self.records.append(RawRecord(place, at, t_ms, key, value))

    def commit(self, place: int, key: GroupPartition, offset: int | None, t_ms: int, metadata: str = "") -> None:
        """A commit, or its tombstone."""
        self.put(place, t_ms, commit_key(key), None if offset is None else commit_value(offset, t_ms, 5, metadata))

    def group(self, place: int, group: str, t_ms: int, *, there: bool = True) -> None:
        self.put(place, t_ms, group_key(group), EMPTY_GROUP if there else None)
