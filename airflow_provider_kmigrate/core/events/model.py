"""The vocabulary of the delivery audit: what clients recorded about sending, receiving, committing and owning; and latency buckets.

Clients write events; `core.ledger` and the Spark audit read them. One event is one JSON object on one line
(`core.events.lines`)::

    {"v":2,"kind":"delivery","writer":"load.g1.0-5c1e","event_seq":17,"t_ms":1795241479346,"group":"g1",...}

**Runs.** Nothing is written per record. A run is what one poll delivered of one partition, or what one producer had acknowledged
of one partition within about a second (Kafka's own VerifiableConsumer reports like this). A writer that sees every record breaks
its runs at every gap, so that offsets and numbers within a run are consecutive and `offset - seq` is the same for all of it:
islands are then a plain aggregate, and a lost event shows as a hole in `seq` instead of as a lost record.

**Health.** A writer is one incarnation of a process. It numbers all its events from 0 without a gap (`event_seq`), begins with
`Start`, repeats `Heartbeat` and ends with `Stop`. A writer with a missing number or `Stop` proves nothing about what it did not
report. `Expect` names the writers that must appear at all.

**Time.** `*_ms` are milliseconds since the epoch on the writer's steady clock: its wall clock at start, carried on by its
monotonic clock, so a stepped wall clock moves no event. Heartbeats carry the wall clock, to compare machines. Latencies are
microseconds, `*_us`. Ownership needs no clock: all members of a group append to one log, and `position` is the place in it.

**Latencies** are whole microseconds in buckets that every engine computes alike. A bucket is an integer function of the value (no
logarithm), so Python, Spark and SQL agree. Values below 128 each have their own; above that there are 64 buckets to an octave. A
bucket's middle is within 0.79 % of every value in it.

A change that an old reader would misunderstand raises `SCHEMA_VERSION`; a reader refuses versions that it does not know.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

Histogram = tuple[tuple[int, int], ...]  # (bucket, count), ascending buckets, no empty ones

_SUB_BITS = 6
_SUB = 1 << _SUB_BITS


def latency_bucket(value: int) -> int:
    """The bucket of a latency in microseconds; negative values (a clock stepped back) count as 0."""
    value = max(value, 0)
    shift = max(0, value.bit_length() - _SUB_BITS - 1)
    return _SUB * shift + (value >> shift)


def bucket_middle(number: int) -> float:
    """The middle of a bucket in microseconds."""
    shift = max(0, number // _SUB - 1)
    return float(((number - _SUB * shift) << shift) + ((1 << shift) - 1) / 2)


def build_histogram(values: Iterable[int]) -> Histogram:
    """Latencies in microseconds as counts of buckets."""
    return tuple(sorted(Counter(map(latency_bucket, values)).items()))


def merge_histograms(histograms: Iterable[Histogram]) -> Histogram:
    """The histogram of everything that went into any of them."""
    total: Counter[int] = Counter()
    for counts in histograms:
        for number, count in counts:
            total[number] += count
    return tuple(sorted(total.items()))


def bucket_quantile(counts: Histogram, share: float) -> float | None:
    """The smallest value that at least `share` of all do not exceed (nearest rank), to within 0.79 %; None if there are none."""
    number = counted_quantile(counts, share)
    return None if number is None else bucket_middle(number)


def counted_quantile(counts: Sequence[tuple[int, int]], share: float) -> int | None:
    """The same, exactly, for ascending values, each with its count."""
    remaining_rank = _nearest_rank(sum(count for _, count in counts), share)
    for value, count in counts:
        remaining_rank -= count
        if remaining_rank <= 0:
            return value
    return None


def _nearest_rank(size: int, share: float) -> int:
    """From 1. In whole ten-thousandths: as doubles, 0.999 * 1000 may come out above 999 and name the next value."""
    return max(1, -(-size * round(share * 10_000) // 10_000))


SCHEMA_VERSION: Final = 2
UNKNOWN_OFFSET: Final = -1  # acknowledged, but the broker did not report where (a duplicate sequence number, KIP-98)


class Stamp(NamedTuple):
    """Who wrote an event, as which of its events (counted from 0), when."""

    writer: str
    event_seq: int
    t_ms: int


class TopicPartition(NamedTuple):
    """A topic by name, a partition by number from 0."""

    topic: str
    partition: int

    @property
    def name(self) -> str:
        """As messages write it."""
        return f"{self.topic}-{self.partition}"


class Position(NamedTuple):
    """A committed offset: the next one to be read."""

    topic: str
    partition: int
    offset: int


class SlowRecord(NamedTuple):
    """One record whose acknowledgement took long. `offset` is `UNKNOWN_OFFSET` if there is none."""

    topic: str
    partition: int
    offset: int
    seq: int
    t_sent_ms: int
    latency_us: int


class WriterRole(StrEnum):
    """What a writer of events is."""

    PRODUCER = "producer"
    CONSUMER = "consumer"
    CONTROL = "control"  # starts and stops the others, reads the logs' extents


class OwnershipChange(StrEnum):
    """`acquired` is written before the first poll of the partitions, `released` after the last commit, `lost` when found out."""

    ACQUIRED = "acquired"
    RELEASED = "released"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Event:
    """The base of all events that clients record."""

    stamp: Stamp

    def flaw(self) -> str | None:
        """What contradicts itself in this event; None if nothing."""
        return "event_seq counts from 0" if self.stamp.event_seq < 0 else None


@dataclass(frozen=True, slots=True)
class Start(Event):
    """A writer begins, or a consumer subscribes again: then it is a later event, and what it subscribed to before still counts.

    `topics` are names, or patterns if they begin with `^`: what a consumer must be delivered.

    `reset`: a group with no committed offset starts at the `earliest` or at the `latest` record.
    """

    role: WriterRole
    group: str | None = None
    topics: tuple[str, ...] = ()
    reset: str = "earliest"


@dataclass(frozen=True, slots=True)
class Heartbeat(Event):
    """A sign that the writer runs. `wall_ms`: its machine's clock, in ms since the epoch."""

    wall_ms: int


