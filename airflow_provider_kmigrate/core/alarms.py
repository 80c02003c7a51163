"""Which alarms of a cluster have begun and which have ended, from one watch to the next.

Operators get two messages about an alarm: when it begins, and when it ends. One alarm is one code about one node or one cause; new
figures in its text make no new alarm. A message that could not be sent is sent again by the next watch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider_kmigrate.core.model import Reason


@dataclass(frozen=True, slots=True)
class OpenAlarm:
    """An alarm that has begun and not ended. `since`: seconds since the epoch; `text`: what was observed first."""

    since: float
    text: str


@dataclass(frozen=True, slots=True)
class Alarms:
    """What one watch passes to the next. `open`: by their names; `stage`: where the cluster was, and since when a watch has seen it."""

    open: Mapping[str, OpenAlarm] = field(default_factory=dict)
    stage: str = ""
    stage_since: float = 0.0

    def at_stage(self, stage: str, now: float) -> Alarms:
        """Add the stage that is observed now."""
        return self if stage == self.stage else replace(self, stage=stage, stage_since=now)

    def observe(self, seen: Sequence[Reason], *, whole: bool = True) -> AlarmChange:
        """Compare with what one watch saw. `whole` false: not everything could be read, so no alarm ends."""
        named = {_name(reason): reason for reason in reversed(seen)}
        begun = {name: reason for name, reason in reversed(named.items()) if name not in self.open}
        ended = {name: alarm for name, alarm in self.open.items() if whole and name not in named}
        return AlarmChange(self, begun, ended)

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        rows = {name: [alarm.since, alarm.text] for name, alarm in self.open.items()}
        return {"open": rows, "stage": self.stage, "stage_since": self.stage_since}


@dataclass(frozen=True, slots=True)
class AlarmChange:
    """The alarms that began and ended with one watch, by their names; `before`: those of the watch before."""

    before: Alarms
    begun: Mapping[str, Reason]
    ended: Mapping[str, OpenAlarm]

    def reported(self, names: Collection[str], now: float) -> Alarms:
        """The alarms for the next watch. `names`: the alarms whose message was sent; `now`: seconds since the epoch."""
        kept = {name: alarm for name, alarm in self.before.open.items() if name not in self.ended or name not in names}
        begun = {name: OpenAlarm(now, str(reason)) for name, reason in self.begun.items() if name in names}
        return replace(self.before, open=kept | begun)


def from_json(stored: object) -> Alarms:
    """What an earlier watch stored. Without it, or if it is damaged, every alarm begins now: it is reported again, never left out."""
    try:
        fields: Any = stored
        found = {str(name): OpenAlarm(float(since), str(text)) for name, (since, text) in fields["open"].items()}
        return Alarms(found, str(fields["stage"]), float(fields["stage_since"]))
    except (KeyError, TypeError, ValueError, AttributeError):
        return Alarms()


def _name(reason: Reason) -> str:
    return " ".join(filter(None, (reason.code, str(reason.cause or ""), reason.node)))
