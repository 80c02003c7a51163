"""The cells of a `summary.json` as a table of docs/faults.md: `python -m tests.system.cell_table build/faults/summary.json [PATTERN]`.

With a pattern, those alone whose `phase: fault` matches it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

_ROOT = f"{Path(__file__).resolve().parents[2]}/"
_LONGEST = 110  # characters of what was seen


def table(cells: Sequence[Mapping[str, Any]], only: str = "") -> str:
    """One row a cell, in the order of the journey; a phase is named where it begins."""
    cells = [cell for cell in cells if re.search(only, f"{cell['phase']}: {cell['fault']}")]
    lines = ["| phase | fault | required | seen | s | as required |", "| --- | --- | --- | --- | --- | --- |"]
    for phase, group in groupby(cells, key=lambda cell: cell["phase"]):
        for number, cell in enumerate(group):
            said = (_short(cell[key]) for key in ("fault", "required", "seen"))
            end = (
                str(cell.get("seconds", "")),
                "yes" if cell["passed"] else f"**no**: {_short(cell['violated'] or 'not as required')}",
            )
            lines.append(f"| {' | '.join((phase if number == 0 else '', *said, *end))} |")
    return "\n".join(lines) + "\n"


def _short(text: str) -> str:
    """In one line, without what a table takes for its own, and with no path of this machine."""
    flat = " ".join(text.replace(_ROOT, "").replace("|", "/").split())
    return flat if len(flat) <= _LONGEST else f"{flat[:_LONGEST]} ..."


if __name__ == "__main__":
    sys.stdout.write(table(json.loads(Path(sys.argv[1]).read_text()), *sys.argv[2:]))
