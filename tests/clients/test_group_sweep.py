"""A sweep over the consumer groups with members: few requests to each broker, and what is not answered is unknown, never idle."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest
from fake_groups import DESCRIBE_GROUPS, FIND_COORDINATOR, METADATA, NEW, OFFSET_FETCH, UNKNOWN_TOPIC, Broker, group, member
from fake_node import CLOSE
from kafka.protocol.admin import ListGroupsResponse
from kafka.protocol.consumer import ListOffsetsResponse
from kafka.protocol.metadata import MetadataResponse

from airflow_provider_kmigrate.clients.group_reads import log_offsets, sweep
from airflow_provider_kmigrate.clients.wire import EARLIEST
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.member.assignors import KafkaMember
from airflow_provider_kmigrate.core.member.group_seen import GroupPosition, GroupSweep, Lag
from airflow_provider_kmigrate.exceptions import Unavailable

LIST_OFFSETS, LIST_GROUPS, NOT_LEADER = 2, 16, 6
TIMEOUT = 30.0  # no test waits for it
Start = Callable[..., "Sweepable"]


class Sweepable(Broker):
    """`ends`: the log ends of t's partitions that it leads; `listed`: other groups that it lists; `code`: ListGroups' error."""

    def __init__(
        self, groups: Mapping[str, tuple[Any, Mapping[int, int]]], ends: Mapping[int, int] | None = None, **named: Any
    ) -> None:
        self.ends, self.code, self.listed = dict(ends or {}), named.pop("code", 0), tuple(named.pop("listed", ()))
        self.led = named.pop("led", True)
        super().__init__(groups, versions={**NEW, LIST_OFFSETS: (1, 8)}, **named)
        self.node.handlers |= {LIST_GROUPS: self._list, LIST_OFFSETS: self._ends, METADATA: self._places}

    def _list(self, _request: Any) -> Any:
        one = ListGroupsResponse.ListedGroup
        rows = [(name, found.group_state) for name, (found, _) in self.groups.items()] + [
            (name, "Stable") for name in self.listed
        ]
        listed = [one(group_id=name, protocol_type="consumer", group_state=state) for name, state in rows]
        return ListGroupsResponse(throttle_time_ms=0, error_code=self.code, groups=listed)

    def _ends(self, request: Any) -> Any:
        kinds = ListOffsetsResponse.ListOffsetsTopicResponse
        part = kinds.ListOffsetsPartitionResponse
        topics = [
            kinds(name=topic.name, partitions=[self._end(part, each.partition_index) for each in topic.partitions])
            for topic in request.topics
        ]
        return ListOffsetsResponse(throttle_time_ms=0, topics=topics)

    def _end(self, kind: Any, index: int) -> Any:
        code = 0 if index in self.ends else NOT_LEADER
        return kind(partition_index=index, error_code=code, timestamp=-1, offset=self.ends.get(index, -1), leader_epoch=0)

    def _places(self, request: Any) -> Any:
        whole = self._metadata(request)
        kind = MetadataResponse.MetadataResponseTopic
        part = kind.MetadataResponsePartition
        leaders = {index: at for at, peer in enumerate(self.peers) for index in peer.ends}  # type: ignore[attr-defined]
        leaders = leaders if self.led else dict.fromkeys(leaders, -1)
        whole.topics = [
            kind(
                error_code=0 if topic.name == "t" else UNKNOWN_TOPIC,
                name=topic.name,
                is_internal=False,
                partitions=[
                    part(
                        error_code=0, partition_index=index, leader_id=leader, replica_nodes=[], isr_nodes=[], offline_replicas=[]
                    )
                    for index, leader in leaders.items()
                    if topic.name == "t"
                ],
            )
            for topic in request.topics or ()
        ]
        return whole


@pytest.fixture
def start() -> Iterator[Start]:
    with ExitStack() as stack:

        def one(*given: Any, **named: Any) -> Sweepable:
            broker = Sweepable(*given, **named)
            stack.enter_context(broker.node)
            return broker

        yield one


def at(**places: int) -> GroupPosition:
    return GroupPosition({TopicPartition("t", int(name[1:])): Lag(*divmod(both, 1_000)) for name, both in places.items()})


def test_groups_with_members_their_commits_and_ends(start: Start) -> None:
    known = {
        "g": (group("g", member(1, 0)), {0: 3, 1: 7}),
        "left": (group("left", state="Empty"), {0: 1}),
        "new": (group("new"), {}),
    }
    broker = start(known, {0: 9, 1: 7})
    found = sweep(broker.properties, TIMEOUT, [0])
    assert found == GroupSweep({"g": at(p0=3_009, p1=7_007), "new": GroupPosition()})
    assert broker.asked(FIND_COORDINATOR) == broker.asked(DESCRIBE_GROUPS) == 0
    assert broker.asked(OFFSET_FETCH) == broker.asked(LIST_OFFSETS) == 1
    assert [request.isolation_level for request in broker.node.seen if request.API_KEY == LIST_OFFSETS] == [1]


def test_the_first_offsets_of_logs_that_exist_and_have_a_leader(start: Start) -> None:
    broker = start({}, {0: 9})
    places = [TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("gone", 0)]
    assert log_offsets(broker.properties, places, EARLIEST) == {places[0]: 9}
    asked = broker.node.seen[-1]
    assert (asked.isolation_level, [each.timestamp for topic in asked.topics for each in topic.partitions]) == (0, [EARLIEST])


def test_members_of_the_named_groups_only(start: Start) -> None:
    broker = start({"g": (group("g", member(1, 0)), {0: 3}), "h": (group("h", member(2, 0)), {0: 3})}, {0: 9})
    found = sweep(broker.properties, TIMEOUT, [0], ["g", "gone"])
    assert found.members == {"g": (KafkaMember("m-1", "app", frozenset({TopicPartition("t", 0)}), "/h"),)}


def test_where_named_groups_without_members_stand(start: Start) -> None:
    known = {
        "g": (group("g", member(1, 0)), {0: 3}),
        "left": (group("left", state="Empty"), {0: 1}),
        "other": (group("other", state="Empty"), {0: 2}),
    }
    broker = start(known, {0: 9})
    found = sweep(broker.properties, TIMEOUT, [0], ["g", "left", "gone"])
    assert found.left == {"left": at(p0=1_009)}
    assert found.groups.keys() == {"g"}
    assert sweep(broker.properties, TIMEOUT, [0]).left == {}


def test_a_group_without_members_whose_log_end_is_not_read_stands_nowhere(start: Start) -> None:
    broker = start({"left": (group("left", state="Empty"), {0: 1})}, {}, led=False)
    assert sweep(broker.properties, TIMEOUT, [0], ["left"]) == GroupSweep()


def test_an_old_empty_copy_of_a_group_with_members_does_not_count(start: Start) -> None:
    one, other = start({"a": (group("a", state="Empty"), {0: 1})}, {0: 5}), start({"a": (group("a", member(1, 0)), {0: 3})})
    for peers in ((one, other), (other, one)):
        one.peers = other.peers = peers
        assert sweep(one.properties, TIMEOUT, [0, 1], ["a"]).left == {}


def test_states_of_groups_that_are_not_stable(start: Start) -> None:
    states = {name: group(name, member(1, 0), state=name) for name in ("Stable", "PreparingRebalance", "CompletingRebalance")}
    broker = start({name: (found, {0: 3}) for name, found in states.items()}, {0: 9})
    rebalancing = {name: name for name in ("PreparingRebalance", "CompletingRebalance")}
    assert sweep(broker.properties, TIMEOUT, [0]).rebalancing == rebalancing


def test_each_broker_is_asked_for_its_groups_and_each_leader_for_its_ends(start: Start) -> None:
    one, other = start({"a": (group("a"), {0: 1, 1: 2})}, {0: 5}), start({"b": (group("b"), {1: 2})}, {1: 6})
    one.peers = other.peers = (one, other)
    assert sweep(one.properties, TIMEOUT, [0, 1]) == GroupSweep({"a": at(p0=1_005, p1=2_006), "b": at(p1=2_006)})


def test_an_old_copy_of_a_group_that_moved_does_not_hide_the_answer_of_its_coordinator(start: Start) -> None:
    one, other = start({}, {0: 5}, listed=("a",), codes={"a": 16}), start({"a": (group("a"), {0: 1})})
    for peers in ((one, other), (other, one)):
        one.peers = other.peers = peers
        assert sweep(one.properties, TIMEOUT, [0, 1]) == GroupSweep({"a": at(p0=1_005)})


@pytest.mark.parametrize(
    ("named", "groups", "unread", "unresponsive"),
    [
        ({"codes": {"a": 30}, "listed": ("a",)}, {"g"}, {"a"}, ()),
        ({"code": 14}, set(), set(), (0,)),
        ({"led": False}, set(), {"g"}, ()),
    ],
    ids=["not allowed", "still loading", "no leader"],
)
def test_what_is_not_answered_is_unread(
    start: Start, named: dict[str, Any], groups: set[str], unread: set[str], unresponsive: tuple[int, ...]
) -> None:
    found = sweep(start({"g": (group("g"), {0: 1})}, {0: 5}, **named).properties, TIMEOUT, [0])
    assert (found.groups.keys(), found.unread, found.unresponsive) == (groups, unread, unresponsive)


def test_an_unresponsive_broker_is_named_and_so_is_an_unlisted_one(start: Start) -> None:
    one, other = start({"a": (group("a"), {})}), start({})
    one.peers = (one, other)
    other.node.handlers[LIST_GROUPS] = CLOSE
    assert sweep(one.properties, TIMEOUT, [0, 1, 7]) == GroupSweep({"a": GroupPosition()}, unresponsive=(1, 7))


def test_no_broker_at_all_is_raised() -> None:
    with pytest.raises(Unavailable):
        sweep({"bootstrap.servers": "127.0.0.1:1"}, 0.5, [0])


def test_what_is_left_over_of_a_deleted_topic_does_not_count(start: Start) -> None:
    broker = start({"g": (group("g"), {0: 1})}, {0: 5})
    known = broker.node.handlers[METADATA]

    def deleted(request: Any) -> Any:
        for topic in request.topics or ():
            topic.name = "gone"
        found = known(request)
        for topic in found.topics:
            topic.name = "t"
        return found

    broker.node.handlers[METADATA] = deleted
    assert sweep(broker.properties, TIMEOUT, [0]) == GroupSweep({"g": GroupPosition()})


def test_a_topic_that_may_not_be_described_leaves_its_groups_unread(start: Start) -> None:
    broker = start({"g": (group("g"), {0: 1})}, {0: 5})
    known = broker.node.handlers[METADATA]

    def refused(request: Any) -> Any:
        found = known(request)
        for topic in found.topics:
            topic.error_code, topic.partitions = 29, []
        return found

    broker.node.handlers[METADATA] = refused
    assert sweep(broker.properties, TIMEOUT, [0]) == GroupSweep(unread=frozenset({"g"}))
