"""No broker is restarted while brokers compute coordinators with different counts: a start would move groups under their consumers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_kmigrate.core.cluster_state.decision import Done
from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, ClusterView, CoordinatorFacts, Fields
from airflow_provider_kmigrate.core.migration.coordinator import OFFSETS
from airflow_provider_kmigrate.core.migration.plan import EXPANSION, MIGRATION
from airflow_provider_kmigrate.exceptions import KMigrateError, Refused, TimedOut, Unavailable
from airflow_provider_kmigrate.steps.brokers import RollBackCanary
from airflow_provider_kmigrate.steps.catalog import build, run_plan, run_rollback
from airflow_provider_kmigrate.steps.prepare import run_backup, run_preflight
from airflow_provider_kmigrate.steps.run import Step, StepContext, run_step
from airflow_provider_kmigrate.steps.waits import Soak, require_rollback_assured, run_watch
from tests.steps.broker_stops import next_broker, stops
from tests.steps.canary_broker import BAKE
from tests.steps.phases import all_kraft, check_back, check_end, controllers, forward, some_kraft
from tests.steps.sim import SimCluster


def expand_at(cluster: SimCluster, at: float) -> None:
    observe = cluster.observe

    def expanded(what: Fields, *given: object) -> ClusterView:
        if cluster.clock.time > at:
            cluster.offsets_partitions = 15
        return observe(what, *given)  # type: ignore[arg-type]

    cluster.observe = expanded  # type: ignore[method-assign]


def test_a_cluster_with_groups_migrates_and_each_restart_is_preceded_by_a_question(tmp_path: Path) -> None:
    cluster = SimCluster(offsets_partitions=10)
    asked: list[tuple[int, ...]] = []
    observe = cluster.observe
    cluster.observe = lambda what, *given: (  # type: ignore[method-assign]
        asked.append(tuple(stops(cluster))) if what and what & Fields.COORDINATORS else None,
        observe(what, *given),
    )[1]
    run_plan(cluster.context(tmp_path), MIGRATION)
    check_end(cluster)
    assert {sum(done) for done in asked} == set(range(7)), "in preflight, before each of six restarts, in the soak"
    assert cluster.disasters == []


@pytest.mark.parametrize("phase", [controllers, some_kraft])
def test_an_expansion_stops_the_roll_before_the_next_broker_stops(
    tmp_path: Path, phase: Callable[[SimCluster, StepContext], None]
) -> None:
    cluster = SimCluster(offsets_partitions=10)
    context = cluster.context(tmp_path)
    phase(cluster, context)
    cluster.offsets_partitions, before = 15, stops(cluster)
    with pytest.raises(Refused) as refused:
        run_step(next_broker(cluster, BrokerMode.MIGRATION if phase is controllers else BrokerMode.KRAFT), context)
    assert [reason.code for reason in refused.value.reasons] == ["G37", "K01"]
    assert "Brokers that compute with 10 partitions of __consumer_offsets, which has 15: 0, 1, 2." in str(refused.value)
    assert "Of 12 consumer groups: " in str(refused.value)
    assert stops(cluster) == before
    with pytest.raises(Refused, match="K01"):
        run_watch(context)


def test_an_expansion_stops_the_rollback_until_every_broker_was_restarted_by_hand(tmp_path: Path) -> None:
    cluster = SimCluster(offsets_partitions=10)
    context = cluster.context(tmp_path)
    all_kraft(cluster, context)
    cluster.offsets_partitions, before = 15, stops(cluster)
    with pytest.raises(Refused, match="K01"):
        run_rollback(context)
    assert stops(cluster) == before
    for node in cluster.spec.brokers:
        cluster.stop(node)
        cluster.start(node)
    cluster.disasters.clear()
    run_rollback(cluster.context(tmp_path))
    check_back(cluster)
    assert cluster.disasters == []


def test_a_broker_that_does_not_say_is_named_and_waited_for(tmp_path: Path) -> None:
    cluster = SimCluster(offsets_partitions=10, unread_coordinators={2})
    context = cluster.context(tmp_path)
    controllers(cluster, context)
    with pytest.raises(TimedOut, match="explains the answers of brokers 2, or they did not answer"):
        run_step(next_broker(cluster, BrokerMode.MIGRATION), context)
    assert stops(cluster) == [0, 0, 0]
    with pytest.raises(Unavailable, match="K02"):
        run_watch(context)
    cluster.unread_coordinators.clear()
    assert isinstance(run_step(next_broker(cluster, BrokerMode.MIGRATION), context), Done)


def test_a_first_broker_that_is_worse_is_rolled_back_although_it_does_not_report(tmp_path: Path) -> None:
    cluster = SimCluster(offsets_partitions=10)
    context = cluster.context(tmp_path)
    controllers(cluster, context)
    run_step(next_broker(cluster, BrokerMode.MIGRATION), context)
    cluster.unread_coordinators.add(1)
    assert isinstance(run_step(RollBackCanary(cluster.spec.brokers[1], BrokerMode.ZOOKEEPER, BAKE), context), Done)


def test_a_leader_that_adds_no_broker_to_its_isrs_is_not_restarted_while_brokers_disagree(tmp_path: Path) -> None:
    cluster = SimCluster(offsets_partitions=10, stuck=0)
    context = cluster.context(tmp_path)
    controllers(cluster, context)
    stop = cluster.stop

    def changed_meanwhile(node: object) -> None:
        """Fewer, so that the sim knows how far each replica is behind."""
        stop(node)  # type: ignore[arg-type]
        cluster.offsets_partitions = 8

    cluster.stop = changed_meanwhile  # type: ignore[method-assign]
    said: list[str] = []
    with pytest.raises(KMigrateError):
        run_step(next_broker(cluster, BrokerMode.MIGRATION), replace(context, say=said.append))
    assert stops(cluster) == [0, 1, 0]
    assert any(text.startswith("Not restarting broker 0 now: [K01]") for text in said)


def hidden(brokers: int = 3) -> SimCluster:
    """Leaders are so regular that an expansion shows in no broker's answer."""
    return SimCluster(brokers, offsets_partitions=10, regular=True)


