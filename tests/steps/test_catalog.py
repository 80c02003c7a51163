"""Steps by their names, as tasks and triggers build them; acts that a step does not know; and what one restart of a broker runs."""

from __future__ import annotations

import inspect
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from airflow_provider_kmigrate.core.cluster_state.decision import Act, Done, Verb
from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole, Policy
from airflow_provider_kmigrate.core.groups.move import Goal
from airflow_provider_kmigrate.core.migration.plan import StepRow, rows_by_kind
from airflow_provider_kmigrate.exceptions import Failed, Refused
from airflow_provider_kmigrate.steps.brokers import RollBackBroker, RollBackCanary, RollBroker
from airflow_provider_kmigrate.steps.catalog import build, parse_rollback_terms, roll_all
from airflow_provider_kmigrate.steps.controllers import FinalizeController, ProvisionController
from airflow_provider_kmigrate.steps.expansion import StopGroups
from airflow_provider_kmigrate.steps.groups import RollBackGroup
from airflow_provider_kmigrate.steps.offsets_repair import RepairOffsets
from airflow_provider_kmigrate.steps.rollback import ControllerFailover, RestoreFlag
from airflow_provider_kmigrate.steps.run import Step, run_step
from airflow_provider_kmigrate.steps.waits import Copied, Soak
from tests.steps.canary_broker import ready, step
from tests.steps.phases import to_dual_write
from tests.steps.sim import SimCluster
from tests.steps.sim_group import GROUP, SimGroup
from tests.steps.sim_nodes import CLUSTER_ID

ARGUMENTS = {
    "node": 0,
    "group": GROUP,
    "instance": "app0",
    "target": "kafka",
    "bake": True,
    "mode": "kafka",
    "goal": "kafka_mode",
}
ARGUMENTS |= {"partitions": 20, "limit": "5"}
NAMES = {
    "provision": "provision controller 3000",
    "controllers ready": "controllers ready",
    "roll": "broker 0 to migration",
    "registered": "all brokers registered",
    "phase": "migration phase",
    "copied": "metadata copy",
    "lag": "dual-write lag",
    "equivalent": "metadata equivalence",
    "coordinators": "coordinators",
    "leaders": "preferred leaders",
    "soak": "soak in dual-write",
    "finalize": "finalize controller 3000",
    "finalized": "finalized",
    "restore flag": "restore flag of controller 3000",
    "controller failover": "controller failover",
    "roll back broker": "roll back broker 0 to migration",
    "equivalent after failover": "metadata equivalence",
    "handover": "handover to ZooKeeper",
    "zookeeper leads": "ZooKeeper controller",
    "wipe": "wipe controller 3000",
    "rolled back": "rolled back",
    "switch": f"app0 of group {GROUP} as kafka",
    "mode": f"mode kafka of group {GROUP}",
    "cutover": f"cut over group {GROUP}",
    "watch group": f"watch group {GROUP}",
    "roll back group": f"roll back group {GROUP} to kafka_mode",
    "expansion plan": "expansion plan",
    "groups stopped": "stop groups, __consumer_offsets to 20",
    "export offsets": "export offsets, __consumer_offsets to 20",
    "delete groups": "delete groups, __consumer_offsets to 20",
    "expand": "expand, __consumer_offsets to 20",
    "restart broker": "restart broker 0 for 20 partitions",
    "one coordinator": "one coordinator a group",
    "import offsets": "import offsets, __consumer_offsets to 20",
    "verify offsets": "verify offsets, __consumer_offsets to 20",
    "groups progress": "progress of the groups that moved",
    "repair offsets": "repair offsets",
    "clean up": f"clean up group {GROUP}",
}
"""Of steps as journals have them: `core.monitoring.journal_lines` reads some of them, and so do people."""


@pytest.mark.parametrize("row", [row for row in rows_by_kind().values() if row.step], ids=lambda row: row.kind)
def test_each_step_is_built_by_its_row_and_has_the_name_that_journals_have(row: StepRow) -> None:
    spec = replace(SimCluster().spec, groups=(SimGroup().spec,))
    node = {"node": 3000} if row.each is NodeRole.CONTROLLER else {}
    target = {"target": "migration"} if row.target else {}
    step = build(spec, row.kind, ARGUMENTS | node | target)
    assert step.name == NAMES.get(row.kind, step.name)
    assert step.estimate is row.estimate


@pytest.mark.parametrize("row", [row for row in rows_by_kind().values() if row.run], ids=lambda row: row.kind)
def test_each_row_that_runs_no_step_names_a_function_of_the_context(row: StepRow) -> None:
    module, _, name = row.run.rpartition(".")
    function = getattr(import_module(f"airflow_provider_kmigrate.steps.{module}"), name)
    assert next(iter(inspect.signature(function).parameters)) == "context"
    assert not row.step


def test_a_step_that_no_row_has_is_refused_by_its_name() -> None:
    with pytest.raises(ValueError, match=r"There is no step 'soack'; there are .*, soak, "):
        build(SimCluster().spec, "soack", {})


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
    assert Act(Verb.ROLL_BACK, "", "app0 to zookeeper").label == "roll back app0 to zookeeper"
    assert Act(Verb.RESTART, "").label == "restart"


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
    assert len(found) <= 27, sorted(found)


@pytest.mark.parametrize(
    "asked",
    [
        {"accept_loss": "another cluster"},
        {"accept_loss": CLUSTER_ID},
        {"accept_loss": "another cluster", "skip_failover": True},
        {"accept_split_groups": "another cluster"},
    ],
    ids=str,
)
def test_an_acceptance_that_would_not_take_effect_as_written_is_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(Refused, match="G35"):
        parse_rollback_terms(SimCluster().spec, asked)


@pytest.mark.parametrize(
    ("step", "verb"),
    [
        (RollBackGroup(SimGroup().spec, Goal.KAFKA_MODE), Verb.ROLL_BACK),
        (StopGroups(20), Verb.NOTE),
        (RepairOffsets({}), Verb.IMPORT),
    ],
    ids=lambda given: getattr(given, "name", given),
)
def test_a_step_does_not_act_before_it_has_decided(tmp_path: Path, step: Step, verb: Verb) -> None:
    with pytest.raises(Failed, match="before anything was decided"):
        step.act(SimCluster().context(tmp_path), Act(verb, "now"))
