"""Rolling restart of brokers: which may stop now, in which order, and what one still needs.

`decide_restart` is the whole restart of one broker, decided from the current state:

1. running in the target mode: settled (done), or not yet back in every ISR (wait);
2. running in the old mode: every gate open (act: restart), or not (wait, refuse);
3. stopped, with the target's file in place: our own stop was interrupted (act: start);
4. stopped, with another file: kmigrate did not stop it (wait for its operator);
5. running but unresponsive: starting, or hanging (wait).

The file is written before the stop, so 3 and 4 cannot be confused, whenever the tool is killed. A broker in the target mode is
never stopped again.

The first broker of a pass is a canary (`judge_bake`): it may be worse in its new mode, by answer times, missing answers and ISRs
that it leaves. Each sign has two baselines: the broker itself before its restart, if this run has observed it then, and the other
brokers in the same observations, which share load, network and machine. A sign must exceed the worse of the two by a wide margin:
rolling a healthy broker back costs a restart, and the gates of every step remain. Producer latency is no sign yet: a restarted
broker leads nothing until the preferred leaders are elected, after its pass. Not judged: the first seconds after it is back (a
cold JVM answers slowly), and anything from fewer than `MIN_SAMPLES` observations.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from statistics import median

from airflow_provider_kmigrate.core import coordinator, gates, readiness
from airflow_provider_kmigrate.core.decision import Act, Decision, Done, Refuse, Verb, Wait
from airflow_provider_kmigrate.core.files.config_matrix import FileStage, misfiled, stage_on_disk
from airflow_provider_kmigrate.core.gates import MET, Gate, GateState, never, never_if, not_yet, not_yet_if, together, unmet
from airflow_provider_kmigrate.core.model import (
    Broker,
    BrokerMode,
    Cause,
    ClusterView,
    Fields,
    Partition,
    ProcessState,
    Reason,
    could_not_read,
)
from airflow_provider_kmigrate.core.phase import (
    Intent,
    Phase,
    alarms,
    ended,
    is_of_zookeeper,
    isolated_brokers,
    kraft_owns,
    leader_flag,
    unflagged,
    where,
    zookeeper_controller,
)
from airflow_provider_kmigrate.core.readiness import EVERY_PART, ReadinessAsk, RollbackPart
from airflow_provider_kmigrate.core.text import join_ids, summarize

STAGE = {BrokerMode.ZOOKEEPER: FileStage.ZOOKEEPER, BrokerMode.MIGRATION: FileStage.MIGRATION, BrokerMode.KRAFT: FileStage.KRAFT}
_STAGES = {BrokerMode.MIGRATION: {FileStage.MIGRATION, FileStage.KRAFT}, BrokerMode.KRAFT: {FileStage.KRAFT}}  # or beyond
_ISOLATED = {Phase.LEFT_BEHIND, Phase.SPLIT}  # isolated from its controller: out of its ISRs, and only its roll recovers it
INTENT = {BrokerMode.MIGRATION: Intent.TO_MIGRATION, BrokerMode.KRAFT: Intent.TO_KRAFT}

_WRITTEN = {
    BrokerMode.MIGRATION: frozenset({FileStage.MIGRATION}),
    BrokerMode.KRAFT: frozenset({FileStage.MIGRATION, FileStage.KRAFT}),  # a rollback may have been left in the middle
}
_MOVING_PARTS = frozenset({RollbackPart.DUAL_WRITE, RollbackPart.BROKERS, RollbackPart.CONTROLLERS})
"""What a rollback depends on that every observation of a roll shows."""

MIN_OBSERVATIONS = Fields.POSITION | Fields.NODES | Fields.GROUPS | Fields.PARTITIONS | Fields.MIN_INSYNC | Fields.REASSIGNMENTS
"""The fields that a broker's restart is decided from."""


