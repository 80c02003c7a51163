"""The handover of the rollback: the controllers stop, and one ZooKeeper transaction makes ZooKeeper the owner again (steps 4 and 5).

`rollback` has the order of all steps and the conditions that several of them share. `decide_handover` is where to begin.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import inf

from airflow_provider_kmigrate.core.cluster_state.decision import Act, Decision, Done, Refuse, Verb, Wait
from airflow_provider_kmigrate.core.cluster_state.model import (
    BrokerMode,
    Cause,
    ClusterView,
    Controller,
    Migration,
    NodeFiles,
    Process,
    ProcessState,
    Reason,
    ZkController,
    ZkView,
    could_not_read,
)
from airflow_provider_kmigrate.core.migration import gates, roll
from airflow_provider_kmigrate.core.migration.controllers import (
    maybe_finalized_reason,
)
from airflow_provider_kmigrate.core.migration.gates import (
    MET,
    Gate,
    as_decision,
    combine_gates,
    never,
    never_if,
    not_yet,
    not_yet_if,
    refuse_or_wait,
)
from airflow_provider_kmigrate.core.migration.phase import (
    kraft_owns,
    still_open,
    unflagged_reason,
)
from airflow_provider_kmigrate.core.migration.recovery import HoldTimer
from airflow_provider_kmigrate.core.migration.rollback import (
    SAFE,
    RollbackTerms,
    controllers_down,
    kraft_brokers_reason,
    nothing_lost_by_handover,
    nothing_lost_by_stop,
    refuse_if_irreversible,
)
from airflow_provider_kmigrate.core.node_files import config_matrix
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage, stage_on_disk
from airflow_provider_kmigrate.core.shared.text import join_ids

STILL_FOR = 2.0  # seconds without a change of /migration; a leader writes every 0.5 s, and every process was seen stopped
STUCK_FOR = 3.0  # seconds without a quorum and without a way to go on, after which brokers that do not answer are left behind
MAX_RETURNS = 3  # times in one run, each of which costs a start of the controllers; then it is refused while there is a quorum


def no_unseen_finalization(view: ClusterView) -> Gate:
    """R12: after a copy no stopped controller has final properties: if it led with them it has finalized, and no other node could report it."""
    if view.zk is None:
        return not_yet(could_not_read("ZooKeeper"))
    controllers = (
        [] if still_open(view) or not kraft_owns(view) else [controller for _, controller in sorted(view.controllers.items())]
    )
    final = [c for c in controllers if stage_on_disk(c.files) is FileStage.CONTROLLER_FINAL]
    if final:
        return never(maybe_finalized_reason(view, final[0]))
    unread = [c.id for c in controllers if c.files == NodeFiles()]  # a missing file is no final one
    return not_yet_if(unread, could_not_read(f"the files of controllers {join_ids(unread)}"))


def flags_kept(view: ClusterView) -> Gate:
    """G05: no controller has final properties, while there is a quorum: its flag can be restored now, and not once all are stopped (R12).

    Files that were not read hold no stop: a machine may be dead for good. `no_unseen_finalization` asks for them before the handover.
    """
    if view.zk is None:
        return not_yet(could_not_read("ZooKeeper"))
    final = [c.id for _, c in sorted(view.controllers.items()) if stage_on_disk(c.files) is FileStage.CONTROLLER_FINAL]
    text = f"The files of controllers {join_ids(final)} have no migration flag."
    return never_if(final and kraft_owns(view), unflagged_reason(view, text))


def migration_znode_unchanged(view: ClusterView, first: ClusterView) -> Gate:
    """G26: no controller has written /migration for `STILL_FOR` seconds since `first`."""
    if view.zk is None or first.zk is None:
        return not_yet(could_not_read("ZooKeeper"))
    if view.zk.migration != first.zk.migration:
        text = "/migration still changes, although every controller of the cluster file is stopped."
        return never(Reason("G26", text))
    text = "Watching /migration for a moment: no controller may write it any more."
    return not_yet_if(view.taken_at - first.taken_at < STILL_FOR, Reason("T01", text, cause=Cause.HANDOVER_OBSERVED))


@dataclass(frozen=True, slots=True)
class HandoverWrites:
    """What the handover transaction changes: /controller_epoch, unless it stays (None), and which znodes are deleted.

    `states`: first rewrite the partition states unchanged; brokers may hold KRaft's partition epochs, which are ahead of the
    states' versions (`clients.partition_states`).
    """

    epoch: int | None
    delete: tuple[str, ...]
    states: bool = False


@dataclass(frozen=True, slots=True)
class HandoverProgress:
    """What a handover keeps between two observations.

    `before`: an earlier observation to measure the dual-write's movement from. `all_down`: the first of the latest observations in a
    row that show every controller stopped. `stuck`: how long nothing could be done without a quorum. `failed`: why the last stop
    failed. `returns`: how often controllers were started again; `why`: for what, the last time.
    """

    before: ClusterView
    all_down: ClusterView | None = None
    stuck: HoldTimer = field(default_factory=lambda: HoldTimer(STUCK_FOR))
    failed: tuple[Reason, ...] = ()
    returns: int = 0
    why: tuple[Reason, ...] = ()

    def add_return(self) -> HandoverProgress:
        """Note that controllers are started again."""
        return replace(self, stuck=HoldTimer(STUCK_FOR), failed=(), returns=self.returns + 1)

    def add_view(self, view: ClusterView, presumed: ClusterView) -> HandoverProgress:
        """Add one observation; without ZooKeeper it shows nothing that a later one could be compared with."""
        if view.zk is None:
            return self
        return replace(self, all_down=(self.all_down or view) if controllers_down(presumed).met else None)

    def may_leave_brokers_behind(self, view: ClusterView) -> bool:
        """Whether the next decision may hand over beside brokers that do not answer."""
        return has_lost_quorum(view) and only_some_brokers_answer(view) and self.stuck.expired(view.taken_at)


def decide_handover(
    view: ClusterView, progress: HandoverProgress, terms: RollbackTerms = SAFE
) -> tuple[Decision, HandoverProgress]:
    """Stop the controllers, then hand the cluster over to ZooKeeper: one decision, so that nothing is between the two.

    Without a quorum no ISR shrinks. So a broker that dies then stops the writes to its partitions. If its machine comes back while it is
    still named as leader, a controller that takes it for alive makes it lead with what its disk kept of its log, and the other replicas
    truncate to that: acknowledged records are lost (measured, after a power cut). ZooKeeper's controller does so, and so does a KRaft
    controller that has just started: each broker's session begins again with it, and for 9 s it sends LeaderAndIsr to a process whose
    registration it still refuses (measured: 5,101 records, and a group's offsets in another run). So the handover continues: the
    partition states are written without the brokers that do not answer before ZooKeeper's controller reads them
    (`clients.partition_states`); they come back as followers. What else keeps the handover from going on, without a quorum, lets the
    stopped controllers start again; the handover begins again once all is well.
    """
    presumed = presume_stopped(view, progress.before)
    progress = progress.add_view(view, presumed)
    decision = _decide_handover_step(view, progress, terms, roll.may_stop(view, ()))
    if not has_lost_quorum(view):
        gives_up = progress.returns >= MAX_RETURNS and isinstance(decision, Act) and decision.verb is Verb.STOP
        return Refuse(progress.why) if gives_up else decision, replace(progress, stuck=HoldTimer(STUCK_FOR))
    why = progress.failed or (decision.reasons if isinstance(decision, Wait | Refuse) else ())
    stuck = bool(why) and not _only_time_must_pass(decision)
    progress = replace(progress, stuck=progress.stuck.add_sample(view.taken_at, holds=stuck))
    if not stuck or not (progress.failed or isinstance(decision, Refuse) or progress.stuck.expired(view.taken_at)):
        return decision, progress
    # Forward beside brokers that do not answer.
    if only_some_brokers_answer(view) and not progress.failed:
        if not progress.stuck.expired(view.taken_at):
            return decision, progress
        decision = _decide_handover_step(presumed, progress, terms, MET)
        if not isinstance(decision, Refuse):  # what was not read is waited for: started again, a controller may lose records
            return decision, progress
    # Back: the controllers start again.
    if numbers := controllers_to_start_again(view) if terms.failover else ():
        obstacles = " ".join(dict.fromkeys(reason.text for reason in why))
        text = f"The handover cannot go on, and nothing may stay without a quorum. {obstacles} Starting controllers {join_ids(numbers)} again."
        return Act(Verb.START, text, _format_controllers(numbers)), replace(progress, why=why)
    return decision, progress


def unresponsive_named_brokers(view: ClusterView) -> tuple[int, ...]:
    """Named brokers that do not answer."""
    return tuple(sorted(broker.id for broker in view.brokers.values() if broker.named and broker.mode is None))


def only_some_brokers_answer(view: ClusterView) -> bool:
    """Whether brokers do not answer while another one does. If none does, nothing shows who could lead instead: it may be our network."""
    return bool(unresponsive_named_brokers(view)) and any(broker.mode is not None for broker in view.brokers.values())


def presume_stopped(view: ClusterView, before: ClusterView) -> ClusterView:
    """The view in which controllers on machines that do not answer count as stopped, if all that may run together make no quorum.

    Their files are those of `before`, unless they were read now. Such a controller elects nothing and is elected by none; what it still
    had to write into ZooKeeper is refused there once /migration is gone (KIP-866: each of its writes checks that znode).
    """
    may_run = [controller for controller in view.controllers.values() if not controller.is_down]
    unresponsive = [c for c in may_run if not c.answers and c.process.state is ProcessState.UNKNOWN]
    if not unresponsive or len(may_run) >= majority(view):
        return view
    files = {c.id: before.controllers.get(c.id, c).files if c.files == NodeFiles() else c.files for c in unresponsive}
    stopped = {c.id: replace(c, process=Process(ProcessState.STOPPED), files=files[c.id]) for c in unresponsive}
    return replace(view, controllers={**view.controllers, **stopped})


def _decide_handover_step(view: ClusterView, progress: HandoverProgress, terms: RollbackTerms, brokers: Gate) -> Decision:
    """`brokers`: whether they can spare the controllers while KRaft owns the cluster."""
    # 1. No rollback any more, or ZooKeeper is not readable.
    if (refusal := refuse_if_irreversible(view)) is not None:
        return refusal
    # 2. Controllers that run, or that would start with their machines.
    if next_to_stop := controllers_to_stop(view):
        return _decide_controller_stop(view, next_to_stop, progress.before, terms, brokers)
    # 3. Handed over already. A controller whose machine does not answer has no part in it any more.
    if not kraft_owns(view) and view.migration is None and not gates.has_epoch_ahead(view):
        return as_decision(
            gates.leaders_can_move(view), "ZooKeeper owns the cluster, and no trace of the migration is left in it."
        )
    # 4. The transaction, once every controller is known to be stopped.
    first = progress.all_down or view
    dispensable = _no_broker_needs_controllers(view, brokers)
    epoch_gates = (gates.epochs_known(view),) if dispensable.met else ()  # else they were not read
    gate = combine_gates(
        (dispensable, controllers_down(view), no_unseen_finalization(view), migration_znode_unchanged(view, first), *epoch_gates)
    )
    gate = nothing_lost_by_handover(view, first, terms) if gate.met else gate
    if gate.met:
        text = "Every controller is stopped, nothing writes /migration, no broker is in KRaft mode."
        unresponsive = unresponsive_named_brokers(view) if kraft_owns(view) else ()
        if unresponsive:
            text = f"{text} Brokers that do not answer are taken out of their ISRs first, so that none leads with a shorter log: {join_ids(unresponsive)}."
        return Act(Verb.HANDOVER, text)
    only_observing = {reason.cause for reason in gate.reasons} == {Cause.HANDOVER_OBSERVED}
    return Wait(gate.reasons, healthy=True) if only_observing else refuse_or_wait(gate)


def _decide_controller_stop(
    view: ClusterView, controller_ids: tuple[int, ...], before: ClusterView, terms: RollbackTerms, brokers: Gate
) -> Decision:
    """Stop these controllers, once no broker needs them and nothing would be lost with them (G33)."""
    stopping = [view.controllers[number] for number in controller_ids]
    flags_gate = flags_kept(view) if terms.failover and not has_lost_quorum(view) else MET
    gate = combine_gates(
        (_no_broker_needs_controllers(view, brokers), *map(_controller_process_known, _relevant_controllers(view)), flags_gate)
    )
    gate = nothing_lost_by_stop(view, before, terms) if gate.met else gate
    strangers = [strange for controller in stopping if (strange := config_matrix.foreign_process_reason(controller)) is not None]
    if gate.met and strangers:
        return Refuse(tuple(strangers))
    text = f"No broker needs controllers {join_ids(controller_ids)} any more, and nothing would be lost with them."
    return Act(Verb.STOP, text, _format_controllers(controller_ids)) if gate.met else refuse_or_wait(gate)


def _format_controllers(numbers: Iterable[int]) -> str:
    """Controllers as a journal names nodes."""
    return ", ".join(f"controller {number}" for number in numbers)


def controllers_to_stop(view: ClusterView) -> tuple[int, ...]:
    """The controllers to stop next; empty once all are down and none starts with its machine.

    One by one while a quorum is left without it: those that do not answer first, the active one last, which must be the last to write
    epochs. The last ones, without which there is no quorum, together: then nothing can be elected, and the time without a controller is
    that of one stop.
    """
    leader = view.quorum.leader_id if view.quorum else None
    up = [controller for controller in _relevant_controllers(view) if not controller.is_down]
    answering = [controller for controller in up if controller.answers]
    if not up:
        return tuple(sorted(c.id for c in view.controllers.values() if c.process.at_boot))
    spare = [controller for controller in up if not controller.answers]
    if len(answering) > majority(view):
        spare += [controller for controller in answering if controller.id != leader]
    if spare and len(answering) >= majority(view):
        return (min(spare, key=lambda controller: (controller.answers, controller.id)).id,)
    return tuple(sorted(controller.id for controller in up))


def unresponsive_stop_timeout(view: ClusterView) -> float:
    """Seconds after which the stop of `controllers_to_stop` gives up a machine that does not answer; inf: as any stop.

    Without a quorum as little as before the controllers start again, which they do then: what a machine that lives stops later, they can
    spare.
    """
    remaining = {controller.id for controller in _relevant_controllers(view) if controller.answers} - {*controllers_to_stop(view)}
    return STUCK_FOR if kraft_owns(view) and len(remaining) < majority(view) else inf


def controllers_to_start_again(view: ClusterView) -> tuple[int, ...]:
    """The stopped controllers of this migration with which there is a quorum again; empty if there would be none.

    One without the flag in its file is none: if elected, it would finalize.
    """
    flagged = {c.id for c in view.controllers.values() if c.is_down and stage_on_disk(c.files) is FileStage.CONTROLLER_MIGRATION}
    usable = sorted(number for number in flagged if view.controllers[number].files.has_metadata_log)
    return tuple(usable) if len(_running_controllers(view)) + len(usable) >= majority(view) else ()


def majority(view: ClusterView) -> int:
    """How many controllers make a quorum."""
    return len(view.controllers) // 2 + 1


def has_lost_quorum(view: ClusterView) -> bool:
    """Whether KRaft owns the cluster, and too few controllers run for a quorum, as far as their machines report."""
    return kraft_owns(view) and len(_running_controllers(view)) < majority(view)


def _running_controllers(view: ClusterView) -> list[int]:
    return [c.id for c in view.controllers.values() if c.process.state is ProcessState.RUNNING]


def needs_comparison_for_stop(view: ClusterView, progress: HandoverProgress | None) -> bool:
    """Whether only the comparison is left to allow the next stop: then it is worth reading both sides whole."""
    basis, brokers = _select_decision_basis(view, progress)
    any_running = any(not controller.is_down for controller in basis.controllers.values())
    processes_known = combine_gates(map(_controller_process_known, _relevant_controllers(basis)))
    return (
        any_running
        and refuse_if_irreversible(view) is None
        and processes_known.met
        and _no_broker_needs_controllers(view, brokers).met
    )


def needs_comparison_for_handover(view: ClusterView, progress: HandoverProgress | None) -> bool:
    """Whether epochs and topics may decide the transaction now: beside a broker that does not answer they take 10 s to read (measured).

    Without a quorum those are seconds in which no ISR shrinks.
    """
    basis, brokers = _select_decision_basis(view, progress)
    return controllers_down(basis).met and (not kraft_owns(view) or _no_broker_needs_controllers(view, brokers).met)


def _select_decision_basis(view: ClusterView, progress: HandoverProgress | None) -> tuple[ClusterView, Gate]:
    """The view and the gate of brokers from which the next decision follows: its weakest ones."""
    if progress is not None and progress.may_leave_brokers_behind(view):
        return presume_stopped(view, progress.before), MET
    return view, roll.may_stop(view, ())


def _relevant_controllers(view: ClusterView) -> list[Controller]:
    """The controllers that a stop depends on. While KRaft owns the cluster, all: each may be needed for a quorum again."""
    return [c for c in view.controllers.values() if kraft_owns(view) or _has_known_state(c)]


def _has_known_state(controller: Controller) -> bool:
    return controller.answers or controller.process.state is not ProcessState.UNKNOWN


def _controller_process_known(controller: Controller) -> Gate:
    """The controller's machine reports whether it runs."""
    return MET if controller.is_down else gates.process_known(controller)


def _no_broker_needs_controllers(view: ClusterView, brokers: Gate) -> Gate:
    """`brokers`: as in `_decide_handover_step`."""
    kraft, zookeeper_brokers, owned = view.in_mode(BrokerMode.KRAFT), view.in_mode(BrokerMode.ZOOKEEPER), kraft_owns(view)
    if kraft:
        return never(kraft_brokers_reason(kraft))
    if zookeeper_brokers and owned:
        text = f"Brokers run in ZooKeeper mode while KRaft owns the cluster: {join_ids(zookeeper_brokers)}."
        return never(Reason("P07", text))
    # If ZooKeeper owns the cluster, it does not depend on controllers, and a broker failing in migration mode may be why the
    # operator rolls back.
    return brokers if owned else MET


def _only_time_must_pass(decision: Decision) -> bool:
    return isinstance(decision, Done) or (isinstance(decision, Wait) and decision.healthy)


def build_handover_writes(zk: ZkView, state_epoch: int) -> HandoverWrites:
    """The change that `decide_handover` asks for. Raises ValueError if /controller_epoch is unknown.

    If ZooKeeper owns the cluster already, /controller is a running broker's and stays. Exception: repairing a cluster that was
    rolled back without raising the epoch. Its controller must be elected again, above the epochs in the partition states
    (measured: every partition takes writes again 0.6 s later).
    """
    if zk.controller_epoch is None:
        raise ValueError("/controller_epoch is unknown")
    migration, controller = zk.migration, zk.controller
    gone = ("/migration",) if migration is not None else ()
    owned = isinstance(controller, ZkController) and controller.is_kraft
    if not owned and state_epoch <= zk.controller_epoch:
        return HandoverWrites(None, gone)
    written = migration.kraft_controller_epoch if isinstance(migration, Migration) else -1
    claimed = controller.kraft_epoch if isinstance(controller, ZkController) else -1
    epoch = max(written, claimed, state_epoch, zk.controller_epoch) + 1
    return HandoverWrites(epoch, (*gone, *(("/controller",) if controller else ())), states=owned)
