"""An edit since the backup is never reverted silently, and a controller's file never replaces another service's."""

import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_kmigrate.clients.hosts.files import sha256
from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole, NodeSpec, Policy
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage, stage_of
from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.steps.backup import find_edits
from airflow_provider_kmigrate.steps.brokers import RollBackBroker, RollBroker
from airflow_provider_kmigrate.steps.controllers import ProvisionController
from airflow_provider_kmigrate.steps.nodes import install_file
from airflow_provider_kmigrate.steps.originals import main
from airflow_provider_kmigrate.steps.prepare import run_backup
from airflow_provider_kmigrate.steps.run import StepContext, run_step
from airflow_provider_kmigrate.steps.waits import Soak
from tests.steps.phases import all_kraft, controllers
from tests.steps.sim import SimCluster
from tests.steps.sim_hands import SimHost
from tests.steps.sim_nodes import Health, Killed, SimNode, files_of, parse

SECRET = "ssl.keystore.password=ROTATED\n"


def begun(folder: Path) -> tuple[SimCluster, StepContext]:
    """Controllers up, broker 0 in migration mode."""
    cluster = SimCluster()
    context = cluster.context(folder)
    controllers(cluster, context)
    run_step(RollBroker(cluster.spec.brokers[0], BrokerMode.MIGRATION, cluster.spec.policy), context)
    return cluster, context


def broker(cluster: SimCluster, number: int) -> SimNode:
    return cluster.nodes[NodeRole.BROKER, number]


def said(context: StepContext) -> str:
    return "\n".join(context.say.__self__)  # type: ignore[attr-defined]


def test_a_controller_whose_key_store_is_not_there_is_neither_formatted_nor_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = SimCluster()
    context, node = cluster.context(tmp_path), cluster.spec.controllers[0]
    step = ProvisionController(node, cluster.spec.cluster_id)
    with monkeypatch.context() as without:
        without.setattr(SimHost, "files", lambda self, of: replace(files_of(self._mine(of)), unreadable=("/ks.jks",)))
        with pytest.raises(Refused) as refused:
            run_step(step, context)
    (reason,) = refused.value.reasons
    assert (reason.code, "/ks.jks" in reason.text) == ("C11", True)
    there = cluster.nodes[NodeRole.CONTROLLER, node.id]
    assert (there.formatted, there.starts) == (None, 0)
    run_step(step, context)
    assert (there.formatted, there.starts) == (cluster.spec.cluster_id, 1)


@pytest.mark.parametrize(("number", "stage"), [(0, FileStage.KRAFT), (1, FileStage.MIGRATION)], ids=["rendered", "original"])
def test_forward_an_edited_file_is_refused_before_its_broker_stops(tmp_path: Path, number: int, stage: FileStage) -> None:
    cluster, context = begun(tmp_path)
    node = broker(cluster, number)
    node.text += SECRET + "num.io.threads=32\n"
    before, stops = node.text, node.stops
    with pytest.raises(Refused) as refused:
        install_file(context, node.spec, stage)
    (reason,) = refused.value.reasons
    assert (reason.code, node.text, node.stops) == ("O03", before, stops)
    assert "num.io.threads, ssl.keystore.password" in reason.text
    assert "ROTATED" not in str(refused.value)


def test_a_roll_stops_at_an_edited_file(tmp_path: Path) -> None:
    cluster, context = begun(tmp_path)
    broker(cluster, 1).text += SECRET
    with pytest.raises(Refused, match="O03"):
        run_step(RollBroker(cluster.spec.brokers[1], BrokerMode.MIGRATION, cluster.spec.policy), context)
    assert broker(cluster, 1).stops == 0


def test_a_file_that_was_set_back_ends_a_soak(tmp_path: Path) -> None:
    cluster = SimCluster()
    context = cluster.context(tmp_path)
    all_kraft(cluster, context)
    run_step(Soak(3.0), context)
    node = broker(cluster, 1)
    stops, node.text = node.stops, context.backup.read_original(node.spec)
    with pytest.raises(Refused, match=r"O06.*Broker 1 runs in kraft mode"):
        run_step(Soak(3.0), context)
    assert node.stops == stops


@pytest.mark.parametrize("file", ["generated", "kept"])
def test_a_file_that_is_written_at_each_start_is_refused_after_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    cluster, context = begun(tmp_path)
    node, start = broker(cluster, 1), SimCluster.start
    original, stops = node.text, node.stops

    def generated(self: SimCluster, spec: NodeSpec) -> None:
        node.text = original if spec is node.spec and file == "generated" else node.text
        start(self, spec)

    monkeypatch.setattr(SimCluster, "start", generated)
    step = RollBroker(node.spec, BrokerMode.MIGRATION, cluster.spec.policy)
    if file == "kept":
        run_step(step, context)
    else:
        with pytest.raises(Refused, match="R13"):
            run_step(step, context)
    assert node.stops == stops + 1


