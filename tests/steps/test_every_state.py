"""The states that the tool can leave behind, searched: it dies at any side effect, a run the other way begins, nodes die and come back, and
others meddle: a controller loses its flag, another one is elected, a /migration of long ago lies there.

The cluster is `SimCluster`, which counts what was measured to lose records, topics or minutes as disasters. A search goes from state
to state: from each one a whole run forward and a whole run back are made, and each instant of them is a state in which the tool may
have died; what nodes and others do by themselves makes more of them, up to a number of such events on a path. What they bring about is no
disaster of the tool's; what it does next is.
"""

from __future__ import annotations

import copy
import json
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole, NodeSpec
from airflow_provider_kmigrate.core.migration import controllers, coordinator, gates, handover, roll
from airflow_provider_kmigrate.core.migration import rollback as back_gates
from airflow_provider_kmigrate.core.migration.phase import TABLE, Intent, Phase, PhasePermit, position_of
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage
from airflow_provider_kmigrate.exceptions import KMigrateError
from airflow_provider_kmigrate.steps.catalog import run_rollback
from airflow_provider_kmigrate.steps.run import StepContext
from tests.steps.phases import EVERYTHING, forward
from tests.steps.sim import SimCluster
from tests.steps.sim_nodes import Mortal, SimClock

pytestmark = [pytest.mark.slow(seconds=400), pytest.mark.timeout(1800)]  # beside real clusters, at the lowest priority

Key = tuple[object, ...]
FEW = 5  # partitions of __consumer_offsets
NOT_TO_BE_STARTED = "topics deleted"  # controllers, until the rollback has moved their directories away: the runbook says so


class Hurried(SimClock):
    """Waiting costs few observations, so that a run which waits in vain ends soon."""

    def sleep(self, seconds: float) -> None:
        self.time += seconds * 40


@dataclass
class Recorder(Mortal):
    """Keeps the cluster as it is before every observation and side effect: the tool may have died there."""

    cluster: SimCluster | None = None
    seen: dict[Key, SimCluster] = field(default_factory=dict)

    def step(self) -> None:
        assert self.cluster is not None
        key = key_of(self.cluster)
        if key not in self.seen:
            self.seen[key] = clone(self.cluster)


def clone(cluster: SimCluster) -> SimCluster:
    made = copy.copy(cluster)
    made.nodes = {name: copy.copy(node) for name, node in cluster.nodes.items()}
    made.leaders, made.registered, made.disasters = dict(cluster.leaders), set(cluster.registered), list(cluster.disasters)
    made.counts, made.isolated = dict(cluster.counts), set(cluster.isolated)
    made.clock, made.mortal = Hurried(), Mortal()
    return made


def key_of(cluster: SimCluster) -> Key:
    """What matters of a state; epochs only grow, so that their order stands for them."""
    nodes = tuple((name, node.text, node.running, node.formatted, node.log, node.copied) for name, node in cluster.nodes.items())
    epochs = (cluster.controller_epoch, cluster.state_epoch or 0, cluster.epoch)
    order = tuple(sorted(set(epochs)).index(epoch) for epoch in epochs)
    offset = None if cluster.offset is None else cluster.offset > 0
    owner = (
        cluster.kraft_owns,
        cluster.finalized,
        cluster.leader,
        cluster.led,
        cluster.zookeeper_controller,
        cluster.ahead,
        cluster.known,
        tuple(json.loads(cluster.unflagged or b"[]")),
        cluster.meddled,
    )
    counts = (cluster.offsets_partitions, frozenset(cluster.isolated), *cluster.counts.values())
    return (nodes, order, offset, owner, frozenset(cluster.registered), tuple(sorted(cluster.leaders.items())), counts)


@dataclass
class Run:
    """How one run ended, and every state in which it could have died. `error`: None where it got to its end."""

    end: SimCluster
    states: dict[Key, SimCluster]
    error: KMigrateError | None


def run(cluster: SimCluster, way: Callable[[SimCluster, StepContext], object], folder: Path) -> Run:
    mine = clone(cluster)
    recorder = Recorder(cluster=mine)
    mine.mortal = recorder
    context = mine.context(folder)
    try:
        way(mine, context)
        error = None
    except KMigrateError as raised:
        error = raised
    return Run(mine, recorder.seen, error)


def messages(error: KMigrateError) -> str:
    codes = [reason.code for reason in getattr(error, "reasons", ())]
    return f"{type(error).__name__} {' '.join(codes)}".strip()


def roll_back(_: SimCluster, context: StepContext) -> None:
    run_rollback(context)


def crashed(cluster: SimCluster, node: NodeSpec) -> SimCluster:
    """The node died by itself: what the tool must not do may well happen."""
    made = clone(cluster)
    made.stop(node)
    return accident(cluster, made)


