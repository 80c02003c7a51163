"""Preflight's checks of other activity: throttles, reassignments, dynamic settings, other tools, clocks and time limits.

Also of the places that the cluster file gives to controllers: a file and a directory that belong to no other node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from airflow_provider_kmigrate.core.cluster_state.model import (
    DEFAULT,
    Broker,
    BrokerMode,
    Cause,
    ClusterView,
    Controller,
    NodeFiles,
    Process,
    ZooKeeperTree,
)
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole, NodeSpec, normalize_host
from airflow_provider_kmigrate.core.migration import gates
from airflow_provider_kmigrate.core.node_files import config_matrix
from airflow_provider_kmigrate.core.node_files.config_matrix import (
    describe_foreign_file,
    is_true,
    listener_ports,
    read_setting,
    version_1_directories,
)
from airflow_provider_kmigrate.core.node_files.service_unit import KAFKA_STOPS, find_kill
from airflow_provider_kmigrate.core.preflight.findings import (
    Check,
    PreflightFacts,
    PreflightFinding,
    blockers_from_reasons,
    blocks,
    topics_in_zookeeper,
    unknown,
    values_by_broker,
    warns,
    zookeeper_broker_files,
    zookeeper_configs,
)
from airflow_provider_kmigrate.core.preflight.unread import (
    are_all_brokers_reported_unread,
    is_zookeeper_reported_unread,
    unread_hosts,
)
from airflow_provider_kmigrate.core.shared.text import join_ids, summarize

_RECENT = 900.0  # seconds that Kafka keeps notifications of changed settings
_SKEW = 5.0  # seconds; a registration takes its own time, up to a second or two
_THROTTLED = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
_RATES = (
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
)
_CRUISE_CONTROL = ("__CruiseControlMetrics", "__KafkaCruiseControl")
_BALANCER = "confluent.balancer.enable"
_POLICIES = ("alter.config.policy.class.name", "create.topic.policy.class.name")


def _check_throttles(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Replicas are throttled only if a topic names them and a broker has a rate."""
    all_topics = topics_in_zookeeper(view)
    topics = sorted(name for name, topic in all_topics.items() if any(topic.configs.get(key) for key in _THROTTLED))
    rates = {entity: [key for key in names if key in _RATES] for entity, names in facts.broker_settings.items()}
    rates = {entity: keys for entity, keys in rates.items() if keys}
    limited = any(key in _RATES[:2] for keys in rates.values() for key in keys)
    throttles = [
        *(f"topic {name}" for name in topics),
        *(f"{_format_entity(entity)} {', '.join(keys)}" for entity, keys in rates.items()),
    ]
    if topics and limited:
        yield blocks("B14", f"replication throttles are in force: {summarize(throttles)}")
    elif throttles:
        yield warns("B14", f"replication throttles are left over: {summarize(throttles)}")


