"""A healthy cluster as preflight sees it, changes of it, and the defects that each must be found of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf
from typing import Any

from airflow_provider_kmigrate.core.cluster_state.model import (
    Broker,
    BrokerMode,
    BrokerRegistration,
    Cause,
    Certificate,
    ClusterEnvironment,
    ClusterView,
    Controller,
    CoordinatorFacts,
    LogDir,
    Malformed,
    Migration,
    NodeFiles,
    Partition,
    PartitionIds,
    Process,
    ProcessState,
    Reason,
    Taken,
    TopicMetadata,
    ZkController,
    ZkView,
    ZooKeeperServer,
    ZooKeeperTree,
)
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, HostSpec, NodeRole, NodeSpec
from airflow_provider_kmigrate.core.migration.coordinator import OFFSETS
from airflow_provider_kmigrate.core.preflight.checks import run_checks
from airflow_provider_kmigrate.core.preflight.findings import PreflightFacts

CLUSTER_ID = "q1Sh-9_ISia_zwGINzRvyQ"
HOSTS = HostSpec("agent", "/etc/kafka/server.properties")
FORMATTED = {"/data": {"version": "0", "cluster.id": CLUSTER_ID}}
NOW = 1_800_000_000.0
Case = tuple[ClusterView, PreflightFacts]
Change = Callable[[ClusterView, PreflightFacts], Case]


UNTOUCHED = Process(killed_after=inf)
LOOP = Process(ProcessState.RUNNING, killed_after=inf, restart_loop="ERROR Exiting Kafka")


def node(number: int, role: NodeRole = NodeRole.BROKER) -> NodeSpec:
    port = 9092 if role is NodeRole.BROKER else 9093
    return NodeSpec(number, role, f"node{number}", port, HOSTS, log_dir="/kraft")


def config(number: int, **changes: str) -> dict[str, str]:
    keys = {
        "broker.id": str(number),
        "zookeeper.connect": "zk:2181/kafka",
        "inter.broker.protocol.version": "3.9-IV0",
        "offsets.topic.num.partitions": "50",
    }
    return keys | {key.replace("_", "."): value for key, value in changes.items()}


def broker(number: int) -> Broker:
    return Broker(
        number,
        Process(ProcessState.RUNNING, 1, 1.0, killed_after=inf),
        BrokerMode.ZOOKEEPER,
        in_zookeeper=True,
        files=NodeFiles(config(number), FORMATTED, has_metadata_log=False),
    )


def counted(counts: Mapping[int, frozenset[int]], groups: tuple[str, ...] = ()) -> CoordinatorFacts:
    return CoordinatorFacts({OFFSETS.name: counts}, groups)


def healthy(size: int = 3) -> Case:
    ids = range(size)
    rows = [tuple((p + r) % size for r in range(min(3, size))) for p in range(50)]
    names = ["__consumer_offsets"] * 50 + ["orders"] * 2
    partitions = [Partition(name, i % 50, rows[i % 50][0], rows[i % 50], rows[i % 50]) for i, name in enumerate(names)]
    topics = {name: TopicMetadata(name, f"id of {name}", {}) for name in set(names)}
    view = ClusterView(
        taken_at=100.0,
        kafka_cluster_id=CLUSTER_ID,
        brokers={i: broker(i) for i in ids},
        controllers={i: Controller(i, UNTOUCHED, files=NodeFiles(meta={}, has_metadata_log=False)) for i in (3000, 3001, 3002)},
        zk=ZkView(CLUSTER_ID, tuple(ids), ZkController(0, -1, ephemeral=True), 1, topic_versions={OFFSETS.name: 0}),
        partitions=tuple(partitions),
        min_insync=dict.fromkeys(topics, 2 if size > 2 else 1),
        coordinators=counted({i: frozenset({50}) for i in ids}),
        topics=(topics, topics),
    )
    controllers = tuple(node(i, NodeRole.CONTROLLER) for i in (3000, 3001, 3002))
    spec = ClusterSpec("prod", CLUSTER_ID, "zk", "kafka", tuple(node(i) for i in ids), controllers)
    return view, PreflightFacts(spec, "/kafka", {i: config(i) for i in ids}, environment=environment(size))


def environment(size: int = 3) -> ClusterEnvironment:
    """Everything is reported and nothing found: on one machine, whose clock is that of all."""
    ids = range(size)
    tree = ZooKeeperTree(registrations={i: BrokerRegistration(NOW - 500, NOW - 500) for i in ids}, latest=NOW - 500)
    dirs = {i: (LogDir("/data", "", 1 << 40),) for i in ids}
    servers = (ZooKeeperServer("zk:2181", "3.8.4"),)
    taken = {i: Taken(config(i)) for i in ids}
    read: dict[str, Any] = {
        "taken": taken,
        "certificates": dict.fromkeys(ids, Certificate()),
        "partition_ids": dict.fromkeys(ids, PartitionIds(52)),
        "addresses": dict.fromkeys((*range(2_000), 3000, 3001, 3002), ("10.0.0.7",)),  # whatever id a test gives a controller
    }
    return ClusterEnvironment(dict.fromkeys(ids, "3.9-IV0"), dirs, (), tree, servers, now=NOW, one_machine=True, **read)


def codes(case: Case) -> list[str]:
    return [finding.code for finding in run_checks(*case)]


def seen(**changes: object) -> Change:
    """The view with other parts."""
    return lambda view, facts: (replace(view, **changes), facts)  # type: ignore[arg-type]


def zk(**changes: object) -> Change:
    def change(view: ClusterView, facts: PreflightFacts) -> Case:
        assert view.zk is not None
        return replace(view, zk=replace(view.zk, **changes)), facts  # type: ignore[arg-type]

    return change


def broker_1(**changes: object) -> Change:
    def change(view: ClusterView, facts: PreflightFacts) -> Case:
        changed = replace(view.brokers[1], **changes)  # type: ignore[arg-type]
        return replace(view, brokers={**view.brokers, 1: changed}), facts

    return change


def file_1(properties: Mapping[str, str] | None) -> Change:
    """Broker 1's file, with which it was restarted."""
    return both(broker_1(files=NodeFiles(properties, FORMATTED)), started)


