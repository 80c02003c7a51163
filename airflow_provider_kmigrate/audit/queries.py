"""What is asked of an engine: one text for each question, read alike by Spark and DuckDB.

Names avoid words that either dialect reserves. Sums are cast, because DuckDB widens them. A hint that only Spark knows is a comment
to DuckDB. Views: `events`, `records`, `log` (`schema`), and small tables attached for one question: `wanted`, `asked`, `spans`.
"""

# ruff: noqa: S608  # what is put into the texts are numbers of ours, never words of others

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Final

import numpy as np
import pyarrow as pa

from airflow_provider_kmigrate.audit.algebra import Ints, mix_sql
from airflow_provider_kmigrate.audit.schema import EVENTS, Pile
from airflow_provider_kmigrate.core.ledger.health import SLOT_MS, STEADY_SLOTS

LOG_BLOCK_BITS: Final = 12
_BLOCKS: Final = (1 << 40) - 1
LATENCY_STRIDE: Final = 2_689  # more than the buckets of a member, and prime


class AboutPiles(str):
    """A question whose answer has no rows where none of its `piles` is among the events."""

    __slots__ = ("answer", "piles")

    piles: frozenset[str]
    answer: pa.Schema


def _about(text: str, piles: Iterable[Pile], answer: str) -> AboutPiles:
    """`answer` names its columns: those of `EVENTS` have that type, all others are numbers."""
    question = AboutPiles(text)
    question.piles = frozenset(pile.value for pile in piles)
    types = {field.name: field.type for field in EVENTS} | {"whole": pa.bool_(), "goes_back": pa.int32()}
    types |= dict.fromkeys(("member_before", "member_after"), pa.string())
    question.answer = pa.schema([(name, types.get(name, pa.int64())) for name in answer.split()])
    return question


CONTROL: Final = "SELECT pile, line, why, t_ms FROM events WHERE pile IN ('control', 'refused', 'version')"

# Of each writer and pile; over all its piles, whether the writer's numbers are whole.
WRITERS: Final = f"""
SELECT writer, pile, count(*) AS n, min(number) AS number_lo, max(number) AS number_hi, max(t_ms) AS t_hi,
  CAST(sum({mix_sql("number + 1")} - {mix_sql("number")}) AS BIGINT) AS chain
FROM events WHERE nth = 0 AND pile NOT IN ('refused', 'version') GROUP BY writer, pile"""

# Deliveries of a member, and acknowledgements of a producer, that continue each other.
CHAINS: Final = _about(
    f"""
SELECT pile, writer, consumer_group, member, topic, part, producer, whole, shift,
  min(lo) AS o_lo, max(hi) AS o_hi, CAST(sum(n) AS BIGINT) AS total, count(*) AS pieces,
  min(seq) AS seq_lo, max(seq + n) AS seq_end, CAST(sum({mix_sql("seq + n")} - {mix_sql("seq")}) AS BIGINT) AS chain,
  min(t_first_ms) AS t_lo, max(t_last_ms) AS t_hi
FROM (SELECT *, lo - seq AS base, lo - producer_seq AS shift, lo >= 0 AND hi - lo + 1 = n AS whole
  FROM events WHERE pile IN ('delivery', 'ack')) AS pieces_of
GROUP BY pile, writer, consumer_group, member, topic, part, producer, whole, shift, base""",
    (Pile.DELIVERY, Pile.ACK),
    "pile writer consumer_group member topic part producer whole shift o_lo o_hi total pieces seq_lo seq_end chain t_lo t_hi",
)

COMMITS: Final = _about(
    "SELECT writer, consumer_group, topic, part, hi, t_ms FROM events WHERE pile = 'commit'",
    (Pile.COMMIT,),
    "writer consumer_group topic part hi t_ms",
)

# When the deliveries began that ended with a committed offset.
DELIVERED_AT: Final = """
SELECT /*+ BROADCAST(asked) */ asked.id AS id, min(events.t_first_ms) AS t_ms
FROM events JOIN asked ON events.consumer_group = asked.consumer_group AND events.topic = asked.topic
  AND events.part = asked.part AND events.hi = asked.hi
WHERE events.pile = 'delivery' GROUP BY asked.id"""

