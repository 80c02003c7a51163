"""What an engine must be able to do; `spark_engine` and `duckdb_engine` are the two that there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import pyarrow as pa

Data: TypeAlias = "pa.Table | str"  # in memory, or a folder (or file) of Parquet


class Engine(Protocol):
    """Answers questions about attached data. The text of a question is the same for all engines (`queries`)."""

    name: str

    def attach(self, view: str, data: Sequence[Data]) -> None:
        """Everything in `data`, under a name; replaces what had it. Raises `Failed` where it cannot be read."""

    def ask(self, question: str) -> pa.Table:
        """The answer, whole. Raises `Failed` with the engine's own words."""
