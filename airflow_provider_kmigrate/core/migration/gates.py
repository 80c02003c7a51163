"""Named conditions over a view: each gate is *met*, *not yet* (waiting may help) or *never* (the operator must act).

The numbers are those of the measured gates: each prevents a failure that was seen on real brokers. A gate over something that
could not be read answers "not yet". Right before every act, of every kind, `find_barrier` says what keeps this process from it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, StrEnum, auto
from math import isfinite

from airflow_provider_kmigrate.core.cluster_state.decision import Act, Decision, Done, Refuse, Wait
from airflow_provider_kmigrate.core.cluster_state.model import (
    Broker,
    BrokerMode,
    Cause,
    ClusterView,
    Controller,
    Malformed,
    Migration,
    NodeFiles,
    NoProbe,
    Partition,
    ProcessState,
    ProduceLatency,
    PropertyChange,
    Reason,
    Software,
    ZkController,
    could_not_read,
)
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec
from airflow_provider_kmigrate.core.migration.phase import (
    Intent,
    PhasePermit,
    RollbackState,
    flags_taken_by_us,
    is_of_zookeeper,
    kraft_owns,
    migration_has_ended,
    permit,
    position_of,
    refusal_reasons,
    unflagged_reason,
    unnamed_broker_reasons,
)
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage, stage_on_disk
from airflow_provider_kmigrate.core.shared.text import count_of, join_ids, summarize


def all_brokers_named(view: ClusterView) -> Gate:
    """G36, G39: the cluster file names every broker of the cluster, as ZooKeeper or a broker lists them."""
    if view.zk is None and all(broker.listed_by is None for broker in view.brokers.values()):
        return not_yet(could_not_read("which brokers the cluster has"))
    reasons = unnamed_broker_reasons(view)
    return not_yet_if(reasons, *reasons)


def without_left_brokers(view: ClusterView, left_brokers: Collection[int]) -> ClusterView:
    """The view as if these brokers had gone, with their replicas. One that the cluster file names stays: it is rolled back."""
    gone = set(left_brokers) & set(view.unnamed_brokers())
    if not gone:
        return view
    brokers = {number: _remove_from_lists(broker, gone) for number, broker in view.brokers.items() if number not in gone}
    rows = (
        None
        if view.partitions is None
        else tuple(_without_replicas(row, gone) for row in view.partitions if set(row.replicas) - gone)
    )
    zk = view.zk and replace(view.zk, broker_ids=tuple(number for number in view.zk.broker_ids if number not in gone))
    return replace(view, brokers=brokers, partitions=rows, zk=zk)


def _remove_from_lists(broker: Broker, gone: Collection[int]) -> Broker:
    return broker if broker.listed_by is None else replace(broker, listed_by=broker.listed_by - set(gone))


def _without_replicas(row: Partition, gone: Collection[int]) -> Partition:
    return replace(row, replicas=tuple(n for n in row.replicas if n not in gone), isr=tuple(n for n in row.isr if n not in gone))


def wrong_cluster_reasons(view: ClusterView, spec: ClusterSpec) -> tuple[Reason, ...]:
    """I01 for each source that names another cluster id, G00 if no source names one; empty if all agree."""
    reported_ids = _reported_cluster_ids(view)
    if not reported_ids:
        return (Reason("G00", f"No source reported a cluster id; expected {spec.cluster_id}."),)
    text = f"Cluster {spec.name} must have cluster id {spec.cluster_id}, but"
    return tuple(
        Reason("I01", f"{text} {source} says {cluster_id}.")
        for source, cluster_id in reported_ids
        if cluster_id != spec.cluster_id
    )


def is_identified(view: ClusterView) -> bool:
    """Whether any source reported a cluster id: that none did is unknown, not wrong."""
    return bool(_reported_cluster_ids(view))


def unidentified_reasons(node: Broker | Controller) -> tuple[Reason, ...]:
    """Why the owner of a node's directories is unknown; empty if they were read, even if still unformatted."""
    if node.files.meta is not None:
        return ()
    return (Reason("U04", f"Could not read which cluster the directories of node {node.id}'s machine belong to."),)


def _reported_cluster_ids(view: ClusterView) -> list[tuple[str, str]]:
    rows = [("ZooKeeper's /cluster/id", view.zk.cluster_id if view.zk else None), ("the brokers", view.kafka_cluster_id)]
    nodes: tuple[Broker | Controller, ...] = (*view.brokers.values(), *view.controllers.values())
    for node in nodes:
        for folder, keys in (node.files.meta or {}).items():
            rows.append((f"{folder}/meta.properties of node {node.id}", keys.get("cluster.id")))
    return [(source, cluster_id) for source, cluster_id in rows if cluster_id]


