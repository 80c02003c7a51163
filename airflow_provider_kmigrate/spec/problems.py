"""What is wrong with a cluster file, one `Problem` a finding, and the `SpecError` that lists them all.

Codes: F00 unreadable, F00 no YAML, F04 unknown key, F04 missing key, F04 wrong value, F05 something that must be unique is there
twice, F06 a secret, F04 not in this version. `advice` uses F5x.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_kmigrate.core.model import Reason
from airflow_provider_kmigrate.exceptions import SpecError

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
        return Reason(self.code, f"{self._where(path)}: found {self.found}.", f"Expected {self.expected}.", f"{self.fix}.")

    def text(self, path: str) -> str:
        """One line that editors can follow."""
        return f"{self._where(path)}: found {self.found}; expected {self.expected}. Fix: {self.fix}. [{self.code}]"

    def _where(self, path: str) -> str:
        return f"{path}:{self.line}: {dotted(self.loc)}" if self.loc else f"{path}:{self.line}"


def spec_error(path: str, problems: Iterable[Problem]) -> SpecError:
    """All problems in the order of the file, each once."""
    ordered = sorted(set(problems), key=lambda problem: (problem.line, dotted(problem.loc), problem.found))
    title = f"{path}: 1 problem" if len(ordered) == 1 else f"{path}: {len(ordered)} problems"
    lines = (title, *(problem.text(path) for problem in ordered))
    return SpecError("\n  ".join(lines), (problem.reason(path) for problem in ordered))


def dotted(loc: Loc) -> str:
    """`brokers[1].port`."""
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
    """The items of a list of `data` that are mappings at all, each with where it is."""
    items = data.get(section) if isinstance(data, Mapping) else None
    places = enumerate(items) if isinstance(items, list) else ()
    return [((*loc, section, index), item) for index, item in places if isinstance(item, Mapping)]


def same(items: Iterable[Item], key: str, line: Line, fix: str) -> Iterator[Problem]:
    """A key whose text an earlier item has too."""
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
            found=f"{value}, which {dotted(first[value])} has too",
            expected=f"a {key} that no other has",
            fix=fix,
        )
