"""What is asked of an engine: plain SQL that Spark and the tests' oracle read alike.

Names avoid words that either dialect reserves. Sums are cast, because not every dialect keeps a sum of whole numbers one. Views: `events`
(`schema`), and small tables attached for one question: `writers`, `owned`, `wanted`.
"""

# ruff: noqa: S608  # what is put into the texts are numbers of ours, never words of others

from __future__ import annotations

from typing import Final

from airflow_provider_kmigrate.core.ledger.health import SLOT_MS, STEADY_SLOTS

_LONGEST_MS, _RUNS = (
    1 << 33,
    1 << 29,
)  # the first of the longest waits is found by one number: its length, then its place among so many
_EVENTS: Final = "pile NOT IN ('refused', 'version')"

CONTROL: Final = "SELECT pile, line, why, t_ms FROM events WHERE pile IN ('control', 'refused', 'version', 'latency')"

# Of each writer whether its numbers are whole: every one from 0 to the last, once. `clock_lag_ms` is that of its last heartbeat.
WRITERS: Final = f"""
SELECT writer, min(t_ms) AS t_lo, max(t_ms) AS t_hi, max(number) AS last, CAST(sum(greatest(step - 1, 0)) AS BIGINT) AS missing,
  min(CASE WHEN step > 1 THEN number - step + 1 END) AS first_missing,
  CAST(sum(CASE WHEN step = 0 THEN 1 ELSE 0 END) AS BIGINT) AS repeated, max_by(clock_lag_ms, beat) AS clock_lag_ms
FROM (
  SELECT writer, number, t_ms, number - lag(number, 1, CAST(-1 AS BIGINT)) OVER (PARTITION BY writer ORDER BY number) AS step,
    CASE WHEN pile = 'sign' AND t_last_ms IS NOT NULL THEN number END AS beat, t_last_ms - t_ms AS clock_lag_ms
  FROM events WHERE nth = 0 AND {_EVENTS}) AS steps
GROUP BY writer"""
GROUPS_OF_WRITERS: Final = "SELECT DISTINCT writer, consumer_group FROM events WHERE consumer_group IS NOT NULL"

# Of the attached writers how many numbers stand for two different events.
CONFLICTS: Final = f"""
SELECT writer, count(*) AS n
FROM (
  SELECT events.writer AS writer, events.number AS number FROM events JOIN writers ON events.writer = writers.writer
  WHERE nth = 0 AND {_EVENTS} GROUP BY events.writer, events.number HAVING min(line) <> max(line)) AS differing
GROUP BY writer"""

# The partitions that the attached writers wrote of.
PLACES_OF_WRITERS: Final = """
SELECT DISTINCT topic, part FROM events JOIN writers ON events.writer = writers.writer WHERE pile IN ('delivery', 'ack', 'commit')"""

# The partitions of which a member was delivered something outside the times at which it owned them, of groups that say what they own.
NOT_OWNED: Final = """
SELECT DISTINCT topic, part FROM events
WHERE pile = 'delivery' AND consumer_group IN (SELECT consumer_group FROM owned)
  AND NOT EXISTS (SELECT 1 FROM owned WHERE owned.consumer_group = events.consumer_group AND owned.member = events.member
    AND owned.topic = events.topic AND owned.part = events.part
    AND owned.t_lo <= events.t_first_ms AND events.t_last_ms <= owned.t_hi)"""

