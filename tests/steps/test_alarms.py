"""What is dangerous whatever a step waits for: the loop itself says it, and writes it down, at each step and once a change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_kmigrate.core.cluster import GroupProgressSpec
from airflow_provider_kmigrate.core.model import Migration, ZkView
from airflow_provider_kmigrate.exceptions import Refused, Unavailable
from airflow_provider_kmigrate.steps.nodes import note_unflagged
from airflow_provider_kmigrate.steps.run import StepContext, run_step
from airflow_provider_kmigrate.steps.waits import Finalized, brokers_registered, run_watch
from tests.steps.phases import all_in_migration, finalization_begun
from tests.steps.sim import SimCluster
from tests.steps.sim_hands import SimJournal

HYBRID_SINCE = 400.0  # by ZooKeeper's clock; the simulated one begins at 1000


class Old(SimCluster):
    """A cluster whose /migration was made long ago."""

    def zk(self) -> ZkView:
        view = super().zk()
        made = replace(view.migration, created_at=HYBRID_SINCE) if isinstance(view.migration, Migration) else view.migration
        return replace(view, migration=made)


def messages(context: StepContext) -> tuple[list[str], SimJournal]:
    """What a step says, and what it writes down."""
    said: list[str] = []
    journal = SimJournal()
    run_step(brokers_registered([0, 1, 2], GroupProgressSpec()), replace(context, say=said.append, journal=journal))
    return [text for text in said if text.startswith("ALARM")], journal


def test_a_cluster_that_is_half_way_for_too_long_is_an_alarm(tmp_path: Path) -> None:
    cluster = Old()
    all_in_migration(cluster, cluster.context(tmp_path))
    patient = cluster.context(tmp_path)
    assert messages(patient)[0] == []
    policy = replace(cluster.spec.policy, max_hybrid=500.0)
    said, journal = messages(replace(patient, spec=replace(cluster.spec, policy=policy)))
    assert len(said) == 1, "once, not at each observation"
    assert "[T06]" in said[0]
    assert "brokers are still in migration mode: [0, 1, 2]" in said[0]
    assert [text for kind, text in journal.lines if kind == "alarm"] == [said[0].removeprefix("ALARM: ")]


def test_a_controller_without_the_flag_is_an_alarm_but_for_the_step_that_takes_it(tmp_path: Path) -> None:
    cluster = SimCluster()
    finalization_begun(cluster, cluster.context(tmp_path))
    said, journal = messages(context := cluster.context(tmp_path))
    assert len(said) == 1
    assert "[G05] Controller" in said[0]
    assert [text for kind, text in journal.lines if kind == "alarm"] == [said[0].removeprefix("ALARM: ")]
    quiet: list[str] = []
    run_step(Finalized(), replace(context, say=quiet.append), sync_for=1.0)
    assert not [text for text in quiet if "ALARM" in text and "G05" in text]


def test_a_watch_in_the_middle_of_a_finalization_fails_only_if_that_stays_half_way(tmp_path: Path) -> None:
    """kmigrate's own note distinguishes its finalization from a lost flag."""
    cluster = SimCluster()
    context = cluster.context(tmp_path)
    finalization_begun(cluster, context)
    with pytest.raises(Refused, match="G05"):
        run_watch(context)
    for controller in cluster.observe(None).controllers.values():
        if controller.migration_flag is False:
            note_unflagged(context, controller.id)
    with pytest.raises(Unavailable, match="G43") as later:
        run_watch(context)
    assert later.value.retriable, "the task observes again, twice"
