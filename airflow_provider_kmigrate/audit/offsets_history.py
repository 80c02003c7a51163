"""All commits of all groups, from the raw log of `__consumer_offsets`: Spark finds those in two partitions, or in the wrong one.

::

    count = read_history(session, properties, folder)                   # reads the topic once, into Parquet as `HISTORY`
    frames(session, session.read.parquet(folder), count).facts()        # `core.audit.commit_copies.OffsetsFacts`

Aggregates prove that a group's commits are in one partition, the right one. Only the records of every other one go, whole, through
`core.offsets_topic.offsets_repair.judge_copies` in Spark's workers. Compaction keeps the newest record of a key and partition, and the recent ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from airflow_provider_kmigrate.audit.fingerprint import with_internal_topics
from airflow_provider_kmigrate.audit.kafka_source import options_for, read_spans
from airflow_provider_kmigrate.audit.offsets_rows import HISTORY, JUDGED, decode_batches, judge_rows, stored_commit
from airflow_provider_kmigrate.audit.spark_calls import ship_package, spark_errors
from airflow_provider_kmigrate.clients.offsets_log import whole_marks
from airflow_provider_kmigrate.core.audit.commit_copies import OffsetsFacts, ShownCopies
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.ledger.book import GroupPartition
from airflow_provider_kmigrate.core.member.registration import OFFSETS_TOPIC
from airflow_provider_kmigrate.core.offsets_topic.offsets_repair import CopyState, Doubt, JudgedCopies
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from airflow_provider_kmigrate.exceptions import Refused, Unavailable

SHOWN: Final = 60  # commits that a report shows

# The newest record of each group, partition and place.
_COPIES: Final = """
SELECT consumer_group, topic, part, place, max(number) AS number, max_by(live, at) AS live
FROM {history} WHERE kind = 'commit' GROUP BY consumer_group, topic, part, place
"""
_SUSPECTS: Final = """
SELECT DISTINCT consumer_group, topic, part FROM {copies} WHERE live AND place <> number % {count}
"""
_PRESENT: Final = """
SELECT count(DISTINCT consumer_group, topic, part), count(DISTINCT consumer_group) FROM {copies} WHERE live
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
    that cannot be read, or in which an open transaction hides records.
    """
    try:
        marks = whole_marks(properties)
    except Unavailable as error:
        raise Refused.because(Reason.of(AuditCause.OFFSETS_UNREAD, str(error))) from error
    spans = {TopicPartition(OFFSETS_TOPIC, partition): [(mark.start, mark.end)] for partition, mark in marks.items()}
    with spark_errors("Spark could not read __consumer_offsets"):
        records = read_spans(with_internal_topics(session), options_for(session, properties), spans, isolation="read_committed")
        if records is None:
            decode_history(session.createDataFrame([], _RAW)).write.mode("overwrite").parquet(folder)
        else:
            decode_history(records.selectExpr(*_COLUMNS)).write.mode("overwrite").parquet(folder)
    return len(marks)


_COLUMNS: Final = ("partition", "offset", "unix_millis(timestamp) AS t_ms", "key", "value")
_RAW: Final = "partition int, offset long, t_ms long, key binary, value binary"


def decode_history(raw: DataFrame) -> DataFrame:
    """Raw records (partition, offset, t_ms, key, value) as rows of `HISTORY`."""
    ship_package(raw.sparkSession)
    return raw.mapInArrow(decode_batches, from_arrow_schema(HISTORY))


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

    def find_moving_groups(self, old: int, new: int) -> DataFrame:
        """Groups with commits whose partition changes between two counts: consumer_group, old_place, new_place, commits."""
        return self._ask(_MOVING, old=old, new=new)

    def find_earlier_counts(self) -> tuple[int, ...]:
        """The counts below the topic's that put every commit outside its place where it is; none if all are in place."""
        return tuple(n for (n,) in self._ask_rows(_EARLIER, last=max(1, self.count - 1)))

    def collect_facts(self) -> OffsetsFacts:
        """Everything that the report shows: totals, and the worst commits."""
        with spark_errors("Spark could not judge the commits"):
            ((records, unreadable),) = self._ask_rows("SELECT count(*), count_if(kind = 'unreadable') FROM {history}")
            ((commits, groups),) = self._ask_rows(_PRESENT)
            ((concerned,),) = self._ask_rows("SELECT count(DISTINCT consumer_group) FROM {judged}")
            ((states,),) = self._ask_rows(_STATES)
            worst = self.judged.orderBy("severity", "consumer_group", "topic", "part").limit(SHOWN)
            shown = tuple(_shown_copies(row) for row in worst.toArrow().to_pylist())
            totals = self._count_states()
            offsets_facts = OffsetsFacts(self.count, records, unreadable, commits, groups, totals, concerned, states, shown=shown)
            return self._with_earlier(offsets_facts)

    def _count_states(self) -> dict[CopyState, int]:
        counts = dict(self._ask_rows("SELECT state, count(*) FROM {judged} GROUP BY state"))
        return {state: counts[state.name] for state in CopyState if state.name in counts}

    def _with_earlier(self, offsets_facts: OffsetsFacts) -> OffsetsFacts:
        earlier = self.find_earlier_counts()
        if len(earlier) != 1:
            return replace(offsets_facts, earlier=earlier)
        moving = self.find_moving_groups(earlier[0], self.count)
        names = tuple(row.consumer_group for row in moving.orderBy("consumer_group").limit(SHOWN).collect())
        return replace(offsets_facts, earlier=earlier, moved=moving.count(), moving=names)

    def _ask(self, question: str, **numbers: Any) -> DataFrame:
        views: dict[str, Any] = {"history": self.history, "copies": self.copies, "judged": self.judged, "count": self.count}
        return self.session.sql(question, **views, **numbers)

    def _ask_rows(self, question: str, **numbers: Any) -> list[Any]:
        """Answers of few rows."""
        return [tuple(row) for row in self._ask(question, **numbers).collect()]


def build_frames(session: SparkSession, history: DataFrame, count: int) -> OffsetsFrames:
    """The questions to a history, which must be cheap to read again: Parquet, not the topic."""
    ship_package(session)
    copies = session.sql(_COPIES, history=history).persist()
    suspects = session.sql(_SUSPECTS, copies=copies, count=count)
    keys = ["consumer_group", "topic", "part"]
    grouped = history.where("kind = 'commit'").join(suspects, keys, "left_semi").groupBy(*keys)
    judged = grouped.applyInArrow(lambda rows: judge_rows(rows, count), from_arrow_schema(JUDGED)).persist()
    return OffsetsFrames(session, count, history, copies, judged)


def _shown_copies(row: Mapping[str, Any]) -> ShownCopies:
    key = GroupPartition(row["consumer_group"], row["topic"], row["part"])
    copies, removal, course = (tuple(map(stored_commit, row[name])) for name in ("copies", "removal", "course"))
    doubts = tuple(Doubt[name] for name in row["doubts"])
    judged = JudgedCopies(key, row["home"], copies, removal[0] if removal else None, doubts, state=CopyState[row["state"]])
    return ShownCopies(judged, course)
