"""The phase is read from the cluster, and the migration table answers every pair of phase and intent."""

from dataclasses import replace
from itertools import product

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import Malformed, NodeFiles, ZkController
from airflow_provider_kmigrate.core.migration.phase import (
    TABLE,
    Intent,
    Phase,
    PhasePermit,
    find_alarms,
    migration_has_ended,
    permit,
    position_of,
    refusal_reasons,
)
from tests.core.views import BARE, FILES, FLAGGED, KRAFT, MIG, UP, ZK, cluster, migration, with_broker, with_zk


def left_behind(**changes):
    """Finalized, and broker 2 does not answer."""
    return with_broker(cluster([KRAFT, KRAFT, None], BARE, 90), 2, **changes)


SEEN = [
    ("plain", cluster([ZK, ZK, ZK]), Phase.ZOOKEEPER),
    ("controllers with a trace of -1", cluster([ZK, ZK, ZK], FLAGGED, -1), Phase.PRE_MIGRATION),
    ("one controller of three up", cluster([ZK, ZK, ZK], (True, None, None), -1), Phase.PRE_MIGRATION),
    ("one broker moved", cluster([MIG, ZK, ZK], FLAGGED, -1), Phase.FIRST_ROLL),
    ("one moved, one restarting", cluster([MIG, None, ZK], FLAGGED, -1), Phase.FIRST_ROLL),
    ("last one restarting", cluster([MIG, MIG, None], FLAGGED, -1), Phase.FIRST_ROLL),
    ("all moved", cluster([MIG, MIG, MIG], FLAGGED, -1), Phase.COPY),
    ("copied", cluster([MIG, MIG, MIG], FLAGGED, 90), Phase.DUAL_WRITE_ZOOKEEPER),
    ("copied, first of the second roll down", cluster([None, MIG, MIG], FLAGGED, 90), Phase.HYBRID),
    ("hybrid", cluster([KRAFT, MIG, MIG], FLAGGED, 90), Phase.HYBRID),
    ("last of the second roll down: not yet all", cluster([KRAFT, KRAFT, None], FLAGGED, 90), Phase.HYBRID),
    ("all KRaft", cluster([KRAFT, KRAFT, KRAFT], FLAGGED, 90), Phase.DUAL_WRITE),
    ("a standby without the flag", cluster([KRAFT, KRAFT, KRAFT], (True, True, False), 90), Phase.FINALIZING),
    ("finalized", cluster([KRAFT, KRAFT, KRAFT], BARE, 90), Phase.FINALIZED),
    ("finalized, ZooKeeper switched off", replace(cluster([KRAFT, KRAFT, KRAFT], BARE, 90), zk=None), Phase.FINALIZED),
    ("finalized with a broker left", cluster([KRAFT, KRAFT, MIG], BARE, 90), Phase.LEFT_BEHIND),
    ("finalized, and a broker that would start as before", left_behind(files=NodeFiles(FILES[ZK])), Phase.LEFT_BEHIND),
    ("finalized, and a broker that ZooKeeper lists", left_behind(in_zookeeper=True), Phase.LEFT_BEHIND),
    (
        "finalized, and a broker that runs with the file of before",
        left_behind(in_zookeeper=True, process=replace(UP, started_at=1.0), files=NodeFiles(FILES[KRAFT], written_at=2.0)),
        Phase.LEFT_BEHIND,
    ),
    (
        "finalized, and a broker that was started with its new file",
        left_behind(in_zookeeper=True, process=replace(UP, started_at=3.0), files=NodeFiles(FILES[KRAFT], written_at=2.0)),
        Phase.ENDED,
    ),
    ("finalized by a leader without the flag", cluster([KRAFT, KRAFT, MIG], (False, True, True), 90), Phase.LEFT_BEHIND),
    ("the same, every broker KRaft", cluster([KRAFT, KRAFT, KRAFT], (False, True, True), 90), Phase.ENDED),
    ("led without the flag, nothing copied yet", cluster([MIG, MIG, ZK], (False, True, True), -1), Phase.FIRST_ROLL),
    ("finalized, one broker unseen", cluster([KRAFT, KRAFT, None], BARE, 90), Phase.ENDED),
    (
        "finalized, one broker started on ZooKeeper again, which does not answer",
        with_broker(cluster([KRAFT, KRAFT, None], BARE, 90), 2, in_zookeeper=True),
        Phase.LEFT_BEHIND,
    ),
    (
        "finalized, /migration cleaned up",
        with_zk(cluster([KRAFT, KRAFT, KRAFT], BARE, 90), migration=None, controller=None),
        Phase.FINALIZED,
    ),
    (
        "led without the flag in the middle of the copy",
        with_zk(cluster([MIG, MIG, MIG], (False, True, True), -1), controller=ZkController(3000, 5, ephemeral=False)),
        Phase.COPY,
    ),
    ("a plain broker under KRaft", cluster([MIG, MIG, ZK], FLAGGED, 90), Phase.SPLIT),
    ("left over from a rollback", with_zk(cluster([ZK, ZK, ZK]), migration=migration(97)), Phase.STALE),
    (
        "left over from a rollback, new controllers without the flag",
        with_zk(cluster([ZK, ZK, ZK], BARE), migration=migration(97)),
        Phase.STALE,
    ),
    (
        "the same, between two controllers",
        with_zk(cluster([ZK, ZK, ZK], BARE), migration=migration(97), controller=None),
        Phase.UNKNOWN,
    ),
    (
        "between two controllers, flags on",
        with_zk(cluster([ZK, ZK, ZK], FLAGGED), migration=migration(97), controller=None),
        Phase.UNKNOWN,
    ),
    (
        "the same, brokers in migration mode",
        with_zk(cluster([MIG, MIG, MIG], BARE), migration=migration(97)),
        Phase.STALE,
    ),
    ("ZooKeeper unread", replace(cluster([MIG, MIG, MIG], FLAGGED, 90), zk=None), Phase.UNKNOWN),
    ("no broker answers", cluster([None, None, None]), Phase.UNKNOWN),
    ("no broker answers in dual-write", cluster([None, None, None], FLAGGED, 90), Phase.UNKNOWN),
    ("KRaft broker without a copy", cluster([KRAFT, MIG, MIG], FLAGGED, -1), Phase.UNKNOWN),
    ("/migration is null", with_zk(cluster([ZK, ZK, ZK]), migration=Malformed("/migration", "")), Phase.UNKNOWN),
    ("/controller is odd", with_zk(cluster([ZK, ZK, ZK]), controller=Malformed("/controller", "x")), Phase.UNKNOWN),
]


