"""A cluster in memory whose machines lose their power, boot with what is on their disks, and stand in racks; with the seconds that clients wait.

`SimCluster` with what was measured on real brokers under faults:

* A broker in migration mode, and one in KRaft mode, that starts needs the quorum: without it its process runs and nothing answers. Once
  ZooKeeper owns the cluster, one in migration mode is served by the ZooKeeper controller, also if it was started before.
* One that is stopped under a KRaft controller that does not answer waits until a quorum is back, 300 s at most.
* A broker that died keeps its session, and its place in ISRs: 9 s with the controllers, 18 s with ZooKeeper. Without a controller no ISR
  changes at all, so that a partition whose ISR holds a dead broker takes no acks=all write.
* The copy takes seconds; a leader without the flag ends a migration whose copy is over, and does nothing in one whose copy is not.
* Two of three ZooKeeper servers keep it readable. A stop of a controller by kmigrate keeps its unit from starting at boot.

Time passes in `advance`, from event to event. A leader's election, a start and a copy of an ISR take no time: what is counted are waits
for nodes, not Kafka's own seconds.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, NamedTuple

from airflow_provider_kmigrate.clients.holding import Holding
from airflow_provider_kmigrate.clients.hosts import Restart
from airflow_provider_kmigrate.clients.znodes import Operation, Set, Znode
from airflow_provider_kmigrate.core.cluster_state.model import (
    Broker,
    ClusterView,
    Controller,
    Fields,
    NodeFiles,
    Partition,
    Process,
    ProcessState,
    Quorum,
    Stored,
    StoredKind,
    ZkView,
)
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole, NodeSpec
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage
from airflow_provider_kmigrate.exceptions import Failed, KMigrateError, TimedOut, Unreachable
from tests.steps.sim import SimCluster
from tests.steps.sim_hands import SimHost
from tests.steps.sim_nodes import CLUSTER_ID, MODES, Health, SimClock, SimNode, as_asked, files_of
from tests.steps.sim_zookeeper import TOPIC, SimZooKeeper

BROKER, CONTROLLER = NodeRole.BROKER, NodeRole.CONTROLLER
Node = tuple[NodeRole, int]
KRAFT_SESSION, ZOOKEEPER_SESSION = 9.0, 18.0  # seconds; broker.session.timeout.ms, zookeeper.session.timeout.ms
COPY = 2.0  # seconds (measured: 0.4 to 7.5)
REVIVED = 5.0  # seconds after which the service manager starts a killed process again
ANSWERS = 10.0  # seconds until a request to a machine without power has failed
MOST = 1_500  # observations of one task
NEEDS_QUORUM = {FileStage.MIGRATION, FileStage.KRAFT}


class Endless(KMigrateError):
    """A task waits for hours, and calls that healthy."""


class Event(NamedTuple):
    """What happens by itself at a time."""

    at: float
    what: str
    who: Any = None


@dataclass
class Machine(SimNode):
    """A node and its machine. `wanted`: the service manager starts it again when its process dies."""

    dead: bool = False
    at_boot: bool = False
    masked: bool = False
    wanted: bool = False
    unseen: bool = False  # another tool has written its file since the last observation of it
    old: tuple[str, str | None, bool, bool, bool] | None = None  # what its disk held when the run began

    def disk(self) -> tuple[str, str | None, bool, bool, bool]:
        return self.text, self.formatted, self.log, self.copied, self.at_boot


class WorldClock(SimClock):
    """The longer nothing happens, the more a wait lasts, so that one in vain costs few observations; never past what happens next."""

    def __init__(self, world: FaultyCluster, time: float = 1000.0) -> None:
        super().__init__(time)
        self.world, self.calm = world, 0

    def sleep(self, seconds: float) -> None:
        self.calm += 1
        wanted = seconds * min(60.0, 1.3 ** min(20, max(0, self.calm - 8)))
        upcoming = min((event.at for event in self.world.events if event.at > self.time), default=inf)
        self.world.advance(max(min(wanted, upcoming - self.time), seconds))


@dataclass
class FaultyCluster(SimCluster):
    """Every broker is beside a controller and a ZooKeeper server in a rack of its own."""

    events: list[Event] = field(default_factory=list)
    serving: set[int] = field(default_factory=set)  # brokers that answer
    znodes: set[int] = field(default_factory=set)  # below /brokers/ids
    zookeeper_holds: dict[int, float] = field(default_factory=dict)  # a dead broker -> when its session is over
    kraft_holds: dict[int, float] = field(default_factory=dict)
    isr: dict[int, tuple[int, ...]] = field(default_factory=dict)
    torn: dict[int, float] = field(
        default_factory=dict
    )  # brokers with a shorter log than they acknowledged, since their power was cut
    zookeepers: set[int] = field(default_factory=lambda: {0, 1, 2})
    copying: bool = False
    lost_answer: bool = False  # the next transaction is made, and its answer is lost
    looking: bool = False
    stalled: dict[int, float] = field(default_factory=dict)  # partition -> seconds of the stall under way
    longest: float = 0.0  # the longest stall of a partition whose min.insync.replicas are alive
    without_controller: float = 0.0  # seconds, the longest time at a stretch
    _without: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.nodes = {key: Machine(**vars(node)) for key, node in self.nodes.items()}
        for (role, _), mine in self.nodes.items():
            mine.at_boot = mine.wanted = role is BROKER
        self.clock = WorldClock(self)
        self.serving = set(range(self.brokers))
        self.znodes = set(self.serving)
        self.isr = {p: self._replicas(p) for p in self.leaders}

    def clone(self) -> FaultyCluster:
        made = copy.copy(self)
        made.nodes = {name: copy.copy(node) for name, node in self.nodes.items()}
        for name in ("leaders", "registered", "disasters", "counts", "events", "serving", "znodes", "zookeeper_holds"):
            setattr(made, name, copy.copy(getattr(self, name)))
        for name in ("kraft_holds", "isr", "torn", "zookeepers", "stalled", "kept_out", "uninformed"):
            setattr(made, name, copy.copy(getattr(self, name)))
        made.clock = WorldClock(made, self.clock.time)
        return made

    def machine(self, node: Node) -> Machine:
        mine = self.nodes[node]
        assert isinstance(mine, Machine)
        return mine

    # Time.

    def advance(self, seconds: float) -> None:
        """Let so many seconds pass, and happen what happens in them."""
        until = self.clock.time + seconds
        while (upcoming := min(self.events, default=None, key=lambda event: event.at)) is not None and upcoming.at <= until:
            self.events.remove(upcoming)
            self._pass(max(0.0, upcoming.at - self.clock.time))
            kept = list(self.disasters)
            getattr(self, f"_{upcoming.what}")(upcoming.who)
            self.settle()
            self.disasters = kept  # not the tool's doing
            self.clock.calm = 0
        self._pass(until - self.clock.time)

    def _pass(self, seconds: float) -> None:
        if seconds <= 0:
            return
        self.clock.time += seconds
        for partition in self.leaders:
            if self._waits(partition):
                self.stalled[partition] = self.stalled.get(partition, 0.0) + seconds
                self.longest = max(self.longest, self.stalled[partition])
            else:
                self.stalled.pop(partition, None)
        self._without = 0.0 if self.has_controller() else self._without + seconds
        self.without_controller = max(self.without_controller, self._without)

    def later(self, seconds: float, what: str, who: object = None) -> None:
        self.events.append(Event(self.clock.time + seconds, what, who))

    def _look(self, _: object) -> None:
        """Something is due: a session that is over."""

    # What clients see.

    def _waits(self, partition: int) -> bool:
        alive = [broker for broker in self._replicas(partition) if self._takes_part(broker)]
        isr = self.isr[partition]
        writes = self.leaders[partition] in alive and set(isr) <= set(alive) and len(isr) >= self._least()
        return len(alive) >= self._least() and not writes

    def _least(self) -> int:
        return min(2, self.brokers - 1) or 1

    def _takes_part(self, broker: int) -> bool:
        """Whether it serves under the controller that owns the cluster."""
        stage = self.nodes[BROKER, broker].stage
        theirs = NEEDS_QUORUM if self.kraft_owns else {FileStage.ZOOKEEPER, FileStage.MIGRATION}
        return broker in self.serving and stage in theirs and broker not in self.uninformed

    def has_controller(self) -> bool:
        if self.kraft_owns:
            return self.led and (not self.copying or self._flagged(self.leader))
        return self.readable and self.zookeeper_controller in self.serving

    @property
    def readable(self) -> bool:
        """Whether ZooKeeper has its quorum."""
        return len(self.zookeepers) >= 2

    def _flagged(self, controller: int) -> bool:
        return self.nodes[CONTROLLER, controller].stage is FileStage.CONTROLLER_MIGRATION

    # What follows from all that has changed.

    def settle(self) -> None:
        self._sessions_end()
        self._elect()
        self._serve()
        self._register()
        self._takeover()
        self._copy_goes_on()
        self.elect_zookeeper()
        self._lead_torn()
        self._serve()
        self._change_isrs()

    def _lead_torn(self) -> None:
        """A controller makes a broker lead that it takes for alive: its session is not over, or its new process has registered (measured).

        Only what a session adds that began anew with the controller: a machine that boots within its own session is Kafka's matter.
        """
        now = self.clock.time
        for broker, since in self.torn.items():
            mine = self.nodes[BROKER, broker]
            if mine.running is None or mine.stage is not FileStage.MIGRATION or broker in self.serving:
                continue
            held = (
                self.kraft_owns and self.led and not self.finalized and broker in self.kraft_holds and now - since > KRAFT_SESSION
            )
            registered = not self.kraft_owns and self.has_controller() and now - since > ZOOKEEPER_SESSION
            if (held or registered) and broker in self.leaders.values():
                self.disasters.append(f"records lost: broker {broker} leads with what its disk kept of its log")

    def _sessions_end(self) -> None:
        now = self.clock.time + 1e-6
        if self.readable:
            for broker in [b for b, until in self.zookeeper_holds.items() if until <= now]:
                del self.zookeeper_holds[broker]
                self.znodes.discard(broker)
        if self.led:
            for broker in [b for b, until in self.kraft_holds.items() if until <= now]:
                del self.kraft_holds[broker]

    def _serve(self) -> None:
        for broker in range(self.brokers):
            mine = self.nodes[BROKER, broker]
            if mine.running is None or broker in self.serving or not self._may_serve(broker, mine.stage):
                continue
            self.serving.add(broker)
            if mine.stage is not FileStage.KRAFT:
                self.znodes.add(broker)

    def _may_serve(self, broker: int, stage: FileStage | None) -> bool:
        if stage is FileStage.KRAFT:
            return self.led and broker not in self.kraft_holds
        free = self.readable and broker not in self.zookeeper_holds
        if stage is FileStage.MIGRATION and self.kraft_owns:
            return free and self.led and broker not in self.kraft_holds and not self.finalized
        if stage is FileStage.MIGRATION:
            return free and (self.led or self.has_controller())
        return free

    def _change_isrs(self) -> None:
        if not self.has_controller():
            return
        holds = self.kraft_holds if self.kraft_owns else self.zookeeper_holds
        there = {broker for broker in range(self.brokers) if self._takes_part(broker)}
        for partition, leads in self.leaders.items():
            if leads in there and self._is_island(leads):
                continue
            replicas = self._replicas(partition)
            isr = tuple(b for b in self.isr[partition] if b in there or b in holds) or self.isr[partition]
            stays = leads in isr and (leads in there or leads in holds)
            leader = leads if stays else next((b for b in replicas if b in isr and b in there), -1)
            if leader in there:
                out = self.kept_out if self.out_of_isr or leader == self.stuck else ()
                isr = tuple(b for b in replicas if b in isr or (b in there and b not in out))
            self.isr[partition], self.leaders[partition] = isr, leader
        led = {*self.leaders.values()}
        self.torn = {b: since for b, since in self.torn.items() if b not in there or b in led}  # a follower copies what it misses

    def _is_island(self, broker: int) -> bool:
        """Left behind in migration mode by the finalization: it serves on, and learns nothing any more (measured)."""
        return self.finalized and self.nodes[BROKER, broker].stage is FileStage.MIGRATION

    def _elect(self) -> None:
        """The worst election: a controller without the flag is preferred."""
        up = [n.id for n in self.spec.controllers if self.nodes[n.role, n.id].running is not None]
        if not self._majority():
            self.led = False
        elif not self.led or self.leader not in up:
            self.lead(min(up, key=lambda controller: (self._flagged(controller), controller)))

    def lead(self, controller: int) -> None:
        self.leader, self.epoch, self.led = controller, self.epoch + 1, True
        now = self.clock.time
        self.kraft_holds = {broker: max(until, now + KRAFT_SESSION) for broker, until in self.kraft_holds.items()}
        if self.kraft_holds:
            self.later(KRAFT_SESSION, "look")
        if not self.kraft_owns:
            return
        if self._flagged(controller) and self.readable and not self.finalized:
            self.controller_epoch, self.state_epoch = self.controller_epoch + 1, self.epoch
        if not self._flagged(controller) and not self.copying and not self.finalized:
            self.finalized = True
            left = [] if self.meddled else self._zookeeper_brokers()
            self.disasters += [f"finalized with broker {broker} left behind" for broker in left]

    def _register(self) -> None:
        if self.led and (self.kraft_owns or self._flagged(self.leader)):
            stages = {broker: self.nodes[BROKER, broker].stage for broker in self.serving}
            self.registered |= {broker for broker, stage in stages.items() if stage in NEEDS_QUORUM}

    def _takeover(self) -> None:
        flagged = all(self._flagged(n.id) for n in self.spec.controllers)
        if not (flagged and self.led and self.readable) or self.kraft_owns or self.registered != set(range(self.brokers)):
            return
        earlier = any(self.nodes[n.role, n.id].copied for n in self.spec.controllers)
        if earlier and (self.offset or 0) <= 0:
            return  # "KRaft controller indicates an active migration, but the ZK state does not": safe, and dead (measured)
        plain = [b.id for b in self.spec.brokers if self.nodes[b.role, b.id].stage is FileStage.ZOOKEEPER]
        self.disasters += [f"the takeover cuts plain broker {broker} off" for broker in plain]
        if earlier:
            self.disasters.append("topics deleted: the log of an earlier copy took the cluster over")
        self.kraft_owns, self.copying, self.zookeeper_controller = True, True, -1
        self.controller_epoch += 1

    def _copy_goes_on(self) -> None:
        if self.copying and self.has_controller() and self.readable and all(event.what != "copy_ends" for event in self.events):
            self.later(COPY, "copy_ends", self.epoch)

    def _copy_ends(self, epoch: int) -> None:
        if not (self.copying and self.has_controller() and self.readable and epoch == self.epoch):
            return
        for node in self.spec.controllers:
            self.nodes[node.role, node.id].copied = self.nodes[node.role, node.id].log
        self.copying, self.offset, self.ahead, self.state_epoch = False, 50, 3, self.epoch

    def elect_zookeeper(self) -> None:
        if self.kraft_owns or not self.readable or self.zookeeper_controller in self.znodes:
            return
        up = sorted(self.znodes & self.serving)
        self.zookeeper_controller = up[0] if up else -1
        if not up:
            return
        self.controller_epoch += 1
        if self.state_epoch is not None and self.state_epoch > self.controller_epoch:
            self.disasters.append("partition states out of the controller's reach")
        self.state_epoch = self.controller_epoch

    # What nodes do.

    def start(self, node: NodeSpec) -> None:
        mine = self.machine((node.role, node.id))
        if mine.running is not None:
            return
        mine.running, mine.starts, mine.wanted = mine.text, mine.starts + 1, True
        if node.role is BROKER:
            self._broker_started(node.id, mine)
        else:
            assert mine.formatted == CLUSTER_ID
            mine.log, mine.copied = True, mine.copied or (self.kraft_owns and not self.copying)
            self.offset = -1 if self.offset is None and self.readable else self.offset
            if not self.kraft_owns and (self.offset or 0) > 0 and self._majority():
                self.disasters.append("topics deleted: an empty log under a /migration with a copy")
        self.settle()

    def _broker_started(self, broker: int, mine: Machine) -> None:
        if self.out_of_isr or self.stuck not in {None, broker}:
            self.kept_out.add(broker)
        if self.kraft_owns and self._zookeeper_brokers() and not self._writes():
            self.uninformed.add(broker)
        self.counts[broker] = self.offsets_partitions
        if mine.unseen:
            return
        if self.finalized and mine.stage is not FileStage.KRAFT and not self.meddled:
            self.disasters.append(f"finalized, and broker {broker} starts as before")
        elif mine.stage is FileStage.ZOOKEEPER and self.kraft_owns and not self.finalized:
            self.disasters.append(f"plain broker {broker} beside a KRaft controller")

    def stop(self, node: NodeSpec) -> None:
        """A stop that the node's controller grants."""
        mine = self.machine((node.role, node.id))
        mine.wanted = False
        if mine.running is None:
            return
        mine.running, mine.stops = None, mine.stops + 1
        if node.role is BROKER:
            self.serving.discard(node.id)
            self.uninformed.discard(node.id)
            self.znodes.discard(node.id)
        self.settle()

    def stop_slowly(self, node: NodeSpec) -> float:
        """A stop as the service manager makes it; returns its seconds. Raises what the host does."""
        began, mine = self.clock.time, self.machine((node.role, node.id))
        under_kraft = self.kraft_owns or mine.stage is FileStage.KRAFT
        needs = node.role is BROKER and node.id in self.serving and mine.stage is not FileStage.ZOOKEEPER and under_kraft
        while needs and not self.led and self.clock.time < began + 300.0:
            self.advance(2.0)
            if mine.dead:
                raise Unreachable(f"{node.name}: the connection to its machine ended")
        seconds = self.clock.time - began
        self.stop(node)
        return 0.5 + seconds

    def die(self, node: Node) -> None:
        """Its process ends at once."""
        mine = self.machine(node)
        role, number = node
        if mine.running is None:
            return
        stage, mine.running = mine.stage, None
        if role is BROKER and number in self.serving:
            self.serving.discard(number)
            self.uninformed.discard(number)
            if stage in NEEDS_QUORUM:
                self.kraft_holds[number] = self.clock.time + KRAFT_SESSION
                self.later(KRAFT_SESSION, "look")
            if stage is not FileStage.KRAFT:
                self.zookeeper_holds[number] = self.clock.time + ZOOKEEPER_SESSION
                self.later(ZOOKEEPER_SESSION, "look")
        self.settle()

    def cut(self, node: Node, boots_after: float) -> None:
        """Its machine loses its power, and boots later."""
        mine = self.machine(node)
        if mine.dead:
            return
        mine.dead = True
        if node[0] is BROKER:
            self.torn[node[1]] = self.clock.time
        self.die(node)
        self.later(boots_after, "boot", node)

    def cut_zookeeper(self, server: int, boots_after: float) -> None:
        if server in self.zookeepers:
            self.zookeepers.discard(server)
            self.later(boots_after, "zookeeper_boots", server)

    def _zookeeper_boots(self, server: int) -> None:
        was = self.readable
        self.zookeepers.add(server)
        if self.readable and not was:
            now = self.clock.time
            self.zookeeper_holds = {b: max(until, now + ZOOKEEPER_SESSION) for b, until in self.zookeeper_holds.items()}
            self.later(ZOOKEEPER_SESSION, "look")

    def _boot(self, node: Node) -> None:
        mine = self.machine(node)
        mine.dead = False
        if mine.at_boot and self._startable(mine):
            self.start(mine.spec)

    def _revive(self, node: Node) -> None:
        mine = self.machine(node)
        if mine.wanted and not mine.dead and self._startable(mine):
            self.start(mine.spec)

    def _startable(self, mine: Machine) -> bool:
        return bool(not mine.masked and mine.text and (mine.spec.role is BROKER or mine.formatted))

    # What an observation shows.

    def observe(self, what: Fields, nodes: Sequence[NodeSpec] = (), groups: Sequence[str] = ()) -> ClusterView:
        self.looking = True
        self.mortal.step()
        self.looking = False
        self.observations += 1
        if self.observations > MOST:
            raise Endless(f"{MOST} observations, and no end")
        self.advance(0.1)
        writes = self.kraft_owns and not self.finalized and not self.copying and self.led and self._flagged(self.leader)
        if writes and self.offset and self.readable:
            self._dual_write(self.offset)
        for machine in map(self.machine, self.nodes) if not what or what & Fields.FILES else ():
            machine.unseen = False
        there = bool(self.serving)
        view = ClusterView(
            name=self.spec.name,
            moving=self.moving if there and self.has_controller() else None,
            taken_at=self.clock.time,
            kafka_cluster_id=CLUSTER_ID if there else None,
            brokers={n.id: self._broker(n, Health(), frozenset()) for n in self.spec.brokers},
            controllers={n.id: self._controller(n) for n in self.spec.controllers},
            quorum=self._quorum(),
            zk=self.zk() if self.readable else None,
            partitions=self._partitions(set()) if there else None,
            min_insync={"t": self._least()} if there else None,
            coordinators=self._coordinators() if there else None,
            client_metrics=() if there else None,
            topics=self.stored if there and self.readable else None,
            stored=BOTH if there and self.readable else None,
            state_epoch=self.state_epoch if self.readable else None,
            ensemble=self.ensemble,
            group_progress=self.consumers(self.clock.time),
        )
        return as_asked(view, what, nodes)

    def _broker(self, node: NodeSpec, health: Health, up: frozenset[int]) -> Broker:
        del health, up
        mine = self.machine((node.role, node.id))
        answers = node.id in self.serving and not (node.id in self.uninformed and mine.stage is FileStage.MIGRATION)
        mode = MODES.get(mine.stage) if answers and mine.stage else None
        alive = frozenset(
            {b for b in self.serving if self._takes_part(b)} | self.kraft_holds.keys() | self.zookeeper_holds.keys()
        )
        return Broker(
            node.id,
            _process(mine),
            mode,
            node.id in self.znodes if self.readable else None,
            alive if mode else frozenset(),
            None if self.kraft_owns else self.zookeeper_controller,
            NodeFiles() if mine.dead else files_of(mine),
            0.005 if mode else None,
        )

    def _controller(self, node: NodeSpec) -> Controller:
        mine = self.machine((node.role, node.id))
        up = mine.running is not None
        return Controller(
            node.id, _process(mine), up, self._flagged(node.id) if up else None, NodeFiles() if mine.dead else files_of(mine)
        )

    def _quorum(self) -> Quorum | None:
        return super()._quorum() if self.led else None

    def zk(self) -> ZkView:
        view = super().zk()
        controller = view.controller if self.kraft_owns or self.zookeeper_controller >= 0 else None
        return replace(view, broker_ids=tuple(sorted(self.znodes)), controller=controller)

    def _partitions(self, in_sync: set[int]) -> tuple[Partition, ...]:
        del in_sync
        return tuple(Partition("t", p, leader, self._replicas(p), self.isr[p]) for p, leader in self.leaders.items())

    def _up(self, broker: int) -> bool:
        return broker in self.serving

    def elect_preferred(self, partitions: Iterable[Partition], holding: Holding) -> None:
        self.mortal.step()
        holding.check()
        if not self.has_controller():
            raise TimedOut("ElectLeaders: no controller answers")
        for partition in partitions:
            first = self._replicas(partition.index)[0]
            if self._is_island(self.leaders[partition.index]) or self._is_island(first):
                continue
            if self._takes_part(first) and first in self.isr[partition.index]:
                self.leaders[partition.index] = first

    # What the tool has in its hands.

    def tools(self, zk: object) -> Any:
        made = super().tools(FaultyZooKeeper(self))
        del zk
        made.host = lambda node: FaultyHost(self)
        return made


