"""A migrating member (KIP-125) as a pure state machine: what it claims, delivers, commits and lets go of, and in which order.

**The rule.** In both modes a member delivers a partition only while it holds that partition's owner znode, made by its own live
session. Who coordinates (`GroupView.mode`) only says which znodes to try for. ZooKeeper makes the rule safe without agreement: two
members that see the toggle at different times, miss a watch, or read half a change want one partition both, and one of them waits.

    gain:  Claim ──► ReadOffsets ──► Start              lose:  Stop ──► Commit ──► Release

1. Offsets are read after the claim, so that they contain the last owner's last commit.
2. Everything that is to be let go is let go before anything is waited for (R18); an old consumer waits less than 6 s.
3. A member that cannot prove its session (no answer for two thirds of the timeout, a lost connection) delivers nothing, and asks who
   owns each partition before it goes on (R9). A new session starts from nothing: no commit, no delete, all claimed anew.
4. An owner znode that vanished ends the generation (R15): the partition is dropped without a commit, then claimed again.
5. What cannot be computed (a registration nobody can read) changes nothing: what is held is kept.

`step` is called with one event at a time. The actions of one partition are to be carried out in the order in which they were given,
and their answers told in that order; different partitions and members may overtake each other as they like. What no member can
prevent: plain Kafka consumers, and old consumers that wake from a pause, know nothing of the rule or break it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import singledispatchmethod

from airflow_provider_kmigrate.core.coordination.assignors import Frozen
from airflow_provider_kmigrate.core.coordination.registration import Mode, Progress
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.member import words as w
from airflow_provider_kmigrate.core.member.state import (
    LEASE,
    Held,
    Member,
    Stage,
    start_offset,
    stores,
    target_of,
)
from airflow_provider_kmigrate.core.member.turn import Turn, names
from airflow_provider_kmigrate.core.member.words import Alarm, Store


def step(member: Member, event: w.Event, now: float) -> tuple[Member, tuple[w.Action, ...]]:
    """One event, what becomes of the member, and what it wants done. `now` is monotonic and never goes back."""
    turn = _Turn(member, now)
    turn.on(event)
    turn.reconcile()
    return replace(turn.member, held=turn.held), tuple(turn.actions)


class _Turn(Turn):
    """What each event means."""

    @singledispatchmethod
    def on(self, event: w.Event) -> None:
        raise TypeError(event)

    # -------------------------------------------------------------------------------------------------- the session

    @on.register
    def _(self, event: w.Alive) -> None:
        if event.sent < self.member.heard:
            return  # an answer that was overtaken
        if event.session != self.member.session:
            self._new_session(event.session)
        was_live = self.member.live
        lease = event.sent + LEASE * event.timeout
        self._be(heard=event.sent, lease=lease, kept=event.sent + event.timeout, live=lease > self.now)
        if self.member.live and not was_live:
            self._resume()
        elif was_live and not self.member.live:
            self._suspend()

    @on.register
    def _(self, _event: w.Suspended) -> None:
        self._suspend()

    @on.register
    def _(self, _event: w.Expired) -> None:
        self._new_session(None)

    def _new_session(self, session: int | None) -> None:
        """Nothing of the old session is ours any more; what was being let go is gone, too."""
        for where, held in sorted(self.held.items()):
            self._do(w.Drop(where, held.generation, self.member.kept))
            if (
                held.stage is Stage.CLAIMING
            ):  # the claim under way may work in the new session, whose znode nobody else would ever let go
                self._do(w.Release(where, held.generation))
        self.held.clear()
        self._be(
            session=session, live=False, registered=False, view=None, target={}, published=None, unowned={}, raised=frozenset()
        )

    def _suspend(self) -> None:
        self._be(live=False)
        for where, held in self._in(Stage.DELIVERING):
            self._do(w.Pause(where, held.generation))
            self._to(where, Stage.CHECKING)

    def _resume(self) -> None:
        """The session turned out to live; what was asked while nobody knew is asked again, what was put off is done."""
        if self.member.registered:
            self._do(w.Look())
        elif self.member.session is not None and not self.member.closing:
            self._do(w.Register(self.member.session))
        for where, held in self._in(Stage.COMMITTING, Stage.RELEASING):
            self._give_up(where, held)
        for where, held in self._in(Stage.CHECKING):
            self._again(where, w.CheckOwner(where, held.generation))
        for where, held in self._in(Stage.READING):
            self._again(where, w.ReadOffsets(where, held.generation))
        for where, held in self._in(Stage.CLAIMING):
            wanted = where in self.member.target
            asked = w.Claim(where, held.generation, held.thread) if wanted else w.CheckOwner(where, held.generation)
            self._again(where, asked)

    @on.register
    def _(self, event: w.Registered) -> None:
        if event.session == self.member.session and not self.member.closing:
            self._be(registered=True)
            self._do(w.Look())

    # ------------------------------------------------------------------------------------------------- who gets what

    @on.register
    def _(self, event: w.Seen) -> None:
        if not self.member.registered or event.view.session != self.member.session:
            return
        before, view = self.member.view, event.view
        self._be(view=view, looked=self.now)
        if self.member.settings.consumer not in view.registrations.keys() & view.migrating:
            self._do(w.Register(view.session))  # somebody deleted it; others share out our partitions already
        self._watch_unowned(stable=before is not None and before.registrations.keys() == view.registrations.keys())
        self._retarget()

    @on.register
    def _(self, event: w.KafkaAssigned) -> None:
        self._be(kafka=self.member.kafka | event.partitions)
        self._retarget()

    @on.register
    def _(self, event: w.KafkaRevoked) -> None:
        self._be(kafka=self.member.kafka - event.partitions)
        self._retarget()

    @on.register
    def _(self, _event: w.KafkaLost) -> None:
        if (
            self.member.mode is Mode.KAFKA
        ):  # a claim that is under way is not of what was lost: its place may have been given anew by now
            lost = {where: replace(held, fenced=True) for where, held in self.held.items() if held.stage is not Stage.CLAIMING}
            self.held |= lost
        self._be(kafka=frozenset())
        self._retarget()

    @on.register
    def _(self, _event: w.Closing) -> None:
        self._be(closing=True, target={})

    def _retarget(self) -> None:
        view = self.member.view
        if view is None or self.member.closing:
            return
        found = target_of(self.member.settings, view, self.member.kafka)
        if isinstance(found, Frozen):
            self._raise(Alarm.FROZEN, ", ".join(sorted(found.flaws)))
            return
        self._calm(Alarm.FROZEN)
        self._be(target=found)
        if view.mode is Mode.ZOOKEEPER and view.foreign:
            self._raise(Alarm.FOREIGN, names(view.foreign))
        else:
            self._calm(Alarm.FOREIGN)

    # ------------------------------------------------------------------------------------------------- one partition

    @on.register
    def _(self, event: w.OwnerIs) -> None:
        held, ours = self._current(event), event.session is not None and event.session == self.member.session
        if held is None:
            if ours and event.where not in self.held:  # made by a claim that was given up, or in another session, meanwhile
                self._do(w.Release(event.where, event.generation))
        elif ours:
            self._owned(event.where, held)
        else:
            self._not_owned(event.where, held, free=event.session is None)

    def _owned(self, where: TopicPartition, held: Held) -> None:
        if held.stage is Stage.CLAIMING:
            self._calm(Alarm.BLOCKED, about=where.name)
            if where in self.member.target:
                self._to(where, Stage.READING, w.ReadOffsets(where, held.generation))
            else:
                self._to(where, Stage.RELEASING, w.Release(where, held.generation))
        elif held.stage is Stage.CHECKING and self.member.live:
            self._do(w.Resume(where, held.generation))
            self._to(where, Stage.DELIVERING)
        elif held.stage is Stage.RELEASING:
            self.held[where] = replace(held, waits=False)

    def _not_owned(self, where: TopicPartition, held: Held, *, free: bool) -> None:
        if held.stage is Stage.CLAIMING:
            self.held[where] = replace(held, waits=False)
            if free and where in self.member.target and self._due(held, self.member.settings.retry):
                self._again(where, w.Claim(where, held.generation, held.thread))
        elif held.stage is Stage.RELEASING:
            del self.held[where]
            self._calm(Alarm.SLOW, about=where.name)
        else:
            del self.held[where]
            self._do(w.Drop(where, held.generation), w.Raise(Alarm.OWNER_LOST, where.name), w.Look())

    @on.register
    def _(self, event: w.OffsetsRead) -> None:
        held = self._current(event)
        if held is None or held.stage is not Stage.READING or not self.member.live or event.where not in self.member.target:
            return
        offset = start_offset(event)
        self._do(w.Start(event.where, held.generation, offset))
        reset = event.reset is not None
        later = self.now + self.member.settings.late_commit
        self._to(event.where, Stage.DELIVERING, stale=frozenset(Store if reset else ()), once_more=later, began=offset)
        found = {Store.ZOOKEEPER: event.zookeeper, Store.KAFKA: event.kafka}
        behind = tuple(store for store in self._stores(held) if reset or found[store] != offset)
        if offset is not None and behind:  # an idle partition has no next commit: its next owner may read either store alone
            self._commit(event.where, offset, behind)

    @on.register
    def _(self, event: w.Stopped) -> None:
        held = self._current(event)
        if held is None or held.stage is not Stage.STOPPING:
            return
        final = held.last if event.offset is None and held.owed else event.offset
        self._to(event.where, Stage.RELEASING if final is None else Stage.COMMITTING, final=final)
        if self.member.live:
            self._give_up(event.where, self.held[event.where])

    def _give_up(self, where: TopicPartition, held: Held) -> None:
        """The last two steps wait until the session is proven: only a holder commits."""
        if held.stage is Stage.COMMITTING and held.final is not None:
            self.held[where] = replace(held, asked=self.now, waits=True)
            self._commit(where, held.final, self._stores(held))
        else:
            self._again(where, w.Release(where, held.generation))

    @on.register
    def _(self, event: w.CommitAsked) -> None:
        held = self._current(event)
        if held is None or held.stage not in {Stage.DELIVERING, Stage.CHECKING, Stage.STOPPING}:
            self._do(w.Raise(Alarm.LATE_COMMIT, f"{event.where.name} at {event.offset}"))
        elif self.member.live:
            self.held[event.where] = replace(held, committed=True)
            self._commit(event.where, event.offset, self._stores(held))
        else:
            self.held[event.where] = replace(held, committed=True, last=event.offset, owed=frozenset(Store))

    def _commit(self, where: TopicPartition, offset: int, to: tuple[Store, ...]) -> None:
        """From now on this is what counts: what an earlier one could not tell a store is told by this one, or never."""
        held = self.held[where]
        self.held[where] = replace(held, last=offset, owed=frozenset() if offset != held.last else held.owed - set(to))
        self._do(w.Commit(where, held.generation, offset, to))

    @on.register
    def _(self, event: w.CommitDone) -> None:
        held = self._current(event)
        if held is None:
            return
        held = self._made_good(event, held)
        if Store.KAFKA in event.failed:  # it may take effect later, over a newer one of another connection
            self.held[event.where] = held = replace(held, once_more=self.now + self.member.settings.late_commit)
        if held.stage is Stage.COMMITTING and event.offset == held.final:
            self._committed(event)
        elif event.offset == held.last:  # else a newer one is under way, which says what is owed
            self.held[event.where] = replace(held, owed=event.failed, asked=self.now if event.failed else held.asked)

    def _made_good(self, event: w.CommitDone, held: Held) -> Held:
        """Where an operator reset the offset, the larger of both stores counts again once each has taken a commit since."""
        stale = held.stale & (event.failed | ({Store.KAFKA} if held.fenced else set()))
        if held.stale and not stale:
            self._do(w.ForgetReset(event.where, held.generation))
        self.held[event.where] = held = replace(held, stale=stale)
        return held

    def _committed(self, event: w.CommitDone) -> None:
        if event.failed:
            self._do(w.Raise(Alarm.UNCOMMITTED, f"{event.where.name} at {event.offset}: {', '.join(sorted(event.failed))}"))
        self._to(event.where, Stage.RELEASING)
        if self.member.live:
            self._give_up(event.where, self.held[event.where])

    def _stores(self, held: Held) -> tuple[Store, ...]:
        return stores(self.member.mode, fenced=held.fenced)

    # ---------------------------------------------------------------------------------------------------------- time

    @on.register
    def _(self, _event: w.Polled) -> None:
        self._be(polled=self.now)
        self._calm(Alarm.NOT_POLLED)

    @on.register
    def _(self, _event: w.Tick) -> None:
        if self.member.live and self.now >= self.member.lease:
            self._suspend()
        if self.member.live:
            self._ask_again()
        self._mind_the_time()

    def _ask_again(self) -> None:
        settings = self.member.settings
        for where, held in self._in(Stage.CLAIMING, Stage.RELEASING):
            if not held.waits and self._due(held, settings.retry):
                claims = held.stage is Stage.CLAIMING
                again = w.Claim(where, held.generation, held.thread) if claims else w.Release(where, held.generation)
                self._again(where, again)
        for where, held in self._in(Stage.DELIVERING):
            if held.owed and self._due(held, settings.owed_retry):
                self._pay(where, held)
            elif not held.owed and held.once_more is not None and self.now >= held.once_more:
                self._tell_kafka_again(where, held)
        if self.member.registered and self.now - self.member.looked >= settings.look_every:
            self._be(looked=self.now)
            self._do(w.Look())

    def _pay(self, where: TopicPartition, held: Held) -> None:
        """Try the store again that did not take a commit, while the partition is still ours."""
        assert held.last is not None  # noqa: S101  # what is owed is that
        self.held[where] = replace(held, asked=self.now)
        self._commit(where, held.last, tuple(store for store in self._stores(held) if store in held.owed))

    def _tell_kafka_again(self, where: TopicPartition, held: Held) -> None:
        """A commit that was given up, by the holder before or by us, may have taken effect since; by now none can any more."""
        self.held[where] = replace(held, once_more=None)
        if held.committed and held.last is not None:
            self._commit(where, held.last, (Store.KAFKA,))
        elif Store.KAFKA in self._stores(held):
            self._do(w.ReadKafka(where, held.generation))

    @on.register
    def _(self, event: w.KafkaRead) -> None:
        """Of a partition whose application has committed nothing here: what Kafka has is a late commit of an earlier holder, which the
        start is committed over, or the application's own, made in a transaction, which is larger and stays.
        """
        held = self._current(event)
        if held is None or held.committed:
            return
        if held.stage is not Stage.DELIVERING:
            self.held[event.where] = replace(held, once_more=self.now)
        elif event.offset is None:  # unknown: asked again, much later
            self.held[event.where] = replace(held, once_more=self.now + self.member.settings.late_commit)
        elif held.began is None and not event.foreign:
            self._commit(event.where, event.offset, self._stores(held))
        elif held.began is not None and (event.offset < held.began or (event.offset > held.began and not event.foreign)):
            self._commit(event.where, held.began, (Store.KAFKA,))

    # ----------------------------------------------------------------------------------------------------- reconcile

    def reconcile(self) -> None:
        """Let go of whatever is not wanted, before anything is asked for (R18)."""
        for where, held in sorted(self.held.items()):
            if where not in self.member.target:
                self._let_go(where, held)
        if self.member.live and self.member.registered:
            for where, thread in sorted(self.member.target.items()):
                self._want(where, thread)
            self._leave_or_publish()

    def _let_go(self, where: TopicPartition, held: Held) -> None:
        if held.stage in {Stage.DELIVERING, Stage.CHECKING}:
            self._to(where, Stage.STOPPING, w.Stop(where, held.generation))
        elif held.stage is Stage.READING:
            self._to(where, Stage.RELEASING, w.Release(where, held.generation))
        elif held.stage is Stage.CLAIMING and not held.waits:
            del self.held[where]
            self._calm(Alarm.BLOCKED, about=where.name)
            self._do(
                w.Release(where, held.generation)
            )  # the claim may have worked in a newer session, of which the member has not heard

    def _want(self, where: TopicPartition, thread: str) -> None:
        held = self.held.get(where)
        if held is None:
            generation = self.member.generation + 1
            self._be(generation=generation)
            self.held[where] = Held(generation, thread, Stage.CLAIMING, self.now, self.now)
            self._do(w.Claim(where, generation, thread))
        elif held.thread != thread and held.stage in {Stage.READING, Stage.DELIVERING}:
            self.held[where] = replace(held, thread=thread)
            self._do(w.Relabel(where, held.generation, thread))

    def _leave_or_publish(self) -> None:
        if self.member.closing and not self.held:
            self._be(registered=False)
            self._do(w.Deregister())
        elif self.member.view is not None:
            progress = Progress(self.member.view.epoch, self.member.mode, replace(self.member, held=self.held).settled)
            if progress != self.member.published:
                self._be(published=progress)
                self._do(w.Publish(progress))
