"""Start controllers with the migration flag, and restart them without it at the end."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_kmigrate.core.cluster import ClusterSpec, NodeSpec, Role
from airflow_provider_kmigrate.core.decision import Act, Decision, Verb
from airflow_provider_kmigrate.core.files.config_matrix import Stage
from airflow_provider_kmigrate.core.forward import provision
from airflow_provider_kmigrate.core.forward.moved import MovedSince, moved_since
from airflow_provider_kmigrate.core.model import ClusterView, Look
from airflow_provider_kmigrate.core.phase import ended
from airflow_provider_kmigrate.steps.files import install
from airflow_provider_kmigrate.steps.lacking import refuse_if_lost
from airflow_provider_kmigrate.steps.notes import forget_unflagged, note_unflagged, notes_deleted
from airflow_provider_kmigrate.steps.restarts import apply, start
from airflow_provider_kmigrate.steps.run import Arguments, Maker, OfNode, Step, World


class ProvisionController(OfNode):
    """One controller: file, format, start, until it answers with the flag."""

    looks = Look.CONTROLLERS | Look.BROKERS | Look.ZOOKEEPER | Look.QUORUM | Look.PROCESSES | Look.FILES
    patience = 180.0

    def __init__(self, node: NodeSpec, cluster_id: str) -> None:
        self.node, self._cluster_id = node, cluster_id
        self.name = f"provision {node.name}"
        self.nodes = (node,)

    def decide(self, view: ClusterView, first: ClusterView) -> Decision:
        del first
        return provision.decide_provision(view, self.node.id, self._cluster_id)

    def act(self, world: World, act: Act) -> None:
        if act.verb not in {Verb.START, Verb.REWRITE, Verb.REFLAG, Verb.PROVISION}:
            super().act(world, act)
        if act.verb is Verb.REFLAG:
            forget_unflagged(world, self.node.id)
        if act.verb is not Verb.START:
            install(world, self.node, Stage.CONTROLLER_MIGRATION)
        if act.verb is Verb.PROVISION:
            self._forget(world)
            host = world.tools.host(self.node)
            host.format_storage(self.node, self._cluster_id, world.backup.version(), world.fence.token)
        if act.verb is not Verb.REWRITE:
            start(world, self.node)

    def _forget(self, world: World) -> None:
        """Notes of an earlier migration that was cleaned up by hand: the last broker would be waited for before the first one."""
        left = notes_deleted(world) if world.tools.zk.read("/migration") is None else []
        if left:
            world.tools.zk.commit(left, holding=world.fence)
            world.say("Notes of an earlier migration's brokers removed: these controllers are the first of a new one.")


class FinalizeController(OfNode):
    """One controller without the flag. The point of no return lies between the first of these and the next election.

    `approved`: what was said of both sides when the finalization was approved, which may be long ago: all of it is looked at again.
    """

    looks = (
        Look.CONTROLLERS
        | Look.BROKERS
        | Look.ZOOKEEPER
        | Look.GROUPS
        | Look.QUORUM
        | Look.PARTITIONS
        | Look.REASSIGNMENTS
        | Look.PROCESSES
        | Look.FILES
    )
    patience = 180.0
    expected = frozenset({"G05"})

    def __init__(self, node: NodeSpec, approved: str = "") -> None:
        self.node, self._approved = node, approved
        self.name = f"finalize {node.name}"
        self.nodes = (node,)
        self._moved: MovedSince | None = None
        self._over = False

    def dear(self, view: ClusterView) -> Look:
        before = self._moved.old if self._moved else view
        return Look.METADATA if provision.compares_before_finalizing(view, before, self.node.id) else Look(0)

    def decide(self, view: ClusterView, first: ClusterView) -> Decision:
        self._over = ended(view)
        self._moved = moved_since(self._moved, view, first)
        return provision.decide_finalize(view, self._moved.old, self.node.id, self._approved)

    def act(self, world: World, act: Act) -> None:
        if act.verb not in {Verb.START, Verb.REWRITE, Verb.RESTART}:
            super().act(world, act)
        if act.verb is Verb.RESTART and not self._over:
            refuse_if_lost(self.name, world.spec, world.backup, world.journal)
            note_unflagged(world, self.node.id)
        apply(world, self.node, Stage.CONTROLLER_FINAL, act.verb)


def _provision(spec: ClusterSpec, arguments: Arguments) -> Step:
    return ProvisionController(spec.node(Role.CONTROLLER, arguments["node"]), spec.cluster_id)


def _finalize(spec: ClusterSpec, arguments: Arguments) -> Step:
    return FinalizeController(spec.node(Role.CONTROLLER, arguments["node"]), arguments.get("approved") or "")


STEPS: Mapping[str, Maker] = {"provision": _provision, "finalize": _finalize}
