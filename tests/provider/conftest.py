"""Airflow for tests: its own home, a database in a file, no examples. The environment must be set before Airflow is imported."""

# ruff: noqa: E402, PLC0415
from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_home = tempfile.TemporaryDirectory(prefix="kmigrate-airflow-")
os.environ |= {
    "AIRFLOW_HOME": _home.name,
    "AIRFLOW__CORE__DAGS_FOLDER": f"{_home.name}/dags",
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__CORE__UNIT_TEST_MODE": "True",
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{_home.name}/unit.db",
}

import pytest
from airflow.sdk import DAG, Variable, task
from airflow.sdk.execution_time.comms import GetHITLDetailResponse
from airflow.sdk.execution_time.supervisor import InProcessTestSupervisor
from fastapi.testclient import TestClient
from sqlalchemy import delete, event, select, update
from sqlalchemy.engine import Engine

from airflow_provider_kmigrate.dag_builders import folder
from airflow_provider_kmigrate.pages import database
from airflow_provider_kmigrate.steps.backup import BackupStore
from airflow_provider_kmigrate.utils.status_xcom import STATUS
from airflow_provider_kmigrate.utils.step_context import opener
from tests.provider.simulated import Rehearsal, rehearsal
from tests.provider.simulated_groups import GroupRehearsal, group_rehearsal
from tests.steps.sim import SimCluster
from tests.steps.sim_nodes import CLUSTER_ID


@pytest.fixture(scope="session")
def airflow_home() -> Path:
    """The folder of the tests' Airflow."""
    return Path(_home.name)


@pytest.fixture(scope="session")
def airflow_db(airflow_home: Path) -> None:
    """The metadata database, created once."""
    from airflow.utils.db import initdb

    event.listen(Engine, "connect", _nothing_for_the_disk)
    (airflow_home / "dags").mkdir(exist_ok=True)
    initdb()


def _nothing_for_the_disk(connection: Any, _record: object) -> None:
    """As `_no_fsync`, for SQLite: a task commits some twenty times."""
    cursor = connection.cursor()
    cursor.execute("PRAGMA synchronous=OFF")
    cursor.close()


@pytest.fixture(autouse=True)
def _no_run_outlives_its_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """All tests of a process share one database: a rollback that one of them left running would keep the next one's from its start."""
    yield
    if "airflow_db" not in request.fixturenames:
        return
    from airflow.models.dag import DagModel
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session

    with create_session() as session:
        unfinished = session.scalars(select(DagRun).where(DagRun.state.in_(("queued", "running")))).all()
        for run in unfinished:
            run.state = "failed"
        for asking in session.scalars(select(TaskInstance).where(TaskInstance.state == "awaiting_input")):
            asking.state = "failed"
        for dag in session.scalars(select(DagModel).where(DagModel.is_paused)):
            dag.is_paused = False


@pytest.fixture(scope="session")
def known(airflow_db: None) -> Callable[[DAG], None]:
    """Make a DAG object known to Airflow, as the DAG processor does with one in a file."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
    from airflow.utils.session import create_session

    def make(dag: DAG) -> None:
        with create_session() as session:
            DagBundlesManager().sync_bundles_to_db(session=session)
        bag = DagBag(dag_folder=os.devnull)
        bag.bag_dag(dag)
        sync_bag_to_db(bag, "dags-folder", None)

    return make


@pytest.fixture(scope="session")
def run_dag(known: Callable[[DAG], None]) -> Callable[..., Any]:
    """Run a DAG object to its end in this process; needs no file and returns the run."""

    def run(dag: DAG, **arguments: Any) -> Any:
        known(dag)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(time, "sleep", Sleep())
            patch.setattr(InProcessTestSupervisor, "_handle_request", _as_a_triggerer)
            return dag.test(**arguments)

    return run


_handle_request = InProcessTestSupervisor._handle_request


def _as_a_triggerer(supervisor: InProcessTestSupervisor, msg: Any, log: Any, req_id: int) -> None:
    """`dag.test` runs a trigger without the triggerer, which alone answers this question, as here."""
    if isinstance(msg, GetHITLDetailResponse):
        supervisor.send_msg(supervisor.client.hitl.get_detail_response(ti_id=msg.ti_id), request_id=req_id)
    else:
        _handle_request(supervisor, msg, log, req_id)


@pytest.fixture(scope="session")
def api(airflow_db: None) -> Iterator[TestClient]:
    """Airflow's API, as its pages use it."""
    from airflow.api_fastapi.app import create_app

    with TestClient(create_app(apps="core")) as client:
        yield client


@pytest.fixture(scope="session")
def continue_run(run_dag: Callable[..., Any]) -> Callable[..., Any]:
    """Continue a run whose tasks were cleared or marked meanwhile, as Airflow's scheduler does; returns it at its end."""
    from airflow.models.dagrun import DagRun

    def run(dag: DAG, earlier: Any) -> Any:
        def begun(*, dag: Any, session: Any, **_: Any) -> Any:
            again = session.get(DagRun, earlier.id)
            again.dag, again.state = dag, "running"
            session.commit()
            return again

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("airflow.models.dagrun.get_or_create_dagrun", begun)
            return run_dag(dag)

    return run


