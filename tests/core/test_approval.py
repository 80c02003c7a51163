"""Whose answer counts, whether an approval still holds when it is used, and which runs only wait."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from airflow_provider_kmigrate.core.approval import (
    BY_CONF,
    Approval,
    ApproverAnswer,
    Shown,
    digest,
    fingerprint,
    from_json,
    missing_answers,
    not_counting,
    only_waits,
    still_holds,
)
from airflow_provider_kmigrate.core.cluster import ApproverSpec
from airflow_provider_kmigrate.core.gates import GateState
from tests.core.views import DUAL

AT = datetime.fromisoformat("2026-11-27T22:00:00+00:00")
ANN = ApproverAnswer("Finalize", "ann", "Ann", AT.isoformat(), "the soak is over")
BOB = replace(ANN, user="bob", name="Bob")
EVE = replace(ANN, user="eve", name="Eve")
TWO = ApproverSpec(("ann", "bob"), required=2, reason=True, expires=3600.0)
SHOWN = Shown("dag/run", "cluster 1", {"soak": digest("healthy"), "equivalent": digest("the same")})


@pytest.mark.parametrize(
    ("answer", "approvers", "earlier", "approves", "counts"),
    [
        (ANN, None, (), True, True),
        (ANN, TWO, (), True, True),
        (EVE, None, (), True, True),
        (EVE, TWO, (), True, False),
        (EVE, TWO, (), False, False),
        (replace(ANN, user=""), TWO, (), True, False),
        (replace(ANN, user="Ann", name="ann"), TWO, (), True, False),  # a name is no id
        (replace(ANN, reason=" "), TWO, (), True, False),
        (replace(ANN, reason=" "), TWO, (), False, True),  # to change nothing needs no reason
        (replace(ANN, reason=""), replace(TWO, reason=False), (), True, True),
        (ANN, TWO, (ANN,), True, False),
        (BOB, TWO, (ANN,), True, True),
        (replace(ANN, option="Roll back"), TWO, (ANN,), True, True),
        (replace(ANN, option="Stay in dual-write", reason=""), TWO, (ANN,), False, True),
    ],
)
def test_whose_answer_counts(answer, approvers, earlier, approves, counts):
    why = not_counting(answer, approvers, earlier, approves=approves)
    assert (why is None) is counts
    assert why is None or why.code == "H10"


@pytest.mark.parametrize(
    ("answers", "approvers", "missing"),
    [((), None, 1), ((ANN,), None, 0), ((ANN,), TWO, 1), ((ANN, ANN), TWO, 1), ((ANN, BOB), TWO, 0)],
)
def test_how_many_more_must_approve(answers, approvers, missing):
    assert missing_answers(answers, approvers) == missing


@pytest.mark.parametrize(
    ("approval", "now", "approvers", "hours", "about"),
    [
        (Approval(SHOWN, (ANN, BOB)), SHOWN, TWO, 0.9, ""),
        (Approval(SHOWN, (ANN,)), SHOWN, None, 9999, ""),
        (None, SHOWN, TWO, 0, "No approval"),
        (Approval(SHOWN, (ANN, BOB)), replace(SHOWN, run="dag/later"), TWO, 0, "is of run dag/run"),
        (Approval(SHOWN, (ANN, BOB)), replace(SHOWN, cluster="cluster 2"), TWO, 0, "another migration"),
        (Approval(SHOWN, (ANN, BOB)), replace(SHOWN, cluster=""), TWO, 0, "another migration"),
        (Approval(replace(SHOWN, cluster=""), (ANN, BOB)), SHOWN, TWO, 0, ""),
        (Approval(SHOWN, (ANN, BOB)), replace(SHOWN, evidence={**SHOWN.evidence, "soak": digest("")}), TWO, 0, "changed since: soak"),
        (Approval(SHOWN, (ANN, BOB)), replace(SHOWN, evidence={}), TWO, 0, "changed since: equivalent, soak"),
        (Approval(SHOWN, (ANN, BOB)), SHOWN, TWO, 1.1, "1.1 h old"),
        (Approval(SHOWN, (ANN, replace(BOB, at=(AT + timedelta(hours=1)).isoformat()))), SHOWN, TWO, 1.1, "1.1 h old"),
        (Approval(SHOWN, (ANN,)), SHOWN, TWO, 0, "1 more"),
        (Approval(SHOWN, (ANN, EVE)), SHOWN, TWO, 0, "No approver of this cluster any more: Eve"),
        (Approval(SHOWN, (replace(ANN, user=BY_CONF),)), SHOWN, TWO, 9999, ""),
    ],
)  # fmt: skip
def test_an_approval_is_used_only_as_it_was_given(approval, now, approvers, hours, about):
    gate = still_holds(approval, now, approvers, AT + timedelta(hours=hours))
    assert gate.met is (not about)
    assert about in " ".join(reason.text for reason in gate.reasons)
    if about:
        assert gate.state is GateState.NEVER
        assert {reason.code for reason in gate.reasons} == {"H06"}


def test_each_migration_has_its_own_fingerprint_and_an_unread_one_none():
    later = replace(DUAL, zk=replace(DUAL.zk, migration=replace(DUAL.zk.migration, created_at=DUAL.zk.migration.created_at + 1)))
    assert (
        len({fingerprint(DUAL, "a"), fingerprint(later, "a"), fingerprint(DUAL, "b"), fingerprint(replace(DUAL, zk=None), "a")})
        == 4
    )
    moved = replace(DUAL, zk=replace(DUAL.zk, migration=replace(DUAL.zk.migration, metadata_offset=999)))
    assert fingerprint(moved, "a") == fingerprint(DUAL, "a"), "the dual-write goes on while a person reads"
    assert fingerprint(replace(DUAL, zk=None), "a") == ""


def test_it_survives_storage_and_nothing_else_is_taken_for_one():
    approval = Approval(SHOWN, (ANN, BOB))
    assert from_json(approval.to_json()) == approval
    for other in (
        None,
        "yes",
        {},
        {"answers": []},
        {"shown": {}, "answers": []},
        {**approval.to_json(), "answers": [{"user": "ann"}]},
    ):
        assert from_json(other) is None


@pytest.mark.parametrize(
    ("states", "waits"),
    [
        ({"approve": "awaiting_input"}, True),
        ({"approve": "deferred"}, True),
        ({"soak": "deferred", "second_roll.registered": "success", "approve": None}, True),
        ({"stop_after_first_roll": "awaiting_input", "first_roll.broker_0": "skipped"}, True),
        ({"approve": "running"}, False),
        ({"soak": "running"}, False),
        ({"approve": "awaiting_input", "finalize.controller_3000": "scheduled"}, False),
        ({"approve": "awaiting_input", "stop_probe": "up_for_retry"}, False),
        ({"second_roll.broker_1": "deferred"}, False),
        ({"approve": "success", "finalize.controller_3000": "queued"}, False),
        ({"approve": "success"}, False),
        ({}, False),
    ],
)
def test_which_runs_only_wait(states, waits):
    assert only_waits(states) is waits
