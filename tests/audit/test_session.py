"""A Spark session that cannot be says why, and what to do."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("py4j", reason="the audit has its own environment")
import pyarrow.parquet as pq

from airflow_provider_kmigrate.audit import session as sessions
from airflow_provider_kmigrate.audit import spark_calls
from airflow_provider_kmigrate.audit.sources import table_of
from airflow_provider_kmigrate.clients import commands
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from airflow_provider_kmigrate.exceptions import Refused, Unreachable
from tests.kit import spark_classes


def test_missing_jars_are_named(tmp_path: Path) -> None:
    with pytest.raises(Refused) as caught:
        sessions.start_session("local[1]", jars=[str(tmp_path / "connector.jar"), "hdfs://there/other.jar"])
    assert caught.value.reasons[0].cause == AuditCause.JARS_MISSING
    assert "connector.jar" in str(caught.value)
    assert "other.jar" not in str(caught.value)


def test_missing_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(Refused) as caught:
        sessions.start_session("local[1]")
    assert caught.value.reasons[0].cause == AuditCause.JAVA_MISSING


def test_a_master_that_is_not_there_is_said_at_once() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(Unreachable, match=str(port)):
        sessions.start_session(f"spark://127.0.0.1:{port}")


def test_a_view_of_many_parts_begins_with_no_job(spark: Any, tmp_path: Path) -> None:
    """Spark lists more than 32 paths by a job with a task for each of them, whenever a view is made."""
    parts = tuple(str(tmp_path / f"{number}.parquet") for number in range(40))
    for part in parts:
        pq.write_table(table_of([]), part)
    context = spark.session.sparkContext
    context.setJobGroup("many-parts", "lists files")
    try:
        spark.attach("many_parts", [parts])
        assert not context.statusTracker().getJobIdsForGroup("many-parts")
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)
        spark.session.catalog.dropTempView("many_parts")


def test_executors_have_the_package(spark: Any) -> None:
    """They have none of their own on the users' cluster, and use this Python."""
    session = spark.session
    spark_calls.ship_package(session)

    def decode(batches: Any) -> Any:
        from airflow_provider_kmigrate.audit import sources  # noqa: PLC0415  # in the executor

        for batch in batches:
            rows = [row for line in batch["line"].to_pylist() for row in sources.rows_of_line(line)]
            yield from sources.table_of(rows).select(["row_kind"]).to_batches()

    lines = session.createDataFrame(
        [('{"v":2,"kind":"stop","writer":"w","event_seq":3,"t_ms":9,"clean":true}',), ("no",)], "line string"
    )
    answer = lines.mapInArrow(decode, "row_kind string").toArrow()
    assert sorted(answer["row_kind"].to_pylist()) == ["control", "refused"]
    assert os.environ["PYSPARK_PYTHON"]


class Submitted:
    """A session that spark-submit made."""

    def __init__(self, master: str, **given: str) -> None:
        self.sparkContext, self.conf = self, self
        self.master, self.defaultParallelism, self.given = master, 3, given

    def getConf(self) -> Any:  # noqa: N802  # as Spark calls it
        return SimpleNamespace(contains=lambda key: key.replace(".", "_") in self.given)

    def set(self, key: str, value: str) -> None:
        self.given[key.replace(".", "_")] = value


@pytest.mark.parametrize(
    ("submitted", "pieces"),
    [
        (Submitted("local[3]"), "3"),
        (Submitted("local[3]", spark_sql_shuffle_partitions="7"), "7"),
        (Submitted("yarn"), None),
    ],
)
def test_what_was_submitted_to_this_machine_shuffles_in_few_pieces(submitted: Any, pieces: str | None) -> None:
    sessions._fit_to_machine(submitted)
    assert submitted.given.get("spark_sql_shuffle_partitions") == pieces
    assert submitted.given.get("spark_sql_adaptive_enabled") == ("false" if pieces else None)


def test_adaptive_plans_that_were_asked_for_stay() -> None:
    submitted = Submitted("local[3]", spark_sql_adaptive_enabled="true")
    sessions._fit_to_machine(submitted)
    assert submitted.given["spark_sql_adaptive_enabled"] == "true"


def test_a_session_is_given_the_class_archive_if_there_is_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(spark_classes, "archive", lambda: tmp_path / "spark.jsa")
    assert spark_classes.settings() == {}
    (tmp_path / "spark.jsa").touch()
    assert spark_classes.settings() == {spark_classes.OPTIONS: f"-XX:SharedArchiveFile={tmp_path / 'spark.jsa'}"}


def test_java_accepts_the_archive_that_this_session_runs_with(spark: Any) -> None:
    """Made by `make setup-spark`; a driver with another class path or Java would go on without it, unseen."""
    made = spark_classes.prepare()
    assert made is not None
    system = spark.session.sparkContext._jvm.System
    flags = ["-Xshare:on", "-XX:+VerifySharedSpaces", f"-XX:SharedArchiveFile={made}"]
    done = subprocess.run(
        [str(commands.find_java()), *flags, "-cp", system.getProperty("java.class.path"), "-version"],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout
