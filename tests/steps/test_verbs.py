"""An act that a step does not know is done by none: a misspelt or foreign verb must not end as a restart."""

from pathlib import Path

import pytest

from airflow_provider_kmigrate.core.decision import Act, Verb
from airflow_provider_kmigrate.core.model import BrokerMode
from airflow_provider_kmigrate.steps.brokers import RollBackBroker, RollBackCanary, RollBroker
from airflow_provider_kmigrate.steps.controllers import FinalizeController, ProvisionController
from airflow_provider_kmigrate.steps.rollback import ControllerFailover, RestoreFlag
from airflow_provider_kmigrate.steps.run import Step
from airflow_provider_kmigrate.steps.waits import Copied, Soak
from benchmarks import direct
from tests.steps.sim import SimCluster

OF_A_NODE = {Verb.START, Verb.REWRITE, Verb.RESTART}
RECOVERIES = {Verb.START_CONTROLLER, Verb.COMPLETE, Verb.CONTROLLER_FAILOVER}
OF_A_BROKER = OF_A_NODE | RECOVERIES | {Verb.RESTART_LEADER, Verb.ELECT, Verb.ROLL_BACK_CANARY}


def steps(cluster: SimCluster) -> list[tuple[Step, set[Verb]]]:
    broker, controller, policy = cluster.spec.brokers[0], cluster.spec.controllers[0], cluster.spec.policy
    return [
        (RollBroker(broker, BrokerMode.KRAFT, policy), OF_A_BROKER),
        (RollBackBroker(broker, BrokerMode.MIGRATION, policy), OF_A_BROKER | {Verb.RAISE}),
        (RollBackCanary(broker, BrokerMode.MIGRATION, policy), OF_A_BROKER | {Verb.RAISE}),
        (ProvisionController(controller, cluster.spec.cluster_id), {Verb.START, Verb.REWRITE, Verb.REFLAG, Verb.PROVISION}),
        (FinalizeController(controller), OF_A_NODE),
        (RestoreFlag(controller), OF_A_NODE),
        (ControllerFailover(cluster.spec.controllers), {Verb.START, Verb.COMPLETE, Verb.CONTROLLER_FAILOVER}),
        (Copied(), RECOVERIES | {Verb.ELECT}),
        (Soak(1.0), RECOVERIES),
    ]


@pytest.mark.parametrize("number", range(9))
def test_a_foreign_verb_changes_nothing(tmp_path: Path, number: int) -> None:
    cluster = SimCluster()
    direct.to_dual_write(cluster.context(tmp_path))
    context = cluster.context(tmp_path)
    step, known = steps(cluster)[number]
    before = {key: (node.text, node.running, node.starts, node.stops) for key, node in cluster.nodes.items()}
    for verb in set(Verb) - known:
        with pytest.raises(AssertionError, match=verb):
            step.act(context, Act(verb, "not its own"))
    assert before == {key: (node.text, node.running, node.starts, node.stops) for key, node in cluster.nodes.items()}


def test_acts_are_counted_and_told_by_what_they_are_about() -> None:
    assert Act(Verb.ROLL_BACK, "", "app0 to zookeeper").named == "roll back app0 to zookeeper"
    assert Act(Verb.RESTART, "").named == "restart"
