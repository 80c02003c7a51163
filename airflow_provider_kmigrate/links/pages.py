"""Links to the pages that tasks leave, and to the runbook's entry of what a task failed with.

Airflow asks for a link in the task's own process, once the task has ended, and keeps it: a link is made of what the operator has noted
(`page`, `stopped_by`). Where there is nothing to show, it is empty.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.sdk import BaseOperatorLink

from airflow_provider_kmigrate.core.reasons import ENTRIES, links
from airflow_provider_kmigrate.exceptions import KMigrateError
from airflow_provider_kmigrate.spec import load
from airflow_provider_kmigrate.utils.status_xcom import pages_root


def first_reason_code(error: KMigrateError) -> str:
    """The code of the first reason of an error; empty if it has none."""
    reasons = getattr(error, "reasons", ())
    return str(reasons[0].code) if reasons else ""


class _PageLink(BaseOperatorLink):
    """A link to the page that an operator has noted in `page`: a path of the worker, or an address of an object store."""

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """The page as a URL."""
        del ti_key
        page = str(getattr(operator, "page", ""))
        return page if "://" in page or not page else Path(page).absolute().as_uri()


class PreflightPageLink(_PageLink):
    """The page with all findings of a preflight."""

    name = "Preflight page"


class PlanPageLink(_PageLink):
    """The plan of a run that an administrator approves."""

    name = "Plan"


class AuditReportLink(_PageLink):
    """The report of an audit."""

    name = "Audit report"


class RunbookLink(BaseOperatorLink):
    """The runbook's entry of the code that the task failed with: at the cluster file's `runbook_url`, else the page in this Airflow."""

    name = "Runbook entry"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Empty if the task did not fail with a code of the runbook."""
        del ti_key
        code = str(getattr(operator, "stopped_by", ""))
        if code not in ENTRIES:
            return ""
        try:
            url = load(operator.cluster_file).runbook_url
        except KMigrateError:  # the broken cluster file is what the task failed with
            return ""
        return next(iter(links(f"[{code}]", url)), "") if url else f"{pages_root()}/runbook/{code}"
