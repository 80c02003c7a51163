"""The migrating member (KIP-125) as a pure state machine: what it claims, delivers, commits and releases, and in which order.

**The rule.** In both modes a member delivers a partition only while it holds that partition's owner znode, made by its own live
session. The coordinator (`GroupView.mode`) only decides which znodes to try for. ZooKeeper makes the rule safe without agreement.
Members may see a mode switch at different times, miss a watch, or read half a change: then two want the same partition, and one
of them waits.

    gain:  Claim ──► ReadOffsets ──► Start              lose:  Stop ──► Commit ──► Release

1. Offsets are read after the claim, so that they contain the last owner's last commit.
2. Everything that must be released is released before anything is waited for (R18); a ZooKeeper consumer waits less than 6 s.
3. A member that cannot prove its session delivers nothing (no answer for two thirds of the timeout, a lost connection). It asks
   for the owner of each partition before it continues (R9). A new session starts from nothing: no commit, no delete, everything
   is claimed again.
4. An owner znode that vanished ends the generation (R15): the partition is dropped without a commit, then claimed again.
5. What cannot be computed (an unreadable registration) changes nothing: the member keeps what it holds.

`step` takes one event at a time. The actions of one partition must be carried out in the order in which they were given, and
their answers reported in that order; different partitions and members may overtake each other. No member can prevent the acts of
Kafka consumers, or of ZooKeeper consumers that wake from a pause: they do not know the rule or break it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import singledispatchmethod
from typing import Any

from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.member import messages
from airflow_provider_kmigrate.core.member.assignors import Frozen
from airflow_provider_kmigrate.core.member.group_seen import Store
from airflow_provider_kmigrate.core.member.messages import MemberAlarm
from airflow_provider_kmigrate.core.member.registration import MemberProgress, Mode
from airflow_provider_kmigrate.core.member.state import (
    LEASE,
    LEAVING,
    HeldPartition,
    Member,
    PartitionStage,
    compute_target,
    start_offset,
    stores_of_mode,
    subscribed_partitions,
)
from airflow_provider_kmigrate.core.shared.text import summarize


class Reducer:
    """The work on one event: the member as it changes, and the actions as they accumulate. `on` handles each kind of event."""

    def __init__(self, member: Member, now: float) -> None:
        self.member = member
        self.held = dict(member.held)
        self.actions: list[messages.Action] = []
        self.now = now

    def _update_member(self, **changes: Any) -> None:
        self.member = replace(self.member, **changes)

    def _add_actions(self, *actions: messages.Action) -> None:
        self.actions += actions

    def _raise_alarm(self, alarm: MemberAlarm, about: str) -> None:
        """Raise an alarm once, until `_clear_alarms`."""
        if (alarm, about) not in self.member.raised:
            self._update_member(raised=self.member.raised | {(alarm, about)})
            self._add_actions(messages.Raise(alarm, about))

    def _clear_alarms(self, *alarms: MemberAlarm, about: str | None = None) -> None:
        cleared = {(alarm, text) for alarm, text in self.member.raised if alarm in alarms and about in (None, text)}
        self._update_member(raised=self.member.raised - cleared)

    def _move_to_stage(
        self, partition: TopicPartition, stage: PartitionStage, action: messages.Action | None = None, **changes: Any
    ) -> None:
        """Move a partition to a stage; with an action, it then awaits the answer."""
        waits = action is not None
        self.held[partition] = replace(self.held[partition], stage=stage, since=self.now, asked=self.now, waits=waits, **changes)
        if action is not None:
            self._add_actions(action)

    def _send_and_await(self, partition: TopicPartition, action: messages.Action) -> None:
        self.held[partition] = replace(self.held[partition], asked=self.now, waits=True)
        self._add_actions(action)

    def _partitions_in(self, *stages: PartitionStage) -> list[tuple[TopicPartition, HeldPartition]]:
        return [
            (partition, held_partition)
            for partition, held_partition in sorted(self.held.items())
            if held_partition.stage in stages
        ]

    def _is_due(self, held_partition: HeldPartition, after: float) -> bool:
        return self.now - held_partition.asked >= after

    def _find_partition(self, event: messages.PartitionEvent, *stages: PartitionStage) -> HeldPartition | None:
        """The partition of the event; None if the event belongs to an earlier generation, or to none of the named stages."""
        held_partition = self.held.get(event.where)
        current = (
            held_partition is not None
            and held_partition.generation == event.generation
            and (not stages or held_partition.stage in stages)
        )
        return held_partition if current else None

    def _check_limits(self) -> None:
        settings = self.member.settings
        for partition, held_partition in self._partitions_in(*LEAVING, PartitionStage.CLAIMING):
            if self.now - held_partition.since >= settings.slow:
                self._raise_alarm(
                    MemberAlarm.BLOCKED if held_partition.stage is PartitionStage.CLAIMING else MemberAlarm.SLOW, partition.name
                )
            if held_partition.stage is PartitionStage.STOPPING and self.now - held_partition.since >= settings.poll_limit:
                self._raise_alarm(MemberAlarm.HUNG, partition.name)
                self._add_actions(messages.End())
        if self.member.mode is Mode.KAFKA and self.now - self.member.polled >= settings.poll_limit:
            self._raise_alarm(MemberAlarm.NOT_POLLED, settings.consumer)
        long_unowned = [partition for partition, since in self.member.unowned.items() if self.now - since >= settings.unowned]
        if long_unowned:
            self._raise_alarm(MemberAlarm.UNOWNED, summarize(partition.name for partition in sorted(long_unowned)))

    def _watch_unowned(self, *, stable: bool) -> None:
        view = self.member.view
        assert view is not None  # noqa: S101  # it was just seen
        since = self.member.unowned if stable else {}
        unowned_partitions = subscribed_partitions(self.member.settings, view) - view.owned - view.foreign
        if not unowned_partitions:
            self._clear_alarms(MemberAlarm.UNOWNED)
        self._update_member(unowned={partition: since.get(partition, self.now) for partition in unowned_partitions})

    @singledispatchmethod
    def handle(self, event: messages.MemberEvent) -> None:
        """Handle an event by its type. Raises `TypeError` for a type without a handler."""
        raise TypeError(event)

    # -------------------------------------------------------------------------------------------------- the session

    @handle.register
    def _handle_alive(self, event: messages.Alive) -> None:
        if event.sent < self.member.answered_at:
            return  # an answer that was overtaken
        if event.session != self.member.session:
            self._change_session(event.session)
        was_live = self.member.live
        lease = event.sent + LEASE * event.timeout
        self._update_member(answered_at=event.sent, lease=lease, kept=event.sent + event.timeout, live=lease > self.now)
        if self.member.live and not was_live:
            self._resume()
        elif was_live and not self.member.live:
            self._suspend()

    @handle.register
    def _handle_suspended(self, _event: messages.Suspended) -> None:
        self._suspend()

    @handle.register
    def _handle_expired(self, _event: messages.Expired) -> None:
        self._change_session(None)

    def _change_session(self, session: int | None) -> None:
        """Nothing of the old session belongs to the member any more; releases under way are gone, too."""
        for partition, held_partition in sorted(self.held.items()):
            self._add_actions(messages.Drop(partition, held_partition.generation, self.member.kept))
            # The claim under way may succeed in the new session, and no other member would release its znode.
            if held_partition.stage is PartitionStage.CLAIMING:
                self._add_actions(messages.ReleaseOwner(partition, held_partition.generation))
        self.held.clear()
        self._update_member(
            session=session, live=False, registered=False, view=None, target={}, published=None, unowned={}, raised=frozenset()
        )

    def _suspend(self) -> None:
        self._update_member(live=False)
        for partition, held_partition in self._partitions_in(PartitionStage.DELIVERING):
            self._add_actions(messages.PauseDelivery(partition, held_partition.generation))
            self._move_to_stage(partition, PartitionStage.CHECKING)

    def _resume(self) -> None:
        """The session is proven alive: repeat the open questions, and do what was postponed."""
        if self.member.registered:
            self._add_actions(messages.ObserveGroup())
        elif self.member.session is not None and not self.member.closing:
            self._add_actions(messages.Register(self.member.session))
        for partition, held_partition in self._partitions_in(PartitionStage.COMMITTING, PartitionStage.RELEASING):
            self._commit_or_release(partition, held_partition)
        for partition, held_partition in self._partitions_in(PartitionStage.CHECKING):
            self._send_and_await(partition, messages.CheckOwner(partition, held_partition.generation))
        for partition, held_partition in self._partitions_in(PartitionStage.READING):
            self._send_and_await(partition, messages.ReadOffsets(partition, held_partition.generation))
        for partition, held_partition in self._partitions_in(PartitionStage.CLAIMING):
            is_wanted = partition in self.member.target
            self._send_and_await(
                partition,
                _make_claim(partition, held_partition)
                if is_wanted
                else messages.CheckOwner(partition, held_partition.generation),
            )

    @handle.register
    def _handle_registered(self, event: messages.Registered) -> None:
        if event.session == self.member.session and not self.member.closing:
            self._update_member(registered=True)
            self._add_actions(messages.ObserveGroup())

    # ------------------------------------------------------------------------------------------------- assignment

    @handle.register
    def _handle_group_observed(self, event: messages.GroupObserved) -> None:
        if not self.member.registered or event.view.session != self.member.session:
            return
        previous_view, view = self.member.view, event.view
        self._update_member(view=view, observed=self.now)
        if self.member.settings.consumer not in view.registrations.keys() & view.migrating:
            self._add_actions(messages.Register(view.session))  # it was deleted from outside; others share our partitions already
        self._watch_unowned(stable=previous_view is not None and previous_view.registrations.keys() == view.registrations.keys())
        self._update_target()

    @handle.register
    def _handle_kafka_assigned(self, event: messages.KafkaAssigned) -> None:
        self._update_member(kafka=self.member.kafka | event.partitions)
        self._update_target()

    @handle.register
    def _handle_kafka_revoked(self, event: messages.KafkaRevoked) -> None:
        self._update_member(kafka=self.member.kafka - event.partitions)
        self._update_target()

    @handle.register
    def _handle_kafka_lost(self, _event: messages.KafkaLost) -> None:
        if self.member.mode is Mode.KAFKA:
            for partition, held_partition in sorted(self.held.items()):
                # A claim under way does not belong to what was lost: its place may have been assigned again by now.
                if held_partition.stage is not PartitionStage.CLAIMING:
                    self.held[partition] = replace(held_partition, fenced=True)
        self._update_member(kafka=frozenset())
        self._update_target()

    @handle.register
    def _handle_closing(self, _event: messages.Closing) -> None:
        self._update_member(closing=True, target={})

    def _update_target(self) -> None:
        view = self.member.view
        if view is None or self.member.closing:
            return
        target = compute_target(self.member.settings, view, self.member.kafka)
        if isinstance(target, Frozen):
            self._raise_alarm(MemberAlarm.FROZEN, summarize(sorted(target.flaws)))
            return
        self._clear_alarms(MemberAlarm.FROZEN)
        self._update_member(target=target)
        if view.mode is Mode.ZOOKEEPER and view.foreign:
            self._raise_alarm(MemberAlarm.FOREIGN, summarize(partition.name for partition in sorted(view.foreign)))
        else:
            self._clear_alarms(MemberAlarm.FOREIGN)

    # ------------------------------------------------------------------------------------------------- one partition

    @handle.register
    def _handle_owner_is(self, event: messages.OwnerIs) -> None:
        held_partition, is_ours = self._find_partition(event), event.session is not None and event.session == self.member.session
        if held_partition is None:
            if is_ours and event.where not in self.held:  # made by a claim that was given up, or in another session, meanwhile
                self._add_actions(messages.ReleaseOwner(event.where, event.generation))
        elif is_ours:
            self._handle_owned(event.where, held_partition)
        else:
            self._handle_not_owned(event.where, held_partition, is_free=event.session is None)

    def _handle_owned(self, partition: TopicPartition, held_partition: HeldPartition) -> None:
        if held_partition.stage is PartitionStage.CLAIMING:
            self._clear_alarms(MemberAlarm.BLOCKED, about=partition.name)
            if partition in self.member.target:
                self._move_to_stage(partition, PartitionStage.READING, messages.ReadOffsets(partition, held_partition.generation))
            else:
                self._move_to_stage(
                    partition, PartitionStage.RELEASING, messages.ReleaseOwner(partition, held_partition.generation)
                )
        elif held_partition.stage is PartitionStage.CHECKING and self.member.live:
            self._add_actions(messages.Resume(partition, held_partition.generation))
            self._move_to_stage(partition, PartitionStage.DELIVERING)
        elif held_partition.stage is PartitionStage.RELEASING:
            self.held[partition] = replace(held_partition, waits=False)

    def _handle_not_owned(self, partition: TopicPartition, held_partition: HeldPartition, *, is_free: bool) -> None:
        if held_partition.stage is PartitionStage.CLAIMING:
            self.held[partition] = replace(held_partition, waits=False)
            if is_free and partition in self.member.target and self._is_due(held_partition, self.member.settings.retry):
                self._send_and_await(partition, _make_claim(partition, held_partition))
        elif held_partition.stage is PartitionStage.RELEASING:
            del self.held[partition]
            self._clear_alarms(MemberAlarm.SLOW, about=partition.name)
        else:
            del self.held[partition]
            self._add_actions(
                messages.Drop(partition, held_partition.generation),
                messages.Raise(MemberAlarm.OWNER_LOST, partition.name),
                messages.ObserveGroup(),
            )

    @handle.register
    def _handle_offsets_read(self, event: messages.OffsetsRead) -> None:
        held_partition = self._find_partition(event, PartitionStage.READING)
        if held_partition is None or not self.member.live or event.where not in self.member.target:
            return
        offset = start_offset(event)
        self._add_actions(messages.StartDelivery(event.where, held_partition.generation, offset))
        reset = event.reset is not None
        later = self.now + self.member.settings.late_commit
        self._move_to_stage(
            event.where, PartitionStage.DELIVERING, stale=frozenset(Store if reset else ()), check_kafka_at=later, began=offset
        )
        offsets = {Store.ZOOKEEPER: event.zookeeper, Store.KAFKA: event.kafka}
        stores_behind = tuple(store for store in self._stores_to_commit(held_partition) if reset or offsets[store] != offset)
        if (
            offset is not None and stores_behind
        ):  # an idle partition has no next commit: its next owner may read either store alone
            self._commit_offset(event.where, offset, stores_behind)

    @handle.register
    def _handle_stopped(self, event: messages.Stopped) -> None:
        held_partition = self._find_partition(event, PartitionStage.STOPPING)
        if held_partition is None:
            return
        final = held_partition.last if event.offset is None and held_partition.owed else event.offset
        self._move_to_stage(event.where, PartitionStage.RELEASING if final is None else PartitionStage.COMMITTING, final=final)
        if self.member.live:
            self._commit_or_release(event.where, self.held[event.where])

    def _commit_or_release(self, partition: TopicPartition, held_partition: HeldPartition) -> None:
        """Send the next of the last two actions, which wait until the session is proven: only a holder commits."""
        if held_partition.stage is PartitionStage.COMMITTING and held_partition.final is not None:
            self.held[partition] = replace(held_partition, asked=self.now, waits=True)
            self._commit_offset(partition, held_partition.final, self._stores_to_commit(held_partition))
        else:
            self._send_and_await(partition, messages.ReleaseOwner(partition, held_partition.generation))

    @handle.register
    def _handle_commit_asked(self, event: messages.CommitAsked) -> None:
        held_partition = self._find_partition(event, PartitionStage.DELIVERING, PartitionStage.CHECKING, PartitionStage.STOPPING)
        if held_partition is None:
            self._add_actions(messages.Raise(MemberAlarm.LATE_COMMIT, f"{event.where.name} at {event.offset}"))
        elif self.member.live:
            self.held[event.where] = replace(held_partition, committed=True)
            self._commit_offset(event.where, event.offset, self._stores_to_commit(held_partition))
        else:
            self.held[event.where] = replace(held_partition, committed=True, last=event.offset, owed=frozenset(Store))

    def _commit_offset(self, partition: TopicPartition, offset: int, to: tuple[Store, ...]) -> None:
        """Commit an offset in place of all earlier ones: this commit also settles what an earlier one owes a store."""
        held_partition = self.held[partition]
        self.held[partition] = replace(
            held_partition, last=offset, owed=frozenset() if offset != held_partition.last else held_partition.owed - set(to)
        )
        self._add_actions(messages.CommitOffset(partition, held_partition.generation, offset, to))

    @handle.register
    def _handle_commit_done(self, event: messages.CommitDone) -> None:
        held_partition = self._find_partition(event)
        if held_partition is None:
            return
        held_partition = self._settle_reset(event, held_partition)
        if Store.KAFKA in event.failed:  # it may take effect later, over a newer one of another connection
            self.held[event.where] = held_partition = replace(
                held_partition, check_kafka_at=self.now + self.member.settings.late_commit
            )
        if held_partition.stage is PartitionStage.COMMITTING and event.offset == held_partition.final:
            self._handle_final_commit(event)
        elif event.offset == held_partition.last:  # else a newer one is under way, which decides what is owed
            self.held[event.where] = replace(
                held_partition, owed=event.failed, asked=self.now if event.failed else held_partition.asked
            )

    def _settle_reset(self, event: messages.CommitDone, held_partition: HeldPartition) -> HeldPartition:
        """After an operator's reset, the larger of both stores counts again once each store has taken a commit."""
        stale = held_partition.stale & (event.failed | ({Store.KAFKA} if held_partition.fenced else set()))
        if held_partition.stale and not stale:
            self._add_actions(messages.ForgetReset(event.where, held_partition.generation))
        self.held[event.where] = held_partition = replace(held_partition, stale=stale)
        return held_partition

    def _handle_final_commit(self, event: messages.CommitDone) -> None:
        if event.failed:
            self._add_actions(
                messages.Raise(
                    MemberAlarm.UNCOMMITTED, f"{event.where.name} at {event.offset}: {', '.join(sorted(event.failed))}"
                )
            )
        self._move_to_stage(event.where, PartitionStage.RELEASING)
        if self.member.live:
            self._commit_or_release(event.where, self.held[event.where])

    def _stores_to_commit(self, held_partition: HeldPartition) -> tuple[Store, ...]:
        return stores_of_mode(self.member.mode, fenced=held_partition.fenced)

    # ---------------------------------------------------------------------------------------------------------- time

    @handle.register
    def _handle_polled(self, _event: messages.Polled) -> None:
        self._update_member(polled=self.now)
        self._clear_alarms(MemberAlarm.NOT_POLLED)

    @handle.register
    def _handle_tick(self, _event: messages.Tick) -> None:
        if self.member.live and self.now >= self.member.lease:
            self._suspend()
        if self.member.live:
            self._retry_due_actions()
        self._check_limits()

    def _retry_due_actions(self) -> None:
        settings = self.member.settings
        for partition, held_partition in self._partitions_in(PartitionStage.CLAIMING, PartitionStage.RELEASING):
            if not held_partition.waits and self._is_due(held_partition, settings.retry):
                is_claiming = held_partition.stage is PartitionStage.CLAIMING
                self._send_and_await(
                    partition,
                    _make_claim(partition, held_partition)
                    if is_claiming
                    else messages.ReleaseOwner(partition, held_partition.generation),
                )
        for partition, held_partition in self._partitions_in(PartitionStage.DELIVERING):
            if held_partition.owed and self._is_due(held_partition, settings.owed_retry):
                self._retry_commit(partition, held_partition)
            elif (
                not held_partition.owed
                and held_partition.check_kafka_at is not None
                and self.now >= held_partition.check_kafka_at
            ):
                self._commit_to_kafka_again(partition, held_partition)
        if self.member.registered and self.now - self.member.observed >= settings.observe_every:
            self._update_member(observed=self.now)
            self._add_actions(messages.ObserveGroup())

    def _retry_commit(self, partition: TopicPartition, held_partition: HeldPartition) -> None:
        """Retry a commit in the store that did not take it, while the partition is still ours."""
        assert held_partition.last is not None  # noqa: S101  # what is owed is that
        self.held[partition] = replace(held_partition, asked=self.now)
        self._commit_offset(
            partition,
            held_partition.last,
            tuple(store for store in self._stores_to_commit(held_partition) if store in held_partition.owed),
        )

    def _commit_to_kafka_again(self, partition: TopicPartition, held_partition: HeldPartition) -> None:
        """A commit that the previous holder or this one gave up may have taken effect since; by now none can any more."""
        self.held[partition] = replace(held_partition, check_kafka_at=None)
        if held_partition.committed and held_partition.last is not None:
            self._commit_offset(partition, held_partition.last, (Store.KAFKA,))
        elif Store.KAFKA in self._stores_to_commit(held_partition):
            self._add_actions(messages.ReadKafka(partition, held_partition.generation))

    @handle.register
    def _handle_kafka_offset(self, event: messages.KafkaRead) -> None:
        """Repair Kafka's offset of a partition for which the application has committed nothing here.

        It may be a late commit of an earlier holder: the start overwrites it. Or it is the application's own, made in a
        transaction: that one is larger and stays.
        """
        held_partition = self._find_partition(event)
        if held_partition is None or held_partition.committed:
            return
        if held_partition.stage is not PartitionStage.DELIVERING:
            self.held[event.where] = replace(held_partition, check_kafka_at=self.now)
        elif event.offset is None:  # unknown: asked again, much later
            self.held[event.where] = replace(held_partition, check_kafka_at=self.now + self.member.settings.late_commit)
        elif held_partition.began is None and not event.foreign:
            self._commit_offset(event.where, event.offset, self._stores_to_commit(held_partition))
        elif held_partition.began is not None and (
            event.offset < held_partition.began or (event.offset > held_partition.began and not event.foreign)
        ):
            self._commit_offset(event.where, held_partition.began, (Store.KAFKA,))

    # ----------------------------------------------------------------------------------------------------- release what is not wanted

    def release_unwanted(self) -> None:
        """Release whatever is not wanted, before anything is claimed (R18)."""
        for partition, held_partition in sorted(self.held.items()):
            if partition not in self.member.target:
                self._release_partition(partition, held_partition)
        if self.member.live and self.member.registered:
            for partition, thread in sorted(self.member.target.items()):
                self._claim_or_relabel(partition, thread)
            self._leave_or_publish()

    def _release_partition(self, partition: TopicPartition, held_partition: HeldPartition) -> None:
        if held_partition.stage in {PartitionStage.DELIVERING, PartitionStage.CHECKING}:
            self._move_to_stage(partition, PartitionStage.STOPPING, messages.StopDelivery(partition, held_partition.generation))
        elif held_partition.stage is PartitionStage.READING:
            self._move_to_stage(partition, PartitionStage.RELEASING, messages.ReleaseOwner(partition, held_partition.generation))
        elif held_partition.stage is PartitionStage.CLAIMING and not held_partition.waits:
            del self.held[partition]
            self._clear_alarms(MemberAlarm.BLOCKED, about=partition.name)
            # The claim may have succeeded in a newer session, of which the member does not know yet.
            self._add_actions(messages.ReleaseOwner(partition, held_partition.generation))

    def _claim_or_relabel(self, partition: TopicPartition, thread: str) -> None:
        held_partition = self.held.get(partition)
        if held_partition is None:
            self._update_member(generation=self.member.generation + 1)
            self.held[partition] = HeldPartition(self.member.generation, thread, PartitionStage.CLAIMING, self.now, self.now)
            self._add_actions(_make_claim(partition, self.held[partition]))
        elif held_partition.thread != thread and held_partition.stage in {PartitionStage.READING, PartitionStage.DELIVERING}:
            self.held[partition] = replace(held_partition, thread=thread)
            self._add_actions(messages.Relabel(partition, held_partition.generation, thread))

    def _leave_or_publish(self) -> None:
        if self.member.closing and not self.held:
            self._update_member(registered=False)
            self._add_actions(messages.Deregister())
        elif self.member.view is not None:
            progress = MemberProgress(self.member.view.epoch, self.member.mode, replace(self.member, held=self.held).settled)
            if progress != self.member.published:
                self._update_member(published=progress)
                self._add_actions(messages.Publish(progress))


def _make_claim(partition: TopicPartition, held_partition: HeldPartition) -> messages.Claim:
    return messages.Claim(partition, held_partition.generation, held_partition.thread)


def step(member: Member, event: messages.MemberEvent, now: float) -> tuple[Member, tuple[messages.Action, ...]]:
    """Apply one event; returns the changed member and its actions. `now` is monotonic and never decreases."""
    reducer = Reducer(member, now)
    reducer.handle(event)
    reducer.release_unwanted()
    return replace(reducer.member, held=reducer.held), tuple(reducer.actions)
