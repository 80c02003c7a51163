"""The ledger: a planted fault is found, and only that one; nothing planted is clean; a hole is never clean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from airflow_provider_kmigrate.core.audit.verdict import AuditOutcome
from airflow_provider_kmigrate.core.events.model import (
    Ack,
    DeliveryRun,
    Event,
    Expect,
    Ownership,
    OwnershipChange,
    Stop,
    TopicPartition,
)
from airflow_provider_kmigrate.core.ledger import Facts, balance
from airflow_provider_kmigrate.core.ledger.book import GroupPartition
from airflow_provider_kmigrate.core.ledger.ownership import find_double_ownership, merge_logs
from airflow_provider_kmigrate.core.ledger.records import REPEAT_MS, REPEAT_RECORDS
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from tests.core.histories import TOPIC, History, calm, causes, counts, moved_on
from tests.core.ledger_faults import (
    committed_too_early,
    delivered_out_of_order,
    lost_in_the_middle,
    overwritten,
    read_again,
    stored_twice,
)
from tests.verdicts import verdict_of


def test_nothing_planted_is_clean() -> None:
    facts = balance(calm().end())
    assert (verdict_of(facts), facts.complete, facts.reasons) == (AuditOutcome.PASS, True, ())
    assert (facts.acked, dict(facts.delivered), counts(facts)) == (30, {"g": 30}, {})


def test_nothing_at_all_is_not_clean() -> None:
    facts = balance([])
    assert (verdict_of(facts), causes(facts)) == (AuditOutcome.INCONCLUSIVE, {AuditCause.NOTHING_ACKED, AuditCause.NO_GROUP})


def lost_behind_a_commit(h: History) -> None:
    h.ack("p", 0, 30, 30, 4)
    h.commit("g", "m", 0, 34)


def lost_from_the_log(h: History) -> None:
    h.ack("p", 0, 30, 30, 3)
    h.extent(0, 0, 30)


def deleted_unread(h: History) -> None:
    h.ack("p", 0, 30, 30, 3)
    h.extent(0, 33, 33)


def stored_out_of_order(h: History) -> None:
    h.ack("p", 0, 32, 30, 2)
    h.ack("p", 0, 30, 32, 2)
    h.deliver("g", "m", 0, 30, 2, 32)
    h.deliver("g", "m", 0, 32, 2, 30)


def owned_twice(h: History) -> None:
    h.consumer("n", "g")
    h.own("g", "n", OwnershipChange.ACQUIRED)
    h.own("g", "m", OwnershipChange.LOST)
    h.own("g", "n", OwnershipChange.RELEASED)


@pytest.mark.parametrize(
    ("plant", "found"),
    [
        (lost_in_the_middle, {"lost": 3}),
        (lost_behind_a_commit, {"lost": 4, "commit_gap": 4}),
        (lost_from_the_log, {"lost": 3}),
        (deleted_unread, {"lost": 3}),
        (overwritten, {"lost": 3, "diverged": 3}),
        (read_again, {"redelivered": 5}),
        (stored_twice, {"stored_twice": 2}),
        (stored_out_of_order, {"reordered": 2}),
        (delivered_out_of_order, {"reordered": 6}),
        (committed_too_early, {"commit_gap": 7}),
        (owned_twice, {"double_owned": 1_000}),
    ],
)
def test_a_planted_fault_is_found_and_only_that(plant: Callable[[History], None], found: dict[str, int]) -> None:
    history = calm()
    plant(history)
    facts = balance(history.end())
    assert counts(facts) == found
    assert (verdict_of(facts), facts.complete) == (AuditOutcome.FAIL, True)


def test_a_counter_example_can_be_looked_up() -> None:
    history = calm()
    lost_in_the_middle(history)
    (case,) = balance(history.end()).lost.cases
    assert (case.group, case.topic, case.partition, case.first, case.last) == ("g", TOPIC, 0, 35, 37)
    assert (case.producer, case.seq_first, case.seq_last) == ("p", 35, 37)
    history = calm()
    read_again(history)
    (case,) = balance(history.end()).redelivered.cases
    assert (case.first, case.last, case.members) == (25, 29, ("m", "m"))


def killed_consumer(h: History) -> list[Event]:
    return h.end("m")


def killed_producer(h: History) -> list[Event]:
    return h.end("p")


def unclean_stop(h: History) -> list[Event]:
    return [replace(event, clean=False) if isinstance(event, Stop) else event for event in h.end()]


def no_first_event(h: History) -> list[Event]:
    return [event for event in h.end() if event.stamp[:2] != ("p", 0)]


def a_lost_delivery_event(h: History) -> list[Event]:
    return [event for event in h.end() if not (isinstance(event, DeliveryRun) and event.first == 10)]


def a_lost_ack_event(h: History) -> list[Event]:
    return [event for event in h.end() if not (isinstance(event, Ack) and event.first == 10)]


def a_lost_commit_event(h: History) -> list[Event]:
    events = h.end()
    return [event for event in events if event.stamp[:2] != ("m", 3)]


def renumbered(h: History) -> list[Event]:
    """The event log was rewritten without a run: only the deliveries' own count can tell."""
    kept = [event for event in h.end() if not (isinstance(event, DeliveryRun) and event.first == 10)]
    mine = [event for event in kept if event.stamp.writer == "m"]
    others = [event for event in kept if event.stamp.writer != "m"]
    return others + [replace(event, stamp=event.stamp._replace(event_seq=i)) for i, event in enumerate(mine)]


