"""An application with a former version of the library, beside today's provider and an application with today's: they upgrade apart."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from airflow_provider_kmigrate.applications.event_log import read_events
from airflow_provider_kmigrate.clients.group_reads import seen
from airflow_provider_kmigrate.clients.settings import ZooKeeperSettings
from airflow_provider_kmigrate.clients.zookeeper import ZooKeeper
from airflow_provider_kmigrate.core.member.group_seen import MemberKind
from airflow_provider_kmigrate.groups import main
from tests.consumer.migrating_group import Load, Member, delivered, facts
from tests.consumer.real_group import PARTITIONS, goes_on, in_zookeeper, metric
from tests.kit.library_environment import command_in, make_former_environment
from tests.kit.localcluster.cluster import LocalCluster
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(300)]
FORMER = "99f159cf7b3e07af36ee55967022603b07ea4964"  # writes events of schema version 2, before the library had a wheel

APPLICATION = """
import json, signal
from airflow_provider_kmigrate.applications.migrating import audited_of
properties, topic, folder = json.loads(sys.argv[1])
over = []
signal.signal(signal.SIGTERM, lambda *_: over.append(True))
consumer = audited_of(properties, folder)
consumer.subscribe([topic])
while not over:
    consumer.poll(0.2)
consumer.close()
"""


def test_a_former_version_shares_a_group_follows_the_mode_and_is_audited(
    cluster: LocalCluster, zookeeper: KazooClient, properties: dict[str, Any], group: str, tmp_path: Path
) -> None:
    environment = make_former_environment(tmp_path / "former", FORMER)
    if environment is None:
        pytest.skip("this checkout has no history: a former version cannot be built")
    audit = tmp_path / "audit"
    asked = json.dumps([properties | {"consumer.id": "former"}, group, str(audit)])
    with Member(properties, audit, [group]) as today, Load(cluster.bootstrap, audit, group, PARTITIONS) as load:
        with subprocess.Popen(command_in(environment, APPLICATION, asked)) as former:
            try:
                wait_until(lambda: len(today.owned) == PARTITIONS // 2 and delivered(audit) > 500, "each has half of the group")
                assert {member.kind for member in observe(cluster, group)} == {MemberKind.MIGRATING}
                for mode, count in (("kafka", 1), ("zookeeper", 0)):
                    assert set_mode(cluster, group, mode) == 0, "every member has followed"
                    wait_until(lambda count=count: metric((today,), "ActiveKafkaCoordinationCount") == [count], "it follows")
                    wait_until(lambda: len(today.owned) == PARTITIONS // 2, "each has half of the group")
                    goes_on(audit)
                former.terminate()
                assert former.wait(60) == 0
            finally:
                former.kill()
        wait_until(lambda: len(today.owned) == PARTITIONS, "all is today's")
        load.end()
        wait_until(lambda: delivered(audit) == load.sent, "the rest comes")
    found = facts(audit)
    assert read_events(audit).refused == [], "the provider reads what a former version writes"
    assert found.complete, found.reasons
    assert found.delivered == {group: load.sent}
    assert not found.violations
    assert in_zookeeper(zookeeper, group) == dict.fromkeys(range(PARTITIONS), load.sent // PARTITIONS)


def observe(cluster: LocalCluster, group: str) -> list[Any]:
    with ZooKeeper(ZooKeeperSettings(cluster.zookeeper)) as zk:
        return list(seen(zk, {"bootstrap.servers": cluster.bootstrap}, [group])[group].members or ())


def set_mode(cluster: LocalCluster, group: str, mode: str) -> int:
    where = ["--zookeeper", cluster.zookeeper, "--bootstrap", cluster.bootstrap]
    return main(["set-mode", mode, "--group", group, *where])
