"""A task's progress in files: what each process of the task stores is read by the next one alone, and by no other task."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.clients.progress_files import ProgressFiles, TaskOfRun
from airflow_provider_kmigrate.exceptions import Fenced, KMigrateError, Refused, Unavailable

TASK = TaskOfRun("kmigrate_zk_to_kraft__sim", "manual__2026-12-01T00:00:00+00:00", "2026-12-01T00:00:00+00:00", "soak", -1)


class Killed(BaseException):
    """The process ends here."""


def process(folder: Path, try_number: int = 1, task: TaskOfRun = TASK) -> ProgressFiles:
    return ProgressFiles(folder, task, try_number)


def taken(folder: Path, try_number: int = 1, **kwargs: Any) -> ProgressFiles:
    files = process(folder, try_number, **kwargs)
    files.take(resumed=False)
    return files


def kill_at(patch: pytest.MonkeyPatch, module: Any, name: str) -> None:
    def die(*_: Any, **__: Any) -> None:
        raise Killed

    patch.setattr(module, name, die)


def stored_file(folder: Path) -> Path:
    [path] = folder.rglob("*.json")
    return path


@pytest.mark.parametrize("try_number", [1, 2], ids=["after a deferral", "in a retry"])
def test_the_next_process_reads_what_was_stored(tmp_path: Path, try_number: int) -> None:
    taken(tmp_path).write({"healthy_seconds": 480.0})
    assert process(tmp_path, try_number).take(resumed=try_number == 1) == {"healthy_seconds": 480.0}
    assert stored_file(tmp_path).stat().st_mode & 0o077 == 0


def test_the_first_process_reads_nothing(tmp_path: Path) -> None:
    assert process(tmp_path).take(resumed=False) is None


OTHERS = {
    "another task": {"task_id": "wait"},
    "another run": {"run_id": "manual__2"},
    "a later run with the same id": {"created": "2026-12-02T00:00:00+00:00"},
    "another DAG": {"dag_id": "kmigrate_zk_to_kraft__other"},
    "another mapped task": {"map_index": 0},
    "names that differ in one character that no file has": {"task_id": "so/k"},
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS.keys())
def test_another_task_reads_nothing_of_it_and_changes_nothing(tmp_path: Path, other: dict[str, Any]) -> None:
    first = taken(tmp_path, task=replace(TASK, task_id="so.k") if other.get("task_id") == "so/k" else TASK)
    first.write({"healthy_seconds": 480.0})
    second = process(tmp_path, task=replace(TASK, **other))
    assert second.take(resumed=False) is None
    second.write({"healthy_seconds": 1.0})
    first.write({"healthy_seconds": 490.0})


def test_long_names_fit_any_file_system(tmp_path: Path) -> None:
    task = replace(TASK, dag_id="ä" * 250, run_id="a/b:" * 62, task_id="x" * 250)
    taken(tmp_path, task=task).write(1)
    assert process(tmp_path, task=task).take(resumed=True) == 1
    assert all(len(part.encode()) <= 143 for part in stored_file(tmp_path).relative_to(tmp_path).parts)


@pytest.mark.parametrize(
    ("module", "name"),
    [(atomic, "_write_new_file"), (Path, "replace"), (atomic, "sync_folder")],
    ids=["written", "renamed", "synced"],
)
def test_a_process_that_is_killed_in_a_write_leaves_the_old_value_or_the_new_one(tmp_path: Path, module: Any, name: str) -> None:
    taken(tmp_path).write("old")
    second = taken(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        kill_at(patch, module, name)
        with pytest.raises(Killed):
            second.write("new")
    assert process(tmp_path, 2).take(resumed=False) == ("new" if name == "sync_folder" else "old")


def test_a_process_that_is_killed_when_it_has_taken_the_task_loses_nothing(tmp_path: Path) -> None:
    taken(tmp_path).write("old")
    with pytest.MonkeyPatch.context() as patch:
        kill_at(patch, ProgressFiles, "_read_newest_value")
        with pytest.raises(Killed):
            process(tmp_path).take(resumed=True)
    assert len(list(tmp_path.rglob("*.json"))) == 2
    assert process(tmp_path, 2).take(resumed=False) == "old"
    assert len(list(tmp_path.rglob("*.json"))) == 1, "the newest process deletes the others' files"


@pytest.mark.parametrize("later_try", [1, 2], ids=["resumed meanwhile", "tried again meanwhile"])
def test_an_older_process_writes_nothing_any_more(tmp_path: Path, later_try: int) -> None:
    older = taken(tmp_path)
    newer = taken(tmp_path, later_try)
    newer.write("newer")
    with pytest.raises(Fenced, match=rf"H03.*Try 1 of task soak stores nothing more.*try {later_try}, has taken over"):
        older.write("older")
    assert process(tmp_path, later_try).take(resumed=True) == "newer"


def test_an_older_try_that_starts_late_reads_and_writes_nothing(tmp_path: Path) -> None:
    taken(tmp_path)
    taken(tmp_path, 2).write("newer")
    before = stored_file(tmp_path)
    with pytest.raises(Fenced, match=r"H03"):
        process(tmp_path, 1).take(resumed=False)
    assert stored_file(tmp_path) == before


def test_a_write_is_refused_if_the_task_was_taken_while_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newer process reads it or it is refused, never neither: here it was not read."""
    older, replace_file, read = taken(tmp_path), atomic.replace, list[Any]()

    def replace_late(path: Path, data: bytes) -> None:
        monkeypatch.setattr(atomic, "replace", replace_file)
        read.append(process(tmp_path, 2).take(resumed=False))
        replace_file(path, data)

    monkeypatch.setattr(atomic, "replace", replace_late)
    with pytest.raises(Fenced, match=r"H03"):
        older.write("unseen")
    assert read == [None]
    assert process(tmp_path, 2).take(resumed=True) is None


