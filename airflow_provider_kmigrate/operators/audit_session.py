"""The audit session of a run as a task of its DAG, beside the steps: Airflow starts it, shows its log, and kills it with the run."""

from __future__ import annotations

import atexit
import contextvars
import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from airflow.sdk import Context

from airflow_provider_kmigrate.airflow_releases import AirflowException
from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.clients.audit_session import SessionFolder, new_key
from airflow_provider_kmigrate.core.audit.session_messages import (
    LAST_REPORTS_S,
    SessionKey,
    SessionLease,
)
from airflow_provider_kmigrate.core.migration.beside import BESIDE, is_run_over, waits_for_worker
from airflow_provider_kmigrate.operators.spark_audit import AuditJob

_BEAT_S: Final = 5.0
_LEASE_S: Final = 60.0  # without a renewal Spark ends, also where this process was killed
_STATES_S: Final = 15.0
_WITHOUT_WORKER_S: Final = 120.0  # tasks wait for a slot for so long, and none runs
_END_S: Final = LAST_REPORTS_S + 60.0  # for Spark to end by itself
DAG_TEST: Final = "dag_test"  # the user that Airflow's `dag.test` names


class AuditSessionOperator(AuditJob):
    """Keep one Spark application for all audits of a run, until no other task of the run is left to do.

    The gates ask it through files in a folder that workers and the driver share. It only saves time: while it does not serve, each gate
    submits a job of its own. It is a task rather than a process that outlives one, so that a run that fails, is cleared or is marked as
    failed leaves nothing behind, and so that it has its own pod with KubernetesExecutor. It takes a slot of a worker all the time, and gives
    it up where tasks of the run wait for one and none runs. In `dag.test`, which runs one task at a time, it returns at once, and Spark
    ends with that process.

    :param session: `folder`, `cluster_id` and `run`. (templated)
    :param result: that folder. (templated)
    :param environment: as SparkAuditOperator's. (templated)
    :param cluster_file: path of the cluster file, which an error names. (templated)
    :param results: folder below which the gates' results are. (templated)
    :param idle_limit: seconds without a request, after which it ends.
    :param request: `sources` that are read all the time, as a request's. (templated)
    """

    program = "run_session"
    template_fields = (*AuditJob.template_fields, "results")

    def __init__(self, *, results: str, idle_limit: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.results, self.idle_limit = results, idle_limit
        self._ended = threading.Event()
        self._error: Exception | None = None

    def execute(self, context: Context) -> Any:
        """Keep the session until the run is over."""
        self._require_connection()
        folder = SessionFolder(Path(self.session["folder"]))
        key = new_key(self.session["cluster_id"], self.session["run"])
        self._write_start(folder, key)
        self.prepare_submit(str(folder.folder))
        self._hook = self._get_hook()
        copied = contextvars.copy_context()  # Airflow lets `execute` of an operator run in its task's context only
        spark = threading.Thread(target=copied.run, args=(self._run_spark, context), name="kmigrate-session", daemon=True)
        spark.start()
        dag_run = context["dag_run"]
        if getattr(dag_run, "triggering_user_name", "") == DAG_TEST:
            atexit.register(self._end_with_process, spark)
            threading.Thread(target=self._keep_lease, args=(folder, key, spark), name="kmigrate-lease", daemon=True).start()
            return "The audit session runs as long as this process."
        try:
            why = self._keep_until_over(folder, key, spark, context)
        finally:
            self._end(folder, key, spark)
        return f"The audit session has ended: {why}."

    def on_kill(self) -> None:
        """Kill the Spark driver."""
        self._ended.set()
        super().on_kill()

    def _end_with_process(self, spark: threading.Thread) -> None:
        """Have the session end by itself, with its last report made, or kill it."""
        self._ended.set()  # the thread with the lease says so
        spark.join(_END_S)
        if spark.is_alive():
            self.on_kill()

    def _write_start(self, folder: SessionFolder, key: SessionKey) -> None:
        """The lease first: whatever was left by an earlier start counts no more."""
        folder.write("lease.json", SessionLease(key, 0))
        start = {
            "key": {"cluster_id": key.cluster_id, "run": key.run, "token": key.token},
            "results": self.results,
            "idle_s": self.idle_limit,
            "lease_s": _LEASE_S,
            "request": self.request,
        }
        atomic.replace(folder.folder / "session.json", json.dumps(start).encode(), mode=atomic.ALL_USERS)

    def _run_spark(self, context: Context) -> None:
        try:
            super(AuditJob, self).execute(context)
        except Exception as error:  # noqa: BLE001  # raised by the thread that waits
            self._error = error

    def _keep_lease(self, folder: SessionFolder, key: SessionKey, spark: threading.Thread) -> None:
        """Renew the lease as long as this process and Spark run."""
        beat = 0
        while spark.is_alive() and not self._ended.wait(_BEAT_S):
            beat += 1
            folder.write("lease.json", SessionLease(key, beat))
        folder.write("lease.json", SessionLease(key, beat, ended=True))  # no gate waits for what has ended

    def _keep_until_over(self, folder: SessionFolder, key: SessionKey, spark: threading.Thread, context: Context) -> str:
        """Renew the lease until it is no longer needed; returns why. Raises `AirflowException` if Spark has failed, for a retry."""
        beat, states_at, waiting_since = 0, 0.0, None
        while spark.is_alive():
            beat += 1
            folder.write("lease.json", SessionLease(key, beat))
            now = time.monotonic()
            if now - states_at >= _STATES_S:
                states_at, states = now, self._read_states(context)
                if is_run_over(states):
                    return "no other task of the run is left to do"
                waiting_since = (waiting_since or now) if waits_for_worker(states) else None
                if waiting_since is not None and now - waiting_since > _WITHOUT_WORKER_S:
                    return "tasks of the run wait for the slot that it takes"
            spark.join(_BEAT_S)
        if self._error is not None:
            raise AirflowException(f"{self._error} Audits submit jobs of their own meanwhile.") from self._error
        return "it was asked for nothing for too long"

    def _read_states(self, context: Context) -> Mapping[str, str | None]:
        """The states of the run's other tasks, without those beside the steps and those that wait for this one."""
        ti: Any = context["ti"]
        states = ti.get_task_states(dag_id=ti.dag_id, run_ids=[ti.run_id]).get(ti.run_id, {})
        mine: set[str] = {self.task_id, *self.downstream_task_ids, *BESIDE}
        return {task: state for task, state in states.items() if task not in mine}

    def _end(self, folder: SessionFolder, key: SessionKey, spark: threading.Thread) -> None:
        """Have the session end by itself, or kill it; no gate waits for it from now on."""
        folder.write("lease.json", SessionLease(key, 0, ended=True))
        spark.join(_END_S)
        if spark.is_alive():
            self.log.warning("The audit session did not end within %g s; its driver is killed.", _END_S)
            self.on_kill()
