"""What is left to do to run one controller with the migration flag, and to take the flag from it at the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_provider_kmigrate.core.cluster_state.decision import Act, Decision, Done, Refuse, Verb, Wait
from airflow_provider_kmigrate.core.cluster_state.model import (
    BrokerMode,
    ClusterView,
    Controller,
    ProbeFigures,
    ProcessState,
    Reason,
    could_not_read,
)
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole, NodeSpec
from airflow_provider_kmigrate.core.migration import gates, readiness, waits
from airflow_provider_kmigrate.core.migration.gates import combine_gates, refuse_or_wait
from airflow_provider_kmigrate.core.migration.phase import (
    Intent,
    Phase,
    finalization_has_begun,
    flags_taken_by_us,
    kraft_owns,
    migration_has_ended,
    position_of,
    still_open,
)
from airflow_provider_kmigrate.core.node_files.config_matrix import (
    FileStage,
    decide_file_rewrite,
    foreign_directory_reason,
    restart_loop_reason,
    stage_on_disk,
)
from airflow_provider_kmigrate.core.shared.text import count_of, join_ids

_HANGS = (
    " If 'KRaftMigrationDriver' shutting down is its last line for a minute, the controller never ends: it has no connection to "
    "ZooKeeper. Then kill -9 its process."
)


def unresponsive_controller(controller: Controller) -> Reason:
    """G23: a controller that does not answer; M08 if its unit is started again and again.

    Kafka 3.9.2 closes the migration's ZooKeeper client, then waits for a thread that waits for that client to connect
    (`ControllerMigrationSupport.shutdown`, `KRaftMigrationDriver.close`; a thread dump). Such a stop did not end in the nine
    minutes observed, nor when ZooKeeper was back.
    """
    text = f"Controller {controller.id} does not answer; its process is {controller.process.state}."
    return restart_loop_reason(f"controller {controller.id}", controller.process) or Reason("G23", text)


def advise_after_stop_timeout(node: NodeSpec) -> str:
    """What to do next if a node did not stop in time; why a controller may never stop: `unresponsive_controller`."""
    hangs = _HANGS if node.role is NodeRole.CONTROLLER else ""
    return f"Next: Read the end of its log.{hangs} When it has stopped, clear the task: it continues from there."


_SKEW = 300.0  # seconds by which the clock of the worker that judged may be ahead
VERDICT_HOLDS = 86_400.0  # seconds; an approval overnight may use it, one over a weekend may not
SETTLES_WITHIN = 30.0
"""Seconds that a controller's restart waits at most for the producers: its predecessor has started by then. What lasts longer has another
cause, and a finalization that stands half-way is the greater risk."""
_MOVES_WITHIN = 2.0  # seconds; the active controller writes a record every 0.5 s (metadata.max.idle.interval.ms)


def decide_provision(view: ClusterView, controller_id: int, cluster_id: str) -> Decision:
    """Format with the pinned cluster id, start with the flag, wait for an answer. Never formats once brokers have moved."""
    controller = view.controller(controller_id)
    if controller.answers:
        return _decide_answering(view, controller)
    running = controller.process.state is ProcessState.RUNNING and controller.process.restart_loop is None
    if running and stage_on_disk(controller.files) is FileStage.CONTROLLER_MIGRATION:
        return Done(f"Controller {controller_id} starts with the flag in its file; a later task waits until all answer.")
    if controller.process.state is not ProcessState.STOPPED:
        return Wait((unresponsive_controller(controller),))
    phase = gates.phase_permits(view, Intent.PROVISION, done=True)
    if not phase.met:
        return refuse_or_wait(phase)
    if (theirs := foreign_directory_reason(controller)) is not None:
        return Refuse((theirs,))
    return _decide_start(view, controller) or _decide_format(view, controller, cluster_id)


def _decide_answering(view: ClusterView, controller: Controller) -> Decision:
    if controller.migration_flag:
        return decide_flagged(view, controller) or Done(f"Controller {controller.id} answers with the migration flag.")
    if migration_has_ended(view) or (finalization_has_begun(view) and flags_taken_by_us(view)):
        return Done(f"Controller {controller.id} answers; the finalization has begun.")
    return decide_unflagged(view, controller)


def _decide_start(view: ClusterView, controller: Controller) -> Decision | None:
    """Start a stopped member of this migration's quorum; None if it is none, or that is unknown."""
    phase, stage = position_of(view).phase, stage_on_disk(controller.files)
    if not controller.files.has_metadata_log or phase is Phase.ZOOKEEPER:
        return None
    if (evidence := _find_handover_evidence(view)) is not None:
        text = (
            f"Controller {controller.id} has a metadata log, but {evidence}: a rollback has handed the cluster over to ZooKeeper."
        )
        return Refuse((Reason("G04", text),))
    if stage is FileStage.CONTROLLER_MIGRATION or (stage is FileStage.CONTROLLER_FINAL and finalization_has_begun(view)):
        return Act(Verb.START, f"Controller {controller.id} is down; its directory and its file belong to this migration.")
    if stage is FileStage.CONTROLLER_FINAL:
        if (open_decision := decide_if_maybe_finalized(view, controller)) is not None:
            return open_decision
        text = f"Controller {controller.id} is down with final properties, but nothing is finalized: it gets the flag back."
        return Act(Verb.REFLAG, text)
    return None


