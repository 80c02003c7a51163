"""The links of a task in Airflow's page: to the page that it has left, and to the runbook's entry of what it failed with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from airflow.sdk import DAG, BaseOperatorLink
from airflow.sdk.exceptions import AirflowFailException
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.exceptions import Refused, Unavailable
from airflow_provider_kmigrate.links.pages import AuditReportLink, PlanPageLink, PreflightPageLink, RunbookLink, first_reason_code
from airflow_provider_kmigrate.operators.migration import PreflightOperator
from airflow_provider_kmigrate.operators.spark_audit import SparkAuditOperator
from airflow_provider_kmigrate.sensors.step import StepSensor
from tests.provider.lone_tasks import alone, context
from tests.provider.simulated import Rehearsal, document
from tests.steps.sim import SimCluster

WIKI = "https://wiki.example/runbook"


def link_of(link: BaseOperatorLink, **noted: Any) -> str:
    return link.get_link(SimpleNamespace(**noted), ti_key=None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("/srv/kmigrate/a page.html", "file:///srv/kmigrate/a%20page.html"),
        ("s3://audits/prod/report.html", "s3://audits/prod/report.html"),
        ("https://files.example/report.html", "https://files.example/report.html"),
        ("", ""),
    ],
)
@pytest.mark.parametrize("link", [PreflightPageLink(), PlanPageLink(), AuditReportLink()])
def test_a_page_is_linked_where_it_is(link: BaseOperatorLink, page: str, expected: str) -> None:
    assert link_of(link, page=page) == expected


@pytest.mark.parametrize(
    ("code", "url", "expected"),
    [("G05", WIKI, f"{WIKI}#g05"), ("", WIKI, ""), ("G05", None, "/kmigrate/runbook/G05"), ("X99", WIKI, ""), ("X99", None, "")],
)
def test_the_runbook_is_linked_if_the_task_failed_with_a_code_in_this_airflow_unless_the_file_says_where_it_is(
    tmp_path: Path, code: str, url: str | None, expected: str
) -> None:
    file = tmp_path / "sim.yaml"
    file.write_text(yaml.safe_dump(document(SimCluster()) | ({"runbook_url": url} if url else {})))
    assert link_of(RunbookLink(), stopped_by=code, cluster_file=str(file)) == expected


def test_a_broken_cluster_file_has_no_link() -> None:
    assert link_of(RunbookLink(), stopped_by="F01", cluster_file="/none.yaml") == ""


def test_the_code_of_an_error_is_that_of_its_first_reason() -> None:
    assert first_reason_code(Refused.because(Reason("G05", "a"), Reason("G07", "b"))) == "G05"
    assert first_reason_code(Unavailable("no answer")) == ""


def test_a_failed_preflight_links_its_page_and_the_runbook(rehearse: Callable[..., Rehearsal]) -> None:
    sim = rehearse(SimCluster(state_epoch=9))
    sim.path.write_text(yaml.safe_dump(yaml.safe_load(sim.path.read_text()) | {"runbook_url": WIKI}))
    dag = alone(PreflightOperator, sim.path)
    task = dag.get_task("task")
    with pytest.raises(AirflowFailException, match="G02"):
        task.execute(context(dag))
    left = {link.name: link.get_link(task, ti_key=None) for link in task.operator_extra_links}  # type: ignore[arg-type,union-attr]
    assert left["Runbook entry"] == f"{WIKI}#g02"
    assert left["Preflight page"].startswith("file:///")
    assert left["Preflight page"].endswith("/preflight/sim/preflight.html")


def test_links_survive_serialization() -> None:
    with DAG(dag_id="linked", schedule=None) as dag:
        PreflightOperator(task_id="preflight", cluster_file="c.yaml")
        StepSensor(task_id="ready", step="controllers ready", cluster_file="c.yaml")
        SparkAuditOperator(task_id="audit", request={}, result="/r", cluster_file="c.yaml", environment="")
    read = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    names = {task_id: {link.name for link in task.operator_extra_links} for task_id, task in read.task_dict.items()}
    assert names == {
        "preflight": {"Runbook entry", "Preflight page"}, "ready": {"Runbook entry"}, "audit": {"Audit report"}
    }  # fmt: skip