BOTH = {kind: Stored({}) for kind in StoredKind}


def _process(mine: Machine) -> Process:
    if mine.dead:
        return Process()
    state = ProcessState.STOPPED if mine.running is None else ProcessState.RUNNING
    return Process(state, None if mine.running is None else 1, None if mine.running is None else 1.0, inf, mine.at_boot)


@dataclass
class FaultyZooKeeper(SimZooKeeper):
    """Unreachable without its quorum."""

    cluster: FaultyCluster

    def _reach(self) -> None:
        if not self.cluster.readable:
            self.cluster.advance(ANSWERS)
            raise Unreachable("ZooKeeper: no server answers")

    def read(self, path: str) -> tuple[bytes, int] | None:
        self._reach()
        return super().read(path)

    def commit(self, operations: Sequence[Operation], holding: Holding) -> None:
        self._reach()
        kept = list(self.cluster.disasters)
        super().commit(operations, holding)
        if not self.cluster.led:  # one controller of three does nothing
            self.cluster.disasters = kept
        self.cluster.settle()
        if self.cluster.lost_answer:
            self.cluster.lost_answer = False
            raise Unreachable("ZooKeeper: the connection was lost; whether the transaction was made is unknown")

    def state_paths(self) -> list[str]:
        return [f"{TOPIC}/partitions/{partition}/state" for partition in self.cluster.leaders]

    def read_znodes(self, paths: Sequence[str]) -> Any:
        self._reach()
        if self.cluster.half_made is None:
            yield from ((path, Znode(self._state(path), 0, 0, 0.0)) for path in paths)

    def _state(self, path: str) -> bytes:
        partition = int(path.split("/")[-2])
        isr = list(self.cluster.isr[partition])
        return json.dumps({"leader": self.cluster.leaders[partition], "leader_epoch": 1, "isr": isr}).encode()

    def _apply(self, operation: Operation) -> None:
        super()._apply(operation)
        if isinstance(operation, Set) and operation.path.endswith("/state"):
            state, partition = json.loads(operation.data), int(operation.path.split("/")[-2])
            self.cluster.leaders[partition], self.cluster.isr[partition] = state["leader"], tuple(state["isr"])


