"""The rollback to ZooKeeper from any point before finalization: what each step may do, and the plan in words, from one observation.

Each step finds out by itself whether it has anything to do. The order:

1. controllers that lost the migration flag get it back (a finalization that began, but did not happen);
2. the active controller is restarted once: a lost dual-write is never repeated, but a new leader writes ZooKeeper again;
3. brokers in KRaft mode return to migration mode: ZooKeeper brokers again, under the KRaft controller;
4. all controllers stop, before any broker returns to ZooKeeper mode: a running controller isolates it, and what it acknowledged
   is lost (measured). They start again if the next step cannot follow at once;
5. one ZooKeeper transaction, the handover, in the same process: /controller_epoch above every epoch that KRaft has written into
   partition states (KAFKA-20488), /migration and /controller deleted;
6. the brokers elect a ZooKeeper controller, and each of them names it: a broker that does not takes 300 s to stop (measured);
7. the controllers' directories are set aside: an old quorum that starts again takes the cluster over and deletes topics
   (measured);
8. brokers return to their original files.

G33 and `RollbackTerms` guard what would be lost with the controllers. The comparison of `controller_failover` may be days old by
then, and a leading quorum accepts changes that a stalled dual-write never delivers. Brokers in migration mode do not learn those
(measured), so both sides look equal: lag and movement must be checked too. The handover compares once more what is still readable.

Steps 4 and 5 are in `handover`.

Sources: KIP-866 "Migration overview", Kafka's operations guide (3.9), and experiments on real brokers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from airflow_provider_kmigrate.core.cluster_state.decision import Act, Decision, Done, Refuse, Verb, Wait, waits_for
from airflow_provider_kmigrate.core.cluster_state.model import (
    Broker,
    BrokerMode,
    Cause,
    ClusterView,
    Controller,
    Inventory,
    Partition,
    ProcessState,
    Reason,
    could_not_read,
)
from airflow_provider_kmigrate.core.migration import coordinator, equivalence, gates, readiness, recovery, roll, waits
from airflow_provider_kmigrate.core.migration.controllers import (
    decide_flagged,
    decide_if_maybe_finalized,
    decide_unflagged,
    unresponsive_controller,
)
from airflow_provider_kmigrate.core.migration.equivalence import Difference, DifferenceKind
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
    Phase,
    kraft_owns,
    migration_has_ended,
    position_of,
    zookeeper_controller,
)
from airflow_provider_kmigrate.core.migration.recovery import Recovered, Recoveries, is_wait_for_own_isrs
from airflow_provider_kmigrate.core.node_files import config_matrix
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage, stage_on_disk
from airflow_provider_kmigrate.core.shared.text import count_of, format_date, join_ids, summarize

WITHOUT_CONTROLLER = 10.0  # seconds from the last stops to a ZooKeeper controller; a stop without a quorum took 5 to 6 (measured)


def refuse_if_irreversible(view: ClusterView) -> Decision | None:
    """The refusal once no rollback is possible, a wait if that is unknown, None while it is possible."""
    possible = gates.may_roll_back(view)
    if possible.met:
        return None
    return Refuse((*possible.reasons, *position_of(view).reasons)) if migration_has_ended(view) else refuse_or_wait(possible)


def brokers_name_controller(view: ClusterView) -> Gate:
    """G28: every broker that answers names the ZooKeeper controller of /controller."""
    controller = zookeeper_controller(view)
    if controller is None or view.zk is None or controller not in view.zk.broker_ids:
        return not_yet(Reason("G28", "No ZooKeeper controller is elected yet."))
    controller_by_broker = {b.id: b.controller_id for b in view.running_brokers() if b.mode is not BrokerMode.KRAFT}
    others = [
        f"{broker} names {named_controller}"
        for broker, named_controller in sorted(controller_by_broker.items())
        if named_controller != controller
    ]
    return not_yet_if(others, Reason("G28", f"Not every broker names ZooKeeper controller {controller}: {', '.join(others)}."))


def kraft_brokers_reason(kraft: list[int]) -> Reason:
    """G27: brokers that are still in KRaft mode."""
    return Reason("G27", f"Brokers still run in KRaft mode: {join_ids(kraft)}.")


def controllers_unresponsive(view: ClusterView) -> Gate:
    """No controller answers. One that was started again would have written /migration, which is checked too."""
    answering = sorted(c.id for c in view.controllers.values() if c.answers)
    return never_if(answering, Reason("G26", f"Controllers answer: {join_ids(answering)}."))


def controllers_down(view: ClusterView) -> Gate:
    """G26: every controller is stopped."""
    return combine_gates(controller_down(view.controllers[controller]) for controller in sorted(view.controllers))


def controller_down(controller: Controller) -> Gate:
    """G26: this controller is stopped, and its endpoint does not answer."""
    reason = Reason("G26", f"Controller {controller.id} is not stopped: its process is {controller.process.state}.")
    return never(reason) if controller.answers else not_yet_if(not controller.is_down, reason)


def migration_znode_exists(view: ClusterView) -> bool:
    """Whether /migration exists."""
    return view.zk is not None and view.zk.migration is not None


def has_empty_directories(controller: Controller) -> bool:
    """Whether a controller's own directories hold neither a format nor a metadata log; another node's do not count."""
    if controller.files.meta is None:
        return not controller.files.has_metadata_log
    return not config_matrix.directories_in_use(controller)


@dataclass(frozen=True, slots=True)
class RollbackTerms:
    """What a rollback accepts.

    `failover` false: no new leader writes ZooKeeper again, so the dual-write need not be alive. `lossy`: the operator who asked
    for that accepts to lose what ZooKeeper misses. `splits`: accepts that brokers restart although they disagree about coordinators,
    which moves groups (K01). `left`: brokers that the cluster file does not name and that stay as they are (G36, G39).
    """

    failover: bool = True
    lossy: bool = False
    splits: bool = False
    left: frozenset[int] = frozenset()

    @property
    def accepts_loss(self) -> bool:
        """Whether the run accepts to lose what ZooKeeper misses; counts only without a failover."""
        return self.lossy and not self.failover


SAFE = RollbackTerms()


def describe_accepted_costs(view: ClusterView, terms: RollbackTerms) -> tuple[str, ...]:
    """What the terms accept beyond a loss, in words, with what it costs; needs the partitions and the coordinators."""
    costs = []
    for number in sorted(terms.left):
        rows = [row for row in view.partitions or () if number in row.replicas]
        leads = summarize(row.name for row in rows if row.leader == number) or "no partition"
        alone = [row.name for row in rows if row.replicas == (number,)]
        only = f" It has the only replica of {summarize(alone)}." if alone else ""
        costs.append(
            f"Accepted: broker {number} stays as it is, and nothing waits for it. It leads {leads}, and has replicas of {count_of(len(rows), 'partition')}.{only} "
            "If it runs in KRaft mode, the handover isolates it: what it acknowledges afterwards is lost."
        )
    if terms.splits:
        disagreements = coordinator.brokers_agree(view).reasons
        text = (
            " ".join(reason.text for reason in disagreements) or "Every broker uses the same counts now, so it changes nothing."
        )
        costs.append(f"Accepted: brokers restart although this moves groups to other coordinators, without their offsets. {text}")
    return tuple(costs)


def terms_error(accept_loss: str, cluster_id: str, *, failover: bool, accept_split_groups: str = "") -> Reason | None:
    """G35: why the requested acceptance of a loss or of split groups is not valid; None if it is, or none was requested."""
    if accept_split_groups not in ("", cluster_id):
        text = f"`accept_split_groups` is {accept_split_groups!r}, not the cluster id {cluster_id!r}."
        return Reason("G35", text)
    if not accept_loss or (accept_loss == cluster_id and not failover):
        return None
    wrong = [] if accept_loss == cluster_id else [f"is {accept_loss!r}, not the cluster id {cluster_id!r}"]
    wrong += ["counts only together with `skip_failover`, which was not asked for"] if failover else []
    required_conf = f'{{"skip_failover": true, "accept_loss": "{cluster_id}"}}'
    return Reason("G35", f"`accept_loss` {', and '.join(wrong)}. The conf would be {required_conf}.")


def decide_if_nothing_is_lost(view: ClusterView, terms: RollbackTerms) -> Decision:
    """`waits.decide_equivalence`; without a failover, kinds that no controller can report do not count, and a loss may be accepted."""
    if migration_has_ended(view) or (terms.failover and (view.zk is None or kraft_owns(view))):
        return waits.decide_equivalence(view)
    if not readiness.kraft_may_hold_more(view):
        return Done(explain_no_loss(view))
    differences = _difference_reasons(view)
    if terms.accepts_loss:
        lost = (
            " ".join(reason.text for reason in (*differences, *_unread_reasons(view, strict=True)))
            or "nothing that can be observed."
        )
        return Done(f"The run's conf accepts the permanent loss of: {lost}")
    reasons = (*_unread_reasons(view, strict=terms.failover or _can_report_kraft(view)), *differences)
    return Wait(reasons) if reasons else Done(f"{equivalence.describe_equality(view)}{_describe_unknown_topics(view)}")


def nothing_lost_by_stop(view: ClusterView, before: ClusterView, terms: RollbackTerms) -> Gate:
    """G33: ZooKeeper holds what KRaft does, now; met if ZooKeeper owns the cluster or no copy was ever finished.

    Once a majority is stopped, no change is accepted and the dual-write has no leader: then only what is still readable must be
    equal.
    """
    if not readiness.kraft_may_hold_more(view) or terms.accepts_loss:
        return MET
    strict = not _is_quorum_gone(view)
    moving = (gates.dual_write_alive(view, before), gates.lag_below(view, gates.MOST_LAG)) if strict and terms.failover else ()
    differing = (
        *_unread_reasons(view, strict=strict and (terms.failover or _can_report_kraft(view))),
        *_difference_reasons(view),
    )
    return _with_g33(combine_gates((*moving, not_yet_if(differing, *differing))))


def nothing_lost_by_handover(view: ClusterView, first: ClusterView, terms: RollbackTerms) -> Gate:
    """G33: brokers, which KRaft informed last, hold the same topics as ZooKeeper; never, if two observations differ alike."""
    if not readiness.kraft_may_hold_more(view) or terms.accepts_loss:
        return MET
    pair = [_without_missing_topics(equivalence.topic_differences(observation)) for observation in (first, view)]
    if lost := equivalence.summarize_differences(equivalence.persisting_differences(*pair)):
        return _with_g33(never(*lost))
    reasons_now = (*_unread_reasons(view, strict=False), *equivalence.summarize_differences(pair[1]))
    return _with_g33(not_yet_if(reasons_now, *reasons_now))


def _difference_reasons(view: ClusterView) -> tuple[Reason, ...]:
    """`equivalence.difference_reasons`; without a quorum, minus the topics that the queried broker does not know."""
    differences = equivalence.find_differences(view)
    return equivalence.summarize_differences(
        _without_missing_topics(differences) if _no_node_reports_kraft(view) else differences
    )


def _without_missing_topics(differences: Iterable[Difference]) -> tuple[Difference, ...]:
    """What KRaft has more, or otherwise. A broker started without a leading controller misses topics; that is no loss."""
    return tuple(difference for difference in differences if difference.kind is not DifferenceKind.MISSING_TOPIC)


def _no_node_reports_kraft(view: ClusterView) -> bool:
    return _is_quorum_gone(view) or not _can_report_kraft(view)


def _describe_unknown_topics(view: ClusterView) -> str:
    missing = [
        difference.entity
        for difference in equivalence.topic_differences(view)
        if difference.kind is DifferenceKind.MISSING_TOPIC and difference.is_unexplained
    ]
    return f" The broker that was asked does not know {len(missing)} of them: {summarize(missing)}." if missing else ""


def explain_no_loss(view: ClusterView) -> str:
    """Why nothing can be lost, if KRaft does not hold more."""
    if kraft_owns(view):
        return "KRaft has taken nothing over: no copy of ZooKeeper was ever finished."
    return "ZooKeeper owns the cluster, and KRaft has taken nothing over."


def _is_quorum_gone(view: ClusterView) -> bool:
    """Whether so many controllers are known to be stopped that no majority is left; an unresponsive one is not known to be."""
    stopped = sum(controller.is_down for controller in view.controllers.values())
    return 2 * (len(view.controllers) - stopped) <= len(view.controllers)


def _can_report_kraft(view: ClusterView) -> bool:
    """Whether any node can report KRaft's side of all kinds."""
    return bool(view.in_mode(BrokerMode.KRAFT)) or any(controller.answers for controller in view.controllers.values())


