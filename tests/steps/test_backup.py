"""Originals are kept once, checked on every use, and never mixed up."""

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.clients.hosts import files
from airflow_provider_kmigrate.core.cluster_state.model import PartitionMetadata, StoredKind, TopicMetadata
from airflow_provider_kmigrate.core.cluster_state.spec import HostSpec, NodeRole, NodeSpec
from airflow_provider_kmigrate.exceptions import Failed, Refused
from airflow_provider_kmigrate.steps.backup import BackupStore
from tests.kit.hostile import altered
from tests.steps.sim_nodes import Killed

NODE = NodeSpec(0, NodeRole.BROKER, "h", 9092, HostSpec("agent", "p"))


@pytest.fixture
def store(tmp_path: Path) -> BackupStore:
    return BackupStore(tmp_path, "prod", "-1Sh-9_ISia_zwGINzRvyQ")


def code(refused: pytest.ExceptionInfo[Refused]) -> str:
    return refused.value.reasons[0].code


def code_of(act: Callable[[], object]) -> str:
    try:
        act()
    except Refused as error:
        return error.reasons[0].code
    return ""


def test_an_original_comes_back_byte_for_byte_and_is_private(store: BackupStore) -> None:
    text = "broker.id=0\r\n# caf\xe9\n"
    store.keep_original(NODE, text)
    assert store.read_original(NODE) == text
    files = list(store.folder.iterdir())
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert {file.name for file in files} == {"manifest.json", "broker-0.properties"}


def test_the_same_original_again_is_fine_another_is_refused(store: BackupStore) -> None:
    store.keep_original(NODE, "a=1\n")
    store.keep_original(NODE, "a=1\n")
    with pytest.raises(Refused) as refused:
        store.keep_original(NODE, "a=2\n")
    assert code(refused) == "O03"
    assert store.read_original(NODE) == "a=1\n"


def test_a_missing_original_is_refused(store: BackupStore) -> None:
    with pytest.raises(Refused) as refused:
        store.read_original(NODE)
    assert code(refused) == "O01"


def test_an_altered_original_is_refused(store: BackupStore) -> None:
    store.keep_original(NODE, "a=1\n")
    (store.folder / "broker-0.properties").write_text("a=2\n")
    for read in (lambda: store.read_original(NODE), store.verify):
        with pytest.raises(Refused) as refused:
            read()
        assert code(refused) == "O01"


