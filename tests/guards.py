"""Every guard has a removal test: `make guards` takes each out of a copy of the code, and its test must fail.

The guards are found in the code itself:

* a function of core/ or steps/ that answers with a `Gate`, with reasons, or with a decision or None; without it: met, no reason, None;
* `if ...: raise ...` anywhere in the package, the node's agent included; without it: the condition never holds;
* a call for its refusal alone, such as `refuse_strangers(...)` or `fence.check()`; without it: no call.

`tests/guards.json` names for each the test that fails without it. Where two guards stop the same thing, so that a test fails only with both
out, it names the other one too. A guard that no quick test notices has the reason; their number is bounded, and only shrinks.

`python -m tests.guards find tests/core` seeks a test for each guard that has none yet: it runs these tests once, notes which guards had something
to say in which test, then takes each out and runs those tests, the quickest first. Without tests it only adds rows of new guards, and drops those
of guards that are gone. `check` tries the register.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from tests.trees import PACKAGE, ROOT, fresh_tree

REGISTER = ROOT / "tests" / "guards.json"
AGENT, PIN = Path("node") / "kmigrate-node", Path("node") / "pin.py"
DECIDING = ("core", "steps")
GATES = {"Gate", "gates.Gate"}
REASONS = {"tuple[Reason, ...]", "list[Reason]"}
YIELDED = {"Iterator[Reason]"}
DECISIONS = {"Act", "Decision", "Done", "Reason", "Refuse", "Wait", "tuple[Reason, ...]"}
REFUSING = re.compile(r"_?(add_problem|check|demand|forbid|must_be|refuse|require)(?![a-z])")
CODE = re.compile(r"[A-Z]\d\d")
WORD = re.compile(r"[a-z_]{3,}")
NOTING = {"refuse()", "_refuse()", "add_problem()", "_check_limits()", "_check_login()", "_check_names()", "_check_numbers()"}
NOTING |= {"_check_client_credentials()", "_check_kerberos()", "_check_oauth()", "_check_protocol()", "_check_usable()"}
NOTING |= {"_refuse_pending_calls()", "_require_properties()"}
"""Calls that have something to say whenever they are reached: they always refuse, or only note what they find."""
NEVER_REACHED = "no recorded test reaches it"
FOUND_REASON = re.compile(r"no recorded test reaches it|of \d+ recorded tests that reach it \d+ were tried, and none notices")


class Kind(StrEnum):
    """What a guard is; the value of a function is what it answers when it is out."""

    GATE = "gate"
    REASONS = "reasons"
    YIELDED = "yielded"
    NONE = "none"
    RAISE = "raise"
    CALL = "call"


@dataclass(frozen=True)
class Guard:
    """`name`: its function, with the classes around it. `says`: the codes of its reasons, or its error. `place`: of its node in `path`."""

    path: Path
    name: str
    says: str
    kind: Kind
    place: tuple[int, int]
    ordinal: int = 1
    stem: str = ""

    @property
    def key(self) -> str:
        """What says which guard it is, wherever its file goes: codes, function, and a number if the function has several such."""
        number = f" {self.ordinal}" if self.ordinal > 1 else ""
        return f"{self.says} in {f'{self.stem}.' if self.stem else ''}{self.name}{number}"


def guards(package: Path = ROOT / PACKAGE) -> list[Guard]:
    """All guards, each with a key of its own."""
    files = [*sorted(path.relative_to(package) for path in package.rglob("*.py")), AGENT]
    found = [guard for path in files for guard in _numbered(_Finder.of(path, (package / path).read_text()))]
    files_of = Counter((says, name) for says, name, _ in {(each.says, each.name, each.path) for each in found})
    return [replace(each, stem=each.path.stem) if files_of[each.says, each.name] > 1 else each for each in found]


def _numbered(found: Iterable[Guard]) -> Iterator[Guard]:
    seen = Counter[tuple[str, str]]()
    for each in found:
        seen[each.says, each.name] += 1
        yield replace(each, ordinal=seen[each.says, each.name])


class _Finder(ast.NodeVisitor):
    """The guards of one file, in order."""

    def __init__(self, path: Path) -> None:
        self.path, self.around, self.found = path, list[str](), list[Guard]()

    @classmethod
    def of(cls, path: Path, text: str) -> list[Guard]:
        finder = cls(path)
        finder.visit(ast.parse(text))
        return finder.found

    def _note(self, kind: Kind, says: str, node: ast.stmt) -> None:
        self.found.append(Guard(self.path, ".".join(self.around) or self.path.stem, says, kind, (node.lineno, node.col_offset)))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.around.append(node.name)
        if (kind := self._answers(node)) is not None:
            self._note(kind, _codes(node) or kind, node)
        self.generic_visit(node)
        self.around.pop()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.around.append(node.name)
        self.generic_visit(node)
        self.around.pop()

    def visit_If(self, node: ast.If) -> None:
        if isinstance(last := node.body[-1], ast.Raise) and last.exc is not None:
            self._note(Kind.RAISE, _codes(last) or _error(last.exc), node)
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call) and REFUSING.match(called := _called(node.value)):
            self._note(Kind.CALL, f"{called}()", node)

    def _answers(self, node: ast.FunctionDef) -> Kind | None:
        if self.path.parts[0] not in DECIDING or node.returns is None:
            return None
        answer = ast.unparse(node.returns)
        parts = set(answer.split(" | "))
        if "None" in parts and len(parts) > 1 and parts <= {*DECISIONS, "None"}:
            return Kind.NONE
        return next(
            (kind for kind, names in ((Kind.GATE, GATES), (Kind.REASONS, REASONS), (Kind.YIELDED, YIELDED)) if answer in names),
            None,
        )


def _codes(node: ast.AST) -> str:
    texts = (each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str))
    return "/".join(sorted({text for text in texts if CODE.fullmatch(text)}))


def _called(node: ast.AST) -> str:
    """The last name of what is called."""
    target = node.func if isinstance(node, ast.Call) else node
    return target.attr if isinstance(target, ast.Attribute) else target.id if isinstance(target, ast.Name) else "call"


def _error(node: ast.expr) -> str:
    """The error's class, and the agent's word for programs."""
    first = node.args[0] if isinstance(node, ast.Call) and node.args else None
    word = first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""
    whole = node.func.value if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else node  # X.because(...)
    return f"{_called(whole)} {word}" if WORD.fullmatch(word) else _called(whole)


# A copy in which each guard can be taken out, and notes whether it had something to say


RUNTIME = '''
import contextlib, functools, sys
OUT = frozenset(open({state!r} + "/out").read().splitlines())
fired = set()


def fire(key):
    if key not in fired:
        fired.add(key)
        with contextlib.suppress(OSError), open({state!r} + "/fired", "a") as file:
            file.write(key + "\\n")


def kept(key):
    """Of a raise whose condition holds."""
    if key in OUT:
        return False
    fire(key)
    return True


def stays(key):
    return key not in OUT


@contextlib.contextmanager
def call(key):
    try:
        yield
    except BaseException:
        fire(key)
        raise


def _permissive(kind):
    if kind == "gate":
        return sys.modules["{package}.core.gates"].MET
    return {{"reasons": (), "yielded": iter(()), "none": None}}[kind]


def guard(key, kind):
    def around(function):
        @functools.wraps(function)
        def answer(*args, **named):
            if key in OUT:
                return _permissive(kind)
            found = function(*args, **named)
            if kind == "yielded":
                return noted(found)
            if found is not None and (found.reasons if kind == "gate" else found if kind == "reasons" else True):
                fire(key)
            return found

        def noted(found):
            for each in found:
                fire(key)
                yield each

        return answer

    return around
'''
NAME = "_removal_"


class _Switches(ast.NodeTransformer):
    """Puts a switch into each guard."""

    def __init__(self, found: Iterable[Guard]) -> None:
        self.at = {(guard.place, guard.kind in {Kind.RAISE, Kind.CALL}): guard for guard in found}

    def _of(self, node: ast.stmt) -> Guard | None:
        return self.at.get(((node.lineno, node.col_offset), not isinstance(node, ast.FunctionDef)))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        guard = self._of(node)
        self.generic_visit(node)
        if guard is not None:
            own = sum(
                _called(each) in {"property", "staticmethod", "classmethod", "cached_property"} for each in node.decorator_list
            )
            node.decorator_list.insert(own, _expression(f"{NAME}.guard({guard.key!r}, {str(guard.kind)!r})"))
        return node

    def visit_If(self, node: ast.If) -> ast.If:
        guard = self._of(node)
        self.generic_visit(node)
        if guard is not None:
            node.test = ast.BoolOp(ast.And(), [node.test, _expression(f"{NAME}.kept({guard.key!r})")])
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        guard = self._of(node)
        if guard is None:
            self.generic_visit(node)
            return node
        if guard.says in NOTING:
            return ast.If(_expression(f"{NAME}.kept({guard.key!r})"), [node], [])
        watched = ast.With([ast.withitem(_expression(f"{NAME}.call({guard.key!r})"))], [node])
        return ast.If(_expression(f"{NAME}.stays({guard.key!r})"), [watched], [])


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def switched(text: str, found: Sequence[Guard], begin: str) -> str:
    """The file with a switch in each of its guards; `begin`: the line that gets the switches."""
    tree = _Switches(found).visit(deepcopy(ast.parse(text)))
    first = next(
        number
        for number, node in enumerate(tree.body)
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        and not (isinstance(node, ast.ImportFrom) and node.module == "__future__")
    )
    tree.body[first:first] = ast.parse(begin).body
    head = f"{text.splitlines()[0]}\n" if text.startswith("#!") else ""
    return f"{head}{ast.unparse(ast.fix_missing_locations(tree))}\n"


def build(name: str, state: Path) -> Path:
    """A copy of the repository with switches; `state`: a folder with the file `out`, the keys that are out, and `fired`."""
    tree = fresh_tree(name)
    for file in ("out", "fired"):
        (state / file).touch()
        (state / file).chmod(0o666)
    runtime = tree / PACKAGE / f"{NAME}.py"
    runtime.write_text(RUNTIME.format(state=str(state), package=PACKAGE))
    by_path: dict[Path, list[Guard]] = {}
    for guard in guards(tree / PACKAGE):
        by_path.setdefault(guard.path, []).append(guard)
    for path, found in by_path.items():
        begin = f"import {PACKAGE}.{NAME} as {NAME}"
        if path in {AGENT, PIN}:  # it runs without the package, and with the Python of the machine
            begin = f"{NAME} = __import__('types').SimpleNamespace()\nexec(open({str(runtime)!r}).read(), {NAME}.__dict__)"
        file = tree / PACKAGE / path
        file.write_text(switched(file.read_text(), found, begin))
    return tree


# The register


@dataclass(frozen=True)
class Row:
    """`test` fails without the guard; with `twice`, the key of another guard, only if that one is out too. `none`: why there is no test."""

    test: str = ""
    twice: str = ""
    none: str = ""

    def as_json(self) -> dict[str, str]:
        return {name: value for name in ("test", "twice", "none") if (value := getattr(self, name))}


@dataclass(frozen=True)
class Register:
    """`most_without`: how many guards may have no test; lower it whenever that is possible."""

    most_without: int
    rows: Mapping[str, Row]

    @classmethod
    def read(cls, path: Path = REGISTER) -> Register:
        if not path.exists():
            return cls(10_000, {})
        said = json.loads(path.read_text())
        return cls(said["most_without"], {key: Row(**row) for key, row in said["guards"].items()})

    def write(self, path: Path = REGISTER) -> None:
        """One line for each guard, in order."""
        rows = ",\n".join(f"  {json.dumps(key)}: {json.dumps(row.as_json())}" for key, row in sorted(self.rows.items()))
        path.write_text(f'{{"most_without": {self.most_without}, "guards": {{\n{rows}\n}}}}\n')


def count(register: Register) -> str:
    """The numbers of a register, in words."""
    without, twice = (sum(bool(getattr(row, name)) for row in register.rows.values()) for name in ("none", "twice"))
    tested = len(register.rows) - without - twice
    return f"{len(register.rows)} guards: {tested} with a removal test, {twice} guarded twice, {without} without a test"


# The runs


_KEPT = 'for d in /boot /etc /opt /usr /var; do mount --bind $d $d && mount -o remount,bind,ro $d || exit 9; done; exec "$@"'
HARMLESS = () if os.geteuid() else ("unshare", "--mount", "sh", "-c", _KEPT, "sh")
"""Root's tests ask the agent to write where it must not; without the guard it would. So they see the machine's own folders read-only."""


AUDIT = "tests/audit"
SPARK = ROOT / ".venv-spark" / "bin" / "python"
"""Spark's own environment; the tests of the audit need it, and no others."""


