"""A task of a run that is bound to a plan, on the simulated cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole
from airflow_provider_kmigrate.exceptions import Unavailable
from airflow_provider_kmigrate.operators.migration import ProvisionControllersOperator
from airflow_provider_kmigrate.steps.backup import BackupStore
from airflow_provider_kmigrate.utils.step_context import state_folder
from tests.provider.lone_tasks import Memory, alone, context
from tests.provider.simulated import Rehearsal, plan_of
from tests.steps.sim_nodes import CLUSTER_ID

pytestmark = pytest.mark.usefixtures("no_variables")


def edit_cluster_file(sim: Rehearsal) -> None:
    sim.path.write_text(sim.path.read_text() + "stop_after: [hybrid]\n")


def edit_original(sim: Rehearsal) -> None:
    sim.cluster.nodes[NodeRole.BROKER, 1].text += "num.io.threads=9\n"


def change_version(sim: Rehearsal) -> None:
    BackupStore(state_folder() / "backup", "sim", CLUSTER_ID).keep_metadata_version("3.8-IV0")


DRIFTS: dict[str, tuple[Callable[[Rehearsal], None], str]] = {
    "the cluster file": (edit_cluster_file, "The cluster file has changed"),
    "an original": (edit_original, "The original file of broker 1 has changed"),
    "the version": (change_version, "The inter.broker.protocol.version has changed"),
}


def provision(sim: Rehearsal, plan: dict[str, Any], reviewed: str) -> Any:
    """Run the task of the first controller, whose run's preflight has made `plan`; each time a task of the same run."""
    dag = alone(ProvisionControllersOperator, sim.path, controller=3000, plan_task="preflight", deferrable=False)
    dag.dag_id = "kmigrate_zk_to_kraft__sim"

    def pull(*, task_ids: str, key: str) -> Any:
        return (
            {"fingerprint": plan["fingerprint"], "inputs": plan["inputs"]} if (task_ids, key) == ("preflight", "plan") else None
        )

    ti = SimpleNamespace(xcom_push=lambda **_: None, xcom_pull=pull)
    found = context(dag) | {"ti": ti, "params": {"plan": reviewed}, "task_state_store": Memory()}
    return dag.get_task("task").execute(found)


@pytest.fixture
def sim(rehearse: Callable[..., Rehearsal]) -> Rehearsal:
    """A cluster whose backup is there."""
    made = rehearse()
    kept = BackupStore(state_folder() / "backup", "sim", CLUSTER_ID)
    kept.keep_metadata_version("3.9-IV0")
    for node in made.cluster.spec.brokers:
        kept.keep_original(node, made.cluster.nodes[NodeRole.BROKER, node.id].text)
    return made


@pytest.mark.parametrize("name", DRIFTS)
def test_an_act_of_a_bound_run_is_refused_by_name_if_its_plan_has_drifted(sim: Rehearsal, name: str) -> None:
    change, sentence = DRIFTS[name]
    plan = plan_of(sim)
    change(sim)
    with pytest.raises(AirflowFailException, match=rf"nothing was changed.*\[H16\].*{sentence}"):
        provision(sim, plan, plan["fingerprint"])
    assert sim.cluster.nodes[NodeRole.CONTROLLER, 3000].running is None
    (journal,) = Path(state_folder() / "journal" / "sim").glob("*.jsonl")
    assert sentence in journal.read_text()


def test_a_run_that_is_bound_acts_while_its_plan_is_the_same(sim: Rehearsal) -> None:
    plan = plan_of(sim)
    provision(sim, plan, plan["fingerprint"])
    assert sim.cluster.nodes[NodeRole.CONTROLLER, 3000].running is not None


def test_a_run_that_is_bound_to_no_plan_notes_the_drift_and_acts(sim: Rehearsal) -> None:
    plan = plan_of(sim)
    edit_original(sim)
    provision(sim, plan, "")
    assert sim.cluster.nodes[NodeRole.CONTROLLER, 3000].running is not None
    assert "The original file of broker 1 has changed" in next((state_folder() / "journal" / "sim").glob("*.jsonl")).read_text()


def test_a_controller_that_was_up_before_and_is_down_is_started_whatever_has_changed(sim: Rehearsal) -> None:
    plan = plan_of(sim)
    provision(sim, plan, plan["fingerprint"])
    node = sim.cluster.nodes[NodeRole.CONTROLLER, 3000]
    node.running = None
    edit_original(sim)
    provision(sim, plan, plan["fingerprint"])
    assert node.running is not None


def test_an_input_that_cannot_be_read_now_is_tried_again(rehearse: Callable[..., Rehearsal]) -> None:
    sim = rehearse()  # without a backup, which has the brokers' version
    plan = plan_of(sim)
    with pytest.raises(Unavailable, match=r"nothing was changed.*was not read: the inter.broker.protocol.version"):
        provision(sim, plan, plan["fingerprint"])
    assert sim.cluster.nodes[NodeRole.CONTROLLER, 3000].running is None
