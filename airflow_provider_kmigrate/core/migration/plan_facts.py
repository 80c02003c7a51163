"""What every plan is made of: the cluster file, one observation, the originals and what restarts took; and the document made of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Final

from airflow_provider_kmigrate.core.cluster_state.model import ClusterView, Process, ProcessState, ServiceUnit
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, NodeRole, NodeSpec
from airflow_provider_kmigrate.core.migration import readiness
from airflow_provider_kmigrate.core.migration.durations import Measurements, Span, Work
from airflow_provider_kmigrate.core.migration.phase import position_of
from airflow_provider_kmigrate.core.migration.plan import StepRow, list_step_tasks, split_into_stages
from airflow_provider_kmigrate.core.migration.plan_document import (
    DOCUMENT_KIND,
    NOT_READ,
    VERSION,
    PlannedStage,
    PlannedTask,
    PlanParts,
    Seconds,
    add_seconds,
    hash_values,
    seal,
)
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage
from airflow_provider_kmigrate.core.node_files.properties import (
    RenderFacts,
    diff_properties,
    edit_properties,
    render_broker_file,
    render_controller_file,
)
from airflow_provider_kmigrate.core.shared.text import count_of
from airflow_provider_kmigrate.exceptions import Refused

_QUICK_RESTART: Final = 5.0
"""Seconds that a broker with small logs took in local migrations, until it was back in every ISR."""
BROKERS_VERSION: Final = "the inter.broker.protocol.version"
"""The input that the brokers' version is."""
QUICK_ACT: Final = 3.0
"""Seconds of the quickest failover with its comparison (`readiness.FAILOVER`)."""
_LONGEST_CHECK: Final = 30.0
"""Seconds that Airflow may need to start a task on a busy day; what a check waits for is not counted."""
_CHANGING_UNIT_FACTS: Final = frozenset(
    {"ActiveState", "ControlGroup", "MainPID", "NRestarts", "Result", "SubState", "UnitFileState"}
)
"""What a start, a stop, or kmigrate's own `enable` changes in what systemd shows of a unit."""


@dataclass(frozen=True)
class PlanFacts:
    """What a plan is made of: the cluster file, a view of preflight's fields, and what neither has.

    `originals`: the keys of each broker's file as it was before the migration; without those of brokers that run with a later file
    whose original is not known here. `metadata_version`: None if brokers differ, or it was not read. `task_seconds`: of tasks that this
    cluster's journals record; `start_seconds`: of each broker's last start, until it registered itself, which count only while such a task is not
    recorded; `tasks_elsewhere`: tasks of other clusters on this worker, which count only while this one has neither. `opening`: seconds that the task
    which plans needed to open the cluster; 0: not known. `findings`: preflight's codes, by severity. `took`: seconds of the preflight.
    `made_by`: the version of kmigrate. `made_ms`: when, in milliseconds since the epoch. `room`: node -> the free bytes of the disk that
    its metadata log will be on, as far as they are known. `with_files`: false for a plan without the
    lines of files, which cost most of its time.
    """

    spec: ClusterSpec
    view: ClusterView
    originals: Mapping[int, Mapping[str, str]]
    metadata_version: str | None
    task_seconds: Mapping[Work, Sequence[float]] = field(default_factory=dict)
    start_seconds: Sequence[float] = ()
    tasks_elsewhere: Mapping[Work, Sequence[float]] = field(default_factory=dict)
    opening: float = 0.0
    findings: Mapping[str, Sequence[str]] = field(default_factory=dict)
    took: float = 0.0
    made_by: str = ""
    made_ms: int = 0
    room: Mapping[str, int] = field(default_factory=dict)
    with_files: bool = True

    @cached_property
    def leaders(self) -> Counter[int] | None:
        """Broker -> the partitions that it leads; None: they were not read."""
        partitions = self.view.partitions
        return None if partitions is None else Counter(partition.leader for partition in partitions)

    @cached_property
    def assumed_restart_seconds(self) -> float:
        """Of one broker, from the replicas of all: counted once, and not for each task (two thirds of a status's time, measured)."""
        return readiness.assume_restart_seconds(self.view)

    @cached_property
    def measurements(self) -> Measurements:
        """What durations are estimated from."""
        lead = (self.opening, self.view.took) if self.opening else (0.0, 0.0)
        return Measurements(self.task_seconds, self.tasks_elsewhere, self.start_seconds, len(self.spec.controllers) == 1, *lead)

    @cached_property
    def alone(self) -> Counter[int] | None:
        """Broker -> its partitions without another replica; None: they were not read."""
        partitions = self.view.partitions
        return None if partitions is None else Counter(p.replicas[0] for p in partitions if len(p.replicas) == 1)


