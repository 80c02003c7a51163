"""Every DAG of every good cluster file in a folder, and one error that names what is wrong in the broken ones.

The two are for two DAG files: Airflow takes all DAGs of a file away, of running migrations too, when the file has an import error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from airflow.configuration import conf
from airflow.sdk import DAG, get_parsing_context

from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec
from airflow_provider_kmigrate.exceptions import SpecError
from airflow_provider_kmigrate.spec import cluster_files, load, load_folder

BUILDERS: Mapping[str, tuple[str, str]] = {
    "kmigrate_preflight": ("checks", "build_preflight"),
    "kmigrate_consumers": ("consumers", "build"),
    "kmigrate_consumers_rollback": ("consumers", "build_rollback"),
    "kmigrate_zk_to_kraft": ("zk_to_kraft", "build"),
    "kmigrate_rollback": ("rollback", "build"),
    "kmigrate_clean_up": ("clean_up", "build"),
    "kmigrate_watch": ("checks", "build_watch"),
    "kmigrate_audit": ("audit", "build"),
    "kmigrate_offsets_topic": ("offsets_topic", "build"),
    "kmigrate_offsets_repair": ("offsets_topic", "build_repair"),
}
"""DAG id up to `__` and the cluster's name -> the module of this package and its function that builds the DAG.

A module is imported when it builds: a task's process imports only that of its own DAG.
"""


def configured_folder() -> Path:
    """The folder of cluster files, `[kmigrate] clusters_folder`, `~` expanded; by default `clusters` beside the DAGs folder."""
    default = Path(conf.get("core", "dags_folder")).parent / "clusters"
    return Path(conf.get("kmigrate", "clusters_folder", fallback="") or default).expanduser()


def dags_of(folder: Path) -> dict[str, DAG]:
    """DAG id -> DAG, for all builders and all good files; empty if the folder does not exist.

    A process that runs one task gets that task's DAG alone, from its own cluster file, if the file can be identified.
    """
    task_dag_id = get_parsing_context().dag_id
    single_dag = _build_single_dag(folder, task_dag_id) if task_dag_id else None
    return (
        {single_dag.dag_id: single_dag} if single_dag else _build_all_dags(load_folder(folder).specs if folder.is_dir() else ())
    )


def check(folder: Path) -> None:
    """Raise one `SpecError` with all broken files: file, line and fix; and with good ones that this Airflow cannot serve."""
    cluster_folder = load_folder(folder) if folder.is_dir() else None
    errors = [*cluster_folder.errors, *filter(None, map(_missing_provider_error, cluster_folder.specs))] if cluster_folder else []
    if errors:
        raise SpecError("\n".join(map(str, errors)), (reason for error in errors for reason in error.reasons))


def _build_all_dags(specs: Iterable[ClusterSpec]) -> dict[str, DAG]:
    dags = [_build_dag(kind, spec) for spec in specs for kind in BUILDERS]
    return {dag.dag_id: dag for dag in dags if dag is not None}


def _build_dag(kind: str, spec: ClusterSpec) -> DAG | None:
    module, function = BUILDERS[kind]
    builder: Callable[[ClusterSpec], DAG | None] = getattr(import_module(f"{__package__}.{module}"), function)
    return builder(spec)


def _build_single_dag(folder: Path, dag_id: str) -> DAG | None:
    """The DAG built from its cluster's file alone; None if only all files together can identify it, or show that it is none."""
    kind, _, name = dag_id.partition("__")
    spec = _find_cluster(folder, name) if kind in BUILDERS else None
    return _build_dag(kind, spec) if spec else None


def _find_cluster(folder: Path, name: str) -> ClusterSpec | None:
    """The cluster `name`, if exactly one file has that name and it is a good one, and no other file mentions its cluster id.

    The texts of the others are searched and not parsed: two files that claim one cluster are both refused (F04).
    """
    key = re.compile(rf"""^["']?name["']?\s*:\s*["']?{re.escape(name)}["']?\s*(?:#.*)?$""", re.MULTILINE)
    try:
        texts = {path: path.read_text(encoding="utf-8", errors="replace") for path in cluster_files(folder)}
        [path] = (path for path, text in texts.items() if key.search(text))
        spec = load(path)
    except (OSError, ValueError, SpecError):
        return None
    claimed = [path for path, text in texts.items() if spec.cluster_id in text]
    return spec if spec.name == name and claimed == [path] else None


def _missing_provider_error(spec: ClusterSpec) -> SpecError | None:
    """F08: what this Airflow misses for the audits and the notifiers of the file."""
    spark = spec.audit is not None and find_spec("airflow.providers.apache.spark") is None
    missing = [f"{spec.path} has an `audit`, but Airflow's Spark provider is not installed."] if spark else []
    problems = (*(Reason("F08", text) for text in missing), *_find_notifier_problems(spec))
    return SpecError.because(*problems) if problems else None


def _find_notifier_problems(spec: ClusterSpec) -> tuple[Reason, ...]:
    if not spec.notify:
        return ()
    from airflow_provider_kmigrate.notifications.check import find_notifier_problems  # noqa: PLC0415  # only files that name notifiers need it

    return find_notifier_problems(spec, connections=False)
