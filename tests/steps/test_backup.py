"""Originals are kept once, checked on every use, and never mixed up."""

import json
import os
import stat
from pathlib import Path

import pytest

from airflow_provider_kmigrate.core.cluster import HostSpec, NodeRole, NodeSpec
from airflow_provider_kmigrate.exceptions import Failed, Refused
from airflow_provider_kmigrate.steps.backup import BackupStore

NODE = NodeSpec(0, NodeRole.BROKER, "h", 9092, HostSpec("agent", "p"))


@pytest.fixture
def store(tmp_path):
    return BackupStore(tmp_path, "prod", "-1Sh-9_ISia_zwGINzRvyQ")


def code(refused):
    return refused.value.reasons[0].code


def test_an_original_comes_back_byte_for_byte_and_is_private(store):
    text = "broker.id=0\r\n# caf\xe9\n"
    store.keep_original(NODE, text)
    assert store.original(NODE) == text
    files = list(store.folder.iterdir())
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert {file.name for file in files} == {"manifest.json", "broker-0.properties"}


def test_the_same_original_again_is_fine_another_is_refused(store):
    store.keep_original(NODE, "a=1\n")
    store.keep_original(NODE, "a=1\n")
    with pytest.raises(Refused) as refused:
        store.keep_original(NODE, "a=2\n")
    assert code(refused) == "O03"
    assert store.original(NODE) == "a=1\n"


def test_a_missing_original_is_refused(store):
    with pytest.raises(Refused) as refused:
        store.original(NODE)
    assert code(refused) == "O01"


def test_an_altered_original_is_refused(store):
    store.keep_original(NODE, "a=1\n")
    (store.folder / "broker-0.properties").write_text("a=2\n")
    for read in (lambda: store.original(NODE), store.verify):
        with pytest.raises(Refused) as refused:
            read()
        assert code(refused) == "O01"


@pytest.mark.parametrize("name", ["manifest.json", "broker-0.properties", "broker-0.written"])
def test_what_another_user_has_written_is_refused_in_words(store, name, monkeypatch):
    store.keep_original(NODE, "a=1\n")
    store.keep_written(NODE, "a=2\n")
    read = Path.read_bytes

    def denied(path):
        if path.name == name:
            raise PermissionError(13, "Permission denied", str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", denied)
    with pytest.raises(Refused, match="Permission denied") as refused:
        store.original(NODE), store.wrote(NODE, "a=2\n")
    assert code(refused) == "O05"


def test_a_manifest_that_is_none_is_altered(store):
    store.keep_original(NODE, "a=1\n")
    (store.folder / "manifest.json").write_text("{")
    with pytest.raises(Refused) as refused:
        store.original(NODE)
    assert code(refused) == "O01"


def test_zookeepers_tree_is_kept_with_its_hash(store):
    assert store.keep_tree([("/", None), ("/controller_epoch", b"3")]) == 2
    assert store.verify() == ("zookeeper.jsonl",)
    lines = (store.folder / "zookeeper.jsonl").read_text().splitlines()
    assert [json.loads(line)["path"] for line in lines] == ["/", "/controller_epoch"]


def test_a_full_disk_leaves_the_original_that_is_kept(store, monkeypatch):
    store.keep_original(NODE, "a=1\n")

    def full(handle):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(Failed, match="No space left"):
            store.replace_original(NODE, "a=2\n")
    assert store.original(NODE) == "a=1\n"
    assert {file.name for file in store.folder.iterdir()} == {"manifest.json", "broker-0.properties"}
