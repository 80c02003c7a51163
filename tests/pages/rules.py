"""Checks of a page: its markup is whole, it fetches nothing but itself, fits its window, and every word can be read."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

from tests.pages.browser import Browser

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


def check_whole(page: str, links: set[str]) -> None:
    """It closes what it opens, has nothing that acts or loads, and no link but these."""
    tags = Tags(page)
    assert (tags.wrong, tags.open) == ([], [])
    assert {tag for tag, _ in tags.seen} & {"script", "img", "iframe", "object", "link", "base", "form"} == set()
    assert {attrs["href"] for _, attrs in tags.seen if "href" in attrs} <= links
    assert not any(name.startswith("on") for _, attrs in tags.seen for name in attrs)


def check_loads_alone(tab: Browser, page: Path, width: int, scheme: str) -> None:
    tab.requests.clear()
    tab.complaints.clear()
    tab.load(page, width, scheme)
    assert tab.value("document.readyState") == "complete"
    assert tab.value("document.documentElement.scrollWidth") <= width
    assert tab.requests == [page.absolute().as_uri()]
    assert tab.complaints == []


def check_readable(tab: Browser) -> None:
    """WCAG's contrast of at least 4.5 to 1 for every piece of text."""
    assert tab.value(_WEAK_TEXT) == []
