"""Where a cluster is between ZooKeeper and KRaft, and what may be done there.

Two things are kept apart: the *phase*, always inferred from what the cluster shows (`where`), and the *intent* of a step. `TABLE`
says for each pair whether that kind of step may act, has nothing to do, must wait or must be refused. It is total, so no pair is
unforeseen. A phase that claims something of all brokers is only given when every broker was seen.

Sources: KIP-866 as shipped in 3.9 (KRaftMigrationDriver), and the states seen on real brokers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from airflow_provider_kmigrate.core.model import (
    BrokerMode,
    Cause,
    ClusterView,
    Malformed,
    Migration,
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


_FORWARD = (
    Phase.ZOOKEEPER,
    Phase.PRE_MIGRATION,
    Phase.FIRST_ROLL,
    Phase.COPY,
    Phase.DUAL_WRITE_ZOOKEEPER,
    Phase.HYBRID,
    Phase.DUAL_WRITE,
    Phase.FINALIZING,
    Phase.FINALIZED,
)

#: For each intent, one letter a phase of `_FORWARD`: A act, D done, W wait, R refuse.
_ROWS = {
    Intent.PROVISION: "AADDDDDDD",
    Intent.TO_MIGRATION: "RAADDDDDD",
    Intent.COPY: "RRWWDDDDD",
    Intent.TO_KRAFT: "RRRWAADDD",
    Intent.SOAK: "RRRRRRADD",
    Intent.FINALIZE: "RRRRRRAAD",
}

_LETTERS = {"A": PhasePermit.ACT, "D": PhasePermit.DONE, "W": PhasePermit.WAIT, "R": PhasePermit.REFUSE}

#: Outside the forward path only one act is allowed: recover a broker that was left behind by rolling it at once. The cluster has
#: passed the steps before that roll, so a whole run gets there.
_ASIDE = {
    (Phase.LEFT_BEHIND, Intent.PROVISION): PhasePermit.DONE,
    (Phase.LEFT_BEHIND, Intent.TO_MIGRATION): PhasePermit.DONE,
    (Phase.LEFT_BEHIND, Intent.COPY): PhasePermit.DONE,
    (Phase.LEFT_BEHIND, Intent.TO_KRAFT): PhasePermit.ACT,
    (Phase.SPLIT, Intent.TO_MIGRATION): PhasePermit.ACT,
}

TABLE: dict[tuple[Phase, Intent], PhasePermit] = {
    (phase, intent): _LETTERS[letter] for intent, row in _ROWS.items() for phase, letter in zip(_FORWARD, row, strict=True)
}
TABLE.update(
    ((phase, intent), _ASIDE.get((phase, intent), PhasePermit.WAIT if phase is Phase.UNKNOWN else PhasePermit.REFUSE))
    for phase in Phase
    if phase not in _FORWARD
    for intent in Intent
)


def malformed(code: str, path: str, content: str) -> Reason:
    """P04 or P05: a znode that names the owner of the cluster, but not as Kafka writes it."""
    return Reason(code, f"{path} is malformed: {content!r}.")


def permit(position: ClusterPosition, intent: Intent) -> PhasePermit:
    """What `TABLE` says of a step here; a broker that does not respond for now turns a refusal into a wait."""
    allowed = TABLE[position.phase, intent]
    unresponsive = position.phase in _FORWARD and any(reason.cause is Cause.BROKER_UNRESPONSIVE for reason in position.reasons)
    return PhasePermit.WAIT if unresponsive and allowed is PhasePermit.REFUSE else allowed


def refusal(position: ClusterPosition, intent: Intent) -> tuple[Reason, ...]:
    """Why `intent` does not fit here, in words; the position's own reasons follow."""
    text = f"The cluster is in phase '{position.phase}'; in this phase it is not possible to {intent}."
    return (Reason("P01", text), *position.reasons)


def where(view: ClusterView) -> ClusterPosition:
    """The phase that the view shows; `Phase.UNKNOWN` with reasons if it does not show one."""
    for rule in (_finalized, _no_zookeeper, _stale, _split, _dual_write, _before_copy):
        position = rule(view)
        if position is not None:
            return position
    return _before_kraft(view)


def alarms(view: ClusterView) -> tuple[Reason, ...]:
    """What must never be in any step: show it at once; the operator must act."""
    return tuple(reason for rule in _ALARMS for reason in rule(view))


