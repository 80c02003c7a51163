"""A file that others changed is seen by its content at every step, named by its keys, and no secret of it is shown.

The door's case: a configuration tool writes a file of the right mode with other content. Its siblings: ten kinds of edits, of every
node, at every phase; a file of before at the end of the finalization; a broker that was left behind by it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, Fields
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole, NodeSpec, Policy
from airflow_provider_kmigrate.core.migration.phase import Phase, position_of
from airflow_provider_kmigrate.core.migration.plan import MIGRATION, find_step
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage
from airflow_provider_kmigrate.core.node_files.properties import edit_properties
from airflow_provider_kmigrate.exceptions import KMigrateError, Refused
from airflow_provider_kmigrate.steps.backup import render_file
from airflow_provider_kmigrate.steps.brokers import RollBroker
from airflow_provider_kmigrate.steps.catalog import run_plan
from airflow_provider_kmigrate.steps.nodes import install_file
from airflow_provider_kmigrate.steps.originals import main as store_original
from airflow_provider_kmigrate.steps.run import StepContext, run_step
from airflow_provider_kmigrate.steps.waits import Finalized, Soak, require_rollback_assured, run_watch
from tests.steps.file_edits import EDITS, SECRET, at, of_files
from tests.steps.phases import (
    EVERYTHING,
    all_in_migration,
    all_kraft,
    check_end,
    controllers,
    finalize,
    finalizing,
    forward,
    some_in_migration,
    some_kraft,
)
from tests.steps.sim import SimCluster
from tests.steps.sim_nodes import Killed, SimNode

HARMLESS: dict[str, Callable[[str], str]] = {
    "comments": lambda text: "# Ansible managed\n\n" + text + "! the end\n",
    "blanks": lambda text: text.replace("=", " = ").replace("\n", "\r\n"),
    "order": lambda text: "".join(reversed(text.splitlines(keepends=True))),
    "the same again": lambda text: text,
    "a key twice, the same": lambda text: text + text.splitlines()[-1] + "\n",
}
PHASES = [controllers, some_in_migration, all_in_migration, some_kraft, all_kraft]
NODES = [(NodeRole.BROKER, 0), (NodeRole.BROKER, 2), (NodeRole.CONTROLLER, 3001)]


def finalized(cluster: SimCluster, context: StepContext) -> None:
    all_kraft(cluster, context)
    finalize(cluster, context)


@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.__name__)
@pytest.mark.parametrize("node", NODES, ids=lambda node: f"{node[0]}-{node[1]}")
def test_each_kind_of_edit_keeps_a_rollback_from_being_assured(
    tmp_path: Path, phase: Callable[[SimCluster, StepContext], object], node: tuple[NodeRole, int]
) -> None:
    cluster, context = at(phase, tmp_path)
    assert of_files(context) == []
    mine = cluster.nodes[node]
    right = mine.text
    for name, (key, change) in EDITS.items():
        mine.text = change(right)
        (said,) = of_files(context)
        assert "[O03]" in said, name
        assert f"The properties of {node[0]} {node[1]} were edited" in said, name
        assert key in said, name
        assert SECRET not in said
    for name, change in HARMLESS.items():
        mine.text = change(right)
        assert of_files(context) == [], name


@pytest.mark.parametrize("node", NODES, ids=lambda node: f"{node[0]}-{node[1]}")
@pytest.mark.parametrize("kind", EDITS)
def test_the_watch_the_soak_the_approval_and_the_finalization_stop_at_it(
    tmp_path: Path, node: tuple[NodeRole, int], kind: str
) -> None:
    cluster, context = at(all_kraft, tmp_path)
    mine, (key, change) = cluster.nodes[node], EDITS[kind]
    stops = {name: each.stops for name, each in cluster.nodes.items()}
    mine.text = change(mine.text)
    for name, act in {
        "watch": lambda: run_watch(context),
        "soak": lambda: run_step(Soak(3.0), context),
        "approval": lambda: require_rollback_assured(context),
        "finalization": lambda: run_step(finalizing(cluster.spec.controllers[0]), context),
    }.items():
        with pytest.raises(KMigrateError, match="O03") as stopped:
            act()
        assert key in str(stopped.value), name
        assert SECRET not in str(stopped.value)
    assert stops == {name: each.stops for name, each in cluster.nodes.items()}, "nothing was restarted"


@pytest.mark.parametrize("kind", HARMLESS)
def test_a_change_that_changes_no_key_stops_nothing(tmp_path: Path, kind: str) -> None:
    cluster, context = at(all_kraft, tmp_path)
    for mine in cluster.nodes.values():
        mine.text = HARMLESS[kind](mine.text)
    run_watch(context)
    run_step(Soak(3.0), context)
    require_rollback_assured(context)
    finalize(cluster, context)
    run_step(Finalized(), context)
    assert position_of(cluster.observe(EVERYTHING)).phase is Phase.FINALIZED


@pytest.mark.parametrize("kind", EDITS)
@pytest.mark.parametrize("node", NODES, ids=lambda node: f"{node[0]}-{node[1]}")
def test_the_finalization_does_not_end_well_with_an_edited_file(tmp_path: Path, node: tuple[NodeRole, int], kind: str) -> None:
    cluster, context = at(finalized, tmp_path)
    mine, (key, change) = cluster.nodes[node], EDITS[kind]
    right, mine.text = mine.text, change(mine.text)
    with pytest.raises(Refused, match="O03") as refused:
        run_step(Finalized(), context)
    assert key in str(refused.value)
    assert "Its next start, after a reboot too," in str(refused.value)
    mine.text = right
    run_step(Finalized(), context)


BY_A_TOOL: dict[str, tuple[NodeRole, str, Callable[[str], str]]] = {
    "voters of an old try": (NodeRole.BROKER, "controller.quorum.voters", EDITS["voters"][1]),
    "other directories": (NodeRole.BROKER, "log.dirs", EDITS["directories"][1]),
    "other listeners": (NodeRole.BROKER, "listeners", EDITS["listeners"][1]),
    "controllers without ZooKeeper, but with the flag": (
        NodeRole.CONTROLLER,
        "zookeeper.connect",
        lambda text: edit_properties(text, {}, ["zookeeper.connect"]),
    ),
    "controllers with voters of an old try": (NodeRole.CONTROLLER, "controller.quorum.voters", EDITS["voters"][1]),
}


@pytest.mark.parametrize("kind", BY_A_TOOL)
def test_a_tool_that_writes_every_file_of_a_role_in_the_right_stage_is_not_silent(tmp_path: Path, kind: str) -> None:
    """As a playbook does: all nodes of the role at once, by the same template. Each is named, and nothing is finalized."""
    cluster, context = at(all_kraft, tmp_path)
    role, key, change = BY_A_TOOL[kind]
    written = [mine for (of_role, _), mine in cluster.nodes.items() if of_role is role]
    for mine in written:
        stage, mine.text = mine.stage, change(mine.text)
        assert mine.stage is stage, "the stage alone shows nothing"
    assert [key in said and "[O03]" in said for said in of_files(context)] == [True] * len(written)
    for act in (
        lambda: run_watch(context),
        lambda: run_step(Soak(3.0), context),
        lambda: require_rollback_assured(context),
        lambda: finalize(cluster, context),
    ):
        with pytest.raises(KMigrateError, match=f"O03.*{re.escape(key)}"):
            act()
    assert position_of(cluster.observe(EVERYTHING)).phase is not Phase.FINALIZED


def restored(cluster: SimCluster, context: StepContext, number: int) -> SimNode:
    """Its original is put back on a broker."""
    mine = cluster.nodes[NodeRole.BROKER, number]
    mine.text = context.backup.read_original(mine.spec)
    return mine


def test_an_original_that_is_put_back_while_the_last_controller_stops_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next reboot would make it a ZooKeeper broker of a finalized cluster."""
    cluster, context = at(all_kraft, tmp_path)
    stop = SimCluster.stop

    def put_back(self: SimCluster, node: NodeSpec) -> None:
        others = [self.nodes[each.role, each.id].stage for each in self.spec.controllers if each != node]
        if node.role is NodeRole.CONTROLLER and set(others) == {FileStage.CONTROLLER_FINAL}:
            restored(self, context, 1)
        stop(self, node)

    with monkeypatch.context() as patch:
        patch.setattr(SimCluster, "stop", put_back)
        finalize(cluster, context)
    with pytest.raises(Refused, match="O06") as refused:
        run_step(Finalized(), context)
    assert "Broker 1 runs in kraft mode, but its properties file is of a node in stage 'zookeeper'" in str(refused.value)
    assert "its next start, after a reboot too, makes it a ZooKeeper broker again" in str(refused.value)
    stops = cluster.nodes[NodeRole.BROKER, 1].stops
    run_step(RollBroker(cluster.spec.brokers[1], BrokerMode.KRAFT, cluster.spec.policy), context)
    assert cluster.nodes[NodeRole.BROKER, 1].stops == stops, "the task of its second roll writes the file and restarts nothing"
    run_step(Finalized(), context)
    check_end(cluster)


