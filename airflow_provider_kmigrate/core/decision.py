"""What may be decided about an observed cluster: done, wait, refuse, or act."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeGuard

from airflow_provider_kmigrate.core.model import Cause, Reason


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing is left to do; `text` says what holds."""

    text: str


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
    STOP_BROKER = "stop broker"  # one that hangs, for a handover
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
    def named(self) -> str:
        """The act in a few words, as the journal has it; repeated often, it has no effect."""
        return f"{self.verb} {self.about}".strip()


Decision = Done | Wait | Refuse | Act


def waits_for(decision: Decision, cause: Cause) -> TypeGuard[Wait]:
    """Whether a decision is a wait because of `cause`, such as for facts that are read only if nothing else is missing."""
    return isinstance(decision, Wait) and any(reason.cause is cause for reason in decision.reasons)
