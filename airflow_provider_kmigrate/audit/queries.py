"""The audit's questions, and the engine that answers them: plain SQL that Spark and the tests' oracle read alike.

Names avoid words that either dialect reserves. Sums are cast, because not every dialect keeps a sum of whole numbers one. Views:
`events` (`sources.EVENTS`), small tables attached for one question (`writers`, `owned`, `wanted`), and what `audit.settling` attaches:
`everything`, `read_before` and `arrivals` (also `EVENTS`), `settled_runs`, `settled_claims`, `settled_names`.
"""

# ruff: noqa: S608  # only numbers of ours are put into the texts

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias

import pyarrow as pa

from airflow_provider_kmigrate.core.ledger.health import SLOT_MS, STEADY_SLOTS

Data: TypeAlias = "pa.Table | str | tuple[str, ...]"  # in memory, or a folder or files of Parquet as `sources.EVENTS` has it


class Engine(Protocol):
    """Answers questions about attached data. The text of a question is the same for all engines.

    Functions may run in other processes, with all that they refer to. Every method raises `Failed` with the engine's own words.
    """

    def attach(self, view: str, data: Sequence[Data]) -> None:
        """Attach everything in `data` under a name; replaces an earlier one."""

    def ask(self, question: str) -> pa.Table:
        """The answer, whole."""

    def count_records_from(self, bucket: int) -> str:
        """SQL for how many records of a delivery's `latency` are in this bucket or a later one: of lists, dialects have not one word in common."""

    def apply_by_key(
        self, question: str, keys: Sequence[str], function: Callable[[pa.Table], pa.Table], answer: pa.Schema
    ) -> pa.Table:
        """Apply the function to all rows with the same keys, in parallel."""


# The first of the longest waits is found by one number: its length, then its place among so many.
_LONGEST_MS, _RUNS = 1 << 33, 1 << 29
_BOUNDED_MS: Final = f"greatest(least(ms, {_LONGEST_MS}), -{_LONGEST_MS})"  # an event may name any wait, also less than none
_EVENTS: Final = "row_kind NOT IN ('refused', 'version')"
# The columns hold all that is read of the event; of the others `line` does.
_WHOLE: Final = "(row_kind IN ('delivery', 'ack', 'commit') OR (row_kind = 'sign' AND t_last_ms IS NOT NULL))"

CONTROL: Final = "SELECT row_kind, line, why, t_ms FROM events WHERE row_kind IN ('control', 'refused', 'version')"

# Of each writer how many numbers there are, in how many rows: with every number from 0 to the last, once, its account is whole. The numbers
# are counted as bits of words, because a group for each of them costs ten times as much. `clock_lag_ms` is that of its last heartbeat.
WRITERS: Final = f"""
SELECT writer, min(t_lo) AS t_lo, max(t_hi) AS t_hi, max(last) AS last, CAST(sum(n) AS BIGINT) AS n,
  CAST(sum(bit_count(bits)) AS BIGINT) AS numbers, min(lowest) AS lowest, max_by(clock_lag_ms, beat) AS clock_lag_ms
FROM (
  SELECT writer, word, min(t_ms) AS t_lo, max(t_ms) AS t_hi, max(number) AS last, min(number) AS lowest, count(*) AS n, bit_or(bit) AS bits,
    max_by(clock_lag_ms, beat) AS clock_lag_ms, max(beat) AS beat
  FROM (
    SELECT writer, t_ms, number, number >> 5 AS word, CAST(1 AS BIGINT) << CAST(number & 31 AS INT) AS bit,
      CASE WHEN row_kind = 'sign' AND t_last_ms IS NOT NULL THEN number END AS beat, t_last_ms - t_ms AS clock_lag_ms
    FROM events WHERE nth = 0 AND {_EVENTS}) AS bits_of
  GROUP BY writer, word) AS words
GROUP BY writer"""
NEW_WRITERS: Final = WRITERS.replace("FROM events", "FROM arrivals")
"""The same of the events that arrived since the last cut."""
# The group and member of each writer; `code` stands for the member in `delivered`.
NAMES: Final = """
SELECT DISTINCT writer, consumer_group, member, hash(member) AS code
FROM (SELECT writer, consumer_group, member FROM events UNION ALL SELECT writer, consumer_group, member FROM settled_names) AS named
WHERE consumer_group IS NOT NULL"""

# Of the attached writers the first number under which there is no event, below their last one.
FIRST_MISSING: Final = f"""
SELECT writer, min(number - step + 1) AS number
FROM (
  SELECT events.writer AS writer, number, number - lag(number, 1, CAST(-1 AS BIGINT)) OVER (PARTITION BY events.writer ORDER BY number) AS step
  FROM events JOIN writers ON events.writer = writers.writer WHERE nth = 0 AND {_EVENTS}) AS steps
WHERE step > 1 GROUP BY writer"""

