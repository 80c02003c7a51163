"""Which groups' offsets in ZooKeeper are committed by clients that no registration shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest
from kazoo.client import KazooClient

from airflow_provider_kmigrate.clients.group_reads import read_groups
from airflow_provider_kmigrate.clients.offset_writers import LATELY, find_unregistered_commits
from airflow_provider_kmigrate.clients.settings import ZooKeeperSettings
from airflow_provider_kmigrate.clients.znodes import Znode
from airflow_provider_kmigrate.clients.zookeeper import ZooKeeper
from airflow_provider_kmigrate.core.cluster_state.model import LiveMembers
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.preflight.findings import Severity
from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.groups import scan_groups
from airflow_provider_kmigrate.steps.prepare import run_preflight
from benchmarks import direct
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster.cluster import LocalCluster
from tests.kit.old_commits import commit_version_0
from tests.waiting import wait_until

NOW = 10_000.0


class Tree:
    """One group with one offset, by its transaction and time, and the transaction in which its last member left (0: it never had one).

    `cleaned`: the transaction that deleted its folders. 0: they are there.
    """

    def __init__(self, zxid: int, changed_at: float, left: int, partition: str = "0", cleaned: int = 0) -> None:
        self.znodes = {f"/consumers/g/offsets/t/{partition}": Znode(b"7", 3, zxid, changed_at)}
        self.znodes |= {"/consumers/g/ids": Znode(b"", 0, 1, 0.0, left)} if left and not cleaned else {}
        self.znodes["/consumers/g"] = Znode(b"", 0, 1, 0.0, cleaned or 1)
        self.families = {"/consumers/g/offsets": ["t"], "/consumers/g/offsets/t": [partition]}

    def children_by_path(self, paths: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
        return ((path, self.families[path]) for path in paths if path in self.families)

    def read_znodes(self, paths: Iterable[str]) -> Iterator[tuple[str, Znode]]:
        return ((path, self.znodes[path]) for path in paths if path in self.znodes)


@pytest.mark.parametrize(
    ("tree", "found"),
    [
        (Tree(9, NOW - 12, 0), {"g": 12.0}),
        (Tree(9, NOW - 12, 8), {"g": 12.0}),
        (Tree(9, NOW - 12, 10), {}),
        (Tree(9, NOW - LATELY - 1, 0), {}),
        (Tree(9, NOW + 60, 0), {"g": 0.0}),
        (Tree(9, NOW - 12, 0, "x"), {}),
        (Tree(9, NOW - 12, 10, cleaned=11), {}),
        (Tree(12, NOW - 12, 10, cleaned=11), {"g": 12.0}),
    ],
    ids=[
        "never a member",
        "after the last one left",
        "by the last one",
        "long ago",
        "a clock ahead",
        "no partition",
        "moved and cleaned up",
        "after it was cleaned up",
    ],
)
def test_a_commit_behind_the_last_registration_is_of_somebody_else(tree: Tree, found: dict[str, float]) -> None:
    assert find_unregistered_commits(tree, ["g"], NOW) == found


@pytest.mark.cluster
def test_it_is_seen_alike_by_a_scan_and_by_the_gate(own_chroot: ZooKeeperSettings, kazoo_client: KazooClient) -> None:
    """Real znodes: one group whose member commits and leaves, one whose offsets are written by nobody who is registered."""
    member = KazooClient(f"{own_chroot.hosts}{own_chroot.chroot}")
    member.start()
    member.create("/consumers/left/ids/a", b"{}", ephemeral=True, makepath=True)
    member.create("/consumers/left/offsets/t/0", b"5", makepath=True)
    member.stop()
    member.close()
    kazoo_client.create("/consumers/moved/offsets/t/0", b"5", makepath=True)
    kazoo_client.ensure_path("/consumers/moved/ids")
    kazoo_client.set("/consumers/moved/offsets/t/0", b"6")
    kazoo_client.delete("/consumers/moved/ids")
    kazoo_client.create("/consumers/storm/offsets/t/0", b"5", makepath=True)
    with ZooKeeper(own_chroot) as client:
        groups = read_groups(client)
        view = client.view(groups=True)
    assert groups["left"].unregistered_s is None
    assert groups["moved"].unregistered_s is None, "its folders were cleaned up"
    assert groups["storm"].unregistered_s is not None
    assert view.live_groups == ("storm",)
    assert view.live_members["storm"] == LiveMembers(0, 0, view.live_members["storm"].unregistered_s)
    assert "without a registration, committed" in str(view.live_members["storm"])


@pytest.mark.cluster
@pytest.mark.slow(seconds=45)
def test_a_client_that_commits_by_the_first_version_is_seen_before_the_first_roll(cluster: LocalCluster) -> None:
    """A real broker in ZooKeeper mode writes its offset into ZooKeeper; nothing else shows that it is there."""
    hosts, _, chroot = cluster.zookeeper.partition("/")
    create_topics({"bootstrap.servers": cluster.bootstrap}, [TopicPlan("bound", 1, 1)])
    wait_until(
        lambda: commit_version_0(cluster.bootstrap.split(",")[0], "old-binding", TopicPartition("bound", 0), 0) == 0,
        "the broker knows the topic",
    )
    with ZooKeeper(ZooKeeperSettings(hosts, f"/{chroot}")) as client:
        scans, _, _ = scan_groups(client, {"bootstrap.servers": cluster.bootstrap}, ["old-binding"], 0.0)
    assert [finding.code for finding in scans[0].findings if finding.severity is Severity.BLOCK] == ["K95"]
    assert scans[0].breaks == "first broker into KRaft mode"
    assert scans[0].last_commit is not None
    with direct.context(cluster, "looks", acting=False) as context, pytest.raises(Refused) as refused:
        run_preflight(context)
    (text,) = [reason.text for reason in refused.value.reasons if reason.code == "G21"]
    assert "old-binding (without a registration" in text
    assert "Commits of old-binding fail as soon as the first broker is in KRaft mode" in text
