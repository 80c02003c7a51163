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

from airflow_provider_kmigrate.core.coordination.assignors import Frozen
from airflow_provider_kmigrate.core.coordination.group_seen import Store
from airflow_provider_kmigrate.core.coordination.registration import MemberProgress, Mode
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.member import messages
from airflow_provider_kmigrate.core.member.messages import Alarm
from airflow_provider_kmigrate.core.member.state import (
    LEASE,
    LEAVING,
    HeldPartition,
    Member,
    PartitionStage,
    expected,
    start_offset,
    stores,
    target_of,
)
from airflow_provider_kmigrate.core.text import summarize


class Reducer:
    """The work on one event: the member as it changes, and the actions as they accumulate. `on` handles each kind of event."""

    def __init__(self, member: Member, now: float) -> None:
        self.member = member
        self.held = dict(member.held)
        self.actions: list[messages.Action] = []
        self.now = now

    def _set(self, **changes: Any) -> None:
        self.member = replace(self.member, **changes)

    def _do(self, *actions: messages.Action) -> None:
        self.actions += actions

    def _raise(self, alarm: Alarm, about: str) -> None:
        """Raise an alarm once, until `_clear`."""
        if (alarm, about) not in self.member.raised:
            self._set(raised=self.member.raised | {(alarm, about)})
            self._do(messages.Raise(alarm, about))

    def _clear(self, *alarms: Alarm, about: str | None = None) -> None:
        gone = {(alarm, text) for alarm, text in self.member.raised if alarm in alarms and about in (None, text)}
        self._set(raised=self.member.raised - gone)

    def _to(self, where: TopicPartition, stage: PartitionStage, action: messages.Action | None = None, **changes: Any) -> None:
        """Move a partition to a stage; with an action, it then awaits the answer."""
        waits = action is not None
        self.held[where] = replace(self.held[where], stage=stage, since=self.now, asked=self.now, waits=waits, **changes)
        if action is not None:
            self._do(action)

    def _again(self, where: TopicPartition, action: messages.Action) -> None:
        self.held[where] = replace(self.held[where], asked=self.now, waits=True)
        self._do(action)

    def _in(self, *stages: PartitionStage) -> list[tuple[TopicPartition, HeldPartition]]:
        return [(where, held) for where, held in sorted(self.held.items()) if held.stage in stages]

    def _due(self, held: HeldPartition, after: float) -> bool:
        return self.now - held.asked >= after

    def _current(self, event: messages.PartitionEvent, *stages: PartitionStage) -> HeldPartition | None:
        """The partition of the event; None if the event belongs to an earlier generation, or to none of the named stages."""
        held = self.held.get(event.where)
        current = held is not None and held.generation == event.generation and (not stages or held.stage in stages)
        return held if current else None

    def _check_limits(self) -> None:
        settings = self.member.settings
        for where, held in self._in(*LEAVING, PartitionStage.CLAIMING):
            if self.now - held.since >= settings.slow:
                self._raise(Alarm.BLOCKED if held.stage is PartitionStage.CLAIMING else Alarm.SLOW, where.name)
            if held.stage is PartitionStage.STOPPING and self.now - held.since >= settings.poll_limit:
                self._raise(Alarm.HUNG, where.name)
                self._do(messages.End())
        if self.member.mode is Mode.KAFKA and self.now - self.member.polled >= settings.poll_limit:
            self._raise(Alarm.NOT_POLLED, settings.consumer)
        late = [where for where, since in self.member.unowned.items() if self.now - since >= settings.unowned]
        if late:
            self._raise(Alarm.UNOWNED, summarize(where.name for where in sorted(late)))

    def _watch_unowned(self, *, stable: bool) -> None:
        view = self.member.view
        assert view is not None  # noqa: S101  # it was just seen
        since = self.member.unowned if stable else {}
        free = expected(self.member.settings, view) - view.owned - view.foreign
        if not free:
            self._clear(Alarm.UNOWNED)
        self._set(unowned={where: since.get(where, self.now) for where in free})

    @singledispatchmethod
    def on(self, event: messages.MemberEvent) -> None:
        """Handle an event by its type. Raises `TypeError` for a type without a handler."""
        raise TypeError(event)

    # -------------------------------------------------------------------------------------------------- the session

    @on.register
    def _(self, event: messages.Alive) -> None:
        if event.sent < self.member.answered_at:
            return  # an answer that was overtaken
        if event.session != self.member.session:
            self._new_session(event.session)
        was_live = self.member.live
        lease = event.sent + LEASE * event.timeout
        self._set(answered_at=event.sent, lease=lease, kept=event.sent + event.timeout, live=lease > self.now)
        if self.member.live and not was_live:
            self._resume()
        elif was_live and not self.member.live:
            self._suspend()

    @on.register
    def _(self, _event: messages.Suspended) -> None:
        self._suspend()

    @on.register
    def _(self, _event: messages.Expired) -> None:
        self._new_session(None)

    def _new_session(self, session: int | None) -> None:
        """Nothing of the old session belongs to the member any more; releases under way are gone, too."""
        for where, held in sorted(self.held.items()):
            self._do(messages.Drop(where, held.generation, self.member.kept))
            # The claim under way may succeed in the new session, and no other member would release its znode.
            if held.stage is PartitionStage.CLAIMING:
                self._do(messages.ReleaseOwner(where, held.generation))
        self.held.clear()
        self._set(
            session=session, live=False, registered=False, view=None, target={}, published=None, unowned={}, raised=frozenset()
        )

    def _suspend(self) -> None:
        self._set(live=False)
        for where, held in self._in(PartitionStage.DELIVERING):
            self._do(messages.PauseDelivery(where, held.generation))
            self._to(where, PartitionStage.CHECKING)

    def _resume(self) -> None:
        """The session is proven alive: repeat the open questions, and do what was postponed."""
        if self.member.registered:
            self._do(messages.ObserveGroup())
        elif self.member.session is not None and not self.member.closing:
            self._do(messages.Register(self.member.session))
        for where, held in self._in(PartitionStage.COMMITTING, PartitionStage.RELEASING):
            self._finish(where, held)
        for where, held in self._in(PartitionStage.CHECKING):
            self._again(where, messages.CheckOwner(where, held.generation))
        for where, held in self._in(PartitionStage.READING):
            self._again(where, messages.ReadOffsets(where, held.generation))
        for where, held in self._in(PartitionStage.CLAIMING):
            wanted = where in self.member.target
            self._again(where, _claim(where, held) if wanted else messages.CheckOwner(where, held.generation))

    @on.register
    def _(self, event: messages.Registered) -> None:
        if event.session == self.member.session and not self.member.closing:
            self._set(registered=True)
            self._do(messages.ObserveGroup())

    # ------------------------------------------------------------------------------------------------- assignment

    @on.register
    def _(self, event: messages.GroupObserved) -> None:
        if not self.member.registered or event.view.session != self.member.session:
            return
        before, view = self.member.view, event.view
        self._set(view=view, observed=self.now)
        if self.member.settings.consumer not in view.registrations.keys() & view.migrating:
            self._do(messages.Register(view.session))  # it was deleted from outside; others share our partitions already
        self._watch_unowned(stable=before is not None and before.registrations.keys() == view.registrations.keys())
        self._retarget()

    @on.register
    def _(self, event: messages.KafkaAssigned) -> None:
        self._set(kafka=self.member.kafka | event.partitions)
        self._retarget()

    @on.register
    def _(self, event: messages.KafkaRevoked) -> None:
        self._set(kafka=self.member.kafka - event.partitions)
        self._retarget()

    @on.register
    def _(self, _event: messages.KafkaLost) -> None:
        if self.member.mode is Mode.KAFKA:
            for where, held in sorted(self.held.items()):
                # A claim under way does not belong to what was lost: its place may have been assigned again by now.
                if held.stage is not PartitionStage.CLAIMING:
                    self.held[where] = replace(held, fenced=True)
        self._set(kafka=frozenset())
        self._retarget()

    @on.register
    def _(self, _event: messages.Closing) -> None:
        self._set(closing=True, target={})

    def _retarget(self) -> None:
        view = self.member.view
        if view is None or self.member.closing:
            return
        found = target_of(self.member.settings, view, self.member.kafka)
        if isinstance(found, Frozen):
            self._raise(Alarm.FROZEN, summarize(sorted(found.flaws)))
            return
        self._clear(Alarm.FROZEN)
        self._set(target=found)
        if view.mode is Mode.ZOOKEEPER and view.foreign:
            self._raise(Alarm.FOREIGN, summarize(where.name for where in sorted(view.foreign)))
        else:
            self._clear(Alarm.FOREIGN)

    # ------------------------------------------------------------------------------------------------- one partition

    @on.register
    def _(self, event: messages.OwnerIs) -> None:
        held, ours = self._current(event), event.session is not None and event.session == self.member.session
        if held is None:
            if ours and event.where not in self.held:  # made by a claim that was given up, or in another session, meanwhile
                self._do(messages.ReleaseOwner(event.where, event.generation))
        elif ours:
            self._owned(event.where, held)
        else:
            self._not_owned(event.where, held, free=event.session is None)

    def _owned(self, where: TopicPartition, held: HeldPartition) -> None:
        if held.stage is PartitionStage.CLAIMING:
            self._clear(Alarm.BLOCKED, about=where.name)
            if where in self.member.target:
                self._to(where, PartitionStage.READING, messages.ReadOffsets(where, held.generation))
            else:
                self._to(where, PartitionStage.RELEASING, messages.ReleaseOwner(where, held.generation))
        elif held.stage is PartitionStage.CHECKING and self.member.live:
            self._do(messages.Resume(where, held.generation))
            self._to(where, PartitionStage.DELIVERING)
        elif held.stage is PartitionStage.RELEASING:
            self.held[where] = replace(held, waits=False)

    def _not_owned(self, where: TopicPartition, held: HeldPartition, *, free: bool) -> None:
        if held.stage is PartitionStage.CLAIMING:
            self.held[where] = replace(held, waits=False)
            if free and where in self.member.target and self._due(held, self.member.settings.retry):
                self._again(where, _claim(where, held))
        elif held.stage is PartitionStage.RELEASING:
            del self.held[where]
            self._clear(Alarm.SLOW, about=where.name)
        else:
            del self.held[where]
            self._do(messages.Drop(where, held.generation), messages.Raise(Alarm.OWNER_LOST, where.name), messages.ObserveGroup())

    @on.register
    def _(self, event: messages.OffsetsRead) -> None:
        held = self._current(event, PartitionStage.READING)
        if held is None or not self.member.live or event.where not in self.member.target:
            return
        offset = start_offset(event)
        self._do(messages.StartDelivery(event.where, held.generation, offset))
        reset = event.reset is not None
        later = self.now + self.member.settings.late_commit
        self._to(
            event.where, PartitionStage.DELIVERING, stale=frozenset(Store if reset else ()), check_kafka_at=later, began=offset
        )
        found = {Store.ZOOKEEPER: event.zookeeper, Store.KAFKA: event.kafka}
        behind = tuple(store for store in self._stores(held) if reset or found[store] != offset)
        if offset is not None and behind:  # an idle partition has no next commit: its next owner may read either store alone
            self._commit(event.where, offset, behind)

    @on.register
    def _(self, event: messages.Stopped) -> None:
        held = self._current(event, PartitionStage.STOPPING)
        if held is None:
            return
        final = held.last if event.offset is None and held.owed else event.offset
        self._to(event.where, PartitionStage.RELEASING if final is None else PartitionStage.COMMITTING, final=final)
        if self.member.live:
            self._finish(event.where, self.held[event.where])

    def _finish(self, where: TopicPartition, held: HeldPartition) -> None:
        """Send the next of the last two actions, which wait until the session is proven: only a holder commits."""
        if held.stage is PartitionStage.COMMITTING and held.final is not None:
            self.held[where] = replace(held, asked=self.now, waits=True)
            self._commit(where, held.final, self._stores(held))
        else:
            self._again(where, messages.ReleaseOwner(where, held.generation))

    @on.register
    def _(self, event: messages.CommitAsked) -> None:
        held = self._current(event, PartitionStage.DELIVERING, PartitionStage.CHECKING, PartitionStage.STOPPING)
        if held is None:
            self._do(messages.Raise(Alarm.LATE_COMMIT, f"{event.where.name} at {event.offset}"))
        elif self.member.live:
            self.held[event.where] = replace(held, committed=True)
            self._commit(event.where, event.offset, self._stores(held))
        else:
            self.held[event.where] = replace(held, committed=True, last=event.offset, owed=frozenset(Store))

    def _commit(self, where: TopicPartition, offset: int, to: tuple[Store, ...]) -> None:
        """Commit an offset in place of all earlier ones: this commit also settles what an earlier one owes a store."""
        held = self.held[where]
        self.held[where] = replace(held, last=offset, owed=frozenset() if offset != held.last else held.owed - set(to))
        self._do(messages.CommitOffset(where, held.generation, offset, to))

    @on.register
    def _(self, event: messages.CommitDone) -> None:
        held = self._current(event)
        if held is None:
            return
        held = self._settle_reset(event, held)
        if Store.KAFKA in event.failed:  # it may take effect later, over a newer one of another connection
            self.held[event.where] = held = replace(held, check_kafka_at=self.now + self.member.settings.late_commit)
        if held.stage is PartitionStage.COMMITTING and event.offset == held.final:
            self._committed(event)
        elif event.offset == held.last:  # else a newer one is under way, which decides what is owed
            self.held[event.where] = replace(held, owed=event.failed, asked=self.now if event.failed else held.asked)

    def _settle_reset(self, event: messages.CommitDone, held: HeldPartition) -> HeldPartition:
        """After an operator's reset, the larger of both stores counts again once each store has taken a commit."""
        stale = held.stale & (event.failed | ({Store.KAFKA} if held.fenced else set()))
        if held.stale and not stale:
            self._do(messages.ForgetReset(event.where, held.generation))
        self.held[event.where] = held = replace(held, stale=stale)
        return held

    def _committed(self, event: messages.CommitDone) -> None:
        if event.failed:
            self._do(
                messages.Raise(Alarm.UNCOMMITTED, f"{event.where.name} at {event.offset}: {', '.join(sorted(event.failed))}")
            )
        self._to(event.where, PartitionStage.RELEASING)
        if self.member.live:
            self._finish(event.where, self.held[event.where])

    def _stores(self, held: HeldPartition) -> tuple[Store, ...]:
        return stores(self.member.mode, fenced=held.fenced)

    # ---------------------------------------------------------------------------------------------------------- time

    @on.register
    def _(self, _event: messages.Polled) -> None:
        self._set(polled=self.now)
        self._clear(Alarm.NOT_POLLED)

    @on.register
    def _(self, _event: messages.Tick) -> None:
        if self.member.live and self.now >= self.member.lease:
            self._suspend()
        if self.member.live:
            self._ask_again()
        self._check_limits()

    def _ask_again(self) -> None:
        settings = self.member.settings
        for where, held in self._in(PartitionStage.CLAIMING, PartitionStage.RELEASING):
            if not held.waits and self._due(held, settings.retry):
                claims = held.stage is PartitionStage.CLAIMING
                self._again(where, _claim(where, held) if claims else messages.ReleaseOwner(where, held.generation))
        for where, held in self._in(PartitionStage.DELIVERING):
            if held.owed and self._due(held, settings.owed_retry):
                self._retry_commit(where, held)
            elif not held.owed and held.check_kafka_at is not None and self.now >= held.check_kafka_at:
                self._commit_to_kafka_again(where, held)
        if self.member.registered and self.now - self.member.observed >= settings.observe_every:
            self._set(observed=self.now)
            self._do(messages.ObserveGroup())

    def _retry_commit(self, where: TopicPartition, held: HeldPartition) -> None:
        """Retry a commit in the store that did not take it, while the partition is still ours."""
        assert held.last is not None  # noqa: S101  # what is owed is that
        self.held[where] = replace(held, asked=self.now)
        self._commit(where, held.last, tuple(store for store in self._stores(held) if store in held.owed))

    def _commit_to_kafka_again(self, where: TopicPartition, held: HeldPartition) -> None:
        """A commit that the previous holder or this one gave up may have taken effect since; by now none can any more."""
        self.held[where] = replace(held, check_kafka_at=None)
        if held.committed and held.last is not None:
            self._commit(where, held.last, (Store.KAFKA,))
        elif Store.KAFKA in self._stores(held):
            self._do(messages.ReadKafka(where, held.generation))

    @on.register
    def _(self, event: messages.KafkaRead) -> None:
        """Repair Kafka's offset of a partition for which the application has committed nothing here.

        It may be a late commit of an earlier holder: the start overwrites it. Or it is the application's own, made in a
        transaction: that one is larger and stays.
        """
        held = self._current(event)
        if held is None or held.committed:
            return
        if held.stage is not PartitionStage.DELIVERING:
            self.held[event.where] = replace(held, check_kafka_at=self.now)
        elif event.offset is None:  # unknown: asked again, much later
            self.held[event.where] = replace(held, check_kafka_at=self.now + self.member.settings.late_commit)
        elif held.began is None and not event.foreign:
            self._commit(event.where, event.offset, self._stores(held))
        elif held.began is not None and (event.offset < held.began or (event.offset > held.began and not event.foreign)):
            self._commit(event.where, held.began, (Store.KAFKA,))

    # ----------------------------------------------------------------------------------------------------- reconcile

    def release_unwanted(self) -> None:
        """Release whatever is not wanted, before anything is claimed (R18)."""
        for where, held in sorted(self.held.items()):
            if where not in self.member.target:
                self._release(where, held)
        if self.member.live and self.member.registered:
            for where, thread in sorted(self.member.target.items()):
                self._claim_or_relabel(where, thread)
            self._leave_or_publish()

    def _release(self, where: TopicPartition, held: HeldPartition) -> None:
        if held.stage in {PartitionStage.DELIVERING, PartitionStage.CHECKING}:
            self._to(where, PartitionStage.STOPPING, messages.StopDelivery(where, held.generation))
        elif held.stage is PartitionStage.READING:
            self._to(where, PartitionStage.RELEASING, messages.ReleaseOwner(where, held.generation))
        elif held.stage is PartitionStage.CLAIMING and not held.waits:
            del self.held[where]
            self._clear(Alarm.BLOCKED, about=where.name)
            # The claim may have succeeded in a newer session, of which the member does not know yet.
            self._do(messages.ReleaseOwner(where, held.generation))

    def _claim_or_relabel(self, where: TopicPartition, thread: str) -> None:
        held = self.held.get(where)
        if held is None:
            self._set(generation=self.member.generation + 1)
            self.held[where] = HeldPartition(self.member.generation, thread, PartitionStage.CLAIMING, self.now, self.now)
            self._do(_claim(where, self.held[where]))
        elif held.thread != thread and held.stage in {PartitionStage.READING, PartitionStage.DELIVERING}:
            self.held[where] = replace(held, thread=thread)
            self._do(messages.Relabel(where, held.generation, thread))

    def _leave_or_publish(self) -> None:
        if self.member.closing and not self.held:
            self._set(registered=False)
            self._do(messages.Deregister())
        elif self.member.view is not None:
            progress = MemberProgress(self.member.view.epoch, self.member.mode, replace(self.member, held=self.held).settled)
            if progress != self.member.published:
                self._set(published=progress)
                self._do(messages.Publish(progress))


def _claim(where: TopicPartition, held: HeldPartition) -> messages.Claim:
    return messages.Claim(where, held.generation, held.thread)


def step(member: Member, event: messages.MemberEvent, now: float) -> tuple[Member, tuple[messages.Action, ...]]:
    """Apply one event; returns the changed member and its actions. `now` is monotonic and never decreases."""
    work = Reducer(member, now)
    work.on(event)
    work.release_unwanted()
    return replace(work.member, held=work.held), tuple(work.actions)