# Of each partition and producer what was acknowledged. `suspect`: offsets are not known, or two records claim one, or the producer's
# numbers do not go up. A claim is all that was said of records with the same difference between offset and number, which only unbroken
# ones have, so that its first and last offset are enough.
ACKED: Final = """
WITH claims AS (
  SELECT topic, part, producer, shift, min(lo) AS first, max(hi) AS last, min(acked_lo) AS acked_lo, max(acked_hi) AS acked_hi,
    CAST(sum(acked) AS BIGINT) AS acked, max(t_acked) AS t_hi, max(unclear) AS unclear
  FROM (
    SELECT topic, part, producer, lo - producer_seq AS shift, lo, hi, CASE WHEN lo < 0 OR hi - lo + 1 <> n THEN 1 ELSE 0 END AS unclear,
      CASE WHEN pile = 'ack' THEN lo END AS acked_lo, CASE WHEN pile = 'ack' THEN hi END AS acked_hi,
      CASE WHEN pile = 'ack' THEN n ELSE 0 END AS acked, CASE WHEN pile = 'ack' THEN t_last_ms END AS t_acked
    FROM events WHERE pile = 'ack' OR (pile = 'delivery' AND producer IS NOT NULL)) AS told
  GROUP BY topic, part, producer, shift),
ordered AS (
  SELECT *,
    max(last) OVER (PARTITION BY topic, part ORDER BY first, shift ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS high,
    max(last - shift) OVER (PARTITION BY topic, part, producer ORDER BY first, shift ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS number
  FROM claims)
SELECT topic, part, producer, min(acked_lo) AS acked_lo, max(acked_hi) AS acked_hi, CAST(sum(acked) AS BIGINT) AS acked, max(t_hi) AS t_hi,
  max(CASE WHEN unclear = 1 OR first <= high OR first - shift <= number THEN 1 ELSE 0 END) AS suspect
FROM ordered GROUP BY topic, part, producer"""

DELIVERY_LATENCIES: Final = "SELECT consumer_group, member, latency FROM events WHERE pile = 'delivery' AND latency IS NOT NULL"

# For a canary. Of each writer: from when to when it gave signs of life, and how many of its events there are.
LIVES: Final = f"""
SELECT writer, min(t_ms) AS t_lo, max(t_ms) AS t_hi, count(DISTINCT number) AS n, max(number) AS number_hi
FROM events WHERE nth = 0 AND {_EVENTS} GROUP BY writer"""

# What some writers were delivered, and how late.
LATENESS: Final = """
SELECT /*+ BROADCAST(writers) */ events.writer AS writer, events.t_last_ms AS t_last_ms, events.n AS n, events.latency AS latency
FROM events JOIN writers ON events.writer = writers.writer WHERE events.pile = 'delivery'"""

# Everything about the wanted partitions, as `partitions.check_rows` takes it.
EVENTS_OF: Final = """
SELECT /*+ BROADCAST(wanted) */ events.topic AS topic, events.part AS part, pile, writer, number, t_ms, consumer_group, member, lo, hi, n, seq,
  t_first_ms, t_last_ms, t_sent_ms, gap_ms, producer, producer_seq
FROM events JOIN wanted ON events.topic = wanted.topic AND events.part = wanted.part
WHERE pile IN ('delivery', 'ack', 'commit')"""

# For pictures of what happened when: everything, or what says who owned what and how long producers waited.
EVENT_COUNT: Final = "SELECT count(*) AS n FROM events WHERE nth = 0"
ALL_LINES: Final = f"SELECT line FROM events WHERE nth = 0 AND {_EVENTS}"
FEW_LINES: Final = "SELECT line FROM events WHERE nth = 0 AND pile IN ('control', 'latency')"


