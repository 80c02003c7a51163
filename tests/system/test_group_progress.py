"""Real consumers that hang while a broker restarts hold the next restart, and are named; it continues once they do."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer

from airflow_provider_kmigrate.clients.group_reads import sweep
from airflow_provider_kmigrate.core.cluster_state.decision import Done
from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode
from airflow_provider_kmigrate.core.cluster_state.spec import GroupProgressSpec
from airflow_provider_kmigrate.core.member.group_seen import GroupSweep
from airflow_provider_kmigrate.spec import load
from airflow_provider_kmigrate.steps.catalog import run_remaining_nodes
from airflow_provider_kmigrate.steps.run import StepContext
from airflow_provider_kmigrate.steps.waits import run_watch
from benchmarks import direct
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster.cluster import LocalCluster, lent
from tests.kit.localcluster.plan import Shape
from tests.system.evidence import starts
from tests.system.hanging import Client
from tests.waiting import beside, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.slow(seconds=80), pytest.mark.timeout(360)]

TOPIC, PARTITIONS = "orders", 6
GROUPS = ("halted", "hanging", "killed", "lame", "well")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with lent(tmp_path / "cluster", Shape(name="progress", controllers=1)) as there:
        create_topics({"bootstrap.servers": there.bootstrap}, [TopicPlan(TOPIC, PARTITIONS)])
        yield there


@pytest.fixture
def clients(cluster: LocalCluster) -> Iterator[dict[str, Client]]:
    """One consumer a group; all of them have committed everywhere, and `lame` has hung since."""
    with beside(lambda over: send(cluster.bootstrap, over)):
        there = {group: Client(cluster.bootstrap, TOPIC, group) for group in GROUPS}
        try:
            wait_for(lambda: swept(cluster), lambda seen: seen.groups.keys() >= set(GROUPS), "every group has a member")
            first = swept(cluster)
            wait_for(lambda: swept(cluster), lambda seen: all(moved(first, seen, group) for group in GROUPS), "every group moves")
            there["lame"].signal(signal.SIGUSR1)
            yield there
        finally:
            for client in there.values():
                client.end()


def send(bootstrap: str, over: threading.Event) -> None:
    """Records to every partition, some hundred a second."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    while not over.wait(0.05):
        for partition in range(PARTITIONS):
            producer.produce(TOPIC, b"x", partition=partition)
        producer.poll(0)
    producer.flush(30)


def swept(cluster: LocalCluster) -> GroupSweep:
    return sweep({"bootstrap.servers": cluster.bootstrap}, 5.0, [0, 1, 2], GROUPS)


def moved(first: GroupSweep, now: GroupSweep, group: str) -> bool:
    return group in now.groups and group in first.groups and now.groups[group].has_committed_since(first.groups[group])


class Roll:
    """Breaks one client in each restart, the last one by ending it; repairs it when the roll names it, and notes how many brokers had restarted by then."""

    def __init__(self, here: StepContext, clients: Mapping[str, Client]) -> None:
        self.clients, self.said, self.named = clients, list[str](), dict[str, str]()
        self._restarts, self._brokers = 0, here.spec.brokers
        self._before = self._starts()
        self.restarted: dict[str, int] = {}

    def _starts(self) -> int:
        return sum(map(starts, self._brokers))

    def say(self, line: str) -> None:
        self.said.append(line)
        print(line, flush=True)  # noqa: T201 - for a test that fails
        if line.startswith("Decided to restart"):
            breaks: Callable[[], None] = (
                lambda: self.clients["halted"].signal(signal.SIGSTOP),
                lambda: self.clients["hanging"].signal(signal.SIGUSR1),
                self.clients["killed"].end,
            )[self._restarts]
            self._restarts += 1
            breaks()
        if "[G38]" in line:
            self._repair(next(group for group in ("halted", "hanging", "killed") if group in line), line)

    def _repair(self, group: str, line: str) -> None:
        if group in self.named and f"client-{group}" in self.named[group]:
            return
        self.named[group], self.restarted[group] = line, self._starts() - self._before
        if f"client-{group}" not in line:
            return
        if group == "halted":
            self.clients[group].signal(signal.SIGCONT)
        else:
            self.clients[group].end()
            self.clients[group].start()


def test_a_client_that_hangs_holds_the_next_restart_and_is_named(cluster: LocalCluster, clients: dict[str, Client]) -> None:
    spec = replace(load(cluster.spec_path), group_progress=GroupProgressSpec(commit_within=5.0))
    with direct.context(cluster, spec=spec) as here:
        direct.prepare(here)
        direct.provision(here)
        roll = Roll(here, clients)
        assert isinstance(run_remaining_nodes(replace(here, say=roll.say), "roll", {"target": str(BrokerMode.MIGRATION)}), Done)
        assert isinstance(direct.step(replace(here, say=roll.say), "registered"), Done)
        assert roll.restarted == {"halted": 1, "hanging": 2, "killed": 3}, "the next broker restarted all the same"
        for group, line in roll.named.items():
            for word in (group, f"client-{group} on 127.0.0.1", f"{TOPIC}-", "records behind", "Restart the clients"):
                assert word in line
        named = [line for line in roll.said if "[G38]" in line]
        assert not any(other in line for line in named for other in ("lame", "well"))
        assert "no members any more" in roll.named["killed"]
        assert "before the restart: client-killed on 127.0.0.1" in roll.named["killed"]
        assert "lame" in run_watch(here).text
