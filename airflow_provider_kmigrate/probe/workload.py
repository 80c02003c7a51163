"""A whole workload: its plan, its processes, which outlive their starter, its progress and its facts.

Everything lies in one folder: `plan.json` (what runs), `properties.json` (how to reach Kafka; readable by the owner only),
`processes/<writer>/` (pid, birth and output of each process), `events/`. Removing the folder ends the processes.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import airflow_provider_kmigrate
from airflow_provider_kmigrate.applications.event_log import EventLog, EventReader, FileSink, Reading, read_events
from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.clients.hosts import files
from airflow_provider_kmigrate.clients.hosts.local import Launch, NodeProcess
from airflow_provider_kmigrate.core.events import (
    Ack,
    Commit,
    Event,
    Expect,
    LogExtent,
    Ownership,
    OwnershipChange,
    Remark,
    Start,
    TopicPartition,
    WriterRole,
)
from airflow_provider_kmigrate.core.ledger import Facts, balance
from airflow_provider_kmigrate.core.model import Process, ProcessState, Reason
from airflow_provider_kmigrate.exceptions import Failed, KMigrateError, Refused, TimedOut
from airflow_provider_kmigrate.probe.kafka_calls import extents, matches, partitions_of, quiet_admin

_SCHEMA: Final = 1
_PROCESS: Final = "airflow_provider_kmigrate.probe.process"
MAX_SECONDS: Final = 6 * 3600.0  # a forgotten workload ends itself

Protocol = Literal["cooperative", "eager"]


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """One classic consumer group; `topics` empty: all topics of the workload."""

    name: str
    members: int = 2
    protocol: Protocol = "cooperative"
    topics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkloadPlan:
    """A workload's plan: `rate` records a second over all `producers`, to all partitions of `topics` in turn, read by each group.

    `topics` are names, or patterns that begin with `^`; new topics and partitions are included within seconds. Groups deliver and
    commit in batches of `batch_s` seconds. `run` separates the writers of this run from another's; `Workload.start` chooses it if
    empty. After `max_seconds` a forgotten workload ends itself.
    """

    topics: tuple[str, ...]
    rate: float = 500.0
    producers: int = 1
    groups: tuple[GroupPlan, ...] = (GroupPlan("load"),)
    record_bytes: int = 100
    batch_s: float = 1.0
    max_seconds: float = MAX_SECONDS
    run: str = ""

    def topics_of(self, group: GroupPlan) -> tuple[str, ...]:
        """The group's topics; by default all of the plan."""
        return group.topics or self.topics

    def producer_commands(self) -> dict[str, list[str]]:
        """Words after `python -m ...workload`, by writer; paths and connection are not in them."""
        rest = [
            *_topics(self.topics),
            "--rate",
            str(self.rate / self.producers),
            "--bytes",
            str(self.record_bytes),
            *self._limit(),
        ]
        return {f"producer{i}-{self.run}": ["produce", "--share", f"{i}/{self.producers}", *rest] for i in range(self.producers)}

    def consumer_commands(self) -> dict[str, list[str]]:
        """The same for every member of every group."""
        return {f"{group.name}.{i}-{self.run}": self._consume(group) for group in self.groups for i in range(group.members)}

    def _consume(self, group: GroupPlan) -> list[str]:
        how = ["--protocol", group.protocol, "--batch-seconds", str(self.batch_s), *self._limit()]
        return ["consume", "--group", group.name, *_topics(self.topics_of(group)), *how]

    def _limit(self) -> list[str]:
        return ["--max-seconds", str(self.max_seconds)]

    def as_dict(self) -> dict[str, Any]:
        """The plan as its file stores it."""
        return {"schema": _SCHEMA, **asdict(self)}


def plan_of(values: Mapping[str, Any]) -> WorkloadPlan:
    """Read a plan's file. Raises `Refused` for one of another release."""
    rest = dict(values)
    if rest.pop("schema", None) != _SCHEMA:
        raise _unreadable(f"It has schema {values.get('schema')!r}; this release reads {_SCHEMA}.")
    try:
        groups = tuple(GroupPlan(**{**group, "topics": tuple(group["topics"])}) for group in rest.pop("groups"))
        return WorkloadPlan(**{**rest, "topics": tuple(rest["topics"]), "groups": groups})
    except (KeyError, TypeError) as error:
        raise _unreadable(f"It is damaged: {error!r}.") from error


def _unreadable(why: str) -> Refused:
    return Refused.because(Reason("Y01", f"The plan of a workload or probe cannot be read. {why}"))


def _topics(topics: Sequence[str]) -> list[str]:
    return [f"--topic={topic}" for topic in topics]