def unflagged(cluster: SimCluster, node: NodeSpec) -> SimCluster:
    """Another tool removed the flag from the controller's file and restarted it."""
    made = clone(cluster)
    mine = made.nodes[node.role, node.id]
    mine.text = "".join(line for line in mine.text.splitlines(keepends=True) if not line.startswith("zookeeper."))
    made.meddled = True
    made.stop(node)
    made.start(node)
    return accident(cluster, made)


def accident(before: SimCluster, after: SimCluster) -> SimCluster:
    """Not the tool's doing: what counts is what the tool does next."""
    after.disasters = list(before.disasters)
    return after


def by_others(cluster: SimCluster) -> Iterator[tuple[str, SimCluster]]:
    """What people, other tools and the quorum do: an election for no reason, a flag that is lost, a /migration of long ago.

    Also an expansion of `__consumer_offsets`, where there is one.
    """
    up = [node for node in cluster.spec.controllers if cluster.nodes[node.role, node.id].running is not None]
    for node in up:
        if cluster.led and node.id != cluster.leader:
            made = clone(cluster)
            made.lead(node.id)
            yield f"{node.name} is elected", accident(cluster, made)
        if cluster.nodes[node.role, node.id].stage is FileStage.CONTROLLER_MIGRATION:
            yield f"{node.name} loses its flag", unflagged(cluster, node)
    if cluster.offset is None and not cluster.kraft_owns:
        made = clone(cluster)
        made.offset = 97
        yield "a /migration of long ago", made
    if cluster.offsets_partitions == FEW:
        made = clone(cluster)
        made.offsets_partitions = 2 * FEW
        yield "__consumer_offsets is expanded", made


def start(cluster: SimCluster, node: NodeSpec) -> None:
    cluster.start(node)
    cluster.disasters = [message for message in cluster.disasters if not message.startswith(NOT_TO_BE_STARTED)]


def events(cluster: SimCluster) -> Iterator[tuple[str, SimCluster]]:
    """Whatever one node may do by itself."""
    for node in cluster.spec.nodes():
        mine = cluster.nodes[node.role, node.id]
        if mine.running is not None:
            yield f"{node.name} dies", crashed(cluster, node)
        elif mine.text and (node.role is NodeRole.BROKER or mine.formatted):
            made = clone(cluster)
            start(made, node)
            yield f"{node.name} is started", made


def equal_after_failover(cluster: SimCluster) -> SimCluster:
    """Every broker runs, and every controller that was begun; brokers that compute coordinators with another count were restarted (K01)."""
    made = clone(cluster)
    for node in made.spec.brokers:
        if made.counts[node.id] != made.offsets_partitions and made.nodes[node.role, node.id].running is not None:
            made.stop(node)
            made.start(node)
            made = accident(cluster, made)
    for node in made.spec.nodes():
        mine = made.nodes[node.role, node.id]
        if mine.running is None and mine.text and (node.role is NodeRole.BROKER or mine.formatted):
            start(made, node)
    return made


