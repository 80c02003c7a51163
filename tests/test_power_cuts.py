"""What the benchmark of power cuts computes from acknowledgements, power and sightings of a controller."""

from __future__ import annotations

import itertools

import pytest

from airflow_provider_kmigrate.core.cluster_state.spec import HostSpec, NodeRole, NodeSpec
from airflow_provider_kmigrate.core.events.model import Ack, Stamp
from benchmarks.power_cuts import Power, Scene, longest_gap
from tests.kit.fleet import Fleet, FleetPlan
from tests.kit.localcluster.plan import Shape

INF = float("inf")
NUMBERS = itertools.count()


def ack(partition: int, at: float) -> Ack:
    number, at_ms = next(NUMBERS), round(at * 1000)
    return Ack(Stamp("p", number, at_ms), "p", "t", partition, number, number, 1, number, number, None, at_ms)


@pytest.fixture
def power(tmp_path: object) -> Power:
    fleet = Fleet(str(tmp_path))
    fleet._plan = FleetPlan(fleet.folder, Shape(), {}, network=2)
    return Power(fleet)


def brokers() -> list[NodeSpec]:
    return [NodeSpec(number, NodeRole.BROKER, f"h{number}", 9092, HostSpec("agent", "/f"), None) for number in range(3)]


def test_the_longest_gap_is_that_of_one_partition_and_not_of_all_together() -> None:
    events = [*(ack(0, at) for at in (1, 2, 9, 10)), *(ack(1, at) for at in (1, 3, 5, 7, 9, 10))]
    gap = longest_gap(events, 0, 10, ())
    assert (gap.seconds, gap.partition, gap.at) == (7, "t-0", 2)


def test_a_partition_that_is_never_acknowledged_again_has_a_gap_to_the_end() -> None:
    assert longest_gap([ack(0, 1), ack(1, 1), ack(1, 19)], 0, 20, ()).seconds == 19


@pytest.mark.parametrize(("excused", "seconds"), [((), 8), (((3, 6),), 4), (((3, 4), (5, 6)), 4), (((0, 9),), 1)])
def test_time_without_enough_replicas_parts_a_gap(excused: tuple[tuple[float, float], ...], seconds: float) -> None:
    assert longest_gap([ack(0, 2), ack(0, 10)], 2, 10, excused).seconds == seconds


def test_replicas_are_too_few_only_while_two_machines_are_off(power: Power) -> None:
    power.off |= {"h1": [(10.0, 40.0)], "h2": [(13.0, 30.0), (50.0, INF)]}
    assert power.without_replicas(brokers(), 1) == [(13.0, 30.0)]
    assert not power.is_off("h1")
    assert power.is_off("h2")


def test_the_time_without_a_controller_reaches_to_both_ends(power: Power) -> None:
    scene = Scene(power.fleet, power)
    assert scene.longest_without_controller(0, 9) == 9
    scene.led = [8.0, 1.0, 2.0]
    assert scene.longest_without_controller(0, 9) == 6
