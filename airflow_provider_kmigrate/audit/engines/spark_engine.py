"""Spark: the audit on one machine or on the users' cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from airflow_provider_kmigrate.audit.engines.engine import Data
from airflow_provider_kmigrate.audit.schema import EVENTS
from airflow_provider_kmigrate.audit.session import ship_package, spark_errors


class SparkEngine:
    """Asks a session that belongs to the caller (`session.start`)."""

    name = "spark"

    def __init__(self, session: SparkSession) -> None:
        self.session = session

    def attach(self, view: str, data: Sequence[Data]) -> None:
        with spark_errors(f"Spark could not read {view}"):
            frames = [self._frame(part) for part in data]
            reduce(lambda one, other: one.unionByName(other), frames).createOrReplaceTempView(view)

    def _frame(self, data: Data) -> DataFrame:
        if not isinstance(data, str):
            return self.session.createDataFrame(data)
        return self.session.read.schema(from_arrow_schema(EVENTS)).parquet(data)

    def ask(self, question: str) -> pa.Table:
        with spark_errors(_no_answer(question)):
            return self.session.sql(question).toArrow()

    def map(
        self, question: str, function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], answer: pa.Schema
    ) -> pa.Table:
        with spark_errors(_no_answer(question)):
            ship_package(self.session)
            return self.session.sql(question).mapInArrow(function, from_arrow_schema(answer)).toArrow()

    def each(self, question: str, keys: Sequence[str], function: Callable[[pa.Table], pa.Table], answer: pa.Schema) -> pa.Table:
        with spark_errors(_no_answer(question)):
            ship_package(self.session)
            grouped = self.session.sql(question).groupBy(*keys)
            # A lambda, because Spark looks at the function's type hints and fails at those of a partial.
            return grouped.applyInArrow(lambda rows: function(rows), from_arrow_schema(answer)).toArrow()  # noqa: PLW0108


def _no_answer(question: str) -> str:
    return f"Spark could not answer: {' '.join(question.split())[:120]}"
