"""The clean-up: it lists, asks, and removes exactly what was shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_kmigrate.core.migration.plan import KEEP, REMOVE
from airflow_provider_kmigrate.core.migration.plan_document import hash_values, seal
from airflow_provider_kmigrate.dag_builders import folder
from airflow_provider_kmigrate.exceptions import KMigrateError, Refused, TimedOut, Unavailable, Unreachable
from airflow_provider_kmigrate.steps.clean_up import plan_from_here, run_clean_up
from airflow_provider_kmigrate.utils.step_context import asking_context
from tests.clients.memory_zookeeper import MemoryZooKeeper
from tests.provider.dag_tasks import tasks
from tests.provider.person import Person
from tests.provider.simulated import Rehearsal
from tests.steps.phases import some_kraft, untouched

DAG_ID = "kmigrate_clean_up__sim"
LEFT = {
    "broker 0": [("kept file", "/state/kept-1.properties"), ("metadata log", "/data/__cluster_metadata-0")],
    "controller 3000": [("set aside", "/var/kraft.rolled-back-1"), ("controller file", "/etc/controller.properties")],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("phase", "answer", "removed"),
    [
        (untouched, REMOVE, [*LEFT["broker 0"], *LEFT["controller 3000"]]),
        (untouched, KEEP, []),
        (some_kraft, REMOVE, []),
    ],
)
def test_only_what_was_approved_is_removed(
    begun: Callable[..., Any],
    run_dag: Callable[..., Any],
    phase: Callable[..., None],
    answer: str,
    removed: list[tuple[str, str]],
) -> None:
    """M12: kept files, files of controllers, directories and znodes stayed, and nothing listed them."""
    sim, _ = begun(phase)
    sim.cluster.left = LEFT
    with Person(DAG_ID, answer).at_work() as person:
        run = run_dag(folder.dags_of(sim.path.parent)[DAG_ID])
    assert tasks(run)["clean_up"] == ("success" if answer == REMOVE else "upstream_failed")
    assert sim.cluster.removed == removed
    assert person.asked is not None
    for path in ("/state/kept-1.properties", "/var/kraft.rolled-back-1", "/backup"):
        assert path in (person.asked.body or "")
    assert not any(path.endswith("/owner") for path in sim.ensemble.znodes), "it releases the cluster"


@pytest.mark.parametrize(
    "alter",
    [
        lambda plan: "| broker 0 | kept file | `/state/kept-1.properties` | removed |",
        lambda plan: plan | {"of": "rollback"},
        lambda plan: plan | {"cluster_id": "another"},
        lambda plan: plan | {"steps": plan["steps"][:1]},
        lambda plan: seal(plan | {"inputs": {}, "fingerprint": hash_values({})}),
    ],
    ids=["of an older kmigrate", "another kind", "another cluster", "edited", "other inputs"],
)
def test_a_list_that_is_not_the_plan_of_now_is_refused_and_nothing_is_removed(
    begun: Callable[..., Any], tmp_path: Path, alter: Callable[[Any], Any]
) -> None:
    sim: Rehearsal = begun(untouched)[0]
    sim.cluster.left = dict(LEFT)
    context = sim.cluster.context(tmp_path / "now")
    with pytest.raises(Refused) as refused:
        run_clean_up(context, alter(plan_from_here(context)))
    assert [reason.code for reason in refused.value.reasons] == ["H06"]
    assert sim.cluster.removed == []


@pytest.mark.parametrize("error", [TimedOut, Unreachable])
def test_without_zookeeper_nobody_is_asked_and_nothing_is_removed(
    begun: Callable[..., Any], run_dag: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, error: type[KMigrateError]
) -> None:
    """Switched off after a finalization: there is neither a fence nor a place for the approval's record, whoever may sign it."""
    sim: Rehearsal = begun(untouched)[0]
    sim.cluster.left = dict(LEFT)

    def off(*_: object) -> None:
        raise error("ZooKeeper zk:2181: no session within 10 s")

    monkeypatch.setattr(MemoryZooKeeper, "read", off)
    asked_by: Any = {"dag": SimpleNamespace(dag_id=DAG_ID), "run_id": "r"}
    with pytest.raises(Unavailable, match=r"H15.*no session within 10 s"), asking_context(str(sim.path), asked_by, print):
        pass
    if error is TimedOut:
        with Person(DAG_ID, REMOVE).at_work() as person:
            run = run_dag(folder.dags_of(sim.path.parent)[DAG_ID])
        assert (tasks(run)["approve"], tasks(run)["clean_up"], person.asked) == ("failed", "upstream_failed", None)
    assert sim.cluster.removed == []


def test_what_came_after_the_list_was_shown_keeps_everything(
    begun: Callable[..., Any],
    run_dag: Callable[..., Any],
) -> None:
    sim: Rehearsal = begun(untouched)[0]
    sim.cluster.left = dict(LEFT)
    dag = folder.dags_of(sim.path.parent)[DAG_ID]

    def another(_context: Any) -> None:
        sim.cluster.left["broker 1"] = [("kept file", "/state/kept-2.properties")]

    dag.get_task("clean_up").pre_execute = another
    with Person(DAG_ID, REMOVE).at_work():
        run = run_dag(dag)
    assert tasks(run)["clean_up"] == "failed"
    assert sim.cluster.removed == []
