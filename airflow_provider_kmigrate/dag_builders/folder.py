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

from airflow_provider_kmigrate.core.cluster import ClusterSpec, NotifierSpec
from airflow_provider_kmigrate.core.model import Reason
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
    wanted = get_parsing_context().dag_id
    alone = _alone(folder, wanted) if wanted else None
    return {alone.dag_id: alone} if alone else _by_id(load_folder(folder).specs if folder.is_dir() else ())


def check(folder: Path) -> None:
    """Raise one `SpecError` with all broken files: file, line and fix; and with good ones that this Airflow cannot serve."""
    found = load_folder(folder) if folder.is_dir() else None
    errors = [*found.errors, *filter(None, map(_unserved, found.specs))] if found else []
    if errors:
        raise SpecError("\n".join(map(str, errors)), (reason for error in errors for reason in error.reasons))


def _by_id(specs: Iterable[ClusterSpec]) -> dict[str, DAG]:
    dags = [_build(kind, spec) for spec in specs for kind in BUILDERS]
    return {dag.dag_id: dag for dag in dags if dag is not None}


def _build(kind: str, spec: ClusterSpec) -> DAG | None:
    module, function = BUILDERS[kind]
    builder: Callable[[ClusterSpec], DAG | None] = getattr(import_module(f"{__package__}.{module}"), function)
    return builder(spec)


def _alone(folder: Path, dag_id: str) -> DAG | None:
    """The DAG built from its cluster's file alone; None if only all files together can identify it, or show that it is none."""
    kind, _, name = dag_id.partition("__")
    spec = _named(folder, name) if kind in BUILDERS else None
    return _build(kind, spec) if spec else None


def _named(folder: Path, name: str) -> ClusterSpec | None:
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


def _unserved(spec: ClusterSpec) -> SpecError | None:
    """F08: what this Airflow misses for the audits and the notifiers of the file."""
    spark = spec.audit is not None and find_spec("airflow.providers.apache.spark") is None
    missing = [f"{spec.path} has an `audit`, but Airflow's Spark provider is not installed."] if spark else []
    missing += [
        f"{spec.path} names notifier {each.notifier}, which this Airflow does not have."
        for each in spec.notify
        if not _exists(each)
    ]
    return SpecError.because(*(Reason("F08", text) for text in missing)) if missing else None


def _exists(notifier: NotifierSpec) -> bool:
    from airflow_provider_kmigrate.hooks.notify import notifier_class  # noqa: PLC0415  # only files that name notifiers need it

    try:
        return bool(notifier_class(notifier))
    except (ImportError, AttributeError, TypeError):
        return False
