"""The status of a cluster from one assessment: what `kmigrate status` prints, and what the watch and the check of a rollback leave for operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.monitoring import journal_lines
from airflow_provider_kmigrate.core.monitoring.status import StatusFacts, describe_status
from airflow_provider_kmigrate.steps.journal import read_journal_lines
from airflow_provider_kmigrate.steps.prepare import plan_of_view
from airflow_provider_kmigrate.steps.run import StepContext
from airflow_provider_kmigrate.steps.waits import Assessment, read_owner


def describe_assessment(context: StepContext, assessment: Assessment, alarms: Sequence[Reason]) -> dict[str, Any]:
    """The document (`core.monitoring.status`). `alarms`: one reason for each cause."""
    spans = journal_lines.list_acts(journal_lines.parse_lines(read_journal_lines(context.journals)).lines)
    return describe_status(
        StatusFacts(
            context.spec,
            assessment.view,
            assessment.readiness,
            assessment.acts,
            plan_of_view(context, assessment.view, with_files=False),
            alarms,
            journal_lines.median_restart_seconds(spans, context.spec.policy.canary_bake),
            read_owner(context),
        )
    )