# All that the ledger must see of some partitions and some writers.
LINES: Final = _about(
    """
SELECT /*+ BROADCAST(wanted) */ events.line AS line, events.writer AS writer
FROM events JOIN wanted ON events.topic = wanted.topic AND events.part = wanted.part
WHERE events.pile IN ('delivery', 'ack', 'commit')""",
    (Pile.DELIVERY, Pile.ACK, Pile.COMMIT),
    "line writer",
)
LINES_OF_WRITERS: Final = """
SELECT /*+ BROADCAST(writers) */ events.line AS line, events.writer AS writer
FROM events JOIN writers ON events.writer = writers.writer WHERE events.pile IN ('commit', 'sign') AND events.nth = 0"""
NUMBERS_OF_WRITERS: Final = """
SELECT /*+ BROADCAST(writers) */ events.writer AS writer, events.number AS number, events.t_ms AS t_ms
FROM events JOIN writers ON events.writer = writers.writer WHERE events.nth = 0"""

# How long producers' records took.
LATENCY_LINES: Final = _about("SELECT line FROM events WHERE pile = 'latency'", (Pile.LATENCY,), "line")
ACK_LATENCIES: Final = _about(
    "SELECT writer, number, producer, n, latency, topic, part, t_last_ms FROM events WHERE pile = 'ack'",
    (Pile.ACK,),
    "writer number producer n latency topic part t_last_ms",
)
DELIVERY_LATENCIES: Final = _about(
    "SELECT consumer_group, member, latency FROM events WHERE pile = 'delivery'",
    (Pile.DELIVERY,),
    "consumer_group member latency",
)

# Of each writer: from when to when it gave signs of life, and how many of its events there are.
LIVES: Final = """
SELECT writer, min(t_ms) AS t_lo, max(t_ms) AS t_hi, count(DISTINCT number) AS n, max(number) AS number_hi
FROM events WHERE nth = 0 AND pile NOT IN ('refused', 'version') GROUP BY writer"""

# What some writers were delivered, and how late.
LATENESS: Final = """
SELECT /*+ BROADCAST(writers) */ events.writer AS writer, events.t_last_ms AS t_last_ms, events.n AS n, events.latency AS latency
FROM events JOIN writers ON events.writer = writers.writer WHERE events.pile = 'delivery'"""

# When each poll of some partitions was delivered, and to whom.
DELIVERIES: Final = """
SELECT /*+ BROADCAST(wanted) */ events.consumer_group AS consumer_group, events.member AS member, events.topic AS topic,
  events.part AS part, events.lo AS o_lo, events.hi AS o_hi, events.t_first_ms AS t_lo, events.t_last_ms AS t_hi
FROM events JOIN wanted ON events.topic = wanted.topic AND events.part = wanted.part WHERE events.pile = 'delivery'"""


def ack_slots(since: int) -> AboutPiles:
    """The stretches of time, before the step that began then, in which a record of a producer's partition was acknowledged."""
    text = f"""
SELECT DISTINCT producer, topic, part, CAST(floor(t_last_ms / {SLOT_MS}) AS BIGINT) AS slot
FROM events WHERE pile = 'ack' AND t_last_ms < {since} AND t_last_ms >= {since - STEADY_SLOTS * SLOT_MS}"""
    return _about(text, (Pile.ACK,), "producer topic part slot")


