"""The evidence of a migration: every change of an archive is found and named, and no secret is in one."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator
from datetime import date
from importlib.resources import files
from io import BytesIO
from typing import Any

import pytest

from airflow_provider_kmigrate.core.monitoring import run_evidence
from airflow_provider_kmigrate.core.monitoring.run_evidence import (
    MANIFEST,
    SIGNATURE,
    EvidenceAbout,
    mask_cluster_file,
    pack_archive,
    render_index,
    render_verification,
    select_gate_lines,
    verify_archive,
)

ABOUT = EvidenceAbout("prod", "id", 1_700_000_000_000, "1.0", ("Audits: none.",))
FILES = {"index.html": b"<p>", "journals/run.jsonl": b'{"at": 1}\n', "plan/plan.json": b"{}"}
KEY = b"0123456789abcdef"


def members_of(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(BytesIO(data)) as archive:
        return {entry.filename: archive.read(entry) for entry in archive.infolist()}


def rezip(members: dict[str, bytes], how: int = zipfile.ZIP_STORED) -> bytes:
    """As somebody else's program packs them."""
    target = BytesIO()
    with zipfile.ZipFile(target, "w", how) as archive:
        for path, content in members.items():
            archive.writestr(path, content)
    return target.getvalue()


@pytest.mark.parametrize("key", [b"", KEY])
def test_what_was_packed_verifies_and_is_the_same_bytes_each_time(key: bytes) -> None:
    data = pack_archive(ABOUT, FILES, key)
    assert data == pack_archive(ABOUT, dict(reversed(FILES.items())), key)
    found = verify_archive(data, key)
    assert (found.problems, found.files) == ((), 3)
    assert bool(found.notes) is not bool(key)
    assert "All 3 files are as they were written." in render_verification(found)


@pytest.mark.parametrize("key", [b"", KEY])
def test_no_single_byte_can_change(key: bytes) -> None:
    data = pack_archive(ABOUT, FILES, key)
    unnoticed = [
        place
        for place in range(len(data))
        if not verify_archive(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :], key).problems
    ]
    assert unnoticed == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda files: files | {"plan/plan.json": b"[]"}, "File plan/plan.json was changed"),
        (lambda files: files | {"more.txt": b""}, "File more.txt was added"),
        (
            lambda files: {path: content for path, content in files.items() if path != "journals/run.jsonl"},
            "File journals/run.jsonl is missing",
        ),
        (lambda files: {path: content for path, content in files.items() if path != MANIFEST}, f"File {MANIFEST} is missing"),
        (lambda files: files | {MANIFEST: b"{}"}, f"File {MANIFEST} is no manifest"),
        (lambda files: files | {MANIFEST: b"["}, f"File {MANIFEST} is no manifest"),
        (lambda files: files | {"../etc/passwd": b""}, "File ../etc/passwd: its path leads outside"),
        (lambda files: files | {"/etc/passwd": b""}, "File /etc/passwd: its path leads outside"),
        (lambda files: files | {"a/../../b": b""}, "its path leads outside"),
        (lambda files: files | {"C:x": b""}, "its path leads outside"),
        (lambda files: files | {"a//b": b""}, "its path has no plain form"),
        (lambda files: files | {"a\x1b[31mb": b""}, r"File a\x1b[31mb: its path has no plain form"),
        (lambda files: files | {SIGNATURE: b"{}"}, f"File {SIGNATURE} was added"),
        (lambda files: files, "other bytes beside its files"),
    ],
)
def test_each_change_is_refused_by_the_name_of_the_file(
    change: Callable[[dict[str, bytes]], dict[str, bytes]], problem: str
) -> None:
    found = verify_archive(rezip(change(members_of(pack_archive(ABOUT, FILES)))))
    assert any(problem in text for text in found.problems), found.problems
    assert "NOT AS IT WAS WRITTEN" in render_verification(found)
    assert "\x1b" not in render_verification(found)