class GateState(StrEnum):
    """The answer of a gate."""

    MET = "met"
    NOT_YET = "not yet"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Gate:
    """A gate's answer; reasons are empty exactly when it is met."""

    state: GateState
    reasons: tuple[Reason, ...] = ()

    @property
    def met(self) -> bool:
        """Whether the gate lets the step act."""
        return self.state is GateState.MET


MET = Gate(GateState.MET)


def not_yet(*reasons: Reason) -> Gate:
    """Waiting may help."""
    return Gate(GateState.NOT_YET, reasons)


def never(*reasons: Reason) -> Gate:
    """The operator must act."""
    return Gate(GateState.NEVER, reasons)


def not_yet_if(bad: object, *reasons: Reason) -> Gate:
    """Not yet while anything `bad` was observed; met if nothing was."""
    return not_yet(*reasons) if bad else MET


def never_if(bad: object, *reasons: Reason) -> Gate:
    """Never if anything `bad` was observed; met if nothing was."""
    return never(*reasons) if bad else MET


def refuse_or_wait(gate: Gate) -> Refuse | Wait:
    """An unmet gate as a decision: refuse if the operator must act, else wait."""
    return Refuse(gate.reasons) if gate.state is GateState.NEVER else Wait(gate.reasons)


def as_decision(gate: Gate, done: str) -> Decision:
    """A gate as a decision: met is done."""
    return Done(done) if gate.met else refuse_or_wait(gate)


def combine_gates(gates: Iterable[Gate]) -> Gate:
    """All gates as one: the worst standing, every reason, in order."""
    unmet_gates = [gate for gate in gates if not gate.met]
    if not unmet_gates:
        return MET
    worst = GateState.NEVER if any(gate.state is GateState.NEVER for gate in unmet_gates) else GateState.NOT_YET
    return Gate(worst, tuple(reason for gate in unmet_gates for reason in gate.reasons))


def phase_permits(view: ClusterView, intent: Intent, *, done: bool = False) -> Gate:
    """The phase lets a step of this kind act. `done`: a phase with nothing left to do counts as met, otherwise as not yet."""
    position = position_of(view)
    allowed = permit(position, intent)
    if allowed is PhasePermit.ACT or (done and allowed is PhasePermit.DONE):
        return MET
    return Gate(GateState.NEVER if allowed is PhasePermit.REFUSE else GateState.NOT_YET, refusal_reasons(position, intent))


def may_roll_back(view: ClusterView) -> Gate:
    """P12 once the migration is finalized, P04 or P05 while a malformed znode hides who owns the cluster, U01 while ZooKeeper is not read."""
    position = position_of(view)
    match position.rollback:
        case RollbackState.ENDED:
            text = "The migration is finalized: a rollback to ZooKeeper is not possible."
            return never(Reason("P12", text, cause=Cause.FINALIZED))
        case RollbackState.BLOCKED:
            return never(*position.reasons)
        case RollbackState.UNREAD:
            return not_yet(*position.reasons)
    return MET


def is_beside_kraft(view: ClusterView, broker: Broker) -> bool:
    """Whether a broker that does not answer was started in ZooKeeper mode beside KRaft, so that only its roll brings it back.

    After the end also one that would start in such a mode. Before, one that is down waits for its operator as any other does.
    """
    runs, stage = broker.process.state is ProcessState.RUNNING, stage_on_disk(broker.files)
    if broker.mode is not None or not broker.named:
        return False
    if migration_has_ended(view):
        return is_of_zookeeper(broker)
    return bool(runs and broker.in_zookeeper and stage is FileStage.ZOOKEEPER and kraft_owns(view))


def process_known(node: Broker | Controller) -> Gate:
    """The host says that the node's process runs; only then will it also stop and start the right one."""
    answers = node.answers if isinstance(node, Controller) else node.mode is not None
    text = f"The host of node {node.id} does not report its process as running{', although the node answers' if answers else ''}."
    return not_yet_if(node.process.state is not ProcessState.RUNNING, Reason("U04", text))


def software_unchanged(node: Broker | Controller, *, with_java: bool = True) -> Gate:
    """R15: a restart of the node starts the release, and with `with_java` the Java, that it runs. What is not known does not hold it.

    Another Java alone holds neither a rollback nor a controller failover: the node would start with it.
    """
    software = node.process.software
    changes = [] if software is None else describe_software_changes(software, with_java=with_java)
    name = f"{'broker' if isinstance(node, Broker) else 'controller'} {node.id}"
    return not_yet_if(changes, Reason("R15", f"A restart of {name} would start {' and '.join(changes)}.", node=name))


def one_release_runs(view: ClusterView) -> Gate:
    """R15: all nodes run one release: an upgrade in the middle of a roll mixes two. What is not known does not hold it."""
    text = describe_mixed_releases((*view.brokers.values(), *view.controllers.values()))
    return not_yet_if(bool(text), Reason("R15", f"{text}."))


