"""A migrating member that receives events one by one, at times that the test chooses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.member import messages
from airflow_provider_kmigrate.core.member.membership import step
from airflow_provider_kmigrate.core.member.messages import GroupView, MemberAlarm
from airflow_provider_kmigrate.core.member.registration import Registration
from airflow_provider_kmigrate.core.member.state import Member, PartitionStage, Settings, delivery_permit

ME, OTHER = "g_me-1", "g_other-1"
SESSION = 7
WANT = Registration("static", {"t": 1})
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
TIMEOUT = 6.0


def observe(
    *, mode: bytes | None = None, others: dict[str, Any] | None = None, plain: tuple[str, ...] = (), **more: Any
) -> GroupView:
    """What `ids` and `migration/ids` hold: ourselves, members like us, and those of `plain` that cannot migrate."""
    registrations = {ME: WANT, **(others or {}), **dict.fromkeys(plain, WANT)}
    migrating = frozenset(registrations) - set(plain)
    view = GroupView(SESSION, 3, mode, registrations, migrating, {"t": range(2)}, frozenset({T0, T1}))
    return replace(view, **more)


def may_deliver(member: Member, now: float) -> frozenset[TopicPartition]:
    """The partitions that the rule lets it deliver at this instant."""
    found = delivery_permit(member)
    return frozenset(where for where, generation in found.generations.items() if found.allows(where, generation, now))


class Talk:
    """A member that receives events one by one; `said` are the actions of the last."""

    def __init__(self, **settings: Any) -> None:
        self.member = Member(Settings(ME, WANT, **settings))
        self.now = 0.0
        self.said: tuple[messages.Action, ...] = ()

    def tell(self, *events: messages.MemberEvent) -> tuple[messages.Action, ...]:
        said: list[messages.Action] = []
        for event in events:
            self.member, actions = step(self.member, event, self.now)
            said += actions
        self.said = tuple(action for action in said if not isinstance(action, messages.Publish))
        return self.said

    def after(self, seconds: float) -> tuple[messages.Action, ...]:
        self.now += seconds
        return self.tell(messages.Tick())

    def alive(self, session: int = SESSION) -> tuple[messages.Action, ...]:
        return self.tell(messages.Alive(session, self.now, TIMEOUT))

    def registered(self, view: GroupView) -> tuple[messages.Action, ...]:
        self.alive()
        return self.tell(messages.Registered(SESSION), messages.GroupObserved(view))

    def delivering(self, view: GroupView, kafka: frozenset[TopicPartition] = frozenset()) -> Talk:
        """Through to delivering all that is its by this view."""
        self.tell(messages.Polled(), messages.KafkaAssigned(kafka))
        self.registered(view)
        for where in sorted(self.member.target):
            self.gain(where)
        return self

    def gain(self, where: TopicPartition) -> None:
        generation = self.generation(where)
        self.tell(messages.OwnerIs(where, generation, SESSION), messages.OffsetsRead(where, generation, 5, 5))

    def generation(self, where: TopicPartition = T0) -> int:
        return self.member.held[where].generation

    def stages(self) -> dict[TopicPartition, PartitionStage]:
        return {where: held.stage for where, held in self.member.held.items()}

    @property
    def delivers(self) -> frozenset[TopicPartition]:
        return may_deliver(self.member, self.now)


def alarms(said: tuple[messages.Action, ...]) -> list[MemberAlarm]:
    return [action.alarm for action in said if isinstance(action, messages.Raise)]


ALONE = observe()
SHARED = observe(plain=(OTHER,))  # range: t-0 is ours, t-1 the old consumer's
KAFKA = observe(mode=b"kafka", others={OTHER: WANT})
BOTH = frozenset({T0, T1})
