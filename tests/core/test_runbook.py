"""The registry of reasons is whole: every code that the package gives has one entry, and every entry is given; the runbook is made of it."""

import ast
import importlib
import re
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from airflow_provider_kmigrate import runbook
from airflow_provider_kmigrate.core.cluster_state.model import Cause, Reason
from airflow_provider_kmigrate.core.reasons import AREAS, CODE_OF, ENTRIES
from airflow_provider_kmigrate.core.reasons.entry import AuditCause

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "airflow_provider_kmigrate"
PREFLIGHT = ROOT / "airflow_provider_kmigrate" / "core" / "preflight"
TEXT = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")

CODE = re.compile(r"[A-Z]\d{1,2}[a-z]?")
REFUSALS = {"Refused", "SpecError", "WrongCluster", "Fenced", "Forbidden"}
REGISTRY = "core/reasons"
WORDS = 190  # of the longest entry; most have fewer than 120


@cache
def modules() -> dict[str, list[ast.AST]]:
    """Path below the package -> every node of its syntax tree; without the registry itself."""
    paths = (path for path in PACKAGE.rglob("*.py") if REGISTRY not in path.as_posix())
    return {str(path.relative_to(PACKAGE)): list(ast.walk(ast.parse(path.read_text(encoding="utf-8")))) for path in paths}


def codes_in(nodes: Iterable[ast.AST]) -> set[str]:
    """Every constant that has the form of a code."""
    constants = (each.value for each in nodes if isinstance(each, ast.Constant))
    return {value for value in constants if isinstance(value, str) and CODE.fullmatch(value)}


@cache
def every() -> set[str]:
    return set().union(*map(codes_in, modules().values()), {CODE_OF[cause] for cause in given_causes()})


def given_causes() -> set[AuditCause]:
    """Every finding of an audit that the package names."""
    return {
        AuditCause[each.attr]
        for nodes in modules().values()
        for each in nodes
        if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id == "AuditCause"
    }


def calls(nodes: Iterable[ast.AST], names: Collection[str]) -> Iterator[ast.Call]:
    return (each for each in nodes if isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id in names)


def reasons() -> Iterator[tuple[str, ast.Call]]:
    return ((f"{module}:{call.lineno}", call) for module, nodes in modules().items() for call in calls(nodes, {"Reason"}))


def test_every_code_has_one_entry_and_every_entry_a_code() -> None:
    assert every() - ENTRIES.keys() == set(), "given by the package, but not in the registry"
    assert ENTRIES.keys() - every() == set(), "in the registry, but never given"
    assert sorted({code[0] for code in ENTRIES}) == [area.letter for area in AREAS]


def test_every_finding_of_an_audit_has_one_code_and_is_given() -> None:
    listed = [cause for entry in ENTRIES.values() for cause in entry.causes]
    assert sorted(listed) == sorted(AuditCause)
    assert given_causes() == set(AuditCause)


def test_every_entry_says_what_an_operator_needs() -> None:
    empty = [
        code
        for code, entry in ENTRIES.items()
        if not (entry.title and entry.means and entry.meanwhile and entry.never and entry.do and all(entry.do))
    ]
    assert empty == []


def test_an_entry_is_read_in_a_minute() -> None:
    assert {entry.code: words for entry in ENTRIES.values() if (words := len(entry.markdown().split())) > WORDS} == {}


@pytest.mark.parametrize("code", ["R05", "S02", "G05", "G07", "P02"])
def test_it_is_said_what_good_looks_like_after_the_first_step(code: str) -> None:
    assert re.search(r"good\. |Good: |prints nothing", " ".join(ENTRIES[code].do[:2]))


def test_what_s02_says_of_several_brokers_is_an_act_in_its_order() -> None:
    *_, last = ENTRIES["S02"].do
    assert last.index("Stop one of them") < last.index("start it") < last.index("every ISR") < last.index("then the next")


