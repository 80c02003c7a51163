"""kmigrate's own stream of records through every broker while a cluster migrates: level L1 of the audits.

`probe` runs beside the steps, as long as its process; `check_probe` waits until its records arrive, `stop_probe` until it has ended.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from airflow.sdk import BaseOperator, BaseSensorOperator, Context, PokeReturnValue

from airflow_provider_kmigrate.airflow_releases import AirflowException, AirflowFailException
from airflow_provider_kmigrate.core.migration.beside import (
    BESIDE,
    PROBE,
    find_no_flow_reason,
    is_run_over,
    probe_holds_only_slot_reason,
    waits_for_worker,
)
from airflow_provider_kmigrate.core.shared.text import count_of
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, KMigrateError, Refused
from airflow_provider_kmigrate.hooks.connections import ClusterHooks
from airflow_provider_kmigrate.operators.audit_session import DAG_TEST
from airflow_provider_kmigrate.probe.probe import (
    DRAIN_S,
    Probe,
    ProbeEnd,
    describe_earlier_release,
    find_flow,
    is_of_earlier_release,
    list_runs,
    stop_runs,
)
from airflow_provider_kmigrate.spec import load
from airflow_provider_kmigrate.utils.dag_runs import read_task_states

_BEAT_S: Final = 1.0
_STATES_S: Final = 15.0
_WITHOUT_WORKER_S: Final = 600.0  # tasks wait for a slot for so long, and none runs; a new machine of a cluster begins within it
_FLOW_S: Final = 10.0


class ProbeOperator(BaseOperator):
    """Send and receive the probe's records until the run needs them no more; end the probes of other runs first.

    It takes a slot of a worker all the time. A retry, on whatever worker, goes on with the same run. In `dag.test`, which runs one task
    at a time, it returns at once, and the probe runs until it is stopped or that process ends.

    :param cluster_file: path of the cluster file, whose Kafka connection the probe uses. (templated)
    :param folder: folder of the probe's runs. (templated)
    :param run: name of this run. (templated)
    :param needed_until: the task before which it ends; it also ends when none of those that come before that one is left to do.
    """

    template_fields: Sequence[str] = ("cluster_file", "folder", "run")
    ui_color = "#fdf0cd"

    def __init__(self, *, cluster_file: str, folder: str, run: str, needed_until: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.cluster_file, self.folder, self.run, self.needed_until = cluster_file, folder, run, needed_until
        self._probe: Probe | None = None

    def on_kill(self) -> None:
        """Have the probe end: its sender and its receiver write their stops."""
        if self._probe is not None:
            self._probe.cancel()

    def execute(self, context: Context) -> str:
        """Keep the probe until the run needs it no more. A refusal fails the task without retries."""
        if self._is_over(context):
            return f"No task before `{self.needed_until}` is left to do: no record was sent."
        try:
            self._probe = probe = self.make_probe()
            probe.start()
        except (Refused, AuthenticationFailed) as error:
            raise AirflowFailException(str(error)) from None
        self.log.info("The probe runs; its events: %s", probe.events)
        if getattr(context["dag_run"], "triggering_user_name", "") == DAG_TEST:
            atexit.register(probe.stop, 0.0)
            threading.Thread(target=self._keep_beside, args=(probe,), name="kmigrate-probe", daemon=True).start()
            return "The probe runs until it is stopped, or this process ends."
        drain = 0.0  # what is unread another attempt reads
        try:
            end = self._keep(probe, context)
            drain = DRAIN_S if end in {None, ProbeEnd.STOPPED} else 0.0
        finally:
            probe.stop(drain)
        if end is ProbeEnd.CANCELLED:
            raise AirflowException(f"The probe has ended: {end}. The next try goes on with it.")
        return f"The probe has ended: {end or f'no task before `{self.needed_until}` is left to do'}."

    def make_probe(self) -> Probe:
        """An attempt of its own, through the cluster's Kafka connection."""
        return Probe(Path(self.folder) / self.run, ClusterHooks(load(self.cluster_file)).kafka.settings.properties)

    def _keep(self, probe: Probe, context: Context) -> ProbeEnd | None:
        """Wait for its end; None: nothing needs it any more."""
        states_at, waiting_since = time.monotonic(), None
        while not (end := probe.find_end()):
            now = time.monotonic()
            if now - states_at >= _STATES_S:
                states_at = now
                if self._is_over(context):
                    return None
                waiting_since = (waiting_since or now) if waits_for_worker(self._read_states(context)) else None
                if waiting_since is not None and now - waiting_since > _WITHOUT_WORKER_S:
                    raise AirflowFailException(str(probe_holds_only_slot_reason(now - waiting_since)))
            probe.wait(_BEAT_S)
        return end

    def _is_over(self, context: Context) -> bool:
        """True if no task that comes before `needed_until` is left to do; False if Airflow does not say."""
        last_task = context["dag"].get_task(self.needed_until)
        earlier_tasks: set[str] = last_task.get_flat_relative_ids(upstream=True)
        states = {task: state for task, state in self._read_states(context).items() if task in earlier_tasks}
        return bool(states) and is_run_over(states)

    def _read_states(self, context: Context) -> Mapping[str, str | None]:
        """The states of the run's tasks, without those beside the steps; none if Airflow does not say."""
        ti: Any = context["ti"]
        states = read_task_states(ti, ti.dag_id, ti.run_id) or {}
        return {task: state for task, state in states.items() if task not in BESIDE}

    def _keep_beside(self, probe: Probe) -> None:
        try:
            while not probe.find_end():
                probe.wait(_BEAT_S)
        except KMigrateError:
            self.log.exception("The probe has ended by itself.")
        probe.stop()