@dataclass(frozen=True, slots=True)
class Stop(Event):
    """A writer's last event. Not `clean`: it could not write down everything, for the reason given."""

    clean: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Expect(Event):
    """These writers were started; one that never appears was lost with all that it observed."""

    writers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Remark(Event):
    """Something that explains other events: a recovery, a retry. `code` is stable."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Ownership(Event):
    """A member took or gave up partitions. `position` orders the group's ownership events; None: only time can.

    `until_ms`: when ownership ended, if a suspended or isolated member found the loss out late. Before that no other member could
    have the partitions, and none of their deliveries came later. None: the ownership ended with this event.

    `starts`: for each acquired partition the offset at which the member begins, as the group had committed it, or
    `UNKNOWN_OFFSET`; empty: not reported.
    """

    group: str
    member: str
    generation: int | None
    change: OwnershipChange
    partitions: tuple[TopicPartition, ...]
    position: int | None = None
    until_ms: int | None = None
    starts: tuple[int, ...] = ()

    def flaw(self) -> str | None:
        """Starts that do not fit the partitions, or an end that only a loss may have."""
        if self.starts and (self.change is not OwnershipChange.ACQUIRED or len(self.starts) != len(self.partitions)):
            return "each acquired partition has exactly one start, and no other partition has one"
        if self.until_ms is not None and (self.change is not OwnershipChange.LOST or self.until_ms > self.stamp.t_ms):
            return "only a loss has its own end, and not later than its discovery"
        return Event.flaw(self)


@dataclass(frozen=True, slots=True)
class DeliveryRun(Event):
    """Records of one partition that one poll handed to the application, in the order of their offsets.

    `seq` counts this member's deliveries of this partition from 0; it is the number of the run's first record. `producer` and
    `producer_seq` (first record's; consecutive) say whose records these are, if the consumer knows. `t_sent_ms` is when the first
    record was sent; `gap_ms` the longest time within the run that a sent record waited while nothing came. `latency` is from sent
    to delivered.
    """

    group: str
    member: str
    generation: int | None
    topic: str
    partition: int
    first: int
    last: int
    count: int
    seq: int
    t_first_ms: int
    t_last_ms: int
    t_sent_ms: int | None = None
    gap_ms: int = 0
    producer: str | None = None
    producer_seq: int | None = None
    latency: Histogram = ()

    @property
    def is_exact(self) -> bool:
        """Each offset from first to last was delivered once; else only how many records they were is known."""
        return self.count == self.last - self.first + 1

    def flaw(self) -> str | None:
        """Offsets out of order, a number of records that cannot be, or producer numbers of a run with gaps."""
        if not (0 <= self.first <= self.last and self.count >= 1 and self.seq >= 0):
            return "a run has a first record, a last one not before it, and counts from 0"
        if (self.producer is None) != (self.producer_seq is None):
            return "producer and producer_seq come together"
        if self.producer is not None and not self.is_exact:
            return "only a run without gaps shows its records' numbers"
        return Event.flaw(self)


@dataclass(frozen=True, slots=True)
class Ack(Event):
    """Records of one producer that the brokers acknowledged: consecutive offsets with consecutive numbers.

    A producer numbers its records of each partition upwards. `first` and `last` are `UNKNOWN_OFFSET` if the broker did not report
    them. `t_sent_ms` (first record) and `latency` are None and empty if the client does not know.
    """

    producer: str
    topic: str
    partition: int
    first: int
    last: int
    count: int
    seq_first: int
    seq_last: int
    t_sent_ms: int | None
    t_acked_ms: int
    latency_max_us: int | None = None
    latency: Histogram = ()

    @property
    def has_offsets(self) -> bool:
        """Whether the offsets are known."""
        return self.first != UNKNOWN_OFFSET

    def flaw(self) -> str | None:
        """Numbers or offsets that are not consecutive."""
        if self.count < 1 or self.seq_last - self.seq_first != self.count - 1:
            return "an ack's numbers are consecutive"
        if self.has_offsets and (self.first < 0 or self.last - self.first != self.count - 1):
            return "an ack's offsets are consecutive"
        if not self.has_offsets and self.last != UNKNOWN_OFFSET:
            return "an ack has both offsets or neither"
        return Event.flaw(self)


@dataclass(frozen=True, slots=True)
class SendFailure(Event):
    """Records that the client gave up on. They may be in the log nevertheless."""

    producer: str
    topic: str
    partition: int
    seq_first: int
    seq_last: int
    error: str
    t_sent_ms: int | None
    t_failed_ms: int

    def flaw(self) -> str | None:
        """Numbers that descend."""
        return "numbers ascend" if self.seq_last < self.seq_first else Event.flaw(self)


@dataclass(frozen=True, slots=True)
class Latencies(Event):
    """Each latency from sent to acknowledged or given up, for records that got there from `t_from_ms` to `stamp.t_ms`."""

    producer: str
    t_from_ms: int
    values_us: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Slow(Event):
    """Each record that took longer than `threshold_us`; it is in `Latencies` too."""

    producer: str
    threshold_us: int
    records: tuple[SlowRecord, ...]


@dataclass(frozen=True, slots=True)
class Commit(Event):
    """Offsets committed in one request; `ok` is the coordinator's answer for all of them."""

    group: str
    member: str
    generation: int | None
    offsets: tuple[Position, ...]
    ok: bool
    error: str | None = None


@dataclass(frozen=True, slots=True)
class LogExtent(Event):
    """What a partition's log held when it was read: offsets from `start` up to, not including, `end`.

    `compacted`: the broker may remove records between the two, so a missing one is no proof of loss.
    """

    topic: str
    partition: int
    start: int
    end: int
    compacted: bool = False

    def flaw(self) -> str | None:
        """Offsets that are negative or descend."""
        ordered = 0 <= self.start <= self.end
        return Event.flaw(self) if ordered else "a log starts at 0 or later and ends where it starts or later"


@dataclass(frozen=True, slots=True)
class LogMark:
    """A partition's log: offsets from `start` to before `end`; `leader_epoch` of its last record, `topic_id` if known.

    `unread` says why nothing could be read, such as a missing leader; offsets are 0 then. `retention_ms`, `retention_bytes`: the
    limits beyond which its beginning is removed, -1: none, None: unknown. `newest_ms`: the latest timestamp of a record in it,
    from which retention counts; None: not reported, or there is none.
    """

    start: int = 0
    end: int = 0
    leader_epoch: int | None = None
    topic_id: str | None = None
    compacted: bool = False
    unread: str = ""
    retention_ms: int | None = None
    retention_bytes: int | None = None
    newest_ms: int | None = None