def an_expected_writer_missing(h: History) -> list[Event]:
    h.extent(0, 0, 30)
    h.events.append(Expect(h.stamp("control"), ("m", "p", "control", "n")))
    return h.end()


def two_truths(h: History) -> list[Event]:
    events = h.end()
    return [*events, replace(events[5], stamp=events[5].stamp._replace(t_ms=1))]


def not_read_to_the_end(h: History) -> list[Event]:
    h.ack("p", 0, 30, 30, 5)
    return h.end()


def the_new_partition_is_not_read(h: History) -> list[Event]:
    h.ack("p", 1, 0, 0, 5)
    return h.end()


def an_unresponsive_second_group(h: History) -> list[Event]:
    h.consumer("n", "g2", ("^t.*",))
    return h.end()


def a_run_without_an_answer(h: History) -> list[Event]:
    h.ack("p", 0, 30, 30, 1)
    h.inexact("g", "m", 30, 33, 2)
    return h.end()


def a_compacted_log(h: History) -> list[Event]:
    lost_in_the_middle(h)
    h.extent(0, 0, 50, compacted=True)
    return h.end()


def an_ack_without_its_place(h: History) -> list[Event]:
    h.ack("p", 0, -1, 30, 2)
    return h.end()


@pytest.mark.parametrize(
    ("tell", "why"),
    [
        (killed_consumer, {AuditCause.NO_STOP}),
        (killed_producer, {AuditCause.NO_STOP}),
        (unclean_stop, {AuditCause.RECORD_INCOMPLETE}),
        (no_first_event, {AuditCause.NO_START, AuditCause.NUMBERS_MISSING}),
        (a_lost_delivery_event, {AuditCause.NUMBERS_MISSING, AuditCause.COUNT_GAP}),
        (a_lost_ack_event, {AuditCause.NUMBERS_MISSING}),
        (a_lost_commit_event, {AuditCause.NUMBERS_MISSING}),
        (renumbered, {AuditCause.COUNT_GAP}),
        (an_expected_writer_missing, {AuditCause.WRITER_ABSENT}),
        (two_truths, {AuditCause.NUMBER_REUSED}),
        (not_read_to_the_end, {AuditCause.NOT_DELIVERED_YET}),
        (the_new_partition_is_not_read, {AuditCause.NOT_DELIVERED_YET}),
        (an_unresponsive_second_group, {AuditCause.NOT_DELIVERED_YET}),
        (a_run_without_an_answer, {AuditCause.GAPS_UNCLEAR}),
        (a_compacted_log, {AuditCause.MAYBE_COMPACTED}),
        (an_ack_without_its_place, {AuditCause.NOT_DELIVERED_YET}),
    ],
)
def test_a_hole_in_the_evidence_is_inconclusive_never_clean(tell: Callable[[History], list[Event]], why: set[AuditCause]) -> None:
    facts = balance(tell(calm()))
    assert causes(facts) == why
    assert (verdict_of(facts), facts.complete) == (AuditOutcome.INCONCLUSIVE, False)
    assert counts(facts).keys() <= {"unseen"}


def test_unreadable_lines_are_a_hole() -> None:
    facts = balance(calm().end(), refused=["a.jsonl:3 no JSON"])
    assert (verdict_of(facts), causes(facts)) == (AuditOutcome.INCONCLUSIVE, {AuditCause.BAD_LINES})


