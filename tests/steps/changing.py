"""An observer under whose hands the cluster changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from airflow_provider_kmigrate.core.cluster_state.model import ClusterView, Fields
from airflow_provider_kmigrate.core.cluster_state.spec import NodeSpec
from tests.steps.sim import SimCluster


class Changing(SimCluster):
    """What an observation shows is changed by what happened since the approval."""

    since: Callable[[ClusterView], ClusterView] = staticmethod(lambda view: view)

    def observe(self, what: Fields, nodes: Sequence[NodeSpec] = (), groups: Sequence[str] = ()) -> ClusterView:
        return self.since(super().observe(what, nodes, groups))
