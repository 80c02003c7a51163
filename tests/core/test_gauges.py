"""A migration as numbers: what each observation exports, and that what was not read is missing instead of zero."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_kmigrate.core.decision import Decision, Done, Refuse, Wait
from airflow_provider_kmigrate.core.gauges import PHASES, Gauge, GaugeHistory
from airflow_provider_kmigrate.core.model import BrokerMode, Reason, ZooKeeperServer
from airflow_provider_kmigrate.core.phase import Phase, where
from airflow_provider_kmigrate.exceptions import Unavailable
from airflow_provider_kmigrate.steps.waits import run_watch
from tests.steps.sim import SimCluster
from tests.steps.test_rollback import some_kraft

LAG, MOVED = Reason("G07", "The dual-write lags."), Reason("G21", "A group is being moved.")


def values(gauges: tuple[Gauge, ...]) -> dict[tuple[str, ...], float]:
    found = {(gauge.name, *gauge.tags.values()): gauge.value for gauge in gauges}
    assert len(found) == len(gauges), "each gauge once"
    return found


def observed(history: GaugeHistory, decision: Decision, now: float = 0.0) -> tuple[GaugeHistory, dict[tuple[str, ...], float]]:
    after, gauges = history.observe(SimCluster().observe(None), decision, now)
    return after, values(gauges)


def test_every_phase_has_a_number_of_its_own_and_only_good_ones_are_not_negative() -> None:
    assert len(set(PHASES.values())) == len(Phase)
    assert sorted(phase for phase, number in PHASES.items() if number < 0) == sorted(
        {Phase.UNKNOWN, Phase.STALE, Phase.SPLIT, Phase.LEFT_BEHIND}
    )
    assert [phase for phase in Phase if PHASES[phase] >= 0] == sorted(
        (p for p in Phase if PHASES[p] >= 0), key=lambda p: PHASES[p]
    )


def test_an_observation_counts_the_brokers_of_each_mode() -> None:
    _, found = observed(GaugeHistory(), Done("well"))
    assert {key[1]: value for key, value in found.items() if key[0] == "brokers"} == {
        BrokerMode.ZOOKEEPER: 3.0,
        BrokerMode.MIGRATION: 0.0,
        BrokerMode.KRAFT: 0.0,
        "unknown": 0.0,
    }
    assert found["phase",] == PHASES[where(SimCluster().observe(None)).phase]


def test_a_lag_that_was_not_read_is_missing() -> None:
    _, found = observed(GaugeHistory(), Done("well"))
    assert ("dual_write_lag",) not in found


def test_the_seconds_in_a_phase_begin_with_it() -> None:
    history, found = observed(GaugeHistory(), Done("well"), 100.0)
    assert found["phase_seconds",] == 0.0
    _, found = observed(history, Done("well"), 160.0)
    assert found["phase_seconds",] == 60.0


@pytest.mark.parametrize("decision", [Wait((LAG, MOVED)), Refuse((LAG, MOVED))])
def test_what_blocks_is_shown_by_its_code_until_it_ends(decision: Decision) -> None:
    history, found = observed(GaugeHistory(), decision)
    assert {key[1:]: value for key, value in found.items() if key[0] == "blocked"} == {("G07",): 1.0, ("G21",): 1.0}
    assert found["blocked_by",] == 2.0
    history, found = observed(history, Wait((LAG,)))
    assert {key[1:]: value for key, value in found.items() if key[0] == "blocked"} == {("G07",): 1.0, ("G21",): 0.0}
    history, found = observed(history, Done("well"))
    assert (found["blocked", "G07"], found["blocked_by",]) == (0.0, 0.0)
    _, found = observed(history, Done("well"))
    assert not [key for key in found if key[0] == "blocked"], "a code that ended is not repeated for ever"


def test_the_watch_exports_whether_a_rollback_is_assured(tmp_path: Path) -> None:
    cluster, sent = SimCluster(), list[Gauge]()
    context = replace(cluster.context(tmp_path), export=sent.extend)
    some_kraft(cluster, cluster.context(tmp_path))
    run_watch(context)
    assert values(tuple(sent))["readiness",] == 2.0
    sent.clear()
    cluster.ensemble = (*cluster.ensemble, *(ZooKeeperServer(f"z{number}:2181") for number in (2, 3)))
    with pytest.raises(Unavailable):
        run_watch(context)
    found = values(tuple(sent))
    assert (found["readiness",], found["readiness.ensemble",], found["readiness.files",]) == (1.0, 0.0, 1.0)
