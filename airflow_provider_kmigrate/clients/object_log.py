"""`[kmigrate] folder` without a file system that workers share: a copy, on each machine, of a log of changes in an object store.

An object store has no rename, no lock and no append, and its lists may be late. So each change is an object of its own, which is never changed::

    <store>/log/000000001    one line of JSON: {"version", "number", "before": SHA-256 of the object before, "writer", "at", "path", "offset", "size", "sha256"}
    <store>/log/000000002    then the file's content, or what is appended at `offset`; "remove": true removes

The store creates an object only if there is none of that name (S3 and Azure: If-None-Match, Google: ifGenerationMatch). That is the fence: of
two writers that have seen the same changes, one creates the next number; the other reads what that was, makes its own change of it, and tries
the number behind. So no change is lost, and none is made of a state that is outdated. Who may change the cluster is decided in ZooKeeper, as ever.

Nothing relies on lists: the next number is asked for by its name. Read and refused (O05), never skipped: an incomplete object, one that does
not follow the one before it, a missing one, a store that creates an object twice, another store than the one this copy is of.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Final, Never, Protocol, TypeVar

import tenacity

from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.clients.state_folder import PRIVATE, read_or_none, remove_path
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.shared.foreign_json import read_json
from airflow_provider_kmigrate.exceptions import Failed, Refused, Unavailable

VERSION: Final = 1
COPY: Final = ".copy.json"
"""In a folder that is a copy: which store it is of, and up to which number."""
_LOCK: Final = ".lock"
_LONGEST_NAME: Final = 255  # bytes that file systems take
_LONGEST_PATH: Final = 2_000
_LATEST: Final = 253_402_300_799  # the last second that has a date
_BATCH = 64  # objects that are asked for at once
_TRIES = 200  # other writers that may be first, one after the other
_LOCK_TIMEOUT = 300.0  # seconds: another process of this machine may read a whole log


Value = TypeVar("Value")


def refuse_copy(folder: Path, state: object = None) -> None:
    """Raise `Refused` (O05) if the folder is a copy of an object store, and no `state` changes that one."""
    if state is None and (folder / COPY).exists():
        text = (
            f"{folder} is this machine's copy of an object store: what is written here alone reaches no other machine. Omit the "
            "folder, with Airflow's `[kmigrate] store` set (an original: `kmigrate node accept`)."
        )
        raise Refused.because(Reason("O05", text))


class ObjectExists(Exception):
    """The store did not create an object, because there is one of that name."""


class ObjectStore(Protocol):
    """What the log needs of a store. Every method raises `Unavailable` if there is no certain answer in time."""

    @property
    def address(self) -> str:
        """Where it is, without secrets."""

    def create(self, name: str, content: bytes) -> None:
        """Create an object, whole or not at all. Raises `ObjectExists`; after `Unavailable` it may have been created."""

    def read(self, names: Sequence[str]) -> list[bytes | None]:
        """Their contents; None if there is no such object."""

    def list_names(self) -> list[str]:
        """The names of the objects. The newest may be missing."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """One change, without its content."""

    version: int
    number: int
    before: str
    writer: str
    at: float  # seconds since the epoch
    path: str
    offset: int | None = None
    remove: bool = False
    size: int = 0
    sha256: str = ""

    def has_sound_types(self) -> bool:
        """Whether each value is of its kind, and within what a file system takes."""
        texts = all(type(text) is str for text in (self.before, self.writer, self.path, self.sha256))
        begins = self.offset is None or (type(self.offset) is int and self.offset >= 0)
        return texts and begins and type(self.remove) is bool and type(self.at) in {int, float} and 0 <= self.at <= _LATEST

    def encode(self, content: bytes) -> bytes:
        """The object's bytes: this entry as one line of JSON, then the content."""
        return json.dumps(asdict(self)).encode() + b"\n" + content


@dataclass(frozen=True, slots=True)
class _Position:
    """Up to which object this copy is complete: its number and its SHA-256."""

    number: int = 0
    digest: str = ""


