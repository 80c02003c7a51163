"""Logs before and after: every kind of damage is told from every kind of lawful change, on logs small enough to know the truth."""

from __future__ import annotations

import itertools
import json
import zlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_kmigrate.core import commit_tracks, fingerprint
from airflow_provider_kmigrate.core.commit_tracks import CommitLook, Patience, Reader, Step, Track, Tracks, judge_commits
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.fingerprint import compare
from airflow_provider_kmigrate.core.log_blocks import Fingerprint, LogMark, Print, Sample, covered, remaining, renewal, stretches
from airflow_provider_kmigrate.core.offsets_records import (
    ConsumerAssignment,
    ConsumerMemberRemoved,
    GroupMember,
    GroupState,
    OffsetCommitted,
    OffsetRemoved,
    RawRecord,
)
from airflow_provider_kmigrate.core.verdict import Ground, Level, Outcome, combine
from airflow_provider_kmigrate.exceptions import Refused

BLOCK = 10
P0 = TopicPartition("t", 0)


@dataclass(frozen=True)
class Log:
    """A partition as it lies on a disk."""

    start: int = 0
    end: int = 0
    records: Mapping[int, str] = field(default_factory=dict)
    epoch: int = 1
    topic_id: str | None = "id"
    compacted: bool = False

    @property
    def mark(self) -> LogMark:
        return LogMark(self.start, self.end, self.epoch, self.topic_id, self.compacted)

    def prints(self, spans: list[tuple[int, int]]) -> dict[int, Print]:
        found: dict[int, list[int]] = defaultdict(list)
        for offset, content in self.records.items():
            if any(begin <= offset < end for begin, end in spans):
                text = f"{offset} {content}".encode()
                found[offset // BLOCK].append(zlib.crc32(text) << 32 | zlib.adler32(text))
        return {number: _print(hashes) for number, hashes in found.items()}


def _print(hashes: list[int]) -> Print:
    xor = 0
    for value in hashes:
        xor ^= value
    return Print(len(hashes), xor, sum(value & 0xFFFFFFFF for value in hashes), sum(value >> 32 for value in hashes))


def full(end: int, start: int = 0, **more: object) -> Log:
    return replace(Log(start, end, {offset: f"v{offset}" for offset in range(start, end)}), **more)  # type: ignore[arg-type]


def look(logs: Mapping[TopicPartition, Log], before: Fingerprint | None = None, sample: Sample | None = None) -> Fingerprint:
    marks = {where: log.mark for where, log in logs.items()}
    if before is None:
        spans = {where: stretches(mark, sample or Sample(), BLOCK) for where, mark in marks.items()}
    else:
        spans = remaining(before, marks)
    prints = {where: logs[where].prints(found) for where, found in spans.items()}
    return Fingerprint(1_000 if before else 0, "c", marks, prints, BLOCK)


def judged(one: Log, other: Log | None, sample: Sample | None = None) -> tuple[dict[str, Ground], int]:
    before = look({P0: one}, sample=sample)
    grounds, health = compare(before, look({P0: other} if other else {}, before))
    return {ground.reason.code: ground for ground in grounds}, health.events


def codes(one: Log, other: Log | None) -> set[str]:
    return judged(one, other)[0].keys() - {"D10"}


def without(log: Log, *offsets: int) -> Log:
    return replace(log, records={offset: content for offset, content in log.records.items() if offset not in offsets})


def test_the_same_and_what_came_since() -> None:
    found, equal = judged(full(35), full(50))
    assert found.keys() == {"D10"}
    assert equal == 35
    assert "every offset" in found["D10"].reason.text


def test_a_record_that_is_gone() -> None:
    found, equal = judged(full(35), without(full(35), 12, 13))
    ground = found["D01"]
    assert (ground.outcome, ground.count, ground.level) == (Outcome.FAIL, 2, Level.LOG)
    (case,) = ground.examples
    assert (case.topic, case.partition, case.first, case.last, case.count) == ("t", 0, 10, 19, 2)
    assert equal == 25


def test_a_record_with_other_contents() -> None:
    changed = full(35)
    found, _ = judged(changed, replace(changed, records={**changed.records, 3: "other"}))
    assert found["D02"].outcome is Outcome.FAIL
    assert (found["D02"].examples[0].first, found["D02"].examples[0].last) == (0, 9)


def test_two_records_that_changed_places() -> None:
    log = full(35)
    assert codes(log, replace(log, records={**log.records, 3: "v4", 4: "v3"})) == {"D02"}


def test_a_log_that_was_cut_off() -> None:
    found, equal = judged(full(35), full(22))
    assert found.keys() - {"D10"} == {"D03"}
    assert (found["D03"].count, found["D03"].examples[0].first, found["D03"].examples[0].last) == (13, 22, 34)
    assert equal == 20


def test_a_log_that_was_cut_off_and_written_on() -> None:
    """As after an unclean election: the end went forward, and offsets hold other records."""
    refilled = replace(full(40), records={offset: f"w{offset}" if offset >= 22 else f"v{offset}" for offset in range(40)})
    assert codes(full(35), refilled) == {"D02"}


def test_an_epoch_that_went_back() -> None:
    assert codes(full(35, epoch=7), full(35, epoch=6)) == {"D04"}
    assert codes(replace(full(35), epoch=7), replace(full(35), epoch=9)) == set()


def test_partitions_that_are_gone_new_or_unreadable() -> None:
    assert codes(full(35), None) == {"D05"}
    assert codes(full(35), replace(full(35), topic_id="other")) == {"D06"}
    before = look({P0: full(35)})
    after = replace(before, marks={P0: LogMark(unread="no leader")})
    for one, other in ((before, after), (after, before)):
        ground, _ = compare(one, other)[0][0], None
        assert (ground.reason.code, ground.outcome) == ("D07", Outcome.INCONCLUSIVE)
    assert compare(before, replace(look({P0: full(35, topic_id=None)}, before)))[1].events == 35, "an unknown id is none"


def test_retention_is_named_and_left_out() -> None:
    found, equal = judged(full(35), full(35, start=12))
    assert (found["D09"].outcome, found["D09"].count) == (Outcome.PASS, 12)
    assert found.keys() == {"D09", "D10"}
    assert equal == 15, "the block that it reached is left out too"


def test_a_log_that_retention_emptied_shows_nothing() -> None:
    before = look({P0: full(35)})
    grounds, health = compare(before, look({P0: full(60, start=50)}, before))
    assert {ground.reason.code for ground in grounds} == {"D09", "D16"}
    assert health.events == 0
    verdict = combine(grounds, [health], required=[Level.LOG])
    assert verdict.headline.startswith("INCONCLUSIVE: [D16] Retention has passed everything"), verdict.headline
    assert combine(grounds, [health], required=[Level.LOG]).outcome is Outcome.INCONCLUSIVE


DAY = 86_400_000


@pytest.mark.parametrize(
    ("was", "now", "elapsed_ms", "start", "code"),
    [
        ((DAY, -1), (DAY, -1), 1_000, 12, "D09"),  # old records are removed at any time
        ((DAY, -1), (DAY, -1), DAY, 35, "D09"),
        ((DAY, -1), (DAY, -1), DAY - 1, 35, "D17"),  # also what had just been written
        ((DAY, 10), (DAY, 10), 1_000, 35, "D09"),  # so many bytes may have come
        ((-1, -1), (-1, -1), DAY, 12, "D17"),
        ((-1, -1), (DAY, -1), 2 * DAY, 12, "D17"),
        ((DAY, -1), (1, -1), 2 * DAY, 12, "D17"),
        ((-1, 10), (-1, 10), 1_000, 35, "D09"),
        ((None, None), (DAY, -1), 1_000, 35, "D09"),  # not known
    ],
)
def test_what_retention_cannot_have_removed(
    was: tuple[int, int], now: tuple[int, int], elapsed_ms: int, start: int, code: str
) -> None:
    before = look({P0: full(35)})
    after = look({P0: full(60, start=start)}, before)
    one, other = (
        replace(mark.marks[P0], retention_ms=limits[0], retention_bytes=limits[1])
        for mark, limits in ((before, was), (after, now))
    )
    before, after = replace(before, marks={P0: one}), replace(after, marks={P0: other}, taken_ms=elapsed_ms)
    grounds = {ground.reason.code: ground for ground in compare(before, after)[0]}
    assert grounds.keys() & {"D09", "D17"} == {code}
    assert grounds[code].outcome is (Outcome.PASS if code == "D09" else Outcome.INCONCLUSIVE)


spans = st.tuples(st.integers(0, 300), st.integers(0, 300)).map(sorted)


def taken_anew(logs: Mapping[TopicPartition, Log], before: Fingerprint, sample: Sample) -> Fingerprint:
    """As an audit that passed leaves its look."""
    after = look(logs, before)
    spans, kept = renewal(before, after, sample)
    prints = {where: {**kept.get(where, {}), **logs[where].prints(spans.get(where, []))} for where in logs}
    return replace(after, prints=prints)


@given(
    spans,
    st.integers(0, 60),
    st.integers(0, 60),
    st.sampled_from([Sample(), Sample(0.3, 2, 25)]),
)
def test_a_renewed_look_is_a_whole_one(ends: list[int], more: int, retained: int, sample: Sample) -> None:
    before = look({P0: full(ends[1], start=ends[0])}, sample=sample)
    now = {P0: full(ends[1] + more, start=min(ends[0] + retained, ends[1])), TopicPartition("new", 0): full(more)}
    found, whole = taken_anew(now, before, sample), look(now, sample=sample)
    assert {where: dict(blocks) for where, blocks in found.prints.items()} == {
        where: whole.prints.get(where, {}) for where in found.prints
    }


def test_what_came_after_the_first_look_is_compared_once_a_gate_has_passed() -> None:
    """The second step cuts off everything that was written between the two gates."""
    first = look({P0: full(35)})
    cut = {P0: full(35, epoch=1)}
    assert {ground.reason.code for ground in compare(first, look(cut, first))[0]} == {"D10"}, "to the first look all is well"
    second = taken_anew({P0: full(90)}, first, Sample())
    grounds = {ground.reason.code: ground for ground in compare(second, look(cut, second))[0]}
    assert (grounds["D03"].outcome, grounds["D03"].count) == (Outcome.FAIL, 55)


def test_a_renewed_look_hashes_only_what_is_new() -> None:
    first = look({P0: full(35)})
    assert renewal(first, look({P0: full(90)}, first), Sample())[0] == {P0: [(30, 90)]}


def test_compaction_removes_and_never_changes() -> None:
    log = full(35, compacted=True)
    found, _ = judged(log, without(log, 3, 11))
    assert (found["D08"].outcome, found["D08"].count) == (Outcome.INCONCLUSIVE, 2)
    assert codes(log, replace(log, records={**log.records, 3: "other"})) == {"D02"}


def test_nothing_is_no_proof() -> None:
    grounds, health = compare(look({P0: Log()}), look({P0: Log()}))
    assert combine(grounds, [health], required=[Level.LOG]).outcome is Outcome.INCONCLUSIVE


def test_what_cannot_be_compared() -> None:
    before = look({P0: full(35)})
    for other in (replace(before, block=20), replace(before, cluster_id="other")):
        with pytest.raises(Refused):
            compare(before, other)


def test_through_json() -> None:
    before = look({P0: full(35), TopicPartition("u", 3): Log()})
    assert fingerprint.from_dict(json.loads(json.dumps(fingerprint.as_dict(before)))) == replace(
        before, prints={**before.prints, TopicPartition("u", 3): {}}
    )
    for damaged in ({}, {"version": 2}, {"version": 1}, {"version": 1, "partitions": [{}]}, {"version": 1, "partitions": 3}):
        with pytest.raises(Refused) as error:
            fingerprint.from_dict(damaged)
        assert error.value.reasons[0].code == "D00"


@settings(max_examples=200)
@given(spans, st.floats(0, 1), st.integers(1, 6), st.integers(0, 120))
def test_a_sample_is_aligned_ascending_and_within_the_log(ends: list[int], share: float, pieces: int, tail: int) -> None:
    mark = LogMark(*ends)
    found = stretches(mark, Sample(share, pieces, tail), BLOCK)
    for begin, end in found:
        assert mark.start <= begin < end <= mark.end
        assert begin == mark.start or begin % BLOCK == 0
        assert end == mark.end or end % BLOCK == 0 or share == 1
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(found))
    if mark.end > mark.start and (share == 1 or tail > 0):
        assert found[-1][1] == mark.end
        assert found[-1][0] <= max(mark.start, mark.end - tail)


