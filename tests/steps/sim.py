"""A cluster in memory that behaves as measured on real ones: what a properties file makes of a node, sticky registrations, the copy.

Steps run on it with their real code; time is a number. `Mortal` kills the tool before any chosen side effect or observation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from airflow_provider_kmigrate.clients import znodes
from airflow_provider_kmigrate.clients.holding import Holding
from airflow_provider_kmigrate.clients.wire import TopicLocations
from airflow_provider_kmigrate.core.cluster_state.model import (
    Broker,
    BrokerMode,
    BrokerRegistration,
    Certificate,
    ClusterEnvironment,
    ClusterView,
    ConnectionFacts,
    Controller,
    CoordinatorFacts,
    FetchedOffset,
    Fields,
    HostedGroup,
    LogDir,
    Migration,
    Partition,
    PartitionIds,
    Quorum,
    Stored,
    StoredKind,
    Taken,
    TopicMetadata,
    ZkController,
    ZkView,
    ZooKeeperServer,
    ZooKeeperTree,
)
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, NodeRole, NodeSpec, Policy
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.member.assignors import KafkaMember
from airflow_provider_kmigrate.core.member.group_seen import GroupSeen, GroupSweep, KafkaGroup
from airflow_provider_kmigrate.core.migration.coordinator import OFFSETS, hash_group
from airflow_provider_kmigrate.core.migration.group_progress import GroupsKept
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage
from airflow_provider_kmigrate.exceptions import KMigrateError
from airflow_provider_kmigrate.steps.backup import BackupStore
from airflow_provider_kmigrate.steps.run import StepContext
from tests.steps.sim_hands import SimFence, SimGroupsAt, SimHost, SimJournal, SimOffsetsLog
from tests.steps.sim_nodes import (
    CLUSTER_ID,
    MODES,
    Health,
    Mortal,
    SimClock,
    SimNode,
    as_asked,
    files_of,
    node_of,
    original_of,
    parse,
    process_of,
    well,
)
from tests.steps.sim_zookeeper import SimZooKeeper


@cache
def _replicas(partition: int, brokers: int) -> tuple[int, ...]:
    return tuple((partition + r) % brokers for r in range(min(3, brokers)))


def one_after_another(acts: Sequence[Callable[[], object]]) -> list[KMigrateError | None]:
    """What a run does at once, in one thread and in order: the tool can die between any two."""
    errors: list[KMigrateError | None] = []
    for act in acts:
        try:
            act()
        except KMigrateError as error:
            errors.append(error)
        else:
            errors.append(None)
    return errors


class SimGroups:
    """What one step leaves to the next one, as JSON has it."""

    def __init__(self) -> None:
        self.stored: dict[str, Any] | None = None

    def load(self) -> GroupsKept | None:
        return None if self.stored is None else GroupsKept.from_json(self.stored)

    def save(self, kept: GroupsKept) -> None:
        self.stored = json.loads(json.dumps(kept.to_json()))


@dataclass
class SimCluster:
    """Three brokers, three controllers unless the test says otherwise; every partition has three replicas."""

    brokers: int = 3
    controllers: int = 3
    clock: SimClock = field(default_factory=SimClock)
    mortal: Mortal = field(default_factory=Mortal)
    offset: int | None = None  # /migration; None: absent
    kraft_owns: bool = False
    finalized: bool = False
    copy_fails: bool = False  # a leader that has claimed the cluster does not come to the end of its copy
    registered: set[int] = field(default_factory=set)  # registered with the controllers; sticks
    live_groups: tuple[str, ...] = ()
    moving: tuple[str, ...] = ()  # partitions under reassignment
    leader: int = 3000
    epoch: int = 5  # of the KRaft leader; each new one has a higher one
    controller_epoch: int = 3
    state_epoch: int | None = 3
    token: int = 0
    stuck: int | None = None  # a leader that adds no broker to its ISRs until it is restarted
    kept_out: set[int] = field(default_factory=set)
    kept_in: set[int] = field(default_factory=set)  # partitions whose ISRs have them since before
    behind: int = 0  # records that every follower is behind
    out_of_isr: bool = False  # after a handover brokers skip what the ZooKeeper controller says
    ahead: int = 0  # by how much KRaft's partition epochs exceed the versions of the states in ZooKeeper
    leaderless: set[int] = field(default_factory=set)  # partitions that the takeover leaves without a leader until one is elected
    health: Callable[[int, BrokerMode, int], Health] = well  # of a broker, in a mode, at the nth observation
    observations: int = 0
    note: bytes | None = None  # of brokers that were rolled back alone
    ended: int | None = (
        None  # the leader's epoch in which it lost the version of /migration: it writes nothing to ZooKeeper any more
    )
    isolated: set[int] = field(
        default_factory=set
    )  # brokers that were started in ZooKeeper mode after the finalization: they do not answer
    uninformed: set[int] = field(default_factory=set)  # brokers that were started after the dual-write ended, and got no metadata
    half_made: int | None = None  # since this epoch ZooKeeper misses a partition's state: later leaders write nothing
    wrote: tuple[int, int] | None = None  # the leader, and its epoch, of the last dual-write
    version: int = 0  # of /migration
    known: bytes | None = None  # the note of brokers that a roll has moved into migration mode
    meddled: bool = False  # another tool took a controller's flag: that it finalizes is not kmigrate's doing
    unflagged: bytes | None = None  # the note of controllers whose flag a finalization takes
    connections: ConnectionFacts = field(default_factory=ConnectionFacts)  # how the tool's own are protected
    offsets_partitions: int = 0  # of __consumer_offsets; 0: no group ever committed
    counts: dict[int, int] = field(default_factory=dict)  # of them, as each broker read it when it started
    unread_coordinators: set[int] = field(default_factory=set)  # brokers that do not say who coordinates a group
    ensemble: tuple[ZooKeeperServer, ...] = (ZooKeeperServer("127.0.0.1:2181", "3.8.4", "standalone"),)
    left: dict[str, list[tuple[str, str]]] = field(default_factory=dict)  # what is left over on a node's machine: (kind, path)
    removed: list[tuple[str, str]] = field(default_factory=list)
    consumers: Callable[[float], GroupSweep] = lambda _: GroupSweep()  # what a sweep over the consumer groups shows at a time
    kept: SimGroups = field(default_factory=SimGroups)
    offsets: dict[int, dict[str, dict[TopicPartition, FetchedOffset]]] = field(default_factory=dict)  # by partition of the topic
    members: dict[str, int] = field(default_factory=dict)  # of a group
    hidden_topics: set[str] = field(default_factory=set)  # which our user may not describe: brokers leave their offsets out
    in_transaction: set[str] = field(default_factory=set)  # groups with a commit in an open one
    added: dict[int, tuple[int, ...]] = field(default_factory=dict)  # replicas of partitions that __consumer_offsets got later
    expansion: bytes | None = None  # the note of an expansion of it
    noted_counts: bytes | None = b"{}"  # the note of partition counts; a backup makes it
    regular: bool = False  # leaders are so regular that brokers' answers fit the topic's count and its double, whatever they use
    stored: tuple[dict[str, TopicMetadata], dict[str, TopicMetadata]] = field(default_factory=lambda: ({}, {}))  # on both sides
    kafka_tree: list[tuple[str, bytes | None]] = field(default_factory=lambda: [("/", None), ("/controller_epoch", b"3")])
    disasters: list[str] = field(default_factory=list)  # what was measured to lose records, topics or minutes

    def __post_init__(self) -> None:
        nodes = [node_of(NodeRole.BROKER, node) for node in range(self.brokers)]
        quorum = [node_of(NodeRole.CONTROLLER, 3000 + node) for node in range(self.controllers)]
        policy = Policy(min_soak=3.0, canary_bake=0.0, start_timeout=150.0)  # each second of a wait is three observations
        self.spec = ClusterSpec("sim", CLUSTER_ID, "zk", "kafka", tuple(nodes), tuple(quorum), policy)
        self.nodes = {(node.role, node.id): SimNode(node) for node in self.spec.nodes()}
        for node in nodes:
            mine = self.nodes[NodeRole.BROKER, node.id]
            mine.text = mine.running = original_of(node.id)
        self.zookeeper_controller, self.led = 0, False
        self.leaders = {p: p % self.brokers for p in range(2 * self.brokers)}
        self.counts = {node.id: self.offsets_partitions for node in nodes}
        if self.offsets_partitions:
            self.noted_counts = json.dumps({OFFSETS.name: self.offsets_partitions}).encode()
        for number in range(12) if self.offsets_partitions else ():
            commit = {TopicPartition("t", 0): FetchedOffset(100 + number, number, f"of {number}")}
            self.offsets.setdefault(hash_group(f"team-{number}") % self.offsets_partitions, {})[f"team-{number}"] = commit

    # What the host of a node does.

    def start(self, node: NodeSpec) -> None:
        mine = self.nodes[node.role, node.id]
        if mine.running is not None:
            return
        mine.running, mine.starts = mine.text, mine.starts + 1
        if node.role is NodeRole.BROKER and (self.out_of_isr or self.stuck not in {None, node.id}):
            self.kept_out.add(node.id)
        if node.role is NodeRole.BROKER and self.kraft_owns and self._zookeeper_brokers() and not self._writes():
            self.uninformed.add(node.id)
        if node.role is NodeRole.BROKER:
            self.counts[node.id] = self.offsets_partitions
        if node.role is NodeRole.CONTROLLER:
            assert mine.formatted == CLUSTER_ID
            mine.log, mine.copied = True, mine.copied or (self.kraft_owns and self._copied)
            self.offset = -1 if self.offset is None else self.offset
            if not self.kraft_owns and self.offset > 0:
                self.disasters.append("topics deleted: an empty log under a /migration with a copy")
            self._elect()
        elif self.finalized and mine.stage is not FileStage.KRAFT and not self.meddled:
            self.disasters.append(f"finalized, and broker {node.id} starts as before")
        elif mine.stage is FileStage.ZOOKEEPER and self.kraft_owns:
            self.disasters.append(f"plain broker {node.id} beside a KRaft controller")
        if node.role is NodeRole.BROKER and self.finalized and mine.stage is FileStage.ZOOKEEPER:
            self.isolated.add(node.id)
        self._register()
        self._takeover()
        self.elect_zookeeper()

    def stop(self, node: NodeSpec) -> None:
        mine = self.nodes[node.role, node.id]
        if mine.running is None:
            return
        if node.role is NodeRole.BROKER and self.kraft_owns and not self._majority():
            self.disasters.append(f"broker {node.id} stopped without a controller: 300 s")
        up = [broker for broker in self.counts if self._up(broker)]
        if node.role is NodeRole.BROKER and any(self._hurts(self.counts[broker]) for broker in up):
            self.disasters.append(
                f"broker {node.id} stopped although brokers use different counts of __consumer_offsets: groups move"
            )
        mine.running, mine.stops = None, mine.stops + 1
        if node.role is NodeRole.BROKER:
            self.isolated.discard(node.id)
        if node.role is NodeRole.BROKER and node.id == self.stuck:
            self.stuck = None
            self.kept_out.clear()
        if node.role is NodeRole.CONTROLLER:
            self._elect()
            return
        for partition, leader in self.leaders.items():
            if leader == node.id:
                self.leaders[partition] = next((b for b in self._replicas(partition) if self._up(b)), -1)
        self.elect_zookeeper()

    def _hurts(self, count: int) -> bool:
        """Whether a broker that uses this count moves a group that has offsets or members."""
        numbers = map(hash_group, self._groups())
        return count != self.offsets_partitions and any(number % count != number % self.offsets_partitions for number in numbers)

    def wipe(self, node: NodeSpec) -> None:
        mine = self.nodes[node.role, node.id]
        assert mine.running is None
        mine.formatted, mine.log, mine.copied = None, False, False
        if not any(self.nodes[n.role, n.id].log for n in self.spec.controllers):
            self.registered.clear()

    def _majority(self) -> bool:
        up = [n for n in self.spec.controllers if self.nodes[n.role, n.id].running is not None]
        return len(up) * 2 > len(self.spec.controllers)

    def elect_zookeeper(self) -> None:
        """A new ZooKeeper controller where the old one went, which rewrites the states that it may."""
        up = self._zookeeper_brokers()
        if self.kraft_owns or not up or self.zookeeper_controller in up:
            return
        self.zookeeper_controller = up[0]
        self.controller_epoch += 1
        if self.state_epoch is not None and self.state_epoch > self.controller_epoch:
            self.disasters.append("partition states out of the controller's reach")
        self.state_epoch = self.controller_epoch

    def _zookeeper_brokers(self) -> list[int]:
        return [b.id for b in self.spec.brokers if self.nodes[b.role, b.id].stage in {FileStage.ZOOKEEPER, FileStage.MIGRATION}]

    def _up(self, broker: int) -> bool:
        return self.nodes[NodeRole.BROKER, broker].running is not None

    def _elect(self) -> None:
        """The present leader stays while it runs; a leader without the flag finalizes."""
        up = [n for n in self.spec.controllers if self.nodes[n.role, n.id].running is not None]
        if not self._majority():
            self.led = False
            return
        if not self.led or self.leader not in {n.id for n in up}:
            self.lead(up[0].id)

    def lead(self, controller: int) -> None:
        """It is elected. Without the flag it finalizes at once a migration whose copy is over, whatever modes the brokers have."""
        self.leader, self.epoch, self.led = controller, self.epoch + 1, True
        if self.kraft_owns:
            self.controller_epoch += 1
            self.state_epoch = self.epoch
        if (
            self.kraft_owns
            and self._copied
            and not self.finalized
            and self.nodes[NodeRole.CONTROLLER, controller].stage is FileStage.CONTROLLER_FINAL
        ):
            self.finalized = True
            left = [] if self.meddled else self._zookeeper_brokers()
            self.disasters += [f"finalized with broker {broker} left behind" for broker in left]

    def _register(self) -> None:
        """Brokers that have the controllers in their files find them whenever one with the flag leads, and stay registered."""
        if self._majority() and (
            self.kraft_owns or self.nodes[NodeRole.CONTROLLER, self.leader].stage is FileStage.CONTROLLER_MIGRATION
        ):
            modes = {b.id: self.nodes[b.role, b.id].stage for b in self.spec.brokers}
            self.registered |= {broker for broker, stage in modes.items() if stage in {FileStage.MIGRATION, FileStage.KRAFT}}

    def _takeover(self) -> None:
        flagged = all(self.nodes[n.role, n.id].stage is FileStage.CONTROLLER_MIGRATION for n in self.spec.controllers)
        if flagged and not (self.kraft_owns and self._copied) and self.registered == set(range(self.brokers)):
            plain = [b.id for b in self.spec.brokers if self.nodes[b.role, b.id].stage is FileStage.ZOOKEEPER]
            self.disasters += [f"the takeover cuts plain broker {broker} off" for broker in plain]
            quorum = [self.nodes[n.role, n.id] for n in self.spec.controllers]
            if any(mine.copied for mine in quorum):
                self.disasters.append("topics deleted: the log of an earlier copy took the cluster over")
            self.kraft_owns, self.zookeeper_controller = True, -1
            self.controller_epoch += 1
            if self.copy_fails:
                return
            self.offset, self.ahead, self.state_epoch = 50, 3, self.epoch
            for mine in quorum:
                mine.copied = mine.log

    @property
    def _copied(self) -> bool:
        return (self.offset or 0) > 0

    def _replicas(self, partition: int) -> tuple[int, ...]:
        return _replicas(partition, self.brokers)

    # What an observation shows.

    def observe(self, what: Fields, nodes: Sequence[NodeSpec] = (), groups: Sequence[str] = ()) -> ClusterView:
        self.mortal.step()
        self.observations += 1
        self.clock.time += 0.1
        if self.kraft_owns and not self.finalized and self.offset is not None and self._copied and self.led:
            self._dual_write(self.offset)
        # Once for each observation: a search makes a million of them.
        up = frozenset(b.id for b in self.spec.brokers if self._up(b.id))
        health = {b.id: self._health(b.id) for b in self.spec.brokers}
        in_sync = {broker for broker, its in health.items() if its.in_sync} - self.uninformed - self.isolated
        view = ClusterView(
            name=self.spec.name,
            moving=self.moving,
            taken_at=self.clock.time,
            kafka_cluster_id=CLUSTER_ID,
            brokers={n.id: self._broker(n, health[n.id], up) for n in self.spec.brokers},
            controllers={n.id: self._controller(n) for n in self.spec.controllers},
            quorum=self._quorum(),
            zk=self.zk(),
            partitions=self._partitions(in_sync),
            min_insync=dict.fromkeys(("t", OFFSETS.name), min(2, self.brokers - 1) or 1),
            coordinators=self._coordinators(),
            hosted=self._hosted(groups) if not what or what & Fields.HOSTED_GROUPS else None,
            groups={group: self._seen(group) for group in groups} if what and what & Fields.GROUP_MEMBERS else None,
            client_metrics=(),
            topics=self.stored,
            stored={kind: Stored({}) for kind in StoredKind},
            state_epoch=self.state_epoch,
            ensemble=self.ensemble,
            group_progress=self.consumers(self.clock.time),
        )
        return as_asked(view, what, nodes)

    def _dual_write(self, offset: int) -> None:
        if self.epoch == self.ended:
            return
        self.version += 1  # an attempt that fails half-way shows, too
        if self._writes():
            self.offset, self.wrote = offset + 1, (self.leader, self.epoch)
            self.uninformed.clear()

    def _writes(self) -> bool:
        """Whether the thread that writes to ZooKeeper informs brokers in migration mode, as it does after each write."""
        return self.epoch != self.ended and (self.half_made is None or self.epoch <= self.half_made)

    def environment(self, view: ClusterView) -> ClusterEnvironment:
        """Nothing but what is well: each broker has one directory and runs 3.9, by one clock."""
        del view
        ids = [node.id for node in self.spec.brokers]
        tree = ZooKeeperTree(registrations={broker: BrokerRegistration(1.0, 1.0) for broker in ids})
        dirs = {broker: (LogDir("/data", "", 1 << 40),) for broker in ids}
        servers = (ZooKeeperServer("127.0.0.1:2181", "3.8.4"),)
        taken = {broker: Taken(self.broker_config(broker)) for broker in ids}
        return ClusterEnvironment(
            dict.fromkeys(ids, "3.9-IV0"),
            dirs,
            (),
            tree,
            servers,
            now=10.0,
            one_machine=True,
            taken=taken,
            certificates=dict.fromkeys(ids, Certificate()),
            partition_ids=dict.fromkeys(ids, PartitionIds()),
            addresses={node.id: ("10.0.0.1",) for node in self.spec.controllers},
        )

    def _broker(self, node: NodeSpec, health: Health, up: frozenset[int]) -> Broker:
        mine = self.nodes[node.role, node.id]
        # One in migration mode waits for a word before it answers.
        reported = (node.id not in self.uninformed or mine.stage is not FileStage.MIGRATION) and node.id not in self.isolated
        mode = MODES.get(mine.stage) if mine.stage and health.seconds is not None and reported else None
        return Broker(
            node.id,
            process_of(mine),
            mode,
            mine.stage in {FileStage.ZOOKEEPER, FileStage.MIGRATION},
            up if mode else frozenset(),
            None if self.kraft_owns else self.zookeeper_controller,
            files_of(mine),
            health.seconds,
        )

    def _health(self, broker: int) -> Health:
        mode = MODES.get(stage) if (stage := self.nodes[NodeRole.BROKER, broker].stage) else None
        return self.health(broker, mode, self.observations) if mode else Health(in_sync=False)

    def _controller(self, node: NodeSpec) -> Controller:
        mine = self.nodes[node.role, node.id]
        flag = None if mine.running is None else mine.stage is FileStage.CONTROLLER_MIGRATION
        return Controller(node.id, process_of(mine), mine.running is not None, flag, files_of(mine))

    def _quorum(self) -> Quorum | None:
        up = [n.id for n in self.spec.controllers if self.nodes[n.role, n.id].running is not None]
        if len(up) * 2 <= len(self.spec.controllers):
            return None
        end = (self.offset or 0) + 2
        return Quorum(self.leader, self.epoch, end, dict.fromkeys(up, end), {})

    def zk(self) -> ZkView:
        owner = (
            ZkController(self.leader, self.epoch, ephemeral=False)
            if self.kraft_owns
            else ZkController(self.zookeeper_controller, -1, ephemeral=True)
        )
        leader, epoch = self.wrote or (self.leader, self.epoch)
        migration = None if self.offset is None else Migration(leader, epoch, self.offset, epoch, self.version)
        return ZkView(
            CLUSTER_ID,
            tuple(self._zookeeper_brokers()),
            owner,
            self.controller_epoch,
            migration,
            live_groups=self.live_groups,
            rolled_back=znodes.parse_rolled_back(self.note) if self.note else {},
            registered=znodes.parse_node_ids("registered", self.known) if self.known else frozenset(),
            unflagged=znodes.parse_node_ids("unflagged", self.unflagged) if self.unflagged else frozenset(),
            expansion=znodes.parse_expansion(self.expansion) if self.expansion else None,
            partition_counts=znodes.parse_partition_counts(self.noted_counts) if self.noted_counts else None,
        )

    def _partitions(self, in_sync: set[int]) -> tuple[Partition, ...]:
        rows = []
        for partition, leader in self.leaders.items():
            replicas = self._replicas(partition)
            isr = self._isr(replicas, -1 if partition in self.kept_in else leader, in_sync)
            headless = self.kraft_owns and partition in self.leaderless
            if leader not in isr or headless:
                self.leaders[partition] = -1 if headless or not isr else isr[0]
            rows.append(Partition("t", partition, self.leaders[partition], replicas, isr))
        return (*rows, *self._offsets_topic(in_sync))

    def _offsets_topic(self, in_sync: set[int]) -> Iterator[Partition]:
        for partition in range(self.offsets_partitions):
            replicas = self.added.get(partition) or self._replicas(partition)
            isr = self._isr(replicas, next((broker for broker in replicas if self._up(broker)), -1), in_sync)
            yield Partition(OFFSETS.name, partition, next(iter(isr), -1), replicas, isr)

    def _isr(self, replicas: Sequence[int], leader: int, in_sync: set[int]) -> tuple[int, ...]:
        out = self.kept_out if self.out_of_isr or leader == self.stuck else ()
        return tuple(b for b in replicas if b in in_sync and b not in out)

    def _coordinators(self) -> CoordinatorFacts:
        """Not by fingerprints: a broker that answers at all is known by what it read."""
        also = {self.offsets_partitions, 2 * self.offsets_partitions} if self.regular else set()
        answering = [broker for broker in self.counts if self._up(broker) and broker not in self.unread_coordinators]
        return CoordinatorFacts(
            {OFFSETS.name: {broker: frozenset({self.counts[broker], *also}) for broker in answering}},
            self._groups(),
        )

    def _groups(self) -> tuple[str, ...]:
        stored = {group for groups in self.offsets.values() for group in groups}
        return tuple(sorted(stored | {group for group, many in self.members.items() if many}))

    def coordinates(self, broker: int, group: str) -> bool:
        """Whether it takes itself for the group's coordinator, by the count that it read."""
        return self._up(broker) and self._leader(hash_group(group) % self.counts[broker]) == broker

    def _leader(self, partition: int) -> int:
        return next((broker for broker in self.added.get(partition) or self._replicas(partition) if self._up(broker)), -1)

    def _hosted(self, groups: Sequence[str]) -> dict[int, dict[str, HostedGroup]]:
        names, answering = {*self._groups(), *groups}, set(self.counts) - self.unread_coordinators
        return {
            broker: {group: self.hosted(broker, group) for group in names if self.coordinates(broker, group)}
            for broker in answering
            if self._up(broker)
        }

    def hosted(self, broker: int, group: str) -> HostedGroup:
        """An old copy wins: its partition was loaded first (measured)."""
        copies = [self.offsets[p][group] for p in sorted(self.offsets) if self._leader(p) == broker and group in self.offsets[p]]
        members = self.members.get(group, 0)
        state = "Stable" if members else "Empty" if copies else "Dead"
        described = {where: one for where, one in copies[0].items() if where.topic not in self.hidden_topics} if copies else {}
        return HostedGroup(state, members, described, group in self.in_transaction)

    def _seen(self, group: str) -> GroupSeen:
        [*hosted] = [self.hosted(broker, group) for broker in self.counts if self.coordinates(broker, group)]
        one = hosted[0] if hosted else HostedGroup("Dead")
        members = tuple(KafkaMember(f"{group}-{n}", "app", frozenset()) for n in range(one.members))
        committed = {where: each.offset for where, each in one.offsets.items()}
        return GroupSeen(group, None, KafkaGroup(one.state, members), committed, dict(committed))

    def add_partitions(self, topic: str, replicas: Sequence[Sequence[int]], before: int, holding: Holding) -> None:
        self.mortal.step()
        holding.check()
        assert (topic, before) == (OFFSETS.name, self.offsets_partitions)
        self.added |= {before + place: tuple(row) for place, row in enumerate(replicas)}
        self.offsets_partitions += len(replicas)

    def elect_preferred(self, partitions: Sequence[Partition], holding: Holding) -> None:
        self.mortal.step()
        holding.check()
        for partition in partitions:
            self.leaderless.discard(partition.index)
            first = self._replicas(partition.index)[0]
            self.leaders[partition.index] = first if self._up(first) else self.leaders[partition.index]

    def broker_config(self, broker: int) -> dict[str, str]:
        return dict(parse(self.nodes[NodeRole.BROKER, broker].running or ""))

    def _described(self, broker: int) -> SimpleNamespace:
        """DescribeConfigs of a broker."""
        configs = [SimpleNamespace(name=name, value=value) for name, value in self.broker_config(broker).items()]
        return SimpleNamespace(results=[SimpleNamespace(error_code=0, error_message=None, configs=configs)])

    def locations(self, topics: Iterable[str]) -> TopicLocations:
        return TopicLocations({}, {}, frozenset(topics) - {"t"})

    def _log_ends(self, broker: int, places: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Of a broker's own logs. A consumer gets no high watermark of a leader whose ISR cannot change since it began to lead."""
        leads = {("t", partition) for partition, leader in self.leaders.items() if leader == broker}
        return {place: 1000 - self.behind * (place not in leads) for place in places}

    @cached_property
    def log(self) -> SimOffsetsLog:
        """The raw log of `__consumer_offsets`."""
        return SimOffsetsLog(self)

    def tools(self, zk: object) -> Any:
        """Clients of this cluster, with `zk` for ZooKeeper."""
        return SimpleNamespace(
            host=lambda node: SimHost(self),
            wire=lambda node: SimpleNamespace(
                log_offsets=lambda places, of_replicas=False: self._log_ends(node.id, places) if of_replicas else {},
                locations=self.locations,
                endpoint=node.name,
                ask=lambda *_, **__: self._described(node.id),
            ),
            groups_at=lambda node: SimGroupsAt(self, node.id),
            offsets_log=lambda: self.log,
            admin=self,
            zk=zk,
            chroot="/kafka",
            connections=self.connections,
            signing_key="",
        )

    def context(self, folder: Path) -> StepContext:
        """A new run of the tool on this cluster."""
        said: list[str] = []
        store = BackupStore(folder, "sim", CLUSTER_ID)
        if not store.folder.exists():
            for node in self.spec.brokers:
                store.keep_original(node, original_of(node.id))
            store.keep_metadata_version("3.9-IV0")
        self.token += 1
        parts = (
            self.spec,
            self,
            self.tools(SimZooKeeper(self)),
            SimFence(self, self.token),
            SimJournal(),
            store,
            said.append,
            self.clock,
        )
        return StepContext(*parts, groups=self.kept, at_once=one_after_another)  # type: ignore[arg-type]
