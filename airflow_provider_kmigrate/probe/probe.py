"""The probe: kmigrate's own stream of numbered records through every broker (level L1), without a change of users' clients.

Its topic has one partition led by each broker, with three replicas if there are so many brokers, in different racks if possible.
A sender and a receiver run as threads of one process, and record what was acknowledged and delivered. The rate is small: the probe
observes disturbances and adds no load.

Runs of one cluster, one at a time, are in `<place>/<run>/`. `owner.json` there names the attempt whose run it is: the newest one that
began takes it, and the one before ends when it reads another name; an empty one ends whichever runs, on whatever machine. Each
attempt has writers of its own, so that the ledger of a run is one, however many attempts it took.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from airflow_provider_kmigrate.applications.event_log import list_open_writers, read_events
from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.clients.admin import connect
from airflow_provider_kmigrate.clients.hosts import files
from airflow_provider_kmigrate.clients.wire_groups import commit
from airflow_provider_kmigrate.core.audit.verdict import AuditFinding, Level, LevelHealth, findings_from_facts
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.cluster_state.spec import PROBE_GROUP
from airflow_provider_kmigrate.core.ledger import Facts, balance
from airflow_provider_kmigrate.exceptions import Failed, KMigrateError, Refused, TimedOut, Unavailable
from airflow_provider_kmigrate.probe.clients import Lifetime, Receiver, Sender, Setup
from airflow_provider_kmigrate.probe.kafka_calls import kafka_calls, partitions_of, wait_for_leaders
from airflow_provider_kmigrate.probe.stream import StreamProgress, describe_missing, write_expected, write_extents

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
_OWNER: Final = "owner.json"
_MACHINE: Final = "machine"  # of a probe whose processes an earlier release started: they outlive their task, and read no owner
_SILENT_S: Final = 60.0  # a client writes every second
_TAKE_OVER_S: Final = 300.0  # longer than a probe takes to end: its sender's last acknowledgement, and what is unread
_STOP_SENDER_S: Final = 140.0  # longer than a sender waits for its last acknowledgement
_STOP_RECEIVER_S: Final = 60.0  # a last commit may wait for the coordinator as long as a session
_POLL_S: Final = 0.5
_REQUEST_S: Final = 20.0  # for each broker that is asked
DRAIN_S: Final = 60.0  # for what is sent and not read yet, at the end of a run


class ProbeEnd(StrEnum):
    """Why a probe is to end."""

    STOPPED = "it was stopped"
    TAKEN_OVER = "another attempt of the run goes on with it"
    CANCELLED = "its process was asked to end"
    NO_FOLDER = "its folder was removed"


class _Client(threading.Thread):
    """The sender or the receiver, in a thread. `error`: why it ended by itself."""

    def __init__(self, name: str, lifetime: Lifetime, make: Callable[[], Sender | Receiver]) -> None:
        super().__init__(daemon=True, name=name)
        self._lifetime, self._make = lifetime, make
        self.error: KMigrateError | None = None

    def run(self) -> None:
        """Send or receive until the end."""
        try:
            self._make().run()
        except KMigrateError as error:
            self.error = error

    def end(self, seconds: float) -> None:
        """End it, and wait at most so long until it has written its stop."""
        self._lifetime.end()
        self.join(seconds)


class Probe:
    """One attempt to run the probe in `folder`, in this process. `rate`: records a second for each partition."""

    def __init__(self, folder: Path | str, properties: Mapping[str, str], *, rate: float = RATE) -> None:
        self.folder = Path(folder).absolute()
        self.events = self.folder / "events"
        self._properties, self._rate, self._attempt = dict(properties), rate, os.urandom(3).hex()
        self._cancelled = threading.Event()
        self._sender: _Client | None = None
        self._receiver: _Client | None = None

    def start(self, timeout: float = 90.0) -> None:
        """Take the run over, make or complete the topic, start both clients; returns when a record was acknowledged.

        Raises `Refused` if an earlier release's probe runs (Y09) or another one takes this run meanwhile (Y05), `TimedOut` if another
        run's does not end or no record flows, ours if the brokers refuse. No client runs then.
        """
        self._take_over()
        count = ensure_topic(self._properties, TOPIC, timeout)
        self._commit_delivered(timeout)
        sender, receiver = f"producer0-{self._attempt}", f"{GROUP}.0-{self._attempt}"
        write_expected(self.events, (sender, receiver))
        deadline = time.monotonic() + timeout
        try:
            self._receiver = self._begin(receiver, lambda setup: Receiver(setup, group=GROUP))
            self._wait_until_met(lambda progress: self._describe_unsettled(receiver, progress), deadline)
            self._sender = self._begin(sender, lambda setup: Sender(setup, rate=self._rate * count))
            self._wait_until_met(lambda progress: describe_missing("acknowledgement", {sender} - progress.producing), deadline)
        except BaseException:
            self.stop(0.0)
            raise

    def _take_over(self) -> None:
        """End whichever probe of this cluster runs, and wait until it has: two members of the group would hand records to each other."""
        others = list_runs(self.folder.parent) - {self.folder}
        for folder in (self.folder, *others):
            refuse_earlier_release(folder)
        atomic.make_folder(self.events)
        _write_owner(self.folder, self._attempt)
        if running := stop_runs(others, self._cancelled) or _wait_until_ended([self.folder], self._cancelled):
            raise TimedOut(f"The probe in {running[0]} was asked to end and has not within {_TAKE_OVER_S:.0f} s.")

    def _commit_delivered(self, timeout: float) -> None:
        """Commit what the attempt before was delivered and could not commit: a record that comes again would count as a repeat.

        By the wire client: librdkafka's admin did not answer within 90 s (measured), and the coordinator refuses while a member is left.
        """
        progress = StreamProgress(self.events).update()
        committed = progress.committed[GROUP]
        uncommitted = {
            topic_partition: offset
            for topic_partition, offset in progress.delivered[GROUP].items()
            if offset > committed.get(topic_partition, 0)
        }
        if not uncommitted:
            return
        for attempt in Retrying(
            retry=retry_if_exception_type((Unavailable, TimedOut)),
            stop=stop_after_delay(timeout),
            wait=wait_fixed(1.0),
            reraise=True,
        ):
            with attempt:
                commit(self._properties, GROUP, uncommitted, _REQUEST_S, self)

    def check(self) -> None:
        """Raises `Refused` (Y05) if another attempt has taken the run, or it was stopped, `Failed` if this process is to end."""
        if end := self.find_end():
            text = f"The probe in {self.folder} ended before it began: {end}."
            raise Failed(text) if end is ProbeEnd.CANCELLED else Refused.because(Reason("Y05", text))

    def _begin(self, writer: str, make: Callable[[Setup], Sender | Receiver]) -> _Client:
        lifetime = Lifetime(self.events)
        setup = Setup(self.events, writer, self._properties, (TOPIC,), lifetime)
        client = _Client(writer, lifetime, lambda: make(setup))
        client.start()
        return client

    def _describe_unsettled(self, receiver: str, progress: StreamProgress) -> str:
        if missing := describe_missing("start", {receiver} - progress.started):
            return missing
        # Again each time: a broker may not know yet of a topic that was created a moment ago.
        partitions = partitions_of(connect(self._properties), (TOPIC,))
        return progress.describe_unowned(GROUP, partitions) if partitions else f"no broker shows topic {TOPIC}"

    def _wait_until_met(self, describe_unmet: Callable[[StreamProgress], str], deadline: float) -> None:
        progress = StreamProgress(self.events)
        while what := describe_unmet(progress.update()):
            self.check()
            if time.monotonic() > deadline:
                raise TimedOut(f"The probe in {self.folder} does not start: {what}.")
            self.wait(_POLL_S)

    def find_end(self) -> ProbeEnd | None:
        """Why it is to end; None: it goes on. Raises ours if a client has ended by itself."""
        if self._cancelled.is_set():
            return ProbeEnd.CANCELLED
        with suppress(Failed):  # a file that cannot be read now is no word to end
            owner = _read_owner(self.folder)
            if owner is None:
                return ProbeEnd.NO_FOLDER
            if owner != self._attempt:
                return ProbeEnd.TAKEN_OVER if owner else ProbeEnd.STOPPED
        for client in self._clients():
            if not client.is_alive():
                raise client.error or Failed(f"{client.name} ended by itself")
        return None

    def _clients(self) -> list[_Client]:
        return [client for client in (self._sender, self._receiver) if client is not None]

    def wait(self, seconds: float) -> None:
        """Wait so long, or until `cancel`."""
        self._cancelled.wait(seconds)

    def cancel(self) -> None:
        """Have `find_end` say that it is to end. For a signal's handler: it returns at once."""
        self._cancelled.set()

    def stop(self, drain: float = DRAIN_S) -> None:
        """End the sender, wait until everything is read, end the receiver.

        The wait ends after `drain` seconds, or with the receiver; the ledger then shows what is unread. 0: another attempt reads it.
        """
        if self._sender is not None:
            self._sender.end(_STOP_SENDER_S)
            if drain:
                write_extents(self.events, self._properties, (TOPIC,))
                self._wait_until_read(time.monotonic() + drain)
        if self._receiver is not None:
            self._receiver.end(_STOP_RECEIVER_S)

    def _wait_until_read(self, deadline: float) -> None:
        progress = StreamProgress(self.events)
        while progress.update().count_uncommitted(GROUP, (TOPIC,)) and time.monotonic() < deadline:
            if self._receiver is None or not self._receiver.is_alive():
                return
            time.sleep(_POLL_S)

    def facts(self) -> Facts:
        """The ledger of all events of the run so far; complete only after `stop`. Raises `Refused` (Y01) if the folder holds none."""
        if not self.events.is_dir():
            raise Refused.because(Reason("Y01", f"There is no probe in {self.folder}."))
        reading = read_events(self.events)
        return balance(reading.events, refused=reading.refused)

    def evidence(self) -> tuple[tuple[AuditFinding, ...], LevelHealth]:
        """Findings and health for `core.audit.verdict.combine`. Raises `Refused` (Y01) if the folder holds no probe."""
        return findings_from_facts(self.facts(), Level.PROBE)


