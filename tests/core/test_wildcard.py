"""Wildcards as Java's full match takes them; those that Python might take otherwise are refused."""

from __future__ import annotations

import pytest

from airflow_provider_kmigrate.core.coordination.wildcard import compiled, selected, trimmed

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
    assert trimmed(wildcard) == expected


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
    expression = compiled(wildcard)
    assert expression is not None
    assert selected(pattern, expression, TOPICS) == expected


def test_internal_topics_only_where_the_group_wants_them() -> None:
    expression = compiled(".*")
    assert expression is not None
    assert "__consumer_offsets" in selected("white_list", expression, TOPICS, internal=True)


@pytest.mark.parametrize(
    "wildcard",
    ["*", "a**", "(", ")", "[", "a]", "[]a]", "a{1,3}", "a{x}", "{", r"\p{Alpha}", r"\Qa\E", r"\z", r"\1", "(?i)a", "(?P<n>a)"],
)
def test_what_java_refuses_is_refused(wildcard: str) -> None:
    assert compiled(wildcard) is None


@pytest.mark.parametrize(
    "wildcard",
    ["[a-z&&[^b]]", "[a[b]]", "a\\", "(?<n>a)", "(?>a)", "[a--b]"],
)
def test_what_only_java_has_or_reads_otherwise_is_refused(wildcard: str) -> None:
    assert compiled(wildcard) is None