@dataclass
class FaultyHost(SimHost):
    """The host of any node; it does not answer while its machine is dead."""

    cluster: FaultyCluster

    def _mine(self, node: NodeSpec) -> Machine:
        mine = self.cluster.machine((node.role, node.id))
        if mine.dead:
            self.cluster.advance(ANSWERS)
            raise Unreachable(f"{node.name}: its machine does not answer")
        return mine

    def start(self, node: NodeSpec, token: int) -> None:
        self._act(token)
        mine = self._mine(node)
        if node.role is CONTROLLER:
            mine.at_boot = True
        if mine.masked:
            raise Failed(f"{node.name} did not start: Unit kafka.service is masked.")
        self.cluster.start(node)

    def stop(self, node: NodeSpec, token: int, say: Callable[[str], object] = str, unresponsive_after: float = inf) -> float:
        del say, unresponsive_after
        self._act(token)
        mine = self._mine(node)
        if node.role is CONTROLLER:
            mine.at_boot = False
        return self.cluster.stop_slowly(node)

    def restart(self, node: NodeSpec, how: Restart, token: int) -> float:
        """One act of its machine, which no killed task cuts in half; a machine that dies in it does."""
        self._act(token)
        mine = self._mine(node)
        at_boot, seconds = mine.at_boot, self.cluster.stop_slowly(node)
        mine.at_boot, mine.wanted = at_boot, True
        how.while_down(seconds)
        try:
            self.cluster.mortal.step()
        finally:
            if not (mine.dead or mine.masked):
                self.cluster.start(node)
        if mine.dead:
            raise Unreachable(f"{node.name}: the connection to its machine ended")
        if mine.masked:
            raise Failed(f"{node.name} did not start: Unit kafka.service is masked.")
        return seconds

    def put_meta(self, node: NodeSpec, folder: str, text: str, token: int) -> None:
        super().put_meta(node, folder, text, token)
        self._mine(node)

    def put_properties(self, node: NodeSpec, text: str, token: int) -> str:
        self._mine(node)
        return super().put_properties(node, text, token)

    def format_storage(self, node: NodeSpec, cluster_id: str, release: str, token: int) -> None:
        self._mine(node)
        super().format_storage(node, cluster_id, release, token)

    def files(self, node: NodeSpec) -> NodeFiles:
        return files_of(self._mine(node))

    def wipe_storage(self, node: NodeSpec, cluster_id: str, token: int) -> None:
        self._act(token)
        mine = self._mine(node)
        mine.at_boot = False
        assert cluster_id == CLUSTER_ID
        if mine.running is not None:
            raise Failed(f"{node.name} runs: its directories are not set aside.")
        self.cluster.wipe(node)
