"""The sums that the tables need of events: by minute, topic and group, and by second. Those of a store's parts are kept, because a part never changes.

So an audit sums up the parts that are new, and adds what was kept. A figure is one of events alone: it knows no cut and no verdict, and an
event that arrives late is in a new part. If what is kept is damaged, of another release, or of parts that the store has no longer, all
events are summed up again.
"""

# ruff: noqa: S608  # only numbers and names of ours are put into the texts

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from airflow_provider_kmigrate import __version__
from airflow_provider_kmigrate.audit.curves import DrawnSource, attach_readings
from airflow_provider_kmigrate.audit.event_store import StoredEvidence
from airflow_provider_kmigrate.audit.queries import Engine
from airflow_provider_kmigrate.core.events.model import latency_bucket
from airflow_provider_kmigrate.exceptions import Failed

LATE_S: Final = (1, 10, 60)
"""From how many seconds on a record counts as late, a column each."""
LATE: Final = tuple(f"late_{seconds}s" for seconds in LATE_S)
MINUTE_MS: Final = 60_000
SECOND_MS: Final = 1_000
MOST_ROWS: Final = 2_000_000
"""More of them are not kept: they come through the driver."""

_SUMS: Final = ("n", "measured", *LATE)
_LARGEST: Final = ("hi", "longest_delivery_ms", "longest_ack_ms")
_KEYS: Final = ("figure", "topic", "part", "consumer_group", "slot")
SUMS: Final = pa.schema(
    [
        ("figure", pa.string()),  # acked, delivered, reached: of a minute; second
        ("topic", pa.string()),
        ("part", pa.int32()),
        ("consumer_group", pa.string()),
        ("slot", pa.int64()),  # which minute or second since the epoch
        *((name, pa.int64()) for name in (*_SUMS, *_LARGEST)),
    ]
)
_OF_ALL: Final = ", ".join(
    [
        *(f"CAST(sum({name}) AS BIGINT) AS {name}" for name in _SUMS),
        *(f"CAST(max({name}) AS BIGINT) AS {name}" for name in _LARGEST),
    ]
)


@dataclass(frozen=True, slots=True)
class Figures:
    """The sums (`SUMS`) of these parts of a store; empty: nothing is summed up yet."""

    parts: frozenset[str] = frozenset()
    rows: pa.Table = field(default_factory=SUMS.empty_table)


def attach_figures(engine: Engine, source: DrawnSource, figures: Figures) -> None:
    """Make the views `events` (what is not summed up yet), `kept_sums` and `readings` those of this source."""
    data = [
        tuple(part for part in item if part not in figures.parts) if isinstance(item, tuple) else item for item in source.data
    ]
    engine.attach("events", [item for item in data if not isinstance(item, tuple) or item])
    engine.attach("kept_sums", [figures.rows])
    attach_readings(engine, source)


def carry_figures(engine: Engine, source: DrawnSource, stored: StoredEvidence) -> Figures:
    """Sum up what is new in a store, and keep the sums for the next audit; returns those of all its parts, or what there was if they are too many."""
    before = load_figures(stored)
    if not {*stored.parts} - before.parts:
        return before
    attach_figures(engine, source, before)
    question = f"SELECT {', '.join(_KEYS)}, {_OF_ALL} FROM ({sums_query(engine)}) AS sums GROUP BY {', '.join(_KEYS)}"
    rows = engine.ask(f"{question} LIMIT {MOST_ROWS + 1}").select(SUMS.names).cast(SUMS)
    if rows.num_rows > MOST_ROWS:
        return before
    try:
        stored.store.keep_figures(stored.parts, rows, __version__)
    except Failed as error:
        print(f"the sums of the tables are not kept: {error}", flush=True)  # noqa: T201  # a program's own words
    return Figures(frozenset(stored.parts), rows)


def load_figures(stored: StoredEvidence) -> Figures:
    """What an earlier audit kept of a store's parts; empty if it cannot be used."""
    kept = stored.store.load_figures(stored.parts, __version__)
    if kept is None or kept[1].schema != SUMS:
        return Figures()
    return Figures(frozenset(kept[0]), kept[1])


def sums_query(engine: Engine) -> str:
    """All figures, those of the events and the kept ones: one has several rows."""
    return " UNION ALL ".join(
        (_acked(), _delivered(engine), _reached(), _seconds(engine), f"SELECT {', '.join(SUMS.names)} FROM kept_sums")
    )


def _row(figure: str, **columns: str) -> str:
    given = {"figure": f"'{figure}'", **columns}
    kinds = {"string": "STRING", "int32": "INT", "int64": "BIGINT"}
    return ", ".join(f"CAST({given.get(item.name, 'NULL')} AS {kinds[str(item.type)]}) AS {item.name}" for item in SUMS)


def slot(length_ms: int) -> str:
    """Which stretch of this length an event belongs to, as SQL."""
    return f"CAST(floor(t_last_ms / {length_ms}) AS BIGINT)"


_ACK_MS: Final = "floor(max(wait_us) / 1000)"


def _acked() -> str:
    minute = slot(MINUTE_MS)
    columns = _row("acked", topic="topic", slot=minute, n="sum(n)", longest_ack_ms=_ACK_MS)
    return f"SELECT {columns} FROM events WHERE row_kind = 'ack' GROUP BY topic, {minute}"


def _delivered(engine: Engine) -> str:
    minute = slot(MINUTE_MS)
    columns = _row(
        "delivered",
        topic="topic",
        consumer_group="consumer_group",
        slot=minute,
        n="sum(n)",
        measured=f"sum({engine.count_records_from(0)})",
        longest_delivery_ms="max(t_last_ms - t_sent_ms)",
        **_late_sums(engine),
    )
    return f"SELECT {columns} FROM events WHERE row_kind = 'delivery' GROUP BY topic, consumer_group, {minute}"


def _reached() -> str:
    """How far each partition and group came in each minute; without a group: the log."""
    minute = slot(MINUTE_MS)
    columns = _row("reached", topic="topic", part="part", consumer_group="consumer_group", slot=minute, hi="max(hi)")
    where = "row_kind = 'delivery' OR (row_kind = 'ack' AND lo >= 0)"
    return f"SELECT {columns} FROM events WHERE {where} GROUP BY topic, part, consumer_group, {minute}"


def _seconds(engine: Engine) -> str:
    second = slot(SECOND_MS)
    longest = "max(CASE WHEN row_kind = 'delivery' THEN t_last_ms - t_sent_ms END)"
    columns = _row("second", slot=second, longest_ack_ms=_ACK_MS, longest_delivery_ms=longest, **_late_sums(engine))
    return f"SELECT {columns} FROM events WHERE row_kind IN ('ack', 'delivery') GROUP BY {second}"


def _late_sums(engine: Engine) -> dict[str, str]:
    buckets = zip(LATE, LATE_S, strict=True)
    return {name: f"sum({engine.count_records_from(latency_bucket(seconds * 1_000_000))})" for name, seconds in buckets}


def figure_query(engine: Engine, figure: str) -> str:
    """One figure, a row for each of its keys."""
    of_events = {"acked": _acked(), "delivered": _delivered(engine), "reached": _reached(), "second": _seconds(engine)}[figure]
    kept = f"SELECT {', '.join(SUMS.names)} FROM kept_sums WHERE figure = '{figure}'"
    keys = ", ".join(_KEYS[1:])
    return f"SELECT {keys}, {_OF_ALL} FROM ({of_events} UNION ALL {kept}) AS sums GROUP BY {keys}"