@pytest.mark.parametrize("how", ["a controller's unit", "a process that is not known"])
def test_the_finalization_does_not_end_well_if_a_node_stays_down_after_a_reboot(tmp_path: Path, how: str) -> None:
    cluster, context = at(finalized, tmp_path)
    observe = cluster.observe

    def changed(*given: object) -> object:
        view = observe(*given)  # type: ignore[arg-type]
        one = view.controllers[3001]
        process = replace(one.process, at_boot=False) if how.endswith("unit") else type(one.process)()
        return replace(view, controllers={**view.controllers, 3001: replace(one, process=process)})

    cluster.observe = changed  # type: ignore[assignment, method-assign]
    step = Finalized()
    step.patience = 5.0
    with pytest.raises(KMigrateError, match="O07" if how.endswith("unit") else "U04"):
        run_step(step, context)
    cluster.observe = observe  # type: ignore[method-assign]
    run_step(step, context)


@pytest.mark.parametrize("machine", ["reboots", "stays down"])
@pytest.mark.parametrize("file", ["its original", "an edited original", "of migration mode"])
@pytest.mark.parametrize("brokers", [(1,), (0, 2), (0, 1, 2)], ids=str)
def test_a_run_of_the_migration_recovers_what_a_finalized_cluster_left_behind(
    tmp_path: Path, brokers: tuple[int, ...], file: str, machine: str
) -> None:
    cluster, context = at(finalized, tmp_path)
    for number in brokers:
        mine = restored(cluster, context, number)
        if file == "of migration mode":
            mine.text = render_file(context.spec, context.backup, mine.spec, FileStage.MIGRATION)
        elif file == "an edited original":
            mine.text += "num.io.threads=9\n"
        cluster.stop(mine.spec)
        if machine == "reboots":
            cluster.start(mine.spec)
    cluster.disasters.clear()  # the reboot's
    view = cluster.observe(Fields.POSITION | Fields.FILES)
    assert position_of(view).phase is Phase.LEFT_BEHIND
    with pytest.raises(KMigrateError, match="P02") as alarm:
        run_watch(context)
    for other in ("P07", "first_roll", "migration is open"):
        assert other not in str(alarm.value), "one remedy, and it is the one that works"
    with pytest.raises(Refused, match="P02"):
        run_step(Finalized(), context)
    stops = {node.id: cluster.nodes[node.role, node.id].stops for node in cluster.spec.controllers}
    again = replace(cluster.context(tmp_path), groups=context.groups)
    run_plan(again, (find_step(MIGRATION, "backup"),))
    forward(cluster, again)
    assert position_of(cluster.observe(EVERYTHING)).phase is Phase.FINALIZED
    assert cluster.disasters == []
    assert stops == {node.id: cluster.nodes[node.role, node.id].stops for node in cluster.spec.controllers}
    for node in cluster.spec.brokers:
        mine = cluster.nodes[node.role, node.id]
        assert (mine.stage, mine.running == mine.text) == (FileStage.KRAFT, True)


