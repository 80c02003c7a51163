"""What one broker and ZooKeeper's servers tell preflight, from nodes of our own; the real ones are asked in tests/system."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.admin import (
    DescribeConfigsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

from airflow_provider_kmigrate.clients import zookeeper
from airflow_provider_kmigrate.clients.settings import ZooKeeperSettings
from airflow_provider_kmigrate.clients.wire import (
    Wire,
    describe_log_dirs,
    list_reassignments,
    read_effective_config,
    read_startup_config,
)
from airflow_provider_kmigrate.core.cluster_state.model import (
    BrokerRegistration,
    LogDir,
    Malformed,
    Taken,
    ZkAcl,
    ZooKeeperServer,
)
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, HostSpec, NodeRole, NodeSpec
from airflow_provider_kmigrate.core.cluster_state.znode_formats import CONFIG, TOKEN
from airflow_provider_kmigrate.exceptions import Failed, Unavailable
from airflow_provider_kmigrate.observe.stored import one_machine, releases_of
from tests.clients import fake_node
from tests.clients.authority import VALID_DAYS, Authority
from tests.clients.fake_node import ZOOKEEPER, FakeNode, api_versions
from tests.clients.group_tree import GroupTree

SERVED = {**ZOOKEEPER, 35: (0, 4), 46: (0, 0)}
NOT_CONTROLLER, STORAGE_ERROR = 41, 56


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNode]:
    more = {35: DescribeLogDirsRequest, 46: ListPartitionReassignmentsRequest}
    monkeypatch.setattr(fake_node, "REQUESTS", {**fake_node.REQUESTS, **more})
    with FakeNode({18: api_versions(SERVED)}) as found:
        yield found


@pytest.fixture
def wire(node: FakeNode) -> Iterator[Wire]:
    with Wire("127.0.0.1", node.port) as found:
        yield found


def configs(*synonyms: tuple[str, int]) -> Any:
    result = DescribeConfigsResponse.DescribeConfigsResult
    entry = result.DescribeConfigsResourceResult
    listed = [
        entry.DescribeConfigsSynonym(name="inter.broker.protocol.version", value=value, source=source)
        for value, source in synonyms
    ]
    own = entry(
        name="inter.broker.protocol.version",
        value="3.8",
        read_only=True,
        config_source=4,
        is_sensitive=False,
        synonyms=listed,
        config_type=2,
        documentation=None,
    )
    named = result(error_code=0, error_message=None, resource_type=4, resource_name="1", configs=[own])
    return DescribeConfigsResponse(throttle_time_ms=0, results=[named])


class TestBroker:
    def test_what_is_in_force(self, node: FakeNode, wire: Wire) -> None:
        node.handlers[32] = configs(("3.7", 1), ("3.8", 4))
        assert read_effective_config(wire, 1) == {"inter.broker.protocol.version": "3.8"}
        asked = node.seen[-1].resources[0]
        assert (asked.resource_type, asked.resource_name, asked.configuration_keys) == (4, "1", None)

    def test_what_it_read_when_it_started(self, node: FakeNode, wire: Wire) -> None:
        node.handlers[32] = configs(("3.7", 1), ("3.8", 4), ("3.9-IV0", 5))
        key = "inter.broker.protocol.version"
        assert read_startup_config(wire, 1) == Taken({key: "3.8"}, {key: "3.9-IV0"})
        assert node.seen[-1].include_synonyms

    def test_a_broker_that_tells_nothing_of_its_file(self, node: FakeNode, wire: Wire) -> None:
        node.handlers[32] = configs(("3.9-IV0", 5))
        with pytest.raises(Failed, match="nothing of its own file"):
            read_startup_config(wire, 1)

    def test_directories_and_what_is_wrong_with_them(self, node: FakeNode, wire: Wire) -> None:
        result = DescribeLogDirsResponse.DescribeLogDirsResult
        reported = (("/a", 0, 7), ("/b", STORAGE_ERROR, -1))
        rows = [
            result(error_code=code, log_dir=path, topics=[], total_bytes=9, usable_bytes=room) for path, code, room in reported
        ]
        node.handlers[35] = DescribeLogDirsResponse(throttle_time_ms=0, error_code=0, results=rows)
        assert describe_log_dirs(wire) == (LogDir("/a", "", 7), LogDir("/b", "KAFKA_STORAGE_ERROR"))

    def test_no_directory_at_all_is_a_right_that_we_lack(self, node: FakeNode, wire: Wire) -> None:
        node.handlers[35] = DescribeLogDirsResponse(throttle_time_ms=0, error_code=0, results=[])
        with pytest.raises(Failed, match="DESCRIBE"):
            describe_log_dirs(wire)

    def test_reassignments(self, node: FakeNode, wire: Wire) -> None:
        topic = ListPartitionReassignmentsResponse.OngoingTopicReassignment
        moving = topic.OngoingPartitionReassignment(
            partition_index=3, replicas=[0, 1], adding_replicas=[1], removing_replicas=[0]
        )
        answer = ListPartitionReassignmentsResponse(
            throttle_time_ms=0, error_code=0, error_message=None, topics=[topic(name="orders", partitions=[moving])]
        )
        node.handlers[46] = answer
        assert list_reassignments(wire) == ("orders-3",)

    def test_a_broker_that_is_not_the_controller_does_not_know_the_reassignments(self, node: FakeNode, wire: Wire) -> None:
        node.handlers[46] = ListPartitionReassignmentsResponse(
            throttle_time_ms=0, error_code=NOT_CONTROLLER, error_message=None, topics=[]
        )
        with pytest.raises(Unavailable, match="NOT_CONTROLLER"):
            list_reassignments(wire)


@contextlib.contextmanager
def server(answer: bytes, context: ssl.SSLContext | None = None) -> Iterator[str]:
    """Answers the first connection with some bytes, by TLS with a `context`; its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            raw, _ = listener.accept()
            with context.wrap_socket(raw, server_side=True) if context else raw as peer:
                peer.recv(16)
                peer.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join(5)


