"""Where a cluster is between ZooKeeper and KRaft, whether a rollback is possible, and what may be done there.

An observation is reduced to a few facts (`_Facts`), and `_ROWS` is the one table over them: its first row that holds gives the *phase*,
the possible *rollback* and the reasons, and its last row always holds. Everything else is read from that row: `ended`, `still_open`, the alarms,
whether a rollback may begin (`gates.may_roll_back`), and in `TABLE` for each *intent* of a step whether it may act, has nothing to do, must
wait or must be refused. No state is unforeseen. A phase that claims something of all brokers is only given when every broker was seen.

What a leader without the flag does depends on the ZkMigrationState in the metadata log (ActivationRecordsGenerator, 3.9):

* PRE_MIGRATION: it finalizes nothing. It copies nothing, and registers no broker in migration mode (ClusterControlManager). A successor with
  the flag begins again, also if another one had claimed /controller and was in the middle of the copy.
* MIGRATION: it writes POST_MIGRATION at its election, which ends the migration for good.
* POST_MIGRATION, and NONE of a quorum that never migrates: nothing. A later leader with the flag ignores its flag, or exits.

MIGRATION begins with the record that ends the copy, a moment before /migration shows an offset. A leader that dies in that moment leaves
what looks like PRE_MIGRATION; then the copy never comes, and a rollback loses nothing, since ZooKeeper has everything that was copied. So a
migration has ended only if /migration shows its copy or a broker runs in KRaft mode: in PRE_MIGRATION controllers register none.

Sources: KIP-866 as shipped in 3.9 (KRaftMigrationDriver), and the states seen on real brokers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from airflow_provider_kmigrate.core.cluster_state.model import (
    Broker,
    BrokerMode,
    Cause,
    ClusterView,
    Malformed,
    Reason,
    ZkController,
    ZkView,
)
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage, stage_on_disk
from airflow_provider_kmigrate.core.shared.text import join_ids


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
    ENDED = "finalized, nodes left"  # one without the flag leads; others still have it, or brokers do not answer
    FINALIZED = "finalized"  # on every node
    UNKNOWN = "unknown"
    STALE = "stale /migration"  # ZooKeeper owns the cluster, but /migration is of an earlier migration
    SPLIT = "split"  # a broker in ZooKeeper mode beside a KRaft controller that owns the cluster
    LEFT_BEHIND = "left behind"  # finalized with a broker left that runs, or would start, in a ZooKeeper mode


class RollbackState(StrEnum):
    """What an observation shows of a rollback to ZooKeeper."""

    OPEN = "open"  # the migration is proven not to be finalized, or there is none
    UNPROVEN = "not proven"  # nothing shows a finalization, and no leader with the flag that dual-writes rules it out
    UNREAD = "not read"  # ZooKeeper did not answer
    BLOCKED = "blocked"  # a malformed znode: who owns the cluster is not known
    ENDED = "ended"  # finalized, even if a broker or a flag is left behind: no dual-write and no rollback any more


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
    """The phase, the sentences that led to it, and the possible rollback."""

    phase: Phase
    reasons: tuple[Reason, ...] = ()
    rollback: RollbackState = RollbackState.OPEN


ASIDE = frozenset({Phase.UNKNOWN, Phase.STALE, Phase.SPLIT, Phase.LEFT_BEHIND})
"""Phases that are not in the order of the migration."""
MUST_NOT_BE = ASIDE - {Phase.UNKNOWN}
"""Those of them that are an alarm."""

#: For each intent, one letter a phase, in the order of `Phase`: A act, D done, W wait, R refuse. Of the last three only this is
#: allowed: to roll a broker that is isolated or was left behind, at once. A cluster with one left behind has passed the steps
#: before that roll, so a whole run gets there.
_PERMITS = {
    Intent.PROVISION: "AADDDDDDDD WRRD",
    Intent.TO_MIGRATION: "RAADDDDDDD WRAD",
    Intent.COPY: "RRWWDDDDDD WRRD",
    Intent.TO_KRAFT: "RRRWAADDDD WRRA",
    Intent.SOAK: "RRRRRRADDD WRRR",
    Intent.FINALIZE: "RRRRRRAAAD WRRR",
}
_LETTERS = {"A": PhasePermit.ACT, "D": PhasePermit.DONE, "W": PhasePermit.WAIT, "R": PhasePermit.REFUSE}
TABLE: dict[tuple[Phase, Intent], PhasePermit] = {
    (phase, intent): _LETTERS[letter]
    for intent, row in _PERMITS.items()
    for phase, letter in zip(Phase, row.replace(" ", ""), strict=True)
}


COPIED = tuple(phase for phase in Phase if TABLE[phase, Intent.COPY] is PhasePermit.DONE)
"""The phases in which the copy is over."""


def malformed_znode_reasons(zk: ZkView) -> tuple[Reason, ...]:
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


def refusal_reasons(position: ClusterPosition, intent: Intent) -> tuple[Reason, ...]:
    """Why `intent` does not fit here, in words; the position's own reasons follow."""
    text = f"The cluster is in phase '{position.phase}'; in this phase it is not possible to {intent}."
    return (Reason("P01", text), *position.reasons)


