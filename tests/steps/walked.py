"""The way into a phase is walked once in a process; other clusters that begin alike are put where it led.

A walk is a migration of some hundred observations, and many tests only begin where it ends. Nothing is copied where anything differs from what
`SimCluster.context` gives, where something was patched, or where the tool dies on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kmigrate.steps.run import StepContext
from tests.steps.sim import SimCluster
from tests.steps.sim_hands import SimFence, SimHost, SimJournal
from tests.steps.sim_zookeeper import SimZooKeeper

Walk = Callable[[SimCluster, StepContext], None]
_SHARED = ("clock", "mortal", "kept")  # objects that a context or a test may hold already
_UNTOUCHED = ("stopped", "run", "journals", "probe", "export", "judges_backup")
patches: list[pytest.MonkeyPatch] = []  # of the test that runs


@dataclass(frozen=True)
class _End:
    cluster: SimCluster
    said: tuple[str, ...]
    journal: SimJournal
    files: dict[Path, bytes]


def walked(walk: Walk) -> Walk:
    """The same walk, copied where it was walked before."""
    ends: dict[tuple[object, ...], _End] = {}

    @wraps(walk)
    def to_its_end(cluster: SimCluster, context: StepContext) -> None:
        if not _plain(cluster, context):
            walk(cluster, context)
            return
        folder = context.backup.folder
        # Functions are in it by their address; the copy below keeps them alive, so that no other one ever has it.
        begun = (type(cluster), repr(vars(cluster) | {"kept": cluster.kept.stored}), repr(_files(folder)))
        if begun not in ends:
            said, journal = list[str](), SimJournal()
            walk(cluster, replace(context, say=said.append, journal=journal))
            ends[begun] = _End(deepcopy(cluster), tuple(said), journal, _files(folder))
        else:
            _become(cluster, ends[begun].cluster)
            for path, content in ends[begun].files.items():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes(content)
        for line in ends[begun].said:
            context.say(line)
        own: Any = context.journal  # a `SimJournal`, by `_plain`
        own.lines += ends[begun].journal.lines
        own.facts |= ends[begun].journal.facts

    return to_its_end


def _plain(cluster: SimCluster, context: StepContext) -> bool:
    """Whether the walk depends on nothing but the cluster and the files of its backup."""
    given = {"spec": cluster.spec, "observer": cluster, "clock": cluster.clock, "groups": cluster.kept}
    kinds = [
        type(each) for each in (context.journal, context.fence, context.tools.zk, context.tools.host(cluster.spec.brokers[0]))
    ]
    return (
        not any(patch._setattr or patch._setitem for patch in patches)
        and all(getattr(context, name) is value for name, value in given.items())
        and all(getattr(context, name) is getattr(StepContext, name) for name in _UNTOUCHED)
        and context.tools.admin is cluster
        and kinds == [SimJournal, SimFence, SimZooKeeper, SimHost]
    )


def _files(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def _become(cluster: SimCluster, end: SimCluster) -> None:
    same = {id(end): cluster, id(end.spec): cluster.spec}
    parts = [(getattr(end, name), getattr(cluster, name)) for name in _SHARED]
    parts += [(node, cluster.nodes[key]) for key, node in end.nodes.items()]
    for there, here in parts:
        vars(here).update({name: value if name == "spec" else deepcopy(value) for name, value in vars(there).items()})
        same[id(there)] = here
    vars(cluster).update(deepcopy(vars(end), same))
