"""The faults of the search over pairs (`tests.pairs`): what may happen at an instant of a task, and what of a cluster's state matters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage
from tests.steps.sim_faults import BROKER, CONTROLLER, REVIVED, FaultyCluster, Machine, Node
from tests.steps.sim_nodes import Killed, original_of

Key = tuple[object, ...]
RACK: Final = 45.0  # seconds until a rack has power again
AWAY: Final = 30.0  # of two of three ZooKeeper servers
SHORT: Final = 20.0  # of one machine, as in a reboot
LONG: Final = 120.0  # longer than every session, shorter than a step waits


class Fault(NamedTuple):
    """What happens to whom: a node, or a rack's number. `by_machine`: no person has done it, and none may be needed for it."""

    kind: str
    who: Any = None

    @property
    def by_machine(self) -> bool:
        return self.kind in {"power", "dark", "rack", "kill", "zookeeper", "worker", "lost answer"}

    def __str__(self) -> str:
        name = f"{self.who[0]} {self.who[1]}" if isinstance(self.who, tuple) else self.who
        return self.kind if self.who is None else f"{self.kind} of {name}"


def befall(cluster: FaultyCluster, fault: Fault) -> None:
    """Let it happen. What it brings about at once is no disaster of the tool's. Raises `Killed` if the tool dies."""
    kept = list(cluster.disasters)
    _FAULTS[fault.kind](cluster, fault.who)
    cluster.settle()
    cluster.clock.calm = 0
    cluster.disasters = kept


def _old_disk(cluster: FaultyCluster, node: Node) -> None:
    cluster.cut(node, SHORT)
    mine = cluster.machine(node)
    assert mine.old is not None
    mine.text, mine.formatted, mine.log, mine.copied, mine.at_boot = mine.old
    mine.unseen = True


def _rack(cluster: FaultyCluster, rack: int) -> None:
    cluster.cut_zookeeper(rack, RACK)
    cluster.cut((CONTROLLER, 3000 + rack), RACK)
    cluster.cut((BROKER, rack), RACK)


def _zookeeper(cluster: FaultyCluster, _: None) -> None:
    for server in (0, 1):
        cluster.cut_zookeeper(server, AWAY)


def _kill(cluster: FaultyCluster, node: Node) -> None:
    cluster.die(node)
    cluster.later(REVIVED, "revive", node)


def _lost_answer(cluster: FaultyCluster, _: None) -> None:
    cluster.lost_answer = True


def _file(cluster: FaultyCluster, node: Node) -> None:
    mine = cluster.machine(node)
    mine.text, mine.unseen = original_of(node[1]), True


def _started(cluster: FaultyCluster, node: Node) -> None:
    mine = cluster.machine(node)
    mine.at_boot = True
    cluster.start(mine.spec)


def _masked(cluster: FaultyCluster, node: Node) -> None:
    cluster.machine(node).masked = True


def _unflagged(cluster: FaultyCluster, node: Node) -> None:
    mine = cluster.machine(node)
    mine.text = "".join(line for line in mine.text.splitlines(keepends=True) if not line.startswith("zookeeper."))
    cluster.meddled = True
    at_boot = mine.at_boot
    cluster.stop(mine.spec)
    mine.at_boot = at_boot
    cluster.start(mine.spec)


def _worker(_: FaultyCluster, __: None) -> None:
    raise Killed


_FAULTS: Final[Mapping[str, Callable[[FaultyCluster, Any], object]]] = {
    "power": lambda cluster, node: cluster.cut(node, SHORT),
    "dark": lambda cluster, node: cluster.cut(node, LONG),
    "rack": _rack,
    "kill": _kill,  # the service manager starts it again
    "zookeeper": _zookeeper,
    "lost answer": _lost_answer,  # of a transaction that is made
    "worker": _worker,
    "old disk": _old_disk,  # a machine boots with what its disk held when the run began
    "file": _file,  # another tool puts a broker's original file back
    "started": _started,  # a person starts a controller that the rollback has stopped
    "masked": _masked,
    "unflagged": _unflagged,  # another tool takes a controller's flag, and restarts it
}