def environments(tests: Sequence[str]) -> Iterator[tuple[Path, list[str]]]:
    """The tests by the Python that runs them; none for an environment without any, or that is not installed."""
    audit = [test for test in tests if test.startswith(AUDIT)]
    others = [test for test in tests if not test.startswith(AUDIT)]
    yield from (
        (python, found) for python, found in ((Path(sys.executable), others), (SPARK, audit)) if found and python.exists()
    )


def run_tests(work: Path, order: Mapping[str, Any], tests: Sequence[str], marks: str, python: Path) -> int:
    """Run pytest in a switched copy, with `tests.guard_trials` as its conductor; returns its exit code."""
    state = work / "state"
    (state / "order.json").write_text(json.dumps(order))
    tree = build(f"guards/{order['mode']}", state)
    command = [str(python), "-m", "pytest", "-q", "-p", "tests.guard_trials", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command += [
        "-p",
        "no:rerunfailures",
        "--timeout",
        "0",
        "--basetemp",
        str(work / "tmp"),
        "-m",
        marks,
        *(() if python == SPARK else ("--ignore", AUDIT)),
    ]
    settings = {"PYTHONPATH": str(tree), "PYTHONHASHSEED": "0", "KMIGRATE_GUARDS": str(state)}
    if python == SPARK:
        settings["PYSPARK_PYTHON"] = str(SPARK)
    return subprocess.run([*HARMLESS, *command, *tests], cwd=tree, env=os.environ | settings, check=False).returncode


def find(tests: Sequence[str], work: Path, marks: str, seen: Path, *, again: bool) -> Register:
    """A row for each guard; those that have a test keep it. What an interrupted run has found counts."""
    found = seen.with_name("found.jsonl")
    register = _with_found(Register.read(), found)
    if not tests:
        return register
    if not again:
        seen.unlink(missing_ok=True)
    for python, chosen in environments(tests):
        run_tests(work, {"mode": "record", "to": str(seen)}, chosen, marks, python)
    for python, files in environments(sorted({test.partition("::")[0] for test in _reached(seen, _untested(register))})):
        order = {"mode": "find", "guards": _untested(register), "seen": str(seen), "to": str(found)}
        run_tests(work, order, files, marks, python)
        register = _with_found(register, found)
    return register


def _untested(register: Register) -> list[str]:
    """The guards without a test."""
    return [key for key, row in register.rows.items() if not row.test]


def _with_found(register: Register, found: Path) -> Register:
    """The register with a row for each guard of the code, and none else; a reason that somebody wrote stays."""
    rows = {guard.key: register.rows.get(guard.key, Row(none=NEVER_REACHED)) for guard in guards()}
    for key, row in _read_lines(found).items():
        if key in rows and (row.get("test") or FOUND_REASON.fullmatch(rows[key].none)):
            rows[key] = Row(**row)
    found.unlink(missing_ok=True)
    return replace(register, rows=rows)


def _reached(seen: Path, keys: Iterable[str]) -> Iterator[str]:
    wanted = set(keys)
    return (line["test"] for line in map(json.loads, seen.read_text().splitlines()) if wanted & set(line["fired"]))


def _read_lines(path: Path) -> dict[str, dict[str, str]]:
    lines = path.read_text().splitlines() if path.exists() else []
    return {key: row for line in lines for key, row in json.loads(line).items()}


def check(work: Path, marks: str, done: Path) -> list[str]:
    """Try each row; returns the keys of those whose test does not fail without the guard."""
    rows = {key: row for key, row in Register.read().rows.items() if row.test}
    tried = {key: row for key, row in _read_lines(done).items() if key in rows and row.get("row") == rows[key].as_json()}
    left = {key: row.as_json() for key, row in rows.items() if key not in tried}
    for python, files in environments(sorted({row["test"].partition("::")[0] for row in left.values()})):
        asked = {key: row for key, row in left.items() if row["test"].partition("::")[0] in files}
        run_tests(work, {"mode": "check", "guards": asked, "to": str(done)}, files, marks, python)
    tried = _read_lines(done)
    return sorted(key for key in rows if not tried.get(key, {}).get("fails"))


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tests.guards", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("find", "check"))
    parser.add_argument("tests", nargs="*", help="find: the files or folders of tests to seek in")
    parser.add_argument("--again", action="store_true", help="find: tests that were recorded before are not run once more")
    parser.add_argument("--fresh", action="store_true", help="check: all rows, not only those that an interrupted run has left")
    parser.add_argument(
        "--marks", default="not cluster and not slow and not long and not machines", help="which tests, as pytest's -m"
    )
    chosen = parser.parse_intermixed_args()
    folder = ROOT / "build" / "guards"
    folder.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="kmigrate-guards-"))
    try:
        (work / "state").mkdir()
        work.chmod(0o755)
        if chosen.what == "find":
            register = find(chosen.tests, work, chosen.marks, folder / "seen.jsonl", again=chosen.again)
            without = sum(bool(row.none) for row in register.rows.values())
            replace(register, most_without=min(register.most_without, without)).write()
            print(count(register))
            return 0
        if chosen.fresh:
            (folder / "checked.jsonl").unlink(missing_ok=True)
        wrong = check(work, chosen.marks, folder / "checked.jsonl")
        for key in wrong:
            print(f"UNNOTICED: without `{key}` its test passes, or does not exist: {Register.read().rows[key].test}")
        print(f"{count(Register.read())}; {len(wrong)} whose test does not fail without it")
        if not wrong:
            (folder / "checked.jsonl").unlink(missing_ok=True)
        return 1 if wrong else 0
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
