"""The situations of an on-call engineer on a real cluster: page, `kmigrate why`, `kmigrate status` and the runbook have the same next move.

One cluster, of which one broker is in KRaft mode. Each situation is caused, read as an engineer reads it, and taken away again; the last ones go on to the
end of the migration. The sentences are tested on a simulated cluster (`tests/commands/test_situations.py`); here real nodes cause them.
"""

from __future__ import annotations

import json
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from airflow.models.hitl import HITLDetail
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from fastapi.testclient import TestClient
from kazoo.client import KazooClient
from sqlalchemy import select

from airflow_provider_kmigrate.cli import main
from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, Fields
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole, NodeSpec
from airflow_provider_kmigrate.core.monitoring.status import Doing, StepFacts, describe_task_end
from airflow_provider_kmigrate.exceptions import Fenced
from airflow_provider_kmigrate.steps.journal import FileJournal
from airflow_provider_kmigrate.steps.run import StepContext
from benchmarks import direct
from tests.core.next_moves import NEXT, WORDS, count_words_to_next_move
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster.cluster import LocalCluster, lent
from tests.kit.localcluster.plan import Shape
from tests.provider.stored_pages import log_in, read, show_plainly
from tests.system.nodes import down, of, paused
from tests.waiting import wait_for, wait_until

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.long,
    pytest.mark.slow(seconds=240),
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("nothing_stored"),
]

NAME = "night"
RUN = f"kmigrate_zk_to_kraft__{NAME}/manual__1"
NEXT_BROKER = 1
_FLAG = "zookeeper.metadata.migration.enable=true\n"


@dataclass
class Night:
    """A cluster under migration, and what an engineer has at hand: files of the cluster and of its connections, kmigrate's folder, a shell and a browser."""

    cluster: LocalCluster
    here: StepContext
    folder: Path
    pages: TestClient
    store: Callable[..., None]
    capsys: pytest.CaptureFixture[str]

    def type(self, *words: str) -> str:
        """What a command prints; its exit code is for scripts."""
        self.capsys.readouterr()  # Airflow's own lines
        main(words)
        return self.capsys.readouterr().out

    def ask(self, command: str, *words: str) -> str:
        connections = str(self.cluster.plan.connections_path)
        return self.type(command, str(self.cluster.spec_path), "--connections", connections, "--folder", str(self.folder), *words)

    def explain(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.ask("why", "-o", "json"))
        return document

    def has(self, code: str, state: str = "alarm") -> bool:
        document = self.explain()
        return document["state"] == state and code in {condition["code"] for condition in document["conditions"]}

    def wait_until_ready(self) -> None:
        """What was wrong is seen to be over."""
        wait_until(lambda: self.explain()["state"] == "ready", "all is well again", 120.0)

    def show(self) -> str:
        """The page of the cluster after its watch has stored what it sees."""
        self.store(json.loads(self.ask("status", "-o", "json")), f"kmigrate_watch__{NAME}")
        log_in(self.pages)
        return show_plainly(read(self.pages, f"cluster/{NAME}"))

    def check_alarm(self, code: str, says: str, *, is_certain: bool) -> None:
        """Within a minute each of the three has the condition first, and the same next move, with this cluster's names."""
        wait_until(lambda: self.has(code), code)
        why, status, page = self.ask("why"), self.ask("status"), self.show()
        moves = [move.group().strip() for move in NEXT.finditer(why)]
        assert moves
        for text in (why, status):
            assert re.search(rf"\[{code}\] {says}", text), text
            assert count_words_to_next_move(text) <= WORDS
        before, said, _ = page.partition(moves[0].replace("`", ""))
        assert said
        assert len((before + said).split()) <= WORDS
        for move in moves:
            assert move in status
            assert move.replace("`", "") in page
            assert not re.search(r"<\w+>|\bCLUSTER\b", move), "it can be typed as it stands"
        assert ("An operator must act." in why) is is_certain
        assert f"More: {code} in the runbook." in why
        assert self.type("runbook", code).startswith(f"### {code} ")
        assert 'class="light act"' in read(self.pages, "fleet")


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalCluster, StepContext, Path]]:
    """Broker 0 in KRaft mode, the others in migration mode; the run that did it owns the cluster, and lives."""
    folder = tmp_path_factory.mktemp("night")
    with lent(folder / "cluster", Shape(NAME, brokers=3, controllers=3, racks=0)) as cluster:
        create_topics({"bootstrap.servers": cluster.bootstrap}, [TopicPlan("orders", 6, 3, {"min.insync.replicas": "2"})])
        with direct.context(cluster, RUN, folder=folder / "kmigrate") as context:
            journals = folder / "kmigrate" / "journal" / NAME
            here = replace(
                context, journal=FileJournal(journals / "run.jsonl", RUN, time.time), journals=journals, say=lambda _: None
            )
            direct.to_hybrid(here)
            yield cluster, here, folder / "kmigrate"


@pytest.fixture
def night(
    migrated: tuple[LocalCluster, StepContext, Path],
    pages: TestClient,
    store: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
) -> Night:
    """As it was before: nothing is wrong when a test begins, and nothing is when it ends."""
    return Night(*migrated, pages, store, capsys)


def restart(node: NodeSpec, text: str) -> None:
    """As configuration management and a reboot do: another file, and the process begins again."""
    process = of(node)
    Path(node.hosts.properties).write_text(text)
    process.wait_gone(process.signal(signal.SIGTERM), 40.0)
    process.start()


