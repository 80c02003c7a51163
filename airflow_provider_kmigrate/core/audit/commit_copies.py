"""What the whole of `__consumer_offsets` shows: commits in two partitions, in the wrong one, or from two coordinators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from airflow_provider_kmigrate.core.audit.commit_tracks import check_unreadable_records
from airflow_provider_kmigrate.core.audit.verdict import AuditFinding, AuditOutcome, Level
from airflow_provider_kmigrate.core.ledger.facts import Case
from airflow_provider_kmigrate.core.offsets_topic.offsets_repair import CopyState, JudgedCopies, StoredCommit
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from airflow_provider_kmigrate.core.shared.text import Count, join_ids, summarize

_CASES: Final = 20


@dataclass(frozen=True, slots=True)
class ShownCopies:
    """The copies of one group for one partition, and its newest commits in the order of their commit times."""

    judged: JudgedCopies
    course: tuple[StoredCommit, ...] = ()


@dataclass(frozen=True, slots=True)
class OffsetsFacts:
    """The content of `__consumer_offsets`, whose present `count` of partitions decides where a commit belongs; 0: no such topic.

    `records` were read, `unreadable` of them not understood. `commits`: one of each group and partition; `groups` have them.
    `totals`: how many commits are in each state but IN_PLACE; `concerned`: how many groups those belong to. `states`: how many groups have
    a state of their own outside their partition. `earlier`: the counts that
    explain every commit outside its partition. `moving`: groups whose partition changes between the earlier count and `count`, the
    first few of `moved`. `shown`: the worst of the commits.
    """

    count: int
    records: int = 0
    unreadable: int = 0
    commits: int = 0
    groups: int = 0
    totals: Mapping[CopyState, int] = field(default_factory=dict)
    concerned: int = 0
    states: int = 0
    earlier: tuple[int, ...] = ()
    moved: int = 0
    moving: tuple[str, ...] = ()
    shown: tuple[ShownCopies, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        plain = {name: getattr(self, name) for name in self.__slots__ if name not in {"totals", "shown"}}
        return {
            **plain,
            "totals": {state.name: count for state, count in self.totals.items()},
            "shown": list(map(_copies_as_dict, self.shown)),
        }


def _copies_as_dict(shown: ShownCopies) -> dict[str, Any]:
    judged, course = shown.judged, [commit.as_dict() for commit in shown.course]
    commit_fields = {**judged.key._asdict(), "home": judged.home, "state": judged.state.name, "doubts": list(judged.doubts)}
    return {**commit_fields, "copies": [copy.as_dict() for copy in judged.values], "course": course}


_FOUND: Final[Mapping[CopyState, tuple[AuditCause, str]]] = {
    CopyState.SPLIT: (AuditCause.COORDINATORS_SPLIT, "{:commit}: two coordinators alternately committed for the same group."),
    CopyState.REVIVED: (
        AuditCause.OFFSETS_REVIVED,
        "{:commit}: the group continued from an older offset after a newer one was ignored.",
    ),
    CopyState.IGNORED: (
        AuditCause.OFFSETS_REVIVED,
        "{:commit is|commits are} ignored while one broker leads both partitions: an older copy is further on in its log.",
    ),
    CopyState.AHEAD: (AuditCause.COMMITS_MISPLACED, "{:commit is|commits are} older in their own partition than in another one."),
    CopyState.MISPLACED: (
        AuditCause.COMMITS_MISPLACED,
        "{:commit is|commits are} not in the partition that their group has by the topic's count.",
    ),
    CopyState.REMOVED: (AuditCause.COPIES_LEFT, "{:removed offset has|removed offsets have} an older copy in another partition."),
    CopyState.STALE: (AuditCause.COPIES_LEFT, "{:commit has|commits have} an older copy in another partition."),
}


def check_commits(facts: OffsetsFacts) -> list[AuditFinding]:
    """The findings about all commits, at level L0; each that is not where it belongs fails the audit."""
    return [
        *_check_copy_states(facts),
        *_check_group_states(facts),
        *check_unreadable_records(facts.unreadable),
        _report_read_commits(facts),
    ]


def _check_copy_states(facts: OffsetsFacts) -> Iterator[AuditFinding]:
    for state, (cause, text) in _FOUND.items():
        if many := facts.totals.get(state, 0):
            cases = [_case_of_copies(shown.judged) for shown in facts.shown if shown.judged.state is state]
            words = f"{text.format(Count(many))}{_describe_partition_count(facts)}"
            yield AuditFinding.of(AuditOutcome.FAIL, cause, words, Level.LOG, many, tuple(cases[:_CASES]))


def _describe_partition_count(facts: OffsetsFacts) -> str:
    earlier_count = f", and had {join_ids(facts.earlier)} when they were written" if len(facts.earlier) == 1 else ""
    return f" __consumer_offsets has {Count(facts.count):partition}{earlier_count}."


def _check_group_states(facts: OffsetsFacts) -> Iterator[AuditFinding]:
    if facts.states:
        text = f"{Count(facts.states):group has|groups have} a state of their own in another partition too, which can hide their offsets."
        yield AuditFinding.of(AuditOutcome.FAIL, AuditCause.COPIES_LEFT, text, Level.LOG, facts.states)


def _report_read_commits(facts: OffsetsFacts) -> AuditFinding:
    if not facts.count:
        text = "There is no __consumer_offsets: no group has ever committed."
    else:
        text = f"Read: {Count(facts.commits):commit} of {Count(facts.groups):group} in {Count(facts.count):partition} of __consumer_offsets."
    return AuditFinding.of(AuditOutcome.PASS, AuditCause.COMMITS_READ, text, Level.LOG, facts.commits)


def _case_of_copies(judged: JudgedCopies) -> Case:
    offsets = [copy.offset or 0 for copy in judged.copies]
    note = summarize([copy.text for copy in judged.values], apart="; ")
    first, last, key = min(offsets), max(offsets), judged.key
    return Case(key.topic, key.partition, first, last, last - first, key.group, to_ms=judged.newest.commit_ms, note=note)
