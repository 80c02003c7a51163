"""The migrating consumer without a cluster: its parts, and whole members on librdkafka's mock brokers and a ZooKeeper in memory."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from airflow_provider_kmigrate.applications.migrating import MigratingConsumer
from airflow_provider_kmigrate.applications.migrating.delivery import Active, delivery_permit
from airflow_provider_kmigrate.applications.migrating.kafka import CommittedOffset
from airflow_provider_kmigrate.applications.migrating.runner import PartitionExecutors
from airflow_provider_kmigrate.applications.migrating.zookeeper import GroupZnodes, partitions_in, wanted_topics
from airflow_provider_kmigrate.clients.settings import ZooKeeperSettings
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.member import messages
from airflow_provider_kmigrate.core.member.assignors import KafkaMember
from airflow_provider_kmigrate.core.member.group_seen import Store
from airflow_provider_kmigrate.core.member.registration import Flaw, Registration, Unreadable
from airflow_provider_kmigrate.exceptions import Failed, Refused, Unreachable
from tests.consumer.memory_group_zookeeper import TIMEOUT, MemorySession, MemoryZooKeeper
from tests.consumer.migrating_group import Load, Member, again_after_commit, at_once, delivered, facts
from tests.consumer.mock_kafka import MockKafka
from tests.core.histories import calm
from tests.core.member_talk import ALONE, Talk, may_deliver
from tests.waiting import wait_until

MODE = "/consumers/g/migration/mode"

# ------------------------------------------------------------------------------------------------------------------- parts


def test_the_permit_is_what_the_member_may_deliver() -> None:
    talk = Talk().delivering(ALONE)
    for member in (talk.member, replace(talk.member, live=False)):
        for now in (member.lease - 0.1, member.lease):
            allowed = {
                where for where, held in member.held.items() if delivery_permit(member).allows(where, held.generation, now)
            }
            assert allowed == may_deliver(member, now)
    (where, held) = next(iter(talk.member.held.items()))
    assert not delivery_permit(talk.member).allows(where, held.generation + 1, talk.member.lease - 0.1)


def test_a_commit_covers_only_what_its_generation_was_given() -> None:
    mine = Active.starting_at(3, 10)
    mine.position = 15
    assert [offset for offset in range(8, 18) if mine.covers(offset)] == [10, 11, 12, 13, 14, 15]
    assert mine.uncommitted_offset == 15
    assert Active.starting_at(3, None).uncommitted_offset is None


def test_jobs_of_a_key_keep_their_order_and_what_failed_is_tried_again() -> None:
    executors, done, all_done, failures = PartitionExecutors(2), list[str](), threading.Event(), iter([False, True])

    def first() -> bool:
        succeeds = next(failures)
        if succeeds:
            done.append("first")
        return succeeds

    def second() -> bool:
        done.append("second")
        all_done.set()
        return True

    executors.start()
    executors.add("a", first)
    executors.add("a", second)
    wait_until(lambda: executors.retry_due_jobs() or all_done.is_set(), "both jobs")
    executors.close(5.0)
    assert done == ["first", "second"]


def test_topics_are_read_from_whatever_stands_there() -> None:
    assert partitions_in("t", b'{"version":1,"partitions":{"10":[1],"2":[1]}}') == (2, 10)
    for data in (b"", b"[]", b'{"partitions":3}'):
        with pytest.raises(Failed, match="/brokers/topics/t holds"):
            partitions_in("t", data)
    entries = {"m": Registration("static", {"a": 1}), "bad": Unreadable(Flaw.EMPTY, "")}
    assert wanted_topics(entries, lambda: pytest.fail("no member has a wildcard"), internal=False) == {"a"}
    entries["w"] = Registration("white_list", {"b.*": 1})
    assert wanted_topics(entries, lambda: ["a", "b1", "c"], internal=False) == {"a", "b1"}


@pytest.mark.parametrize(
    ("committed", "ok", "begins", "beyond"), [(20, True, 20, 0), (25, True, 20, 1), (25, False, 20, 0), (30, True, 25, 1)]
)
def test_what_comes_again_is_what_was_not_committed_at_the_loss(committed: int, ok: bool, begins: int, beyond: int) -> None:
    history = calm(20)
    history.ack("p", 0, 20, 20, 10)
    history.deliver("g", "m", 0, 20, 10, 20)
    history.commit("g", "m", 0, committed, ok)
    history.deliver("g", "other", 0, begins, 30 - begins, begins)
    history.commit("g", "m", 0, 30)  # said when it is another's already: it does not count
    assert len(again_after_commit(history.end())) == beyond


# ----------------------------------------------------------------------------------------------------------- whole members


@pytest.fixture
def zookeeper(kafka: MockKafka) -> MemoryZooKeeper:
    kafka.topic("t", 4)
    return MemoryZooKeeper({"t": 4})


@pytest.fixture
def properties(kafka: MockKafka) -> dict[str, Any]:
    return {
        "bootstrap.servers": kafka.bootstrap,
        "group.id": "g",
        "zookeeper.connect": "memory",
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": 500,
        "coordination.migration.enabled": True,
        "session.timeout.ms": 6000,
        "log_level": 2,
    }


@pytest.mark.parametrize(
    "use", [lambda c: c.subscribe(["t"]), lambda c: c.poll(0), lambda c: c.consume(1, 0), lambda c: c.commit()]
)
@pytest.mark.parametrize("subscribed", [True, False])
def test_a_consumer_that_is_closed_does_nothing_more(
    zookeeper: MemoryZooKeeper, properties: dict[str, Any], use: Callable[[MigratingConsumer], object], subscribed: bool
) -> None:
    consumer = MigratingConsumer(properties, connect=zookeeper.connect)
    if subscribed:
        consumer.subscribe(["t"])
    consumer.close()
    with pytest.raises(RuntimeError, match=r"^Consumer closed$"):
        use(consumer)


def test_a_migrating_consumer_subscribes_once(zookeeper: MemoryZooKeeper, properties: dict[str, Any]) -> None:
    with MigratingConsumer(properties, connect=zookeeper.connect) as consumer:
        consumer.subscribe(["t"])
        with pytest.raises(Refused, match="Y06"):
            consumer.subscribe(["other"])


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (None, KafkaError.ILLEGAL_GENERATION),
        (frozenset({Store.ZOOKEEPER}), KafkaError.COORDINATOR_NOT_AVAILABLE),
        (frozenset({Store.KAFKA}), None),
    ],
)
def test_a_commit_succeeded_if_the_modes_own_store_took_it(
    zookeeper: MemoryZooKeeper, properties: dict[str, Any], answer: object, code: int | None
) -> None:
    committed: Any = Future()
    committed.set_result(answer)
    with MigratingConsumer(properties, connect=zookeeper.connect) as consumer:
        if code is None:
            consumer._require_committed(KafkaPartition("t", 0, 1), committed, 0.0)
            return
        with pytest.raises(KafkaException) as raised:
            consumer._require_committed(KafkaPartition("t", 0, 1), committed if answer else None, 0.0)
    assert raised.value.args[0].code() == code


def test_the_callback_gets_the_whole_groups_assignment(zookeeper: MemoryZooKeeper, properties: dict[str, Any]) -> None:
    told: list[object] = []
    with MigratingConsumer({**properties, "consumer.id": "m"}, connect=zookeeper.connect) as consumer:
        assert consumer.global_assignment() is None, "it has not joined"
        consumer.subscribe(["t"], on_assign=lambda member, _: told.append(member.global_assignment()))
        wait_until(lambda: consumer.poll(0.1) or told, "partitions are assigned")
    assert told[0] == {"t": dict.fromkeys(range(4), "g_m-0")}


@pytest.fixture
def pair(
    kafka: MockKafka, zookeeper: MemoryZooKeeper, properties: dict[str, Any], tmp_path: Path
) -> Iterator[tuple[Member, Member]]:
    with (
        Member(properties, tmp_path, ["t"], zookeeper.connect) as one,
        Member(properties, tmp_path, ["t"], zookeeper.connect) as two,
    ):
        wait_until(lambda: len(one.owned) == len(two.owned) == 2, "each owns half")
        yield one, two


def metric(members: tuple[Member, ...], name: str) -> list[int]:
    return [member.consumer.metrics()[name] for member in members]


@pytest.mark.slow(seconds=70)
def test_the_mode_goes_there_and_back_and_every_record_comes_once(
    kafka: MockKafka, zookeeper: MemoryZooKeeper, pair: tuple[Member, Member], tmp_path: Path
) -> None:
    with Load(kafka.bootstrap, tmp_path, "t", 4) as load:
        wait_until(lambda: metric(pair, "KafkaOwnedPartitionsCount") == [2, 2], "Kafka has shared out, too")
        for data, count in ((b"kafka", 1), (b"zookeeper", 0)):
            before = load.sent
            zookeeper.put(MODE, data)
            wait_until(lambda count=count: metric(pair, "ActiveKafkaCoordinationCount") == [count] * 2, "both follow")
            wait_until(lambda: sum(len(member.owned) for member in pair) == 4, "all is owned")
            wait_until(lambda before=before: delivered(tmp_path) > before + 100, "records come")
        load.end()
        wait_until(lambda: delivered(tmp_path) == load.sent, "the rest comes")
    for member in pair:
        member.end()
    found = facts(tmp_path)
    assert found.complete, found.reasons
    assert (found.acked, found.delivered) == (load.sent, {"g": load.sent})
    assert not found.violations
    assert pair[0].late == pair[1].late == []
    assert zookeeper.owners("g") == {}
    assert zookeeper.children("/consumers/g/ids") == zookeeper.children("/consumers/g/migration/ids") == []
    committed = {
        int(name): int(zookeeper.nodes[f"/consumers/g/offsets/t/{name}"].data)
        for name in zookeeper.children("/consumers/g/offsets/t")
    }
    assert sum(committed.values()) == load.sent


@pytest.mark.slow(seconds=70)
def test_a_session_that_is_gone_is_another_members_gain_until_it_is_back(
    kafka: MockKafka, zookeeper: MemoryZooKeeper, pair: tuple[Member, Member], tmp_path: Path
) -> None:
    one, two = pair
    session = session_of(one.consumer)
    with Load(kafka.bootstrap, tmp_path, "t", 4) as load:
        wait_until(lambda: delivered(tmp_path) > 50, "records come")
        session.lose_connection()
        zookeeper.expire(session.id or 0)
        wait_until(lambda: len(two.owned) == 4, "the other one takes over")
        session.expire()
        wait_until(lambda: len(one.owned) == len(two.owned) == 2, "it is back")
        load.end()
        wait_until(lambda: delivered(tmp_path) == load.sent, "the rest comes")
    for member in pair:
        member.end()
    found = facts(tmp_path)
    assert (found.lost.count, found.unseen.count) == (0, 0)  # this ZooKeeper ends a session earlier than a real one may
    assert one.late == two.late == at_once(tmp_path) == []


def test_what_was_lost_while_the_application_worked_is_lost_although_a_new_session_lives(
    kafka: MockKafka, zookeeper: MemoryZooKeeper, properties: dict[str, Any]
) -> None:
    """Kafka takes the partitions, then the session ends, and the next one lives before the application polls again.

    A revocation would say that nobody else had them until now.
    """
    zookeeper.put(MODE, b"kafka")
    told = list[tuple[str, int, float | None]]()
    callbacks: Any = {
        name: lambda member, partitions, name=name: told.append((name, len(partitions), member.ours_until))
        for name in ("on_assign", "on_revoke", "on_lost")
    }
    with MigratingConsumer({**properties, "enable.auto.commit": False}, connect=zookeeper.connect) as consumer:
        consumer.subscribe(["t"], **callbacks)
        wait_until(lambda: consumer.poll(0.1) or len(consumer.assignment()) == 4, "it has all")
        runner = consumer._runner
        assert runner is not None
        told.clear()
        runner.post(messages.KafkaLost())
        wait_until(lambda: any(isinstance(action, messages.StopDelivery) for action in runner.inbox), "it is to stop")
        ended = time.monotonic()
        old = session_of(consumer).id
        session_of(consumer).expire()
        wait_until(lambda: runner.member.live and runner.member.session != old, "the next session lives")
        consumer.poll(0.1)
    (name, count, until) = told[0]
    assert (name, count) == ("on_lost", 4)
    assert until is not None
    assert until < ended + TIMEOUT, "as long as ZooKeeper would have kept the old session"


def test_a_commit_of_what_was_lost_is_answered_at_once(
    kafka: MockKafka, zookeeper: MemoryZooKeeper, properties: dict[str, Any]
) -> None:
    """Its result never comes: an application that waits for it would learn of the loss only after the time-out."""
    kafka.fill("t", {0: 3})
    with MigratingConsumer({**properties, "enable.auto.commit": False}, connect=zookeeper.connect) as consumer:
        consumer.subscribe(["t"])
        wait_until(lambda: consumer.poll(0.1) is not None, "a record")
        session = session_of(consumer)
        session.lose_connection()
        threading.Timer(0.5, session.expire).start()
        began = time.monotonic()
        with pytest.raises(KafkaException) as raised:
            consumer.commit(asynchronous=False)
        assert raised.value.args[0].code() == KafkaError.ILLEGAL_GENERATION
        assert time.monotonic() - began < 5.0


def session_of(consumer: Any) -> MemorySession:
    session = consumer._runner._zk
    assert isinstance(session, MemorySession)
    return session


def test_an_old_member_asks_kafka_for_no_membership_and_no_offsets(
    kafka: MockKafka, zookeeper: MemoryZooKeeper, properties: dict[str, Any], tmp_path: Path
) -> None:
    zookeeper.put(MODE, b"kafka")
    kafka.fill("t", dict.fromkeys(range(4), 5))
    with Member({**properties, "coordination.migration.enabled": False}, tmp_path, ["t"], zookeeper.connect) as old:
        wait_until(lambda: delivered(tmp_path) == 20, "everything")
        assert zookeeper.children("/consumers/g/migration/ids") == []
        assert metric((old,), "ActiveKafkaCoordinationCount") == [0]
    assert {zookeeper.nodes[f"/consumers/g/offsets/t/{partition}"].data for partition in range(4)} == {b"5"}


@pytest.mark.slow
def test_what_was_fetched_ahead_is_no_more_than_that(
    kafka: MockKafka, zookeeper: MemoryZooKeeper, properties: dict[str, Any]
) -> None:
    """Librdkafka hands over many records at once: of a paused partition none comes, and each once and in order when it goes on."""
    kafka.fill("t", {0: 20, 1: 20})
    first, second = KafkaPartition("t", 0), KafkaPartition("t", 1)
    with MigratingConsumer(properties, connect=zookeeper.connect) as consumer:
        consumer.subscribe(["t"])
        seen = list[tuple[int, int]]()

        def take() -> bool:
            message = consumer.poll(0.2)
            seen.extend([(message.partition() or 0, message.offset() or 0)] if message else [])
            return message is not None

        wait_until(lambda: take() and len({partition for partition, _ in seen}) == 2, "records of both")
        before = [one for one in seen if one[0] == 0]
        consumer.pause([first])
        wait_until(lambda: not take() and (1, 19) in seen, "all of the other one")
        assert [one for one in seen if one[0] == 0] == before, "nothing of a paused one"
        consumer.resume([first])
        wait_until(lambda: take() or len(seen) == 40, "the rest")
        consumer.incremental_unassign([second])
        consumer.incremental_assign([KafkaPartition("t", 1, 15)])
        wait_until(lambda: take() and len(seen) == 45, "five again")
    assert [offset for partition, offset in seen if partition == 0] == list(range(20))
    assert [offset for partition, offset in seen if partition == 1] == [*range(20), *range(15, 20)]


def test_kip_125s_figures_are_in_the_statistics_that_the_application_asks_for(
    kafka: MockKafka, zookeeper: MemoryZooKeeper, properties: dict[str, Any]
) -> None:
    """In the thread that polls, as every callback; not those of the member, which that thread knows nothing of."""
    kafka.fill("t", {0: 1})
    reported = list[tuple[dict[str, Any], int]]()
    given = {
        **properties,
        "session.timeout.ms": 2000,
        "statistics.interval.ms": 50,
        "stats_cb": lambda text: reported.append((json.loads(text), threading.get_ident())),
    }
    with MigratingConsumer(given, connect=zookeeper.connect) as consumer:
        consumer.subscribe(["t"])
        wait_until(
            lambda: consumer.poll(0.1) or any(each["KafkaOwnedPartitionsCount"] == 4 for each, _ in reported), "it has all"
        )
        wait_until(lambda: consumer.poll(0.1) or reported[-1][0]["KafkaOwnedPartitionsCount"] == 4, "and keeps it")
        zookeeper.put("/consumers/g/migration/mode", b"kafka")
        wait_until(lambda: consumer.poll(0.1) or reported[-1][0]["ActiveKafkaCoordinationCount"] == 1, "Kafka coordinates")
    assert {thread for _, thread in reported} == {threading.get_ident()}
    assert {each["client_id"] for each, _ in reported} == {f"{consumer.consumer_id}-data"}
    assert reported[0][0]["ActiveKafkaCoordinationCount"] == 0
    assert "brokers" in reported[0][0]


def test_what_is_not_held_is_not_committed(kafka: MockKafka, zookeeper: MemoryZooKeeper, properties: dict[str, Any]) -> None:
    kafka.fill("t", {0: 3})
    with MigratingConsumer({**properties, "enable.auto.commit": False}, connect=zookeeper.connect) as consumer:
        consumer.subscribe(["t"])
        messages = list[Any]()
        wait_until(lambda: messages.extend(consumer.consume(10, 0.5)) or len(messages) == 3, "three records")
        assert consumer.commit(messages[0], asynchronous=False) is not None
        assert zookeeper.nodes["/consumers/g/offsets/t/0"].data == b"1"
        for strange in (KafkaPartition("t", 0, 9), KafkaPartition("u", 0, 1)):
            with pytest.raises(KafkaException):
                consumer.commit(offsets=[strange], asynchronous=False)
        assert TopicPartition("t", 0) in {TopicPartition(one.topic, one.partition) for one in consumer.assignment()}
    assert zookeeper.nodes["/consumers/g/offsets/t/0"].data == b"1"


@pytest.mark.slow
@pytest.mark.parametrize(("reset", "begins"), [("earliest", b"0"), ("latest", b"3")])
@pytest.mark.parametrize("start", [None, OFFSET_BEGINNING, OFFSET_END])
def test_where_a_partition_began_is_committed_although_nothing_of_it_was_delivered(  # noqa: PLR0917  # fixtures
    kafka: MockKafka, zookeeper: MemoryZooKeeper, properties: dict[str, Any], reset: str, begins: bytes, start: int | None
) -> None:
    """Else its next owner begins where its own reset says, and what came in between is lost: an old consumer's is often the end."""
    kafka.fill("t", dict.fromkeys(range(4), 3))
    begins = {OFFSET_BEGINNING: b"0", OFFSET_END: b"3", None: begins}[start]

    def assign(consumer: MigratingConsumer, partitions: list[KafkaPartition]) -> None:
        if start is not None:
            consumer.incremental_assign([KafkaPartition(one.topic, one.partition, start) for one in partitions])
        consumer.pause(partitions)

    settings = {**properties, "auto.offset.reset": reset, "auto.commit.interval.ms": 3_600_000}
    owned = list[KafkaPartition]()
    with MigratingConsumer(settings, connect=zookeeper.connect) as consumer:
        consumer.subscribe(["t"], on_assign=lambda *given: (assign(*given), owned.extend(given[1])))
        wait_until(lambda: consumer.poll(0.1) is None and len(owned) == 4, "all is owned, nothing delivered")
    assert [zookeeper.nodes[f"/consumers/g/offsets/t/{partition}"].data for partition in range(4)] == [begins] * 4


