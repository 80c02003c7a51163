"""Documents of tasks as a person reads them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_kmigrate.core.cluster_state.spec import GroupSpec
from airflow_provider_kmigrate.core.groups.group_plan import plan_groups
from airflow_provider_kmigrate.core.groups.move import Goal
from airflow_provider_kmigrate.core.migration.leftovers import Leftover, LeftoverKind, plan_clean_up
from airflow_provider_kmigrate.core.migration.rollback_plan import plan_rollback
from airflow_provider_kmigrate.utils.documents import as_markdown
from tests.core.plan_facts import facts_of
from tests.core.preflight_views import healthy

GROUPS = facts_of(healthy())
GROUPS = replace(GROUPS, spec=replace(GROUPS.spec, groups=(GroupSpec("billing", ()),)))
LEFT = plan_clean_up(facts_of(healthy()), [Leftover("ZooKeeper", LeftoverKind.FENCE, "/_kmigrate/c1")])


@pytest.mark.parametrize(
    ("document", "text"),
    [
        (LEFT, "ZooKeeper: fence /_kmigrate/c1 stays: it holds"),
        (plan_rollback(facts_of(healthy()), ["stop"], ["Kept."]), "1. stop\n\nKept.\n\n**About"),
        (plan_groups(GROUPS, {"billing": "Nothing to do."}, Goal.KAFKA_MODE), "1. billing: Nothing to do.\n\n"),
    ],
)
def test_a_document_is_shown_as_markdown(document: dict[str, Any], text: str) -> None:
    assert text in as_markdown(document)


@pytest.mark.parametrize("value", ["1. stop controllers", None, 3, ["x"]])
def test_what_is_no_document_stays_as_it_is(value: object) -> None:
    """The Markdown of an older kmigrate, and whatever a DAG of others passes."""
    assert as_markdown(value) is value


@pytest.mark.parametrize(
    "document",
    [
        LEFT | {"version": 2},
        LEFT | {"kind": ["plan"]},
        {"kind": "plan", "version": 1},
        LEFT | {"stages": [{"where": 1, "what": 2, "path": 3, "stays": 4}]},
        LEFT | {"steps": [1]},
        {"kind": "readiness", "version": 1, "summary": None, "reasons": [], "fingerprint": ""},
        {"a": "`](http://x)"},
    ],
)
def test_a_document_that_is_not_known_is_shown_as_its_json_and_fails_nothing(document: dict[str, Any]) -> None:
    shown = as_markdown(document)
    assert shown.startswith("`{")
    assert shown.count("`") == 2
