"""Properties files that a step repairs, and what preflight finds of each."""

from __future__ import annotations

from airflow_provider_kmigrate.core.cluster_state.model import NodeFiles
from airflow_provider_kmigrate.core.node_files.config_matrix import Metas
from tests.core.preflight_views import CLUSTER_ID, FORMATTED, Change, both, broker_1, config, started

OWN = {"/data": {"version": "0", "broker.id": "1", "cluster.id": CLUSTER_ID}}
NO_ID = {"broker_id": ""}
ALL_GENERATED = {"reserved_broker_max_id": "0"}  # so that 1 is an id as ZooKeeper generates them


def written(meta: Metas = OWN, /, **changes: str) -> Change:
    """Broker 1's file and its directories; an empty value: the key is not there."""
    keys = {key: value for key, value in config(1, **changes).items() if value}
    return broker_1(files=NodeFiles(keys, meta))


def running(meta: Metas = OWN, /, **changes: str) -> Change:
    """The broker was started with this file."""
    return both(written(meta, **changes), started)


REPAIRED: list[tuple[str, Change, list[str]]] = [
    ("no id", running(**NO_ID), ["broker.id=1"]),
    ("generated", running(broker_id="-1"), ["broker.id=1"]),
    ("no number", running(broker_id="one"), ["broker.id=1"]),
    ("no id, and it is above the reserved ones", running(**NO_ID, **ALL_GENERATED), ["broker.id=1", "broker.id.generation.enable=false"]),
    ("generated above the reserved ones", running(broker_id="-1", **ALL_GENERATED), ["broker.id=1", "broker.id.generation.enable=false"]),
    ("above the reserved ones", running(**ALL_GENERATED), ["broker.id.generation.enable=false"]),
    ("above the reserved ones, and its directories name no owner", running(FORMATTED, **ALL_GENERATED), ["broker.id.generation.enable=false"]),
    ("generated under both names", running(broker_id="-1", node_id="-1"), ["broker.id=1", "node.id=1"]),
    ("generated under the new name", running(**NO_ID, node_id="-1"), ["node.id=1"]),
    ("two ids", running(node_id="2"), ["node.id=1"]),
    ("a key of another stage", running(controller_quorum_bootstrap_servers="c:9093"), []),
    ("a key with which the broker would not start", written(controller_listener_names="CONTROLLER"), []),
    ("another chroot than the broker runs with", written(zookeeper_connect="zk:2181"), ["zookeeper.connect=zk:2181/kafka"]),
    ("several at once", running(**NO_ID, **ALL_GENERATED, controller_quorum_bootstrap_servers="c:9093"), ["broker.id=1", "broker.id.generation.enable=false"]),
]  # fmt: skip
