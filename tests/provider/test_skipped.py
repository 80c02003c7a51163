"""A task before `approve` that is SKIPPED (Airflow's pages and API set 'skipped' on any task) skips the approval too, and finalize RUNS."""
import pytest
from airflow.sdk.exceptions import AirflowSkipException
from airflow_provider_kmigrate.dag_builders import folder
from airflow_provider_kmigrate.core.model import BrokerMode
from tests.provider.test_dags import DAG_ID, tasks
from tests.provider.test_dags_rollback import begun  # noqa
from tests.steps.test_rollback import all_kraft, some_in_migration


def skipped(dag, *names):
    """What a person does with 'Mark as... skipped' / PATCH {"new_state": "skipped"} before the task starts."""
    for name in names:
        def skip(context):
            raise AirflowSkipException("a person set it to skipped")
        dag.get_task(name).pre_execute = skip


@pytest.mark.parametrize("name", ["soak", "approve", "before_approval.way_back", "second_roll.leaders"])
def test_forward(rehearse, run_dag, name):
    sim = rehearse()
    dag = folder.dags_of(sim.path.parent)[DAG_ID]
    skipped(dag, name)
    run = run_dag(dag)          # nobody approves anything: no conf, no person
    states = tasks(run)
    print({k: v for k, v in states.items() if v != "success"}, "FINALIZED:", sim.cluster.finalized, "brokers", {b.id: str(b.mode) for b in sim.cluster.look(None).brokers.values()})
    assert not sim.cluster.finalized


@pytest.mark.parametrize("name", ["plan", "approve"])
def test_back(begun, run_dag, name):
    sim, dag = begun(all_kraft)
    skipped(dag, name)
    run = run_dag(dag)
    print(tasks(run))
    assert sim.cluster.look(None).modes() == dict.fromkeys(range(3), BrokerMode.KRAFT)
