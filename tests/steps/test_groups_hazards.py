"""A simulated group on its way, and what befalls it: offsets set back by hand, dead members, hosts and coordinators that are away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import ClusterView
from airflow_provider_kmigrate.core.cluster_state.spec import GroupSpec
from airflow_provider_kmigrate.core.groups.move import Goal
from airflow_provider_kmigrate.core.groups.offsets import CopyPlan, plan_copy
from airflow_provider_kmigrate.core.member.group_seen import GroupSeen, Store
from airflow_provider_kmigrate.core.member.registration import Mode
from airflow_provider_kmigrate.core.migration.progress import StepProgress
from airflow_provider_kmigrate.exceptions import Refused, TimedOut, Unreachable
from airflow_provider_kmigrate.steps.groups import RollBackGroup, SetMode, SwitchInstance, WatchGroup
from airflow_provider_kmigrate.steps.run import Step, run_step
from tests.steps.group_runs import forward, gone, run
from tests.steps.sim_group import MIGRATING, OLD, PLAIN, SimGroup, SimInstance
from tests.steps.sim_nodes import Killed


def test_a_partition_whose_end_is_unknown_is_not_healthy() -> None:
    group = gone(SimGroup(), 1)
    observe, idle = group.observe, group.instances["app0"].idle

    def leaderless(*asked: Any, **named: Any) -> ClusterView:
        view = observe(*asked, **named)
        seen = group.seen()
        ends = {where: end for where, end in (seen.ends or {}).items() if where != idle}
        return replace(view, groups={group.name: replace(seen, ends=ends)})

    group.observe = leaderless  # type: ignore[method-assign]
    with pytest.raises(TimedOut, match=r"K30.*the ends of idle-0"):
        run_step(WatchGroup(group.spec), group.context())


def test_a_first_observation_without_zookeeper_excuses_no_offset_that_kafka_misses() -> None:
    group = gone(SimGroup(), 3)
    idle, observe = group.instances["app0"].idle, group.observe
    del group.kafka[idle]
    views = iter([True])

    def blinks(*asked: Any, **named: Any) -> ClusterView:
        view, seen = observe(*asked, **named), group.seen()
        return replace(view, groups={group.name: replace(seen, zk=None)}) if next(views, False) else view

    group.observe = blinks  # type: ignore[method-assign]
    with pytest.raises(TimedOut, match="K60"):
        run_step(SwitchInstance(group.spec, "app0", PLAIN), group.context())


class TestOffsetsThatSomebodySetBack:
    """In the store that the group reads from, for a replay; the other one's leftovers stand where they were."""

    def begun(self, group: SimGroup) -> list[int]:
        """Where each life of app0's idle partition begins from now on."""
        found, one, begins = list[int](), group.instances["app0"], group._begins

        def note(began: SimInstance) -> None:
            stores = {OLD: group._offset(one.idle), PLAIN: group.kafka[one.idle]}
            found.extend([stores.get(began.kind or OLD, max(stores.values()))] if began is one else [])
            begins(began)

        group._begins = note  # type: ignore[method-assign]
        return found

    def set_back(self, group: SimGroup, store: Store) -> None:
        idle = group.instances["app0"].idle
        group.committed[idle] = group.kafka[idle] = 20
        if store is Store.ZOOKEEPER:
            group.kafka[idle] = 100
            group._commit_zk(idle, 20)
            group.committed[idle] = 20

    def test_offsets_that_were_set_back_in_kafka_are_not_undone_by_the_rollback(self) -> None:
        group = gone(SimGroup(), 6)
        self.set_back(group, Store.KAFKA)
        begun = self.begun(group)
        with pytest.raises(Refused, match="K64"):
            run_step(RollBackGroup(group.spec, Goal.ZOOKEEPER_CONSUMERS), group.context())
        assert group.kinds() == [PLAIN, PLAIN]
        made = plan_copy(group.seen(), Store.ZOOKEEPER, reset=True)
        assert isinstance(made, CopyPlan), "what the refusal advises is allowed"
        for write in made.writes:
            group._commit_zk(write.where, write.offset)
        group.committed[group.instances["app0"].idle] = 20
        run_step(RollBackGroup(group.spec, Goal.ZOOKEEPER_CONSUMERS), group.context())
        assert begun == [20, 20]
        assert group.kinds() == [OLD, OLD]

    def test_offsets_that_were_set_back_in_zookeeper_are_not_undone_by_the_migration(self) -> None:
        group = SimGroup()
        self.set_back(group, Store.ZOOKEEPER)
        begun = self.begun(group)
        with pytest.raises(Refused, match="K64"):
            run_step(SwitchInstance(group.spec, "app0", MIGRATING), group.context())
        made = plan_copy(group.seen(), Store.KAFKA, reset=True)
        assert isinstance(made, CopyPlan), "what the refusal advises is allowed"
        group.kafka |= {write.where: write.offset for write in made.writes}
        run(group.context(), forward(group))
        assert begun == [20, 20]


