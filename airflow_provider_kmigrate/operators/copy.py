"""See the copy through, bring leadership back, soak, and see the end."""

from __future__ import annotations

from typing import Any

from airflow_provider_kmigrate.core.model import Done
from airflow_provider_kmigrate.operators.step import StepOperator
from airflow_provider_kmigrate.steps.run import World


class MetadataCopyOperator(StepOperator):
    """Wait until the copy from ZooKeeper is over and the dual-write moves; elect leaders that the takeover left out."""

    kind = "copied"


class PreferredLeadersOperator(StepOperator):
    """Bring leadership back to the preferred replicas."""

    kind = "leaders"


class FinalizedOperator(StepOperator):
    """Wait until every controller runs without the flag and nothing is written to ZooKeeper; then let go of the cluster."""

    kind = "finalized"

    def run_in(self, world: World, arguments: dict[str, Any]) -> object:
        decision = super().run_in(world, arguments)
        if isinstance(decision, Done):
            world.fence.release()
        return decision


class SoakOperator(StepOperator):
    """Keep the cluster in dual-write for `policy.min_soak` with every gate green; one red look and the time begins again.

    The time already soaked is kept in the task's state store, so a restarted worker or triggerer loses minutes of it at most.
    """

    kind = "soak"
