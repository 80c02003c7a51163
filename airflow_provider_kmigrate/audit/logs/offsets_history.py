"""All commits of all groups, from the raw log of `__consumer_offsets`: Spark finds those in two partitions, or in the wrong one.

::

    count = read_history(session, properties, folder)                   # reads the topic once, into Parquet as `HISTORY`
    frames(session, session.read.parquet(folder), count).facts()        # `core.audit.commit_copies.OffsetsFacts`

Aggregates prove that a group's commits lie in one partition, the right one. Only the records of every other one go, whole, through
`core.offsets_repair.judge` in Spark's workers. Compaction keeps the newest record of a key and partition, and the recent ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import IsolationLevel
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_kmigrate.audit.logs.fingerprint import offsets_marks, sees_internal
from airflow_provider_kmigrate.audit.session import ship_package, spark_errors
from airflow_provider_kmigrate.audit.sources.kafka_source import options_of, read_spans
from airflow_provider_kmigrate.core.audit.commit_copies import OffsetsFacts, ShownCopies
from airflow_provider_kmigrate.core.audit.offsets_records import (
    BadRecord,
    GroupRemoved,
    GroupState,
    OffsetCommitted,
    OffsetRemoved,
    RawRecord,
    decode,
)
from airflow_provider_kmigrate.core.coordinator import magnitude
from airflow_provider_kmigrate.core.ledger.book import GroupPartition
from airflow_provider_kmigrate.core.offsets_repair import CopyState, Doubt, JudgedCopies, StoredCommit, by_time, judge

SHOWN: Final = 60  # commits that a report shows
_COURSE: Final = 100  # newest commits of each
_BATCH: Final = 5_000  # records that a worker decodes together

#: One row for each record of a classic group. Times are ms since the epoch.
HISTORY: Final = pa.schema(
    [
        ("kind", pa.string()),  # commit (or its removal), group (its own state, or the end of it), unreadable
        ("place", pa.int32()),  # partition of __consumer_offsets in which the record lies
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

#: One row for each group and partition whose commits do not all lie where they belong.
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

# The newest record of each group, partition and place.
_COPIES: Final = """
SELECT consumer_group, topic, part, place, max(number) AS number, max_by(live, at) AS live
FROM {history} WHERE kind = 'commit' GROUP BY consumer_group, topic, part, place
"""
_SUSPECTS: Final = """
SELECT DISTINCT consumer_group, topic, part FROM {copies} WHERE live AND place <> number % {count}
"""
_STATES: Final = """
SELECT count(DISTINCT consumer_group) AS n FROM (
  SELECT consumer_group, place, max(number) AS number, max_by(live, at) AS live
  FROM {history} WHERE kind = 'group' GROUP BY consumer_group, place
) WHERE live AND place <> number % {count}
"""
# The counts that put every commit outside its place exactly where it is.
_EARLIER: Final = """
SELECT n FROM (SELECT explode(sequence(1, {last})) AS n) CROSS JOIN (
  SELECT DISTINCT number, place FROM {copies} WHERE live AND place <> number % {count}
) GROUP BY n HAVING bool_and(number % n = place) ORDER BY n
"""
#: Groups whose partition changes between two counts.
_MOVING: Final = """
SELECT consumer_group, max(number) % {old} AS old_place, max(number) % {new} AS new_place, count(DISTINCT topic, part) AS commits
FROM {copies} WHERE live AND number % {old} <> number % {new} GROUP BY consumer_group
"""


def read_history(session: SparkSession, properties: Mapping[str, str], folder: str) -> int:
    """Write all that `__consumer_offsets` holds now into `folder`, as `HISTORY`; returns how many partitions the topic has, 0: none.

    Offsets of an aborted transaction were never committed: they are left out. Raises `Failed`, and `Refused` (X02) for a partition
    that cannot be read.
    """
    ship_package(session)
    marks = offsets_marks(properties, IsolationLevel.READ_COMMITTED)
    spans = {where: [(mark.start, mark.end)] for where, mark in marks.items()}
    with spark_errors("Spark could not read __consumer_offsets"):
        records = read_spans(sees_internal(session), options_of(properties), spans, isolation="read_committed")
        if records is None:
            decoded(session.createDataFrame([], _RAW)).write.mode("overwrite").parquet(folder)
        else:
            decoded(records.selectExpr(*_COLUMNS)).write.mode("overwrite").parquet(folder)
    return len(marks)


_COLUMNS: Final = ("partition", "offset", "unix_millis(timestamp) AS t_ms", "key", "value")
_RAW: Final = "partition int, offset long, t_ms long, key binary, value binary"


def decoded(raw: DataFrame) -> DataFrame:
    """Raw records (partition, offset, t_ms, key, value) as rows of `HISTORY`."""
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415  # pandas, which costs a second, only where it is used

    return raw.mapInArrow(_decoder(), from_arrow_schema(HISTORY))


def _decoder() -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that a worker runs; see `session.ship_package` for how the worker gets this package."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for begin in range(0, batch.num_rows, _BATCH):
                columns = (column.to_pylist() for column in batch.slice(begin, _BATCH).columns)
                rows = [row for record in zip(*columns, strict=True) for row in rows_of(RawRecord(*record))]
                yield from pa.Table.from_pylist(rows, schema=HISTORY).to_batches()

    return read


def rows_of(raw: RawRecord) -> Iterator[dict[str, Any]]:
    """The row of one record; none for a record of a new group (KIP-848), whose copies brokers do not mix up."""
    where = {"place": raw.partition, "at": raw.offset, "t_ms": raw.t_ms}
    try:
        record = decode(raw.key, raw.value)
    except BadRecord:
        yield {"kind": "unreadable", **where}
        return
    match record:
        case OffsetCommitted():
            known = {"leader_epoch": record.leader_epoch, "metadata": record.metadata, "expire_ms": record.expire_ms}
            yield {
                **where,
                **_of_commit(record),
                "live": True,
                "commit_ms": record.commit_ms,
                "committed": record.offset,
                **known,
            }
        case OffsetRemoved():
            yield {**where, **_of_commit(record), "live": False, "commit_ms": raw.t_ms, "leader_epoch": -1, "metadata": ""}
        case GroupState(group) | GroupRemoved(group):
            live = isinstance(record, GroupState)
            yield {**where, "kind": "group", "consumer_group": group, "number": magnitude(group), "live": live}


def _of_commit(record: OffsetCommitted | OffsetRemoved) -> dict[str, Any]:
    who = {"consumer_group": record.group, "number": magnitude(record.group)}
    return {"kind": "commit", **who, "topic": record.topic, "part": record.partition}


@dataclass(frozen=True)
class OffsetsFrames:
    """The questions to a history: data frames, which Spark computes when they are used.

    `count`: how many partitions the topic has for the brokers. `history` is as `HISTORY`, `judged` as `JUDGED`. `copies`: the newest
    record of each group, partition and place (consumer_group, topic, part, place, number, live).
    """

    session: SparkSession
    count: int
    history: DataFrame
    copies: DataFrame
    judged: DataFrame

    def moving(self, old: int, new: int) -> DataFrame:
        """Groups with commits whose partition changes between two counts: consumer_group, old_place, new_place, commits."""
        return self._ask(_MOVING, old=old, new=new)

    def earlier(self) -> tuple[int, ...]:
        """The counts below the topic's that put every commit outside its place where it is; none if all are in place."""
        return tuple(n for (n,) in self._rows(self._ask(_EARLIER, last=max(1, self.count - 1))))

    def facts(self) -> OffsetsFacts:
        """Everything that the report shows: totals, and the worst commits."""
        with spark_errors("Spark could not judge the commits"):
            ((records, unreadable),) = self._rows(self._ask("SELECT count(*), count_if(kind = 'unreadable') FROM {history}"))
            ((commits, groups),) = self._rows(
                self._ask(
                    "SELECT count(DISTINCT consumer_group, topic, part), count(DISTINCT consumer_group) FROM {copies} WHERE live"
                )
            )
            totals = {
                CopyState[name]: n for name, n in self._rows(self._ask("SELECT state, count(*) FROM {judged} GROUP BY state"))
            }
            ((concerned,),) = self._rows(self._ask("SELECT count(DISTINCT consumer_group) FROM {judged}"))
            ((states,),) = self._rows(self._ask(_STATES))
            worst = self.judged.orderBy("severity", "consumer_group", "topic", "part").limit(SHOWN)
            earlier = self.earlier()
            moving = self.moving(earlier[0], self.count).orderBy("consumer_group") if len(earlier) == 1 else None
            moved = moving.count() if moving else 0
            names = tuple(name for name, *_ in self._rows(moving.limit(SHOWN))) if moving else ()
            shown = tuple(_shown(row) for row in worst.toArrow().to_pylist())
        return OffsetsFacts(
            self.count, records, unreadable, commits, groups, totals, concerned, states, earlier, moved, names, shown
        )

    def _ask(self, question: str, **numbers: Any) -> DataFrame:
        named: dict[str, Any] = {"history": self.history, "copies": self.copies, "judged": self.judged, "count": self.count}
        return self.session.sql(question, **named, **numbers)

    @staticmethod
    def _rows(frame: DataFrame) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in frame.collect()]


