"""The small audit of a check, and what the output of a failed job says is missing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_kmigrate.core.audit.spark_check import LOST, build_events, find_missing_piece, find_wrong_answer
from airflow_provider_kmigrate.core.ledger import balance
from tests.core.histories import counts


def expected_facts() -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(json.dumps({"sources": [{"level": "L3", **balance(build_events()).as_dict()}]}))
    return facts


def test_of_the_small_audit_ten_records_are_lost_and_nothing_else_is_wrong() -> None:
    facts = balance(build_events())
    assert counts(facts) == {"lost": LOST}
    assert facts.reasons == ()


def test_an_answer_is_right_if_it_is_the_ledgers() -> None:
    assert find_wrong_answer(expected_facts()) == ""


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({}, "lost"),
        ({"sources": []}, "lost"),
        ({"sources": [{**expected_facts()["sources"][0], "acked": 59}]}, "ledger: acked"),
        ({"sources": expected_facts()["sources"] * 2}, "ledger"),
        ({"sources": [{**expected_facts()["sources"][0], "invented": 1}]}, "other sources"),
    ],
)
def test_another_answer_is_wrong(answer: dict[str, Any], said: str) -> None:
    assert said in find_wrong_answer(answer)


@pytest.mark.parametrize(
    ("printed", "piece"),
    [
        (["no verdict: no Spark master answers at spark:7077 (timed out)"], "master"),
        (["WARN StandaloneAppClient: Failed to connect to master spark:7077"], "master"),
        (["Exception in thread main java.lang.OutOfMemoryError: Java heap space"], "memory"),
        (["no verdict: Spark could not answer: SELECT: MemoryError"], "memory"),
        (["WARN TaskSchedulerImpl: Initial job has not accepted any resources; check your cluster UI"], "memory"),
        (["ModuleNotFoundError: No module named 'pyarrow'"], "python"),
        (['Caused by: java.io.IOException: Cannot run program "/opt/venv/bin/python": error=2, No such file or directory'], "python"),
        (["no verdict: [X02] Spark jars are missing: /opt/kafka.jar"], "jar"),
        (["no observation of the logs: AnalysisException: Failed to find data source: kafka."], "jar"),
        (["/opt/spark/bin/spark-class: line 71: java: command not found"], "java"),
        (["org.apache.kafka.common.errors.SaslAuthenticationException: Authentication failed"], "kafka"),
        (['UnsupportedFileSystemException: No FileSystem for scheme "s3a"'], "store"),
        (["FileNotFoundException: File file:/audit/result/prod/check/store/00000001.parquet does not exist"], "store"),
    ],
)  # fmt: skip
def test_a_missing_piece_is_named(printed: list[str], piece: str) -> None:
    found, cause = find_missing_piece(["INFO SparkContext: Running Spark version 4.2.0", *printed, ""])
    assert found is not None
    assert found.name == piece
    assert cause


def test_the_jobs_own_last_words_come_before_what_spark_survived() -> None:
    piece, cause = find_missing_piece(
        ["WARN: No such file or directory: /x", "no verdict: Java heap space", "INFO: No module named y"]
    )
    assert piece is not None
    assert (piece.name, cause) == ("memory", "Java heap space")


def test_an_unknown_failure_has_its_cause_without_secrets() -> None:
    assert find_missing_piece([]) == (None, "it printed nothing")
    assert find_missing_piece(["WARN x", "sasl.password=S3CRET is odd"]) == (None, "sasl.password=*** is odd")
