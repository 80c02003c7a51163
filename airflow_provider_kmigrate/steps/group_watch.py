"""Hold a roll until its consumer groups continue: `core.group_progress` decides, over sweeps that one step leaves to the next.

What is left is beside journals and backups, because it may be large, and because the next step is another task. It is no state of
the migration: without it, the next restart measures again which groups make progress, and waits for `WINDOW` seconds.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.core.cluster import PROBE_GROUP, GroupProgressSpec
from airflow_provider_kmigrate.core.decision import Decision, Wait
from airflow_provider_kmigrate.core.foreign_json import read_json
from airflow_provider_kmigrate.core.group_progress import GroupProgress, GroupsKept, both
from airflow_provider_kmigrate.core.migration.roll import brokers_isolated
from airflow_provider_kmigrate.core.model import Cause, ClusterView, Fields
from airflow_provider_kmigrate.exceptions import Failed
from airflow_provider_kmigrate.steps.run import StepContext


class GroupFile:
    """A JSON file; a process that only observes does not write it (`writable`)."""

    def __init__(self, path: Path, *, writable: bool = True) -> None:
        self._path, self._writable = path, writable

    def load(self) -> GroupsKept | None:
        """What was kept last; None if there is no readable file."""
        try:
            return GroupsKept.from_json(read_json(self._path.read_bytes()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def save(self, kept: GroupsKept) -> None:
        """Raises `Failed`."""
        if self._writable:
            atomic.make_folder(self._path.parent)
            atomic.replace(self._path, json.dumps(kept.to_json(), separators=(",", ":")).encode())


class GroupWatch:
    """The groups around one step. `end`: the step ends a roll, so it is not done before they continue."""

    def __init__(self, spec: GroupProgressSpec, *, end: bool = False) -> None:
        self.progress, self._end = GroupProgress(spec), end

    def begin(self, context: StepContext) -> None:
        """Continue with what the step before left; without the probe that the cluster file no longer wants."""
        kept, clock = context.groups.load(), context.clock
        age = max(0.0, clock.now() - kept.at) if kept else 0.0
        self.progress = GroupProgress.of(self.progress.spec, kept, age, clock.monotonic())
        self.let_go(() if context.spec.probes else (PROBE_GROUP,))

    def fields(self, view: ClusterView, decision: Decision) -> Fields:
        """What must be read before this decision can be held or not."""
        due = not brokers_isolated(view) and self.progress.due(view, decision, end=self._end)
        return Fields.GROUP_PROGRESS if due else Fields(0)

    def decide(self, view: ClusterView, alone: Decision, decision: Decision) -> Decision:
        """The decision, or a wait for the groups. `alone`: what is left of the restart itself, whatever else the step decided."""
        if brokers_isolated(view):
            return decision
        self.progress, held = self.progress.observe(view, alone, end=self._end)
        return both(decision, held)

    def let_go(self, names: Collection[str]) -> None:
        """Wait for none of these groups."""
        self.progress = self.progress.without(names) if names else self.progress

    def gives_up(self, held: Wait) -> bool:
        """Whether a roll that no consumer may hold up has waited long enough: they hang, or no broker reports them."""
        return self.progress.unanswered or any(reason.cause is Cause.GROUPS_STUCK for reason in held.reasons)

    def restarting(self, context: StepContext) -> None:
        """Keep who must continue, before the broker stops."""
        self.progress = self.progress.restarted()
        self.save(context)

    def save(self, context: StepContext) -> None:
        """Leave it to the next step. A disk that is full stops no roll: then the next restart measures again."""
        clock = context.clock
        try:
            context.groups.save(self.progress.kept(clock.monotonic(), clock.now()))
        except Failed as error:
            context.say(f"Could not keep which consumer groups make progress; the next restart measures again: {error}")

    def forget_decision(self) -> None:
        """Another process performs the restart that was decided here."""
        self.progress = self.progress.forgotten()


def sample(context: StepContext) -> None:
    """Sweep once, so that the first restart of a roll knows who makes progress; nothing if groups are waited for already."""
    kept = context.groups.load()
    sweep = None if kept and kept.awaited else context.observer.observe(Fields.GROUP_PROGRESS).group_progress
    if sweep is not None:
        watch = GroupWatch(context.spec.group_progress)
        watch.progress = replace(watch.progress, base=sweep.groups, base_at=context.clock.monotonic())
        watch.save(context)
