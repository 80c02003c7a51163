"""Sensors beside the steps: for quiet while Kafka is restarted, for the verdict of an audit, for the window of a group's move."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from airflow.sdk import BaseSensorOperator, Context, PokeReturnValue

from airflow_provider_kmigrate.airflow_releases import AirflowFailException, AirflowSkipException
from airflow_provider_kmigrate.core.audit.verdict import AuditOutcome, outcome_of
from airflow_provider_kmigrate.core.cluster_state.decision import Wait
from airflow_provider_kmigrate.core.cluster_state.model import Fields
from airflow_provider_kmigrate.core.groups.move import has_left_zookeeper
from airflow_provider_kmigrate.core.groups.scan import is_other_wave
from airflow_provider_kmigrate.core.migration.waits import is_window_open
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, KMigrateError, Refused, Unavailable
from airflow_provider_kmigrate.spec import load
from airflow_provider_kmigrate.steps import waits
from airflow_provider_kmigrate.steps.catalog import find_group
from airflow_provider_kmigrate.steps.journal import format_reasons
from airflow_provider_kmigrate.utils.spark_jobs import read_verdict
from airflow_provider_kmigrate.utils.step_context import JUDGED_AT, read_only_context


class _Rescheduled(BaseSensorOperator):
    """A sensor that holds no worker between two observations."""

    ui_color = "#d9f2e3"

    def __init__(
        self, *, mode: str = "reschedule", poke_interval: float = 30.0, timeout: float = 21_600.0, **kwargs: Any
    ) -> None:
        super().__init__(mode=mode, poke_interval=poke_interval, timeout=timeout, **kwargs)

    def on_kill(self) -> None:
        """Nothing to stop or release: it starts no process, changes nothing and holds nothing."""


class ClusterQuietSensor(_Rescheduled):
    """Wait while a run of kmigrate restarts nodes of the cluster; one line in front of a job that reads it.

    `ClusterQuietSensor(task_id="kafka_is_quiet", cluster_file="/etc/kmigrate/clusters/prod.yaml") >> my_job`

    What is in progress is read from the cluster and from the journals, never from another DAG's XCom. Without a migration under way it
    costs one observation.

    :param cluster_file: path of the cluster file. (templated)
    :param quiet_for: seconds since the last change.
    """

    template_fields: Sequence[str] = ("cluster_file",)

    def __init__(self, *, cluster_file: str, quiet_for: float = 30.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.cluster_file, self.quiet_for = cluster_file, quiet_for

    def poke(self, context: Context) -> PokeReturnValue:
        """Observe once. A refusal fails the sensor at once; everything else is waited for."""
        del context
        try:
            with read_only_context(self.cluster_file, self.log.info) as step_context:
                decision = waits.decide_whether_jobs_may_begin(step_context, self.quiet_for)
        except (Refused, AuthenticationFailed) as error:
            raise AirflowFailException(str(error)) from None
        if isinstance(decision, Wait):
            self.log.info("Not yet: %s", format_reasons(decision.reasons))
            return PokeReturnValue(is_done=False)
        return PokeReturnValue(is_done=True, xcom_value=str(getattr(decision, "text", decision)))


class AuditVerdictSensor(_Rescheduled):
    """Wait for a PASS in the file that an audit leaves (`verdict.json`, or a `report.json`); a FAIL fails at once, without retries.

    INCONCLUSIVE asks for more evidence. A store that does not answer is read again.

    :param path: any place that Airflow's object storage reads. (templated)
    :param conn_id: connection of that object storage. (templated)
    :param inconclusive: `wait`, until `timeout`: an audit that is repeated may replace the file; or `fail`.
    :param advice: said when it fails: what the reader may do now. (templated)
    """

    template_fields: Sequence[str] = ("path", "conn_id", "advice")

    def __init__(
        self, *, path: str, conn_id: str | None = None, inconclusive: str = "wait", advice: str = "", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        if inconclusive not in {"wait", "fail"}:
            raise ValueError(f"inconclusive is 'wait' or 'fail', not {inconclusive!r}")
        self.path, self.conn_id, self.inconclusive, self.advice = path, conn_id, inconclusive, advice

    def poke(self, context: Context) -> PokeReturnValue:
        """Read the verdict once, and push the time at which it was judged (XCom `JUDGED_AT`)."""
        try:
            document = read_verdict(self.path, self.conn_id)
        except Unavailable as error:
            self.log.warning("Could not read whether there is a verdict; trying again. %s", error)
            return PokeReturnValue(is_done=False)
        if document is None:
            self.log.info("There is no verdict yet at %s.", self.path)
            return PokeReturnValue(is_done=False)
        try:
            outcome = outcome_of(document)
        except Refused as error:
            raise AirflowFailException(str(error)) from None
        judged = self._judge(outcome, str(document.get("headline", outcome)))
        if judged.is_done:
            context["ti"].xcom_push(JUDGED_AT, time.time())
        return judged

    def _judge(self, outcome: AuditOutcome, headline: str) -> PokeReturnValue:
        if outcome is AuditOutcome.FAIL or (outcome is AuditOutcome.INCONCLUSIVE and self.inconclusive == "fail"):
            raise AirflowFailException(f"{headline} {self.advice}".strip())
        if outcome is AuditOutcome.INCONCLUSIVE:
            self.log.info("Waiting for more evidence. %s", headline)
            return PokeReturnValue(is_done=False)
        return PokeReturnValue(is_done=True, xcom_value=headline)


class WindowSensor(_Rescheduled):
    """Wait until the daily window in which a group's move may begin is open.

    Skipped, as a group's tasks are, in a run for another wave and if the group has left ZooKeeper: the groups behind it need not wait for
    its window.

    :param cluster_file: path of the cluster file. (templated)
    :param group: name of the group. (templated)
    :param window: such as `22:00-04:00`, in UTC. (templated)
    :param wave: the group's wave.
    """

    template_fields: Sequence[str] = ("cluster_file", "group", "window")

    def __init__(
        self,
        *,
        cluster_file: str,
        group: str,
        window: str,
        wave: int = 0,
        poke_interval: float = 60.0,
        timeout: float = 7 * 86_400.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, timeout=timeout, **kwargs)
        self.cluster_file, self.group, self.window, self.wave = cluster_file, group, window, wave

    def poke(self, context: Context) -> bool:
        """True in the window. Skips another wave's run, and a group that has left ZooKeeper."""
        if is_other_wave(context["params"].get("wave"), self.wave):
            raise AirflowSkipException(f"This run does not move wave {self.wave}.")
        try:
            find_group(load(self.cluster_file), self.group)
        except Refused as error:
            raise AirflowFailException(str(error)) from None
        if is_window_open(self.window, datetime.now(UTC)):
            return True
        if self._has_moved():
            raise AirflowSkipException(f"{self.group} has left ZooKeeper already.")
        return False

    def _has_moved(self) -> bool:
        """True if the group has left ZooKeeper; false if that is unknown."""
        try:
            with read_only_context(self.cluster_file, self.log.info) as step_context:
                groups = step_context.observer.observe(Fields.ZOOKEEPER | Fields.GROUP_MEMBERS, groups=(self.group,)).groups or {}
                return has_left_zookeeper(groups.get(self.group), find_group(step_context.spec, self.group))
        except KMigrateError as error:
            self.log.info("Could not read whether %s is left to move; trying again. %s", self.group, error)
            return False
