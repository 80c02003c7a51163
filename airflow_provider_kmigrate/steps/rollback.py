"""The steps of the rollback; `core.migration.rollback` and `handover` decide, `core.migration.plan` has their order."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any, NamedTuple

from airflow_provider_kmigrate.clients import znodes
from airflow_provider_kmigrate.clients.znodes import Delete, Operation, Set
from airflow_provider_kmigrate.core.cluster_state.decision import Act, Decision, NextAction, Reading, Refuse, Verb, Wait
from airflow_provider_kmigrate.core.cluster_state.model import (
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
from airflow_provider_kmigrate.core.cluster_state.spec import NodeSpec
from airflow_provider_kmigrate.core.migration import equivalence, gates, handover, rollback
from airflow_provider_kmigrate.core.migration.equivalence import MetadataChange
from airflow_provider_kmigrate.core.migration.handover import HandoverProgress, HandoverWrites
from airflow_provider_kmigrate.core.migration.readiness import has_original
from airflow_provider_kmigrate.core.migration.recovery import CONTROLLER_DOWN_FIELDS, StalledDualWrite
from airflow_provider_kmigrate.core.migration.roll import MovedSince, update_moved_since
from airflow_provider_kmigrate.core.migration.rollback import SAFE, RollbackTerms
from airflow_provider_kmigrate.core.migration.rollback_plan import plan_rollback
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage
from airflow_provider_kmigrate.core.shared.text import count_of
from airflow_provider_kmigrate.exceptions import Failed, KMigrateError, Refused, Unavailable, Unreachable
from airflow_provider_kmigrate.steps.backup import rollback_prerequisites
from airflow_provider_kmigrate.steps.dual_write import StatesKept, raise_states, recover_dual_write, start_down_controller
from airflow_provider_kmigrate.steps.journal import format_reasons
from airflow_provider_kmigrate.steps.nodes import apply_verb, build_note_deletions, forget_unflagged, install_file, start, stop
from airflow_provider_kmigrate.steps.plan_binding import read_plan_facts
from airflow_provider_kmigrate.steps.run import NodeStep, Step, StepContext
from airflow_provider_kmigrate.steps.waits import WaitStep, equivalent


class ObservedRollback(NamedTuple):
    """A rollback's steps and consequences in words, and the observation that they are of."""

    steps: tuple[str, ...]
    consequences: tuple[str, ...]
    view: ClusterView


def plan_from_here(context: StepContext, terms: RollbackTerms = SAFE) -> dict[str, Any]:
    """The plan of the rollback of this cluster (`rollback_plan.plan_rollback`). Raises as `planned`; `Refused` (P13) if no step is left."""
    observed = planned(context, terms)
    if not observed.steps:
        raise Refused.because(rollback.NOTHING)
    return plan_rollback(read_plan_facts(context, observed.view), observed.steps, observed.consequences, terms)


def planned(context: StepContext, terms: RollbackTerms = SAFE) -> ObservedRollback:
    """Report and return the rollback's steps, and what is kept, lost, was changed, and is accepted; checks that it is possible, changes nothing.

    Raises `Refused` if no rollback is possible, an original that it needs is missing or altered, or the backup is not writable;
    `Unavailable` if that cannot be determined.
    """
    accepting = Fields.COORDINATORS if terms.left or terms.splits else Fields(0)
    fields = Fields.POSITION | Fields.NODES | Fields.STATE_EPOCH | Fields.CLIENT_METRICS | Fields.METADATA | Fields.PARTITIONS
    whole = context.observer.observe(fields | accepting)
    view = gates.without_left_brokers(whole, terms.left)
    end_decision = rollback.refuse_if_irreversible(view)
    if isinstance(end_decision, Refuse):
        raise Refused(f"rollback: nothing was changed. {format_reasons(end_decision.reasons)}", end_decision.reasons)
    if isinstance(end_decision, Wait):
        raise Unavailable(f"rollback: {format_reasons(end_decision.reasons)}")
    epochs = gates.epochs_known(view)
    if not epochs.met:
        raise Unavailable(f"rollback: {format_reasons((*epochs.reasons, *view.unknowns))}")
    steps = rollback.plan(view)
    if steps:
        _refuse_missing_prerequisites(context, view)
    consequences, changed = _describe_consequences(context, view) if steps else ((), ())
    consequences = (*consequences, *rollback.describe_accepted_costs(whole, terms)) if steps else consequences
    for text in (*(f"{number}. {step}" for number, step in enumerate(steps, 1)), *consequences):
        context.say(text)
    rows = [[change.what, str(change), change.held] for change in changed]
    context.journal.write(
        "plan", "rollback", count_of(len(steps), "rollback step"), steps=list(steps), kept=list(consequences), changed=rows
    )
    context.say(
        "Nothing to roll back: no trace of a migration."
        if not steps
        else f"Done: the rollback has {count_of(len(steps), 'step')}."
    )
    return ObservedRollback(steps, consequences, view)


