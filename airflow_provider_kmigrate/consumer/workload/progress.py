"""How far a running workload is, from the events that it has written so far."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from airflow_provider_kmigrate.consumer.event_files import Reader
from airflow_provider_kmigrate.consumer.kafka_calls import matches
from airflow_provider_kmigrate.consumer.workload.plan import GroupPlan, WorkloadPlan
from airflow_provider_kmigrate.core.events import Ack, Change, Commit, Event, Ownership, Start, TopicPartition


class Progress:
    """Call `update` to take in what came since the last time."""

    def __init__(self, events: Path) -> None:
        self._reader = Reader(events)
        self.started: set[str] = set()
        self.acked = 0
        self.producing: set[str] = set()
        self.ends: dict[TopicPartition, int] = {}  # behind the last acknowledged record
        self.committed: dict[str, dict[TopicPartition, int]] = defaultdict(dict)
        self.owners: dict[str, dict[TopicPartition, set[str]]] = defaultdict(lambda: defaultdict(set))

    def update(self) -> Progress:
        for event in self._reader.read().events:
            self._take(event)
        return self

    def _take(self, event: Event) -> None:
        match event:
            case Start():
                self.started.add(event.stamp.writer)
            case Ack():
                self._ack(event)
            case Ownership():
                self._own(event)
            case Commit(ok=True):
                for at in event.offsets:
                    self.committed[event.group][TopicPartition(at.topic, at.partition)] = at.offset

    def _ack(self, event: Ack) -> None:
        self.acked += event.count
        self.producing.add(event.stamp.writer)
        where = TopicPartition(event.topic, event.partition)
        self.ends[where] = max(self.ends.get(where, 0), event.last + 1)

    def _own(self, event: Ownership) -> None:
        for where in event.partitions:
            owners = self.owners[event.group][where]
            if event.change is Change.ACQUIRED:
                owners.add(event.member)
            else:
                owners.discard(event.member)

    def unowned(self, plan: WorkloadPlan, found: Iterable[TopicPartition]) -> str:
        """What the groups lack until they share these partitions, which some broker shows now, and none of their topics is missing."""
        found = tuple(found)
        there = {where.topic for where in found}
        for group in plan.groups:
            topics = plan.topics_of(group)
            if absent := [topic for topic in topics if not any(matches((topic,), name) for name in there)]:
                return f"no broker shows topic {', '.join(absent)} of group {group.name}"
            if lacks := self.unsettled(group, [where for where in found if matches(topics, where.topic)]):
                return lacks
        return ""

    def unsettled(self, group: GroupPlan, wanted: Iterable[TopicPartition]) -> str:
        """What a group lacks until every partition has an owner, and every member its share as far as there is one; empty: nothing."""
        wanted, owned = set(wanted), self.owners[group.name]
        members = {member for where in wanted for member in owned[where]}
        lacks = sorted(where for where in wanted if not owned[where])
        if lacks:
            first = ", ".join(where.name for where in lacks[:5])
            return f"{len(lacks)} of {len(wanted)} partitions of group {group.name} have no owner ({first})"
        share = min(group.members, len(wanted))
        return "" if len(members) >= share else f"{len(members)} of {share} members of group {group.name} own partitions"

    def unread(self, plan: WorkloadPlan) -> int:
        """How many offsets the groups have not committed of what was acknowledged."""
        return sum(
            max(0, end - self.committed[group.name].get(where, 0))
            for group in plan.groups
            for where, end in self.ends.items()
            if matches(plan.topics_of(group), where.topic)
        )
