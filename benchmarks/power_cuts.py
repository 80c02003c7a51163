"""Power cuts on a fleet at an instant of a rollback or finalization, and how long nobody led or acknowledged meanwhile.

What is to be hit is known by what can be seen from outside (ports, files on the machines' disks, ZooKeeper), not by names of tasks.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError

from airflow_provider_kmigrate.clients.wire import Wire
from airflow_provider_kmigrate.core.cluster_state.spec import NodeSpec
from airflow_provider_kmigrate.core.events.model import Ack, Event, TopicPartition
from airflow_provider_kmigrate.exceptions import KMigrateError
from tests.kit.fleet import DIRECTORIES, ZOOKEEPER_PORT, Fleet
from tests.machines.journey import state_of
from tests.waiting import beside

Span = tuple[float, float]  # epoch seconds

_POLL_S = 0.02
_LISTEN = "0A"  # of /proc/net/tcp
_LOOK_S = 0.1
_ANSWER_S = 1.0


@dataclass
class Power:
    """The machines' power: each may be cut, and comes back by itself. `off`: of each address, when it was off; epoch seconds."""

    fleet: Fleet
    off: dict[str, list[Span]] = field(default_factory=lambda: defaultdict(list))
    _returns: list[threading.Thread] = field(default_factory=list)

    def cut(self, addresses: Iterable[str], seconds: float) -> None:
        """Cut these machines' power at once; it returns after so many seconds."""
        there = [address for address in addresses if self.fleet.machines[address].is_on]
        now = time.time()
        for address in there:
            self.off[address].append((now, float("inf")))
        with ThreadPoolExecutor(len(there) or 1) as pool:
            list(pool.map(lambda address: self.fleet.machines[address].cut_power(), there))
        for address in there:
            thread = threading.Thread(target=self._return, args=(address, now + seconds))
            thread.start()
            self._returns.append(thread)

    def _return(self, address: str, at: float) -> None:
        time.sleep(max(0.0, at - time.time()))
        self.off[address][-1] = (self.off[address][-1][0], time.time())
        self.fleet.machines[address].boot()

    def wait(self) -> None:
        """Until the power of all machines has returned."""
        for thread in self._returns:
            thread.join()

    def is_off(self, address: str) -> bool:
        """Whether the machine has no power now."""
        return bool(self.off[address]) and self.off[address][-1][1] == float("inf")

    def without_replicas(self, brokers: Iterable[NodeSpec], most: int) -> list[Span]:
        """When more than `most` of these brokers' machines were off."""
        spans = [span for broker in brokers for span in self.off[broker.host]]
        return [
            (begin, end)
            for begin, end in _between(moment for span in spans for moment in span)
            if sum(span[0] <= begin and end <= span[1] for span in spans) > most
        ]


def _listening() -> set[tuple[str, int]]:
    """The addresses and ports that something listens on; machines share the network with this one."""
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    return {_address(row[1]) for row in rows if row[3] == _LISTEN}


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.partition(":")
    return socket.inet_ntoa(bytes.fromhex(host)[::-1]), int(port, 16)


def _between(moments: Iterable[float]) -> list[Span]:
    ordered = sorted(set(moments))
    return list(pairwise(ordered))


