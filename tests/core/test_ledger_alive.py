"""The ledger of clients that run on: no stops yet, and what was just acknowledged is still on its way."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_kmigrate.core.audit.verdict import AuditOutcome, Level, findings_from_facts
from airflow_provider_kmigrate.core.events.model import (
    Ack,
    Heartbeat,
    Ownership,
    OwnershipChange,
    SendFailure,
    Start,
    TopicPartition,
)
from airflow_provider_kmigrate.core.ledger import Demand, balance
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from tests.core.fine_histories import fine_histories
from tests.core.histories import TOPIC, History, calm, causes, counts
from tests.verdicts import verdict_of


def running() -> History:
    """Everybody runs; five records were acknowledged last and are not read yet."""
    history = calm()
    history.ack("p", 0, 30, 30, 5)
    return history


@pytest.mark.parametrize(
    ("ago", "why"),
    [
        (0, {AuditCause.NO_STOP}),  # the consumer said nothing since the last record was acknowledged
        (1_000, {AuditCause.NO_STOP}),
        (2_000, set()),
        (60_000, set()),
    ],
)
def test_a_client_that_gave_a_sign_of_life_lately_needs_no_stop(ago: int, why: set[AuditCause]) -> None:
    """The last events: a delivery, a commit, and the last acknowledgement, a second apart."""
    history = calm()
    history.ack("p", 0, 30, 30, 5)
    history.commit("g", "m", 0, 30)
    history.ack("p", 0, 35, 35, 5)
    found = causes(balance(history.events, alive_since=history.now - ago + 1))
    assert found & {AuditCause.NO_STOP} == why


def test_what_was_acknowledged_before_must_have_been_read() -> None:
    history = running()
    acked = history.now
    history.commit("g", "m", 0, 30)
    assert verdict_of(balance(history.events, alive_since=acked)) is AuditOutcome.PASS
    late = balance(history.events, alive_since=acked + 1)
    assert (verdict_of(late), causes(late) - {AuditCause.NO_STOP}) == (AuditOutcome.INCONCLUSIVE, {AuditCause.NOT_DELIVERED_YET})


def test_a_loss_is_one_also_while_everybody_runs() -> None:
    history = running()
    history.ack("p", 0, 35, 35, 5)
    history.deliver("g", "m", 0, 35, 5, 35)
    facts = balance(history.events, alive_since=0)
    assert (verdict_of(facts), counts(facts)) == (AuditOutcome.FAIL, {"lost": 5})


def test_an_unclean_stop_is_a_hole_however_fresh() -> None:
    history = calm()
    events = [event for event in history.end("p") if event.stamp[:2] != ("m", 0)]
    assert causes(balance(events, alive_since=0)) == {AuditCause.NO_START, AuditCause.NUMBERS_MISSING}


@settings(max_examples=200, deadline=None)
@given(fine_histories(), st.data())
def test_a_look_at_any_time_finds_nothing_in_what_is_lawful(history: History, data: st.DataObject) -> None:
    seen = history.events[: data.draw(st.integers(1, len(history.events)))]
    facts = balance(seen, alive_since=0)
    assert counts(facts) == {}
    assert causes(facts) <= {AuditCause.NOTHING_ACKED, AuditCause.NO_GROUP}


def test_evidence_from_before_the_step_is_none_of_it() -> None:
    """Everything arrived; then the writers stopped, and a step began."""
    events = calm().end()
    newest = max(event.t_acked_ms for event in events if isinstance(event, Ack))
    assert verdict_of(balance(events, demand=Demand(newest))) is AuditOutcome.PASS
    facts = balance(events, demand=Demand(newest + 600_000))
    assert (verdict_of(facts), causes(facts)) == (AuditOutcome.INCONCLUSIVE, {AuditCause.NO_EVIDENCE})
    texts = " ".join(reason.text for reason in facts.reasons)
    assert "No record was acknowledged since the step began, the last one 600 s before" in texts
    assert "No record was delivered since the step began" in texts


def test_acknowledgements_alone_are_not_enough() -> None:
    history = calm()
    begun = history.now + 1
    history.ack("p", 0, 30, 30, 5)
    (reason,) = [
        reason for reason in balance(history.end(), demand=Demand(begun)).reasons if reason.cause == AuditCause.NO_EVIDENCE
    ]
    assert "delivered" in reason.text


def test_evidence_of_another_group_is_none_of_this_one() -> None:
    events = calm().end()
    assert verdict_of(balance(events, demand=Demand(groups=("g",)))) is AuditOutcome.PASS
    facts = balance(events, demand=Demand(groups=("g", "billing")))
    assert (verdict_of(facts), causes(facts)) == (AuditOutcome.INCONCLUSIVE, {AuditCause.NO_EVIDENCE})
    assert "Group billing received no record" in facts.reasons[0].text


def test_a_group_that_stood_still_while_others_read() -> None:
    history = calm()
    history.consumer("m2", "other")
    begun = history.now + 1
    history.ack("p", 1, 0, 30, 5)
    history.deliver("g", "m", 1, 0, 5, 30)
    assert AuditCause.NO_EVIDENCE not in causes(balance(history.events, demand=Demand(begun)))
    history.deliver("other", "m2", 1, 0, 5, 30)
    assert AuditCause.NO_EVIDENCE not in causes(balance(history.events, demand=Demand(begun, ("g", "other"))))
    late = balance(history.events, demand=Demand(history.now, ("g", "other")))
    assert [reason.text[:8] for reason in late.reasons if "Group g " in reason.text] == ["Group g "]


def test_a_clock_that_is_ahead_shows_no_client_alive() -> None:
    """Both were killed long ago; their machines' clocks are an hour ahead."""
    history = calm()
    read = history.now - 3_600_000
    facts = balance(history.events, alive_since=read - 60_000, now_ms=read)
    assert (verdict_of(facts), causes(facts)) == (AuditOutcome.INCONCLUSIVE, {AuditCause.CLOCK_AHEAD})
    assert verdict_of(balance(history.events, alive_since=read, now_ms=history.now - 100)) is AuditOutcome.PASS, "within the skew"


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
    assert (verdict_of(facts), causes(facts), facts.send_failures) == (AuditOutcome.INCONCLUSIVE, {AuditCause.SENDS_FAIL}, 5)
    assert "p for t-0 with NOT_ENOUGH_REPLICAS" in facts.reasons[0].text
    assert verdict_of(balance(history.events, alive_since=0)) is AuditOutcome.PASS, "without a step it is no step's fault"
    history.ack("p", 0, 35, 40, 5)
    history.deliver("g", "m", 0, 35, 5, 40)
    assert verdict_of(balance(history.events, alive_since=0, demand=Demand(begun))) is AuditOutcome.PASS, "it writes again"