# Of the attached writers how many numbers stand for two different events. What older releases did not write is not compared.
_SAID: Final = ", ".join(
    f"coalesce(CAST({name} AS STRING), '')"
    for name in (
        *("row_kind", "t_ms", "consumer_group", "member", "topic", "part", "lo", "hi", "n", "seq", "t_first_ms", "t_last_ms"),
        *("t_sent_ms", "gap_ms", "producer", "producer_seq", "wait_us"),
    )
)
CONFLICTS: Final = f"""
SELECT writer, count(DISTINCT number) AS number
FROM (
  SELECT writer, number FROM (
    SELECT events.writer AS writer, number, nth, CASE WHEN {_WHOLE} THEN concat_ws('|', {_SAID}) ELSE line END AS said
    FROM events JOIN writers ON events.writer = writers.writer WHERE {_EVENTS}) AS all_said
  GROUP BY writer, number, nth HAVING min(said) <> max(said)) AS differing
GROUP BY writer"""

# The partitions that the attached writers wrote of.
PLACES_OF_WRITERS: Final = """
SELECT DISTINCT topic, part FROM events JOIN writers ON events.writer = writers.writer WHERE row_kind IN ('delivery', 'ack', 'commit')"""

# The partitions with a delivery to a member outside its times of ownership, of groups that record ownership.
NOT_OWNED: Final = """
SELECT DISTINCT topic, part FROM events
WHERE row_kind = 'delivery' AND consumer_group IN (SELECT consumer_group FROM owned)
  AND NOT EXISTS (SELECT 1 FROM owned WHERE owned.consumer_group = events.consumer_group AND owned.member = events.member
    AND owned.topic = events.topic AND owned.part = events.part
    AND owned.t_lo <= events.t_first_ms AND events.t_last_ms <= owned.t_hi)"""


# Of each partition and producer what was acknowledged. `suspect`: offsets are not known, or two records claim one, or the producer's
# numbers do not go up. A claim is all that was said of records with the same difference between offset and number, which only unbroken
# ones have, so that its first and last offset are enough. A producer's settled records are one claim before all others (unclear: -1).
def acked_query(view: str = "events") -> str:
    """Of each partition and producer what was acknowledged, in the events of a view and in the settled ones."""
    return f"""
WITH claims AS (
  SELECT topic, part, producer, shift, min(lo) AS first, max(hi) AS last, min(acked_lo) AS acked_lo, max(acked_hi) AS acked_hi,
    CAST(sum(acked) AS BIGINT) AS acked, max(t_acked) AS t_hi, max(wait_us) AS stall_us,
    max(unclear) AS unclear
  FROM (
    SELECT topic, part, producer, lo - producer_seq AS shift, lo, hi, CASE WHEN lo < 0 OR hi - lo + 1 <> n THEN 1 ELSE 0 END AS unclear,
      CASE WHEN row_kind = 'ack' AND lo >= 0 THEN lo END AS acked_lo, CASE WHEN row_kind = 'ack' AND lo >= 0 THEN hi END AS acked_hi,
      CASE WHEN row_kind = 'ack' THEN n ELSE 0 END AS acked, CASE WHEN row_kind = 'ack' THEN t_last_ms END AS t_acked, wait_us
    FROM {view} WHERE row_kind = 'ack' OR (row_kind = 'delivery' AND producer IS NOT NULL)) AS reported
  GROUP BY topic, part, producer, shift
  UNION ALL SELECT topic, part, producer, shift, CAST(-1 AS BIGINT), last, acked_lo, acked_hi, acked, t_hi, stall_us, -1 FROM settled_claims),
ordered AS (
  SELECT *,
    max(last) OVER (PARTITION BY topic, part ORDER BY first, shift ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS high,
    max(last - shift) OVER (PARTITION BY topic, part, producer ORDER BY first, shift ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS number
  FROM claims)
SELECT topic, part, producer, min(acked_lo) AS acked_lo, max(acked_hi) AS acked_hi, CAST(sum(acked) AS BIGINT) AS acked, max(t_hi) AS t_hi,
  max(stall_us) AS stall_us, max(CASE WHEN unclear >= 0 AND (unclear = 1 OR first <= high OR first - shift <= number) THEN 1 ELSE 0 END) AS suspect,
  max(last - shift) AS number
FROM ordered GROUP BY topic, part, producer"""


ACKED: Final = acked_query()

