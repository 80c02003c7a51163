"""Each task's own page: a rollback's tasks have texts of their own, although many have the names of the migration's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from airflow.sdk import BaseOperator

from airflow_provider_kmigrate.core.cluster_state.spec import GroupSpec
from airflow_provider_kmigrate.core.migration.plan import MIGRATION, PLANS, ROLLBACK
from airflow_provider_kmigrate.core.reasons import ENTRIES
from airflow_provider_kmigrate.dag_builders import clean_up, rollback, zk_to_kraft
from airflow_provider_kmigrate.dag_builders.task_docs import GROUPS, OTHERS, render_task_page
from airflow_provider_kmigrate.spec import load
from tests.provider.simulated import rehearsal
from tests.steps.sim import SimCluster

SHARED = ("registered", "leaders")  # what they do is the same on both ways


def test_no_task_of_a_rollback_shows_what_a_migrations_task_does(tmp_path: Path) -> None:
    spec = load(rehearsal(tmp_path, SimCluster()).path)
    forward = {task.doc_md for task in zk_to_kraft.build(spec).tasks if isinstance(task, BaseOperator)}
    borrowed = {task.task_id for task in rollback.build(spec).tasks if isinstance(task, BaseOperator) and task.doc_md in forward}
    assert {task_id for task_id in borrowed if not task_id.endswith(SHARED)} == set()


@pytest.mark.parametrize(
    ("task_id", "begins"),
    [
        ("to_migration.broker_0", "Rolls this broker back from KRaft mode"),
        ("to_zookeeper.broker_0", "Restarts this broker with its original file"),
        ("handover.transaction", "Stops the controllers"),
        ("wipe.controller_3000", "Moves the directories"),
        ("hold_for_to_migration.orders_2", "Holds this Spark job"),
    ],
)
def test_the_group_shows_what_a_name_means(task_id: str, begins: str) -> None:
    assert render_task_page(task_id, ROLLBACK).startswith(begins)


def test_a_task_without_a_description_is_an_error() -> None:
    for plan in (MIGRATION, ROLLBACK, ()):
        with pytest.raises(KeyError):
            render_task_page("controller_failover.unknown", plan)


def test_every_row_of_a_plan_and_every_last_task_has_a_page_and_names_codes_that_there_are() -> None:
    pages = [page for plan in PLANS for row in plan for page in (row, row.last) if page]
    assert [page.task for page in pages if not page.doc] == []
    assert {code for page in (*pages, *OTHERS.values(), *GROUPS.values()) for code in page.stops} - set(ENTRIES) == set()


def test_the_request_of_a_clean_up_does_not_speak_of_the_point_of_no_return(tmp_path: Path) -> None:
    task = clean_up.build(load(rehearsal(tmp_path, SimCluster()).path)).get_task("approve")
    assert "Keep everything" in str(task.doc_md)
    assert "point of no return" not in str(task.doc_md)


def test_the_tasks_that_a_group_on_zookeeper_holds_up_link_the_dag_that_moves_it(tmp_path: Path) -> None:
    spec = load(rehearsal(tmp_path, SimCluster()).path)
    link = "[kmigrate_consumers__sim](/dags/kmigrate_consumers__sim)"
    for groups, expected in (((), set()), ((GroupSpec("billing", ()),), {"preflight", "second_roll", "soak"})):
        dag = zk_to_kraft.build(replace(spec, groups=groups))
        linked = [task.task_id for task in dag.tasks if isinstance(task, BaseOperator) and link in (task.doc_md or "")]
        assert {task_id.split(".")[0] for task_id in linked} == expected
