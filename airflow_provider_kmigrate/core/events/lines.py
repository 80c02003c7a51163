"""Reads and writes events as lines of JSON: one flat object a line, with the schema's version."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from enum import StrEnum
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Final, get_args, get_origin, get_type_hints

from airflow_provider_kmigrate.core.events import model as events
from airflow_provider_kmigrate.core.events.model import SCHEMA_VERSION, Event, Stamp
from airflow_provider_kmigrate.core.shared.foreign_json import EXACT, read_json
from airflow_provider_kmigrate.exceptions import Refused


class BadEvent(Refused):
    """A line that is no event. Count it, keep it aside and report it: its content is unknown, and the text quotes nothing of it."""


class UnknownVersion(BadEvent):
    """Written by another release, so its fields may mean something else."""


KINDS: Final[Mapping[str, type[Event]]] = MappingProxyType(
    {
        "start": events.Start,
        "heartbeat": events.Heartbeat,
        "stop": events.Stop,
        "expect": events.Expect,
        "remark": events.Remark,
        "ownership": events.Ownership,
        "delivery": events.DeliveryRun,
        "ack": events.Ack,
        "send_failure": events.SendFailure,
        "latencies": events.Latencies,
        "slow": events.Slow,
        "commit": events.Commit,
        "log_extent": events.LogExtent,
    }
)
_NAMES: Final = {cls: name for name, cls in KINDS.items()}
_FIELDS: Final = {cls: tuple(item.name for item in fields(cls))[1:] for cls in KINDS.values()}
_YEAR_9999_MS: Final = 253_402_300_800_000  # the first instant that no `datetime` has
_to_json: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def encode(event: Event) -> str:
    """One line of JSON, without its line end."""
    cls = type(event)
    envelope = {"v": SCHEMA_VERSION, "kind": _NAMES[cls], **event.stamp._asdict()}
    return _to_json(envelope | {name: getattr(event, name) for name in _FIELDS[cls]})


def decode(line: str) -> Event:
    """The event of one line. Raises `BadEvent`, which says what is wrong; `UnknownVersion` if another release wrote it."""
    value = _parse(line)
    cls = KINDS[value.pop("kind")]
    try:
        event = cls(_read_stamp([value.pop(name) for name in Stamp._fields]), **_read_fields(cls, value))
    except (KeyError, TypeError, ValueError) as error:
        raise BadEvent(f"an event of kind {_NAMES[cls]} is malformed: {error}") from error
    flaw = event.flaw()
    if flaw is not None:
        raise BadEvent(f"an event of kind {_NAMES[cls]} contradicts itself: {flaw}")
    return event


def _parse(line: str) -> dict[str, Any]:
    try:
        value = read_json(line, EXACT)
    except ValueError as error:
        raise BadEvent(f"no JSON: {error}") from error
    if not isinstance(value, dict) or "v" not in value or "kind" not in value:
        raise BadEvent("no event of kmigrate: it has no version and kind")
    version = value.pop("v")
    if version != SCHEMA_VERSION or isinstance(version, bool):
        version_text = f"schema version {version}" if type(version) is int else "no schema version"
        raise UnknownVersion(f"{version_text}; this release reads version {SCHEMA_VERSION}")
    if not isinstance(value["kind"], str) or value["kind"] not in KINDS:
        raise BadEvent(f"version {version} has no event of its kind")
    return value


_Read = Callable[[Any], Any]  # checks a JSON value and gives it the type that the field declares; raises ValueError


def _read_fields(cls: type[Event], value: dict[str, Any]) -> dict[str, Any]:
    readers = _READERS[cls]
    try:
        return {name: readers[name](item) for name, item in value.items()}
    except KeyError as error:
        raise ValueError("it has an unknown field") from error


def _plain_reader(kind: type) -> _Read:
    def read(value: Any) -> Any:
        if type(value) is not kind:  # not isinstance: True is no number here
            raise ValueError(f"a {type(value).__name__} is no {kind.__name__}")
        return value

    return read


def _optional_reader(inner: _Read) -> _Read:
    return lambda value: None if value is None else inner(value)


def _list_reader(inner: _Read) -> _Read:
    check_list = _plain_reader(list)
    return lambda value: tuple(map(inner, check_list(value)))


def _row_reader(kinds: tuple[type, ...], make: Callable[[list[Any]], Any]) -> _Read:
    """A list of just these plain types; it is by far the commonest value in an event, so one comparison checks it."""
    expected = list(kinds)

    def read(value: Any) -> Any:
        if type(value) is not list or list(map(type, value)) != expected:
            raise ValueError(f"a {type(value).__name__} is no row of {', '.join(kind.__name__ for kind in kinds)}")
        return make(value)

    return read


def allowed_range(name: str) -> range | None:
    """The values that a number of this name may have: what a column of 32 bits or a date can hold."""
    if name in {"partition", "count"}:
        return range(-(2**31), 2**31)
    is_time = name in {"until_ms", "wall_ms"} or (name.startswith("t_") and name.endswith("_ms"))
    return range(-_YEAR_9999_MS, _YEAR_9999_MS) if is_time else None


def _range_checked_reader(name: str, read: _Read) -> _Read:
    allowed = allowed_range(name)
    if allowed is None:
        return read

    def check(value: Any) -> Any:
        number = read(value)
        if number is not None and number not in allowed:
            raise ValueError(f"{name} is out of range")
        return number

    return check


def _field_reader(hint: Any) -> _Read:
    """The function that reads a field's declared type."""
    args = get_args(hint)
    if get_origin(hint) is UnionType:
        (inner,) = (arg for arg in args if arg is not NoneType)
        return _optional_reader(_field_reader(inner))
    if get_origin(hint) is tuple:
        return _list_reader(_field_reader(args[0])) if args[-1] is Ellipsis else _row_reader(args, tuple)
    if issubclass(hint, tuple):
        return _tuple_reader(hint)
    return _enum_reader(hint) if issubclass(hint, StrEnum) else _plain_reader(hint)


def _enum_reader(kind: type[StrEnum]) -> _Read:
    members = {member.value: member for member in kind}

    def read(value: Any) -> StrEnum:
        if not isinstance(value, str) or value not in members:
            raise ValueError(f"a {type(value).__name__} is no {kind.__name__}")
        return members[value]

    return read


def _tuple_reader(hint: Any) -> _Read:
    hints = get_type_hints(hint)
    ranges = [(at, allowed) for at, name in enumerate(hints) if (allowed := allowed_range(name)) is not None]

    def make(items: list[Any]) -> Any:
        for at, allowed in ranges:
            if items[at] not in allowed:
                raise ValueError(f"{hint._fields[at]} is out of range")
        return hint(*items)

    return _row_reader(tuple(hints.values()), make)


_read_stamp: Final = _field_reader(Stamp)
_READERS: Final = {
    cls: {
        name: _range_checked_reader(name, _field_reader(hint))
        for name, hint in get_type_hints(cls).items()
        if name in _FIELDS[cls]
    }
    for cls in KINDS.values()
}
