"""The migrating consumer's ZooKeeper session, and its group's znodes where other clients have written, too."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from kazoo.exceptions import (
    BadVersionError,
    ConnectionLoss,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.handlers.threading import KazooTimeoutError

from airflow_provider_kmigrate.applications.migrating.zookeeper import GroupSession, GroupZnodes
from airflow_provider_kmigrate.clients.settings import ZooKeeperSettings
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.member.registration import Registration
from airflow_provider_kmigrate.exceptions import KMigrateError, TimedOut, Unreachable
from tests.consumer.memory_group_zookeeper import MemoryZooKeeper
from tests.consumer.wire_zookeeper import SYNC, WireZooKeeper
from tests.waiting import wait_until


def test_a_follower_that_has_lost_its_leader_gives_no_sign_of_life() -> None:
    """It answers reads; a sync waits for the leader."""
    signs: list[tuple[int, float, float]] = []
    with WireZooKeeper() as follower:
        session = GroupSession(ZooKeeperSettings(follower.address, session_timeout=6.0), lambda _: None, lambda _: None)
        session.start()
        wait_until(lambda: session.connected, "a session")
        assert session.get("/") is None, "it answers a read"
        session.confirm_session(lambda *sign: signs.append(sign))
        wait_until(lambda: SYNC in follower.asked, "it is asked for its leader")
        assert not signs
        follower.leader.set()
        wait_until(lambda: signs, "a sign of life")
        session.close()
    assert [(found, timeout) for found, _, timeout in signs] == [(0x1234, 6.0)]


class Refusing:
    """A connected client, each of whose requests is answered by one error."""

    connected = True

    def __init__(self, error: Exception) -> None:
        self._error = error

    def set_async(self, *_: object) -> Refusing:
        return self

    delete_async = set_async

    def get(self, timeout: float) -> None:
        del timeout
        raise self._error


@pytest.mark.parametrize("answer", [NoNodeError(), BadVersionError()])
def test_a_znode_that_is_gone_or_has_another_version_is_not_written(answer: Exception) -> None:
    session = GroupSession(ZooKeeperSettings("127.0.0.1:1"), lambda _: None, lambda _: None)
    session._client = Refusing(answer)
    assert session.write("/owner", b"", 3) is None
    assert not session.delete("/owner", 3)
    for error, expected in ((ConnectionLoss(), Unreachable), (KazooTimeoutError(), TimedOut)):
        session._client = Refusing(error)
        with pytest.raises(expected):
            session.write("/owner", b"", 3)


def test_a_session_that_is_not_connected_asks_nothing() -> None:
    session = GroupSession(ZooKeeperSettings("127.0.0.1:1"), lambda _: None, lambda _: None)
    session._client = Refusing(AssertionError("it was asked"))
    session._client.connected = False
    with pytest.raises(Unreachable, match="write /owner: not connected"):
        session.write("/owner", b"", 3)


@pytest.mark.parametrize(
    ("results", "registered"),
    [([True, True], True), ([NodeExistsError(), RuntimeInconsistency()], False), ([RolledBackError(), NoAuthError()], None)],
)
def test_a_member_is_registered_only_if_all_its_znodes_are_made(
    monkeypatch: pytest.MonkeyPatch, results: list[object], registered: bool | None
) -> None:
    session = GroupSession(ZooKeeperSettings("127.0.0.1:1"), lambda _: None, lambda _: None)
    monkeypatch.setattr(session, "call", lambda *_: results)
    with nullcontext() if registered is not None else pytest.raises(KMigrateError, match="register"):
        assert session.create_ephemerals({"/consumers/g/ids/a": b""}) is registered


@pytest.fixture
def zookeeper() -> MemoryZooKeeper:
    return MemoryZooKeeper({"t": 2})


@pytest.fixture
def znodes(zookeeper: MemoryZooKeeper) -> GroupZnodes:
    session = zookeeper.connect(ZooKeeperSettings("memory"), lambda _: None, lambda _: None)
    session.start()
    found = GroupZnodes(session, "g", "g_a", Registration("static", {"t": 1}), migrates=True, internal_too=False)
    found.register(session.session or 0)
    return found


@pytest.mark.parametrize("name", ["²", "\u0661", "x", "-1"])
def test_an_owner_znode_that_is_no_partitions_stops_no_look(zookeeper: MemoryZooKeeper, znodes: GroupZnodes, name: str) -> None:
    """Members register after the same observation: no member could join, and none would follow a mode switch."""
    zookeeper.put(f"/consumers/g/owners/t/{name}", b"")
    zookeeper.put("/consumers/g/owners/t/1", b"g_b-0")
    assert znodes.observe().owned == {TopicPartition("t", 1)}
    assert znodes.partition_of_owner_path(f"/consumers/g/owners/t/{name}") is None
    assert znodes.partition_of_owner_path("/consumers/g/owners/t/1") == TopicPartition("t", 1)


def test_a_member_is_not_registered_beside_its_earlier_session(zookeeper: MemoryZooKeeper, znodes: GroupZnodes) -> None:
    later = zookeeper.connect(ZooKeeperSettings("memory"), lambda _: None, lambda _: None)
    later.start()
    again = GroupZnodes(later, "g", "g_a", Registration("static", {"t": 1}), migrates=True, internal_too=False)
    with pytest.raises(Unreachable, match="exists, of another session"):
        again.register(later.session or 0)


def test_what_was_seen_by_two_sessions_is_no_view(znodes: GroupZnodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Watches of the first one have ended: a change of what it read would never be heard of."""
    sessions = iter([1, 2])
    monkeypatch.setattr(type(znodes._zk), "session", property(lambda _: next(sessions, 2)))
    with pytest.raises(Unreachable, match="the session changed in the meantime"):
        znodes.observe()