def _check_dynamic_settings(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    settings_by_entity = {
        entity: [key for key in names if key not in _RATES] for entity, names in sorted(facts.broker_settings.items())
    }
    changed_settings = [f"{_format_entity(entity)}: {', '.join(names)}" for entity, names in settings_by_entity.items() if names]
    topics = topics_in_zookeeper(view)
    if unclean := sorted(name for name, topic in topics.items() if "unclean.leader.election.enable" in topic.configs):
        changed_settings.append(f"topics with unclean.leader.election.enable: {summarize(unclean)}")
    if changed_settings:
        yield warns("W13", f"settings that were changed dynamically: {'; '.join(changed_settings)}")


def _check_policies(_: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    configs = zookeeper_configs(facts)
    policies = sorted({f"{key} {value}" for key in _POLICIES for value in values_by_broker(configs, key).values()})
    if policies:
        yield warns("B8a", f"brokers check changes with a custom policy: {summarize(policies)}")


def _check_reassignments(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """The znode is one half: since Kafka 2.4 reassignments are begun through the API."""
    moving = facts.environment.moving
    if moving:
        yield blocks("S04", f"partitions are being reassigned: {summarize(moving)}")
    if moving is None and not (view.zk and view.zk.reassigning) and not are_all_brokers_reported_unread(view, facts):
        yield unknown("S04", "no broker listed the reassignments that are under way")


def _check_other_tools(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    topics = {*topics_in_zookeeper(view), *(partition.topic for partition in view.partitions or ())}
    signs = [f"topic {name}" for name in sorted(topics) if name.startswith(_CRUISE_CONTROL)]
    tree = facts.environment.tree
    if tree and tree.cmak:
        signs.append("CMAK's state in ZooKeeper (/kafka-manager)")
    if balanced := [broker for broker, keys in zookeeper_broker_files(view).items() if is_true(keys, _BALANCER)]:
        signs.append(f"Confluent Server's own balancer ({_BALANCER} of brokers {join_ids(balanced)})")
    signs += _recent_foreign_changes(tree, facts) if tree else []
    if signs:
        yield warns("W9", f"other tools act on this cluster: {summarize(signs)}")
    if tree and tree.cmak is None:
        yield unknown("W9", "whether CMAK uses this ensemble could not be read (/kafka-manager)")


def _recent_foreign_changes(tree: ZooKeeperTree, facts: PreflightFacts) -> list[str]:
    """Recent changes, without those of the times in which kmigrate acted: a new leader writes every setting again."""
    now = facts.environment.now
    foreign_changes = (
        (what, when) for what, when in tree.changed if not any(begin <= when <= end for begin, end in facts.own_acts)
    )
    recent = sorted((now - when, what) for what, when in foreign_changes if now - when < _RECENT)
    return [f"{what}, changed {max(0.0, age):.0f} s ago" for age, what in recent]


def _check_groups(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Groups move first: they block until a broker has been rolled, unless the cluster file names them all as later ones."""
    if view.zk is None or gates.no_group_on_zookeeper(view).met:
        return
    unnamed = sorted(set(view.zk.live_groups) - set(facts.spec.later_groups))
    begun = bool(view.in_mode(BrokerMode.MIGRATION, BrokerMode.KRAFT))
    text = f"groups that still use ZooKeeper (the DAG {gates.consumers_dag_id(view.name)} moves them): {gates.describe_zookeeper_groups(view)}"
    if begun or not unnamed:
        yield warns("G21", text)
        return
    early = f". {early_text}" if (early_text := gates.describe_early_breaks(view)) else ""
    accepted = f"`later_groups: [{summarize(unnamed)}]` in the cluster file lets the rolls begin"
    yield blocks(
        "G21",
        f"{text}. They move first. {accepted}: these groups work until the restart of the last broker, which waits for them{early}",
    )


def _check_storm_spouts(_: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """No gate waits for them: their offsets are their own, and only their topology says whether it finds brokers in ZooKeeper."""
    tree = facts.environment.tree
    if tree and tree.storm_spouts:
        text = f"Storm spouts keep their offsets in this ensemble: {summarize(tree.storm_spouts)}"
        yield warns(
            "G21",
            f"{text}. One that looks brokers up in ZooKeeper (`ZkHosts`) finds none after the last broker's restart into KRaft mode",
        )
    if tree and tree.storm_spouts is None:
        yield unknown(
            "G21",
            "whether Storm spouts keep offsets in this ensemble: it has too many znodes to read, or an answer was missing",
        )


def _check_stop_timeouts(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """What may end a node before Kafka has stopped it: kmigrate's own timeout, and the machine's service manager."""
    nodes = tuple(facts.spec.nodes())
    if short := [f"{node.name} {node.hosts.stop_timeout:g} s" for node in nodes if node.hosts.stop_timeout <= KAFKA_STOPS]:
        yield warns("W7", f"hosts.stop_timeout is no longer than Kafka's own {KAFKA_STOPS:g} s: {summarize(short)}")
    managed = {node.name: find_process(view, node).killed_after for node in nodes}
    killed = [f"{name} {after:g} s" for name, after in managed.items() if after is not None and after <= KAFKA_STOPS]
    if killed:
        yield warns(
            "W7",
            f"the service manager kills nodes before Kafka's own {KAFKA_STOPS:g} s are over (TimeoutStopSec): {summarize(killed)}",
        )
    units = {node.name: find_process(view, node).unit for node in nodes}
    if kills := [f"{name} ({kill})" for name, unit in units.items() if unit and (kill := find_kill(unit.shown, unit.behind))]:
        yield warns("W7", f"a stop of these units kills Kafka instead of stopping it: {summarize(kills)}")
    unread = unread_hosts(view, Cause.UNREAD_PROCESS)
    if unreported := [name for name, after in managed.items() if after is None and name not in unread]:
        yield unknown(
            "W7",
            f"after how long a node that does not stop is killed (90 s is systemd's default, 10 s that of `docker stop` and supervisord): {summarize(unreported)}",
        )


def _check_clocks(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Clocks, compared read-only: every node's machine with this one; each broker with ZooKeeper at its registration; ZooKeeper, if ahead."""
    nodes = {node.name: find_process(view, node).clock_ahead for node in facts.spec.nodes() if node.hosts.driver != "gone"}
    if skewed := [f"{name} {ahead:+.1f} s" for name, ahead in nodes.items() if ahead is not None and abs(ahead) > _SKEW]:
        yield warns("W8", f"clocks differ from this machine's: {summarize(skewed)}")
    environment, tree = facts.environment, facts.environment.tree
    if tree is None:
        return
    skews = {
        broker: registration.broker_time - registration.stored_at for broker, registration in sorted(tree.registrations.items())
    }
    if skewed := [f"broker {broker} {skew:+.1f} s" for broker, skew in skews.items() if abs(skew) > _SKEW]:
        yield warns("W8", f"clocks differed from ZooKeeper's when brokers registered: {summarize(skewed)}")
    if tree.latest - environment.now > _SKEW:
        yield warns("W8", f"ZooKeeper's clock is at least {tree.latest - environment.now:.1f} s ahead of this machine's")
    unread = unread_hosts(view, Cause.UNREAD_PROCESS)
    if not environment.one_machine and (unreported := [name for name in nodes if nodes[name] is None and name not in unread]):
        yield unknown("W8", f"how far the clocks of these nodes are from this machine's: {summarize(unreported)}")
    registered = view.zk.broker_ids if view.zk else ()
    if missing := [node.id for node in facts.spec.brokers if node.id not in skews and node.id in registered]:
        yield unknown("W8", f"registrations without the broker's time: {summarize(missing)}")


def _check_directories(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """meta.properties of every directory: whose it is, and in which form."""
    listed = {node.id for node in facts.spec.brokers}
    versioned = [f"broker {broker.id} {path}" for broker in view.brokers.values() for path in version_1_directories(broker.files)]
    if versioned:
        yield warns("W10", f"meta.properties of version 1: {summarize(versioned)}")
    for broker in (broker for broker in view.brokers.values() if broker.id in listed):
        for path, owner_id in config_matrix.find_foreign_owners(broker.id, broker.files.meta).items():
            yield blocks("M01", f"{path} of broker {broker.id} is the directory of broker {owner_id}")
        if broker.files.meta is None and broker.files.properties is not None:
            yield blocks("U05", f"could not read meta.properties of broker {broker.id}")


def _check_zookeeper_tree(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    tree = facts.environment.tree
    if tree is None and not is_zookeeper_reported_unread(view):
        yield blocks("U05", "could not read settings, users and rules in ZooKeeper")
    if tree is None:
        return
    if not tree.has_feature:
        yield blocks("B1b", "there is no /feature in ZooKeeper")
    if clash := _generated_controller_ids(tree, facts):
        yield blocks("B2b", f"controller ids that ZooKeeper has given to brokers, or will: {summarize(clash)}")


def _generated_controller_ids(tree: ZooKeeperTree, facts: PreflightFacts) -> list[int]:
    """Controllers whose ids are among those that ZooKeeper generated for brokers: above the highest reserved id."""
    if not tree.generated_ids:
        return []
    reserved = [
        int(value) for value in values_by_broker(zookeeper_configs(facts), "reserved.broker.max.id").values() if value.isdecimal()
    ]
    first_generated_id = (reserved[0] if reserved else 1000) + 1
    return [
        node.id
        for node in facts.spec.controllers
        if first_generated_id <= node.id < first_generated_id + tree.generated_ids + len(facts.spec.brokers)
    ]


def _format_entity(entity: str) -> str:
    return "all brokers" if entity == DEFAULT else f"broker {entity}"


_DIRECTORIES = ("log.dirs", "metadata.log.dir")


def _check_controller_places(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    for node in facts.spec.controllers:
        files = _node_files(view, node)
        for path, owner_id in config_matrix.find_foreign_owners(node.id, files.meta).items():
            yield blocks("M01", f"{path} of controller {node.id} is the directory of node {owner_id}")
        if (foreign_owner := describe_foreign_file(node.id, files.properties)) is not None:
            yield blocks("M01", f"{node.hosts.properties} of controller {node.id} on {node.host} is {foreign_owner}")
        strange = config_matrix.foreign_process_reason(view.controller(node.id))
        if (
            strange is not None and find_process(view, node).restart_loop is None
        ):  # reported for every node (`_check_restart_loops`)
            yield from blockers_from_reasons(
                (strange,), "reliability: every act is identified; simulated: a rollback stopped every broker"
            )
        if shared := list(_find_shared_directories(view, facts, node)):
            yield blocks("M01", f"one place on {node.host} for controller {node.id} and another: {summarize(shared)}")
        yield from _check_ports(view, facts, node)


def _check_restart_loops(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Units that a service manager starts again and again: of a broker, and of a controller before it has a file."""
    loop_reasons = (config_matrix.restart_loop_reason(node.name, find_process(view, node)) for node in facts.spec.nodes())
    yield from blockers_from_reasons((reason for reason in loop_reasons if reason is not None), "systemd.service, Restart=")


def _check_ports(view: ClusterView, facts: PreflightFacts, node: NodeSpec) -> Iterator[PreflightFinding]:
    """A controller beside a node with a listener on its port; with another `connect` it may have a network of its own."""
    for other in _nodes_beside(facts, node):
        opened = _node_ports(view, facts, other)
        taken = [
            f"{port} ({opened[port]} of {other.name})" for port in sorted(_node_ports(view, facts, node).keys() & opened.keys())
        ]
        if taken and is_one_system(node, other):
            yield blocks("M01", f"controller {node.id} on {node.host} would have the port of another node: {summarize(taken)}")
        elif taken:
            yield unknown(
                "M01",
                f"whether controller {node.id} on {node.host} has another network than the node with its port: {summarize(taken)}",
            )


def _nodes_beside(facts: PreflightFacts, node: NodeSpec) -> Iterator[NodeSpec]:
    """The other nodes on a controller's machine; of two controllers one names the other."""
    later = (other for other in facts.spec.controllers if other.id > node.id)
    return (other for other in (*facts.spec.brokers, *later) if normalize_host(other.host) == normalize_host(node.host))


def _node_ports(view: ClusterView, facts: PreflightFacts, node: NodeSpec) -> dict[int, str]:
    """The ports of a node: a broker's from its file, a controller's as its file will have them, and those of the gauges of its Java."""
    unit = find_process(view, node).unit
    ports = [int(port) for port in (unit.shown.get("Ports", "").split() if unit else ())]
    return dict.fromkeys(ports, "JMX or a Java agent") | _listener_ports(view, facts, node)


def _listener_ports(view: ClusterView, facts: PreflightFacts, node: NodeSpec) -> dict[int, str]:
    if node.role is NodeRole.BROKER:
        properties = _node_files(view, node).properties
        return {} if properties is None else listener_ports(properties)
    listeners = read_setting(facts.spec.controller_properties, "listeners")
    return listener_ports({"listeners": listeners}) if listeners else {node.port: facts.spec.controller_listener}


def is_one_system(first_node: NodeSpec, second_node: NodeSpec) -> bool:
    """Whether both run in one operating system: for containers `connect` or the SSH connection's port differs."""
    ways = {(node.hosts.driver, node.hosts.connect, node.hosts.ssh_conn_id) for node in (first_node, second_node)}
    return len(ways) == 1 and "{id}" not in " ".join(first_node.hosts.connect)


def _find_shared_directories(view: ClusterView, facts: PreflightFacts, node: NodeSpec) -> Iterator[str]:
    """Directories of nodes on one machine that are equal or nested, as far as paths show.

    What was read at that path decides: nodes in containers of one host may have one path and two places.
    """
    own_meta = _node_files(view, node).meta or {}
    for other in _nodes_beside(facts, node):
        for mine in _node_directories(view, facts, node):
            for path in _node_directories(view, facts, other):
                other_meta = (_node_files(view, other).meta or {}).get(path)
                if _paths_overlap(mine, path) and not _are_two_directories(own_meta.get(mine), other_meta, mine == path):
                    yield f"{mine} and {path} of {other.name}"


def _are_two_directories(mine: Mapping[str, str] | None, theirs: Mapping[str, str] | None, same_path: bool) -> bool:
    """Whether one path led to two directories: the other node's names its owner, while ours was read and names none."""
    return same_path and mine is not None and not mine and bool(theirs)


def _node_directories(view: ClusterView, facts: PreflightFacts, node: NodeSpec) -> tuple[str, ...]:
    """A broker's directories from its file, a controller's as its file will have them."""
    if node.role is NodeRole.BROKER:
        return tuple(_node_files(view, node).meta or ())
    extra = [read_setting(facts.spec.controller_properties, key) or "" for key in _DIRECTORIES]
    listed = [part.strip() for value in (node.log_dir or "", *extra) for part in value.split(",")]
    return tuple(dict.fromkeys(path for path in listed if path))


def _paths_overlap(path: str, other_path: str) -> bool:
    first, second = PurePosixPath(path), PurePosixPath(other_path)
    return first == second or first in second.parents or second in first.parents


def _node_files(view: ClusterView, node: NodeSpec) -> NodeFiles:
    observed_node = _find_node(view, node)
    return observed_node.files if observed_node else NodeFiles()


def find_process(view: ClusterView, node: NodeSpec) -> Process:
    """A node's process, an unknown one if the view has none."""
    observed_node = _find_node(view, node)
    return observed_node.process if observed_node else Process()


def _find_node(view: ClusterView, node: NodeSpec) -> Broker | Controller | None:
    return (view.brokers if node.role is NodeRole.BROKER else view.controllers).get(node.id)


CHECKS: tuple[Check, ...] = (
    _check_zookeeper_tree,
    _check_reassignments,
    _check_throttles,
    _check_dynamic_settings,
    _check_policies,
    _check_groups,
    _check_storm_spouts,
    _check_stop_timeouts,
    _check_clocks,
    _check_other_tools,
    _check_directories,
    _check_restart_loops,
    _check_controller_places,
)