def test_what_a_killed_member_may_have_read_is_not_called_lost() -> None:
    history = calm()
    lost_in_the_middle(history)
    facts = balance(history.end("m"))
    assert (verdict_of(facts), counts(facts)) == (AuditOutcome.INCONCLUSIVE, {"unseen": 3})


def test_what_is_shown_is_a_violation_in_any_ledger() -> None:
    history = calm()
    read_again(history)
    facts = balance(history.end("m"))
    assert (verdict_of(facts), facts.complete, counts(facts)) == (AuditOutcome.FAIL, False, {"redelivered": 5})


def test_another_groups_killed_member_changes_nothing_for_this_one() -> None:
    history = calm()
    lost_in_the_middle(history)
    history.consumer("n", "g2")
    history.deliver("g2", "n", 0, 0, 50, 0)
    facts = balance(history.end("n"))
    assert counts(facts) == {"lost": 3}


def test_a_record_without_a_known_place_is_found_by_its_number() -> None:
    history = calm()
    history.ack("p", 0, -1, 30, 2)
    history.deliver("g", "m", 0, 30, 2, 30)
    assert verdict_of(balance(history.end())) is AuditOutcome.PASS


def test_markers_between_records_are_not_loss() -> None:
    """Transaction markers and aborted records take offsets that no consumer receives."""
    history = calm()
    history.ack("p", 0, 31, 30, 4)
    history.ack("p", 0, 37, 34, 4)
    history.deliver("g", "m", 0, 31, 4)
    history.deliver("g", "m", 0, 37, 4)
    assert verdict_of(balance(history.end())) is AuditOutcome.PASS


@pytest.mark.parametrize(
    ("first", "last", "count", "hidden"),
    [
        (31, 40, 8, 2),  # two markers; or two records of others came, and two of ours did not
        (31, 40, 9, 1),  # at least one is another's
        (31, 38, 7, 1),
        (35, 36, 1, 0),  # nothing of ours is there
    ],
)
def test_a_run_over_gaps_may_hide_as_many_as_others_records_fit_in(first: int, last: int, count: int, hidden: int) -> None:
    """A lost record and an unreported one cancel each other in a count: equal numbers are no proof."""
    history = calm()
    history.ack("p", 0, 31, 30, 4)
    history.ack("p", 0, 37, 34, 4)
    history.inexact("g", "m", first, last, count)
    if not hidden:
        history.deliver("g", "m", 0, 31, 4)
        history.deliver("g", "m", 0, 37, 4)
    elif last < 40:
        history.deliver("g", "m", 0, 39, 2)
    facts = balance(history.end())
    assert facts.unseen.count == hidden
    assert AuditCause.GAPS_UNCLEAR in causes(facts) or not hidden
    assert "lost" not in counts(facts)


def test_skipped_offsets_are_reported_largest_first() -> None:
    history = calm()
    for first, seq in ((31, 30), (45, 34)):
        history.ack("p", 0, first, seq, 4)
        history.deliver("g", "m", 0, first, 4, seq)
    passed = balance(history.end()).skipped
    assert (passed.count, [(case.first, case.last) for case in passed.cases]) == (11, [(35, 44), (30, 30)])
    history = calm()
    history.ack("p", 0, 30, 30, 10)
    history.deliver("g", "m", 0, 35, 5, 35)
    facts = balance(history.end())
    assert (facts.lost.count, facts.skipped.count) == (5, 0), "what was acknowledged is lost, not passed over"


def test_a_run_that_is_short_is_loss_though_not_of_which() -> None:
    history = calm()
    history.ack("p", 0, 30, 30, 10)
    history.inexact("g", "m", 30, 39, 7)
    facts = balance(history.end())
    assert (counts(facts), facts.lost.cases[0].last) == ({"lost": 3}, 39)


def test_a_group_that_starts_at_the_end_owes_nothing_before() -> None:
    history = calm()
    history.consumer("n", "late", reset="latest")
    history.ack("p", 0, 30, 30, 10)
    history.deliver("g", "m", 0, 30, 10, 30)
    history.deliver("late", "n", 0, 35, 5, 35)
    assert verdict_of(balance(history.end())) is AuditOutcome.PASS


