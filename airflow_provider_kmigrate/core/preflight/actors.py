"""Preflight's checks of other activity: throttles, reassignments, dynamic settings, other tools, clocks and time limits.

Also of the places that the cluster file gives to controllers: a file and a directory that belong to no other node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from airflow_provider_kmigrate.core import gates
from airflow_provider_kmigrate.core.cluster import NodeRole, NodeSpec, machine
from airflow_provider_kmigrate.core.files import config_matrix
from airflow_provider_kmigrate.core.files.config_matrix import foreign_file, listener_ports, needs_version_0, setting
from airflow_provider_kmigrate.core.model import (
    DEFAULT,
    Broker,
    Cause,
    ClusterView,
    Controller,
    NodeFiles,
    Process,
    ZooKeeperTree,
)
from airflow_provider_kmigrate.core.preflight.findings import (
    Check,
    PreflightFacts,
    PreflightFinding,
    blocks,
    refused,
    topics_in_zookeeper,
    unknown,
    values,
    warns,
    zookeeper_configs,
)
from airflow_provider_kmigrate.core.preflight.unread import unread_hosts
from airflow_provider_kmigrate.core.text import summarize

KAFKA_STOPS = 300.0  # seconds that a broker in migration mode may take to stop (measured: 300.8)
_RECENT = 900.0  # seconds that Kafka keeps notifications of changed settings
_SKEW = 5.0  # seconds; a registration takes its own time, up to a second or two
_THROTTLED = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
_RATES = (
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
)
_CRUISE_CONTROL = ("__CruiseControlMetrics", "__KafkaCruiseControl")
_POLICIES = ("alter.config.policy.class.name", "create.topic.policy.class.name")


def _throttles(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Replicas are throttled only if a topic names them and a broker has a rate."""
    found = topics_in_zookeeper(view)
    topics = sorted(name for name, topic in found.items() if any(topic.configs.get(key) for key in _THROTTLED))
    rates = {entity: [key for key in names if key in _RATES] for entity, names in facts.broker_settings.items()}
    rates = {entity: keys for entity, keys in rates.items() if keys}
    limited = any(key in _RATES[:2] for keys in rates.values() for key in keys)
    seen = [*(f"topic {name}" for name in topics), *(f"{_entity(entity)} {', '.join(keys)}" for entity, keys in rates.items())]
    if topics and limited:
        yield blocks("B14", f"replication throttles are in force: {summarize(seen)}")
    elif seen:
        yield warns("B14", f"replication throttles are left over: {summarize(seen)}")