def describe_mixed_releases(nodes: Iterable[Broker | Controller]) -> str:
    """Which releases run, each with its nodes: `broker 0 runs Kafka 3.9.1, brokers 1, 2 run Kafka 3.9.2`; empty unless several do."""
    by_release: dict[str, dict[str, list[int]]] = {}
    for node in nodes:
        if node.process.state is ProcessState.RUNNING and node.process.software and node.process.software.release:
            role = "broker" if isinstance(node, Broker) else "controller"
            by_release.setdefault(node.process.software.release, {}).setdefault(role, []).append(node.id)
    return (
        ", ".join(_describe_release(release, ids) for release, ids in sorted(by_release.items())) if len(by_release) > 1 else ""
    )


def _describe_release(release: str, ids: Mapping[str, list[int]]) -> str:
    names = [f"{role}{'s' if len(found) > 1 else ''} {join_ids(sorted(found))}" for role, found in ids.items()]
    return f"{' and '.join(names)} {'run' if sum(map(len, ids.values())) > 1 else 'runs'} Kafka {release}"


def describe_software_changes(software: Software, *, with_java: bool = True) -> list[str]:
    """What the next start loads that is not what runs: `Kafka 3.9.2, which replaced 3.9.1 on its disk`."""
    changes = list[str]()
    if software.release and software.disk_release and software.release != software.disk_release:
        changes.append(f"Kafka {software.disk_release}, not {software.release}, which runs")
    if with_java and software.java and software.disk_java and software.java != software.disk_java:
        version = f" ({software.disk_java_version})" if software.disk_java_version else ""
        changes.append(f"Java from {software.disk_java}{version}, not the one that runs, {software.java}")
    return changes


def describe_unknown_software(software: Software, *, runs: bool) -> str:
    """What of a node's software is not known, such as `the release that it runs`; empty if all is. `runs`: its process does."""
    missing = {
        "the release that it runs": runs and not software.release,
        "the release that its next start loads": not software.disk_release,
        "the Java of its next start": not software.disk_java,
    }
    return join_ids(text for text, is_missing in missing.items() if is_missing)


_NEXT_START = {
    FileStage.ZOOKEEPER: "makes it a ZooKeeper broker again, isolated from the others",
    FileStage.MIGRATION: "puts it back into migration mode",
    FileStage.KRAFT: "puts it into KRaft mode",
    FileStage.CONTROLLER_MIGRATION: "brings the migration flag back",
    FileStage.CONTROLLER_FINAL: "takes the migration flag away, which may finalize the migration",
    None: "fails, because no node can start with this file",
}


def files_in_stage(view: ClusterView, restarting_nodes: Collection[int] = (), *, rolling: Collection[FileStage] = ()) -> Gate:
    """O06, O03: every running node's file is the one of the mode in which it runs, with the content that kmigrate installed.

    The mode does not count for some nodes, the content counts for all. `restarting_nodes`: their restart has begun; their files
    are written before they are stopped. `rolling`: stages that brokers' files may have during a roll: an interrupted restart has written the file,
    and the broker's own step, which is to come, writes the right one.
    """
    flags = {
        True: (FileStage.CONTROLLER_MIGRATION, "with the migration flag"),
        False: (FileStage.CONTROLLER_FINAL, "without the migration flag"),
    }
    early = {b.id for b in view.brokers.values() if stage_on_disk(b.files) in rolling} | {*restarting_nodes}
    brokers = [broker for broker in view.brokers.values() if broker.mode]
    controllers = [(c, *flags[c.migration_flag]) for c in view.controllers.values() if c.migration_flag is not None]
    return combine_gates(
        (
            *(_file_unedited(f"broker {b.id}", b) if b.id in early else starts_as_it_runs(b) for b in brokers),
            *(
                _file_unedited(f"controller {c.id}", c) if c.id in early else _controller_file_in_stage(view, c, stage, runs)
                for c, stage, runs in controllers
            ),
        )
    )


def starts_as_it_runs(broker: Broker) -> Gate:
    """O06, O03: the next start of a broker that answers is in the mode in which it runs, with the content that kmigrate installed."""
    if broker.mode is None:
        return not_yet(Reason("R01", f"Broker {broker.id} does not answer."))
    return _file_in_stage(f"broker {broker.id}", broker, FileStage(broker.mode), f"in {broker.mode} mode")


def _file_in_stage(name: str, node: Broker | Controller, stage: FileStage, runs: str) -> Gate:
    if node.files.properties is None:
        return not_yet(replace(could_not_read(f"the properties of {name}"), node=name))
    current_stage = stage_on_disk(node.files)
    stage_text = f"of a node in stage '{current_stage}'" if current_stage else "of no stage"
    text = f"{name.capitalize()} runs {runs}, but its properties file is {stage_text}: its next start, after a reboot too, {_NEXT_START[current_stage]}."
    if current_stage is stage:
        return _file_unedited(name, node)
    return never(Reason("O06", text, node=name))


