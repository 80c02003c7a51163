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

from airflow_provider_kmigrate.core.member.group_seen import MemberKind
from airflow_provider_kmigrate.core.migration.phase import Phase, position_of
from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.steps.catalog import find_group
from airflow_provider_kmigrate.steps.groups import ReleaseGroup
from airflow_provider_kmigrate.steps.prepare import run_preflight
from airflow_provider_kmigrate.steps.run import run_step
from benchmarks import direct
from benchmarks.rehearsal import Rehearsal
from tests.kit.load import TopicPlan
from tests.kit.localcluster.plan import Shape
from tests.system.evidence import EVERYTHING
from tests.system.two_groups import JVM, PYTHON, check_account, check_ledger, kinds, members_in_kafka
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.proof, pytest.mark.timeout(1500)]
OLD, PLAIN = MemberKind.ZOOKEEPER, MemberKind.KAFKA


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
