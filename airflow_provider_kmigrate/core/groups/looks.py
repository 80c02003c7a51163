"""What a step has seen of a group so far: now, an earlier look to compare with, and who has been away since when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from airflow_provider_kmigrate.core.cluster import GroupSpec
from airflow_provider_kmigrate.core.coordination.group_seen import GroupSeen, MemberKind
from airflow_provider_kmigrate.core.coordination.registration import Mode
from airflow_provider_kmigrate.core.groups.members import map_instances, unread

OFFSETS_SETTLE = 5.0  # seconds after which an offset that one store had must be in the other, too
ABSENT = 45.0  # seconds without any member after which an instance is restarted once more; a dead one's session lasts as long by default


@dataclass(frozen=True, slots=True)
class GroupObservations:
    """The group now, and at an earlier look to compare its offsets with, each with its time on the monotonic clock.

    `begun`: the first whole look of the same step. `away`: instance -> since when nothing of it is seen; one that is seen now is
    not in it. `plain`: life of each plain member that is seen -> since when.
    """

    now: GroupSeen | None
    at: float
    first: GroupSeen | None = None
    first_at: float = 0.0
    begun: GroupSeen | None = None
    begun_at: float = 0.0
    away: Mapping[str, float] = field(default_factory=dict)
    plain: Mapping[str, float] = field(default_factory=dict)

    def absent_for(self, instance: str) -> float:
        """Seconds."""
        return self.at - self.away.get(instance, self.at)

    def without_ghosts(self, group: GroupSpec) -> GroupSeen | None:
        """The group without plain members that may be dead migrating ones: their places in Kafka, which it keeps for a session.

        Such a place is called by a consumer id of the group, and is gone within a session, whose length is the application's own: it is waited for as
        long as for a member that starts. It is taken for a plain member's where the mode is kafka and others are plain, too.
        """
        seen = self.now
        if seen is None or seen.zk is None or seen.kafka is None:
            return seen
        plain = seen.of_kind(MemberKind.PLAIN)
        called = [member for member in plain if member.name.startswith(f"{group.name}_")]
        if seen.zk.toggle is Mode.KAFKA and len(called) < len(plain):
            return seen
        limit = max(ABSENT, group.switch_timeout)
        ghosts = {member.life for member in called if self.at - self.plain.get(member.life, self.at) < limit}
        living = tuple(member for member in seen.kafka.members if member.member_id not in ghosts)
        return replace(seen, kafka=replace(seen.kafka, members=living))


@dataclass(frozen=True, slots=True)
class GroupHistory:
    """What is kept of the looks of one step, for the next one to be judged by.

    `whole`: (time, look) of those in which nothing was unknown, oldest first; the first of them is the one to compare with: the
    youngest that is `OFFSETS_SETTLE` old, or the oldest there is. An older one would say less with each commit since.
    """

    whole: tuple[tuple[float, GroupSeen], ...] = ()
    begun: tuple[float, GroupSeen] | None = None
    away: Mapping[str, float] = field(default_factory=dict)
    plain: Mapping[str, float] = field(default_factory=dict)

    def saw(self, seen: GroupSeen | None, at: float, group: GroupSpec) -> GroupHistory:
        """Take in one look. Where members are unknown, nobody has come or gone."""
        if seen is None or seen.members is None:
            return self
        everyone = map_instances(seen.members, group)
        away = {name: self.away.get(name, at) for name in everyone.instances if not everyone.kinds(name)}
        plain = {member.life: self.plain.get(member.life, at) for member in seen.of_kind(MemberKind.PLAIN)}
        whole = self._whole(seen, at)
        return replace(self, whole=whole, begun=self.begun or next(iter(whole), None), away=away, plain=plain)

    def _whole(self, seen: GroupSeen, at: float) -> tuple[tuple[float, GroupSeen], ...]:
        whole = self.whole if unread(seen, seen.name) else (*self.whole, (at, seen))
        settled = [then for then, _ in whole if at - then >= OFFSETS_SETTLE]
        return tuple(each for each in whole if each[0] >= max(settled)) if settled else whole

    def looks(self, seen: GroupSeen | None, at: float) -> GroupObservations:
        """For the look that was taken in last."""
        first_at, first = self.whole[0] if self.whole else (at, None)
        begun_at, begun = self.begun or (at, None)
        return GroupObservations(seen, at, first, first_at, begun, begun_at, self.away, self.plain)
