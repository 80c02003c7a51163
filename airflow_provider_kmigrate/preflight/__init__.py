"""The preflight report: one self-contained HTML file, and the same as JSON beside it.

`python -m airflow_provider_kmigrate.preflight CLUSTER.yaml` checks a cluster without Airflow. It only reads and takes no lock.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.preflight.page import PreflightOutcome, as_document, outcome_of, render
from airflow_provider_kmigrate.steps.prepare import Preflight

HTML, JSON = "preflight.html", "preflight.json"

__all__ = ["PreflightOutcome", "PreflightReport", "as_document", "outcome_of", "render", "write"]


class PreflightReport(NamedTuple):
    """The paths of the two files."""

    html: Path
    json: Path


def write(result: Preflight, folder: Path) -> PreflightReport:
    """Write both files into `folder`, made if missing; each is whole or as before. Readable by their owner only."""
    atomic.make_folder(folder)
    facts = as_document(result)
    report = PreflightReport(folder / HTML, folder / JSON)
    atomic.replace(report.html, render(facts, JSON).encode())
    atomic.replace(report.json, (json.dumps(facts, ensure_ascii=False, indent=1) + "\n").encode())
    return report
