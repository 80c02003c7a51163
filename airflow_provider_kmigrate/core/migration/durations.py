"""How long a task takes: what journals have of such tasks, else what the brokers' last starts say, else what other clusters needed, else an assumption.

A task is counted from the end of the one before it to its own end: with Airflow's start of it, the waits before its act, the act, and the
observations until its step is done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import Final, NamedTuple


class Work(StrEnum):
    """What a task does, as far as its duration depends on it."""

    RESTART = "restart of a broker"
    PROVISION = "start of a new controller"
    READY = "wait until the new controllers follow one leader"
    FINALIZE = "restart of a controller without the flag"
    COPY = "copy of the metadata"
    CHECK = "wait or comparison that finds everything as it should be"


class Span(NamedTuple):
    """Seconds on a good day, and expected."""

    low: float
    expected: float


SPREAD_AFTER_RESTARTS: Final = (0.6, 2.0)
"""Real over expected seconds of nine of ten migrations whose plans went by restarts of an earlier run (docs/measurements.md)."""
SPREAD_BEFORE_RESTARTS: Final = (0.5, 3.0)
"""The same if no restart of the cluster was measured: a start shows how busy its machine was then."""
NEWEST: Final = 6
"""How many of the newest measurements count: a machine, its load and its logs change."""
RESTART_PER_START: Final = 2.0
"""A restart over the start of the process until its registration: the process also stops, and follows into every ISR. Measured on local
clusters: 9 to 12 s over 5 to 6 s, idle; both grow alike on a busy machine."""
AROUND_RESTART: Final = 5.0
"""Seconds of a restart that no start shows: 2 s of observations in a row, 1.5 to 3 s until the consumer groups commit again, and the next
task's start (docs/measurements.md)."""
_READY_PER_START: Final = 0.7
"""The wait for the new controllers over a broker's start: what the first stage took beyond their starts, in six local runs (docs/measurements.md)."""
_LONGEST_EMPTY_START: Final = 20.0
"""Seconds that a node without partitions needs at most: the longest start of a broker with few was 18.6 s, at load 20 on two cores
(docs/measurements.md). A broker that needs longer loads its logs, and a controller has none."""
_LAST_CONTROLLER: Final = 5.0
"""Seconds that a controller without another one waits for a successor before it stops: a constant of Kafka's Raft client."""
_ASSUMED: Final[Mapping[Work, Span]] = {
    Work.PROVISION: Span(3.0, 10.0),
    Work.READY: Span(0.1, 7.0),
    Work.FINALIZE: Span(3.0, 15.0),
    Work.CHECK: Span(0.1, 0.5),
}
"""Without any measurement. Until a run has measured it, what a scheduler needs from the end of a task to the start of the next one is not known."""
_ACTS: Final = frozenset({Work.RESTART, Work.PROVISION, Work.FINALIZE})


@dataclass(frozen=True, slots=True)
class Measurements:
    """Seconds of such tasks, oldest first: of this cluster (`own`), and of other clusters on this worker (`elsewhere`).

    `starts`: of each broker's last start, until it registered itself. `has_one_controller`: the cluster file names a single one.
    `opening`: seconds from the start of a task until it has opened the cluster, and `observation`: of one observation of all nodes, both by the
    task that plans. They stand before each task's work; tasks that were measured have them already. 0: not known.
    """

    own: Mapping[Work, Sequence[float]]
    elsewhere: Mapping[Work, Sequence[float]]
    starts: Sequence[float] = ()
    has_one_controller: bool = False
    opening: float = 0.0
    observation: float = 0.0

    def estimate(self, work: Work, assumed: Span | None = None) -> Span:
        """How long such a task takes. `assumed`: if nothing was measured; of a restart and a copy, which depend on the cluster's size, it is needed."""
        own, elsewhere = (_summarize(seconds.get(work, ())) for seconds in (self.own, self.elsewhere))
        others = None if work is Work.COPY else elsewhere
        started = self._estimate_from_starts(work)
        return own or (started and self._add_lead(work, started)) or others or self._add_lead(work, assumed or _ASSUMED[work])

    def count_basis(self, work: Work) -> dict[str, int]:
        """How many measurements the estimate of a node's task goes by: `measured` here, last `starts`, or `elsewhere`; all 0: it is assumed."""
        own, starts, elsewhere = len(self.own.get(work, ())), len(self.starts), len(self.elsewhere.get(work, ()))
        return {
            "measured": min(own, NEWEST),
            "starts": 0 if own else starts,
            "elsewhere": 0 if own or starts else min(elsewhere, NEWEST),
        }

    def _add_lead(self, work: Work, span: Span) -> Span:
        """With what stands before the work: the cluster is opened for each task, and observed once to compare it with the plan before it acts."""
        lead = self.opening + (self.observation if work in _ACTS else 0.0)
        return Span(span.low + lead, span.expected + lead)

    def _estimate_from_starts(self, work: Work) -> Span | None:
        if not self.starts:
            return None
        start, low, check = median(self.starts), min(self.starts), _ASSUMED[Work.CHECK].expected
        stops, empty = _LAST_CONTROLLER * self.has_one_controller, min(start, _LONGEST_EMPTY_START)
        spans = {
            Work.RESTART: Span(low, RESTART_PER_START * start + AROUND_RESTART),
            Work.PROVISION: Span(min(low, empty), empty + check),
            Work.READY: Span(check, _READY_PER_START * empty + check),
            Work.FINALIZE: Span(min(low, empty) + stops, RESTART_PER_START * empty + stops + check),
        }
        return spans.get(work)


def choose_spread(measured: int) -> tuple[float, float]:
    """Real over expected seconds, nine of ten, of a plan that goes by so many restarts of its own cluster."""
    return SPREAD_AFTER_RESTARTS if measured else SPREAD_BEFORE_RESTARTS


def _summarize(seconds: Sequence[float]) -> Span | None:
    newest = seconds[-NEWEST:]
    return Span(min(newest), median(newest)) if newest else None
