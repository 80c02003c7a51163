"""Decides whether the evidence is whole. What was not written down must never pass for what did not happen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.events.model import SendFailure, TopicPartition
from airflow_provider_kmigrate.core.ledger.book import Book, GroupPartition, Writer
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from airflow_provider_kmigrate.core.shared.text import count_of

_LAG_MS: Final = 5_000


@dataclass(frozen=True, slots=True)
class EvidenceHealth:
    """The state of the evidence. `uncertain` groups may have had more deliveries than their events say; None means every group.

    `held_back` are reasons for such doubts from before the step: they count only if something is missing or out of order.
    Otherwise a client killed once would leave every later audit without an answer. `recorded`: no client's own account has a
    hole.
    """

    reasons: tuple[Reason, ...]
    suspect: frozenset[str | None]
    recorded: bool = True
    held_back: Mapping[str | None, tuple[Reason, ...]] = field(default_factory=dict)

    def trusts(self, group: str) -> bool:
        """True if what this group's events do not show did not happen."""
        return not self.suspect & {group, None}

    def old_doubts(self, group: str) -> tuple[Reason, ...]:
        """Doubts from before the step: why it may have happened anyway."""
        return (*self.held_back.get(None, ()), *self.held_back.get(group, ()))


@dataclass(frozen=True, slots=True)
class EvidenceTimes:
    """Milliseconds since the epoch; None: not given. A client with a sign of life since `alive_since` still runs.

    `not_after`: no event can be later; `since`: when the step began, for doubts from before it.
    """

    alive_since: int | None = None
    not_after: int | None = None
    since: int | None = None

    def is_still_running(self, writer: Writer) -> bool:
        """True if it has no stop, and needs none."""
        return writer.stop is None and self.alive_since is not None and writer.last_ms >= self.alive_since

    def has_vanished_before_step(self, writer: Writer) -> bool:
        """True if it ended without a stop before the step began."""
        return writer.stop is None and self.since is not None and writer.last_ms < self.since


@dataclass(frozen=True, slots=True)
class Demand:
    """The evidence that is required: an acknowledgement and a delivery not before `since` (ms since the epoch; None: of any age).

    With `groups` each of them must have a delivery of its own. Of `mixed` groups some members write no events: their share is not
    required, nor are partitions that no other member owned. `everywhere`: both are required of each partition that was ever
    written, as by senders that write all of them all the time.
    """

    since: int | None = None
    groups: tuple[str, ...] = ()
    mixed: tuple[str, ...] = ()
    everywhere: bool = False


Sending = tuple[str, str, int]  # a producer, and the topic and partition that it writes
ANY_EVIDENCE: Final = Demand()
SLOT_MS: Final = 10_000
STEADY_SLOTS: Final = 60  # how long before the step a partition's steady writing is checked
_LEAST_SLOTS: Final = 12
_STEADY: Final = 0.9  # of the slots; then a minute without a record happens by chance once in a million
_WITHOUT_ACKS_MS: Final = 60_000


