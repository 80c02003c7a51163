"""Compares logs before a step and after it: equal, lost, changed, truncated; without any change in a client (level L0).

Each partition's log is cut into blocks at multiples of a fixed number of offsets. A block's print is how many records it holds
and an order-free hash of them, offsets and times included: equal prints mean equal records (two different blocks agree with a
chance of about 2^-64). The fixed cuts keep blocks comparable when retention moves a log's beginning: blocks it reached are named
and left out, the others stay.

Compaction is no loss, so a block of a compacted topic may hold fewer records afterwards, and then shows nothing: it is named and
left out, while the log's end, its epoch and its whole blocks are compared as usual. Reads are uncommitted: an aborted
transaction's records are in the log too, and do not depend on the time of reading.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, NamedTuple

from airflow_provider_kmigrate.core.audit.verdict import AuditFinding, AuditOutcome, Level, LevelHealth
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.events.model import LogMark, TopicPartition
from airflow_provider_kmigrate.core.ledger.facts import Case
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from airflow_provider_kmigrate.core.shared.text import Count, count_of
from airflow_provider_kmigrate.exceptions import Refused

BLOCK: Final = 10_000


class Print(NamedTuple):
    """The print of one block: its number of records, the exclusive-or of their 64-bit hashes, the sums of the hashes' halves."""

    records: int
    xor: int = 0
    low: int = 0
    high: int = 0


@dataclass(frozen=True, slots=True)
class LogSample:
    """The hashed part of each log: the last `tail` offsets, which an unclean election would truncate, and `share` of the rest.

    The rest is taken in `pieces` evenly spaced stretches. `share` 1 is everything.
    """

    share: float = 1.0
    pieces: int = 4
    tail: int = 100_000

    def __post_init__(self) -> None:
        if not (0.0 <= self.share <= 1.0 and self.pieces >= 1 and self.tail >= 0):
            text = f"A sample is a share from 0 to 1, in one piece or more, and a tail: {self}."
            raise Refused.because(Reason.of(AuditCause.SAMPLE_WRONG, text))


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """One observation of the logs. `prints` are by partition and number of the block (offset // `block`)."""

    taken_ms: int
    cluster_id: str
    marks: Mapping[TopicPartition, LogMark]
    prints: Mapping[TopicPartition, Mapping[int, Print]] = field(default_factory=dict)
    block: int = BLOCK

    @property
    def records(self) -> int:
        """How many records were hashed, over all partitions."""
        return sum(block_print.records for blocks in self.prints.values() for block_print in blocks.values())


