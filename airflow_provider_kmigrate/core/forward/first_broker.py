"""What is kept of the looks at the first broker of a pass, while one process lives; `broker_canary` judges it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from airflow_provider_kmigrate.core.decision import Act, Decision, Done, Verb, Wait
from airflow_provider_kmigrate.core.forward import broker_canary, roll
from airflow_provider_kmigrate.core.forward.broker_canary import LOOKS, Sample
from airflow_provider_kmigrate.core.gates import Gate, unmet
from airflow_provider_kmigrate.core.model import BrokerMode, ClusterView, Reason

_KEPT = 3000  # looks; ten minutes of them, or more


@dataclass(frozen=True, slots=True)
class CanaryBake:
    """Looks `before` the restart and `since`; a broker that is not the first of its pass, or one that does not bake, is let alone.

    `bake`: seconds that it is watched in all; `held`: seconds that earlier lives of the step have watched; `worse`: what one of them, or this
    one, has found. `fine`: enough was seen.
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
        """Whether enough was seen to go on, as far as it is judged at all."""
        return self.fine or self.bake == 0

    def baked(self, done: Done, gate: Gate, green: float) -> Decision:
        """Done once everything was `green` for as many seconds as it bakes, and enough was seen; `gate`: what must stay true meanwhile."""
        if not gate.met:
            return unmet(gate)
        if green >= self.bake and self.sure:
            return done
        text = f"Broker {self.broker} bakes as the first of this pass: green for {green:.0f} of {self.bake:.0f} s."
        return Wait((Reason("T01", text),), healthy=True)

    def saw(self, view: ClusterView, decision: Decision) -> tuple[CanaryBake, Decision]:
        """With one look more, and what would be decided without this; what is decided with it."""
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
        before = (*self.before, broker_canary.sample(view))[-_KEPT:]
        anew = replace(self, worse=(), held=0.0, since=(), before=before)  # another restart comes
        if len(before) >= LOOKS:
            return anew, act
        text = f"Broker {self.broker} is the first of its pass: looked {len(before)} of {LOOKS} times at it as it is."
        return anew, Wait((Reason("T01", text),), healthy=True)

    def _judged(self, view: ClusterView, decision: Decision) -> tuple[CanaryBake, Decision]:
        since = (*self.since, broker_canary.sample(view))[-_KEPT:]
        verdict = broker_canary.judge_bake(self.before, since, self.broker, self.bake, self.held)
        judged = replace(self, since=since, fine=verdict.sure, worse=self.worse or verdict.reasons)
        if not judged.worse:
            return judged, decision
        return judged, Act(Verb.TAKE_BACK, " ".join(reason.text for reason in judged.worse))
