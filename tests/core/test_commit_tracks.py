"""Commits before and after: what went back, what stands still, what was removed, and what has a harmless cause."""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_kmigrate.core.audit import commit_tracks
from airflow_provider_kmigrate.core.audit.commit_tracks import (
    CommitSnapshot,
    CommitTimeouts,
    OffsetStep,
    Track,
    Tracks,
    Waiting,
    end_of_records,
    find_stalled_groups,
    judge_commits,
)
from airflow_provider_kmigrate.core.audit.verdict import AuditFinding, AuditOutcome
from airflow_provider_kmigrate.core.events.model import LogMark, TopicPartition
from airflow_provider_kmigrate.core.ledger.book import GroupPartition
from airflow_provider_kmigrate.core.offsets_topic.offsets_records import (
    ConsumerMember,
    GroupState,
    OffsetCommitted,
    OffsetRemoved,
    RawRecord,
)
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from airflow_provider_kmigrate.exceptions import Refused

P0 = TopicPartition("t", 0)

G = GroupPartition("g", "t", 0)


def raw(offset: int, t_ms: int = 0) -> RawRecord:
    return RawRecord(7, offset, t_ms, b"", b"")


def tracks(*offsets: int | None, begin: int = 0, t_ms: int = 0) -> Tracks:
    found = Tracks()
    for place, offset in enumerate(offsets, begin):
        when = t_ms + place
        record = OffsetRemoved(*G) if offset is None else OffsetCommitted(*G, offset, when)
        found.add(raw(place, when), record)
    return found


def commits(taken_ms: int, *offsets: int | None, begin: int = 0, members: int = 1, t_ms: int = 0) -> CommitSnapshot:
    return CommitSnapshot(taken_ms, tracks(*offsets, begin=begin, t_ms=t_ms).found, {"g": members})


def causes_of(before: CommitSnapshot, after: CommitSnapshot, end: int = 0) -> dict[object, AuditFinding]:
    findings = judge_commits(before, after, {P0: end}, patience=CommitTimeouts(1_000, 100))
    return {finding.reason.cause: finding for finding in findings}


@given(st.lists(st.one_of(st.none(), st.integers(0, 5)), min_size=1, max_size=12), st.data())
def test_tracks_of_pieces_are_the_track_of_the_whole(offsets: list[int | None], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(offsets)), max_size=3)))
    joined = Tracks()
    for begin, end in zip([0, *cuts], [*cuts, len(offsets)], strict=True):
        joined.join(tracks(*offsets[begin:end], begin=begin))
    assert joined.found == tracks(*offsets).found
    track = joined.found[G]
    values = [offset for offset in offsets if offset is not None]
    back = [1 for one, other in itertools.pairwise(values) if other < one]
    bare = itertools.groupby(enumerate(offsets), key=lambda row: row[1] is None)
    pieces = [[row[1] for row in rows] for removed, rows in bare if not removed]
    assert len(track.agains) == sum(later[0] > one[-1] for one, later in itertools.pairwise(pieces))  # type: ignore[operator]
    assert track.back_count == len(back)
    assert (track.first, track.last, track.count) == (offsets[0], offsets[-1], len(offsets))
    assert len(track.backs) == min(20, len(back))
    steps = [(one, other) for (_, one), (_, other) in itertools.pairwise(row for row in enumerate(offsets) if row[1] is not None)]
    places = [at for at, offset in enumerate(offsets) if offset is not None][1:]
    assert [step.at for step in track.backs] == [at for at, (one, other) in zip(places, steps, strict=True) if other < one]


def test_commits_that_advance_are_fine() -> None:
    assert causes_of(commits(500, 3, 5), commits(900, 5, 9, 12, begin=2), end=20) == {}
    assert causes_of(commits(500, 3, 5), commits(900), end=5) == {}, "nothing waited"


