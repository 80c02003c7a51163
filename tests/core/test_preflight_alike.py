"""What all brokers must have alike; each difference gives exactly its code."""

from __future__ import annotations

import pytest

from tests.core.preflight_alike_rows import ROWS
from tests.core.preflight_views import Change, codes, healthy


@pytest.mark.parametrize(("change", "expected"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_one_defect_gives_its_code(change: Change, expected: list[str]) -> None:
    assert codes(change(*healthy())) == expected
