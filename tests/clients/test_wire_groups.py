"""A group described by its coordinator, over real TCP, with answers that a test chooses."""

from __future__ import annotations

from typing import Any

import pytest
from fake_node import CLOSE, FakeNode
from kafka.protocol.admin import DescribeGroupsResponse
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment
from kafka.protocol.metadata import FindCoordinatorResponse

from airflow_provider_kmigrate.clients.wire_groups import describe
from airflow_provider_kmigrate.core.assignors import KafkaMember
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.group_seen import KafkaGroup
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, Unavailable, Unreachable

FIND_COORDINATOR, DESCRIBE_GROUPS = 10, 15
GROUP = DescribeGroupsResponse.DescribedGroup


def member(number: int, *partitions: int) -> Any:
    topic = ConsumerProtocolAssignment.TopicPartition(topic="t", partitions=list(partitions))
    data = ConsumerProtocolAssignment(version=0, assigned_partitions=[topic], user_data=b"").encode() if partitions else b""
    return GROUP.DescribedGroupMember(
        member_id=f"m-{number}",
        client_id="app",
        client_host="/h",
        group_instance_id=None,
        member_metadata=b"",
        member_assignment=bytes(data),
    )


def described(*members: Any, code: int = 0, state: str = "Stable", kind: str = "consumer") -> DescribeGroupsResponse:
    one = GROUP(
        error_code=code,
        group_id="g",
        group_state=state,
        protocol_type=kind,
        protocol_data="range",
        members=list(members),
    )
    return DescribeGroupsResponse(throttle_time_ms=0, groups=[one])


def coordinated(node: FakeNode, code: int = 0) -> FindCoordinatorResponse:
    return FindCoordinatorResponse(
        throttle_time_ms=0, error_code=code, error_message=None, node_id=1, host="127.0.0.1", port=node.port
    )


def ask(answer: Any, code: int = 0, before: str = "") -> KafkaGroup:
    with FakeNode({DESCRIBE_GROUPS: answer}) as node:
        node.handlers[FIND_COORDINATOR] = coordinated(node, code)
        return describe({"bootstrap.servers": f"{before}127.0.0.1:{node.port}"}, "g", 2.0)


def test_members_and_what_each_holds() -> None:
    holds = frozenset({TopicPartition("t", 1), TopicPartition("t", 3)})
    members = (KafkaMember("m-1", "app", holds, "/h"), KafkaMember("m-2", "app", frozenset(), "/h"))
    assert ask(described(member(1, 1, 3), member(2))) == KafkaGroup("Stable", members, "range")


def test_what_is_no_consumers_is_not_read() -> None:
    found = ask(described(member(1, 1), kind="connect"))
    assert [one.partitions for one in found.members] == [frozenset()]


def test_the_next_broker_is_asked_where_one_does_not_tell() -> None:
    assert ask(described(state="Empty"), before="127.0.0.1:1,") == KafkaGroup("Empty", (), "range")


@pytest.mark.parametrize(
    ("answer", "code", "error"),
    [
        (described(code=16), 0, Unavailable),
        (described(code=30), 0, AuthenticationFailed),
        (CLOSE, 0, Unreachable),
        (described(), 15, Unavailable),
    ],
)
def test_what_is_no_answer_is_raised(answer: Any, code: int, error: type[Exception]) -> None:
    with pytest.raises(error):
        ask(answer, code)