def test_a_failed_commit_commits_nothing() -> None:
    history = calm()
    history.ack("p", 0, 30, 30, 7)
    history.commit("g", "m", 0, 37, ok=False)
    history.deliver("g", "m", 0, 30, 7, 30)
    assert verdict_of(balance(history.end())) is AuditOutcome.PASS


def test_a_member_killed_as_soon_as_it_has_acquired_does_not_own_for_ever() -> None:
    history = calm()
    history.own("g", "killed", OwnershipChange.ACQUIRED, (1,), ordered=False)
    history.own("g", "m", OwnershipChange.ACQUIRED, (1,), ordered=False)
    history.own("g", "m", OwnershipChange.RELEASED, (1,), ordered=False)
    assert balance(history.end("killed")).double_owned.count == 0


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize(("too_late_by", "double_ms"), [(-1, 0), (0, 0), (300, 300), (None, 3_000)])
def test_a_member_that_notices_a_loss_late_owned_until_it_lost_the_partition(
    ordered: bool, too_late_by: int | None, double_ms: int
) -> None:
    """An end before `n` took over is believed; one that is later, or none, is not forgiven."""
    history = History()
    for member in "mn":
        history.consumer(member, "g")
    history.own("g", "m", OwnershipChange.ACQUIRED, ordered=ordered)
    history.own("g", "n", OwnershipChange.ACQUIRED, ordered=ordered)
    taken = history.now
    until = None if too_late_by is None else taken + too_late_by
    history.now += 2_000
    history.own("g", "m", OwnershipChange.LOST, ordered=ordered, until_ms=until)
    found = balance(history.end()).double_owned
    assert (found.count, len(found.cases)) == (double_ms, int(double_ms > 0))


def test_facts_go_into_json_whole() -> None:
    history = calm()
    read_again(history)
    facts = balance(history.end()).as_dict()
    assert (facts["complete"], facts["duplicated"], facts["redelivered"]["cases"][0]["first"]) == (True, 5, 25)


def test_a_finding_keeps_a_limited_number_of_cases_and_counts_all() -> None:
    history = calm()
    for _ in range(30):
        read_again(history)
    finding = balance(history.end(), max_cases=7).redelivered
    assert (finding.count, len(finding.cases)) == (150, 7)


def test_no_room_for_cases_is_no_reason_to_pass() -> None:
    history = calm()
    history.ack("p", 0, 30, 30, 5)
    history.ack("p", 0, 35, 35, 5)
    history.deliver("g", "m", 0, 35, 5, 35)
    facts = balance(history.end(), max_cases=0)
    assert (verdict_of(facts), facts.lost.count, facts.lost.cases) == (AuditOutcome.FAIL, 5, ())


def test_a_topic_that_was_subscribed_later_must_be_delivered_too() -> None:
    history = History()
    history.consumer("m", "g", topics=("a",))
    history.producer("p")
    history.consumer("m", "g", topics=("a", TOPIC))
    history.ack("p", 0, 0, 0, 10)
    facts = balance(history.end())
    assert (facts.unseen.count, causes(facts)) == (10, {AuditCause.NOT_DELIVERED_YET})


@pytest.mark.parametrize("overlap", [True, False])
def test_places_in_two_logs_say_nothing_of_each_other(overlap: bool) -> None:
    changes = [event for event in moved_on(overlap=overlap).events if isinstance(event, Ownership)]
    logs = [[change for change in changes if change.member == member] for member in ("a", "b")]
    logs = [[replace(change, position=place) for place, change in enumerate(log)] for log in logs]
    where = GroupPartition("g", "t", 0)
    here = [change for change in merge_logs(logs) if TopicPartition("t", 0) in change.partitions]
    assert bool(find_double_ownership(where, here, {"a": 2_000_000, "b": 2_000_000}, skew_ms=100)) == overlap
    assert all(change.position is None for change in merge_logs(logs))
    assert merge_logs([changes]) == changes, "one log is in order"
    assert all(change.position is None for change in merge_logs([changes], beside=True))
    other = [replace(change, group="other") for change in logs[1]]
    assert merge_logs([logs[0], other]) == [*logs[0], *other], "each group has its own"


def repeated(count: int = 5, back: int = 5, *, generation: int = 0, wait_ms: int = 0, member: str = "m") -> Facts:
    """After 30 records in order a member is handed out `count` of the last `back` again."""
    history = calm()
    history.consumer("n", "g")
    history.generation += generation
    history.now += wait_ms
    history.deliver("g", member, 0, 30 - back, count, 30 - back)
    return balance(history.end())


