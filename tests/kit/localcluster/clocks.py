"""Nodes whose clocks can be set forward or back while they run, by libfaketime; the machine's and all other nodes' stay."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from airflow_provider_kmigrate.clients import atomic

_READ_AFTER_S = 1  # the library looks at its file again after so long


def why_not() -> str:
    """Why no clock can be set here; empty where one can."""
    return "" if _library() else "libfaketime is not installed (Debian: apt-get install libfaketime)"


def give_own(folder: Path) -> None:
    """From its next start by `up` on, the node of this folder has a clock of its own, which shows the machine's time until it is `set_off`."""
    atomic.replace(_file(folder), b"+0\n")


def has_own(folder: Path) -> bool:
    """Whether the node was given one."""
    return _file(folder).exists()


def env(folder: Path) -> dict[str, str]:
    """What such a node's environment needs. Its monotonic clock stays true: no administrator and no time service sets that one."""
    return of_java(_file(folder)) if has_own(folder) else {}


def of_java(file: Path) -> dict[str, str]:
    """As `of_program`, for a JVM: with its monotonic clock set off, every timed wait of it returns at once, and its threads spin."""
    found = of_program(file)
    return found and found | {"FAKETIME_DONT_FAKE_MONOTONIC": "1", "FAKETIME_FORCE_MONOTONIC_FIX": "0"}


def of_program(file: Path) -> dict[str, str]:
    """The environment of a process whose clock is ahead by the seconds in `file`, such as `+600`; empty if no clock can be set here.

    Its monotonic clock is set off, too: without that, Python's time.sleep fails.
    """
    library = _library()
    if library is None:
        return {}
    return {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(file),
        "FAKETIME_CACHE_DURATION": str(_READ_AFTER_S),
        "NO_FAKE_STAT": "1",  # Java checks the times of jars and class archives
    }


@contextmanager
def set_off(folder: Path, seconds: int) -> Iterator[None]:
    """The node's clock is so far ahead (or behind: negative) while it lasts; it jumps at both ends."""
    try:
        _set(folder, seconds)
        yield
    finally:
        _set(folder, 0)


def _set(folder: Path, seconds: int) -> None:
    atomic.replace(_file(folder), f"{seconds:+d}\n".encode())
    time.sleep(_READ_AFTER_S + 0.5)


def _file(folder: Path) -> Path:
    return folder / "clock"


def _library() -> Path | None:
    return next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)
