"""The order of the migration, of the rollback and of an expansion: a step that is missing, or changes places with another one, breaks a rule."""

from itertools import combinations

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole
from airflow_provider_kmigrate.core.migration.plan import (
    APPROVE,
    EXPANSION,
    MIGRATION,
    ROLLBACK,
    Plan,
    find_step,
    split_into_stages,
    steps_after_approval,
)

ORDER = {
    "migration": (
        MIGRATION,
        [
            ("preflight", "backup", "a cluster that may not be migrated is not even written about"),
            ("backup", "controllers.provision", "a controller's file is made from a saved original"),
            ("controllers.provision", "controllers.ready", "a controller that was not started answers nothing"),
            ("controllers.ready", "first_roll.broker", "a broker in migration mode needs a quorum that carries the flag"),
            ("first_roll.broker", "first_roll.leaders", "each restart moves leaders away"),
            ("first_roll.leaders", "first_roll.registered", "only a registered set of brokers is migrated; it is seen last"),
            ("first_roll.registered", "copy.copied", "the controllers copy once every broker is registered"),
            ("copy.copied", "copy.phase", "dual-write begins when the copy is over"),
            ("copy.phase", "copy.dual_write_lag", "lag is measured in dual-write"),
            ("copy.dual_write_lag", "copy.equivalence", "metadata on its way would count as a difference"),
            ("copy.equivalence", "second_roll.broker", "a broker in KRaft mode serves what KRaft holds"),
            ("second_roll.broker", "second_roll.leaders", "each restart moves leaders away"),
            ("second_roll.leaders", "second_roll.registered", "what the roll leaves behind is seen last"),
            ("second_roll.registered", "soak", "the soak watches a whole cluster"),
            ("soak", "before_approval.dual_write_lag", "the evidence is fresh when it is shown"),
            ("before_approval.dual_write_lag", "before_approval.equivalence", "metadata on its way would count as a difference"),
            (
                "before_approval.equivalence",
                "before_approval.rollback_plan",
                "the rollback that is shown keeps what was compared",
            ),
            (
                "before_approval.rollback_plan",
                "before_approval.readiness",
                "the verdict that the answer is bound to is the newest",
            ),
            ("before_approval.readiness", "approve", "an administrator sees the evidence before the answer"),
            ("approve", "finalize.controller", "the point of no return is approved"),
            ("finalize.controller", "finalize.finalized", "a cluster is finalized when no controller carries the flag"),
        ],
    ),
    "rollback": (
        ROLLBACK,
        [
            ("plan", "approve", "an administrator sees the plan before the answer"),
            ("approve", "controller_failover.restore_flag", "nothing is changed before the answer"),
            (
                "controller_failover.restore_flag",
                "controller_failover.failover",
                "a successor without the flag would finalize the migration",
            ),
            (
                "controller_failover.failover",
                "controller_failover.equivalence",
                "the new leader writes ZooKeeper again before both sides are compared",
            ),
            (
                "controller_failover.equivalence",
                "to_migration.broker",
                "what ZooKeeper lacks is found before any broker restarts",
            ),
            ("to_migration.broker", "handover.transaction", "a KRaft broker cannot live without a controller"),
            ("handover.transaction", "handover.zookeeper_leads", "no ZooKeeper broker can be elected before"),
            ("handover.zookeeper_leads", "wipe.controller", "their log is the only copy of what was not handed over"),
            ("wipe.controller", "to_zookeeper.broker", "a controller that starts with all brokers registered takes over"),
            ("handover.transaction", "to_zookeeper.broker", "a plain broker beside a KRaft controller is cut off"),
            ("to_zookeeper.broker", "to_zookeeper.leaders", "each restart moves leaders away"),
            ("to_zookeeper.leaders", "to_zookeeper.registered", "what the roll leaves behind is seen last"),
            ("to_zookeeper.registered", "rolled_back", "the run ends on a cluster as before the migration"),
        ],
    ),
    "expansion": (
        EXPANSION,
        [
            ("plan", "approve", "an administrator sees which groups must stop before the answer"),
            ("approve", "moving_groups.stopped", "nothing is changed before the answer"),
            ("moving_groups.stopped", "moving_groups.export", "a group with members commits behind its export"),
            ("moving_groups.export", "moving_groups.delete", "what is deleted is in the export alone"),
            ("moving_groups.delete", "expand", "a crash of a broker after the expansion would move groups that exist"),
            ("expand", "restart.broker", "a broker reads the count when it starts"),
            ("restart.broker", "restart.leaders", "each restart moves leaders away"),
            ("restart.leaders", "restart.one_coordinator", "coordinators are the leaders: they are seen last"),
            ("restart.one_coordinator", "import.offsets", "offsets are committed under the new count alone"),
            ("import.offsets", "import.verify", "what was imported is read back"),
            ("import.verify", "progress", "a group that starts before its offsets are there begins elsewhere"),
        ],
    ),
}


