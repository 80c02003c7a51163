"""The gate at which a DAG run of the benchmarks waits until it is wanted."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.run_dag import gate


def test_the_gate_opens_as_soon_as_the_go_file_exists(tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    gate(tmp_path / "ready", tmp_path / "go", 0.0)
    assert (tmp_path / "ready").exists()


def test_the_gate_does_not_wait_for_a_starter_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"no process made .*go within 0.1 s"):
        gate(tmp_path / "ready", tmp_path / "go", 0.1)