def test_what_failed_before_the_step_is_not_asked_again() -> None:
    history = calm()
    refused(history, 30)
    begun = history.now + 1
    history.producer("p2")
    history.own("g", "m", OwnershipChange.ACQUIRED, (1,))
    history.ack("p2", 1, 0, 0, 5)
    history.deliver("g", "m", 1, 0, 5, 0, producer="p2")
    assert verdict_of(balance(history.events, alive_since=0, demand=Demand(begun))) is AuditOutcome.PASS


def handed_on() -> History:
    """From one member to the next one, in order; the first one lives on."""
    history = History()
    for member in ("a", "b"):
        history.consumer(member, "g")
    history.producer("p")
    history.own("g", "a", OwnershipChange.ACQUIRED)
    history.ack("p", 0, 0, 0, 10)
    history.deliver("g", "a", 0, 0, 10, 0)
    history.commit("g", "a", 0, 10)
    return history


def test_files_are_read_one_after_another() -> None:
    """The first member's file was read before it wrote what it was delivered last: that is no loss, nor can it be ruled out."""
    history = handed_on()
    cut = len(history.events)
    history.ack("p", 0, 10, 10, 10)
    history.deliver("g", "a", 0, 10, 10, 10)
    history.own("g", "a", OwnershipChange.RELEASED)
    history.own("g", "b", OwnershipChange.ACQUIRED)
    history.ack("p", 0, 20, 20, 10)
    history.deliver("g", "b", 0, 20, 10, 20)
    history.commit("g", "b", 0, 30)
    seen = [event for number, event in enumerate(history.events) if event.stamp.writer != "a" or number < cut]
    facts = balance(seen, alive_since=0)
    assert (verdict_of(facts), counts(facts), causes(facts)) == (
        AuditOutcome.INCONCLUSIVE,
        {"unseen": 10},
        {AuditCause.IN_UNREAD_EVENTS},
    )
    assert verdict_of(balance(history.events, alive_since=0)) is AuditOutcome.PASS, "the next audit reads it"
    killed = balance(seen, alive_since=history.now - 1_000)
    assert (verdict_of(killed), counts(killed), causes(killed)) == (
        AuditOutcome.INCONCLUSIVE,
        {"unseen": 10},
        {AuditCause.NO_STOP},
    ), "or knows better"


