"""The rows of event lines, as an audit has them of files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_kmigrate.audit.event_store import EventStore
from airflow_provider_kmigrate.audit.queries import Data
from airflow_provider_kmigrate.audit.sources import EVENTS


def read_rows(paths: Sequence[str], store: Path) -> list[dict[str, Any]]:
    """What the store has of these files after another reading."""
    return load_rows(EventStore(store, lambda _: None).ingest(paths))


def load_rows(data: Sequence[Data]) -> list[dict[str, Any]]:
    """Rows in memory and in files of Parquet."""
    files = [file for part in data if isinstance(part, tuple) for file in part]
    tables = [part for part in data if isinstance(part, pa.Table)] + [pq.ParquetFile(file).read() for file in files]
    return [row for table in tables for row in table.select(EVENTS.names).to_pylist()]