def _read_owner(folder: Path) -> str | None:
    """The attempt whose run it is; empty: it is to end; None: no attempt has begun it. Raises `Failed` if that cannot be read."""
    stored = files.read_object(folder / _OWNER)
    return None if stored is None else str(stored.get("attempt", ""))


def _write_owner(folder: Path, attempt: str) -> None:
    atomic.replace(folder / _OWNER, json.dumps({"attempt": attempt}).encode(), mode=atomic.ALL_USERS)


def list_runs(place: Path) -> set[Path]:
    """The folders of the runs below `place`."""
    return {path.parent for name in (_OWNER, _MACHINE) for path in place.glob(f"*/{name}")}


def stop_runs(folders: Iterable[Path], cancelled: threading.Event | None = None) -> list[Path]:
    """End the probes in these folders, on whatever machine; returns those that have not ended in five minutes, or when `cancelled`."""
    running = [folder for folder in sorted(folders) if not has_ended(folder)]
    for folder in running:
        _write_owner(folder, "")
    return _wait_until_ended(running, cancelled or threading.Event())


def _wait_until_ended(folders: list[Path], cancelled: threading.Event) -> list[Path]:
    deadline = time.monotonic() + _TAKE_OVER_S
    while running := [folder for folder in folders if not has_ended(folder)]:
        # what an earlier release started reads no owner
        if cancelled.wait(_POLL_S) or time.monotonic() > deadline or all(map(is_of_earlier_release, running)):
            break
    return running


