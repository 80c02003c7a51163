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

Sources: KIP-866 "Migration overview", Kafka's operations guide (3.9), and experiments on real brokers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from math import inf

from airflow_provider_kmigrate.core import coordinator, equivalence, gates, readiness
from airflow_provider_kmigrate.core.decision import Act, Decision, Done, Refuse, Verb, Wait, waits_for
from airflow_provider_kmigrate.core.equivalence import Difference, DifferenceKind
from airflow_provider_kmigrate.core.files import config_matrix
from airflow_provider_kmigrate.core.files.config_matrix import FileStage, stage_on_disk
from airflow_provider_kmigrate.core.gates import MET, Gate, as_decision, never, never_if, not_yet, not_yet_if, together, unmet
from airflow_provider_kmigrate.core.migration import recovery, roll, waits
from airflow_provider_kmigrate.core.migration.controllers import (
    end_unseen,
    give_flag_back,
    keeps_flag,
    unresponsive_controller,
    unseen,
)
from airflow_provider_kmigrate.core.migration.recovery import HoldTimer, Recovered, Recoveries, out_of_isrs
from airflow_provider_kmigrate.core.model import (
    Broker,
    BrokerMode,
    Cause,
    ClusterView,
    Controller,
    Inventory,
    Migration,
    NodeFiles,
    Partition,
    ProcessState,
    Reason,
    ZkController,
    ZkView,
    could_not_read,
)
from airflow_provider_kmigrate.core.phase import Phase, ended, kraft_owns, still_open, unflagged, where, zookeeper_controller
from airflow_provider_kmigrate.core.text import date, join_ids, summarize

STILL_FOR = 2.0  # seconds without a change of /migration; a leader writes every 0.5 s, and every process was seen stopped
WITHOUT_CONTROLLER = 10.0  # seconds from the last stops to a ZooKeeper controller; a stop without a quorum took 5 to 6 (measured)
STUCK_FOR = 3.0  # seconds without a quorum and without a way to go on, after which the controllers start again
MAX_RETURNS = 3  # times in one run, each of which costs a start of the controllers; then it is refused while there is a quorum


def over(view: ClusterView) -> Decision | None:
    """The refusal once no rollback is possible, a wait if that is unknown, None while it is possible."""
    possible = gates.may_roll_back(view)
    if possible.met:
        return None
    return Refuse((*possible.reasons, *where(view).reasons)) if ended(view) else unmet(possible)


def names_the_controller(view: ClusterView) -> Gate:
    """G28: every broker that answers names the ZooKeeper controller of /controller."""
    controller = zookeeper_controller(view)
    if controller is None or view.zk is None or controller not in view.zk.broker_ids:
        return not_yet(Reason("G28", "No ZooKeeper controller is elected yet."))
    asked = {b.id: b.controller_id for b in view.running_brokers() if b.mode is not BrokerMode.KRAFT}
    others = [f"{broker} names {named}" for broker, named in sorted(asked.items()) if named != controller]
    return not_yet_if(others, Reason("G28", f"Not every broker names ZooKeeper controller {controller}: {', '.join(others)}."))


def kraft_left(kraft: list[int]) -> Reason:
    """G27: brokers that are still in KRaft mode."""
    return Reason("G27", f"Brokers still run in KRaft mode: {join_ids(kraft)}.")


def controllers_unresponsive(view: ClusterView) -> Gate:
    """No controller answers. One that was started again would have written /migration, which is checked too."""
    answering = sorted(c.id for c in view.controllers.values() if c.answers)
    return never_if(answering, Reason("G26", f"Controllers answer: {join_ids(answering)}."))


def controllers_down(view: ClusterView) -> Gate:
    """G26: every controller is stopped."""
    return together(controller_down(view.controllers[controller]) for controller in sorted(view.controllers))


def controller_down(controller: Controller) -> Gate:
    """G26: this controller is stopped, and its endpoint does not answer."""
    reason = Reason("G26", f"Controller {controller.id} is not stopped: its process is {controller.process.state}.")
    return never(reason) if controller.answers else not_yet_if(not controller.down, reason)


def nothing_ended(view: ClusterView) -> Gate:
    """R12: after a copy no stopped controller has final properties: if it led with them it has finalized, and no other node could report it."""
    controllers = [] if still_open(view) or not kraft_owns(view) else [one for _, one in sorted(view.controllers.items())]
    final = [c for c in controllers if stage_on_disk(c.files) is FileStage.CONTROLLER_FINAL]
    if final:
        return never(unseen(view, final[0]))
    unread = [c.id for c in controllers if c.files == NodeFiles()]  # a missing file is no final one
    return not_yet_if(unread, could_not_read(f"the files of controllers {join_ids(unread)}"))


def flags_kept(view: ClusterView) -> Gate:
    """G05: no controller has final properties, while there is a quorum: its flag can be restored now, and not once all are stopped (R12)."""
    final = [c.id for _, c in sorted(view.controllers.items()) if stage_on_disk(c.files) is FileStage.CONTROLLER_FINAL]
    text = f"The files of controllers {join_ids(final)} have no migration flag."
    return never_if(final and kraft_owns(view), unflagged(view, text))


def migration_still(view: ClusterView, first: ClusterView) -> Gate:
    """G26: no controller has written /migration for `STILL_FOR` seconds since `first`."""
    if view.zk is None or first.zk is None:
        return not_yet(could_not_read("ZooKeeper"))
    if view.zk.migration != first.zk.migration:
        text = "/migration still changes, although every controller of the cluster file is stopped."
        return never(Reason("G26", text))
    text = "Watching /migration for a moment: no controller may write it any more."
    return not_yet_if(view.taken_at - first.taken_at < STILL_FOR, Reason("T01", text, cause=Cause.HANDOVER_OBSERVED))


