"""What a scan of one group says against moving it, before anything is moved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from airflow_provider_kmigrate.core.cluster import GroupSpec
from airflow_provider_kmigrate.core.coordination.group_seen import GroupSeen
from airflow_provider_kmigrate.core.findings.finding import Severity
from airflow_provider_kmigrate.core.groups.members import unread
from airflow_provider_kmigrate.core.groups.scan import TwoLooks, scan
from airflow_provider_kmigrate.core.model import ClusterView, Decision, Done, Reason, Refuse, Wait
from airflow_provider_kmigrate.steps.groups import OfGroup

TopicSettings = Callable[[Iterable[str]], Mapping[str, Mapping[str, str]]]


class GroupChecked(OfGroup):
    """Two looks, as far apart as the group's consumers take between two commits: what blocks is refused, all else is said.

    `settings`: what topics have of what an old consumer cannot read. Only looks.
    """

    samples = 1

    def __init__(self, group: GroupSpec, settings: TopicSettings) -> None:
        super().__init__(group)
        self.name = f"check of group {group.name}"
        self._settings = settings
        self._before: tuple[GroupSeen, float] | None = None  # the first look in which nothing was unknown

    def decide(self, view: ClusterView, first: ClusterView) -> Decision:
        for one in (first, view):
            seen = self.seen(one)
            if self._before is None and seen is not None and not unread(seen, self.group.name, ends=True):
                self._before = seen, one.taken_at
        now = self.seen(view)
        missing = unread(now, self.group.name, ends=True)
        if missing or now is None or self._before is None:
            return Wait(missing)
        before, at = self._before
        gap = view.taken_at - at
        if gap < self.group.commit_within:
            text = f"Group {self.group.name} is looked at again in {self.group.commit_within - gap:.0f} s."
            return Wait((Reason("T11", text, "Only offsets that move show that somebody consumes."),), healthy=True)
        topics = {where.topic for where in now.zk.partitions} if now.zk else set[str]()
        found = scan(TwoLooks(now, before, gap, self._settings(topics)))
        blocking = tuple(finding.reason for finding in found.findings if finding.severity is Severity.BLOCK)
        if blocking:
            return Refuse(blocking)
        told = " ".join(map(str, found.findings))
        return Done(f"Group {self.group.name} ({found.standing}) may be moved. {told or 'Nothing speaks against it.'}")
