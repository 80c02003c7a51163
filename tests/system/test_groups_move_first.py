"""A group of a JVM application and one of a Python application leave ZooKeeper, each its own way, and then their cluster does: one story.

By the real DAGs in one Airflow, under load. The JVM application reads what Kafka's VerifiableProducer writes, beside a group of Kafka's VerifiableConsumer;
what it processed is known from its own log alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from airflow_provider_kmigrate.clients.group_reads import log_offsets, seen
from airflow_provider_kmigrate.clients.settings import ZooKeeperSettings
from airflow_provider_kmigrate.clients.wire import LATEST
from airflow_provider_kmigrate.clients.zookeeper import ZooKeeper
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.member.group_seen import MemberKind
from airflow_provider_kmigrate.core.migration.phase import Phase, position_of
from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.steps.catalog import find_group
from airflow_provider_kmigrate.steps.groups import ReleaseGroup
from airflow_provider_kmigrate.steps.prepare import run_preflight
from airflow_provider_kmigrate.steps.run import run_step
from benchmarks import direct
from benchmarks.old_application import OldApplication
from benchmarks.rehearsal import Rehearsal
from tests.consumer.migrating_group import delivered
from tests.kit.judge import TOPIC, Acknowledged
from tests.kit.load import TopicPlan
from tests.kit.localcluster.plan import Shape
from tests.old_consumer.jvm_application import CutoverGroup, JvmApplication, Record
from tests.system.evidence import EVERYTHING
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.proof, pytest.mark.timeout(1500)]
OLD, PLAIN = MemberKind.ZOOKEEPER, MemberKind.KAFKA
JVM = CutoverGroup("invoices", TOPIC)
PYTHON = OldApplication("search", "orders", bake="0s", kind="python")


@pytest.fixture
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rehearsal]:
    there = Rehearsal(
        tmp_path_factory.mktemp("first"),
        Shape(name="first", controllers=1),
        [TopicPlan("orders", 6)],
        (),
        rate=100.0,
        producers=1,
        applications=[JVM, PYTHON],
        foreign=(100, 1),
    )
    with closing(there):
        there.up()
        back = {"approve_rollback": there.cluster.plan.cluster_id, "goal": "zookeeper_consumers", "groups": [JVM.group]}
        there.start_airflow(between=[("kmigrate_consumers_rollback", back)])
        there.load()
        there.start_applications()
        wait_until(lambda: kinds(there) == [[OLD, OLD], [OLD, OLD]], "two instances of each group consume")
        yield there


def kinds(rehearsal: Rehearsal) -> list[list[MemberKind]]:
    names = [JVM.group, PYTHON.group]
    with ZooKeeper(ZooKeeperSettings(rehearsal.cluster.zookeeper)) as zk:
        groups = seen(zk, {"bootstrap.servers": rehearsal.cluster.bootstrap}, names)
    return [[member.kind for member in groups[name].members or ()] for name in names]


def test_groups_leave_zookeeper_and_then_the_cluster_does(rehearsal: Rehearsal) -> None:
    check_asked_before_the_first_restart(rehearsal)
    check_done(rehearsal.move_groups(), rehearsal)
    assert kinds(rehearsal) == [[PLAIN, PLAIN], [PLAIN, PLAIN]]
    check_done(rehearsal.finish_dag("kmigrate_consumers_rollback"), rehearsal)
    assert kinds(rehearsal) == [[OLD, OLD], [PLAIN, PLAIN]]
    move_again(rehearsal)
    assert kinds(rehearsal) == [[PLAIN, PLAIN], [PLAIN, PLAIN]]
    with direct.context(rehearsal.cluster, "then", acting=False) as context:
        assert "G21" not in {finding.code for finding in run_preflight(context)}
    check_done(rehearsal.migrate(), rehearsal)
    with direct.context(rehearsal.cluster, "end", acting=False) as context:
        assert position_of(context.observer.observe(EVERYTHING)).phase is Phase.FINALIZED
    assert members_in_kafka(rehearsal) == [2, 2], "both groups went on through the migration"
    check_account(rehearsal)
    check_ledger(rehearsal)


def check_done(run: dict[str, Any], rehearsal: Rehearsal) -> None:
    assert run["state"] == "success", f"{json.dumps(run, indent=1)}\n{rehearsal.dag_log.read_text()[-6000:]}"


def move_again(rehearsal: Rehearsal) -> None:
    """The JVM application, after its rollback and without Airflow."""
    with direct.context(rehearsal.cluster, "again") as context:
        run_step(ReleaseGroup(find_group(context.spec, JVM.group)), context)
        direct.step(context, "cutover", group=JVM.group)
        context.fence.release()


def check_asked_before_the_first_restart(rehearsal: Rehearsal) -> None:
    """The migration's first task is refused, and names both groups."""
    with direct.context(rehearsal.cluster, "first", acting=False) as context, pytest.raises(Refused) as refused:
        run_preflight(context)
    (text,) = [reason.text for reason in refused.value.reasons if reason.code == "G21"]
    assert all(group in text for group in (JVM.group, PYTHON.group)), text


def members_in_kafka(rehearsal: Rehearsal) -> list[int]:
    """How many members each group has; ZooKeeper knows none any more."""
    admin = AdminClient({"bootstrap.servers": rehearsal.cluster.bootstrap})
    found = admin.describe_consumer_groups([JVM.group, PYTHON.group], request_timeout=20)
    return [len(found[name].result(30).members) for name in (JVM.group, PYTHON.group)]


def check_ledger(rehearsal: Rehearsal) -> None:
    """What the Python application wrote down, and what the judge says of both loads, over the whole story."""
    assert rehearsal.workload is not None
    rehearsal.workload.stop()
    partitions = [TopicPartition("orders", number) for number in range(6)]
    ends = log_offsets({"bootstrap.servers": rehearsal.cluster.bootstrap}, partitions, LATEST)
    assert len(ends) == len(partitions)
    wait_until(lambda: delivered(rehearsal.workload.events) >= sum(ends.values()), "the Python application is caught up", 120.0)  # type: ignore[union-attr]
    account = rehearsal.account()
    assert account.failures == (), account.summary()


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
