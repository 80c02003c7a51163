"""The ledger of clients that run on: no stops yet, and what was just acknowledged is still on its way."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_kmigrate.core.ledger import Verdict, balance
from tests.core.histories import History, calm, codes, counts
from tests.core.test_ledger_histories import fine_histories


def running() -> History:
    """Everybody runs; five records were acknowledged last and are not read yet."""
    history = calm()
    history.ack("p", 0, 30, 30, 5)
    return history


@pytest.mark.parametrize(
    ("ago", "why"),
    [
        (0, {"L05"}),  # the consumer said nothing since the last record was acknowledged
        (1_000, {"L05"}),
        (2_000, set()),
        (60_000, set()),
    ],
)
def test_who_gave_a_sign_of_life_lately_needs_no_stop(ago: int, why: set[str]) -> None:
    """The last events: a delivery, a commit, and the last acknowledgement, a second apart."""
    history = calm()
    history.ack("p", 0, 30, 30, 5)
    history.commit("g", "m", 0, 30)
    history.ack("p", 0, 35, 35, 5)
    found = codes(balance(history.events, alive_since=history.now - ago + 1))
    assert found & {"L05"} == why


def test_what_was_acknowledged_before_must_have_been_read() -> None:
    history = running()
    acked = history.now
    history.commit("g", "m", 0, 30)
    assert balance(history.events, alive_since=acked).verdict is Verdict.PASS
    late = balance(history.events, alive_since=acked + 1)
    assert (late.verdict, codes(late) - {"L05"}) == (Verdict.INCONCLUSIVE, {"L11"})


def test_a_loss_is_one_also_while_everybody_runs() -> None:
    history = running()
    history.ack("p", 0, 35, 35, 5)
    history.deliver("g", "m", 0, 35, 5, 35)
    facts = balance(history.events, alive_since=0)
    assert (facts.verdict, counts(facts)) == (Verdict.FAIL, {"lost": 5})


def test_an_unclean_stop_is_a_hole_however_fresh() -> None:
    history = calm()
    events = [event for event in history.end("p") if event.stamp[:2] != ("m", 0)]
    assert codes(balance(events, alive_since=0)) == {"L03", "L04"}


@settings(max_examples=200, deadline=None)
@given(fine_histories(), st.data())
def test_a_look_at_any_time_finds_nothing_in_what_is_lawful(history: History, data: st.DataObject) -> None:
    seen = history.events[: data.draw(st.integers(1, len(history.events)))]
    facts = balance(seen, alive_since=0)
    assert counts(facts) == {}
    assert codes(facts) <= {"L09", "L10"}
