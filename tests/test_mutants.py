"""docs/mutants.md explains changes of lines that are there: an entry of a line that was rewritten explains nothing, and its mutant counts again."""

import ast
import re
from itertools import chain

import pytest

from tests.trees import PACKAGE, ROOT

KNOWN = ROOT / "docs" / "mutants.md"  # tests.mutants reads it, with a library that only that lane installs

ENTRIES = re.findall(r"^\| `([^`]+)`: `(.+?)` becomes `.+?` \|", KNOWN.read_text(), re.MULTILINE)


@pytest.mark.parametrize(("path", "line"), ENTRIES)
def test_an_explained_change_is_of_a_line_of_its_file(path: str, line: str) -> None:
    lines = {text.strip() for text in (ROOT / PACKAGE / path).read_text().splitlines()}
    assert line in lines


def test_every_row_of_the_page_is_read() -> None:
    rows = [text for text in KNOWN.read_text().splitlines() if text.startswith("| `")]
    assert len(ENTRIES) == len(rows)


def test_every_file_that_the_lane_changes_is_there() -> None:
    """A file that was moved ended the lane, and no other lane has its library."""
    tree = ast.parse((ROOT / "tests" / "mutants.py").read_text())
    [patterns] = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "DECISIONS"
    ]
    parts = [re.fullmatch(r"([^{]*)(?:\{(.*)\})?(.*)", pattern) for pattern in patterns]
    named = chain.from_iterable([f"{part[1]}{name}{part[3]}" for name in (part[2] or "").split(",")] for part in parts if part)
    assert [name for name in named if not any((ROOT / PACKAGE).glob(name))] == []
