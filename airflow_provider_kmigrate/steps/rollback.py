"""The steps of the rollback; `core.rollback.rollback` decides, `core.plan` has their order."""

from __future__ import annotations

from airflow_provider_kmigrate.clients import znodes
from airflow_provider_kmigrate.clients.znode_writes import Delete, Operation, Set
from airflow_provider_kmigrate.core import gates
from airflow_provider_kmigrate.core.cluster import NodeSpec
from airflow_provider_kmigrate.core.decision import Act, Decision, Refuse, Verb, Wait
from airflow_provider_kmigrate.core.dual_write import DOWN_LOOKS
from airflow_provider_kmigrate.core.files.config_matrix import FileStage, stage_on_disk
from airflow_provider_kmigrate.core.migration.recovery import StalledDualWrite
from airflow_provider_kmigrate.core.migration.roll import MovedSince, moved_since
from airflow_provider_kmigrate.core.model import Cause, ClusterView, Fields, Malformed, Migration, ZkController, ZkView
from airflow_provider_kmigrate.core.rollback import conditions, rollback
from airflow_provider_kmigrate.core.rollback import conditions as back_gates
from airflow_provider_kmigrate.core.rollback import rollback as back_plan
from airflow_provider_kmigrate.core.rollback.conditions import SAFE, RollbackTerms
from airflow_provider_kmigrate.core.rollback.rollback import HandoverWrites
from airflow_provider_kmigrate.exceptions import Refused, Unavailable
from airflow_provider_kmigrate.steps.dual_write import cure, raise_states, start_what_is_down
from airflow_provider_kmigrate.steps.files import install, rollback_prerequisites
from airflow_provider_kmigrate.steps.journal import format_reasons
from airflow_provider_kmigrate.steps.notes import forget_unflagged, notes_deleted
from airflow_provider_kmigrate.steps.restarts import apply, stop_node
from airflow_provider_kmigrate.steps.run import NodeStep, Step, StepContext
from airflow_provider_kmigrate.steps.waits import Equivalent


