"""Judges the records of one partition: which are in the log, how a group was delivered them, and which are lost.

- The log: acknowledgements and deliveries together show which producer's which record is at an offset.
- The walk through one group's deliveries in time: what came again, too late, or after its own commit; the gaps. Deliveries of one
  member are ordered by its own clock. Of two members' deliveries one counts as earlier only if it ended more than the clocks'
  skew before the other began. What a client hands out again by itself (`own_repeats`) is no redelivery by the group.
- The missing records: a record is delivered if a run with known numbers holds its producer's number, at whatever offset, or a run
  without numbers covers its offset. Gaps between offsets alone mean nothing: transaction markers, aborted and compacted records
  leave them too.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, takewhile
from typing import Final, NamedTuple

from airflow_provider_kmigrate.core.events import UNKNOWN_OFFSET, Ack, DeliveryRun, LogExtent, Stamp
from airflow_provider_kmigrate.core.intervals import Coverage, Span, clip, size, subtract, union
from airflow_provider_kmigrate.core.ledger.book import AcceptedCommit
from airflow_provider_kmigrate.core.ledger.facts import Case, Gap


class Piece(NamedTuple):
    """Consecutive offsets with consecutive records of one producer: record number = offset - shift."""

    first: int
    last: int
    producer: str
    shift: int

    @property
    def numbers(self) -> Span:
        """The first and last of the producer's own record numbers."""
        return self.first - self.shift, self.last - self.shift


@dataclass(slots=True)
class LogFlaws:
    """What is wrong with one partition's log."""

    diverged: list[Case] = field(default_factory=list)
    stored_twice: list[Case] = field(default_factory=list)
    reordered: list[Case] = field(default_factory=list)


def inspect(topic: str, partition: int, acks: Iterable[Ack], runs: Iterable[DeliveryRun]) -> LogFlaws:
    """Compares every statement about one partition's offsets with every other."""
    pieces = _pieces(_claims(acks, runs))
    flaws = LogFlaws(diverged=list(_diverged(topic, partition, pieces)))
    disputed = union((case.first, case.last) for case in flaws.diverged)
    by_producer: dict[str, list[Piece]] = defaultdict(list)
    for piece in _without(pieces, disputed) if disputed else pieces:
        by_producer[piece.producer].append(piece)
    for found in by_producer.values():
        _check_numbers(topic, partition, found, flaws)
    return flaws


def _claims(acks: Iterable[Ack], runs: Iterable[DeliveryRun]) -> Iterator[Piece]:
    for ack in acks:
        if ack.located:
            yield Piece(ack.first, ack.last, ack.producer, ack.first - ack.seq_first)
    for run in runs:
        if run.producer is not None and run.producer_seq is not None:
            yield Piece(run.first, run.last, run.producer, run.first - run.producer_seq)


def _pieces(claims: Iterable[Piece]) -> list[Piece]:
    """Joins claims that say the same; the result ascends, and pieces of one producer and shift do not touch."""
    joined: list[Piece] = []
    open_pieces: dict[tuple[str, int], int] = {}  # the place in `joined` of the newest piece of a producer and shift
    for claim in sorted(claims):
        at = open_pieces.get(claim[2:])
        if at is not None and claim.first <= joined[at].last + 1:
            if claim.last > joined[at].last:
                joined[at] = joined[at]._replace(last=claim.last)
            continue
        open_pieces[claim[2:]] = len(joined)
        joined.append(claim)
    return joined


def _diverged(topic: str, partition: int, pieces: Sequence[Piece]) -> Iterator[Case]:
    covered, widest = Coverage(), None
    for piece in pieces:
        span = (piece.first, piece.last)
        for twice in subtract([span], covered.add(span)):
            other = "" if widest is None else f"also number {twice[0] - widest.shift} of {widest.producer}"
            yield _case(topic, partition, piece, twice, other)
        if widest is None or piece.last > widest.last:
            widest = piece


def _without(pieces: Iterable[Piece], disputed: Sequence[Span]) -> Iterator[Piece]:
    """The pieces without contradictions: of two records at one offset neither comes after the other."""
    for piece in pieces:
        for first, last in subtract([(piece.first, piece.last)], disputed):
            yield piece._replace(first=first, last=last)