# The deliveries of some writers, and their delay, for a canary.
LATENESS: Final = """
SELECT /*+ BROADCAST(writers) */ events.writer AS writer, events.t_last_ms AS t_last_ms, events.n AS n, events.latency AS latency
FROM events JOIN writers ON events.writer = writers.writer WHERE events.row_kind = 'delivery'"""

_EVENT_COLUMNS: Final = """events.topic AS topic, events.part AS part, row_kind, writer, number, t_ms, consumer_group, member, lo, hi, n, seq,
  t_first_ms, t_last_ms, t_sent_ms, gap_ms, producer, producer_seq, generation, wait_us"""

# Everything about the wanted partitions, as `partition_rows.check_rows` takes it.
EVENTS_OF: Final = f"""
SELECT /*+ BROADCAST(wanted) */ {_EVENT_COLUMNS}
FROM events JOIN wanted ON events.topic = wanted.topic AND events.part = wanted.part
WHERE row_kind IN ('delivery', 'ack', 'commit')"""


# The same of partitions that are judged whole.
ALL_EVENTS_OF: Final = EVENTS_OF.replace("FROM events JOIN", "FROM everything AS events JOIN")

# The least that new events say of what is settled, as `core.audit.settled.Arrived`.
ARRIVED: Final = """
SELECT topic, part, row_kind, consumer_group, writer, member, producer, min(lo) AS lo, min(t_first_ms) AS t_first_ms, min(t_ms) AS t_ms,
  min(seq) AS seq, min(producer_seq) AS producer_seq
FROM arrivals WHERE row_kind IN ('delivery', 'ack', 'commit') GROUP BY topic, part, row_kind, consumer_group, writer, member, producer"""

# What the cuts of reopened partitions left out of what was read before: these rows are read again.
REOPENED_ROWS: Final = """
SELECT /*+ BROADCAST(reopened) */ read_before.* FROM read_before JOIN reopened ON read_before.topic = reopened.topic AND read_before.part = reopened.part
WHERE row_kind IN ('delivery', 'ack', 'commit') AND hi <= cut_at"""


def ends_query(open_from_ms: int) -> str:
    """Of each partition and group how far it committed, and the first offset that events report which are not older than `open_from_ms`."""
    return f"""
SELECT topic, part, consumer_group, max(CASE WHEN row_kind = 'commit' THEN hi END) AS committed,
  min(CASE WHEN row_kind <> 'commit' AND t_ms >= {open_from_ms} THEN lo END) AS open_lo
FROM events WHERE row_kind IN ('delivery', 'ack', 'commit') GROUP BY topic, part, consumer_group"""


_SETTLED: Final = """(SELECT /*+ BROADCAST(cuts) */ events.* FROM events JOIN cuts ON events.topic = cuts.topic AND events.part = cuts.part
    WHERE row_kind IN ('delivery', 'ack', 'commit') AND hi <= cut_at) AS closed"""
SETTLED_ACKED: Final = acked_query(_SETTLED)
"""Of each partition with a new cut what its producers were acknowledged up to there."""

# What each member was delivered up to there.
SETTLED_MEMBERS: Final = f"""
SELECT topic, part, consumer_group, writer, member, CAST(sum(n) AS BIGINT) AS n, max(hi) AS hi
FROM {_SETTLED} WHERE row_kind = 'delivery' GROUP BY topic, part, consumer_group, writer, member"""

# What the next audit reads again: what came after the cuts, and what is read whole by each audit. `events` are here without what the store gives apart.
OPEN_ROWS: Final = """
SELECT /*+ BROADCAST(cuts) */ events.* FROM events LEFT JOIN cuts ON events.topic = cuts.topic AND events.part = cuts.part
WHERE row_kind IN ('control', 'refused', 'version') OR (row_kind IN ('delivery', 'ack', 'commit') AND (cut_at IS NULL OR hi > cut_at))"""


def settled_deliveries_query(skew_ms: int) -> str:
    """As `deliveries_query`, up to the new cuts."""
    return deliveries_query(skew_ms, _SETTLED)


