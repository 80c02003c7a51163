"""A group on its way off ZooKeeper and back, on a simulated group: whole, killed before every side effect, with an ill canary."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_kmigrate.core.groups.move import Goal
from airflow_provider_kmigrate.core.member.registration import Mode
from airflow_provider_kmigrate.core.migration.progress import StepProgress
from airflow_provider_kmigrate.exceptions import Failed, Refused, TimedOut
from airflow_provider_kmigrate.steps.groups import CleanUp, RollBackGroup, SwitchInstance, WatchGroup, copy_offsets
from airflow_provider_kmigrate.steps.run import run_step
from tests.steps.group_runs import forward, gone, run
from tests.steps.sim_group import MIGRATING, OLD, PLAIN, ROOT, SimGroup
from tests.steps.sim_nodes import Killed, Mortal


def check_plain(group: SimGroup) -> None:
    assert group.kinds() == [PLAIN] * group.count
    assert not group.children(f"{ROOT}/migration")
    assert {one.starts for one in group.instances.values()} == {2}, "each instance was restarted exactly twice"


def test_the_whole_way() -> None:
    check_plain(gone(SimGroup(3), 99))


def test_killed_before_every_observation_and_side_effect_it_ends_the_same() -> None:
    rehearsal = gone(SimGroup(), 99)
    total = rehearsal.mortal.count
    assert total > 40
    for at in range(1, total + 1):
        group = SimGroup(mortal=Mortal(at))
        with pytest.raises(Killed):
            run(group.context(), forward(group))
        after(group)


def after(group: SimGroup) -> None:
    """The same run goes on: each task observes, and does what is left."""
    run(group.context(), forward(group))
    assert group.kinds() == [PLAIN] * group.count
    assert sum(one.starts for one in group.instances.values()) <= 2 * group.count + 1, (
        "at most the one that was under way is restarted again"
    )


def test_the_folder_of_operators_resets_is_cleaned_up_but_no_reset_that_was_not_applied() -> None:
    group = gone(SimGroup(), 5)
    for path in ("migration/reset", "migration/reset/t", "migration/reset/t/0", "ids", "owners", "owners/t"):
        group.znodes[f"{ROOT}/{path}"] = (b"7", 0, 1)
    with pytest.raises(Refused, match="K46"):
        run_step(CleanUp(group.spec), group.context())
    del group.znodes[f"{ROOT}/migration/reset/t/0"]
    run_step(CleanUp(group.spec), group.context())
    assert {path for path in group.znodes if path.startswith(ROOT) and not path.startswith(f"{ROOT}/offsets")} == {ROOT}


def test_offsets_that_only_kafka_has_are_raised_in_zookeeper_and_none_is_lowered() -> None:
    group = SimGroup(3)
    (one, two, new) = (instance.idle for instance in group.instances.values())
    group.kafka = {one: 150, two: 50, new: 70}
    del group.znodes[f"{ROOT}/offsets/idle/2"]
    copy_offsets(group.context(), group.name)
    assert [group.znodes[f"{ROOT}/offsets/idle/{n}"][0] for n in range(3)] == [b"150", b"100", b"70"]


def test_no_offset_is_copied_if_they_could_not_be_read() -> None:
    group = SimGroup()
    group.blind = True
    with pytest.raises(Failed, match="could not read its offsets; none was copied"):
        copy_offsets(group.context(), group.name)


def test_the_whole_way_again_touches_nothing() -> None:
    for far in range(7):
        group = gone(SimGroup(), far)
        starts, written = [one.starts for one in group.instances.values()], len(group.znodes)
        run(group.context(), forward(group)[:far])
        assert [one.starts for one in group.instances.values()] == starts
        assert len(group.znodes) == written


@pytest.mark.parametrize("goal", list(Goal))
@pytest.mark.parametrize("far", range(7))
def test_back_from_everywhere(far: int, goal: Goal) -> None:
    group = gone(SimGroup(), far)
    was = group.kinds()
    run_step(RollBackGroup(group.spec, goal), group.context())
    if goal is Goal.ZOOKEEPER_CONSUMERS:
        assert group.kinds() == [OLD] * group.count
    else:
        assert PLAIN not in group.kinds()
        assert OLD not in was or group.kinds() == was, "what never came so far stays"
    assert (group.requested_mode is Mode.KAFKA) == (goal is Goal.KAFKA_MODE and far in {3, 4, 5, 6})


@pytest.mark.parametrize("far", [2, 4, 6])
def test_the_rollback_killed_before_every_side_effect(far: int) -> None:
    rehearsal = gone(SimGroup(), far)
    begun = rehearsal.mortal.count
    run_step(RollBackGroup(rehearsal.spec, Goal.ZOOKEEPER_CONSUMERS), rehearsal.context())
    for at in range(begun + 1, rehearsal.mortal.count + 1):
        group = SimGroup(mortal=Mortal(at))
        gone(group, far)
        with pytest.raises(Killed):
            run_step(RollBackGroup(group.spec, Goal.ZOOKEEPER_CONSUMERS), group.context())
        run_step(RollBackGroup(group.spec, Goal.ZOOKEEPER_CONSUMERS), group.context())
        assert group.kinds() == [OLD] * group.count
        assert group.requested_mode is Mode.ZOOKEEPER


def test_forward_again_after_the_rollback() -> None:
    group = gone(SimGroup(), 6)
    run_step(RollBackGroup(group.spec, Goal.ZOOKEEPER_CONSUMERS), group.context())
    run(group.context(), forward(group))
    assert group.kinds() == [PLAIN] * group.count


@pytest.mark.parametrize(("far", "target", "before"), [(0, MIGRATING, OLD), (3, PLAIN, MIGRATING)])
def test_an_ill_canary_is_rolled_back_alone(far: int, target: object, before: object) -> None:
    group = gone(SimGroup(), far)
    group.ill = frozenset({target})  # type: ignore[arg-type]
    step = SwitchInstance(group.spec, "app0", target, bake=60.0)  # type: ignore[arg-type]
    with pytest.raises(Refused) as refused:
        run_step(step, group.context())
    assert [reason.code for reason in refused.value.reasons] == ["K69", "V30"]
    assert group.kinds() == [before] * group.count
    assert [one.starts - (far > 0) for one in group.instances.values()] == [2, 0]


def test_a_canary_that_never_settles_is_rolled_back_before_the_step_gives_up() -> None:
    group = SimGroup(rebalancing=frozenset({MIGRATING}))
    with pytest.raises(Refused) as refused:
        run_step(SwitchInstance(group.spec, "app0", MIGRATING, bake=60.0), group.context())
    assert [reason.code for reason in refused.value.reasons] == ["K69", "V30"]
    assert group.kinds() == [OLD, OLD]


def test_the_rollback_does_not_wait_forever_for_a_group_to_become_stable() -> None:
    group = gone(SimGroup(), 2)
    group.rebalancing = frozenset({MIGRATING})
    run_step(RollBackGroup(group.spec, Goal.ZOOKEEPER_CONSUMERS), group.context())
    assert group.kinds() == [OLD, OLD]


def test_a_verdict_outlives_its_task() -> None:
    """Killed after it was found and before the canary was rolled back; the task keeps `worse`."""
    rehearsal = SimGroup(ill=frozenset({MIGRATING}))
    with pytest.raises(Refused):
        run_step(SwitchInstance(rehearsal.spec, "app0", MIGRATING, bake=60.0), rehearsal.context())
    found = []
    for at in range(1, rehearsal.mortal.count + 1):
        group = SimGroup(ill=frozenset({MIGRATING}), mortal=Mortal(at))
        step = SwitchInstance(group.spec, "app0", MIGRATING, bake=60.0)
        with pytest.raises(Killed):
            run_step(step, group.context())
        with pytest.raises(Refused, match="V30"):
            run_step(SwitchInstance(group.spec, "app0", MIGRATING, bake=60.0).resume(step.progress.for_retry()), group.context())
        assert group.kinds() == [OLD, OLD]
        found.append(bool(step.progress.worse))
    assert any(found)
    assert not all(found)


def test_a_good_canary_bakes_and_stays() -> None:
    group = SimGroup()
    step = SwitchInstance(group.spec, "app0", MIGRATING, bake=30.0)
    run_step(step, group.context())
    assert step.progress.healthy_seconds >= 30.0
    assert group.kinds() == [MIGRATING, OLD]


def test_a_watch_ends_when_a_partition_starves() -> None:
    group = gone(SimGroup(), 3)
    run_step(WatchGroup(replace(group.spec, bake=20.0)), group.context())
    group.ill = frozenset({MIGRATING})
    with pytest.raises(Refused, match="committed no offset") as refused:
        run_step(WatchGroup(replace(group.spec, bake=60.0)), group.context())
    assert [reason.code for reason in refused.value.reasons] == ["V30"]


def test_nothing_is_done_while_a_side_is_unknown() -> None:
    group = SimGroup(blind=True)
    for step in [*forward(group), lambda: RollBackGroup(group.spec, Goal.ZOOKEEPER_CONSUMERS)]:
        with pytest.raises(TimedOut, match="K30"):
            run_step(step(), group.context())
    assert not any(one.starts for one in group.instances.values())


def test_an_instance_that_never_comes_back_is_reported() -> None:
    group = SimGroup()
    group.switch = lambda *_: None  # type: ignore[method-assign]
    with pytest.raises(TimedOut, match="app0 of group billing is still zookeeper"):
        run_step(SwitchInstance(group.spec, "app0", MIGRATING), group.context())


def test_an_older_run_is_refused() -> None:
    group = SimGroup()
    older = group.context()
    group.context()
    with pytest.raises(Refused):
        run_step(SwitchInstance(group.spec, "app0", MIGRATING), older)
    assert group.kinds() == [OLD, OLD]


class TestAnInstanceThatDies:
    """While it bakes, in a process that did not start it."""

    def test_an_instance_that_dies_while_it_bakes_is_rolled_back_and_not_started_again(self) -> None:
        group = gone(SimGroup(), 1)
        group.spec = replace(group.spec, commit_within=90.0)
        group.instances["app0"].kind = None
        group.clock.time += 100.0
        step = SwitchInstance(group.spec, "app0", MIGRATING, bake=600.0).resume(StepProgress(healthy_seconds=100.0))
        with pytest.raises(Refused) as refused:
            run_step(step, group.context())
        assert [reason.code for reason in refused.value.reasons][:2] == ["K69", "V30"]
        assert group.kinds() == [OLD, OLD]
        assert group.instances["app0"].starts == 2
        assert step.progress.healthy_seconds == 0.0, "a task that is cleared bakes again"

    @pytest.mark.parametrize(("far", "target", "before"), [(0, MIGRATING, OLD), (3, PLAIN, MIGRATING)])
    def test_one_that_is_started_again_each_time_is_rolled_back_too(self, far: int, target: object, before: object) -> None:
        group = gone(SimGroup(), far)
        group.crashing = frozenset({target})  # type: ignore[arg-type]
        with pytest.raises(Refused) as refused:
            run_step(SwitchInstance(group.spec, "app0", target, bake=30.0), group.context())  # type: ignore[arg-type]
        assert [reason.code for reason in refused.value.reasons] == ["K69", "V30"]
        assert group.kinds() == [before] * group.count

    def test_what_an_earlier_process_saw_of_it_counts(self) -> None:
        seen = []
        for restarts in (0, 2):
            group = gone(SimGroup(), 1)
            group.crashing = frozenset({MIGRATING})
            step = SwitchInstance(group.spec, "app0", MIGRATING, bake=90.0)
            step.resume(StepProgress(healthy_seconds=1.0, member_restarts=restarts))
            with pytest.raises(Refused, match="V30"):
                run_step(step, group.context())
            seen.append(group.clock.time)
        assert seen[1] < seen[0]

    def test_what_a_process_saw_is_reported_as_soon_as_it_is_seen(self) -> None:
        """It may be killed at any time, before the step says anything."""
        group, reported = gone(SimGroup(), 1), list[int]()
        group.crashing = frozenset({MIGRATING})
        step = SwitchInstance(group.spec, "app0", MIGRATING, bake=90.0).resume(StepProgress(healthy_seconds=1.0))
        with pytest.raises(Refused, match="V30"):
            run_step(step, group.context(), observed=lambda: reported.append(step.progress.member_restarts))
        assert list(dict.fromkeys(reported)) == [0, 1, 2, 3], "and it is forgotten only when the instance was rolled back"
        assert reported[-1] == step.progress.member_restarts == 0

    def test_a_dead_instance_that_kafka_keeps_for_its_session_is_no_kafka_consumer(self) -> None:
        group = gone(SimGroup(), 1)
        group.ghosts, group.ghosts_until = {"app0"}, group.clock.time + 45.0
        group.instances["app0"].kind = None
        step = SwitchInstance(group.spec, "app0", MIGRATING, bake=60.0).resume(StepProgress(healthy_seconds=1.0))
        with pytest.raises(Refused, match="V30"):
            run_step(step, group.context())
        assert group.kinds() == [OLD, OLD]

    def test_what_an_earlier_process_watched_is_nothing_once_it_is_switched_again(self) -> None:
        group = SimGroup()
        step = SwitchInstance(group.spec, "app0", MIGRATING, bake=30.0).resume(StepProgress(healthy_seconds=29.0))
        run_step(step, group.context())
        assert 30.0 <= step.progress.healthy_seconds < 32.0
        assert group.clock.time > 33.0


def test_each_instance_of_the_rollback_begins_where_the_group_is_then() -> None:
    """Commits to ZooKeeper fail from the moment that the first of six is old again."""
    group = gone(SimGroup(6), 6)
    group.out_of_isr = True
    run_step(RollBackGroup(group.spec, Goal.ZOOKEEPER_CONSUMERS), group.context())
    assert group.kinds() == [OLD] * 6, "more copies than one instance is given"


def test_a_canary_that_is_rolled_back_begins_where_the_group_is_then() -> None:
    """ZooKeeper takes none of its commits: what Kafka had when it was switched is long over."""
    group = SimGroup(crashing=frozenset({MIGRATING}), out_of_isr=True)
    with pytest.raises(Refused, match="V30"):
        run_step(SwitchInstance(group.spec, "app0", MIGRATING, bake=60.0), group.context())
    assert group.kinds() == [OLD, OLD]


def test_no_instance_goes_before_the_canary() -> None:
    group = SimGroup()
    with pytest.raises(Refused, match="K58"):
        run_step(SwitchInstance(group.spec, "app1", MIGRATING), group.context())
    assert group.kinds() == [OLD, OLD]