class CheckProbeSensor(BaseSensorOperator):
    """Wait, without a worker, until the probe's records are acknowledged and read, as the files say wherever this runs.

    :param folder: folder of the probe's runs. (templated)
    :param run: name of this run. (templated)
    :param patience: seconds to wait for the first records; then the task fails and says what the probe's task waits for.
    """

    template_fields: Sequence[str] = ("folder", "run")
    ui_color = "#fdf0cd"

    def __init__(self, *, folder: str, run: str, patience: float = 900.0, **kwargs: Any) -> None:
        super().__init__(mode="reschedule", poke_interval=5.0, timeout=2 * patience, **kwargs)
        self.folder, self.run, self.patience = folder, run, patience

    def on_kill(self) -> None:
        """Nothing to stop: it reads files."""

    def poke(self, context: Context) -> PokeReturnValue:
        """Read the files once."""
        if flow := find_flow(Path(self.folder) / self.run / "events", _FLOW_S):
            acked, committed = flow
            return PokeReturnValue(
                True, f"The probe's records arrive: {acked} were acknowledged, {count_of(committed, 'offset')} committed."
            )
        ti: Any = context["ti"]
        state = (read_task_states(ti, ti.dag_id, ti.run_id) or {}).get(PROBE)
        began = ti.get_first_reschedule_date(context)
        waited = (datetime.now(UTC) - began).total_seconds() if began else 0.0
        if reason := find_no_flow_reason(state, waited, self.patience):
            raise AirflowFailException(str(Refused.because(reason)))
        self.log.info("No record of the probe arrives yet; its task: %s.", state or "not begun")
        return PokeReturnValue(False)


class StopProbeOperator(BaseOperator):
    """End every probe of the cluster, and wait at most five minutes until its records were read; done at once if none runs.

    It never fails because of a probe that does not end: the audit behind it says what is missing.

    :param folder: folder of the probe's runs. (templated)
    """

    template_fields: Sequence[str] = ("folder",)
    ui_color = "#fdf0cd"

    def __init__(self, *, folder: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.folder = folder

    def on_kill(self) -> None:
        """Nothing to stop: it writes a word into files, and reads them."""

    def execute(self, context: Context) -> str:
        """Stop the probes; returns what still runs."""
        del context
        running = stop_runs(list_runs(Path(self.folder)))
        if not running:
            return "No probe of this cluster runs."
        texts = [
            describe_earlier_release(run) if is_of_earlier_release(run) else f"The probe in {run} does not end."
            for run in running
        ]
        self.log.warning("%s", " ".join(texts))
        return " ".join(texts)
