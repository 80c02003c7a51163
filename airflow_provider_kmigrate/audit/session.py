"""A Spark session whose failures say what is missing and what to do about it, and the audit's engine on it."""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

import airflow_provider_kmigrate
from airflow_provider_kmigrate.audit.queries import Data
from airflow_provider_kmigrate.audit.sources import EVENTS
from airflow_provider_kmigrate.clients import commands
from airflow_provider_kmigrate.core.model import Reason
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from airflow_provider_kmigrate.exceptions import Failed, Refused, Unreachable

CONNECT_TIMEOUT_S: Final = 5.0
SETTINGS: Final[Mapping[str, str]] = {
    "spark.driver.memory": "3g",  # the audit's answers are small; its runs come through here
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.pushdown.inFilterThreshold": "1000",  # above the default of 10 row groups are not left out
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.codegen.aggregate.map.vectorized.enable": "true",  # groups of numbers in columns
}
_SHUFFLES: Final = "spark.sql.shuffle.partitions"  # Spark's own 200 are a task each, for every question
_LOCAL: Final[Mapping[str, str]] = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def start(master: str | None = None, *, jars: Sequence[str] = (), settings: Mapping[str, str] | None = None) -> SparkSession:
    """A session on `master` (`local[2]`, `local-cluster[2,1,1024]`, `spark://host:port`, `yarn`, `k8s://…`).

    None leaves master, deploy mode and jars to spark-submit. `jars` are paths, `settings` override `SETTINGS`. Raises `Refused`
    with the remedy if Java or a jar is missing, `Unreachable` if the master does not answer within 5 s, `Failed` if Spark
    refuses. The caller stops the session.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers start whatever python3 is first on the PATH
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    _check(master, jars)
    builder = SparkSession.builder.appName("kmigrate audit")
    for key, value in {**_settings(master, jars), **(settings or {})}.items():
        builder = builder.config(key, value)
    try:
        session: SparkSession = builder.getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
        _fit(session)
    except (PySparkException, Py4JError, OSError) as error:
        raise Failed(
            f"Spark did not start on {master or 'the submitted master'}: {str(error).strip().splitlines()[0]}"
        ) from error
    return session


def _settings(master: str | None, jars: Sequence[str]) -> dict[str, str]:
    settings = dict(SETTINGS)
    if master is not None:
        settings["spark.master"] = master
    if jars:
        settings["spark.jars"] = ",".join(jars)
    if master is not None and master.startswith("local"):
        settings |= _LOCAL
        settings["spark.sql.warehouse.dir"] = str(Path(tempfile.gettempdir()) / "kmigrate-spark-warehouse")
    return settings


def _fit(session: SparkSession) -> None:
    """On this very machine an audit, which shuffles thousands of rows, does so in a piece a core; explicit settings stay."""
    context = session.sparkContext
    if context.master.startswith("local") and not context.getConf().contains(_SHUFFLES):
        session.conf.set(_SHUFFLES, str(context.defaultParallelism))


def _check(master: str | None, jars: Sequence[str]) -> None:
    missing = [jar for jar in jars if "://" not in jar and not Path(jar).is_file()]
    if missing:
        text = f"Spark jars are missing: {', '.join(missing)}"
        raise Refused.because(Reason.of(AuditCause.JARS_MISSING, text))
    if commands.java() is None:
        text = "Java is missing: neither JAVA_HOME nor the PATH has it."
        raise Refused.because(Reason.of(AuditCause.JAVA_MISSING, text))
    if master is not None and master.startswith("spark://"):
        for address in master.removeprefix("spark://").split(","):
            _check_answers(address)


def _check_answers(address: str) -> None:
    """Spark itself would try for a minute and then say that all masters are unresponsive."""
    parts = urlsplit(f"//{address}")
    try:
        socket.create_connection((parts.hostname or "", parts.port or 7077), CONNECT_TIMEOUT_S).close()
    except OSError as error:
        text = f"no Spark master answers at {address} ({error}); check the connection's host and port, and that the master runs"
        raise Unreachable(text) from error


@contextmanager
def spark_errors(what: str) -> Iterator[None]:
    """Turn Spark's exceptions into `Failed`, with the first line of their words: the Java stack after it may repeat options."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        text = str(error).strip().partition("\n")[0][:500]
        raise Failed(f"{what}: {text}") from error


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


class SparkEngine:
    """Asks a session that belongs to the caller (`start`)."""

    def __init__(self, session: SparkSession) -> None:
        self.session = session

    def attach(self, view: str, data: Sequence[Data]) -> None:
        """Attach the data as a temporary view of the session."""
        with spark_errors(f"Spark could not read {view}"):
            frames = [self._frame(part) for part in data]
            reduce(lambda one, other: one.unionByName(other), frames).createOrReplaceTempView(view)

    def _frame(self, data: Data) -> DataFrame:
        if not isinstance(data, str):
            return self.session.createDataFrame(data)
        return self.session.read.schema(from_arrow_schema(EVENTS)).parquet(data)

    def ask(self, question: str) -> pa.Table:
        """Run the question as Spark SQL; the answer comes whole to the driver."""
        with spark_errors(_no_answer(question)):
            return self.session.sql(question).toArrow()

    def each(self, question: str, keys: Sequence[str], function: Callable[[pa.Table], pa.Table], answer: pa.Schema) -> pa.Table:
        """Apply the function to the rows of each key in Spark's workers."""
        with spark_errors(_no_answer(question)):
            ship_package(self.session)
            grouped = self.session.sql(question).groupBy(*keys)
            # A lambda, because Spark looks at the function's type hints and fails at those of a partial.
            return grouped.applyInArrow(lambda rows: function(rows), from_arrow_schema(answer)).toArrow()  # noqa: PLW0108


def _no_answer(question: str) -> str:
    return f"Spark could not answer: {' '.join(question.split())[:120]}"
