"""Every step by name and plain arguments, so that a trigger in another process can make the same step again.

Each module of steps makes its own, in a table `STEPS`; a process imports only the one whose step it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from airflow_provider_kmigrate.core.cluster import ClusterSpec
from airflow_provider_kmigrate.core.progress import FRESH, StepProgress
from airflow_provider_kmigrate.steps.run import Arguments, Maker, Step

STEPS: Mapping[str, str] = {
    "provision": "controllers",
    "controllers ready": "waits",
    "roll": "brokers",
    "registered": "waits",
    "phase": "waits",
    "copied": "waits",
    "lag": "waits",
    "equivalent": "waits",
    "leaders": "waits",
    "soak": "waits",
    "finalize": "controllers",
    "finalized": "waits",
    "restore flag": "rollback",
    "reconcile": "rollback",
    "back": "brokers",
    "healed": "rollback",
    "stop controller": "rollback",
    "give back": "rollback",
    "zookeeper leads": "rollback",
    "wipe": "rollback",
    "rolled back": "rollback",
    "switch": "groups",
    "mode": "groups",
    "watch group": "groups",
    "group back": "groups",
    "clean up": "groups",
}
"""Kind of step -> the module of this package that makes it."""


def build(spec: ClusterSpec, kind: str, arguments: Arguments, progress: StepProgress = FRESH) -> Step:
    """Build the step `kind` for this cluster; `arguments` hold JSON values, `progress` what earlier lives of the step have learned.

    Raises KeyError for a name that is not in `STEPS`.
    """
    return maker(kind)(spec, arguments).resume(progress)


def maker(kind: str) -> Maker:
    """The function that makes the step `kind`; raises KeyError as `build`."""
    made: Mapping[str, Maker] = import_module(f"{__package__}.{STEPS[kind]}").STEPS
    return made[kind]
