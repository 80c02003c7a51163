"""What may be removed after a migration or a rollback, and when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import ClusterView
from airflow_provider_kmigrate.core.migration.leftovers import (
    Leftover,
    LeftoverKind,
    plan_clean_up,
    removable_leftovers,
    why_kept,
)
from airflow_provider_kmigrate.core.migration.phase import ClusterPosition, Phase, position_of
from airflow_provider_kmigrate.core.migration.plan_document import describe_drift, render_request
from airflow_provider_kmigrate.core.migration.plan_facts import PlanFacts
from tests.core.preflight_views import healthy
from tests.core.views import DUAL, ZK, cluster, with_broker

CLUSTER = healthy()[1].spec
PLAIN = cluster([ZK, ZK, ZK])


def plan_of(leftovers: Sequence[Leftover], view: ClusterView) -> dict[str, Any]:
    return plan_clean_up(PlanFacts(CLUSTER, view, {}, None), leftovers)


def shown(leftovers: Sequence[Leftover], view: ClusterView) -> str:
    return render_request(plan_of(leftovers, view))


AFTER_ROLLBACK = {LeftoverKind.KEPT_FILE, LeftoverKind.SET_ASIDE, LeftoverKind.METADATA_LOG, LeftoverKind.CONTROLLER_FILE}
AFTER_FINALIZATION = {LeftoverKind.KEPT_FILE, LeftoverKind.SET_ASIDE}
EVERY = [Leftover("broker 1", kind, f"/{kind}") for kind in LeftoverKind]


@pytest.mark.parametrize("phase", Phase)
def test_what_may_be_removed_in_which_phase(phase):
    allowed = {Phase.ZOOKEEPER: AFTER_ROLLBACK, Phase.FINALIZED: AFTER_FINALIZATION}.get(phase, set())
    assert {left.kind for left in EVERY if not why_kept(left, ClusterPosition(phase))} == allowed


@pytest.mark.parametrize(
    ("view", "why"),
    [
        (cluster([ZK, None, ZK]), "Brokers that did not answer: 1."),
        (cluster([ZK, ZK, ZK], (None, None, None), -1), "Controllers that did not answer"),
        (with_broker(PLAIN, 1, named=False), "Brokers that the cluster file does not name: 1."),
    ],
    ids=["a broker", "the controllers of a migration that has begun", "an unnamed broker"],
)
def test_nothing_is_removed_while_a_node_that_does_not_answer_may_need_it(view: ClusterView, why: str) -> None:
    assert position_of(view).phase is Phase.ZOOKEEPER
    assert removable_leftovers(EVERY, view) == ()
    assert shown(EVERY, view).count(why) == len(AFTER_ROLLBACK)


def test_the_list_says_of_each_what_happens_to_it():
    text = shown(EVERY, DUAL)
    assert text.count(" stays: ") == len(LeftoverKind)
    assert removable_leftovers(EVERY, DUAL) == ()
    text = shown(EVERY, PLAIN)
    assert text.count(". remove from ") == len(AFTER_ROLLBACK)
    assert {left.kind for left in removable_leftovers(EVERY, PLAIN)} == AFTER_ROLLBACK
    assert shown((), PLAIN).startswith("Nothing is left.")


def test_the_name_of_a_file_makes_no_line_of_its_own():
    named = Leftover("broker 1", LeftoverKind.SET_ASIDE, "/d.old\n2. remove from broker 2\x1b[x](http://evil)")
    rows = shown([named], PLAIN).splitlines()
    assert rows[0].startswith("1. remove from broker 1: set aside /d.old\\n2.")
    assert not any(line.startswith("2.") or "\x1b" in line or "](http" in line for line in rows)


@pytest.mark.parametrize(
    "now",
    [
        plan_of(EVERY[1:], PLAIN),
        plan_of([*EVERY, Leftover("broker 2", LeftoverKind.KEPT_FILE, "/more")], PLAIN),
        plan_of([replace(EVERY[0], path="/other"), *EVERY[1:]], PLAIN),
        plan_of(EVERY, DUAL),
    ],
    ids=["less", "more", "another path", "another phase"],
)
def test_whatever_is_different_is_another_plan(now: dict[str, Any]) -> None:
    before = plan_of(EVERY, PLAIN)
    assert describe_drift(before, plan_of(EVERY, PLAIN)) == ()
    assert describe_drift(before, now)
    assert before["fingerprint"] != now["fingerprint"]
