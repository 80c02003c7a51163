"""What the watch reports: alarms that need an operator at once, and what is normal for the time of a restart only.

No step runs while a run has failed, waits for an approval, or was left; the watch observes then, and in every other phase too. A node
that is down or out of its ISRs is reported with all that is known of it: its unit, its file, its registration, and which run acted
on it last. What kmigrate itself is restarting is no alarm for as long as a restart may take.

Operators get two messages about an alarm: when it begins, and when it ends (`Alarms`). One alarm is one code about one node or one
cause; new figures in its text make no new alarm. A message that could not be sent is sent again by the next watch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider_kmigrate.core.cluster_state.decision import Verb
from airflow_provider_kmigrate.core.cluster_state.model import (
    Broker,
    BrokerMode,
    Cause,
    ClusterView,
    Controller,
    Process,
    ProcessState,
    Reason,
)
from airflow_provider_kmigrate.core.cluster_state.spec import CONTROLLER_STOPS
from airflow_provider_kmigrate.core.migration import coordinator, gates
from airflow_provider_kmigrate.core.migration.phase import (
    Phase,
    find_alarms,
    flags_taken_by_us,
    isolated_broker_reason,
    kraft_owns,
    migration_has_ended,
    position_of,
    unnamed_broker_reasons,
    zookeeper_controller,
)
from airflow_provider_kmigrate.core.migration.readiness import Readiness
from airflow_provider_kmigrate.core.migration.waits import find_urgent_alarms
from airflow_provider_kmigrate.core.monitoring.journal_lines import ActSpan
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage, stage_on_disk
from airflow_provider_kmigrate.core.shared.text import count_of, format_date, join_ids, summarize

_HIDES_ALARMS = frozenset(
    {Cause.UNREAD, Cause.UNREAD_ZOOKEEPER, Cause.UNREAD_SLOW, Cause.UNREAD_STORED, Cause.UNREAD_COORDINATORS}
)
_STOPPING_VERBS = frozenset({Verb.STOP, Verb.WIPE})
_QUIET = frozenset({Phase.ZOOKEEPER, Phase.PRE_MIGRATION, Phase.FINALIZED})


@dataclass(frozen=True, slots=True)
class KnownActs:
    """The newest act of kmigrate on each node, by its name such as "broker 1", and the time `now`, in seconds since the epoch.

    `restart_within`: seconds that a restart may take until its node is back in every ISR.
    """

    of: Mapping[str, ActSpan] = field(default_factory=dict)
    now: float = 0.0
    restart_within: float = 600.0

    def is_under_way(self, node: str) -> bool:
        """Whether kmigrate acted on the node so recently that it need not be back yet."""
        act = self.of.get(node)
        if act is None or act.settled_ms is not None:
            return False
        if _is_stop(act):  # it brings nothing back
            return act.to_ms is None and self.now - act.from_ms / 1000 < CONTROLLER_STOPS
        return self.now - act.from_ms / 1000 < self.restart_within

    def has_stopped(self, controller: Controller) -> bool:
        """Whether kmigrate's last act on the controller stopped it, as a rollback does, and its machine says that it is down."""
        act = self.of.get(f"controller {controller.id}")
        return act is not None and _is_stop(act) and controller.is_down

    def describe_last_act(self, node: str) -> str:
        """Who acted last on the node, and when, as a sentence."""
        act = self.of.get(node)
        if act is None:
            return "No run of kmigrate has acted on it."
        return f"The last act on it was '{act.verb}' in step '{act.step}' of run {act.run}, at {format_date(act.from_ms)}."


def _is_stop(act: ActSpan) -> bool:
    """Whether the act stopped what it names, and starts nothing again."""
    return act.verb.split()[0] in _STOPPING_VERBS


def find_immediate_alarms(view: ClusterView, max_hybrid: float, now: float) -> tuple[Reason, ...]:
    """`find_urgent_alarms` for callers that do not know the current step: without the flags that kmigrate's own finalization takes, or has taken.

    Also brokers that compute coordinators with another count: their next start moves groups.
    """
    own = flags_taken_by_us(view) or is_finalized_by_files(view)
    counts = coordinator.brokers_agree(view)
    others = counts.reasons if counts.state is gates.GateState.NEVER else ()
    own_alarms = (
        reason for reason in find_urgent_alarms(view, max_hybrid, now) if not (own and reason.cause is Cause.UNFLAGGED_CONTROLLER)
    )
    return (*own_alarms, *others)


