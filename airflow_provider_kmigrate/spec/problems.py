"""Problems of a cluster file: one `Problem` a finding, and the `SpecError` that lists them all.

F00: unreadable or no YAML; F04: a key is unknown, missing or wrong; F05: something unique is there twice; F06: a secret. `advice` uses F5x.
pydantic's findings are put in the words of the fields they are about.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from airflow_provider_kmigrate.core.model import Reason
from airflow_provider_kmigrate.exceptions import SpecError
from airflow_provider_kmigrate.spec.model import COMMAND_ERROR, RENAMED, ClusterFile
from airflow_provider_kmigrate.spec.reference import section as section_of

Loc = tuple[str | int, ...]
Line = Callable[[Loc], int]
Item = tuple[Loc, Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One finding; `line` counts from 1, `loc` is the path of keys and list positions (from 0)."""

    code: str
    loc: Loc
    line: int
    found: str
    expected: str
    fix: str

    def reason(self, path: str) -> Reason:
        """The same as a value for logs and the UI."""
        return Reason(self.code, f"{self._said(path)}.")

    def text(self, path: str) -> str:
        """One line that editors can follow."""
        return f"{self._said(path)}. [{self.code}]"

    def _said(self, path: str) -> str:
        where = f"{path}:{self.line}: {dotted(self.loc)}" if self.loc else f"{path}:{self.line}"
        return f"{where}: found {self.found}; expected {self.expected}. Fix: {self.fix}"


def spec_error(path: str, problems: Iterable[Problem]) -> SpecError:
    """All problems in the order of the file, each once."""
    ordered = sorted(set(problems), key=lambda problem: (problem.line, dotted(problem.loc), problem.found))
    title = f"{path}: 1 problem" if len(ordered) == 1 else f"{path}: {len(ordered)} problems"
    lines = (title, *(problem.text(path) for problem in ordered))
    return SpecError("\n  ".join(lines), (problem.reason(path) for problem in ordered))


def dotted(loc: Loc) -> str:
    """A location as text: `brokers[1].port`."""
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def shown(value: object) -> str:
    """A value as the message shows it: scalars shortened, everything else by its kind only."""
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list" if value else "an empty list"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def mappings(data: object, section: str, loc: Loc = ()) -> list[Item]:
    """The items of a list of `data` that are mappings, each with its location."""
    items = data.get(section) if isinstance(data, Mapping) else None
    places = enumerate(items) if isinstance(items, list) else ()
    return [((*loc, section, index), item) for index, item in places if isinstance(item, Mapping)]


def same(items: Iterable[Item], key: str, line: Line, fix: str) -> Iterator[Problem]:
    """Problems of keys whose text an earlier item has too."""
    first: dict[str, Loc] = {}
    for place, item in items:
        value = item.get(key)
        if not isinstance(value, str) or first.setdefault(value, place) == place:
            continue
        loc = (*place, key)
        yield Problem(
            code="F05",
            loc=loc,
            line=line(loc),
            found=f"{value}, which {dotted(first[value])} also has",
            expected=f"a {key} that no other has",
            fix=fix,
        )


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
    """The value as shown; values below `quorum.properties` and a job's `options` may be secrets and are hidden."""
    hidden = loc[:2] == ("quorum", "properties") or (loc[:1] == ("spark_jobs",) and loc[2:3] == ("options",))
    return "a value of another kind" if hidden else shown(value)


def _is_ssh(details: ErrorDetails) -> bool:
    return details["loc"][-1:] == ("driver",) and details["input"] == "ssh"


def _unknown(loc: Loc, line: int, model: type[BaseModel] | None) -> Problem:
    if new := RENAMED.get(".".join(part for part in loc if isinstance(part, str))):
        return _renamed(loc, line, new)
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


def _renamed(loc: Loc, line: int, new: str) -> Problem:
    found, expected = "the old name of a key", f"its name `{new}`"
    return Problem(code="F04", loc=loc, line=line, found=found, expected=expected, fix=f"rename `{loc[-1]}` to `{new}`")


def _field(loc: Loc) -> tuple[type[BaseModel] | None, FieldInfo | None]:
    """The section of `loc`, and the field that it names, if it names one."""
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
