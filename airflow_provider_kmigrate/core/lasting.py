"""What is acted on only once it has lasted."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class HoldTimer:
    """Since when something is there, without a look in which it was not; `patience`: seconds that it has to last."""

    patience: float
    since: float | None = None

    def saw(self, at: float, *, there: bool) -> HoldTimer:
        """With one look more, taken at `at`."""
        if not there:
            return replace(self, since=None)
        return self if self.since is not None else replace(self, since=at)

    def due(self, at: float) -> bool:
        """Whether it has lasted long enough."""
        return self.since is not None and at - self.since >= self.patience

    def acted(self) -> HoldTimer:
        """After an act: twice the patience, from nothing."""
        return HoldTimer(2 * self.patience)
