"""A condition that is acted on only once it has lasted."""

from __future__ import annotations

import pytest

from airflow_provider_kmigrate.core.migration.recovery import HoldTimer


@pytest.mark.parametrize(
    ("seen", "at", "due"),
    [
        ([], 100.0, False),
        ([(0.0, True)], 9.9, False),
        ([(0.0, True)], 10.0, True),
        ([(0.0, True), (5.0, True)], 10.0, True),  # the later observation does not begin it again
        ([(0.0, True), (5.0, False)], 10.0, False),
        ([(0.0, True), (5.0, False), (6.0, True)], 15.9, False),
        ([(0.0, True), (5.0, False), (6.0, True)], 16.0, True),
    ],
)
def test_it_is_due_after_ten_seconds_without_a_break(seen: list[tuple[float, bool]], at: float, due: bool) -> None:
    timer = HoldTimer(10.0)
    for when, there in seen:
        timer = timer.observe(when, there=there)
    assert timer.expired(at) is due


def test_after_an_act_it_takes_twice_as_long() -> None:
    assert HoldTimer(10.0, since=3.0).acted() == HoldTimer(20.0)
    assert HoldTimer(10.0).acted().acted().patience == 40.0
