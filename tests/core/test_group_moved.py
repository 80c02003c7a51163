"""Whether a group has left ZooKeeper, so that nothing of it is touched any more."""

from __future__ import annotations

import pytest

from airflow_provider_kmigrate.core.groups.move import has_left_zookeeper
from airflow_provider_kmigrate.core.member.group_seen import GroupSeen
from tests.core.group_facts import SPEC, T0, T1, changed, group


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (group("k", "k"), True),
        (group("k", "k", "kafka"), False),
        (group("k", "z"), False),
        (group(), True),
        (changed(group(), joined=True), False),
        (changed(group("k", "k"), joined=True), True),
        (group(committed={}), False),
        (group(committed={T0: 5, T1: 10}), False),
        (group(committed=None), False),
        (None, False),
    ],
    ids=[
        *(
            "Kafka consumers",
            "not cleaned up",
            "a ZooKeeper consumer",
            "stopped",
            "ZooKeeper consumers stopped, and their offsets copied",
        ),
        *("Kafka consumers since, by hand", "never in Kafka", "ZooKeeper is ahead", "unread", "not observed"),
    ],
)
def test_what_has_left_zookeeper(seen: GroupSeen | None, expected: bool) -> None:
    assert has_left_zookeeper(seen, SPEC) is expected
