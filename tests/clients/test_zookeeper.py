"""The ZooKeeper client without a server: what may be sent, what errors mean; and on a real one: views, bulk reads, refusals."""

from __future__ import annotations

import inspect
import json
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import kazoo.exceptions
import pytest
from kazoo.client import KazooClient
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.paths import _prefix_root
from kazoo.protocol.serialization import int_struct, multiheader_struct

from airflow_provider_kmigrate.clients.settings import ZooKeeperSettings
from airflow_provider_kmigrate.clients.znodes import COUNTS, REGISTERED, ROLLED_BACK, ROOT, Create, Delete, Operation, Set
from airflow_provider_kmigrate.clients.zookeeper import ZooKeeper
from airflow_provider_kmigrate.clients.zookeeper_session import (
    ERRORS,
    Changed,
    MultiRead,
    ReadKind,
    ZnodeRead,
    absolute_path,
    error_for,
    none_if_absent,
)
from airflow_provider_kmigrate.core.cluster_state.model import (
    Age,
    BrokerMode,
    BrokerRegistration,
    LiveMembers,
    Malformed,
    Migration,
    OthersRight,
    PartitionMetadata,
    ZkAcl,
    ZkController,
)
from airflow_provider_kmigrate.exceptions import (
    AuthenticationFailed,
    Failed,
    Fenced,
    Forbidden,
    KMigrateError,
    TimedOut,
    Unavailable,
    Unreachable,
    WrongCluster,
)
from tests.waiting import refusing_port


class Held:
    path = "/_kmigrate/c/epoch"
    token = 1


class TestErrors:
    ABSTRACT = (kazoo.exceptions.KazooException, kazoo.exceptions.ZookeeperError)

    def test_every_exception_of_kazoo_has_its_meaning(self) -> None:
        known = [
            kind
            for _, kind in inspect.getmembers(kazoo.exceptions, inspect.isclass)
            if issubclass(kind, kazoo.exceptions.KazooException) and kind not in self.ABSTRACT
        ]
        assert [kind for kind in known if kind not in ERRORS] == []

    @pytest.mark.parametrize(
        ("theirs", "ours"),
        [
            (kazoo.exceptions.ConnectionLoss, Unreachable),
            (kazoo.exceptions.SessionExpiredError, Unreachable),
            (kazoo.exceptions.NoAuthError, AuthenticationFailed),
            (kazoo.exceptions.BadVersionError, Changed),
            (kazoo.exceptions.OperationTimeoutError, TimedOut),
            (kazoo.exceptions.QuotaExceededError, Failed),
        ],
    )
    def test_what_the_caller_may_do(self, theirs: type[Exception], ours: type[KMigrateError]) -> None:
        assert type(error_for(theirs(), "x")) is ours

    def test_an_exception_that_kazoo_adds_later(self) -> None:
        class New(kazoo.exceptions.ZookeeperError):
            pass

        assert type(error_for(New("why"), "x")) is Failed


