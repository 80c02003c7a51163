"""The kill switch: no further act in either direction while it is on, and all continues when it is off again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode
from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.steps.catalog import run_rollback
from airflow_provider_kmigrate.steps.run import StepContext
from tests.steps.phases import all_kraft, check_back, check_end, forward
from tests.steps.sim import SimCluster
from tests.steps.sim_hands import SimJournal


class Switch:
    """Set before its act number `at`, for as long as `on`."""

    def __init__(self, at: int) -> None:
        self.at, self.asked, self.on = at, 0, True

    def __call__(self) -> str:
        self.asked += 1
        return "Ann: disk full" if self.on and self.asked > self.at else ""


def switched(cluster: SimCluster, folder: Path, switch: Switch) -> tuple[StepContext, Callable[[], int]]:
    """A context with that switch, and how many acts its journal has."""
    journal = SimJournal()
    return replace(cluster.context(folder), stopped=switch, journal=journal), lambda: [kind for kind, _ in journal.lines].count(
        "act"
    )


def state(cluster: SimCluster) -> list[tuple[object, ...]]:
    return [(key, node.text, node.stage, node.starts, node.stops) for key, node in cluster.nodes.items()]


def test_the_kill_switch_is_asked_before_every_act_and_stops_the_next(tmp_path: Path) -> None:
    rehearsal = SimCluster()
    counting = Switch(10**6)
    undisturbed, acts = switched(rehearsal, tmp_path / "all", counting)
    forward(rehearsal, undisturbed)
    assert counting.asked == acts() > 0, "every act asked"
    for at in range(counting.asked):
        cluster, switch = SimCluster(), Switch(at)
        context, acts = switched(cluster, tmp_path / str(at), switch)
        stopped_by(context, forward, cluster)
        assert acts() == at, "what came before was done, nothing after"
        before = state(cluster)
        stopped_by(context, forward, cluster)
        assert (acts(), state(cluster)) == (at, before), "trying again changes nothing"
        switch.on = False
        forward(cluster, context)
        check_end(cluster, controller_stops=2)


def stopped_by(context: StepContext, steps: Callable[[SimCluster, StepContext], None], cluster: SimCluster) -> None:
    with pytest.raises(Refused) as refused:
        steps(cluster, context)
    (reason,) = refused.value.reasons
    assert reason.code == "H05"
    assert "Ann: disk full" in reason.text


def test_the_kill_switch_stops_the_rollback_too(tmp_path: Path) -> None:
    cluster, switch = SimCluster(), Switch(3)
    all_kraft(cluster, cluster.context(tmp_path))
    context = replace(cluster.context(tmp_path), stopped=switch)
    stopped_by(context, lambda _, context: run_rollback(context), cluster)
    assert BrokerMode.KRAFT in {broker.mode for broker in cluster.observe(0).brokers.values()}
    switch.on = False
    run_rollback(context)
    check_back(cluster)