def _find_handover_evidence(view: ClusterView) -> str | None:
    """Evidence that an unfinished rollback has handed the cluster over to ZooKeeper; None if there is none.

    A controller started then creates /migration again, but the first roll's notes about its brokers are gone with the old one.
    """
    if view.zk is None:
        return None
    if view.zk.migration is None:
        return "/migration is gone"
    if kraft_owns(view):
        return None
    unnoted = [broker for broker in view.in_mode(BrokerMode.MIGRATION) if broker not in view.zk.registered]
    return f"no first roll has noted the brokers in migration mode ({join_ids(unnoted)})" if unnoted else None


def decide_flagged(view: ClusterView, controller: Controller) -> Decision | None:
    """Decide about the file of a controller that runs with the flag; adds no flag if the migration may be over."""
    if migration_has_ended(view):
        return None
    file_decision = decide_file_rewrite(f"controller {controller.id}", controller.files, FileStage.CONTROLLER_MIGRATION)
    return (decide_if_maybe_finalized(view, controller) if isinstance(file_decision, Act) else None) or file_decision


def decide_unflagged(view: ClusterView, controller: Controller) -> Decision:
    """Restart a controller that answers without the flag; not if the migration may be over, or the quorum cannot spare it.

    Refused if no controller ever had the flag: this quorum never migrates (ZkMigrationState NONE), and exits with it.
    """
    if view.zk is not None and view.zk.migration is None:
        return refuse_or_wait(gates.all_controllers_flagged(view))
    gate = combine_gates((gates.quorum_has_leader(view), gates.controllers_answer(view, excused_controller=controller.id)))
    if not gate.met:
        return refuse_or_wait(gate)
    leads = view.quorum is not None and view.quorum.leader_id == controller.id
    text = (
        "is the active controller, before the end of the copy"
        if leads
        else "is a standby: if elected after the copy, it would finalize"
    )
    return decide_if_maybe_finalized(view, controller) or Act(
        Verb.RESTART, f"Controller {controller.id} runs without the migration flag and {text}."
    )


def decide_if_maybe_finalized(view: ClusterView, controller: Controller) -> Refuse | Wait | None:
    """R12: nothing proves that the migration is still open, and returning a flag after a finalization hides it; None if proven.

    Refused if no controller answers, since waiting alone does not change that.
    """
    if still_open(view):
        return None
    reason = maybe_finalized_reason(view, controller)
    return Wait((reason,)) if any(other.answers for other in view.controllers.values()) else Refuse((reason,))


