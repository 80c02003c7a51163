"""The one gate before every act, of every kind: what keeps this process from it now; and what an act waits for after an outage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from airflow_provider_kmigrate.core.decision import Act, Decision, Wait
from airflow_provider_kmigrate.core.model import Reason

MAX_VIEW_AGE = 5.0
"""Seconds; older observations allow no act."""

SETTLING = 5.0
"""Seconds after an observation without ZooKeeper, in which nothing is stopped."""


class Barrier(Enum):
    """What keeps a process from an act. The first two pass with a new observation, the others do not."""

    AGE = auto()  # the observation is too old
    UNIDENTIFIED = auto()  # no source of it named the cluster
    STRANGER = auto()  # a source of it named another cluster
    FENCED = auto()  # another process has taken the fence since
    STOPPED = auto()  # the kill switch is on

    @property
    def passes(self) -> bool:
        """Whether a new observation may show otherwise."""
        return self in {Barrier.AGE, Barrier.UNIDENTIFIED}


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known right before an act.

    `age`: seconds since the observation that it was decided on. `strangers`: the sources of it that name another cluster. `fenced`:
    another process has taken the fence since, as it was read now. `switch`: what the kill switch says, empty if it is off.
    """

    age: float
    is_identified: bool
    strangers: Sequence[Reason] = ()
    fenced: bool = False
    switch: str = ""


def barrier(standing: Standing) -> Barrier | None:
    """The first thing that keeps this process from acting now; None: nothing does. An age that is no number is too old."""
    found = {
        Barrier.AGE: not 0.0 <= standing.age <= MAX_VIEW_AGE,
        Barrier.UNIDENTIFIED: not standing.is_identified,
        Barrier.STRANGER: bool(standing.strangers),
        Barrier.FENCED: standing.fenced,
        Barrier.STOPPED: bool(standing.switch),
    }
    return next((one for one, is_there in found.items() if is_there), None)


def settled(decision: Decision, since_blind: float) -> Decision:
    """The decision, or a wait if ZooKeeper has just become reachable again: the effects of its outage show later.

    `since_blind`: seconds since the last observation without it. Sessions that ended meanwhile remove brokers from their ISRs within a
    second of its return, while brokers still report the earlier ISRs (a broker was stopped in that second, and its partitions were
    left with one replica; met in the fault matrix).
    """
    if not isinstance(decision, Act) or decision.verb.brings_up or since_blind >= SETTLING:
        return decision
    text = f"ZooKeeper did not answer {since_blind:.0f} s ago: waiting {SETTLING:.0f} s for the effects."
    return Wait((Reason("T01", text),))
