"""The restarts of a journal: one for each step that acted on a node, whatever ended the run."""

from __future__ import annotations

from airflow_provider_kmigrate.core.audit.restarts import StepRestart, list_restarts
from airflow_provider_kmigrate.core.monitoring.journal_lines import ActSpan


def test_acts_of_a_step_are_one_restart() -> None:
    step = "broker 0 to migration"
    spans = [
        ActSpan("r", step, "restart", 8_000, 9_000),
        ActSpan("r", "flag", "restore flag", 8_500),
        ActSpan("r", step, "start", 11_000, 12_000, 18_000),
    ]
    assert list_restarts(spans) == (StepRestart("r", step, ("broker 0",), ("restart", "start"), 8_000, 12_000, 18_000),)


def test_a_restart_that_never_settled_ends_with_its_last_recorded_time() -> None:
    killed, other = ActSpan("r", "broker 1 to kraft", "restart", 5_000), ActSpan("r2", "broker 1 to kraft", "start", 1_000, 2_000)
    restarts = list_restarts([killed, other])
    assert [(restart.run, restart.settled_ms, restart.until_ms) for restart in restarts] == [
        ("r2", None, 2_000),
        ("r", None, 5_000),
    ]
