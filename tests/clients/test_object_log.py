"""Machines that share an object store alone: each reads what the others stored, nothing is lost, and what is not certain is refused."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest

from airflow_provider_kmigrate.clients.object_log import COPY, StoredFolder, refuse_copy
from airflow_provider_kmigrate.clients.progress_files import ProgressFiles, TaskOfRun
from airflow_provider_kmigrate.clients.state_folder import SharedFolder
from airflow_provider_kmigrate.core.cluster_state.spec import HostSpec, NodeRole, NodeSpec
from airflow_provider_kmigrate.core.shared.chain import find_break
from airflow_provider_kmigrate.exceptions import Fenced, Refused, Unavailable
from airflow_provider_kmigrate.steps.backup import BackupStore
from airflow_provider_kmigrate.steps.journal import FileJournal
from tests.kit.hostile import altered
from tests.kit.object_stores import MemoryStore

BROKER = NodeSpec(1, NodeRole.BROKER, "b1", 9092, HostSpec("agent"))
ORIGINAL = "broker.id=1\nzookeeper.connect=zk:2181\n"
TASK = TaskOfRun("kmigrate_zk_to_kraft__sim", "manual__1", "2026-12-01T00:00:00+00:00", "soak", -1)
ID = "-1Sh-9_ISia_zwGINzRvyQ"


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


class Machine:
    """One machine's folder, and what kmigrate keeps in it."""

    def __init__(self, root: Path, store: MemoryStore) -> None:
        self.root, self.store = root, store
        self.restart()

    def restart(self) -> None:
        """A new process on the same disk."""
        self.state = StoredFolder(self.root, self.store, lambda: 1000.0)
        self.backup = BackupStore(self.root / "backup", "prod", ID, self.state)

    def journal(self) -> FileJournal:
        return FileJournal(self.root / "journal" / "prod" / "run.jsonl", "prod/1", lambda: 1.5, self.state)

    def files(self) -> dict[str, bytes]:
        """Every file that is no part of the copy's own."""
        self.state.refresh()
        return {
            path.relative_to(self.root).as_posix(): path.read_bytes()
            for path in self.root.rglob("*")
            if path.is_file() and path.name not in {COPY, "lock"}
        }

    def note(self, text: str) -> None:
        self.state.replace(self.root / "note", lambda _: text.encode())


@pytest.fixture
def machine(tmp_path: Path, store: MemoryStore) -> Machine:
    return Machine(tmp_path / "one", store)


@pytest.fixture
def other(tmp_path: Path, store: MemoryStore) -> Machine:
    return Machine(tmp_path / "two", store)


def test_another_machine_has_every_original_and_each_hash(machine: Machine, other: Machine) -> None:
    digest = machine.backup.keep_original(BROKER, ORIGINAL)
    machine.backup.keep_metadata_version("3.9-IV0")
    machine.backup.keep_tree([("/brokers", b"x")])
    machine.backup.keep_written(BROKER, "first")
    other.state.refresh()
    assert other.backup.verify() == ("broker-1.properties", "metadata.version", "zookeeper.jsonl")
    assert other.backup.read_digest(BROKER) == digest
    assert machine.files() == other.files()
    assert other.backup.original_path(BROKER).stat().st_mode & 0o077 == 0
    assert (other.backup.folder / "zookeeper.jsonl").stat().st_mtime == 1000.0


def test_machines_that_alternate_write_one_journal(machine: Machine, other: Machine) -> None:
    for number in range(6):
        (machine, other)[number % 2].journal().write("acted", "roll", f"line {number}")
    lines = machine.files()["journal/prod/run.jsonl"]
    assert [json.loads(line)["text"] for line in lines.splitlines()] == [f"line {number}" for number in range(6)]
    assert machine.files() == other.files()
    assert find_break(lines.splitlines(), other.journal().read_link()) == ""