def select_stretches(mark: LogMark, sample: LogSample, block: int) -> list[tuple[int, int]]:
    """The stretches of a log to hash, ascending, as from .. before. Each begins at the log's start or at a block's start."""
    if mark.start >= mark.end:
        return []
    if sample.share >= 1.0:
        return [(mark.start, mark.end)]
    tail = max(mark.start, (mark.end - sample.tail) // block * block)
    size = round((tail - mark.start) * sample.share / sample.pieces)
    selected = [(tail, mark.end)]
    for piece in reversed(range(sample.pieces)) if size else ():
        begin = max(mark.start, (mark.start + piece * (tail - mark.start) // sample.pieces) // block * block)
        selected.append((begin, min(-(-(begin + size) // block) * block, selected[-1][0])))
    return [(begin, end) for begin, end in reversed(selected) if begin < end]


def block_spans(mark: LogMark, blocks: Iterable[int], block: int) -> Iterator[tuple[int, int]]:
    """The offsets from .. before of each of the blocks, as far as they lay within the log."""
    for number in sorted(blocks):
        yield max(mark.start, number * block), min(mark.end, (number + 1) * block)


def spans_to_hash_again(
    before: Fingerprint, marks: Mapping[TopicPartition, LogMark]
) -> dict[TopicPartition, list[tuple[int, int]]]:
    """What to hash again, by the current logs: the blocks of `before` that begin within them; cut where they end."""
    spans: dict[TopicPartition, list[tuple[int, int]]] = {}
    for topic_partition, block_prints in before.prints.items():
        mark, now = before.marks[topic_partition], marks.get(topic_partition, LogMark())
        for begin, end in block_spans(mark, block_prints, before.block):
            if now.start <= begin < now.end:
                _append_span(spans.setdefault(topic_partition, []), (begin, min(end, now.end)))
    return spans


def plan_renewal(
    before: Fingerprint, after: Fingerprint, sample: LogSample
) -> tuple[dict[TopicPartition, list[tuple[int, int]]], dict[TopicPartition, dict[int, Print]]]:
    """A complete observation by the marks of `after`, so that the next one compares what came since `before`.

    Returns what is left to hash for it, and the prints of those blocks that `after` has hashed as they are now.
    """
    spans: dict[TopicPartition, list[tuple[int, int]]] = {}
    reusable_prints: dict[TopicPartition, dict[int, Print]] = {}
    for topic_partition, mark in after.marks.items():
        old_mark = before.marks.get(topic_partition, LogMark())
        new_prints = after.prints.get(topic_partition, {}) if topic_partition in before.marks else {}
        for number in _block_numbers(select_stretches(mark, sample, after.block), after.block):
            (span,) = block_spans(mark, (number,), after.block)
            if number in new_prints and span == next(block_spans(old_mark, (number,), after.block)):
                reusable_prints.setdefault(topic_partition, {})[number] = new_prints[number]
            else:
                _append_span(spans.setdefault(topic_partition, []), span)
    return spans, reusable_prints


def _block_numbers(spans: Iterable[tuple[int, int]], block: int) -> Iterator[int]:
    for begin, end in spans:
        yield from range(begin // block, -(-end // block))


def _append_span(spans: list[tuple[int, int]], span: tuple[int, int]) -> None:
    if spans and spans[-1][1] == span[0]:
        spans[-1] = (spans[-1][0], span[1])
    else:
        spans.append(span)


VERSION: Final = 2
_CASES: Final = 20


def compare(
    before: Fingerprint, after: Fingerprint, topics: Collection[str] | None = None
) -> tuple[tuple[AuditFinding, ...], LevelHealth]:
    """What became of the logs of `before`, as `core.audit.verdict.combine` takes it.

    `after` must have hashed what `remaining` says. `topics`: those that are still asked for; None: all of `before`. Raises
    `Refused` if the two cannot be compared.
    """
    if (before.cluster_id, before.block) != (after.cluster_id, after.block):
        before_text, after_text = (
            f"{fingerprint.cluster_id} in blocks of {fingerprint.block}" for fingerprint in (before, after)
        )
        text = f"Fingerprints of {before_text} and of {after_text} cannot be compared."
        raise Refused.because(Reason.of(AuditCause.SNAPSHOTS_DIFFER, text))
    log_findings = _Findings(then_ms=before.taken_ms, now_ms=after.taken_ms)
    for topic_partition, mark in before.marks.items():
        if topics is not None and topic_partition.topic not in topics:
            log_findings.add(AuditCause.NOT_REQUESTED, topic_partition, (mark.start, mark.end), "not asked for any more")
    before = _without_topics(before, {case.topic for case in log_findings.cases.get(AuditCause.NOT_REQUESTED, ())})
    for topic_partition, mark in sorted(before.marks.items()):
        if _compare_marks(topic_partition, mark, after.marks.get(topic_partition), log_findings):
            _compare_blocks(topic_partition, before, after, log_findings)
    return (*log_findings.build_findings(), *log_findings.report_compared(before)), LevelHealth(Level.LOG, log_findings.equal)


def _without_topics(fingerprint: Fingerprint, left_out: Collection[str]) -> Fingerprint:
    marks = {
        topic_partition: mark for topic_partition, mark in fingerprint.marks.items() if topic_partition.topic not in left_out
    }
    prints = {topic_partition: blocks for topic_partition, blocks in fingerprint.prints.items() if topic_partition in marks}
    return replace(fingerprint, marks=marks, prints=prints)


def compare_marks(before: Mapping[TopicPartition, LogMark], after: Mapping[TopicPartition, LogMark]) -> list[AuditFinding]:
    """What became of logs that are not hashed, such as those of `__consumer_offsets`: gone, recreated, truncated."""
    log_findings = _Findings()
    for topic_partition, mark in sorted(before.items()):
        _compare_marks(topic_partition, mark, after.get(topic_partition), log_findings)
    return list(log_findings.build_findings())


@dataclass(slots=True)
class _Findings:
    """Cases by their cause."""

    cases: dict[AuditCause, list[Case]] = field(default_factory=dict)
    equal: int = 0
    then_ms: int | None = None  # when the two observations were made
    now_ms: int | None = None

    def add(
        self, cause: AuditCause, topic_partition: TopicPartition, span: tuple[int, int], note: str, count: int | None = None
    ) -> None:
        """`span` is from .. before; `count`: of records, if it is not that of the offsets."""
        begin, end = span
        case = Case(*topic_partition, begin, max(begin, end - 1), end - begin if count is None else count, note=note)
        self.cases.setdefault(cause, []).append(case)

    def build_findings(self) -> Iterator[AuditFinding]:
        """One finding for each cause that has cases."""
        for outcome, texts in _TEXTS.items():
            for cause, text in texts.items():
                if cases := self.cases.get(cause):
                    yield _build_finding(outcome, cause, text, cases)

    def report_compared(self, before: Fingerprint) -> Iterator[AuditFinding]:
        """Reports how much is unchanged; or that retention has removed everything that could have been compared."""
        if self.equal:
            yield self._report_unchanged(before)
        elif self.cases.keys() & {AuditCause.RETENTION, AuditCause.START_UNEXPLAINED}:
            text = "Retention removed everything that the fingerprint before the step had hashed; nothing was compared."
            yield AuditFinding.of(AuditOutcome.INCONCLUSIVE, AuditCause.NOTHING_TO_COMPARE, text, Level.LOG)

    def _report_unchanged(self, before: Fingerprint) -> AuditFinding:
        offsets = sum(mark.end - mark.start for mark in before.marks.values())
        hashed = sum(
            end - begin
            for topic_partition, blocks in before.prints.items()
            for begin, end in block_spans(before.marks[topic_partition], blocks, before.block)
        ) - sum(case.last - case.first + 1 for case in self.cases.get(AuditCause.COMPACTED, ()))
        share = f"{100 * hashed / offsets:.3g} % of the offsets" if hashed < offsets else "every offset"
        text = f"Unchanged: {count_of(self.equal, 'record')} of {count_of(len(before.prints), 'partition')} ({share} compared)."
        return AuditFinding.of(AuditOutcome.PASS, AuditCause.UNCHANGED, text, Level.LOG, self.equal)


def _build_finding(outcome: AuditOutcome, cause: AuditCause, text: str, cases: Sequence[Case]) -> AuditFinding:
    total, partitions = sum(case.count for case in cases), len({(case.topic, case.partition) for case in cases})
    examples = tuple(sorted(cases, key=lambda case: case.sort_key)[:_CASES])
    return AuditFinding.of(
        outcome, cause, text.format(total=Count(total), partitions=Count(partitions)), Level.LOG, total, examples
    )


_TEXTS: Final = {
    AuditOutcome.FAIL: {
        AuditCause.LOG_SHRUNK: "No longer in the log: {total:record} of {partitions:partition}.",
        AuditCause.LOG_CHANGED: "Records of {partitions:partition} changed: other records have their offsets now.",
        AuditCause.LOG_TRUNCATED: "The logs of {partitions:partition} end earlier than before: {total:acknowledged offset was|acknowledged offsets were} truncated.",
        AuditCause.EPOCH_WENT_BACK: "The leader epoch of {partitions:partition} went back.",
        AuditCause.PARTITIONS_GONE: "{partitions:partition is|partitions are} gone.",
        AuditCause.TOPIC_RECREATED: "Created again, with other ids: the topics of {partitions:partition}.",
    },
    AuditOutcome.INCONCLUSIVE: {
        AuditCause.LOG_UNREAD: "{partitions:partition} could not be read.",
        AuditCause.START_UNEXPLAINED: "The beginning of {partitions:log} is gone, {total:offset}, and their retention does not explain it.",
        AuditCause.POLICY_CHANGED: "Gone: {total:record} of {partitions:partition}, whose cleanup.policy was changed to or from compaction.",
    },
    AuditOutcome.PASS: {
        AuditCause.COMPACTED: "Gone: {total:record} of {partitions:compacted partition}; compaction removes records, so their blocks were not compared.",
        AuditCause.RETENTION: "Retention removed the beginning of {partitions:log}; {total:offset was|offsets were} not compared.",
        AuditCause.NOT_REQUESTED: "Not compared: {partitions:partition} of the earlier fingerprint, of topics that are no longer requested.",
    },
}


def _compare_marks(topic_partition: TopicPartition, mark: LogMark, now: LogMark | None, log_findings: _Findings) -> bool:
    """Returns whether it is the same log, read both times, so that its blocks can be compared too."""
    whole = mark.start, mark.end
    if mark.unread or (now and now.unread):
        log_findings.add(AuditCause.LOG_UNREAD, topic_partition, whole, mark.unread or (now.unread if now else ""))
    elif now is None:
        log_findings.add(AuditCause.PARTITIONS_GONE, topic_partition, whole, "no such partition")
    elif mark.topic_id and now.topic_id and mark.topic_id != now.topic_id:
        log_findings.add(
            AuditCause.TOPIC_RECREATED, topic_partition, whole, f"topic id {now.topic_id} instead of {mark.topic_id}"
        )
    else:
        _compare_ends(topic_partition, mark, now, log_findings)
        return True
    return False


def _compare_ends(topic_partition: TopicPartition, mark: LogMark, now: LogMark, log_findings: _Findings) -> None:
    if now.end < mark.end:
        log_findings.add(
            AuditCause.LOG_TRUNCATED, topic_partition, (now.end, mark.end), f"ends at {now.end}, ended at {mark.end}"
        )
    if mark.leader_epoch is not None and now.leader_epoch is not None and now.leader_epoch < mark.leader_epoch:
        log_findings.add(
            AuditCause.EPOCH_WENT_BACK,
            topic_partition,
            (now.end, now.end),
            f"epoch {now.leader_epoch} after {mark.leader_epoch}",
            1,
        )
    if now.start > mark.start:
        doubt = _explain_not_retention(mark, now, _newest_record_age_ms(mark, log_findings))
        cause = AuditCause.START_UNEXPLAINED if doubt else AuditCause.RETENTION
        note = f"the log begins at {now.start}, began at {mark.start}{doubt}"
        log_findings.add(cause, topic_partition, (mark.start, min(now.start, mark.end)), note)


def _newest_record_age_ms(mark: LogMark, log_findings: _Findings) -> int | None:
    """Age now of the then newest record; if its time was not reported, as if it had been written just then."""
    newest = log_findings.then_ms if mark.newest_ms is None else mark.newest_ms
    return None if newest is None or log_findings.now_ms is None else log_findings.now_ms - newest


def _explain_not_retention(mark: LogMark, now: LogMark, age_ms: int | None) -> str:
    """Why retention cannot have removed that; empty if it can.

    Old records are removed at any time, so time speaks only against the removal of everything, the newest record with it. The
    number of bytes is unknown.
    """
    old_limits, limits = ((log_mark.retention_ms, log_mark.retention_bytes) for log_mark in (mark, now))
    if None in {*old_limits, *limits}:
        return ""
    if old_limits != limits:
        return f"; retention was {old_limits[0]} ms, {old_limits[1]} bytes and is {limits[0]} ms, {limits[1]} bytes"
    limit_ms, limit_bytes = limits
    if limit_ms == limit_bytes == -1:
        return "; its retention has no limit"
    whole = now.start >= mark.end
    if whole and limit_bytes == -1 and limit_ms is not None and age_ms is not None and age_ms < limit_ms:
        return f"; everything, its newest record after {age_ms} ms of the {limit_ms} ms that records are kept"
    return ""


def _compare_blocks(topic_partition: TopicPartition, before: Fingerprint, after: Fingerprint, log_findings: _Findings) -> None:
    mark, now = before.marks[topic_partition], after.marks[topic_partition]
    fewer = _FEWER.get((mark.compacted, now.compacted), AuditCause.POLICY_CHANGED)
    for number, old_print in sorted(before.prints.get(topic_partition, {}).items()):
        span = next(block_spans(mark, (number,), before.block))
        new_print = after.prints.get(topic_partition, {}).get(number, Print(0))
        if now.start > span[0]:
            continue
        if old_print == new_print:
            log_findings.equal += old_print.records
        elif new_print.records >= old_print.records:
            note = f"{count_of(old_print.records, 'record')} before, {new_print.records} now, with other contents"
            log_findings.add(AuditCause.LOG_CHANGED, topic_partition, span, note, old_print.records)
        elif fewer is not AuditCause.LOG_SHRUNK or now.end >= span[1]:  # what follows the log's end is reported as truncated
            log_findings.add(
                fewer,
                topic_partition,
                span,
                f"{count_of(new_print.records, 'record')} of {old_print.records}",
                old_print.records - new_print.records,
            )


# The cause of records that are missing in a block: compacted then, and now.
_FEWER: Final = {(False, False): AuditCause.LOG_SHRUNK, (True, True): AuditCause.COMPACTED}


def as_dict(fingerprint: Fingerprint) -> dict[str, Any]:
    """For JSON."""
    return {
        "version": VERSION,
        "taken_ms": fingerprint.taken_ms,
        "cluster_id": fingerprint.cluster_id,
        "block": fingerprint.block,
        "marks": marks_as_list(fingerprint.marks),
        "prints": [
            [*topic_partition, {str(number): list(block_print) for number, block_print in blocks.items()}]
            for topic_partition, blocks in sorted(fingerprint.prints.items())
        ],
    }


def marks_as_list(marks: Mapping[TopicPartition, LogMark]) -> list[Any]:
    """For JSON; `marks_from_list` reads it."""
    return [[*topic_partition, asdict(mark)] for topic_partition, mark in sorted(marks.items())]


def marks_from_list(rows: Iterable[Any]) -> dict[TopicPartition, LogMark]:
    """Raises TypeError or ValueError if the list holds no marks."""
    return {TopicPartition(topic, partition): LogMark(**mark) for topic, partition, mark in rows}


def refuse_other_version(version: object, supported_version: int) -> None:
    """Raises `Refused` (X04) for a stored observation of another version."""
    if version != supported_version:
        text = f"A stored fingerprint has version {version!r}; this release reads version {supported_version}."
        raise Refused.because(Reason.of(AuditCause.SNAPSHOTS_DIFFER, text))


def from_dict(document: Mapping[str, Any]) -> Fingerprint:
    """What `as_dict` made. Raises `Refused` (X04) for another version; KeyError, TypeError or ValueError for anything else."""
    refuse_other_version(document.get("version"), VERSION)
    prints = {
        TopicPartition(topic, partition): {int(number): Print(*print_fields) for number, print_fields in blocks.items()}
        for topic, partition, blocks in document["prints"]
    }
    marks = marks_from_list(document["marks"])
    return Fingerprint(document["taken_ms"], document["cluster_id"], marks, prints, document["block"])
