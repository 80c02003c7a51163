"""Many things in a sentence, a partition's name in all of them, and times as systemd prints them."""

from __future__ import annotations

from math import inf, nan

import pytest

from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.node_files.service_unit import systemd_seconds
from airflow_provider_kmigrate.core.shared.text import code_span, format_duration, summarize, table_cell


@pytest.mark.parametrize(
    ("items", "shown", "expected"),
    [
        ([], 8, ""),
        ([1], 8, "1"),
        ([1, 2], 2, "1, 2"),
        ([1, 2, 3], 2, "1, 2 and 1 more"),
        (["a"] * 9, 8, "a, " * 7 + "a and 1 more"),
    ],
)
def test_the_first_are_named_and_the_others_counted(items: list[object], shown: int, expected: str) -> None:
    assert summarize(items, shown) == expected
    assert summarize(iter(items), shown) == expected


def test_a_name_that_others_chose_moves_no_cursor():
    assert summarize(["billing", "a\x1b[2J\ngroup"]) == "billing, a\\x1b[2J\\ngroup"


@pytest.mark.parametrize("ms", [inf, -inf, nan, 1e308, 10**400])
def test_what_is_no_span_of_time_ends_no_page(ms: float) -> None:
    assert format_duration(ms) == "not known"


def test_a_partition_is_called_as_kafkas_tools_call_it() -> None:
    assert TopicPartition("orders", 3).name == "orders-3"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1min 30s", 90.0),
        ("5min", 300.0),
        ("10min", 600.0),
        ("1h 5min 2.500s", 3902.5),
        ("1w 2d", 777_600.0),
        ("1y", 31_557_600.0),
        ("500ms", 0.5),
        ("infinity", inf),
        ("", None),
        ("0", None),
        ("90", None),
        ("1min 30", None),
        ("soon", None),
        ("5 min", None),
    ],
)
def test_times_of_systemd_are_read_or_not_known(text: str, expected: float | None) -> None:
    assert systemd_seconds(text) == expected


def test_a_name_that_any_client_chose_forges_no_line_and_no_link() -> None:
    assert summarize(["a\nb", "\x1b[2J", "[yes](http://x)"]) == "a\\nb, \\x1b[2J, [yes] (http:/ /x)"
    assert table_cell("[yes](http://x) | a\n") == "[yes] (http:/ /x) \\| a"
    assert code_span("`[x](http://x)\n") == "`'[x](http://x)\\n`"
