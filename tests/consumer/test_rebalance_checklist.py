"""The rebalance checklist and the error table of docs/rebalance-checklist.md, on librdkafka's mock brokers behind proxies that read along."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from airflow_provider_kmigrate.consumer import migrating_shell
from airflow_provider_kmigrate.consumer.audited import AuditedConsumer
from airflow_provider_kmigrate.consumer.event_files import FileSink, read_events
from airflow_provider_kmigrate.consumer.migrating import MigratingConsumer
from airflow_provider_kmigrate.core.events import Change, Ownership, TopicPartition
from airflow_provider_kmigrate.core.member_state import Settings
from airflow_provider_kmigrate.core.member_words import Alarm
from tests.consumer.memory_group_zookeeper import MemoryZooKeeper
from tests.consumer.migrating_group import Load, Member, delivered, facts, wait_until
from tests.consumer.mock_kafka import WatchedKafka
from tests.consumer.wire_log import Api, Request

pytestmark = pytest.mark.slow

COORDINATOR = 1
MODE = "/consumers/g/migration/mode"
SELDOM = {"auto.commit.interval.ms": 3_600_000}
GROUP = (Api.OFFSET_COMMIT, Api.JOIN_GROUP, Api.SYNC_GROUP, Api.HEARTBEAT, Api.LEAVE_GROUP)


@pytest.fixture
def zookeeper(watched: WatchedKafka) -> MemoryZooKeeper:
    """Of a group that Kafka coordinates."""
    watched.topic("t", 4)
    watched.coordinate("g", COORDINATOR)
    found = MemoryZooKeeper({"t": 4})
    found.put(MODE, b"kafka")
    return found


@pytest.fixture
def properties(watched: WatchedKafka) -> dict[str, Any]:
    """The mock rebalances for a second less than the session's time-out."""
    return {
        "bootstrap.servers": watched.bootstrap,
        "group.id": "g",
        "zookeeper.connect": "memory",
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": 200,
        "coordination.migration.enabled": True,
        "session.timeout.ms": 2000,
        "log_level": 0,
    }


@pytest.fixture
def joins(watched: WatchedKafka, zookeeper: MemoryZooKeeper, properties: dict[str, Any], tmp_path: Path) -> Callable[..., Member]:
    del watched
    return lambda **more: Member({**properties, **more}, tmp_path, ["t"], zookeeper.connect)


@pytest.fixture
def alone(joins: Callable[..., Member], watched: WatchedKafka) -> Iterator[Member]:
    """One member that has every partition and is well."""
    with joins() as member:
        wait_until(lambda: len(member.owned) == 4, "it has all")
        wait_until(lambda: watched.sent(Api.HEARTBEAT), "it is in the group")
        yield member


def goes_on(kafka: WatchedKafka, folder: Path, count: int = 5) -> None:
    """Records that come from here on are all delivered."""
    before = delivered(folder)
    kafka.fill("t", dict.fromkeys(range(4), count))
    wait_until(lambda: delivered(folder) == before + 4 * count, "all that came since")


def after(kafka: WatchedKafka, *apis: Api, since: int) -> list[Request]:
    """Requests behind the first `since` of all."""
    return [one for one in kafka.requests[since:] if one.api in apis]


def offsets(kafka: WatchedKafka) -> dict[int, int]:
    """What Kafka has of the group."""
    asking = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "g", "log_level": 0})
    try:
        found = asking.committed([KafkaPartition("t", n) for n in range(4)], timeout=10)
        return {one.partition: one.offset for one in found}
    finally:
        asking.close()


# --------------------------------------------------------------------------------------------------------------- heartbeat


def test_r3_r4_r5_a_rebalance_commits_then_joins_and_no_heartbeat_in_between(
    watched: WatchedKafka, joins: Callable[..., Member], tmp_path: Path
) -> None:
    with joins(**SELDOM) as member:
        wait_until(lambda: len(member.owned) == 4, "it has all")
        goes_on(watched, tmp_path)
        first, since = watched.sent(Api.SYNC_GROUP)[0], len(watched.requests)
        watched.fail(Api.HEARTBEAT, KafkaError.REBALANCE_IN_PROGRESS)
        wait_until(lambda: after(watched, Api.SYNC_GROUP, since=since), "it has joined anew")
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
        wait_until(lambda: after(watched, Api.SYNC_GROUP, since=since), "it has joined anew")
        wait_until(lambda: len(member.owned) == 4, "it has all again")
        order = after(watched, *GROUP, since=since)
        goes_on(watched, tmp_path)
    kinds = [one.api for one in order]
    assert Api.OFFSET_COMMIT not in kinds[: kinds.index(Api.SYNC_GROUP)]
    if code == KafkaError.UNKNOWN_MEMBER_ID:
        assert order[kinds.index(Api.JOIN_GROUP)].member == "", "the id that nobody knows is not used again"
    found = facts(tmp_path)
    assert found.redelivered.count == 0, "ZooKeeper had the offsets"
    assert not found.violations
    assert {zookeeper.nodes[f"/consumers/g/offsets/t/{n}"].data for n in range(4)} == {b"10"}


