"""The restarts of a run, from its journal: one for each step that acted on a broker or a controller."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from airflow_provider_kmigrate.core.monitoring.journal_lines import ActSpan, nodes_of_act


@dataclass(frozen=True, slots=True)
class StepRestart:
    """What a step did to its nodes: from its first act until it observed everything healthy. Times are ms since the epoch.

    `acts`: the verbs, in their order. `ended_ms`: when the last recorded act was carried out; None: none is. `settled_ms` None: the step
    has not observed everything healthy since its last act.
    """

    run: str
    step: str
    nodes: tuple[str, ...]
    acts: tuple[str, ...]
    began_ms: int
    ended_ms: int | None
    settled_ms: int | None

    @property
    def until_ms(self) -> int:
        """The latest time of it that is recorded."""
        return max(self.began_ms, self.ended_ms or 0, self.settled_ms or 0)


def list_restarts(spans: Iterable[ActSpan]) -> tuple[StepRestart, ...]:
    """The restarts of a journal's acts, oldest first; acts on no node are left out."""
    steps: dict[tuple[str, str], list[ActSpan]] = {}
    for span in spans:
        if nodes_of_act(span):
            steps.setdefault((span.run, span.step), []).append(span)
    restarts = (
        StepRestart(
            run,
            step,
            tuple(dict.fromkeys(node for span in acts for node in nodes_of_act(span))),
            tuple(span.verb for span in acts),
            min(span.from_ms for span in acts),
            max((span.to_ms for span in acts if span.to_ms is not None), default=None),
            acts[-1].settled_ms,
        )
        for (run, step), acts in steps.items()
    )
    return tuple(sorted(restarts, key=lambda restart: restart.began_ms))
