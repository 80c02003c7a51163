"""The steps of the rollback; `core.rollback` decides, `core.plan` has their order."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from math import inf

from airflow_provider_kmigrate.clients import znodes
from airflow_provider_kmigrate.clients.znodes import Delete, Operation, Set
from airflow_provider_kmigrate.core import equivalence, gates, rollback
from airflow_provider_kmigrate.core.cluster import NodeSpec
from airflow_provider_kmigrate.core.decision import Act, Decision, Refuse, Verb, Wait
from airflow_provider_kmigrate.core.equivalence import MetadataChange
from airflow_provider_kmigrate.core.files.config_matrix import FileStage
from airflow_provider_kmigrate.core.migration.recovery import CONTROLLER_DOWN_FIELDS, StalledDualWrite
from airflow_provider_kmigrate.core.migration.roll import MovedSince, moved_since
from airflow_provider_kmigrate.core.model import (
    Cause,
    ClusterView,
    Fields,
    Inventory,
    Malformed,
    Migration,
    Reason,
    ZkController,
    ZkView,
)
from airflow_provider_kmigrate.core.readiness import has_original
from airflow_provider_kmigrate.core.rollback import SAFE, HandoverProgress, HandoverWrites, RollbackTerms
from airflow_provider_kmigrate.exceptions import Failed, KMigrateError, Refused, Unavailable, Unreachable
from airflow_provider_kmigrate.steps.backup import rollback_prerequisites
from airflow_provider_kmigrate.steps.dual_write import raise_states, recover, start_what_is_down
from airflow_provider_kmigrate.steps.journal import format_reasons
from airflow_provider_kmigrate.steps.nodes import apply, forget_unflagged, install, notes_deleted, ours, start, stop
from airflow_provider_kmigrate.steps.run import NodeStep, Step, StepContext
from airflow_provider_kmigrate.steps.waits import WaitStep, equivalent


def planned(context: StepContext, terms: RollbackTerms = SAFE) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Report and return the rollback's steps, and what is kept, lost, was changed, and is accepted; checks that it is possible, changes nothing.

    Raises `Refused` if no rollback is possible, an original that it needs is missing or altered, or the backup is not writable;
    `Unavailable` if that cannot be determined.
    """
    accepting = Fields.PARTITIONS | Fields.COORDINATORS if terms.left or terms.splits else Fields(0)
    fields = Fields.POSITION | Fields.NODES | Fields.STATE_EPOCH | Fields.CLIENT_METRICS | Fields.METADATA
    whole = context.observer.observe(fields | accepting)
    view = gates.without_left(whole, terms.left)
    ended = rollback.over(view)
    if isinstance(ended, Refuse):
        raise Refused(f"rollback: nothing was changed. {format_reasons(ended.reasons)}", ended.reasons)
    if isinstance(ended, Wait):
        raise Unavailable(f"rollback: {format_reasons(ended.reasons)}")
    epochs = gates.epochs_known(view)
    if not epochs.met:
        raise Unavailable(f"rollback: {format_reasons((*epochs.reasons, *view.unknowns))}")
    steps = rollback.plan(view)
    if steps:
        _refuse_missing_prerequisites(context, view)
    kept, changed = _kept(context, view) if steps else ((), ())
    kept = (*kept, *rollback.accepted_costs(whole, terms)) if steps else kept
    for text in (*(f"{number}. {step}" for number, step in enumerate(steps, 1)), *kept):
        context.say(text)
    rows = [[each.what, str(each), each.held] for each in changed]
    context.journal.write("plan", "rollback", f"{len(steps)} rollback steps", steps=list(steps), kept=list(kept), changed=rows)
    context.say("Nothing to roll back: no trace of a migration." if not steps else f"Done: the rollback has {len(steps)} steps.")
    return steps, kept


def _kept(context: StepContext, view: ClusterView) -> tuple[tuple[str, ...], tuple[MetadataChange, ...]]:
    """What is kept, lost and was changed, in words with some examples; and every change."""
    before, why = _inventory(context)
    changed = rollback.changed(view, before, why)
    return (*rollback.kept(view), *changed), equivalence.changes(view, before) if changed and before else ()