def frames(session: SparkSession, history: DataFrame, count: int) -> OffsetsFrames:
    """The questions to a history, which must be cheap to read again: Parquet, not the topic."""
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415  # as above

    ship_package(session)
    copies = session.sql(_COPIES, history=history).persist()
    suspects = session.sql(_SUSPECTS, copies=copies, count=count)
    keys = ["consumer_group", "topic", "part"]
    grouped = history.where("kind = 'commit'").join(suspects, keys, "left_semi").groupBy(*keys)
    judging = _judging(count)
    # A lambda, because Spark looks at the function's type hints.
    judged = grouped.applyInArrow(lambda rows: judging(rows), from_arrow_schema(JUDGED)).persist()  # noqa: PLW0108
    return OffsetsFrames(session, count, history, copies, judged)


def _judging(count: int) -> Callable[[pa.Table], pa.Table]:
    """The function that a worker runs over all records of one group for one partition."""

    def run(rows: pa.Table) -> pa.Table:
        found = rows.to_pylist()
        key = GroupPartition(found[0]["consumer_group"], found[0]["topic"], found[0]["part"])
        records = [stored(row) for row in found]
        judged = judge(key, records, count)
        row = {
            "consumer_group": key.group,
            "topic": key.topic,
            "part": key.partition,
            "home": judged.home,
            "state": judged.state.name,
            "severity": list(CopyState).index(judged.state),
            "doubts": [doubt.name for doubt in judged.doubts],
            "copies": [_row(copy) for copy in judged.copies],
            "removal": [_row(judged.removal)] if judged.removal else [],
            "course": [_row(commit) for commit in by_time(records)[-_COURSE:]],
        }
        return pa.Table.from_pylist([row], schema=JUDGED)

    return run


def stored(row: Mapping[str, Any]) -> StoredCommit:
    """The record of a row of `HISTORY`, or of a part of `JUDGED`."""
    where = (row["place"], row["at"], row["t_ms"], row["commit_ms"])
    return StoredCommit(*where, row["committed"], row["leader_epoch"], row["metadata"], row["expire_ms"])


def _row(commit: StoredCommit) -> dict[str, Any]:
    values = commit._asdict()
    return {**{name: value for name, value in values.items() if name not in {"offset", "key"}}, "committed": commit.offset}


def _shown(row: Mapping[str, Any]) -> ShownCopies:
    key = GroupPartition(row["consumer_group"], row["topic"], row["part"])
    copies, removal, course = (tuple(map(stored, row[name])) for name in ("copies", "removal", "course"))
    doubts = tuple(Doubt[name] for name in row["doubts"])
    judged = JudgedCopies(key, row["home"], CopyState[row["state"]], copies, removal[0] if removal else None, doubts)
    return ShownCopies(judged, course)