def migration_left(view: ClusterView) -> bool:
    """Whether /migration exists."""
    return view.zk is not None and view.zk.migration is not None


def empty(controller: Controller) -> bool:
    """Whether a controller's own directories hold neither a format nor a metadata log; another node's do not count."""
    if controller.files.meta is None:
        return not controller.files.has_metadata_log
    return not config_matrix.in_use(controller)


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
    def accepts(self) -> bool:
        """Whether the run accepts to lose what ZooKeeper misses; counts only without a failover."""
        return self.lossy and not self.failover


SAFE = RollbackTerms()


def accepted_costs(view: ClusterView, terms: RollbackTerms) -> tuple[str, ...]:
    """What the terms accept beyond a loss, in words, with what it costs; needs the partitions and the coordinators."""
    costs = []
    for number in sorted(terms.left):
        rows = [row for row in view.partitions or () if number in row.replicas]
        leads = summarize(row.name for row in rows if row.leader == number) or "no partition"
        alone = [row.name for row in rows if row.replicas == (number,)]
        only = f" It has the only replica of {summarize(alone)}." if alone else ""
        costs.append(
            f"Accepted: broker {number} stays as it is, and nothing waits for it. It leads {leads}, and has replicas of {len(rows)} partitions.{only} "
            "If it runs in KRaft mode, the handover isolates it: what it acknowledges afterwards is lost."
        )
    if terms.splits:
        found = coordinator.agreed(view).reasons
        text = " ".join(reason.text for reason in found) or "Every broker uses the same counts now, so it changes nothing."
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
    wanted = f'{{"skip_failover": true, "accept_loss": "{cluster_id}"}}'
    return Reason("G35", f"`accept_loss` {', and '.join(wrong)}. The conf would be {wanted}.")


def compared(view: ClusterView, terms: RollbackTerms) -> Decision:
    """`waits.equivalent`; without a failover, kinds that no controller can report do not count, and a loss may be accepted."""
    if ended(view) or (terms.failover and (view.zk is None or kraft_owns(view))):
        return waits.equivalent(view)
    if not readiness.holds_more(view):
        return Done(taken_nothing(view))
    found = _found(view)
    if terms.accepts:
        lost = " ".join(reason.text for reason in (*found, *_unread(view, strict=True))) or "nothing that can be observed."
        return Done(f"The run's conf accepts the permanent loss of: {lost}")
    reasons = (*_unread(view, strict=terms.failover or _kraft_reportable(view)), *found)
    return Wait(reasons) if reasons else Done(f"{equivalence.same(view)}{_unknown_topics(view)}")


def before_stop(view: ClusterView, before: ClusterView, terms: RollbackTerms) -> Gate:
    """G33: ZooKeeper holds what KRaft does, now; met if ZooKeeper owns the cluster or no copy was ever finished.

    Once a majority is stopped, no change is accepted and the dual-write has no leader: then only what is still readable must be
    equal.
    """
    if not readiness.holds_more(view) or terms.accepts:
        return MET
    strict = not _quorum_gone(view)
    moving = (gates.dual_write_alive(view, before), gates.lag_below(view, gates.MOST_LAG)) if strict and terms.failover else ()
    differing = (*_unread(view, strict=strict and (terms.failover or _kraft_reportable(view))), *_found(view))
    return _with_g33(together((*moving, not_yet_if(differing, *differing))))


def before_handover(view: ClusterView, first: ClusterView, terms: RollbackTerms) -> Gate:
    """G33: brokers, which KRaft informed last, hold the same topics as ZooKeeper; never, if two observations differ alike."""
    if not readiness.holds_more(view) or terms.accepts:
        return MET
    pair = [_more(equivalence.topic_differences(each)) for each in (first, view)]
    if lost := equivalence.reasons(equivalence.persisting(*pair)):
        return _with_g33(never(*lost))
    now = (*_unread(view, strict=False), *equivalence.reasons(pair[1]))
    return _with_g33(not_yet_if(now, *now))


def _found(view: ClusterView) -> tuple[Reason, ...]:
    """`equivalence.found`; without a quorum, minus the topics that the queried broker does not know."""
    found = equivalence.differences(view)
    return equivalence.reasons(_more(found) if _no_node_reports(view) else found)


def _more(found: Iterable[Difference]) -> tuple[Difference, ...]:
    """What KRaft has more, or otherwise. A broker started without a leading controller misses topics; that is no loss."""
    return tuple(difference for difference in found if difference.kind is not DifferenceKind.MISSING_TOPIC)


def _no_node_reports(view: ClusterView) -> bool:
    return _quorum_gone(view) or not _kraft_reportable(view)


def _unknown_topics(view: ClusterView) -> str:
    missing = [
        found.entity
        for found in equivalence.topic_differences(view)
        if found.kind is DifferenceKind.MISSING_TOPIC and found.counts
    ]
    return f" The broker that was asked does not know {len(missing)} of them: {summarize(missing)}." if missing else ""


def taken_nothing(view: ClusterView) -> str:
    """Why nothing can be lost, if KRaft does not hold more."""
    if kraft_owns(view):
        return "KRaft has taken nothing over: no copy of ZooKeeper was ever finished."
    return "ZooKeeper owns the cluster, and KRaft has taken nothing over."