def _controller_file_in_stage(view: ClusterView, controller: Controller, stage: FileStage, runs: str) -> Gate:
    """As `_file_in_stage`; its cause says that G05 explains it: the process lost the flag, and a restart with this file brings it back."""
    gate = _file_in_stage(f"controller {controller.id}", controller, stage, runs)
    has_lost_flag = controller.migration_flag is False and stage_on_disk(controller.files) is FileStage.CONTROLLER_MIGRATION
    if gate.state is not GateState.NEVER or not has_lost_flag or flags_taken_by_us(view) or migration_has_ended(view):
        return gate
    return replace(gate, reasons=tuple(replace(reason, cause=Cause.FLAG_IN_FILE_ONLY) for reason in gate.reasons))


_EFFECTS = {
    ("node.id", "broker.id"): "starts it as another node",
    ("log.dirs", "log.dir", "metadata.log.dir"): "gives it other directories",
    (
        "controller.quorum.voters",
        "controller.quorum.bootstrap.servers",
        "controller.listener.names",
    ): "makes it look for other controllers",
    (
        "listeners",
        "advertised.listeners",
        "listener.security.protocol.map",
        "inter.broker.listener.name",
        "security.inter.broker.protocol",
    ): "makes it unreachable where others expect it",
    ("zookeeper.connect",): "connects it to another ZooKeeper, or to none",
    ("inter.broker.protocol.version",): "makes it speak another version",
}
_DECISIVE = frozenset(key for names in _EFFECTS for key in names)


def _file_unedited(name: str, node: Broker | Controller) -> Gate:
    """O03: the keys of a node's file, if it was read, are those that kmigrate installed."""
    if node.files.properties is None:
        return MET
    if node.files.edited is None:
        return not_yet(replace(could_not_read(f"what the properties of {name} must be: the backup does not show it"), node=name))
    return never(Reason("O03", describe_edits(name, node.files.edited), node=name)) if node.files.edited else MET


def with_decisive_edits(view: ClusterView) -> ClusterView:
    """The view without edits of keys that do not decide whether a node comes back as it was: after the end they are its administrator's."""
    return map_files(view, _keep_decisive_edits)


def map_files(view: ClusterView, change: Callable[[NodeFiles], NodeFiles]) -> ClusterView:
    """The view with the files of every node changed."""
    return replace(
        view,
        brokers={number: replace(broker, files=change(broker.files)) for number, broker in view.brokers.items()},
        controllers={number: replace(node, files=change(node.files)) for number, node in view.controllers.items()},
    )


def _keep_decisive_edits(files: NodeFiles) -> NodeFiles:
    if not files.edited:
        return files
    return replace(files, edited=tuple(change for change in files.edited if change.key in _DECISIVE))


def describe_edits(name: str, changes: Collection[PropertyChange]) -> str:
    """Which keys of a node's file others changed, and what its next start makes of them."""
    keys = {change.key for change in changes}
    effects = [effect for names, effect in _EFFECTS.items() if keys & set(names)] or ["uses them"]
    edits = summarize(change for first in (True, False) for change in changes if (change.key in _DECISIVE) is first)
    text = f"The properties of {name} were edited, or replaced, after kmigrate had installed or saved them: {edits}."
    return f"{text} Its next start, after a reboot too, {', '.join(effects)}."


def controllers_start_at_boot(view: ClusterView) -> Gate:
    """O07: every controller's machine starts it when it boots. Without a majority of them a cluster in KRaft mode has no controller.

    U04 for a machine that did not answer. One that answers, and cannot say it (no service manager, a static unit), holds nothing.
    """
    unread = sorted(c.id for c in view.controllers.values() if c.process.state is ProcessState.UNKNOWN)
    if unread:
        return not_yet(
            Reason("U04", f"The machines of controllers {join_ids(unread)} do not say whether they start them at boot.")
        )
    off = sorted(c.id for c in view.controllers.values() if c.process.at_boot is False)
    return not_yet_if(off, Reason("O07", f"The units of controllers {join_ids(off)} are not enabled at boot."))


def fresh_migration(view: ClusterView) -> Gate:
    """P06: no trace of an earlier migration before controllers start: /migration absent, or -1 as fresh controllers write it."""
    if view.zk is None:
        return not_yet(could_not_read("ZooKeeper"))
    migration = view.zk.migration
    if migration is None or (isinstance(migration, Migration) and migration.metadata_offset <= 0):
        return MET
    leftover = migration.content if isinstance(migration, Malformed) else f"offset {migration.metadata_offset}"
    return never(Reason("P06", f"/migration is left over: {leftover}."))


def empty_controllers(view: ClusterView, ids: Collection[int]) -> Gate:
    """G04: no directory of these controllers has been in a quorum before this migration."""
    return combine_gates(_controller_empty(view, controller) for controller in sorted(ids))