def _unread_reasons(view: ClusterView, *, strict: bool) -> tuple[Reason, ...]:
    """What was not read: all kinds, or only topics, which brokers always report unless started without a leading controller."""
    unread = equivalence.unread_kind_reasons(view)
    topics = unread[:1] if view.topics is None else ()
    return (*(unread if strict else topics), *_no_known_topic_reasons(view))


def _no_known_topic_reasons(view: ClusterView) -> tuple[Reason, ...]:
    zookeeper, kraft = view.topics or ({}, {})
    if kraft or not zookeeper or not _no_node_reports_kraft(view):
        return ()
    text = f"The broker that was asked knows no topic, ZooKeeper holds {len(zookeeper)}: it received no metadata since its start."
    return (Reason("G00", text),)


def _with_g33(gate: Gate) -> Gate:
    reason = Reason("G33", "ZooKeeper is not known to hold all that KRaft holds.")
    return gate if gate.met else Gate(gate.state, (reason, *gate.reasons))


def recover(view: ClusterView, broker: int, decision: Decision, recoveries: Recoveries) -> Recovered:
    """Recover as in the migration; also if brokers skip what the ZooKeeper controller says (`clients.partition_states`)."""
    judged = recovery.recover(view, broker, decision, recoveries)
    out = is_wait_for_own_isrs(judged.decision) and not kraft_owns(view) and not migration_znode_exists(view)
    text = f"Broker {broker} is up, but its leaders keep it out of ISRs: raising partition states, then electing a controller that sends them."
    return judged.act_if_lasting(view, out, Act(Verb.RAISE, text))


