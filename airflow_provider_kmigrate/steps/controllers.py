"""Start controllers with the migration flag, and restart them without it at the end."""

from __future__ import annotations

from airflow_provider_kmigrate.core.cluster_state.decision import Act, Decision, NextAction, Reading, Verb
from airflow_provider_kmigrate.core.cluster_state.model import Cause, ClusterView, Fields
from airflow_provider_kmigrate.core.cluster_state.spec import NodeSpec
from airflow_provider_kmigrate.core.migration import controllers, readiness, waits
from airflow_provider_kmigrate.core.migration.controllers import ApprovedState
from airflow_provider_kmigrate.core.migration.phase import migration_has_ended
from airflow_provider_kmigrate.core.migration.roll import MovedSince, update_moved_since
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage, unreadable_store_reason
from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.steps.nodes import (
    apply_verb,
    build_note_deletions,
    forget_unflagged,
    install_file,
    note_unflagged,
    refuse_if_rollback_lost,
    start,
)
from airflow_provider_kmigrate.steps.run import NodeStep, StepContext


class ProvisionController(NodeStep):
    """Provision one controller: write its file, format, start, until it answers with the flag."""

    fields = Fields.CONTROLLERS | Fields.BROKERS | Fields.ZOOKEEPER | Fields.QUORUM | Fields.PROCESSES | Fields.FILES
    patience = 180.0
    doing = "provision"

    def __init__(self, node: NodeSpec, cluster_id: str) -> None:
        super().__init__(node)
        self._cluster_id = cluster_id

    def decide(self, view: ClusterView, _first: ClusterView) -> Decision:
        """Write, format, start, or wait until the controller is ready."""
        return controllers.decide_provision(view, self.node.id, self._cluster_id)

    def act(self, context: StepContext, act: Act) -> None:
        """Write the file, format an empty directory, start: as far as the verb asks. Formatting is fenced."""
        if act.verb not in {Verb.START, Verb.REWRITE, Verb.RESTART, Verb.REFLAG, Verb.PROVISION}:
            super().act(context, act)
        if act.verb in {Verb.RESTART, Verb.REFLAG}:
            forget_unflagged(context, self.node.id)
        if act.verb is Verb.RESTART:
            apply_verb(context, self.node, FileStage.CONTROLLER_MIGRATION, act.verb)
            return
        if act.verb is not Verb.START:
            install_file(context, self.node, FileStage.CONTROLLER_MIGRATION)
        if act.verb is Verb.PROVISION:
            self._forget_old_notes(context)
            host = context.tools.host(self.node)
            if (unreadable := unreadable_store_reason(self.node.name, host.files(self.node))) is not None:
                raise Refused.because(unreadable)  # seen only now that its file names them
            host.format_storage(self.node, self._cluster_id, context.backup.version(), context.fence.token)
        if act.verb is not Verb.REWRITE:
            start(context, self.node)

    def _forget_old_notes(self, context: StepContext) -> None:
        """Delete notes of an earlier migration that was cleaned up by hand: they would make the first broker wait for the last."""
        deletions = build_note_deletions(context) if context.tools.zk.read("/migration") is None else []
        if deletions:
            context.tools.zk.commit(deletions, holding=context.fence)
            context.say("Removed the notes of an earlier migration's brokers: a new migration begins with these controllers.")


class FinalizeController(NodeStep):
    """Restart one controller without the flag. The point of no return is between the first restart and the next election.

    `approved`: what was reported when the finalization was approved, which may be long ago; all of it is observed again.
    """

    fields = ProvisionController.fields | Fields.GROUPS | Fields.PARTITIONS | Fields.REASSIGNMENTS | Fields.PROBE
    patience = 180.0
    expected_alarms = frozenset({Cause.UNFLAGGED_CONTROLLER})
    in_windows = True
    doing = "finalize"

    def __init__(self, node: NodeSpec, approved: ApprovedState | None = None) -> None:
        super().__init__(node)
        self.nodes = ()  # the files of all nodes: the first election without the flag makes every wrong one final
        self._approved = approved or ApprovedState()
        self._originals = Fields.BACKUP if self._approved.rests_on else Fields(0)  # their hashes are part of it
        self._moved: MovedSince | None = None
        self._over = False

    def next_action(self, view: ClusterView, first: ClusterView, read: Reading) -> NextAction[None]:
        """What both sides store is read before the first controller loses its flag."""
        before = self._moved.earlier if self._moved else view
        compares = controllers.compares_before_finalizing(view, before, self.node.id, first.taken_at)
        needed_fields = readiness.fields_of(waits.FINALIZE_CHECKS) | self._originals if compares else Fields(0)
        return self.read_fields_first(needed_fields) if needed_fields & ~read.fields else super().next_action(view, first, read)

    def decide(self, view: ClusterView, first: ClusterView) -> Decision:
        """Restart the controller without its flag, or wait."""
        self._over = migration_has_ended(view)
        self._moved = update_moved_since(self._moved, view, first)
        return controllers.decide_finalize(view, self._moved.earlier, self.node.id, self._approved, first.taken_at)

    def act(self, context: StepContext, act: Act) -> None:
        """Take the flag away. Before the restart: refuse if the rollback is lost, and note that the finalization has begun."""
        if act.verb not in {Verb.START, Verb.REWRITE, Verb.RESTART}:
            super().act(context, act)
        self.nodes = (self.node,)  # from here on only this one changes
        if act.verb is Verb.RESTART and not self._over:
            refuse_if_rollback_lost(self.name, context.spec, context.backup, context.journal)
            note_unflagged(context, self.node.id)
        apply_verb(context, self.node, FileStage.CONTROLLER_FINAL, act.verb)
