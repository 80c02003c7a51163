"""Decodes many event lines at once, a column at a time, into what `core.events.lines.decode` makes of each of them.

Nearly all lines are deliveries, acknowledgements, commits and heartbeats in the form that `encode` writes. A batch of those is parsed by one
call and checked by columns. One line that may be anything else makes the whole batch `None`: the caller goes through it in smaller pieces, at
last line by line with the strict decoder, which alone says what an event is.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Final, NamedTuple, get_args, get_origin, get_type_hints

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_kmigrate.audit.sources import EVENTS, RowKind, rows_of_event, table_of
from airflow_provider_kmigrate.core.events.lines import KINDS, allowed_range, decode
from airflow_provider_kmigrate.core.events.model import SCHEMA_VERSION, UNKNOWN_OFFSET, Event, Ownership, Stamp
from airflow_provider_kmigrate.core.shared.foreign_json import EXACT
from airflow_provider_kmigrate.exceptions import Refused


class LineBatch(NamedTuple):
    """Events as rows of `EVENTS`, and the changes of ownership among them, which are no rows yet: their logs decide their place."""

    table: pa.Table
    owned: list[Ownership]


class _NotCanonicalError(Exception):
    """A line may be no event, or is not in the form that `encode` writes."""


_Object = dict[str, Any]
_Columns = Mapping[str, Sequence[Any]]


def decode_batch(lines: Sequence[bytes]) -> LineBatch | None:
    """The events of these lines, which end without a line end; None if the strict decoder must look at them."""
    try:
        return _decode_canonical(lines)
    except (_NotCanonicalError, Refused, ValueError, TypeError, KeyError, OverflowError, RecursionError, pa.ArrowException):
        return None


def _decode_canonical(lines: Sequence[bytes]) -> LineBatch:
    # Lines that begin and end so, and are as many objects as lines, are an object each: one that spans two lines, beside a line of
    # two, would hold an object, and no event does.
    _require(all(line.startswith(b'{"') and line.endswith(b"}") for line in lines))
    text = b",".join(lines)
    _require(text.isascii() and b"\\" not in text)
    values: list[_Object] = json.loads(b"[" + text + b"]")
    of_kind: dict[str, list[_Object]] = defaultdict(list)
    others: list[tuple[Event, str]] = []
    for value, line in zip(values, lines, strict=True):
        if value["kind"] in _TABLES and value.get("ok", True) is True and value.get("offsets", True):
            of_kind[value["kind"]].append(value)
        else:
            others.append((decode(line.decode()), line.decode()))
    tables = [_TABLES[kind](_checked_columns(kind, found)) for kind, found in of_kind.items()]
    rows = (row for event, line in others if not isinstance(event, Ownership) for row in rows_of_event(event, line))
    return LineBatch(pa.concat_tables([*tables, table_of(rows)]), [event for event, _ in others if isinstance(event, Ownership)])


def _require(condition: object) -> None:
    if not condition:
        raise _NotCanonicalError


def _checked_columns(kind: str, values: Sequence[_Object]) -> _Columns:
    """The fields of events of one kind, checked as the model declares them."""
    hints = _HINTS[kind]
    _require(set(map(len, values)) == {len(hints) + 2})  # the version and the kind
    _require({(type(value["v"]), value["v"]) for value in values} == {(int, SCHEMA_VERSION)})
    columns = dict(zip(hints, zip(*map(itemgetter(*hints), values), strict=True), strict=True))
    for name, hint in hints.items():
        _check_values(name, hint, columns[name])
    _require(min(columns["event_seq"]) >= 0)
    return columns


def _check_values(name: str, hint: Any, values: Sequence[Any]) -> None:
    """Require that all values are of the declared type, and numbers within their range."""
    if get_origin(hint) is UnionType:
        (hint,) = (inner for inner in get_args(hint) if inner is not NoneType)
        values = [value for value in values if value is not None]
    if not values:
        return
    is_row = isinstance(hint, type) and issubclass(hint, tuple)
    _require(set(map(type, values)) == ({list} if is_row or get_origin(hint) is tuple else {hint}))
    if hint is int:
        allowed = allowed_range(name) or range(-EXACT, EXACT + 1)
        _require(min(values) in allowed and max(values) in allowed)
    elif get_origin(hint) is tuple and get_args(hint)[-1] is Ellipsis:
        _check_values(name, get_args(hint)[0], list(chain.from_iterable(values)))
    elif is_row or get_origin(hint) is tuple:
        inner_hints = list(get_type_hints(hint).items()) if is_row else [("", inner) for inner in get_args(hint)]
        for (inner_name, inner), column in zip(inner_hints, zip(*values, strict=True), strict=True):
            _check_values(inner_name, inner, column)


def _build_table(row_kind: RowKind, size: int, columns: Mapping[str, Any]) -> pa.Table:
    """Rows of one kind; columns that are not given are null."""
    given = {"row_kind": [row_kind.value] * size, "nth": [0] * size, **columns}
    arrays = [pa.array(given[field.name], field.type) if field.name in given else pa.nulls(size, field.type) for field in EVENTS]
    return pa.Table.from_arrays(arrays, schema=EVENTS)


def _stamp_columns(columns: _Columns) -> dict[str, Sequence[Any]]:
    return {"writer": columns["writer"], "number": columns["event_seq"], "t_ms": columns["t_ms"]}


_DELIVERY_COLUMNS: Final = {
    "consumer_group": "group", "member": "member", "topic": "topic", "part": "partition", "lo": "first", "hi": "last", "n": "count",
    "seq": "seq", "t_first_ms": "t_first_ms", "t_last_ms": "t_last_ms", "t_sent_ms": "t_sent_ms", "gap_ms": "gap_ms",
    "producer": "producer", "producer_seq": "producer_seq", "generation": "generation",
}  # fmt: skip
_ACK_COLUMNS: Final = {
    "topic": "topic", "part": "partition", "lo": "first", "hi": "last", "n": "count", "seq": "seq_first", "t_sent_ms": "t_sent_ms",
    "t_last_ms": "t_acked_ms", "producer": "producer", "producer_seq": "seq_first", "wait_us": "latency_max_us",
}  # fmt: skip


def _build_deliveries(columns: _Columns) -> pa.Table:
    given = {column: columns[name] for column, name in _DELIVERY_COLUMNS.items()}
    latency = [list(chain.from_iterable(pairs)) or None for pairs in columns["latency"]]
    table = _build_table(RowKind.DELIVERY, len(latency), {**_stamp_columns(columns), **given, "latency": latency})
    lo, hi, n = table["lo"], table["hi"], table["n"]
    _require_all(pc.less_equal(0, lo), pc.less_equal(lo, hi), pc.less_equal(1, n), pc.less_equal(0, table["seq"]))
    has_producer = pc.is_valid(table["producer"])
    _require_all(pc.equal(has_producer, pc.is_valid(table["producer_seq"])))
    _require_all(pc.or_(pc.invert(has_producer), pc.equal(n, pc.add(pc.subtract(hi, lo), 1))))
    return table


def _build_acks(columns: _Columns) -> pa.Table:
    given = {column: columns[name] for column, name in _ACK_COLUMNS.items()}
    table = _build_table(RowKind.ACK, len(columns["writer"]), {**_stamp_columns(columns), **given})
    lo, hi, steps = table["lo"], table["hi"], pc.subtract(table["n"], 1)
    seq_last = pa.array(columns["seq_last"], pa.int64())
    _require_all(pc.less_equal(0, steps), pc.equal(pc.subtract(seq_last, table["seq"]), steps))
    known = pc.and_(pc.less_equal(0, lo), pc.equal(pc.subtract(hi, lo), steps))
    _require_all(pc.or_(known, pc.and_(pc.equal(lo, UNKNOWN_OFFSET), pc.equal(hi, UNKNOWN_OFFSET))))
    return table


def _build_commits(columns: _Columns) -> pa.Table:
    """A row for each partition; there is at least one, and all were accepted."""
    counts = [len(offsets) for offsets in columns["offsets"]]
    repeated = {
        name: list(chain.from_iterable([value] * count for value, count in zip(columns[field], counts, strict=True)))
        for name, field in {
            "writer": "writer",
            "number": "event_seq",
            "t_ms": "t_ms",
            "consumer_group": "group",
            "member": "member",
        }.items()
    }
    topics, partitions, offsets = zip(*chain.from_iterable(columns["offsets"]), strict=True)
    given = {"topic": topics, "part": partitions, "lo": offsets, "hi": [offset - 1 for offset in offsets]}
    nth = list(chain.from_iterable(map(range, counts)))
    return _build_table(RowKind.COMMIT, len(nth), {**repeated, **given, "nth": nth})


def _build_heartbeats(columns: _Columns) -> pa.Table:
    return _build_table(RowKind.SIGN, len(columns["writer"]), {**_stamp_columns(columns), "t_last_ms": columns["wall_ms"]})


def _require_all(*conditions: Any) -> None:
    for condition in conditions:
        _require(pc.all(condition, min_count=0).as_py())


_TABLES: Final[Mapping[str, Callable[[_Columns], pa.Table]]] = MappingProxyType(
    {"delivery": _build_deliveries, "ack": _build_acks, "commit": _build_commits, "heartbeat": _build_heartbeats}
)
_HINTS: Final = {
    kind: {**get_type_hints(Stamp), **{name: hint for name, hint in get_type_hints(KINDS[kind]).items() if name != "stamp"}}
    for kind in _TABLES
}
