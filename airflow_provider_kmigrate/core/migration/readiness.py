"""Whether a rollback is assured now: the one answer to "is a rollback possible?", from one observation.

Every step that moves a cluster further away from ZooKeeper asks for it: each restart of a roll, the soak, the request for approval,
each restart of the finalization; the watch asks in every phase. The answer is made of *parts*, each of which is a gate that exists
for itself (`core.migration.gates`, `core.migration.equivalence`, `core.migration.coordinator`); here is only which of them a rollback depends on, and when.

* A rollback is **ready** if every part holds, **lost** if it is not possible without an administrator who restores something,
  and **degraded** in between: it would lose something, wait for something, or fail at a step.
* A part that could not be read is degraded: unknown is not healthy. A part that was not asked for is not judged. Reading all parts
  costs megabytes and requests to every node, so callers ask for the cheap ones each time and for all of them now and then.
* What a rollback does not depend on in a phase is not judged in it: before KRaft has taken the cluster over nothing can be lost.

The handover raises /controller_epoch above every partition state (KAFKA-20488), so while KRaft owns the cluster its epochs must be
readable only; while ZooKeeper owns it, a state above /controller_epoch is left over from an earlier rollback.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from itertools import chain
from typing import Any, NamedTuple

from airflow_provider_kmigrate.core.cluster_state.model import (
    Broker,
    BrokerMode,
    Cause,
    ClusterView,
    Fields,
    Reason,
    ZooKeeperServer,
    could_not_read,
)
from airflow_provider_kmigrate.core.migration import coordinator, equivalence, gates
from airflow_provider_kmigrate.core.migration.gates import (
    MET,
    Gate,
    GateState,
    combine_gates,
    never,
    never_if,
    not_yet,
    not_yet_if,
)
from airflow_provider_kmigrate.core.migration.phase import (
    Phase,
    find_alarms,
    kraft_owns,
    migration_has_ended,
    position_of,
    zookeeper_controller,
)
from airflow_provider_kmigrate.core.node_files import config_matrix
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage, stage_on_disk
from airflow_provider_kmigrate.core.shared.text import count_of, defuse_markup, format_minutes, join_ids, summarize, table_cell


class RollbackPart(StrEnum):
    """What a rollback depends on; the value is its name in texts and metrics."""

    OPEN = "migration is open"
    ALARMS = "no forbidden state"
    BROKERS = "cluster file names every broker"
    CONTROLLERS = "controllers"
    DUAL_WRITE = "dual-write"
    EQUALITY = "metadata of both sides"
    EPOCHS = "epochs"
    CLIENT_METRICS = "client-metrics subscriptions"
    COORDINATORS = "coordinators of groups"
    ENSEMBLE = "ZooKeeper ensemble"
    FILES = "nodes' files"
    DIRECTORIES = "meta.properties"
    SPACE = "space on disks"
    ORIGINALS = "originals in the backup"


EVERY_PART = frozenset(RollbackPart)
_LOSES = frozenset({RollbackPart.OPEN, RollbackPart.ORIGINALS})
"""Parts without which no rollback is possible at all; without another one it waits, fails at a step, or loses something."""


@dataclass(frozen=True, slots=True)
class ReadinessAsk:
    """What is asked of one observation.

    `parts`: which of them, those that were read. `before`: an earlier observation to measure the dual-write's movement from.
    `compared`: the previous observation that compared both sides; what both show does not go away by itself.
    `rolling`: the stages of files that are no fault in the present roll, whose restart of a broker may have been interrupted.
    """

    parts: frozenset[RollbackPart] = EVERY_PART
    before: ClusterView | None = None
    compared: ClusterView | None = None
    rolling: frozenset[FileStage] = frozenset()


@dataclass(frozen=True, slots=True)
class ReadinessReason:
    """Why one part does not hold. `state`: whether waiting may help, or an operator must act. `loses`: no rollback is possible."""

    part: RollbackPart
    reason: Reason
    state: GateState
    loses: bool = False

    @property
    def fixed_by(self) -> str:
        """Who can fix it."""
        return _CHECKS[self.part].fixed_by


@dataclass(frozen=True, slots=True)
class RollbackForecast:
    """What a rollback from here would take and cost.

    `seconds` in all; `restarts` of brokers, of `restart_seconds` each, which were `measured` in this cluster's journals or are
    `assume_restart_seconds`. `loses`: one sentence for each thing that ZooKeeper does not hold.
    """

    seconds: float = 0.0
    restarts: int = 0
    restart_seconds: float = 0.0
    measured: bool = False
    loses: tuple[str, ...] = ()


class ReadinessLevel(StrEnum):
    """Whether a rollback is possible; the values are in journals."""

    READY = "ready"  # it is possible now, and loses nothing that ZooKeeper should hold
    DEGRADED = "degraded"  # it is possible, but something that it depends on does not hold or is not known
    LOST = "lost"  # it is not possible


@dataclass(frozen=True, slots=True)
class Readiness:
    """The verdict on a rollback from here. `evidence`: what it rests on (`evidence_of`).

    `since`: if it is not ready, since when, in seconds since the epoch. `brings_back`: what would make a lost rollback possible
    again; empty after the finalization.
    """

    level: ReadinessLevel
    forecast: RollbackForecast
    evidence: Mapping[str, str]
    reasons: tuple[ReadinessReason, ...] = ()
    since: float = 0.0
    brings_back: tuple[str, ...] = ()


class _Check(NamedTuple):
    """How one part is judged: the fields that it needs, who can fix it, and the gate."""

    fields: Fields
    fixed_by: str
    gate: Callable[[ClusterView, ReadinessAsk], Gate]


def fields_of(parts: Collection[RollbackPart]) -> Fields:
    """The fields that these parts are judged from."""
    fields = Fields.POSITION
    for part in parts:
        fields |= _CHECKS[part].fields
    return fields


def find_shortcomings(view: ClusterView, ask: ReadinessAsk = ReadinessAsk()) -> tuple[ReadinessReason, ...]:
    """Each reason why a part that was asked for does not hold, in the order of the parts; empty if all hold."""
    has_moved, may_roll_back = position_of(view).phase is not Phase.ZOOKEEPER, gates.may_roll_back(view)
    judged = RollbackPart if has_moved and may_roll_back.state is not GateState.NEVER else (RollbackPart.OPEN,)
    return tuple(chain.from_iterable(_find_part_reasons(view, ask, part) for part in judged if part in ask.parts))


def _find_part_reasons(view: ClusterView, ask: ReadinessAsk, part: RollbackPart) -> Iterator[ReadinessReason]:
    part_gate, unneeded = (
        _CHECKS[part].gate(view, ask),
        {f"broker {broker.id}" for broker in view.brokers.values() if has_original(broker)},
    )
    loses = part_gate.state is GateState.NEVER and part in _LOSES
    return (ReadinessReason(part, reason, part_gate.state, loses and reason.node not in unneeded) for reason in part_gate.reasons)


def has_original(broker: Broker) -> bool:
    """Whether the broker's own file is its original: a rollback now does not need the one in the backup."""
    return stage_on_disk(broker.files) is FileStage.ZOOKEEPER


