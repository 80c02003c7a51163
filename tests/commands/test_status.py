"""Where a cluster stands, on the simulated cluster: what an operator reads at 3 a.m., and the exit code that a script reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kmigrate.commands import status as status_command
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole
from airflow_provider_kmigrate.core.monitoring.journal_lines import ActSpan
from airflow_provider_kmigrate.core.monitoring.status import StatusFacts, describe_status, is_well, render_row, render_status
from airflow_provider_kmigrate.core.monitoring.watch import ClusterOwner, KnownActs
from airflow_provider_kmigrate.exceptions import Unreachable
from airflow_provider_kmigrate.steps.prepare import plan_of_view
from airflow_provider_kmigrate.steps.run import StepContext
from airflow_provider_kmigrate.steps.waits import assess_readiness
from tests.steps import phases
from tests.steps.sim import SimCluster

HOSTILE = "evil\x1b[31m <b>\n[R01] run"


class Command:
    """`kmigrate status` on simulated clusters, by the name of their file: all but the clients is as it is."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.clusters, self.folder, self._capsys = {"one": SimCluster()}, folder, capsys
        self.unreachable: set[str] = set()
        monkeypatch.setattr(status_command, "open_context", self.open)

    @contextmanager
    def open(self, path: Path, *_: object) -> Iterator[StepContext]:
        name = path.stem
        if name in self.unreachable:
            raise Unreachable(f"the ZooKeeper of {name} does not answer")
        yield self.clusters[name].context(self.folder / name)

    def run(self, *words: str) -> tuple[int, str, str]:
        code = status_command.main(["--connections", "c.json", *words])
        return (code, *self._capsys.readouterr())


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(tmp_path, monkeypatch, capsys)


PHASES: dict[str, tuple[Callable[..., None], str, str]] = {
    "zookeeper": (phases.untouched, "0 of 12", "There is nothing to roll back"),
    "pre-migration": (phases.controllers, "3 of 12", "It would take about 30 s"),
    "first roll": (phases.some_in_migration, "4 of 12", "A rollback is possible now"),
    "dual-write, all brokers on ZooKeeper": (phases.all_in_migration, "6 of 12", "A rollback is possible now"),
    "hybrid": (phases.some_kraft, "8 of 12", "A rollback is possible now"),
    "dual-write, all brokers KRaft": (phases.all_kraft, "9 of 12", "A rollback is possible now"),
    "finalized": (phases.forward, "12 of 12", "No rollback is possible: the migration is finalized"),
}


@pytest.mark.parametrize("phase", PHASES)
def test_each_phase_is_told_with_its_progress_and_the_rollback(command: Command, phase: str) -> None:
    reach, progress, rollback = PHASES[phase]
    cluster = command.clusters["one"]
    reach(cluster, cluster.context(command.folder / "one"))
    code, shown, _ = command.run("one.yaml")
    at_rest = phase in {"zookeeper", "finalized"}
    assert (code, f"phase '{phase}'" in shown) == (0 if at_rest else 1, True), shown
    assert progress in shown
    assert rollback in shown
    assert ("No action is required." in shown) is at_rest
    assert ("no run owns the cluster: nothing continues it" in shown) is not at_rest


def test_what_an_operator_must_do_comes_first_and_is_1(command: Command) -> None:
    cluster = command.clusters["one"]
    phases.some_kraft(cluster, cluster.context(command.folder / "one"))
    cluster.nodes[NodeRole.BROKER, 1].running = None
    code, shown, _ = command.run("one.yaml")
    assert code == 1
    assert shown.index("[R01] Broker 1 does not answer") < shown.index("Rollback")
    assert "If it does not pass: " in shown
    assert "! broker 1" in shown
    assert "Progress   7 of 12" in shown, "its file shows that it had left the first roll"
    (line,) = command.run("one.yaml", "-o", "json")[1].splitlines()
    assert [alarm["code"] for alarm in json.loads(line)["alarms"]] == ["R01"]


def test_of_several_each_is_a_row_and_one_that_does_not_answer_hides_none(command: Command) -> None:
    command.clusters["two"] = SimCluster()
    phases.all_kraft(command.clusters["two"], command.clusters["two"].context(command.folder / "two"))
    code, shown, failed = command.run("one.yaml", "two.yaml")
    assert (code, failed) == (1, ""), "a migration is under way, and no run continues it"
    assert [line.split()[1] for line in shown.splitlines()] == ["0/12", "9/12"]
    assert [line.rpartition("  ")[2].strip() for line in shown.splitlines()] == ["no action required", "no run owns it"]
    command.unreachable = {"one"}
    code, shown, failed = command.run("one.yaml", "two.yaml")
    assert (code, len(shown.splitlines())) == (2, 1)
    assert "one.yaml: the ZooKeeper of one does not answer" in failed


