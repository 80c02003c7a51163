"""What Python calls printable and nobody sees, or sees over other lines, in a text of others."""

from __future__ import annotations

import pytest

from airflow_provider_kmigrate.core.shared.text import escape_html, printable, summarize
from airflow_provider_kmigrate.exceptions import Failed

UNSEEN = "\u034f\u115f\u1160\u17b4\u180b\u2800\u3164\ufe0f\uffa0\U000e0100"


@pytest.mark.parametrize("sign", UNSEEN)
def test_a_name_with_a_sign_that_has_no_place_is_not_another_one(sign: str) -> None:
    """Python calls them printable; a group's znode may have any of them."""
    for name in (f"billing{sign}", f"a\x1b{sign}b", f"{sign}"):
        for shown in (printable(name), escape_html(name), str(Failed(name)), summarize([name])):
            assert sign not in shown
            assert f"{ord(sign):04x}" in shown


def test_marks_do_not_grow_over_other_lines_and_letters_keep_theirs() -> None:
    assert printable("e\u0301 a\u0302\u0323") == "e\u0301 a\u0302\u0323", "an accent, and the two of Vietnamese"
    for mark in "\u0336\u0e47\u064b\u0fb1\u1dc4":  # of a strike, of Thai, of Arabic, of Tibetan, and of phonetics
        assert printable("a" + mark * 40 + "b") == "a" + mark * 3 + f"\\u{ord(mark):04x}" * 37 + "b"


@pytest.mark.parametrize(
    "name", ["\u0e17\u0e35\u0e48", "\u05e9\u05c1\u05bc\u05b8", "\u0928\u093f", "\u65e5\u672c", "Gro\u00df", "\U0001f600"]
)
def test_names_in_other_scripts_stay_as_they_are(name: str) -> None:
    assert printable(name) == name


def test_a_name_without_measure_fills_no_log() -> None:
    shown = summarize(["x" * 1_000_000, "y" * 1_000])
    assert shown == f"{'x' * 1_000}... (1000000 characters), {'y' * 1_000}"