def rollback_assured(view: ClusterView, ask: ReadinessAsk = ReadinessAsk()) -> Gate:
    """The parts as one gate, with their reasons alone: met if all hold, never if an operator must act."""
    return combine_into_gate(find_shortcomings(view, ask))


def combine_into_gate(part_reasons: Iterable[ReadinessReason]) -> Gate:
    """Reasons of parts as one gate."""
    return combine_gates(Gate(part_reason.state, (part_reason.reason,)) for part_reason in part_reasons)


def assured_before_step(view: ClusterView, ask: ReadinessAsk) -> Gate:
    """G37: no step further away from ZooKeeper unless a rollback is assured; the reason says who can fix each part."""
    part_reasons = find_shortcomings(view, ask)
    fixers = dict.fromkeys(f"{part_reason.part}: {part_reason.fixed_by}" for part_reason in part_reasons)
    text = (
        f"A rollback from here is not assured, so nothing moves further away from ZooKeeper. Who can fix it: {'; '.join(fixers)}."
    )
    closed = combine_into_gate(part_reasons)
    return closed if closed.met else Gate(closed.state, (Reason("G37", text), *closed.reasons))


def judge_rollback(
    view: ClusterView,
    ask: ReadinessAsk,
    now: float,
    *,
    unready_since: float | None = None,
    restart_seconds: float | None = None,
) -> Readiness:
    """The verdict. `now` and `unready_since`, when it last stopped being ready, in seconds since the epoch.

    `restart_seconds`: how long a restart of a broker took in this migration; None if none was measured.
    """
    part_reasons, forecast, evidence = find_shortcomings(view, ask), forecast_rollback(view, restart_seconds), evidence_of(view)
    since = now if unready_since is None else unready_since
    if any(part_reason.loses for part_reason in part_reasons):
        remedies = (
            ()
            if migration_has_ended(view)
            else tuple(dict.fromkeys(part_reason.reason.next_step for part_reason in part_reasons if part_reason.loses))
        )
        return Readiness(ReadinessLevel.LOST, replace(forecast, seconds=0.0, restarts=0), evidence, part_reasons, since, remedies)
    if part_reasons:
        return Readiness(ReadinessLevel.DEGRADED, forecast, evidence, part_reasons, since)
    return Readiness(ReadinessLevel.READY, forecast, evidence)


