"""`kmigrate init`: the file that it writes, what it does not overwrite, and what it says about a node that does not answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from airflow_provider_kmigrate import check
from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.commands import first_reading, init
from airflow_provider_kmigrate.commands.first_reading import read_first_broker
from airflow_provider_kmigrate.core.cluster_state.model import LogDir, Taken
from airflow_provider_kmigrate.core.preflight.first_file import MARK, FirstBroker, FirstFacts, render_first_file
from airflow_provider_kmigrate.exceptions import Failed, Unreachable

ID = "q1Sh-9_ISia_zwGINzRvyQ"
CONNECTIONS = {
    "prod_zk": {"conn_type": "kmigrate_zookeeper", "host": "zk1:2181"},
    "prod_kafka": {"conn_type": "kafka", "extra": {"bootstrap.servers": "kafka0:9092,kafka1:9092", "sasl.password": "hunter22"}},
}


class FakeCluster:
    """What ZooKeeper and two brokers answer; `dead`: brokers that do not."""

    def __init__(self) -> None:
        self.dead: set[int] = set()
        self.zk: Any = SimpleNamespace(cluster_id=lambda: ID, children=lambda _: ["1", "0"], read_children=self._registrations)

    def _registrations(self, _folder: str, names: list[str]) -> Iterator[tuple[str, bytes]]:
        for name in names:
            yield name, json.dumps({"version": 5, "endpoints": [f"PLAINTEXT://kafka{name}:9092"], "rack": "a"}).encode()

    def wire(self, node: Any) -> Any:
        if node.id in self.dead:
            raise Unreachable(f"kafka{node.id}:9092 does not answer")
        return node

    @contextmanager
    def open(self, *_: object) -> Iterator[FakeCluster]:
        yield self


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    fake = FakeCluster()
    (tmp_path / "c.json").write_text(json.dumps(CONNECTIONS))
    monkeypatch.setattr(first_reading, "open_tools", fake.open)
    monkeypatch.setattr(first_reading, "read_startup_config", lambda *_: Taken({}, {"inter.broker.protocol.version": "3.9-IV0"}))
    monkeypatch.setattr(first_reading, "describe_log_dirs", lambda _: (LogDir("/var/lib/kafka"),))
    monkeypatch.chdir(tmp_path)
    return fake


def run(*words: str) -> int:
    return init.main(["prod", "--zookeeper", "prod_zk", "--kafka", "prod_kafka", "--connections", "c.json", *words])


def test_the_file_has_what_was_read_and_check_names_each_mark(cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 0
    text = Path("prod.yaml").read_text()
    assert "{id: 0, host: kafka0, port: 9092, rack: a}" in text
    assert "FILL_IN_release_of_the_line_3.9" in text
    assert "hunter22" not in text
    assert "with 2 brokers" in capsys.readouterr().out
    assert check.main(["prod.yaml"]) == 1
    assert capsys.readouterr().err.count("the mark FILL_IN") == 9


def test_a_broker_that_does_not_answer_is_in_the_file_with_the_reason(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.dead = {1}
    assert run() == 0
    assert "broker 1: Its release is not known: kafka1:9092 does not answer" in capsys.readouterr().out
    assert "    # Its release is not known" in Path("prod.yaml").read_text()


def test_a_file_that_exists_is_not_touched(cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    Path("prod.yaml").write_text("mine")
    assert run() == 1
    assert Path("prod.yaml").read_text() == "mine"
    assert "prod.yaml exists already. Nothing was read or written." in capsys.readouterr().err
    Path("link.yaml").symlink_to("nowhere.yaml")
    assert run("-o", "link.yaml") == 1
    assert not Path("nowhere.yaml").exists()


def test_a_file_that_appears_while_the_cluster_is_read_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "prod.yaml"
    atomic.create(path, b"first")
    with pytest.raises(Failed, match="exists already"):
        atomic.create(path, b"second")
    assert path.read_bytes() == b"first"
    assert [file.name for file in tmp_path.iterdir()] == ["prod.yaml"], "no part of a file is left"


def test_without_zookeeper_nothing_is_written_and_it_ends_with_2(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> str:
        raise Unreachable("zk1:2181 does not answer")

    cluster.zk.cluster_id = fail
    assert run() == 2
    assert not Path("prod.yaml").exists()
    assert "zk1:2181 does not answer" in capsys.readouterr().err


class TestAgents:
    """What `--ssh` adds: each agent's answer, as `clients.hosts.answers` lets it through."""

    NODE = ("0", json.dumps({"version": 5, "endpoints": ["PLAINTEXT://kafka0:9092"]}).encode())

    @staticmethod
    def read(cluster: FakeCluster, hello: Any, facts: Any) -> FirstBroker:
        def answer(value: Any) -> Any:
            if isinstance(value, Exception):
                raise value
            return value

        connection = SimpleNamespace(ask=lambda _verb: answer(hello), facts=lambda *_: answer(facts))
        agents: Any = lambda *_: connection  # noqa: E731
        return read_first_broker(cluster, agents, "prod_ssh", [9092], TestAgents.NODE)  # type: ignore[arg-type]

    def test_the_file_and_the_full_release_come_from_the_agent(self, cluster: FakeCluster) -> None:
        hello = {"roles": {"broker": {"properties": "/etc/kafka/server.properties"}}}
        broker = self.read(cluster, hello, {"software": {"release": "3.9.2", "disk_release": "3.9.2"}})
        assert (broker.properties, broker.software, broker.doubts) == ("/etc/kafka/server.properties", "3.9.2", ())
        text = render_first_file(FirstFacts("prod", ID, "zk", "kafka", [broker], "prod_ssh"))
        data = yaml.safe_load(text)
        assert (data["kafka_release"], data["hosts"]["properties"]) == ("3.9.2", "/etc/kafka/server.properties")

    @pytest.mark.parametrize(
        ("hello", "facts", "doubt"),
        [
            (Unreachable("no route"), {}, "Its file is not known: no route"),
            (Failed("[M09] a banner\n- {id: 9}"), {}, "Its file is not known: "),
            ({"roles": {}}, Failed("no role"), "Its full release is not known: no role"),
            ({"roles": {}}, {"software": {"release": "3.9.2", "disk_release": "4.0.0"}}, "it runs 3.9.2, and its disk has 4.0.0"),
        ],
    )
    def test_what_an_agent_does_not_say_is_a_doubt_and_a_mark(
        self, cluster: FakeCluster, hello: Any, facts: Any, doubt: str
    ) -> None:
        broker = self.read(cluster, hello, facts)
        assert doubt in broker.doubts[0]
        data = yaml.safe_load(render_first_file(FirstFacts("prod", ID, "zk", "kafka", [broker], "prod_ssh")))
        assert data["kafka_release"].startswith(MARK)
        assert [one["id"] for one in data["brokers"]] == [0], "no text of others forges an entry"

    @pytest.mark.parametrize("release", ["", "3.8.1", "3.9", "3.9.2\nname: other", "9" * 500, "3.9.2; rm"])
    def test_a_release_that_is_none_or_of_another_line_is_a_mark(self, cluster: FakeCluster, release: str) -> None:
        hello = {"roles": {"broker": {"properties": "/a\nname: other"}}}
        broker = self.read(cluster, hello, {"software": {"release": release, "disk_release": release}})
        data = yaml.safe_load(render_first_file(FirstFacts("prod", ID, "zk", "kafka", [broker], "prod_ssh")))
        assert (data["name"], data["hosts"]["properties"]) == ("prod", "/a\nname: other")
        assert data["kafka_release"].startswith(MARK)


@pytest.mark.parametrize("name", ["bad/name", "", "pr\u00f6d", "a b", "prod\n", "../prod", "x" * 201])
def test_a_name_that_no_cluster_file_has_is_refused_before_anything_is_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(first_reading, "read_first_facts", lambda _: pytest.fail("it was read"))
    with pytest.raises(SystemExit, match="2"):
        init.main([name, "--zookeeper", "prod_zk", "--kafka", "prod_kafka", "--connections", "c.json"])
    assert "is no name of a cluster, such as prod" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
