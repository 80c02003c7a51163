"""What may be decided about an observed cluster: done, wait, refuse, or act."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, NamedTuple, TypeGuard, TypeVar

from airflow_provider_kmigrate.core.cluster_state.model import Cause, Fields, Reason


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing is left to do; `text` says what holds, and `document`, of a step that plans, has it as JSON values."""

    text: str
    document: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Not yet; observe again later. `reasons` in words that an operator understands.

    `healthy`: everything is as it should be, only time must pass; such a wait does not count towards a timeout.
    """

    reasons: tuple[Reason, ...]
    healthy: bool = False


@dataclass(frozen=True, slots=True)
class Refuse:
    """No; nothing was changed. Each reason carries its remedy."""

    reasons: tuple[Reason, ...]


class Verb(StrEnum):
    """What a step may be asked to do; the values are in logs and journals, as in "Decided to restart"."""

    START = "start"  # a stopped node, with the file that it has
    START_CONTROLLER = "start controller"  # one that a failover has left down
    RESTART = "restart"  # with the file of another stage
    REWRITE = "rewrite"  # the file of a node that runs as it should
    REFLAG = "reflag"  # start a controller with its flag restored
    PROVISION = "provision"
    STOP = "stop"
    WIPE = "wipe"
    ELECT = "elect"  # leaders of partitions
    RESTART_LEADER = "restart leader"  # the one that adds a broker to none of its ISRs
    RAISE = "raise"  # partition states, and elect a controller that announces them
    ROLL_BACK_CANARY = "roll back canary"  # a canary that is worse: a broker, or an instance of a group
    ROLL_BACK_OTHER = "roll back other"  # a broker that is left in a mode in which it cannot start, before the step's own
    COMPLETE = "complete"  # what ZooKeeper holds in part
    CONTROLLER_FAILOVER = "fail over the controller"
    HANDOVER = "handover"
    SWITCH = "switch"  # an instance of a group
    STOP_INSTANCES = "stop instances"  # all of a group, in a cutover
    START_INSTANCES = "start instances"  # the same, as one version
    SET_MODE = "set mode"
    COPY_OFFSETS = "copy offsets"
    ROLL_BACK = "roll back"  # an instance, or the mode, back to what it was
    CLEAN_UP = "clean up"
    RELEASE = "release"  # with a group that was rolled back
    NOTE = "note"  # how far an expansion of __consumer_offsets is
    EXPORT = "export offsets"
    DELETE_GROUPS = "delete groups"
    EXPAND = "expand"  # __consumer_offsets
    IMPORT = "import offsets"

    @property
    def brings_up(self) -> bool:
        """Whether it only starts something: that is also done before the effect of a moment without ZooKeeper is known."""
        return self in {Verb.START, Verb.START_CONTROLLER, Verb.ELECT}


@dataclass(frozen=True, slots=True)
class Act:
    """Do `verb` now; `text` says why it is safe now. `about`: which of several things, in words, if a step acts on each."""

    verb: Verb
    text: str
    about: str = ""

    @property
    def label(self) -> str:
        """The act in a few words, as the journal has it; repeated often, it has no effect."""
        return f"{self.verb} {self.about}".strip()


Decision = Done | Wait | Refuse | Act


def waits_for(decision: Decision, cause: Cause) -> TypeGuard[Wait]:
    """Whether a decision is a wait because of `cause`, such as for facts that are read only if nothing else is missing."""
    return isinstance(decision, Wait) and any(reason.cause is cause for reason in decision.reasons)


class Reading(NamedTuple):
    """What one observation reads.

    `every_node`: the machines of all nodes are asked, not only of the nodes that the step changes. `groups`: the consumer groups whose
    members are read.
    """

    fields: Fields
    every_node: bool = False
    groups: tuple[str, ...] = ()

    def plus(self, more: Reading) -> Reading:
        """Both in one observation."""
        groups = tuple(dict.fromkeys((*self.groups, *more.groups)))
        return Reading(self.fields | more.fields, self.every_node or more.every_node, groups)


NOTHING = Reading(Fields(0))


State = TypeVar("State")


class NextAction(NamedTuple, Generic[State]):
    """What a step does now, and all that it remembers of it.

    `needs`: nothing was decided, because this must be read, too; then it decides again. `reads`: what the next observation reads.
    `may_defer`: another process may continue; false if only this one knows of the act that follows.
    """

    decision: Decision
    state: State
    reads: Reading
    may_defer: bool = True
    needs: Reading | None = None