def test_a_commit_that_goes_back() -> None:
    found = causes_of(commits(500, 3, 5), commits(900, 1, 9, 0, begin=2))
    finding = found[AuditCause.COMMIT_WENT_BACK]
    assert (finding.outcome, finding.count) == (AuditOutcome.FAIL, 2)
    assert [(case.first, case.last, case.group) for case in finding.examples] == [(0, 8, "g"), (1, 4, "g")]
    assert "record 2 of" in finding.examples[1].note


@pytest.mark.parametrize(
    ("then", "since", "cause", "outcome"),
    [
        ((435, 445), (440, 450), AuditCause.COMMIT_LATE, AuditOutcome.PASS),
        ((435,), (445, 440, 450), AuditCause.COMMIT_LATE, AuditOutcome.PASS),
        ((435, 445), (440,), AuditCause.COMMIT_LATE, AuditOutcome.INCONCLUSIVE),
        ((435, 445), (440, 444), AuditCause.COMMIT_LATE, AuditOutcome.INCONCLUSIVE),
        ((435, 445), (434, 450), AuditCause.COMMIT_WENT_BACK, AuditOutcome.FAIL),
        ((400, 435, 440, 442, 445), (420, 450), AuditCause.COMMIT_WENT_BACK, AuditOutcome.FAIL),
        ((435,), (440, 438, 445, 442, 450, 448, 460), AuditCause.COMMIT_WENT_BACK, AuditOutcome.FAIL),
    ],
)
def test_an_older_commit_that_takes_effect_late(
    then: tuple[int, ...], since: tuple[int, ...], cause: AuditCause, outcome: AuditOutcome
) -> None:
    """As a client's that is sent again where the coordinator moves: shown, once the group has gone on. Often, it is of two owners."""
    found = causes_of(commits(500, *then), commits(900, *since, begin=len(then)))
    assert {name: finding.outcome for name, finding in found.items()} == {cause: outcome}


def alive(
    late: Sequence[int], count: int = 240, apart_ms: int = 1_000, of: int = 50, epochs: tuple[int, int] = (3, 3)
) -> set[object]:
    """Codes of a group that commits each `apart_ms`, five records on; before the commits of these numbers, the one before them comes again.

    Its coordinator's log had these leader epochs at the two observations.
    """
    numbers = [at for number in range(count) for at in ([number, number - 1, number + 1] if number in late else [number])]
    marks = [{TopicPartition("__consumer_offsets", each): LogMark(0, 9, epoch, "id") for each in range(of)} for epoch in epochs]
    before = replace(commits(500, 1_000), marks=marks[0])
    found = Tracks()
    for place, number in enumerate(numbers, 1):
        found.add(raw(place, place * apart_ms), OffsetCommitted(*G, 1_100 + 5 * number, place * apart_ms))
    return causes_of(before, replace(CommitSnapshot(900_000, found.found, {"g": 1}), marks=marks[1])).keys()


@pytest.mark.parametrize(
    ("late", "epochs", "cause"),
    [
        ([100, 104], (3, 3), AuditCause.COMMIT_LATE),
        ([100, 104, 119], (3, 3), AuditCause.COMMIT_WENT_BACK),
        ([100, 104, 119], (3, 5), AuditCause.COMMIT_LATE),  # a demo of 2026-11-25: brokers restarted one after another
        ([100, 102, 104], (3, 9), AuditCause.COMMIT_WENT_BACK),  # close together
        (range(20, 200, 20), (3, 9), AuditCause.COMMIT_LATE),
        (range(20, 200, 6), (3, 9), AuditCause.COMMIT_WENT_BACK),
        (range(20, 240, 8), (3, 99), AuditCause.COMMIT_WENT_BACK),  # whatever its coordinators did
        (range(20, 230, 10), (3, 99), AuditCause.COMMIT_WENT_BACK),  # so many are not kept one by one
    ],
)
def test_late_commits_are_allowed_for_each_time_that_a_coordinator_moves(
    late: Sequence[int], epochs: tuple[int, int], cause: AuditCause
) -> None:
    assert alive(late, epochs=epochs) == {cause}


