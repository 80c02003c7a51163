"""When work on a group may begin: its wave, and a daily window as `22:00-04:00` in UTC, which may go over midnight."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, time

from airflow_provider_kmigrate.core.cluster import GroupSpec
from airflow_provider_kmigrate.core.listing import join_ids
from airflow_provider_kmigrate.core.model import Reason


def is_open(window: str, now: datetime) -> bool:
    """Whether `now`, in UTC, lies in the window; its end does not. An empty window is always open, one of equal times, too."""
    if not window:
        return True
    begin, end = (time.fromisoformat(text) for text in window.split("-"))
    at = now.time()
    return begin <= at < end if begin < end else at >= begin or at < end


def other_wave(asked: object, wave: int) -> bool:
    """Whether a run that was asked for one wave (None: for all) leaves out what is of `wave`; what is of wave 0 is of every wave."""
    return asked is not None and bool(wave) and str(asked) != str(wave)


def not_in_file(groups: Iterable[GroupSpec], wave: object, names: Iterable[str]) -> tuple[Reason, ...]:
    """What a run was asked for that the cluster file does not have: it would do nothing, and end well."""
    groups = tuple(groups)
    waves, known = sorted({group.wave for group in groups}), sorted(group.name for group in groups)
    unknown = [f"group {name}" for name in sorted(set(names) - set(known))]
    unknown += [f"wave {wave}"] if wave is not None and str(wave) not in map(str, waves) else []
    if not unknown:
        return ()
    text = (
        f"The cluster file has no {', no '.join(unknown)}; it has the groups {', '.join(known)} and the waves {join_ids(waves)}."
    )
    return (Reason("K67", text),)
