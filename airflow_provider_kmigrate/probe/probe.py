"""The probe: kmigrate's own stream of numbered records through every broker (level L1), without a change of users' clients.

Its topic has one partition led by each broker, with three replicas if there are so many brokers, in different racks if possible.
A sender and a receiver run as separate processes (`probe.process`), are found again by pid and birth, and record what was
acknowledged and delivered. The rate is small: the probe observes disturbances and adds no load.

Runs of one cluster, one at a time, are in `<place>/<run>/`, each with `machine`, the name of the machine that started it. The
events are read from any mount of the place; only that machine can see and end the processes.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NoReturn

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.clients.admin import connect
from airflow_provider_kmigrate.clients.hosts import files
from airflow_provider_kmigrate.core.audit.verdict import AuditFinding, Level, LevelHealth, findings_from_facts
from airflow_provider_kmigrate.core.cluster_state.model import ProcessState, Reason
from airflow_provider_kmigrate.core.cluster_state.spec import PROBE_GROUP
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.probe.kafka_calls import kafka_calls, wait_for_leaders
from airflow_provider_kmigrate.probe.stream import PROPERTIES, Stream, StreamProgress, read_plan

_REPLICAS: Final = 3
_CONFIG: Final = {
    "cleanup.policy": "delete",
    "retention.ms": "3600000",  # older records have been judged
    "segment.ms": "600000",  # only whole segments are removed
    "unclean.leader.election.enable": "false",  # a lost record must be a record that was lost
}


def assign_replicas(racks: Mapping[int, str | None], leaders: Iterable[int]) -> list[list[int]]:
    """The replicas of each leader's partition: itself, then the next brokers, other racks first. `racks`: of all brokers."""
    ring = sorted(racks)
    assignments = []
    for leader in leaders:
        at = ring.index(leader)
        assignments.append([leader, *_order_by_rack([*ring[at + 1 :], *ring[:at]], racks, {racks[leader]})][:_REPLICAS])
    return assignments


def _order_by_rack(brokers: Sequence[int], racks: Mapping[int, str | None], used: set[str | None]) -> list[int]:
    """First one broker of each unused rack, then the others."""
    first, rest, used_racks = list[int](), list[int](), set(used)
    for broker in brokers:
        (rest if racks[broker] in used_racks else first).append(broker)
        used_racks.add(racks[broker])
    return [*first, *rest]


def ensure_topic(properties: Mapping[str, str], name: str, timeout: float = 60.0) -> int:
    """Ensure that each broker is the preferred leader of a partition of the probe's topic; returns their number. Raises ours.

    New brokers get partitions; those of removed brokers stay, led by other brokers.
    """
    with kafka_calls(f"making the topic {name}"):
        admin = connect(properties)
        nodes = admin.describe_cluster(request_timeout=timeout).result(timeout).nodes
        racks = {node.id: node.rack for node in nodes}
        preferred_leaders = _read_preferred_leaders(admin, name, timeout)
        if preferred_leaders is None:
            _create_topic(admin, name, assign_replicas(racks, sorted(racks)), timeout)
            preferred_leaders = sorted(racks)
        missing = sorted(racks.keys() - set(preferred_leaders))
        if missing:
            more = NewPartitions(name, len(preferred_leaders) + len(missing), replica_assignment=assign_replicas(racks, missing))
            admin.create_partitions([more], request_timeout=timeout)[name].result(timeout)
        count = len(preferred_leaders) + len(missing)
        wait_for_leaders(admin, {name: count}, timeout)
        return count


def _read_preferred_leaders(admin: AdminClient, name: str, timeout: float) -> list[int] | None:
    """The preferred leader of each partition; None: there is no such topic."""
    try:
        topic = admin.describe_topics(TopicCollection([name]), request_timeout=timeout)[name].result(timeout)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return None
        raise
    return [partition.replicas[0].id for partition in topic.partitions]


def _create_topic(admin: AdminClient, name: str, replicas: list[list[int]], timeout: float) -> None:
    config = {**_CONFIG, "min.insync.replicas": str(max(1, len(replicas[0]) - 1))}
    topic = NewTopic(name, len(replicas), replica_assignment=replicas, config=config)
    try:
        admin.create_topics([topic], request_timeout=timeout)[name].result(timeout)
    except KafkaException as error:  # another task of the same run was faster
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


TOPIC: Final = "kmigrate-probe"
GROUP: Final = PROBE_GROUP
RATE: Final = 5.0  # records a second for each partition


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """One sender of `rate` records a second, and one receiver; both end by themselves after `max_seconds`."""

    rate: float
    max_seconds: float
    run: str = field(default_factory=lambda: os.urandom(3).hex())  # separates its writers from those of another run

    @property
    def topics(self) -> tuple[str, ...]:
        """The probe's only topic."""
        return (TOPIC,)

    def senders(self) -> tuple[str, ...]:
        """The name of the only sender."""
        return (f"producer0-{self.run}",)

    def receivers(self) -> tuple[str, ...]:
        """The name of the only receiver: its group, then the run."""
        return (f"{GROUP}.0-{self.run}",)

    def describe_unowned(self, progress: StreamProgress, partitions: Iterable[TopicPartition]) -> str:
        """What is missing until the receiver has every partition; empty: nothing."""
        partitions = tuple(partitions)
        return progress.describe_unowned(GROUP, partitions) if partitions else f"no broker shows topic {TOPIC}"

    def count_uncommitted(self, progress: StreamProgress) -> int:
        """The number of acknowledged offsets that are not committed."""
        return progress.count_uncommitted(GROUP, self.topics)