def decide_restore_flag(view: ClusterView, controller_id: int) -> Decision:
    """Bring back a controller of a running migration with its flag, whether it lost the flag or is down."""
    controller, owned = view.controller(controller_id), kraft_owns(view)
    if (refusal := refuse_if_irreversible(view)) is not None:
        return refusal
    if not owned or (controller.answers and controller.migration_flag):
        return (decide_flagged(view, controller) if owned else None) or Done(f"Controller {controller_id} needs no flag.")
    if controller.process.state is ProcessState.STOPPED:
        return _decide_controller_start(view, controller)
    if not controller.answers:
        return Wait((unresponsive_controller(controller),))
    return decide_unflagged(view, controller)


def _decide_controller_start(view: ClusterView, controller: Controller) -> Decision:
    """Start it with its file if that has the flag; otherwise add the flag only if the migration is not over."""
    if controller.files.has_metadata_log is None:
        return Wait((could_not_read(f"the directory of controller {controller.id}"),))
    if not controller.files.has_metadata_log:
        return Done(f"Controller {controller.id} is down and its directory is empty; it is no longer needed.")
    start = Act(Verb.START, f"Controller {controller.id} is down and has this migration's log.")
    flagged = stage_on_disk(controller.files) is FileStage.CONTROLLER_MIGRATION
    return start if flagged else decide_if_maybe_finalized(view, controller) or start


