"""Where a cluster is between ZooKeeper and KRaft, and what may be done there.

Two things are kept apart: the *phase*, always inferred from what the cluster shows (`where`), and the *intent* of a step. `TABLE`
says for each pair whether that kind of step may act, has nothing to do, must wait or must be refused. It is total, so no pair is
unforeseen. A phase that claims something of all brokers is only given when every broker was seen.

Sources: KIP-866 as shipped in 3.9 (KRaftMigrationDriver), and the states seen on real brokers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from airflow_provider_kmigrate.core.model import (
    BrokerMode,
    Cause,
    ClusterView,
    Malformed,
    Reason,
    ZkController,
    ZkView,
)
from airflow_provider_kmigrate.core.text import join_ids


class Phase(StrEnum):
    """Positions in the order of the migration, then the states that must never be."""

    ZOOKEEPER = "zookeeper"  # no migration under way
    PRE_MIGRATION = "pre-migration"  # controllers up, no broker knows them
    FIRST_ROLL = "first roll"  # some brokers in migration mode, nothing copied yet
    COPY = "copy"  # every broker in migration mode, the copy is not finished
    DUAL_WRITE_ZOOKEEPER = "dual-write, all brokers on ZooKeeper"
    HYBRID = "hybrid"  # some brokers KRaft, some still ZooKeeper brokers in migration mode
    DUAL_WRITE = "dual-write, all brokers KRaft"
    FINALIZING = "finalizing"  # some controllers already without the flag, none of them active yet
    FINALIZED = "finalized"  # no rollback any more
    UNKNOWN = "unknown"
    STALE = "stale /migration"  # ZooKeeper owns the cluster, but /migration is of an earlier migration
    SPLIT = "split"  # a broker in ZooKeeper mode beside a KRaft controller that owns the cluster
    LEFT_BEHIND = "left behind"  # finalized with a ZooKeeper-mode broker left


class Intent(StrEnum):
    """What a step wants to do."""

    PROVISION = "provision controllers"
    TO_MIGRATION = "move brokers into migration mode"
    COPY = "wait for the copy"
    TO_KRAFT = "move brokers to KRaft"
    SOAK = "soak in dual-write"
    FINALIZE = "finalize"


class PhasePermit(StrEnum):
    """The table's answer."""

    ACT = "act"
    DONE = "done"
    WAIT = "wait"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class ClusterPosition:
    """The phase, and the sentences that led to it."""

    phase: Phase
    reasons: tuple[Reason, ...] = ()


ASIDE = frozenset({Phase.UNKNOWN, Phase.STALE, Phase.SPLIT, Phase.LEFT_BEHIND})
"""Phases that are not in the order of the migration."""

#: For each intent, one letter a phase, in the order of `Phase`: A act, D done, W wait, R refuse. Of the last three only this is
#: allowed: to roll a broker that is isolated or was left behind, at once. A cluster with one left behind has passed the steps
#: before that roll, so a whole run gets there.
_ROWS = {
    Intent.PROVISION: "AADDDDDDD WRRD",
    Intent.TO_MIGRATION: "RAADDDDDD WRAD",
    Intent.COPY: "RRWWDDDDD WRRD",
    Intent.TO_KRAFT: "RRRWAADDD WRRA",
    Intent.SOAK: "RRRRRRADD WRRR",
    Intent.FINALIZE: "RRRRRRAAD WRRR",
}
_LETTERS = {"A": PhasePermit.ACT, "D": PhasePermit.DONE, "W": PhasePermit.WAIT, "R": PhasePermit.REFUSE}
TABLE: dict[tuple[Phase, Intent], PhasePermit] = {
    (phase, intent): _LETTERS[letter]
    for intent, row in _ROWS.items()
    for phase, letter in zip(Phase, row.replace(" ", ""), strict=True)
}


COPIED = tuple(phase for phase in Phase if TABLE[phase, Intent.COPY] is PhasePermit.DONE)
"""The phases in which the copy is over."""


def malformed(zk: ZkView) -> tuple[Reason, ...]:
    """P04 or P05: a znode that names the owner of the cluster, but not as Kafka writes it; empty if there is none."""
    if isinstance(zk.migration, Malformed):
        return (Reason("P04", f"/migration is malformed: {zk.migration.content!r}."),)
    if isinstance(zk.controller, Malformed):
        return (Reason("P05", f"/controller is malformed: {zk.controller.content!r}."),)
    return ()


def permit(position: ClusterPosition, intent: Intent) -> PhasePermit:
    """What `TABLE` says of a step here; a broker that does not respond for now turns a refusal into a wait."""
    allowed = TABLE[position.phase, intent]
    unresponsive = any(reason.cause in {Cause.BROKER_UNRESPONSIVE, Cause.UNNAMED_BROKER} for reason in position.reasons)
    waits = unresponsive and allowed is PhasePermit.REFUSE and position.phase not in ASIDE
    return PhasePermit.WAIT if waits else allowed


