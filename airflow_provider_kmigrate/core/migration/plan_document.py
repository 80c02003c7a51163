"""The one form of every plan: what a migration, a rollback or another run of kmigrate would do to a cluster, as JSON values.

What it is made of has modules of its own (`plan_facts`, `migration_plan`, `rollback_plan`). Its `inputs` are hashes of everything that
decides what will be done: a plan that was reviewed can be compared with that of another day (`describe_drift`), and a run can be bound to
its `fingerprint`. The position of the cluster is no input: a run that continues is the same plan. `digest` is of all of the document, so an
edited one is known.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from itertools import groupby
from typing import Any, Final, NamedTuple

from airflow_provider_kmigrate.core.cluster_state.model import PropertyChange, Reason
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole
from airflow_provider_kmigrate.core.migration.durations import AROUND_RESTART, choose_spread
from airflow_provider_kmigrate.core.shared.text import (
    code_span,
    count_of,
    defuse_markup,
    format_date,
    format_duration,
    printable,
    summarize,
    table_cell,
)
from airflow_provider_kmigrate.exceptions import Refused

DOCUMENT_KIND: Final = "plan"
VERSION: Final = 1
NOT_READ: Final = "not read"
"""An input that could not be read."""


class PlanOf(StrEnum):
    """What a plan is of."""

    MIGRATION = "migration"
    ROLLBACK = "rollback"
    GROUPS = "groups"
    EXPANSION = "expansion"
    CLEAN_UP = "clean-up"


TITLES: Final[Mapping[str, str]] = {
    PlanOf.MIGRATION: "ZooKeeper to KRaft",
    PlanOf.ROLLBACK: "back to ZooKeeper",
    PlanOf.GROUPS: "consumer groups",
    PlanOf.EXPANSION: "more partitions for __consumer_offsets",
    PlanOf.CLEAN_UP: "clean up",
}


ACCEPTS: Final = "what the rollback accepts"
PARTITIONS: Final = "the number of partitions"
CHOSEN_GROUPS: Final = "the groups and their goal"
OF_THE_CONF: Final = frozenset({ACCEPTS, PARTITIONS, CHOSEN_GROUPS})
"""The inputs that the run's conf decides: they cannot change while it runs."""


class Seconds(NamedTuple):
    """How long something takes: on a good day, expected, and until a step gives up."""

    low: float = 0.0
    expected: float = 0.0
    high: float = 0.0


def add_seconds(durations: Iterable[Seconds]) -> Seconds:
    """What follows one after another."""
    return Seconds(*(sum(column) for column in zip(Seconds(), *durations, strict=True)))


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """One task of a DAG.

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


@dataclass(frozen=True, slots=True)
class SpaceNeed:
    """What a run writes on one machine. `needs` and `free` in bytes; None: not known."""

    node: str
    writes: str
    needs: int | None
    free: int | None


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """Tasks one after another. `rollback_seconds`: of a rollback from the end of a stage of a migration; None: none is possible."""

    name: str
    tasks: tuple[PlannedTask, ...]
    rollback_seconds: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The stage as JSON values."""
        return {
            "stage": self.name,
            "seconds": add_seconds(task.seconds for task in self.tasks)._asdict(),
            "rollback_seconds": self.rollback_seconds,
            "tasks": [
                {**asdict(task), "file": [asdict(change) for change in task.file], "seconds": task.seconds._asdict()}
                for task in self.tasks
            ],
        }


@dataclass(frozen=True, slots=True)
class PlanParts:
    """What differs between plans of one kind and another; each text is one sentence or the rest of one.

    `steps`: what is done, in order. `consequences`: what is kept, lost or accepted. `uncounted`: what the durations leave out. `stalls`:
    what clients may notice. `not_compared`: what is neither compared nor proven, or not known. `point_of_no_return`: id of the first task
    behind which no rollback is possible; empty: there is none. `way_back`: what it is until then, and what is left behind it.
    """

    of: PlanOf
    stages: tuple[PlannedStage, ...]
    inputs: Mapping[str, str]
    approval: Mapping[str, Any]
    way_back: str
    point_of_no_return: str = ""
    soak_seconds: float = 0.0
    steps: tuple[str, ...] = ()
    consequences: tuple[str, ...] = ()
    uncounted: tuple[str, ...] = ()
    stalls: tuple[str, ...] = ()
    space: tuple[SpaceNeed, ...] = ()
    not_compared: tuple[str, ...] = ()