@pytest.mark.parametrize("epochs", [(None, 5), (3, None), (3, 3)])
def test_a_coordinator_with_an_unknown_number_of_moves_did_not_move(epochs: Any) -> None:
    assert alive([100, 104, 119], epochs=epochs) == {AuditCause.COMMIT_WENT_BACK}
    assert alive([100, 104], epochs=epochs) == {AuditCause.COMMIT_LATE}


@given(
    st.integers(1_000, 60_000),  # between two commits of a member
    st.integers(2, 20),  # commits of each while both own
    st.integers(0, 20),  # leaders named meanwhile
    st.floats(0.05, 0.95),
    st.integers(1, 2),
)
def test_two_owners_are_never_taken_for_a_client_that_tries_again(
    apart_ms: int, both: int, moves: int, phase: float, behind: int
) -> None:
    """A member goes on, one or two commits behind, after another was given its partition; both commit at the same pace, whatever that is."""
    first = [(number * apart_ms, 1_000 + 5 * number) for number in range(40 + both)]
    second = [((number + phase) * apart_ms, 1_000 + 5 * (number - behind)) for number in range(40, 40 + both)]
    found, marks = Tracks(), {TopicPartition("__consumer_offsets", 0): LogMark(0, 9, 1, "id")}
    for place, (t_ms, offset) in enumerate(sorted([*first, *second])):
        found.add(raw(place, round(t_ms)), OffsetCommitted(*G, offset, round(t_ms)))
    now = {TopicPartition("__consumer_offsets", 0): LogMark(0, 90, 1 + moves, "id")}
    after = replace(CommitSnapshot(10_000_000, found.found, {"g": 2}), marks=now)
    cause = AuditCause.COMMIT_WENT_BACK if both > 2 else AuditCause.COMMIT_LATE
    assert cause in causes_of(replace(commits(0, 900), marks=marks), after)


def test_no_client_retries_a_commit_for_longer_than_a_minute() -> None:
    for later, cause in ((59_000, AuditCause.COMMIT_LATE), (61_001, AuditCause.COMMIT_WENT_BACK)):
        found = causes_of(commits(500, 435, 445), commits(62_000, 440, 450, begin=2, t_ms=later))
        assert cause in found


def test_a_group_that_goes_back_on_purpose_is_shown_and_only_that() -> None:
    before, after = commits(500, 3, 5), commits(900, 1, 9, 0, begin=2)
    found = {finding.reason.cause: finding for finding in judge_commits(before, after, {P0: 0}, resetting_groups=["g"])}
    assert (found[AuditCause.COMMIT_WENT_BACK].outcome, found[AuditCause.COMMIT_WENT_BACK].count) == (AuditOutcome.PASS, 2)
    (other,) = judge_commits(before, after, {P0: 0}, resetting_groups=["h"])
    assert other.outcome is AuditOutcome.FAIL
    (still,) = judge_commits(commits(500, 5), commits(70_000), {P0: 9}, resetting_groups=["g"])
    assert still.reason.cause == AuditCause.GROUP_STALLED, "nothing else is forgiven"


@pytest.mark.parametrize(
    ("offsets", "begin", "end", "found"),
    [
        ([], 10, 11, 10),  # one marker behind the last record
        ([10, 12], 10, 14, 13),
        ([10, 12], 10, 12, 11),  # as it was a minute ago
        ([10, 12], 10, 10, 10),
        ([], 10, 8, 8),
    ],
)
def test_a_log_ends_behind_its_last_record(offsets: list[int], begin: int, end: int, found: int) -> None:
    assert end_of_records(offsets, begin, end) == found


def test_a_group_that_has_read_all_does_not_stand_still_before_a_marker() -> None:
    """It commits behind each record, so it never comes to the end of a transactional log."""
    before, after = commits(500, 10), commits(70_500)
    assert [case.first for case in find_stalled_groups(before, after, {P0: 11})] == [10]
    assert causes_of(before, after, end_of_records([], 10, 11)) == {}
    assert causes_of(before, after, end_of_records([10], 10, 12)).keys() == {AuditCause.GROUP_STALLED}


