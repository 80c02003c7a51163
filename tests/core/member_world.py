"""A small world for migrating members: a ZooKeeper, a Kafka coordinator, old consumers, and shells that do what members want done.

Nothing happens by itself: each call lets one party take one step, so a test chooses every interleaving. Shells keep what the real
one must: a partition's actions in order, its answers in order, and nothing for a generation that is over but letting go.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.member import messages
from airflow_provider_kmigrate.core.member.assignors import Assigned, Strategy, assign, topics_of
from airflow_provider_kmigrate.core.member.group_seen import Store
from airflow_provider_kmigrate.core.member.registration import Registration, Unreadable
from airflow_provider_kmigrate.core.member.state import blocks_revocation
from tests.core.member_shell import TIMEOUT, Node, Shell, ZooKeeper

TRIES = 4  # an old consumer's rebalance.max.retries
BACKOFF = 2.0
LATE = 8.0  # seconds for which a commit that no caller waited for may still take effect in Kafka


class World:
    def __init__(self, topics: dict[str, range]) -> None:
        self.zk = ZooKeeper(topics)
        self.now = 100.0
        self.kafka_offsets: dict[TopicPartition, int] = {}
        self.kafka_takes = True  # commits; of one that it does not take it is unknown whether it takes it later
        self.given_up: list[tuple[float, TopicPartition, int]] = []  # when, and what; it may take effect for `LATE` seconds
        self.writers: dict[tuple[Store, TopicPartition], tuple[str, int, int]] = {}  # the last one's name, generation and offset
        self.delivered: dict[TopicPartition, int] = defaultdict(int)  # how far anybody ever came
        self.members: dict[str, Shell] = {}
        self.old: dict[str, OldConsumer] = {}
        self.coordinator = Coordinator(self)
        self.alarms: list[messages.Raise] = []

    # ------------------------------------------------------------------------------------------------------- watches

    def changed(self, *, ids: bool = False) -> None:
        """Something under a watch of every member changed; old consumers watch only `ids`."""
        for shell in self.members.values():
            shell.observe_later()
        if ids:
            for old in self.old.values():
                old.triggered = True

    def own(self, where: TopicPartition, node: Node | None) -> None:
        if node is None:
            self.zk.owners.pop(where, None)
        else:
            self.zk.owners[where] = node
        for shell in self.members.values():
            shell.owner_changed(where)

    def end(self, session: int) -> None:
        """A session ends: its ephemeral znodes go."""
        self.zk.heard.pop(session, None)
        for where in [where for where, node in self.zk.owners.items() if node.session == session]:
            self.own(where, None)
        gone = [name for name, node in self.zk.ids.items() if node.session == session]
        for name in gone:
            del self.zk.ids[name]
        for name in [name for name, node in self.zk.migrating.items() if node.session == session]:
            del self.zk.migrating[name]
        self.changed(ids=bool(gone))

    def pass_time(self, seconds: float) -> None:
        for shell in self.members.values():
            shell.ping()
        self.now += seconds
        self.given_up = [each for each in self.given_up if self.now - each[0] < LATE]
        for old in self.old.values():
            if old.session in self.zk.heard:
                self.zk.heard[old.session] = self.now
        for session in [s for s, heard in self.zk.heard.items() if self.now - heard > TIMEOUT]:
            self.end(session)
        for shell in self.members.values():
            shell.tell(messages.Tick())

    def set_mode(self, data: bytes | None) -> None:
        self.zk.mode, self.zk.epoch = data, self.zk.epoch + 1
        self.changed()

    # --------------------------------------------------------------------------------------------------------- truth

    def deliverers(self) -> defaultdict[TopicPartition, list[str]]:
        """Who may have a record of each partition in hand at this instant."""
        found = defaultdict[TopicPartition, list[str]](list)
        for name, shell in self.members.items():
            for where in shell.delivers():
                found[where].append(name)
        for name, old in self.old.items():
            for where in old.active:
                found[where].append(name)
        return found

    def places(self) -> Iterator[TopicPartition]:
        return (TopicPartition(topic, p) for topic, partitions in self.zk.topics.items() for p in partitions)

    def record(self, where: TopicPartition, position: int) -> int:
        """One record is handed over: none was skipped."""
        assert position <= self.delivered[where], f"{where} skips from {self.delivered[where]} to {position}"
        self.delivered[where] = max(self.delivered[where], position + 1)
        return position + 1

    def committed(self, store: Store, where: TopicPartition, name: str, generation: int, offset: int) -> None:
        """A member commits: what it committed itself, as long as it owned the partition, it never takes back."""
        last_name, last_generation, last = self.writers.get((store, where), (name, generation, offset))
        own = (last_name, last_generation) == (name, generation)
        assert not own or offset >= last, f"{name} commits {where} to {store} at {offset} after {last}"
        self.writers[store, where] = (name, generation, offset)

    def lands(self, choice: int) -> None:
        """A commit that was given up takes effect after all."""
        if self.given_up:
            _, where, offset = self.given_up.pop(choice % len(self.given_up))
            self.kafka_offsets[where] = offset

    def view(self, session: int) -> messages.GroupView:
        registrations = {name: node.data for name, node in self.zk.ids.items()}
        migrating = frozenset(self.zk.migrating)
        return messages.GroupView(
            session, self.zk.epoch, self.zk.mode, registrations, migrating, self.zk.topics, frozenset(self.zk.owners)
        )

    def quiesce(self) -> None:
        """Everybody runs, nothing new happens, until all is still for longer than any time-out."""
        self.kafka_takes = True
        for shell in self.members.values():
            shell.paused, shell.cut = False, False
        still = 0.0
        for _ in range(3000):
            busy = any(party.once() for party in (*self.members.values(), *self.old.values(), self.coordinator))
            if not busy:
                still += 1.0
                self.pass_time(1.0)
            if still > 20:
                return
        raise AssertionError("the world does not come to rest")


class OldConsumer:
    """The old Scala consumer's rebalance, as measured: release, compute, read offsets, claim; four tries, 2 s apart."""

    def __init__(self, world: World, name: str, registration: Registration, strategy: Strategy) -> None:
        self.world, self.name, self.strategy = world, name, strategy
        self.session = world.zk.session(world.now)
        self.active: dict[TopicPartition, int] = {}
        self.mine: set[TopicPartition] = set()
        self.plan: list[tuple[TopicPartition, str]] = []
        self.triggered, self.tries, self.next_try = False, 0, 0.0
        self.starts: dict[TopicPartition, int] = {}
        world.old[name] = self
        world.zk.ids[name] = Node(self.session, registration)
        world.changed(ids=True)

    def deliver(self) -> None:
        for where in self.active:
            self.active[where] = self.world.record(where, self.active[where])

    def once(self) -> bool:
        """One step of a rebalance, if there is one to take."""
        if self.plan:
            self.claim(*self.plan.pop(0))
        elif self.triggered:
            self.triggered, self.tries, self.next_try = False, TRIES, 0.0
        elif self.tries and self.world.now >= self.next_try:
            self.release()
            self.compute()
        else:
            return False
        return True

    def release(self) -> None:
        for where, position in self.active.items():
            self.commit(where, position)
        self.active.clear()
        for where in sorted(self.mine):
            self.world.own(where, None)
        self.mine.clear()

    def commit(self, where: TopicPartition, position: int) -> None:
        version = self.world.zk.offsets.get(where, (0, -1))[1]
        self.world.zk.offsets[where] = (position, version + 1)

    def compute(self) -> None:
        self.tries, self.next_try = self.tries - 1, self.world.now + BACKOFF
        registrations = {name: node.data for name, node in self.world.zk.ids.items()}
        found = assign(self.strategy, registrations, self.world.zk.topics)
        if isinstance(found, Assigned):
            self.plan = sorted((w, t) for w, t in found.owners.items() if t.rpartition("-")[0] == self.name)
            self.starts = {where: self.world.zk.offsets.get(where, (0, 0))[0] for where, _ in self.plan}
            if not self.plan:
                self.tries = 0

    def claim(self, where: TopicPartition, thread: str) -> None:
        node = self.world.zk.owners.get(where)
        if node is not None and node.data != thread:
            for each in sorted(self.mine):
                self.world.own(each, None)
            self.mine.clear()
            self.plan.clear()
            return
        self.world.own(where, Node(self.session, thread))
        self.mine.add(where)
        if not self.plan:
            self.active, self.tries = {each: self.starts[each] for each in self.mine}, 0

    def close(self, *, killed: bool = False) -> None:
        """A clean stop commits and ends the session at once; after a kill the session only runs out."""
        if not killed:
            for where, position in self.active.items():
                self.commit(where, position)
        del self.world.old[self.name]
        if not killed:
            self.world.end(self.session)


