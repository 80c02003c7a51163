"""The sources of an audit: event lines, ledgers in Parquet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from airflow_provider_kmigrate.audit.queries import Engine
from airflow_provider_kmigrate.audit.schema import Row, RowKind, rows_of, rows_of_line, table_of
from airflow_provider_kmigrate.core.audit.verdict import Level
from airflow_provider_kmigrate.core.event_lines import BadEvent, decode
from airflow_provider_kmigrate.core.events import Event, Ownership
from airflow_provider_kmigrate.core.ledger.ownership import by_one_log
from airflow_provider_kmigrate.exceptions import Failed


@dataclass(frozen=True, slots=True)
class Source:
    """One body of evidence, judged by itself, of one `level`. All parts of it are read together.

    `lines`: files or folders of event lines (`*.jsonl`) on this machine. `ledgers`: folders of Parquet as `schema.EVENTS`,
    anywhere the engine can read. A group's ownership belongs into one folder, or one topic: from several its order is that of the
    members' clocks. `events`: as they are in memory.
    """

    level: Level
    lines: tuple[str, ...] = ()
    ledgers: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()


def attach(source: Source, engine: Engine) -> None:
    """Make the source's view `events` in the engine."""
    written = table_of(_rows(source))
    engine.attach("events", [*source.ledgers, *([written] if written.num_rows or not source.ledgers else [])])


def read_lines(paths: Iterable[str], *, beside: bool = False) -> Iterator[Row]:
    """The lines of files, and of the `*.jsonl` in folders, as rows. Raises `Failed` if one cannot be read.

    Other content of a folder (subfolders, rotated files: `x.jsonl.1`, `x.jsonl.gz`) is reported as refused: it may be evidence.
    `beside`: there is other evidence, in other logs.
    """
    places = [Path(path) for path in paths]
    files = list(dict.fromkeys(file for place in places for file in _files(place)))
    for unread in sorted({str(found) for place in places for found in _event_files(place)} - set(map(str, files))):
        why = f"{unread} is not read: event files are in the folder itself, whole and plain, or are named one by one"
        yield {"row_kind": RowKind.REFUSED.value, "nth": 0, "line": unread, "why": why}
    owned: list[list[Ownership]] = [[] for _ in files]
    for number, file in enumerate(files):
        lines, known_ms = _read(file)  # no line is later, nor later than the next event in its file
        for line in reversed(lines):
            change = _ownership(line)
            if change is not None:
                owned[number].append(change)
                known_ms = min(known_ms, change.stamp.t_ms)
                continue
            for row in rows_of_line(line, f"{file.name} "):
                known_ms = min(known_ms, row.get("t_ms", known_ms))
                yield {"t_ms": known_ms, **row}
    for change in by_one_log(owned, beside=beside):
        yield from rows_of(change)


def _ownership(line: str) -> Ownership | None:
    if '"kind":"ownership"' not in line:
        return None
    try:
        event = decode(line)
    except BadEvent:
        return None
    return event if isinstance(event, Ownership) else None


def _rows(source: Source) -> Iterable[Row]:
    return chain(read_lines(source.lines, beside=bool(source.ledgers)), chain.from_iterable(map(rows_of, source.events)))


def _files(path: Path) -> Sequence[Path]:
    return sorted(path.glob("*.jsonl")) if path.is_dir() else [path]


def _event_files(path: Path) -> list[Path]:
    return [found for found in path.rglob("*.jsonl*") if found.is_file()] if path.is_dir() else []


def _read(path: Path) -> tuple[list[str], int]:
    """A file's lines, and when it was last written, ms since the epoch.

    Without an unfinished last line: it is being written, or its writer was killed and will leave no stop.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
        return lines, path.stat().st_mtime_ns // 1_000_000
    except OSError as error:
        raise Failed(f"the audit cannot read {path}: {error}") from error