@pytest.mark.slow(seconds=70)
@pytest.mark.parametrize("late", [1, 7])
def test_a_late_commit_in_kafka_is_committed_over_where_nothing_else_would_be(
    kafka: MockKafka, zookeeper: MemoryZooKeeper, properties: dict[str, Any], late: int
) -> None:
    """As librdkafka may still send one of the holder before, when the next one has read the offsets; here the holder's own client does."""
    kafka.fill("t", {0: 2})
    where = TopicPartition("t", 0)
    zookeeper.put("/consumers/g/offsets/t/0", b"2")
    before = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "g"})
    before.commit(offsets=[KafkaPartition(*where, 2)], asynchronous=False)
    before.close()
    patient = {
        **properties,
        "auto.commit.interval.ms": 3_600_000,
        "session.timeout.ms": 12_000,
    }  # so long it may come late, and 5 s
    with MigratingConsumer(patient, connect=zookeeper.connect) as consumer:
        consumer.subscribe(["t"])
        wait_until(
            lambda: (
                consumer.poll(0.1) is None and consumer.metrics()["KafkaOwnedPartitionsCount"] == len(consumer.assignment()) == 4
            ),
            "all is owned, nothing delivered, and Kafka would take a commit",
        )
        client = consumer._runner._kafka if consumer._runner else None
        assert client is not None

        def committed() -> CommittedOffset | None:
            assert consumer.poll(0.1) is None
            return client.read_committed(where).result(10)

        assert committed() == CommittedOffset(2, foreign=True)
        assert client.commit(where, late).result(10)
        assert committed() == CommittedOffset(late, foreign=False)
        wait_until(lambda: committed() == CommittedOffset(2, foreign=False), "Kafka has the start again", timeout=30)


