"""Logs before and after: every kind of damage is distinguished from every kind of lawful change, on logs small enough to know the truth."""

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

from airflow_provider_kmigrate.core.audit import fingerprint
from airflow_provider_kmigrate.core.audit.fingerprint import (
    Fingerprint,
    LogSample,
    Print,
    block_spans,
    compare,
    plan_renewal,
    select_stretches,
    spans_to_hash_again,
)
from airflow_provider_kmigrate.core.audit.verdict import AuditFinding, AuditOutcome, Level, combine
from airflow_provider_kmigrate.core.events.model import LogMark, TopicPartition
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
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


def observe(
    logs: Mapping[TopicPartition, Log], before: Fingerprint | None = None, sample: LogSample | None = None
) -> Fingerprint:
    marks = {where: log.mark for where, log in logs.items()}
    if before is None:
        spans = {where: select_stretches(mark, sample or LogSample(), BLOCK) for where, mark in marks.items()}
    else:
        spans = spans_to_hash_again(before, marks)
    prints = {where: logs[where].prints(found) for where, found in spans.items()}
    return Fingerprint(1_000 if before else 0, "c", marks, prints, BLOCK)


def judged(one: Log, other: Log | None, sample: LogSample | None = None) -> tuple[dict[object, AuditFinding], int]:
    before = observe({P0: one}, sample=sample)
    findings, health = compare(before, observe({P0: other} if other else {}, before))
    return {finding.reason.cause: finding for finding in findings}, health.events


def causes(one: Log, other: Log | None) -> set[object]:
    return judged(one, other)[0].keys() - {AuditCause.UNCHANGED}


def without(log: Log, *offsets: int) -> Log:
    return replace(log, records={offset: content for offset, content in log.records.items() if offset not in offsets})


def test_the_same_and_what_came_since() -> None:
    found, equal = judged(full(35), full(50))
    assert found.keys() == {AuditCause.UNCHANGED}
    assert equal == 35
    assert "every offset" in found[AuditCause.UNCHANGED].reason.text


def test_a_record_that_is_gone() -> None:
    found, equal = judged(full(35), without(full(35), 12, 13))
    finding = found[AuditCause.LOG_SHRUNK]
    assert (finding.outcome, finding.count, finding.level) == (AuditOutcome.FAIL, 2, Level.LOG)
    (case,) = finding.examples
    assert (case.topic, case.partition, case.first, case.last, case.count) == ("t", 0, 10, 19, 2)
    assert equal == 25


def test_a_record_with_other_contents() -> None:
    changed = full(35)
    found, _ = judged(changed, replace(changed, records={**changed.records, 3: "other"}))
    assert found[AuditCause.LOG_CHANGED].outcome is AuditOutcome.FAIL
    assert (found[AuditCause.LOG_CHANGED].examples[0].first, found[AuditCause.LOG_CHANGED].examples[0].last) == (0, 9)


def test_two_records_that_changed_places() -> None:
    log = full(35)
    assert causes(log, replace(log, records={**log.records, 3: "v4", 4: "v3"})) == {AuditCause.LOG_CHANGED}


def test_a_log_that_was_cut_off() -> None:
    found, equal = judged(full(35), full(22))
    assert found.keys() - {AuditCause.UNCHANGED} == {AuditCause.LOG_TRUNCATED}
    assert (
        found[AuditCause.LOG_TRUNCATED].count,
        found[AuditCause.LOG_TRUNCATED].examples[0].first,
        found[AuditCause.LOG_TRUNCATED].examples[0].last,
    ) == (13, 22, 34)
    assert equal == 20


def test_a_log_that_was_cut_off_and_written_on() -> None:
    """As after an unclean election: the end went forward, and offsets hold other records."""
    refilled = replace(full(40), records={offset: f"w{offset}" if offset >= 22 else f"v{offset}" for offset in range(40)})
    assert causes(full(35), refilled) == {AuditCause.LOG_CHANGED}


def test_an_epoch_that_went_back() -> None:
    assert causes(full(35, epoch=7), full(35, epoch=6)) == {AuditCause.EPOCH_WENT_BACK}
    assert causes(replace(full(35), epoch=7), replace(full(35), epoch=9)) == set()


