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

from airflow_provider_kmigrate.core.events.intervals import Coverage, Span, clip, count_numbers, subtract, union
from airflow_provider_kmigrate.core.events.model import UNKNOWN_OFFSET, Ack, DeliveryRun, LogExtent, Stamp
from airflow_provider_kmigrate.core.ledger.book import AcceptedCommit
from airflow_provider_kmigrate.core.ledger.facts import Case, Gap
from airflow_provider_kmigrate.core.ledger.prefix import GroupPrefix


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


def inspect_log(topic: str, partition: int, acks: Iterable[Ack], runs: Iterable[DeliveryRun]) -> LogFlaws:
    """Compares every statement about one partition's offsets with every other."""
    pieces = _join_claims(_list_claims(acks, runs))
    flaws = LogFlaws(diverged=list(_find_diverged(topic, partition, pieces)))
    disputed = union((case.first, case.last) for case in flaws.diverged)
    by_producer: dict[str, list[Piece]] = defaultdict(list)
    for piece in _without_disputed(pieces, disputed) if disputed else pieces:
        by_producer[piece.producer].append(piece)
    for producer_pieces in by_producer.values():
        _check_numbers(topic, partition, producer_pieces, flaws)
    return flaws


def _list_claims(acks: Iterable[Ack], runs: Iterable[DeliveryRun]) -> Iterator[Piece]:
    for ack in acks:
        if ack.has_offsets:
            yield Piece(ack.first, ack.last, ack.producer, ack.first - ack.seq_first)
    for run in runs:
        if run.producer is not None and run.producer_seq is not None:
            yield Piece(run.first, run.last, run.producer, run.first - run.producer_seq)


def _join_claims(claims: Iterable[Piece]) -> list[Piece]:
    """Joins claims that say the same; the result ascends, and pieces of one producer and shift do not touch."""
    joined: list[Piece] = []
    open_pieces: dict[tuple[str, int], int] = {}  # the place in `joined` of the newest piece of a producer and shift
    for claim in sorted(claims):
        index = open_pieces.get(claim[2:])
        if index is not None and claim.first <= joined[index].last + 1:
            if claim.last > joined[index].last:
                joined[index] = joined[index]._replace(last=claim.last)
            continue
        open_pieces[claim[2:]] = len(joined)
        joined.append(claim)
    return joined


def _find_diverged(topic: str, partition: int, pieces: Sequence[Piece]) -> Iterator[Case]:
    covered, widest = Coverage(), None
    for piece in pieces:
        span = (piece.first, piece.last)
        for twice in subtract([span], covered.add(span)):
            other_record = "" if widest is None else f"also number {twice[0] - widest.shift} of {widest.producer}"
            yield _case_of_offsets(topic, partition, piece, twice, other_record)
        if widest is None or piece.last > widest.last:
            widest = piece


def _without_disputed(pieces: Iterable[Piece], disputed: Sequence[Span]) -> Iterator[Piece]:
    """The pieces without contradictions: of two records at one offset neither comes after the other."""
    for piece in pieces:
        for first, last in subtract([(piece.first, piece.last)], disputed):
            yield piece._replace(first=first, last=last)


def _check_numbers(topic: str, partition: int, pieces: Sequence[Piece], flaws: LogFlaws) -> None:
    """Walks up the log: each number of the producer once, and each above the ones before it."""
    seen_numbers = Coverage()
    for piece in pieces:
        high = seen_numbers.high
        fresh = seen_numbers.add(piece.numbers)
        if high is None or piece.numbers[0] > high:
            continue
        for numbers in subtract([piece.numbers], fresh):
            flaws.stored_twice.append(_case_of_numbers(topic, partition, piece, numbers, "stored before at a lower offset"))
        for numbers in clip((fresh[0][0], high - 1), fresh) if fresh else ():
            flaws.reordered.append(_case_of_numbers(topic, partition, piece, numbers, f"stored after number {high}"))


