"""An engine that asks nothing twice, nothing about what is not there and nothing that footers tell: on Spark each question costs a tenth of a second and more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from airflow_provider_kmigrate.audit import queries
from airflow_provider_kmigrate.audit.engines import footers
from airflow_provider_kmigrate.audit.engines.engine import Data, Engine

_KEPT: Final = frozenset({queries.NAMES, queries.WRITERS})


class FrugalEngine:
    """Stands before another engine while one source is attached to it."""

    def __init__(self, engine: Engine) -> None:
        self.name, self._engine = engine.name, engine
        self._kept: dict[str, pa.Table] = {}
        self._log: Sequence[Data] = ()

    def attach(self, view: str, data: Sequence[Data]) -> None:
        self._engine.attach(view, data)
        if view == "log":
            self._log = data

    def ask(self, question: str) -> pa.Table:
        if isinstance(question, queries.AboutPiles) and question.piles.isdisjoint(self._piles()):
            return question.answer.empty_table()
        if question == queries.LOG_EXTENTS and (told := self._told()) is not None:
            return told
        if question not in _KEPT:
            return self._engine.ask(question)
        if question not in self._kept:
            self._kept[question] = self._engine.ask(question)
        return self._kept[question]

    def _told(self) -> pa.Table | None:
        return footers.extents(self._log[0]) if len(self._log) == 1 and isinstance(self._log[0], str) else None

    def _piles(self) -> set[str]:
        return set(self.ask(queries.WRITERS)["pile"].to_pylist())
