"""Any state of a cluster in a migration as an observation may show it, drawn by a seed; and Kafka's own rules of when a migration ends.

`draw` combines what an observation shows without regard to how it came about: another tool may write anything. `Kafka` is a quorum that is
walked by random events, so that what it knows, whether the migration is over, can be compared with what an observation of it says.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

from airflow_provider_kmigrate.core.cluster_state.model import (
    BackupFacts,
    Broker,
    BrokerMode,
    ClusterView,
    Controller,
    Malformed,
    NodeFiles,
    Process,
    ProcessState,
    Quorum,
    Reason,
    ZkController,
)
from tests.core.views import CONTROLLERS, DOWN, FILES, KRAFT, MIG, MIGRATING, UP, ZK, cluster, migration, readable, with_zk

UNKNOWN = Process(ProcessState.UNKNOWN)
FINAL_FILE, FLAG_FILE = {"process.roles": "controller"}, {"process.roles": "controller"} | MIGRATING
EPOCH = 5


def draw(random: Random) -> ClusterView:
    """One state of three brokers and three controllers; everything that is not drawn is read, and healthy."""
    # Most migrations have their brokers in two modes at most.
    modes = random.sample([ZK, MIG, KRAFT], random.choice([1, 1, 2, 2, 3]))
    shown = [random.choice([*modes, *modes, None]) for _ in range(3)]
    offset = random.choice([None, -1, 90])
    view = readable(cluster(shown, (True, True, True), offset))
    if offset is not None:
        view = with_zk(view, migration=replace(migration(offset), created_at=1.0))
    brokers = {number: _broker(random, broker) for number, broker in view.brokers.items()}
    controllers = {number: _controller(random, number) for number in CONTROLLERS}
    leader = random.choice([None, *(number for number in CONTROLLERS if controllers[number].answers)])
    epoch = random.choice([EPOCH, EPOCH, EPOCH + 1])  # another one: elected since /migration was written
    quorum = None if leader is None else Quorum(leader, epoch, 93, dict.fromkeys(CONTROLLERS, 93), {})
    view = replace(view, brokers=brokers, controllers=controllers, quorum=quorum)
    owner = random.choice(
        [ZkController(3000, EPOCH, ephemeral=False)] * 4
        + [ZkController(0, -1, ephemeral=True)] * 3
        + [None, Malformed("/controller", "x")]
    )
    notes = {name: frozenset(random.sample(range(3), random.randint(0, 3))) for name in ("registered", "unflagged")}
    notes["unflagged"] = frozenset(3000 + number for number in notes["unflagged"])
    view = with_zk(view, controller=owner, **notes)
    lost = tuple(
        Reason("O01", f"The original of broker {number} is gone.", node=f"broker {number}")
        for number in range(3)
        if random.random() < 0.05
    )
    view = replace(view, backup=BackupFacts(dict.fromkeys(view.brokers, "sha"), lost))
    if random.random() < 0.05:
        view = with_zk(view, migration=Malformed("/migration", ""))
    if random.random() < 0.08:
        view = replace(view, zk=None, unknowns=(Reason("U01", "ZooKeeper could not be read."),))
    return view


def _broker(random: Random, broker: Broker) -> Broker:
    stage = random.choice([broker.mode] * 6 + [ZK, MIG, KRAFT, None])
    files = replace(broker.files, properties=FILES.get(stage) if stage else None)
    if broker.mode is not None:
        return replace(broker, files=files)
    process, registered = random.choice([UP, DOWN, UNKNOWN]), random.choice([True, False, False, None])
    return replace(broker, process=process, in_zookeeper=registered, files=files)


def _controller(random: Random, number: int) -> Controller:
    flag = random.choice([True, True, False, None])
    process = UP if flag is not None else random.choice([UP, DOWN, DOWN, UNKNOWN])
    properties = random.choice([{True: FLAG_FILE, False: FINAL_FILE}.get(flag)] * 4 + [FLAG_FILE, FINAL_FILE, None])
    files = NodeFiles(properties, {"/kraft": {"node.id": str(number)}}, random.choice([True, True, True, False, None]))
    return Controller(number, process, flag is not None, flag, files)


@dataclass
class Kafka:
    """A quorum and three brokers by the rules of Kafka 3.9 (ActivationRecordsGenerator, KRaftMigrationDriver, ClusterControlManager).

    `state`: the ZkMigrationState in the metadata log. A leader without the flag turns MIGRATION into POST_MIGRATION, and no other state.
    """

    random: Random
    state: str = "PRE_MIGRATION"
    owned: bool = False  # /controller names the KRaft controller that claimed it last
    offset: int = -1  # of /migration
    written: int = 0  # the leader's epoch in which it was written
    epoch: int = 0
    leader: int | None = None
    flags: dict[int, bool | None] = field(default_factory=lambda: dict.fromkeys(CONTROLLERS, True))  # None: it is down
    modes: dict[int, BrokerMode | None] = field(default_factory=lambda: dict.fromkeys(range(3), ZK))

    def walk(self, events: int) -> ClusterView:
        """The observation after so many random events, from brokers that have not moved, or that have all moved."""
        self.modes = dict.fromkeys(self.modes, self.random.choice([ZK, MIG]))
        self._elect()
        for _ in range(events):
            self.random.choice(
                [self._restart_controller, self._stop_controller, self._restart_broker, self._drive, self._drive]
            )()
        return self._observation()

    def _elect(self) -> None:
        up = [number for number, flag in self.flags.items() if flag is not None]
        self.leader = self.random.choice(up) if len(up) > 1 else None
        self.epoch += 1
        if self.leader is not None and self.flags[self.leader] is False and self.state == "MIGRATION":
            self.state = "POST_MIGRATION"

    def _restart_controller(self) -> None:
        number = self.random.choice(CONTROLLERS)
        self.flags[number] = self.random.random() < 0.6
        if self.leader in {number, None}:
            self._elect()

    def _stop_controller(self) -> None:
        number = self.random.choice(CONTROLLERS)
        self.flags[number] = None
        if self.leader == number or sum(flag is not None for flag in self.flags.values()) < 2:
            self._elect()

    def _restart_broker(self) -> None:
        number = self.random.choice(range(3))
        mode = self.random.choice([ZK, MIG, MIG, MIG, KRAFT, KRAFT])
        # In pre-migration mode the controllers register no broker in KRaft mode: it never answers.
        self.modes[number] = None if mode is KRAFT and (self.state == "PRE_MIGRATION" or self.leader is None) else mode

    def _drive(self) -> None:
        """What the migration driver of a leader with the flag does next."""
        if self.leader is None or not self.flags[self.leader]:
            return
        if self.state == "PRE_MIGRATION" and set(self.modes.values()) == {MIG}:
            self.owned = True  # claimed first, whatever becomes of the copy
            self.state = self.random.choice(["PRE_MIGRATION", "MIGRATION", "MIGRATION"])
            if self.state == "MIGRATION" and self.random.random() < 0.9:  # else it dies before it writes to ZooKeeper
                self.offset, self.written = 90, self.epoch
        elif self.state == "MIGRATION" and self.offset > 0:  # else its driver stays inactive
            self.offset, self.written = self.offset + 1, self.epoch

    def _observation(self) -> ClusterView:
        view = readable(cluster([*self.modes.values()], [*self.flags.values()], self.offset))
        owner = ZkController(3000, max(self.written, 1), ephemeral=False) if self.owned else ZkController(0, -1, ephemeral=True)
        ends = dict.fromkeys(CONTROLLERS, self.offset + 3)
        quorum = None if self.leader is None else Quorum(self.leader, self.epoch, self.offset + 3, ends, {})
        return with_zk(replace(view, quorum=quorum), controller=owner, migration=migration(self.offset, self.written))
