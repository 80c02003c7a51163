"""The files that make the DAGs and the command line work on a local cluster at once."""

from __future__ import annotations

import json
from typing import Any

import yaml

from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.core.cluster_state.spec import NodeSpec
from tests.kit.localcluster import jaas
from tests.kit.localcluster.plan import Plan


def write(plan: Plan) -> None:
    """Write the cluster file and Airflow's connections, atomically."""
    plan.spec_path.parent.mkdir(parents=True, exist_ok=True)
    atomic.replace(
        plan.spec_path, yaml.safe_dump(cluster_file(plan), sort_keys=False, default_flow_style=None, width=1000).encode()
    )
    atomic.replace(plan.connections_path, json.dumps(connections(plan), indent=1).encode())


def cluster_file(plan: Plan) -> dict[str, Any]:
    """What a user would write about this cluster, with the patience of a rehearsal."""
    name = plan.shape.name
    return {
        "name": name,
        "cluster_id": plan.cluster_id,
        "zookeeper": {"conn_id": f"{name}_zookeeper"},
        "kafka": {"conn_id": f"{name}_kafka"},
        "hosts": {"connect": list(plan.connect)},
        "brokers": [_node(node) for node in plan.brokers],
        "controllers": [_node(node) for node in plan.controllers],
        "policy": {"min_soak": "5s", "canary_bake": "0s"},
        "rehearsal": True,
        **({"kafka_release": release} if (release := plan.shape.kafka_release) else {}),
    }


def _node(node: NodeSpec) -> dict[str, Any]:
    optional = {"rack": node.rack, "log_dir": node.log_dir}
    return {
        "id": node.id,
        "host": node.host,
        "port": node.port,
        **{key: value for key, value in optional.items() if value is not None},
        "properties": node.hosts.properties,
    }


def connections(plan: Plan) -> dict[str, dict[str, Any]]:
    """Airflow's form: connection id -> its fields."""
    name, login = plan.shape.name, jaas.connection(plan)
    extra = {"chroot": plan.shape.chroot, **login.get("extra", {})}
    return {
        f"{name}_zookeeper": {"conn_type": "kmigrate_zookeeper", "host": plan.zookeeper, **login, "extra": extra},
        f"{name}_kafka": {"conn_type": "kafka", "extra": {"bootstrap.servers": plan.bootstrap}},
    }