def _case_of_numbers(topic: str, partition: int, piece: Piece, numbers: Span, note: str) -> Case:
    return _case_of_offsets(topic, partition, piece, (numbers[0] + piece.shift, numbers[1] + piece.shift), note)


def _case_of_offsets(topic: str, partition: int, piece: Piece, span: Span, note: str) -> Case:
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
    return {
        run.stamp: spans
        for member_runs in members.values()
        for run, spans in _own_repeats_of_member(sorted(member_runs, key=lambda run: run.seq))
    }


def _own_repeats_of_member(runs: Iterable[DeliveryRun]) -> Iterator[tuple[DeliveryRun, list[Span]]]:
    unbroken: list[DeliveryRun] = []  # without a gap in the member's count, in one generation
    revisited: list[DeliveryRun] = []  # what it has gone back to
    for run in runs:
        if not unbroken or not _continues_count(unbroken[-1], run):
            unbroken, revisited = [], []
        elif run.first <= unbroken[-1].last:
            revisited = _find_revisited(unbroken, run)
        spans = union(
            (max(run.first, earlier_run.first), min(run.last, earlier_run.last))
            for earlier_run in revisited
            if _have_same_records(earlier_run, run)
        )
        if spans:
            yield run, spans
        unbroken.append(run)


def _continues_count(earlier: DeliveryRun, run: DeliveryRun) -> bool:
    same = earlier.generation is not None and earlier.generation == run.generation
    return same and earlier.is_exact and run.is_exact and earlier.seq + earlier.count == run.seq


def _find_revisited(unbroken: Sequence[DeliveryRun], run: DeliveryRun) -> list[DeliveryRun]:
    recent = list(takewhile(lambda earlier: run.t_first_ms - earlier.t_last_ms <= REPEAT_MS, reversed(unbroken)))
    back = max((earlier.last for earlier in recent), default=run.first) - run.first + 1
    return recent if back <= REPEAT_RECORDS else []


def _have_same_records(earlier: DeliveryRun, run: DeliveryRun) -> bool:
    """Whether two deliveries have the same records at the same offsets, as far as their numbers are known."""
    if earlier.last < run.first or run.last < earlier.first:
        return False
    if earlier.producer is None or earlier.producer_seq is None or run.producer is None or run.producer_seq is None:
        return True
    return earlier.producer == run.producer and earlier.first - earlier.producer_seq == run.first - run.producer_seq


@dataclass(slots=True)
class Walk:
    """The findings of one walk. `client_repeats`: what a client handed out again by itself."""

    redelivered: list[Case] = field(default_factory=list)
    client_repeats: list[Case] = field(default_factory=list)
    reordered: list[Case] = field(default_factory=list)
    commit_gap: list[Case] = field(default_factory=list)
    gap: Gap | None = None
    last_ms: int | None = None  # when the last delivery ended


def walk_deliveries(read: PartitionRead, skew_ms: int) -> Walk:
    """Walks through the deliveries of one partition to one group."""
    runs = sorted(read.runs, key=lambda run: (run.t_first_ms, run.seq, run.member))
    walk_findings, covered = Walk(), Coverage()
    order, again = _Order(runs, skew_ms), _Again(runs)
    committed_by = _committed_before(read.commits, skew_ms)
    previous = None if read.prefix is None else (read.prefix.ended_ms, read.prefix.member)
    for index, run in enumerate(runs):
        _note_gap(walk_findings, previous, run)
        committed = committed_by(run.t_first_ms)
        high = covered.high
        fresh = covered.add((run.first, run.last))
        if high is not None and run.first <= high:
            again.add_repeats(walk_findings, index, fresh)
            walk_findings.reordered += _find_reordered(run, fresh, order.highest_before(run))
        if committed > run.first:
            walk_findings.commit_gap += _find_commit_gaps(run, fresh, committed)
        order.add_run(run)
        if previous is None or run.t_last_ms >= previous[0]:
            previous = run.t_last_ms, run.member
    walk_findings.last_ms = None if previous is None else previous[0]
    return walk_findings


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