def test_a_sample_of_no_sense_is_refused() -> None:
    for share, pieces, tail in ((1.1, 1, 0), (-0.1, 1, 0), (0.5, 0, 0), (0.5, 1, -1)):
        with pytest.raises(Refused):
            Sample(share, pieces, tail)


@settings(max_examples=300)
@given(
    spans,
    st.integers(0, 20),
    st.integers(0, 40),
    st.lists(st.integers(0, 320), max_size=3),
    st.lists(st.integers(0, 320), max_size=3),
    st.booleans(),
    st.sampled_from([Sample(), Sample(0.3, 2, 25)]),
)
def test_any_damage_is_found_and_none_is_invented(  # noqa: PLR0917
    ends: list[int], retained: int, more: int, gone: list[int], changed: list[int], compacted: bool, sample: Sample
) -> None:
    one = replace(full(ends[1], start=ends[0]), compacted=compacted)
    start = min(ends[0] + retained, ends[1])
    grown = full(ends[1] + more, start=start, compacted=compacted)
    other = without(replace(grown, records={**grown.records, **{at: "other" for at in changed if at in grown.records}}), *gone)
    before = look({P0: one}, sample=sample)
    grounds, health = compare(before, look({P0: other}, before))
    found = {ground.reason.code for ground in grounds}

    kept = [(begin, end) for begin, end in covered(one.mark, before.prints[P0], BLOCK) if begin >= start]
    compared = [offset for begin, end in kept for offset in range(begin, end)]
    lost = [offset for offset in compared if offset in gone]
    touched = {offset // BLOCK for offset in compared if offset in changed and offset not in gone}
    assert ("D01" in found) == (bool(lost) and not compacted)
    assert ("D08" in found) == (bool(lost) and compacted)
    assert ("D02" in found) == bool(touched - {offset // BLOCK for offset in lost})
    assert health.events == sum(end - begin for begin, end in kept if not any(begin <= at < end for at in (*gone, *changed)))
    assert ("D09" in found) == (start > ends[0])


# Committed offsets.

G = Reader("g", "t", 0)


def raw(offset: int, t_ms: int = 0) -> RawRecord:
    return RawRecord(7, offset, t_ms, b"", b"")


def tracks(*offsets: int | None, begin: int = 0, t_ms: int = 0) -> Tracks:
    found = Tracks.empty()
    for place, offset in enumerate(offsets, begin):
        when = t_ms + place
        record = OffsetRemoved(*G) if offset is None else OffsetCommitted(*G, offset, None, "", when)
        found.add(raw(place, when), record)
    return found


def commits(taken_ms: int, *offsets: int | None, begin: int = 0, members: int = 1, t_ms: int = 0) -> CommitLook:
    return CommitLook(taken_ms, tracks(*offsets, begin=begin, t_ms=t_ms).found, {"g": members})


def codes_of(before: CommitLook, after: CommitLook, end: int = 0) -> dict[str, Ground]:
    return {ground.reason.code: ground for ground in judge_commits(before, after, {P0: end}, Patience(1_000, 100))}


@given(st.lists(st.one_of(st.none(), st.integers(0, 5)), min_size=1, max_size=12), st.data())
def test_tracks_of_pieces_are_the_track_of_the_whole(offsets: list[int | None], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(offsets)), max_size=3)))
    joined = Tracks.empty()
    for begin, end in zip([0, *cuts], [*cuts, len(offsets)], strict=True):
        joined.join(tracks(*offsets[begin:end], begin=begin))
    assert joined.found == tracks(*offsets).found
    track = joined.found[G]
    values = [offset for offset in offsets if offset is not None]
    back = [1 for one, other in itertools.pairwise(values) if other < one]
    bare = itertools.groupby(enumerate(offsets), key=lambda row: row[1] is None)
    pieces = [[row[1] for row in rows] for removed, rows in bare if not removed]
    assert track.again_count == sum(later[0] > one[-1] for one, later in itertools.pairwise(pieces))  # type: ignore[operator]
    assert track.back_count == len(back)
    assert (track.first, track.last, track.count) == (offsets[0], offsets[-1], len(offsets))
    assert len(track.backs) == min(5, len(back))