def _quorum_gone(view: ClusterView) -> bool:
    """Whether so many controllers are known to be stopped that no majority is left; an unresponsive one is not known to be."""
    stopped = sum(controller.down for controller in view.controllers.values())
    return 2 * (len(view.controllers) - stopped) <= len(view.controllers)


def _kraft_reportable(view: ClusterView) -> bool:
    """Whether any node can report KRaft's side of all kinds."""
    return bool(view.in_mode(BrokerMode.KRAFT)) or any(controller.answers for controller in view.controllers.values())


def _unread(view: ClusterView, *, strict: bool) -> tuple[Reason, ...]:
    """What was not read: all kinds, or only topics, which brokers always report unless started without a leading controller."""
    unread = equivalence.unread_kinds(view)
    topics = unread[:1] if view.topics is None else ()
    return (*(unread if strict else topics), *_knows_no_topic(view))


def _knows_no_topic(view: ClusterView) -> tuple[Reason, ...]:
    zookeeper, kraft = view.topics or ({}, {})
    if kraft or not zookeeper or not _no_node_reports(view):
        return ()
    text = f"The broker that was asked knows no topic, ZooKeeper holds {len(zookeeper)}: it received no metadata since its start."
    return (Reason("G00", text),)


def _with_g33(gate: Gate) -> Gate:
    reason = Reason("G33", "ZooKeeper is not known to hold all that KRaft holds.")
    return gate if gate.met else Gate(gate.state, (reason, *gate.reasons))


def recover(view: ClusterView, broker: int, decision: Decision, recoveries: Recoveries) -> Recovered:
    """Recover as in the migration; also if brokers skip what the ZooKeeper controller says (`clients.partition_states`)."""
    judged = recovery.recover(view, broker, decision, recoveries)
    out = out_of_isrs(judged.decision) and not kraft_owns(view) and not migration_left(view)
    text = f"Broker {broker} is up, but its leaders keep it out of ISRs: raising partition states, then electing a controller that sends them."
    return judged.observe(view, out, Act(Verb.RAISE, text))


@dataclass(frozen=True, slots=True)
class HandoverWrites:
    """What the handover transaction changes: /controller_epoch, unless it stays (None), and which znodes are deleted.

    `states`: first rewrite the partition states unchanged; brokers may hold KRaft's partition epochs, which are ahead of the
    states' versions (`clients.partition_states`).
    """

    epoch: int | None
    delete: tuple[str, ...]
    states: bool = False


def decide_restore_flag(view: ClusterView, controller_id: int) -> Decision:
    """Bring back a controller of a running migration with its flag, whether it lost the flag or is down."""
    controller, owned = view.controller(controller_id), kraft_owns(view)
    if (ended := over(view)) is not None:
        return ended
    if not owned or (controller.answers and controller.migration_flag):
        return (keeps_flag(view, controller) if owned else None) or Done(f"Controller {controller_id} needs no flag.")
    if controller.process.state is ProcessState.STOPPED:
        return _brought_back(view, controller)
    if not controller.answers:
        return Wait((unresponsive_controller(controller),))
    return give_flag_back(view, controller)


def _brought_back(view: ClusterView, controller: Controller) -> Decision:
    """Start it with its file if that has the flag; otherwise add the flag only if the migration is not over."""
    if controller.files.has_metadata_log is None:
        return Wait((could_not_read(f"the directory of controller {controller.id}"),))
    if not controller.files.has_metadata_log:
        return Done(f"Controller {controller.id} is down and its directory is empty; it is no longer needed.")
    start = Act(Verb.START, f"Controller {controller.id} is down and has this migration's log.")
    flagged = stage_on_disk(controller.files) is FileStage.CONTROLLER_MIGRATION
    return start if flagged else end_unseen(view, controller) or start


def decide_controller_failover(view: ClusterView, first: ClusterView) -> Decision:
    """Fail over the active controller once since `first`, which had a leader: then ZooKeeper holds all that KRaft does."""
    if (ended := over(view)) is not None:
        return ended
    if (down := still_down(view)) is not None:
        return down[1]
    if not kraft_owns(view):
        return Done("ZooKeeper owns the cluster; nothing must be written back.")
    return _once(view, first)


def _once(view: ClusterView, first: ClusterView) -> Decision:
    gate = together((gates.all_flagged(view), gates.no_client_metrics(view), gates.quorum_healthy(view)))
    if not gate.met or view.quorum is None:
        return unmet(gate)
    if view.migration is None:
        return Wait((gates.no_dual_write("/migration does not show a finished copy yet."),))
    leads = f"Controller {view.quorum.leader_id} leads"
    if first.quorum is None or view.quorum.leader_epoch <= first.quorum.leader_epoch:
        return Act(Verb.CONTROLLER_FAILOVER, f"{leads}: its successor writes all metadata to ZooKeeper again (KIP-866).")
    return as_decision(gates.dual_write_alive(view, first), f"{leads} since a failover, and the dual-write makes progress.")


def still_down(view: ClusterView) -> tuple[int, Decision] | None:
    """The first controller of this migration that is down, and what to do about it.

    A failover killed between stop and start leaves one. The tasks that start controllers come earlier and do not run again.
    """
    down = [number for number, found in sorted(view.controllers.items()) if found.process.state is ProcessState.STOPPED]
    asked = ((number, decide_restore_flag(view, number)) for number in down)
    return next(((number, decision) for number, decision in asked if not isinstance(decision, Done)), None)