@contextmanager
def without_flag(night: Night) -> Iterator[int]:
    """A controller that does not lead: one that leads would finalize the migration."""
    leader = night.here.observer.observe(Fields.POSITION).quorum
    assert leader is not None
    node = next(node for node in night.here.spec.controllers if node.id != leader.leader_id)
    text = Path(node.hosts.properties).read_text()
    assert _FLAG in text
    restart(node, text.replace(_FLAG, ""))
    try:
        yield node.id
    finally:
        restart(node, text)


def test_an_original_that_is_gone(night: Night) -> None:
    original = night.here.backup.original_path(night.here.spec.brokers[2])
    away = original.rename(original.with_suffix(".away"))
    try:
        night.check_alarm("O01", r"The backup ", is_certain=True)
    finally:
        away.rename(original)
    night.wait_until_ready()


def test_a_controller_that_was_restarted_without_its_flag(night: Night) -> None:
    with without_flag(night) as controller:
        night.check_alarm("G05", rf"Controllers without the migration flag: {controller}\.", is_certain=True)
    night.wait_until_ready()


def test_a_broker_that_is_down(night: Night) -> None:
    with down(of(night.here.spec.brokers[2]), night.cluster):
        night.check_alarm("R01", r"Broker 2 does not answer\.", is_certain=False)
    night.wait_until_ready()


def test_another_run_that_begins_meets_the_lock_of_the_first(night: Night) -> None:
    """H01: a second run that begins is refused by the lock of the first."""
    with (
        pytest.raises(Fenced) as refused,
        direct.context(night.cluster, "kmigrate_rollback__night/manual__2", folder=night.folder),
    ):
        pass
    (reason,) = refused.value.reasons
    stopped = StepFacts("backup", Doing.FAILED, str(reason), (reason,))
    night.show()
    night.store(describe_task_end(night.here.spec, time.time(), stopped), f"kmigrate_rollback__{NAME}", state="failed")
    page = show_plainly(read(night.pages, f"cluster/{NAME}"))
    assert reason.code == "H01"
    assert RUN in reason.text
    assert "one of its processes is alive" in reason.text
    assert "Stopped: backup [H01] " in page
    assert RUN in page
    assert f"{NAME} is owned by {RUN}." in night.ask("unlock"), "and the lock stays"
    assert night.explain()["owner"]["run"] == RUN


def test_a_dual_write_that_stands_still(night: Night) -> None:
    """G07: a write of /migration whose answer was lost: the active controller never writes again. The run's next step repairs it."""
    client = KazooClient(night.cluster.zookeeper)
    client.start(timeout=30.0)
    client.set("/migration", client.get("/migration")[0])
    client.stop()
    client.close()
    night.check_alarm("G07", r"/migration has not advanced", is_certain=False)


def test_a_restart_of_the_run_itself_is_no_alarm(night: Night) -> None:
    """While the run restarts the next broker kmigrate is at work: whatever the restart causes (R01, R05, S02), nothing is to do."""
    process = of(night.here.spec.brokers[NEXT_BROKER])
    before = process.find().pid
    roll = threading.Thread(
        target=direct.step, args=(night.here, "roll"), kwargs={"node": NEXT_BROKER, "target": BrokerMode.KRAFT}
    )
    roll.start()
    wait_until(lambda: process.find().pid not in {None, before}, "the broker's new process", 60.0)
    with paused(process):  # a start that takes long: a look takes about as long as a whole one
        document = wait_for(
            night.explain,
            lambda seen: seen["state"] == "working" and seen["conditions"],
            "what it causes while kmigrate works",
            60.0,
        )
    roll.join()
    assert not any(condition["do"] for condition in document["conditions"])
    night.wait_until_ready()


def test_the_soak_and_the_request_behind_it(night: Night) -> None:
    """All brokers in KRaft mode: the soak, then the request of the migration's own run."""
    direct.roll(night.here, BrokerMode.KRAFT)
    wait_until(lambda: night.explain()["step"] is not None and night.explain()["state"] in {"ready", "person"}, "the soak", 90.0)
    why = night.ask("why")
    assert not NEXT.search(why), "nothing to do"
    assert "It becomes an alarm after " in why
    document = json.loads(night.ask("status", "-o", "json"))
    night.store(document, f"kmigrate_zk_to_kraft__{NAME}", state="deferred")
    with create_session() as session:
        dag = f"kmigrate_zk_to_kraft__{NAME}"
        task = session.scalars(select(TaskInstance).where(TaskInstance.dag_id == dag)).all()[-1]
        task.state = "deferred"
        asked = {"subject": f"Finalize {NAME}?", "options": ["Finalize"], "multiple": False, "params": {}}
        session.add(HITLDetail(ti_id=task.id, **asked))
    log_in(night.pages)
    fleet = read(night.pages, "fleet")
    assert 'class="light answer"' in fleet
    assert f"Answer the request: Finalize {NAME}?" in show_plainly(fleet)
    assert "/required_actions" in read(night.pages, f"cluster/{NAME}")


def test_a_broker_with_an_older_file_after_the_finalization(night: Night) -> None:
    """P02: finalized, and an older file is put back and the broker started with it."""
    here = night.here
    original = here.backup.original_path(here.spec.brokers[NEXT_BROKER]).read_text()
    direct.finalize(here)
    restart(here.spec.node(NodeRole.BROKER, NEXT_BROKER), original)
    night.check_alarm("P02", rf".*left behind: broker {NEXT_BROKER}", is_certain=True)
    assert f"kmigrate_zk_to_kraft__{NAME}" in night.ask("why")
