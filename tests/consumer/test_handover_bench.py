"""The benchmark of handovers fails where a figure shows what must never be."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as benchmarks
from benchmarks import handover

ZERO = dict.fromkeys(handover.MUST_BE_ZERO, 0)


@pytest.mark.parametrize(
    ("figures", "code", "said"),
    [
        ({**ZERO, "fault_redelivered_max": 900}, 0, ""),
        ({**ZERO, "toggle_late": None}, 0, ""),
        ({**ZERO, "double_owned": 12}, 1, "handover: double_owned is 12\n"),
        ({key: 0 for key in ZERO if key != "lost"}, 1, "handover: lost is missing\n"),
        (
            {**ZERO, "lost": 3, "fault_delivered_at_once": 1},
            1,
            "handover: lost is 3\nhandover: fault_delivered_at_once is 1\n",
        ),
    ],
)
def test_two_owners_or_a_lost_record_are_an_exit_code(  # noqa: PLR0917  # fixtures
    figures: dict[str, object],
    code: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(handover, "main", lambda *_: figures)
    monkeypatch.setattr(benchmarks, "BUILD", tmp_path)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "handover"])
    assert benchmarks.main() == code
    assert capsys.readouterr().err == said
    assert json.loads((tmp_path / "handover.json").read_text()) == figures, "they are there all the same"