class NeverForgets(MemorySession):
    """Its process dies before a reset is deleted."""

    def delete(self, path: str, version: int) -> bool:
        if "/reset/" in path:
            raise Unreachable("the connection broke")
        return super().delete(path, version)


@pytest.mark.slow(seconds=70)
def test_an_operators_reset_is_where_every_holder_begins_until_one_has_made_it_good(
    kafka: MockKafka, zookeeper: MemoryZooKeeper, properties: dict[str, Any]
) -> None:
    kafka.fill("t", {0: 10})
    offset, reset = "/consumers/g/offsets/t/0", "/consumers/g/migration/reset/t/0"
    zookeeper.put(offset, b"8")
    zookeeper.put(reset, b"3")

    killed = MigratingConsumer(properties, connect=lambda _, *heard: NeverForgets(zookeeper, *heard))
    assert offsets(killed, 7) == list(range(3, 10))
    session = killed._runner._zk if killed._runner else None
    assert isinstance(session, MemorySession)
    session.lose_connection()
    zookeeper.expire(session.id or 0)
    killed.close(0.0)
    assert zookeeper.nodes[reset].data == b"3"

    with MigratingConsumer(properties, connect=zookeeper.connect) as second:
        assert offsets(second, 7) == list(range(3, 10)), "it is unknown what the killed one had done"
        wait_until(lambda: second.poll(0.1) or reset not in zookeeper.nodes, "it is made good")
    assert zookeeper.nodes[offset].data == b"10"

    kafka.fill("t", {0: 1})
    with MigratingConsumer(properties, connect=zookeeper.connect) as third:
        assert offsets(third, 1) == [10]