def maybe_finalized_reason(view: ClusterView, controller: Controller) -> Reason:
    """R12 in words: what is unknown, and how the operator finds out."""
    text = (
        f"Controller {controller.id} runs without the migration flag, and the migration may be finalized: no leader with the "
        f"flag has written /migration since its election. {_explain_how_to_check(view)}"
    )
    return Reason("R12", text)


def _explain_how_to_check(view: ClusterView) -> str:
    """How to find out whether it is finalized: ask a leader, while some are down; else only the controllers' logs show it."""
    if down := view.unresponsive_controllers():
        flagged = [node for node in down if stage_on_disk(view.controllers[node].files) is FileStage.CONTROLLER_MIGRATION]
        first = f", those with the flag first ({join_ids(flagged)})" if flagged else ""
        return f"Start the controllers that are down ({join_ids(down)}) with their present files{first}; then clear this task."
    return (
        "All are up, so search every controller's log for `Completing the ZK migration`. If a log has it, the cluster is finalized: restart "
        "the leader with its present file until one without the flag leads, and continue the finalization. If no log has it, find out why "
        "the leader does not write to ZooKeeper (runbook, R12), then clear this task."
    )


def _decide_format(view: ClusterView, controller: Controller, cluster_id: str) -> Decision:
    if not gates.phase_permits(view, Intent.PROVISION).met:
        text = f"Controller {controller.id} is down and has no directory of this migration, but brokers have already moved."
        return Refuse((Reason("R11", text),))
    unused = gates.empty_controllers(view, (controller.id,))
    gate = combine_gates((gates.fresh_migration(view), unused, _formatted_for_cluster(controller, cluster_id)))
    text = f"Controller {controller.id} has an empty directory, and there is no trace of an earlier migration."
    return Act(Verb.PROVISION, text) if gate.met else refuse_or_wait(gate)


def _formatted_for_cluster(controller: Controller, cluster_id: str) -> gates.Gate:
    formatted_ids = {folder: keys.get("cluster.id", cluster_id) for folder, keys in (controller.files.meta or {}).items()}
    wrong = [
        f"{folder} is formatted for cluster {formatted_id}"
        for folder, formatted_id in formatted_ids.items()
        if formatted_id != cluster_id
    ]
    return gates.never_if(wrong, Reason("I01", f"{'; '.join(wrong)}, not for {cluster_id}."))


def expired_audit_reason(judged_at: float | None, now: float) -> Reason | None:
    """H06: the audit that an approval showed is too old to act on; times in seconds since the epoch.

    `judged_at` None: no audit was made, or the operator skipped its task. It comes from an XCom, which users of Airflow may write: no time of the
    past is as good as an old one, since one of the future would never be too old.
    """
    if judged_at is None:
        return None
    if isinstance(judged_at, bool) or not isinstance(judged_at, int | float) or not 0 < judged_at <= now + _SKEW:
        return Reason("H06", f"The audit shown with the approval has no time of the past: {str(judged_at)[:40]!r}.")
    if now - judged_at <= VERDICT_HOLDS:
        return None
    text = f"The audit shown with the approval is {(now - judged_at) / 3600:.0f} h old; it is valid for {VERDICT_HOLDS / 3600:.0f} h."
    return Reason("H06", text)


def may_begin_finalization(view: ClusterView, judged_at: float | None, now: float, *changed: Reason) -> gates.Gate:
    """H06: the approved audit is recent enough (`expired_audit_reason`), or kmigrate itself has already taken flags from controllers.

    Flags taken by anything else do not count as a begun finalization. `changed`: why the approval itself no longer holds.
    """
    old = (*filter(None, [expired_audit_reason(judged_at, now)]), *changed)
    if not old or migration_has_ended(view):
        return gates.MET
    if view.zk is None:
        return gates.not_yet(could_not_read("ZooKeeper"), *old)
    bare = {c.id for c in view.controllers.values() if c.migration_flag is False}
    ours = {c.id for c in view.controllers.values() if c.id in view.zk.unflagged and not c.migration_flag}
    return gates.MET if ours and bare <= ours else gates.never(*old)