def decide_roll_back(
    view: ClusterView, first: ClusterView, broker_id: int, target: BrokerMode, terms: RollbackTerms = SAFE
) -> Decision:
    """Roll one broker back to migration mode, while KRaft owns the cluster, or to ZooKeeper mode, once ZooKeeper does."""
    if (ended := over(view) or _out_of_order(view, target)) is not None:
        return ended
    left = left_without_quorum(view) if target is BrokerMode.ZOOKEEPER else ()
    if broker_id in left:
        return decide_roll_back_left(view, broker_id)
    passing = _to_migration(view, first) if target is BrokerMode.MIGRATION else _to_zookeeper(view)
    gate = together((passing, roll.may_stop(view, (broker_id,))))
    decision = _back(view, view.broker(broker_id), target, gate, splits=terms.splits)
    if not left or not isinstance(decision, Wait):
        return decision
    text = (
        f"Broker {left[0]} cannot start: its file needs the controllers, which were handed over. It gets its original file first."
    )
    return Act(Verb.ROLL_BACK_OTHER, text, f"broker {left[0]}")


def left_without_quorum(view: ClusterView) -> tuple[int, ...]:
    """Brokers that do not answer and have KRaft's file, after the handover to ZooKeeper: none of them ever comes up.

    Such as one whose machine came back with an earlier disk. In migration mode a broker needs no quorum any more: the ZooKeeper
    controller serves it within a second of its election, also if it was started before (measured). Files that were not read do
    not count.
    """
    if kraft_owns(view) or migration_left(view):
        return ()
    silent = (broker for broker in view.brokers.values() if broker.named and broker.mode is None)
    return tuple(broker.id for broker in silent if stage_on_disk(broker.files) is FileStage.KRAFT)


def decide_roll_back_left(view: ClusterView, broker_id: int) -> Decision:
    """Give a broker of `left_without_quorum` its original file, whatever the state of other brokers.

    Its process hangs in its start: a stop costs nothing but its place in ISRs that still name it, and enough others must be left there.
    """
    left = left_without_quorum(view)
    gate = together((_to_zookeeper(view), roll.enough_left(view, broker_id)))
    ended = over(view) or _out_of_order(view, BrokerMode.ZOOKEEPER)
    return ended or _back(view, view.broker(broker_id), BrokerMode.ZOOKEEPER, gate, hangs=broker_id in left, but=left)


def decide_roll_back_canary(view: ClusterView, first: ClusterView, broker_id: int, target: BrokerMode) -> Decision:
    """Roll the first broker of a pass back to its previous mode, while the migration stays where it is.

    Into ZooKeeper mode under running controllers only while other brokers have never registered with them: the last registration
    triggers the takeover, which isolates a ZooKeeper broker (measured).
    """
    broker, to_migration = view.broker(broker_id), target is BrokerMode.MIGRATION
    passing = _to_migration(view, first) if to_migration else names_the_controller(view)
    gate = together((passing, roll.may_give_up(view, broker_id)))
    hangs = stage_on_disk(broker.files) not in {roll.STAGE[target], None}  # it has the file of the mode in which it is worse
    ended = over(view) or (_out_of_order(view, target) if to_migration else _taken_over(view, broker_id))
    return ended or _back(view, broker, target, gate, hangs=hangs, but=(broker_id,))


def _taken_over(view: ClusterView, broker_id: int) -> Decision | None:
    known = {*view.zk.rolled_back, *view.zk.registered} if view.zk else set()
    plain = set(view.in_mode(BrokerMode.ZOOKEEPER)) - known - {broker_id}
    if where(view).phase in {Phase.FIRST_ROLL, Phase.PRE_MIGRATION} and not kraft_owns(view) and plain:
        return None
    text = f"Broker {broker_id} is not the first of the first roll: no other broker is left that never registered with the controllers."
    return Refuse((Reason("G32", text), *where(view).reasons))


def _back(
    view: ClusterView,
    broker: Broker,
    target: BrokerMode,
    passing: Gate,
    *,
    hangs: bool = False,
    but: Collection[int] = (),
    splits: bool = False,
) -> Decision:
    """`hangs`: a broker that does not answer although its process runs is not starting, and is not waited for.

    `but`: as in `coordinator.agreed`. `splits`: as in `RollbackTerms`.
    """
    if broker.mode is None and broker.process.state is not ProcessState.STOPPED and not hangs:
        return roll.unresponsive(broker)
    if broker.mode is target:
        return roll.settled(view, broker, target)
    if broker.process.state is ProcessState.STOPPED:
        return _down(broker, roll.STAGE[target])
    # Here a reassignment can always be cancelled, since a controller answers by then: it never blocks the rollback for good.
    gate = together((passing, gates.process_known(broker), roll.no_reassignment(view)))
    agreed = coordinator.agreed(view, but) if gate.met else gate
    asked = not waits_for(as_decision(agreed, ""), Cause.COORDINATORS_NOT_ASKED)
    gate = gate if splits and asked else agreed
    text = f"Broker {broker.id} may stop: every partition keeps enough in-sync replicas and every gate holds."
    if gate.met and not agreed.met:
        text = f"{text} The run's conf accepts that groups move: {' '.join(reason.text for reason in agreed.reasons)}"
    return Act(Verb.RESTART, text) if gate.met else unmet(gate)


