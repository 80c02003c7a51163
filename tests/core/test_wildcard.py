"""Wildcards as Java's full match takes them; those that Python might take otherwise are refused."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_provider_kmigrate.applications.migrating.settings import registration_of
from airflow_provider_kmigrate.core.member.registration import (
    compile_wildcard,
    is_same_in_librdkafka,
    select_topics,
    trim_wildcard,
)
from airflow_provider_kmigrate.exceptions import Refused

TOPICS = ("app.t1", "app.t2", "appxt1", "T1", "t1", "t10", "__consumer_offsets")


@pytest.mark.parametrize(
    ("wildcard", "expected"),
    [
        ("app.t2,app.t3|t1", "app.t2|app.t3|t1"),
        (" 'a b' ", "ab"),
        ("\"'a'\"", "a"),
        ("\ta\n", "a"),
        ("a'b", "a'b"),
    ],
)
def test_trimming(wildcard: str, expected: str) -> None:
    assert trim_wildcard(wildcard) == expected


@pytest.mark.parametrize(
    ("pattern", "wildcard", "expected"),
    [
        ("white_list", "t1", {"t1"}),
        ("white_list", "t1.?", {"t1", "t10"}),
        ("white_list", "app.t1", {"app.t1", "appxt1"}),
        ("white_list", r"app\.t1", {"app.t1"}),
        ("white_list", r"app\\.t1", set()),  # escaped twice by the old consumer's own writer
        ("white_list", "T1,t1", {"T1", "t1"}),
        ("white_list", "[at]pp?.*", {"app.t1", "app.t2", "appxt1"}),
        ("white_list", r"\w\d{1}", {"T1", "t1"}),
        ("white_list", ".*", set(TOPICS) - {"__consumer_offsets"}),
        ("black_list", "app.*", {"T1", "t1", "t10"}),
        ("white_list", "", set()),
        ("white_list", "(?!app).*1", {"T1", "t1"}),
    ],
)
def test_selection(pattern: str, wildcard: str, expected: set[str]) -> None:
    expression = compile_wildcard(wildcard)
    assert expression is not None
    assert select_topics(pattern, expression, TOPICS) == expected


def test_internal_topics_only_where_the_group_wants_them() -> None:
    expression = compile_wildcard(".*")
    assert expression is not None
    assert "__consumer_offsets" in select_topics("white_list", expression, TOPICS, internal=True)


@pytest.mark.parametrize(
    "wildcard",
    ["*", "a**", "(", ")", "[", "a]", "[]a]", "a{1,3}", "a{x}", "{", r"\p{Alpha}", r"\Qa\E", r"\z", r"\1", "(?i)a", "(?P<n>a)"],
)
def test_what_java_refuses_is_refused(wildcard: str) -> None:
    assert compile_wildcard(wildcard) is None


@pytest.mark.parametrize(
    "wildcard",
    ["[a-z&&[^b]]", "[a[b]]", "a\\", "(?<n>a)", "(?>a)", "[a--b]"],
)
def test_what_only_java_has_or_reads_otherwise_is_refused(wildcard: str) -> None:
    assert compile_wildcard(wildcard) is None


@pytest.mark.parametrize(
    ("subscription", "alike"),
    [
        ("^app.*", True),
        ("^app[.]t[0-9]+$", True),
        (r"^app\.(t1|t2)$", True),
        ("^(app|web).*", True),
        ("^app", False),  # app1, too
        ("^app|web$", False),  # myweb, too
        ("^(?!app).*", False),
        (r"^app\d$", False),
        (r"^app[\d]$", False),
        ("^a.*?$", False),
        ("^(app,web)$", False),
    ],
)
def test_what_a_plain_consumer_would_make_of_it(subscription: str, alike: bool) -> None:
    assert is_same_in_librdkafka(subscription) == alike


def posix(expression: str, topics: Iterable[str]) -> set[str] | None:
    """The topics that librdkafka would subscribe to: the C library's extended expressions; None: it is none."""
    c, held = ctypes.CDLL(None), ctypes.create_string_buffer(256)
    if c.regcomp(held, expression.encode(), 1 | 8):  # REG_EXTENDED, REG_NOSUB
        return None
    found = {topic for topic in topics if c.regexec(held, topic.encode(), 0, None, 0) == 0}
    c.regfree(held)
    return found


@given(
    st.lists(st.sampled_from([*"ab.*+?|()[]^-$,d\\", "{2}", ".*", "(a|b)", "[ab]", "(?:"]), max_size=8),
    st.sampled_from(["$", ".*", ""]),
)
@example(["a", "|", "b"], "$")
def test_where_it_is_called_alike_it_is(pieces: list[str], end: str) -> None:
    subscription = "^" + "".join(pieces) + end
    topics = {"a", "b", "ab", "ba", "aa", "bb", "aab", "d", "ad", "a.b", "abab", "a-b"}
    try:
        (wildcard,) = registration_of([subscription], 7).subscription
    except Refused:
        return
    expression = compile_wildcard(wildcard)
    assert expression is not None
    if is_same_in_librdkafka(subscription):
        assert posix(subscription, topics) == select_topics("white_list", expression, topics)