@dataclass(frozen=True, slots=True)
class ApprovedState:
    """What the approval of a finalization was given on. `stored`: what both sides stored, in words; empty: it did not say.

    `rests_on`: the evidence of the readiness verdict (`readiness.evidence_of`); empty: none was shown.
    """

    stored: str = ""
    rests_on: Mapping[str, str] = field(default_factory=dict)


def decide_finalize(
    view: ClusterView,
    before: ClusterView,
    controller_id: int,
    approved: ApprovedState = ApprovedState(),
    began: float = float("-inf"),
) -> Decision:
    """Restart one controller without the flag; the first such controller that is elected ends the migration for good.

    `before`: earlier observation to measure movement from, if this one alone does not prove it. `began`: time of this step's first
    observation (`producers_settled`).
    """
    controller = view.controller(controller_id)
    if controller.answers and controller.migration_flag is False:
        return (
            _refuse_out_of_order(view)
            or decide_file_rewrite(f"controller {controller.id}", controller.files, FileStage.CONTROLLER_FINAL)
            or _decide_without_flag(view, controller_id)
        )
    if controller.process.state is ProcessState.STOPPED and stage_on_disk(controller.files) is FileStage.CONTROLLER_FINAL:
        text = f"Controller {controller_id} is stopped and has its final properties: continuing an interrupted restart."
        return Act(Verb.START, text)
    return _refuse_out_of_order(view) or _decide_flag_removal(view, before, controller, approved, began)


def _decide_without_flag(view: ClusterView, controller_id: int) -> Decision:
    quorum = gates.quorum_has_leader(view)
    if not quorum.met or view.quorum is None:
        return Wait(quorum.reasons)
    behind = view.quorum.high_watermark - view.quorum.voters.get(controller_id, -1)
    if behind > 1000:
        return Wait((Reason("G20", f"Controller {controller_id} is {count_of(behind, 'record')} behind the high watermark."),))
    return Done(f"Controller {controller_id} runs without ZooKeeper and follows the leader, controller {view.quorum.leader_id}.")


def _refuse_out_of_order(view: ClusterView) -> Decision | None:
    """What the phase forbids. Once finalized, the other controllers follow: a flag left behind confuses operators."""
    phase = gates.phase_permits(view, Intent.FINALIZE, done=True)
    return None if phase.met else refuse_or_wait(phase)


def _decide_flag_removal(
    view: ClusterView, before: ClusterView, controller: Controller, approved: ApprovedState, began: float
) -> Decision:
    if not controller.answers:
        return Wait((unresponsive_controller(controller),))
    has_ended = migration_has_ended(view)
    nodes_ready = _all_nodes_ready(view, controller)
    if nodes_ready.met and not (settled := producers_settled(view, began)).met:
        return refuse_or_wait(settled)
    if nodes_ready.met and not has_ended and not _is_worth_comparing(view, before):
        return Wait((waits.second_reading_reason(),), healthy=True)
    open_gates = (
        () if has_ended else (waits.approved_state_holds(view, before, compared=nodes_ready.met), _migration_proven_open(view))
    )
    gate = combine_gates((nodes_ready, *open_gates))
    if not gate.met:
        return Wait(gate.reasons)
    if not has_ended and not (evidence_holds := _evidence_still_holds(view, approved)).met:
        return refuse_or_wait(evidence_holds)
    observed = f"Controller {controller.id}: every broker runs in KRaft mode, all controllers answer"
    finalized = "; the leader has no flag, so the migration is finalized. The approved state is not compared any more."
    holds = f", and the approved state still holds.{waits.describe_change_since(view, approved.stored)}"
    return Act(Verb.RESTART, observed + (finalized if has_ended else holds))


def producers_settled(view: ClusterView, began: float) -> gates.Gate:
    """G42 for at most `SETTLES_WITHIN`: producers no longer wait for what the start of the controller before took from the brokers.

    A controller's failover stalls no producer (measured). Its start does on a machine without spare processor time, and the starts of all
    controllers, a few seconds apart, add up. A probe that has ended shows nothing later either. `began`: time of the step's first observation.
    """
    has_ended = isinstance(view.probe, ProbeFigures) and view.probe.age > gates.PROBE_GONE
    if has_ended or view.taken_at - began > SETTLES_WITHIN:
        return gates.MET
    return gates.latency_recovered(view)