def _check_numbers(topic: str, partition: int, pieces: Sequence[Piece], flaws: LogFlaws) -> None:
    """Walks up the log: each number of the producer once, and each above the ones before it."""
    seen = Coverage()
    for piece in pieces:
        high = seen.high
        fresh = seen.add(piece.numbers)
        if high is None or piece.numbers[0] > high:
            continue
        for numbers in subtract([piece.numbers], fresh):
            flaws.stored_twice.append(_of_numbers(topic, partition, piece, numbers, "stored before at a lower offset"))
        for numbers in clip((fresh[0][0], high - 1), fresh) if fresh else ():
            flaws.reordered.append(_of_numbers(topic, partition, piece, numbers, f"stored after number {high}"))


def _of_numbers(topic: str, partition: int, piece: Piece, numbers: Span, note: str) -> Case:
    return _case(topic, partition, piece, (numbers[0] + piece.shift, numbers[1] + piece.shift), note)


def _case(topic: str, partition: int, piece: Piece, span: Span, note: str) -> Case:
    return Case(
        topic,
        partition,
        *span,
        span[1] - span[0] + 1,
        producer=piece.producer,
        seq_first=span[0] - piece.shift,
        seq_last=span[1] - piece.shift,
        note=note,
    )


REPEAT_RECORDS: Final = 1_000
"""How far back a client may go in a partition by itself, in records; what goes further back is a redelivery."""
REPEAT_MS: Final = 30_000
"""How long ago it may have handed the records out; brokers that restart may stop fetches for seconds."""


def own_repeats(runs: Iterable[DeliveryRun]) -> dict[Stamp, list[Span]]:
    """The offsets of each delivery that its client itself had just handed out, in the same generation of its group.

    Near changes of leaders clients fetch records again that they have in hand, and hand them out in two polls, one after the other.
    Neither the group nor a broker has any part in it: the member keeps its partition, and the records are the same. Only a step back
    within `REPEAT_RECORDS` and `REPEAT_MS` counts, of a member whose deliveries in between are all known: an offset that was reset
    goes further back.
    """
    members: dict[tuple[str, str], list[DeliveryRun]] = defaultdict(list)
    for run in runs:
        members[run.stamp.writer, run.member].append(run)
    return {run.stamp: spans for mine in members.values() for run, spans in _own_repeats(sorted(mine, key=lambda run: run.seq))}


def _own_repeats(runs: Iterable[DeliveryRun]) -> Iterator[tuple[DeliveryRun, list[Span]]]:
    unbroken: list[DeliveryRun] = []  # without a gap in the member's count, in one generation
    again: list[DeliveryRun] = []  # what it has gone back to
    for run in runs:
        if not unbroken or not _follows(unbroken[-1], run):
            unbroken, again = [], []
        elif run.first <= unbroken[-1].last:
            again = _gone_back_to(unbroken, run)
        spans = union((max(run.first, one.first), min(run.last, one.last)) for one in again if _shares(one, run))
        if spans:
            yield run, spans
        unbroken.append(run)


def _follows(earlier: DeliveryRun, run: DeliveryRun) -> bool:
    same = earlier.generation is not None and earlier.generation == run.generation
    return same and earlier.exact and run.exact and earlier.seq + earlier.count == run.seq


def _gone_back_to(unbroken: Sequence[DeliveryRun], run: DeliveryRun) -> list[DeliveryRun]:
    recent = list(takewhile(lambda one: run.t_first_ms - one.t_last_ms <= REPEAT_MS, reversed(unbroken)))
    back = max((one.last for one in recent), default=run.first) - run.first + 1
    return recent if back <= REPEAT_RECORDS else []


def _shares(one: DeliveryRun, run: DeliveryRun) -> bool:
    """Whether two deliveries have the same records at the same offsets, as far as their numbers are known."""
    if one.last < run.first or run.last < one.first:
        return False
    if one.producer is None or one.producer_seq is None or run.producer is None or run.producer_seq is None:
        return True
    return one.producer == run.producer and one.first - one.producer_seq == run.first - run.producer_seq


@dataclass(slots=True)
class Walk:
    """The findings of one walk. `client_repeats`: what a client handed out again by itself."""

    redelivered: list[Case] = field(default_factory=list)
    client_repeats: list[Case] = field(default_factory=list)
    reordered: list[Case] = field(default_factory=list)
    commit_gap: list[Case] = field(default_factory=list)
    gap: Gap | None = None
    last_ms: int | None = None  # when the last delivery ended