def _describe_consequences(context: StepContext, view: ClusterView) -> tuple[tuple[str, ...], tuple[MetadataChange, ...]]:
    """What is kept, lost and was changed, in words with some examples; and every change."""
    before, why = _read_inventory(context)
    changed = rollback.describe_changes(view, before, why)
    return (*rollback.describe_kept_and_lost(view), *changed), equivalence.find_changes(
        view, before
    ) if changed and before else ()


def _read_inventory(context: StepContext) -> tuple[Inventory | None, str]:
    """What was stored before the takeover, or why that is not known; a tree that cannot be read stops no rollback."""
    try:
        return context.backup.read_inventory(), ""
    except (KMigrateError, OSError) as error:
        return None, str(error)


def planned_in_migration(context: StepContext) -> dict[str, Any] | str:
    """As `plan_from_here`, during the migration: a sentence, not a refusal, if the finalization has happened already."""
    try:
        return plan_from_here(context)
    except Refused as refused:
        if all(reason.cause is not Cause.FINALIZED for reason in refused.reasons):
            raise
        return rollback.IMPOSSIBLE


def _refuse_missing_prerequisites(context: StepContext, view: ClusterView) -> None:
    brokers = {node: view.brokers.get(node.id) for node in context.spec.brokers}
    moved = [node for node, broker in brokers.items() if broker is None or not has_original(broker)]
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
        new_decision = rollback.decide_restore_flag(context.observer.observe(self.fields, self.nodes), self.node.id)
        if not isinstance(new_decision, Act) or new_decision.verb is not act.verb:
            context.say(f"{self.node.name} does not get its flag now: the cluster has changed since the decision.")
            return
        forget_unflagged(context, self.node.id)
        if act.verb is Verb.START:  # it may have lost the flag before it went down
            install_file(context, self.node, FileStage.CONTROLLER_MIGRATION)
        apply_verb(context, self.node, FileStage.CONTROLLER_MIGRATION, act.verb)


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
        has_copy = view.zk is not None and isinstance(view.zk.migration, Migration)
        if self._before is None and view.quorum is not None and has_copy:
            self._before = view
        decision = rollback.decide_controller_failover(view, self._before or first)
        self._stalled, decision = self._stalled.decide_recovery(view, decision)
        return decision

    def act(self, context: StepContext, act: Act) -> None:
        """Start what is down, or cause a failover of the active controller."""
        match act.verb:
            case Verb.START:
                start_down_controller(context, self.name)
            case Verb.COMPLETE | Verb.CONTROLLER_FAILOVER:
                recover_dual_write(context, self.name, act.verb)
            case _:
                super().act(context, act)


def equivalent_after_failover(patience: float, terms: RollbackTerms = SAFE) -> Step:
    """Wait until ZooKeeper and KRaft store the same metadata, or the rollback's terms allow a difference."""
    return equivalent(patience, lambda view: rollback.decide_if_nothing_is_lost(view, terms))


