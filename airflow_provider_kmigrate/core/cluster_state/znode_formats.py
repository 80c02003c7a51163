"""Versions of Kafka's znodes that kmigrate's readers understand. A znode of another version is not read, and is named.

A row for each kind that is read by its content. Kafka's own readers take any version of some kinds: a field with another meaning would be
read as if it had the old one. Tests compare the rows with the releases: `tests/kit/releases/znode_formats.json` has the versions that each
writes and takes. Bare znodes, such as /controller_epoch, and the old consumers' have no version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class ZnodeFormat(NamedTuple):
    """The versions of one kind of znode that are understood. `purpose` completes "kmigrate reads it to".

    `may_lack_version`: Kafka's own reader does not ask for one.
    """

    versions: tuple[int, ...]
    purpose: str
    source: str
    may_lack_version: bool = False


BROKER, TOPIC, STATE = "/brokers/ids/[id]", "/brokers/topics/[topic]", "/brokers/topics/[topic]/partitions/[partition]/state"
CLUSTER_ID, CONFIG, CONFIG_CHANGE = "/cluster/id", "/config/[kind]/[name]", "/config/changes/[change]"
CONTROLLER, MIGRATION, FEATURE = "/controller", "/migration", "/feature"
ACL, TOKEN, PRODUCER_IDS = "/kafka-acl/[kind]/[name]", "/delegation_token/tokens/[token]", "/latest_producer_id_block"  # paths

FORMATS: Mapping[str, ZnodeFormat] = {
    BROKER: ZnodeFormat((1, 2, 3, 4, 5), "see when brokers registered, and their listeners", "BrokerIdZNode, KIP-584"),
    TOPIC: ZnodeFormat((1, 2, 3), "compare topics, ids and replicas with KRaft's", "TopicZNode, KIP-455, KIP-516", True),
    STATE: ZnodeFormat((1,), "compare leaders and ISRs, and rewrite states for a handover", "TopicPartitionStateZNode", True),
    CLUSTER_ID: ZnodeFormat((1,), "know that it acts on the right cluster", "ClusterIdZNode, KIP-78", True),
    CONFIG: ZnodeFormat((1,), "compare settings, quotas and users with KRaft's", "ConfigEntityZNode", True),
    CONFIG_CHANGE: ZnodeFormat((1, 2), "name which settings other tools change", "ZkConfigManager, KIP-55"),
    CONTROLLER: ZnodeFormat((1, 2), "know who owns the cluster, and in which mode", "ControllerZNode, KIP-866", True),
    MIGRATION: ZnodeFormat((0,), "know how far the copy and the dual-write are", "MigrationZNode, KIP-866"),
    FEATURE: ZnodeFormat((1, 2), "know that the brokers' controller writes features", "FeatureZNode, KIP-584, KIP-778"),
    ACL: ZnodeFormat((1,), "compare access rules with KRaft's", "AclEntry, KIP-290"),
    TOKEN: ZnodeFormat((1, 2, 3), "compare delegation tokens with KRaft's", "DelegationTokenInfoZNode, KIP-48, KIP-373"),
    PRODUCER_IDS: ZnodeFormat((1,), "know that no producer id is given out twice", "ProducerIdBlockZNode, KIP-730", True),
}


class UnknownVersion(ValueError):
    """A znode has a version that no reader here understands. The text completes "it has"."""


def require_known_version(kind: str, fields: Mapping[str, Any]) -> None:
    """Raise `UnknownVersion` if a znode of this kind, with these JSON values, has a version that is not in `FORMATS`."""
    row = FORMATS[kind]
    if "version" not in fields and row.may_lack_version:
        return
    version = fields.get("version")
    if str(version) not in map(str, row.versions):  # /cluster/id has it as text
        shown = "no version" if version is None else f"version {str(version)[:20]!r}"
        raise UnknownVersion(f"{shown}; kmigrate knows {', '.join(map(str, row.versions))} ({row.source})")