def test_commits_that_advance_are_fine() -> None:
    assert codes_of(commits(500, 3, 5), commits(900, 5, 9, 12, begin=2), end=20) == {}
    assert codes_of(commits(500, 3, 5), commits(900), end=5) == {}, "nothing waited"


def test_a_commit_that_goes_back() -> None:
    found = codes_of(commits(500, 3, 5), commits(900, 4, 9, 7, begin=2))
    ground = found["D11"]
    assert (ground.outcome, ground.count) == (Outcome.FAIL, 2)
    assert [(case.first, case.last, case.group) for case in ground.examples] == [(4, 4, "g"), (7, 8, "g")]
    assert "record 2 of" in ground.examples[0].note


def test_only_steps_count_not_what_was_removed_between() -> None:
    found = codes_of(commits(500, 5), commits(900, None, begin=1))
    assert (found["D12"].outcome, found["D12"].examples[0].first) == (Outcome.INCONCLUSIVE, 5)
    assert codes_of(commits(500, 5, None), commits(900, 3, begin=2)) == {}, "it was removed before the step"
    assert codes_of(commits(500, 5), commits(900, None, 5, begin=1)) == {}, "set again where it was"


@pytest.mark.parametrize("since", [(None, 3), (9, None, 3), (9, None, None, 3)])
def test_a_removal_hides_no_step_back(since: tuple[int | None, ...]) -> None:
    ground = codes_of(commits(500, 5), commits(900, *since, begin=1))["D11"]
    assert (ground.outcome, ground.count, ground.examples[0].first) == (Outcome.FAIL, 1, 3)


