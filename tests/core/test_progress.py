"""What a step has learned comes back as it was stored, or is refused."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_kmigrate.core.cluster_state.decision import Refuse
from airflow_provider_kmigrate.core.cluster_state.model import Cause, Reason
from airflow_provider_kmigrate.core.migration.progress import FRESH, VERSION, StepProgress, from_json

REASON = st.builds(Reason, st.text(), st.text(), cause=st.none() | st.sampled_from(Cause))
REASONS = st.lists(REASON, max_size=3).map(tuple)
SECONDS = st.floats(0.0, 1e9)
COUNT = st.integers(0, 1000)
PROGRESS = st.builds(StepProgress, SECONDS, SECONDS, SECONDS, COUNT, REASONS, REASONS, st.booleans(), COUNT, COUNT)
LEARNED = StepProgress(480.0, 30.0, 690.0, 13, (Reason("V30", "It starves."),), (Reason("V30", "It starves."),), True, 2, 1)
STORED = LEARNED.to_json()


@given(PROGRESS)
def test_the_progress_of_a_step_comes_back_as_it_was_stored(progress: StepProgress) -> None:
    assert from_json(json.loads(json.dumps(progress.to_json()))) == progress


def test_nothing_stored_is_a_fresh_start() -> None:
    assert from_json(None) == FRESH == StepProgress()


@pytest.mark.parametrize(
    "stored",
    [
        {},
        [],
        "progress",
        {"held": 480.0, "verdict": []},
        {**STORED, "version": None},
        {**STORED, "version": "1"},
        {name: value for name, value in STORED.items() if name != "verdict"},
        {**STORED, "something_else": 1},
        *(
            {**STORED, name: value}
            for name in ("healthy_seconds", "lapses")
            for value in (-1, float("nan"), float("inf"), "1", True, None)
        ),
        {**STORED, "lapses": 1.5},
        {**STORED, "restart_begun": 1},
        *({**STORED, "verdict": value} for value in ("V30", ["V30"], [["V30", "It starves."]], [["V30", 1, "", ""]], None)),
    ],
)
def test_what_cannot_be_read_is_refused_not_forgotten(stored: Any) -> None:
    found = from_json(stored)
    assert isinstance(found, Refuse)
    assert [(reason.code, "cannot be read" in reason.text) for reason in found.reasons] == [("H09", True)]


def test_what_a_newer_version_stored_is_refused_and_says_so() -> None:
    found = from_json({**STORED, "version": VERSION + 1, "new": 1})
    assert isinstance(found, Refuse)
    assert f"newer kmigrate (version {VERSION + 1}" in found.reasons[0].text


def test_a_new_try_has_new_patience_and_watches_for_itself() -> None:
    assert LEARNED.for_retry() == replace(LEARNED, waited_seconds=0.0, worse=())


@given(PROGRESS, PROGRESS)
def test_what_is_stored_before_an_act_forgets_nothing_that_matters_and_overstates_no_health(
    stored: StepProgress, now: StepProgress
) -> None:
    kept = stored.merge_before_act(now)
    assert kept.healthy_seconds <= min(stored.healthy_seconds, now.healthy_seconds)
    assert kept.verdict == (now.verdict or stored.verdict)
    assert kept.restart_begun == (stored.restart_begun or now.restart_begun)
    assert (kept.recoveries, kept.member_restarts) == (now.recoveries, now.member_restarts)
    assert kept.merge_before_act(now) == kept, "it is stored once"


def test_every_field_is_stored() -> None:
    assert STORED.keys() == {"version", *(each.name for each in fields(StepProgress))}
