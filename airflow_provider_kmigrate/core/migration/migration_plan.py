"""What a migration would do to one cluster, before it begins: each task, each line of each file, how long, and the rollback.

The document is made of one observation, that of the preflight. Its `inputs` are hashes of everything that decides what will be done: a plan
that was reviewed can be compared with that of another day (`describe_drift`), and a run can be bound to its `fingerprint`. The position of the
cluster is no input: a run that continues is the same plan.

Durations are three numbers: of a good day, expected, and after which a step gives up. They leave out what cannot be computed
(`_list_uncounted`).
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import groupby
from statistics import median
from typing import Any, Final, NamedTuple

from airflow_provider_kmigrate.core.cluster_state.model import (
    Broker,
    BrokerMode,
    ClusterView,
    Process,
    ProcessState,
    PropertyChange,
    Reason,
    ServiceUnit,
)
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, NodeRole, NodeSpec
from airflow_provider_kmigrate.core.migration import readiness
from airflow_provider_kmigrate.core.migration.phase import migration_has_ended, position_of
from airflow_provider_kmigrate.core.migration.plan import APPROVE, MIGRATION, StepRow, list_step_tasks, split_into_stages
from airflow_provider_kmigrate.core.migration.roll import why_postponed
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage, stage_on_disk
from airflow_provider_kmigrate.core.node_files.properties import (
    RenderFacts,
    diff_properties,
    edit_properties,
    render_broker_file,
    render_controller_file,
)
from airflow_provider_kmigrate.core.shared.text import (
    code_span,
    defuse_markup,
    format_date,
    format_duration,
    join_ids,
    printable,
    summarize,
)
from airflow_provider_kmigrate.exceptions import Refused

DOCUMENT_KIND: Final = "migration plan"
VERSION: Final = 1
_QUICK_RESTART: Final = 5.0
"""Seconds that a broker with small logs took in local migrations, until it was back in every ISR."""
_QUICK_ACT: Final = 3.0
"""Seconds of the quickest failover with its comparison (`readiness.FAILOVER`); the start of a controller is taken to be as quick."""
_USUAL_COPY: Final = 10.0
"""Seconds of a copy with its comparison, in the middle of the 3 to 17 that were measured."""
_RESTART_PER_START: Final = 2.0
"""A whole restart over the start of the process until its registration: it also stops, follows into every ISR and is observed until the
consumer groups commit again. Measured on local clusters: 9 to 12 s over 5 to 6 s, idle; both grow alike on a busy machine."""
_BROKER_FILES: Final = {BrokerMode.MIGRATION: FileStage.MIGRATION, BrokerMode.KRAFT: FileStage.KRAFT}
_CONTROLLER_FILES: Final = {"provision": FileStage.CONTROLLER_MIGRATION, "finalize": FileStage.CONTROLLER_FINAL}
_EARLIER_FILES: Final = {FileStage.KRAFT: FileStage.MIGRATION, FileStage.CONTROLLER_FINAL: FileStage.CONTROLLER_MIGRATION}
_CHANGING_UNIT_FACTS: Final = frozenset(
    {"ActiveState", "ControlGroup", "MainPID", "NRestarts", "Result", "SubState", "UnitFileState"}
)
"""What a start, a stop, or kmigrate's own `enable` changes in what systemd shows of a unit."""
NOT_READ: Final = "not read"
"""An input that could not be read."""


class Seconds(NamedTuple):
    """How long something takes: on a good day, expected, and until a step gives up."""

    low: float = 0.0
    expected: float = 0.0
    high: float = 0.0


def add_seconds(durations: Iterable[Seconds]) -> Seconds:
    """What follows one after another."""
    return Seconds(*(sum(column) for column in zip(Seconds(), *durations, strict=True)))