def _down(broker: Broker, stage: FileStage) -> Decision:
    """Write the file of a broker that is down and start it: that it did not start may be why the operator rolls back."""
    if broker.in_zookeeper is not False:
        return roll.session_not_over(broker)
    found = stage_on_disk(broker.files)
    if found is stage:
        return Act(Verb.START, f"Broker {broker.id} is stopped and has the file of stage {stage}.")
    if found is None:
        return Wait((could_not_read(f"the properties of broker {broker.id}"),))
    text = f"Broker {broker.id} is down with the file of stage {found}; it starts again with that of stage {stage}."
    return Act(Verb.RESTART, text)


def _out_of_order(view: ClusterView, target: BrokerMode) -> Decision | None:
    kraft, owned = view.in_mode(BrokerMode.KRAFT), kraft_owns(view)
    if target is BrokerMode.MIGRATION:
        return None if owned or kraft else Done("ZooKeeper owns the cluster: no broker runs in KRaft mode.")
    if kraft:
        return Refuse((kraft_left(kraft),))
    text = "The handover to ZooKeeper has not happened: KRaft still owns /controller or /migration."
    return Refuse((Reason("G30", text),)) if owned or migration_left(view) else None


def _to_migration(view: ClusterView, first: ClusterView) -> Gate:
    return together((gates.all_flagged(view), gates.quorum_healthy(view), gates.dual_write_alive(view, first)))


def _to_zookeeper(view: ClusterView) -> Gate:
    return together((controllers_unresponsive(view), names_the_controller(view)))


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

    def returned(self) -> HandoverProgress:
        """Note that controllers are started again."""
        return replace(self, stuck=HoldTimer(STUCK_FOR), failed=(), returns=self.returns + 1)

    def observe(self, view: ClusterView) -> HandoverProgress:
        """Add one observation; without ZooKeeper it shows nothing that a later one could be compared with."""
        if view.zk is None:
            return self
        return replace(self, all_down=(self.all_down or view) if controllers_down(view).met else None)


def decide_handover(
    view: ClusterView, progress: HandoverProgress, terms: RollbackTerms = SAFE
) -> tuple[Decision, HandoverProgress]:
    """Stop the controllers, then hand the cluster over to ZooKeeper: one decision, so that nothing is between the two.

    Without a quorum no ISR shrinks. So a broker that dies then stops the writes to its partitions; and if its machine comes back, it waits
    for the quorum, still named as leader. Handed over like that, ZooKeeper's controller takes it for alive, and the other replicas
    truncate to what its disk kept of its log: acknowledged records are lost (measured, after a power cut). So if the handover cannot go on
    without a quorum, whatever the reason, the stopped controllers start again: they take a broker that came back out of its ISRs first
    (measured). The handover begins again once all is well. Where too few controllers can start, brokers that do not answer are stopped
    first, so that the new controller takes them out.
    """
    progress = progress.observe(view)
    decision = _decide_handover(view, progress, terms, roll.may_stop(view, ()))
    if not lost_quorum(view):
        gives_up = progress.returns >= MAX_RETURNS and isinstance(decision, Act) and decision.verb is Verb.STOP
        return Refuse(progress.why) if gives_up else decision, replace(progress, stuck=HoldTimer(STUCK_FOR))
    why = progress.failed or (decision.reasons if isinstance(decision, Wait | Refuse) else ())
    stuck = bool(why) and not _only_time_must_pass(decision)
    progress = replace(progress, stuck=progress.stuck.observe(view.taken_at, there=stuck))
    if not stuck or not (progress.failed or isinstance(decision, Refuse) or progress.stuck.expired(view.taken_at)):
        return decision, progress
    if numbers := controllers_to_start_again(view) if terms.failover else ():
        seen = " ".join(dict.fromkeys(reason.text for reason in why))
        text = f"The handover cannot go on, and nothing may stay without a quorum. {seen} Starting controllers {join_ids(numbers)} again."
        return Act(Verb.START, text, _controllers(numbers)), replace(progress, why=why)
    if hanging := brokers_to_stop(view):
        text = f"No quorum can be had, and broker {hanging[0]} hangs without one: it is stopped for the handover, and starts again behind it."
        return Act(Verb.STOP_BROKER, text, f"broker {hanging[0]}"), progress
    return _decide_handover(view, progress, terms, silent_brokers_gone(view)), progress


def brokers_to_stop(view: ClusterView) -> tuple[int, ...]:
    """Brokers whose processes run and do not answer: they were started without a quorum."""
    named = (broker for broker in view.brokers.values() if broker.named and broker.mode is None)
    return tuple(sorted(broker.id for broker in named if broker.process.state is ProcessState.RUNNING))


def silent_brokers_gone(view: ClusterView) -> Gate:
    """R03: ZooKeeper lists no broker that does not answer, so that its new controller takes none for alive."""
    silent = (broker for broker in view.brokers.values() if broker.named and broker.mode is None)
    return together(not_yet_if(broker.in_zookeeper is not False, *roll.session_not_over(broker).reasons) for broker in silent)


def _decide_handover(view: ClusterView, progress: HandoverProgress, terms: RollbackTerms, brokers: Gate) -> Decision:
    """`brokers`: whether they can spare the controllers while KRaft owns the cluster."""
    # 1. No rollback any more, or ZooKeeper is not readable.
    if (ended := over(view)) is not None:
        return ended
    # 2. Controllers that run, or that would start with their machines.
    if left := controllers_to_stop(view):
        return _stop(view, left, progress.before, terms, brokers)
    # 3. Handed over already. A controller whose machine does not answer has no part in it any more.
    if not kraft_owns(view) and view.migration is None and gates.states_in_reach(view).met:
        return as_decision(gates.epochs_known(view), "ZooKeeper owns the cluster, and no trace of the migration is left in it.")
    # 4. The transaction, once every controller is known to be stopped.
    first = progress.all_down or view
    needed = _no_broker_needs_them(view, brokers)
    known = (gates.epochs_known(view),) if needed.met else ()  # else they were not read
    gate = together((needed, controllers_down(view), nothing_ended(view), migration_still(view, first), *known))
    gate = before_handover(view, first, terms) if gate.met else gate
    if gate.met:
        return Act(Verb.HANDOVER, "Every controller is stopped, nothing writes /migration, no broker is in KRaft mode.")
    waits = {reason.cause for reason in gate.reasons} == {Cause.HANDOVER_OBSERVED}
    return Wait(gate.reasons, healthy=True) if waits else unmet(gate)


