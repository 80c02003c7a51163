"""Ledgers and files that are not whole: a part that is cut off, not listed yet, or there twice, and hours of garbage. Nothing counts twice, and no hole passes."""

from __future__ import annotations

import os
import shutil
import signal
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="the audit has its own environment")
pytest.importorskip("duckdb", reason="the audit has its own environment")
import pyarrow.parquet as pq

from airflow_provider_kmigrate.audit import event_store
from airflow_provider_kmigrate.audit.event_store import EventStore
from airflow_provider_kmigrate.audit.job import audit_sources
from airflow_provider_kmigrate.audit.queries import Engine
from airflow_provider_kmigrate.audit.request import AuditPolicy
from airflow_provider_kmigrate.audit.sources import RowKind, Source, rows_of_event, table_of
from airflow_provider_kmigrate.core.audit.verdict import AuditOutcome, Level
from airflow_provider_kmigrate.core.events.lines import encode
from airflow_provider_kmigrate.core.ledger import balance
from airflow_provider_kmigrate.exceptions import Failed
from tests.core.histories import calm
from tests.kit.event_rows import read_rows

PARTS = 6
Answer = TypeVar("Answer")


@pytest.fixture
def ledger(tmp_path: Path) -> Source:
    """A calm history in a few parts, of one kind of rows each."""
    rows = table_of(row for event in calm().end() for row in rows_of_event(event)).sort_by([("row_kind", "ascending")])
    (tmp_path / "ledger").mkdir()
    ends = [rows.num_rows * number // PARTS for number in range(PARTS + 1)]
    for number, (begin, end) in enumerate(pairwise(ends)):
        assert begin < end
        pq.write_table(rows.slice(begin, end - begin), tmp_path / "ledger" / f"part-{number}.parquet")
    return Source(Level.CONSUMER, ledgers=(str(tmp_path / "ledger"),))


def parts_of(source: Source) -> list[Path]:
    return sorted(Path(source.ledgers[0]).glob("*.parquet"))


def test_a_part_that_the_store_does_not_list_yet_is_a_hole_and_no_pass(duck: Engine, ledger: Source) -> None:
    assert audit_sources([ledger], AuditPolicy(), duck).verdict.outcome is AuditOutcome.PASS
    for part in parts_of(ledger):
        hidden = part.rename(part.with_suffix(".later"))
        result = audit_sources([ledger], AuditPolicy(), duck)
        assert result.verdict.outcome is not AuditOutcome.PASS, part.name
        assert not result.sources[0].facts.complete
        hidden.rename(part)
    assert audit_sources([ledger], AuditPolicy(), duck).sources[0].facts == balance(calm().end())


def test_a_part_that_is_there_twice_counts_once(duck: Engine, ledger: Source) -> None:
    for part in parts_of(ledger):
        copy = shutil.copy(part, part.with_name(f"copy-of-{part.name}"))
        assert audit_sources([ledger], AuditPolicy(), duck).sources[0].facts == balance(calm().end()), part.name
        Path(copy).unlink()


@pytest.mark.parametrize("share", [0.5, 0.99])
def test_half_a_part_fails_by_its_name(engine: Engine, ledger: Source, share: float) -> None:
    part = parts_of(ledger)[2]
    os.truncate(part, int(share * part.stat().st_size))
    with pytest.raises(Failed, match=part.name):
        audit_sources([ledger], AuditPolicy(), engine)


@pytest.fixture
def stored(tmp_path: Path) -> Source:
    """A calm history in files of lines, of which an audit made a part."""
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "w.jsonl").write_text("".join(f"{encode(event)}\n" for event in calm().end()))
    EventStore(tmp_path / "store").ingest([str(tmp_path / "events")])
    return Source(Level.CONSUMER, lines=(str(tmp_path / "events"),), store=str(tmp_path / "store"))


def part_of(source: Source) -> tuple[Path, bytes, int]:
    """The newest part of a store, its content, and where the footer begins (the Parquet format: its length stands before the last four bytes)."""
    part = max(Path(source.store).glob("*.parquet"))
    content = part.read_bytes()
    return part, content, len(content) - 8 - int.from_bytes(content[-8:-4], "little")


def read_through_damage(source: Source, step: int, read: Callable[[], Answer]) -> Iterator[tuple[int, Answer]]:
    """Every so many bytes the place with what is read once the byte there was changed: at once, or after one reading failed by the part's name."""
    failed = 0
    for place in range(4, part_of(source)[2], step):
        part, content, _ = part_of(source)
        part.write_bytes(content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :])
        why = ""
        try:
            answer = read()
        except Failed as error:
            failed, why, answer = failed + 1, str(error), read()
        assert not why or f"{part} is damaged" in why
        yield place, answer
    assert failed > 2, "an audit reads few columns, and a place in a page's own statistics changes nothing"


