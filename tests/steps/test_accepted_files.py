"""An edit of a node's file that somebody wants is accepted by the node's name: it is in the original, and the journal says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage
from airflow_provider_kmigrate.core.node_files.properties import edit_properties
from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.node.accept import accept
from airflow_provider_kmigrate.steps.backup import render_file
from airflow_provider_kmigrate.steps.run import StepContext, run_step
from airflow_provider_kmigrate.steps.waits import Finalized, Soak, require_rollback_assured, run_watch
from tests.steps.file_edits import EDITS, SECRET, _set, at, of_files
from tests.steps.phases import all_in_migration, all_kraft, finalize, some_kraft
from tests.steps.sim import SimCluster
from tests.steps.sim_nodes import SimNode

ACCEPTABLE = {
    "a setting": (_set(num_io_threads="9"), "+ num.io.threads=9"),
    "a password": (_set(ssl_keystore_password=SECRET), "+ ssl.keystore.password=(not shown)"),
    "another retention": (_set(log_retention_hours="7"), "log.retention.hours"),
    "comments too": (lambda text: f"# Ansible\n{text}num.io.threads=9\n", "+ num.io.threads=9"),
    "an escaped value": (lambda text: text + "a.b=one \\\n   two\\u00e9\n", "a.b"),
}
MOVED_BY = [all_in_migration, some_kraft, all_kraft]


def accept_file(context: StepContext, mine: SimNode, folder: Path, *, answer: bool = True) -> tuple[int, str]:
    said: list[str] = []
    backup = context.backup.folder
    (folder / "kept").mkdir(exist_ok=True)
    if not (folder / "kept" / "backup").exists():
        (folder / "kept" / "backup").symlink_to(backup.parent)
    code = accept(
        context.spec,
        mine.spec,
        mine.text,
        folder / "kept",
        say=lambda text: said.append(str(text)),
        confirm=lambda: answer,
        now=lambda: 0.0,
    )
    return code, "\n".join(said)


@pytest.mark.parametrize("phase", MOVED_BY, ids=lambda phase: phase.__name__)
@pytest.mark.parametrize("kind", ACCEPTABLE)
def test_an_edit_of_a_file_is_accepted_by_its_nodes_name_and_is_in_the_journal(
    tmp_path: Path, phase: Callable[[SimCluster, StepContext], object], kind: str
) -> None:
    cluster, context = at(phase, tmp_path)
    mine, (change, shown) = cluster.nodes[NodeRole.BROKER, 1], ACCEPTABLE[kind]
    mine.text = change(mine.text)
    before = context.backup.read_original(mine.spec)
    assert len(of_files(context)) == 1
    assert accept_file(context, mine, tmp_path, answer=False)[0] == 1
    assert context.backup.read_original(mine.spec) == before
    assert not list((tmp_path / "kept").glob("journal/*/*")), "nothing was accepted"
    code, said = accept_file(context, mine, tmp_path)
    assert (code, shown in said, SECRET in said) == (0, True, False)
    assert said.count(": as it is") == 1, "a tool that writes this file has it right in the broker's stage alone"
    assert said.count("mode (") + said.count("also after a rollback: ") == 3
    assert of_files(context) == []
    lines = [json.loads(line) for line in next((tmp_path / "kept").glob("journal/*/*.jsonl")).read_text().splitlines()]
    assert [(line["kind"], line["step"]) for line in lines] == [("accept", "broker 1"), ("accepted", "broker 1")]
    assert SECRET not in json.dumps(lines)
    assert lines[1]["sha256"] == context.backup.read_digest(mine.spec)
    assert "nothing to accept" in accept_file(context, mine, tmp_path)[1]


def test_a_migration_ends_well_after_an_edit_was_accepted_and_a_rollback_has_it(tmp_path: Path) -> None:
    cluster, context = at(all_kraft, tmp_path)
    mine = cluster.nodes[NodeRole.BROKER, 1]
    mine.text += "num.io.threads=9\n"
    assert accept_file(context, mine, tmp_path)[0] == 0
    assert "num.io.threads=9" in render_file(context.spec, context.backup, mine.spec, FileStage.ZOOKEEPER)
    run_watch(context)
    run_step(Soak(3.0), context)
    require_rollback_assured(context)
    finalize(cluster, context)
    run_step(Finalized(), context)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (EDITS["voters"][1], "controller.quorum.voters"),
        (EDITS["node id"][1], "node.id"),
        (_set(process_roles="broker,controller"), "process.roles"),
        (lambda text: edit_properties(text, {}, ["process.roles"]), "controller.quorum.voters"),
        (_set(zookeeper_metadata_migration_enable="false"), "zookeeper.metadata.migration.enable"),
        (_set(broker_id="7"), "broker.id"),
    ],
    ids=["voters", "node id", "roles", "no roles", "flag", "broker id"],
)
def test_what_kmigrate_decides_itself_is_not_accepted(tmp_path: Path, change: Callable[[str], str], key: str) -> None:
    cluster, context = at(all_kraft, tmp_path)
    mine = cluster.nodes[NodeRole.BROKER, 1]
    before = context.backup.read_original(mine.spec)
    mine.text = change(mine.text) + "num.io.threads=9\n"
    with pytest.raises(Refused, match=r"O03|C04") as refused:
        accept_file(context, mine, tmp_path)
    assert key in str(refused.value)
    assert context.backup.read_original(mine.spec) == before


def test_a_controllers_edit_belongs_into_the_cluster_file(tmp_path: Path) -> None:
    cluster, context = at(all_kraft, tmp_path)
    mine = cluster.nodes[NodeRole.CONTROLLER, 3001]
    mine.text += f"num.io.threads=9\nssl.keystore.password={SECRET}\n"
    with pytest.raises(Refused, match=r"O03.*controller 3001 has no original.*`quorum\.properties`.*num\.io\.threads") as refused:
        accept_file(context, mine, tmp_path)
    assert SECRET not in str(refused.value)