def started(view: ClusterView, facts: PreflightFacts) -> Case:
    """Every broker has read its file as it is now."""
    taken = {i: Taken(b.files.properties or {}) for i, b in view.brokers.items()}
    return view, replace(facts, environment=replace(facts.environment, taken=taken))


def controller_files(files: NodeFiles) -> Change:
    def change(view: ClusterView, facts: PreflightFacts) -> Case:
        return replace(view, controllers={**view.controllers, 3001: Controller(3001, UNTOUCHED, files=files)}), facts

    return change


def controller_answers(flag: bool) -> Change:
    def change(view: ClusterView, facts: PreflightFacts) -> Case:
        seen = Controller(3001, UNTOUCHED, answers=True, migration_flag=flag, files=NodeFiles(meta={}, has_metadata_log=False))
        return replace(view, controllers={**view.controllers, 3001: seen}), facts

    return change


def known(**changes: object) -> Change:
    """The facts with other parts."""
    return lambda view, facts: (view, replace(facts, **changes))  # type: ignore[arg-type]


def config_1(value: Mapping[str, str] | None) -> Change:
    return lambda view, facts: (view, replace(facts, configs={**facts.configs, 1: value}))


def spec(**changes: object) -> Change:
    return lambda view, facts: (view, replace(facts, spec=replace(facts.spec, **changes)))  # type: ignore[arg-type]


def orders(leader: int = 0, replicas: tuple[int, ...] = (0, 1, 2), isr: tuple[int, ...] = (0, 1, 2)) -> Change:
    """The topic `orders` with one partition like this."""

    def change(view: ClusterView, facts: PreflightFacts) -> Case:
        others = tuple(partition for partition in view.partitions or () if partition.topic != "orders")
        return replace(view, partitions=(*others, Partition("orders", 0, leader, replicas, isr))), facts

    return change


def no_offsets_topic(number: str) -> Change:
    def change(view: ClusterView, facts: PreflightFacts) -> Case:
        others = tuple(partition for partition in view.partitions or () if partition.topic == "orders")
        changed = {**facts.configs, 1: config(1, offsets_topic_num_partitions=number)}
        return replace(view, partitions=others), replace(facts, configs=changed)

    return change


def transactions(*numbers: str) -> Change:
    configs = {i: config(i, transaction_state_log_num_partitions=number) for i, number in enumerate(numbers)}
    return known(configs=configs)


def controller_ids(*ids: int) -> Change:
    def change(view: ClusterView, facts: PreflightFacts) -> Case:
        controllers = {i: Controller(i, UNTOUCHED, files=NodeFiles(meta={}, has_metadata_log=False)) for i in ids}
        nodes = tuple(node(i, NodeRole.CONTROLLER) for i in ids)
        return replace(view, controllers=controllers), replace(facts, spec=replace(facts.spec, controllers=nodes))

    return change


def both(one: Change, other: Change) -> Change:
    return lambda view, facts: other(*one(view, facts))


VERSION_3_8 = config(1, inter_broker_protocol_version="3.8")
STRANGER = {"/data": {"cluster.id": "another"}}
EXPANDED = {0: frozenset({50}), 1: frozenset({25}), 2: frozenset({50})}
AMBIGUOUS = {0: frozenset({50}), 1: frozenset({10, 50}), 2: frozenset({50})}

