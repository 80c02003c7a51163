"""The page's words and tables: verdict, evidence, findings, figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import starmap
from typing import Final

from airflow_provider_kmigrate.core.audit.report_facts import Ledger, ReportFacts
from airflow_provider_kmigrate.core.audit.verdict import CLAIMS, AuditFinding, AuditOutcome, AuditVerdict, Level
from airflow_provider_kmigrate.core.ledger.facts import Case, Facts
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from airflow_provider_kmigrate.core.text import date, duration, moment, number, prose, safe

_MARKS = {AuditOutcome.PASS: "\N{CHECK MARK}", AuditOutcome.FAIL: "\N{MULTIPLICATION X}", AuditOutcome.INCONCLUSIVE: "?"}
_MEANING = {
    AuditOutcome.PASS: "Everything that was measured is correct.",
    AuditOutcome.FAIL: "Something that must not happen has happened, and the records that show it are below.",
    AuditOutcome.INCONCLUSIVE: "Nothing wrong was shown, but the evidence is not enough to say that all is well.",
}
_NAMES = {
    Level.LOG: "the log itself, no client changed",
    Level.PROBE: "kmigrate's own records through every broker",
    Level.CONSUMER: "consumers that record what they receive",
    Level.PRODUCER: "producers that record what was acknowledged",
}
_FINDING_TEXTS = {AuditOutcome.FAIL: "broken", AuditOutcome.INCONCLUSIVE: "not known", AuditOutcome.PASS: "note"}
MAX_FINDINGS = 60


def header(facts: ReportFacts) -> str:
    """The verdict in words, and its subject."""
    outcome, subject = facts.verdict.outcome, facts.subject
    about = {
        "Cluster": f"{subject.cluster} ({subject.cluster_id})",
        "Run": subject.run,
        "Window": f"{date(facts.window.from_ms)}, {duration(facts.window.to_ms - facts.window.from_ms)}",
        "Report made": date(subject.made_ms),
    }
    return (
        f'<header class="verdict {outcome.lower()}"><h1>Audit of {safe(subject.cluster)}</h1>'
        f'<p class="outcome"><span aria-hidden="true">{_MARKS[outcome]}</span> {outcome}</p>'
        f'<p class="headline">{safe(_headline(facts.verdict))}</p><p class="soft">{_MEANING[outcome]}</p>'
        f"{_described('facts', about)}</header>"
    )


def _described(css: str, values: Mapping[str, str]) -> str:
    pairs = (f"<div><dt>{safe(name)}</dt><dd>{safe(value)}</dd></div>" for name, value in values.items())
    return f'<dl class="{css}">{"".join(pairs)}</dl>'


def _headline(verdict: AuditVerdict) -> str:
    """The headline without the outcome in front, as a sentence."""
    text = verdict.headline.removeprefix(f"{verdict.outcome}: ")
    return text[:1].upper() + text[1:]


def mark(outcome: AuditOutcome | None, words: str = "") -> str:
    """An outcome as sign and word, so that no colour is needed to read it."""
    if outcome is None:
        return '<span class="mark none">not measured</span>'
    return f'<span class="mark {outcome.lower()}"><span aria-hidden="true">{_MARKS[outcome]}</span> {words or outcome}</span>'


def evidence(facts: ReportFacts) -> str:
    """Each level of evidence: what it can show, and its outcome."""
    found = facts.verdict.levels
    rows = ((level.label, mark(found.get(level)), safe(CLAIMS[level]), safe(_NAMES[level])) for level in Level)
    table = scrolling("Levels of evidence", {"Level": "th", "Says": "", "What it can show": "", "Made of": ""}, rows)
    return f'<section id="evidence"><h2>What the verdict rests on</h2>{table}</section>'


def scrolling(caption: str, columns: Mapping[str, str], rows: Iterable[Sequence[str]], *, show_caption: bool = False) -> str:
    """A table that may be wider than the screen; the keyboard can move it.

    `columns`: each title with the class of its cells, or `th` for what a row is about. Cells are HTML.
    """
    head = "".join(f"<th scope=col>{safe(name)}</th>" for name in columns)
    lines = (f"<tr>{''.join(starmap(_cell, zip(columns.values(), cells, strict=True)))}</tr>" for cells in rows)
    title = f"<caption>{safe(caption)}</caption>" if show_caption else ""
    body = f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    return f'<div class="scroll" role="region" aria-label="{safe(caption)}" tabindex="0">{body}</div>'


def _cell(kind: str, html: str) -> str:
    if kind == "th":
        return f"<th scope=row>{html}</th>"
    return f'<td class="{kind}">{html}</td>' if kind else f"<td>{html}</td>"


def findings(facts: ReportFacts) -> str:
    """All grounds of the verdict, worst first, each with its counter-examples."""
    found = facts.verdict.findings
    if not found:
        return '<section id="findings"><h2>Findings</h2><p>None.</p></section>'
    left = len(found) - MAX_FINDINGS
    more = f'<p class="soft">{left} more are in the JSON file.</p>' if left > 0 else ""
    return f'<section id="findings"><h2>Findings</h2>{"".join(map(_finding, found[:MAX_FINDINGS]))}{more}</section>'


def _finding(finding: AuditFinding) -> str:
    reason, level = finding.reason, f" &middot; {finding.level.label}" if finding.level is not None else ""
    why = f"<p>{prose(reason.meaning)}</p>" if reason.meaning else ""
    acts = reason.next_step and finding.outcome is not AuditOutcome.PASS
    remedy = f"<p><strong>Next:</strong> {prose(reason.next_step)}</p>" if acts else ""
    first = f"<p>{mark(finding.outcome, _FINDING_TEXTS[finding.outcome])} <strong>{safe(reason.text)}</strong></p>"
    source = f'<span class="soft"><code>{safe(reason.code)}</code>{level}</span>'
    return f'<article class="finding">{first}{why}{remedy}{source}{_examples(finding)}</article>'


_MILLISECONDS: Final = {AuditCause.DOUBLE_OWNED, AuditCause.UNOWNED}  # other findings count records


def _examples(finding: AuditFinding) -> str:
    if not finding.examples:
        return ""
    title = f"{finding.reason.code}: the first {len(finding.examples)} of the places where it can be looked up"
    lasts = finding.reason.cause in _MILLISECONDS
    columns = {
        "Partition": "keep",
        "Offsets": "keep",
        "Time" if lasts else "Count": "right",
        "Group": "",
        "Members and producers": "",
        "From (UTC)": "keep",
        "To (UTC)": "keep",
        "Note": "",
    }
    rows = [_example(case, duration(case.count) if lasts else number(case.count)) for case in finding.examples]
    if finding.outcome is AuditOutcome.PASS:  # self-explanatory only
        return f"<details><summary>{safe(title)}</summary>{scrolling(title, columns, rows)}</details>"
    return scrolling(title, columns, rows, show_caption=True)


def _example(case: Case, count: str) -> list[str]:
    who = ", ".join((*case.members, *([case.producer] if case.producer else [])))
    cells = (f"{case.topic}-{case.partition}", offsets(case), count, case.group or "", who)
    return list(map(safe, (*cells, moment(case.from_ms), moment(case.to_ms), case.note)))


def figures(facts: ReportFacts) -> str:
    """The totals of every ledger."""
    if not facts.ledgers:
        return ""
    parts = "".join(_totals(ledger) for ledger in facts.ledgers)
    return f'<section id="figures"><h2>Figures</h2>{parts}</section>'


def _totals(ledger: Ledger) -> str:
    return f"<h3>{ledger.level.label}: {safe(_NAMES[ledger.level])}</h3>{_described('numbers', _figures(ledger.facts))}"


def _figures(found: Facts) -> dict[str, str]:
    values = {"acknowledged": number(found.acked)}
    values |= {f"delivered to {group}": number(count) for group, count in sorted(found.delivered.items())}
    values |= {"lost": number(found.lost.count), "not observed": number(found.unseen.count)}
    values |= {"duplicated": number(found.duplicated), "out of order": number(found.reordered.count)}
    values["two owners at once"] = duration(found.double_owned.count)
    if found.longest_stall_ms is not None:
        values["longest produce stall"] = duration(found.longest_stall_ms)
    if found.longest_gap:
        values["longest delivery gap"] = duration(found.longest_gap.ms)
    return values


def about(facts: ReportFacts, json_name: str) -> str:
    """Hints on reading the page, and the place of the same facts for programs."""
    unreadable = f"{facts.unreadable} lines of the journal could not be read. " if facts.unreadable else ""
    return (
        '<section id="about"><h2>How to read this</h2>'
        "<p>A verdict is the worst of its findings. PASS needs every required level of evidence without a hole; what was not "
        "measured is never counted as good. Offsets, members and times of each finding are those of the brokers and clients, "
        "so that any of them can be looked up with Kafka's own tools.</p>"
        "<p>Times are UTC, from the clocks of the machines that wrote them. Who owned a partition is decided by the order of the "
        "entries in one log where the clients keep one, not by clocks.</p>"
        f'<p class="soft">{unreadable}The same facts for programs: <a href="{safe(json_name)}"><code>{safe(json_name)}</code></a>.'
        "</p></section>"
    )


def offsets(case: Case) -> str:
    """The offsets of a counter-example, or the producer's numbers if no broker gave an offset."""
    if case.first >= 0:
        return _span(case.first, case.last)
    if case.seq_first is None:
        return ""
    return f"no. {_span(case.seq_first, case.seq_last if case.seq_last is not None else case.seq_first)}"


def _span(first: int, last: int) -> str:
    if last < 0:
        return f"from {number(first)}"
    return number(first) if first == last else f"{number(first)}\N{EN DASH}{number(last)}"
