"""What an older Airflow can do with kmigrate: `python -m tests.airflow_rehearsal`, by the Python of an environment with that Airflow.

Imports every module, has Airflow load the provider, its plugin and its DAGs, and runs a whole migration of a simulated cluster by `dag.test`. In
it a broker's task is killed after the stop, and the soak between two deferrals; a second try does the rest. An approver answers. Needs no pytest.
"""

# ruff: noqa: E402, PLC0415
from __future__ import annotations

import importlib
import os
import pkgutil
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread
from typing import Any
from unittest.mock import patch

_home = tempfile.TemporaryDirectory(prefix="kmigrate-airflow-")
HOME = Path(_home.name)
os.environ |= {
    "AIRFLOW_HOME": _home.name,
    "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(),  # Airflow 3.2 needs one, also for `dag.test`
    "AIRFLOW__CORE__DAGS_FOLDER": f"{_home.name}/dags",
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__CORE__UNIT_TEST_MODE": "True",
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{_home.name}/unit.db",
    "AIRFLOW__KMIGRATE__CLUSTERS_FOLDER": f"{_home.name}/clusters",
    "AIRFLOW__KMIGRATE__FOLDER": f"{_home.name}/kmigrate",
}

import airflow

import airflow_provider_kmigrate
from airflow_provider_kmigrate.clients.progress_files import ProgressFiles
from tests.waiting import wait_until

DAGS = Path(sys.prefix) / "share" / "airflow-provider-kmigrate" / "dags"  # as the wheel brings them
OPTIONAL = {
    "pyspark",
    "py4j",
    "pyarrow",
    "duckdb",
    "pandas",
    "airflow.providers.apache.spark",
    "airflow.providers.ssh",
    "paramiko",
}
SOAK = 700.0  # seconds: more than two watches of the triggerer


class Killed(BaseException):
    """A process ends here. What it would still write is not written."""


def import_modules() -> int:
    """Every module of the installed package, but those that need what only an extra installs."""
    assert Path(airflow_provider_kmigrate.__file__).is_relative_to(sys.prefix), airflow_provider_kmigrate.__file__
    imported = 0
    for module in pkgutil.walk_packages(airflow_provider_kmigrate.__path__, "airflow_provider_kmigrate."):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if not any(f"{error.name}.".startswith(f"{name}.") for name in OPTIONAL):
                raise
        else:
            imported += 1
    return imported


def load_provider() -> None:
    """As Airflow does at its start."""
    from airflow import plugins_manager
    from airflow.providers_manager import ProvidersManager

    manager = ProvidersManager()
    assert "airflow-provider-kmigrate" in manager.providers
    assert {"kmigrate_zookeeper", "kmigrate_controller", "kmigrate_host"} <= set(manager.hooks)
    if hasattr(plugins_manager, "ensure_plugins_loaded"):
        plugins_manager.ensure_plugins_loaded()
    assert not getattr(plugins_manager, "import_errors", {})


def load_dags() -> int:
    """The DAGs of one cluster file, by Airflow's own parser."""
    try:
        from airflow.dag_processing.dagbag import DagBag
    except ImportError:  # Airflow 3.1
        from airflow.models.dagbag import DagBag

    bag = DagBag(dag_folder=str(DAGS))
    assert bag.import_errors == {}, bag.import_errors
    return len(bag.dags)


