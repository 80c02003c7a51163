"""Recovery of a stalled dual-write, and raised partition states before a rollback or handover to ZooKeeper.

The states are raised above the partition epochs that brokers remember of KRaft; `clients.partition_states` has the reason.
"""

from __future__ import annotations

from collections.abc import Collection

from airflow_provider_kmigrate.clients.znodes import Delete
from airflow_provider_kmigrate.clients.zookeeper_session import Changed
from airflow_provider_kmigrate.core.cluster_state.decision import Act, Verb
from airflow_provider_kmigrate.core.cluster_state.model import Fields
from airflow_provider_kmigrate.core.migration import rollback
from airflow_provider_kmigrate.core.migration.gates import unidentified_reasons
from airflow_provider_kmigrate.core.migration.recovery import (
    CONTROLLER_DOWN_FIELDS,
    may_recover,
)
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage
from airflow_provider_kmigrate.core.shared.text import count_of, join_ids, summarize
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, Failed
from airflow_provider_kmigrate.steps.journal import format_reasons
from airflow_provider_kmigrate.steps.nodes import apply_verb, directories_are_ours, install_file, start
from airflow_provider_kmigrate.steps.run import StepContext, pass_gate_again


class StatesKept(Failed):
    """Partition states still name brokers that do not answer."""


def raise_states(context: StepContext, unresponsive: Collection[int] = ()) -> None:
    """Raise the states' versions. Continues without permission: a leader that the brokers ignore can be restarted.

    `unresponsive`: brokers that are taken out of the states' ISRs. Without permission to do that it raises `StatesKept`.
    """
    from airflow_provider_kmigrate.clients.partition_states import raise_versions  # noqa: PLC0415  # each task of a roll would import it

    try:
        written = raise_versions(context.tools.zk, context.fence, unresponsive)
    except (AuthenticationFailed, Changed) as error:
        text = f"Could not raise all partition states above KRaft's partition epochs: {error}"
        if unresponsive:
            raise StatesKept(f"Brokers {join_ids(unresponsive)} do not answer and stay in their ISRs. {text}") from error
        context.say(text)
        return
    context.say(
        f"Wrote {count_of(written.states, 'partition state')} again, {count_of(written.times, 'time')}, so that they exceed KRaft's partition epochs; "
        f"{f'{written.without} of them without broker {join_ids(unresponsive)}' if unresponsive else 'all unchanged'}."
    )


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


_BEING_MADE = 5.0  # seconds within which a topic under creation is complete


def repair_dual_write(context: StepContext, name: str, act: Act) -> bool:
    """Perform the act and return True if it is one of `recovery.REPAIRS`. `name`: the step's."""
    match act.verb:
        case Verb.START_CONTROLLER:
            start_down_controller(context, name)
        case Verb.COMPLETE | Verb.CONTROLLER_FAILOVER:
            recover_dual_write(context, name, act.verb)
        case _:
            return False
    return True


def recover_dual_write(context: StepContext, name: str, verb: Verb) -> None:
    """Complete partly created topics in ZooKeeper, then fail over the controller if `verb` asks for it. `name`: the step's.

    Raises `Failed` if a topic stays incomplete: a failover would then stop a moving dual-write without recovering it.
    """
    _complete_topics(context, name)
    if verb is Verb.CONTROLLER_FAILOVER:
        fail_over_controller(context, name)


def _complete_topics(context: StepContext, name: str) -> None:
    from airflow_provider_kmigrate.clients.partition_states import find_missing_states  # noqa: PLC0415  # each task of a roll would import it

    missing = find_missing_states(context.tools.zk)
    if missing:
        context.clock.sleep(_BEING_MADE)
        missing = tuple(path for path in find_missing_states(context.tools.zk) if path in missing)
    if not missing:
        context.say("ZooKeeper holds every topic with all its partitions.")
        return
    created = sum(_create_state(context, path) for path in missing)
    still_missing = tuple(path for path in find_missing_states(context.tools.zk) if path in missing)
    text = f"Created {count_of(created, 'missing partition-state znode')}; each new controller failed on them"
    context.say(f"{text}. KRaft will overwrite them ({summarize(missing)}).")
    if still_missing:
        text = f"{count_of(len(still_missing), 'partition has', 'partitions have')} no state in ZooKeeper, and it could not be created: {summarize(still_missing)}."
        raise Failed(f"{name}: {text} No failover was made: every controller would fail on them.")


def _create_state(context: StepContext, path: str) -> int:
    from airflow_provider_kmigrate.clients.partition_states import create_states  # noqa: PLC0415  # each task of a roll would import it

    try:
        return create_states(context.tools.zk, (path,), context.fence)
    except Changed:  # another client created it, or deleted the topic
        return 0


def fail_over_controller(context: StepContext, name: str) -> None:
    """Restart the active controller with the migration flag in its file, so that another one is elected.

    The gate is checked again first: since the decision every state may have been read. Then nothing is done.
    """
    view = context.observer.observe(Fields.CONTROLLERS | Fields.QUORUM | Fields.CLIENT_METRICS)
    leader = next((node for node in context.spec.controllers if view.quorum and node.id == view.quorum.leader_id), None)
    gate = may_recover(view)
    gate = directories_are_ours(context, name, leader) if gate.met and leader is not None else gate
    if not gate.met or leader is None:
        why = format_reasons(gate.reasons) or "the quorum names no leader of the cluster file."
        context.say(f"No failover now: {why} It is checked again.")
        return
    apply_verb(context, leader, FileStage.CONTROLLER_MIGRATION, Verb.RESTART)


def start_down_controller(context: StepContext, name: str) -> None:
    """Start a controller of this migration that is down, such as one that a failover killed between stop and start. `name`: the step's.

    Starts none whose flag may be over (R12): something may have shown it since the decision.
    """
    view = context.observer.observe(CONTROLLER_DOWN_FIELDS, context.spec.controllers)
    pass_gate_again(name, context, view)
    number, decision = rollback.find_down_controller(view) or (None, None)
    for node in context.spec.controllers:
        if node.id == number and isinstance(decision, Act) and not unidentified_reasons(view.controllers[node.id]):
            install_file(context, node, FileStage.CONTROLLER_MIGRATION)
            start(context, node)
