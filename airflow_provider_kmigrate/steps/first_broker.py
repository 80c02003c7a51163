"""What is kept of the looks at the first broker of a pass, while one process lives; `core.forward.broker_canary` judges it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import astuple

from airflow_provider_kmigrate.core.forward import broker_canary, roll
from airflow_provider_kmigrate.core.forward.broker_canary import LOOKS, Sample
from airflow_provider_kmigrate.core.model import Act, BrokerMode, ClusterView, Decision, Done, Reason, Verb, Wait

_KEPT = 3000  # looks; ten minutes of them, or more


class FirstBroker:
    """Looks before the restart and since; a broker that is not the first of its pass, or one that does not bake, is let alone.

    `held`: seconds that earlier lives of the step have watched; `worse`: what one of them has found.
    """

    def __init__(self, broker: int, target: BrokerMode, bake: float, held: float, worse: Sequence[Sequence[str]]) -> None:
        self._broker, self._target, self._bake, self._held = broker, target, bake, held
        self._before: deque[Sample] = deque(maxlen=_KEPT)
        self._since: deque[Sample] = deque(maxlen=_KEPT)
        self.worse = tuple(Reason(*each) for each in worse)
        self.sure = bake == 0

    def told(self) -> list[list[str]]:
        """`worse` as JSON values."""
        return [list(astuple(reason)) for reason in self.worse]

    def forget(self) -> None:
        """Another restart comes."""
        self.worse, self._held = (), 0.0
        self._since.clear()

    def saw(self, view: ClusterView, decision: Decision) -> Decision:
        """Take in one look, with what would be decided without this; what is decided with it."""
        if self._bake == 0 or not roll.leads(view, self._broker, self._target):
            return decision
        if isinstance(decision, Act):
            return self._measured_before(view, decision)
        if isinstance(decision, Done) or self._since or self.worse:
            return self._judged(view, decision)
        return decision

    def _measured_before(self, view: ClusterView, act: Act) -> Decision:
        if act.verb is not Verb.RESTART:
            return act
        self.forget()
        self._before.append(broker_canary.sample(view))
        if len(self._before) >= LOOKS:
            return act
        text = f"Broker {self._broker} is the first of its pass: looked {len(self._before)} of {LOOKS} times at it as it is."
        return Wait((Reason("T07", text, "After its restart it is compared with that."),), healthy=True)

    def _judged(self, view: ClusterView, decision: Decision) -> Decision:
        self._since.append(broker_canary.sample(view))
        verdict = broker_canary.judged(self._before, self._since, self._broker, self._bake, self._held)
        self.sure, self.worse = verdict.sure, self.worse or verdict.reasons
        if not self.worse:
            return decision
        return Act(Verb.TAKE_BACK, " ".join(reason.text for reason in self.worse))