def planned(world: StepContext) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Report and return the rollback's steps, and what is kept and lost; checks that it is possible, changes nothing.

    Raises `Refused` if no rollback is possible, an original that it needs is missing or altered, or the backup is not writable;
    `Unavailable` if that cannot be determined.
    """
    view = world.observer.look(Fields.POSITION | Fields.NODES | Fields.STATE_EPOCH | Fields.CLIENT_METRICS | Fields.METADATA)
    ended = back_gates.over(view)
    if isinstance(ended, Refuse):
        raise Refused(f"rollback: nothing was changed. {format_reasons(ended.reasons)}", ended.reasons)
    if isinstance(ended, Wait):
        raise Unavailable(f"rollback: {format_reasons(ended.reasons)}")
    epochs = gates.epochs_known(view)
    if not epochs.met:
        raise Unavailable(f"rollback: {format_reasons((*epochs.reasons, *view.unknowns))}")
    steps = back_plan.plan(view)
    if steps:
        _refuse_missing_prerequisites(world, view)
    kept = back_plan.kept(view) if steps else ()
    for text in (*(f"{number}. {step}" for number, step in enumerate(steps, 1)), *kept):
        world.say(text)
    world.journal.write("plan", "rollback", f"{len(steps)} rollback steps", steps=list(steps), kept=list(kept))
    world.say("Nothing to roll back: no trace of a migration." if not steps else f"Done: the rollback has {len(steps)} steps.")
    return steps, kept


def planned_in_migration(world: StepContext) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """As `planned`, during the migration: None, not a refusal, if the finalization has happened already."""
    try:
        return planned(world)
    except Refused as refused:
        if all(reason.cause is not Cause.FINALIZED for reason in refused.reasons):
            raise
        return None


def _refuse_missing_prerequisites(world: StepContext, view: ClusterView) -> None:
    seen = {node: view.brokers.get(node.id) for node in world.spec.brokers}
    moved = [node for node, broker in seen.items() if broker is None or stage_on_disk(broker.files) is not FileStage.ZOOKEEPER]
    if reasons := rollback_prerequisites(world.spec, world.backup, moved):
        raise Refused(f"rollback: nothing was changed. {format_reasons(reasons)}", reasons)
    world.backup.prove_writable()


class RestoreFlag(NodeStep):
    """Bring one controller of a migration under way up with its flag, so that no election can finalize."""

    looks = Fields.POSITION | Fields.NODES
    patience = 180.0
    expected = frozenset({Cause.UNFLAGGED_CONTROLLER})

    def __init__(self, node: NodeSpec) -> None:
        self.node = node
        self.name = f"restore flag of {node.name}"
        self.nodes = (node,)

    def decide(self, view: ClusterView, first: ClusterView) -> Decision:
        del first
        return rollback.decide_restore_flag(view, self.node.id)

    def act(self, world: StepContext, act: Act) -> None:
        if act.verb not in {Verb.START, Verb.REWRITE, Verb.RESTART}:
            super().act(world, act)
        forget_unflagged(world, self.node.id)
        if act.verb is Verb.START:  # it may have lost the flag before it went down
            install(world, self.node, FileStage.CONTROLLER_MIGRATION)
        apply(world, self.node, FileStage.CONTROLLER_MIGRATION, act.verb)


class ControllerFailover(Step):
    """Fail over the active controller once. Killed and run again it does so again, which is harmless."""

    name = "controller failover"
    looks = DOWN_LOOKS | Fields.CLIENT_METRICS | Fields.PARTITIONS
    patience = 600.0

    def __init__(self, controllers: tuple[NodeSpec, ...]) -> None:
        self.nodes = controllers
        self._before: ClusterView | None = None  # the first observation with a leader and /migration
        self._standstill = StalledDualWrite()

    def decide(self, view: ClusterView, first: ClusterView) -> Decision:
        copied = view.zk is not None and isinstance(view.zk.migration, Migration)
        if self._before is None and view.quorum is not None and copied:
            self._before = view
        self._standstill, decision = self._standstill.cured(
            view, rollback.decide_controller_failover(view, self._before or first)
        )
        return decision

    def act(self, world: StepContext, act: Act) -> None:
        match act.verb:
            case Verb.START:
                start_what_is_down(world, self.name)
            case Verb.COMPLETE | Verb.CONTROLLER_FAILOVER:
                cure(world, self.name, act.verb)
            case _:
                super().act(world, act)


class EquivalentAfterFailover(Equivalent):
    """Wait until ZooKeeper and KRaft store the same metadata, or the rollback's terms allow a difference."""

    def __init__(self, patience: float, terms: RollbackTerms = SAFE) -> None:
        super().__init__(patience)
        self._terms = terms

    def decide(self, view: ClusterView, first: ClusterView) -> Decision:
        del first
        return conditions.compared(view, self._terms)


class StopController(NodeStep):
    """Stop one controller once no broker needs it and nothing would be lost.

    `controllers`: the nodes to observe, all controllers; empty: every node.
    """

    looks = Fields.POSITION | Fields.PARTITIONS | Fields.MIN_INSYNC | Fields.PROCESSES
    interval = 0.5
    patience = 180.0

    def __init__(self, node: NodeSpec, controllers: tuple[NodeSpec, ...] = (), terms: RollbackTerms = SAFE) -> None:
        self.node, self._terms = node, terms
        self.name = f"stop {node.name}"
        self.nodes = controllers
        self._moved: MovedSince | None = None

    def dear(self, view: ClusterView) -> Fields:
        return Fields.METADATA | Fields.FILES if rollback.compares_before_stop(view, self.node.id) else Fields(0)

    def decide(self, view: ClusterView, first: ClusterView) -> Decision:
        self._moved = moved_since(self._moved, view, first)
        return rollback.decide_stop(view, self._moved.old, self.node.id, self._terms)

    def act(self, world: StepContext, act: Act) -> None:
        del act
        world.backup.prove_writable()  # this worker most likely does the handover; afterwards there is no controller
        world.say(f"{self.node.name} stopped after {stop_node(world, self.node):.1f} s.")


