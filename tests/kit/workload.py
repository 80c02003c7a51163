"""A load on a cluster: several senders and groups, on the clients of the product's probe (`probe.clients`).

`python -m tests.kit.workload FOLDER WRITER` is one of its processes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from zlib import crc32

from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.probe.clients import Receiver, Sender, Setup
from airflow_provider_kmigrate.probe.kafka_calls import matches_any
from airflow_provider_kmigrate.probe.stream import StreamProgress
from tests.kit.localcluster import reaper
from tests.kit.stream import Stream, read_plan, run_client, setup_of

Protocol = Literal["cooperative", "eager"]
STRATEGY: Mapping[Protocol, str] = {"cooperative": "cooperative-sticky", "eager": "range"}


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """One classic consumer group; `topics` empty: all topics of the workload."""

    name: str
    members: int = 2
    protocol: Protocol = "cooperative"
    topics: tuple[str, ...] = ()

    def unsettled(self, seen: StreamProgress, wanted: Iterable[TopicPartition]) -> str:
        """What is missing until every partition has an owner, and every member a share if there are enough; empty: nothing."""
        wanted, owned = set(wanted), seen.owners[self.name]
        members = {member for where in wanted for member in owned[where]}
        share = min(self.members, len(wanted))
        few = f"{len(members)} of {share} members of group {self.name} own partitions" if len(members) < share else ""
        return seen.describe_unowned(self.name, wanted) or few


@dataclass(frozen=True, slots=True)
class WorkloadPlan:
    """A workload's plan: `rate` records a second over all `producers`, to all partitions of `topics` in turn, read by each group.

    `topics` are names, or patterns that begin with `^`; new topics and partitions are included within seconds. Groups deliver and
    commit in batches of `batch_s` seconds. `run` separates the writers of this run from another's. After `max_seconds` a
    forgotten workload ends itself.
    """

    topics: tuple[str, ...]
    rate: float = 500.0
    producers: int = 1
    groups: tuple[GroupPlan, ...] = (GroupPlan("load"),)
    record_bytes: int = 100
    batch_s: float = 1.0
    max_seconds: float = 6 * 3600.0
    run: str = field(default_factory=lambda: os.urandom(3).hex())

    def topics_of(self, group: GroupPlan) -> tuple[str, ...]:
        """The group's topics; by default all of the plan."""
        return group.topics or self.topics

    def senders(self) -> tuple[str, ...]:
        """The producers' names as writers."""
        return tuple(f"producer{i}-{self.run}" for i in range(self.producers))

    def group_of(self) -> dict[str, GroupPlan]:
        """The group of each member, by its name as a writer."""
        return {f"{group.name}.{i}-{self.run}": group for group in self.groups for i in range(group.members)}

    def receivers(self) -> tuple[str, ...]:
        """The members' names as writers."""
        return tuple(self.group_of())

    def describe_unowned(self, progress: StreamProgress, partitions: Iterable[TopicPartition]) -> str:
        """What is missing until the groups share these partitions, which some broker shows now, and all their topics exist."""
        partitions = tuple(partitions)
        there = {where.topic for where in partitions}
        for group in self.groups:
            topics = self.topics_of(group)
            if absent := [topic for topic in topics if not any(matches_any((topic,), name) for name in there)]:
                return f"no broker shows topic {', '.join(absent)} of group {group.name}"
            if missing := group.unsettled(progress, [where for where in partitions if matches_any(topics, where.topic)]):
                return missing
        return ""

    def count_uncommitted(self, progress: StreamProgress) -> int:
        """The number of acknowledged offsets that the groups have not committed."""
        return sum(progress.count_uncommitted(group.name, self.topics_of(group)) for group in self.groups)


def plan_of(*, topics: list[str], groups: list[dict[str, Any]], **rest: Any) -> WorkloadPlan:
    """The plan whose file holds these values."""
    read = (GroupPlan(**{**group, "topics": tuple(group["topics"])}) for group in groups)
    return WorkloadPlan(topics=tuple(topics), groups=tuple(read), **rest)


class Workload(Stream):
    """The workload that lives in `folder`. `attach` finds a running one."""

    module = "tests.kit.workload"
    plan: WorkloadPlan

    @classmethod
    def attach(cls, folder: Path | str) -> Workload:
        """The workload that `start` left in the folder. Raises `Refused` if there is none."""
        return cls(folder, {}, read_plan(folder, plan_of))

    def start(self, timeout: float = 90.0) -> None:
        """As a stream starts; it ends with this process if that is a test."""
        if reaper.ties_all:
            reaper.tie(self.folder / "processes")
        super().start(timeout)


class SharingSender(Sender):
    """A sender beside others: it feeds its `share` of the partitions, the index-th of count."""

    def __init__(self, setup: Setup, share: tuple[int, int], *, rate: float, record_bytes: int) -> None:
        super().__init__(setup, rate=rate, record_bytes=record_bytes)
        self._share = share
        self._all: tuple[TopicPartition, ...] = ()
        self._mine: tuple[TopicPartition, ...] = ()

    def select_partitions(self, partitions: tuple[TopicPartition, ...]) -> tuple[TopicPartition, ...]:
        """Its share; worked out when the partitions were read again, not for each record."""
        if partitions is not self._all:
            index, count = self._share
            owned = (where for where in partitions if (crc32(where.topic.encode()) + where.partition) % count == index)
            self._all, self._mine = partitions, tuple(owned)
        return self._mine


def client(folder: Path, writer: str) -> Sender | Receiver:
    """The sender or receiver of this name in the workload's plan."""
    plan = read_plan(folder, plan_of)
    group, senders = plan.group_of().get(writer), plan.senders()
    setup = setup_of(folder, writer, plan.topics_of(group) if group else plan.topics, plan.max_seconds)
    if group:
        return Receiver(setup, group=group.name, strategy=STRATEGY[group.protocol], batch_s=plan.batch_s)
    share = (senders.index(writer), len(senders))
    return SharingSender(setup, share, rate=plan.rate / len(senders), record_bytes=plan.record_bytes)


if __name__ == "__main__":
    sys.exit(run_client(sys.argv[1:], client))
