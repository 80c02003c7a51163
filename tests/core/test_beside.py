"""When the tasks beside a run's steps end, and what is said of a probe whose records do not arrive."""

from __future__ import annotations

import pytest

from airflow_provider_kmigrate.core.migration.beside import (
    OVER,
    find_no_flow_reason,
    is_run_over,
    probe_holds_only_slot_reason,
    waits_for_worker,
)


@pytest.mark.parametrize(
    ("states", "over", "lacking"),
    [
        ({}, True, False),
        ({"a": "success", "b": "upstream_failed", "c": "skipped", "d": "failed", "e": "removed"}, True, False),
        ({"a": "success", "b": None}, False, False),
        ({"a": "deferred"}, False, False),
        ({"a": "up_for_retry"}, False, False),
        ({"a": "up_for_reschedule"}, False, False),
        ({"a": "queued", "b": None}, False, True),
        ({"a": "scheduled", "b": "success"}, False, True),
        ({"a": "queued", "b": "running"}, False, False),
    ],
)
def test_a_task_beside_the_steps_ends_with_its_run_and_gives_its_slot_up(
    states: dict[str, str | None], over: bool, lacking: bool
) -> None:
    assert (is_run_over(states), waits_for_worker(states)) == (over, lacking)


@pytest.mark.parametrize(
    ("state", "waited", "expected"),
    [
        (None, 0.0, ""),
        ("queued", 899.0, ""),
        ("running", 899.0, ""),
        ("success", 0.0, ""),  # of `dag.test`, where it runs on behind its task
        ("up_for_retry", 899.0, ""),
        ("queued", 900.0, "is queued for 900 s: no worker has a free slot"),
        ("scheduled", 1000.0, "is scheduled for 1000 s: no worker has a free slot"),
        ("running", 900.0, "is running, and its files show nothing new for 900 s"),
        (None, 900.0, "is without a state, and its files show nothing new"),
        *((state, 0.0, f"is {state}: its log says why") for state in sorted(OVER - {"success"})),
    ],
)
def test_records_that_do_not_arrive_are_not_waited_for_without_end(state: str | None, waited: float, expected: str) -> None:
    reason = find_no_flow_reason(state, waited, 900.0)
    assert (reason.code if reason else "") == ("Y09" if expected else "")
    assert expected in (reason.text if reason else "")


def test_a_probe_that_holds_the_only_slot_says_what_the_run_needs() -> None:
    reason = probe_holds_only_slot_reason(601.0)
    assert (reason.code, "at least two slots" in reason.text) == ("Y09", True)
