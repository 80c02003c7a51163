"""Situations of an on-call engineer, played on the simulated cluster: `kmigrate why`, `kmigrate status` and `kmigrate runbook CODE` alone.

Each shows the condition in words first; before an alarm how long it usually takes and when it becomes one, and nothing to do; then one next move, read within
a minute at 130 words a minute, and an entry of the runbook for the rest. The pages show the same next move (`tests/provider/test_pages.py`, also for a lock of
another run and a request that waits, which no observation of the cluster shows).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_kmigrate.cli import main
from airflow_provider_kmigrate.core.monitoring.explanation import render_explanation
from airflow_provider_kmigrate.core.monitoring.status import render_status
from airflow_provider_kmigrate.core.reasons import ENTRIES
from tests.commands.situations import SITUATIONS, observe
from tests.core.next_moves import WORDS, count_words_to_next_move


@pytest.mark.parametrize("name", SITUATIONS)
def test_the_condition_is_read_first_and_the_next_move_within_a_minute(name: str, tmp_path: Path) -> None:
    situation = SITUATIONS[name]
    seen = observe(situation, tmp_path)
    why, status = render_explanation(seen.document), render_status(seen.status)
    assert seen.document["state"] == situation.state
    shown = f"[{situation.code}] " if situation.code else ""
    for text in (why, status) if situation.state == "alarm" else (why,):
        assert f"{shown}{situation.says}" in text
        assert count_words_to_next_move(text) <= WORDS
    assert ("An operator must act." in why) is situation.is_certain
    assert ("  Next: " in why) is situation.is_certain, "nothing to do is said before it is an alarm"
    assert ("  If it does not pass: " in why) is (situation.state == "alarm" and not situation.is_certain)
    if situation.state == "alarm":
        assert f"More: {situation.code} in the runbook." in why
    elif situation.state == "ready":
        assert "It becomes an alarm after " in why


@pytest.mark.parametrize("code", ["R01", "H01", "G07", "O01", "R05", "S02", "P02", "G05"])
def test_the_runbook_says_the_rest_in_a_minute_and_a_half(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runbook", code]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"### {code} {ENTRIES[code].title}")
    assert len(text.split()) <= 1.5 * WORDS