def may_stop(view: ClusterView, ids: Collection[int]) -> Gate:
    """Whether these brokers may stop together: every partition keeps its min.insync.replicas without them.

    Partitions whose replication factor can never allow it (RF <= min.insync.replicas) do not block: preflight named them and the
    outage. A replica out of any ISR blocks, whatever the cause; so does anything unread.
    """
    if view.partitions is None or view.min_insync is None:
        what = "the partitions" if view.partitions is None else "min.insync.replicas of the topics"
        return not_yet(could_not_read(what))
    return together((no_other_down(view, ids), _nothing_out_of_sync(view.partitions), _enough_left(view, set(ids))))


def in_sync(view: ClusterView) -> Gate:
    """Whether every replica of every partition is in its ISR, so that none is below its min.insync.replicas either."""
    if view.partitions is None:
        return not_yet(could_not_read("the partitions"))
    return _nothing_out_of_sync(view.partitions)


def no_broker_fenced(view: ClusterView) -> Gate:
    """Whether every broker that answers is known as alive to all others; in KRaft mode a fenced one is not."""
    return together(_unfenced(view, broker) for broker in view.running_brokers())


def no_other_down(view: ClusterView, ids: Collection[int] = ()) -> Gate:
    """Whether all brokers but these answer, and none is there that was not asked."""
    down = [broker for broker in view.in_mode(None) if broker not in ids and view.brokers[broker].named]
    return together((not_yet_if(down, Reason("R01", f"Brokers that do not answer: {join_ids(down)}.")), gates.all_named(view)))


def _nothing_out_of_sync(partitions: Sequence[Partition]) -> Gate:
    behind = [p for p in partitions if p.under_replicated or p.leader < 0]
    return not_yet_if(behind, Reason("S02", f"{len(behind)} partitions are under-replicated: {_in_full(behind)}."))


def _enough_left(view: ClusterView, ids: set[int]) -> Gate:
    unread = sorted({p.topic for p in view.partitions or () if p.topic not in (view.min_insync or {}) and ids & set(p.replicas)})
    if unread:
        return not_yet(could_not_read(f"min.insync.replicas of {summarize(unread)}"))
    short = [p for p in view.partitions or () if _left_short(p, ids, (view.min_insync or {}).get(p.topic))]
    text = f"Without broker {join_ids(sorted(ids))} these would have fewer in-sync replicas than min.insync.replicas: {_in_full(short)}."
    if any(partition.under_replicated for partition in short):
        return not_yet(Reason("S02", text))
    return never_if(short, Reason("S02", text))  # with every replica in sync waiting cannot help: the set itself is wrong


def _left_short(partition: Partition, ids: set[int], min_insync: int | None) -> bool:
    if not ids & set(partition.replicas):
        return False
    needed = max(1, min_insync) if min_insync is not None else len(partition.replicas)
    waived = min_insync is not None and len(partition.replicas) <= needed
    return not waived and len(set(partition.isr) - ids) < needed


def no_reassignment(view: ClusterView) -> Gate:
    """Whether no reassignment runs: while partitions move, data are not yet where a stop expects them."""
    if view.moving is None:
        return not_yet(could_not_read("the reassignments"))
    text = f"{len(view.moving)} partitions are being reassigned: {summarize(view.moving)}."
    return not_yet_if(view.moving, Reason("S04", text))


def next_to_roll(view: ClusterView, order: Sequence[int], target: BrokerMode) -> int | None:
    """The broker to roll now: one under way first, then `order`, the ZooKeeper controller last; None when all are done."""
    left = [broker for broker in order if not _in_target_mode(view, broker, target)]
    if not left:
        return None
    under_way = (broker for broker in left if not view.answered(broker))
    free = (broker for broker in left if not _after_others(view, broker, left, target))
    return next(chain(under_way, free), left[0])


def postponed_restart(view: ClusterView, broker: int) -> str:
    """Why a broker that restarts in its mode does so after all others; empty if it does not."""
    is_last = len(view.zk.broker_ids if view.zk else ()) > 1 and zookeeper_controller(view) == broker
    return f"Broker {broker} is the ZooKeeper controller: it restarts last." if is_last else ""


