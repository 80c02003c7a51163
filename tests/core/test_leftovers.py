"""What may be removed after a migration or a rollback, and when."""

from __future__ import annotations

import pytest

from airflow_provider_kmigrate.core.leftovers import Leftover, LeftoverKind, kept_because, listed, removable
from airflow_provider_kmigrate.core.model import ClusterView
from airflow_provider_kmigrate.core.phase import ClusterPosition, Phase, where
from tests.core.views import DUAL, ZK, cluster, with_broker

PLAIN = cluster([ZK, ZK, ZK])

AFTER_ROLLBACK = {LeftoverKind.KEPT_FILE, LeftoverKind.SET_ASIDE, LeftoverKind.METADATA_LOG, LeftoverKind.CONTROLLER_FILE}
AFTER_FINALIZATION = {LeftoverKind.KEPT_FILE, LeftoverKind.SET_ASIDE}
EVERY = [Leftover("broker 1", kind, f"/{kind}") for kind in LeftoverKind]


@pytest.mark.parametrize("phase", Phase)
def test_what_may_be_removed_in_which_phase(phase):
    allowed = {Phase.ZOOKEEPER: AFTER_ROLLBACK, Phase.FINALIZED: AFTER_FINALIZATION}.get(phase, set())
    assert {left.kind for left in EVERY if not kept_because(left, ClusterPosition(phase))} == allowed


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
    assert where(view).phase is Phase.ZOOKEEPER
    assert removable(EVERY, view) == ()
    assert listed(EVERY, view).count(why) == len(AFTER_ROLLBACK)


def test_the_list_says_of_each_what_happens_to_it():
    text = listed(EVERY, DUAL)
    assert text.count("stays: ") == len(LeftoverKind)
    assert removable(EVERY, DUAL) == ()
    text = listed(EVERY, PLAIN)
    assert text.count("| removed |") == len(AFTER_ROLLBACK)
    assert {left.kind for left in removable(EVERY, PLAIN)} == AFTER_ROLLBACK
    assert listed((), PLAIN) == "Nothing is left."


def test_the_name_of_a_file_makes_no_row_of_its_own():
    rows = listed(
        [Leftover("broker 1", LeftoverKind.SET_ASIDE, "/d.old` | stays: harmless |\n| broker 2\x1b")], PLAIN
    ).splitlines()
    assert len(rows) == 3
    assert rows[2].replace("\\|", "").count("|") == 5
    assert rows[2].endswith("| removed |")
    assert "\x1b" not in rows[2]
