"""A soak compares now and then, twice where it finds something, and refuses only what lasts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from airflow_provider_kmigrate.core.cluster_state.decision import Done
from airflow_provider_kmigrate.core.cluster_state.model import ClusterView, Fields, TopicMetadata
from airflow_provider_kmigrate.core.cluster_state.spec import NodeSpec
from airflow_provider_kmigrate.core.migration.recovery import MAX_RECOVERIES
from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.steps.run import StepContext, run_step
from airflow_provider_kmigrate.steps.waits import Soak
from tests.core.compared_views import DIFFERENT, NOTHING
from tests.steps.phases import all_kraft
from tests.steps.sim import SimCluster

Made = TypeVar("Made", bound="Losing")


class Losing(SimCluster):
    """A cluster in dual-write whose ZooKeeper misses something from the `lost`th observation of all kinds on; others are not shown them."""

    asked: int = 0
    lost: int = 0
    observations: int = 0

    def observe(self, what: Fields, nodes: Sequence[NodeSpec] = (), groups: Sequence[str] = ()) -> ClusterView:
        view = super().observe(what, nodes)
        if Fields.METADATA not in Fields(what):
            self.observations += 1
            return replace(view, topics=None, stored=None)
        self.asked += 1
        return replace(view, stored=DIFFERENT.stored if 0 < self.lost <= self.asked else NOTHING)


def in_dual_write(tmp_path: Path, cluster: Made) -> tuple[Made, StepContext]:
    context = cluster.context(tmp_path)
    all_kraft(cluster, context)
    cluster.asked = cluster.observations = 0
    return cluster, context


def test_a_soak_compares_a_few_times(tmp_path: Path) -> None:
    cluster, context = in_dual_write(tmp_path, Losing())
    assert isinstance(run_step(Soak(1000.0), context), Done)
    assert cluster.asked == 4
    assert cluster.observations > 100


class Missing(Losing):
    """ZooKeeper misses a topic until as many other controllers have led as it takes."""

    before: int = 0
    takes: int = 0

    def observe(self, what: Fields, nodes: Sequence[NodeSpec] = (), groups: Sequence[str] = ()) -> ClusterView:
        view, topics = super().observe(what, nodes), {"t": TopicMetadata("t", "id", {})}
        if view.topics is None:
            return view
        return replace(view, topics=(topics if self.epoch - self.before >= self.takes else {}, topics))


def missing(tmp_path: Path, takes: int) -> tuple[Missing, StepContext, int]:
    cluster, context = in_dual_write(tmp_path, Missing())
    cluster.before, cluster.takes = cluster.epoch, takes
    return cluster, context, cluster.epoch


@pytest.mark.parametrize("takes", [1, 2, 3])
def test_what_zookeeper_merely_misses_is_written_by_a_new_leader(tmp_path: Path, takes: int) -> None:
    cluster, context, before = missing(tmp_path, takes)
    assert isinstance(run_step(Soak(100.0), context), Done)
    assert cluster.epoch - before == takes
    assert cluster.disasters == []


def test_what_three_leaders_do_not_write_refuses(tmp_path: Path) -> None:
    cluster, context, before = missing(tmp_path, 100)
    with pytest.raises(Refused, match="E02"):
        run_step(Soak(100.0), context)
    assert cluster.epoch - before == MAX_RECOVERIES


def test_what_zookeeper_has_beyond_kraft_is_not_written_over(tmp_path: Path) -> None:
    cluster, context, before = missing(tmp_path, 100)
    observe = cluster.observe

    def beyond(what: Fields, nodes: Sequence[NodeSpec] = (), groups: Sequence[str] = ()) -> ClusterView:
        view = observe(what, nodes)
        return view if view.topics is None else replace(view, topics=view.topics[::-1])

    cluster.observe = beyond  # type: ignore[method-assign]
    with pytest.raises(Refused, match="E01"):
        run_step(Soak(100.0), context)
    assert cluster.epoch == before


def test_a_lost_write_ends_the_soak_with_its_reason(tmp_path: Path) -> None:
    cluster, context = in_dual_write(tmp_path, Losing())
    cluster.lost = 2
    with pytest.raises(Refused) as caught:
        run_step(Soak(1000.0), context)
    assert [reason.code for reason in caught.value.reasons] == ["E08"]
    assert cluster.asked == 3, "the first comparison was equal, the second found it, the third found it again"
