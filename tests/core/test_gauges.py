"""A migration as numbers: what each observation exports, and that what was not read is missing instead of zero."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_kmigrate.core.cluster_state.decision import Decision, Done, Refuse, Wait
from airflow_provider_kmigrate.core.cluster_state.model import (
    BrokerMode,
    ClusterView,
    Fields,
    ProbeFigures,
    ProduceLatency,
    Reason,
    ZooKeeperServer,
)
from airflow_provider_kmigrate.core.cluster_state.spec import Policy
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.member.group_seen import GroupPosition, GroupSweep, Lag
from airflow_provider_kmigrate.core.migration.gates import PROBE_FRESH
from airflow_provider_kmigrate.core.migration.phase import Phase, position_of
from airflow_provider_kmigrate.core.migration.plan import Estimate, row_of
from airflow_provider_kmigrate.core.migration.readiness import assume_restart_seconds, forecast_rollback
from airflow_provider_kmigrate.core.monitoring.gauges import (
    MOST_GROUPS,
    PHASES,
    Gauge,
    GaugeHistory,
    estimate_seconds_left,
    group_gauges,
    probe_gauges,
    request_gauges,
)
from airflow_provider_kmigrate.core.monitoring.journal_lines import ASKED, JournalLine, OpenRequest, list_open_requests
from airflow_provider_kmigrate.exceptions import Unavailable
from airflow_provider_kmigrate.steps.catalog import build
from airflow_provider_kmigrate.steps.run import Step, run_step
from airflow_provider_kmigrate.steps.waits import run_watch
from tests.core.back_views import OFF3, UP3
from tests.core.views import KRAFT, MIG, ZK, cluster
from tests.steps.phases import all_in_migration, all_kraft, some_kraft
from tests.steps.sim import SimCluster

LAG, MOVED = Reason("G07", "The dual-write lags."), Reason("G21", "A group is being moved.")


def values(gauges: tuple[Gauge, ...]) -> dict[tuple[str, ...], float]:
    found = {(gauge.name, *gauge.tags.values()): gauge.value for gauge in gauges}
    assert len(found) == len(gauges), "each gauge once"
    return found


def observed(history: GaugeHistory, decision: Decision, now: float = 0.0) -> tuple[GaugeHistory, dict[tuple[str, ...], float]]:
    after, gauges = history.add_view(SimCluster().observe(None), decision, now)
    return after, values(gauges)


def test_every_phase_has_a_number_of_its_own_or_of_its_task_and_only_good_ones_are_not_negative() -> None:
    assert len(set(PHASES.values())) == len(Phase) - 1
    assert PHASES[Phase.ENDED] == PHASES[Phase.FINALIZING] == 7
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
    assert found["phase",] == PHASES[position_of(SimCluster().observe(None)).phase]


def test_a_lag_that_was_not_read_is_missing() -> None:
    _, found = observed(GaugeHistory(), Done("well"))
    assert ("dual_write_lag",) not in found


def test_the_seconds_in_a_phase_begin_with_it() -> None:
    history, found = observed(GaugeHistory(), Done("well"), 100.0)
    assert found["phase_seconds",] == 0.0
    _, found = observed(history, Done("well"), 160.0)
    assert found["phase_seconds",] == 60.0


def test_what_blocks_is_shown_by_its_code_until_it_ends() -> None:
    history, found = observed(GaugeHistory(), Wait((LAG, MOVED)))
    assert {key[1:]: value for key, value in found.items() if key[0] == "blocked"} == {("G07",): 1.0, ("G21",): 1.0}
    assert found["blocked_by",] == 2.0
    history, found = observed(history, Wait((LAG,)))
    assert {key[1:]: value for key, value in found.items() if key[0] == "blocked"} == {("G07",): 1.0, ("G21",): 0.0}
    history, found = observed(history, Done("well"))
    assert (found["blocked", "G07"], found["blocked_by",]) == (0.0, 0.0)
    _, found = observed(history, Done("well"))
    assert not [key for key in found if key[0] == "blocked"], "a code that ended is not repeated for ever"


POLICY = Policy(min_soak=1000.0, canary_bake=100.0)


@pytest.mark.parametrize(
    ("view", "step", "waits", "expected"),
    [
        (cluster([ZK] * 3, OFF3, None), "provision", 0.0, 6 * 20 + 2 * 100 + 3 * 10 + 30 + 1000),
        (cluster([ZK] * 3, UP3, -1), "roll", 0.0, 6 * 20 + 2 * 100 + 30 + 1000),
        (cluster([ZK, ZK, MIG], UP3, -1), "roll", 60.0, 5 * 20 + 100 + 60 + 30 + 1000),
        (cluster([ZK, None, MIG], UP3, -1), "roll", 0.0, 5 * 20 + 100 + 30 + 1000),
        (cluster([MIG] * 3, UP3, 50), "copied", 0.0, 3 * 20 + 100 + 1000),
        (cluster([KRAFT, KRAFT, MIG], UP3, 50), "roll", 0.0, 20 + 1000),
        (cluster([KRAFT, KRAFT, None], UP3, 50), "roll", 0.0, 20 + 1000),
        (cluster([KRAFT] * 3, UP3, 50), "soak", 400.0, 400),
        (cluster([KRAFT] * 3, UP3, 50), "equivalent", 0.0, 0),
        (cluster([MIG] * 3, UP3, 50), "equivalent", 0.0, 3 * 20 + 100 + 1000),
        (cluster([KRAFT] * 3, UP3, 50), "finalize", 0.0, 3 * 10),
        (cluster([KRAFT] * 3, (True, True, False), 50), "finalize", 0.0, 2 * 10),
        (cluster([KRAFT, MIG, MIG], UP3, 50), "roll back broker", 0.0, 4 * 20 + 60 + 3 * 10),
    ],
)
def test_what_is_left_to_do_has_a_time(view: ClusterView, step: str, waits: float, expected: float) -> None:
    assert estimate_seconds_left(view, row_of(step).estimate, waits, POLICY, 20.0) == expected


@pytest.mark.parametrize(("kept", "each"), [(True, 20.0), (False, 15.2)])
def test_restarts_take_as_long_as_the_journals_say(tmp_path: Path, kept: bool, each: float) -> None:
    cluster, sent, journal = SimCluster(), list[Gauge](), tmp_path / "journals" / "earlier.jsonl"
    all_in_migration(cluster, cluster.context(tmp_path))
    journal.parent.mkdir()
    for at, kind in ((100, "act"), (120, "done")) if kept else ():
        line = {"at": at, "run": "earlier", "kind": kind, "step": "broker 1 to migration", "text": "restart: it may stop"}
        journal.write_text((journal.read_text() if journal.exists() else "") + json.dumps(line) + "\n")
    context = replace(cluster.context(tmp_path), export=sent.extend, journals=journal.parent)
    run_step(build(cluster.spec, "copied", {}), context)
    assert {gauge.value for gauge in sent if gauge.name == "remaining_seconds"} == {3 * each + 3.0}


def test_a_journal_that_cannot_be_read_stops_no_step(tmp_path: Path) -> None:
    cluster = SimCluster()
    all_in_migration(cluster, cluster.context(tmp_path))
    (tmp_path / "journals" / "folder.jsonl").mkdir(parents=True)
    found = run_step(build(cluster.spec, "copied", {}), replace(cluster.context(tmp_path), journals=tmp_path / "journals"))
    assert isinstance(found, Done)


def test_a_restart_that_was_never_measured_takes_as_long_as_the_forecast_of_a_rollback_says() -> None:
    view = cluster([KRAFT, KRAFT, MIG], UP3, 50)
    assert estimate_seconds_left(view, Estimate.MIGRATION, 0.0, POLICY) == assume_restart_seconds(view) + 1000
    assert estimate_seconds_left(view, Estimate.ROLLBACK, 0.0, POLICY) == forecast_rollback(view).seconds


@pytest.mark.parametrize(
    ("view", "step"),
    [
        (cluster([KRAFT] * 3, UP3, 50), "leaders"),  # of a migration, a rollback or an expansion
        (cluster([KRAFT] * 3, UP3, 50), "expand"),
        (cluster([None] * 3, UP3, 50), "roll"),
        (replace(cluster([KRAFT] * 3, UP3, 50), zk=None), "soak"),
    ],
)
def test_what_is_left_is_not_known_of_other_steps_or_without_an_observation(view: ClusterView, step: str) -> None:
    assert estimate_seconds_left(view, row_of(step).estimate, 0.0, POLICY) is None


def test_nothing_is_said_of_what_is_left_once_a_step_refuses() -> None:
    for decision, said in ((Wait((LAG,)), True), (Refuse((LAG,)), False)):
        _, gauges = GaugeHistory().add_view(SimCluster().observe(None), decision, 0.0, 60.0)
        assert (("remaining_seconds",) in values(gauges)) is said


def test_a_soak_counts_down(tmp_path: Path) -> None:
    cluster, sent = SimCluster(), list[Gauge]()
    all_kraft(cluster, cluster.context(tmp_path))
    context = replace(cluster.context(tmp_path), export=sent.extend)
    run_step(build(cluster.spec, "soak", {}), context)
    left = [gauge.value for gauge in sent if gauge.name == "remaining_seconds"]
    assert left == sorted(left, reverse=True)
    assert (left[0], left[-1]) == (3.0, 0.0)


def test_a_process_that_ends_leaves_no_code_that_no_other_process_would_take_back() -> None:
    history, _ = observed(GaugeHistory(), Wait((LAG, MOVED)))
    assert values(history.final_gauges()) == {("blocked", "G07"): 0.0, ("blocked", "G21"): 0.0, ("blocked_by",): 0.0}
    history, _ = observed(history, Done("well"))
    assert history.final_gauges() == ()


def test_a_refusal_stays_shown() -> None:
    history, found = observed(GaugeHistory(), Refuse((LAG,)))
    assert (found["blocked", "G07"], found["blocked_by",]) == (1.0, 1.0)
    assert history.final_gauges() == ()


class Waits(Step):
    """It waits once, and ends as it is given."""

    name, fields, interval = "waits", Fields.POSITION, 1.0

    def __init__(self, then: Decision | Exception) -> None:
        self._then: Decision | Exception | None = None
        self._next = then

    def decide(self, view: ClusterView, first: ClusterView) -> Decision:
        found, self._then = self._then, self._next
        if isinstance(found, Exception):
            raise found
        return found or Wait((LAG,))


@pytest.mark.parametrize("then", [Done("well"), Wait((LAG,)), Unavailable("ZooKeeper is away")])
def test_however_a_wait_ends_its_code_does_not_stay(then: Decision | Exception, tmp_path: Path) -> None:
    cluster, sent = SimCluster(), list[Gauge]()
    with suppress(Unavailable):
        run_step(Waits(then), replace(cluster.context(tmp_path), export=sent.extend), sync_for=5.0)
    assert next(gauge.value for gauge in sent if gauge.name == "blocked") == 1.0
    assert [gauge.value for gauge in sent if gauge.name == "blocked"][-1] == 0.0
    assert [gauge.value for gauge in sent if gauge.name == "blocked_by"][-1] == 0.0


def test_the_watch_exports_whether_a_rollback_is_assured(tmp_path: Path) -> None:
    cluster, sent = SimCluster(), list[Gauge]()
    context = replace(cluster.context(tmp_path), export=sent.extend)
    some_kraft(cluster, cluster.context(tmp_path))
    run_watch(context)
    found = values(tuple(sent))
    assert (found["readiness",], found["phase",], found["brokers", "kraft"]) == (2.0, PHASES[Phase.HYBRID], 2.0)
    assert "dual_write_lag" in {gauge.name for gauge in sent}
    sent.clear()
    cluster.ensemble = (*cluster.ensemble, *(ZooKeeperServer(f"z{number}:2181") for number in (2, 3)))
    with pytest.raises(Unavailable):
        run_watch(context)
    found = values(tuple(sent))
    assert (found["readiness",], found["readiness_part", "ensemble"], found["readiness_part", "files"]) == (1.0, 0.0, 1.0)


class TestThePersonThatIsWaitedFor:
    def line(self, at: int, kind: str, run: str = "m/1", task: str = "approve") -> JournalLine:
        return JournalLine(at, run, kind, task, "")

    def test_a_request_is_open_until_its_approval(self) -> None:
        asked, again = self.line(5, ASKED), self.line(9, ASKED)
        assert list_open_requests([asked, again]) == (OpenRequest("m/1", "approve", 5),)
        assert list_open_requests([asked, self.line(7, "answer refused"), again])[0].asked_ms == 5
        assert list_open_requests([asked, self.line(7, "approval")]) == ()
        assert list_open_requests([asked, self.line(7, "approval"), again]) == (OpenRequest("m/1", "approve", 9),)

    def test_an_approval_of_another_run_or_task_closes_nothing(self) -> None:
        lines = [self.line(5, ASKED), self.line(6, "approval", run="m/2"), self.line(7, "approval", task="stop_after_copy")]
        assert list_open_requests(lines) == (OpenRequest("m/1", "approve", 5),)

    def test_only_the_newest_are_asked_about(self) -> None:
        lines = [self.line(at, ASKED, run=f"m/{at}") for at in range(50)]
        assert [request.asked_ms for request in list_open_requests(lines)] == [49, 48, 47, 46, 45]

    def test_the_oldest_request_counts(self) -> None:
        assert request_gauges([100.0, 40.0], 160.0) == (Gauge("waiting_for_person", 1.0), Gauge("approval_age_seconds", 120.0))
        assert request_gauges([], 160.0) == (Gauge("waiting_for_person", 0.0), Gauge("approval_age_seconds", 0.0))


class TestTheProbe:
    def test_its_slowest_partition_counts(self) -> None:
        figures = ProbeFigures(PROBE_FRESH, now={"a": ProduceLatency(1.0, 0.02), "b": ProduceLatency(1.0, 0.7)})
        assert probe_gauges(figures) == (Gauge("probe_ack_seconds", 0.7),)

    @pytest.mark.parametrize(
        "figures", [None, ProbeFigures(PROBE_FRESH + 1, now={"a": ProduceLatency(1.0, 1.0)}), ProbeFigures(1.0)]
    )
    def test_old_or_missing_figures_have_no_gauge(self, figures: ProbeFigures | None) -> None:
        assert probe_gauges(figures) == ()


class TestGroups:
    def test_a_groups_lag_is_that_of_all_its_partitions_and_never_below_zero(self) -> None:
        places = {TopicPartition("t", 0): Lag(3, 10), TopicPartition("t", 1): Lag(20, 19), TopicPartition("u", 0): Lag(0, 5)}
        sweep = GroupSweep({"g": GroupPosition(places)}, left={"gone": GroupPosition({TopicPartition("t", 0): Lag(0, 30)})})
        assert group_gauges(sweep) == (Gauge("group_lag", 30.0, {"group": "gone"}), Gauge("group_lag", 12.0, {"group": "g"}))
        assert group_gauges(None) == ()

    def test_of_very_many_groups_those_with_the_largest_lag_are_sent(self) -> None:
        sweep = GroupSweep({f"g{n}": GroupPosition({TopicPartition("t", 0): Lag(0, n)}) for n in range(MOST_GROUPS + 50)})
        assert [gauge.value for gauge in group_gauges(sweep)] == [float(n) for n in range(MOST_GROUPS + 49, 49, -1)]
