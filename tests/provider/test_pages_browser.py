"""The pages in Airflow's own UI, with the plugin loaded by Airflow itself, in a real browser: frames, links, keyboard, colours."""

from __future__ import annotations

import copy
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import pytest
import uvicorn
from airflow import plugins_manager
from airflow.api_fastapi.app import create_app
from airflow.sdk import DAG, task
from fastapi import FastAPI

from airflow_provider_kmigrate.pages import database
from airflow_provider_kmigrate.utils.status_xcom import STATUS
from tests.pages.browser import Browser, browser
from tests.pages.rules import check_readable
from tests.pages.statuses import make_document
from tests.provider.airflow_tasks import token_of
from tests.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.slow(seconds=60)]
DAG_ID = "kmigrate_watch__sim"
FRAME = "document.querySelector('iframe')?.contentDocument?.body?.innerText || ''"


class Site(NamedTuple):
    app: FastAPI
    url: str


@pytest.fixture(scope="module")
def site(airflow_db: None, airflow_home: Path) -> Iterator[Site]:
    """Airflow's API server with the plugin, as one in its plugins folder is loaded."""
    plugins = airflow_home / "plugins"
    plugins.mkdir(exist_ok=True)
    file = plugins / "kmigrate_trial.py"
    file.write_text("from airflow_provider_kmigrate.pages.plugin import KMigratePlugin\n")
    _forget_plugins()
    listener = socket.create_server(("127.0.0.78", 0))
    app = create_app(apps="core")
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    thread = Thread(target=server.run, args=([listener],))
    thread.start()
    wait_until(lambda: server.started, "the API server starts")
    yield Site(app, f"http://127.0.0.78:{listener.getsockname()[1]}")
    server.should_exit = True
    thread.join(30)
    listener.close()
    file.unlink()
    _forget_plugins()


def _forget_plugins() -> None:
    for cached in (plugins_manager._get_plugins, plugins_manager.get_fastapi_plugins, plugins_manager._get_ui_plugins):
        cached.cache_clear()


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def seen(site: Site, tab: Browser, run_dag: Callable[..., Any], tmp_path: Path) -> Any:
    """A run of a watch that has stored a status with an alarm, and a browser that is logged in; the run."""
    document = copy.deepcopy(make_document(tmp_path))
    alarm = {"code": "R01", "text": "Broker 1 does not answer.", "means": "m", "do": "Start it.", "is_certain": True}
    document |= {"alarms": [alarm], "at_ms": round(1000 * time.time())}
    document["step"] = {
        "name": "watch", "doing": "done", "text": "seen", "reasons": [], "since_ms": document["at_ms"],
        "usual_seconds": None, "alarm_seconds": None, "seconds_left": None,
    }  # fmt: skip
    with DAG(DAG_ID, schedule=None) as dag:

        @task
        def watch(ti: Any = None) -> None:
            ti.xcom_push(key=STATUS, value=document)

        watch()
    run = run_dag(dag)
    database.kept.clear()
    tab.call("Network.setCookie", name="_token", value=token_of(site.app, "ann"), url=site.url)
    return run


def test_the_fleet_is_in_the_navigation_and_a_cluster_in_the_tabs_of_its_dag_and_run(site: Site, tab: Browser, seen: Any) -> None:
    tab.navigate(f"{site.url}/plugin/kmigrate")
    tab.wait_for(f"({FRAME}).includes('Kafka migrations: ')")
    for place in (f"dags/{DAG_ID}/plugin/kmigrate_dag", f"dags/{DAG_ID}/runs/{seen.run_id}/plugin/kmigrate_run"):
        tab.navigate(f"{site.url}/{place}")
        tab.wait_for(f"({FRAME}).includes('Can we go back to ZooKeeper?')")
        assert "yes, " in tab.value(FRAME)


def test_a_link_in_the_frame_leads_airflows_own_page_there(site: Site, tab: Browser, seen: Any) -> None:
    tab.navigate(f"{site.url}/dags/{DAG_ID}/plugin/kmigrate_dag")
    tab.wait_for(f"({FRAME}).includes('Can we go back to ZooKeeper?')")
    tab.value("document.querySelector('iframe').contentDocument.querySelector('a[data-airflow]').click()")
    tab.wait_for(f"location.pathname === '/dags/{DAG_ID}/runs/' + encodeURIComponent('{seen.run_id}') + '/tasks/watch'")
    tab.wait_for("document.querySelector('iframe') === null && document.body.innerText.includes('watch')")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_each_page_can_be_read_in_both_colours_and_on_a_phone(
    site: Site, tab: Browser, seen: Any, *, scheme: str, width: int
) -> None:
    tab.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 500)
    tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    for route in ("fleet", "cluster/sim", "runbook/R01"):
        tab.complaints.clear()
        tab.requests.clear()
        tab.navigate(f"{site.url}/kmigrate/{route}")
        check_readable(tab)
        assert tab.value("document.documentElement.scrollWidth") <= width
        assert tab.complaints == []
        assert tab.requests == [f"{site.url}/kmigrate/{route}"], "it loads nothing beside itself"
    tab.call("Emulation.clearDeviceMetricsOverride")


def test_a_keyboard_is_enough(site: Site, tab: Browser, seen: Any) -> None:
    tab.navigate(f"{site.url}/kmigrate/fleet")
    for _ in range(10):
        for kind in ("keyDown", "keyUp"):
            tab.call("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
        if tab.value("document.activeElement.textContent") == "sim":
            break
    assert tab.value("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    tab.call("Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r")
    tab.wait_for("location.pathname === '/kmigrate/cluster/sim'")
    assert "Broker 1 does not answer." in tab.text()


def test_what_is_largest_is_whether_we_can_go_back(site: Site, tab: Browser, seen: Any) -> None:
    tab.navigate(f"{site.url}/kmigrate/cluster/sim")
    sizes = tab.value(
        "[...document.querySelectorAll('body *')].map(node => [parseFloat(getComputedStyle(node).fontSize), node.className])"
        ".sort((one, other) => other[0] - one[0]).map(row => row[1])"
    )
    assert "return" in sizes[0]
    assert "return" not in sizes[1]
