"""The audit as a Spark job, submitted by Airflow's Spark provider. The provider is the extra `spark`."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException

import airflow_provider_kmigrate
from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.clients.connections import SPARK
from airflow_provider_kmigrate.core.audit.verdict import AuditOutcome, may_change, outcome_of
from airflow_provider_kmigrate.core.foreign_json import read_json
from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.hooks.connections import get, settings_of
from airflow_provider_kmigrate.hooks.step_context import folder, journal_of, run_of
from airflow_provider_kmigrate.spec import load

try:
    from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
except ImportError:

    class SparkSubmitOperator(BaseOperator):  # type: ignore[no-redef]
        """Replaces the provider's operator if it is not installed: one task fails with the reason, and the file keeps its DAGs."""

        def __init__(self, *, task_id: str, retries: int = 0, **kwargs: Any) -> None:
            del retries, kwargs
            super().__init__(task_id=task_id, retries=0)
            self.py_files: str | None = None
            self._conn_id = ""
            self.env_vars: dict[str, str] | None = None

        def execute(self, context: Context) -> Any:
            del context
            raise AirflowFailException(
                "Submitting Spark jobs needs Airflow's Spark provider: pip install 'airflow-provider-kmigrate[spark]'"
            )


_PACKAGE = Path(airflow_provider_kmigrate.__file__).parent
_SHIPPED = ("core", "audit", "clients", "spec")  # what the jobs import of this package