@dataclass(frozen=True)
class PlanFacts:
    """What a plan is made of: the cluster file, a view of preflight's fields, and what neither has.

    `originals`: the keys of each broker's file as it was before the migration; without those of brokers that run with a later file
    whose original is not known here. `metadata_version`: None if brokers differ, or it was not read. `restart_seconds`: of each restart
    of a broker that this cluster's journals record; `start_seconds`: of each broker's last start, until it registered itself, which count
    only while no restart is recorded; `restarts_elsewhere`: the restarts of other clusters on this worker, which count only while this one
    has neither. `findings`: preflight's codes, by severity. `took`: seconds of the observation.
    `made_by`: the version of kmigrate. `made_ms`: when, in milliseconds since the epoch. `with_files`: false for a plan without the
    lines of files, which cost most of its time.
    """

    spec: ClusterSpec
    view: ClusterView
    originals: Mapping[int, Mapping[str, str]]
    metadata_version: str | None
    restart_seconds: Sequence[float] = ()
    start_seconds: Sequence[float] = ()
    restarts_elsewhere: Sequence[float] = ()
    findings: Mapping[str, Sequence[str]] = field(default_factory=dict)
    took: float = 0.0
    made_by: str = ""
    made_ms: int = 0
    with_files: bool = True

    @cached_property
    def leaders(self) -> Counter[int] | None:
        """Broker -> the partitions that it leads; None: they were not read."""
        partitions = self.view.partitions
        return None if partitions is None else Counter(partition.leader for partition in partitions)

    @cached_property
    def alone(self) -> Counter[int] | None:
        """Broker -> its partitions without another replica; None: they were not read."""
        partitions = self.view.partitions
        return None if partitions is None else Counter(p.replicas[0] for p in partitions if len(p.replicas) == 1)


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """One task of the migration's DAG.

    `node`: empty for a task of the whole cluster; else the task starts or restarts that node. `file`: what changes in the node's file.
    `refused`: why that file cannot be written. `last_because`: why the node goes after the others. `leaders`: partitions that the node
    leads, and hands over before it stops. `alone`: partitions without another replica, which are unavailable meanwhile. Both are None if
    they were not read.
    """

    id: str
    does: str
    node: str = ""
    is_done: bool = False
    file: tuple[PropertyChange, ...] = ()
    refused: str = ""
    last_because: str = ""
    leaders: int | None = None
    alone: int | None = None
    seconds: Seconds = field(default_factory=Seconds)


def plan_migration(facts: PlanFacts) -> dict[str, Any]:
    """The plan as JSON values.

    `{"kind", "version", "cluster", "cluster_id", "made_by", "made_ms", "phase", "findings", "seconds", "soak_seconds", "restart_seconds",
    "uncounted", "approval", "point_of_no_return", "stages": [{"stage", "seconds", "rollback_seconds", "tasks": [PlannedTask]}], "inputs",
    "fingerprint"}`. What could not be read is in the plan as such; nothing is guessed.
    """
    stages, inputs = [_plan_stage(facts, name, steps) for name, steps in split_into_stages(MIGRATION)], hash_inputs(facts)
    return {
        "kind": DOCUMENT_KIND,
        "version": VERSION,
        "cluster": facts.spec.name,
        "cluster_id": facts.spec.cluster_id,
        "made_by": facts.made_by,
        "made_ms": facts.made_ms,
        "phase": str(position_of(facts.view).phase),
        "findings": {severity: sorted(set(codes)) for severity, codes in facts.findings.items()},
        "seconds": add_seconds(Seconds(**stage["seconds"]) for stage in stages)._asdict(),
        "soak_seconds": _soak_seconds(facts),
        "restart_seconds": {
            **restart_time(facts)._asdict(),
            "measured": len(facts.restart_seconds),
            "starts": 0 if facts.restart_seconds else len(facts.start_seconds),
            "elsewhere": 0 if facts.restart_seconds or facts.start_seconds else len(facts.restarts_elsewhere),
        },
        "uncounted": list(_list_uncounted(facts.spec)),
        "approval": _describe_approval(facts.spec),
        "point_of_no_return": next(stage["tasks"][0]["id"] for stage in stages if stage["rollback_seconds"] is None),
        "stages": stages,
        "inputs": inputs,
        "fingerprint": hash_values(inputs),
    }


