"""Each error that a coordinator may give, to whole members on librdkafka's mock brokers: docs/rebalance-checklist.md has the table."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from airflow_provider_kmigrate.applications.event_log import read_events
from airflow_provider_kmigrate.applications.migrating import MigratingConsumer
from airflow_provider_kmigrate.applications.migrating import runner as migrating_shell
from airflow_provider_kmigrate.core.events.model import Ownership, OwnershipChange
from airflow_provider_kmigrate.core.member.messages import MemberAlarm
from airflow_provider_kmigrate.core.member.state import Settings
from tests.consumer.memory_group_zookeeper import MemoryZooKeeper
from tests.consumer.migrating_group import Load, Member, delivered, facts
from tests.consumer.mock_kafka import COORDINATOR, MODE, WatchedKafka, after, goes_on, offsets
from tests.consumer.wire_log import Api
from tests.waiting import wait_until

pytestmark = pytest.mark.slow(seconds=110)


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
def test_r2_r5_a_passing_error_keeps_no_member_out(
    watched: WatchedKafka, joins: Callable[..., Member], tmp_path: Path, api: Api, code: int
) -> None:
    watched.fail(api, code)
    with joins() as member:
        wait_until(lambda: len(member.owned) == 4, "it has all")
        goes_on(watched, tmp_path)
        assert len(watched.sent(api)) > 1, "it received the error and asked again"
    assert not facts(tmp_path).violations


@pytest.mark.parametrize(
    ("api", "code", "times"),
    [
        (Api.OFFSET_FETCH, KafkaError.COORDINATOR_LOAD_IN_PROGRESS, 3),
        (Api.FIND_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE, 5),
        (Api.FIND_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS, 2),
    ],
)
def test_r2_errors_that_pass_after_a_while_keep_no_member_out(  # noqa: PLR0917  # fixtures
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
        wait_until(lambda: code in member.answered_at, "the application receives the error")
        watched.forgive(api)
        goes_on(watched, tmp_path)
        assert len(watched.sent(api)) > 1, "it was refused, and tried again"


def test_an_error_that_lasts_stops_no_member_in_zookeeper_mode(
    watched: WatchedKafka, zookeeper: MemoryZooKeeper, joins: Callable[..., Member], tmp_path: Path
) -> None:
    zookeeper.put(MODE, b"zookeeper")
    watched.fail(Api.JOIN_GROUP, *[KafkaError.INVALID_SESSION_TIMEOUT] * 50)
    with joins() as member:
        goes_on(watched, tmp_path)
        wait_until(lambda: len(watched.sent(Api.JOIN_GROUP)) > 1, "it was refused")
        goes_on(watched, tmp_path)
        assert member.answered_at == []


def test_a_group_without_a_coordinator_raises_the_alarm(
    watched: WatchedKafka, joins: Callable[..., Member], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """No error tells the application that it joins in vain for ever (KIP-895's blackout); its partitions without an owner do."""
    monkeypatch.setattr(migrating_shell, "Settings", partial(Settings, unowned=1.0, observe_every=0.2))
    watched.fail(Api.JOIN_GROUP, *[KafkaError.NOT_COORDINATOR] * 500)
    with caplog.at_level(logging.WARNING), joins() as member:
        wait_until(lambda: MemberAlarm.UNOWNED.value in caplog.text, "the alarm")
        assert member.answered_at == []
        watched.forgive(Api.JOIN_GROUP)
        goes_on(watched, tmp_path)


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
    wait_until(lambda: zookeeper.nodes["/consumers/g/offsets/t/0"].data == b"3", "ZooKeeper, the second", despite=(KeyError,))
    wait_until(lambda: consumer.poll(0.1) or offsets(watched).get(0) == 3, "Kafka has it, too")
    watched.fill("t", {0: 1})
    got = list[int]()
    wait_until(lambda: got.extend(one.offset() or 0 for one in consumer.consume(9, 0.2)) or got, "the next record")
    assert got == [3]


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


@pytest.mark.parametrize(("cut", "change"), [(True, OwnershipChange.LOST), (False, OwnershipChange.RELEASED)])
def test_what_kafka_takes_while_the_session_is_not_proven_may_be_anothers_already(  # fixtures
    watched: WatchedKafka, alone: Member, tmp_path: Path, cut: bool, change: OwnershipChange
) -> None:
    session = alone.consumer._runner._zk
    if cut:
        session.lose_connection()
    watched.fail(Api.HEARTBEAT, KafkaError.UNKNOWN_MEMBER_ID)
    wait_until(lambda: not alone.owned, "it gives up all")
    if cut:
        session.expire()
    wait_until(lambda: len(alone.owned) == 4, "it has all again")
    goes_on(watched, tmp_path)
    owned = [event for event in read_events(tmp_path).events if isinstance(event, Ownership)]
    changes = [(event.change, where.partition) for event in owned for where in event.partitions]  # on a crowded machine in parts
    assert sorted(changes[:4]) == [(OwnershipChange.ACQUIRED, n) for n in range(4)]
    assert sorted(changes[4:8]) == [(change, n) for n in range(4)]
