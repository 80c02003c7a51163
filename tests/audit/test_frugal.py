"""What is not asked is answered as the engine would have answered it."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

pytest.importorskip("duckdb", reason="the audit has its own environment")

from airflow_provider_kmigrate.audit import queries
from airflow_provider_kmigrate.audit.engines.engine import Data, Engine
from airflow_provider_kmigrate.audit.engines.frugal import FrugalEngine
from airflow_provider_kmigrate.audit.queries import AboutPiles
from airflow_provider_kmigrate.audit.schema import rows_of, table_of
from airflow_provider_kmigrate.core.events import Event
from tests.core.histories import calm

ABOUT = [value for value in vars(queries).values() if isinstance(value, AboutPiles)] + [queries.waits(None)]


class Listening:
    """An engine that notes what it is asked."""

    def __init__(self, engine: Engine) -> None:
        self.name, self._engine = engine.name, engine
        self.asked: list[str] = []

    def attach(self, view: str, data: Sequence[Data]) -> None:
        self._engine.attach(view, data)

    def ask(self, question: str) -> pa.Table:
        self.asked.append(question)
        return self._engine.ask(question)


def attached(engine: Engine, events: Sequence[Event]) -> Listening:
    listening = Listening(engine)
    listening.attach("events", [table_of(row for event in events for row in rows_of(event))])
    listening.attach("wanted", [pa.table({"topic": pa.array([], pa.string()), "part": pa.array([], pa.int32())})])
    return listening


@pytest.mark.parametrize("question", ABOUT)
def test_answers_about_nothing(duck: Engine, question: AboutPiles) -> None:
    engine = attached(duck, [])
    answer = FrugalEngine(engine).ask(question)
    assert engine.asked == [queries.WRITERS]
    assert answer.schema.equals(engine.ask(question).schema)
    assert not answer.num_rows


@pytest.mark.parametrize("question", ABOUT)
def test_questions_about_what_is_there_are_asked(duck: Engine, question: AboutPiles) -> None:
    engine = attached(duck, calm().end())
    piles = set(engine.ask(queries.WRITERS)["pile"].to_pylist())
    FrugalEngine(engine).ask(question)
    assert (engine.asked[-1] == question) is bool(question.piles & piles)


def test_nothing_that_stays_is_asked_twice(duck: Engine) -> None:
    engine = attached(duck, calm().end())
    frugal = FrugalEngine(engine)
    assert frugal.ask(queries.WRITERS).equals(frugal.ask(queries.WRITERS))
    assert engine.asked == [queries.WRITERS]
