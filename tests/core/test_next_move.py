"""The runbook at 3 a.m.: at 130 words a minute, the first thing to do is read within a minute, whatever the code."""

from __future__ import annotations

import re

import pytest

from airflow_provider_kmigrate.core.reasons import ENTRIES
from airflow_provider_kmigrate.runbook import main

WORDS = 130
_FIRST_STEP = re.compile(r"^(?:1\. |\*\*Do\.\*\* )\S.*$", re.MULTILINE)


@pytest.mark.parametrize("code", ENTRIES)
def test_the_next_move_is_read_within_a_minute(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([code]) == 0
    text = capsys.readouterr().out
    step = _FIRST_STEP.search(text)
    assert step is not None, "an entry says what to do"
    assert len(text[: step.end()].split()) <= WORDS
