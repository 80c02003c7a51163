"""What a run of the tool holds on a cluster in memory (`sim`): its fence, its journal, and each node's host."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

from airflow_provider_kmigrate.clients.holding import Holding
from airflow_provider_kmigrate.clients.hosts import Restart
from airflow_provider_kmigrate.core.cluster_state.model import FetchedOffset, NodeFiles
from airflow_provider_kmigrate.core.cluster_state.spec import NodeSpec
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.ledger.book import GroupPartition
from airflow_provider_kmigrate.core.migration.coordinator import hash_group
from airflow_provider_kmigrate.core.offsets_topic.offsets_repair import GroupLog, GroupLogs, StoredCommit, StrayRecord
from airflow_provider_kmigrate.exceptions import Failed, Fenced, KMigrateError
from tests.steps.sim_nodes import CLUSTER_ID, SimNode, files_of

if TYPE_CHECKING:
    from tests.steps.sim import SimCluster


@dataclass
class SimFence:
    cluster: SimCluster
    token: int
    path: str = "/_kmigrate/epoch"

    def check(self) -> None:
        if self.token < self.cluster.token:
            raise Fenced("a newer run holds the cluster")

    def release(self) -> None:
        self.check()


@dataclass
class SimJournal:
    """Keeps the kind and the text of each line, and the facts of all."""

    lines: list[tuple[str, str]] = field(default_factory=list)
    facts: dict[str, object] = field(default_factory=dict)

    def write(self, kind: str, step: str, text: str, **facts: object) -> None:
        assert kind
        assert step
        assert text
        self.lines.append((kind, text))
        self.facts |= facts


@dataclass
class SimGroupsAt:
    """The groups at one broker; the tool may die before each one that it changes."""

    cluster: SimCluster
    broker: int

    def delete(self, groups: Collection[str], holding: Holding) -> None:
        for group in groups:
            self.cluster.mortal.step()
            holding.check()
            assert not self.cluster.members.get(group), "a broker refuses that"
            self._home(group).pop(group, None)

    def commit(self, group: str, offsets: Mapping[TopicPartition, FetchedOffset], holding: Holding) -> None:
        self.cluster.mortal.step()
        holding.check()
        assert not self.cluster.members.get(group), "a broker refuses that"
        if not offsets.keys() <= {TopicPartition("t", partition) for partition in self.cluster.leaders}:
            raise Failed(f"OffsetCommit of {group}: UNKNOWN_TOPIC_OR_PARTITION")
        self._home(group).setdefault(group, {}).update(offsets)

    def _home(self, group: str) -> dict[str, dict[TopicPartition, FetchedOffset]]:
        assert self.cluster.coordinates(self.broker, group)
        return self.cluster.offsets.setdefault(hash_group(group) % self.cluster.counts[self.broker], {})


@dataclass
class SimOffsetsLog:
    """The raw log of the cluster's offsets: each reading appends what has changed since the one before, a second later."""

    cluster: SimCluster
    records: list[tuple[GroupPartition, StoredCommit]] = field(default_factory=list)
    _known: dict[tuple[int, str, TopicPartition], FetchedOffset] = field(default_factory=dict)

    def prove_readable(self) -> None:
        self.cluster.mortal.step()

    def read(self, groups: Collection[str] | None = None) -> dict[str, GroupLog]:
        now = {
            (place, group, where): one
            for place, groups in self.cluster.offsets.items()
            for group, offsets in groups.items()
            for where, one in offsets.items()
        }
        for key in sorted({*now, *self._known}, key=repr):
            if now.get(key) != self._known.get(key):
                self._append(*key, now.get(key))
        self._known = now
        logs = GroupLogs()
        for key, record in self.records:
            logs.add_commit(key, record)
        return {group: log for group, log in logs.build().items() if groups is None or group in groups}

    def _append(self, place: int, group: str, where: TopicPartition, one: FetchedOffset | None) -> None:
        at, t_ms = len(self.records), 1000 * len(self.records)
        offset, epoch, metadata = (None, -1, "") if one is None else (one.offset, one.leader_epoch, one.metadata)
        raw_key = f"{place} {group} {where.name}".encode()
        record = StoredCommit(place, at, t_ms, t_ms, offset, epoch, metadata, key=raw_key)
        self.records.append((GroupPartition(group, *where), record))

    def remove(self, strays: Iterable[StrayRecord], holding: Holding) -> None:
        for stray in strays:
            self.cluster.mortal.step()
            holding.check()
            assert stray.key is not None
            offsets = self.cluster.offsets[stray.place].get(stray.group, {})
            offsets.pop(stray.key.where, None)
            if not offsets:
                self.cluster.offsets[stray.place].pop(stray.group, None)


@dataclass
class SimHost:
    """The host of any node; dies before any verb that changes something."""

    cluster: SimCluster

    def _mine(self, node: NodeSpec) -> SimNode:
        return self.cluster.nodes[node.role, node.id]

    def _act(self, token: int) -> None:
        self.cluster.mortal.step()
        if token < self.cluster.token:
            raise Fenced("a newer run holds the node")

    def start(self, node: NodeSpec, token: int) -> None:
        self._act(token)
        self.cluster.start(node)

    def stop(self, node: NodeSpec, token: int, say: Callable[[str], object] = str, unresponsive_after: float = inf) -> float:
        del say, unresponsive_after
        self._act(token)
        self.cluster.stop(node)
        return 0.5

    def restart(self, node: NodeSpec, how: Restart, token: int) -> float:
        """The tool's death between the two leaves the node down, as its machine's would."""
        seconds = self.stop(node, token)
        try:
            how.while_down(seconds)
            for folder, text in how.metas.items():
                self.put_meta(node, folder, text, token)
        except KMigrateError:
            self.start(node, token)
            raise
        self.start(node, token)
        return seconds

    def put_meta(self, node: NodeSpec, folder: str, text: str, token: int) -> None:
        self._act(token)

    def read_properties(self, node: NodeSpec) -> str:
        return self._mine(node).text

    def put_properties(self, node: NodeSpec, text: str, token: int) -> str:
        self._act(token)
        self._mine(node).text = text
        return hashlib.sha256(text.encode()).hexdigest()

    def kept_as(self, node: NodeSpec, text: str) -> str:
        return f"/kept/{node.id}/{hashlib.sha256(text.encode()).hexdigest()}"

    def format_storage(self, node: NodeSpec, cluster_id: str, release: str, token: int) -> None:
        self._act(token)
        assert release == "3.9-IV0"
        self._mine(node).formatted = cluster_id

    def files(self, node: NodeSpec) -> NodeFiles:
        return files_of(self._mine(node))

    def leftovers(self, node: NodeSpec) -> list[tuple[str, str]]:
        return [each for each in self.cluster.left.get(node.name, ()) if each not in self.cluster.removed]

    def remove(self, node: NodeSpec, left: Sequence[tuple[str, str]], kinds: Sequence[str], token: int) -> None:
        self._act(token)
        assert left == self.leftovers(node)
        self.cluster.removed += [each for each in left if each[0] in kinds]

    def log_tail(self, node: NodeSpec, lines: int = 40) -> str:
        return f"{lines} lines of {node.name}"

    def wipe_storage(self, node: NodeSpec, cluster_id: str, token: int) -> None:
        self._act(token)
        assert cluster_id == CLUSTER_ID
        self.cluster.wipe(node)