class TestServers:
    @pytest.mark.parametrize(
        ("answer", "version"),
        [
            (b"Zookeeper version: 3.8.4-9316c2a7a97e1666d8f4593f34dd6fc36ecc436c, built on 2024\nMode: leader\n", "3.8.4"),
            (b"Zookeeper version: 3.4.14--1, built on 2019\n", "3.4.14"),
            (b"srvr is not executed because it is not in the whitelist.\n", None),
            (b"", None),
            (bytes(range(128, 256)), None),
        ],
    )
    def test_what_a_server_says_of_itself(self, answer: bytes, version: str | None) -> None:
        with server(answer) as address:
            mode = "leader" if b"Mode: leader" in answer else None
            expected = ZooKeeperServer(address, version, mode)
            assert zookeeper.ZooKeeper(ZooKeeperSettings(address)).servers() == (expected,)

    @pytest.mark.parametrize(
        ("answer", "clients"),
        [
            (
                " /10.0.0.1:5[1](queued=0,recved=4,sid=0x1000a,lop=PING,est=1)\n /10.0.0.2:6[0](queued=0,sent=0)\n",
                {0x1000A: "10.0.0.1:5"},
            ),
            (" /0:0:0:0:0:0:0:1:7[1](queued=0,sid=0xffffffffffffffff,lop=GETD)\n", {2**64 - 1: "0:0:0:0:0:0:0:1:7"}),
            ("cons is not executed because it is not in the whitelist.\n", {}),
            (" /\x1b[2J:5[1](sid=0x1)\n /" + "a" * 5000 + "[1](sid=0x2)\n /x[1](sid=0x" + "f" * 40 + ")\n", {}),
            ("", {}),
        ],
    )
    def test_whose_session_comes_from_where(self, answer: str, clients: dict[int, str]) -> None:
        assert zookeeper.parse_connections(answer) == clients

    @pytest.mark.parametrize("days", [20, 2 * VALID_DAYS])
    def test_a_servers_certificate_ends_with_the_first_of_its_chain(self, tmp_path: Path, days: int) -> None:
        authority = Authority(tmp_path)
        context = authority.server(files=authority.issue_by_intermediate("zk", days))
        with server(b"Zookeeper version: 3.8.4-x", context) as address:
            (found,) = zookeeper.ZooKeeper(ZooKeeperSettings(address, use_tls=True, ca_file=authority.ca)).servers()
        assert found.version == "3.8.4"
        assert abs(found.certificate_end - time.time() - 86_400 * min(days, VALID_DAYS)) < 600

    def test_an_absent_server_does_not_hide_the_others(self) -> None:
        with server(b"Zookeeper version: 3.8.4-x") as address:
            found = zookeeper.ZooKeeper(ZooKeeperSettings(f"127.0.0.1:1,{address}")).servers()
        assert [each.version for each in found] == [None, "3.8.4"]


def reads(**znodes: bytes) -> zookeeper._TreeReads:
    return zookeeper._TreeReads(GroupTree(znodes))  # type: ignore[arg-type]


