"""Which acknowledged records was a group not delivered, and does that mean that they are lost?

A record is delivered when a run with known numbers holds its producer's number, at whatever offset, or a run without numbers
covers its offset. Gaps between offsets alone mean nothing: transaction markers, aborted and compacted records leave them too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_provider_kmigrate.core.events import UNKNOWN_OFFSET, Ack, DeliveryRun, LogExtent
from airflow_provider_kmigrate.core.intervals import Span, clip, size, subtract, union
from airflow_provider_kmigrate.core.ledger.book import Committed
from airflow_provider_kmigrate.core.ledger.facts import Case

INEXACT = "some of these, the run does not say which"


@dataclass(frozen=True, slots=True)
class Read:
    """All that is known of one partition as one group read it. `start`: where its first member that writes events began, None: not told.

    `excused`: offsets that members which write no events may have been delivered.
    """

    group: str
    topic: str
    partition: int
    acks: Sequence[Ack]
    runs: Sequence[DeliveryRun]
    commits: Sequence[Committed]
    extent: LogExtent | None = None
    from_latest: bool = False
    start: int | None = None
    excused: Sequence[Span] = ()

    @property
    def horizon(self) -> int:
        """The last offset that the group is past: it was delivered it or committed behind it; -1: none."""
        delivered = max((run.last for run in self.runs), default=-1)
        return max(delivered, max((commit.offset for commit in self.commits), default=0) - 1)

    @property
    def begins(self) -> int:
        """The first offset that the group was to be delivered, as far as that is known."""
        if self.start is not None:
            return self.start
        return min((run.first for run in self.runs), default=0) if self.from_latest else 0


@dataclass(frozen=True, slots=True)
class Missing:
    """Undelivered acknowledged records: `lost` for sure, `unread` perhaps only not yet, `unclear` as runs do not say which."""

    lost: list[Case]
    unread: list[Case]
    unclear: list[Case]


def missing(read: Read) -> Missing:
    """Acknowledged records that the runs do not hold."""
    acked = union((ack.first, ack.last) for ack in read.acks if ack.located)
    covered, short, unclear = _by_offset(read, acked)
    judged = [part for case in _uncovered(read, acked, covered) for due in _due(read, case) for part in _judge(read, due)]
    lost = [part for part, is_lost in judged if is_lost]
    return Missing([*short, *lost], [part for part, is_lost in judged if not is_lost], unclear)


def _by_offset(read: Read, acked: list[Span]) -> tuple[list[Span], list[Case], list[Case]]:
    """Offsets that runs without numbers cover; runs that are short of acknowledged records; runs that cannot tell."""
    anonymous = [run for run in read.runs if run.producer is None]
    short, unclear = [], []
    for run in anonymous:
        if run.count > run.last - run.first:
            continue
        due = size(clip((run.first, run.last), acked))
        others = (
            run.last - run.first + 1 - due
        )  # at most so many records of others may be among them, in place of as many of ours
        hidden = due - max(0, run.count - others)
        case = _case(read, run.first, run.last, due - run.count if due > run.count else hidden)
        case = replace(case, members=(run.member,), from_ms=run.t_first_ms, to_ms=run.t_last_ms, note=INEXACT)
        if due > run.count:
            short.append(case)
        elif hidden:
            unclear.append(case)
    return union((run.first, run.last) for run in anonymous), short, unclear


def passed_over(read: Read) -> list[Case]:
    """Gaps between the deliveries, as far as no producer told of records in them."""
    delivered = union((run.first, run.last) for run in read.runs)
    whole = [(delivered[0][0], delivered[-1][1])] if delivered else []
    told = union((ack.first, ack.last) for ack in read.acks if ack.located)
    return [_case(read, *span, size([span])) for span in subtract(subtract(whole, delivered), told)]


def _case(read: Read, first: int, last: int, count: int) -> Case:
    return Case(read.topic, read.partition, first, last, count, group=read.group)


def _uncovered(read: Read, acked: list[Span], covered: list[Span]) -> Iterator[Case]:
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


def _located(read: Read, ack: Ack, seqs: Span, open_offsets: list[Span]) -> Iterator[Case]:
    """The part of an ack with these numbers, as far as its offsets are open too."""
    if not ack.located:
        case = _case(read, UNKNOWN_OFFSET, UNKNOWN_OFFSET, seqs[1] - seqs[0] + 1)
        yield _of_ack(case, ack, seqs[0])
        return
    shift = ack.first - ack.seq_first
    for first, last in clip((seqs[0] + shift, seqs[1] + shift), open_offsets):
        yield _of_ack(_case(read, first, last, last - first + 1), ack, first - shift)


def _of_ack(case: Case, ack: Ack, seq: int) -> Case:
    return replace(
        case, producer=ack.producer, seq_first=seq, seq_last=seq + case.count - 1, from_ms=ack.t_sent_ms, to_ms=ack.t_acked_ms
    )


def _due(read: Read, case: Case) -> Iterator[Case]:
    """What is left of it without what was others' to be delivered."""
    if not read.excused or case.first == UNKNOWN_OFFSET:
        yield case
        return
    for span in subtract([(case.first, case.last)], read.excused):
        yield part_of(case, span)


def _judge(read: Read, case: Case) -> Iterator[tuple[Case, bool]]:
    """Lost is what lies behind the group's horizon, or outside the log as it was read after the acknowledgement."""
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


def maybe_delivered(read: Read, lost: Iterable[Case], running: Mapping[str, int], slack_ms: int) -> tuple[list[Case], list[Case]]:
    """The lost records that a member may have been delivered whose events end before the group went past them; and the others.

    `running`: the group's members that run on, and the time of their last event that was read. Of such a member no delivery behind the
    records was read. It writes what it was delivered within `slack_ms`.
    """
    ends = dict.fromkeys(running, -1)
    for run in read.runs:
        if run.stamp.writer in ends:
            ends[run.stamp.writer] = max(run.last, ends[run.stamp.writer])
    maybe: list[Case] = []
    sure: list[Case] = []
    for case in lost:
        passed = _passed_ms(read, case)
        late = [
            end for name, end in ends.items() if name in running and passed is not None and running[name] <= passed + slack_ms
        ]
        (maybe if any(end < case.first for end in late) else sure).append(case)
    return maybe, sure


def _passed_ms(read: Read, case: Case) -> int | None:
    """When the group went past these records."""
    times = [run.t_first_ms for run in read.runs if run.last > case.last]
    return min([*times, *(commit.t_ms for commit in read.commits if commit.offset > case.last)], default=None)


def _beyond(case: Case, span: Span, end: int | None) -> Iterator[tuple[Case, bool]]:
    """Not read yet, unless the log ends before it."""
    cut = span[1] + 1 if end is None else min(max(end, span[0]), span[1] + 1)
    if span[0] < cut:
        yield part_of(case, (span[0], cut - 1)), False
    if cut <= span[1]:
        yield replace(part_of(case, (cut, span[1])), note="the log ends before it"), True


def part_of(case: Case, span: Span) -> Case:
    """A case cut down to a span of offsets within it."""
    if (case.first, case.last) == span or case.seq_first is None:
        return replace(case, first=span[0], last=span[1], count=span[1] - span[0] + 1)
    seq = case.seq_first + span[0] - case.first
    return replace(
        case, first=span[0], last=span[1], count=span[1] - span[0] + 1, seq_first=seq, seq_last=seq + span[1] - span[0]
    )
