"""Whether the first broker of a pass is worse in its new mode: judged by answer times, missing answers and ISRs that it leaves.

Each sign has two baselines: the broker itself before its restart, if this run has observed it then, and the other brokers in the
same observations, which share load, network and machine. A sign must exceed the worse of the two by a wide margin: rolling a
healthy broker back costs a restart, and the gates of every step remain.

Producer latency is no sign yet: a restarted broker leads nothing until the preferred leaders are elected, after its pass.

Not judged: the first seconds after it is back (a cold JVM answers slowly), and anything from fewer than `MIN_SAMPLES` observations.

`CanaryBake` keeps the observations while one process lives; `judge_bake` judges them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from airflow_provider_kmigrate.core.decision import Act, Decision, Done, Verb, Wait
from airflow_provider_kmigrate.core.gates import Gate, unmet
from airflow_provider_kmigrate.core.migration import roll
from airflow_provider_kmigrate.core.model import BrokerMode, ClusterView, Reason
from airflow_provider_kmigrate.core.phase import kraft_owns

MIN_SAMPLES = 8  # fewer prove nothing
SETTLING = 10.0  # seconds from the first good observation of the broker that are not judged
JUDGED_FOR = 15.0  # seconds of observations over which answers are judged; ISRs over all of them
TIMES_SLOWER = 3.0
SECONDS_SLOWER = 0.25
SILENT_SHARE = 0.3  # of the observations
DEPARTURES = 3  # more than any other broker's; a follower leaves after 30 s at the earliest, so they are minutes apart


@dataclass(frozen=True, slots=True)
class Sample:
    """What one observation says of every broker; `outside`: partitions of whose ISR it is not, None if they were not read."""

    at: float
    seconds: Mapping[int, float]
    silent: frozenset[int]
    outside: Mapping[int, frozenset[str]] | None


@dataclass(frozen=True, slots=True)
class BrokerVerdict:
    """Worse, with reasons; or fine so far, if `sure`; or too little was observed."""

    reasons: tuple[Reason, ...] = ()
    sure: bool = False


def sample(view: ClusterView) -> Sample:
    """The part of an observation that is judged."""
    brokers = view.brokers.values()
    return Sample(
        view.taken_at,
        {broker.id: broker.answered_in for broker in brokers if broker.mode is not None and broker.answered_in is not None},
        frozenset(broker.id for broker in brokers if broker.mode is None),
        None if view.partitions is None else {broker.id: _outside(view, broker.id) for broker in brokers},
    )


def judge_bake(
    before: Sequence[Sample], since: Sequence[Sample], broker: int, bake: float, watched: float = 0.0
) -> BrokerVerdict:
    """The verdict on a broker from observations `before` its restart (or none) and `since` it was back.

    `bake`: seconds that it is watched in all; short ones settle and judge over less. `watched`: seconds of them before these
    observations.
    """
    settled = since[0].at + max(0.0, min(SETTLING, bake / 2) - watched) if since else 0.0
    counted = [one for one in since if one.at >= settled]
    last = [one for one in counted if one.at > counted[-1].at - min(JUDGED_FOR, bake / 2)]
    if len(counted) < MIN_SAMPLES:
        return BrokerVerdict()
    recent = max(last, counted[-MIN_SAMPLES:], key=len)
    found = (_silent(recent, broker), _slow(before, recent, broker), _leaving(counted, broker))
    return BrokerVerdict(tuple(reason for reason in found if reason is not None), sure=True)


def before(mode: BrokerMode) -> BrokerMode:
    """The mode that a broker in this mode is rolled back to."""
    return {BrokerMode.KRAFT: BrokerMode.MIGRATION}.get(mode, BrokerMode.ZOOKEEPER)


def rolled_back(view: ClusterView, broker: int, mode: BrokerMode) -> Reason:
    """The refusal once a broker is back in `mode`."""
    text = f"Broker {broker} was rolled back to {mode} mode; no other broker was. It serves as before."
    kept = "" if kraft_owns(view) else " The controllers still know it: it must restart before the last of the others."
    return Reason("V26", text + kept)


def not_rolled_back(broker: int, why: str) -> Reason:
    """The refusal if the broker could not be rolled back."""
    return Reason("V27", f"Broker {broker} could not be rolled back: {why}")


def _outside(view: ClusterView, broker: int) -> frozenset[str]:
    rows = view.partitions or ()
    return frozenset(row.name for row in rows if broker in row.replicas and broker not in row.isr)


def _others(samples: Sequence[Sample], broker: int) -> set[int]:
    return {one for each in samples for one in (*each.seconds, *each.silent)} - {broker}


def _silent(samples: Sequence[Sample], broker: int) -> Reason | None:
    missed = {one: sum(one in each.silent for each in samples) for one in (broker, *_others(samples, broker))}
    others = max((count for one, count in missed.items() if one != broker), default=0)
    if missed[broker] <= 2 * others or missed[broker] < SILENT_SHARE * len(samples):
        return None
    text = f"Broker {broker} did not answer in {missed[broker]} of {len(samples)} observations since its restart (any other: {others} at most)."
    return Reason("V23", text)


def _slow(before: Sequence[Sample], samples: Sequence[Sample], broker: int) -> Reason | None:
    now = _median(samples, {broker})
    known = {"before": _median(before, {broker}), "others": _median(samples, _others(samples, broker))}
    limits = {name: seconds for name, seconds in known.items() if seconds is not None}
    if now is None or not limits or now <= TIMES_SLOWER * max(limits.values()) + SECONDS_SLOWER:
        return None
    compared = {"before": "before its restart", "others": "the other brokers now"}
    compared_with = ", ".join(f"{compared[name]}: {1000 * seconds:.0f} ms" for name, seconds in limits.items())
    text = f"Broker {broker} takes {1000 * now:.0f} ms to answer since its restart ({compared_with}; medians of {len(samples)} observations)."
    return Reason("V23", text)


def _leaving(samples: Sequence[Sample], broker: int) -> Reason | None:
    left = departures(samples, broker)
    others = max((departures(samples, one) for one in _others(samples, broker)), default=0)
    if left < others + DEPARTURES:
        return None
    text = f"Broker {broker} left ISRs {left} times since its restart (any other: {others} at most)."
    return Reason("V23", text)


def departures(samples: Sequence[Sample], broker: int) -> int:
    """How many observations show it out of an ISR that it was in before; leaving all its ISRs at once counts as one."""
    known = [one.outside.get(broker, frozenset()) for one in samples if one.outside is not None]
    return sum(bool(later - earlier) for earlier, later in pairwise(known))


def _median(samples: Sequence[Sample], brokers: Collection[int]) -> float | None:
    seconds = [one.seconds[broker] for one in samples for broker in brokers if broker in one.seconds]
    return median(seconds) if len(seconds) >= MIN_SAMPLES // 2 else None


_KEPT = 3000  # observations; ten minutes of them, or more


@dataclass(frozen=True, slots=True)
class CanaryBake:
    """Observations `before` the restart and `since`; only the first broker of its pass is judged, and only if it bakes.

    `bake`: seconds that it is watched in all; `held`: seconds watched by earlier processes of the step; `worse`: reasons found by
    any of them. `fine`: enough was observed.
    """

    broker: int
    target: BrokerMode
    bake: float
    held: float = 0.0
    worse: tuple[Reason, ...] = ()
    before: tuple[Sample, ...] = ()
    since: tuple[Sample, ...] = ()
    fine: bool = False

    @property
    def sure(self) -> bool:
        """Whether enough was observed to continue, or nothing is judged."""
        return self.fine or self.bake == 0

    def baked(self, done: Done, gate: Gate, green: float) -> Decision:
        """Done once everything was healthy for the bake time and enough was observed.

        `green`: healthy seconds so far. `gate`: what must stay true meanwhile.
        """
        if not gate.met:
            return unmet(gate)
        if green >= self.bake and self.sure:
            return done
        text = f"Broker {self.broker} bakes as the first of this pass: healthy for {green:.0f} of {self.bake:.0f} s."
        return Wait((Reason("T01", text),), healthy=True)

    def saw(self, view: ClusterView, decision: Decision) -> tuple[CanaryBake, Decision]:
        """Add one observation and the decision made without the bake; return the decision with it."""
        if self.bake == 0 or not roll.is_first(view, self.broker, self.target):
            return self, decision
        if isinstance(decision, Act):
            return self._measured_before(view, decision)
        if isinstance(decision, Done) or self.since or self.worse:
            return self._judged(view, decision)
        return self, decision

    def _measured_before(self, view: ClusterView, act: Act) -> tuple[CanaryBake, Decision]:
        if act.verb is not Verb.RESTART:
            return self, act
        before = (*self.before, sample(view))[-_KEPT:]
        again = replace(self, worse=(), held=0.0, since=(), before=before)  # another restart follows
        if len(before) >= MIN_SAMPLES:
            return again, act
        text = f"Broker {self.broker} is the first of its pass: measured {len(before)} of {MIN_SAMPLES} times before its restart."
        return again, Wait((Reason("T01", text),), healthy=True)

    def _judged(self, view: ClusterView, decision: Decision) -> tuple[CanaryBake, Decision]:
        since = (*self.since, sample(view))[-_KEPT:]
        verdict = judge_bake(self.before, since, self.broker, self.bake, self.held)
        judged = replace(self, since=since, fine=verdict.sure, worse=self.worse or verdict.reasons)
        if not judged.worse:
            return judged, decision
        return judged, Act(Verb.ROLL_BACK_CANARY, " ".join(reason.text for reason in judged.worse))
