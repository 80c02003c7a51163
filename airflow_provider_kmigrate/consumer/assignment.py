"""The partitions of one librdkafka member, and the way round its stall after a coordinator has moved.

librdkafka asks for committed offsets when it is given partitions without, and gives up for good when it is answered that the
coordinator has just moved (measured with 2.3.0 to 2.16.0 on real brokers: one poll error NOT_COORDINATOR, then no record in 60 s,
group Stable, no further error). A rolling restart provokes exactly that. So:

1. committed offsets are asked for here, with retries, before partitions are assigned, and assigned with them;
2. where a poll reports that the coordinator moved, what is held is assigned once more from where it stands;
3. where nothing at all comes although records wait, the silent partitions are assigned once more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, OFFSET_INVALID, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from tenacity import RetryError, Retrying, retry_if_exception, stop_after_delay, wait_fixed

from airflow_provider_kmigrate.clients.admin import error_of
from airflow_provider_kmigrate.core.events import TopicPartition

COORDINATOR_MOVED: Final = frozenset(
    {KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS}
)
_RETRY_S: Final = 0.2
_SAME_MOVE_S: Final = 1.0
_RESET: Final[Mapping[str, int]] = {
    **dict.fromkeys(("earliest", "smallest", "beginning"), OFFSET_BEGINNING),
    **dict.fromkeys(("latest", "largest", "end"), OFFSET_END),
}

Remark = Callable[[str, str], None]  # code, text


class Assigns(Protocol):
    """What of confluent-kafka's Consumer is used here."""

    def assign(self, partitions: list[KafkaPartition]) -> None: ...
    def incremental_assign(self, partitions: list[KafkaPartition]) -> None: ...
    def incremental_unassign(self, partitions: list[KafkaPartition]) -> None: ...
    def committed(self, partitions: list[KafkaPartition], *, timeout: float) -> list[KafkaPartition]: ...
    def pause(self, partitions: list[KafkaPartition]) -> None: ...
    def get_watermark_offsets(self, partition: KafkaPartition, *, timeout: float, cached: bool) -> Any: ...


@dataclass(slots=True)
class _Held:
    """`position`: the next offset, or one of librdkafka's negative ones before the first record. `heard`: when one last came."""

    position: int
    heard: float
    delivered: bool = False
    paused: bool = False

    @property
    def known(self) -> bool:
        """Assigning it once more neither skips nor repeats a record, nor starts one that the application has paused."""
        return self.position != OFFSET_INVALID and not self.paused


@dataclass(frozen=True, slots=True)
class AssignmentTimeouts:
    """Seconds: how long to ask for committed offsets inside a rebalance, and after how much silence to look for waiting records."""

    committed: float = 20.0
    silence: float = 15.0
    look: float = 5.0
    answer: float = 2.0


