"""meta.properties, the file in each log directory that says whose it is; source: MetaProperties, Kafka 3.9."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_kmigrate.core.model import NodeFiles


def needs_version_0(files: NodeFiles) -> tuple[str, ...]:
    """The log directories whose file has version 1, with which a plain ZooKeeper broker exits (G10, measured)."""
    return tuple(folder for folder, keys in (files.meta or {}).items() if keys.get("version") == "1")


def version_0(keys: Mapping[str, str]) -> str:
    """The same identity as ZooKeeper brokers write it: `broker.id` for `node.id`; the directory id stays (harmless, measured)."""
    broker = keys.get("broker.id") or keys.get("node.id", "")
    rest = {key: value for key, value in keys.items() if key not in {"version", "broker.id", "node.id"}}
    lines = {"version": "0", "broker.id": broker, **rest}
    return "".join(f"{key}={value}\n" for key, value in lines.items())
