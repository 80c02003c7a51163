"""Takes each event line in once: applications' files of lines become Parquet of `sources.EVENTS`, and the next audit reads only what is new.

::

    state.json              which parts there are, how far each file was read, and its changes of ownership, whose log decides their place
    00000001.parquet …      all other rows, sorted by kind; never changed
    settled/…               what an audit settled of some of the parts (`audit.settling`): `state.json` has its hash, and those parts
    figures/…               what the tables need of some of the parts, summed up (`audit.figures`), in the same way

`state.json` is replaced last, so that a process which ends anywhere has taken in all that is new or nothing. The store holds what the files
hold: once a file is gone, is shorter or does not continue as it was, or a part is damaged, everything is read again; a damage inside a page shows when it is read (`EventStore.check_parts`). Memory is bounded by
a batch of lines, whatever the files hold.
"""

from __future__ import annotations

import atexit
import gc
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_provider_kmigrate.audit.line_tables import LineBatch, decode_batch
from airflow_provider_kmigrate.audit.queries import Data
from airflow_provider_kmigrate.audit.sources import EVENTS, Row, Source, build_refused_row, rows_of_event, rows_of_line, table_of
from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.clients.foreign_files import (
    LARGEST,
    NotRead,
    OpenFile,
    list_files_below,
    open_regular_file,
    read_line_blocks,
)
from airflow_provider_kmigrate.core.events.lines import BadEvent, decode, encode
from airflow_provider_kmigrate.core.events.model import Ownership
from airflow_provider_kmigrate.core.ledger.ownership import merge_logs
from airflow_provider_kmigrate.core.shared.text import count_of, printable
from airflow_provider_kmigrate.exceptions import Failed

_VERSION: Final = 2
_STATE: Final = "state.json"
_SETTLED: Final = "settled"
_FIGURES: Final = "figures"
_LOCK_TIMEOUT: Final = 600.0  # seconds: another audit of the same events takes in what is new for both
_STRICT_LINES: Final = 32  # a smaller batch is decoded line by line
_GROUP_ROWS: Final = 200_000  # are sorted and written together
_PART_ROWS: Final = 2_000_000
_MERGED_PARTS: Final = 64  # more small ones than these are merged after a verdict; twice as many also before one, which waits
_KEPT: Final = 1_000  # lines of a file that are no events, each with its reason; further ones are counted
_NEVER: Final = (1 << 63) - 1
_SEAM_BYTES: Final = 4_096
_FOOTER_END: Final = 8  # bytes: the footer's length, and PAR1 (the Parquet format)
_ORPHAN_AGE_S: Final = 86_400.0  # until then another audit may read a part that is no longer in the state
_REPORT_EVERY_S: Final = 15.0


@dataclass(slots=True)
class _FileProgress:
    """How far a file was read, in bytes. `seam`: hash of its beginning and of the end of what was read; `owned`: lines of ownership.

    `refused`: of each kind how many lines are no events.
    """

    inode: list[int]  # device and number
    read: int
    seam: str
    owned: list[str]
    refused: dict[str, int]


@dataclass(slots=True)
class _State:
    """What is in the store. `parts`: names of files with their seals. `settled`: as `SettledFiles`, or empty; `figures` likewise."""

    version: int = _VERSION
    files: dict[str, _FileProgress] = field(default_factory=dict)
    parts: dict[str, str] = field(default_factory=dict)
    settled: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SettledFiles:
    """What was settled of `parts`: a document, and the rows that it left open; `sha256` of both, one after the other."""

    document: str
    rows: str
    sha256: str
    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StoredEvidence:
    """All rows of a store: its `parts`, paths of Parquet, and those that are given whole each time; what is settled of it, if anything."""

    store: EventStore
    parts: tuple[str, ...]
    rows: pa.Table
    settled: SettledFiles | None


@dataclass(frozen=True, slots=True)
class Evidence:
    """All rows of a source. `stored`: the same as its store has them, if they are all of one that stays."""

    data: tuple[Data, ...]
    stored: StoredEvidence | None = None


def read_source(source: Source) -> Evidence:
    """Take in what is new of a source."""
    data: list[Data] = [*source.ledgers]
    stored = None
    if source.lines:
        stored = EventStore(Path(source.store or _make_scratch_folder())).read(source.lines, has_other_logs=bool(source.ledgers))
        data += _list_data(stored)
    if source.events or not data:
        data.append(table_of(row for event in source.events for row in rows_of_event(event)))
    return Evidence(tuple(data), stored if source.store and not source.ledgers and not source.events else None)