def build_plan(facts: PlanFacts, parts: PlanParts) -> dict[str, Any]:
    """The document, in the form of plan.schema.json. What could not be read is in it as such; nothing is guessed."""
    stages = [stage.to_json() for stage in parts.stages]
    document = {
        "kind": DOCUMENT_KIND,
        "version": VERSION,
        "of": str(parts.of),
        "cluster": facts.spec.name,
        "cluster_id": facts.spec.cluster_id,
        "made_by": facts.made_by,
        "made_ms": facts.made_ms,
        "phase": str(position_of(facts.view).phase),
        "findings": {severity: sorted(set(codes)) for severity, codes in facts.findings.items()},
        "steps": list(parts.steps),
        "consequences": list(parts.consequences),
        "seconds": add_seconds(Seconds(**stage["seconds"]) for stage in stages)._asdict(),
        "soak_seconds": parts.soak_seconds,
        "restart_seconds": {
            **restart_time(facts)._asdict(),
            **facts.measurements.count_basis(Work.RESTART),
            "opening": facts.measurements.opening,
            "observation": facts.measurements.observation,
        },
        "restarts_at_once": 1,
        "uncounted": list(parts.uncounted),
        "stalls": list(parts.stalls),
        "space": [asdict(need) for need in parts.space],
        "not_compared": list(parts.not_compared),
        "approval": dict(parts.approval),
        "point_of_no_return": parts.point_of_no_return,
        "way_back": parts.way_back,
        "stages": stages,
        "inputs": dict(parts.inputs),
        "fingerprint": hash_values(parts.inputs),
    }
    return seal(document)


def plan_stages(
    facts: PlanFacts, rows: Iterable[StepRow], plan_task: Callable[[PlannedTask, StepRow, int | None], PlannedTask]
) -> tuple[PlannedStage, ...]:
    """Each stage of a plan with its tasks. `plan_task` is given a task with its sentence, its row, and its node or None."""
    return tuple(
        PlannedStage(
            name,
            tuple(
                plan_task(PlannedTask(row.full_id(node), row.summary), row, node)
                for row in rows_of_stage
                for _, _, node in list_step_tasks(facts.spec, row)
                if node is not None
                or row.each is None  # the task behind those of the nodes restarts one that is planned in its place
            ),
        )
        for name, rows_of_stage in split_into_stages(rows)
    )


def add_restart(facts: PlanFacts, task: PlannedTask, broker: int, last_because: str) -> PlannedTask:
    """The task with what a broker's restart moves, interrupts and takes. `last_because`: why it goes after the others, empty if it does not."""
    return replace(
        task,
        last_because=last_because,
        leaders=None if facts.leaders is None else facts.leaders[broker],
        alone=None if facts.alone is None else facts.alone[broker],
        seconds=restart_time(facts),
    )


def list_restart_stalls(facts: PlanFacts) -> Iterator[str]:
    """What clients may notice of the restarts of brokers."""
    yield "at each restart of a broker its leaders move to other replicas before it stops, and back after it"
    if facts.alone is None:
        yield "not known whether partitions have no other replica: the partitions were not read"
    elif alone := facts.alone.total():
        yield f"{count_of(alone, 'partition has no other replica and is', 'partitions have no other replica and are')} unavailable while their broker restarts"


def restart_time(facts: PlanFacts) -> Seconds:
    """Of one broker's restart, until it is back in every ISR and its groups commit; without a measurement assumed from the replicas of a broker."""
    span = facts.measurements.estimate(Work.RESTART, Span(_QUICK_RESTART, facts.assumed_restart_seconds))
    return Seconds(*span, max(span.expected, facts.spec.policy.start_timeout))


def controller_time(facts: PlanFacts, work: Work) -> Seconds:
    """Of the start of a new controller, or of its restart without the flag."""
    low, expected = facts.measurements.estimate(work)
    return Seconds(low, expected, max(expected, facts.spec.policy.start_timeout))


def ready_time(facts: PlanFacts) -> Seconds:
    """Until all new controllers follow one leader; only checked if all follow it already."""
    if all(facts.view.controller(node.id).migration_flag is not None for node in facts.spec.controllers):
        return check_time(facts)
    low, expected = facts.measurements.estimate(Work.READY)
    return Seconds(low, expected, max(expected, facts.spec.policy.start_timeout))