@dataclass(slots=True)
class Newest:
    """When a record was last acknowledged, by producer and partition, and last delivered to each group.

    `slots` of those that `find_without_acks`: the numbers of the stretches of `SLOT_MS` before the step in which something was
    acknowledged.
    """

    acked: dict[Sending, int] = field(default_factory=dict)
    delivered: dict[GroupPartition, int] = field(default_factory=dict)
    slots: dict[Sending, frozenset[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, book: Book, since: int | None = None) -> Newest:
        """The newest times from a book's events; `since`: when the step began, ms since the epoch."""
        newest = cls()
        for topic_partition, acks in book.acks.items():
            for ack in acks:
                newest.note_ack((ack.producer, *topic_partition), ack.t_acked_ms)
        for key, runs in book.runs.items():
            newest.note_delivery(key, max(run.t_last_ms for run in runs))
        for sending in newest.find_without_acks(since):
            ack_times = (ack.t_acked_ms for ack in book.acks[TopicPartition(*sending[1:])] if ack.producer == sending[0])
            newest.slots[sending] = frozenset(t_ms // SLOT_MS for t_ms in ack_times)
        return newest

    def find_without_acks(self, since: int | None) -> list[Sending]:
        """Partitions of producers that were written shortly before the step and not since.

        After the step began the producer wrote other partitions of the topic for at least a minute.
        """
        if since is None:
            return []
        latest: dict[tuple[str, str], int] = {}
        for (producer, topic, _), t_ms in self.acked.items():
            latest[producer, topic] = max(t_ms, latest.get((producer, topic), t_ms))
        unresponsive = (sending for sending, t_ms in sorted(self.acked.items()) if since - _WITHOUT_ACKS_MS <= t_ms < since)
        return [sending for sending in unresponsive if latest[sending[:2]] >= since + _WITHOUT_ACKS_MS]

    def was_steady(self, sending: Sending, since: int) -> bool:
        """True if the producer wrote the partition in nearly each stretch before its last record there."""
        recent = {slot for slot in self.slots.get(sending, ()) if slot * SLOT_MS >= since - STEADY_SLOTS * SLOT_MS}
        return len(recent) >= max(_LEAST_SLOTS, _STEADY * (max(recent, default=0) - min(recent, default=0) + 1))

    def last_delivery_by_group(self) -> dict[str, int]:
        """The last delivery to each group."""
        latest: dict[str, int] = {}
        for key, t_ms in self.delivered.items():
            latest[key.group] = max(t_ms, latest.get(key.group, t_ms))
        return latest

    def note_ack(self, sending: Sending, t_ms: int) -> None:
        """Note an acknowledgement; only the newest counts."""
        self.acked[sending] = max(self.acked.get(sending, t_ms), t_ms)

    def note_delivery(self, key: GroupPartition, t_ms: int) -> None:
        """Note a delivery; only the newest counts."""
        self.delivered[key] = max(self.delivered.get(key, t_ms), t_ms)


def check_demand(demand: Demand, newest: Newest, failures: Iterable[SendFailure]) -> Iterator[Reason]:
    """What is required and missing. If there is nothing at all, `nothing` reports it, except for a required group."""
    since, groups = demand.since, newest.last_delivery_by_group()
    delivered = max(groups.values(), default=None)
    if since is not None:
        acked = max(newest.acked.values(), default=since)
        if acked < since:
            yield _no_evidence_reason(
                f"no record was acknowledged since the step began, the last one {_format_seconds(since - acked)} before"
            )
        if delivered is not None and delivered < since:
            yield _no_evidence_reason(
                f"no record was delivered since the step began, the last one {_format_seconds(since - delivered)} before"
            )
        if demand.everywhere and acked >= since:
            yield from _check_every_partition(since, newest, groups)
        yield from _check_missing_acks(since, newest)
        yield from _check_failing_sends(since, newest, failures)
    for group in sorted(set(demand.groups)):
        last = groups.get(group)
        if last is None:
            yield _no_evidence_reason(f"group {group} received no record through any client that writes events")
        elif since is not None and last < since and delivered is not None and delivered >= since:
            yield _no_evidence_reason(
                f"group {group} received no record since the step began, the last one {_format_seconds(since - last)} before"
            )


def _check_every_partition(since: int, newest: Newest, groups: Iterable[str]) -> Iterator[Reason]:
    """Partitions without evidence: one active partition shows nothing of the others, and of the brokers that lead them."""
    acked: dict[TopicPartition, int] = {}
    for sending, t_ms in newest.acked.items():
        topic_partition = TopicPartition(*sending[1:])
        acked[topic_partition] = max(t_ms, acked.get(topic_partition, t_ms))
    late = [topic_partition.name for topic_partition, t_ms in sorted(acked.items()) if t_ms < since]
    if late:
        yield _no_evidence_reason(
            f"no record of {len(late)} of {count_of(len(acked), 'partition')} was acknowledged since the step began, first {late[0]}"
        )
    for group in sorted(groups):
        undelivered = [
            topic_partition.name
            for topic_partition in sorted(acked)
            if newest.delivered.get(GroupPartition(group, *topic_partition), since - 1) < since
        ]
        if undelivered:
            yield _no_evidence_reason(
                f"group {group} received no record of {len(undelivered)} of {count_of(len(acked), 'partition')} since the step began, first {undelivered[0]}"
            )


def _check_missing_acks(since: int, newest: Newest) -> Iterator[Reason]:
    """Partitions without acknowledgements since the step: a blocked producer sees no failure until it gives records up."""
    unacknowledged = [sending for sending in newest.find_without_acks(since) if newest.was_steady(sending, since)]
    if unacknowledged:
        producer, topic, partition = unacknowledged[0]
        text = f"{count_of(len(unacknowledged), 'partition')} of producers had steady writes before the step and none since it began, "
        text += f"first {topic}-{partition} by {producer}, which writes others of the topic"
        text += ". Its records may wait for an acknowledgement that does not come."
        yield Reason.of(AuditCause.NO_EVIDENCE, text)


def _check_failing_sends(since: int, newest: Newest, failures: Iterable[SendFailure]) -> Iterator[Reason]:
    """Partitions whose sends still fail. A record that was given up was never acknowledged: it is not lost, but writing fails."""
    last: dict[Sending, SendFailure] = {}
    for failure in failures:
        sending = (failure.producer, failure.topic, failure.partition)
        if failure.t_failed_ms >= since and failure.t_failed_ms > newest.acked.get(sending, -1):
            last[sending] = max(
                failure, last.get(sending, failure), key=lambda candidate: (candidate.t_failed_ms, candidate.seq_last)
            )
    if last:
        first = last[min(last)]
        failing_partition = f"{first.topic}-{first.partition} with {first.error}"
        text = f"{count_of(len(last), 'partition')} of producers had failed sends last, {first.producer} for {failing_partition}."
        yield Reason.of(AuditCause.SENDS_FAIL, text)


def _no_evidence_reason(text: str) -> Reason:
    return Reason.of(AuditCause.NO_EVIDENCE, f"{text[:1].upper()}{text[1:]}.")


def _format_seconds(ms: int) -> str:
    return f"{ms / 1000:.0f} s"


@dataclass(frozen=True, slots=True)
class Refusals:
    """Why lines are no events; `before`: those that were written before the step."""

    lines: Sequence[str] = ()
    before: Sequence[str] = ()


def examine_evidence(
    book: Book, refused: Refusals, times: EvidenceTimes, miscounted: Mapping[str, Sequence[Reason]]
) -> EvidenceHealth:
    """Examines whether every client's account is whole. `miscounted`: of writers, the holes in their counts of deliveries."""
    reasons = _bad_lines_reasons(refused.lines)
    uncertain: set[str | None] = {None} if refused.lines else set()
    held_back: dict[str | None, tuple[Reason, ...]] = {None: tuple(_bad_lines_reasons(refused.before))} if refused.before else {}
    if absent := sorted(book.expected - book.writers.keys()):
        reasons.append(Reason.of(AuditCause.WRITER_ABSENT, f"No event came from {', '.join(absent)}."))
        uncertain.add(None)
    late: list[Reason] = []
    for _, writer in sorted(book.writers.items()):
        holes, ending = [*_writer_flaws(writer), *miscounted.get(writer.name, ())], list(_check_ending(writer, times))
        future = list(_check_clock_ahead(writer, times.not_after))
        if ending and times.has_vanished_before_step(writer):
            held_back |= {group: (*held_back.get(group, ()), *ending) for group in writer.groups}
            ending = []
        reasons += [*holes, *ending]
        late += future
        if holes or ending or future:
            uncertain |= writer.groups
    return EvidenceHealth((*reasons, *late), frozenset(uncertain), recorded=not reasons, held_back=held_back)


def is_flawed(writer: Writer, times: EvidenceTimes) -> bool:
    """True if its account is incomplete, or its times are impossible, whatever its counts of deliveries say."""
    ending = () if times.has_vanished_before_step(writer) else _check_ending(writer, times)
    return any((*ending, *_writer_flaws(writer), *_check_clock_ahead(writer, times.not_after)))


def check_any_evidence(*, acked: int, groups: Iterable[str]) -> Iterator[Reason]:
    """Evidence that a judgement needs and does not have."""
    if not acked:
        yield Reason.of(AuditCause.NOTHING_ACKED, "No record was acknowledged.")
    if not list(groups):
        yield Reason.of(AuditCause.NO_GROUP, "No consumer group was observed.")


def _bad_lines_reasons(lines: Sequence[str]) -> list[Reason]:
    return (
        [Reason.of(AuditCause.BAD_LINES, f"{count_of(len(lines), 'line is', 'lines are')} not events, first: {lines[0]}")]
        if lines
        else []
    )


def _writer_flaws(writer: Writer) -> Iterator[Reason]:
    if not writer.started:
        yield Reason.of(AuditCause.NO_START, f"{writer.name} has no start at number 0.")
    if writer.missing:
        text = f"{writer.name} is missing {writer.missing} of its events, first number {writer.first_missing}."
        yield Reason.of(AuditCause.NUMBERS_MISSING, text)
    if writer.conflicts:
        yield Reason.of(
            AuditCause.NUMBER_REUSED, f"{writer.name} has two different events under {count_of(writer.conflicts, 'number')}."
        )


def _check_ending(writer: Writer, times: EvidenceTimes) -> Iterator[Reason]:
    """What is wrong with the end of its events; nothing if it still runs."""
    stop = writer.stop
    if stop is None and not times.is_still_running(writer):
        text = f"{writer.name} has no stop event at its end"
        lag_ms = writer.clock_lag_ms
        if abs(lag_ms) >= _LAG_MS:  # it cannot be known whether it still runs
            text += (
                f", and its times are {_format_seconds(abs(lag_ms))} {'behind' if lag_ms > 0 else 'ahead of'} its machine's clock"
            )
        yield Reason.of(AuditCause.NO_STOP, f"{text}.")
    elif stop is not None and not stop.clean:
        yield Reason.of(AuditCause.RECORD_INCOMPLETE, f"{writer.name} stopped with an incomplete record: {stop.reason}.")


def _check_clock_ahead(writer: Writer, not_after: int | None) -> Iterator[Reason]:
    """Writers whose clock is ahead, which makes a client that died look alive."""
    if not_after is not None and writer.last_ms > not_after:
        text = f"{writer.name} wrote an event {_format_seconds(writer.last_ms - not_after)} after it was read."
        yield Reason.of(AuditCause.CLOCK_AHEAD, text)
