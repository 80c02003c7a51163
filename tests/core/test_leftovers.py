"""What may be removed after a migration or a rollback, and when."""

from __future__ import annotations

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import ClusterView
from airflow_provider_kmigrate.core.migration.leftovers import (
    Leftover,
    LeftoverKind,
    removable_leftovers,
    render_document,
    to_document,
    why_kept,
)
from airflow_provider_kmigrate.core.migration.phase import ClusterPosition, Phase, position_of
from tests.core.views import DUAL, ZK, cluster, with_broker

PLAIN = cluster([ZK, ZK, ZK])

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
    assert render_document(to_document(EVERY, view)).count(why) == len(AFTER_ROLLBACK)


def test_the_list_says_of_each_what_happens_to_it():
    text = render_document(to_document(EVERY, DUAL))
    assert text.count("stays: ") == len(LeftoverKind)
    assert removable_leftovers(EVERY, DUAL) == ()
    text = render_document(to_document(EVERY, PLAIN))
    assert text.count("| removed |") == len(AFTER_ROLLBACK)
    assert {left.kind for left in removable_leftovers(EVERY, PLAIN)} == AFTER_ROLLBACK
    assert render_document(to_document((), PLAIN)) == "Nothing is left."


def test_the_name_of_a_file_makes_no_row_of_its_own():
    named = Leftover("broker 1", LeftoverKind.SET_ASIDE, "/d.old` | stays: harmless |\n| broker 2\x1b")
    rows = render_document(to_document([named], PLAIN)).splitlines()
    assert len(rows) == 3
    assert rows[2].replace("\\|", "").count("|") == 5
    assert rows[2].endswith("| removed |")
    assert "\x1b" not in rows[2]
