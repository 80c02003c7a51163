"""Sensors: read-only waits of the migration, all deferrable; each returns the sentence that says what is now so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from airflow.configuration import conf
from airflow.sdk import BaseSensorOperator, Context
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_kmigrate.core.decision import Wait
from airflow_provider_kmigrate.core.progress import FRESH, StepProgress
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, Refused, TimedOut
from airflow_provider_kmigrate.hooks.step_context import watching
from airflow_provider_kmigrate.steps.catalog import OBSERVING, build
from airflow_provider_kmigrate.steps.run import run_step
from airflow_provider_kmigrate.triggers.step import StepTrigger, readable


class StepSensor(BaseSensorOperator):
    """Observe until a step of the plan is done; changes nothing and does not own the cluster.

    :param step: name of a step that only observes: one of `steps.catalog.OBSERVING`.
    :param cluster_file: path of the cluster file. (templated)
    :param step_kwargs: further arguments of the step. (templated)
    :param deferrable: hand waits of more than `sync_for` seconds to the triggerer. Airflow's `[operators] default_deferrable` by default.
    :param sync_for: seconds of waiting in the worker before the task is deferred.
    """

    template_fields: Sequence[str] = ("cluster_file", "step_kwargs")
    ui_color = "#d9f2e3"

    def __init__(
        self,
        *,
        step: str,
        cluster_file: str,
        step_kwargs: Mapping[str, Any] | None = None,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        sync_for: float = 30.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**{"execution_timeout": None, **kwargs})
        if step not in OBSERVING:
            raise ValueError(f"A sensor runs one of {', '.join(sorted(OBSERVING))}, not {step!r}.")
        self.kind, self.step_kwargs = step, dict(step_kwargs or {})
        self.cluster_file, self.deferrable, self.sync_for = cluster_file, deferrable, sync_for

    def arguments(self) -> dict[str, Any]:
        """The step's arguments as JSON values."""
        return {"patience": float(self.timeout), **self.step_kwargs}

    def on_kill(self) -> None:
        """Nothing to stop or release: a sensor starts no process, changes nothing and holds nothing."""

    def execute(self, context: Context) -> str:
        """Observe until the step is done, or defer."""
        del context
        return self._execute(FRESH)

    def _execute(self, progress: StepProgress) -> str:
        limit = self.sync_for if self.deferrable else float(self.timeout)
        try:
            with watching(self.cluster_file, self.log.info) as step_context:
                step = build(step_context.spec, self.kind, self.arguments(), progress)
                decision = run_step(step, step_context, limit)
        except (Refused, AuthenticationFailed, TimedOut) as error:
            raise AirflowFailException(str(error)) from None
        if isinstance(decision, Wait):
            self._defer(step.progress)
        return str(getattr(decision, "text", decision))

    def resume(self, context: Context, event: dict[str, Any]) -> str:
        """Observe again: the trigger's event is a reason to observe, not the answer."""
        del context
        self.log.info("The triggerer observed; %s. %s", event["outcome"], event["text"])
        progress = readable(event["progress"])
        if event["outcome"] == "waiting":
            self._defer(progress)
        return self._execute(progress)

    def _defer(self, progress: StepProgress) -> None:
        self.log.info("Waiting; deferred to the triggerer.")
        trigger = StepTrigger(self.cluster_file, self.kind, self.arguments(), progress.to_json())
        self.defer(trigger=trigger, method_name="resume", timeout=timedelta(seconds=float(self.timeout)))


class WaitAllBrokersRegisteredSensor(StepSensor):
    """Wait until every broker of the cluster file is registered and known to all others, and consumer groups continue after a roll.

    :param cluster_file: path of the cluster file. (templated)
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"step": "registered", **kwargs})


class CoordinatorConsistencySensor(StepSensor):
    """Wait until every broker computes coordinators with the partition counts that Kafka's topics for them have (KIP-895).

    A broker reads the count of `__consumer_offsets` once, when it starts. If one certainly uses another, the task fails at once and
    names the groups that two brokers accept, and those that none does. A broker that does not answer is waited for.

    :param cluster_file: path of the cluster file. (templated)
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"step": "coordinators", **kwargs})


class VerifyDualWriteLagSensor(StepSensor):
    """Wait until ZooKeeper is at most `limit` records behind KRaft, while `/migration` moves.

    :param limit: records. (templated)
    """

    template_fields: Sequence[str] = (*StepSensor.template_fields, "limit")

    def __init__(self, *, limit: int | str = 10, **kwargs: Any) -> None:
        super().__init__(**{"step": "lag", **kwargs})
        self.limit = limit

    def arguments(self) -> dict[str, Any]:
        """The step's arguments, with the limit."""
        return {**super().arguments(), "limit": self.limit}