def test_a_name_that_is_there_twice_is_refused() -> None:
    data = BytesIO(pack_archive(ABOUT, FILES))
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(data, "a") as archive:
        archive.writestr("plan/plan.json", b"{}")
    assert verify_archive(data.getvalue()).problems == ("File plan/plan.json is there twice.",)


def test_another_form_of_the_same_files_is_refused() -> None:
    members = members_of(pack_archive(ABOUT, FILES))
    (problem,) = verify_archive(rezip(members, zipfile.ZIP_DEFLATED)).problems
    assert "is compressed" in problem
    assert verify_archive(pack_archive(ABOUT, FILES) + b"x").problems
    assert verify_archive(b"x" + pack_archive(ABOUT, FILES)).problems
    assert verify_archive(pack_archive(ABOUT, FILES)[:-30]).problems


@pytest.mark.parametrize(
    "data",
    [b"", b"PK", b"no archive at all", b"PK\x05\x06" + bytes(18)],
    ids=["nothing", "two bytes", "a text", "an archive without files"],
)
def test_what_is_no_archive_is_refused(data: bytes) -> None:
    assert verify_archive(data).problems


def test_a_bomb_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_evidence, "MOST_BYTES", 10)
    assert verify_archive(pack_archive(ABOUT, FILES)).problems == ("The archive is larger than any that kmigrate writes.",)


class TestTheSignature:
    def test_a_manifest_that_was_written_anew_is_found_by_the_key(self) -> None:
        forged = pack_archive(ABOUT, FILES | {"plan/plan.json": b"forged"}, b"another key of 16")
        assert verify_archive(forged, KEY).problems == (f"File {SIGNATURE} does not sign this manifest with this key.",)

    def test_without_its_key_it_is_said_that_nobody_checked(self) -> None:
        (note,) = verify_archive(pack_archive(ABOUT, FILES, KEY)).notes
        assert "was not checked" in note

    def test_an_archive_without_a_signature_is_refused_if_a_key_is_given(self) -> None:
        assert verify_archive(pack_archive(ABOUT, FILES), KEY).problems == (
            "The archive is not signed, and a key was given to check its signature with.",
        )

    def test_a_signature_cannot_be_taken_away(self) -> None:
        members = members_of(pack_archive(ABOUT, FILES, KEY))
        del members[SIGNATURE]
        assert f"File {SIGNATURE} is missing." in verify_archive(rezip(members)).problems

    def test_unsigned_says_what_it_does_not_show(self) -> None:
        (note,) = verify_archive(pack_archive(ABOUT, FILES)).notes
        assert "not signed" in note


@pytest.mark.parametrize("path", ["", "/x", "../x", "a/../x", "a\\b", "c:x", MANIFEST, SIGNATURE, "a\nb", "a/"])
def test_no_path_outside_or_of_the_archive_itself_is_packed(path: str) -> None:
    with pytest.raises(ValueError, match="no path of an archive"):
        pack_archive(ABOUT, {path: b""})


def test_a_cluster_file_is_masked() -> None:
    secret = "hunter22"
    data = {
        "name": "prod",
        "hosts": {"properties": "/etc/kafka/server.properties", "connect": f"ssh -p {secret} x"},
        "quorum": {"properties": {"ssl.keystore.password": secret, "controller.quorum.fetch.timeout.ms": "2000"}},
        "notify": [{"notifier": "a.B", "arguments": {"to": {"x": secret}}}],
        "groups": [{"name": "g", "switch": ["do", secret], "instances": [{"name": "i", "switch": secret}]}],
        "audit": {
            "spark": {"properties": {"spark.ssl.keyPassword": secret}, "kafka_options": {"kafka.sasl.jaas.config": secret}}
        },
    }
    shown = json.dumps(mask_cluster_file(data))
    assert secret not in shown
    assert "/etc/kafka/server.properties" in shown
    assert "2000" in shown
    assert '"arguments": {"to": {"x": "<hidden: 8 bytes' in shown