def test_every_finding_that_is_not_known_says_how_to_find_out() -> None:
    calls = [
        node for path in PREFLIGHT.glob("*.py") for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)
    ]
    named = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "unknown"]
    codes = {str(argument.value) for call in named for argument in call.args[:1] if isinstance(argument, ast.Constant)}
    assert len(codes) > 10
    assert [code for code in sorted(codes) if not ENTRIES[code].ask] == []


def test_the_runbook_is_made_of_the_registry() -> None:
    assert runbook.render_runbook() == TEXT, "kmigrate runbook > docs/runbook.md"


def test_a_reason_has_its_words_from_the_registry() -> None:
    own = [
        place
        for place, call in reasons()
        if isinstance(call.args[0], ast.Constant)
        if len(call.args) > 2 or {word.arg for word in call.keywords} & {"why", "remedy"}
    ]
    assert own == []


def test_a_log_line_says_what_was_observed_what_to_do_and_what_it_means() -> None:
    line = str(Reason("G09", "Client-metrics subscriptions exist: a."))
    assert line.startswith("[G09] Client-metrics subscriptions exist: a. Next: ")
    assert "More: G09 in the runbook. Why it matters: At the next controller failover the dual-write" in line
    assert "Next: Nothing: it continues by itself." in str(Reason("T01", "Soaking."))
    assert "Next" not in str(Reason("G09", "The reason beside it says what to do.", remedy=""))


def test_a_reason_outlives_a_deferral() -> None:
    for reason in (
        Reason("G09", "seen"),
        Reason("V30", "seen", cause=Cause.GROUP_UNHEALTHY),
        Reason.of(AuditCause.LOST, "3 records"),
    ):
        assert Reason.from_row(reason.to_row()) == reason


def test_decisions_do_not_compare_codes() -> None:
    """A code is for people; what a decision must recognise is a `Cause`, or a value of its own."""
    found = [
        f"{module}:{each.lineno}"
        for module, nodes in modules().items()
        for each in nodes
        if isinstance(each, ast.Compare | ast.Set | ast.MatchValue) and (codes_in(ast.walk(each)) or of_reason(each))
    ]
    found += [
        f"{module}:{asked.lineno}"
        for module, nodes in modules().items()
        for each in nodes
        if isinstance(each, ast.If | ast.IfExp | ast.comprehension | ast.Match | ast.Subscript)
        for asked in questions(each)
        if of_reason(asked)
    ]
    assert found == []


def questions(node: ast.AST) -> list[ast.expr]:
    """What a branch depends on; the index of a subscript, which may be a table of decisions."""
    match node:
        case ast.If(test=test) | ast.IfExp(test=test):
            return [test]
        case ast.comprehension(ifs=ifs):
            return ifs
        case ast.Match(subject=subject):
            return [subject]
        case ast.Subscript(slice=index):
            return [index]
    return []


def of_reason(node: ast.AST) -> bool:
    """Whether `reason.code`, `finding.code` or the like is in it. `code` of an answer is an exit code or an error of Kafka's."""
    return any(
        isinstance(each, ast.Attribute)
        and each.attr == "code"
        and isinstance(each.value, ast.Name | ast.Attribute)
        and re.search("reason|finding|problem|ground", ast.unparse(each.value))
        for each in ast.walk(node)
    )


def test_codes_are_written_out() -> None:
    """A code that is put together at run time would escape these tests."""
    computed = [
        f"{module}:{call.lineno}"
        for module, nodes in modules().items()
        for call in calls(nodes, {"Reason", "Problem", "blocks", "warns", "unknown"})
        for code in [*call.args[:1], *(keyword.value for keyword in call.keywords if keyword.arg == "code")]
        if isinstance(code, ast.JoinedStr | ast.BinOp)
    ]
    assert computed == []


def test_every_refusal_has_its_reasons() -> None:
    bare = [
        f"{module}:{call.lineno}"
        for module, nodes in modules().items()
        for call in calls(nodes, REFUSALS)
        if len(call.args) + len(call.keywords) < 2
    ]
    assert bare == []