def fingerprint(readiness: Readiness) -> str:
    """A short hash of the verdict, its reasons and its evidence; figures such as a lag and a time do not change it."""
    reasons = sorted({(part_reason.part.name, part_reason.reason.code) for part_reason in readiness.reasons})
    content = [readiness.level, reasons, sorted(readiness.evidence.items())]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


_VERSION, _ORIGINAL = "metadata.version", "original {}"


def evidence_of(view: ClusterView) -> dict[str, str]:
    """What a verdict rests on and must not change between an approval and its act: ids, modes, brokers' files, originals' hashes.

    Of a file the hash of its keys counts, not of its comments; a controller's is replaced by the act itself.
    """
    nodes = {
        **{
            f"broker {b.id}": f"{b.mode} {stage_on_disk(b.files)} {_list_meta_versions(b)} {_hash_properties(b)}"
            for b in view.brokers.values()
        },
        **{f"controller {c.id}": "named" for c in view.controllers.values()},
    }
    originals = {} if view.backup is None else {_ORIGINAL.format(broker): sha for broker, sha in view.backup.originals.items()}
    return {"cluster": view.kafka_cluster_id or "", _VERSION: view.metadata_version or "", **nodes, **originals}


def evidence_unchanged(view: ClusterView, approved: Mapping[str, str]) -> Gate:
    """H06: what an approved verdict rested on (`evidence_of`) is still so; not yet while some of it is not read.

    Files that are not read, and originals that are lost, have gates of their own (O06, O08, O01).
    """
    if view.backup is None or not view.kafka_cluster_id or (approved.get(_VERSION) and not view.metadata_version):
        return not_yet(could_not_read("all that the approved readiness rested on"))
    now = evidence_of(view)
    lost = {_ORIGINAL.format(broker) for broker in view.brokers if broker not in view.backup.originals}
    changed = sorted(name for name in {*approved, *now} - lost if approved.get(name) != now.get(name))
    rows = [f"{name} ({approved.get(name) or 'nothing'} then, {now.get(name) or 'nothing'} now)" for name in changed]
    return never_if(rows, Reason("H06", f"What the approved readiness rested on has changed since: {summarize(rows)}."))


def _hash_properties(broker: Broker) -> str:
    keys = broker.files.properties
    return "unread" if keys is None else hashlib.sha256(json.dumps(sorted(keys.items())).encode()).hexdigest()[:16]


def _list_meta_versions(broker: Broker) -> str:
    return ",".join(sorted({keys.get("version", "") for keys in (broker.files.meta or {}).values()}))


DEFAULT_RESTART = 180.0
"""Seconds of one broker's restart, until it is back in every ISR, if none was measured and its partitions were not read: a broker with large
logs and a cold cache."""
_RESTART_BASE, _RESTART_PER_REPLICA = 15.0, 0.04
"""Seconds that are assumed if no restart was measured: of a broker without logs, and for each replica, whose log it closes and opens. 4,100
replicas make `DEFAULT_RESTART`."""
FAILOVER, CONTROLLER_STOP, HANDOVER = 30.0, 10.0, 30.0
"""Seconds; measured were 3 to 17 for a failover with its comparison, 7 to 9 for three stops, 3 to 4 for a handover."""


def assume_restart_seconds(view: ClusterView) -> float:
    """Seconds of one broker's restart if none was measured: from the replicas of a broker, in the middle of all."""
    if view.partitions is None or not view.brokers:
        return DEFAULT_RESTART
    replicas = sum(len(partition.replicas) for partition in view.partitions)
    return round(_RESTART_BASE + _RESTART_PER_REPLICA * replicas / len(view.brokers), 1)


