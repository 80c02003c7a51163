"""Several nodes in one task: its log says what came of it, also where nothing was left to do."""

from dataclasses import replace
from pathlib import Path

from airflow_provider_kmigrate.core.model import BrokerMode
from airflow_provider_kmigrate.steps.brokers import RollBroker
from airflow_provider_kmigrate.steps.catalog import roll_all
from tests.steps.sim import SimCluster


def test_the_log_of_the_last_one_of_a_pass_is_never_empty(tmp_path: Path) -> None:
    cluster, said = SimCluster(), list[str]()
    context = replace(cluster.context(tmp_path), say=said.append)
    mode = BrokerMode.ZOOKEEPER
    roll_all(context, mode, lambda node: RollBroker(node, mode, cluster.spec.policy))
    assert said == ["Done: No broker was left."]
