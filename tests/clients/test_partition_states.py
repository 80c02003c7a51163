"""The partitions' states on a real ZooKeeper: written again as they are, and made where Kafka has left them out."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_acl

from airflow_provider_kmigrate.clients.holding import Holding
from airflow_provider_kmigrate.clients.partition_states import StatesWritten, create_states, find_missing_states, raise_versions
from airflow_provider_kmigrate.clients.settings import ZooKeeperSettings
from airflow_provider_kmigrate.clients.znodes import ROOT, Create, Operation, Set
from airflow_provider_kmigrate.clients.zookeeper import ZooKeeper
from airflow_provider_kmigrate.clients.zookeeper_session import Changed
from airflow_provider_kmigrate.exceptions import Failed, Fenced, Forbidden

pytestmark = pytest.mark.cluster
T = "/brokers/topics/t"


class Held:
    path = f"{ROOT}/c/epoch"
    token = 1


def hold(client: ZooKeeper) -> None:
    client.commit([Create(ROOT), Create(f"{ROOT}/c"), Create(Held.path)])
    client.commit([Set(Held.path, b"", 0)])


def lose(client: ZooKeeper) -> None:
    client.commit([Set(Held.path, b"", 1)])


def topic(kazoo_client: KazooClient, partitions: int, states: int) -> dict[str, bytes]:
    """The znode of `t`, and the states of some of its partitions."""
    data = {"version": 3, "topic_id": "id", "partitions": {str(index): [2, 0, 1] for index in range(partitions)}}
    kazoo_client.create(T, json.dumps(data).encode(), makepath=True)
    made = {f"{T}/partitions/{index}/state": f'{{"leader":{index},"isr":[1]}}'.encode() for index in range(states)}
    for path, state in made.items():
        kazoo_client.create(path, state, makepath=True)
    return made


def test_states_are_written_again_as_they_are_under_the_fence(own_chroot: ZooKeeperSettings, kazoo_client: KazooClient) -> None:
    states = topic(kazoo_client, 60, 59)
    with ZooKeeper(own_chroot) as client:
        hold(client)
        assert raise_versions(client, Held()) == StatesWritten(59, 100), "one partition has no state yet"
        lose(client)
        with pytest.raises(Fenced):
            raise_versions(client, Held())
    found = {path: kazoo_client.get(path) for path in states}
    assert {path: data for path, (data, _) in found.items()} == states
    assert {stat.version for _, stat in found.values()} == {100}


def test_brokers_that_do_not_answer_are_taken_out_of_the_states(own_chroot: ZooKeeperSettings, kazoo_client: KazooClient) -> None:
    topic(kazoo_client, 2, 0)
    states = [
        {"controller_epoch": 4, "leader": leader, "version": 1, "leader_epoch": 7, "isr": isr}
        for leader, isr in ((2, [2, 0]), (0, [0]))
    ]
    for index, state in enumerate(states):
        kazoo_client.create(f"{T}/partitions/{index}/state", json.dumps(state).encode(), makepath=True)
    with ZooKeeper(own_chroot) as client:
        hold(client)
        assert raise_versions(client, Held(), {2}) == StatesWritten(2, 100, without=1)
    found = [json.loads(kazoo_client.get(f"{T}/partitions/{index}/state")[0]) for index in range(2)]
    assert found == [{**states[0], "leader": 0, "leader_epoch": 8, "isr": [0]}, states[1]]


def test_a_state_that_moves_meanwhile_is_read_again(
    own_chroot: ZooKeeperSettings, kazoo_client: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = topic(kazoo_client, 1, 1)
    with ZooKeeper(own_chroot) as client:
        hold(client)
        commit, moves = client.commit, iter([b"one", b"two"])

        def late(operations: Sequence[Operation], holding: Holding | None = None) -> list[int | None]:
            if move := next(moves, b""):
                kazoo_client.set(path, move)
            return commit(operations, holding)

        monkeypatch.setattr(client, "commit", late)
        assert raise_versions(client, Held()) == StatesWritten(1, 100)
        data, stat = kazoo_client.get(path)
        assert (data, stat.version) == (b"two", 102)
        monkeypatch.setattr(client, "commit", lambda *_: (_ for _ in ()).throw(Changed("again and again")))
        with pytest.raises(Changed):
            raise_versions(client, Held())


@pytest.mark.parametrize("there", [0, 1, 2])
def test_what_is_missing_of_a_topic_is_made(own_chroot: ZooKeeperSettings, kazoo_client: KazooClient, there: int) -> None:
    states = topic(kazoo_client, 2, there)
    rights = [make_acl("world", "anyone", all=True), make_acl("digest", "kafka:x", all=True)]
    kazoo_client.set_acls(T, rights)
    with ZooKeeper(own_chroot) as client:
        hold(client)
        missing = find_missing_states(client)
        assert missing == tuple(f"{T}/partitions/{index}/state" for index in range(there, 2))
        assert create_states(client, missing, Held()) == 2 - there
        assert find_missing_states(client) == ()
        seen = client.topics()["t"].partitions
    found = {(one.leader, one.isr, one.controller_epoch) for index, one in seen.items() if index >= there}
    assert found <= {(-1, (2, 0, 1), 3)}
    assert all(kazoo_client.get(path)[0] == data for path, data in states.items())
    for path in missing:
        assert kazoo_client.get_acls(path)[0] == rights, "any client that may write the topic may write its partitions"


def test_no_state_is_made_for_a_topic_that_is_gone_nor_without_the_fence_nor_twice(
    own_chroot: ZooKeeperSettings, kazoo_client: KazooClient
) -> None:
    topic(kazoo_client, 1, 0)
    with ZooKeeper(own_chroot) as client:
        hold(client)
        missing = find_missing_states(client)
        assert create_states(client, ["/brokers/topics/gone/partitions/0/state", f"{T}/partitions/7/state"], Held()) == 0
        assert create_states(client, missing, Held()) == 1
        with pytest.raises(Changed):
            create_states(client, missing, Held())
        kazoo_client.delete(f"{T}/partitions", recursive=True)
        lose(client)
        with pytest.raises(Fenced):
            create_states(client, missing, Held())
        for operation in (Create(missing[0]), Create(f"{T}/partitions"), Create(T, like=T), Create(f"{T}/other", like=T)):
            with pytest.raises(Forbidden):
                client.commit([operation], Held())
    assert kazoo_client.exists(f"{T}/partitions") is None


def test_no_state_is_made_with_an_epoch_that_is_not_known(own_chroot: ZooKeeperSettings, kazoo_client: KazooClient) -> None:
    topic(kazoo_client, 1, 0)
    kazoo_client.ensure_path("/controller_epoch")
    kazoo_client.set("/controller_epoch", b"x")
    with ZooKeeper(own_chroot) as client:
        hold(client)
        missing = find_missing_states(client)
        with pytest.raises(Failed, match="/controller_epoch does not have Kafka's format"):
            create_states(client, missing, Held())
        assert find_missing_states(client) == missing