def _plan_stage(facts: PlanFacts, name: str, steps: Sequence[StepRow]) -> dict[str, Any]:
    tasks = [
        _plan_task(facts, step, node)
        for step in steps
        for _, _, node in list_step_tasks(facts.spec, step)
        if node is not None or step.each is None  # the task behind those of the nodes restarts one that is planned in its place
    ]
    return {
        "stage": name,
        "seconds": add_seconds(task.seconds for task in tasks)._asdict(),
        "rollback_seconds": forecast_rollback_seconds(facts, name),
        "tasks": [
            {**asdict(task), "file": [asdict(change) for change in task.file], "seconds": task.seconds._asdict()}
            for task in tasks
        ],
    }


def _plan_task(facts: PlanFacts, step: StepRow, node: int | None) -> PlannedTask:
    task = PlannedTask(step.full_id(node), _first_sentence(step.doc))
    if node is None or step.each is None:
        return replace(task, seconds=_time_of_whole_cluster(facts, step))
    task = replace(task, node=facts.spec.node(step.each, node).name)
    if step.each is NodeRole.BROKER and step.target:
        return _plan_broker_restart(facts, task, node, step.target)
    return _plan_controller_start(facts, task, node, _CONTROLLER_FILES[step.kind])


def _plan_broker_restart(facts: PlanFacts, task: PlannedTask, broker: int, target: BrokerMode) -> PlannedTask:
    view, order = facts.view, [node.id for node in facts.spec.brokers]
    if migration_has_ended(view) or _has_reached(view.broker(broker), target):
        return replace(task, is_done=True)
    bakes = facts.spec.policy.canary_bake if broker == order[0] and not view.in_mode(target) else 0.0
    return replace(
        _with_file(facts, task, facts.spec.node(NodeRole.BROKER, broker), _BROKER_FILES[target]),
        last_because=why_postponed(view, broker, order, target) if target is BrokerMode.MIGRATION else "",
        leaders=None if facts.leaders is None else facts.leaders[broker],
        alone=None if facts.alone is None else facts.alone[broker],
        seconds=add_seconds((restart_time(facts), Seconds(bakes, bakes, bakes))),
    )


def _has_reached(broker: Broker, target: BrokerMode) -> bool:
    """Whether a broker runs in this mode or behind it; one that does not answer is behind the first roll if its file is of the second."""
    if broker.mode is None:
        return target is BrokerMode.MIGRATION and stage_on_disk(broker.files) is FileStage.KRAFT
    return broker.mode in {target, BrokerMode.KRAFT}


def _plan_controller_start(facts: PlanFacts, task: PlannedTask, controller: int, stage: FileStage) -> PlannedTask:
    has_flag = facts.view.controller(controller).migration_flag
    is_started = has_flag is False if stage is FileStage.CONTROLLER_FINAL else has_flag is not None
    if migration_has_ended(facts.view) or is_started:
        return replace(task, is_done=True)
    expected = median(facts.start_seconds) if facts.start_seconds else readiness.CONTROLLER_STOP
    seconds = Seconds(_QUICK_ACT, max(_QUICK_ACT, expected), facts.spec.policy.start_timeout)
    return replace(_with_file(facts, task, facts.spec.node(NodeRole.CONTROLLER, controller), stage), seconds=seconds)


def _with_file(facts: PlanFacts, task: PlannedTask, node: NodeSpec, stage: FileStage) -> PlannedTask:
    """The task with what its node's file differs in from that of the stage before, or why it cannot be written."""
    if not facts.with_files:
        return task
    source = node.id if node.role is NodeRole.BROKER else facts.spec.brokers[0].id
    if source not in facts.originals:
        return replace(task, refused=f"the original of broker {source} is not known here")
    if facts.metadata_version is None:
        return replace(task, refused="the inter.broker.protocol.version of the brokers differs, or was not read")
    original, render_facts = edit_properties("", facts.originals[source]), RenderFacts.of(facts.spec, facts.metadata_version)
    before = original if node.role is NodeRole.BROKER else ""
    try:
        if stage in _EARLIER_FILES:
            before = _render(original, node, _EARLIER_FILES[stage], render_facts)
        return replace(task, file=diff_properties(before, _render(original, node, stage, render_facts)))
    except Refused as error:
        return replace(task, refused="; ".join(f"[{reason.code}] {reason.text}" for reason in error.reasons) or str(error))