def test_an_expansion_in_the_soak_is_reported_within_a_minute(tmp_path: Path) -> None:
    cluster = SimCluster(offsets_partitions=10)
    context = cluster.context(tmp_path)
    all_kraft(cluster, context)
    begun = cluster.clock.time
    expand_at(cluster, begun + 100.0)
    with pytest.raises(Refused, match="K01"):
        run_step(Soak(1000.0), context)
    assert 100.0 < cluster.clock.time - begun < 160.0


def test_an_expansion_that_regular_leaders_hide_ends_a_soak_too(tmp_path: Path) -> None:
    cluster = hidden()
    context = cluster.context(tmp_path)
    all_kraft(cluster, context)
    begun = cluster.clock.time
    expand_at(cluster, begun + 100.0)
    with pytest.raises(Refused, match="had 10 partitions when kmigrate last verified it, and has 15 now"):
        run_step(Soak(1000.0), context)
    assert 100.0 < cluster.clock.time - begun < 160.0


@pytest.mark.parametrize("phase", [controllers, some_kraft])
def test_a_hidden_expansion_stops_the_next_process_of_a_roll_before_it_stops_a_broker(
    tmp_path: Path, phase: Callable[[SimCluster, StepContext], None]
) -> None:
    """No process has seen both counts: the run's note has the one before."""
    cluster = hidden()
    phase(cluster, cluster.context(tmp_path))
    cluster.offsets_partitions, before = 15, stops(cluster)
    with pytest.raises(Refused, match=r"\[K01\].*had 10 partitions.*has 15 now.*kmigrate_offsets_topic__sim completes"):
        run_step(
            next_broker(cluster, BrokerMode.MIGRATION if phase is controllers else BrokerMode.KRAFT), cluster.context(tmp_path)
        )
    assert stops(cluster) == before
    assert cluster.disasters == []


