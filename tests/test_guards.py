"""The register of removal tests fits the code: no guard without a row, no row without a guard, and fewer and fewer without a test."""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.guards import FOUND_REASON, SPARK, Guard, Kind, Register, _Finder, environments, guards, switched

ROOT = Path(__file__).resolve().parent.parent
HOW = "run `python -m tests.guards find tests/…` with the test files of what was changed (docs/architecture.md#tests)"


@pytest.fixture(scope="module")
def register() -> Register:
    return Register.read()


def test_every_guard_has_a_row_and_every_row_a_guard(register: Register) -> None:
    found = {guard.key for guard in guards()}
    assert sorted(found - register.rows.keys()) == [], HOW
    assert sorted(register.rows.keys() - found) == [], HOW


def test_no_more_guards_are_without_a_test_than_before(register: Register) -> None:
    without = [key for key, row in register.rows.items() if row.none]
    assert len(without) <= register.most_without, f"Write a test for what is new of {without}; then {HOW}"
    assert len(without) == register.most_without, "fewer than before: lower `most_without`"


@cache
def functions(file: str) -> frozenset[str]:
    return frozenset(node.name for node in ast.walk(ast.parse((ROOT / file).read_text())) if isinstance(node, ast.FunctionDef))


def test_each_row_names_a_test_or_says_why_there_is_none(register: Register) -> None:
    for key, row in register.rows.items():
        assert bool(row.test) != bool(row.none), key
        assert not row.twice or (row.test and row.twice in register.rows), key
        assert not row.none or FOUND_REASON.fullmatch(row.none) or row.none.endswith("."), f"{key}: a whole sentence says why"
        file, _, name = row.test.partition("::")
        assert not row.test or name.rpartition("::")[2].partition("[")[0] in functions(file), f"{row.test} is gone: {HOW}"


SOURCE = '''"""A module."""

from __future__ import annotations


def may_stop(view) -> Gate:
    return not_yet(Reason("S02", "out of sync"))


def over(view) -> Decision | None:
    return Refuse(())


def reasons(view) -> tuple[Reason, ...]:
    return (Reason("P01", "x"),)


def label(view) -> str:
    if not view:
        text = "nothing"
        raise Refused.because(Reason("G05", text))
    elif view == 1:
        raise Refused("no view")
    if view == 2:
        return "two"
    return "more"


class Fence:
    def act(self):
        if not self.holds:
            raise Refusal("fenced", "a newer run")
        self.check()
        self.close()
'''


def test_what_counts_as_a_guard() -> None:
    found = _Finder.of(Path("core/example.py"), SOURCE)
    assert [(guard.key, guard.kind) for guard in found] == [
        ("S02 in may_stop", Kind.GATE),
        ("none in over", Kind.NONE),
        ("P01 in reasons", Kind.REASONS),
        ("G05 in label", Kind.RAISE),
        ("Refused in label", Kind.RAISE),
        ("Refusal fenced in Fence.act", Kind.RAISE),
        ("check() in Fence.act", Kind.CALL),
    ]
    assert [guard.kind for guard in _Finder.of(Path("clients/example.py"), SOURCE)] == [Kind.RAISE] * 3 + [Kind.CALL]


class Switch:
    """As the runtime of a switched copy."""

    def __init__(self, *out: str) -> None:
        self.out = out

    def guard(self, key: str, kind: str):
        return lambda function: (lambda *_: f"permissive {kind}") if key in self.out else function

    def kept(self, key: str) -> bool:
        return key not in self.out

    stays = kept

    def call(self, _key: str):
        return pytest.MonkeyPatch.context()


def test_a_switched_file_runs_as_before_and_without_a_guard_that_is_out() -> None:
    found: list[Guard] = _Finder.of(Path("core/example.py"), SOURCE)
    text = switched(SOURCE, found, "_removal_ = switch")
    assert text.startswith('"""A module."""\nfrom __future__ import annotations\n')

    class Refusal(Exception):
        pass

    def run(*out: str) -> list[object]:
        space = {"Refused": Refusal, "Refusal": Refusal, "Refuse": lambda _reasons: "refused", "switch": Switch(*out)}
        exec(text, space)  # noqa: S102
        fence = space["Fence"]()
        calls: list[str] = []
        fence.holds, fence.check, fence.close = False, lambda: calls.append("check"), lambda: calls.append("close")
        done: list[object] = [space["over"](1)]
        for act in (lambda: space["label"](1), fence.act):
            try:
                done.append(act())
            except Refusal as refusal:
                done.append(refusal.args[0])
        return [*done, *calls]

    assert run() == ["refused", "no view", "fenced"]
    assert run("none in over", "Refused in label") == ["permissive none", "more", "fenced"]
    assert run("Refusal fenced in Fence.act") == ["refused", "no view", None, "check", "close"]
    assert run("Refusal fenced in Fence.act", "check() in Fence.act") == ["refused", "no view", None, "close"]


def test_the_audits_tests_run_with_sparks_own_python(monkeypatch: pytest.MonkeyPatch) -> None:
    tests = ["tests/core/test_a.py", "tests/audit/test_b.py::test_x", "tests/audit"]
    monkeypatch.setattr(Path, "exists", lambda path: path != SPARK)
    assert list(environments(tests)) == [(Path(sys.executable), tests[:1])]
    monkeypatch.setattr(Path, "exists", lambda _: True)
    assert list(environments(tests)) == [(Path(sys.executable), tests[:1]), (SPARK, tests[1:])]
    assert list(environments(tests[1:])) == [(SPARK, tests[1:])]
