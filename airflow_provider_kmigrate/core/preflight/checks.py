"""What must hold before anything of a cluster is touched, judged on one view and `PreflightFacts`.

Every check only reads. All findings come in one report, so that the operator can fix them together. What could not be read is a
finding too: it blocks, or is named as not known. A migration under way is judged by what still matters: a stopped run may begin
again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from airflow_provider_kmigrate.core.cluster_state.model import (
    Broker,
    BrokerMode,
    Cause,
    ClusterView,
    Fields,
    ProcessState,
    version_of,
)
from airflow_provider_kmigrate.core.migration import coordinator, gates
from airflow_provider_kmigrate.core.migration.coordinator import Agreement, CoordinatorTopic
from airflow_provider_kmigrate.core.migration.phase import kraft_owns
from airflow_provider_kmigrate.core.node_files.config_matrix import read_setting
from airflow_provider_kmigrate.core.preflight import (
    actors,
    controllers,
    jaas,
    limits,
    machines,
    made,
    protection,
    security,
    switches,
    units,
    unread,
    versions,
    written,
)
from airflow_provider_kmigrate.core.preflight.findings import (
    Check,
    PreflightFacts,
    PreflightFinding,
    Severity,
    blockers_from_reasons,
    blocks,
    configured_protocol,
    describe_partitions,
    feature_level,
    format_broker_values,
    has_migration_begun,
    is_kraft,
    topics_in_zookeeper,
    warns,
)
from airflow_provider_kmigrate.core.preflight.made import CheckMade
from airflow_provider_kmigrate.core.shared.text import count_of, summarize

PREFLIGHT_FIELDS = (
    Fields.PROCESSES
    | Fields.FILES
    | Fields.BROKERS
    | Fields.CONTROLLERS
    | Fields.ZOOKEEPER
    | Fields.PARTITIONS
    | Fields.MIN_INSYNC
    | Fields.COORDINATORS
    | Fields.TOPICS
    | Fields.STATE_EPOCH
    | Fields.GROUPS
)
"""What the view must contain."""


def run_checks(view: ClusterView, facts: PreflightFacts) -> tuple[PreflightFinding, ...]:
    """Everything found, the gravest first; empty if nothing forbids the migration. Needs a view of `PREFLIGHT_FIELDS`."""
    all_findings = [finding for check in _CHECKS for finding in check(view, facts)]
    return tuple(sorted(all_findings, key=lambda finding: _GRAVITY[finding.severity]))


def list_checks(view: ClusterView, facts: PreflightFacts) -> tuple[CheckMade, ...]:
    """Every check in its order, with what it saw and found."""
    rows = ((made.row_of(check), check) for check in _CHECKS)
    return tuple(CheckMade(row.about, row.owner, row.saw(view, facts), tuple(check(view, facts))) for row, check in rows)


def blocking_findings(candidates: Iterable[PreflightFinding]) -> tuple[PreflightFinding, ...]:
    """Those that stop a migration."""
    return tuple(finding for finding in candidates if finding.severity is Severity.BLOCK)


def protocol_version(facts: PreflightFacts) -> str | None:
    """The inter.broker.protocol.version of all ZooKeeper-mode brokers, for which controllers must be formatted.

    None if brokers differ or any of them is unknown; a KRaft broker has none and does not count.
    """
    levels = {
        feature_level(configured_protocol(config)) for config in facts.configs.values() if config is None or not is_kraft(config)
    }
    (common_level,) = levels if len(levels) == 1 else (0,)
    return version_of(common_level) if common_level else None


def _check_cluster_identity(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    if not (unread.is_zookeeper_reported_unread(view) and unread.are_all_brokers_reported_unread(view, facts)):
        yield from blockers_from_reasons(gates.wrong_cluster_reasons(view, facts.spec), "reliability: every act is identified")
    if view.zk is not None and view.zk.cluster_id is None:
        yield blocks("Z01", f"there is no /cluster/id under {facts.chroot or '/'} in ZooKeeper")


def _check_node_ids(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    listed, registered = _listed_broker_ids(facts), set(view.zk.broker_ids if view.zk else ())
    assigned = {replica for partition in view.partitions or () for replica in partition.replicas}
    controller_ids = {node.id for node in facts.spec.controllers}
    if clash := sorted(controller_ids & (listed | registered | assigned)):
        yield blocks("B2b", f"controller ids that brokers have, or that partitions name: {summarize(clash)}")
    if unlisted := sorted(registered - listed - controller_ids):
        yield blocks("G36", f"brokers registered in ZooKeeper but not in the cluster file: {summarize(unlisted)}")
    if gone := sorted(assigned - listed - registered - controller_ids):
        yield blocks("B4b", f"partitions are assigned to brokers that do not exist: {summarize(gone)}")


def _check_brokers_alive(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    reported = unread.brokers_reported_unread(view)
    brokers = {node.id: view.brokers.get(node.id) for node in facts.spec.brokers if node.name not in reported}
    if dead_brokers := [i for i, broker in brokers.items() if not _is_alive(broker) and not _is_in_restart_loop(broker)]:
        yield blocks("R01", f"brokers that do not run, answer or register: {summarize(dead_brokers)}")


def _is_in_restart_loop(broker: Broker | None) -> bool:
    """Whether its unit is started again and again, which M08 reports with the end of its log."""
    return broker is not None and broker.process.restart_loop is not None


def _is_alive(broker: Broker | None) -> bool:
    if broker is None or broker.mode is None or broker.process.state is ProcessState.STOPPED:
        return False
    return broker.mode is BrokerMode.KRAFT or broker.in_zookeeper is not False


def _check_in_sync(view: ClusterView, _: PreflightFacts) -> Iterator[PreflightFinding]:
    behind = [partition for partition in view.partitions or () if partition.is_under_replicated or partition.leader < 0]
    if behind:
        yield blocks(
            "S02",
            f"{count_of(len(behind), 'partition is', 'partitions are')} under-replicated or without leader: {summarize(p.name for p in behind)}",
        )


def _check_unfinished_work(view: ClusterView, _: PreflightFacts) -> Iterator[PreflightFinding]:
    if view.zk is None:
        return
    if view.zk.reassigning:
        yield blocks("S04", "a reassignment is running (/admin/reassign_partitions exists)")
    if view.zk.pending_deletions:
        yield blocks("B5", f"topics with an unfinished deletion: {summarize(view.zk.pending_deletions)}")
    if view.zk.controller_epoch is None:
        yield blocks("Z01", "there is no readable /controller_epoch")


def _check_topic_ids(view: ClusterView, _: PreflightFacts) -> Iterator[PreflightFinding]:
    if without := sorted(name for name, topic in topics_in_zookeeper(view).items() if topic.topic_id is None):
        yield blocks("B1b", f"{count_of(len(without), 'topic has', 'topics have')} no id: {summarize(without)}")


def _check_leftovers(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """P06, G04, G05: an earlier migration left nothing, and no running controller would end this one at once."""
    if view.zk is None or has_migration_begun(view):
        return
    hosts = unread.unread_hosts(view, Cause.UNREAD_FILES)
    controller_ids = [node.id for node in facts.spec.controllers if node.name not in hosts]
    running = replace(
        view, controllers={controller.id: controller for controller in view.controllers.values() if controller.answers}
    )
    for gate in (
        gates.fresh_migration(view),
        gates.empty_controllers(view, controller_ids),
        gates.all_controllers_flagged(running),
    ):
        yield from blockers_from_reasons(gate.reasons, "measured: topics were deleted")


def _check_epochs(view: ClusterView, _: PreflightFacts) -> Iterator[PreflightFinding]:
    """What a rollback without the epoch guard leaves behind; while KRaft owns the cluster, its epochs are not judged."""
    if not kraft_owns(view) and gates.has_epoch_ahead(view):  # epochs that were not read: the field is reported as unread
        source = "KAFKA-20488; measured: writes stop when one broker fails"
        yield from blockers_from_reasons(gates.leaders_can_move(view).reasons, source)


def _check_coordinators(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    if view.partitions is None:
        return
    existing = list(coordinator.list_coordinator_topics(view))
    for topic in (topic for topic in coordinator.TOPICS if topic not in {existing_topic for existing_topic, _, _ in existing}):
        counts = _configured_counts(facts, topic)
        if len(set(counts.values())) > 1:
            yield blocks(
                "B18",
                f"{topic.name} does not exist yet, and brokers would give it different counts: {format_broker_values(counts)}",
            )
    for topic, broker_counts, count in existing:
        unchanged = view.zk is not None and view.zk.topic_versions.get(topic.name) == 0
        configured = _configured_counts(facts, topic) if unchanged else None
        verdict = coordinator.judge_topic(view, topic, broker_counts, count, _listed_broker_ids(facts), configured=configured)
        severity = Severity.WARN if verdict.agreement is Agreement.DEGENERATE else Severity.BLOCK
        if severity is Severity.WARN and not unchanged and set(_configured_counts(facts, topic).values()) - {count}:
            severity = (
                Severity.UNKNOWN
            )  # changed since it was created, and brokers may still use the number they are configured with
        for reason in verdict.reasons:
            yield PreflightFinding(reason, severity, _STARTUP)
    yield from blockers_from_reasons(coordinator.topics_not_expanded(view).reasons, _STARTUP)


_STARTUP = "KIP-895; GroupCoordinator startup"


def _configured_counts(facts: PreflightFacts, topic: CoordinatorTopic) -> dict[int, int]:
    configured = {broker: read_setting(config, topic.setting) for broker, config in facts.configs.items() if config}
    return {broker: int(value) for broker, value in configured.items() if value and value.isdecimal()}


def _check_replication(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    needed = view.min_insync or {}
    single = [partition for partition in view.partitions or () if len(partition.replicas) == 1]
    tight = [p for p in view.partitions or () if 1 < len(p.replicas) <= needed.get(p.topic, 0)]
    if tight:
        yield warns("W1", f"{describe_partitions(tight)} have no more replicas than min.insync.replicas requires")
    if single:
        alone = "; this is the whole cluster" if len(facts.spec.brokers) == 1 else ""
        yield warns("W1", f"{describe_partitions(single)} have a single replica{alone}")


def _check_quorum_size(_: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    size = len(facts.spec.controllers)
    if size < 3 or size % 2 == 0:
        yield warns("W3", f"the cluster file has {count_of(size, 'controller')}")


_CHECKS: tuple[Check, ...] = (
    *unread.CHECKS,
    _check_cluster_identity,
    _check_node_ids,
    _check_brokers_alive,
    _check_in_sync,
    _check_unfinished_work,
    _check_epochs,
    _check_topic_ids,
    _check_leftovers,
    *written.CHECKS,
    *versions.CHECKS,
    *security.CHECKS,
    *switches.CHECKS,
    *jaas.CHECKS,
    *protection.CHECKS,
    *controllers.CHECKS,
    *written.SAME_VALUE_CHECKS,
    *actors.CHECKS,
    *units.CHECKS,
    *machines.CHECKS,
    *limits.CHECKS,
    _check_coordinators,
    _check_replication,
    _check_quorum_size,
)
_GRAVITY = {severity: place for place, severity in enumerate(Severity)}


def _listed_broker_ids(facts: PreflightFacts) -> set[int]:
    return {node.id for node in facts.spec.brokers}