def check_time(facts: PlanFacts) -> Seconds:
    """Of a task that finds everything as it should be: its start in Airflow and its observations."""
    low, expected = facts.measurements.estimate(Work.CHECK)
    return Seconds(low, expected, max(expected, _LONGEST_CHECK))


def list_start_seconds(view: ClusterView, registered_at: Mapping[int, float], limit: float) -> list[float]:
    """Seconds between the start of each broker's process and its registration, both by the clock of its own machine.

    `registered_at`: broker -> when, in seconds since the epoch. What took longer than `limit` is left out: the broker was registered again later,
    after a lost session.
    """
    started_at = {number: view.broker(number).process.started_at for number in registered_at}
    spans = (registered_at[number] - at for number, at in sorted(started_at.items()) if at is not None)
    return [seconds for seconds in spans if 0.0 < seconds <= limit]


def hash_own_inputs(spec: ClusterSpec, made_by: str) -> dict[str, str]:
    """What decides what every run does -> its hash: the version of kmigrate, and the cluster file."""
    return {"kmigrate": made_by, "the cluster file": hash_values({**asdict(spec), "path": ""})}


def hash_inputs(facts: PlanFacts) -> dict[str, str]:
    """What decides what the migration does -> its hash. A value that may be secret is in a hash only."""
    spec, view = facts.spec, facts.view
    inputs = {**hash_own_inputs(spec, facts.made_by), BROKERS_VERSION: facts.metadata_version or NOT_READ}
    for node in spec.brokers:
        inputs[f"the original file of {node.name}"] = (
            hash_values(facts.originals[node.id]) if node.id in facts.originals else NOT_READ
        )
        software = view.broker(node.id).process.software  # of a controller only once it was started, which is no change
        inputs[f"the release on the disk of {node.name}"] = (software and software.disk_release) or NOT_READ
    for node in spec.nodes():
        process = (view.broker(node.id) if node.role is NodeRole.BROKER else view.controller(node.id)).process
        inputs[f"the unit of {node.name}"] = _hash_unit(process)
    return inputs


def _hash_unit(process: Process) -> str:
    if process.unit is None:
        return NOT_READ if process.state is ProcessState.UNKNOWN else "none"
    return hash_values(_steady_facts(process.unit))


def _steady_facts(unit: ServiceUnit) -> dict[str, str]:
    return {name: value for name, value in unit.shown.items() if name not in _CHANGING_UNIT_FACTS}


def add_file(
    facts: PlanFacts, task: PlannedTask, node: NodeSpec, stage: FileStage, before: FileStage | Mapping[str, str]
) -> PlannedTask:
    """The task with what its node's file of `stage` differs in from the one `before` it, or why it cannot be written.

    `before`: a stage, or the keys of the file that the node has; empty: it has none.
    """
    if not facts.with_files:
        return task
    source = node.id if node.role is NodeRole.BROKER else facts.spec.brokers[0].id
    if source not in facts.originals:
        return replace(task, refused=f"the original of broker {source} is not known here")
    if facts.metadata_version is None and stage is not FileStage.ZOOKEEPER:
        return replace(task, refused="the inter.broker.protocol.version of the brokers differs, or was not read")
    original = edit_properties("", facts.originals[source])
    try:
        old = _render_file(facts, original, node, before) if isinstance(before, FileStage) else edit_properties("", before)
        return replace(task, file=diff_properties(old, _render_file(facts, original, node, stage)))
    except Refused as error:
        return replace(task, refused="; ".join(f"[{reason.code}] {reason.text}" for reason in error.reasons) or str(error))


def _render_file(facts: PlanFacts, original: str, node: NodeSpec, stage: FileStage) -> str:
    if stage is FileStage.ZOOKEEPER:
        return original
    render_facts = RenderFacts.of(facts.spec, facts.metadata_version or "")
    if node.role is NodeRole.BROKER:
        return render_broker_file(original, stage, render_facts)
    return render_controller_file(original, node, stage, render_facts)


def describe_approval(spec: ClusterSpec, most: int = 1) -> dict[str, Any]:
    """Who must approve. `users` None: every user who may edit the DAG. `most`: approvers that the request needs at most; 0: there is no request."""
    return {
        "users": list(spec.approvers.users) if spec.approvers else None,
        "required": min(most, spec.approvers.required if spec.approvers else 1),
    }
