"""A consumer that moves with its group between ZooKeeper's and Kafka's coordination (KIP-125), with confluent-kafka's interface.

::

    consumer = MigratingConsumer({
        "bootstrap.servers": "...", "group.id": "g", "zookeeper.connect": "host:2181/chroot",
        "coordination.migration.enabled": True,          # False: a member that only ZooKeeper coordinates
    })
    consumer.subscribe(["orders"], on_assign=..., on_revoke=..., on_lost=...)
    while running:
        message = consumer.poll(1.0)

Properties: librdkafka's; the ZooKeeper consumer's (`settings`), whose `partition.assignment.strategy` is ZooKeeper's;
`coordination.migration.enabled`, and any of the embedded Kafka consumer's behind that prefix.

* Records are returned, and callbacks run, only in the thread that polls. Callbacks get the partitions that change, not all
  (as with cooperative rebalancing). `global_assignment` has the whole group's, in `on_assign` as the legacy listener had it.
* A record counts as consumed when the next `poll` or `consume` asks for more, or when `close` is called; an automatic commit is
  the offset after it. With `enable.auto.commit` off only `commit` commits.
* After `on_revoke` no record of the partition is returned; it is freed only when its last commit is done. An application that
  does not poll keeps other members waiting; after `max.poll.interval.ms` its process is ended, since only that frees the
  partitions.
* While ZooKeeper is unavailable nothing is delivered; delivery resumes by itself (`core.member.membership` has the rule).

Unlike confluent-kafka's: no `seek`, `assign` or transactions (refused by name); `subscribe` may be called once.

`consumer_of` creates it, or a Kafka consumer, by one setting that is changed from restart to restart::

    consumer = consumer_of({..., "coordination.migration.stage": "zookeeper"})   # then "migrating", then "kafka"

The other properties stay: those of a migrating consumer are left out once they mean nothing.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import TimeoutError as FutureTimeout
from functools import singledispatchmethod
from pathlib import Path
from typing import Any, Final, Self

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from airflow_provider_kmigrate.applications.assignment import topic_partition_of
from airflow_provider_kmigrate.applications.audited import METADATA_MAGIC, AuditedConsumer, Callback, offsets_to_commit
from airflow_provider_kmigrate.applications.event_log import FileSink, Sink
from airflow_provider_kmigrate.applications.migrating.delivery import Active, DeliveryBuffer
from airflow_provider_kmigrate.applications.migrating.runner import (
    CommitAnswer,
    Connect,
    Inbox,
    MemberRunner,
    format_prometheus,
    metrics_of,
    with_metrics_in_stats,
)
from airflow_provider_kmigrate.applications.migrating.settings import (
    ClientStage,
    MigratingSettings,
    is_own_setting,
    parse_settings,
    registration_of,
    stage_of,
    with_current_names,
)
from airflow_provider_kmigrate.applications.migrating.zookeeper import GroupSession
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.member import messages
from airflow_provider_kmigrate.core.member.group_seen import Store
from airflow_provider_kmigrate.core.member.registration import Mode
from airflow_provider_kmigrate.core.member.state import UnknownAssignment, is_current_generation, stores_of_mode
from airflow_provider_kmigrate.exceptions import Refused

_log = logging.getLogger(__name__)
_GROUPS: Final = "The group assigns its partitions, in both modes."
_NOTED: Final = "An operator's reset moves a partition: /consumers/<group>/migration/reset/<topic>/<partition>."
_ABSENT: Final = {
    "assign": _GROUPS,
    "unassign": _GROUPS,
    "unsubscribe": f"{_GROUPS} Close it, and create another one.",
    "seek": f"Neither store, nor the partition's next owner, would know of it. {_NOTED}",
    "store_offsets": "Offsets are committed to two stores, in the order of the mode: use commit.",
}


OnCommit = Callable[[KafkaError | None, list[KafkaPartition]], object]

_SLICE_S: Final = 0.03  # of a long wait for records; pending work is done in between
_COMMIT_S: Final = 10.0
_ANSWER_S: Final = 5.0


class MigratingConsumer:
    """One member, for one thread. Raises `Refused` for settings that it cannot honour.

    Methods without a description are the consumer's. `end` ends the process if only its death frees a partition; `connect` opens
    the ZooKeeper session. `ours_until`, in `on_lost`: until then (monotonic) no other member could have the lost partitions; None:
    perhaps until just now.
    """

    def __init__(
        self, properties: Mapping[str, Any], *, end: Callable[[int], object] = os._exit, connect: Connect = GroupSession
    ) -> None:
        remaining_properties = dict(properties)
        self._on_commit: OnCommit | None = remaining_properties.pop("on_commit", None)
        self.settings: MigratingSettings = parse_settings(remaining_properties)
        self.consumer_id = self.settings.consumer_id(socket.gethostname(), time.time_ns() // 1_000_000, uuid.uuid4().int)
        self._data = Consumer(
            {"client.id": f"{self.consumer_id}-data", **with_metrics_in_stats(self.settings.data, self.metrics)}
        )
        self._end, self._connect = end, connect
        self._runner: MemberRunner | None = None
        self._callbacks: dict[str, Callback | None] = {}
        self._buffer = DeliveryBuffer(self._data, self.settings.reset)
        self._next_commit = time.monotonic() + self.settings.commit_every if self.settings.auto_commit else float("inf")
        self.ours_until: float | None = None
        self._closed = False

    def __getattr__(self, name: str) -> Any:
        """An unsupported method is absent, as any other name, and the alternative is named."""
        raise AttributeError(f"{type(self).__name__} has no {name}. {_ABSENT.get(name, '')}".rstrip())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def subscribe(
        self,
        topics: list[str],
        on_assign: Callback | None = None,
        on_revoke: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> None:
        """Join the group. One entry that begins with `^` is a white list; it must match whole names."""
        self._require_open()
        if self._runner is not None:
            text = "A migrating consumer subscribes once: a changed registration makes every ZooKeeper consumer of the group rebalance."
            raise Refused.because(Reason("Y06", text))
        self._callbacks = {"assign": on_assign, "revoke": on_revoke, "lost": on_lost or on_revoke}
        registration = registration_of(topics, time.time_ns() // 1_000_000)
        self._runner = MemberRunner(self.settings, self.consumer_id, registration, self._end, self._connect)
        self._runner.start()

    def poll(self, timeout: float | None = None) -> Message | None:
        """The next record, or an error: of a fetch, or one that keeps it out of Kafka's group for good; None: none in time."""
        if (message := self._take_fetched_record()) is not None:
            return message
        remaining_s = float("inf") if timeout is None or timeout < 0 else timeout
        deadline = time.monotonic() + remaining_s
        while True:
            self._do_pending_work()
            wait = min(remaining_s, _SLICE_S)
            message = self._next_message(self._runner, wait) if self._runner else self._data.poll(wait)
            if message is not None:
                return message
            if (remaining_s := deadline - time.monotonic()) <= 0.0:
                return None

    def _take_fetched_record(self) -> Message | None:
        """A record that is fetched already, unless pending work must be done before it is returned."""
        runner = self._runner
        if runner is None or runner.inbox or (now := time.monotonic()) >= self._next_commit:
            return None
        return self._buffer.take_fetched_record(runner.member, now)

    def _next_message(self, runner: MemberRunner, wait: float) -> Message | None:
        error = runner.take_permanent_error()  # a message without a value is false
        return self._buffer.next_message(runner.member, wait) if error is None else error

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """Return up to so many as soon as there are any; negative timeout: wait forever."""
        deadline = time.monotonic() + timeout if timeout >= 0 else float("inf")
        while True:
            self._do_pending_work()
            wait = min(max(0.0, deadline - time.monotonic()), _SLICE_S)
            messages = (
                self._next_messages(self._runner, num_messages, wait) if self._runner else self._data.consume(num_messages, wait)
            )
            if messages or time.monotonic() >= deadline:
                return messages

    def _next_messages(self, runner: MemberRunner, count: int, wait: float) -> list[Message]:
        error = runner.take_permanent_error()
        return self._buffer.next_messages(runner.member, count, wait) if error is None else [error]

    # -------------------------------------------------------------------------------------------------- pending work

    def _do_pending_work(self) -> None:
        """Count everything returned so far as consumed (the application asks for more, or closes), then do the pending work."""
        if self._runner is None:
            return
        inbox = self._runner.inbox
        while inbox:
            batch = [inbox.popleft()]
            while inbox and type(inbox[0]) is type(batch[0]):  # neighbouring actions of a kind: one callback
                batch.append(inbox.popleft())
            self._carry_out(batch[0], batch)
        self._buffer.fetch_again(self._runner.member)
        if time.monotonic() >= self._next_commit:
            self._next_commit = time.monotonic() + self.settings.commit_every
            for topic_partition, active_partition in self._buffer.active.items():
                if (offset := active_partition.uncommitted_offset) is not None:
                    active_partition.asked = offset
                    self._runner.commit(topic_partition, active_partition.generation, offset)

    @singledispatchmethod
    def _carry_out(self, first: Inbox, batch: list[Any]) -> None:  # noqa: ARG002  # the registered ones use it
        raise TypeError(first)

    @_carry_out.register
    def _start_deliveries(self, _: messages.StartDelivery, batch: list[messages.StartDelivery]) -> None:
        for action in batch:
            self._buffer.active[action.where] = Active.starting_at(action.generation, action.offset)
        partitions = [
            KafkaPartition(*action.where, OFFSET_INVALID if action.offset is None else action.offset) for action in batch
        ]
        try:
            self._run_callback("assign", partitions)
        finally:
            self.incremental_assign(
                [partition for partition in partitions if not self._buffer.active[topic_partition_of(partition)].fetches]
            )

    @_carry_out.register
    def _stop_deliveries(self, _: messages.StopDelivery, batch: list[messages.StopDelivery]) -> None:
        """Those that are not the member's any more are left to their Drop, which follows: a new session says nothing about them."""
        assert self._runner  # noqa: S101  # only it reports a Stop
        member = self._runner.member
        held_actions = [
            action
            for action in batch
            if self._holds_partition(action) and is_current_generation(member, action.where, action.generation)
        ]
        # the session certainly lives; after a long sleep others may have had its partitions for a while
        session_alive, self.ours_until = member.live and time.monotonic() < member.lease, member.kept
        try:
            if held_actions:
                self._run_callback(
                    "revoke" if session_alive else "lost", [self._buffer.position_of(action.where) for action in held_actions]
                )
        finally:
            for action in held_actions:
                self._finish_stop(action)

    def _finish_stop(self, action: messages.StopDelivery) -> None:
        active_partition = self._buffer.active[action.where]
        offset_to_commit = active_partition.position if self.settings.auto_commit and active_partition.position >= 0 else None
        self._buffer.forget(action.where)
        assert self._runner  # noqa: S101
        self._runner.post(messages.Stopped(action.where, action.generation, offset_to_commit))

    @_carry_out.register
    def _drop_partitions(self, _: messages.Drop, batch: list[messages.Drop]) -> None:
        partitions = [self._buffer.forget(action.where) for action in batch if self._holds_partition(action)]
        ends = [action.until for action in batch if action.until is not None]
        self.ours_until = max(ends) if len(ends) == len(batch) else None
        if partitions:
            self._run_callback("lost", partitions)

    @_carry_out.register
    def _pause_deliveries(self, _: messages.PauseDelivery, batch: list[messages.PauseDelivery]) -> None:
        for action in filter(self._holds_partition, batch):
            self._buffer.halt(action.where)

    @_carry_out.register
    def _resume_deliveries(self, _: messages.Resume, batch: list[messages.Resume]) -> None:
        """What may be delivered again is fetched again by itself."""

    @_carry_out.register
    def _report_commits(self, _: messages.CommitDone, batch: list[messages.CommitDone]) -> None:
        """The answer of the mode's own store counts."""
        primary = self._primary_store()
        accepted = [done for done in batch if primary not in done.failed]
        refused = [done for done in batch if primary in done.failed]
        for done in accepted:
            if self._holds_partition(done):
                self._buffer.active[done.where].committed = done.offset
        for error, commits in ((None, accepted), (KafkaError(KafkaError.COORDINATOR_NOT_AVAILABLE), refused)):
            if commits and self._on_commit is not None:
                self._on_commit(error, [KafkaPartition(*done.where, done.offset) for done in commits])

    def _primary_store(self) -> Store:
        return stores_of_mode(self._runner.member.mode if self._runner else Mode.ZOOKEEPER)[0]

    def _holds_partition(
        self, action: messages.StopDelivery | messages.Drop | messages.PauseDelivery | messages.CommitDone
    ) -> bool:
        active_partition = self._buffer.active.get(action.where)
        return active_partition is not None and active_partition.generation == action.generation

    def _run_callback(self, name: str, partitions: list[KafkaPartition]) -> None:
        if (callback := self._callbacks.get(name)) is not None:
            callback(self, partitions)

    # ---------------------------------------------------------------------------------------------------------- fetching

    def incremental_assign(self, partitions: list[KafkaPartition]) -> None:
        """In `on_assign`: begin partitions elsewhere. Partitions that are not held are ignored."""
        self._buffer.fetch(partitions)

    def incremental_unassign(self, partitions: list[KafkaPartition]) -> None:
        """Stop fetching these; `incremental_assign` must follow."""
        self._buffer.stop_fetching(partitions)

    def pause(self, partitions: list[KafkaPartition]) -> None:
        """Return no records of these until `resume`; they stay held. Partitions that are not held are ignored."""
        self._buffer.pause(partitions, paused=True)

    def resume(self, partitions: list[KafkaPartition]) -> None:
        """Return records of these again. Partitions that are not held are ignored."""
        self._buffer.pause(partitions, paused=False)

    # ----------------------------------------------------------------------------------------------------------- commits

    def commit(
        self, message: Message | None = None, offsets: list[KafkaPartition] | None = None, asynchronous: bool = True
    ) -> list[KafkaPartition] | None:
        """Commit to ZooKeeper and Kafka, the mode's own store first; without arguments everything that was returned.

        Synchronous: raises KafkaException if a partition was not held any more, nothing was returned up to there, or the mode's
        own store did not take it in time. A commit that the other store did not take is retried by itself.
        """
        self._require_open()
        targets = self._commit_targets(message, offsets)
        answers = [(partition, self._request_commit(partition)) for partition in targets]
        if asynchronous:
            return None
        deadline = time.monotonic() + _COMMIT_S
        for partition, answer in answers:
            self._require_committed(partition, answer, deadline)
        return targets

    def _commit_targets(self, message: Message | None, offsets: list[KafkaPartition] | None) -> list[KafkaPartition]:
        if message is not None or offsets is not None:
            return offsets_to_commit(message, offsets)
        return [
            KafkaPartition(*topic_partition, active_partition.position)
            for topic_partition, active_partition in self._buffer.active.items()
            if active_partition.position >= 0
        ]

    def _request_commit(self, partition: KafkaPartition) -> CommitAnswer | None:
        active_partition = self._buffer.active.get(topic_partition_of(partition))
        if self._runner is None or active_partition is None or not active_partition.covers(partition.offset):
            return None
        active_partition.asked = partition.offset
        return self._runner.commit(topic_partition_of(partition), active_partition.generation, partition.offset)

    def _require_committed(self, partition: KafkaPartition, answer: CommitAnswer | None, deadline: float) -> None:
        try:
            failed = None if answer is None else answer.result(max(0.0, deadline - time.monotonic()))
        except FutureTimeout:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"commit of {partition}")) from None  # noqa: SLF001
        if failed is None:
            raise KafkaException(KafkaError(KafkaError.ILLEGAL_GENERATION, f"{partition} is not held"))
        if self._primary_store() in failed:
            raise KafkaException(
                KafkaError(KafkaError.COORDINATOR_NOT_AVAILABLE, f"{self._primary_store()} did not take {partition}")
            )

    def committed(self, partitions: list[KafkaPartition], timeout: float = _ANSWER_S) -> list[KafkaPartition]:
        """The last commit in their mode's store for held partitions; Kafka's for others."""
        active_partitions = {partition: self._buffer.active.get(topic_partition_of(partition)) for partition in partitions}
        others = [partition for partition, active_partition in active_partitions.items() if active_partition is None]
        committed_offsets = iter(self._data.committed(others, timeout=timeout) if others else [])
        return [
            next(committed_offsets)
            if active_partition is None
            else KafkaPartition(partition.topic, partition.partition, active_partition.committed)
            for partition, active_partition in active_partitions.items()
        ]

    # --------------------------------------------------------------------------------------------------------- queries

    def assignment(self) -> list[KafkaPartition]:
        """Held partitions, sorted, each with the offset after its last returned record."""
        return [self._buffer.position_of(topic_partition) for topic_partition in sorted(self._buffer.active)]

    def position(self, partitions: list[KafkaPartition]) -> list[KafkaPartition]:
        """The offset after the last returned record of each."""
        topic_partitions = [topic_partition_of(partition) for partition in partitions]
        return [
            self._buffer.position_of(topic_partition)
            if topic_partition in self._buffer.active
            else KafkaPartition(*topic_partition)
            for topic_partition in topic_partitions
        ]

    def global_assignment(self) -> dict[str, dict[int, str]] | None:
        """The assignment of the whole group, topic -> partition -> thread id, as the legacy consumer gives it to a rebalance listener.

        For `on_assign`, and any later call. Kafka consumers have no threads: their client.id stands for one. While Kafka coordinates the
        coordinator is asked, for seconds at most. None: it is not known for certain; a log line has the reason.
        """
        owners = self._runner.read_global_assignment() if self._runner else UnknownAssignment.NOT_OBSERVED
        if isinstance(owners, UnknownAssignment):
            _log.info("%s: the group's assignment is not known: %s", self.consumer_id, owners)
            return None
        assignment: dict[str, dict[int, str]] = {}
        for topic_partition, thread in sorted(owners.items()):
            assignment.setdefault(topic_partition.topic, {})[topic_partition.partition] = thread
        return assignment

    def metrics(self) -> dict[str, int]:
        """KIP-125's metrics: whether Kafka coordinates by this member's last observation, and how many partitions Kafka assigned."""
        return metrics_of(self._runner.member if self._runner else None)

    def metrics_text(self) -> str:
        """The same for Prometheus, labelled `group` and `client`."""
        age = self._runner.members_age if self._runner else float("inf")
        return format_prometheus(self.metrics(), self.settings.group, self.consumer_id, age)

    def consumer_group_metadata(self) -> bytes:
        """Group metadata in librdkafka's form, for wrappers; without a generation, since ZooKeeper has none."""
        return METADATA_MAGIC + struct.pack("=i", -1) + self.settings.group.encode() + b"\0\0\0"

    def get_watermark_offsets(self, partition: KafkaPartition, *args: Any, **kwargs: Any) -> Any:
        """As confluent_kafka's: (low, high), asked of Kafka in both modes."""
        return self._data.get_watermark_offsets(partition, *args, **kwargs)

    def list_topics(self, *args: Any, **kwargs: Any) -> Any:
        """As confluent_kafka's, asked of Kafka in both modes."""
        return self._data.list_topics(*args, **kwargs)

    def close(self, timeout: float = 30.0) -> None:
        """Stop, commit and release every partition, leave both groups; this member's other znodes go with its session."""
        if self._closed:
            return
        if self._runner:
            self._leave_groups(self._runner, time.monotonic() + timeout)
        self._closed = True
        self._data.close()

    def _leave_groups(self, runner: MemberRunner, deadline: float) -> None:
        runner.post(messages.Closing())
        while not runner.member.closed and time.monotonic() < deadline:
            self._do_pending_work()
            time.sleep(0.005)
        runner.close()
        self._do_pending_work()

    def _require_open(self) -> None:
        if self._closed:
            raise RuntimeError("Consumer closed")


