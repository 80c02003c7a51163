"""The curves of a page, summed up by an engine, are those of all events in memory; and a page comes after its verdict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the audit has its own environment")
pytest.importorskip("duckdb", reason="the audit has its own environment")

from airflow_provider_kmigrate.audit.curves import join_books, measure_sources
from airflow_provider_kmigrate.audit.job import audit_sources, run_audit
from airflow_provider_kmigrate.audit.queries import Engine
from airflow_provider_kmigrate.audit.request import AuditPolicy, AuditRequest, ReportRequest
from airflow_provider_kmigrate.audit.sources import Source
from airflow_provider_kmigrate.core.audit.report_facts import ReportWindow, measure_book
from airflow_provider_kmigrate.core.audit.verdict import Level
from airflow_provider_kmigrate.core.events.model import Event
from airflow_provider_kmigrate.core.ledger.book import Book
from airflow_provider_kmigrate.exceptions import Failed
from tests.audit.duckdb_audit import written
from tests.audit.random_histories import packed
from tests.audit.reports import broken_history


def window_of(events: list[Event]) -> ReportWindow:
    times = [event.stamp.t_ms for event in events]
    return ReportWindow(min(times), max(times) + 1_000)


def assert_same_curves(engine: Engine, events: list[Event], window: ReportWindow) -> None:
    result = audit_sources([Source(Level.CONSUMER, events=tuple(events))], AuditPolicy(), engine)
    drawn = [source.drawn for source in result.sources]
    expected = measure_book(Book.of(events), window)
    assert measure_sources(engine, drawn, join_books(source.book for source in drawn), window) == expected
    assert expected.lag
    assert expected.stalls


def test_of_random_histories(duck: Engine) -> None:
    events = packed(60, seed=17)
    assert_same_curves(duck, events, window_of(events))


@pytest.mark.long
def test_of_random_histories_on_spark(spark: Engine) -> None:
    events = packed(20, seed=17)
    assert_same_curves(spark, events, window_of(events))


@pytest.mark.parametrize("seed", [3, 4, 5])
def test_of_windows_that_cut_events_off(duck: Engine, seed: int) -> None:
    """A journal may begin before the first event, and clocks differ: records are also acknowledged outside the window."""
    events = packed(40, seed=seed)
    whole = window_of(events)
    for window in (
        ReportWindow(whole.from_ms - 7_777, whole.to_ms),
        ReportWindow(whole.from_ms + whole.length // 3, whole.from_ms + whole.length // 2),
        ReportWindow(whole.from_ms, whole.from_ms + 100),
    ):
        assert_same_curves_or_none(duck, events, window)


def assert_same_curves_or_none(engine: Engine, events: list[Event], window: ReportWindow) -> None:
    result = audit_sources([Source(Level.CONSUMER, events=tuple(events))], AuditPolicy(), engine)
    drawn = [source.drawn for source in result.sources]
    assert measure_sources(engine, drawn, join_books(source.book for source in drawn), window) == measure_book(
        Book.of(events), window
    )


def test_two_sources_are_drawn_together(duck: Engine) -> None:
    """Partitions of the same topic in both: each source's lag is its own, and they are summed."""
    first, second = broken_history().end(), packed(5, seed=1)
    both = [*first, *second]
    window = window_of(both)
    result = audit_sources([Source(Level.CONSUMER, events=tuple(events)) for events in (first, second)], AuditPolicy(), duck)
    drawn = [source.drawn for source in result.sources]
    curves = measure_sources(duck, drawn, join_books(source.book for source in drawn), window)
    lags = {track.group: track.points[-1][1] for track in curves.lag}
    expected = {track.group: track.points[-1][1] for part in (first, second) for track in measure_book(Book.of(part), window).lag}
    assert lags == expected


def test_the_verdict_is_there_before_the_page_and_without_it(duck: Engine, tmp_path: Path) -> None:
    """The gate goes on with the verdict: the page is made after it, and what keeps it from being made does not change the verdict."""
    (tmp_path / "events").mkdir()
    wanted = AuditRequest((written(tmp_path / "events"),), report=ReportRequest("prod"))
    concluded = run_audit(wanted, duck, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "verdict.json").read_text())["outcome"] == "PASS"
    assert not (tmp_path / "out" / "report.html").exists()
    assert concluded.try_report(tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"report.html", "report.json", "verdict.json"}


def test_an_engine_that_ends_before_the_page_is_no_failure_of_the_audit(
    duck: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "events").mkdir()
    concluded = run_audit(AuditRequest((written(tmp_path / "events"),), report=ReportRequest("prod")), duck, tmp_path / "out")

    def fail(question: str) -> None:
        raise Failed(f"ended at {question[:9]}")

    monkeypatch.setattr(duck, "ask", fail)
    assert not concluded.try_report(tmp_path / "out")
    assert "no report: ended" in capsys.readouterr().err
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["facts.json", "refused.jsonl", "verdict.json"]
