"""One budget of seconds for all of a call."""

from __future__ import annotations

import pytest

from airflow_provider_kmigrate.clients.deadline import Deadline


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_no_time_is_left_when_none_was_given(seconds: float) -> None:
    with pytest.raises(TimeoutError):
        Deadline(seconds).seconds_left()


def test_what_is_left_is_no_more_than_what_was_given() -> None:
    assert 0.0 < Deadline(60.0).seconds_left() <= 60.0
