"""What `kmigrate why` reads: one status, and what the next step of the migration would decide."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_provider_kmigrate.commands.reading import open_context
from airflow_provider_kmigrate.commands.status import read_status
from airflow_provider_kmigrate.core.cluster_state.decision import Decision, Done, Refuse
from airflow_provider_kmigrate.core.migration.phase import Phase
from airflow_provider_kmigrate.core.monitoring import journal_lines
from airflow_provider_kmigrate.core.monitoring.explanation import NextStep, StepPlace, explain_hold, list_steps_before
from airflow_provider_kmigrate.core.monitoring.status import AT_REST
from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.steps.catalog import build, reason_to_postpone
from airflow_provider_kmigrate.steps.journal import read_journal_lines
from airflow_provider_kmigrate.steps.run import StepContext, StepRunner


def explain_cluster(cluster: Path, connections: Path | None, folder: Path | None) -> dict[str, Any]:
    """The explanation of one cluster. Raises what the observation raises."""
    with open_context(cluster, connections, folder) as context:
        return read_explanation(context)


def read_explanation(context: StepContext) -> dict[str, Any]:
    """What holds the cluster, by one status and, if a migration is under way, by what its next step would decide."""
    status = read_status(context)
    has_begun = Phase(status["phase"]) not in AT_REST
    step = find_first_unfinished_step(context, status) if has_begun else None
    return explain_hold(status, step, has_begun=has_begun)


def find_first_unfinished_step(context: StepContext, status: Mapping[str, Any]) -> NextStep | None:
    """The first step that is not done; None if all are."""
    for place in list_steps_before(context.spec, status["progress"]["next"]):
        found = _decide_step(context, place)
        if found is not None:
            return found
    return None


def _decide_step(context: StepContext, place: StepPlace) -> NextStep | None:
    """What the step would decide; None if it is done, or if its node goes later."""
    try:
        if reason_to_postpone(context, place.kind, place.arguments):
            return None
        step = build(context.spec, place.kind, place.arguments)
        decision: Decision = StepRunner(step, context).decide_without_acting()
        patience = step.patience
    except Refused as error:
        decision, patience = Refuse(error.reasons), math.inf
    if isinstance(decision, Done):
        return None
    alarm = patience if math.isfinite(patience) else 0.0
    return NextStep(place.id, place.does, decision, _find_usual_seconds(context, place), alarm, place.waits_for_person)


def _find_usual_seconds(context: StepContext, place: StepPlace) -> float:
    """Seconds of a restart, as this cluster's journals have it; 0 if they have none, and for a step of the whole cluster."""
    if not place.is_of_broker:
        return 0.0
    spans = journal_lines.list_acts(journal_lines.parse_lines(read_journal_lines(context.journals)).lines)
    return journal_lines.median_restart_seconds(spans, context.spec.policy.canary_bake) or 0.0
