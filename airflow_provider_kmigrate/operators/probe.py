"""kmigrate's own stream of records through every broker while a cluster migrates: level L1 of the audits."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from airflow.sdk import BaseOperator, Context

from airflow_provider_kmigrate.airflow_releases import AirflowFailException
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, Refused
from airflow_provider_kmigrate.hooks.connections import ClusterHooks
from airflow_provider_kmigrate.probe.probe import ProbeRuns, wait_for_flow
from airflow_provider_kmigrate.spec import load


class ProbeOperator(BaseOperator):
    """Base of the probe's operators. A refusal fails the task at once.

    The processes outlive the task, on the worker that started them: with several workers these tasks need one queue.

    :param cluster_file: path of the cluster file, whose Kafka connection the probe uses. (templated)
    :param folder: folder of the probe's runs. (templated)
    :param run: name of this run. (templated)
    """

    template_fields: Sequence[str] = ("cluster_file", "folder", "run")
    ui_color = "#fdf0cd"

    def __init__(self, *, cluster_file: str, folder: str, run: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.cluster_file, self.folder, self.run = cluster_file, folder, run

    def on_kill(self) -> None:
        """Nothing to stop: the probe outlives the task that starts it. StopProbeOperator, or the next run's start, ends it."""

    def execute(self, context: Context) -> str:
        """Do it; a refusal fails the task without retries."""
        del context
        try:
            return self.act_on_probe()
        except (Refused, AuthenticationFailed) as error:
            raise AirflowFailException(str(error)) from None

    def probe_runs(self) -> ProbeRuns:
        """The probe's runs, through the cluster's Kafka connection."""
        return ProbeRuns(self.folder, ClusterHooks(load(self.cluster_file)).kafka.settings.properties)

    @abstractmethod
    def act_on_probe(self) -> str:
        """Act; returns the sentence that says what is now so."""


class StartProbeOperator(ProbeOperator):
    """Start the probe of `run`, unless it runs; end those of other runs. Makes the topic `kmigrate-probe` if missing."""

    def act_on_probe(self) -> str:
        """Start the probe's processes, unless they run."""
        return f"The probe runs; its events: {self.probe_runs().begin(self.run)}"


class CheckProbeOperator(ProbeOperator):
    """Check in the files, wherever this runs, that the probe's records are acknowledged and read; fail if they are not."""

    def act_on_probe(self) -> str:
        """Check that records arrive and are committed."""
        acked, committed = wait_for_flow(Path(self.folder) / self.run / "events")
        return f"The probe's records arrive: {acked} were acknowledged, {committed} offsets committed."


class StopProbeOperator(ProbeOperator):
    """End every probe of the cluster, once its records were read; done at once if none runs."""

    def act_on_probe(self) -> str:
        """Stop every probe of this cluster on this worker."""
        ended = self.probe_runs().end()
        return f"No probe of this cluster runs on this worker; checked: {', '.join(ended) or 'none'}."
