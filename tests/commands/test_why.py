"""`kmigrate why` and `kmigrate history` on the simulated cluster."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_provider_kmigrate import cli
from airflow_provider_kmigrate.commands import explaining
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole
from airflow_provider_kmigrate.exceptions import Unreachable
from airflow_provider_kmigrate.steps.run import StepContext
from tests.steps import phases
from tests.steps.sim import SimCluster


class Command:
    """`kmigrate why` on a simulated cluster: all but the clients is as it is."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.cluster, self.folder, self._capsys = SimCluster(), folder, capsys
        self.is_reachable = True
        monkeypatch.setattr(explaining, "open_context", self.open)

    @contextmanager
    def open(self, *_: object) -> Iterator[StepContext]:
        if not self.is_reachable:
            raise Unreachable("no answer")
        yield self.cluster.context(self.folder)

    def run(self, *words: str) -> tuple[int, str, str]:
        code = cli.main(["why", "c.yaml", "--connections", "c.json", *words])
        return (code, *self._capsys.readouterr())


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(tmp_path, monkeypatch, capsys)


PHASES: dict[str, tuple[Callable[..., None], str]] = {
    "zookeeper": (phases.untouched, ""),
    "first roll": (phases.some_in_migration, "first_roll.broker_"),
    "hybrid": (phases.some_kraft, "second_roll.broker_"),
    "dual-write": (phases.all_kraft, "second_roll.leaders"),
    "finalized": (phases.forward, ""),
}


@pytest.mark.parametrize("phase", PHASES)
def test_each_phase_names_the_step_that_is_next(command: Command, phase: str) -> None:
    reach, step = PHASES[phase]
    reach(command.cluster, command.cluster.context(command.folder))
    code, shown, _ = command.run("-o", "json")
    document = json.loads(shown)
    assert (document["step"] or {"id": ""})["id"].startswith(step)
    assert (document["state"] == "nothing") is (not step)
    assert code == (0 if document["state"] in {"nothing", "waiting", "working", "person", "ready"} else 1)


def test_a_dead_broker_is_an_alarm_with_what_to_do(command: Command) -> None:
    phases.some_kraft(command.cluster, command.cluster.context(command.folder))
    command.cluster.nodes[NodeRole.BROKER, 1].running = None
    code, shown, _ = command.run()
    assert code == 1
    assert "[R01] Broker 1 does not answer" in shown
    assert "may pass by itself" in shown
    assert "If it does not pass: " in shown


def test_a_cluster_that_does_not_answer_is_2(command: Command) -> None:
    command.is_reachable = False
    assert command.run()[::2] == (2, "no answer\n")


def test_history_reads_the_journals_of_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "sim.yaml"
    file.write_text(
        "name: sim\ncluster_id: q1Sh-9_ISia_zwGINzRvyQ\nzookeeper: {conn_id: z}\nkafka: {conn_id: k}\n"
        "hosts: {driver: agent, properties: /etc/kafka/server.properties, ssh_conn_id: s}\n"
        "brokers: [{id: 0, host: a, port: 9092}]\ncontrollers: [{id: 3000, host: b, port: 9093, log_dir: /var/lib/kraft}]\n"
    )
    assert cli.main(["history", str(file), "--folder", str(tmp_path)]) == 1
    assert "no journal" in capsys.readouterr().err
    journal = tmp_path / "journal" / "sim" / "run.jsonl"
    journal.parent.mkdir(parents=True)
    journal.write_text('{"at": 1.0, "run": "r", "kind": "began", "step": "run", "text": "x"}\n')
    assert cli.main(["history", str(file), "--folder", str(tmp_path), "-o", "json"]) == 0
    assert [run["run"] for run in json.loads(capsys.readouterr().out)["runs"]] == ["r"]
    assert cli.main(["history", "/none.yaml"]) == 2