class WorkloadProgress:
    """Call `update` to read the events since the last time."""

    def __init__(self, events: Path) -> None:
        self._reader = EventReader(events)
        self.started: set[str] = set()
        self.acked = 0
        self.producing: set[str] = set()
        self.ends: dict[TopicPartition, int] = {}  # after the last acknowledged record
        self.committed: dict[str, dict[TopicPartition, int]] = defaultdict(dict)
        self.owners: dict[str, dict[TopicPartition, set[str]]] = defaultdict(lambda: defaultdict(set))

    def update(self) -> WorkloadProgress:
        """Read the events since the last call; returns itself."""
        for event in self._reader.read().events:
            self._take(event)
        return self

    def _take(self, event: Event) -> None:
        match event:
            case Start():
                self.started.add(event.stamp.writer)
            case Ack():
                self._ack(event)
            case Ownership():
                self._own(event)
            case Commit(ok=True):
                for at in event.offsets:
                    self.committed[event.group][TopicPartition(at.topic, at.partition)] = at.offset

    def _ack(self, event: Ack) -> None:
        self.acked += event.count
        self.producing.add(event.stamp.writer)
        where = TopicPartition(event.topic, event.partition)
        self.ends[where] = max(self.ends.get(where, 0), event.last + 1)

    def _own(self, event: Ownership) -> None:
        for where in event.partitions:
            owners = self.owners[event.group][where]
            if event.change is OwnershipChange.ACQUIRED:
                owners.add(event.member)
            else:
                owners.discard(event.member)

    def unowned(self, plan: WorkloadPlan, found: Iterable[TopicPartition]) -> str:
        """What is missing until the groups share these partitions, which some broker shows now, and all their topics exist."""
        found = tuple(found)
        there = {where.topic for where in found}
        for group in plan.groups:
            topics = plan.topics_of(group)
            if absent := [topic for topic in topics if not any(matches((topic,), name) for name in there)]:
                return f"no broker shows topic {', '.join(absent)} of group {group.name}"
            if missing := self.unsettled(group, [where for where in found if matches(topics, where.topic)]):
                return missing
        return ""

    def unsettled(self, group: GroupPlan, wanted: Iterable[TopicPartition]) -> str:
        """What is missing until every partition has an owner, and every member a share if there are enough; empty: nothing."""
        wanted, owned = set(wanted), self.owners[group.name]
        members = {member for where in wanted for member in owned[where]}
        missing = sorted(where for where in wanted if not owned[where])
        if missing:
            first = ", ".join(where.name for where in missing[:5])
            return f"{len(missing)} of {len(wanted)} partitions of group {group.name} have no owner ({first})"
        share = min(group.members, len(wanted))
        return "" if len(members) >= share else f"{len(members)} of {share} members of group {group.name} own partitions"

    def unread(self, plan: WorkloadPlan) -> int:
        """The number of acknowledged offsets that the groups have not committed."""
        return sum(
            max(0, end - self.committed[group.name].get(where, 0))
            for group in plan.groups
            for where, end in self.ends.items()
            if matches(plan.topics_of(group), where.topic)
        )


_POLL_S = 0.1
_STOP_PRODUCER_S = 140.0  # longer than a producer waits for its last acknowledgement
_STOP_CONSUMER_S = 60.0  # a last commit may wait for the coordinator as long as a session
_KILLED_S = 10.0


def format_processes(found: Mapping[str, Process]) -> str:
    """Processes by writer, one a line."""
    return "".join(f"  {writer:<24} {process.state:<8} pid {process.pid or '-'}\n" for writer, process in found.items())


def all_run(found: Mapping[str, Process]) -> bool:
    """True if there are processes, and all of them run."""
    return bool(found) and all(process.state is ProcessState.RUNNING for process in found.values())


