"""Which changes of a decision would no test notice? `make mutants SEED=1 COUNT=200`: a seeded sample of small changes, each tried alone.

Cosmic Ray makes the changes (a comparison turned, an `and` made an `or`, a number off by one, a word misspelt). The tests that import the
changed module run first, then the others of tests/core, then tests/steps; the first failure, or a run without end, kills the mutant.
Survivors are printed with their diff; those that docs/mutants.md explains do not count. Exit code 1 below 90 % killed.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from queue import Queue
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator
from parso.python.tree import Name, String

from tests.trees import PACKAGE, ROOT, fresh_tree

KNOWN = ROOT / "docs" / "mutants.md"
GOAL = 0.9
STAGE_S = 900.0  # seconds that one stage of tests may take, several times what they take; a mutant that makes them run longer is killed by time
DECISIONS = (
    "core/{migration,member,spark}/*.py",
    "core/offsets_topic/{expansion,offsets_repair}.py",
    "core/groups/{members,move,offsets,scan}.py",
    "core/node_files/config_matrix.py",
)
_TURNED = ("Eq_NotEq", "NotEq_Eq", "Lt_LtE", "Lt_GtE", "LtE_Lt", "LtE_Gt", "Gt_GtE", "Gt_LtE", "GtE_Gt", "GtE_Lt")
_TURNED += ("Is_IsNot", "IsNot_Is")
_CHANGED = ("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Mul", "Mod_Mul", "BitOr_BitAnd", "BitAnd_BitOr")
OPERATORS = (
    *(f"ReplaceComparisonOperator_{name}" for name in _TURNED),
    *(f"ReplaceBinaryOperator_{name}" for name in _CHANGED),
    *("ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr", "ReplaceOrWithAnd", "AddNot", "NumberReplacer"),
    *("ReplaceUnaryOperator_Delete_Not", "ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ZeroIterationForLoop"),
)


class MisspellWord(Operator):
    """A text without a space is a name or a value that something is compared with; what is only written for people stays."""

    FOR_PEOPLE = ("ZooKeeper", "Kafka")

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        if (
            isinstance(node, String)
            and re.fullmatch(r"""(["'])[^\s"']+\1""", node.value)
            and node.value[1:-1] not in self.FOR_PEOPLE
        ):
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        return String(f"{node.value[:-1]}X{node.value[-1]}", node.start_pos, node.prefix)

    @classmethod
    def examples(cls) -> tuple[()]:
        return ()


class TurnMembership(Operator):
    """`in` becomes `not in`, and the other way round; Cosmic Ray has no such change."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        if (
            node.type in {"comp_op", "keyword"}
            and node.get_code(include_prefix=False) in {"in", "not in"}
            and node.parent.type == "comparison"
        ):
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        turned = {"in": "not in", "not in": "in"}[node.get_code(include_prefix=False)]
        return Name(turned, node.start_pos, " ")

    @classmethod
    def examples(cls) -> tuple[()]:
        return ()


OWN = {operator.__name__: operator for operator in (MisspellWord, TurnMembership)}


@dataclass(frozen=True)
class Mutant:
    """One change of one file. `killed_by`: the stage of tests that noticed, and how; empty for a survivor."""

    path: str
    operator: str
    line: int
    before: str = field(repr=False)
    after: str = field(repr=False)
    killed_by: str = ""

    @property
    def changed(self) -> tuple[str, str]:
        """The first changed line, before and after, stripped."""
        pairs = zip(self.before.splitlines(), self.after.splitlines(), strict=False)
        return next((old.strip(), new.strip()) for old, new in pairs if old != new)

    @property
    def key(self) -> str:
        """As docs/mutants.md names it."""
        old, new = self.changed
        return f"`{self.path.removeprefix(f'{PACKAGE}/')}`: `{old}` becomes `{new}`"

    def diff(self) -> str:
        return "\n".join(
            difflib.unified_diff(self.before.splitlines(), self.after.splitlines(), self.path, self.path, "", "", 1, "")
        )


def decisions() -> list[Path]:
    """The files that decide."""
    patterns = [f"{head}{name}{tail}" for head, names, tail in map(_braces, DECISIONS) for name in names]
    found = {pattern: list((ROOT / PACKAGE).glob(pattern)) for pattern in patterns}
    assert all(found.values()), f"no file is {', '.join(pattern for pattern, paths in found.items() if not paths)}"
    return sorted({path for paths in found.values() for path in paths if path.name != "__init__.py"})


def _braces(pattern: str) -> tuple[str, list[str], str]:
    head, _, rest = pattern.partition("{")
    names, _, tail = rest.partition("}")
    return head, names.split(",") if rest else [""], tail


def sample(seed: int, count: int, only: str = "") -> list[Mutant]:
    """`count` mutants, drawn from all of the files whose path matches `only`."""
    files = [path for path in decisions() if re.search(only, str(path))]
    places = [place for path in files for place in _places(path)]
    random.Random(seed).shuffle(places)  # noqa: S311
    mutants = (_mutant(*place) for place in places)
    return [mutant for _, mutant in zip(range(count), filter(None, mutants), strict=False)]


def _operator(name: str) -> Operator:
    return OWN[name]() if name in OWN else get_operator(f"core/{name}")()


def _places(path: Path) -> Iterator[tuple[Path, str, int, int]]:
    """Each place that a change fits, by its number among those of its kind; none in the sentences that people read, nor in decorators or parameters' marks."""
    nodes = [(node, _kept(node)) for node in ast_nodes(get_ast(path.read_text()))]
    for name in (*OPERATORS, *OWN):
        operator = _operator(name)
        found = [(start[0], written) for node, written in nodes for start, _ in operator.mutation_positions(node)]
        yield from ((path, name, number, line) for number, (line, written) in enumerate(found) if not written)


def _kept(node: Any) -> bool:
    return node.search_ancestor("fstring", "decorator") is not None or getattr(node.parent, "type", "") == "parameters"


def _mutant(path: Path, name: str, occurrence: int, line: int) -> Mutant | None:
    """None for a change that means nothing: of an annotation, or one that is no Python."""
    before = path.read_text()
    after = mutate_code(before, _operator(name), occurrence)
    try:
        same = after is None or _meaning(before) == _meaning(after)
    except SyntaxError:
        return None
    return None if same else Mutant(str(path.relative_to(ROOT)), name, line, before, after)


def _meaning(text: str) -> str:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        for name in ("annotation", "returns"):
            if isinstance(getattr(node, name, None), ast.expr):
                setattr(node, name, ast.Constant(None))
    return ast.dump(tree)


@cache
def _imports(path: Path) -> frozenset[Path]:
    """The files of this repository that a file imports itself."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            base = ROOT / node.module.replace(".", "/")
            found |= {
                each for name in node.names for each in (base / f"{name.name}.py", base.with_suffix(".py")) if each.exists()
            }
    return frozenset(found)


def _reached(start: Path) -> set[Path]:
    found, left = set(), [start]
    while left:
        if (path := left.pop()) not in found:
            found.add(path)
            left += _imports(path)
    return found


def stages(path: Path) -> dict[str, list[str]]:
    """Which tests may notice a change of this file, the likeliest first."""
    core, steps = (sorted((ROOT / "tests" / room).glob("test_*.py")) for room in ("core", "steps"))
    likely = [test for test in core if path in _imports(test)]
    others = [test for test in core if test not in likely and path in _reached(test)]
    found = {"its own tests": likely, "tests/core": others, "tests/steps": [test for test in steps if path in _reached(test)]}
    return {name: [str(test.relative_to(ROOT)) for test in tests] for name, tests in found.items() if tests}


def tried(mutant: Mutant, tree: Path, stages_to_run: int) -> Mutant:
    """The mutant, tried in a copy of the repository; the copy is as it was afterwards."""
    place = tree / mutant.path
    stat = place.stat()
    place.write_text(mutant.after)
    os.utime(place, (stat.st_atime, stat.st_mtime + random.randrange(10**6, 10**8)))  # noqa: S311 - so that no compiled module is taken for it
    try:
        for name, tests in list(stages(ROOT / mutant.path).items())[:stages_to_run]:
            if failed := _failed(tree, tests):
                return replace(mutant, killed_by=f"{name}{failed}")
    finally:
        place.write_text(mutant.before)
        os.utime(place, (stat.st_atime, stat.st_mtime))
    return mutant


def _failed(tree: Path, tests: Sequence[str]) -> str:
    """Empty if they pass; else that a test failed, or that they did not end in time."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not slow and not long", *tests]
    settings = {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=tree, env=os.environ | settings, capture_output=True, check=False, timeout=STAGE_S)
    except subprocess.TimeoutExpired:
        return ", by time"
    return "" if done.returncode in {0, 5} else ", by a failure"  # 5: no test was left by the markers


