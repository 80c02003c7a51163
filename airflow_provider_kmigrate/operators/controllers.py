"""Provision the KRaft controllers, and finalize them."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_kmigrate.core.forward.provision import postponed_controller
from airflow_provider_kmigrate.core.model import Look
from airflow_provider_kmigrate.operators.step import StepOperator
from airflow_provider_kmigrate.steps.catalog import build
from airflow_provider_kmigrate.steps.run import World, run_step


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

    `controller` None: restart all that are left, the active one last.
    """

    kind = "finalize"
    ui_color = "#f4d7d7"

    def __init__(self, *, controller: int | None = None, **kwargs: Any) -> None:
        super().__init__(**{"deferrable": False, **kwargs})
        self.controller = controller

    def run_in(self, world: World, arguments: dict[str, Any]) -> object:
        del arguments
        view = world.observer.look(Look.CONTROLLERS | Look.QUORUM)
        if self.controller is not None:
            if postponed_controller(view, self.controller):
                raise AirflowSkipException(f"Controller {self.controller} is the active one: it is restarted last.")
            return run_step(build(world.spec, self.kind, {"node": self.controller}), world)
        left = sorted(world.spec.controllers, key=lambda node: postponed_controller(view, node.id))
        done = [run_step(build(world.spec, self.kind, {"node": node.id}), world) for node in left]
        return done[-1]
