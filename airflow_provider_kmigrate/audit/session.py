"""A Spark session whose failures say what is missing and what to do about it, and the audit's engine on it."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from airflow_provider_kmigrate.audit.queries import Data
from airflow_provider_kmigrate.audit.sources import EVENTS
from airflow_provider_kmigrate.audit.spark_calls import report_progress, ship_package, spark_errors
from airflow_provider_kmigrate.clients import commands
from airflow_provider_kmigrate.core.audit.spark_words import cause_of
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from airflow_provider_kmigrate.exceptions import Failed, Refused, Unreachable

CONNECT_TIMEOUT_S: Final = 5.0
SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.pushdown.inFilterThreshold": "1000",  # above the default of 10 row groups are not left out
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.codegen.aggregate.map.vectorized.enable": "true",  # groups of numbers in columns
    # A store has a few hundred parts at most, named one by one: above the default of 32 each view of them begins with a job of a task a part.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000",
}
_SHUFFLES: Final = "spark.sql.shuffle.partitions"  # Spark's own 200 are a task each, for every question
_ADAPTIVE: Final = (
    "spark.sql.adaptive.enabled"  # plans again after each shuffle: a seventh of an audit's processor time, where all are small
)
_LOCAL: Final[Mapping[str, str]] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",  # on a cluster it is the site's: without it no administrator sees why an audit is slow
}


def start_session(
    master: str | None = None, *, jars: Sequence[str] = (), settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A session on `master` (`local[2]`, `local-cluster[2,1,1024]`, `spark://host:port`, `yarn`, `k8s://…`).

    None leaves master, deploy mode and jars to spark-submit. `jars` are paths, `settings` override `SETTINGS`. Raises `Refused`
    with the remedy if Java or a jar is missing, `Unreachable` if the master does not answer within 5 s, `Failed` if Spark
    refuses. The caller stops the session.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers start whatever python3 is first on the PATH
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    _check_requirements(master, jars)
    builder = SparkSession.builder.appName("kmigrate audit")
    for key, value in {**_build_settings(master, jars), **(settings or {})}.items():
        builder = builder.config(key, value)
    try:
        session: SparkSession = builder.getOrCreate()
        _fit_to_machine(session)
    except (PySparkException, Py4JError, OSError) as error:
        raise Failed(f"Spark did not start on {master or 'the submitted master'}: {cause_of(str(error))}") from error
    return session


def _build_settings(master: str | None, jars: Sequence[str]) -> dict[str, str]:
    settings = dict(SETTINGS)
    if master is not None:
        settings["spark.master"] = master
    if jars:
        settings["spark.jars"] = ",".join(jars)
    if master is not None and master.startswith("local"):
        settings |= _LOCAL
        settings["spark.sql.warehouse.dir"] = str(Path(tempfile.gettempdir()) / "kmigrate-spark-warehouse")
    return settings


def _fit_to_machine(session: SparkSession) -> None:
    """On this very machine an audit, which shuffles thousands of rows, does so in a piece a core; explicit settings stay."""
    context = session.sparkContext
    if not context.master.startswith("local"):
        return
    for name, value in ((_SHUFFLES, str(context.defaultParallelism)), (_ADAPTIVE, "false")):
        if not context.getConf().contains(name):
            session.conf.set(name, value)


def _check_requirements(master: str | None, jars: Sequence[str]) -> None:
    missing = [jar for jar in jars if "://" not in jar and not Path(jar).is_file()]
    if missing:
        text = f"Spark jars are missing: {', '.join(missing)}"
        raise Refused.because(Reason.of(AuditCause.JARS_MISSING, text))
    if commands.find_java() is None:
        text = "Java is missing: neither JAVA_HOME nor the PATH has it."
        raise Refused.because(Reason.of(AuditCause.JAVA_MISSING, text))
    if master is not None and master.startswith("spark://"):
        for address in master.removeprefix("spark://").split(","):
            _check_master_answers(address)


def _check_master_answers(address: str) -> None:
    """Spark itself would try for a minute and then say that all masters are unresponsive."""
    parts = urlsplit(f"//{address}")
    try:
        socket.create_connection((parts.hostname or "", parts.port or 7077), CONNECT_TIMEOUT_S).close()
    except OSError as error:
        text = f"no Spark master answers at {address} ({error}); check the connection's host and port, and that the master runs"
        raise Unreachable(text) from error


class SparkEngine:
    """Asks a session that belongs to the caller (`start`)."""

    def __init__(self, session: SparkSession) -> None:
        self.session = session

    def attach(self, view: str, data: Sequence[Data]) -> None:
        """Attach the data as a temporary view of the session."""
        with spark_errors(f"Spark could not read {view}"):
            frames = [self._load_frame(part) for part in data]
            reduce(lambda union, frame: union.unionByName(frame), frames).createOrReplaceTempView(view)

    def _load_frame(self, data: Data) -> DataFrame:
        if isinstance(data, pa.Table):
            return self.session.createDataFrame(data)
        folders_or_files = (data,) if isinstance(data, str) else data
        reader = self.session.read.schema(from_arrow_schema(EVENTS)).option("parquet.page.verify-checksum.enabled", "true")
        return reader.parquet(*folders_or_files).select(*EVENTS.names)

    def ask(self, question: str) -> pa.Table:
        """Run the question as Spark SQL; the answer comes whole to the driver."""
        with spark_errors(_describe_failure(question)), report_progress(self.session, _shorten(question)):
            return self.session.sql(question).toArrow()

    def count_records_from(self, bucket: int) -> str:
        """As `Engine` says; places of a list count from 0. As a function of SQL it would be shorter, and Spark 4.2 cannot plan two of its uses."""
        later = f"filter(latency, (item, place) -> place % 2 = 1 AND latency[place - 1] >= {bucket})"
        return f"aggregate({later}, CAST(0 AS BIGINT), (total, item) -> total + item)"

    def apply_by_key(
        self, question: str, keys: Sequence[str], function: Callable[[pa.Table], pa.Table], answer: pa.Schema
    ) -> pa.Table:
        """Apply the function to the rows of each key in Spark's workers."""
        with spark_errors(_describe_failure(question)), report_progress(self.session, _shorten(question)):
            ship_package(self.session)
            grouped = self.session.sql(question).groupBy(*keys)
            # A lambda, because Spark looks at the function's type hints and fails at those of a partial.
            return grouped.applyInArrow(lambda rows: function(rows), from_arrow_schema(answer)).toArrow()  # noqa: PLW0108


def _describe_failure(question: str) -> str:
    return f"Spark could not answer: {_shorten(question)}"


def _shorten(question: str) -> str:
    return " ".join(question.split())[:120]
