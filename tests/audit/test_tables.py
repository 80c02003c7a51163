"""The audit's tables, asked by the very SQL of their page, against figures that plain Python counts from the same events."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("duckdb", reason="the audit has its own environment")
import duckdb
import pyarrow.parquet as pq

from airflow_provider_kmigrate.audit import tables
from airflow_provider_kmigrate.audit.job import run_audit
from airflow_provider_kmigrate.audit.offsets_rows import HISTORY
from airflow_provider_kmigrate.audit.request import parse
from airflow_provider_kmigrate.core.events.lines import encode
from airflow_provider_kmigrate.core.events.model import Ack, DeliveryRun, Event, latency_bucket
from airflow_provider_kmigrate.exceptions import Failed
from tests.audit.reports import START, journal_text
from tests.core.histories import TOPIC, calm

PAGE = Path(__file__).parents[2] / "docs" / "tables.md"
PLACE = "/var/lib/kmigrate/audit/prod/tables/v1"
MINUTE, LATE_MS = "1970-01-01 00:16", 12_000
MINUTE_MS = 16 * 60_000
Rows = list[tuple[Any, ...]]


def history() -> list[Event]:
    """Ninety seconds in which each second delivery is of records that were sent 12 s before."""
    events = calm(300).end()
    runs = [event for event in events if isinstance(event, DeliveryRun)]
    late = {run.stamp for run in runs[1::2]}
    return [_measured(event, event.stamp in late) if isinstance(event, DeliveryRun) else event for event in events]


def _measured(run: DeliveryRun, is_late: bool) -> DeliveryRun:
    waited = LATE_MS if is_late else 1
    counts = ((latency_bucket(1_000), run.count - 3), (latency_bucket(waited * 1_000), 3)) if is_late else ((9, run.count),)
    return replace(run, t_sent_ms=run.t_last_ms - waited, latency=counts)


def audit(engine: Any, folder: Path, events: list[Event]) -> Path:
    """Runs an audit of these events with a journal; returns the folder of its tables."""
    (folder / "events").mkdir(parents=True, exist_ok=True)
    lines: dict[str, list[str]] = {}
    for event in events:
        lines.setdefault(event.stamp.writer, []).append(encode(event))
    for writer, texts in lines.items():
        (folder / "events" / f"{writer}.jsonl").write_text("".join(f"{text}\n" for text in texts))
    (folder / "journal.jsonl").write_text("\n".join(journal_text()))
    source = {"level": "L3", "lines": [str(folder / "events")], "store": str(folder / "store")}
    report = {"cluster": "prod", "run": "r", "step": "first_roll", "tables": str(folder / "tables")}
    request = parse({"sources": [source], "report": {**report, "journals": [str(folder / "journal.jsonl")]}})
    concluded = run_audit(request, engine, folder / "out")
    assert concluded.write_tables is not None
    concluded.write_tables()
    return folder / "tables" / "v1"


@pytest.fixture
def ask_duckdb(tmp_path: Path) -> Iterator[Callable[[str], Rows]]:
    with duckdb.connect() as connection:
        yield lambda text: connection.execute(text).fetchall()


@pytest.fixture
def ask_spark(spark_session: Any) -> Iterator[Callable[[str], Rows]]:
    yield lambda text: [tuple(row) for row in spark_session.sql(text).collect()]
    for table in tables.TABLES:
        spark_session.catalog.dropTempView(table)


def page_blocks() -> list[str]:
    return re.findall(r"^```sql\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def open_tables(ask: Callable[[str], Rows], engine_name: str, home: Path) -> list[str]:
    """Makes the page's views; returns its questions, about the topic and the minute of these tests."""
    set_up = next(block for block in page_blocks() if block.startswith(f"-- {engine_name}\n"))
    for statement in set_up.replace(PLACE, str(home)).split(";"):
        if "VIEW" in statement:
            ask(statement)
    questions = [block for block in page_blocks() if not block.startswith("--")]
    return [text.replace("'orders'", f"'{TOPIC}'").replace("'2026-11-21 10:31'", f"'{MINUTE}'") for text in questions]


