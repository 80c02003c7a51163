"""What a scan reports of a consumer group: by table, one flaw at a time in a group that is sound otherwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.groups.scan import (
    COMMIT_INTERVAL,
    REBALANCE,
    GroupSituation,
    TwoObservations,
    lag_by_partition,
    matching_strategies,
    scan_group,
)
from airflow_provider_kmigrate.core.member.assignors import Assigned, KafkaMember, Strategy, assign
from airflow_provider_kmigrate.core.member.group_seen import GroupSeen, KafkaGroup, StoredOffset, ZkGroup
from airflow_provider_kmigrate.core.member.registration import Flaw, MemberProgress, Mode, Registration, Unreadable
from airflow_provider_kmigrate.core.preflight.findings import Severity
from airflow_provider_kmigrate.core.reasons import ENTRIES

BLOCK, WARN, UNKNOWN = Severity.BLOCK, Severity.WARN, Severity.UNKNOWN
PLACES = tuple(TopicPartition("t", index) for index in range(4))
WANTS = Registration("static", {"t": 1})
FOLLOWS = MemberProgress(1, Mode.KAFKA, settled=True)
ZK = ZkGroup(
    registrations={"g_a": WANTS, "g_b": WANTS},
    owners={place: f"g_{'aabb'[place.partition]}-0" for place in PLACES},
    offsets={place: StoredOffset(10, 5.0) for place in PLACES},
    partitions=frozenset(PLACES),
)
SETTINGS = {"t": {"compression.type": "producer", "message.downconversion.enable": "true"}}
SEEN = GroupSeen("g", ZK, KafkaGroup("Empty"), {}, dict.fromkeys(PLACES, 10))
KAFKA_MEMBERS = KafkaGroup("Stable", (KafkaMember("uuid", "app", frozenset(PLACES), "/10.0.0.1"),))


def zk(**changes: object) -> GroupSeen:
    return replace(SEEN, zk=replace(ZK, **changes))  # type: ignore[arg-type]


def offsets(at: int) -> dict[TopicPartition, StoredOffset]:
    return {place: StoredOffset(at, 5.0) for place in PLACES}


def dealt(strategy: Strategy, *topics: str, partitions: int = 6) -> GroupSeen:
    """Two members with one topic or several, shared out by a strategy."""
    registrations = {name: Registration("static", dict.fromkeys(topics, 1)) for name in ("g_a", "g_b")}
    found = assign(strategy, registrations, dict.fromkeys(topics, range(partitions)))
    assert isinstance(found, Assigned)
    seen = zk(registrations=registrations, owners=found.owners, partitions=frozenset(found.owners))
    return replace(seen, ends=dict.fromkeys(found.owners, 10))


def codes(observations: TwoObservations) -> set[tuple[str, Severity]]:
    return {(finding.code, finding.severity) for finding in scan_group(observations).findings}


def only(name: str, pattern: str, *wildcards: str) -> GroupSeen:
    """Another member beside the sound ones."""
    return zk(registrations={**ZK.registrations, name: Registration(pattern, dict.fromkeys(wildcards, 1))})


LEFT, WEEK = zk(registrations={}, owners={}, partitions=frozenset()), 7 * 86_400.0  # a group without members
COMMITTED = zk(registrations={}, owners={}, partitions=frozenset(), offsets={PLACES[0]: StoredOffset(10, 6.0)})  # and later
REBALANCING = replace(SEEN, kafka=KafkaGroup("PreparingRebalance"))
MIGRATING_LEFT = zk(registrations={}, owners={}, partitions=frozenset(), progress={"g_a": FOLLOWS})
CASES: list[tuple[str, TwoObservations, set[tuple[str, Severity]]]] = [
    ("sound", TwoObservations(SEEN, SEEN, 5.0, SETTINGS), set()),
    ("one observation", TwoObservations(SEEN, settings=SETTINGS), set()),
    ("no ZooKeeper", TwoObservations(replace(SEEN, zk=None), settings=SETTINGS), {("K30", BLOCK)}),
    ("no coordinator", TwoObservations(replace(SEEN, kafka=None, committed=None), settings=SETTINGS), {("K30", BLOCK)}),
    ("no ends", TwoObservations(replace(SEEN, ends=None), settings=SETTINGS), {("K30", BLOCK)}),
    ("no coordinator at first", TwoObservations(SEEN, replace(SEEN, committed=None), 5.0, SETTINGS), {("K30", UNKNOWN)}),
    ("no ends at first", TwoObservations(SEEN, replace(SEEN, ends=None), 5.0, SETTINGS), {("K30", UNKNOWN)}),
    ("no end of one log", TwoObservations(replace(SEEN, ends=dict.fromkeys(PLACES[1:], 10))), {("K30", UNKNOWN)}),
    ("rubbish", TwoObservations(zk(registrations={**ZK.registrations, "x": Unreadable(Flaw.NOT_JSON, "{")})), {("K31", BLOCK)}),
    ("empty", TwoObservations(zk(registrations={**ZK.registrations, "x": Unreadable(Flaw.EMPTY, "")})), {("K31", BLOCK)}),
    ("pykafka", TwoObservations(zk(registrations={**ZK.registrations, "h:1": Unreadable(Flaw.NOT_JSON, "t")})), {("K31", BLOCK)}),
    ("only Java", TwoObservations(only("g_w", "white_list", r"(?i)t")), {("K33", BLOCK)}),
    ("escaped twice", TwoObservations(only("g_w", "white_list", r"t\\..*")), {("K33", WARN)}),
    ("no such topic", TwoObservations(only("g_w", "static", "absent")), {("K33", WARN)}),
    ("newline", TwoObservations(zk(mode_data=b"kafka\n")), {("K35", BLOCK)}),
    ("capitals", TwoObservations(zk(mode_data=b"KAFKA")), {("K35", BLOCK)}),
    ("another word", TwoObservations(zk(mode_data=b"on")), {("K35", WARN)}),
    ("zookeeper", TwoObservations(zk(mode_data=b"zookeeper")), set()),
    ("kafka, but old members", TwoObservations(zk(mode_data=b"kafka")), {("K45", WARN)}),
    ("a reset that no member will apply", TwoObservations(zk(resets={PLACES[0]: 3})), {("K46", BLOCK)}),
    ("a reset", TwoObservations(zk(resets={PLACES[0]: 3}, progress={"g_a": FOLLOWS})), {("K46", WARN)}),
    ("round-robin", TwoObservations(dealt(Strategy.ROUND_ROBIN, "t")), {("K36", WARN)}),
    ("round-robin of 0.10", TwoObservations(dealt(Strategy.ROUND_ROBIN_0_10, "t")), {("K36", WARN)}),
    ("equal hashes", TwoObservations(dealt(Strategy.ROUND_ROBIN, "Aa", "BB")), {("K36", WARN), ("K36", WARN)}),
    (
        "no strategy",
        TwoObservations(zk(owners={p: f"g_{'abba'[p.partition]}-0" for p in PLACES} | {PLACES[3]: "g_b-0"})),
        {("K36", UNKNOWN)},
    ),
    (
        "commits in Kafka",
        TwoObservations(replace(SEEN, committed={PLACES[0]: 9}), replace(SEEN, committed={PLACES[0]: 8}), 5.0),
        {("K37", BLOCK)},
    ),
    (
        "another's commits",
        TwoObservations(replace(SEEN, committed={TopicPartition("x", 0): 9}), replace(SEEN, committed={}), 5.0),
        set(),
    ),
    (
        "the first commit in Kafka",
        TwoObservations(replace(SEEN, committed={PLACES[0]: 9}), SEEN, 5.0),
        {("K37", BLOCK)},
    ),
    (
        "commits in Kafka that were not read at first",
        TwoObservations(replace(SEEN, committed={PLACES[0]: 9}), replace(SEEN, committed=None), 5.0),
        {("K30", UNKNOWN)},
    ),
    (
        "a commit without a registration, by the order of two observations",
        TwoObservations(COMMITTED, LEFT, 5.0),
        {("K95", BLOCK)},
    ),
    (
        "the first commit without a registration",
        TwoObservations(LEFT, replace(LEFT, zk=ZkGroup()), 5.0),
        {("K95", BLOCK)},
    ),
    (
        "the last commit of a member that has left",
        TwoObservations(COMMITTED, SEEN, 5.0),
        set(),
    ),
    (
        "the last commit of a migrating consumer that has left",
        TwoObservations(COMMITTED, MIGRATING_LEFT, 5.0),
        set(),
    ),
    ("commits without a registration", TwoObservations(zk(registrations={}, owners={}, unregistered_s=12.0)), {("K95", BLOCK)}),
    ("idle for longer than Kafka keeps", TwoObservations(LEFT, taken_at=5.0 + WEEK, retention=WEEK), {("K96", WARN)}),
    ("idle for less", TwoObservations(LEFT, taken_at=4.0 + WEEK, retention=WEEK), set()),
    ("idle, and retention unread", TwoObservations(LEFT, taken_at=5.0 + WEEK), {("K96", UNKNOWN)}),
    ("stopped lately, and retention unread", TwoObservations(LEFT, taken_at=5.0 + 3_600.0), set()),
    ("an idle log with members", TwoObservations(SEEN, taken_at=5.0 + WEEK, retention=WEEK), set()),
    ("Kafka consumers beside ZooKeeper consumers", TwoObservations(replace(SEEN, kafka=KAFKA_MEMBERS)), {("K38", BLOCK)}),
    ("zstd", TwoObservations(SEEN, settings={"t": {"compression.type": "zstd"}}), {("K40", WARN)}),
    ("no conversion", TwoObservations(SEEN, settings={"t": {"message.downconversion.enable": "false"}}), {("K40", WARN)}),
    ("settings unread", TwoObservations(SEEN, settings={}), {("K40", UNKNOWN)}),
    ("unowned now", TwoObservations(zk(owners={}), SEEN, 5.0), {("K44", WARN)}),
    ("unowned twice", TwoObservations(zk(owners={}), zk(owners={}), 5.0), {("K44", WARN)}),
    ("unowned for long", TwoObservations(zk(owners={}), zk(owners={}), REBALANCE), {("K44", BLOCK)}),
    (
        "no number",
        TwoObservations(zk(offsets={PLACES[0]: StoredOffset(Unreadable(Flaw.NOT_A_NUMBER, "x"), 0.0)})),
        {("K42", BLOCK)},
    ),
    ("beyond, in ZooKeeper", TwoObservations(zk(offsets=offsets(11))), {("K42", BLOCK)}),
    ("beyond, in Kafka", TwoObservations(replace(SEEN, committed={PLACES[0]: 11})), {("K42", BLOCK)}),
    ("gone from the log", TwoObservations(SEEN, starts=dict.fromkeys(PLACES, 11)), {("K42", BLOCK)}),
    ("still in the log", TwoObservations(SEEN, starts=dict.fromkeys(PLACES, 10)), set()),
    (
        "gone in one store only",
        TwoObservations(replace(zk(offsets=offsets(3)), committed=dict.fromkeys(PLACES, 10)), starts=dict.fromkeys(PLACES, 9)),
        set(),
    ),
    (
        "no member reads what is gone",
        TwoObservations(zk(registrations={}, owners={}, partitions=frozenset()), starts=dict.fromkeys(PLACES, 11)),
        set(),
    ),
    ("rebalancing now", TwoObservations(REBALANCING, SEEN, 5.0), {("K52", WARN)}),
    (
        "rebalancing at both observations",
        TwoObservations(REBALANCING, REBALANCING, 5.0),
        {("K52", BLOCK)},
    ),
    ("owners without members", TwoObservations(zk(registrations={})), {("K52", WARN)}),
    (
        "an owner of a dead session",
        TwoObservations(zk(owners={**ZK.owners, PLACES[0]: "g_dead-0"})),
        {("K52", WARN), ("K36", UNKNOWN)},
    ),
    ("behind and still", TwoObservations(zk(offsets=offsets(3)), zk(offsets=offsets(3)), 5.0), {("K44", UNKNOWN)}),
    (
        "still for a minute",
        TwoObservations(replace(zk(offsets=offsets(3)), ends=dict.fromkeys(PLACES, 11)), zk(offsets=offsets(3)), COMMIT_INTERVAL),
        {("K44", BLOCK)},
    ),
    (
        "at the end of idle logs",
        TwoObservations(zk(offsets=offsets(9)), zk(offsets=offsets(9)), COMMIT_INTERVAL),
        {("K44", UNKNOWN)},
    ),
    ("behind and moving", TwoObservations(zk(offsets=offsets(4)), zk(offsets=offsets(3)), COMMIT_INTERVAL), set()),
    ("no member", TwoObservations(zk(registrations={}, owners={}, offsets=offsets(3)), SEEN, COMMIT_INTERVAL), set()),
]


@pytest.mark.parametrize(
    ("observations", "step"),
    [
        (TwoObservations(SEEN), "last broker into KRaft mode"),
        (TwoObservations(MIGRATING_LEFT), "last broker into KRaft mode"),
        (TwoObservations(zk(registrations={}, owners={}, unregistered_s=12.0)), "first broker into KRaft mode"),
        (TwoObservations(COMMITTED, LEFT, 5.0), "first broker into KRaft mode"),
        (TwoObservations(LEFT, COMMITTED, 5.0), ""),
        (TwoObservations(COMMITTED, SEEN, 5.0), ""),
        (TwoObservations(LEFT, replace(LEFT, zk=None), 5.0), ""),
        (TwoObservations(replace(SEEN, zk=None), LEFT, 5.0), ""),
    ],
)
def test_a_scan_says_at_which_step_of_the_migration_a_group_breaks(observations: TwoObservations, step: str) -> None:
    assert scan_group(observations).breaks == step


@pytest.mark.parametrize(("observations", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_findings(observations: TwoObservations, expected: set[tuple[str, Severity]]) -> None:
    asked = observations if observations.settings is not None else replace(observations, settings=_message(observations))
    assert codes(asked) == expected


def _message(observations: TwoObservations) -> dict[str, dict[str, str]]:
    topics = {where.topic for where in observations.now.zk.partitions} if observations.now.zk else set()
    return {topic: {"compression.type": "producer"} for topic in topics}


def test_every_rule_has_its_case() -> None:
    scanned = {code for code, each in ENTRIES.items() if code[0] == "K" and each.source} - {"K01", "K77", "B18"}
    assert {code for case in CASES for code, _ in case[2]} == scanned


def test_what_is_not_known_says_how_to_find_out() -> None:
    asked = {code for _, _, found in CASES for code, severity in found if severity is UNKNOWN}
    assert [code for code in asked if not ENTRIES[code].ask] == []


MIGRATING = zk(progress={"g_a": FOLLOWS, "g_b": FOLLOWS})
STANDINGS: list[tuple[GroupSeen, GroupSituation]] = [
    (SEEN, GroupSituation.ZOOKEEPER),
    (zk(progress={"g_a": FOLLOWS}), GroupSituation.MIXED),
    (zk(progress={"g_a": FOLLOWS}, mode_data=b"kafka"), GroupSituation.MIXED),
    (MIGRATING, GroupSituation.MIGRATING),
    (zk(progress={"g_a": FOLLOWS, "g_b": FOLLOWS}, mode_data=b"kafka"), GroupSituation.IN_KAFKA_MODE),
    (replace(MIGRATING, kafka=KAFKA_MEMBERS), GroupSituation.MIXED_WITH_KAFKA),
    (replace(SEEN, zk=ZkGroup(), kafka=KAFKA_MEMBERS), GroupSituation.KAFKA),
    (replace(SEEN, zk=ZkGroup()), GroupSituation.EMPTY),
    (replace(SEEN, zk=None), GroupSituation.UNKNOWN),
    (replace(SEEN, kafka=None), GroupSituation.UNKNOWN),
    (replace(zk(registrations={"x": Unreadable(Flaw.EMPTY, "")}), kafka=None), GroupSituation.FROZEN),
]


@pytest.mark.parametrize(("seen", "expected"), STANDINGS, ids=[str(number) for number in range(len(STANDINGS))])
def test_standing(seen: GroupSeen, expected: GroupSituation) -> None:
    assert scan_group(TwoObservations(seen)).situation is expected


def test_every_standing_is_there() -> None:
    assert {expected for _, expected in STANDINGS} == set(GroupSituation)


@pytest.mark.parametrize(
    ("seen", "breaks"),
    [
        (SEEN, "last broker into KRaft mode"),
        (MIGRATING, "last broker into KRaft mode"),
        (replace(SEEN, zk=ZkGroup(progress={"g_a": FOLLOWS})), "last broker into KRaft mode"),
        (replace(SEEN, zk=ZkGroup(unregistered_s=3.0)), "first broker into KRaft mode"),
        (replace(SEEN, zk=ZkGroup(), kafka=KAFKA_MEMBERS), ""),
        (replace(SEEN, zk=None), ""),
    ],
)
def test_the_step_at_which_a_group_breaks(seen: GroupSeen, breaks: str) -> None:
    assert scan_group(TwoObservations(seen)).breaks == breaks


def test_the_last_commit_is_the_newest_in_zookeeper() -> None:
    stored = {PLACES[0]: StoredOffset(5, 7.0), PLACES[1]: StoredOffset(Unreadable(Flaw.EMPTY, ""), 9.0)}
    assert scan_group(TwoObservations(zk(offsets=stored))).last_commit == 9.0, "a client wrote there, whatever it was"
    assert scan_group(TwoObservations(replace(SEEN, zk=ZkGroup()))).last_commit is None
    assert scan_group(TwoObservations(replace(SEEN, zk=None))).last_commit is None


def test_lag_and_what_advanced() -> None:
    before = replace(zk(offsets=offsets(3)), committed={PLACES[0]: 4})
    now = replace(zk(offsets=offsets(5)), committed={PLACES[0]: 9})
    found = scan_group(TwoObservations(now, before, 5.0, SETTINGS))
    assert now.positions == {PLACES[0]: 9, PLACES[1]: 5, PLACES[2]: 5, PLACES[3]: 5}
    assert (found.lag, found.advanced) == (1 + 3 * 5, {"zookeeper": 4, "kafka": 1})
    assert lag_by_partition(replace(now, ends=None)) == {}
    assert (scan_group(TwoObservations(replace(now, ends=None))).lag, scan_group(TwoObservations(now)).advanced) == (None, {})


@pytest.mark.parametrize("strategy", list(Strategy))
def test_a_strategy_shows_in_the_owners(strategy: Strategy) -> None:
    seen = dealt(strategy, "orders", "bills", partitions=7)
    assert seen.zk is not None
    assert matching_strategies(seen.zk) == frozenset({strategy})


@pytest.mark.parametrize("damage", [{"registrations": {"x": Unreadable(Flaw.EMPTY, "")}}])
def test_the_strategy_of_a_frozen_group_is_unknown(damage: dict[str, object]) -> None:
    seen = zk(**damage)
    assert seen.zk is not None
    assert matching_strategies(seen.zk) is None


def test_the_gravest_comes_first() -> None:
    found = scan_group(TwoObservations(zk(mode_data=b"kafka\n", registrations={"x": Unreadable(Flaw.EMPTY, "")}), settings={}))
    order: Callable[[Severity], int] = list(Severity).index
    severities = [order(finding.severity) for finding in found.findings]
    assert severities == sorted(severities)
    assert found.blocked
