"""The ledger of clients that run on: no stops yet, and what was just acknowledged is still on its way."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_kmigrate.core.events import Ack, SendFailure
from airflow_provider_kmigrate.core.ledger import Demand, Verdict, balance
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


def test_evidence_from_before_the_step_is_none_of_it() -> None:
    """Everything arrived; then the writers stopped, and a step began."""
    events = calm().end()
    newest = max(event.t_acked_ms for event in events if isinstance(event, Ack))
    assert balance(events, demand=Demand(newest)).verdict is Verdict.PASS
    facts = balance(events, demand=Demand(newest + 600_000))
    assert (facts.verdict, codes(facts)) == (Verdict.INCONCLUSIVE, {"L14"})
    texts = " ".join(reason.text for reason in facts.reasons)
    assert "no record was acknowledged since the step began, the last one 600 s before" in texts
    assert "no record was delivered since the step began" in texts


def test_acknowledgements_alone_are_not_enough() -> None:
    history = calm()
    begun = history.now + 1
    history.ack("p", 0, 30, 30, 5)
    (reason,) = [reason for reason in balance(history.end(), demand=Demand(begun)).reasons if reason.code == "L14"]
    assert "delivered" in reason.text


def test_evidence_of_another_group_is_none_of_this_one() -> None:
    events = calm().end()
    assert balance(events, demand=Demand(groups=("g",))).verdict is Verdict.PASS
    facts = balance(events, demand=Demand(groups=("g", "billing")))
    assert (facts.verdict, codes(facts)) == (Verdict.INCONCLUSIVE, {"L14"})
    assert "group billing was delivered no record" in facts.reasons[0].text


def test_a_group_that_stood_still_while_others_read() -> None:
    history = calm()
    history.consumer("m2", "other")
    begun = history.now + 1
    history.ack("p", 1, 0, 30, 5)
    history.deliver("g", "m", 1, 0, 5, 30)
    assert "L14" not in codes(balance(history.events, demand=Demand(begun)))
    history.deliver("other", "m2", 1, 0, 5, 30)
    assert "L14" not in codes(balance(history.events, demand=Demand(begun, ("g", "other"))))
    late = balance(history.events, demand=Demand(history.now, ("g", "other")))
    assert [reason.text[:8] for reason in late.reasons if "group g " in reason.text] == ["group g "]


def test_a_clock_that_is_ahead_shows_nobody_alive() -> None:
    """Both were killed long ago; their machines' clocks are an hour ahead."""
    history = calm()
    read = history.now - 3_600_000
    facts = balance(history.events, alive_since=read - 60_000, now_ms=read)
    assert (facts.verdict, codes(facts)) == (Verdict.INCONCLUSIVE, {"L15"})
    assert balance(history.events, alive_since=read, now_ms=history.now - 100).verdict is Verdict.PASS, "within the skew"


def refused(history: History, seq: int) -> None:
    stamp = history.stamp("p")
    history.events.append(SendFailure(stamp, "p", "t", 0, seq, seq, "NOT_ENOUGH_REPLICAS", stamp.t_ms - 900, stamp.t_ms))


def test_a_producer_whose_sends_only_fail() -> None:
    """One record was acknowledged in the step; then nine minutes of nothing but errors."""
    history = calm()
    begun = history.now + 1
    history.ack("p", 0, 30, 30, 5)
    history.deliver("g", "m", 0, 30, 5, 30)
    for seq in range(35, 40):
        refused(history, seq)
    facts = balance(history.events, alive_since=0, demand=Demand(begun))
    assert (facts.verdict, codes(facts), facts.send_failures) == (Verdict.INCONCLUSIVE, {"L16"}, 5)
    assert "p those of t-0 with NOT_ENOUGH_REPLICAS" in facts.reasons[0].text
    assert balance(history.events, alive_since=0).verdict is Verdict.PASS, "without a step it is nobody's fault"
    history.ack("p", 0, 35, 40, 5)
    history.deliver("g", "m", 0, 35, 5, 40)
    assert balance(history.events, alive_since=0, demand=Demand(begun)).verdict is Verdict.PASS, "it writes again"


def test_what_failed_before_the_step_is_not_asked_again() -> None:
    history = calm()
    refused(history, 30)
    begun = history.now + 1
    history.producer("p2")
    history.ack("p2", 1, 0, 0, 5)
    history.deliver("g", "m", 1, 0, 5, 0, producer="p2")
    assert balance(history.events, alive_since=0, demand=Demand(begun)).verdict is Verdict.PASS