def faults_at(cluster: FaultyCluster, acting: bool, here: Node | None) -> Iterator[Fault]:
    """The faults that are possible now, one for nodes that are alike; `here`: the node on which a task works."""
    seen: set[Key] = set()
    for node in cluster.nodes:
        alike = (node[0], *_looks(cluster, node), node == here)
        if alike not in seen and not cluster.machine(node).dead:
            seen.add(alike)
            yield from (Fault(kind, node) for kind in _of_node(node, cluster.machine(node)))
    for rack in range(min(cluster.brokers, cluster.controllers)):
        pair = ((BROKER, rack), (CONTROLLER, 3000 + rack))
        alike = tuple((*_looks(cluster, node), node == here) for node in pair)
        if alike not in seen and not any(cluster.machine(node).dead for node in pair):
            seen.add(alike)
            yield Fault("rack", rack)
    if len(cluster.zookeepers) == 3:
        yield Fault("zookeeper")
    if not cluster.lost_answer and acting:
        yield Fault("lost answer")
    yield Fault("worker")


def _of_node(node: Node, mine: Machine) -> Iterator[str]:
    yield "power"
    yield "dark"
    if mine.running is not None:
        yield "kill"
    if mine.old is not None and mine.old != mine.disk() and (node[0] is BROKER or mine.old[1] is not None):
        yield "old disk"  # an empty one is a disk that is lost for good
    if not mine.masked and mine.text:
        yield "masked"
    if node[0] is BROKER and mine.text != original_of(node[1]):
        yield "file"
    yield from _of_controller(mine) if node[0] is CONTROLLER else ()


def _of_controller(mine: Machine) -> Iterator[str]:
    if mine.running is None and mine.formatted and mine.text and not mine.masked:
        yield "started"
    if mine.stage is FileStage.CONTROLLER_MIGRATION:
        yield "unflagged"


def _looks(cluster: FaultyCluster, node: Node) -> Key:
    """All of a node but its number."""
    mine, number = cluster.machine(node), node[1]
    text, runs = mine.text.replace(str(number), "#"), mine.running is not None and (mine.running == mine.text or mine.stage)
    own = (text, runs, mine.dead, mine.masked, mine.at_boot, mine.formatted, mine.log)
    if node[0] is CONTROLLER:
        return *own, cluster.led and cluster.leader == number
    led = sum(leader == number for leader in cluster.leaders.values())
    sets = (cluster.serving, cluster.znodes, cluster.registered)
    return *own, cluster.zookeeper_controller == number, led, *(number in each for each in sets)


def key_of(cluster: FaultyCluster) -> Key:
    """What matters of a state; times are kept roughly, and of epochs their order."""
    nodes = tuple((*m.disk(), m.running, m.dead, m.masked, m.wanted, m.unseen) for m in map(cluster.machine, cluster.nodes))
    epochs = (cluster.controller_epoch, cluster.state_epoch or 0, cluster.epoch)
    order = tuple(sorted(set(epochs)).index(epoch) for epoch in epochs)
    now = cluster.clock.time
    due = frozenset(
        (event.what, 0 if event.what == "copy_ends" else event.who, _roughly(event.at - now))
        for event in cluster.events
        if event.what != "look"
    )
    owner = (
        *(cluster.kraft_owns, cluster.finalized, cluster.copying, cluster.led and cluster.leader, cluster.zookeeper_controller),
        *(cluster.ahead, cluster.out_of_isr, cluster.meddled, cluster.lost_answer, frozenset(cluster.zookeepers)),
        *(cluster.known, cluster.unflagged, cluster.note, cluster.noted_counts, cluster.offset and cluster.offset > 0),
    )
    sets = (cluster.serving, cluster.znodes, cluster.registered, cluster.uninformed, cluster.kept_out)
    brokers = tuple(map(frozenset, (*sets, cluster.zookeeper_holds, cluster.kraft_holds)))
    return nodes, order, due, owner, brokers, tuple(cluster.leaders.values()), tuple(cluster.isr.values())


def _roughly(seconds: float) -> int:
    return next((place for place, limit in enumerate((10.0, 30.0, 100.0)) if seconds <= limit), 3)