class Assignment:
    """Held partitions. `reset` is auto.offset.reset where it is known; where not, librdkafka decides about a group's first start.

    `incremental`: the group rebalances incrementally; None: the first assignment tries it (librdkafka logs a refused try).
    """

    def __init__(
        self,
        consumer: Assigns,
        remark: Remark,
        reset: str | None = None,
        patience: AssignmentTimeouts | None = None,
        *,
        incremental: bool | None = None,
    ) -> None:
        self._consumer = consumer
        self._remark = remark
        self._reset = _RESET.get(reset or "", OFFSET_INVALID)
        self._patience = patience or AssignmentTimeouts()
        self._held: dict[TopicPartition, _Held] = {}
        self._incremental = incremental
        self._next_look = time.monotonic() + self._patience.look
        self._next_recovery = 0.0

    def positions(self) -> dict[TopicPartition, int]:
        """The next offset of each partition of which a record came."""
        return {where: held.position for where, held in self._held.items() if held.delivered}

    def starts(self, partitions: list[KafkaPartition]) -> list[KafkaPartition]:
        """Where to begin each: at what the group committed, else where `reset` says; unchanged where nobody would tell in time."""
        if not partitions:
            return []
        try:
            found = self._retrying()(self._committed, partitions)
        except (KafkaException, RetryError) as error:
            cause = error.last_attempt.exception() if isinstance(error, RetryError) else error
            self._remark("consumer-no-offsets", f"not told the committed offsets: {cause}")
            return partitions  # librdkafka asks for them once more, and the watch looks after it
        for one in found:
            if one.offset < 0:
                one.offset = self._first(one)
        return found

    def _first(self, partition: KafkaPartition) -> int:
        """Where a group without a commit begins: the end as a number, so that assigning once more skips nothing that came since."""
        if self._reset != OFFSET_END:
            return self._reset
        try:
            _, end = self._ends(partition)
        except KafkaException:
            return OFFSET_INVALID
        return int(end)

    def _ends(self, partition: KafkaPartition) -> tuple[int, int]:
        """The first offset of the log and the one behind its last."""
        start, end = self._consumer.get_watermark_offsets(partition, timeout=self._patience.answer, cached=False)
        return start, end

    def _retrying(self) -> Retrying:
        stop = stop_after_delay(self._patience.committed)
        return Retrying(retry=retry_if_exception(_passing), stop=stop, wait=wait_fixed(_RETRY_S))

    def _committed(self, partitions: list[KafkaPartition]) -> list[KafkaPartition]:
        found = self._consumer.committed(partitions, timeout=min(5.0, self._patience.committed))
        for one in found:
            if one.error is not None:
                raise KafkaException(one.error)
        return found

    def assign(self, partitions: list[KafkaPartition]) -> None:
        """Inside a rebalance: in the way of the group's protocol, which the first try tells (librdkafka refuses the other one)."""
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
        """These are ours now, from these offsets on."""
        now = time.monotonic()
        self._held |= {place(one): _Held(one.offset, now) for one in partitions}

    def drop(self, partitions: Iterable[KafkaPartition]) -> None:
        """These are no longer ours."""
        for one in partitions:
            self._held.pop(place(one), None)

    def clear(self) -> None:
        self._held.clear()

    def delivered(self, where: TopicPartition, offset: int) -> None:
        held = self._held.get(where)
        if held is not None:  # else it came without our owning it, which is for the ledger to find
            held.position, held.heard, held.delivered = offset + 1, time.monotonic(), True

    def moved(self, where: TopicPartition, offset: int) -> None:
        """The application went to another offset."""
        if where in self._held:
            self._held[where].position = offset

    def pause(self, partitions: Iterable[KafkaPartition], *, paused: bool) -> None:
        """The application wants nothing from these for now, or wants it again."""
        for one in partitions:
            held = self._held.get(place(one))
            if held is not None:
                held.paused, held.heard = paused, time.monotonic()

    def watch(self) -> None:
        """Call when a poll brought nothing. Where records wait in the partition that was silent longest, assign the silent ones again."""
        now, patience = time.monotonic(), self._patience
        if now < self._next_look:
            return
        self._next_look = now + patience.look
        silent = [where for where, held in self._held.items() if held.known and now - held.heard > patience.silence]
        if silent:
            self._look(min(silent, key=lambda where: self._held[where].heard), silent)

    def _look(self, where: TopicPartition, silent: list[TopicPartition]) -> None:
        held = self._held[where]
        try:
            start, end = self._ends(KafkaPartition(*where))
        except KafkaException:
            return  # no leader to ask: then there is nothing to fetch from either
        if end > max(start, held.position):
            self.again(f"{where.name} was silent at {held.position} of {end}", silent)
        else:
            held.heard = time.monotonic()  # nothing to hear; ask about another one next time

    def coordinator_moved(self) -> None:
        """A poll reported it; it does so once for each partition, within milliseconds."""
        now = time.monotonic()
        if self._held and now >= self._next_recovery:
            self._next_recovery = now + _SAME_MOVE_S
            self.again("the coordinator moved")

    def again(self, why: str, wheres: Iterable[TopicPartition] | None = None) -> None:
        """Assign these, or all, once more from where they stand."""
        self._remark("consumer-assigned-again", why)
        wheres = list(self._held if wheres is None else wheres)
        for one in self.starts([KafkaPartition(*where) for where in wheres if self._held[where].position == OFFSET_INVALID]):
            self._held[place(one)].position = one.offset
        now = time.monotonic()
        for where in wheres:
            self._held[where].heard = now
        try:
            self._reassign(wheres if self._incremental else list(self._held))
        except KafkaException as error:  # a rebalance is under way, which assigns as well
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
