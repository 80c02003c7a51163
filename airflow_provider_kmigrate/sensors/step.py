"""Sensors: read-only waits of the migration, all deferrable; each returns the sentence that says what is now so."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import BaseSensorOperator, Context
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_kmigrate.core.decision import Wait
from airflow_provider_kmigrate.core.phase import Phase
from airflow_provider_kmigrate.core.progress import FRESH, StepProgress
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, Refused, TimedOut
from airflow_provider_kmigrate.hooks.world import watching
from airflow_provider_kmigrate.steps.catalog import build
from airflow_provider_kmigrate.steps.run import run_step
from airflow_provider_kmigrate.triggers.step import StepTrigger, readable


class StepSensor(BaseSensorOperator):
    """Look until the step `kind` says Done. Waits of more than `sync_for` seconds go to the triggerer where `deferrable`."""

    template_fields: Sequence[str] = ()
    ui_color = "#d9f2e3"
    kind: str

    def __init__(self, *, cluster_file: str, deferrable: bool = True, sync_for: float = 30.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.cluster_file, self.deferrable, self.sync_for = cluster_file, deferrable, sync_for

    def arguments(self) -> dict[str, Any]:
        """The step's arguments as JSON values."""
        return {}

    def execute(self, context: Context) -> str:
        del context
        return self._execute(FRESH)

    def _execute(self, progress: StepProgress) -> str:
        limit = self.sync_for if self.deferrable else float(self.timeout)
        try:
            with watching(self.cluster_file, self.log.info) as world:
                step = build(world.spec, self.kind, self.arguments(), progress)
                decision = run_step(step, world, limit)
        except (Refused, AuthenticationFailed, TimedOut) as error:
            raise AirflowFailException(str(error)) from None
        if isinstance(decision, Wait):
            self._defer(step.progress)
        return str(getattr(decision, "text", decision))

    def resume(self, context: Context, event: dict[str, Any]) -> str:
        """Look again here: the trigger's word is a reason to look, not the answer."""
        del context
        self.log.info("The triggerer watched on; %s. %s", event["outcome"], event["text"])
        progress = readable(event["progress"])
        if event["outcome"] == "waiting":
            self._defer(progress)
        return self._execute(progress)

    def _defer(self, progress: StepProgress) -> None:
        self.log.info("Waiting; deferred to the triggerer.")
        trigger = StepTrigger(self.cluster_file, self.kind, self.arguments(), progress.to_json())
        self.defer(trigger=trigger, method_name="resume", timeout=timedelta(seconds=float(self.timeout)))


class ControllersReadySensor(StepSensor):
    """Every controller answers with the migration flag, and they follow one leader."""

    kind = "controllers ready"


class WaitAllBrokersRegisteredSensor(StepSensor):
    """Every broker of the cluster file is registered, unfenced and known to all others."""

    kind = "registered"


class VerifyDualWriteLagSensor(StepSensor):
    """ZooKeeper is at most `limit` records behind KRaft, while /migration moves."""

    kind = "lag"

    def __init__(self, *, limit: int = 10, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.limit = limit

    def arguments(self) -> dict[str, Any]:
        return {"limit": self.limit}


class MigrationPhaseSensor(StepSensor):
    """The cluster shows one of `phases` (`core.phase.Phase`)."""

    kind = "phase"

    def __init__(self, *, phases: Sequence[Phase | str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.phases = [str(Phase(phase)) for phase in phases]

    def arguments(self) -> dict[str, Any]:
        return {"phases": self.phases, "patience": float(self.timeout)}


class MetadataEquivalenceSensor(StepSensor):
    """ZooKeeper and KRaft store the same topics, settings, quotas, credentials, ACLs and tokens: lag 0 is no proof of it."""

    kind = "equivalent"
