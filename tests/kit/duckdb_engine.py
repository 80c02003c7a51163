"""DuckDB in this process: a second reader of the same SQL, to hold Spark's answers against, and quick."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Self

import duckdb
import pyarrow as pa

from airflow_provider_kmigrate.audit.queries import Data
from airflow_provider_kmigrate.exceptions import Failed


class DuckDBEngine:
    """Closes with its `with` block. `threads`: 0 for as many as there are cores."""

    def __init__(self, threads: int = 0) -> None:
        self._connection = duckdb.connect(config={"threads": threads} if threads else {})
        self._held: dict[str, pa.Table] = {}  # a view of Arrow data reads it where it is

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def attach(self, view: str, data: Sequence[Data]) -> None:
        """Attach the data as a view."""
        parts = [self._source(f"{view}_{number}", part) for number, part in enumerate(data)]
        with _named_errors():
            self._connection.execute(f"CREATE OR REPLACE VIEW {view} AS {' UNION ALL BY NAME '.join(parts)}")

    def _source(self, name: str, data: Data) -> str:
        if not isinstance(data, pa.Table):
            files = [_pattern(data)] if isinstance(data, str) else list(data)
            return f"SELECT * FROM read_parquet({files!r}, hive_partitioning = true, union_by_name = true)"  # noqa: S608
        self._connection.register(name, data)
        self._held[name] = data
        return f"SELECT * FROM {name}"  # noqa: S608

    def ask(self, question: str) -> pa.Table:
        """Run the question as DuckDB's SQL."""
        with _named_errors():
            return self._connection.sql(question).to_arrow_table()

    def count_records_from(self, bucket: int) -> str:
        """As `Engine` says; places of a list count from 1."""
        later = f"CASE WHEN latency[2 * pair + 1] >= {bucket} THEN latency[2 * pair + 2] ELSE 0 END"
        return f"list_sum([{later} FOR pair IN range(len(latency) // 2)])"

    def apply_by_key(
        self, question: str, keys: Sequence[str], function: Callable[[pa.Table], pa.Table], answer: pa.Schema
    ) -> pa.Table:
        """Apply the function to the rows of each key, in this thread."""
        rows = self.ask(question)
        places: dict[tuple[object, ...], list[int]] = {}
        for at, key in enumerate(zip(*(rows[name].to_pylist() for name in keys), strict=True)):
            places.setdefault(key, []).append(at)
        return pa.concat_tables([answer.empty_table(), *(function(rows.take(found)) for found in places.values())])


def _pattern(path: str) -> str:
    return path if path.endswith(".parquet") else f"{path.rstrip('/')}/**/*.parquet"


@contextmanager
def _named_errors() -> Iterator[None]:
    try:
        yield
    except duckdb.Error as error:
        raise Failed(f"DuckDB could not answer: {error}") from error