DEFECTS: list[tuple[str, Change, list[str]]] = [
    ("ZooKeeper unread", seen(zk=None), ["U05"]),
    ("partitions unread", seen(partitions=None), ["U05"]),
    ("min.insync unread", seen(min_insync=None), ["U05"]),
    ("topics unread", seen(topics=None), ["U05"]),
    ("file unread", file_1(None), ["U05"]),
    ("configuration unread", config_1(None), ["U05"]),
    ("version unread", config_1({"broker.id": "1"}), ["U05"]),
    ("host unreachable", seen(unknowns=(Reason("U01", "node1 does not answer"),)), ["U01"]),
    ("offsets count unread", seen(coordinators=None), ["K02"]),
    ("controller's directory unread", controller_files(NodeFiles()), ["G00"]),
    ("ZooKeeper of another cluster", zk(cluster_id="another"), ["I01"]),
    ("brokers of another cluster", seen(kafka_cluster_id="another"), ["I01"]),
    ("disk of another cluster", broker_1(files=NodeFiles(config(1), STRANGER)), ["I01"]),
    ("controller of another cluster", controller_files(NodeFiles(meta=STRANGER, has_metadata_log=False)), ["I01"]),
    ("chroot without a cluster", zk(cluster_id=None), ["Z01"]),
    ("versions differ", both(config_1(VERSION_3_8), file_1(VERSION_3_8)), ["B1a"]),
    ("version of the file not in force", file_1(VERSION_3_8), ["B1a"]),
    ("controllers of another version", known(metadata_version="3.8-IV0"), ["B1a"]),
    ("controller id of a broker", controller_ids(2, 3001, 3002), ["B2b"]),
    (
        "controller id of a broker long gone",
        both(orders(replicas=(0, 9), isr=(0, 9)), controller_ids(9, 3001, 3002)),
        ["B2b", "W1"],
    ),
    ("broker not in the cluster file", zk(broker_ids=(0, 1, 2, 3)), ["G36"]),
    ("file of another broker", file_1(config(2)), ["M01"]),
    ("broker unresponsive", broker_1(mode=None), ["R01"]),
    ("broker stopped", broker_1(process=Process(ProcessState.STOPPED, killed_after=inf)), ["R01"]),
    ("broker starts again and again", broker_1(mode=None, process=LOOP), ["M08"]),
    ("broker not registered", broker_1(in_zookeeper=False), ["R01"]),
    ("broker not seen at all", spec(brokers=tuple(node(i) for i in range(4))), ["U05", "R01", "K02", "W7"]),
    ("assignment to a broker long gone", orders(replicas=(0, 1, 9), isr=(0, 1, 9)), ["B4b"]),
    ("under-replicated", orders(isr=(0, 1)), ["S02"]),
    ("no leader", orders(leader=-1), ["S02"]),
    ("reassignment", zk(reassigning=True), ["S04"]),
    ("deletion pending", zk(pending_deletions=("old",)), ["B5"]),
    ("topic without id", seen(topics=({"t": TopicMetadata("t", None, {})}, {})), ["B1b"]),
    ("no controller epoch", zk(controller_epoch=None), ["Z01"]),
    ("stale /migration", zk(migration=Migration(3000, 4, 97, 4)), ["P06"]),
    ("malformed /migration", zk(migration=Malformed("/migration", "")), ["P06"]),
    ("fresh /migration", zk(migration=Migration(-1, -1, -1, -1)), []),
    ("controller was in a quorum", controller_files(NodeFiles(meta={"/kraft": {}}, has_metadata_log=True)), ["G04"]),
    ("controller without the flag", controller_answers(flag=False), ["G44"]),
    ("controller of an earlier run with the flag", controller_answers(flag=True), []),
    (
        "controllers unresponsive",
        seen(unknowns=(Reason("G23", "Controller 3000 did not answer", cause=Cause.UNREAD_CONTROLLER),)),
        [],
    ),
    ("file without broker.id", file_1({"zookeeper.connect": "zk:2181/kafka"}), ["C04"]),
    ("generated id", file_1(config(1, broker_id="-1")), ["C04"]),
    ("combined node", file_1({"process.roles": "broker,controller"}), ["O06"]),
    ("KRaft file too early", file_1({"process.roles": "broker", "node.id": "1"}), ["O06"]),
    ("wrong chroot in a file", file_1(config(1, zookeeper_connect="zk:2181")), ["C04"]),
    ("wrong chroot in the connection", known(chroot=""), ["C04", "C04", "C04"]),
    ("old expansion of the offsets topic", seen(coordinators=counted(EXPANDED)), ["K01"]),
    ("count of the offsets topic ambiguous", seen(coordinators=counted(AMBIGUOUS)), []),
    ("no offsets topic, one count", no_offsets_topic("50"), []),
    ("no offsets topic, two counts", no_offsets_topic("25"), ["B18"]),
    ("no transactions topic, two counts", transactions("50", "25", "50"), ["B18"]),
    ("no transactions topic, one count", transactions("50", "50", "50"), []),
    ("replicas as few as min.insync asks", orders(replicas=(0, 1), isr=(0, 1)), ["W1"]),
    ("one replica", orders(replicas=(0,), isr=(0,)), ["W1"]),
    ("one controller", spec(controllers=(node(3000, NodeRole.CONTROLLER),)), ["W3"]),
]
