"""Reads files that other users write: what is no regular file is never opened for long, no link is followed, nothing is read without a limit.

Any user who may write a folder can put anything under a name in it while it is read: a link to a file that only Airflow's user may read, a
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

from airflow_provider_kmigrate.core.shared.text import describe_hidden, printable
from airflow_provider_kmigrate.exceptions import Refused

LONGEST: Final = 1 << 20  # bytes of a line; an event about ten thousand partitions has some 300 kB
LARGEST: Final = 4 << 30  # bytes of a file
MOST_ENTRIES: Final = 10_000  # entries of a folder
_CHUNK: Final = 1 << 16
_BLOCK: Final = 2 << 20
_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NO_FILE: Final = "it is no regular file"
_WHYS: Final = {
    errno.ELOOP: "it is a link, and none is followed",
    errno.ENXIO: _NO_FILE,
    errno.ENOTDIR: "a part of its path is a link or no folder",
}


class NotRead(Refused):
    """A file of others that is not read, and why."""


class LineBlock(NamedTuple):
    """Lines that follow each other, without their ends; `size` of all in bytes, with them.

    `too_long`: instead of lines it is one that is too long to be an event, quoted by its length and hash.
    """

    lines: list[bytes]
    size: int
    too_long: str = ""


class OpenFile(NamedTuple):
    """An open file; `size` in bytes and `written_ms` (since the epoch) as they were when it was opened. `inode`: device and number."""

    file: BinaryIO
    size: int
    written_ms: int
    inode: list[int]


@contextlib.contextmanager
def open_regular_file(folder: Path, name: str, largest: int = LARGEST) -> Iterator[OpenFile]:
    """A regular file below a folder, which may itself be behind a link. Raises `NotRead`."""
    with contextlib.ExitStack() as stack:
        try:
            above = stack.enter_context(_closing(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)))
            *parents, last = Path(name).parts
            for part in parents:
                above = stack.enter_context(_closing(os.open(part, _FLAGS | os.O_DIRECTORY, dir_fd=above)))
            file = stack.enter_context(os.fdopen(os.open(last, _FLAGS, dir_fd=above), "rb"))
        except (OSError, ValueError) as error:
            raise _not_read(name, _explain_error(error)) from None
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise _not_read(name, _NO_FILE)
        if status.st_size > largest:
            raise _not_read(name, f"it has {status.st_size} bytes, and at most {largest} are read")
        yield OpenFile(file, status.st_size, status.st_mtime_ns // 1_000_000, [status.st_dev, status.st_ino])


@contextlib.contextmanager
def _closing(handle: int) -> Iterator[int]:
    try:
        yield handle
    finally:
        os.close(handle)


def _explain_error(error: OSError | ValueError) -> str:
    if isinstance(error, OSError):
        return _WHYS.get(error.errno or 0) or os.strerror(error.errno or 0)
    return "its name is none of a file"


def _not_read(name: str, why: str) -> NotRead:
    return NotRead(f"{printable(name)} is not read: {why}")


def read_line_blocks(opened_file: OpenFile, longest: int = LONGEST, block: int = _BLOCK) -> Iterator[LineBlock]:
    """Its lines as far as it was written when it was opened, without an unfinished last one. Raises `OSError`.

    A longer line than `longest` bytes is read to its end and not kept, also without an end: nothing that long is being written.
    """
    bytes_left, unfinished = opened_file.size, b""
    while bytes_left > 0 and (chunk := opened_file.file.read(min(block, bytes_left))):
        bytes_left -= len(chunk)
        *lines, unfinished = (unfinished + chunk).split(b"\n")
        if lines and len(max(lines, key=len)) <= longest:
            yield LineBlock(lines, sum(map(len, lines)) + len(lines))
        else:
            yield from _separate_long_lines(lines, longest)
        if len(unfinished) > longest:
            length, digest = _hash_rest_of_line(opened_file.file, bytes_left, unfinished)
            bytes_left, unfinished = bytes_left - (length - len(unfinished)), b""
            yield LineBlock([], length, describe_hidden(length, digest))


def _separate_long_lines(lines: list[bytes], longest: int) -> Iterator[LineBlock]:
    for line in lines:
        size = len(line) + 1
        is_too_long = len(line) > longest
        shown = describe_hidden(size, hashlib.sha256(line + b"\n").hexdigest()) if is_too_long else ""
        yield LineBlock([] if is_too_long else [line], size, shown)


def _hash_rest_of_line(file: BinaryIO, bytes_left: int, begin: bytes) -> tuple[int, str]:
    """The length of a line that began so, with its end, and its hash."""
    digest, length, chunk = hashlib.sha256(begin), len(begin), begin
    while bytes_left > 0 and not chunk.endswith(b"\n") and (chunk := file.readline(min(_CHUNK, bytes_left))):
        digest.update(chunk)
        length, bytes_left = length + len(chunk), bytes_left - len(chunk)
    return length, digest.hexdigest()


def list_files_below(folder: Path) -> tuple[list[str], bool]:
    """The paths below a folder of what is no folder, links too, sorted; and whether these are all: more than 10,000 are not listed.

    Raises `OSError` if the folder itself cannot be listed.
    """
    paths, folders, entries_left = list[str](), [""], MOST_ENTRIES
    while folders:
        subfolder = folders.pop()
        with contextlib.suppress(*([OSError] if subfolder else ())), os.scandir(folder / subfolder) as entries:
            for entry in entries:
                if not entries_left:
                    return sorted(paths), False
                entries_left -= 1
                (folders if entry.is_dir(follow_symlinks=False) else paths).append(str(Path(subfolder) / entry.name))
    return sorted(paths), True
