"""How long brokers of both modes may live side by side."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_kmigrate.core.cluster_state.model import ClusterView, Malformed
from airflow_provider_kmigrate.core.migration.waits import hybrid_overdue_reason
from tests.core.views import FLAGGED, KRAFT, MIG, ZK, cluster, with_zk

BEGAN, LIMIT = 1_800_000_000.0, 14_400.0


def since(view: ClusterView, began: float = BEGAN) -> ClusterView:
    """The view with /migration made at `began`."""
    assert view.zk is not None
    assert view.zk.migration is not None
    return with_zk(view, migration=replace(view.zk.migration, created_at=began))  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("view", "alarmed"),
    [
        (since(cluster([MIG, MIG, MIG], FLAGGED, 90)), True),
        (since(cluster([KRAFT, MIG, MIG], FLAGGED, 90)), True),
        (since(cluster([KRAFT, KRAFT, None], FLAGGED, 90)), False),  # another alarm says who is down
        (since(cluster([KRAFT, KRAFT, KRAFT], FLAGGED, 90)), False),
        (since(cluster([MIG, ZK, ZK], FLAGGED, -1)), False),
        (since(cluster([MIG, MIG, MIG], FLAGGED, 90), 0.0), False),
        (cluster([ZK, ZK, ZK]), False),
        (replace(cluster([MIG, MIG, MIG], FLAGGED, 90), zk=None), False),
        (with_zk(cluster([MIG, MIG, MIG], FLAGGED, 90), migration=Malformed("/migration", "x")), False),
    ],
)
def test_only_a_cluster_of_kraft_with_brokers_left_is_overdue(view: ClusterView, alarmed: bool) -> None:
    found = hybrid_overdue_reason(view, LIMIT, BEGAN + LIMIT + 1)
    assert (found is not None) == alarmed
    assert hybrid_overdue_reason(view, LIMIT, BEGAN + LIMIT) is None


@given(began=st.floats(1.0, 4e9), later=st.floats(0.0, 1e8), more=st.floats(0.0, 1e8))
def test_an_overdue_hybrid_phase_stays_overdue_and_says_the_same(began: float, later: float, more: float) -> None:
    view = since(cluster([MIG, MIG, MIG], FLAGGED, 90), began)
    first, second = (hybrid_overdue_reason(view, LIMIT, began + seconds) for seconds in (later, later + more))
    assert first is None or first == second


def test_an_overdue_hybrid_phase_names_the_brokers_that_are_left_and_since_when() -> None:
    found = hybrid_overdue_reason(since(cluster([KRAFT, MIG, MIG], FLAGGED, 90)), LIMIT, BEGAN + 2 * LIMIT)
    assert found is not None
    assert "[1, 2]" in found.text
    assert "2027-01-15T08:00+00:00" in found.text
