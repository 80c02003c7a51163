"""What every use of a Spark session needs: its errors and its progress in words, and this package on its executors."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import airflow_provider_kmigrate
from airflow_provider_kmigrate.core.audit.spark_words import StageProgress, cause_of, progress_line
from airflow_provider_kmigrate.exceptions import Failed

_EVERY_S: Final = 15.0


@contextmanager
def spark_errors(what: str) -> Iterator[None]:
    """Turn Spark's exceptions into `Failed`, with the error's first words and its innermost cause, secrets masked."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise Failed(f"{what}: {cause_of(str(error))}") from error


@contextmanager
def report_progress(session: SparkSession, what: str) -> Iterator[None]:
    """Print every few seconds how far Spark's stages are, until the block ends. A short answer prints nothing."""
    done, began = threading.Event(), time.monotonic()

    def report_stages() -> None:
        while not done.wait(_EVERY_S):
            if stages := _list_running_stages(session.sparkContext.statusTracker()):
                print(progress_line(what, time.monotonic() - began, stages))  # noqa: T201  # a program's own words

    reporter = threading.Thread(target=report_stages, name="kmigrate-progress", daemon=True)
    reporter.start()
    try:
        yield
    finally:
        done.set()
        reporter.join(_EVERY_S)


def _list_running_stages(tracker: Any) -> list[StageProgress]:
    """The stages that run; none if Spark does not say, since a line of progress must not end an audit."""
    try:
        stage_infos = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    except (Py4JError, OSError):
        return []
    return [
        StageProgress(
            stage_info.stageId,
            stage_info.numCompletedTasks,
            stage_info.numTasks,
            stage_info.numActiveTasks,
            stage_info.numFailedTasks,
        )
        for stage_info in stage_infos
        if stage_info is not None
    ]


_SHIPPED: set[str] = set()  # applications whose executors have the package


def ship_package(session: SparkSession) -> None:
    """Give this package to the executors, which have none of their own on the users' cluster; once an application.

    Executors refuse a second archive of the same name, and fetch the first whenever they start: it stays until the program ends.
    """
    application = str(session.sparkContext.applicationId)
    if application in _SHIPPED:
        return
    root = Path(airflow_provider_kmigrate.__file__).parent
    folder = Path(tempfile.mkdtemp(prefix="kmigrate-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    archive = folder / "airflow_provider_kmigrate.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as target:
        for file in [*root.glob("*.py"), *(root / "core").rglob("*.py"), *(root / "audit").rglob("*.py")]:
            target.write(file, file.relative_to(root.parent))
    session.sparkContext.addPyFile(str(archive))
    _SHIPPED.add(application)
