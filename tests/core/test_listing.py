"""Many things in a sentence, and a partition's name in all of them."""

from __future__ import annotations

import pytest

from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.text import summarize


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


def test_a_partition_is_called_as_kafkas_tools_call_it() -> None:
    assert TopicPartition("orders", 3).name == "orders-3"