def forecast_rollback(view: ClusterView, restart_seconds: float | None = None) -> RollbackForecast:
    """What a rollback from here would take and lose. Each KRaft broker restarts twice, each in migration mode once."""
    owned_by_kraft = kraft_owns(view)
    kraft, migrating, plain, unresponsive = (
        len(view.in_mode(mode)) for mode in (BrokerMode.KRAFT, BrokerMode.MIGRATION, BrokerMode.ZOOKEEPER, None)
    )
    restarts = 2 * kraft + migrating + (1 + owned_by_kraft) * unresponsive + owned_by_kraft * plain
    seconds_each = assume_restart_seconds(view) if restart_seconds is None else restart_seconds
    begun = position_of(view).phase is not Phase.ZOOKEEPER
    seconds = rollback_seconds(restarts, seconds_each, begun * len(view.controllers), kraft_owns=owned_by_kraft)
    return RollbackForecast(seconds, restarts, seconds_each, restart_seconds is not None, list_losses(view))


def rollback_seconds(restarts: int, restart_seconds: float, controllers: int, *, kraft_owns: bool) -> float:
    """Seconds of a rollback with so many restarts of brokers and stops of controllers, and with a handover if KRaft owns the cluster."""
    return restarts * restart_seconds + kraft_owns * (FAILOVER + HANDOVER) + CONTROLLER_STOP * controllers


def list_losses(view: ClusterView) -> tuple[str, ...]:
    """What a rollback now would lose, as far as this observation shows it: one sentence each; empty if ZooKeeper holds all."""
    if not kraft_may_hold_more(view):
        return ()
    lag = gates.dual_write_lag(view)
    behind = (
        f"Up to {count_of(lag, 'metadata record')} that ZooKeeper has not received yet." if lag and lag > gates.MOST_LAG else ""
    )
    subscriptions = summarize(view.client_metrics or ())
    metrics = f"The client-metrics subscriptions {subscriptions}." if subscriptions else ""
    differing = (reason.text for reason in equivalence.difference_reasons(view))
    return tuple(text for text in (behind, metrics, *differing) if text)


def describe_readiness(readiness: Readiness, now: float) -> str:
    """The verdict in a few sentences, for a log, a task's result or a page."""
    match readiness.level:
        case ReadinessLevel.READY:
            return f"A rollback is possible now. {_describe_forecast(readiness.forecast)}"
        case ReadinessLevel.DEGRADED:
            head = f"A rollback is not assured, since {format_minutes(now - readiness.since)}: {_join_part_names(readiness)}."
            return f"{head} {_describe_forecast(readiness.forecast)}"
        case ReadinessLevel.LOST if any(part_reason.reason.cause is Cause.FINALIZED for part_reason in readiness.reasons):
            return "No rollback is possible: the migration is finalized. Nothing brings it back."
        case ReadinessLevel.LOST:
            remedies = " ".join(readiness.brings_back) or "Nothing brings it back."
            return f"No rollback is possible: {_join_part_names(readiness)}. {remedies}"


def to_document(readiness: Readiness, now: float) -> dict[str, Any]:
    """The verdict as JSON values, for the readers of a task's result; `render_document` makes a page of it."""
    return {
        "kind": DOCUMENT_KIND,
        "version": 1,
        "level": str(readiness.level),
        "summary": describe_readiness(readiness, now),
        "reasons": [
            {
                "part": str(part_reason.part),
                "code": part_reason.reason.code,
                "text": part_reason.reason.text,
                "fixed_by": part_reason.fixed_by,
                "next_step": part_reason.reason.next_step,
            }
            for part_reason in readiness.reasons
        ],
        "forecast": {**asdict(readiness.forecast), "loses": list(readiness.forecast.loses)},
        "fingerprint": fingerprint(readiness),
    }


DOCUMENT_KIND = "readiness"


def render_document(document: Mapping[str, Any]) -> str:
    """A verdict of `to_document` as Markdown: one sentence, then a table of what does not hold, who can fix it, and how."""
    rows = [
        f"| {row['part']} | {table_cell('[{code}] {text}'.format(**row))} | {row['fixed_by']} | {table_cell(row['next_step'])} |"
        for row in document["reasons"]
    ]
    table = ["", "| part | observed | fixed by | next step |", "| --- | --- | --- | --- |", *rows] if rows else []
    return "\n".join([defuse_markup(document["summary"]), *table, "", f"Fingerprint: `{document['fingerprint']}`"])


def _join_part_names(readiness: Readiness) -> str:
    return ", ".join(dict.fromkeys(str(part_reason.part) for part_reason in readiness.reasons))


