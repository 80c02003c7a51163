"""Preflights to be shown: of a cluster on which much is wrong, of one that does not answer everything, and of a good one."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_kmigrate.core.preflight.checks import run_checks
from airflow_provider_kmigrate.steps.prepare import Preflight
from tests.core import preflight_around as around
from tests.core.preflight_views import Case, both, healthy, orders, zk

HOSTILE = '<script>alert("x")</script>\x00\u202e'


def observed(case: Case) -> Preflight:
    return Preflight(*case, run_checks(*case), 1.25)


def good() -> Preflight:
    return observed(healthy())


def open_questions() -> Preflight:
    case = around.release("3.7-IV4")(*around.remote()(*around.environment(one_machine=False)(*healthy())))
    return observed(case)


def broken() -> Preflight:
    """Every kind of finding, and text that would like to be markup."""
    change = both(orders(replicas=(0,), isr=(0,)), zk(reassigning=True, pending_deletions=(HOSTILE,)))
    view, facts = around.remote()(*around.named("__CruiseControlMetrics")(*change(*healthy())))
    tree = facts.environment.tree
    assert tree is not None
    tree = replace(tree, broker_settings={"1": ("leader.replication.throttled.rate", HOSTILE)}, guarded=("sasl",))
    more = replace(
        facts.environment, tree=tree, unread=(f"broker 1 did not report its release: {HOSTILE}",), moving=("orders-0",)
    )
    return observed((view, replace(facts, environment=more)))


PAGES = {"broken": broken, "open": open_questions, "good": good}