def _note_gap(walk_findings: Walk, previous: tuple[int, str] | None, run: DeliveryRun) -> None:
    """`previous`: when the last delivery before it ended, and its member."""
    begin, length, members = run.t_last_ms - run.gap_ms, run.gap_ms, (run.member, run.member)
    if previous is not None:
        ended_ms, member = previous
        waited_from = max(ended_ms, ended_ms if run.t_sent_ms is None else run.t_sent_ms)
        if run.t_first_ms - waited_from >= length:
            begin, length, members = waited_from, run.t_first_ms - waited_from, (member, run.member)
    if walk_findings.gap is None or length > walk_findings.gap.ms:
        walk_findings.gap = Gap(run.group, run.topic, run.partition, length, begin, begin + length, members)


class _Again:
    """Splits what is delivered again: by the group, or by the client itself."""

    def __init__(self, runs: Sequence[DeliveryRun]) -> None:
        self._runs = runs

    @cached_property
    def _client_repeats(self) -> Mapping[Stamp, list[Span]]:  # made when first needed: most partitions never do
        return own_repeats(self._runs)

    def add_repeats(self, walk_findings: Walk, index: int, fresh: Sequence[Span]) -> None:
        """Note what the run at `index` delivered again; `fresh` are its offsets that came for the first time."""
        run = self._runs[index]
        again, own_spans = subtract([(run.first, run.last)], fresh), self._client_repeats.get(run.stamp, [])
        for span in subtract(again, own_spans):
            before = (other.member for other in self._runs[:index] if other.first <= span[1] and other.last >= span[0])
            walk_findings.redelivered.append(_sequence_case(run, span, (next(before, ""), run.member)))
        for span in (part for repeated in again for part in clip(repeated, own_spans)):
            walk_findings.client_repeats.append(
                _sequence_case(run, span, (run.member, run.member), "handed out twice by the client itself")
            )


def _find_reordered(run: DeliveryRun, fresh: Sequence[Span], behind: tuple[int, str]) -> Iterator[Case]:
    """The new records that should have come before earlier deliveries."""
    for span in clip((0, behind[0] - 1), fresh) if behind[0] > run.first else ():
        yield _sequence_case(run, span, (behind[1], run.member), f"delivered after offset {behind[0]}")


def _find_commit_gaps(run: DeliveryRun, fresh: Sequence[Span], committed: int) -> Iterator[Case]:
    for span in clip((0, committed - 1), fresh):
        yield _sequence_case(run, span, (run.member,), f"offset {committed} had been committed before")


class _Order:
    """The highest offset certainly delivered before a run, and its member."""

    def __init__(self, runs: Sequence[DeliveryRun], skew_ms: int) -> None:
        self._runs, self._skew_ms = runs, skew_ms
        self._own: dict[str, int] = {}

    @cached_property
    def _highest_by_end(self) -> tuple[list[int], list[tuple[int, str]]]:  # made when first needed: most partitions never do
        by_end = sorted(self._runs, key=lambda run: (run.t_last_ms, run.last))
        highest = accumulate(((run.last, run.member) for run in by_end), max, initial=(-1, ""))
        return [run.t_last_ms for run in by_end], list(highest)

    def add_run(self, run: DeliveryRun) -> None:
        """Remember the run's last offset as its member's."""
        self._own[run.member] = max(run.last, self._own.get(run.member, -1))

    def highest_before(self, run: DeliveryRun) -> tuple[int, str]:
        """The highest offset that was certainly delivered before the run, and the member that received it."""
        times, highest = self._highest_by_end
        others = highest[bisect_left(times, run.t_first_ms - self._skew_ms)]
        return max(others, (self._own.get(run.member, -1), run.member))


