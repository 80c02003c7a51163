"""The znodes of a group: the bytes of the real old consumer, and whatever else may stand there."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.member.registration import (
    Flaw,
    GroupPaths,
    MemberProgress,
    Mode,
    Registration,
    Unreadable,
    consumer_id,
    consumer_of,
    encode_offset,
    host_of_consumer,
    parse_mode,
    read_offset,
    read_progress,
    read_registration,
    thread_id,
    write_progress,
    write_registration,
)

#: As a real ConsoleConsumer of 1.1.1 wrote it.
REAL = b'{"version":1,"subscription":{"t1":1},"pattern":"white_list","timestamp":"1795226356203"}'


def test_the_bytes_are_those_of_the_old_consumer() -> None:
    read = read_registration(REAL)

    assert read == Registration("white_list", {"t1": 1})
    assert isinstance(read, Registration)
    assert read.timestamp == "1795226356203"
    assert write_registration(read) == REAL


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"pattern":"static","subscription":{"t":2}}', Registration("static", {"t": 2})),
        (b'{"pattern":"static","subscription":{},"timestamp":1795226356}', Registration("static", {})),
        (b'{"pattern":"other","subscription":{"t":1}}', Registration("other", {"t": 1})),
        (rb'{"pattern":"white_list","subscription":{"app\\\\.t":1}}', Registration("white_list", {r"app\\.t": 1})),
        (rb'{"pattern":"white_list","subscription":{"app\.t":1}}', Registration("white_list", {r"app\.t": 1})),
        (b' {"pattern":"static","subscription":{"t":1}} and more', Registration("static", {"t": 1})),
        ('{"pattern":"static","subscription":{"ü":1}}'.encode(), Registration("static", {"ü": 1})),
    ],
    ids=["least", "time as a number", "unknown pattern", "escaped twice", "not escaped", "something behind", "not ASCII"],
)
def test_what_others_write_is_read_as_the_old_consumer_reads_it(data: bytes, expected: Registration) -> None:
    assert read_registration(data) == expected


@pytest.mark.parametrize(
    ("data", "flaw"),
    [
        (None, Flaw.EMPTY),
        (b"", Flaw.EMPTY),
        (b"t1", Flaw.NOT_JSON),  # pykafka's: the bare name of the topic
        (b"\xff\xfe", Flaw.NOT_JSON),
        (b"[1]", Flaw.NOT_JSON),
        (b"[" * 100_000, Flaw.NOT_JSON),
        (b'{"subscription":{"t":1}}', Flaw.NO_PATTERN),
        (b'{"pattern":null,"subscription":{"t":1}}', Flaw.NO_PATTERN),
        (b'{"pattern":"static"}', Flaw.NO_SUBSCRIPTION),
        (b'{"pattern":"static","subscription":["t"]}', Flaw.NO_SUBSCRIPTION),
        (b'{"pattern":"static","subscription":{"t":0}}', Flaw.NO_STREAMS),
        (b'{"pattern":"static","subscription":{"t":"1"}}', Flaw.NO_STREAMS),
        (b'{"pattern":"static","subscription":{"t":1.0}}', Flaw.NO_STREAMS),
        (b'{"pattern":"static","subscription":{"t":true}}', Flaw.NO_STREAMS),
        (b'{"pattern":"static","subscription":{"t":2147483648}}', Flaw.NO_STREAMS),
    ],
)
def test_a_registration_that_freezes_its_group_has_a_name(data: bytes | None, flaw: Flaw) -> None:
    found = read_registration(data)

    assert isinstance(found, Unreadable)
    assert found.flaw is flaw
    assert len(found.content) <= 200


@given(st.binary(max_size=80) | st.recursive(st.none() | st.text(), lambda x: st.dictionaries(st.text(), x)).map(json.dumps))
def test_nothing_in_a_znode_is_a_crash(data: bytes | str) -> None:
    raw = data.encode() if isinstance(data, str) else data
    assert isinstance(read_registration(raw), Registration | Unreadable)
    assert isinstance(read_offset(raw), int | Unreadable)
    assert read_progress(raw) is None


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@given(st.sampled_from(["static", "white_list", "black_list"]), st.dictionaries(names, st.integers(1, 99), max_size=4))
def test_what_is_written_is_read(pattern: str, subscription: dict[str, int]) -> None:
    registration = Registration(pattern, subscription, "17")
    assert read_registration(write_registration(registration)) == registration
    progress = MemberProgress(epoch=7, mode=Mode.KAFKA, settled=True)
    reported = write_progress(registration, progress)
    assert (read_registration(reported), read_progress(reported)) == (registration, progress)


def test_a_backslash_is_escaped_once() -> None:
    assert rb'{"app\\.t.*":1}' in write_registration(Registration("white_list", {r"app\.t.*": 1}))


@pytest.mark.parametrize("data", [None, b"", b"kafka\n", b"Kafka", b" kafka", b"zookeeper", b"\xff", b"kafkakafka"])
def test_whatever_is_not_exactly_kafka_is_zookeeper_mode(data: bytes | None) -> None:
    assert parse_mode(data) is Mode.ZOOKEEPER
    assert parse_mode(b"kafka") is Mode.KAFKA


@pytest.mark.parametrize(
    ("data", "offset"), [(b"0", 0), (b"15", 15), (b"-1", -1), (b"+7", 7), (b"9223372036854775807", 2**63 - 1)]
)
def test_offsets(data: bytes, offset: int) -> None:
    assert read_offset(data) == offset
    assert read_offset(encode_offset(offset)) == offset


@pytest.mark.parametrize(
    ("data", "flaw"),
    [
        (None, Flaw.EMPTY),
        (b"", Flaw.EMPTY),
        (b" 1", Flaw.NOT_A_NUMBER),
        (b"1\n", Flaw.NOT_A_NUMBER),
        (b"1_0", Flaw.NOT_A_NUMBER),
        ("\u0661".encode(), Flaw.NOT_A_NUMBER),
        (b"9223372036854775808", Flaw.NOT_A_NUMBER),
    ],
)
def test_offsets_that_are_none(data: bytes | None, flaw: Flaw) -> None:
    found = read_offset(data)
    assert isinstance(found, Unreadable)
    assert found.flaw is flaw


@pytest.mark.parametrize(
    ("consumer", "host"),
    [
        ("billing_app-0.example.org-1700000000000-1a2b3c4d", "app-0.example.org"),
        ("billing_app_1-1700000000000-1a2b3c4d", "app_1"),
        ("billing_app", ""),
        ("billing_app-1700000000000-1a2b", ""),
        ("billing_-1700000000000-1a2b3c4d", ""),
        ("billing_a\x1b[2J-1700000000000-1a2b3c4d", "a\\x1b[2J"),
        (consumer_id("billing", "here", 1700000000000, 1 << 127), "here"),
    ],
)
def test_a_consumer_id_that_was_not_chosen_has_the_host(consumer: str, host: str) -> None:
    assert host_of_consumer(consumer, "billing") == host


def test_names() -> None:
    """The example is of a real process: g1_vm-1795226356133-c69eb14b."""
    name = consumer_id("g1", "vm", 1795226356133, 0xC69EB14B_0000_4000_8000_000000000000)

    assert name == "g1_vm-1795226356133-c69eb14b"
    assert thread_id(name, 10) == "g1_vm-1795226356133-c69eb14b-10"
    assert consumer_of(thread_id(name, 10)) == name


def test_places() -> None:
    paths, where = GroupPaths("g"), TopicPartition("t", 3)
    assert (paths.ids, paths.migration_ids) == ("/consumers/g/ids", "/consumers/g/migration/ids")
    assert paths.mode == "/consumers/g/migration/mode"
    assert (paths.owner(where), paths.offset(where)) == ("/consumers/g/owners/t/3", "/consumers/g/offsets/t/3")
