"""The page docs/cluster-file.md: every key of a cluster file with its default, from the models themselves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

from airflow_provider_kmigrate.spec.model import Broker, ClusterFile, Connection, Controller, Hosts, seconds

_HEAD = """\
# The cluster file

Written by `python -m airflow_provider_kmigrate.spec --reference`, from the models that read the file; an editor has the same from
`airflow_provider_kmigrate/cluster.schema.json`. An example is in the [README](../README.md#use-it-on-your-cluster); `python -m
airflow_provider_kmigrate.spec FILE` checks one. **bold**: required. Times are seconds, or text such as `300ms`, `90s`, `10m`, `24h`.
"""


def reference() -> str:
    """The page as Markdown."""
    return "\n".join([_HEAD, *_section("", ClusterFile)])


def _section(path: str, model: type[BaseModel]) -> Iterator[str]:
    inner = {name: found for name, field in model.model_fields.items() if (found := _below(field)) is not None}
    yield f"## {f'`{path}`' if path else 'At the top'}\n"
    yield f"{(model.__doc__ or '').strip()}\n"
    if issubclass(model, (Broker, Controller)):
        yield "Every key of `hosts` may also stand here; it overrides `hosts`.\n"
    yield "| key | default | example | what |\n| --- | --- | --- | --- |"
    for name, field in model.model_fields.items():
        if not (issubclass(model, (Broker, Controller)) and name in Hosts.model_fields):
            yield _row(name, field, f"{path}.{name}".lstrip(".") if name in inner else "")
    yield ""
    for name, below in inner.items():
        yield from _section(f"{path}.{name}".lstrip("."), below)


def _row(name: str, field: FieldInfo, below: str) -> str:
    key = f"**`{name}`**" if field.is_required() else f"`{name}`"
    what = (field.description or "").replace("|", "\\|")
    default = "" if field.is_required() or below else _default(field)
    example = f"`{_shown(field.examples[0])}`" if field.examples else ""
    if below:
        example = f"[below](#{below.replace('.', '')})"
    return f"| {key} | {default} | {'' if example == default else example} | {what} |"


def _below(field: FieldInfo) -> type[BaseModel] | None:
    found = section(field.annotation)
    return None if found is Connection else found


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if value in (None, (), {}, ""):
        return ""
    timed = any(isinstance(each, BeforeValidator) and each.func is seconds for each in field.metadata)
    return f"`{_time(value) if timed else _shown(value)}`"


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _time(value: float) -> str:
    """As one would write it: 86400 is 24h, 90 is 90s, 0.2 is 200ms."""
    units = (("h", 3600.0), ("m", 60.0), ("s", 1.0))
    unit, size = next((each for each in units if value >= each[1] and value % each[1] == 0), ("ms", 0.001))
    return f"{value / size:g}{unit}"


def section(annotation: object) -> type[BaseModel] | None:
    """The model of a key's value, or of a list's items; None if there is none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for found in map(section, get_args(annotation)) if found), None)