def seal(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with the digest of everything else in it."""
    unsealed = {name: value for name, value in document.items() if name != "digest"}
    return {**unsealed, "digest": hash_values(unsealed)}


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
    """The hash of values, in every process the same; of a plan's inputs: its fingerprint."""
    return hashlib.sha256(dump_values(values).encode()).hexdigest()[:16]


def dump_values(values: Any) -> str:
    """Whatever YAML holds as JSON, in every process the same."""
    return json.dumps(_order(values), sort_keys=True, default=str)


def _order(value: Any) -> Any:
    """Sets, which have another order in each process, as sorted lists; keys as text, since keys of several kinds have no order."""
    if isinstance(value, Mapping):
        return {str(key): _order(inner) for key, inner in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    return [_order(inner) for inner in value] if isinstance(value, list | tuple) else value


def describe_drift(saved: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """How the plan of now differs from one that was saved, one sentence each; empty: it is the same plan.

    Raises ValueError if `saved` is no plan, of another kind or version, of another cluster, or was altered.
    """
    try:
        if (saved["kind"], saved["version"]) != (DOCUMENT_KIND, VERSION):
            raise ValueError(f"It is no {DOCUMENT_KIND} of version {VERSION}.")
        if saved["of"] != now["of"]:
            raise ValueError(f"It is a plan of another kind: {printable(str(saved['of']))}, not {now['of']}.")
        if saved["cluster_id"] != now["cluster_id"]:
            raise ValueError(f"It is the plan of cluster {printable(str(saved['cluster_id']))}, not of {now['cluster_id']}.")
        if seal(saved)["digest"] != saved["digest"]:
            raise ValueError("It was altered: its content does not have its digest.")
        if hash_values(saved["inputs"]) != saved["fingerprint"]:
            raise ValueError("It was altered: its inputs do not have its fingerprint.")
        before, after = saved["inputs"], now["inputs"]
        drift = (*describe_changed_inputs(before, after), *_describe_changed_tasks(saved, now))
        return tuple(map(printable, drift))  # `saved` is a file that anybody may have edited
    except RecursionError:
        raise ValueError("It is no whole plan: its values are nested too deep.") from None
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
    title = f"# Plan of {defuse_markup(printable(document['cluster']))}: {TITLES[document['of']]}"
    where = f"Cluster {code_span(document['cluster_id'])}; phase: {document['phase']}."
    found = f" {_describe_findings(document['findings'])}" if document["of"] == PlanOf.MIGRATION else ""
    parts = (
        title,
        where + found,
        *_render_summary(document),
        *_render_space(document["space"]),
        _render_made(document),
        _render_table(document),
        *map(_render_stage, document["stages"]),
    )
    return "\n\n".join(parts) + "\n"


def render_request(document: Mapping[str, Any]) -> str:
    """A plan as Markdown for the request that asks for its approval: without the tasks and the lines of files."""
    return "\n\n".join((*_render_summary(document), _render_made(document)))


def _render_summary(document: Mapping[str, Any]) -> Iterator[str]:
    """What is done, how long it takes, what it costs, and until when a rollback is possible; one paragraph each."""
    if document["steps"]:
        yield "\n".join(f"{number}. {defuse_markup(printable(step))}" for number, step in enumerate(document["steps"], 1))
    yield from (defuse_markup(printable(text)) for text in document["consequences"])
    yield _render_durations(document)
    for name, title in LISTS.items():
        if document[name]:
            yield f"{title}: {defuse_markup(printable('; '.join(document[name])))}."
    yield _render_way_back(document)


LISTS: Final[Mapping[str, str]] = {
    "uncounted": "Not counted",
    "stalls": "What clients may notice",
    "not_compared": "Not compared, not proven or not known",
}
"""The parts of a plan that are lists of texts -> their titles."""


def _render_durations(document: Mapping[str, Any]) -> str:
    brokers, controllers = count_restarts(document)
    each, soak = document["restart_seconds"], document["soak_seconds"]
    work, quick, longest = (document["seconds"][name] - soak for name in ("expected", "low", "high"))
    takes = f"**About {format_seconds(work)} of work** ({format_seconds(quick)} on a good day; steps give up after {format_seconds(longest)} in all)"
    soaks = f" **and {format_seconds(soak)} of soak**" if soak else ""
    restarts = f"{count_of(brokers, 'restart')} of brokers and {controllers} starts of controllers, one at a time"
    basis = (
        f" A restart of a broker takes {format_seconds(each['expected'])} ({describe_restart_basis(each)})." if brokers else ""
    )
    if not document["seconds"]["high"]:
        return "How long it takes is not predicted."
    spread = f" {describe_spread(document)}" if brokers and document["of"] == PlanOf.MIGRATION else ""
    return (
        f"{takes}{soaks}: {restarts}.{basis}{spread}"
        if brokers or controllers
        else f"{takes}{soaks}. No broker or controller is restarted."
    )


def describe_spread(document: Mapping[str, Any]) -> str:
    """Between which times nine of ten migrations stayed, and what will say more. The soak is left out; bakes take what they take."""
    each = document["restart_seconds"]["expected"]
    brokers = (task for stage in document["stages"] for task in stage["tasks"] if task["node"].startswith(NodeRole.BROKER))
    bakes = sum(max(0.0, task["seconds"]["expected"] - each) for task in brokers)
    work = document["seconds"]["expected"] - document["soak_seconds"] - bakes
    measured = document["restart_seconds"]["measured"]
    low, high = choose_spread(measured)
    shortest, longest = (format_seconds(bakes + times * work) for times in (low, high))
    known = "" if measured else " before a restart of their cluster was measured"
    return (
        f"Nine of ten measured migrations{known} took {low:g} to {high:g} times what was expected without bakes, here {shortest} to {longest}: the load of "
        "machines changes. From its first restart on, the status of a run goes by its own restarts."
    )


def count_restarts(document: Mapping[str, Any]) -> tuple[int, int]:
    """How many restarts of brokers and starts of controllers are left."""
    left = [task["node"] for stage in document["stages"] for task in stage["tasks"] if task["node"] and not task["is_done"]]
    brokers, controllers = (sum(node.startswith(role) for node in left) for role in NodeRole)
    return brokers, controllers


def _render_way_back(document: Mapping[str, Any]) -> str:
    point, is_migration = document["point_of_no_return"], document["of"] == PlanOf.MIGRATION
    names = (
        f"**{'The point of no return is' if is_migration else 'A rollback is possible until'} {code_span(point)}.** "
        if point
        else ""
    )
    before = "Before it" if is_migration else "Before it begins"
    who = f"{before}, {describe_approvers(document['approval'])} must approve."
    who = who if document["approval"]["required"] else "No approval is asked for."
    return f"{names}{who} {defuse_markup(printable(document['way_back']))}"


def _render_made(document: Mapping[str, Any]) -> str:
    return (
        f"Made {format_date(document['made_ms'])} by kmigrate {printable(document['made_by'])}. Fingerprint: "
        f"{code_span(document['fingerprint'])}. Nothing was changed."
    )


def _render_space(needs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A table of what is written where; nothing if nothing is."""
    if needs:
        rows = (
            f"| {table_cell(need['node'])} | {table_cell(need['writes'])} | {format_bytes(need['needs'])} | {format_bytes(need['free'])} |"
            for need in needs
        )
        yield "\n".join(("| space on | for | needed | free |", "| --- | --- | --- | --- |", *rows))


def format_bytes(number: int | None) -> str:
    """As mebibytes; None: not known."""
    return "not known" if number is None else f"{number / (1 << 20):,.0f} MiB"


def format_around_restart(restart: Mapping[str, Any]) -> str:
    """What a restart takes beside the stop and the start: observations, the groups' commits, and the opening of the cluster by its task."""
    return f"{AROUND_RESTART + restart.get('opening', 0.0) + restart.get('observation', 0.0):.0f} s"


def describe_restart_basis(restart: Mapping[str, Any]) -> str:
    """What the plan's time of a restart rests on; of a plan by an older kmigrate, which knew less, too."""
    if restart["measured"]:
        return f"the median of the newest {restart['measured']} in this cluster's journals"
    if starts := restart.get("starts"):
        return f"twice the last start of its brokers until they registered, the median of {starts}, and {format_around_restart(restart)}; no restart was measured on it yet"
    if elsewhere := restart.get("elsewhere"):
        return f"the median of the newest {elsewhere} of other clusters here; none was measured on this one yet"
    return "assumed from the replicas of a broker: none was measured here yet"


def _describe_findings(findings: Mapping[str, Sequence[str]]) -> str:
    listed = "; ".join(f"{severity}: {summarize(codes)}" for severity, codes in findings.items() if codes)
    return f"Preflight's findings: {listed}." if listed else "Preflight has no finding."


def describe_approvers(approval: Mapping[str, Any]) -> str:
    """Who must approve."""
    if approval["users"] is None:
        return "a user who may edit the DAG"
    users = summarize(map(printable, approval["users"]))
    return users if len(approval["users"]) == approval["required"] else f"{approval['required']} of {users}"


def _render_table(document: Mapping[str, Any]) -> str:
    """The stages; only of a migration with a rollback from the end of each."""
    goes_back = document["of"] == PlanOf.MIGRATION
    head = ["stage", "starts and restarts", "takes", *(["a rollback from its end takes"] if goes_back else [])]
    rows = []
    for stage in document["stages"]:
        left = [task for task in stage["tasks"] if task["node"] and not task["is_done"]]
        back = "**not possible**" if stage["rollback_seconds"] is None else format_seconds(stage["rollback_seconds"])
        rows.append(
            [stage["stage"], str(len(left) or ""), format_seconds(stage["seconds"]["expected"]), *([back] if goes_back else [])]
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


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
    facts += [f"{count_of(task['leaders'], 'leader moves', 'leaders move')} first."] if task["leaders"] else []
    facts += (
        [f"**{count_of(task['alone'], 'partition has', 'partitions have')} no other replica: they are unavailable meanwhile.**"]
        if task["alone"]
        else []
    )
    facts += [task["last_because"]] if task["last_because"] else []
    own = [code_span(line) for line in list_lines(task) if line not in common]
    return f"* {code_span(task['id'])}{': ' if facts or own else ''}{' '.join((*facts, ', '.join(own)))}".rstrip()


def format_seconds(seconds: float) -> str:
    """As `format_duration`; no time is `0 s`."""
    return format_duration(1000 * seconds) if seconds else "0 s"