def make_known(*dags: Any) -> None:
    """As the DAG processor does with those in a file."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.utils.session import create_session

    try:
        from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
    except ImportError:  # Airflow 3.1
        from airflow.models.dagbag import DagBag, sync_bag_to_db

    with create_session() as session:
        DagBundlesManager().sync_bundles_to_db(session=session)
    bag = DagBag(dag_folder=os.devnull)
    for dag in dags:
        bag.bag_dag(dag)
    sync_bag_to_db(bag, "dags-folder", None)


@contextmanager
def one_api() -> Iterator[None]:
    """One API server for all tasks of `dag.test`. Airflow 3.1 and 3.2 make one for each, and may send its first request before it has begun."""
    from airflow.sdk.execution_time import supervisor

    server: Any = supervisor.in_process_api_server()
    assert server.transport
    wait_until(lambda: hasattr(server.app.state, "svcs_registry"), "Airflow's API server begins", 120.0)
    with patch.object(supervisor, "in_process_api_server", lambda: server):
        yield


@contextmanager
def dying(owner: Any, name: str, *, when: Callable[..., bool], after: bool) -> Iterator[list[str]]:
    """Kill the process once in the call `name`, or right after it. Returns the kills."""
    kills, call, write = list[str](), getattr(owner, name), ProgressFiles.write

    def write_nothing(*_: Any) -> None:
        """A dead process writes nothing."""

    def revive_at_take(files: ProgressFiles, **kwargs: Any) -> Any:
        ProgressFiles.write = write  # type: ignore[method-assign]
        return take(files, **kwargs)

    take = ProgressFiles.take

    def die(*args: Any, **kwargs: Any) -> Any:
        result = call(*args, **kwargs) if after or kills or not when(*args) else None
        if kills or not when(*args):
            return result
        kills.append(name)
        ProgressFiles.write = write_nothing  # type: ignore[method-assign,assignment]
        raise Killed

    with patch.object(owner, name, die), patch.object(ProgressFiles, "take", revive_at_take):
        yield kills
    ProgressFiles.write = write  # type: ignore[method-assign]


@contextmanager
def approver(dag_id: str) -> Iterator[list[str]]:
    """Answers the first request of a DAG with its last option, as Airflow's page stores it. Returns the tasks that asked."""
    from airflow.models.hitl import HITLDetail
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.trigger import handle_event_submit
    from airflow.sdk import timezone
    from airflow.sdk.execution_time.comms import GetHITLDetailResponse
    from airflow.sdk.execution_time.supervisor import InProcessTestSupervisor
    from airflow.triggers.base import TriggerEvent
    from airflow.utils.session import create_session
    from sqlalchemy import select
    from sqlalchemy.exc import SQLAlchemyError

    over, asked, handle_request = Event(), list[str](), InProcessTestSupervisor._handle_request

    def answer() -> None:
        with create_session() as session:
            query = select(HITLDetail, TaskInstance).join(TaskInstance, TaskInstance.id == HITLDetail.ti_id)
            waits = TaskInstance.state.in_(("deferred", "awaiting_input"))
            for detail, task in session.execute(
                query.where(HITLDetail.responded_at.is_(None), TaskInstance.dag_id == dag_id, waits)
            ):
                detail.responded_at, detail.chosen_options = timezone.utcnow(), [detail.options[-1]]
                detail.responded_by, detail.params_input = {"id": "ann", "name": "Ann"}, {"reason": "as planned"}
                if task.state == "awaiting_input":  # since Airflow 3.3 the API itself lets the task go on: there is no trigger
                    handle_event_submit(TriggerEvent(detail.as_resume_event_payload()), task_instance=task, session=session)
                asked.append(task.task_id)

    def work() -> None:
        while not over.wait(0.5):
            with suppress(SQLAlchemyError):  # SQLite is locked: the next time
                answer()

    def handle_as_a_triggerer(supervisor: Any, msg: Any, log: Any, req_id: int) -> None:
        """`dag.test` runs a trigger without the triggerer, which alone answers this question."""
        if isinstance(msg, GetHITLDetailResponse):
            supervisor.send_msg(supervisor.client.hitl.get_detail_response(ti_id=msg.ti_id), request_id=req_id)
        else:
            handle_request(supervisor, msg, log, req_id)

    thread = Thread(target=work)
    thread.start()
    try:
        with patch.object(InProcessTestSupervisor, "_handle_request", handle_as_a_triggerer):
            yield asked
    finally:
        over.set()
        thread.join(10.0)


def migrate() -> str:
    """A whole migration of the simulated cluster; two of its tasks are killed and tried again, and an approver answers its request."""
    from airflow.utils.db import initdb

    from airflow_provider_kmigrate.dag_builders import folder
    from airflow_provider_kmigrate.operators.migration import SoakOperator
    from airflow_provider_kmigrate.utils.step_context import opener
    from tests.provider.simulated import rehearsal
    from tests.steps.sim import SimCluster

    initdb()
    sim = rehearsal(HOME / "clusters", SimCluster(), min_soak=SOAK)
    sim.path.write_text(sim.path.read_text() + "approvers: {users: [ann], reason: true}\n")
    opener.set(sim.open)
    dags = folder.dags_of(HOME / "clusters")
    dag = dags["kmigrate_zk_to_kraft__sim"]
    for task in dag.tasks:
        task.retry_delay = timedelta(0)
    make_known(*dags.values())
    began = sim.cluster.clock.time
    with (
        dying(sim.cluster, "stop", when=lambda node: node.id == 1, after=True) as broker_kills,
        dying(SoakOperator, "check_on_worker", when=lambda *_: True, after=False) as soak_kills,
        approver(dag.dag_id) as asked,
        one_api(),
    ):
        run = dag.test()
    tries = {ti.task_id: ti.try_number for ti in run.get_task_instances()}
    states = {ti.task_id: str(ti.state) for ti in run.get_task_instances()}
    assert str(run.state) == "success", states
    assert sim.cluster.finalized
    assert sim.restarts() == 3 * 2 + 3, "the killed task's broker was restarted once"
    assert (broker_kills, soak_kills) == (["stop"], ["check_on_worker"])
    assert {task for task, number in tries.items() if number > 1} == {"first_roll.broker_1", "soak"}, tries
    assert asked == ["approve"]
    took = sim.cluster.clock.time - began
    assert took < SOAK + 200.0, "the second try of the soak continued"
    return f"{len(states)} tasks, {sim.restarts()} restarts, tries of soak {tries['soak']}, {took:.0f} simulated seconds with a soak of {SOAK:.0f}"


def main() -> int:
    """Prints a line for each part; any error ends it."""
    (HOME / "dags").mkdir()
    (HOME / "clusters").mkdir()
    print(f"Airflow {airflow.__version__}, Python {sys.version.split()[0]}", flush=True)
    print(f"modules imported: {import_modules()}", flush=True)
    load_provider()
    print("provider and plugin loaded", flush=True)
    print(f"migrated: {migrate()}", flush=True)
    print(f"DAGs loaded: {load_dags()}", flush=True)
    stored = len(list((HOME / "kmigrate" / "progress").rglob("*.json")))
    print(f"tasks whose progress is in files: {stored}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