def _render(original: str, node: NodeSpec, stage: FileStage, facts: RenderFacts) -> str:
    if node.role is NodeRole.BROKER:
        return render_broker_file(original, stage, facts)
    return render_controller_file(original, node, stage, facts)


def _time_of_whole_cluster(facts: PlanFacts, step: StepRow) -> Seconds:
    """How long a step of the whole cluster takes; nothing if it only waits until what it asks for is so."""
    match step.kind:
        case "preflight":
            return Seconds(facts.took, facts.took, facts.took)
        case "copied" if not migration_has_ended(facts.view) and not readiness.kraft_may_hold_more(facts.view):
            return Seconds(_QUICK_ACT, _USUAL_COPY, facts.spec.policy.copy_timeout)
        case "soak":
            return Seconds(*[_soak_seconds(facts)] * 3)
        case _:
            return Seconds()


def _soak_seconds(facts: PlanFacts) -> float:
    return 0.0 if migration_has_ended(facts.view) else facts.spec.policy.min_soak


def restart_time(facts: PlanFacts) -> Seconds:
    """Of one broker's restart, until it is back in every ISR and its groups commit: as this cluster's journals have it, else from its
    brokers' last starts, else as the journals of other clusters have it, else assumed from the replicas of a broker.
    """
    limit = facts.spec.policy.start_timeout
    if measured := facts.restart_seconds:
        low, expected = min(measured), median(measured)
    elif starts := facts.start_seconds:
        low, expected = min(starts), _RESTART_PER_START * median(starts)
    elif measured := facts.restarts_elsewhere:
        low, expected = min(measured), median(measured)
    else:
        low, expected = _QUICK_RESTART, readiness.assume_restart_seconds(facts.view)
    return Seconds(low, expected, max(expected, limit))


def list_start_seconds(view: ClusterView, registered_at: Mapping[int, float], limit: float) -> list[float]:
    """Seconds between the start of each broker's process and its registration, both by the clock of its own machine.

    `registered_at`: broker -> when, in seconds since the epoch. What took longer than `limit` is left out: the broker was registered again later,
    after a lost session.
    """
    started_at = {number: view.broker(number).process.started_at for number in registered_at}
    spans = (registered_at[number] - at for number, at in sorted(started_at.items()) if at is not None)
    return [seconds for seconds in spans if 0.0 < seconds <= limit]


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
    """What the durations leave out, because it waits for a person, for others' work, or for a time of day."""
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


def _describe_approval(spec: ClusterSpec) -> dict[str, Any]:
    """`users` None: every user who may edit the DAG."""
    return {
        "users": list(spec.approvers.users) if spec.approvers else None,
        "required": spec.approvers.required if spec.approvers else 1,
    }


def hash_inputs(facts: PlanFacts) -> dict[str, str]:
    """What decides what the migration does -> its hash. A value that may be secret is in a hash only."""
    spec, view = facts.spec, facts.view
    inputs = {
        "kmigrate": facts.made_by,
        "the inter.broker.protocol.version": facts.metadata_version or NOT_READ,
        "the cluster file": hash_values({**asdict(spec), "path": ""}),
    }
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


def require_reviewed_plan(plan: Mapping[str, Any], reviewed: str, saved: Mapping[str, Any] | None = None) -> None:
    """Raise `Refused` (H16) if the fingerprint of the plan is not the one that was reviewed; `reviewed` empty: none was.

    `saved`: the plan that was reviewed, if it is known here; what has changed since is named then.
    """
    if reviewed and plan["fingerprint"] != reviewed:
        drift = "" if saved is None else f" {_describe_drift_from(saved, plan)}"
        text = f"The plan of cluster {plan['cluster']} has the fingerprint {plan['fingerprint']} now; this run is bound to {printable(reviewed)[:40]}.{drift}"
        raise Refused.because(Reason("H16", text))


def _describe_drift_from(saved: Mapping[str, Any], plan: Mapping[str, Any]) -> str:
    try:
        return summarize(describe_drift(saved, plan), 2_000)
    except ValueError as error:
        return f"The plan that was reviewed cannot be compared. {error}"


