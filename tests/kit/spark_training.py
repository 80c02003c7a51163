"""What the class archive is recorded with: a few lines, and a ledger in Parquet, about which an audit asks every question.

`python -m tests.kit.spark_training FOLDER ARCHIVE`, for `classes`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import SparkContext

from airflow_provider_kmigrate.audit import job
from airflow_provider_kmigrate.audit.sources import rows_of_event, table_of
from airflow_provider_kmigrate.core.audit.verdict import Level
from airflow_provider_kmigrate.core.events.lines import encode
from airflow_provider_kmigrate.core.events.model import (
    Ack,
    DeliveryRun,
    Event,
    Ownership,
    OwnershipChange,
    Stamp,
    Start,
    Stop,
    TopicPartition,
    WriterRole,
)
from airflow_provider_kmigrate.exceptions import Failed, KMigrateError
from tests.kit.spark_classes import OPTIONS, TIMEOUT_S

_LATENCY: Final = ((600, 2),)


def train(scratch: Path, target: Path) -> None:
    """Run a small audit in a JVM that records, and wait until that JVM has written its archive and ended."""
    settings = {OPTIONS: f"-XX:ArchiveClassesAtExit={target}"}
    document: dict[str, Any] = {
        "spark": {"master": "local[2]", "settings": settings},
        "sources": sources(scratch),
    }
    (scratch / "request.json").write_text(json.dumps(document))
    if job.main([str(scratch / "request.json"), str(scratch / "result")]) != 0:
        raise Failed("the audit that loads the classes failed")
    gateway: Any = SparkContext._gateway  # pyspark has no other way to its JVM's end
    (scratch / "class_path").write_text(gateway.jvm.System.getProperty("java.class.path"))
    gateway.shutdown()
    gateway.proc.stdin.close()  # pyspark's JVM ends with its standard input
    gateway.proc.wait(TIMEOUT_S)


def sources(folder: Path) -> list[dict[str, Any]]:
    """The sources of an audit's request, written to the folder."""
    lines, ledger = folder / "lines", folder / "ledger"
    lines.mkdir()
    (lines / "all.jsonl").write_text("".join(f"{encode(event)}\n" for event in _polls()))
    _write(ledger, table_of(row for event in _not_owned() for row in rows_of_event(event)))
    return [
        {"level": Level.PRODUCER.label, "lines": [str(lines)]},
        {"level": Level.CONSUMER.label, "ledgers": [str(ledger)]},
    ]


def _polls() -> Iterable[Event]:
    """One of two acknowledged polls is delivered."""
    yield Start(Stamp("p", 0, 1), WriterRole.PRODUCER)
    yield Ack(Stamp("p", 1, 2), "p", "t", 0, 0, 1, 2, 0, 1, 1, 2, 900, _LATENCY)
    yield Ack(Stamp("p", 2, 3), "p", "t", 0, 2, 3, 2, 2, 3, 2, 3, 900, _LATENCY)
    yield Stop(Stamp("p", 3, 4), clean=True)
    yield Start(Stamp("c", 0, 1), WriterRole.CONSUMER, group="g", topics=("t",))
    yield DeliveryRun(Stamp("c", 1, 3), "g", "c", 1, "t", 0, 0, 1, 2, 0, 3, 3, latency=_LATENCY)
    yield Stop(Stamp("c", 2, 5), clean=True)


def _not_owned() -> Iterable[Event]:
    """The member owned the partition only after it was delivered its records."""
    yield Start(Stamp("c", 0, 1), WriterRole.CONSUMER, group="g", topics=("t",))
    yield DeliveryRun(Stamp("c", 1, 3), "g", "c", 1, "t", 0, 0, 1, 2, 0, 3, 3, latency=_LATENCY)
    yield Ownership(Stamp("c", 2, 4), "g", "c", 1, OwnershipChange.ACQUIRED, (TopicPartition("t", 0),), 0)
    yield Stop(Stamp("c", 3, 5), clean=True)


def _write(folder: Path, table: pa.Table) -> None:
    folder.mkdir()
    pq.write_table(table, folder / "0.parquet")


def main() -> int:
    """0, or 1 where there is no archive, for the reason printed."""
    try:
        train(Path(sys.argv[1]), Path(sys.argv[2]))
    except KMigrateError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
