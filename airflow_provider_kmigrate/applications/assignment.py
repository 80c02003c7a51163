"""The partitions of one librdkafka member, and a workaround for its stall after a coordinator has moved.

librdkafka fetches committed offsets when it gets partitions without them, and gives up for good if the coordinator has just moved
(measured with 2.3.0 to 2.16.0 on real brokers: one poll error NOT_COORDINATOR, then no record in 60 s, group Stable, no further
error). A rolling restart provokes exactly that. So:

1. committed offsets are fetched here, with retries, before partitions are assigned, and assigned with them;
2. if a poll reports that the coordinator moved, the held partitions are assigned again from their positions;
3. if no record arrives although records wait, the partitions without records are assigned again;
4. an assignment that waits for the application is served before a consumer is closed (`close_consumer`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, OFFSET_INVALID, Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from airflow_provider_kmigrate.clients.admin import error_of
from airflow_provider_kmigrate.core.events import TopicPartition

COORDINATOR_MOVED: Final = frozenset(
    {KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS}
)
_RETRY_S: Final = 0.2
_SAME_MOVE_S: Final = 1.0
RESETS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("earliest", "smallest", "beginning"), OFFSET_BEGINNING),
    **dict.fromkeys(("latest", "largest", "end"), OFFSET_END),
}

Remark = Callable[[str, str], None]  # code, text


def close_consumer(consumer: Consumer) -> None:
    """Close a consumer that may have been given partitions since its last poll.

    An assignment that `close` serves after the member's session has expired makes librdkafka wait forever, with the interpreter's
    lock held: the whole process stops, and no time limit of Python's ends it (librdkafka issue 4884; measured with 2.16.1,
    closed 2 to 4 s after a subscription with a session of 2 s and no poll: about one in 30; with this none in 300). While it is
    subscribed it may be given more, so it unsubscribes first. With partitions assigned it does neither: the poll would take a record
    of partitions assigned by hand, and the automatic commit would skip it (measured). A consumer with a fatal error (it was fenced) cannot unsubscribe, and is given nothing.
    """
    try:
        if not consumer.assignment():
            with suppress(KafkaException):
                consumer.unsubscribe()
            consumer.poll(0)
    finally:
        consumer.close()


@dataclass(slots=True)
class _Held:
    """One held partition.

    `position`: the next offset, or one of librdkafka's negative ones before the first record. `heard_at`: time of the last record.
    """

    position: int
    heard_at: float
    delivered: bool = False
    paused: bool = False

    @property
    def known(self) -> bool:
        """True if assigning it again skips and repeats no record, and resumes no partition that the application has paused."""
        return self.position != OFFSET_INVALID and not self.paused


@dataclass(frozen=True, slots=True)
class AssignmentTimeouts:
    """Timeouts in seconds: fetching committed offsets in a rebalance; time without records before waiting ones are looked for."""

    committed: float = 20.0
    unresponsive_after: float = 15.0
    check_every: float = 5.0
    answer: float = 2.0


class Assignment:
    """Held partitions. `reset` is auto.offset.reset if known; otherwise librdkafka decides about a group's first start.

    `incremental`: the group rebalances incrementally; None: the first assignment tries it (librdkafka logs a refused try).
    """

    def __init__(
        self,
        consumer: Consumer,
        remark: Remark,
        reset: str | None = None,
        patience: AssignmentTimeouts | None = None,
        *,
        incremental: bool | None = None,
    ) -> None:
        self._consumer = consumer
        self._remark = remark
        self._reset = RESETS.get(reset or "", OFFSET_INVALID)
        self._patience = patience or AssignmentTimeouts()
        self._held: dict[TopicPartition, _Held] = {}
        self._incremental = incremental
        self._next_check = time.monotonic() + self._patience.check_every
        self._next_recovery = 0.0

    def positions(self) -> dict[TopicPartition, int]:
        """The next offset of each partition that has delivered a record."""
        return {where: held.position for where, held in self._held.items() if held.delivered}

    def starts(self, partitions: list[KafkaPartition]) -> list[KafkaPartition]:
        """Start of each: the group's commit, else what `reset` says; unchanged if the coordinator does not answer in time."""
        if not partitions:
            return []
        stop, wait = stop_after_delay(self._patience.committed), wait_fixed(_RETRY_S)
        try:
            found = Retrying(retry=retry_if_exception(_passing), stop=stop, wait=wait, reraise=True)(self._committed, partitions)
        except KafkaException as error:
            self._remark("consumer-no-offsets", f"did not get the committed offsets: {error}")
            return partitions  # librdkafka fetches them again, and `watch` checks the result
        for one in found:
            if one.offset < 0:
                one.offset = self._first(one)
        return found

    def _first(self, partition: KafkaPartition) -> int:
        """Start of a group without a commit. The end is a number, so that assigning again skips no newer record."""
        if self._reset != OFFSET_END:
            return self._reset
        try:
            return self._ends(partition)[1]
        except KafkaException:
            return OFFSET_INVALID

    def _ends(self, partition: KafkaPartition) -> tuple[int, int]:
        """The log's first offset and the one after its last record."""
        return self._consumer.get_watermark_offsets(partition, timeout=self._patience.answer, cached=False)

    def _committed(self, partitions: list[KafkaPartition]) -> list[KafkaPartition]:
        found = self._consumer.committed(partitions, timeout=min(5.0, self._patience.committed))
        for one in found:
            if one.error is not None:
                raise KafkaException(one.error)
        return found

    def assign(self, partitions: list[KafkaPartition]) -> None:
        """Assign inside a rebalance, by the group's protocol; the first try finds out which one (librdkafka refuses the other)."""
        if self._incremental is not False:
            try:
                self._consumer.incremental_assign(partitions)
            except KafkaException as error:
                if error.args[0].code() != KafkaError._STATE or self._incremental:  # noqa: SLF001
                    raise
                self._incremental = False
            else:
                self._incremental = True
                return
        self._consumer.assign(partitions)

    def hold(self, partitions: Iterable[KafkaPartition]) -> None:
        """Take these partitions over, from these offsets."""
        now = time.monotonic()
        self._held |= {place(one): _Held(one.offset, now) for one in partitions}

    def drop(self, partitions: Iterable[KafkaPartition]) -> None:
        """Forget these partitions; those that are not held are ignored."""
        for one in partitions:
            self._held.pop(place(one), None)

    def clear(self) -> None:
        """Forget every partition; the consumer itself is not asked."""
        self._held.clear()

    def delivered(self, where: TopicPartition, offset: int) -> None:
        """Note a delivered record's offset; ignores partitions that are not owned."""
        held = self._held.get(where)
        if held is not None:  # else it came without ownership, which is for the ledger to find
            held.position, held.heard_at, held.delivered = offset + 1, time.monotonic(), True

    def moved(self, where: TopicPartition, offset: int) -> None:
        """Follow the application's seek to another offset."""
        if where in self._held:
            self._held[where].position = offset

    def pause(self, partitions: Iterable[KafkaPartition], *, paused: bool) -> None:
        """Follow the application's pause or resume: a paused partition is not assigned again by `watch`."""
        for one in partitions:
            held = self._held.get(place(one))
            if held is not None:
                held.paused, held.heard_at = paused, time.monotonic()

    def watch(self) -> None:
        """Assign partitions without records again if records wait in the one idle longest. Call it when a poll brought nothing."""
        now, patience = time.monotonic(), self._patience
        if now < self._next_check:
            return
        self._next_check = now + patience.check_every
        unresponsive = [
            where for where, held in self._held.items() if held.known and now - held.heard_at > patience.unresponsive_after
        ]
        if unresponsive:
            self._check(min(unresponsive, key=lambda where: self._held[where].heard_at), unresponsive)

    def _check(self, where: TopicPartition, unresponsive: list[TopicPartition]) -> None:
        held = self._held[where]
        try:
            start, end = self._ends(KafkaPartition(*where))
        except KafkaException:
            return  # no leader to ask: then there is nothing to fetch either
        if end > max(start, held.position):
            self.again(f"{where.name} delivered nothing at {held.position} of {end}", unresponsive)
        else:
            held.heard_at = time.monotonic()  # no record waits; ask about another partition next time

    def coordinator_moved(self) -> None:
        """React to a moved coordinator; librdkafka reports it once for each partition, within milliseconds."""
        now = time.monotonic()
        if self._held and now >= self._next_recovery:
            self._next_recovery = now + _SAME_MOVE_S
            self.again("the coordinator moved")

    def again(self, why: str, wheres: Iterable[TopicPartition] | None = None) -> None:
        """Assign these partitions, or all, again from their positions."""
        self._remark("consumer-assigned-again", why)
        wheres = list(self._held if wheres is None else wheres)
        for one in self.starts([KafkaPartition(*where) for where in wheres if self._held[where].position == OFFSET_INVALID]):
            self._held[place(one)].position = one.offset
        now = time.monotonic()
        for where in wheres:
            self._held[where].heard_at = now
        try:
            self._reassign(wheres if self._incremental else list(self._held))
        except KafkaException as error:  # a rebalance is in progress, which assigns as well
            self._remark("consumer-assign-refused", str(error))

    def _reassign(self, wheres: Sequence[TopicPartition]) -> None:
        partitions = [KafkaPartition(*where, self._held[where].position) for where in wheres]
        if self._incremental:
            self._consumer.incremental_unassign(partitions)
            self._consumer.incremental_assign(partitions)
        else:
            self._consumer.assign(partitions)
        paused = [KafkaPartition(*where) for where in wheres if self._held[where].paused]
        if paused:
            self._consumer.pause(paused)


def place(one: KafkaPartition) -> TopicPartition:
    """The partition of a librdkafka value, without its offset."""
    return TopicPartition(one.topic, one.partition)


def _passing(error: BaseException) -> bool:
    return isinstance(error, KafkaException) and error_of(error.args[0], "").retriable
