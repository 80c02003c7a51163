"""The first broker of each pass on the simulated cluster: compared with what it was and with the others, and rolled back alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations

import pytest

from airflow_provider_kmigrate.core.cluster_state.decision import Act, Done, Reading, Wait
from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, Fields, NoProbe, Reason
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole
from airflow_provider_kmigrate.core.migration.phase import Phase, position_of
from airflow_provider_kmigrate.core.migration.roll import JUDGED_FOR, SETTLING, STAGE, next_to_roll, why_postponed
from airflow_provider_kmigrate.exceptions import Refused, TimedOut
from airflow_provider_kmigrate.steps.brokers import RollBackCanary
from airflow_provider_kmigrate.steps.catalog import run_rollback
from airflow_provider_kmigrate.steps.run import run_step, with_backup
from airflow_provider_kmigrate.steps.waits import Copied
from tests.steps.canary_broker import BAKE, CANARY, ready, step
from tests.steps.phases import EVERYTHING, check_back, forward, roll
from tests.steps.sim_nodes import Health, Killed, well

ALL = Reading(~Fields(0), every_node=True)
PASSES = [(BrokerMode.MIGRATION, BrokerMode.ZOOKEEPER), (BrokerMode.KRAFT, BrokerMode.MIGRATION)]
both = pytest.mark.parametrize(("target", "before"), PASSES)

Ill = Callable[[int], Health]


def late(_observation: int) -> Health:
    return Health(seconds=1.5)


def pausing(observation: int) -> Health:
    return Health(seconds=None if observation % 2 else 0.005)


def hanging_after(observation: int) -> Ill:
    return lambda now: Health() if now < observation else Health(None, in_sync=False)


def leaving(observation: int) -> Health:
    return Health(in_sync=observation % 60 != 0)


def only(target: BrokerMode, ill: Ill) -> Callable[[int, BrokerMode, int], Health]:
    """The first broker is ill in its new mode, and well in every other; so are the others in every mode."""
    return lambda broker, mode, observation: ill(observation) if (broker, mode) == (CANARY, target) else Health()


def counts(cluster):
    return {key: (node.starts, node.stops) for key, node in cluster.nodes.items()}


def check_alone_back(cluster, before: BrokerMode, counted) -> None:
    canary = cluster.nodes[NodeRole.BROKER, CANARY]
    assert canary.running == canary.text
    assert canary.stage is STAGE[before]
    starts, stops = counted[NodeRole.BROKER, CANARY]
    assert counts(cluster) == counted | {(NodeRole.BROKER, CANARY): (starts + 2, stops + 2)}, (
        "restarted once for each mode, and no other broker"
    )
    assert cluster.disasters == []
    assert not any(partition.is_under_replicated for partition in cluster.observe(EVERYTHING).partitions)


def refused(cluster, tmp_path, target: BrokerMode, broker: int = CANARY, **progress) -> list[str]:
    """Run the step; the codes of its refusal."""
    with pytest.raises(Refused) as error:
        run_step(step(cluster, target, broker, **progress), cluster.context(tmp_path))
    return [reason.code for reason in error.value.reasons]


@both
@pytest.mark.parametrize(
    ("ill", "code"), [(late, "V23"), (pausing, "V23"), (leaving, "V23")], ids=["late", "pausing", "leaving its ISRs"]
)
def test_a_first_broker_that_is_worse_is_rolled_back_alone(tmp_path, target, before, ill, code):
    cluster = ready(tmp_path, target)
    cluster.health, counted = only(target, ill), counts(cluster)
    cluster.spec = replace(cluster.spec, policy=replace(BAKE, canary_bake=600.0))
    assert refused(cluster, tmp_path, target) == [code, "V26"]
    check_alone_back(cluster, before, counted)


@both
def test_one_that_hangs_while_it_bakes_is_rolled_back_too(tmp_path, target, before):
    cluster = ready(tmp_path, target)
    counted, cluster.health = counts(cluster), only(target, hanging_after(cluster.observations + 60))
    assert refused(cluster, tmp_path, target) == ["V23", "V26"]
    check_alone_back(cluster, before, counted)


@both
def test_once_the_cause_is_fixed_the_next_run_goes_on_to_the_end(tmp_path, target, before):
    cluster = ready(tmp_path, target)
    cluster.health = lambda broker, mode, observation: late(observation) if mode is target else Health()
    with pytest.raises(Refused):
        forward(cluster, cluster.context(tmp_path))
    cluster.health = well
    forward(cluster, cluster.context(tmp_path))
    assert cluster.disasters == []
    assert cluster.finalized


@both
def test_the_whole_cluster_can_go_back_from_there(tmp_path, target, before):
    cluster = ready(tmp_path, target)
    cluster.health = only(target, late)
    with pytest.raises(Refused):
        run_step(step(cluster, target), cluster.context(tmp_path))
    run_rollback(cluster.context(tmp_path))
    check_back(cluster)
    assert cluster.note is None, "the next migration's controllers know no broker"


@both
def test_a_rollback_that_takes_its_time_is_waited_for(tmp_path, target, before):
    """Back in its old mode it says nothing for a while: it starts, and is not stopped again."""
    cluster = ready(tmp_path, target)
    run_step(step(cluster, target), cluster.context(tmp_path), sync_for=4.0)
    counted, back = counts(cluster), cluster.observations + 200

    def health(broker: int, mode: BrokerMode, observation: int) -> Health:
        return Health(None, in_sync=False) if (broker, mode) == (CANARY, before) and observation < back else Health()

    cluster.health = health
    assert refused(cluster, tmp_path, target, worse=(Reason("V23", "slow"),)) == ["V23", "V26"]
    starts, stops = counted[NodeRole.BROKER, CANARY]
    assert counts(cluster) == counted | {(NodeRole.BROKER, CANARY): (starts + 1, stops + 1)}
    assert cluster.observations > back


@both
def test_one_that_does_not_respond_any_more_is_rolled_back_when_another_process_has_found_it_worse(tmp_path, target, before):
    cluster = ready(tmp_path, target)
    counted = counts(cluster)
    run_step(step(cluster, target), cluster.context(tmp_path), sync_for=4.0)
    cluster.health = only(target, hanging_after(0))
    assert refused(cluster, tmp_path, target, worse=(Reason("V23", "unresponsive"),)) == ["V23", "V26"]
    check_alone_back(cluster, before, counted)


def slow_start(cluster) -> Callable[[int, BrokerMode, int], Health]:
    """Late for the first seconds in the new mode, as a cold JVM is."""
    begun: list[float] = []

    def health(broker: int, mode: BrokerMode, observation: int) -> Health:
        if broker != CANARY or mode is not BrokerMode.MIGRATION:
            return Health()
        begun.append(cluster.clock.time)
        return Health(seconds=2.0 if cluster.clock.time - begun[0] < 0.9 * SETTLING else 0.005)

    return health


def burdened(broker: int, mode: BrokerMode, observation: int) -> Health:
    """Every broker is slow since the restart: perhaps the machine that observes."""
    return Health(seconds=0.005 if mode is BrokerMode.ZOOKEEPER and broker == CANARY else 1.0)


def far(broker: int, mode: BrokerMode, observation: int) -> Health:
    """It has always been slow."""
    return Health(seconds=1.0 if broker == CANARY else 0.005)


def hiccup(broker: int, mode: BrokerMode, observation: int) -> Health:
    """Every tenth observation of it is slow, and it lost its ISRs once."""
    return Health(
        seconds=3.0 if broker == CANARY and observation % 10 == 0 else 0.005, in_sync=broker != CANARY or observation != 100
    )


@pytest.mark.parametrize("health", [well, burdened, far, hiccup, "slow start"])
def test_what_is_not_its_fault_or_passes_lets_it_stay(tmp_path, health):
    cluster = ready(tmp_path, BrokerMode.MIGRATION)
    cluster.health = slow_start(cluster) if health == "slow start" else health
    assert isinstance(run_step(step(cluster, BrokerMode.MIGRATION), cluster.context(tmp_path)), Done)
    assert cluster.nodes[NodeRole.BROKER, CANARY].stops == 1


def test_a_run_that_saw_nothing_before_the_restart_compares_with_the_others(tmp_path):
    cluster = ready(tmp_path, BrokerMode.MIGRATION)
    counted = counts(cluster)
    run_step(step(cluster, BrokerMode.MIGRATION), cluster.context(tmp_path), sync_for=4.0)
    cluster.health = only(BrokerMode.MIGRATION, late)
    assert refused(cluster, tmp_path, BrokerMode.MIGRATION) == ["V23", "V26"]
    check_alone_back(cluster, BrokerMode.ZOOKEEPER, counted)


def test_what_another_process_found_is_acted_on_at_once(tmp_path):
    cluster = ready(tmp_path, BrokerMode.MIGRATION)
    run_step(step(cluster, BrokerMode.MIGRATION), cluster.context(tmp_path), sync_for=4.0)
    began, worse = cluster.clock.time, (Reason("V23", "seen by the triggerer"),)
    with pytest.raises(Refused, match="seen by the triggerer"):
        run_step(step(cluster, BrokerMode.MIGRATION, worse=worse), cluster.context(tmp_path))
    assert cluster.clock.time - began < 10.0


def test_what_was_found_before_another_restart_is_forgotten(tmp_path):
    cluster = ready(tmp_path, BrokerMode.MIGRATION)
    again = step(cluster, BrokerMode.MIGRATION, healthy_seconds=1000.0, worse=(Reason("V23", "of a life before this one"),))
    began = cluster.clock.time
    assert isinstance(run_step(again, cluster.context(tmp_path)), Done)
    assert cluster.clock.time - began > BAKE.canary_bake
    assert again.progress.worse == ()


def test_an_observation_that_finds_it_worse_is_passed_to_another_process(tmp_path):
    cluster = ready(tmp_path, BrokerMode.MIGRATION)
    run_step(step(cluster, BrokerMode.MIGRATION), cluster.context(tmp_path), sync_for=4.0)
    cluster.health = only(BrokerMode.MIGRATION, late)
    watching = step(cluster, BrokerMode.MIGRATION)
    decision = None
    while not isinstance(decision, Act):
        view = cluster.observe(watching.fields)
        decision = watching.next_action(view, view, Reading(watching.fields)).decision
    assert [reason.code for reason in watching.progress.worse] == ["V23"]


def test_without_baking_nothing_is_compared(tmp_path):
    cluster = ready(tmp_path, BrokerMode.MIGRATION)
    cluster.spec = replace(cluster.spec, policy=replace(BAKE, canary_bake=0.0))
    cluster.health = only(BrokerMode.MIGRATION, late)
    assert isinstance(run_step(step(cluster, BrokerMode.MIGRATION), cluster.context(tmp_path)), Done)


def test_a_first_broker_bakes_until_enough_was_seen_of_it(tmp_path):
    cluster = ready(tmp_path, BrokerMode.MIGRATION)
    cluster.spec = replace(cluster.spec, policy=replace(BAKE, canary_bake=0.1))
    cluster.health = only(BrokerMode.MIGRATION, late)
    assert refused(cluster, tmp_path, BrokerMode.MIGRATION) == ["V23", "V26"]


def test_before_the_first_restart_of_a_pass_it_is_observed_for_a_moment(tmp_path):
    cluster = ready(tmp_path, BrokerMode.MIGRATION)
    view = with_backup(
        cluster.context(tmp_path), Fields.FILES | Fields.BACKUP, replace(cluster.observe(EVERYTHING), probe=NoProbe())
    )
    first = step(cluster, BrokerMode.MIGRATION).next_action(view, view, ALL).decision
    assert isinstance(first, Wait)
    assert (first.healthy, [reason.code for reason in first.reasons]) == (True, ["T01"])
    run_step(step(cluster, BrokerMode.MIGRATION), cluster.context(tmp_path))
    view = with_backup(
        cluster.context(tmp_path), Fields.FILES | Fields.BACKUP, replace(cluster.observe(EVERYTHING), probe=NoProbe())
    )
    assert isinstance(step(cluster, BrokerMode.MIGRATION, broker=2).next_action(view, view, ALL).decision, Act), (
        "the second one is not"
    )


def no_controller(cluster):
    for node in cluster.spec.controllers[:2]:
        cluster.stop(node)


def another_down(cluster):
    cluster.stop(cluster.spec.brokers[2])


def without_flag(cluster):
    node = cluster.nodes[NodeRole.CONTROLLER, 3001]
    node.running = node.running.replace("zookeeper.metadata.migration.enable=true", "zookeeper.metadata.migration.enable=false")


@pytest.mark.parametrize(
    ("target", "obstacle", "code"),
    [
        (BrokerMode.KRAFT, no_controller, "G23"),
        (BrokerMode.KRAFT, another_down, "R01"),
        (BrokerMode.KRAFT, without_flag, "G05"),
        (BrokerMode.MIGRATION, another_down, "R01"),
    ],
)
def test_if_no_rollback_is_possible_it_only_stops_and_says_so(tmp_path, target, obstacle, code):
    cluster = ready(tmp_path, target)
    run_step(step(cluster, target), cluster.context(tmp_path), sync_for=4.0)
    obstacle(cluster)
    counted, files = counts(cluster), {key: node.text for key, node in cluster.nodes.items()}
    codes = refused(cluster, tmp_path, target, worse=(Reason("V23", "slow"),))
    assert codes[:2] == ["V23", "V27"]
    assert code in codes
    assert (counts(cluster), {key: node.text for key, node in cluster.nodes.items()}) == (counted, files)


def test_the_only_broker_is_never_rolled_back_from_migration_mode(tmp_path):
    """The controllers took the cluster over the moment it registered."""
    cluster = ready(tmp_path, BrokerMode.MIGRATION, brokers=1)
    run_step(step(cluster, BrokerMode.MIGRATION, broker=0), cluster.context(tmp_path), sync_for=4.0)
    assert cluster.kraft_owns
    counted = counts(cluster)
    codes = refused(cluster, tmp_path, BrokerMode.MIGRATION, broker=0, worse=(Reason("V23", "slow"),))
    assert codes[:3] == ["V23", "V27", "G32"]
    assert counts(cluster) == counted


@pytest.mark.slow
@both
def test_a_tool_killed_anywhere_in_it_leaves_nothing_half_done(tmp_path, target, before):
    """The next run finds the file, the process and the note: it ends in the new mode, or rolled back once more."""
    rehearsal = ready(tmp_path, target)
    run_step(step(rehearsal, target), rehearsal.context(tmp_path), sync_for=4.0)
    begun = rehearsal.mortal.count
    with pytest.raises(Refused):
        run_step(step(rehearsal, target, worse=(Reason("V23", "slow"),)), rehearsal.context(tmp_path))
    for at in range(begun + 1, rehearsal.mortal.count + 1):
        for ill in (False, True):
            cluster = ready(tmp_path, target)
            run_step(step(cluster, target), cluster.context(tmp_path), sync_for=4.0)
            cluster.mortal.at = at
            with pytest.raises(Killed):
                run_step(step(cluster, target, worse=(Reason("V23", "slow"),)), cluster.context(tmp_path))
            cluster.health = only(target, late) if ill else well
            if ill:
                assert refused(cluster, tmp_path, target) == ["V23", "V26"]
            else:
                run_step(step(cluster, target), cluster.context(tmp_path))
            canary = cluster.nodes[NodeRole.BROKER, CANARY]
            assert canary.running == canary.text
            assert canary.stage is STAGE[before if ill else target]
            assert cluster.disasters == []


def test_the_verdict_needs_less_than_a_task_waits_before_it_defers():
    """A task that resumes has no memory: what it could not judge within that time it would never judge."""
    assert SETTLING + JUDGED_FOR < 30.0


def registered_but_rolled_back(tmp_path, broker: int = CANARY):
    """The first broker of the first roll was rolled back; the controllers count it as registered all the same."""
    cluster = ready(tmp_path, BrokerMode.MIGRATION)
    run_step(step(cluster, BrokerMode.MIGRATION, broker=broker), cluster.context(tmp_path), sync_for=4.0)
    run_step(RollBackCanary(cluster.spec.brokers[broker], BrokerMode.ZOOKEEPER, BAKE), cluster.context(tmp_path))
    assert cluster.registered == {broker}
    return cluster


def test_the_last_of_the_others_waits_for_a_broker_that_was_rolled_back(tmp_path):
    cluster = registered_but_rolled_back(tmp_path)
    context = cluster.context(tmp_path)
    run_step(step(cluster, BrokerMode.MIGRATION, broker=2), context)
    with pytest.raises(TimedOut, match="G22"):
        run_step(step(cluster, BrokerMode.MIGRATION, broker=0), context)
    assert cluster.disasters == []
    run_step(step(cluster, BrokerMode.MIGRATION), context)
    run_step(step(cluster, BrokerMode.MIGRATION, broker=0), context)
    assert cluster.kraft_owns
    assert cluster.disasters == []


@pytest.mark.parametrize("controller", range(3))
@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_the_order_of_the_tasks_never_ends_in_waiting_for_one_another(tmp_path, controller, order):
    """The ZooKeeper controller may be another broker by the time of the next run, even the one that was rolled back."""
    cluster = registered_but_rolled_back(tmp_path)
    cluster.zookeeper_controller = controller
    context = cluster.context(tmp_path)
    for broker in order:
        if not why_postponed(cluster.observe(EVERYTHING), broker, order, BrokerMode.MIGRATION):
            run_step(step(cluster, BrokerMode.MIGRATION, broker=broker), context)
    while (broker := next_to_roll(cluster.observe(EVERYTHING), order, BrokerMode.MIGRATION)) is not None:
        run_step(step(cluster, BrokerMode.MIGRATION, broker=broker), context)
    assert cluster.kraft_owns
    assert cluster.disasters == []


def test_a_broker_that_something_else_stopped_is_still_left_alone(tmp_path):
    """In the second pass the note of the first one says nothing."""
    cluster = registered_but_rolled_back(tmp_path)
    roll(cluster, cluster.context(tmp_path), BrokerMode.MIGRATION)
    run_step(Copied(), cluster.context(tmp_path))
    assert position_of(cluster.observe(EVERYTHING)).phase is Phase.DUAL_WRITE_ZOOKEEPER
    cluster.stop(cluster.spec.brokers[CANARY])
    with pytest.raises(TimedOut, match="R01"):
        run_step(step(cluster, BrokerMode.KRAFT), cluster.context(tmp_path))
