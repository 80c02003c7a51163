"""Copies of a cluster's folder, without the cluster: what is kept, what is replaced, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_kmigrate.exceptions import Refused
from tests.kit.localcluster import snapshots


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "broker-0").mkdir()
    (tmp_path / "broker-0" / "log").write_text("before")
    (tmp_path / "plan.json").write_text("{}")
    (tmp_path / "lock").write_text("")
    return tmp_path


def change(folder: Path) -> None:
    (folder / "broker-0" / "log").write_text("after")
    (folder / "controller-3000").mkdir()
    (folder / "plan.json").unlink()


def state(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "snapshots" not in path.parts
    }


def test_put_back_is_as_it_was_also_twice(folder: Path) -> None:
    before = state(folder)
    snapshots.take(folder, "one")
    for _ in range(2):
        change(folder)
        assert state(folder) != before
        snapshots.put_back(folder, "one")
        assert state(folder) == before
        assert not (folder / "controller-3000").exists()


def test_a_newer_one_of_the_name_replaces_it_and_no_snapshot_holds_another(folder: Path) -> None:
    snapshots.take(folder, "one")
    change(folder)
    snapshots.take(folder, "two")
    snapshots.take(folder, "one")
    assert snapshots.names(folder) == ["one", "two"]
    assert (folder / "snapshots" / "one" / "broker-0" / "log").read_text() == "after"
    assert not (folder / "snapshots" / "one" / "snapshots").exists()


def test_one_that_was_cut_off_is_none(folder: Path) -> None:
    (folder / "snapshots" / "half.part").mkdir(parents=True)
    assert snapshots.names(folder) == []
    with pytest.raises(Refused, match="there are: none"):
        snapshots.check(folder, "half")


@pytest.mark.parametrize("name", ["", "../up", "a/b", "x.part", "."])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(Refused):
        snapshots.check_name(name)
