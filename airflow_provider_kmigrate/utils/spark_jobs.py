"""The Spark jobs of a cluster file, through Airflow's connections: their hold folders, and the logs that they read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from airflow_provider_kmigrate.applications.spark_hold import Files, LocalFiles
from airflow_provider_kmigrate.clients.admin import REQUEST_TIMEOUT, read_marks
from airflow_provider_kmigrate.clients.commands import command_environment, fill_placeholders, run_command
from airflow_provider_kmigrate.clients.group_reads import describe_groups
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, SparkJobSpec
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.shared.foreign_json import read_json
from airflow_provider_kmigrate.exceptions import Failed, Refused, Unavailable
from airflow_provider_kmigrate.hooks.connections import BrokerHostHook, ClusterHooks
from airflow_provider_kmigrate.steps.spark_jobs import CommandedJobControl, JobControl, Logs
from airflow_provider_kmigrate.utils.object_store import call_object_storage

_SAME = {"s3a": "s3", "s3n": "s3", "abfss": "abfs"}  # Hadoop's names of schemes that Airflow's object storage names otherwise


def make_job_control(
    spec: ClusterSpec,
    job: str,
    say: Callable[[str], None],
    over: Callable[[str], bool] = lambda _: False,
    killed: Callable[[], bool] = lambda: False,
) -> JobControl:
    """Control of the job of that name; `over` and `killed` as for JobControl.

    Raises `Refused` if the cluster file has none, or its folder cannot be reached.
    """
    try:
        job_spec = spec.spark_job(job)
    except KeyError:
        names = ", ".join(spark_job.name for spark_job in spec.spark_jobs) or "none"
        text = f"{spec.path} has no Spark job {job!r}; it has {names}."
        raise Refused.because(Reason("F09", text)) from None
    files = select_file_system(job_spec)
    if not job_spec.hold_command:
        return JobControl(job_spec, files, say, over=over, killed=killed)
    committed = partial(_read_committed, spec, job_spec.group) if job_spec.group else None
    call, logs = partial(_run_job_command, spec, job_spec), make_log_reader(spec)
    return CommandedJobControl(job_spec, files, say, over=over, killed=killed, call=call, committed=committed, logs=logs)


def _read_committed(spec: ClusterSpec, group: str) -> Mapping[TopicPartition, int]:
    """The group's committed offsets; none if no group of the cluster ever committed. Raises `Unavailable` if its coordinator gives none."""
    for answer in describe_groups(ClusterHooks(spec).kafka.settings.properties, REQUEST_TIMEOUT, [group]):
        if answer.committed is None:
            raise Unavailable(f"the offsets of group {group} could not be read")
        return answer.committed
    return {}


def _run_job_command(spec: ClusterSpec, job: SparkJobSpec, argv: Sequence[str]) -> None:
    """Run a job's command within `hold_timeout`. Raises `Failed`, and `TimedOut` if what it did is unknown."""
    extra = BrokerHostHook(job.command_conn_id, named_in=spec.path).get_conn().environment if job.command_conn_id else None
    code, stderr = run_command(fill_placeholders(argv, {"job": job.name}), command_environment(extra), job.hold_timeout)
    if code:
        raise Failed(f"job {job.name}: its command {argv[0]} ended with exit code {code}: {stderr}")


def select_file_system(job: SparkJobSpec) -> Files:
    """The file system of a job's checkpoint as this worker reaches it."""
    scheme = job.checkpoint.partition("://")[0] if "://" in job.checkpoint else ""
    return LocalFiles() if scheme in {"", "file"} else ObjectFiles(job.conn_id or None)


def make_log_reader(spec: ClusterSpec) -> Logs:
    """The logs of topics as their leaders report them."""
    return lambda topics: read_marks(ClusterHooks(spec).kafka.settings.properties, topics)


class ObjectFiles:
    """Airflow's object storage; any library's errors, and `LIMIT` seconds without an answer, are `Unavailable`."""

    def __init__(self, conn_id: str | None) -> None:
        self._conn_id = conn_id

    def read(self, path: str) -> str | None:
        """The text of a file; None if there is none."""
        text: str | None = self._call_storage(path, lambda storage_path: storage_path.read_text(encoding="utf-8"), None)
        return text

    def write(self, path: str, text: str) -> None:
        """Replace a file."""
        self._call_storage(path, lambda storage_path: storage_path.write_text(text, encoding="utf-8"), None)

    def delete(self, path: str) -> None:
        """Delete a file; nothing happens if there is none."""
        self._call_storage(path, lambda storage_path: storage_path.unlink(), None)

    def names(self, folder: str) -> list[str]:
        """The names in a folder; none if there is no such folder."""
        storage_paths = self._call_storage(
            folder, lambda storage_path: list(storage_path.iterdir()) if storage_path.exists() else [], []
        )
        return [str(storage_path.name) for storage_path in storage_paths]

    def _call_storage(self, path: str, act: Callable[[Any], Any], missing: Any) -> Any:
        scheme, _, rest = path.partition("://")
        try:
            return call_object_storage(f"{_SAME.get(scheme, scheme)}://{rest}", self._conn_id, act)
        except FileNotFoundError:
            return missing
        except ImportError as error:
            text = f"{path}: this worker has no file system for {scheme} ({error})."
            raise Refused.because(Reason("J05", text)) from error


def read_verdict(path: str, conn_id: str | None = None) -> Mapping[str, Any] | None:
    """The verdict in a file of an audit; None while there is none. A report contains its verdict.

    An incomplete file, on a store that shows such, is none either. Raises as `call_object_storage`.
    """
    try:
        document = read_json(call_object_storage(path, conn_id, lambda storage_path: storage_path.read_bytes()))
    except (FileNotFoundError, ValueError):
        return None
    verdict = document.get("verdict", document) if isinstance(document, dict) else {}
    return verdict if isinstance(verdict, dict) else {}