def _stop(view: ClusterView, left: tuple[int, ...], before: ClusterView, terms: RollbackTerms, brokers: Gate) -> Decision:
    """Stop these controllers, once no broker needs them and nothing would be lost with them (G33)."""
    stopping = [view.controllers[number] for number in left]
    kept = flags_kept(view) if terms.failover and not lost_quorum(view) else MET
    gate = together((_no_broker_needs_them(view, brokers), *map(_known, _concerned(view)), kept))
    gate = before_stop(view, before, terms) if gate.met else gate
    strangers = [strange for controller in stopping if (strange := config_matrix.not_its_process(controller)) is not None]
    if gate.met and strangers:
        return Refuse(tuple(strangers))
    text = f"No broker needs controllers {join_ids(left)} any more, and nothing would be lost with them."
    return Act(Verb.STOP, text, _controllers(left)) if gate.met else unmet(gate)


def _controllers(numbers: Iterable[int]) -> str:
    """Controllers as a journal names nodes."""
    return ", ".join(f"controller {number}" for number in numbers)


def controllers_to_stop(view: ClusterView) -> tuple[int, ...]:
    """The controllers to stop next; empty once all are down and none starts with its machine.

    One by one while a quorum is left without it: those that do not answer first, the active one last, which must be the last to write
    epochs. The last ones, without which there is no quorum, together: then nothing can be elected, and the time without a controller is
    that of one stop.
    """
    leader = view.quorum.leader_id if view.quorum else None
    up = [controller for controller in _concerned(view) if not controller.down]
    answering = [controller for controller in up if controller.answers]
    if not up:
        return tuple(sorted(c.id for c in view.controllers.values() if c.process.at_boot))
    spare = [controller for controller in up if not controller.answers]
    if len(answering) > majority(view):
        spare += [controller for controller in answering if controller.id != leader]
    if spare and len(answering) >= majority(view):
        return (min(spare, key=lambda controller: (controller.answers, controller.id)).id,)
    return tuple(sorted(controller.id for controller in up))


def silence_of_stop(view: ClusterView) -> float:
    """Seconds after which the stop of `controllers_to_stop` gives up a machine that does not answer; inf: as any stop.

    Without a quorum as little as before the controllers start again, which they do then: what a machine that lives stops later, they can
    spare.
    """
    left = {controller.id for controller in _concerned(view) if controller.answers} - {*controllers_to_stop(view)}
    return STUCK_FOR if kraft_owns(view) and len(left) < majority(view) else inf


def controllers_to_start_again(view: ClusterView) -> tuple[int, ...]:
    """The stopped controllers of this migration with which there is a quorum again; empty if there would be none.

    One without the flag in its file is none: if elected, it would finalize.
    """
    flagged = {c.id for c in view.controllers.values() if c.down and stage_on_disk(c.files) is FileStage.CONTROLLER_MIGRATION}
    usable = sorted(number for number in flagged if view.controllers[number].files.has_metadata_log)
    return tuple(usable) if len(_running_controllers(view)) + len(usable) >= majority(view) else ()


def majority(view: ClusterView) -> int:
    """How many controllers make a quorum."""
    return len(view.controllers) // 2 + 1


def lost_quorum(view: ClusterView) -> bool:
    """Whether KRaft owns the cluster, and too few controllers run for a quorum, as far as their machines report."""
    return kraft_owns(view) and len(_running_controllers(view)) < majority(view)


def _running_controllers(view: ClusterView) -> list[int]:
    return [c.id for c in view.controllers.values() if c.process.state is ProcessState.RUNNING]


def compares_before_stop(view: ClusterView, terms: RollbackTerms) -> bool:
    """Whether only the comparison is left to allow the next stop: then it is worth reading both sides whole."""
    left = any(not controller.down for controller in view.controllers.values())
    known = together(map(_known, _concerned(view)))
    return left and over(view) is None and known.met and _no_broker_needs_them(view, _brokers(view, terms)).met


def compares_before_handover(view: ClusterView, terms: RollbackTerms) -> bool:
    """Whether epochs and topics may decide the transaction now: beside a broker that does not answer they take 10 s to read (measured).

    Without a quorum those are seconds in which no ISR shrinks.
    """
    return controllers_down(view).met and (not kraft_owns(view) or _no_broker_needs_them(view, _brokers(view, terms)).met)


def _brokers(view: ClusterView, terms: RollbackTerms) -> Gate:
    """`brokers` of the last decision that `decide_handover` may come to: the weaker one if no quorum can be had any more."""
    return silent_brokers_gone(view) if no_quorum_possible(view, terms) else roll.may_stop(view, ())


def no_quorum_possible(view: ClusterView, terms: RollbackTerms) -> bool:
    """Whether the quorum is lost and this run does not bring it back. Only then do the brokers' processes count (`brokers_to_stop`).

    Until then no machine of a broker need be asked: one that is dead and says nothing holds an observation for 15 s.
    """
    return lost_quorum(view) and not (terms.failover and controllers_to_start_again(view))


