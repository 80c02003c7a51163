"""Events in files, and an audit of them on DuckDB."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from airflow_provider_kmigrate.audit.queries import Engine
from airflow_provider_kmigrate.audit.request import AuditRequest
from airflow_provider_kmigrate.audit.sources import Source
from airflow_provider_kmigrate.core.audit.verdict import Level
from airflow_provider_kmigrate.core.events.lines import encode
from tests.core.histories import calm
from tests.kit.duckdb_engine import DuckDBEngine


def written(folder: Path, *more: str) -> Source:
    """A calm history in a file a writer, and more lines."""
    lines: dict[str, list[str]] = {}
    for event in calm().end():
        lines.setdefault(event.stamp.writer, []).append(encode(event))
    for writer, found in lines.items():
        (folder / f"{writer}.jsonl").write_text("".join(f"{line}\n" for line in found))
    if more:
        (folder / "more.jsonl").write_text("\n".join(more))
    return Source(Level.CONSUMER, lines=(str(folder),))


@contextmanager
def on_duckdb(_wanted: AuditRequest) -> Iterator[Engine]:
    """What the program runs on where it is no Spark that is tried."""
    with DuckDBEngine(threads=2) as engine:
        yield engine


def request_for(source: Source) -> dict[str, object]:
    return {"sources": [{"level": source.level.label, "lines": list(source.lines)}]}
