"""What must hold before anything of a cluster is touched, judged on one view and `PreflightFacts`.

Every check only reads. All findings come in one report, so that the operator can fix them together. What could not be read is a
finding too: it blocks, or is named as not known. A migration under way is judged by what still matters: a stopped run may begin
again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from airflow_provider_kmigrate.core import coordinator, gates
from airflow_provider_kmigrate.core.coordinator import Agreement, CoordinatorTopic
from airflow_provider_kmigrate.core.files.config_matrix import setting
from airflow_provider_kmigrate.core.model import (
    Broker,
    BrokerMode,
    Cause,
    ClusterView,
    Fields,
    ProcessState,
    version_of,
)
from airflow_provider_kmigrate.core.phase import kraft_owns
from airflow_provider_kmigrate.core.preflight import actors, controllers, protection, security, unread, versions, written
from airflow_provider_kmigrate.core.preflight.findings import (
    Check,
    PreflightFacts,
    PreflightFinding,
    Severity,
    begun,
    blocks,
    is_kraft,
    level,
    of_topics,
    pairs,
    protocol,
    refused,
    topics_in_zookeeper,
    warns,
)
from airflow_provider_kmigrate.core.text import summarize

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


def findings(view: ClusterView, facts: PreflightFacts) -> tuple[PreflightFinding, ...]:
    """Everything found, the gravest first; empty if nothing forbids the migration. Needs a view of `PREFLIGHT_FIELDS`."""
    found = [finding for check in _CHECKS for finding in check(view, facts)]
    return tuple(sorted(found, key=lambda finding: _GRAVITY[finding.severity]))


def blocking(found: Iterable[PreflightFinding]) -> tuple[PreflightFinding, ...]:
    """Those that stop a migration."""
    return tuple(finding for finding in found if finding.severity is Severity.BLOCK)


def protocol_version(facts: PreflightFacts) -> str | None:
    """The inter.broker.protocol.version of all ZooKeeper-mode brokers, for which controllers must be formatted.

    None if brokers differ or any of them is unknown; a KRaft broker has none and does not count.
    """
    levels = {level(protocol(config)) for config in facts.configs.values() if config is None or not is_kraft(config)}
    (one,) = levels if len(levels) == 1 else (0,)
    return version_of(one) if one else None


def _identity(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    yield from refused(gates.wrong_cluster(view, facts.spec), "reliability: every act is identified")
    if view.zk is not None and view.zk.cluster_id is None:
        yield blocks("Z01", f"there is no /cluster/id under {facts.chroot or '/'} in ZooKeeper")


def _ids(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    listed, registered = _listed(facts), set(view.zk.broker_ids if view.zk else ())
    assigned = {replica for partition in view.partitions or () for replica in partition.replicas}
    ours = {node.id for node in facts.spec.controllers}
    if clash := sorted(ours & (listed | registered | assigned)):
        yield blocks("B2b", f"controller ids that brokers have, or that partitions name: {summarize(clash)}")
    if unlisted := sorted(registered - listed - ours):
        yield blocks("G36", f"brokers registered in ZooKeeper but not in the cluster file: {summarize(unlisted)}")
    if gone := sorted(assigned - listed - registered - ours):
        yield blocks("B4b", f"partitions are assigned to brokers that do not exist: {summarize(gone)}")


def _alive(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    seen = {node.id: view.brokers.get(node.id) for node in facts.spec.brokers}
    if dead := [i for i, broker in seen.items() if not _is_alive(broker) and not _is_in_loop(broker)]:
        yield blocks("R01", f"brokers that do not run, answer or register: {summarize(dead)}")


def _is_in_loop(broker: Broker | None) -> bool:
    """Whether its unit is started again and again, which M08 reports with the end of its log."""
    return broker is not None and broker.process.restart_loop is not None


def _is_alive(broker: Broker | None) -> bool:
    if broker is None or broker.mode is None or broker.process.state is ProcessState.STOPPED:
        return False
    return broker.mode is BrokerMode.KRAFT or broker.in_zookeeper is not False


def _in_sync(view: ClusterView, _: PreflightFacts) -> Iterator[PreflightFinding]:
    behind = [partition for partition in view.partitions or () if partition.under_replicated or partition.leader < 0]
    if behind:
        yield blocks(
            "S02", f"{len(behind)} partitions are under-replicated or without leader: {summarize(p.name for p in behind)}"
        )


def _unfinished(view: ClusterView, _: PreflightFacts) -> Iterator[PreflightFinding]:
    if view.zk is None:
        return
    if view.zk.reassigning:
        yield blocks("S04", "a reassignment is running (/admin/reassign_partitions exists)")
    if view.zk.pending_deletions:
        yield blocks("B5", f"topics with an unfinished deletion: {summarize(view.zk.pending_deletions)}")
    if view.zk.controller_epoch is None:
        yield blocks("Z01", "there is no readable /controller_epoch")


def _topic_ids(view: ClusterView, _: PreflightFacts) -> Iterator[PreflightFinding]:
    if without := sorted(name for name, topic in topics_in_zookeeper(view).items() if topic.topic_id is None):
        yield blocks("B1b", f"{len(without)} topics have no id: {summarize(without)}")


def _leftovers(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """P06, G04, G05: an earlier migration left nothing, and no running controller would end this one at once."""
    if view.zk is None or begun(view):
        return
    hosts = unread.unread_hosts(view, Cause.UNREAD_FILES)
    ours = [node.id for node in facts.spec.controllers if node.name not in hosts]
    running = replace(view, controllers={each.id: each for each in view.controllers.values() if each.answers})
    for gate in (gates.fresh_migration(view), gates.empty_controllers(view, ours), gates.all_flagged(running)):
        yield from refused(gate.reasons, "measured: topics were deleted")


def _epochs(view: ClusterView, _: PreflightFacts) -> Iterator[PreflightFinding]:
    """What a rollback without the epoch guard leaves behind; while KRaft owns the cluster, its epochs are not judged."""
    if not kraft_owns(view):
        source = "KAFKA-20488; measured: writes stop when one broker fails"
        yield from refused(gates.states_in_reach(view).reasons, source)


def _coordinators(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    if view.partitions is None:
        return
    existing = list(coordinator.topics(view))
    for topic in (topic for topic in coordinator.TOPICS if topic not in {found for found, _, _ in existing}):
        counts = _configured(facts, topic)
        if len(set(counts.values())) > 1:
            yield blocks("B18", f"{topic.name} does not exist yet, and brokers would give it different counts: {pairs(counts)}")
    for topic, found, count in existing:
        unchanged = view.zk is not None and view.zk.topic_versions.get(topic.name) == 0
        configured = _configured(facts, topic) if unchanged else None
        verdict = coordinator.judge(view, topic, found, count, _listed(facts), configured=configured)
        severity = Severity.WARN if verdict.agreement is Agreement.DEGENERATE else Severity.BLOCK
        if severity is Severity.WARN and not unchanged and set(_configured(facts, topic).values()) - {count}:
            severity = (
                Severity.UNKNOWN
            )  # changed since it was created, and brokers may still use the number they are configured with
        for reason in verdict.reasons:
            yield PreflightFinding(reason, severity, _STARTUP)
    yield from refused(coordinator.unexpanded(view).reasons, _STARTUP)


_STARTUP = "KIP-895; GroupCoordinator startup"


def _configured(facts: PreflightFacts, topic: CoordinatorTopic) -> dict[int, int]:
    configured = {broker: setting(config, topic.setting) for broker, config in facts.configs.items() if config}
    return {broker: int(value) for broker, value in configured.items() if value and value.isdecimal()}


def _replication(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    needed = view.min_insync or {}
    single = [partition for partition in view.partitions or () if len(partition.replicas) == 1]
    tight = [p for p in view.partitions or () if 1 < len(p.replicas) <= needed.get(p.topic, 0)]
    if tight:
        yield warns("W1", f"{of_topics(tight)} have no more replicas than min.insync.replicas requires")
    if single:
        alone = "; this is the whole cluster" if len(facts.spec.brokers) == 1 else ""
        yield warns("W1", f"{of_topics(single)} have a single replica{alone}")


def _quorum(_: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    size = len(facts.spec.controllers)
    if size < 3 or size % 2 == 0:
        yield warns("W3", f"the cluster file has {size} controller{'' if size == 1 else 's'}")


_CHECKS: tuple[Check, ...] = (
    *unread.CHECKS,
    _identity,
    _ids,
    _alive,
    _in_sync,
    _unfinished,
    _epochs,
    _topic_ids,
    _leftovers,
    *written.CHECKS,
    *versions.CHECKS,
    *security.CHECKS,
    *protection.CHECKS,
    *controllers.CHECKS,
    *written.SAME_VALUE_CHECKS,
    *actors.CHECKS,
    _coordinators,
    _replication,
    _quorum,
)
_GRAVITY = {severity: place for place, severity in enumerate(Severity)}


def _listed(facts: PreflightFacts) -> set[int]:
    return {node.id for node in facts.spec.brokers}
