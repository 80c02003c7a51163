"""Texts of others where people read them: they move no cursor, forge no line, mention nobody, and are no link and no element.

What a link and an element are, markdown-it says, with the addresses that linkify finds, and Python's reader of HTML.
"""

from __future__ import annotations

import html.parser
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.shared.text import (
    code_span,
    defuse_markup,
    escape_html,
    indent_further_lines,
    printable,
    summarize,
    table_cell,
)
from airflow_provider_kmigrate.exceptions import Failed, KMigrateError
from airflow_provider_kmigrate.node.check import NodeCheck
from tests.kit.hostile import CONTROLS, MARKUP

markdown_it = pytest.importorskip("markdown_it", reason="comes with Airflow")
pytest.importorskip("linkify_it", reason="comes with Airflow")

_MENTION = re.compile(r"<[!@#][^>\s]|@\w")  # Slack's, Discord's
#: As `mdast-util-gfm-autolink-literal` looks for addresses in finished text, where Airflow's page has it.
_ADDRESS = re.compile(r"(?:https?://|www(?=\.))[-.\w]+|[-.\w+]+@[-\w]+\.[-\w]+", re.IGNORECASE)


class Elements(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.found.append(tag)

    handle_endtag = handle_pi = handle_decl = unknown_decl = handle_comment = lambda self, *what: self.found.append(str(what))


def acts(text: str) -> list[str]:
    """What in a text is more than text: as Markdown, as HTML, in a chat."""
    reader = markdown_it.MarkdownIt("gfm-like")
    reader.validateLink = lambda _: True  # it would refuse javascript: by itself
    reader.linkify.set({"fuzzy_link": False})  # GitHub takes no name alone for an address
    tokens = [inner for token in reader.parse(text) for inner in (token, *(token.children or ()))]
    found = [token.type for token in tokens if token.type in {"link_open", "image", "html_inline", "html_block"}]
    shown = "".join(token.content for token in tokens if token.type == "text")
    elements = Elements()
    elements.feed(text)
    return found + _ADDRESS.findall(shown) + elements.found + _MENTION.findall(text)


@pytest.mark.parametrize("text", MARKUP)
def test_each_of_them_acts_and_does_no_more_once_it_is_unmarked(text: str) -> None:
    assert acts(text)
    for shown in (defuse_markup(text), table_cell(text), summarize([text]), defuse_markup(f"group {text} has members")):
        assert not acts(shown), shown


@given(
    st.lists(
        st.sampled_from(
            [*MARKUP, "a", "(", ")", "[", "]", "\\", "<", ">", "&", "#", ";", ":", "/", "@", "!", "www", ".", "`", "\n"]
        )
    )
)
def test_no_mixture_of_them_acts(parts: list[str]) -> None:
    once = defuse_markup("".join(parts))
    assert defuse_markup(once) == once, "whatever was unmarked before"
    assert not _MENTION.search(once)
    elements = Elements()
    elements.feed(once)
    assert not elements.found
    assert "](" not in once
    assert "://" not in once


@pytest.mark.parametrize("text", CONTROLS)
def test_control_characters_are_seen_and_not_obeyed(text: str) -> None:
    for shown in (printable(text), table_cell(text), code_span(text), summarize([text]), Reason("G05", text).text):
        assert shown.isprintable()
    assert not set(indent_further_lines(text)) - set("\n\t") & {char for char in text if not char.isprintable()}
    assert not set(escape_html(text)) - set("\n\t") & {char for char in text if not char.isprintable()}


@pytest.mark.parametrize("text", CONTROLS)
def test_no_error_forges_a_line(text: str) -> None:
    for error in (Failed(f"{text}\nok    broker 1 on k1: forged"), Failed.because(Reason("M09", f"{text}\nok    forged"))):
        assert not [line for line in str(error).split("\n")[1:] if not line.startswith("    ")]
        assert str(KMigrateError(f"before: {error}")) == f"before: {error}", "an error may quote another"


@pytest.mark.parametrize("text", CONTROLS)
def test_a_checked_node_has_its_own_lines_alone(text: str) -> None:
    forged = f"{text}\nok    all nodes"
    for shown in (
        NodeCheck("broker 1", forged),
        NodeCheck(forged, "", (forged,)),
        NodeCheck("broker 1", forged, (str(Failed(forged)),)),
    ):
        first, *others = str(shown).split("\n")
        assert first.startswith("FAIL  " if shown.problems else "ok    ")
        assert all(line.startswith("    ") for line in others)
        assert all(char.isprintable() or char in "\n\t" for char in str(shown))


def test_plain_text_stays_as_it_is() -> None:
    text = "[G05] Broker 1 is down: 3 of 4, a < b & c, x@ y, 12:30, orders-0 (2), `kafka-topics.sh --list`; *next*: [x] -> y | z\n\n- a\n"
    assert defuse_markup(text) == text
    assert indent_further_lines("a\n    b") == "a\n    b"