def offsets(consumer: MigratingConsumer, count: int) -> list[int]:
    """Of the first records that it is delivered."""
    consumer.subscribe(["t"])
    found = list[int]()
    wait_until(lambda: found.extend(one.offset() or 0 for one in consumer.consume(count, 0.2)) or len(found) >= count, "records")
    return found


def test_a_reset_that_is_none_is_passed_over_and_a_newer_one_stays(zookeeper: MemoryZooKeeper) -> None:
    session = zookeeper.connect(ZooKeeperSettings("memory"), lambda _: None, lambda _: None)
    session.start()
    znodes = GroupZnodes(session, "g", "g_a", Registration("static", {"t": 1}), migrates=True, internal_too=False)
    where, path = TopicPartition("t", 0), "/consumers/g/migration/reset/t/0"
    assert znodes.read_reset(where) is None
    for wrong in (b"", b"-1", b"soon"):
        zookeeper.put(path, wrong)
        assert znodes.read_reset(where) is None
    zookeeper.put(path, b"4")
    assert znodes.read_reset(where) == 4
    zookeeper.put(path, b"5")
    znodes.forget_reset(where)
    assert zookeeper.nodes[path].data == b"5"
    assert znodes.read_reset(where) == 5
    znodes.forget_reset(where)
    assert path not in zookeeper.nodes


