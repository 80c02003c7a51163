"""See the copy through, bring leadership back, soak, and see the end."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_kmigrate.core.decision import Done
from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.hooks.world import refuse_if_way_back_is_lost
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

    From time to time the originals are read again: without them there is no way back, and what cannot be taken back is not soaked on.
    The healthy time is kept in the task's state store (`StepProgress`): a worker or triggerer that is restarted loses five minutes at most.
    """

    kind = "soak"

    def execute(self, context: Context) -> str:
        self.meanwhile(context)
        return super().execute(context)

    def meanwhile(self, context: Context) -> None:
        """Whether the way back is still open on this machine; the triggerer's need not have the backup."""
        try:
            refuse_if_way_back_is_lost("soak in dual-write", self.cluster_file, context)
        except Refused as lost:
            raise AirflowFailException(str(lost)) from None
