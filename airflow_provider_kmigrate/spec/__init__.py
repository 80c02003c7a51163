"""Cluster files: YAML -> pydantic -> the frozen dataclasses of `core.cluster_state.spec`. Reads, never executes, knows no Airflow.

`load(path)` gives one `ClusterSpec` or raises a `SpecError` that lists every problem with its line and its fix; `load_folder`
does so for a folder and refuses files that claim the same cluster; `advice` says what is allowed but unwise.
"""

from __future__ import annotations

from airflow_provider_kmigrate.spec.load import Folder, advice, cluster_files, load, load_folder, loads
from airflow_provider_kmigrate.spec.model import schema

__all__ = ["Folder", "advice", "cluster_files", "load", "load_folder", "loads", "schema"]
