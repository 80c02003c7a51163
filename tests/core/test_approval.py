"""Whose answer counts, whether an approval still holds when it is used, and which runs only wait."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from datetime import datetime, timedelta

import pytest

from airflow_provider_kmigrate.core.cluster_state.spec import ApproverSpec
from airflow_provider_kmigrate.core.migration.approval import (
    BY_CLUSTER,
    BY_CONF,
    SKEW,
    Approval,
    ApproverAnswer,
    Shown,
    approval_unchanged,
    approval_valid,
    count_missing_answers,
    fingerprint,
    hash_text,
    parse_approval,
    run_only_waits,
    sign_record,
    why_not_counted,
)
from airflow_provider_kmigrate.core.migration.gates import GateState
from tests.core.views import DUAL

AT = datetime.fromisoformat("2026-11-27T22:00:00+00:00")
ANN = ApproverAnswer("Finalize", "ann", "Ann", AT.isoformat(), "the soak is over")
BOB = replace(ANN, user="bob", name="Bob")
EVE = replace(ANN, user="eve", name="Eve")
TWO = ApproverSpec(("ann", "bob"), required=2, reason=True, expires=3600.0)
SHOWN = Shown("dag/run", "cluster 1", {"soak": hash_text("healthy"), "equivalent": hash_text("the same")})


@pytest.mark.parametrize(
    ("answer", "approvers", "earlier", "approves", "counts"),
    [
        (ANN, None, (), True, True),
        (ANN, TWO, (), True, True),
        (EVE, None, (), True, True),
        (replace(ANN, user=""), None, (), True, False),
        (replace(ANN, user=""), None, (), False, False),
        (EVE, TWO, (), True, False),
        (EVE, TWO, (), False, False),
        (replace(ANN, user=""), TWO, (), True, False),
        (replace(ANN, user="Ann", name="ann"), TWO, (), True, False),  # a name is no id
        (replace(ANN, reason=" "), TWO, (), True, False),
        (replace(ANN, reason="\u200b\u2060\u00ad"), TWO, (), True, False),  # no page shows it
        (replace(ANN, reason="- ."), TWO, (), True, False),
        (replace(ANN, reason="検査済み"), TWO, (), True, True),
        (replace(ANN, reason=" "), TWO, (), False, True),  # to change nothing needs no reason
        (replace(ANN, reason=""), replace(TWO, reason=False), (), True, True),
        (ANN, TWO, (ANN,), True, False),
        (BOB, TWO, (ANN,), True, True),
        (replace(ANN, option="Roll back"), TWO, (ANN,), True, True),
        (replace(ANN, option="Stay in dual-write", reason=""), TWO, (ANN,), False, True),
    ],
)
def test_whose_answer_counts(answer, approvers, earlier, approves, counts):
    why = why_not_counted(answer, approvers, earlier, approves=approves)
    assert (why is None) is counts
    assert why is None or why.code == "H10"


@pytest.mark.parametrize(
    ("answers", "approvers", "missing"),
    [((), None, 1), ((ANN,), None, 0), ((ANN,), TWO, 1), ((ANN, ANN), TWO, 1), ((ANN, BOB), TWO, 0)],
)
def test_how_many_more_must_approve(answers, approvers, missing):
    assert count_missing_answers(answers, approvers) == missing


WHOLE = Approval(SHOWN, (ANN, BOB), "approve", hash_text("the request"))


@pytest.mark.parametrize(
    ("approval", "now", "approvers", "hours", "about"),
    [
        (WHOLE, SHOWN, TWO, 0.9, ""),
        (replace(WHOLE, answers=(ANN,)), SHOWN, None, 9999, ""),
        (None, SHOWN, TWO, 0, "No approval"),
        (WHOLE, replace(SHOWN, run="dag/later"), TWO, 0, "is of run dag/run"),
        (WHOLE, replace(SHOWN, cluster="cluster 2"), TWO, 0, "another migration"),
        (WHOLE, replace(SHOWN, cluster=""), TWO, 0, "another migration"),
        (WHOLE, replace(SHOWN, evidence={**SHOWN.evidence, "soak": hash_text("")}), TWO, 0, "changed since: soak"),
        (WHOLE, replace(SHOWN, evidence={}), TWO, 0, "changed since: equivalent, soak"),
        (WHOLE, SHOWN, TWO, 1.1, "1.1 h old"),
        (replace(WHOLE, answers=(ANN, replace(BOB, at=(AT + timedelta(hours=1)).isoformat()))), SHOWN, TWO, 1.1, "1.1 h old"),
        (replace(WHOLE, answers=(ANN,)), SHOWN, TWO, 0, "1 more"),
        (replace(WHOLE, answers=(ANN, EVE)), SHOWN, TWO, 0, "No approver of this cluster any more: Eve"),
        (replace(WHOLE, answers=(replace(ANN, user=BY_CLUSTER),)), SHOWN, None, 0, "No approver was asked"),
    ],
)
def test_an_approval_is_used_only_as_it_was_given(approval, now, approvers, hours, about):
    gate = approval_valid(approval, now, approvers, AT + timedelta(hours=hours), rehearsal=False)
    assert gate.met is (not about)
    assert about in " ".join(reason.text for reason in gate.reasons)
    if about:
        assert gate.state is GateState.NEVER
        assert {reason.code for reason in gate.reasons} == {"H06"}


@pytest.mark.parametrize("rehearsal", [True, False])
def test_only_a_rehearsal_is_approved_by_a_runs_conf_however_the_record_came_about(rehearsal):
    by_conf = replace(WHOLE, answers=(replace(ANN, user=BY_CONF, name=BY_CONF),))
    assert approval_valid(by_conf, SHOWN, TWO, AT, rehearsal=rehearsal).met is rehearsal
    assert approval_unchanged(by_conf, SHOWN, AT, rehearsal=rehearsal).met is rehearsal


FAR = (
    "9999-12-31T23:59:59+00:00", "9999-12-31T23:59:59-23:59", (AT + SKEW + timedelta(seconds=1)).isoformat(), "0001-01-01T00:00:00+23:59",
    "2026-11-27T22:00:00", "2026-11-27", "garbage", "", "2026-13-01T00:00:00+00:00", "\x00", "9" * 5000,
)  # fmt: skip
"""Dates of answers that are of the future, of no time zone, or none."""


def flawed():
    """Every whole record with one thing of it that is empty, far or no hash; by the fields of the record's own classes."""
    shown = {"run": [""], "cluster": [""], "evidence": [{}, {"soak": ""}, {"soak": "0" * 63}, {"soak": hash_text("x").upper()}]}
    answer = {"option": [""], "user": [""], "name": [], "at": FAR, "reason": []}
    assert (set(shown), set(answer)) == ({each.name for each in fields(Shown)}, {each.name for each in fields(ApproverAnswer)})
    for name, values in shown.items():
        yield from (replace(WHOLE, shown=replace(SHOWN, **{name: value})) for value in values)
    for name, values in answer.items():
        yield from (replace(WHOLE, answers=(ANN, replace(BOB, **{name: value}))) for value in values)
    yield replace(WHOLE, answers=())
    yield from (replace(WHOLE, status=status) for status in ("asked", "", "Given"))


