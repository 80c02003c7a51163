"""Repair `__consumer_offsets` after brokers have used different counts of its partitions (KIP-895)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import Context

from airflow_provider_kmigrate.operators.step import StepOperator
from airflow_provider_kmigrate.steps.run import StepContext


class RepairOffsetsOperator(StepOperator):
    """Leave one copy of each commit in `__consumer_offsets`: the newest by commit time, in its group's partition.

    All brokers must use the topic's count (K01). Groups that have copies must be stopped: it waits for that (K91). What time does not
    settle is refused with all values (K90); `decisions`, also those of a run's conf, settle it. Afterwards every broker must restart.

    :param decisions: group -> `topic-partition` -> the offset that is right; None: it stays removed. (templated)
    """

    template_fields: Sequence[str] = (*StepOperator.template_fields, "decisions")
    kind = "repair offsets"
    in_one_process = True  # only this process knows the log that it read

    def __init__(self, *, decisions: Mapping[str, Mapping[str, int | None]] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.decisions = dict(decisions or {})

    def run_in(self, step_context: StepContext, arguments: dict[str, Any]) -> object:
        """Repair, then release the cluster."""
        done = super().run_in(step_context, arguments)
        step_context.fence.release()
        return done

    def arguments(self, context: Context) -> dict[str, Any]:
        """The decisions: this operator's, or the run's."""
        return {"decisions": self.decisions or context["params"].get("decisions") or {}}
