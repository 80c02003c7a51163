"""How often a soak compares ZooKeeper with KRaft, and when a difference counts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from airflow_provider_kmigrate.core.gates import MET, Gate
from airflow_provider_kmigrate.core.metadata import kinds as equivalence_kinds
from airflow_provider_kmigrate.core.model import ClusterView

_EVERY = 300.0  # seconds between comparisons: of a large cluster each reads megabytes
_AGAIN = 15.0  # seconds after which what differed, or was not read, must have arrived


@dataclass(frozen=True, slots=True)
class SoakComparison:
    """Two comparisons in a row tell what lasts. Only green looks are compared: while the dual-write lags, the sides must differ.

    `due`: whether the next look is to read all kinds; not the first, in which mostly nothing was seen to move yet. `after`: from when one is due again.
    `before`: the comparison before.
    """

    due: bool = False
    after: float = float("-inf")
    before: ClusterView | None = None

    def saw(self, view: ClusterView) -> tuple[SoakComparison, Gate]:
        """With one green look more; met unless it shows what the comparison before showed too."""
        if not self.due:
            return replace(self, due=view.taken_at >= self.after), MET
        equal = not equivalence_kinds.unread_kinds(view) and not equivalence_kinds.found(view)
        gate = equivalence_kinds.lost(self.before, view) if self.before is not None else MET
        return SoakComparison(after=view.taken_at + (_EVERY if equal else _AGAIN), before=view), gate

    def forgotten(self, view: ClusterView) -> SoakComparison:
        """After a red look: it begins anew a little later."""
        return SoakComparison(after=view.taken_at + _AGAIN)
