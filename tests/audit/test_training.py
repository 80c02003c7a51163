"""The audit that the class archive is recorded with asks everything that audits ask."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("duckdb", reason="the audit has its own environment")

import pyarrow as pa

from airflow_provider_kmigrate.audit import job, queries, request
from airflow_provider_kmigrate.audit.queries import Engine
from tests.kit import spark_training


class Listening:
    """An engine that notes what it is asked."""

    def __init__(self, engine: Engine) -> None:
        self.attach, self._engine = engine.attach, engine
        self.asked: list[str] = []

    def ask(self, question: str) -> pa.Table:
        self.asked.append(question)
        return self._engine.ask(question)

    def apply_by_key(self, question: str, *how: Any) -> pa.Table:
        self.asked.append(question)
        return self._engine.apply_by_key(question, *how)


def test_the_training_asks_what_audits_ask(duck: Engine, tmp_path: Path) -> None:
    listening = Listening(duck)
    wanted = request.parse({"sources": spark_training.sources(tmp_path)})
    job.audit_sources(wanted.sources, wanted.policy, listening)
    asked = {" ".join(question.split())[:60] for question in listening.asked}
    every = (
        queries.CONTROL,
        queries.WRITERS,
        queries.ACKED,
        queries.deliveries_query(100),
        queries.NOT_OWNED,
        queries.EVENTS_OF,
    )
    assert {" ".join(question.split())[:60] for question in every} <= asked