@pytest.mark.parametrize("ask", [run_watch, require_rollback_assured, run_rollback])
def test_watch_approval_and_rollback_of_any_process_see_a_hidden_expansion(
    tmp_path: Path, ask: Callable[[StepContext], object]
) -> None:
    cluster = hidden()
    all_kraft(cluster, cluster.context(tmp_path))
    cluster.offsets_partitions, before = 15, stops(cluster)
    with pytest.raises(Refused, match=r"\[K01\].*had 10 partitions"):
        ask(cluster.context(tmp_path))
    assert stops(cluster) == before


def test_a_hidden_expansion_is_completed_by_the_dag_that_the_text_names_and_the_migration_goes_on(tmp_path: Path) -> None:
    cluster = hidden()
    run_plan(cluster.context(tmp_path), [step for step in MIGRATION if step.kind in {"preflight", "backup"}])
    cluster.offsets_partitions = 15
    with pytest.raises(Refused, match="K01"):
        run_preflight(cluster.context(tmp_path))
    run_plan(cluster.context(tmp_path), EXPANSION, {"partitions": 15})
    assert set(cluster.counts.values()) == {15}
    forward(cluster, cluster.context(tmp_path))
    assert cluster.disasters == []
    assert json.loads(cluster.noted_counts or b"") == {OFFSETS.name: 15}


def test_an_expansion_of_kmigrate_that_was_undone_stays_one_that_no_restart_passes(tmp_path: Path) -> None:
    """The topic keeps its partitions, and brokers use the old count."""
    cluster = hidden()
    context = cluster.context(tmp_path)
    run_plan(context, [step for step in MIGRATION if step.kind in {"preflight", "backup"}])
    run_plan(context, EXPANSION[: [step.kind for step in EXPANSION].index("expand") + 1], {"partitions": 20})
    run_plan(cluster.context(tmp_path), EXPANSION, {"partitions": 20, "undo": True})
    with pytest.raises(Refused, match="had 10 partitions"):
        run_preflight(cluster.context(tmp_path))


def test_a_count_that_all_brokers_certainly_use_is_noted_before_the_next_restart(tmp_path: Path) -> None:
    cluster = SimCluster(offsets_partitions=10)
    controllers(cluster, cluster.context(tmp_path))
    cluster.offsets_partitions = 15
    cluster.counts = dict.fromkeys(cluster.counts, 15)  # every broker was restarted by hand
    run_step(next_broker(cluster, BrokerMode.MIGRATION), cluster.context(tmp_path))
    assert json.loads(cluster.noted_counts or b"") == {OFFSETS.name: 15}


def test_a_topic_that_is_made_during_the_migration_is_noted_before_the_next_restart(tmp_path: Path) -> None:
    cluster = SimCluster(regular=True)
    controllers(cluster, cluster.context(tmp_path))
    cluster.offsets_partitions, cluster.counts = 10, dict.fromkeys(cluster.counts, 10)
    run_step(next_broker(cluster, BrokerMode.MIGRATION), cluster.context(tmp_path))
    assert json.loads(cluster.noted_counts or b"") == {OFFSETS.name: 10}
    cluster.offsets_partitions = 15
    with pytest.raises(Refused, match="had 10 partitions"):
        run_step(next_broker(cluster, BrokerMode.MIGRATION), cluster.context(tmp_path))


def test_without_the_note_no_broker_is_rolled_until_backup_is_cleared_but_one_is_rolled_back(tmp_path: Path) -> None:
    """An older release began this migration, or somebody deleted the note, and regular leaders hide which count brokers use."""
    cluster = hidden()
    context = cluster.context(tmp_path)
    some_kraft(cluster, context)
    cluster.noted_counts = None
    step = next_broker(cluster, BrokerMode.KRAFT)
    step.patience = 30.0
    with pytest.raises(TimedOut, match=r"\[K02\] kmigrate has not noted"):
        run_step(step, context)
    with pytest.raises(Unavailable, match="K02"):
        run_watch(context)
    run_backup(context)
    assert isinstance(run_step(next_broker(cluster, BrokerMode.KRAFT), context), Done)
    cluster.noted_counts = None
    run_rollback(cluster.context(tmp_path))
    check_back(cluster)