def _evidence_still_holds(view: ClusterView, approved: ApprovedState) -> gates.Gate:
    """H06: the readiness verdict would rest on what was approved. A finalization that has begun is completed, as in `may_begin_finalization`."""
    unchanged = readiness.evidence_unchanged(view, approved.rests_on) if approved.rests_on else gates.MET
    return may_begin_finalization(view, None, 0.0, *unchanged.reasons) if unchanged.state is gates.GateState.NEVER else unchanged


def compares_before_finalizing(view: ClusterView, before: ClusterView, controller_id: int, began: float = float("-inf")) -> bool:
    """Whether only the approved state is left to compare, worth reading both sides whole; `before`, `began`: as in `decide_finalize`."""
    controller = view.controller(controller_id)
    flagged = controller.answers and controller.migration_flag is not False
    is_ready = (
        flagged
        and not migration_has_ended(view)
        and _refuse_out_of_order(view) is None
        and _all_nodes_ready(view, controller).met
    )
    return is_ready and producers_settled(view, began).met and _is_worth_comparing(view, before)


def _is_worth_comparing(view: ClusterView, before: ClusterView) -> bool:
    """Whether the dual-write has had its time to move; before that another observation follows anyway."""
    return gates.dual_write_alive(view, before).met or view.taken_at - before.taken_at > _MOVES_WITHIN


def _controllers_being_finalized(view: ClusterView) -> list[int]:
    """Controllers with the final file that kmigrate wrote; one whose restart was interrupted, and which leads since, is restarted last."""
    noted = view.zk.unflagged if view.zk is not None else frozenset()
    return [c for c in view.controllers if c in noted and stage_on_disk(view.controllers[c].files) is FileStage.CONTROLLER_FINAL]


def _written_by_finalization(view: ClusterView, controller: Controller) -> set[int]:
    """Controllers whose files need not be of their present mode: once the migration has ended, each one's own task writes its file."""
    return set(view.controllers) if migration_has_ended(view) else {controller.id, *_controllers_being_finalized(view)}


def _all_nodes_ready(view: ClusterView, controller: Controller) -> gates.Gate:
    return combine_gates(
        (
            gates.process_known(controller),
            gates.software_unchanged(controller),
            gates.one_release_runs(view),
            gates.all_brokers_in_kraft(view),
            gates.controllers_answer(view),
            gates.files_in_stage(view, restarting_nodes=_written_by_finalization(view, controller)),
            gates.controllers_start_at_boot(view),
            gates.quorum_healthy(view),
            gates.no_leaderless_partition(view),
        )
    )


def _migration_proven_open(view: ClusterView) -> gates.Gate:
    """R12: a standby without the flag may have led briefly and finalized; a leader with the flag then never writes again.

    It is as likely that the migration is open and that leader has not reached ZooKeeper yet. Unknown is not over, so every
    approved check stays.
    """
    bare = sorted(c.id for c in view.controllers.values() if c.migration_flag is False)
    text = (
        f"Controllers {join_ids(bare)} answer without the flag, and no leader with it has written /migration since its election."
    )
    return gates.not_yet_if(bare and not still_open(view), Reason("R12", f"{text} {_explain_how_to_check(view)}"))


def why_restarted_last(view: ClusterView, controller_id: int) -> str:
    """Why this controller is restarted last: it leads while others still have the flag, and one election is enough; or empty."""
    others = sorted(c.id for c in view.controllers.values() if c.id != controller_id and c.migration_flag)
    leads = view.quorum is not None and view.quorum.leader_id == controller_id
    if not others or not leads or not view.controller(controller_id).migration_flag:
        return ""
    return f"Controller {controller_id} is the active one: it is restarted last, after {join_ids(others)}."
