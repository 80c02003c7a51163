"""Preflight's checks of what a migration takes for granted of machines: room on disks, valid certificates, addresses, clean stops."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping

from airflow_provider_kmigrate.core.cluster_state.model import ClusterView, LogDir, PartitionIds
from airflow_provider_kmigrate.core.cluster_state.spec import is_loopback, normalize_host
from airflow_provider_kmigrate.core.node_files.config_matrix import read_setting
from airflow_provider_kmigrate.core.preflight.findings import (
    Check,
    PreflightFacts,
    PreflightFinding,
    answering_brokers,
    blocks,
    format_broker_values,
    unknown,
    warns,
    zookeeper_broker_files,
    zookeeper_configs,
)
from airflow_provider_kmigrate.core.shared.text import join_ids, summarize

_MIB = 1 << 20
_NEEDED = 256 * _MIB  # the first snapshot and segment of the metadata log, of a cluster of 50,000 partitions
_USUAL = 2048 * _MIB  # metadata.log.segment.bytes, metadata.max.retention.bytes and snapshots, by Kafka's defaults
_DAY = 86_400.0
_USUAL_SOAK = 14 * _DAY  # Kafka's documentation: "a week or two"


def _check_room(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """A broker in KRaft mode keeps the cluster's metadata on a disk, and halts if that is full."""
    rooms, unread = dict[str, int](), list[int]()
    for broker, file in zookeeper_broker_files(view).items():
        log_dirs = facts.environment.log_dirs.get(broker)
        log_dir = _metadata_dir(file, log_dirs or ())
        if log_dir is not None and log_dir.usable_bytes is not None and log_dir.usable_bytes < _USUAL:
            rooms[f"{log_dir.path} of broker {broker} {log_dir.usable_bytes // _MIB} MiB"] = log_dir.usable_bytes
        if log_dirs and (log_dir is None or log_dir.usable_bytes is None):  # without any B7b reports the broker
            unread.append(broker)
    if unread:
        yield unknown("B23", f"the room for the metadata log on brokers {summarize(unread)}: they report none of that directory")
    if full := [text for text, room in rooms.items() if room < _NEEDED]:
        yield blocks("B23", f"directories without room for the metadata log: {summarize(full)}")
    if scarce := [text for text in rooms if text not in full]:
        yield warns("B23", f"directories with little room for the metadata log: {summarize(scarce)}")


def list_metadata_room(view: ClusterView, facts: PreflightFacts) -> dict[str, int]:
    """Broker's name -> the free bytes of the disk that its metadata log will be on; without brokers of which they are not known."""
    rooms = {
        broker: _metadata_dir(file, facts.environment.log_dirs.get(broker) or ())
        for broker, file in zookeeper_broker_files(view).items()
    }
    return {f"broker {broker}": room.usable_bytes for broker, room in rooms.items() if room and room.usable_bytes is not None}


def _metadata_dir(file: Mapping[str, str], log_dirs: tuple[LogDir, ...]) -> LogDir | None:
    """The reported directory in which the metadata log will be; None if the broker does not report it."""
    first = (read_setting(file, "log.dirs") or read_setting(file, "log.dir") or "").split(",")[0]
    path = (read_setting(file, "metadata.log.dir") or first).strip().rstrip("/")
    if len(log_dirs) == 1 and read_setting(file, "metadata.log.dir") is None:
        return log_dirs[0]
    return next((log_dir for log_dir in log_dirs if log_dir.path.rstrip("/") == path), None)


