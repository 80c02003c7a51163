"""A small world: its ZooKeeper, and a process that does what the migrating member in it wants done."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.member import messages
from airflow_provider_kmigrate.core.member.assignors import Strategy
from airflow_provider_kmigrate.core.member.group_seen import Store
from airflow_provider_kmigrate.core.member.membership import step
from airflow_provider_kmigrate.core.member.registration import Registration
from airflow_provider_kmigrate.core.member.state import Member, PartitionStage, Settings, is_current_generation
from tests.core.member_talk import may_deliver

if TYPE_CHECKING:
    from tests.core.member_world import World


TIMEOUT = 6.0


@dataclass
class Node:
    session: int
    data: Any


@dataclass
class ZooKeeper:
    """The group's znodes; `heard`: session -> when it last was."""

    topics: dict[str, range]
    heard: dict[int, float] = field(default_factory=dict)
    ids: dict[str, Node] = field(default_factory=dict)
    migrating: dict[str, Node] = field(default_factory=dict)
    owners: dict[TopicPartition, Node] = field(default_factory=dict)
    offsets: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)  # offset, version
    mode: bytes | None = None
    epoch: int = 0
    sessions: int = 0

    def session(self, now: float) -> int:
        self.sessions += 1
        self.heard[self.sessions] = now
        return self.sessions


