"""Steps by their names, as tasks and triggers build them; acts that a step does not know; and what one restart of a broker runs."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from airflow_provider_kmigrate.core.cluster import Policy
from airflow_provider_kmigrate.core.decision import Act, Done, Verb
from airflow_provider_kmigrate.core.model import BrokerMode
from airflow_provider_kmigrate.steps.brokers import RollBackBroker, RollBackCanary, RollBroker
from airflow_provider_kmigrate.steps.catalog import STEPS, build, roll_all
from airflow_provider_kmigrate.steps.controllers import FinalizeController, ProvisionController
from airflow_provider_kmigrate.steps.rollback import ControllerFailover, RestoreFlag
from airflow_provider_kmigrate.steps.run import Step, run_step
from airflow_provider_kmigrate.steps.waits import Copied, Soak
from tests.steps.phases import to_dual_write
from tests.steps.sim import SimCluster
from tests.steps.sim_group import GROUP, SimGroup
from tests.steps.test_first_broker import ready, step

BROKER, CONTROLLER, TARGET, COUNT = {"node": "0"}, {"node": 3000}, {"target": "migration"}, {"partitions": 20}
BUILT = {
    "provision": (CONTROLLER, "provision controller 3000"),
    "controllers ready": ({}, "controllers ready"),
    "roll": ({**BROKER, **TARGET}, "broker 0 to migration"),
    "registered": ({}, "all brokers registered"),
    "phase": ({}, "migration phase"),
    "copied": ({}, "metadata copy"),
    "lag": ({"limit": "5"}, "dual-write lag"),
    "equivalent": ({}, "metadata equivalence"),
    "coordinators": ({}, "coordinators"),
    "leaders": ({}, "preferred leaders"),
    "soak": ({}, "soak in dual-write"),
    "finalize": (CONTROLLER, "finalize controller 3000"),
    "finalized": ({}, "finalized"),
    "restore flag": (CONTROLLER, "restore flag of controller 3000"),
    "controller failover": ({}, "controller failover"),
    "roll back broker": ({**BROKER, **TARGET}, "roll back broker 0 to migration"),
    "equivalent after failover": ({}, "metadata equivalence"),
    "handover": ({}, "handover to ZooKeeper"),
    "zookeeper leads": ({}, "ZooKeeper controller"),
    "wipe": (CONTROLLER, "wipe controller 3000"),
    "rolled back": ({}, "rolled back"),
    "switch": ({"group": GROUP, "instance": "app0", "target": "kafka", "bake": True}, f"app0 of group {GROUP} as kafka"),
    "mode": ({"group": GROUP, "mode": "kafka"}, f"mode kafka of group {GROUP}"),
    "watch group": ({"group": GROUP}, f"watch group {GROUP}"),
    "roll back group": ({"group": GROUP, "goal": "kafka_mode"}, f"roll back group {GROUP} to kafka_mode"),
    "expansion plan": (COUNT, "expansion plan"),
    "groups stopped": (COUNT, "stop groups, __consumer_offsets to 20"),
    "export offsets": (COUNT, "export offsets, __consumer_offsets to 20"),
    "delete groups": (COUNT, "delete groups, __consumer_offsets to 20"),
    "expand": (COUNT, "expand, __consumer_offsets to 20"),
    "restart broker": ({**BROKER, **COUNT}, "restart broker 0 for 20 partitions"),
    "one coordinator": (COUNT, "one coordinator a group"),
    "import offsets": (COUNT, "import offsets, __consumer_offsets to 20"),
    "verify offsets": (COUNT, "verify offsets, __consumer_offsets to 20"),
    "groups progress": (COUNT, "progress of the groups that moved"),
    "repair offsets": ({}, "repair offsets"),
    "clean up": ({"group": GROUP}, f"clean up group {GROUP}"),
}


@pytest.mark.parametrize("kind", STEPS)
def test_each_step_is_built_by_its_name_and_has_the_name_that_journals_have(kind: str) -> None:
    spec = replace(SimCluster().spec, groups=(SimGroup().spec,))
    arguments, name = BUILT[kind]
    assert build(spec, kind, arguments).name == name


def test_the_log_of_the_last_one_of_a_pass_is_never_empty(tmp_path: Path) -> None:
    cluster, said = SimCluster(), list[str]()
    context = replace(cluster.context(tmp_path), say=said.append)
    mode = BrokerMode.ZOOKEEPER
    roll_all(context, mode, lambda node: RollBroker(node, mode, cluster.spec.policy))
    assert said == ["Done: No broker was left."]


OF_A_NODE = {Verb.START, Verb.REWRITE, Verb.RESTART}
RECOVERIES = {Verb.START_CONTROLLER, Verb.COMPLETE, Verb.CONTROLLER_FAILOVER}
OF_A_BROKER = OF_A_NODE | RECOVERIES | {Verb.RESTART_LEADER, Verb.ELECT, Verb.ROLL_BACK_CANARY}


def steps_and_verbs(cluster: SimCluster) -> list[tuple[Step, set[Verb]]]:
    broker, controller, policy = cluster.spec.brokers[0], cluster.spec.controllers[0], cluster.spec.policy
    return [
        (RollBroker(broker, BrokerMode.KRAFT, policy), OF_A_BROKER),
        (RollBackBroker(broker, BrokerMode.MIGRATION, policy), OF_A_BROKER | {Verb.RAISE, Verb.ROLL_BACK_OTHER}),
        (RollBackCanary(broker, BrokerMode.MIGRATION, policy), OF_A_BROKER | {Verb.RAISE, Verb.ROLL_BACK_OTHER}),
        (ProvisionController(controller, cluster.spec.cluster_id), OF_A_NODE | {Verb.REFLAG, Verb.PROVISION}),
        (FinalizeController(controller), OF_A_NODE),
        (RestoreFlag(controller), OF_A_NODE),
        (ControllerFailover(cluster.spec.controllers), {Verb.START, Verb.COMPLETE, Verb.CONTROLLER_FAILOVER}),
        (Copied(), RECOVERIES | {Verb.ELECT}),
        (Soak(1.0), RECOVERIES),
    ]


@pytest.mark.parametrize("number", range(9))
def test_a_foreign_verb_changes_nothing(tmp_path: Path, number: int) -> None:
    cluster = SimCluster()
    to_dual_write(cluster, cluster.context(tmp_path))
    context = cluster.context(tmp_path)
    step, known = steps_and_verbs(cluster)[number]
    before = {key: (node.text, node.running, node.starts, node.stops) for key, node in cluster.nodes.items()}
    for verb in set(Verb) - known:
        with pytest.raises(AssertionError, match=verb):
            step.act(context, Act(verb, "not its own"))
    assert before == {key: (node.text, node.running, node.starts, node.stops) for key, node in cluster.nodes.items()}


def test_acts_are_counted_and_named_by_what_they_are_about() -> None:
    assert Act(Verb.ROLL_BACK, "", "app0 to zookeeper").named == "roll back app0 to zookeeper"
    assert Act(Verb.RESTART, "").named == "restart"


HOUSE = "/airflow_provider_kmigrate/"


def of_the_house(frame: FrameType) -> str:
    """The file of the frame, below the package; empty outside it, and for what the simulation itself calls."""
    name = frame.f_code.co_filename.partition(HOUSE)[2]
    above: FrameType | None = frame if name else None
    while above is not None and above.f_code.co_name != "run_step":
        if "/tests/steps/sim" in above.f_code.co_filename:
            return ""
        above = above.f_back
    return name


def test_the_restart_of_a_broker_runs_few_files(tmp_path: Path) -> None:
    cluster = ready(tmp_path, BrokerMode.MIGRATION)
    cluster.spec = replace(cluster.spec, policy=Policy(canary_bake=0.0))
    found: set[str] = set()

    def watch(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename not in found and (name := of_the_house(frame)):
            found.add(name)

    rolling, context = step(cluster, BrokerMode.MIGRATION), cluster.context(tmp_path)
    sys.setprofile(watch)
    try:
        done = run_step(rolling, context)
    finally:
        sys.setprofile(None)
    assert isinstance(done, Done)
    assert len(found) <= 25, sorted(found)
