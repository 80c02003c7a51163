"""What an audit may tolerate, and how much it looks at."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import accumulate

from airflow_provider_kmigrate.core.audit.verdict import Level
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.ledger.health import ANY_EVIDENCE, Demand


@dataclass(frozen=True, slots=True)
class Policy:
    """Times are milliseconds.

    `skew_ms`: by how much the members' clocks may differ. `max_cases`: counter-examples kept of a finding. `window`: limits stalls
    and gaps to what was sent or delivered from .. before (ms since the epoch). `tolerated`: findings that are shown and do not
    fail, such as `redelivered` where clients are killed on purpose. `required`: levels that must have been measured; None: those
    of the sources. `max_gap_ms`, `max_unowned_ms`: the longest wait and the longest time without an owner that may pass.
    `demand`: the evidence that there must be at least, from `since` on, of `groups`.
    `alive_since` as for `core.ledger.balance`: for an audit of clients that run on; None: all must have stopped.
    `max_runs`: how many events and chains of doubtful partitions are judged one by one, which bounds the memory (about 1 kB each);
    `batch_rows`: how many single records are looked at together (about 100 bytes each).
    """

    skew_ms: int = 100
    max_cases: int = 20
    window: tuple[int, int] | None = None
    tolerated: frozenset[str] = frozenset()
    required: Collection[Level] | None = None
    max_gap_ms: int | None = None
    max_unowned_ms: int | None = None
    alive_since: int | None = None
    demand: Demand = ANY_EVIDENCE
    max_runs: int = 1_000_000
    batch_rows: int = 8_000_000

    def room_for(self, sizes: Mapping[TopicPartition, int]) -> tuple[set[TopicPartition], set[TopicPartition]]:
        """As many of these partitions, in their order, as have `max_runs` together, and the others. `sizes`: what each one has."""
        ordered = sorted(sizes)
        upto = accumulate(sizes[place] for place in ordered)
        fitting = {place for place, size in zip(ordered, upto, strict=True) if size <= self.max_runs}
        return fitting, sizes.keys() - fitting