@pytest.mark.parametrize("approval", list(flawed()))
@pytest.mark.parametrize("approvers", [None, TWO])
def test_what_is_empty_or_of_the_future_is_no_approval_whatever_is_shown_now(approval, approvers):
    """What is shown now is taken from the record itself, as by a gate that asks for what the record names."""
    for gate in (
        approval_unchanged(approval, approval.shown, AT, rehearsal=False),
        approval_valid(approval, approval.shown, approvers, AT, rehearsal=False),
    ):
        assert gate.state is GateState.NEVER
        assert {reason.code for reason in gate.reasons} == {"H06"}
        assert all(reason.text.endswith((".", "'")) and reason.meaning and reason.next_step for reason in gate.reasons)


def test_a_clock_that_is_a_little_ahead_makes_no_future():
    ahead = replace(WHOLE, answers=tuple(replace(each, at=(AT + SKEW).isoformat()) for each in WHOLE.answers))
    assert approval_valid(ahead, SHOWN, TWO, AT, rehearsal=False).met


ASKED = [
    ("", False, True), ("ann", False, True), (None, False, True), ("", True, True), ("bob", True, True), ("ann", True, False),
    ("ANN", True, False), ("Ann", True, False), (None, True, False),
]  # fmt: skip
"""Who started the run, whether that user is barred, and whether ann's approval counts."""