class Probe(Stream):
    """One run of the probe, which lives in `folder`. Any process may repeat every call.

    `rate`: records a second for each partition. After `max_seconds` a forgotten probe ends itself.
    """

    module = "airflow_provider_kmigrate.probe.process"
    plan: ProbePlan

    def __init__(
        self, folder: Path | str, properties: Mapping[str, str], *, rate: float = RATE, max_seconds: float = 24 * 3600.0
    ) -> None:
        super().__init__(folder, properties, ProbePlan(rate, max_seconds))
        if self.has_begun:
            self.plan = read_plan(self.folder, ProbePlan)

    def start(self, timeout: float = 90.0) -> None:
        """Make or complete the topic, start both processes, wait until records flow. Does nothing if they run.

        Raises `Refused` if the folder holds a run that has ended, ours if the brokers refuse, `TimedOut` if no record flows.
        """
        if self.has_begun:
            self._refuse_ended()
            return
        self.plan = replace(self.plan, rate=self.plan.rate * ensure_topic(self._properties, TOPIC, timeout))
        super().start(timeout)

    def forget_properties(self) -> None:
        """Delete the file that may hold secrets: the processes have read it. The caller that ends the probe must bring them."""
        (self.folder / PROPERTIES).unlink(missing_ok=True)

    def _refuse_ended(self) -> None:
        processes = self.status()
        ended = [name for name, process in processes.items() if process.state is ProcessState.STOPPED]
        if ended or not processes:
            text = f"The probe in {self.folder} has ended: {', '.join(ended) or 'it was killed before it started a process'}."
            raise Refused.because(Reason("Y05", text))

    def evidence(self) -> tuple[tuple[AuditFinding, ...], LevelHealth]:
        """Findings and health for `core.audit.verdict.combine`. Raises `Refused` (Y01) if the folder holds no probe."""
        read_plan(self.folder, ProbePlan)
        return findings_from_facts(self.facts(), Level.PROBE)


_MACHINE: Final = "machine"
_LONG: Final = 14 * 86_400.0  # seconds: a migration with its soak, and a margin
_SILENT_S: Final = 60.0  # a probe writes every second
_POLL_S: Final = 0.5


class ProbeRuns:
    """The probes below `place`, all of one cluster; `properties` are librdkafka's, which hold secrets and are not left there."""

    def __init__(self, place: Path | str, properties: Mapping[str, str]) -> None:
        self._place, self._properties, self._machine = Path(place), properties, socket.gethostname()

    def begin(self, run: str) -> Path:
        """Start the probe of `run`, unless it runs, and end every other one; returns the folder of its events.

        Raises `Refused` if this run's has ended (Y05) or runs on another machine (Y09), others as `Probe.start`.
        """
        folder = self._place / run
        self._end_runs(lambda other: other != folder)
        if self._machine_of(folder) != self._machine:
            self._refuse_other_machine(folder)
        probe = Probe(folder, self._properties, max_seconds=_LONG)
        atomic.make_folder(folder)
        atomic.replace(folder / _MACHINE, self._machine.encode())  # first: a kill after it leaves a probe whose machine is known
        try:
            probe.start()
        finally:
            probe.forget_properties()
        return probe.events

    def end(self) -> tuple[str, ...]:
        """End every probe; returns their runs. Raises `Refused` (Y09) if one runs on another machine."""
        return self._end_runs(lambda _: True)

    def _end_runs(self, should_end: Callable[[Path], bool]) -> tuple[str, ...]:
        run_folders = sorted(plan.parent for plan in self._place.glob("*/plan.json"))
        ended = []
        for folder in filter(should_end, run_folders):
            if self._machine_of(folder) == self._machine:
                try:
                    Probe(folder, self._properties).stop()
                except Refused:  # a plan of another release: an old run that has ended must not keep a new one from starting
                    if not has_ended(folder):
                        raise
                    continue
                ended.append(folder.name)
            elif not has_ended(folder):
                self._refuse_other_machine(folder)
        return tuple(ended)

    def _machine_of(self, folder: Path) -> str:
        return files.read(str(folder / _MACHINE)) or self._machine

    def _refuse_other_machine(self, folder: Path) -> NoReturn:
        text = f"The probe in {folder} runs on {self._machine_of(folder)}, but this machine is {self._machine}."
        text += f" Only there it can be stopped: python -m {__package__} stop --dir {folder} --properties FILE"
        raise Refused.because(Reason("Y09", text))


def has_ended(folder: Path) -> bool:
    """True if no event was written there for a minute: the probe has ended, on whatever machine."""
    newest = max((path.stat().st_mtime for path in (folder / "events").glob("*")), default=0.0)
    return time.time() - newest > _SILENT_S


def wait_for_flow(events: Path, patience: float = 60.0) -> tuple[int, int]:
    """Count acknowledged records and committed offsets, once both grow.

    Raises `Refused` (Y09) if they do not within `patience` seconds.
    """
    progress = StreamProgress(events)
    before, deadline = _read_counts(progress), time.monotonic() + patience
    while time.monotonic() < deadline:
        time.sleep(_POLL_S)
        now = _read_counts(progress)
        if now[0] > before[0] and now[1] > before[1]:
            return now
    text = f"The probe in {events} shows nothing new for {patience:g} s: {before[0]} records acknowledged, {before[1]} offsets committed."
    raise Refused.because(Reason("Y09", text))


def _read_counts(progress: StreamProgress) -> tuple[int, int]:
    progress.update()
    return progress.acked, sum(offset for offsets in progress.committed.values() for offset in offsets.values())
