"""The DAG of the rollback of the simulated cluster, and the conf that approves it."""

from __future__ import annotations

from tests.steps.sim_nodes import CLUSTER_ID

DAG_ID = "kmigrate_rollback__sim"
APPROVED = {"approve_rollback": CLUSTER_ID}
