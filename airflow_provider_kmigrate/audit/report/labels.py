"""The page's words and tables: verdict, evidence, findings, figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import starmap
from typing import Final

from airflow_provider_kmigrate.core.audit.report_facts import Ledger, ReportFacts
from airflow_provider_kmigrate.core.audit.verdict import CLAIMS, AuditFinding, AuditOutcome, AuditVerdict, Level
from airflow_provider_kmigrate.core.ledger.facts import Case, Facts, GroupBalance
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from airflow_provider_kmigrate.core.shared.text import (
    Count,
    escape_html,
    format_date,
    format_duration,
    format_number,
    format_time,
    prose_to_html,
)

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


def render_header(facts: ReportFacts) -> str:
    """The verdict in words, and its subject."""
    outcome, subject = facts.verdict.outcome, facts.subject
    about = {
        "Cluster": f"{subject.cluster} ({subject.cluster_id})",
        "Run": subject.run,
        "Window": f"{format_date(facts.window.from_ms)}, {format_duration(facts.window.to_ms - facts.window.from_ms)}",
        "Report made": format_date(subject.made_ms),
    }
    return (
        f'<header class="verdict {outcome.lower()}"><h1>Audit of {escape_html(subject.cluster)}</h1>'
        f'<p class="outcome"><span aria-hidden="true">{_MARKS[outcome]}</span> {outcome}</p>'
        f'<p class="headline">{escape_html(_headline_sentence(facts.verdict))}</p><p class="soft">{_MEANING[outcome]}</p>'
        f"{_render_pairs('facts', about)}</header>"
    )


def _render_pairs(css: str, values: Mapping[str, str]) -> str:
    pairs = (f"<div><dt>{escape_html(name)}</dt><dd>{escape_html(value)}</dd></div>" for name, value in values.items())
    return f'<dl class="{css}">{"".join(pairs)}</dl>'


def _headline_sentence(verdict: AuditVerdict) -> str:
    """The headline without the outcome in front, as a sentence."""
    text = verdict.headline.removeprefix(f"{verdict.outcome}: ")
    return text[:1].upper() + text[1:]


def render_outcome(outcome: AuditOutcome | None, words: str = "") -> str:
    """An outcome as sign and word, so that no colour is needed to read it."""
    if outcome is None:
        return '<span class="mark none">not measured</span>'
    return f'<span class="mark {outcome.lower()}"><span aria-hidden="true">{_MARKS[outcome]}</span> {words or outcome}</span>'


def render_evidence(facts: ReportFacts) -> str:
    """Each level of evidence: what it can show, and its outcome."""
    outcomes = facts.verdict.levels
    rows = (
        (level.label, render_outcome(outcomes.get(level)), escape_html(CLAIMS[level]), escape_html(_NAMES[level]))
        for level in Level
    )
    table = render_table("Levels of evidence", {"Level": "th", "Says": "", "What it can show": "", "Made of": ""}, rows)
    return f'<section id="evidence"><h2>What the verdict rests on</h2>{table}</section>'


def render_table(caption: str, columns: Mapping[str, str], rows: Iterable[Sequence[str]], *, show_caption: bool = False) -> str:
    """A table that may be wider than the screen; the keyboard can move it.

    `columns`: each title with the class of its cells, or `th` for what a row is about. Cells are HTML.
    """
    head = "".join(f"<th scope=col>{escape_html(name)}</th>" for name in columns)
    lines = (f"<tr>{''.join(starmap(_render_cell, zip(columns.values(), cells, strict=True)))}</tr>" for cells in rows)
    title = f"<caption>{escape_html(caption)}</caption>" if show_caption else ""
    body = f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    return f'<div class="scroll" role="region" aria-label="{escape_html(caption)}" tabindex="0">{body}</div>'


def _render_cell(kind: str, html: str) -> str:
    if kind == "th":
        return f"<th scope=row>{html}</th>"
    return f'<td class="{kind}">{html}</td>' if kind else f"<td>{html}</td>"


def render_findings(facts: ReportFacts) -> str:
    """All grounds of the verdict, worst first, each with its counter-examples."""
    all_findings = facts.verdict.findings
    if not all_findings:
        return '<section id="findings"><h2>Findings</h2><p>None.</p></section>'
    not_shown = len(all_findings) - MAX_FINDINGS
    more = f'<p class="soft">{Count(not_shown):more finding is|more findings are} in the JSON file.</p>' if not_shown > 0 else ""
    return f'<section id="findings"><h2>Findings</h2>{"".join(map(_render_finding, all_findings[:MAX_FINDINGS]))}{more}</section>'


def _render_finding(finding: AuditFinding) -> str:
    reason, level = finding.reason, f" &middot; {finding.level.label}" if finding.level is not None else ""
    why = f"<p>{prose_to_html(reason.meaning)}</p>" if reason.meaning else ""
    acts = reason.next_step and finding.outcome is not AuditOutcome.PASS
    remedy = f"<p><strong>Next:</strong> {prose_to_html(reason.next_step)}</p>" if acts else ""
    first = (
        f"<p>{render_outcome(finding.outcome, _FINDING_TEXTS[finding.outcome])} <strong>{escape_html(reason.text)}</strong></p>"
    )
    source = f'<span class="soft"><code>{escape_html(reason.code)}</code>{level}</span>'
    return f'<article class="finding">{first}{why}{remedy}{source}{_render_examples(finding)}</article>'


_MILLISECONDS: Final = {AuditCause.DOUBLE_OWNED, AuditCause.UNOWNED}  # other findings count records


def _render_examples(finding: AuditFinding) -> str:
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
    rows = [
        _example_cells(case, format_duration(case.count) if lasts else format_number(case.count)) for case in finding.examples
    ]
    if finding.outcome is AuditOutcome.PASS:  # self-explanatory only
        return f"<details><summary>{escape_html(title)}</summary>{render_table(title, columns, rows)}</details>"
    return render_table(title, columns, rows, show_caption=True)


def _example_cells(case: Case, count: str) -> list[str]:
    clients = ", ".join((*case.members, *([case.producer] if case.producer else [])))
    cells = (f"{case.topic}-{case.partition}", format_offsets(case), count, case.group or "", clients)
    return list(map(escape_html, (*cells, format_time(case.from_ms), format_time(case.to_ms), case.note)))


def render_figures(facts: ReportFacts) -> str:
    """The totals of every ledger."""
    if not facts.ledgers:
        return ""
    parts = "".join(_render_totals(ledger) for ledger in facts.ledgers)
    return f'<section id="figures"><h2>Figures</h2>{parts}</section>'


def _render_totals(ledger: Ledger) -> str:
    figures = _render_pairs("numbers", _format_figures(ledger.facts))
    return f"<h3>{ledger.level.label}: {escape_html(_NAMES[ledger.level])}</h3>{figures}{_render_balances(ledger.facts.balances)}"


_SUM_TERMS: Final[Mapping[str, tuple[str, str]]] = {
    "once": ("delivered", "each record once"),
    "to_come": ("still to come", "acknowledged so recently that the group need not have received them yet"),
    "unread": ("not read yet", "acknowledged after the end of the group's events that were read: it may have received them"),
    "lost": ("lost", "see the findings"),
    "unseen": ("not observed", "no delivery was found, and the evidence is not enough to call them lost"),
    "not_due": ("not due", "acknowledged before the group began, or received by members without events"),
}


def _render_balances(balances: Sequence[GroupBalance]) -> str:
    """How each group's figures add up, and what each word means."""
    if not balances:
        return ""
    terms = {name: words for name, words in _SUM_TERMS.items() if any(getattr(balance, name) for balance in balances)}
    notes = [f"{name}: {meaning}" for name, meaning in terms.values()]
    if any(balance.repeats for balance in balances):
        notes.append("duplicates: delivered to the group before, and in no other figure of the sum")
    if any(balance.unacknowledged for balance in balances):
        notes.append(
            "without an acknowledgement: delivered, and their producer writes no events, or its newest events were not read yet"
        )
    sums = "".join(f"<p class=sum>{escape_html(describe_balance(balance))}</p>" for balance in balances)
    meanings = "".join(f"<li>{escape_html(note)}</li>" for note in notes)
    return f'{sums}<ul class="soft">{meanings}</ul>'


