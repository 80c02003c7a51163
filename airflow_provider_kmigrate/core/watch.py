"""What the watch reports: alarms that need an operator at once, and what is normal for the time of a restart only.

No step runs while a run has failed, waits for an approval, or was left; the watch looks then, and in every other phase too. A node
that is down or out of its ISRs is reported with all that is known of it: its unit, its file, its registration, and which run acted
on it last. What kmigrate itself is restarting is no alarm for as long as a restart may take.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from airflow_provider_kmigrate.core import coordinator, gates, readiness
from airflow_provider_kmigrate.core.files.config_matrix import FileStage, stage_on_disk
from airflow_provider_kmigrate.core.journal_lines import ActSpan
from airflow_provider_kmigrate.core.migration.waits import alarming
from airflow_provider_kmigrate.core.model import (
    Broker,
    Cause,
    ClusterView,
    Controller,
    Process,
    ProcessState,
    Reason,
    ZkController,
)
from airflow_provider_kmigrate.core.phase import Phase, alarms, flags_taken_by_us, kraft_owns, unnamed_brokers, where
from airflow_provider_kmigrate.core.readiness import Readiness
from airflow_provider_kmigrate.core.text import join_ids, summarize

_HIDES_ALARMS = frozenset({Cause.UNREAD, Cause.UNREAD_SLOW, Cause.UNREAD_STORED, Cause.UNREAD_COORDINATORS})
_QUIET = frozenset({Phase.ZOOKEEPER, Phase.PRE_MIGRATION, Phase.FINALIZED})


@dataclass(frozen=True, slots=True)
class KnownActs:
    """The newest act of kmigrate on each node, by its name such as "broker 1", and the time `now`, in seconds since the epoch.

    `restart_within`: seconds that a restart may take until its node is back in every ISR.
    """

    of: Mapping[str, ActSpan] = field(default_factory=dict)
    now: float = 0.0
    restart_within: float = 600.0

    def under_way(self, node: str) -> bool:
        """Whether kmigrate acted on the node so recently that it need not be back yet."""
        act = self.of.get(node)
        return act is not None and act.settled_ms is None and self.now - act.from_ms / 1000 < self.restart_within

    def describe(self, node: str) -> str:
        """Who acted last on the node, and when, as a sentence."""
        act = self.of.get(node)
        if act is None:
            return "No run of kmigrate has acted on it."
        at = datetime.fromtimestamp(act.from_ms / 1000, UTC).isoformat(timespec="seconds")
        return f"The last act on it was '{act.verb}' in step '{act.step}' of run {act.run}, at {at}."


NO_ACTS = KnownActs()


def at_once(view: ClusterView, max_hybrid: float, now: float) -> tuple[Reason, ...]:
    """`alarming` for callers that do not know the current step: without the flags that kmigrate's own finalization takes.

    Also brokers that compute coordinators with another count: their next start moves groups.
    """
    own = flags_taken_by_us(view)
    counts = coordinator.agreed(view)
    others = counts.reasons if counts.state is gates.GateState.NEVER else ()
    known = (reason for reason in alarming(view, max_hybrid, now) if not (own and reason.cause is Cause.UNFLAGGED_CONTROLLER))
    return (*known, *others)


def if_it_stays(view: ClusterView, acts: KnownActs = NO_ACTS) -> tuple[Reason, ...]:
    """Alarms for what is normal for the time of a restart only: nodes that are not as they should be, an unfinished finalization.

    Files are checked once every broker runs in KRaft mode: before that a roll writes them.
    """
    files = gates.files_in_stage(view).reasons if gates.all_kraft(view).met else ()
    files = (*files, *coordinator.agreed(view, but=view.in_mode(None)).reasons)
    nodes = (*failing_nodes(view, acts), *unnamed_brokers(view))
    if where(view).phase in _QUIET:
        return (*nodes, *files)
    flags = tuple(reason for reason in alarms(view) if reason.cause is Cause.UNFLAGGED_CONTROLLER and flags_taken_by_us(view))
    unknown = (*where(view).reasons, *view.unknowns) if where(view).phase is Phase.UNKNOWN else ()
    return (*nodes, *flags, *files) or unknown


def beside(known: Sequence[Reason], verdict: Readiness, acts: KnownActs = NO_ACTS) -> tuple[Reason, ...]:
    """What a rollback misses now, without what is reported already; a finalized cluster misses nothing.

    While kmigrate restarts a node, what may pass by itself is no alarm.
    """
    causes = {reason.cause for reason in known} - {None}
    restarting = any(acts.under_way(node) for node in acts.of)
    counted = (each for each in verdict.reasons if not each.loses and not (restarting and each.state is gates.GateState.NOT_YET))
    return tuple(each.reason for each in counted if each.reason not in known and each.reason.cause not in causes)


def lost(verdict: Readiness) -> tuple[Reason, ...]:
    """Why no rollback is possible, although the migration is not finalized: reported at once."""
    return tuple(each.reason for each in verdict.reasons if each.loses and each.reason.cause is not Cause.FINALIZED)


def shows_alarms(view: ClusterView) -> bool:
    """Whether all was read that alarms depend on: one that an observation does not show has ended only then.

    Nodes and hosts that do not answer are alarms themselves, and a controller may not have been started yet.
    """
    return where(view).phase is not Phase.UNKNOWN and not any(reason.cause in _HIDES_ALARMS for reason in view.unknowns)


def failing_nodes(view: ClusterView, acts: KnownActs = NO_ACTS) -> tuple[Reason, ...]:
    """One reason for each node that does not answer, is out of an ISR, or is registered in a mode that cuts it off."""
    found = (*_brokers(view, acts), *_controllers(view, acts))
    return tuple(replace(reason, node=name) for name, reason in found if not acts.under_way(name))


def _brokers(view: ClusterView, acts: KnownActs) -> Iterator[tuple[str, Reason]]:
    for broker in view.brokers.values():
        name = f"broker {broker.id}"
        if not broker.named:
            continue
        if broker.mode is None:
            yield name, _unresponsive(view, name, broker, acts)
        elif out := [p.name for p in view.missing_isr(broker.id) if broker.id not in p.isr]:
            text = f"Broker {broker.id} is out of the ISR of {len(out)} partitions: {summarize(out)}."
            yield name, Reason("R05", f"{text} {_known(view, name, broker, acts)}")


def _unresponsive(view: ClusterView, name: str, broker: Broker, acts: KnownActs) -> Reason:
    """P07 for a broker whose file and registration are of a ZooKeeper broker beside KRaft; else R01."""
    known = _known(view, name, broker, acts)
    plain = stage_on_disk(broker.files) is FileStage.ZOOKEEPER and broker.in_zookeeper
    if plain and kraft_owns(view):
        text = f"Broker {broker.id} was started as a plain ZooKeeper broker, while KRaft owns the cluster, and does not answer."
        return Reason("P07", f"{text} {known}")
    return Reason("R01", f"Broker {broker.id} does not answer. {known}", cause=Cause.BROKER_UNRESPONSIVE)


def _controllers(view: ClusterView, acts: KnownActs) -> Iterator[tuple[str, Reason]]:
    expected = where(view).phase is not Phase.ZOOKEEPER or view.migration is not None
    code = "G40" if finalized_by_files(view) else "G23"
    for controller in view.controllers.values() if expected else ():
        if not controller.answers:
            name = f"controller {controller.id}"
            text = f"Controller {controller.id} does not answer. {_known(view, name, controller, acts)}"
            yield name, Reason(code, text, cause=Cause.CONTROLLER_UNRESPONSIVE)


def finalized_by_files(view: ClusterView) -> bool:
    """Whether the files that could be read show a finalized cluster: also if no node answers and ZooKeeper is off.

    Every controller that has a file has a final one, and every broker one of KRaft mode.
    """
    of_controllers = {stage_on_disk(controller.files) for controller in view.controllers.values()}
    of_brokers = {stage_on_disk(broker.files) for broker in view.brokers.values() if broker.named}
    return of_controllers - {None} == {FileStage.CONTROLLER_FINAL} and of_brokers - {None} == {FileStage.KRAFT}


def _known(view: ClusterView, name: str, node: Broker | Controller, acts: KnownActs) -> str:
    """All that is known of a node beside its answers, in sentences."""
    stage = stage_on_disk(node.files)
    file = f"Its file is of stage '{stage}'." if stage else "Its file could not be read, or is of no stage."
    registered = f" {_registration(view, node)}" if isinstance(node, Broker) else ""
    return f"{_unit(node.process)} {file}{registered} {acts.describe(name)}"


def _unit(process: Process) -> str:
    if process.state is ProcessState.UNKNOWN:
        return "Its host does not report whether its unit runs."
    since = (
        f" since {datetime.fromtimestamp(process.started_at, UTC).isoformat(timespec='seconds')}" if process.started_at else ""
    )
    boot = {True: ", and starts at boot", False: ", and does not start at boot", None: ""}[process.at_boot]
    return f"Its unit is {process.state}{since if process.state is ProcessState.RUNNING else ''}{boot}."


def _registration(view: ClusterView, broker: Broker) -> str:
    """What its registrations say of its mode."""
    if broker.in_zookeeper is None:
        return "Whether it is registered in ZooKeeper could not be read."
    owner = view.zk.controller if view.zk else None
    beside = ", while KRaft owns the cluster" if isinstance(owner, ZkController) and owner.is_kraft else ""
    listed = f"brokers {join_ids(sorted(broker.listed_by))} list it" if broker.listed_by else "no broker lists it"
    registered = f"It is registered under /brokers/ids{beside}" if broker.in_zookeeper else "It is not registered in ZooKeeper"
    return f"{registered}; {listed}."


def summary(stands: str, verdict: Readiness, now: float) -> str:
    """Where the cluster stands and whether a rollback is assured, for the result of a watch."""
    return f"{stands} {readiness.describe(verdict, now)}"