def _dynamic(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    ours = {entity: [key for key in names if key not in _RATES] for entity, names in sorted(facts.broker_settings.items())}
    seen = [f"{_entity(entity)}: {', '.join(names)}" for entity, names in ours.items() if names]
    topics = topics_in_zookeeper(view)
    if unclean := sorted(name for name, topic in topics.items() if "unclean.leader.election.enable" in topic.configs):
        seen.append(f"topics with unclean.leader.election.enable: {summarize(unclean)}")
    if seen:
        yield warns("W13", f"settings that were changed dynamically: {'; '.join(seen)}")


def _policies(_: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    configs = zookeeper_configs(facts)
    found = sorted({f"{key} {value}" for key in _POLICIES for value in values(configs, key).values()})
    if found:
        yield warns("B8a", f"brokers check changes with a custom policy: {summarize(found)}")


def _reassigning(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """The znode is one half: since Kafka 2.4 reassignments are begun through the API."""
    moving = facts.environment.moving
    if moving:
        yield blocks("S04", f"partitions are being reassigned: {summarize(moving)}")
    if moving is None and not (view.zk and view.zk.reassigning):
        yield unknown("S04", "no broker listed the reassignments that are under way")


def _other_tools(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    topics = {*topics_in_zookeeper(view), *(partition.topic for partition in view.partitions or ())}
    signs = [f"topic {name}" for name in sorted(topics) if name.startswith(_CRUISE_CONTROL)]
    tree = facts.environment.tree
    if tree and tree.cmak:
        signs.append("CMAK's state in ZooKeeper (/kafka-manager)")
    signs += _changes(tree, facts) if tree else []
    if signs:
        yield warns("W9", f"other tools act on this cluster: {summarize(signs)}")
    if tree and tree.cmak is None:
        yield unknown("W9", "whether CMAK uses this ensemble could not be read (/kafka-manager)")


def _changes(tree: ZooKeeperTree, facts: PreflightFacts) -> list[str]:
    """Recent changes, without those of the times in which kmigrate acted: a new leader writes every setting again."""
    now = facts.environment.now
    others = ((what, when) for what, when in tree.changed if not any(begin <= when <= end for begin, end in facts.own_acts))
    recent = sorted((now - when, what) for what, when in others if now - when < _RECENT)
    return [f"{what}, changed {max(0.0, age):.0f} s ago" for age, what in recent]


def _groups(view: ClusterView, _: PreflightFacts) -> Iterator[PreflightFinding]:
    if view.zk is not None and not gates.no_live_groups(view).met:
        yield warns(
            "G21",
            f"groups that still use ZooKeeper (the DAG {gates.mover(view.name)} moves them): {gates.zookeeper_groups(view)}",
        )


def _stops(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """What may end a node before Kafka has stopped it: kmigrate's own timeout, and the machine's service manager."""
    nodes = tuple(facts.spec.nodes())
    if short := [f"{node.name} {node.hosts.stop_timeout:g} s" for node in nodes if node.hosts.stop_timeout <= KAFKA_STOPS]:
        yield warns("W7", f"hosts.stop_timeout is no longer than Kafka's own {KAFKA_STOPS:g} s: {summarize(short)}")
    managed = {node.name: _process(view, node).killed_after for node in nodes}
    killed = [f"{name} {after:g} s" for name, after in managed.items() if after is not None and after <= KAFKA_STOPS]
    if killed:
        yield warns(
            "W7",
            f"the service manager kills nodes before Kafka's own {KAFKA_STOPS:g} s are over (TimeoutStopSec): {summarize(killed)}",
        )
    unread = unread_hosts(view, Cause.UNREAD_PROCESS)
    if unsaid := [name for name, after in managed.items() if after is None and name not in unread]:
        yield unknown(
            "W7", f"when the service manager kills a node that does not stop (90 s is systemd's default): {summarize(unsaid)}"
        )


def _clocks(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Clocks, compared read-only: every node's machine with this one; each broker with ZooKeeper at its registration; ZooKeeper, if ahead."""
    nodes = {node.name: _process(view, node).clock_ahead for node in facts.spec.nodes() if node.hosts.driver != "gone"}
    if off := [f"{name} {ahead:+.1f} s" for name, ahead in nodes.items() if ahead is not None and abs(ahead) > _SKEW]:
        yield warns("W8", f"clocks differ from this machine's: {summarize(off)}")
    environment, tree = facts.environment, facts.environment.tree
    if tree is None:
        return
    skews = {broker: each.broker_time - each.stored_at for broker, each in sorted(tree.registrations.items())}
    if off := [f"broker {broker} {skew:+.1f} s" for broker, skew in skews.items() if abs(skew) > _SKEW]:
        yield warns("W8", f"clocks differed from ZooKeeper's when brokers registered: {summarize(off)}")
    if tree.latest - environment.now > _SKEW:
        yield warns("W8", f"ZooKeeper's clock is at least {tree.latest - environment.now:.1f} s ahead of this machine's")
    unread = unread_hosts(view, Cause.UNREAD_PROCESS)
    if not environment.one_machine and (unsaid := [name for name in nodes if nodes[name] is None and name not in unread]):
        yield unknown("W8", f"how far the clocks of these nodes are from this machine's: {summarize(unsaid)}")
    registered = view.zk.broker_ids if view.zk else ()
    if missing := [node.id for node in facts.spec.brokers if node.id not in skews and node.id in registered]:
        yield unknown("W8", f"registrations without the broker's time: {summarize(missing)}")


def _directories(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """meta.properties of every directory: whose it is, and in which form."""
    listed = {node.id for node in facts.spec.brokers}
    versioned = [f"broker {broker.id} {path}" for broker in view.brokers.values() for path in needs_version_0(broker.files)]
    if versioned:
        yield warns("W10", f"meta.properties of version 1: {summarize(versioned)}")
    for broker in (broker for broker in view.brokers.values() if broker.id in listed):
        for path, other in config_matrix.foreign_owners(broker.id, broker.files.meta).items():
            yield blocks("M01", f"{path} of broker {broker.id} is the directory of broker {other}")
        if broker.files.meta is None and broker.files.properties is not None:
            yield blocks("U05", f"could not read meta.properties of broker {broker.id}")


def _tree(_: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    tree = facts.environment.tree
    if tree is None:
        yield blocks("U05", "could not read settings, users and rules in ZooKeeper")
        return
    if not tree.has_feature:
        yield blocks("B1b", "there is no /feature in ZooKeeper")
    if clash := _generated(tree, facts):
        yield blocks("B2b", f"controller ids that ZooKeeper has given to brokers, or will: {summarize(clash)}")


def _generated(tree: ZooKeeperTree, facts: PreflightFacts) -> list[int]:
    """Controllers whose ids are among those that ZooKeeper generated for brokers: above the highest reserved id."""
    if not tree.generated_ids:
        return []
    reserved = [int(value) for value in values(zookeeper_configs(facts), "reserved.broker.max.id").values() if value.isdecimal()]
    first = (reserved[0] if reserved else 1000) + 1
    return [node.id for node in facts.spec.controllers if first <= node.id < first + tree.generated_ids + len(facts.spec.brokers)]


def _entity(entity: str) -> str:
    return "all brokers" if entity == DEFAULT else f"broker {entity}"


_DIRECTORIES = ("log.dirs", "metadata.log.dir")


def _places(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    for node in facts.spec.controllers:
        files = _files(view, node)
        for path, other in config_matrix.foreign_owners(node.id, files.meta).items():
            yield blocks("M01", f"{path} of controller {node.id} is the directory of node {other}")
        if (theirs := foreign_file(node.id, files.properties)) is not None:
            yield blocks("M01", f"{node.hosts.properties} of controller {node.id} on {node.host} is {theirs}")
        strange = config_matrix.not_its_process(view.controller(node.id))
        if strange is not None and _process(view, node).restart_loop is None:  # reported for every node (`_loops`)
            yield from refused((strange,), "reliability: every act is identified; simulated: a rollback stopped every broker")
        if shared := list(_shared(view, facts, node)):
            yield blocks("M01", f"one place on {node.host} for controller {node.id} and another: {summarize(shared)}")
        yield from _ports(view, facts, node)


def _loops(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Units that a service manager starts again and again: of a broker, and of a controller before it has a file."""
    found = (config_matrix.in_restart_loop(node.name, _process(view, node)) for node in facts.spec.nodes())
    yield from refused((reason for reason in found if reason is not None), "systemd.service, Restart=")


def _other_file(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Processes that were started with another file than the one which kmigrate would write."""
    for node in facts.spec.brokers:
        named = _process(view, node).named
        if named and node.hosts.properties not in named:
            text = f"whether {node.name} reads {node.hosts.properties}: its process was started with {summarize(named)}"
            yield unknown("R13", text)


def _ports(view: ClusterView, facts: PreflightFacts, node: NodeSpec) -> Iterator[PreflightFinding]:
    """A controller beside a node with a listener on its port; with another `connect` it may have a network of its own."""
    for other in _beside(facts, node):
        opened = _opened(view, facts, other)
        taken = [f"{port} ({opened[port]} of {other.name})" for port in sorted(_opened(view, facts, node).keys() & opened.keys())]
        if taken and _one_system(node, other):
            yield blocks("M01", f"controller {node.id} on {node.host} would have the port of another node: {summarize(taken)}")
        elif taken:
            yield unknown(
                "M01",
                f"whether controller {node.id} on {node.host} has another network than the node with its port: {summarize(taken)}",
            )


def _beside(facts: PreflightFacts, node: NodeSpec) -> Iterator[NodeSpec]:
    """The other nodes on a controller's machine; of two controllers one names the other."""
    later = (other for other in facts.spec.controllers if other.id > node.id)
    return (other for other in (*facts.spec.brokers, *later) if machine(other.host) == machine(node.host))


def _opened(view: ClusterView, facts: PreflightFacts, node: NodeSpec) -> dict[int, str]:
    """The ports of a node: a broker's from its file, a controller's as its file will have them."""
    if node.role is NodeRole.BROKER:
        properties = _files(view, node).properties
        return {} if properties is None else listener_ports(properties)
    listeners = setting(facts.spec.controller_properties, "listeners")
    return listener_ports({"listeners": listeners}) if listeners else {node.port: facts.spec.controller_listener}


def _one_system(one: NodeSpec, other: NodeSpec) -> bool:
    """Whether both run in one operating system: for containers `connect` or the SSH connection's port differs."""
    ways = {(node.hosts.driver, node.hosts.connect, node.hosts.ssh_conn_id) for node in (one, other)}
    return len(ways) == 1 and "{id}" not in " ".join(one.hosts.connect)


def _shared(view: ClusterView, facts: PreflightFacts, node: NodeSpec) -> Iterator[str]:
    """Directories of nodes on one machine that are equal or nested, as far as paths show.

    What was read at that path decides: nodes in containers of one host may have one path and two places.
    """
    seen = _files(view, node).meta or {}
    for other in _beside(facts, node):
        for mine in _dirs(view, facts, node):
            for path in _dirs(view, facts, other):
                theirs = (_files(view, other).meta or {}).get(path)
                if _overlap(mine, path) and not _two_places(seen.get(mine), theirs, mine == path):
                    yield f"{mine} and {path} of {other.name}"


def _two_places(mine: Mapping[str, str] | None, theirs: Mapping[str, str] | None, same_path: bool) -> bool:
    """Whether one path led to two directories: the other node's names its owner, while ours was read and names none."""
    return same_path and mine is not None and not mine and bool(theirs)


def _dirs(view: ClusterView, facts: PreflightFacts, node: NodeSpec) -> tuple[str, ...]:
    """A broker's directories from its file, a controller's as its file will have them."""
    if node.role is NodeRole.BROKER:
        return tuple(_files(view, node).meta or ())
    extra = [setting(facts.spec.controller_properties, key) or "" for key in _DIRECTORIES]
    listed = [part.strip() for value in (node.log_dir or "", *extra) for part in value.split(",")]
    return tuple(dict.fromkeys(path for path in listed if path))


def _overlap(one: str, other: str) -> bool:
    first, second = PurePosixPath(one), PurePosixPath(other)
    return first == second or first in second.parents or second in first.parents


def _files(view: ClusterView, node: NodeSpec) -> NodeFiles:
    seen = _seen(view, node)
    return seen.files if seen else NodeFiles()


def _process(view: ClusterView, node: NodeSpec) -> Process:
    seen = _seen(view, node)
    return seen.process if seen else Process()


def _seen(view: ClusterView, node: NodeSpec) -> Broker | Controller | None:
    return (view.brokers if node.role is NodeRole.BROKER else view.controllers).get(node.id)


CHECKS: tuple[Check, ...] = (
    _tree,
    _reassigning,
    _throttles,
    _dynamic,
    _policies,
    _groups,
    _stops,
    _clocks,
    _other_tools,
    _directories,
    _loops,
    _other_file,
    _places,
)
