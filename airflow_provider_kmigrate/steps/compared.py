"""How often a soak compares ZooKeeper with KRaft, and when a difference counts."""

from __future__ import annotations

from airflow_provider_kmigrate.core.gates import MET, Gate
from airflow_provider_kmigrate.core.metadata import kinds as equivalence_kinds
from airflow_provider_kmigrate.core.model import ClusterView, Look

KINDS = Look.TOPICS | Look.STORED
_EVERY = 300.0  # seconds between comparisons: of a large cluster each reads megabytes
_AGAIN = 15.0  # seconds after which what differed, or was not read, must have arrived


class Compared:
    """Two comparisons in a row tell what lasts. Only green looks are compared: while the dual-write lags, the sides must differ."""

    def __init__(self) -> None:
        self.due = False  # whether the next look is to read all kinds; not the first, in which nothing was seen to move yet
        self._next = float("-inf")
        self._before: ClusterView | None = None

    def saw(self, view: ClusterView) -> Gate:
        """Take in a green look; met unless it shows what the comparison before showed too."""
        if not self.due:
            self.due = view.taken_at >= self._next
            return MET
        before, self._before = self._before, view
        equal = not equivalence_kinds.unread(view) and not equivalence_kinds.found(view)
        self._wait(view, _EVERY if equal else _AGAIN)
        return equivalence_kinds.lost(before, view) if before is not None else MET

    def forget(self, view: ClusterView) -> None:
        """A red look: begin anew a little later."""
        self._before = None
        self._wait(view, _AGAIN)

    def _wait(self, view: ClusterView, seconds: float) -> None:
        self.due, self._next = False, view.taken_at + seconds
