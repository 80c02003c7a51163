"""Where a cluster stands, for operators: the phase, the rollback, the nodes, what kmigrate is doing, what is wrong.

A document of one assessment judges everything; a step's document has what the step observed, and what it waits for. What a document does
not know is None. No gate, approval or permit reads it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite
from typing import Any, Final

from airflow_provider_kmigrate.core.cluster_state.model import Broker, ClusterView, Controller, Fields, Process, Reason
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec
from airflow_provider_kmigrate.core.migration import waits
from airflow_provider_kmigrate.core.migration.durations import Work
from airflow_provider_kmigrate.core.migration.gates import dual_write_lag
from airflow_provider_kmigrate.core.migration.migration_plan import plan_migration
from airflow_provider_kmigrate.core.migration.phase import Phase, position_of, zookeeper_controller
from airflow_provider_kmigrate.core.migration.plan_facts import PlanFacts
from airflow_provider_kmigrate.core.migration.readiness import Readiness, describe_readiness
from airflow_provider_kmigrate.core.monitoring.journal_lines import ActSpan
from airflow_provider_kmigrate.core.monitoring.watch import ClusterOwner, KnownActs, map_out_of_isr, unread_reasons
from airflow_provider_kmigrate.core.node_files.config_matrix import stage_on_disk
from airflow_provider_kmigrate.core.shared.text import count_of, format_date, format_duration, printable, summarize

DOCUMENT_KIND: Final = "status"
VERSION: Final = 3
MOST_BYTES: Final = 20_000
"""Of a document as JSON."""
_NOTHING: Final = Fields(0)
_LIMITS: Final = ((600, 100), (600, 12), (200, 12), (80, 8), (80, 4), (40, 3), (20, 2))
"""Characters of a text and items of a list of a document that would be too large; the next ones if it still is. JSON writes one character as up to 12 bytes."""
_WHOSE: Final = ("kind", "cluster", "cluster_id")
"""Never cut: another name would be another cluster's."""


@dataclass(frozen=True, slots=True)
class StatusFacts:
    """What a status is made of.

    `plan`: the migration's plan of now (`migration_plan.plan_migration`). `alarms`: one reason for each cause. `restart_seconds`: how long a
    restart of a broker usually takes here; None: none was measured. `owner`: the run that owns the cluster, None if none does or it is
    not known.
    """

    spec: ClusterSpec
    view: ClusterView
    readiness: Readiness
    acts: KnownActs
    plan: Mapping[str, Any]
    alarms: Sequence[Reason] = ()
    restart_seconds: float | None = None
    owner: ClusterOwner | None = None


class Doing(StrEnum):
    """What a task does as its status says it."""

    ACTS = "acts"
    WAITS = "waits"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class StepFacts:
    """What a step does at this moment. `seconds`: since its last act or healthy observation; `usual`, `limit`, `left` in seconds.

    `usual`: as this cluster's restarts took; None: not measured. `limit`: after which the step gives up. `left`: of the whole run; None:
    not known. `fields`: what it observes; without the position of the cluster nothing is said of it. `task_seconds`: what tasks
    took here, by journals, from which the rest is predicted.
    """

    name: str
    doing: Doing
    text: str = ""
    reasons: Sequence[Reason] = ()
    seconds: float = 0.0
    usual: float | None = None
    limit: float | None = None
    left: float | None = None
    fields: Fields = _NOTHING
    task_seconds: Mapping[Work, Sequence[float]] = field(default_factory=dict)


def describe_status(facts: StatusFacts) -> dict[str, Any]:
    """The status as JSON values, of which `status/schema.json` is the schema; at most `MOST_BYTES`."""
    now = facts.acts.now
    document = {
        **_describe_head(facts.spec, now),
        **_describe_view(facts.spec, facts.view, now),
        "rollback": _describe_rollback(facts.readiness, now),
        "progress": _describe_progress(facts.plan),
        "owner": None if facts.owner is None else {"run": facts.owner.run, "is_alive": facts.owner.alive},
        "under_way": [_describe_act(facts, node, act) for node, act in facts.acts.of.items() if facts.acts.is_under_way(node)],
        "alarms": [
            {
                "code": reason.code,
                "text": reason.text,
                "means": reason.meaning,
                "do": name_cluster(reason.next_step, facts.spec.name),
                "is_certain": reason.certain,
            }
            for reason in facts.alarms
        ],
        "unread": _list_unread(facts),
    }
    return shorten_document(document)