def test_writers_at_the_same_time_lose_nothing(tmp_path: Path, store: MemoryStore) -> None:
    machines = [Machine(tmp_path / str(number), store) for number in range(4)]
    begin = Barrier(4)

    def write(machine: Machine) -> None:
        begin.wait(30.0)
        for number in range(10):
            machine.journal().write("acted", machine.root.name, str(number))
            machine.backup.keep_repair({"number": number}, 100 * int(machine.root.name) + number)

    threads = [Thread(target=write, args=(machine,)) for machine in machines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    lines = machines[0].files()["journal/prod/run.jsonl"].splitlines()
    assert len(lines) == 40
    assert find_break(lines, machines[0].journal().read_link()) == ""
    assert len(machines[0].backup.verify()) == 40, "the manifest has the hash of each file"
    assert all(machine.files() == machines[0].files() for machine in machines)


def test_of_two_that_have_seen_the_same_the_second_makes_its_change_of_what_the_first_stored(
    machine: Machine, other: Machine, store: MemoryStore
) -> None:
    machine.note("0")
    other.state.refresh()
    store.before_create = lambda: machine.note("1")
    seen = list[bytes | None]()

    def make(present: bytes | None) -> bytes:
        seen.append(present)
        return (present or b"") + b"+"

    other.state.replace(other.root / "note", make)
    assert seen == [b"0", b"1"]
    assert machine.files() == {"note": b"1+"}


def test_nothing_to_change_is_judged_by_what_the_store_has(machine: Machine, other: Machine) -> None:
    machine.note("a")
    other.state.refresh()
    machine.note("b")
    other.state.replace(other.root / "note", lambda present: None if present == b"a" else b"c")
    assert machine.files() == {"note": b"c"}


def test_a_second_process_of_a_task_refuses_the_first_on_another_machine(machine: Machine, other: Machine) -> None:
    first = ProgressFiles(machine.root / "progress", TASK, 1, machine.state)
    first.take(resumed=False)
    first.write({"healthy_seconds": 480.0})
    assert ProgressFiles(other.root / "progress", TASK, 2, other.state).take(resumed=False) == {"healthy_seconds": 480.0}
    with pytest.raises(Fenced, match="H03"):
        first.write({"healthy_seconds": 500.0})


def test_a_folder_is_removed_with_what_is_in_it_on_every_machine(machine: Machine, other: Machine) -> None:
    """As of a task whose progress is over."""
    machine.journal().write("acted", "roll", "a")
    assert other.files()
    machine.state.remove(machine.root / "journal" / "prod")
    assert (machine.files(), other.files()) == ({}, {})


def test_what_is_removed_is_removed_on_every_machine(machine: Machine, other: Machine) -> None:
    machine.note("a")
    assert other.files() == {"note": b"a"}
    machine.state.remove(machine.root / "note")
    machine.state.remove(machine.root / "note")
    assert other.files() == machine.files() == {}
    assert len(machine.store.objects) == 2


@pytest.mark.parametrize("lost", [1, 2])
def test_an_answer_that_was_lost_stores_a_change_once(machine: Machine, other: Machine, store: MemoryStore, lost: int) -> None:
    machine.journal().write("acted", "roll", "first")
    store.lost = lost
    machine.journal().write("acted", "roll", "second")
    assert len(other.files()["journal/prod/run.jsonl"].splitlines()) == 2


def test_a_process_that_is_killed_after_the_store_has_its_change_finds_it_again(machine: Machine, store: MemoryStore) -> None:
    machine.journal().write("acted", "roll", "first")
    copy = (machine.root / COPY).read_bytes()
    machine.journal().write("acted", "roll", "second")
    whole = machine.files()
    (machine.root / COPY).write_bytes(copy)  # the file has the line, and the copy's position is the one before it
    machine.restart()
    assert machine.files() == whole


def test_lists_that_are_late_hide_nothing(machine: Machine, other: Machine, store: MemoryStore) -> None:
    machine.note("a")
    machine.note("b")
    store.newest_listed = "000000001"
    assert other.files() == {"note": b"b"}


def test_a_read_that_finds_nothing_new_is_one_request(machine: Machine, store: MemoryStore) -> None:
    machine.note("a")
    machine.state.refresh()
    store.requests = 0
    machine.state.refresh()
    assert store.requests == 1
    machine.note("b")
    assert store.requests == 2


def refuses(machine: Machine, *words: str) -> None:
    with pytest.raises(Refused, match="O05") as refusal:
        machine.state.refresh()
    assert all(word in str(refusal.value) for word in words), refusal.value


def _cut(content: bytes) -> bytes:
    return content[:-1]


def _alter(content: bytes) -> bytes:
    return content[:-1] + b"?"


def _head(**fields: Any) -> Callable[[bytes], bytes]:
    def change(content: bytes) -> bytes:
        head, _, body = content.partition(b"\n")
        return json.dumps(json.loads(head) | fields).encode() + b"\n" + body

    return change


BAD_OBJECTS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "cut": (_cut, "incomplete"),
    "empty": (lambda _: b"", "incomplete"),
    "half a head": (lambda content: content[:20], "incomplete"),
    "altered": (_alter, "altered"),
    "no object": (lambda _: b"[]\n", "no change of kmigrate"),
    "no JSON": (lambda _: b"\xff\n", "no change of kmigrate"),
    "of another number": (_head(number=7), "altered"),
    "behind another one": (_head(before="0" * 64), "does not follow"),
    "of a newer kmigrate": (_head(version=2), "a newer kmigrate"),
    "of no version": (_head(version=None), "altered"),
    "a path outside": (_head(path="../evil"), "path"),
    "an absolute path": (_head(path="/etc/evil"), "path"),
    "no path": (_head(path=""), "path"),
    "the copy's own path": (_head(path=COPY), "path"),
    "the copy's own lock": (_head(path=".lock/lock"), "path"),
    "a path that is none": (_head(path="a\0b"), "path"),
    "a name that no file may have": (_head(path="ü" * 128), "path"),
    "half a sign": (_head(path="a\ud800b"), "no change of kmigrate"),
    "a byte that is no text": (_head(path="a\udc80b"), "no change of kmigrate"),
    "a control character": (_head(path="a\x1b[2Jb"), "path"),
    "the end of a line": (_head(path="a\nb"), "path"),
    "the lock in a longer way": (_head(path="./.lock"), "path"),
    "a file below a file": (_head(path="note/x"), "below a file"),
    "a path that no file may have": (_head(path="a/" * 2_000 + "a"), "path"),
    "a time that is none": (_head(at=1e300), "altered"),
    "a beginning before the file": (_head(offset=-1), "altered"),
    "an unknown field": (_head(more=1), "no change of kmigrate"),
}


