"""Events as an engine's rows hold them, in memory again."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_kmigrate.audit.partition_rows import _COLUMNS, _build_event
from airflow_provider_kmigrate.audit.queries import Engine
from airflow_provider_kmigrate.core.events.lines import decode
from airflow_provider_kmigrate.core.events.model import Commit, Event, TopicPartition

_WHOLE = "(row_kind IN ('delivery', 'ack', 'commit') OR (row_kind = 'sign' AND t_last_ms IS NOT NULL))"


def load_events(engine: Engine) -> list[Event]:
    """All events of the view `events`."""
    rows = engine.ask(f"SELECT * FROM events WHERE {_WHOLE}")  # noqa: S608
    events: dict[tuple[str, int], Event] = {}
    places = map(TopicPartition, rows["topic"].to_pylist(), rows["part"].to_pylist())
    for where, row in zip(places, zip(*(rows[name].to_pylist() for name in _COLUMNS), strict=True), strict=True):
        event = _build_event(where, row)
        earlier = events.setdefault((event.stamp.writer, event.stamp.event_seq), event)
        if earlier is not event and isinstance(earlier, Commit) and isinstance(event, Commit):
            events[event.stamp.writer, event.stamp.event_seq] = replace(earlier, offsets=(*earlier.offsets, *event.offsets))
    others = engine.ask(f"SELECT line FROM events WHERE nth = 0 AND row_kind NOT IN ('refused', 'version') AND NOT {_WHOLE}")  # noqa: S608
    return [*events.values(), *map(decode, others["line"].to_pylist())]
