"""What a migration would do to one cluster, before it begins: each task, each line of each file, how long, and the rollback.

It is made of one observation, that of the preflight. Durations are three numbers: of a good day, expected, and after which a step gives up.
They leave out what cannot be computed (`_list_uncounted`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from airflow_provider_kmigrate.core.cluster_state.model import Broker, BrokerMode
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, NodeRole
from airflow_provider_kmigrate.core.migration import gates, readiness
from airflow_provider_kmigrate.core.migration.durations import Span, Work
from airflow_provider_kmigrate.core.migration.phase import migration_has_ended
from airflow_provider_kmigrate.core.migration.plan import APPROVE, MIGRATION, StepRow, split_into_stages
from airflow_provider_kmigrate.core.migration.plan_document import (
    PlannedTask,
    PlanOf,
    PlanParts,
    Seconds,
    SpaceNeed,
    add_seconds,
)
from airflow_provider_kmigrate.core.migration.plan_facts import (
    QUICK_ACT,
    PlanFacts,
    add_file,
    add_restart,
    build_plan,
    check_time,
    controller_time,
    describe_approval,
    hash_inputs,
    list_restart_stalls,
    plan_stages,
    ready_time,
    restart_time,
)
from airflow_provider_kmigrate.core.migration.roll import why_postponed
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage, stage_on_disk
from airflow_provider_kmigrate.core.node_files.kafka_keys import find_unknown_keys
from airflow_provider_kmigrate.core.shared.text import join_ids, summarize

_COPY_BASE, _COPY_PER_PARTITION, _UNKNOWN_COPY = 1.0, 0.0006, 10.0
"""Seconds of a copy with its comparison: 0.3 to 0.8 s were measured with 100 partitions, 1.4 to 3.3 with 2,000, 3.4 to 7.5 with 10,000."""
_BROKER_FILES: Final = {
    BrokerMode.MIGRATION: (FileStage.MIGRATION, FileStage.ZOOKEEPER),
    BrokerMode.KRAFT: (FileStage.KRAFT, FileStage.MIGRATION),
}
"""The file of a mode, and the one before it."""
_NO_FILE: Final[dict[str, str]] = {}
_APPROVERS: Final = 2
"""Different approvers that the finalization needs, if the cluster file names so many (`ApproveFinalizationOperator.required`)."""
_METADATA_LOG: Final = 2 << 30
"""Bytes of a node's metadata log with its snapshots, by Kafka's defaults (`metadata.log.segment.bytes`, `metadata.max.retention.bytes`)."""
_CONTROLLER_TASKS: Final[Mapping[str, tuple[FileStage, Work, FileStage | dict[str, str]]]] = {
    "provision": (FileStage.CONTROLLER_MIGRATION, Work.PROVISION, _NO_FILE),
    "finalize": (FileStage.CONTROLLER_FINAL, Work.FINALIZE, FileStage.CONTROLLER_MIGRATION),
}
"""Kind of a step -> the file of its controllers, what it does, and the file before it."""


def plan_migration(facts: PlanFacts) -> dict[str, Any]:
    """The plan as JSON values. What could not be read is in it as such; nothing is guessed."""
    stages = tuple(
        replace(stage, rollback_seconds=forecast_rollback_seconds(facts, stage.name))
        for stage in plan_stages(facts, MIGRATION, partial(_plan_task, facts))
    )
    parts = PlanParts(
        PlanOf.MIGRATION,
        stages,
        hash_inputs(facts),
        describe_approval(facts.spec, _APPROVERS),
        "Until then everything can be rolled back; the table says how long that would take. Behind it no rollback is possible.",
        next(stage.tasks[0].id for stage in stages if stage.rollback_seconds is None),
        _soak_seconds(facts),
        uncounted=tuple(_list_uncounted(facts.spec)),
        stalls=tuple(_list_stalls(facts)),
        space=tuple(_list_space(facts)),
        not_compared=tuple(_list_not_compared(facts)),
    )
    return build_plan(facts, parts)


def _plan_task(facts: PlanFacts, task: PlannedTask, step: StepRow, node: int | None) -> PlannedTask:
    if node is None or step.each is None:
        return replace(task, seconds=_time_of_whole_cluster(facts, step))
    task = replace(task, node=facts.spec.node(step.each, node).name)
    if step.each is NodeRole.BROKER and step.target:
        return _plan_broker_restart(facts, task, node, step.target)
    return _plan_controller_start(facts, task, node, step.kind)


def _plan_broker_restart(facts: PlanFacts, task: PlannedTask, broker: int, target: BrokerMode) -> PlannedTask:
    view, order = facts.view, [node.id for node in facts.spec.brokers]
    if migration_has_ended(view) or _has_reached(view.broker(broker), target):
        return replace(task, is_done=True)
    bakes = facts.spec.policy.canary_bake if broker == order[0] and not view.in_mode(target) else 0.0
    last_because = why_postponed(view, broker, order, target) if target is BrokerMode.MIGRATION else ""
    task = add_file(facts, task, facts.spec.node(NodeRole.BROKER, broker), *_BROKER_FILES[target])
    task = add_restart(facts, task, broker, last_because)
    return replace(task, seconds=add_seconds((task.seconds, Seconds(bakes, bakes, bakes))))


def _has_reached(broker: Broker, target: BrokerMode) -> bool:
    """Whether a broker runs in this mode or behind it; one that does not answer is behind the first roll if its file is of the second."""
    if broker.mode is None:
        return target is BrokerMode.MIGRATION and stage_on_disk(broker.files) is FileStage.KRAFT
    return broker.mode in {target, BrokerMode.KRAFT}


def _plan_controller_start(facts: PlanFacts, task: PlannedTask, controller: int, kind: str) -> PlannedTask:
    stage, work, before = _CONTROLLER_TASKS[kind]
    has_flag = facts.view.controller(controller).migration_flag
    is_started = has_flag is False if work is Work.FINALIZE else has_flag is not None
    if migration_has_ended(facts.view) or is_started:
        return replace(task, is_done=True)
    task = add_file(facts, task, facts.spec.node(NodeRole.CONTROLLER, controller), stage, before)
    return replace(task, seconds=controller_time(facts, work))


def _time_of_whole_cluster(facts: PlanFacts, step: StepRow) -> Seconds:
    """How long a step of the whole cluster takes; of one that waits for an approver, nothing."""
    known_seconds = {"preflight": facts.took, "soak": _soak_seconds(facts)}
    if step.kind in known_seconds:
        return Seconds(*[known_seconds[step.kind]] * 3)
    if step.kind == APPROVE or migration_has_ended(facts.view):
        return Seconds()
    match step.kind:
        case "copied" if not readiness.kraft_may_hold_more(facts.view):
            return _copy_time(facts)
        case "controllers ready":
            return ready_time(facts)
        case "finalized":
            return add_seconds((check_time(facts), Seconds(*[gates.STILL] * 3)))
        case _:
            return check_time(facts)


def _copy_time(facts: PlanFacts) -> Seconds:
    partitions = facts.view.partitions
    assumed = _UNKNOWN_COPY if partitions is None else round(_COPY_BASE + _COPY_PER_PARTITION * len(partitions), 1)
    low, expected = facts.measurements.estimate(Work.COPY, Span(min(QUICK_ACT, assumed), assumed))
    return Seconds(low, expected, max(expected, facts.spec.policy.copy_timeout))


def _soak_seconds(facts: PlanFacts) -> float:
    return 0.0 if migration_has_ended(facts.view) else facts.spec.policy.min_soak


def forecast_rollback_seconds(facts: PlanFacts, stage: str) -> float | None:
    """Seconds of a rollback from the end of a stage, as `readiness.forecast_rollback` computes them there; None if there is none any more."""
    names = [name for name, _ in split_into_stages(MIGRATION)]
    if names.index(stage) > names.index(APPROVE):
        return None
    if names.index(stage) < names.index("controllers"):
        return 0.0
    brokers = len(facts.spec.brokers)
    restarts, kraft_owns = {"controllers": (0, False), "first_roll": (brokers, False), "copy": (brokers, True)}.get(
        stage, (2 * brokers, True)
    )
    return readiness.rollback_seconds(restarts, restart_time(facts).expected, len(facts.spec.controllers), kraft_owns=kraft_owns)


def _list_uncounted(spec: ClusterSpec) -> Iterator[str]:
    """What the durations leave out, because it waits for an approver, for others' work, or for a time of day."""
    yield "the answer to the request before the finalization"
    if spec.stop_after:
        yield f"the answers after {join_ids(spec.stop_after)} (`stop_after`)"
    if spec.windows:
        yield f"the time until a window opens in which a restart may begin ({', '.join(spec.windows)} UTC)"
    if spec.audit:
        yield "the audits by Spark"
    if spec.spark_jobs:
        yield f"the Spark jobs {join_ids(job.name for job in spec.spark_jobs)}, which are held"
    yield "whatever a step waits for: a partition without a spare replica, a group that makes no progress, records that wait"