@pytest.mark.parametrize(("asked_by", "barred", "counts"), ASKED)
def test_a_requester_may_be_barred_from_approving_and_never_from_declining(asked_by, barred, counts):
    approvers = replace(TWO, not_requester=barred)
    why = why_not_counted(ANN, approvers, (), approves=True, asked_by=asked_by)
    assert (why is None) is counts
    assert why is None or (why.code, "not_requester" in why.text) == ("H10", True)
    assert why_not_counted(ANN, approvers, (), approves=False, asked_by=asked_by) is None


def test_each_migration_has_its_own_fingerprint_and_an_unread_one_none():
    later = replace(DUAL, zk=replace(DUAL.zk, migration=replace(DUAL.zk.migration, created_at=DUAL.zk.migration.created_at + 1)))
    assert (
        len({fingerprint(DUAL, "a"), fingerprint(later, "a"), fingerprint(DUAL, "b"), fingerprint(replace(DUAL, zk=None), "a")})
        == 4
    )
    moved = replace(DUAL, zk=replace(DUAL.zk, migration=replace(DUAL.zk.migration, metadata_offset=999)))
    assert fingerprint(moved, "a") == fingerprint(DUAL, "a"), "the dual-write goes on while a person reads"
    assert fingerprint(replace(DUAL, zk=None), "a") == ""


WRONG = (None, 5, True, [], ["a"], {}, {"a": 1}, 1.5)


STORED = json.loads(json.dumps(WHOLE.to_json()))


def with_one_wrong(value):
    """These JSON values with one of them of another type, one left out, or one too many."""
    yield from (wrong for wrong in WRONG if wrong != value)
    if isinstance(value, dict):
        yield {**value, "more": ""}
        for key in value:
            yield {other: inner for other, inner in value.items() if other != key}
            yield from ({**value, key: wrong} for wrong in with_one_wrong(value[key]))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from ([*value[:place], wrong, *value[place + 1 :]] for wrong in with_one_wrong(inner))


def is_whole(made):
    """Whether it only has other evidence, or no answer: a record, of which `approval_unchanged` judges the content."""
    evidence = (
        made["shown"]["evidence"]
        if isinstance(made, dict) and isinstance(made.get("shown"), dict) and "evidence" in made["shown"]
        else None
    )
    others = isinstance(evidence, dict) and all(isinstance(each, str) for each in evidence.values())
    return (isinstance(made, dict) and (made | {"answers": STORED["answers"]} == STORED and made.get("answers") == [])) or (
        others and made | {"shown": {**made["shown"], "evidence": STORED["shown"]["evidence"]}} == STORED
    )


MALFORMED = [made for made in with_one_wrong(STORED) if not is_whole(made)]


def test_an_approval_survives_storage():
    assert parse_approval(json.loads(json.dumps(WHOLE.to_json()))) == WHOLE


@pytest.mark.parametrize("stored", [*MALFORMED, "yes"])
def test_nothing_else_is_taken_for_one(stored):
    assert parse_approval(stored) is None


def test_a_signature_is_of_every_value_and_of_the_key():
    whole, key = WHOLE.to_json(), "k" * 32
    assert sign_record(json.loads(json.dumps(whole)), key) == sign_record(whole, key)
    assert len(MALFORMED) > 150
    assert sign_record(whole, key) not in {sign_record(other, key) for other in MALFORMED} | {sign_record(whole, "K" * 32)}


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
        ({"approve": "awaiting_input", "audit_session": "running", "audit_session_ended": None}, True),
        ({"soak": "deferred", "audit_session": "up_for_retry", "probe": "running", "probe_ended": None}, True),
        ({"second_roll.broker_1": "running", "audit_session": "running"}, False),
        (
            {
                "second_roll.broker_1": "failed",
                "soak": "upstream_failed",
                "audit_session": "running",
                "audit_session_ended": None,
            },
            True,
        ),
        ({"second_roll.broker_1": "success", "soak": None, "audit_session": "running"}, False),
        ({"audit_session": "running"}, False),
    ],
)
def test_a_run_only_waits_if_each_task_in_progress_waits_for_an_answer_or_for_time(states, waits):
    assert run_only_waits(states) is waits