def _check_certificates(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Brokers load a certificate when they start: one that ends before the soak does stops clients and followers in the middle.

    ZooKeeper's, which nodes connect to until the finalization, ends the dual-write.
    """
    now, soak = facts.environment.now, facts.spec.policy.min_soak
    reported = {broker: facts.environment.certificates.get(broker) for broker in answering_brokers(view, facts)}
    if unread := [broker for broker, certificate in reported.items() if certificate is None]:
        yield unknown("B24", f"brokers whose certificate was not read: {summarize(unread)}")
    ends = {f"broker {broker}": certificate.end for broker, certificate in reported.items() if certificate is not None}
    ends |= {f"ZooKeeper's server {server.address}": server.certificate_end for server in facts.environment.servers}
    ends |= {f"kmigrate's own {what}": end for what, end in facts.connections.ends.items()}
    too_early = {name: end for name, end in ends.items() if end < now + soak + _DAY}
    early = {name: end for name, end in ends.items() if name not in too_early and end < now + max(soak, _USUAL_SOAK) + _DAY}
    if too_early:
        yield blocks("B24", f"certificates or tokens that end before the soak does: {_format_ends(too_early)}")
    if early:
        yield warns("B24", f"certificates or tokens that end soon: {_format_ends(early)}")


def _format_ends(ends: Mapping[str, float]) -> str:
    return summarize(f"{name} on {dt.datetime.fromtimestamp(end, dt.UTC):%Y-%m-%d %H:%M} UTC" for name, end in ends.items())


def _check_addresses(_: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Nodes of several machines cannot have the controllers' address on their own."""
    hosts = [node.host for node in facts.spec.nodes()]
    local = [f"{node.id} {node.host}" for node in facts.spec.controllers if is_loopback(node.host)]
    if local and not all(map(is_loopback, hosts)):
        text = f"controllers whose host is each machine's own, while other nodes are elsewhere: {summarize(local)}"
        yield blocks("B22", text)
    if len({normalize_host(host) for host in hosts}) > 1 and not read_setting(facts.spec.controller_properties, "listeners"):
        yield from _check_bound_addresses(facts)


def _check_bound_addresses(facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """A controller binds what its own machine knows by its host, such as 127.0.1.1 of Debian's /etc/hosts: no other machine would reach it."""
    found = {node: facts.environment.addresses.get(node.id) for node in facts.spec.controllers if not is_loopback(node.host)}
    if unread_nodes := [node.id for node, addresses in found.items() if addresses is None]:
        yield unknown("B22", f"controllers whose address on their own machine was not read: {summarize(unread_nodes)}")
    if unknown_hosts := [f"{node.id} {node.host}" for node, addresses in found.items() if addresses == ()]:
        yield blocks("B22", f"controllers whose own machine does not know their host: {summarize(unknown_hosts)}")
    bound = {node: addresses[0] for node, addresses in found.items() if addresses}
    if only_there := [f"{node.id} {node.host} is {address}" for node, address in bound.items() if is_loopback(address)]:
        yield blocks(
            "B22", f"controllers whose own machine has their host as an address of itself alone: {summarize(only_there)}"
        )


def _check_clean_stops(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    sources = [*zookeeper_configs(facts).items(), *zookeeper_broker_files(view).items()]
    if off := sorted({broker for broker, keys in sources if (read_setting(keys, _CLEAN) or "true").strip().lower() == "false"}):
        yield warns("W29", f"{_CLEAN}=false of {'broker' if len(off) == 1 else 'brokers'} {join_ids(off)}")


_CLEAN = "controlled.shutdown.enable"


def _check_topic_ids_on_disk(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """A broker knows the topic of a directory by the id in it; in KRaft mode it serves none that has another one than the metadata."""
    compared = {broker: facts.environment.partition_ids.get(broker) for broker in answering_brokers(view, facts)}
    if unread_brokers := [broker for broker, ids in compared.items() if ids is None]:
        yield unknown("B25", f"brokers whose topic ids on disk were not compared: {summarize(unread_brokers)}")
    kinds = sorted({kind for ids in compared.values() if ids for kind in ids.found})
    for kind in kinds:
        brokers = {broker: ids.found[kind] for broker, ids in compared.items() if ids and kind in ids.found}
        examples = summarize(f"{path}{on_disk and f' ({on_disk})'}" for _, some in brokers.values() for path, on_disk in some)
        counts = format_broker_values(
            {broker: f"{count}{_format_size(compared[broker], kind)}" for broker, (count, _) in brokers.items()}
        )
        build, meaning = _FOUND_ON_DISK.get(kind, (unknown, f"files of partitions were not read ({kind})"))
        yield build("B25", f"{meaning}: {counts}; such as {examples}")


def _format_size(ids: PartitionIds | None, kind: str) -> str:
    """The size of what was found on a broker's disks, such as ` (12 MiB)`; empty if the agent is too old to say it."""
    size = ids.sizes.get(kind) if ids else None
    return "" if size is None else f" ({-(-size // _MIB):,} MiB)"


_FOUND_ON_DISK: Mapping[str, tuple[Callable[[str, str], PreflightFinding], str]] = {
    "other": (blocks, "partitions on disk have another topic id than ZooKeeper"),
    "malformed": (blocks, "partitions on disk have a partition.metadata that Kafka cannot read"),
    "missing": (warns, "partitions on disk have no topic id"),
    "stray": (warns, "directories are of topics that ZooKeeper does not have; Kafka will rename them to *-stray and keep them"),
    "unassigned": (
        warns,
        "directories are of partitions that other brokers have; Kafka will rename them to *-stray and keep them",
    ),
    "unidentified": (blocks, "directories of no partition of this broker have no topic id"),
    "put_away": (warns, "directories *-stray, which Kafka serves no more and never deletes"),
    "deleted": (warns, "directories *-delete, which Kafka deletes a minute after it has started"),
}

CHECKS: tuple[Check, ...] = (
    _check_room,
    _check_certificates,
    _check_addresses,
    _check_clean_stops,
    _check_topic_ids_on_disk,
)
