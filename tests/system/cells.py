"""A cell of the fault matrix as it went, and the diary that its timeline is cut from."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.kit.account import Account

_LINE = 200  # characters of what was said
_MOST = 60  # lines of one timeline: its begin and its end, where there were more


@dataclass(frozen=True)
class Cell:
    """One cell as it went. `passed`: what was required was seen, and no invariant was violated.

    `seconds`: until the verdict. `invariants`: those that were checked; `violated`: what was wrong with them, empty where nothing was.
    `began`, `ended`: wall time in UTC, from before the fault until all is over; `timeline`: what the fault did and what the tool said, each
    line with the seconds since it began.
    """

    phase: str
    fault: str
    required: str
    seen: str
    seconds: float
    passed: bool
    invariants: tuple[str, ...] = ()
    violated: str = ""
    began: str = ""
    ended: str = ""
    timeline: tuple[str, ...] = ()


@dataclass
class Diary:
    """Who did or said what, by wall time. Any thread may tell."""

    _printed: list[tuple[float, str]] = field(default_factory=list)

    def print(self, text: str, at: float | None = None) -> None:
        """Now, or at another time since the epoch."""
        self._printed.append((time.time() if at is None else at, " ".join(text.split())[:_LINE]))

    @contextmanager
    def lasting(self, name: str, fault: AbstractContextManager[object]) -> Iterator[None]:
        """The fault, with its begin and its end."""
        try:
            with fault:
                self.print(f"fault: {name}")
                yield
        finally:
            self.print(f"over: {name}")

    def between(self, began: float, ended: float) -> tuple[str, ...]:
        lines = [f"{at - began:+.2f} s {text}" for at, text in sorted(self._printed) if began <= at <= ended]
        if len(lines) <= _MOST:
            return tuple(lines)
        half = _MOST // 2
        return (*lines[:half], f"... {len(lines) - 2 * half} lines ...", *lines[-half:])


def wall(at: float) -> str:
    """Seconds since the epoch as text, in UTC."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


def save(folder: Path, cells: Sequence[Cell], run: Mapping[str, Any]) -> None:
    """`summary.json`: the list of cells; `run.json`: what holds for all of them, such as the seed and the clients' ledger."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.json").write_text(json.dumps([asdict(cell) for cell in cells], indent=1))
    (folder / "run.json").write_text(json.dumps(dict(run), indent=1))


def ended(cells: Sequence[Cell], account: Account) -> int:
    """The exit code: 1 where a cell failed, or the ledger or the judge does not say that nothing was lost."""
    failed = [cell for cell in cells if not cell.passed]
    ledger, judge = account.ledger, account.judged
    print(
        f"{len(cells)} cells, {len(failed)} failed; {ledger['acked']} acked, {ledger['lost']} lost; judge: {judge.acknowledged}"
    )
    for failure in account.failures:
        print(failure)
    return 1 if failed or account.failures else 0