def test_what_the_runbook_refers_to_is_there() -> None:
    prose = re.sub(r"```.*?```", "", TEXT, flags=re.DOTALL)
    named = set(re.findall(r"\b[A-Z]\d{2}[a-z]?\b|\bB\d[a-z]\b", prose))
    assert named - ENTRIES.keys() == set(), "codes"
    heads = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
    anchors |= set(re.findall(r'<a id="([^"]+)">', prose))
    assert set(re.findall(r"\]\(#([^)]+)\)", prose)) - anchors == set(), "links"


@pytest.mark.parametrize("path", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda path: path.name)
def test_other_pages_link_to_entries_that_are_there(path: Path) -> None:
    heads = re.findall(r"^#+ (.+)$", TEXT, re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
    anchors |= set(re.findall(r'<a id="([^"]+)">', TEXT))
    assert set(re.findall(r"runbook\.md#([^)]+)\)", path.read_text(encoding="utf-8"))) - anchors == set()


def test_the_runbooks_commands_say_which_server_they_ask() -> None:
    """Without a bootstrap address each of Kafka's tools ends with an error; tools that ask no server, or must not be used, are left out."""
    spans = [*re.findall(r"`(kafka-[^`]+)`", TEXT), *re.findall(r"^ *(kafka-.+)$", TEXT, re.MULTILINE)]
    asking = [
        " ".join(span.split()) for span in spans if " --" in span and not span.startswith(("kafka-storage", "kafka-dump-log"))
    ]
    assert len(asking) > 30
    assert [each for each in asking if not re.search(r"--bootstrap-|--zookeeper$|--authorizer-properties", each)] == []


def test_an_entry_can_be_read_without_the_repository(capsys: pytest.CaptureFixture[str]) -> None:
    assert runbook.main(["G05", "[P06]"]) == 0
    shown = capsys.readouterr().out
    assert [shown.count(f"### {code} ") for code in ("G05", "P06", "G07")] == [1, 1, 0]
    assert shown.count("**Never.**") == 2
    assert "    runbook_guide.md\n" in (ROOT / "setup.cfg").read_text(encoding="utf-8"), "what is installed has it too"


def test_a_code_may_be_typed_in_any_case(capsys: pytest.CaptureFixture[str]) -> None:
    assert runbook.main(["g05", "b9D"]) == 0
    shown = capsys.readouterr().out
    assert [shown.count(f"### {code} ") for code in ("G05", "B9d")] == [1, 1]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("G14", r"no entry G14\. Of G it has G00, .*G13, G20, .*"),
        ("nonsense", r"no entry with nonsense\. A code is .*G05.*"),
        ("%7", "no entry with %7"),
    ],
)
def test_a_code_without_an_entry_says_which_there_are(code: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert runbook.main([code]) == 1
    assert re.search(said, capsys.readouterr().out)


@pytest.mark.parametrize("code", ["g5", "G5", "[g5]", "G005"])
def test_zeros_of_a_code_do_not_matter_and_a_terminal_gets_no_anchors(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert runbook.main([code]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("### G05 ")
    assert "<a id" not in shown
    assert "](#" not in shown


def test_entries_are_found_by_words_those_with_them_in_the_title_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert runbook.main(["Dual-Write", "stalled"]) == 0
    titles = capsys.readouterr().out.splitlines()
    assert len(titles) > 1
    assert all(re.match(r"[A-Z]\d+[a-z]? ", title) for title in titles)
    assert runbook.main(["dual-write"]) == 0
    assert "dual-write" in capsys.readouterr().out.splitlines()[0].lower()


def test_the_runbook_command_says_how_it_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        runbook.main(["--help"])
    assert end.value.code == 0
    assert "G05" in capsys.readouterr().out


@pytest.mark.parametrize("block", re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL))
def test_the_runbooks_programs_import_only_what_is_there(block: str) -> None:
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.ImportFrom):
            found = importlib.import_module(node.module or "")
            assert [name.name for name in node.names if not hasattr(found, name.name)] == []
