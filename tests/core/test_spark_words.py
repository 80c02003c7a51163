"""Spark's errors keep their cause and lose their secrets; its progress is one line."""

from __future__ import annotations

import pytest

from airflow_provider_kmigrate.core.audit.spark_check import find_missing_piece
from airflow_provider_kmigrate.core.audit.spark_words import StageProgress, cause_of, progress_line

WORKER = """
  An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/x/pyspark/worker.py", line 1830, in main
    process()
  File "/x/judge.py", line 131, in _file
    rows = take(all)
           ^^^^^^^^^
{}
"""
JAVA = """An error occurred while calling o61.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 3 in stage 9.0 failed 4 times
Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2844)
\t... 12 more
Caused by: org.apache.spark.SparkException: [FAILED_EXECUTE_UDF] it failed SQLSTATE: 39000
\tat x.y(Z.scala:1)
Caused by: {}
\tat x.y(Z.scala:1)
\t... 3 more
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("[TABLE_NOT_FOUND] no view", "[TABLE_NOT_FOUND] no view"),
        (WORKER.format("MemoryError"), "An exception was thrown from the Python worker: MemoryError"),
        (WORKER.format("pyarrow.lib.ArrowInvalid: bad column"), "An exception was thrown from the Python worker: pyarrow.lib.ArrowInvalid: bad column"),
        (
            JAVA.format("java.lang.OutOfMemoryError: Java heap space"),
            "An error occurred while calling o61.collectToPython.: java.lang.OutOfMemoryError: Java heap space",
        ),
        (
            "Job aborted: java.lang.ClassNotFoundException: a.B\n\tat c.d(E.java:1)\nCaused by: java.lang.ClassNotFoundException: a.B\n\tat c.d(E.java:1)",
            "Job aborted: java.lang.ClassNotFoundException: a.B",
        ),
        ("It failed:\nSQLSTATE: 38000\nJVM stacktrace:\n\tat a.b(C.java:1)", "It failed:"),
        (
            JAVA.format("org.apache.kafka.common.KafkaException: login {password=S3CRET}"),
            "An error occurred while calling o61.collectToPython.: org.apache.kafka.common.KafkaException: login {password=***}",
        ),
    ],
)  # fmt: skip
def test_the_cause_of_an_error(text: str, expected: str) -> None:
    assert cause_of(text) == expected


def test_a_damaged_file_is_named() -> None:
    """Spark 4.2's own words, shortened: the innermost cause names a checksum only."""
    damaged = JAVA.format("org.apache.parquet.io.ParquetDecodingException: CRC checksum verification failed").replace(
        "[FAILED_EXECUTE_UDF] it failed SQLSTATE: 39000",
        "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///data/store/00000001.parquet.  SQLSTATE: KD001",
    )
    assert cause_of(damaged).endswith(
        ": file:///data/store/00000001.parquet: org.apache.parquet.io.ParquetDecodingException: CRC checksum verification failed"
    )


def test_a_workers_error_below_a_stack_of_java_is_the_cause() -> None:
    assert cause_of(JAVA.format("x.Y: gone") + WORKER.format("MemoryError: 7")).endswith("MemoryError: 7")


def test_a_worker_that_was_killed_is_named_with_what_to_do() -> None:
    """Spark 4.2's own words, shortened: the innermost cause is the end of a stream."""
    killed = JAVA.format("java.io.EOFException").replace(
        "Caused by: ",
        "Caused by: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed).\n\tat a.b(C.java:1)\nCaused by: ",
        1,
    )
    found = cause_of(killed)
    assert "EOFException" not in found
    assert "a Python worker of Spark's ended" in found
    assert "spark.executor.memoryOverhead" in found
    assert cause_of(killed + WORKER.format("MemoryError: 7")).endswith("MemoryError: 7"), "its own words say more"
    piece, _ = find_missing_piece([f"no verdict: Spark could not answer: {found}"])
    assert piece is not None
    assert piece.name == "memory"


def test_a_cause_is_short_and_printable() -> None:
    found = cause_of("x" * 5_000 + "\nValueError: \x1b[2J" + "y" * 5_000)
    assert len(found) < 900
    assert found.isprintable()


def test_progress_names_rows_and_stages() -> None:
    line = progress_line("SELECT 1", 75.0, [StageProgress(4, 5, 16, 2, 0), StageProgress(5, 0, 8, 0, 1)])
    assert (
        line == "Spark for 1 min 15 s: stage 4: 5 of 16 tasks, 2 running; stage 5: 0 of 8 tasks, 0 running, 1 failed (SELECT 1)"
    )


@pytest.mark.parametrize(
    "part",
    [
        "password",
        "token.",
        "password='",
        "password = ",
        "a",
        "Aa",
        "A.",
        "at (",
        "at x(",
        "://a:b",
        "-----BEGIN A",
        "-----END A",
        " ",
    ],
)
def test_an_error_of_any_shape_is_read_in_linear_time(part: str) -> None:
    """Spark's errors quote what records and settings hold. By a cubic pattern 4,000 characters took minutes of the driver's processor."""
    text = part * (200_000 // len(part))
    assert len(cause_of(f"It failed:\n{text}!")) < 1_000
    assert len(cause_of(text)) < 1_000