def postponed(view: ClusterView, broker: int, order: Sequence[int], target: BrokerMode) -> str:
    """Why this broker waits for the end of its roll: it is healthy, and others that come first are left. Empty if it does not."""
    others = [other for other in order if other != broker and not _in_target_mode(view, other, target)]
    untouched = view.broker(broker).mode not in {None, target}
    return _after_others(view, broker, others, target) if others and untouched else ""


def _after_others(view: ClusterView, broker: int, left: Collection[int], target: BrokerMode) -> str:
    """Why a broker goes after others; empty if it does not.

    The ZooKeeper controller goes last, unless it was rolled back before: then it goes before the last broker that was not.
    """
    if _still_registered(view, broker, target):
        return ""
    others = sorted(set(left) - {broker})
    if others and all(_still_registered(view, other, target) for other in others):
        return (
            f"All other remaining brokers ({join_ids(others)}) were rolled back: broker {broker} restarts after them. The takeover starts when the "
            "controllers know every broker, and would isolate a broker in ZooKeeper mode."
        )
    return f"Broker {broker} is the ZooKeeper controller: it restarts last." if zookeeper_controller(view) == broker else ""


def _still_registered(view: ClusterView, broker: int, target: BrokerMode) -> bool:
    """Whether the controllers still count this ZooKeeper broker as registered: it was in migration mode and was rolled back."""
    if view.zk is None or target is not BrokerMode.MIGRATION:
        return False
    return broker in view.zk.registered or view.zk.rolled_back.get(broker) is BrokerMode.ZOOKEEPER


def _in_target_mode(view: ClusterView, broker: int, target: BrokerMode) -> bool:
    mode = view.broker(broker).mode
    beyond = target is BrokerMode.MIGRATION and mode is BrokerMode.KRAFT
    return mode is target or beyond or _first_roll_over(view, target)


def _first_roll_over(view: ClusterView, target: BrokerMode) -> bool:
    """Whether the finalization left nodes behind, which only the second roll recovers: the first has nothing left to do."""
    return target is BrokerMode.MIGRATION and where(view).phase in {Phase.LEFT_BEHIND, Phase.ENDED}


def is_first(view: ClusterView, broker: int, target: BrokerMode) -> bool:
    """Whether no other broker is in this mode yet: this one is the first of its pass. False once the migration has ended."""
    return not ended(view) and not any(_in_target_mode(view, other, target) for other in view.brokers if other != broker)


def is_canary(view: ClusterView, broker: int, target: BrokerMode) -> bool:
    """Whether this broker is the first and so far only one in its new mode; false once the migration has ended."""
    return view.brokers[broker].mode is target and is_first(view, broker, target)


def may_bake(view: ClusterView) -> Gate:
    """The first broker of a pass may bake on: every broker answers, every replica is in sync, no alarm."""
    danger = alarms(view)
    return never(*danger) if danger else may_stop(view, ())


def may_give_up(view: ClusterView, *ids: int) -> Gate:
    """`may_stop` for brokers that are themselves unhealthy: partitions whose ISR misses one lose nothing when it stops.

    Nor do partitions count that a broker leads which a finalization left behind: it changes no ISR, and only its own restart ends that.
    """
    rows = view.partitions
    if rows is not None and where(view).phase is Phase.LEFT_BEHIND:
        rows = tuple(row for row in rows if row.leader not in isolated_brokers(view) or row.leader in ids)
    if rows is not None:
        rows = tuple(replace(row, replicas=tuple(r for r in row.replicas if r in row.isr or r not in ids)) for row in rows)
    return may_stop(replace(view, partitions=rows), ids)


def enough_left(view: ClusterView, broker: int) -> Gate:
    """Whether partitions whose ISRs name this broker keep their min.insync.replicas without it, whatever else is out of sync."""
    if view.partitions is None or view.min_insync is None:
        return not_yet(could_not_read("the partitions and min.insync.replicas of the topics"))
    return _enough_left(replace(view, partitions=tuple(row for row in view.partitions if broker in row.isr)), {broker})


def brokers_isolated(view: ClusterView) -> bool:
    """Whether brokers are isolated from their controller, so that only their restart recovers them: no group is waited for."""
    return where(view).phase in _ISOLATED


