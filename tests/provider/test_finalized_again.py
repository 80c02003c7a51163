"""A new run on a cluster that is finalized already has nothing to do, and says so; another cluster stays a refusal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_kmigrate.core.model import ClusterView
from airflow_provider_kmigrate.dag_builders import folder
from airflow_provider_kmigrate.exceptions import WrongCluster
from tests.provider.simulated import Rehearsal
from tests.provider.test_dags import APPROVED, DAG_ID, tasks

RunDag = Callable[..., Any]
Change = Callable[[ClusterView], ClusterView]


@pytest.fixture
def finalized(rehearse: Callable[..., Rehearsal], run_dag: RunDag) -> tuple[Rehearsal, Any]:
    sim = rehearse()
    dag = folder.dags_of(sim.path.parent)[DAG_ID]
    assert str(run_dag(dag, run_conf=APPROVED).state) == "success"
    return sim, dag


def changed(sim: Rehearsal, change: Change) -> None:
    look = sim.cluster.look
    sim.cluster.look = lambda *given: change(look(*given))  # type: ignore[method-assign]


@pytest.mark.parametrize(
    "change",
    [lambda view: view, lambda view: replace(view, zk=None, topics=None, stored=None, state_epoch=None)],
    ids=["zookeeper is there", "zookeeper is switched off"],
)
def test_a_new_run_is_green_and_does_nothing(finalized: tuple[Rehearsal, Any], run_dag: RunDag, change: Change) -> None:
    sim, dag = finalized
    changed(sim, change)
    before = sim.restarts()
    run = run_dag(dag)
    states = tasks(run)
    assert str(run.state) == "success"
    assert states.pop("preflight") == "success"
    assert set(states.values()) == {"skipped"}, "nobody is asked, nothing is soaked"
    assert sim.restarts() == before


def test_the_preflight_of_its_own_says_it_too(finalized: tuple[Rehearsal, Any], run_dag: RunDag) -> None:
    sim, _ = finalized
    alone = folder.dags_of(sim.path.parent)["kmigrate_preflight__sim"]
    assert str(run_dag(alone).state) == "success"


@pytest.mark.parametrize(
    "change",
    [
        lambda view: replace(view, kafka_cluster_id="another"),
        lambda view: replace(view, brokers={**view.brokers, 1: replace(view.brokers[1], mode=None)}),
    ],
    ids=["another cluster", "a silent broker"],
)
def test_what_is_wrong_stays_red(finalized: tuple[Rehearsal, Any], run_dag: RunDag, change: Change) -> None:
    sim, dag = finalized
    changed(sim, change)
    states = tasks(run_dag(dag))
    assert states["preflight"] == "failed"


def test_another_cluster_is_refused(finalized: tuple[Rehearsal, Any], run_dag: RunDag) -> None:
    sim, dag = finalized
    sim.failure = WrongCluster("another cluster answers")
    assert tasks(run_dag(dag))["preflight"] == "failed"
