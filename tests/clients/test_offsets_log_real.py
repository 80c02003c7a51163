"""The raw log of `__consumer_offsets` of real brokers while a transaction is open."""

from __future__ import annotations

from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from airflow_provider_kmigrate.clients import offsets_log, wire_groups
from airflow_provider_kmigrate.clients.offsets_log import OffsetsLog
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.ledger.book import GroupPartition
from airflow_provider_kmigrate.core.migration.coordinator import hash_group
from airflow_provider_kmigrate.exceptions import Unavailable
from tests.kit.held import Held
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster.cluster import LocalCluster
from tests.waiting import wait_until

pytestmark = pytest.mark.cluster
COUNT = 10  # partitions of the topic in the test kit's clusters


def test_a_commit_behind_another_groups_open_transaction_is_not_overlooked(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties, topic, begun = {"bootstrap.servers": cluster.bootstrap}, f"hidden-{uuid4()}", f"eos-{uuid4()}"
    behind = next(name for n in range(999) if hash_group(name := f"{begun}-{n}") % COUNT == hash_group(begun) % COUNT)
    where = TopicPartition(topic, 0)
    create_topics(properties, [TopicPlan(topic, 1, 1)])
    wait_until(
        lambda: wire_groups.commit(properties, behind, {where: 1}, 10.0, Held()) or True,
        "a coordinator",
        60.0,
        despite=(Unavailable,),
    )
    producer = Producer({**properties, "transactional.id": begun})
    reader = Consumer({**properties, "group.id": begun})
    producer.init_transactions(60)
    producer.begin_transaction()
    try:
        producer.send_offsets_to_transaction([KafkaPartition(topic, 0, 5)], reader.consumer_group_metadata(), 60)
        wire_groups.commit(properties, behind, {where: 2}, 10.0, Held())
        monkeypatch.setattr(offsets_log, "_TRANSACTIONS_S", 2.0)
        with pytest.raises(Unavailable, match=rf"K81.*: {hash_group(begun) % COUNT} from offset \d+"):
            OffsetsLog(properties).read([behind])
        OffsetsLog(properties).prove_readable()
    finally:
        producer.abort_transaction(60)
        reader.close()
    monkeypatch.undo()
    found = OffsetsLog(properties).read([begun, behind])
    assert {
        key: [trail.newest.offset for trail in trails.values()] for log in found.values() for key, trails in log.commits.items()
    } == {GroupPartition(behind, *where): [2]}
