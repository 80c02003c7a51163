"""Commands that read a cluster with Airflow's own connections and folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_kmigrate.cli import main
from airflow_provider_kmigrate.commands import reading
from airflow_provider_kmigrate.core.migration.plan_document import DOCUMENT_KIND
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