def find_debounced_alarms(view: ClusterView, acts: KnownActs) -> tuple[Reason, ...]:
    """Alarms for what is normal for the time of a restart only: nodes that are not as they should be, an unfinished finalization.

    Files are checked once every broker runs in KRaft mode: before that a roll writes them. After the end an administrator may tune a
    node: only edits that decide whether it comes back count.
    """
    compared = gates.with_decisive_edits(view) if migration_has_ended(view) else view
    files = gates.files_in_stage(compared).reasons if gates.brokers_answer_in_kraft(view).met else ()
    files = (*files, *coordinator.brokers_agree(view, excused_brokers=view.in_mode(None)).reasons)
    nodes = (*failing_node_reasons(view, acts), *unnamed_broker_reasons(view))
    if position_of(view).phase in _QUIET:
        return (*nodes, *files)
    flags = tuple(
        reason for reason in find_alarms(view) if reason.cause is Cause.UNFLAGGED_CONTROLLER and flags_taken_by_us(view)
    )
    unknown = (*position_of(view).reasons, *view.unknowns) if position_of(view).phase is Phase.UNKNOWN else ()
    counts = coordinator.counts_noted(view).reasons if view.zk else ()
    return (*nodes, *flags, *files, *counts) or unknown


def unread_reasons(view: ClusterView) -> tuple[Reason, ...]:
    """What was not read, with its errors, as far as it may matter: nothing of controllers and their machines that were never started."""
    if _are_controllers_expected(view):
        return view.unknowns
    return tuple(reason for reason in view.unknowns if not reason.node.startswith("controller "))


def expected_reasons(view: ClusterView, acts: KnownActs) -> tuple[Reason, ...]:
    """What a run of kmigrate itself has stopped, is restarting or has not started yet: it explains what follows from it, and is no alarm."""
    is_expected = _are_controllers_expected(view)
    absent = {
        f"controller {controller.id}"
        for controller in view.controllers.values()
        if acts.has_stopped(controller) or not is_expected
    }
    node_reasons = (*_find_failing_brokers(view, acts), *_find_unresponsive_controllers(view, acts))
    return tuple(replace(reason, node=name) for name, reason in node_reasons if acts.is_under_way(name) or name in absent)


def find_rollback_alarms(
    view: ClusterView, reported: Sequence[Reason], verdict: Readiness, acts: KnownActs
) -> tuple[Reason, ...]:
    """What a rollback misses now, without what is reported already; a finalized cluster misses nothing, whatever does not answer.

    While kmigrate restarts a node, what may pass by itself is no alarm, and nothing is certain: its file is written before it stops.
    """
    if is_finalized_by_files(view):
        return ()
    causes = {reason.cause for reason in reported} - {None}
    restarting = any(acts.is_under_way(node) for node in acts.of)
    counted = (
        part_reason
        for part_reason in verdict.reasons
        if not part_reason.loses and not (restarting and part_reason.state is gates.GateState.NOT_YET)
    )
    return tuple(
        replace(part_reason.reason, certain=part_reason.state is gates.GateState.NEVER and not restarting)
        for part_reason in counted
        if part_reason.reason not in reported and part_reason.reason.cause not in causes
    )


def lost_rollback_reasons(verdict: Readiness) -> tuple[Reason, ...]:
    """Why no rollback is possible, although the migration is not finalized: reported at once."""
    return tuple(
        part_reason.reason
        for part_reason in verdict.reasons
        if part_reason.loses and part_reason.reason.cause is not Cause.FINALIZED
    )


def can_show_all_alarms(view: ClusterView) -> bool:
    """Whether all was read that alarms depend on: one that an observation does not show has ended only then.

    Nodes and hosts that do not answer are alarms themselves, and a controller may not have been started yet.
    """
    return position_of(view).phase is not Phase.UNKNOWN and not any(reason.cause in _HIDES_ALARMS for reason in view.unknowns)


def failing_node_reasons(view: ClusterView, acts: KnownActs) -> tuple[Reason, ...]:
    """One reason for each node that does not answer, is out of an ISR, or is registered in a mode that cuts it off."""
    node_reasons = (*_find_failing_brokers(view, acts), *_find_failing_controllers(view, acts))
    return tuple(replace(reason, node=name) for name, reason in node_reasons if not acts.is_under_way(name))