@dataclass(frozen=True, slots=True)
class _Facts:
    """What the table needs of an observation.

    `kraft`, `migrating`, `plain`, `unresponsive`: whether a broker is in that mode, or in none. `left`: the brokers that run, or would
    start, in a ZooKeeper mode. `copied`: /migration shows a finished copy. `owner`: of /controller, "kraft", "zookeeper" or none.
    `leads`: whether the quorum's leader has the flag; None: no leader, or its flag is not known. `bare`: controllers that answer without
    the flag; `all_bare`: all do. `written`: the leader has written /migration since its election.
    """

    view: ClusterView
    kraft: bool
    migrating: bool
    plain: bool
    unresponsive: bool
    left: tuple[Broker, ...]
    malformed: tuple[Reason, ...]
    copied: bool
    owner: str
    leads: bool | None
    bare: tuple[int, ...]
    all_bare: bool
    written: bool

    @property
    def is_finalized(self) -> bool:
        """Whether a controller without the flag was elected after the copy. If ZooKeeper owns the cluster, the copy is an earlier migration's."""
        return (self.leads is False or self.all_bare) and (self.kraft or (self.copied and self.owner == "kraft"))

    @property
    def proven_rollback(self) -> RollbackState:
        """Whether the migration is proven to be open: nothing was copied, or a leader with the flag has dual-written since its election.

        A finalized quorum never writes /migration again, whichever controller leads it.
        """
        dual_written = self.copied and self.owner == "kraft" and self.written and self.leads
        return RollbackState.OPEN if dual_written or not (self.copied or self.kraft) else RollbackState.UNPROVEN


@lru_cache(maxsize=4)  # as `position_of`
def _gather_facts(view: ClusterView) -> _Facts:
    owner = "kraft" if kraft_owns(view) else "zookeeper" if zookeeper_controller(view) is not None else ""
    bare = tuple(sorted(c.id for c in view.controllers.values() if c.answers and c.migration_flag is False))
    migration, quorum = view.migration, view.quorum
    return _Facts(
        view,
        kraft=bool(view.in_mode(BrokerMode.KRAFT)),
        migrating=bool(view.in_mode(BrokerMode.MIGRATION)),
        plain=bool(view.in_mode(BrokerMode.ZOOKEEPER)),
        unresponsive=bool(view.in_mode(None)),
        left=tuple(broker for _, broker in sorted(view.brokers.items()) if is_of_zookeeper(broker)),
        malformed=malformed_znode_reasons(view.zk) if view.zk else (),
        copied=migration is not None and migration.metadata_offset > 0,
        owner=owner,
        leads=leader_flag(view),
        bare=bare,
        all_bare=bool(bare) and len(bare) == len(view.controllers),
        written=quorum is not None and migration is not None and migration.metadata_epoch == quorum.leader_epoch,
    )


