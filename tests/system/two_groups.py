"""Two groups that use ZooKeeper on one cluster, one of a JVM application and one of a Python application, and what became of their records."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka.admin import AdminClient

from airflow_provider_kmigrate.applications.event_log import read_events
from airflow_provider_kmigrate.clients.group_reads import log_offsets, seen
from airflow_provider_kmigrate.clients.settings import ZooKeeperSettings
from airflow_provider_kmigrate.clients.wire import LATEST
from airflow_provider_kmigrate.clients.zookeeper import ZooKeeper
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.ledger import balance
from airflow_provider_kmigrate.core.member.group_seen import GroupSeen, MemberKind
from benchmarks.old_application import OldApplication
from benchmarks.rehearsal import Rehearsal
from tests.consumer.migrating_group import delivered
from tests.kit.account import told_in
from tests.kit.judge import TOPIC, Acknowledged, judge_told
from tests.old_consumer.jvm_application import CutoverGroup, JvmApplication, Record
from tests.waiting import wait_until

JVM = CutoverGroup("invoices", TOPIC)
PYTHON = OldApplication("search", "orders", bake="0s", kind="python")


def observe(rehearsal: Rehearsal) -> list[GroupSeen]:
    names = [JVM.group, PYTHON.group]
    with ZooKeeper(ZooKeeperSettings(rehearsal.cluster.zookeeper)) as zk:
        groups = seen(zk, {"bootstrap.servers": rehearsal.cluster.bootstrap}, names)
    return [groups[name] for name in names]


def kinds(rehearsal: Rehearsal) -> list[list[MemberKind]]:
    return [[member.kind for member in group.members or ()] for group in observe(rehearsal)]


def positions(rehearsal: Rehearsal) -> list[dict[TopicPartition, int]]:
    """What each group has committed, the larger of both stores."""
    return [group.positions for group in observe(rehearsal)]


def members_in_kafka(rehearsal: Rehearsal) -> list[int]:
    """How many members each group has; ZooKeeper knows none any more."""
    admin = AdminClient({"bootstrap.servers": rehearsal.cluster.bootstrap})
    found = admin.describe_consumer_groups([JVM.group, PYTHON.group], request_timeout=20)
    return [len(found[name].result(30).members) for name in (JVM.group, PYTHON.group)]


def check_ledger(rehearsal: Rehearsal) -> None:
    """What the Python application wrote down, and what the judge says of both loads, over the whole story."""
    end_load(rehearsal)
    account = rehearsal.account()
    assert account.failures == (), account.summary()


def check_told(rehearsal: Rehearsal) -> None:
    """What the Python application wrote down, by two readers of it; the replicas' logs are not dumped, which takes minutes."""
    events = end_load(rehearsal)
    rehearsal.stop_applications()
    reading = read_events(events)
    facts = balance(reading.events, refused=reading.refused)
    assert facts.acked > 1000
    assert (facts.lost.count, facts.double_owned.count, facts.reordered.count, facts.commit_gap.count) == (0, 0, 0, 0), facts
    judgement = judge_told(told_in(events), ["orders"])
    assert (judgement.problems, judgement.doubts, judgement.acknowledged) == ((), (), facts.acked)


def end_load(rehearsal: Rehearsal) -> Path:
    """No more records; the Python application is delivered the rest. Returns its events."""
    assert rehearsal.workload is not None
    rehearsal.workload.stop()
    events, partitions = rehearsal.workload.events, [TopicPartition("orders", number) for number in range(6)]
    ends = log_offsets({"bootstrap.servers": rehearsal.cluster.bootstrap}, partitions, LATEST)
    assert len(ends) == len(partitions)
    wait_until(lambda: delivered(events) >= sum(ends.values()), "the Python application is caught up", 120.0)
    return events


def check_account(rehearsal: Rehearsal) -> None:
    """The JVM application's log against what Kafka's own producer was acknowledged."""
    assert rehearsal.beside is not None
    assert JVM.running is not None
    application: JvmApplication = JVM.running
    rehearsal.beside.stop()
    acked: set[Record] = {(TOPIC, *place) for place in Acknowledged.read(rehearsal.beside.lines("producer")).values}
    wait_until(lambda: acked <= application.processed().keys(), "the JVM application has processed everything", 120.0)
    own = application.account(acked)
    assert own.acked > 1000
    assert (own.lost, own.skipped) == (0, 0), own
    assert own.repeated <= own.uncommitted, own
