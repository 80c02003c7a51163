"""The runbook is whole: every code that the package can give has one entry, and no entry outlives its code."""

import ast
import importlib
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

import pytest

from airflow_provider_kmigrate import runbook
from airflow_provider_kmigrate.core.findings.group_rules import GROUP_RULES
from airflow_provider_kmigrate.core.findings.rules import RULES
from airflow_provider_kmigrate.core.model import Reason

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "airflow_provider_kmigrate"
TEXT = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")

CODE = re.compile(r"[A-Z]\d{1,2}[a-z]?")
ENTRY = re.compile(rf"^### ({CODE.pattern}) \S.*$", re.MULTILINE)
PARTS = ("**Means.**", "**Safe meanwhile.**", "**Do.**", "**Never.**")
REFUSALS = {"Refused", "SpecError", "WrongCluster", "Fenced", "Forbidden"}

#: Codes that more than one module gives, and the one thing that they mean wherever they are given.
SHARED = {
    "F04": "a value that the cluster file may not have",
    "G00": "something that a condition needs was not read",
    "G04": "a controller's directory that is not empty, although no migration is under way",
    "G05": "a controller without the migration flag",
    "G23": "a controller does not answer",
    "G28": "a broker that is stopped now has no controller that lets it go",
    "H04": "this process does not hold the cluster",
    "I01": "something belongs to another cluster",
    "P03": "ZooKeeper could not be read",
    "M01": "a controller's directory that is another node's, or not empty",
    "M02": "a node's machine cannot be told what to do: a command is missing",
    "P04": "/migration is malformed",
    "P05": "/controller is malformed; the way back gives it for /migration too, which is P04 elsewhere",
    "P07": "plain ZooKeeper brokers while KRaft owns the cluster",
    "R04": "a broker that not every other knows as alive",
    "S01": "another broker does not answer",
    "S02": "partitions are under-replicated",
    "S03": "too few in-sync replicas would be left",
}


