"""The ledger of single records as a stream: what `queries.RECORD_CHAINS` says of all files so far, where only the new ones are read.

The chains are a streaming query's state. Each batch writes those that it changed, under its own number: a batch that is done again
after a crash replaces what it had written. Rows are only ever added, so of a chain's versions the one with most rows is the last.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from airflow_provider_kmigrate.audit import queries
from airflow_provider_kmigrate.audit.engines.spark_engine import SparkEngine
from airflow_provider_kmigrate.audit.schema import RECORDS
from airflow_provider_kmigrate.audit.sources.kafka_source import spark_errors
from airflow_provider_kmigrate.exceptions import TimedOut

FILES_PER_BATCH: Final = 8


def catch_up(
    session: SparkSession, records: str, kept: str, *, files_per_batch: int = FILES_PER_BATCH, timeout: float = 3_600.0
) -> None:
    """Take in the files that came to the folder `records` since the last time; state and chains are in `kept`.

    Raises `Failed`, or `TimedOut` after `timeout` seconds; what was taken in until then stays.
    """
    source = session.readStream.schema(from_arrow_schema(RECORDS)).option("maxFilesPerTrigger", files_per_batch)
    with spark_errors("the stream of records ended"):
        source.parquet(records).createOrReplaceTempView("arriving")
        writer = session.sql(queries.ARRIVING_CHAINS).writeStream.outputMode("update").trigger(availableNow=True)
        query = writer.option("checkpointLocation", f"{kept}/checkpoint").foreachBatch(_written(kept)).start()
        if not query.awaitTermination(math.ceil(timeout)):
            query.stop()
            raise TimedOut(f"the records in {records} were not taken in within {timeout:g} s")


def _written(kept: str) -> Callable[[DataFrame, int], None]:
    def write(changed: DataFrame, number: int) -> None:
        changed.coalesce(1).write.mode("overwrite").parquet(f"{kept}/chains/batch={number}")

    return write


def chains(session: SparkSession, kept: str) -> pa.Table:
    """As `queries.RECORD_CHAINS` answers of all records that were taken in. Raises `Failed` where there are none yet."""
    engine = SparkEngine(session)
    engine.attach("grown", [f"{kept}/chains"])
    return engine.ask(queries.GROWN_CHAINS)