@pytest.mark.parametrize("since", [(None, 90), (9, None, 90)])
def test_a_removal_and_a_place_further_on(since: tuple[int | None, ...]) -> None:
    """As after a reset to the end of the log: what lies between is read by nobody."""
    ground = codes_of(commits(500, 5), commits(900, *since, begin=1))["D12"]
    assert ground.outcome is Outcome.INCONCLUSIVE
    assert "set again elsewhere" in ground.reason.text
    assert ground.examples[0].last == 89


def test_offsets_of_groups_that_nobody_uses_expire() -> None:
    idle = commits(5_000, 5, members=0)
    ground = codes_of(idle, commits(9_000, None, begin=1, members=0))["D12"]
    assert ground.outcome is Outcome.PASS
    for before, after in (
        (commits(5_000, 5, members=2), commits(9_000, None, begin=1, members=0)),
        (idle, commits(9_000, None, begin=1, members=1)),
        (idle, commits(9_000, 6, None, begin=1, members=0)),
        (commits(5_000, 5, members=0, t_ms=4_500), commits(9_000, None, begin=1, members=0)),
    ):
        assert codes_of(before, after)["D12"].outcome is Outcome.INCONCLUSIVE


def test_its_own_topic_is_compared_too() -> None:
    """Truncated, or made anew, it tells nothing more of what was committed."""
    where = TopicPartition("__consumer_offsets", 0)
    mark = LogMark(0, 500_000, 3, "id", compacted=True)
    before = replace(commits(500, 5), marks={where: mark})
    for now, code in (
        ({where: replace(mark, end=20)}, "D03"),
        ({where: replace(mark, leader_epoch=2)}, "D04"),
        ({}, "D05"),
        ({where: replace(mark, topic_id="other")}, "D06"),
    ):
        assert codes_of(before, replace(commits(900, 6, begin=1), marks=now))[code].outcome is Outcome.FAIL
    grown = {where: replace(mark, end=500_009, leader_epoch=4)}
    assert codes_of(before, replace(commits(900, 6, begin=1), marks=grown)) == {}