def describe_step_status(spec: ClusterSpec, view: ClusterView, now: float, step: StepFacts) -> dict[str, Any]:
    """The status that a step's own observation shows: it judges neither the rollback nor alarms. `now` in seconds since the epoch."""
    document = {**_describe_head(spec, now), "step": _describe_step(spec, step, now)}
    if step.fields & Fields.POSITION == Fields.POSITION:
        plan = plan_migration(PlanFacts(spec, view, {}, None, task_seconds=step.task_seconds, with_files=False))
        document |= {**_describe_view(spec, view, now), "progress": _describe_progress(plan)}
    return shorten_document(document)


def describe_task_end(spec: ClusterSpec, now: float, step: StepFacts) -> dict[str, Any]:
    """The status of a task without an observation of its own: how it ended."""
    return shorten_document({**_describe_head(spec, now), "step": _describe_step(spec, step, now)})


def _describe_head(spec: ClusterSpec, now: float) -> dict[str, Any]:
    """Every key of a document; those that it does not know are None."""
    unknown = dict.fromkeys(
        ("phase", "phase_text", "lag", "nodes", "rollback", "progress", "owner", "under_way", "alarms", "unread", "step")
    )
    known = {"kind": DOCUMENT_KIND, "version": VERSION, "cluster": spec.name, "cluster_id": spec.cluster_id}
    return {**known, "at_ms": round(1000 * now), **unknown, "left_out": 0}


def _describe_view(spec: ClusterSpec, view: ClusterView, now: float) -> dict[str, Any]:
    out_of_isr = None if view.partitions is None else map_out_of_isr(view)
    phase = position_of(view).phase
    is_begun = phase not in {Phase.ZOOKEEPER, Phase.UNKNOWN}
    return {
        "phase": str(phase),
        "phase_text": waits.describe_phase(view, now),
        "lag": dual_write_lag(view),
        "nodes": [
            *(_describe_broker(view, view.broker(node.id), out_of_isr) for node in spec.brokers),
            *(_describe_controller(view, view.controller(node.id), is_expected=is_begun) for node in spec.controllers),
        ],
    }


def _describe_rollback(readiness: Readiness, now: float) -> dict[str, Any]:
    forecast = readiness.forecast
    return {
        "level": str(readiness.level),
        "text": describe_readiness(readiness, now),
        "seconds": forecast.seconds,
        "loses": list(forecast.loses),
        "reasons": [
            {"code": part.reason.code, "text": part.reason.text, "fixed_by": part.fixed_by} for part in readiness.reasons
        ],
    }


def _describe_progress(plan: Mapping[str, Any]) -> dict[str, Any]:
    tasks = [task for stage in plan["stages"] for task in stage["tasks"] if task["node"]]
    left = [task["id"] for task in tasks if not task["is_done"]]
    return {
        "done": len(tasks) - len(left),
        "of": len(tasks),
        "next": left[0] if left else "",
        "stage": next((stage["stage"] for stage in plan["stages"] if any(task["id"] in left for task in stage["tasks"])), ""),
        "seconds_left": plan["seconds"]["expected"] - plan["soak_seconds"],
        "soak_seconds": plan["soak_seconds"],
    }


def _describe_step(spec: ClusterSpec, step: StepFacts, now: float) -> dict[str, Any]:
    """A reason says what to do only if the step has failed: while it waits, there is nothing to do."""
    has_failed = step.doing is Doing.FAILED
    return {
        "name": step.name,
        "doing": str(step.doing),
        "text": step.text,
        "reasons": [
            {"code": reason.code, "text": reason.text, "do": name_cluster(reason.next_step, spec.name) if has_failed else ""}
            for reason in step.reasons
        ],
        "since_ms": round(1000 * (now - step.seconds)),
        "usual_seconds": step.usual,
        "alarm_seconds": step.limit if step.limit is not None and isfinite(step.limit) else None,
        "seconds_left": step.left,
    }


def shorten_document(document: dict[str, Any]) -> dict[str, Any]:
    """The document with at most `MOST_BYTES`: nodes that are well are left out first, then texts and lists are cut, more and more."""
    shortened = document
    for longest, most in _LIMITS:
        if _size_of(shortened) <= MOST_BYTES:
            break
        nodes = document["nodes"] or []
        bad = [node for node in nodes if not node["is_well"]]
        shortened, omitted = _shorten({**document, "nodes": bad if nodes else document["nodes"]}, longest, most)
        shortened |= {"left_out": omitted + len(nodes) - len(bad), **{name: document[name] for name in _WHOSE}}
    return shortened


def _size_of(document: Mapping[str, Any]) -> int:
    return len(json.dumps(document).encode())