def walk(read: PartitionRead, skew_ms: int) -> Walk:
    """Walks through the deliveries of one partition to one group."""
    runs = sorted(read.runs, key=lambda run: (run.t_first_ms, run.seq, run.member))
    found, covered = Walk(), Coverage()
    order, again = _Order(runs, skew_ms), _Again(runs)
    committed_by = _committed(read.commits, skew_ms)
    previous: DeliveryRun | None = None
    for index, run in enumerate(runs):
        _note_gap(found, previous, run)
        committed = committed_by(run.t_first_ms)
        high = covered.high
        fresh = covered.add((run.first, run.last))
        if high is not None and run.first <= high:
            again.note(found, index, fresh)
            found.reordered += _late(run, fresh, order.behind(run))
        if committed > run.first:
            found.commit_gap += _early(run, fresh, committed)
        order.passed(run)
        if previous is None or run.t_last_ms >= previous.t_last_ms:
            previous = run
    found.last_ms = None if previous is None else previous.t_last_ms
    return found


def _sequence_case(run: DeliveryRun, span: Span, members: tuple[str, ...], note: str = "") -> Case:
    size = span[1] - span[0] + 1
    seq = None if run.producer_seq is None else run.producer_seq + span[0] - run.first
    return Case(
        run.topic,
        run.partition,
        *span,
        size,
        group=run.group,
        producer=run.producer,
        seq_first=seq,
        seq_last=None if seq is None else seq + size - 1,
        members=members,
        from_ms=run.t_first_ms,
        to_ms=run.t_last_ms,
        note=note,
    )


def _note_gap(found: Walk, previous: DeliveryRun | None, run: DeliveryRun) -> None:
    begin, length, members = run.t_last_ms - run.gap_ms, run.gap_ms, (run.member, run.member)
    if previous is not None:
        waited_from = max(previous.t_last_ms, previous.t_last_ms if run.t_sent_ms is None else run.t_sent_ms)
        if run.t_first_ms - waited_from >= length:
            begin, length, members = waited_from, run.t_first_ms - waited_from, (previous.member, run.member)
    if found.gap is None or length > found.gap.ms:
        found.gap = Gap(run.group, run.topic, run.partition, length, begin, begin + length, members)


class _Again:
    """Splits what is delivered again: by the group, or by the client itself."""

    def __init__(self, runs: Sequence[DeliveryRun]) -> None:
        self._runs = runs

    @cached_property
    def _own(self) -> Mapping[Stamp, list[Span]]:  # made when first needed: most partitions never do
        return own_repeats(self._runs)

    def note(self, found: Walk, index: int, fresh: Sequence[Span]) -> None:
        """Note what the run at `index` delivered again; `fresh` are its offsets that came for the first time."""
        run = self._runs[index]
        again, own = subtract([(run.first, run.last)], fresh), self._own.get(run.stamp, [])
        for span in subtract(again, own):
            before = (other.member for other in self._runs[:index] if other.first <= span[1] and other.last >= span[0])
            found.redelivered.append(_sequence_case(run, span, (next(before, ""), run.member)))
        for span in (part for each in again for part in clip(each, own)):
            found.client_repeats.append(
                _sequence_case(run, span, (run.member, run.member), "handed out twice by the client itself")
            )


def _late(run: DeliveryRun, fresh: Sequence[Span], behind: tuple[int, str]) -> Iterator[Case]:
    """The new records that should have come before earlier deliveries."""
    for span in clip((0, behind[0] - 1), fresh) if behind[0] > run.first else ():
        yield _sequence_case(run, span, (behind[1], run.member), f"delivered after offset {behind[0]}")


def _early(run: DeliveryRun, fresh: Sequence[Span], committed: int) -> Iterator[Case]:
    for span in clip((0, committed - 1), fresh):
        yield _sequence_case(run, span, (run.member,), f"offset {committed} had been committed before")


class _Order:
    """The highest offset certainly delivered before a run, and its member."""

    def __init__(self, runs: Sequence[DeliveryRun], skew_ms: int) -> None:
        self._runs, self._skew_ms = runs, skew_ms
        self._own: dict[str, int] = {}

    @cached_property
    def _ended(self) -> tuple[list[int], list[tuple[int, str]]]:  # made when first needed: most partitions never do
        by_end = sorted(self._runs, key=lambda run: (run.t_last_ms, run.last))
        highest = accumulate(((run.last, run.member) for run in by_end), max, initial=(-1, ""))
        return [run.t_last_ms for run in by_end], list(highest)

    def passed(self, run: DeliveryRun) -> None:
        """Remember the run's last offset as its member's."""
        self._own[run.member] = max(run.last, self._own.get(run.member, -1))

    def behind(self, run: DeliveryRun) -> tuple[int, str]:
        """The highest offset that was certainly delivered before the run, and the member that received it."""
        times, highest = self._ended
        others = highest[bisect_left(times, run.t_first_ms - self._skew_ms)]
        return max(others, (self._own.get(run.member, -1), run.member))


