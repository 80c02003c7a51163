"""Why a cluster stands where it stands: the condition that holds the next step, how long that usually takes, and when it becomes an alarm.

An imperative is in the answer only if an operator must act: a step refuses, an alarm holds, or no run owns a migration that is under way.
No gate, approval or permit reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from airflow_provider_kmigrate.core.cluster_state.decision import Decision, Refuse, Wait
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, NodeRole
from airflow_provider_kmigrate.core.migration.phase import Phase
from airflow_provider_kmigrate.core.migration.plan import MIGRATION, StepRow, list_step_tasks
from airflow_provider_kmigrate.core.monitoring.status import list_reason_lines, name_cluster
from airflow_provider_kmigrate.core.shared.text import format_date, format_duration, printable

DOCUMENT_KIND: Final = "why"
VERSION: Final = 1


class HoldState(StrEnum):
    """What holds a cluster."""

    NOTHING = "nothing"  # nothing is left, or nothing has begun
    WORKING = "working"  # kmigrate acts on a node right now
    WAITING = "waiting"  # a step waits, as it usually does
    PERSON = "person"  # the answer to a request is waited for
    READY = "ready"  # nothing forbids the next step, and a run owns the cluster
    STOPPED = "stopped"  # no run owns the cluster
    REFUSED = "refused"  # the next step would refuse
    ALARM = "alarm"  # an operator must act
    UNKNOWN = "unknown"  # something was not read

    @property
    def is_alarm(self) -> bool:
        """Whether an operator must act, or cannot know that none must."""
        return self in {HoldState.STOPPED, HoldState.REFUSED, HoldState.ALARM, HoldState.UNKNOWN}


@dataclass(frozen=True, slots=True)
class NextStep:
    """The step that is next, and what it would decide now. `usual`, `alarm`: seconds that it usually takes, and after which it gives up."""

    id: str
    does: str
    decision: Decision
    usual: float = 0.0
    alarm: float = 0.0
    waits_for_person: bool = False


@dataclass(frozen=True, slots=True)
class StepPlace:
    """One step in its place of the migration. `arguments`: of `steps.catalog.build`."""

    id: str
    does: str
    kind: str
    arguments: Mapping[str, Any]
    is_of_broker: bool = False
    waits_for_person: bool = False


def list_steps_before(spec: ClusterSpec, next_task: str) -> Iterator[StepPlace]:
    """What may hold the cluster, in the order of the migration: the waits behind the last node that is done, then the nodes that are left of the next pass.

    `next_task`: the id of the first task of a node that is not done, empty if all are. Before the finalization it is the soak, where an approver is
    waited for as well: it cannot be observed from outside how long the soak was healthy.
    """
    places = [
        (row, node, row.full_id(node))
        for row in MIGRATION
        for _, _, node in list_step_tasks(spec, row)
        if node is not None or row.each is None
    ]
    ids = [task_id for _, _, task_id in places]
    position = ids.index(next_task) if next_task in ids else len(ids)
    behind = max((number for number in range(position) if places[number][0].each is not None), default=-1)
    next_row = places[position][0] if position < len(ids) else None
    passes = [
        place for place in places[behind + 1 :] if place[0].step and (place[0] is next_row or ids.index(place[2]) < position)
    ]
    yield from (_place_of(row, node, task_id) for row, node, task_id in passes if not row.answer and _is_before(row, next_row))


def _is_before(row: StepRow, next_row: StepRow | None) -> bool:
    """Whether a step can be judged without a run: behind an approval only the run knows what was approved."""
    return row is not next_row or row.kind != "finalize"


def _place_of(row: StepRow, node: int | None, task_id: str) -> StepPlace:
    arguments = {name: value for name, value in (("node", node), ("target", row.target)) if value is not None}
    return StepPlace(task_id, row.summary, row.kind, arguments, row.each is NodeRole.BROKER, row.kind == "soak")


def explain_hold(status: Mapping[str, Any], step: NextStep | None, *, has_begun: bool) -> dict[str, Any]:
    """The answer as JSON values.

    `status`: as `status.describe_status`; `step`: None if nothing is left, or it could not be computed. `has_begun`: a migration is under way, or that is not known.
    `{"kind", "version", "cluster", "cluster_id", "at_ms", "phase", "state", "step", "may_pass", "conditions": [{"code", "text", "means", "do"}], "usual_seconds",
    "alarm_seconds", "under_way": [{"node", "text"}], "owner"}`. `do` is empty unless an operator must act. `may_pass`: each alarm may pass by itself.
    """
    state = _judge_state(status, step, has_begun=has_begun)
    return {
        "kind": DOCUMENT_KIND,
        "version": VERSION,
        **{name: status[name] for name in ("cluster", "cluster_id", "at_ms", "phase")},
        "state": str(state),
        "step": None if step is None else {"id": step.id, "does": step.does},
        "may_pass": state is HoldState.ALARM and not any(alarm["is_certain"] for alarm in status["alarms"]),
        "conditions": _list_conditions(status, step, state),
        "usual_seconds": step.usual if step is not None and step.usual else None,
        "alarm_seconds": step.alarm if step is not None and step.alarm else None,
        "under_way": list(status["under_way"]),
        "owner": status["owner"],
    }


def _judge_state(status: Mapping[str, Any], step: NextStep | None, *, has_begun: bool) -> HoldState:
    """The gravest that is so. An act under way explains a wait, and never an alarm.

    Before a migration controllers do not answer, because there are none: what was not read holds nothing then.
    """
    cases = (
        (bool(status["alarms"]), HoldState.ALARM),
        (not has_begun, HoldState.NOTHING),
        (step is not None and isinstance(step.decision, Refuse), HoldState.REFUSED),
        (bool(status["unread"]) or status["phase"] == Phase.UNKNOWN, HoldState.UNKNOWN),
        (bool(status["under_way"]), HoldState.WORKING),
        (step is None, HoldState.NOTHING),
        (status["owner"] is None, HoldState.STOPPED),
        (step is not None and step.waits_for_person, HoldState.PERSON),
        (step is not None and isinstance(step.decision, Wait) and bool(step.decision.reasons), HoldState.WAITING),
    )
    return next((state for is_so, state in cases if is_so), HoldState.READY)


def _list_conditions(status: Mapping[str, Any], step: NextStep | None, state: HoldState) -> list[dict[str, Any]]:
    if state is HoldState.ALARM:
        return [{name: alarm[name] for name in ("code", "text", "means", "do", "is_certain")} for alarm in status["alarms"]]
    if state is HoldState.UNKNOWN:
        return [{"code": "", "text": text, "means": "", "do": ""} for text in status["unread"]]
    reasons: Sequence[Reason] = ()
    if step is not None and isinstance(step.decision, Wait | Refuse) and not _passes_time(step.decision):
        reasons = step.decision.reasons
    if not state.is_alarm:  # there is nothing to do: the first of a kind says what is waited for
        reasons = tuple({(reason.code, reason.node): reason for reason in reversed(reasons)}.values())[::-1]
    return [
        {
            "code": reason.code,
            "text": reason.text,
            "means": reason.meaning,
            "do": name_cluster(reason.next_step, status["cluster"]) if state is HoldState.REFUSED else "",
        }
        for reason in dict.fromkeys(reasons)
    ]


def _passes_time(decision: Decision) -> bool:
    """Whether all is healthy and only time must pass: its seconds are of this observation alone, the run's task knows the real ones."""
    return isinstance(decision, Wait) and decision.healthy