class Shell:
    """A process with a migrating member in it."""

    def __init__(self, world: World, name: str, registration: Registration, strategy: Strategy) -> None:
        self.world = world
        self.member = Member(Settings(name, registration, strategy, poll_limit=1e9, late_commit=10.0))
        self.session = world.zk.session(world.now)
        self.paused = self.cut = False
        self.known_cut = False
        self.todo: dict[TopicPartition | None, deque[messages.Action]] = defaultdict(deque)
        self.heard: dict[TopicPartition | None, deque[messages.MemberEvent]] = defaultdict(deque)
        self.watched: dict[TopicPartition, int] = {}
        self.active: dict[TopicPartition, list[int]] = {}  # generation, position
        self.versions: dict[TopicPartition, int] = {}
        world.members[name] = self
        self.tell(messages.Polled())
        self.tell(messages.Alive(self.session, world.now, TIMEOUT))

    @property
    def name(self) -> str:
        return self.member.settings.consumer

    # --------------------------------------------------------------------------------------------------- its surroundings

    def tell(self, event: messages.MemberEvent, where: TopicPartition | None = None) -> None:
        self.heard[where].append(event)

    def observe_later(self) -> None:
        if messages.ObserveGroup() not in self.todo[None]:
            self.todo[None].append(messages.ObserveGroup())

    def owner_changed(self, where: TopicPartition) -> None:
        generation = self.watched.pop(where, None)
        if generation is not None and not self.cut:
            self.tell_owner(where, generation)

    def tell_owner(self, where: TopicPartition, generation: int) -> None:
        node = self.world.zk.owners.get(where)
        self.tell(messages.OwnerIs(where, generation, node.session if node else None), where)

    def ping(self) -> None:
        """Heartbeats, which find out about a session that is gone."""
        if self.cut or self.paused:
            return
        if self.session not in self.world.zk.heard:
            self.session = self.world.zk.session(self.world.now)
            self.watched.clear()
            self.tell(messages.Expired())
        self.world.zk.heard[self.session] = self.world.now
        self.tell(messages.Alive(self.session, self.world.now, TIMEOUT))
        if self.known_cut:
            self.known_cut = False
            for where, (generation, _) in list(self.active.items()):  # watches come back with the connection
                self.watched[where] = generation
                self.tell_owner(where, generation)

    def cut_off(self, *, noticed: bool) -> None:
        self.cut = self.known_cut = True
        if noticed:
            self.tell(messages.Suspended())

    def delivers(self) -> frozenset[TopicPartition]:
        """What it hands over, and what handlers still work on after a stop, as long as the session is proven."""
        if self.paused or not self.active:
            return frozenset()
        stopping = {where for where, held in self.member.held.items() if held.stage is PartitionStage.STOPPING}
        proven = stopping if self.member.live and self.world.now < self.member.lease else set()
        return frozenset(self.active) & (may_deliver(self.member, self.world.now) | proven)

    def deliver(self) -> None:
        for where in self.delivers() & may_deliver(self.member, self.world.now):
            self.active[where][1] = self.world.record(where, self.active[where][1])

    def commit(self) -> None:
        for where, (generation, position) in self.active.items():
            self.tell(messages.CommitAsked(where, generation, position), where)

    # -------------------------------------------------------------------------------------------------------------- steps

    def hear(self, choice: int = 0) -> bool:
        """One event, of the partition chosen."""
        waiting = [where for where, events in self.heard.items() if events]
        if self.paused or not waiting:
            return False
        event = self.heard[waiting[choice % len(waiting)]].popleft()
        self.member, actions = step(self.member, event, self.world.now)
        for action in actions:
            self.todo[getattr(action, "where", None)].append(action)
        return True

    def act(self, choice: int = 0) -> bool:
        """One action, of the partition chosen, that can be carried out now."""
        waiting = [where for where, actions in self.todo.items() if actions and self.possible(actions[0])]
        if self.paused or not waiting:
            return False
        where = waiting[choice % len(waiting)]
        self.do(self.todo[where].popleft())
        return True

    def possible(self, action: messages.Action) -> bool:
        if isinstance(action, messages.Register) and action.session == self.session:
            taken = self.world.zk.ids.get(self.name)
            return not self.cut and self.alive() and (taken is None or taken.session == self.session)
        local = (
            messages.StartDelivery
            | messages.StopDelivery
            | messages.PauseDelivery
            | messages.Resume
            | messages.Drop
            | messages.Raise
            | messages.Register
        )
        return isinstance(action, local) or (not self.cut and self.alive())

    def alive(self) -> bool:
        return self.session in self.world.zk.heard

    def once(self) -> bool:
        return any([self.hear(), self.act()])

    def do(self, action: messages.Action) -> None:
        kind = type(action).__name__.lower()
        handler: Callable[[Any], None] = getattr(self, f"do_{kind}")
        handler(action)

    # ------------------------------------------------------------------------------------------------------------ actions

    def do_register(self, action: messages.Register) -> None:
        if action.session != self.session:
            return
        zk = self.world.zk
        zk.ids[self.name] = Node(self.session, self.member.settings.registration)
        zk.migrating[self.name] = Node(self.session, None)
        self.world.changed(ids=True)
        self.tell(messages.Registered(self.session))

    def do_deregister(self, _action: messages.Deregister) -> None:
        self.world.zk.ids.pop(self.name, None)
        self.world.zk.migrating.pop(self.name, None)
        self.world.changed(ids=True)

    def do_observegroup(self, _action: messages.ObserveGroup) -> None:
        self.tell(messages.GroupObserved(self.world.view(self.session)))

    def do_publish(self, _action: messages.Publish) -> None:
        pass

    def do_raise(self, action: messages.Raise) -> None:
        self.world.alarms.append(action)

    def do_claim(self, action: messages.Claim) -> None:
        if action.where in self.world.zk.owners:
            self.do_relabel(messages.Relabel(action.where, action.generation, action.thread))
        else:
            self.world.own(action.where, Node(self.session, action.thread))
        self.watched[action.where] = action.generation
        self.tell_owner(action.where, action.generation)

    def do_relabel(self, action: messages.Relabel) -> None:
        node = self.world.zk.owners.get(action.where)
        if node is not None and node.session == self.session:
            node.data = action.thread

    def do_checkowner(self, action: messages.CheckOwner) -> None:
        self.watched[action.where] = action.generation
        self.tell_owner(action.where, action.generation)

    def do_releaseowner(self, action: messages.ReleaseOwner) -> None:
        node = self.world.zk.owners.get(action.where)
        if node is not None and node.session == self.session:
            self.watched.pop(action.where, None)
            self.world.own(action.where, None)
        self.tell_owner(action.where, action.generation)

    def do_readoffsets(self, action: messages.ReadOffsets) -> None:
        offset, version = self.world.zk.offsets.get(action.where, (None, -1))
        self.versions[action.where] = version
        kafka = self.world.kafka_offsets.get(action.where)
        self.tell(messages.OffsetsRead(action.where, action.generation, offset, kafka), action.where)

    def do_readkafka(self, action: messages.ReadKafka) -> None:
        self.tell(messages.KafkaRead(action.where, action.generation, self.world.kafka_offsets.get(action.where)), action.where)

    def do_startdelivery(self, action: messages.StartDelivery) -> None:
        self.active[action.where] = [action.generation, action.offset or 0]

    def do_pausedelivery(self, action: messages.PauseDelivery) -> None:
        pass

    def do_resume(self, action: messages.Resume) -> None:
        pass

    def do_drop(self, action: messages.Drop) -> None:
        self.active.pop(action.where, None)

    def do_stopdelivery(self, action: messages.StopDelivery) -> None:
        _, position = self.active.pop(action.where, (0, None))
        self.tell(messages.Stopped(action.where, action.generation, position), action.where)

    def do_commitoffset(self, action: messages.CommitOffset) -> None:
        failed = set()
        if not is_current_generation(self.member, action.where, action.generation):
            return
        for store in action.stores:
            if store is Store.KAFKA and not self.world.kafka_takes:
                self.world.given_up.append((self.world.now, action.where, action.offset))
                failed.add(store)
            elif store is Store.KAFKA:
                self.world.committed(store, action.where, self.name, action.generation, action.offset)
                self.world.kafka_offsets[action.where] = action.offset
            elif self.world.zk.offsets.get(action.where, (0, -1))[1] == self.versions.get(action.where):
                self.world.committed(store, action.where, self.name, action.generation, action.offset)
                self.versions[action.where] += 1
                self.world.zk.offsets[action.where] = (action.offset, self.versions[action.where])
            else:
                failed.add(store)
        self.tell(messages.CommitDone(action.where, action.generation, action.offset, frozenset(failed)), action.where)
