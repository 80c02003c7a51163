"""Provision the KRaft controllers, and finalize them."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_kmigrate.core.forward.provision import may_begin
from airflow_provider_kmigrate.core.model import Look
from airflow_provider_kmigrate.hooks.verdicts import JUDGED_AT
from airflow_provider_kmigrate.operators.step import StepOperator
from airflow_provider_kmigrate.steps.catalog import build
from airflow_provider_kmigrate.steps.rolling import postponed, run_rest
from airflow_provider_kmigrate.steps.run import Step, World, demand, run_step


class ProvisionControllersOperator(StepOperator):
    """Write one controller's file, format its directory with the pinned cluster id, start it with the migration flag."""

    kind = "provision"

    def __init__(self, *, controller: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.controller = controller

    def arguments(self, context: Context) -> dict[str, Any]:
        del context
        return {"node": self.controller}


class FinalizeControllerOperator(StepOperator):
    """Restart one controller without the migration flag; the active one is skipped here and restarted at the end.

    `controller` None: restart all that are left, the active one last. The approval may be days old: what it was given on is looked at
    again before each restart. `evidence`: the task that said what both sides store; `verdict`: the one that judged the audit, which cannot
    be looked at again and must not be too old while no controller is without its flag.
    """

    kind = "finalize"
    ui_color = "#f4d7d7"

    def __init__(self, *, controller: int | None = None, evidence: str = "", verdict: str = "", **kwargs: Any) -> None:
        super().__init__(**{"deferrable": False, **kwargs})
        self.controller, self.evidence, self.verdict = controller, evidence, verdict

    def arguments(self, context: Context) -> dict[str, Any]:
        ti: Any = context["ti"]
        return {
            "approved": ti.xcom_pull(task_ids=self.evidence) if self.evidence else "",
            "judged_at": ti.xcom_pull(task_ids=self.verdict, key=JUDGED_AT) if self.verdict else None,
        }

    def run_in(self, world: World, arguments: dict[str, Any]) -> object:
        view = world.observer.look(Look.BROKERS | Look.CONTROLLERS | Look.QUORUM | Look.ZOOKEEPER)
        demand(may_begin(view, arguments["judged_at"], world.clock.now()))
        if self.controller is None:
            return run_rest(world, self.kind, arguments)
        if why := postponed(world, self.kind, self.controller):
            raise AirflowSkipException(why)
        return run_step(self._step(world, self.controller, arguments), world)

    def _step(self, world: World, node: int, arguments: dict[str, Any]) -> Step:
        return build(world.spec, self.kind, {"node": node, "approved": arguments["approved"]})
