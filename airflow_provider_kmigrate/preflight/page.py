"""The preflight report's document, by `preflight.schema.json` with the version `SCHEMA`, and its HTML page.

The page has the style of the audit's report, no script, and fetches nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, Final

from airflow_provider_kmigrate.audit.report.labels import render_table
from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.clients.state_folder import SharedFolder, StateFolder
from airflow_provider_kmigrate.core.preflight.checks import list_checks
from airflow_provider_kmigrate.core.preflight.findings import PreflightFinding, Severity
from airflow_provider_kmigrate.core.preflight.made import Owner
from airflow_provider_kmigrate.core.shared.text import escape_html, format_date, format_duration, format_number, prose_to_html
from airflow_provider_kmigrate.steps.prepare import Preflight, finding_to_json

SCHEMA: Final = 2
_HTML, _JSON = "preflight.html", "preflight.json"


class PreflightOutcome(StrEnum):
    """The overall outcome of the findings."""

    BLOCKED = "BLOCKED"  # the migration refuses to begin
    OPEN = "OPEN QUESTIONS"  # it would begin, but something could not be observed from here
    READY = "READY"  # nothing blocks, nothing is unknown


def judge_outcome(findings: Iterable[PreflightFinding]) -> PreflightOutcome:
    """The most severe finding decides."""
    severities = {finding.severity for finding in findings}
    if Severity.BLOCK in severities:
        return PreflightOutcome.BLOCKED
    return PreflightOutcome.OPEN if Severity.UNKNOWN in severities else PreflightOutcome.READY


def as_document(result: Preflight) -> dict[str, Any]:
    """JSON values only; findings in their order, the most severe first."""
    spec, view = result.facts.spec, result.view
    checks = list_checks(view, result.facts)
    owners = {finding: check.owner for check in checks for finding in check.findings}
    counts = {str(severity): sum(finding.severity is severity for finding in result.found) for severity in Severity}
    partitions = view.partitions
    return {
        "schema": SCHEMA,
        "cluster": spec.name,
        "cluster_id": spec.cluster_id,
        "made_ms": int(time.time() * 1000),
        "took_s": round(result.took, 3),
        "outcome": str(judge_outcome(result.found)),
        "counts": counts,
        "seen": {
            "brokers": len(spec.brokers),
            "controllers": len(spec.controllers),
            "topics": None if partitions is None else len({partition.topic for partition in partitions}),
            "partitions": None if partitions is None else len(partitions),
        },
        "findings": [finding_to_json(finding) | {"owner": str(owners.get(finding, Owner.FILE))} for finding in result.found],
        "checks": [
            {
                "about": check.about,
                "owner": str(check.owner),
                "saw": check.saw,
                "codes": sorted({finding.code for finding in check.findings}),
            }
            for check in checks
        ],
        "unread": list(result.facts.environment.unread),
    }


_STYLES = {PreflightOutcome.BLOCKED: "fail", PreflightOutcome.OPEN: "inconclusive", PreflightOutcome.READY: "pass"}
_SIGNS = {"fail": "\N{MULTIPLICATION X}", "inconclusive": "?", "pass": "\N{CHECK MARK}", "none": "!"}
_MEANING = {
    PreflightOutcome.BLOCKED: "The migration would refuse to begin. Every problem that must be fixed is below.",
    PreflightOutcome.OPEN: "Nothing observed blocks the migration, but something could not be checked from here. Find it out first.",
    PreflightOutcome.READY: "No objection to the migration was found.",
}
_GROUPS = {
    "block": ("fail", "What blocks", "The migration refuses to begin until these are fixed."),
    "not known": ("inconclusive", "What could not be checked", "Each says how to check it. The migration does not wait for it."),
    "warn": ("none", "Warnings", "The migration begins in spite of these; some affect users during it."),
}


_ABOUT = (
    '<section id="about"><h2>About this page</h2><p>Nothing was changed, and no lock was taken. The runbook explains each code '
    f'(<code>kmigrate runbook CODE</code>). The same as JSON: <a href="{_JSON}">{_JSON}</a>.</p></section>'
)


def write_report(result: Preflight, folder: Path, state: StateFolder | None = None) -> Path:
    """Write both files into `folder`, made if missing; each is whole or as before. Readable by their owner only. Returns the page."""
    atomic.make_folder(folder)
    facts, page, state = as_document(result), folder / _HTML, state or SharedFolder()
    state.replace(page, lambda _: render_page(facts).encode())
    state.replace(folder / _JSON, lambda _: (json.dumps(facts, ensure_ascii=False, indent=1) + "\n").encode())
    return page


def render_page(facts: Mapping[str, Any]) -> str:
    """The page of a document; it names the file with the same facts, in the same folder."""
    template = Template(files("airflow_provider_kmigrate.audit.report").joinpath("page.html").read_text(encoding="utf-8"))
    groups = (_render_group(severity, facts["findings"]) for severity in _GROUPS)
    parts = (
        _render_header(facts),
        _render_counts(facts),
        *groups,
        _render_unread(facts["unread"]),
        _render_checks(facts),
        _ABOUT,
    )
    body = "\n".join(parts)
    return template.substitute(title=escape_html(f"{facts['outcome']}: preflight of {facts['cluster']}"), body=body, guides="")


def _render_header(facts: Mapping[str, Any]) -> str:
    outcome = PreflightOutcome(facts["outcome"])
    style = _STYLES[outcome]
    about = {
        "Cluster": f"{facts['cluster']} ({facts['cluster_id']})",
        "Observed at": format_date(facts["made_ms"]),
        "In": format_duration(facts["took_s"] * 1000),
    }
    return (
        f'<header class="verdict {style}"><h1>Preflight of {escape_html(facts["cluster"])}: ZooKeeper to KRaft</h1>'
        f'<p class="outcome"><span aria-hidden="true">{_SIGNS[style]}</span> {outcome}</p>'
        f'<p class="headline">{_MEANING[outcome]}</p><dl class="facts">{_render_terms(about)}</dl></header>'
    )


def _render_counts(facts: Mapping[str, Any]) -> str:
    observed_counts = facts["seen"]
    figures = {
        "Blocking": facts["counts"]["block"],
        "Not known": facts["counts"]["not known"],
        "Warnings": facts["counts"]["warn"],
        **{name.capitalize(): "not read" if count is None else format_number(count) for name, count in observed_counts.items()},
    }
    return f'<section id="counts"><h2>In figures</h2><dl class="numbers">{_render_terms(figures)}</dl></section>'


def _render_terms(pairs: Mapping[str, object]) -> str:
    return "".join(f"<div><dt>{escape_html(name)}</dt><dd>{escape_html(value)}</dd></div>" for name, value in pairs.items())


def _render_group(severity: str, findings: Iterable[Mapping[str, str]]) -> str:
    style, title, meaning = _GROUPS[severity]
    group_findings = [finding for finding in findings if finding["severity"] == severity]
    if not group_findings:
        return ""
    articles = "".join(_render_owner(owner, owned, style) for owner, owned in group_by_owner(group_findings).items())
    name = severity.replace(" ", "-")
    return f'<section id="{name}"><h2>{title} ({len(group_findings)})</h2><p class="soft">{meaning}</p>{articles}</section>'


def group_by_owner(findings: Iterable[Mapping[str, str]]) -> dict[str, list[Mapping[str, str]]]:
    """Findings of a document by who can act on them, those of one code together; owners and codes in the order of their first finding."""
    by_owner: dict[str, dict[str, list[Mapping[str, str]]]] = {}
    for finding in findings:
        by_owner.setdefault(finding["owner"], {}).setdefault(finding["code"], []).append(finding)
    return {owner: [finding for alike in by_code.values() for finding in alike] for owner, by_code in by_owner.items()}


def _render_owner(owner: str, findings: Iterable[Mapping[str, str]], style: str) -> str:
    articles = "".join(_render_finding(finding, style) for finding in findings)
    return f'<p class="owner"><strong>For {escape_html(owner)}</strong></p>{articles}'


def _render_checks(facts: Mapping[str, Any]) -> str:
    """Every check with what it saw; open if the cluster is ready, since then it is all that there is."""
    rows = [
        (
            escape_html(_as_sentence(check["about"]).rstrip(".")),
            escape_html(check["saw"]),
            ", ".join(f"<code>{escape_html(code)}</code>" for code in check["codes"]) or "no objection",
        )
        for check in facts["checks"]
    ]
    table = render_table("Checks", {"Checked": "th", "Saw": "", "Found": ""}, rows)
    is_open = " open" if facts["outcome"] == PreflightOutcome.READY else ""
    return (
        f'<section id="checks"><h2>Every check that was made ({len(rows)})</h2>'
        f"<details{is_open}><summary>What each looked at, and what it saw</summary>{table}</details></section>"
    )


def _render_finding(finding: Mapping[str, str], style: str) -> str:
    parts = {"Why it matters": finding["why"], "What to do": finding["remedy"], "Source": finding["source"]}
    lines = "".join(f'<p><span class="soft">{name}:</span> {prose_to_html(text)}</p>' for name, text in parts.items() if text)
    sign = f'<span class="mark {style}"><span aria-hidden="true">{_SIGNS[style]}</span> <code>{escape_html(finding["code"])}</code></span>'
    return f'<article class="finding"><h3>{sign} {escape_html(_as_sentence(finding["seen"]))}</h3>{lines}</article>'


def _as_sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _render_unread(texts: Iterable[str]) -> str:
    lines = "".join(f"<li>{escape_html(text)}</li>" for text in texts)
    return f'<section id="unread"><h2>What did not answer</h2><ul>{lines}</ul></section>' if lines else ""