def _finalized(view: ClusterView) -> ClusterPosition | None:
    everywhere = {controller.migration_flag for controller in view.controllers.values()} == {False}
    if not _copied(view) or not (everywhere or _led_without_flag(view)) or not _kraft_had_it(view):
        return None
    left = _with_mode(view, BrokerMode.ZOOKEEPER, BrokerMode.MIGRATION)
    if left:
        text = f"Brokers are still in ZooKeeper mode after finalization: {join_ids(left)}."
        return ClusterPosition(Phase.LEFT_BEHIND, (Reason("P02", text, cause=Cause.LEFT_BEHIND),))
    if not everywhere:
        return None
    unresponsive = _unresponsive_ids(view)
    return ClusterPosition(Phase.UNKNOWN, unresponsive_brokers(view)) if unresponsive else ClusterPosition(Phase.FINALIZED)


def _no_zookeeper(view: ClusterView) -> ClusterPosition | None:
    if view.zk is not None:
        return None
    return ClusterPosition(Phase.UNKNOWN, (Reason("U01", "ZooKeeper could not be read."), *view.unknowns))


def _stale(view: ClusterView) -> ClusterPosition | None:
    zk = _zk(view)
    if isinstance(zk.migration, Malformed):
        return ClusterPosition(Phase.UNKNOWN, (malformed("P04", "/migration", zk.migration.content),))
    if isinstance(zk.controller, Malformed):
        return ClusterPosition(Phase.UNKNOWN, (malformed("P05", "/controller", zk.controller.content),))
    if zk.migration is None or zk.migration.metadata_offset <= 0 or kraft_owns(view):
        return None
    if zk.controller is None and _kraft_had_it(view):
        return None
    if zk.controller is None:
        return ClusterPosition(Phase.UNKNOWN, (Reason("P05", "/controller is absent."),))
    text = f"/migration holds offset {zk.migration.metadata_offset}, but ZooKeeper controller {zk.controller.broker_id} owns the cluster."
    return ClusterPosition(Phase.STALE, (Reason("P06", text),))


def _split(view: ClusterView) -> ClusterPosition | None:
    plain = _with_mode(view, BrokerMode.ZOOKEEPER)
    if not plain or not (kraft_owns(view) or _with_mode(view, BrokerMode.KRAFT)):
        return None
    text = f"Brokers run in plain ZooKeeper mode while a KRaft controller owns the cluster: {join_ids(plain)}."
    return ClusterPosition(Phase.SPLIT, (Reason("P07", text),))


def _dual_write(view: ClusterView) -> ClusterPosition | None:
    if not _copied(view):
        return None
    unresponsive, kraft = _unresponsive_ids(view), _with_mode(view, BrokerMode.KRAFT)
    migrating = _with_mode(view, BrokerMode.MIGRATION)
    if unresponsive and not (kraft and migrating):
        return ClusterPosition(Phase.HYBRID if kraft or migrating else Phase.UNKNOWN, unresponsive_brokers(view))
    if migrating:
        return ClusterPosition(Phase.HYBRID if kraft else Phase.DUAL_WRITE_ZOOKEEPER)
    return _all_kraft(view)


def _all_kraft(view: ClusterView) -> ClusterPosition:
    without = _without_flag(view)
    if not without:
        return ClusterPosition(Phase.DUAL_WRITE)
    text = f"Controllers that answer without the migration flag: {join_ids(without)}."
    return ClusterPosition(Phase.FINALIZING, (Reason("G05", text),))


def _before_copy(view: ClusterView) -> ClusterPosition | None:
    if _with_mode(view, BrokerMode.KRAFT):
        text = "A broker runs in KRaft mode, but /migration shows no finished copy."
        return ClusterPosition(Phase.UNKNOWN, (Reason("P09", text),))
    if not _with_mode(view, BrokerMode.MIGRATION):
        return None
    unresponsive, plain = _unresponsive_ids(view), _with_mode(view, BrokerMode.ZOOKEEPER)
    return ClusterPosition(Phase.FIRST_ROLL if unresponsive or plain else Phase.COPY, unresponsive_brokers(view))


def _before_kraft(view: ClusterView) -> ClusterPosition:
    unresponsive = _unresponsive_ids(view)
    if unresponsive and len(unresponsive) == len(view.brokers):
        return ClusterPosition(Phase.UNKNOWN, unresponsive_brokers(view))
    if any(controller.answers for controller in view.controllers.values()):
        return ClusterPosition(Phase.PRE_MIGRATION, unresponsive_brokers(view))
    return ClusterPosition(Phase.ZOOKEEPER, (*unresponsive_brokers(view), *_unreached(view)))


