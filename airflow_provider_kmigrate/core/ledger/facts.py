"""The findings of a ledger: each fact with the records that show it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from airflow_provider_kmigrate.core.cluster_state.model import Reason


@dataclass(frozen=True, slots=True)
class Case:
    """A counter-example for the operator to check: `count` records among the offsets first..last of one partition.

    `group` None: it is about the log. Offsets are -1 if no broker reported them. `members` are those involved, earlier one first;
    times are when it began and ended.
    """

    topic: str
    partition: int
    first: int
    last: int
    count: int
    group: str | None = None
    producer: str | None = None
    seq_first: int | None = None
    seq_last: int | None = None
    members: tuple[str, ...] = ()
    from_ms: int | None = None
    to_ms: int | None = None
    note: str = ""

    @property
    def sort_key(self) -> tuple[str, str, int, int, int, int, str]:
        """The sort key for lists that do not depend on the order of the input."""
        position = (self.group or "", self.topic, self.partition, self.first, self.seq_first or 0)
        return (*position, self.from_ms or 0, repr((self.producer, self.members, self.note)))


@dataclass(frozen=True, slots=True)
class LedgerFinding:
    """How many records (for ownership: milliseconds) in all, and the first cases; those that continue each other are one."""

    count: int = 0
    cases: tuple[Case, ...] = ()

    @classmethod
    def of(cls, cases: Sequence[Case], limit: int) -> LedgerFinding:
        """All cases counted, and at most `limit` of them kept."""
        return cls(sum(case.count for case in cases), join_cases(cases)[:limit]) if cases else NOTHING

    @classmethod
    def merge(cls, findings: Iterable[LedgerFinding], limit: int) -> LedgerFinding:
        """All findings together; the first cases of each are enough."""
        counting = [finding for finding in findings if finding.count]
        if len(counting) < 2:
            return counting[0] if counting else NOTHING
        return cls(
            sum(finding.count for finding in counting), join_cases(case for finding in counting for case in finding.cases)[:limit]
        )

    @classmethod
    def with_largest_cases(cls, count: int, cases: Iterable[Case], limit: int) -> LedgerFinding:
        """`count` records in all, and the cases with most of them."""
        return cls(count, tuple(sorted(cases, key=lambda case: (-case.count, case.sort_key))[:limit]))


NOTHING: Final = LedgerFinding()


def join_cases(cases: Iterable[Case]) -> tuple[Case, ...]:
    """Joins cases that differ only in their position and continue each other; in the order of `Case.order`."""
    ordered = sorted(cases, key=lambda case: (_identity_key(case), case.from_ms or 0, case.first, case.seq_first or 0))
    joined: list[Case] = []
    for case in ordered:
        if joined and _is_continued_by(joined[-1], case):
            joined[-1] = _merge_cases(joined[-1], case)
        else:
            joined.append(case)
    return tuple(sorted(joined, key=lambda case: case.sort_key))


def _identity_key(case: Case) -> tuple[str, ...]:
    """Everything but the position, comparable."""
    return (case.topic, str(case.partition), repr(case.group), repr(case.producer), repr(case.members), case.note)


def _is_continued_by(earlier: Case, later: Case) -> bool:
    in_log = earlier.first >= 0 and later.first == earlier.last + 1 and _identity_key(earlier) == _identity_key(later)
    by_number = earlier.seq_last is None or later.seq_first is None or later.seq_first == earlier.seq_last + 1
    return in_log and by_number and all(case.count == case.last - case.first + 1 for case in (earlier, later))


def _merge_cases(earlier: Case, later: Case) -> Case:
    return replace(
        earlier,
        last=later.last,
        count=earlier.count + later.count,
        seq_last=later.seq_last,
        from_ms=min((ms for ms in (earlier.from_ms, later.from_ms) if ms is not None), default=None),
        to_ms=max((ms for ms in (earlier.to_ms, later.to_ms) if ms is not None), default=None),
    )


@dataclass(frozen=True, slots=True)
class Gap:
    """The longest time that a sent record of the partition waited while the group was delivered none of it.

    `members` had the delivery before and the one after; `open`: nothing came until the end of what is known.
    """

    group: str
    topic: str
    partition: int
    ms: int
    from_ms: int
    to_ms: int
    members: tuple[str, ...] = ()
    open: bool = False


@dataclass(frozen=True, slots=True)
class GroupBalance:
    """How a group's figures add up, in records: `acked + unacknowledged` is the sum of `once`, `to_come`, `unread`, `lost`, `unseen` and `not_due`.

    - `acked`: of the partitions that the group reads; `delivered`: repeats included, `repeats`: of them those that came before
    - `to_come`: acknowledged so recently that the group need not have received them, and its events reach that far
    - `unread`: the same, and its events that were read end earlier: it may have received them
    - `unacknowledged`: delivered, and no acknowledgement of them was read: their producers write no events, or later ones
    - `not_due`: acknowledged before the group began, or of offsets that a member without events may have received
    """

    group: str
    acked: int = 0
    delivered: int = 0
    repeats: int = 0
    to_come: int = 0
    unread: int = 0
    lost: int = 0
    unseen: int = 0
    unacknowledged: int = 0
    not_due: int = 0

    @property
    def once(self) -> int:
        """Delivered records, each counted once."""
        return self.delivered - self.repeats


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that the events show. Counts are records, but for `double_owned` and `unowned`, which are milliseconds.

    - `lost`: acknowledged, never delivered to a group that read past it, or no longer in the log
    - `unseen`: acknowledged and not delivered, but the evidence is not enough to call it lost
    - `redelivered`: an offset delivered to a group again; `stored_twice`: a producer's record at two offsets
    - `client_repeats`: an offset that a client handed out twice by itself (`records.own_repeats`), and no violation
    - `reordered`: delivered after a later record of its partition, or stored after a record that was sent later
    - `diverged`: one offset that held two different records
    - `commit_gap`: committed before it was delivered
    - `double_owned`: a partition with two owners in one group
    - `not_owned`: delivered to a member that did not own the partition by its own account (its own clock, no skew)

    `recorded`: no client's own account has a hole; else an apparently unowned delivery may have an unrecorded acquisition.
    `longest_stall_ms`: the longest wait for an acknowledgement; None: no producer reported any.

    `of_others`: group, topic and partition that were not judged, because only members that write no events owned them.
    `skipped`: offsets skipped between a group's deliveries and reported by no producer, the largest gaps first: control
    records, aborted and compacted ones, or records of producers that write no events. Groups with members that write no events
    are left out. `unowned`: partitions between one owner's end and the next one's start, the longest times first; `owner_changes`:
    how often a partition passed from one member to another; `uneven`: generations whose members had uneven shares. `earlier`: findings of the same names that were over before the step began; the step did not cause them.
    """

    complete: bool
    reasons: tuple[Reason, ...]
    acked: int = 0
    send_failures: int = 0
    delivered: Mapping[str, int] = field(default_factory=dict)
    lost: LedgerFinding = LedgerFinding()
    unseen: LedgerFinding = LedgerFinding()
    redelivered: LedgerFinding = LedgerFinding()
    client_repeats: LedgerFinding = LedgerFinding()
    stored_twice: LedgerFinding = LedgerFinding()
    reordered: LedgerFinding = LedgerFinding()
    diverged: LedgerFinding = LedgerFinding()
    commit_gap: LedgerFinding = LedgerFinding()
    double_owned: LedgerFinding = LedgerFinding()
    not_owned: LedgerFinding = LedgerFinding()
    recorded: bool = True
    longest_stall_ms: float | None = None
    gaps: tuple[Gap, ...] = ()
    of_others: tuple[tuple[str, str, int], ...] = ()
    skipped: LedgerFinding = LedgerFinding()
    unowned: LedgerFinding = LedgerFinding()
    owner_changes: int = 0
    uneven: tuple[str, ...] = ()
    earlier: Mapping[str, LedgerFinding] = field(default_factory=dict)
    balances: tuple[GroupBalance, ...] = ()

    @property
    def duplicated(self) -> int:
        """Records stored or delivered more than once, without the clients' own repeats."""
        return self.redelivered.count + self.stored_twice.count

    @property
    def longest_gap(self) -> Gap | None:
        """The longest gap without delivery; None if there is none."""
        return max(self.gaps, key=lambda gap: gap.ms, default=None)

    @property
    def violations(self) -> dict[str, LedgerFinding]:
        """The findings that must not exist."""
        names = ("lost", "redelivered", "stored_twice", "reordered", "diverged", "commit_gap", "double_owned")
        return {name: finding for name in names if (finding := getattr(self, name)).count}

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"duplicated": self.duplicated, **asdict(self)}
