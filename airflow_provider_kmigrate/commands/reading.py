"""How a command reads a cluster: with Airflow's own connections, or with an exported file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from airflow_provider_kmigrate.clients.connections import lookup_in, read_connections, settings_for, ssh_connections
from airflow_provider_kmigrate.clients.fence import ReadOnlyFence
from airflow_provider_kmigrate.clients.tools import OpenSsh, open_tools
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec
from airflow_provider_kmigrate.exceptions import Failed
from airflow_provider_kmigrate.observe import Observer
from airflow_provider_kmigrate.spec import load
from airflow_provider_kmigrate.steps.backup import BackupStore
from airflow_provider_kmigrate.steps.journal import NoJournal
from airflow_provider_kmigrate.steps.run import StepContext


def _ssh_opener(spec: ClusterSpec) -> OpenSsh | None:
    """What opens the pipes of nodes that are behind an SSH connection, by Airflow's SSH provider; None if there are none."""
    if not ssh_connections(spec):
        return None
    from airflow_provider_kmigrate.hooks.connections import open_ssh  # noqa: PLC0415  # Airflow takes seconds to import

    return open_ssh


@contextmanager
def open_context(cluster: Path, connections: Path | None, folder: Path | None) -> Iterator[StepContext]:
    """A context of a cluster file in which every act is refused.

    `connections`: an exported file; None: Airflow's own connections, for which this process must reach Airflow's database, as
    `airflow connections get` does. `folder`: kmigrate's on a worker; None: Airflow's, or none with an exported file.
    """
    spec = load(cluster)
    if connections is not None:
        with (
            open_tools(settings_for(spec, lookup_in(read_connections(connections), spec)), spec.name, _ssh_opener(spec)) as tools,
            Observer(spec, tools) as observer,
        ):
            yield StepContext(
                spec,
                observer,
                tools,
                ReadOnlyFence(),
                NoJournal(),
                _backup_in(folder, spec),
                lambda _: None,
                journals=_journals_in(folder, spec),
            )
        return
    os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "server"  # as `airflow connections get`: else it reads no database
    from airflow_provider_kmigrate.utils.step_context import opener, refresh_state  # noqa: PLC0415  # Airflow takes seconds to import

    folder = folder or refresh_state()
    with opener.get()(spec) as access:
        parts = (
            spec,
            access.observer,
            access.tools,
            ReadOnlyFence(),
            NoJournal(),
            _backup_in(folder, spec),
            lambda _: None,
            access.clock,
        )
        yield StepContext(*parts, journals=_journals_in(folder, spec))


def _backup_in(folder: Path | None, spec: ClusterSpec) -> BackupStore:
    """The backup, which is only read. Raises `Failed` if this user may not read the folder: without the originals all would look lost."""
    parts = () if folder is None else (folder, folder / "backup", folder / "journal", folder / "journal" / spec.name)
    if closed := [str(part) for part in parts if os.path.lexists(part) and not os.access(part, os.R_OK | os.X_OK)]:
        raise Failed(
            f"This user may not read kmigrate's folder {closed[0]}. Run the command as Airflow's user, or name another folder with --folder."
        )
    return BackupStore(folder / "backup" if folder else Path(), spec.name, spec.cluster_id)


def _journals_in(folder: Path | None, spec: ClusterSpec) -> Path | None:
    return folder / "journal" / spec.name if folder else None


def say_on_stderr(text: str) -> None:
    """Progress of a command, beside the result on standard output."""
    sys.stderr.write(f"{text}\n")
