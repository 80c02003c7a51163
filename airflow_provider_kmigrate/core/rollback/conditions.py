"""Named conditions of the rollback, as `core.gates` has those of the migration.

The second half (G33, `RollbackTerms`) guards what would be lost with the KRaft controllers. The comparison of `controller_failover` may be days
old by then, and a leading quorum accepts changes that a dead dual-write never delivers. So a controller is stopped only if it is
seen alive and caught up, and both sides are equal. The handover compares once more what can still be read without controllers.

Lag and movement must be checked too: brokers in migration mode do not learn what was not dual-written (measured), so both sides
look equal.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from airflow_provider_kmigrate.core import gates
from airflow_provider_kmigrate.core.decision import Decision, Done, Refuse, Wait
from airflow_provider_kmigrate.core.files import node_files
from airflow_provider_kmigrate.core.files.config_matrix import FileStage, stage_on_disk
from airflow_provider_kmigrate.core.gates import MET, Gate, never, not_yet, together
from airflow_provider_kmigrate.core.metadata import equivalence
from airflow_provider_kmigrate.core.metadata.equivalence import Difference, Kind
from airflow_provider_kmigrate.core.migration import roll, waits
from airflow_provider_kmigrate.core.migration.controllers import unseen
from airflow_provider_kmigrate.core.model import (
    BrokerMode,
    Cause,
    ClusterView,
    Controller,
    Malformed,
    Migration,
    NodeFiles,
    ProcessState,
    Reason,
    ZkController,
    could_not_read,
)
from airflow_provider_kmigrate.core.phase import ended, kraft_owns, malformed, where
from airflow_provider_kmigrate.core.text import join_ids, summarize

STILL_FOR = 2.0  # seconds without a change of /migration; a leader writes every 0.5 s, and every process was seen stopped


def over(view: ClusterView) -> Decision | None:
    """The refusal once no rollback is possible, a wait if that is unknown, None while it is possible."""
    if ended(view):
        text = "The migration is finalized: a rollback to ZooKeeper is not possible."
        return Refuse((Reason("P12", text, cause=Cause.FINALIZED), *where(view).reasons))
    if view.zk is None:
        return Wait((Reason("U01", "ZooKeeper could not be read."), *view.unknowns))
    if isinstance(view.zk.migration, Malformed):
        return Refuse((malformed("P04", "/migration", view.zk.migration.content),))
    if isinstance(view.zk.controller, Malformed):
        return Refuse((malformed("P05", "/controller", view.zk.controller.content),))
    return None


def names_the_controller(view: ClusterView) -> Gate:
    """G11: every broker that answers names the ZooKeeper controller of /controller."""
    controller = roll.zookeeper_controller(view)
    if controller is None or view.zk is None or controller not in view.zk.broker_ids:
        return not_yet(Reason("G28", "No ZooKeeper controller is elected yet."))
    others = {
        b.id: b.controller_id for b in view.running_brokers() if b.mode is not BrokerMode.KRAFT and b.controller_id != controller
    }
    if not others:
        return MET
    text = f"Not every broker names ZooKeeper controller {controller}: {', '.join(f'{b} names {c}' for b, c in sorted(others.items()))}."
    return not_yet(Reason("G28", text))


def with_mode(view: ClusterView, mode: BrokerMode) -> list[int]:
    """Ids of the brokers that answer in this mode."""
    return sorted(broker.id for broker in view.brokers.values() if broker.mode is mode)


def kraft_left(kraft: list[int]) -> Reason:
    """G27: brokers that are still in KRaft mode."""
    text = f"Brokers still run in KRaft mode: {join_ids(kraft)}."
    return Reason("G27", text)


def controllers_silent(view: ClusterView) -> Gate:
    """No controller answers. One that was started again would have written /migration, which is checked too."""
    answering = sorted(c.id for c in view.controllers.values() if c.answers)
    if not answering:
        return MET
    return never(Reason("G26", f"Controllers answer: {join_ids(answering)}."))


def controllers_down(view: ClusterView) -> Gate:
    """G26: every controller is stopped."""
    return together(controller_down(view.controllers[controller]) for controller in sorted(view.controllers))


def controller_down(controller: Controller) -> Gate:
    """G26: this controller is stopped, and its endpoint does not answer."""
    if controller.process.state is ProcessState.STOPPED and not controller.answers:
        return MET
    text = f"Controller {controller.id} is not stopped: its process is {controller.process.state}."
    reason = Reason("G26", text)
    return never(reason) if controller.answers else not_yet(reason)


def nothing_ended(view: ClusterView) -> Gate:
    """R12: no stopped controller has final properties.

    One that led with them has finalized, and no other node could report it.
    """
    if not kraft_owns(view):
        return MET
    controllers = [controller for _, controller in sorted(view.controllers.items())]
    final = [c for c in controllers if stage_on_disk(c.files) is FileStage.CONTROLLER_FINAL]
    unread = [c.id for c in controllers if c.files == NodeFiles()]  # a missing file is no final one
    if final or not unread:
        return never(unseen(view, final[0])) if final else MET
    return not_yet(could_not_read(f"the files of controllers {join_ids(unread)}"))


def migration_still(view: ClusterView, first: ClusterView) -> Gate:
    """G29: no controller has written /migration for `STILL_FOR` seconds since `first`."""
    if view.zk is None or first.zk is None:
        return not_yet(could_not_read("ZooKeeper"))
    if view.zk.migration != first.zk.migration:
        text = "/migration still changes, although every controller of the cluster file is stopped."
        return never(Reason("G29", text))
    if view.taken_at - first.taken_at < STILL_FOR:
        return not_yet(
            Reason("T01", "Watching /migration for a moment: no controller may write it any more.", cause=Cause.HANDOVER_OBSERVED)
        )
    return MET


def states_in_reach(view: ClusterView) -> Gate:
    """G2: leaders can move. Metadata looks healthy even if they cannot; the epochs show it."""
    epoch = view.zk.controller_epoch if view.zk else None
    if view.state_epoch is None or epoch is None or view.state_epoch <= epoch:
        return MET
    text = f"A partition's state has epoch {view.state_epoch}, /controller_epoch is {epoch}."
    return never(Reason("G02", text))


def others_answer(view: ClusterView, controller_id: int) -> Gate:
    """G23: every other controller answers, so the quorum can spare this one."""
    silent = sorted(c.id for c in view.controllers.values() if not c.answers and c.id != controller_id)
    if not silent:
        return MET
    return not_yet(Reason("G23", f"Controllers that do not answer: {join_ids(silent)}."))


def migration_left(view: ClusterView) -> bool:
    """Whether /migration exists."""
    return view.zk is not None and view.zk.migration is not None


def empty(controller: Controller) -> bool:
    """Whether a controller's own directories hold neither a format nor a metadata log; another node's do not count."""
    if controller.files.meta is None:
        return not controller.files.has_metadata_log
    return not node_files.in_use(controller)


@dataclass(frozen=True, slots=True)
class RollbackTerms:
    """What a rollback accepts.

    `failover` false: no new leader writes ZooKeeper again, so the dual-write need not be alive. `lossy`: the operator who asked
    for that accepts to lose what ZooKeeper misses.
    """

    failover: bool = True
    lossy: bool = False

    @property
    def accepts(self) -> bool:
        """Whether the run accepts to lose what ZooKeeper misses; counts only without a failover."""
        return self.lossy and not self.failover


SAFE = RollbackTerms()


def terms_error(accept_loss: str, cluster_id: str, *, failover: bool) -> Reason | None:
    """G35: why the requested acceptance of a loss is not valid; None if it is, or none was requested."""
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
    if not holds_more(view):
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
    if not holds_more(view) or terms.accepts:
        return MET
    strict = not _quorum_gone(view)
    moving = (gates.dual_write_alive(view, before), gates.lag_below(view, gates.MOST_LAG)) if strict and terms.failover else ()
    differing = (*_unread(view, strict=strict and (terms.failover or _kraft_reportable(view))), *_found(view))
    return _said(together((*moving, not_yet(*differing) if differing else MET)))


def before_handover(view: ClusterView, first: ClusterView, terms: RollbackTerms) -> Gate:
    """G33: brokers, which KRaft informed last, hold the same topics as ZooKeeper.

    Never, if two observations show the same difference.
    """
    if not holds_more(view) or terms.accepts:
        return MET
    pair = [_more(_topics(each)) for each in (first, view)]
    lasting = equivalence.reasons(equivalence.lasting_differences(*pair))
    if lasting:
        return _said(never(*lasting))
    now = (*_unread(view, strict=False), *equivalence.reasons(pair[1]))
    return _said(not_yet(*now)) if now else MET


def _topics(view: ClusterView) -> tuple[Difference, ...]:
    return equivalence.compare(*view.topics, view.zk.pending_deletions if view.zk else ()) if view.topics else ()


def _found(view: ClusterView) -> tuple[Reason, ...]:
    """`equivalence.found`; without a quorum, minus the topics that the queried broker does not know."""
    found = equivalence.differences(view)
    return equivalence.reasons(_more(found) if _no_node_reports(view) else found)


def _more(found: Iterable[Difference]) -> tuple[Difference, ...]:
    """What KRaft has more, or otherwise. A broker started without a leading controller misses topics; that is no loss."""
    return tuple(difference for difference in found if difference.kind is not Kind.MISSING_TOPIC)


def _no_node_reports(view: ClusterView) -> bool:
    return _quorum_gone(view) or not _kraft_reportable(view)


def _unknown_topics(view: ClusterView) -> str:
    missing = [difference.entity for difference in _topics(view) if difference.kind is Kind.MISSING_TOPIC and difference.counts]
    return f" The broker that was asked does not know {len(missing)} of them: {summarize(missing)}." if missing else ""


def holds_more(view: ClusterView) -> bool:
    """Whether KRaft may hold what ZooKeeper does not: it has taken the copy over, and no ZooKeeper broker is known to be controller.

    If /controller was deleted or could not be read, the owner is unknown: both sides are compared.
    """
    if view.zk is None:
        return True
    migration, controller = view.zk.migration, view.zk.controller
    of_zookeeper = isinstance(controller, ZkController) and not controller.is_kraft
    return not of_zookeeper and isinstance(migration, Migration) and migration.metadata_offset > 0


def taken_nothing(view: ClusterView) -> str:
    """Why nothing can be lost, if KRaft does not hold more."""
    if kraft_owns(view):
        return "KRaft has taken nothing over: no copy of ZooKeeper was ever finished."
    return "ZooKeeper owns the cluster, and KRaft has taken nothing over."


def _quorum_gone(view: ClusterView) -> bool:
    """Whether so many controllers are known to be stopped that no majority is left; an unresponsive one is not known to be."""
    stopped = sum(c.process.state is ProcessState.STOPPED and not c.answers for c in view.controllers.values())
    return 2 * (len(view.controllers) - stopped) <= len(view.controllers)


def _kraft_reportable(view: ClusterView) -> bool:
    """Whether any node can report KRaft's side of all kinds."""
    kraft = any(broker.mode is BrokerMode.KRAFT for broker in view.brokers.values())
    return kraft or any(controller.answers for controller in view.controllers.values())


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


def _said(gate: Gate) -> Gate:
    if gate.met:
        return gate
    text = "ZooKeeper is not known to hold all that KRaft holds."
    return Gate(gate.standing, (Reason("G33", text), *gate.reasons))