def _committed(commits: Iterable[AcceptedCommit], skew_ms: int) -> Callable[[int], int]:
    """The highest offset that the group had certainly committed before a time."""
    ordered = sorted(commits)
    times = [commit.t_ms for commit in ordered]
    highest = list(accumulate((commit.offset for commit in ordered), max, initial=-1))
    return lambda t_ms: highest[bisect_left(times, t_ms - skew_ms)]


INEXACT = "some of these, the run does not say which"


@dataclass(frozen=True, slots=True)
class PartitionRead:
    """All that is known of one partition as one group read it.

    `start`: where its first member that writes events began, None: not reported. `excused`: offsets that members which write no
    events may have been delivered.
    """

    group: str
    topic: str
    partition: int
    acks: Sequence[Ack]
    runs: Sequence[DeliveryRun]
    commits: Sequence[AcceptedCommit]
    extent: LogExtent | None = None
    from_latest: bool = False
    start: int | None = None
    excused: Sequence[Span] = ()

    @property
    def horizon(self) -> int:
        """The last offset that the group has passed: it was delivered it or committed beyond it; -1: none."""
        delivered = max((run.last for run in self.runs), default=-1)
        return max(delivered, max((commit.offset for commit in self.commits), default=0) - 1)

    @property
    def begins(self) -> int:
        """The first offset that was due to the group, as far as that is known."""
        if self.start is not None:
            return self.start
        return min((run.first for run in self.runs), default=0) if self.from_latest else 0


@dataclass(frozen=True, slots=True)
class Missing:
    """Undelivered acknowledged records: `lost` for sure, `unread` perhaps only not yet, `unclear` if runs do not say which."""

    lost: list[Case]
    unread: list[Case]
    unclear: list[Case]


def missing(read: PartitionRead) -> Missing:
    """Acknowledged records that the runs do not hold."""
    acked = union((ack.first, ack.last) for ack in read.acks if ack.located)
    covered, short, unclear = _by_offset(read, acked)
    judged = [part for case in _uncovered(read, acked, covered) for due in _due(read, case) for part in _judge(read, due)]
    lost = [part for part, is_lost in judged if is_lost]
    return Missing([*short, *lost], [part for part, is_lost in judged if not is_lost], unclear)


def _by_offset(read: PartitionRead, acked: list[Span]) -> tuple[list[Span], list[Case], list[Case]]:
    """Offsets that runs without numbers cover; runs with fewer records than acknowledged; runs that cannot show which."""
    anonymous = [run for run in read.runs if run.producer is None]
    short, unclear = [], []
    for run in anonymous:
        if run.count > run.last - run.first:
            continue
        due = size(clip((run.first, run.last), acked))
        # At most so many records of others may be among them, in place of as many of ours.
        others = run.last - run.first + 1 - due
        hidden = due - max(0, run.count - others)
        case = _coverage_case(read, run.first, run.last, due - run.count if due > run.count else hidden)
        case = replace(case, members=(run.member,), from_ms=run.t_first_ms, to_ms=run.t_last_ms, note=INEXACT)
        if due > run.count:
            short.append(case)
        elif hidden:
            unclear.append(case)
    return union((run.first, run.last) for run in anonymous), short, unclear


def skipped(read: PartitionRead) -> list[Case]:
    """Gaps between the deliveries, as far as no producer reported records in them."""
    delivered = union((run.first, run.last) for run in read.runs)
    whole = [(delivered[0][0], delivered[-1][1])] if delivered else []
    covered = union((ack.first, ack.last) for ack in read.acks if ack.located)
    return [_coverage_case(read, *span, size([span])) for span in subtract(subtract(whole, delivered), covered)]


def _coverage_case(read: PartitionRead, first: int, last: int, count: int) -> Case:
    return Case(read.topic, read.partition, first, last, count, group=read.group)


def _uncovered(read: PartitionRead, acked: list[Span], covered: list[Span]) -> Iterator[Case]:
    open_offsets = subtract(acked, covered)
    if not open_offsets and all(ack.located for ack in read.acks):
        return
    known = _numbers((run.producer, run.producer_seq, run.count) for run in read.runs)
    due = _numbers((ack.producer, ack.seq_first, ack.count) for ack in read.acks)
    for producer, numbers in sorted(due.items()):
        open_numbers = subtract(numbers, known.get(producer, ()))
        if not open_numbers:
            continue
        for ack in (ack for ack in read.acks if ack.producer == producer):
            for seqs in clip((ack.seq_first, ack.seq_last), open_numbers):
                yield from _located(read, ack, seqs, open_offsets)


