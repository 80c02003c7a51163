"""The part of a partition's log that an earlier check found clean: what the check of the rest must know of it.

Up to the offset `at` everything was acknowledged, delivered once and in order to each reading group, and counted without a gap. So nothing in
there can be found again, unless an event about it arrives later: then the partition is checked whole (`core.audit.settled`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_provider_kmigrate.core.ledger.facts import Gap


@dataclass(frozen=True, slots=True)
class GroupPrefix:
    """What a group was delivered of it: each offset from `first` to `last` once.

    `ended_ms`: when its last delivery ended, ms since the epoch, on the clock of `member`, which had it. `counted`: of each writer and
    member the records that it was delivered. `gap`: the longest time without a delivery.
    """

    first: int
    last: int
    ended_ms: int
    member: str
    counted: Mapping[tuple[str, str], int]
    gap: Gap

    @property
    def records(self) -> int:
        """How many records the group was delivered."""
        return sum(self.counted.values())


@dataclass(frozen=True, slots=True)
class Prefix:
    """The clean part of a partition. `stall_us`: the longest wait for an acknowledgement; None: none was reported."""

    at: int
    acked: int
    stall_us: int | None
    groups: Mapping[str, GroupPrefix]
