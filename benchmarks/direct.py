"""The tool without Airflow: a world from a local cluster's own files, and the DAG's steps in its order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from itertools import takewhile
from pathlib import Path
from typing import Any

from airflow_provider_kmigrate.clients.connections import lookup_in, read_connections, settings_for
from airflow_provider_kmigrate.clients.fence import Fence, ReadOnlyFence
from airflow_provider_kmigrate.clients.tools import Tools, open_tools
from airflow_provider_kmigrate.core.cluster_state.decision import Done, Wait
from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec
from airflow_provider_kmigrate.core.migration.plan import MIGRATION, split_into_stages
from airflow_provider_kmigrate.core.migration.roll import MIN_OBSERVATIONS, next_to_roll
from airflow_provider_kmigrate.observe import Observer
from airflow_provider_kmigrate.spec import load
from airflow_provider_kmigrate.steps.backup import BackupStore
from airflow_provider_kmigrate.steps.catalog import build, run_plan
from airflow_provider_kmigrate.steps.group_watch import GroupFile
from airflow_provider_kmigrate.steps.journal import FileJournal
from airflow_provider_kmigrate.steps.run import StepContext, run_step
from tests.kit.localcluster.cluster import LocalCluster


@contextmanager
def context(
    cluster: LocalCluster,
    run: str = "run",
    *,
    spec: ClusterSpec | None = None,
    connections: Mapping[str, Mapping[str, Any]] | None = None,
    acting: bool = True,
    folder: Path | None = None,
    wired: Callable[[Tools], Tools] = lambda tools: tools,
) -> Iterator[StepContext]:
    """What a task of the DAG run `run` has in its hands; journal and backups lie in `folder`, or beside the cluster's.

    Without `acting`, what preflight and sensors have: they hold nothing. `wired` may put something between the tool and the nodes.
    """
    known = connections or read_connections(cluster.plan.connections_path)
    folder = folder or cluster.folder.parent / "kmigrate"
    with context_of(spec or load(cluster.spec_path), known, run, folder=folder, acting=acting, wired=wired) as here:
        yield here


@contextmanager
def context_of(
    chosen: ClusterSpec,
    connections: Mapping[str, Mapping[str, Any]],
    run: str,
    *,
    folder: Path,
    acting: bool = True,
    wired: Callable[[Tools], Tools] = lambda tools: tools,
) -> Iterator[StepContext]:
    """As `context`, of a cluster file and connections."""
    with (
        open_tools(settings_for(chosen, lookup_in(connections, chosen))) as opened_tools,
        nullcontext(wired(opened_tools)) as tools,
        Observer(chosen, tools) as observer,
        Fence(tools.zk, chosen.cluster_id, run) if acting else nullcontext(ReadOnlyFence()) as fence,
    ):
        journal = FileJournal(folder / "journal" / f"{run}.jsonl", run, time.time)
        backup = BackupStore(folder / "backup", chosen.name, chosen.cluster_id)
        groups = GroupFile(folder / "groups.json", writable=acting)
        yield StepContext(chosen, observer, tools, fence, journal, backup, print, groups=groups)


def step(here: StepContext, kind: str, **arguments: Any) -> Done | Wait:
    """One step to its end, as a task runs it."""
    return run_step(build(here.spec, kind, arguments), here)


def go(here: StepContext, name: str) -> None:
    """One stage of the plan."""
    run_plan(here, dict(split_into_stages(MIGRATION))[name])


def provision(here: StepContext) -> None:
    """Provision the controllers."""
    go(here, "controllers")


def roll(here: StepContext, target: BrokerMode) -> None:
    """Every broker that is not there yet, the ZooKeeper controller last."""
    go(here, next(name for name, steps in split_into_stages(MIGRATION) if steps[0].target is target))


def to_roll(here: StepContext, target: BrokerMode) -> int | None:
    """The next broker to roll into a mode; None if all are."""
    return next_to_roll(here.observer.observe(MIN_OBSERVATIONS), [node.id for node in here.spec.brokers], target)


def copy(here: StepContext) -> None:
    """Wait until everything is copied."""
    go(here, "copy")


def finalize(here: StepContext) -> None:
    """Finalize the migration."""
    go(here, "finalize")


def prepare(here: StepContext) -> None:
    """Preflight and backup."""
    until(here, "controllers")


def to_copied(here: StepContext) -> None:
    """All brokers in migration mode, everything in KRaft too."""
    until(here, "second_roll")


def to_hybrid(here: StepContext) -> None:
    """As `to_copied`, and broker 0 in KRaft mode."""
    to_copied(here)
    step(here, "roll", node=0, target=BrokerMode.KRAFT)


def to_dual_write(here: StepContext) -> None:
    """All brokers in KRaft mode, everything written to ZooKeeper too."""
    until(here, "soak")


def until(here: StepContext, name: str) -> None:
    """The plan up to a stage, without it."""
    run_plan(here, tuple(takewhile(lambda step: step not in dict(split_into_stages(MIGRATION))[name], MIGRATION)))


def forward(here: StepContext) -> None:
    """The whole migration."""
    run_plan(here, MIGRATION)