def waits(window: tuple[int, int] | None) -> AboutPiles:
    """Of each partition and group: whether deliveries ever went back, in offsets or time, and the longest wait in the window.

    For partitions where nothing goes back this is what `core.ledger` calls the gap.
    """
    inside = "TRUE" if window is None else f"t_first_ms >= {window[0]} AND t_first_ms < {window[1]}"
    text = f"""
WITH ordered AS (
  SELECT *, lag(hi) OVER walk AS prev_hi, lag(t_last_ms) OVER walk AS prev_t, lag(member) OVER walk AS prev_member
  FROM events WHERE pile = 'delivery'
  WINDOW walk AS (PARTITION BY consumer_group, topic, part ORDER BY t_first_ms, seq, member)),
waiting AS (
  SELECT *, CASE WHEN prev_t IS NOT NULL THEN greatest(prev_t, coalesce(t_sent_ms, prev_t)) END AS since,
    CASE WHEN lo <= prev_hi OR t_first_ms < prev_t OR t_last_ms < prev_t THEN 1 ELSE 0 END AS back
  FROM ordered),
measured AS (
  SELECT *, coalesce(t_first_ms - since >= gap_ms, FALSE) AS between_two,
    CASE WHEN {inside} THEN greatest(gap_ms, coalesce(t_first_ms - since, gap_ms)) END AS ms FROM waiting),
ranked AS (
  SELECT *, row_number() OVER (PARTITION BY consumer_group, topic, part ORDER BY ms DESC NULLS LAST, t_first_ms, seq, member) AS place,
    max(back) OVER (PARTITION BY consumer_group, topic, part) AS goes_back
  FROM measured)
SELECT consumer_group, topic, part, goes_back, ms, CASE WHEN between_two THEN since ELSE t_last_ms - gap_ms END AS from_ms,
  CASE WHEN between_two THEN prev_member ELSE member END AS member_before, member AS member_after
FROM ranked WHERE place = 1"""
    return _about(text, (Pile.DELIVERY,), "consumer_group topic part goes_back ms from_ms member_before member_after")


# For pictures of what happened when: everything, or what says who owned what and how long producers waited.
EVENT_COUNT: Final = "SELECT count(*) AS n FROM events WHERE nth = 0"
ALL_LINES: Final = "SELECT line FROM events WHERE nth = 0 AND pile NOT IN ('refused', 'version')"
FEW_LINES: Final = "SELECT line FROM events WHERE nth = 0 AND pile IN ('control', 'latency')"


# Records: the same questions in whole numbers. Spark's quick hash map adds keys up and looks at two slots, so that small numbers
# side by side fall on each other, and what finds no slot takes twice the time: 84 % of the rows by member and bucket, 54 % by topic
# and partition. One number for a key is its own slot; of several the one that spreads most comes first.

NAMES: Final = "SELECT kind, id, name, consumer_group FROM names"

# Within a chain offset and number differ by `base`, so only one of them is looked at row by row.
_RECORD_CHAINS: Final = f"""
SELECT tid, part, mid, o_lo, o_hi, total, o_lo - base AS seq_lo, o_hi - base + 1 AS seq_end, chain, t_lo, t_hi
FROM (SELECT tid, part, mid, pos - seq AS base, min(pos) AS o_lo, max(pos) AS o_hi, count(*) AS total,
    CAST(sum({mix_sql("seq + 1")} - {mix_sql("seq")}) AS BIGINT) AS chain, min(t_ms) AS t_lo, max(t_ms) AS t_hi
  FROM {{}} GROUP BY pos - seq, part, tid, mid) AS chains"""
RECORD_CHAINS: Final = _RECORD_CHAINS.format("records")
ARRIVING_CHAINS: Final = _RECORD_CHAINS.format("arriving")

# Of a chain that grew from batch to batch the longest.
GROWN_CHAINS: Final = """
SELECT tid, part, mid, o_lo, o_hi, total, seq_lo, seq_end, chain, t_lo, t_hi
FROM (SELECT *, row_number() OVER (PARTITION BY tid, part, mid, o_lo - seq_lo ORDER BY total DESC) AS place FROM grown) AS ranked
WHERE place = 1"""

LOG_EXTENTS: Final = "SELECT tid, part, min(pos) AS o_lo, max(pos) AS o_hi, count(*) AS total FROM log GROUP BY part, tid"

RECORD_DELIVERED_AT: Final = """
SELECT /*+ BROADCAST(asked) */ asked.id AS id, min(records.t_ms) AS t_ms
FROM records JOIN asked ON records.tid = asked.tid AND records.part = asked.part AND records.mid = asked.mid AND records.pos = asked.pos
GROUP BY asked.id"""


def record_rows(partitions: Iterable[tuple[int, int]]) -> str:
    """Every record of some partitions (topic id, partition)."""
    return f"SELECT tid, part, mid, pos, seq, t_ms FROM records WHERE {_among(partitions)}"


