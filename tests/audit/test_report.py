"""The report's page in a real browser: it fetches nothing, complains of nothing, and everything that matters is on it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from airflow_provider_kmigrate.audit.report import render, write
from airflow_provider_kmigrate.audit.report.text import duration, moment, number, ranges, safe
from airflow_provider_kmigrate.core.verdict import outcome_of
from tests.audit import reports
from tests.audit.browser import Browser, browser

LIMIT = 2_000_000  # bytes at 1,000 partitions
PAGES = {"broken": reports.broken, "nothing": reports.nothing, "passing": reports.passing}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reports")
    return {name: reports.write_page(make(), folder / name) for name, make in PAGES.items()}


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("chromium")) as found:
        yield found


class Tags(HTMLParser):
    """Elements that are opened and closed, in order; text is kept whole."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.wrong: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in {"meta", "br"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


class TestText:
    @pytest.mark.parametrize(
        ("ms", "text"),
        [(0, "0 ms"), (999, "999 ms"), (1_300, "1.3 s"), (61_000, "1 min 1 s"), (60_000, "1 min"), (93_600_000, "1 d 2 h"), (3_599_999, "1 h")],
    )  # fmt: skip
    def test_durations(self, ms: float, text: str) -> None:
        assert duration(ms) == text

    def test_a_broken_clock_spoils_no_report(self) -> None:
        assert (moment(None), moment(-5), moment(1_795_298_448_978)) == ("", "00:00:00.000", "22:00:48.978")
        assert moment(10**18)

    def test_ranges(self) -> None:
        assert ranges([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8".replace("-", "\N{EN DASH}")
        assert ranges([0, 2, 4], most=2) == "0, 2, …"

    def test_numbers(self) -> None:
        assert (number(86_700), number(0.12345)) == ("86,700", "0.123")

    def test_nothing_from_outside_becomes_markup(self) -> None:
        text = safe(reports.HOSTILE)
        assert not set('<>"\x00') & set(text)


class TestPage:
    @pytest.mark.parametrize("name", PAGES)
    def test_it_is_whole_and_asks_for_nothing(self, name: str) -> None:
        tags = Tags(render(PAGES[name]()))
        assert (tags.wrong, tags.open) == ([], [])
        assert {tag for tag, _ in tags.seen} & {"script", "img", "iframe", "object", "link", "base", "form"} == set()
        links = [attrs.get("href") or "" for tag, attrs in tags.seen if "href" in attrs]
        assert set(links) <= {"report.json", "#guides"}
        assert not any(name.startswith("on") for _, attrs in tags.seen for name in attrs)

    def test_every_picture_has_a_name(self) -> None:
        pictures = [attrs for tag, attrs in Tags(render(reports.broken())).seen if attrs.get("role") == "img"]
        assert len(pictures) > 8
        assert all(attrs["aria-label"] for attrs in pictures)

    def test_a_thousand_partitions_fit(self, tmp_path: Path) -> None:
        page = reports.write_page(reports.largest(changes=60), tmp_path)
        assert page.stat().st_size < LIMIT

    def test_the_json_beside_it_has_the_same_verdict(self, pages: dict[str, Path]) -> None:
        for name, page in pages.items():
            document = json.loads(page.with_suffix(".json").read_text())
            assert outcome_of(document["verdict"]) is PAGES[name]().verdict.outcome

    def test_a_report_replaces_the_one_before_and_leaves_nothing_else(self, tmp_path: Path) -> None:
        write(reports.broken(), tmp_path)
        found = write(reports.passing(), tmp_path)
        assert "PASS" in found.html.read_text()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "report.json"]


class TestInTheBrowser:
    @pytest.mark.parametrize("name", PAGES)
    @pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (360, "dark")])
    def test_it_loads_alone_without_a_complaint_and_fits_the_window(
        self, tab: Browser, pages: dict[str, Path], name: str, width: int, scheme: str
    ) -> None:
        tab.requests.clear()
        tab.complaints.clear()
        tab.load(pages[name], width, scheme)
        assert tab.value("document.readyState") == "complete"
        assert tab.value("document.documentElement.scrollWidth") <= width
        assert tab.requests == [pages[name].absolute().as_uri()]
        assert tab.complaints == []

    def test_what_matters_is_there(self, tab: Browser, pages: dict[str, Path]) -> None:
        tab.load(pages["broken"])
        assert tab.value("document.querySelector('.outcome').innerText.trim().endsWith('FAIL')")
        sections = tab.value("[...document.querySelectorAll('section')].map(section => section.id)")
        assert sections == ["evidence", "findings", "canary", "run", "owners", "figures", "about"]
        says = tab.value("[...document.querySelectorAll('#evidence tbody td:nth-child(2)')].map(cell => cell.innerText.trim())")
        assert [text.split()[-1] for text in says] == ["PASS", "measured", "FAIL", "FAIL"]
        assert tab.value("document.querySelectorAll('#owners .double').length") >= 1
        assert tab.value("document.querySelector('#owners .double').getBoundingClientRect().width") >= 2
        assert tab.value("document.querySelectorAll('#canary .dot').length") >= 3

    def test_hostile_text_is_only_text(self, tab: Browser, pages: dict[str, Path]) -> None:
        tab.load(pages["broken"])
        assert tab.value("document.querySelectorAll('script, img, iframe').length") == 0
        assert tab.value("document.querySelector('#findings').innerText.includes('<script>alert(\"x\")</script>')")

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_words_stand_out_from_what_is_behind_them(self, tab: Browser, pages: dict[str, Path], scheme: str) -> None:
        """WCAG's contrast of at least 4.5 to 1 for every piece of text."""
        tab.load(pages["broken"], scheme=scheme)
        assert tab.value(_WEAK_TEXT) == []


_WEAK_TEXT = """
(() => {
  const numbers = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(c => c / 255).map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = node => { for (let at = node; at; at = at.parentElement) {
    const colour = numbers(getComputedStyle(at).backgroundColor); if (colour.length < 4 || colour[3] > 0) return colour; } return [255, 255, 255]; };
  return [...document.querySelectorAll('body *')].filter(node => [...node.childNodes].some(c => c.nodeType === 3 && c.data.trim()))
    .filter(node => !node.closest('svg, title')).map(node => {
      const [a, b] = [light(numbers(getComputedStyle(node).color)), light(behind(node))].sort((x, y) => y - x);
      return [(a + 0.05) / (b + 0.05), node.className + ' ' + node.innerText.slice(0, 30)]; })
    .filter(([ratio]) => ratio < 4.5).map(([ratio, text]) => ratio.toFixed(2) + ' ' + text);
})()
"""


def test_the_report_needs_neither_airflow_nor_spark() -> None:
    code = (
        "import sys; import airflow_provider_kmigrate.audit.report; "
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'airflow', 'pyspark', 'jinja2', 'numpy', 'pyarrow'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
