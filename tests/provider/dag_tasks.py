"""What tests ask of a DAG and of a run of it: its tasks, their states, and what a plan would make."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG

from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole
from airflow_provider_kmigrate.core.migration.plan import Plan
from tests.steps.sim_nodes import CLUSTER_ID

DAG_ID = "kmigrate_zk_to_kraft__sim"
APPROVED = {"approve_finalization": CLUSTER_ID}


def names(dag: DAG) -> list[str]:
    return [task.task_id for task in dag.topological_sort()]


def planned(plan: Plan, brokers: int, controllers: int) -> list[str]:
    """The ids of the tasks of a plan, in order (`tests/core/test_plan.py` has the reasons for it)."""
    nodes = {None: [None], NodeRole.BROKER: range(brokers), NodeRole.CONTROLLER: range(3000, 3000 + controllers)}
    found = []
    for row in plan:
        found += [row.full_id(node) for node in nodes[row.each]]
        found += [f"{row.group}.{row.last.task}"] if row.last else []
    return found


def tasks(run: Any) -> dict[str, str]:
    return {instance.task_id: str(instance.state) for instance in run.get_task_instances()}
