"""How long producers waited for acknowledgements, whole or within a window of time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from airflow_provider_kmigrate.core import latency
from airflow_provider_kmigrate.core.events import Ack, Event, Latencies, SendFailure, Slow, SlowRecord
from airflow_provider_kmigrate.core.ledger.book import Book
from airflow_provider_kmigrate.core.ledger.facts import Case, Produce

STALL_US: Final = 100_000  # a record that waits longer is stalled


@dataclass(frozen=True, slots=True)
class AckTimes:
    """How long one producer's acknowledged records took: how many there are, and the latencies of those that have one.

    `longest_gap_ms`: of those without a latency the longest time between two acknowledgements of one partition.
    """

    records: int = 0
    buckets: latency.Histogram = ()
    longest_gap_ms: int | None = None

    @classmethod
    def of(cls, acks: Sequence[Ack]) -> AckTimes:
        untimed = [ack for ack in acks if not ack.latency]
        merged = latency.merge(ack.latency for ack in acks)
        return cls(sum(ack.count for ack in acks), merged, _longest_ack_gap(untimed))


def produce_facts(book: Book, acked: Mapping[str, AckTimes], limit: int) -> Produce:
    """Everything that the producers wrote. `acked`: by producer; the book has their latencies, slow records and failures."""
    told = Counter[str]()
    for event in book.latencies:
        told[event.producer] += len(event.values_us)
    values = Counter(value for event in book.latencies for value in event.values_us)
    others = [times for producer, times in acked.items() if producer not in told]
    for number, count in latency.merge(times.buckets for times in others):
        values[round(latency.middle(number))] += count
    gaps = [times.longest_gap_ms for times in others if times.longest_gap_ms is not None]
    exact = not any(times.records for times in others) and told == _owed(acked, book.failures)
    return _produce(values, _worst(book.slow, limit), exact=exact, gap=max(gaps, default=None))


def ack_times(acks: Iterable[Ack]) -> dict[str, AckTimes]:
    """By producer."""
    found: dict[str, list[Ack]] = defaultdict(list)
    for ack in acks:
        found[ack.producer].append(ack)
    return {producer: AckTimes.of(mine) for producer, mine in found.items()}


def produce_between(events: Sequence[Event], start_ms: int, end_ms: int, limit: int = 20) -> Produce:
    """The records sent from `start_ms` up to `end_ms`: for the stall of one restart or election.

    Exact above the threshold at which records are noted one by one. Below it a record counts by the second in which it was
    acknowledged, which moves quantiles a little and the longest latency not at all.
    """
    slow = list(_slow_between((event for event in events if isinstance(event, Slow)), start_ms, end_ms))
    values = [record.latency_us for one in slow for record in one.records]
    threshold = min((event.threshold_us for event in slow), default=STALL_US)
    for event in events:
        if isinstance(event, Latencies) and start_ms <= (event.t_from_ms + event.stamp.t_ms) / 2 < end_ms:
            values += [value for value in event.values_us if value <= threshold]
    return _produce(Counter(values), _worst(slow, limit), exact=False, gap=None)


def _produce(counted: Counter[int], worst: tuple[Case, ...], *, exact: bool, gap: int | None) -> Produce:
    """`counted`: how many records had each latency."""
    counts = tuple(sorted(counted.items()))
    top, p999 = latency.counted_quantile(counts, 1.0), latency.counted_quantile(counts, 0.999)
    stalled = [(value, count) for value, count in counts if value > STALL_US]
    return Produce(
        records=sum(count for _, count in counts),
        longest_ms=None if top is None else top / 1000,
        p999_ms=None if p999 is None else p999 / 1000,
        stalled_record_s=sum(value * count for value, count in stalled) / 1_000_000,
        slow_records=sum(count for _, count in stalled),
        exact=exact,
        worst=worst,
        longest_ack_gap_ms=gap,
    )


def _owed(acked: Mapping[str, AckTimes], failures: Iterable[SendFailure]) -> Counter[str]:
    """Of each producer, how many latencies there must be."""
    owed = Counter({producer: times.records for producer, times in acked.items()})
    for failure in failures:
        owed[failure.producer] += failure.seq_last - failure.seq_first + 1
    return owed


def _worst(slow: Iterable[Slow], limit: int) -> tuple[Case, ...]:
    rows = [(record, event.producer) for event in slow for record in event.records]
    rows.sort(key=lambda row: (-row[0].latency_us, row))
    return tuple(_case(record, producer) for record, producer in rows[:limit])


def _case(record: SlowRecord, producer: str) -> Case:
    offset, seq, sent = record.offset, record.seq, record.t_sent_ms
    return Case(
        record.topic,
        record.partition,
        offset,
        offset,
        1,
        producer=producer,
        seq_first=seq,
        seq_last=seq,
        from_ms=sent,
        to_ms=sent + record.latency_us // 1000,
    )


def _slow_between(slow: Iterable[Slow], start_ms: int, end_ms: int) -> Iterator[Slow]:
    for event in slow:
        inside = tuple(record for record in event.records if start_ms <= record.t_sent_ms < end_ms)
        yield Slow(event.stamp, event.producer, event.threshold_us, inside)


def _longest_ack_gap(acks: Sequence[Ack]) -> int | None:
    """The longest time between two acknowledgements of one producer and partition."""
    longest: int | None = None
    last: dict[tuple[str, str, int], int] = {}
    for ack in sorted(acks, key=lambda ack: ack.t_acked_ms):
        key = (ack.producer, ack.topic, ack.partition)
        if key in last:
            longest = max(longest or 0, ack.t_acked_ms - last[key])
        last[key] = ack.t_acked_ms
    return longest
