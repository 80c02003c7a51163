"""The audit that the class archive is recorded with asks everything that audits ask."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("duckdb", reason="the audit has its own environment")

from airflow_provider_kmigrate.audit import job, queries, request
from airflow_provider_kmigrate.audit.engines.engine import Engine
from tests.audit.test_frugal import Listening
from tests.kit import spark_training


def test_the_training_asks_what_audits_ask(duck: Engine, tmp_path: Path) -> None:
    listening = Listening(duck)
    wanted = request.parse({"sources": spark_training.sources(tmp_path)})
    job.run(wanted.sources, wanted.policy, listening)
    asked = {" ".join(question.split())[:60] for question in listening.asked}
    every = (
        queries.CONTROL,
        queries.WRITERS,
        queries.CHAINS,
        queries.waits(None),
        queries.LINES,
        queries.ACK_LATENCIES,
        queries.DELIVERY_LATENCIES,
        queries.NAMES,
        queries.RECORD_CHAINS,
        queries.record_rows([(0, 0)]),
        queries.log_rows([(0, 0)]),
        queries.record_times([(0, 0)]),
        queries.record_latencies(),
    )
    assert {" ".join(question.split())[:60] for question in every} <= asked
