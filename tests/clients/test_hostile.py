"""A drawn part of the hostile answers of each peer; all of them, with the time and the memory of each: make bench BENCH=hostile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_provider_kmigrate.clients.hosts.agent import AgentHost, Connection
from airflow_provider_kmigrate.core.events.lines import decode
from airflow_provider_kmigrate.exceptions import Unreachable
from tests.kit import hostile
from tests.seeds import seeds

pytestmark = pytest.mark.seeded
_DRAWN = {"node": 150, "broker": 80, "zookeeper": 30, "webhook": 20, "metrics": 20, "events": 60}


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(1))
@pytest.mark.parametrize("peer", hostile.PEERS)
def test_each_hostile_answer_ends_in_an_answer_or_one_coded_sentence(peer: str, seed: int) -> None:
    if peer == "events":
        pytest.importorskip("pyarrow", reason="the audit has its own environment")
    ended = hostile.run(peer, seed, _DRAWN[peer])
    assert len(ended) == _DRAWN[peer]
    assert [(each.name, each.outside) for each in ended if each.outside] == []
    assert [each.name for each in ended if each.large] == []
    assert any(each.sentence for each in ended) or peer in {"metrics", "events"}, "these refuse without an error"


@pytest.mark.parametrize("peer", hostile.PEERS)
def test_there_are_enough_of_them(peer: str, tmp_path: Path) -> None:
    assert len({each.name for each in hostile.hostile(peer, 0, tmp_path)}) >= 150


@pytest.mark.parametrize("key", hostile.WIRE_READS)
def test_what_they_are_made_of_is_read_from_a_broker(key: int) -> None:
    assert hostile.with_broker(hostile.Broker(), hostile.WIRE_READS[key][0], 60.0) is not None


@pytest.mark.parametrize("number", range(len(hostile.READS)))
def test_what_they_are_made_of_is_read_from_zookeeper(number: int) -> None:
    tree = {path: hostile.content(value) for path, value in hostile.TREE.items()}
    assert hostile.with_zookeeper(hostile.ZooKeeperServer(tree), hostile.READS[number])


@pytest.mark.parametrize("verb", hostile.ACTS)
def test_what_they_are_made_of_is_read_from_a_node(verb: str) -> None:
    pipe = hostile.ScriptedPipe({each: hostile.good_answer(each) for each in hostile.answers.ANSWERS})
    hostile.ACTS[verb](AgentHost(Connection("k0", lambda: pipe), "c"))
    assert verb in pipe.asked, "no answer to it was read"


@pytest.mark.parametrize("kind", hostile.KINDS)
def test_what_they_are_made_of_is_an_event(kind: str) -> None:
    assert decode(json.dumps(hostile.good_event(kind)))


@pytest.mark.parametrize("length", [-1, 2**31 - 1])
def test_an_answer_of_zookeeper_without_measure_ends_its_connection(length: int) -> None:
    """kazoo would read two gibibytes, or its thread would end."""
    tree = {path: hostile.content(value) for path, value in hostile.TREE.items()}
    server = hostile.ZooKeeperServer(tree, hostile.MANNERS[f"length {length}"])
    with pytest.raises(Unreachable, match="ConnectionLoss"):
        hostile.with_zookeeper(server, hostile.READS[0])
