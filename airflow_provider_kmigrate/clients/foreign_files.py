"""Reads files that other users write: what is no regular file is never opened for long, no link is followed, nothing is read without a limit.

Whoever may write a folder can put anything under a name in it while it is read: a link to a file that only Airflow's user may read, a
pipe without a writer, a file of a terabyte without content. So a name is opened relative to its open folder, and judged by what was
opened. What cannot be used is a `NotRead`, whose text quotes nothing of it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from airflow_provider_kmigrate.core.text import printable, quoted
from airflow_provider_kmigrate.exceptions import Refused

LONGEST: Final = 1 << 20  # bytes of a line; an event about ten thousand partitions has some 300 kB
LARGEST: Final = 4 << 30  # bytes of a file
_MOST: Final = 10_000  # entries of a folder
_CHUNK: Final = 1 << 16
_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NO_FILE: Final = "it is no regular file"
_WHYS: Final = {
    errno.ELOOP: "it is a link, and none is followed",
    errno.ENXIO: _NO_FILE,
    errno.ENOTDIR: "a part of its path is a link or no folder",
}


class NotRead(Refused):
    """A file of others that is not read, and why."""


class Line(NamedTuple):
    """A line without its end; `text` is None if it is too long to be one, and `shown` quotes it by its length and hash."""

    text: bytes | None
    shown: str = ""


class Opened(NamedTuple):
    """An open file; `size` in bytes and `written_ms` (since the epoch) as they were when it was opened."""

    file: BinaryIO
    size: int
    written_ms: int


@contextlib.contextmanager
def opened(folder: Path, name: str, largest: int = LARGEST) -> Iterator[Opened]:
    """A regular file below a folder, which may itself be behind a link. Raises `NotRead`."""
    with contextlib.ExitStack() as stack:
        try:
            above = stack.enter_context(_held(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)))
            *parents, last = Path(name).parts
            for part in parents:
                above = stack.enter_context(_held(os.open(part, _FLAGS | os.O_DIRECTORY, dir_fd=above)))
            file = stack.enter_context(os.fdopen(os.open(last, _FLAGS, dir_fd=above), "rb"))
        except (OSError, ValueError) as error:
            raise _not_read(name, _why(error)) from None
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise _not_read(name, _NO_FILE)
        if found.st_size > largest:
            raise _not_read(name, f"it has {found.st_size} bytes, and at most {largest} are read")
        yield Opened(file, found.st_size, found.st_mtime_ns // 1_000_000)


@contextlib.contextmanager
def _held(handle: int) -> Iterator[int]:
    try:
        yield handle
    finally:
        os.close(handle)


def _why(error: OSError | ValueError) -> str:
    if isinstance(error, OSError):
        return _WHYS.get(error.errno or 0) or os.strerror(error.errno or 0)
    return "its name is none of a file"


def _not_read(name: str, why: str) -> NotRead:
    return NotRead(f"{printable(name)} is not read: {why}")


def lines(found: Opened, longest: int = LONGEST) -> Iterator[Line]:
    """Its lines as far as it was written when it was opened, without an unfinished last one. Raises `OSError`.

    A longer line than `longest` bytes is read to its end and not kept, also without an end: nothing that long is being written.
    """
    left = found.size
    while left > 0 and (begin := found.file.readline(min(longest + 1, left))):
        left -= len(begin)
        if begin.endswith(b"\n"):
            yield Line(begin[:-1])
        elif len(begin) > longest:
            length, digest = _rest(found.file, left, begin)
            left -= length - len(begin)
            yield Line(None, quoted(length, digest))


def _rest(file: BinaryIO, left: int, begin: bytes) -> tuple[int, str]:
    """The length of a line that began so, without its end, and its hash."""
    digest, length, chunk = hashlib.sha256(begin), len(begin), begin
    while left > 0 and not chunk.endswith(b"\n") and (chunk := file.readline(min(_CHUNK, left))):
        digest.update(chunk)
        length, left = length + len(chunk), left - len(chunk)
    return length, digest.hexdigest()


def names_in(folder: Path) -> tuple[list[str], bool]:
    """The paths below a folder of what is no folder, links too, sorted; and whether these are all: more than 10,000 are not listed.

    Raises `OSError` if the folder itself cannot be listed.
    """
    found, places, left = list[str](), [""], _MOST
    while places:
        place = places.pop()
        with contextlib.suppress(*([OSError] if place else ())), os.scandir(folder / place) as entries:
            for entry in entries:
                if not left:
                    return sorted(found), False
                left -= 1
                (places if entry.is_dir(follow_symlinks=False) else found).append(str(Path(place) / entry.name))
    return sorted(found), True
