"""How much an audit looks at one by one."""

from __future__ import annotations

import pytest

from airflow_provider_kmigrate.audit.policy import Policy
from airflow_provider_kmigrate.core.events import TopicPartition

A, B, C = (TopicPartition("t", number) for number in range(3))


@pytest.mark.parametrize(
    ("sizes", "fitting"),
    [({}, set()), ({B: 4, A: 6}, {A, B}), ({A: 6, B: 5, C: 1}, {A}), ({A: 11, B: 1}, set()), ({A: 0, B: 10}, {A, B})],
)
def test_the_first_partitions_that_fit_are_judged(sizes: dict[TopicPartition, int], fitting: set[TopicPartition]) -> None:
    assert Policy(max_runs=10).room_for(sizes) == (fitting, sizes.keys() - fitting)