def _controller_empty(view: ClusterView, controller: int) -> Gate:
    observed = view.controller(controller)
    if observed.files.has_metadata_log is None:
        return not_yet(could_not_read(f"the metadata directory of controller {controller}"))
    used = observed.files.has_metadata_log and view.migration is None
    return never_if(used, Reason("G04", f"Controller {controller} has a metadata log, but no migration is under way."))


def all_controllers_flagged(view: ClusterView) -> Gate:
    """G05: every controller answers (else G23), and with the migration flag."""
    return combine_gates(_controller_flagged(view, controller) for controller in sorted(view.controllers))


def _controller_flagged(view: ClusterView, controller: int) -> Gate:
    observed = view.controllers[controller]
    if not observed.answers or observed.migration_flag is None:
        text = f"Controller {controller} does not answer."
        return not_yet(Reason("G23", text, cause=Cause.CONTROLLER_UNRESPONSIVE, node=f"controller {controller}"))
    text = f"Controller {controller} runs without the migration flag."
    return MET if observed.migration_flag else never(unflagged_reason(view, text))


def controllers_answer(view: ClusterView, *, excused_controller: int | None = None) -> Gate:
    """G23: every controller answers, but for `excused_controller`, which the quorum can then spare."""
    unresponsive = [controller for controller in view.unresponsive_controllers() if controller != excused_controller]
    return not_yet_if(unresponsive, Reason("G23", f"Controllers that do not answer: {join_ids(unresponsive)}."))


_VOTER_LAG = 1000  # records


def quorum_healthy(view: ClusterView) -> Gate:
    """G20: a leader exists and every voter has fetched up to `_VOTER_LAG` records behind the high watermark."""
    quorum = view.quorum
    if quorum is None or quorum.leader_id < 0:
        return quorum_has_leader(view)
    behind = [voter for voter in view.controllers if quorum.voters.get(voter, -1) < max(0, quorum.high_watermark - _VOTER_LAG)]
    text = f"Voters behind the high watermark {quorum.high_watermark}: {join_ids(behind)}."
    return not_yet_if(behind, Reason("G20", text, cause=Cause.VOTERS_BEHIND))


NAMES_UNRESOLVED = "search their logs for `UnknownHostException`, a name that did not resolve at their start"


def quorum_has_leader(view: ClusterView) -> Gate:
    """G20: one controller answers as the leader of the quorum."""
    led = view.quorum is not None and view.quorum.leader_id >= 0
    all_run = view.controllers and not view.unresponsive_controllers()
    why = f" Every controller runs: {NAMES_UNRESOLVED}." if all_run else ""
    return not_yet_if(not led, Reason("G20", f"The KRaft quorum has no leader that answers.{why}", cause=Cause.NO_LEADER))


def all_in_migration_mode(view: ClusterView, excused_brokers: Collection[int] = ()) -> Gate:
    """G22: every broker registered in ZooKeeper, but for `excused_brokers`, answers as a broker in migration mode."""
    if view.zk is None:
        return not_yet(could_not_read("ZooKeeper"))
    registered = sorted(set(view.zk.broker_ids) - set(excused_brokers))
    not_migrating = [b for b in registered if b not in view.brokers or view.brokers[b].mode is not BrokerMode.MIGRATION]
    return not_yet_if(
        not_migrating, Reason("G22", f"Brokers in /brokers/ids that are not in migration mode: {join_ids(not_migrating)}.")
    )


def dual_write_alive(view: ClusterView, before: ClusterView | None) -> Gate:
    """G07: the dual-write moves, shown by ZooKeeper's clock in this one view, else since `before` (`dual_write_moves`)."""
    return MET if _dual_write_claimed(view).met and _was_written_just_now(view) else dual_write_moves(view, before)


def dual_write_moves(view: ClusterView, before: ClusterView | None) -> Gate:
    """G07 by movement alone: /migration's offset grew since `before`, in which the copy was over.

    What the leader has just written at the end of the copy is no dual-write yet: it first goes through the topics in ZooKeeper.
    """
    if not (claimed := _dual_write_claimed(view)).met:
        return claimed
    now, earlier = view.migration, before.migration if before else None
    moved = now and earlier and earlier.metadata_offset > 0 and _written_position(now) > _written_position(earlier)
    offset = now.metadata_offset if now else None
    return not_yet_if(not moved, stalled_dual_write_reason(f"/migration has not advanced from offset {offset} yet."))


