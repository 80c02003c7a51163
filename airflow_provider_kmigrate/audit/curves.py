"""The curves of a report's page, summed up where the events are: what comes back grows with neither events nor partitions.

They are those of `core.audit.report_facts.measure_book`, which has all events in memory.
"""

# ruff: noqa: S608  # only numbers of ours are put into the texts

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import pyarrow as pa

from airflow_provider_kmigrate.audit.queries import Data, Engine
from airflow_provider_kmigrate.audit.screen import GroupStart
from airflow_provider_kmigrate.core.audit.report_facts import (
    BINS,
    LagTrack,
    LoadCurves,
    ReportWindow,
    build_stalls,
    find_worst_waits,
    list_slow_waits,
)
from airflow_provider_kmigrate.core.ledger.book import Book

_READINGS: Final = pa.schema(
    [("consumer_group", pa.string()), ("topic", pa.string()), ("part", pa.int32()), ("begins", pa.int64())]
)


@dataclass(frozen=True, slots=True)
class DrawnSource:
    """What a page draws of one source.

    `data`: all its rows. `book`: its control events, with all writers. `readings`: as `Screened` has them.
    """

    data: tuple[Data, ...]
    book: Book
    readings: Sequence[GroupStart]


def join_books(books: Iterable[Book]) -> Book:
    """The writers, owners and slow records of several sources."""
    joined = Book()
    for book in books:
        joined.writers.update(book.writers)
        joined.slow.extend(book.slow)
        for key, changes in book.ownership.items():
            joined.ownership[key].extend(changes)
    return joined


def measure_sources(engine: Engine, sources: Sequence[DrawnSource], book: Book, window: ReportWindow) -> LoadCurves:
    """The curves of all sources together; `book` is theirs, joined."""
    steps: dict[str, list[int]] = defaultdict(lambda: [0] * BINS)
    worst = find_worst_waits(list_slow_waits(book), window)
    for source in sources:
        attach_drawn(engine, source)
        for row in engine.ask(lag_query(window)).to_pylist():
            of_group = steps[row["consumer_group"]]
            if row["slot"] < BINS:
                of_group[row["slot"]] += row["step"]
        for row in engine.ask(waits_query(window)).to_pylist():
            worst[row["slot"]] = max(worst.get(row["slot"], 0.0), row["wait_us"] / 1000)
    ends = window.bin_ends()
    lag = (LagTrack(group, tuple(zip(ends, accumulate(changes), strict=True))) for group, changes in sorted(steps.items()))
    return LoadCurves(tuple(lag), build_stalls(worst, window))


def attach_drawn(engine: Engine, source: DrawnSource) -> None:
    """Make the views `events` and `readings` those of this source."""
    engine.attach("events", source.data)
    attach_readings(engine, source)


def attach_readings(engine: Engine, source: DrawnSource) -> None:
    """Make the view `readings` that of this source."""
    columns = [list(values) for values in zip(*source.readings, strict=True)] or [[]] * len(_READINGS)
    engine.attach("readings", [pa.table(columns, schema=_READINGS)])


def lag_query(window: ReportWindow) -> str:
    """By how much each group's lag changes in each part of the window; before its first part it is 0.

    A group reads what `readings` say.
    """
    return f"SELECT consumer_group, slot, CAST(sum(step) AS BIGINT) AS step FROM ({lag_steps(_reached_query(_first_end_at_or_after(window)))}) AS steps GROUP BY consumer_group, slot"


def _reached_query(slot: str) -> str:
    """How far each group, and without a group the log, came in each slot. `slot`: a growing function of `t_last_ms`, as SQL."""
    return f"""
  SELECT topic, part, consumer_group, slot, max(hi) AS hi
  FROM (
    SELECT topic, part, consumer_group, hi, {slot} AS slot
    FROM events WHERE row_kind = 'delivery' OR (row_kind = 'ack' AND lo >= 0)) AS with_slots
  GROUP BY topic, part, consumer_group, slot"""


def lag_steps(reached_query: str) -> str:
    """By how much the lag of each group in each topic changes in each slot. `reached_query`: how far each came in it, up to offset `hi`."""
    return f"""
WITH highest AS (SELECT topic, part, consumer_group, slot, hi + 1 AS reached FROM ({reached_query}) AS so_high),
moved AS (
  SELECT /*+ BROADCAST(readings) */ readings.consumer_group AS consumer_group, readings.topic AS topic, readings.part AS part, slot,
    min(begins) AS begins, max(CASE WHEN highest.consumer_group IS NULL THEN reached END) AS log_end,
    max(CASE WHEN highest.consumer_group IS NOT NULL THEN reached END) AS position
  FROM highest JOIN readings ON highest.topic = readings.topic AND highest.part = readings.part
    AND (highest.consumer_group IS NULL OR highest.consumer_group = readings.consumer_group)
  GROUP BY readings.consumer_group, readings.topic, readings.part, slot),
so_far AS (
  SELECT consumer_group, topic, part, slot, begins, max(log_end) OVER earlier AS log_end, max(position) OVER earlier AS position
  FROM moved WINDOW earlier AS (PARTITION BY consumer_group, topic, part ORDER BY slot ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)),
lags AS (
  SELECT consumer_group, topic, part, slot, greatest(0, coalesce(log_end, 0) - greatest(begins, coalesce(position, 0))) AS behind FROM so_far),
changes AS (
  SELECT consumer_group, topic, slot,
    behind - lag(behind, 1, CAST(0 AS BIGINT)) OVER (PARTITION BY consumer_group, topic, part ORDER BY slot) AS step
  FROM lags)
SELECT consumer_group, topic, slot, CAST(sum(step) AS BIGINT) AS step FROM changes GROUP BY consumer_group, topic, slot"""


def waits_query(window: ReportWindow) -> str:
    """The longest wait for an acknowledgement in each part of the window."""
    return f"""
SELECT slot, max(wait_us) AS wait_us
FROM (
  SELECT {_first_end_at_or_after(window, offset=1)} AS slot, wait_us FROM events
  WHERE row_kind = 'ack' AND wait_us IS NOT NULL AND t_last_ms >= {window.from_ms}) AS waits
WHERE slot < {BINS} GROUP BY slot"""


def _first_end_at_or_after(window: ReportWindow, offset: int = 0) -> str:
    """The index of the first of `window.bin_ends()` that is not before `t_last_ms` + `offset`; `BINS` and above: there is none."""
    return f"""greatest(0, CAST(ceil((t_last_ms + {offset} - {window.from_ms}) * {BINS} / {window.length}) AS BIGINT) - 1)"""
