"""A YAML text as plain data that still knows its line numbers.

Only null, true, false and whole numbers are anything but text (YAML 1.2's core, without its floats): `on`, `1_000`, `0x10` and
a cluster id of 22 digits stay what the user wrote. Merge keys and aliases work; duplicate keys are problems, because YAML
would silently keep the last one. Nothing in the file can name Python objects.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from airflow_provider_kmigrate.spec.problems import Loc, Problem, dotted

_TAG = "tag:yaml.org,2002:"
_WHOLE_NUMBER = re.compile(r"^-?(?:0|[1-9][0-9]{0,17})$")  # longer digit strings are names, and may not fit the machine


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - as PyYAML declares it

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.repeated: list[tuple[yaml.Node, yaml.Node]] = []

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: ARG002 - always deep
        """Keys are text, as written; repeated ones are kept for `Document`."""
        seen: dict[str, yaml.Node] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != f"{_TAG}merge":
                key.tag = f"{_TAG}str"
                if seen.setdefault(key.value, key) is not key:
                    self.repeated.append((key, seen[key.value]))
        return super().construct_mapping(node, deep=True)


_Loader.add_implicit_resolver(f"{_TAG}null", re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""])
_Loader.add_implicit_resolver(f"{_TAG}bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
_Loader.add_implicit_resolver(f"{_TAG}int", _WHOLE_NUMBER, list("-0123456789"))
_Loader.add_implicit_resolver(f"{_TAG}merge", re.compile(r"^<<$"), ["<"])


class Document:
    """One text; `parsed` says whether it is YAML at all, `problems` what is wrong with it as YAML."""

    def __init__(self, text: str) -> None:
        self.data: Any = None
        self.parsed = False
        self.problems: list[Problem] = []
        self._root: yaml.Node | None = None
        try:
            self._parse(text)
            self.parsed = True
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            self.problems = [_syntax(error, text)]

    def _parse(self, text: str) -> None:
        loader = _Loader(text)
        try:
            self._root = loader.get_single_node()
            if self._root is not None:
                self.data = loader.construct_document(self._root)
            self.problems = [_duplicate(key, first) for key, first in loader.repeated]
        finally:
            loader.dispose()

    def line(self, loc: Loc) -> int:
        """The line (from 1) of the key or list item at `loc`, or of its nearest parent that exists."""
        node, line = self._root, 1
        for part in loc:
            key, node = _child(node, part)
            if key is None:
                break
            line = key.start_mark.line + 1
        return line


def _child(node: yaml.Node | None, part: str | int) -> tuple[yaml.Node | None, yaml.Node | None]:
    if isinstance(node, yaml.MappingNode):
        for key, value in reversed(node.value):  # merged keys come first, the file's own win
            if key.value == part:
                return key, value
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part], node.value[part]
    return None, None


def _duplicate(key: yaml.Node, first: yaml.Node) -> Problem:
    return Problem(
        code="F05",
        loc=(key.value,),
        line=key.start_mark.line + 1,
        found=f"the key {dotted((key.value,))} for the second time (first in line {first.start_mark.line + 1})",
        expected="each key once",
        fix="remove one of the two",
    )


def _syntax(error: Exception, text: str) -> Problem:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    before = mark.line if mark else text.count("\n", 0, getattr(error, "position", None) or 0)
    what = getattr(error, "problem", None) or getattr(error, "reason", None) or f"a {type(error).__name__}"
    return Problem(
        code="F00",
        loc=(),
        line=before + 1,
        found=f"text that is no YAML ({what})",
        expected="one YAML mapping",
        fix="mend the syntax there or in the line above",
    )