_slept = time.sleep


class Sleep:
    """`dag.test` sleeps a second for each task that a failed one keeps from running, one after the other, and for ever if one is stuck."""

    MOST = 1_200  # a minute

    def __init__(self) -> None:
        self._times = 0

    def __call__(self, seconds: float) -> None:
        caller = sys._getframe(1)
        if caller.f_globals.get("__name__") != "airflow.sdk.definitions.dag":
            return _slept(seconds)
        self._times += 1
        if self._times > self.MOST:
            states = {each.task_id: str(each.state) for each in caller.f_locals["all_tis"]}
            pytest.fail(f"the run does not end, its tasks are {states}")
        return _slept(0.05)


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Define an Airflow connection for one test; returns its id."""

    def define(conn_id: str, conn_type: str, **fields: Any) -> str:
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps({"conn_type": conn_type} | fields))
        return conn_id

    return define


@pytest.fixture
def clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configured folder of cluster files, empty; journals and backups beside it."""
    found = tmp_path / "clusters"
    found.mkdir()
    monkeypatch.setenv("AIRFLOW__KMIGRATE__CLUSTERS_FOLDER", str(found))
    monkeypatch.setenv("AIRFLOW__KMIGRATE__FOLDER", str(tmp_path / "kmigrate"))
    return found


@pytest.fixture
def opens() -> Iterator[Callable[[Any], Any]]:
    """Have the operators and triggers of this test open what is given, by its `open`; returns it."""
    tokens = []

    def take(made: Any) -> Any:
        tokens.append(opener.set(made.open))
        return made

    yield take
    for token in reversed(tokens):
        opener.reset(token)


@pytest.fixture
def rehearse(clusters: Path, opens: Callable[[Any], Any]) -> Callable[..., Rehearsal]:
    """Make a simulated cluster and its cluster file; operators and triggers of this test open it."""
    return lambda cluster=None, **policy: opens(rehearsal(clusters, cluster or SimCluster(), **policy))


@pytest.fixture
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """For operators that are called outside of a run: there is no API server then that could be asked for Variables."""
    monkeypatch.setattr(Variable, "keys", lambda prefix: [])


@pytest.fixture
def made(clusters: Path, opens: Callable[[Any], Any]) -> Callable[..., GroupRehearsal]:
    """The same with simulated consumer groups."""
    return lambda *groups, **keys: opens(group_rehearsal(clusters, *groups, **keys))


@pytest.fixture
def begun(rehearse: Callable[..., Rehearsal], tmp_path: Path) -> Callable[..., tuple[Rehearsal, DAG]]:
    """A simulated cluster in a phase, whose originals are in the backup of this Airflow, and the DAG that rolls it back."""

    def make(phase: Callable[..., None]) -> tuple[Rehearsal, DAG]:
        sim = rehearse()
        context = sim.cluster.context(tmp_path / "forward")
        phase(sim.cluster, context)
        sim.cluster.token = 0  # tokens come from the fence of the run from here on
        kept = BackupStore(tmp_path / "kmigrate" / "backup", "sim", CLUSTER_ID)
        for node in sim.cluster.spec.brokers:
            kept.keep_original(node, context.backup.read_original(node))
        kept.keep_metadata_version("3.9-IV0")
        return sim, folder.dags_of(sim.path.parent)["kmigrate_rollback__sim"]

    return make


@pytest.fixture
def nothing_stored(airflow_db: None) -> None:
    """No status, no request and no DAG of another file's tests, whose runs are of a cluster with the same name, or of others."""
    from airflow.models.dag import DagModel
    from airflow.models.hitl import HITLDetail
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    with create_session() as session:
        session.execute(delete(XComModel))
        session.execute(delete(HITLDetail))
        session.execute(update(DagModel).values(is_stale=True))
    database.kept.clear()


@pytest.fixture
def store(run_dag: Callable[..., Any]) -> Iterator[Callable[..., None]]:
    """A task of this DAG, now in this state, stores this XCom now, in place of what the earlier tests stored there."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session

    def put(value: Any, dag_id: str = "kmigrate_watch__sim", key: str = STATUS, state: str = "success") -> None:
        with DAG(dag_id, schedule=None) as dag:

            @task
            def watch(ti: Any = None) -> None:
                ti.xcom_push(key=key, value=value | {"at_ms": round(1000 * time.time())} if "at_ms" in value else value)

            watch()
        run = run_dag(dag)
        with create_session() as session:
            session.execute(update(TaskInstance).where(TaskInstance.run_id == run.run_id).values(state=state))
        database.kept.clear()

    yield put
    database.kept.clear()


@pytest.fixture
def pages(api: TestClient) -> TestClient:
    """The pages where Airflow mounts them; `api` has started Airflow's authentication."""
    from fastapi import FastAPI

    from airflow_provider_kmigrate.pages.plugin import serve_pages

    parent = FastAPI()
    parent.mount("/kmigrate", serve_pages)
    return TestClient(parent)
