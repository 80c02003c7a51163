"""What the agent says of the topic ids on a broker's disks: how many differ from a list, whatever a directory or a file holds."""

from __future__ import annotations

import json
import os
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.node.agent_parts import agent_module
from tests.node.machine import META, Node

ORDERS, OTHER = "aB3_-fghijklmnopqrstuv", "zzzzzzzzzzzzzzzzzzzzzz"
TOPICS = {"orders": ORDERS, "pay.ments_2": OTHER}


def put_partition(folder: Path, name: str, text: str | bytes | None = f"version: 0\ntopic_id: {ORDERS}\n") -> Path:
    """A partition's directory with this partition.metadata; None: without one."""
    (folder / name).mkdir()
    (folder / name / "00000000000000000000.log").touch()
    path = folder / name / "partition.metadata"
    if text is not None:
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def compare(node: Node, topics: dict[str, str] | None = None, clock: Callable[[], float] = float, **more: Any) -> dict[str, Any]:
    """The agent's answer, in this process: a slow machine takes it no time. `more`: further fields of the request."""
    module = agent_module()
    module.time = types.SimpleNamespace(monotonic=clock)
    return dict(module.load_roles(str(node.config))["broker"].topic_ids({"topics": TOPICS if topics is None else topics, **more}))


def one(folder: Path, on_disk: str = "") -> dict[str, Any]:
    """What the agent says of one directory; the size of a real one is that of its files."""
    files = list(folder.iterdir()) if folder.is_dir() and not folder.is_symlink() else []
    return {"count": 1, "bytes": sum(path.lstat().st_size for path in files), "some": [[str(folder), on_disk]]}


def link(path: Path) -> None:
    target = path.parents[2] / "elsewhere"
    target.write_text(f"version: 0\ntopic_id: {OTHER}\n")
    path.symlink_to(target)


def link_folder(path: Path) -> None:
    folder = path.parent
    folder.rename(folder.parents[1] / "elsewhere")
    folder.symlink_to(folder.parents[1] / "elsewhere")


def be_a_file(path: Path) -> None:
    (path.parent / "00000000000000000000.log").unlink()
    path.parent.rmdir()
    path.parent.write_text("no directory")


SIBLINGS: list[tuple[str, str | bytes | None, Callable[[Path], object] | None, str, str]] = [
    ("another id", f"version: 0\ntopic_id: {OTHER}\n", None, "other", OTHER),
    ("spaces as Kafka allows them", f"version :  0 \ntopic_id:{ORDERS}\n\n", None, "", ""),
    ("no end of line", f"version: 0\ntopic_id: {ORDERS}", None, "", ""),
    ("no file", None, None, "missing", ""),
    ("an empty file, as after a loss of power", "", None, "malformed", ""),
    ("another version", f"version: 1\ntopic_id: {ORDERS}\n", None, "malformed", ""),
    ("a third line", f"version: 0\ntopic_id: {ORDERS}\ntopic_id: {OTHER}\n", None, "malformed", ""),
    ("a cut id", f"version: 0\ntopic_id: {ORDERS[:-1]}\n", None, "malformed", ""),
    ("zeros", b"\0" * 60, None, "malformed", ""),
    ("other bytes", b"version: 0\ntopic_id: \xff\xfe\xff\n", None, "malformed", ""),
    ("many ends of lines", "version: 0" + "\n" * 1_000_000, None, "malformed", ""),
    ("more than any properties file", b"x" * (1 << 20) + b"x", None, "file", ""),
    ("a link to a file with another id", None, link, "link", ""),
    ("the directory is a link", None, link_folder, "link", ""),
    ("a directory in the file's place", None, lambda path: path.mkdir(), "file", ""),
    ("a pipe, which nobody writes", None, os.mkfifo, "file", ""),
    ("a file in the directory's place", None, be_a_file, "link", ""),
]


@pytest.mark.parametrize(("text", "act", "what", "on_disk"), [row[1:] for row in SIBLINGS], ids=[row[0] for row in SIBLINGS])
def test_each_kind_of_file_is_named_by_its_code_and_no_link_is_followed(
    node: Node, text: str | bytes | None, act: Callable[[Path], object] | None, what: str, on_disk: str
) -> None:
    path = put_partition(node.data, "orders-0", text)
    put_partition(node.data, "orders-1")
    if act is not None:
        act(path)
    found = {what: one(node.data / "orders-0", on_disk)} if what else {}
    assert compare(node) == {"read": 2, "found": found}


def test_a_topic_that_the_list_does_not_have_is_a_stray(node: Node) -> None:
    put_partition(node.data, "gone-7")
    assert compare(node)["found"] == {"stray": one(node.data / "gone-7", ORDERS)}


