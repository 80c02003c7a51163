"""`node accept`: what a broker's file says now becomes its original in the backup, from which every later file is rendered.

For an edit that is wanted (O03): a password, a playbook's setting. The keys are shown first, with what the tool that wrote them must write
in each stage of the broker, and the journal says who accepted them.
"""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from airflow_provider_kmigrate.clients.hosts.files import sha256
from airflow_provider_kmigrate.clients.object_log import refuse_copy
from airflow_provider_kmigrate.clients.state_folder import StateFolder
from airflow_provider_kmigrate.core.cluster_state.model import NodeFiles, Reason
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, NodeSpec
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage
from airflow_provider_kmigrate.core.node_files.properties import diff_properties
from airflow_provider_kmigrate.core.shared.text import summarize
from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.steps.backup import BackupStore, render_from
from airflow_provider_kmigrate.steps.journal import FileJournal, journal_file_name
from airflow_provider_kmigrate.steps.originals import find_accepted_original, refuse_other_user, replace_original


def select_node(spec: ClusterSpec, name: str) -> NodeSpec:
    """The node of a name such as `broker-1` or `broker 1`. Raises `Refused`."""
    for node in spec.nodes():
        if node.name == name.replace("-", " "):
            return node
    names = ", ".join(node.name.replace(" ", "-") for node in spec.nodes())
    raise Refused.because(Reason("F04", f"the cluster file has no node {name}; it has {names}."))


def require_cluster(spec: ClusterSpec, node: NodeSpec, node_files: NodeFiles) -> None:
    """Raise `Refused` (I01) if the node's directories do not name the cluster: its file is no broker's of it."""
    owners = {keys.get("cluster.id") for keys in (node_files.meta or {}).values()} - {None}
    if owners != {spec.cluster_id}:
        found = f"name the cluster {summarize(sorted(map(str, owners)))}" if owners else "name no cluster"
        raise Refused.because(Reason("I01", f"The directories of {node.name} {found}, the cluster file {spec.cluster_id}."))


_STAGES = {
    FileStage.ZOOKEEPER: "in ZooKeeper mode, also after a rollback",
    FileStage.MIGRATION: "in migration mode (first roll)",
    FileStage.KRAFT: "in KRaft mode (second roll)",
}


def describe_stages(spec: ClusterSpec, store: BackupStore, node: NodeSpec, present: str, accepted: str) -> Iterator[str]:
    """What would be missing for each stage of the broker if a tool wrote the present file again; a line each, values of secrets hidden."""
    for stage, name in _STAGES.items():
        try:
            changes = diff_properties(present, render_from(spec, store, node, stage, accepted))
        except Refused as refused:
            yield f"  {name}: no file can be made of it: {refused}"
            continue
        yield f"  {name}: {'as it is' if not changes else 'change'}" + "".join(f"\n    {change}" for change in changes)


def accept(
    spec: ClusterSpec,
    node: NodeSpec,
    present: str,
    folder: Path,
    *,
    say: Callable[[str], object],
    confirm: Callable[[], bool],
    now: Callable[[], float] = time.time,
    state: StateFolder | None = None,
) -> int:
    """Show what the present file of a broker would change in its original, and store that if it is confirmed. The exit code.

    `folder`: Airflow's `[kmigrate] folder`, changed by `state`. Raises `Refused`, and `Unavailable` if it cannot be used.
    """
    refuse_copy(folder, state)
    store = BackupStore(folder / "backup", spec.name, spec.cluster_id, state)
    refuse_other_user(store.folder)
    original, accepted = find_accepted_original(spec, store, node, present)
    changes = diff_properties(original, accepted)
    if not changes:
        say(f"The file of {node.name} is as its original has it: there is nothing to accept.")
        return 0
    lines = "".join(f"\n    {change}" for change in changes)
    say(f"The original of {node.name} would change as its file has:{lines}\nEvery later file, and a rollback, would have this.")
    stages = "\n".join(describe_stages(spec, store, node, present, accepted))
    say(f"A tool that writes this file again must, from the file that is there now:\n{stages}")
    if not confirm():
        return 1
    run = f"accepted__{datetime.fromtimestamp(now(), UTC).isoformat(timespec='seconds')}"
    journal = FileJournal(folder / "journal" / spec.name / journal_file_name(run), run, now, state)
    keys, by = ", ".join(change.key for change in changes), pwd.getpwuid(os.getuid()).pw_name
    journal.write("accept", node.name, f"{by} accepts the present file as the original: {keys}", sha256=sha256(accepted))
    say(replace_original(store, node, original, accepted).rstrip())
    journal.write(
        "accepted", node.name, f"the original has {keys} as the file has", sha256=sha256(accepted), before=sha256(original)
    )
    return 0