class TestTree:
    def test_a_broken_znode_is_named_without_what_it_holds(self) -> None:
        found = reads(**{"/config/users/alice": b'{"version":1,"config":{"SCRAM-SHA-256":"stored_key=CANARY'})
        assert found.read_config_keys("/config/users") == {}
        assert found.malformed == [Malformed("/config/users/alice", "")]

    @pytest.mark.parametrize("folder", ["/config/clients", "/config/ips", "/delegation_token/tokens"])
    def test_a_znode_that_only_later_reads_would_refuse_is_named_too(self, folder: str) -> None:
        kind = TOKEN if folder.endswith("tokens") else CONFIG
        found = reads(
            **{f"{folder}/new": b'{"version":9,"secret":"CANARY"}', f"{folder}/odd": b'{"CANARY', f"{folder}/empty": b""}
        )
        found.note_unread_znodes(kind, folder)
        named, hidden = found.malformed
        assert named.path == f"{folder}/new"
        assert named.unknown_version
        assert named.content.startswith("version '9'")
        assert "CANARY" not in named.content
        assert hidden == Malformed(f"{folder}/odd", "")

    def test_a_broker_whose_registration_is_not_read_is_named(self) -> None:
        data = b'{"version":5,"timestamp":"1000","endpoints":[]}'
        found = reads(**{"/brokers/ids/0": data, "/brokers/ids/1": data.replace(b"5", b"6", 1), "/brokers/ids/2": b"{"})
        assert [*found.read_registrations()] == [0]
        assert [(each.path, each.unknown_version) for each in found.malformed] == [
            ("/brokers/ids/1", True),
            ("/brokers/ids/2", False),
        ]

    def test_rules_of_both_kinds(self) -> None:
        data = b'{"version":1,"acls":[{"principal":"User:a","permissionType":"Deny","operation":"All","host":"*"}]}'
        found = reads(**{"/kafka-acl/Topic/t": data, "/kafka-acl-extended/prefixed/Group/g": data})
        assert tuple(found.read_topic_acls()) == (
            ZkAcl("Topic", "t", "LITERAL", "User:a", "All", "Deny"),
            ZkAcl("Group", "g", "PREFIXED", "User:a", "All", "Deny"),
        )
        assert found.malformed == []

    @pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"acls":3}', b'{"acls":[{}]}', b'{"acls":[3]}', b"\xff"])
    def test_whatever_else_is_there(self, data: bytes) -> None:
        found = reads(**{"/kafka-acl/Topic/t": data})
        assert tuple(found.read_topic_acls()) == ()
        assert [each.path for each in found.malformed] == ["/kafka-acl/Topic/t"]

    def test_a_registration_that_was_written_again_has_the_time_of_the_last_write(self) -> None:
        """A broker whose listeners change writes its clock's time into the znode that it created when it started."""
        found = reads(**{"/brokers/ids/7": b'{"version":5,"timestamp":"9000"}', "/brokers/ids/8": b"{}", "/brokers/ids/x": b"{}"})
        assert found.read_registrations() == {7: BrokerRegistration(9.0, 99.0)}
        assert found.latest == 99.0


class TestOneMachine:
    HERE = NodeSpec(0, NodeRole.BROKER, "127.0.0.1", 9092, HostSpec("agent", "/p"))

    @pytest.mark.parametrize(
        ("address", "host", "one"),
        [
            ("127.0.0.1:2181", "127.0.0.1", True),
            ("localhost:2181", "localhost", True),
            ("[::1]:2181", "127.0.0.1", True),
            ("zk1:2181", "127.0.0.1", False),
            ("10.0.0.1:2181", "127.0.0.1", False),
            ("127.0.0.1:2181", "kafka0", False),
        ],
    )
    def test_a_cluster_is_on_one_machine_only_if_all_its_addresses_are_local(self, address: str, host: str, *, one: bool) -> None:
        node = replace(self.HERE, host=host)
        spec = ClusterSpec("c", "id", "zk", "kafka", (node,), ())
        assert one_machine(spec, [ZooKeeperServer(address)]) is one

    def test_without_zookeeper_addresses_it_is_not_one_machine(self) -> None:
        assert not one_machine(ClusterSpec("c", "id", "zk", "kafka", (self.HERE,), ()), [])


def test_a_release_is_the_default_of_the_protocol_version_and_not_its_value() -> None:
    key = "inter.broker.protocol.version"
    settings = {0: Taken({key: "3.8"}, {key: "3.9-IV0"}), 1: Taken({key: "3.8"}, {}), 2: None}
    assert releases_of(settings) == {0: "3.9-IV0", 1: None, 2: None}
