"""What the words of a watched step say of it."""

from __future__ import annotations

import pytest

from tests.system.watched import SEES_TO_IT, is_curing

DID = "Did 'fail over the controller' in 2.4 s.\n"


@pytest.mark.parametrize(
    ("words", "curing"),
    [
        ("", False),
        (DID, False),
        (f"{SEES_TO_IT}: for 61 s.\ncontroller 3000: stopping, up to 60 s.\n", True),
        (f"{SEES_TO_IT}: for 61 s.\n{DID}Waiting (3.3 s)", False),
        (f"{SEES_TO_IT}: for 61 s.\n{DID}{SEES_TO_IT}: for 62 s.\n", True),
        ("Decided to restart: broker 1.\n", False),
    ],
)
def test_a_cure_is_under_way_from_its_decision_to_its_end(words: str, curing: bool) -> None:
    assert is_curing(words) is curing
