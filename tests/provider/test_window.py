"""A group's daily window: it holds what is still to be moved, and nothing else."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_provider_kmigrate.exceptions import Unreachable
from airflow_provider_kmigrate.sensors.waits import WindowSensor
from tests.provider.group_dags import Group
from tests.steps.group_runs import gone
from tests.steps.sim_group import SimGroup

CONTEXT: Any = {"params": {}}


def closed() -> str:
    """A window that opens in twelve hours."""
    begin = datetime.now(UTC) + timedelta(hours=12)
    return f"{begin:%H:%M}-{begin + timedelta(minutes=1):%H:%M}"


def sensor(there: Any, window: str) -> WindowSensor:
    return WindowSensor(task_id="w", cluster_file=str(there.path), group="billing", window=window)


def test_a_group_that_has_left_zookeeper_waits_for_no_window(made: Group) -> None:
    """Or it would hold up every group behind it until its window opens, which theirs may not outlast."""
    there = made(gone(SimGroup(), 99))
    with pytest.raises(AirflowSkipException, match="billing has left ZooKeeper"):
        sensor(there, closed()).poke(CONTEXT)


@pytest.mark.parametrize("far", [0, 3])
def test_one_that_is_still_to_be_moved_waits(made: Group, far: int) -> None:
    there = made(gone(SimGroup(), far))
    assert sensor(there, closed()).poke(CONTEXT) is False
    assert sensor(there, "00:00-00:00").poke(CONTEXT) is True


def test_a_group_that_cannot_be_observed_waits(made: Group) -> None:
    there = made(gone(SimGroup(), 99))

    def blind(*_: Any, **__: Any) -> Any:
        raise Unreachable("the ensemble is away")

    there.observe = blind  # type: ignore[method-assign]
    assert sensor(there, closed()).poke(CONTEXT) is False


@pytest.mark.parametrize("window", ["00:00-00:00", closed()], ids=["open", "closed"])  # the time of day is no name of a test
def test_a_group_that_the_file_does_not_have_is_refused_at_once(made: Group, window: str) -> None:
    """Not waited for until its window, or the sensor's week, is over."""
    there = made(SimGroup())
    wrong = WindowSensor(task_id="w", cluster_file=str(there.path), group="search", window=window)
    with pytest.raises(AirflowFailException, match=r"F09.*no consumer group 'search'; it has billing"):
        wrong.poke(CONTEXT)
