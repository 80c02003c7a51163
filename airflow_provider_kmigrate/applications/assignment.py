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
from airflow_provider_kmigrate.core.events.model import TopicPartition

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

    `position`: the next offset, or one of librdkafka's negative ones before the first record. `last_record_at`: time of the last record.
    """

    position: int
    last_record_at: float
    delivered: bool = False
    paused: bool = False

    @property
    def can_reassign(self) -> bool:
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
        timeouts: AssignmentTimeouts | None = None,
        *,
        incremental: bool | None = None,
    ) -> None:
        self._consumer = consumer
        self._remark = remark
        self._reset = RESETS.get(reset or "", OFFSET_INVALID)
        self._timeouts = timeouts or AssignmentTimeouts()
        self._held: dict[TopicPartition, _Held] = {}
        self._incremental = incremental
        self._next_check = time.monotonic() + self._timeouts.check_every
        self._next_recovery = 0.0

    def positions(self) -> dict[TopicPartition, int]:
        """The next offset of each partition that has delivered a record."""
        return {
            topic_partition: held_partition.position
            for topic_partition, held_partition in self._held.items()
            if held_partition.delivered
        }

    def resolve_starts(self, partitions: list[KafkaPartition]) -> list[KafkaPartition]:
        """Start of each: the group's commit, else what `reset` says; unchanged if the coordinator does not answer in time."""
        if not partitions:
            return []
        stop, wait = stop_after_delay(self._timeouts.committed), wait_fixed(_RETRY_S)
        try:
            starts = Retrying(retry=retry_if_exception(_is_retriable), stop=stop, wait=wait, reraise=True)(
                self._fetch_committed, partitions
            )
        except KafkaException as error:
            self._remark("consumer-no-offsets", f"did not get the committed offsets: {error}")
            return partitions  # librdkafka fetches them again, and `watch` checks the result
        for partition in starts:
            if partition.offset < 0:
                partition.offset = self._initial_offset(partition)
        return starts

    def _initial_offset(self, partition: KafkaPartition) -> int:
        """Start of a group without a commit. The end is a number, so that assigning again skips no newer record."""
        if self._reset != OFFSET_END:
            return self._reset
        try:
            return self._read_watermarks(partition)[1]
        except KafkaException:
            return OFFSET_INVALID

    def _read_watermarks(self, partition: KafkaPartition) -> tuple[int, int]:
        """The log's first offset and the one after its last record."""
        return self._consumer.get_watermark_offsets(partition, timeout=self._timeouts.answer, cached=False)

    def _fetch_committed(self, partitions: list[KafkaPartition]) -> list[KafkaPartition]:
        committed = self._consumer.committed(partitions, timeout=min(5.0, self._timeouts.committed))
        for partition in committed:
            if partition.error is not None:
                raise KafkaException(partition.error)
        return committed

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
        self._held |= {topic_partition_of(partition): _Held(partition.offset, now) for partition in partitions}

    def drop(self, partitions: Iterable[KafkaPartition]) -> None:
        """Forget these partitions; those that are not held are ignored."""
        for partition in partitions:
            self._held.pop(topic_partition_of(partition), None)

    def clear(self) -> None:
        """Forget every partition; the consumer itself is not asked."""
        self._held.clear()

    def record_delivery(self, topic_partition: TopicPartition, offset: int) -> None:
        """Note a delivered record's offset; ignores partitions that are not owned."""
        held_partition = self._held.get(topic_partition)
        if held_partition is not None:  # else it came without ownership, which is for the ledger to find
            held_partition.position, held_partition.last_record_at, held_partition.delivered = offset + 1, time.monotonic(), True

    def record_seek(self, topic_partition: TopicPartition, offset: int) -> None:
        """Follow the application's seek to another offset."""
        if topic_partition in self._held:
            self._held[topic_partition].position = offset

    def pause(self, partitions: Iterable[KafkaPartition], *, paused: bool) -> None:
        """Follow the application's pause or resume: a paused partition is not assigned again by `watch`."""
        for partition in partitions:
            held_partition = self._held.get(topic_partition_of(partition))
            if held_partition is not None:
                held_partition.paused, held_partition.last_record_at = paused, time.monotonic()

    def reassign_stalled(self) -> None:
        """Assign partitions without records again if records wait in the one idle longest. Call it when a poll brought nothing."""
        now, timeouts = time.monotonic(), self._timeouts
        if now < self._next_check:
            return
        self._next_check = now + timeouts.check_every
        unresponsive = [
            topic_partition
            for topic_partition, held_partition in self._held.items()
            if held_partition.can_reassign and now - held_partition.last_record_at > timeouts.unresponsive_after
        ]
        if unresponsive:
            self._reassign_if_records_wait(
                min(unresponsive, key=lambda topic_partition: self._held[topic_partition].last_record_at), unresponsive
            )

    def _reassign_if_records_wait(self, topic_partition: TopicPartition, unresponsive: list[TopicPartition]) -> None:
        held_partition = self._held[topic_partition]
        try:
            start, end = self._read_watermarks(KafkaPartition(*topic_partition))
        except KafkaException:
            return  # no leader to ask: then there is nothing to fetch either
        if end > max(start, held_partition.position):
            self.assign_again(f"{topic_partition.name} delivered nothing at {held_partition.position} of {end}", unresponsive)
        else:
            held_partition.last_record_at = time.monotonic()  # no record waits; ask about another partition next time

    def on_coordinator_moved(self) -> None:
        """React to a moved coordinator; librdkafka reports it once for each partition, within milliseconds."""
        now = time.monotonic()
        if self._held and now >= self._next_recovery:
            self._next_recovery = now + _SAME_MOVE_S
            self.assign_again("the coordinator moved")

    def assign_again(self, why: str, topic_partitions: Iterable[TopicPartition] | None = None) -> None:
        """Assign these partitions, or all, again from their positions."""
        self._remark("consumer-assigned-again", why)
        topic_partitions = list(self._held if topic_partitions is None else topic_partitions)
        for start in self.resolve_starts(
            [
                KafkaPartition(*topic_partition)
                for topic_partition in topic_partitions
                if self._held[topic_partition].position == OFFSET_INVALID
            ]
        ):
            self._held[topic_partition_of(start)].position = start.offset
        now = time.monotonic()
        for topic_partition in topic_partitions:
            self._held[topic_partition].last_record_at = now
        try:
            self._assign_from_positions(topic_partitions if self._incremental else list(self._held))
        except KafkaException as error:  # a rebalance is in progress, which assigns as well
            self._remark("consumer-assign-refused", str(error))

    def _assign_from_positions(self, topic_partitions: Sequence[TopicPartition]) -> None:
        partitions = [
            KafkaPartition(*topic_partition, self._held[topic_partition].position) for topic_partition in topic_partitions
        ]
        if self._incremental:
            self._consumer.incremental_unassign(partitions)
            self._consumer.incremental_assign(partitions)
        else:
            self._consumer.assign(partitions)
        paused = [KafkaPartition(*topic_partition) for topic_partition in topic_partitions if self._held[topic_partition].paused]
        if paused:
            self._consumer.pause(paused)


def topic_partition_of(partition: KafkaPartition) -> TopicPartition:
    """The partition of a librdkafka value, without its offset."""
    return TopicPartition(partition.topic, partition.partition)


def _is_retriable(error: BaseException) -> bool:
    return isinstance(error, KafkaException) and error_of(error.args[0], "").retriable
