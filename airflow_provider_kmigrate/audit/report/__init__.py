"""The report of one run: one self-contained HTML file, and the same facts as JSON beside it.

The page has no script and, by its own policy, fetches nothing; pictures are SVG written here. Its order: the verdict and its
evidence, the findings, the course of events. Its size is bounded: what is left out is counted and in the JSON.
"""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from string import Template

from airflow_provider_kmigrate.audit.report import labels, pictures
from airflow_provider_kmigrate.audit.report.pictures import Axis
from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.core.audit.report_facts import ReportFacts
from airflow_provider_kmigrate.core.shared.text import escape_html

HTML, JSON = "report.html", "report.json"


def render_page(facts: ReportFacts) -> str:
    """The page; it names the file with the same facts, in the same folder."""
    axis = Axis(facts.window)
    body = "\n".join(
        (
            labels.render_header(facts),
            labels.render_evidence(facts),
            labels.render_findings(facts),
            pictures.render_canary(facts.verdict.canary),
            pictures.render_run(facts, axis),
            pictures.render_course(facts.course),
            pictures.render_owners(facts),
            pictures.render_offsets(facts.offsets),
            labels.render_figures(facts),
            labels.render_about(facts, JSON),
        )
    )
    title = f"{facts.verdict.outcome}: audit of {facts.subject.cluster}"
    template = Template(files(__name__).joinpath("page.html").read_text(encoding="utf-8"))
    guides = axis.render_guides(phase.from_ms for phase in facts.phases[1:])
    return template.substitute(title=escape_html(title), body=body, guides=guides)


def write(facts: ReportFacts, folder: Path) -> None:
    """Write both files into `folder`, made if missing; each is whole or as before. Raises `Failed`."""
    document = json.dumps(facts.as_dict(), ensure_ascii=False, allow_nan=False)
    atomic.make_folder(folder)
    for name, text in ((HTML, render_page(facts)), (JSON, document)):
        atomic.replace(folder / name, text.encode(), mode=atomic.ALL_USERS)
