"""An example of a user's streaming job that kmigrate can hold: records of some topics into Parquet, each exactly once.

`python -m tests.kit.spark_job --bootstrap HOST:PORT --topic T --folder F --jars A,B` runs until it gets
SIGTERM. It then takes in what the topics hold by now, counts what is in its sink, leaves the counts in `F/sink.json` and ends.
Everything lies in the folder: `sink`, and `checkpoint` with the state of the helper in `checkpoint/_kmigrate`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_kmigrate.applications.spark_hold import keep_running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_EVERY: Final = "10 seconds"
_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    # A reader a partition is kept open between batches; with fewer places than partitions each batch would open all of them again.
    "spark.kafka.consumer.cache.capacity": "512",
}
#: Spark tries three times, a second apart, and then the query has failed: too little for a partition without a leader in a roll.
_PATIENCE: Final = {"fetchOffset.numRetries": "10", "fetchOffset.retryIntervalMs": "5000"}
#: Each partition of each batch otherwise waits half a second behind a fetch for records that are not there yet (measured).
_HASTE: Final = {"kafka.fetch.max.wait.ms": "10"}


class Job:
    """The query, and the session that runs it."""

    def __init__(self, session: SparkSession, bootstrap: str, topics: Sequence[str], folder: Path) -> None:
        self._session, self._bootstrap, self._topics = session, bootstrap, ",".join(topics)
        self._folder = folder
        self.checkpoint = str(folder / "checkpoint")
        self.sink = str(folder / "sink")

    def start(self, trigger: dict[str, Any] | None = None) -> StreamingQuery:
        """A batch every few seconds, written as one file: a file for each partition would be thousands."""
        source = {
            "kafka.bootstrap.servers": self._bootstrap,
            "subscribe": self._topics,
            "startingOffsets": "earliest",
            **_PATIENCE,
            **_HASTE,
        }
        records = self._session.readStream.format("kafka").options(**source).load()
        rows = records.selectExpr("topic", "partition", "offset", "timestamp", "value").coalesce(1)
        writer = rows.writeStream.format("parquet").option("checkpointLocation", self.checkpoint)
        return writer.trigger(**(trigger or {"processingTime": _EVERY})).start(self.sink)

    def finish(self) -> dict[str, int]:
        """Take in the remaining records and count: all rows, and the distinct records, which must be equal."""
        self.start({"availableNow": True}).awaitTermination()
        rows = self._session.read.parquet(self.sink)
        total, distinct = rows.selectExpr("count(*)", "count(distinct topic, partition, offset)").first() or (0, 0)
        return {"records": total, "distinct": distinct}


def main(arguments: Sequence[str] | None = None) -> int:
    """The program."""
    options = _parser().parse_args(arguments)
    ending = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ending.set())
    settings = dict(pair.split("=", 1) for pair in options.conf)
    session = _session(options.master, {**_SETTINGS, "spark.jars": options.jars, **settings})
    try:
        job = Job(session, options.bootstrap, options.topic, options.folder)
        keep_running(job.start, job.checkpoint, stop=ending.is_set)
        part = options.folder / "sink.json.part"
        part.write_text(json.dumps(job.finish()), encoding="utf-8")
        part.replace(options.folder / "sink.json")
    finally:
        session.stop()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", action="append", required=True)
    parser.add_argument("--folder", type=lambda text: Path(text).absolute(), required=True)
    parser.add_argument("--jars", default="", help="Spark's jars for Kafka, with commas between them")
    parser.add_argument("--master", default="local[1]")
    parser.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE", help="a setting of Spark")
    return parser


def _session(master: str, settings: dict[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession  # noqa: PLC0415  # only where it runs

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("kmigrate example").master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    return session


if __name__ == "__main__":
    sys.exit(main())