def test_a_group_that_stands_still_although_records_wait() -> None:
    before = commits(500, 5, t_ms=400)
    for after in (commits(900), commits(900, 5, begin=1)):
        ground = codes_of(before, after, end=20)["D13"]
        assert (ground.outcome, ground.examples[0].count) == (Outcome.INCONCLUSIVE, 15)
    assert codes_of(before, commits(900, 6, begin=1), end=20) == {}
    assert codes_of(before, commits(550), end=20) == {}, "too early to say"
    assert codes_of(before, commits(900, members=0), end=20).keys() == {"D13"}, "thrown out, all of them"
    nobody = commits(500, 5, t_ms=400, members=0)
    assert codes_of(nobody, commits(900), end=20).keys() == {"D13"}, "it has members now"
    assert codes_of(nobody, commits(900, members=0), end=20) == {}, "nobody is there to read"
    assert codes_of(commits(500, 5, t_ms=-900), commits(900), end=20) == {}, "it stood still long before"


def test_members_come_from_the_groups_states() -> None:
    found = Tracks.empty()
    member = GroupMember("m", None, "c", "/h", 1, 1, ())
    found.add(raw(0), GroupState("g", "consumer", 1, None, None, None, (member,)))
    assert found.members == {"g": 1}
    found.add(raw(1), GroupState("g", "consumer", 2, None, None, None, ()))
    assert found.members == {"g": 0}


