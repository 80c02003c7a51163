"""Tries the user's Spark before a migration needs it: with the settings, the connection and the folders of the audits' own jobs.

What it finds missing is named at once: a migration would otherwise stop at its first gate, with brokers between ZooKeeper and KRaft.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from airflow.sdk import Context

from airflow_provider_kmigrate.airflow_releases import AirflowException, AirflowFailException
from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.core.audit.spark_check import LOST, build_events, find_missing_piece, find_wrong_answer
from airflow_provider_kmigrate.core.audit.verdict import Level
from airflow_provider_kmigrate.core.events.lines import encode
from airflow_provider_kmigrate.core.shared.foreign_json import read_json
from airflow_provider_kmigrate.exceptions import KMigrateError
from airflow_provider_kmigrate.operators.spark_audit import AuditJob

_LAST_LINES: Final = 5_000  # of a job's output


class _SparkCheck(AuditJob):
    """A job of which the cause of a failure is sought in its output."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._last_lines: deque[str] = deque(maxlen=_LAST_LINES)

    def _get_hook(self) -> Any:
        """The provider's hook, whose output is kept too."""
        hook: Any = super()._get_hook()
        process_log = hook._process_spark_submit_log  # noqa: SLF001  # the provider has no other place for it

        def keep_lines(lines: Iterator[str]) -> None:
            process_log(self._keep(lines))

        hook._process_spark_submit_log = keep_lines  # noqa: SLF001
        return hook

    def _keep(self, lines: Iterable[str]) -> Iterator[str]:
        for line in lines:
            self._last_lines.append(line.rstrip())
            yield line

    def submit(self, context: Context, *arguments: str) -> None:
        """Submit; `AirflowFailException` names what is missing."""
        self._last_lines.clear()
        try:
            super().submit(context, *arguments)
        except AirflowFailException:
            raise
        except (AirflowException, OSError) as error:
            piece, cause = find_missing_piece(self._last_lines or [str(error)])
            what = f"Missing: {piece.name}. {piece.advice}" if piece else "The job's output above says more."
            raise AirflowFailException(f"Spark cannot audit this cluster: {cause}. {what}") from error

    @contextmanager
    def folder_of_its_own(self) -> Iterator[Path]:
        """A new folder below `result`, which is gone afterwards: two checks at once do not meet."""
        shared = self.result
        self.result = f"{shared}/{secrets.token_hex(4)}"
        try:
            yield Path(self.result)
        finally:
            shutil.rmtree(self.result, ignore_errors=True)
            self.result = shared


class SparkCheckOperator(_SparkCheck):
    """Have Spark do a small audit whose result is known; returns how long it took. It reads nothing of the cluster.

    Its events go the way of applications' files: through the shared folder into Parquet, Spark's questions and a Python worker. All
    arguments of SparkAuditOperator are taken.
    """

    program = "job"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(request={"sources": []}, **kwargs)

    def execute(self, context: Context) -> Any:
        """Check the files, submit, and compare the answer with the ledger's."""
        archives = [archive for archive in (getattr(self, "_archives", None) or "").split(",") if archive]
        jars = [jar for jar in (getattr(self, "jars", None) or "").split(",") if jar]
        if missing := find_missing_files(self.environment, jars, archives, self.result):
            raise AirflowFailException(f"Spark cannot audit this cluster: {' '.join(missing)}")
        began = time.monotonic()
        with self.folder_of_its_own() as folder:
            write_events(folder / "events")
            source = {"level": Level.PRODUCER.label, "lines": [str(folder / "events")], "store": str(folder / "store")}
            self.request = {"sources": [source]}
            self.submit(context, str(folder))
            facts = read_facts(folder / "facts.json")
        if fault := find_wrong_answer(facts):
            raise AirflowFailException(
                f"Spark cannot audit this cluster: {fault}. Use a Spark of the release that the guide names."
            )
        return f"Spark audited in {time.monotonic() - began:.0f} s and found what it had to find: {LOST} lost records."


class SparkLogsCheckOperator(_SparkCheck):
    """Have Spark read the newest records of the cluster's logs, as fingerprints do; returns how many. Arguments as SparkAuditOperator's."""

    program = "fingerprint"

    def execute(self, context: Context) -> Any:
        """Submit, and drop what was read."""
        logs = dict(self.request["logs"])
        with self.folder_of_its_own() as folder:
            before = folder / "fingerprint.json"
            self.request = {**self.request, "logs": {**logs, "before": str(before)}}
            self.submit(context)
            if not before.exists():
                raise AirflowFailException(f"Spark cannot audit this cluster: its job left no {before}. Missing: store.")
        return "Spark read the newest records of the cluster's logs."


def find_missing_files(environment: str, jars: Sequence[str], archives: Sequence[str], result: str) -> list[str]:
    """What is missing on this machine, each as a sentence: it costs no start of Spark."""
    programs = [Path(environment) / "bin" / name for name in ("spark-submit", "python")] if environment else []
    missing = [f"There is no program {program}. Missing: python." for program in programs if not os.access(program, os.X_OK)]
    if not environment and shutil.which("spark-submit") is None:
        missing.append("There is no spark-submit on the PATH, and `audit.environment` is not set. Missing: python.")
    for name, paths in (("jar", jars), ("archive", [archive.partition("#")[0] for archive in archives])):
        missing += [
            f"There is no file {path}. Missing: {name}." for path in paths if "://" not in path and not Path(path).is_file()
        ]
    try:
        atomic.make_folder(Path(result))
        probe = Path(result) / f".check-{secrets.token_hex(4)}"
        probe.write_bytes(b"")
        probe.unlink()
    except (OSError, KMigrateError) as error:
        missing.append(f"The folder {result} cannot be written: {error}. Missing: store.")
    return missing


def write_events(folder: Path) -> None:
    """The events of the small audit as files of lines, one for each writer."""
    lines: dict[str, list[str]] = {}
    for event in build_events():
        lines.setdefault(event.stamp.writer, []).append(f"{encode(event)}\n")
    atomic.make_folder(folder)
    for writer, written in lines.items():
        (folder / f"{writer}.jsonl").write_text("".join(written))


def read_facts(path: Path) -> Mapping[str, Any]:
    """The facts that a job has left. Raises `AirflowFailException` if there are none: driver and worker do not share the folder, say."""
    try:
        facts = read_json(path.read_text())
    except (OSError, ValueError) as error:
        why = f"its job left no {path} ({type(error).__name__})"
        raise AirflowFailException(
            f"Spark cannot audit this cluster: {why}. Missing: store. Driver and workers must share `audit.result`."
        ) from error
    return facts if isinstance(facts, dict) else {}
