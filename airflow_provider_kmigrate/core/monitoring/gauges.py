"""A migration as numbers, for dashboards: what each observation and decision says of the phase, the brokers, the lag and the blocks.

The names are those of `docs/metrics.md`, which also maps the metrics of KIP-866 to them. What was not read has no gauge: a
dashboard shows a gap, not a zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from airflow_provider_kmigrate.core.cluster_state.decision import Decision, Refuse, Wait
from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, ClusterView, NoProbe, ProbeFigures, Reason
from airflow_provider_kmigrate.core.cluster_state.spec import Policy
from airflow_provider_kmigrate.core.member.group_seen import GroupSweep
from airflow_provider_kmigrate.core.migration import readiness
from airflow_provider_kmigrate.core.migration.gates import PROBE_FRESH, all_brokers_in_kraft, dual_write_lag
from airflow_provider_kmigrate.core.migration.phase import ASIDE, Phase, kraft_owns, position_of
from airflow_provider_kmigrate.core.migration.plan import Estimate
from airflow_provider_kmigrate.core.migration.readiness import Readiness, ReadinessLevel, RollbackPart

#: Phases in the order of the migration from 0; those that must never be, and an unknown one, are below 0.
PHASES: Final[Mapping[Phase, int]] = {
    **{phase: number for number, phase in enumerate(phase for phase in Phase if phase not in {*ASIDE, Phase.ENDED})},
    Phase.ENDED: 7,  # as `finalizing`: the number of `finalized` stays
    Phase.UNKNOWN: -1,
    Phase.STALE: -2,
    Phase.SPLIT: -3,
    Phase.LEFT_BEHIND: -4,
}


@dataclass(frozen=True, slots=True)
class Gauge:
    """One number; `tags` distinguish gauges of one name, beside the cluster's."""

    name: str
    value: float
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GaugeHistory:
    """What the next observation of the same process needs: the phase, since when (monotonic seconds), and what blocked."""

    phase: Phase | None = None
    since: float = 0.0
    blocked: frozenset[str] = frozenset()

    def add_view(
        self, view: ClusterView, decision: Decision, now: float, remaining: float | None = None
    ) -> tuple[GaugeHistory, tuple[Gauge, ...]]:
        """The gauges of one observation, and the history with it. `now`: monotonic seconds; `remaining`: `seconds_left`."""
        phase, codes = position_of(view).phase, codes_of(decision)
        after = replace(self, blocked=frozenset() if isinstance(decision, Refuse) else codes)
        if phase is not self.phase:
            after = replace(after, phase=phase, since=now)
        begun = [Gauge("blocked", 1.0, {"code": code}) for code in sorted(codes)]
        more = [Gauge("phase_seconds", now - after.since), Gauge("blocked_by", float(len(codes)))]
        more += [] if remaining is None or isinstance(decision, Refuse) else [Gauge("remaining_seconds", remaining)]
        return after, (*more, *_unblocked_gauges(self.blocked - codes), *begun, *position_gauges(view))

    def final_gauges(self) -> tuple[Gauge, ...]:
        """The gauges as the process ends: what it waited for blocks no more, since no other process knows of it. A refusal stays."""
        return (*_unblocked_gauges(self.blocked), Gauge("blocked_by", 0.0)) if self.blocked else ()


def _unblocked_gauges(codes: Iterable[str]) -> list[Gauge]:
    return [Gauge("blocked", 0.0, {"code": code}) for code in sorted(codes)]


def codes_of(decision: Decision) -> frozenset[str]:
    """The codes of what a step waits for or refuses because of."""
    reasons: Iterable[Reason] = decision.reasons if isinstance(decision, Wait | Refuse) else ()
    return frozenset(reason.code for reason in reasons)


def position_gauges(view: ClusterView) -> tuple[Gauge, ...]:
    """What one observation alone shows: the phase, the brokers in each mode, and the lag, if it was read."""
    modes, lag = list(view.modes().values()), dual_write_lag(view)
    brokers = [
        Gauge("brokers", float(modes.count(mode)), {"mode": mode.value if mode else "unknown"}) for mode in (*BrokerMode, None)
    ]
    lags = [] if lag is None else [Gauge("dual_write_lag", float(lag))]
    return (Gauge("phase", float(PHASES[position_of(view).phase])), *brokers, *lags, *probe_gauges(view.probe))


def probe_gauges(figures: ProbeFigures | NoProbe | None) -> tuple[Gauge, ...]:
    """How long the probe's own records wait for their acknowledgement: the slowest partition's p95. None if its figures are old."""
    if not isinstance(figures, ProbeFigures) or figures.age > PROBE_FRESH or not figures.now:
        return ()
    return (Gauge("probe_ack_seconds", max(latency.p95 for latency in figures.now.values())),)