def test_of_two_processes_that_take_the_task_at_once_one_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken(tmp_path).write("stored")
    first, read = process(tmp_path), ProgressFiles._read_newest_value
    second = process(tmp_path)
    values = list[Any]()

    def read_late(files: ProgressFiles) -> Any:
        if files is first:
            values.append(second.take(resumed=True))
        return read(files)

    monkeypatch.setattr(ProgressFiles, "_read_newest_value", read_late)
    with pytest.raises(Fenced, match=r"H03"):
        first.take(resumed=True)
    second.write("more")
    assert (values, process(tmp_path).take(resumed=True)) == (["stored"], "more")


def rename_foreign(path: Path) -> None:
    path.rename(path.with_name("000001-000009-0123456789abcdef.json"))


DAMAGED: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:-9]), "it is damaged"),
    "empty": (lambda path: path.write_bytes(b""), "it is damaged"),
    "no text": (lambda path: path.write_bytes(b"\xff\x00"), "it is damaged"),
    "a list": (lambda path: path.write_text("[1]"), "it is damaged: no JSON object"),
    "too large": (
        lambda path: path.write_text(json.dumps("x" * 1_100_000)),
        "it is damaged: no JSON object of at most a megabyte",
    ),
    "no version": (lambda path: path.write_text("{}"), "it has no version"),
    "a newer version": (lambda path: edit(path, version=2), r"a newer kmigrate wrote it \(version 2; this one reads 1\)"),
    "another run's": (lambda path: edit(path, run_id="manual__2"), "it is of another task, run or process"),
    "a later run's": (lambda path: edit(path, created="2027"), "it is of another task, run or process"),
    "one field more": (lambda path: edit(path, more=1), "it is of another task, run or process"),
    "another process's": (rename_foreign, "it is of another task, run or process"),
    "an unknown name": (lambda path: path.with_name("notes.json").write_text("{}"), "kmigrate writes no file with this name"),
}


