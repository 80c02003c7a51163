"""Disks, certificates, addresses and stops, and what preflight finds of each."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from airflow_provider_kmigrate.core.cluster_state.model import (
    Certificate,
    ClusterView,
    ConnectionFacts,
    LogDir,
    PartitionIds,
    ZooKeeperServer,
)
from airflow_provider_kmigrate.core.cluster_state.spec import Policy
from airflow_provider_kmigrate.core.preflight.findings import PreflightFacts
from tests.core.preflight_around import Row, environment, everywhere, tree
from tests.core.preflight_views import NOW, Case, Change, both, known, spec

DAY, GIB = 86_400.0, 1 << 30


def room(usable: int | None, path: str = "/data") -> Change:
    """Broker 1 has so many bytes left on a directory's disk."""
    return environment(
        log_dirs={0: (LogDir("/data", "", 1 << 40),), 1: (LogDir(path, "", usable),), 2: (LogDir("/data", "", 1 << 40),)}
    )


def two_disks(first: int, second: int) -> Change:
    """Broker 1 has two directories, in the order of its file."""
    return environment(
        log_dirs={
            0: (LogDir("/data", "", 1 << 40),),
            1: (LogDir("/b", "", second), LogDir("/a/", "", first)),
            2: (LogDir("/data", "", 1 << 40),),
        }
    )


def certificate(days: float | None) -> Change:
    """Broker 1's certificate ends in so many days; None: it was not read."""
    return environment(
        certificates={
            0: Certificate(NOW + 400 * DAY),
            1: None if days is None else Certificate(NOW + days * DAY),
            2: Certificate(),
        }
    )


def on_disk(**kinds: int) -> Change:
    """So many partitions on broker 1's disk are of this kind, each with an example."""
    found = {kind: (count, (("/data/orders-0", "A" * 22 if kind == "other" else ""),)) for kind, count in kinds.items()}
    sizes = dict.fromkeys(kinds.keys() - {"other", "malformed", "missing", "permission"}, (2 << 20) + 1)
    return environment(partition_ids={0: PartitionIds(9), 1: PartitionIds(9, found, sizes), 2: PartitionIds(9)})


def controller_at(host: str) -> Change:
    """The first controller has this host."""

    def change(view: ClusterView, facts: PreflightFacts) -> Case:
        first, *others = facts.spec.controllers
        return spec(controllers=(replace(first, host=host), *others))(view, facts)

    return change


def addresses(*found: str) -> Change:
    """Of controller 3001, on its own machine."""
    return environment(addresses={3000: ("10.0.0.6",), 3001: found, 3002: ("10.0.0.8",)})


def dynamic(entity: str, key: str) -> Change:
    return tree(broker_settings={entity: (key,)})


def everything_at(host: str) -> Change:
    def change(view: ClusterView, facts: PreflightFacts) -> Case:
        brokers, controllers = (
            tuple(replace(node, host=host) for node in nodes) for nodes in (facts.spec.brokers, facts.spec.controllers)
        )
        return view, replace(facts, spec=replace(facts.spec, brokers=brokers, controllers=controllers))

    return change