def decide_controller_failover(view: ClusterView, first: ClusterView) -> Decision:
    """Fail over the active controller once since `first`, which had a leader: then ZooKeeper holds all that KRaft does."""
    if (refusal := refuse_if_irreversible(view)) is not None:
        return refusal
    if (down := find_down_controller(view)) is not None:
        return down[1]
    if not kraft_owns(view):
        return Done("ZooKeeper owns the cluster; nothing must be written back.")
    return _decide_one_failover(view, first)


def _decide_one_failover(view: ClusterView, first: ClusterView) -> Decision:
    gate = combine_gates((gates.all_controllers_flagged(view), gates.no_client_metrics(view), gates.quorum_healthy(view)))
    if not gate.met or view.quorum is None:
        return refuse_or_wait(gate)
    if view.migration is None:
        return Wait((gates.stalled_dual_write_reason("/migration does not show a finished copy yet."),))
    leads = f"Controller {view.quorum.leader_id} leads"
    if first.quorum is None or view.quorum.leader_epoch <= first.quorum.leader_epoch:
        return Act(Verb.CONTROLLER_FAILOVER, f"{leads}: its successor writes all metadata to ZooKeeper again (KIP-866).")
    return as_decision(gates.dual_write_alive(view, first), f"{leads} since a failover, and the dual-write makes progress.")


def find_down_controller(view: ClusterView) -> tuple[int, Decision] | None:
    """The first controller of this migration that is down, and what to do about it.

    A failover killed between stop and start leaves one. The tasks that start controllers come earlier and do not run again.
    """
    down = [number for number, controller in sorted(view.controllers.items()) if controller.process.state is ProcessState.STOPPED]
    decisions = ((number, decide_restore_flag(view, number)) for number in down)
    return next(((number, decision) for number, decision in decisions if not isinstance(decision, Done)), None)