def _inventory(context: StepContext) -> tuple[Inventory | None, str]:
    """What was stored before the takeover, or why that is not known; a tree that cannot be read stops no rollback."""
    try:
        return context.backup.inventory(), ""
    except (KMigrateError, OSError) as error:
        return None, str(error)


def planned_in_migration(context: StepContext) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """As `planned`, during the migration: None, not a refusal, if the finalization has happened already."""
    try:
        return planned(context)
    except Refused as refused:
        if all(reason.cause is not Cause.FINALIZED for reason in refused.reasons):
            raise
        return None


def _refuse_missing_prerequisites(context: StepContext, view: ClusterView) -> None:
    seen = {node: view.brokers.get(node.id) for node in context.spec.brokers}
    moved = [node for node, broker in seen.items() if broker is None or not has_original(broker)]
    if reasons := rollback_prerequisites(context.spec, context.backup, moved):
        raise Refused(f"rollback: nothing was changed. {format_reasons(reasons)}", reasons)
    context.backup.prove_writable()


class RestoreFlag(NodeStep):
    """Bring one controller of a migration under way up with its flag, so that no election can finalize."""

    fields = Fields.POSITION | Fields.NODES
    patience = 180.0
    expected_alarms = frozenset({Cause.UNFLAGGED_CONTROLLER})
    doing = "restore flag of"

    def decide(self, view: ClusterView, _first: ClusterView) -> Decision:
        """Decide whether the controller must get its migration flag back."""
        return rollback.decide_restore_flag(view, self.node.id)

    def act(self, context: StepContext, act: Act) -> None:
        """Write the controller's file with the flag, and start or restart it, if it may still get the flag.

        An election since the decision may have finalized the migration; a flag that is written then would hide it.
        """
        if act.verb not in {Verb.START, Verb.REWRITE, Verb.RESTART}:
            super().act(context, act)
        again = rollback.decide_restore_flag(context.observer.observe(self.fields, self.nodes), self.node.id)
        if not isinstance(again, Act) or again.verb is not act.verb:
            context.say(f"{self.node.name} does not get its flag now: the cluster has changed since the decision.")
            return
        forget_unflagged(context, self.node.id)
        if act.verb is Verb.START:  # it may have lost the flag before it went down
            install(context, self.node, FileStage.CONTROLLER_MIGRATION)
        apply(context, self.node, FileStage.CONTROLLER_MIGRATION, act.verb)


class ControllerFailover(Step):
    """Fail over the active controller once. Killed and run again it does so again, which is harmless."""

    name = "controller failover"
    fields = CONTROLLER_DOWN_FIELDS | Fields.CLIENT_METRICS | Fields.PARTITIONS
    patience = 600.0
    acts_again = (Unreachable,)

    def __init__(self, controllers: tuple[NodeSpec, ...]) -> None:
        self.nodes = controllers
        self._before: ClusterView | None = None  # the first observation with a leader and /migration
        self._stalled = StalledDualWrite()

    def decide(self, view: ClusterView, first: ClusterView) -> Decision:
        """Decide the failover, compared with the first observation that shows a finished copy and the quorum."""
        copied = view.zk is not None and isinstance(view.zk.migration, Migration)
        if self._before is None and view.quorum is not None and copied:
            self._before = view
        decision = rollback.decide_controller_failover(view, self._before or first)
        self._stalled, decision = self._stalled.observe(view, decision)
        return decision

    def act(self, context: StepContext, act: Act) -> None:
        """Start what is down, or cause a failover of the active controller."""
        match act.verb:
            case Verb.START:
                start_what_is_down(context, self.name)
            case Verb.COMPLETE | Verb.CONTROLLER_FAILOVER:
                recover(context, self.name, act.verb)
            case _:
                super().act(context, act)


def equivalent_after_failover(patience: float, terms: RollbackTerms = SAFE) -> Step:
    """Wait until ZooKeeper and KRaft store the same metadata, or the rollback's terms allow a difference."""
    return equivalent(patience, lambda view: rollback.compared(view, terms))


