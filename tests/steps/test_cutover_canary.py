"""A cutover that begins with a canary beside the old version, on a simulated group: whole, killed anywhere, and with everything that goes wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_kmigrate.core.cluster_state.decision import Done, Wait
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.groups.move import Goal
from airflow_provider_kmigrate.core.member.assignors import KafkaMember
from airflow_provider_kmigrate.core.member.cutover_note import CanaryPhase
from airflow_provider_kmigrate.core.member.group_seen import GroupSeen, KafkaGroup
from airflow_provider_kmigrate.core.member.registration import Registration
from airflow_provider_kmigrate.core.migration.progress import FRESH
from airflow_provider_kmigrate.exceptions import Fenced, Refused
from airflow_provider_kmigrate.steps.cutover import CutOver, make_group_rollback
from airflow_provider_kmigrate.steps.run import run_step
from tests.steps.sim_canary import CanaryGroup
from tests.steps.sim_group import OLD, PLAIN, ROOT, SimGroup
from tests.steps.sim_nodes import Killed, Mortal


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


def test_what_one_process_saw_of_the_canary_the_next_one_goes_on_with() -> None:
    """Each process waits for so long, then the next one observes: as tasks and triggers do."""
    group, progress, waits = CanaryGroup(3), FRESH, list[tuple[object, int]]()
    for _ in range(20):
        step = CutOver(group.spec).resume(progress)
        outcome = run_step(step, group.context(), sync_for=2 * group.spec.bake if waits else 5.0)
        progress = step.progress
        if isinstance(outcome, Done):
            break
        waits.append((group.note and group.note.canary, sum(kind is OLD for kind in group.kinds())))
    assert waits == [(CanaryPhase.RUNS, 2)], "it is handed on while the canary bakes, and never once all stop"
    assert group.kinds() == [PLAIN] * 3
    assert [one.starts for one in group.instances.values()] == [2, 1, 1]


def test_a_canary_that_has_baked_for_the_triggerer_need_not_bake_for_the_task() -> None:
    group = CanaryGroup()
    task = CutOver(group.spec)
    assert isinstance(run_step(task, group.context(), sync_for=5.0), Wait)
    watching = CutOver(group.spec).resume(task.progress)
    triggerer = group.context()
    again = group.context()  # which alone may act from here on
    began = group.clock.time
    with pytest.raises(Fenced):
        run_step(watching, triggerer)
    assert (watching.progress.healthy_seconds, group.clock.time - began >= group.spec.bake) == (group.spec.bake, True)
    steps = list[float]()
    group.switch = lambda *given: steps.append(group.clock.time) or CanaryGroup.switch(group, *given)  # type: ignore[method-assign, func-returns-value]
    began = group.clock.time
    assert isinstance(run_step(CutOver(group.spec).resume(watching.progress), again), Done)
    assert steps[0] - began < group.spec.bake / 2, "the canary ends at once"


@pytest.mark.parametrize("ill", ["starves", "is gone"])
def test_what_the_triggerer_found_the_task_acts_on(ill: str) -> None:
    group = CanaryGroup(ill=frozenset({PLAIN}) if ill == "starves" else frozenset())
    task = CutOver(group.spec)
    assert isinstance(run_step(task, group.context(), sync_for=5.0), Wait)
    watching = CutOver(group.spec).resume(task.progress)
    triggerer = group.context()
    again = group.context()
    group.canary.kind = None if ill == "is gone" else group.canary.kind
    with pytest.raises(Fenced):
        run_step(watching, triggerer)
    assert [reason.code for reason in watching.progress.verdict] == ["V30"]
    with pytest.raises(Refused, match="K69"):
        run_step(CutOver(group.spec).resume(watching.progress), again)
    check_old(group)


def test_a_canary_that_is_gone_for_the_next_process_has_left() -> None:
    group = CanaryGroup()
    first = CutOver(group.spec)
    assert isinstance(run_step(first, group.context(), sync_for=5.0), Wait)
    group.canary.kind = None
    with pytest.raises(Refused) as refused:
        run_step(CutOver(group.spec).resume(first.progress), group.context())
    assert [reason.code for reason in refused.value.reasons] == ["K69", "V30"]
    check_old(group)
    assert first.progress.restart_begun


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