def _shorten(value: Any, longest: int, most: int) -> tuple[Any, int]:
    """A value with texts of at most `longest` characters and lists of at most `most` items; and how many items are left out."""
    if isinstance(value, str):
        return (value if len(value) <= longest else f"{value[: longest - 1]}…"), 0
    if isinstance(value, list):
        parts = [_shorten(item, longest, most) for item in value[:most]]
        return [part for part, _ in parts], sum(omitted for _, omitted in parts) + len(value) - len(parts)
    if isinstance(value, dict):
        named = {key: _shorten(item, longest, most) for key, item in value.items()}
        return {key: part for key, (part, _) in named.items()}, sum(omitted for _, omitted in named.values())
    return value, 0


def _list_unread(facts: StatusFacts) -> list[str]:
    """What was not read and is no alarm yet: unknown is not well. Without what kmigrate itself restarts."""
    alarm_texts = {reason.text for reason in facts.alarms}
    unread = [reason.text for reason in unread_reasons(facts.view) if not facts.acts.is_under_way(reason.node)]
    if facts.view.partitions is None:
        unread.append("The partitions and their ISRs were not read.")
    return [text for text in dict.fromkeys(unread) if text not in alarm_texts]


def _describe_act(facts: StatusFacts, node: str, act: ActSpan) -> dict[str, str]:
    """What kmigrate is doing to a node: since when, how long that usually takes, and when it becomes an alarm."""
    usual = "not measured yet" if facts.restart_seconds is None else format_duration(1000 * facts.restart_seconds)
    since, alarm = (
        format_duration(1000 * max(0.0, facts.acts.now - act.from_ms / 1000)),
        format_duration(1000 * facts.acts.restart_within),
    )
    return {"node": node, "text": f"{act.verb}, step '{act.step}': for {since}. Usual: {usual}. An alarm after {alarm}."}


def _describe_broker(view: ClusterView, broker: Broker, out_of_isr: Mapping[int, Sequence[str]] | None) -> dict[str, Any]:
    node = _describe_node(f"broker {broker.id}", broker) | {"mode": None if broker.mode is None else f"{broker.mode} mode"}
    if broker.mode is None:
        return node | {"state": f"does not answer; its process: {broker.process.state}", "is_well": False}
    leads = ", ZooKeeper controller" if zookeeper_controller(view) == broker.id else ""
    if out_of_isr is None:
        return node | {"state": f"{broker.mode} mode, ISR not read{leads}", "is_well": False}
    out = out_of_isr.get(broker.id, [])
    sync = f"out of {count_of(len(out), 'ISR')}: {summarize(out)}" if out else "in sync"
    return node | {"state": f"{broker.mode} mode, {sync}{leads}", "is_well": not out}


def _describe_controller(view: ClusterView, controller: Controller, *, is_expected: bool) -> dict[str, Any]:
    """`is_expected`: controllers were started: one that does not answer is not well."""
    node = _describe_node(f"controller {controller.id}", controller) | {"mode": "controller" if controller.answers else None}
    if not controller.answers:
        state = f"does not answer; its process: {controller.process.state}" if is_expected else "not started"
        return node | {"state": state, "is_well": not is_expected}
    flag = {True: "with the migration flag", False: "without the migration flag", None: "flag not read"}[
        controller.migration_flag
    ]
    active = "active, " if view.quorum is not None and view.quorum.leader_id == controller.id else ""
    return node | {"state": f"{active}{flag}", "is_well": True}


def _describe_node(name: str, node: Broker | Controller) -> dict[str, Any]:
    """Its properties file's stage and its unit, as far as they were read."""
    stage = stage_on_disk(node.files)
    return {"node": name, "file": None if stage is None else str(stage), "unit": _describe_unit(node.process)}


def _describe_unit(process: Process) -> str:
    name = process.unit.shown.get("Id", "") if process.unit else ""
    return f"{name} {process.state}".strip()


AT_REST: Final = frozenset({Phase.ZOOKEEPER, Phase.FINALIZED})
"""Phases in which no migration is under way."""


def is_waiting_for_a_run(document: Mapping[str, Any]) -> bool:
    """Whether a migration is under way and no run owns the cluster: nothing continues it."""
    return Phase(document["phase"]) not in AT_REST and document["owner"] is None


def is_well(document: Mapping[str, Any]) -> bool:
    """Whether no action is required, as far as is known: everything was read."""
    return not document["alarms"] and not document["unread"] and not is_waiting_for_a_run(document)


