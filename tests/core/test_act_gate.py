"""The gate before every act, as a table: each thing that keeps a process from it alone, and which of two is named."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from math import inf, nan

import pytest

from airflow_provider_kmigrate.core.cluster_state.decision import Act, Done, Refuse, Verb, Wait
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.migration.gates import (
    MAX_VIEW_AGE,
    SETTLING,
    Barrier,
    Standing,
    find_barrier,
    wait_after_outage,
)

FREE = Standing(age=0.0, is_identified=True)
KEPT = {
    Barrier.AGE: {"age": MAX_VIEW_AGE + 0.1},
    Barrier.UNIDENTIFIED: {"is_identified": False},
    Barrier.STRANGER: {"strangers": (Reason("I01", "another cluster"),)},
    Barrier.FENCED: {"fenced": True},
    Barrier.STOPPED: {"switch": "Ann: disk full"},
}


def test_nothing_keeps_the_process_of_a_fresh_view_that_holds_the_cluster() -> None:
    assert find_barrier(FREE) is None
    assert find_barrier(replace(FREE, age=MAX_VIEW_AGE)) is None


def test_each_barrier_has_a_row() -> None:
    assert list(KEPT) == list(Barrier)


@pytest.mark.parametrize("one", Barrier)
def test_each_of_them_alone_keeps_it(one: Barrier) -> None:
    assert find_barrier(replace(FREE, **KEPT[one])) is one  # type: ignore[arg-type]


@pytest.mark.parametrize(("first", "second"), list(combinations(Barrier, 2)))
def test_of_two_barriers_the_first_one_is_named(first: Barrier, second: Barrier) -> None:
    assert find_barrier(replace(FREE, **KEPT[first], **KEPT[second])) is first  # type: ignore[arg-type]


@pytest.mark.parametrize("age", [nan, inf, -1.0])
def test_an_age_that_is_no_number_of_the_past_is_too_old(age: float) -> None:
    assert find_barrier(replace(FREE, age=age)) is Barrier.AGE


@pytest.mark.parametrize("verb", Verb)
def test_after_a_moment_without_zookeeper_nothing_but_a_start_comes_at_once(verb: Verb) -> None:
    """A broker was stopped in the second after, and its partitions were left with one replica."""
    act = Act(verb, "now")
    for blind in (0.0, 1.0, 4.9):
        found = wait_after_outage(act, blind)
        assert (found is act) is verb.brings_up, blind
        assert isinstance(found, Wait) is not verb.brings_up, blind
    for blind in (SETTLING, 60.0, inf):
        assert wait_after_outage(act, blind) is act
    assert 5.0 <= SETTLING < 60.0, "sessions end within it"


@pytest.mark.parametrize("decision", [Done("all"), Wait(()), Refuse(())])
def test_what_is_no_act_does_not_wait_for_it(decision: Done | Wait | Refuse) -> None:
    assert wait_after_outage(decision, 0.0) is decision