class Handover(Step):
    """The handover: the transaction that gives the cluster to ZooKeeper. What it deletes is saved, partition epochs are raised."""

    name = "handover to ZooKeeper"
    looks = Fields.BROKERS | Fields.CONTROLLERS | Fields.ZOOKEEPER | Fields.STATE_EPOCH | Fields.TOPICS | Fields.NODES
    interval = 0.5

    def __init__(self, controllers: tuple[NodeSpec, ...], terms: RollbackTerms = SAFE) -> None:
        self.nodes, self._terms = controllers, terms

    def decide(self, view: ClusterView, first: ClusterView) -> Decision:
        return rollback.decide_handover(view, first, self._terms)

    def act(self, world: StepContext, act: Act) -> None:
        del act
        world.backup.prove_writable()
        view = world.observer.look(Fields.ZOOKEEPER | Fields.STATE_EPOCH)
        if view.zk is None or view.state_epoch is None:
            return
        change = rollback.handover(view.zk, view.state_epoch)
        found = {path: world.tools.zk.read(path) for path in ("/controller_epoch", *change.delete)}
        read = {path: znode for path, znode in found.items() if znode is not None}
        if not _same(view, read, change):
            world.say("The znodes changed while they were read; reading them again.")
            return
        if change.states:
            raise_states(world)
        saved = world.backup.keep_znodes({path: data for path, (data, _) in read.items()}, world.fence.token)
        world.tools.zk.commit([*_operations(change, read), *notes_deleted(world)], holding=world.fence)
        epoch = "" if change.epoch is None else f" and /controller_epoch set to {change.epoch}"
        world.say(f"{' and '.join(change.delete)} deleted{epoch} in one transaction; their content is saved in {saved}.")
        world.journal.write("handed over", self.name, " ".join(change.delete), controller_epoch=change.epoch)


class ZooKeeperLeads(Step):
    """Wait for a ZooKeeper controller that every broker names, and a leader that it can move for every partition."""

    name = "ZooKeeper controller"
    looks = Fields.BROKERS | Fields.CONTROLLERS | Fields.ZOOKEEPER | Fields.PARTITIONS | Fields.STATE_EPOCH
    samples = 2
    patience = 120.0
    most_acts = 20

    def decide(self, view: ClusterView, first: ClusterView) -> Decision:
        del first
        return rollback.decide_zookeeper_leads(view)

    def act(self, world: StepContext, act: Act) -> None:
        del act
        world.tools.admin.elect_preferred(gates.leaderless(world.observer.look(Fields.PARTITIONS)))
        world.clock.sleep(self.interval)


class WipeController(NodeStep):
    """Move one stopped controller's directories away."""

    looks = Fields.BROKERS | Fields.CONTROLLERS | Fields.ZOOKEEPER | Fields.NODES

    def __init__(self, node: NodeSpec) -> None:
        self.node = node
        self.name = f"wipe {node.name}"
        self.nodes = (node,)

    def decide(self, view: ClusterView, first: ClusterView) -> Decision:
        del first
        return rollback.decide_wipe(view, self.node.id)

    def act(self, world: StepContext, act: Act) -> None:
        del act
        world.tools.host(self.node).wipe_storage(self.node, world.spec.cluster_id, world.fence.token)


class RolledBack(Step):
    """Check that the cluster is as before the migration, ready for the next one."""

    name = "rolled back"
    looks = Fields.POSITION | Fields.NODES | Fields.PARTITIONS | Fields.MIN_INSYNC | Fields.STATE_EPOCH | Fields.GROUPS
    samples = 2
    patience = 180.0

    def decide(self, view: ClusterView, first: ClusterView) -> Decision:
        del first
        return rollback.decide_rolled_back(view)


def _same(view: ClusterView, read: dict[str, tuple[bytes, int]], change: HandoverWrites) -> bool:
    """True if the znodes and their versions are those that the change was made for."""
    zk = view.zk
    if zk is None or set(change.delete) - set(read):
        return False
    if "/migration" in read and znodes.migration(*read["/migration"]) != zk.migration:
        return False
    if "/controller" in read and _owner(read["/controller"][0], zk) != zk.controller:
        return False
    return change.epoch is None or znodes.controller_epoch(read["/controller_epoch"][0]) == zk.controller_epoch


def _operations(change: HandoverWrites, read: dict[str, tuple[bytes, int]]) -> list[Operation]:
    raised: list[Operation] = []
    if change.epoch is not None:
        raised = [Set("/controller_epoch", str(change.epoch).encode(), read["/controller_epoch"][1])]
    return [*raised, *(Delete(path, read[path][1]) for path in change.delete)]


def _owner(data: bytes, zk: ZkView) -> ZkController | Malformed:
    return znodes.controller(data, ephemeral=isinstance(zk.controller, ZkController) and zk.controller.ephemeral)