def decide_restart(view: ClusterView, broker_id: int, target: BrokerMode, before: ClusterView | None = None) -> Decision:
    """What is left to do to bring one broker into `target`; `before`: a view to measure the dual-write's movement from."""
    broker = view.broker(broker_id)
    if _first_roll_over(view, target):
        return Done("The migration is finalized; only the second roll recovers a broker that was left behind.")
    if _in_target_mode(view, broker_id, target):
        return settled(view, broker, target)
    if target is (BrokerMode.KRAFT if ended(view) else BrokerMode.MIGRATION) and gates.is_beside_kraft(view, broker):
        return _brought_back(view, broker, target)
    if broker.process.state is ProcessState.STOPPED:
        return _stopped(view, broker, target)
    if broker.mode is None:
        return unresponsive(broker)
    return _ready(view, broker, target, before)


def _brought_back(view: ClusterView, broker: Broker, target: BrokerMode) -> Decision:
    """Restart a broker that does not answer. After the end it serves nothing that another one could lose by its stop."""
    if broker.files.properties is None:
        return Wait((could_not_read(f"the properties of broker {broker.id}"),))
    if broker.process.state is ProcessState.UNKNOWN:
        return unmet(gates.process_known(broker))
    flag = _leader_flagged(view) if target is BrokerMode.MIGRATION else MET
    gate = together((flag, MET if ended(view) else may_give_up(view, broker.id)))
    text = f"Broker {broker.id} does not answer and has a file of ZooKeeper mode beside KRaft: it restarts in {target} mode."
    return Act(Verb.RESTART, text) if gate.met else unmet(gate)


def _leader_flagged(view: ClusterView) -> Gate:
    """G05 if the active controller has no flag: it registers no broker in migration mode (ClusterControlManager, 3.9)."""
    text = "The active controller runs without the migration flag."
    return never(unflagged(view, text)) if leader_flag(view) is False else MET


def unresponsive(broker: Broker) -> Wait:
    """Wait for a broker whose process runs, according to its host, but does not answer."""
    return Wait((Reason("R01", f"Broker {broker.id} does not answer; its process is {broker.process.state}."),))


def session_not_over(broker: Broker) -> Wait:
    """Wait for the ephemeral znode of a killed ZooKeeper broker to expire."""
    return Wait((Reason("R03", f"Broker {broker.id} is stopped, but its ZooKeeper session has not expired."),))


def _stopped(view: ClusterView, broker: Broker, target: BrokerMode) -> Decision:
    stage, back = stage_on_disk(broker.files), view.zk.rolled_back.get(broker.id) if view.zk else None
    owned = back is BrokerMode.ZOOKEEPER and kraft_owns(view)
    ours = back is not None and stage is STAGE[back] and not owned
    if (ours or stage is FileStage.MIGRATION) and broker.in_zookeeper is not False:
        return session_not_over(broker)
    if stage in _STAGES[target]:
        return Act(Verb.START, f"Broker {broker.id} is stopped and has its new properties: continuing an interrupted restart.")
    if ours:
        return Act(Verb.START, f"Broker {broker.id} was being rolled back and is stopped: it starts again in {back} mode.")
    text = f"Broker {broker.id} is down, but this step did not stop it: its properties are not the new ones."
    return Wait((Reason("R01", text),))


def _ready(view: ClusterView, broker: Broker, target: BrokerMode, before: ClusterView | None) -> Decision:
    permitted, phase = gates.permitted(view, INTENT[target]), where(view).phase
    if permitted.state is GateState.NEVER:
        return unmet(permitted)
    gate = together(
        (
            permitted,
            gates.process_known(broker),
            _no_danger(view, phase),
            _pass_gate(view, broker, target),
            no_reassignment(view),
            may_give_up(view, broker.id, *_unresponsive_left_behind(view, phase))
            if phase in _ISOLATED
            else may_stop(view, (broker.id,)),
            *(() if phase in _ISOLATED else (gates.latency_recovered(view),)),
        )
    )
    # What costs requests to every node is read last. An isolated broker must come back, whatever a rollback misses.
    for parts in () if phase in _ISOLATED else (_MOVING_PARTS, EVERY_PART):
        ask = ReadinessAsk(parts, before, rolling=_WRITTEN[target])
        gate = readiness.before_step(view, ask) if gate.met else gate
    gate = coordinator.noted(view) if gate.met and phase not in _ISOLATED else gate
    alarm = gates.warn_of_zookeeper_groups(view) if target is BrokerMode.KRAFT else ""
    text = f"Broker {broker.id} may stop: every partition keeps enough in-sync replicas and every gate holds.{alarm}"
    return Act(Verb.RESTART, text) if gate.met else unmet(gate)


