"""What a scan of one group says against moving it, before anything is moved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from airflow_provider_kmigrate.core.cluster import GroupSpec
from airflow_provider_kmigrate.core.coordination.group_seen import GroupSeen
from airflow_provider_kmigrate.core.groups import check
from airflow_provider_kmigrate.core.groups.scan import TwoLooks
from airflow_provider_kmigrate.core.model import ClusterView, Decision
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
        self._before: tuple[GroupSeen, float] | None = None  # the first whole look

    def decide(self, view: ClusterView, first: ClusterView) -> Decision:
        for one in (first, view):
            self._before = self._before or check.whole(self.seen(one), one.taken_at, self.group)
        now, before = self.seen(view), self._before
        if (wait := check.waits(now, view.taken_at, before, self.group)) is not None:
            return wait
        if now is None or before is None:
            raise AssertionError("two whole looks are judged")
        settings = self._settings(check.topics(now))
        return check.judged(TwoLooks(now, before[0], view.taken_at - before[1], settings), self.group)