def _numbers(rows: Iterable[tuple[str | None, int | None, int]]) -> Mapping[str, list[Span]]:
    """The record numbers of each producer as sets."""
    spans: dict[str, list[Span]] = defaultdict(list)
    for producer, seq, count in rows:
        if producer is not None and seq is not None:
            spans[producer].append((seq, seq + count - 1))
    return {producer: union(found) for producer, found in spans.items()}


def _located(read: PartitionRead, ack: Ack, seqs: Span, open_offsets: list[Span]) -> Iterator[Case]:
    """The part of an ack with these numbers, as far as its offsets are open too."""
    if not ack.located:
        case = _coverage_case(read, UNKNOWN_OFFSET, UNKNOWN_OFFSET, seqs[1] - seqs[0] + 1)
        yield _of_ack(case, ack, seqs[0])
        return
    shift = ack.first - ack.seq_first
    for first, last in clip((seqs[0] + shift, seqs[1] + shift), open_offsets):
        yield _of_ack(_coverage_case(read, first, last, last - first + 1), ack, first - shift)


def _of_ack(case: Case, ack: Ack, seq: int) -> Case:
    return replace(
        case, producer=ack.producer, seq_first=seq, seq_last=seq + case.count - 1, from_ms=ack.t_sent_ms, to_ms=ack.t_acked_ms
    )


def _due(read: PartitionRead, case: Case) -> Iterator[Case]:
    """The parts of a case that no member outside the events had to receive (`read.excused`)."""
    if not read.excused or case.first == UNKNOWN_OFFSET:
        yield case
        return
    for span in subtract([(case.first, case.last)], read.excused):
        yield part_of(case, span)


def _judge(read: PartitionRead, case: Case) -> Iterator[tuple[Case, bool]]:
    """A record is lost if the group has read past it, or if it is outside the log as read after the acknowledgement."""
    if case.first == UNKNOWN_OFFSET:
        yield case, False
        return
    horizon, end = read.horizon, None
    if read.extent is not None and case.to_ms is not None and read.extent.stamp.t_ms >= case.to_ms:
        horizon, end = max(horizon, read.extent.start - 1), read.extent.end
    if case.first <= horizon and case.last >= read.begins:
        yield part_of(case, (max(case.first, read.begins), min(case.last, horizon))), True
    if case.last > horizon:
        yield from _beyond(case, (max(case.first, horizon + 1), case.last), end)


def maybe_delivered(
    read: PartitionRead, lost: Iterable[Case], running: Mapping[str, int], slack_ms: int
) -> tuple[list[Case], list[Case]]:
    """Splits lost records: those that a member may have been delivered whose events end before the group passed them; the others.

    `running`: the group's members that still run, and the time of their last event that was read. Of such a member no delivery
    beyond the records was read. It writes what it was delivered within `slack_ms`.
    """
    ends = dict.fromkeys(running, -1)
    for run in read.runs:
        if run.stamp.writer in ends:
            ends[run.stamp.writer] = max(run.last, ends[run.stamp.writer])
    maybe: list[Case] = []
    sure: list[Case] = []
    for case in lost:
        passed = _passed_ms(read, case)
        late = passed is not None and any(end < case.first and running[name] <= passed + slack_ms for name, end in ends.items())
        (maybe if late else sure).append(case)
    return maybe, sure


def _passed_ms(read: PartitionRead, case: Case) -> int | None:
    """When the group passed these records."""
    times = [run.t_first_ms for run in read.runs if run.last > case.last]
    return min([*times, *(commit.t_ms for commit in read.commits if commit.offset > case.last)], default=None)


def _beyond(case: Case, span: Span, end: int | None) -> Iterator[tuple[Case, bool]]:
    """The offsets not read yet, unless the log ends before them."""
    cut = span[1] + 1 if end is None else min(max(end, span[0]), span[1] + 1)
    if span[0] < cut:
        yield part_of(case, (span[0], cut - 1)), False
    if cut <= span[1]:
        yield replace(part_of(case, (cut, span[1])), note="the log ends before it"), True


def part_of(case: Case, span: Span) -> Case:
    """The part of a case within a span of offsets."""
    part = replace(case, first=span[0], last=span[1], count=span[1] - span[0] + 1)
    if (case.first, case.last) == span or case.seq_first is None:
        return part
    seq = case.seq_first + span[0] - case.first
    return replace(part, seq_first=seq, seq_last=seq + span[1] - span[0])