def _concerned(view: ClusterView) -> list[Controller]:
    """The controllers that a stop depends on. While KRaft owns the cluster, all: each may be needed for a quorum again."""
    return [c for c in view.controllers.values() if kraft_owns(view) or _seen(c)]


def _seen(controller: Controller) -> bool:
    return controller.answers or controller.process.state is not ProcessState.UNKNOWN


def _known(controller: Controller) -> Gate:
    """The controller's machine reports whether it runs."""
    return MET if controller.down else gates.process_known(controller)


def _no_broker_needs_them(view: ClusterView, brokers: Gate) -> Gate:
    """`brokers`: as in `_decide_handover`."""
    kraft, plain, owned = view.in_mode(BrokerMode.KRAFT), view.in_mode(BrokerMode.ZOOKEEPER), kraft_owns(view)
    if kraft:
        return never(kraft_left(kraft))
    if plain and owned:
        text = f"Brokers run in ZooKeeper mode while KRaft owns the cluster: {join_ids(plain)}."
        return never(Reason("P07", text))
    # If ZooKeeper owns the cluster, it does not depend on controllers, and a broker failing in migration mode may be why the
    # operator rolls back.
    return brokers if owned else MET


def _only_time_must_pass(decision: Decision) -> bool:
    return isinstance(decision, Done) or (isinstance(decision, Wait) and decision.healthy)


def handover(zk: ZkView, state_epoch: int) -> HandoverWrites:
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


def decide_zookeeper_leads(view: ClusterView) -> Decision:
    """A ZooKeeper broker is controller, every broker names it, and every partition has a leader that it can move."""
    if (ended := over(view)) is not None:
        return ended
    gate = together((names_the_controller(view), gates.epochs_known(view), gates.states_in_reach(view)))
    if not gate.met:
        return unmet(gate)
    if view.partitions is None:
        return unmet(gates.no_leaderless(view))
    if electable := electable_partitions(view):
        return Act(Verb.ELECT, f"{len(electable)} partitions have no leader.")
    controller = zookeeper_controller(view)
    return Done(f"Broker {controller} is the ZooKeeper controller, and every broker names it.{_led_later(view)}")


def electable_partitions(view: ClusterView) -> tuple[Partition, ...]:
    """Partitions without a leader of which a replica in sync answers."""
    answering = {broker.id for broker in view.running_brokers()}
    return tuple(partition for partition in gates.leaderless(view) if answering & set(partition.isr or partition.replicas))


def _led_later(view: ClusterView) -> str:
    """Which partitions wait for a broker that does not answer. A later step starts it, so nothing here may wait for it."""
    waiting = gates.leaderless(view)
    brokers = sorted({broker for partition in waiting for broker in partition.isr or partition.replicas})
    names = summarize(partition.name for partition in sorted(waiting))
    return f" {len(waiting)} partitions have no leader until broker {join_ids(brokers)} is back: {names}." if waiting else ""


def decide_wipe(view: ClusterView, controller_id: int) -> Decision:
    """Set a stopped controller's directories aside, once ZooKeeper owns the cluster again."""
    controller = view.controller(controller_id)
    if (ended := over(view)) is not None:
        return ended
    if kraft_owns(view) or migration_left(view):
        return Refuse((Reason("G30", "The handover to ZooKeeper has not happened yet."),))
    if controller.process.state is ProcessState.RUNNING:
        return Act(Verb.STOP, f"Controller {controller_id} was started after the handover: it would take the cluster over.")
    unread = controller.files.meta is None or controller.files.has_metadata_log is None
    gate = together(
        (controller_down(controller), not_yet_if(unread, could_not_read(f"the directory of controller {controller_id}")))
    )
    if not gate.met or controller.files.meta is None:
        return unmet(gate)
    if empty(controller):
        theirs = config_matrix.foreign_directories(config_matrix.foreign_owners(controller_id, controller.files.meta))
        return Done(f"{theirs}, and stays." if theirs else f"Controller {controller_id} is stopped and its directory is empty.")
    text = f"{', '.join(config_matrix.in_use(controller))} of controller {controller_id}: if started, this old quorum would take the cluster over."
    return Act(Verb.WIPE, text)


def decide_rolled_back(view: ClusterView) -> Decision:
    """The end of the rollback: as before the migration, and ready for another one."""
    if (ended := over(view)) is not None:
        return ended
    left = [broker for broker in view.in_mode(BrokerMode.KRAFT, BrokerMode.MIGRATION, None) if view.brokers[broker].named]
    owned = migration_left(view) or kraft_owns(view)
    unread = sorted(c.id for c in view.controllers.values() if c.files.meta is None or c.files.has_metadata_log is None)
    used = sorted(c.id for c in view.controllers.values() if not empty(c))
    gate = together(
        (
            not_yet_if(left, Reason("G22", f"Brokers that do not answer in ZooKeeper mode: {join_ids(left)}.")),
            not_yet_if(owned, Reason("G30", "KRaft still owns /migration or /controller.")),
            controllers_down(view),
            not_yet_if(unread, could_not_read(f"the directories of controllers {join_ids(unread)}")),
            not_yet_if(used, Reason("G04", f"Controllers whose directories are not empty: {join_ids(used)}.")),
            names_the_controller(view),
            gates.epochs_known(view),
            gates.states_in_reach(view),
            roll.may_stop(view, ()),
        )
    )
    done = f"All {len(view.brokers)} brokers run on ZooKeeper as before; a new migration may start at any time."
    return as_decision(gate, done + gates.after_rollback(view))


