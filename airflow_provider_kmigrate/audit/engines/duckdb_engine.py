"""DuckDB: the audit in this process, for one machine; and, computing the same in its own way, the check on Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Self

import duckdb
import pyarrow as pa

from airflow_provider_kmigrate.audit.engines.engine import Data
from airflow_provider_kmigrate.exceptions import Failed


class DuckDBEngine:
    """Lives in memory; close it by leaving its `with` block. `threads` 0: as many as there are cores."""

    name = "duckdb"

    def __init__(self, threads: int = 0) -> None:
        self._connection = duckdb.connect(config={"threads": threads} if threads else {})
        self._held: dict[str, pa.Table] = {}  # a view of Arrow data reads it where it is

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def attach(self, view: str, data: Sequence[Data]) -> None:
        parts = [self._source(f"{view}_{number}", part) for number, part in enumerate(data)]
        with _named_errors():
            self._connection.execute(f"CREATE OR REPLACE VIEW {view} AS {' UNION ALL BY NAME '.join(parts)}")

    def _source(self, name: str, data: Data) -> str:
        if isinstance(data, str):
            return f"SELECT * FROM read_parquet({_pattern(data)!r}, hive_partitioning = true, union_by_name = true)"  # noqa: S608
        self._connection.register(name, data)
        self._held[name] = data
        return f"SELECT * FROM {name}"  # noqa: S608

    def ask(self, question: str) -> pa.Table:
        with _named_errors():
            return self._connection.sql(question).to_arrow_table()


def _pattern(path: str) -> str:
    return path if path.endswith(".parquet") else f"{path.rstrip('/')}/**/*.parquet"


@contextmanager
def _named_errors() -> Iterator[None]:
    try:
        yield
    except duckdb.Error as error:
        raise Failed(f"DuckDB could not answer: {error}") from error
