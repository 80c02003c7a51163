"""Recovery of a stalled dual-write, and raised partition states before a rollback or handover to ZooKeeper.

The states are raised above the partition epochs that brokers remember of KRaft; `clients.partition_states` has the reason.
"""

from __future__ import annotations

from airflow_provider_kmigrate.clients.znodes import Delete
from airflow_provider_kmigrate.clients.zookeeper_session import Changed
from airflow_provider_kmigrate.core import rollback
from airflow_provider_kmigrate.core.decision import Act, Decision, Refuse, Verb
from airflow_provider_kmigrate.core.files.config_matrix import FileStage
from airflow_provider_kmigrate.core.gates import unidentified
from airflow_provider_kmigrate.core.migration.recovery import (
    CONTROLLER_DOWN_FIELDS,
    StalledDualWrite,
    may_recover,
    recover_dual_write,
)
from airflow_provider_kmigrate.core.model import ClusterView, Fields
from airflow_provider_kmigrate.core.text import summarize
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, Failed
from airflow_provider_kmigrate.steps.journal import format_reasons
from airflow_provider_kmigrate.steps.nodes import apply, install, ours, start
from airflow_provider_kmigrate.steps.run import StepContext, pass_gate_again


def raise_states(context: StepContext) -> None:
    """Raise the states' versions. Continues without permission: a leader that the brokers ignore can be restarted."""
    from airflow_provider_kmigrate.clients.partition_states import raise_versions  # noqa: PLC0415  # each task of a roll would import it

    try:
        count, times = raise_versions(context.tools.zk, context.fence)
    except (AuthenticationFailed, Changed) as error:
        context.say(f"Could not raise all partition states above KRaft's partition epochs: {error}")
        return
    context.say(f"Wrote {count} partition states again unchanged, {times} times, so that they exceed KRaft's partition epochs.")


def elect_again(context: StepContext) -> None:
    """Raise the states under a working ZooKeeper controller, then elect a new one, which reads them and informs every broker.

    An election costs less than a second, in which no leader can move (measured). It happens even if not all states were raised:
    the controller uses the versions that it has read, and could no longer change a partition whose state was raised.
    """
    owner = context.tools.zk.read("/controller")
    raise_states(context)
    if owner is None:
        return
    try:
        context.tools.zk.commit([Delete("/controller", owner[1])], holding=context.fence)
    except AuthenticationFailed as error:
        context.say(f"No controller was elected: {error}")
    except Changed:
        context.say("Another controller was elected in the meantime; it has read the states.")


REPAIRS = frozenset({Verb.START_CONTROLLER, Verb.COMPLETE, Verb.CONTROLLER_FAILOVER})
"""The verbs of `DualWriteRepair`."""
_BEING_MADE = 5.0  # seconds within which a topic under creation is complete


class DualWriteRepair:
    """Tracks a stalled dual-write over the observations of one step and performs its recovery; `core.migration.recovery` decides."""

    def __init__(self, recoveries: int = 0) -> None:
        self.stalled = StalledDualWrite(recoveries)
        self.more_fields = Fields(0)  # what the next observation must read beside the step's own fields

    def decide(self, view: ClusterView, decision: Decision) -> Decision:
        """The decision, or the recovery that replaces it."""
        down = rollback.still_down(view) if self.stalled.times else None  # none was stopped before the first recovery
        decision, self.stalled, self.more_fields = recover_dual_write(view, decision, self.stalled, down)
        return decision

    def repair_difference(self, view: ClusterView, refusal: Refuse) -> Decision:
        """The refusal because of a lasting difference, or the recovery that replaces it."""
        self.stalled, decision = self.stalled.repair_difference(view, refusal)
        return decision

    def forget_decision(self) -> None:
        """Forget the recovery that was decided last: another process performs it."""
        self.stalled = self.stalled.withdrawn()

    def act(self, context: StepContext, name: str, act: Act) -> bool:
        """Perform the act and return True if it is one of `REPAIRS`. `name`: the step's."""
        match act.verb:
            case Verb.START_CONTROLLER:
                start_what_is_down(context, name)
            case Verb.COMPLETE | Verb.CONTROLLER_FAILOVER:
                recover(context, name, act.verb)
            case _:
                return False
        return True


def recover(context: StepContext, name: str, verb: Verb) -> None:
    """Complete partly created topics in ZooKeeper, then fail over the controller if `verb` asks for it. `name`: the step's.

    Raises `Failed` if a topic stays incomplete: a failover would then stop a moving dual-write without recovering it.
    """
    _complete(context, name)
    if verb is Verb.CONTROLLER_FAILOVER:
        fail_over(context, name)


def _complete(context: StepContext, name: str) -> None:
    from airflow_provider_kmigrate.clients.partition_states import missing_states  # noqa: PLC0415  # each task of a roll would import it

    found = missing_states(context.tools.zk)
    if found:
        context.clock.sleep(_BEING_MADE)
        found = tuple(path for path in missing_states(context.tools.zk) if path in found)
    if not found:
        context.say("ZooKeeper holds every topic with all its partitions.")
        return
    made = sum(_created(context, path) for path in found)
    left = tuple(path for path in missing_states(context.tools.zk) if path in found)
    text = f"Created {made} missing partition-state znodes; each new controller failed on them"
    context.say(f"{text}. KRaft will overwrite them ({summarize(found)}).")
    if left:
        text = f"{len(left)} partitions have no state in ZooKeeper, and it could not be created: {summarize(left)}."
        raise Failed(f"{name}: {text} No failover was made: every controller would fail on them.")


def _created(context: StepContext, path: str) -> int:
    from airflow_provider_kmigrate.clients.partition_states import create_states  # noqa: PLC0415  # each task of a roll would import it

    try:
        return create_states(context.tools.zk, (path,), context.fence)
    except Changed:  # another client created it, or deleted the topic
        return 0


def fail_over(context: StepContext, name: str) -> None:
    """Restart the active controller with the migration flag in its file, so that another one is elected.

    The gate is checked again first: since the decision every state may have been read. Then nothing is done.
    """
    view = context.observer.observe(Fields.CONTROLLERS | Fields.QUORUM | Fields.CLIENT_METRICS)
    leader = next((node for node in context.spec.controllers if view.quorum and node.id == view.quorum.leader_id), None)
    gate = may_recover(view)
    gate = ours(context, name, leader) if gate.met and leader is not None else gate
    if not gate.met or leader is None:
        why = format_reasons(gate.reasons) or "the quorum names no leader of the cluster file."
        context.say(f"No failover now: {why} It is checked again.")
        return
    apply(context, leader, FileStage.CONTROLLER_MIGRATION, Verb.RESTART)


def start_what_is_down(context: StepContext, name: str) -> None:
    """Start a controller of this migration that is down, such as one that a failover killed between stop and start. `name`: the step's.

    Starts none whose flag may be over (R12): something may have shown it since the decision.
    """
    view = context.observer.observe(CONTROLLER_DOWN_FIELDS, context.spec.controllers)
    pass_gate_again(name, context, view)
    number, decision = rollback.still_down(view) or (None, None)
    for node in context.spec.controllers:
        if node.id == number and isinstance(decision, Act) and not unidentified(view.controllers[node.id]):
            install(context, node, FileStage.CONTROLLER_MIGRATION)
            start(context, node)
