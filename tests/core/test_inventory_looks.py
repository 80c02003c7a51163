"""From what each side tells of a group to one look at it, and from looks to an order."""

from __future__ import annotations

import json

import pytest

from airflow_provider_kmigrate.core.audit.log_blocks import LogMark
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.groups.inventory import GroupFound, as_dicts, inventory, line, read_lines, snapshots
from airflow_provider_kmigrate.core.groups.readiness import GroupProtocol, GroupSnapshot

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
MARKS = {T0: LogMark(10, 100, 0, "id"), T1: LogMark(0, 50, 0, "id")}
ZK, CLASSIC, MIXED = GroupProtocol.ZOOKEEPER, GroupProtocol.CLASSIC, GroupProtocol.MIXED


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([GroupFound("g", CLASSIC, 2, {T0: 90, T1: 50})], GroupSnapshot(5, "g", CLASSIC, 2, None, 10)),
        ([GroupFound("g", CLASSIC, 2, {T0: 9})], GroupSnapshot(5, "g", CLASSIC, 2, None, 91, outside_log=1)),
        ([GroupFound("g", CLASSIC, 2, {T0: 101})], GroupSnapshot(5, "g", CLASSIC, 2, None, 0, outside_log=1)),
        (
            [GroupFound("g", CLASSIC, 2, {TopicPartition("gone", 0): 1})],
            GroupSnapshot(5, "g", CLASSIC, 2, None, 0, outside_log=1),
        ),
        ([GroupFound("g", CLASSIC, 2, None)], GroupSnapshot(5, "g", CLASSIC, 2)),
        ([GroupFound("g", CLASSIC, None, {})], GroupSnapshot(5, "g", CLASSIC, None, None, 0)),
        ([GroupFound("g", CLASSIC, 2, {}, rebalancing=True)], GroupSnapshot(5, "g", CLASSIC, 2, None, 0, rebalancing=True)),
        ([GroupFound("g", ZK, 1, {T0: 99}), GroupFound("g", CLASSIC, 0, {T0: 50})], GroupSnapshot(5, "g", ZK, 1, None, 1)),
        ([GroupFound("g", ZK, 0, {T0: 99}), GroupFound("g", CLASSIC, 3, {T0: 50})], GroupSnapshot(5, "g", CLASSIC, 3, None, 50)),
        ([GroupFound("g", ZK, 1, {T0: 99}), GroupFound("g", CLASSIC, 3, {T0: 50})], GroupSnapshot(5, "g", MIXED, 4, None, 1)),
    ],
)
def test_one_look(found: list[GroupFound], expected: GroupSnapshot) -> None:
    assert snapshots(found, MARKS, 5) == (expected,)


def test_a_log_that_does_not_tell_hides_the_lag() -> None:
    [look] = snapshots([GroupFound("g", ZK, 1, {T0: 99})], {T0: LogMark(unread="x")}, 5)
    assert look.lag is None


def test_looks_come_back_from_their_file_as_they_were() -> None:
    looks = [GroupSnapshot(t, "g", ZK, 1, None, None) for t in (1, 5, 9)]
    assert read_lines([*map(line, looks), '{"t_ms": 1', "[]", "{}"], since_ms=5) == looks[1:]


def test_the_inventory_is_json_in_the_order_of_the_waves() -> None:
    looks = [GroupSnapshot(t, name, ZK, 1, None, t) for t in range(4) for name in ("a", "b")]
    looks += [GroupSnapshot(9, "blocked", ZK), GroupSnapshot(9, "moved", CLASSIC, 1, None, 0)]
    rows = json.loads(json.dumps(as_dicts(inventory(looks))))
    assert [(row["group"], row["wave"]) for row in rows] == [("moved", 0), ("a", 1), ("b", 3), ("blocked", None)]
