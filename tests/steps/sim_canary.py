"""A simulated group whose cutover begins with a canary beside the old version."""

from __future__ import annotations

from dataclasses import dataclass, replace

from airflow_provider_kmigrate.core.cluster_state.spec import GroupWay
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.member.cutover_note import CanaryPhase, CutoverNote, read_cutover
from airflow_provider_kmigrate.core.member.group_seen import GroupSeen
from tests.steps.sim_group import OLD, PLAIN, ROOT, SimGroup, SimInstance


@dataclass
class CanaryGroup(SimGroup):
    """The old version's instances share the canary's partitions, and it reads all of theirs; what counts as committed is the old version's.

    `lag`: records that the old version is behind, so that the canary is ahead of it.
    """

    lag: int = 40

    def __post_init__(self) -> None:
        super().__post_init__()
        self.spec = replace(self.spec, way=GroupWay.CUTOVER, side_by_side=True)

    @property
    def note(self) -> CutoverNote | None:
        data = self.znodes.get(f"{ROOT}/migration/cutover")
        note = read_cutover(data[0]) if data else None
        return note if isinstance(note, CutoverNote) else None

    @property
    def canary(self) -> SimInstance:
        return self.instances["app0"]

    @property
    def has_canary(self) -> bool:
        return self.canary.kind is PLAIN and OLD in self.kinds()

    def seen(self) -> GroupSeen:
        found = super().seen()
        assert found.zk is not None
        assert found.kafka is not None
        everything = frozenset(where for one in self.instances.values() for where in (one.busy, one.idle))
        if found.zk.registrations:
            first = min(found.zk.registrations)
            owners = {where: found.zk.owners.get(where, f"{first}-0") for where in everything}
            found = replace(found, zk=replace(found.zk, owners=owners, partitions=everything))
        if self.has_canary:
            members = tuple(member._replace(partitions=member.partitions | everything) for member in found.kafka.members)
            found = replace(found, kafka=replace(found.kafka, members=members))
        return found

    def _tick(self, seconds: float) -> None:
        super()._tick(seconds)
        if OLD in self.kinds() and self.canary.kind is not OLD:
            self._commit_zk(self.canary.busy, max(self._offset(self.canary.busy), self.ends[self.canary.busy] - self.lag))

    def _commits(self, one: SimInstance, where: TopicPartition, offset: int) -> None:
        if one.kind is OLD:
            super()._commits(one, where, max(self._offset(where), offset - self.lag))
        elif self.has_canary:
            self.kafka |= {other.busy: self.ends[other.busy] for other in self.instances.values()}
        else:
            super()._commits(one, where, offset)

    def _begins(self, one: SimInstance) -> None:
        if not self.has_canary:
            super()._begins(one)
            return
        for where in (one.busy, one.idle):
            assert 0 <= self.kafka[where] <= self.committed[where], f"the canary begins {where} where nobody was"

    def _check(self) -> None:
        if {OLD, PLAIN} <= set(self.kinds()):
            note = self.note
            assert [one.name for one in self.instances.values() if one.kind is PLAIN] == ["app0"]
            assert note is not None
            assert note.canary in {CanaryPhase.RUNS, CanaryPhase.PASSED}
