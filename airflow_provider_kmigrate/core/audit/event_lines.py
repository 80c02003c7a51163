"""Reads and writes events as lines of JSON, and checks that an events topic arrives whole in an output.

One flat object a line, with the schema's version. A line that is no event is an error of its own kind. The check follows the
topic through a checkpoint into the output: nothing may be missing on the way.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from enum import StrEnum
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Final, get_args, get_origin, get_type_hints

from airflow_provider_kmigrate.core.audit.fingerprint import LogMark
from airflow_provider_kmigrate.core.audit.verdict import Ground, Outcome
from airflow_provider_kmigrate.core.events import (
    SCHEMA_VERSION,
    Ack,
    Commit,
    DeliveryRun,
    Event,
    Expect,
    Heartbeat,
    Latencies,
    LogExtent,
    Ownership,
    Remark,
    SendFailure,
    Slow,
    Stamp,
    Start,
    Stop,
    TopicPartition,
)
from airflow_provider_kmigrate.core.model import Reason
from airflow_provider_kmigrate.exceptions import Refused


class BadEvent(Refused):
    """A line that is no event. Count it, keep it aside and report it: its content is unknown."""


class MalformedEvent(BadEvent):
    """Not JSON, a field missing, unknown or of the wrong type, or values that contradict each other."""


class ForeignEvent(BadEvent):
    """JSON, but not of this vocabulary (`core.audit.verifiable` reads Kafka's own tools)."""


class UnknownVersion(BadEvent):
    """Written by another release, so its fields may mean something else."""


KINDS: Final[Mapping[str, type[Event]]] = MappingProxyType(
    {
        "start": Start,
        "heartbeat": Heartbeat,
        "stop": Stop,
        "expect": Expect,
        "remark": Remark,
        "ownership": Ownership,
        "delivery": DeliveryRun,
        "ack": Ack,
        "send_failure": SendFailure,
        "latencies": Latencies,
        "slow": Slow,
        "commit": Commit,
        "log_extent": LogExtent,
    }
)
_NAMES: Final = {cls: name for name, cls in KINDS.items()}
_FIELDS: Final = {cls: tuple(item.name for item in fields(cls))[1:] for cls in KINDS.values()}
_to_json: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def encode(event: Event) -> str:
    """One line of JSON, without its line end."""
    cls = type(event)
    envelope = {"v": SCHEMA_VERSION, "kind": _NAMES[cls], **event.stamp._asdict()}
    return _to_json(envelope | {name: getattr(event, name) for name in _FIELDS[cls]})


def decode(line: str) -> Event:
    """The event of one line. Raises `MalformedEvent`, `ForeignEvent` or `UnknownVersion`, which name what is wrong."""
    value = _parse(line)
    cls = KINDS[value.pop("kind")]
    try:
        stamp = _read_stamp([value.pop(name) for name in Stamp._fields])
        event = cls(stamp, **_read_fields(cls, value))
    except (KeyError, TypeError, ValueError) as error:
        raise MalformedEvent(f"an event of kind {_NAMES[cls]} is malformed: {error}") from error
    flaw = event.flaw()
    if flaw is not None:
        raise MalformedEvent(f"an event of kind {_NAMES[cls]} contradicts itself: {flaw}")
    return event


def _parse(line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise MalformedEvent(f"no JSON: {error}") from error
    if not isinstance(value, dict) or "v" not in value or "kind" not in value:
        raise ForeignEvent("no event of kmigrate: it has no version and kind")
    version = value.pop("v")
    if version != SCHEMA_VERSION or isinstance(version, bool):
        raise UnknownVersion(f"schema version {version!r}; this release reads version {SCHEMA_VERSION}")
    if not isinstance(value["kind"], str) or value["kind"] not in KINDS:
        raise ForeignEvent(f"version {version} has no event of kind {value['kind']!r}")
    return value


_Read = Callable[[Any], Any]  # checks a JSON value and gives it the type that the field declares; raises ValueError


def _read_fields(cls: type[Event], value: dict[str, Any]) -> dict[str, Any]:
    readers = _READERS[cls]
    try:
        return {name: readers[name](item) for name, item in value.items()}
    except KeyError as error:
        raise ValueError(f"unknown field {error}") from error


def _plain(kind: type) -> _Read:
    def read(value: Any) -> Any:
        if type(value) is not kind:  # not isinstance: True is no number here
            raise ValueError(f"{value!r} is no {kind.__name__}")
        return value

    return read


def _optional(inner: _Read) -> _Read:
    return lambda value: None if value is None else inner(value)


def _many(inner: _Read) -> _Read:
    check_list = _plain(list)
    return lambda value: tuple(map(inner, check_list(value)))


def _row(kinds: tuple[type, ...], make: Callable[[list[Any]], Any]) -> _Read:
    """A list of just these plain types; it is by far the commonest value in an event, so one comparison checks it."""
    expected = list(kinds)

    def read(value: Any) -> Any:
        if type(value) is not list or list(map(type, value)) != expected:
            raise ValueError(f"{value!r} is no row of {', '.join(kind.__name__ for kind in kinds)}")
        return make(value)

    return read


def _reader(hint: Any) -> _Read:
    """The function that reads a field's declared type."""
    args = get_args(hint)
    if get_origin(hint) is UnionType:
        (inner,) = (arg for arg in args if arg is not NoneType)
        return _optional(_reader(inner))
    if get_origin(hint) is tuple:
        return _many(_reader(args[0])) if args[-1] is Ellipsis else _row(args, tuple)
    if issubclass(hint, tuple):
        return _row(tuple(get_type_hints(hint).values()), lambda items: hint(*items))
    return hint if issubclass(hint, StrEnum) else _plain(hint)


_read_stamp: Final = _reader(Stamp)
_READERS: Final = {
    cls: {name: _reader(hint) for name, hint in get_type_hints(cls).items() if name in _FIELDS[cls]} for cls in KINDS.values()
}


Marks = Mapping[TopicPartition, LogMark]
_COMPACT: Final = ".compact"  # of every tenth file of what Spark's file sink keeps of its batches
_FOREVER: Final = "Set retention.ms and retention.bytes of the topic to -1 and its cleanup.policy to delete, at least until the migration is over"


def newest_written(names: Iterable[str]) -> int | None:
    """The last batch in an output, by the files of its `_spark_metadata`."""
    bare = (name.removesuffix(_COMPACT) for name in names)
    return max((int(name) for name in bare if name.isdigit()), default=None)


def misfit(begun: int | None, done: int | None, written: int | None) -> str:
    """Why a checkpoint does not belong to an output; empty if it may. Numbers of last batches, None: there was none.

    A batch is begun in the checkpoint, then written to the output, then done in the checkpoint. Spark's sink skips every batch
    that is not after the last one written, whatever is in it.
    """
    if done is not None and written is None:
        return "is gone"
    if done is not None and written is not None and written < done:
        return f"ends with batch {written}, and batch {done} was written: it is an older one"
    if written is not None and written > (-1 if begun is None else begun):
        return f"has batch {written} already, the checkpoint knows none behind {begun}: it is an older one"
    return ""


def refuse_removed(marks: Marks, place: Mapping[TopicPartition, int]) -> None:
    """Raises `Refused` (X12) if a log begins after the offset up to which it was read."""
    gone = [(where, marks[where].start, at) for where, at in sorted(place.items()) if where in marks and marks[where].start > at]
    if gone:
        (where, start, at), more = gone[0], f", and {len(gone) - 1} more partitions" if len(gone) > 1 else ""
        text = f"Events were removed before an audit took them in: {where.name} begins at {start}, and was read up to {at}{more}."
        why = "What they said is lost, so nothing can be concluded from the others."
        raise Refused.because(Reason("X12", text, why, f"{_FOREVER}; then begin anew with all clients (runbook, X12)."))


def limits(topic: str, marks: Marks) -> list[Ground]:
    """What the topic's own settings will remove, or may have removed."""
    if any(mark.compacted for mark in marks.values()):
        why = "Compaction keeps one event of each writer and removes the others, without a word."
        return [_ground(Outcome.INCONCLUSIVE, f"The events topic {topic} is compacted.", why)]
    kept = {(mark.retention_ms, mark.retention_bytes) for mark in marks.values() if not mark.unread} - {(-1, -1), (None, None)}
    if not kept:
        return []
    ms, size = min(kept, key=str)
    text = f"The events topic {topic} keeps events for a limited time or size: retention.ms {ms}, retention.bytes {size}."
    why = "An audit that comes too late after the last one ends without a verdict (X12), and a new ledger lacks the beginnings of older clients (L03)."
    return [_ground(Outcome.PASS, text, why)]


def _ground(outcome: Outcome, text: str, why: str) -> Ground:
    return Ground(outcome, Reason("X13", text, why, f"{_FOREVER}."))
