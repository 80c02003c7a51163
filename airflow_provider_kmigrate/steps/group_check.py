"""Before anything of a group is moved: what a scan says against it, and whether a person lets it go on that was taken back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from airflow_provider_kmigrate.clients import group_hold
from airflow_provider_kmigrate.core.cluster import GroupSpec
from airflow_provider_kmigrate.core.coordination.group_seen import GroupSeen
from airflow_provider_kmigrate.core.decision import Act, Decision
from airflow_provider_kmigrate.core.groups import check
from airflow_provider_kmigrate.core.groups.hold import go_on
from airflow_provider_kmigrate.core.groups.scan import TwoObservations
from airflow_provider_kmigrate.core.model import ClusterView
from airflow_provider_kmigrate.steps.groups import GroupStep
from airflow_provider_kmigrate.steps.run import StepContext

TopicSettings = Callable[[Iterable[str]], Mapping[str, Mapping[str, str]]]


class CheckGroup(GroupStep):
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
        return check.judged(TwoObservations(now, before[0], view.taken_at - before[1], settings), self.group)


class ReleaseGroup(GroupStep):
    """A person has said that a group that was taken back may be moved forward again."""

    def __init__(self, group: GroupSpec) -> None:
        super().__init__(group)
        self.name = f"going on with group {group.name}"

    def decide(self, view: ClusterView, first: ClusterView) -> Decision:
        del first
        return go_on(self.seen(view), self.group.name)

    def act(self, world: StepContext, act: Act) -> None:
        del act
        group_hold.forget_hold(world.tools.zk, self.group.name, world.fence)