def test_a_wanted_edit_is_none_once_the_original_has_it(tmp_path: Path) -> None:
    cluster, context = at(all_kraft, tmp_path)
    mine = cluster.nodes[NodeRole.BROKER, 1]
    mine.text += "num.io.threads=9\n"
    assert len(of_files(context)) == 1
    wanted = tmp_path / "wanted"
    wanted.write_text(context.backup.read_original(mine.spec) + "num.io.threads=9\n")
    assert store_original([str(context.backup.folder), "1", str(wanted)]) == 0
    assert of_files(context) == []
    run_step(Soak(3.0), context)


def test_a_file_of_an_earlier_try_is_an_edit_although_kmigrate_wrote_it(tmp_path: Path) -> None:
    """The voters of an old try, put back by a tool."""
    cluster, context = at(all_kraft, tmp_path)
    mine = cluster.nodes[NodeRole.CONTROLLER, 3001]
    old = mine.text
    moved = replace(cluster.spec, controllers=tuple(replace(node, port=node.port + 1) for node in cluster.spec.controllers))
    now = replace(context, spec=moved)
    for node in moved.nodes():
        install_file(now, node, FileStage.KRAFT if node.role is NodeRole.BROKER else FileStage.CONTROLLER_MIGRATION)
    assert of_files(now) == []
    mine.text = old
    (said,) = of_files(now)
    assert "controller.quorum.voters" in said


