"""Writes to a group, in memory: nothing over what was not planned, and nothing is believed that is not read back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_kmigrate.clients import group_writes
from airflow_provider_kmigrate.clients.holding import Holding
from airflow_provider_kmigrate.clients.znodes import Operation, Set
from airflow_provider_kmigrate.clients.zookeeper_session import Changed
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.groups.offsets import CopyPlan, OffsetWrite
from airflow_provider_kmigrate.core.member.group_seen import GroupSeen, KafkaGroup, Store, ZkGroup
from airflow_provider_kmigrate.core.member.registration import Mode
from airflow_provider_kmigrate.exceptions import Failed, Refused
from tests.clients.memory_zookeeper import Ensemble, MemoryZooKeeper
from tests.kit.held import Held

T0, OFFSET, MODE = TopicPartition("t", 0), "/consumers/g/offsets/t/0", "/consumers/g/migration/mode"
PLAN = CopyPlan("g", Store.ZOOKEEPER, (OffsetWrite(T0, 7, over=None),))
WHOLE = GroupSeen("g", ZkGroup(), KafkaGroup("Empty"), {T0: 7}, {T0: 9})


class ZooKeeper(MemoryZooKeeper):
    """`other`: what another client writes over each of our writes."""

    other: bytes | None = None

    def commit(self, operations: Sequence[Operation], holding: Holding | None = None) -> list[int | None]:
        versions = super().commit(operations, holding)
        for operation in operations:
            if self.other is not None and isinstance(operation, Set):
                self._ensemble.put(operation.path, self.other)
        return versions


@pytest.fixture
def ensemble() -> Ensemble:
    found = Ensemble("cluster-1")
    for path in (Held.path, Held.path, "/consumers/g/migration/mode"):
        found.put(path, b"zookeeper")
    return found


@pytest.fixture
def zk(ensemble: Ensemble) -> ZooKeeper:
    return ZooKeeper(ensemble)


def test_a_mode_is_written_and_read_back(zk: Any) -> None:
    group_writes.write_mode(zk, "g", Mode.KAFKA, Held())
    assert zk.read(MODE) == (b"kafka", 1)


def test_a_mode_that_reads_back_differently_fails(zk: Any) -> None:
    zk.other = b"zookeeper"
    with pytest.raises(Failed, match=r"was written as b'kafka' but reads b'zookeeper': another client also writes it"):
        group_writes.write_mode(zk, "g", Mode.KAFKA, Held())


@pytest.mark.parametrize(
    ("now", "code"),
    [
        (replace(WHOLE, zk=None), "K30"),
        (replace(WHOLE, kafka=None), "K30"),
        (replace(WHOLE, zk=ZkGroup(owners={T0: "m-0"})), "K71"),
    ],
)
def test_nothing_is_copied_into_a_store_that_is_not_as_planned(
    zk: Any, monkeypatch: pytest.MonkeyPatch, now: GroupSeen, code: str
) -> None:
    monkeypatch.setattr(group_writes, "seen", lambda *_: {"g": now})
    with pytest.raises(Refused, match=code):
        group_writes.copy_offsets(zk, {}, PLAN, Held())
    assert zk.read(OFFSET) is None


def test_offsets_that_read_back_differently_fail(zk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_writes, "seen", lambda *_: {"g": WHOLE})
    with pytest.raises(Failed, match="1 offset of g was written to zookeeper but read back differently"):
        group_writes.copy_offsets(zk, {}, PLAN, Held())
    assert zk.read(OFFSET) == (b"7", 0)


def test_an_offset_that_was_committed_since_the_plan_is_not_written_over(
    ensemble: Ensemble, zk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_writes, "seen", lambda *_: {"g": WHOLE})  # before that commit
    ensemble.put(OFFSET, b"8")
    with pytest.raises(Changed, match=r"holds 8, not None as planned; nothing more was written"):
        group_writes.copy_offsets(zk, {}, PLAN, Held())
    assert zk.read(OFFSET) == (b"8", 0)