MOST_GROUPS: Final = 200
"""Of how many groups the lag is sent, the largest first; a time series each."""


def group_gauges(sweep: GroupSweep | None) -> tuple[Gauge, ...]:
    """The lag of each consumer group in records, summed over its partitions. A group that was not read has none."""
    places = {**sweep.groups, **sweep.left} if sweep else {}
    lags = {name: sum(max(0, lag.records) for lag in position.places.values()) for name, position in places.items()}
    largest = sorted(lags, key=lambda name: (-lags[name], name))[:MOST_GROUPS]
    return tuple(Gauge("group_lag", float(lags[name]), {"group": name}) for name in largest)


def request_gauges(asked_at: Iterable[float], now: float) -> tuple[Gauge, ...]:
    """Whether requests for an approval wait for an approver, and for how long the oldest does. Times in seconds since the epoch."""
    ages = [max(0.0, now - at) for at in asked_at]
    return Gauge("waiting_for_person", float(bool(ages))), Gauge("approval_age_seconds", max(ages, default=0.0))


def build_gauges(version: str) -> tuple[Gauge, ...]:
    """The version of kmigrate that sends, as a label; its value is always 1."""
    return (Gauge("build_info", 1.0, {"version": version}),)


_LEVELS: Final = {ReadinessLevel.LOST: 0.0, ReadinessLevel.DEGRADED: 1.0, ReadinessLevel.READY: 2.0}


def readiness_gauges(verdict: Readiness, now: float) -> tuple[Gauge, ...]:
    """The verdict on a rollback, and each of its parts. `now`: seconds since the epoch.

    A rollback that is not possible has no duration, and a restart that was never measured has none.
    """
    failing = {part_reason.part for part_reason in verdict.reasons}
    since = 0.0 if verdict.level is ReadinessLevel.READY else max(0.0, now - verdict.since)
    takes = () if verdict.level is ReadinessLevel.LOST else (Gauge("rollback_seconds", verdict.forecast.seconds),)
    restarts = (Gauge("restart_seconds", verdict.forecast.restart_seconds),) if verdict.forecast.measured else ()
    parts = (Gauge("readiness_part", float(part not in failing), {"part": part.name.lower()}) for part in RollbackPart)
    return (Gauge("readiness", _LEVELS[verdict.level]), Gauge("unready_seconds", since), *takes, *restarts, *parts)


def estimate_seconds_left(
    view: ClusterView, estimate: Estimate | None, waits: float, policy: Policy, restart_seconds: float | None = None
) -> float | None:
    """How many seconds of work and soak the run of a step still has if nothing blocks it; None if that is not known.

    A migration's count until its request for approval, and from there to its end. `estimate`: of the step's row. `waits`: seconds
    that it still waits on purpose, such as the rest of a soak. Restarts take as long as `readiness.forecast_rollback` expects.
    """
    if estimate is None or PHASES[position_of(view).phase] < 0 or not any(view.running_brokers()):
        return None
    if estimate is Estimate.ROLLBACK:
        return readiness.forecast_rollback(view, restart_seconds).seconds
    if estimate is Estimate.FINALIZATION:
        return readiness.CONTROLLER_STOP * sum(controller.migration_flag is not False for controller in view.controllers.values())
    return _seconds_until_approval(view, estimate, waits, policy, restart_seconds)


def _seconds_until_approval(
    view: ClusterView, estimate: Estimate, waits: float, policy: Policy, restart_seconds: float | None
) -> float:
    """Each ZooKeeper broker restarts twice, each in migration mode once; the first of each pass bakes."""
    kraft, plain, unresponsive = (len(view.in_mode(mode)) for mode in (BrokerMode.KRAFT, BrokerMode.ZOOKEEPER, None))
    moved = kraft + len(view.in_mode(BrokerMode.MIGRATION))
    restarts = 2 * plain + (moved - kraft) + (1 if kraft else 2) * unresponsive
    seconds_each = readiness.assume_restart_seconds(view) if restart_seconds is None else restart_seconds
    bakes = policy.canary_bake * ((not moved) + (not kraft))
    down = sum(not controller.answers for controller in view.controllers.values())
    copy = 0.0 if kraft_owns(view) else readiness.FAILOVER
    is_soaked = estimate is Estimate.SOAK or (estimate is Estimate.COMPARISON and all_brokers_in_kraft(view).met)
    return (
        restarts * seconds_each
        + bakes
        + down * readiness.CONTROLLER_STOP
        + copy
        + waits
        + (0.0 if is_soaked else policy.min_soak)
    )