class Handover(Step):
    """Stop the controllers and hand the cluster over to ZooKeeper, in one process: without a quorum no time is lost between two tasks.

    What the transaction deletes is saved, partition epochs are raised. `controllers`: the nodes whose machines are asked, all controllers.
    """

    name = "handover to ZooKeeper"
    fields = Fields.POSITION | Fields.PARTITIONS | Fields.MIN_INSYNC | Fields.NODES
    interval = 0.5
    patience = 600.0
    max_acts = 2 * rollback.MAX_RETURNS
    acts_again = (Unreachable,)

    def __init__(self, controllers: tuple[NodeSpec, ...], terms: RollbackTerms = SAFE) -> None:
        self.nodes = self._controllers = controllers
        self._terms = terms
        self._moved: MovedSince | None = None
        self._progress: HandoverProgress | None = None
        self._seen: ClusterView | None = None  # by the last decision

    def expensive_fields(self, view: ClusterView) -> Fields:
        """What both sides store, before a controller stops; epochs and topics, before the transaction."""
        if rollback.compares_before_handover(view, self._terms):
            return Fields.STATE_EPOCH | Fields.TOPICS
        return Fields.METADATA if rollback.compares_before_stop(view, self._terms) else Fields(0)

    def decide(self, view: ClusterView, first: ClusterView) -> Decision:
        """Decide which controllers stop now, whether they must start again, or whether ZooKeeper may take the cluster over."""
        self._moved = moved_since(self._moved, view, first)
        progress = replace(self._progress or HandoverProgress(first), before=self._moved.old)
        decision, self._progress = rollback.decide_handover(view, progress, self._terms)
        stuck = self._progress.stuck.since is not None and rollback.no_quorum_possible(view, self._terms)
        self.nodes = () if stuck else self._controllers  # then the brokers' processes count, too
        self._seen = view
        return decision

    def act(self, context: StepContext, act: Act) -> None:
        """Stop or start controllers, or do the transaction."""
        match act.verb:
            case Verb.STOP:
                context.backup.prove_writable()  # before the last controller stops: the transaction saves what it deletes
                view = self._controllers_now(context)
                end = partial(_stop_controller, silent=rollback.silence_of_stop(view))
                errors = self._at_once(context, rollback.controllers_to_stop(view), end)
                failed = tuple(Reason("G26", f"A controller could not be stopped: {error}") for error in errors)
                self._progress = self._progress and replace(self._progress, failed=failed)
            case Verb.START:
                self._progress = self._progress and self._progress.returned()
                seen = self._seen or self._controllers_now(context)  # while a dead machine says nothing, one more takes 15 s
                self._at_once(context, rollback.controllers_to_start_again(seen), start)
            case Verb.STOP_BROKER:
                self._stop_broker(context)
            case Verb.HANDOVER:
                _hand_over(context, self.name)
            case _:
                super().act(context, act)

    def _controllers_now(self, context: StepContext) -> ClusterView:
        return context.observer.observe(self.fields, self._controllers)

    def _at_once(
        self, context: StepContext, numbers: Collection[int], act: Callable[[StepContext, NodeSpec], object]
    ) -> list[KMigrateError]:
        """Act on controllers at the same time; returns the errors, of which the next observation decides what follows.

        Raises a refusal: it is no fault of a machine.
        """
        nodes = [node for node in self._controllers if node.id in numbers]
        errors = [error for error in context.at_once([partial(act, context, node) for node in nodes]) if error is not None]
        for error in errors:
            if not isinstance(error, Unavailable | Failed):
                raise error
            context.say(f"{error} The next observation decides what follows.")
        return errors

    def _stop_broker(self, context: StepContext) -> None:
        """Stop the first broker that hangs; the steps behind the handover start it."""
        number = rollback.brokers_to_stop(context.observer.observe(self.fields))[:1]
        for node in context.spec.brokers:
            if node.id in number and ours(context, self.name, node).met:
                context.say(f"{node.name} stopped after {stop(context, node):.1f} s.")


