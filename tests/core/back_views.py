"""Views of a cluster in its rollback, for tables of cases."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_kmigrate.core.cluster_state.decision import Act, Decision
from airflow_provider_kmigrate.core.cluster_state.model import (
    ClusterView,
    Controller,
    NodeFiles,
    Process,
    ProcessState,
    Stored,
    StoredKind,
    TopicMetadata,
)
from airflow_provider_kmigrate.core.migration.handover import HandoverProgress, decide_handover
from airflow_provider_kmigrate.core.migration.rollback import SAFE, RollbackTerms, controllers_down
from tests.core.views import KRAFT, MIG, cluster, migration, with_broker, with_zk

UP3, OFF3 = (True, True, True), (None, None, None)
ZOOKEEPER_FILE = {"zookeeper.connect": "zk:2181", "broker.id": "0"}
MIGRATION_FILE = {**ZOOKEEPER_FILE, "zookeeper.metadata.migration.enable": "true"}
KRAFT_FILE = {"process.roles": "broker", "node.id": "0"}


def handed_over(modes: Sequence[Any], flags: Sequence[bool | None] = OFF3) -> ClusterView:
    """ZooKeeper owns the cluster, /migration is gone, every broker names its controller; directories still full."""
    view = replace(cluster(list(modes), flags), state_epoch=3)
    for node in view.brokers:
        view = with_broker(view, node, controller_id=0)
    return view


def later(view: ClusterView, seconds: float = 5.0, offset: int | None = None) -> ClusterView:
    """The same some seconds later, /migration moved on or not."""
    moved = replace(view, taken_at=view.taken_at + seconds)
    return moved if offset is None else with_zk(moved, migration=migration(offset))


DUAL, HYBRID, ALL_MIG = (cluster(modes, UP3, 50) for modes in ([KRAFT] * 3, [KRAFT, KRAFT, MIG], [MIG] * 3))
STOPPED = replace(cluster([MIG] * 3, OFF3, 50), state_epoch=5)
FINAL = cluster([KRAFT] * 3, (False, False, False), 50)


def equal(view: ClusterView) -> ClusterView:
    """Both sides were read, and hold the same."""
    return replace(view, topics=({}, {}), stored={kind: Stored({}) for kind in StoredKind})


def missing(view: ClusterView) -> ClusterView:
    """A topic is missing in ZooKeeper."""
    return replace(equal(view), topics=({}, {"t": TopicMetadata("t", "id", {})}))


def with_quorum(view: ClusterView, **changes: Any) -> ClusterView:
    assert view.quorum is not None
    return replace(view, quorum=replace(view.quorum, **changes))


def with_files(view: ClusterView, keys: Mapping[str, str]) -> ClusterView:
    """The properties of one stopped controller."""
    return replace(view, controllers={**view.controllers, 3001: replace(view.controllers[3001], files=NodeFiles(keys))})


def unresponsive(view: ClusterView, *nodes: int) -> ClusterView:
    gone = {node: Controller(node) for node in nodes}
    return replace(view, controllers={**view.controllers, **gone})


def shape(decision: Decision) -> tuple[object, ...]:
    codes = [reason.code for reason in getattr(decision, "reasons", ())]
    return (type(decision), decision.verb) if isinstance(decision, Act) else (type(decision), *codes)


def alive(view: ClusterView, node: int = 3000) -> ClusterView:
    unknown = replace(view.controllers[node], process=Process(ProcessState.UNKNOWN))
    return replace(view, controllers={**view.controllers, node: unknown})


def emptied(view: ClusterView, *, full: Collection[int] = ()) -> ClusterView:
    files = {
        node: NodeFiles(meta={"/kraft": {"cluster.id": "c"} if node in full else {}}, has_metadata_log=node in full)
        for node in view.controllers
    }
    return replace(view, controllers={node: replace(c, files=files[node]) for node, c in view.controllers.items()})


FINAL_FILE = {"process.roles": "controller"}
FLAG_FILE = {**FINAL_FILE, "zookeeper.metadata.migration.enable": "true"}


def handover_decision(view: ClusterView, first: ClusterView, terms: RollbackTerms = SAFE) -> Decision:
    """What the handover decides of `view` in a run whose first observation was `first`."""
    return decide_handover(view, HandoverProgress(first, first if controllers_down(first).met else None), terms)[0]
