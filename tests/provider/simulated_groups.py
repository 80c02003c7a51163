"""Simulated consumer groups behind Airflow's operators: real DAG, real tasks, no process, no waiting."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

from airflow_provider_kmigrate.clients.holding import Holding
from airflow_provider_kmigrate.clients.znodes import CONSUMERS, Operation, Znode
from airflow_provider_kmigrate.core.cluster_state.model import ClusterView, Fields, ZkView
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, GroupSpec, InstanceSpec
from airflow_provider_kmigrate.utils.step_context import OpenCluster
from tests.clients.memory_zookeeper import Ensemble, MemoryZooKeeper
from tests.provider.simulated import document
from tests.steps.sim import SimCluster
from tests.steps.sim_group import OLD, SimGroup
from tests.steps.sim_nodes import CLUSTER_ID, SimClock


class _ZooKeeper(MemoryZooKeeper):
    """The fence's znodes, and those of the groups."""

    def __init__(self, ensemble: Ensemble, groups: dict[str, SimGroup]) -> None:
        super().__init__(ensemble)
        self._groups = groups

    def _group(self, path: str) -> SimGroup | None:
        return next((group for group in self._groups.values() if path == CONSUMERS or path.startswith(group.root)), None)

    def read(self, path: str) -> tuple[bytes, int] | None:
        group = self._group(path)
        return group.read(path) if group else super().read(path)

    def read_znodes(self, paths: Iterable[str]) -> Iterator[tuple[str, Znode]]:
        """Only of groups: no test reads others."""
        return (found for path in paths if (group := self._group(path)) for found in group.read_znodes([path]))

    def children(self, path: str) -> list[str]:
        group = self._group(path)
        return group.children(path) if group else super().children(path)

    def commit(self, operations: Sequence[Operation], holding: Holding | None = None) -> list[int | None]:
        group = self._group(operations[0].path) if operations else None
        if group is None:
            return super().commit(operations, holding)
        super().commit([], holding)  # the fence
        group.commit(operations, holding)  # type: ignore[arg-type]
        return []


@dataclass
class GroupRehearsal:
    """Simulated groups of one cluster file, and `open` for `utils.step_context.opener`. All share one clock."""

    path: Path
    groups: dict[str, SimGroup]
    ensemble: Ensemble = field(default_factory=lambda: Ensemble(CLUSTER_ID))
    clock: SimClock = field(default_factory=SimClock)
    settings: dict[str, str] = field(default_factory=dict)  # of each topic
    others: tuple[str, ...] = ()  # groups that use ZooKeeper and are not in the file
    reads_zookeeper: bool = True

    @contextmanager
    def open(self, spec: ClusterSpec) -> Iterator[OpenCluster]:
        for group in self.groups.values():
            group.clock = self.clock
        session = _ZooKeeper(self.ensemble, self.groups)
        try:
            tools: Any = SimpleNamespace(
                zk=session,
                instances=self,
                topic_settings=self.topic_settings,
                commit_offsets=lambda plan, holding: self.groups[plan.group].commit_offsets(plan, holding),
                signing_key="",
            )
            yield OpenCluster(tools, self, self.clock)
        finally:
            session.close()

    def require(self, group: GroupSpec, *, must_answer: bool) -> None:
        """Its webhooks can be called."""

    def switch(self, group: GroupSpec, instance: InstanceSpec, kind: str, token: int) -> None:
        self.groups[group.name].switch(group, instance, kind, token)

    def topic_settings(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        return dict.fromkeys(topics, self.settings)

    def observe(self, what: Fields, nodes: Sequence[Any] = (), groups: Sequence[str] = ()) -> ClusterView:
        seen = {name: self.groups[name].observe(what, nodes, [name]).groups or {} for name in groups}
        found = {name: each[name] for name, each in seen.items()}
        live = [name for name, group in self.groups.items() if what & Fields.GROUPS and OLD in group.kinds()]
        zk = ZkView(cluster_id=CLUSTER_ID, broker_ids=(0,), live_groups=(*live, *self.others))
        return ClusterView(taken_at=self.clock.time, zk=zk if self.reads_zookeeper else None, groups=found)

    def environment(self, view: ClusterView) -> Any:
        raise AssertionError(f"no test reads it here: {view}")


def group_rehearsal(folder: Path, *groups: SimGroup, **keys: Any) -> GroupRehearsal:
    """Write a cluster file with these groups into `folder`, one wave each; `keys` are further keys of the file."""
    path = folder / "sim.yaml"
    entries = [
        {
            "name": group.name,
            "way": str(group.spec.way),
            "wave": wave,
            "switch": "restart {group} {instance} {kind}",
            "bake": group.spec.bake,
            "commit_within": group.spec.commit_within,
            "switch_timeout": group.spec.switch_timeout,
            **({"side_by_side": True} if group.spec.side_by_side else {}),
            "instances": [{"name": name} for name in group.instances],
        }
        for wave, group in enumerate(groups, 1)
    ]
    path.write_text(yaml.safe_dump({**document(SimCluster()), "groups": entries, **keys}))
    return GroupRehearsal(path, {group.name: group for group in groups})
