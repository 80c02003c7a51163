"""Each condition of a rollback, by a table of what is seen and whether it is met."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import ClusterView, Controller, NodeFiles, Process, ProcessState
from airflow_provider_kmigrate.core.migration import gates, handover, rollback
from airflow_provider_kmigrate.core.migration.gates import Gate, GateState
from tests.core.back_views import ALL_MIG, DUAL, FINAL_FILE, FLAG_FILE, STOPPED, handed_over, later, with_files
from tests.core.views import DOWN, KRAFT, MIG, UP, ZK, cluster, controller, migration, with_broker, with_controller, with_zk

BACK = handed_over([MIG, MIG, MIG])
UNKNOWN = Process(ProcessState.UNKNOWN)


def shape(gate: Gate) -> tuple[GateState, ...]:
    return (gate.state, *(reason.code for reason in gate.reasons))


def zk_ids(view: ClusterView, *ids: int) -> ClusterView:
    return with_zk(view, broker_ids=frozenset(ids))


@pytest.mark.parametrize(
    ("view", "met"),
    [
        (BACK, True),
        (with_broker(BACK, 2, controller_id=1), False),
        (with_broker(BACK, 2, controller_id=None), False),
        (with_broker(cluster([MIG, MIG, KRAFT]), 0, controller_id=0), False),
        (with_broker(BACK, 2, mode=KRAFT, controller_id=3000), True),  # it has another one
        (with_broker(BACK, 2, mode=None, controller_id=None), True),  # a broker that is down is not asked
        (replace(BACK, zk=None), False),
        (with_zk(BACK, controller=None), False),
        (zk_ids(BACK, 1, 2), False),  # the broker that /controller names is not registered
        (DUAL, False),  # a KRaft controller
    ],
)
def test_every_broker_names_the_controller(view: ClusterView, met: bool) -> None:
    assert shape(rollback.brokers_name_controller(view)) == ((GateState.MET,) if met else (GateState.NOT_YET, "G28"))


@pytest.mark.parametrize(
    ("process", "answers", "state"),
    [
        (DOWN, False, GateState.MET),
        (DOWN, True, GateState.NEVER),  # something answers in its place
        (UP, True, GateState.NEVER),
        (UP, False, GateState.NOT_YET),
        (UNKNOWN, False, GateState.NOT_YET),
        (UNKNOWN, True, GateState.NEVER),
    ],
)
def test_a_controller_is_down_if_its_process_is_and_nothing_answers(process: Process, answers: bool, state: GateState) -> None:
    found = Controller(3001, process, answers)
    assert rollback.controller_down(found).state is state
    view = replace(STOPPED, controllers={**STOPPED.controllers, 3001: found})
    expected = (state,) if state is GateState.MET else (state, "G26")
    assert shape(rollback.controllers_down(view)) == expected, "all of them are asked"
    assert rollback.controllers_unresponsive(view).met is not answers


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (with_files(STOPPED, FLAG_FILE), (GateState.NOT_YET, "G00")),  # the other two were not read
        (with_files(STOPPED, FINAL_FILE), (GateState.NEVER, "R12")),
        (with_files(BACK, FINAL_FILE), (GateState.MET,)),  # ZooKeeper owns the cluster
    ],
)
def test_no_stopped_controller_has_the_final_properties(view: ClusterView, expected: tuple[object, ...]) -> None:
    unread = {node: replace(found, files=NodeFiles()) for node, found in view.controllers.items() if node != 3001}
    assert shape(handover.no_unseen_finalization(replace(view, controllers={**view.controllers, **unread}))) == expected


def test_all_files_without_a_final_one_are_enough() -> None:
    read = {node: replace(controller(node, None), files=NodeFiles(FLAG_FILE)) for node in STOPPED.controllers}
    assert handover.no_unseen_finalization(replace(STOPPED, controllers=read)).met


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (later(STOPPED, handover.STILL_FOR), (GateState.MET,)),
        (later(STOPPED, handover.STILL_FOR - 0.1), (GateState.NOT_YET, "T01")),
        (later(STOPPED, 5.0, offset=51), (GateState.NEVER, "G26")),
        (replace(later(STOPPED), zk=None), (GateState.NOT_YET, "G00")),
    ],
)
def test_migration_is_still(view: ClusterView, expected: tuple[object, ...]) -> None:
    assert shape(handover.migration_znode_unchanged(view, STOPPED)) == expected


def test_migration_is_not_known_to_be_still_if_it_was_not_read_before() -> None:
    assert shape(handover.migration_znode_unchanged(later(STOPPED), replace(STOPPED, zk=None))) == (GateState.NOT_YET, "G00")


@pytest.mark.parametrize(
    ("state", "epoch", "answer"),
    [
        (3, 3, (GateState.MET,)),
        (4, 3, (GateState.NEVER, "G02")),
        (2, 3, (GateState.MET,)),
        (None, 3, (GateState.NOT_YET, "G00")),
        (4, None, (GateState.NOT_YET, "G00")),
    ],
)
def test_no_partition_state_is_out_of_the_controllers_reach(
    state: int | None, epoch: int | None, answer: tuple[object, ...]
) -> None:
    view = replace(with_zk(BACK, controller_epoch=epoch), state_epoch=state)
    assert shape(gates.leaders_can_move(view)) == answer
    assert shape(gates.leaders_can_move(replace(view, zk=None))) == (GateState.NOT_YET, "G00")


def test_the_others_must_answer() -> None:
    unresponsive = with_controller(ALL_MIG, 3001, answers=False)
    assert gates.controllers_answer(unresponsive, excused_controller=3001).met
    assert shape(gates.controllers_answer(unresponsive, excused_controller=3000)) == (GateState.NOT_YET, "G23")


def test_what_is_left_of_a_migration() -> None:
    assert rollback.migration_znode_exists(with_zk(BACK, migration=migration(-1)))
    assert not rollback.migration_znode_exists(BACK)
    assert not rollback.migration_znode_exists(replace(DUAL, zk=None))
    assert cluster([KRAFT, ZK, KRAFT]).in_mode(KRAFT) == [0, 2]