class TestOthersRight:
    """Whether `/_kmigrate` is kmigrate's alone, if its ACL is not shown."""

    def judge(self, monkeypatch: pytest.MonkeyPatch, error: Exception) -> OthersRight | None:
        def fail(timeout: float) -> None:
            raise error

        zookeeper = ZooKeeper(ZooKeeperSettings("127.0.0.1:1", sasl_mechanism="DIGEST-MD5", sasl_user="kmigrate"))
        client = SimpleNamespace(get_acls_async=lambda _: SimpleNamespace(get=fail))
        monkeypatch.setattr(zookeeper._session, "client", lambda: client)
        return zookeeper.find_others_right("/_kmigrate")

    def test_a_closed_znode_belongs_to_another_identity(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = self.judge(monkeypatch, kazoo.exceptions.NoAuthError())
        assert found == OthersRight("/_kmigrate", "an identity that ZooKeeper does not name to kmigrate")

    def test_a_login_that_is_refused_says_nothing_about_a_znode(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A run with a wrong password was told to look for another identity (H14)."""
        with pytest.raises(AuthenticationFailed):
            self.judge(monkeypatch, kazoo.exceptions.AuthFailedError())


class TestAllowList:
    """No server listens on the port: a forbidden operation is refused before anything is sent."""

    @pytest.mark.parametrize(
        "operation",
        [
            Delete("/brokers", 0),
            Delete("/brokers/topics/t", 0),
            Set("/cluster/id", b"", 0),
            Set("/controller_epoch/", b"", 0),
            Set("//controller", b"", 0),
            Create("/_kmigrate/../brokers/ids/7"),
            Create("/_kmigrate/a.b"),
            Create("/_kmigrate2"),
            Create("/controller"),
            Delete("/controller", -1),
            Set("/controller_epoch", b"1", -1),
            Create(""),
            Create("/"),
            Create("/consumers/g/ids"),
            Create("/consumers/g/ids/g_member-1"),
            Create("/consumers/g/migration/ids/g_member-1"),
            Create("/consumers/g/owners/t/0"),
            Create("/consumers/g/migration/mode", b"kafka", ephemeral=True),
            Create("/consumers/../brokers"),
            Create("/consumers/g/offsets/../offsets"),
            Create("/consumers/g/offsets/t/one"),
            Create("/consumers/g/offsets/t/0\n"),
            Create("/consumersx"),
            Set("/consumers/g", b"", 0),
            Set("/consumers/g/ids/g_member-1", b"", 0),
            Set("/consumers/g/owners/t/0", b"", 0),
            Set("/consumers/g/migration/mode", b"kafka", -1),
            Set("/consumers/g/offsets/t/0", b"1", -1),
            Delete("/consumers/g", 0),
            Delete("/consumers/g/ids", -1),
            Delete("/consumers/g/ids/g_member-1", 0),
            Delete("/consumers/g/owners/t/0", 0),
            Delete("/consumers/g/offsets", 0),
            Delete("/consumers/g/offsets/t/0", 0),
            Delete("/consumers/g/migration/ids/g_member-1", 0),
        ],
        ids=str,
    )
    def test_everything_else_is_forbidden(self, operation: Operation) -> None:
        with ZooKeeper(ZooKeeperSettings("127.0.0.1:1")) as client, pytest.raises(Forbidden, match="Z04"):
            client.commit([operation], holding=Held())

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "operation",
        [
            Create("/consumers"),
            Create("/consumers/a.group_1-2"),
            Create("/consumers/g/migration"),
            Create("/consumers/g/migration/mode", b"kafka"),
            Create("/consumers/g/offsets/some.topic/0", b"1"),
            Set("/consumers/g/migration/mode", b"zookeeper", 0),
            Set("/consumers/g/offsets/t/17", b"1", 3),
            Delete("/consumers/g/migration/mode", 1),
            Delete("/consumers/g/migration/reset/t/0", 0),
            Delete("/consumers/g/migration/ids", 0),
            Delete("/consumers/g/migration", 0),
            Delete("/consumers/g/owners/t", 0),
            Delete("/consumers/g/owners", 0),
            Delete("/consumers/g/ids", 0),
        ],
        ids=str,
    )
    def test_a_groups_mode_offsets_and_leftovers_need_the_fence_only(self, operation: Operation) -> None:
        with ZooKeeper(ZooKeeperSettings("127.0.0.1:1", connect_timeout=0.1)) as client:
            with pytest.raises(Forbidden, match="Z04"):
                client.commit([operation])
            with pytest.raises(TimedOut):  # allowed, and sent, but no server is there
                client.commit([operation], holding=Held())

    def test_one_forbidden_operation_forbids_the_transaction(self) -> None:
        with ZooKeeper(ZooKeeperSettings("127.0.0.1:1")) as client, pytest.raises(Forbidden):
            client.commit([Create("/_kmigrate"), Delete("/brokers", 0)], holding=Held())


class _Transaction:
    """kazoo's, that notes what is asked for."""

    def __init__(self, asked: list[tuple[Any, ...]]) -> None:
        self.asked = asked

    def __getattr__(self, name: str) -> Any:
        return lambda *given: self.asked.append((name, *given))


class TestTransaction:
    """What is sent with a write, and what each answer means; `TestTransactions` of test_fence.py has a real server's."""

    @pytest.fixture
    def asked(self) -> list[tuple[Any, ...]]:
        return []

    @pytest.fixture
    def client(self, asked: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch) -> ZooKeeper:
        zookeeper = ZooKeeper(ZooKeeperSettings("zk:2181"))
        monkeypatch.setattr(zookeeper._session, "client", lambda: SimpleNamespace(transaction=lambda: _Transaction(asked)))
        return zookeeper

    def answer(self, client: ZooKeeper, monkeypatch: pytest.MonkeyPatch, *results: object) -> None:
        monkeypatch.setattr(client._session, "wait_for_result", lambda *_: list(results))

    def test_the_fence_is_checked_first(
        self, client: ZooKeeper, asked: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.answer(client, monkeypatch, True, None)
        client.commit([Delete("/migration", 3)], Held())
        assert asked == [("check", Held.path, Held.token), ("delete", "/migration", 3), ("commit_async",)]

    @pytest.mark.parametrize(
        ("results", "error", "text"),
        [
            ((kazoo.exceptions.BadVersionError(), kazoo.exceptions.RuntimeInconsistency()), Fenced, "taken the cluster over"),
            (
                (kazoo.exceptions.RolledBackError(), kazoo.exceptions.BadVersionError()),
                Changed,
                "/migration, nothing was changed",
            ),
            ((kazoo.exceptions.RolledBackError(), kazoo.exceptions.NoAuthError()), AuthenticationFailed, "/migration"),
        ],
    )
    def test_why_nothing_was_written(
        self, client: ZooKeeper, monkeypatch: pytest.MonkeyPatch, results: tuple[object, ...], error: type[Exception], text: str
    ) -> None:
        self.answer(client, monkeypatch, *results)
        with pytest.raises(error, match=text):
            client.commit([Delete("/migration", 3)], Held())

    @pytest.mark.parametrize(
        ("root", "znode", "text"),
        [
            (None, (b'{"version":"1","id":"c"}', None), "the chroot does not exist"),
            ((b"", None), None, "/cluster/id does not exist"),
            ((b"", None), (b"{}", None), r"/cluster/id is '\{\}'"),
        ],
    )
    def test_a_tree_without_a_cluster_is_no_cluster(self, client: ZooKeeper, root: object, znode: object, text: str) -> None:
        with pytest.raises(WrongCluster, match=rf"Z01.*{text}"):
            client._require_cluster_id(root, znode)


@pytest.mark.parametrize("chroot", ["", "/kafka", "/kafka/system"])
@pytest.mark.parametrize("path", ["/", "/a", "/a/b.c/.d", "/a/.b", "//a", "/a//b", "/a/", "a/b"])
def test_a_path_below_the_chroot_is_as_kazoo_has_it(chroot: str, path: str) -> None:
    assert absolute_path(chroot, path) == _prefix_root(chroot, path)


def test_only_an_absent_znode_reads_as_none() -> None:
    assert none_if_absent(kazoo.exceptions.NoNodeError()) is None
    assert none_if_absent((b"", None)) == (b"", None)
    with pytest.raises(kazoo.exceptions.NoAuthError):
        none_if_absent(kazoo.exceptions.NoAuthError())


def test_a_child_without_a_name_is_no_answer() -> None:
    answer = multiheader_struct.pack(ReadKind.CHILDREN, False, 0) + int_struct.pack(1) + int_struct.pack(-1)
    with pytest.raises(ValueError, match="a child without a name"):
        MultiRead([ZnodeRead(ReadKind.CHILDREN, "/")]).deserialize(answer, 0)


class TestSharedEnsemble:
    TREE: ClassVar = {"/": ["brokers", "hbase", "migration"], "/brokers": ["ids"], "/brokers/ids": [], "/migration": []}

    @pytest.mark.parametrize(
        ("chroot", "expected"),
        [
            ("", ["/brokers", "/migration", "/brokers/ids"]),
            ("/kafka", ["/", "/brokers", "/hbase", "/migration", "/brokers/ids"]),
        ],
    )
    def test_a_backup_without_a_chroot_reads_no_other_applications_znodes(self, chroot: str, expected: list[str]) -> None:
        seen: list[str] = []

        def stream(_what: str, kind: ReadKind, paths: Iterable[str]) -> Iterator[tuple[str, Any]]:
            for path in paths:
                seen.append(path)
                yield path, (b"", None) if kind is ReadKind.DATA else self.TREE.get(path, [])

        client = ZooKeeper(ZooKeeperSettings("h:2181", chroot))
        client._session = SimpleNamespace(read=lambda _, *__: [self.TREE["/"]], stream=stream)  # type: ignore[assignment]
        assert [path for path, _ in client.tree()] == expected
        assert ("/hbase" in seen) is bool(chroot)


class TestPartitionsAtRegistration:
    ZXIDS: ClassVar = {"ids/1": 50, "ids/2": 70} | {f"topics/t/partitions/{n}": 30 if n < 4 else 60 + n for n in range(6)}

    @pytest.mark.parametrize(("broker", "count"), [(1, 4), (2, 6), (3, None)])
    def test_partitions_that_are_newer_than_a_broker_did_not_exist_when_it_registered(
        self, broker: int, count: int | None
    ) -> None:
        def stream(_what: str, kind: ReadKind, paths: Iterable[str]) -> Iterator[tuple[str, Any]]:
            assert kind is ReadKind.DATA
            known = ((path, self.ZXIDS.get(path.removeprefix("/brokers/"))) for path in paths)
            yield from ((path, (b"", SimpleNamespace(czxid=zxid, mzxid=99))) for path, zxid in known if zxid)

        client = ZooKeeper(ZooKeeperSettings("h:2181"))
        names = [str(number) for number in range(6)]
        client._session = SimpleNamespace(read=lambda _, *__: [names], stream=stream)  # type: ignore[assignment]
        assert client.partitions_at_registration("t", broker) == count


class TestNoServer:
    @pytest.mark.slow
    def test_no_listener(self) -> None:
        with refusing_port() as port:
            settings = ZooKeeperSettings(f"127.0.0.1:{port}", connect_timeout=3.0)
            with ZooKeeper(settings) as client, pytest.raises(TimedOut, match="refused"):
                client.view()

    def test_a_server_that_says_nothing_costs_the_timeout_only(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as unresponsive:
            settings = ZooKeeperSettings(f"127.0.0.1:{unresponsive.getsockname()[1]}", connect_timeout=0.3)
            client = ZooKeeper(settings)
            began = time.monotonic()
            with pytest.raises(TimedOut):
                client.view()
            assert time.monotonic() - began < 10.0, "kazoo alone would try for ever"
        client.close()

    def test_two_threads_ask_before_kazoos_own_thread_connects(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A client that has not begun calls itself CLOSED, as one that has given up."""
        connect, asked, both = ConnectionHandler._connect_loop, threading.Event(), threading.Event()

        def late(handler: ConnectionHandler, retry: object) -> object:
            asked.set()
            both.wait(20)
            return connect(handler, retry)

        monkeypatch.setattr(ConnectionHandler, "_connect_loop", late)
        with socket.create_server(("127.0.0.1", 0)) as unresponsive, ThreadPoolExecutor(2) as pool:
            settings = ZooKeeperSettings(f"127.0.0.1:{unresponsive.getsockname()[1]}", connect_timeout=1.0)
            with ZooKeeper(settings) as zookeeper:
                first = pool.submit(zookeeper.children, "/brokers/ids")
                assert asked.wait(20)
                second = pool.submit(zookeeper.children, "/brokers/ids")
                assert {type(future.exception()) for future in (first, second)} == {TimedOut}
                both.set()


@pytest.mark.cluster
class TestRealTree:
    def test_a_chroot_that_is_not_there_is_refused_and_not_made(self, own_chroot: ZooKeeperSettings) -> None:
        wrong = ZooKeeperSettings(own_chroot.hosts, chroot="/no-such-chroot")
        with ZooKeeper(wrong) as client:
            for call in (client.view, client.cluster_id):
                with pytest.raises(WrongCluster) as refused:
                    call()
                assert [reason.code for reason in refused.value.reasons] == ["Z01"]
        with ZooKeeper(ZooKeeperSettings(own_chroot.hosts)) as root:
            assert "no-such-chroot" not in root.children("/")

    def test_a_chroot_without_a_cluster_is_refused(self, own_chroot: ZooKeeperSettings, kazoo_client: KazooClient) -> None:
        kazoo_client.ensure_path("/elsewhere")
        with (
            ZooKeeper(ZooKeeperSettings(own_chroot.hosts, chroot=f"{own_chroot.chroot}/elsewhere")) as client,
            pytest.raises(WrongCluster) as refused,
        ):
            client.view()
        assert [reason.code for reason in refused.value.reasons] == ["Z01"]

    def test_a_cluster_without_a_readable_id_is_refused(self, own_chroot: ZooKeeperSettings, kazoo_client: KazooClient) -> None:
        kazoo_client.set("/cluster/id", b"{}")
        with ZooKeeper(own_chroot) as client, pytest.raises(WrongCluster) as refused:
            client.view()
        assert [reason.code for reason in refused.value.reasons] == ["Z01"]

    def test_the_tree_of_a_migration(self, own_chroot: ZooKeeperSettings, kazoo_client: KazooClient) -> None:
        migration = {
            "version": 0,
            "kraft_controller_id": 3000,
            "kraft_controller_epoch": 4,
            "kraft_metadata_offset": 9,
            "kraft_metadata_epoch": 4,
        }
        kazoo_client.create("/migration", json.dumps(migration).encode())
        kazoo_client.create("/brokers/ids/10", b"{}", ephemeral=True, makepath=True)
        kazoo_client.create("/brokers/ids/9", b"{}", ephemeral=True)
        kazoo_client.create("/admin/delete_topics/gone", makepath=True)
        kazoo_client.create("/admin/reassign_partitions", b"{}")
        kazoo_client.create("/consumers/alive/ids/member", makepath=True)
        kazoo_client.create("/consumers/alive/ids/old", makepath=True)
        kazoo_client.create("/consumers/alive/migration/ids/member", makepath=True)
        kazoo_client.create("/consumers/left/ids", makepath=True)
        kazoo_client.create("/consumers/never", makepath=True)
        with ZooKeeper(own_chroot) as client:
            view = client.view(groups=True)
        assert view.cluster_id == "cluster-1"
        assert view.broker_ids == (9, 10)
        assert view.controller == ZkController(0, -1, ephemeral=False)
        assert view.controller_epoch == 3
        assert view.migration == Migration(3000, 4, 9, 4, version=0)
        assert (view.pending_deletions, view.reassigning) == (("gone",), True)
        assert view.live_groups == ("alive",)
        assert view.live_members == {"alive": LiveMembers(old=1, migrating=1)}

    def test_how_long_ago_it_was_written(self, own_chroot: ZooKeeperSettings, kazoo_client: KazooClient) -> None:
        fields = ("kraft_controller_id", "kraft_controller_epoch", "kraft_metadata_offset", "kraft_metadata_epoch")
        began = time.monotonic()
        kazoo_client.create("/migration", json.dumps({"version": 0, **dict.fromkeys(fields, 1)}).encode())
        written = time.monotonic()

        def age(client: ZooKeeper) -> Age | None:
            migration = client.view().migration
            assert isinstance(migration, Migration)
            return migration.age

        with ZooKeeper(own_chroot) as client:
            assert age(client) is None, "only a write of ours tells ZooKeeper's time"
            client.commit([Create(ROOT)])
            client.commit([Set(ROOT, b"", 0)])
            asked = time.monotonic()
            seen = age(client)
            answered = time.monotonic()
            assert seen is not None
            rounded = 0.002  # ZooKeeper's time is in whole milliseconds
            assert asked - written - rounded <= seen.most
            assert seen.least <= answered - began + rounded
            assert 0.0 <= seen.least <= seen.most < seen.least + answered - began

    def test_what_is_absent_and_what_is_broken(self, own_chroot: ZooKeeperSettings, kazoo_client: KazooClient) -> None:
        kazoo_client.delete("/controller")
        kazoo_client.create("/migration", b"")
        with ZooKeeper(own_chroot) as client:
            view = client.view()
        assert view.controller is None
        assert view.migration == Malformed("/migration", "")
        assert (view.broker_ids, dict(view.topic_versions), view.rolled_back) == ((), {}, {})

    def test_our_own_note_is_part_of_a_view(self, own_chroot: ZooKeeperSettings) -> None:
        with ZooKeeper(own_chroot) as client:
            client.commit([Create(ROOT), Create(ROLLED_BACK, b'{"0": "zookeeper"}'), Create(REGISTERED, b"[0, 2]")])
            client.commit([Create(COUNTS, b'{"__consumer_offsets": 50}')])
            view = client.view()
            assert (view.rolled_back, view.registered) == ({0: BrokerMode.ZOOKEEPER}, {0, 2})
            assert view.partition_counts == {"__consumer_offsets": 50}
            client.commit([Set(REGISTERED, b"[true]", 0)])
            with pytest.raises(Failed, match="such as"):
                client.view()

    def test_topics_with_states_and_overrides(self, own_chroot: ZooKeeperSettings, kazoo_client: KazooClient) -> None:
        topic = {"version": 3, "topic_id": "id", "partitions": {"0": [1, 2], "1": [2, 1]}}
        kazoo_client.create("/brokers/topics/t", json.dumps(topic).encode(), makepath=True)
        kazoo_client.create("/brokers/topics/t/partitions/0/state", b'{"leader":1,"isr":[1],"controller_epoch":7}', makepath=True)
        kazoo_client.create("/config/topics/t", b'{"version":1,"config":{"retention.ms":"7"}}', makepath=True)
        with ZooKeeper(own_chroot) as client:
            seen = client.topics()["t"]
            assert client.state_epoch() == 7, "the highest; a partition without a state has none"
        assert seen.partitions == {0: PartitionMetadata((1, 2), 1, (1,)), 1: PartitionMetadata((2, 1), -1)}
        assert [seen.partitions[index].controller_epoch for index in (0, 1)] == [7, -1]
        assert (seen.topic_id, seen.configs) == ("id", {"retention.ms": "7"})

    def test_a_broken_topic_names_its_znode(self, own_chroot: ZooKeeperSettings, kazoo_client: KazooClient) -> None:
        kazoo_client.create("/brokers/topics/t", b"?", makepath=True)
        with ZooKeeper(own_chroot) as client, pytest.raises(Failed, match="/brokers/topics/t"):
            client.topics()

    def test_more_topics_than_fit_into_one_request(self, own_chroot: ZooKeeperSettings, kazoo_client: KazooClient) -> None:
        kazoo_client.ensure_path("/brokers/topics")
        data = b'{"partitions":{"0":[1]},"topic_id":"x"}'
        for created in [kazoo_client.create_async(f"/brokers/topics/t{number}", data) for number in range(350)]:
            created.get(timeout=10)
        with ZooKeeper(own_chroot) as client:
            found = client.topics()
        assert sorted(found) == sorted(f"t{number}" for number in range(350))
        assert {topic.partitions[0].leader for topic in found.values()} == {-1}

    def test_the_whole_tree_for_a_backup(self, own_chroot: ZooKeeperSettings, kazoo_client: KazooClient) -> None:
        kazoo_client.create("/a/b/c", b"7", makepath=True)
        with ZooKeeper(own_chroot) as client:
            tree = dict(client.tree())
        assert tree["/a/b/c"] == b"7"
        assert set(tree) == {"/", "/a", "/a/b", "/a/b/c", "/cluster", "/cluster/id", "/controller", "/controller_epoch"}

    def test_what_preflight_reads_beside_a_view(self, own_chroot: ZooKeeperSettings, kazoo_client: KazooClient) -> None:
        rule = b'{"version":1,"acls":[{"principal":"User:a","permissionType":"Allow","operation":"Read","host":"*"}]}'
        for path, data in {
            "/brokers/ids/7": b'{"version":5,"timestamp":"1000"}',
            "/brokers/seqid": b"",
            "/brokers/topics/t": b"{}",
            "/config/users/alice": b'{"version":1,"config":{"SCRAM-SHA-256":"salt=x"}}',
            "/config/brokers/7": b'{"version":1,"config":{"num.io.threads":"9"}}',
            "/kafka-acl-extended/prefixed/Topic/t": rule,
            "/config/changes/config_change_1": b'{"version":2,"entity_path":"brokers/7"}',
        }.items():
            kazoo_client.create(path, data, makepath=True)
        again = kazoo_client.set("/brokers/ids/7", b'{"version":5,"timestamp":"2000"}')  # its listeners changed
        with ZooKeeper(own_chroot) as client:
            tree = client.read_tree()
        assert tree.registrations == {7: BrokerRegistration(2.0, again.mtime / 1000)}
        assert (tree.scram_users, tree.broker_settings, tree.has_feature) == (("alice",), {"7": ("num.io.threads",)}, False)
        assert tree.acls == (ZkAcl("Topic", "t", "PREFIXED", "User:a", "Read", "Allow"),)
        assert [what for what, _ in tree.changed] == ["settings of brokers/7"]
        assert (tree.tokens, tree.malformed, tree.guarded, tree.cmak) == (0, (), (), False)
        assert tree.latest >= again.mtime / 1000

    def test_the_same_answers_one_by_one(self, own_chroot: ZooKeeperSettings, kazoo_client: KazooClient) -> None:
        kazoo_client.create("/brokers/topics/t", b'{"partitions":{"0":[1]},"topic_id":"x"}', makepath=True)
        with ZooKeeper(own_chroot) as many, ZooKeeper(own_chroot) as single:
            single._session._many = False  # as after an answer of a server before 3.6
            assert single.view() == many.view()
            assert single.topics() == many.topics()
            assert list(single.tree()) == list(many.tree())

    def test_our_own_znodes_are_closed_to_others_where_we_have_an_identity(self, own_chroot: ZooKeeperSettings) -> None:
        with ZooKeeper(replace(own_chroot, digest="kmigrate:secret")) as ours, ZooKeeper(own_chroot) as stranger:
            ours.commit([Create("/_kmigrate", b"1")])
            assert ours.read("/_kmigrate") == (b"1", 0)
            for call in (lambda: stranger.read("/_kmigrate"), lambda: stranger.commit([Set("/_kmigrate", b"2", 0)])):
                with pytest.raises(AuthenticationFailed):
                    call()
            ours.commit([Create(REGISTERED, b"[1]"), Create(ROLLED_BACK, b"{}")])
            assert stranger.view().registered == {1}, "part of every view"
            with pytest.raises(AuthenticationFailed):
                stranger.commit([Set(REGISTERED, b"[]", 0)])
            ours.commit([Delete(REGISTERED, 0), Delete(ROLLED_BACK, 0), Delete("/_kmigrate", 0)])

    def test_a_broken_session_is_replaced(self, own_chroot: ZooKeeperSettings) -> None:
        with ZooKeeper(own_chroot) as client:
            client.view()
            client.close()
            assert client.view().cluster_id == "cluster-1"

    def test_a_znode_that_changed_since_the_look(self, own_chroot: ZooKeeperSettings) -> None:
        with ZooKeeper(own_chroot) as client:
            client.commit([Create("/_kmigrate"), Create("/_kmigrate/x", b"1")])
            assert client.commit([Set("/_kmigrate/x", b"2", 0)]) == [1]
            for late in (Set("/_kmigrate/x", b"3", 0), Delete("/_kmigrate/x", 0), Create("/_kmigrate/x")):
                with pytest.raises(Unavailable):
                    client.commit([late])
            assert client.read("/_kmigrate/x") == (b"2", 1)
