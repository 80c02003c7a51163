"""Preflight's checks of systemd units: what a stop ends beside its own node, what is stopped with it, and which file a start names."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from airflow_provider_kmigrate.core.cluster_state.model import ClusterView, ProcessState, ServiceUnit
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole, NodeSpec, normalize_host
from airflow_provider_kmigrate.core.migration.gates import (
    describe_mixed_releases,
    describe_software_changes,
    describe_unknown_software,
)
from airflow_provider_kmigrate.core.node_files.service_unit import (
    find_closed,
    find_conflicts,
    find_dependents,
    find_missing_stop,
    find_reaching_commands,
    find_unclear_commands,
    find_zookeeper_needs,
    is_of_cluster,
    is_of_zookeeper,
)
from airflow_provider_kmigrate.core.preflight.actors import find_process, is_one_system
from airflow_provider_kmigrate.core.preflight.findings import Check, PreflightFacts, PreflightFinding, blocks, unknown, warns
from airflow_provider_kmigrate.core.shared.text import count_of, join_ids, summarize


def _check_stops(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """KIP-979: Kafka's stop script ends every broker and controller of its machine. Alone there, it ends no other."""
    reaching, unclear = list[str](), list[str]()
    for node, unit in _units(view, facts):
        if others := _describe_neighbours(facts, node, unit):
            where = f"{_name_unit(node, unit)} beside {others}"
            if commands := find_reaching_commands(unit.shown):
                reaching.append(f"{where} ({summarize(commands)})")
            if commands := find_unclear_commands(unit.shown):
                unclear.append(f"{where} ({summarize(commands)})")
    if reaching:
        yield blocks("B19", f"the stop of one node would end another one on its machine: {summarize(reaching)}")
    units = [(_name_unit(node, unit), find_missing_stop(unit.shown, unit.behind)) for node, unit in _units(view, facts)]
    if left := [f"{name} ({setting})" for name, setting in units if setting]:
        yield blocks("B19", f"a stop of these units would leave Kafka running: {summarize(left)}")
    if unclear:
        yield unknown("B19", f"whether these commands end another node of their machine: {summarize(unclear)}")


