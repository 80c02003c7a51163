"""A sensor for users' own DAGs: it holds back what should not start while Kafka is being restarted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.sdk import BaseSensorOperator, Context, PokeReturnValue
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_kmigrate.core.decision import Wait
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, Refused
from airflow_provider_kmigrate.hooks.step_context import folder, watching
from airflow_provider_kmigrate.steps import waits
from airflow_provider_kmigrate.steps.journal import format_reasons


class ClusterQuietSensor(BaseSensorOperator):
    """Wait while a run of kmigrate restarts nodes of the cluster; one line in front of a job that reads it.

    `ClusterQuietSensor(task_id="kafka_is_quiet", cluster_file="/etc/kmigrate/clusters/prod.yaml") >> my_job`

    What is in progress is read from the cluster and from the journals, never from another DAG's XCom. Holds no worker between two
    observations. Without a migration under way it costs one.

    :param cluster_file: path of the cluster file. (templated)
    :param quiet_for: seconds since the last change.
    """

    template_fields: Sequence[str] = ("cluster_file",)
    ui_color = "#d9f2e3"

    def __init__(self, *, cluster_file: str, quiet_for: float = 30.0, **kwargs: Any) -> None:
        super().__init__(**{"mode": "reschedule", "poke_interval": 30.0, "timeout": 21_600.0, **kwargs})
        self.cluster_file, self.quiet_for = cluster_file, quiet_for

    def on_kill(self) -> None:
        """Nothing to stop or release: it starts no process, changes nothing and holds nothing."""

    def poke(self, context: Context) -> PokeReturnValue:
        del context
        try:
            with watching(self.cluster_file, self.log.info) as world:
                decision = waits.look(world, folder() / "journal" / world.spec.name, self.quiet_for)
        except (Refused, AuthenticationFailed) as error:
            raise AirflowFailException(str(error)) from None
        if isinstance(decision, Wait):
            self.log.info("Not yet: %s", format_reasons(decision.reasons))
            return PokeReturnValue(is_done=False)
        return PokeReturnValue(is_done=True, xcom_value=str(getattr(decision, "text", decision)))