def map_out_of_isr(view: ClusterView) -> Mapping[int, Sequence[str]]:
    """Broker -> the partitions whose ISR misses it; nothing if the partitions were not read."""
    missing = defaultdict[int, list[str]](list)
    for partition in view.partitions or ():
        if partition.is_under_replicated:
            for broker in set(partition.replicas) - set(partition.isr):
                missing[broker].append(partition.name)
    return missing


def _find_failing_brokers(view: ClusterView, acts: KnownActs) -> Iterator[tuple[str, Reason]]:
    out_of_isr = map_out_of_isr(view)
    for broker in view.brokers.values():
        name = f"broker {broker.id}"
        if not broker.named:
            continue
        if broker.mode is None:
            yield name, _unresponsive_broker_reason(view, name, broker, acts)
        elif out := out_of_isr.get(broker.id):
            text = f"Broker {broker.id} is out of the ISR of {count_of(len(out), 'partition')}: {summarize(out)}."
            yield name, Reason("R05", f"{text} {_describe_unit_and_file(view, name, broker, acts)}", cause=Cause.OUT_OF_ISR)


def _unresponsive_broker_reason(view: ClusterView, name: str, broker: Broker, acts: KnownActs) -> Reason:
    """P07 for a broker of ZooKeeper mode beside KRaft, P02 after the end; else R01."""
    described_broker = _describe_unit_and_file(view, name, broker, acts)
    if gates.is_beside_kraft(view, broker):
        starts = "would start" if broker.process.state is ProcessState.STOPPED else "was started"
        text = f"Broker {broker.id} {starts} in ZooKeeper mode, while KRaft owns the cluster, and does not answer."
        return isolated_broker_reason(view, f"{text} {described_broker}")
    return Reason("R01", f"Broker {broker.id} does not answer. {described_broker}", cause=Cause.BROKER_UNRESPONSIVE)


def _find_failing_controllers(view: ClusterView, acts: KnownActs) -> Iterator[tuple[str, Reason]]:
    """Those that should answer: not before they are started, and not those that kmigrate has stopped."""
    down = {f"controller {controller.id}" for controller in view.controllers.values() if acts.has_stopped(controller)}
    if _are_controllers_expected(view):
        yield from ((name, reason) for name, reason in _find_unresponsive_controllers(view, acts) if name not in down)


def _find_unresponsive_controllers(view: ClusterView, acts: KnownActs) -> Iterator[tuple[str, Reason]]:
    code = "G40" if migration_has_ended(view) or is_finalized_by_files(view) else "G23"
    for controller in view.controllers.values():
        if not controller.answers:
            name = f"controller {controller.id}"
            text = f"Controller {controller.id} does not answer. {_describe_unit_and_file(view, name, controller, acts)}"
            yield name, Reason(code, text, cause=Cause.CONTROLLER_UNRESPONSIVE)


def _are_controllers_expected(view: ClusterView) -> bool:
    """Whether controllers were started. Without ZooKeeper, brokers that know them show it, or what is on the controllers' disks."""
    if view.zk is None:
        began = view.in_mode(BrokerMode.MIGRATION, BrokerMode.KRAFT)
        return bool(began) or any(
            controller.answers or controller.files.has_metadata_log for controller in view.controllers.values()
        )
    return position_of(view).phase is not Phase.ZOOKEEPER or view.migration is not None


def has_no_controller(view: ClusterView) -> bool:
    """Whether neither KRaft nor ZooKeeper has a controller, as far as this observation shows; without ZooKeeper, if brokers run in KRaft mode.

    Then no leader moves and no ISR shrinks: the next broker that fails stops writes.
    """
    led = view.quorum is not None and view.quorum.leader_id >= 0
    if view.zk is None:
        return not led and bool(view.in_mode(BrokerMode.KRAFT))
    return not led and zookeeper_controller(view) is None


def no_controller_reasons(view: ClusterView, acts: KnownActs, since: float) -> tuple[Reason, ...]:
    """G45, or G46 if kmigrate stopped them, if the cluster has had no controller for so long that it is no failover.

    `since`: when a watch first observed it, in seconds since the epoch. Stops of kmigrate itself date it more exactly.
    """
    if not has_no_controller(view) or acts.now - _no_controller_since(view, acts, since) < WITHOUT_CONTROLLER:
        return ()
    code = "G46" if _stopped_controllers(view, acts) else "G45"
    return (Reason(code, describe_missing_controller(view, acts, since), cause=Cause.NO_CONTROLLER, certain=True),)


