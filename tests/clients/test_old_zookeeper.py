"""A real ZooKeeper of a release without multiRead, which came with 3.6: its first read is answered as every other one."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_kmigrate.clients.settings import ZooKeeperSettings
from airflow_provider_kmigrate.clients.zookeeper_session import ReadKind, Session, ZnodeRead
from tests.kit.localcluster.cluster import lent_zookeeper

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(240)]


def test_the_first_read_of_a_server_without_multi_read(tmp_path: Path) -> None:
    with lent_zookeeper(tmp_path / "cluster", release="3.5.10") as address:
        session = Session(ZooKeeperSettings(address))
        try:
            for _ in range(3):
                children, absent = session.read("list", ZnodeRead(ReadKind.CHILDREN, "/"), ZnodeRead(ReadKind.DATA, "/absent"))
                assert children == ["zookeeper"]
                assert absent is None
        finally:
            session.close()


def test_a_stream_that_is_the_first_request(tmp_path: Path) -> None:
    with lent_zookeeper(tmp_path / "cluster", release="3.5.10") as address:
        session = Session(ZooKeeperSettings(address))
        try:
            found = dict(session.stream("list", ReadKind.CHILDREN, ("/", "/absent", "/zookeeper")))
        finally:
            session.close()
        assert found.keys() == {"/", "/zookeeper"}