def refusal(position: ClusterPosition, intent: Intent) -> tuple[Reason, ...]:
    """Why `intent` does not fit here, in words; the position's own reasons follow."""
    text = f"The cluster is in phase '{position.phase}'; in this phase it is not possible to {intent}."
    return (Reason("P01", text), *position.reasons)


@lru_cache(maxsize=4)  # one decision asks some eight times
def where(view: ClusterView) -> ClusterPosition:
    """The phase that the view shows; `Phase.UNKNOWN` with reasons if it does not show one."""
    for rule in (_finalized, _unread_or_stale, _split, _dual_write, _before_copy):
        position = rule(view)
        if position is not None:
            return position
    return _before_kraft(view)


def alarms(view: ClusterView) -> tuple[Reason, ...]:
    """Alarms for states that no step may leave: report them at once; the operator must act."""
    position = where(view)
    never = position.reasons if position.phase in {Phase.STALE, Phase.SPLIT, Phase.LEFT_BEHIND} else ()
    return (*_unflagged_alarm(view), *never)


def _finalized(view: ClusterView) -> ClusterPosition | None:
    everywhere = {controller.migration_flag for controller in view.controllers.values()} == {False}
    if not _copied(view) or not (everywhere or _leads_with_flag(view) is False) or not _kraft_had_it(view):
        return None
    if left := view.in_mode(BrokerMode.ZOOKEEPER, BrokerMode.MIGRATION):
        text = f"Brokers are still in ZooKeeper mode after finalization: {join_ids(left)}."
        return ClusterPosition(Phase.LEFT_BEHIND, (Reason("P02", text, cause=Cause.LEFT_BEHIND),))
    if not everywhere:
        return None
    unresponsive = unresponsive_brokers(view)
    return ClusterPosition(Phase.UNKNOWN if unresponsive else Phase.FINALIZED, unresponsive)


def _unread_or_stale(view: ClusterView) -> ClusterPosition | None:
    if view.zk is None:
        return ClusterPosition(Phase.UNKNOWN, (Reason("U01", "ZooKeeper could not be read."), *view.unknowns))
    if unreadable := malformed(view.zk):
        return ClusterPosition(Phase.UNKNOWN, unreadable)
    migration, controller = view.migration, view.zk.controller
    if migration is None or migration.metadata_offset <= 0 or kraft_owns(view):
        return None
    if isinstance(controller, ZkController):
        text = f"/migration holds offset {migration.metadata_offset}, but ZooKeeper controller {controller.broker_id} owns the cluster."
        return ClusterPosition(Phase.STALE, (Reason("P06", text),))
    return None if _kraft_had_it(view) else ClusterPosition(Phase.UNKNOWN, (Reason("P05", "/controller is absent."),))


def _split(view: ClusterView) -> ClusterPosition | None:
    plain = view.in_mode(BrokerMode.ZOOKEEPER)
    if not plain or not _kraft_had_it(view):
        return None
    text = f"Brokers run in ZooKeeper mode while a KRaft controller owns the cluster: {join_ids(plain)}."
    return ClusterPosition(Phase.SPLIT, (Reason("P07", text),))


def _dual_write(view: ClusterView) -> ClusterPosition | None:
    if not _copied(view):
        return None
    kraft, migrating = view.in_mode(BrokerMode.KRAFT), view.in_mode(BrokerMode.MIGRATION)
    if view.in_mode(None) and not (kraft and migrating):
        return ClusterPosition(Phase.HYBRID if kraft or migrating else Phase.UNKNOWN, unresponsive_brokers(view))
    if migrating:
        return ClusterPosition(Phase.HYBRID if kraft else Phase.DUAL_WRITE_ZOOKEEPER)
    if without := _without_flag(view):
        text = f"Controllers that answer without the migration flag: {join_ids(without)}."
        return ClusterPosition(Phase.FINALIZING, (Reason("G05", text),))
    return ClusterPosition(Phase.DUAL_WRITE)


def _before_copy(view: ClusterView) -> ClusterPosition | None:
    if view.in_mode(BrokerMode.KRAFT):
        text = "A broker runs in KRaft mode, but /migration shows no finished copy."
        return ClusterPosition(Phase.UNKNOWN, (Reason("P09", text),))
    if not view.in_mode(BrokerMode.MIGRATION):
        return None
    under_way = view.in_mode(BrokerMode.ZOOKEEPER, None)
    return ClusterPosition(Phase.FIRST_ROLL if under_way else Phase.COPY, unresponsive_brokers(view))


def _before_kraft(view: ClusterView) -> ClusterPosition:
    if view.brokers and len(view.in_mode(None)) == len(view.brokers):
        return ClusterPosition(Phase.UNKNOWN, unresponsive_brokers(view))
    if any(controller.answers for controller in view.controllers.values()):
        return ClusterPosition(Phase.PRE_MIGRATION, unresponsive_brokers(view))
    return ClusterPosition(Phase.ZOOKEEPER, (*unresponsive_brokers(view), *_unreached(view)))


