"""The audit as a Spark job, submitted by Airflow's Spark provider. The provider is the extra `spark`."""

from __future__ import annotations

import contextlib
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

import airflow_provider_kmigrate
from airflow_provider_kmigrate.airflow_releases import AirflowException, AirflowFailException
from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.clients.audit_session import SessionFolder, SessionLimits, ask_session, read_answer_file
from airflow_provider_kmigrate.clients.connections import SPARK
from airflow_provider_kmigrate.core.audit.request_figures import summarize_audit
from airflow_provider_kmigrate.core.audit.session_messages import ANSWERED, NO_RESULT, SessionAnswer
from airflow_provider_kmigrate.core.audit.verdict import AuditFinding, AuditOutcome, as_dict, combine, may_change, outcome_of
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from airflow_provider_kmigrate.core.shared.foreign_json import read_json
from airflow_provider_kmigrate.exceptions import Failed, Refused, TimedOut
from airflow_provider_kmigrate.hooks.connections import ClusterHooks, get_connection
from airflow_provider_kmigrate.links.pages import AuditReportLink
from airflow_provider_kmigrate.spec import load
from airflow_provider_kmigrate.utils.step_context import FIGURES, dag_run_name, journal_path, state_folder

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
            """Fail: there is nothing that could submit a job."""
            del context
            raise AirflowFailException(
                "Submitting Spark jobs needs Airflow's Spark provider: pip install 'airflow-provider-kmigrate[spark]'"
            )


_PACKAGE = Path(airflow_provider_kmigrate.__file__).parent
#: spark-submit alone logs at INFO: 36,000 lines an audit, most of them Kafka's settings again and again, each a line of the task's log.
_QUIET = {"spark.log.level": "WARN"}
_SHIPPED = ("core", "audit", "clients", "spec")  # what the jobs import of this package