ASSIGNOR: Final = "range"
"""The only assignor that migrating members share with Kafka consumers, and only while Kafka coordinates (`migrating.kafka`)."""


def consumer_of(properties: Mapping[str, Any], **options: Any) -> MigratingConsumer | Consumer:
    """Make the consumer of the stage: a `MigratingConsumer` that takes `options`, or in stage `kafka` a Kafka consumer.

    The stage is `coordination.migration.stage`. Raises `Refused` (Y06) for what a stage cannot do.
    """
    if stage_of(properties) is ClientStage.KAFKA:
        return Consumer(kafka_properties(properties))
    return MigratingConsumer(properties, **options)


def audited_of(properties: Mapping[str, Any], audit: Sink | Path | str, **options: Any) -> AuditedConsumer:
    """The same, with its deliveries, commits and ownership written to a folder or sink; `options` are AuditedConsumer's."""
    stage_options = {} if stage_of(properties) is ClientStage.KAFKA else {"incremental": True}
    sink = FileSink(audit) if isinstance(audit, Path | str) else audit
    return AuditedConsumer.of(properties, sink, connect=consumer_of, **stage_options, **options)


def kafka_properties(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Properties of librdkafka, with the assignor that lets it into a group with migrating members.

    Without a `client.id` the member is called by its `consumer.id`, by which kmigrate identifies the instance.
    """
    current_properties = with_current_names(properties)
    client_id_property = {"client.id": current_properties["consumer.id"]} if current_properties.get("consumer.id") else {}
    client_properties = {name: value for name, value in current_properties.items() if not is_own_setting(name)}
    return {**client_id_property, **client_properties, "partition.assignment.strategy": ASSIGNOR}