def test_a_removed_commit_counts_only_if_a_step_removed_it_for_good() -> None:
    found = causes_of(commits(500, 5), commits(900, None, begin=1))
    assert (found[AuditCause.COMMIT_REMOVED].outcome, found[AuditCause.COMMIT_REMOVED].examples[0].first) == (
        AuditOutcome.INCONCLUSIVE,
        5,
    )
    assert causes_of(commits(500, 5, None), commits(900, 3, begin=2)) == {}, "it was removed before the step"
    assert causes_of(commits(500, 5), commits(900, None, 5, begin=1)) == {}, "set again where it was"


@pytest.mark.parametrize("since", [(None, 3), (9, None, 3), (9, None, None, 3)])
def test_a_removal_hides_no_step_back(since: tuple[int | None, ...]) -> None:
    finding = causes_of(commits(500, 5), commits(900, *since, begin=1))[AuditCause.COMMIT_WENT_BACK]
    assert (finding.outcome, finding.count, finding.examples[0].first) == (AuditOutcome.FAIL, 1, 3)


@pytest.mark.parametrize("since", [(None, 90), (9, None, 90)])
def test_a_removal_and_a_place_further_on(since: tuple[int | None, ...]) -> None:
    """As after a reset to the end of the log: no consumer reads what lies between."""
    finding = causes_of(commits(500, 5), commits(900, *since, begin=1))[AuditCause.COMMIT_REMOVED]
    assert finding.outcome is AuditOutcome.INCONCLUSIVE
    assert "set again further on" in finding.reason.text
    assert finding.examples[0].last == 89


def test_offsets_of_unused_groups_expire() -> None:
    idle = commits(5_000, 5, members=0)
    finding = causes_of(idle, commits(9_000, None, begin=1, members=0))[AuditCause.COMMIT_REMOVED]
    assert finding.outcome is AuditOutcome.PASS
    for before, after in (
        (commits(5_000, 5, members=2), commits(9_000, None, begin=1, members=0)),
        (idle, commits(9_000, None, begin=1, members=1)),
        (idle, commits(9_000, 6, None, begin=1, members=0)),
        (commits(5_000, 5, members=0, t_ms=4_500), commits(9_000, None, begin=1, members=0)),
    ):
        assert causes_of(before, after)[AuditCause.COMMIT_REMOVED].outcome is AuditOutcome.INCONCLUSIVE


def test_the_topic_of_the_commits_is_compared_too() -> None:
    """Truncated, or created again, it shows nothing more of what was committed."""
    where = TopicPartition("__consumer_offsets", 0)
    mark = LogMark(0, 500_000, 3, "id", compacted=True)
    before = replace(commits(500, 5), marks={where: mark})
    for now, cause in (
        ({where: replace(mark, end=20)}, AuditCause.LOG_TRUNCATED),
        ({where: replace(mark, leader_epoch=2)}, AuditCause.EPOCH_WENT_BACK),
        ({}, AuditCause.PARTITIONS_GONE),
        ({where: replace(mark, topic_id="other")}, AuditCause.TOPIC_RECREATED),
    ):
        assert causes_of(before, replace(commits(900, 6, begin=1), marks=now))[cause].outcome is AuditOutcome.FAIL
    grown = {where: replace(mark, end=500_009, leader_epoch=4)}
    assert causes_of(before, replace(commits(900, 6, begin=1), marks=grown)) == {}


def test_a_group_that_stands_still_although_records_wait() -> None:
    before = commits(500, 5, t_ms=400)
    for after in (commits(900), commits(900, 5, begin=1)):
        finding = causes_of(before, after, end=20)[AuditCause.GROUP_STALLED]
        assert (finding.outcome, finding.examples[0].count) == (AuditOutcome.INCONCLUSIVE, 15)
    assert causes_of(before, commits(900, 6, begin=1), end=20) == {}
    assert causes_of(before, commits(550), end=20) == {}, "too early to say"
    assert causes_of(before, commits(900, members=0), end=20).keys() == {AuditCause.GROUP_STALLED}, "thrown out, all of them"
    empty = commits(500, 5, t_ms=400, members=0)
    assert causes_of(empty, commits(900), end=20).keys() == {AuditCause.GROUP_STALLED}, "it has members now"
    assert causes_of(empty, commits(900, members=0), end=20) == {}, "no member is there to read"
    assert causes_of(commits(500, 5, t_ms=-900), commits(900), end=20) == {}, (
        "it stood still long before, and every gate since would say so"
    )


