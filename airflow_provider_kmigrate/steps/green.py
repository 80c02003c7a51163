"""How long everything has stayed green, as far as somebody looked."""

from __future__ import annotations

from airflow_provider_kmigrate.core.model import ClusterView

_SETTLING = 10.0  # seconds from the first look in which red may only mean that a movement has not been seen yet


class Green:
    """Adds up the time between green looks; a red one sets it back to nothing.

    `held`: seconds that earlier lives of the same step have watched. A gap in which nobody looked does not count.
    """

    def __init__(self, held: float, interval: float) -> None:
        self.held, self._interval = held, interval
        self._first: float | None = None  # when the first look of this life was taken
        self._last: float | None = None  # when the last green look was taken

    def forget(self) -> None:
        """What ends a watch for good ends what was watched."""
        self.held, self._last = 0.0, None

    def saw(self, view: ClusterView, green: bool) -> None:
        """Take in one look."""
        self._first = view.taken_at if self._first is None else self._first
        if green:
            self.held += min(view.taken_at - self._last, 3 * self._interval + 5.0) if self._last is not None else 0.0
            self._last = view.taken_at
        elif self._last is not None or view.taken_at - self._first > _SETTLING:
            self.held, self._last = 0.0, None