@pytest.mark.parametrize("name", BAD_OBJECTS)
def test_an_object_that_is_not_as_kmigrate_writes_it_is_refused(
    machine: Machine, other: Machine, store: MemoryStore, name: str
) -> None:
    machine.note("a")
    machine.note("b")
    change, word = BAD_OBJECTS[name]
    store.objects["000000002"] = change(store.objects["000000002"])
    refuses(other, "000000002", word)


@pytest.mark.parametrize("change", [Machine.note, lambda machine, text: machine.journal().write("acted", "roll", text)])
def test_no_value_in_an_objects_head_ends_without_a_code(
    tmp_path: Path, store: MemoryStore, change: Callable[[Machine, str], None]
) -> None:
    """Who may write to the store, or a store that mixes up objects, may leave anything there."""
    change(Machine(tmp_path / "a", store), "a")
    head, _, body = store.objects["000000001"].partition(b"\n")
    for number, (_, other) in enumerate(altered(json.loads(head))):
        store.objects["000000001"] = json.dumps(other).encode() + b"\n" + body
        with contextlib.suppress(Refused, Unavailable):
            Machine(tmp_path / str(number), store).state.refresh()


def test_a_log_with_a_gap_is_refused(machine: Machine, other: Machine, store: MemoryStore) -> None:
    for text in "abcd":
        machine.note(text)
    del store.objects["000000002"]
    refuses(other, "000000002", "later ones exist")


def test_a_gap_that_is_longer_than_what_is_asked_for_is_refused(machine: Machine, other: Machine, store: MemoryStore) -> None:
    for number in range(70):
        machine.note(str(number))
    store.objects = {name: content for name, content in store.objects.items() if name == "000000070"}
    refuses(other, "000000001", "000000070 exists")