def _describe_forecast(forecast: RollbackForecast) -> str:
    if not forecast.seconds:
        return "There is nothing to roll back."
    how = "as measured in this migration" if forecast.measured else "assumed, none was measured yet"
    takes = f"It would take about {format_minutes(forecast.seconds)}: {count_of(forecast.restarts, 'restart')} of {forecast.restart_seconds:.0f} s each ({how})."
    return f"{takes} It would lose: {' '.join(forecast.loses) or 'nothing that ZooKeeper should hold.'}"


# The parts.


def _migration_open(view: ClusterView, _ask: ReadinessAsk) -> Gate:
    position, possible = position_of(view), gates.may_roll_back(view)
    return not_yet_if(position.phase is Phase.UNKNOWN, *position.reasons) if possible.met else possible


def _no_alarms(view: ClusterView, _ask: ReadinessAsk) -> Gate:
    alarm_reasons = find_alarms(view)
    return never_if(alarm_reasons, *alarm_reasons)


def _controllers_ready(view: ClusterView, _ask: ReadinessAsk) -> Gate:
    """While ZooKeeper owns the cluster, a rollback needs no controller."""
    owned_by_zookeeper = view.zk is not None and zookeeper_controller(view) is not None
    return MET if owned_by_zookeeper else combine_gates((gates.all_controllers_flagged(view), gates.quorum_healthy(view)))


def kraft_may_hold_more(view: ClusterView) -> bool:
    """Whether KRaft may hold what ZooKeeper does not: it has taken the copy over, and no ZooKeeper broker is known to be controller.

    If /controller was deleted or could not be read, the owner is unknown: both sides are compared.
    """
    if view.zk is None:
        return True
    return zookeeper_controller(view) is None and view.migration is not None and view.migration.metadata_offset > 0


def _dual_write_in_step(view: ClusterView, ask: ReadinessAsk) -> Gate:
    if not kraft_may_hold_more(view):
        return MET
    return combine_gates((gates.dual_write_alive(view, ask.before), gates.lag_below(view, gates.MOST_LAG)))


def _sides_equal(view: ClusterView, ask: ReadinessAsk) -> Gate:
    if not kraft_may_hold_more(view):
        return MET
    lost = equivalence.nothing_lost(ask.compared, view) if ask.compared is not None else MET
    differing = (*equivalence.unread_kind_reasons(view), *equivalence.difference_reasons(view))
    return not_yet_if(differing, *differing) if lost.met else lost


def _epochs_usable(view: ClusterView, ask: ReadinessAsk) -> Gate:
    states = RollbackPart.EQUALITY in ask.parts
    return gates.epochs_known(view, states=states) if kraft_may_hold_more(view) else gates.leaders_can_move(view, states=states)


