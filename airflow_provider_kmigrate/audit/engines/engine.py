"""The engine that an audit needs; `spark_engine` is the product's, the tests compare it with another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeAlias

import pyarrow as pa

Data: TypeAlias = "pa.Table | str"  # in memory, or a folder of Parquet as `schema.EVENTS` has it


class Engine(Protocol):
    """Answers questions about attached data. The text of a question is the same for all engines (`queries`).

    Functions may run in other processes, with all that they refer to. Every method raises `Failed` with the engine's own words.
    """

    name: str

    def attach(self, view: str, data: Sequence[Data]) -> None:
        """Attach everything in `data` under a name; replaces an earlier one."""

    def ask(self, question: str) -> pa.Table:
        """The answer, whole."""

    def map(
        self, question: str, function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], answer: pa.Schema
    ) -> pa.Table:
        """Apply the function to the answer's batches, in parallel."""

    def each(self, question: str, keys: Sequence[str], function: Callable[[pa.Table], pa.Table], answer: pa.Schema) -> pa.Table:
        """Apply the function to all rows with the same keys, in parallel."""