_HEADLINES: Final = {
    HoldState.NOTHING: "Nothing holds it: no migration is under way, or nothing of it is left.",
    HoldState.WORKING: "kmigrate is at work on a node. That is expected.",
    HoldState.WAITING: "The next step waits. That is expected.",
    HoldState.PERSON: "It waits for the soak to end, then for the answer of an approver. That is expected.",
    HoldState.READY: "Nothing forbids the next step: the run that owns the cluster does it.",
    HoldState.STOPPED: "A migration is under way, and no run owns the cluster: nothing continues it.",
    HoldState.REFUSED: "The next step would refuse.",
    HoldState.ALARM: "An operator must act.",
    HoldState.UNKNOWN: "Not everything was read, so what holds it is not known.",
}
_UNCERTAIN: Final = "It may pass by itself. Look again in two minutes: if it is still so, act."
_DO: Final = {
    HoldState.STOPPED: "Start a run of kmigrate_zk_to_kraft__{cluster} to continue, or of kmigrate_rollback__{cluster} to roll back.",
    HoldState.UNKNOWN: "Run the command again; then find out why this does not answer.",
}


def render_explanation(document: Mapping[str, Any]) -> str:
    """The answer in words for a terminal."""
    state, step = HoldState(document["state"]), document["step"]
    lines = [
        f"{printable(document['cluster'])} ({document['cluster_id']}), {format_date(document['at_ms'])}, phase '{document['phase']}'",
        "",
        _UNCERTAIN if document["may_pass"] else _HEADLINES[state],
    ]
    lines += [f"  Now: {act['node']}: {act['text']}" for act in document["under_way"]]
    conditions = [f"  {line}" for line in list_reason_lines(document["conditions"])]
    next_step = [f"  Next step: {step['id']}. {step['does']}"] if step else []
    lines += (
        [*conditions, *next_step] if state in {HoldState.ALARM, HoldState.REFUSED} else [*next_step, *conditions]
    )  # at 3 a.m. what is wrong comes first
    if not state.is_alarm:
        lines += _describe_times(document)
    lines += [f"  Next: {_DO[state].format(cluster=printable(document['cluster']))}"] if state in _DO else []
    owner = document["owner"]
    lines += [f"  Run: {printable(owner['run'])} owns the cluster."] if owner else []
    return "\n".join(lines) + "\n"


def _describe_times(document: Mapping[str, Any]) -> list[str]:
    usual, alarm = document["usual_seconds"], document["alarm_seconds"]
    lines = [f"  Usually: {format_duration(1000 * usual)}."] if usual else []
    return lines + (
        [f"  It becomes an alarm after {format_duration(1000 * alarm)}: then its task fails and says what to do."]
        if alarm
        else []
    )
