"""Clocks that are wrong by minutes, and are set right while nodes run: named before anything begins, and no record the less."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_kmigrate.core.audit.verdict import AuditOutcome
from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode
from airflow_provider_kmigrate.steps.catalog import run_rollback
from airflow_provider_kmigrate.steps.prepare import observe_preflight, run_backup
from benchmarks import direct
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster import clocks
from tests.kit.localcluster.cluster import lent
from tests.kit.localcluster.plan import Shape, folder_of
from tests.kit.workload import GroupPlan, Workload, WorkloadPlan
from tests.verdicts import verdict_of

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(300)]


@pytest.mark.skipif(bool(clocks.why_not()), reason=clocks.why_not())
def test_there_and_back_with_a_broker_and_a_controller_that_jump_by_ten_minutes(tmp_path: Path) -> None:
    """The broker is ahead when it registers and set right in dual-write; the only controller falls back in the second roll."""
    with lent(tmp_path / "cluster", Shape(name="clocks", controllers=1)) as cluster:
        broker, controller = (folder_of(node) for node in (cluster.plan.brokers[1], cluster.plan.controllers[0]))
        cluster.down()
        for folder in (broker, controller):
            clocks.give_own(folder)
        workload: Workload | None = None
        try:
            with clocks.set_off(broker, 600):
                cluster.up()
                create_topics({"bootstrap.servers": cluster.bootstrap}, [TopicPlan("orders", 12)])
                plan = WorkloadPlan(("orders",), rate=100.0, groups=(GroupPlan("readers", 1),))
                workload = Workload(tmp_path / "load", {"bootstrap.servers": cluster.bootstrap}, plan)
                workload.start()
                with direct.context(cluster) as context:
                    named = [str(found) for found in observe_preflight(context).found if found.reason.code == "W8"]
                    run_backup(context)
                    direct.provision(context)
                    direct.roll(context, BrokerMode.MIGRATION)
                    direct.copy(context)
                    with clocks.set_off(controller, -600):
                        direct.roll(context, BrokerMode.KRAFT)
                        direct.step(context, "soak", seconds=5.0)
            with direct.context(cluster) as context:
                run_rollback(context)
            workload.stop()
            facts = workload.facts()
        finally:
            if workload:
                workload.stop(drain=0.0)
    assert len(named) == 1
    assert "broker 1 +6" in named[0], named
    assert (verdict_of(facts), facts.reasons) == (AuditOutcome.PASS, ())
    assert facts.acked > 2_000
