"""The events that an audit always reads whole: the few about writers and owners, and the lines that are no events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from airflow_provider_kmigrate.audit import queries
from airflow_provider_kmigrate.audit.engines.engine import Engine
from airflow_provider_kmigrate.audit.schema import RowKind
from airflow_provider_kmigrate.core.event_lines import decode
from airflow_provider_kmigrate.core.events import Event, Ownership, Start
from airflow_provider_kmigrate.core.ledger.health import Refusals
from airflow_provider_kmigrate.core.model import Reason
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from airflow_provider_kmigrate.exceptions import Refused

_NOW: Final = (1 << 63) - 1  # of an unknown time


@dataclass(slots=True)
class Control:
    """The control events of an audit.

    `events`: starts, stops, ownership and the like, and producers' latencies, each once. `starts`: the first one of each writer.
    """

    events: list[Event]
    refused: list[tuple[str, str]]  # why, and the line
    refused_ms: list[int | None]  # of each the latest time at which it can have been written; None: unknown
    starts: dict[str, Start] = field(default_factory=dict)

    @classmethod
    def read(cls, engine: Engine) -> Control:
        """Read them from the engine. Raises `Refused` (X04) if a line has a schema version that this release does not know."""
        rows = engine.ask(queries.CONTROL).to_pylist()
        _refuse_versions([row["why"] for row in rows if row["row_kind"] == RowKind.VERSION])
        written = (row["line"] for row in rows if row["row_kind"] in {RowKind.CONTROL, RowKind.LATENCY})
        lines = [row for row in rows if row["row_kind"] == RowKind.REFUSED]
        lines.sort(key=lambda row: (row["why"], row["line"], row["t_ms"] or _NOW))
        refused = [(row["why"], row["line"]) for row in lines]
        control = cls([decode(line) for line in dict.fromkeys(written)], refused, [row["t_ms"] or None for row in lines])
        for event in control.events:
            if isinstance(event, Start):
                known = control.starts.get(event.stamp.writer, event)
                control.starts[event.stamp.writer] = min(known, event, key=lambda start: start.stamp.event_seq)
        return control

    @property
    def changes(self) -> list[Ownership]:
        """The changes of ownership."""
        return [event for event in self.events if isinstance(event, Ownership)]

    def refusals(self, since: int | None) -> Refusals:
        """Why lines are no events. `since`: start of the step, ms since the epoch."""
        found: tuple[list[str], list[str]] = [], []
        for (why, _), ms in zip(self.refused, self.refused_ms, strict=True):
            found[since is not None and ms is not None and ms < since].append(why)
        return Refusals(*found)


def _refuse_versions(found: list[str]) -> None:
    if found:
        text = f"{len(found)} lines have another schema version, first: {min(found)}."
        raise Refused.because(Reason.of(AuditCause.SCHEMA_UNKNOWN, text))