@pytest.mark.parametrize("name", ["manifest.json", "broker-0.properties", "broker-0.written"])
def test_what_another_user_has_written_is_refused_in_words(
    store: BackupStore, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.keep_original(NODE, "a=1\n")
    store.keep_written(NODE, "a=2\n")
    read = Path.read_bytes

    def denied(path: Path) -> bytes:
        if path.name == name:
            raise PermissionError(13, "Permission denied", str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", denied)
    with pytest.raises(Refused, match="Permission denied") as refused:
        store.read_original(NODE), store.is_installed(NODE, "a")
    assert code(refused) == "O05"


def test_a_manifest_that_is_none_is_altered(store: BackupStore) -> None:
    store.keep_original(NODE, "a=1\n")
    (store.folder / "manifest.json").write_text("{")
    with pytest.raises(Refused) as refused:
        store.read_original(NODE)
    assert code(refused) == "O01"


def test_no_manifest_ends_without_a_code(store: BackupStore) -> None:
    store.keep_original(NODE, "a=1\n")
    manifest = store.folder / "manifest.json"
    for where, other in altered(json.loads(manifest.read_text())):
        manifest.write_text(json.dumps(other))
        for act in (lambda: store.read_original(NODE), store.verify, lambda: store.keep_tree([("/", None)], once=True)):
            assert code_of(act) in {"", "O01"}, where


def test_a_damaged_list_of_what_was_written_names_no_file(store: BackupStore) -> None:
    store.keep_written(NODE, "a=1\n")
    (store.folder / "broker-0.written").write_bytes(b"\xff\n")
    assert not store.is_installed(NODE, files.sha256("a=1\n"))
    store.confirm_written(NODE, "a=2\n")
    assert store.is_installed(NODE, files.sha256("a=2\n"))


def test_zookeepers_tree_is_kept_with_its_hash(store: BackupStore) -> None:
    assert store.keep_tree([("/", None), ("/controller_epoch", b"3")]) == 2
    assert store.verify() == ("zookeeper.jsonl",)
    lines = (store.folder / "zookeeper.jsonl").read_text().splitlines()
    assert [json.loads(line)["path"] for line in lines] == ["/", "/controller_epoch"]


def test_a_full_disk_leaves_the_original_that_is_kept(store: BackupStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.keep_original(NODE, "a=1\n")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(Failed, match="No space left"):
            store.replace_original(NODE, "a=2\n")
    assert store.read_original(NODE) == "a=1\n"
    assert {file.name for file in store.folder.iterdir()} == {"manifest.json", "broker-0.properties"}


@pytest.mark.parametrize("written", range(3))
def test_a_process_killed_while_it_replaces_an_original_leaves_the_old_one_or_the_new_one(
    store: BackupStore, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    """The next process reads it first: a hash that does not fit would refuse every later task."""
    store.keep_original(NODE, "a=1\n")
    replace, done = atomic.replace, list[Path]()

    def dies(path: Path, data: bytes) -> None:
        if len(done) == written:
            raise Killed
        done.append(path)
        replace(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(atomic, "replace", dies)
        with pytest.raises(Killed):
            store.replace_original(NODE, "a=2\n")
    assert store.read_original(NODE) == ("a=1\n" if written < 2 else "a=2\n")
    store.verify()
    store.replace_original(NODE, "a=3\n")
    assert store.read_original(NODE) == "a=3\n"
    assert json.loads((store.folder / "manifest.json").read_text())["files"] == {"broker-0.properties": store.read_digest(NODE)}


ZNODES = [
    ("/", None),
    ("/brokers/topics", None),
    (
        "/brokers/topics/orders",
        b'{"version":3,"topic_id":"q1","partitions":{"0":[1,2]},"adding_replicas":{},"removing_replicas":{}}',
    ),
    ("/brokers/topics/orders/partitions/0/state", b'{"leader":1,"isr":[1,2],"controller_epoch":3}'),
    ("/config/topics", None),
    ("/config/topics/orders", b'{"version":1,"config":{"retention.ms":"1000"}}'),
    ("/config/users", None),
    ("/config/users/alice", b'{"version":1,"config":{"producer_byte_rate":"1024"}}'),
    ("/config/users/alice/clients", None),
    ("/config/users/alice/clients/app", b'{"version":1,"config":{"producer_byte_rate":"5"}}'),
    ("/kafka-acl", None),
    ("/kafka-acl/Topic", None),
    (
        "/kafka-acl/Topic/orders",
        b'{"version":1,"acls":[{"principal":"User:alice","permissionType":"Allow","operation":"Read","host":"*"}]}',
    ),
]


@pytest.mark.parametrize(
    ("migration", "late"),
    [(None, False), (-1, False), (50, True), ("null", True)],
    ids=["none", "begun", "copied", "malformed"],
)
def test_the_kept_tree_shows_what_was_stored_and_whether_it_was_read_before_the_takeover(
    store: BackupStore, migration: int | str | None, late: bool
) -> None:
    numbers = {
        "version": 0,
        "kraft_controller_id": 1,
        "kraft_controller_epoch": 1,
        "kraft_metadata_offset": migration,
        "kraft_metadata_epoch": 1,
    }
    store.keep_tree(ZNODES if migration is None else [*ZNODES, ("/migration", json.dumps(numbers).encode())])
    found = store.read_inventory()
    assert found.topics == {"orders": TopicMetadata("orders", "q1", {0: PartitionMetadata((1, 2), -1)}, {"retention.ms": "1000"})}
    assert found.stored[StoredKind.QUOTAS] == {
        "user alice": {"producer_byte_rate": "1024"},
        "user alice, client-id app": {"producer_byte_rate": "5"},
    }
    assert found.stored[StoredKind.ACLS] == {"topic orders": {"allow read to User:alice from *": "present"}}
    assert found.late is late


def test_what_was_stored_is_not_known_from_a_tree_that_is_missing_altered_or_malformed(store: BackupStore) -> None:
    with pytest.raises(Refused) as refused:
        store.read_inventory()
    assert code(refused) == "O01"
    store.keep_tree([("/config/users", None), ("/config/users/alice", b"{")])
    with pytest.raises(Failed, match="/config/users/alice"):
        store.read_inventory()
    (store.folder / "zookeeper.jsonl").write_text("")
    with pytest.raises(Refused) as refused:
        store.read_inventory()
    assert code(refused) == "O01"