def _dual_write_claimed(view: ClusterView) -> Gate:
    """The copy is over, and /controller and /migration are of the quorum's leader; no proof that it writes."""
    if view.zk is None or view.quorum is None:
        return not_yet(could_not_read("ZooKeeper" if view.zk is None else "the KRaft quorum"))
    migration, owner = view.zk.migration, view.zk.controller
    if not isinstance(migration, Migration) or migration.metadata_offset <= 0:
        return not_yet(stalled_dual_write_reason("The copy from ZooKeeper to KRaft is not finished."))
    if not (isinstance(owner, ZkController) and owner.is_kraft):
        return not_yet(stalled_dual_write_reason("/controller does not name a KRaft controller."))
    same_leader = migration.metadata_epoch == view.quorum.leader_epoch == owner.kraft_epoch
    text = f"/migration carries epoch {migration.metadata_epoch}, /controller {owner.kraft_epoch}, the quorum leader has {view.quorum.leader_epoch}."
    return not_yet_if(
        not same_leader, stalled_dual_write_reason(f"{text} The active controller has not written to ZooKeeper yet.")
    )


STILL = 1.5  # seconds without a write after which /migration counts as stalled; a record is written every 0.5 s (metadata.max.idle.interval.ms)
_CAUGHT_UP = 3  # records: as many as an otherwise idle controller writes in that time
JUST_NOW = 0.75  # seconds since the last write for which one observation is enough; a more recent stop cannot be seen


def _was_written_just_now(view: ClusterView) -> bool:
    """Whether it was written a moment ago and holds all but the last records.

    Neither alone is proof: a batch that keeps failing writes it too, a clock may have been set, and an inactive quorum leaves no
    lag.
    """
    migration, lag = view.migration, dual_write_lag(view)
    if migration is None or migration.age is None or lag is None:
        return False
    return migration.age.most < JUST_NOW and lag <= _CAUGHT_UP


def stalled_dual_write_reason(text: str) -> Reason:
    """G07: no observation shows that the dual-write advances."""
    return Reason("G07", text, cause=Cause.DUAL_WRITE_STALLED)


def _written_position(migration: Migration) -> tuple[int, int]:
    return migration.metadata_epoch, migration.metadata_offset


MOST_LAG = 50
"""Records that the dual-write may be behind in a soak, and before an act that ends either side: a busy quorum is never at 0 for long."""


def lag_below(view: ClusterView, limit: int) -> Gate:
    """The last dual-written offset is at most `limit` records behind the high watermark; never proof of equality."""
    lag = dual_write_lag(view)
    if lag is None:
        return not_yet(could_not_read("the dual-write lag"))
    text = f"The dual-write lag is {count_of(lag, 'record')} (limit {limit})."
    return not_yet_if(lag > limit, Reason("G07", text, cause=Cause.DUAL_WRITE_LAGS))


def dual_write_lag(view: ClusterView) -> int | None:
    """Records between the high watermark and the last dual-written offset; None if unknown."""
    if view.quorum is None or view.migration is None:
        return None
    return max(0, view.quorum.high_watermark - 1 - view.migration.metadata_offset)


def no_client_metrics(view: ClusterView) -> Gate:
    """G09: no client-metrics subscription; one wedges the migration driver at its next failover (measured)."""
    if view.client_metrics is None:
        return not_yet(could_not_read("the client-metrics subscriptions"))
    return never_if(view.client_metrics, Reason("G09", f"Client-metrics subscriptions exist: {summarize(view.client_metrics)}."))


def epochs_known(view: ClusterView, *, states: bool = True) -> Gate:
    """The controller epochs in ZooKeeper and in the partition `states` were read: the handover raises one above the others."""
    all_read = view.zk is not None and view.zk.controller_epoch is not None and (view.state_epoch is not None or not states)
    return not_yet_if(not all_read, could_not_read("the controller epochs"))


def leaders_can_move(view: ClusterView, *, states: bool = True) -> Gate:
    """G02: leaders can move. Metadata looks healthy even if they cannot; the epochs show it. `states`: as in `epochs_known`."""
    if has_epoch_ahead(view):
        epoch = view.zk.controller_epoch if view.zk else None
        return never(Reason("G02", f"A partition's state has epoch {view.state_epoch}, /controller_epoch is {epoch}."))
    return epochs_known(view, states=states)


def has_epoch_ahead(view: ClusterView) -> bool:
    """Whether a partition's state was seen with an epoch above /controller_epoch: no controller can move its leader."""
    epoch = view.zk.controller_epoch if view.zk else None
    return view.state_epoch is not None and epoch is not None and view.state_epoch > epoch


def no_leaderless_partition(view: ClusterView) -> Gate:
    """G13: every partition has a leader."""
    if view.partitions is None:
        return not_yet(could_not_read("the partitions"))
    without = leaderless_partitions(view)
    text = (
        f"{count_of(len(without), 'partition has', 'partitions have')} no leader: {summarize(p.name for p in sorted(without))}."
    )
    return not_yet_if(without, Reason("G13", text))


def leaderless_partitions(view: ClusterView) -> tuple[Partition, ...]:
    """The partitions without a leader; none if the partitions were not read."""
    return tuple(partition for partition in view.partitions or () if partition.leader < 0)


