"""When the counter-examples from single records happened: a chain tells only when it began and ended."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from airflow_provider_kmigrate.audit import queries
from airflow_provider_kmigrate.audit.engines.engine import Engine
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.ledger import Case, Facts

_TIMED: Final = ("redelivered", "reordered", "overrun")
_SPANS: Final = pa.schema(
    [("id", pa.int64()), ("tid", pa.int32()), ("part", pa.int32()), ("mid", pa.int32())]
    + [(name, pa.int64()) for name in ("o_lo", "o_hi", "t_lo", "t_hi")]
)


def timed(facts: Facts, places: Collection[TopicPartition], engine: Engine) -> Facts:
    """The same facts; the kept cases in `places`, which are known from single records, say when just their records came."""
    cases = [case for name in _TIMED for case in getattr(facts, name).cases if _is_open(case, places)]
    if not cases:
        return facts
    found = dict(zip(cases, _asked(cases, engine), strict=True))
    findings = {name: getattr(facts, name) for name in _TIMED}
    changed = {
        name: replace(finding, cases=tuple(found.get(case, case) for case in finding.cases)) for name, finding in findings.items()
    }
    return replace(facts, **changed)


def _is_open(case: Case, places: Collection[TopicPartition]) -> bool:
    return bool(case.members) and case.from_ms is not None and TopicPartition(case.topic, case.partition) in places


def _asked(cases: list[Case], engine: Engine) -> list[Case]:
    names = engine.ask(queries.NAMES).to_pylist()
    topics = {row["name"]: row["id"] for row in names if row["kind"] == "topic"}
    members = {(row["consumer_group"], row["name"]): row["id"] for row in names if row["kind"] == "member"}
    rows = [_span(number, case, topics, members) for number, case in enumerate(cases)]
    engine.attach("spans", [pa.Table.from_pylist(rows, schema=_SPANS)])
    answer = engine.ask(queries.record_times({(row["tid"], row["part"]) for row in rows})).to_pylist()
    times = {row["id"]: (row["t_lo"], row["t_hi"]) for row in answer}
    return [
        replace(case, from_ms=times[number][0], to_ms=times[number][1]) if number in times else case
        for number, case in enumerate(cases)
    ]


def _span(number: int, case: Case, topics: Mapping[str, int], members: Mapping[tuple[str, str], int]) -> dict[str, Any]:
    """The case belongs to the member that delivered last."""
    mid = members[case.group or "", case.members[-1]]
    place = {"id": number, "tid": topics[case.topic], "part": case.partition, "mid": mid}
    return place | {"o_lo": case.first, "o_hi": case.last, "t_lo": case.from_ms, "t_hi": case.to_ms}
