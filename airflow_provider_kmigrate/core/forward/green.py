"""How long everything has stayed green, as far as somebody looked."""

from __future__ import annotations

from dataclasses import dataclass, replace

_SETTLING = 10.0  # seconds from the first look in which red may only mean that a movement has not been seen yet
_ROUNDS, _SLACK = 3, 5.0  # a look may be late by that many intervals and seconds; in a longer gap nobody has looked


def watched_seconds(last: float | None, at: float, interval: float) -> float:
    """Seconds since the `last` look that count as watched: all, but for a gap in which nobody looked. None: this is the first look."""
    return 0.0 if last is None else min(at - last, _ROUNDS * interval + _SLACK)


@dataclass(frozen=True, slots=True)
class HealthyTimer:
    """The time between green looks, added up; a red one sets it back to nothing.

    `held`: seconds so far, of earlier lives of the same step too. `interval`: seconds between looks. `first`: when the first look of this life
    was taken; `last`: when the last green one was.
    """

    held: float
    interval: float
    first: float | None = None
    last: float | None = None

    def forgotten(self) -> HealthyTimer:
        """What ends a watch for good ends what was watched."""
        return replace(self, held=0.0, last=None)

    def saw(self, at: float, *, green: bool) -> HealthyTimer:
        """With one look more, taken at `at`."""
        began = at if self.first is None else self.first
        known = replace(self, first=began)
        if green:
            return replace(known, held=self.held + watched_seconds(self.last, at, self.interval), last=at)
        red = self.last is not None or at - began > _SETTLING
        return known.forgotten() if red else known
