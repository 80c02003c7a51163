"""Versions of Kafka, and what preflight finds of each."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_kmigrate.core.cluster_state.model import ClusterView, LogDir, Software, ZooKeeperServer
from airflow_provider_kmigrate.core.preflight.findings import PreflightFacts
from tests.core.preflight_around import Row, both_dirs, dirs, environment, everywhere, release, tree
from tests.core.preflight_views import Case, Change, both


def jars(name: str) -> Change:
    """What agents report of every broker's jars."""

    def change(view: ClusterView, facts: PreflightFacts) -> Case:
        software = Software(release=name, disk_release=name, disk_java="/java")
        return replace(
            view, brokers={i: replace(b, process=replace(b.process, software=software)) for i, b in view.brokers.items()}
        ), facts

    return change


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
    ("a hotfix of Confluent Platform 7.9", release("3.9-IV0", "7.9.2.1-ccs"), ["B1b"]),
    ("a build of Confluent Platform 7.9 of another name", release("3.9-IV0", "7.9.2-post"), ["B1b"]),
    ("a vendor's build", release("3.8-IV0", "3.8.1.redhat-00007"), ["B1b"]),
    ("a vendor's build by a fourth number", release("3.9-IV0", "3.9.2.1"), ["B1b"]),
    ("a build before its release", release("3.9-IV0", "3.9.2-SNAPSHOT"), ["B1b"]),
    ("a candidate", release("3.9-IV0", "3.9.2-rc0"), ["B1b"]),
    ("a release later than those in tests", release("3.9-IV0", "3.9.99"), ["B1b"]),
    ("a vendor's build that is too old in any case", release("3.6-IV2", "3.6.2.7.3.1.0-197"), ["B1b"]),
    ("a name of no release", release("3.9-IV0", "cp-3.3.1"), ["B1b"]),
    ("jars of Confluent Server, nothing stated", both(release("3.9-IV0"), jars("7.9.2-ce")), ["B1b"]),
    ("jars of a patch level that decides, nothing stated", both(release("3.8-IV0"), jars("3.8.1")), []),
    ("jars of a patch level that is blocked, nothing stated", both(release("3.7-IV4"), jars("3.7.0")), ["B1b"]),
    ("jars of another patch level than the cluster file says", both(release("3.9-IV0", "3.9.2"), jars("3.9.1")), ["B1a"]),
    ("jars of two releases", both(release("3.9-IV0", "3.9.2"), jars("3.9.1, 3.9.2")), ["B1b"]),
    ("jars of Confluent Platform, Kafka's number stated", both(release("3.9-IV0", "3.9.2"), jars("7.9.2-ccs")), []),
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
    ("two directories on 3.6 by log.dir", both(release("3.6-IV2"), everywhere(inter_broker_protocol_version="3.6-IV2", log_dirs="", log_dir="/data,/b")), ["B1b", "B1b"]),
    ("two directories on 3.7", both_dirs("3.7-IV2"), ["B1b", "B1b"]),
    ("two directories on 3.9", both_dirs("3.9-IV0"), []),
    ("directory failed", dirs(LogDir("/a", "KAFKA_STORAGE_ERROR", 1 << 40)), ["B7b"]),
    ("directories not reported", environment(log_dirs={}), ["B7b"]),
    ("tiered storage on 3.8", both(release("3.8-IV0", "3.8.1"), everywhere(inter_broker_protocol_version="3.8", remote_log_storage_system_enable="true")), ["B1b"]),
    ("tiered storage on 3.9", everywhere(remote_log_storage_system_enable="true"), []),
]  # fmt: skip
