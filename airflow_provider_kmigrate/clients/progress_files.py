"""The progress of a task in files of `[kmigrate] folder`, for an Airflow without a store of a task's state (3.1 and 3.2).

Below `<folder>/progress/<DAG>/<run>/<task>/` each process of a task has a file of its own, `<try>-<number>-<random>.json`, the newest of
which counts. So no process writes over another's, and no lock of the file system is needed, which not every shared one has:

- a process first writes its empty file (it takes the task), and then reads the newest older one that has a value;
- before and after each write it lists the folder. If a newer process has taken the task, the write is refused (`Fenced`, H03): what it stored
  after that is never read, and what it stored before is read by the newer one.

A file names its task and its run, whose time of creation distinguishes it from an earlier run with the same id. A file that is damaged, or of
another task, is refused by its path (H09): it may hold a verdict.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import total_ordering
from pathlib import Path
from typing import Any, Final, Self

from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.clients.state_folder import SharedFolder, StateFolder
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.shared.foreign_json import read_json
from airflow_provider_kmigrate.exceptions import Failed, Fenced, Refused, Unavailable

VERSION: Final = 1
_NAME = re.compile(r"(\d{6,9})-(\d{6,9})-([0-9a-f]{16})\.json")
_LARGEST = 1_000_000  # bytes
_OVER = "over"
_READS = 5  # a newer process may delete what was listed


@dataclass(frozen=True, slots=True)
class TaskOfRun:
    """One task of one run, as Airflow names it. `created`: when the run was created, ISO 8601; `map_index` is -1 if the task is not mapped."""

    dag_id: str
    run_id: str
    created: str
    task_id: str
    map_index: int

    @property
    def folder(self) -> Path:
        """Where its files are, below that of all tasks; plain names that no file system finds too long."""
        run = f"{self.run_id}\n{self.created}"
        return Path(
            _shorten(self.dag_id), _shorten(self.run_id, run), _shorten(self.task_id, f"{self.task_id}\n{self.map_index}")
        )


def remove_finished_runs(folder: Path, task: TaskOfRun, state: StateFolder, has_succeeded: Callable[[str], bool]) -> list[str]:
    """Remove the files of other runs of the task's DAG that have succeeded; returns their ids. Raises as `StateFolder`.

    Nothing reads them any more: a task that is cleared later begins again, since each has stored at its end that nothing is left. The run's
    own folder stays, with an empty file: without it, such a task would take this machine for one without the shared folder. What is damaged
    or foreign stays as well.
    """
    removed = list[str]()
    own_run = (folder / task.folder).parent
    for run_folder in sorted(own_run.parent.iterdir()):
        run_id = None if run_folder == own_run else _read_run_id(folder, run_folder, task.dag_id)
        if run_id is None or run_id == task.run_id or not has_succeeded(run_id):
            continue
        state.replace(run_folder / _OVER, lambda _: b"")
        for task_folder in sorted(path for path in run_folder.iterdir() if path.is_dir()):
            state.remove(task_folder)
        removed.append(run_id)
    return removed


def _read_run_id(folder: Path, run_folder: Path, dag_id: str) -> str | None:
    """The id of a run, by one of its files that is where it belongs; None if there is none."""
    for path in run_folder.glob("*/*.json"):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            document = read_json(path.read_bytes())
            names = ("dag_id", "run_id", "created", "task_id", "map_index")
            owner = TaskOfRun(*(document[name] for name in names))
            if owner.dag_id == dag_id and folder / owner.folder == path.parent:
                return owner.run_id
    return None


def _shorten(name: str, whole: str = "") -> str:
    digest = hashlib.sha256((whole or name).encode(errors="surrogatepass")).hexdigest()[:16]
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:80] + f".{digest}"


@total_ordering
@dataclass(frozen=True, slots=True)
class _Writer:
    """One process of a task; a later one is greater."""

    try_number: int
    number: int
    random: str

    @property
    def file_name(self) -> str:
        """Name of the file in which it stores its value."""
        return f"{self.try_number:06}-{self.number:06}-{self.random}.json"

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """The process that wrote a file of this name; None if it is none of these files."""
        match = _NAME.fullmatch(name)
        return cls(int(match[1]), int(match[2]), match[3]) if match else None

    def __lt__(self, other: _Writer) -> bool:
        return (self.try_number, self.number, self.random) < (other.try_number, other.number, other.random)


class ProgressFiles:
    """The stored value of one task: a JSON value, written whole. `folder`: of all tasks, shared by all workers.

    Every method raises `Fenced` (H03) once a newer process has taken the task, `Refused` (H09) for a file that is damaged or of another
    task, and `Unavailable` (O05) if the folder cannot be read or written: then nothing may be done that relies on the value.
    """

    def __init__(self, folder: Path, task: TaskOfRun, try_number: int, state: StateFolder | None = None) -> None:
        self.folder = folder / task.folder
        self._task, self._try, self._state = task, try_number, state or SharedFolder()
        self._me = _Writer(try_number, 0, os.urandom(8).hex())

    def take(self, *, resumed: bool) -> Any:
        """Take the task from its earlier processes; returns what they stored, or None.

        `resumed`: an earlier process certainly stored something. If the folder knows nothing of that, or in a second try nothing of the
        run, another folder is mounted here.
        """
        with self._raising_unavailable():
            self._state.refresh()
            if (resumed and not self.folder.is_dir()) or (self._try > 1 and not self.folder.parent.is_dir()):
                raise self._unusable("an earlier process stored it there, but this machine does not have it")
            atomic.make_folder(self.folder)
        older = self._list_writers()
        self._me = _Writer(self._try, max((writer.number for writer in older), default=0) + 1, self._me.random)
        self._require_newest(older)
        self._write_file({})
        value = self._read_newest_value()
        self.write(value)
        return value

    def write(self, value: object) -> None:
        """Store a JSON value; on return it survives a crash of the machine."""
        self._require_newest(self._list_writers())
        self._write_file({"value": value})
        writers = self._list_writers()
        self._require_newest(writers)
        for writer in writers:
            if writer < self._me:
                self._state.remove(self.folder / writer.file_name)

    def _require_newest(self, writers: list[_Writer]) -> None:
        newest = max(writers, default=self._me)
        if newest > self._me:
            text = (
                f"Try {self._me.try_number} of task {self._task.task_id} stores nothing more: process {newest.number} of it, in try "
                f"{newest.try_number}, has taken over ({self.folder / newest.file_name})."
            )
            raise Fenced.because(Reason("H03", text))

    def _read_newest_value(self) -> Any:
        for _ in range(_READS):
            older = sorted((writer for writer in self._list_writers() if writer < self._me), reverse=True)
            with contextlib.suppress(FileNotFoundError):
                for writer in older:
                    document = self._read_file(writer)
                    if "value" in document:
                        return document["value"]
                return None
        raise self._unusable(f"its files changed {_READS} times while they were read")

    def _list_writers(self) -> list[_Writer]:
        """The processes that have taken the task. A hidden name is a write that was cut off, or the file system's own."""
        with self._raising_unavailable():
            self._state.refresh()
            names = [entry.name for entry in os.scandir(self.folder) if not entry.name.startswith(".")]
        writers = {name: _Writer.parse(name) for name in names}
        foreign = sorted(name for name, writer in writers.items() if writer is None)
        if foreign:
            raise self._unreadable(foreign[0], "kmigrate writes no file with this name")
        return [writer for writer in writers.values() if writer is not None]

    def _read_file(self, writer: _Writer) -> dict[str, Any]:
        """Raises FileNotFoundError if it was deleted meanwhile."""
        path = self.folder / writer.file_name
        with self._raising_unavailable(passing=FileNotFoundError), path.open("rb") as file:
            content = file.read(_LARGEST + 1)
        try:
            document = read_json(content) if len(content) <= _LARGEST else None
        except ValueError as error:
            raise self._unreadable(path.name, f"it is damaged: {error}") from error
        if not isinstance(document, dict):
            raise self._unreadable(path.name, "it is damaged: no JSON object of at most a megabyte")
        version = document.get("version")
        if version != VERSION:
            newer = isinstance(version, int) and version > VERSION
            raise self._unreadable(
                path.name,
                f"a newer kmigrate wrote it (version {version}; this one reads {VERSION})" if newer else "it has no version",
            )
        if document.keys() - {"value"} != self._describe(writer).keys() or any(
            document[name] != wanted for name, wanted in self._describe(writer).items()
        ):
            raise self._unreadable(path.name, "it is of another task, run or process")
        return document

    def _describe(self, writer: _Writer) -> dict[str, object]:
        return {"version": VERSION, "file": writer.file_name, **asdict(self._task)}

    def _write_file(self, value: dict[str, object]) -> None:
        data = json.dumps(self._describe(self._me) | value).encode()
        with self._raising_unavailable():
            self._state.replace(self.folder / self._me.file_name, lambda _: data)

    @contextlib.contextmanager
    def _raising_unavailable(self, *, passing: type[OSError] | tuple[()] = ()) -> Iterator[None]:
        """Raise `Unavailable` for what the file system refuses."""
        try:
            yield
        except passing:
            raise
        except (Failed, OSError) as error:
            raise self._unusable(str(error)) from error

    def _unusable(self, problem: str) -> Unavailable:
        return Unavailable.because(Reason("O05", f"The progress of a task cannot be kept in {self.folder}: {problem}."))

    def _unreadable(self, name: str, problem: str) -> Refused:
        return Refused.because(Reason("H09", f"{self.folder / name} cannot be used as this task's progress: {problem}."))