def test_partitions_that_are_gone_new_or_unreadable() -> None:
    assert causes(full(35), None) == {AuditCause.PARTITIONS_GONE}
    assert causes(full(35), replace(full(35), topic_id="other")) == {AuditCause.TOPIC_RECREATED}
    before = observe({P0: full(35)})
    after = replace(before, marks={P0: LogMark(unread="no leader")})
    for one, other in ((before, after), (after, before)):
        finding, _ = compare(one, other)[0][0], None
        assert (finding.reason.cause, finding.outcome) == (AuditCause.LOG_UNREAD, AuditOutcome.INCONCLUSIVE)
    assert compare(before, replace(observe({P0: full(35, topic_id=None)}, before)))[1].events == 35, "an unknown id is none"


def test_retention_is_named_and_left_out() -> None:
    found, equal = judged(full(35), full(35, start=12))
    assert (found[AuditCause.RETENTION].outcome, found[AuditCause.RETENTION].count) == (AuditOutcome.PASS, 12)
    assert found.keys() == {AuditCause.RETENTION, AuditCause.UNCHANGED}
    assert equal == 15, "the block that it reached is left out too"


def test_a_log_that_retention_emptied_shows_nothing() -> None:
    before = observe({P0: full(35)})
    findings, health = compare(before, observe({P0: full(60, start=50)}, before))
    assert {finding.reason.cause for finding in findings} == {AuditCause.RETENTION, AuditCause.NOTHING_TO_COMPARE}
    assert health.events == 0
    verdict = combine(findings, [health])
    assert verdict.headline.startswith("INCONCLUSIVE: [L14] Retention removed everything"), verdict.headline
    assert combine(findings, [health]).outcome is AuditOutcome.INCONCLUSIVE


DAY = 86_400_000


@pytest.mark.parametrize(
    ("was", "now", "elapsed_ms", "start", "cause"),
    [
        ((DAY, -1), (DAY, -1), 1_000, 12, AuditCause.RETENTION),  # old records are removed at any time
        ((DAY, -1), (DAY, -1), DAY, 35, AuditCause.RETENTION),
        ((DAY, -1), (DAY, -1), DAY - 1, 35, AuditCause.START_UNEXPLAINED),  # also what had just been written
        ((DAY, 10), (DAY, 10), 1_000, 35, AuditCause.RETENTION),  # so many bytes may have come
        ((-1, -1), (-1, -1), DAY, 12, AuditCause.START_UNEXPLAINED),
        ((-1, -1), (DAY, -1), 2 * DAY, 12, AuditCause.START_UNEXPLAINED),
        ((DAY, -1), (1, -1), 2 * DAY, 12, AuditCause.START_UNEXPLAINED),
        ((-1, 10), (-1, 10), 1_000, 35, AuditCause.RETENTION),
        ((None, None), (DAY, -1), 1_000, 35, AuditCause.RETENTION),  # not known
    ],
)
def test_what_retention_cannot_have_removed(
    was: tuple[int, int], now: tuple[int, int], elapsed_ms: int, start: int, cause: AuditCause
) -> None:
    before = observe({P0: full(35)})
    after = observe({P0: full(60, start=start)}, before)
    one, other = (
        replace(mark.marks[P0], retention_ms=limits[0], retention_bytes=limits[1])
        for mark, limits in ((before, was), (after, now))
    )
    before, after = replace(before, marks={P0: one}), replace(after, marks={P0: other}, taken_ms=elapsed_ms)
    findings = {finding.reason.cause: finding for finding in compare(before, after)[0]}
    assert findings.keys() & {AuditCause.RETENTION, AuditCause.START_UNEXPLAINED} == {cause}
    assert findings[cause].outcome is (AuditOutcome.PASS if cause == AuditCause.RETENTION else AuditOutcome.INCONCLUSIVE)


@pytest.mark.parametrize(
    ("newest_ms", "now_ms", "cause"),
    [
        (-40 * 60_000, 25 * 60_000, AuditCause.RETENTION),  # an hour's batch, 40 minutes old at the observation; kept for an hour
        (-40 * 60_000, 19 * 60_000, AuditCause.START_UNEXPLAINED),
        (-1, 3_600_000, AuditCause.RETENTION),
        (-1, 3_599_998, AuditCause.START_UNEXPLAINED),
        (None, 3_599_999, AuditCause.START_UNEXPLAINED),  # not reported: as if it had just been written
        (None, 3_600_000, AuditCause.RETENTION),
        (60_000, 3_600_000, AuditCause.START_UNEXPLAINED),  # by the producer's own clock
    ],
)
def test_a_log_that_expired_whole_is_as_old_as_its_newest_record(newest_ms: int | None, now_ms: int, cause: AuditCause) -> None:
    before = observe({P0: full(35)})
    after = observe({P0: full(60, start=35)}, before)
    limits = {"retention_ms": 3_600_000, "retention_bytes": -1}
    before = replace(before, marks={P0: replace(before.marks[P0], newest_ms=newest_ms, **limits)}, taken_ms=0)
    after = replace(after, marks={P0: replace(after.marks[P0], **limits)}, taken_ms=now_ms)
    before = fingerprint.from_dict(json.loads(json.dumps(fingerprint.as_dict(before))))
    assert {finding.reason.cause for finding in compare(before, after)[0]} & {
        AuditCause.RETENTION,
        AuditCause.START_UNEXPLAINED,
    } == {cause}