def test_the_process_that_restarted_a_broker_waits_for_its_answer_and_restarts_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next process of the task would not know that it was restarted."""
    cluster, context = begun(tmp_path)
    node, start, restarted = broker(cluster, 1), SimCluster.start, list[int]()
    original, stops = node.text, node.stops

    def generated(self: SimCluster, spec: NodeSpec) -> None:
        node.text = original
        restarted.append(self.observations)
        start(self, spec)

    def health(number: int, _mode: BrokerMode, observation: int) -> Health:
        unresponsive = number == 1 and restarted and observation < restarted[-1] + 200
        return Health(None, in_sync=False) if unresponsive else Health()

    monkeypatch.setattr(SimCluster, "start", generated)
    cluster.health = health
    with pytest.raises(Refused, match="R13"):
        run_step(RollBroker(node.spec, BrokerMode.MIGRATION, cluster.spec.policy), context, sync_for=4.0)
    assert node.stops == stops + 1


def test_comments_and_order_are_no_edit(tmp_path: Path) -> None:
    cluster, context = begun(tmp_path)
    node = broker(cluster, 1)
    node.text = "# Ansible managed\n" + "".join(reversed(node.text.splitlines(keepends=True)))
    run_backup(context)
    install_file(context, node.spec, FileStage.MIGRATION)
    assert stage_of(parse(node.text)) is FileStage.MIGRATION


def test_a_policy_that_changed_between_runs_is_no_edit(tmp_path: Path) -> None:
    cluster, context = begun(tmp_path)
    node = broker(cluster, 0)
    faster = replace(context, spec=replace(cluster.spec, policy=Policy(fast_failover=True)))
    assert find_edits(faster.spec, faster.backup, node.spec, parse(node.text), sha256(node.text)) == ()
    install_file(faster, node.spec, FileStage.KRAFT)
    assert "broker.heartbeat.interval.ms=250" in node.text
    install_file(context, node.spec, FileStage.KRAFT)


def test_a_run_that_was_killed_before_its_write_is_no_edit(tmp_path: Path) -> None:
    cluster, context = begun(tmp_path)
    node = broker(cluster, 1)
    cluster.mortal.at = cluster.mortal.count + 1
    with pytest.raises(Killed):
        install_file(context, node.spec, FileStage.MIGRATION)
    assert stage_of(parse(node.text)) is FileStage.ZOOKEEPER
    install_file(context, node.spec, FileStage.MIGRATION)
    assert stage_of(parse(node.text)) is FileStage.MIGRATION


def test_what_an_earlier_release_wrote_is_known_by_its_keys(tmp_path: Path) -> None:
    cluster, context = begun(tmp_path)
    (context.backup.folder / "broker-0.written").unlink()
    text = broker(cluster, 0).text
    assert find_edits(context.spec, context.backup, cluster.spec.brokers[0], parse(text), sha256(text)) == ()


def test_a_rollback_reports_what_it_replaces_and_where_that_is_kept(tmp_path: Path) -> None:
    cluster, context = begun(tmp_path)
    node = broker(cluster, 0)
    node.text += SECRET
    install_file(context, node.spec, FileStage.ZOOKEEPER, allow_edits=True)
    assert node.text == context.backup.read_original(node.spec)
    assert "ATTENTION: The properties of broker 0 were edited after the backup: ssl.keystore.password." in said(context)
    assert re.search(rf"kept as /kept/{node.spec.id}/[0-9a-f]{{64}} on 127\.0\.0\.1", said(context))
    assert "ROTATED" not in said(context)


def test_only_a_rollback_continues_at_an_edit() -> None:
    assert (RollBroker.back, RollBackBroker.back) == (False, True)


def test_an_edit_that_is_wanted_is_taken_into_the_original(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster, context = begun(tmp_path)
    for number, stage in ((0, FileStage.KRAFT), (1, FileStage.MIGRATION)):
        node = broker(cluster, number)
        node.text += SECRET
        original = context.backup.read_original(node.spec)
        wanted = tmp_path / "wanted"
        wanted.write_text(original + SECRET)
        assert main([str(context.backup.folder), str(number), str(wanted)]) == 0
        assert "ssl.keystore.password" in (message := capsys.readouterr().out)
        assert "ROTATED" not in message
        install_file(context, node.spec, stage)
        assert SECRET in node.text
        assert stage_of(parse(node.text)) is stage
        assert context.backup.read_original(node.spec) == original + SECRET
        assert [kept.read_text() for kept in context.backup.folder.glob(f"broker-{number}.properties.*.bak")] == [original]
    assert "broker-0.properties" in context.backup.verify()


def test_without_a_file_an_editor_opens_on_a_private_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, context = begun(tmp_path)
    editor = tmp_path / "editor"
    editor.write_text(f"#!/bin/sh\nstat -c %a $1 > {tmp_path}/mode\necho '{SECRET.strip()}' >> $1\n")
    editor.chmod(0o755)
    monkeypatch.setenv("VISUAL", str(editor))
    before = context.backup.read_original(context.spec.brokers[1])
    assert main([str(context.backup.folder), "1"]) == 0
    assert context.backup.read_original(context.spec.brokers[1]) == before + SECRET
    assert (tmp_path / "mode").read_text() == "600\n"


@pytest.mark.parametrize("name", ["orders", "orders-1Sh-9_ISia_zwGINzRvyQ", f"orders{'_' * 20}"])
def test_a_folder_that_is_no_backups_is_not_written(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    folder, original = tmp_path / name, tmp_path / "bak"
    folder.mkdir()
    original.write_text(SimCluster().nodes[NodeRole.BROKER, 1].text)
    assert main([str(folder), "1", "--lost", str(original)]) == 1
    assert f"[O01] {folder} is not a backup folder" in capsys.readouterr().err
    assert not list(folder.iterdir())


def test_a_backup_that_is_lost_is_made_again_from_the_files_of_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster, context = begun(tmp_path)
    saved = {node: context.backup.read_original(node) for node in cluster.spec.brokers}
    folder, version, rendered = context.backup.folder, context.backup.version(), broker(cluster, 0).text
    shutil.rmtree(folder)
    for node, text in saved.items():
        (tmp_path / "wrong").write_text(rendered)
        (tmp_path / "bak").write_text(text)
        lost = [str(folder), str(node.id), "--lost", "--metadata-version", version]
        assert main([*lost, str(tmp_path / "wrong")]) == 1, "a file of a later stage"
        assert main([*lost, str(tmp_path / "bak")]) == 0
        assert main([*lost, str(tmp_path / "bak")]) == 1, "it is not lost any more"
    assert "[O01]" in capsys.readouterr().err
    install_file(context, cluster.spec.brokers[0], FileStage.KRAFT)
    assert stage_of(parse(broker(cluster, 0).text)) is FileStage.KRAFT


def test_another_users_backup_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Written by root it would be closed to Airflow's user."""
    _, context = begun(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert main([str(context.backup.folder), "1", str(context.backup.original_path(context.spec.brokers[1]))]) == 1
    assert "[O05]" in (message := capsys.readouterr().err)
    assert "sudo -u" in message


@pytest.mark.parametrize("wrong", ["rendered", "of another broker", "absent"])
def test_only_an_original_is_accepted_into_the_backup(tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: str) -> None:
    cluster, context = begun(tmp_path)
    texts = {"rendered": broker(cluster, 0).text, "of another broker": context.backup.read_original(cluster.spec.brokers[1])}
    if wrong in texts:
        (tmp_path / "wanted").write_text(texts[wrong])
    before = context.backup.read_original(cluster.spec.brokers[0])
    assert main([str(context.backup.folder), "0", str(tmp_path / "wanted")]) == 1
    assert "[O01]" in capsys.readouterr().err
    assert context.backup.read_original(cluster.spec.brokers[0]) == before


@pytest.mark.parametrize(
    ("text", "whose"),
    [
        ("broker.id=1\nzookeeper.connect=zk:2181\n", "the file of broker 1"),
        ("process.roles=controller\nnode.id=3001\n", "the file of controller 3001"),
        ("a=1\n", "not a controller's file"),
    ],
)
def test_another_services_file_is_never_replaced_by_a_controllers(tmp_path: Path, text: str, whose: str) -> None:
    cluster = SimCluster()
    node = cluster.nodes[NodeRole.CONTROLLER, 3000]
    node.text = text
    with pytest.raises(Refused, match=f"M01.*{whose}"):
        install_file(cluster.context(tmp_path), node.spec, FileStage.CONTROLLER_MIGRATION)
    assert node.text == text


def test_a_controllers_own_file_is_replaced_as_often_as_it_takes(tmp_path: Path) -> None:
    cluster, context = begun(tmp_path)
    node = cluster.nodes[NodeRole.CONTROLLER, 3000]
    for stage in (FileStage.CONTROLLER_FINAL, FileStage.CONTROLLER_MIGRATION, FileStage.CONTROLLER_MIGRATION):
        install_file(context, node.spec, stage)
        assert stage_of(parse(node.text)) is stage