def test_a_cluster_file_that_changed_since_makes_no_edit_of_what_was_installed(tmp_path: Path) -> None:
    _, context = at(all_kraft, tmp_path)
    faster = replace(context, spec=replace(context.spec, policy=Policy(fast_failover=True)))
    assert of_files(faster) == []


@pytest.mark.parametrize("side_effect", [1, 2])
def test_an_installation_that_was_interrupted_is_no_edit(tmp_path: Path, side_effect: int) -> None:
    """Killed before the write, and after it: the file of before is right until the next one is known to be there."""
    cluster, context = at(all_in_migration, tmp_path)
    faster = replace(context, spec=replace(context.spec, policy=Policy(fast_failover=True)))
    node = cluster.spec.brokers[1]
    confirm, cluster.mortal.at = faster.backup.confirm_written, cluster.mortal.count + side_effect

    def dies(*given: object) -> None:
        cluster.mortal.step()
        confirm(*given)  # type: ignore[arg-type]

    faster.backup.confirm_written = dies  # type: ignore[method-assign]
    with pytest.raises(Killed):
        install_file(faster, node, FileStage.MIGRATION)
    assert of_files(cluster.context(tmp_path)) == []
    cluster.mortal.at = -1
    install_file(replace(cluster.context(tmp_path), spec=faster.spec), node, FileStage.MIGRATION)
    assert of_files(cluster.context(tmp_path)) == []


def test_what_an_earlier_release_noted_is_known(tmp_path: Path) -> None:
    """It listed every file that it had written, and confirmed none."""
    cluster, context = at(all_kraft, tmp_path)
    listed = context.backup.folder / "broker-1.written"
    listed.write_text("0" * 64 + "\n" + listed.read_text().replace(" installed", "") + "1" * 64 + "\n")
    changed = replace(context, spec=replace(context.spec, policy=Policy(fast_failover=True)))
    assert of_files(changed) == []
    cluster.nodes[NodeRole.BROKER, 1].text += "log.dirs=/other\n"
    assert len(of_files(changed)) == 1


def test_a_process_without_the_backup_leaves_it_to_the_task(tmp_path: Path) -> None:
    cluster, context = at(all_kraft, tmp_path)
    cluster.nodes[NodeRole.BROKER, 1].text += "log.dirs=/other\n"
    assert len(of_files(context)) == 1
    assert of_files(replace(context, judges_backup=False)) == []
    restored(cluster, context, 1)
    assert len(of_files(replace(context, judges_backup=False))) == 1, "the mode is seen without it"


def test_what_cannot_be_compared_is_not_taken_for_right(tmp_path: Path) -> None:
    cluster, context = at(all_kraft, tmp_path)
    cluster.nodes[NodeRole.BROKER, 1].text += "# other\n"
    for node in cluster.spec.brokers:
        context.backup.original_path(node).unlink()
    (said,) = of_files(context)
    assert said.startswith("[G00] Could not read what the properties of broker 1 must be")


@pytest.mark.parametrize("role", [NodeRole.BROKER, NodeRole.CONTROLLER])
def test_a_disk_of_an_hour_ago_is_seen_by_its_file(tmp_path: Path, role: NodeRole) -> None:
    """A machine that boots with it runs in the mode of its old file; the run says which node, or goes on."""
    cluster, context = at(some_in_migration, tmp_path)
    mine = cluster.nodes[role, 1 if role is NodeRole.BROKER else 3001]
    old = mine.text
    all_in_migration(cluster, context)
    install_file(context, mine.spec, FileStage.MIGRATION if role is NodeRole.BROKER else FileStage.CONTROLLER_MIGRATION)
    if role is NodeRole.BROKER:
        run_step(RollBroker(mine.spec, BrokerMode.KRAFT, cluster.spec.policy), context)
    cluster.stop(mine.spec)
    mine.text = old
    cluster.start(mine.spec)
    cluster.disasters.clear()  # the boot's
    if role is NodeRole.CONTROLLER:
        assert old == mine.text, "the same file as now: it goes on"
        forward(cluster, context)
        return
    with pytest.raises(KMigrateError, match="P07"):
        run_watch(context)
    run_step(RollBroker(mine.spec, BrokerMode.MIGRATION, cluster.spec.policy), context)
    forward(cluster, context)
    assert position_of(cluster.observe(EVERYTHING)).phase is Phase.FINALIZED