MINUTE = 60_000
OBSERVED = 1_000 * MINUTE  # when the observation before was taken; the gate is made 20 minutes later


def moved(taken_ms: int, *steps: tuple[float, int], members: int = 1, left: float | None = None) -> CommitSnapshot:
    """Commits as (minutes since the observation, offset)."""
    found = Tracks()
    for place, (minute, offset) in enumerate(steps):
        when = OBSERVED + round(minute * MINUTE)
        found.add(raw(place, when), OffsetCommitted(*G, offset, when))
    return CommitSnapshot(
        taken_ms, found.found, {"g": members}, left_ms={} if left is None else {"g": OBSERVED + round(left * MINUTE)}
    )


def stops(before: CommitSnapshot, after: CommitSnapshot, *, long: int = 3_000, at_first: int = 1_000) -> bool:
    """Whether a stalled group is reported; records up to `long` have lain there for longer than a minute, `at_first` was the end at the observation before."""
    findings = judge_commits(before, after, {P0: 3_100}, waiting=Waiting({P0: at_first}, {P0: long}))
    assert all(finding.outcome is AuditOutcome.INCONCLUSIVE for finding in findings)
    return AuditCause.GROUP_STALLED in {finding.reason.cause for finding in findings}


_STEADY = tuple((minute / 10, 1_000 + minute) for minute in range(1, 20))  # each 6 s up to minute 1.9
_SLOW = tuple((minute, 1_000 + round(minute)) for minute in (1, 5, 9, 13))  # each 4 minutes
_GATE = OBSERVED + 20 * MINUTE


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (moved(OBSERVED, (0, 1_000)), moved(_GATE, *_STEADY), True),
        (moved(OBSERVED, (0, 1_000)), moved(_GATE, *_STEADY, (5, 1_019), (19.9, 1_019)), True),
        (moved(OBSERVED, (0, 1_000)), moved(_GATE, *_SLOW[:2]), True),
        (moved(OBSERVED, (0, 1_000)), moved(_GATE, *_STEADY, members=0, left=2.7), True),
        (moved(OBSERVED, (-9, 900)), moved(_GATE, *_STEADY), True),
        (moved(OBSERVED), moved(_GATE, *_STEADY), True),
    ],
    ids=["for good", "commits the same again and again", "slow, then for good", "thrown out", "waited a little before", "new"],
)
def test_a_group_that_went_on_after_the_observation_and_then_stopped(
    before: CommitSnapshot, after: CommitSnapshot, expected: bool
) -> None:
    """As a client that learns of a moved coordinator in the first third of a roll: its last commit differs from the observed one."""
    assert stops(before, after) is expected
    again = commit_tracks.from_dict(json.loads(json.dumps(commit_tracks.as_dict(before))))
    assert stops(again, after) is expected


@pytest.mark.parametrize(
    ("before", "after", "waits"),
    [
        (moved(OBSERVED, (0, 1_000)), moved(_GATE, *_STEADY, (19.5, 2_900)), 3_000),
        (moved(OBSERVED, (0, 1_000)), moved(_GATE, *_STEADY), 1_019),
        (moved(OBSERVED, (0, 1_000)), moved(_GATE, *_SLOW), 3_000),
        (moved(OBSERVED, (0, 1_000)), moved(_GATE, *_STEADY, members=0, left=1.95), 3_000),
        (moved(OBSERVED, (0, 1_000), members=0), moved(_GATE, *_STEADY, members=0, left=2.7), 3_000),
        (moved(OBSERVED, (-40, 900)), moved(_GATE, *_STEADY), 3_000),
    ],
    ids=[
        "goes on",
        "idle: what waits has just come",
        "slow",
        "left by itself",
        "a batch beside the observations",
        "a batch each hour that stays",
    ],
)
def test_groups_that_do_well_and_commit_no_more(before: CommitSnapshot, after: CommitSnapshot, waits: int) -> None:
    assert not stops(before, after, long=waits)
    again = commit_tracks.from_dict(json.loads(json.dumps(commit_tracks.as_dict(before))))
    assert not stops(again, after, long=waits)