@pytest.mark.parametrize(("view", "phase"), [row[1:] for row in SEEN], ids=[row[0] for row in SEEN])
def test_phase_is_what_the_cluster_shows(view, phase):
    assert position_of(view).phase is phase


REASONS = {
    "one moved, one restarting": ["R01"],
    "last one restarting": ["R01"],
    "copied, first of the second roll down": ["R01"],
    "last of the second roll down: not yet all": ["R01"],
    "a standby without the flag": ["G05"],
    "finalized with a broker left": ["P02"],
    "finalized, and a broker that would start as before": ["P02"],
    "finalized, and a broker that ZooKeeper lists": ["P02"],
    "finalized, and a broker that runs with the file of before": ["P02"],
    "finalized, and a broker that was started with its new file": ["R01"],
    "finalized by a leader without the flag": ["P02"],
    "finalized, one broker unseen": ["R01"],
    "finalized, one broker started on ZooKeeper again, which does not answer": ["P02"],
    "a plain broker under KRaft": ["P07"],
    "left over from a rollback": ["P06"],
    "left over from a rollback, new controllers without the flag": ["P06"],
    "the same, between two controllers": ["P05"],
    "between two controllers, flags on": ["P05"],
    "the same, brokers in migration mode": ["P06"],
    "ZooKeeper unread": ["U01"],
    "no broker answers": ["R01"],
    "no broker answers in dual-write": ["R01"],
    "KRaft broker without a copy": ["P09"],
    "/migration is null": ["P04"],
    "/controller is odd": ["P05"],
}


@pytest.mark.parametrize(("name", "view"), [row[:2] for row in SEEN], ids=[row[0] for row in SEEN])
def test_a_phase_that_is_in_doubt_or_must_not_be_says_why(name, view):
    assert [reason.code for reason in position_of(view).reasons] == REASONS.get(name, [])