def no_group_on_zookeeper(view: ClusterView) -> Gate:
    """G21: no consumer group uses ZooKeeper when the last ZooKeeper-mode broker leaves: its members would get no records (measured)."""
    if view.zk is None:
        return not_yet(could_not_read("ZooKeeper"))
    text = f"Groups still coordinate through ZooKeeper: {describe_zookeeper_groups(view)}. The DAG {consumers_dag_id(view.name)} moves them."
    return never_if(view.zk.live_groups, Reason("G21", text))


def no_group_without_coordinator(view: ClusterView) -> Gate:
    """G21 once no broker is in a ZooKeeper mode: groups that start to use it, or were missed, consume nothing (measured)."""
    gate = no_group_on_zookeeper(view)
    if gate.state is not GateState.NEVER:
        return gate
    text = f"{gate.reasons[0].text} No broker is left in a ZooKeeper mode, so they consume nothing."
    return not_yet(Reason("G21", text))


def consumers_dag_id(cluster: str) -> str:
    """The DAG that moves this cluster's consumer groups off ZooKeeper."""
    return f"kmigrate_consumers__{cluster}"


def describe_zookeeper_groups(view: ClusterView) -> str:
    """The groups that use ZooKeeper, with the number and kind of their members; empty if there is none, or none was read."""
    groups, members = (view.zk.live_groups, view.zk.live_members) if view.zk is not None else ((), {})
    return summarize((f"{group} ({members[group]})" if group in members else group for group in groups), 10)


def describe_early_breaks(view: ClusterView) -> str:
    """The groups that break before the others, as text: a broker in KRaft mode refuses OffsetCommit version 0. Empty if there is none."""
    members = view.zk.live_members if view.zk is not None else {}
    early = sorted(group for group, found in members.items() if found.unregistered_s is not None)
    return f"Commits of {summarize(early)} fail as soon as the first broker is in KRaft mode" if early else ""


def warn_of_zookeeper_groups(view: ClusterView) -> str:
    """Warning shown before brokers leave ZooKeeper mode while groups still use it."""
    if not (groups := describe_zookeeper_groups(view)):
        return ""
    return (
        f" ALARM: groups use ZooKeeper: {groups}. They work until the last ZooKeeper-mode broker leaves, and that restart will be refused"
        f" (G21). {f'{early}. ' if (early := describe_early_breaks(view)) else ''}Move them now with the DAG {consumers_dag_id(view.name)}."
    )


def advise_after_rollback(view: ClusterView) -> str:
    """Advice after a time without brokers in ZooKeeper: ZooKeeper consumers watch `/brokers/ids`, and rebalance at each change."""
    groups = describe_zookeeper_groups(view)
    return f" Restart the ZooKeeper consumers of these groups once, at a quiet time: {groups}." if groups else ""


def all_brokers_in_kraft(view: ClusterView) -> Gate:
    """Every broker answers in KRaft mode and none is left under /brokers/ids."""
    if not (answers := brokers_answer_in_kraft(view)).met:
        return answers
    if view.zk is None:
        return not_yet(could_not_read("ZooKeeper"))
    registered = view.zk.broker_ids
    return not_yet_if(registered, Reason("G22", f"Brokers still registered in ZooKeeper: {join_ids(registered)}."))


def brokers_answer_in_kraft(view: ClusterView) -> Gate:
    """G22, G36, G39: the cluster file names every broker, and each answers in KRaft mode, whether or not ZooKeeper can be read."""
    others = [broker for broker in view.in_mode(BrokerMode.ZOOKEEPER, BrokerMode.MIGRATION, None) if view.brokers[broker].named]
    if others:
        return not_yet(Reason("G22", f"Brokers that do not answer in KRaft mode: {join_ids(others)}."))
    return all_brokers_named(view)


def leaders_moved_by_stop(view: ClusterView, broker: int, stop_seconds: float) -> Gate:
    """G12, judged right after a broker has stopped: its controlled shutdown moved every leader that could move.

    A stop of ten seconds or more that leaves leaders behind means that the controller could not move them: an epoch trap or an
    isolated broker (measured). A partition whose only in-sync replica was this broker cannot move and does not count. Partitions
    that were not read keep no broker down.
    """
    rows = view.partitions or ()
    stuck = [p for p in rows if p.leader == broker and set(p.isr) - {broker}]
    text = f"Broker {broker} took {stop_seconds:.1f} s to stop and still leads {count_of(len(stuck), 'partition')}: {summarize(p.name for p in sorted(stuck))}."
    return never_if(stuck and stop_seconds >= slow_stop_limit(len(rows)), Reason("G12", text))


