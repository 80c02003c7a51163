"""The rows of the history of `__consumer_offsets`, and what Spark's workers run over them.

Executors have only this package's `core` and `audit` (`spark_calls.ship_package`), so this module imports no client.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from airflow_provider_kmigrate.core.audit.commit_tracks import Tracks
from airflow_provider_kmigrate.core.ledger.book import GroupPartition
from airflow_provider_kmigrate.core.migration.coordinator import hash_group
from airflow_provider_kmigrate.core.offsets_topic.offsets_records import (
    BadRecord,
    GroupRemoved,
    GroupState,
    OffsetCommitted,
    OffsetRemoved,
    RawRecord,
    decode_record,
)
from airflow_provider_kmigrate.core.offsets_topic.offsets_repair import CopyState, StoredCommit, judge_copies, sort_by_commit_time

_COURSE: Final = 100  # newest commits that are kept of each group and partition
_BATCH: Final = 5_000  # records that a worker decodes together

#: One row for each record of a classic group. Times are ms since the epoch.
HISTORY: Final = pa.schema(
    [
        ("kind", pa.string()),  # commit (or its removal), group (its own state, or the end of it), unreadable
        ("place", pa.int32()),  # partition of __consumer_offsets in which the record is
        ("at", pa.int64()),  # the record's offset there
        ("t_ms", pa.int64()),  # the record's time
        ("consumer_group", pa.string()),
        ("number", pa.int64()),  # of the group: modulo the count of partitions its place
        ("topic", pa.string()),
        ("part", pa.int32()),
        ("live", pa.bool_()),  # false: a tombstone
        ("commit_ms", pa.int64()),  # the commit's own time; of a tombstone the record's
        ("committed", pa.int64()),  # the offset; null: removed
        ("leader_epoch", pa.int32()),  # -1: none
        ("metadata", pa.string()),
        ("expire_ms", pa.int64()),  # null: by the broker's retention
    ]
)

_STORED: Final = pa.struct(
    [(name, kind) for name, kind in zip(HISTORY.names, HISTORY.types, strict=True) if name in
     {"place", "at", "t_ms", "commit_ms", "committed", "leader_epoch", "metadata", "expire_ms"}]
)  # fmt: skip

#: One row for each group and partition whose commits are not all where they belong.
JUDGED: Final = pa.schema(
    [
        ("consumer_group", pa.string()),
        ("topic", pa.string()),
        ("part", pa.int32()),
        ("home", pa.int32()),  # the partition of __consumer_offsets in which it belongs
        ("state", pa.string()),  # name of a `CopyState`
        ("severity", pa.int32()),  # its place among them, 0 is the worst
        ("doubts", pa.list_(pa.string())),  # names of `Doubt`: why time does not say which copy is right
        ("copies", pa.list_(_STORED)),  # the last commit in each partition, the home's first
        ("removal", pa.list_(_STORED)),  # the tombstone that is last in the home, if one is
        ("course", pa.list_(_STORED)),  # the newest commits by commit time
    ]
)


#: The moves of commits in one piece of a partition.
TRACKS: Final = pa.schema([("partition", pa.int32()), ("place", pa.int64()), ("row", pa.binary())])


def track_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Raw records (partition, offset, t_ms, key, value) as one batch of `TRACKS`, each row a pickled `Tracks`."""
    pieces: dict[int, tuple[int, Tracks]] = {}
    for batch in batches:
        for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            raw = RawRecord(*values)
            pieces.setdefault(raw.partition, (raw.offset, Tracks()))[1].add_raw(raw)
    rows = [(partition, offset, pickle.dumps(tracks)) for partition, (offset, tracks) in pieces.items()]
    columns = [pa.array([row[at] for row in rows], field.type) for at, field in enumerate(TRACKS)]
    yield pa.RecordBatch.from_arrays(columns, schema=TRACKS)


def decode_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Raw records (partition, offset, t_ms, key, value) as batches of `HISTORY`."""
    for batch in batches:
        for begin in range(0, batch.num_rows, _BATCH):
            columns = (column.to_pylist() for column in batch.slice(begin, _BATCH).columns)
            rows = [row for record in zip(*columns, strict=True) for row in history_rows(RawRecord(*record))]
            yield _batch_of(rows)


def _batch_of(rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    """By columns: six times as fast as pyarrow's own reading of rows (measured)."""
    columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in HISTORY]
    return pa.RecordBatch.from_arrays(columns, schema=HISTORY)


def history_rows(raw: RawRecord) -> Iterator[dict[str, Any]]:
    """The row of one record; none for a record of a new group (KIP-848), whose copies brokers do not mix up."""
    record_columns = {"place": raw.partition, "at": raw.offset, "t_ms": raw.t_ms}
    try:
        record = decode_record(raw.key, raw.value)
    except BadRecord:
        yield {"kind": "unreadable", **record_columns}
        return
    match record:
        case OffsetCommitted():
            commit_columns = {"leader_epoch": record.leader_epoch, "metadata": record.metadata, "expire_ms": record.expire_ms}
            yield {
                **record_columns,
                **_commit_key_columns(record),
                "live": True,
                "commit_ms": record.commit_ms,
                "committed": record.offset,
                **commit_columns,
            }
        case OffsetRemoved():
            yield {
                **record_columns,
                **_commit_key_columns(record),
                "live": False,
                "commit_ms": raw.t_ms,
                "leader_epoch": -1,
                "metadata": "",
            }
        case GroupState(group) | GroupRemoved(group):
            live = isinstance(record, GroupState)
            yield {**record_columns, "kind": "group", "consumer_group": group, "number": hash_group(group), "live": live}


def _commit_key_columns(record: OffsetCommitted | OffsetRemoved) -> dict[str, Any]:
    group_columns = {"consumer_group": record.group, "number": hash_group(record.group)}
    return {"kind": "commit", **group_columns, "topic": record.topic, "part": record.partition}


def judge_rows(rows: pa.Table, count: int) -> pa.Table:
    """All rows of one group for one partition as its row of `JUDGED`, for a topic of `count` partitions."""
    row_dicts = rows.to_pylist()
    key = GroupPartition(row_dicts[0]["consumer_group"], row_dicts[0]["topic"], row_dicts[0]["part"])
    records = [stored_commit(row) for row in row_dicts]
    judged = judge_copies(key, records, count)
    row = {
        "consumer_group": key.group,
        "topic": key.topic,
        "part": key.partition,
        "home": judged.home,
        "state": judged.state.name,
        "severity": list(CopyState).index(judged.state),
        "doubts": [doubt.name for doubt in judged.doubts],
        "copies": [_stored_row(copy) for copy in judged.copies],
        "removal": [_stored_row(judged.removal)] if judged.removal else [],
        "course": [_stored_row(commit) for commit in sort_by_commit_time(records)[-_COURSE:]],
    }
    return pa.Table.from_pylist([row], schema=JUDGED)


def stored_commit(row: Mapping[str, Any]) -> StoredCommit:
    """The record of a row of `HISTORY`, or of a part of `JUDGED`."""
    position_columns = (row["place"], row["at"], row["t_ms"], row["commit_ms"])
    return StoredCommit(*position_columns, row["committed"], row["leader_epoch"], row["metadata"], row["expire_ms"])


def _stored_row(commit: StoredCommit) -> dict[str, Any]:
    values = commit._asdict()
    return {**{name: value for name, value in values.items() if name not in {"offset", "key"}}, "committed": commit.offset}
