"""Groups described by their coordinators, and their commits, over real TCP, with answers that a test chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from fake_groups import (
    DESCRIBE_GROUPS,
    FIND_COORDINATOR,
    METADATA,
    NEW,
    OFFSET_FETCH,
    OLD,
    Broker,
    group,
    group_of_new_protocol,
    member,
)
from fake_node import CLOSE, HANG
from kafka.protocol.admin import DeleteGroupsResponse
from kafka.protocol.consumer.group import OffsetFetchResponse

from airflow_provider_kmigrate.clients import group_reads
from airflow_provider_kmigrate.clients.group_reads import GroupAnswer
from airflow_provider_kmigrate.clients.wire import Wire
from airflow_provider_kmigrate.clients.wire_groups import GroupsAt, commit, describe_group
from airflow_provider_kmigrate.core.cluster_state.model import FetchedOffset, HostedGroup
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.member.assignors import KafkaMember
from airflow_provider_kmigrate.core.member.group_seen import KafkaGroup
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, Failed, Fenced, Unavailable, Unreachable
from tests.kit.held import Held

Start = Callable[..., Broker]
DEAD = KafkaGroup("Dead")
EMPTY = KafkaGroup("Empty")
TIMEOUT = 30.0  # no test waits for it: what hangs has its own


messages = partial(group_reads.describe_groups, again=0.0)


@pytest.fixture
def start() -> Iterator[Start]:
    with ExitStack() as stack:

        def one(*given: Any, **named: Any) -> Broker:
            broker = Broker(*given, **named)
            stack.enter_context(broker.node)
            return broker

        yield one


def t(*partitions: int) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition("t", index) for index in partitions)


def test_members_and_what_each_holds(start: Start) -> None:
    broker = start({"g": (group("g", member(1, 1, 3), member(2)), {})})
    members = (KafkaMember("m-1", "app", t(1, 3), "/h"), KafkaMember("m-2", "app", t(), "/h"))
    assert describe_group(broker.properties, "g", TIMEOUT) == KafkaGroup("Stable", members)


def test_a_client_id_moves_no_cursor_and_forges_no_line(start: Start) -> None:
    hostile = member(1)
    hostile.client_id = "x\x1b[2J\x1b]0;owned\x07\nbilling: [K00] nothing speaks against it"
    hostile.member_id = f"{hostile.client_id}-1"
    (seen,) = describe_group(start({"g": (group("g", hostile), {})}).properties, "g", TIMEOUT).members
    assert seen.client_id == r"x\x1b[2J\x1b]0;owned\x07\nbilling: [K00] nothing speaks against it"
    assert seen.member_id == f"{seen.client_id}-1"


def test_what_is_no_consumers_is_not_read(start: Start) -> None:
    broker = start({"g": (group("g", member(1, 1), kind="connect"), {})})
    assert [one.partitions for one in describe_group(broker.properties, "g", TIMEOUT).members] == [frozenset()]


def test_the_next_broker_is_asked_where_one_does_not_tell(start: Start) -> None:
    broker = start({"g": (group("g", state="Empty"), {})})
    properties = {"bootstrap.servers": f"127.0.0.1:1,{broker.properties['bootstrap.servers']}"}
    assert describe_group(properties, "g", TIMEOUT) == EMPTY
    assert [one.group for one in messages(properties, TIMEOUT, ["g"])] == ["g"]


@pytest.mark.parametrize(
    ("found", "codes", "error"),
    [
        (group("g", code=16), {}, Unavailable),
        (group("g", code=30), {}, AuthenticationFailed),
        (group("g", member(1, data=b"\0\0\0\0\0\7")), {}, Failed),
        (None, {"g": 15}, Unavailable),
        (CLOSE, {}, Unreachable),
    ],
)
def test_what_is_no_answer_is_raised(start: Start, found: Any, codes: dict[str, int], error: type[Exception]) -> None:
    broker = start({} if found in (None, CLOSE) else {"g": (found, {})}, codes=codes)
    if found is CLOSE:
        broker.node.handlers[DESCRIBE_GROUPS] = CLOSE
    with pytest.raises(error):
        describe_group(broker.properties, "g", TIMEOUT)


@pytest.mark.parametrize("versions", [NEW, OLD])
def test_every_group_with_its_offsets(start: Start, versions: Any) -> None:
    """A partition without a commit tells -1."""
    known = {
        "b": (group("b", state="Empty"), {0: 7, 1: -1}),
        "a": (group("a", member(1, 1)), {}),
        "c": (group("c", kind="connect"), {}),
    }
    broker = start(known, versions=versions)
    one = KafkaGroup("Stable", (KafkaMember("m-1", "app", t(1), "/h"),))
    assert list(messages(broker.properties, TIMEOUT, ["b", "a"])) == [
        GroupAnswer("a", one, {}),
        GroupAnswer("b", EMPTY, {TopicPartition("t", 0): 7}),
    ]
    assert list(messages(broker.properties, TIMEOUT, {"b", "x"})) == [
        GroupAnswer("b", EMPTY, {TopicPartition("t", 0): 7}),
        GroupAnswer("x", DEAD, {}),
    ]


def test_a_group_of_kip_848(start: Start) -> None:
    """DescribeGroups calls it Dead."""
    broker = start({"n": (group_of_new_protocol("n"), {5: 1})})
    assert list(messages(broker.properties, TIMEOUT, ["n", "x"])) == [
        GroupAnswer(
            "n",
            KafkaGroup("Reconciling", (KafkaMember("m-1", "app", t(5), "/h"),)),
            {TopicPartition("t", 5): 1},
        ),
        GroupAnswer("x", DEAD, {}),
    ]


def test_each_group_is_asked_of_its_own_coordinator(start: Start) -> None:
    one, other = start({"a": (group("a"), {0: 1})}), start({"b": (group("b"), {0: 2})})
    one.peers = one, other
    one.elsewhere["b"] = other
    assert [(each.group, each.committed) for each in messages(one.properties, TIMEOUT, ["a", "b"])] == [
        ("a", {TopicPartition("t", 0): 1}),
        ("b", {TopicPartition("t", 0): 2}),
    ]


def test_a_group_without_an_answer_is_unknown_and_the_others_are_reported(start: Start) -> None:
    """No coordinator; no right; an offset that is not stable; a coordinator that is gone. None of them is called Dead."""
    known = {
        "a": (group("a", code=30), {0: 1}),
        "b": (group("b", state="Empty"), {0: 1, 1: -88}),
        "ok": (group("ok", state="Empty"), {}),
    }
    broker = start(known, codes={"no": 15})
    gone = start()
    broker.elsewhere["gone"] = gone
    gone.node.handlers[DESCRIBE_GROUPS] = gone.node.handlers[OFFSET_FETCH] = CLOSE
    found = {one.group: one for one in messages(broker.properties, TIMEOUT, [*known, "no", "gone"])}
    assert found == {
        "a": GroupAnswer("a", None, {TopicPartition("t", 0): 1}),
        "b": GroupAnswer("b", EMPTY, None),
        "gone": GroupAnswer("gone", None, None),
        "no": GroupAnswer("no", None, None),
        "ok": GroupAnswer("ok", EMPTY, {}),
    }


def test_what_passes_by_itself_is_asked_once_more(start: Start) -> None:
    broker = start({"a": (group("a", state="Empty"), {0: 1})}, codes={"a": 14})
    fetch = broker.node.handlers[OFFSET_FETCH]

    def loading(request: Any) -> Any:
        answer = fetch(request)
        broker.codes.clear()
        return answer

    broker.node.handlers[OFFSET_FETCH] = loading
    assert [one.committed for one in messages(broker.properties, TIMEOUT, ["a"])] == [{TopicPartition("t", 0): 1}]
    assert broker.asked(FIND_COORDINATOR) == 2


def test_a_coordinator_that_hangs_is_waited_for_once(start: Start) -> None:
    """A hundred groups a request: three requests, both kinds, and the second try."""
    names = [f"g{number}" for number in range(201)]
    broker, hanging = start(), start()
    broker.elsewhere = dict.fromkeys(names, hanging)
    hanging.node.handlers[DESCRIBE_GROUPS] = hanging.node.handlers[OFFSET_FETCH] = HANG
    assert {one[1:] for one in messages(broker.properties, 2.0, names)} == {(None, None)}
    assert hanging.asked(DESCRIBE_GROUPS) + hanging.asked(OFFSET_FETCH) == 1


def test_without_any_commit_no_coordinator_is_looked_up(start: Start) -> None:
    """That would make the brokers create the topic."""
    broker = start(offsets_topic=False)
    assert list(messages(broker.properties, TIMEOUT, ["g"])) == []
    assert not broker.asked(FIND_COORDINATOR)


def test_a_broker_that_knows_nothing_yet_is_no_answer(start: Start) -> None:
    broker = start()
    broker.peers = ()
    with pytest.raises(Unavailable):
        list(messages(broker.properties, TIMEOUT, ["g"]))
    assert broker.asked(METADATA) == 1


@pytest.mark.parametrize("versions", [NEW, OLD])
def test_a_commit(start: Start, versions: Any) -> None:
    broker = start(versions=versions)
    commit(
        broker.properties, "g", {TopicPartition("u", 3): 9, TopicPartition("t", 1): 5, TopicPartition("t", 0): 4}, TIMEOUT, Held()
    )
    (request,) = broker.committed
    assert (request.group_id, request.member_id, request.generation_id_or_member_epoch) == ("g", "", -1)
    assert [
        (topic.name, [(one.partition_index, one.committed_offset) for one in topic.partitions]) for topic in request.topics
    ] == [
        ("t", [(0, 4), (1, 5)]),
        ("u", [(3, 9)]),
    ]


@pytest.mark.parametrize(("code", "error"), [(16, Unavailable), (25, Failed), (30, AuthenticationFailed)])
def test_a_commit_that_is_refused(start: Start, code: int, error: type[Exception]) -> None:
    """25, UNKNOWN_MEMBER_ID, is what a group with members answers."""
    broker = start({"g": (group("g"), {})}, codes={"g": code})
    with pytest.raises(error, match="OffsetCommit of g for t-1"):
        commit(broker.properties, "g", {TopicPartition("t", 1): 5}, TIMEOUT, Held())


@pytest.fixture
def at() -> Iterator[Callable[[Broker], GroupsAt]]:
    with ExitStack() as stack:
        yield lambda broker: GroupsAt(stack.enter_context(Wire("127.0.0.1", broker.node.port, timeout=TIMEOUT)))


def test_a_broker_says_of_which_groups_it_is_the_coordinator(start: Start, at: Callable[[Broker], GroupsAt]) -> None:
    """16: another one is. An unknown group is at the broker that would coordinate it. 88: an open transaction holds a commit back."""
    known = {
        "a": (group("a", member(1), member(2)), {0: 7, 1: -1}),
        "b": (group("b", code=16), {0: 9}),
        "c": (group("c", state="Empty"), {0: 3, 1: -88}),
        "d": (group_of_new_protocol("d"), {5: 1}),
    }
    found = at(start(known)).describe_hosted({*known, "x"})
    assert found == {
        "a": HostedGroup("Stable", 2, {TopicPartition("t", 0): FetchedOffset(7)}),
        "c": HostedGroup("Empty", 0, {TopicPartition("t", 0): FetchedOffset(3)}, unstable=True),
        "d": HostedGroup("Reconciling", 1, {TopicPartition("t", 5): FetchedOffset(1)}),
        "x": HostedGroup("Dead"),
    }
    assert [name for name, one in found.items() if not one.exists] == ["x"]


@pytest.mark.parametrize(
    ("known", "codes", "error"),
    [
        ({"a": (group("a", code=14), {})}, {}, Unavailable),
        ({"a": (group("a", code=30), {})}, {}, AuthenticationFailed),
        ({"a": (group("a"), {0: -14})}, {}, Unavailable),
        ({"a": (group("a"), {})}, {"a": 16}, Unavailable),
    ],
    ids=["loads", "no right", "loads its offsets", "moved meanwhile"],
)
def test_what_a_broker_does_not_say_of_one_group_is_said_of_none(
    start: Start, at: Callable[[Broker], GroupsAt], known: Any, codes: dict[str, int], error: type[Exception]
) -> None:
    with pytest.raises(error):
        at(start({**known, "b": (group("b"), {0: 1})}, codes=codes)).describe_hosted(["a", "b"])


def test_offsets_are_read_with_their_epochs_and_committed_with_them(start: Start, at: Callable[[Broker], GroupsAt]) -> None:
    broker = start({"a": (group("a", state="Empty"), {})})
    kind = OffsetFetchResponse.OffsetFetchResponseGroup
    part = kind.OffsetFetchResponseTopics.OffsetFetchResponsePartitions
    offset = part(partition_index=3, committed_offset=9, committed_leader_epoch=4, metadata="m", error_code=0)
    topics = [kind.OffsetFetchResponseTopics(name="t", partitions=[offset])]
    stable: list[bool] = []

    def fetched(request: Any) -> Any:
        stable.append(request.require_stable)
        return OffsetFetchResponse(throttle_time_ms=0, groups=[kind(group_id="a", error_code=0, topics=topics)])

    broker.node.handlers[OFFSET_FETCH] = fetched
    offsets = at(broker).describe_hosted(["a"])["a"].offsets
    assert (offsets, stable) == ({TopicPartition("t", 3): FetchedOffset(9, 4, "m")}, [True])
    at(broker).commit("a", offsets, Held())
    ((topic,),) = (request.topics for request in broker.committed)
    (one,) = topic.partitions
    assert (topic.name, one.partition_index, one.committed_offset) == ("t", 3, 9)
    assert (one.committed_leader_epoch, one.committed_metadata) == (4, "m")


@pytest.mark.parametrize(("code", "error"), [(0, None), (69, None), (68, Failed), (16, Unavailable)])
def test_groups_are_deleted_at_this_broker(
    start: Start, at: Callable[[Broker], GroupsAt], code: int, error: type[Exception] | None
) -> None:
    """69: there is none any more; 68: it has members."""
    broker, asked = start(versions={**NEW, 42: (0, 2)}), []

    def deleted(request: Any) -> Any:
        asked.extend(request.groups_names)
        result = DeleteGroupsResponse.DeletableGroupResult
        return DeleteGroupsResponse(throttle_time_ms=0, results=[result(group_id=name, error_code=code) for name in asked])

    broker.node.handlers[42] = deleted
    if error is None:
        at(broker).delete({"b", "a"}, Held())
    else:
        with pytest.raises(error, match="DeleteGroups of a"):
            at(broker).delete({"b", "a"}, Held())
    assert asked == ["a", "b"]


def test_nothing_is_sent_once_a_newer_run_holds_the_cluster(start: Start, at: Callable[[Broker], GroupsAt]) -> None:
    broker, newer = start({"a": (group("a", state="Empty"), {})}), Held(checks=0)
    for act in (
        lambda: at(broker).commit("a", {TopicPartition("t", 0): FetchedOffset(3)}, newer),
        lambda: at(broker).delete({"a"}, newer),
        lambda: commit(broker.properties, "a", {TopicPartition("t", 0): 3}, TIMEOUT, newer),
    ):
        with pytest.raises(Fenced):
            act()
    assert (broker.committed, broker.asked(42)) == ([], 0)


def test_the_fence_is_read_again_before_each_batch(start: Start, at: Callable[[Broker], GroupsAt]) -> None:
    broker = start(versions={**NEW, 42: (0, 2)})
    broker.node.handlers[42] = lambda _: DeleteGroupsResponse(throttle_time_ms=0, results=[])
    with pytest.raises(Fenced):
        at(broker).delete({f"group {number}" for number in range(250)}, Held(checks=2))
    assert broker.asked(42) == 2, "of a hundred groups each"