def hash_values(values: Mapping[str, Any]) -> str:
    """The hash of JSON values; of a plan's inputs: its fingerprint."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()[:16]


def describe_drift(saved: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """How the plan of now differs from one that was saved, one sentence each; empty: it is the same plan.

    Raises ValueError if `saved` is no plan of this cluster, is of another version, or was altered.
    """
    try:
        if (saved["kind"], saved["version"]) != (DOCUMENT_KIND, VERSION):
            raise ValueError(f"It is no {DOCUMENT_KIND} of version {VERSION}.")
        if saved["cluster_id"] != now["cluster_id"]:
            raise ValueError(f"It is the plan of cluster {printable(str(saved['cluster_id']))}, not of {now['cluster_id']}.")
        if hash_values(saved["inputs"]) != saved["fingerprint"]:
            raise ValueError("It was altered: its inputs do not have its fingerprint.")
        before, after = saved["inputs"], now["inputs"]
        drift = (*describe_changed_inputs(before, after), *_describe_changed_tasks(saved, now))
        return tuple(map(printable, drift))  # `saved` is a file that anybody may have edited
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"It is no whole plan: {printable(repr(error))}.") from error


def list_changed_inputs(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """The names of the inputs that are new, gone or another."""
    return [name for name in {**before, **after} if before.get(name) != after.get(name)]


def describe_changed_inputs(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    """One sentence for each input that is new, gone or another."""
    return tuple(_describe_changed_input(name, before, after) for name in list_changed_inputs(before, after))


def _describe_changed_input(name: str, before: Mapping[str, str], after: Mapping[str, str]) -> str:
    subject = f"{name[:1].upper()}{name[1:]}"
    match before.get(name), after.get(name):
        case None, _:
            return f"{subject} is new."
        case _, None:
            return f"{subject} is gone."
        case str(was), str(now) if NOT_READ in {was, now}:
            return f"{subject} was {'not ' * (was == NOT_READ)}read then, and is {'not ' * (now == NOT_READ)}read now."
        case _:
            return f"{subject} has changed."


def _describe_changed_tasks(saved: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Tasks that are new, gone or done, or that would write other lines."""
    before, after = ({task["id"]: task for stage in plan["stages"] for task in stage["tasks"]} for plan in (saved, now))
    for task_id in {**before, **after}:
        if task_id not in before or task_id not in after:
            yield f"Task {task_id} is {'new' if task_id in after else 'gone'}."
        elif before[task_id]["is_done"] != after[task_id]["is_done"]:
            yield f"Task {task_id} is {'done' if after[task_id]['is_done'] else 'to be done again'}."
        elif (earlier := list_lines(before[task_id])) != (later := list_lines(after[task_id])):
            added = [line for line in later if line not in earlier]
            dropped = [f"no longer {line}" for line in earlier if line not in later]
            yield f"Task {task_id} would change other lines: {summarize([*added, *dropped])}."


def list_lines(task: Mapping[str, Any]) -> list[str]:
    """What changes in the file of a task's node, line by line; or why it cannot be written."""
    refused = [f"cannot be written: {task['refused']}"] if task["refused"] else []
    return [*(str(PropertyChange(**change)) for change in task["file"]), *refused]


def render_document(document: Mapping[str, Any]) -> str:
    """A plan as Markdown: what it comes to, a table of its stages, then each stage's tasks with the lines of their files."""
    return (
        "\n\n".join((_render_head(document), _render_table(document["stages"]), *map(_render_stage, document["stages"]))) + "\n"
    )


def _render_head(document: Mapping[str, Any]) -> str:
    restarted = [task["node"] for stage in document["stages"] for task in stage["tasks"] if task["node"] and not task["is_done"]]
    brokers, controllers = (sum(node.startswith(role) for node in restarted) for role in NodeRole)
    each, soak = document["restart_seconds"], document["soak_seconds"]
    work, quick = (document["seconds"][name] - soak for name in ("expected", "low"))
    basis = describe_restart_basis(each)
    return "\n\n".join(
        (
            f"# Plan of {defuse_markup(printable(document['cluster']))}: ZooKeeper to KRaft",
            f"Cluster {code_span(document['cluster_id'])}; phase: {document['phase']}. {_describe_findings(document['findings'])}",
            (
                f"**About {_span(work)} of work** ({_span(quick)} on a good day) **and {_span(soak)} of soak**: {brokers} restarts of brokers and "
                f"{controllers} starts of controllers, one at a time. A restart of a broker takes {_span(each['expected'])} ({basis})."
            ),
            f"Not counted: {defuse_markup(printable('; '.join(document['uncounted'])))}.",
            (
                f"**The point of no return is {code_span(document['point_of_no_return'])}.** {_describe_approvers(document['approval'])} Until then "
                "everything can be rolled back; the table says how long that would take."
            ),
            (
                f"Made {format_date(document['made_ms'])} by kmigrate {printable(document['made_by'])}. Fingerprint: "
                f"{code_span(document['fingerprint'])}. Nothing was changed."
            ),
        )
    )