def decide_roll_back(
    view: ClusterView, first: ClusterView, broker_id: int, target: BrokerMode, terms: RollbackTerms = SAFE
) -> Decision:
    """Roll one broker back to migration mode, while KRaft owns the cluster, or to ZooKeeper mode, once ZooKeeper does."""
    if (refusal := refuse_if_irreversible(view) or _check_step_order(view, target)) is not None:
        return refusal
    without_quorum = find_brokers_without_quorum(view) if target is BrokerMode.ZOOKEEPER else ()
    if broker_id in without_quorum:
        return decide_roll_back_left_broker(view, broker_id)
    passing = _may_roll_back_to_migration(view, first) if target is BrokerMode.MIGRATION else _may_roll_back_to_zookeeper(view)
    gate = combine_gates((passing, roll.may_stop(view, (broker_id,))))
    decision = _decide_broker_rollback(view, view.broker(broker_id), target, gate, splits=terms.splits)
    if not without_quorum or not isinstance(decision, Wait):
        return decision
    text = f"Broker {without_quorum[0]} cannot start: its file needs the controllers, which were handed over. It gets its original file first."
    return Act(Verb.ROLL_BACK_OTHER, text, f"broker {without_quorum[0]}")


def find_brokers_without_quorum(view: ClusterView) -> tuple[int, ...]:
    """Brokers that do not answer and have KRaft's file, after the handover to ZooKeeper: none of them ever comes up.

    Such as one whose machine came back with an earlier disk. In migration mode a broker needs no quorum any more: the ZooKeeper
    controller serves it within a second of its election, also if it was started before (measured). Files that were not read do
    not count.
    """
    if kraft_owns(view) or migration_znode_exists(view):
        return ()
    unresponsive = (broker for broker in view.brokers.values() if broker.named and broker.mode is None)
    return tuple(broker.id for broker in unresponsive if stage_on_disk(broker.files) is FileStage.KRAFT)


def decide_roll_back_left_broker(view: ClusterView, broker_id: int) -> Decision:
    """Give a broker of `find_brokers_without_quorum` its original file, whatever the state of other brokers.

    Its process hangs in its start: a stop costs nothing but its place in ISRs that still name it, and enough others must be left there.
    """
    without_quorum = find_brokers_without_quorum(view)
    gate = combine_gates((_may_roll_back_to_zookeeper(view), roll.isrs_keep_min_insync(view, broker_id)))
    refusal = refuse_if_irreversible(view) or _check_step_order(view, BrokerMode.ZOOKEEPER)
    return refusal or _decide_broker_rollback(
        view,
        view.broker(broker_id),
        BrokerMode.ZOOKEEPER,
        gate,
        hangs=broker_id in without_quorum,
        excused_brokers=without_quorum,
    )


def decide_roll_back_canary(view: ClusterView, first: ClusterView, broker_id: int, target: BrokerMode) -> Decision:
    """Roll the first broker of a pass back to its previous mode, while the migration stays where it is.

    Into ZooKeeper mode under running controllers only while other brokers have never registered with them: the last registration
    triggers the takeover, which isolates a ZooKeeper broker (measured).
    """
    broker, to_migration = view.broker(broker_id), target is BrokerMode.MIGRATION
    passing = _may_roll_back_to_migration(view, first) if to_migration else brokers_name_controller(view)
    gate = combine_gates((passing, roll.may_stop_unhealthy(view, broker_id)))
    hangs = stage_on_disk(broker.files) not in {roll.STAGE[target], None}  # it has the file of the mode in which it is worse
    refusal = refuse_if_irreversible(view) or (
        _check_step_order(view, target) if to_migration else _refuse_after_takeover(view, broker_id)
    )
    return refusal or _decide_broker_rollback(view, broker, target, gate, hangs=hangs, excused_brokers=(broker_id,))


def _refuse_after_takeover(view: ClusterView, broker_id: int) -> Decision | None:
    registered = {*view.zk.rolled_back, *view.zk.registered} if view.zk else set()
    never_registered = set(view.in_mode(BrokerMode.ZOOKEEPER)) - registered - {broker_id}
    if position_of(view).phase in {Phase.FIRST_ROLL, Phase.PRE_MIGRATION} and not kraft_owns(view) and never_registered:
        return None
    text = f"Broker {broker_id} is not the first of the first roll: no other broker is left that never registered with the controllers."
    return Refuse((Reason("G32", text), *position_of(view).reasons))