def delivered(skew_ms: int, window: tuple[int, int] | None) -> str:
    """Of each group and partition what was delivered, and the longest wait in the window, as `core.ledger` has it where nothing goes back.

    `suspect`: not every offset from `lo` to `hi` came once, in the order of offsets and time, counted by each member from 0, and before a
    commit of it. Commits count from `skew_ms` after they were made, because members' clocks differ.
    """
    inside = "TRUE" if window is None else f"t_first_ms >= {window[0]} AND t_first_ms < {window[1]}"
    return f"""
WITH moves AS (
  SELECT *, pile = 'delivery' AS came, CASE WHEN pile = 'delivery' THEN t_first_ms ELSE t_ms + {skew_ms} END AS place
  FROM events WHERE pile IN ('delivery', 'commit')),
walked AS (
  SELECT consumer_group, topic, part, came, member, lo, hi, n, t_first_ms, t_last_ms, t_sent_ms, gap_ms, count(*) OVER earlier AS runs_before,
    max(CASE WHEN came THEN hi END) OVER earlier AS high, max(CASE WHEN came THEN t_last_ms END) OVER earlier AS ended,
    max(CASE WHEN NOT came THEN hi END) OVER earlier AS committed,
    max_by(CASE WHEN came THEN member END, CASE WHEN came THEN lo END) OVER earlier AS member_before,
    seq - lag(seq + n, 1, CAST(0 AS BIGINT)) OVER (PARTITION BY consumer_group, topic, part, came, writer, member ORDER BY seq) AS uncounted
  FROM moves
  WINDOW earlier AS (PARTITION BY consumer_group, topic, part ORDER BY place, came DESC, seq, member
    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)),
waiting AS (SELECT *, CASE WHEN ended IS NOT NULL THEN greatest(ended, coalesce(t_sent_ms, ended)) END AS since FROM walked WHERE came),
measured AS (
  SELECT *, coalesce(t_first_ms - since >= gap_ms, FALSE) AS between_two,
    CASE WHEN {inside} THEN greatest(gap_ms, coalesce(t_first_ms - since, gap_ms)) END AS ms FROM waiting),
ranked AS (SELECT *, CASE WHEN ms IS NOT NULL THEN least(ms, {_LONGEST_MS}) * {_RUNS} - runs_before END AS place FROM measured)
SELECT consumer_group, topic, part, min(lo) AS lo, max(hi) AS hi, CAST(sum(n) AS BIGINT) AS n, max(t_last_ms) AS t_hi,
  max(CASE WHEN lo <> high + 1 OR t_first_ms < ended OR t_last_ms < t_first_ms OR lo <= committed OR uncounted <> 0 OR hi - lo + 1 <> n
    THEN 1 ELSE 0 END) AS suspect,
  max(ms) AS ms, max_by(CASE WHEN between_two THEN since ELSE t_last_ms - gap_ms END, place) AS from_ms,
  max_by(CASE WHEN between_two THEN member_before ELSE member END, place) AS member_before, max_by(member, place) AS member_after
FROM ranked GROUP BY consumer_group, topic, part"""


def ack_slots(since: int) -> str:
    """The stretches of time, before the step that began then, in which a record of a producer's partition was acknowledged."""
    return f"""
SELECT DISTINCT producer, topic, part, CAST(floor(t_last_ms / {SLOT_MS}) AS BIGINT) AS slot
FROM events WHERE pile = 'ack' AND t_last_ms < {since} AND t_last_ms >= {since - STEADY_SLOTS * SLOT_MS}"""


def _acks(*, once: bool) -> str:
    """Acknowledgements; where some were read again, each number `once`."""
    if not once:
        return "events WHERE pile = 'ack'"
    copies = "SELECT *, row_number() OVER (PARTITION BY writer, number ORDER BY line) AS copy FROM events WHERE pile = 'ack'"
    return f"({copies}) AS copies WHERE copy = 1"


def acked_records(*, once: bool) -> str:
    """How many records each producer had acknowledged."""
    return f"SELECT producer, CAST(sum(n) AS BIGINT) AS n FROM {_acks(once=once)} GROUP BY producer"


def ack_latencies(*, once: bool) -> str:
    """From sent to acknowledged, in buckets."""
    return f"SELECT producer, latency FROM {_acks(once=once)} AND latency IS NOT NULL"


def ack_gaps(*, once: bool) -> str:
    """Of acknowledgements without a latency, the longest time between two of one producer and partition."""
    return f"""
SELECT producer, max(t_last_ms - earlier) AS ms
FROM (SELECT producer, t_last_ms, lag(t_last_ms) OVER (PARTITION BY producer, topic, part ORDER BY t_last_ms) AS earlier
  FROM {_acks(once=once)} AND latency IS NULL) AS steps
GROUP BY producer"""