def test_a_changed_bit_in_a_page_never_changes_the_facts(spark: Engine, stored: Source) -> None:
    """A bad disk, or a copy that went wrong: the audit fails by the part's name, and the next one reads the files of lines again.

    Only of places at which the counts of deliveries become others, and nothing but a checksum shows it.
    """
    part, content, footer = part_of(stored)
    changed = (content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :] for place in range(4, footer))
    silent = [other for other in changed if list_deliveries(other) not in {(), list_deliveries(content)}]
    assert len(silent) > 3
    for other in silent[:2]:
        part, *_ = part_of(stored)
        part.write_bytes(other)
        with pytest.raises(Failed, match=f"{part} is damaged"):
            audit_sources([stored], AuditPolicy(), spark)
        assert audit_sources([stored], AuditPolicy(), spark).sources[0].facts == balance(calm().end())


def list_deliveries(content: bytes) -> tuple[object, ...]:
    """What a reader without checksums sees of a part's deliveries; empty: it fails."""
    try:
        rows = pq.read_table(pa.BufferReader(content), columns=["row_kind", "lo", "hi", "n"]).to_pylist()
    except (OSError, ValueError, pa.ArrowException):
        return ()
    return tuple((row["lo"], row["hi"], row["n"]) for row in rows if row["row_kind"] == RowKind.DELIVERY)


def test_a_changed_byte_in_a_footer_leaves_no_rows_out(engine: Engine, stored: Source) -> None:
    """What the footer says of a group's kinds decides whether a reader looks into it."""
    part, content, footer = part_of(stored)
    changed = content[footer:].replace(RowKind.DELIVERY.encode(), RowKind.DELIVERY[:-1].encode() + b"~")
    assert changed != content[footer:]
    part.write_bytes(content[:footer] + changed)
    assert audit_sources([stored], AuditPolicy(), engine).sources[0].facts == balance(calm().end())


def test_a_damaged_part_is_not_merged(stored: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """Merging would give its rows new checksums."""
    monkeypatch.setattr(event_store, "_MERGED_PARTS", 0)
    before = bag_of_rows(stored)
    for place, rows in read_through_damage(stored, 97, lambda: bag_of_rows(stored)):
        assert rows == before, place


def bag_of_rows(source: Source) -> Counter[str]:
    """All rows of a source's store after another reading."""
    return Counter(map(str, read_rows(source.lines, Path(source.store))))


def test_an_empty_part_is_a_hole_as_one_that_is_not_there(spark: Engine, ledger: Source) -> None:
    """Spark leaves out what has no bytes."""
    os.truncate(parts_of(ledger)[2], 0)
    result = audit_sources([ledger], AuditPolicy(), spark)
    assert result.verdict.outcome is not AuditOutcome.PASS
    assert not result.sources[0].facts.complete


def test_a_python_worker_that_is_killed_is_named_with_what_to_do(spark: Any) -> None:
    """As the kernel does if memory is short. A table of its own: the worker of a partition that is too large for it."""

    def kill_worker(_: pa.Table) -> pa.Table:  # here: the worker cannot import this module
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    spark.attach("killed", [pa.table({"part": [1]})])
    with pytest.raises(Failed, match=r"a Python worker of Spark's ended .*spark\.executor\.memoryOverhead"):
        spark.apply_by_key("SELECT part FROM killed", ("part",), kill_worker, pa.schema([("checked", pa.binary())]))
    assert spark.ask("SELECT part FROM killed").num_rows == 1, "the session answers the next question"


def test_garbage_between_events_costs_bounded_memory_and_hides_none(tmp_path: Path) -> None:
    """Lines of many kinds, as a log that was appended to the wrong file: 16 MB stand for more, since what is kept does not grow with them."""
    folder, events = tmp_path / "events", calm().end()
    folder.mkdir()
    garbage = b"".join(
        b'%d {"level": "info", "at": %d, "text": "%s"}\n' % (number, number, b"x" * 60) for number in range(80_000)
    )
    with (folder / "mixed.jsonl").open("wb") as file:
        for number, event in enumerate(events):
            file.write(encode(event).encode() + b"\n")
            if number in {3, len(events) // 2}:
                file.write(garbage)
    tracemalloc.start()
    rows = read_rows([str(folder)], tmp_path / "store")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    refused = [row for row in rows if row["row_kind"] == RowKind.REFUSED]
    assert len(refused) == 1_001
    assert any("has 159000 more lines that are no events" in row["why"] for row in refused)
    assert len(rows) - len(refused) == sum(len(list(rows_of_event(event))) for event in events)
    assert peak < 64 << 20
