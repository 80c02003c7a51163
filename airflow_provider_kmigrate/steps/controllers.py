"""Start controllers with the migration flag, and restart them without it at the end."""

from __future__ import annotations

from airflow_provider_kmigrate.core import readiness
from airflow_provider_kmigrate.core.cluster import NodeSpec
from airflow_provider_kmigrate.core.decision import Act, Decision, Verb
from airflow_provider_kmigrate.core.files.config_matrix import FileStage, unreadable_stores
from airflow_provider_kmigrate.core.migration import controllers, waits
from airflow_provider_kmigrate.core.migration.controllers import ApprovedState
from airflow_provider_kmigrate.core.migration.roll import MovedSince, moved_since
from airflow_provider_kmigrate.core.model import Cause, ClusterView, Fields
from airflow_provider_kmigrate.core.phase import ended
from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.steps.nodes import (
    apply,
    forget_unflagged,
    install,
    note_unflagged,
    notes_deleted,
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
            apply(context, self.node, FileStage.CONTROLLER_MIGRATION, act.verb)
            return
        if act.verb is not Verb.START:
            install(context, self.node, FileStage.CONTROLLER_MIGRATION)
        if act.verb is Verb.PROVISION:
            self._forget(context)
            host = context.tools.host(self.node)
            if (unreadable := unreadable_stores(self.node.name, host.files(self.node))) is not None:
                raise Refused.because(unreadable)  # seen only now that its file names them
            host.format_storage(self.node, self._cluster_id, context.backup.version(), context.fence.token)
        if act.verb is not Verb.REWRITE:
            start(context, self.node)

    def _forget(self, context: StepContext) -> None:
        """Delete notes of an earlier migration that was cleaned up by hand: they would make the first broker wait for the last."""
        left = notes_deleted(context) if context.tools.zk.read("/migration") is None else []
        if left:
            context.tools.zk.commit(left, holding=context.fence)
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
        self._began: float | None = None  # when this process observed first
        self._over = False

    def expensive_fields(self, view: ClusterView) -> Fields:
        """What both sides store, before the first controller loses its flag."""
        before = self._moved.old if self._moved else view
        self._began = view.taken_at if self._began is None else self._began
        compares = controllers.compares_before_finalizing(view, before, self.node.id, self._began)
        return readiness.fields_of(waits.FINALIZE_CHECKS) | self._originals if compares else Fields(0)

    def decide(self, view: ClusterView, first: ClusterView) -> Decision:
        """Restart the controller without its flag, or wait."""
        self._over = ended(view)
        self._moved = moved_since(self._moved, view, first)
        return controllers.decide_finalize(view, self._moved.old, self.node.id, self._approved, first.taken_at)

    def act(self, context: StepContext, act: Act) -> None:
        """Take the flag away. Before the restart: refuse if the rollback is lost, and note that the finalization has begun."""
        if act.verb not in {Verb.START, Verb.REWRITE, Verb.RESTART}:
            super().act(context, act)
        self.nodes = (self.node,)  # from here on only this one changes
        if act.verb is Verb.RESTART and not self._over:
            refuse_if_rollback_lost(self.name, context.spec, context.backup, context.journal)
            note_unflagged(context, self.node.id)
        apply(context, self.node, FileStage.CONTROLLER_FINAL, act.verb)
