"""What went back is not moved forward again by the next run of a schedule."""

from __future__ import annotations

import pytest
from airflow.sdk import DAG

from airflow_provider_kmigrate.core.member.registration import GroupHold, write_hold
from airflow_provider_kmigrate.operators.groups import SetModeOperator
from tests.provider.dag_tasks import tasks
from tests.provider.group_dags import APPROVED, BACK, Group, RunDag, dag_of
from tests.steps.group_runs import gone
from tests.steps.sim_group import MIGRATING, OLD, PLAIN, ROOT, SimGroup

HOLD = f"{ROOT}/migration/hold"


@pytest.mark.slow
def test_a_canary_that_was_rolled_back_stops_later_runs_until_an_operator_releases_its_group(
    made: Group, run_dag: RunDag
) -> None:
    group = SimGroup(2, ill=frozenset({MIGRATING}))
    there = made(group, SimGroup(1, "mail"))
    assert tasks(run_dag(dag_of(there)))["billing.to_migrating_app0"] == "failed"
    assert b"is rolled back to zookeeper" in group.znodes[HOLD][0]
    starts = [one.starts for one in group.instances.values()]
    for conf in ({}, {"release_groups": ["mail"]}):
        states = tasks(run_dag(dag_of(there), run_conf=conf))
        assert (states["plan"], states["billing.check"]) == ("success", "failed")
        assert states["mail.to_migrating_app0"] == "upstream_failed"
    assert [one.starts for one in group.instances.values()] == starts
    assert there.groups["mail"].kinds() == [OLD]

    group.ill = frozenset()
    assert str(run_dag(dag_of(there), run_conf={"release_groups": ["billing"]}).state) == "success"
    assert group.kinds() == [PLAIN, PLAIN]
    assert HOLD not in group.znodes


def test_a_group_that_the_file_does_not_have_is_not_released(made: Group, run_dag: RunDag) -> None:
    assert tasks(run_dag(dag_of(made(SimGroup(1))), run_conf={"release_groups": ["bilings"]}))["plan"] == "failed"


@pytest.mark.parametrize(("mode", "state"), [("kafka", "failed"), ("zookeeper", "success")])
def test_the_mode_of_a_rollback_is_also_set_for_a_group_that_was_rolled_back(
    made: Group, run_dag: RunDag, mode: str, state: str
) -> None:
    group = gone(SimGroup(2), 2)
    group.znodes[HOLD] = (write_hold(GroupHold("another/run", "it was worse")), 0, 1)
    there = made(group)
    group.token = 0
    with DAG(dag_id=f"own_{mode}", schedule=None) as dag:
        SetModeOperator(cluster_file=str(there.path), task_id="mode", groups=["billing"], mode=mode)
    assert tasks(run_dag(dag)) == {"mode": state}


@pytest.mark.slow
def test_what_an_operator_rolled_back_is_not_migrated_by_the_next_run(made: Group, run_dag: RunDag) -> None:
    group = SimGroup(2)
    there = made(group)
    run_dag(dag_of(there))
    assert str(run_dag(dag_of(there, BACK), run_conf=APPROVED).state) == "success"
    starts = [one.starts for one in group.instances.values()]
    assert tasks(run_dag(dag_of(there)))["billing.check"] == "failed"
    assert (group.kinds(), [one.starts for one in group.instances.values()]) == ([OLD, OLD], starts)
