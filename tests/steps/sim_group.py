"""A consumer group in memory: instances that are restarted as another kind, the mode, offsets in both stores. Time is a number.

Each instance consumes one partition that gets records and one that gets none any more. What no real group survives is an
`AssertionError` at the moment it happens: an old member beside a plain one, a plain one beside migrating members that follow ZooKeeper,
and a member that begins behind what the group had committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from airflow_provider_kmigrate.clients.znodes import Create, Delete, Operation, Set, Znode, check_allowed
from airflow_provider_kmigrate.core.cluster_state.model import ClusterView, Fields, ZkView
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, GroupSpec, InstanceSpec
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.groups.offsets import CopyPlan
from airflow_provider_kmigrate.core.member.assignors import KafkaMember
from airflow_provider_kmigrate.core.member.cutover_note import CutoverNote, read_cutover
from airflow_provider_kmigrate.core.member.group_seen import GroupSeen, KafkaGroup, MemberKind, StoredOffset, ZkGroup
from airflow_provider_kmigrate.core.member.registration import MemberProgress, Mode, Registration, read_hold, read_offset
from airflow_provider_kmigrate.exceptions import Failed, KMigrateError, Unavailable
from airflow_provider_kmigrate.steps.run import StepContext
from tests.steps.sim_hands import SimFence, SimJournal
from tests.steps.sim_nodes import CLUSTER_ID, Mortal, SimClock

OLD, MIGRATING, PLAIN = MemberKind.ZOOKEEPER, MemberKind.MIGRATING, MemberKind.KAFKA
GROUP = "billing"
ROOT = f"/consumers/{GROUP}"
RESTART_S = 3.0
CRASH_S = 20.0  # shorter than the group's bake


def one_by_one(acts: Sequence[Callable[[], object]]) -> list[KMigrateError | None]:
    """As `steps.run.run_at_once`, in one order: a test counts what is done."""
    errors: list[KMigrateError | None] = []
    for act in acts:
        try:
            act()
        except KMigrateError as error:
            errors.append(error)
        else:
            errors.append(None)
    return errors


@dataclass
class SimInstance:
    name: str
    number: int
    kind: MemberKind | None = OLD
    becomes: MemberKind | None = None
    ready_at: float = 0.0
    starts: int = 0
    lives: int = 0  # as often as it began, by itself or not
    stuck: bool = False  # takes part and commits nothing

    @property
    def busy(self) -> TopicPartition:
        return TopicPartition("t", self.number)

    @property
    def idle(self) -> TopicPartition:
        return TopicPartition("idle", self.number)


@dataclass
class SimGroup:
    """`ill` kinds take part and commit nothing: what a canary is for."""

    count: int = 2
    name: str = GROUP
    ill: frozenset[MemberKind] = frozenset()
    clock: SimClock = field(default_factory=SimClock)
    mortal: Mortal = field(default_factory=Mortal)
    token: int = 0
    znodes: dict[str, tuple[bytes, int, int]] = field(default_factory=dict)  # path -> data, version, mzxid
    zxid: int = 10
    kafka: dict[TopicPartition, int] = field(default_factory=dict)
    committed: dict[TopicPartition, int] = field(default_factory=dict)  # the highest ever, wherever
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    blind: bool = False  # the coordinator does not answer
    ill_in_kafka_mode: bool = False
    rebalancing: frozenset[MemberKind] = frozenset()  # kinds that never settle
    rebalancing_in_kafka_mode: bool = False
    crashing: frozenset[MemberKind] = frozenset()  # kinds that end by themselves every CRASH_S seconds, and are started again
    out_of_isr: bool = False  # ZooKeeper takes no migrating member's commits once one member is old
    ghosts: set[str] = field(default_factory=set)  # instances whose dead members Kafka keeps for a session, once they have died
    ghosts_until: float = 45.0
    refusing: frozenset[str] = frozenset()  # kinds whose switch command ends with an error
    stderr: str = ""  # of those
    ignoring: frozenset[tuple[str, str]] = frozenset()  # instances and kinds: the command ends well, and nothing happens
    coming_back: dict[str, float] = field(
        default_factory=dict
    )  # instances that something else starts again, so many seconds after their stop
    other_topic: bool = False  # the new version reads one more topic
    stray_commits: bool = False  # a client that is never registered commits to ZooKeeper every second
    zk_view: ZkView = field(default_factory=lambda: ZkView(cluster_id=CLUSTER_ID, broker_ids=(0,)))

    @property
    def root(self) -> str:
        return f"/consumers/{self.name}"

    def __post_init__(self) -> None:
        self.instances = {f"app{n}": SimInstance(f"app{n}", n) for n in range(self.count)}
        if self.other_topic:
            self.ends[TopicPartition("new", 0)] = 7
        self.spec = GroupSpec(
            self.name, tuple(InstanceSpec(name) for name in self.instances), bake=30.0, commit_within=20.0, switch_timeout=120.0
        )
        self._put("/consumers", b"")
        self._put(self.root, b"")
        for instance in self.instances.values():
            for where in (instance.busy, instance.idle):
                self.ends[where] = 100
                self._commit_zk(where, 100)
        self._tick(0.0)

    def _is_too_large(self, data: bytes) -> bool:
        """As ZooKeeper's `jute.maxbuffer`: a server ends the connection of a client that sends more."""
        return len(data) > 1_000_000

    # What the tool does.

    def switch(self, group: GroupSpec, instance: InstanceSpec, kind: str, token: int) -> None:
        assert group.name == self.name
        self.mortal.step()
        if token < self.token:
            raise Failed("an older run")
        one = self.instances[instance.name]
        if kind in self.refusing:
            raise Failed(f"{one.name}: its switch command ended with exit code 1{self.stderr}")
        if (one.name, kind) in self.ignoring:
            one.starts += 1
            return
        if kind == "stopped":
            comes_back = self.coming_back.get(one.name)
            one.becomes, one.ready_at = (one.kind, self.clock.time + comes_back) if comes_back else (None, 0.0)
            one.kind = None
            self.mortal.step()
            return
        one.kind, one.becomes, one.ready_at, one.starts = None, MemberKind(kind), self.clock.time + RESTART_S, one.starts + 1
        self.mortal.step()

    def read(self, path: str) -> tuple[bytes, int] | None:
        found = self.znodes.get(path)
        return (found[0], found[1]) if found else None

    def read_znodes(self, paths: Iterable[str]) -> Iterator[tuple[str, Znode]]:
        return ((path, Znode(*self.znodes[path], 0.0)) for path in paths if path in self.znodes)

    def children(self, path: str) -> list[str]:
        return sorted({name.removeprefix(f"{path}/").split("/")[0] for name in self.znodes if name.startswith(f"{path}/")})

    def commit(self, operations: Sequence[Operation], holding: SimFence | None = None) -> None:
        assert holding is not None
        holding.check()
        self.mortal.step()
        for operation in operations:
            check_allowed(operation, is_fenced=True)
            if not isinstance(operation, Delete) and self._is_too_large(operation.data):
                raise Unavailable("the connection to ZooKeeper ended")
            found = self.znodes.get(operation.path)
            match operation:
                case Create(path, data):
                    assert found is None
                    assert path.rpartition("/")[0] in {"", *self.znodes}
                    self._put(path, data)
                case Set(path, data, version):
                    assert found is not None
                    assert found[1] == version
                    self._put(path, data)
                case Delete(path, version):
                    assert found is not None
                    assert found[1] == version
                    assert not self.children(path)
                    del self.znodes[path]
        self.mortal.step()

    def commit_offsets(self, plan: CopyPlan, holding: SimFence) -> None:
        holding.check()
        self.mortal.step()
        assert not {MIGRATING, PLAIN}.intersection(self.kinds()), "Kafka refuses that"
        for write in plan.writes:
            self.kafka[write.where] = write.offset
            self.mortal.step()

    def observe(self, what: Fields, nodes: Sequence[Any] = (), groups: Sequence[str] = ()) -> ClusterView:
        assert Fields.GROUP_MEMBERS in what
        assert tuple(groups) == (self.name,)
        assert not nodes
        self.mortal.step()
        self._tick(0.5)
        seen = None if self.blind else {self.name: self.seen()}
        return ClusterView(taken_at=self.clock.time, zk=self.zk_view, groups=seen)

    def context(self) -> StepContext:
        """A new run of the tool."""
        self.token += 1
        tools: Any = SimpleNamespace(zk=self, instances=self, commit_offsets=self.commit_offsets)
        spec = ClusterSpec("sim", CLUSTER_ID, "z", "k", (), (), groups=(self.spec,))
        fence: Any = SimFence(self, self.token)  # type: ignore[arg-type]
        backup: Any = None
        return StepContext(  # type: ignore[arg-type]
            spec,
            self,
            tools,
            fence,
            SimJournal(),
            backup,
            [].append,
            self.clock,
            run="run",
            at_once=one_by_one,  # type: ignore[arg-type]
        )

    # What an observation shows.

    def seen(self) -> GroupSeen:
        here = [one for one in self.instances.values() if one.kind is not None]
        registered = [one for one in here if one.kind in {OLD, MIGRATING}]
        plain = [one for one in here if one.kind is PLAIN]
        in_kafka = [one for one in here if one.kind in {MIGRATING, PLAIN}]
        mode = self.znodes.get(f"{self.root}/migration/mode")
        zk = ZkGroup(
            {self._id(one): Registration("static", {"t": 1, "idle": 1}, str(one.lives)) for one in registered},
            {
                self._id(one): MemberProgress(mode[2] if mode else 0, self.mode, settled=self._settles())
                for one in here
                if one.kind is MIGRATING
            },
            mode[0] if mode else None,
            mode[1] if mode else -1,
            mode[2] if mode else 0,
            {where: f"{self._id(one)}-0" for one in registered for where in (one.busy, one.idle)},
            dict(self._zk_offsets()),
            frozenset(where for one in registered for where in (one.busy, one.idle)),
            read_hold(self.znodes[f"{self.root}/migration/hold"][0]) if f"{self.root}/migration/hold" in self.znodes else None,
            {where: read_offset(data) for where, data in self._places("migration/reset")},
            cutover=read_cutover(self.znodes[f"{self.root}/migration/cutover"][0])
            if f"{self.root}/migration/cutover" in self.znodes
            else None,
        )
        if isinstance(zk.cutover, CutoverNote):
            topics = {where.topic for where in zk.cutover.partitions}
            zk = replace(zk, cutover_partitions=frozenset(where for where in self.ends if where.topic in topics))
        kept = self.clock.time < self.ghosts_until
        in_kafka += [one for one in self.instances.values() if one.kind is None and one.name in self.ghosts and kept]
        members = [
            KafkaMember(
                f"{one.name}-{one.lives}",
                one.name if one in plain else self._id(one),
                frozenset({one.busy, one.idle}) | ({TopicPartition("new", 0)} if self.other_topic else set()),
            )
            for one in in_kafka
        ]
        return GroupSeen(
            self.name, zk, KafkaGroup("Stable" if members else "Empty", tuple(members)), dict(self.kafka), dict(self.ends)
        )

    @property
    def requested_mode(self) -> Mode:
        return Mode.KAFKA if self.znodes.get(f"{self.root}/migration/mode", (b"",))[0] == b"kafka" else Mode.ZOOKEEPER

    @property
    def mode(self) -> Mode:
        return Mode.ZOOKEEPER if OLD in self.kinds() else self.requested_mode

    def kinds(self) -> list[MemberKind]:
        return [one.kind for one in self.instances.values() if one.kind is not None]

    def _settles(self) -> bool:
        return MIGRATING not in self.rebalancing and not (self.rebalancing_in_kafka_mode and self.mode is Mode.KAFKA)

    # What happens by itself.

    def _tick(self, seconds: float) -> None:
        self.clock.time += seconds
        for one in self.instances.values():
            if one.becomes is not None and self.clock.time >= one.ready_at:
                one.kind, one.becomes, one.lives = one.becomes, None, one.lives + 1
                self._begins(one)
            elif one.kind in self.crashing and self.clock.time >= one.ready_at + CRASH_S:
                one.kind, one.becomes, one.ready_at = None, one.kind, self.clock.time + RESTART_S
            self.ends[one.busy] += 5
            ill = one.kind in self.ill or (self.ill_in_kafka_mode and self.mode is Mode.KAFKA)
            if one.kind is not None and not ill:
                self._commits(one, one.busy, self.ends[one.busy] - 1)
        if self.stray_commits:
            self._commit_zk(TopicPartition("t", 0), self.ends[TopicPartition("t", 0)] - 1)
        self._check()

    def _begins(self, one: SimInstance) -> None:
        """At the offset of the store that its kind reads; a migrating one commits to Kafka what it did not know."""
        for where in (one.busy, one.idle):
            zookeeper, kafka = self._offset(where), self.kafka.get(where, -1)
            start = {OLD: zookeeper, PLAIN: kafka, MIGRATING: max(zookeeper, kafka)}[one.kind or OLD]
            assert start <= self.committed[where], (
                f"{one.name} begins {where} at {start}, only {self.committed[where]} was processed"
            )
            assert start >= self.committed[where] - 10, (
                f"{one.name} begins {where} at {start}, {self.committed[where]} was committed"
            )
            if one.kind is MIGRATING:
                self.kafka[where] = start

    def _commits(self, one: SimInstance, where: TopicPartition, offset: int) -> None:
        self.committed[where] = max(offset, self.committed.get(where, -1))
        if one.kind is OLD or (one.kind is MIGRATING and not (self.out_of_isr and OLD in self.kinds())):
            self._commit_zk(where, offset)
        if one.kind in {MIGRATING, PLAIN}:
            self.kafka[where] = offset

    def _check(self) -> None:
        kinds = set(self.kinds())
        assert not {OLD, PLAIN} <= kinds, "old and plain members read every partition twice"
        assert not ({MIGRATING, PLAIN} <= kinds and self.mode is Mode.ZOOKEEPER), (
            "plain members beside members that follow ZooKeeper"
        )

    def _id(self, one: SimInstance) -> str:
        return f"{self.name}_{one.name}"

    def _put(self, path: str, data: bytes) -> None:
        self.zxid += 1
        self.znodes[path] = (data, self.znodes[path][1] + 1 if path in self.znodes else 0, self.zxid)

    def _commit_zk(self, where: TopicPartition, offset: int) -> None:
        for folder in (f"{self.root}/offsets", f"{self.root}/offsets/{where.topic}"):
            self.znodes.setdefault(folder, (b"", 0, 0))
        self._put(f"{self.root}/offsets/{where.topic}/{where.partition}", str(offset).encode())
        self.committed[where] = max(offset, self.committed.get(where, -1))

    def _offset(self, where: TopicPartition) -> int:
        return int(self.znodes.get(f"{self.root}/offsets/{where.topic}/{where.partition}", (b"-1",))[0])

    def _zk_offsets(self) -> Iterator[tuple[TopicPartition, StoredOffset]]:
        return ((where, StoredOffset(read_offset(data), 0.0)) for where, data in self._places("offsets"))

    def _places(self, folder: str) -> Iterator[tuple[TopicPartition, bytes]]:
        """What stands at `<folder>/<topic>/<partition>`."""
        for path, (data, *_) in self.znodes.items():
            parts = path.removeprefix(f"{self.root}/{folder}/").split("/")
            if path.startswith(f"{self.root}/{folder}/") and len(parts) == 2:
                yield TopicPartition(parts[0], int(parts[1])), data
