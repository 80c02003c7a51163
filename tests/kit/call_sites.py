"""Call sites drawn by a seed, for a reader who has seen no definition: does each line say what it does?

`python -m tests.kit.call_sites SEED [--count 30] [--answers]` prints statements of the package that call functions of its own, no function twice.
`--answers` adds what is needed to judge the reader: where the function is defined, and the first line of its docstring.
"""

from __future__ import annotations

import argparse
import ast
import random
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.trees import PACKAGE, ROOT

_LINES = 7  # of a statement that is shown
_WELL_KNOWN = {name for kind in (str, bytes, list, dict, set, Path) for name in dir(kind)} | {
    "replace"
}  # a reader knows them from Python


class CallSite(NamedTuple):
    """A statement that calls `function`. `statement`: its text."""

    path: str
    line: int
    function: str
    statement: str


def find_definitions() -> dict[str, list[str]]:
    """Each function of the package by its name: where it is defined, and the first line of its docstring."""
    found: dict[str, list[str]] = {}
    for path, tree, _ in _parsed():
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                and not node.name.startswith("__")
                and node.name not in _WELL_KNOWN
            ):
                first_line = (ast.get_docstring(node) or ast.unparse(node.args)).splitlines()[:1]
                found.setdefault(node.name, []).append(f"{path}:{node.lineno}: {''.join(first_line)}")
    return found


def find_call_sites(functions: set[str]) -> list[CallSite]:
    """All statements that call one of these functions, in the order of the files."""
    return [site for path, tree, text in _parsed() for site in _call_sites_of(path, tree, text, functions)]


def _call_sites_of(path: str, tree: ast.Module, text: str, functions: set[str]) -> Iterator[CallSite]:
    lines = text.splitlines()
    for node in ast.walk(tree):
        if not isinstance(node, ast.stmt) or hasattr(node, "body"):
            continue
        for call in (part for part in ast.walk(node) if isinstance(part, ast.Call)):
            name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            if name in functions and (node.end_lineno or 0) - node.lineno < _LINES:
                statement = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
                yield CallSite(path, node.lineno, name, statement)


def _parsed() -> Iterator[tuple[str, ast.Module, str]]:
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        text = path.read_text()
        yield str(path.relative_to(ROOT)), ast.parse(text), text


def draw(seed: int, count: int) -> list[CallSite]:
    """`count` call sites, each of another function."""
    generator, drawn = random.Random(seed), dict[str, CallSite]()  # noqa: S311
    sites = find_call_sites(set(find_definitions()))
    generator.shuffle(sites)
    for site in sites:
        if len(drawn) < count:
            drawn.setdefault(site.function, site)
    return list(drawn.values())


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tests.kit.call_sites", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("seed", type=int)
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--answers", action="store_true")
    options = parser.parse_args()
    definitions = find_definitions()
    for number, site in enumerate(draw(options.seed, options.count), 1):
        print(f"{number}. {site.path}:{site.line}, what does `{site.function}` do?")
        print(textwrap.indent(site.statement, "       "))
        if options.answers:
            print(textwrap.indent("\n".join(definitions[site.function]), "    -> "))
    return 0


if __name__ == "__main__":
    sys.exit(main())