@contextmanager
def check_parts_after_failure(stored: StoredEvidence | None) -> Iterator[None]:
    """If what is done with a store fails, see whether one of its parts is damaged (`EventStore.check_parts`)."""
    try:
        yield
    except Failed:
        if stored:
            stored.store.check_parts(stored.parts)
        raise


def _list_data(stored: StoredEvidence) -> list[Data]:
    return [*([stored.parts] if stored.parts else []), stored.rows]


def _make_scratch_folder() -> str:
    """A folder that goes with this program."""
    folder = tempfile.mkdtemp(prefix="kmigrate-events-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


class EventStore:
    """A folder that keeps what was read of event lines. `report`: is given how far a long reading is."""

    def __init__(self, folder: Path, report: Callable[[str], None] = print) -> None:
        self._folder, self._report = folder, report

    def ingest(self, paths: Iterable[str]) -> list[Data]:
        """Take in what is new in files, and in the `*.jsonl` of folders; returns all rows of `EVENTS` that there are.

        Raises `Failed` for a path that does not exist, or a folder that cannot be written. Other content of a folder (subfolders, rotated
        files: `x.jsonl.1`, `x.jsonl.gz`) is reported as refused, since it may be evidence; so is what is no plain file, or a link.
        """
        return _list_data(self.read(paths))

    def read(self, paths: Iterable[str], *, has_other_logs: bool = False) -> StoredEvidence:
        """As `ingest`, with what is settled of it.

        `has_other_logs`: there is evidence elsewhere, too, and changes of ownership there have no place in these logs.
        """
        files, unread = _list_files([Path(path) for path in paths])
        refused = [build_refused_row("", printable(str(path)), why) for path, why in unread.items()]
        with atomic.locked(self._folder, _LOCK_TIMEOUT), _without_cycle_search():
            state = self._load_state(files)
            writer = _PartWriter(self._folder)
            counter = _Counter(self._report)
            readings = [_FileReading(file, counter, state.files) for file in files]
            for reading in readings:
                for table in reading.read_new():
                    writer.add(table)
                refused += reading.unread
            state.parts |= writer.finish()
            # What was read of a file that broke off is judged now, and not kept: the next audit reads it again.
            if not any(reading.broke_off for reading in readings):
                self._merge_parts(state, 2 * _MERGED_PARTS)
                atomic.replace(self._folder / _STATE, json.dumps(asdict(state)).encode())
                self._remove_orphans(state)
        logs = [[_decode_ownership(line) for line in progress.owned] for progress in state.files.values()]
        changes = merge_logs([[change for change in log if change] for log in logs], beside=has_other_logs)
        rows = [*refused, *(row for change in changes for row in rows_of_event(change))]
        parts = tuple(str(self._folder / name) for name in state.parts)
        return StoredEvidence(self, parts, table_of(rows), self._find_settled(state))

    def _find_settled(self, state: _State) -> SettledFiles | None:
        document, rows, sha256, parts = (state.settled.get(name, "") for name in ("document", "rows", "sha256", "parts"))
        if not parts or not {*parts} <= state.parts.keys():
            return None
        folder = self._folder / _SETTLED
        return SettledFiles(str(folder / document), str(folder / rows), sha256, tuple(str(self._folder / part) for part in parts))

    def load_settled(self, settled: SettledFiles) -> bytes:
        """The document. Raises `ValueError` if it, or its rows, are not as they were written."""
        try:
            document, rows = Path(settled.document).read_bytes(), Path(settled.rows).read_bytes()
        except OSError as error:
            raise ValueError(f"they cannot be read: {error.strerror}") from None
        if hashlib.sha256(document + rows).hexdigest() != settled.sha256:
            raise ValueError("they are not as they were written")
        return document

    def keep_settled(self, parts: Iterable[str], document: bytes, open_rows: pa.Table) -> bool:
        """Keep what is settled of these parts, in place of an earlier document; False if the store has not all of them any more.

        `state.json`, which says what belongs together, is replaced last. Raises `Failed`.
        """
        rows = _encode_parquet(open_rows, **_ENCODING)
        names = [Path(part).name for part in parts]
        sha256 = hashlib.sha256(document + rows).hexdigest()
        with atomic.locked(self._folder, _LOCK_TIMEOUT):
            state = self._load_raw_state()
            if not {*names} <= state.parts.keys():
                return False
            folder = self._folder / _SETTLED
            atomic.make_folder(folder)
            kept = {"document": f"{sha256[:16]}.json", "rows": f"{sha256[:16]}.parquet"}
            atomic.replace(folder / kept["document"], document)
            atomic.replace(folder / kept["rows"], rows)
            state.settled = {**kept, "sha256": sha256, "parts": names}
            self._merge_parts(state, _MERGED_PARTS)
            atomic.replace(self._folder / _STATE, json.dumps(asdict(state)).encode())
            _remove_old(path for path in folder.iterdir() if path.name not in kept.values())
        return True

    def keep_figures(self, parts: Iterable[str], rows: pa.Table, release: str) -> bool:
        """Keep what a release of kmigrate summed up of these parts, in place of earlier figures; False if the store has not all of them any more.

        Raises `Failed`.
        """
        content = _encode_parquet(rows, compression="zstd")
        names = [Path(part).name for part in parts]
        sha256 = hashlib.sha256(content).hexdigest()
        with atomic.locked(self._folder, _LOCK_TIMEOUT):
            state = self._load_raw_state()
            if not {*names} <= state.parts.keys():
                return False
            folder = self._folder / _FIGURES
            atomic.make_folder(folder)
            name = f"{sha256[:16]}.parquet"
            atomic.replace(folder / name, content)
            state.figures = {"rows": name, "sha256": sha256, "release": release, "parts": names}
            atomic.replace(self._folder / _STATE, json.dumps(asdict(state)).encode())
            _remove_old(path for path in folder.iterdir() if path.name != name)
        return True

    def load_figures(self, parts: Iterable[str], release: str) -> tuple[tuple[str, ...], pa.Table] | None:
        """What is kept of some of these parts, which are named. None: nothing, or it cannot be used: of another release or other parts, or damaged."""
        kept = self._load_raw_state().figures
        names = {Path(part).name: part for part in parts}
        try:
            if kept["release"] != release or not {*kept["parts"]} <= names.keys():
                return None
            content = (self._folder / _FIGURES / kept["rows"]).read_bytes()
            if hashlib.sha256(content).hexdigest() != kept["sha256"]:
                return None
            return tuple(names[name] for name in kept["parts"]), pq.read_table(BytesIO(content))
        except (OSError, KeyError, TypeError, ValueError):  # what is kept only saves time
            return None

    def _load_raw_state(self) -> _State:
        """The state as the last reading left it; an empty one if there is none."""
        try:
            return _State(**json.loads((self._folder / _STATE).read_bytes()))
        except (OSError, ValueError, TypeError):
            return _State()

    def _load_state(self, files: Sequence[Path]) -> _State:
        """The state, or an empty one if the store is not whole or not of these files as they are."""
        try:
            state = _State(**json.loads((self._folder / _STATE).read_bytes()))
            progress = {name: _FileProgress(**values) for name, values in state.files.items()}  # type: ignore[arg-type] # as asdict has it
            if (
                state.version == _VERSION
                and _has_form(state, progress.values())
                and all(_seal_part(self._folder / name) == seal for name, seal in state.parts.items())
                and {*map(Path, progress)} <= {*files}
                and all(_is_continued(Path(name), known) for name, known in progress.items())
            ):
                return _State(files=progress, parts=state.parts, settled=state.settled, figures=state.figures)
            self._report("The event files do not continue what was read of them: they are read from their beginning.")
        except FileNotFoundError:
            pass
        except (NotRead, OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
            self._report(
                f"What was read of event files cannot be used ({type(error).__name__}): they are read from their beginning."
            )
        return _State()

    def _merge_parts(self, state: _State, most: int) -> None:
        """Write small parts again as few, if there are more than `most`; large ones stay, so that what a day costs does not grow with what there is."""
        sides: dict[tuple[bool, ...], list[str]] = defaultdict(list)
        for name in state.parts:
            if pq.read_metadata(self._folder / name).num_rows < _PART_ROWS // 2:
                sides[tuple(name in kept.get("parts", ()) for kept in (state.settled, state.figures))].append(name)
        for of_one_side in sides.values():
            if len(of_one_side) > most:
                self._merge(state, of_one_side)

    def _merge(self, state: _State, names: Sequence[str]) -> None:
        """Write these parts again as few. All of them are settled, or none is; of all of them there are figures, or of none."""
        writer = _PartWriter(self._folder)
        for name in names:
            for batch in self._read_part(name):
                writer.add(pa.Table.from_batches([batch]))
        merged = writer.finish()
        for name in names:  # other audits may read them for a day from now on
            os.utime(self._folder / name)
        state.parts = {name: seal for name, seal in state.parts.items() if name not in names} | merged
        for kept in (state.settled, state.figures):
            if {*names} & {*kept.get("parts", ())}:
                kept["parts"] = [*(name for name in kept["parts"] if name not in names), *merged]

    def check_parts(self, parts: Iterable[str]) -> None:
        """Read these parts whole. Raises `Failed` if one is damaged; then what was read is forgotten, and the next audit reads the files again."""
        for part in parts:
            for _ in self._read_part(Path(part).name):
                pass

    def _read_part(self, name: str) -> Iterator[pa.RecordBatch]:
        try:
            yield from pq.ParquetFile(self._folder / name, page_checksum_verification=True).iter_batches(_GROUP_ROWS)
        except (OSError, pa.ArrowException) as error:
            (self._folder / _STATE).unlink(missing_ok=True)
            why = f"{self._folder / name} is damaged ({printable(str(error))[:200]})"
            what_next = "What was read of the event files is forgotten: the next audit reads them from their beginning"
            raise Failed(f"{why}. {what_next}. If a part is damaged again, look at the disk.") from error

    def _remove_orphans(self, state: _State) -> None:
        """Remove files that no audit reads any more, and what ended processes left."""
        _remove_old(path for path in self._folder.glob("*.parquet") if path.name not in state.parts)


def _has_form(state: _State, progress: Iterable[_FileProgress]) -> bool:
    """Whether what a state says of files, and of what is kept beside the parts, has the types that are written."""
    kept = [item for part in (state.settled, state.figures) for item in part.items()]
    lists = [*(value for name, value in kept if name == "parts"), *(known.owned for known in progress)]
    texts = [value for name, value in kept if name != "parts"]
    counts = [count for known in progress for count in known.refused.values()]
    if not all(isinstance(values, list) for values in lists):
        return False
    return {*map(type, texts), *(type(value) for values in lists for value in values)} <= {str} and {*map(type, counts)} <= {int}


def _seal_part(path: Path) -> str:
    """A hash of a part's size and of its footer: where its pages are, and what their statistics let a reader skip. Each page has a checksum of its own.

    Raises `OSError` or `ValueError` for what has no footer.
    """
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(size - _FOOTER_END)
        footer_size = int.from_bytes(file.read(4), "little")
        file.seek(size - _FOOTER_END - footer_size)
        return hashlib.sha256(b"%d" % size + file.read()).hexdigest()


def _encode_parquet(rows: pa.Table, **options: Any) -> bytes:
    file = BytesIO()
    pq.write_table(rows, file, **options)
    return file.getvalue()


def _remove_old(paths: Iterable[Path]) -> None:
    for path in paths:
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > _ORPHAN_AGE_S:
                path.unlink()


@contextmanager
def _without_cycle_search() -> Iterator[None]:
    """Parsed lines refer to nothing that refers to them, and looking for that takes a fourth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _PartWriter:
    """Writes tables as parts, sorted by kind: each kind is a row group of its own, so that a question reads only its kinds."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._next = 1 + max((int(path.stem) for path in folder.glob("*.parquet") if path.stem.isdecimal()), default=0)
        self._waiting: list[pa.Table] = []
        self._waiting_rows = 0
        self._writer: pq.ParquetWriter | None = None
        self._path = Path()
        self._rows = 0  # in the open part
        self._parts: dict[str, str] = {}

    def add(self, table: pa.Table) -> None:
        """Take rows of `EVENTS`, and write what is enough for a group."""
        if table.num_rows:
            self._waiting.append(table)
            self._waiting_rows += table.num_rows
        if self._waiting_rows >= _GROUP_ROWS:
            self._write_waiting()

    def finish(self) -> dict[str, str]:
        """Write the rest; returns the parts, on the disk, with their seals."""
        self._write_waiting()
        self._close_part()
        return self._parts

    def _write_waiting(self) -> None:
        rows = pa.concat_tables(self._waiting) if self._waiting else table_of([])
        self._waiting, self._waiting_rows = [], 0
        for kind in pc.unique(rows["row_kind"]).to_pylist():
            of_kind = rows.filter(pc.equal(rows["row_kind"], kind))
            self._write_group(of_kind.sort_by([(name, "ascending") for name in ("writer", "topic", "part", "number")]))
        if self._rows >= _PART_ROWS:
            self._close_part()

    def _write_group(self, rows: pa.Table) -> None:
        if self._writer is None:
            self._path = self._folder / f"{self._next:08}.parquet"
            self._next += 1
            self._writer = pq.ParquetWriter(self._path, EVENTS, **_ENCODING)
        self._writer.write_table(rows, row_group_size=rows.num_rows)
        self._rows += rows.num_rows

    def _close_part(self) -> None:
        if self._writer is None:
            return
        self._writer.close()
        handle = os.open(self._path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
        self._parts[self._path.name] = _seal_part(self._path)
        self._writer, self._rows = None, 0


_NUMBERS: Final = [item.name for item in EVENTS if item.type in {pa.int32(), pa.int64()}]
_ENCODING: Final = {
    "compression": "zstd",
    "use_dictionary": [item.name for item in EVENTS if item.type == pa.string() and item.name != "line"],
    "column_encoding": dict.fromkeys(_NUMBERS, "DELTA_BINARY_PACKED"),
    "write_page_checksum": True,
}


class _Counter:
    """Says every few seconds how many lines were read."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report, self._lines, self._began, self._reported_at = report, 0, time.monotonic(), time.monotonic()

    def add(self, lines: int) -> None:
        """Count lines; every `_REPORT_EVERY_S` seconds it says how many there are."""
        self._lines += lines
        now = time.monotonic()
        if now - self._reported_at >= _REPORT_EVERY_S:
            self._reported_at = now
            self._report(f"{count_of(self._lines, 'event line')} read in {now - self._began:.0f} s")


class _FileReading:
    """One file, from where it was read to.

    `unread`: rows that say why it was not read to its end. They are said again as long as it is so, and not kept. `broke_off`: a part of
    it was read. `known`: how far the files were read; it is updated.
    """

    def __init__(self, file: Path, counter: _Counter, known: dict[str, _FileProgress]) -> None:
        self.unread: list[Row] = []
        self.broke_off = False
        self._known, self._earlier = known, known.get(str(file))
        self._file, self._name, self._counter = file, printable(file.name), counter
        self._owned: list[str] = []
        self._kept: list[Row] = []  # of lines that are no events
        self._refused_text, self._refused_row = "\n", Row()  # of the last one; no line holds its own end
        self._of_kind = Counter(self._earlier.refused if self._earlier else {})  # how many there are, earlier ones too
        self._not_kept = 0  # of what was read now
        # The earliest event before the first of them, between each two that are kept, and after the last.
        self._next_ms = [_NEVER]

    def read_new(self) -> Iterator[pa.Table]:
        """What was not read before.

        Rows of lines that are no events come last: none of them is later than the next event in the file, nor than its last change.
        """
        read, owned = (self._earlier.read, self._earlier.owned) if self._earlier else (0, [])
        try:
            with open_regular_file(self._file.parent, self._file.name, read + LARGEST) as opened:
                self.broke_off = True
                opened.file.seek(read)
                for block in read_line_blocks(opened._replace(size=opened.size - read)):
                    read += block.size
                    if block.too_long:
                        self._keep_refused(build_refused_row(f"{self._name} ", block.too_long, "it is too long to be an event"))
                    else:
                        yield from self._decode(block.lines)
                    self._counter.add(max(1, len(block.lines)))
                yield table_of(self._rows_of_refused(opened.written_ms))
                seam = _hash_seam(opened, read)
                self._known[str(self._file)] = _FileProgress(
                    opened.inode, read, seam, [*owned, *self._owned], dict(self._of_kind)
                )
                self.broke_off = False
        except (NotRead, OSError) as error:
            why = str(error) if isinstance(error, NotRead) else f"{self._name} is not read to its end: {error.strerror}"
            self.unread = [build_refused_row("", "", why)]

    def _decode(self, lines: Sequence[bytes]) -> Iterator[pa.Table]:
        """All lines at once or, if some are no plain events, in halves."""
        batch = decode_batch(lines)
        if batch is not None:
            self._note_events(batch)
            yield batch.table
        elif len(lines) <= _STRICT_LINES:
            yield table_of(row for line in lines for row in self._decode_strictly(line.decode(errors="replace")))
        else:
            yield from self._decode(lines[: len(lines) // 2])
            yield from self._decode(lines[len(lines) // 2 :])

    def _note_events(self, batch: LineBatch) -> None:
        self._owned += map(encode, batch.owned)
        times = [change.stamp.t_ms for change in batch.owned]
        if batch.table.num_rows:
            times.append(pc.min(batch.table["t_ms"]).as_py())
        self._next_ms[-1] = min([self._next_ms[-1], *times])

    def _decode_strictly(self, text: str) -> Iterator[Row]:
        change = _decode_ownership(text)
        if change is not None:
            self._owned.append(encode(change))
            self._next_ms[-1] = min(self._next_ms[-1], change.stamp.t_ms)
            return
        if text == self._refused_text:  # of millions of empty lines each is judged as the one before
            self._keep_refused(dict(self._refused_row))
            return
        for row in rows_of_line(text, f"{self._name} "):
            if "t_ms" in row:
                self._next_ms[-1] = min(self._next_ms[-1], row["t_ms"])
                yield row
            else:
                self._refused_text, self._refused_row = text, row
                self._keep_refused(row)

    def _keep_refused(self, row: Row) -> None:
        self._of_kind[row["row_kind"]] += 1
        if self._of_kind[row["row_kind"]] <= _KEPT:
            self._kept.append(row)
            self._next_ms.append(_NEVER)
        else:
            self._not_kept += 1

    def _rows_of_refused(self, written_ms: int) -> Iterator[Row]:
        """`written_ms`: when the file was last changed."""
        latest_ms = written_ms
        if more := self._not_kept:
            yield {
                "t_ms": latest_ms,
                **build_refused_row(
                    f"{self._name} ", "", f"has {count_of(more, 'more line that is', 'more lines that are')} no events"
                ),
            }
        for row, next_ms in zip(reversed(self._kept), reversed(self._next_ms), strict=False):
            latest_ms = min(latest_ms, next_ms)
            yield {"t_ms": latest_ms, **row}


def _decode_ownership(line: str) -> Ownership | None:
    if '"kind":"ownership"' not in line:
        return None
    try:
        event = decode(line)
    except BadEvent:
        return None
    return event if isinstance(event, Ownership) else None


def _is_continued(file: Path, progress: _FileProgress) -> bool:
    """Whether the file begins with what was read of it."""
    with open_regular_file(file.parent, file.name, progress.read + LARGEST) as opened:
        return (
            opened.inode == progress.inode and opened.size >= progress.read and _hash_seam(opened, progress.read) == progress.seam
        )


def _hash_seam(opened: OpenFile, read: int) -> str:
    """The hash of a file's first bytes and of the last ones before `read`."""
    digest = hashlib.sha256()
    for begin in (0, max(0, read - _SEAM_BYTES)):
        opened.file.seek(begin)
        digest.update(opened.file.read(min(_SEAM_BYTES, read - begin)))
    return digest.hexdigest()


def _list_files(paths: Sequence[Path]) -> tuple[list[Path], dict[Path, str]]:
    """The files to read, and what else is in the folders: why each is not read."""
    files, others = dict[Path, None](), dict[Path, str]()
    for source_path in paths:
        try:
            if not source_path.is_dir():
                files[source_path] = None
                continue
            names, is_all = list_files_below(source_path)
        except OSError as error:
            raise Failed(f"the audit cannot read {printable(str(source_path))}: {error.strerror}") from None
        for name in names:
            if name.endswith(".jsonl") and "/" not in name:
                files[source_path / name] = None
            elif ".jsonl" in name.rpartition("/")[2]:
                others[source_path / name] = (
                    "it is not read: event files are in the folder itself, whole and plain, or are named one by one"
                )
        if not is_all:
            others[source_path] = "it holds too many files: not all of them are read"
    if missing := [file for file in files if file in paths and not os.path.lexists(file)]:
        raise Failed(f"the audit cannot read {printable(str(missing[0]))}: there is no such file")
    return list(files), {path: why for path, why in sorted(others.items()) if path not in files}