def _stop_controller(context: StepContext, node: NodeSpec, silent: float = inf) -> None:
    context.say(f"{node.name} stopped after {stop(context, node, silent):.1f} s.")


def _hand_over(context: StepContext, name: str) -> None:
    """Do the handover in one transaction. A znode that changed since it was read leaves all as it was: observe again."""
    context.backup.prove_writable()
    view = context.observer.observe(Fields.ZOOKEEPER | Fields.STATE_EPOCH)
    if view.zk is None or view.state_epoch is None:
        return
    change = rollback.handover(view.zk, view.state_epoch)
    found = {path: context.tools.zk.read(path) for path in ("/controller_epoch", *change.delete)}
    read = {path: znode for path, znode in found.items() if znode is not None}
    if not _same(view, read, change):
        context.say("The znodes changed while they were read; reading them again.")
        return
    if change.states:
        raise_states(context)
    saved = context.backup.keep_znodes({path: data for path, (data, _) in read.items()}, context.fence.token)
    context.tools.zk.commit([*_operations(change, read), *notes_deleted(context)], holding=context.fence)
    epoch = "" if change.epoch is None else f" and /controller_epoch set to {change.epoch}"
    context.say(f"{' and '.join(change.delete)} deleted{epoch} in one transaction; their content is saved in {saved}.")
    context.journal.write("handed over", name, " ".join(change.delete), controller_epoch=change.epoch)


class ZooKeeperLeads(Step):
    """Wait for a ZooKeeper controller that every broker names, and a leader that it can move for every partition."""

    name = "ZooKeeper controller"
    fields = Fields.BROKERS | Fields.CONTROLLERS | Fields.ZOOKEEPER | Fields.PARTITIONS | Fields.STATE_EPOCH
    samples = 2
    patience = 120.0
    max_acts = 20
    acts_again = (Unavailable,)

    def decide(self, view: ClusterView, _first: ClusterView) -> Decision:
        """Wait until a ZooKeeper broker is controller and can move every partition's leader."""
        return rollback.decide_zookeeper_leads(view)

    def act(self, context: StepContext, _act: Act) -> None:
        """Elect leaders of the leaderless partitions, then wait for one interval."""
        context.tools.admin.elect_preferred(
            rollback.electable_partitions(context.observer.observe(Fields.BROKERS | Fields.PARTITIONS)), context.fence
        )
        context.clock.sleep(self.interval)


class WipeController(NodeStep):
    """Move one stopped controller's directories away."""

    fields = Fields.BROKERS | Fields.CONTROLLERS | Fields.ZOOKEEPER | Fields.NODES
    doing = "wipe"

    def decide(self, view: ClusterView, _first: ClusterView) -> Decision:
        """Move the controller's directories away, or wait."""
        return rollback.decide_wipe(view, self.node.id)

    def act(self, context: StepContext, act: Act) -> None:
        """Move the directories away on the node; fenced, and nothing is deleted. First stop one that was started meanwhile."""
        match act.verb:
            case Verb.STOP:
                _stop_controller(context, self.node)
            case Verb.WIPE:
                context.tools.host(self.node).wipe_storage(self.node, context.spec.cluster_id, context.fence.token)
            case _:
                super().act(context, act)


def rolled_back() -> Step:
    """Check that the cluster is as before the migration, ready for the next one."""
    fields = Fields.POSITION | Fields.NODES | Fields.PARTITIONS | Fields.MIN_INSYNC | Fields.STATE_EPOCH | Fields.GROUPS
    decided = rollback.decide_rolled_back
    return WaitStep("rolled back", lambda view, _: decided(view), fields=fields, samples=2, patience=180.0)


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
    deleted = [Delete(path, read[path][1]) for path in change.delete]
    if change.epoch is None:
        return [*deleted]
    return [Set("/controller_epoch", str(change.epoch).encode(), read["/controller_epoch"][1]), *deleted]


def _owner(data: bytes, zk: ZkView) -> ZkController | Malformed:
    return znodes.controller(data, ephemeral=isinstance(zk.controller, ZkController) and zk.controller.ephemeral)