def edit(path: Path, **changed: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))


@pytest.mark.parametrize(("damage", "said"), DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_or_foreign_file_is_refused_by_its_path_and_left_as_it_is(
    tmp_path: Path, damage: Callable[[Path], object], said: str
) -> None:
    taken(tmp_path).write("verdict")
    damage(stored_file(tmp_path))
    with pytest.raises(Refused, match=rf"H09.*{tmp_path}.*\.json cannot be used as this task's progress: {said}"):
        process(tmp_path, 2).take(resumed=False)
    with pytest.raises(Refused, match=r"H09"):
        process(tmp_path, 2).take(resumed=False)


@pytest.mark.parametrize("cut_name", [".000001-000001-0123456789abcdef.json.7.ab.tmp", ".nfs00000001"])
def test_what_a_cut_write_or_the_file_system_leaves_is_no_file_of_the_task(tmp_path: Path, cut_name: str) -> None:
    taken(tmp_path).write("stored")
    stored_file(tmp_path).with_name(cut_name).write_bytes(b"{")
    assert process(tmp_path, 2).take(resumed=False) == "stored"


def test_a_second_try_that_finds_no_folder_of_its_run_does_nothing(tmp_path: Path) -> None:
    """A worker without the shared folder: a fresh start could go on in spite of a verdict."""
    with pytest.raises(Unavailable, match=r"O05.*this machine does not have it"):
        process(tmp_path / "not mounted", 2).take(resumed=False)
    assert not (tmp_path / "not mounted").exists()


def test_a_second_try_begins_anew_if_the_first_one_never_began_beside_others(tmp_path: Path) -> None:
    taken(tmp_path, task=replace(TASK, task_id="preflight"))
    assert process(tmp_path, 2).take(resumed=False) is None


def test_a_resumed_task_finds_its_own_folder(tmp_path: Path) -> None:
    taken(tmp_path, task=replace(TASK, task_id="preflight"))
    with pytest.raises(Unavailable, match=r"O05.*this machine does not have it"):
        process(tmp_path, 2).take(resumed=True)


def full_disk(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def closed_folder(*_: Any, **__: Any) -> None:
    raise PermissionError(errno.EACCES, "Permission denied")


@pytest.mark.parametrize(
    ("module", "name", "fault"),
    [(os, "fsync", full_disk), (os, "open", closed_folder), (os, "scandir", closed_folder), (Path, "mkdir", full_disk)],
)
def test_a_folder_that_cannot_be_used_is_named_and_the_next_try_has_what_was_stored(
    tmp_path: Path, module: Any, name: str, fault: Callable[..., None]
) -> None:
    taken(tmp_path).write("stored")
    second = process(tmp_path, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, fault)
        with pytest.raises(Unavailable, match=rf"O05.*{tmp_path}.*(No space left|Permission denied)"):
            second.take(resumed=False)
    assert process(tmp_path, 3).take(resumed=False) == "stored"


def test_a_file_that_cannot_be_read_is_not_taken_for_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken(tmp_path).write("stored")
    monkeypatch.setattr(Path, "open", closed_folder)
    with pytest.raises(Unavailable, match=r"O05.*Permission denied"):
        process(tmp_path, 2).take(resumed=False)


def test_files_that_change_at_each_reading_end_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken(tmp_path).write("stored")

    def deleted(*_: Any) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(ProgressFiles, "_read_file", deleted)
    with pytest.raises(KMigrateError, match=r"O05.*changed 5 times"):
        process(tmp_path, 2).take(resumed=False)


def test_a_full_disk_before_an_act_ends_the_task_for_a_retry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = taken(tmp_path)
    files.write("old")
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(Unavailable, match=r"O05.*No space left"):
        files.write("restart begun")
    monkeypatch.undo()
    assert process(tmp_path, 2).take(resumed=False) == "old"
