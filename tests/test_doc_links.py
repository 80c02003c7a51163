"""README and docs: every relative link leads to a file, and its anchor to a heading or an anchor there; each "`name` in `file`" is defined in it. The changelog is in order."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_DEFINED_IN = re.compile(r"`(\w+)` in `((?:\w+/)+[\w-]+(?:\.py)?)`")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


@cache
def anchors_of(page: Path) -> frozenset[str]:
    """The anchors that GitHub makes of a page's headings, and those that it has itself."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    made, seen = set(re.findall(r'<a id="([^"]+)"', text)), dict[str, int]()
    for heading in _HEADING.findall(text):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-")
        number = seen.get(slug, 0)
        seen[slug] = number + 1
        made.add(f"{slug}-{number}" if number else slug)
    return frozenset(made)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = []
    for link in _LINK.findall(_FENCE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:|/", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors_of(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_file_defines_the_name_that_a_page_gives_for_it(page: Path) -> None:
    """Paths are below the package unless they begin with `tests/`."""
    wrong = []
    for name, path in _DEFINED_IN.findall(page.read_text(encoding="utf-8")):
        file = (ROOT if path.startswith("tests/") else ROOT / "airflow_provider_kmigrate") / path
        definition = re.compile(rf"^ *(?:async )?(?:def|class) {name}\b|^{name}\b[^\n]*?=", re.MULTILINE)
        if not file.is_file() or not definition.search(file.read_text(encoding="utf-8")):
            wrong.append((name, path))
    assert wrong == []


def test_a_newcomer_is_led_to_each_stage_of_a_restart() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = page.partition("### Between a broker's stop and its start")[2].partition("\n## ")[0]
    assert len(_DEFINED_IN.findall(section)) >= 9


def test_the_changelog_has_each_kind_of_change_once_for_a_release_and_no_entry_twice() -> None:
    """So that a release needs nothing but its number and date."""
    for release in re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        kinds, entries = re.findall(r"^### (\w+)$", release, re.MULTILINE), re.findall(r"^- .+$", release, re.MULTILINE)
        assert kinds == [kind for kind in ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security") if kind in kinds]
        assert [entry for entry in set(entries) if entries.count(entry) > 1] == []
