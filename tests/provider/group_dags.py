"""What the tests of the DAGs that move consumer groups share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow.sdk import DAG

from airflow_provider_kmigrate.dag_builders import folder
from tests.provider.simulated_groups import GroupRehearsal
from tests.steps.sim_nodes import CLUSTER_ID

FORWARD, BACK = "kmigrate_consumers__sim", "kmigrate_consumers_rollback__sim"
APPROVED = {"approve_rollback": CLUSTER_ID}
AUDIT = {"conn_id": "spark_default", "result": "/tmp/none", "events": ["/tmp/none/events"]}
Group = Callable[..., GroupRehearsal]
RunDag = Callable[..., Any]


def dag_of(there: GroupRehearsal, dag_id: str = FORWARD) -> DAG:
    return folder.dags_of(there.path.parent)[dag_id]