def test_a_client_that_hands_out_its_records_twice_is_named_and_fails_nothing() -> None:
    facts = repeated()
    assert (verdict_of(facts), facts.complete, counts(facts)) == (AuditOutcome.PASS, True, {"client_repeats": 5})
    assert facts.duplicated == 0
    (case,) = facts.client_repeats.cases
    assert (case.first, case.last, case.members) == (25, 29, ("m", "m"))


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        (repeated(generation=1), {"redelivered": 5}),
        (repeated(member="n"), {"redelivered": 5}),
        (repeated(wait_ms=REPEAT_MS), {"redelivered": 5}),
        (repeated(wait_ms=REPEAT_MS - 3_000), {"client_repeats": 5}),
        (repeated(count=3, back=25), {"client_repeats": 3}),
    ],
    ids=["a rebalance", "another member", "long after", "just in time", "further back"],
)
def test_only_the_same_member_soon_after_in_one_generation_repeats_by_itself(facts: Facts, found: dict[str, int]) -> None:
    assert counts(facts) == found


@pytest.mark.parametrize(("back", "found"), [(REPEAT_RECORDS, "client_repeats"), (REPEAT_RECORDS + 1, "redelivered")])
def test_a_step_back_beyond_the_bound_is_a_redelivery_as_a_whole(back: int, found: str) -> None:
    """An offset that was reset goes far back: no part of it is excused."""
    history = calm(3_000, 3_000)
    history.deliver("g", "m", 0, 3_000 - back, 10, 3_000 - back)
    history.deliver("g", "m", 0, 3_010 - back, back - 10, 3_010 - back)
    assert counts(balance(history.end())) == {found: back}


def test_a_repeat_with_a_hole_in_the_members_count_is_a_redelivery() -> None:
    history = calm()
    history.counted["m", 0] += 3
    history.deliver("g", "m", 0, 25, 5, 25)
    assert "redelivered" in counts(balance(history.end()))


@pytest.mark.parametrize(("producer", "seq"), [("q", 100), ("q", 25), ("p", 100)])
def test_other_records_at_the_same_offsets_are_no_repeat(producer: str, seq: int) -> None:
    history = calm()
    history.producer("q")
    history.deliver("g", "m", 0, 25, 5, seq, producer=producer)
    found = counts(balance(history.end()))
    assert (found["redelivered"], found["diverged"]) == (5, 5)
    assert "client_repeats" not in found


def changed(change: Callable[[DeliveryRun], DeliveryRun]) -> dict[str, int]:
    """What is found if every delivery of a history with a repeat is changed so."""
    history = calm()
    history.deliver("g", "m", 0, 25, 5, 25)
    return counts(balance([change(event) if isinstance(event, DeliveryRun) else event for event in history.end()]))


def test_without_a_generation_nothing_is_excused() -> None:
    assert changed(lambda run: run) == {"client_repeats": 5}
    assert changed(lambda run: replace(run, generation=None)) == {"redelivered": 5}


def test_a_delivery_that_does_not_say_which_records_it_had_excuses_nothing() -> None:
    loose = {"producer": None, "producer_seq": None}
    found = changed(lambda run: replace(run, last=run.last + 1, **loose) if run.first == 20 else run)
    assert "client_repeats" not in found


def test_a_new_process_of_the_same_name_does_not_repeat_by_itself() -> None:
    history = calm()
    history.consumer("m2", "g")
    history.counted["m2", 0] = 30
    history.deliver("g", "m2", 0, 25, 5, 25)
    events = [replace(event, member="m") if isinstance(event, DeliveryRun) else event for event in history.end()]
    assert counts(balance(events))["redelivered"] == 5


def test_what_was_handed_out_in_an_earlier_generation_is_no_repeat() -> None:
    history = calm()
    history.generation += 1
    history.deliver("g", "m", 0, 25, 5, 25)
    history.deliver("g", "m", 0, 20, 10, 20)
    assert counts(balance(history.end())) == {"redelivered": 10, "client_repeats": 5}


def test_a_repeat_over_several_deliveries_and_into_new_records() -> None:
    history = calm()
    history.ack("p", 0, 30, 30, 5)
    history.deliver("g", "m", 0, 15, 10, 15)
    history.deliver("g", "m", 0, 25, 10, 25)
    assert counts(balance(history.end())) == {"client_repeats": 15}