class _AuditJob(SparkSubmitOperator):
    """Submits a program of the room `audit` with a request; see SparkAuditOperator."""

    template_fields: Sequence[str] = (
        *getattr(SparkSubmitOperator, "template_fields", ()), "request", "result", "environment", "cluster_file"
    )  # fmt: skip
    program: str

    def __init__(
        self, *, request: Mapping[str, Any], result: str, environment: str = "", cluster_file: str = "", **kwargs: Any
    ) -> None:
        program = _PACKAGE.joinpath("audit", *self.program.split(".")).with_suffix(".py")
        defaults = {"name": f"kmigrate {self.program}", "application": str(program), "durable": False}
        super().__init__(**{**defaults, **kwargs})
        self.request, self.result, self.environment, self.cluster_file = dict(request), result, environment, cluster_file

    def on_kill(self) -> None:
        """Kill the Spark driver, as Airflow's own operator does, and delete the file with Kafka's properties, which hold secrets."""
        try:
            super().on_kill()
        finally:
            self._forget_secrets()

    def _forget_secrets(self) -> None:
        for left in Path(self.result).glob("kafka-*.json"):
            left.unlink(missing_ok=True)

    def submit(self, context: Context, *arguments: str) -> None:
        """Run the program with the request and `arguments`. Kafka's properties, which hold secrets, are on disk only while it runs."""
        self._require_connection()
        place = Path(self.result)
        place.mkdir(parents=True, exist_ok=True)
        self._forget_secrets()  # of a task that was killed
        self.env_vars = {**_variables(self.environment), **(self.env_vars or {})} or None
        secret = place / f"kafka-{secrets.token_hex(4)}.json"
        try:
            (place / "request.json").write_text(json.dumps(self._completed(secret)))
            self.application_args = [str(place / "request.json"), *arguments]
            self.py_files = ",".join(filter(None, (self.py_files, str(package_archive(folder() / "spark")))))
            super().execute(context)
        finally:
            secret.unlink(missing_ok=True)

    def _require_connection(self) -> None:
        """Without it Airflow's Spark provider would submit to YARN, and report that YARN is not configured."""
        if not self._conn_id:
            return
        try:
            get(self._conn_id, SPARK, "`audit` of the cluster file" if self.cluster_file else "this task")
        except Refused as error:
            raise AirflowFailException(str(error)) from None

    def _completed(self, secret: Path) -> dict[str, Any]:
        """The request; if it reads logs or a topic, with the file that says how to reach Kafka."""
        reading = [part for part in ("logs", "stream", "offsets") if self.request.get(part) is not None]
        if not reading:
            return self.request
        try:
            properties = settings_of(load(self.cluster_file)).kafka.properties
        except Refused as error:
            raise AirflowFailException(str(error)) from None
        with os.fdopen(os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(dict(properties), file)
        return {**self.request, **{part: {**self.request[part], "properties": str(secret)} for part in reading}}


class SparkAuditOperator(_AuditJob):
    """Submit an audit to Spark and leave its result in a folder; returns the verdict's headline whatever the verdict is.

    `AuditVerdictSensor` on `<result>/verdict.json` makes a gate of it. Master and deploy mode come from the Spark connection. A request with
    a `report` gets the journal of its run, too: the page shows what was done when. All arguments of SparkSubmitOperator are taken.

    :param request: what is audited (see `audit.request`). (templated)
    :param result: folder for the result, which the driver reaches, too. (templated)
    :param environment: folder of Spark's own Python environment on the worker, with `bin/spark-submit`; empty: both are on the PATH.
        (templated)
    :param cluster_file: path of the cluster file whose Kafka connection completes a request with `logs`, `stream` or `offsets`. (templated)
    :param retry_inconclusive: repeat an INCONCLUSIVE audit: the task is retried as often and as late as its `retries` and `retry_delay` say.
    """

    program = "job"

    def __init__(self, *, retry_inconclusive: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.retry_inconclusive = retry_inconclusive

    def execute(self, context: Context) -> Any:
        """Submit and judge. `AirflowException`, hence a retry, only for an INCONCLUSIVE that more evidence may change."""
        self._require_fingerprint()
        place = Path(self.result)
        for earlier in ("verdict.json", "fingerprint.json"):  # must not be taken for this one's
            (place / earlier).unlink(missing_ok=True)
        self._take_journal(context, place)
        self.submit(context, str(place))
        document = self._verdict(place / "verdict.json")
        outcome, headline = outcome_of(document), str(document["headline"])
        page = f" Its page: {place / 'report.html'}" if self.request.get("report") else ""
        self.log.info("The audit says %s.%s", outcome, page)
        ti: Any = context["ti"]
        repeats = self.retry_inconclusive and outcome is AuditOutcome.INCONCLUSIVE and may_change(document)
        if repeats and ti.try_number <= ti.max_tries:
            raise AirflowException(f"{headline} The audit runs again, with more evidence.")
        return headline

    def _require_fingerprint(self) -> None:
        """An audit without it would fail at each retry: for an hour a rollback's run would continue owning the cluster for nothing."""
        logs = self.request.get("logs") or {}
        places = [place for place in (logs.get("before"), *logs.get("refreshed", ())) if place]
        if places and not any(Path(place).exists() for place in places):
            why = "no task took a fingerprint of the logs before this step, so nothing shows that no record was lost since. The log of"
            what = "`fingerprint_logs` says why. It is too late for one now: compare the applications' own counts of records."
            raise AirflowFailException(f"There is no file {places[0]}: {why} {what}")

    def _take_journal(self, context: Context, place: Path) -> None:
        """Copy the run's journal beside the result, where the driver reads it for the page; a read-only run has none."""
        wanted = dict(self.request.get("report") or {})
        journal = journal_of(wanted["cluster"], run_of(context)) if wanted else None
        if journal is not None and journal.exists():
            place.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(journal, place / "journal.jsonl")
            self.request["report"] = {**wanted, "journals": [str(place / "journal.jsonl")]}

    def _verdict(self, verdict: Path) -> dict[str, Any]:
        try:
            document: dict[str, Any] = read_json(verdict.read_text())
        except (FileNotFoundError, ValueError):
            raise AirflowFailException(f"The Spark job ended without a verdict at {verdict}; read its log.") from None
        return document


class SparkFingerprintOperator(_AuditJob):
    """Take the fingerprint of the logs before a step, by Spark; it is left at the request's `logs.before`.

    A fingerprint that is there already is kept: after the step it is too late for another. All arguments of SparkSubmitOperator are taken.

    :param request: which logs (see `audit.request`). (templated)
    :param result: folder for the request, which the driver reaches, too. (templated)
    :param environment: as SparkAuditOperator's. (templated)
    :param cluster_file: path of the cluster file whose Kafka connection completes the request. (templated)
    """

    program = "fingerprint"

    def execute(self, context: Context) -> Any:
        """Read the logs by Spark, unless their fingerprint exists."""
        place = Path(self.request["logs"]["before"])
        if place.exists():
            return f"The logs were read before; the fingerprint: {place}."
        self.submit(context)
        if not place.exists():
            raise AirflowFailException(f"The Spark job ended without a fingerprint at {place}; read its log.")
        return f"The logs were read; the fingerprint: {place}."


def _variables(environment: str) -> dict[str, str]:
    """Make spark-submit and its Python those of Spark's own environment: Airflow's must not have a full pyspark."""
    if not environment:
        return {}
    home = Path(environment).absolute() / "bin"
    return {"PATH": f"{home}{os.pathsep}{os.environ.get('PATH', '')}", "PYSPARK_PYTHON": str(home / "python")}


def package_archive(where: Path) -> Path:
    """A zip file of this package for `--py-files`; made again each time, replaced as a whole: all workers may share the folder."""
    atomic.make_folder(where)
    target = where / f"airflow_provider_kmigrate-{airflow_provider_kmigrate.__version__}.zip"
    content = BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted([*_PACKAGE.glob("*.py"), *(path for name in _SHIPPED for path in (_PACKAGE / name).rglob("*"))]):
            if file.suffix in {".py", ".html"}:
                archive.write(file, file.relative_to(_PACKAGE.parent))
    atomic.replace(target, content.getvalue(), mode=atomic.ALL_USERS)
    return target