@pytest.mark.parametrize("minute", range(1, 40))
def test_whenever_a_group_stops_for_good_some_gate_says_so(minute: int) -> None:
    """Gates each 20 minutes, each compared with the observation that the last one left where it passed."""
    whole = tuple((tenth / 10, 1_000 + tenth) for tenth in range(minute * 10))
    snapshot, found = moved(OBSERVED, (0, 1_000)), []
    for gate in (20, 40, 60):
        begin = (snapshot.taken_ms - OBSERVED) / MINUTE
        now = moved(OBSERVED + gate * MINUTE, *(step for step in whole if begin < step[0] <= gate))
        found.append(stops(snapshot, now))
        snapshot = commit_tracks.from_dict(json.loads(json.dumps(commit_tracks.as_dict(snapshot.continued_by(now)))))
        if found[-1]:
            break
    assert found[-1], "it is never seen"


def test_members_come_from_the_groups_states() -> None:
    found = Tracks()
    found.add(raw(0), GroupState("g", 1))
    assert found.members == {"g": 1}
    found.add(raw(1), GroupState("g", 0))
    assert found.members == {"g": 0}


def test_a_member_of_kip_848_that_left_is_one_no_more() -> None:
    found = Tracks()
    found.add(raw(0), ConsumerMember("g", "a"))
    found.add(raw(1), ConsumerMember("g", "b"))
    there = CommitSnapshot(1, {}, {}, consumers=found.consumers)
    left = Tracks()
    left.add(raw(2), ConsumerMember("g", "a", there=False))
    assert there.continued_by(CommitSnapshot(2, {}, {}, consumers=left.consumers)).has_members("g")
    left.add(raw(3), ConsumerMember("g", "b", there=False))
    assert not there.continued_by(CommitSnapshot(2, {}, {}, consumers=left.consumers)).has_members("g")
    assert there.has_members("g"), "that observation has not changed"


def test_an_observation_is_kept_and_read_again() -> None:
    mark = {TopicPartition("__consumer_offsets", 0): LogMark(0, 9, 1, "id", retention_ms=-1)}
    one = replace(commits(500, 3, 5), marks=mark, ends={0: 9}, consumers={"h": {"m": True}})
    document = json.loads(json.dumps(commit_tracks.as_dict(one)))
    again = commit_tracks.from_dict(document)
    assert (again.marks, again.ends, again.consumers, again.members) == (one.marks, one.ends, one.consumers, one.members)
    assert causes_of(again, commits(900, None, 4, begin=2)).keys() >= {AuditCause.PARTITIONS_GONE, AuditCause.COMMIT_WENT_BACK}
    with pytest.raises(Refused, match="version 1"):
        commit_tracks.from_dict({**document, "version": 1})


def test_workers_bring_tracks_home() -> None:
    found = tracks(5, None, 9, 4, None)
    assert pickle.loads(pickle.dumps(found)) == found  # noqa: S301  # our own


def test_unreadable_records_leave_a_doubt() -> None:
    (finding,) = judge_commits(commits(500), replace(commits(900), refused=3), {})
    assert (finding.reason.cause, finding.outcome, finding.count) == (AuditCause.COMMITS_UNKNOWN, AuditOutcome.INCONCLUSIVE, 3)


def test_a_step_tells_where_to_look() -> None:
    (step,) = tracks(5, 4).found[G].backs
    assert step == OffsetStep(5, 4, 1, 1, at=1)
    assert Track(1, 2, 0, 0).find_step_back(Track(3, 3, 0, 0)) == ()
