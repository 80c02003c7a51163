"""Restart brokers in their next mode, one at a time."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_kmigrate.core.model import BrokerMode
from airflow_provider_kmigrate.operators.step import StepOperator
from airflow_provider_kmigrate.steps.rolling import postponed, run_rest
from airflow_provider_kmigrate.steps.run import World


class BrokerStepOperator(StepOperator):
    """What restarts one broker into `target`; `broker` None: whatever is left.

    Deferring the rest of a restart would free a slot but not the cluster; only waiting before it may take long.
    """

    ui_color = "#fdf0cd"

    def __init__(self, *, target: BrokerMode | str, broker: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.target, self.broker = str(target), broker

    def arguments(self, context: Context) -> dict[str, Any]:
        del context
        return {"node": self.broker, "target": self.target}


class RollBrokerOperator(BrokerStepOperator):
    """Restart one broker into `target`, when every partition can spare it, and wait until it is back in every ISR.

    The broker that is the ZooKeeper controller is skipped while others are left: moving the controller costs an election each time.
    `broker` None: roll whatever is left, in the planned order.
    """

    kind = "roll"

    def run_in(self, world: World, arguments: dict[str, Any]) -> object:
        if self.broker is None:
            return run_rest(world, self.kind, arguments)
        if why := postponed(world, self.kind, self.broker, BrokerMode(self.target)):
            raise AirflowSkipException(why)
        return super().run_in(world, arguments)