def render_status(document: Mapping[str, Any]) -> str:
    """A status in words for a terminal, the question of 3 a.m. first."""
    progress, owner = document["progress"], document["owner"]
    lines = [
        f"{printable(document['cluster'])} ({document['cluster_id']}), {format_date(document['at_ms'])}",
        "",
        *_render_alarms(document),
        f"Rollback   {document['rollback']['text']}",
        f"Phase      {document['phase_text']}",
        f"Progress   {progress['done']} of {count_of(progress['of'], 'start or restart', 'starts and restarts')} done. {_describe_rest(progress)}",
        f"Run        {_describe_owner(owner)}",
        *(f"Under way  {act['node']}: {act['text']}" for act in document["under_way"]),
        "",
        *(f"  {'' if node['is_well'] else '!':1} {node['node']:<16} {node['state']}" for node in document["nodes"]),
    ]
    return "\n".join(lines) + "\n"


def _render_alarms(document: Mapping[str, Any]) -> list[str]:
    alarms, unread = document["alarms"], document["unread"]
    if not alarms and not unread:
        return list(_WITHOUT_RUN) if is_waiting_for_a_run(document) else ["No action is required."]
    unknown = [f"Not known: {text}" for text in unread]
    unknown += (
        []
        if alarms
        else [
            "  Whether an operator must act is not known either. Next: run the command again; then find out why this does not answer."
        ]
    )
    certain = {(alarm["code"], alarm["do"]) for alarm in alarms if alarm["is_certain"]}
    passing = [
        {**alarm, "text": f"{alarm['text']}{'' if (alarm['code'], alarm['do']) in certain else ' It may pass by itself.'}"}
        for alarm in alarms
    ]
    return [
        *list_reason_lines(passing),
        *unknown,
        "",
    ]  # a node that is down is an alarm first, and then in all that it did not answer


_WITHOUT_RUN: Final = (
    "No alarm. A migration is under way, and no run owns the cluster: nothing continues it.",
    "  Next: `kmigrate why` names the run to start, to continue or to roll back.",
)


def name_cluster(step: str, cluster: str) -> str:
    """A step of the runbook with the cluster's own name, so that it can be typed as it stands."""
    return step.replace("<cluster>", cluster)


def list_reason_lines(reasons: Sequence[Mapping[str, Any]]) -> list[str]:
    """What was seen, line by line, then the next step, then why it matters, each once: reasons `{"code", "text", "means", "do"}` of one code follow one another.

    `is_certain` false: it may pass by itself, and what to do is said only for the case that it does not; beside a certain one with the same code and next step, it is one more
    observation, which stands behind that step.
    """
    certain = {(reason["code"], reason["do"]) for reason in reasons if reason.get("is_certain", True)}
    groups: dict[tuple[str, str, str, bool], list[str]] = {}
    for reason in reasons:
        texts = groups.setdefault((reason["code"], reason["means"], reason["do"], reason.get("is_certain", True)), [])
        code = f"[{reason['code']}] " if reason["code"] else ""
        texts.append(f"{code}{printable(reason['text'])}")
    lines: list[str] = []
    for (code, means, do, is_certain), texts in groups.items():
        label = "Next" if is_certain else "If it does not pass"
        lines += dict.fromkeys(texts)
        if not is_certain and (code, do) in certain:
            continue
        lines += [
            *([f"  {label}: {do}"] if do else []),
            *([f"  Why it matters: {means}"] if means else []),
        ]
    return lines


def _describe_rest(progress: Mapping[str, Any]) -> str:
    if not progress["next"]:
        return "Nothing is left."
    rest = f"Left: about {format_duration(1000 * progress['seconds_left'])} of work"
    soak = (
        f", and of the soak of {format_duration(1000 * progress['soak_seconds'])} what has not passed yet"
        if progress["soak_seconds"]
        else ""
    )
    return f"{rest}{soak}. Next node: {progress['next']}."


def _describe_owner(owner: Mapping[str, Any] | None) -> str:
    if owner is None:
        return "No run owns the cluster."
    return f"{printable(owner['run'])} owns the cluster; {'a process of it is alive' if owner['is_alive'] else 'no process of it is alive'}."


def render_row(document: Mapping[str, Any]) -> str:
    """A cluster of many on one line."""
    progress, codes = document["progress"], summarize(alarm["code"] for alarm in document["alarms"])
    done = f"{progress['done']}/{progress['of']}"
    rest = "no run owns it" if is_waiting_for_a_run(document) else "no action required"
    need = "not all read" if document["unread"] else rest
    return f"{document['cluster']:<24} {done:>7}  rollback {document['rollback']['level']:<9} {document['phase']:<40} {codes or need}"
