"""The rebalance checklist of docs/rebalance-checklist.md, on librdkafka's mock brokers behind proxies that read along."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest
from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from airflow_provider_kmigrate.applications.audited import AuditedConsumer
from airflow_provider_kmigrate.applications.event_log import FileSink, read_events
from airflow_provider_kmigrate.applications.migrating import MigratingConsumer
from airflow_provider_kmigrate.core.events.model import Ownership, OwnershipChange, TopicPartition
from tests.consumer.memory_group_zookeeper import MemoryZooKeeper
from tests.consumer.migrating_group import Load, Member, delivered, facts
from tests.consumer.mock_kafka import COORDINATOR, GROUP, MODE, WatchedKafka, after, goes_on, offsets
from tests.consumer.wire_log import Api
from tests.waiting import wait_until

pytestmark = pytest.mark.slow(seconds=80)

SELDOM = {"auto.commit.interval.ms": 3_600_000}


def test_r3_r4_r5_a_rebalance_commits_then_joins_and_no_heartbeat_in_between(
    watched: WatchedKafka, joins: Callable[..., Member], tmp_path: Path
) -> None:
    with joins(**SELDOM) as member:
        wait_until(lambda: len(member.owned) == 4, "it has all")
        goes_on(watched, tmp_path)
        first, since = watched.sent(Api.SYNC_GROUP)[0], len(watched.requests)
        watched.fail(Api.HEARTBEAT, KafkaError.REBALANCE_IN_PROGRESS)
        wait_until(lambda: after(watched, Api.SYNC_GROUP, since=since), "it has joined again")
        wait_until(lambda: len(member.owned) == 4, "it has all again")
        order = after(watched, *GROUP, since=since)
        goes_on(watched, tmp_path)
    joined, synced = (next(n for n, one in enumerate(order) if one.api is api) for api in (Api.JOIN_GROUP, Api.SYNC_GROUP))
    committed = {part: at for one in order[:joined] for part, at in one.offsets.items()}
    assert committed == dict.fromkeys(range(4), 5), "what was delivered is committed before it joins"
    assert {one.generation for one in order[:joined]} == {first.generation}
    assert order[joined].member == first.member, "it keeps its id"
    assert {one.api for one in order[joined : synced + 1]} == {Api.JOIN_GROUP, Api.SYNC_GROUP}, "no heartbeat, no commit"
    assert order[synced].generation > first.generation
    assert {one.generation for one in order[synced:]} == {order[synced].generation}
    assert not facts(tmp_path).violations
    assert offsets(watched) == dict.fromkeys(range(4), 10)


@pytest.mark.parametrize("code", [KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION])
def test_r3_r5_what_is_lost_is_not_committed_to_kafka_and_not_delivered_again(
    watched: WatchedKafka, zookeeper: MemoryZooKeeper, joins: Callable[..., Member], tmp_path: Path, code: int
) -> None:
    with joins(**SELDOM) as member:
        wait_until(lambda: len(member.owned) == 4, "it has all")
        goes_on(watched, tmp_path)
        since = len(watched.requests)
        watched.fail(Api.HEARTBEAT, code)
        wait_until(lambda: after(watched, Api.SYNC_GROUP, since=since), "it has joined again")
        wait_until(lambda: len(member.owned) == 4, "it has all again")
        order = after(watched, *GROUP, since=since)
        goes_on(watched, tmp_path)
    kinds = [one.api for one in order]
    assert Api.OFFSET_COMMIT not in kinds[: kinds.index(Api.SYNC_GROUP)]
    if code == KafkaError.UNKNOWN_MEMBER_ID:
        assert order[kinds.index(Api.JOIN_GROUP)].member == "", "the unknown id is not used again"
    found = facts(tmp_path)
    assert found.redelivered.count == 0, "ZooKeeper had the offsets"
    assert not found.violations
    assert {zookeeper.nodes[f"/consumers/g/offsets/t/{n}"].data for n in range(4)} == {b"10"}


def test_r2_a_coordinator_that_moves_is_found_and_nothing_is_rebalanced(
    watched: WatchedKafka, alone: Member, tmp_path: Path
) -> None:
    since = len(watched.requests)
    watched.coordinate("g", COORDINATOR + 1)
    wait_until(lambda: after(watched, Api.FIND_COORDINATOR, since=since), "it asks who coordinates")
    goes_on(watched, tmp_path)
    wait_until(lambda: offsets(watched) == dict.fromkeys(range(4), 5), "it commits there")
    assert not after(watched, Api.JOIN_GROUP, since=since)
    assert len(alone.owned) == 4


def test_r10_a_commit_is_what_the_application_says_of_each_partition(watched: WatchedKafka, consumer: MigratingConsumer) -> None:
    """Three records are in work, the last one ends first: what is committed is below the first that is not done."""
    consumer.commit(offsets=[KafkaPartition("t", 0, 1)], asynchronous=False)
    consumer.poll(0.5)
    assert offsets(watched)[0] == 1
    assert [one.offset for one in consumer.committed([KafkaPartition("t", 0)])] == [1]


def test_r8_brokers_that_hear_nothing_for_longer_than_a_session(watched: WatchedKafka, alone: Member, tmp_path: Path) -> None:
    """Connections stay open, nothing is answered: the place in the group is lost, and taken again, by itself."""
    goes_on(watched, tmp_path)
    since = len(watched.requests)
    for proxy in watched.proxies:
        proxy.hears.clear()
    wait_until(lambda: not alone.owned, "it gives up what it may have lost")
    for proxy in watched.proxies:
        proxy.hears.set()
    wait_until(lambda: after(watched, Api.SYNC_GROUP, since=since) and len(alone.owned) == 4, "it is back")
    goes_on(watched, tmp_path)
    alone.end()
    found = facts(tmp_path)
    assert not found.violations
    assert found.redelivered.count == 0


def test_r6_r7_r9_one_leader_shares_out_everything_once_and_who_leaves_says_so(
    watched: WatchedKafka, joins: Callable[..., Member], tmp_path: Path
) -> None:
    with Load(watched.bootstrap, tmp_path, "t", 4) as load, joins() as one, joins() as two:
        wait_until(lambda: len(one.owned) == len(two.owned) == 2, "each owns half")
        assert len(one.owned | two.owned) == 4
        reported = watched.sent(Api.SYNC_GROUP)
        last = [sync for sync in reported if sync.generation == reported[-1].generation]
        assert sorted(len(sync.given) for sync in last) == [0, 2], "only the leader tells, and of everybody"
        assert {sync.member for sync in last} == set().union(*(sync.given for sync in last))
        since = len(watched.requests)
        two.end()
        wait_until(lambda: len(one.owned) == 4, "the other one has all")
        (left,) = after(watched, Api.LEAVE_GROUP, since=since)
        (joined, *_) = after(watched, Api.JOIN_GROUP, since=since)
        assert left.member != joined.member
        assert left.at < joined.at, "the leave is sent, its session does not end first"
        load.end()
        wait_until(lambda: delivered(tmp_path) == load.sent, "the rest comes")
    found = facts(tmp_path)
    assert (found.lost.count, found.redelivered.count) == (0, 0)
    assert not found.violations
    assert one.late == two.late == []


class Slow(Member):
    """Works on each record for a while; `worked`: on what, from when till when."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.worked: list[tuple[TopicPartition, float, float]] = []

    def see(self, message: Message) -> None:
        super().see(message)
        if message.error() is None:
            begun = time.monotonic()
            time.sleep(0.3)
            self.worked.append((TopicPartition("t", message.partition() or 0), begun, time.monotonic()))


