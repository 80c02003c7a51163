"""A soak compares now and then, twice where it finds something, and refuses only what lasts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from airflow_provider_kmigrate.core.cluster import NodeSpec
from airflow_provider_kmigrate.core.forward.standstill import MOST_CURES
from airflow_provider_kmigrate.core.gates import Standing
from airflow_provider_kmigrate.core.model import BrokerMode, ClusterView, Done, Look, Stored, StoredKind, TopicMetadata
from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.steps.compared import KINDS, Compared
from airflow_provider_kmigrate.steps.controllers import ProvisionController
from airflow_provider_kmigrate.steps.run import World, run_step
from airflow_provider_kmigrate.steps.waits import Copied, Soak
from tests.steps.sim import SimCluster
from tests.steps.test_migration import roll

NOTHING = {kind: Stored({}) for kind in StoredKind}
EQUAL = ClusterView(0.0, topics=({}, {}), stored=NOTHING)
DIFFERENT = replace(EQUAL, stored={**NOTHING, StoredKind.QUOTAS: Stored({"user a": {"producer_byte_rate": "1"}})})
OTHER = replace(EQUAL, topics=({}, {"t": TopicMetadata("t", "id", {})}))
UNREAD = ClusterView(0.0)
Made = TypeVar("Made", bound="Losing")


def after_a_look() -> Compared:
    """The first look of a soak reads not all kinds: whether the dual-write moves is not seen yet."""
    compared = Compared()
    assert not compared.due
    compared.saw(replace(UNREAD, taken_at=-1.0))
    return compared


def standings(*views: tuple[float, ClusterView]) -> list[tuple[bool, Standing]]:
    """For each look after a first one: whether all kinds were to be read, and what follows."""
    compared = after_a_look()
    return [(compared.due, compared.saw(replace(view, taken_at=at)).standing) for at, view in views]


MET, NOT_YET, NEVER = Standing.MET, Standing.NOT_YET, Standing.NEVER


def test_equal_sides_are_compared_now_and_then() -> None:
    looks = standings(*((at, EQUAL) for at in (0.0, 2.0, 299.0, 301.0, 303.0)))
    assert looks == [(True, MET), (False, MET), (False, MET), (False, MET), (True, MET)]


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
def test_what_is_found_is_looked_at_again_soon(first: ClusterView, second: ClusterView, expected: Standing) -> None:
    looks = standings((0.0, first), (2.0, first), (16.0, first), (18.0, second))
    assert looks == [(True, MET), (False, MET), (False, MET), (True, expected)]


def test_a_red_look_between_two_comparisons_forgets_the_first() -> None:
    compared = after_a_look()
    compared.saw(DIFFERENT)
    compared.forget(replace(DIFFERENT, taken_at=5.0))
    assert not compared.due
    compared.saw(replace(DIFFERENT, taken_at=20.0))
    assert compared.due
    assert compared.saw(replace(DIFFERENT, taken_at=21.0)).met, "the dual-write may have lagged in the look before"


class Losing(SimCluster):
    """A cluster in dual-write whose ZooKeeper lacks something from `lost` looks at all kinds on; others are not shown them."""

    asked: int = 0
    lost: int = 0
    looks: int = 0

    def look(self, what: Look, nodes: Sequence[NodeSpec] = (), groups: Sequence[str] = ()) -> ClusterView:
        view = super().look(what, nodes)
        if KINDS not in Look(what):
            self.looks += 1
            return replace(view, topics=None, stored=None)
        self.asked += 1
        return replace(view, stored=DIFFERENT.stored if 0 < self.lost <= self.asked else NOTHING)


def in_dual_write(tmp_path: Path, cluster: Made) -> tuple[Made, World]:
    world = cluster.world(tmp_path)
    for node in cluster.spec.controllers:
        run_step(ProvisionController(node, cluster.spec.cluster_id), world)
    roll(cluster, world, BrokerMode.MIGRATION)
    run_step(Copied(), world)
    roll(cluster, world, BrokerMode.KRAFT)
    cluster.asked = cluster.looks = 0
    return cluster, world


def test_a_soak_compares_a_few_times(tmp_path: Path) -> None:
    cluster, world = in_dual_write(tmp_path, Losing())
    assert isinstance(run_step(Soak(1000.0, interval=1.0), world), Done)
    assert cluster.asked == 4
    assert cluster.looks > 100


class Lacking(Losing):
    """ZooKeeper lacks a topic until as many other controllers have led as it takes."""

    before: int = 0
    takes: int = 0

    def look(self, what: Look, nodes: Sequence[NodeSpec] = (), groups: Sequence[str] = ()) -> ClusterView:
        view, topics = super().look(what, nodes), {"t": TopicMetadata("t", "id", {})}
        if view.topics is None:
            return view
        return replace(view, topics=(topics if self.epoch - self.before >= self.takes else {}, topics))


def lacking(tmp_path: Path, takes: int) -> tuple[Lacking, World, int]:
    cluster, world = in_dual_write(tmp_path, Lacking())
    cluster.before, cluster.takes = cluster.epoch, takes
    return cluster, world, cluster.epoch


@pytest.mark.parametrize("takes", [1, 2, 3])
def test_what_zookeeper_merely_lacks_is_written_by_a_new_leader(tmp_path: Path, takes: int) -> None:
    cluster, world, before = lacking(tmp_path, takes)
    assert isinstance(run_step(Soak(100.0, interval=1.0), world), Done)
    assert cluster.epoch - before == takes
    assert cluster.disasters == []


def test_what_three_leaders_do_not_write_refuses(tmp_path: Path) -> None:
    cluster, world, before = lacking(tmp_path, 100)
    with pytest.raises(Refused, match="E02"):
        run_step(Soak(100.0, interval=1.0), world)
    assert cluster.epoch - before == MOST_CURES


def test_what_zookeeper_has_beyond_kraft_is_not_written_over(tmp_path: Path) -> None:
    cluster, world, before = lacking(tmp_path, 100)
    looked = cluster.look

    def beyond(what: Look, nodes: Sequence[NodeSpec] = (), groups: Sequence[str] = ()) -> ClusterView:
        view = looked(what, nodes)
        return view if view.topics is None else replace(view, topics=view.topics[::-1])

    cluster.look = beyond  # type: ignore[method-assign]
    with pytest.raises(Refused, match="E01"):
        run_step(Soak(100.0, interval=1.0), world)
    assert cluster.epoch == before


def test_a_lost_write_ends_the_soak_with_its_reason(tmp_path: Path) -> None:
    cluster, world = in_dual_write(tmp_path, Losing())
    cluster.lost = 2
    with pytest.raises(Refused) as caught:
        run_step(Soak(1000.0, interval=1.0), world)
    assert [reason.code for reason in caught.value.reasons] == ["E09"]
    assert cluster.asked == 3, "the first comparison was equal, the second found it, the third found it again"
