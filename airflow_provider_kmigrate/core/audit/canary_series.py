"""What a canary is judged by, out of when each process lived and what it was delivered: the times compared, then a series a member.

A member is an instance of the group, whatever process it just is: the canary before its switch and after it are one. The change is the
first start of a canary since the step began, or its last one where that is not known: one that died and came back later is what it was
changed to all the same. Nobody is measured while it takes place: the time before ends with the process that the canary was, the time after
begins `settle_ms` behind its start.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from airflow_provider_kmigrate.core.audit.canary import Arm, CanaryPolicy, MemberSeries, Metric, MetricSeries, Window
from airflow_provider_kmigrate.core.audit.verdict import CanaryVerdict, Ground, Outcome, worst
from airflow_provider_kmigrate.core.cluster import instance_called
from airflow_provider_kmigrate.core.model import Reason

_SILENT_MS: Final = 30_000  # who is so far behind the newest sign of life is not waited for
HISTORY: Final = 2  # windows of the time before: the judge is tried on it, from window to window


@dataclass(frozen=True, slots=True)
class CanaryPlan:
    """Who is compared with whom in a group, by the names of its instances, and how. Times in milliseconds."""

    group: str
    canaries: tuple[str, ...]
    baseline: tuple[str, ...]
    interval_ms: int = 5_000
    settle_ms: int = 10_000
    metric: Metric = field(default_factory=lambda: Metric("delivery latency p95 ms", margin=1.5, resolution=10.0))
    policy: CanaryPolicy = field(default_factory=CanaryPolicy)

    @property
    def everybody(self) -> tuple[str, ...]:
        return (*self.canaries, *self.baseline)

    def instance(self, writer: str) -> str | None:
        """Whose process wrote this."""
        return instance_called(writer, self.group, self.everybody)


@dataclass(frozen=True, slots=True)
class Life:
    """One process of the group: its start, its last sign of life, and whether all that it wrote is there."""

    writer: str
    start_ms: int
    last_ms: int
    whole: bool = True

    def covers(self, begin: int, end: int) -> bool:
        return self.whole and self.start_ms <= begin and end <= self.last_ms


@dataclass(frozen=True, slots=True)
class Times:
    """Intervals of equal length: `before` of them end at `left_ms`, `after` of them begin at `settled_ms`."""

    interval_ms: int
    left_ms: int
    settled_ms: int
    before: int
    after: int

    def spans(self) -> tuple[list[int], list[int]]:
        """Where the intervals before and after begin."""
        first = self.left_ms - self.before * self.interval_ms
        return (
            [first + at * self.interval_ms for at in range(self.before)],
            [self.settled_ms + at * self.interval_ms for at in range(self.after)],
        )

    def begin_of(self, t_ms: int) -> int | None:
        """Where the interval begins in which this is; None: in none of them."""
        first = self.left_ms - self.before * self.interval_ms
        for begin, end in ((first, self.left_ms), (self.settled_ms, self.settled_ms + self.after * self.interval_ms)):
            if begin <= t_ms < end:
                return begin + (t_ms - begin) // self.interval_ms * self.interval_ms
        return None


Measured = Mapping[tuple[str, int], tuple[int, float | None]]
"""What an instance was delivered in the interval that begins there: records, and the metric's value."""


def times(lives: Collection[Life], plan: CanaryPlan, since: int | None = None) -> Times | None:
    """The times that are compared; None while a canary was never seen, or not before its change, which came after `since`.

    They begin when everybody is there, and the canary as what it was before, and end where everybody who still writes has written: an interval that one client has not told
    of yet is no interval without records.
    """
    own = {name: sorted((life.start_ms, life.last_ms) for life in _of(lives, plan, name)) for name in plan.everybody}
    turns = [_turn(own[name], since) for name in plan.canaries]
    known = [turn for turn in turns if turn is not None]
    if not known or len(known) < len(turns):
        return None
    changed, left = max(start for _, _, start in known), min(end for _, end, _ in known)
    settled = changed + plan.settle_ms
    signs = [max(last for _, last in found) for found in own.values() if found]
    told = min(sign for sign in signs if sign >= max(signs) - _SILENT_MS)
    there = max(found[0][0] for found in own.values() if found)
    first = max([there, *(begin + plan.settle_ms for begin, _, _ in known)])
    before = min(HISTORY * plan.policy.window, max(0, left - first) // plan.interval_ms)
    after = min(plan.policy.window, max(0, told - settled) // plan.interval_ms)
    return Times(plan.interval_ms, min(left, changed), settled, before, after)


def _turn(lives: Sequence[tuple[int, int]], since: int | None) -> tuple[int, int, int] | None:
    """When the process before the change began and ended, and when the one after it began."""
    at = next((at for at, (start, _) in enumerate(lives) if since is not None and start >= since), len(lives) - 1)
    return (*lives[at - 1], lives[at][0]) if at > 0 else None


def unseen(plan: CanaryPlan, grounds: Sequence[Ground]) -> CanaryVerdict:
    """The verdict without `times`."""
    text = f"{', '.join(plan.canaries)} of group {plan.group} did not write events both before and after a restart."
    why = "A canary is compared with itself before, and with how the others changed meanwhile."
    remedy = "Wrap this consumer before the move; its events' writer, or its client.id, has to begin with the instance's name."
    doubt = Ground(Outcome.INCONCLUSIVE, Reason("V28", text, why, remedy))
    outcome = worst([doubt.outcome, *(ground.outcome for ground in grounds)])
    return CanaryVerdict(outcome, plan.policy.schedule, 0, len(plan.policy.looks()), general=(*grounds, doubt))


def _of(lives: Collection[Life], plan: CanaryPlan, instance: str) -> list[Life]:
    return [life for life in lives if plan.instance(life.writer) == instance]


def series(lives: Collection[Life], measured: Measured, found: Times, plan: CanaryPlan) -> MetricSeries:
    """Each member over these times. An interval that no life of a member covers is one that its events do not account for."""
    members = (
        _member(name, Arm.CANARY if name in plan.canaries else Arm.BASELINE, _of(lives, plan, name), measured, found)
        for name in plan.everybody
    )
    return MetricSeries(plan.metric, tuple(members))


def _member(name: str, arm: Arm, lives: Sequence[Life], measured: Measured, found: Times) -> MemberSeries:
    before, after = (_window(name, begins, lives, measured, found.interval_ms) for begins in found.spans())
    return MemberSeries(name, arm, before, after)


def _window(name: str, begins: Sequence[int], lives: Sequence[Life], measured: Measured, interval_ms: int) -> Window:
    told = [any(life.covers(begin, begin + interval_ms) for life in lives) for begin in begins]
    cells = [measured.get((name, begin)) for begin in begins]
    records = tuple((cell[0] if cell else 0) if known else None for known, cell in zip(told, cells, strict=True))
    return Window(tuple(cell[1] if cell else None for cell in cells), records)