def _unresponsive_left_behind(view: ClusterView, phase: Phase) -> list[int]:
    """Brokers of a finalized cluster that do not answer because they were left behind; their own restarts wait for no other."""
    if phase is not Phase.LEFT_BEHIND:
        return []
    return [broker.id for broker in view.brokers.values() if broker.mode is None and is_of_zookeeper(broker)]


def _no_danger(view: ClusterView, phase: Phase) -> Gate:
    # This very roll recovers a left-behind or isolated broker; its own alarm and, once finalized, the flags must not stop it.
    others = [] if phase in _ISOLATED else [reason for reason in alarms(view) if reason.cause is not Cause.UNFLAGGED_CONTROLLER]
    flags = {Phase.LEFT_BEHIND: MET, Phase.SPLIT: _leader_flagged(view)}.get(phase) or gates.all_flagged(view)
    return together((never_if(others, *others), flags))


def _pass_gate(view: ClusterView, broker: Broker, target: BrokerMode) -> Gate:
    others = [other for other in view.brokers.values() if other.id != broker.id]
    if not all(_in_target_mode(view, other.id, target) or _still_registered(view, other.id, target) for other in others):
        return MET
    if target is BrokerMode.MIGRATION:
        return gates.all_in_migration_mode(view, but=(broker.id,))
    others_lead = MET if where(view).phase is Phase.LEFT_BEHIND else gates.no_leaderless(view)  # they may be its own
    return together((gates.no_live_groups(view), others_lead))


def settled(view: ClusterView, broker: Broker, target: BrokerMode) -> Decision:
    """Whether a broker in its new mode takes part again: registered, known to all others, in every ISR, with the right file.

    The file (`config_matrix.misfiled`) makes it do so again after its next start.
    """
    if broker.mode is target and (wrong := misfiled(f"broker {broker.id}", broker.files, STAGE[target])) is not None:
        return wrong
    gate = together((_registered(broker), _unfenced(view, broker), _in_every_isr(view, broker.id)))
    text = f"Broker {broker.id} runs in {broker.mode or target} mode, is registered, and in the ISR of all its partitions."
    return Done(text) if gate.met else Wait(gate.reasons)


def written_at_start(view: ClusterView, broker_id: int, target: BrokerMode) -> Refuse | None:
    """R13: a broker that answers in another mode, after kmigrate started it with the file of `target`, has another file.

    None if not, or not known. One in the right mode was started with the right file: `settled` writes that again.
    """
    broker = view.broker(broker_id)
    found = stage_on_disk(broker.files)
    if broker.mode in {None, target} or found in {None, STAGE[target]}:
        return None
    text = f"Broker {broker.id} was started with the file for {target} mode, and now its file is of stage '{found}' again."
    return Refuse((Reason("R13", text),))


def takes_part(view: ClusterView, broker: int) -> bool:
    """Whether a broker answers, is known as alive to all others and is in every ISR; ignores its registration and file."""
    return view.answered(broker) and _unfenced(view, view.brokers[broker]).met and _in_every_isr(view, broker).met


def _registered(broker: Broker) -> Gate:
    if broker.in_zookeeper is None:
        return not_yet(Reason("R03", f"Could not read whether broker {broker.id} is registered in ZooKeeper."))
    text = f"Broker {broker.id} is {'still' if broker.in_zookeeper else 'not'} registered under /brokers/ids."
    return not_yet_if(broker.in_zookeeper is (broker.mode is BrokerMode.KRAFT), Reason("R03", text))