def test_a_member_of_kip_848_that_left_is_one_no_more() -> None:
    found = Tracks.empty()
    found.add(raw(0), ConsumerAssignment("g", "a", 1, ()))
    found.add(raw(1), ConsumerAssignment("g", "b", 1, ()))
    there = CommitLook(1, {}, {}, consumers=found.consumers)
    left = Tracks.empty()
    left.add(raw(2), ConsumerMemberRemoved("g", "a"))
    assert there.joined(CommitLook(2, {}, {}, consumers=left.consumers)).has_members("g")
    left.add(raw(3), ConsumerMemberRemoved("g", "b"))
    assert not there.joined(CommitLook(2, {}, {}, consumers=left.consumers)).has_members("g")
    assert there.has_members("g"), "that look has not changed"


def test_a_look_is_kept_and_read_again() -> None:
    mark = {TopicPartition("__consumer_offsets", 0): LogMark(0, 9, 1, "id", retention_ms=-1)}
    one = replace(commits(500, 3, 5), marks=mark, ends={0: 9}, consumers={"h": {"m": True}})
    document = json.loads(json.dumps(commit_tracks.as_dict(one)))
    again = commit_tracks.from_dict(document)
    assert (again.marks, again.ends, again.consumers, again.members) == (one.marks, one.ends, one.consumers, one.members)
    assert codes_of(again, commits(900, None, 4, begin=2)).keys() >= {"D05", "D11"}
    with pytest.raises(Refused, match="version 1"):
        commit_tracks.from_dict({**document, "version": 1})


def test_workers_bring_tracks_home_as_json() -> None:
    found = tracks(5, None, 9, 4, None)
    assert Tracks.from_dict(json.loads(json.dumps(found.as_dict()))) == found


def test_unreadable_records_leave_a_doubt() -> None:
    (ground,) = judge_commits(commits(500), replace(commits(900), refused=3), {})
    assert (ground.reason.code, ground.outcome, ground.count) == ("D14", Outcome.INCONCLUSIVE, 3)


def test_a_step_tells_where_to_look() -> None:
    (step,) = tracks(5, 4).found[G].backs
    assert step == Step(5, 4, 1, 1)
    assert Track(1, 2, 0, 0).back_to(Track(3, 3, 0, 0)) == ()
    assert commit_tracks.Reader("g", "t", 0) == G