def describe_missing_controller(view: ClusterView, acts: KnownActs, since: float) -> str:
    """For how long there has been no controller, who stopped which, and what is missing, in sentences; empty if there is one."""
    if not has_no_controller(view):
        return ""
    stopped = _stopped_controllers(view, acts)
    missing = [number for number in view.unresponsive_controllers() if number not in stopped]
    last = max(stopped.values(), key=lambda act: act.from_ms, default=None)
    seconds = acts.now - _no_controller_since(view, acts, since)
    texts = (
        f"The cluster has had no controller for {seconds:.0f} s: none of KRaft leads, and ZooKeeper has none.",
        f"Run {last.run} stopped controllers {join_ids(sorted(stopped))}, the last at {format_date(last.from_ms)}."
        if last
        else "",
        f"Controllers {join_ids(missing)} do not answer." if missing else "",
        "" if missing or stopped else f"Every one answers: {gates.NAMES_UNRESOLVED}.",
    )
    return " ".join(filter(None, texts))


def _stopped_controllers(view: ClusterView, acts: KnownActs) -> dict[int, ActSpan]:
    """The controllers that kmigrate has stopped, with the acts that did."""
    return {
        controller.id: acts.of[f"controller {controller.id}"]
        for controller in view.controllers.values()
        if acts.has_stopped(controller)
    }


def _no_controller_since(view: ClusterView, acts: KnownActs, since: float) -> float:
    """Since the stop that cost the quorum, if kmigrate stopped so many; in seconds since the epoch."""
    times = sorted(act.from_ms / 1000 for act in _stopped_controllers(view, acts).values())
    spare = (len(view.controllers) - 1) // 2  # so many stops leave a majority
    return min(since, *times[spare : spare + 1]) if len(times) > spare else since


@dataclass(frozen=True, slots=True)
class ClusterOwner:
    """The run that owns the cluster: `why` Airflow lets it not go on, empty if it does, whether waiting changes nothing about that
    (`certain`), and whether a process of it is `alive`.
    """

    run: str
    why: str = ""
    certain: bool = False
    alive: bool = True


def stalled_owner_reasons(owner: ClusterOwner, acts: KnownActs) -> tuple[Reason, ...]:
    """H12, if the run that owns the cluster is queued, paused, over, or dead in the middle of an act: with the one thing to do."""
    text = f"Run {owner.run} owns the cluster and does not go on."
    if owner.why:
        return (Reason("H12", f"{text} {owner.why}", certain=owner.certain),)
    mine = [act for act in acts.of.values() if act.run == owner.run]
    last = max(mine, key=lambda act: act.from_ms, default=None)
    if owner.alive or last is None or last.to_ms is not None or acts.now - last.from_ms / 1000 < acts.restart_within:
        return ()
    died = f"It began '{last.verb}' in step '{last.step}' at {format_date(last.from_ms)}, did not end it, and none of its processes is alive."
    return (Reason("H12", f"{text} {died} Mark the task of that step failed, then clear it.", certain=True),)


WITHOUT_CONTROLLER = 60.0
"""Seconds without a controller after which it is an alarm; an election and the handover of a rollback take less."""


def is_finalized_by_files(view: ClusterView) -> bool:
    """Whether the files that could be read show a finalized cluster: also if no node answers and ZooKeeper is off.

    Every controller that has a file has a final one, and every broker one of KRaft mode.
    """
    of_controllers = {stage_on_disk(controller.files) for controller in view.controllers.values()}
    of_brokers = {stage_on_disk(broker.files) for broker in view.brokers.values() if broker.named}
    return of_controllers - {None} == {FileStage.CONTROLLER_FINAL} and of_brokers - {None} == {FileStage.KRAFT}


def _describe_unit_and_file(view: ClusterView, name: str, node: Broker | Controller, acts: KnownActs) -> str:
    """All that is known of a node beside its answers, in sentences."""
    stage = stage_on_disk(node.files)
    file = f"Its file is of stage '{stage}'." if stage else "Its file could not be read, or is of no stage."
    registered = f" {_describe_registration(view, node)}" if isinstance(node, Broker) else ""
    return f"{_describe_unit(node.process)} {file}{registered} {acts.describe_last_act(name)}"