def ensemble_spares_one(ensemble: tuple[ZooKeeperServer, ...] | None) -> Gate:
    """Z05: so many servers of the ensemble serve that a majority is left if one more fails.

    An ensemble of one or two can never spare one: all of them must serve.
    """
    if not ensemble:
        return not_yet(could_not_read("the servers of the ZooKeeper ensemble"))
    others = [server.address for server in ensemble if not server.mode]
    serving, needed = len(ensemble) - len(others), min(len(ensemble), len(ensemble) // 2 + 2)
    text = (
        f"Of the {count_of(len(ensemble), 'ZooKeeper server')} of the connection {serving} report that they serve, and {needed} "
        f"must, so that one more may fail. Not serving, or not reporting it: {', '.join(others)}."
    )
    return not_yet_if(serving < needed, Reason("Z05", text))


def _directories_convertible(view: ClusterView, _ask: ReadinessAsk) -> Gate:
    """The rollback turns version 1 into 0, which ZooKeeper brokers need; it knows no other version."""
    brokers = [broker for broker in view.brokers.values() if broker.named]
    unread = sorted(broker.id for broker in brokers if broker.files.meta is None)
    missing = not_yet_if(unread, could_not_read(f"meta.properties of brokers {join_ids(unread)}"))
    return combine_gates(
        (missing, *(_directory_convertible(broker, broker.files.meta) for broker in brokers if broker.files.meta is not None))
    )


def _directory_convertible(broker: Broker, metas: Mapping[str, Mapping[str, str]]) -> Gate:
    theirs = config_matrix.find_foreign_owners(broker.id, metas)
    if theirs:
        return never(Reason("M01", f"{config_matrix.describe_foreign_directories(theirs)}, not of broker {broker.id}."))
    odd = [f"{path} has version {keys['version']}" for path, keys in metas.items() if keys.get("version") not in _VERSIONS]
    text = f"meta.properties of broker {broker.id}: {summarize(odd)}. A rollback turns version 1 into 0, and knows no other."
    return never_if(odd, Reason("O08", text))


_VERSIONS = (None, "0", "1")


def _enough_space(view: ClusterView, _ask: ReadinessAsk) -> Gate:
    brokers = [broker for broker in view.brokers.values() if broker.named]
    unread = sorted(broker.id for broker in brokers if broker.files.free is None)
    missing = not_yet_if(unread, could_not_read(f"how much space is free on the machines of brokers {join_ids(unread)}"))
    full = {
        broker.id: broker.files.free for broker in brokers if broker.files.free is not None and broker.files.free < SPACE_NEEDED
    }
    free_space = "; ".join(f"{free} bytes on that of broker {broker}" for broker, free in full.items())
    text = f"Where a rollback writes on brokers' machines too little is free: {free_space}. It needs {SPACE_NEEDED} bytes."
    return combine_gates((missing, not_yet_if(full, Reason("O09", text)), _backup_writable(view)))


def _backup_writable(view: ClusterView) -> Gate:
    """Of the backup's folder; not judged by a process that did not read the backup."""
    reasons = view.backup.unwritable if view.backup is not None else ()
    return not_yet_if(reasons, *reasons)


SPACE_NEEDED = 1 << 20
"""Bytes that must be free where a rollback writes on a broker's machine: its properties file, a copy of the former one, its
meta.properties. These are some kilobytes; the rest is for what else writes there meanwhile."""


def _originals_kept(view: ClusterView, ask: ReadinessAsk) -> Gate:
    """Needed once a broker has moved, or is about to."""
    if not ask.rolling and not _has_moved_brokers(view):
        return MET
    if view.backup is None:
        return not_yet(Reason("G00", "The originals in the backup were not read.", cause=Cause.READINESS_NOT_ASKED))
    return never_if(view.backup.lost, *view.backup.lost)


def _has_moved_brokers(view: ClusterView) -> bool:
    return any(broker.mode is not BrokerMode.ZOOKEEPER for broker in view.brokers.values())


_KAFKA = "Kafka's administrators"
_KMIGRATE = "kmigrate itself, if you wait; otherwise Kafka's administrators"
_MACHINES = "the administrators of the machines"
_BACKUP = "the operator of kmigrate, who owns the backup"
_CHECKS: Mapping[RollbackPart, _Check] = {
    RollbackPart.OPEN: _Check(Fields.POSITION, "no one once it is finalized; otherwise Kafka's administrators", _migration_open),
    RollbackPart.ALARMS: _Check(Fields.POSITION, _KAFKA, _no_alarms),
    RollbackPart.BROKERS: _Check(
        Fields.POSITION, "the operator of kmigrate, or what starts brokers", lambda view, _: gates.all_brokers_named(view)
    ),
    RollbackPart.CONTROLLERS: _Check(Fields.POSITION, _KAFKA, _controllers_ready),
    RollbackPart.DUAL_WRITE: _Check(Fields.POSITION, _KMIGRATE, _dual_write_in_step),
    RollbackPart.EQUALITY: _Check(Fields.METADATA, _KMIGRATE, _sides_equal),
    RollbackPart.EPOCHS: _Check(Fields.POSITION, _KAFKA, _epochs_usable),
    RollbackPart.CLIENT_METRICS: _Check(
        Fields.CLIENT_METRICS, "the owner of the subscriptions", lambda view, _: gates.no_client_metrics(view)
    ),
    RollbackPart.COORDINATORS: _Check(
        Fields.COORDINATORS | Fields.PARTITIONS, _KAFKA, lambda view, _: coordinator.brokers_agree(view)
    ),
    RollbackPart.ENSEMBLE: _Check(
        Fields.ENSEMBLE, "ZooKeeper's administrators", lambda view, _: ensemble_spares_one(view.ensemble)
    ),
    RollbackPart.FILES: _Check(
        Fields.FILES,
        "what writes the file, such as configuration management",
        lambda view, ask: gates.files_in_stage(view, rolling=ask.rolling),
    ),
    RollbackPart.DIRECTORIES: _Check(Fields.FILES, _MACHINES, _directories_convertible),
    RollbackPart.SPACE: _Check(Fields.FILES, _MACHINES, _enough_space),
    RollbackPart.ORIGINALS: _Check(Fields.BACKUP, _BACKUP, _originals_kept),
}