class Workload:
    """The workload that lives in `folder`. `attach` finds a running one; any process may repeat `stop`."""

    def __init__(self, folder: Path | str, properties: Mapping[str, str], plan: WorkloadPlan) -> None:
        self.folder = Path(folder).absolute()
        self.events = self.folder / "events"
        self.plan = plan
        self._properties = dict(properties)

    @classmethod
    def attach(cls, folder: Path | str) -> Workload:
        """The workload that `start` left in the folder. Raises `Refused` if there is none."""
        folder = Path(folder).absolute()
        plan, properties = (files.read_object(folder / name) for name in ("plan.json", "properties.json"))
        if plan is None or properties is None:
            text = f"There is no workload or probe in {folder}."
            raise Refused.because(Reason("Y01", text))
        return cls(folder, properties, plan_of(plan))

    def start(self, timeout: float = 90.0) -> None:
        """Start consumers, wait until they own every partition, start producers, wait for an acknowledgement from each.

        Raises `Refused` if the folder holds a workload already, `TimedOut` or `Failed` with the end of a log if it does not
        start; no process of it runs then.
        """
        self._prepare()
        deadline = time.monotonic() + timeout
        try:
            self._spawn(self.plan.consumer_commands())
            self._wait(self._unsettled(), deadline)
            self._spawn(self.plan.producer_commands())
            writers = self.plan.producer_commands().keys()
            self._wait(lambda seen: _without("acknowledgement", writers - seen.producing), deadline)
        except BaseException:
            self._end(self._processes(), 0.0)
            raise

    def _prepare(self) -> None:
        if (self.folder / "plan.json").exists():
            text = f"{self.folder} already holds a workload or probe."
            raise Refused.because(Reason("Y01", text))
        self.plan = replace(self.plan, run=self.plan.run or os.urandom(3).hex())
        atomic.make_folder(self.events)
        atomic.replace(self.folder / "properties.json", json.dumps(self._properties).encode())
        atomic.replace(self.folder / "plan.json", json.dumps(self.plan.as_dict(), indent=1).encode())
        writers = (*self.plan.producer_commands(), *self.plan.consumer_commands())
        self._testify("begin", lambda log: log.write(Expect(log.stamp(), writers)))

    def _testify(self, what: str, say: Callable[[EventLog], None]) -> None:
        """Write statements, each by a writer of its own, so that a killed caller leaves no record without its stop."""
        log = EventLog(FileSink(self.events), f"control-{what}-{os.urandom(3).hex()}")
        log.write(Start(log.stamp(), WriterRole.CONTROL, log.clock.reading(), os.getpid()))
        say(log)
        log.close(clean=True)

    def _spawn(self, commands: Mapping[str, list[str]]) -> None:
        for writer, command in commands.items():
            paths = ["--events", str(self.events), "--writer", writer, "--properties", str(self.folder / "properties.json")]
            process = NodeProcess(self.folder / "processes" / writer)
            argv = (sys.executable, "-m", _PROCESS, command[0], *paths, *command[1:])
            process.define(Launch(argv, env={"PYTHONPATH": str(Path(airflow_provider_kmigrate.__file__).parents[1])}))
            process.start()

    def _processes(self, writers: Iterable[str] | None = None) -> list[NodeProcess]:
        there = {path.parent.name: path.parent for path in sorted(self.folder.glob("processes/*/launch.json"))}
        return [NodeProcess(there[name]) for name in (there if writers is None else writers) if name in there]

    def status(self) -> dict[str, Process]:
        return {process.folder.name: process.find() for process in self._processes()}

    def progress(self) -> WorkloadProgress:
        return WorkloadProgress(self.events)

    def _unsettled(self) -> Callable[[WorkloadProgress], str]:
        plan, admin = self.plan, quiet_admin(self._properties)

        def unsettled(seen: WorkloadProgress) -> str:
            waiting = _without("start", plan.consumer_commands().keys() - seen.started)
            # Again each time: a broker may not know yet of topics that were created a moment ago.
            return waiting or seen.unowned(plan, partitions_of(admin, plan.topics))

        return unsettled

    def _wait(self, unmet: Callable[[WorkloadProgress], str], deadline: float) -> None:
        progress = self.progress()
        while what := unmet(progress.update()):
            ended = [process for process in self._processes() if process.find().state is ProcessState.STOPPED]
            if ended:
                raise Failed(f"{ended[0].folder.name} ended by itself; {ended[0].log_tail(10)}")
            if time.monotonic() > deadline:
                raise TimedOut(f"the workload in {self.folder} does not start: {what}; its events were kept")
            time.sleep(_POLL_S)

    def stop(self, drain: float = 60.0) -> None:
        """Stop producers, read the logs' extents, wait until the groups have read everything, stop them.

        The wait ends after `drain` seconds, or with the last consumer; the ledger then shows what is unread. A process that does
        not end on SIGTERM is killed, which the ledger shows too.
        """
        ran = any(process.state is not ProcessState.STOPPED for process in self.status().values())
        self._end(self._processes(self.plan.producer_commands()), _STOP_PRODUCER_S)
        if ran:
            self._testify("end", self._note_extents)
            self._drain(time.monotonic() + drain)
        self._end(self._processes(self.plan.consumer_commands()), _STOP_CONSUMER_S)

    def _note_extents(self, log: EventLog) -> None:
        try:
            for one in extents(self._properties, self.plan.topics):
                log.write(LogExtent(log.stamp(), *one))
        except KMigrateError as error:  # the ledger does with less
            log.write(Remark(log.stamp(), "control-no-extents", str(error)))

    def _drain(self, deadline: float) -> None:
        progress, consumers = self.progress(), self._processes(self.plan.consumer_commands())
        while progress.update().unread(self.plan) and time.monotonic() < deadline:
            if all(process.find().state is ProcessState.STOPPED for process in consumers):
                return
            time.sleep(_POLL_S)

    def _end(self, processes: Iterable[NodeProcess], grace: float) -> None:
        """Send SIGTERM to all, and SIGKILL after `grace` seconds to those still running."""
        pids = [(process, process.signal(signal.SIGTERM if grace else signal.SIGKILL)) for process in processes]
        deadline = time.monotonic() + grace
        for process, pid in pids:
            if not process.wait_gone(pid, max(0.0, deadline - time.monotonic())):
                process.signal(signal.SIGKILL)
                process.wait_gone(pid, _KILLED_S)

    def reading(self) -> Reading:
        return read_events(self.events)

    def facts(self) -> Facts:
        """The ledger of all events so far; complete only after `stop`."""
        reading = self.reading()
        return balance(reading.events, refused=reading.refused)


def _without(what: str, writers: set[str]) -> str:
    return f"no {what} of {', '.join(sorted(writers))}" if writers else ""
