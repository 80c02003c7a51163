"""The progress of a step that no observation of the cluster shows; it is stored and outlives the process."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from airflow_provider_kmigrate.core.cluster_state.decision import Refuse
from airflow_provider_kmigrate.core.cluster_state.model import Cause, Reason
from airflow_provider_kmigrate.core.reasons.entry import AuditCause

VERSION = 1


@dataclass(frozen=True, slots=True)
class StepProgress:
    """What one step passes to its next process: another worker, the triggerer, or a retry of the task.

    The cluster shows how far a migration is; no field repeats that. Times are seconds, and only of what was observed.

    `healthy_seconds`: all was healthy without interruption. `waited_seconds`: no act and no healthy observation, counted against
    the step's timeout. `watched_seconds`, `lapses`: a consumer group was watched, and how often it became unhealthy in that time.

    `worse`: why what is watched must not continue, as one process of this try found it. `verdict`: why an instance must be rolled
    back, until it is. `restart_begun`: it was decided to restart an instance; of a cutover, its canary was a member.
    `member_restarts`: of an instance under watch. `recoveries`: of a dual-write.
    """

    healthy_seconds: float = 0.0
    waited_seconds: float = 0.0
    watched_seconds: float = 0.0
    lapses: int = 0
    worse: tuple[Reason, ...] = ()
    verdict: tuple[Reason, ...] = ()
    restart_begun: bool = False
    member_restarts: int = 0
    recoveries: int = 0

    def to_json(self) -> dict[str, Any]:
        """JSON values: `{"version": 1, <field>: number, boolean, or a list of reasons as lists of three strings}`."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        rows = {name: [reason.to_row() for reason in value] for name, value in values.items() if isinstance(value, tuple)}
        return {"version": VERSION} | values | rows

    def for_retry(self) -> StepProgress:
        """What a new try of the task begins with: a new timeout and its own watch."""
        return replace(self, waited_seconds=0.0, worse=())

    def merge_before_act(self, now: StepProgress) -> StepProgress:
        """What must be stored before the step acts on what it knows `now`, so that a killed process does not lose it.

        Healthy seconds that were added since may be lost: the step then watches for longer. Those that became void must not stay.
        """
        return replace(
            self,
            healthy_seconds=min(self.healthy_seconds, now.healthy_seconds),
            verdict=now.verdict or self.verdict,
            restart_begun=now.restart_begun or self.restart_begun,
            member_restarts=now.member_restarts,
            recoveries=now.recoveries,
        )


FRESH = StepProgress()


def from_json(value: object) -> StepProgress | Refuse:
    """Read the output of `to_json`; None is a fresh start. Others are refused (H09): a newer version's may hold a verdict that would be ignored."""
    if value is None:
        return FRESH
    if not isinstance(value, Mapping) or value.get("version") != VERSION:
        return _refuse_unreadable(value)
    stored_fields = {name: content for name, content in value.items() if name != "version"}
    shapes = {field.name: getattr(FRESH, field.name) for field in fields(StepProgress)}
    if stored_fields.keys() != shapes.keys() or not all(
        _has_shape_of(stored_fields[name], shape) for name, shape in shapes.items()
    ):
        return _refuse_unreadable(value)
    reasons = {name: tuple(map(Reason.from_row, content)) for name, content in stored_fields.items() if isinstance(content, list)}
    return StepProgress(**(stored_fields | reasons))


def _has_shape_of(value: object, shape: object) -> bool:
    if isinstance(shape, tuple):
        return isinstance(value, list) and all(_is_reason(row) for row in value)
    if isinstance(shape, bool) or isinstance(value, bool):
        return isinstance(shape, bool) and isinstance(value, bool)
    return isinstance(value, int if isinstance(shape, int) else int | float) and 0 <= value < math.inf  # NaN is neither


def _is_reason(value: object) -> bool:
    """Whether `Reason.from_row` reads it; another release's cause is not read."""
    if not isinstance(value, list) or len(value) != 3 or not all(isinstance(part, str) for part in value):
        return False
    return value[2] in {"", *Cause, *AuditCause}


def _refuse_unreadable(value: object) -> Refuse:
    version = value.get("version") if isinstance(value, Mapping) else None
    text = "This task's stored progress cannot be read."
    if isinstance(version, int) and version > VERSION:
        text = f"This task's progress was stored by a newer kmigrate (version {version}; this one reads {VERSION})."
    return Refuse((Reason("H09", text),))