@pytest.mark.parametrize("count", [1, 2])
def test_a_group_that_was_moved_and_is_stopped_is_not_started(count: int) -> None:
    group = gone(SimGroup(count), 99)
    for one in group.instances.values():
        one.kind = None
    with pytest.raises(TimedOut, match="K55"):
        run_step(SwitchInstance(group.spec, "app0", MIGRATING), group.context())
    assert group.kinds() == []
    assert {one.starts for one in group.instances.values()} == {2}


def test_the_only_instance_of_a_group_is_started_again_where_an_earlier_try_had_stopped_it() -> None:
    """Or the application would wait for a person, whose tool died between stop and start."""
    group = SimGroup(1)
    switch, step = group.switch, SwitchInstance(group.spec, "app0", MIGRATING)

    def dies(*_: object) -> None:
        group.instances["app0"].kind = None
        raise Killed

    group.switch = dies  # type: ignore[method-assign]
    with pytest.raises(Killed):
        run_step(step, group.context())
    group.switch = switch  # type: ignore[method-assign]
    run_step(SwitchInstance(group.spec, "app0", MIGRATING).resume(step.progress), group.context())
    assert group.kinds() == [MIGRATING]


class TestAGroupThatDoesNotSettleUnderItsMode:
    def test_a_group_that_does_not_settle_is_judged_before_the_timeout(self) -> None:
        group = gone(SimGroup(rebalancing_in_kafka_mode=True), 2)
        with pytest.raises(Refused) as refused:
            run_step(SetMode(group.spec, Mode.KAFKA), group.context())
        assert [reason.code for reason in refused.value.reasons] == ["V30", "K52"]

    def test_one_that_was_not_switched_or_not_observed_is_not(self) -> None:
        group = gone(SimGroup(rebalancing=frozenset({MIGRATING})), 0)
        for one in group.instances.values():
            one.kind = MIGRATING
        with pytest.raises(TimedOut, match="K52"):
            run_step(SetMode(group.spec, Mode.KAFKA), group.context())
        assert group.requested_mode is Mode.ZOOKEEPER
        group = gone(SimGroup(), 3)
        group.blind = True
        with pytest.raises(TimedOut, match="K30"):
            run_step(SetMode(group.spec, Mode.KAFKA), group.context())


def test_what_was_baked_before_an_outage_is_baked_again() -> None:
    group = gone(SimGroup(), 1)
    step = SwitchInstance(group.spec, "app0", MIGRATING, bake=30.0)

    def blinded() -> None:
        group.blind = group.blind or step.progress.healthy_seconds > 25.0

    with pytest.raises(TimedOut, match="K30"):
        run_step(step, group.context(), observed=blinded)
    assert step.progress.healthy_seconds == 0.0


class TestADeadMembersPlaceInKafka:
    def dies(self, group: SimGroup, name: str, back_after: float) -> SimGroup:
        """Killed; its supervisor starts it again as what it was. Kafka keeps its place for 40 s, or until it is back."""
        group.ghosts, group.ghosts_until = {name}, group.clock.time + 40.0
        one = group.instances[name]
        one.kind, one.becomes, one.ready_at = None, one.kind, group.clock.time + back_after
        return group

    def test_a_dead_members_place_does_not_pass_for_the_kafka_consumer_that_never_started(self) -> None:
        group = gone(SimGroup(), 3)
        group.ghosts, group.ghosts_until = {"app0"}, group.clock.time + 45.0

        def only_kills(spec: object, instance: Any, *_: object) -> None:
            group.instances[instance.name].kind = None

        group.switch = only_kills  # type: ignore[method-assign]
        with pytest.raises(TimedOut, match="K55"):
            run_step(SwitchInstance(group.spec, "app0", PLAIN), group.context())

    @pytest.mark.parametrize(
        ("far", "step"),
        [
            (1, lambda spec: SwitchInstance(spec, "app1", MIGRATING)),
            (2, lambda spec: SetMode(spec, Mode.KAFKA)),
            (3, lambda spec: SetMode(spec, Mode.ZOOKEEPER)),
        ],
    )
    def test_a_dead_members_place_refuses_nothing_that_is_possible_when_it_is_gone(
        self, far: int, step: Callable[[GroupSpec], Step]
    ) -> None:
        group = self.dies(gone(SimGroup(), far), "app0", 10.0)
        run_step(step(group.spec), group.context())
        assert group.kinds() == [MIGRATING, MIGRATING]


