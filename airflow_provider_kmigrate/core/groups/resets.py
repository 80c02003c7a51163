"""Offsets that an operator recorded for a group (`migration/reset`): who is still there to take them up, and whether one may be recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from airflow_provider_kmigrate.core.coordination.group_seen import GroupSeen, MemberKind
from airflow_provider_kmigrate.core.coordination.registration import Unreadable
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.groups.members import unread
from airflow_provider_kmigrate.core.listing import summarize
from airflow_provider_kmigrate.core.model import Reason


def pending(seen: GroupSeen) -> str:
    """Those that no holder has made good yet, in words; empty where there are none, or that is not known."""
    resets = seen.zk.resets if seen.zk is not None else {}
    return summarize(f"{where.name} at {_shown(offset)}" for where, offset in sorted(resets.items(), key=lambda one: one[0]))


def _shown(offset: int | Unreadable) -> str:
    return f"{offset.content!r}" if isinstance(offset, Unreadable) else str(offset)


def not_taken(seen: GroupSeen) -> tuple[Reason, ...]:
    """Why no instance may become plain or old, and nothing be cleaned up: whoever asked for records again would not get them."""
    waiting = pending(seen)
    if not waiting:
        return ()
    text = f"Group {seen.name} has offsets that an operator recorded and nobody took up: {waiting}."
    return (Reason("K46", text),)


def unfit(seen: GroupSeen, wanted: Mapping[TopicPartition, int]) -> tuple[Reason, ...]:
    """Why these may not be recorded; empty where they may."""
    missing = unread(seen, seen.name, ends=True)
    if missing:
        return missing
    wrong = list(_wrong(seen, wanted))
    if not wrong:
        return ()
    return (Reason("K76", f"Group {seen.name}: {'; '.join(wrong)}."),)


def _wrong(seen: GroupSeen, wanted: Mapping[TopicPartition, int]) -> Iterator[str]:
    ends, read = seen.ends or {}, seen.zk.partitions if seen.zk else frozenset()
    if not seen.of_kind(MemberKind.MIGRATING):
        yield "it has no migrating member"
    for where, offset in sorted(wanted.items()):
        if where not in read or where not in ends:
            yield f"no member selects {where.name}"
        elif not 0 <= offset <= ends[where]:
            yield f"{where.name} ends at {ends[where]}, which {offset} is beyond" if offset >= 0 else f"{offset} is no offset"
