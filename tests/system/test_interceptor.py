"""Evidence of Kafka's own verifiable clients, which nobody changed, by the interceptor: judged by the ledger, and held against what the tools printed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from airflow_provider_kmigrate.applications.event_log import read_events
from airflow_provider_kmigrate.core.audit.verdict import AuditOutcome
from airflow_provider_kmigrate.core.ledger import Facts, balance
from tests.kit import interceptor
from tests.kit.account import kafka_of
from tests.kit.interceptor import CONSUMER, PRODUCER, settings
from tests.kit.judge import GROUP, Acknowledged, Foreign, Kafka, Received
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster.cluster import LocalCluster, lent
from tests.kit.localcluster.plan import Shape
from tests.verdicts import verdict_of
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.slow(seconds=60), pytest.mark.timeout(300)]

TOOLS = "org.apache.kafka.tools."


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with lent(tmp_path_factory.mktemp("intercepted") / "cluster", Shape("icpt", brokers=1, controllers=1)) as there:
        yield there


@pytest.fixture
def kafka(cluster: LocalCluster, tmp_path: Path) -> Kafka:
    """The tools of the newest release, with the interceptor beside them."""
    plain = kafka_of(cluster, tmp_path / "tools")
    return Kafka(plain.java, f"{interceptor.classes()}:{plain.class_path}", plain.bootstrap, plain.folder)


def make_topic(kafka: Kafka, name: str, partitions: int = 1) -> str:
    create_topics({"bootstrap.servers": kafka.bootstrap}, [TopicPlan(name, partitions, 1)])
    return name


def produce(kafka: Kafka, topic: str, events: Path | str, *, server: str = "--bootstrap-server", **more: str) -> int:
    """A hundred records; how many were acknowledged, as the tool says."""
    config = kafka.config("producer", settings(PRODUCER, events, **more))
    where = [server, kafka.bootstrap, "--topic", topic, "--max-messages", "100", "--repeating-keys", "100"]
    return len(Acknowledged.read(lines(kafka.run(f"{TOOLS}VerifiableProducer", *where, "--producer.config", config))).values)


def consume(kafka: Kafka, topic: str, events: Path | str, *, server: str = "--bootstrap-server", count: int = 100) -> int:
    """As many records as there are, in the group of that name; how many came, as the tool says."""
    config = kafka.config("consumer", settings(CONSUMER, events))
    where = [server, kafka.bootstrap, "--topic", topic, "--group-id", topic, "--max-messages", str(count), "--verbose"]
    how = ["--reset-policy", "earliest", "--consumer.config", config]
    return sum(Received.read(lines(kafka.run(f"{TOOLS}VerifiableConsumer", *where, *how))).times.values())


def lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def judged(events: Path) -> tuple[AuditOutcome, Facts]:
    found = read_events(events)
    facts = balance(found.events, refused=found.refused)
    return verdict_of(facts), facts


def test_a_foreign_load_passes_and_agrees_with_what_the_tools_printed(kafka: Kafka, tmp_path: Path) -> None:
    events = tmp_path / "events"
    writes, reads = settings(PRODUCER, events, client_id="foreign"), settings(CONSUMER, events)
    load = Foreign(kafka, make_topic(kafka, "foreign", 6), rate=200, members=2, producing=writes, consuming=reads)
    try:
        load.start()
        wait_until(lambda: len(Acknowledged.read(load.lines("producer")).values) > 1_000, "some records")
        load.stop()
    finally:
        load.close()
    outcome, facts = judged(events)
    acknowledged = Acknowledged.read(load.lines("producer"))
    received = [Received.read(load.lines(member)) for member in load.members]
    assert (outcome, facts.reasons) == (AuditOutcome.PASS, ())
    assert facts.acked == len(acknowledged.values) > 1_000
    assert facts.delivered == {GROUP: sum(sum(one.times.values()) for one in received)}
    [balanced] = facts.balances
    assert (balanced.once, balanced.lost, balanced.unseen) == (facts.acked, 0, 0)


def test_records_that_the_group_skips_are_lost(kafka: Kafka, tmp_path: Path) -> None:
    topic = make_topic(kafka, "skipped")
    assert (produce(kafka, topic, tmp_path / "events"), consume(kafka, topic, tmp_path / "events")) == (100, 100)
    assert judged(tmp_path / "events")[0] is AuditOutcome.PASS
    assert produce(kafka, topic, tmp_path / "events") == 100
    member = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": topic, "enable.auto.commit": False})
    member.commit(offsets=[TopicPartition(topic, 0, 150)], asynchronous=False)
    member.close()
    assert consume(kafka, topic, tmp_path / "events", count=50) == 50
    outcome, facts = judged(tmp_path / "events")
    assert outcome is AuditOutcome.FAIL
    assert [(case.first, case.last, case.count) for case in facts.lost.cases] == [(100, 149, 50)]


def test_an_account_with_a_hole_does_not_pass_and_harms_nobody(kafka: Kafka, tmp_path: Path) -> None:
    topic = make_topic(kafka, "overflowing", 6)
    assert produce(kafka, topic, tmp_path / "events", kmigrate_events_queue="1") == 100
    assert consume(kafka, topic, tmp_path / "events") == 100
    outcome, facts = judged(tmp_path / "events")
    assert outcome is AuditOutcome.INCONCLUSIVE
    assert any("more than 1 waited" in reason.text for reason in facts.reasons)


def test_a_folder_that_cannot_be_written_harms_nobody_and_is_no_pass(kafka: Kafka, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    topic, events = make_topic(kafka, "unwritable"), tmp_path / "file" / "events"
    assert (produce(kafka, topic, events), consume(kafka, topic, events)) == (100, 100)
    assert verdict_of(balance([])) is AuditOutcome.INCONCLUSIVE
    assert not events.exists()


def test_the_oldest_client_writes_the_same(kafka: Kafka, tmp_path: Path) -> None:
    jars = ":".join(str(path) for path in sorted(interceptor.oldest_tools().glob("*.jar")))
    oldest = Kafka(kafka.java, f"{interceptor.classes()}:{jars}", kafka.bootstrap, tmp_path / "oldest")
    topic, events = make_topic(kafka, "oldest"), tmp_path / "events"
    assert produce(oldest, topic, events, server="--broker-list") == 100
    assert consume(oldest, topic, events, server="--broker-list") == 100
    outcome, facts = judged(events)
    assert (outcome, facts.acked, facts.delivered) == (AuditOutcome.PASS, 100, {topic: 100})
    assert all(json.loads(path.read_text())["clean"] for path in events.glob("*.done"))