@pytest.mark.parametrize("code", [KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE])
def test_a_coordinator_that_is_looked_for_is_no_rebalance(
    watched: WatchedKafka, alone: Member, tmp_path: Path, code: int
) -> None:
    since = len(watched.requests)
    watched.fail(Api.HEARTBEAT, code)
    wait_until(lambda: after(watched, Api.FIND_COORDINATOR, since=since), "it asks who coordinates")
    asked = len(watched.requests)
    wait_until(lambda: after(watched, Api.HEARTBEAT, since=asked), "it goes on")
    goes_on(watched, tmp_path)
    assert not after(watched, Api.JOIN_GROUP, since=since)
    assert len(alone.owned) == 4


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


# -------------------------------------------------------------------------------------------------------------- join, sync

PASSING = [
    *[
        (Api.JOIN_GROUP, code)
        for code in (
            KafkaError.UNKNOWN_MEMBER_ID,
            KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
            KafkaError.NOT_COORDINATOR,
            KafkaError.MEMBER_ID_REQUIRED,
        )
    ],
    *[
        (Api.SYNC_GROUP, code)
        for code in (
            KafkaError.NOT_COORDINATOR,
            KafkaError.COORDINATOR_NOT_AVAILABLE,
            KafkaError.REBALANCE_IN_PROGRESS,
            KafkaError.ILLEGAL_GENERATION,
            KafkaError.UNKNOWN_MEMBER_ID,
        )
    ],
    *[(Api.OFFSET_FETCH, code) for code in (KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE)],
]


@pytest.mark.parametrize(("api", "code"), PASSING)
def test_r2_r5_an_error_that_passes_keeps_nobody_out(
    watched: WatchedKafka, joins: Callable[..., Member], tmp_path: Path, api: Api, code: int
) -> None:
    watched.fail(api, code)
    with joins() as member:
        wait_until(lambda: len(member.owned) == 4, "it has all")
        goes_on(watched, tmp_path)
        assert len(watched.sent(api)) > 1, "it was told the error and asked again"
    assert not facts(tmp_path).violations


@pytest.mark.parametrize(
    ("api", "code", "times"),
    [
        (Api.OFFSET_FETCH, KafkaError.COORDINATOR_LOAD_IN_PROGRESS, 3),
        (Api.FIND_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE, 5),
        (Api.FIND_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS, 2),
    ],
)
def test_r2_errors_that_pass_after_a_while_keep_nobody_out(  # noqa: PLR0917  # fixtures
    watched: WatchedKafka, joins: Callable[..., Member], tmp_path: Path, api: Api, code: int, times: int
) -> None:
    watched.fail(api, *[code] * times)
    with joins():
        goes_on(watched, tmp_path)
    assert not facts(tmp_path).violations


@pytest.mark.parametrize(
    ("api", "code"),
    [
        (Api.JOIN_GROUP, KafkaError.INCONSISTENT_GROUP_PROTOCOL),
        (Api.JOIN_GROUP, KafkaError.INVALID_SESSION_TIMEOUT),
        (Api.JOIN_GROUP, KafkaError.GROUP_MAX_SIZE_REACHED),
        (Api.FIND_COORDINATOR, KafkaError.GROUP_AUTHORIZATION_FAILED),
    ],
)
def test_an_error_that_lasts_is_the_applications_to_hear_where_kafka_coordinates(
    watched: WatchedKafka, joins: Callable[..., Member], tmp_path: Path, api: Api, code: int
) -> None:
    watched.fail(api, *[code] * 50)
    with joins() as member:
        wait_until(lambda: code in member.heard, "the application is told")
        watched.forgive(api)
        goes_on(watched, tmp_path)