@pytest.mark.parametrize("delivered_before", [True, False])
def test_a_member_that_was_heard_of_since_was_not_given_them(delivered_before: bool) -> None:
    history = handed_on() if delivered_before else calm(0)
    begin = 10 if delivered_before else 0
    member = "a" if delivered_before else "m"
    history.ack("p", 0, begin, begin, 10)
    history.consumer("c", "g")
    history.own("g", member, OwnershipChange.RELEASED)
    history.own("g", "c", OwnershipChange.ACQUIRED)
    history.ack("p", 0, begin + 10, begin + 10, 10)
    history.deliver("g", "c", 0, begin + 10, 10, begin + 10)
    history.now += 3_000
    history.commit("g", "c", 0, begin + 20)
    history.commit("g", member, 1, 0)
    for other in {"b", "c"} & history.numbers.keys():
        history.commit("g", other, 1, 0)
    facts = balance(history.events, alive_since=0)
    assert (verdict_of(facts), facts.lost.count) == (AuditOutcome.FAIL, 10)


def test_a_log_that_was_cut_is_no_matter_of_reading() -> None:
    history = calm()
    history.ack("p", 0, 30, 30, 5)
    history.extent(0, 0, 30)
    facts = balance(history.events, alive_since=0)
    assert (verdict_of(facts), facts.lost.count) == (AuditOutcome.FAIL, 5)


@settings(max_examples=100, deadline=None)
@given(fine_histories(), st.data())
def test_files_that_were_read_at_any_times_show_nothing_in_what_is_lawful(history: History, data: st.DataObject) -> None:
    writers = sorted({event.stamp.writer for event in history.events})
    starts = {event.stamp.writer: number + 1 for number, event in enumerate(history.events) if isinstance(event, Start)}
    cuts = {writer: data.draw(st.integers(starts[writer], len(history.events)), label=writer) for writer in writers}
    seen = [event for number, event in enumerate(history.events) if number < cuts[event.stamp.writer]]
    assert balance(seen, alive_since=0).violations == {}


def killed_before(*, since: int = 600_000) -> tuple[History, int]:
    """A member that was killed long ago; the step begins; another one reads on."""
    history = calm()
    history.now += since
    begun = history.now
    history.consumer("m2", "g")
    history.own("g", "m2", OwnershipChange.ACQUIRED)
    return history, begun


