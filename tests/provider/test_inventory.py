"""What the inventory remembers between two of its runs."""

from __future__ import annotations

from pathlib import Path

from airflow_provider_kmigrate.core.groups.readiness import GroupProtocol, GroupSnapshot
from airflow_provider_kmigrate.operators.inventory import remembered


def look(t_ms: int) -> GroupSnapshot:
    return GroupSnapshot(t_ms, "g", GroupProtocol.ZOOKEEPER, 1)


def test_looks_that_are_too_old_leave_the_file(tmp_path: Path) -> None:
    path = tmp_path / "inventory" / "c" / "looks.jsonl"
    assert remembered(path, [look(1)], 0) == [look(1)]
    assert remembered(path, [look(5)], 0) == [look(1), look(5)]
    assert remembered(path, [look(9)], 5) == [look(5), look(9)]
    assert len(path.read_text().splitlines()) == 2


def test_a_line_that_nobody_finished_does_not_stay(tmp_path: Path) -> None:
    path = tmp_path / "looks.jsonl"
    path.write_text('{"t_ms": 1')
    assert remembered(path, [look(2)], 0) == [look(2)]
    assert len(path.read_text().splitlines()) == 1