def describe_restart_basis(restart: Mapping[str, Any]) -> str:
    """What the plan's time of a restart rests on; of a plan by an older kmigrate, which knew less, too."""
    if restart["measured"]:
        return f"the median of {restart['measured']} in this cluster's journals"
    if starts := restart.get("starts"):
        return f"twice the last start of its brokers until they registered, the median of {starts}; no restart was measured on it yet"
    if elsewhere := restart.get("elsewhere"):
        return f"the median of {elsewhere} of other clusters here; none was measured on this one yet"
    return "assumed from the replicas of a broker: none was measured here yet"


def _describe_findings(findings: Mapping[str, Sequence[str]]) -> str:
    listed = "; ".join(f"{severity}: {summarize(codes)}" for severity, codes in findings.items() if codes)
    return f"Preflight's findings: {listed}." if listed else "Preflight has no finding."


def _describe_approvers(approval: Mapping[str, Any]) -> str:
    if approval["users"] is None:
        return "Before it, a user who may edit the DAG must approve."
    return f"Before it, {approval['required']} of {summarize(map(printable, approval['users']))} must approve."


def _render_table(stages: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for stage in stages:
        left = [task for task in stage["tasks"] if task["node"] and not task["is_done"]]
        back = "**not possible**" if stage["rollback_seconds"] is None else _span(stage["rollback_seconds"])
        rows.append(f"| {stage['stage']} | {len(left) or ''} | {_span(stage['seconds']['expected'])} | {back} |")
    return "\n".join(
        ("| stage | starts and restarts | takes | a rollback from its end takes |", "| --- | --- | --- | --- |", *rows)
    )


def _render_stage(stage: Mapping[str, Any]) -> str:
    """The tasks of a stage. Those of nodes follow one line that says what each does, with the lines that all their files get."""
    lines = [f"## {stage['stage']}", ""]
    for is_of_node, group in groupby(stage["tasks"], key=lambda task: bool(task["node"])):
        tasks = list(group)
        common = list_common_lines(tasks) if is_of_node else []
        if is_of_node:
            lines += [tasks[0]["does"], *([f"\nEach file: {', '.join(map(code_span, common))}"] if common else []), ""]
        lines += [_render_task(task, common) for task in tasks]
    return "\n".join(lines)


def list_common_lines(tasks: Sequence[Mapping[str, Any]]) -> list[str]:
    """The lines that the files of all these nodes get; none for a single node."""
    listed = [list_lines(task) for task in tasks if not task["is_done"]]
    return [line for line in listed[0] if all(line in others for others in listed)] if len(listed) > 1 else []


def _render_task(task: Mapping[str, Any], common: Sequence[str]) -> str:
    if task["is_done"]:
        return f"* {code_span(task['id'])} is done."
    facts = [] if task["node"] else [task["does"]]
    facts += [f"{task['leaders']} leaders move first."] if task["leaders"] else []
    facts += [f"**{task['alone']} partitions have no other replica: they are unavailable meanwhile.**"] if task["alone"] else []
    facts += [task["last_because"]] if task["last_because"] else []
    own = [code_span(line) for line in list_lines(task) if line not in common]
    return f"* {code_span(task['id'])}{': ' if facts or own else ''}{' '.join((*facts, ', '.join(own)))}".rstrip()


def _span(seconds: float) -> str:
    return format_duration(1000 * seconds) if seconds else "0 s"


def _first_sentence(text: str) -> str:
    return f"{text.partition('. ')[0].removesuffix('.')}."