_FAILOVER_RESTORES = "`controller_failover` elects a new leader that writes ZooKeeper again, and ends once both are the same. Without a failover it is lost."


NOTHING = Reason("P13", "Nothing to roll back: the cluster shows no trace of a migration.")


def plan(view: ClusterView) -> tuple[str, ...]:
    """What a rollback would do now, step by step, in words; empty if there is nothing to roll back."""
    kraft, plain, unread = (view.in_mode(mode) for mode in (BrokerMode.KRAFT, BrokerMode.ZOOKEEPER, None))
    unnamed = view.unnamed_brokers()
    unresponsive = sorted(set(unread) - set(unnamed))
    owned = kraft_owns(view)
    up = sorted(c.id for c in view.controllers.values() if not c.down)
    unflagged = sorted(c.id for c in view.controllers.values() if c.migration_flag is False) if owned else []
    used = [c for _, c in sorted(view.controllers.items()) if not empty(c) or c.files.meta is None]
    changed = view.brokers.keys() - set(unnamed) - (set() if owned else set(plain))
    steps = (
        (unflagged, f"restart controllers {join_ids(unflagged)} with the migration flag"),
        (owned, "restart the active controller once, so that its successor writes all metadata to ZooKeeper again"),
        (kraft or (owned and plain), f"restart brokers {join_ids(sorted(kraft + plain if owned else kraft))} in migration mode"),
        (up, f"stop controllers {join_ids(up)}, the active one last{_gap(view)}"),
        (owned or migration_left(view), f"hand the cluster over to ZooKeeper: {_transaction(view)}"),
        (
            not owned and not gates.states_in_reach(view).met,
            f"elect a controller that can move every leader: {_transaction(view)}",
        ),
        (used, f"set the directories of controllers aside: {'; '.join(map(_wiped, used))}"),
        (len(plain) < len(view.brokers) - len(unnamed), f"restart brokers {join_ids(sorted(changed))} with their original files"),
    )
    planned = tuple(text for needed, text in steps if needed)
    waits = f"wait for brokers that do not answer now, or start them again: {join_ids(unresponsive)}"
    waits_for_unnamed = f"wait until the brokers that the cluster file does not name have gone: {join_ids(unnamed)} (G39)"
    more = (*([waits] if unresponsive else []), *([waits_for_unnamed] if unnamed else []))
    return (*planned, *more) if planned else planned


def kept(view: ClusterView) -> tuple[str, ...]:
    """What a rollback keeps and loses of the time since the takeover, in words; needs a view of all kinds of metadata."""
    if not readiness.holds_more(view):
        return (f"Kept: everything. {taken_nothing(view)}",)
    unread, missing = equivalence.unread_kinds(view), equivalence.found(view)
    compared = f" Compared now: {equivalence.same(view)}" if not unread and not missing else ""
    both = "topics, settings, quotas, credentials and rules that were made or changed since the takeover"
    features = f"its features (metadata.version {view.metadata_version or 'unknown'})"
    return (
        f"Kept: all records and committed offsets; {both}, as far as ZooKeeper holds them.{compared}",
        *(f"Not known to be kept: {reason.text}" for reason in unread),
        *(f"Differs now: {reason.text} {_FAILOVER_RESTORES}" for reason in missing),
        f"Lost: what only KRaft has: {features}{_metrics(view)}. The controllers' log is set aside, not deleted.",
    )


def changed(view: ClusterView, before: Inventory | None, why: str = "") -> tuple[str, ...]:
    """What was changed since the takeover, and whether ZooKeeper has it, in words. `before` None: it is not known, `why` says why."""
    if not readiness.holds_more(view):
        return ()
    if before is None:
        return (f"Not known: what was changed since the takeover. {why}",)
    found, at = equivalence.changes(view, before), date(round(1000 * before.at))
    by_holding = {"and ZooKeeper has it": True, "and ZooKeeper does not have it": False}
    texts = {text: equivalence.describe_changes(each for each in found if each.held is held) for text, held in by_holding.items()}
    lines = [f"Changed since the backup of {at}, {text}: {listed}." for text, listed in texts.items() if listed]
    lines = lines or [f"Changed since the backup of {at}: nothing that was read."]
    late = [f"changes before {at}, because KRaft may have taken the cluster over before the backup"] if before.late else []
    unknown = [*late, *equivalence.unknown_changes(view)]
    return (*lines, *([f"Not known whether changed: {'; '.join(unknown)}."] if unknown else ()))


def _metrics(view: ClusterView) -> str:
    if view.client_metrics is None:
        return ", and client-metrics subscriptions, which could not be read"
    return f", and the client-metrics subscriptions {summarize(view.client_metrics)}" if view.client_metrics else ""


def _gap(view: ClusterView) -> str:
    """How long no controller runs; nothing depends on one while ZooKeeper owns the cluster."""
    return f"; no controller runs for about {WITHOUT_CONTROLLER:.0f} s" if kraft_owns(view) else ""


def _wiped(controller: Controller) -> str:
    return f"{', '.join(config_matrix.in_use(controller)) or 'not read yet'} of {controller.id}"


def _transaction(view: ClusterView) -> str:
    if not kraft_owns(view) and gates.states_in_reach(view).met:
        return "delete /migration"
    gone = "/migration and /controller" if migration_left(view) else "/controller"
    return f"raise /controller_epoch, delete {gone}, in one transaction"