def _committed_before(commits: Iterable[AcceptedCommit], skew_ms: int) -> Callable[[int], int]:
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
    events may have been delivered. `prefix`: the clean part before these events; None: they begin with the first one.
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
    prefix: GroupPrefix | None = None

    @property
    def horizon(self) -> int:
        """The last offset that the group has passed: it was delivered it or committed beyond it; -1: none."""
        delivered = max((last for _, last in (*self.prefix_spans, *((run.first, run.last) for run in self.runs))), default=-1)
        return max(delivered, max((commit.offset for commit in self.commits), default=0) - 1)

    @property
    def first_due_offset(self) -> int:
        """The first offset that was due to the group, as far as that is known."""
        if self.start is not None:
            return self.start
        firsts = [first for first, _ in self.prefix_spans] or [run.first for run in self.runs]
        return min(firsts, default=0) if self.from_latest else 0

    @property
    def prefix_spans(self) -> list[Span]:
        """The offsets of the prefix, each of which was delivered."""
        return [] if self.prefix is None else [(self.prefix.first, self.prefix.last)]


@dataclass(frozen=True, slots=True)
class Missing:
    """Undelivered acknowledged records: `lost` for sure, `unread` perhaps only not yet, `unclear` if runs do not say which."""

    lost: list[Case]
    unread: list[Case]
    unclear: list[Case]


def find_missing(read: PartitionRead) -> Missing:
    """Acknowledged records that the runs do not hold."""
    acked = union((ack.first, ack.last) for ack in read.acks if ack.has_offsets)
    covered, short, unclear = _match_by_offset(read, acked)
    judged = [
        part
        for case in _find_uncovered(read, acked, covered)
        for due in _due_parts(read, case)
        for part in _judge_case(read, due)
    ]
    lost = [part for part, is_lost in judged if is_lost]
    return Missing([*short, *lost], [part for part, is_lost in judged if not is_lost], unclear)


def _match_by_offset(read: PartitionRead, acked: list[Span]) -> tuple[list[Span], list[Case], list[Case]]:
    """Offsets that runs without numbers cover; runs with fewer records than acknowledged; runs that cannot show which."""
    anonymous = [run for run in read.runs if run.producer is None]
    short, unclear = [], []
    for run in anonymous:
        if run.count > run.last - run.first:
            continue
        due = count_numbers(clip((run.first, run.last), acked))
        # At most so many records of others may be among them, in place of as many of ours.
        others = run.last - run.first + 1 - due
        hidden = due - max(0, run.count - others)
        case = _coverage_case(read, run.first, run.last, due - run.count if due > run.count else hidden)
        case = replace(case, members=(run.member,), from_ms=run.t_first_ms, to_ms=run.t_last_ms, note=INEXACT)
        if due > run.count:
            short.append(case)
        elif hidden:
            unclear.append(case)
    return union([*read.prefix_spans, *((run.first, run.last) for run in anonymous)]), short, unclear


def find_skipped(read: PartitionRead) -> list[Case]:
    """Gaps between the deliveries, as far as no producer reported records in them."""
    delivered = union([*read.prefix_spans, *((run.first, run.last) for run in read.runs)])
    whole = [(delivered[0][0], delivered[-1][1])] if delivered else []
    covered = union((ack.first, ack.last) for ack in read.acks if ack.has_offsets)
    return [_coverage_case(read, *span, count_numbers([span])) for span in subtract(subtract(whole, delivered), covered)]


def _coverage_case(read: PartitionRead, first: int, last: int, count: int) -> Case:
    return Case(read.topic, read.partition, first, last, count, group=read.group)


