"""What acknowledgements and deliveries together say about the log itself: which producer's which record lies at an offset."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from airflow_provider_kmigrate.core.events import Ack, DeliveryRun
from airflow_provider_kmigrate.core.intervals import Coverage, Span, intersect, subtract, union
from airflow_provider_kmigrate.core.ledger.facts import Case


class Piece(NamedTuple):
    """Consecutive offsets with consecutive records of one producer: record number = offset - shift."""

    first: int
    last: int
    producer: str
    shift: int

    @property
    def numbers(self) -> Span:
        return self.first - self.shift, self.last - self.shift


@dataclass(slots=True)
class LogFlaws:
    """What is wrong with one partition's log."""

    diverged: list[Case] = field(default_factory=list)
    stored_twice: list[Case] = field(default_factory=list)
    reordered: list[Case] = field(default_factory=list)


def inspect(topic: str, partition: int, acks: Iterable[Ack], runs: Iterable[DeliveryRun]) -> LogFlaws:
    """Compare every statement about one partition's offsets with every other."""
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
    """Claims that say the same are joined; the result ascends, and pieces of one producer and shift do not touch."""
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
    """What is left where nobody says otherwise: of two records at one offset neither is behind the other."""
    for piece in pieces:
        for first, last in subtract([(piece.first, piece.last)], disputed):
            yield piece._replace(first=first, last=last)


def _check_numbers(topic: str, partition: int, pieces: Sequence[Piece], flaws: LogFlaws) -> None:
    """Walk up the log: each number of the producer once, and each above the ones before it."""
    seen = Coverage()
    for piece in pieces:
        high = seen.high
        fresh = seen.add(piece.numbers)
        if high is None or piece.numbers[0] > high:
            continue
        for numbers in subtract([piece.numbers], fresh):
            flaws.stored_twice.append(_of_numbers(topic, partition, piece, numbers, "stored before at a lower offset"))
        for numbers in intersect(fresh, [(fresh[0][0], high - 1)]) if fresh else ():
            flaws.reordered.append(_of_numbers(topic, partition, piece, numbers, f"stored behind number {high}"))


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
