"""Hold a roll until its consumer groups continue: `core.migration.group_progress` decides, over sweeps that one step leaves to the next.

What is left is beside journals and backups, because it may be large, and because the next step is another task. It is no state of
the migration: without it, the next restart measures again which groups make progress, and waits for `WINDOW` seconds.
"""

from __future__ import annotations

import json
from pathlib import Path

from airflow_provider_kmigrate.clients.state_folder import SharedFolder, StateFolder
from airflow_provider_kmigrate.core.cluster_state.model import Fields
from airflow_provider_kmigrate.core.cluster_state.spec import PROBE_GROUP, GroupProgressSpec
from airflow_provider_kmigrate.core.migration.group_progress import GroupProgress, GroupsKept
from airflow_provider_kmigrate.core.shared.foreign_json import read_json
from airflow_provider_kmigrate.exceptions import Failed, Unavailable
from airflow_provider_kmigrate.steps.run import StepContext


class GroupFile:
    """A JSON file; a process that only observes does not write it (`writable`)."""

    def __init__(self, path: Path, *, writable: bool = True, state: StateFolder | None = None) -> None:
        self._path, self._writable, self._state = path, writable, state or SharedFolder()

    def load(self) -> GroupsKept | None:
        """What was kept last; None if there is no readable file."""
        try:
            return GroupsKept.from_json(read_json(self._path.read_bytes()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def save(self, kept: GroupsKept) -> None:
        """Raises `Failed`, and `Unavailable` or `Refused` if the folder cannot be used."""
        if self._writable:
            content = json.dumps(kept.to_json(), separators=(",", ":")).encode()
            self._state.replace(self._path, lambda _: content)


def load_progress(context: StepContext, spec: GroupProgressSpec) -> GroupProgress:
    """Continue with what the step before left; without the probe that the cluster file no longer wants."""
    stored_groups, clock = context.groups.load(), context.clock
    age = max(0.0, clock.now() - stored_groups.at) if stored_groups else 0.0
    progress = GroupProgress.of(spec, stored_groups, age, clock.monotonic())
    return progress.exclude_groups(() if context.spec.probe_folder else (PROBE_GROUP,))


def save_progress(context: StepContext, progress: GroupProgress) -> None:
    """Leave it to the next step. A disk that is full stops no roll: then the next restart measures again."""
    clock = context.clock
    try:
        context.groups.save(progress.groups_to_keep(clock.monotonic(), clock.now()))
    except (Failed, Unavailable) as error:
        context.say(f"Could not keep which consumer groups make progress; the next restart measures again: {error}")


def sample_group_progress(context: StepContext) -> None:
    """Sweep once, so that the first restart of a roll knows who makes progress; nothing if groups are waited for already."""
    stored_groups = context.groups.load()
    sweep = None if stored_groups and stored_groups.awaited else context.observer.observe(Fields.GROUP_PROGRESS).group_progress
    if sweep is not None:
        progress = GroupProgress(context.spec.group_progress, base=sweep.groups, base_at=context.clock.monotonic())
        save_progress(context, progress)