spans = st.tuples(st.integers(0, 300), st.integers(0, 300)).map(sorted)


def taken_again(logs: Mapping[TopicPartition, Log], before: Fingerprint, sample: LogSample) -> Fingerprint:
    """As an audit that passed leaves its observation."""
    after = observe(logs, before)
    spans, kept = plan_renewal(before, after, sample)
    prints = {where: {**kept.get(where, {}), **logs[where].prints(spans.get(where, []))} for where in logs}
    return replace(after, prints=prints)


@given(
    spans,
    st.integers(0, 60),
    st.integers(0, 60),
    st.sampled_from([LogSample(), LogSample(0.3, 2, 25)]),
)
def test_a_renewed_observation_is_a_whole_one(ends: list[int], more: int, retained: int, sample: LogSample) -> None:
    before = observe({P0: full(ends[1], start=ends[0])}, sample=sample)
    now = {P0: full(ends[1] + more, start=min(ends[0] + retained, ends[1])), TopicPartition("new", 0): full(more)}
    found, whole = taken_again(now, before, sample), observe(now, sample=sample)
    assert {where: dict(blocks) for where, blocks in found.prints.items()} == {
        where: whole.prints.get(where, {}) for where in found.prints
    }


def test_what_came_after_the_first_observation_is_compared_once_a_gate_has_passed() -> None:
    """The second step cuts off everything that was written between the two gates."""
    first = observe({P0: full(35)})
    cut = {P0: full(35, epoch=1)}
    assert {finding.reason.cause for finding in compare(first, observe(cut, first))[0]} == {AuditCause.UNCHANGED}, (
        "to the first observation all is well"
    )
    second = taken_again({P0: full(90)}, first, LogSample())
    findings = {finding.reason.cause: finding for finding in compare(second, observe(cut, second))[0]}
    assert (findings[AuditCause.LOG_TRUNCATED].outcome, findings[AuditCause.LOG_TRUNCATED].count) == (AuditOutcome.FAIL, 55)


def test_a_renewed_observation_hashes_only_what_is_new() -> None:
    first = observe({P0: full(35)})
    assert plan_renewal(first, observe({P0: full(90)}, first), LogSample())[0] == {P0: [(30, 90)]}


def test_compaction_removes_and_never_changes() -> None:
    """Half of the blocks are whole: those, the end and the epoch are compared, and a gate passes."""
    log = full(35, compacted=True)
    found, equal = judged(log, without(log, 3, 11))
    assert (found[AuditCause.COMPACTED].outcome, found[AuditCause.COMPACTED].count, equal) == (AuditOutcome.PASS, 2, 15)
    assert "42.9 % of the offsets compared" in found[AuditCause.UNCHANGED].reason.text
    findings, health = compare(before := observe({P0: log}), observe({P0: without(log, 3, 11)}, before))
    assert combine(findings, [health]).outcome is AuditOutcome.PASS
    assert causes(log, replace(log, records={**log.records, 3: "other"})) == {AuditCause.LOG_CHANGED}
    assert causes(log, replace(without(log, 3, 22), end=22)) >= {AuditCause.LOG_TRUNCATED}
    assert causes(replace(log, epoch=7), replace(without(log, 3), epoch=6)) >= {AuditCause.EPOCH_WENT_BACK}


@pytest.mark.parametrize("compacted", [True, False])
def test_a_clean_up_that_was_changed_explains_nothing(*, compacted: bool) -> None:
    """As if a topic's setting is lost on the way: then records go that were to be kept."""
    log = full(35, compacted=compacted)
    found, _ = judged(log, replace(without(log, 3, 11), compacted=not compacted))
    assert (found[AuditCause.POLICY_CHANGED].outcome, found[AuditCause.POLICY_CHANGED].count) == (AuditOutcome.INCONCLUSIVE, 2)
    assert causes(log, replace(log, compacted=not compacted)) == set()


