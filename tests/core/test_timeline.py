"""Owners, lag and stalls from events. What the ledger calls two owners at a time is drawn as two owners at a time, and nothing else."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from airflow_provider_kmigrate.core.audit.report_facts import ReportWindow, build_lag_tracks, build_owner_tracks, find_stalls
from airflow_provider_kmigrate.core.events.model import Ack, Ownership, OwnershipChange, Stamp, Start, TopicPartition
from airflow_provider_kmigrate.core.events.model import WriterRole as Writing
from airflow_provider_kmigrate.core.ledger import balance
from airflow_provider_kmigrate.core.ledger.book import Book, GroupPartition
from airflow_provider_kmigrate.core.ledger.ownership import OwnerInterval, find_double_ownership, find_unowned_times
from tests.core.histories import History

SKEW = 100
STEPS = st.lists(
    st.tuples(st.integers(0, 5_000), st.sampled_from("abc"), st.sampled_from(list(OwnershipChange))), min_size=1, max_size=12
)


def book_of(steps: list[tuple[int, str, OwnershipChange]], *, ordered: bool) -> Book:
    where = (TopicPartition("t", 0),)
    seq = {"a": 0, "b": 0, "c": 0}
    events = []
    for position, (t_ms, member, change) in enumerate(steps):
        stamp = Stamp(member, seq[member], t_ms)
        seq[member] += 1
        events.append(Ownership(stamp, "g", member, 1, change, where, position if ordered else None))
    return Book.of(events)


ACQUIRED, RELEASED = OwnershipChange.ACQUIRED, OwnershipChange.RELEASED
SKEWED = [(1030, "b", ACQUIRED), (1100, "a", ACQUIRED), (1100, "a", RELEASED), (1090, "b", RELEASED), (1095, "b", ACQUIRED)]


@settings(max_examples=120, deadline=None)
@given(STEPS, st.booleans())
@example(steps=SKEWED, ordered=True)
def test_two_owners_are_drawn_exactly_where_the_ledger_finds_them(
    steps: list[tuple[int, str, OwnershipChange]], ordered: bool
) -> None:
    book = book_of(steps, ordered=ordered)
    [track] = build_owner_tracks(book, SKEW)
    last_ms = {name: writer.last_ms for name, writer in book.writers.items()}
    cases = find_double_ownership(GroupPartition("g", "t", 0), book.ownership[GroupPartition("g", "t", 0)], last_ms, SKEW)
    assert bool(track.double_ms) == bool(cases)
    pauses = find_unowned_times(GroupPartition("g", "t", 0), book.ownership[GroupPartition("g", "t", 0)], last_ms, SKEW)
    assert all(case.count > 0 and len(case.members) == 2 for case in pauses)
    spans = [span for span in track.held if len(span.owners) > 1]
    if not ordered:  # by the log's order, the clocks of two members may contradict it, and only then do lengths differ
        assert track.double_ms == sum(case.count for case in cases)
        assert {(case.from_ms, case.to_ms) for case in cases} >= {
            (span.from_ms, span.to_ms) for span in spans if len(cases) == len(spans)
        }


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_the_spans_of_one_clock_follow_each_other_without_holes(steps: list[tuple[int, str, OwnershipChange]]) -> None:
    for track in build_owner_tracks(book_of(sorted(steps), ordered=False), SKEW):
        for one, other in zip(track.held, track.held[1:], strict=False):
            assert one.to_ms == other.from_ms
            assert one.owners != other.owners
        assert all(span.ms > 0 for span in track.held)


def test_a_hand_over_with_a_pause() -> None:
    history = History(now=0)
    history.own("g", "a", OwnershipChange.ACQUIRED)
    history.own("g", "a", OwnershipChange.RELEASED)
    history.own("g", "b", OwnershipChange.ACQUIRED)
    history.own("g", "b", OwnershipChange.RELEASED)
    [track] = build_owner_tracks(Book.of(history.events))
    assert track.held == (OwnerInterval(1000, 2000, ("a",)), OwnerInterval(2000, 3000, ()), OwnerInterval(3000, 4000, ("b",)))
    assert (track.double_ms, track.unowned_ms) == (0, 1000)
    facts = balance(history.events)
    assert (facts.unowned.count, facts.unowned.cases[0].members, facts.owner_changes) == (1000, ("a", "b"), 1)


def test_a_partition_of_a_killed_member_has_no_owner_until_the_next_one() -> None:
    history = History(now=0)
    history.own("g", "a", OwnershipChange.ACQUIRED)
    history.commit("g", "a", 0, 1)  # its last sign of life, at 2 s
    history.own("g", "b", OwnershipChange.ACQUIRED)
    history.own("g", "b", OwnershipChange.RELEASED)
    assert balance(history.events).unowned.count == 1000


def test_a_member_that_never_gave_a_partition_up_owned_it_until_its_last_sign_of_life() -> None:
    history = History(now=0)
    history.own("g", "a", OwnershipChange.ACQUIRED)
    history.commit("g", "a", 0, 1)
    [track] = build_owner_tracks(Book.of(history.events))
    assert track.held == (OwnerInterval(1000, 2000, ("a",)),)


class TestLag:
    def test_what_is_acknowledged_and_not_delivered(self) -> None:
        history = History(now=0)
        history.consumer("m", "g")
        history.producer("p")
        history.ack("p", 0, 0, 0, 10)  # at 3 s
        history.deliver("g", "m", 0, 0, 4, 0)  # at 4 s
        history.ack("p", 1, 0, 0, 5)  # at 5 s: a partition that is never delivered
        history.deliver("g", "m", 0, 4, 6, 4)  # at 6 s
        [found] = build_lag_tracks(Book.of(history.events), ReportWindow(0, 8_000))
        at = dict(found.points)
        assert (at[2_000], at[3_500], at[4_500], at[5_500], at[8_000]) == (0, 10, 6, 11, 5)
        assert max(records for _, records in found.points) == 11

    def test_redelivery_is_no_progress_and_a_late_start_no_lag(self) -> None:
        history = History(now=0)
        history.consumer("m", "g")
        history.producer("p")
        history.ack("p", 0, 0, 0, 100)
        history.deliver("g", "m", 0, 90, 10, 90)
        history.deliver("g", "m", 0, 90, 5, 90)
        [found] = build_lag_tracks(Book.of(history.events), ReportWindow(0, 8_000))
        assert found.points[-1] == (8_000, 0)
        assert max(records for _, records in found.points) == 10

    def test_without_acknowledgements_nothing_is_said(self) -> None:
        history = History()
        history.consumer("m", "g")
        history.deliver("g", "m", 0, 0, 4)
        assert build_lag_tracks(Book.of(history.events), ReportWindow(0, 8_000)) == ()


def test_stalls_are_the_worst_of_their_moment() -> None:
    acks = [
        Ack(Stamp("p", number, t_ms), "p", "t", 0, number, number, 1, number, number, t_ms, t_ms, latency)
        for number, (t_ms, latency) in enumerate([(100, 5_000), (101, 9_000), (2_000, 7_000), (2_300, None)], 1)
    ]
    found = find_stalls(Book.of([Start(Stamp("p", 0, 0), Writing.PRODUCER), *acks]), ReportWindow(0, 2_400))
    assert [(stall.from_ms <= t_ms < stall.to_ms, stall.ms) for stall, t_ms in zip(found, (100, 2_000), strict=True)] == [
        (True, 9.0),
        (True, 7.0),
    ]
