"""The report's page in a real browser: it fetches nothing, complains of nothing, and everything that matters is on it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_kmigrate.audit.report import render_page, write
from airflow_provider_kmigrate.core.audit.verdict import outcome_of
from airflow_provider_kmigrate.core.shared.text import escape_html, format_duration, format_number, format_time
from tests.audit import reports
from tests.pages.browser import Browser, browser
from tests.pages.rules import Tags, check_loads_alone, check_readable, check_whole

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


class TestText:
    @pytest.mark.parametrize(
        ("ms", "text"),
        [(0, "0 ms"), (999, "999 ms"), (1_300, "1.3 s"), (61_000, "1 min 1 s"), (60_000, "1 min"), (93_600_000, "1 d 2 h"), (3_599_999, "1 h"), (999.7, "1.0 s"), (59_990, "1 min")],
    )  # fmt: skip
    def test_durations(self, ms: float, text: str) -> None:
        assert format_duration(ms) == text

    def test_a_broken_clock_spoils_no_report(self) -> None:
        assert (format_time(None), format_time(-5), format_time(1_795_298_448_978)) == ("", "00:00:00.000", "22:00:48.978")
        assert format_time(10**18)

    def test_numbers(self) -> None:
        assert (format_number(86_700), format_number(0.12345)) == ("86,700", "0.123")

    def test_nothing_from_outside_becomes_markup(self) -> None:
        text = escape_html(reports.HOSTILE)
        assert not set('<>"\x00') & set(text)


class TestPage:
    @pytest.mark.parametrize("name", PAGES)
    def test_the_reports_page_is_whole_and_asks_for_nothing(self, name: str) -> None:
        check_whole(render_page(PAGES[name]()), links={"report.json", "#guides", "#restarts"})

    def test_every_picture_has_a_name(self) -> None:
        pictures = [attrs for tag, attrs in Tags(render_page(reports.broken())).seen if attrs.get("role") == "img"]
        assert len(pictures) == 9
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
        write(reports.passing(), tmp_path)
        assert "PASS" in (tmp_path / "report.html").read_text()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "report.json"]


class TestInTheBrowser:
    @pytest.mark.parametrize("name", PAGES)
    @pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (360, "dark")])
    def test_the_reports_page_loads_alone_without_a_complaint_and_fits_the_window(
        self, tab: Browser, pages: dict[str, Path], name: str, width: int, scheme: str
    ) -> None:
        check_loads_alone(tab, pages[name], width, scheme)

    def test_what_matters_is_there(self, tab: Browser, pages: dict[str, Path]) -> None:
        tab.load(pages["broken"])
        assert tab.value("document.querySelector('.outcome').innerText.trim().endsWith('FAIL')")
        sections = tab.value("[...document.querySelectorAll('section')].map(section => section.id)")
        assert sections == ["evidence", "findings", "canary", "run", "course", "owners", "offsets", "figures", "about"]
        says = tab.value("[...document.querySelectorAll('#evidence tbody td:nth-child(2)')].map(cell => cell.innerText.trim())")
        assert [text.split()[-1] for text in says] == ["PASS", "measured", "FAIL", "FAIL"]
        worst = tab.value("[...document.querySelectorAll('#owners tbody tr:first-child > *')].map(cell => cell.innerText.trim())")
        assert worst[:2] == ["billing", "t-2"]
        assert worst[2], "the time with two owners"
        assert tab.value("document.querySelectorAll('#canary tbody tr').length") == 1
        dots = tab.value("[...document.querySelectorAll('#offsets circle')].map(dot => dot.className.baseVal)")
        assert dots == ["home", "stray", "home", "stray"]

    def test_every_restart_is_marked_in_each_row_of_the_course(self, tab: Browser, pages: dict[str, Path]) -> None:
        tab.load(pages["broken"])
        assert tab.value("document.querySelectorAll('#restarts line').length") == 2
        assert tab.value("document.querySelectorAll('#course .row:not(.axis) use[href=\"#restarts\"]').length") == 2
        assert tab.value("document.querySelectorAll('#course rect.gap').length - 1") == 2, "two minutes with records that waited"
        assert tab.value("document.querySelectorAll('#course tbody tr').length") == 2

    def test_hostile_text_is_only_text(self, tab: Browser, pages: dict[str, Path]) -> None:
        tab.load(pages["broken"])
        assert tab.value("document.querySelectorAll('script, img, iframe').length") == 0
        assert tab.value("document.querySelector('#findings').innerText.includes('<script>alert(\"x\")</script>')")

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_words_stand_out_from_what_is_behind_them(self, tab: Browser, pages: dict[str, Path], scheme: str) -> None:
        tab.load(pages["broken"], scheme=scheme)
        check_readable(tab)


def test_the_report_needs_neither_airflow_nor_spark() -> None:
    code = (
        "import sys; import airflow_provider_kmigrate.audit.report; "
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'airflow', 'pyspark', 'jinja2', 'numpy', 'pyarrow'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