def test_it_is_shown_again_until_it_is_interrupted(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(status_command.time, "sleep", sleep)
    code, shown, _ = command.run("one.yaml", "--watch")
    assert (code, shown.count("No action is required.")) == (0, 3)


def facts_of(cluster: SimCluster, folder: Path, **more: Any) -> StatusFacts:
    context = cluster.context(folder)
    seen = assess_readiness(context)
    return StatusFacts(**{
        "spec": context.spec, "view": seen.view, "readiness": seen.readiness, "acts": seen.acts,
        "plan": plan_of_view(context, seen.view), **more,
    })  # fmt: skip


class TestTheDocument:
    def test_what_kmigrate_is_doing_has_its_usual_and_its_alarm_time(self, tmp_path: Path) -> None:
        acts = KnownActs({"broker 1": ActSpan("run", "broker 1 to kraft", "restart", 88_000)}, now=100.0, restart_within=600.0)
        (under_way,) = describe_status(facts_of(SimCluster(), tmp_path, acts=acts, restart_seconds=45.0))["under_way"]
        text = "restart, step 'broker 1 to kraft': for 12.0 s. Usual: 45.0 s. An alarm after 10 min."
        assert under_way == {"node": "broker 1", "text": text}
        assert describe_status(facts_of(SimCluster(), tmp_path, acts=replace(acts, now=900.0)))["under_way"] == []

    def test_who_owns_the_cluster_is_told(self, tmp_path: Path) -> None:
        status = describe_status(facts_of(SimCluster(), tmp_path, owner=ClusterOwner("dag/run", alive=False)))
        assert status["owner"] == {"run": "dag/run", "is_alive": False}
        assert "dag/run owns the cluster; no process of it is alive" in render_status(status)

    def test_names_of_others_are_one_line_without_escapes(self, tmp_path: Path) -> None:
        shown = render_status(describe_status(facts_of(SimCluster(), tmp_path, owner=ClusterOwner(HOSTILE))))
        assert "\x1b" not in shown
        assert not any(line.startswith("[R01]") for line in shown.splitlines())

    def test_what_was_not_read_is_not_well(self, tmp_path: Path) -> None:
        facts = facts_of(SimCluster(), tmp_path)
        status = describe_status(replace(facts, view=replace(facts.view, partitions=None)))
        assert [node["is_well"] for node in status["nodes"]] == [False] * 3 + [True] * 3
        assert not is_well(status), "unknown is not well"
        shown = render_status(status)
        assert "Not known: The partitions and their ISRs were not read." in shown
        assert "No action is required." not in shown
        assert "no action required" not in render_row(status)

    def test_an_alarm_stands_above_what_was_not_read(self, tmp_path: Path) -> None:
        """A broker that is down is an alarm, and answers none of the questions that were asked."""
        alarm = {"code": "R01", "text": "Broker 1 is down.", "means": "m", "do": "Start it.", "is_certain": False}
        status = describe_status(facts_of(SimCluster(), tmp_path))
        shown = render_status(status | {"alarms": [alarm], "unread": ["Broker 1 did not report its consumer groups."]})
        assert shown.index("[R01] ") < shown.index("If it does not pass: ") < shown.index("Not known: Broker 1 did not report")
        assert "Whether an operator must act is not known" not in shown

    def test_what_may_pass_is_not_said_again_beside_a_certain_alarm_with_the_same_next_step(self, tmp_path: Path) -> None:
        """A broker left behind is seen as a fact of the cluster and as a broker that does not answer."""
        alarm = {"code": "P02", "text": "Left behind: broker 1.", "means": "m", "do": "Start a run.", "is_certain": True}
        other = {**alarm, "text": "Broker 1 does not answer.", "is_certain": False}
        elsewhere = {**other, "code": "R01", "do": "Start it."}
        shown = render_status(
            describe_status(facts_of(SimCluster(), tmp_path)) | {"alarms": [alarm, other, elsewhere], "unread": []}
        )
        assert shown.count("Start a run.") == 1
        assert shown.index("Next: Start a run.") < shown.index("[P02] Broker 1 does not answer."), "one more fact delays no step"
        assert "[P02] Broker 1 does not answer." in shown
        assert "If it does not pass: Start it." in shown
        assert shown.count("It may pass by itself.") == 1

    def test_a_status_of_thirty_brokers_is_small(self, tmp_path: Path) -> None:
        facts = facts_of(SimCluster(), tmp_path)
        brokers = tuple(replace(facts.spec.brokers[0], id=number) for number in range(30))
        view = replace(facts.view, brokers={number: replace(facts.view.broker(0), id=number) for number in range(30)})
        status = describe_status(replace(facts, spec=replace(facts.spec, brokers=brokers), view=view))
        assert len(json.dumps(status)) < 20_000
        assert len(render_row(status)) < 200