class AuditJob(SparkSubmitOperator):
    """Has a program of the room `audit` do a request: in the run's audit session, or by a submit of its own. See SparkAuditOperator."""

    template_fields: Sequence[str] = (
        *getattr(SparkSubmitOperator, "template_fields", ()), "request", "result", "environment", "cluster_file", "session"
    )  # fmt: skip
    program: str
    session_limits = SessionLimits()

    def __init__(
        self,
        *,
        request: Mapping[str, Any],
        result: str,
        environment: str = "",
        cluster_file: str = "",
        session: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        program = _PACKAGE.joinpath("audit", *self.program.split(".")).with_suffix(".py")
        defaults = {"name": f"kmigrate {self.program}", "application": str(program), "durable": False}
        conf = {**_QUIET, **(kwargs.pop("conf", None) or {})}
        super().__init__(**{**defaults, **kwargs}, conf=conf)
        self.request, self.result, self.environment, self.cluster_file = dict(request), result, environment, cluster_file
        self.session = dict(session or {})

    def on_kill(self) -> None:
        """Kill the Spark driver, as Airflow's own operator does, and delete the file with Kafka's properties, which hold secrets."""
        try:
            super().on_kill()
        finally:
            self._forget_secrets()

    def _forget_secrets(self) -> None:
        for secret_file in Path(self.result).glob("kafka-*.json"):
            secret_file.unlink(missing_ok=True)

    def submit(self, context: Context, *arguments: str) -> None:
        """Have the request done. Kafka's properties, which hold secrets, are on disk only meanwhile.

        `arguments` of the program. Raises `TimedOut` if the session serves and gives no answer.
        """
        self._require_connection()
        result_folder = Path(self.result)
        result_folder.mkdir(parents=True, exist_ok=True)
        self._forget_secrets()  # of a task that was killed
        secret_file = result_folder / f"kafka-{secrets.token_hex(4)}.json"
        try:
            document = self._complete_request(secret_file)
            if self._ask_session(document, result_folder):
                return
            (result_folder / "request.json").write_text(json.dumps(document))
            self.prepare_submit(str(result_folder / "request.json"), *arguments)
            super().execute(context)
        finally:
            secret_file.unlink(missing_ok=True)

    def prepare_submit(self, *arguments: str) -> None:
        """Set what spark-submit gets beside the operator's own arguments."""
        self.env_vars = {**_spark_environment(self.environment), **(self.env_vars or {})} or None
        self.application_args = list(arguments)
        self.py_files = ",".join(filter(None, (self.py_files, str(build_package_archive(state_folder() / "spark")))))

    def _ask_session(self, document: Mapping[str, Any], result_folder: Path) -> bool:
        """Whether the run's session has done the request; what it left is in place then."""
        if not self.session:
            return False
        folder, of_run = SessionFolder(Path(self.session["folder"])), (self.session["cluster_id"], self.session["run"])
        request = {"program": self.program, "document": document, "folder": str(result_folder)}
        with ask_session(folder, of_run, request, self.session_limits, self.log.info) as answer:
            if answer is None or answer.code not in {ANSWERED, NO_RESULT}:
                self.log.info("A Spark job of its own does the work.%s", f" {answer.text}" if answer else "")
                return False
            self.log.info("The run's audit session says: %s", answer.text)
            if answer.code == NO_RESULT:
                raise AirflowException(f"no verdict: {answer.text}")
            try:
                contents = {name: read_answer_file(result_folder, answer, name) for name in answer.files}
            except Failed as error:
                self.log.info("A Spark job of its own does the work: %s", error)
                return False
            self.keep_answer(answer, contents)
        return True

    def keep_answer(self, answer: SessionAnswer, contents: Mapping[str, bytes]) -> None:
        """Put the files of an answer where a submit would have left them, the verdict last."""
        for name in sorted(answer.files, key="verdict.json".__eq__):
            atomic.replace(Path(self.result) / name, contents[name], mode=atomic.ALL_USERS)

    def _require_connection(self) -> None:
        """Without it Airflow's Spark provider would submit to YARN, and report that YARN is not configured."""
        if not self._conn_id:
            return
        try:
            get_connection(self._conn_id, SPARK, "`audit` of the cluster file" if self.cluster_file else "this task")
        except Refused as error:
            raise AirflowFailException(str(error)) from None

    def _complete_request(self, secret: Path) -> dict[str, Any]:
        """The request; if it reads logs or a topic, with the file that says how to reach Kafka."""
        kafka_parts = [part for part in ("logs", "stream", "offsets") if self.request.get(part) is not None]
        if not kafka_parts:
            return self.request
        try:
            properties = ClusterHooks(load(self.cluster_file)).kafka.settings.properties
        except Refused as error:
            raise AirflowFailException(str(error)) from None
        with os.fdopen(os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(dict(properties), file)
        return {**self.request, **{part: {**self.request[part], "properties": str(secret)} for part in kafka_parts}}


class SparkAuditOperator(AuditJob):
    """Submit an audit to Spark and leave its result in a folder; returns the verdict's headline whatever the verdict is.

    `AuditVerdictSensor` on `<result>/verdict.json` makes a gate of it. Master and deploy mode come from the Spark connection. A request with
    a `report` gets the journal of its run, too: the page shows what was done when. All arguments of SparkSubmitOperator are taken.

    :param request: what is audited (see `audit.request`). (templated)
    :param result: folder for the result, which the driver reaches, too. (templated)
    :param environment: folder of Spark's own Python environment on the worker, with `bin/spark-submit`; empty: both are on the PATH.
        (templated)
    :param cluster_file: path of the cluster file whose Kafka connection completes a request with `logs`, `stream` or `offsets`. (templated)
    :param session: `folder`, `cluster_id` and `run` of the run's AuditSessionOperator; while it does not serve, and without it, a job is
        submitted. (templated)
    :param retry_inconclusive: repeat an INCONCLUSIVE audit: the task is retried as often and as late as its `retries` and `retry_delay` say.
    """

    program = "job"
    operator_extra_links = (AuditReportLink(),)
    page = ""  # that the last try has left

    def __init__(self, *, retry_inconclusive: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.retry_inconclusive = retry_inconclusive

    def execute(self, context: Context) -> Any:
        """Submit and judge. `AirflowException`, hence a retry, only for an INCONCLUSIVE that more evidence may change."""
        self._require_fingerprint()
        result_folder = Path(self.result)
        for earlier in ("verdict.json", "fingerprint.json", "report.html", "report.json"):  # must not be taken for this one's
            (result_folder / earlier).unlink(missing_ok=True)
        self._copy_journal(context, result_folder)
        try:
            self.submit(context, str(result_folder))
        except TimedOut as error:
            self._write_no_answer(result_folder, str(error))
        except AirflowFailException:
            raise
        except AirflowException as error:  # it would fail again: what passes by itself, a missing leader say, Spark waits for
            raise AirflowFailException(f"{error} The log above says why, in the line that begins with 'no verdict'.") from error
        document = self._read_verdict(result_folder / "verdict.json")
        outcome, headline = outcome_of(document), str(document["headline"])
        self.page = str(result_folder / "report.html") if self.request.get("report") else ""
        self.log.info("The audit says %s.%s", outcome, f" Its page, made after it: {self.page}" if self.page else "")
        ti: Any = context["ti"]
        ti.xcom_push(FIGURES, summarize_audit(document, self._read_ledgers(result_folder), self.page))
        repeats = self.retry_inconclusive and outcome is AuditOutcome.INCONCLUSIVE and may_change(document)
        if repeats and ti.try_number <= ti.max_tries:
            raise AirflowException(f"{headline} The audit runs again, with more evidence.")
        return headline

    def _read_ledgers(self, result_folder: Path) -> list[dict[str, Any]]:
        """The ledgers of the report beside the verdict; none if the request wants no report, or it cannot be read."""
        if not self.request.get("report"):
            return []
        try:
            ledgers = read_json((result_folder / "report.json").read_text())["ledgers"]
            return [ledger for ledger in ledgers if isinstance(ledger, dict)]
        except (OSError, ValueError, KeyError, TypeError):
            return []

    @staticmethod
    def _write_no_answer(result_folder: Path, why: str) -> None:
        """Unknown is not healthy, and a second job beside one that does not end would wait for the same processors."""
        text = f"Nothing is known: {why}."
        verdict = combine([AuditFinding.of(AuditOutcome.INCONCLUSIVE, AuditCause.SESSION_SILENT, text)], [])
        atomic.replace(result_folder / "verdict.json", json.dumps(as_dict(verdict)).encode(), mode=atomic.ALL_USERS)

    def _require_fingerprint(self) -> None:
        """An audit without it would fail at each retry: for an hour a rollback's run would continue owning the cluster for nothing."""
        logs = self.request.get("logs") or {}
        fingerprint_files = [
            fingerprint_file for fingerprint_file in (logs.get("before"), *logs.get("refreshed", ())) if fingerprint_file
        ]
        if fingerprint_files and not any(Path(fingerprint_file).exists() for fingerprint_file in fingerprint_files):
            why = "no task took a fingerprint of the logs before this step, so nothing shows that no record was lost since. The log of"
            what = "`fingerprint_logs` says why. It is too late for one now: compare the applications' own counts of records."
            raise AirflowFailException(f"There is no file {fingerprint_files[0]}: {why} {what}")

    def _copy_journal(self, context: Context, result_folder: Path) -> None:
        """Copy the run's journal beside the result, where the driver reads it for the page; a read-only run has none."""
        report_request = dict(self.request.get("report") or {})
        journal = journal_path(report_request["cluster"], dag_run_name(context)) if report_request else None
        if journal is not None and journal.exists():
            result_folder.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(journal, result_folder / "journal.jsonl")
            self.request["report"] = {**report_request, "journals": [str(result_folder / "journal.jsonl")]}

    def _read_verdict(self, verdict: Path) -> dict[str, Any]:
        with contextlib.suppress(FileNotFoundError, ValueError):
            document = read_json(verdict.read_text())
            if isinstance(document, dict):
                return document
        raise AirflowFailException(f"The Spark job ended without a verdict at {verdict}; read its log.")


class SparkFingerprintOperator(AuditJob):
    """Take the fingerprint of the logs before a step, by Spark; it is left at the request's `logs.before`.

    A fingerprint that is there already is kept: after the step it is too late for another. All arguments of SparkSubmitOperator are taken.

    :param request: which logs (see `audit.request`). (templated)
    :param result: folder for the request, which the driver reaches, too. (templated)
    :param environment: as SparkAuditOperator's. (templated)
    :param cluster_file: path of the cluster file whose Kafka connection completes the request. (templated)
    :param session: as SparkAuditOperator's. (templated)
    """

    program = "fingerprint"

    def keep_answer(self, answer: SessionAnswer, contents: Mapping[str, bytes]) -> None:
        """Put the fingerprint where a submit would have left it."""
        del answer
        fingerprint_file = Path(self.request["logs"]["before"])
        atomic.make_folder(fingerprint_file.parent)
        atomic.replace(fingerprint_file, contents["fingerprint.json"], mode=atomic.ALL_USERS)

    def execute(self, context: Context) -> Any:
        """Read the logs by Spark, unless their fingerprint exists."""
        fingerprint_file = Path(self.request["logs"]["before"])
        if fingerprint_file.exists():
            return f"The logs were read before; the fingerprint: {fingerprint_file}."
        try:
            self.submit(context)
        except TimedOut as error:
            raise AirflowException(f"{error}; the next try submits a job of its own") from error
        if not fingerprint_file.exists():
            raise AirflowFailException(f"The Spark job ended without a fingerprint at {fingerprint_file}; read its log.")
        return f"The logs were read; the fingerprint: {fingerprint_file}."


def _spark_environment(environment: str) -> dict[str, str]:
    """Make spark-submit and its Python those of Spark's own environment: Airflow's must not have a full pyspark."""
    if not environment:
        return {}
    home = Path(environment).absolute() / "bin"
    return {"PATH": f"{home}{os.pathsep}{os.environ.get('PATH', '')}", "PYSPARK_PYTHON": str(home / "python")}


def build_package_archive(target_folder: Path) -> Path:
    """A zip file of this package for `--py-files`; made again each time, replaced as a whole: all workers may share the folder."""
    atomic.make_folder(target_folder)
    target = target_folder / f"airflow_provider_kmigrate-{airflow_provider_kmigrate.__version__}.zip"
    content = BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted([*_PACKAGE.glob("*.py"), *(path for name in _SHIPPED for path in (_PACKAGE / name).rglob("*"))]):
            if file.suffix in {".py", ".html"}:
                archive.write(file, file.relative_to(_PACKAGE.parent))
    atomic.replace(target, content.getvalue(), mode=atomic.ALL_USERS)
    return target