def _decide_broker_rollback(
    view: ClusterView,
    broker: Broker,
    target: BrokerMode,
    passing: Gate,
    *,
    hangs: bool = False,
    excused_brokers: Collection[int] = (),
    splits: bool = False,
) -> Decision:
    """`hangs`: a broker that does not answer although its process runs is not starting, and is not waited for.

    `excused_brokers`: as in `coordinator.brokers_agree`. `splits`: as in `RollbackTerms`.
    """
    if broker.mode is None and broker.process.state is not ProcessState.STOPPED and not hangs:
        return roll.wait_for_answer(broker)
    if broker.mode is target:
        return roll.decide_settled(view, broker, target)
    if broker.process.state is ProcessState.STOPPED:
        return _decide_broker_start(broker, roll.STAGE[target])
    # Here a reassignment can always be cancelled, since a controller answers by then: it never blocks the rollback for good.
    gate = combine_gates(
        (passing, gates.process_known(broker), gates.software_unchanged(broker, with_java=False), roll.no_reassignment(view))
    )
    agreed = coordinator.brokers_agree(view, excused_brokers) if gate.met else gate
    coordinators_asked = not waits_for(as_decision(agreed, ""), Cause.COORDINATORS_NOT_ASKED)
    gate = gate if splits and coordinators_asked else agreed
    text = f"Broker {broker.id} may stop: every partition keeps enough in-sync replicas and every gate holds."
    if gate.met and not agreed.met:
        text = f"{text} The run's conf accepts that groups move: {' '.join(reason.text for reason in agreed.reasons)}"
    return Act(Verb.RESTART, text) if gate.met else refuse_or_wait(gate)


def _decide_broker_start(broker: Broker, stage: FileStage) -> Decision:
    """Write the file of a broker that is down and start it: that it did not start may be why the operator rolls back."""
    if broker.in_zookeeper is not False:
        return roll.wait_for_session_end(broker)
    current_stage = stage_on_disk(broker.files)
    if current_stage is stage:
        return Act(Verb.START, f"Broker {broker.id} is stopped and has the file of stage {stage}.")
    if current_stage is None:
        return Wait((could_not_read(f"the properties of broker {broker.id}"),))
    text = f"Broker {broker.id} is down with the file of stage {current_stage}; it starts again with that of stage {stage}."
    return Act(Verb.RESTART, text)


def _check_step_order(view: ClusterView, target: BrokerMode) -> Decision | None:
    kraft, owned = view.in_mode(BrokerMode.KRAFT), kraft_owns(view)
    if target is BrokerMode.MIGRATION:
        return None if owned or kraft else Done("ZooKeeper owns the cluster: no broker runs in KRaft mode.")
    if kraft:
        return Refuse((kraft_brokers_reason(kraft),))
    text = "The handover to ZooKeeper has not happened: KRaft still owns /controller or /migration."
    return Refuse((Reason("G30", text),)) if owned or migration_znode_exists(view) else None


def _may_roll_back_to_migration(view: ClusterView, first: ClusterView) -> Gate:
    return combine_gates((gates.all_controllers_flagged(view), gates.quorum_healthy(view), gates.dual_write_alive(view, first)))


def _may_roll_back_to_zookeeper(view: ClusterView) -> Gate:
    return combine_gates((controllers_unresponsive(view), brokers_name_controller(view)))


def decide_zookeeper_leads(view: ClusterView) -> Decision:
    """A ZooKeeper broker is controller, every broker names it, and every partition has a leader that it can move."""
    if (refusal := refuse_if_irreversible(view)) is not None:
        return refusal
    gate = combine_gates((brokers_name_controller(view), gates.leaders_can_move(view)))
    if not gate.met:
        return refuse_or_wait(gate)
    if view.partitions is None:
        return refuse_or_wait(gates.no_leaderless_partition(view))
    if electable := electable_partitions(view):
        return Act(Verb.ELECT, f"{count_of(len(electable), 'partition has', 'partitions have')} no leader.")
    controller = zookeeper_controller(view)
    return Done(f"Broker {controller} is the ZooKeeper controller, and every broker names it.{_describe_leaderless(view)}")


def electable_partitions(view: ClusterView) -> tuple[Partition, ...]:
    """Partitions without a leader of which a replica in sync answers."""
    answering = {broker.id for broker in view.running_brokers()}
    return tuple(
        partition for partition in gates.leaderless_partitions(view) if answering & set(partition.isr or partition.replicas)
    )


def _describe_leaderless(view: ClusterView) -> str:
    """Which partitions wait for a broker that does not answer. A later step starts it, so nothing here may wait for it."""
    waiting = gates.leaderless_partitions(view)
    brokers = sorted({broker for partition in waiting for broker in partition.isr or partition.replicas})
    names = summarize(partition.name for partition in sorted(waiting))
    return (
        f" {count_of(len(waiting), 'partition has', 'partitions have')} no leader until broker {join_ids(brokers)} is back: {names}."
        if waiting
        else ""
    )


