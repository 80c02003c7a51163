"""The plan of a rollback, from one observation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_kmigrate.core.cluster_state.spec import ApproverSpec
from airflow_provider_kmigrate.core.migration.plan import ROLLBACK
from airflow_provider_kmigrate.core.migration.plan_document import (
    describe_drift,
    render_document,
    render_request,
    require_reviewed_plan,
)
from airflow_provider_kmigrate.core.migration.plan_facts import PlanFacts
from airflow_provider_kmigrate.core.migration.rollback import SAFE, RollbackTerms
from airflow_provider_kmigrate.core.migration.rollback_plan import plan_rollback
from airflow_provider_kmigrate.exceptions import Refused
from tests.core.plan_facts import BEFORE, DRIFTS, facts_of
from tests.core.preflight_views import healthy


def plan_of(facts: PlanFacts, terms: RollbackTerms = SAFE) -> dict[str, object]:
    return plan_rollback(facts, ["stop controllers", "hand over"], ["Kept: all."], terms)


def test_the_steps_and_what_is_kept_stand_before_figures_in_the_request_and_the_document() -> None:
    plan = plan_of(facts_of(healthy()))
    for shown in (render_request(plan), render_document(plan)):
        assert shown.index("1. stop controllers\n2. hand over") < shown.index("Kept: all.") < shown.index("**About")
        assert (
            "**A rollback is possible until `handover.transaction`.** Before it begins, a user who may edit the DAG must approve."
            in shown
        )
        assert "the migration may continue instead: start kmigrate_zk_to_kraft__" in shown
    assert "## to_zookeeper" not in render_request(plan)


def test_the_point_of_no_return_is_a_task_of_the_dag() -> None:
    assert plan_of(facts_of(healthy()))["point_of_no_return"] in {row.full_id() for row in ROLLBACK}


def test_one_approver_is_enough_whatever_the_finalization_needs() -> None:
    view, facts = healthy()
    spec = replace(facts.spec, approvers=ApproverSpec(("ann", "bob"), required=2))
    assert plan_of(facts_of((view, replace(facts, spec=spec))))["approval"] == {"users": ["ann", "bob"], "required": 1}


@pytest.mark.parametrize("name", DRIFTS)
def test_each_input_that_changes_is_another_plan_and_named(name: str) -> None:
    facts, sentence = DRIFTS[name]
    saved, now = plan_of(BEFORE), plan_of(facts)
    assert sentence in describe_drift(saved, now)
    with pytest.raises(Refused) as refused:
        require_reviewed_plan(now, str(saved["fingerprint"]), saved)
    assert [reason.code for reason in refused.value.reasons] == ["H16"]
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    "terms",
    [
        RollbackTerms(failover=False),
        RollbackTerms(failover=False, lossy=True),
        RollbackTerms(splits=True),
        RollbackTerms(left=frozenset({7})),
    ],
)
def test_other_terms_are_another_plan(terms: RollbackTerms) -> None:
    assert describe_drift(plan_of(BEFORE), plan_of(BEFORE, terms))[0] == "What the rollback accepts has changed."