class StoredFolder:
    """A `StateFolder`: `root` is this machine's copy of what the store has. Processes of one machine may share it."""

    def __init__(self, root: Path, store: ObjectStore, now: Callable[[], float] = time.time) -> None:
        self._root, self._store, self._now = root, store, now
        self._writer = f"{socket.gethostname()}/{os.getpid()}"
        self._is_checked = False

    def refresh(self) -> None:
        """Read every change that is not here yet."""
        with self._locked():
            self._pull()

    def replace(self, path: Path, make: Callable[[bytes | None], bytes | None]) -> None:
        """Store what `make` makes of the content that every change before it has led to."""
        with self._locked():
            self._change(path, lambda: (make(read_or_none(path)), None))

    def append(self, path: Path, make: Callable[[IO[bytes]], bytes]) -> None:
        """Store what `make` makes of the file that every change before it has led to."""

        def make_end() -> tuple[bytes, int]:
            with (path if path.exists() else Path(os.devnull)).open("rb") as file:  # nothing is there before the store has it
                offset = file.seek(0, os.SEEK_END)
                return make(file), offset

        with self._locked():
            self._change(path, make_end)

    def remove(self, path: Path) -> None:
        """Remove it for every worker."""
        with self._locked():
            self._change(path, lambda: (b"" if path.exists() else None, None), remove=True)

    def prove_writable(self, folder: Path) -> None:
        """Ask the store once more; the right to write is judged before it says that the object exists."""
        with self._locked():
            self._pull()
            self._require_refusal_of_second_object()
            atomic.make_folder(folder, PRIVATE)

    def _change(self, path: Path, make: Callable[[], tuple[bytes | None, int | None]], *, remove: bool = False) -> None:
        name = path.relative_to(self._root).as_posix()
        if not self._is_checked:
            self._pull()
        for _ in range(_TRIES):
            content, offset = make()
            if content is None and not self._pull():
                return
            if content is not None and self._store_change(name, content, offset, remove=remove):
                return
        raise self._unusable(f"{_TRIES} times another process was first to store something")

    def _store_change(self, name: str, content: bytes, offset: int | None, *, remove: bool) -> bool:
        """Whether it is the next change; False if another process was first: then this copy has what that one stored."""
        position = self._read_position()
        writer = f"{self._writer}/{os.urandom(8).hex()}"  # distinguishes this object from an equal one of another process
        digest = hashlib.sha256(content).hexdigest()
        entry = _Entry(
            VERSION, position.number + 1, position.digest, writer, self._now(), name, offset, remove, len(content), digest
        )
        encoded = entry.encode(content)
        if not self._create(entry.number, encoded):
            self._pull()
            return False
        self._apply(entry.number, encoded, position)
        if not self._is_checked:
            self._pull()
        return True

    def _create(self, number: int, content: bytes) -> bool:
        """Whether this process created the object. If the answer was lost, the object itself says so."""
        unknown: Unavailable | None = None
        try:
            _retry(lambda: self._store.create(_name(number), content))
        except ObjectExists:
            pass
        except Unavailable as error:
            unknown = error
        else:
            return True
        [present] = self._read([number])
        if present is None:
            raise self._unusable(str(unknown or "it says that an object exists, and does not have it"))
        return present == content

    def _pull(self) -> bool:
        """Read and apply every change behind this copy's position; whether there was one."""
        before = self._read_position()
        if not self._is_checked:
            self._require_same_store()
        batch = 1 if self._is_checked else _BATCH
        while self._apply_batch(batch):
            batch = _BATCH
        after = self._read_position()
        if not self._is_checked:
            self._require_no_gap()
            if after.number:
                self._require_refusal_of_second_object()
                self._is_checked = True
        return after != before

    def _apply_batch(self, size: int) -> bool:
        """Whether more may follow."""
        position = self._read_position()
        numbers = range(position.number + 1, position.number + 1 + size)
        contents = self._read(numbers)
        for number, content in zip(numbers, contents, strict=True):
            if content is None:
                if any(later is not None for later in contents[number - numbers[0] :]):
                    raise self._damaged(number, "it is missing, and later ones exist")
                return False
            position = self._apply(number, content, position)
        return True

    def _apply(self, number: int, content: bytes, position: _Position) -> _Position:
        entry, body = self._decode(number, content)
        if entry.before != position.digest:
            raise self._damaged(number, "it does not follow the one before it")
        path = self._find_path(entry)
        if entry.remove:
            remove_path(path)
        elif entry.offset is None:
            atomic.make_folder(path.parent, PRIVATE)
            atomic.replace(path, body)
            os.utime(path, (entry.at, entry.at))
        else:
            self._apply_end(path, entry, body)
        after = _Position(number, hashlib.sha256(content).hexdigest())
        document = {"version": VERSION, "store": self._store.address, **asdict(after)}
        atomic.replace(self._root / COPY, json.dumps(document).encode())
        return after

    def _apply_end(self, path: Path, entry: _Entry, body: bytes) -> None:
        """A process that was killed here may have written a part of it: what lies behind the offset is written again."""
        atomic.make_folder(path.parent, PRIVATE)
        with path.open("a+b") as file:
            if file.seek(0, os.SEEK_END) < (entry.offset or 0):
                raise self._unusable(f"{path} on this machine is shorter than it was; delete the folder {self._root} here")
            file.truncate(entry.offset)
            file.write(body)
            file.flush()
            os.fsync(file.fileno())

    def _decode(self, number: int, content: bytes) -> tuple[_Entry, bytes]:
        head, _, body = content.partition(b"\n")
        try:
            fields = read_json(head)
            if isinstance(fields, dict) and isinstance(fields.get("version"), int) and fields["version"] > VERSION:
                raise self._damaged(number, f"a newer kmigrate wrote it (version {fields['version']})")
            entry = _Entry(**fields)
            is_sound = (entry.version, entry.number, entry.size) == (VERSION, number, len(body)) and entry.has_sound_types()
        except (ValueError, TypeError) as error:
            raise self._damaged(number, f"it is no change of kmigrate, or incomplete: {error}") from error
        if not is_sound or hashlib.sha256(body).hexdigest() != entry.sha256:
            raise self._damaged(number, "it is incomplete or was altered")
        return entry, body

    def _find_path(self, entry: _Entry) -> Path:
        relative = PurePosixPath(entry.path)
        target = self._root / relative
        is_inside = not relative.is_absolute() and ".." not in relative.parts and entry.path.isprintable()
        is_short = all(len(os.fsencode(part)) <= _LONGEST_NAME for part in relative.parts) and len(entry.path) <= _LONGEST_PATH
        if not is_inside or not is_short or not relative.parts or relative.parts[0] in {COPY, _LOCK}:
            raise self._damaged(entry.number, f"it names the path {entry.path[:_LONGEST_NAME]!r}")
        if (target.is_dir() and not entry.remove) or any(
            parent.is_file() for parent in target.parents[: len(relative.parts) - 1]
        ):
            raise self._damaged(entry.number, f"the path {entry.path[:_LONGEST_NAME]!r} is a folder, or below a file")
        return target

    def _require_same_store(self) -> None:
        """Refuse a copy of another store, and a store that has lost what this copy was made of."""
        position = self._read_position()
        if not position.number:
            return
        [content] = self._read([position.number])
        if content is None or hashlib.sha256(content).hexdigest() != position.digest:
            raise self._damaged(position.number, f"the copy in {self._root} has another one; is this the store of this run?")

    def _require_no_gap(self) -> None:
        """A list may miss the newest objects; but what it has, exists."""
        names = self._retry_asking(self._store.list_names)
        last = self._read_position().number
        later = sorted(name for name in names if name > _name(last) and name.isdecimal())
        if later and self._read([last + 1]) == [None]:
            raise self._damaged(last + 1, f"it is missing, and {later[0]} exists")

    def _require_refusal_of_second_object(self) -> None:
        """Create the newest object once more, with its own content: the store must refuse that, or two writers could be first."""
        number = self._read_position().number
        if not number:
            return
        [content] = self._read([number])
        if content is None:
            raise self._damaged(number, "it is missing")
        try:
            self._retry_asking(lambda: self._store.create(_name(number), content))
        except ObjectExists:
            return
        text = f"The object store {self._store.address} created {_name(number)} twice. It must refuse that: else one of two writers loses its change."
        raise Refused.because(Reason("O05", text))

    def _read(self, numbers: Sequence[int]) -> list[bytes | None]:
        return self._retry_asking(lambda: self._store.read([_name(number) for number in numbers]))

    def _retry_asking(self, ask: Callable[[], Value]) -> Value:
        try:
            return _retry(ask)
        except Unavailable as error:
            raise self._unusable(str(error)) from error

    def _read_position(self) -> _Position:
        content = read_or_none(self._root / COPY)
        if content is None:
            return _Position()
        try:
            fields = read_json(content)
            position, address = _Position(int(fields["number"]), str(fields["digest"])), fields["store"]
        except (ValueError, TypeError, KeyError):
            self._refuse_copy("is damaged")
        if address != self._store.address:
            self._refuse_copy(f"is of {address}, not of {self._store.address}")
        return position

    def _refuse_copy(self, problem: str) -> Never:
        text = f"{self._root / COPY} {problem}. On this machine the folder is a copy: delete it here, and it is made again."
        raise Refused.because(Reason("O05", text))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            atomic.make_folder(self._root, PRIVATE)
            with atomic.locked(self._root / _LOCK, _LOCK_TIMEOUT):
                yield
        except (Failed, OSError) as error:
            raise self._unusable(str(error)) from error

    def _unusable(self, problem: str) -> Unavailable:
        text = f"{self._root} cannot be made equal to the object store {self._store.address}: {problem}."
        return Unavailable.because(Reason("O05", text))

    def _damaged(self, number: int, problem: str) -> Refused:
        text = f"Object {_name(number)} of {self._store.address}/log cannot be used: {problem}."
        return Refused.because(Reason("O05", text))


def _name(number: int) -> str:
    return f"{number:09}"


@tenacity.retry(
    retry=tenacity.retry_if_exception_type(Unavailable),
    stop=tenacity.stop_after_attempt(3),
    wait=tenacity.wait_exponential(0.2, max=2.0),
    reraise=True,
)
def _retry(ask: Callable[[], Value]) -> Value:
    return ask()
