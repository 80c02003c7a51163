"""What would be lost with the KRaft controllers, asked by the acts that end them: the comparison of `heal` may be days old by then.

A quorum that leads takes changes that ZooKeeper need not get: a dual-write dies without a word. So each controller is stopped only on a
look that shows it alive, caught up, and both sides equal; the hand-over compares once more what is still told without controllers.

Movement and lag carry it: what was not dual-written, brokers in migration mode are not told of either (measured), so that both sides look equal.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from airflow_provider_kmigrate.core import gates
from airflow_provider_kmigrate.core.decision import Decision, Done, Wait
from airflow_provider_kmigrate.core.forward import waiting
from airflow_provider_kmigrate.core.gates import MET, Gate, never, not_yet, together
from airflow_provider_kmigrate.core.listing import summarize
from airflow_provider_kmigrate.core.metadata import equivalence, kinds
from airflow_provider_kmigrate.core.metadata.equivalence import Difference, Kind
from airflow_provider_kmigrate.core.model import BrokerMode, ClusterView, Migration, ProcessState, Reason, ZkController
from airflow_provider_kmigrate.core.phase import ended, kraft_owns


@dataclass(frozen=True, slots=True)
class RollbackTerms:
    """On what terms a way back goes.

    `failover` false: no new leader writes ZooKeeper anew, so the dual-write need not live. `lossy`: whoever asked for that accepts to lose what
    ZooKeeper lacks.
    """

    failover: bool = True
    lossy: bool = False

    @property
    def accepts(self) -> bool:
        return self.lossy and not self.failover


SAFE = RollbackTerms()


def terms_error(accept_loss: str, cluster_id: str, *, failover: bool) -> Reason | None:
    """G35: a loss is to be accepted, and would not be as it was asked; None where it would, or nothing was asked."""
    if not accept_loss or (accept_loss == cluster_id and not failover):
        return None
    wrong = [] if accept_loss == cluster_id else [f"is {accept_loss!r}, and not the cluster id {cluster_id!r}"]
    wrong += ["counts only together with `skip_failover`, which was not asked for"] if failover else []
    wanted = f'{{"skip_failover": true, "accept_loss": "{cluster_id}"}}'
    return Reason("G35", f"`accept_loss` {', and '.join(wrong)}. The conf would be {wanted}.")


def compared(view: ClusterView, terms: RollbackTerms) -> Decision:
    """`waiting.equivalent`; without a failover a kind that nobody is there to tell does not count, and a loss may be accepted."""
    if ended(view) or (terms.failover and (view.zk is None or kraft_owns(view))):
        return waiting.equivalent(view)
    if not holds_more(view):
        return Done(taken_nothing(view))
    found = _found(view)
    if terms.accepts:
        lost = " ".join(reason.text for reason in (*found, *_unread(view, strict=True))) or "nothing that can be seen."
        return Done(f"The run's conf accepts to lose for good: {lost}")
    reasons = (*_unread(view, strict=terms.failover or _somebody_tells(view)), *found)
    return Wait(reasons) if reasons else Done(f"{kinds.same(view)}{_unheard(view)}")


def before_stop(view: ClusterView, before: ClusterView, terms: RollbackTerms) -> Gate:
    """G33: ZooKeeper holds what KRaft does, right now; met where ZooKeeper owns the cluster, or no copy was ever finished.

    Once a majority is stopped nothing new is taken, and a dual-write has no leader any more: then only what is told must be equal.
    """
    if not holds_more(view) or terms.accepts:
        return MET
    strict = not _quorum_gone(view)
    moving = (gates.dual_write_alive(view, before), gates.lag_below(view, gates.MOST_LAG)) if strict and terms.failover else ()
    differing = (*_unread(view, strict=strict and (terms.failover or _somebody_tells(view))), *_found(view))
    return _said(together((*moving, not_yet(*differing) if differing else MET)))


def before_hand_over(view: ClusterView, first: ClusterView, terms: RollbackTerms) -> Gate:
    """G33: brokers, which KRaft told last, know no topic otherwise than ZooKeeper holds it; never, where two looks agree on it."""
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
    """`kinds.found`; where no quorum tells brokers anything, without the topics that the one that was asked has not heard of."""
    found = kinds.differences(view)
    return equivalence.reasons(_more(found) if _told_no_more(view) else found)


def _more(found: Iterable[Difference]) -> tuple[Difference, ...]:
    """What KRaft has more, or otherwise. A broker that was started when no controller led lacks topics, which are no loss."""
    return tuple(difference for difference in found if difference.kind is not Kind.MISSING_TOPIC)


def _told_no_more(view: ClusterView) -> bool:
    return _quorum_gone(view) or not _somebody_tells(view)


def _unheard(view: ClusterView) -> str:
    missing = [difference.entity for difference in _topics(view) if difference.kind is Kind.MISSING_TOPIC and difference.counts]
    return f" The broker that was asked has not heard of {len(missing)} of them: {summarize(missing)}." if missing else ""


def holds_more(view: ClusterView) -> bool:
    """Whether KRaft may hold what ZooKeeper does not: it has taken the copy over, and no ZooKeeper broker is known to be controller.

    Where nobody is, because /controller was deleted or could not be read, it is unknown whose turn it is: both sides are compared.
    """
    if view.zk is None:
        return True
    migration, controller = view.zk.migration, view.zk.controller
    of_zookeeper = isinstance(controller, ZkController) and not controller.is_kraft
    return not of_zookeeper and isinstance(migration, Migration) and migration.metadata_offset > 0


def taken_nothing(view: ClusterView) -> str:
    """Why nothing can be lost, where KRaft does not hold more."""
    if kraft_owns(view):
        return "KRaft has taken nothing over: no copy of ZooKeeper was ever finished."
    return "ZooKeeper owns the cluster, and KRaft has taken nothing over."


def _quorum_gone(view: ClusterView) -> bool:
    """So many controllers are known to be stopped that the others are no majority; a silent one is not known to be."""
    stopped = sum(c.process.state is ProcessState.STOPPED and not c.answers for c in view.controllers.values())
    return 2 * (len(view.controllers) - stopped) <= len(view.controllers)


def _somebody_tells(view: ClusterView) -> bool:
    """Whether anybody is there who could tell KRaft's side of all kinds."""
    kraft = any(broker.mode is BrokerMode.KRAFT for broker in view.brokers.values())
    return kraft or any(controller.answers for controller in view.controllers.values())


def _unread(view: ClusterView, *, strict: bool) -> tuple[Reason, ...]:
    """What was not read: all kinds, or only the topics, which brokers always tell, unless they were started when no controller led."""
    unread = kinds.unread_kinds(view)
    topics = unread[:1] if view.topics is None else ()
    return (*(unread if strict else topics), *_told_nothing(view))


def _told_nothing(view: ClusterView) -> tuple[Reason, ...]:
    zookeeper, kraft = view.topics or ({}, {})
    if kraft or not zookeeper or not _told_no_more(view):
        return ()
    text = (
        f"The broker that was asked knows no topic, ZooKeeper holds {len(zookeeper)}: it was told of none since it was started."
    )
    return (Reason("G00", text),)


def _said(gate: Gate) -> Gate:
    if gate.met:
        return gate
    text = "ZooKeeper is not seen to hold all that KRaft does."
    return Gate(gate.standing, (Reason("G33", text), *gate.reasons))