def _find_uncovered(read: PartitionRead, acked: list[Span], covered: list[Span]) -> Iterator[Case]:
    open_offsets = subtract(acked, covered)
    if not open_offsets and all(ack.has_offsets for ack in read.acks):
        return
    delivered_numbers = _numbers_by_producer((run.producer, run.producer_seq, run.count) for run in read.runs)
    due = _numbers_by_producer((ack.producer, ack.seq_first, ack.count) for ack in read.acks)
    for producer, numbers in sorted(due.items()):
        open_numbers = subtract(numbers, delivered_numbers.get(producer, ()))
        if not open_numbers:
            continue
        for ack in (ack for ack in read.acks if ack.producer == producer):
            for seqs in clip((ack.seq_first, ack.seq_last), open_numbers):
                yield from _open_part_of_ack(read, ack, seqs, open_offsets)


def _numbers_by_producer(rows: Iterable[tuple[str | None, int | None, int]]) -> Mapping[str, list[Span]]:
    """The record numbers of each producer as sets."""
    spans: dict[str, list[Span]] = defaultdict(list)
    for producer, seq, count in rows:
        if producer is not None and seq is not None:
            spans[producer].append((seq, seq + count - 1))
    return {producer: union(number_spans) for producer, number_spans in spans.items()}


def _open_part_of_ack(read: PartitionRead, ack: Ack, seqs: Span, open_offsets: list[Span]) -> Iterator[Case]:
    """The part of an ack with these numbers, as far as its offsets are open too."""
    if not ack.has_offsets:
        case = _coverage_case(read, UNKNOWN_OFFSET, UNKNOWN_OFFSET, seqs[1] - seqs[0] + 1)
        yield _with_ack_fields(case, ack, seqs[0])
        return
    shift = ack.first - ack.seq_first
    for first, last in clip((seqs[0] + shift, seqs[1] + shift), open_offsets):
        yield _with_ack_fields(_coverage_case(read, first, last, last - first + 1), ack, first - shift)


def _with_ack_fields(case: Case, ack: Ack, seq: int) -> Case:
    return replace(
        case, producer=ack.producer, seq_first=seq, seq_last=seq + case.count - 1, from_ms=ack.t_sent_ms, to_ms=ack.t_acked_ms
    )


def _due_parts(read: PartitionRead, case: Case) -> Iterator[Case]:
    """The parts of a case that no member outside the events had to receive (`read.excused`)."""
    if not read.excused or case.first == UNKNOWN_OFFSET:
        yield case
        return
    for span in subtract([(case.first, case.last)], read.excused):
        yield part_of(case, span)


def _judge_case(read: PartitionRead, case: Case) -> Iterator[tuple[Case, bool]]:
    """A record is lost if the group has read past it, or if it is outside the log as read after the acknowledgement."""
    if case.first == UNKNOWN_OFFSET:
        yield case, False
        return
    horizon, end = read.horizon, None
    if read.extent is not None and case.to_ms is not None and read.extent.stamp.t_ms >= case.to_ms:
        horizon, end = max(horizon, read.extent.start - 1), read.extent.end
    if case.first <= horizon and case.last >= read.first_due_offset:
        yield part_of(case, (max(case.first, read.first_due_offset), min(case.last, horizon))), True
    if case.last > horizon:
        yield from _judge_beyond_horizon(case, (max(case.first, horizon + 1), case.last), end)


def split_maybe_delivered(
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
    maybe_delivered_cases: list[Case] = []
    surely_lost: list[Case] = []
    for case in lost:
        passed = _passed_ms(read, case)
        maybe_late = passed is not None and any(
            end < case.first and running[name] <= passed + slack_ms for name, end in ends.items()
        )
        (maybe_delivered_cases if maybe_late else surely_lost).append(case)
    return maybe_delivered_cases, surely_lost


def _passed_ms(read: PartitionRead, case: Case) -> int | None:
    """When the group passed these records."""
    times = [run.t_first_ms for run in read.runs if run.last > case.last]
    return min([*times, *(commit.t_ms for commit in read.commits if commit.offset > case.last)], default=None)


def _judge_beyond_horizon(case: Case, span: Span, end: int | None) -> Iterator[tuple[Case, bool]]:
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