def test_another_store_and_one_that_lost_its_end_are_refused(machine: Machine, store: MemoryStore) -> None:
    machine.note("a")
    machine.note("b")
    del store.objects["000000002"]
    machine.restart()
    refuses(machine, "000000002", "is this the store of this run?")
    store.address = "memory://other"
    refuses(machine, "is of memory://kmigrate")


def test_a_damaged_position_is_refused(machine: Machine) -> None:
    machine.note("a")
    (machine.root / COPY).write_bytes(b"{}")
    refuses(machine, "is damaged", "delete it here")


def test_a_journal_that_became_shorter_on_this_machine_is_refused(machine: Machine, other: Machine) -> None:
    for text in "ab":
        machine.journal().write("acted", "roll", text)
    (machine.root / "journal" / "prod" / "run.jsonl").write_bytes(b"")
    other.journal().write("acted", "roll", "c")
    with pytest.raises(Unavailable, match="is shorter than it was"):
        machine.state.refresh()


def test_a_store_that_creates_an_object_twice_is_refused(machine: Machine, store: MemoryStore) -> None:
    store.creates_twice = True
    with pytest.raises(Refused, match="twice"):
        machine.note("a")
    store.creates_twice = False
    machine.restart()
    machine.note("b")
    store.creates_twice = True
    with pytest.raises(Refused, match="twice"):
        machine.backup.prove_writable()


@pytest.mark.slow
def test_a_store_that_is_away_is_not_an_empty_one(machine: Machine, store: MemoryStore) -> None:
    machine.note("a")
    store.is_away = True
    for act in (machine.state.refresh, lambda: machine.note("b"), lambda: machine.journal().write("acted", "roll", "a")):
        with pytest.raises(Unavailable, match="O05"):
            act()
    with pytest.raises(Refused, match="O05"):
        machine.backup.prove_writable()
    store.is_away = False
    assert machine.files() == {"note": b"a"}


def test_an_identity_that_may_only_read_stores_nothing_and_hears_why(machine: Machine, store: MemoryStore) -> None:
    machine.note("a")
    store.is_read_only = True
    with pytest.raises(Unavailable, match=r"O05.*403 Forbidden"):
        machine.note("b")
    with pytest.raises(Refused, match=r"O05.*403 Forbidden"):
        machine.backup.prove_writable()
    assert machine.files() == {"note": b"a"}


def test_a_store_whose_newest_object_vanished_proves_nothing(machine: Machine, store: MemoryStore) -> None:
    machine.note("a")
    store.objects.clear()
    with pytest.raises(Refused, match="it is missing"):
        machine.backup.prove_writable()


def test_a_copy_is_not_written_without_its_store(machine: Machine) -> None:
    machine.note("a")
    with pytest.raises(Refused, match="O05"):
        refuse_copy(machine.root)
    refuse_copy(machine.root, machine.state)
    refuse_copy(machine.root / "elsewhere")


def test_a_shared_folder_is_the_folder_itself(tmp_path: Path) -> None:
    state = SharedFolder()
    state.replace(tmp_path / "a" / "note", lambda present: b"new" if present is None else b"old")
    state.refresh()
    assert (tmp_path / "a" / "note").read_bytes() == b"new"
    state.replace(tmp_path / "a" / "note", lambda _: None)
    state.append(tmp_path / "a" / "note", lambda file: str(file.seek(0, 2)).encode())
    assert (tmp_path / "a" / "note").read_bytes() == b"new3"
    state.prove_writable(tmp_path / "b")
    assert list((tmp_path / "b").iterdir()) == []
    state.remove(tmp_path / "a")
    state.remove(tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_a_file_in_the_place_of_a_folder_is_refused(machine: Machine, other: Machine, store: MemoryStore) -> None:
    """Each try would end the same way, as if the store were away."""
    machine.journal().write("acted", "roll", "a")
    machine.note("b")
    store.objects["000000002"] = _head(path="journal/prod")(store.objects["000000002"])
    refuses(other, "000000002", "is a folder")
