"""Stored statuses in words, for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from airflow_provider_kmigrate.core.monitoring.status import list_reason_lines
from airflow_provider_kmigrate.core.shared.text import count_of, format_duration, printable
from airflow_provider_kmigrate.pages.next_move import NextMove, describe_start, find_next_move, order_by_need
from airflow_provider_kmigrate.pages.stored import ClusterStatus, Light, StepStatus, describe_row

_HEADS: Final = {
    "light": "",
    "cluster": "CLUSTER",
    "phase": "PHASE",
    "step": "STEP",
    "rollback": "ROLLBACK?",
    "lag": "LAG",
    "left": "LEFT",
    "waits": "WAITS FOR",
    "age": "WRITTEN BY",
}
WITHOUT_RUN: Final = "A migration is under way, and no run owns the cluster: nothing continues it."
_WIDEST: Final = 48  # characters of a cell, but of the last one
LIGHT_WORDS: Final[Mapping[Light, str]] = {
    Light.ACT: "ACT",
    Light.ASK: "ANSWER",
    Light.LOOK: "look",
    Light.WELL: "ok",
    Light.OLD: "old",
    Light.UNKNOWN: "no status",
}


def render_table(statuses: Sequence[ClusterStatus]) -> str:
    """One line for each cluster, those that need an operator first; then the next move for each of those."""
    if not statuses:
        return "Airflow shows no cluster of kmigrate to this user.\n"
    ordered = order_by_need(statuses)
    rows = [dict(describe_row(status)) for status in ordered]
    table = [_HEADS, *({**row, "light": LIGHT_WORDS[Light(row["light"])]} for row in rows)]
    cells = [[_cut(printable(row[key])) if key != "age" else printable(row[key]) for key in _HEADS] for row in table]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_HEADS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    moves = [f"{status.cluster}: {describe_move(move)}" for status in ordered if (move := find_next_move(status)).text]
    forged = [f"{status.cluster}: {describe_problem(status)}" for status in statuses if status.problems]
    return "\n".join((*lines, *map(printable, forged), *([""] if moves else []), *map(printable, moves))) + "\n"


def describe_move(move: NextMove) -> str:
    """The next move, the command that shows its entry of the runbook, and the path of its page in Airflow."""
    entry = f" (kmigrate runbook {move.code})" if move.code else ""
    return f"next: {move.text}{entry}{f' {move.path}' if move.path else ''}"


def _cut(text: str) -> str:
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"


def describe_problem(status: ClusterStatus) -> str:
    """Which stored status is not shown, and why."""
    entry = status.problems[0]
    more = f" And {len(status.problems) - 1} more." if len(status.problems) > 1 else ""
    return f"A stored status of {entry.writer} is not shown. {entry.problem} It was not written by this kmigrate, or was altered.{more}"


def render_cluster(status: ClusterStatus) -> str:
    """A cluster in words, what an operator must do first; each part with its writer and its age."""
    judged, step, seen = (entry.document if entry else None for entry in (status.judged, status.step, status.seen))
    lines = [f"{status.cluster}: {LIGHT_WORDS[status.light]}", ""]
    if status.problems:
        lines += [describe_problem(status), ""]
    for request in status.requests:
        lines += [
            f"Waits for an answer: {request.subject} ({request.dag_id}, run {request.run_id}, task {request.task_id})",
            "  Next: read the request and answer it, in Airflow under Required Actions. Until then nothing is changed.",
            "",
        ]
    lines += list_reason_lines([alarm.model_dump() for alarm in judged.alarms or ()]) if judged else []
    if step and step.step and step.step.doing == "failed":
        lines += [f"Stopped: {step.step.name}"] if step.step.reasons else []
        lines += list_reason_lines([{**reason.model_dump(), "means": ""} for reason in step.step.reasons])
    if status.is_without_run:
        lines += [WITHOUT_RUN, f"  Next: {describe_start(status.observed_cluster)}", ""]
    lines += [f"Not known: {text}" for text in (judged.unread or ())] if judged else []
    if judged and judged.rollback and status.judged:
        lines += [f"Rollback   {judged.rollback.text}", f"           judged by {status.describe_age(status.judged)}"]
    else:
        lines += ["Rollback   No task has judged it. Unpause kmigrate_watch, which judges it every ten minutes."]
    if seen and status.seen:
        lines += [f"Phase      {seen.phase_text}", f"           seen by {status.describe_age(status.seen)}"]
        lines += (
            [f"Progress   {seen.progress.done} of {count_of(seen.progress.of, 'start or restart', 'starts and restarts')} done."]
            if seen.progress
            else []
        )
    if step and step.step and status.step:
        lines += [
            f"Task       {describe_step(step.step, status.now_ms)}",
            f"           written by {status.describe_age(status.step)}",
        ]
    nodes = (seen.nodes or ()) if seen else ()
    lines += ["", *(f"  {'' if node.is_well else '!':1} {node.node:<16} {node.state}" for node in nodes)]
    return "\n".join(map(printable, lines)) + "\n"


def describe_step(step: StepStatus, now_ms: int) -> str:
    """What a task does or waits for, how long that usually takes, and when it becomes an alarm."""
    reasons = " ".join(f"[{reason.code}] {reason.text}".removeprefix("[] ") for reason in step.reasons)
    text = f"{step.name} {step.doing}. {reasons or step.text}".strip()
    return f"{text} {describe_times(step, now_ms)}".strip()


def describe_times(step: StepStatus, now_ms: int) -> str:
    """Since when a task waits, how long that usually takes, and when it gives up; empty if it does not wait."""
    if step.doing != "waits":
        return ""
    since = format_duration(max(0, now_ms - step.since_ms))
    usual = "not measured yet" if step.usual_seconds is None else format_duration(1000 * step.usual_seconds)
    alarm = f" An alarm after {format_duration(1000 * step.alarm_seconds)}." if step.alarm_seconds else ""
    return f"For {since}. Usual: {usual}.{alarm}"


def to_json(status: ClusterStatus) -> dict[str, Any]:
    """`{"cluster", "light", "judged", "step", "seen", "problems", "requests"}`: each part with `writer`, `stored_ms`, `document`."""
    parts = {
        name: entry
        and {
            "writer": entry.writer,
            "stored_ms": entry.stored.stored_ms,
            "is_old": status.is_old(entry),
            "document": entry.document.model_dump() if entry.document else None,
        }
        for name, entry in (("judged", status.judged), ("step", status.step), ("seen", status.seen))
    }
    problems = [
        {"writer": entry.writer, "stored_ms": entry.stored.stored_ms, "problem": entry.problem} for entry in status.problems
    ]
    requests = [
        {
            "dag_id": each.dag_id,
            "run_id": each.run_id,
            "task_id": each.task_id,
            "subject": each.subject,
            "asked_ms": each.asked_ms,
        }
        for each in status.requests
    ]
    return {"cluster": status.cluster, "light": str(status.light), **parts, "problems": problems, "requests": requests}
