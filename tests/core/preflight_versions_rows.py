"""Versions of Kafka, and what preflight finds of each."""

from __future__ import annotations

from airflow_provider_kmigrate.core.cluster_state.model import LogDir, ZooKeeperServer
from tests.core.preflight_around import Row, both_dirs, dirs, environment, everywhere, release, tree
from tests.core.preflight_views import both

TOKENS = both(everywhere(delegation_token_secret_key="x"), tree(tokens=2))
ROWS: list[Row] = [
    ("release 3.5", release("3.5-IV2"), ["B1b"]),
    ("release of before", release("3.3-IV3"), ["B1b"]),
    ("release without ZooKeeper", release("4.0-IV3"), ["B1b"]),
    ("release not reported", release(""), ["B1b"]),
    ("3.6, patch not reported", release("3.6-IV2"), ["B1b"]),
    ("3.6.1", release("3.6-IV2", "3.6.1"), ["B1b"]),
    ("3.6.2", release("3.6-IV2", "3.6.2"), ["B1b"]),
    ("3.7.0", release("3.7-IV4", "3.7.0"), ["B1b"]),
    ("3.7.1", release("3.7-IV4", "3.7.1"), ["B1b"]),
    ("3.7.2", release("3.7-IV4", "3.7.2"), []),
    ("3.8, patch not reported", release("3.8-IV0"), ["B1b"]),
    ("3.8.1", release("3.8-IV0", "3.8.1"), []),
    ("3.9.0", release("3.9-IV0", "3.9.0"), []),
    ("3.8.1 with delegation tokens", both(release("3.8-IV0", "3.8.1"), TOKENS), ["B1b"]),
    ("3.9.0 with delegation tokens", both(release("3.9-IV0", "3.9.0"), TOKENS), []),
    ("Confluent Platform 7.9", release("3.9-IV0", "7.9.2"), []),
    ("Confluent Platform 7.9 as its log says it", release("3.9-IV0", "7.9.2-ccs"), []),
    ("Confluent Platform 7.9 as its packages say it", release("3.9-IV0", "cp-7.9.2"), []),
    ("Confluent Server 7.9", release("3.9-IV0", "7.9.2-ce"), ["B1b"]),
    ("Confluent Platform 7.8, whose patch level is not Kafka's", release("3.8-IV0", "7.8.2-ccs"), ["B1b"]),
    ("Confluent Platform 7.5, too old", release("3.5-IV2", "7.5.1-ccs"), ["B1b"]),
    ("another release of Confluent Platform than brokers run", release("3.9-IV0", "7.8.2-ccs"), ["B1a"]),
    ("another release than the cluster file says", release("3.9-IV0", "3.8.1"), ["B1a"]),
    ("mixed releases", environment(releases={0: "3.9-IV0", 1: "3.8-IV0", 2: "3.9-IV0"}), ["B1a", "B1b"]),
    ("version behind the release", both(release("3.9-IV0"), everywhere(inter_broker_protocol_version="3.8-IV0")), ["B1b"]),
    ("ensemble 3.4", environment(servers=(ZooKeeperServer("zk:2181", "3.4.14"),)), ["B12b"]),
    ("ensemble unresponsive", environment(servers=(ZooKeeperServer("zk:2181"),)), ["B12b"]),
    ("ensemble not asked", environment(servers=()), ["B12b"]),
    ("two directories on 3.6", both_dirs("3.6-IV2"), ["B1b", "B1b"]),
    ("two directories on 3.7", both_dirs("3.7-IV2"), ["B1b", "B1b"]),
    ("two directories on 3.9", both_dirs("3.9-IV0"), []),
    ("directory failed", dirs(LogDir("/a", "KAFKA_STORAGE_ERROR")), ["B7b"]),
    ("directories not reported", environment(log_dirs={}), ["B7b"]),
    ("tiered storage on 3.8", both(release("3.8-IV0", "3.8.1"), everywhere(inter_broker_protocol_version="3.8", remote_log_storage_system_enable="true")), ["B1b"]),
    ("tiered storage on 3.9", everywhere(remote_log_storage_system_enable="true"), []),
]  # fmt: skip