def _list_stalls(facts: PlanFacts) -> Iterator[str]:
    """What clients may notice; what this cluster's own clients will see is not known before."""
    yield from list_restart_stalls(facts)
    yield "at each election of a controller no leader moves, and no topic is made or changed, for some seconds"
    yield "not known: how long this cluster's producers and consumers wait meanwhile; the probe and the audit measure it"


def _list_space(facts: PlanFacts) -> Iterator[SpaceNeed]:
    """What is written on each machine."""
    for node in facts.spec.nodes():
        files = (facts.view.broker(node.id) if node.role is NodeRole.BROKER else facts.view.controller(node.id)).files
        yield SpaceNeed(
            node.name, "the properties file, a copy of the former one, meta.properties", readiness.SPACE_NEEDED, files.free
        )
        room = facts.room.get(node.name, files.free if node.role is NodeRole.CONTROLLER else None)
        yield SpaceNeed(node.name, "the metadata log with its snapshots, by Kafka's defaults", _METADATA_LOG, room)
    yield SpaceNeed("Airflow", "the originals, ZooKeeper's tree, journals", None, None)


def _list_not_compared(facts: PlanFacts) -> Iterator[str]:
    """What no step of the run compares or proves, and what could not be read."""
    yield from _list_not_audited(facts.spec)
    yield "metadata: passwords of SCRAM users beyond their iterations, values of hidden settings, and what KRaft does not report; the task `equivalence` names it"
    if facts.spec.later_groups:
        yield f"groups: {summarize(facts.spec.later_groups)} (`later_groups`) may still use ZooKeeper when the first roll begins"
    yield "groups: one that commits to ZooKeeper without being registered is detected only if it has committed in the last ten minutes"
    if keys := sorted({key for keys in facts.originals.values() for key in find_unknown_keys(keys)}):
        yield f"files: what these keys do, which Kafka does not know: {summarize(keys)}. Brokers keep them; controllers do not get them"
    if missing := [node.name for node in facts.spec.brokers if node.id not in facts.originals]:
        yield f"files: the originals of {join_ids(missing)} are not known here"
    if unread := facts.findings.get("unknown"):
        yield f"preflight: what it could not read ({summarize(sorted(set(unread)))})"


def _list_not_audited(spec: ClusterSpec) -> Iterator[str]:
    audit = spec.audit
    if audit is None:
        yield "records: nothing shows whether one is lost or repeated: the cluster file has no section `audit`"
        return
    if audit.topics is not None:
        yield f"records of all topics but {summarize(audit.topics)} (`audit.topics`)"
    if audit.exclude_topics:
        yield f"records of {summarize(audit.exclude_topics)} (`audit.exclude_topics`)"
    if audit.topics is None and audit.sample_fraction is None:
        yield "records: of each partition all but the newest (no `audit.sample_fraction`)"
    elif audit.sample_fraction is not None and audit.sample_fraction < 1:
        yield f"records: all but a sample of {audit.sample_fraction:g} (`audit.sample_fraction`)"
    if not (audit.events or audit.events_topic or audit.ledgers):
        yield "records that consumers processed: no client writes events (`audit.events`, `audit.events_topic`, `audit.ledgers`)"
    if audit.resetting_groups:
        yield f"what groups {summarize(audit.resetting_groups)} read again on purpose (`audit.resetting_groups`)"
    if audit.allow:
        yield f"what `audit.allow` accepts: {summarize(audit.allow)}"
