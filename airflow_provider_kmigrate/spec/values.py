"""The kinds of values in a cluster file: durations, commands, schedules, paths, ports; each says no in the file's own words."""

from __future__ import annotations

import re
import shlex
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, WithJsonSchema
from pydantic_core import PydanticCustomError

COMMAND_ERROR: Literal["command"] = "command"  # its context has `found`, and `expected` where the description does not say it
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_DURATION = r"^(?:[0-9]+(?:\.[0-9]+)?|(?:[0-9]+(?:\.[0-9]+)?(?:ms|s|m|h|d))+)$"
_MOMENT = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(?::[0-9]{2})?Z$"
_PRESETS = ("@hourly", "@daily", "@weekly", "@monthly")
_CRON = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))  # minute, hour, day, month, day of the week
_PLACEHOLDER = re.compile(r"(?<![${])\{(\w+)\}(?!\})")  # neither ${SHELL} nor {{template}}
_PLACEHOLDERS = {
    "read": ("id", "host", "properties", "path"),
    "write": ("id", "host", "properties", "path"),
    "wipe": ("id", "host", "properties", "path"),
    "format": ("id", "host", "properties", "cluster_id", "release"),
    "switch": ("group", "instance", "host", "kind"),
}


def seconds(value: object) -> object:
    """Seconds of `24h`, `1h30m`, `500ms`, `5` or `0.3`; anything else goes on to pydantic, which refuses it."""
    if isinstance(value, str) and re.fullmatch(_DURATION, value):
        parts = re.findall(r"([0-9.]+)(ms|s|m|h|d)?", value)
        return sum(float(number) * _SECONDS[unit or "s"] for number, unit in parts)
    return value


def _number(value: object) -> object:
    """The file's reader leaves numbers with a point as text; `true` is no 1."""
    if isinstance(value, bool):
        return str(value)
    return float(value) if isinstance(value, str) and re.fullmatch(r"[0-9]*\.?[0-9]+", value) else value


def _words(value: object, info: ValidationInfo) -> object:
    """A command as an argument list; a string is split as a POSIX shell would, and no shell ever runs it."""
    if isinstance(value, str):
        try:
            value = shlex.split(value)
        except ValueError as error:
            raise PydanticCustomError(COMMAND_ERROR, COMMAND_ERROR, {"found": f"a command with {str(error).lower()}"}) from error
    if isinstance(value, list):
        known = _PLACEHOLDERS.get(info.field_name or "", ("id", "host", "properties"))
        for name in _PLACEHOLDER.findall(" ".join(str(word) for word in value)):
            if name not in known:
                listed = ", ".join(f"{{{key}}}" for key in known)
                raise PydanticCustomError(COMMAND_ERROR, COMMAND_ERROR, {"found": f"{{{name}}}", "expected": f"only {listed}"})
    return value


def _property(value: object) -> object:
    return str(value).lower() if isinstance(value, bool) else value


def _schedule(value: object) -> object:
    """A cron expression that Airflow takes: one that it does not would take away all DAGs of the file."""
    fields = value.split() if isinstance(value, str) else []
    cron = len(fields) == len(_CRON) and all(map(_in_range, fields, _CRON))
    if value is None or value in _PRESETS or cron:
        return value
    raise PydanticCustomError(COMMAND_ERROR, COMMAND_ERROR, {"found": f"{str(value)[:40]!r}, which is no schedule"})


def _moment(value: object) -> object:
    """A day and a time of UTC."""
    if isinstance(value, str) and re.fullmatch(_MOMENT, value):
        with suppress(ValueError):
            datetime.fromisoformat(value)
            return value
    raise PydanticCustomError(COMMAND_ERROR, COMMAND_ERROR, {"found": f"{str(value)[:40]!r}"})


def _in_range(field: str, limits: tuple[int, int]) -> bool:
    """One field of cron: `*`, numbers, ranges, lists and steps; no names."""
    for part in field.split(","):
        match = re.fullmatch(r"(?:\*|([0-9]{1,2})(?:-([0-9]{1,2}))?)(?:/([1-9][0-9]?))?", part)
        if match is None:
            return False
        first, last, step = match.groups()
        numbers = [int(number) for number in (first, last) if number is not None]
        if numbers != sorted(numbers) or any(not limits[0] <= number <= limits[1] for number in numbers):
            return False
        if step is not None and first is not None and last is None:
            return False
    return True


def or_default(empty: object) -> BeforeValidator:
    """A section whose lines are all commented out reads as null; it means the section's defaults."""
    return BeforeValidator(lambda value: empty if value is None else value)


_DURATION_SCHEMA = {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": _DURATION}]}
_COMMAND_SCHEMA = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}

Duration = Annotated[
    float, Field(ge=0, allow_inf_nan=False, strict=True), BeforeValidator(seconds), WithJsonSchema(_DURATION_SCHEMA)
]
Interval = Annotated[
    float, Field(gt=0, allow_inf_nan=False, strict=True), BeforeValidator(seconds), WithJsonSchema(_DURATION_SCHEMA)
]
Count = Annotated[int, Field(ge=1, strict=True)]
Command = Annotated[tuple[str, ...], Field(min_length=1), BeforeValidator(_words), WithJsonSchema(_COMMAND_SCHEMA)]
Share = Annotated[
    float,
    Field(gt=0, le=1, allow_inf_nan=False),
    BeforeValidator(_number),
    WithJsonSchema({"type": "number", "exclusiveMinimum": 0, "maximum": 1}),
]
Margin = Annotated[
    float,
    Field(gt=1, le=100, allow_inf_nan=False),
    BeforeValidator(_number),
    WithJsonSchema({"type": "number", "exclusiveMinimum": 1, "maximum": 100}),
]
Moment = Annotated[str, BeforeValidator(_moment), WithJsonSchema({"type": "string", "pattern": _MOMENT})]
Schedule = Annotated[str, BeforeValidator(_schedule)]
Location = Annotated[str, Field(pattern=r"^(?:/|[a-z][a-z0-9+.-]*://)[^\x00-\x1f]*$")]
Window = Annotated[str, Field(pattern=r"^(?:[01][0-9]|2[0-3]):[0-5][0-9]-(?:[01][0-9]|2[0-3]):[0-5][0-9]$")]
FilePath = Annotated[str, Field(pattern=r"^/[^\x00-\x1f]*$")]
Port = Annotated[int, Field(ge=1, le=65_535, strict=True)]
Properties = Annotated[dict[str, Annotated[str, BeforeValidator(_property), Field(min_length=0)]], or_default({})]