def run(mutants: Sequence[Mutant], jobs: int, stages_to_run: int) -> list[Mutant]:
    """Try all, some beside each other, each in a copy of its own."""
    trees: Queue[Path] = Queue()
    for number in range(jobs):
        trees.put(fresh_tree(f"mutants/{number}"))

    def one(mutant: Mutant) -> Mutant:
        tree = trees.get()
        try:
            done = tried(mutant, tree, stages_to_run)
        finally:
            trees.put(tree)
        print(
            f"{done.path}:{done.line} {done.operator}: {f'killed by {done.killed_by}' if done.killed_by else 'SURVIVED'}",
            flush=True,
        )
        return done

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(one, mutants))


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.mutants", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="a pattern that the paths of the files match")
    parser.add_argument("--stages", type=int, default=3, help="how many stages of tests: its own, tests/core, tests/steps")
    chosen = parser.parse_args()
    done = run(sample(chosen.seed, chosen.count, chosen.only), chosen.jobs, chosen.stages)
    known = KNOWN.read_text() if KNOWN.exists() else ""
    survivors = [mutant for mutant in done if not mutant.killed_by]
    unexplained = [mutant for mutant in survivors if mutant.key not in known]
    for mutant in unexplained:
        print(f"\n{mutant.path}:{mutant.line} {mutant.operator}\n{mutant.diff()}\n  {mutant.key}")
    killed = len(done) - len(survivors)
    share = killed / (killed + len(unexplained)) if killed + len(unexplained) else 1.0
    print(
        f"\nseed {chosen.seed}: {len(done)} mutants, {killed} killed, {len(survivors)} survived, of which {len(unexplained)} unexplained: {share:.1%}"
    )
    return 0 if share >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
