"""What preflight found, to be read: one HTML file that needs nothing else, and the same as JSON beside it.

`python -m airflow_provider_kmigrate.preflight CLUSTER.yaml` looks at a cluster without Airflow. Only reads: no lock is taken.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.preflight.page import Outcome, as_document, outcome_of, render
from airflow_provider_kmigrate.steps.prepare import Preflight

HTML, JSON = "preflight.html", "preflight.json"

__all__ = ["Outcome", "Report", "as_document", "outcome_of", "render", "write"]


class Report(NamedTuple):
    """Where the two files are."""

    html: Path
    json: Path


def write(looked: Preflight, folder: Path) -> Report:
    """Both files into `folder`, which is made where there is none; each is whole or as it was before. For their owner only."""
    atomic.make_folder(folder)
    facts = as_document(looked)
    report = Report(folder / HTML, folder / JSON)
    atomic.replace(report.html, render(facts, JSON).encode())
    atomic.replace(report.json, (json.dumps(facts, ensure_ascii=False, indent=1) + "\n").encode())
    return report
