"""Which alarms of a cluster have begun and which have ended, from one watch to the next.

Two messages report an alarm: when it begins, and when it ends. One alarm is one code about one thing; new figures in its text
are no new alarm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider_kmigrate.core.model import Reason


@dataclass(frozen=True, slots=True)
class OpenAlarm:
    """An alarm that has begun and not ended. `since`: seconds since the epoch; `text`: what was seen first."""

    since: float
    text: str


@dataclass(frozen=True, slots=True)
class Alarms:
    """What one watch passes to the next. `open`: by their names; `stage`: where the cluster was, and since when a watch has seen it."""

    open: Mapping[str, OpenAlarm] = field(default_factory=dict)
    stage: str = ""
    stage_since: float = 0.0

    def at_stage(self, stage: str, now: float) -> Alarms:
        """With the stage that is seen now."""
        return self if stage == self.stage else replace(self, stage=stage, stage_since=now)

    def observe(self, seen: Sequence[Reason], now: float, *, whole: bool = True) -> AlarmChange:
        """Add what one watch saw. `whole` false: it could not see everything, so no alarm ends."""
        named = {_name(reason): reason for reason in reversed(seen)}
        begun = tuple(reason for name, reason in reversed(named.items()) if name not in self.open)
        ended = {name: alarm for name, alarm in self.open.items() if whole and name not in named}
        kept = {name: alarm for name, alarm in self.open.items() if name not in ended}
        kept |= {_name(reason): OpenAlarm(now, str(reason)) for reason in begun}
        return AlarmChange(replace(self, open=kept), begun, tuple(ended.values()))

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        rows = {name: [alarm.since, alarm.text] for name, alarm in self.open.items()}
        return {"open": rows, "stage": self.stage, "stage_since": self.stage_since}


@dataclass(frozen=True, slots=True)
class AlarmChange:
    """What changed with one watch; `alarms` goes to the next one."""

    alarms: Alarms
    begun: tuple[Reason, ...]
    ended: tuple[OpenAlarm, ...]


def from_json(stored: object) -> Alarms:
    """What an earlier watch stored. Without it, or if it is damaged, every alarm begins now: it is reported once more, not never."""
    try:
        fields: Any = stored
        found = {str(name): OpenAlarm(float(since), str(text)) for name, (since, text) in fields["open"].items()}
        return Alarms(found, str(fields["stage"]), float(fields["stage_since"]))
    except (KeyError, TypeError, ValueError, AttributeError):
        return Alarms()


def _name(reason: Reason) -> str:
    return " ".join(filter(None, (reason.code, str(reason.cause or ""), reason.node)))