def test_r1_no_handler_runs_for_what_another_one_has(
    watched: WatchedKafka, zookeeper: MemoryZooKeeper, properties: dict[str, Any], tmp_path: Path
) -> None:
    settings = {**properties, "session.timeout.ms": 4000}
    watched.fill("t", dict.fromkeys(range(4), 1))
    with Slow(settings, tmp_path, ["t"], zookeeper.connect) as one:
        wait_until(lambda: len(one.worked) == 4, "it has worked on all")
        watched.fill("t", dict.fromkeys(range(4), 9))
        with Slow(settings, tmp_path, ["t"], zookeeper.connect) as two:
            wait_until(lambda: delivered(tmp_path) == 40, "everything")
    work = sorted([*one.worked, *two.worked])
    assert len({where for where, *_ in one.worked} & {where for where, *_ in two.worked}) == 2, "two partitions changed hands"
    for (where, _, end), (next_where, begun, _) in itertools.pairwise(work):
        assert where != next_where or end <= begun
    found = facts(tmp_path)
    assert not found.violations
    assert found.redelivered.count == 0


def test_r11_r12_both_stores_hold_the_same_after_many_toggles(
    watched: WatchedKafka, zookeeper: MemoryZooKeeper, joins: Callable[..., Member], tmp_path: Path
) -> None:
    """At rest, that is: while the group is shared out Kafka takes no commits, and the store that is behind is tried again."""

    def stored() -> dict[int, int]:
        return {n: int(zookeeper.nodes[f"/consumers/g/offsets/t/{n}"].data) for n in range(4)}

    with Load(watched.bootstrap, tmp_path, "t", 4) as load, joins() as one, joins() as two:
        for toggle in range(6):
            wait_until(lambda: len(one.owned) == len(two.owned) == 2, "each owns half")
            before = delivered(tmp_path)
            zookeeper.put(MODE, b"kafka" if toggle % 2 else b"zookeeper")
            wait_until(lambda toggle=toggle: coordination(one, two) == [toggle % 2] * 2, "both follow")
            wait_until(lambda before=before: delivered(tmp_path) > before + 50, "records come")
        load.end()
        wait_until(lambda: delivered(tmp_path) == load.sent, "the rest comes")
        wait_until(lambda: sum(stored().values()) == load.sent, "it is committed, the next offset to read")
        wait_until(lambda: offsets(watched) == stored(), "in both")
    found = facts(tmp_path)
    assert (found.lost.count, found.redelivered.count) == (0, 0)
    assert not found.violations
    assert sum(stored().values()) == load.sent