def test_a_topic_that_is_not_asked_for_any_more_is_left_out_and_named() -> None:
    """Deleted on purpose, and taken out of the file: then it is no loss. One that is still named is."""
    other = TopicPartition("gone", 0)
    before = observe({P0: full(35), other: full(20)})
    after = observe({P0: full(35)}, before)
    by_topics = {
        topics: {finding.reason.cause: finding for finding in compare(before, after, topics)[0]}
        for topics in (None, ("t",), ("t", "gone"))
    }
    assert by_topics[None].keys() == by_topics["t", "gone"].keys() == {AuditCause.PARTITIONS_GONE, AuditCause.UNCHANGED}
    found = by_topics["t",]
    assert found.keys() == {AuditCause.UNCHANGED, AuditCause.NOT_REQUESTED}
    assert (found[AuditCause.NOT_REQUESTED].outcome, found[AuditCause.NOT_REQUESTED].examples[0].topic) == (
        AuditOutcome.PASS,
        "gone",
    )
    assert "every offset compared" in found[AuditCause.UNCHANGED].reason.text
    assert compare(before, after, ("t",))[1].events == 35


def test_nothing_is_no_proof() -> None:
    findings, health = compare(observe({P0: Log()}), observe({P0: Log()}))
    assert combine(findings, [health]).outcome is AuditOutcome.INCONCLUSIVE


def test_what_cannot_be_compared() -> None:
    before = observe({P0: full(35)})
    for other in (replace(before, block=20), replace(before, cluster_id="other")):
        with pytest.raises(Refused):
            compare(before, other)


def test_through_json() -> None:
    before = observe({P0: full(35), TopicPartition("u", 3): Log()})
    assert fingerprint.from_dict(json.loads(json.dumps(fingerprint.as_dict(before)))) == replace(
        before, prints={**before.prints, TopicPartition("u", 3): {}}
    )
    for other in ({}, {"version": 1}):
        with pytest.raises(Refused) as error:
            fingerprint.from_dict(other)
        assert error.value.reasons[0].cause == AuditCause.SNAPSHOTS_DIFFER
    for damaged in ({"version": 2}, {"version": 2, "prints": 3}, {"version": 2, "prints": [[1]]}):
        with pytest.raises((KeyError, TypeError, ValueError)):
            fingerprint.from_dict(damaged)


@settings(max_examples=200)
@given(spans, st.floats(0, 1), st.integers(1, 6), st.integers(0, 120))
def test_a_sample_is_aligned_ascending_and_within_the_log(ends: list[int], share: float, pieces: int, tail: int) -> None:
    mark = LogMark(*ends)
    found = select_stretches(mark, LogSample(share, pieces, tail), BLOCK)
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
            LogSample(share, pieces, tail)


@settings(max_examples=300)
@given(
    spans,
    st.integers(0, 20),
    st.integers(0, 40),
    st.lists(st.integers(0, 320), max_size=3),
    st.lists(st.integers(0, 320), max_size=3),
    st.booleans(),
    st.sampled_from([LogSample(), LogSample(0.3, 2, 25)]),
)
def test_any_damage_is_found_and_none_is_invented(  # noqa: PLR0917
    ends: list[int], retained: int, more: int, gone: list[int], changed: list[int], compacted: bool, sample: LogSample
) -> None:
    one = replace(full(ends[1], start=ends[0]), compacted=compacted)
    start = min(ends[0] + retained, ends[1])
    grown = full(ends[1] + more, start=start, compacted=compacted)
    other = without(replace(grown, records={**grown.records, **{at: "other" for at in changed if at in grown.records}}), *gone)
    before = observe({P0: one}, sample=sample)
    findings, health = compare(before, observe({P0: other}, before))
    found = {finding.reason.cause for finding in findings}

    kept = [(begin, end) for begin, end in block_spans(one.mark, before.prints[P0], BLOCK) if begin >= start]
    compared = [offset for begin, end in kept for offset in range(begin, end)]
    lost = [offset for offset in compared if offset in gone]
    touched = {offset // BLOCK for offset in compared if offset in changed and offset not in gone}
    assert (AuditCause.LOG_SHRUNK in found) == (bool(lost) and not compacted)
    assert (AuditCause.COMPACTED in found) == (bool(lost) and compacted)
    assert (AuditCause.LOG_CHANGED in found) == bool(touched - {offset // BLOCK for offset in lost})
    assert health.events == sum(end - begin for begin, end in kept if not any(begin <= at < end for at in (*gone, *changed)))
    assert (AuditCause.RETENTION in found) == (start > ends[0])
