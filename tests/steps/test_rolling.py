"""Steps by their names, as tasks and triggers build them; and several nodes in one task."""

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_kmigrate.core.model import BrokerMode
from airflow_provider_kmigrate.steps.brokers import RollBroker
from airflow_provider_kmigrate.steps.catalog import STEPS, build, roll_all
from tests.steps.sim import SimCluster
from tests.steps.sim_group import GROUP, SimGroup

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
    "stop controller": (CONTROLLER, "stop controller 3000"),
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