class _Row(NamedTuple):
    """One row of the table: the phase and its reasons if it `holds`; `rollback`: None for `_Facts.proven_rollback`."""

    phase: Phase
    rollback: RollbackState | None
    holds: Callable[[_Facts], object]
    reasons: Callable[[_Facts], tuple[Reason, ...]] = lambda _facts: ()


def _unread_reasons(facts: _Facts) -> tuple[Reason, ...]:
    return (Reason("U01", "ZooKeeper could not be read."), *facts.view.unknowns)


def _left_behind_reasons(facts: _Facts) -> tuple[Reason, ...]:
    text = f"The cluster is finalized, and these brokers were left behind: {'; '.join(map(_describe_left_behind, facts.left))}."
    return (Reason("P02", text, cause=Cause.LEFT_BEHIND),)


def _stale_migration_reasons(facts: _Facts) -> tuple[Reason, ...]:
    offset = facts.view.migration.metadata_offset if facts.view.migration else None
    text = f"/migration holds offset {offset}, but ZooKeeper controller {zookeeper_controller(facts.view)} owns the cluster."
    return (Reason("P06", text),)


def _no_owner_reasons(_facts: _Facts) -> tuple[Reason, ...]:
    return (Reason("P05", "/controller is absent."),)


def _split_reasons(facts: _Facts) -> tuple[Reason, ...]:
    plain = facts.view.in_mode(BrokerMode.ZOOKEEPER)
    text = f"Brokers run in ZooKeeper mode while a KRaft controller owns the cluster: {join_ids(plain)}."
    return (_isolated_reason(facts, text),)


def _isolated_reason(facts: _Facts, text: str) -> Reason:
    """P07. Another reason comes first if it has one: a leader without the flag registers no broker in migration mode."""
    reason = Reason("P07", text)
    return replace(reason, remedy="") if facts.malformed or facts.leads is False else reason


def _no_copy_reasons(_facts: _Facts) -> tuple[Reason, ...]:
    return (Reason("P09", "A broker runs in KRaft mode, but /migration shows no finished copy."),)


def _finalizing_reasons(facts: _Facts) -> tuple[Reason, ...]:
    text = f"Controllers that answer without the migration flag: {join_ids(facts.bare)}."
    return (Reason(_choose_flag_code(facts.view, Phase.FINALIZING), text),)


def _down_reasons(facts: _Facts) -> tuple[Reason, ...]:
    return unresponsive_broker_reasons(facts.view)


_ROWS = (
    _Row(Phase.LEFT_BEHIND, RollbackState.ENDED, lambda f: f.is_finalized and f.left, _left_behind_reasons),
    _Row(Phase.ENDED, RollbackState.ENDED, lambda f: f.is_finalized and (f.unresponsive or not f.all_bare), _down_reasons),
    _Row(Phase.FINALIZED, RollbackState.ENDED, lambda f: f.is_finalized),
    _Row(Phase.UNKNOWN, RollbackState.UNREAD, lambda f: f.view.zk is None, _unread_reasons),
    _Row(Phase.UNKNOWN, RollbackState.BLOCKED, lambda f: f.malformed, lambda f: f.malformed),
    _Row(Phase.STALE, None, lambda f: f.copied and f.owner == "zookeeper", _stale_migration_reasons),
    _Row(Phase.UNKNOWN, None, lambda f: f.copied and not f.owner and not f.kraft, _no_owner_reasons),
    _Row(Phase.SPLIT, None, lambda f: f.plain and (f.owner == "kraft" or f.kraft), _split_reasons),
    _Row(Phase.HYBRID, None, lambda f: f.copied and f.kraft and f.migrating),
    _Row(Phase.HYBRID, None, lambda f: f.copied and f.unresponsive and (f.kraft or f.migrating), _down_reasons),
    _Row(Phase.UNKNOWN, None, lambda f: f.copied and f.unresponsive, _down_reasons),
    _Row(Phase.DUAL_WRITE_ZOOKEEPER, None, lambda f: f.copied and f.migrating),
    _Row(Phase.FINALIZING, None, lambda f: f.copied and f.bare, _finalizing_reasons),
    _Row(Phase.DUAL_WRITE, None, lambda f: f.copied),
    _Row(Phase.UNKNOWN, None, lambda f: f.kraft, _no_copy_reasons),
    _Row(Phase.FIRST_ROLL, None, lambda f: f.migrating and (f.plain or f.unresponsive), _down_reasons),
    _Row(Phase.COPY, None, lambda f: f.migrating),
    _Row(Phase.UNKNOWN, None, lambda f: f.unresponsive and not f.plain, _down_reasons),
    _Row(Phase.PRE_MIGRATION, None, lambda f: any(c.answers for c in f.view.controllers.values()), _down_reasons),
    _Row(Phase.ZOOKEEPER, None, lambda _: True, lambda f: (*_down_reasons(f), *_unreached_reasons(f.view))),
)
"""The first row that holds. A broker in KRaft mode counts as a copy, since /migration may be gone with ZooKeeper after the end."""


