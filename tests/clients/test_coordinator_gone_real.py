"""Groups are looked at without a pause while their coordinators are killed and come back: two real brokers, in ZooKeeper mode."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from airflow_provider_kmigrate.clients.group_reads import GroupAnswer, describe_groups
from airflow_provider_kmigrate.clients.wire_groups import commit
from airflow_provider_kmigrate.core.cluster_state.spec import NodeSpec
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.exceptions import Unavailable
from tests.consumer.migrating_group import Beside
from tests.kit.held import Held
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster.cluster import SHORT_SESSION, LocalCluster, lent
from tests.kit.localcluster.plan import Shape, folder_of
from tests.kit.processes import NodeProcess
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.slow(seconds=35)]
GROUPS = [f"g{number}" for number in range(20)]
COMMITTED = {TopicPartition("t", 0): 7}


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    shape = Shape(name="gone", brokers=2, controllers=1)
    with lent(tmp_path_factory.mktemp("gone") / "cluster", shape, SHORT_SESSION) as there:
        create_topics({"bootstrap.servers": there.bootstrap}, [TopicPlan("t", 1, 1)])
        yield there


class Observations(Beside):
    """One after the other, each with its answers, or None if no broker answered."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        self.properties = {"bootstrap.servers": bootstrap}
        self.found: list[dict[str, GroupAnswer] | None] = []

    def work(self) -> None:
        while not self.ending.is_set():
            try:
                self.found.append({one.group: one for one in describe_groups(self.properties, 2.0, GROUPS)})
            except Unavailable:
                self.found.append(None)

    def answers(self) -> set[str]:
        """Whose members, and what they committed, the newest look has. A look from before the commit has an empty answer, which is none."""
        newest = (self.found or [None])[-1] or {}
        return {name for name, one in newest.items() if one.described is not None and one.committed == COMMITTED}


def kill(node: NodeSpec) -> None:
    pid = NodeProcess(folder_of(node)).find().pid
    assert pid
    os.kill(pid, signal.SIGKILL)


def commit_all(properties: dict[str, str]) -> None:
    """A coordinator whose topic is just being made is not there yet."""

    def done(group: str) -> bool:
        try:
            commit(properties, group, COMMITTED, 5.0, Held())
        except Unavailable:
            return False
        return True

    for group in GROUPS:
        wait_until(lambda group=group: done(group), f"{group} has committed")


def test_groups_are_reported_or_unknown_and_never_dead(cluster: LocalCluster) -> None:
    one, other = cluster.plan.brokers
    with Observations(cluster.bootstrap) as observations:
        commit_all(observations.properties)
        wait_until(lambda: observations.answers() == set(GROUPS), "all are reported")
        before = len(observations.found)
        kill(other)
        wait_until(lambda: observations.answers() != set(GROUPS), "some are unknown")
        wait_until(lambda: observations.answers() == set(GROUPS), "the broker that is left coordinates all")
        kill(one)
        wait_until(lambda: not observations.answers(), "no broker answers")
        cluster.up()
        wait_until(lambda: observations.answers() == set(GROUPS), "all are reported again")
    wrong = [one for observation in observations.found[before:] for one in (observation or {}).values() if not is_right(one)]
    assert wrong == []


def is_right(one: GroupAnswer) -> bool:
    state = one.described.state if one.described else "Empty"
    return state == "Empty" and one.committed in (None, COMMITTED)
