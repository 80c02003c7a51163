"""A cutover that begins with a canary beside the old version, on a simulated group: whole, killed anywhere, and with everything that goes wrong."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from airflow_provider_kmigrate.core.cluster_state.spec import GroupWay
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.groups.move import Goal
from airflow_provider_kmigrate.core.member.assignors import KafkaMember
from airflow_provider_kmigrate.core.member.cutover_note import CanaryPhase, CutoverNote, read_cutover
from airflow_provider_kmigrate.core.member.group_seen import GroupSeen, KafkaGroup
from airflow_provider_kmigrate.core.member.registration import Registration
from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.steps.cutover import CutOver, make_group_rollback
from airflow_provider_kmigrate.steps.run import run_step
from tests.steps.sim_group import OLD, PLAIN, ROOT, SimGroup, SimInstance
from tests.steps.sim_nodes import Killed, Mortal


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


def cut_over(group: SimGroup) -> str:
    return getattr(run_step(CutOver(group.spec), group.context()), "text", "")


def roll_back(group: SimGroup) -> None:
    run_step(make_group_rollback(group.spec, Goal.ZOOKEEPER_CONSUMERS), group.context())


def refusal_codes(group: SimGroup) -> list[str]:
    with pytest.raises(Refused) as refused:
        cut_over(group)
    return [reason.code for reason in refused.value.reasons]


def check_old(group: CanaryGroup) -> None:
    """The old version runs, no note is left, and no offset in Kafka is ahead of it."""
    group._tick(1.0)
    assert group.kinds() == [OLD] * group.count
    assert group.note is None
    assert not {where for where, offset in group.kafka.items() if offset > group.committed[where]}


def test_the_canary_bakes_beside_the_others_and_then_all_are_cut_over() -> None:
    group, phases = CanaryGroup(3), set[tuple[str, int]]()
    observe = group.observe

    def look(*given: object, **more: object) -> object:
        note = group.note
        phases.add((note.canary if note else "", sum(kind is OLD for kind in group.kinds())))
        return observe(*given, **more)  # type: ignore[arg-type]

    group.observe = look  # type: ignore[assignment]
    said = cut_over(group)
    assert group.kinds() == [PLAIN] * 3
    assert [one.starts for one in group.instances.values()] == [2, 1, 1]
    assert ("runs", 2) in phases, "two go on as the old version while it bakes"
    assert group.clock.time >= group.spec.bake
    pause = float(said.split("was stopped for ")[1].split(" s")[0])
    assert pause <= group.spec.quiet + 13.0, "the canary's time is no part of the pause"
    roll_back(group)
    check_old(group)


def test_killed_before_every_observation_and_side_effect_it_ends_the_same() -> None:
    rehearsal = CanaryGroup()
    cut_over(rehearsal)
    for at in range(1, rehearsal.mortal.count + 1):
        group = CanaryGroup(mortal=Mortal(at))
        with pytest.raises(Killed):
            cut_over(group)
        cut_over(group)
        assert group.kinds() == [PLAIN, PLAIN], at


def test_rolled_back_from_wherever_it_was_killed_and_cut_over_again() -> None:
    rehearsal = CanaryGroup()
    cut_over(rehearsal)
    for at in range(1, rehearsal.mortal.count + 1, 2):
        group = CanaryGroup(mortal=Mortal(at))
        with pytest.raises(Killed):
            cut_over(group)
        roll_back(group)
        check_old(group)
        if at % 9 == 0:
            cut_over(group)
            assert group.kinds() == [PLAIN, PLAIN], at


def test_an_automatic_rollback_that_is_killed_anywhere_ends_with_the_old_version_and_the_same_reasons() -> None:
    rehearsal = CanaryGroup(ill=frozenset({PLAIN}))
    assert refusal_codes(rehearsal) == ["K69", "V30"]
    for at in range(1, rehearsal.mortal.count + 1, 3):
        group = CanaryGroup(ill=frozenset({PLAIN}), mortal=Mortal(at))
        step = CutOver(group.spec)
        with pytest.raises(Killed):
            run_step(step, group.context())
        with pytest.raises(Refused, match="K69"):
            run_step(CutOver(group.spec).resume(step.progress.for_retry()), group.context())
        check_old(group)


@pytest.mark.parametrize(
    ("fields", "codes"),
    [
        ({"ill": frozenset({PLAIN})}, ["K69", "V30"]),
        ({"other_topic": True}, ["K69", "K93"]),
        ({"refusing": frozenset({"stopped"})}, ["K69", "K91"]),
        ({"refusing": frozenset({"kafka"})}, ["K69", "K93"]),
        ({"ignoring": frozenset({("app0", "stopped")})}, ["K69", "K91"]),
        ({"ignoring": frozenset({("app0", "kafka")})}, ["K69", "K93"]),
        ({"coming_back": {"app0": 0.1}}, ["K69", "K91"]),
        ({"crashing": frozenset({PLAIN})}, ["K69", "V30"]),
    ],
)
def test_a_canary_that_fails_goes_back_alone(fields: dict[str, object], codes: list[str]) -> None:
    group = CanaryGroup(**fields)  # type: ignore[arg-type]
    assert refusal_codes(group) == codes
    check_old(group)
    assert group.instances["app1"].lives == 0, "the other one was never stopped"
    assert f"{ROOT}/migration/hold" in group.znodes


def test_a_canary_that_begins_anew_between_two_observations_goes_back() -> None:
    group = CanaryGroup()
    seen = group.seen

    def restart_unseen() -> GroupSeen:
        if group.has_canary and group.clock.time % 2 < 1:
            group.canary.lives += 1
        return seen()

    group.seen = restart_unseen  # type: ignore[method-assign]
    assert refusal_codes(group) == ["K69", "V30"]
    check_old(group)


def test_others_that_are_lost_while_the_canary_bakes_bring_it_back() -> None:
    group = CanaryGroup(3)
    seen = group.seen

    def lose_another() -> GroupSeen:
        if group.has_canary:
            group.instances["app2"].kind = None
        return seen()

    group.seen = lose_another  # type: ignore[method-assign]
    assert refusal_codes(group) == ["K69", "K55"]
    check_old(group)


def test_partitions_that_the_old_version_gives_up_beside_the_canary_bring_it_back() -> None:
    group = CanaryGroup()
    seen, given_up = group.seen, TopicPartition("idle", 1)

    def give_up() -> GroupSeen:
        found = seen()
        if not group.has_canary or found.zk is None:
            return found
        return replace(
            found, zk=replace(found.zk, owners={where: own for where, own in found.zk.owners.items() if where != given_up})
        )

    group.seen = give_up  # type: ignore[method-assign]
    assert refusal_codes(group) == ["K69", "K44"]
    check_old(group)


@pytest.mark.parametrize(("name", "code"), [("app0", "K91"), ("app1", "K93")])
def test_an_instance_that_runs_as_both_versions_brings_the_canary_back(name: str, code: str) -> None:
    """Of app0 a supervisor started the old version again; of app1 something started the new one."""
    group = CanaryGroup()
    seen = group.seen

    def see_both() -> GroupSeen:
        found = seen()
        if not group.has_canary or found.zk is None or found.kafka is None:
            return found
        static = Registration("static", {"t": 1, "idle": 1}, "7")
        registrations = {**found.zk.registrations, f"billing_{name}": static}
        members = (*found.kafka.members, KafkaMember(f"{name}-7", name, frozenset()))
        return replace(found, zk=replace(found.zk, registrations=registrations), kafka=KafkaGroup("Stable", members))

    group.seen = see_both  # type: ignore[method-assign]
    assert refusal_codes(group) == ["K69", code]
    check_old(group)


def test_a_coordinator_that_is_lost_beside_the_canary_waits_until_it_is_back_to_stop_it() -> None:
    """The old version reads on meanwhile: nothing is interrupted."""
    group, reads = CanaryGroup(), list[int]()
    seen = group.seen

    def lose_kafka() -> GroupSeen:
        found = seen()
        if not group.has_canary or len(reads) > 300:
            return found
        reads.append(group.canary.starts)
        return replace(found, kafka=None, committed=None, ends=None)

    group.seen = lose_kafka  # type: ignore[method-assign]
    assert refusal_codes(group) == ["K69", "K30"]
    assert set(reads) == {1}, "it was not started as the old version while it may have run as the new one"
    check_old(group)