@pytest.mark.parametrize(
    ("theirs", "reset", "after"),
    [(b"4", None, b"12"), (b"", None, b"12"), (None, None, b"12"), (b"90", None, b"90"), (b"90", b"3", b"12")],
)
def test_a_commit_is_written_over_an_old_consumers_that_woke_too_late_and_over_a_higher_one_by_the_next(
    zookeeper: MemoryZooKeeper, theirs: bytes | None, reset: bytes | None, after: bytes
) -> None:
    """R14: what it commits after its session is written without a check."""
    session = zookeeper.connect(ZooKeeperSettings("memory"), lambda _: None, lambda _: None)
    session.start()
    znodes = GroupZnodes(session, "g", "g_a", Registration("static", {"t": 1}), migrates=True, internal_too=False)
    where, path = TopicPartition("t", 0), "/consumers/g/offsets/t/0"
    zookeeper.put(path, b"10")
    if reset is not None:
        zookeeper.put("/consumers/g/migration/reset/t/0", reset)
    assert znodes.read_offset(where) == 10
    znodes.read_reset(where)
    assert znodes.write_offset(where, 11, lambda: True)
    if theirs is None:
        zookeeper.remove(path)
    else:
        zookeeper.put(path, theirs)
    assert not znodes.write_offset(where, 12, lambda: False), "the partition is another's meanwhile: nothing is written"
    assert (zookeeper.nodes[path].data if path in zookeeper.nodes else None) == theirs
    assert znodes.write_offset(where, 12, lambda: True)
    assert zookeeper.nodes[path].data == after
    assert znodes.write_offset(where, 13, lambda: True)
    assert zookeeper.nodes[path].data == b"13", "the holder's, which has delivered what comes next"