def _unfenced(view: ClusterView, broker: Broker) -> Gate:
    if broker.listed_by is None:
        return not_yet(Reason("R03", f"Could not read whether broker {broker.id} is unfenced."))
    missing = sorted(
        {other.id for other in view.running_brokers()} - broker.listed_by - (set(isolated_brokers(view)) - {broker.id})
    )
    return not_yet_if(missing, Reason("R03", f"Broker {broker.id} is not yet known as alive to brokers {join_ids(missing)}."))


def _in_every_isr(view: ClusterView, broker: int) -> Gate:
    if view.partitions is None:
        return not_yet(could_not_read("the partitions"))
    isolated = set(isolated_brokers(view)) - {broker}
    out = tuple(row for row in view.missing_isr(broker) if row.leader not in isolated)
    text = f"Broker {broker} is not in the ISR of {len(out)} partitions: {_in_full(out)}."
    return not_yet_if(out, Reason("R05", text, cause=Cause.OUT_OF_ISR))


def _in_full(partitions: Sequence[Partition]) -> str:
    rows = (f"{p.name} (leader {p.leader}, replicas {list(p.replicas)}, ISR {list(p.isr)})" for p in sorted(partitions))
    return summarize(rows, 6)


WINDOW = 10.0  # seconds; the active controller writes a record every 0.5 s (metadata.max.idle.interval.ms)


@dataclass(frozen=True, slots=True)
class MovedSince:
    """Observations in which ZooKeeper was read; `old`: the one from which movement of the dual-write is measured.

    It is renewed, so that a dual-write that dies during a long wait is noticed.
    """

    old: ClusterView
    young: ClusterView


def moved_since(so_far: MovedSince | None, view: ClusterView, first: ClusterView) -> MovedSince:
    """Add one observation; compare it with `first`, later with one taken `WINDOW` to twice as many seconds ago."""
    known = so_far or MovedSince(first, first)
    if view.zk is not None and view.taken_at - known.young.taken_at >= WINDOW:
        return MovedSince(known.young, view)
    return known


LEFT_OUT_FOR = 10.0  # seconds; a partition whose only replica has just been unfenced has a leader within one
MOST_ROUNDS = 20  # at most this many elections, whatever the number of partitions: each costs a pause


def not_preferred(view: ClusterView) -> tuple[Partition, ...]:
    """Partitions that could be led by their preferred replica (the first, in sync) and are not."""
    return tuple(p for p in view.partitions or () if p.leader != p.replicas[0] and p.replicas[0] in p.isr)