@lru_cache(maxsize=4)  # one decision asks some eight times
def position_of(view: ClusterView) -> ClusterPosition:
    """The phase that the view shows, `Phase.UNKNOWN` with reasons if it does not show one, and the possible rollback."""
    facts = _gather_facts(view)
    row = next(row for row in _ROWS if row.holds(facts))
    return ClusterPosition(row.phase, row.reasons(facts), row.rollback or facts.proven_rollback)


def find_alarms(view: ClusterView) -> tuple[Reason, ...]:
    """Alarms for states that no step may leave: report them at once; the operator must act."""
    position = position_of(view)
    return (*_find_unflagged_alarm(view, position), *(position.reasons if position.phase in MUST_NOT_BE else ()))


def _find_unflagged_alarm(view: ClusterView, position: ClusterPosition) -> tuple[Reason, ...]:
    """Nothing after the end, since it has happened, nor beside a stale /migration: there every controller must be stopped."""
    bare = _gather_facts(view).bare
    others = any(controller.migration_flag for controller in view.controllers.values())
    begun = others or kraft_owns(view) or view.in_mode(BrokerMode.MIGRATION, BrokerMode.KRAFT)
    if not bare or not begun or position.rollback is RollbackState.ENDED or position.phase is Phase.STALE:
        return ()
    return (unflagged_reason(view, f"Controllers without the migration flag: {join_ids(bare)}."),)


def isolated_broker_reason(view: ClusterView, text: str) -> Reason:
    """P07 for a broker that was started in ZooKeeper mode beside KRaft; P02 after the end: what brings it back is another roll."""
    return (
        Reason("P02", text, cause=Cause.LEFT_BEHIND) if migration_has_ended(view) else _isolated_reason(_gather_facts(view), text)
    )


def isolated_brokers(view: ClusterView) -> list[int]:
    """Brokers that their controller does not reach: in ZooKeeper mode beside KRaft, or left behind by a finalization.

    They and the others do not know each other, and they add no replica to the ISRs of what they lead. Only their own restart ends
    that, so no other broker may wait for it.
    """
    match position_of(view).phase:
        case Phase.SPLIT:
            return view.in_mode(BrokerMode.ZOOKEEPER)
        case Phase.LEFT_BEHIND:
            return sorted(broker.id for broker in view.brokers.values() if is_of_zookeeper(broker))
        case _:
            return []


def is_of_zookeeper(broker: Broker) -> bool:
    """Whether a broker runs in a ZooKeeper mode, or does not answer and would start in one: by its file, or its registration.

    A broker in ZooKeeper mode does not answer beside a finalized quorum. One that was started after its KRaft file was written
    may still be registered by its former session.
    """
    if broker.mode is not None or not broker.named:
        return broker.mode in {BrokerMode.ZOOKEEPER, BrokerMode.MIGRATION}
    stage, started, written = stage_on_disk(broker.files), broker.process.started_at, broker.files.written_at
    is_restarted = stage is FileStage.KRAFT and started is not None and written is not None and started >= written
    return stage in {FileStage.ZOOKEEPER, FileStage.MIGRATION} or (broker.in_zookeeper is True and not is_restarted)


