"""Views built in a line: a healthy cluster of three brokers and three controllers, and changes to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_kmigrate.core.cluster_state.model import (
    Age,
    BackupFacts,
    Broker,
    BrokerMode,
    ClusterView,
    Controller,
    CoordinatorFacts,
    Migration,
    NodeFiles,
    NoProbe,
    Partition,
    Process,
    ProcessState,
    Quorum,
    Stored,
    StoredKind,
    ZkController,
    ZkView,
    ZooKeeperServer,
)
from airflow_provider_kmigrate.core.migration.coordinator import OFFSETS

ZK, MIG, KRAFT = BrokerMode.ZOOKEEPER, BrokerMode.MIGRATION, BrokerMode.KRAFT
UP, DOWN = Process(ProcessState.RUNNING, 1, 1.0), Process(ProcessState.STOPPED)
MIGRATING = {"zookeeper.connect": "z", "zookeeper.metadata.migration.enable": "true"}
FILES = {ZK: {"zookeeper.connect": "z"}, MIG: MIGRATING, KRAFT: {"process.roles": "broker"}}
CONTROLLERS = (3000, 3001, 3002)


def broker(node: int, mode: BrokerMode | None, everyone: Sequence[int], process: Process = UP) -> Broker:
    listed = frozenset(everyone) if mode is not None else frozenset()
    return Broker(node, process, mode, mode in {ZK, MIG}, listed, None, NodeFiles(FILES[mode] if mode else None, edited=()))


def controller(node: int, flag: bool | None = True, *, used: bool = True) -> Controller:
    up = UP if flag is not None else DOWN
    properties = None if flag is None else {"process.roles": "controller"} | (MIGRATING if flag else {})
    return Controller(node, up, flag is not None, flag, NodeFiles(properties, edited=(), has_metadata_log=used))


def migration(offset: int, epoch: int = 5) -> Migration:
    return Migration(3000, epoch, offset, epoch)


def partitions(brokers: Sequence[int], count: int = 6, rf: int = 3) -> tuple[Partition, ...]:
    """`count` partitions whose replicas go round the running brokers."""
    rf = min(rf, len(brokers))
    rows = [tuple(brokers[(p + r) % len(brokers)] for r in range(rf)) for p in range(count)]
    return tuple(Partition("t", p, row[0], row, row) for p, row in enumerate(rows))


def cluster(
    modes: Sequence[BrokerMode | None],
    flags: Sequence[bool | None] = (),
    offset: int | None = None,
    **changes: object,
) -> ClusterView:
    """Brokers 0.. with these modes (None: down), controllers with these flags, /migration at `offset` (None: absent)."""
    ids = range(len(modes))
    running = [node for node in ids if modes[node] is not None]
    brokers = {node: broker(node, mode, running, UP if mode else DOWN) for node, mode in enumerate(modes)}
    controllers = {node: controller(node, flag) for node, flag in zip(CONTROLLERS, flags, strict=False)}
    owned = offset is not None and offset > 0
    owner = ZkController(3000, 5, ephemeral=False) if owned else ZkController(running[0] if running else 0, -1, ephemeral=True)
    quorum = Quorum(3000, 5, (offset or 0) + 3, dict.fromkeys(controllers, (offset or 0) + 3), {}) if controllers else None
    zk = ZkView(
        "q1Sh-9_ISia_zwGINzRvyQ",
        tuple(node for node in running if modes[node] in {ZK, MIG}),
        owner,
        3,
        None if offset is None else migration(offset),
        partition_counts={},
    )
    view = ClusterView(
        moving=(),
        taken_at=100.0,
        brokers=brokers,
        controllers=controllers,
        quorum=quorum,
        zk=zk,
        partitions=shrunk(partitions(list(ids)), running),
        min_insync={"t": 2 if len(modes) > 2 else 1},
        client_metrics=(),
        probe=NoProbe(),
    )
    return replace(view, **changes)  # type: ignore[arg-type]


def shrunk(rows: Sequence[Partition], running: Sequence[int]) -> tuple[Partition, ...]:
    """The same partitions when only these brokers run."""
    kept = []
    for row in rows:
        isr = tuple(b for b in row.isr if b in running)
        leader = row.leader if row.leader in isr else next(iter(isr), -1)
        kept.append(replace(row, isr=isr, leader=leader))
    return tuple(kept)


def with_broker(view: ClusterView, node: int, **changes: object) -> ClusterView:
    changed: Mapping[int, Broker] = {**view.brokers, node: replace(view.brokers[node], **changes)}  # type: ignore[arg-type]
    return replace(view, brokers=changed)


def with_controller(view: ClusterView, node: int, **changes: object) -> ClusterView:
    changed: Mapping[int, Controller] = {**view.controllers, node: replace(view.controllers[node], **changes)}  # type: ignore[arg-type]
    return replace(view, controllers=changed)


SERVERS = tuple(
    ZooKeeperServer(f"z{number}:2181", "3.8.4", mode) for number, mode in enumerate(("leader", "follower", "follower"))
)


def readable(view: ClusterView, *, written: bool = True) -> ClusterView:
    """The view with all that a rollback depends on, healthy if it was not read; `written`: /migration just now."""
    brokers = {node: replace(seen, files=_complete(seen)) for node, seen in view.brokers.items()}
    zk = view.zk
    if written and zk is not None and isinstance(zk.migration, Migration) and zk.migration.age is None:
        zk = replace(zk, migration=replace(zk.migration, age=Age(0.0, 0.1)))
    given: dict[str, Any] = {
        "topics": ({}, {}),
        "stored": {kind: Stored({}) for kind in StoredKind},
        "state_epoch": 3,
        "ensemble": SERVERS,
        "backup": BackupFacts(dict.fromkeys(view.brokers, "sha")),
    }
    missing = {name: value for name, value in given.items() if getattr(view, name) is None}
    return replace(view, brokers=brokers, zk=zk, **missing)


def _complete(seen: Broker) -> NodeFiles:
    files, version = seen.files, "1" if seen.mode is KRAFT else "0"
    meta = {"/data": {"version": version, "broker.id": str(seen.id)}} if files.meta is None else files.meta
    return replace(files, meta=meta, free=1 << 30 if files.free is None else files.free)


def computing(view: ClusterView, counts: Mapping[int, int | None] | None, partitions: int = 15) -> ClusterView:
    """With `__consumer_offsets`, and the count that each broker computes coordinators with (None: it does not say); None: not read."""
    ids = list(view.brokers)
    rows = [(p, tuple(ids[(p + place) % len(ids)] for place in range(min(3, len(ids))))) for p in range(partitions)]
    added = tuple(Partition(OFFSETS.name, p, replicas[0], replicas, replicas) for p, replicas in rows)
    known = {broker: frozenset({count}) for broker, count in (counts or {}).items() if count is not None}
    facts = None if counts is None else CoordinatorFacts({OFFSETS.name: known})
    min_insync = {**(view.min_insync or {}), OFFSETS.name: 2}
    return replace(view, partitions=(*(view.partitions or ()), *added), min_insync=min_insync, coordinators=facts)


AGREEING, ASLEEP, HALF = dict.fromkeys(range(3), 15), dict.fromkeys(range(3), 10), {0: 15, 1: 10, 2: 10}
ONE_UNREAD = {0: 15, 1: 15, 2: None}


def with_zk(view: ClusterView, **changes: object) -> ClusterView:
    assert view.zk is not None
    return replace(view, zk=replace(view.zk, **changes))  # type: ignore[arg-type]


FLAGGED, BARE = (True, True, True), (False, False, False)
PRE = cluster([ZK, ZK, ZK], FLAGGED, -1)
DUAL_ZK = cluster([MIG, MIG, MIG], FLAGGED, 90)
DUAL_ZK_EARLIER = cluster([MIG, MIG, MIG], FLAGGED, 80)
DUAL = cluster([KRAFT, KRAFT, KRAFT], FLAGGED, 90)


def codes(reasons: Iterable[object]) -> list[str]:
    """The codes of reasons, in their order."""
    return [reason.code for reason in reasons]  # type: ignore[attr-defined]
