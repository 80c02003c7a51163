"""Sensors: read-only waits of the migration, all deferrable; each returns the sentence that says what is now so."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any

from airflow.configuration import conf
from airflow.sdk import BaseOperatorLink, BaseSensorOperator, Context

from airflow_provider_kmigrate.airflow_releases import AirflowFailException
from airflow_provider_kmigrate.core.cluster_state.decision import Wait
from airflow_provider_kmigrate.core.migration.plan import Access, row_of, rows_by_kind
from airflow_provider_kmigrate.core.migration.progress import FRESH, StepProgress
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, Refused, TimedOut
from airflow_provider_kmigrate.links.pages import RunbookLink, first_reason_code
from airflow_provider_kmigrate.steps.catalog import build
from airflow_provider_kmigrate.steps.run import run_step
from airflow_provider_kmigrate.triggers.step import StepTrigger, parse_progress
from airflow_provider_kmigrate.utils.status_xcom import EVENT, StatusXCom
from airflow_provider_kmigrate.utils.step_context import read_only_context


class _ObservingSensor(BaseSensorOperator):
    """Base of the sensors that observe until a step of the plan is done.

    :param cluster_file: path of the cluster file. (templated)
    :param deferrable: hand waits of more than `sync_for` seconds to the triggerer. Airflow's `[operators] default_deferrable` by default.
    :param sync_for: seconds of waiting in the worker before the task is deferred.
    """

    template_fields: Sequence[str] = ("cluster_file",)
    ui_color = "#d9f2e3"
    operator_extra_links: Collection[BaseOperatorLink] = (RunbookLink(),)
    kind: str  # of the row, which the triggerer needs too
    stopped_by = ""  # the code that it failed with

    def __init__(
        self,
        *,
        cluster_file: str,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        sync_for: float = 30.0,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("execution_timeout", None)
        super().__init__(**kwargs)
        self.cluster_file, self.deferrable, self.sync_for = cluster_file, deferrable, sync_for

    def arguments(self) -> dict[str, Any]:
        """The step's arguments as JSON values."""
        return {"patience": float(self.timeout)}

    def on_kill(self) -> None:
        """Nothing to stop or release: a sensor starts no process, changes nothing and holds nothing."""

    def execute(self, context: Context) -> str:
        """Observe until the step is done, or defer."""
        return self._execute(context, FRESH)

    def _execute(self, context: Context, progress: StepProgress) -> str:
        limit = self.sync_for if self.deferrable else float(self.timeout)
        status = StatusXCom(context.get("ti"))
        try:
            with read_only_context(self.cluster_file, self.log.info) as step_context:
                step = build(step_context.spec, self.kind, self.arguments(), progress)
                decision = run_step(step, status.attach_to(step_context), limit)
        except (Refused, AuthenticationFailed, TimedOut) as error:
            status.store_end(self.cluster_file, self.task_id, str(error), error)
            self.stopped_by = first_reason_code(error)
            raise AirflowFailException(str(error)) from None
        except Exception as error:
            status.store_unexpected_end(self.cluster_file, self.task_id, error)
            raise
        if isinstance(decision, Wait):
            self._defer(step.progress)
        status.store_end(self.cluster_file, self.task_id, str(getattr(decision, "text", "")))
        return str(getattr(decision, "text", decision))

    def resume(self, context: Context, event: dict[str, Any]) -> str:
        """Observe again: the trigger's event is a reason to observe, not the answer."""
        self.log.info("The triggerer observed; %s. %s", event["outcome"], event["text"])
        StatusXCom(context.get("ti")).store(event.get(EVENT))
        progress = parse_progress(event["progress"])
        if event["outcome"] == "waiting":
            self._defer(progress)
        return self._execute(context, progress)

    def _defer(self, progress: StepProgress) -> None:
        self.log.info("Waiting; deferred to the triggerer.")
        trigger = StepTrigger(self.cluster_file, self.kind, self.arguments(), progress.to_json())
        self.defer(trigger=trigger, method_name="resume", timeout=timedelta(seconds=float(self.timeout)))


class StepSensor(_ObservingSensor):
    """Observe until a step of the plan is done; changes nothing and does not own the cluster.

    :param step: name of a step that only observes: a `kind` of `core.migration.plan` whose access is `WATCH`.
    :param step_kwargs: further arguments of the step. (templated)
    """

    template_fields: Sequence[str] = (*_ObservingSensor.template_fields, "step_kwargs")

    def __init__(self, *, step: str, step_kwargs: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if row_of(step).access is not Access.WATCH:
            observing = sorted(row.kind for row in rows_by_kind().values() if row.step and row.access is Access.WATCH)
            raise ValueError(f"A sensor runs one of {', '.join(observing)}, not {step!r}.")
        self.kind, self.step_kwargs = step, dict(step_kwargs or {})

    def arguments(self) -> dict[str, Any]:
        """The step's arguments as JSON values."""
        return {**super().arguments(), **self.step_kwargs}


class WaitAllBrokersRegisteredSensor(_ObservingSensor):
    """Wait until every broker of the cluster file is registered and known to all others, and consumer groups continue after a roll.

    :param cluster_file: path of the cluster file. (templated)
    """

    kind = "registered"


class CoordinatorConsistencySensor(_ObservingSensor):
    """Wait until every broker computes coordinators with the partition counts that Kafka's topics for them have (KIP-895).

    A broker reads the count of `__consumer_offsets` once, when it starts. If one certainly uses another, the task fails at once and
    names the groups that two brokers accept, and those that none does. A broker that does not answer is waited for.

    :param cluster_file: path of the cluster file. (templated)
    """

    kind = "coordinators"


class VerifyDualWriteLagSensor(_ObservingSensor):
    """Wait until ZooKeeper is at most `limit` records behind KRaft, while `/migration` moves.

    :param limit: records. (templated)
    """

    template_fields: Sequence[str] = (*_ObservingSensor.template_fields, "limit")
    kind = "lag"

    def __init__(self, *, limit: int | str = 10, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.limit = limit

    def arguments(self) -> dict[str, Any]:
        """The step's arguments, with the limit."""
        return {**super().arguments(), "limit": self.limit}