class Scene:
    """What is seen of the cluster now, and how often each node went down; watched from `watched` on."""

    def __init__(self, fleet: Fleet, power: Power, *, migration_mode: bool = False) -> None:
        """`migration_mode`: the brokers are in migration mode already."""
        self.fleet, self.power, self.plan, self._migration_mode = fleet, power, fleet.plan, migration_mode
        self.up: dict[str, bool] = {}  # by the node's name
        self.downs: list[NodeSpec] = []  # each time that a node stopped listening, in order
        self.migration = True  # /migration exists
        self.zookeeper_leads: int | None = None  # the broker that is ZooKeeper's controller
        self.led: list[float] = []  # moments at which a controller was seen, of either kind

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Watch all nodes while the block runs."""
        looks = [
            self._watch_nodes,
            *(partial(self._watch_zookeeper, address) for address in self.plan.zookeeper_addresses()),
            *(partial(self._watch_quorum, node) for node in self.plan.controllers),
        ]
        with contextlib.ExitStack() as stack:
            for look in looks:
                stack.enter_context(beside(look))
            yield

    def _watch_nodes(self, over: threading.Event) -> None:
        nodes = (*self.plan.brokers, *self.plan.controllers)
        while not over.wait(_POLL_S):
            listening = _listening()
            for node in nodes:
                is_up = (node.host, node.port) in listening
                if self.up.get(node.name, True) and not is_up:
                    self.downs.append(node)
                self.up[node.name] = is_up

    def _watch_quorum(self, node: NodeSpec, over: threading.Event) -> None:
        with Wire(node.host, node.port, timeout=_ANSWER_S) as wire:
            while not over.wait(_LOOK_S):
                with contextlib.suppress(KMigrateError):
                    wire.describe_quorum()
                    self.led.append(time.time())

    def _watch_zookeeper(self, address: str, over: threading.Event) -> None:
        client = KazooClient(f"{address}:{ZOOKEEPER_PORT}{self.plan.shape.chroot}", timeout=4.0)
        client.start_async()
        try:
            while not over.wait(_LOOK_S):
                with contextlib.suppress(KazooException, TimeoutError, client.handler.timeout_exception):
                    self._look_at(client)
        finally:
            with contextlib.suppress(KazooException):
                client.stop()
                client.close()

    def _look_at(self, client: KazooClient) -> None:
        migration = client.exists_async("/migration").get(timeout=_ANSWER_S)
        try:
            data, stat = client.get_async("/controller").get(timeout=_ANSWER_S)
        except NoNodeError:
            data, stat = b"{}", None
        found = json.loads(data)
        leads = found["brokerid"] if stat is not None and found.get("kraftControllerEpoch", -1) < 0 else None
        self.migration, self.zookeeper_leads = migration is not None, leads
        if leads is not None and not self._is_ghost(leads, stat.created):
            self.led.append(time.time())

    def _is_ghost(self, broker: int, since: float) -> bool:
        """Whether only a session is left of this controller, since its machine lost its power."""
        host = self.plan.brokers[broker].host
        return any(begin > since for begin, _ in self.power.off[host])

    def brokers_down(self) -> list[NodeSpec]:
        """The brokers that went down, in order."""
        return [node for node in self.downs if node in self.plan.brokers]

    def controllers_down(self) -> list[NodeSpec]:
        """The controllers that went down, in order."""
        return [node for node in self.downs if node in self.plan.controllers]

    def controllers_up(self) -> list[NodeSpec]:
        """The controllers that listen now."""
        return [node for node in self.plan.controllers if self.up.get(node.name)]

    def in_migration_mode(self) -> bool:
        """Whether each broker was restarted once, or need not be, and all of them listen."""
        again = self._migration_mode or len({node.name for node in self.brokers_down()}) == len(self.plan.brokers)
        return again and all(self.up.get(node.name) for node in self.plan.brokers)

    def is_stopping(self, node: NodeSpec) -> bool:
        """Whether systemd stops the node's unit right now."""
        machine = self.fleet.machine(node)
        return machine.is_on and state_of(machine, node.role) == "deactivating"

    def wiped(self) -> list[NodeSpec]:
        """The controllers whose directories were set aside."""
        return [node for node in self.plan.controllers if not self._on_disk(node, f"{DIRECTORIES[node.role]}/meta.properties")]

    def _on_disk(self, node: NodeSpec, path: str) -> bool:
        machine = self.fleet.machine(node)
        return not machine.is_on or machine.leader == 0 or machine.path(path).exists()

    def longest_without_controller(self, begin: float, end: float) -> float:
        """Seconds in which no controller was seen, of either kind."""
        seen = [begin, *sorted(moment for moment in self.led if begin < moment < end), end]
        return max((later - earlier for earlier, later in pairwise(seen)), default=0.0)


@dataclass(frozen=True, slots=True)
class Cut:
    """Machines that lose their power `after` so many seconds, for `seconds`. `which`: their addresses, as the scene is then."""

    which: Callable[[Scene], list[str]]
    seconds: float
    after: float = 0.0


@dataclass(frozen=True, slots=True)
class Gap:
    """The longest time without an acknowledgement of one partition, in seconds, and which it was; `at`: epoch seconds."""

    seconds: float
    partition: str
    at: float


def longest_gap(events: Iterable[Event], begin: float, end: float, excused: Iterable[Span]) -> Gap:
    """Of all partitions that were acknowledged; spans in `excused` do not count, and part what is before and after them."""
    acked = defaultdict[TopicPartition, list[float]](list)
    for event in events:
        if isinstance(event, Ack):
            acked[TopicPartition(event.topic, event.partition)].append(event.t_acked_ms / 1000)
    spans = tuple(excused)
    found = [
        Gap(rest[1] - rest[0], where.name, rest[0])
        for where, moments in acked.items()
        for span in _between((begin, *(moment for moment in moments if begin < moment < end), end))
        for rest in _outside(span, spans)
    ]
    return max(found, key=lambda gap: gap.seconds, default=Gap(end - begin, "every partition", begin))


def _outside(span: Span, excused: Iterable[Span]) -> list[Span]:
    left = [span]
    for begin, end in excused:
        left = [part for one, two in left for part in ((one, min(two, begin)), (max(one, end), two)) if part[0] < part[1]]
    return left
