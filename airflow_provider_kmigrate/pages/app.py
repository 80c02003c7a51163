"""The pages in Airflow's API server: Fleet, Cluster, Plan, and an entry of the runbook. Rendered here; they change nothing.

Airflow mounts an application of a plugin without any authentication: each route asks for Airflow's user, and shows what that user's rights on
DAGs show. Who may not read a cluster gets the same answer as for one that does not exist.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Annotated, Any, Final
from urllib.parse import quote

import jinja2
from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import FastAPI, HTTPException, Path, Request
from fastapi.responses import HTMLResponse

from airflow_provider_kmigrate.core.migration.plan_document import TITLES, PlanOf, describe_drift
from airflow_provider_kmigrate.core.reasons import ENTRIES
from airflow_provider_kmigrate.core.shared.foreign_json import read_json
from airflow_provider_kmigrate.core.shared.text import format_date, format_duration, printable, prose_to_html
from airflow_provider_kmigrate.pages.database import read_clusters, read_plan
from airflow_provider_kmigrate.pages.next_move import describe_start, find_next_move, order_by_need
from airflow_provider_kmigrate.pages.stored import ClusterStatus, Light, cluster_of_dag, describe_row
from airflow_provider_kmigrate.pages.text import LIGHT_WORDS, WITHOUT_RUN, describe_problem, describe_times
from airflow_provider_kmigrate.pages.view import describe_return, is_rolling_back, list_stations
from airflow_provider_kmigrate.preflight.plan_page import render_plan_page

_SCRIPT: Final = """\
document.addEventListener("click", event => {
  const link = event.target.closest("a[data-airflow]");
  if (!link || window.parent === window || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  window.parent.history.pushState(null, "", link.href);
  window.parent.dispatchEvent(new PopStateEvent("popstate"));
});
"""
"""Airflow shows a plugin's page in a frame that may not navigate the window (its `sandbox`); so a link to Airflow's own pages asks Airflow's router."""
_SCRIPT_HASH: Final = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
_HEADERS: Final = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{_SCRIPT_HASH}'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'self'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_REFRESH: Final = {"Refresh": "15"}  # seconds
_NO_RIGHT: Final = "You may not read the DAGs of this cluster, or there is no such cluster."
_MARKS: Final[Mapping[Light, str]] = {
    Light.ACT: "✖",
    Light.ASK: "?",
    Light.LOOK: "▲",
    Light.WELL: "●",
    Light.OLD: "◷",
    Light.UNKNOWN: "○",
}
_PLANNERS: Final[Mapping[str, str]] = {
    PlanOf.MIGRATION: "kmigrate_preflight",
    PlanOf.ROLLBACK: "kmigrate_rollback",
    PlanOf.GROUPS: "kmigrate_consumers",
    PlanOf.EXPANSION: "kmigrate_offsets_topic",
    PlanOf.CLEAN_UP: "kmigrate_clean_up",
}
"""The DAG whose first task makes a plan of this kind, without the name of the cluster."""
_Name = Annotated[str, Path(max_length=250)]

_environment = jinja2.Environment(
    loader=jinja2.PackageLoader("airflow_provider_kmigrate.pages"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    finalize=lambda value: printable(value, "\n") if type(value) is str else value,
)
_environment.globals |= {
    "script": _SCRIPT,
    "words": LIGHT_WORDS,
    "marks": _MARKS,
    "entries": ENTRIES,
    "plans": TITLES,
    "planners": _PLANNERS,
    "duration": lambda seconds: format_duration(1000 * seconds),
    "date": format_date,
    "describe_times": describe_times,
    "describe_problem": describe_problem,
    "describe_start": describe_start,
    "without_run": WITHOUT_RUN,
    "quote": lambda text: quote(text, safe=""),
}
_environment.filters["prose"] = prose_to_html  # it escapes: the templates say `safe`

app = FastAPI(title="kmigrate", docs_url=None, redoc_url=None, openapi_url=None)


def _render(request: Request, name: str, *, refreshes: bool = False, **values: Any) -> HTMLResponse:
    """A page; `root` is where this application is mounted, `airflow` where Airflow is."""
    root = str(request.scope.get("root_path", "")).rstrip("/")
    stays = "stay" in request.query_params
    page = _environment.get_template(name).render(
        root=root, airflow=root.removesuffix("/kmigrate"), refreshes=refreshes and not stays, **values
    )
    return HTMLResponse(page, headers=_HEADERS | (_REFRESH if refreshes and not stays else {}))


@app.get("/fleet")
def show_fleet(request: Request, user: GetUserDep) -> HTMLResponse:
    """One row and one light for each cluster, those that need an operator first."""
    rows = [(status, describe_row(status), find_next_move(status)) for status in order_by_need(read_clusters(user))]
    return _render(request, "fleet.html", refreshes=True, rows=rows, needing=sum(bool(move.text) for _, _, move in rows))


@app.get("/cluster/{cluster}")
def show_cluster(request: Request, user: GetUserDep, cluster: _Name) -> HTMLResponse:
    """A cluster: the rollback first, then what to do, what is waited for, the stations and the nodes."""
    return _show_cluster(request, user, cluster)


@app.get("/dag/{dag_id}")
def show_cluster_of_dag(request: Request, user: GetUserDep, dag_id: _Name) -> HTMLResponse:
    """The page of the cluster that a DAG belongs to, in a tab of the DAG and of its runs."""
    if not dag_id.startswith("kmigrate_"):
        return _render(request, "other_dag.html")
    return _show_cluster(request, user, cluster_of_dag(dag_id))


def _show_cluster(request: Request, user: Any, cluster: str) -> HTMLResponse:
    status: ClusterStatus | None = next((status for status in read_clusters(user) if status.cluster == cluster), None)
    if status is None:
        raise HTTPException(403, _NO_RIGHT)
    parts = {
        name: entry.document if entry else None
        for name, entry in (("judged", status.judged), ("step", status.step), ("seen", status.seen))
    }
    return _render(
        request,
        "cluster.html",
        refreshes=True,
        status=status,
        stations=list_stations(status),
        can_return=describe_return(status),
        is_rolling_back=is_rolling_back(status),
        **parts,
    )


@app.get("/plan/{cluster}")
def show_plan(request: Request, user: GetUserDep, cluster: _Name, of: PlanOf = PlanOf.MIGRATION) -> HTMLResponse:
    """The newest plan of this kind that a task of this cluster has stored."""
    if not any(status.cluster == cluster for status in read_clusters(user)):
        raise HTTPException(403, _NO_RIGHT)
    stored = read_plan(user, cluster, of)
    if stored is None:
        return _render(request, "no_plan.html", cluster=cluster, of=of, problem="")
    try:
        plan = read_json(stored.value) if isinstance(stored.value, str) else stored.value
        describe_drift(plan, plan)
        if (plan["cluster"], plan["of"]) != (cluster, of):
            wrong = "It names another cluster than its DAG, or another kind of plan than its key."
            return _render(request, "no_plan.html", cluster=cluster, of=of, problem=wrong)
        return HTMLResponse(render_plan_page(plan), headers=_HEADERS)
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        return _render(request, "no_plan.html", cluster=cluster, of=of, problem=str(error)[:200])


@app.get("/runbook/{code}")
def show_runbook_entry(request: Request, user: GetUserDep, code: Annotated[str, Path(max_length=8)]) -> HTMLResponse:
    """What a code means and what to do."""
    del user  # who is logged in may read it: it names no cluster
    entry = ENTRIES.get(code.upper()) or ENTRIES.get(code)
    if entry is None:
        raise HTTPException(404, "The runbook has no such entry.")
    return _render(request, "runbook.html", entry=entry)