def batch(view: ClusterView, size: int, total: int) -> tuple[Partition, ...]:
    """The next partitions to elect: `size` of them, or more if `total` would take more than `MOST_ROUNDS`."""
    return not_preferred(view)[: max(size, -(-total // MOST_ROUNDS))]


def decide_leaders(view: ClusterView) -> Decision:
    """Elect while a partition is not led by its preferred replica."""
    if view.partitions is None:
        return Wait((could_not_read("the partitions"),))
    if left := not_preferred(view):
        return Act(Verb.ELECT, f"{len(left)} partitions are not led by their preferred replica.")
    return Done("Every partition is led by its preferred replica.")


def left_out(view: ClusterView, broker: int) -> tuple[Partition, ...]:
    """Partitions that miss only a leader, with this broker in their ISR, if nothing else keeps it from taking part.

    The broker that registers last triggers the takeover. Its partitions without a leader are copied as such, it is unfenced
    during the copy, and no controller elects later (measured with 10,000 partitions of one replica each: 3,204 of them). Empty if
    anything else is wrong, or if ZooKeeper owns the cluster: then its controller elects.
    """
    missing = view.missing_isr(broker)
    return missing if kraft_owns(view) and all(broker in p.isr for p in missing) else ()


MIN_SAMPLES = 8  # fewer prove nothing
SETTLING = 10.0  # seconds from the first good observation of the broker that are not judged
JUDGED_FOR = 15.0  # seconds of observations over which answers are judged; ISRs over all of them
TIMES_SLOWER = 3.0
SECONDS_SLOWER = 0.25
UNRESPONSIVE_SHARE = 0.3  # of the observations
DEPARTURES = 3  # more than any other broker's; a follower leaves after 30 s at the earliest, so they are minutes apart


@dataclass(frozen=True, slots=True)
class BakeSample:
    """One observation of every broker; `outside`: the partitions whose ISR it is not in, None if they were not read."""

    at: float
    seconds: Mapping[int, float]
    unresponsive: frozenset[int]
    outside: Mapping[int, frozenset[str]] | None


def sample(view: ClusterView) -> BakeSample:
    """The part of an observation that is judged."""
    brokers = view.brokers.values()
    return BakeSample(
        view.taken_at,
        {broker.id: broker.answered_in for broker in brokers if broker.mode is not None and broker.answered_in is not None},
        frozenset(broker.id for broker in brokers if broker.mode is None),
        None if view.partitions is None else {broker.id: _outside(view, broker.id) for broker in brokers},
    )


def judge_bake(
    before: Sequence[BakeSample], since: Sequence[BakeSample], broker: int, bake: float, watched: float = 0.0
) -> tuple[Reason, ...] | None:
    """Why a broker is worse, from observations `before` its restart (or none) and `since` it was back; None: too few of them.

    `bake`: seconds that it is watched in all; short ones settle and judge over less. `watched`: seconds of them before these
    observations.
    """
    settled = since[0].at + max(0.0, min(SETTLING, bake / 2) - watched) if since else 0.0
    counted = [one for one in since if one.at >= settled]
    last = [one for one in counted if one.at > counted[-1].at - min(JUDGED_FOR, bake / 2)]
    if len(counted) < MIN_SAMPLES:
        return None
    recent = max(last, counted[-MIN_SAMPLES:], key=len)
    found = (_not_answering(recent, broker), _slow(before, recent, broker), _leaving(counted, broker))
    return tuple(Reason("V23", text) for text in found if text)


def previous_mode(mode: BrokerMode) -> BrokerMode:
    """The mode that a broker in this mode is rolled back to."""
    return {BrokerMode.KRAFT: BrokerMode.MIGRATION}.get(mode, BrokerMode.ZOOKEEPER)


def rolled_back(view: ClusterView, broker: int, mode: BrokerMode) -> Reason:
    """The refusal once a broker is back in `mode`."""
    text = f"Broker {broker} was rolled back to {mode} mode; no other broker was. It serves as before."
    kept = "" if kraft_owns(view) else " The controllers still know it: it must restart before the last of the others."
    return Reason("V26", text + kept)


def not_rolled_back(broker: int, why: str) -> Reason:
    """The refusal if the broker could not be rolled back."""
    return Reason("V27", f"Broker {broker} could not be rolled back: {why}")


def _outside(view: ClusterView, broker: int) -> frozenset[str]:
    rows = view.partitions or ()
    return frozenset(row.name for row in rows if broker in row.replicas and broker not in row.isr)


def _others(samples: Sequence[BakeSample], broker: int) -> set[int]:
    return {one for each in samples for one in (*each.seconds, *each.unresponsive)} - {broker}


def _not_answering(samples: Sequence[BakeSample], broker: int) -> str:
    missed = {one: sum(one in each.unresponsive for each in samples) for one in (broker, *_others(samples, broker))}
    others = max((count for one, count in missed.items() if one != broker), default=0)
    if missed[broker] <= 2 * others or missed[broker] < UNRESPONSIVE_SHARE * len(samples):
        return ""
    return f"Broker {broker} did not answer in {missed[broker]} of {len(samples)} observations since its restart (any other: {others} at most)."


def _slow(before: Sequence[BakeSample], samples: Sequence[BakeSample], broker: int) -> str:
    now, others = _median(samples, {broker}), _median(samples, _others(samples, broker))
    known = {"before its restart": _median(before, {broker}), "the other brokers now": others}
    limits = {name: seconds for name, seconds in known.items() if seconds is not None}
    if now is None or not limits or now <= TIMES_SLOWER * max(limits.values()) + SECONDS_SLOWER:
        return ""
    compared = ", ".join(f"{name}: {1000 * seconds:.0f} ms" for name, seconds in limits.items())
    return f"Broker {broker} takes {1000 * now:.0f} ms to answer since its restart ({compared}; medians of {len(samples)} observations)."


def _leaving(samples: Sequence[BakeSample], broker: int) -> str:
    left = departures(samples, broker)
    others = max((departures(samples, one) for one in _others(samples, broker)), default=0)
    if left < others + DEPARTURES:
        return ""
    return f"Broker {broker} left ISRs {left} times since its restart (any other: {others} at most)."


def departures(samples: Sequence[BakeSample], broker: int) -> int:
    """How many observations show it out of an ISR that it was in before; leaving all its ISRs at once counts as one."""
    known = [one.outside.get(broker, frozenset()) for one in samples if one.outside is not None]
    return sum(bool(later - earlier) for earlier, later in pairwise(known))


def _median(samples: Sequence[BakeSample], brokers: Collection[int]) -> float | None:
    seconds = [one.seconds[broker] for one in samples for broker in brokers if broker in one.seconds]
    return median(seconds) if len(seconds) >= MIN_SAMPLES // 2 else None


_KEPT = 3000  # observations; ten minutes of them, or more


@dataclass(frozen=True, slots=True)
class CanaryBake:
    """Observations `before` the restart and `since`; only the first broker of its pass is judged, and only if it bakes.

    `bake`: seconds that it is watched in all; `held`: seconds watched by earlier processes of the step; `worse`: reasons found by
    any of them. `fine`: enough was observed.
    """

    broker: int
    target: BrokerMode
    bake: float
    held: float = 0.0
    worse: tuple[Reason, ...] = ()
    before: tuple[BakeSample, ...] = ()
    since: tuple[BakeSample, ...] = ()
    fine: bool = False

    def measures(self, view: ClusterView) -> bool:
        """Whether more than one sample is missing before the restart: what allows it need not be read yet."""
        return self.bake > 0 and len(self.before) + 1 < MIN_SAMPLES and is_first(view, self.broker, self.target)

    def baked(self, done: Done, gate: Gate, healthy_s: float) -> Decision:
        """Done once all was healthy for the bake time (`healthy_s` so far) and enough was observed; `gate`: must hold meanwhile."""
        if not gate.met:
            return unmet(gate)
        if self.bake == 0 or (healthy_s >= self.bake and self.fine):
            return done
        text = f"Broker {self.broker} bakes as the first of this pass: healthy for {healthy_s:.0f} of {self.bake:.0f} s."
        return Wait((Reason("T01", text),), healthy=True)

    def observe(self, view: ClusterView, decision: Decision) -> tuple[CanaryBake, Decision]:
        """Add one observation and the decision made without the bake; return the decision with it."""
        if self.bake == 0 or not is_first(view, self.broker, self.target):
            return self, decision
        if isinstance(decision, Act):
            return self._measured_before(view, decision)
        if isinstance(decision, Done) or self.since or self.worse:
            return self._judged(view, decision)
        return self, decision

    def _measured_before(self, view: ClusterView, act: Act) -> tuple[CanaryBake, Decision]:
        if act.verb is not Verb.RESTART:
            return self, act
        before = (*self.before, sample(view))[-_KEPT:]
        again = replace(self, worse=(), held=0.0, since=(), before=before)  # another restart follows
        if len(before) >= MIN_SAMPLES:
            return again, act
        text = f"Broker {self.broker} is the first of its pass: measured {len(before)} of {MIN_SAMPLES} times before its restart."
        return again, Wait((Reason("T01", text),), healthy=True)

    def _judged(self, view: ClusterView, decision: Decision) -> tuple[CanaryBake, Decision]:
        since = (*self.since, sample(view))[-_KEPT:]
        found = judge_bake(self.before, since, self.broker, self.bake, self.held)
        judged = replace(self, since=since, fine=found is not None, worse=self.worse or found or ())
        if not judged.worse:
            return judged, decision
        return judged, Act(Verb.ROLL_BACK_CANARY, " ".join(reason.text for reason in judged.worse))
