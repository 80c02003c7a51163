"""Commands that read a cluster with Airflow's own connections and folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_kmigrate.cli import main
from airflow_provider_kmigrate.commands import reading
from airflow_provider_kmigrate.core.migration.plan_document import DOCUMENT_KIND
from airflow_provider_kmigrate.exceptions import Refused, Unavailable
from airflow_provider_kmigrate.hooks.connections import get_connection
from airflow_provider_kmigrate.utils.step_context import state_folder
from tests.kit.ports import closed_port
from tests.provider.simulated import Rehearsal

Rehearse = Callable[..., Rehearsal]


@pytest.mark.parametrize(
    ("command", "seen"), [("status", "No action is required."), ("plan", "# Plan of sim"), ("preflight", "READY")]
)
def test_where_airflow_is_its_connections_and_folder_are_used(
    rehearse: Rehearse, capsys: pytest.CaptureFixture[str], command: str, seen: str
) -> None:
    sim = rehearse()
    assert main([command, str(sim.path)]) == 0
    assert seen in capsys.readouterr().out
    assert set(sim.ensemble.znodes) == {""}, "nothing was written"
    assert not state_folder().exists() or list(state_folder().rglob("*.jsonl")) == []


def test_the_originals_of_airflows_folder_make_the_plan_of_a_migration_that_has_begun(
    rehearse: Rehearse, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    sim = rehearse()
    assert main(["plan", str(sim.path), "-o", "json", "--folder", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == DOCUMENT_KIND


def test_a_folder_that_this_user_may_not_read_is_named(
    rehearse: Rehearse, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = rehearse()
    monkeypatch.setattr(reading.os, "access", lambda *_: False)
    assert main(["plan", str(sim.path), "--folder", str(tmp_path)]) == 2
    assert f"may not read kmigrate's folder {tmp_path}" in capsys.readouterr().err


def test_a_connection_that_airflow_does_not_have_is_named_with_its_command(
    airflow_db: None, clusters: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = clusters / "prod.yaml"
    path.write_text(
        "name: prod\ncluster_id: q1Sh-9_ISia_zwGINzRvyQ\nzookeeper: {conn_id: nowhere_zk}\nkafka: {conn_id: nowhere_kafka}\n"
        "hosts: {driver: agent, properties: /etc/server.properties, connect: ['true']}\n"
        f"brokers: [{{id: 0, host: 127.0.0.1, port: {closed_port()}}}]\n"
        f"controllers: [{{id: 3000, host: 127.0.0.2, port: {closed_port()}, log_dir: /kraft}}]\n"
    )
    assert main(["status", str(path)]) == 2
    assert "airflow connections add nowhere" in capsys.readouterr().err


class Store:
    """A secrets backend that has these Variables, or does not answer."""

    def __init__(self, *, answers: bool = True, **values: str) -> None:
        self.answers, self.values = answers, values

    def get_variable(self, key: str) -> str | None:
        if not self.answers:
            raise ConnectionError("vault is sealed")
        return self.values.get(key)

    def get_connection(self, conn_id: str) -> None:
        if not self.answers:
            raise ConnectionError("vault is sealed")


@pytest.mark.parametrize("command", [["resume", "prod"], ["pause", "prod", "--why", "x"]])
def test_a_kill_switch_that_airflow_cannot_read_is_not_known_to_be_off(
    airflow_db: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    """Airflow's own `Variable.get` answers that there is none."""
    monkeypatch.setattr("airflow.configuration.ensure_secrets_loaded", lambda: [Store(answers=False), Store()])
    assert main(command) == 2
    shown = capsys.readouterr()
    assert "Whether prod is paused is not known." in shown.err
    assert "Traceback" not in shown.err
    assert shown.out == ""


def test_a_kill_switch_that_airflow_cannot_decrypt_is_not_off(
    airflow_db: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pause", "prod", "--why", "x"]) == 0
    monkeypatch.setattr("airflow.configuration.ensure_secrets_loaded", lambda: [Store()])  # as a store that returns None for it
    assert main(["resume", "prod"]) == 2
    assert "The Variable kmigrate_stop__prod exists" in capsys.readouterr().err
    monkeypatch.undo()
    assert main(["resume", "prod"]) == 0
    assert "is no longer paused" in capsys.readouterr().out
    assert main(["resume", "prod"]) == 0
    assert "was not paused" in capsys.readouterr().out


def test_a_kill_switch_of_a_secrets_backend_is_found_and_airflow_cannot_take_it_away(
    airflow_db: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("airflow.configuration.ensure_secrets_loaded", lambda: [Store(kmigrate_stop__prod="Ann"), Store()])
    assert main(["resume", "prod"]) == 2
    assert "prod stays paused" in capsys.readouterr().err


def test_a_database_that_does_not_answer_has_not_lost_a_connection(
    rehearse: Rehearse, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sim = rehearse()
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")
    monkeypatch.setattr("airflow.configuration.ensure_secrets_loaded", lambda: [Store(answers=False)])
    with pytest.raises(
        Unavailable, match=r"Whether there is a connection nowhere is not known: Store of Airflow does not answer"
    ):
        get_connection("nowhere", "kafka", str(sim.path))
    monkeypatch.setattr("airflow.configuration.ensure_secrets_loaded", lambda: [Store()])
    with pytest.raises(Refused, match="There is no connection nowhere"):
        get_connection("nowhere", "kafka", str(sim.path))
