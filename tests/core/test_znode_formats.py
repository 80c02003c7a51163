"""Which versions of znodes kmigrate's readers understand, against what each release writes and takes; every other version is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tests.kit.releases
from airflow_provider_kmigrate.clients import partition_states, znodes
from airflow_provider_kmigrate.core.cluster_state.model import Malformed
from airflow_provider_kmigrate.core.cluster_state.znode_formats import (
    ACL,
    BROKER,
    CLUSTER_ID,
    CONFIG,
    CONFIG_CHANGE,
    CONTROLLER,
    FEATURE,
    FORMATS,
    MIGRATION,
    PRODUCER_IDS,
    STATE,
    TOKEN,
    TOPIC,
    UnknownVersion,
    require_known_version,
)
from airflow_provider_kmigrate.core.node_files.kafka_keys import kafka_rules
from airflow_provider_kmigrate.core.preflight.first_file import parse_registration
from airflow_provider_kmigrate.exceptions import Failed
from airflow_provider_kmigrate.observe import stored

DATA = json.loads(Path(tests.kit.releases.__file__).with_name("znode_formats.json").read_text())
RELEASES = kafka_rules().with_zookeeper
#: (kind, release) -> the versions that it writes, and those that its readers take.
SAID = {
    (kind, release): variant
    for kind, variants in DATA["znodes"].items()
    for variant in variants
    for release in variant.get("in", DATA["releases"])
}
#: A znode of each kind, without its version.
SAMPLES: dict[str, dict[str, Any]] = {
    BROKER: {"host": "h", "port": 1, "timestamp": "1", "endpoints": ["PLAINTEXT://h:1"]},
    TOPIC: {"partitions": {"0": [1]}, "topic_id": "AAAAAAAAAAAAAAAAAAAAAQ"},
    STATE: {"controller_epoch": 1, "leader": 1, "leader_epoch": 1, "isr": [1, 2]},
    CLUSTER_ID: {"id": "x"},
    CONFIG: {"config": {}},
    CONFIG_CHANGE: {"entity_path": "topics/t"},
    CONTROLLER: {"brokerid": 1, "kraftControllerEpoch": -1},
    MIGRATION: {"kraft_controller_id": 1, "kraft_controller_epoch": 1, "kraft_metadata_offset": 1, "kraft_metadata_epoch": 1},
    FEATURE: {"features": {}, "status": 1},
    ACL: {"acls": []},
    TOKEN: {"owner": "User:a", "renewers": [], "issueTimestamp": 1, "expiryTimestamp": 1, "maxTimestamp": 1},
    PRODUCER_IDS: {"block_end": "999"},
}
#: The readers; each gives None, `Malformed` or nothing, or raises `Failed`, for what it does not read.
READERS: list[tuple[str, Callable[[bytes], Any]]] = [
    (CLUSTER_ID, znodes.parse_cluster_id),
    (CONTROLLER, lambda data: znodes.parse_controller(data, ephemeral=True)),
    (MIGRATION, lambda data: znodes.parse_migration(data, 3)),
    (TOPIC, lambda data: znodes.parse_topic("t", data)),
    (STATE, lambda data: znodes.parse_partition_state("/s", data)),
    (STATE, lambda data: znodes.parse_state_epoch("/s", data)),
    (CONFIG, lambda data: znodes.parse_configs("/config/topics/t", data)),
    (CONFIG, lambda data: stored._parse_znode("/p", stored._parse_config, data)),
    (ACL, lambda data: stored._parse_znode("/p", stored._parse_acls, data)),
    (TOKEN, lambda data: stored._parse_znode("/p", stored._parse_token_znode, data)),
    (BROKER, lambda data: parse_registration(data) or Malformed("/p", "", unknown_version=True)),
]


def sample(kind: str, *version: int) -> bytes:
    return json.dumps({**dict(zip(("version",), version, strict=False)), **SAMPLES[kind]}).encode()


def is_read(read: Callable[[bytes], Any], data: bytes) -> bool:
    try:
        found = read(data)
    except Failed:
        return False
    return not isinstance(found, Malformed)


def test_the_data_is_of_every_release_that_has_zookeeper_and_of_every_kind() -> None:
    assert tuple(DATA["releases"]) == RELEASES
    assert {kind for kind, _ in SAID} == FORMATS.keys() == SAMPLES.keys()
    assert len(SAID) == len(FORMATS) * len(RELEASES)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("kind", FORMATS)
def test_what_a_release_writes_is_known_and_what_is_known_it_takes(kind: str, release: str) -> None:
    row, said = FORMATS[kind], SAID[kind, release]
    assert set(said["written"]) <= set(row.versions), f"Kafka {release} writes what kmigrate needs to {row.purpose}"
    assert set(row.versions) <= set(said["read"])
    assert row.may_lack_version is (None in said["read"])


@pytest.mark.parametrize(("kind", "read"), READERS, ids=[kind for kind, _ in READERS])
def test_a_reader_reads_the_known_versions_and_no_other(kind: str, read: Callable[[bytes], Any]) -> None:
    versions = {version for version in range(10) if is_read(read, sample(kind, version))}
    assert versions == set(FORMATS[kind].versions)
    assert is_read(read, sample(kind)) is FORMATS[kind].may_lack_version


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("version", [10, -1, 1.0, True, None, "one", [1]])
def test_no_other_value_is_a_version(kind: str, version: object) -> None:
    with pytest.raises(UnknownVersion, match=r"^(no )?version"):
        require_known_version(kind, {"version": version})


def test_an_unknown_version_is_named_with_those_that_are_known() -> None:
    found = znodes.parse_topic("t", sample(TOPIC, 4))
    known = "version '4'; kmigrate knows 1, 2, 3 (TopicZNode, KIP-455, KIP-516)"
    assert found == Malformed("/brokers/topics/t", known, unknown_version=True)
    with pytest.raises(Failed, match=r"^/brokers/topics/t has version '4'; kmigrate knows 1, 2, 3"):
        znodes.raise_if_malformed(found)
    with pytest.raises(Failed, match=r"^/p has version '4'; kmigrate knows 1, 2, 3"):
        stored._parse_znode("/p", stored._parse_token_znode, sample(TOKEN, 4))


def test_a_state_of_an_unknown_version_is_not_rewritten_without_brokers() -> None:
    assert partition_states.state_without_brokers(sample(STATE, 1), [1]) != sample(STATE, 1)
    assert partition_states.state_without_brokers(sample(STATE, 2), [1]) == sample(STATE, 2)


def test_each_row_says_what_it_is_read_for() -> None:
    for row in FORMATS.values():
        assert row.purpose
        assert not row.purpose.endswith(".")
        assert row.versions == tuple(sorted(row.versions))
