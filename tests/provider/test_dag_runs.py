"""What Airflow says about a task that asks, and the gauges that the watch makes of it: a person is waited for, or Airflow does not say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_kmigrate.core.monitoring import journal_lines
from airflow_provider_kmigrate.core.monitoring.gauges import Gauge
from airflow_provider_kmigrate.operators.migration import WatchOperator
from airflow_provider_kmigrate.steps.journal import FileJournal, journal_file_name
from airflow_provider_kmigrate.utils.dag_runs import is_asking
from airflow_provider_kmigrate.utils.step_context import journal_folder, read_only_context
from tests.provider.lone_tasks import alone
from tests.provider.simulated import Rehearsal

RUN = "kmigrate_zk_to_kraft__sim/manual__1"
pytestmark = pytest.mark.usefixtures("no_variables")


def airflow_of(**states: str | None) -> Any:
    """A task instance whose Airflow knows these states of the tasks of `RUN`, and no other run."""

    def get_task_states(*, dag_id: str, run_ids: list[str]) -> dict[str, dict[str, str | None]]:
        return {run_id: states for run_id in run_ids if (dag_id, run_id) == tuple(RUN.split("/"))}

    return SimpleNamespace(get_task_states=get_task_states)


def silent(**_: Any) -> Any:
    raise ConnectionError("the API server does not answer")


@pytest.mark.parametrize(
    ("state", "asks"),
    [("awaiting_input", True), ("deferred", True), ("success", False), ("failed", False), ("running", False), (None, False)],
)
def test_a_task_asks_while_it_waits_for_input_or_for_the_triggerer(state: str | None, asks: bool) -> None:
    assert is_asking(airflow_of(approve=state), RUN, "approve") is asks


def test_a_task_or_a_run_that_airflow_does_not_know_asks_nobody() -> None:
    assert is_asking(airflow_of(other="awaiting_input"), RUN, "approve") is False
    assert is_asking(airflow_of(approve="awaiting_input"), f"{RUN}2", "approve") is False


def test_an_airflow_that_does_not_answer_says_nothing() -> None:
    assert is_asking(SimpleNamespace(get_task_states=silent), RUN, "approve") is None


class TestGauges:
    ASKED_AT = 1_000.0

    @pytest.fixture
    def export(self, rehearse: Callable[..., Rehearsal]) -> Callable[[Any], list[Gauge]]:
        """What the watch sends about requests, by what its Airflow says; one request is in the journal, 60 s old."""
        sim = rehearse()

        def send(ti: Any) -> list[Gauge]:
            sent: list[Gauge] = []
            task = alone(WatchOperator, sim.path).get_task("task")
            task._ti = ti
            with read_only_context(str(sim.path)) as context:
                path = journal_folder("sim") / journal_file_name(RUN)
                FileJournal(path, RUN, lambda: self.ASKED_AT).write(journal_lines.ASKED, "approve", "Finalize?")
                clock = SimpleNamespace(now=lambda: self.ASKED_AT + 60.0)
                task._export_requests(replace(context, export=sent.extend, clock=clock))
            return sent

        return send

    def test_a_request_that_waits_is_sent_with_its_age(self, export: Callable[[Any], list[Gauge]]) -> None:
        assert export(airflow_of(approve="awaiting_input")) == [
            Gauge("waiting_for_person", 1.0),
            Gauge("approval_age_seconds", 60.0),
        ]

    def test_a_request_whose_task_has_ended_waits_for_nobody(self, export: Callable[[Any], list[Gauge]]) -> None:
        assert export(airflow_of(approve="failed")) == [Gauge("waiting_for_person", 0.0), Gauge("approval_age_seconds", 0.0)]

    def test_nothing_is_sent_if_airflow_does_not_say(self, export: Callable[[Any], list[Gauge]]) -> None:
        assert export(SimpleNamespace(get_task_states=silent)) == [], "unknown is not nobody"