def has_ended(folder: Path) -> bool:
    """True if each client of the probe there has written its stop, or none has written anything for a minute."""
    newest = max((path.stat().st_mtime for path in list_open_writers(folder / "events")), default=0.0)
    return time.time() - newest > _SILENT_S


def is_of_earlier_release(folder: Path) -> bool:
    """True if an earlier release has started the probe there."""
    return (folder / _MACHINE).exists()


def refuse_earlier_release(folder: Path) -> None:
    """Refuse (Y09) to begin beside the processes that an earlier release has started for a probe and that still write."""
    if is_of_earlier_release(folder) and not has_ended(folder):
        raise Refused.because(Reason("Y09", describe_earlier_release(folder)))


def describe_earlier_release(folder: Path) -> str:
    """Where the processes of an earlier release's probe run, and how they are ended."""
    machine = files.read(str(folder / _MACHINE)) or "its worker"
    pids = [str(stored["pid"]) for path in folder.glob("processes/*/process.json") if (stored := files.read_object(path))]
    return (
        f"An earlier release started the probe in {folder}. It runs on {machine} as processes of its own, and the run's audits go on "
        f"reading what it writes. To end it: kill {' '.join(pids)} on {machine}, then clear the task `probe`."
    )


def find_flow(events: Path, patience: float) -> tuple[int, int] | None:
    """The numbers of acknowledged records and of committed offsets, once both grow; None if they do not within `patience` seconds."""
    progress = StreamProgress(events)
    before, deadline = _read_counts(progress), time.monotonic() + patience
    while time.monotonic() < deadline:
        time.sleep(_POLL_S)
        now = _read_counts(progress)
        if now[0] > before[0] and now[1] > before[1]:
            return now
    return None


def _read_counts(progress: StreamProgress) -> tuple[int, int]:
    progress.update()
    return progress.acked, sum(offset for offsets in progress.committed.values() for offset in offsets.values())