def broken(name: str, plan: Plan) -> list[str]:
    """The rules that a plan breaks; a step that is missing breaks those that name it."""
    place = {step.full_id(): number for number, step in enumerate(plan)}
    return [why for one, other, why in ORDER[name][1] if place.get(one, len(plan)) >= place.get(other, -1)]


@pytest.mark.parametrize("name", ORDER)
def test_every_step_is_where_it_must_be(name: str) -> None:
    plan = ORDER[name][0]
    assert broken(name, plan) == []
    assert {step.full_id() for step in plan} == {each for rule in ORDER[name][1] for each in rule[:2]}
    assert len({step.full_id() for step in plan}) == len(plan)


@pytest.mark.parametrize("name", ORDER)
def test_no_step_can_be_taken_out(name: str) -> None:
    plan = ORDER[name][0]
    assert [step for step in plan if not broken(name, tuple(each for each in plan if each is not step))] == []


@pytest.mark.parametrize("name", ORDER)
def test_no_two_steps_can_be_swapped(name: str) -> None:
    plan = ORDER[name][0]
    for one, other in combinations(range(len(plan)), 2):
        swapped = list(plan)
        swapped[one], swapped[other] = swapped[other], swapped[one]
        assert broken(name, tuple(swapped)), f"{plan[one]} and {plan[other]}"


def test_each_step_over_nodes_has_the_expected_role_mode_and_last_task() -> None:
    each = {
        step.full_id(): (step.each, step.target, step.last and step.last.task)
        for step in (*MIGRATION, *ROLLBACK, *EXPANSION)
        if step.each
    }
    assert each == {
        "controllers.provision": (NodeRole.CONTROLLER, None, None),
        "first_roll.broker": (NodeRole.BROKER, BrokerMode.MIGRATION, "postponed"),
        "second_roll.broker": (NodeRole.BROKER, BrokerMode.KRAFT, "postponed"),
        "finalize.controller": (NodeRole.CONTROLLER, None, "active_last"),
        "controller_failover.restore_flag": (NodeRole.CONTROLLER, None, None),
        "to_migration.broker": (NodeRole.BROKER, BrokerMode.MIGRATION, None),
        "wipe.controller": (NodeRole.CONTROLLER, None, None),
        "to_zookeeper.broker": (NodeRole.BROKER, BrokerMode.ZOOKEEPER, "postponed"),
        "restart.broker": (NodeRole.BROKER, None, "postponed"),
    }


def test_what_is_left_out_without_a_failover_and_what_is_approved() -> None:
    skipped = {step.kind: step.skip_if for step in (*MIGRATION, *ROLLBACK) if step.skip_if}
    assert skipped == {"restore flag": "skip_failover", "controller failover": "skip_failover"}
    undo = [step.kind for step in EXPANSION if step.skip_if != "undo"]
    assert undo == ["expansion plan", APPROVE, "import offsets", "verify offsets"]
    assert [step.kind for step in steps_after_approval(MIGRATION)] == ["finalize", "finalized"]
    assert ROLLBACK[:2] == (find_step(ROLLBACK, "plan"), find_step(ROLLBACK, APPROVE))


def test_a_plan_is_cut_into_its_groups() -> None:
    assert [name for name, _ in split_into_stages(ROLLBACK)][:4] == ["plan", "approve", "controller_failover", "to_migration"]
    assert [step.task for step in dict(split_into_stages(MIGRATION))["copy"]] == [
        "copied",
        "phase",
        "dual_write_lag",
        "equivalence",
    ]
    assert find_step(ROLLBACK, "roll back broker", "to_zookeeper").full_id(1) == "to_zookeeper.broker_1"
