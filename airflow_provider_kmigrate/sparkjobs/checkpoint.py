"""A checkpoint of Structured Streaming, read and never written."""

from __future__ import annotations

from airflow_provider_kmigrate.core.spark import hold as spark_hold
from airflow_provider_kmigrate.core.spark.hold import Checkpoint
from airflow_provider_kmigrate.sparkjobs.files import Files, join


def read_checkpoint(files: Files, folder: str) -> Checkpoint:
    """As it is now; of a running query it may be one batch old. Raises `Refused` (J05) for what is no checkpoint."""
    committed = spark_hold.batch_numbers(files.names(join(folder, "commits")))
    planned = spark_hold.batch_numbers(files.names(join(folder, "offsets")))
    metadata = files.read(join(folder, "metadata"))
    newest = committed[-1] if committed else None
    text = None if newest is None else files.read(join(folder, "offsets", str(newest)))
    return Checkpoint(
        query=spark_hold.query_id(metadata) if metadata else None,
        planned=planned[-1] if planned else None,
        committed=newest,
        offsets=spark_hold.batch_offsets(text) if text else {},
    )
