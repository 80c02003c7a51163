"""Copies of a stopped cluster's folder, by name, in `snapshots/` of that folder: an experiment need not repeat the steps before it.

A snapshot holds all nodes' data, files, logs and tokens, with their ports, so it fits only the folder it was taken of. Airflow's home (journal,
backup) is elsewhere and not in it.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from airflow_provider_kmigrate.exceptions import Refused

_FOLDER: Final = "snapshots"
_KEPT: Final = (_FOLDER, "lock")


def names(folder: Path) -> list[str]:
    """Those there are, whole ones only."""
    return sorted(path.name for path in (folder / _FOLDER).glob("*") if not path.name.endswith(".part"))


def check(folder: Path, name: str) -> None:
    """Raises `Refused` for one that is not there."""
    if name not in names(folder):
        raise Refused(f"there is no snapshot {name!r} of {folder}; there are: {', '.join(names(folder)) or 'none'}")


def check_name(name: str) -> None:
    """Raises `Refused` for what is no plain name."""
    if not name.replace("-", "").replace("_", "").isalnum():
        raise Refused(f"{name!r} is no name for a snapshot: letters, digits, - and _")


def take(folder: Path, name: str) -> None:
    """Copy everything of a stopped cluster; an older one of that name is replaced."""
    place = folder / _FOLDER
    part, whole = place / f"{name}.part", place / name
    for old in (part, whole):
        shutil.rmtree(old, ignore_errors=True)
    part.mkdir(parents=True)
    for path in _contents(folder):
        _copy(path, part / path.name)
    part.rename(whole)


def put_back(folder: Path, name: str) -> None:
    """Everything of a stopped cluster becomes what the snapshot has. May be repeated where it was cut off."""
    for path in _contents(folder):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in (folder / _FOLDER / name).iterdir():
        _copy(path, folder / path.name)


def _contents(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name not in _KEPT]


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True)
    else:
        shutil.copy2(source, target)