TWO = everywhere(log_dirs="/a,/b", inter_broker_protocol_version="3.9")
NODES = "node0:100,node1:100,node2:100"
LIMITS: list[Row] = [
    ("limits of connections that all fit in", everywhere(max_connections="27", max_connections_per_ip="5", max_connection_creation_rate="3"), []),
    ("one connection less than the nodes may have", everywhere(max_connections="26"), ["B26"]),
    ("one connection less at the controllers' listener", everywhere(listener_name_controller_max_connections="26"), ["B26"]),
    ("the controllers' listener has more than the others", everywhere(max_connections="26", listener_name_controller_max_connections="1000"), ["B26"]),
    ("connections that are made slowly", everywhere(max_connection_creation_rate="2"), ["B26"]),
    ("no connection of any machine", everywhere(max_connections_per_ip="0"), ["B26"]),
    ("no connection but of the nodes", everywhere(max_connections_per_ip="0", max_connections_per_ip_overrides=f"{NODES},node3000:100,node3001:100,NODE3002.:100"), []),
    ("no connection but of the brokers", everywhere(max_connections_per_ip="0", max_connections_per_ip_overrides=NODES), ["B26"]),
    ("no connection but of the brokers and of the controllers' address", everywhere(max_connections_per_ip="0", max_connections_per_ip_overrides=f"{NODES},10.0.0.7:100"), []),
    ("no connection but of addresses that may be the nodes", everywhere(max_connections_per_ip="0", max_connections_per_ip_overrides="10.0.0.0:100"), ["B26"]),
    ("a node that has fewer than others", everywhere(max_connections_per_ip_overrides="node1:4"), ["B26"]),
    ("a limit of an IPv6 address", everywhere(max_connections_per_ip="0", max_connections_per_ip_overrides=f"{NODES},fd00::1:100"), ["B26"]),
    ("a limit that controllers do not get", both(everywhere(max_connections_per_ip="0"), spec(controller_properties={"max.connections.per.ip": "2147483647"})), []),
    ("a limit that all brokers have dynamically", both(everywhere(max_connections_per_ip="0"), both(spec(controller_properties={"max.connections.per.ip": "1000"}), dynamic("<default>", "max.connections.per.ip"))), ["B26", "W13"]),
    ("a limit that one broker has dynamically", dynamic("1", "max.connections.per.ip"), ["W13"]),
    ("a dynamic limit that no broker reports", dynamic("<default>", "max.connections"), ["B26", "W13"]),
    ("overrides by reference", everywhere(config_providers="env", max_connections_per_ip="0", max_connections_per_ip_overrides="${env:NODES}"), ["B26"]),
    ("a limit by reference", everywhere(config_providers="env", max_connections="${env:MOST}"), ["B26"]),
]  # fmt: skip
ROWS: list[Row] = [
    ("room enough", room(2 * GIB), []),
    ("room not reported", room(None), ["B23"]),
    ("a reference to the first of two directories", both(both(TWO, everywhere(log_dirs="${env:DISK},/b")), two_disks(9 * GIB, 0)), ["B23"]),
    ("little room", room(2 * GIB - 1), ["B23"]),
    ("no room", room(255 << 20), ["B23"]),
    ("no room in the first of two directories", both(TWO, two_disks(0, 9 * GIB)), ["B23"]),
    ("no room in the second of two directories", both(TWO, two_disks(9 * GIB, 0)), []),
    ("no room in the metadata's own directory", both(both(TWO, everywhere(metadata_log_dir="/b")), two_disks(9 * GIB, 0)), ["B23", "B23"]),
    ("the metadata's own directory is not reported", both(both(TWO, everywhere(metadata_log_dir="/m")), two_disks(0, 0)), ["B23"]),
    ("a certificate for long", certificate(15.1), []),
    ("no TLS", certificate(inf), []),
    ("a certificate that was not read", certificate(None), ["B24"]),
    ("a certificate that ends within two weeks", certificate(14.9), ["B24"]),
    ("a certificate that ends before the soak", certificate(1.9), ["B24"]),
    ("a certificate that ends in a long soak", both(certificate(29.0), spec(policy=Policy(min_soak=30 * DAY))), ["B24"]),
    ("a certificate of ZooKeeper that ends before the soak", environment(servers=(ZooKeeperServer("zk:2281", "3.8.4", certificate_end=NOW + DAY),)), ["B24"]),
    ("a token of kmigrate's own that ends before the soak", known(connections=ConnectionFacts(ends={"token of kafka": NOW + DAY})), ["B24"]),
    ("a certificate of kmigrate's own that has ended", known(connections=ConnectionFacts(ends={"certificate of zookeeper": NOW - DAY})), ["B24"]),
    ("a certificate of kmigrate's own for long", known(connections=ConnectionFacts(ends={"certificate of kafka": NOW + 400 * DAY})), []),
    ("a certificate of ZooKeeper for long", environment(servers=(ZooKeeperServer("zk:2281", "3.8.4", certificate_end=NOW + 400 * DAY),)), []),
    ("another topic id on disk", on_disk(other=1), ["B25"]),
    ("topic ids that Kafka cannot read", on_disk(malformed=4_000), ["B25"]),
    ("no topic id on disk", on_disk(missing=2), ["B25"]),
    ("directories of topics that are gone", on_disk(stray=2), ["B25"]),
    ("directories that other brokers' partitions have", on_disk(unassigned=2), ["B25"]),
    ("directories of no partition, without id", on_disk(unidentified=2), ["B25"]),
    ("directories that Kafka has put away", on_disk(put_away=2), ["B25"]),
    ("directories that Kafka deletes", on_disk(deleted=2), ["B25"]),
    ("a link in a log directory", on_disk(link=1), ["B25"]),
    ("all kinds", on_disk(other=1, malformed=1, missing=1, stray=1, permission=1), ["B25"] * 5),
    ("a broker without partitions", environment(partition_ids=dict.fromkeys(range(3), PartitionIds())), []),
    ("a controller on localhost", controller_at("localhost"), ["B22"]),
    ("a controller on 127.0.1.1", controller_at("127.0.1.1"), ["B22"]),
    ("a controller elsewhere", controller_at("ctl0"), []),
    ("a controller that binds 127.0.1.1", addresses("127.0.1.1", "10.0.0.7"), ["B22"]),
    ("a controller that binds ::1", addresses("::1"), ["B22"]),
    ("a controller that binds another address first", addresses("10.0.0.7", "127.0.1.1"), []),
    ("a controller whose machine does not know it", addresses(), ["B22"]),
    ("a controller whose machine was not asked", environment(addresses={}), ["B22"]),
    ("a controller with listeners of its own", both(spec(controller_properties={"listeners": "CONTROLLER://0.0.0.0:9093"}), addresses("127.0.1.1")), []),
    ("stops like crashes", everywhere(controlled_shutdown_enable="false"), ["W29"]),
    ("stops as they should be", everywhere(controlled_shutdown_enable="true"), []),
    *LIMITS,
]  # fmt: skip
