"""Every DAG of every good cluster file in a folder, and one error that tells of the broken ones.

The two are for two DAG files: Airflow takes all DAGs of a file away, of running migrations too, when the file has an import error.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from airflow.configuration import conf
from airflow.sdk import DAG

from airflow_provider_kmigrate.core.cluster import ClusterSpec
from airflow_provider_kmigrate.dag_builders import audit, consumers, preflight, rollback, watch, zk_to_kraft
from airflow_provider_kmigrate.exceptions import SpecError
from airflow_provider_kmigrate.spec import load_folder

BUILDERS: tuple[Callable[[ClusterSpec], DAG | None], ...] = (
    preflight.build,
    consumers.build,
    consumers.build_back,
    zk_to_kraft.build,
    rollback.build,
    watch.build,
    audit.build,
)


def configured_folder() -> Path:
    """`[kmigrate] clusters_folder`, `~` expanded; by default `clusters` beside the DAGs folder."""
    default = Path(conf.get("core", "dags_folder")).parent / "clusters"
    return Path(conf.get("kmigrate", "clusters_folder", fallback="") or default).expanduser()


def dags_of(folder: Path) -> dict[str, DAG]:
    """DAG id -> DAG, for all builders and all good files; none while nobody has made the folder."""
    specs = load_folder(folder).specs if folder.is_dir() else ()
    dags = [builder(spec) for spec in specs for builder in BUILDERS]
    return {dag.dag_id: dag for dag in dags if dag is not None}


def check(folder: Path) -> None:
    """Raise one `SpecError` that tells of all broken files: file, line and fix; and of good ones that this Airflow cannot serve."""
    found = load_folder(folder) if folder.is_dir() else None
    errors = [*found.errors, *filter(None, map(audit.missing, found.specs))] if found else []
    if errors:
        raise SpecError("\n".join(map(str, errors)), (reason for error in errors for reason in error.reasons))