def decide_wipe(view: ClusterView, controller_id: int) -> Decision:
    """Set a stopped controller's directories aside, once ZooKeeper owns the cluster again."""
    controller = view.controller(controller_id)
    if (refusal := refuse_if_irreversible(view)) is not None:
        return refusal
    if kraft_owns(view) or migration_znode_exists(view):
        return Refuse((Reason("G30", "The handover to ZooKeeper has not happened yet."),))
    if controller.process.state is ProcessState.RUNNING:
        return Act(Verb.STOP, f"Controller {controller_id} was started after the handover: it would take the cluster over.")
    unread = controller.files.meta is None or controller.files.has_metadata_log is None
    gate = combine_gates(
        (controller_down(controller), not_yet_if(unread, could_not_read(f"the directory of controller {controller_id}")))
    )
    if not gate.met or controller.files.meta is None:
        return refuse_or_wait(gate)
    if has_empty_directories(controller):
        theirs = config_matrix.describe_foreign_directories(
            config_matrix.find_foreign_owners(controller_id, controller.files.meta)
        )
        return Done(f"{theirs}, and stays." if theirs else f"Controller {controller_id} is stopped and its directory is empty.")
    text = f"{', '.join(config_matrix.directories_in_use(controller))} of controller {controller_id}: if started, this old quorum would take the cluster over."
    return Act(Verb.WIPE, text)


def decide_rolled_back(view: ClusterView) -> Decision:
    """The end of the rollback: as before the migration, and ready for another one."""
    if (refusal := refuse_if_irreversible(view)) is not None:
        return refusal
    not_rolled_back = [
        broker for broker in view.in_mode(BrokerMode.KRAFT, BrokerMode.MIGRATION, None) if view.brokers[broker].named
    ]
    owned = migration_znode_exists(view) or kraft_owns(view)
    unread = sorted(c.id for c in view.controllers.values() if c.files.meta is None or c.files.has_metadata_log is None)
    used = sorted(c.id for c in view.controllers.values() if not has_empty_directories(c))
    gate = combine_gates(
        (
            not_yet_if(
                not_rolled_back, Reason("G22", f"Brokers that do not answer in ZooKeeper mode: {join_ids(not_rolled_back)}.")
            ),
            not_yet_if(owned, Reason("G30", "KRaft still owns /migration or /controller.")),
            controllers_down(view),
            not_yet_if(unread, could_not_read(f"the directories of controllers {join_ids(unread)}")),
            not_yet_if(used, Reason("G04", f"Controllers whose directories are not empty: {join_ids(used)}.")),
            brokers_name_controller(view),
            gates.leaders_can_move(view),
            roll.may_stop(view, ()),
        )
    )
    done = f"All {count_of(len(view.brokers), 'broker runs', 'brokers run')} on ZooKeeper as before; a new migration may start at any time."
    return as_decision(gate, done + gates.advise_after_rollback(view))


_FAILOVER_RESTORES = "`controller_failover` elects a new leader that writes ZooKeeper again, and ends once both are the same. Without a failover it is lost."


NOTHING = Reason("P13", "Nothing to roll back: the cluster shows no trace of a migration.")


def plan(view: ClusterView) -> tuple[str, ...]:
    """What a rollback would do now, step by step, in words; empty if there is nothing to roll back."""
    kraft, zookeeper_brokers, unread = (view.in_mode(mode) for mode in (BrokerMode.KRAFT, BrokerMode.ZOOKEEPER, None))
    unnamed = view.unnamed_brokers()
    unresponsive = sorted(set(unread) - set(unnamed))
    owned = kraft_owns(view)
    up = sorted(c.id for c in view.controllers.values() if not c.is_down)
    unflagged_ids = sorted(c.id for c in view.controllers.values() if c.migration_flag is False) if owned else []
    used = [c for _, c in sorted(view.controllers.items()) if not has_empty_directories(c) or c.files.meta is None]
    to_restart = view.brokers.keys() - set(unnamed) - (set() if owned else set(zookeeper_brokers))
    steps = (
        (unflagged_ids, f"restart controllers {join_ids(unflagged_ids)} with the migration flag"),
        (owned, "restart the active controller once, so that its successor writes all metadata to ZooKeeper again"),
        (
            kraft or (owned and zookeeper_brokers),
            f"restart brokers {join_ids(sorted(kraft + zookeeper_brokers if owned else kraft))} in migration mode",
        ),
        (up, f"stop controllers {join_ids(up)}, the active one last{_describe_controller_gap(view)}"),
        (owned or migration_znode_exists(view), f"hand the cluster over to ZooKeeper: {_describe_transaction(view)}"),
        (
            not owned and gates.has_epoch_ahead(view),
            f"elect a controller that can move every leader: {_describe_transaction(view)}",
        ),
        (used, f"set the directories of controllers aside: {'; '.join(map(_describe_used_directories, used))}"),
        (
            len(zookeeper_brokers) < len(view.brokers) - len(unnamed),
            f"restart brokers {join_ids(sorted(to_restart))} with their original files",
        ),
    )
    planned = tuple(text for needed, text in steps if needed)
    wait_for_brokers = f"wait for brokers that do not answer now, or start them again: {join_ids(unresponsive)}"
    waits_for_unnamed = f"wait until the brokers that the cluster file does not name have gone: {join_ids(unnamed)} (G39)"
    more = (*([wait_for_brokers] if unresponsive else []), *([waits_for_unnamed] if unnamed else []))
    return (*planned, *more) if planned else planned


