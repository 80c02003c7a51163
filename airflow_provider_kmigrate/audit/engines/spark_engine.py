"""Spark: the audit on one machine or on the users' cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from airflow_provider_kmigrate.audit.engines.engine import Data
from airflow_provider_kmigrate.audit.schema import EVENTS
from airflow_provider_kmigrate.audit.session import ship_package
from airflow_provider_kmigrate.exceptions import Failed


class SparkEngine:
    """Asks a session that belongs to the caller (`session.start`)."""

    name = "spark"

    def __init__(self, session: SparkSession) -> None:
        self.session = session

    def attach(self, view: str, data: Sequence[Data]) -> None:
        with _named_errors(view):
            frames = [self._frame(part) for part in data]
            reduce(lambda one, other: one.unionByName(other), frames).createOrReplaceTempView(view)

    def _frame(self, data: Data) -> DataFrame:
        if not isinstance(data, str):
            return self.session.createDataFrame(data)
        return self.session.read.schema(from_arrow_schema(EVENTS)).parquet(data)

    def ask(self, question: str) -> pa.Table:
        with _named_errors(question):
            return self.session.sql(question).toArrow()

    def map(
        self, question: str, function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], answer: pa.Schema
    ) -> pa.Table:
        with _named_errors(question):
            ship_package(self.session)
            return self.session.sql(question).mapInArrow(function, from_arrow_schema(answer)).toArrow()

    def each(self, question: str, keys: Sequence[str], function: Callable[[pa.Table], pa.Table], answer: pa.Schema) -> pa.Table:
        with _named_errors(question):
            ship_package(self.session)
            grouped = self.session.sql(question).groupBy(*keys)
            # A lambda, because Spark looks at the function's type hints and fails at those of a partial.
            return grouped.applyInArrow(lambda rows: function(rows), from_arrow_schema(answer)).toArrow()  # noqa: PLW0108


@contextmanager
def _named_errors(what: str) -> Iterator[None]:
    try:
        yield
    except (PySparkException, Py4JError) as error:
        text = str(error).strip().partition("\n")[0]
        raise Failed(f"Spark could not answer: {text} (asked: {' '.join(what.split())[:120]})") from error
