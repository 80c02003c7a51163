"""Whatever dies meanwhile, a file is the old one or the new one, and nothing else is left beside it."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.clients.atomic import locked
from airflow_provider_kmigrate.clients.state_folder import SharedFolder
from airflow_provider_kmigrate.exceptions import Failed, TimedOut
from airflow_provider_kmigrate.steps.journal import FileJournal


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    path, wholes = tmp_path / "file", [b"a" * 100_000, b"b" * 50_000]
    atomic.replace(path, wholes[0])
    stop, seen = threading.Event(), set()

    def read() -> None:
        while not stop.is_set():
            seen.add(path.read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    for turn in range(60):
        atomic.replace(path, wholes[turn % 2])
    stop.set()
    reader.join(10)
    assert seen <= set(wholes)


def test_a_write_that_fails_leaves_the_old_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    atomic.replace(path, b"old")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Failed, match="No space left"):
        atomic.replace(path, b"new")
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == {"file": b"old"}


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What was synced, in order."""
    paths: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda handle: paths.append(Path(f"/proc/self/fd/{handle}").readlink()))
    return paths


def test_the_folder_is_on_disk_too_before_it_returns(tmp_path: Path, synced: list[Path]) -> None:
    """A rename that only memory knows is gone after a power cut, and the old file with it on some file systems."""
    atomic.replace(tmp_path / "file", b"new")
    assert [path.parent if path != tmp_path else path for path in synced] == [tmp_path, tmp_path]
    assert synced[1] == tmp_path


def test_new_folders_are_on_disk_before_what_is_written_there(tmp_path: Path, synced: list[Path]) -> None:
    """Else a power cut takes the originals with the folder that they were the first in."""
    SharedFolder().replace(tmp_path / "backup" / "prod" / "original", lambda _: b"a")
    folders = [path for path in synced if path.is_dir()]
    assert sorted(folders[:2]) == [tmp_path, tmp_path / "backup"]
    assert folders[2:] == [tmp_path / "backup" / "prod"]
    synced.clear()
    atomic.make_folder(tmp_path / "backup" / "prod")
    assert synced == []


def test_the_name_of_a_new_journal_is_on_disk_before_its_first_line(tmp_path: Path, synced: list[Path]) -> None:
    journal = FileJournal(tmp_path / "journal" / "prod" / "run.jsonl", "prod/1", lambda: 1.0)
    assert sorted(synced) == [tmp_path, tmp_path / "journal"]
    synced.clear()
    journal.write("act", "roll", "a")
    journal.write("acted", "roll", "b")
    file = tmp_path / "journal" / "prod" / "run.jsonl"
    assert synced == [file.parent, file, file]


@pytest.mark.parametrize(("mode", "expected"), [(atomic.OWNER, 0o600), (atomic.ALL_USERS, 0o640)])
def test_a_new_file_is_for_its_owner_by_default(tmp_path: Path, mode: int, expected: int) -> None:
    before = os.umask(0o027)
    try:
        atomic.replace(tmp_path / "file", b"", mode=mode)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == expected


def test_a_path_that_is_no_folder_is_reported_as_such(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Failed, match="Not a directory"):
        atomic.replace(tmp_path / "file" / "below", b"")


def test_waiting_for_the_lock_ends(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(TimedOut), locked(tmp_path, timeout=0.05):
        pytest.fail("two in one folder")


def test_a_killed_holder_lets_go(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib, signal; from airflow_provider_kmigrate.clients.atomic import locked\n"
        "with locked(pathlib.Path(sys.argv[1])): print('held', flush=True); signal.pause()"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout
    with holder, holder.stdout:
        assert holder.stdout.readline() == "held\n"
        holder.kill()
        holder.wait(10)
    with locked(tmp_path, timeout=10.0):
        pass