def test_values_of_any_kind_are_masked_and_the_same_in_every_process() -> None:
    """A notifier's arguments are whatever YAML holds: keys of several kinds have no order, and a date is no key of JSON."""
    one, other = ([{1: "x", "b": {"c", "d"}, date(2026, 1, 1): 2}], [{date(2026, 1, 1): 2, "b": {"d", "c"}, 1: "x"}])
    shown = mask_cluster_file({"notify": [{"arguments": {"to": one}}]})
    assert "<hidden: " in shown["notify"][0]["arguments"]["to"]
    assert shown == mask_cluster_file({"notify": [{"arguments": {"to": other}}]})


#: Keys of a cluster file whose text of any form is shown: names, and words for them.
SHOWN = {"rack", "later_groups", "groups_schedule", "exclude", "topics", "group", "exclude_topics", "resetting_groups"}
SHOWN |= {"schedule", "image", "users", "signing_conn_id"}


def list_free_texts(node: dict[str, Any], definitions: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The places of a cluster file where any text may stand; `[]`: in a list, `*`: under any name."""
    node = definitions[node["$ref"].rpartition("/")[2]] if "$ref" in node else node
    for way in node.get("anyOf", ()):
        yield from list_free_texts(way, definitions, path)
    for name, inner in node.get("properties", {}).items():
        yield from list_free_texts(inner, definitions, (*path, name))
    if "items" in node:
        yield from list_free_texts(node["items"], definitions, (*path, "[]"))
    if further := node.get("additionalProperties"):
        yield from list_free_texts({"type": "string"} if further is True else further, definitions, (*path, "*"))
    if node.get("type") == "string" and (not node.keys() & {"enum", "const", "pattern"} or "://" in node.get("pattern", "")):
        yield path


def put(path: tuple[str, ...], value: str) -> Any:
    if not path:
        return value
    inner = put(path[1:], value)
    return [inner] if path[0] == "[]" else {"ssl.key.password" if path[0] == "*" else path[0]: inner}


SCHEMA = json.loads(files("airflow_provider_kmigrate").joinpath("cluster.schema.json").read_text())
FREE_TEXTS = [path for path in list_free_texts(SCHEMA, SCHEMA["$defs"]) if not SHOWN & set(path)]


@pytest.mark.parametrize("path", FREE_TEXTS, ids=".".join)
def test_no_place_of_a_cluster_file_shows_a_secret(path: tuple[str, ...]) -> None:
    """A new key whose text may be anything is masked, or named above."""
    assert "hunter22" not in json.dumps(mask_cluster_file(put(path, "https://kmigrate:hunter22@host/x")))
    if path[-1] == "*" or path[-1].endswith("_command"):
        assert "hunter22" not in json.dumps(mask_cluster_file(put(path, "hunter22")))


def test_free_texts_are_found_in_the_schema() -> None:
    paths = {".".join(path) for path in FREE_TEXTS}
    assert {
        "stage_properties.broker_migration.*",
        "spark_jobs.[].hold_command.[]",
        "notify.[].arguments.*",
        "runbook_url",
    } <= paths


def test_gates_are_the_lines_that_decided() -> None:
    lines: list[Any] = [
        {"kind": "act", "step": "s", "text": "restart", "modes": {"0": "kraft"}, "chain": ["x", 1]},
        {"kind": "acted", "step": "s"},
        {"kind": "readiness: ready", "step": "watch"},
        "torn",
        {"no kind": 1},
    ]
    selected = select_gate_lines([json.dumps(line) if isinstance(line, dict) else line for line in lines])
    assert [line["kind"] for line in selected] == ["act", "readiness: ready"]
    assert selected[0]["modes"] == {"0": "kraft"}


def test_the_page_names_each_file_with_its_hash_and_escapes_names() -> None:
    run = {"run": "<script>", "from_ms": 0, "to_ms": 5000, "restarts": {"count": 2}, "events": []}
    page = render_index(ABOUT, FILES, {"runs": [run]}, 1, signed=False)
    assert all(path in page for path in FILES)
    assert "<script>" not in page
    assert "It is not signed" in page
    assert "Audits: none." in page