def test_what_is_no_partition_is_not_compared(node: Node) -> None:
    """The metadata log, a moving partition, another program's folder, and the broker's own files."""
    (node.data / "meta.properties").write_text(META)
    for name in (
        "__cluster_metadata-0",
        "orders-0.01-future",
        "orders-0-stray",
        "orders-x.01-delete",
        "lost+found",
    ):
        put_partition(node.data, name, None)
    put_partition(node.data, "orders 0-0", None)
    assert compare(node) == {"read": 0, "found": {}}


@pytest.mark.parametrize(
    ("name", "text", "what", "on_disk"),
    [
        (f"orders-0.{'a' * 32}-stray", f"version: 0\ntopic_id: {OTHER}\n", "put_away", OTHER),
        (f"orders-0.{'a' * 32}-delete", f"version: 0\ntopic_id: {ORDERS}\n", "deleted", ORDERS),
        ("orders-0.0-delete", None, "deleted", ""),
        (f"orders-0.{'a' * 32}-stray", "version: 7\n", "malformed", ""),
        ("gone-7", f"version: 0\ntopic_id: {ORDERS}\n", "stray", ORDERS),
        ("gone-7", None, "unidentified", ""),
        ("gone-7", "", "malformed", ""),
        ("orders-3", f"version: 0\ntopic_id: {ORDERS}\n", "unassigned", ORDERS),
        ("orders-3", f"version: 0\ntopic_id: {OTHER}\n", "unassigned", OTHER),
        ("orders-3", None, "unidentified", ""),
        ("pay.ments_2-0", f"version: 0\ntopic_id: {OTHER}\n", "unassigned", OTHER),
        ("orders-2", f"version: 0\ntopic_id: {OTHER}\n", "other", OTHER),
        ("orders-2", None, "missing", ""),
        ("orders-2", f"version: 0\ntopic_id: {ORDERS}\n", "", ""),
    ],
)
def test_directories_that_no_partition_of_this_broker_has_are_named_with_their_size(
    node: Node, name: str, text: str | None, what: str, on_disk: str
) -> None:
    """Orders' partitions 0 to 2 are this broker's, and none of the other topic."""
    put_partition(node.data, name, text)
    (node.data / name / "00000000000000000000.log").write_bytes(b"x" * 10_000)
    found = {what: one(node.data / name, on_disk)} if what else {}
    assert compare(node, assigned=[[0, 1, 2], []]) == {"read": 1, "found": found}


def test_without_an_assignment_only_the_topic_counts(node: Node) -> None:
    """An older kmigrate asks so."""
    put_partition(node.data, "orders-3")
    assert compare(node) == {"read": 1, "found": {}}


def test_a_broker_with_two_disks_has_both_compared(make: Callable[..., Node], tmp_path: Path) -> None:
    (tmp_path / "second").mkdir()
    node = make(log_dirs=[str(tmp_path / "var" / "data"), str(tmp_path / "second")])
    put_partition(node.data, "orders-0", None)
    put_partition(tmp_path / "second", "pay.ments_2-11")
    found = compare(node)
    assert found["read"] == 2
    assert found["found"]["missing"] == one(node.data / "orders-0")
    assert found["found"]["other"] == one(tmp_path / "second" / "pay.ments_2-11", ORDERS)


@pytest.mark.slow
def test_the_answer_of_4000_partitions_stays_short(node: Node) -> None:
    for number in range(4_000):
        put_partition(node.data, f"orders-{number}")
    answer = compare(node, {"orders": OTHER})
    found = answer["found"]["other"]
    assert (answer["read"], found["count"], len(found["some"])) == (4_000, 4_000, 5)
    assert len(json.dumps(answer)) < 2_000
    assert compare(node) == {"read": 4_000, "found": {}}


def test_what_a_request_has_no_time_for_is_named(node: Node) -> None:
    put_partition(node.data, "orders-0")
    clock = iter((0.0, 1_000.0, 1_000.0))
    found = compare(node, clock=lambda: next(clock))["found"]
    assert found == {"late": one(node.data / "orders-0") | {"bytes": 0}}


def test_the_agent_answers_and_refuses_a_request_without_a_list_by_its_code(node: Node) -> None:
    put_partition(node.data, "orders-0")
    assert [node.refused("topic_ids", topics=topics) for topics in (None, 7, "orders", [["orders"]])] == ["malformed"] * 4
    assert node.ok("topic_ids", topics=TOPICS) == {"read": 1, "found": {}}


class CountedCopies(dict[str, str]):
    """Topics that count how often they are copied."""

    copies = 0

    def keys(self) -> Any:
        self.copies += 1
        return super().keys()


def test_the_list_of_topics_is_not_copied_for_each_partition(make: Callable[..., Node]) -> None:
    """A cluster may have 50,000 of both: as many copies took more than the time of the whole request."""
    node = make()
    for number in range(20):
        put_partition(node.data, f"orders-{number}")
    topics = CountedCopies(TOPICS)
    assert compare(node, topics) == {"read": 20, "found": {}}
    assert topics.copies <= 1