def test_a_client_that_was_killed_once_leaves_later_steps_alone() -> None:
    history, begun = killed_before()
    history.ack("p", 0, 30, 30, 10)
    history.deliver("g", "m2", 0, 30, 10, 30)
    history.commit("g", "m2", 0, 40)
    assert causes(balance(history.events, alive_since=begun)) == {AuditCause.NO_STOP}
    assert verdict_of(balance(history.events, alive_since=begun, demand=Demand(begun))) is AuditOutcome.PASS
    since_later = balance(history.events, alive_since=history.now + 1, demand=Demand(begun))
    assert {reason.text.split()[0] for reason in since_later.reasons if reason.cause == AuditCause.NO_STOP} == {"m2", "p"}, (
        "of the step"
    )


def test_what_it_may_have_seen_is_no_loss_and_no_pass_either() -> None:
    history, begun = killed_before()
    history.ack("p", 0, 30, 30, 10)
    history.ack("p", 0, 40, 40, 10)
    history.deliver("g", "m2", 0, 40, 10, 40)
    history.commit("g", "m2", 0, 50)
    history.now += 3_000
    history.commit("g", "m2", 0, 50)
    facts = balance(history.events, alive_since=begun, demand=Demand(begun))
    assert (verdict_of(facts), counts(facts), causes(facts)) == (AuditOutcome.INCONCLUSIVE, {"unseen": 10}, {AuditCause.NO_STOP})


def test_lines_from_before_the_step_are_named_where_they_matter() -> None:
    history, begun = killed_before()
    history.ack("p", 0, 30, 30, 10)
    history.deliver("g", "m2", 0, 30, 10, 30)
    demand = Demand(begun)
    assert verdict_of(balance(history.events, refused_before=["x"], alive_since=begun, demand=demand)) is AuditOutcome.PASS
    assert causes(balance(history.events, refused=["x"], alive_since=begun, demand=demand)) == {AuditCause.BAD_LINES}
    history.ack("p", 0, 40, 40, 10)
    history.ack("p", 0, 50, 50, 10)
    history.deliver("g", "m2", 0, 50, 10, 50)
    facts = balance(history.events, refused_before=["x"], alive_since=begun, demand=demand)
    assert (verdict_of(facts), causes(facts)) == (AuditOutcome.INCONCLUSIVE, {AuditCause.BAD_LINES, AuditCause.NO_STOP})


def read_again(history: History) -> None:
    history.generation += 1  # a rebalance gives it its partitions again
    history.deliver("g", "m", 0, 25, 5, 25)


def read_late(history: History) -> None:
    """Offset 30 comes behind 35."""
    history.ack("p", 0, 30, 30, 10)
    history.deliver("g", "m", 0, 35, 5, 35)
    history.deliver("g", "m", 0, 30, 5, 30)


def committed_early(history: History) -> None:
    history.ack("p", 0, 30, 30, 5)
    history.commit("g", "m", 0, 35)
    history.deliver("g", "m", 0, 30, 5, 30)


def owned_twice(history: History) -> None:
    history.consumer("n", "g")
    history.own("g", "m", OwnershipChange.ACQUIRED)
    history.own("g", "n", OwnershipChange.ACQUIRED)
    history.own("g", "m", OwnershipChange.RELEASED)


def lost(history: History) -> None:
    history.ack("p", 0, 30, 30, 10)
    history.deliver("g", "m", 0, 35, 5, 35)


def stored_twice(history: History) -> None:
    history.deliver("g", "m", 0, 30, 2, 28)


