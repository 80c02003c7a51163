"""The migrating consumer's session with a server that has lost its leader."""

from __future__ import annotations

from airflow_provider_kmigrate.clients.settings import ZooKeeperSettings
from airflow_provider_kmigrate.consumer.migrating.zookeeper import GroupSession
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
