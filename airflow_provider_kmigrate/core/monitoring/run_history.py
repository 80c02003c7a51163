"""What runs have done to a cluster, from its journals: each run with its phases, each restart with its duration.

The journals are evidence: nothing is decided by it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final

from airflow_provider_kmigrate.core.monitoring.journal_lines import (
    JournalLine,
    JournalLines,
    list_acts,
    list_phases,
    restart_seconds,
)
from airflow_provider_kmigrate.core.shared.text import count_of, format_date, format_duration, printable

DOCUMENT_KIND: Final = "history"
VERSION: Final = 1
_ALARMS: Final = frozenset({"alarm", "failed", "lost", "stopped"})


def describe_history(cluster: str, cluster_id: str, journals: JournalLines) -> dict[str, Any]:
    """The history as JSON values; a run's lines may be in several files, and a file may hold several runs.

    `{"kind", "version", "cluster", "cluster_id", "unreadable", "runs": [{"run", "from_ms", "to_ms", "phases": [{"phase", "from_ms", "to_ms", "done"}],
    "acts": [{"step", "verb", "from_ms", "to_ms", "settled_ms"}], "restarts": {"count", "median_seconds", "longest_seconds"}, "events": [{"at_ms",
    "kind", "step", "text"}]}]}`, oldest first. A time that was not recorded is null.
    """
    lines_by_run: dict[str, list[JournalLine]] = {}
    for line in journals.lines:
        lines_by_run.setdefault(line.run, []).append(line)
    return {
        "kind": DOCUMENT_KIND,
        "version": VERSION,
        "cluster": cluster,
        "cluster_id": cluster_id,
        "unreadable": journals.unreadable,
        "runs": [_describe_run(run, lines) for run, lines in lines_by_run.items()],
    }


def _describe_run(run: str, lines: Sequence[JournalLine]) -> dict[str, Any]:
    acts = list_acts(lines)
    seconds = restart_seconds(acts)
    return {
        "run": run,
        "from_ms": min(line.began_ms for line in lines),
        "to_ms": lines[-1].at_ms,
        "phases": [
            {"phase": span.name, "from_ms": span.from_ms, "to_ms": span.to_ms, "done": span.done} for span in list_phases(lines)
        ],
        "acts": [
            {"step": act.step, "verb": act.verb, "from_ms": act.from_ms, "to_ms": act.to_ms, "settled_ms": act.settled_ms}
            for act in acts
        ],
        "restarts": {
            "count": len(seconds),
            "median_seconds": median(seconds) if seconds else None,
            "longest_seconds": max(seconds, default=None),
        },
        "events": [
            {"at_ms": line.at_ms, "kind": line.kind, "step": line.step, "text": line.text}
            for line in lines
            if line.kind in _ALARMS
        ],
    }


def render_history(document: Mapping[str, Any]) -> str:
    """The history in words for a terminal, the newest run last."""
    lines = [f"{printable(document['cluster'])} ({document['cluster_id']}), runs in the journals: {len(document['runs'])}"]
    lines += [f"Lines that could not be read, and are left out: {document['unreadable']}."] if document["unreadable"] else []
    for run in document["runs"]:
        lines += [
            "",
            f"{printable(run['run'])}",
            f"  {format_date(run['from_ms'])}, for {_format_span(run['from_ms'], run['to_ms'])}",
        ]
        lines += [
            f"  {printable(phase['phase']):<22} {_format_span(phase['from_ms'], phase['to_ms']):>12}  {count_of(phase['done'], 'step')} done"
            for phase in run["phases"]
        ]
        lines += [
            f"  {format_date(act['from_ms'])}  {printable(act['step'])}: {printable(act['verb'])}, {_describe_end(act)}"
            for act in run["acts"]
        ]
        lines += _describe_restarts(run["restarts"])
        lines += [
            f"  {format_date(event['at_ms'])}  {event['kind']}, {printable(event['step'])}: {printable(event['text'])}"
            for event in run["events"]
        ]
    return "\n".join(lines) + "\n"


def _describe_end(act: Mapping[str, Any]) -> str:
    if act["settled_ms"] is not None:
        return f"all healthy after {_format_span(act['from_ms'], act['settled_ms'])}"
    if act["to_ms"] is not None:
        return f"took {_format_span(act['from_ms'], act['to_ms'])}; its step's end was not recorded"
    return "its end was not recorded"


def _describe_restarts(restarts: Mapping[str, Any]) -> list[str]:
    if not restarts["count"]:
        return []
    usual, longest = (format_duration(1000 * restarts[name]) for name in ("median_seconds", "longest_seconds"))
    return [
        f"  {count_of(restarts['count'], 'restart')} of brokers: {usual} at the median, {longest} at most, until every ISR was whole."
    ]


def _format_span(from_ms: int, to_ms: int) -> str:
    return format_duration(max(0, to_ms - from_ms))
