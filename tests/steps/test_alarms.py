"""What is dangerous whatever a step waits for: the loop itself says it, and writes it down, at each step and once a change."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import (
    Cause,
    ClusterView,
    Fields,
    Migration,
    NodeFiles,
    Process,
    Reason,
    ZkView,
)
from airflow_provider_kmigrate.core.cluster_state.spec import GroupProgressSpec, NodeSpec
from airflow_provider_kmigrate.exceptions import Refused, Unavailable
from airflow_provider_kmigrate.steps.nodes import note_unflagged
from airflow_provider_kmigrate.steps.run import StepContext, run_step
from airflow_provider_kmigrate.steps.waits import Finalized, brokers_registered, run_watch
from tests.steps.phases import all_in_migration, all_kraft, finalization_begun
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


class OtherKey(SimCluster):
    """The machine of broker 1 has another host key: its agent was not asked."""

    changed = False

    def observe(self, what: Fields, nodes: Sequence[NodeSpec] = (), groups: Sequence[str] = ()) -> ClusterView:
        view = super().observe(what, nodes, groups)
        if not self.changed:
            return view
        text = "The host of broker 1 did not answer: its host key is new"
        causes = (Cause.UNREAD_PROCESS, Cause.UNREAD_FILES)
        unread = tuple(Reason("M06", text, cause=cause, node="broker 1", certain=True) for cause in causes)
        blind = replace(view.brokers[1], process=Process(), files=NodeFiles())
        return replace(view, brokers={**view.brokers, 1: blind}, unknowns=(*view.unknowns, *unread))


def test_a_new_host_key_is_the_only_alarm_of_a_watch_and_comes_at_the_first_look(tmp_path: Path) -> None:
    cluster = OtherKey()
    context = cluster.context(tmp_path)
    all_kraft(cluster, context)
    run_watch(context)
    cluster.changed = True
    said, hidden = list[str](), list[Reason]()
    with pytest.raises(Refused, match="its host key is new") as refused:
        run_watch(replace(context, say=said.append), show_hidden=hidden.extend)
    assert [(reason.code, reason.node) for reason in refused.value.reasons] == [("M06", "broker 1")]
    assert {reason.cause for reason in hidden} == {Cause.NOT_READ}
    assert any("Not reported, since it follows from other causes" in line for line in said), "the log has them all"


def test_a_watch_in_the_handover_names_the_run_that_stopped_the_controllers_and_no_controller_as_missing(tmp_path: Path) -> None:
    """It told to start what the rollback had stopped."""
    cluster = SimCluster()
    context = cluster.context(tmp_path)
    all_in_migration(cluster, context)
    journals = tmp_path / "journals"
    journals.mkdir()
    began, stopped = cluster.clock.time, cluster.spec.controllers[:2]
    lines = []
    for node in stopped:
        cluster.stop(node)
        for kind in ("act", "acted"):
            text = f"stop {node.name}: nothing needs it" if kind == "act" else f"stop {node.name}"
            lines.append({"at": began, "run": "rollback/1", "kind": kind, "step": "handover to ZooKeeper", "text": text})
    (journals / "rollback.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    cluster.led = False
    done = run_watch(replace(context, journals=journals))
    assert "no controller for" in done.text
    assert f"Run rollback/1 stopped controllers {', '.join(str(node.id) for node in stopped)}" in done.text
