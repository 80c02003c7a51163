"""Stored statuses for tests, made by the product from the simulated cluster, and an Airflow of nothing but its answers."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from airflow_provider_kmigrate.commands.status import read_status
from airflow_provider_kmigrate.pages.stored import StoredStatus
from airflow_provider_kmigrate.utils.status_xcom import STATUS
from tests.steps import phases
from tests.steps.sim import SimCluster


def make_document(folder: Path, phase: str = "some_kraft", at_ms: int | None = None, **more: Any) -> dict[str, Any]:
    """What the watch stores of the simulated cluster in a phase (a function of tests/steps/phases.py)."""
    cluster = SimCluster()
    context = cluster.context(folder)
    getattr(phases, phase)(cluster, context)
    document: dict[str, Any] = json.loads(json.dumps(read_status(context)))
    return document | ({} if at_ms is None else {"at_ms": at_ms}) | more


def make_row(document: Any, now_ms: int, dag_id: str = "kmigrate_watch__sim", task_id: str = "watch") -> StoredStatus:
    return StoredStatus(dag_id, "run", task_id, now_ms, copy.deepcopy(document))


class FakeAirflow:
    """Answers of Airflow's REST API for these rows; `refuse`: a status code for everything."""

    def __init__(
        self, rows: list[StoredStatus], requests: list[dict[str, Any]] | None = None, dags: tuple[str, ...] = ()
    ) -> None:
        self.rows, self.requests, self.dags, self.status = rows, requests or [], dags, 200
        self.seen: list[httpx.Request] = []
        self.cut = False

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(request)
        if self.status != 200:
            return httpx.Response(self.status)
        body = json.dumps(self._answer(request.url)).encode()
        return httpx.Response(200, content=body[: len(body) // 2] if self.cut else body)

    def _answer(self, url: httpx.URL) -> dict[str, Any]:
        path, offset = url.path, int(url.params.get("offset", 0))
        if path == "/api/v2/dags":
            return _page("dags", [{"dag_id": dag} for dag in self.dags], offset)
        if path.endswith("/hitlDetails"):
            return _page("hitl_details", self.requests, offset)
        if path.endswith("/xcomEntries"):
            newest_first = sorted(self.rows, key=lambda row: -row.stored_ms)
            return _page("xcom_entries", [_describe(row) for row in newest_first], offset)
        if "/xcomEntries/" not in path:
            *_, dag, _, run, _, task = path.split("/")
            return next(
                {"state": row.state or None} for row in self.rows if (row.dag_id, row.run_id, row.task_id) == (dag, run, task)
            )
        *_, dag, _, run, _, task, _, key = path.split("/")
        (row,) = (row for row in self.rows if (row.dag_id, row.run_id, row.task_id, STATUS) == (dag, run, task, key))
        return {**_describe(row), "value": row.value}


def _page(key: str, rows: list[dict[str, Any]], offset: int) -> dict[str, Any]:
    return {key: rows[offset : offset + 100], "total_entries": len(rows)}


def _describe(row: StoredStatus) -> dict[str, Any]:
    stored = datetime.fromtimestamp(row.stored_ms / 1000, UTC).isoformat()
    return {
        "dag_id": row.dag_id,
        "run_id": row.run_id,
        "task_id": row.task_id,
        "map_index": -1,
        "key": STATUS,
        "timestamp": stored,
    }