def _describe_left_behind(broker: Broker) -> str:
    if broker.mode is not None:
        return f"broker {broker.id} runs in {broker.mode} mode"
    stage = stage_on_disk(broker.files)
    file = f"its file is of stage '{stage}'" if stage else "it is registered in ZooKeeper"
    return f"broker {broker.id} does not answer, and {file}"


def leader_flag(view: ClusterView) -> bool | None:
    """Whether the quorum's leader has the migration flag; None if there is no leader, or its flag is unknown."""
    return view.controller(view.quorum.leader_id).migration_flag if view.quorum else None


def unflagged_reason(view: ClusterView, text: str) -> Reason:
    """Why controllers without the flag are a danger, under the code of what gives it back here.

    G05, or G43 if kmigrate's own finalization took the flags and stands half-way, or G44 if no controller ever had one.
    """
    position = position_of(view)
    code = "G44" if view.zk is not None and view.zk.migration is None else _choose_flag_code(view, position.phase)
    reason = Reason(code, text, cause=Cause.UNFLAGGED_CONTROLLER)
    return replace(reason, remedy="") if position.rollback is RollbackState.BLOCKED else reason


def _choose_flag_code(view: ClusterView, phase: Phase) -> str:
    return "G43" if phase is Phase.FINALIZING and flags_taken_by_us(view) else "G05"


def _unreached_reasons(view: ClusterView) -> tuple[Reason, ...]:
    """Controllers wrote /migration when they started, but none answers now: being unresponsive does not prove that none exist."""
    if view.migration is None:
        return ()
    text = f"Controllers that did not answer, although /migration shows that they were started: {join_ids(sorted(view.controllers))}."
    return (_unresponsive_reason(text),)


def migration_has_ended(view: ClusterView) -> bool:
    """Whether the finalization has happened, even if a broker or a flag is left behind: no dual-write and no rollback any more."""
    return position_of(view).rollback is RollbackState.ENDED


def finalization_has_begun(view: ClusterView) -> bool:
    """Whether the finalization has begun, or has happened."""
    return migration_has_ended(view) or position_of(view).phase is Phase.FINALIZING


def flags_taken_by_us(view: ClusterView) -> bool:
    """Whether kmigrate's own finalization, by our note, took every missing flag."""
    return view.zk is not None and set(_gather_facts(view).bare) <= view.zk.unflagged


def still_open(view: ClusterView) -> bool:
    """Whether the migration is proven not to be finalized. Without proof it is unknown."""
    return position_of(view).rollback is RollbackState.OPEN


def kraft_owns(view: ClusterView) -> bool:
    """Whether /controller names a KRaft controller."""
    controller = view.zk.controller if view.zk else None
    return isinstance(controller, ZkController) and controller.is_kraft


def zookeeper_controller(view: ClusterView) -> int | None:
    """The broker that is the ZooKeeper controller; None if KRaft owns the cluster, or the owner is not known."""
    controller = view.zk.controller if view.zk else None
    return controller.broker_id if isinstance(controller, ZkController) and not controller.is_kraft else None


def unresponsive_broker_reasons(view: ClusterView) -> tuple[Reason, ...]:
    """R01, if brokers did not answer; G36, if the cluster file does not name them, so that they were not asked."""
    unresponsive = [broker for broker in view.in_mode(None) if view.brokers[broker].named]
    reasons = (_unresponsive_reason(f"Brokers that did not answer: {join_ids(unresponsive)}."),) if unresponsive else ()
    return (*reasons, *unnamed_broker_reasons(view))


def unnamed_broker_reasons(view: ClusterView) -> tuple[Reason, ...]:
    """G36 or G39, if ZooKeeper or a broker lists brokers that the cluster file does not name: before KRaft owns the cluster, and after."""
    unnamed_ids = view.unnamed_brokers()
    text = f"Brokers that the cluster file does not name: {join_ids(unnamed_ids)}. kmigrate neither restarts them nor knows their mode."
    return (Reason("G39" if kraft_owns(view) else "G36", text, cause=Cause.UNNAMED_BROKER),) if unnamed_ids else ()


def _unresponsive_reason(text: str) -> Reason:
    return Reason("R01", text, cause=Cause.BROKER_UNRESPONSIVE)