@cache
def modules() -> dict[str, ast.Module]:
    """Path below the package -> its syntax tree."""
    return {str(path.relative_to(PACKAGE)): ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")}


def codes_in(tree: ast.Module, skipped: Collection[int] = ()) -> set[str]:
    """Every constant that has the form of a code, but for those with the ids in `skipped`."""
    constants = (each for each in ast.walk(tree) if isinstance(each, ast.Constant) and isinstance(each.value, str))
    return {each.value for each in constants if id(each) not in skipped and CODE.fullmatch(each.value)}


def looked_for(tree: ast.Module) -> set[int]:
    """Constants that only recognise a code: operands of comparisons, and the alarms that a step expects."""
    asking = (
        each
        for each in ast.walk(tree)
        if isinstance(each, ast.Compare)
        or (isinstance(each, ast.Assign) and any(isinstance(name, ast.Name) and name.id == "expected" for name in each.targets))
    )
    return {id(constant) for each in asking for constant in ast.walk(each) if isinstance(constant, ast.Constant)}


def given_in(tree: ast.Module) -> set[str]:
    """Every code that a module puts somewhere: into a `Reason`, a table, an enumeration, a helper's argument."""
    return codes_in(tree, looked_for(tree))


@cache
def given() -> dict[str, set[str]]:
    return {name: given_in(tree) for name, tree in modules().items()}


@cache
def every() -> set[str]:
    return set().union(*given().values())


def calls(tree: ast.Module, *names: str) -> Iterator[ast.Call]:
    return (
        each
        for each in ast.walk(tree)
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id in names
    )


def entries() -> dict[str, str]:
    """Code -> the text under its heading."""
    found = list(ENTRY.finditer(TEXT))
    ends = [re.search(r"^#{2,3} ", TEXT[match.end() :], re.MULTILINE) for match in found]
    return {
        match[1]: TEXT[match.end() : match.end() + end.start() if end else len(TEXT)]
        for match, end in zip(found, ends, strict=True)
    }


def letters(text: str, pattern: str) -> list[str]:
    return re.findall(pattern, text, re.MULTILINE)


def room(module: str) -> str:
    """Modules of one room speak with one voice; core's modules are rooms of their own, but for the ledger's."""
    first, _, rest = module.partition("/")
    return module if first == "core" and not rest.startswith("ledger/") else first


def test_every_code_has_one_entry_and_every_entry_a_code() -> None:
    written = Counter(ENTRY.findall(TEXT))
    assert {code for code, times in written.items() if times > 1} == set(), "written twice"
    assert every() - written.keys() == set(), "given by the package, but not in the runbook"
    assert written.keys() - every() == set(), "in the runbook, but given by nobody"


def test_every_entry_says_all_that_the_person_on_call_needs() -> None:
    lacking = {code: [part for part in PARTS if part not in text] for code, text in entries().items()}
    assert {code: parts for code, parts in lacking.items() if parts} == {}


def test_entries_stand_in_order_under_their_letter() -> None:
    written = re.findall(rf"^##(?:#)? ((?:{CODE.pattern})|[A-Z](?=: \S))", TEXT, re.MULTILINE)
    assert written == sorted(written, key=lambda code: (code[0], int(re.sub(r"\D", "", code) or -1), code))
    assert [letter for letter in written if len(letter) == 1] == sorted({code[0] for code in every()})


def test_the_letters_are_agreed() -> None:
    used = sorted({code[0] for code in every()})
    assert letters(TEXT, r"^\| \[([A-Z])\]\(") == used, "the table at the top of the runbook"
    assert letters(Reason.__doc__ or "", r"^ +([A-Z])   \S") == used, "the docstring of Reason"


def test_one_code_means_one_thing() -> None:
    rooms = defaultdict(set)
    for module, codes in given().items():
        for code in codes - RULES.keys() - GROUP_RULES.keys():  # whoever gives a code of these gives its one rule
            rooms[code].add(room(module))
    several = {code: sorted(places) for code, places in rooms.items() if len(places) > 1}
    assert {code: places for code, places in several.items() if code not in SHARED} == {}, "one of them needs another code"
    assert SHARED.keys() - several.keys() == set(), "not shared any more"


def test_codes_are_written_out() -> None:
    """A code that is put together at run time would escape this test."""
    computed = [
        f"{module}:{call.lineno}"
        for module, tree in modules().items()
        for call in calls(tree, "Reason", "Problem", "blocks", "warns", "unknown")
        for code in [*call.args[:1], *(keyword.value for keyword in call.keywords if keyword.arg == "code")]
        if isinstance(code, ast.JoinedStr | ast.BinOp)
    ]
    assert computed == []


def test_a_code_that_is_looked_for_can_be_given() -> None:
    for module, tree in modules().items():
        assert codes_in(tree) - every() == set(), module


def test_every_refusal_has_its_reasons() -> None:
    bare = [
        f"{module}:{call.lineno}"
        for module, tree in modules().items()
        for call in calls(tree, *REFUSALS)
        if len(call.args) + len(call.keywords) < 2
    ]
    assert bare == []


def test_what_the_runbook_refers_to_is_there() -> None:
    prose = re.sub(r"```.*?```", "", TEXT, flags=re.DOTALL)
    named = set(re.findall(r"\b[A-Z]\d{2}[a-z]?\b|\bB\d[a-z]\b", prose))
    assert named - every() == set(), "codes"
    heads = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
    assert set(re.findall(r"\]\(#([^)]+)\)", prose)) - anchors == set(), "links"


def test_its_commands_say_whom_they_ask() -> None:
    """Without a bootstrap address each of Kafka's tools ends with an error; those that never ask anybody, or must not be used, are left out."""
    spans = [*re.findall(r"`(kafka-[^`]+)`", TEXT), *re.findall(r"^ *(kafka-.+)$", TEXT, re.MULTILINE)]
    asking = [
        " ".join(span.split()) for span in spans if " --" in span and not span.startswith(("kafka-storage", "kafka-dump-log"))
    ]
    assert len(asking) > 30
    assert [each for each in asking if not re.search(r"--bootstrap-|--zookeeper$|--authorizer-properties", each)] == []


def test_an_entry_can_be_read_where_no_repository_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert runbook.main(["G05", "[P06]"]) == 0
    told = capsys.readouterr().out
    assert [told.count(f"### {code} ") for code in ("G05", "P06", "G06")] == [1, 1, 0]
    assert told.count("**Never.**") == 2
    assert "    runbook.md\n" in (ROOT / "setup.cfg").read_text(encoding="utf-8"), "what is installed has it too"


def test_a_code_may_be_typed_in_any_case(capsys: pytest.CaptureFixture[str]) -> None:
    assert runbook.main(["g05", "b9D"]) == 0
    told = capsys.readouterr().out
    assert [told.count(f"### {code} ") for code in ("G05", "B9d")] == [1, 1]


@pytest.mark.parametrize(
    ("code", "told"),
    [("G14", r"no entry G14\. Of G it has G00, .*G13, G20, .*"), ("nonsense", r"no entry nonsense\. A code is .*G05.*")],
)
def test_a_code_without_an_entry_says_which_there_are(code: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert runbook.main([code]) == 1
    assert re.search(told, capsys.readouterr().out)


def test_it_says_how_it_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        runbook.main(["--help"])
    assert end.value.code == 0
    assert "G05" in capsys.readouterr().out


@pytest.mark.parametrize("block", re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL))
def test_its_programs_use_what_is_there(block: str) -> None:
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.ImportFrom):
            found = importlib.import_module(node.module or "")
            assert [name.name for name in node.names if not hasattr(found, name.name)] == []