def _check_dependents(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """With a unit systemd stops what requires it, and a later start of the unit does not start that again (measured)."""
    stopped = [(f"{unit_name} with {_name_unit(node, unit)}", is_of_cluster(unit_name)) for node, unit in _units(view, facts)
               for unit_name in find_dependents(unit.shown)]  # fmt: skip
    if cluster_units := [text for text, of_cluster in stopped if of_cluster]:
        yield blocks("B19", f"systemd would stop nodes together, and start only one of them again: {summarize(cluster_units)}")
    if others := [text for text, of_cluster in stopped if not of_cluster]:
        yield warns(
            "B19", f"systemd stops services at each restart of a node, and does not start them again: {summarize(others)}"
        )


def _check_conflicts(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """`Conflicts=`: systemd stops one of the two units when the other starts, whichever of them says so."""
    units = list(_units(view, facts))
    exclusive = [
        f"{_name_unit(node, unit)} and {unit_name}"
        for node, unit in units
        for unit_name in find_conflicts(unit.shown)
        if is_of_zookeeper(unit_name)
    ]
    exclusive += [
        f"{_name_unit(*first)} and {_name_unit(*second)}"
        for first, second in combinations(units, 2)
        if _exclude_each_other(*first, *second)
    ]
    if exclusive:
        yield blocks("B19", f"systemd stops one of two units when the other starts (Conflicts=): {summarize(exclusive)}")


def _exclude_each_other(node: NodeSpec, unit: ServiceUnit, other: NodeSpec, other_unit: ServiceUnit) -> bool:
    is_one_machine = normalize_host(node.host) == normalize_host(other.host) and is_one_system(node, other)
    return is_one_machine and other_unit.shown.get("Id") in find_conflicts(unit.shown)  # systemd shows it of both (ConflictedBy)


def _check_folders(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """A copy of the broker's unit: it may write to the broker's folders alone, and the controller's is formatted from outside of it."""
    closed = [
        f"{_name_unit(node, unit)} to {node.log_dir} ({setting})"
        for node, unit in _units(view, facts)
        if node.role is NodeRole.CONTROLLER and (setting := find_closed(unit.shown, node.log_dir or "/"))
    ]
    if closed:
        text = "Add `ReadWritePaths=` with that folder to the unit, or `PrivateTmp=no`, then run `systemctl daemon-reload` on its machine"
        yield blocks("M03", f"units whose process could not write: {summarize(closed)}. {text}")


def _check_overrides(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """`--override`: it wins over the file, and the controllers' unit is often a copy of the brokers'."""
    hidden = [
        f"{_name_unit(node, unit)} ({', '.join(keys)})"
        for node, unit in _units(view, facts)
        if (keys := list_hidden_keys(node.role, unit))
    ]
    if hidden:
        yield blocks("R13", f"units start Kafka with --override of keys that kmigrate must write: {summarize(hidden)}")


def list_hidden_keys(role: NodeRole, unit: ServiceUnit | None) -> list[str]:
    """The keys of the node's file that its unit hides; of a broker's those with which a later stage would not start."""
    keys = unit.shown.get("Overrides", "").split() if unit else []
    return sorted({key for key in keys if role is NodeRole.CONTROLLER or key in _CHANGED})


_CHANGED = frozenset({"listener.security.protocol.map", "authorizer.class.name", "control.plane.listener.name"})
"""What brokers have in ZooKeeper mode and need otherwise, or not at all, later on."""


def _check_zookeeper_needs(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    needs = [
        f"{_name_unit(node, unit)} ({', '.join(settings)})"
        for node, unit in _units(view, facts)
        if (settings := find_zookeeper_needs(unit.shown))
    ]
    if needs:
        yield warns(
            "W23", f"when ZooKeeper is switched off, systemd stops these units, and starts them no more: {summarize(needs)}"
        )


def _check_started_file(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Units and processes that were started with another file than the one which kmigrate would write."""
    other_files = list[str]()
    for node in facts.spec.nodes():
        process = find_process(view, node)
        is_read = node.hosts.properties in process.named
        if process.unit and process.unit.starts and not is_read:
            other_files.append(
                f"{_name_unit(node, process.unit)} with {summarize(process.unit.starts)}, not {node.hosts.properties}"
            )
        elif process.named and not is_read and node.role is NodeRole.BROKER:  # of a controller M01 judges whose process it is
            text = f"whether {node.name} reads {node.hosts.properties}: its process was started with {summarize(process.named)}"
            yield unknown("R13", text)
    if other_files:
        yield blocks("R13", f"units start Kafka with another file than kmigrate writes: {summarize(other_files)}")


def _check_software(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """The release and the Java on each disk are those that its node, or the brokers, run."""
    nodes = [(node, process) for node in facts.spec.nodes() if (process := find_process(view, node)).software is not None]
    changed = [
        f"{node.name}: {' and '.join(changes)}"
        for node, process in nodes
        if process.software and (changes := describe_software_changes(process.software))
    ]
    if changed:
        yield blocks("R15", f"the next start of these nodes is of other software: {summarize(changed)}")
    if mixed := describe_mixed_releases((*view.brokers.values(), *view.controllers.values())):
        yield blocks("R15", f"nodes run different releases: {mixed}")
    unknown_parts = [
        f"{node.name} ({parts})"
        for node, process in nodes
        if process.software and (parts := describe_unknown_software(process.software, runs=process.state is ProcessState.RUNNING))
    ]
    if unknown_parts:
        yield unknown("R15", f"whether a restart starts the software that runs: {summarize(unknown_parts)}")
    releases = sorted({process.software.release for node, process in nodes if process.software and node.role is NodeRole.BROKER})
    others = [
        f"{node.name} (Kafka {process.software.disk_release})"
        for node, process in nodes
        if process.software
        and process.software.disk_release
        and not process.software.release
        and any(releases)
        and process.software.disk_release not in releases
    ]
    if others:
        yield blocks(
            "R15", f"brokers run Kafka {join_ids(filter(None, releases))}, the disks of others have another: {summarize(others)}"
        )


def _units(view: ClusterView, facts: PreflightFacts) -> Iterator[tuple[NodeSpec, ServiceUnit]]:
    """The nodes whose machines have systemd, with what it has loaded for them."""
    return ((node, unit) for node in facts.spec.nodes() if (unit := find_process(view, node).unit) is not None)


def _name_unit(node: NodeSpec, unit: ServiceUnit) -> str:
    return f"{unit.shown.get('Id', 'the unit')} of {node.name}"


def _describe_neighbours(facts: PreflightFacts, node: NodeSpec, unit: ServiceUnit) -> str:
    """The other Kafka nodes of a node's machine: those of the cluster file, else those that run; empty for none."""
    host = normalize_host(node.host)
    others = [
        other.name
        for other in facts.spec.nodes()
        if other != node and normalize_host(other.host) == host and is_one_system(node, other)
    ]
    return join_ids(others) or (count_of(unit.beside, "other Kafka process", "other Kafka processes") if unit.beside else "")


CHECKS: tuple[Check, ...] = (
    _check_stops,
    _check_dependents,
    _check_conflicts,
    _check_folders,
    _check_zookeeper_needs,
    _check_started_file,
    _check_overrides,
    _check_software,
)