def deliveries_query(skew_ms: int, view: str = "events") -> str:
    """Each group's and partition's deliveries and longest wait, as in `core.ledger` if offsets only go up.

    `suspect`: not every offset from `lo` to `hi` came once, in the order of offsets and time, counted by each member from 0, and
    before a commit of it. Commits count from `skew_ms` after they were made, because members' clocks differ. Deliveries with the
    same difference between offset and the member's count are one run: if offsets only go up, its length shows whether it is complete.
    Members are distinguished by a hash, which sorts quickly; two with the same one look as if offsets went back. `code_from` and
    `code`: the members before and after the longest wait. What is settled comes before all of it, a row for each member.
    """
    return f"""
WITH moves AS (
  SELECT hash(consumer_group, topic, part) AS reader, row_kind = 'delivery' AS came, row_kind = 'delivery' AS is_new,
    CASE WHEN row_kind = 'delivery' THEN t_first_ms ELSE t_ms + {skew_ms} END AS moment,
    consumer_group, topic, part, writer, member, lo, hi, n, seq, t_first_ms, t_last_ms, t_sent_ms, gap_ms
  FROM {view} WHERE row_kind IN ('delivery', 'commit')
  UNION ALL SELECT hash(consumer_group, topic, part), TRUE, FALSE, CAST(-1 AS BIGINT), consumer_group, topic, part, writer, member, lo, hi, n,
    CAST(0 AS BIGINT), CAST(NULL AS BIGINT), ended_ms, CAST(NULL AS BIGINT), CAST(0 AS BIGINT) FROM settled_runs),
walked AS (
  SELECT reader, consumer_group, topic, part, came, is_new, writer, member, hash(member) AS code, lo, hi, n, seq, t_first_ms, t_last_ms, t_sent_ms, gap_ms,
    count(*) OVER earlier AS runs_before, max(CASE WHEN came THEN hi END) OVER earlier AS high,
    max(CASE WHEN came THEN t_last_ms END) OVER earlier AS ended, max(CASE WHEN NOT came THEN hi END) OVER earlier AS committed,
    max_by(CASE WHEN came THEN hash(member) END, CASE WHEN came THEN lo END) OVER earlier AS code_before
  FROM moves
  WINDOW earlier AS (PARTITION BY reader ORDER BY moment, came DESC, seq, member ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)),
waiting AS (SELECT *, CASE WHEN ended IS NOT NULL THEN greatest(ended, coalesce(t_sent_ms, ended)) END AS since FROM walked WHERE is_new),
measured AS (
  SELECT *, coalesce(t_first_ms - since >= gap_ms, FALSE) AS between_two,
    greatest(gap_ms, coalesce(t_first_ms - since, gap_ms)) AS ms FROM waiting),
ranked AS (
  SELECT *, {_BOUNDED_MS} * {_RUNS} - runs_before AS place,
    CASE WHEN between_two THEN since ELSE t_last_ms - gap_ms END AS from_ms, CASE WHEN between_two THEN code_before ELSE code END AS code_from,
    CASE WHEN lo <> high + 1 OR t_first_ms < ended OR t_last_ms < t_first_ms OR lo <= committed OR hi - lo + 1 <> n THEN 1 ELSE 0 END AS fault
  FROM measured),
member_runs AS (
  SELECT reader, consumer_group, topic, part, writer, member, lo - seq AS base, min(lo) AS lo, max(hi) AS hi, CAST(sum(n) AS BIGINT) AS n,
    min(seq) AS seq_lo, max(seq + n) AS seq_end, max(t_last_ms) AS t_hi, max(fault) AS fault, max(ms) AS ms, max(place) AS place,
    max_by(from_ms, place) AS from_ms, max_by(code_from, place) AS code_from, max_by(code, place) AS code
  FROM ranked GROUP BY reader, consumer_group, topic, part, writer, member, lo - seq
  UNION ALL SELECT hash(consumer_group, topic, part), consumer_group, topic, part, writer, member, CAST(NULL AS BIGINT), lo, hi, n,
    CAST(0 AS BIGINT), n, ended_ms, 0, ms, {_BOUNDED_MS} * {_RUNS}, from_ms, hash(member_from), hash(member_to) FROM settled_runs),
counted AS (
  SELECT *, lag(seq_end, 1, CAST(0 AS BIGINT)) OVER (PARTITION BY consumer_group, topic, part, writer, member ORDER BY seq_lo) AS due FROM member_runs)
SELECT consumer_group, topic, part, min(lo) AS lo, max(hi) AS hi, CAST(sum(n) AS BIGINT) AS n, max(t_hi) AS t_hi,
  max(CASE WHEN fault = 1 OR seq_lo <> due OR seq_end - seq_lo <> n THEN 1 ELSE 0 END) AS suspect, max(ms) AS ms,
  max_by(from_ms, place) AS from_ms, max_by(code_from, place) AS code_from, max_by(code, place) AS code
FROM counted GROUP BY consumer_group, topic, part"""


def ack_slots_query(since: int, view: str = "events") -> str:
    """The stretches of time, before the step that began then, in which a record of a producer's partition was acknowledged."""
    return f"""
SELECT DISTINCT producer, topic, part, CAST(floor(t_last_ms / {SLOT_MS}) AS BIGINT) AS slot
FROM {view} WHERE row_kind = 'ack' AND t_last_ms < {since} AND t_last_ms >= {since - STEADY_SLOTS * SLOT_MS}"""
