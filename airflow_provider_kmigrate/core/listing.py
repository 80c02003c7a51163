"""Many things in a sentence."""

from __future__ import annotations

from collections.abc import Iterable

_SHOWN = 8


def join_ids(items: Iterable[object]) -> str:
    """All of them, for nodes: there are few."""
    return ", ".join(map(str, items))


def summarize(items: Iterable[object], shown: int = _SHOWN, apart: str = ", ") -> str:
    """The first of them by name, the others counted; `apart`: what stands between two."""
    named = [str(item) for item in items]
    return apart.join(named[:shown]) + (f" and {len(named) - shown} more" if len(named) > shown else "")
