"""What reading stored statuses costs: over HTTP for the command, and from what an API server keeps for a page."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx

from airflow_provider_kmigrate.pages.stored import StoredStatus, check_stored
from tests.pages.statuses import FakeAirflow, make_row

_PAGES = 10  # requests of each page


def stored_figures(document: Mapping[str, Any], clusters: int, build: Path) -> dict[str, object]:
    """`stored_40_clusters_s` and `page_ms`."""
    _set_environment(build.resolve() / "airflow-pages")
    now_ms = round(1000 * time.time())
    rows = [
        make_row({**document, "cluster": f"c{number}", "at_ms": now_ms}, now_ms, dag_id, task)
        for number in range(clusters)
        for dag_id, task in ((f"kmigrate_watch__c{number}", "watch"), (f"kmigrate_zk_to_kraft__c{number}", "soak"))
    ]
    return {"stored_40_clusters_s": round(_read_over_http(rows), 2), "page_ms": round(1000 * _render_pages(rows))}


def _read_over_http(rows: list[StoredStatus]) -> float:
    from airflow_provider_kmigrate.pages import rest, text

    os.environ[rest.TOKEN] = "trial"
    with _serving(FakeAirflow(rows, dags=tuple({row.dag_id for row in rows}))) as url:
        began = time.perf_counter()
        answer = rest.read_statuses(url)
        table = text.render_table(answer.clusters)
        took = time.perf_counter() - began
    assert (len(answer.clusters), len(table.splitlines()), answer.notes) == (len(rows) // 2, len(rows) // 2 + 1, [])
    return took


@contextmanager
def _serving(airflow: FakeAirflow) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = airflow(httpx.Request("GET", f"http://localhost{self.path}"))
            self.send_response(answer.status_code)
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def _set_environment(home: Path) -> None:
    """An Airflow of its own, before anything imports Airflow."""
    os.environ |= {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__UNIT_TEST_MODE": "True",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/pages.db",
    }
    home.mkdir(parents=True, exist_ok=True)
    (home / "pages.db").unlink(missing_ok=True)


def _render_pages(rows: list[StoredStatus]) -> float:
    """Seconds of the slowest page, of those behind the first of each kind."""
    from airflow.api_fastapi.app import create_app
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from airflow.models.dag import DagModel
    from airflow.models.dagbundle import DagBundleModel
    from airflow.utils.db import initdb
    from airflow.utils.session import create_session
    from fastapi.testclient import TestClient

    from airflow_provider_kmigrate.pages import database
    from airflow_provider_kmigrate.pages.app import app

    initdb()
    with create_session() as session:
        session.merge(DagBundleModel(name="dags-folder"))
        session.flush()
        session.add_all(DagModel(dag_id=row.dag_id, bundle_name="dags-folder", is_stale=False) for row in rows)
    manager = create_app(apps="core").state.auth_manager
    token = manager.generate_jwt(SimpleAuthManagerUser(username="trial", role="viewer"))
    client = TestClient(app, headers={"Authorization": f"Bearer {token}"})
    checked = [check_stored(row, row.stored_ms) for row in rows]
    database.kept[:] = [database.DatabaseSnapshot(checked, [], frozenset(row.dag_id for row in rows), time.monotonic() + 3_600)]
    gc.collect()
    gc.freeze()  # the views of large clusters beside it are none of an API server's
    slowest = 0.0
    for route in ("/fleet", "/cluster/c1"):
        for number in range(_PAGES + 1):
            began = time.perf_counter()
            answer = client.get(route)
            assert (answer.status_code, "c1" in answer.text) == (200, True)
            slowest = max(slowest, time.perf_counter() - began) if number else slowest
    return slowest
