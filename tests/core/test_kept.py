"""What is kept of one life: how long it was green, from which observation movement is measured, when both sides are compared."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import ClusterView, TopicMetadata
from airflow_provider_kmigrate.core.migration.gates import GateState
from airflow_provider_kmigrate.core.migration.roll import WINDOW, MovedSince, update_moved_since
from airflow_provider_kmigrate.core.migration.waits import HealthyTimer, SoakComparison, unmoved_since, watched_seconds
from tests.core.compared_views import DIFFERENT, EQUAL
from tests.core.views import ZK, cluster, migration, with_zk

OTHER = replace(EQUAL, topics=({}, {"t": TopicMetadata("t", "id", {})}))
UNREAD = ClusterView(0.0)
MET, NOT_YET, NEVER = GateState.MET, GateState.NOT_YET, GateState.NEVER


@pytest.mark.parametrize(
    ("observations", "held"),
    [
        ([(0, False), (2, True), (4, True)], 50.0 + 2),  # a movement has to be seen first
        ([(0, False), (6, False), (12, False), (14, True)], 0.0),  # red for good
        ([(0, True), (2, True), (4, False), (6, True)], 0.0),
        ([(0, True), (2, True), (1000, True)], 50.0 + 2 + 3 * 2 + 5),  # a gap without an observation
    ],
)
def test_only_the_first_moments_of_a_life_may_be_red(observations: list[tuple[float, bool]], held: float) -> None:
    green = HealthyTimer(50.0, 2.0)
    for at, is_green in observations:
        green = green.add_sample(at, healthy=is_green)
    assert green.held == held


def test_the_first_look_of_a_life_counts_for_nothing() -> None:
    assert watched_seconds(None, 1000.0, 2.0) == 0.0


def view(seconds: float, *, read: bool = True) -> ClusterView:
    seen = cluster([ZK])
    return replace(seen, taken_at=seconds, zk=seen.zk if read else None)


def test_movement_is_measured_from_the_first_observation_then_from_a_recent_one() -> None:
    since: MovedSince | None = None
    observations, ages = [view(float(second)) for second in range(60)], []
    for observation in observations:
        since = update_moved_since(since, observation, observations[0])
        ages.append(observation.taken_at - since.earlier.taken_at)
    assert ages[: int(WINDOW) + 1] == [float(second) for second in range(int(WINDOW) + 1)]
    assert all(WINDOW <= age <= 2 * WINDOW for age in ages[int(2 * WINDOW) :])


def test_observations_without_zookeeper_are_not_compared_with() -> None:
    first = view(0.0)
    since = update_moved_since(None, first, first)
    for second in range(1, 100):
        since = update_moved_since(since, view(float(second), read=False), first)
        assert since.earlier is first
    since = update_moved_since(since, view(100.0), first)
    assert since.earlier is first
    assert update_moved_since(since, view(100.0 + WINDOW), first).earlier.taken_at == 100.0


def test_since_when_migration_stands_still() -> None:
    first, later = view(0.0), view(1.0)
    assert unmoved_since(None, first) is first
    assert unmoved_since(first, later) is first
    for changed in (with_zk(later, migration=migration(7)), view(1.0, read=False)):
        assert unmoved_since(first, changed) is changed
    assert unmoved_since(view(0.0, read=False), later) is later


def after_one_observation() -> SoakComparison:
    """The first observation of a soak reads not all kinds: whether the dual-write moves is not seen yet."""
    compared = SoakComparison()
    assert not compared.due
    return compared.add_view(replace(UNREAD, taken_at=-1.0))[0]


def standings(*views: tuple[float, ClusterView]) -> list[tuple[bool, GateState]]:
    """For each observation after a first one: whether all kinds were to be read, and what follows."""
    compared, found = after_one_observation(), []
    for at, seen in views:
        due = compared.due
        compared, gate = compared.add_view(replace(seen, taken_at=at))
        found.append((due, gate.state))
    return found


def test_equal_sides_are_compared_now_and_then() -> None:
    observations = standings(*((at, EQUAL) for at in (0.0, 2.0, 299.0, 301.0, 303.0)))
    assert observations == [(True, MET), (False, MET), (False, MET), (False, MET), (True, MET)]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (DIFFERENT, DIFFERENT, NEVER),
        (DIFFERENT, EQUAL, MET),
        (DIFFERENT, OTHER, MET),
        (UNREAD, UNREAD, NOT_YET),
        (UNREAD, EQUAL, MET),
        (UNREAD, DIFFERENT, MET),
    ],
)
def test_what_is_found_is_looked_at_again_soon(first: ClusterView, second: ClusterView, expected: GateState) -> None:
    observations = standings((0.0, first), (2.0, first), (16.0, first), (18.0, second))
    assert observations == [(True, MET), (False, MET), (False, MET), (True, expected)]


def test_a_red_look_between_two_comparisons_forgets_the_first() -> None:
    compared, _ = after_one_observation().add_view(DIFFERENT)
    compared = compared.reset(replace(DIFFERENT, taken_at=5.0))
    assert not compared.due
    compared, _ = compared.add_view(replace(DIFFERENT, taken_at=20.0))
    assert compared.due
    assert compared.add_view(replace(DIFFERENT, taken_at=21.0))[1].met, "the dual-write may have lagged in the observation before"