def test_a_migration_that_an_older_release_began_goes_on_and_notes_the_count_that_every_answer_proves(tmp_path: Path) -> None:
    cluster = SimCluster(offsets_partitions=10)
    context = cluster.context(tmp_path)
    some_kraft(cluster, context)
    cluster.noted_counts = None
    assert isinstance(run_step(next_broker(cluster, BrokerMode.KRAFT), context), Done)
    assert json.loads(cluster.noted_counts or b"") == {OFFSETS.name: 10}


def test_a_backup_waits_for_brokers_that_do_not_say_which_count_they_use(tmp_path: Path) -> None:
    cluster = SimCluster(offsets_partitions=10, unread_coordinators={2}, noted_counts=None)
    cluster.noted_counts = None
    with pytest.raises(Unavailable, match="K02"):
        run_backup(cluster.context(tmp_path))
    assert cluster.noted_counts is None


def test_a_soak_goes_on_while_a_broker_does_not_report_its_coordinators_but_does_not_end_then(tmp_path: Path) -> None:
    cluster = SimCluster(offsets_partitions=10)
    context = cluster.context(tmp_path)
    all_kraft(cluster, context)
    begun, observe = cluster.clock.time, cluster.observe

    def late(what: Fields, *given: object) -> ClusterView:
        view = observe(what, *given)  # type: ignore[arg-type]
        unresponsive = view.coordinators is not None and 50.0 < cluster.clock.time - begun < 130.0
        return replace(view, coordinators=CoordinatorFacts({OFFSETS.name: {}})) if unresponsive else view

    cluster.observe = late  # type: ignore[method-assign]
    run_step(Soak(100.0), context)
    assert 130.0 < cluster.clock.time - begun < 140.0


def test_a_soak_does_not_end_on_an_expansion_that_it_has_not_read_yet(tmp_path: Path) -> None:
    cluster = SimCluster(offsets_partitions=10)
    context = cluster.context(tmp_path)
    all_kraft(cluster, context)
    begun = cluster.clock.time
    expand_at(cluster, begun + 10.0)
    with pytest.raises(Refused, match="K01"):
        run_step(Soak(20.0), context)
    assert 20.0 < cluster.clock.time - begun < 28.0, "it reads them at its end, not when they are due"


def test_preflight_refuses_a_sleeping_expansion(tmp_path: Path) -> None:
    cluster = SimCluster(offsets_partitions=10)
    cluster.offsets_partitions = 15
    with pytest.raises(Refused) as refused:
        run_preflight(cluster.context(tmp_path))
    assert {reason.code for reason in refused.value.reasons} == {"K01"}


def test_the_step_of_the_sensor(tmp_path: Path) -> None:
    cluster = SimCluster(offsets_partitions=10)
    context = cluster.context(tmp_path)

    def step() -> Step:
        return build(cluster.spec, "coordinators", {"patience": 30.0})

    assert run_step(step(), context) == Done("Every broker computes coordinators with the 10 partitions of __consumer_offsets.")
    cluster.unread_coordinators.add(0)
    with pytest.raises(TimedOut, match="brokers 0, or they"):
        run_step(step(), context)
    cluster.unread_coordinators.clear()
    cluster.offsets_partitions = 15
    cluster.stop(cluster.spec.brokers[0])
    cluster.start(cluster.spec.brokers[0])
    with pytest.raises(Refused, match=r"accepted by no broker \(blackout\)|accepted by more than one broker \(split brain\)"):
        run_step(step(), replace(context))