def log_sums(partitions: Iterable[tuple[int, int]]) -> str:
    """What the log holds in each of the attached `spans`, as far as it can be told without the records."""
    return f"""
SELECT /*+ BROADCAST(spans) */ spans.id AS id, min(log.pos) AS o_lo, max(log.pos) AS o_hi, count(*) AS total,
  CAST(sum({mix_sql("log.pos + 1")} - {mix_sql("log.pos")}) AS BIGINT) AS chain
{_log_in_spans(partitions)} GROUP BY spans.id"""


def log_rows(partitions: Iterable[tuple[int, int]]) -> str:
    """What the log holds in the attached `spans`, offset by offset."""
    return f"SELECT /*+ BROADCAST(spans) */ spans.id AS id, log.pos AS pos {_log_in_spans(partitions)}"


def _log_in_spans(partitions: Iterable[tuple[int, int]]) -> str:
    """Spans lie within blocks (`LOG_BLOCK_BITS`): a record is compared with those of its block, not with all of its partition."""
    return f"""
FROM log JOIN spans ON {_spot_sql("log")} = spans.spot AND {_is_of("log.tid", "spans.tid")} AND {_is_of("log.part", "spans.part")}
  AND log.pos BETWEEN spans.o_lo AND spans.o_hi
WHERE {_among(partitions, "log.")}"""


def _spot_sql(table: str) -> str:
    return f"(((({table}.pos >> {LOG_BLOCK_BITS}) & {_BLOCKS}) * 1000003) + CAST({table}.part AS BIGINT) * 1009 + {table}.tid)"


def spot(tid: Ints, part: Ints, block: Ints) -> Ints:
    """One number for three, as `_spot_sql` has it: Spark finds a row by one number at once, by three only through a row made of them.

    Different ones may meet in a number, so they are compared besides.
    """
    found: Ints = (block & _BLOCKS) * 1_000_003 + part.astype(np.int64) * 1_009 + tid
    return found


def _is_of(one: str, other: str) -> str:
    """They are equal, said so that Spark does not join by it."""
    return f"{one} BETWEEN {other} AND {other}"


def record_times(partitions: Iterable[tuple[int, int]]) -> str:
    """When the records of the attached `spans` were delivered."""
    return f"""
SELECT /*+ BROADCAST(spans) */ spans.id AS id, min(records.t_ms) AS t_lo, max(records.t_ms) AS t_hi
FROM records JOIN spans ON records.tid = spans.tid AND records.part = spans.part AND records.mid = spans.mid
  AND records.pos BETWEEN spans.o_lo AND spans.o_hi AND records.t_ms BETWEEN spans.t_lo AND spans.t_hi
WHERE {_among(partitions, "records.")} GROUP BY spans.id"""


def record_latencies() -> str:
    """How many records of a member had a latency in a bucket of `core.latency`; `bucket` is mid * `LATENCY_STRIDE` + that bucket.

    Latencies of two years and more count as two years, so that a member's buckets end before the next one's begin.
    """
    buckets = " ".join(f"WHEN us < {128 << shift} THEN {64 * shift} + (us >> {shift})" for shift in range(39))
    return f"""
SELECT bucket, count(*) AS n
FROM (SELECT CAST(mid AS BIGINT) * {LATENCY_STRIDE} + CASE {buckets} ELSE {64 * 39} + (us >> 39) END AS bucket
  FROM (SELECT mid, least(greatest(latency_us, CAST(0 AS BIGINT)), {(1 << 46) - 1}) AS us FROM records) AS clipped) AS measured
GROUP BY bucket"""


def _among(partitions: Iterable[tuple[int, int]], table: str = "") -> str:
    """Literal, so that Parquet's row groups of other partitions are not even opened; DuckDB leaves them out by the list alone."""
    pairs = sorted(partitions)
    if not pairs:
        return "FALSE"
    every = ", ".join(str(part) for part in sorted({part for _, part in pairs}))
    terms = (
        f"({table}tid = {tid} AND {table}part IN ({', '.join(str(part) for _, part in parts)}))"
        for tid, parts in groupby(pairs, key=lambda pair: pair[0])
    )
    return f"({table}part IN ({every}) AND ({' OR '.join(terms)}))"