class Handover(Step):
    """Stop the controllers and hand the cluster over to ZooKeeper, in one process: without a quorum no time is lost between two tasks.

    What the transaction deletes is saved, partition epochs are raised. `controllers`: the nodes whose machines are asked, all controllers.
    """

    name = "handover to ZooKeeper"
    stores_status = False
    fields = Fields.POSITION | Fields.PARTITIONS | Fields.MIN_INSYNC | Fields.NODES
    interval = 0.5
    patience = 600.0
    max_acts = 2 * handover.MAX_RETURNS
    acts_again = (Unreachable,)

    def __init__(self, controllers: tuple[NodeSpec, ...], terms: RollbackTerms = SAFE) -> None:
        self.nodes = self._controllers = controllers
        self._terms = terms
        self._moved: MovedSince | None = None
        self._progress: HandoverProgress | None = None
        self._seen: ClusterView | None = None  # by the last decision

    def next_action(self, view: ClusterView, first: ClusterView, read: Reading) -> NextAction[None]:
        """What both sides store is read before a controller stops; epochs and topics, before the transaction."""
        needed_fields = Fields.METADATA if handover.needs_comparison_for_stop(view, self._progress) else Fields(0)
        needed_fields = (
            Fields.STATE_EPOCH | Fields.TOPICS if handover.needs_comparison_for_handover(view, self._progress) else needed_fields
        )
        return self.read_fields_first(needed_fields) if needed_fields & ~read.fields else super().next_action(view, first, read)

    def decide(self, view: ClusterView, first: ClusterView) -> Decision:
        """Decide which controllers stop now, whether they must start again, or whether ZooKeeper may take the cluster over."""
        self._moved = update_moved_since(self._moved, view, first)
        progress = replace(self._progress or HandoverProgress(first), before=self._moved.earlier)
        decision, self._progress = handover.decide_handover(view, progress, self._terms)
        self._seen = view
        return decision

    def act(self, context: StepContext, act: Act) -> None:
        """Stop or start controllers, or do the transaction."""
        match act.verb:
            case Verb.STOP:
                context.backup.prove_writable()  # before the last controller stops: the transaction saves what it deletes
                view = self._observe_controllers(context)
                stop_node = partial(_stop_controller, unresponsive_after=handover.unresponsive_stop_timeout(view))
                errors = self._act_at_once(context, handover.controllers_to_stop(view), stop_node)
                failed = tuple(Reason("G26", f"A controller could not be stopped: {error}") for error in errors)
                self._progress = self._progress and replace(self._progress, failed=failed)
            case Verb.START:
                self._progress = self._progress and self._progress.add_return()
                last_view = self._seen or self._observe_controllers(
                    context
                )  # while a dead machine says nothing, one more takes 15 s
                self._act_at_once(context, handover.controllers_to_start_again(last_view), start)
            case Verb.HANDOVER:
                self._try_handover(context)
            case _:
                super().act(context, act)

    def _observe_controllers(self, context: StepContext) -> ClusterView:
        return context.observer.observe(self.fields, self._controllers)

    def _act_at_once(
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

    def _try_handover(self, context: StepContext) -> None:
        """Hand over; states that cannot be written without the unresponsive brokers are a reason to start the controllers again."""
        try:
            _hand_over(context, self.name, handover.unresponsive_named_brokers(self._seen) if self._seen else ())
        except StatesKept as error:
            self._progress = self._progress and replace(self._progress, failed=(Reason("G26", str(error)),))
            context.say(f"{error} The next observation decides what follows.")


def _stop_controller(context: StepContext, node: NodeSpec, unresponsive_after: float = inf) -> None:
    context.say(f"{node.name} stopped after {stop(context, node, unresponsive_after):.1f} s.")


def _hand_over(context: StepContext, name: str, unresponsive: Collection[int]) -> None:
    """Do the handover in one transaction. A znode that changed since it was read leaves all as it was: observe again.

    `unresponsive`: the brokers without which partition states are written. Raises `StatesKept` if they cannot be.
    """
    context.backup.prove_writable()
    view = context.observer.observe(Fields.ZOOKEEPER | Fields.STATE_EPOCH)
    if view.zk is None or view.state_epoch is None:
        return
    change = handover.build_handover_writes(view.zk, view.state_epoch)
    all_znodes = {path: context.tools.zk.read(path) for path in ("/controller_epoch", *change.delete)}
    read_znodes = {path: znode for path, znode in all_znodes.items() if znode is not None}
    if not _znodes_match_view(view, read_znodes, change):
        context.say("The znodes changed while they were read; reading them again.")
        return
    if change.states:
        raise_states(context, unresponsive)
    saved = context.backup.keep_znodes({path: data for path, (data, _) in read_znodes.items()}, context.fence.token)
    context.tools.zk.commit([*_build_operations(change, read_znodes), *build_note_deletions(context)], holding=context.fence)
    epoch = "" if change.epoch is None else f" and /controller_epoch set to {change.epoch}"
    context.say(f"{' and '.join(change.delete)} deleted{epoch} in one transaction; their content is saved in {saved}.")
    context.journal.write(
        "handed over", name, " ".join(change.delete), controller_epoch=change.epoch, without=sorted(unresponsive)
    )


class ZooKeeperLeads(Step):
    """Wait for a ZooKeeper controller that every broker names, and a leader that it can move for every partition."""

    name = "ZooKeeper controller"
    stores_status = False
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
    decide = rollback.decide_rolled_back
    return WaitStep("rolled back", lambda view, _: decide(view), fields=fields, samples=2, patience=180.0)


def _znodes_match_view(view: ClusterView, read_znodes: dict[str, tuple[bytes, int]], change: HandoverWrites) -> bool:
    """True if the znodes and their versions are those that the change was made for."""
    zk = view.zk
    if zk is None or set(change.delete) - set(read_znodes):
        return False
    if "/migration" in read_znodes and znodes.parse_migration(*read_znodes["/migration"]) != zk.migration:
        return False
    if "/controller" in read_znodes and _parse_controller(read_znodes["/controller"][0], zk) != zk.controller:
        return False
    return change.epoch is None or znodes.parse_controller_epoch(read_znodes["/controller_epoch"][0]) == zk.controller_epoch


def _build_operations(change: HandoverWrites, read_znodes: dict[str, tuple[bytes, int]]) -> list[Operation]:
    deleted = [Delete(path, read_znodes[path][1]) for path in change.delete]
    if change.epoch is None:
        return [*deleted]
    return [Set("/controller_epoch", str(change.epoch).encode(), read_znodes["/controller_epoch"][1]), *deleted]


def _parse_controller(data: bytes, zk: ZkView) -> ZkController | Malformed:
    return znodes.parse_controller(data, ephemeral=isinstance(zk.controller, ZkController) and zk.controller.ephemeral)