class TestAWatchThatComesToNoEnd:
    """Another instance is away for 20 s of each 50: never 60 s without rest, and never 70 s well."""

    def flapping(self) -> SimGroup:
        group = SimGroup(3)
        group.spec = replace(group.spec, commit_within=60.0)
        observe = group.observe

        def flap(*asked: Any, **named: Any) -> ClusterView:
            group.instances["app2"].kind = None if group.clock.time % 50 < 20 and group.clock.time > 1010 else OLD
            assert group.clock.time < 5000, "it watches forever"
            return observe(*asked, **named)

        group.observe = flap  # type: ignore[method-assign]
        return group

    def test_an_endless_watch_is_judged_by_how_often_the_group_was_not_healthy(self) -> None:
        group = self.flapping()
        with pytest.raises(Refused, match=r"K69.*V30.*was unstable 1\d times in 70\d s, and never healthy for 70 s"):
            run_step(SwitchInstance(group.spec, "app0", MIGRATING, bake=70.0), group.context())
        assert group.instances["app0"].kind is OLD
        group = self.flapping()
        with pytest.raises(Refused) as refused:
            run_step(WatchGroup(replace(group.spec, bake=70.0)), group.context())
        assert [reason.code for reason in refused.value.reasons] == ["V30"]

    def test_what_earlier_processes_saw_counts_and_is_forgotten_with_the_verdict(self) -> None:
        group = self.flapping()
        step = WatchGroup(replace(group.spec, bake=70.0)).resume(StepProgress(watched_seconds=690.0, lapses=13))
        with pytest.raises(Refused, match="V30"):
            run_step(step, group.context())
        assert group.clock.time < 1100.0
        assert (step.progress.watched_seconds, step.progress.lapses) == (0.0, 0)

    def test_time_without_observations_counts_against_no_member(self) -> None:
        group = gone(SimGroup(), 3)
        step, observe = WatchGroup(group.spec).resume(StepProgress(lapses=1)), group.observe

        def sees(*asked: Any, **named: Any) -> ClusterView:
            group.blind = group.clock.time % 25 < 2 and group.clock.time < 2000.0
            return observe(*asked, **named)

        group.observe = sees  # type: ignore[method-assign]
        run_step(step, group.context())
        assert group.clock.time > 2000.0


def test_a_dead_host_keeps_only_one_member_from_a_rollback() -> None:
    """That one stays migrating: were the dead one to come back as a plain consumer, it would keep it out."""
    group = gone(SimGroup(3), 3)
    group.instances["app0"].kind, switch = None, group.switch

    def unreachable(spec: GroupSpec, instance: Any, kind: str, token: int) -> None:
        if instance.name == "app0":
            raise Unreachable("its host is down")
        switch(spec, instance, kind, token)

    group.switch = unreachable  # type: ignore[method-assign]
    with pytest.raises(Unreachable):
        run_step(RollBackGroup(group.spec, Goal.ZOOKEEPER_CONSUMERS), group.context())
    assert group.kinds() == [MIGRATING, OLD]
    del group.instances["app0"]
    group.spec = replace(group.spec, instances=group.spec.instances[1:])
    run_step(RollBackGroup(group.spec, Goal.ZOOKEEPER_CONSUMERS), group.context())
    assert group.kinds() == [OLD, OLD]


def test_a_group_that_could_not_commit_while_its_coordinator_was_away_does_not_starve_when_it_is_back() -> None:
    group = gone(SimGroup(), 3)
    began, observe = group.clock.time, group.observe

    def outage(*asked: Any, **named: Any) -> ClusterView:
        group.blind = began + 5 < group.clock.time < began + 65
        group.ill = frozenset({MIGRATING}) if began + 5 < group.clock.time < began + 70 else frozenset()
        return observe(*asked, **named)

    group.observe = outage  # type: ignore[method-assign]
    run_step(WatchGroup(group.spec), group.context())
    assert group.clock.time > began + 95


def test_a_canary_that_comes_back_with_fewer_topics_is_rolled_back() -> None:
    """The only instance: no registration names the topic that no member reads any more."""
    group = SimGroup(1, ill=frozenset({MIGRATING}))
    seen, lost = group.seen, group.instances["app0"].busy

    def registered() -> GroupSeen:
        now = seen()
        if now.zk is None or not now.members_of_kind(MIGRATING):
            return now
        owners = {where: thread for where, thread in now.zk.owners.items() if where != lost}
        return replace(now, zk=replace(now.zk, partitions=now.zk.partitions - {lost}, owners=owners))

    group.seen = registered  # type: ignore[method-assign]
    with pytest.raises(Refused, match=r"V30.*t-0"):
        run_step(SwitchInstance(group.spec, "app0", MIGRATING, bake=60.0), group.context())