@dataclass
class Search:
    """All states within `most` events, or until a problem has all `sought` words; `problems` have the path that leads there."""

    folder: Path
    most: int
    sought: tuple[str, ...] = ()
    paths: dict[Key, tuple[str, ...]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    ends: dict[tuple[str, str], int] = field(default_factory=dict)
    outcomes: dict[Key, dict[str, KMigrateError | None]] = field(default_factory=dict)

    def go(self, first: SimCluster) -> None:
        queue: deque[tuple[SimCluster, int]] = deque([(first, 0)])
        self.paths[key_of(first)] = ()
        while queue and not self.found():
            cluster, used = queue.popleft()
            path = self.paths[key_of(cluster)]
            for name, found in self._next(cluster, path, used):
                key = key_of(found)
                more = used + (name not in {"forward", "back"})
                if key not in self.paths:
                    self.paths[key] = (*path, name)
                    queue.append((found, more))

    def found(self) -> bool:
        return bool(self.sought) and any(all(word in problem for word in self.sought) for problem in self.problems)

    def _next(self, cluster: SimCluster, path: tuple[str, ...], used: int) -> Iterator[tuple[str, SimCluster]]:
        for name, made in self._both(cluster).items():
            said = "done" if made.error is None else messages(made.error)
            self.ends[name, said] = self.ends.get((name, said), 0) + 1
            if made.end.disasters:
                self.problems.append(f"{(*path, name)}: {made.end.disasters}")
            else:
                yield from ((name, state) for state in made.states.values())
        self._judge(equal_after_failover(cluster), path)
        if used < self.most:
            yield from events(cluster)
            yield from by_others(cluster)

    def _both(self, cluster: SimCluster) -> dict[str, Run]:
        made = {name: run(cluster, way, self.folder) for name, way in (("forward", forward), ("back", roll_back))}
        self.outcomes[key_of(cluster)] = {name: one.error for name, one in made.items()}
        return made

    def _judge(self, whole: SimCluster, path: tuple[str, ...]) -> None:
        """With every node up there is a way out; after the finalization it is not back."""
        if whole.disasters:
            self.problems.append(f"{path}: with every node back {whole.disasters}")
            return
        key = key_of(whole)
        if key not in self.outcomes:
            self._both(whole)
        errors = self.outcomes[key]
        if None not in errors.values():
            self.problems.append(f"{path}: neither way: { {name: str(error)[:200] for name, error in errors.items()} }")
        if position_of(whole.observe(EVERYTHING)).phase is Phase.FINALIZED and errors["back"] is None:
            self.problems.append(f"{path}: back after the finalization")


def searched(folder: Path, brokers: int, controllers: int, most: int, *sought: str, offsets: int = 0) -> Search:
    search = Search(folder, most, sought)
    search.go(clone(SimCluster(brokers, controllers, offsets_partitions=offsets)))
    return search


@pytest.mark.parametrize(
    ("brokers", "controllers", "most"),
    [(1, 1, 2), pytest.param(2, 1, 1, marks=pytest.mark.long), pytest.param(1, 3, 1, marks=pytest.mark.long)],
)
def test_no_state_is_a_disaster_and_each_has_a_way_out(tmp_path: Path, brokers: int, controllers: int, most: int) -> None:
    search = searched(tmp_path, brokers, controllers, most)
    assert search.problems == []
    assert len(search.paths) > 100, "it went somewhere"
    assert {end for _, end in search.ends} >= {"done", "Refused P12"}


def test_no_restart_moves_groups_whenever_their_topic_is_expanded(tmp_path: Path) -> None:
    """Once every broker was restarted by hand, as K01 says, there is a way out of each state."""
    search = searched(tmp_path, 1, 1, 1, offsets=FEW)
    assert search.problems == []
    assert {end for _, end in search.ends} >= {"done", "Refused K01"}


def test_the_search_finds_a_restart_that_moves_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the check before each restart: an administrator expands the topic, and the next restart of a broker moves groups."""
    monkeypatch.setattr(coordinator, "brokers_agree", lambda *_, **__: gates.MET)
    assert searched(tmp_path, 1, 1, 1, "groups move", offsets=FEW).found()


def test_the_search_finds_a_file_of_another_mode_that_a_dead_run_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the check of the file: a rollback dies after writing it, a migration finalizes, the broker dies and starts with it."""
    monkeypatch.setattr(roll, "decide_file_rewrite", lambda *_: None)
    monkeypatch.setattr(gates, "files_in_stage", lambda *_, **__: gates.MET)  # the finalization's own check of it
    assert searched(tmp_path, 1, 1, 1, "starts as before").found()


def test_the_search_finds_brokers_that_a_finalization_left_behind_and_no_run_takes_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the one recovery: another tool takes the controller's flag, which finalizes under a broker in migration mode."""
    monkeypatch.setitem(TABLE, (Phase.LEFT_BEHIND, Intent.TO_KRAFT), PhasePermit.REFUSE)
    assert searched(tmp_path, 1, 1, 1, "P12", "neither way").found()


def test_the_search_finds_an_old_log_that_takes_the_cluster_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If directories stay and are not read: the next migration begins on what the controllers remember of the last one."""
    monkeypatch.setattr(SimCluster, "wipe", lambda *_: None)
    for gate in ("empty_controllers", "fresh_migration"):
        monkeypatch.setattr(gates, gate, lambda *_: gates.MET)
    monkeypatch.setattr(back_gates, "has_empty_directories", lambda _: True)
    monkeypatch.setattr(controllers, "_decide_start", lambda *_: None)
    assert searched(tmp_path, 1, 1, 0, "earlier copy took the cluster over").found()


def test_the_search_finds_a_flag_given_back_after_the_finalization(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the refusal: the finalized controller dies, a new run gives it its flag, and waits for a dual-write forever."""
    monkeypatch.setattr(controllers, "still_open", lambda _: True)
    assert searched(tmp_path, 1, 1, 1, "G07", "neither way").found()


def test_the_search_finds_a_controller_that_would_finalize_when_it_is_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guarded twice. Without both checks of its file: a migration dies after writing it, a rollback rolls the broker back and begins to hand
    over, the controller is restarted."""
    monkeypatch.setattr(controllers, "decide_file_rewrite", lambda *_: None)
    monkeypatch.setattr(handover, "flags_kept", lambda *_: gates.MET)
    assert searched(tmp_path, 1, 3, 0, "left behind").found()
