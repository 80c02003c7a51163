"""When work on a group may begin: its wave, and a daily window as `22:00-04:00` in UTC, which may go over midnight."""

from __future__ import annotations

from datetime import datetime, time


def is_open(window: str, now: datetime) -> bool:
    """Whether `now`, in UTC, lies in the window; its end does not. An empty window is always open, one of equal times, too."""
    if not window:
        return True
    begin, end = (time.fromisoformat(text) for text in window.split("-"))
    at = now.time()
    return begin <= at < end if begin < end else at >= begin or at < end


def other_wave(asked: object, wave: int) -> bool:
    """Whether a run that was asked for one wave (None: for all) leaves out what is of `wave`; 0 is of every wave."""
    return bool(asked and wave) and str(asked) != str(wave)