class Coordinator:
    """The Kafka group of the embedded consumers: eager, waits for every revocation before it gives anything."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.assignment: dict[str, frozenset[TopicPartition]] = {}
        self.revoking: dict[str, frozenset[TopicPartition]] | None = None

    def rebalance(self) -> None:
        if self.revoking is None:
            self.revoking = {name: places for name, places in self.assignment.items() if name in self.world.members}
            for name, places in self.revoking.items():
                self.world.members[name].tell(messages.KafkaRevoked(places))

    def lose(self, name: str) -> None:
        """Its Kafka session ends; the others are given its partitions without it."""
        if self.revoking is None and name in self.assignment:
            del self.assignment[name]
            self.world.members[name].tell(messages.KafkaLost())

    def change_over(self, name: str) -> None:
        """One of the two consumers that a member has while its list of assignors changes is put out; the other one has all by now."""
        if self.revoking is None and name in self.assignment:
            self.world.members[name].tell(messages.KafkaLost())
            self.world.members[name].tell(messages.KafkaAssigned(self.assignment[name]))

    def once(self) -> bool:
        if self.revoking is None:
            alive = {name for name, shell in self.world.members.items() if not shell.member.closing}
            if alive != set(self.assignment):
                self.rebalance()
                return True
            return False
        if any(self.holds(name, places) for name, places in self.revoking.items()):
            return False
        self.revoking = None
        self.give()
        return True

    def holds(self, name: str, places: frozenset[TopicPartition]) -> bool:
        shell = self.world.members.get(name)
        if shell is None:
            return False
        unheard = any(isinstance(event, messages.KafkaRevoked) for event in shell.heard[None])
        return unheard or (shell.member.mode == "kafka" and blocks_revocation(shell.member, places))

    def give(self) -> None:
        names = sorted(name for name, shell in self.world.members.items() if not shell.member.closing)
        given: dict[str, set[TopicPartition]] = {name: set() for name in names}
        for i, where in enumerate(sorted(self.world.places())):
            wanting = [n for n in names if where.topic in self.topics(n)]
            if wanting:
                given[wanting[i % len(wanting)]].add(where)
        self.assignment = {name: frozenset(places) for name, places in given.items()}
        for name, places in self.assignment.items():
            self.world.members[name].tell(messages.KafkaAssigned(places))

    def topics(self, name: str) -> set[str]:
        found = topics_of(self.world.members[name].member.settings.registration, self.world.zk.topics)
        return set() if isinstance(found, Unreadable) else set(found)
