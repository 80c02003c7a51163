"""pydantic's findings in the words of the fields they are about."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from airflow_provider_kmigrate.spec.model import ClusterFile
from airflow_provider_kmigrate.spec.problems import Loc, Problem, shown
from airflow_provider_kmigrate.spec.reference import section as section_of
from airflow_provider_kmigrate.spec.values import COMMAND_ERROR

_SSH = "use `driver: command` with commands such as `ssh {host} ...`; a driver of its own for SSH comes later"


def problems_of(error: ValidationError, line: Callable[[Loc], int]) -> list[Problem]:
    """All findings of pydantic; a list whose items are all wrong is not also called empty."""
    found = (details for details in error.errors(include_url=False) if details["type"] != "too_short" or not details["input"])
    return [_problem(details, line) for details in found]


def _problem(details: ErrorDetails, line: Callable[[Loc], int]) -> Problem:
    loc: Loc = details["loc"]
    section, field = _field(loc)
    if details["type"] == "extra_forbidden":
        return _unknown(loc, line(loc), section)
    ours: Mapping[str, Any] = details.get("ctx", {}) if details["type"] == COMMAND_ERROR else {}
    missing = details["type"] == "missing"
    return Problem(
        code="F04",
        loc=loc,
        line=line(loc),
        found=ours.get("found") or ("nothing" if missing else _found(loc, details["input"])),
        expected=ours.get("expected") or (field.description if field else None) or "a mapping",
        fix=_SSH if _is_ssh(details) else _fix("add" if missing else "write for example", loc, field),
    )


def _fix(verb: str, loc: Loc, field: FieldInfo | None) -> str:
    if field is None or not field.examples:
        return "write keys and values here" if field is None else "write text"
    pair = yaml.safe_dump({loc[-1]: field.examples[0]}, default_flow_style=True, width=1000, sort_keys=False)
    return f"{verb} `{pair.strip()[1:-1]}`"


def _found(loc: Loc, value: object) -> str:
    """Values below `quorum.properties` and a job's `options` may be secrets and are not shown."""
    hidden = loc[:2] == ("quorum", "properties") or (loc[:1] == ("spark_jobs",) and loc[2:3] == ("options",))
    return "a value of another kind" if hidden else shown(value)


def _is_ssh(details: ErrorDetails) -> bool:
    return details["loc"][-1:] == ("driver",) and details["input"] == "ssh"


def _unknown(loc: Loc, line: int, model: type[BaseModel] | None) -> Problem:
    known = sorted(model.model_fields) if model else []
    near = difflib.get_close_matches(str(loc[-1]), known, n=1)
    return Problem(
        code="F04",
        loc=loc,
        line=line,
        found="a key that kmigrate does not know",
        expected=f"one of {', '.join(known)}",
        fix=f"write `{near[0]}`" if near else "remove it",
    )


def _field(loc: Loc) -> tuple[type[BaseModel] | None, FieldInfo | None]:
    """The section that `loc` is in, and the field that it names where it names one itself."""
    section: type[BaseModel] | None = None
    inner: type[BaseModel] | None = ClusterFile
    field: FieldInfo | None = None
    for part in loc:
        if isinstance(part, int):
            field = None
        elif inner is not None:
            section, field = inner, inner.model_fields.get(part)
            inner = section_of(field.annotation) if field else None
        else:
            field = FieldInfo(description="text")
    return section, field
