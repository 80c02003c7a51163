"""The topic ids on the brokers' disks, as a preflight reads them: what differs is compared once more, and an older agent is said."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any, cast

from airflow_provider_kmigrate.clients.hosts.agent import AgentHost
from airflow_provider_kmigrate.core.cluster_state.model import Fields, PartitionIds, PartitionMetadata, Reason, TopicMetadata
from airflow_provider_kmigrate.core.cluster_state.spec import NodeSpec
from airflow_provider_kmigrate.exceptions import Refused, Unreachable
from tests.clients.fake_cluster import SPEC, Cluster
from tests.node.agent_parts import agent_module

TOPICS = {"orders": TopicMetadata("orders", "id-1", {}), "old": TopicMetadata("old", None, {})}
CREATED = [*TOPICS.values(), TopicMetadata("since", "id-2", {})]
STRAY = PartitionIds(3, {"stray": (1, (("/data/since-0", "id-2"),))})


def read_partition_ids(
    answer: Any, listed: Any = TOPICS
) -> tuple[Mapping[int, PartitionIds | None], tuple[str, ...], list[tuple[int, dict[str, str]]]]:
    """What each broker's agent is taken to say, why something was not read, and what was asked; `answer`: of the topics that it is sent."""
    cluster, asked = Cluster(), list[tuple[int, dict[str, str]]]()
    cluster.zk.topics_answer = cluster.admin.topics_answer = listed

    def compare(node: NodeSpec, topics: Iterable[TopicMetadata]) -> PartitionIds:
        ids = {topic.name: topic.topic_id or "" for topic in topics}
        asked.append((node.id, ids))
        return answer(node.id, ids)  # type: ignore[no-any-return]

    cluster.host.compare_topic_ids = compare  # type: ignore[attr-defined]
    cluster.zk.topic_assignments = lambda: CREATED  # type: ignore[attr-defined]
    cluster.zk.read_tree = lambda: None  # type: ignore[attr-defined]
    environment = cluster.observer.environment(cluster.observe(Fields.BROKERS | Fields.TOPICS))
    return environment.partition_ids, environment.unread, asked


def test_what_does_not_differ_is_compared_once() -> None:
    found, _, asked = read_partition_ids(lambda *_: PartitionIds(3))
    assert found == dict.fromkeys((1, 2, 3), PartitionIds(3))
    assert sorted(asked) == [(broker, {"old": "", "orders": "id-1"}) for broker in (1, 2, 3)]


def test_a_topic_that_was_created_meanwhile_is_no_stray() -> None:
    found, _, asked = read_partition_ids(lambda _, topics: PartitionIds(3) if "since" in topics else STRAY)
    assert found == dict.fromkeys((1, 2, 3), PartitionIds(3))
    assert len(asked) == 6


def test_topics_that_were_not_read_compare_nothing_and_no_topic_is_a_list_too() -> None:
    assert read_partition_ids(lambda *_: STRAY, Unreachable("ZooKeeper"))[::2] == (dict.fromkeys((1, 2, 3)), [])
    assert len(read_partition_ids(lambda *_: PartitionIds(), {})[2]) == 3


def test_what_differs_twice_is_found() -> None:
    found, _, _ = read_partition_ids(lambda broker, _: STRAY if broker == 2 else PartitionIds(3))
    assert found == {1: PartitionIds(3), 2: STRAY, 3: PartitionIds(3)}


def test_an_older_agent_is_not_known_and_says_why() -> None:
    def refuse(broker: int, _: object) -> PartitionIds:
        if broker == 2:
            raise Refused.because(Reason("M03", "broker 2: unknown verb 'topic_ids'"))
        return PartitionIds(3)

    found, unread, _ = read_partition_ids(refuse)
    assert found == {1: PartitionIds(3), 2: None, 3: PartitionIds(3)}
    assert any("topic ids on disk" in text and "unknown verb" in text for text in unread)


def test_a_cluster_of_50_000_topics_fits_into_a_request_to_an_agent() -> None:
    """Three brokers have a replica of each partition: with the topics' names twice it was a quarter too long, and nothing was compared."""
    requests = list[dict[str, Any]]()

    def ask(verb: str, **fields: Any) -> dict[str, Any]:
        requests.append({"verb": verb, **fields})
        return {"read": 0, "found": {}}

    node = SPEC.brokers[0]
    partitions = {number: PartitionMetadata((node.id,), node.id) for number in range(3)}
    topics = [TopicMetadata(f"team.domain.orders-events-{number:06}", "A" * 22, partitions) for number in range(50_000)]
    AgentHost(cast(Any, SimpleNamespace(ask=ask)), "cluster").compare_topic_ids(node, topics)
    (request,) = requests
    assert len(json.dumps(request)) < agent_module().MAX_FRAME
    assert request["assigned"] == [[0, 1, 2]] * 50_000
