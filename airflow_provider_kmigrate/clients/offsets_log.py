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

from airflow_provider_kmigrate.clients.admin import error_of, make_client, read_marks
from airflow_provider_kmigrate.clients.holding import UNFENCED_GAP, Holding
from airflow_provider_kmigrate.clients.znodes import batches
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.events.model import LogMark
from airflow_provider_kmigrate.core.ledger.book import GroupPartition
from airflow_provider_kmigrate.core.member.registration import OFFSETS_TOPIC
from airflow_provider_kmigrate.core.offsets_topic.offsets_records import (
    GroupState,
    OffsetCommitted,
    OffsetRemoved,
    RawRecord,
    decode_record,
)
from airflow_provider_kmigrate.core.offsets_topic.offsets_repair import (
    GroupLog,
    GroupLogs,
    StoredCommit,
    StoredGroup,
    StrayRecord,
)
from airflow_provider_kmigrate.core.shared.text import count_of, summarize
from airflow_provider_kmigrate.exceptions import Failed, TimedOut, Unavailable

_POLL_S: Final = 1.0
_PROOF_S: Final = 30.0  # for one record
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

    def read(self, groups: Collection[str] | None = None, *, timeout: float = 600.0) -> dict[str, GroupLog]:
        """The records of these groups, or of all, in every partition of the topic as of now.

        Nothing without the topic. The memory that it takes grows with the groups' partitions, not with the records. Records of aborted transactions are left out.
        Raises `Unavailable` for a partition that cannot be read, or in which an open transaction
        hides records (K81), `TimedOut` after `timeout` seconds, and what `offsets_records.decode_record` raises: what a record says of its
        group must be known here.
        """
        return collect_group_logs(_records(self._properties, timeout), None if groups is None else set(groups))

    def prove_readable(self) -> None:
        """Read one record of the topic, if it has any. Raises as `read`."""
        next(_records(self._properties, _PROOF_S, wait=False), None)

    def remove(self, strays: Iterable[StrayRecord], holding: Holding, timeout: float = 60.0) -> None:
        """Write each record's key again, without a value, into its partition: no broker loads the copy then.

        The fence is read again before each `_FEW` of them. Safe to repeat. A broker that has loaded the copy keeps it until it restarts. Raises `TimedOut` after `timeout` seconds, `Failed`
        or what a broker answers; then some may be written.
        """
        refused: list[KafkaError] = []

        def note_refusal(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                refused.append(error)

        producer, deadline = make_client(Producer, {**self._properties, **_ADMIN}), time.monotonic() + timeout
        late = TimedOut(
            f"not all copies in {OFFSETS_TOPIC} were removed within {timeout:g} s: find out why brokers are slow, and repeat it"
        )
        for batch in batches(strays, _FEW):
            holding.check()
            for stray in batch:
                if not stray.raw_key:
                    raise Failed(f"the key of a copy of {stray.group} in partition {stray.place} is unknown")
                while not _produced(producer, stray, note_refusal):
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


def collect_group_logs(records: Iterable[RawRecord], selected_groups: Collection[str] | None) -> dict[str, GroupLog]:
    """The log of each group, or of those of `selected_groups`, from records as `offsets_records.decode_record` reads them; raises what that raises."""
    logs = GroupLogs()
    for raw in records:
        record = decode_record(raw.key, raw.value)
        group = getattr(record, "group", None)
        if group is None or not (selected_groups is None or group in selected_groups):
            continue
        if isinstance(record, OffsetCommitted | OffsetRemoved):
            logs.add_commit(GroupPartition(record.group, record.topic, record.partition), _stored_commit(raw, record))
        elif raw.key is not None and raw.key[:2] == _CLASSIC:
            has_state = isinstance(record, GroupState)
            logs.add_state(group, raw.partition, StoredGroup(raw.partition, raw.offset, raw.key) if has_state else None)
    return logs.build()


_CLASSIC: Final = b"\0\2"  # the version of the key of a classic group's state


def _stored_commit(raw: RawRecord, record: OffsetCommitted | OffsetRemoved) -> StoredCommit:
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
    marks = whole_marks(properties) if wait else _read_marks(properties, IsolationLevel.READ_COMMITTED)
    unread_partitions = {partition for partition, mark in marks.items() if mark.start < mark.end}
    if not unread_partitions:
        return
    with closing(make_client(Consumer, {**properties, **_READS})) as consumer:
        consumer.assign(
            [KafkaPartition(OFFSETS_TOPIC, partition, marks[partition].start) for partition in sorted(unread_partitions)]
        )
        deadline = time.monotonic() + timeout
        while unread_partitions:
            if time.monotonic() > deadline:
                raise TimedOut(
                    f"{count_of(len(unread_partitions), f'partition of {OFFSETS_TOPIC} was', f'partitions of {OFFSETS_TOPIC} were')} not read within {timeout:g} s"
                )
            for message in consumer.consume(_FEW, _POLL_S):
                if not _is_end_of_partition(message):
                    yield _raw_record(message)
                # A leader shows only what its followers have, and one that was just elected does not know that yet: it may end the log
                # before records that all have (seen once: two groups without any record, of a partition that had them).
                elif (message.offset() or 0) >= marks[message.partition()].end:
                    unread_partitions.discard(message.partition())


def whole_marks(properties: Mapping[str, Any]) -> dict[int, LogMark]:
    """Where each partition of the topic begins and ends once no transaction that is open now hides records.

    An open transaction hides all records behind its first one, also those of other groups. One that hangs hides them for ever: what
    seems to be a group's newest commit is an old one then. Raises `Unavailable` (K81) if they stay hidden for two minutes, and for a
    partition that cannot be read.
    """
    deadline = time.monotonic() + _TRANSACTIONS_S
    ends = {partition: mark.end for partition, mark in _read_marks(properties, IsolationLevel.READ_UNCOMMITTED).items()}
    while True:
        marks = _read_marks(properties, IsolationLevel.READ_COMMITTED)
        hidden = [
            f"{partition} from offset {mark.end} on"
            for partition, mark in sorted(marks.items())
            if mark.end < ends.get(partition, 0)
        ]
        if not hidden:
            return marks
        if time.monotonic() > deadline:
            reason = Reason("K81", f"Open transactions hide records of partitions of {OFFSETS_TOPIC}: {summarize(hidden)}.")
            raise Unavailable(str(reason), (reason,))
        time.sleep(_POLL_S)


def _read_marks(properties: Mapping[str, Any], isolation: IsolationLevel) -> dict[int, LogMark]:
    marks = {
        topic_partition.partition: mark
        for topic_partition, mark in read_marks(properties, [OFFSETS_TOPIC], isolation=isolation).items()
    }
    if unread := [f"{partition}: {mark.unread}" for partition, mark in marks.items() if mark.unread]:
        raise Unavailable(f"{OFFSETS_TOPIC} could not be read, partition {unread[0]}")
    return marks


def _is_end_of_partition(message: Message) -> bool:
    """True at the end of a partition; a marker of a transaction may be its last record, so that no offset shows it."""
    error = message.error()
    if error is None:
        return False
    if error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001  # librdkafka's own name
        raise error_of(error, f"reading {OFFSETS_TOPIC}")
    return True


def _raw_record(message: Any) -> RawRecord:
    return RawRecord(message.partition(), message.offset(), message.timestamp()[1], message.key(), message.value())