@pytest.mark.parametrize(
    ("fault", "name", "timed"),
    [
        (read_again, "redelivered", True),
        (read_late, "reordered", True),
        (committed_early, "commit_gap", True),
        (owned_twice, "double_owned", True),
        (lost, "lost", False),
        (stored_twice, "stored_twice", False),
    ],
)
@pytest.mark.parametrize("gap", [-1, 1])
def test_what_was_over_before_the_step_is_shown_and_fails_nothing(
    fault: Callable[[History], None], name: str, gap: int, *, timed: bool
) -> None:
    """A loss has no time, nor has what lies in the log: those count at any age. One millisecond within the skew may be of the step."""
    history = calm()
    fault(history)
    begun = history.now + 100 + gap
    history.own("g", "m", OwnershipChange.ACQUIRED, (1,))
    history.ack("p", 1, 0, 100, 5)
    history.deliver("g", "m", 1, 0, 5, 100)
    history.own("g", "n", OwnershipChange.RELEASED) if fault is owned_twice else None
    facts = balance(history.end(), demand=Demand(begun))
    if timed and gap > 0:
        assert (verdict_of(facts), counts(facts), list(facts.earlier)) == (AuditOutcome.PASS, {}, [name])
        findings, _ = findings_from_facts(facts, Level.PRODUCER)
        assert [finding.reason.text[:15] for finding in findings] == ["Before the step"]
    else:
        assert (verdict_of(facts), facts.earlier) == (AuditOutcome.FAIL, {})
        assert name in counts(facts)
    assert verdict_of(balance(history.end(), demand=Demand())) is AuditOutcome.FAIL, "without a step nothing is before it"


@pytest.mark.parametrize(("first", "verdict"), [(40, AuditOutcome.PASS), (42, AuditOutcome.INCONCLUSIVE)])
def test_a_client_that_was_killed_long_ago_is_in_the_way_of_no_step(first: int, verdict: AuditOutcome) -> None:
    """Its records came again to its successor, and look late by its unwritten deliveries; a loss is asked about all the same."""
    history = calm()
    history.ack("p", 0, 30, 30, 10)
    history.consumer("n", "g")
    history.own("g", "n", OwnershipChange.ACQUIRED)
    history.deliver("g", "n", 0, 25, 5, 25)
    history.deliver("g", "n", 0, 35, 5, 35)
    history.deliver("g", "n", 0, 30, 5, 30)
    history.now += 600_000
    begun = history.now
    history.ack("p", 0, 40, 40, 5)
    history.deliver("g", "n", 0, first, 45 - first, first)
    events = history.end("m")
    assert verdict_of(balance(events, demand=Demand(begun))) is verdict
    assert verdict_of(balance(events)) is AuditOutcome.FAIL


@pytest.mark.parametrize(("lag_ms", "words"), [(0, ""), (900_000, "900 s behind"), (-60_000, "60 s ahead of")])
def test_a_machine_that_slept_is_distinguished_from_a_killed_client(lag_ms: int, words: str) -> None:
    """Its steady clock stood still meanwhile; it lives, and looks as if it had been killed then."""
    history = calm()
    stamp = history.stamp("m")
    history.events.append(Heartbeat(stamp, stamp.t_ms + lag_ms))
    (reason,) = [
        reason for reason in balance(history.end("m"), alive_since=history.now + 900_000).reasons if " has no stop" in reason.text
    ]
    assert (reason.cause, words in reason.text, "clock" in reason.text) == (AuditCause.NO_STOP, True, bool(words))


def test_clients_that_begin_in_another_folder_are_judged_by_that_alone() -> None:
    """All clients were restarted; the consumer goes on from its commit, behind which records of the old producer lay."""
    history = History()
    history.producer("p2")
    history.consumer("m2", "g")
    stamp = history.stamp("m2")
    history.events.append(Ownership(stamp, "g", "m2", 2, OwnershipChange.ACQUIRED, (TopicPartition(TOPIC, 0),), 0, None, (35,)))
    history.deliver("g", "m2", 0, 35, 5)
    history.ack("p2", 0, 40, 0, 5)
    history.deliver("g", "m2", 0, 40, 5)
    history.own("g", "m2", OwnershipChange.RELEASED)
    assert verdict_of(balance(history.end())) is AuditOutcome.PASS


def test_a_file_that_is_moved_away_alone_leaves_its_changes_of_owner_without_a_beginning() -> None:
    events = calm().end()
    left = [event for event in events if event.stamp.writer != "m" or isinstance(event, Ownership)]
    assert causes(balance(left)) >= {AuditCause.NO_START, AuditCause.NUMBERS_MISSING}
