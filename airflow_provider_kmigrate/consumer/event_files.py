"""Events in files: one file a writer, one file for all ownership changes, in one folder.

Lines are with the operating system before `append` returns: a killed process loses none of them. The marker `<writer>.done`
appears, whole or not at all, after a writer's last event.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.clients.hosts.tokens import locked
from airflow_provider_kmigrate.core.audit.event_lines import BadEvent, decode, encode
from airflow_provider_kmigrate.core.events import Event, Ownership
from airflow_provider_kmigrate.exceptions import Failed

_OWNERSHIP: Final = "ownership.jsonl"
_LOCK_S: Final = 10.0
_APPEND: Final = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


class FileSink:
    """The folder `folder`, made if it is not there. Members on one machine, or on a file system with locks, may share it.

    Once the folder is removed nobody will read it, so everything is passed over then, and nothing brings it back.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self._handles: dict[str, int] = {}
        atomic.make_folder(self.folder)

    def append(self, writer: str, lines: Sequence[str]) -> None:
        """Raises `Failed`."""
        if writer not in self._handles and not self.folder.is_dir():
            return
        data = "".join(f"{line}\n" for line in lines).encode()
        with _failing(f"cannot write the events of {writer}"):
            handle = self._handle(writer)
            while data:
                data = data[os.write(handle, data) :]

    def _handle(self, writer: str) -> int:
        """Made for this writer alone: a second process of the same name fails instead of mixing its numbers in."""
        if writer not in self._handles:
            self._handles[writer] = os.open(self.folder / f"{writer}.jsonl", _APPEND | os.O_EXCL, 0o644)
        return self._handles[writer]

    def own(self, event: Ownership) -> None:
        """`position` becomes the place in the file. Raises `Failed` or `TimedOut`."""
        if not self.folder.is_dir():
            return  # taking the lock would bring it back
        with locked(self.folder, _LOCK_S), _failing("cannot write to the ownership log"):
            handle = os.open(self.folder / _OWNERSHIP, _APPEND, 0o644)
            try:
                end = os.fstat(handle).st_size
                torn = end > 0 and os.pread(handle, 1, end - 1) != b"\n"  # by a member that was killed while it wrote
                os.write(handle, ("\n" * torn + encode(replace(event, position=end)) + "\n").encode())
            finally:
                os.close(handle)

    def close(self, writer: str, events: int, *, clean: bool) -> None:
        """Raises `Failed`."""
        handle = self._handles.pop(writer, None)
        if handle is None:
            return
        with _failing(f"cannot end the events of {writer}"):
            os.fsync(handle)
            os.close(handle)
            if self.folder.is_dir():
                atomic.replace(self.folder / f"{writer}.done", json.dumps({"events": events, "clean": clean}).encode())


@contextmanager
def _failing(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Failed(f"{what}: {error}") from error


@dataclass(slots=True)
class Reading:
    """Every event of a folder, and the lines that were none (`file reason`)."""

    events: list[Event] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


class Reader:
    """Reads a folder's events, and on each further `read` those that came since.

    A line without its end is left for later: it is being written, or its writer was killed there and will leave no stop.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._at: dict[Path, int] = {}

    def read(self) -> Reading:
        """Raises `Failed` where the folder cannot be read."""
        reading = Reading()
        with _failing(f"cannot read the events in {self._folder}"):
            for path in sorted(self._folder.glob("*.jsonl")):
                self._read_file(path, reading)
        return reading

    def _read_file(self, path: Path, reading: Reading) -> None:
        start = self._at.get(path, 0)
        with path.open("rb") as file:
            file.seek(start)
            data = file.read()
        end = data.rfind(b"\n") + 1
        self._at[path] = start + end
        for line in data[:end].split(b"\n")[:-1]:
            try:
                reading.events.append(decode(line.decode(errors="replace")))
            except BadEvent as error:
                reading.refused.append(f"{path.name} {line[:80]!r}: {error}")


def read_events(folder: Path) -> Reading:
    """Everything that the folder holds."""
    return Reader(folder).read()