def _unreached(view: ClusterView) -> tuple[Reason, ...]:
    """Controllers wrote /migration when they started, but none answers now: being unresponsive does not prove that none exist."""
    if not isinstance(_zk(view).migration, Migration):
        return ()
    text = f"Controllers that did not answer, although /migration shows that they were started: {join_ids(sorted(view.controllers))}."
    return (_unresponsive(text),)


def _unflagged_alarm(view: ClusterView) -> tuple[Reason, ...]:
    migrating = bool(_with_mode(view, BrokerMode.MIGRATION))
    if where(view).phase is Phase.LEFT_BEHIND or (ended(view) and not migrating):
        return ()  # it has happened; the flag would change nothing now
    without, with_flag = _without_flag(view), [c.id for c in view.controllers.values() if c.migration_flag]
    if not without or not (with_flag or migrating):
        return ()
    return (Reason("G05", f"Controllers without the migration flag: {join_ids(without)}.", cause=Cause.UNFLAGGED_CONTROLLER),)


def _phase_alarm(view: ClusterView) -> tuple[Reason, ...]:
    position = where(view)
    return position.reasons if position.phase in {Phase.STALE, Phase.SPLIT, Phase.LEFT_BEHIND} else ()


_ALARMS: tuple[Callable[[ClusterView], tuple[Reason, ...]], ...] = (_unflagged_alarm, _phase_alarm)


def _zk(view: ClusterView) -> ZkView:
    return view.zk if view.zk is not None else ZkView()


def _copied(view: ClusterView) -> bool:
    migration = _zk(view).migration
    # After finalization ZooKeeper may be gone; KRaft brokers cannot exist without a finished copy.
    gone = view.zk is None and bool(_with_mode(view, BrokerMode.KRAFT))
    return gone or (isinstance(migration, Migration) and migration.metadata_offset > 0)


def ended(view: ClusterView) -> bool:
    """Whether the finalization has happened, even if a broker or a flag is left behind: no dual-write and no rollback any more.

    A leader without the flag is enough: once elected it has finalized a migration whose copy was over, at once (measured).
    """
    return where(view).phase in {Phase.FINALIZED, Phase.LEFT_BEHIND} or (_led_without_flag(view) and _kraft_had_it(view))


def _led_without_flag(view: ClusterView) -> bool:
    leader = view.controllers.get(view.quorum.leader_id) if view.quorum else None
    return leader is not None and leader.migration_flag is False


def flags_taken_by_us(view: ClusterView) -> bool:
    """Whether kmigrate's own finalization, by our note, took every missing flag."""
    return view.zk is not None and set(_without_flag(view)) <= view.zk.unflagged


def still_open(view: ClusterView) -> bool:
    """Whether the migration is proven not to be finalized.

    Proof: a leader with the flag has dual-written since its election, or no copy was ever finished. A finalized quorum never
    writes /migration again, whichever controller leads it, with or without the flag. Without proof it is unknown.
    """
    migration = _zk(view).migration
    if view.zk is None or isinstance(migration, Malformed):
        return False
    if not _copied(view):
        return not _with_mode(view, BrokerMode.KRAFT)
    leader = view.controllers.get(view.quorum.leader_id) if view.quorum else None
    writes = view.quorum is not None and migration is not None and migration.metadata_epoch == view.quorum.leader_epoch
    return kraft_owns(view) and writes and leader is not None and leader.migration_flag is True


def kraft_owns(view: ClusterView) -> bool:
    """Whether /controller names a KRaft controller."""
    controller = _zk(view).controller
    return isinstance(controller, ZkController) and controller.is_kraft


def _kraft_had_it(view: ClusterView) -> bool:
    """Whether KRaft owns the cluster or a broker; otherwise a /migration with a copy may be of an earlier migration."""
    return kraft_owns(view) or bool(_with_mode(view, BrokerMode.KRAFT))


def _with_mode(view: ClusterView, *modes: BrokerMode) -> list[int]:
    return sorted(broker.id for broker in view.brokers.values() if broker.mode in modes)


def _without_flag(view: ClusterView) -> list[int]:
    return sorted(c.id for c in view.controllers.values() if c.answers and c.migration_flag is False)


def _unresponsive_ids(view: ClusterView) -> list[int]:
    return sorted(broker.id for broker in view.brokers.values() if broker.mode is None)


def unresponsive_brokers(view: ClusterView) -> tuple[Reason, ...]:
    """R01, if brokers did not answer."""
    unresponsive = _unresponsive_ids(view)
    return (_unresponsive(f"Brokers that did not answer: {join_ids(unresponsive)}."),) if unresponsive else ()


def _unresponsive(text: str) -> Reason:
    return Reason("R01", text, cause=Cause.BROKER_UNRESPONSIVE)
