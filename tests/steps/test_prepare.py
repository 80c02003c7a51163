"""Preflight says everything at once and changes nothing; the backup keeps originals, and only originals."""

import pytest

from airflow_provider_kmigrate.core.cluster import NodeRole
from airflow_provider_kmigrate.core.model import BrokerMode, ConnectionFacts
from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.steps.brokers import RollBroker
from airflow_provider_kmigrate.steps.controllers import ProvisionController
from airflow_provider_kmigrate.steps.prepare import run_backup, run_preflight
from airflow_provider_kmigrate.steps.run import run_step
from tests.steps.sim import SimCluster


def begin(cluster, context):
    for node in cluster.spec.controllers:
        run_step(ProvisionController(node, cluster.spec.cluster_id), context)
    run_step(RollBroker(cluster.spec.brokers[0], BrokerMode.MIGRATION, cluster.spec.policy), context)


def test_the_backup_holds_what_a_way_back_needs(tmp_path):
    cluster = SimCluster()
    context = cluster.context(tmp_path)
    run_backup(context)
    assert context.backup.version() == "3.9-IV0"
    assert context.backup.original(cluster.spec.brokers[2]) == cluster.nodes[NodeRole.BROKER, 2].text
    assert "zookeeper.jsonl" in context.backup.verify()


def test_before_anything_moved_a_changed_file_is_the_new_original(tmp_path):
    cluster = SimCluster()
    context = cluster.context(tmp_path)
    node = cluster.nodes[NodeRole.BROKER, 1]
    node.text += "log.retention.hours=1\n"
    run_backup(context)
    assert context.backup.original(node.spec) == node.text


def test_after_the_first_broker_moved_a_changed_file_is_refused(tmp_path):
    cluster = SimCluster()
    context = cluster.context(tmp_path)
    begin(cluster, context)
    cluster.nodes[NodeRole.BROKER, 1].text += "log.retention.hours=1\n"
    with pytest.raises(Refused) as refused:
        run_backup(context)
    assert refused.value.reasons[0].code == "O03"


def test_a_rendered_file_never_becomes_an_original(tmp_path):
    cluster = SimCluster()
    context = cluster.context(tmp_path)
    before = cluster.nodes[NodeRole.BROKER, 0].text
    begin(cluster, context)
    run_backup(context)
    assert cluster.nodes[NodeRole.BROKER, 0].text != before
    assert context.backup.original(cluster.spec.brokers[0]) == before


def test_once_a_broker_has_moved_the_tree_of_before_stays(tmp_path):
    cluster = SimCluster()
    context = cluster.context(tmp_path)
    tree = context.backup.folder / "zookeeper.jsonl"
    run_backup(context)
    run_backup(context)
    before = tree.read_text()
    begin(cluster, context)
    cluster.kafka_tree.append(("/brokers/topics/new", b""))
    assert run_backup(context).text.startswith("2 znodes")
    assert tree.read_text() == before


def test_brokers_of_different_versions_are_refused(tmp_path):
    cluster = SimCluster()
    context = cluster.context(tmp_path)
    node = cluster.nodes[NodeRole.BROKER, 1]
    node.running = node.text.replace("protocol.version=3.9", "protocol.version=3.8")
    with pytest.raises(Refused) as refused:
        run_backup(context)
    assert refused.value.reasons[0].code == "B1a"


def test_preflight_judges_its_own_connections(tmp_path):
    cluster = SimCluster(connections=ConnectionFacts(unverified=frozenset({"kafka"})))
    with pytest.raises(Refused) as refused:
        run_preflight(cluster.context(tmp_path))
    assert [reason.code for reason in refused.value.reasons] == ["B9f"]


def test_preflight_tells_all_that_blocks_and_touches_nothing(tmp_path):
    cluster = SimCluster(offset=97)
    cluster.nodes[NodeRole.CONTROLLER, 3000].log = True
    cluster.stop(cluster.spec.brokers[2])
    before = {key: (node.starts, node.stops, node.text) for key, node in cluster.nodes.items()}
    with pytest.raises(Refused) as refused:
        run_preflight(cluster.context(tmp_path))
    codes = {reason.code for reason in refused.value.reasons}
    assert {"R01", "S02", "P06"} <= codes
    assert before == {key: (node.starts, node.stops, node.text) for key, node in cluster.nodes.items()}