def describe_balance(balance: GroupBalance) -> str:
    """A group's figures as a sum: `billing: 100 acknowledged = 98 delivered + 2 still to come; 3 duplicates besides.`"""
    parts = [
        f"{format_number(getattr(balance, name))} {words}"
        for name, (words, _) in _SUM_TERMS.items()
        if getattr(balance, name) or name == "once"
    ]
    others = f" + {format_number(balance.unacknowledged)} without an acknowledgement" if balance.unacknowledged else ""
    repeats = f"; {Count(balance.repeats):duplicate} besides" if balance.repeats else ""
    return f"{balance.group}: {format_number(balance.acked)} acknowledged{others} = {' + '.join(parts)}{repeats}."


def _format_figures(facts: Facts) -> dict[str, str]:
    values = {"acknowledged": format_number(facts.acked)}
    values |= {f"delivered to {group}": format_number(count) for group, count in sorted(facts.delivered.items())}
    values |= {"lost": format_number(facts.lost.count), "not observed": format_number(facts.unseen.count)}
    values |= {"duplicated": format_number(facts.duplicated), "out of order": format_number(facts.reordered.count)}
    values["two owners at once"] = format_duration(facts.double_owned.count)
    if facts.longest_stall_ms is not None:
        values["longest produce stall"] = format_duration(facts.longest_stall_ms)
    if facts.longest_gap:
        values["longest delivery gap"] = format_duration(facts.longest_gap.ms)
    return values


def render_about(facts: ReportFacts, json_name: str) -> str:
    """Hints on reading the page, and the place of the same facts for programs."""
    unreadable = f"{Count(facts.unreadable):line} of the journal could not be read. " if facts.unreadable else ""
    return (
        '<section id="about"><h2>How to read this</h2>'
        "<p>A verdict is the worst of its findings. PASS needs every required level of evidence without a hole; what was not "
        "measured is never counted as good. Offsets, members and times of each finding are those of the brokers and clients, "
        "so that any of them can be looked up with Kafka's own tools.</p>"
        "<p>Times are UTC, from the clocks of the machines that wrote them. Who owned a partition is decided by the order of the "
        "entries in one log where the clients keep one, not by clocks.</p>"
        f'<p class="soft">{unreadable}The same facts for programs: <a href="{escape_html(json_name)}"><code>{escape_html(json_name)}</code></a>.'
        "</p></section>"
    )


def format_offsets(case: Case) -> str:
    """The offsets of a counter-example, or the producer's numbers if no broker gave an offset."""
    if case.first >= 0:
        return _format_span(case.first, case.last)
    if case.seq_first is None:
        return ""
    return f"no. {_format_span(case.seq_first, case.seq_last if case.seq_last is not None else case.seq_first)}"


def _format_span(first: int, last: int) -> str:
    if last < 0:
        return f"from {format_number(first)}"
    return format_number(first) if first == last else f"{format_number(first)}\N{EN DASH}{format_number(last)}"