def describe_kept_and_lost(view: ClusterView) -> tuple[str, ...]:
    """What a rollback keeps and loses of the time since the takeover, in words; needs a view of all kinds of metadata."""
    if not readiness.kraft_may_hold_more(view):
        return (f"Kept: everything. {explain_no_loss(view)}",)
    unread, missing = equivalence.unread_kind_reasons(view), equivalence.difference_reasons(view)
    compared = f" Compared now: {equivalence.describe_equality(view)}" if not unread and not missing else ""
    kept_metadata = "topics, settings, quotas, credentials and rules that were made or changed since the takeover"
    features = f"its features (metadata.version {view.metadata_version or 'unknown'})"
    return (
        f"Kept: all records and committed offsets; {kept_metadata}, as far as ZooKeeper holds them.{compared}",
        *(f"Not known to be kept: {reason.text}" for reason in unread),
        *(f"Differs now: {reason.text} {_FAILOVER_RESTORES}" for reason in missing),
        f"Lost: what only KRaft has: {features}{_describe_client_metrics(view)}. The controllers' log is set aside, not deleted.",
    )


def describe_changes(view: ClusterView, before: Inventory | None, why: str = "") -> tuple[str, ...]:
    """What was changed since the takeover, and whether ZooKeeper has it, in words. `before` None: it is not known, `why` says why."""
    if not readiness.kraft_may_hold_more(view):
        return ()
    if before is None:
        return (f"Not known: what was changed since the takeover. {why}",)
    changes, at = equivalence.find_changes(view, before), format_date(round(1000 * before.at))
    by_holding = {"and ZooKeeper has it": True, "and ZooKeeper does not have it": False}
    texts = {
        text: equivalence.describe_changes(change for change in changes if change.held is in_zookeeper)
        for text, in_zookeeper in by_holding.items()
    }
    lines = [f"Changed since the backup of {at}, {text}: {listed}." for text, listed in texts.items() if listed]
    lines = lines or [f"Changed since the backup of {at}: nothing that was read."]
    late = [f"changes before {at}, because KRaft may have taken the cluster over before the backup"] if before.late else []
    unknown = [*late, *equivalence.list_unknown_changes(view)]
    return (*lines, *([f"Not known whether changed: {'; '.join(unknown)}."] if unknown else ()))


def _describe_client_metrics(view: ClusterView) -> str:
    if view.client_metrics is None:
        return ", and client-metrics subscriptions, which could not be read"
    return f", and the client-metrics subscriptions {summarize(view.client_metrics)}" if view.client_metrics else ""


def _describe_controller_gap(view: ClusterView) -> str:
    """How long no controller runs; nothing depends on one while ZooKeeper owns the cluster."""
    return f"; no controller runs for about {WITHOUT_CONTROLLER:.0f} s" if kraft_owns(view) else ""


def _describe_used_directories(controller: Controller) -> str:
    return f"{', '.join(config_matrix.directories_in_use(controller)) or 'not read yet'} of {controller.id}"


def _describe_transaction(view: ClusterView) -> str:
    if not kraft_owns(view) and not gates.has_epoch_ahead(view):
        return "delete /migration"
    gone = "/migration and /controller" if migration_znode_exists(view) else "/controller"
    return f"raise /controller_epoch, delete {gone}, in one transaction"


IMPOSSIBLE = "The finalization has happened already: no rollback is possible any more. Only its remaining steps are done."
