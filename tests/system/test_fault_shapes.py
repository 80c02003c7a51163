"""The shapes of cluster of the fault matrix, without a cluster: what is missing is said, and no cell of theirs is left out."""

import re
import sys
from pathlib import Path

import pytest

from tests.system import cell_table, fault_shapes, faults


def test_a_shape_that_cannot_be_made_here_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fault_shapes, "find_spec", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["faults", "--shape", "zookeeper-login", "--dir", str(tmp_path / "faults")])
    with pytest.raises(SystemExit, match=r"--shape zookeeper-login needs the Python package pure-sasl: pip install "):
        faults.main()
    assert not list(tmp_path.iterdir()), "nothing was started"


def test_every_cell_of_a_shape_has_its_place_in_the_journey() -> None:
    called = set(re.findall(r"fault_shapes\.([A-Z_]+)", Path(faults.__file__).read_text(encoding="utf-8"))) - {"SHAPES"}
    places = {getattr(fault_shapes, name) for name in called}
    assert {place for shape in fault_shapes.SHAPES.values() for place in shape.cells} == places


def test_a_table_may_have_the_cells_of_one_shape_alone() -> None:
    cells = [
        {"phase": phase, "fault": fault, "required": "holds", "seen": "held", "seconds": 1.0, "passed": True, "violated": ""}
        for phase, fault in (("copy", "one"), ("copy", "other"), ("rollback", "one"))
    ]
    assert cell_table.table(cells, "copy: o|rollback: other").count("\n| ") == 3
    assert cell_table.table(cells).count("\n|") == 4
