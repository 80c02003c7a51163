"""The course of a whole migration for its report: completeness and latency minute by minute, and every restart.

Made of the rows of the audit's tables `completeness` and `restarts` (`audit.tables`, docs/tables.md), as mappings.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

Row = Mapping[str, Any]
MINUTE_MS: Final = 60_000
MOST_PARTS: Final = 240
"""Into how many parts a picture is divided at most; a long migration has several minutes in one."""


@dataclass(frozen=True, slots=True)
class CoursePart:
    """One or more whole minutes of a group, from .. before, in ms since the epoch.

    `behind`: the most offsets that were acknowledged and not yet delivered at the end of a minute. `late`: of `measured` deliveries those
    that came `LATE_MS` or more after their record was sent. The longest times are in ms, None: not measured.
    """

    from_ms: int
    to_ms: int
    acked: int
    delivered: int
    behind: int
    measured: int
    late: int
    longest_delivery_ms: int | None
    longest_ack_ms: int | None


LATE_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class GroupCourse:
    """The parts of one group at one level of evidence (L1 to L3), oldest first."""

    level: str
    group: str
    parts: tuple[CoursePart, ...]

    @property
    def most_behind(self) -> int:
        """The most offsets that the group was behind at the end of a minute."""
        return max((part.behind for part in self.parts), default=0)

    @property
    def longest_delivery_ms(self) -> int:
        """The longest time from sent to delivered; 0: not measured."""
        return max((part.longest_delivery_ms or 0 for part in self.parts), default=0)


@dataclass(frozen=True, slots=True)
class CourseRestart:
    """A restart with what clients noticed until it was over. `until_ms`: its latest recorded time; `is_settled`: everything was healthy."""

    step: str
    began_ms: int
    until_ms: int
    is_settled: bool
    longest_ack_ms: int | None
    longest_delivery_ms: int | None
    late: int | None


@dataclass(frozen=True, slots=True)
class Course:
    """All groups, those with the most delay first, and all restarts, oldest first."""

    groups: tuple[GroupCourse, ...] = ()
    restarts: tuple[CourseRestart, ...] = ()


NO_COURSE: Final = Course()


def build_course(completeness: Iterable[Row], restarts: Iterable[Row], ends: Mapping[str, int]) -> Course:
    """The course of these rows. `ends`: until when each group's events were read; a minute that ends later is left out."""
    minutes: dict[tuple[str, str], dict[int, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in completeness:
        group, end_ms = row["consumer_group"], row["minute_ms"] + MINUTE_MS
        if group is not None and end_ms <= ends.get(group, end_ms):
            minutes[row["level"], group][row["minute_ms"]].append(row)
    groups = (GroupCourse(*key, _join_minutes(group_minutes)) for key, group_minutes in minutes.items())
    return Course(
        tuple(sorted(groups, key=lambda course: (-course.most_behind, -course.longest_delivery_ms, course.level, course.group))),
        tuple(map(_build_restart, restarts)),
    )


def _join_minutes(minutes: Mapping[int, Sequence[Row]]) -> tuple[CoursePart, ...]:
    """The minutes of a group, those of one part joined."""
    first, last = min(minutes), max(minutes)
    length = MINUTE_MS * -(-(last - first + MINUTE_MS) // (MINUTE_MS * MOST_PARTS))
    parts: dict[int, list[int]] = defaultdict(list)
    for minute_ms in sorted(minutes):
        parts[first + (minute_ms - first) // length * length].append(minute_ms)
    return tuple(
        _build_part(from_ms, [minutes[minute_ms] for minute_ms in minutes_ms], max(minutes_ms) + MINUTE_MS)
        for from_ms, minutes_ms in parts.items()
    )


def _build_part(from_ms: int, minutes: Sequence[Sequence[Row]], to_ms: int) -> CoursePart:
    rows = [row for topics in minutes for row in topics]
    acked, delivered, measured, late = (sum(row[name] for row in rows) for name in ("acked", "delivered", "measured", "late_1s"))
    behind = max(sum(row["behind"] for row in topics) for topics in minutes)
    longest = (_longest(row[name] for row in rows) for name in ("longest_delivery_ms", "longest_ack_ms"))
    return CoursePart(from_ms, to_ms, acked, delivered, behind, measured, late, *longest)


def _longest(times: Iterable[int | None]) -> int | None:
    return max((time for time in times if time is not None), default=None)


def _build_restart(row: Row) -> CourseRestart:
    until = max(row["began_ms"], row["ended_ms"] or 0, row["settled_ms"] or 0)
    figures = (row.get(name) for name in ("longest_ack_ms", "longest_delivery_ms", "late_1s"))
    return CourseRestart(row["step"], row["began_ms"], until, row["settled_ms"] is not None, *figures)
