"""A request's text where Markdown is not shown: in a mail and in a chat."""

from __future__ import annotations

import pytest
from airflow.sdk import Context

from airflow_provider_kmigrate.core.shared.text import defuse_markup
from airflow_provider_kmigrate.notifications.messages import ClusterNotifier, _make_message
from airflow_provider_kmigrate.notifications.rendering import render_html, render_plain

REQUEST = """\
**Cluster prod** (`id`) is
*here*:

| figure | observed |
| --- | --- |
| Records lost | 0 (`L0`) |

* soak: 4 * 5 h
* plan:

  1. stop `a`
  2. go

1. first
"""


def test_plain_text_has_no_marks_and_keeps_every_word() -> None:
    assert render_plain(REQUEST).splitlines() == [
        "Cluster prod (id) is here:",
        "",
        "Records lost: 0 (L0)",
        "",
        "- soak: 4 * 5 h",
        "- plan:",
        "  1. stop a",
        "  2. go",
        "",
        "1. first",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "<b>x</b>",
        "<script>alert(1)</script>",
        "[x](https://e.example)",
        "![x](https://e.example/p)",
        "<https://e.example>",
        "&lt;b&gt;",
    ],
)
def test_what_others_wrote_is_no_element_and_no_link_in_html(text: str) -> None:
    shown = render_html(f"a {text}\n\n{text}\n\n| x |\n| --- |\n| {text} |\n")
    assert not any(mark in shown for mark in ("<b>", "<script", "<a", "<img", "href", "src="))


@pytest.mark.parametrize("text", ["<**b**>", "[**x**](h://e)", "@`channel`", "/**/e.example", "&l`t;`b", r"\<b>", "]*(*x"])
def test_a_text_that_loses_its_marks_becomes_no_link_or_mention(text: str) -> None:
    message = _make_message("title", defuse_markup(text), [], "https://airflow.example/request")
    assert defuse_markup(message.text) == message.text


def test_the_address_of_the_request_is_the_first_link_and_the_text_has_none() -> None:
    message = _make_message("title", "**x** [G05]", ["https://wiki/runbook#g05"], "https://airflow.example/r?map_index=-1")
    assert message.links.splitlines() == ["https://airflow.example/r?map_index=-1", "https://wiki/runbook#g05"]
    assert message.text == "x [G05]"
    first, text, *_, last = message.html.splitlines()
    assert first == '<p><a href="https://airflow.example/r?map_index=-1">Open the request</a></p>', "before all that is long"
    assert text.startswith("<p><strong>x</strong>")
    assert last == '<p><a href="https://wiki/runbook#g05">https://wiki/runbook#g05</a></p>'


def test_a_text_that_is_no_markdown_stays_as_it_is() -> None:
    message = _make_message("title", "x [G05]", ["kmigrate runbook G05"], None)
    assert message.html.endswith("<p><code>kmigrate runbook G05</code></p>"), "a command is no address"
    message = _make_message("title", "__consumer_offsets * <b>\nnext", [], None)
    assert message.text == "__consumer_offsets * <b>\nnext"
    assert message.html == "<p>__consumer_offsets * &lt;b&gt;<br>next</p>"
    assert ClusterNotifier((), "", "", "").send(Context(), "title", "text")