def check_answers(ask: Callable[[str], Rows], questions: list[str], events: list[Event]) -> None:
    runs = [event for event in events if isinstance(event, DeliveryRun) and event.t_last_ms // 60_000 == 16]
    late = sum(3 for run in runs if run.t_sent_ms == run.t_last_ms - LATE_MS)
    assert late
    in_minute, complete, stalled, found = questions
    delivered = sum(run.count for run in runs)
    restarts = [("provision controller 3000", "1970-01-01 00:16:44"), ("broker 0 to migration", "1970-01-01 00:16:48")]
    assert ask(in_minute) == [("g", delivered, late, LATE_MS, *restart) for restart in restarts]
    assert ask(complete) == [(TOPIC, "g", "1970-01-01 00:18", 10)]  # the last record of 00:17 was delivered in 00:18
    shown = [(step, began, ack_ms, delivery_ms, late_1s) for step, began, ack_ms, delivery_ms, late_1s in ask(stalled)]
    expected = [
        (*restart, *_stalls(events, *times)) for restart, times in zip(restarts, ((4_000, 7_000), (8_000, 18_000)), strict=True)
    ]
    assert shown == expected
    assert ask(found) == []


def _stalls(events: list[Event], began: int, until: int) -> tuple[int, int, int]:
    """The longest waits, and the late records, of what came in these times after the start."""
    acks = [
        (ack.latency_max_us or 0) // 1_000 for ack in events if isinstance(ack, Ack) and began <= ack.t_acked_ms - START <= until
    ]
    runs = [run for run in events if isinstance(run, DeliveryRun) and began <= run.t_last_ms - START <= until]
    waits = [run.t_last_ms - (run.t_sent_ms or 0) for run in runs]
    return max(acks), max(waits), sum(3 for wait in waits if wait == LATE_MS)


def test_the_pages_sql_answers_in_duckdb(engine: Any, ask_duckdb: Callable[[str], Rows], tmp_path: Path) -> None:
    events = history()
    home = audit(engine, tmp_path, events)
    check_answers(ask_duckdb, open_tables(ask_duckdb, "duckdb", home), events)


def test_the_pages_sql_answers_in_spark(duck: Any, ask_spark: Callable[[str], Rows], tmp_path: Path) -> None:
    events = history()
    home = audit(duck, tmp_path, events)
    check_answers(ask_spark, open_tables(ask_spark, "spark", home), events)
    assert ask_spark("SELECT count(*) FROM events WHERE row_kind = 'ack'") == [(30,)]


def test_a_lost_record_is_a_finding_with_its_case(duck: Any, ask_duckdb: Callable[[str], Rows], tmp_path: Path) -> None:
    events = [event for event in history() if not (isinstance(event, DeliveryRun) and event.first == 100)]
    renumbered: Counter[str] = Counter()
    for place, event in enumerate(events):  # else the hole among the writer's numbers says that its evidence is not whole
        number = renumbered[event.stamp.writer]
        renumbered[event.stamp.writer] += 1
        seq = {"seq": event.seq - 10} if isinstance(event, DeliveryRun) and event.first > 100 else {}
        events[place] = replace(event, stamp=event.stamp._replace(event_seq=number), **seq)
    questions = open_tables(ask_duckdb, "duckdb", audit(duck, tmp_path, events))
    assert ("r", "first_roll", "FAIL", "A01", "10 acknowledged records were lost.", 10) in ask_duckdb(questions[-1])
    cases = ask_duckdb("SELECT unnest(cases) FROM findings WHERE cause = 'lost'")
    assert [(case["topic"], case["lo"], case["hi"], case["consumer_group"]) for (case,) in cases] == [(TOPIC, 100, 109, "g")]


def test_events_stay_although_the_store_goes_and_two_audits_are_kept(duck: Any, tmp_path: Path) -> None:
    for _ in range(4):
        home = audit(duck, tmp_path, history())
    assert {table: len([*(home / table).iterdir()]) for table in tables.TABLES} == {
        "events": 2, "completeness": 2, "restarts": 2, "findings": 4, "verdicts": 4
    }  # fmt: skip
    kept = sorted(path.name for path in (home / "events").iterdir())
    assert kept == sorted(path.name for path in (home / "verdicts").iterdir())[-2:]
    for part in (tmp_path / "store").glob("*.parquet"):
        part.unlink()
    count = sum(pq.read_metadata(path).num_rows for path in (home / "events" / kept[-1]).rglob("*.parquet"))
    assert count == len(history())


def test_an_audit_that_cannot_finish_its_tables_has_no_verdict_there(
    duck: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Any:
        raise Failed("the disk is full")

    monkeypatch.setattr(tables, "list_findings", fail)
    with pytest.raises(Failed, match="disk is full"):
        audit(duck, tmp_path, history())
    assert (tmp_path / "tables" / "v1" / "completeness").exists()
    assert not (tmp_path / "tables" / "v1" / "verdicts").exists()
    assert json.loads((tmp_path / "out" / "verdict.json").read_text())["outcome"] == "PASS"


@pytest.mark.parametrize(("minute", "shown"), [(-4_223_371_680, "1970-01-01 00:00"), (9 * 10**15, "9999-12-31 23:59")])
def test_a_minute_that_no_calendar_has_is_its_nearest_end(minute: int, shown: str) -> None:
    """A client may write any time."""
    acked = [{"topic": "t", "slot": minute, "n": 1, "longest_ack_ms": None}]
    (row,) = tables.join_minutes(acked, (), (), ())
    assert (row["minute"], row["minute_ms"]) == (shown, minute * 60_000)


@pytest.mark.parametrize("table", [*tables.TABLES, "commits"])
def test_the_page_has_each_column_in_its_place(table: str) -> None:
    section = PAGE.read_text().split(f"\n## {table}\n")[1].split("\n## ")[0]
    schema = HISTORY if table == "commits" else tables.TABLES[table]
    assert re.findall(r"^\| `(\w+)` \| ([\w ]+) \| .+\|$", section, re.MULTILINE) == [
        (column.name, _type_name(str(column.type))) for column in schema
    ]


def _type_name(arrow_type: str) -> str:
    if arrow_type.startswith("list<"):
        inner = arrow_type.removesuffix(">").partition(": ")[2]
        return "list of rows" if inner.startswith("struct") else f"list of {_type_name(inner)}"
    return {"string": "text", "int64": "bigint", "int32": "int", "bool": "boolean"}[arrow_type]
