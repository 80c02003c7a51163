"""The raw log of `__consumer_offsets`: where the records of groups are, whatever their coordinators say; and the removal of copies.

Brokers answer from memory, and a broker that leads two partitions of a group shows one of the copies only. The log is the witness
of what the next broker will load.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any, Final

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from airflow_provider_kmigrate.clients.admin import client_of, error_of, read_marks
from airflow_provider_kmigrate.clients.holding import UNFENCED_GAP, Holding
from airflow_provider_kmigrate.clients.znodes import batches
from airflow_provider_kmigrate.core.audit.offsets_records import GroupState, OffsetCommitted, OffsetRemoved, RawRecord, decode
from airflow_provider_kmigrate.core.coordination.registration import OFFSETS_TOPIC
from airflow_provider_kmigrate.core.events import LogMark
from airflow_provider_kmigrate.core.ledger.book import GroupPartition
from airflow_provider_kmigrate.core.model import Reason
from airflow_provider_kmigrate.core.offsets_repair import GroupLog, StoredCommit, StoredGroup, StrayRecord, groups_of
from airflow_provider_kmigrate.core.text import summarize
from airflow_provider_kmigrate.exceptions import Failed, TimedOut, Unavailable

_POLL_S: Final = 1.0
_FEW: Final = 500  # records of one poll
_TRANSACTIONS_S: Final = 120.0  # for open transactions to end: twice what producers give theirs by default
#: Without the reset, librdkafka begins at the end of a log whose start has moved on meanwhile: the partition would look empty.
_READS: Final = {
    "group.id": "kmigrate-offsets-log",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
    "auto.offset.reset": "earliest",
}
#: Brokers let only this client write to Kafka's own topics (KafkaApis, AdminUtils of 0.11 to 3.9).
_ADMIN: Final = {
    "client.id": "__admin_client",
    "acks": "all",
    "enable.idempotence": False,
    "message.timeout.ms": int(UNFENCED_GAP * 1000),
}


class OffsetsLog:
    """The topic of one cluster. `properties`: librdkafka's."""

    def __init__(self, properties: Mapping[str, Any]) -> None:
        self._properties = properties

    def read(self, groups: Collection[str] | None = None, *, newest: bool = False, timeout: float = 600.0) -> dict[str, GroupLog]:
        """The records of these groups, or of all, in every partition of the topic as of now.

        Nothing without the topic. `newest`: of each commit only the last record in each partition; all records of a large topic need much memory. Records of
        aborted transactions are left out. Raises `Unavailable` for a partition that cannot be read, or in which an open transaction
        hides records (K81), `TimedOut` after `timeout` seconds, and what `offsets_records.decode` raises: what a record says of its
        group must be known here.
        """
        return _sorted(_records(self._properties, timeout), None if groups is None else set(groups), newest=newest)

    def prove_readable(self, timeout: float = 30.0) -> None:
        """Read one record of the topic, if it has any. Raises as `read`."""
        next(_records(self._properties, timeout, wait=False), None)

    def remove(self, strays: Iterable[StrayRecord], holding: Holding, timeout: float = 60.0) -> None:
        """Write each record's key again, without a value, into its partition: no broker loads the copy then.

        The fence is read again before each `_FEW` of them. Safe to repeat. A broker that has loaded the copy keeps it until it restarts. Raises `TimedOut` after `timeout` seconds, `Failed`
        or what a broker answers; then some may be written.
        """
        refused: list[KafkaError] = []

        def delivered(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                refused.append(error)

        producer, deadline = client_of(Producer, {**self._properties, **_ADMIN}), time.monotonic() + timeout
        late = TimedOut(
            f"not all copies in {OFFSETS_TOPIC} were removed within {timeout:g} s: find out why brokers are slow, and repeat it"
        )
        for some in batches(strays, _FEW):
            holding.check()
            for stray in some:
                if not stray.raw_key:
                    raise Failed(f"the key of a copy of {stray.group} in partition {stray.place} is unknown")
                while not _produced(producer, stray, delivered):
                    if time.monotonic() > deadline:
                        raise late
                    producer.poll(_POLL_S)
            if producer.flush(max(0.0, deadline - time.monotonic())):
                raise late
        if refused:
            raise error_of(refused[0], f"removing copies in {OFFSETS_TOPIC}")


def _produced(producer: Any, stray: StrayRecord, delivered: Callable[..., None]) -> bool:
    """False if librdkafka's queue is full: it holds 100,000 records, and a cluster may have more copies."""
    try:
        producer.produce(OFFSETS_TOPIC, None, stray.raw_key, stray.place, on_delivery=delivered)
    except BufferError:
        return False
    except KafkaException as error:
        raise error_of(error.args[0], f"removing copies in {OFFSETS_TOPIC}") from error
    return True


def _sorted(records: Iterable[RawRecord], wanted: Collection[str] | None, *, newest: bool) -> dict[str, GroupLog]:
    commits = dict[tuple[GroupPartition, int, int], tuple[GroupPartition, StoredCommit]]()
    states = dict[tuple[str, int], StoredGroup | None]()
    for raw in records:
        record = decode(raw.key, raw.value)
        group = getattr(record, "group", None)
        if group is None or not (wanted is None or group in wanted):
            continue
        if isinstance(record, OffsetCommitted | OffsetRemoved):
            key = GroupPartition(record.group, record.topic, record.partition)
            commits[key, raw.partition, -1 if newest else raw.offset] = (key, _stored(raw, record))
        elif raw.key is not None and raw.key[:2] == _CLASSIC:
            there = isinstance(record, GroupState)
            states[group, raw.partition] = StoredGroup(raw.partition, raw.offset, raw.key) if there else None
    return groups_of(commits.values(), ((group, state) for (group, _), state in states.items() if state))


_CLASSIC: Final = b"\0\2"  # the version of the key of a classic group's state


def _stored(raw: RawRecord, record: OffsetCommitted | OffsetRemoved) -> StoredCommit:
    removed = StoredCommit(raw.partition, raw.offset, raw.t_ms, raw.t_ms, None, key=raw.key or b"")
    if isinstance(record, OffsetRemoved):
        return removed
    return removed._replace(
        commit_ms=record.commit_ms,
        offset=record.offset,
        leader_epoch=record.leader_epoch,
        metadata=record.metadata,
        expire_ms=record.expire_ms,
    )


def _records(properties: Mapping[str, Any], timeout: float, *, wait: bool = True) -> Iterator[RawRecord]:
    wanted = whole_marks(properties) if wait else _marks(properties, IsolationLevel.READ_COMMITTED)
    left = {place for place, mark in wanted.items() if mark.start < mark.end}
    if not left:
        return
    with closing(client_of(Consumer, {**properties, **_READS})) as consumer:
        consumer.assign([KafkaPartition(OFFSETS_TOPIC, place, wanted[place].start) for place in sorted(left)])
        deadline = time.monotonic() + timeout
        while left:
            if time.monotonic() > deadline:
                raise TimedOut(f"{len(left)} partitions of {OFFSETS_TOPIC} were not read within {timeout:g} s")
            for message in consumer.consume(_FEW, _POLL_S):
                if not _ended(message):
                    yield _raw(message)
                # A leader shows only what its followers have, and one that was just elected does not know that yet: it may end the log
                # before records that all have (seen once: two groups without any record, of a partition that had them).
                elif (message.offset() or 0) >= wanted[message.partition()].end:
                    left.discard(message.partition())


def whole_marks(properties: Mapping[str, Any]) -> dict[int, LogMark]:
    """Where each partition of the topic begins and ends once no transaction that is open now hides records.

    An open transaction hides all records behind its first one, also those of other groups. One that hangs hides them for ever: what
    seems to be a group's newest commit is an old one then. Raises `Unavailable` (K81) if they stay hidden for two minutes, and for a
    partition that cannot be read.
    """
    deadline = time.monotonic() + _TRANSACTIONS_S
    ends = {place: mark.end for place, mark in _marks(properties, IsolationLevel.READ_UNCOMMITTED).items()}
    while True:
        found = _marks(properties, IsolationLevel.READ_COMMITTED)
        hidden = [f"{place} from offset {mark.end} on" for place, mark in sorted(found.items()) if mark.end < ends.get(place, 0)]
        if not hidden:
            return found
        if time.monotonic() > deadline:
            reason = Reason("K81", f"Open transactions hide records of partitions of {OFFSETS_TOPIC}: {summarize(hidden)}.")
            raise Unavailable(str(reason), (reason,))
        time.sleep(_POLL_S)


def _marks(properties: Mapping[str, Any], isolation: IsolationLevel) -> dict[int, LogMark]:
    marks = {where.partition: mark for where, mark in read_marks(properties, [OFFSETS_TOPIC], isolation=isolation).items()}
    if unread := [f"{place}: {mark.unread}" for place, mark in marks.items() if mark.unread]:
        raise Unavailable(f"{OFFSETS_TOPIC} could not be read, partition {unread[0]}")
    return marks


def _ended(message: Message) -> bool:
    """True at the end of a partition; a marker of a transaction may be its last record, so that no offset shows it."""
    error = message.error()
    if error is None:
        return False
    if error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001  # librdkafka's own name
        raise error_of(error, f"reading {OFFSETS_TOPIC}")
    return True


def _raw(message: Any) -> RawRecord:
    return RawRecord(message.partition(), message.offset(), message.timestamp()[1], message.key(), message.value())
