"""A rollback's plan in words: what a person reads before saying yes."""

from dataclasses import replace

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import ClusterView, Inventory, NodeFiles
from airflow_provider_kmigrate.core.migration import rollback as back_plan
from tests.core.back_views import (
    ALL_MIG,
    DUAL,
    HYBRID,
    STOPPED,
    UP3,
    emptied,
    equal,
    handed_over,
    missing,
)
from tests.core.views import ZK, migration, with_zk


def test_the_plan_of_every_phase_ends_with_what_is_left() -> None:
    assert back_plan.plan(emptied(handed_over([ZK] * 3))) == ()
    assert len(back_plan.plan(emptied(handed_over([ZK] * 3), full=(3000,)))) == 1
    assert [len(back_plan.plan(view)) for view in (DUAL, HYBRID, ALL_MIG, STOPPED)] == [6, 6, 5, 4]


@pytest.mark.parametrize(
    ("view", "said"),
    [
        (handed_over([ZK] * 3, UP3), ["Kept: everything"]),
        (equal(DUAL), ["Kept: all records", "the same 0 topics", "Lost: what only KRaft has"]),
        (replace(missing(DUAL), client_metrics=("app",)), ["Kept", "Differs now: 1 topic is in KRaft", "subscriptions app"]),
        (replace(DUAL, client_metrics=None), ["Kept", "Not known to be kept: Could not read the topics", "could not be read"]),
    ],
)
def test_what_is_kept_and_what_is_lost_is_named_before_the_approval(view: ClusterView, said: list[str]) -> None:
    text = " ".join(back_plan.describe_kept_and_lost(view))
    assert [part for part in said if part not in text] == []


@pytest.mark.parametrize(
    ("view", "late", "said"),
    [
        (handed_over([ZK] * 3, UP3), False, []),
        (equal(DUAL), False, ["Changed since the backup of 1970-01-01 00:01:00 UTC: nothing that was read."]),
        (missing(DUAL), False, ["and ZooKeeper does not have it: topics created (1): t."]),
        (equal(DUAL), True, ["nothing that was read", "Not known whether changed: changes before 1970-01-01 00:01:00 UTC"]),
        (DUAL, False, ["nothing that was read", "Not known whether changed: Could not read the topics of both sides; "]),
    ],
)
def test_what_was_changed_since_the_takeover_is_said_too(view: ClusterView, late: bool, said: list[str]) -> None:
    texts = back_plan.describe_changes(view, Inventory(60.0, {}, {}, late=late))
    assert [part for part, text in zip(said, texts, strict=True) if part not in text] == []


def test_without_an_inventory_it_is_not_known_what_was_changed() -> None:
    assert back_plan.describe_changes(DUAL, None, "The backup is missing.") == (
        "Not known: what was changed since the takeover. The backup is missing.",
    )
    assert back_plan.describe_changes(handed_over([ZK] * 3), None, "The backup is missing.") == ()


@pytest.mark.parametrize(
    ("view", "transaction"),
    [
        (DUAL, "raise /controller_epoch, delete /migration and /controller, in one transaction"),
        (with_zk(DUAL, migration=None), "raise /controller_epoch, delete /controller, in one transaction"),
        (with_zk(handed_over([ZK] * 3), migration=migration(-1)), "delete /migration"),
    ],
)
def test_the_plan_names_the_transaction_of_the_handover(view: ClusterView, transaction: str) -> None:
    assert f"hand the cluster over to ZooKeeper: {transaction}" in back_plan.plan(view)


def test_the_plan_names_the_directories_that_go() -> None:
    view = emptied(handed_over([ZK] * 3))
    full = NodeFiles(meta={"/kraft": {"node.id": "3001"}, "/other": {"broker.id": "1"}}, has_metadata_log=False)
    view = replace(view, controllers={**view.controllers, 3001: replace(view.controllers[3001], files=full)})
    assert back_plan.plan(view) == ("set the directories of controllers aside: /kraft of 3001",)


def test_a_directory_that_was_not_read_is_not_taken_for_empty() -> None:
    view = emptied(handed_over([ZK] * 3))
    unread = {node: replace(c, files=NodeFiles()) for node, c in view.controllers.items()}
    assert len(back_plan.plan(replace(view, controllers=unread))) == 1