def test_an_error_that_lasts_stops_nobody_whom_zookeeper_coordinates(
    watched: WatchedKafka, zookeeper: MemoryZooKeeper, joins: Callable[..., Member], tmp_path: Path
) -> None:
    zookeeper.put(MODE, b"zookeeper")
    watched.fail(Api.JOIN_GROUP, *[KafkaError.INVALID_SESSION_TIMEOUT] * 50)
    with joins() as member:
        goes_on(watched, tmp_path)
        wait_until(lambda: len(watched.sent(Api.JOIN_GROUP)) > 1, "it was refused")
        goes_on(watched, tmp_path)
        assert member.heard == []


def test_a_group_without_a_coordinator_raises_the_alarm(
    watched: WatchedKafka, joins: Callable[..., Member], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """Nobody tells the application that it joins in vain for ever (KIP-895's blackout); its partitions without an owner do."""
    monkeypatch.setattr(migrating_shell, "Settings", partial(Settings, unowned=1.0, look_every=0.2))
    watched.fail(Api.JOIN_GROUP, *[KafkaError.NOT_COORDINATOR] * 500)
    with caplog.at_level(logging.WARNING), joins() as member:
        wait_until(lambda: Alarm.UNOWNED.value in caplog.text, "the alarm")
        assert member.heard == []
        watched.forgive(Api.JOIN_GROUP)
        goes_on(watched, tmp_path)


# ----------------------------------------------------------------------------------------------------------------- commits


@pytest.fixture
def consumer(watched: WatchedKafka, zookeeper: MemoryZooKeeper, properties: dict[str, Any]) -> Iterator[MigratingConsumer]:
    """One that has been handed three records, and commits only when it is told to."""
    watched.fill("t", {0: 3})
    with MigratingConsumer({**properties, "enable.auto.commit": False}, connect=zookeeper.connect) as made:
        made.subscribe(["t"])
        got = list[Message]()
        wait_until(lambda: got.extend(made.consume(10, 0.2)) or len(got) == 3, "three records")
        wait_until(lambda: made.consume(1, 0.1) == [] and watched.sent(Api.HEARTBEAT), "it is in the group")
        yield made


@pytest.mark.parametrize(
    "code", [KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.REQUEST_TIMED_OUT]
)
def test_a_commit_that_fails_for_a_moment_is_tried_again_unheard(
    watched: WatchedKafka, consumer: MigratingConsumer, code: int
) -> None:
    watched.fail(Api.OFFSET_COMMIT, code)
    since = len(watched.requests)
    consumer.commit(asynchronous=False)
    assert len(after(watched, Api.OFFSET_COMMIT, since=since)) > 1
    assert offsets(watched)[0] == 3


@pytest.mark.parametrize("code", [KafkaError.REBALANCE_IN_PROGRESS, KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION])
def test_a_commit_that_is_refused_is_raised_and_made_good(
    watched: WatchedKafka, zookeeper: MemoryZooKeeper, consumer: MigratingConsumer, code: int
) -> None:
    """Kafka's store is the mode's own; ZooKeeper took the offset, and the next holder goes on behind it."""
    watched.fail(Api.OFFSET_COMMIT, code)
    with pytest.raises(KafkaException):
        consumer.commit(asynchronous=False)
    assert zookeeper.nodes["/consumers/g/offsets/t/0"].data == b"3"
    wait_until(lambda: consumer.poll(0.1) or offsets(watched)[0] == 3, "Kafka has it, too")
    watched.fill("t", {0: 1})
    got = list[int]()
    wait_until(lambda: got.extend(one.offset() or 0 for one in consumer.consume(9, 0.2)) or got, "the next record")
    assert got == [3]


def test_r10_a_commit_is_what_the_application_says_of_each_partition(watched: WatchedKafka, consumer: MigratingConsumer) -> None:
    """Three records are in work, the last one ends first: what is committed is below the first that is not done."""
    consumer.commit(offsets=[KafkaPartition("t", 0, 1)], asynchronous=False)
    consumer.poll(0.5)
    assert offsets(watched)[0] == 1
    assert [one.offset for one in consumer.committed([KafkaPartition("t", 0)])] == [1]


# ------------------------------------------------------------------------------------------------------------- connections


def test_a_broker_that_is_away_for_seconds_is_no_rebalance(
    watched: WatchedKafka, joins: Callable[..., Member], tmp_path: Path
) -> None:
    """Nor the end of the process: so ended librdkafka's DescribeGroups, with which members once asked for their neighbours."""
    patient = {"session.timeout.ms": 10_000, "reconnect.backoff.max.ms": 500}
    with joins(**patient) as member, Load(watched.bootstrap, tmp_path, "t", 4) as load:
        wait_until(lambda: len(member.owned) == 4 and delivered(tmp_path) > 20, "records come")
        since = len(watched.requests)
        watched.down(COORDINATOR)
        time.sleep(2)
        watched.up(COORDINATOR)
        load.end()
        wait_until(lambda: delivered(tmp_path) == load.sent, "the rest comes")
        wait_until(lambda: sum(offsets(watched).values()) == load.sent, "and is committed")
        assert not after(watched, Api.JOIN_GROUP, since=since)
    assert not facts(tmp_path).violations


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


# ------------------------------------------------------------------------------------------------------------- two members


def test_r6_r7_r9_one_leader_shares_out_everything_once_and_who_leaves_says_so(
    watched: WatchedKafka, joins: Callable[..., Member], tmp_path: Path
) -> None:
    with Load(watched.bootstrap, tmp_path, "t", 4) as load, joins() as one, joins() as two:
        wait_until(lambda: len(one.owned) == len(two.owned) == 2, "each owns half")
        assert len(one.owned | two.owned) == 4
        told = watched.sent(Api.SYNC_GROUP)
        last = [sync for sync in told if sync.generation == told[-1].generation]
        assert sorted(len(sync.given) for sync in last) == [0, 2], "only the leader tells, and of everybody"
        assert {sync.member for sync in last} == set().union(*(sync.given for sync in last))
        since = len(watched.requests)
        two.end()
        wait_until(lambda: len(one.owned) == 4, "the other one has all")
        (left,) = after(watched, Api.LEAVE_GROUP, since=since)
        (joined, *_) = after(watched, Api.JOIN_GROUP, since=since)
        assert left.member != joined.member
        assert left.at < joined.at, "it is told, not waited for"
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
    with Load(watched.bootstrap, tmp_path, "t", 4) as load, joins() as one, joins() as two:
        for toggle in range(6):
            wait_until(lambda: len(one.owned) == len(two.owned) == 2, "each owns half")
            before = delivered(tmp_path)
            zookeeper.put(MODE, b"kafka" if toggle % 2 else b"zookeeper")
            wait_until(lambda toggle=toggle: coordination(one, two) == [toggle % 2] * 2, "both follow")
            wait_until(lambda before=before: delivered(tmp_path) > before + 50, "records come")
        load.end()
        wait_until(lambda: delivered(tmp_path) == load.sent, "the rest comes")
    found = facts(tmp_path)
    assert (found.lost.count, found.redelivered.count) == (0, 0)
    assert not found.violations
    stored = {n: int(zookeeper.nodes[f"/consumers/g/offsets/t/{n}"].data) for n in range(4)}
    assert offsets(watched) == stored
    assert sum(stored.values()) == load.sent, "the next offset to read, in both"


def coordination(*members: Member) -> list[int]:
    return [member.consumer.metrics()["ActiveKafkaCoordinationCount"] for member in members]


# ---------------------------------------------------------------------------------------------------- the audited consumer


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
        self.told: list[str] = []
        self.errors: list[int] = []
        self.records = 0

    def __enter__(self) -> Self:
        told = {f"on_{what}": partial(self._tell, what) for what in ("assign", "lost")}
        self.consumer.subscribe(["t"], on_revoke=self._revoked, **told)
        return self

    def __exit__(self, *_: object) -> None:
        self.consumer.close()

    def _tell(self, what: str, *_: object) -> None:
        self.told.append(what)

    def _revoked(self, consumer: AuditedConsumer, partitions: list[KafkaPartition]) -> None:
        self.told.append("revoke")
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
        wait_until(lambda: application.poll() and application.told[-2:] == [called, "assign"], "it is told, and has all again")
        order = after(watched, *GROUP, since=since)
    kinds = [one.api for one in order]
    until_joined = order[: kinds.index(Api.SYNC_GROUP)]
    assert [one.offsets for one in until_joined if one.api is Api.OFFSET_COMMIT] == [dict.fromkeys(range(4), 5)] * commits
    changes = [event.change for event in read_events(tmp_path).events if isinstance(event, Ownership)]
    assert (Change.LOST in changes) is (called == "lost")


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
