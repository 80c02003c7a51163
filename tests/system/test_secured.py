"""There, back, there again and finalized on a cluster with TLS, passwords and an authorizer, under load by a user with few rights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer

from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode
from airflow_provider_kmigrate.core.migration.phase import Phase, position_of
from airflow_provider_kmigrate.steps.catalog import run_rollback
from airflow_provider_kmigrate.steps.run import StepContext
from benchmarks import direct
from tests.kit.account import Account, judge_acknowledged, judge_equal, kafka_of, log_dirs
from tests.kit.judge import Foreign, read_zookeeper
from tests.kit.load import TopicPlan, create_topics, summary_of
from tests.kit.processes import NodeProcess
from tests.kit.workload import GroupPlan, Workload, WorkloadPlan
from tests.system import evidence, secured
from tests.system.secured import PASSWORDS, TOKEN_KEY, TOOL, Secured

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.proof, pytest.mark.timeout(600)]

MINE, OTHERS = "orders", "payments"


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Secured]:
    try:
        found = secured.up(tmp_path)
        create_topics(found.client(TOOL, "PLAIN"), [TopicPlan(MINE, 12), TopicPlan(OTHERS, 3)])
        found.allow("alice", MINE)
        yield found
    finally:
        secured.LocalCluster(tmp_path / "cluster").clean()


def test_there_back_and_there_again_with_rights_enforced_throughout(
    there: Secured, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    plan = WorkloadPlan((MINE,), rate=200.0, groups=(GroupPlan(MINE, 2),))
    folder = there.cluster.folder.parent
    load = Workload(folder / "load", there.client("alice"), plan)
    foreign = Foreign(kafka_of(there.cluster, folder / "foreign", there.java_client(), there.bootstrap))
    foreign.create_topic()
    request.addfinalizer(foreign.close)
    foreign.start()
    load.start()
    token = there.create_token(foreign.kafka, "alice")
    enforced(there, token)
    with context(there, "there") as here:
        direct.to_copied(here)
        enforced(there, token)
        direct.step(here, "roll", node=0, target=BrokerMode.KRAFT)
        enforced(there, token)
        direct.step(here, "equivalent")
        run_rollback(here)
        assert position_of(here.observer.observe(evidence.EVERYTHING)).phase is Phase.ZOOKEEPER
    enforced(there, token)
    with context(there, "again") as here:
        direct.forward(here)
        assert position_of(here.observer.observe(evidence.EVERYTHING)).phase is Phase.FINALIZED
    equal = judge_equal(there.cluster, foreign.kafka)
    assert f"allow-all-topic {MINE} (literal) for User:alice from *" in read_zookeeper(there.cluster.zookeeper).acls
    NodeProcess(there.cluster.plan.zookeeper_folder).signal(9)  # type: ignore[arg-type]
    enforced(there, token)
    load.stop()
    foreign.stop()
    judged = foreign.judge(log_dirs(there.cluster)) + judge_acknowledged(there.cluster, foreign.kafka, load.events, [MINE])
    assert Account(summary_of(load), judged + equal).failures == ()
    reported = capsys.readouterr()
    journals = (there.cluster.folder.parent / "kmigrate" / "journal").glob("*.jsonl")
    said = "".join([reported.out, reported.err, *(path.read_text() for path in journals)])
    assert said
    assert not [secret for secret in (*PASSWORDS.values(), TOKEN_KEY, token[1]) if secret in said]


def context(there: Secured, run: str) -> AbstractContextManager[StepContext]:
    return direct.context(there.cluster, run, spec=there.spec, connections=there.connections)


def enforced(there: Secured, token: tuple[str, str]) -> None:
    """alice may write her topic and no other, a wrong password is refused, and a client without a password may do nothing.

    Every broker lets her in by the token that was made before anything was migrated, and by no other HMAC.
    """
    identity, code = token
    assert [node.name for node in there.spec.brokers if not there.is_token_accepted(node, identity, code)] == []
    assert [node.name for node in there.spec.brokers if there.is_token_accepted(node, identity, code[::-1])] == []
    assert sent(there.client("alice"), MINE) is None
    assert sent(there.client("alice"), OTHERS) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert sent(there.client("alice", password="wrong"), MINE) == KafkaError._MSG_TIMED_OUT
    assert sent({"bootstrap.servers": there.cluster.bootstrap}, MINE) == KafkaError.TOPIC_AUTHORIZATION_FAILED


def sent(properties: dict[str, str], topic: str) -> int | None:
    """The error that one record meets; None where it is acknowledged."""
    errors: list[int | None] = []
    producer = Producer({**properties, "message.timeout.ms": 6_000, "log_level": 0})
    producer.produce(topic, b"x", on_delivery=lambda error, _: errors.append(error.code() if error else None))
    producer.flush(20)
    (error,) = errors
    return error
