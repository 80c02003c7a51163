"""Events from their Kafka topic into Parquet (`sources.EVENTS`, a folder a row_kind), at each audit what came since; exactly once.

Spark's file sink and checkpoint make it exact: a query killed anywhere continues after its last whole batch. That holds only if
topic, checkpoint and output stay together, which Spark does not check: an old checkpoint skips what another topic holds, and a
new or restored checkpoint beside a newer output drops batches silently. So a file in the checkpoint ties them together, their
last batches are compared, and a mismatch is refused.

Records that are no events are rows too, in the row_kinds `refused` and `version`, with the reason and their place in the topic.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery

from airflow_provider_kmigrate.audit.kafka_source import READING, options_for
from airflow_provider_kmigrate.audit.sources import EVENTS, rows_of_records
from airflow_provider_kmigrate.audit.spark_calls import ship_package, spark_errors
from airflow_provider_kmigrate.clients.admin import read_cluster_id, read_marks
from airflow_provider_kmigrate.clients.hadoop_files import HadoopFiles
from airflow_provider_kmigrate.core.audit.events_kept import explain_mismatch, newest_batch, refuse_removed_events
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.events.model import LogMark, TopicPartition
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from airflow_provider_kmigrate.core.spark.hold import batch_offsets
from airflow_provider_kmigrate.exceptions import Refused, TimedOut

_VERSION: Final = 3
_TIE: Final = "kmigrate-stream.json"
_TOPIC_ID: Final = "topic_id"  # in it
#: One worker process decodes some ten thousand events a second; a batch must not grow without bound after a hold.
_SETTINGS: Final = {**READING, "failOnDataLoss": "true", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "500000"}


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """Topic, checkpoint and output, which belong together. Paths are anything that Spark's file systems know."""

    topic: str
    folder: str
    checkpoint: str


@dataclass(frozen=True, slots=True)
class CheckpointProgress:
    """A checkpoint's progress: the numbers of the last batch that was begun and of the last one that is in the output."""

    begun: int | None
    done: int | None


class EventStream:
    """A query that ingests what the topic holds, and ends."""

    def __init__(
        self,
        session: SparkSession,
        properties: Mapping[str, str],
        plan: StreamPlan,
        *,
        spark_options: Mapping[str, str] | None = None,
    ) -> None:
        self.plan = plan
        self._session = session
        self._files = HadoopFiles(session)
        self._options = {**options_for(session, properties), **_SETTINGS, **(spark_options or {}), "subscribe": plan.topic}
        self._cluster_id = read_cluster_id(properties)
        self._properties = properties

    def catch_up(self, timeout: float = 600.0) -> None:
        """Take in what the topic holds now, from where the last one ended.

        Raises `Failed`, `Unavailable`, `TimedOut` after `timeout` seconds, `Refused`: checkpoint and output do not belong to this
        topic and to each other (X03), or events were removed before they were ingested, also with the whole topic (X12).
        """
        marks = self.read_topic_marks()
        read_id = self._tie_checkpoint(next((mark.topic_id for mark in marks.values() if mark.topic_id), None))
        refuse_removed_events(marks, self._ingested_offsets(), read_id)
        query = self._start_query()
        with spark_errors("the event stream ended"):
            if not query.awaitTermination(math.ceil(timeout)):
                query.stop()
                raise TimedOut(f"the events in {self.plan.topic} were not ingested within {timeout:g} s")

    def _start_query(self) -> StreamingQuery:
        ship_package(self._session)
        with spark_errors("the event stream did not start"):
            source = self._session.readStream.format("kafka").options(**self._options).load()
            writer = (
                decode_events(source)
                .writeStream.format("parquet")
                .partitionBy("row_kind")
                .queryName(f"events of {self.plan.topic}")
            )
            writer = writer.option("checkpointLocation", self.plan.checkpoint).trigger(availableNow=True)
            return writer.start(self.plan.folder)

    def read_topic_marks(self) -> Mapping[TopicPartition, LogMark]:
        """The topic's logs now."""
        return read_marks(self._properties, [self.plan.topic])

    def _ingested_offsets(self) -> Mapping[TopicPartition, int]:
        """The topic's offsets that are in the output; empty before the first batch."""
        done = self.read_progress().done
        text = None if done is None else self._files.read(f"{self.plan.checkpoint}/offsets/{done}")
        return batch_offsets(text) if text else {}

    def read_progress(self) -> CheckpointProgress:
        """Read from the checkpoint's file names: `offsets` has one per begun batch, `commits` one per done batch."""
        file_names = (self._files.names(f"{self.plan.checkpoint}/{name}") for name in ("offsets", "commits"))
        return CheckpointProgress(*map(newest_batch, file_names))

    def _tie_checkpoint(self, topic_id: str | None) -> str | None:
        """The id of the topic that the checkpoint has read. One that has none yet, of an earlier release or Kafka, gets `topic_id`."""
        path = f"{self.plan.checkpoint}/{_TIE}"
        mine = {"version": _VERSION, "cluster_id": self._cluster_id, **asdict(self.plan)}
        tied = {**mine, _TOPIC_ID: topic_id} if topic_id else mine
        text = self._files.read(path)
        theirs = None if text is None else _parse_tie(text)
        read_id = theirs.pop(_TOPIC_ID, None) if isinstance(theirs, dict) else None
        if text is None:
            self._refuse_strangers()
            self._files.write(path, json.dumps(tied), new=True)
        elif theirs != mine:
            raise _mismatch_refusal(
                f"the checkpoint {self.plan.checkpoint} belongs to another query: {theirs}, this one is {mine}"
            )
        elif read_id is None and topic_id:
            self._files.write(path, json.dumps(tied))
        checkpoint_progress = self.read_progress()
        if why := explain_mismatch(
            checkpoint_progress.begun, checkpoint_progress.done, newest_batch(self._files.names(self._sink_log))
        ):
            raise _mismatch_refusal(f"the output {self.plan.folder} of the checkpoint {self.plan.checkpoint} {why}")
        return str(read_id) if read_id else topic_id

    @property
    def _sink_log(self) -> str:
        """The log of Spark's file sink."""
        return f"{self.plan.folder}/_spark_metadata"

    def _refuse_strangers(self) -> None:
        if {"metadata", "offsets", "commits"} & set(self._files.names(self.plan.checkpoint)):
            raise _mismatch_refusal(
                f"the checkpoint {self.plan.checkpoint} belongs to another query, which kmigrate did not start"
            )
        if self._files.names(self._sink_log):
            raise _mismatch_refusal(
                f"the output {self.plan.folder} belongs to another checkpoint; Spark would drop batches that it thinks are there"
            )


def _parse_tie(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _mismatch_refusal(text: str) -> Refused:
    return Refused.because(Reason.of(AuditCause.CHECKPOINT_MISMATCH, f"{text[:1].upper()}{text[1:]}."))


def decode_events(source: DataFrame) -> DataFrame:
    """Records of an events topic as rows of `sources.EVENTS`."""
    columns = source.selectExpr("topic", "partition", "offset", "value")
    return columns.mapInArrow(rows_of_records, from_arrow_schema(EVENTS))
