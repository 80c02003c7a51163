"""The inventory of consumer groups: from what each side tells of them, over many looks, to their order for a move."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from airflow_provider_kmigrate.core.audit.log_blocks import LogMark
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.groups.readiness import (
    GroupProtocol,
    GroupSnapshot,
    OffsetsHistory,
    Readiness,
    assess,
    lag_history,
    waves,
)


@dataclass(frozen=True, slots=True)
class GroupFound:
    """One group as one side (ZooKeeper, the brokers) tells of it. None: it did not tell."""

    group: str
    protocol: GroupProtocol
    members: int | None
    offsets: Mapping[TopicPartition, int] | None
    rebalancing: bool = False


def snapshots(
    found: Iterable[GroupFound],
    marks: Mapping[TopicPartition, LogMark],
    t_ms: int,
    stored: Mapping[str, OffsetsHistory] | None = None,
) -> tuple[GroupSnapshot, ...]:
    """One look at every group, by name; a group that both sides have members of is MIXED. `marks`: the logs that they read.

    `stored`: what `__consumer_offsets` says of the groups, which is where their generations come from.
    """
    sides: dict[str, list[GroupFound]] = defaultdict(list)
    for one in found:
        sides[one.group].append(one)
    known = {group: history.generation for group, history in (stored or {}).items()}
    return tuple(replace(_snapshot(group, sides[group], marks, t_ms), generation=known.get(group)) for group in sorted(sides))


def _snapshot(group: str, sides: list[GroupFound], marks: Mapping[TopicPartition, LogMark], t_ms: int) -> GroupSnapshot:
    known = [side.members for side in sides if side.members is not None]
    members = sum(known) if len(known) == len(sides) else None
    lives = [side for side in sides if side.members]
    leading = (lives or sides)[0]
    protocol = GroupProtocol.MIXED if len(lives) > 1 else leading.protocol
    lag, outside = _lag(leading.offsets, marks)
    return GroupSnapshot(t_ms, group, protocol, members, None, lag, any(side.rebalancing for side in sides), outside)


def _lag(offsets: Mapping[TopicPartition, int] | None, marks: Mapping[TopicPartition, LogMark]) -> tuple[int | None, int]:
    """Records behind, and how many offsets lie outside their logs. A partition that is gone is outside; one unread hides the sum."""
    if offsets is None or any(where in marks and marks[where].unread for where in offsets):
        return None, 0
    outside = [
        where for where, offset in offsets.items() if where not in marks or not marks[where].start <= offset <= marks[where].end
    ]
    behind = (max(0, marks[where].end - offset) for where, offset in offsets.items() if where in marks)
    return sum(behind), len(outside)


def inventory(
    looks: Iterable[GroupSnapshot],
    stored: Mapping[str, OffsetsHistory] | None = None,
) -> tuple[Readiness, ...]:
    """Every group that was looked at, with its wave, in the order in which to move them.

    `stored`: as `readiness.offsets_histories` has it.
    """
    by_group: dict[str, list[GroupSnapshot]] = defaultdict(list)
    for look in looks:
        by_group[look.group].append(look)
    newest = {group: max(found, key=lambda look: look.t_ms) for group, found in by_group.items()}
    return waves(assess(look, lag_history(by_group[group]), (stored or {}).get(group)) for group, look in newest.items())


def as_dicts(groups: Iterable[Readiness]) -> list[dict[str, Any]]:
    """For JSON."""
    return [asdict(group) for group in groups]


def line(look: GroupSnapshot) -> str:
    """A look as a line of a file."""
    return json.dumps(asdict(look))


def read_lines(lines: Iterable[str], since_ms: int = 0) -> list[GroupSnapshot]:
    """The looks of a file not older than `since_ms`; a line that is none (its writer was killed) is left out."""
    found = []
    for text in lines:
        try:
            values = json.loads(text)
            look = GroupSnapshot(**{**values, "protocol": GroupProtocol(values["protocol"])})
        except (ValueError, TypeError, KeyError):
            continue
        if look.t_ms >= since_ms:
            found.append(look)
    return found