PROBE_FRESH, PROBE_GONE = 10.0, 60.0
"""Seconds: the probe writes its figures every second. Older ones show nothing of now; with none for so long it has ended."""
LATENCY_TIMES, LATENCY_SECONDS = 3.0, 0.25
"""A partition is as fast as before while its p95 is at most so many times the one before, and so many seconds."""
LEAST_RATE = 0.5  # of the records a second before; fewer acknowledgements show that records wait


def latency_recovered(view: ClusterView) -> Gate:
    """G42: the probe's records are acknowledged about as fast as before the first restart, in each of its partitions.

    Met without a probe in the cluster file. Y05 if it has one that has ended, or never began.
    """
    probe = view.probe
    if probe is None:
        return not_yet(could_not_read("what the probe measures"))
    if isinstance(probe, NoProbe):
        return MET
    if probe.age > PROBE_GONE:
        return not_yet(_probe_gone_reason(probe.age))
    if probe.age > PROBE_FRESH:
        text = f"The probe has measured nothing for {probe.age:.0f} s; after {PROBE_GONE:.0f} s it counts as ended."
        return not_yet(Reason("T01", text))
    if probe.before is None:
        return not_yet(Reason("T01", "The probe measures the produce latency before the first restart."))
    slow = [
        text for name, before in sorted(probe.before.items()) if (text := _describe_slower(name, before, probe.now.get(name)))
    ]
    text = f"The produce latency of the probe is not back to what it was before the first restart: {summarize(slow)}."
    return not_yet_if(slow, Reason("G42", text))


def _probe_gone_reason(age: float) -> Reason:
    why_stopped = f"has ended: it has measured nothing for {age:.0f} s"
    why_absent = "never began, or this worker does not see its folder"
    return Reason(
        "Y05",
        f"The probe {why_stopped if isfinite(age) else why_absent}. No broker restarts: nothing shows whether records wait. "
        "If the task `probe` does not run, clear it alone.",
    )


def _describe_slower(name: str, before: ProduceLatency, now: ProduceLatency | None) -> str:
    """How a partition of the probe is slower than before, in words; empty if it is not."""
    rate = 0.0 if now is None else now.rate
    if now is None or rate < LEAST_RATE * before.rate:
        return f"{name} acknowledges {rate:.1f} records a second, {before.rate:.1f} before"
    limit = LATENCY_TIMES * before.p95 + LATENCY_SECONDS
    return f"p95 of {name} is {now.p95:.3f} s, {before.p95:.3f} s before (limit {limit:.3f} s)" if now.p95 > limit else ""


def slow_stop_limit(partitions: int) -> float:
    """Seconds from which a stop is an alarm: 10, more with many partitions (12-14 s at 10,000, measured)."""
    return 10.0 + partitions / 2000


# The one gate before every act, of every kind

MAX_VIEW_AGE = 5.0
"""Seconds; older observations allow no act."""

SETTLING = 5.0
"""Seconds after an observation without ZooKeeper, in which nothing is stopped."""


class Barrier(Enum):
    """What keeps a process from an act. The first two pass with a new observation, the others do not."""

    AGE = auto()  # the observation is too old
    UNIDENTIFIED = auto()  # no source of it named the cluster
    STRANGER = auto()  # a source of it named another cluster
    FENCED = auto()  # another process has taken the fence since
    STOPPED = auto()  # the kill switch is on


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known right before an act.

    `age`: seconds since the observation that it was decided on. `strangers`: the sources of it that name another cluster. `fenced`:
    another process has taken the fence since, as it was read now. `switch`: what the kill switch says, empty if it is off.
    """

    age: float
    is_identified: bool
    strangers: Sequence[Reason] = ()
    fenced: bool = False
    switch: str = ""


def find_barrier(standing: Standing) -> Barrier | None:
    """The first thing that keeps this process from acting now; None: nothing does. An age that is no number is too old."""
    barriers = {
        Barrier.AGE: not 0.0 <= standing.age <= MAX_VIEW_AGE,
        Barrier.UNIDENTIFIED: not standing.is_identified,
        Barrier.STRANGER: bool(standing.strangers),
        Barrier.FENCED: standing.fenced,
        Barrier.STOPPED: bool(standing.switch),
    }
    return next((kind for kind, is_there in barriers.items() if is_there), None)


def wait_after_outage(decision: Decision, since_blind: float) -> Decision:
    """The decision, or a wait if ZooKeeper has just become reachable again: the effects of its outage show later.

    `since_blind`: seconds since the last observation without it. Sessions that ended meanwhile remove brokers from their ISRs within a
    second of its return, while brokers still report the earlier ISRs (a broker was stopped in that second, and its partitions were
    left with one replica; met in the fault matrix).
    """
    if not isinstance(decision, Act) or decision.verb.brings_up or since_blind >= SETTLING:
        return decision
    text = f"ZooKeeper did not answer {since_blind:.0f} s ago: waiting {SETTLING:.0f} s for the effects."
    return Wait((Reason("T01", text),))