def test_the_migration_has_ended_once_a_leader_had_no_flag_despite_leftover_brokers_or_flags():
    assert {name for name, view, _ in SEEN if migration_has_ended(view)} == {
        "finalized",
        "finalized, ZooKeeper switched off",
        "finalized with a broker left",
        "finalized, and a broker that would start as before",
        "finalized, and a broker that ZooKeeper lists",
        "finalized, and a broker that runs with the file of before",
        "finalized, and a broker that was started with its new file",
        "finalized by a leader without the flag",
        "the same, every broker KRaft",
        "finalized, one broker unseen",
        "finalized, one broker started on ZooKeeper again, which does not answer",
        "finalized, /migration cleaned up",
    }


def test_every_phase_is_recognised_somewhere():
    assert {phase for _, _, phase in SEEN} == set(Phase)


def test_the_table_is_total():
    assert set(TABLE) == set(product(Phase, Intent))


def test_finalized_is_absorbing_and_nothing_acts_in_a_state_that_must_not_be_but_its_recovery():
    acting = {(phase, intent) for (phase, intent), allowed in TABLE.items() if allowed is PhasePermit.ACT}
    assert not any(phase is Phase.FINALIZED for phase, _ in acting)
    aside = {pair for pair in acting if pair[0] in {Phase.STALE, Phase.SPLIT, Phase.LEFT_BEHIND, Phase.UNKNOWN}}
    assert aside == {(Phase.LEFT_BEHIND, Intent.TO_KRAFT), (Phase.SPLIT, Intent.TO_MIGRATION)}


def test_finalization_acts_only_with_every_broker_on_kraft():
    acting = {phase for (phase, intent), allowed in TABLE.items() if intent is Intent.FINALIZE and allowed is PhasePermit.ACT}
    assert acting == {Phase.DUAL_WRITE, Phase.FINALIZING, Phase.ENDED}


@pytest.mark.parametrize("intent", Intent)
def test_what_is_done_stays_done_on_the_way_forward(intent):
    forward = [TABLE[phase, intent] for phase in list(Phase)[: list(Phase).index(Phase.UNKNOWN)]]
    first = forward.index(PhasePermit.DONE)
    assert set(forward[first:]) == {PhasePermit.DONE}


def test_an_unresponsive_broker_turns_a_refusal_into_waiting():
    view = cluster([KRAFT, KRAFT, None], FLAGGED, 90)
    assert permit(position_of(view), Intent.FINALIZE) is PhasePermit.WAIT


def test_unknown_waits():
    assert all(TABLE[Phase.UNKNOWN, intent] is PhasePermit.WAIT for intent in Intent)


def test_a_refusal_says_where_the_cluster_is_and_what_to_do():
    reasons = refusal_reasons(position_of(cluster([ZK, ZK, ZK])), Intent.FINALIZE)
    assert reasons[0].code == "P01"
    assert reasons[0].next_step


@pytest.mark.parametrize(
    ("view", "codes"),
    [
        (cluster([ZK, ZK, ZK]), set()),
        (cluster([MIG, MIG, MIG], FLAGGED, 90), set()),
        (cluster([KRAFT, KRAFT, KRAFT], BARE, 90), set()),
        (cluster([MIG, ZK, ZK], (True, False, True), -1), {"G05"}),
        (cluster([KRAFT, KRAFT, MIG], (True, False, True), 90), {"G05"}),
        (cluster([KRAFT, KRAFT, MIG], BARE, 90), {"P02"}),
        (cluster([KRAFT, KRAFT, MIG], (False, True, True), 90), {"P02"}),
        (cluster([KRAFT, KRAFT, KRAFT], (True, False, True), 90), {"G05"}),
        (cluster([KRAFT, KRAFT, KRAFT], (False, True, True), 90), set()),
        (cluster([MIG, MIG, MIG], (False, True, True), -1), {"G05"}),
        (cluster([MIG, MIG, ZK], FLAGGED, 90), {"P07"}),
        (with_zk(cluster([ZK, ZK, ZK]), migration=migration(97)), {"P06"}),
    ],
)
def test_alarms(view, codes):
    found = find_alarms(view)
    assert {reason.code for reason in found} == codes
    assert [reason.code for reason in found if not (reason.meaning and reason.next_step)] == [], (
        "read at night: why, and what to do"
    )


def test_a_kraft_claim_before_the_copy_is_still_the_copy():
    view = with_zk(cluster([MIG, MIG, MIG], FLAGGED, -1), controller=ZkController(3001, 2, ephemeral=False))
    assert position_of(view).phase is Phase.COPY
