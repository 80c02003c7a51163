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

from airflow_provider_kmigrate.core.cluster_state.decision import Act, Decision, Done, Refuse, Verb, Wait
from airflow_provider_kmigrate.core.cluster_state.model import (
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
from airflow_provider_kmigrate.core.migration import coordinator, gates, readiness
from airflow_provider_kmigrate.core.migration.gates import (
    MET,
    Gate,
    GateState,
    combine_gates,
    never,
    never_if,
    not_yet,
    not_yet_if,
    refuse_or_wait,
)
from airflow_provider_kmigrate.core.migration.phase import (
    Intent,
    Phase,
    find_alarms,
    is_of_zookeeper,
    isolated_brokers,
    kraft_owns,
    leader_flag,
    migration_has_ended,
    position_of,
    unflagged_reason,
    zookeeper_controller,
)
from airflow_provider_kmigrate.core.migration.readiness import EVERY_PART, ReadinessAsk, RollbackPart
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage, decide_file_rewrite, stage_on_disk
from airflow_provider_kmigrate.core.shared.text import count_of, join_ids, summarize

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
    return combine_gates(
        (no_other_broker_down(view, ids), _no_partition_out_of_sync(view.partitions), _min_insync_kept(view, set(ids)))
    )


def replicas_in_sync(view: ClusterView) -> Gate:
    """Whether every replica of every partition is in its ISR, so that none is below its min.insync.replicas either."""
    if view.partitions is None:
        return not_yet(could_not_read("the partitions"))
    return _no_partition_out_of_sync(view.partitions)


def no_broker_fenced(view: ClusterView) -> Gate:
    """Whether every broker that answers is known as alive to all others; in KRaft mode a fenced one is not."""
    return combine_gates(_broker_unfenced(view, broker) for broker in view.running_brokers())


def no_other_broker_down(view: ClusterView, ids: Collection[int] = ()) -> Gate:
    """Whether all brokers but these answer, and none is there that was not asked."""
    down = [broker for broker in view.in_mode(None) if broker not in ids and view.brokers[broker].named]
    return combine_gates(
        (not_yet_if(down, Reason("R01", f"Brokers that do not answer: {join_ids(down)}.")), gates.all_brokers_named(view))
    )


def _no_partition_out_of_sync(partitions: Sequence[Partition]) -> Gate:
    out_of_sync = [p for p in partitions if p.is_under_replicated or p.leader < 0]
    text = f"{count_of(len(out_of_sync), 'partition is', 'partitions are')} under-replicated: {_format_partitions(out_of_sync)}."
    return not_yet_if(out_of_sync, Reason("S02", text, cause=Cause.UNDER_REPLICATED))


def _min_insync_kept(view: ClusterView, ids: set[int]) -> Gate:
    unread = sorted({p.topic for p in view.partitions or () if p.topic not in (view.min_insync or {}) and ids & set(p.replicas)})
    if unread:
        return not_yet(could_not_read(f"min.insync.replicas of {summarize(unread)}"))
    short = [p for p in view.partitions or () if _falls_below_min_insync(p, ids, (view.min_insync or {}).get(p.topic))]
    text = f"Without broker {join_ids(sorted(ids))} these would have fewer in-sync replicas than min.insync.replicas: {summarize((p.name for p in sorted(short)), _SHOWN_PARTITIONS)}."
    if any(partition.is_under_replicated for partition in short):
        return not_yet(Reason("S02", text, cause=Cause.UNDER_REPLICATED))
    return never_if(short, Reason("S02", text))  # with every replica in sync waiting cannot help: the set itself is wrong


def _falls_below_min_insync(partition: Partition, ids: set[int], min_insync: int | None) -> bool:
    if not ids & set(partition.replicas):
        return False
    needed = max(1, min_insync) if min_insync is not None else len(partition.replicas)
    waived = min_insync is not None and len(partition.replicas) <= needed
    return not waived and len(set(partition.isr) - ids) < needed


def no_reassignment(view: ClusterView) -> Gate:
    """Whether no reassignment runs: while partitions move, data are not yet where a stop expects them."""
    if view.moving is None:
        return not_yet(could_not_read("the reassignments"))
    text = f"{count_of(len(view.moving), 'partition is', 'partitions are')} being reassigned: {summarize(view.moving)}."
    return not_yet_if(view.moving, Reason("S04", text))


def next_to_roll(view: ClusterView, order: Sequence[int], target: BrokerMode) -> int | None:
    """The broker to roll now: one under way first, then `order`, the ZooKeeper controller last; None when all are done."""
    remaining = [broker for broker in order if not _is_in_target_mode(view, broker, target)]
    if not remaining:
        return None
    under_way = (broker for broker in remaining if not view.has_answered(broker))
    free = (broker for broker in remaining if not _why_after_others(view, broker, remaining, target))
    return next(chain(under_way, free), remaining[0])


def why_broker_restarts_last(view: ClusterView, broker: int) -> str:
    """Why a broker that restarts in its mode does so after all others; empty if it does not."""
    is_last = len(view.zk.broker_ids if view.zk else ()) > 1 and zookeeper_controller(view) == broker
    return f"Broker {broker} is the ZooKeeper controller: it restarts last." if is_last else ""


def why_postponed(view: ClusterView, broker: int, order: Sequence[int], target: BrokerMode) -> str:
    """Why this broker waits for the end of its roll: it is healthy, and others that come first are left. Empty if it does not."""
    others = [other for other in order if other != broker and not _is_in_target_mode(view, other, target)]
    untouched = view.broker(broker).mode not in {None, target}
    return _why_after_others(view, broker, others, target) if others and untouched else ""


def _why_after_others(view: ClusterView, broker: int, remaining: Collection[int], target: BrokerMode) -> str:
    """Why a broker goes after others; empty if it does not.

    The ZooKeeper controller goes last, unless it was rolled back before: then it goes before the last broker that was not.
    """
    if _is_still_registered(view, broker, target):
        return ""
    others = sorted(set(remaining) - {broker})
    if others and all(_is_still_registered(view, other, target) for other in others):
        return (
            f"All other remaining brokers ({join_ids(others)}) were rolled back: broker {broker} restarts after them. The takeover starts when the "
            "controllers know every broker, and would isolate a broker in ZooKeeper mode."
        )
    return f"Broker {broker} is the ZooKeeper controller: it restarts last." if zookeeper_controller(view) == broker else ""


def _is_still_registered(view: ClusterView, broker: int, target: BrokerMode) -> bool:
    """Whether the controllers still count this ZooKeeper broker as registered: it was in migration mode and was rolled back."""
    if view.zk is None or target is not BrokerMode.MIGRATION:
        return False
    return broker in view.zk.registered or view.zk.rolled_back.get(broker) is BrokerMode.ZOOKEEPER


def _is_in_target_mode(view: ClusterView, broker: int, target: BrokerMode) -> bool:
    mode = view.broker(broker).mode
    beyond = target is BrokerMode.MIGRATION and mode is BrokerMode.KRAFT
    return mode is target or beyond or _is_first_roll_over(view, target)


def _is_first_roll_over(view: ClusterView, target: BrokerMode) -> bool:
    """Whether the finalization left nodes behind, which only the second roll recovers: the first has nothing left to do."""
    return target is BrokerMode.MIGRATION and position_of(view).phase in {Phase.LEFT_BEHIND, Phase.ENDED}


def is_first(view: ClusterView, broker: int, target: BrokerMode) -> bool:
    """Whether no other broker is in this mode yet: this one is the first of its pass. False once the migration has ended."""
    return not migration_has_ended(view) and not any(
        _is_in_target_mode(view, other, target) for other in view.brokers if other != broker
    )


def is_canary(view: ClusterView, broker: int, target: BrokerMode) -> bool:
    """Whether this broker is the first and so far only one in its new mode; false once the migration has ended."""
    return view.brokers[broker].mode is target and is_first(view, broker, target)


def may_bake(view: ClusterView) -> Gate:
    """The first broker of a pass may bake on: every broker answers, every replica is in sync, no alarm."""
    danger = find_alarms(view)
    return never(*danger) if danger else may_stop(view, ())


def may_stop_unhealthy(view: ClusterView, *ids: int) -> Gate:
    """`may_stop` for brokers that are themselves unhealthy: partitions whose ISR misses one lose nothing when it stops.

    Nor do partitions count that a broker leads which a finalization left behind: it changes no ISR, and only its own restart ends that.
    """
    rows = view.partitions
    if rows is not None and position_of(view).phase is Phase.LEFT_BEHIND:
        rows = tuple(row for row in rows if row.leader not in isolated_brokers(view) or row.leader in ids)
    if rows is not None:
        rows = tuple(replace(row, replicas=tuple(r for r in row.replicas if r in row.isr or r not in ids)) for row in rows)
    return may_stop(replace(view, partitions=rows), ids)


def isrs_keep_min_insync(view: ClusterView, broker: int) -> Gate:
    """Whether partitions whose ISRs name this broker keep their min.insync.replicas without it, whatever else is out of sync."""
    if view.partitions is None or view.min_insync is None:
        return not_yet(could_not_read("the partitions and min.insync.replicas of the topics"))
    return _min_insync_kept(replace(view, partitions=tuple(row for row in view.partitions if broker in row.isr)), {broker})


def has_isolated_brokers(view: ClusterView) -> bool:
    """Whether brokers are isolated from their controller, so that only their restart recovers them: no group is waited for."""
    return position_of(view).phase in _ISOLATED


def decide_restart(view: ClusterView, broker_id: int, target: BrokerMode, before: ClusterView | None = None) -> Decision:
    """What is left to do to bring one broker into `target`; `before`: a view to measure the dual-write's movement from."""
    broker = view.broker(broker_id)
    if _is_first_roll_over(view, target):
        return Done("The migration is finalized; only the second roll recovers a broker that was left behind.")
    if _is_in_target_mode(view, broker_id, target):
        return decide_settled(view, broker, target)
    if target is (BrokerMode.KRAFT if migration_has_ended(view) else BrokerMode.MIGRATION) and gates.is_beside_kraft(
        view, broker
    ):
        return _decide_restart_beside_kraft(view, broker, target)
    if broker.process.state is ProcessState.STOPPED:
        return _decide_stopped_broker(view, broker, target)
    if broker.mode is None:
        return wait_for_answer(broker)
    return _decide_running_broker(view, broker, target, before)


def _decide_restart_beside_kraft(view: ClusterView, broker: Broker, target: BrokerMode) -> Decision:
    """Restart a broker that does not answer. After the end it serves nothing that another one could lose by its stop."""
    if broker.files.properties is None:
        return Wait((could_not_read(f"the properties of broker {broker.id}"),))
    if broker.process.state is ProcessState.UNKNOWN:
        return refuse_or_wait(gates.process_known(broker))
    flag = _leader_flagged(view) if target is BrokerMode.MIGRATION else MET
    stop = MET if migration_has_ended(view) else may_stop_unhealthy(view, broker.id)
    gate = combine_gates((flag, gates.software_unchanged(broker), stop))
    text = f"Broker {broker.id} does not answer and has a file of ZooKeeper mode beside KRaft: it restarts in {target} mode."
    return Act(Verb.RESTART, text) if gate.met else refuse_or_wait(gate)


def _leader_flagged(view: ClusterView) -> Gate:
    """G05 if the active controller has no flag: it registers no broker in migration mode (ClusterControlManager, 3.9)."""
    text = "The active controller runs without the migration flag."
    return never(unflagged_reason(view, text)) if leader_flag(view) is False else MET


def wait_for_answer(broker: Broker) -> Wait:
    """Wait for a broker whose process runs, according to its host, but does not answer."""
    return Wait((Reason("R01", f"Broker {broker.id} does not answer; its process is {broker.process.state}."),))


def wait_for_session_end(broker: Broker) -> Wait:
    """Wait for the ephemeral znode of a killed ZooKeeper broker to expire."""
    return Wait((Reason("R03", f"Broker {broker.id} is stopped, but its ZooKeeper session has not expired."),))


def _decide_stopped_broker(view: ClusterView, broker: Broker, target: BrokerMode) -> Decision:
    stage, rolled_back_to = stage_on_disk(broker.files), view.zk.rolled_back.get(broker.id) if view.zk else None
    owned = rolled_back_to is BrokerMode.ZOOKEEPER and kraft_owns(view)
    ours = rolled_back_to is not None and stage is STAGE[rolled_back_to] and not owned
    if (ours or stage is FileStage.MIGRATION) and broker.in_zookeeper is not False:
        return wait_for_session_end(broker)
    if stage in _STAGES[target]:
        return Act(Verb.START, f"Broker {broker.id} is stopped and has its new properties: continuing an interrupted restart.")
    if ours:
        return Act(
            Verb.START, f"Broker {broker.id} was being rolled back and is stopped: it starts again in {rolled_back_to} mode."
        )
    text = f"Broker {broker.id} is down, but this step did not stop it: its properties are not the new ones."
    return Wait((Reason("R01", text),))


def _decide_running_broker(view: ClusterView, broker: Broker, target: BrokerMode, before: ClusterView | None) -> Decision:
    permitted, phase = gates.phase_permits(view, INTENT[target]), position_of(view).phase
    if permitted.state is GateState.NEVER:
        return refuse_or_wait(permitted)
    always = (
        permitted,
        gates.process_known(broker),
        gates.software_unchanged(broker),
        _no_blocking_alarm(view, phase),
        _may_end_pass(view, broker, target),
        no_reassignment(view),
    )
    if phase in _ISOLATED:  # it must come back, whatever a rollback misses
        gate = combine_gates((*always, may_stop_unhealthy(view, broker.id, *_unresponsive_left_behind(view, phase))))
    else:
        its_stop = (may_stop(view, (broker.id,)), gates.one_release_runs(view), gates.latency_recovered(view))
        gate = combine_gates((*always, *its_stop))
        for parts in (_MOVING_PARTS, EVERY_PART):  # what costs requests to every node is read last
            ask = ReadinessAsk(parts, before, rolling=_WRITTEN[target])
            gate = readiness.assured_before_step(view, ask) if gate.met else gate
        gate = coordinator.counts_noted(view) if gate.met else gate
    alarm = gates.warn_of_zookeeper_groups(view) if target is BrokerMode.KRAFT else ""
    text = f"Broker {broker.id} may stop: every partition keeps enough in-sync replicas and every gate holds.{alarm}"
    return Act(Verb.RESTART, text) if gate.met else refuse_or_wait(gate)


def _unresponsive_left_behind(view: ClusterView, phase: Phase) -> list[int]:
    """Brokers of a finalized cluster that do not answer because they were left behind; their own restarts wait for no other."""
    if phase is not Phase.LEFT_BEHIND:
        return []
    return [broker.id for broker in view.brokers.values() if broker.mode is None and is_of_zookeeper(broker)]


def _no_blocking_alarm(view: ClusterView, phase: Phase) -> Gate:
    # This very roll recovers a left-behind or isolated broker; its own alarm and, once finalized, the flags must not stop it.
    others = (
        [] if phase in _ISOLATED else [reason for reason in find_alarms(view) if reason.cause is not Cause.UNFLAGGED_CONTROLLER]
    )
    flags = {Phase.LEFT_BEHIND: MET, Phase.SPLIT: _leader_flagged(view)}.get(phase) or gates.all_controllers_flagged(view)
    return combine_gates((never_if(others, *others), flags))


def _may_end_pass(view: ClusterView, broker: Broker, target: BrokerMode) -> Gate:
    others = [other for other in view.brokers.values() if other.id != broker.id]
    if not all(_is_in_target_mode(view, other.id, target) or _is_still_registered(view, other.id, target) for other in others):
        return MET
    if target is BrokerMode.MIGRATION:
        return gates.all_in_migration_mode(view, excused_brokers=(broker.id,))
    others_lead = (
        MET if position_of(view).phase is Phase.LEFT_BEHIND else gates.no_leaderless_partition(view)
    )  # they may be its own
    return combine_gates((gates.no_group_on_zookeeper(view), others_lead))


def decide_settled(view: ClusterView, broker: Broker, target: BrokerMode) -> Decision:
    """Whether a broker in its new mode takes part again: registered, known to all others, in every ISR, with the right file.

    The file (`config_matrix.decide_file_rewrite`) makes it do so again after its next start.
    """
    if broker.mode is target and (wrong := decide_file_rewrite(f"broker {broker.id}", broker.files, STAGE[target])) is not None:
        return wrong
    gate = combine_gates((_registration_fits_mode(broker), _broker_unfenced(view, broker), _in_every_isr(view, broker.id)))
    text = f"Broker {broker.id} runs in {broker.mode or target} mode, is registered, and in the ISR of all its partitions."
    return Done(text) if gate.met else Wait(gate.reasons)


def refuse_rewritten_file(view: ClusterView, broker_id: int, target: BrokerMode) -> Refuse | None:
    """R13: a broker that answers in another mode, after kmigrate started it with the file of `target`, has another file.

    None if not, or not known. One in the right mode was started with the right file: `settled` writes that again.
    """
    broker = view.broker(broker_id)
    current_stage = stage_on_disk(broker.files)
    if broker.mode in {None, target} or current_stage in {None, STAGE[target]}:
        return None
    text = (
        f"Broker {broker.id} was started with the file for {target} mode, and now its file is of stage '{current_stage}' again."
    )
    return Refuse((Reason("R13", text),))


def takes_part(view: ClusterView, broker: int) -> bool:
    """Whether a broker answers, is known as alive to all others and is in every ISR; ignores its registration and file."""
    return view.has_answered(broker) and _broker_unfenced(view, view.brokers[broker]).met and _in_every_isr(view, broker).met


def _registration_fits_mode(broker: Broker) -> Gate:
    if broker.in_zookeeper is None:
        return not_yet(Reason("R03", f"Could not read whether broker {broker.id} is registered in ZooKeeper."))
    text = f"Broker {broker.id} is {'still' if broker.in_zookeeper else 'not'} registered under /brokers/ids."
    return not_yet_if(broker.in_zookeeper is (broker.mode is BrokerMode.KRAFT), Reason("R03", text))


def _broker_unfenced(view: ClusterView, broker: Broker) -> Gate:
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
    text = f"Broker {broker} is not in the ISR of {count_of(len(out), 'partition')}: {_format_partitions(out)}."
    return not_yet_if(out, Reason("R05", text, cause=Cause.OUT_OF_ISR))


def _format_partitions(partitions: Sequence[Partition]) -> str:
    rows = (f"{p.name} (leader {p.leader}, ISR {_join(p.isr)} of {_join(p.replicas)})" for p in sorted(partitions))
    return summarize(rows, _SHOWN_PARTITIONS)


def _join(brokers: Sequence[int]) -> str:
    return ",".join(map(str, brokers))


_SHOWN_PARTITIONS = 3  # of a sentence that is read at 3 a.m.


WINDOW = 10.0  # seconds; the active controller writes a record every 0.5 s (metadata.max.idle.interval.ms)


@dataclass(frozen=True, slots=True)
class MovedSince:
    """Observations in which ZooKeeper was read; `earlier`: the one from which movement of the dual-write is measured.

    It is renewed, so that a dual-write that dies during a long wait is noticed.
    """

    earlier: ClusterView
    later: ClusterView


def update_moved_since(so_far: MovedSince | None, view: ClusterView, first: ClusterView) -> MovedSince:
    """Add one observation; compare it with `first`, later with one taken `WINDOW` to twice as many seconds ago."""
    current = so_far or MovedSince(first, first)
    if view.zk is not None and view.taken_at - current.later.taken_at >= WINDOW:
        return MovedSince(current.later, view)
    return current


LEFT_OUT_FOR = 10.0  # seconds; a partition whose only replica has just been unfenced has a leader within one
MOST_ROUNDS = 20  # at most this many elections, whatever the number of partitions: each costs a pause


def without_preferred_leader(view: ClusterView) -> tuple[Partition, ...]:
    """Partitions that could be led by their preferred replica (the first, in sync) and are not."""
    return tuple(p for p in view.partitions or () if p.leader != p.replicas[0] and p.replicas[0] in p.isr)


def next_election_batch(view: ClusterView, size: int, total: int) -> tuple[Partition, ...]:
    """The next partitions to elect: `size` of them, or more if `total` would take more than `MOST_ROUNDS`."""
    return without_preferred_leader(view)[: max(size, -(-total // MOST_ROUNDS))]


def decide_preferred_leaders(view: ClusterView) -> Decision:
    """Elect while a partition is not led by its preferred replica."""
    if view.partitions is None:
        return Wait((could_not_read("the partitions"),))
    if to_elect := without_preferred_leader(view):
        return Act(Verb.ELECT, f"{count_of(len(to_elect), 'partition is', 'partitions are')} not led by their preferred replica.")
    return Done("Every partition is led by its preferred replica.")


def skipped_by_takeover(view: ClusterView, broker: int) -> tuple[Partition, ...]:
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


def take_bake_sample(view: ClusterView) -> BakeSample:
    """The part of an observation that is judged."""
    brokers = view.brokers.values()
    return BakeSample(
        view.taken_at,
        {broker.id: broker.answered_in for broker in brokers if broker.mode is not None and broker.answered_in is not None},
        frozenset(broker.id for broker in brokers if broker.mode is None),
        None if view.partitions is None else {broker.id: _partitions_outside_isr(view, broker.id) for broker in brokers},
    )


def judge_bake(
    before: Sequence[BakeSample], since: Sequence[BakeSample], broker: int, bake: float, watched: float = 0.0
) -> tuple[Reason, ...] | None:
    """Why a broker is worse, from observations `before` its restart (or none) and `since` it was back; None: too few of them.

    `bake`: seconds that it is watched in all; short ones settle and judge over less. `watched`: seconds of them before these
    observations.
    """
    settled = since[0].at + max(0.0, min(SETTLING, bake / 2) - watched) if since else 0.0
    counted = [bake_sample for bake_sample in since if bake_sample.at >= settled]
    last = [bake_sample for bake_sample in counted if bake_sample.at > counted[-1].at - min(JUDGED_FOR, bake / 2)]
    if len(counted) < MIN_SAMPLES:
        return None
    recent = max(last, counted[-MIN_SAMPLES:], key=len)
    signs = (
        _describe_missing_answers(recent, broker),
        _describe_slowness(before, recent, broker),
        _describe_isr_departures(counted, broker),
    )
    return tuple(Reason("V23", text) for text in signs if text)


def previous_mode(mode: BrokerMode) -> BrokerMode:
    """The mode that a broker in this mode is rolled back to."""
    return {BrokerMode.KRAFT: BrokerMode.MIGRATION}.get(mode, BrokerMode.ZOOKEEPER)


def rolled_back_reason(view: ClusterView, broker: int, mode: BrokerMode) -> Reason:
    """The refusal once a broker is back in `mode`."""
    text = f"Broker {broker} was rolled back to {mode} mode; no other broker was. It serves as before."
    registration_note = (
        "" if kraft_owns(view) else " The controllers still know it: it must restart before the last of the others."
    )
    return Reason("V26", text + registration_note)


def not_rolled_back_reason(broker: int, why: str) -> Reason:
    """The refusal if the broker could not be rolled back."""
    return Reason("V27", f"Broker {broker} could not be rolled back: {why}")


def _partitions_outside_isr(view: ClusterView, broker: int) -> frozenset[str]:
    rows = view.partitions or ()
    return frozenset(row.name for row in rows if broker in row.replicas and broker not in row.isr)


def _other_brokers(samples: Sequence[BakeSample], broker: int) -> set[int]:
    return {broker_id for bake_sample in samples for broker_id in (*bake_sample.seconds, *bake_sample.unresponsive)} - {broker}


def _describe_missing_answers(samples: Sequence[BakeSample], broker: int) -> str:
    missed = {
        broker_id: sum(broker_id in bake_sample.unresponsive for bake_sample in samples)
        for broker_id in (broker, *_other_brokers(samples, broker))
    }
    others = max((count for broker_id, count in missed.items() if broker_id != broker), default=0)
    if missed[broker] <= 2 * others or missed[broker] < UNRESPONSIVE_SHARE * len(samples):
        return ""
    return f"Broker {broker} did not answer in {missed[broker]} of {count_of(len(samples), 'observation')} since its restart (any other: {others} at most)."


def _describe_slowness(before: Sequence[BakeSample], samples: Sequence[BakeSample], broker: int) -> str:
    now, others = _median_answer_time(samples, {broker}), _median_answer_time(samples, _other_brokers(samples, broker))
    baselines = {"before its restart": _median_answer_time(before, {broker}), "the other brokers now": others}
    limits = {name: seconds for name, seconds in baselines.items() if seconds is not None}
    if now is None or not limits or now <= TIMES_SLOWER * max(limits.values()) + SECONDS_SLOWER:
        return ""
    compared = ", ".join(f"{name}: {1000 * seconds:.0f} ms" for name, seconds in limits.items())
    return f"Broker {broker} takes {1000 * now:.0f} ms to answer since its restart ({compared}; medians of {count_of(len(samples), 'observation')})."


def _describe_isr_departures(samples: Sequence[BakeSample], broker: int) -> str:
    own_departures = count_departures(samples, broker)
    others = max((count_departures(samples, other) for other in _other_brokers(samples, broker)), default=0)
    if own_departures < others + DEPARTURES:
        return ""
    return f"Broker {broker} left ISRs {count_of(own_departures, 'time')} since its restart (any other: {others} at most)."


def count_departures(samples: Sequence[BakeSample], broker: int) -> int:
    """How many observations show it out of an ISR that it was in before; leaving all its ISRs at once counts as one."""
    outside_isrs = [bake_sample.outside.get(broker, frozenset()) for bake_sample in samples if bake_sample.outside is not None]
    return sum(bool(later - earlier) for earlier, later in pairwise(outside_isrs))


def _median_answer_time(samples: Sequence[BakeSample], brokers: Collection[int]) -> float | None:
    seconds = [bake_sample.seconds[broker] for bake_sample in samples for broker in brokers if broker in bake_sample.seconds]
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

    def needs_more_samples(self, view: ClusterView) -> bool:
        """Whether more than one sample is missing before the restart: what allows it need not be read yet."""
        return self.bake > 0 and len(self.before) + 1 < MIN_SAMPLES and is_first(view, self.broker, self.target)

    def decide_bake(self, done: Done, gate: Gate, healthy_s: float) -> Decision:
        """Done once all was healthy for the bake time (`healthy_s` so far) and enough was observed; `gate`: must hold meanwhile."""
        if not gate.met:
            return refuse_or_wait(gate)
        if self.bake == 0 or (healthy_s >= self.bake and self.fine):
            return done
        text = f"Broker {self.broker} bakes as the first of this pass: healthy for {healthy_s:.0f} of {self.bake:.0f} s."
        return Wait((Reason("T01", text),), healthy=True)

    def add_view(self, view: ClusterView, decision: Decision) -> tuple[CanaryBake, Decision]:
        """Add one observation and the decision made without the bake; return the decision with it."""
        if self.bake == 0 or not is_first(view, self.broker, self.target):
            return self, decision
        if isinstance(decision, Act):
            return self._add_sample_before(view, decision)
        if isinstance(decision, Done) or self.since or self.worse:
            return self._add_sample_since(view, decision)
        return self, decision

    def _add_sample_before(self, view: ClusterView, act: Act) -> tuple[CanaryBake, Decision]:
        if act.verb is not Verb.RESTART:
            return self, act
        before = (*self.before, take_bake_sample(view))[-_KEPT:]
        again = replace(self, worse=(), held=0.0, since=(), before=before)  # another restart follows
        if len(before) >= MIN_SAMPLES:
            return again, act
        text = f"Broker {self.broker} is the first of its pass: measured {len(before)} of {MIN_SAMPLES} times before its restart."
        return again, Wait((Reason("T01", text),), healthy=True)

    def _add_sample_since(self, view: ClusterView, decision: Decision) -> tuple[CanaryBake, Decision]:
        since = (*self.since, take_bake_sample(view))[-_KEPT:]
        signs = judge_bake(self.before, since, self.broker, self.bake, self.held)
        judged = replace(self, since=since, fine=signs is not None, worse=self.worse or signs or ())
        if not judged.worse:
            return judged, decision
        return judged, Act(Verb.ROLL_BACK_CANARY, " ".join(reason.text for reason in judged.worse))
