"""Every number that a sentence counts something with is right for one, too: `core.shared.text.count_of` and `Count` write it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from airflow_provider_kmigrate.core.audit import commit_copies, commit_tracks, fingerprint, verdict
from airflow_provider_kmigrate.core.migration import equivalence
from airflow_provider_kmigrate.core.shared.text import Count, count_of

PACKAGE: Final = Path(__file__).resolve().parents[2] / "airflow_provider_kmigrate"
_COUNTED: Final = [
    "ISRs",
    "acls",
    "approvals",
    "brokers",
    "changes",
    "characters",
    "checks",
    "commits",
    "connections",
    "consumers",
    "controllers",
    "copies",
    "credentials",
    "duplicates",
    "entries",
    "events",
    "failures",
    "files",
    "findings",
    "generations",
    "groups",
    "instances",
    "intervals",
    "iterations",
    "keys",
    "leaders",
    "lines",
    "logs",
    "members",
    "nodes",
    "observations",
    "offsets",
    "originals",
    "owners",
    "partitions",
    "problems",
    "processes",
    "producers",
    "quotas",
    "records",
    "replicas",
    "restarts",
    "rules",
    "servers",
    "settings",
    "steps",
    "tasks",
    "times",
    "tokens",
    "topics",
    "transactions",
    "users",
    "warnings",
    "waves",
    "znodes",
]
_BEHIND: Final = re.compile(rf" (?:(?:more )?are|more approver|(?!of )(?:[A-Za-z-]+ ){{0,2}}?(?:{'|'.join(_COUNTED)}))\b")
_IN_TEMPLATE: Final = re.compile(rf"\{{[a-z_]*\}}(?:{_BEHIND.pattern})")
_IS_COUNT: Final = re.compile(r"len\(|sum\(|format_number\(|missing$|not_shown$|.*(?:count|lag|behind|total\(\)|\['count'\])$")
_IS_NO_COUNT: Final = re.compile(r"[A-Z_. *]+$|count_of\(|join_ids\(|summarize\(|.*join\(")
"""A constant is above one."""


def _read_trees() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield str(path.relative_to(PACKAGE)), ast.parse(path.read_text(encoding="utf-8"))


def list_uncounted(tree: ast.Module) -> Iterator[str]:
    """What stands before a plural without a helper: in f-strings, and in templates that `str.format` fills."""
    pieces = {id(piece) for text in ast.walk(tree) if isinstance(text, ast.JoinedStr) for piece in text.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            for value, behind in zip(node.values, node.values[1:], strict=False):
                if isinstance(value, ast.FormattedValue) and value.format_spec is None and isinstance(behind, ast.Constant):
                    counted, words = ast.unparse(value.value), str(behind.value)
                    if _BEHIND.match(words) and _IS_COUNT.match(counted) and not _IS_NO_COUNT.match(counted):
                        yield f"{node.lineno}: {{{counted}}}{words[:40]}"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in pieces:
            yield from (f"{node.lineno}: {match[0]}" for match in _IN_TEMPLATE.finditer(node.value))


def test_no_sentence_of_the_package_counts_one_thing_as_several() -> None:
    assert [f"{name}:{place}" for name, tree in _read_trees() for place in list_uncounted(tree)] == []


@pytest.mark.parametrize(
    ("line", "is_found"),
    [
        ('f"{len(rows)} records behind"', True),
        ('f"{len(rows)} acknowledged offsets were lost"', True),
        ('f"{lag} records behind"', True),
        ('f"{len(rows)} are read again"', True),
        ('f"{not_shown} more are in the file"', True),
        ("f\"{run['count']} restarts\"", True),
        ('"{} records were lost"', True),
        ("f\"{count_of(len(rows), 'record')} behind\"", False),
        ('"{:record was|records were} lost"', False),
        ('f"{_TRIES} times"', False),
        ('f"{name} starts brokers"', False),
        ('f"{len(rows)} behind"', False),
    ],
)
def test_the_scan_finds_a_number_before_a_plural(line: str, is_found: bool) -> None:
    assert bool(list(list_uncounted(ast.parse(line)))) is is_found


TEMPLATES: Final = [
    *(text for texts in fingerprint._TEXTS.values() for text in texts.values()),
    *(shown.value[2] for shown in commit_tracks._Shown),
    *(text for _, text in commit_copies._FOUND.values()),
    *(text for _, text in verdict.VIOLATIONS.values()),
    *(kind.value for kind in equivalence.DifferenceKind),
]
_ONE_AS_MANY: Final = re.compile(r"\b1 (?:(?!that |they |which |before |whose )[^ :;.,]+,? )*(?:are|were|have|share|differ)\b")


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_is_right_for_one(template: str) -> None:
    one = template.format(Count(1), total=Count(1), partitions=Count(1), count=Count(1))
    assert not _ONE_AS_MANY.search(one), one


def test_one_is_singular_and_every_other_number_plural() -> None:
    assert [count_of(number, "record") for number in (0, 1, 2, 1200)] == ["0 records", "1 record", "2 records", "1200 records"]
    assert [count_of(number, "group moves", "groups move") for number in (1, 2)] == ["1 group moves", "2 groups move"]
    template = "{:copy is|copies are} left of {:record}"
    assert template.format(Count(1), Count(3)) == "1 copy is left of 3 records"
    assert (f"{Count(1234)}", f"{Count(1200):record}") == ("1,234", "1,200 records")
