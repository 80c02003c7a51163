"""A migration as numbers, for dashboards: what each observation and decision says of the phase, the brokers, the lag and the blocks.

The names are those of `docs/metrics.md`, which also maps the metrics of KIP-866 to them. What was not read has no gauge: a
dashboard shows a gap, not a zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from airflow_provider_kmigrate.core.decision import Decision, Refuse, Wait
from airflow_provider_kmigrate.core.gates import dual_write_lag
from airflow_provider_kmigrate.core.model import BrokerMode, ClusterView, Reason
from airflow_provider_kmigrate.core.phase import Phase, where

#: Phases in the order of the migration from 0; those that must never be, and an unknown one, are below 0.
PHASES: Final[Mapping[Phase, int]] = {
    **{phase: number for number, phase in enumerate(list(Phase)[: list(Phase).index(Phase.UNKNOWN)])},
    Phase.UNKNOWN: -1,
    Phase.STALE: -2,
    Phase.SPLIT: -3,
    Phase.LEFT_BEHIND: -4,
}


@dataclass(frozen=True, slots=True)
class Gauge:
    """One number; `tags` tell gauges of one name apart, beside the cluster's."""

    name: str
    value: float
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GaugeHistory:
    """What the next observation of the same process needs: the phase, since when (monotonic seconds), and what blocked."""

    phase: Phase | None = None
    since: float = 0.0
    blocked: frozenset[str] = frozenset()

    def observe(self, view: ClusterView, decision: Decision, now: float) -> tuple[GaugeHistory, tuple[Gauge, ...]]:
        """The gauges of one observation, and the history with it. `now`: monotonic seconds."""
        phase, codes = where(view).phase, codes_of(decision)
        after = replace(self, blocked=codes)
        if phase is not self.phase:
            after = replace(after, phase=phase, since=now)
        ended = [Gauge("blocked", 0.0, {"code": code}) for code in sorted(self.blocked - codes)]
        begun = [Gauge("blocked", 1.0, {"code": code}) for code in sorted(codes)]
        more = [
            Gauge("phase", float(PHASES[phase])),
            Gauge("phase_seconds", now - after.since),
            Gauge("blocked_by", float(len(codes))),
        ]
        return after, (*more, *ended, *begun, *_brokers(view), *_lag(view))


def codes_of(decision: Decision) -> frozenset[str]:
    """The codes of what a step waits for or refuses because of."""
    reasons: Iterable[Reason] = decision.reasons if isinstance(decision, Wait | Refuse) else ()
    return frozenset(reason.code for reason in reasons)


def _brokers(view: ClusterView) -> list[Gauge]:
    modes = list(view.modes().values())
    known = [Gauge("brokers", float(modes.count(mode)), {"mode": mode.value}) for mode in BrokerMode]
    return [*known, Gauge("brokers", float(modes.count(None)), {"mode": "unknown"})]


def _lag(view: ClusterView) -> list[Gauge]:
    lag = dual_write_lag(view)
    return [] if lag is None else [Gauge("dual_write_lag", float(lag))]
