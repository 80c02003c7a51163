"""The findings to be read: a document of one form, and a page that is whole, asks for nothing and shows what blocks first."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest

from airflow_provider_kmigrate.commands.preflight import _format_text
from airflow_provider_kmigrate.core.preflight.made import ROWS
from airflow_provider_kmigrate.core.shared.text import defuse_markup, prose_to_html
from airflow_provider_kmigrate.preflight.page import as_document, group_by_owner, render_page, write_report
from tests.pages.browser import Browser, browser
from tests.pages.rules import check_loads_alone, check_readable, check_whole
from tests.preflight.cases import HOSTILE, PAGES

SCHEMA = json.loads((Path(__file__).parents[2] / "airflow_provider_kmigrate" / "preflight.schema.json").read_text())
OUTCOMES = {"broken": "BLOCKED", "open": "OPEN QUESTIONS", "good": "READY"}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("preflights")
    return {name: write_report(make(), folder / name) for name, make in PAGES.items()}


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("chromium")) as found:
        yield found


@pytest.mark.parametrize("name", PAGES)
def test_the_document_is_as_its_schema_says(name: str) -> None:
    facts = as_document(PAGES[name]())
    validator = jsonschema.validators.validator_for(SCHEMA)
    validator.check_schema(SCHEMA)
    assert list(validator(SCHEMA).iter_errors(json.loads(json.dumps(facts)))) == []
    assert facts["outcome"] == OUTCOMES[name]
    assert sum(facts["counts"].values()) == len(facts["findings"])


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_whole_and_asks_for_nothing(name: str) -> None:
    page = render_page(as_document(PAGES[name]()))
    check_whole(page, links={"preflight.json"})
    assert 'href="preflight.json"' in page


def test_commands_of_the_runbook_are_code_and_hostile_text_is_text() -> None:
    assert prose_to_html("Run `a <b> --c`, `then` wait.") == "Run <code>a &lt;b&gt; --c</code>, <code>then</code> wait."
    assert prose_to_html('one `alone, "<script>') == "one `alone, &quot;&lt;script&gt;"


def test_every_finding_is_on_the_page_with_all_its_parts(tmp_path: Path) -> None:
    result = PAGES["broken"]()
    page, kept = write_report(result, tmp_path).read_text(), json.loads((tmp_path / "preflight.json").read_text())
    assert page.count('<article class="finding">') == len(result.found) == len(kept["findings"])
    assert all(f"<code>{finding.code}</code>" in page for finding in result.found)
    assert HOSTILE not in page
    assert (tmp_path / "preflight.html").stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["preflight.html", "preflight.json"]


@pytest.mark.parametrize("name", PAGES)
def test_every_check_is_listed_with_what_it_saw_and_found(name: str) -> None:
    result = PAGES[name]()
    document = as_document(result)
    assert len(document["checks"]) == len(ROWS)
    assert all(check["saw"].strip() and check["about"].strip() for check in document["checks"])
    assert {code for check in document["checks"] for code in check["codes"]} == {finding.code for finding in result.found}
    page = render_page(document)
    assert ("<details open>" in page) == (document["outcome"] == "READY")
    assert page.count("<th scope=row>") == len(ROWS)


def test_a_ready_cluster_has_no_check_that_read_nothing() -> None:
    saw = {check["about"]: check["saw"] for check in as_document(PAGES["good"]())["checks"]}
    assert {about: text for about, text in saw.items() if "not read" in text or "did not answer" in text} == {}
    assert saw["ISRs and leaders"].startswith(f"{len(PAGES['good']().view.partitions or ())} partition")


def test_findings_stand_together_by_who_can_act_on_them_and_by_cause() -> None:
    document = as_document(PAGES["broken"]())
    for severity in ("block", "not known", "warn"):
        grouped = group_by_owner(finding for finding in document["findings"] if finding["severity"] == severity)
        for owned in grouped.values():
            codes = [finding["code"] for finding in owned]
            assert codes == [code for code in dict.fromkeys(codes) for _ in range(codes.count(code))]
    page = render_page(document)
    assert "For Kafka&#x27;s administrators" in page or "For Kafka's administrators" in page


def test_the_text_of_a_ready_cluster_lists_the_checks_and_that_of_another_one_its_findings() -> None:
    ready, broken = (_format_text(PAGES[name]()) for name in ("good", "broken"))
    assert ready.count("\nChecked ") == len(ROWS) - 1
    assert "\nFor " not in ready
    assert ready.splitlines()[-1].startswith("READY: ")
    assert "Checked " not in broken
    assert all(str(finding) in broken for finding in PAGES["broken"]().found)
    assert broken.count("For Kafka's administrators:") == 1


@pytest.mark.slow
class TestInTheBrowser:
    @pytest.mark.parametrize("name", PAGES)
    @pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (360, "light"), (360, "dark")])
    def test_the_preflight_page_loads_alone_fits_the_window_and_can_be_read(
        self, tab: Browser, pages: dict[str, Path], name: str, width: int, scheme: str
    ) -> None:
        check_loads_alone(tab, pages[name], width, scheme)
        check_readable(tab)

    def test_figures_stand_on_top_and_what_blocks_comes_first(self, tab: Browser, pages: dict[str, Path]) -> None:
        tab.load(pages["broken"])
        sections = tab.value("[...document.querySelectorAll('section')].map(section => section.id)")
        assert sections == ["counts", "block", "not-known", "warn", "unread", "checks", "about"]
        assert tab.value("document.querySelector('.outcome').innerText.trim().endsWith('BLOCKED')")
        message = tab.value("document.querySelector('#block').innerText")
        assert defuse_markup('<script>alert("x")</script>') in message

    def test_a_good_cluster_has_no_empty_parts(self, tab: Browser, pages: dict[str, Path]) -> None:
        tab.load(pages["good"])
        assert tab.value("[...document.querySelectorAll('section')].map(section => section.id)") == ["counts", "checks", "about"]