def _unreached(view: ClusterView) -> tuple[Reason, ...]:
    """Controllers wrote /migration when they started, but none answers now: being unresponsive does not prove that none exist."""
    if view.migration is None:
        return ()
    text = f"Controllers that did not answer, although /migration shows that they were started: {join_ids(sorted(view.controllers))}."
    return (_unresponsive(text),)


def _unflagged_alarm(view: ClusterView) -> tuple[Reason, ...]:
    migrating = view.in_mode(BrokerMode.MIGRATION)
    if where(view).phase is Phase.LEFT_BEHIND or (ended(view) and not migrating):
        return ()  # it has happened; the flag would change nothing now
    without, with_flag = _without_flag(view), [c.id for c in view.controllers.values() if c.migration_flag]
    if not without or not (with_flag or migrating):
        return ()
    return (Reason("G05", f"Controllers without the migration flag: {join_ids(without)}.", cause=Cause.UNFLAGGED_CONTROLLER),)


def _copied(view: ClusterView) -> bool:
    if view.zk is None:  # gone after finalization; KRaft brokers cannot exist without a finished copy
        return bool(view.in_mode(BrokerMode.KRAFT))
    return view.migration is not None and view.migration.metadata_offset > 0


def ended(view: ClusterView) -> bool:
    """Whether the finalization has happened, even if a broker or a flag is left behind: no dual-write and no rollback any more.

    A leader without the flag is enough: once elected it has finalized a migration whose copy was over, at once (measured).
    """
    return where(view).phase in {Phase.FINALIZED, Phase.LEFT_BEHIND} or (_leads_with_flag(view) is False and _kraft_had_it(view))


def _leads_with_flag(view: ClusterView) -> bool | None:
    """Whether the quorum's leader has the migration flag; None if there is no leader, or its flag is unknown."""
    return view.controller(view.quorum.leader_id).migration_flag if view.quorum else None


def ending(view: ClusterView) -> bool:
    """Whether the finalization has begun, or has happened."""
    return ended(view) or where(view).phase is Phase.FINALIZING


def flags_taken_by_us(view: ClusterView) -> bool:
    """Whether kmigrate's own finalization, by our note, took every missing flag."""
    return view.zk is not None and set(_without_flag(view)) <= view.zk.unflagged


def still_open(view: ClusterView) -> bool:
    """Whether the migration is proven not to be finalized.

    Proof: a leader with the flag has dual-written since its election, or no copy was ever finished. A finalized quorum never
    writes /migration again, whichever controller leads it, with or without the flag. Without proof it is unknown.
    """
    if view.zk is None or isinstance(view.zk.migration, Malformed):
        return False
    if not _copied(view):
        return not view.in_mode(BrokerMode.KRAFT)
    migration, quorum = view.migration, view.quorum
    writes = quorum is not None and migration is not None and migration.metadata_epoch == quorum.leader_epoch
    return kraft_owns(view) and writes and _leads_with_flag(view) is True


def kraft_owns(view: ClusterView) -> bool:
    """Whether /controller names a KRaft controller."""
    controller = view.zk.controller if view.zk else None
    return isinstance(controller, ZkController) and controller.is_kraft


def zookeeper_controller(view: ClusterView) -> int | None:
    """The broker that is the ZooKeeper controller; None if KRaft owns the cluster, or the owner is not known."""
    controller = view.zk.controller if view.zk else None
    return controller.broker_id if isinstance(controller, ZkController) and not controller.is_kraft else None


def _kraft_had_it(view: ClusterView) -> bool:
    """Whether KRaft owns the cluster or a broker; otherwise a /migration with a copy may be of an earlier migration."""
    return kraft_owns(view) or bool(view.in_mode(BrokerMode.KRAFT))


def _without_flag(view: ClusterView) -> list[int]:
    return sorted(c.id for c in view.controllers.values() if c.answers and c.migration_flag is False)


def unresponsive_brokers(view: ClusterView) -> tuple[Reason, ...]:
    """R01, if brokers did not answer; G36, if the cluster file does not name them, so that they were not asked."""
    unresponsive = [broker for broker in view.in_mode(None) if view.brokers[broker].named]
    found = (_unresponsive(f"Brokers that did not answer: {join_ids(unresponsive)}."),) if unresponsive else ()
    return (*found, *unnamed_brokers(view))


def unnamed_brokers(view: ClusterView) -> tuple[Reason, ...]:
    """G36 or G39, if ZooKeeper or a broker lists brokers that the cluster file does not name: before KRaft owns the cluster, and after."""
    found = view.unnamed_brokers()
    text = f"Brokers that the cluster file does not name: {join_ids(found)}. kmigrate neither restarts them nor knows their mode."
    return (Reason("G39" if kraft_owns(view) else "G36", text, cause=Cause.UNNAMED_BROKER),) if found else ()


def _unresponsive(text: str) -> Reason:
    return Reason("R01", text, cause=Cause.BROKER_UNRESPONSIVE)