def coordination(*members: Member) -> list[int]:
    return [member.consumer.metrics()["ActiveKafkaCoordinationCount"] for member in members]


@pytest.fixture
def plain(watched: WatchedKafka) -> dict[str, Any]:
    watched.topic("t", 4)
    watched.coordinate("g", COORDINATOR)
    fixed = {"bootstrap.servers": watched.bootstrap, "group.id": "g", "auto.offset.reset": "earliest", "log_level": 0}
    return {**fixed, "enable.auto.commit": False, "session.timeout.ms": 2000, "heartbeat.interval.ms": 200}


class Application:
    """It commits in `on_revoke`, and nothing in `on_lost`."""

    def __init__(self, properties: dict[str, Any], folder: Path) -> None:
        self.consumer = AuditedConsumer.of(properties, FileSink(folder))
        self.messages: list[str] = []
        self.errors: list[int] = []
        self.records = 0

    def __enter__(self) -> Self:
        reported = {f"on_{what}": partial(self._tell, what) for what in ("assign", "lost")}
        self.consumer.subscribe(["t"], on_revoke=self._revoked, **reported)
        return self

    def __exit__(self, *_: object) -> None:
        self.consumer.close()

    def _tell(self, what: str, *_: object) -> None:
        self.messages.append(what)

    def _revoked(self, consumer: AuditedConsumer, partitions: list[KafkaPartition]) -> None:
        self.messages.append("revoke")
        behind = [one for one in consumer.position(partitions) if one.offset >= 0]
        if behind:
            consumer.commit(offsets=behind, asynchronous=False)

    def poll(self) -> int:
        """One record or error; the records so far."""
        message = self.consumer.poll(0.1)
        if message is not None and (error := message.error()) is not None:
            self.errors.append(error.code())
        self.records += message is not None and message.error() is None
        return self.records


@pytest.mark.parametrize(
    ("code", "called", "commits"),
    [
        (KafkaError.REBALANCE_IN_PROGRESS, "revoke", True),
        (KafkaError.UNKNOWN_MEMBER_ID, "lost", False),
        (KafkaError.ILLEGAL_GENERATION, "lost", False),
    ],
)
def test_r3_an_audited_consumer_commits_what_is_revoked_and_never_what_is_lost(  # noqa: PLR0917  # fixtures
    watched: WatchedKafka, plain: dict[str, Any], tmp_path: Path, code: int, called: str, commits: bool
) -> None:
    watched.fill("t", dict.fromkeys(range(4), 5))
    with Application(plain, tmp_path) as application:
        wait_until(lambda: application.poll() == 20, "everything")
        since = len(watched.requests)
        watched.fail(Api.HEARTBEAT, code)
        wait_until(
            lambda: application.poll() and application.messages[-2:] == [called, "assign"],
            "the application is called, and has all again",
        )
        order = after(watched, *GROUP, since=since)
    kinds = [one.api for one in order]
    until_joined = order[: kinds.index(Api.SYNC_GROUP)]
    assert [one.offsets for one in until_joined if one.api is Api.OFFSET_COMMIT] == [dict.fromkeys(range(4), 5)] * commits
    changes = [event.change for event in read_events(tmp_path).events if isinstance(event, Ownership)]
    assert (OwnershipChange.LOST in changes) is (called == "lost")


def test_an_audited_consumer_that_is_fenced_hears_it_and_closes(
    watched: WatchedKafka, plain: dict[str, Any], tmp_path: Path
) -> None:
    """Another process took its group.instance.id: the error is fatal, commits raise, and nothing is committed at the end."""
    watched.fill("t", {0: 5})
    with Application({**plain, "group.instance.id": "one"}, tmp_path) as application:
        wait_until(lambda: application.poll() == 5, "everything")
        watched.fail(Api.HEARTBEAT, KafkaError.FENCED_INSTANCE_ID)
        wait_until(lambda: application.poll() and KafkaError._FATAL in application.errors, "it hears of it")
        with pytest.raises(KafkaException):
            application.consumer.commit(asynchronous=False)
    assert offsets(watched)[0] < 0