def _describe_unit(process: Process) -> str:
    if process.state is ProcessState.UNKNOWN:
        return "Its host does not report whether its unit runs."
    since = f" since {format_date(round(1000 * process.started_at))}" if process.started_at else ""
    boot = {True: ", and starts at boot", False: ", and does not start at boot", None: ""}[process.at_boot]
    return f"Its unit is {process.state}{since if process.state is ProcessState.RUNNING else ''}{boot}."


def _describe_registration(view: ClusterView, broker: Broker) -> str:
    """What its registrations say of its mode."""
    if broker.in_zookeeper is None:
        return "Whether it is registered in ZooKeeper could not be read."
    beside = ", while KRaft owns the cluster" if kraft_owns(view) else ""
    ids = sorted(broker.listed_by or ())
    listed = f"broker {ids[0]} lists it" if len(ids) == 1 else f"brokers {join_ids(ids)} list it" if ids else "no broker lists it"
    registered = f"It is registered under /brokers/ids{beside}" if broker.in_zookeeper else "It is not registered in ZooKeeper"
    return f"{registered}; {listed}."


# From one watch to the next


@dataclass(frozen=True, slots=True)
class OpenAlarm:
    """An alarm that has begun and not ended. `since`: seconds since the epoch; `text`: its code, and what was observed first."""

    since: float
    text: str


@dataclass(frozen=True, slots=True)
class Alarms:
    """What one watch passes to the next. `open`: by their names; `stage`: of the cluster, and since when a watch has observed it.

    `no_controller_since`: when a watch first observed that there is no controller; None: there is one.
    """

    open: Mapping[str, OpenAlarm] = field(default_factory=dict)
    stage: str = ""
    stage_since: float = 0.0
    no_controller_since: float | None = None

    def with_controller(self, now: float, *, missing: bool) -> Alarms:
        """Add whether a controller is `missing` now."""
        since = self.no_controller_since if missing and self.no_controller_since is not None else now
        return replace(self, no_controller_since=since if missing else None)

    def with_stage(self, stage: str, now: float) -> Alarms:
        """Add the stage that is observed now."""
        return self if stage == self.stage else replace(self, stage=stage, stage_since=now)

    def compare(self, reasons: Sequence[Reason], *, complete: bool = True, hidden: Sequence[Reason] = ()) -> AlarmChange:
        """Compare with what a watch found. `complete` false: not everything could be read, so no alarm ends.

        `hidden`: what follows from another cause now; it begins no alarm, and ends none.
        """
        covered = {_name_alarm(reason) for reason in hidden}
        reasons_by_name = {_name_alarm(reason): reason for reason in reversed(reasons)}
        begun = {name: reason for name, reason in reversed(reasons_by_name.items()) if name not in self.open}
        ended = {
            name: alarm for name, alarm in self.open.items() if complete and name not in reasons_by_name and name not in covered
        }
        return AlarmChange(self, begun, ended)

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        rows = {name: [alarm.since, alarm.text] for name, alarm in self.open.items()}
        stored = {"open": rows, "stage": self.stage, "stage_since": self.stage_since}
        return stored | {"no_controller_since": self.no_controller_since}

    @classmethod
    def from_json(cls, stored: Any) -> Alarms:
        """What an earlier watch stored. Without it, or if it is damaged, every alarm begins now: it is reported again, never left out."""
        try:
            open_alarms = {str(name): OpenAlarm(float(since), str(text)) for name, (since, text) in stored["open"].items()}
            since = stored.get("no_controller_since")
            return cls(open_alarms, str(stored["stage"]), float(stored["stage_since"]), None if since is None else float(since))
        except (KeyError, TypeError, ValueError, AttributeError):
            return cls()


@dataclass(frozen=True, slots=True)
class AlarmChange:
    """The alarms that began and ended with one watch, by their names; `before`: those of the watch before."""

    before: Alarms
    begun: Mapping[str, Reason]
    ended: Mapping[str, OpenAlarm]

    def after_reporting(self, names: Collection[str], now: float) -> Alarms:
        """The alarms for the next watch. `names`: the alarms whose message was sent; `now`: seconds since the epoch."""
        remaining = {name: alarm for name, alarm in self.before.open.items() if name not in self.ended or name not in names}
        begun = {name: OpenAlarm(now, f"[{reason.code}] {reason.text}") for name, reason in self.begun.items() if name in names}
        return replace(self.before, open=remaining | begun)


def _name_alarm(reason: Reason) -> str:
    return " ".join(filter(None, (reason.code, str(reason.cause or ""), reason.node)))