def test_an_offset_overwritten_at_each_try_is_reported_as_not_committed(zookeeper: MemoryZooKeeper) -> None:
    """It is tried again while the partition is held."""
    session = zookeeper.connect(ZooKeeperSettings("memory"), lambda _: None, lambda _: None)
    session.start()
    znodes = GroupZnodes(session, "g", "g_a", Registration("static", {"t": 1}), migrates=True, internal_too=False)
    where, path = TopicPartition("t", 0), "/consumers/g/offsets/t/0"
    zookeeper.put(path, b"10")
    znodes.read_offset(where)
    assert not znodes.write_offset(where, 12, lambda: zookeeper.put(path, b"4") is None)
    assert znodes.write_offset(where, 12, lambda: True)
    assert zookeeper.nodes[path].data == b"12"


def test_a_member_that_died_is_no_plain_consumer_for_as_long_as_kafka_keeps_it(zookeeper: MemoryZooKeeper) -> None:
    """Else its partitions would be left alone until its Kafka session ends, 45 s by default."""
    session = zookeeper.connect(ZooKeeperSettings("memory"), lambda _: None, lambda _: None)
    session.start()
    znodes = GroupZnodes(session, "g", "g_a", Registration("static", {"t": 1}), migrates=True, internal_too=False)
    dead, plain = (
        KafkaMember(f"{name}-id", name, frozenset({TopicPartition("t", n)})) for n, name in enumerate(("g_b", "plain"))
    )
    zookeeper.put("/consumers/g/migration/ids/g_b", b"")
    assert znodes.observe([dead, plain]).foreign == plain.partitions
    zookeeper.remove("/consumers/g/migration/ids/g_b")
    assert znodes.observe([dead, plain]).foreign == plain.partitions
