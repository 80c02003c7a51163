"""`__consumer_offsets` decoded: bytes that a real 3.9.2 broker wrote, and bytes of Kafka's own serializers for what it no longer writes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_kmigrate.core.audit.commit_tracks import Tracks
from airflow_provider_kmigrate.core.ledger.book import GroupPartition
from airflow_provider_kmigrate.core.migration.coordinator import hash_group
from airflow_provider_kmigrate.core.offsets_topic.offsets_records import (
    BadRecord,
    ConsumerMember,
    GroupRemoved,
    GroupState,
    OffsetCommitted,
    OffsetRemoved,
    OtherRecord,
    RawRecord,
    RecordBytes,
    decode_record,
)
from tests.core.offsets_bytes import EMPTY_GROUP, commit_key, commit_value, group_key

LINES = [line.split() for line in (Path(__file__).parent / "golden_offsets.txt").read_text().splitlines() if line[0] != "#"]
GOLDEN = {name: bytes.fromhex(data) for name, data, *rest in LINES if name != "broker"}
BROKER = [
    RawRecord(int(partition), int(offset), int(t_ms), bytes.fromhex(key), None if value == "-" else bytes.fromhex(value))
    for name, partition, offset, t_ms, key, value in (line for line in LINES if line[0] == "broker")
]
GROUP, T_MS = "grüppe", 1795241479346


def test_what_a_broker_wrote() -> None:
    assert [decode_record(raw.key, raw.value) for raw in BROKER] == [
        OffsetCommitted("gone", "t", 2, 3, 1795297306598),
        OffsetRemoved("gone", "t", 2),
        OffsetCommitted("adm", "t", 1, 7, 1795297306593),
        GroupState("grp", 2),
        OffsetCommitted("grp", "t", 1, 10, 1795297305011, metadata="\0"),
        OffsetCommitted("grp", "t", 0, 10, 1795297305011, metadata="märk\0"),
        OffsetCommitted("grp", "t", 2, 10, 1795297305580, metadata="\0"),
    ]


def test_a_broker_keeps_a_group_where_its_hash_says() -> None:
    records = [(raw, decode_record(raw.key, raw.value)) for raw in BROKER]
    assert {(record.group, raw.partition) for raw, record in records} == {
        (group, hash_group(group) % 50) for group in ("gone", "adm", "grp")
    }


@pytest.mark.parametrize("key", [0, 1])
@pytest.mark.parametrize("version", range(5))
def test_every_version_of_a_commit(key: int, version: int) -> None:
    found = decode_record(GOLDEN[f"offset_key_v{key}"], GOLDEN[f"offset_value_v{version}"])
    epoch, expiry = 17 if version >= 3 else -1, T_MS + 520_653 if version == 1 else None
    assert found == OffsetCommitted(GROUP, "orders", 11, 1234567890123, T_MS, epoch, "märk", expiry)


def test_what_the_tests_write_is_what_kafka_writes() -> None:
    key = GroupPartition(GROUP, "orders", 11)
    assert commit_key(key) == GOLDEN["offset_key_v1"]
    assert commit_value(1234567890123, T_MS, 17, "märk") == GOLDEN["offset_value_v3"]
    assert (group_key(GROUP), EMPTY_GROUP) == (GOLDEN["group_key"], GOLDEN["group_empty_v3"])


@pytest.mark.parametrize("version", range(5))
def test_every_version_of_a_group(version: int) -> None:
    assert decode_record(GOLDEN["group_key"], GOLDEN[f"group_value_v{version}"]) == GroupState(GROUP, 2)
    assert decode_record(GOLDEN["group_key"], GOLDEN[f"group_empty_v{version}"]) == GroupState(GROUP, 0)


def test_tombstones() -> None:
    assert decode_record(GOLDEN["offset_key_v1"], None) == OffsetRemoved(GROUP, "orders", 11)
    assert decode_record(GOLDEN["group_key"], None) == GroupRemoved(GROUP)
    assert decode_record(GOLDEN["consumer_group_key"], None) == GroupRemoved(GROUP)
    assert decode_record(GOLDEN["consumer_member_key"], None) == ConsumerMember(GROUP, "m1", there=False)
    assert decode_record(GOLDEN["consumer_current_key"], None) == ConsumerMember(GROUP, "m1", there=False)


def test_groups_of_kip_848() -> None:
    def read(name: str) -> object:
        return decode_record(GOLDEN[f"consumer_{name}_key"], GOLDEN[f"consumer_{name}_value"])

    assert read("group") == OtherRecord()
    assert read("member") == ConsumerMember(GROUP, "m1")
    assert read("current") == ConsumerMember(GROUP, "m1")
    assert decode_record(GOLDEN["target_key"], b"") == OtherRecord()


def test_an_assignment_that_is_no_consumers_or_damaged_spoils_nothing() -> None:
    value = GOLDEN["group_value_v3"]
    connect = decode_record(GOLDEN["group_key"], value.replace(b"consumer", b"connect!"))
    damaged = decode_record(GOLDEN["group_key"], value.replace(b"\0\3\0\0\0\2\0\6orders", b"\0\3\0\0\x7f\2\0\6orders"))
    assert connect == damaged == GroupState(GROUP, 2)


def test_unknown_versions_are_refused_by_number() -> None:
    with pytest.raises(BadRecord, match="version 5"):
        decode_record(GOLDEN["offset_key_v1"], b"\0\5" + GOLDEN["offset_value_v3"][2:])
    with pytest.raises(BadRecord, match="version -1"):
        decode_record(GOLDEN["group_key"], b"\xff\xff")


@pytest.mark.parametrize("length", [-1, 2, 2**31 - 1])
def test_an_array_is_no_longer_than_the_bytes_left(length: int) -> None:
    assert RecordBytes(b"\0\0\0\1a").read_array_size() == 1
    with pytest.raises(BadRecord, match="an array of"):
        RecordBytes(length.to_bytes(4, signed=True) + b"a").read_array_size()


def test_a_group_without_a_name_is_no_group() -> None:
    with pytest.raises(BadRecord, match="null"):
        decode_record(b"\0\2\xff\xff", None)


@pytest.mark.parametrize("name", [name for name in GOLDEN if "value" in name])
def test_bytes_that_are_cut_or_too_long(name: str) -> None:
    key = GOLDEN[{"offset": "offset_key_v1", "group": "group_key"}.get(name.partition("_")[0], name.replace("value", "key"))]
    for size in range(len(GOLDEN[name])):
        with pytest.raises(BadRecord):
            decode_record(key, GOLDEN[name][:size])
    with pytest.raises(BadRecord):
        decode_record(key, GOLDEN[name] + b"\0")


@pytest.mark.parametrize("name", [name for name in GOLDEN if name.endswith("key") or "_key_" in name])
@pytest.mark.parametrize("value", [True, False])
def test_a_key_that_is_too_long(name: str, value: bool) -> None:
    values = {"offset_key_v0": "offset_value_v3", "offset_key_v1": "offset_value_v3", "group_key": "group_value_v3"}
    whole = GOLDEN[values.get(name, name.replace("key", "value"))] if value and name != "target_key" else None
    if isinstance(decode_record(GOLDEN[name], whole), OtherRecord) and name != "consumer_group_key":
        return  # nothing of it is read
    with pytest.raises(BadRecord):
        decode_record(GOLDEN[name] + b"\0", whole)


@settings(max_examples=300)
@given(st.sampled_from(sorted(GOLDEN)), st.integers(0, 400), st.binary(max_size=6), st.sampled_from([*GOLDEN]))
def test_damage_is_refused_or_read_never_an_accident(name: str, at: int, noise: bytes, other: str) -> None:
    damaged = GOLDEN[name][:at] + noise + GOLDEN[name][at + len(noise) :]
    for key, value in ((GOLDEN[other], damaged), (damaged, GOLDEN[other]), (damaged, None), (noise, noise)):
        refused = None
        try:
            decode_record(key, value)
        except Exception as error:  # noqa: BLE001  # any other class is the accident
            refused = error
        assert refused is None or isinstance(refused, BadRecord)


def test_what_cannot_be_read_is_counted_and_the_rest_is_read() -> None:
    bad = [RawRecord(3, offset, 0, None if offset % 2 else b"\0", b"") for offset in range(30)]
    found = Tracks()
    for raw in [*bad, *BROKER]:
        found.add_raw(raw)
    assert (found.refused, sum(track.count for track in found.found.values()), found.members) == (30, 6, {"grp": 2})
