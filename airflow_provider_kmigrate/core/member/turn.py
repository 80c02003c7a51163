"""One event being worked on by a migrating member: the member as it changes, the actions as they add up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from airflow_provider_kmigrate.core.coordination.registration import Mode
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.member import words as w
from airflow_provider_kmigrate.core.member.state import LEAVING, Held, Member, PartitionStage, expected
from airflow_provider_kmigrate.core.member.words import Alarm


class Reducer:
    """What every event's work is made of."""

    def __init__(self, member: Member, now: float) -> None:
        self.member = member
        self.held = dict(member.held)
        self.actions: list[w.Action] = []
        self.now = now

    def _be(self, **changes: Any) -> None:
        self.member = replace(self.member, **changes)

    def _do(self, *actions: w.Action) -> None:
        self.actions += actions

    def _raise(self, alarm: Alarm, about: str) -> None:
        """Once, until `_calm`."""
        if (alarm, about) not in self.member.raised:
            self._be(raised=self.member.raised | {(alarm, about)})
            self._do(w.Raise(alarm, about))

    def _calm(self, *alarms: Alarm, about: str | None = None) -> None:
        gone = {(alarm, text) for alarm, text in self.member.raised if alarm in alarms and about in (None, text)}
        self._be(raised=self.member.raised - gone)

    def _to(self, where: TopicPartition, stage: PartitionStage, action: w.Action | None = None, **changes: Any) -> None:
        """Let a partition enter a stage; with an action, whose answer it then awaits."""
        waits = action is not None
        self.held[where] = replace(self.held[where], stage=stage, since=self.now, asked=self.now, waits=waits, **changes)
        if action is not None:
            self._do(action)

    def _again(self, where: TopicPartition, action: w.Action) -> None:
        self.held[where] = replace(self.held[where], asked=self.now, waits=True)
        self._do(action)

    def _in(self, *stages: PartitionStage) -> list[tuple[TopicPartition, Held]]:
        return [(where, held) for where, held in sorted(self.held.items()) if held.stage in stages]

    def _due(self, held: Held, after: float) -> bool:
        return self.now - held.asked >= after

    def _current(self, event: w.PartitionEvent) -> Held | None:
        """What the event is about, unless it is about the past."""
        held = self.held.get(event.where)
        return held if held is not None and held.generation == event.generation else None

    def _mind_the_time(self) -> None:
        settings = self.member.settings
        for where, held in self._in(*LEAVING, PartitionStage.CLAIMING):
            if self.now - held.since >= settings.slow:
                self._raise(Alarm.BLOCKED if held.stage is PartitionStage.CLAIMING else Alarm.SLOW, where.name)
            if held.stage is PartitionStage.STOPPING and self.now - held.since >= settings.poll_limit:
                self._raise(Alarm.HUNG, where.name)
                self._do(w.End())
        if self.member.mode is Mode.KAFKA and self.now - self.member.polled >= settings.poll_limit:
            self._raise(Alarm.NOT_POLLED, settings.consumer)
        late = [where for where, since in self.member.unowned.items() if self.now - since >= settings.unowned]
        if late:
            self._raise(Alarm.UNOWNED, names(late))

    def _watch_unowned(self, *, stable: bool) -> None:
        view = self.member.view
        assert view is not None  # noqa: S101  # it was just seen
        since = self.member.unowned if stable else {}
        free = expected(self.member.settings, view) - view.owned - view.foreign
        if not free:
            self._calm(Alarm.UNOWNED)
        self._be(unowned={where: since.get(where, self.now) for where in free})


def names(places: Iterable[TopicPartition]) -> str:
    """Partitions in order, for a message."""
    return ", ".join(where.name for where in sorted(places))
