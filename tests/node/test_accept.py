"""`kmigrate node accept`: which node it reads, whose file it is, and when nothing is stored."""

from __future__ import annotations

import json
import os
import pwd
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kmigrate.clients.hosts.files import sha256
from airflow_provider_kmigrate.clients.object_log import COPY
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole
from airflow_provider_kmigrate.node import command
from airflow_provider_kmigrate.node.command import main
from airflow_provider_kmigrate.spec import loads
from airflow_provider_kmigrate.steps import originals
from airflow_provider_kmigrate.steps.backup import BackupStore
from tests.clients.fake_pipe import FakePipe
from tests.node.script_text import FILE

ID = "q1Sh-9_ISia_zwGINzRvyQ"
ORIGINAL = "broker.id=1\nzookeeper.connect=zk:2181\nlog.dirs=/data\n"
WANTED = f"{ORIGINAL}num.io.threads=9\n"


def answer(text: str, cluster: str | None) -> bytes:
    meta = "" if cluster is None else f"version=0\nbroker.id=1\ncluster.id={cluster}\n"
    facts = {
        "process": {"state": "running", "pid": 7, "birth": "b:1", "since": 1.0},
        "unit": {},
        "boot_enabled": True,
        "file": {"sha256": sha256(text), "text": text, "free": 1, "written": 1.0},
        "log_dirs": {"/data": {"meta": meta, "has_metadata_log": False, "free": 1}},
        "kept_in": "/var/lib/kmigrate/broker",
        "clock": 1.0,
        "job": {},
        "failing": None,
    }
    return json.dumps({"v": 1, "id": 1, "ok": facts}).encode() + b"\n"


class Pipe(FakePipe):
    """One that answers each request with the same facts."""

    def read(self, timeout: float) -> bytes:
        return self.answers[0].replace(b'"id": 1,', b'"id": %d,' % self.asked)  # type: ignore[union-attr]

    def write(self, data: bytes, timeout: float) -> None:
        self.asked = json.loads(data)["id"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "prod.yaml").write_text(FILE)
    (tmp_path / "connections.json").write_text(json.dumps({"prod_ssh": {"conn_type": "ssh", "login": "kmigrate"}}))
    node = next(node for node in loads(FILE).nodes() if (node.role, node.id) == (NodeRole.BROKER, 1))
    store = BackupStore(tmp_path / "kept" / "backup", "prod", ID)
    store.keep_original(node, ORIGINAL)
    store.keep_metadata_version("3.9-IV0")
    return tmp_path


def run(folder: Path, node: str, facts: bytes, monkeypatch: pytest.MonkeyPatch, *more: str) -> int:
    monkeypatch.setattr(command, "_open_ssh", lambda *_: Pipe(facts))
    files = [str(folder / "prod.yaml"), node, "--connections", str(folder / "connections.json")]
    return main(["accept", *files, "--folder", str(folder / "kept"), *more])


def stored(folder: Path) -> str:
    return (folder / "kept" / "backup" / f"prod_{ID}" / "broker-1.properties").read_text()


@pytest.mark.parametrize("name", ["broker-1", "broker 1"])
def test_what_a_broker_has_now_becomes_its_original(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert run(folder, name, answer(WANTED, ID), monkeypatch, "--yes") == 0
    assert stored(folder) == WANTED
    said = capsys.readouterr().out
    assert "+ num.io.threads=" in said
    assert "in ZooKeeper mode, also after a rollback: as it is\n" in said
    assert "in migration mode (first roll): change\n" in said
    assert "    + zookeeper.metadata.migration.enable=true\n" in said
    _, _, kraft = said.partition("in KRaft mode (second roll): change\n")
    assert "- zookeeper.connect" in kraft
    assert "+ node.id=1\n" in kraft
    [journal] = (folder / "kept" / "journal" / "prod").glob("accepted__*.jsonl")
    assert [json.loads(line)["kind"] for line in journal.read_text().splitlines()] == ["accept", "accepted"]


def test_nothing_is_stored_unless_somebody_agrees(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", open("/dev/null", encoding="utf-8"))  # noqa: SIM115, PTH123  # as a pipeline has it
    assert run(folder, "broker-1", answer(WANTED, ID), monkeypatch) == 1
    assert stored(folder) == ORIGINAL
    assert not (folder / "kept" / "journal").exists()


@pytest.mark.parametrize(
    ("cluster", "said"), [("another-cluster-id-here", "name the cluster another"), (None, "name no cluster")]
)
def test_a_file_of_another_cluster_is_not_accepted(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cluster: str | None, said: str
) -> None:
    assert run(folder, "broker-1", answer(WANTED, cluster), monkeypatch, "--yes") == 1
    assert said in capsys.readouterr().err
    assert stored(folder) == ORIGINAL


def test_a_copy_of_an_object_store_is_not_written_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "kept" / COPY).write_text("{}")
    assert run(folder, "broker-1", answer(WANTED, ID), monkeypatch, "--yes") == 1
    assert "copy of an object store" in capsys.readouterr().err
    wanted = folder / "wanted.properties"
    wanted.write_text(WANTED)
    assert originals.main([str(folder / "kept" / "backup" / f"prod_{ID}"), "1", str(wanted)]) == 1
    assert "copy of an object store" in capsys.readouterr().err
    assert stored(folder) == ORIGINAL


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user: needs root")
def test_another_user_than_airflows_stores_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Airflow's user could not read root's files, and every later task would fail."""
    os.chown(folder / "kept" / "backup" / f"prod_{ID}", pwd.getpwnam("nobody").pw_uid, -1)
    assert run(folder, "broker-1", answer(WANTED, ID), monkeypatch, "--yes") == 1
    assert "[O05]" in capsys.readouterr().err
    assert stored(folder) == ORIGINAL


@pytest.mark.parametrize("name", ["broker-9", "1", "kafka1", "controller-1"])
def test_a_name_that_no_node_has_ends_with_2_and_the_names(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert run(folder, name, answer(WANTED, ID), monkeypatch, "--yes") == 2
    assert "it has broker-0, broker-1, controller-3000" in capsys.readouterr().err


def test_another_brokers_file_is_not_accepted(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other: Any = WANTED.replace("broker.id=1", "broker.id=2")
    assert run(folder, "broker-1", answer(other, ID), monkeypatch, "--yes") == 1
    assert "kmigrate itself decides broker.id" in capsys.readouterr().err
    assert stored(folder) == ORIGINAL
