"""The migrating consumer's session with a server that has lost its leader."""

from __future__ import annotations

from typing import Any

import pytest
from kazoo.exceptions import BadVersionError, ConnectionLoss, NoNodeError

from airflow_provider_kmigrate.applications.migrating.zookeeper import GroupSession
from airflow_provider_kmigrate.clients.settings import ZooKeeperSettings
from airflow_provider_kmigrate.exceptions import Unreachable
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
        session.pulse(lambda *sign: signs.append(sign))
        wait_until(lambda: SYNC in follower.asked, "it is asked for its leader")
        assert not signs
        follower.leader.set()
        wait_until(lambda: signs, "a sign of life")
        session.close()
    assert [(found, timeout) for found, _, timeout in signs] == [(0x1234, 6.0)]


class Answering(GroupSession):
    """Connected, and told one thing whatever it asks."""

    connected = True  # type: ignore[assignment]
    answer: Exception = ConnectionLoss()

    def _got(self, what: str, result: Any) -> Any:
        raise self.answer


@pytest.mark.parametrize("answer", [NoNodeError(), BadVersionError()])
def test_a_znode_that_is_gone_or_has_another_version_is_not_written(answer: Exception) -> None:
    session = Answering(ZooKeeperSettings("127.0.0.1:1"), lambda _: None, lambda _: None)
    session.answer = answer
    assert session.write("/owner", b"", 3) is None
    assert not session.delete("/owner", 3)
    session.answer = ConnectionLoss()
    with pytest.raises(Unreachable):
        session.write("/owner", b"", 3)
