"""The plan of a large cluster, and the status of many, from simulated answers: what kmigrate itself needs beside the observations.

`plan_100_brokers_s`: the plan of 100 brokers with 20,000 partitions, as JSON, as Markdown and as a page. `status_40_clusters_s`: 40 clusters
of 30 brokers with 6,000 partitions each, judged one after another, a line each.

`predictions`, `prediction_kinds`, `within_25_percent` and what stands beside them: real runs in build/predictions (demo, machines and proofs write
them) and those kept in the repository (`tests.kit.predictions.summarize_predictions`).

`stored_40_clusters_s`: the statuses of as many clusters, stored by a watch and a task each, read over HTTP as `kmigrate status --all --airflow-url`
reads them, as a table. `page_ms`: the pages Fleet and Cluster from what the API server keeps, with Airflow's login and rights, the slowest of ten.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_provider_kmigrate.core.cluster_state.model import Partition
from airflow_provider_kmigrate.core.migration.migration_plan import plan_migration
from airflow_provider_kmigrate.core.migration.plan_document import render_document
from airflow_provider_kmigrate.core.migration.readiness import ReadinessAsk, judge_rollback
from airflow_provider_kmigrate.core.monitoring.status import StatusFacts, describe_status, render_row
from airflow_provider_kmigrate.core.monitoring.watch import KnownActs
from airflow_provider_kmigrate.preflight.plan_page import render_plan_page
from airflow_provider_kmigrate.steps.waits import Assessment, find_causes
from benchmarks.stored import stored_figures
from tests.core.plan_facts import facts_of
from tests.core.preflight_views import Case, healthy
from tests.kit.predictions import read_all_predictions, summarize_predictions

_PARTITIONS_EACH = 200
_NOW = 1_800_000_000.0


def main(arguments: Sequence[str], build: Path) -> dict[str, object]:
    """The figures of `plan.json`."""
    parser = argparse.ArgumentParser(prog="plan")
    parser.add_argument("--brokers", type=int, default=100)
    parser.add_argument("--clusters", type=int, default=40)
    chosen = parser.parse_args(arguments)
    began = time.perf_counter()
    plan = plan_migration(facts_of(_large(chosen.brokers)))
    written = json.dumps(plan), render_document(plan), render_plan_page(plan)
    planned = time.perf_counter()
    case = _large(30)
    begun = time.perf_counter()
    rows = [_status_row(case) for _ in range(chosen.clusters)]
    return {
        "brokers": chosen.brokers,
        "plan_100_brokers_s": round(planned - began, 2),
        "plan_kib": [len(text) // 1024 for text in written],
        "clusters": len(rows),
        "status_40_clusters_s": round(time.perf_counter() - begun, 2),
        **summarize_predictions(read_all_predictions()),
        **stored_figures(_describe_status(case), chosen.clusters, build),
    }


def _large(brokers: int) -> Case:
    view, facts = healthy(brokers)
    rows = [tuple((number + place) % brokers for place in range(3)) for number in range(brokers * _PARTITIONS_EACH)]
    partitions = tuple(Partition(f"topic-{number // 50}", number % 50, row[0], row, row) for number, row in enumerate(rows))
    return replace(view, partitions=partitions), facts


def _status_row(case: Case) -> str:
    return render_row(_describe_status(case))


def _describe_status(case: Case) -> dict[str, Any]:
    view, facts = case
    verdict: Any = judge_rollback(view, ReadinessAsk(), _NOW)
    assessment = Assessment(view, verdict, KnownActs(now=_NOW), changed=False)
    alarms = find_causes(facts.spec, assessment).roots
    status = StatusFacts(facts.spec, view, verdict, assessment.acts, plan_migration(facts_of(case, with_files=False)), alarms)
    return describe_status(status)
